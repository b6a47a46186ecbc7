//! Compares what the copies of a chunk hold with each other (`docs/decisions/0144`).
//!
//! Each copy is compared with its own checksums, and repaired until it fits (0069). What that cannot show is a block that fits on every
//! copy and is not the same on all, such as one of which a disk has lost the write *and* the page of checksums. So the write node asks all
//! copies in sync to read themselves and to say a digest. A read of any copy gives what was acknowledged last, so that two digests differ only if
//! something was written between the two reads, or the copies do; the same answers in several rounds rule out the first. Where all copies but one
//! hold the same, that one is told so and finds its block damaged from then on, and the usual repair, in the order of writes, gives it the others' bytes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bdev::Data;
use fabrics::target::{Call, Reply};
use foundation::{BlockCount, Epoch};
use protocols::nvme::Status as NvmeStatus;
use reactor::{Buffer, BufferPool, spawn, time};
use volume::message::codec::{Agreed, Checked, NativeCommand, NativeOperation, native_status_code};
use volume::{BlockRange, ChunkId, Geometry, NodeId, SnapshotId, Status};

use super::native::answer;
use super::{CHECKSUMS, Node};

/// A block counts as different after so many rounds in which each copy says what it said before.
const ROUNDS: usize = 3;
/// Rounds at most: a block that is written all the time has the same bytes on all copies soon.
const ROUNDS_MAX: usize = 9;
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(50);
/// A copy that has not said what it holds by then says nothing. (One that has to be repaired first takes its time.)
const VOTE_LIMIT: Duration = Duration::from_secs(2);
/// Blocks that are mended for one command. Of the rest it says nothing, and may be asked again.
const MENDED_MAX: u32 = 16;
/// Comparisons for clients at a time, and how long each may take.
const COMMANDS_MAX: usize = 4;
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
/// Blocks that copies hold differently are looked at again after so long, so many at a time: they are written, and copies replaced.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
const LOOKED_AT: usize = 64;

/// What the node does of this at a time.
pub(super) struct Comparisons {
    /// Held by each command that is under way.
    commands: Rc<()>,
    /// Somebody looks at what was found different, again and again.
    looks_again: Cell<bool>,
}

impl Default for Comparisons {
    fn default() -> Self {
        Self {
            commands: Rc::new(()),
            looks_again: Cell::new(false),
        }
    }
}

/// What the copies that answer have in some blocks.
type Votes = Vec<(NodeId, u32)>;

/// What that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    /// Not all have answered: it means nothing.
    Incomplete,
    /// All hold the same.
    Same,
    /// One holds something else than all others, which are two or more. Were more believed to be wrong, or were one silent, a repair might give them
    /// each other's bytes: it takes those of any copy that fits its checksum.
    Odd { node: NodeId, digest: u32 },
    /// Nothing says which is right.
    Undecided,
}

fn judge(votes: &Votes, members: usize) -> Judgement {
    if votes.len() < members || votes.is_empty() {
        return Judgement::Incomplete;
    }
    let holders = |digest: u32| votes.iter().filter(|(_, other)| *other == digest).count();
    if holders(votes[0].1) == votes.len() {
        return Judgement::Same;
    }
    let lonely: Vec<_> = votes.iter().filter(|(_, digest)| holders(*digest) == 1).collect();
    let others_agree = |digest: u32| {
        let mut others = votes
            .iter()
            .map(|(_, other)| *other)
            .filter(|other| *other != digest);
        let first = others.next();
        others.all(|other| Some(other) == first)
    };
    match lonely[..] {
        [&(node, digest)] if votes.len() > 2 && others_agree(digest) => Judgement::Odd { node, digest },
        _ => Judgement::Undecided,
    }
}

/// A range in parts that lie in one stripe unit each, as one command may name them.
fn within_units(range: BlockRange, unit_blocks: u32) -> Vec<BlockRange> {
    let unit_blocks = unit_blocks.max(1);
    let (mut start, end) = (range.start, range.start.saturating_add(range.count));
    let mut parts = Vec::new();
    while start < end {
        let count = (unit_blocks - start % unit_blocks).min(end - start);
        parts.push(BlockRange { start, count });
        start += count;
    }
    parts
}

