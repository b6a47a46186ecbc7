//! A reader whose checksum did not match asks every copy in turn, and wants to know in the end whether all of them have answered:
//! one that has not may have the right bytes.
//!
//! A copy that cannot answer is passed over all the same, so that a range of several chunks can be read though a different one of
//! each chunk's copies is away. Which nodes have answered is noted for each chunk, and compared with the members that the configuration
//! names in the end: one that it has left out in between counts no more, and a new one has to be heard.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bdev::{Data, IoError, Operation};
use foundation::Lba;
use reactor::BufferMut;

use super::channel::{Core, no_leaves};
use crate::identity::{ChunkIndex, NodeId};

/// Which copy a piece of a round is to be read from.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    round: u64,
    /// Counted in the order of the configuration, from 0 and going round. It is asked first.
    pub(super) copy: u32,
}

/// Of each chunk that a round has touched, the nodes that have answered.
type Heard = BTreeMap<ChunkIndex, Vec<NodeId>>;

/// The rounds of a channel that are under way.
#[derive(Default)]
pub(super) struct Rounds {
    last: Cell<u64>,
    heard: RefCell<BTreeMap<u64, Heard>>,
}

impl Rounds {
    fn begin(&self) -> u64 {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.heard.borrow_mut().insert(number, Heard::new());
        number
    }

    /// A piece of it is asked for.
    pub(super) fn touch(&self, turn: Turn, chunk: ChunkIndex) {
        if let Some(heard) = self.heard.borrow_mut().get_mut(&turn.round) {
            heard.entry(chunk).or_default();
        }
    }

    /// A node has given what its copy has, or said that its medium has it no more. Nobody may wait for that any more.
    pub(super) fn hear(&self, turn: Turn, chunk: ChunkIndex, node: NodeId) {
        if let Some(heard) = self.heard.borrow_mut().get_mut(&turn.round) {
            heard.entry(chunk).or_default().push(node);
        }
    }
}

/// See the module. It is of one range, which is read again and again.
pub struct Round {
    core: Rc<Core>,
    number: u64,
}

impl Round {
    pub(super) fn new(core: Rc<Core>) -> Self {
        let number = core.rounds.begin();
        Self { core, number }
    }

    /// Reads as [`bdev::ChannelExt::read`] does, from the copy of this number first, from 0 to before [`Round::copies`]. If it cannot
    /// answer, another one gives the bytes.
    pub async fn read(&self, lba: Lba, buffer: BufferMut, copy: u32) -> (Result<(), IoError>, BufferMut) {
        let blocks = match self.core.shape().blocks_in(buffer.len()) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buffer),
        };
        let round = self.number;
        let (request, pending) = bdev::request(Operation::Read, lba, blocks, Data::Into(buffer));
        self.core.submit(request, Some(Turn { round, copy }), no_leaves());
        let completion = pending.await;
        match completion.data {
            Data::Into(buffer) => (completion.status, buffer),
            _ => (completion.status.and(Err(IoError::Aborted)), BufferMut::empty()),
        }
    }

    /// Copies to be asked: as many as a chunk should have, or as one that was read has now. Does not block.
    pub fn copies(&self) -> u32 {
        let rounds = self.core.rounds.heard.borrow();
        let touched = rounds[&self.number].keys();
        let most = touched.map(|chunk| self.core.members(*chunk).len()).max();
        self.core.copies().max(most.unwrap_or(0) as u32)
    }

    /// Whether every copy of what was read has answered, as far as is known now: has given its bytes, or said that its medium has them
    /// no more. Does not block.
    pub fn has_heard_all(&self) -> bool {
        self.core.look_at_map();
        let rounds = self.core.rounds.heard.borrow();
        rounds[&self.number].iter().all(|(chunk, heard)| {
            let members = self.core.members(*chunk);
            !members.is_empty() && members.iter().all(|node| heard.contains(node))
        })
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        self.core.rounds.heard.borrow_mut().remove(&self.number);
    }
}
