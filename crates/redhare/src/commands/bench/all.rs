//! `redhare bench all`: every measurement that has a bar, in one report.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bench::report::Row;
use clap::Args;

use super::faults::{copies, pauses, portals, rebuild};
use super::{cluster, echo, index, masters, memory, report, scale, target, training, tree, volume};
use crate::output::{Failure, Output, table};

/// Length of a slice of a comparison on loopback.
const SLICE_MILLISECONDS: u64 = 300;
/// What faults do takes seconds each time: there are fewer of them than of slices.
const FAULTS_SHARE: usize = 7;

/// How long to measure.
#[derive(Args)]
#[command(
    after_help = "Measures in the present directory's file system, under .redhare, which takes some 30 GiB for a while. How long each group takes \
is told before it begins; --list tells it of all, and what is missing here for some. A group that cannot run is named with the reason, in the report \
as well, and does not fail it.
Examples:
  redhare bench all --list
  redhare bench all --only fs --rounds 5
  redhare bench all --only faults,scale --json"
)]
pub(crate) struct AllArguments {
    /// Paired rounds of each comparison; faults happen a seventh as often
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Only the groups of these names, or whose names contain them; see --list
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Tell what would be measured, for how long about, and measure nothing
    #[arg(long)]
    list: bool,
}

/// What a group cannot do without.
#[derive(Clone, Copy)]
enum Need {
    /// The machine's root, who may make network namespaces.
    Root,
    /// A program, and the package that has it.
    Program(&'static str, &'static str),
    /// Processors to keep two sides apart.
    Processors(usize),
}

impl Need {
    /// What is missing and what to do; none if it is there.
    fn missing(self) -> Option<String> {
        match self {
            Need::Root if !is_root() => Some("it needs the machine's root: run it with sudo".to_owned()),
            Need::Program(name, package) if !is_program(name) => {
                Some(format!("there is no program {name}: apt-get install {package}"))
            }
            Need::Processors(count) => {
                let here = std::thread::available_parallelism().map_or(1, usize::from);
                (here < count).then(|| format!("it needs {count} processors, and may use {here}"))
            }
            Need::Root | Need::Program(..) => None,
        }
    }
}

/// Whether this is the root of the machine, and not only of a namespace of users.
fn is_root() -> bool {
    let mapped = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let all = mapped.split_whitespace().eq(["0", "0", "4294967295"]);
    all && rustix::process::geteuid().is_root()
}

fn is_program(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(Into::into);
    let mut places = std::env::split_paths(&paths).chain(system);
    places.any(|place: PathBuf| place.join(name).is_file())
}

/// Rows that are measured together.
struct Group {
    name: &'static str,
    about: &'static str,
    /// About how long it takes: so much, and so much for each round.
    seconds: (f64, f64),
    needs: &'static [Need],
    rows: fn(usize) -> Result<Vec<Row>, Failure>,
}

impl Group {
    fn estimate(&self, rounds: usize) -> Duration {
        let (once, each) = self.seconds;
        Duration::from_secs_f64(once + each * rounds as f64)
    }

    fn missing(&self) -> Option<String> {
        self.needs.iter().find_map(|need| need.missing())
    }
}

const ETCD: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("etcd", "etcd-server"),
];
const HOSTS: &[Need] = &[Need::Root, Need::Program("ip", "iproute2")];
const TWO: &[Need] = &[Need::Processors(2)];

/// How often a fault happens where comparisons have so many rounds.
fn faults(rounds: usize) -> usize {
    rounds.div_ceil(FAULTS_SHARE)
}

fn few(rounds: usize) -> u16 {
    u16::try_from(faults(rounds)).unwrap_or(u16::MAX).min(50)
}