fn one(block: u32) -> BlockRange {
    BlockRange {
        start: block,
        count: 1,
    }
}

/// What the write node knows of a chunk.
struct Place {
    chunk: ChunkId,
    epoch: Epoch,
    members: Vec<NodeId>,
    geometry: Geometry,
}

impl Node {
    /// Compares what all copies in sync hold in these blocks, and has one that all others contradict mended. None if this is not the chunk's write
    /// node. What is not counted as compared could not be, now.
    pub(super) async fn compare_copies(&self, chunk: ChunkId, range: BlockRange) -> Option<Agreed> {
        let mut all = Agreed::default();
        let unit_blocks = self.led(chunk)?.geometry.stripe_unit_blocks;
        for part in within_units(range, unit_blocks) {
            let agreed = self.compare_part_of_copies(chunk, part).await?;
            if agreed.differing > 0 && all.differing == 0 {
                all.first = part.start - range.start + agreed.first;
            }
            all.compared += agreed.compared;
            all.mended += agreed.mended;
            all.differing += agreed.differing;
        }
        Some(all)
    }

    /// None if another node orders the chunk's writes.
    fn led(&self, chunk: ChunkId) -> Option<Place> {
        let (epoch, members) = {
            let core = self.core.borrow();
            let config = core.member(chunk)?.config()?;
            if config.write_node != self.identity.node {
                return None;
            }
            (config.epoch, config.members.iter().map(|m| m.node).collect())
        };
        let geometry = self.copies.get(chunk)?.geometry().clone();
        Some(Place {
            chunk,
            epoch,
            members,
            geometry,
        })
    }

    async fn compare_part_of_copies(&self, chunk: ChunkId, range: BlockRange) -> Option<Agreed> {
        let mut agreed = Agreed::default();
        let place = self.led(chunk)?;
        let mut left = Vec::new();
        match self.ask_all(&place, range).await.1 {
            Judgement::Incomplete => return Some(agreed),
            Judgement::Same => agreed.compared = range.count,
            Judgement::Odd { .. } | Judgement::Undecided => {
                let Some(found) = self.blocks_that_differ(&place, range).await? else {
                    return Some(agreed);
                };
                agreed.compared = range.count;
                for (block, votes) in found {
                    CHECKSUMS.differing_blocks.fetch_add(1, Ordering::Relaxed);
                    match judge(&votes, place.members.len()) {
                        Judgement::Odd { node, digest } if agreed.mended < MENDED_MAX => {
                            match self.follow_others(&place, block, (node, digest), &votes).await? {
                                Judgement::Same => {
                                    CHECKSUMS.outvoted_blocks.fetch_add(1, Ordering::Relaxed);
                                    agreed.mended += 1;
                                }
                                Judgement::Incomplete => agreed.compared -= 1,
                                Judgement::Odd { .. } | Judgement::Undecided => left.push((block, votes)),
                            }
                        }
                        Judgement::Undecided => left.push((block, votes)),
                        // There are too many.
                        _ => agreed.compared -= 1,
                    }
                }
            }
        }
        agreed.differing = left.len() as u32;
        agreed.first = left.first().map_or(0, |(block, _)| block - range.start);
        if agreed.compared == range.count {
            self.note_differing(chunk, range, &left);
        } else {
            // Of the other blocks nothing new is known.
            for at in left {
                self.note_differing(chunk, one(at.0), &[at]);
            }
        }
        Some(agreed)
    }

