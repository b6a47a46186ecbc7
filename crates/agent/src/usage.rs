//! What a node's disks are used for, what is wrong with the blocks there, and which release its target is, as that says, on its way to
//! the masters.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use proto::v1;
use tokio::time::Instant;

use crate::wire::to_wire;

/// How often the masters hear what volumes use: one that has just begun to lead knows nothing of it.
const INTERVAL: Duration = Duration::from_secs(5);
/// For so long nothing is said of releases until the target has said its own: one of a release before does not.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct Usage {
    /// What snapshots hold of each disk; nothing of a target that does not say it, or not yet.
    held: BTreeMap<u128, u64>,
    /// By volume, what its chunks own and what its snapshots do; none of a target that does not say it, or not yet.
    volumes: Option<Vec<(u32, u64, u64)>>,
    tell_at: Instant,
    /// What checksums have shown; none of a target that does not say it, or not yet.
    damage: Option<agentlink::Damage>,
    /// Of copies of snapshots.
    losses: Vec<agentlink::SnapshotLoss>,
    /// Blocks that copies hold differently, by chunk.
    differing: BTreeMap<(u32, u32), u32>,
    is_damage_due: bool,
    /// Which release the target is; none of one that does not say it, or not yet.
    release: Option<String>,
    release_until: Instant,
    is_release_due: bool,
}

impl Usage {
    pub(crate) fn new() -> Self {
        Self {
            held: BTreeMap::new(),
            volumes: None,
            tell_at: Instant::now(),
            damage: None,
            losses: Vec::new(),
            differing: BTreeMap::new(),
            is_damage_due: false,
            release: None,
            release_until: Instant::now() + RELEASE_WITHIN,
            is_release_due: false,
        }
    }

    pub(crate) fn held(&mut self, held: Vec<(u128, u64)>) {
        self.held = held.into_iter().collect();
    }

    pub(crate) fn volumes(&mut self, volumes: Vec<(u32, u64, u64)>) {
        if self.volumes.replace(volumes).is_none() {
            self.tell_at = Instant::now();
        }
    }

    pub(crate) fn release(&mut self, release: String) {
        self.release = Some(release);
        self.is_release_due = true;
    }

    pub(crate) fn damaged(&mut self, damage: agentlink::Damage) {
        let before = self.damage.as_ref().map(|before| &before.copies);
        // How far the comparing is changes all the time, and nobody waits for it.
        self.is_damage_due |= before != Some(&damage.copies);
        self.damage = Some(damage);
    }

    pub(crate) fn snapshots_lost(&mut self, losses: Vec<agentlink::SnapshotLoss>) {
        self.is_damage_due |= self.losses != losses;
        self.losses = losses;
    }

    pub(crate) fn copies_differ(&mut self, differing: Vec<(agentlink::Chunk, u32)>) {
        let of_chunk = |(chunk, blocks): (agentlink::Chunk, u32)| ((chunk.volume, chunk.index), blocks);
        let differing = differing.into_iter().map(of_chunk).collect();
        self.is_damage_due |= self.differing != differing;
        self.differing = differing;
    }

    /// The disks, with what snapshots hold of each.
    pub(crate) fn disks(&self, disks: &[agentlink::Disk]) -> impl Iterator<Item = v1::Disk> {
        disks.iter().map(|disk| v1::Disk {
            held_bytes: self.held.get(&disk.uuid).copied(),
            ..to_wire(disk)
        })
    }

    /// What volumes use, if it is time to say it and there is something to say.
    pub(crate) fn due(&mut self) -> Option<v1::VolumeUses> {
        if Instant::now() < self.tell_at {
            return None;
        }
        self.tell_at = Instant::now() + INTERVAL;
        // It goes with the same heartbeat: one that says more costs a master more.
        (self.is_damage_due, self.is_release_due) = (true, true);
        let volumes = self.volumes.as_ref()?;
        let volume_use = |&(volume, used_bytes, held_bytes): &(u32, u64, u64)| v1::VolumeUse {
            volume,
            used_bytes,
            held_bytes,
        };
        Some(v1::VolumeUses {
            volumes: volumes.iter().map(volume_use).collect(),
        })
    }

    /// Which releases this engine and its target are, if that is news, or [`Usage::due`] has just had its time.
    pub(crate) fn releases_due(&mut self) -> Option<v1::Releases> {
        if self.release.is_none() && Instant::now() < self.release_until {
            return None;
        }
        std::mem::take(&mut self.is_release_due).then(|| v1::Releases {
            engine: foundation::RELEASE.to_owned(),
            target: self.release.clone().unwrap_or_default(),
        })
    }

