//! What the target has done, for Prometheus: its text format over HTTP.
//!
//! Served by threads of its own, which read counters that the reactors write: a scrape costs the reactors nothing but
//! the cache lines it reads. `docs/metrics.md` lists what there is.

mod disks;
mod durations;
mod http;
mod text;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabrics::target::{ErrorKind, Kind, QueueMeasures, ReactorMeasures, SubsystemMeasures, Tally, Target};
use reactor::{CoreHandle, Usage};

use crate::node::CHECKSUMS;

pub use http::{ListenError, Server};
use text::{Family, Text};

/// What is shown: a target and the reactors that serve it.
pub struct Source {
    /// The target.
    pub target: Arc<Target>,
    /// The reactors.
    pub reactors: Vec<CoreHandle>,
}

/// Serves the metrics of `source` at `http://ADDRESS/metrics` until the server is dropped. Port 0 takes a free one.
///
/// # Errors
/// See [`ListenError`].
pub fn serve(address: SocketAddr, source: Source) -> Result<Server, ListenError> {
    Server::start(address, move || source.exposition())
}

const fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Other => "other",
    }
}

const fn name_of_error(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Generic => "generic",
        ErrorKind::CommandSpecific => "command_specific",
        ErrorKind::Media => "media",
        ErrorKind::Path => "path",
        ErrorKind::Vendor => "vendor",
    }
}

/// Kinds whose bytes are counted.
const MOVING: [Kind; 2] = [Kind::Read, Kind::Write];

impl Source {
    /// All metrics in Prometheus' text format, version 0.0.4.
    pub fn exposition(&self) -> String {
        let mut text = Text::default();
        let mut build = text.family("redhare_build_info", "gauge", "Always 1; what runs.");
        build.sample(&[("version", foundation::RELEASE)], 1_u32);
        let usages: Vec<(String, Usage)> = self
            .reactors
            .iter()
            .map(|reactor| (reactor.index().to_string(), reactor.usage()))
            .collect();
        reactor_usage(&mut text, &usages);
        reactor_work(&mut text, &self.target.reactor_measures());
        let subsystems = self.target.subsystem_measures();
        subsystem_totals(&mut text, &subsystems);
        namespaces(&mut text, &subsystems);
        queues(&mut text, &subsystems);
        checksums(&mut text);
        disks::show(&mut text);
        text.finish()
    }
}

fn reactor_usage(text: &mut Text, usages: &[(String, Usage)]) {
    let mut seconds = |name, help, time: fn(&Usage) -> std::time::Duration| {
        let mut family = text.family(name, "counter", help);
        for (reactor, usage) in usages {
            family.sample(&[("reactor", reactor)], time(usage).as_secs_f64());
        }
    };
    seconds(
        "redhare_reactor_busy_seconds_total",
        "Time spent on tasks and completions.",
        |usage| usage.busy,
    );
    seconds(
        "redhare_reactor_polling_seconds_total",
        "Time spent looking for work without finding any, before sleeping.",
        |usage| usage.polling,
    );
    seconds(
        "redhare_reactor_sleeping_seconds_total",
        "Time spent asleep in the kernel.",
        |usage| usage.sleeping,
    );
    let mut count = |name, help, count: fn(&Usage) -> u64| {
        let mut family = text.family(name, "counter", help);
        for (reactor, usage) in usages {
            family.sample(&[("reactor", reactor)], count(usage));
        }
    };
    count(
        "redhare_reactor_turns_total",
        "Turns of the reactor's loop, idle ones included.",
        |usage| usage.turns,
    );
    count(
        "redhare_reactor_sleeps_total",
        "Times the reactor slept for want of work.",
        |usage| usage.sleeps,
    );
}

fn reactor_work(text: &mut Text, reactors: &[ReactorMeasures]) {
    let mut each = |name, kind, help, value: fn(&ReactorMeasures) -> u64| {
        let mut family = text.family(name, kind, help);
        for reactor in reactors {
            family.sample(&[("reactor", &reactor.reactor.to_string())], value(reactor));
        }
    };
    each(
        "redhare_reactor_connections_total",
        "counter",
        "NVMe/TCP connections given to the reactor.",
        |reactor| reactor.connections,
    );
    each(
        "redhare_reactor_connections",
        "gauge",
        "NVMe/TCP connections that are open.",
        |reactor| reactor.current_connections,
    );
    each(
        "redhare_reactor_admin_queues",
        "gauge",
        "Admin queues that are connected.",
        |reactor| reactor.current_admin_queues,
    );
    each(
        "redhare_reactor_io_queues",
        "gauge",
        "I/O queues that are connected.",
        |reactor| reactor.current_io_queues,
    );
    let mut family = text.family(
        "redhare_reactor_commands_total",
        "counter",
        "I/O commands answered, well or not.",
    );
    for reactor in reactors {
        let number = reactor.reactor.to_string();
        for kind in Kind::ALL {
            let labels = [("reactor", number.as_str()), ("operation", name_of(kind))];
            family.sample(&labels, reactor.commands[kind as usize]);
        }
    }
    let mut family = text.family(
        "redhare_reactor_bytes_total",
        "counter",
        "Bytes moved by commands that succeeded.",
    );
    for reactor in reactors {
        let number = reactor.reactor.to_string();
        for kind in MOVING {
            let labels = [("reactor", number.as_str()), ("operation", name_of(kind))];
            family.sample(&labels, reactor.bytes[kind as usize]);
        }
    }
    let mut family = durations::family(text, "redhare_reactor_command_duration_seconds");
    for reactor in reactors {
        let number = reactor.reactor.to_string();
        durations::fine(&mut family, &[("reactor", &number)], &reactor.latencies);
    }
}

