//! Compares what the copies of a chunk hold with each other (`docs/decisions/0144`).
//!
//! Each copy is compared with its own checksums, and repaired until it fits (0069). What that cannot show is a block that fits on every
//! copy and is not the same on all, such as one of which a disk has lost the write *and* the page of checksums. So the write node asks all
//! copies in sync to read themselves and to say a digest. A read of any copy gives what was acknowledged last, so that two digests differ only if
//! something was written between the two reads, or the copies do; the same answers in several rounds rule out the first. What most copies hold is right. The
//! odd one is told so and finds its block damaged from then on, and the usual repair, in the order of writes, gives it the others' bytes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bdev::Data;
use fabrics::target::Call;
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

/// What each copy that answers has in some blocks.
type Votes = Vec<(NodeId, u32)>;

/// The write node's knowledge of a chunk.
struct Place {
    chunk: ChunkId,
    epoch: Epoch,
    members: Vec<NodeId>,
    geometry: Geometry,
}

fn is_unanimous(votes: &Votes) -> bool {
    votes.windows(2).all(|pair| pair[0].1 == pair[1].1)
}

/// What more than half of all members hold. That the others do not answer is no reason to believe fewer.
fn majority(votes: &Votes, members: usize) -> Option<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, digest) in votes {
        *counts.entry(*digest).or_default() += 1;
    }
    let most = counts.into_iter().find(|(_, count)| 2 * count > members);
    most.map(|(digest, _)| digest)
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