    /// What checksums have shown, if that is news, or [`Usage::due`] has just had its time.
    pub(crate) fn damage_due(&mut self) -> Option<v1::Damage> {
        let damage = self.damage.as_ref().filter(|_| self.is_damage_due)?;
        self.is_damage_due = false;
        let mut differing = self.differing.clone();
        let mut of_copy = |copy: &agentlink::CopyDamage| v1::CopyDamage {
            volume: copy.chunk.volume,
            index: copy.chunk.index,
            damaged_blocks: copy.damaged,
            repaired_blocks: copy.repaired,
            lost_blocks: copy.lost,
            differing_blocks: differing
                .remove(&(copy.chunk.volume, copy.chunk.index))
                .unwrap_or(0),
        };
        let mut copies: Vec<_> = damage.copies.iter().map(&mut of_copy).collect();
        copies.extend(
            differing
                .into_iter()
                .map(|((volume, index), differing_blocks)| v1::CopyDamage {
                    volume,
                    index,
                    differing_blocks,
                    ..v1::CopyDamage::default()
                }),
        );
        // Masters take no more than so many.
        copies.sort_by_key(|copy| Reverse((copy.lost_blocks, copy.differing_blocks, copy.damaged_blocks)));
        let of_snapshot = |loss: &agentlink::SnapshotLoss| v1::SnapshotLoss {
            volume: loss.chunk.volume,
            index: loss.chunk.index,
            snapshot: loss.snapshot,
            lost_blocks: loss.lost,
        };
        Some(v1::Damage {
            snapshots: self.losses.iter().map(of_snapshot).collect(),
            copies,
            scrub: Some(v1::Scrub {
                oldest_unix_ms: damage.scrub_oldest_unix_ms,
                compared_blocks: damage.scrubbed_blocks,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_checksums_have_shown_is_told_at_once_and_then_with_what_volumes_use() {
        let mut usage = Usage::new();
        assert_eq!(usage.damage_due(), None, "the target has said nothing");
        let mut damage = agentlink::Damage {
            scrubbed_blocks: 7,
            ..agentlink::Damage::default()
        };
        usage.damaged(damage.clone());
        let told = usage.damage_due().unwrap();
        assert_eq!((told.copies.len(), told.scrub.unwrap().compared_blocks), (0, 7));
        damage.scrubbed_blocks = 9;
        usage.damaged(damage.clone());
        assert_eq!(usage.damage_due(), None, "nothing that is pressing");
        damage.copies.push(agentlink::CopyDamage {
            chunk: agentlink::Chunk { volume: 3, index: 4 },
            damaged: 2,
            repaired: 1,
            lost: 1,
        });
        usage.damaged(damage);
        let told = usage.damage_due().unwrap();
        let copy = v1::CopyDamage {
            volume: 3,
            index: 4,
            damaged_blocks: 2,
            repaired_blocks: 1,
            lost_blocks: 1,
            differing_blocks: 0,
        };
        assert_eq!(
            (&told.copies[..], told.scrub.unwrap().compared_blocks),
            (&[copy][..], 9)
        );
        assert_eq!((usage.damage_due(), told.snapshots), (None, Vec::new()));
        let loss = agentlink::SnapshotLoss {
            chunk: agentlink::Chunk { volume: 3, index: 4 },
            snapshot: 5,
            lost: 6,
        };
        usage.snapshots_lost(vec![loss]);
        let loss = v1::SnapshotLoss {
            volume: 3,
            index: 4,
            snapshot: 5,
            lost_blocks: 6,
        };
        let told = usage.damage_due().unwrap();
        assert_eq!((told.copies.len(), told.snapshots), (1, vec![loss]));
        usage.snapshots_lost(Vec::new());
        assert_eq!(usage.damage_due().unwrap().snapshots, Vec::new());
        let chunk = |index| agentlink::Chunk { volume: 3, index };
        usage.copies_differ(vec![(chunk(4), 7), (chunk(5), 8)]);
        let told = usage.damage_due().unwrap().copies;
        let rows = told
            .iter()
            .map(|copy| (copy.index, copy.damaged_blocks, copy.differing_blocks));
        assert_eq!(rows.collect::<Vec<_>>(), [(4, 2, 7), (5, 0, 8)]);
        usage.copies_differ(vec![(chunk(4), 7), (chunk(5), 8)]);
        assert_eq!(usage.damage_due(), None);
        usage.copies_differ(Vec::new());
        assert_eq!(usage.damage_due().unwrap().copies.len(), 1);
        assert_eq!(usage.damage_due(), None);
        usage.volumes(vec![(3, 4096, 0)]);
        assert!(usage.due().is_some() && usage.damage_due().is_some());
        assert!(usage.due().is_none() && usage.damage_due().is_none());
    }
    #[test]
    fn releases_are_told_at_once_and_then_now_and_then_whatever_else_the_target_says() {
        let releases = |target: &str| {
            Some(v1::Releases {
                engine: foundation::RELEASE.to_owned(),
                target: target.to_owned(),
            })
        };
        let mut usage = Usage::new();
        assert_eq!(usage.due(), None, "the target has said nothing");
        assert_eq!(usage.releases_due(), None, "it may still say its own");
        usage.release("0.9.1".to_owned());
        assert_eq!(usage.releases_due(), releases("0.9.1"));
        assert_eq!(
            (usage.due(), usage.releases_due()),
            (None, None),
            "it is not time"
        );
        // What volumes use is told as soon as it is known.
        usage.volumes(Vec::new());
        assert!(usage.due().is_some());
        assert_eq!(usage.releases_due(), releases("0.9.1"));

        let mut usage = Usage::new();
        assert_eq!((usage.due(), usage.releases_due()), (None, None));
        usage.release_until = Instant::now();
        assert_eq!(usage.releases_due(), releases(""), "the target is one of before");
        assert_eq!(usage.releases_due(), None);
        usage.tell_at = Instant::now();
        assert_eq!((usage.due(), usage.releases_due()), (None, releases("")));
    }
}
