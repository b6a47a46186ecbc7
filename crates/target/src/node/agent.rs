//! The node engine that supervises this target: who hears of news, what it knows, and how chunks are named to it.

use agentlink::{Chunk, Configuration, FromTarget};
use foundation::Epoch;
use reactor::sync::Sender;
use volume::{ChunkConfig, ChunkId, ChunkIndex, Incarnation, Membership, NodeId, VolumeNumber};

use super::Node;

impl Node {
    /// Where proposals and news go; replaces the agent before.
    pub fn set_agent(&self, sender: Sender<FromTarget>) {
        *self.agent.borrow_mut() = Some(sender);
        self.agent_kinds.set(0);
    }

    /// How many kinds of frames the agent knows, as it says.
    pub(crate) fn set_agent_kinds(&self, kinds: u32) {
        self.agent_kinds.set(kinds);
    }

    /// Whether the agent has said that it knows no reservations: it is of a release before.
    pub(crate) fn agent_lacks_reservations(&self) -> bool {
        (1..FromTarget::KINDS_OF_RESERVATIONS).contains(&self.agent_kinds.get())
    }

    pub(crate) fn tell(&self, message: FromTarget) {
        if let Some(agent) = &*self.agent.borrow()
            && agent.try_send(message).is_err()
        {
            tracing::warn!("the node agent does not take our messages");
        }
    }
}

pub(super) fn to_chunk(chunk: ChunkId) -> Chunk {
    Chunk {
        volume: chunk.volume.0,
        index: chunk.index.0,
    }
}

/// The volume crate's name of a chunk.
pub fn from_chunk(chunk: Chunk) -> ChunkId {
    ChunkId {
        volume: VolumeNumber(chunk.volume),
        index: ChunkIndex(chunk.index),
    }
}

pub(super) fn from_config(config: &ChunkConfig) -> Configuration {
    let members = config
        .members
        .iter()
        .map(|member| (member.node.0, member.incarnation.0))
        .collect();
    Configuration {
        epoch: config.epoch.0,
        write_node: config.write_node.0,
        members,
    }
}

/// The volume crate's form of a configuration.
pub fn to_config(configuration: &Configuration) -> ChunkConfig {
    let member = |&(node, incarnation): &(u128, u64)| Membership {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
    };
    ChunkConfig {
        epoch: Epoch(configuration.epoch),
        write_node: NodeId(configuration.write_node),
        members: configuration.members.iter().map(member).collect(),
    }
}
