//! `redhare bench target`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bench::paired::{Comparison, compare};
use bench::report::{Bar, Row};
use bench::target::{Measured, Workload, load, serve_memory};
use bench::yardstick::Yardsticks;
use clap::{Args, Subcommand};
use fabrics::initiator::ConnectOptions;
use protocols::nvme::Nqn;
use reactor::{Config, CoreHandle, Cores};

use super::contender::Contender;
use crate::output::{Failure, Output, table};

const NQN: &str = "nqn.2026-11.io.redhare:bench";
/// Who we are when we connect.
const HOST_NQN: &str = "nqn.2026-11.io.redhare:bench-host";

/// A memory target, the load, and the comparison with the bare loop.
#[derive(Subcommand)]
pub(crate) enum TargetBench {
    /// Serve memory on loopback until killed
    #[command(after_help = "Example:\n  redhare bench target serve --port 4420 --mib 1024")]
    Serve {
        /// TCP port on 127.0.0.1
        #[arg(long, default_value_t = 7400)]
        port: u16,
        /// Size of the memory device in MiB; under 1024 the processor's cache serves a part of it
        #[arg(long, default_value_t = 1024)]
        mib: u64,
        /// Poll without ever sleeping
        #[arg(long)]
        busy: bool,
        /// Serve on so many reactors
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
        reactors: u16,
    },
    /// Send commands to any NVMe/TCP target and say how fast they were answered. Writes destroy what is there
    #[command(
        after_help = "Example:\n  redhare bench target load --address 127.0.0.1:4420 --subsystem nqn.2026-11.io.redhare:scratch"
    )]
    Load(LoadArguments),
    /// Compare our target and load with the bare loop, both ours, both in the same waiting mode (needs two CPUs)
    #[command(after_help = "Example:\n  redhare bench target compare --rounds 20")]
    Compare(CompareArguments),
}

#[derive(Args)]
pub(crate) struct LoadArguments {
    /// Where the target listens
    #[arg(long)]
    address: SocketAddr,
    /// The subsystem's name
    #[arg(long)]
    subsystem: String,
    /// The namespace's number
    #[arg(long, default_value_t = 1)]
    nsid: u32,
    /// Share of reads; the others are writes
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=100))]
    read_percent: u64,
    /// Length of each request in bytes
    #[arg(long, default_value_t = 4096)]
    block_bytes: u32,
    /// Connections
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Commands in flight on each
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// How long, in milliseconds
    #[arg(long, default_value_t = 1000)]
    milliseconds: u64,
    /// Poll without ever sleeping
    #[arg(long)]
    busy: bool,
}

#[derive(Args)]
pub(crate) struct CompareArguments {
    /// Rounds that must count for each case
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Length of a slice, in milliseconds
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
    /// All processes poll without ever sleeping
    #[arg(long)]
    busy: bool,
    /// Only the cases whose name contains this
    #[arg(long, default_value = "")]
    case: String,
    /// Fail if a bar is missed
    #[arg(long)]
    check: bool,
}

fn config(busy: bool) -> Config {
    let default = Config::default();
    Config {
        spin: if busy { Duration::MAX } else { default.spin },
        ..default
    }
}

pub(crate) fn run(bench: TargetBench, output: &Output) -> Result<(), Failure> {
    match bench {
        TargetBench::Serve {
            port,
            mib,
            busy,
            reactors,
        } => {
            let served = reactor::run(&config(busy), async {
                let others = Config {
                    index: 1,
                    ..config(busy)
                };
                let others = Cores::start(usize::from(reactors) - 1, None, &others).map_err(Failure::new)?;
                let own = std::iter::once(CoreHandle::current());
                let all = own.chain(others.handles().cloned()).collect();
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let nqn: Nqn = NQN.parse().map_err(Failure::new)?;
                let _server = serve_memory(address, nqn, mib << 20, all).map_err(Failure::new)?;
                std::future::pending().await
            });
            served.map_err(Failure::new)?
        }
        TargetBench::Load(arguments) => run_load(&arguments, output),
        TargetBench::Compare(arguments) => {
            let cases = compare_all(&arguments)?;
            output.print(&cases, || describe(&cases, arguments.busy));
            if arguments.check {
                let rows: Vec<Row> = cases.iter().map(Case::row).collect();
                return super::report::check(&rows, output);
            }
            Ok(())
        }
    }
}

/// The cases as rows of a report.
pub(super) fn rows(rounds: usize, milliseconds: u64) -> Result<Vec<Row>, Failure> {
    let arguments = CompareArguments {
        rounds,
        milliseconds,
        busy: false,
        case: String::new(),
        check: false,
    };
    Ok(compare_all(&arguments)?.iter().map(Case::row).collect())
}

