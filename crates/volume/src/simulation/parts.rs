//! Nodes that ask each other in several parts, since a part has a chunk or two, and nodes of a release that knows no parts among them.
//!
//! In every other seed each node is of this release and of the one before in turn, from one life to the next. One of the release
//! before does not look at parts: what it hears has lost them, and so has what it says.

use std::time::Duration;

use super::kinds::{Kinds, Recipe};
use super::world::World;
use crate::message::Message;
use crate::settings::Settings;

/// What nodes have said of parts.
#[derive(Default)]
pub(super) struct PartsSeen {
    /// Lists of parts beside the first.
    pub(super) lists: u64,
    /// Parts that were no more.
    pub(super) gone: u64,
    /// Lists that went to a node of the release before.
    pub(super) before: u64,
}

impl Recipe {
    pub(super) fn settings(&self) -> Settings {
        let mut settings = Settings {
            idle_flush_after: Duration::from_millis(300),
            reconcile_blocks: 2,
            reconcile_depth: 2,
            ..Settings::default()
        };
        if self.kinds.parts {
            settings.list_chunks_max = 1 + (self.seed / 2 % 2) as usize;
        }
        settings
    }
}

impl World {
    /// One in which nodes ask in several parts.
    pub(super) fn with_parts(seed: u64) -> Self {
        let parts = true;
        let kinds = Kinds {
            parts,
            ..Kinds::default()
        };
        Self::make(seed, None, None, kinds)
    }

    fn is_of_the_release_before(&self, node: usize) -> bool {
        let Recipe { seed, kinds, .. } = self.recipe;
        kinds.parts && seed % 2 == 1 && (node as u64 + self.nodes[node].life) % 2 == 1
    }

    /// What is sent, as a node of its release says it.
    pub(super) fn said_by(&mut self, node: usize, mut message: Message) -> Message {
        match &mut message {
            Message::Enroll { part, entries, .. } if *part > 0 => match entries.is_empty() {
                true => self.parts.gone += 1,
                false => self.parts.lists += 1,
            },
            Message::Beacon { part, .. } if self.is_of_the_release_before(node) => *part = None,
            _ => {}
        }
        message
    }

    /// What arrives, as a node of its release hears it.
    pub(super) fn heard_by(&mut self, node: usize, mut message: Message) -> Message {
        if self.is_of_the_release_before(node) {
            match &mut message {
                Message::Enroll { part, .. } => {
                    self.parts.before += 1;
                    *part = 0;
                }
                Message::Beacon { part, .. } => *part = None,
                _ => {}
            }
        }
        message
    }
}