    /// What people are to hear of, until it is written.
    fn note_differing(&self, chunk: ChunkId, range: BlockRange, left: &[(u32, Votes)]) {
        let Some(sums) = self.copies.sums(chunk) else {
            return;
        };
        let own = |votes: &Votes| {
            votes
                .iter()
                .find(|(node, _)| *node == self.identity.node)
                .copied()
        };
        let blocks = left
            .iter()
            .filter_map(|(block, votes)| Some((*block, own(votes)?.1)));
        let blocks: Vec<_> = blocks.collect();
        for block in sums.differ(range, &blocks) {
            let votes = left.iter().find(|(of, _)| *of == block).map(|(_, votes)| votes);
            tracing::error!(
                ?chunk,
                block,
                copies = ?votes,
                "copies of a chunk hold different bytes in a block, each of which fits its checksum, and nothing says which is right until it is written"
            );
        }
        if !blocks.is_empty() && !self.comparisons.looks_again.replace(true) {
            drop(spawn(look_again(Rc::downgrade(&self.own()))));
        }
    }

    /// The blocks of which each copy says the same again and again, and not all say the same. The outer none as of [`Node::led`], the inner if a
    /// copy says nothing, or the epoch has ended: what was said before is no vote in the next.
    async fn blocks_that_differ(
        &self,
        place: &Place,
        range: BlockRange,
    ) -> Option<Option<BTreeMap<u32, Votes>>> {
        // With what was said last, and in how many rounds without a change.
        let mut open: BTreeMap<u32, (Votes, usize)> = BTreeMap::new();
        let mut halves = vec![range];
        while let Some(range) = halves.pop() {
            match self.ask_all(place, range).await {
                (_, Judgement::Incomplete) => return Some(None),
                (_, Judgement::Same) => {}
                (votes, _) if range.count == 1 => {
                    open.insert(range.start, (votes, 1));
                }
                _ => {
                    let count = range.count / 2;
                    halves.push(BlockRange {
                        start: range.start + count,
                        count: range.count - count,
                    });
                    halves.push(BlockRange { count, ..range });
                }
            }
        }
        let mut differing = BTreeMap::new();
        for round in 0..ROUNDS_MAX {
            let stay = open.extract_if(.., |_, (_, rounds)| *rounds >= ROUNDS);
            differing.extend(stay.map(|(block, (votes, _))| (block, votes)));
            if open.is_empty() || round + 1 == ROUNDS_MAX {
                break;
            }
            time::sleep(PAUSE).await;
            if self.led(place.chunk)?.epoch != place.epoch {
                return Some(None);
            }
            for block in open.keys().copied().collect::<Vec<_>>() {
                let (votes, judgement) = self.ask_all(place, one(block)).await;
                match judgement {
                    Judgement::Incomplete => return Some(None),
                    Judgement::Same => drop(open.remove(&block)),
                    Judgement::Odd { .. } | Judgement::Undecided => {
                        if let Some((before, rounds)) = open.get_mut(&block) {
                            *rounds = if *before == votes { *rounds + 1 } else { 1 };
                            *before = votes;
                        }
                    }
                }
            }
        }
        Some(Some(differing))
    }

    /// Has the copy mended that holds something else in a block than all others.
    async fn follow_others(
        &self,
        place: &Place,
        block: u32,
        (node, digest): (NodeId, u32),
        votes: &Votes,
    ) -> Option<Judgement> {
        let chunk = place.chunk;
        tracing::warn!(
            ?chunk,
            block,
            node = node.0,
            copies = ?votes,
            "a copy of a chunk holds something else in a block than all others, though it fits its checksum: it gets their bytes"
        );
        if !self.outvote(place, node, block, digest).await {
            tracing::warn!(
                ?chunk,
                block,
                node = node.0,
                "that copy keeps no checksum of the block, was written meanwhile, or cannot be reached"
            );
        }
        let mut judgement = Judgement::Incomplete;
        for round in 0..ROUNDS {
            if round > 0 {
                time::sleep(PAUSE).await;
            }
            // Who reads a block that does not fit has it repaired first.
            judgement = self.ask_all(&self.led(chunk)?, one(block)).await.1;
            if judgement == Judgement::Same {
                break;
            }
        }
        Some(judgement)
    }

