//! `redhare bench echo`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bench::echo::{Load, REQUEST_BYTES, measure, serve};
use bench::paired::{Comparison, compare};
use bench::report::Row;
use bench::yardstick::Yardsticks;
use clap::{Args, Subcommand};
use reactor::Config;

use super::contender::Contender;
use crate::output::{Failure, Output, table};

/// The two sides, and the comparison with the same loop in C.
#[derive(Subcommand)]
pub(crate) enum Echo {
    /// Answer requests on loopback until killed
    #[command(after_help = "Example:\n  redhare bench echo serve --port 7001")]
    Serve {
        #[command(flatten)]
        shape: Shape,
    },
    /// Send requests and say how fast they were answered
    #[command(after_help = "Example:\n  redhare bench echo client --port 7001 --connections 4 --depth 32")]
    Client {
        #[command(flatten)]
        shape: Shape,
        /// Connections
        #[arg(long, default_value_t = 4)]
        connections: usize,
        /// Requests in flight on each
        #[arg(long, default_value_t = 32)]
        depth: usize,
        /// How long, in milliseconds
        #[arg(long, default_value_t = 1000)]
        milliseconds: u64,
    },
    /// Compare with the same loop written in C on epoll (needs cc and two CPUs)
    #[command(after_help = "Example:\n  redhare bench echo compare --rounds 20")]
    Compare {
        /// Rounds that must count for each case
        #[arg(long, default_value_t = 20)]
        rounds: usize,
        /// Length of a slice, in milliseconds
        #[arg(long, default_value_t = 300)]
        milliseconds: u64,
    },
}

/// What both sides must agree on.
#[derive(Args, Clone, Copy)]
pub(crate) struct Shape {
    /// TCP port on 127.0.0.1
    #[arg(long, default_value_t = 7001)]
    port: u16,
    /// Length of an answer in bytes: 24 of header and the data
    #[arg(long, default_value_t = 24 + 4096)]
    answer_bytes: usize,
    /// Poll without ever sleeping
    #[arg(long)]
    busy: bool,
}

impl Shape {
    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    fn config(&self) -> Config {
        let spin = if self.busy {
            Duration::MAX
        } else {
            Config::default().spin
        };
        Config {
            spin,
            ..Config::default()
        }
    }
}

pub(crate) fn run(echo: Echo, output: &Output) -> Result<(), Failure> {
    match echo {
        Echo::Serve { shape } => {
            let served = reactor::run(&shape.config(), serve(shape.address(), shape.answer_bytes));
            served.map_err(Failure::new)?.map_err(Failure::new)
        }
        Echo::Client {
            shape,
            connections,
            depth,
            milliseconds,
        } => {
            let duration = Duration::from_millis(milliseconds);
            let run = measure(shape.address(), shape.answer_bytes, connections, depth, duration);
            let load = reactor::run(&shape.config(), run)
                .map_err(Failure::new)?
                .map_err(Failure::new)?;
            output.print(&load, || {
                let Load {
                    requests_per_second,
                    p50_us,
                    p99_us,
                } = load;
                format!("requests_per_second {requests_per_second:.0} p50_us {p50_us} p99_us {p99_us}")
            });
            Ok(())
        }
        Echo::Compare { rounds, milliseconds } => {
            let cases = compare_all(rounds, milliseconds)?;
            output.print(&cases, || describe(&cases));
            Ok(())
        }
    }
}

/// Connections, depth, data bytes.
const CASES: [(usize, usize, usize); 5] = [
    (1, 1, 4096),
    (1, 32, 4096),
    (4, 32, 4096),
    (16, 16, 4096),
    (16, 16, 16384),
];

#[derive(serde::Serialize)]
struct Case {
    name: String,
    comparison: Comparison,
}

/// The cases as rows of a report; none has a bar.
pub(super) fn rows(rounds: usize, milliseconds: u64) -> Result<Vec<Row>, Failure> {
    let row = |case: &Case| {
        let name = format!("bare loop, ours against C: {}", case.name);
        Row::new(name, case.comparison.rate_ratio, "of its rate", None)
    };
    Ok(compare_all(rounds, milliseconds)?.iter().map(row).collect())
}

fn compare_all(rounds: usize, milliseconds: u64) -> Result<Vec<Case>, Failure> {
    let yardsticks = Yardsticks::build().map_err(Failure::new)?;
    let own = std::env::current_exe()
        .map_err(Failure::new)?
        .display()
        .to_string();
    let mut cases = Vec::new();
    for (index, (connections, depth, data_bytes)) in CASES.into_iter().enumerate() {
        let name = format!("{connections}x{depth}, {} KiB", data_bytes / 1024);
        let (port, answer) = (7_100 + 2 * index as u16, (data_bytes + 24).to_string());
        let words = |command: &[&str]| command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let (ours_port, theirs_port) = (port.to_string(), (port + 1).to_string());
        let echo_c = yardsticks.echo();
        let ours = Contender::start(
            words(&[
                &own,
                "bench",
                "echo",
                "serve",
                "--port",
                &ours_port,
                "--answer-bytes",
                &answer,
            ]),
            words(&[
                &own,
                "bench",
                "echo",
                "client",
                "--port",
                &ours_port,
                "--answer-bytes",
                &answer,
                "--connections",
                &connections.to_string(),
                "--depth",
                &depth.to_string(),
                "--milliseconds",
                &milliseconds.to_string(),
            ]),
        )?;
        let theirs = Contender::start(
            words(&[&echo_c, "s", &theirs_port, &answer]),
            words(&[
                &echo_c,
                "c",
                &theirs_port,
                &answer,
                &connections.to_string(),
                &depth.to_string(),
                &milliseconds.to_string(),
            ]),
        )?;
        std::thread::sleep(Duration::from_millis(200));
        let comparison = compare(
            rounds,
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
        cases.push(Case { name, comparison });
    }
    Ok(cases)
}

fn describe(cases: &[Case]) -> String {
    let heading = [
        "CASE",
        "RATE OURS/C",
        "LATENCY OURS/C",
        "OURS /S",
        "C /S",
        "CPU US OURS",
        "CPU US C",
        "ROUNDS",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for Case { name, comparison } in cases {
        rows.push(vec![
            name.clone(),
            format!("{:.3}", comparison.rate_ratio),
            format!("{:.3}", comparison.latency_ratio),
            format!("{:.0}", comparison.ours.rate),
            format!("{:.0}", comparison.theirs.rate),
            format!("{:.2}", comparison.ours.cpu_us),
            format!("{:.2}", comparison.theirs.cpu_us),
            format!("{} ({} dropped)", comparison.rounds, comparison.dropped),
        ]);
    }
    let requests = format!("requests of {REQUEST_BYTES} bytes; one CPU a side; medians of paired rounds\n");
    requests + &table(&rows)
}
