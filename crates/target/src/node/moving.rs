//! Copies move between this node's disks while they are used (`docs/decisions/0145`): what is written meanwhile is noted and copied again; in the
//! end, for a moment, whatever the core wants of the disk but reads waits.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use foundation::Instant;
use reactor::sync::{Notify, Semaphore};
use reactor::time;
use volume::{BlockRange, ChunkId, ChunkOutput, Output};

use super::copies::Relocation;
use super::{CopyError, Event, Node};

/// Blocks that are copied at a time.
const PIECE_BLOCKS: u32 = 256;
/// Blocks of which a write has all copied again.
const UNIT_BLOCKS: u32 = 64;
/// With so few units left the copy is frozen.
const UNITS_FEW: usize = 64;
/// So often at most what was written meanwhile is copied again until they are so few; with more than so many left then it is given up.
const ROUNDS: u32 = 8;
const UNITS_MANY: usize = 256;
/// A copy may be frozen for so long before the new one is equal: until writes that are under way have ended and what is left is copied.
const FREEZE_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks whether something has ended.
const LOOK: Duration = Duration::from_millis(1);

/// The move that is under way.
#[derive(Default)]
struct Move {
    /// Units that were written since they were copied.
    written: RefCell<BTreeSet<u32>>,
    is_frozen: Cell<bool>,
    /// What the core has put out for a frozen copy.
    waiting: RefCell<VecDeque<Output>>,
    /// The copy is to be deleted.
    is_unwanted: Cell<bool>,
}

impl Move {
    fn take_written(&self) -> BTreeSet<u32> {
        self.written.take()
    }
}

/// See the module.
pub(super) struct Moves {
    /// One copy moves at a time.
    turn: Rc<Semaphore>,
    moving: RefCell<Option<(ChunkId, Rc<Move>)>>,
    ended: Notify,
}

impl Default for Moves {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            moving: RefCell::default(),
            ended: Notify::new(),
        }
    }
}

impl Moves {
    fn of(&self, chunk: ChunkId) -> Option<Rc<Move>> {
        let moving = self.moving.borrow();
        let (_, moving) = moving.as_ref().filter(|(moved, _)| *moved == chunk)?;
        Some(moving.clone())
    }

    /// Keeps back what is wanted of the disk of a copy that is frozen; gives back what is not kept.
    pub(super) fn keep_back(&self, output: ChunkOutput) -> Option<ChunkOutput> {
        let frozen = output.chunk.and_then(|chunk| self.of(chunk));
        let changes = matches!(
            output.output,
            Output::Persist { .. }
                | Output::LocalWrite { .. }
                | Output::LocalFlush { .. }
                | Output::LocalSnapshot { .. }
        );
        match frozen.filter(|moving| moving.is_frozen.get() && changes) {
            Some(moving) => {
                moving.waiting.borrow_mut().push_back(output.output);
                None
            }
            None => Some(output),
        }
    }

    /// Whether a copy is frozen.
    pub(super) fn is_frozen(&self, chunk: ChunkId) -> bool {
        self.of(chunk).is_some_and(|moving| moving.is_frozen.get())
    }

    /// A write has ended: whatever of it was copied before may be old.
    pub(super) fn note_write(&self, chunk: ChunkId, range: BlockRange) {
        if let Some(moving) = self.of(chunk).filter(|_| range.count > 0) {
            let last = range.start.saturating_add(range.count - 1);
            let units = range.start / UNIT_BLOCKS..=last / UNIT_BLOCKS;
            moving.written.borrow_mut().extend(units);
        }
    }

    /// Copies that are to be deleted move no more: waits until none of them does.
    pub(super) async fn leave(&self, deleted: impl Fn(ChunkId) -> bool) {
        let moves = || {
            let moving = self.moving.borrow();
            let moving = moving.as_ref().filter(|(chunk, _)| deleted(*chunk));
            moving
                .inspect(|(_, moving)| moving.is_unwanted.set(true))
                .is_some()
        };
        self.ended.until(|| !moves()).await;
    }
}

