//! The volumes of a cluster.

use foundation::ByteCount;
use proto::v1;

use super::{DiskUse, NodeRow, about, about_left, seconds};
use crate::uuid_text;

/// A volume.
#[derive(Clone, Debug, serde::Serialize)]
pub struct VolumeRow {
    /// Of no other volume.
    pub name: String,
    /// Of no other volume, ever.
    pub number: u32,
    /// What hosts see.
    pub size_bytes: u64,
    /// What it owns of disks; null where not every living node has said it yet.
    pub disk_use: Option<DiskUse>,
    /// See [`state`].
    pub state: &'static str,
    /// Its copies keep checksums of their blocks.
    pub checksums: bool,
    /// Absent from one that is no clone, or not any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginView>,
    /// Nodes that export it to ordinary hosts.
    pub portals: Vec<String>,
    /// How many it has.
    pub chunks: u32,
    /// Those with fewer copies in sync than they should have.
    pub degraded_chunks: u32,
    /// Copies in sync that these lack in all.
    pub lacking_copies: u32,
    /// What is promised to the copies that are lacking.
    pub lacking_bytes: u64,
    /// For these, as fast as it went in the last minutes; null before anything can be said.
    pub lacking_left_seconds: Option<u64>,
    /// Those whose writes wait for copies.
    pub waiting_chunks: u32,
    /// Those with too few copies on disks that have room: writes that need some are refused.
    pub roomless_chunks: u32,
    /// Of the degraded ones, those that had no place for another copy when the masters last looked for one.
    pub placeless_chunks: u32,
    /// With more copies in one rack than need be: two, or, where racks are fewer than copies, two more than another rack has that has a node for one.
    pub crowded_chunks: u32,
    /// Racks are fewer than copies, and nobody has asked for different ones.
    pub few_racks: bool,
    /// Blocks that no copy has right: reading them is an error until they are written.
    pub lost_blocks: u64,
    /// Blocks that copies hold differently though each fits its checksum: readers may get either until they are written.
    pub differing_blocks: u64,
    /// Snapshots with blocks that no copy has right: reading these is an error until a copy that has them answers.
    pub lost_of_snapshots: Vec<LostOfSnapshot>,
    /// Blocks of copies that did not fit their checksums since their nodes' targets began.
    pub damaged_blocks: u64,
    /// Of these, blocks that have been written since.
    pub repaired_blocks: u64,
    /// For each node whose copies are sent what they have missed.
    pub returning: Vec<ReturningRow>,
    /// Absent as long as chunks find places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unplaced: Option<UnplacedView>,
}

/// Chunks of a volume that is being made or grows for which there is no place now.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UnplacedView {
    /// So many.
    pub chunks: u32,
    /// Why, with the numbers.
    pub why: String,
}

impl UnplacedView {
    /// As masters say it.
    pub fn of(unplaced: &v1::Unplaced) -> Self {
        Self {
            chunks: unplaced.chunks,
            why: unplaced.why.clone(),
        }
    }

    /// What people read of it.
    pub fn describe(&self) -> String {
        format!("{} chunks have no place: {}", self.chunks, self.why)
    }
}

/// A snapshot with blocks that no copy has right.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LostOfSnapshot {
    /// The snapshot's name.
    pub snapshot: String,
    /// So many blocks.
    pub lost_blocks: u64,
}

impl LostOfSnapshot {
    fn of(lost: &v1::LostOfSnapshot) -> Self {
        Self {
            snapshot: lost.name.clone(),
            lost_blocks: lost.blocks,
        }
    }
}

/// The copies of a volume on one node that are sent what they have missed, a few at a time.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ReturningRow {
    /// The node's UUID.
    pub node: String,
    /// Chunks under way.
    pub chunks: usize,
    /// Still to be sent of them.
    pub left_bytes: u64,
    /// What they had missed.
    pub total_bytes: u64,
    /// At the rate so far; none before anything was sent.
    pub left_seconds: Option<u64>,
}

/// What a clone shares.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OriginView {
    /// The volume that it was made of.
    pub volume: String,
    /// That volume's snapshot.
    pub snapshot: String,
    /// It comes to data of its own.
    pub flattening: bool,
    /// While it is flattened: copies that share something still, and all, of the nodes that have said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_copies: Option<u64>,
    /// All of these copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flattened_of: Option<u64>,
}

/// A volume's state in a word.
pub fn state(volume: &v1::Volume) -> &'static str {
    match volume.state() {
        v1::VolumeState::Unspecified => "unknown",
        v1::VolumeState::Creating => "creating",
        v1::VolumeState::Preparing => "preparing",
        v1::VolumeState::Ready => "ready",
        v1::VolumeState::Deleting => "deleting",
    }
}

/// None of a volume that is no clone.
pub fn origin(volume: &v1::Volume) -> Option<OriginView> {
    let origin = volume.origin.as_ref()?;
    // What has just been made says numbers only.
    let named = |name: &str, number: u64| match name {
        "" => number.to_string(),
        name => name.to_owned(),
    };
    Some(OriginView {
        volume: named(&origin.volume_name, origin.volume.into()),
        snapshot: named(&origin.snapshot_name, origin.snapshot),
        flattening: origin.flattening,
        left_copies: origin.flattening.then_some(origin.left_copies),
        flattened_of: origin.flattening.then_some(origin.copies),
    })
}

