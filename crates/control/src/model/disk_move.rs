//! A copy on its way to another disk of its node.

use foundation::ByteCount;

use crate::identity::{DiskId, NodeId};
use crate::model::{Chunk, Copy};
use crate::record::{Reader, Record, Writer};

/// A copy that is being moved to another disk of its node. Its place says where it comes from until it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskMove {
    /// The node.
    pub node: NodeId,
    /// The disk that its place names.
    pub from: DiskId,
    /// The disk that gets it.
    pub to: DiskId,
    /// What is promised to it there.
    pub bytes: ByteCount,
}

impl DiskMove {
    /// Whether the chunk still has the place that the copy is to leave.
    pub(crate) fn is_of(&self, chunk: &Chunk) -> bool {
        let is_it = |copy: &Copy| (copy.node, copy.disk) == (self.node, self.from);
        chunk.copies.iter().any(is_it)
    }
}

impl Record for DiskMove {
    const KIND: u8 = 20;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.uuid(self.node.0);
        out.uuid(self.from.0);
        out.uuid(self.to.0);
        out.u64(self.bytes.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            node: NodeId(reader.uuid()?),
            from: DiskId(reader.uuid()?),
            to: DiskId(reader.uuid()?),
            bytes: ByteCount(reader.u64()?),
        })
    }
}
