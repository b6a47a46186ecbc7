//! The metrics, in Prometheus' text format 0.0.4.

use std::fmt::{Display, Write};

use crate::calls::Calls;
use crate::view::verdict::Verdict;
use crate::view::{DiskRow, NodeRow, Resets, SampleRow, StatusView, VolumeRow};

/// What the text is.
pub(super) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All states that a disk can have; each has a series, so that none goes stale when the state changes.
const DISK_STATES: [&str; 6] = ["ok", "slow", "failing", "out of service", "missing", "unknown"];

/// A metric's name, its type, and what it is.
type Head = (&'static str, &'static str, &'static str);

/// The text as it grows.
#[derive(Default)]
struct Text(String);

impl Text {
    /// A metric with all its samples; nothing of one without samples.
    fn metric<'a, const LABELS: usize, V: Display>(
        &mut self,
        (name, kind, help): Head,
        samples: impl IntoIterator<Item = ([(&'static str, &'a str); LABELS], V)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
        for (labels, value) in samples {
            self.0.push_str(name);
            for (position, (label, text)) in labels.into_iter().enumerate() {
                self.0.push_str(if position == 0 { "{" } else { "," });
                self.0.push_str(label);
                self.0.push_str("=\"");
                text.chars().for_each(|character| match character {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                });
                self.0.push('"');
            }
            self.line(format_args!("{} {value}", if LABELS > 0 { "}" } else { "" }));
        }
    }

    fn single(&mut self, head: Head, value: impl Display) {
        self.metric(head, [([], value)]);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes all that is written to it");
    }

    /// Gauges of every node.
    fn of_nodes<V: Display>(&mut self, view: &StatusView, head: Head, value: impl Fn(&NodeRow) -> Option<V>) {
        let sample = |row| value(row).map(|value| ([("node", row.node.as_str())], value));
        self.metric(head, view.nodes.iter().filter_map(sample));
    }

    /// Gauges of every disk.
    fn of_disks<V: Display>(&mut self, view: &StatusView, head: Head, value: impl Fn(&DiskRow) -> Option<V>) {
        let sample = |row| value(row).map(|value| (disk_labels(row), value));
        self.metric(head, disks(view).filter_map(sample));
    }

    /// Gauges of every volume.
    fn of_volumes<V: Display>(
        &mut self,
        view: &StatusView,
        head: Head,
        value: impl Fn(&VolumeRow) -> Option<V>,
    ) {
        let sample = |row| value(row).map(|value| ([("volume", row.name.as_str())], value));
        self.metric(head, view.volumes.iter().filter_map(sample));
    }
}

fn disks(view: &StatusView) -> impl Iterator<Item = &DiskRow> {
    view.nodes.iter().flat_map(|node| &node.disk_health)
}

