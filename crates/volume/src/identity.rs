//! The numbers by which nodes, chunks, writes and requests are named, each its own type.

use std::fmt;

/// A node of the cluster: its UUID as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u128);

/// One life of one target process. Greater is later; 0 is never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// The cluster's UUID as a number. Whatever names another cluster is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u128);

/// A volume's number in its cluster, which is also its namespace identifier in peer subsystems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeNumber(pub u32);

/// A chunk's index in its volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkIndex(pub u32);

/// One chunk of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// The volume.
    pub volume: VolumeNumber,
    /// The chunk within it.
    pub index: ChunkIndex,
}

impl ChunkId {
    /// All chunks that a volume could have, for maps in their order.
    pub fn all_of(volume: VolumeNumber) -> std::ops::RangeInclusive<Self> {
        let chunk = |index| Self {
            volume,
            index: ChunkIndex(index),
        };
        chunk(0)..=chunk(u32::MAX)
    }
}

/// The place of a write in its chunk's order. 0 stands before every write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// A host as the replication knows it: a portal's host or a native client, numbered by the masters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);

impl HostId {
    /// Set in the numbers of hosts that reach a volume through portals (decision 0068), and in no others.
    const THROUGH_PORTALS: u64 = 1 << 63;

    /// The number of a host of this digest that reaches a volume through portals.
    pub fn through_portals(digest: u64) -> Self {
        Self(digest | Self::THROUGH_PORTALS)
    }

    /// The number of a native client of this number.
    pub fn native(number: u64) -> Self {
        Self(number & !Self::THROUGH_PORTALS)
    }

    /// Whether the host's writes come through portals: then the number of a session is that of a claim, and counts only
    /// as long as no other portal has claimed the chunk for the host.
    pub fn is_through_portals(self) -> bool {
        self.0 & Self::THROUGH_PORTALS != 0
    }
}

/// One session of one host. A write of an older session than one already seen is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// The host.
    pub host: HostId,
    /// Grows with every session the host opens, across all its connections.
    pub number: u64,
}

/// The number of a volume's write lease; 0 on volumes that are not leased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterToken(pub u64);

/// The number of a join within an epoch; 0 is "of no join", as members carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinNumber(pub u32);

/// Names one attempt at a snapshot of a volume; never used again, also not for the next attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub u64);

/// Follows one request through every process it touches; 0 is "not traced".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub u64);

/// The caller's name for payload bytes. The core never sees the bytes; it says where they go,
/// and gives each token handed to it back exactly once ([`crate::Output::Release`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataToken(pub u64);

/// The caller's name for a client request. Completed exactly once ([`crate::Output::Complete`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a local disk operation from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoToken(pub u64);

/// Numbers the changes of a copy's record in the order in which they must become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersistToken(pub u64);

/// Blocks of one chunk, in the volume's block size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRange {
    /// The first block, counted from the chunk's beginning.
    pub start: u32,
    /// How many blocks.
    pub count: u32,
}

impl BlockRange {
    /// The block after the last one.
    pub fn end(self) -> u64 {
        u64::from(self.start) + u64::from(self.count)
    }

    /// Whether any block is in both ranges.
    pub fn overlaps(self, other: BlockRange) -> bool {
        u64::from(self.start) < other.end() && u64::from(other.start) < self.end()
    }

    /// The smallest range that covers this one and starts and ends at multiples of `unit` blocks.
    /// The end saturates at the greatest block number.
    pub(crate) fn rounded_to(self, unit: u32) -> BlockRange {
        let start = self.start - self.start % unit;
        let end = self.end().next_multiple_of(u64::from(unit));
        let count = u32::try_from(end - u64::from(start)).unwrap_or(u32::MAX);
        BlockRange { start, count }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {} of volume {}", self.index.0, self.volume.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        let range = |start, count| BlockRange { start, count };
        assert!(!range(0, 4).overlaps(range(4, 4)));
        assert!(range(0, 5).overlaps(range(4, 4)));
        assert!(range(6, 1).overlaps(range(4, 4)));
        assert_eq!(range(9, 8).rounded_to(8), range(8, 16));
        assert_eq!(range(8, 8).rounded_to(8), range(8, 8));
        assert_eq!(range(7, 2).rounded_to(1), range(7, 2));
    }
}