/// By node, what is said of each chunk.
pub fn returning(resyncs: &[v1::Resync]) -> Vec<ReturningRow> {
    let mut nodes: Vec<&[u8]> = resyncs.iter().map(|resync| &resync.node[..]).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let row = |node: &[u8]| {
        let of_node = || resyncs.iter().filter(|resync| resync.node == node);
        let left_bytes = super::sum(of_node().map(|resync| resync.left_bytes));
        let rate = of_node().map(|resync| {
            let sent = resync.total_bytes.saturating_sub(resync.left_bytes) as f64;
            sent * 1000.0 / resync.elapsed_ms.max(1) as f64
        });
        let bytes_per_second: f64 = rate.sum();
        ReturningRow {
            node: uuid_text(node),
            chunks: of_node().count(),
            left_bytes,
            total_bytes: super::sum(of_node().map(|resync| resync.total_bytes)),
            left_seconds: (bytes_per_second > 0.0)
                .then(|| (left_bytes as f64 / bytes_per_second).ceil() as u64),
        }
    };
    nodes.into_iter().map(row).collect()
}

/// What people read of it.
pub fn describe_returning(row: &ReturningRow) -> String {
    let node = super::short(&row.node);
    let (left, total) = (ByteCount(row.left_bytes), ByteCount(row.total_bytes));
    let time = row
        .left_seconds
        .map_or(String::new(), |seconds| format!(", {}", about(seconds)));
    let chunks = row.chunks;
    format!("{node} is sent what it missed of {chunks} chunks, {left} of {total} left{time}")
}

impl VolumeRow {
    /// None of an answer without the volume.
    pub fn of(status: &v1::VolumeStatus) -> Option<Self> {
        let volume = status.volume.as_ref()?;
        Some(Self {
            name: volume.name.clone(),
            number: volume.number,
            size_bytes: volume.size_bytes,
            disk_use: status.r#use.as_ref().map(DiskUse::of),
            state: state(volume),
            checksums: volume.checksums,
            origin: origin(volume),
            portals: volume.portals.iter().map(|node| uuid_text(node)).collect(),
            chunks: status.chunks,
            degraded_chunks: status.degraded_chunks,
            lacking_copies: status.lacking_copies,
            lacking_bytes: status.lacking_bytes,
            lacking_left_seconds: seconds(status.lacking_left_ms),
            waiting_chunks: status.waiting_chunks,
            roomless_chunks: status.roomless_chunks,
            placeless_chunks: status.placeless_chunks,
            crowded_chunks: status.crowded_chunks,
            few_racks: status.few_racks,
            lost_blocks: status.lost_blocks,
            differing_blocks: status.differing_blocks,
            lost_of_snapshots: status.lost_of_snapshots.iter().map(LostOfSnapshot::of).collect(),
            damaged_blocks: status.damaged_blocks,
            repaired_blocks: status.repaired_blocks,
            returning: returning(&status.resyncs),
            unplaced: status.unplaced.as_ref().map(UnplacedView::of),
        })
    }

    /// Nodes that are to export it and are not heard of, each with what is known of it. Their targets may still serve.
    pub fn lost_portals(&self, nodes: &[NodeRow]) -> Vec<(&str, &'static str)> {
        if self.state != "ready" {
            return Vec::new();
        }
        let lost = |portal: &String| match nodes.iter().find(|row| row.node == *portal) {
            Some(row) if row.alive => None,
            Some(_) => Some("has not been heard of"),
            None => Some("is none of the cluster's any more"),
        };
        let portals = self.portals.iter();
        portals
            .filter_map(|portal| Some((portal.as_str(), lost(portal)?)))
            .collect()
    }

    /// How it is, for people.
    pub fn describe_health(&self) -> String {
        let health = match (self.state, self.waiting_chunks, self.degraded_chunks) {
            ("deleting", ..) => "its copies are being removed".to_owned(),
            ("ready", 0, 0) => "all copies in sync".to_owned(),
            ("ready", 0, degraded) => {
                let time = about_left(self.lacking_left_seconds);
                format!("{degraded} chunks lack a copy{time}")
            }
            ("ready", waiting, _) => format!("writes wait for copies in {waiting} chunks"),
            _ if self.unplaced.is_some() => "it waits for room".to_owned(),
            _ => "its copies are being made".to_owned(),
        };
        let growth = self.unplaced.iter().filter(|_| self.state == "ready");
        let growth = growth.map(|_| "its growth waits for room".to_owned());
        let returning = self.returning.iter().map(describe_returning);
        let crowded = match self.crowded_chunks {
            0 => None,
            count => Some(format!(
                "{count} chunks have more copies in one rack than need be"
            )),
        };
        let roomless = match self.roomless_chunks {
            0 => None,
            count => Some(format!("{count} chunks have no room for more")),
        };
        let lost = match self.lost_blocks {
            0 => None,
            count => Some(format!("{count} blocks are lost")),
        };
        let differing = match self.differing_blocks {
            0 => None,
            count => Some(format!("copies differ in {count} blocks")),
        };
        let lost_of_snapshots = match self.lost_of_snapshots.len() {
            0 => None,
            1 => Some("a snapshot has lost blocks".to_owned()),
            count => Some(format!("{count} snapshots have lost blocks")),
        };
        let exported = match self.portals.len() {
            0 => None,
            1 => Some("exported by 1 node".to_owned()),
            count => Some(format!("exported by {count} nodes")),
        };
        std::iter::once(health)
            .chain(growth)
            .chain(roomless)
            .chain(lost)
            .chain(differing)
            .chain(lost_of_snapshots)
            .chain(crowded)
            .chain(exported)
            .chain(returning)
            .collect::<Vec<_>>()
            .join("; ")
    }
}