fn run_load(arguments: &LoadArguments, output: &Output) -> Result<(), Failure> {
    let subsystem: Nqn = arguments.subsystem.parse().map_err(Failure::new)?;
    let host: Nqn = HOST_NQN.parse().map_err(Failure::new)?;
    let workload = Workload {
        connect: ConnectOptions::new(arguments.address, subsystem, host, [0xbe; 16]),
        nsid: arguments.nsid,
        read_percent: arguments.read_percent,
        request_bytes: arguments.block_bytes,
        connections: arguments.connections,
        depth: arguments.depth,
        duration: Duration::from_millis(arguments.milliseconds),
    };
    let measured = reactor::run(&config(arguments.busy), load(&workload))
        .map_err(Failure::new)?
        .map_err(Failure::new)?;
    output.print(&measured, || {
        let Measured {
            requests_per_second,
            p50_us,
            p99_us,
            operations,
        } = measured;
        format!("requests_per_second {requests_per_second:.0} p50_us {p50_us} p99_us {p99_us} operations {operations}")
    });
    Ok(())
}

/// Connections, depth, bytes, whether they are reads, and the least ratio that passes.
const CASES: [(usize, usize, u32, bool, Option<f64>); 7] = [
    (1, 1, 4096, true, None),
    (1, 32, 4096, true, None),
    (4, 32, 4096, true, Some(0.5)),
    (16, 16, 4096, true, None),
    (16, 16, 16384, true, None),
    (1, 32, 4096, false, None),
    (4, 32, 4096, false, None),
];

/// The most that a command may cost with two reactors, in what it costs with one.
const TWO_REACTORS_COST: f64 = 1.25;
const TWO_REACTORS: &str = "4x32, 4 KiB read, two reactors against one";

#[derive(serde::Serialize)]
struct Case {
    name: String,
    bar: Option<f64>,
    /// The bar is for processor time, of which less is better, and not for the rate.
    for_cost: bool,
    comparison: Comparison,
}

impl Case {
    fn passes(&self) -> bool {
        self.bar.is_none_or(|bar| {
            if self.for_cost {
                self.comparison.cpu_ratio < bar
            } else {
                self.comparison.rate_ratio >= bar
            }
        })
    }

    fn row(&self) -> Row {
        let Comparison {
            rounds,
            dropped,
            rate_ratio,
            ours,
            theirs,
            ..
        } = &self.comparison;
        let name = format!("target on memory: {}", self.name);
        if self.for_cost {
            let bar = self.bar.map(Bar::Below);
            let row = Row::new(
                name,
                self.comparison.cpu_ratio,
                "of the processor time of one",
                bar,
            );
            return row.with_note(format!(
                "two {:.0} /s at {:.2} us of CPU, one {:.0} /s at {:.2} us, load and target on both CPUs; {rounds} rounds, \
                 {dropped} dropped",
                ours.rate, ours.cpu_us, theirs.rate, theirs.cpu_us
            ));
        }
        let bar = self.bar.map(Bar::AtLeast);
        Row::new(name, *rate_ratio, "of the bare loop", bar).with_note(format!(
            "target {:.0} /s at {:.2} us of CPU, loop {:.0} /s at {:.2} us; {rounds} rounds, {dropped} dropped",
            ours.rate, ours.cpu_us, theirs.rate, theirs.cpu_us
        ))
    }
}

fn compare_all(arguments: &CompareArguments) -> Result<Vec<Case>, Failure> {
    let yardsticks = Yardsticks::build().map_err(Failure::new)?;
    let mut cases = Vec::new();
    for (index, case) in CASES.into_iter().enumerate() {
        let (connections, depth, bytes, is_read, bar) = case;
        let kind = if is_read { "read" } else { "write" };
        let name = format!("{connections}x{depth}, {} KiB {kind}", bytes / 1024);
        if !name.contains(&arguments.case) {
            continue;
        }
        let (ours, theirs) = contenders(arguments, 7_400 + 2 * index as u16, case)?;
        let milliseconds = arguments.milliseconds;
        let comparison = compare(
            arguments.rounds,
            || yardsticks.handoff_ns().map_err(Failure::new),
            |is_ours| {
                if is_ours {
                    ours.slice(milliseconds)
                } else {
                    theirs.slice(milliseconds)
                }
            },
            |_| {},
        )?;
        cases.push(Case {
            name,
            bar,
            for_cost: false,
            comparison,
        });
    }
    if TWO_REACTORS.contains(&arguments.case) {
        cases.push(two_reactors(arguments, &yardsticks)?);
    }
    Ok(cases)
}