const GROUPS: &[Group] = &[
    Group {
        name: "index",
        about: "the index in memory",
        seconds: (30.0, 0.0),
        needs: &[],
        rows: |_| index::rows(&index::IndexArguments::default()),
    },
    Group {
        name: "tree",
        about: "a tree of ten million files",
        seconds: (240.0, 0.0),
        needs: &[],
        rows: |_| tree::rows(&tree::TreeArguments::default()),
    },
    Group {
        name: "fs",
        about: "small files of a cluster of this machine against local ones; its memory and idle processors",
        seconds: (60.0, 3.0),
        needs: &[],
        rows: |rounds| cluster::rows(&cluster::FsArguments::with(rounds)),
    },
    Group {
        name: "training",
        about: "what a training run gets: a mount, archives, networked file systems of today, an import, commits that are followed, a loader",
        seconds: (200.0, 22.0),
        needs: &[],
        rows: |rounds| training::rows(&training::TrainingArguments::with(rounds)),
    },
    Group {
        name: "memory",
        about: "small files of a volume in memory",
        seconds: (20.0, 2.0),
        needs: TWO,
        rows: |rounds| memory::rows(&memory::MemoryArguments::with(rounds)),
    },
    Group {
        name: "target",
        about: "the target against the bare loop",
        seconds: (30.0, 10.0),
        needs: TWO,
        rows: |rounds| target::rows(rounds, SLICE_MILLISECONDS),
    },
    Group {
        name: "volume",
        about: "reads of a volume against a bare target",
        seconds: (40.0, 1.0),
        needs: TWO,
        rows: |rounds| volume::rows(&volume::VolumeArguments::with(rounds)),
    },
    Group {
        name: "masters",
        about: "a master of a large cluster",
        seconds: (150.0, 0.0),
        needs: &[],
        rows: |_| masters::rows(&masters::MastersArguments::default()),
    },
    Group {
        name: "scale",
        about: "1 to 64 servers and clients in virtual time",
        seconds: (30.0, 0.0),
        needs: &[],
        rows: |_| Ok(scale::rows(&scale::ScaleArguments::default())),
    },
    Group {
        name: "faults killed",
        about: "pauses of clients when a target is killed",
        seconds: (20.0, 2.0),
        needs: HOSTS,
        rows: |rounds| pauses_of("killed", rounds),
    },
    Group {
        name: "faults cut",
        about: "pauses of clients when a link is cut",
        seconds: (20.0, 3.0),
        needs: HOSTS,
        rows: |rounds| pauses_of("cut", rounds),
    },
    Group {
        name: "faults frozen",
        about: "pauses of clients when a host hangs",
        seconds: (20.0, 3.0),
        needs: HOSTS,
        rows: |rounds| pauses_of("frozen", rounds),
    },
    Group {
        name: "faults masters",
        about: "pauses of clients while all masters are gone",
        seconds: (100.0, 0.0),
        needs: HOSTS,
        rows: |rounds| pauses_of("masters", rounds),
    },
    Group {
        name: "faults away",
        about: "reads while a copy is away",
        seconds: (370.0, 0.0),
        needs: HOSTS,
        rows: |rounds| pauses_of("away", rounds),
    },
    Group {
        name: "faults drained",
        about: "pauses of clients while all copies of a node move elsewhere",
        seconds: (20.0, 5.0),
        needs: HOSTS,
        rows: |rounds| pauses_of("drained", rounds),
    },
    Group {
        name: "faults leader",
        about: "the leading master of three on an etcd is killed",
        seconds: (30.0, 3.0),
        needs: ETCD,
        rows: |rounds| pauses_of("leader", rounds),
    },
    Group {
        name: "faults etcd",
        about: "pauses of clients while etcd's leader, then its quorum, is gone",
        seconds: (160.0, 0.0),
        needs: ETCD,
        rows: |rounds| pauses_of("etcd", rounds),
    },
    Group {
        name: "faults copies",
        about: "what three copies cost a writer against one",
        seconds: (20.0, 2.0),
        needs: HOSTS,
        rows: |rounds| copies::rows(&copies::CopiesArguments::with(rounds.div_ceil(2))),
    },
    Group {
        name: "faults rebuild",
        about: "a lost node's copies are made anew, with load and without",
        seconds: (30.0, 20.0),
        needs: HOSTS,
        rows: |rounds| rebuild::rows(&rebuild::RebuildArguments::with(few(rounds))),
    },
    Group {
        name: "faults portals",
        about: "pauses of a stock kernel's multipath host, in a guest",
        seconds: (60.0, 12.0),
        needs: &[
            Need::Program("qemu-system-x86_64", "qemu-system-x86"),
            Need::Program("nvme", "nvme-cli"),
        ],
        rows: |rounds| portals::rows(&portals::PortalsArguments::with(few(rounds))),
    },
    Group {
        name: "echo",
        about: "the bare loop against the same in C",
        seconds: (10.0, 3.0),
        needs: TWO,
        rows: |rounds| echo::rows(rounds, SLICE_MILLISECONDS),
    },
];

