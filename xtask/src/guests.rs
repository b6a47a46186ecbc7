//! The tests that are scripts: those that need a guest with a stock kernel (`tests/vm/`), and foreign judges of a mount
//! (`tests/posix/`).

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitStatus};

use crate::Outcome;
use crate::metadata::Metadata;
use crate::process::{cargo, status, workspace_root};
use crate::test::lanes::{Job, Report, Shown};
use crate::test::stream;

/// A script that skips ends with this status, its last line saying `SKIP: ` and what is lacking.
const SKIPPED: i32 = 77;

struct Guest {
    name: &'static str,
    script: &'static str,
    /// What the script is given.
    argument: Argument,
    /// Settings beside the argument.
    environment: &'static [(&'static str, &'static str)],
}

enum Argument {
    Text(&'static str),
    /// The path of the `redhare` program.
    Program,
}

/// What `test` runs.
const GUESTS: &[Guest] = &[
    Guest {
        name: "ext4 over NVMe/TCP by a stock kernel",
        script: "tests/vm/nvme-tcp-ext4.sh",
        argument: Argument::Program,
        // `soak` has more of each.
        environment: FEW,
    },
    Guest {
        name: "DH-HMAC-CHAP by a stock kernel",
        script: "tests/vm/nvme-auth.sh",
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "a replicated volume by two portals, their targets killed, by a stock kernel",
        script: "tests/vm/portals.sh",
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "reservations through a real loss of power",
        script: "tests/vm/nvme-power.sh",
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "a minute of random faults to processes on hosts of their own, judged by porcupine, a stock kernel beside them",
        script: FAULTS,
        argument: Argument::Program,
        // The same faults each time; `soak` draws others.
        environment: &[("SEED", "1795361886"), HOST_BESIDE],
    },
    Guest {
        name: "a mount before pjdfstest, and fsx and fio for some seconds",
        script: POSIX,
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "fsx while targets die, on mounts that are killed and taken over",
        script: TAKEOVERS,
        argument: Argument::Program,
        // A few of each; `soak` has ten minutes, and draws others.
        environment: &[("SEED", "1795654082"), ("SECONDS_LONG", "20"), ("DEATHS", "1")],
    },
];

/// Not the files and the seconds of fio that prove most, but the same steps.
const FEW: &[(&str, &str)] = &[("FILES", "500"), ("FIO_SECONDS", "2")];

/// What only `soak` runs: an emulated processor costs a real one, and what these judge has tests of our own in `test`, too.
const RARE: &[Guest] = &[
    Guest {
        name: "self test of the NVMe/TCP guest",
        script: "tests/vm/nvme-tcp-ext4.sh",
        argument: Argument::Text("--against-kernel"),
        environment: &[],
    },
    Guest {
        name: "ext4 over NVMe/TCP by a stock kernel, with more files and longer",
        script: "tests/vm/nvme-tcp-ext4.sh",
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "ext4 by a stock kernel on a target made by management calls",
        script: "tests/vm/nvme-tcp-ext4.sh",
        argument: Argument::Program,
        environment: &[("MANAGED", "1")],
    },
    Guest {
        name: "TLS by a stock kernel",
        script: "tests/vm/nvme-tls.sh",
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "ANA failover by a stock kernel",
        script: "tests/vm/nvme-access.sh",
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "persistent discovery by a stock kernel",
        script: "tests/vm/nvme-discovery.sh",
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "a cut network, removal, growth and reset by a stock kernel",
        script: "tests/vm/nvme-host.sh",
        argument: Argument::Program,
        environment: &[],
    },
    Guest {
        name: "disks whose controllers are reset by a stock kernel",
        script: "tests/vm/nvme-reset.sh",
        argument: Argument::Program,
        environment: &[],
    },
];

const POSIX: &str = "tests/posix/run";
const DEATHS: &str = "tests/posix/deaths";
const TAKEOVERS: &str = "tests/posix/takeovers";
const FAULTS: &str = "tests/linearizability/run";
const FIO: &str = "tests/posix/fio";
/// How long fsx runs while targets die in a soak, and how long while the mount that it runs on does.
const SOAK_DEATHS: [(&str, &str); 1] = [("SECONDS_LONG", "600")];
/// The same with both at once.
const SOAK_BOTH: [(&str, &str); 2] = [("SECONDS_LONG", "600"), ("DEATHS", "1")];
/// How long fio writes and verifies in a soak while targets die.
const SOAK_FIO: [(&str, &str); 1] = [("SECONDS_LONG", "1200")];
/// Who uses an exported volume while faults happen.
const HOST_BESIDE: (&str, &str) = ("BESIDE", "tests/vm/faults-host");
/// How long faults happen in a soak, how many at a time, and that host.
const SOAK_FAULTS: [(&str, &str); 3] = [("FAULT_SECONDS", "1200"), ("AT_ONCE", "2"), HOST_BESIDE];

/// Checkpoints with the PyTorch that PyPI has now.
const TORCH: &str = "tests/python-torch";
/// DuckDB and Hugging Face's datasets.
const LIBRARIES: &str = "tests/python-libraries";

/// The wheel that people install.
const WHEEL: &str = "scripts/wheel";

const PROGRAM_PACKAGE: &str = "redhare";
/// What Python loads.
const PYTHON_PACKAGE: &str = "redhare-python";

/// What a guest's run says whose kernel has crashed in itself. Emulated ones do now and then; what makes them do so each time fails.
const KERNEL_CRASH: &str = "vm-run: the guest's kernel panicked";
const ATTEMPTS_MAX: u32 = 2;

/// A job for each of those guest tests of this program that `test` runs.
pub(crate) fn jobs(program: &Path) -> impl Iterator<Item = Job> {
    let job = |guest: &'static Guest| {
        let program = program.to_owned();
        Job::new(format!("guest: {}", guest.name), move |shown| {
            guest.run(&program, shown)
        })
    };
    GUESTS.iter().map(job)
}

