//! Has the nodes compare every block of every copy of a volume with its checksum, and the copies with each other, and repair what does not fit
//! (decisions 0069 and 0144).
//!
//! The blocks do not leave their nodes: each copy is asked, a stripe unit at a time, to read itself
//! ([`NativeOperation::Check`]). What does not fit is repaired as after any other read, in the order of writes. Copies of snapshots are asked
//! alike ([`NativeOperation::CheckSnapshot`], decision 0094), wherever they are.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::Data;
use foundation::{BlockCount, Instant, Lba};
use proto::v1;
use reactor::sync::Semaphore;
use reactor::{BufferPool, spawn, time};
use volume::client::{PeerStatus, Place};
use volume::message::codec::{Agreed, Checked, NativeCommand, NativeFields, NativeOperation};
use volume::{ChunkIndex, NodeId, Piece, SnapshotId, Status, TraceId, WriterToken};

use crate::ask::ask;
use crate::links::{Nearby, NodeLinks};
use crate::session::Session;

/// Requests that are under way at once: each disk has something to do, and what else is asked of it finds room.
const DEPTH: usize = 6;
/// A copy that does not answer for so long is passed over.
const PATIENCE: Duration = Duration::from_secs(20);
/// A copy whose disk has failed says the same of a block as one that lacks it as all others do, until it is left out.
const FAILED_FOR: Duration = Duration::from_secs(2);
/// A write node that refuses to compare copies so often, and once more, does not know how.
const REFUSALS_MAX: u32 = 3;
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
    /// Blocks of the volume that one copy held otherwise than all others though each fitted its checksum, and holds as they do now.
    pub outvoted_blocks: u64,
    /// Blocks of the volume of which not all copies could say what they hold, since one is on a node of before this release, or has lost blocks there.
    pub uncompared_blocks: u64,
    /// Blocks of the volume that are not the same on all copies, and nothing says which is right.
    pub differing_blocks: u64,
    /// The first of these that was found.
    pub first_differing: Option<Lba>,
}

/// One copy's part of a stripe unit.
#[derive(Clone, Copy)]
struct Part {
    piece: Piece,
    lba: Lba,
    node: NodeId,
}

/// What the copies of a stripe unit have said of it so far.
struct Unit {
    /// Copies that have not been asked, or have not answered.
    left: usize,
    /// None of one that did not say what it has.
    digests: Vec<Option<u32>>,
}

/// What that means.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// More are to come, or all say the same.
    Nothing,
    /// All have said what they hold, and that is not the same.
    Different,
    /// Not all have said it.
    Unknown,
}

impl Unit {
    /// Notes what a copy says.
    fn heard(&mut self, digest: Option<u32>) -> Heard {
        self.left = self.left.saturating_sub(1);
        self.digests.push(digest);
        let is_same = self.digests.iter().all(|digest| *digest == self.digests[0]);
        match self.left {
            0 if self.digests.len() == 1 => Heard::Nothing,
            0 if self.digests.contains(&None) => Heard::Unknown,
            0 if !is_same => Heard::Different,
            _ => Heard::Nothing,
        }
    }
}

impl Scrubbed {
    fn note_differing(&mut self, start: Lba, agreed: &Agreed, count: u64) {
        if agreed.differing > 0 {
            self.differing_blocks += u64::from(agreed.differing).min(count);
            let first = Lba(start.0 + u64::from(agreed.first).min(count - 1));
            let before = self.first_differing.get_or_insert(first);
            *before = first.min(*before);
        }
    }
}

struct Scrub {
    session: Arc<Session>,
    links: Rc<NodeLinks>,
    /// Whose copies are compared, if not the live ones.
    snapshot: Option<SnapshotId>,
    /// Nodes that do not answer about copies of the snapshot, or do not know how. No configuration leaves them out.
    silent: RefCell<BTreeSet<NodeId>>,
    scrubbed: RefCell<Scrubbed>,
    failed: RefCell<Option<String>>,
}

impl Session {
    /// Reads every copy of every block at its node, at no more than `bytes_per_second` in all, and tells how far it is
    /// after each part. To be called where a reactor runs; takes as long as the disks take. What could not be done is in
    /// the result.
    pub async fn scrub(self: &Arc<Self>, bytes_per_second: u64, tell: impl FnMut(&Scrubbed)) -> Scrubbed {
        let map = self.map();
        let holders = |chunk: ChunkIndex| {
            let members = map.chunks.config(chunk).map(|config| &config.members);
            members.map_or_else(Vec::new, |members| {
                members.iter().map(|member| member.node).collect()
            })
        };
        let chunks = map.geometry.all_chunks().into_iter();
        let held = chunks.map(|chunk| (chunk, holders(chunk))).collect();
        Rc::new(Scrub::new(self, None))
            .run(held, bytes_per_second, tell)
            .await
    }

