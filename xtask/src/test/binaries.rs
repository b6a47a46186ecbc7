//! The programs that cargo builds of our tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::lanes::{Job, Report};
use crate::process::{cargo, output};

/// The program, and the package whose tests start it and wait for it; they leave processors to others.
const PROCESSES: &str = "redhare";
/// All of those tests.
const PROCESSES_SOURCE: &str = "tests/processes.rs";

/// Those of them that take a minute each, or nearly so.
const LONGEST: [&str; 5] = ["supervision", "upgrade", "checksums", "clones", "health"];

/// One program that runs tests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Binary {
    package: String,
    /// Where cargo would run it.
    directory: PathBuf,
    /// As people name it: the source file.
    source: String,
    program: PathBuf,
}

/// What was built.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) tests: Vec<Binary>,
    /// The program itself, which its tests start, with the features that all of the workspace has together.
    pub(super) program: PathBuf,
}

/// Builds all tests of the workspace, with cargo's own messages, and lists them. Blocks for minutes.
pub(super) fn build() -> Result<Built, String> {
    let mut command = cargo(&[
        "test",
        "--workspace",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let built = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start cargo: {error}; run `make setup`"))?;
    if !built.status.success() {
        return Err(format!(
            "the tests cannot be built (`cargo test --workspace --no-run` ended with {}); mend what it says above",
            built.status
        ));
    }
    parse(&String::from_utf8_lossy(&built.stdout))
}

/// Reads cargo's messages, one JSON object a line (The Cargo Book, "External tools", artifact messages).
fn parse(messages: &str) -> Result<Built, String> {
    let (mut binaries, mut found) = (Vec::new(), None);
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value =
            serde_json::from_str(line).map_err(|error| format!("cargo's message: {error}"))?;
        let is_artifact = message["reason"] == "compiler-artifact";
        let Some(program) = message["executable"].as_str().filter(|_| is_artifact) else {
            continue;
        };
        if message["profile"]["test"] != true {
            let is_it = message["target"]["kind"][0] == "bin" && message["target"]["name"] == PROCESSES;
            found = found.or(is_it.then(|| program.into()));
            continue;
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let manifest = text(&message["manifest_path"]);
        let directory = manifest.as_deref().and_then(|path| Path::new(path).parent());
        let (Some(directory), Some(source)) = (directory, text(&message["target"]["src_path"])) else {
            return Err(format!("cargo says of {program} neither package nor source"));
        };
        let below = Path::new(&source).strip_prefix(directory);
        binaries.push(Binary {
            package: directory
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            directory: directory.to_owned(),
            source: below.map_or_else(|_| source.clone(), |path| path.display().to_string()),
            program: program.into(),
        });
    }
    match (binaries.is_empty(), found) {
        (true, _) => Err("cargo built no test".to_owned()),
        (false, None) => Err(format!("cargo built no program {PROCESSES}")),
        (false, Some(program)) => Ok(Built {
            tests: binaries,
            program,
        }),
    }
}

impl Binary {
    /// Whether its tests start processes and wait for them, mostly.
    pub(super) fn waits(&self) -> bool {
        self.package == PROCESSES
    }

    /// Its runs; what its tests skip themselves for goes to the file `skips`.
    ///
    /// # Errors
    /// Its tests cannot be listed.
    pub(super) fn jobs(&self, skips: &Path) -> Result<Vec<Job>, String> {
        let name = format!("{} {}", self.package, self.source);
        let command = || {
            let mut command = Command::new(&self.program);
            command
                .current_dir(&self.directory)
                // As cargo has it for who runs under it.
                .env("CARGO_MANIFEST_DIR", &self.directory)
                .env("REDHARE_SKIPS", skips);
            command
        };
        if !self.is_split() {
            return Ok(vec![job(name, command())]);
        }
        let listed = output(command().args(["--list", "--format=terse"]))?;
        let modules = by_module(&listed);
        if modules.is_empty() {
            return Err(format!("{name} lists no test in a module"));
        }
        // What comes last should be short: nothing is left to run beside it.
        let mut modules: Vec<_> = modules.into_iter().collect();
        modules.sort_by_key(|(module, _)| {
            LONGEST
                .iter()
                .position(|name| name == module)
                .unwrap_or(LONGEST.len())
        });
        let jobs = modules.into_iter().map(|(module, tests)| {
            let mut command = command();
            command.arg("--exact").args(tests);
            job(format!("{name} {module}"), command)
        });
        Ok(jobs.collect())
    }

    /// Whether each of its modules is a run of its own: what waits leaves room for something else only in pieces.
    pub(super) fn is_split(&self) -> bool {
        self.waits() && self.source == PROCESSES_SOURCE
    }
}

/// The names of tests, as the standard harness lists them (`NAME: test`), by the first part of their paths.
fn by_module(listed: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules = BTreeMap::<String, Vec<String>>::new();
    let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    for test in tests {
        let module = test.split_once("::").map_or("", |(module, _)| module);
        modules
            .entry(module.to_owned())
            .or_default()
            .push(test.to_owned());
    }
    modules
}

/// A run of a program of tests.
fn job(name: String, mut command: Command) -> Job {
    Job::new(name.clone(), move |shown| {
        let mut report = Report::default();
        let status = match shown.run(&mut command, |line| report.counts.add_line(line)) {
            Ok(status) => status,
            Err(why) => {
                report.failures.push(why);
                return report;
            }
        };
        if !status.success() && report.counts.failed == 0 {
            report
                .failures
                .push(format!("{name} ended with {status} before any test failed"));
        }
        report
    })
}

/// The examples in the documentation, which cargo builds and runs one by one.
pub(super) fn documentation() -> Job {
    Job::new("examples in the documentation", |shown| {
        let mut report = Report::default();
        let mut command = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
        match shown.run(&mut command, |line| report.counts.add_line(line)) {
            Ok(status) if !status.success() && report.counts.failed == 0 => {
                report
                    .failures
                    .push(format!("`cargo test --workspace --doc` ended with {status}"));
            }
            Ok(_) => {}
            Err(why) => report.failures.push(why),
        }
        report
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_of_tests_are_listed() {
        let messages = r#"
not of cargo
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"src_path":"/w/crates/a/src/lib.rs"},"profile":{"test":true},"executable":"/t/a-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/redhare/Cargo.toml","target":{"src_path":"/w/crates/redhare/tests/up.rs"},"profile":{"test":true},"executable":"/t/up-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/redhare/Cargo.toml","target":{"kind":["bin"],"name":"redhare","src_path":"/w/crates/redhare/src/main.rs"},"profile":{"test":false},"executable":"/t/redhare"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"src_path":"/w/crates/a/src/lib.rs"},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}"#;
        let built = parse(messages).unwrap();
        assert_eq!(built.program, Path::new("/t/redhare"));
        let named: Vec<(&str, &str, bool)> = built
            .tests
            .iter()
            .map(|binary| (binary.package.as_str(), binary.source.as_str(), binary.waits()))
            .collect();
        assert_eq!(
            named,
            [("a", "src/lib.rs", false), ("redhare", "tests/up.rs", true)]
        );
    }

    #[test]
    fn tests_are_listed_by_module() {
        let listed = "one::a: test\nalone: test\ntwo::deep::a: test\none::b: test\nsome: benchmark\n\n3 tests, 1 benchmark\n";
        let modules = by_module(listed);
        let named = |module: &str| modules.get(module).map(|tests| tests.join(" "));
        assert_eq!(named("one").as_deref(), Some("one::a one::b"));
        assert_eq!(named("two").as_deref(), Some("two::deep::a"));
        assert_eq!(named("").as_deref(), Some("alone"), "none is lost");
        assert_eq!(modules.len(), 3);
    }

    #[test]
    fn nothing_built_is_an_error() {
        assert!(parse(r#"{"reason":"build-finished","success":true}"#).is_err());
        assert!(parse("{").is_err());
        let nameless = r#"{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/a-1"}"#;
        assert!(parse(nameless).unwrap_err().contains("/t/a-1"));
    }
}