/// The other guest tests, one after another, for `soak`.
pub(crate) fn rare() -> Judged {
    let program = Metadata::load().and_then(|metadata| build_program(&metadata));
    let program = match program {
        Ok(program) => program,
        Err(why) => return (Outcome::Unusable(why), Vec::new()),
    };
    let (mut worst, mut said) = (Outcome::Passed, Vec::new());
    for guest in RARE {
        println!("guest: {}", guest.name);
        let mut shown = Shown::default();
        let report = guest.run(Path::new(&program), &mut shown);
        shown.print();
        for why in report.skips.iter().chain(&report.failures) {
            println!("{why}");
        }
        said.push(format!("{}: {}", guest.name, report.counts));
        worst = match (report.is_good(), report.counts.skipped, worst) {
            (false, ..) | (_, _, Outcome::Failed) => Outcome::Failed,
            (_, 0, worst) => worst,
            _ => Outcome::Unusable(report.skips.join("; ")),
        };
    }
    (worst, said)
}

impl Guest {
    fn run(&self, program: &Path, shown: &mut Shown) -> Report {
        let argument = match &self.argument {
            Argument::Text(text) => OsStr::new(text),
            Argument::Program => program.as_os_str(),
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut command = Command::new(workspace_root().join(self.script));
            command
                .arg(argument)
                .envs(self.environment.iter().copied())
                .current_dir(workspace_root());
            let mut report = Report::default();
            let (mut last, mut kernel_crashed) = (String::new(), false);
            let status = shown.run(&mut command, |line| {
                report.counts.add_line(line);
                kernel_crashed |= line.contains(KERNEL_CRASH);
                line.clone_into(&mut last);
            });
            match status {
                Err(why) => report.failures.push(why),
                Ok(status) if !status.success() && kernel_crashed && attempt < ATTEMPTS_MAX => {
                    shown.line(&format!("guest: {}: its kernel crashed; once more", self.name));
                    continue;
                }
                Ok(status) => self.judge(status, &last, &mut report),
            }
            return report;
        }
    }

    /// What the end of the script says beside the counts that it has printed.
    fn judge(&self, status: ExitStatus, last: &str, report: &mut Report) {
        let name = self.name;
        if status.code() == Some(SKIPPED) {
            report.counts.skipped += 1;
            report
                .skips
                .push(format!("{name}: {}", last.trim_start_matches("SKIP: ")));
        } else if !status.success() && report.counts.failed == 0 {
            report.failures.push(format!("guest: {name} ended with {status}"));
        } else if status.success() && report.counts.passed == 0 {
            report
                .failures
                .push(format!("guest: {name} ended well but reported nothing passed"));
        }
    }
}

/// `bench nvmet`: our target and the kernel's in one guest. It has no bar, and is no test.
pub(crate) fn bench_nvmet() -> Outcome {
    measure_nvmet().unwrap_or_else(Outcome::Unusable)
}

