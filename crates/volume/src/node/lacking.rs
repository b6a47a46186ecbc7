//! Chunks whose writes this life is to order, and of which it has no copy: its disk did not come back.
//!
//! When all lives of a chunk's members have ended, as after a loss of power, the masters begin it anew with the lives that follow. They name
//! lives and no disks. Of another member that has no copy its write node hears so and leaves it out; of the write node itself
//! nobody does, and nothing would serve the chunk.

use foundation::Instant;

use super::NodeCore;
use crate::configuration::{ChunkConfig, FIRST_EPOCH};
use crate::identity::ChunkId;
use crate::output::{Output, Reason};

/// What is asked for in the place of a configuration.
#[derive(Debug)]
pub(super) struct Successor {
    replaces: ChunkConfig,
    again_at: Instant,
}

impl NodeCore {
    /// A configuration of a chunk that has no copy here.
    pub(super) fn told_without_copy(&mut self, now: Instant, chunk: ChunkId, config: &ChunkConfig) {
        let known = self.lacking.get(&chunk).map(|known| known.replaces.epoch);
        if known.is_some_and(|known| config.epoch <= known) {
            return;
        }
        self.lacking.remove(&chunk);
        // The copies of a new chunk may not be made yet.
        let leads = config.write_node == self.me && config.has(self.me, self.incarnation);
        if config.epoch == FIRST_EPOCH || !leads {
            return;
        }
        let successor = Successor {
            replaces: config.clone(),
            again_at: now,
        };
        self.lacking.insert(chunk, successor);
        self.ask_for_successors(now);
    }

    /// Asks for the same members but this one, and again until a newer configuration is known. Whether they are enough the masters know.
    pub(super) fn ask_for_successors(&mut self, now: Instant) {
        let again_at = now + self.settings.suspect_after * 4;
        let mut asked = Vec::new();
        for (chunk, successor) in &mut self.lacking {
            if successor.again_at <= now {
                successor.again_at = again_at;
                asked.push((*chunk, successor.replaces.clone()));
            }
        }
        for (chunk, replaces) in asked {
            self.due.insert((again_at, chunk));
            let expected = replaces.epoch;
            let mut config = replaces;
            config.members.retain(|member| member.node != self.me);
            let Some(next) = config.members.first() else {
                continue;
            };
            config.write_node = next.node;
            config.epoch = expected.next();
            let reason = Reason::NoCopyHere;
            self.put_out(
                chunk,
                Output::Propose {
                    expected,
                    config,
                    reason,
                },
            );
        }
    }
}
