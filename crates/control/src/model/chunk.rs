//! One chunk: where its copies are and which of them are in sync.

use foundation::Epoch;

use crate::identity::{DiskId, Incarnation, NodeId};
use crate::record::{Reader, Record, Writer};

/// A copy of a chunk, placed on a disk of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Copy {
    /// The node. Copies of a chunk are on different nodes, so it names the copy, too.
    pub node: NodeId,
    /// The disk.
    pub disk: DiskId,
    /// The life of the node's target that is in sync; none when the copy is not.
    pub incarnation: Option<Incarnation>,
}

/// The committed configuration of a chunk and the places of its copies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// Grows by one with each change of the configuration.
    pub epoch: Epoch,
    /// The member that orders writes.
    pub write_node: NodeId,
    /// Every copy, in ascending order of nodes.
    pub copies: Vec<Copy>,
    /// Every incarnation that the configuration before this one named had provably ended.
    pub recovery: bool,
}

impl Chunk {
    /// The in-sync copies.
    pub fn members(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.copies
            .iter()
            .filter_map(|copy| Some((copy.node, copy.incarnation?)))
    }

    /// How many copies are in sync.
    pub fn member_count(&self) -> usize {
        self.members().count()
    }

    /// Whether this life of this node's target is in sync.
    pub fn has_member(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.members().any(|member| member == (node, incarnation))
    }

    /// Whether a copy is placed on the node.
    pub fn has_copy_on(&self, node: NodeId) -> bool {
        self.copies.iter().any(|copy| copy.node == node)
    }

    /// Whether it can be a configuration at all: an epoch, different nodes in order, and a write
    /// node that is a member.
    pub fn is_consistent(&self) -> bool {
        self.epoch > Epoch(0)
            && self.copies.is_sorted_by(|a, b| a.node < b.node)
            && self
                .copies
                .iter()
                .all(|copy| copy.incarnation != Some(Incarnation(0)))
            && self.members().any(|(node, _)| node == self.write_node)
    }
}

/// A copy that is being moved to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moving {
    /// The node that has it, until the new copy is in sync.
    pub from: NodeId,
    /// The node that gets it.
    pub to: NodeId,
    /// Somebody asked for it; otherwise the masters even out the nodes.
    pub by_command: bool,
}

impl Record for Moving {
    const KIND: u8 = 9;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.uuid(self.from.0);
        out.uuid(self.to.0);
        out.u8(u8::from(self.by_command));
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            from: NodeId(reader.uuid()?),
            to: NodeId(reader.uuid()?),
            by_command: match reader.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            },
        })
    }
}

impl Record for Chunk {
    const KIND: u8 = 4;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        assert!(
            self.is_consistent(),
            "an impossible configuration was to be stored: {self:?}"
        );
        out.u64(self.epoch.0);
        out.uuid(self.write_node.0);
        out.u8(u8::from(self.recovery));
        out.count(self.copies.len());
        for copy in &self.copies {
            out.uuid(copy.node.0);
            out.uuid(copy.disk.0);
            out.u64(copy.incarnation.map_or(0, |incarnation| incarnation.0));
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let epoch = Epoch(reader.u64()?);
        let write_node = NodeId(reader.uuid()?);
        let recovery = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let copies = reader.list(40, |reader| {
            Some(Copy {
                node: NodeId(reader.uuid()?),
                disk: DiskId(reader.uuid()?),
                incarnation: match reader.u64()? {
                    0 => None,
                    number => Some(Incarnation(number)),
                },
            })
        })?;
        let chunk = Self {
            epoch,
            write_node,
            copies,
            recovery,
        };
        chunk.is_consistent().then_some(chunk)
    }
}
