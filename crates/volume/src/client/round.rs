//! A reader whose checksum did not match asks every copy in turn, and wants to know in the end whether all of them have answered:
//! one that has not may have the right bytes.
//!
//! A copy that cannot answer is passed over all the same, so that a range of several chunks can be read though a different one of
//! each chunk's copies is away. Which nodes have answered is noted for each piece of the range, and compared with the members that the
//! configuration names in the end: one that it has left out in between counts no more, and a new one has to be heard.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bdev::{Data, IoError, Operation};
use foundation::{Instant, Lba};
use reactor::{BufferMut, time};

use super::channel::{Core, no_leaves};
use super::peers::{PeerStatus, Place};
use crate::identity::{ChunkIndex, NodeId};
use crate::output::Status;

/// More turns than this are not taken to mix copies, for a range of several pieces that different ones may have right.
const TURNS_MAX: u32 = 12;

/// So long a newer configuration is waited for, which may have left out who did not answer.
const REFRESH_WAIT: Duration = Duration::from_secs(1);

/// So long nobody waits for one again after masters that said nothing: a check of many damaged pieces would wait for each.
const REFRESH_PAUSE: Duration = Duration::from_secs(5);

/// Which copy a piece of a round is to be read from.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    round: u64,
    number: u32,
    /// After so many turns each piece is asked of another copy than the one before it.
    copies: u32,
}

/// What a node has said of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// What its copy has, or that this does not fit its own checksum.
    Bytes,
    /// That its disk failed. That may be so only now: a path is gone, or a request took too long.
    Failed,
}

/// A range is split in the same way at each attempt, so that where a piece begins says which it is.
type Piece = (ChunkIndex, u32);

/// Of each piece that a round has touched, the nodes that have answered.
type Heard = BTreeMap<Piece, Vec<(NodeId, Said)>>;

/// The rounds of a channel that are under way.
#[derive(Default)]
pub(super) struct Rounds {
    last: Cell<u64>,
    heard: RefCell<BTreeMap<u64, Heard>>,
    /// When a newer configuration was last waited for in vain.
    unanswered: Cell<Option<Instant>>,
}

fn piece_of(place: Place) -> Piece {
    (place.chunk, place.first_block)
}

impl Rounds {
    fn begin(&self) -> u64 {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.heard.borrow_mut().insert(number, Heard::new());
        number
    }

    /// A piece of it is asked for.
    pub(super) fn touch(&self, turn: Turn, place: Place) {
        if let Some(heard) = self.heard.borrow_mut().get_mut(&turn.round) {
            heard.entry(piece_of(place)).or_default();
        }
    }

    /// The copy that a piece is asked of first, counted in the order of the configuration, and going round.
    pub(super) fn copy(&self, turn: Turn, place: Place) -> u32 {
        let shift = turn.number / turn.copies;
        if shift == 0 {
            return turn.number;
        }
        let rounds = self.heard.borrow();
        let before = rounds
            .get(&turn.round)
            .map(|heard| heard.range(..piece_of(place)).count());
        // Chunks may have fewer members than the turns of a shift: where these begin must not move with the shift.
        turn.number % turn.copies + shift * before.unwrap_or(0) as u32
    }

    /// A node has answered.
    pub(super) fn hear(&self, turn: Turn, place: Place, node: NodeId, status: PeerStatus) {
        let said = match status {
            PeerStatus::Answered(Status::Done) | PeerStatus::Failed(IoError::Checksum) => Said::Bytes,
            // What nobody here knows looks like an error of the medium, too.
            PeerStatus::Answered(Status::DeviceFailed) | PeerStatus::Failed(IoError::Media) => Said::Failed,
            _ => return,
        };
        if let Some(heard) = self.heard.borrow_mut().get_mut(&turn.round) {
            heard.entry(piece_of(place)).or_default().push((node, said));
        }
    }
}

