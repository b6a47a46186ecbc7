//! `sim`, `model` and `bench`: which programs stand behind each door.
//!
//! A door opens as soon as one of its rows in the tables below can run; until then it says that
//! there is nothing, with exit status 2.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::process::{cargo, status, workspace_root};
use crate::tests_result::Counts;
use crate::{Outcome, guests, refuse_arguments, test};

/// One cargo command behind a door.
struct Row {
    /// A file of the workspace; the row waits until it exists.
    needs: &'static str,
    /// Arguments of cargo. Those given to the door follow.
    cargo: &'static [&'static str],
    /// Whether it runs tests, of which at least one has to pass.
    is_test: bool,
    /// Of a range of seeds it tries one in so many: where each stands for as much as many of the others.
    one_in: u64,
}

/// Read `REDHARE_SEED` (one seed to replay) or `REDHARE_FIRST_SEED` and `REDHARE_SEEDS` (a range to try), as
/// `foundation::seeds` has it.
const SIMULATIONS: &[Row] = &[
    tests(
        "crates/volume/src/simulation/mod.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-volume",
            "--lib",
            "--",
            "simulation::clusters",
            "simulation::copies",
            "simulation::snapshots",
            "simulation::harmed",
            "simulation::lost",
            "simulation::hosts",
            "simulation::a_clone",
            "simulation::a_store_that",
            "simulation::after_a_copy",
            "simulation::whole::tests::clusters",
            "client::tests::random::a_volume_is",
            "client::tests::portals::what_a_host_gave_up",
            "client::tests::reservations::who_is_kept_out",
        ],
    ),
    tests(
        "crates/target/tests/cluster/histories.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-target",
            "--test",
            "cluster",
            "--",
            "histories",
            "hosts_lose_nothing",
        ],
    ),
    long_tests(
        "crates/target/tests/cluster/power_cuts.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-target",
            "--test",
            "cluster",
            "every_power_cut",
        ],
    ),
    tests(
        "crates/control/tests/balance/mod.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-control",
            "--test",
            "controller",
            "--",
            "under_faults",
            "no_acknowledged_write_is_lost",
        ],
    ),
    tests(
        "crates/control/src/mastership/simulation.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-control",
            "--lib",
            "masters_come_and_go",
        ],
    ),
    tests(
        "crates/packfs/src/scenarios/takeover.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-packfs",
            "--lib",
            "--",
            "takeover::a_writer",
            "late_bytes::bytes_that",
            "handover::a_writer",
            "readers::old_snapshots",
            "readers::a_reader_follows",
            "room::what_a_full_volume",
            "full_disks::a_writer",
            "many::what_comes",
            "tree::tests::what_takes",
        ],
    ),
    long_tests(
        "crates/packfs/src/scenarios/hour.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-packfs",
            "--lib",
            "--",
            "hour::an_hour",
            "crowd::a_crowd",
        ],
    ),
    long_tests(
        "crates/blobstore/tests/crash.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-blobstore",
            "--test",
            "crash",
            "every_power_cut",
        ],
    ),
    tests(
        "crates/blobstore/tests/killed.rs",
        &["test", "--release", "-p", "redhare-blobstore", "--test", "killed"],
    ),
    tests(
        "crates/fabrics/tests/simulation.rs",
        &[
            "test",
            "--release",
            "-p",
            "redhare-fabrics",
            "--test",
            "ends",
            "--",
            "simulation::",
            "multipath::",
        ],
    ),
];
/// Seeds of each simulation in one round of a run by hours.
const SEEDS_A_ROUND: u64 = 100;
/// Of those a long simulation tries one in so many.
pub(crate) const LONG: u64 = 10;

/// Builds first, with the network; then the comparison runs in a private network namespace (see `netns`).
const IN_NETNS: &str = "target.'cfg(all())'.runner=['cargo', 'xtask', 'netns', '--']";

/// One command measures everything and gives one report (`crates/redhare/src/commands/bench.rs` lists what it runs).
const BENCHES: &[Row] = &[Row {
    needs: "crates/redhare/src/commands/bench.rs",
    cargo: &[
        "run",
        "--release",
        "-p",
        "redhare",
        "--config",
        IN_NETNS,
        "--",
        "bench",
        "all",
    ],
    is_test: false,
    one_in: 1,
}];