fn commands(family: &mut Family<'_>, labels: &[(&str, &str)], tally: &Tally) {
    for kind in Kind::ALL {
        let labels = [labels, &[("operation", name_of(kind))]].concat();
        family.sample(&labels, tally.commands[kind as usize]);
    }
}

fn bytes(family: &mut Family<'_>, labels: &[(&str, &str)], tally: &Tally) {
    for kind in MOVING {
        let labels = [labels, &[("operation", name_of(kind))]].concat();
        family.sample(&labels, tally.bytes[kind as usize]);
    }
}

fn errors(family: &mut Family<'_>, labels: &[(&str, &str)], tally: &Tally) {
    for kind in ErrorKind::ALL {
        let labels = [labels, &[("status_type", name_of_error(kind))]].concat();
        family.sample(&labels, tally.errors[kind as usize]);
    }
}

/// What the checksums of this process's chunk copies have shown.
fn checksums(text: &mut Text) {
    let mut count = |name, help, value: &AtomicU64| {
        let mut family = text.family(name, "counter", help);
        family.sample(&[], value.load(Ordering::Relaxed));
    };
    count(
        "redhare_checksum_checked_blocks_total",
        "Blocks of chunk copies that were read and compared with their checksums.",
        &CHECKSUMS.checked_blocks,
    );
    count(
        "redhare_checksum_damaged_blocks_total",
        "Of those, blocks that did not fit.",
        &CHECKSUMS.damaged_blocks,
    );
    count(
        "redhare_checksum_repaired_blocks_total",
        "Blocks that did not fit and have been written since.",
        &CHECKSUMS.repaired_blocks,
    );
    count(
        "redhare_checksum_lost_blocks_total",
        "Blocks that no copy had right, at chunks whose writes are ordered here.",
        &CHECKSUMS.lost_blocks,
    );
    count(
        "redhare_checksum_damaged_pages_total",
        "Pages of checksums of which neither place could be believed.",
        &CHECKSUMS.damaged_pages,
    );
    count(
        "redhare_scrubbed_blocks_total",
        "Blocks of chunk copies that were read in the background, only to compare them.",
        &CHECKSUMS.scrubbed_blocks,
    );
    count(
        "redhare_copies_differing_blocks_total",
        "Blocks that the copies of a chunk in sync were found to hold differently though each fits its checksum, at chunks whose writes are ordered here.",
        &CHECKSUMS.differing_blocks,
    );
    count(
        "redhare_copies_outvoted_blocks_total",
        "Of those, blocks that one copy held otherwise than all others, and holds as they do since.",
        &CHECKSUMS.outvoted_blocks,
    );
    count(
        "redhare_scrubbed_copies_total",
        "Chunk copies that were compared whole in the background.",
        &CHECKSUMS.scrubbed_copies,
    );
    count(
        "redhare_scrubbed_snapshot_copies_total",
        "Copies of snapshots that were compared whole in the background.",
        &CHECKSUMS.scrubbed_snapshots,
    );
    count(
        "redhare_snapshot_damaged_blocks_total",
        "Blocks of snapshots' copies that did not fit their checksums, or could not be read.",
        &CHECKSUMS.snapshot_damaged_blocks,
    );
    count(
        "redhare_snapshot_repaired_blocks_total",
        "Of those, blocks that fit again.",
        &CHECKSUMS.snapshot_repaired_blocks,
    );
    let mut family = text.family(
        "redhare_snapshot_wrong_blocks",
        "gauge",
        "Blocks of snapshots' copies that are known not to fit their checksums.",
    );
    family.sample(&[], CHECKSUMS.snapshot_wrong_blocks.load(Ordering::Relaxed));
    let oldest = CHECKSUMS.scrub_oldest_unix_ms.load(Ordering::Relaxed);
    let help = "When the chunk copy, or copy of a snapshot, was compared, or first seen, for which it is longest ago, in Unix time; 0 if that is not known.";
    let mut family = text.family("redhare_scrub_oldest_timestamp_seconds", "gauge", help);
    family.sample(&[], oldest / 1000);
}