fn pauses_of(only: &str, rounds: usize) -> Result<Vec<Row>, Failure> {
    pauses::rows(&pauses::PausesArguments::with(faults(rounds), only))
}

/// What became of a group.
#[derive(serde::Serialize)]
struct GroupView {
    name: &'static str,
    about: &'static str,
    estimated_seconds: u64,
    took_seconds: Option<f64>,
    /// Why it was not measured.
    skipped: Option<String>,
    /// Why it could not be measured, though it was begun.
    failed: Option<String>,
}

impl GroupView {
    fn of(group: &Group, rounds: usize) -> Self {
        Self {
            name: group.name,
            about: group.about,
            estimated_seconds: group.estimate(rounds).as_secs(),
            took_seconds: None,
            skipped: group.missing(),
            failed: None,
        }
    }

    fn minutes(&self) -> String {
        match self.estimated_seconds {
            seconds if seconds < 90 => format!("about {seconds} s"),
            seconds => format!("about {} min", (seconds + 30) / 60),
        }
    }
}

#[derive(serde::Serialize)]
struct ReportView {
    rows: Vec<Row>,
    missed: usize,
    groups: Vec<GroupView>,
}

/// The groups of a name, or else all whose names contain it.
fn chosen(only: &[String]) -> Result<Vec<&'static Group>, Failure> {
    let mut taken = Vec::new();
    for wanted in only {
        let exact = GROUPS.iter().any(|group| group.name == wanted);
        let is_wanted = |group: &&Group| {
            if exact {
                group.name == wanted
            } else {
                group.name.contains(wanted.as_str())
            }
        };
        let before = taken.len();
        taken.extend(GROUPS.iter().filter(is_wanted).map(|group| group.name));
        if taken.len() == before {
            let names: Vec<_> = GROUPS.iter().map(|group| group.name).collect();
            return Err(Failure::new(format!(
                "no group's name contains \"{wanted}\"; there are: {}",
                names.join(", ")
            )));
        }
    }
    let is_taken = |group: &&Group| only.is_empty() || taken.contains(&group.name);
    Ok(GROUPS.iter().filter(is_taken).collect())
}

/// Every group, also after one has failed, then one report.
pub(super) fn run(arguments: &AllArguments, output: &Output) -> Result<(), Failure> {
    let rounds = usize::from(arguments.rounds);
    let groups = chosen(&arguments.only)?;
    let mut views: Vec<GroupView> = groups.iter().map(|group| GroupView::of(group, rounds)).collect();
    if arguments.list {
        output.print(&views, || list(&views));
        return Ok(());
    }
    let mut rows = Vec::new();
    for (group, view) in groups.iter().zip(&mut views) {
        if let Some(reason) = &view.skipped {
            eprintln!("not measured: {} ({}): {reason}", view.name, view.about);
            continue;
        }
        eprintln!("measuring {}: {} ({})", view.name, view.about, view.minutes());
        let began = Instant::now();
        match (group.rows)(rounds) {
            Ok(measured) => {
                // Whoever ends it early has these.
                eprintln!("{}\n", report::describe(&measured));
                rows.extend(measured);
            }
            Err(failure) => {
                eprintln!("{} could not be measured: {failure}\n", view.name);
                view.failed = Some(failure.to_string());
            }
        }
        view.took_seconds = Some(began.elapsed().as_secs_f64());
    }
    let missed = rows.iter().filter(|row| row.is_missed()).count();
    let view = ReportView {
        rows,
        missed,
        groups: views,
    };
    let failed: Vec<String> = view
        .groups
        .iter()
        .filter_map(|group| {
            Some(format!(
                "{} could not be measured: {}",
                group.name,
                group.failed.as_ref()?
            ))
        })
        .collect();
    if !failed.is_empty() {
        let failure = Failure::new(failed.join("; "));
        return Err(output.print_failed(&view, failure, || describe(&view)));
    }
    output.print(&view, || describe(&view));
    report::check(&view.rows, output)
}