    /// Tells a copy that its block, with this checksum, is not what the others hold.
    async fn outvote(&self, place: &Place, node: NodeId, block: u32, sum: u32) -> bool {
        if node == self.identity.node {
            let Some(sums) = self.copies.sums(place.chunk) else {
                return false;
            };
            sums.read_sums_of(block).await;
            // From here on nothing comes between.
            let is_so = self.led(place.chunk).is_some_and(|now| now.epoch == place.epoch);
            return is_so && self.is_in_sync(place.chunk) && sums.outvote(block, sum);
        }
        let Some(command) = self.about_copy(place, block, NativeOperation::Outvote(sum), 1) else {
            return false;
        };
        let told = self.peers.ask_native(self, node, &command, Data::None).await;
        told.is_ok()
    }

    /// What the members that answer have in these blocks, in the order of the configuration, and what that means. They are asked one after the
    /// other, and none after one that says nothing.
    async fn ask_all(&self, place: &Place, range: BlockRange) -> (Votes, Judgement) {
        let mut votes = Votes::new();
        for &node in &place.members {
            let is_own = node == self.identity.node;
            let asked = async {
                match is_own {
                    true => self.own_digest(place.chunk, range).await,
                    false => self.digest_at(place, node, range).await,
                }
            };
            match time::timeout(VOTE_LIMIT, asked).await {
                Ok(Some(digest)) => votes.push((node, digest)),
                _ => break,
            }
        }
        let judgement = judge(&votes, place.members.len());
        (votes, judgement)
    }

    async fn own_digest(&self, chunk: ChunkId, range: BlockRange) -> Option<u32> {
        match self.check_part(chunk, range)?.await? {
            (Status::Done, checked) => checked.digest,
            _ => None,
        }
    }

    async fn digest_at(&self, place: &Place, node: NodeId, range: BlockRange) -> Option<u32> {
        let command = self.about_copy(place, range.start, NativeOperation::Check, range.count)?;
        let room = BufferPool::current().allocate(Checked::BYTES).await.ok()?;
        let asked = self
            .peers
            .ask_native(self, node, &command, Data::Into(room))
            .await;
        match asked {
            Ok((_, Data::Into(bytes))) => Checked::decode(&bytes).digest,
            _ => None,
        }
    }

    fn about_copy(
        &self,
        place: &Place,
        first: u32,
        operation: NativeOperation,
        blocks: u32,
    ) -> Option<NativeCommand> {
        let of = (place.chunk, SnapshotId(0));
        let mut command = self.about(of, &place.geometry, first, operation, blocks)?;
        command.fields.epoch = place.epoch;
        Some(command)
    }

    /// Answers a client that wants the copies compared.
    pub(super) fn answer_comparison(&self, chunk: ChunkId, request: volume::Request, call: Call) {
        if Rc::strong_count(&self.comparisons.commands) > COMMANDS_MAX {
            return refuse(call.reply, Status::Busy);
        }
        let (node, command) = (self.own(), self.comparisons.commands.clone());
        drop(spawn(async move {
            let _command = command;
            let Call {
                reply, room_bytes, ..
            } = call;
            let compared = node.compare_copies(chunk, request.range);
            match time::timeout(COMMAND_LIMIT, compared).await {
                Ok(Some(agreed)) => answer(reply, room_bytes, &agreed.encode()),
                _ => refuse(reply, Status::NotReady),
            }
        }));
    }

    /// Answers the write node, which says that all other copies hold something else in a block.
    pub(super) fn answer_outvote(&self, from: NodeId, native: &NativeCommand, sum: u32, call: Call) {
        let (node, native) = (self.own(), *native);
        drop(spawn(async move {
            match node.is_outvoted(from, &native, sum).await {
                Ok(()) => call.reply.complete(NvmeStatus::SUCCESS, 0, Buffer::empty()),
                Err(status) => refuse(call.reply, status),
            }
        }));
    }

