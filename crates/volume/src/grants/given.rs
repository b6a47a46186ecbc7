//! What one peer asks of this node, in parts, and what was granted to its lives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foundation::{Epoch, Instant};

use super::LookedAt;
use crate::identity::{ChunkId, Incarnation};
use crate::message::Message;

/// The most chunks for which a life of a peer is granted anything: with chunks of 256 MiB, 256 TiB that both nodes have. What is kept
/// of them takes some 50 bytes each.
pub(super) const CHUNKS_MAX: usize = 1 << 20;
/// The most parts. Eight times as many as so many chunks fill by default.
pub(super) const PARTS_MAX: usize = 1 << 10;

/// The newest list of one part.
#[derive(Debug)]
struct Part {
    list: u32,
    chunks: Vec<ChunkId>,
    /// Those of them that may not be granted as things stand.
    refused: BTreeSet<ChunkId>,
}

/// The lists of the newest life of a peer that has sent any, and until when its lives are granted something.
#[derive(Debug, Default)]
pub(super) struct Given {
    life: Option<Incarnation>,
    parts: BTreeMap<u32, Part>,
    /// By chunk and part. A part may still have what a newer list of another one has, too, until its own next list comes.
    entries: BTreeMap<(ChunkId, u32), Epoch>,
    granted: Vec<(Incarnation, Instant)>,
}

impl Given {
    /// A part's list, from now on; one that has nothing says that the part is no more.
    pub(super) fn enroll(
        &mut self,
        (life, number, list): (Incarnation, u32, u32),
        entries: Vec<(ChunkId, Epoch)>,
        grantable: impl Fn(ChunkId, Epoch) -> bool,
        looked_at: &mut LookedAt,
    ) {
        if self.life.is_none_or(|known| known < life) {
            self.forget_lists();
            self.life = Some(life);
        }
        let is_older = self.parts.get(&number).is_some_and(|part| list <= part.list);
        if self.life != Some(life) || is_older {
            return;
        }
        self.forget(number);
        let entries: BTreeMap<ChunkId, Epoch> = entries.into_iter().collect();
        let is_full = self.parts.len() >= PARTS_MAX || self.entries.len() + entries.len() > CHUNKS_MAX;
        if entries.is_empty() || is_full {
            return;
        }
        looked_at.add(entries.len());
        let not_granted = entries.iter().filter(|(c, e)| !grantable(**c, **e));
        let refused = not_granted.map(|(chunk, _)| *chunk).collect();
        let chunks = entries.keys().copied().collect();
        self.entries
            .extend(entries.into_iter().map(|(chunk, epoch)| ((chunk, number), epoch)));
        let part = Part {
            list,
            chunks,
            refused,
        };
        self.parts.insert(number, part);
    }

    fn forget(&mut self, number: u32) {
        let part = self.parts.remove(&number);
        for chunk in part.into_iter().flat_map(|part| part.chunks) {
            self.entries.remove(&(chunk, number));
        }
    }

    fn forget_lists(&mut self) {
        self.life = None;
        self.parts.clear();
        self.entries.clear();
    }

    /// Whether `chunk` may be granted is to be said anew, in each part that has it.
    pub(super) fn judge(
        &mut self,
        chunk: ChunkId,
        grantable: impl Fn(Incarnation, Epoch) -> bool,
        looked_at: &mut LookedAt,
    ) {
        let Some(life) = self.life else { return };
        for (&(_, number), &epoch) in self.entries.range((chunk, 0)..=(chunk, u32::MAX)) {
            let Some(part) = self.parts.get_mut(&number) else {
                continue;
            };
            looked_at.add(1);
            if grantable(life, epoch) {
                part.refused.remove(&chunk);
            } else {
                part.refused.insert(chunk);
            }
        }
    }

    /// The answer to a beacon; what it grants binds for `term` from now.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        (incarnation, round): (Incarnation, u64),
        (part, list): (Option<u32>, u32),
        term: Duration,
        looked_at: &mut LookedAt,
    ) -> Message {
        let asked = self.parts.get(&part.unwrap_or(0));
        let asked = asked.filter(|asked| self.life == Some(incarnation) && asked.list == list);
        let mut refused = Vec::new();
        if let Some(asked) = asked {
            refused.extend(&asked.refused);
            looked_at.add(refused.len());
            if refused.len() < asked.chunks.len() {
                self.granted
                    .retain(|(life, end)| *life != incarnation && now < *end);
                self.granted.push((incarnation, now + term));
            }
        }
        Message::Grant {
            incarnation,
            round,
            list,
            known: asked.is_some(),
            keeps_parts: part.is_some(),
            refused,
        }
    }

    /// Until when any life is granted anything.
    pub(super) fn until(&self) -> Instant {
        let ends = self.granted.iter().map(|(_, end)| *end);
        ends.max().unwrap_or_default()
    }

    /// This life and those before it have ended: they hold nothing any more, and ask for nothing.
    pub(super) fn give_back(&mut self, incarnation: Incarnation) {
        self.granted.retain(|(life, _)| *life > incarnation);
        if self.life.is_some_and(|life| life <= incarnation) {
            self.forget_lists();
        }
    }

    /// How many parts and chunks are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.parts.len(), self.entries.len())
    }
}