fn measure_nvmet() -> Result<Outcome, String> {
    let metadata = Metadata::load()?;
    let program = build_program(&metadata)?;
    let mut script = Command::new(workspace_root().join("tests/vm/bench-nvmet.sh"));
    let ended = status(script.arg(program).current_dir(workspace_root()))?;
    Ok(match ended.code() {
        Some(0) => Outcome::Passed,
        Some(SKIPPED) => Outcome::Unusable("the comparison needs what the last line above says".to_owned()),
        _ => Outcome::Failed,
    })
}

/// How a script ended, and what it said of each thing that it judged.
pub(crate) type Judged = (Outcome, Vec<String>);

/// All that the foreign judges of a mount have to ask, for `soak`.
pub(crate) fn whole_posix() -> Judged {
    judge(POSIX, &[("WHOLE", "1")])
}

/// Ten minutes of fsx on a volume whose targets die, for `soak`.
pub(crate) fn fsx_and_deaths() -> Judged {
    judge(DEATHS, &SOAK_DEATHS)
}

/// Ten minutes of fsx on mounts that are killed and taken over, for `soak`.
pub(crate) fn fsx_and_takeovers() -> Judged {
    judge(TAKEOVERS, &SOAK_DEATHS)
}

/// Ten minutes of the same while targets die as well, for `soak`.
pub(crate) fn fsx_and_both() -> Judged {
    judge(TAKEOVERS, &SOAK_BOTH)
}

/// Twenty minutes of fio with verification on a mount of a volume whose targets die, for `soak`.
pub(crate) fn long_fio() -> Judged {
    judge(FIO, &SOAK_FIO)
}

/// Twenty minutes of random faults, for `soak`.
pub(crate) fn long_faults() -> Judged {
    judge(FAULTS, &SOAK_FAULTS)
}

/// Checkpoints with PyPI's PyTorch, for `soak`.
pub(crate) fn newest_torch() -> Judged {
    with_library(TORCH)
}

/// DuckDB and datasets over `redhare://`, for `soak`.
pub(crate) fn libraries() -> Judged {
    with_library(LIBRARIES)
}

/// The wheel of the Python package, made, installed and tried, for `soak`.
pub(crate) fn wheel() -> Judged {
    let program = Metadata::load().and_then(|metadata| build_program(&metadata));
    match program {
        Ok(program) => verdict(
            WHEEL,
            Command::new(workspace_root().join(WHEEL)).env("PROGRAM", program),
        ),
        Err(why) => (Outcome::Unusable(why), Vec::new()),
    }
}

/// Runs a script that looks for our Python library beside the program.
fn with_library(script: &str) -> Judged {
    match status(&mut cargo(&[
        "build",
        "--quiet",
        "--release",
        "-p",
        PYTHON_PACKAGE,
    ])) {
        Ok(ended) if ended.success() => judge(script, &[]),
        Ok(_) => (Outcome::Failed, Vec::new()),
        Err(why) => (Outcome::Unusable(why), Vec::new()),
    }
}

/// `cargo xtask faults [--seconds N] [--seed N]`
pub(crate) fn faults(arguments: &[String]) -> Outcome {
    let usage = "usage: faults [--seconds N] [--seed N]";
    let mut settings = Vec::new();
    for pair in arguments.chunks(2) {
        let (name, value) = match pair {
            [name, value] => (name.as_str(), value.as_str()),
            _ => return Outcome::Unusable(format!("{} needs a number; {usage}", pair[0])),
        };
        let variable = match name {
            "--seconds" => "FAULT_SECONDS",
            "--seed" => "SEED",
            _ => return Outcome::Unusable(format!("no option '{name}'; {usage}")),
        };
        if value.parse::<u64>().is_err() {
            return Outcome::Unusable(format!("{name} takes a whole number, not '{value}'; {usage}"));
        }
        settings.push((variable, value));
    }
    judge(FAULTS, &settings).0
}

/// Runs a script on the optimised program.
fn judge(script: &str, settings: &[(&str, &str)]) -> Judged {
    let program = Metadata::load().and_then(|metadata| build_program(&metadata));
    let program = match program {
        Ok(program) => program,
        Err(why) => return (Outcome::Unusable(why), Vec::new()),
    };
    let mut command = Command::new(workspace_root().join(script));
    command.arg(program).envs(settings.iter().copied());
    verdict(script, &mut command)
}

