//! `redhare bench target`.

mod field;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bench::paired::{Comparison, compare};
use bench::process::Server;
use bench::report::{Bar, Row};
use bench::target::{Measured, Workload, load, memory, null, serve_device};
use bench::yardstick::Yardsticks;
use clap::{Args, Subcommand};
use fabrics::initiator::{ConnectOptions, Controller};
use protocols::nvme::Nqn;
use reactor::{Config, CoreHandle, Cores};

use super::contender::Contender;
use crate::output::{Failure, Output, table};

pub(super) const NQN: &str = "nqn.2026-11.io.redhare:bench";
/// Who we are when we connect.
pub(super) const HOST_NQN: &str = "nqn.2026-11.io.redhare:bench-host";

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
        /// Serve a device that keeps nothing and reads zeros instead of memory
        #[arg(long)]
        null: bool,
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
    /// Connect many hosts that do nothing, each with an admin queue and an I/O queue, until killed
    #[command(
        after_help = "Example:\n  redhare bench target hosts --address 127.0.0.1:4420 --subsystem nqn.2026-11.io.redhare:scratch"
    )]
    Hosts(HostsArguments),
    /// Compare our target and load with the bare loop, both ours, both in the same waiting mode (needs two CPUs)
    #[command(after_help = "Example:\n  redhare bench target compare --rounds 20")]
    Compare(CompareArguments),
    /// Hold our target against the figures of the best-known one, measured once on a machine of this kind (needs two CPUs)
    #[command(after_help = "Example:\n  redhare bench target field --rounds 5")]
    Field(field::FieldArguments),
}

#[derive(Args)]
pub(crate) struct HostsArguments {
    /// Where the target listens
    #[arg(long)]
    address: SocketAddr,
    /// The subsystem's name
    #[arg(long)]
    subsystem: String,
    /// How many hosts
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=2000))]
    hosts: u16,
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
    /// Requests that begin each second on all connections together, answered or not; as many as are answered if not given
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Ask for data digests
    #[arg(long)]
    data_digest: bool,
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
            null: is_null,
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
                let bytes = mib << 20;
                let device = if is_null { Ok(null(bytes)) } else { memory(bytes) };
                let device = device.map_err(Failure::new)?;
                let _server = serve_device(address, nqn, device, all).map_err(Failure::new)?;
                std::future::pending().await
            });
            served.map_err(Failure::new)?
        }
        TargetBench::Load(arguments) => run_load(&arguments, output),
        TargetBench::Hosts(arguments) => run_hosts(&arguments),
        TargetBench::Field(arguments) => field::run(&arguments, output),
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
    let mut rows: Vec<Row> = compare_all(&arguments)?.iter().map(Case::row).collect();
    rows.extend(idle_rows()?);
    rows.extend(field::rows(field::ROUNDS)?);
    Ok(rows)
}

/// Hosts that are connected in the idle rows, and their connections.
const IDLE_HOSTS: u16 = 100;
const IDLE_CONNECTIONS: f64 = 2.0 * IDLE_HOSTS as f64;
/// What is started settles for so long, and is then looked at for so long.
const IDLE_SETTLES: Duration = Duration::from_secs(2);
const IDLE_LOOKED_AT: Duration = Duration::from_secs(10);

/// What connected hosts that do nothing cost a target.
fn idle_rows() -> Result<Vec<Row>, Failure> {
    let port = 7_400 + 2 * PORTS_OF_CASES;
    let own = || std::env::current_exe().map(|path| path.display().to_string());
    let command = |rest: &[&str]| -> Result<Vec<String>, Failure> {
        let own = own().map_err(Failure::new)?;
        Ok([&[own.as_str(), "bench", "target"], rest]
            .concat()
            .into_iter()
            .map(String::from)
            .collect())
    };
    let (port_text, hosts) = (port.to_string(), IDLE_HOSTS.to_string());
    let serve = command(&["serve", "--port", &port_text, "--mib", "64"])?;
    let target = Server::start("0", &serve).map_err(Failure::new)?;
    wait_for_listeners(&[port])?;
    std::thread::sleep(IDLE_SETTLES);
    let resident = || bench::process::resident_bytes(target.id()).map_err(Failure::new);
    let before = resident()?;
    let address = format!("127.0.0.1:{port}");
    let connect = command(&[
        "hosts",
        "--address",
        &address,
        "--subsystem",
        NQN,
        "--hosts",
        &hosts,
    ])?;
    let _hosts = Server::start("1", &connect).map_err(Failure::new)?;
    wait_for_connections(port, IDLE_CONNECTIONS as usize)?;
    std::thread::sleep(IDLE_SETTLES);
    let (cpu, began) = (
        target.cpu_time().map_err(Failure::new)?,
        std::time::Instant::now(),
    );
    std::thread::sleep(IDLE_LOOKED_AT);
    let spent = target.cpu_time().map_err(Failure::new)?.saturating_sub(cpu);
    let share = spent.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    let each = resident()?.saturating_sub(before) as f64 / 1024.0 / IDLE_CONNECTIONS;
    let note = format!("{IDLE_HOSTS} hosts with an admin queue and an I/O queue each");
    Ok(vec![
        Row::new(
            "target with idle hosts: processor",
            share,
            "% of a core",
            Some(Bar::Below(1.0)),
        )
        .with_note(note.clone()),
        Row::new(
            "target with idle hosts: memory",
            each,
            "KiB resident a connection",
            Some(Bar::Below(64.0)),
        )
        .with_note(note),
    ])
}

