//! `redhare bench scale`: what a read costs as servers and clients become more, 1 of each to 64.
//!
//! In virtual time, in one thread, from a seed: see [`model`]. What is counted is what the real client does, which copy it
//! asks above all; what is not measured is how fast anything is.

mod model;

use bench::report::{Bar, Row};
use clap::Args;

use self::model::{Counted, Scene, play};
use crate::output::{Failure, Output};

/// The promises.
const MESSAGES_BAR: f64 = 2.0;
const BUSIEST_BAR: f64 = 1.05;
/// The same once a server is lost: its chunks have a copy less, so the reads of each fall on two servers instead of three.
const LOST_BUSIEST_BAR: f64 = 1.1;
/// So many servers that the copies of those of a lost one are on many others.
const LOST_SERVERS_MIN: usize = 8;
/// Reads in flight of each client: one at a time, and enough that the servers are never idle.
const DEPTHS: [usize; 2] = [1, 8];

/// How many, and how long.
#[derive(Args)]
#[command(
    after_help = "Needs nothing of the machine. The clients are the real ones, the servers and the network are modelled: what is counted is calls to masters, \
messages, connections, and how evenly the reads fall on servers and on the copies of one chunk that everybody reads.
Example:
  redhare bench scale --servers 16 --reads 2000"
)]
pub(crate) struct ScaleArguments {
    /// The most servers, and as many clients: 1, 2, 4 and so on up to this
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    servers: u16,
    /// Reads of each client
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    reads: u32,
    /// The same seed gives the same counts
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Default for ScaleArguments {
    fn default() -> Self {
        Self {
            servers: 64,
            reads: 5000,
            seed: 1,
        }
    }
}

pub(super) fn run(arguments: &ScaleArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments);
    output.print(&rows, || super::report::describe(&rows));
    super::report::check(&rows, output)
}

/// Takes some seconds.
pub(super) fn rows(arguments: &ScaleArguments) -> Vec<Row> {
    let sizes = std::iter::successors(Some(1usize), |size| Some(size * 2));
    let sizes: Vec<usize> = sizes
        .take_while(|&size| size <= arguments.servers.into())
        .collect();
    let all = |is_hot: bool, loses_one: bool| -> Vec<(Scene, Counted)> {
        let scene = |servers, depth| Scene {
            servers,
            reads: arguments.reads as usize,
            depth,
            is_hot,
            loses_one,
            seed: arguments.seed,
        };
        let scenes = sizes
            .iter()
            .filter(|&&servers| !loses_one || servers >= LOST_SERVERS_MIN)
            .flat_map(|&servers| DEPTHS.map(|depth| scene(servers, depth)));
        scenes.map(|scene| (scene, play(scene))).collect()
    };
    report_rows(&all(false, false), &all(true, false), &all(false, true))
}

