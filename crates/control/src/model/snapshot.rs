//! A snapshot of a volume (`docs/decisions/0081`).

use crate::identity::{SnapshotNumber, VolumeNumber};
use crate::record::{Reader, Record, Writer};

/// Where a snapshot is in its life. It only goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotState {
    /// Its chunks are being cut; nobody reads it.
    Pending,
    /// Every chunk has its part.
    Complete,
    /// Given up or deleted: nodes remove their copies.
    Deleting,
}

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The volume.
    pub volume: VolumeNumber,
    /// Its number, never used again: not for another volume either.
    pub number: SnapshotNumber,
    /// Its name among those of the volume that are not being deleted.
    pub name: String,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// The chunks that the volume had: the first ones of those it has now.
    pub chunks: u32,
    /// When it was begun, in milliseconds of Unix time; only for people.
    pub created_unix_ms: u64,
}

impl Record for Snapshot {
    const KIND: u8 = 10;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.u32(self.volume.0);
        out.u64(self.number.0);
        out.text(&self.name);
        out.u8(match self.state {
            SnapshotState::Pending => 1,
            SnapshotState::Complete => 2,
            SnapshotState::Deleting => 3,
        });
        out.u32(self.chunks);
        out.u64(self.created_unix_ms);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            volume: VolumeNumber(reader.u32()?),
            number: SnapshotNumber(reader.u64()?),
            name: reader.text()?,
            state: match reader.u8()? {
                1 => SnapshotState::Pending,
                2 => SnapshotState::Complete,
                3 => SnapshotState::Deleting,
                _ => return None,
            },
            chunks: reader.u32()?,
            created_unix_ms: reader.u64()?,
        })
    }
}