fn disk_labels(row: &DiskRow) -> [(&'static str, &str); 2] {
    [("node", row.node.as_str()), ("disk", row.uuid.as_str())]
}

/// What a master knows of the cluster at a scrape.
#[derive(Clone, Copy)]
pub(super) enum Known<'a> {
    /// All: it leads, so that what is the cluster's stands once in a scrape of all masters.
    Cluster(&'a StatusView),
    /// Nothing, since it does not lead.
    Elsewhere,
    /// Nothing, since its store does not answer; whether it leads still, if that is known.
    Unanswered { leads: Option<bool> },
}

/// The page of a master.
pub(super) fn text(calls: &Calls, known: Known<'_>) -> String {
    let mut text = Text::default();
    text.metric(
        ("redhare_build_info", "gauge", "The release that runs."),
        [([("version", foundation::RELEASE)], 1)],
    );
    // Only who leads asks the store at a scrape, and who does not know whether it does has asked it in vain.
    let (leads, answers) = match known {
        Known::Cluster(_) => (Some(true), Some(true)),
        Known::Elsewhere => (Some(false), None),
        Known::Unanswered { leads } => (leads, Some(false)),
    };
    text.metric(
        ("redhare_master_leads", "gauge", "Whether this master leads."),
        leads.map(|leads| ([], u8::from(leads))),
    );
    text.metric(
        (
            "redhare_master_store_answers",
            "gauge",
            "Whether the store answered this scrape; of a master that leads.",
        ),
        answers.map(|answers| ([], u8::from(answers))),
    );
    let answered = calls.answered();
    text.metric(
        (
            "redhare_master_calls_total",
            "counter",
            "gRPC calls answered; a stream counts when it begins.",
        ),
        answered
            .iter()
            .map(|(method, code, count)| ([("method", *method), ("code", code.as_str())], *count)),
    );
    if let Known::Cluster(view) = known {
        of_cluster(&mut text, view);
        of_nodes(&mut text, view);
        of_disks(&mut text, view);
        of_volumes(&mut text, view);
    }
    text.0
}

fn of_cluster(text: &mut Text, view: &StatusView) {
    let verdict = view.health.as_ref().map(|health| health.verdict);
    text.single(
        (
            "redhare_cluster_healthy",
            "gauge",
            "Whether nothing is missing, as redhare status says.",
        ),
        u8::from(verdict == Some(Verdict::Healthy)),
    );
    text.single(
        (
            "redhare_cluster_critical",
            "gauge",
            "Whether something waits, is lost, or nothing can be changed.",
        ),
        u8::from(verdict == Some(Verdict::Critical)),
    );
    text.single(
        ("redhare_cluster_masters", "gauge", "Masters that live."),
        view.masters.len(),
    );
    text.single(
        (
            "redhare_cluster_masters_away",
            "gauge",
            "Masters that are known and do not live.",
        ),
        view.masters_away.len(),
    );
    let away = view.masters_away.iter();
    text.metric(
        (
            "redhare_cluster_master_away_seconds",
            "gauge",
            "Time since a master that does not live was last there.",
        ),
        away.filter_map(|row| Some(([("master", row.address.as_str())], row.silent_seconds?))),
    );
    let data_path = view.data_path.as_ref();
    text.metric(
        (
            "redhare_cluster_data_path_proof_required",
            "gauge",
            "Whether nodes take only who proves who it is; of a cluster with certificates.",
        ),
        data_path.map(|row| ([], u8::from(row.proof_required))),
    );
    text.metric(
        (
            "redhare_cluster_data_path_awaited_nodes",
            "gauge",
            "Nodes that have to ask for their keys before proof is required.",
        ),
        data_path.map(|row| ([], row.awaited_nodes.len())),
    );
    let members = view.store.members.iter();
    text.metric(
        (
            "redhare_cluster_store_member_healthy",
            "gauge",
            "Whether a member of the etcd answers.",
        ),
        members.map(|row| ([("member", row.address.as_str())], u8::from(row.healthy))),
    );
    let alive = view.nodes.iter().filter(|node| node.alive).count();
    text.metric(
        (
            "redhare_cluster_nodes",
            "gauge",
            "Nodes by whether they are heard.",
        ),
        [
            ([("state", "alive")], alive),
            ([("state", "gone")], view.nodes.len() - alive),
        ],
    );
}

fn of_nodes(text: &mut Text, view: &StatusView) {
    text.metric(
        (
            "redhare_node_alive",
            "gauge",
            "Whether the masters hear the node.",
        ),
        view.nodes.iter().map(|row| {
            let labels = [("node", row.node.as_str()), ("address", row.address.as_str())];
            (labels, u8::from(row.alive))
        }),
    );
    let head = (
        "redhare_node_silent_seconds",
        "gauge",
        "Time since the node's last heartbeat.",
    );
    text.of_nodes(view, head, |row| {
        row.silent_milliseconds
            .map(|milliseconds| milliseconds as f64 / 1e3)
    });
    let head = (
        "redhare_node_capacity_bytes",
        "gauge",
        "What the node's disks have.",
    );
    text.of_nodes(view, head, |row| Some(row.capacity_bytes));
    let head = (
        "redhare_node_promised_bytes",
        "gauge",
        "What the copies there may grow to.",
    );
    text.of_nodes(view, head, |row| Some(row.allocated_bytes));
    let head = (
        "redhare_node_used_bytes",
        "gauge",
        "What is used of the node's disks.",
    );
    text.of_nodes(view, head, |row| Some(row.used_bytes));
    let head = (
        "redhare_node_held_bytes",
        "gauge",
        "What snapshots hold of what is used.",
    );
    text.of_nodes(view, head, |row| Some(row.held_bytes));
    let head = (
        "redhare_node_draining",
        "gauge",
        "Whether copies are moved away from the node or a disk of it.",
    );
    text.of_nodes(view, head, |row| Some(u8::from(row.draining)));
    let head = (
        "redhare_node_draining_copies",
        "gauge",
        "Copies that are still to be moved away.",
    );
    text.of_nodes(view, head, |row| Some(row.draining_copies));
    let head = (
        "redhare_node_scrub_oldest_timestamp_seconds",
        "gauge",
        "Since when each copy of the node has been compared with its checksums, or was first seen.",
    );
    text.of_nodes(view, head, |row| row.scrub.as_ref()?.oldest_unix_seconds);
    let releases = view.nodes.iter().flat_map(|row| {
        let processes = [("engine", &row.engine_release), ("target", &row.target_release)];
        let told = processes
            .into_iter()
            .filter_map(|(process, release)| Some((process, release.as_deref()?)));
        told.map(|(process, version)| {
            let labels = [
                ("node", row.node.as_str()),
                ("process", process),
                ("version", version),
            ];
            (labels, 1)
        })
    });
    text.metric(
        (
            "redhare_node_build_info",
            "gauge",
            "The releases that the node's processes are.",
        ),
        releases,
    );
}

fn of_disks(text: &mut Text, view: &StatusView) {
    text.metric(
        (
            "redhare_cluster_disk_state",
            "gauge",
            "1 for the state that the disk is in.",
        ),
        disks(view).flat_map(|row| {
            DISK_STATES.map(|state| {
                let [node, disk] = disk_labels(row);
                ([node, disk, ("state", state)], u8::from(row.state == state))
            })
        }),
    );
    let head = (
        "redhare_cluster_disk_full",
        "gauge",
        "Whether the disk has no room for more.",
    );
    text.of_disks(view, head, |row| Some(u8::from(row.full)));
    let head = (
        "redhare_cluster_disk_capacity_bytes",
        "gauge",
        "What the disk has.",
    );
    text.of_disks(view, head, |row| Some(row.capacity_bytes));
    let head = (
        "redhare_cluster_disk_promised_bytes",
        "gauge",
        "What the copies there may grow to.",
    );
    text.of_disks(view, head, |row| Some(row.allocated_bytes));
    let head = (
        "redhare_cluster_disk_used_bytes",
        "gauge",
        "What is used of the disk.",
    );
    text.of_disks(view, head, |row| Some(row.used_bytes));
    let seconds = |of: fn(&SampleRow) -> u64| {
        move |row: &DiskRow| row.own_sample().map(|sample| of(sample) as f64 / 1e6)
    };
    let head = (
        "redhare_cluster_disk_sample_seconds",
        "gauge",
        "Moving average of how long sample reads of the disk take at its node.",
    );
    text.of_disks(view, head, seconds(|sample| sample.disk_us));
    let head = (
        "redhare_cluster_disk_sample_p99_seconds",
        "gauge",
        "What 99 of 100 of the last sample reads stayed below.",
    );
    text.of_disks(view, head, seconds(|sample| sample.disk_p99_us));
    of_resets(text, view);
}

fn of_resets(text: &mut Text, view: &StatusView) {
    let begun = (
        "redhare_cluster_disk_resets_total",
        "counter",
        "Stages of resets of the disk that began, as the engine of its node counts them.",
    );
    let cured = (
        "redhare_cluster_disk_resets_cured_total",
        "counter",
        "Stages after which the disk answered again before the next.",
    );
    type Of = fn(&DiskRow) -> &Resets;
    for (head, resets) in [(begun, (|row| &row.resets) as Of), (cured, |row| &row.cured)] {
        text.metric(
            head,
            disks(view).flat_map(|row| {
                let [node, disk] = disk_labels(row);
                let sample = move |(stage, times)| ([node, disk, ("stage", stage)], times);
                resets(row).stages().map(sample)
            }),
        );
    }
    let head = (
        "redhare_cluster_disk_process_reset_seconds_total",
        "counter",
        "From the beginning of the stages that were the process's and cured until the next process served the disk.",
    );
    text.of_disks(view, head, |row| {
        Some(row.process_cured_milliseconds as f64 / 1e3)
    });
}

fn of_volumes(text: &mut Text, view: &StatusView) {
    let head = (
        "redhare_volume_portals",
        "gauge",
        "Nodes that are to export the volume; 0 for one that is not exported.",
    );
    text.of_volumes(view, head, |row| Some(row.portals.len()));
    let head = (
        "redhare_volume_lost_portals",
        "gauge",
        "Of these, nodes that are gone.",
    );
    text.of_volumes(view, head, |row| Some(row.lost_portals(&view.nodes).len()));
    let head = ("redhare_volume_size_bytes", "gauge", "What hosts see.");
    text.of_volumes(view, head, |row| Some(row.size_bytes));
    let head = (
        "redhare_volume_used_bytes",
        "gauge",
        "What the volume's chunks own of disks, all copies together.",
    );
    text.of_volumes(view, head, |row| row.disk_use.map(|disk_use| disk_use.used_bytes));
    let head = (
        "redhare_volume_held_bytes",
        "gauge",
        "What the volume's snapshots own besides.",
    );
    text.of_volumes(view, head, |row| row.disk_use.map(|disk_use| disk_use.held_bytes));
    let head = ("redhare_volume_chunks", "gauge", "Chunks of the volume.");
    text.of_volumes(view, head, |row| Some(row.chunks));
    let head = (
        "redhare_volume_degraded_chunks",
        "gauge",
        "Chunks with fewer copies in sync than they should have.",
    );
    text.of_volumes(view, head, |row| Some(row.degraded_chunks));
    let head = (
        "redhare_volume_waiting_chunks",
        "gauge",
        "Chunks whose writes wait for copies.",
    );
    text.of_volumes(view, head, |row| Some(row.waiting_chunks));
    let head = (
        "redhare_volume_roomless_chunks",
        "gauge",
        "Chunks with too few copies on disks that have room: writes that need some are refused.",
    );
    text.of_volumes(view, head, |row| Some(row.roomless_chunks));
    let head = (
        "redhare_volume_placeless_chunks",
        "gauge",
        "Degraded chunks that had no place for another copy when the masters last looked for one.",
    );
    text.of_volumes(view, head, |row| Some(row.placeless_chunks));
    let head = (
        "redhare_volume_crowded_chunks",
        "gauge",
        "Chunks with more copies in one rack than need be.",
    );
    text.of_volumes(view, head, |row| Some(row.crowded_chunks));
    let head = (
        "redhare_volume_lacking_copies",
        "gauge",
        "Copies in sync that the degraded chunks lack in all.",
    );
    text.of_volumes(view, head, |row| Some(row.lacking_copies));
    let head = (
        "redhare_volume_lacking_bytes",
        "gauge",
        "What is promised to the copies that are lacking.",
    );
    text.of_volumes(view, head, |row| Some(row.lacking_bytes));
    let head = (
        "redhare_volume_lost_blocks",
        "gauge",
        "Blocks that no copy has right, until they are written.",
    );
    text.of_volumes(view, head, |row| Some(row.lost_blocks));
    let head = (
        "redhare_volume_differing_blocks",
        "gauge",
        "Blocks that copies hold differently though each fits its checksum, until they are written.",
    );
    text.of_volumes(view, head, |row| Some(row.differing_blocks));
    let head = (
        "redhare_volume_lost_snapshot_blocks",
        "gauge",
        "Blocks of its snapshots that no copy has right.",
    );
    text.of_volumes(view, head, |row| {
        let lost = row.lost_of_snapshots.iter();
        Some(lost.map(|lost| lost.lost_blocks).sum::<u64>())
    });
    let head = (
        "redhare_volume_damaged_blocks",
        "gauge",
        "Blocks of copies that did not fit their checksums since their targets began.",
    );
    text.of_volumes(view, head, |row| Some(row.damaged_blocks));
    let head = (
        "redhare_volume_repaired_blocks",
        "gauge",
        "Of these, blocks that have been written since.",
    );
    text.of_volumes(view, head, |row| Some(row.repaired_blocks));
}

#[cfg(test)]
mod tests;
