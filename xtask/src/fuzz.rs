//! `fuzz`: builds the fuzz targets with coverage counters and runs them one after the other.
//!
//! The programs are those of cargo-fuzz's directory `fuzz/`, and `cargo fuzz` works there, too; but it wants a nightly
//! compiler. The counters that libFuzzer needs are LLVM's and there on stable, as are the checks of arithmetic and our
//! own assertions. What only nightly has is the address sanitizer, and this code is almost all safe Rust: see
//! `docs/decisions/0057-fuzzing.md`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Outcome;
use crate::process::{status, workspace_root};

/// How long each target runs unless told.
const SECONDS: u64 = 60;
/// The only platform on which it is tried; naming it keeps the counters out of build scripts.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// What makes rustc count edges and show compared values as libFuzzer reads them.
const COUNTERS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";
/// An input that makes a program larger than this is a finding, in MiB.
const MEMORY_MIB: u64 = 1024;
/// An input that takes longer than this is a finding, in seconds.
const INPUT_SECONDS: u64 = 20;
/// Longest input, in bytes: a page of any format and what stands before it.
const INPUT_BYTES: u64 = 5000;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    target: Option<String>,
    seconds: u64,
    /// Make the kept corpus small instead of running on.
    minimize: bool,
}

const USAGE: &str = "usage: fuzz [TARGET] [--seconds N] | fuzz [TARGET] --minimize";

fn read(arguments: &[String]) -> Result<Asked, String> {
    let mut asked = Asked {
        target: None,
        seconds: SECONDS,
        minimize: false,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => {
                let value = arguments.next().ok_or("--seconds needs a number")?;
                asked.seconds = value
                    .parse()
                    .ok()
                    .filter(|seconds| *seconds > 0)
                    .ok_or(format!("--seconds takes a whole number above 0, not '{value}'"))?;
            }
            "--minimize" => asked.minimize = true,
            option if option.starts_with('-') => return Err(format!("no option '{option}'")),
            name if asked.target.is_none() => asked.target = Some(name.to_owned()),
            more => return Err(format!("'{more}' is too much")),
        }
    }
    Ok(asked)
}