const fn tests(needs: &'static str, cargo: &'static [&'static str]) -> Row {
    Row {
        needs,
        cargo,
        is_test: true,
        one_in: 1,
    }
}

/// Tests of which one seed is an hour of virtual time, or a run again for each place where power may go.
const fn long_tests(needs: &'static str, cargo: &'static [&'static str]) -> Row {
    Row {
        one_in: LONG,
        ..tests(needs, cargo)
    }
}

/// `cargo xtask sim --seed N [--shrink] | --seeds N | --hours H`. With `--shrink`, a run of the simulation of volumes, or of whole
/// clusters, that fails is made smaller, and how to replay that is printed.
pub(crate) fn simulate(arguments: &[String]) -> Outcome {
    const USAGE: &str = "sim --seed N [--shrink] | --seeds N | --hours H";
    let options = [
        ("--seed", "REDHARE_SEED", true),
        ("--seeds", "REDHARE_SEEDS", true),
        ("--hours", "REDHARE_HOURS", false),
    ];
    let (arguments, shrinks) = without_shrink(arguments);
    match one_option(arguments, &options) {
        Ok(Some((variable, _))) if shrinks && variable != "REDHARE_SEED" => {
            Outcome::Unusable(format!("--shrink goes with --seed; usage: {USAGE}"))
        }
        Ok(Some(setting)) if shrinks => {
            let shrink = ("REDHARE_SHRINK", "1".to_owned());
            open("simulator", SIMULATIONS, &[], &[setting, shrink])
        }
        Ok(Some((_, hours))) if arguments[0] == "--hours" => for_hours(&hours, 1).outcome,
        Ok(Some(setting)) => open("simulator", SIMULATIONS, &[], &[setting]),
        Ok(None) => Outcome::Unusable(format!("say which: {USAGE}")),
        Err(why) => Outcome::Unusable(format!("{why}; usage: {USAGE}")),
    }
}

/// The arguments without a last `--shrink`, and whether it was there.
fn without_shrink(arguments: &[String]) -> (&[String], bool) {
    match arguments.split_last() {
        Some((last, others)) if last == "--shrink" => (others, true),
        _ => (arguments, false),
    }
}

/// `cargo xtask bench [ARGUMENT...]`, or `cargo xtask bench nvmet`: that one in a guest, and without a bar.
pub(crate) fn bench(arguments: &[String]) -> Outcome {
    if arguments.first().is_some_and(|first| first == "nvmet") {
        return refuse_arguments("bench nvmet", &arguments[1..]).unwrap_or_else(guests::bench_nvmet);
    }
    // Within the comparison there is no network. Without them the rows about the loader count as missed.
    let fetch = workspace_root().join("tests/python");
    if !status(std::process::Command::new(fetch).arg("--fetch-only")).is_ok_and(|ended| ended.success()) {
        eprintln!("xtask: bench: what the loader's rows need cannot be had (above)");
    }
    // The row about Python finds its library beside the program.
    match status(&mut cargo(&["build", "--release", "-p", "redhare-python"])) {
        Ok(ended) if ended.success() => open("bench", BENCHES, arguments, &[]),
        Ok(_) => Outcome::Failed,
        Err(why) => Outcome::Unusable(why),
    }
}

/// `cargo xtask model COMMAND [OPTION...]`: the model of one chunk's replication, its searches and its table.
pub(crate) fn model(arguments: &[String]) -> Outcome {
    let mut command = cargo(&["run", "--quiet", "--release", "-p", "redhare-model", "--"]);
    match status(command.args(arguments)) {
        Ok(ended) if ended.success() => Outcome::Passed,
        Ok(ended) if ended.code() == Some(2) => {
            Outcome::Unusable("the model did not run; it says above why".to_owned())
        }
        Ok(_) => Outcome::Failed,
        Err(why) => Outcome::Unusable(why),
    }
}

/// A run by hours.
pub(crate) struct Hours {
    pub(crate) outcome: Outcome,
    /// The first seed.
    pub(crate) first: u64,
    pub(crate) seeds: u64,
    pub(crate) hours: f64,
}

/// A first seed: the time makes each run's seeds its own. One that fails is printed and can be replayed.
pub(crate) fn seed_of_now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs()) * SEEDS_A_ROUND
}