impl Node {
    /// Compares what all copies in sync hold in these blocks, and has the odd one out mended. None if this is not the chunk's write node, or the
    /// copy here does not answer.
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
        let votes = self.votes(&self.led(chunk)?, range).await?;
        if votes.len() < 2 {
            return Some(Agreed::default());
        }
        let mut agreed = Agreed {
            compared: range.count,
            ..Agreed::default()
        };
        if is_unanimous(&votes) {
            self.note_differing(chunk, range, &[]);
            return Some(agreed);
        }
        let mut left = Vec::new();
        for (block, votes) in self.blocks_that_differ(chunk, range).await? {
            CHECKSUMS.differing_blocks.fetch_add(1, Ordering::Relaxed);
            if self.follow_most(chunk, block, &votes).await? {
                CHECKSUMS.outvoted_blocks.fetch_add(1, Ordering::Relaxed);
                agreed.mended += 1;
            } else {
                left.push(block);
            }
        }
        agreed.differing = left.len() as u32;
        agreed.first = left.first().map_or(0, |block| block - range.start);
        self.note_differing(chunk, range, &left);
        Some(agreed)
    }

    /// What people are to hear of, until it is written.
    fn note_differing(&self, chunk: ChunkId, range: BlockRange, blocks: &[u32]) {
        if let Some(sums) = self.copies.sums(chunk) {
            sums.differ(range, blocks);
        }
    }

    /// The blocks of which each copy says the same again and again, and not all say the same.
    async fn blocks_that_differ(&self, chunk: ChunkId, range: BlockRange) -> Option<BTreeMap<u32, Votes>> {
        let blocks = range.start..range.start.saturating_add(range.count);
        // With what was said last, and in how many rounds without a change.
        let mut open: BTreeMap<u32, (Votes, usize)> =
            blocks.map(|block| (block, (Votes::new(), 0))).collect();
        let mut differing = BTreeMap::new();
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                time::sleep(PAUSE).await;
            }
            let place = self.led(chunk)?;
            for block in open.keys().copied().collect::<Vec<_>>() {
                let one = BlockRange {
                    start: block,
                    count: 1,
                };
                let votes = self.votes(&place, one).await?;
                if is_unanimous(&votes) {
                    open.remove(&block);
                } else if let Some((before, rounds)) = open.get_mut(&block) {
                    *rounds = if *before == votes { *rounds + 1 } else { 1 };
                    *before = votes;
                }
            }
            let stay = open.extract_if(.., |_, (_, rounds)| *rounds >= ROUNDS);
            differing.extend(stay.map(|(block, (votes, _))| (block, votes)));
            if open.is_empty() {
                break;
            }
        }
        Some(differing)
    }

    /// Has the copies that hold something else in a block than most mended. True if all hold the same then.
    async fn follow_most(&self, chunk: ChunkId, block: u32, votes: &Votes) -> Option<bool> {
        let place = self.led(chunk)?;
        let Some(right) = majority(votes, place.members.len()) else {
            tracing::error!(
                ?chunk,
                block,
                copies = ?votes,
                "copies of a chunk hold different bytes in a block, each of which fits its checksum, and no more than half hold the same: nothing says \
                 which is right until it is written"
            );
            return Some(false);
        };
        tracing::warn!(
            ?chunk,
            block,
            right,
            copies = ?votes,
            "a copy of a chunk holds something else in a block than most others, though it fits its checksum: it gets their bytes"
        );
        for &(node, digest) in votes.iter().filter(|(_, digest)| *digest != right) {
            if !self.outvote(&place, node, block, digest).await {
                tracing::warn!(
                    ?chunk,
                    block,
                    node = node.0,
                    "a copy that most others contradict keeps no checksum of that block, or cannot be reached: it stays as it is"
                );
            }
        }
        let one = BlockRange {
            start: block,
            count: 1,
        };
        for round in 0..ROUNDS {
            if round > 0 {
                time::sleep(PAUSE).await;
            }
            let place = self.led(chunk)?;
            // Who reads a block that does not fit has it repaired first.
            let votes = self.votes(&place, one).await?;
            if votes.len() > 1 && is_unanimous(&votes) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Tells a copy that its block, with this checksum, is not what most hold.
    async fn outvote(&self, place: &Place, node: NodeId, block: u32, sum: u32) -> bool {
        if node == self.identity.node {
            return match self.copies.sums(place.chunk) {
                Some(sums) => sums.outvote(block, sum).await,
                None => false,
            };
        }
        let Some(command) = self.about_copy(place, block, NativeOperation::Outvote(sum), 1) else {
            return false;
        };
        let told = self.peers.ask_native(self, node, &command, Data::None).await;
        told.is_ok()
    }

    /// What the members that answer have in these blocks, in the order of the configuration. None if the copy here says nothing: it is not in sync,
    /// or nobody has the blocks right.
    async fn votes(&self, place: &Place, range: BlockRange) -> Option<Votes> {
        let mut votes = Votes::new();
        for &node in &place.members {
            let digest = match node == self.identity.node {
                true => Some(self.own_digest(place.chunk, range).await?),
                false => self.digest_at(place, node, range).await,
            };
            votes.extend(digest.map(|digest| (node, digest)));
        }
        Some(votes)
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
        let asked = self.peers.ask_native(self, node, &command, Data::Into(room)).await;
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
        let mut command = self.about(
            (place.chunk, SnapshotId(0)),
            &place.geometry,
            first,
            operation,
            blocks,
        )?;
        command.fields.epoch = place.epoch;
        Some(command)
    }

    /// Answers a client that wants the copies compared.
    pub(super) fn answer_comparison(&self, chunk: ChunkId, request: volume::Request, call: Call) {
        let node = self.own();
        drop(spawn(async move {
            let Call {
                reply, room_bytes, ..
            } = call;
            match node.compare_copies(chunk, request.range).await {
                Some(agreed) => answer(reply, room_bytes, &agreed.encode()),
                None => refuse(reply, Status::NotReady),
            }
        }));
    }

    /// Answers the write node, which says that most copies hold something else in a block.
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
        {
            let core = self.core.borrow();
            let config = core.member(chunk).and_then(|member| member.config());
            let config = config.ok_or(Status::NotReady)?;
            // What another one says is of an order of writes that has ended.
            if config.epoch != native.fields.epoch || config.write_node != from {
                return Err(Status::StaleEpoch(config.epoch));
            }
        }
        let sums = self.copies.sums(chunk).ok_or(Status::NotReady)?;
        match sums.outvote(piece.range.start, sum).await {
            true => Ok(()),
            false => Err(Status::Differs),
        }
    }
}

fn refuse(reply: fabrics::target::Reply, status: Status) {
    let (code, result) = native_status_code(status).unwrap_or_default();
    reply.complete(NvmeStatus::new(1, code), result, Buffer::empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(digests: &[u32]) -> Votes {
        (1..).map(NodeId).zip(digests.iter().copied()).collect()
    }

    #[test]
    fn more_than_half_of_all_members_are_believed() {
        for (digests, members, right) in [
            (&[7, 7, 8][..], 3, Some(7)),
            (&[8, 7, 7], 3, Some(7)),
            (&[7, 8], 2, None),
            (&[7, 8, 9], 3, None),
            (&[7, 7, 8, 8], 4, None),
            (&[7, 7, 7, 8], 4, Some(7)),
            // One does not answer.
            (&[7, 8], 3, None),
            (&[7, 7], 4, None),
        ] {
            assert_eq!(majority(&votes(digests), members), right, "{digests:?} of {members}");
        }
        assert!(is_unanimous(&votes(&[7, 7, 7])) && is_unanimous(&votes(&[7])) && !is_unanimous(&votes(&[7, 8])));
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
