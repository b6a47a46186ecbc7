//! `soak`: what takes too long for `make test`, part by part. Each part's last result is a line of `docs/soak.md`, written when
//! the part ends, so that a soak that is cut short keeps what it has seen, and a part can be run alone.

use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{cargo, output, workspace_root};
use crate::{Outcome, doors, guests, test, upgrade};

/// Where each part's last result is kept.
const RESULT: &str = "docs/soak.md";
const USAGE: &str = "usage: soak [--hours H] [--only PART[,PART...]] [--list]";
/// How long the simulations go on unless told, in hours.
const HOURS: &str = "8";
/// How many seeds each simulation has at least, however few hours were asked for.
const SEEDS: u64 = 1000;
/// How long the model's walks go on.
const WALK_SECONDS: &str = "600";
/// Marks the lines of results, after the head of their table.
const RULE: &str = "| --- | --- | --- | --- | --- | --- |";

/// How a part ended, and what it said of itself, for the table.
struct Ended {
    outcome: Outcome,
    said: String,
}

struct Part {
    name: &'static str,
    /// What runs, and for how long.
    what: &'static str,
    /// Given the hours of the simulations.
    run: fn(&str) -> Ended,
}

const PARTS: &[Part] = &[
    Part {
        name: "simulations",
        what: "every simulation behind `cargo xtask sim`, new seeds all the time, for the hours that were asked for and a thousand seeds of each at least; a hundred where one seed is an hour of virtual time, or a run again for each place where power may go",
        run: simulations,
    },
    Part {
        name: "walks",
        what: "ten minutes of `cargo xtask model walk`",
        run: |_| walk(),
    },
    Part {
        name: "posix",
        what: "`WHOLE=1 tests/posix/run`: pjdfstest, fsx a million operations in each of four seeds, and some seconds of fio",
        run: |_| script(guests::whole_posix()),
    },
    Part {
        name: "deaths",
        what: "ten minutes of `tests/posix/deaths`",
        run: |_| script(guests::fsx_and_deaths()),
    },
    Part {
        name: "takeovers",
        what: "ten minutes of `tests/posix/takeovers`",
        run: |_| script(guests::fsx_and_takeovers()),
    },
    Part {
        name: "both",
        what: "ten minutes of `DEATHS=1 tests/posix/takeovers`",
        run: |_| script(guests::fsx_and_both()),
    },
    Part {
        name: "fio",
        what: "twenty minutes of `tests/posix/fio`: fio with verification on a mount, while targets die",
        run: |_| script(guests::long_fio()),
    },
    Part {
        name: "directory",
        what: "a directory of a million entries on a mount: listed, looked up, partly removed, in bounded memory",
        run: |_| directory(),
    },
    Part {
        name: "faults",
        what: "twenty minutes of `tests/linearizability/run`, two faults at a time, a stock kernel in a guest with fio and verification on an exported volume beside it",
        run: |_| script(guests::long_faults()),
    },
    Part {
        name: "guests",
        what: "those scripts of `tests/vm` with a stock kernel in a guest that `make test` leaves out: TLS, ANA, discovery, a cut network, management calls, resets of a disk's controller, and the guest itself against the kernel's own target",
        run: |_| script(guests::rare()),
    },
    Part {
        name: "torch",
        what: "`tests/python-torch`: checkpoints with the PyTorch that PyPI has now",
        run: |_| script(guests::newest_torch()),
    },
    Part {
        name: "libraries",
        what: "`tests/python-libraries`: DuckDB and Hugging Face's datasets",
        run: |_| script(guests::libraries()),
    },
    Part {
        name: "wheel",
        what: "`scripts/wheel`: the wheel made, installed alone, and tried with each CPython from 3.11 on that is here",
        run: |_| script(guests::wheel()),
    },
    Part {
        name: "model",
        what: "`cargo xtask model search`",
        run: |_| plain(doors::model(&["search".to_owned()])),
    },
    Part {
        name: "upgrade",
        what: "`cargo xtask upgrade`",
        run: |_| plain(upgrade::run(&[])),
    },
];

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    hours: String,
    /// Names of parts; empty is all.
    only: Vec<String>,
    list: bool,
}