    /// The same for the copies of a complete snapshot, on whatever nodes they are. Blocks of chunks of which no copy is found count as not
    /// reached.
    pub async fn scrub_snapshot(
        self: &Arc<Self>,
        snapshot: &v1::Snapshot,
        bytes_per_second: u64,
        tell: impl FnMut(&Scrubbed),
    ) -> Scrubbed {
        let scrub = Rc::new(Scrub::new(self, Some(SnapshotId(snapshot.number))));
        let mut held = BTreeMap::new();
        for chunk in (0..snapshot.chunks).map(ChunkIndex) {
            held.insert(chunk, scrub.holders(chunk).await);
        }
        scrub.run(held, bytes_per_second, tell).await
    }
}

impl Scrub {
    fn new(session: &Arc<Session>, snapshot: Option<SnapshotId>) -> Self {
        Self {
            session: session.clone(),
            links: session.links(Nearby::Socket),
            snapshot,
            scrubbed: RefCell::default(),
            silent: RefCell::default(),
            failed: RefCell::default(),
        }
    }

    /// Asks for every block of these copies.
    async fn run(
        self: &Rc<Self>,
        held: BTreeMap<ChunkIndex, Vec<NodeId>>,
        bytes_per_second: u64,
        mut tell: impl FnMut(&Scrubbed),
    ) -> Scrubbed {
        let scrub = self;
        let map = self.session.map();
        let chunk_blocks = u64::from(map.geometry.chunk_blocks);
        let all: usize = held.values().map(|nodes| nodes.len().max(1)).sum();
        scrub.scrubbed.borrow_mut().total_blocks = all as u64 * chunk_blocks;
        let slots = Semaphore::new(DEPTH);
        let mut next = time::now();
        let blocks = BlockCount(held.len() as u64 * chunk_blocks);
        let Ok(pieces) = map.geometry.pieces(Lba(0), blocks) else {
            return *scrub.scrubbed.borrow();
        };
        for piece in pieces {
            let nodes = held.get(&piece.chunk).map_or(&[][..], |nodes| nodes);
            if nodes.is_empty() {
                let blocks = u64::from(piece.range.count);
                scrub.note(|scrubbed| {
                    scrubbed.unreached_blocks += blocks;
                    scrubbed.done_blocks += blocks;
                });
            }
            let unit = Rc::new(RefCell::new(Unit {
                left: nodes.len(),
                digests: Vec::new(),
            }));
            for &node in nodes {
                let part = Part {
                    piece,
                    lba: Lba(piece.request_offset.0),
                    node,
                };
                let slot = slots.acquire().await;
                let now = time::now();
                if next > now {
                    time::sleep(next.since(now)).await;
                }
                let bytes = u64::from(piece.range.count) * u64::from(map.geometry.block_bytes);
                let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_second.max(1) as f64);
                next = next.max(now) + takes;
                let (scrub_part, unit) = (scrub.clone(), unit.clone());
                drop(spawn(async move {
                    let digest = scrub_part.check(part).await;
                    let heard = unit.borrow_mut().heard(digest);
                    match heard {
                        Heard::Nothing => {}
                        Heard::Different => scrub_part.compare_copies(part).await,
                        // Copies of a snapshot are not compared with each other.
                        Heard::Unknown if scrub_part.snapshot.is_some() => {}
                        Heard::Unknown => scrub_part.note(|scrubbed| {
                            scrubbed.uncompared_blocks += u64::from(part.piece.range.count);
                        }),
                    }
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
            tracing::warn!(why, "a copy was not compared");
        }
        let scrubbed = *scrub.scrubbed.borrow();
        tell(&scrubbed);
        scrubbed
    }

    /// The nodes that say that they have a copy of a chunk's part in the snapshot, and those with a place for the chunk that say nothing.
    async fn holders(&self, chunk: ChunkIndex) -> Vec<NodeId> {
        let map = self.session.map();
        let first = map.geometry.first_lba(chunk).unwrap_or_default();
        let piece = map.geometry.pieces(first, BlockCount(1));
        let Some(piece) = piece.ok().and_then(|mut pieces| pieces.next()) else {
            return Vec::new();
        };
        let places = map.chunks.config(chunk).map_or(0, |config| config.members.len());
        let mut holders = Vec::new();
        for (at, node) in self.session.nodes_for(chunk).into_iter().enumerate() {
            let part = Part {
                piece,
                lba: first,
                node,
            };
            match self.ask_for(part).await.0 {
                PeerStatus::Answered(Status::SnapshotAborted) => {}
                PeerStatus::Answered(_) => holders.push(node),
                _ if at < places => {
                    self.silent.borrow_mut().insert(node);
                    holders.push(node);
                }
                _ => {}
            }
        }
        holders
    }

    fn note(&self, change: impl FnOnce(&mut Scrubbed)) {
        change(&mut self.scrubbed.borrow_mut());
    }

    /// Has a copy compare its part; block by block if something in it is lost. Returns by what it is compared with others', if that is known of
    /// the whole part.
    async fn check(&self, part: Part) -> Option<u32> {
        let count = part.piece.range.count;
        if let Some(digest) = self.check_once(part, count > 1).await {
            self.note(|scrubbed| scrubbed.done_blocks += u64::from(count));
            return digest;
        }
        for offset in 0..count {
            let mut one = part;
            one.piece.range.start += offset;
            one.piece.range.count = 1;
            one.lba = Lba(part.lba.0 + u64::from(offset));
            self.check_once(one, false).await;
            self.note(|scrubbed| scrubbed.done_blocks += 1);
        }
        None
    }

    /// Copies of a stripe unit have said different things of it: something was written between, or they differ, which the write node finds out,
    /// and mends if all but one hold the same.
    async fn compare_copies(&self, part: Part) {
        let count = u64::from(part.piece.range.count);
        let began = time::now();
        let mut refused = 0;
        let why = loop {
            let (answer, data) = self
                .ask_to(self.write_node(part), NativeOperation::CompareCopies, part)
                .await;
            match (answer, data) {
                (PeerStatus::Answered(Status::Done), Data::Into(bytes)) => {
                    let agreed = Agreed::decode(&bytes);
                    let mended = u64::from(agreed.mended).min(count);
                    self.note(|scrubbed| scrubbed.outvoted_blocks += mended);
                    if u64::from(agreed.compared) >= count {
                        return self.note(|scrubbed| scrubbed.note_differing(part.lba, &agreed, count));
                    }
                }
                // A node of before this release; but it may also have had no room for the answer.
                (PeerStatus::Failed(_), _) if refused == REFUSALS_MAX => {
                    break format!("node {} does not compare copies", self.write_node(part));
                }
                (PeerStatus::Failed(_), _) => refused += 1,
                _ => {}
            }
            if time::now() >= began + PATIENCE {
                break format!("node {} says {answer:?}", self.write_node(part));
            }
            time::sleep(PAUSE).await;
            let _ = time::timeout(PATIENCE, self.session.refresh()).await;
        };
        let why = format!(
            "copies of chunk {} were not compared with each other: {why}",
            part.piece.chunk.0
        );
        self.failed.borrow_mut().get_or_insert(why);
        self.note(|scrubbed| scrubbed.uncompared_blocks += count);
    }

    fn write_node(&self, part: Part) -> NodeId {
        let map = self.session.map();
        let config = map.chunks.config(part.piece.chunk);
        config.map_or(part.node, |config| config.write_node)
    }

    /// Notes what a copy says, and returns its digest, if it says one. None, and nothing is noted, if a block is lost and the part can be
    /// divided.
    async fn check_once(&self, part: Part, can_divide: bool) -> Option<Option<u32>> {
        let count = u64::from(part.piece.range.count);
        let began = time::now();
        if self.silent.borrow().contains(&part.node) {
            let why = format!("node {} says nothing of the snapshot's copies", part.node);
            self.failed.borrow_mut().get_or_insert(why);
            self.note(|scrubbed| scrubbed.unreached_blocks += count);
            return Some(None);
        }
        loop {
            let (status, data) = self.ask_for(part).await;
            match status {
                PeerStatus::Answered(Status::Done) => {
                    let Data::Into(bytes) = data else {
                        self.note(|scrubbed| scrubbed.unreached_blocks += count);
                        return Some(None);
                    };
                    let Checked {
                        compared,
                        damaged,
                        digest,
                    } = Checked::decode(&bytes);
                    self.note(|scrubbed| {
                        let compared = u64::from(compared).min(count);
                        scrubbed.compared_blocks += compared;
                        scrubbed.unchecked_blocks += count - compared;
                        scrubbed.repaired_blocks += u64::from(damaged).min(count);
                    });
                    return Some(digest);
                }
                PeerStatus::Answered(Status::DeviceFailed) if can_divide => return None,
                PeerStatus::Answered(Status::DeviceFailed)
                    if self.is_member(part) && time::now() >= began + FAILED_FOR =>
                {
                    self.note(|scrubbed| scrubbed.lost_blocks += count);
                    return Some(None);
                }
                // It went meanwhile, since it has no place there any more.
                PeerStatus::Answered(Status::SnapshotAborted) if self.snapshot.is_some() => {
                    return Some(None);
                }
                other if self.is_over(part, other, began) => {
                    let why = format!(
                        "node {} says {other:?} of chunk {}",
                        part.node, part.piece.chunk.0
                    );
                    self.failed.borrow_mut().get_or_insert(why);
                    if self.snapshot.is_some() {
                        self.silent.borrow_mut().insert(part.node);
                    }
                    self.note(|scrubbed| scrubbed.unreached_blocks += count);
                    return Some(None);
                }
                _ => {
                    time::sleep(PAUSE).await;
                    // The next look at the clock bounds what follows.
                    let _ = time::timeout(PATIENCE, self.session.refresh()).await;
                }
            }
        }
    }

    /// Whether a copy that answers this is not asked again.
    fn is_over(&self, part: Part, status: PeerStatus, began: Instant) -> bool {
        // A node of before this release.
        let does_not_know = self.snapshot.is_some() && matches!(status, PeerStatus::Failed(_));
        does_not_know || time::now() >= began + PATIENCE || !self.is_member(part)
    }

    fn is_member(&self, part: Part) -> bool {
        if self.snapshot.is_some() {
            return true;
        }
        let map = self.session.map();
        let config = map.chunks.config(part.piece.chunk);
        config.is_some_and(|config| config.members.iter().any(|member| member.node == part.node))
    }

    async fn ask_for(&self, part: Part) -> (PeerStatus, Data) {
        let operation = self
            .snapshot
            .map_or(NativeOperation::Check, NativeOperation::CheckSnapshot);
        self.ask_to(part.node, operation, part).await
    }

    async fn ask_to(&self, node: NodeId, operation: NativeOperation, part: Part) -> (PeerStatus, Data) {
        let Ok(room) = BufferPool::current().allocate(Checked::BYTES).await else {
            return (PeerStatus::Unreachable, Data::None);
        };
        let map = self.session.map();
        let epoch = map.chunks.config(part.piece.chunk).map(|config| config.epoch);
        let command = NativeCommand {
            operation,
            volume: self.session.number(),
            fields: NativeFields {
                epoch: epoch.unwrap_or_default(),
                writer_token: WriterToken(0),
                first_lba: part.lba,
            },
            blocks: part.piece.range.count,
            trace: TraceId(0),
            portal_token: 0,
        };
        let place = Place {
            chunk: part.piece.chunk,
            first_block: part.piece.range.start,
        };
        ask(&self.links, node, command, place, Data::Into(room)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_node_is_asked_once_all_copies_have_said_different_things() {
        let after = |digests: &[Option<u32>]| {
            let mut unit = Unit {
                left: digests.len(),
                digests: Vec::new(),
            };
            let heard = digests.iter().map(|digest| unit.heard(*digest));
            heard.collect::<Vec<_>>()
        };
        let (nothing, different, unknown) = (Heard::Nothing, Heard::Different, Heard::Unknown);
        assert_eq!(after(&[Some(7), Some(8), Some(7)])[2], different);
        assert_eq!(after(&[Some(7), Some(8), Some(7)])[1], nothing);
        assert_eq!(after(&[Some(7), Some(7)])[1], nothing);
        assert_eq!(after(&[Some(7), None])[1], unknown);
        assert_eq!(after(&[None]), [nothing], "there is no other");
        let mut scrubbed = Scrubbed::default();
        let agreed = |differing, first| Agreed {
            compared: 64,
            mended: 0,
            differing,
            first,
        };
        scrubbed.note_differing(Lba(640), &agreed(0, 0), 64);
        assert_eq!(scrubbed.first_differing, None);
        scrubbed.note_differing(Lba(640), &agreed(2, 5), 64);
        scrubbed.note_differing(Lba(64), &agreed(1, 9), 64);
        scrubbed.note_differing(Lba(128), &agreed(1, 0), 64);
        assert_eq!(
            (scrubbed.differing_blocks, scrubbed.first_differing),
            (4, Some(Lba(73)))
        );
    }
}
