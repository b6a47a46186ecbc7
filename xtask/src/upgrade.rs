//! `upgrade`: the program of an earlier revision beside the one of the work tree, in one cluster
//! (`crates/redhare/tests/upgrade.rs`).
//!
//! The earlier revision's files go to `target/upgrade/REVISION/tree`, what is built of them to `build` beside it, both kept
//! for the next time. Nothing is written into the repository's own directory.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Outcome;
use crate::process::{cargo, output, status, workspace_root};
use crate::tests_result::Counts;

const USAGE: &str = "usage: upgrade [--from REVISION]";
/// Without a tag, the last commit that is older than the newest by this much is the earlier release.
const A_DAY_S: u64 = 86_400;

/// `cargo xtask upgrade [--from REVISION]`
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let from = match arguments {
        [] => None,
        [name, revision] if name == "--from" => Some(revision.as_str()),
        [name] if name == "--from" => return Outcome::Unusable(format!("--from needs a revision; {USAGE}")),
        [other, ..] => return Outcome::Unusable(format!("no option '{other}'; {USAGE}")),
    };
    against(from).unwrap_or_else(Outcome::Unusable)
}

/// Builds the earlier program and runs the test with it.
fn against(from: Option<&str>) -> Result<Outcome, String> {
    let revision = resolve(from)?;
    let place = workspace_root().join("target/upgrade").join(&revision);
    let tree = place.join("tree");
    if !tree.join("Cargo.toml").exists() {
        unpack(&revision, &tree)?;
    }
    eprintln!("xtask: building the program of {revision}");
    let build = place.join("build");
    let mut command = cargo(&["build", "--locked", "-p", "redhare"]);
    command
        .current_dir(&tree)
        .env("CARGO_TARGET_DIR", &build)
        // It has the version of the one it is tried with.
        .env("REDHARE_RELEASE", &revision)
        // Nobody debugs it, and it is several times as large with.
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    let ended = status(&mut command)?;
    if !ended.success() {
        return Err(format!(
            "revision {revision} does not build here ({ended}); name another one with --from"
        ));
    }
    judge(&build.join("debug/redhare"))
}

fn judge(old: &Path) -> Result<Outcome, String> {
    let mut command = cargo(&[
        "test",
        "-p",
        "redhare",
        "--test",
        "processes",
        "--",
        "upgrade::",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env("REDHARE_OLD", old);
    let mut counts = Counts::default();
    let ended = crate::test::stream(&mut command, |line| counts.add_line(line))?;
    Ok(match ended.success() && counts.passed > 0 {
        true => Outcome::Passed,
        false => Outcome::Failed,
    })
}

/// The full number of the revision that was asked for; else of the last tag, or the last commit of the day before.
fn resolve(from: Option<&str>) -> Result<String, String> {
    if let Some(from) = from {
        return parse(from);
    }
    let tag = Command::new("git")
        .args(["describe", "--tags", "--abbrev=0", "HEAD~1"])
        .current_dir(workspace_root())
        .stderr(Stdio::null())
        .output();
    if let Ok(found) = tag
        && found.status.success()
    {
        return parse(String::from_utf8_lossy(&found.stdout).trim());
    }
    let newest = git(&["log", "-1", "--format=%ct"])?;
    let before = newest
        .parse::<u64>()
        .map_or(0, |newest| newest.saturating_sub(A_DAY_S));
    let found = git(&[
        "rev-list",
        "-1",
        "--first-parent",
        &format!("--before={before}"),
        "HEAD",
    ])?;
    if found.is_empty() {
        return Err("no commit is a day older than this one; name a revision with --from".to_owned());
    }
    Ok(found)
}

fn parse(revision: &str) -> Result<String, String> {
    // An option of git's is none of ours.
    let named = format!("{revision}^{{commit}}");
    git(&["rev-parse", "--verify", "--end-of-options", &named])
        .map_err(|why| format!("there is no revision '{revision}': {why}"))
}

fn git(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(workspace_root());
    output(&mut command).map(|text| text.trim().to_owned())
}

/// The files of a revision, in a directory of their own. What an earlier try left there is replaced.
fn unpack(revision: &str, tree: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", tree.display());
    let fresh = tree.with_extension("new");
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).map_err(failed)?;
    }
    std::fs::create_dir_all(&fresh).map_err(failed)?;
    let archive = fresh.with_extension("tar");
    let mut command = Command::new("git");
    command
        .args(["archive", "--format=tar", "--output"])
        .arg(&archive);
    output(command.arg(revision).current_dir(workspace_root()))?;
    let mut command = Command::new("tar");
    output(command.arg("-xf").arg(&archive).arg("-C").arg(&fresh))?;
    std::fs::remove_file(&archive).map_err(failed)?;
    std::fs::rename(&fresh, tree).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        match run(&arguments) {
            Outcome::Unusable(why) => why,
            _ => panic!("{arguments:?} must be refused"),
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refused(&["--from"]).starts_with("--from needs a revision"));
        assert!(refused(&["--to", "x"]).starts_with("no option '--to'"));
        assert!(
            refused(&["--from", "no-such-revision"]).starts_with("there is no revision 'no-such-revision'")
        );
    }

    #[test]
    fn a_revision_is_found_by_name() {
        assert_eq!(parse("HEAD").unwrap().len(), 40);
    }
}
