//! A cluster at a glance, as callers hear it.

use proto::v1;

use crate::convert::{self, milliseconds};
use crate::damage;
use crate::disks;
use crate::releases;

/// A node.
pub(crate) fn node(node: &control::NodeStatus) -> v1::NodeStatus {
    v1::NodeStatus {
        node: node.view.id.0.to_bytes().to_vec(),
        peer_address: node.view.record.peer_address.clone(),
        incarnation: node.view.record.incarnation.0,
        alive: node.view.is_alive,
        silent_ms: node.silent.map(milliseconds),
        disks: disks::statuses(node),
        draining: node.is_drained,
        draining_copies: node.drained.copies,
        draining_bytes: node.drained.bytes.0,
        draining_left_ms: node.drain_left.map(milliseconds),
        rack: node
            .view
            .record
            .rack
            .as_ref()
            .map_or_else(String::new, ToString::to_string),
        scrub: node.scrub.map(damage::scrub),
        absence: node.absence.map(|absence| v1::Absence {
            copies: absence.copies,
            elsewhere_in_ms: milliseconds(absence.elsewhere_in),
        }),
        releases: node.releases.as_ref().map(releases::to_wire),
    }
}

/// A volume.
pub(crate) fn volume(volume: &control::VolumeStatus) -> v1::VolumeStatus {
    v1::VolumeStatus {
        volume: Some(convert::volume_with_origin(&volume.volume, volume.origin.clone())),
        chunks: volume.chunks,
        degraded_chunks: volume.degraded_chunks,
        waiting_chunks: volume.waiting_chunks,
        placeless_chunks: volume.placeless_chunks,
        roomless_chunks: volume.roomless_chunks,
        resyncs: volume.resyncs.iter().map(convert::resync).collect(),
        crowded_chunks: volume.crowded_chunks,
        few_racks: volume.few_racks,
        lacking_copies: volume.lacking_copies,
        lacking_bytes: volume.lacking.0,
        lacking_left_ms: volume.mend_left.map(milliseconds),
        r#use: volume
            .used
            .map(|used| convert::volume_use(volume.volume.number, used)),
        lost_blocks: volume.damage.lost,
        differing_blocks: volume.damage.differing,
        damaged_blocks: volume.damage.damaged,
        repaired_blocks: volume.damage.repaired,
        lost_of_snapshots: volume.lost_of_snapshots.iter().map(lost_of_snapshot).collect(),
        unplaced: volume.unplaced.clone().map(unplaced),
    }
}

/// Chunks without places.
pub(crate) fn unplaced(control::Unplaced { chunks, why }: control::Unplaced) -> v1::Unplaced {
    v1::Unplaced { chunks, why }
}

fn lost_of_snapshot((name, blocks): &(String, u64)) -> v1::LostOfSnapshot {
    v1::LostOfSnapshot {
        name: name.clone(),
        blocks: *blocks,
    }
}