    async fn is_outvoted(&self, from: NodeId, native: &NativeCommand, sum: u32) -> Result<(), Status> {
        let copy = self.copies.last_of(native.volume).ok_or(Status::NotReady)?;
        let geometry = copy.geometry().clone();
        let pieces = geometry.pieces(native.fields.first_lba, BlockCount(1));
        let piece = pieces.ok().and_then(|mut pieces| pieces.next());
        let piece = piece.ok_or(Status::OutOfRange)?;
        let chunk = ChunkId {
            volume: native.volume,
            index: piece.chunk,
        };
        let sums = self.copies.sums(chunk).ok_or(Status::NotReady)?;
        sums.read_sums_of(piece.range.start).await;
        // From here on nothing comes between.
        let epoch = {
            let core = self.core.borrow();
            let config = core.member(chunk).and_then(|member| member.config());
            let config = config.ok_or(Status::NotReady)?;
            (config.write_node == from).then_some(config.epoch)
        };
        if epoch != Some(native.fields.epoch) || !self.is_in_sync(chunk) {
            // Another one says that, or of an order of writes that has ended.
            return Err(Status::NotReady);
        }
        match sums.outvote(piece.range.start, sum) {
            true => Ok(()),
            false => Err(Status::Differs),
        }
    }
}

fn refuse(reply: Reply, status: Status) {
    let (code, result) = native_status_code(status).unwrap_or_default();
    reply.complete(NvmeStatus::new(1, code), result, Buffer::empty());
}

/// What was found different may have been written, or a copy replaced, or another node may order the writes: so it is compared again now and then,
/// in turn.
async fn look_again(weak: Weak<Node>) {
    let mut last = None;
    loop {
        time::sleep(LOOK_AGAIN).await;
        let Some(node) = weak.upgrade() else { return };
        let all = node.copies.differing_blocks();
        if all.is_empty() {
            return node.comparisons.looks_again.set(false);
        }
        let next: Vec<_> = all
            .into_iter()
            .filter(|at| last.is_none_or(|last| *at > last))
            .take(LOOKED_AT)
            .collect();
        last = next.last().copied();
        for (chunk, block) in next {
            if node.compare_part_of_copies(chunk, one(block)).await.is_none()
                && let Some(sums) = node.copies.sums(chunk)
            {
                sums.forget_differing();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_is_believed_to_be_wrong_if_all_others_say_so() {
        let odd = |node, digest| Judgement::Odd {
            node: NodeId(node),
            digest,
        };
        for (digests, members, judgement) in [
            (&[7, 7, 8][..], 3, odd(3, 8)),
            (&[8, 7, 7], 3, odd(1, 8)),
            (&[7, 7, 7, 8], 4, odd(4, 8)),
            (&[7, 7, 7], 3, Judgement::Same),
            (&[7], 1, Judgement::Same),
            (&[7, 8], 2, Judgement::Undecided),
            (&[7, 8, 9], 3, Judgement::Undecided),
            (&[7, 7, 8, 8], 4, Judgement::Undecided),
            // Each would be repaired with the other's bytes.
            (&[8, 7, 7, 7, 8], 5, Judgement::Undecided),
            (&[8, 7, 7, 7, 9], 5, Judgement::Undecided),
            (&[8, 7, 7, 9, 9], 5, Judgement::Undecided),
            // One does not answer.
            (&[7, 7], 3, Judgement::Incomplete),
            (&[7, 8, 7], 4, Judgement::Incomplete),
            (&[], 0, Judgement::Incomplete),
        ] {
            let votes: Votes = (1..).map(NodeId).zip(digests.iter().copied()).collect();
            assert_eq!(judge(&votes, members), judgement, "{digests:?} of {members}");
        }
    }

    #[test]
    fn a_range_is_cut_where_a_command_may_not_go_on() {
        let range = |start, count| BlockRange { start, count };
        assert_eq!(
            within_units(range(10, 30), 16),
            [range(10, 6), range(16, 16), range(32, 8)]
        );
        assert_eq!(within_units(range(16, 16), 16), [range(16, 16)]);
        assert_eq!(within_units(range(16, 0), 16), []);
    }
}
