//! The configuration of one chunk, as the masters' store holds it and as it travels in a Seal.

use foundation::Epoch;
use thiserror::Error;

use crate::format::{FormatError, Reader, Writer};
use crate::identity::{Incarnation, NodeId};

/// That of the configuration with which a chunk is made.
pub(crate) const FIRST_EPOCH: Epoch = Epoch(1);

/// The most copies a chunk can have.
pub const COPIES_MAX: usize = 16;

/// One in-sync copy: the node that holds it and the incarnation of its target that is in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// The node. A chunk's copies are on different nodes, so it names the copy, too.
    pub node: NodeId,
    /// The life of that node's target which is in sync.
    pub incarnation: Incarnation,
}

/// Which copies of a chunk are in sync and which one orders its writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChunkConfig {
    /// The version of this configuration; committed ones grow by one.
    pub epoch: Epoch,
    /// The member that orders writes.
    pub write_node: NodeId,
    /// The in-sync copies, sorted by node.
    pub members: Vec<Membership>,
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigurationError {
    /// No member, or more than [`COPIES_MAX`].
    #[error("a configuration has {count} members, it must have 1 to {COPIES_MAX}")]
    MemberCount {
        /// Members given.
        count: usize,
    },
    /// Members are not in ascending order of different nodes.
    #[error("the members of a configuration are not different nodes in ascending order")]
    MemberOrder,
    /// The write node holds no in-sync copy.
    #[error("write node {write_node} is not a member of epoch {epoch}; name one of the members")]
    WriteNodeOutside {
        /// The write node given.
        write_node: NodeId,
        /// The epoch given.
        epoch: Epoch,
    },
    /// Epoch 0 stands for "none yet".
    #[error("epoch 0 is not a configuration; the first one is 1")]
    NoEpoch,
}

impl ChunkConfig {
    /// Checks what every configuration must have.
    pub fn validate(&self) -> Result<(), ConfigurationError> {
        let count = self.members.len();
        if count == 0 || count > COPIES_MAX {
            return Err(ConfigurationError::MemberCount { count });
        }
        if !self.members.is_sorted_by(|a, b| a.node < b.node) {
            return Err(ConfigurationError::MemberOrder);
        }
        if self.index_of(self.write_node).is_none() {
            return Err(ConfigurationError::WriteNodeOutside {
                write_node: self.write_node,
                epoch: self.epoch,
            });
        }
        if self.epoch == Epoch(0) {
            return Err(ConfigurationError::NoEpoch);
        }
        Ok(())
    }

    /// The position of `node` among the members.
    pub fn index_of(&self, node: NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == node)
    }

    /// Whether this incarnation of this node is in sync.
    pub fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.members
            .iter()
            .any(|member| member.node == node && member.incarnation == incarnation)
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.epoch.0);
        out.u128(self.write_node.0);
        out.count(self.members.len());
        for member in &self.members {
            out.u128(member.node.0);
            out.u64(member.incarnation.0);
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let epoch = Epoch(reader.u64()?);
        let write_node = NodeId(reader.u128()?);
        let count = reader.count(24)?;
        let invalid = |field, value| FormatError::Invalid {
            what: "chunk configuration",
            field,
            value,
        };
        if count > COPIES_MAX {
            return Err(invalid("member count", count as u64));
        }
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            members.push(Membership {
                node: NodeId(reader.u128()?),
                incarnation: Incarnation(reader.u64()?),
            });
        }
        let config = Self {
            epoch,
            write_node,
            members,
        };
        config
            .validate()
            .map_err(|_| invalid("members or write node", epoch.0))?;
        Ok(config)
    }
}
