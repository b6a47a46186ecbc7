//! What a volume owns of disks, all copies together.

use foundation::ByteCount;
use proto::v1;

/// What a volume owns of disks, all copies together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DiskUse {
    /// What its chunks own.
    pub used_bytes: u64,
    /// What its snapshots own besides.
    pub held_bytes: u64,
}

impl DiskUse {
    /// As an answer has it.
    pub fn of(said: &v1::VolumeUse) -> Self {
        Self {
            used_bytes: said.used_bytes,
            held_bytes: said.held_bytes,
        }
    }

    /// A volume's of many; one that is not among them owns nothing.
    pub fn among(uses: &v1::VolumeUses, volume: u32) -> Self {
        let said = uses.volumes.iter().find(|said| said.volume == volume);
        said.map(Self::of).unwrap_or_default()
    }

    fn total(self) -> ByteCount {
        ByteCount(self.used_bytes.saturating_add(self.held_bytes))
    }

    /// A paragraph of `volume show`.
    pub fn describe(self) -> String {
        let held = match self.held_bytes {
            0 => String::new(),
            held => format!(", {} of it for snapshots alone", ByteCount(held)),
        };
        format!("{} on disks, all copies together{held}\n\n", self.total())
    }
}

/// A cell of a table.
pub fn on_disks(disk_use: Option<DiskUse>) -> String {
    disk_use.map_or_else(|| "-".to_owned(), |disk_use| disk_use.total().to_string())
}
