//! What checksums have shown, between the controller's types and those of the wire.

use control::{ChunkId, Damage, Scrub, SnapshotNumber, Told, VolumeNumber};
use proto::v1;

/// What a node says of its copies, and how far it is with comparing them.
pub(crate) fn of(damage: &v1::Damage) -> Told {
    let chunk = |volume, index| ChunkId {
        volume: VolumeNumber(volume),
        index,
    };
    let of_copy = |copy: &v1::CopyDamage| {
        let id = chunk(copy.volume, copy.index);
        let damage = Damage {
            damaged: copy.damaged_blocks,
            repaired: copy.repaired_blocks,
            lost: copy.lost_blocks.into(),
            differing: copy.differing_blocks.into(),
        };
        (id, damage)
    };
    let of_snapshot = |loss: &v1::SnapshotLoss| {
        let of = (chunk(loss.volume, loss.index), SnapshotNumber(loss.snapshot));
        (of, loss.lost_blocks.into())
    };
    let scrub = damage.scrub.unwrap_or_default();
    let scrub = Scrub {
        oldest_unix_ms: scrub.oldest_unix_ms,
        compared_blocks: scrub.compared_blocks,
    };
    Told {
        copies: damage.copies.iter().map(of_copy).collect(),
        snapshots: damage.snapshots.iter().map(of_snapshot).collect(),
        scrub,
    }
}

/// How far a node is, as callers hear it.
pub(crate) fn scrub(scrub: Scrub) -> v1::Scrub {
    v1::Scrub {
        oldest_unix_ms: scrub.oldest_unix_ms,
        compared_blocks: scrub.compared_blocks,
    }
}
