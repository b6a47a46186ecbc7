//! A request of several pieces: at most a window of them under way, ended when all have.
//!
//! A read's buffer is split without copying and put together again in the order of the pieces; a
//! write's pieces are slices of its buffer. After the first failure no further piece is begun.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::{Data, IoError, Token};
use foundation::{BlockCount, Lba};
use reactor::{Buffer, BufferMut, time};

use crate::identity::{BlockRange, ChunkIndex};
use crate::message::codec::{NATIVE_BLOCKS_MAX, NativeOperation};

use super::channel::Core;
use super::claims::{Leaves, leave_for};
use super::job::{Job, Owner, Terms};
use super::peers::Place;
use super::source::VolumeMap;
use super::unflushed::Stamp;

/// What is still to be begun.
pub(super) enum Plan {
    /// Blocks from `next` to before `end`.
    Range { next: Lba, end: Lba },
    /// These runs of blocks, last first, to be deallocated.
    Runs(Vec<(ChunkIndex, BlockRange)>),
    /// A flush or fence of each of these chunks, last first.
    Chunks(Vec<ChunkIndex>),
}

struct State {
    plan: Plan,
    /// Of a read, the part of the buffer that no piece has yet.
    rest: BufferMut,
    /// Of a read, the pieces' parts that have come back.
    parts: Vec<Option<BufferMut>>,
    begun: usize,
    under_way: usize,
    beginning: bool,
    status: Result<(), IoError>,
    token: Option<Token>,
}

/// See the module.
pub(super) struct Group {
    terms: Terms,
    map: Arc<VolumeMap>,
    /// Of a write, all its bytes.
    whole: RefCell<Option<Buffer>>,
    first_lba: Lba,
    /// Of a portal's write, the claims on its chunks.
    leaves: Leaves,
    /// Of a flush, what is durable when it has succeeded.
    stamps: Vec<Stamp>,
    state: RefCell<State>,
}

impl Group {
    /// Begins a request for blocks.
    pub(super) fn start_range(
        core: &Rc<Core>,
        terms: Terms,
        map: Arc<VolumeMap>,
        range: (Lba, BlockCount),
        (data, leaves): (Data, Leaves),
        token: Token,
    ) {
        let (first_lba, blocks) = range;
        let end = Lba(first_lba.0 + blocks.0);
        let plan = match terms.operation {
            NativeOperation::Deallocate { .. } => {
                let runs = map.geometry.runs(first_lba, blocks);
                let mut runs = runs.expect("the range was checked against the same geometry");
                runs.reverse();
                Plan::Runs(runs)
            }
            _ => Plan::Range { next: first_lba, end },
        };
        Self::start(
            core,
            terms,
            map,
            (first_lba, plan),
            (data, leaves),
            Vec::new(),
            token,
        );
    }

    /// Begins a flush or a fence of these chunks.
    pub(super) fn start_chunks(
        core: &Rc<Core>,
        terms: Terms,
        map: Arc<VolumeMap>,
        (chunks, stamps): (Vec<ChunkIndex>, Vec<Stamp>),
        data: Data,
        token: Token,
    ) {
        Self::start(
            core,
            terms,
            map,
            (Lba(0), Plan::Chunks(chunks)),
            (data, Rc::from([])),
            stamps,
            token,
        );
    }

    fn start(
        core: &Rc<Core>,
        terms: Terms,
        map: Arc<VolumeMap>,
        (first_lba, plan): (Lba, Plan),
        (data, leaves): (Data, Leaves),
        stamps: Vec<Stamp>,
        token: Token,
    ) {
        let (rest, whole) = match data {
            Data::Into(buffer) => (buffer, None),
            Data::From(buffer) => (BufferMut::empty(), Some(buffer)),
            Data::None => (BufferMut::empty(), None),
        };
        let state = State {
            plan,
            rest,
            parts: Vec::new(),
            begun: 0,
            under_way: 0,
            beginning: false,
            status: Ok(()),
            token: Some(token),
        };
        let group = Rc::new(Self {
            terms,
            map,
            whole: RefCell::new(whole),
            first_lba,
            leaves,
            stamps,
            state: RefCell::new(state),
        });
        group.begin_pieces(core);
    }

    /// Begins pieces up to the window. A piece that ends at once comes back here through
    /// `part_ended`, which leaves the loop to this frame: no recursion, however many pieces there are.
    fn begin_pieces(self: &Rc<Self>, core: &Rc<Core>) {
        if std::mem::replace(&mut self.state.borrow_mut().beginning, true) {
            return;
        }
        loop {
            let next = {
                let mut state = self.state.borrow_mut();
                if state.under_way >= core.options.window || state.status.is_err() {
                    None
                } else {
                    // A host gives up what takes longer.
                    let stands_still = core.claims.is_none().then_some(core.options.time_limit);
                    self.next_piece(&mut state, stands_still)
                }
            };
            let Some((job, data)) = next else { break };
            core.start(job, data);
        }
        let ended = {
            let mut state = self.state.borrow_mut();
            state.beginning = false;
            state.under_way == 0
        };
        if ended {
            self.end(core);
        }
    }

