//! Has the nodes compare every block of every copy of a volume with its checksum, and repair what does not fit
//! (decision 0069).
//!
//! The blocks do not leave their nodes: each copy is asked, a stripe unit at a time, to read itself
//! ([`NativeOperation::Check`]). What does not fit is repaired as after any other read, in the order of writes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::Data;
use foundation::Lba;
use reactor::sync::Semaphore;
use reactor::{BufferPool, spawn, time};
use volume::client::{PeerStatus, Place};
use volume::message::codec::{Checked, NativeCommand, NativeFields, NativeOperation};
use volume::{ChunkIndex, NodeId, Piece, Status, TraceId, WriterToken};

use crate::ask::ask;
use crate::links::{Nearby, NodeLinks};
use crate::session::Session;

/// Requests that are under way at once: each disk has something to do, and what else is asked of it finds room.
const DEPTH: usize = 6;
/// A copy that does not answer for so long is passed over.
const PATIENCE: Duration = Duration::from_secs(20);
/// A copy whose disk has failed says the same of a block as one that lacks it as all others do, until it is left out.
const FAILED_FOR: Duration = Duration::from_secs(2);
/// Before a copy is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// How far it is, and what was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Blocks of copies that the whole volume has, in the map with which it began.
    pub total_blocks: u64,
    /// Of those, blocks done with, in whatever way.
    pub done_blocks: u64,
    /// Blocks that were compared with their checksums.
    pub compared_blocks: u64,
    /// Of those, blocks that did not fit and have been repaired.
    pub repaired_blocks: u64,
    /// Blocks that no copy has right.
    pub lost_blocks: u64,
    /// Blocks of copies that have no checksums.
    pub unchecked_blocks: u64,
    /// Blocks of copies that did not answer, or are not in sync any more.
    pub unreached_blocks: u64,
}

/// One copy's part of a stripe unit.
#[derive(Clone, Copy)]
struct Part {
    piece: Piece,
    lba: Lba,
    node: NodeId,
}

struct Scrub {
    session: Arc<Session>,
    links: Rc<NodeLinks>,
    scrubbed: RefCell<Scrubbed>,
    failed: RefCell<Option<String>>,
}

impl Session {
    /// Reads every copy of every block at its node, at no more than `bytes_per_second` in all, and tells how far it is
    /// after each part. To be called where a reactor runs; takes as long as the disks take. What could not be done is in
    /// the result.
    pub async fn scrub(self: &Arc<Self>, bytes_per_second: u64, mut tell: impl FnMut(&Scrubbed)) -> Scrubbed {
        let scrub = Rc::new(Scrub {
            session: self.clone(),
            links: self.links(Nearby::Socket),
            scrubbed: RefCell::default(),
            failed: RefCell::default(),
        });
        let map = self.map();
        let blocks = map.geometry.volume_blocks();
        let copies = |chunk: ChunkIndex| map.chunks.config(chunk).map_or(0, |config| config.members.len());
        let chunk_blocks = u64::from(map.geometry.chunk_blocks);
        let all = map.geometry.all_chunks().into_iter().map(copies).sum::<usize>() as u64;
        scrub.scrubbed.borrow_mut().total_blocks = all * chunk_blocks;
        let slots = Semaphore::new(DEPTH);
        let mut next = time::now();
        let Ok(pieces) = map.geometry.pieces(Lba(0), blocks) else {
            return *scrub.scrubbed.borrow();
        };
        for piece in pieces {
            let Some(config) = map.chunks.config(piece.chunk) else {
                continue;
            };
            for member in &config.members {
                let part = Part {
                    piece,
                    lba: Lba(piece.request_offset.0),
                    node: member.node,
                };
                let slot = slots.acquire().await;
                let now = time::now();
                if next > now {
                    time::sleep(next.since(now)).await;
                }
                let bytes = u64::from(piece.range.count) * u64::from(map.geometry.block_bytes);
                let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_second.max(1) as f64);
                next = next.max(now) + takes;
                let scrub_part = scrub.clone();
                drop(spawn(async move {
                    scrub_part.check(part).await;
                    drop(slot);
                }));
                tell(&scrub.scrubbed.borrow());
            }
        }
        // The last ones.
        let mut held = Vec::new();
        while held.len() < DEPTH {
            held.push(slots.acquire().await);
        }
        if let Some(why) = scrub.failed.borrow().as_ref() {
            tracing::warn!(why, "a copy was not compared with its checksums");
        }
        let scrubbed = *scrub.scrubbed.borrow();
        tell(&scrubbed);
        scrubbed
    }
}