/// Runs all simulations with new seeds until so many hours are over and each had `least` seeds; at least one round. As many rounds go on
/// side by side as there are processors, one thread each: what one simulation takes longest for is one test, which has one thread.
pub(crate) fn for_hours(hours: &str, least: u64) -> Hours {
    let first = seed_of_now();
    let limit = Duration::from_secs_f64(hours.parse::<f64>().unwrap_or(0.0) * 3600.0);
    let began = Instant::now();
    let [begun, ended, failed] = [const { AtomicU64::new(0) }; 3];
    let is_over = AtomicBool::new(false);
    let elapsed = || began.elapsed().as_secs_f64() / 3600.0;
    let rounds = || {
        let mut outcome = Outcome::Passed;
        while matches!(outcome, Outcome::Passed) && !is_over.load(Ordering::Relaxed) {
            let next = begun.fetch_add(SEEDS_A_ROUND, Ordering::Relaxed);
            if next >= least.max(1) && began.elapsed() >= limit {
                break;
            }
            let settings = [
                ("REDHARE_FIRST_SEED", (first + next).to_string()),
                ("REDHARE_SEEDS", SEEDS_A_ROUND.to_string()),
                ("RUST_TEST_THREADS", "1".to_owned()),
            ];
            outcome = open_until("simulator", SIMULATIONS, &[], &settings, &is_over);
            // After a failure the others leave the rest of their rounds.
            is_over.fetch_or(!matches!(outcome, Outcome::Passed), Ordering::Relaxed);
            if matches!(outcome, Outcome::Passed) && !is_over.load(Ordering::Relaxed) {
                let seeds = ended.fetch_add(SEEDS_A_ROUND, Ordering::Relaxed) + SEEDS_A_ROUND;
                let done = elapsed();
                eprintln!("xtask: {seeds} seeds of each simulation in {done:.2} of {hours} h");
            } else if matches!(outcome, Outcome::Failed) {
                failed.store(first + next, Ordering::Relaxed);
            }
        }
        outcome
    };
    let lanes = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let outcomes = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(rounds)).collect();
        let ended = lanes
            .into_iter()
            .map(|lane| lane.join().unwrap_or(Outcome::Failed));
        ended.collect::<Vec<_>>()
    });
    if let round @ 1.. = failed.into_inner() {
        // The others went on saying what passed.
        eprintln!("xtask: a simulation failed above, by one of the {SEEDS_A_ROUND} seeds from {round} on");
    }
    let bad = |outcome: &Outcome| !matches!(outcome, Outcome::Passed);
    Hours {
        outcome: outcomes.into_iter().find(bad).unwrap_or(Outcome::Passed),
        first,
        seeds: ended.into_inner(),
        hours: elapsed(),
    }
}