/// `cargo xtask soak [--hours H] [--only PART[,PART...]] [--list]`
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let from_make = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let wish = match read(arguments, from_make("HOURS"), from_make("ONLY")) {
        Ok(wish) => wish,
        Err(why) => return Outcome::Unusable(format!("{why}; {USAGE}")),
    };
    if wish.list {
        for part in PARTS {
            println!("{:<12} {}", part.name, part.what);
        }
        return Outcome::Passed;
    }
    let commit = match commit() {
        Ok(commit) => commit,
        Err(why) => return Outcome::Unusable(why),
    };
    let wanted = |part: &&Part| wish.only.is_empty() || wish.only.iter().any(|name| name == part.name);
    let mut lines = Vec::new();
    let mut whole = Outcome::Passed;
    for part in PARTS.iter().filter(wanted) {
        eprintln!("xtask: soak: {}", part.name);
        let began = Instant::now();
        let ended = (part.run)(&wish.hours);
        let line = line(part, &date(), &commit, began.elapsed(), &ended);
        println!("{line}");
        if let Err(why) = keep(part.name, &line) {
            return Outcome::Unusable(why);
        }
        lines.push(line);
        whole = match (whole, ended.outcome) {
            (whole, Outcome::Passed) => whole,
            (Outcome::Failed, _) | (_, Outcome::Failed) => Outcome::Failed,
            (_, unusable) => unusable,
        };
    }
    println!("\n{}\n", lines.join("\n"));
    whole
}

fn read(arguments: &[String], hours: Option<String>, only: Option<String>) -> Result<Wish, String> {
    let mut wish = Wish {
        hours: hours.unwrap_or_else(|| HOURS.to_owned()),
        only: Vec::new(),
        list: false,
    };
    let mut only = only;
    let mut left = arguments.iter();
    while let Some(name) = left.next() {
        let mut value = || {
            left.next()
                .cloned()
                .ok_or_else(|| format!("{name} needs a value"))
        };
        match name.as_str() {
            "--hours" => wish.hours = value()?,
            "--only" => only = Some(value()?),
            "--list" => wish.list = true,
            other => return Err(format!("no option '{other}'")),
        }
    }
    let hours = wish.hours.parse::<f64>();
    if !hours.is_ok_and(|hours| hours.is_finite() && hours > 0.0) {
        return Err(format!("--hours takes a positive number, not '{}'", wish.hours));
    }
    for name in only.iter().flat_map(|names| names.split(',')) {
        if !PARTS.iter().any(|part| part.name == name) {
            let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
            return Err(format!("no part '{name}'; there are {}", names.join(", ")));
        }
        wish.only.push(name.to_owned());
    }
    Ok(wish)
}

/// What is run: the commit, and whether the work tree has more than that. Results of earlier parts are no more.
fn commit() -> Result<String, String> {
    let git = |arguments: &[&str]| output(Command::new("git").args(arguments).current_dir(workspace_root()));
    let name = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--", ".", &format!(":(exclude){RESULT}")])?;
    let mark = if changed.trim().is_empty() {
        ""
    } else {
        ", and uncommitted changes"
    };
    Ok(format!("{}{mark}", name.trim()))
}

fn date() -> String {
    output(Command::new("date").args(["-u", "+%F"]))
        .map_or_else(|_| String::new(), |date| date.trim().to_owned())
}

fn line(part: &Part, date: &str, commit: &str, took: Duration, ended: &Ended) -> String {
    let (word, said) = match &ended.outcome {
        Outcome::Passed => ("passed", ended.said.clone()),
        Outcome::Failed => ("**failed**", ended.said.clone()),
        Outcome::Unusable(why) => ("not run", why.clone()),
    };
    let minutes = took.as_secs_f64() / 60.0;
    // What ends a cell would shift the rest of the line, and where this tree lies is nobody's concern.
    let own = format!("{}/", workspace_root().display());
    let said = said.replace(['|', '\n'], " ").replace(&own, "");
    format!(
        "| {} | {date} | {commit} | {minutes:.1} | {word} | {said} |",
        part.name
    )
}

/// Puts a part's line in the place of its last one.
fn keep(name: &str, line: &str) -> Result<(), String> {
    let path = workspace_root().join(RESULT);
    let before = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("cannot read {RESULT}: {error}"));
        }
        before => before.unwrap_or_default(),
    };
    std::fs::write(&path, page(&before, name, line))
        .map_err(|error| format!("cannot write {RESULT}: {error}"))
}

/// The whole file, in which one part has a new line.
fn page(before: &str, name: &str, line: &str) -> String {
    let old = |part: &str| {
        let begin = format!("| {part} |");
        let (_, results) = before.split_once(RULE)?;
        results.lines().find(|line| line.starts_with(&begin))
    };
    let mut text = String::from(
        "# The last soak\n\nWritten by `make soak`, a line when a part ends; `cargo xtask soak --only PART` runs one alone. A part that \
         fails is run again by the seed that its output ends with.\n\n",
    );
    for part in PARTS {
        let _ = writeln!(text, "- **{}**: {}", part.name, part.what);
    }
    let _ = write!(
        text,
        "\n| part | date | commit | minutes | result | what it said |\n{RULE}\n"
    );
    for part in PARTS {
        let now = if part.name == name {
            Some(line)
        } else {
            old(part.name)
        };
        let empty = format!("| {} | | | | no result is kept | |", part.name);
        let _ = writeln!(text, "{}", now.unwrap_or(&empty));
    }
    text
}