/// What the end of a script says.
fn verdict(script: &str, command: &mut Command) -> Judged {
    let (mut said, mut before) = (Vec::new(), String::new());
    let ended = stream(command.current_dir(workspace_root()), |line| {
        note(&mut said, &mut before, line);
    });
    let outcome = match ended.map(|status| status.code()) {
        Ok(Some(0)) => Outcome::Passed,
        Ok(Some(SKIPPED)) => Outcome::Unusable(format!("{script}: {}", before.trim_start_matches("SKIP: "))),
        Ok(_) => Outcome::Failed,
        Err(why) => Outcome::Unusable(why),
    };
    (outcome, said)
}

/// What a script has judged is the line before each that begins with `test result:`.
fn note(said: &mut Vec<String>, before: &mut String, line: &str) {
    if line.starts_with("test result: ") && !before.is_empty() {
        said.push(std::mem::take(before));
    } else {
        line.clone_into(before);
    }
}

/// Builds the program, optimised, and returns its path.
fn build_program(metadata: &Metadata) -> Result<String, String> {
    let status = status(&mut cargo(&[
        "build",
        "--quiet",
        "--release",
        "-p",
        PROGRAM_PACKAGE,
    ]))?;
    if !status.success() {
        return Err(format!(
            "`cargo build --release -p {PROGRAM_PACKAGE}` ended with {status}; mend what it says above"
        ));
    }
    Ok(format!("{}/release/{PROGRAM_PACKAGE}", metadata.target_directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_says_nothing_or_skips_has_not_passed() {
        let guest = Guest {
            name: "script",
            script: "",
            argument: Argument::Text(""),
            environment: &[],
        };
        let ends = |script: &str| {
            let (mut report, mut last) = (Report::default(), String::new());
            let mut shown = Shown::default();
            let status = shown.run(Command::new("sh").args(["-c", script]), |line| {
                report.counts.add_line(line);
                line.clone_into(&mut last);
            });
            guest.judge(status.unwrap(), &last, &mut report);
            report
        };
        let silent = ends("exit 0");
        assert_eq!((silent.counts.passed, silent.failures.len()), (0, 1));
        assert_eq!(ends("exit 3").failures.len(), 1);
        let skipped = ends("echo 'SKIP: no qemu; install it'; exit 77");
        assert_eq!((skipped.counts.skipped, skipped.failures.len()), (1, 0));
        assert_eq!(skipped.skips, ["script: no qemu; install it"]);
        let failed = ends("echo 'test result: FAILED. 1 passed; 1 failed;'; exit 1");
        assert_eq!((failed.counts.failed, failed.failures.len()), (1, 0));
        let passed = ends("echo 'test result: ok. 2 passed; 0 failed;'");
        assert_eq!((passed.counts.passed, passed.failures.len()), (2, 0));
    }

    #[test]
    fn what_a_script_judged_is_kept() {
        // Not by a script that prints them: whoever runs this test would count its lines as results of tests.
        let (mut said, mut before) = (Vec::new(), String::new());
        let lines = [
            "one",
            "test result: ok. 1 passed;",
            "",
            "two",
            "test result: FAILED. 0 passed; 1 failed;",
        ];
        for line in lines {
            note(&mut said, &mut before, line);
        }
        assert_eq!((said.join(", "), before.as_str()), ("one, two".to_owned(), ""));
        let (outcome, said) = verdict(
            "a script",
            Command::new("sh").args(["-c", "echo 'SKIP: no qemu'; exit 77"]),
        );
        assert!(matches!(outcome, Outcome::Unusable(why) if why == "a script: no qemu") && said.is_empty());
        let (outcome, _) = verdict("a script", Command::new("sh").args(["-c", "exit 1"]));
        assert!(matches!(outcome, Outcome::Failed));
    }

    #[test]
    fn wrong_options_of_faults_are_named() {
        let refused = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            match faults(&arguments) {
                Outcome::Unusable(why) => why,
                _ => panic!("{arguments:?} must be refused"),
            }
        };
        assert!(refused(&["--seed"]).starts_with("--seed needs a number"));
        assert!(refused(&["--seed", "x"]).starts_with("--seed takes a whole number, not 'x'"));
        assert!(refused(&["--speed", "1"]).starts_with("no option '--speed'"));
    }
}