/// Waits until so many connections to a port of this host are there.
fn wait_for_connections(port: u16, count: usize) -> Result<(), Failure> {
    let wanted = format!(":{port:04X}");
    for _ in 0..1000 {
        let text = std::fs::read_to_string("/proc/net/tcp").map_err(Failure::new)?;
        let established = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&wanted)) && words.nth(1) == Some("01")
        };
        if text.lines().filter(established).count() >= count {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::new(format!(
        "{count} connections to port {port} did not come in ten seconds"
    )))
}

/// Connects hosts, and keeps them.
fn run_hosts(arguments: &HostsArguments) -> Result<(), Failure> {
    let subsystem: Nqn = arguments.subsystem.parse().map_err(Failure::new)?;
    let connected = reactor::run(&Config::default(), async {
        let mut kept = Vec::new();
        for number in 0..arguments.hosts {
            let host: Nqn = format!("{HOST_NQN}-{number}").parse().map_err(Failure::new)?;
            let mut id = [0xbe; 16];
            id[..2].copy_from_slice(&number.to_le_bytes());
            let options = ConnectOptions::new(arguments.address, subsystem.clone(), host, id);
            let controller = Controller::connect(options).await.map_err(Failure::new)?;
            let queue = controller.open_queue().await.map_err(Failure::new)?;
            kept.push((controller, queue));
        }
        std::future::pending().await
    });
    connected.map_err(Failure::new)?
}