/// All groups, with what is missing.
fn list(views: &[GroupView]) -> String {
    let mut cells = vec![["GROUP", "TAKES", "MEASURES"].map(String::from).to_vec()];
    for view in views {
        let skipped = view
            .skipped
            .as_ref()
            .map(|reason| format!("; not here: {reason}"));
        let about = format!("{}{}", view.about, skipped.unwrap_or_default());
        cells.push(vec![view.name.to_owned(), view.minutes(), about]);
    }
    let seconds: u64 = views
        .iter()
        .filter(|view| view.skipped.is_none())
        .map(|view| view.estimated_seconds)
        .sum();
    format!("{}\n{} min in all, about", table(&cells), seconds.div_ceil(60))
}

fn describe(view: &ReportView) -> String {
    let mut text = report::describe(&view.rows);
    for group in &view.groups {
        if let Some(reason) = &group.skipped {
            text.push_str(&format!("\n{}: not measured: {reason}", group.name));
        }
    }
    let took = view
        .groups
        .iter()
        .filter_map(|group| Some(format!("{} {:.0} s", group.name, group.took_seconds?)));
    let took: Vec<String> = took.collect();
    if !took.is_empty() {
        text.push_str(&format!("\ntook: {}", took.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_chosen_by_name_or_by_a_part_of_it() {
        let names = |only: &[&str]| -> Vec<&str> {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            let groups = chosen(&only).unwrap_or_default();
            groups.iter().map(|group| group.name).collect()
        };
        assert_eq!(names(&[]).len(), GROUPS.len());
        assert_eq!(names(&["masters"]), ["masters"], "not \"faults masters\", too");
        assert_eq!(names(&["fs", "scale"]), ["fs", "scale"]);
        let faults = names(&["faults"]);
        assert!(
            faults.len() > 5 && faults.iter().all(|name| name.starts_with("faults ")),
            "{faults:?}"
        );
        let error = chosen(&["nothing".to_owned()]).map(drop).unwrap_err().to_string();
        assert!(
            error.contains("\"nothing\"; there are: index, tree, fs"),
            "{error}"
        );
        let unique: std::collections::BTreeSet<_> = names(&[]).into_iter().collect();
        assert_eq!(unique.len(), GROUPS.len());
    }

    #[test]
    fn what_is_missing_is_told_with_the_remedy() {
        let missing = Need::Program("no-such-program", "no-such-package")
            .missing()
            .unwrap();
        assert_eq!(
            missing,
            "there is no program no-such-program: apt-get install no-such-package"
        );
        assert_eq!(Need::Program("sh", "dash").missing(), None);
        assert_eq!(Need::Processors(1).missing(), None);
        assert!(Need::Processors(usize::MAX).missing().is_some());
        let view = ReportView {
            rows: Vec::new(),
            missed: 0,
            groups: vec![GroupView {
                name: "faults cut",
                about: "links",
                estimated_seconds: 100,
                took_seconds: None,
                skipped: Some(missing),
                failed: None,
            }],
        };
        let text = describe(&view);
        assert!(
            text.contains("faults cut: not measured: there is no program no-such-program"),
            "{text}"
        );
        let text = list(&view.groups);
        assert!(
            text.contains("about 2 min") && text.ends_with("0 min in all, about"),
            "{text}"
        );
    }
}