fn simulations(hours: &str) -> Ended {
    let done = doors::for_hours(hours, SEEDS);
    let said = format!(
        "{} seeds of each, {} of the long ones, from {} on, in {:.2} hours",
        done.seeds,
        done.seeds / doors::LONG,
        done.first,
        done.hours
    );
    Ended {
        outcome: done.outcome,
        said,
    }
}

/// Walks of the model for [`WALK_SECONDS`], from a seed of this run on.
fn walk() -> Ended {
    let first = doors::seed_of_now().to_string();
    let mut command = cargo(&["run", "--quiet", "--release", "-p", "redhare-model", "--", "walk"]);
    command.args(["--seconds", WALK_SECONDS, "--first", &first]);
    let mut said = String::new();
    let ended = test::stream(&mut command, |line| {
        if line.contains(" walks, ") {
            said = format!("{line}, from seed {first} on");
        }
    });
    let outcome = match ended {
        Err(why) => Outcome::Unusable(why),
        // A walk that took no step found nothing because it looked at nothing.
        Ok(ended) if ended.success() && !said.is_empty() && !said.starts_with("0 walks") => Outcome::Passed,
        Ok(_) => Outcome::Failed,
    };
    Ended { outcome, said }
}

/// The test of a large directory, with a million entries; `make test` has a tenth of them.
fn directory() -> Ended {
    let mut command = cargo(&[
        "test",
        "--release",
        "-p",
        "redhare",
        "--test",
        "processes",
        "mount::large::",
    ]);
    command
        .args(["--", "--nocapture"])
        .env("REDHARE_DIRECTORY_ENTRIES", "1000000");
    let mut said = Vec::new();
    let ended = test::stream(&mut command, |line| {
        if line.contains(" entries, ") {
            said.push(line.to_owned());
        }
    });
    let outcome = match ended {
        Err(why) => Outcome::Unusable(why),
        Ok(ended) if ended.success() && said.is_empty() => {
            Outcome::Unusable("nothing can be mounted here; it says above why".to_owned())
        }
        Ok(ended) if ended.success() => Outcome::Passed,
        Ok(_) => Outcome::Failed,
    };
    script((outcome, said))
}

fn script((outcome, said): (Outcome, Vec<String>)) -> Ended {
    Ended {
        outcome,
        said: said.join("; "),
    }
}

fn plain(outcome: Outcome) -> Ended {
    Ended {
        outcome,
        said: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(arguments: &[&str]) -> Result<Wish, String> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        read(&arguments, None, None)
    }

    #[test]
    fn what_is_asked_for_is_read() {
        let all = Wish {
            hours: HOURS.to_owned(),
            only: Vec::new(),
            list: false,
        };
        assert_eq!(asked(&[]), Ok(all));
        let some = asked(&["--only", "fio,posix", "--hours", "0.3"]).unwrap();
        assert_eq!((some.hours.as_str(), some.only.len()), ("0.3", 2));
        let made = read(&[], Some("2".to_owned()), Some("walks".to_owned())).unwrap();
        assert_eq!((made.hours.as_str(), made.only), ("2", vec!["walks".to_owned()]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(asked(&["--hours"]).unwrap_err(), "--hours needs a value");
        assert_eq!(
            asked(&["--hours", "-1"]).unwrap_err(),
            "--hours takes a positive number, not '-1'"
        );
        assert_eq!(asked(&["--speed"]).unwrap_err(), "no option '--speed'");
        assert!(
            asked(&["--only", "fio,fia"])
                .unwrap_err()
                .starts_with("no part 'fia'; there are simulations, ")
        );
    }

    #[test]
    fn one_parts_line_changes_and_the_others_stay() {
        let ended = |outcome| Ended {
            outcome,
            said: format!("a|{}/b\nc", workspace_root().display()),
        };
        let took = Duration::from_secs(90);
        let first = line(&PARTS[1], "2026-11-25", "abc", took, &ended(Outcome::Passed));
        assert_eq!(first, "| walks | 2026-11-25 | abc | 1.5 | passed | a b c |");
        let once = page("", "walks", &first);
        let second = line(&PARTS[0], "2026-11-26", "abd", took, &ended(Outcome::Failed));
        let twice = page(&once, "simulations", &second);
        assert!(twice.contains(&first) && twice.contains(&second) && twice.contains("| **failed** |"));
        let third = line(
            &PARTS[1],
            "2026-11-27",
            "abe",
            took,
            &ended(Outcome::Unusable("no qemu".to_owned())),
        );
        let thrice = page(&twice, "walks", &third);
        assert!(
            !thrice.contains(&first) && thrice.contains(&second) && thrice.contains("| not run | no qemu |")
        );
        assert_eq!(thrice.matches("no result is kept").count(), PARTS.len() - 2);
    }
}