impl Scrub {
    fn note(&self, change: impl FnOnce(&mut Scrubbed)) {
        change(&mut self.scrubbed.borrow_mut());
    }

    /// Has a copy compare its part; block by block if something in it is lost.
    async fn check(&self, part: Part) {
        let count = part.piece.range.count;
        if self.check_once(part, count > 1).await {
            return self.note(|scrubbed| scrubbed.done_blocks += u64::from(count));
        }
        for offset in 0..count {
            let mut one = part;
            one.piece.range.start += offset;
            one.piece.range.count = 1;
            one.lba = Lba(part.lba.0 + u64::from(offset));
            self.check_once(one, false).await;
            self.note(|scrubbed| scrubbed.done_blocks += 1);
        }
    }

    /// Notes what a copy says. False, and nothing is noted, if a block is lost and the part can be divided.
    async fn check_once(&self, part: Part, can_divide: bool) -> bool {
        let count = u64::from(part.piece.range.count);
        let began = time::now();
        loop {
            let (status, data) = self.ask_for(part).await;
            match status {
                PeerStatus::Answered(Status::Done) => {
                    let Data::Into(bytes) = data else {
                        self.note(|scrubbed| scrubbed.unreached_blocks += count);
                        return true;
                    };
                    let Checked { compared, damaged } = Checked::decode(&bytes);
                    self.note(|scrubbed| {
                        let compared = u64::from(compared).min(count);
                        scrubbed.compared_blocks += compared;
                        scrubbed.unchecked_blocks += count - compared;
                        scrubbed.repaired_blocks += u64::from(damaged).min(count);
                    });
                    return true;
                }
                PeerStatus::Answered(Status::DeviceFailed) if can_divide => return false,
                PeerStatus::Answered(Status::DeviceFailed)
                    if self.is_member(part) && time::now() >= began + FAILED_FOR =>
                {
                    self.note(|scrubbed| scrubbed.lost_blocks += count);
                    return true;
                }
                other if time::now() >= began + PATIENCE || !self.is_member(part) => {
                    let why = format!(
                        "node {} says {other:?} of chunk {}",
                        part.node, part.piece.chunk.0
                    );
                    self.failed.borrow_mut().get_or_insert(why);
                    self.note(|scrubbed| scrubbed.unreached_blocks += count);
                    return true;
                }
                _ => {
                    time::sleep(PAUSE).await;
                    // The next look at the clock bounds what follows.
                    let _ = time::timeout(PATIENCE, self.session.refresh()).await;
                }
            }
        }
    }

    fn is_member(&self, part: Part) -> bool {
        let map = self.session.map();
        let config = map.chunks.config(part.piece.chunk);
        config.is_some_and(|config| config.members.iter().any(|member| member.node == part.node))
    }

    async fn ask_for(&self, part: Part) -> (PeerStatus, Data) {
        let Ok(room) = BufferPool::current().allocate(Checked::BYTES).await else {
            return (PeerStatus::Unreachable, Data::None);
        };
        let map = self.session.map();
        let epoch = map.chunks.config(part.piece.chunk).map(|config| config.epoch);
        let command = NativeCommand {
            operation: NativeOperation::Check,
            volume: self.session.number(),
            fields: NativeFields {
                epoch: epoch.unwrap_or_default(),
                writer_token: WriterToken(0),
                first_lba: part.lba,
            },
            blocks: part.piece.range.count,
            trace: TraceId(0),
        };
        let place = Place {
            chunk: part.piece.chunk,
            first_block: part.piece.range.start,
        };
        ask(&self.links, part.node, command, place, Data::Into(room)).await
    }
}
