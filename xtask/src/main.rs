//! The one door for developers: `cargo xtask COMMAND`.
//!
//! Every command's entry is a row of [`COMMANDS`]; the work is in the module of its name. Exit
//! status: 0 all is well, 1 a check or test failed, 2 the command cannot run (wrong arguments,
//! nothing to run yet).

mod check;
mod doors;
mod floors;
mod forbidden;
mod formats;
mod fuzz;
mod fuzz_lock;
mod guests;
mod licences;
mod metadata;
mod netns;
mod process;
mod rust_text;
mod soak;
mod sources;
mod test;
mod tests_result;
mod upgrade;

use std::process::ExitCode;

/// How a command ended.
pub(crate) enum Outcome {
    /// All is well.
    Passed,
    /// A check or a test failed; what and why has been printed.
    Failed,
    /// The command could not run; the text says why and what to do.
    Unusable(String),
}

struct Command {
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Outcome,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "check",
        arguments: "",
        about: "formatting, lints, floors, licences, rules for sources and format tables",
        run: check::run,
    },
    Command {
        name: "test",
        arguments: "",
        about: "every test, guest tests included",
        run: test::run,
    },
    Command {
        name: "ci",
        arguments: "",
        about: "check, then test, where a skipped test is a failure",
        run: ci,
    },
    Command {
        name: "sim",
        arguments: "--seed N [--shrink] | --seeds N | --hours H",
        about: "whole clusters in one thread from a seed",
        run: doors::simulate,
    },
    Command {
        name: "model",
        arguments: "walk | search | table [OPTION...]",
        about: "the replication's rules as a model: walks, exhaustive search",
        run: doors::model,
    },
    Command {
        name: "faults",
        arguments: "[--seconds N] [--seed N]",
        about: "real processes on hosts of their own, random faults, a judged history",
        run: guests::faults,
    },
    Command {
        name: "upgrade",
        arguments: "[--from REVISION]",
        about: "an earlier revision's program and this one in one cluster, process by process",
        run: upgrade::run,
    },
    Command {
        name: "fuzz",
        arguments: "[TARGET] [--seconds N | --minimize]",
        about: "feed noise to everything that reads what others wrote",
        run: fuzz::run,
    },
    Command {
        name: "bench",
        arguments: "[ARGUMENT...]",
        about: "measure, and compare with the promises",
        run: doors::bench,
    },
    Command {
        name: "soak",
        arguments: "[--hours H] [--only PART,...]",
        about: "hours under faults; each part's last result is kept in docs/soak.md",
        run: soak::run,
    },
    Command {
        name: "netns",
        arguments: "-- COMMAND [ARGUMENT...]",
        about: "run in a private network namespace with reno, for measuring",
        run: netns::run,
    },
    Command {
        name: "help",
        arguments: "",
        about: "show this list",
        run: help,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match arguments.split_first() {
        None => ("help", &[][..]),
        Some((first, _)) if first == "-h" || first == "--help" => ("help", &[][..]),
        Some((first, rest)) => (first.as_str(), rest),
    };
    let outcome = match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(rest),
        None => Outcome::Unusable(format!("no command '{name}'; there are:\n{}", list())),
    };
    match outcome {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::from(1),
        Outcome::Unusable(why) => {
            eprintln!("xtask: {why}");
            ExitCode::from(2)
        }
    }
}

fn list() -> String {
    let line = |command: &Command| {
        let usage = format!("{} {}", command.name, command.arguments);
        format!("  cargo xtask {usage:<38} {}", command.about)
    };
    COMMANDS.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn help(_: &[String]) -> Outcome {
    println!("{}", list());
    Outcome::Passed
}

fn ci(arguments: &[String]) -> Outcome {
    match check::run(arguments) {
        Outcome::Passed => test::run_strictly(),
        other => other,
    }
}

/// An outcome for a command that takes no arguments but got some.
pub(crate) fn refuse_arguments(command: &str, arguments: &[String]) -> Option<Outcome> {
    let first = arguments.first()?;
    Some(Outcome::Unusable(format!(
        "{command} takes no arguments, but got '{first}'; leave it out"
    )))
}