fn run_load(arguments: &LoadArguments, output: &Output) -> Result<(), Failure> {
    let subsystem: Nqn = arguments.subsystem.parse().map_err(Failure::new)?;
    let host: Nqn = HOST_NQN.parse().map_err(Failure::new)?;
    let workload = Workload {
        connect: ConnectOptions {
            data_digest: arguments.data_digest,
            ..ConnectOptions::new(arguments.address, subsystem, host, [0xbe; 16])
        },
        rate: arguments.rate,
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
type Shape = (usize, usize, u32, bool, f64);

const CASES: [Shape; 7] = [
    // One after the other: a latency of at most 1.25 times the loop's.
    (1, 1, 4096, true, 0.8),
    (1, 32, 4096, true, 0.75),
    (4, 32, 4096, true, 0.75),
    (16, 16, 4096, true, 0.75),
    (16, 16, 16384, true, 0.8),
    (1, 32, 4096, false, 0.6),
    (4, 32, 4096, false, 0.6),
];

/// Connections, depth, and further options with their values.
type Load = (usize, usize, &'static [(&'static str, &'static str)]);

/// Two loads on two targets of ours: what is compared, the shape of each (connections, depth, further options), CPUs and
/// reactors, and the bar.
struct Pair {
    name: &'static str,
    shapes: [Load; 2],
    reactors: [&'static str; 2],
    cpus: (&'static str, &'static str),
    measure: Measure,
    bar: f64,
}

/// Requests a second of the steady loads, and the most that their slowest hundredth may take with more connections, in what
/// it takes with one.
const STEADY: &[(&str, &str)] = &[("rate", "50000")];
const STEADY_TAIL: f64 = 1.5;

const ONE_EACH: ([&str; 2], (&str, &str)) = (["1", "1"], ("0", "1"));

const fn steady(name: &'static str, connections: usize) -> Pair {
    Pair {
        name,
        shapes: [(connections, 64, STEADY), (1, 64, STEADY)],
        reactors: ONE_EACH.0,
        cpus: ONE_EACH.1,
        measure: Measure::Tail,
        bar: STEADY_TAIL,
    }
}

const PAIRS: [Pair; 5] = [
    Pair {
        name: "4x32, 4 KiB read, with data digests against without",
        shapes: [(4, 32, &[("data-digest", "")]), (4, 32, &[])],
        reactors: ONE_EACH.0,
        cpus: ONE_EACH.1,
        measure: Measure::Rate,
        bar: 0.85,
    },
    steady("4 KiB read at 50,000 /s, 4 connections against 1", 4),
    steady("4 KiB read at 50,000 /s, 16 connections against 1", 16),
    steady("4 KiB read at 50,000 /s, 64 connections against 1", 64),
    // What it costs that connections lie on two threads, not how much faster two processors are, for which a third would have
    // to make the load.
    Pair {
        name: "4x32, 4 KiB read, two reactors against one",
        shapes: [(4, 32, &[]), (4, 32, &[])],
        reactors: ["2", "1"],
        cpus: ("0,1", "0,1"),
        measure: Measure::Cost,
        bar: 1.25,
    },
];

/// Ports that the comparisons take, in pairs.
const PORTS_OF_CASES: u16 = (CASES.len() + PAIRS.len()) as u16;

/// What of a comparison the bar is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Measure {
    /// Requests a second: at least.
    Rate,
    /// Processor time a request: less than.
    Cost,
    /// The slowest hundredth's latency: less than.
    Tail,
}

#[derive(serde::Serialize)]
struct Case {
    name: String,
    bar: f64,
    measure: Measure,
    /// Two targets of ours, not the target and the loop.
    of_two: bool,
    comparison: Comparison,
}

impl Case {
    fn value(&self) -> f64 {
        let Comparison { ours, theirs, .. } = &self.comparison;
        match self.measure {
            Measure::Rate => self.comparison.rate_ratio,
            Measure::Cost => self.comparison.cpu_ratio,
            Measure::Tail => ours.p99_us / theirs.p99_us,
        }
    }

    fn bar(&self) -> Bar {
        match self.measure {
            Measure::Rate => Bar::AtLeast(self.bar),
            Measure::Cost | Measure::Tail => Bar::Below(self.bar),
        }
    }

    fn row(&self) -> Row {
        let Comparison {
            rounds,
            dropped,
            ours,
            theirs,
            ..
        } = &self.comparison;
        let (first, second) = if self.of_two {
            ("first", "second")
        } else {
            ("target", "loop")
        };
        let unit = match (self.measure, self.of_two) {
            (Measure::Rate, false) => "of the bare loop",
            (Measure::Rate, true) => "of the rate",
            (Measure::Cost, _) => "of the processor time",
            (Measure::Tail, _) => "of the p99",
        };
        Row::new(format!("target on memory: {}", self.name), self.value(), unit, Some(self.bar())).with_note(format!(
            "{first} {:.0} /s at {:.2} us of CPU, p99 {:.0} us, {second} {:.0} /s at {:.2} us, p99 {:.0} us; {rounds} rounds, \
             {dropped} dropped",
            ours.rate, ours.cpu_us, ours.p99_us, theirs.rate, theirs.cpu_us, theirs.p99_us
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
        let sides = contenders(arguments, 7_400 + 2 * index as u16, case)?;
        cases.push(Case {
            name,
            bar,
            measure: Measure::Rate,
            of_two: false,
            comparison: in_turns(arguments, &yardsticks, &sides)?,
        });
    }
    for (index, pair) in PAIRS.iter().enumerate() {
        if !pair.name.contains(&arguments.case) {
            continue;
        }
        let port = 7_400 + 2 * (CASES.len() + index) as u16;
        let sides = two_targets(arguments, port, pair)?;
        cases.push(Case {
            name: pair.name.to_owned(),
            bar: pair.bar,
            measure: pair.measure,
            of_two: true,
            comparison: in_turns(arguments, &yardsticks, &sides)?,
        });
    }
    Ok(cases)
}

fn in_turns(
    arguments: &CompareArguments,
    yardsticks: &Yardsticks,
    (ours, theirs): &(Contender, Contender),
) -> Result<Comparison, Failure> {
    compare(
        arguments.rounds,
        || yardsticks.handoff_ns().map_err(Failure::new),
        |is_ours| if is_ours { ours } else { theirs }.slice(arguments.milliseconds),
        |_| {},
    )
}

/// Two targets of ours, each with its load.
fn two_targets(
    arguments: &CompareArguments,
    port: u16,
    pair: &Pair,
) -> Result<(Contender, Contender), Failure> {
    let start = |side: usize| {
        let port = port + side as u16;
        let (connections, depth, further) = pair.shapes[side];
        let serve = [
            ("port", port.to_string()),
            ("reactors", pair.reactors[side].to_owned()),
        ];
        let mut load = vec![
            ("connections", connections.to_string()),
            ("depth", depth.to_string()),
            ("milliseconds", arguments.milliseconds.to_string()),
            ("address", format!("127.0.0.1:{port}")),
            ("subsystem", NQN.to_owned()),
        ];
        load.extend(further.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let (serve, load) = (
            words(arguments, "target", "serve", &serve)?,
            words(arguments, "target", "load", &load)?,
        );
        Contender::start_on(pair.cpus, serve, load)
    };
    let sides = (start(0)?, start(1)?);
    wait_for_listeners(&[port, port + 1])?;
    Ok(sides)
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
        words.push(format!("--{name}"));
        words.extend((!value.is_empty()).then(|| value.clone()));
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
    (connections, depth, bytes, is_read, _): Shape,
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

pub(super) fn wait_for_listeners(ports: &[u16]) -> Result<(), Failure> {
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
        let bar = format!(
            "{} {}",
            case.bar,
            if case.row().is_missed() { "MISS" } else { "pass" }
        );
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
         that answers with as many bytes; so is a write, though its bytes go the other way. Where one of our targets is held \
         against another, the first stands in the target's place: digests and reactors on the rate and on CPU, steady loads on \
         their p99.\n"
    );
    method + &table(&rows)
}