type Setting = (&'static str, String);

/// Reads at most one option with a number and returns the environment variable it stands for.
/// Each option is (name, variable, whether the number is whole).
fn one_option(
    arguments: &[String],
    options: &[(&'static str, &'static str, bool)],
) -> Result<Option<Setting>, String> {
    let (name, value) = match arguments {
        [] => return Ok(None),
        [name] => return Err(format!("{name} needs a number")),
        [name, value] => (name, value),
        [_, _, third, ..] => return Err(format!("'{third}' is too much")),
    };
    let Some((_, variable, is_whole)) = options.iter().find(|(option, _, _)| option == name) else {
        return Err(format!("no option '{name}'"));
    };
    let is_good = if *is_whole {
        value.parse::<u64>().is_ok()
    } else {
        value
            .parse::<f64>()
            .is_ok_and(|hours| hours.is_finite() && hours > 0.0)
    };
    if !is_good {
        let wanted = if *is_whole {
            "a whole number of 64 bits"
        } else {
            "a positive number"
        };
        return Err(format!("{name} takes {wanted}, not '{value}'"));
    }
    Ok(Some((variable, value.clone())))
}

/// A setting as a row has it: of a range of seeds a long simulation tries fewer, but one at least.
fn of_range(row: &Row, name: &str, value: &str) -> String {
    match value.parse::<u64>() {
        Ok(seeds) if name == "REDHARE_SEEDS" => seeds.div_ceil(row.one_in).to_string(),
        _ => value.to_owned(),
    }
}

/// Runs every row that can run, in order, up to the first that fails.
fn open(what: &str, rows: &[Row], arguments: &[String], settings: &[Setting]) -> Outcome {
    open_until(what, rows, arguments, settings, &AtomicBool::new(false))
}

/// As [`open`], and begins no row once it `is_over`.
fn open_until(
    what: &str,
    rows: &[Row],
    arguments: &[String],
    settings: &[Setting],
    is_over: &AtomicBool,
) -> Outcome {
    let root = workspace_root();
    let ready: Vec<&Row> = rows
        .iter()
        .filter(|row| root.join(Path::new(row.needs)).exists())
        .collect();
    if ready.is_empty() {
        return Outcome::Unusable(format!(
            "no {what} targets yet; they are listed in xtask/src/doors.rs"
        ));
    }
    for row in ready {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let mut command = cargo(row.cargo);
        command.args(arguments).envs(
            settings
                .iter()
                .map(|(name, value)| (name, of_range(row, name, value))),
        );
        let mut counts = Counts::default();
        let result = if row.is_test {
            test::stream(&mut command, |line| counts.add_line(line))
        } else {
            status(&mut command)
        };
        match result {
            Err(why) => return Outcome::Unusable(why),
            Ok(status) if !status.success() => {
                eprintln!("xtask: `cargo {}` ended with {status}", row.cargo.join(" "));
                return Outcome::Failed;
            }
            Ok(_) if row.is_test && counts.passed == 0 => {
                eprintln!("xtask: `cargo {}` ran no test", row.cargo.join(" "));
                return Outcome::Failed;
            }
            Ok(_) => {}
        }
    }
    Outcome::Passed
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &[(&str, &str, bool)] = &[
        ("--seed", "REDHARE_SEED", true),
        ("--hours", "REDHARE_HOURS", false),
    ];

    fn read(arguments: &[&str]) -> Result<Option<Setting>, String> {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        one_option(&arguments, OPTIONS)
    }

    #[test]
    fn an_option_becomes_a_setting() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(
            read(&["--seed", "18446744073709551615"]).unwrap().unwrap().0,
            "REDHARE_SEED"
        );
        assert_eq!(
            read(&["--hours", "0.5"]),
            Ok(Some(("REDHARE_HOURS", "0.5".to_owned())))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(read(&["--seed"]).unwrap_err(), "--seed needs a number");
        assert_eq!(
            read(&["--seed", "x"]).unwrap_err(),
            "--seed takes a whole number of 64 bits, not 'x'"
        );
        assert_eq!(
            read(&["--hours", "-1"]).unwrap_err(),
            "--hours takes a positive number, not '-1'"
        );
        assert_eq!(read(&["--speed", "1"]).unwrap_err(), "no option '--speed'");
        assert_eq!(read(&["--seed", "1", "2"]).unwrap_err(), "'2' is too much");
    }

    #[test]
    fn only_one_seed_is_shrunk() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let (given, shrunk) = (words("--seed 7 --shrink"), words("--seed 7"));
        assert_eq!(without_shrink(&given), (&shrunk[..], true));
        assert_eq!(without_shrink(&shrunk), (&shrunk[..], false));
        for text in ["--seeds 7 --shrink", "--shrink"] {
            match simulate(&words(text)) {
                Outcome::Unusable(why) => assert!(why.contains("--seed N [--shrink]"), "{why}"),
                _ => panic!("{text} must be unusable"),
            }
        }
    }

    /// What chooses a row's tests: what it gives the test program, else the program.
    fn chosen(row: &Row) -> Vec<&'static str> {
        let is_name =
            |word: &&str| !word.starts_with('-') && !word.starts_with("redhare-") && *word != "test";
        let mut words: Vec<_> = row.cargo.iter().copied().filter(is_name).collect();
        let program = row.cargo.iter().position(|word| *word == "--test");
        if program.is_some() && words.len() > 1 {
            words.remove(0);
        }
        words
            .iter()
            .filter_map(|word| word.trim_end_matches("::").rsplit("::").next())
            .collect()
    }

    /// Cargo takes one name; more are for the test program.
    #[test]
    fn tests_that_are_several_are_named_to_their_program() {
        for row in SIMULATIONS {
            let names = chosen(row).len();
            assert!(names < 2 || row.cargo.contains(&"--"), "{:?}", row.cargo);
        }
    }

    /// A row whose file or program is not there would be left out, or end the round.
    #[test]
    fn every_simulation_is_there() {
        for row in SIMULATIONS {
            let file = workspace_root().join(row.needs);
            assert!(file.exists(), "{} does not exist", row.needs);
            let Some(at) = row.cargo.iter().position(|word| *word == "--test") else {
                continue;
            };
            let program = row.cargo[at + 1];
            let package = row.needs.split("/tests/").next().unwrap();
            let manifest =
                std::fs::read_to_string(workspace_root().join(package).join("Cargo.toml")).unwrap();
            let tests = workspace_root().join(package).join("tests");
            let is_found = !manifest.contains("autotests = false")
                && (tests.join(format!("{program}.rs")).exists()
                    || tests.join(program).join("main.rs").exists());
            let is_named = manifest.contains(&format!("[[test]]\nname = \"{program}\""));
            assert!(is_found || is_named, "{package} has no test program '{program}'");
        }
    }

    #[test]
    fn a_long_simulation_tries_fewer_seeds_of_a_range() {
        let [short, long] = [tests("", &[]), long_tests("", &[])];
        for (range, fewer) in [("100", "10"), ("1", "1"), ("11", "2")] {
            assert_eq!(of_range(&short, "REDHARE_SEEDS", range), range);
            assert_eq!(of_range(&long, "REDHARE_SEEDS", range), fewer);
        }
        assert_eq!(of_range(&long, "REDHARE_SEED", "179"), "179");
        assert_eq!(of_range(&long, "REDHARE_FIRST_SEED", "179"), "179");
    }

    #[test]
    fn whatever_is_tried_by_seeds_stands_behind_the_door() {
        let words: Vec<_> = SIMULATIONS.iter().flat_map(chosen).collect();
        let (mut directories, mut tried) = (vec![workspace_root().join("crates")], 0);
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let stem = path
                    .file_stem()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                // What fuzzing tries by seeds has a door of its own.
                if path.is_dir() && stem != "fuzzing" {
                    directories.push(path);
                    continue;
                }
                let text = match path.extension() {
                    Some(extension) if extension == "rs" => std::fs::read_to_string(&path).unwrap(),
                    _ => continue,
                };
                let mut name = String::new();
                for line in text.lines().map(str::trim_start) {
                    if let Some((function, _)) =
                        line.strip_prefix("fn ").and_then(|rest| rest.split_once('('))
                    {
                        name = function.to_owned();
                    }
                    if line.contains("seeds::from_environment(") {
                        let is_run = words.iter().any(|word| {
                            name.starts_with(word)
                                || stem == *word
                                || name.ends_with(word)
                                || name.contains(&format!("_{word}_"))
                        });
                        assert!(is_run, "{}: {name}", path.display());
                        tried += 1;
                    }
                }
            }
        }
        assert!(tried >= 30, "{tried} simulations are found, where there were 31");
    }

    #[test]
    fn a_door_with_nothing_behind_it_says_so() {
        let row = Row {
            needs: "no/such/file",
            cargo: &["help"],
            is_test: false,
            one_in: 1,
        };
        match open("bench", &[row], &[], &[]) {
            Outcome::Unusable(why) => assert!(why.starts_with("no bench targets yet"), "{why}"),
            _ => panic!("it must be unusable"),
        }
    }
}