    /// `time_limit` is that of each piece of a request that may be as long as the volume: a limit of standing still. None if such a request
    /// has as long as any other.
    fn next_piece(self: &Rc<Self>, state: &mut State, time_limit: Option<Duration>) -> Option<(Job, Data)> {
        let mut terms = self.terms;
        let (place, first_lba, blocks) = match &mut state.plan {
            Plan::Range { next, end } => {
                let left = BlockCount(end.0 - next.0);
                let mut pieces = self.map.geometry.pieces(*next, left).ok()?;
                let piece = pieces.next()?;
                let blocks = piece.range.count.min(NATIVE_BLOCKS_MAX);
                let first_lba = *next;
                *next = Lba(next.0 + u64::from(blocks));
                let place = Place {
                    chunk: piece.chunk,
                    first_block: piece.range.start,
                };
                (place, first_lba, blocks)
            }
            Plan::Runs(runs) => {
                let (chunk, run) = runs.pop()?;
                let (first_lba, in_piece) = self.map.geometry.piece_of_run(chunk, run)?;
                if in_piece < run.count
                    && let NativeOperation::Deallocate { fua } = terms.operation
                {
                    terms.operation = NativeOperation::DeallocateRun { fua };
                }
                let place = Place {
                    chunk,
                    first_block: run.start,
                };
                (place, first_lba, run.count)
            }
            Plan::Chunks(chunks) => {
                let chunk = chunks.pop()?;
                let place = Place {
                    chunk,
                    first_block: 0,
                };
                (place, self.map.geometry.first_lba(chunk)?, 0)
            }
        };
        if let NativeOperation::WriteZeroes { .. }
        | NativeOperation::Deallocate { .. }
        | NativeOperation::DeallocateRun { .. }
        | NativeOperation::Fence = terms.operation
            && let Some(time_limit) = time_limit
        {
            terms.deadline = time::now() + time_limit;
        }
        terms.claim = leave_for(&self.leaves, place.chunk);
        let length = blocks as usize * self.map.geometry.block_bytes as usize;
        let whole = self.whole.borrow();
        let (kept, data) = match (terms.operation, &*whole) {
            (NativeOperation::Read, _) => (None, Data::Into(state.rest.split_to(length))),
            (_, Some(buffer)) => {
                let offset =
                    (first_lba.0 - self.first_lba.0) as usize * self.map.geometry.block_bytes as usize;
                let slice = buffer.slice(offset..offset + length);
                (Some(slice.clone()), Data::From(slice))
            }
            (_, None) => (None, Data::None),
        };
        let index = state.begun;
        state.begun += 1;
        state.under_way += 1;
        if terms.operation == NativeOperation::Read {
            state.parts.push(None);
        }
        let owner = Owner::Part {
            group: self.clone(),
            index,
        };
        let job = Job {
            terms,
            place,
            first_lba,
            blocks,
            kept,
            owner,
        };
        Some((job, data))
    }

    /// A node has refused a run as a whole: its pieces are asked for one by one.
    pub(super) fn split_run(self: &Rc<Self>, core: &Rc<Core>, chunk: ChunkIndex, mut run: BlockRange) {
        {
            let mut state = self.state.borrow_mut();
            state.under_way -= 1;
            if let Plan::Runs(runs) = &mut state.plan {
                while run.count > 0
                    && let Some((_, count)) = self.map.geometry.piece_of_run(chunk, run)
                {
                    let count = count.min(run.count);
                    let start = run.start;
                    runs.push((chunk, BlockRange { start, count }));
                    run.start += count;
                    run.count -= count;
                }
            }
        }
        self.begin_pieces(core);
    }

    /// A piece has ended.
    pub(super) fn part_ended(
        self: &Rc<Self>,
        core: &Rc<Core>,
        index: usize,
        status: Result<(), IoError>,
        data: Data,
    ) {
        {
            let mut state = self.state.borrow_mut();
            state.under_way -= 1;
            state.status = state.status.and(status);
            if let (Data::Into(buffer), Some(part)) = (data, state.parts.get_mut(index)) {
                *part = Some(buffer);
            }
        }
        self.begin_pieces(core);
    }

    fn end(&self, core: &Rc<Core>) {
        let (token, status, data) = {
            let mut state = self.state.borrow_mut();
            let Some(token) = state.token.take() else { return };
            let data = match self.whole.borrow_mut().take() {
                Some(buffer) => Data::From(buffer),
                None if self.terms.operation == NativeOperation::Read => join(&mut state),
                None => Data::None,
            };
            (token, state.status, data)
        };
        if status.is_ok() {
            core.unflushed.flushed(&self.stamps);
        }
        token.complete(status, data);
    }
}

/// The read's buffer from its parts; none if a part was lost with its connection.
fn join(state: &mut State) -> Data {
    let rest = std::mem::replace(&mut state.rest, BufferMut::empty());
    let parts = state.parts.drain(..).chain([Some(rest)]);
    let mut joined = Some(BufferMut::empty());
    for part in parts {
        joined = match (joined, part) {
            (Some(before), Some(part)) => before.join(part).ok(),
            _ => None,
        };
    }
    joined.map_or(Data::None, Data::Into)
}
