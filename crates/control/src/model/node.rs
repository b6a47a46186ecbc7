//! The cluster's identity, its nodes and their disks.

use foundation::ByteCount;

use crate::identity::{ClusterId, DiskId, Incarnation};
use crate::racks::Rack;
use crate::record::{Reader, Record, Writer};

/// The first record of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterRecord {
    /// The cluster's identity.
    pub id: ClusterId,
    /// What the store has that a master must know to lead, as bits; [`FEATURES_KNOWN`] are those that this release knows. A
    /// master sets a bit with the first record that an older one would do harm to by not knowing it.
    pub features: u64,
}

/// A bit of [`ClusterRecord::features`]: there is, or was a moment ago, a clone of a snapshot. A master that does not know it would
/// delete the snapshot under the clone.
pub(crate) const FEATURE_CLONES: u64 = 1;
/// A bit of [`ClusterRecord::features`]: hosts of an exported volume have reserved it once. A master that does not know it would give
/// a native writer a token while a host holds the volume.
pub(crate) const FEATURE_RESERVATIONS: u64 = 2;
/// A bit of [`ClusterRecord::features`]: a node has a rack. A master that does not know it cannot read that node's record, and would
/// lead without being able to do anything.
pub(crate) const FEATURE_RACKS: u64 = 4;
/// A bit of [`ClusterRecord::features`]: the store is older than what its nodes have done. A master that does not know it would give
/// epochs, tokens and numbers a second time.
pub(crate) const FEATURE_RESTORED: u64 = 8;
/// A bit of [`ClusterRecord::features`]: a volume's writes are durable before they are acknowledged. A master that does not know it cannot
/// read that volume's record, and would let nodes in that do not do so.
pub(crate) const FEATURE_SYNC_WRITES: u64 = 16;
/// The bits of [`ClusterRecord::features`] that this release knows.
pub(crate) const FEATURES_KNOWN: u64 =
    FEATURE_CLONES | FEATURE_RESERVATIONS | FEATURE_RACKS | FEATURE_RESTORED | FEATURE_SYNC_WRITES;

/// A disk as its node reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Disk {
    /// The disk.
    pub id: DiskId,
    /// Bytes usable for copies.
    pub capacity: ByteCount,
    /// Bytes in use, as the node counts them. Not kept in the store.
    pub used: ByteCount,
    /// Of these, bytes that snapshots hold; none from a node that has not said it. Not kept in the store.
    pub held: Option<ByteCount>,
}

/// A node as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Where peers and native clients reach its target.
    pub peer_address: String,
    /// The latest life of its target.
    pub incarnation: Incarnation,
    /// Every life up to this one has provably ended.
    pub ended_through: Incarnation,
    /// Its disks, in ascending order.
    pub disks: Vec<Disk>,
    /// What it is lost together with; none for nothing but itself. Records of before there were racks have none.
    pub rack: Option<Rack>,
}

impl Node {
    /// Whether it names this disk.
    pub(crate) fn has_disk(&self, disk: DiskId) -> bool {
        self.disks.iter().any(|known| known.id == disk)
    }
}

/// A single number: bytes allocated on a disk, a volume's number under its name, the next volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Number(pub(crate) u64);

impl Record for ClusterRecord {
    const KIND: u8 = 1;
    const VERSION: u8 = 2;

    /// Releases that know no features refuse version 2, and with it the store.
    fn version(&self) -> u8 {
        if self.features == 0 { 1 } else { 2 }
    }

    fn write(&self, out: &mut Writer) {
        out.uuid(self.id.0);
        if self.version() >= 2 {
            out.u64(self.features);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let id = ClusterId(reader.uuid()?);
        let features = if reader.is_empty() { 0 } else { reader.u64()? };
        (id != ClusterId::default()).then_some(Self { id, features })
    }
}

impl Record for Node {
    const KIND: u8 = 2;
    const VERSION: u8 = 2;

    /// What an earlier release can read is written so that it can.
    fn version(&self) -> u8 {
        if self.rack.is_none() { 1 } else { 2 }
    }

    fn write(&self, out: &mut Writer) {
        out.text(&self.peer_address);
        out.u64(self.incarnation.0);
        out.u64(self.ended_through.0);
        out.count(self.disks.len());
        for disk in &self.disks {
            out.uuid(disk.id.0);
            out.u64(disk.capacity.0);
        }
        if let Some(rack) = &self.rack {
            out.text(rack.as_str());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            peer_address: reader.text()?,
            incarnation: Incarnation(reader.u64()?),
            ended_through: Incarnation(reader.u64()?),
            disks: reader.list(24, |reader| {
                Some(Disk {
                    id: DiskId(reader.uuid()?),
                    capacity: ByteCount(reader.u64()?),
                    used: ByteCount(0),
                    held: None,
                })
            })?,
            rack: match reader.is_empty() {
                true => None,
                false => Some(Rack::new(&reader.text()?).ok()?),
            },
        })
    }
}

impl Record for Number {
    const KIND: u8 = 5;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.u64(self.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u64().map(Self)
    }
}
