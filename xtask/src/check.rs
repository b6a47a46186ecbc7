//! `cargo xtask check`: everything that must hold before a change lands, except the tests.

use crate::metadata::Metadata;
use crate::process::{cargo, status, workspace_root};
use crate::{Outcome, floors, forbidden, formats, fuzz_lock, licences, refuse_arguments, sources};

/// Runs every check, also after one has failed, and says which did.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    if let Some(refused) = refuse_arguments("check", arguments) {
        return refused;
    }
    let root = workspace_root();
    let mut failed = Vec::new();
    let mut report = |name: &'static str, result: Result<Vec<String>, String>| {
        let lines = result.unwrap_or_else(|error| vec![error]);
        for line in &lines {
            eprintln!("{name}: {line}");
        }
        println!("check: {name} {}", if lines.is_empty() { "ok" } else { "FAILED" });
        if !lines.is_empty() {
            failed.push(name);
        }
    };

    // The quick ones first: who waits for clippy wants to know the rest already.
    report(
        "formatting",
        cargo_passes(&["fmt", "--all", "--check"], "run `cargo fmt`"),
    );
    report("sources", sources::violations(&root));
    report("formats", formats::violations(&root));
    match Metadata::load() {
        Ok(metadata) => {
            report("floors", Ok(floors::violations(&metadata)));
            report("forbidden", Ok(forbidden::violations(&metadata)));
            report("licences", Ok(licences::violations(&metadata)));
            report("fuzz lock", fuzz_lock::violations(&root, &metadata));
        }
        Err(error) => report("metadata", Err(error)),
    }
    let clippy = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    report("clippy", cargo_passes(&clippy, "mend what it says above"));

    if failed.is_empty() {
        Outcome::Passed
    } else {
        eprintln!("check: failed: {}", failed.join(", "));
        Outcome::Failed
    }
}

fn cargo_passes(arguments: &[&str], remedy: &str) -> Result<Vec<String>, String> {
    let status = status(&mut cargo(arguments))?;
    if status.success() {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "`cargo {}` ended with {status}; {remedy}",
        arguments.join(" ")
    )])
}