/// The names of the programs, in alphabetical order.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let directory = root.join("fuzz/fuzz_targets");
    let cannot = |error| format!("cannot list {}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// `cargo xtask fuzz [TARGET] [--seconds N]`
pub(crate) fn run(arguments: &[String]) -> Outcome {
    match read(arguments) {
        Ok(asked) => fuzz(&asked).unwrap_or_else(Outcome::Unusable),
        Err(why) => Outcome::Unusable(format!("{why}; {USAGE}")),
    }
}

fn fuzz(asked: &Asked) -> Result<Outcome, String> {
    let root = workspace_root();
    let mut names = targets(&root)?;
    if let Some(wanted) = &asked.target {
        if !names.contains(wanted) {
            return Err(format!(
                "no fuzz target '{wanted}'; there are: {}",
                names.join(", ")
            ));
        }
        names = vec![wanted.clone()];
    }
    let work = root.join("target/fuzz");
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--release", "--locked", "--target", PLATFORM])
        .args(["--manifest-path", "fuzz/Cargo.toml"])
        .args(names.iter().flat_map(|name| ["--bin", name.as_str()]))
        .env("CARGO_TARGET_DIR", &work)
        .env("RUSTFLAGS", COUNTERS)
        .current_dir(&root);
    if !status(&mut build)?.success() {
        return Err(
            "the fuzz targets cannot be built; libFuzzer itself needs a C++ compiler (apt-get install g++)"
                .to_owned(),
        );
    }
    let programs = work.join(PLATFORM).join("release");
    let mut failed = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let place = Place::new(&root, &work, name)?;
        let program = programs.join(name);
        if asked.minimize {
            println!("{name} ({} of {})", index + 1, names.len());
            place.minimize(&program)?;
            continue;
        }
        println!("{name} ({} of {}), {} s", index + 1, names.len(), asked.seconds);
        if !place.run(&program, asked.seconds)? {
            failed.push(name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(Outcome::Passed);
    }
    eprintln!(
        "xtask: {} found something. Mend the cause, then put the input into fuzz/corpus/NAME/, where `cargo test -p \
         redhare-fuzzing` replays it",
        failed.join(", ")
    );
    Ok(Outcome::Failed)
}

/// Where one target has its files.
struct Place {
    /// In the repository.
    kept: PathBuf,
    /// What runs on this machine have found beside it.
    grown: PathBuf,
    /// Inputs that are findings.
    found: PathBuf,
    log: PathBuf,
}

impl Place {
    fn new(root: &Path, work: &Path, name: &str) -> Result<Self, String> {
        let place = Self {
            kept: root.join("fuzz/corpus").join(name),
            grown: work.join("corpus").join(name),
            found: work.join("found").join(name),
            log: work.join(format!("{name}.log")),
        };
        for directory in [&place.kept, &place.grown, &place.found] {
            std::fs::create_dir_all(directory)
                .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        }
        Ok(place)
    }

    /// False when there was a finding.
    fn run(&self, program: &Path, seconds: u64) -> Result<bool, String> {
        let log = std::fs::File::create(&self.log)
            .map_err(|error| format!("cannot write {}: {error}", self.log.display()))?;
        let mut command = Command::new(program);
        command
            .args([&self.grown, &self.kept])
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={INPUT_BYTES}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-artifact_prefix={}/", self.found.display()))
            .args(["-print_final_stats=1", "-len_control=50"])
            .stdout(Stdio::null())
            .stderr(log);
        let ended = status(&mut command)?;
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        println!("    {}", summary(&text));
        if ended.success() {
            return Ok(true);
        }
        for line in text.lines().filter(|line| is_of_a_finding(line)) {
            println!("    {line}");
        }
        println!("    the whole log: {}", self.log.display());
        Ok(false)
    }

    /// Keeps the smallest inputs that reach what all reach together.
    fn minimize(&self, program: &Path) -> Result<(), String> {
        let small = self.grown.with_extension("small");
        let failed = |error| format!("cannot make {} anew: {error}", small.display());
        if small.exists() {
            std::fs::remove_dir_all(&small).map_err(failed)?;
        }
        std::fs::create_dir_all(&small).map_err(failed)?;
        let mut command = Command::new(program);
        command
            // By edges alone, not by how often each was taken: a tenth of the files.
            .args(["-merge=1", "-use_counters=0", &format!("-max_len={INPUT_BYTES}")])
            .args([&small, &self.grown, &self.kept])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if !status(&mut command)?.success() {
            return Err(format!(
                "{} cannot merge: some input is a finding; fuzz it first",
                program.display()
            ));
        }
        println!("    the smallest are in {}", small.display());
        Ok(())
    }
}

/// Executions and what they reached, from libFuzzer's log.
fn summary(log: &str) -> String {
    let number = |name: &str| {
        let line = log.lines().rev().find_map(|line| line.strip_prefix(name));
        line.map_or("unknown", str::trim).to_owned()
    };
    let reached = log.lines().rev().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "cov:")?;
        words.get(at + 1).map(|edges| (*edges).to_owned())
    });
    format!(
        "{} inputs, {} a second, {} edges reached, at most {} MiB",
        number("stat::number_of_executed_units:"),
        number("stat::average_exec_per_sec:"),
        reached.unwrap_or("unknown".to_owned()),
        number("stat::peak_rss_mb:"),
    )
}

/// Where it broke, and the line that says where the input is kept.
fn is_of_a_finding(line: &str) -> bool {
    line.contains("panicked at") || line.contains("SUMMARY:") || line.contains("Test unit written to")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(arguments: &[&str]) -> Result<Asked, String> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        read(&arguments)
    }

    #[test]
    fn arguments_are_read() {
        let all = Asked {
            target: None,
            seconds: SECONDS,
            minimize: false,
        };
        assert_eq!(given(&[]), Ok(all));
        let one = given(&["tcp_target", "--seconds", "5"]).unwrap();
        assert_eq!((one.target.as_deref(), one.seconds), (Some("tcp_target"), 5));
        assert_eq!(given(&["--seconds"]).unwrap_err(), "--seconds needs a number");
        assert!(given(&["--seconds", "0"]).is_err());
        assert_eq!(given(&["--fast"]).unwrap_err(), "no option '--fast'");
        assert_eq!(given(&["a", "b"]).unwrap_err(), "'b' is too much");
    }

    #[test]
    fn a_log_is_summed_up() {
        let log = "#99\tNEW    cov: 31 ft: 40 corp: 3/9b\nDone 123 runs in 2 second(s)\n\
                   stat::number_of_executed_units: 123\nstat::average_exec_per_sec:     61\nstat::peak_rss_mb:  44\n";
        let said = "123 inputs, 61 a second, 31 edges reached, at most 44 MiB";
        assert_eq!(summary(log), said);
        assert!(summary("").starts_with("unknown inputs"));
        assert!(is_of_a_finding("thread '<unnamed>' panicked at crates/x.rs:1:1:"));
    }
}
