//! What a node's disks are used for, and what is wrong with the blocks there, as its target says, on its way to the masters.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::v1;
use tokio::time::Instant;

use crate::wire::to_wire;

/// How often the masters hear what volumes use: one that has just begun to lead knows nothing of it.
const INTERVAL: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Usage {
    /// What snapshots hold of each disk; nothing of a target that does not say it, or not yet.
    held: BTreeMap<u128, u64>,
    /// By volume, what its chunks own and what its snapshots do; none of a target that does not say it, or not yet.
    volumes: Option<Vec<(u32, u64, u64)>>,
    tell_at: Instant,
    /// What checksums have shown; none of a target that does not say it, or not yet.
    damage: Option<agentlink::Damage>,
    is_damage_due: bool,
}

impl Usage {
    pub(crate) fn new() -> Self {
        Self {
            held: BTreeMap::new(),
            volumes: None,
            tell_at: Instant::now(),
            damage: None,
            is_damage_due: false,
        }
    }

    pub(crate) fn held(&mut self, held: Vec<(u128, u64)>) {
        self.held = held.into_iter().collect();
    }

    pub(crate) fn volumes(&mut self, volumes: Vec<(u32, u64, u64)>) {
        self.volumes = Some(volumes);
    }

    pub(crate) fn damaged(&mut self, damage: agentlink::Damage) {
        let before = self.damage.as_ref().map(|before| &before.copies);
        // How far the comparing is changes all the time, and nobody waits for it.
        self.is_damage_due |= before != Some(&damage.copies);
        self.damage = Some(damage);
    }

    /// The disks, with what snapshots hold of each.
    pub(crate) fn disks(&self, disks: &[agentlink::Disk]) -> impl Iterator<Item = v1::Disk> {
        disks.iter().map(|disk| v1::Disk {
            held_bytes: self.held.get(&disk.uuid).copied(),
            ..to_wire(disk)
        })
    }

    /// What volumes use, if it is time to say it.
    pub(crate) fn due(&mut self) -> Option<v1::VolumeUses> {
        let volumes = self.volumes.as_ref().filter(|_| Instant::now() >= self.tell_at)?;
        self.tell_at = Instant::now() + INTERVAL;
        // It goes with the same heartbeat: one that says more costs a master more.
        self.is_damage_due = true;
        let volume_use = |&(volume, used_bytes, held_bytes): &(u32, u64, u64)| v1::VolumeUse {
            volume,
            used_bytes,
            held_bytes,
        };
        Some(v1::VolumeUses {
            volumes: volumes.iter().map(volume_use).collect(),
        })
    }

    /// What checksums have shown, if that is news, or [`Usage::due`] has just had something to say.
    pub(crate) fn damage_due(&mut self) -> Option<v1::Damage> {
        let damage = self.damage.as_ref().filter(|_| self.is_damage_due)?;
        self.is_damage_due = false;
        let of_copy = |copy: &agentlink::CopyDamage| v1::CopyDamage {
            volume: copy.chunk.volume,
            index: copy.chunk.index,
            damaged_blocks: copy.damaged,
            repaired_blocks: copy.repaired,
            lost_blocks: copy.lost,
        };
        Some(v1::Damage {
            copies: damage.copies.iter().map(of_copy).collect(),
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
        };
        assert_eq!(
            (&told.copies[..], told.scrub.unwrap().compared_blocks),
            (&[copy][..], 9)
        );
        assert_eq!(usage.damage_due(), None);
        usage.volumes(vec![(3, 4096, 0)]);
        assert!(usage.due().is_some() && usage.damage_due().is_some());
        assert!(usage.due().is_none() && usage.damage_due().is_none());
    }
}