type Describe = fn(&mut Family<'_>, &[(&str, &str)], &Tally);

fn subsystem_totals(text: &mut Text, subsystems: &[SubsystemMeasures]) {
    let mut gauge = |name, help, value: fn(&SubsystemMeasures) -> u64| {
        let mut family = text.family(name, "gauge", help);
        for subsystem in subsystems {
            family.sample(&[("subsystem", &subsystem.nqn)], value(subsystem));
        }
    };
    gauge(
        "redhare_subsystem_controllers",
        "Hosts' associations that live.",
        |subsystem| subsystem.controllers,
    );
    gauge(
        "redhare_subsystem_io_queues",
        "I/O queues that are connected.",
        |subsystem| subsystem.queues.len() as u64,
    );
    gauge(
        "redhare_subsystem_namespaces",
        "Namespaces that are there.",
        |subsystem| subsystem.namespaces.len() as u64,
    );
    let families: [(&str, &str, Describe); 3] = [
        (
            "redhare_subsystem_commands_total",
            "I/O commands answered, well or not; those to no namespace among them.",
            commands,
        ),
        (
            "redhare_subsystem_bytes_total",
            "Bytes moved by commands that succeeded.",
            bytes,
        ),
        (
            "redhare_subsystem_errors_total",
            "I/O commands answered with an error.",
            errors,
        ),
    ];
    for (name, help, describe) in families {
        let mut family = text.family(name, "counter", help);
        for subsystem in subsystems {
            describe(&mut family, &[("subsystem", &subsystem.nqn)], &subsystem.total);
        }
    }
    let mut family = durations::family(text, "redhare_subsystem_command_duration_seconds");
    for subsystem in subsystems {
        let labels = [("subsystem", subsystem.nqn.as_str())];
        durations::fine(&mut family, &labels, &subsystem.total.latencies);
    }
}

fn each_namespace(subsystems: &[SubsystemMeasures], mut visit: impl FnMut(&[(&str, &str)], &Tally)) {
    for subsystem in subsystems {
        for (nsid, tally) in &subsystem.namespaces {
            visit(
                &[("subsystem", &subsystem.nqn), ("nsid", &nsid.to_string())],
                tally,
            );
        }
    }
}

fn namespaces(text: &mut Text, subsystems: &[SubsystemMeasures]) {
    let families: [(&str, &str, Describe); 3] = [
        (
            "redhare_namespace_commands_total",
            "I/O commands answered, well or not.",
            commands,
        ),
        (
            "redhare_namespace_bytes_total",
            "Bytes moved by commands that succeeded.",
            bytes,
        ),
        (
            "redhare_namespace_errors_total",
            "I/O commands answered with an error.",
            errors,
        ),
    ];
    for (name, help, describe) in families {
        let mut family = text.family(name, "counter", help);
        each_namespace(subsystems, |labels, tally| describe(&mut family, labels, tally));
    }
    let mut family = durations::family(text, "redhare_namespace_command_duration_seconds");
    each_namespace(subsystems, |labels, tally| {
        durations::fine(&mut family, labels, &tally.latencies);
    });
}

/// Shows each connected queue with its labels.
fn each_queue(subsystems: &[SubsystemMeasures], mut visit: impl FnMut(&[(&str, &str)], &QueueMeasures)) {
    for subsystem in subsystems {
        for queue in &subsystem.queues {
            let numbers = [queue.cntlid.into(), u32::from(queue.qid), queue.reactor];
            let [cntlid, qid, reactor] = numbers.map(|number| number.to_string());
            let labels = [
                ("subsystem", subsystem.nqn.as_str()),
                ("host", &queue.host_nqn),
                ("cntlid", &cntlid),
                ("qid", &qid),
                ("reactor", &reactor),
            ];
            visit(&labels, queue);
        }
    }
}

fn queues(text: &mut Text, subsystems: &[SubsystemMeasures]) {
    let mut family = text.family(
        "redhare_queue_commands_total",
        "counter",
        "I/O commands begun on a connected queue.",
    );
    each_queue(subsystems, |labels, queue| {
        for kind in Kind::ALL {
            let labels = [labels, &[("operation", name_of(kind))]].concat();
            family.sample(&labels, queue.commands[kind as usize]);
        }
    });
    let mut family = text.family(
        "redhare_queue_bytes_total",
        "counter",
        "Bytes that the commands of a connected queue read and wrote, as the health log counts them.",
    );
    each_queue(subsystems, |labels, queue| {
        for kind in MOVING {
            let labels = [labels, &[("operation", name_of(kind))]].concat();
            family.sample(&labels, queue.bytes[kind as usize]);
        }
    });
    let mut family = durations::family(text, "redhare_queue_command_duration_seconds");
    each_queue(subsystems, |labels, queue| {
        durations::coarse(&mut family, labels, &queue.latencies);
    });
}

#[cfg(test)]
mod tests;