impl Node {
    /// Moves the copy of a chunk to another disk of this node, where it is durably once this returns; nothing is done if it is there already. Other
    /// requests go on, and its own writes stop for a moment in the end. One copy moves at a time, the others wait for it.
    ///
    /// # Errors
    /// The copy is where it was. [`CopyError::Shares`] and [`CopyError::Written`] say that it cannot move now.
    pub async fn move_copy(&self, chunk: ChunkId, disk: u128) -> Result<(), CopyError> {
        let _turn = self.moves.turn.acquire().await;
        let Some(relocation) = self.copies.begin_move(chunk, disk)? else {
            return Ok(());
        };
        let moving = Rc::<Move>::default();
        *self.moves.moving.borrow_mut() = Some((chunk, moving.clone()));
        let moved = self.carry_over(&relocation, &moving).await;
        if moved.is_err() && !relocation.is_named() {
            relocation.give_up().await;
        }
        self.copies.thaw(&relocation);
        self.go_on(chunk, &moving);
        if moved.is_ok() {
            self.tell_of_room_after_move(chunk);
        }
        moved
    }

    /// What has waited is done, in its order and before anything that comes of it.
    fn go_on(&self, chunk: ChunkId, moving: &Move) {
        *self.moves.moving.borrow_mut() = None;
        let waiting = moving.waiting.take();
        let was_pumping = self.pumping.replace(true);
        let is_stopped = self.copies.is_stopped(chunk);
        for output in waiting {
            match output {
                // Nothing is written any more to one that takes no further part.
                Output::LocalWrite { io, .. }
                | Output::LocalFlush { io }
                | Output::LocalSnapshot { io, .. }
                    if is_stopped =>
                {
                    let (succeeded, read) = (false, None);
                    self.inbox.borrow_mut().push_back(Event::Local {
                        chunk,
                        io,
                        succeeded,
                        read,
                    });
                }
                output => {
                    let chunk = Some(chunk);
                    self.carry_out(ChunkOutput { chunk, output });
                }
            }
        }
        self.pumping.set(was_pumping);
        self.moves.ended.notify();
        self.pump();
    }

    async fn carry_over(&self, relocation: &Relocation, moving: &Move) -> Result<(), CopyError> {
        for piece in relocation.pieces(PIECE_BLOCKS) {
            self.copy_gently(relocation, moving, piece, false).await?;
        }
        let mut before = usize::MAX;
        for _ in 0..ROUNDS {
            let left = moving.written.borrow().len();
            // Where a round leaves hardly less than the one before, the next would, too.
            if left <= UNITS_FEW || left >= before / 4 * 3 {
                break;
            }
            // The faster it is copied again, the less is written meanwhile.
            let is_first = before == usize::MAX;
            before = left;
            for unit in moving.take_written() {
                match is_first {
                    true => {
                        self.copy_gently(relocation, moving, blocks_of(unit), true)
                            .await?
                    }
                    false => relocation.copy_blocks(blocks_of(unit), true).await?,
                }
            }
        }
        let chunk = relocation.chunk();
        let left = moving.written.borrow().len();
        if left > UNITS_MANY {
            return Err(CopyError::Written { chunk });
        }
        // What is copied by now is durable before others wait for the rest.
        relocation.sync().await?;
        moving.is_frozen.set(true);
        let until = time::now() + FREEZE_LIMIT;
        while relocation.is_written() {
            if time::now() >= until {
                return Err(CopyError::Written { chunk });
            }
            time::sleep(LOOK).await;
        }
        relocation.settle(&self.copies).await?;
        let rest = async {
            for unit in moving.take_written() {
                relocation.copy_blocks(blocks_of(unit), true).await?;
            }
            relocation.make_equal().await
        };
        let left = until.since(time::now());
        let equal = time::timeout(left, rest).await;
        let new = equal.unwrap_or(Err(CopyError::Written { chunk }))?;
        if moving.is_unwanted.get() {
            return Err(CopyError::NoSuchCopy { chunk });
        }
        let moved = relocation.finish(&self.copies, &new).await;
        if let Err(CopyError::MayStay { .. }) = &moved {
            // What were written now on one of them would lack on the other, which may be found.
            self.copies.stop(chunk);
            self.persist_failed(chunk, None);
        }
        moved
    }

    /// Copies a part, and then leaves the disks to others for as long, if they want anything.
    async fn copy_gently(
        &self,
        relocation: &Relocation,
        moving: &Move,
        blocks: Range<u32>,
        is_again: bool,
    ) -> Result<(), CopyError> {
        if moving.is_unwanted.get() {
            let chunk = relocation.chunk();
            return Err(CopyError::NoSuchCopy { chunk });
        }
        let began = time::now();
        relocation.copy_blocks(blocks, is_again).await?;
        if self.asked.is_recent() {
            let took: Duration = Instant::since(time::now(), began);
            time::sleep(took.max(LOOK)).await;
        }
        Ok(())
    }
}

fn blocks_of(unit: u32) -> Range<u32> {
    let first = unit * UNIT_BLOCKS;
    first..first.saturating_add(UNIT_BLOCKS)
}
