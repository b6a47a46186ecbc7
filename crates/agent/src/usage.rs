//! What a node's disks are used for, as its target says, on its way to the masters.

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
}

impl Usage {
    pub(crate) fn new() -> Self {
        Self {
            held: BTreeMap::new(),
            volumes: None,
            tell_at: Instant::now(),
        }
    }

    pub(crate) fn held(&mut self, held: Vec<(u128, u64)>) {
        self.held = held.into_iter().collect();
    }

    pub(crate) fn volumes(&mut self, volumes: Vec<(u32, u64, u64)>) {
        self.volumes = Some(volumes);
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
        let volume_use = |&(volume, used_bytes, held_bytes): &(u32, u64, u64)| v1::VolumeUse {
            volume,
            used_bytes,
            held_bytes,
        };
        Some(v1::VolumeUses {
            volumes: volumes.iter().map(volume_use).collect(),
        })
    }
}