fn report_rows(spread: &[(Scene, Counted)], hot: &[(Scene, Counted)], lost: &[(Scene, Counted)]) -> Vec<Row> {
    let both = || spread.iter().chain(hot).map(|(_, counted)| counted);
    let worst = |value: &dyn Fn(&Counted) -> f64| both().map(value).fold(f64::NAN, f64::max);
    let of_reads = |count: u64, counted: &Counted| count as f64 / counted.reads as f64;
    let servers: Vec<String> = spread
        .iter()
        .map(|(scene, _)| scene.servers.to_string())
        .collect();
    let first_to_last = match (servers.first(), servers.last()) {
        (Some(first), Some(last)) => format!("{first} to {last} servers and as many clients"),
        _ => "no servers".to_owned(),
    };
    let most_connections = spread.iter().map(|(scene, _)| scene.servers).max().unwrap_or(0);
    let each = |counted: &[(Scene, Counted)], value: &dyn Fn(&Counted) -> String| {
        let each = counted.iter().map(|(scene, counted)| {
            let (servers, depth) = (scene.servers, scene.depth);
            format!("{servers}x{depth} {}", value(counted))
        });
        each.collect::<Vec<_>>().join(", ")
    };
    let busiest = |name: String, counted: &[(Scene, Counted)], bar: f64| {
        let worst = counted
            .iter()
            .map(|(_, counted)| counted.busiest)
            .fold(f64::NAN, f64::max);
        let row = Row::new(name, worst, "of the mean", Some(Bar::AtMost(bar)));
        row.with_note(format!(
            "servers x reads in flight of a client: {}",
            each(counted, &|counted| format!("{:.3}", counted.busiest))
        ))
    };
    let mut rows = vec![
        Row::new(
            format!("{first_to_last}: calls to masters"),
            worst(&|counted| of_reads(counted.master_calls, counted)),
            "a read",
            Some(Bar::AtMost(0.0)),
        ),
        Row::new(
            format!("{first_to_last}: messages"),
            worst(&|counted| of_reads(counted.messages, counted)),
            "a read",
            Some(Bar::AtMost(MESSAGES_BAR)),
        )
        .with_note("a command to a copy and its answer"),
        Row::new(
            format!("{first_to_last}: connections made once each client knows the servers"),
            worst(&|counted| of_reads(counted.connections, counted)),
            "a read",
            Some(Bar::AtMost(0.0)),
        )
        .with_note(format!(
            "before that a client makes one to each server that it reads from, {most_connections} at most"
        )),
        busiest(
            format!("{first_to_last}: reads of the busiest server"),
            spread,
            BUSIEST_BAR,
        )
        .with_note(format!(
            "servers x reads in flight of a client: {}; latency in the model: {}",
            each(spread, &|counted| format!("{:.3}", counted.busiest)),
            each(spread, &|counted| format!("{:.0} us", counted.latency_us))
        )),
        busiest(
            format!("{first_to_last}, all reading one chunk: reads of its busiest copy"),
            hot,
            BUSIEST_BAR,
        ),
    ];
    if !lost.is_empty() {
        rows.push(busiest(
            format!("the same with {LOST_SERVERS_MIN} servers and more, one of them lost: reads of the busiest of the others"),
            lost,
            LOST_BUSIEST_BAR,
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ask_no_master_and_fall_evenly_on_servers_and_copies() {
        let arguments = ScaleArguments {
            servers: 4,
            reads: 4000,
            seed: 7,
        };
        for row in rows(&arguments) {
            assert!(!row.is_missed(), "{row:?}");
        }
    }

    #[test]
    fn the_reads_of_a_lost_server_fall_on_all_others() {
        let scene = |loses_one| Scene {
            servers: 8,
            reads: 4000,
            depth: 8,
            is_hot: false,
            loses_one,
            seed: 7,
        };
        let (whole, lost) = (play(scene(false)), play(scene(true)));
        assert!(lost.busiest < LOST_BUSIEST_BAR, "{lost:?}");
        assert_eq!(lost.messages, 2 * lost.reads, "nobody asks the lost one");
        assert!(lost.latency_us < whole.latency_us * 1.5, "{whole:?} {lost:?}");
        let rows = report_rows(
            &[],
            &[],
            &[(
                scene(true),
                Counted {
                    busiest: 1.11,
                    ..lost
                },
            )],
        );
        assert!(rows.last().is_some_and(Row::is_missed));
    }

    #[test]
    fn a_busy_copy_misses_the_bar() {
        let scene = Scene {
            servers: 2,
            reads: 1,
            depth: 1,
            is_hot: false,
            loses_one: false,
            seed: 1,
        };
        let counted = |busiest, messages, master_calls| Counted {
            reads: 10,
            messages,
            connections: 0,
            master_calls,
            busiest,
            latency_us: 1.0,
        };
        let good = [(scene, counted(1.05, 20, 0))];
        assert!(report_rows(&good, &good, &[]).iter().all(|row| !row.is_missed()));
        let missed = |rows: Vec<Row>| -> Vec<bool> { rows.iter().map(Row::is_missed).collect() };
        let bad = [(scene, counted(1.051, 21, 1))];
        assert_eq!(
            missed(report_rows(&good, &bad, &[])),
            [true, true, false, false, true]
        );
        assert_eq!(
            missed(report_rows(&bad, &good, &[])),
            [true, true, false, true, false]
        );
    }
}