/// Our target with two reactors against our target with one, each with its load on the same two CPUs: what it costs that
/// connections lie on two threads, not how much faster two processors are, for which a third would have to make the load.
fn two_reactors(arguments: &CompareArguments, yardsticks: &Yardsticks) -> Result<Case, Failure> {
    let port = 7_400 + 2 * CASES.len() as u16;
    let start = |port: u16, reactors: &str| {
        let serve = [("port", port.to_string()), ("reactors", reactors.to_owned())];
        let load = [
            ("connections", "4".to_owned()),
            ("depth", "32".to_owned()),
            ("milliseconds", arguments.milliseconds.to_string()),
            ("address", format!("127.0.0.1:{port}")),
            ("subsystem", NQN.to_owned()),
        ];
        let cpus = ("0,1", "0,1");
        let (serve, load) = (
            words(arguments, "target", "serve", &serve)?,
            words(arguments, "target", "load", &load)?,
        );
        Contender::start_on(cpus, serve, load)
    };
    let (two, one) = (start(port, "2")?, start(port + 1, "1")?);
    wait_for_listeners(&[port, port + 1])?;
    let comparison = compare(
        arguments.rounds,
        || yardsticks.handoff_ns().map_err(Failure::new),
        |is_two| {
            let contender = if is_two { &two } else { &one };
            contender.slice(arguments.milliseconds)
        },
        |_| {},
    )?;
    Ok(Case {
        name: TWO_REACTORS.to_owned(),
        bar: Some(TWO_REACTORS_COST),
        for_cost: true,
        comparison,
    })
}

/// The command line of one of our own benches.
fn words(
    arguments: &CompareArguments,
    kind: &str,
    verb: &str,
    options: &[(&str, String)],
) -> Result<Vec<String>, Failure> {
    let own = std::env::current_exe().map_err(Failure::new)?;
    let mut words = vec![
        own.display().to_string(),
        "bench".to_owned(),
        kind.to_owned(),
        verb.to_owned(),
    ];
    for (name, value) in options {
        words.extend([format!("--{name}"), value.clone()]);
    }
    if arguments.busy {
        words.push("--busy".to_owned());
    }
    Ok(words)
}

/// Our target under our load, and the bare loop with answers of the same length.
fn contenders(
    arguments: &CompareArguments,
    port: u16,
    (connections, depth, bytes, is_read, _): (usize, usize, u32, bool, Option<f64>),
) -> Result<(Contender, Contender), Failure> {
    let load = [
        ("connections", connections.to_string()),
        ("depth", depth.to_string()),
        ("milliseconds", arguments.milliseconds.to_string()),
    ];
    let ours = Contender::start(
        words(arguments, "target", "serve", &[("port", port.to_string())])?,
        words(
            arguments,
            "target",
            "load",
            &[
                &load[..],
                &[
                    ("address", format!("127.0.0.1:{port}")),
                    ("subsystem", NQN.to_owned()),
                    ("block-bytes", bytes.to_string()),
                    ("read-percent", if is_read { "100" } else { "0" }.to_owned()),
                ],
            ]
            .concat(),
        )?,
    )?;
    let shape = [
        ("port", (port + 1).to_string()),
        ("answer-bytes", (24 + bytes).to_string()),
    ];
    let theirs = Contender::start(
        words(arguments, "echo", "serve", &shape)?,
        words(arguments, "echo", "client", &[&shape[..], &load[..]].concat())?,
    )?;
    // The memory device is being written; both must listen before the first slice.
    wait_for_listeners(&[port, port + 1])?;
    Ok((ours, theirs))
}

fn wait_for_listeners(ports: &[u16]) -> Result<(), Failure> {
    for &port in ports {
        let mut tries = 0;
        while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            tries += 1;
            if tries > 1000 {
                return Err(Failure::new(format!(
                    "nothing listens on port {port} after ten seconds: is it taken?"
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

fn describe(cases: &[Case], busy: bool) -> String {
    let heading = [
        "CASE",
        "RATE TARGET/LOOP",
        "LATENCY TARGET/LOOP",
        "CPU TARGET/LOOP",
        "TARGET /S",
        "LOOP /S",
        "CPU US TARGET",
        "CPU US LOOP",
        "P99 US TARGET",
        "P99 US LOOP",
        "ROUNDS",
        "BAR",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for case in cases {
        let Comparison {
            rounds,
            dropped,
            rate_ratio,
            latency_ratio,
            cpu_ratio,
            ours,
            theirs,
        } = &case.comparison;
        let bar = match case.bar {
            None => "-".to_owned(),
            Some(bar) => format!("{bar} {}", if case.passes() { "pass" } else { "MISS" }),
        };
        rows.push(vec![
            case.name.clone(),
            format!("{rate_ratio:.3}"),
            format!("{latency_ratio:.3}"),
            format!("{cpu_ratio:.3}"),
            format!("{:.0}", ours.rate),
            format!("{:.0}", theirs.rate),
            format!("{:.2}", ours.cpu_us),
            format!("{:.2}", theirs.cpu_us),
            format!("{:.0}", ours.p99_us),
            format!("{:.0}", theirs.p99_us),
            format!("{rounds} ({dropped} dropped)"),
            bar,
        ]);
    }
    let mode = if busy {
        "never sleeping"
    } else {
        "poll briefly, then sleep"
    };
    let method = format!(
        "one CPU a side; {mode}; medians of paired rounds; CPU of both sides together. A read is held against the loop \
         that answers with as many bytes; so is a write, though its bytes go the other way. Two reactors stand in the \
         target's place and one in the loop's, all on both CPUs, and the bar is for CPU.\n"
    );
    method + &table(&rows)
}