/// See the module. It is of one range, which is read again and again.
pub struct Round {
    core: Rc<Core>,
    number: u64,
    /// A turn ended with an error: nobody had some piece.
    has_failed: Cell<bool>,
}

impl Round {
    pub(super) fn new(core: Rc<Core>) -> Self {
        let number = core.rounds.begin();
        Self {
            core,
            number,
            has_failed: Cell::new(false),
        }
    }

    /// Reads as [`bdev::ChannelExt::read`] does, by the turn of this number, from 0 to before [`Round::turns`]: as many as there are copies
    /// ask one of these first for all pieces. If it cannot answer, another one gives the bytes.
    pub async fn read(&self, lba: Lba, buffer: BufferMut, number: u32) -> (Result<(), IoError>, BufferMut) {
        let blocks = match self.core.shape().blocks_in(buffer.len()) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buffer),
        };
        let turn = Turn {
            round: self.number,
            number,
            copies: self.copies().max(1),
        };
        let (request, pending) = bdev::request(Operation::Read, lba, blocks, Data::Into(buffer));
        self.core.submit(request, Some(turn), no_leaves());
        let completion = pending.await;
        if completion.status.is_err() {
            self.has_failed.set(true);
        }
        match completion.data {
            Data::Into(buffer) => (completion.status, buffer),
            _ => (completion.status.and(Err(IoError::Aborted)), BufferMut::empty()),
        }
    }

    /// As many as a chunk should have, or as one that was read has now.
    fn copies(&self) -> u32 {
        let rounds = self.core.rounds.heard.borrow();
        let touched = rounds[&self.number].keys();
        let most = touched.map(|(chunk, _)| self.core.members(*chunk).len()).max();
        self.core.copies().max(most.unwrap_or(0) as u32)
    }

    /// Turns to be taken: one for each copy, and where several pieces were read, which different copies may have right, some more; not if
    /// nobody gave one of them, where each turn may take as long as a read may. Does not block.
    pub fn turns(&self) -> u32 {
        let copies = self.copies();
        match self.core.rounds.heard.borrow()[&self.number].len() {
            0 | 1 => copies,
            _ if self.has_failed.get() => copies,
            _ => copies.max(copies.saturating_mul(copies).min(TURNS_MAX)),
        }
    }

    /// Whether every copy of what was read has answered with what its medium has, as far as is known now. Where all say that their disks
    /// failed they have answered, too: nobody else is left who could. If one has not answered, a newer configuration is asked for, which may
    /// have left it out.
    pub async fn has_heard_all(&self) -> bool {
        self.core.look_at_map();
        if self.knows_all() {
            return true;
        }
        let unanswered = &self.core.rounds.unanswered;
        if unanswered
            .get()
            .is_some_and(|last| time::now().since(last) < REFRESH_PAUSE)
        {
            return false;
        }
        let refreshed = self.core.refreshed.changed();
        self.core.refresh();
        // A master that does not answer in time leaves nobody out.
        let answered = time::timeout(REFRESH_WAIT, refreshed).await;
        unanswered.set(answered.is_err().then(time::now));
        self.core.look_at_map();
        self.knows_all()
    }

    /// By the configurations that are known.
    fn knows_all(&self) -> bool {
        let rounds = self.core.rounds.heard.borrow();
        let heard = &rounds[&self.number];
        let is_heard = |(&(chunk, _), answers): (&Piece, &Vec<(NodeId, Said)>)| {
            let members = self.core.members(chunk);
            let has = |node: &NodeId, said| answers.contains(&(*node, said));
            let any_bytes = members.iter().any(|node| has(node, Said::Bytes));
            let is_in = |node| has(node, Said::Bytes) || (!any_bytes && has(node, Said::Failed));
            !members.is_empty() && members.iter().all(is_in)
        };
        // What was never asked for was not heard of.
        !heard.is_empty() && heard.iter().all(is_heard)
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        self.core.rounds.heard.borrow_mut().remove(&self.number);
    }
}
