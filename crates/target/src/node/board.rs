//! What lets clients on this machine read this node's disks themselves (decision 0059).
//!
//! The board is memory that they may look at. A chunk copy that somebody reads by it has two words there, as
//! [`Location`] says: a version, odd while the copy may not be read, and the time until which it may. The copy's words
//! say no before anything that the core puts out is carried out; so a client that finds them unchanged after its disk
//! has answered knows that no write had begun and that the copy could still answer reads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use foundation::Instant;
use reactor::shared::Board as Words;
use reactor::{spawn, time};
use volume::ChunkId;
use volume::message::codec::Location;

use super::Node;

/// Words before the first slot: who the board is.
const HEAD_WORDS: usize = 2;
/// Words of a slot.
const SLOT_WORDS: usize = 2;
/// Chunk copies that may be read by the board at once.
const SLOTS_MAX: usize = 1 << 16;
/// How often the time until which copies may be read is moved on. Far below a grant's term.
const INTERVAL: Duration = Duration::from_millis(500);

struct Slot {
    /// Its first word.
    at: usize,
    /// Queues of clients that asked for it.
    watchers: u32,
}

/// See the module.
pub(super) struct Board {
    words: Words,
    identity: u128,
    time_namespace: u64,
    slots: RefCell<BTreeMap<ChunkId, Slot>>,
    free: RefCell<Vec<usize>>,
    next: Cell<usize>,
    refreshing: Cell<bool>,
}

/// The calling process's time namespace.
fn time_namespace() -> std::io::Result<u64> {
    Ok(rustix::fs::stat("/proc/self/ns/time")?.st_ino)
}

impl Board {
    /// A board for the calling thread's node.
    ///
    /// # Errors
    /// The system's: clients then read through the node as ever.
    pub(super) fn create() -> std::io::Result<Self> {
        let words = Words::create("redhare-board", HEAD_WORDS + SLOTS_MAX * SLOT_WORDS)?;
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let identity = u128::from_le_bytes(random);
        words.store(0, identity as u64);
        words.store(1, (identity >> 64) as u64);
        Ok(Self {
            words,
            identity,
            time_namespace: time_namespace()?,
            slots: RefCell::default(),
            free: RefCell::default(),
            next: Cell::new(HEAD_WORDS),
            refreshing: Cell::new(false),
        })
    }

    /// Gives a chunk its words, or counts one more who uses them. False if there are no more.
    fn watch(&self, chunk: ChunkId) -> bool {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(&chunk) {
            slot.watchers += 1;
            return true;
        }
        let at = match self.free.borrow_mut().pop() {
            Some(at) => at,
            None if slots.len() >= SLOTS_MAX => return false,
            None => {
                let at = self.next.replace(self.next.get() + SLOT_WORDS);
                self.words.store(at, 1);
                at
            }
        };
        slots.insert(chunk, Slot { at, watchers: 1 });
        true
    }

    /// One who used a chunk's words is gone. True if it was the last one.
    fn unwatch(&self, chunk: ChunkId) -> bool {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(&chunk) else {
            return false;
        };
        slot.watchers -= 1;
        if slot.watchers > 0 {
            return false;
        }
        let at = slot.at;
        slots.remove(&chunk);
        self.write(at, None);
        self.free.borrow_mut().push(at);
        true
    }

    /// Says until when a chunk may be read; `None` for not at all.
    pub(super) fn show(&self, chunk: ChunkId, right: Option<Instant>) {
        if let Some(slot) = self.slots.borrow().get(&chunk) {
            self.write(slot.at, right);
        }
    }

    fn write(&self, at: usize, right: Option<Instant>) {
        let version = self.words.load(at);
        match right {
            // The time first: with the new version nobody sees an older one.
            Some(until) => {
                self.words.store(at + 1, until.as_nanos());
                if version % 2 == 1 {
                    self.words.store(at, version + 1);
                }
            }
            None if version.is_multiple_of(2) => self.words.store(at, version + 1),
            None => {}
        }
    }

    fn chunks(&self) -> Vec<ChunkId> {
        self.slots.borrow().keys().copied().collect()
    }
}

impl Drop for Board {
    /// The process may live on for a while without its node.
    fn drop(&mut self) {
        for slot in self.slots.get_mut().values() {
            if self.words.load(slot.at).is_multiple_of(2) {
                self.words.store(slot.at, self.words.load(slot.at) + 1);
            }
        }
    }
}

impl Node {
    /// Where a chunk copy lies, for a client that may read the disk itself, and from now on keeps its words. `None` where
    /// there is no board, no such copy, or no room, or where the copy has checksums and the client does not check them.
    ///
    /// While sums are not on the disk the copy may not be read past the node: they are written now, and the client asks
    /// again.
    pub(super) fn locate(self: &Rc<Self>, chunk: ChunkId, checks: bool) -> Option<Location> {
        let board = self.board.as_ref()?;
        // While writes are under way the runs may change, but then the version is odd.
        let (disk, runs, sums) = self.copies.location(chunk)?;
        if sums.is_some() && !checks {
            return None;
        }
        // A copy that is being made is not known to the core yet.
        if !self.core.borrow_mut().watch(chunk, true) || !board.watch(chunk) {
            return None;
        }
        board.show(chunk, self.core.borrow().read_right(time::now(), chunk));
        let at = board.slots.borrow().get(&chunk)?.at;
        if !board.refreshing.replace(true) {
            drop(spawn(refresh(Rc::downgrade(self))));
        }
        let waits = self.copies.sums(chunk).filter(|sums| !sums.is_durable());
        let is_durable = waits.is_none();
        if let Some(sums) = waits {
            sums.flush_soon();
        }
        Some(Location {
            process: std::process::id(),
            time_namespace: board.time_namespace,
            board: u32::try_from(board.words.descriptor()).ok()?,
            board_identity: board.identity,
            slot: u32::try_from(at).ok()?,
            version: board.words.load(at) | u64::from(!is_durable),
            disk,
            runs,
            sums,
        })
    }

    /// From now on what was located of a copy is not read any more once its blocks lie elsewhere on the disk.
    pub(super) fn tell_board_of_moves(&self) {
        let weak = self.own.clone();
        self.copies.when_moved(move |chunk| {
            if let Some(node) = weak.upgrade()
                && let Some(board) = &node.board
            {
                board.show(chunk, None);
            }
        });
    }

    /// A client's queue that had located these chunks is gone.
    pub(super) fn forget_located(&self, chunks: impl IntoIterator<Item = ChunkId>) {
        let Some(board) = &self.board else { return };
        for chunk in chunks {
            if board.unwatch(chunk) {
                self.core.borrow_mut().watch(chunk, false);
            }
        }
    }

    /// Shows what the last event has changed. Before any output is carried out.
    pub(super) fn show_stirred(&self) {
        let Some(board) = &self.board else { return };
        let mut core = self.core.borrow_mut();
        while let Some(chunk) = core.poll_stirred() {
            board.show(chunk, core.read_right(time::now(), chunk));
        }
    }
}

/// The board of a real node. Without one its clients read through it.
pub(super) fn own_board() -> Option<Board> {
    Board::create()
        .inspect_err(
            |error| tracing::debug!(%error, "clients of this machine cannot read its disks themselves"),
        )
        .ok()
}

/// Moves on the time until which copies may be read, while anybody reads by the board.
async fn refresh(weak: Weak<Node>) {
    loop {
        time::sleep(INTERVAL).await;
        let Some(node) = weak.upgrade() else { return };
        let Some(board) = &node.board else { return };
        let chunks = board.chunks();
        if chunks.is_empty() {
            board.refreshing.set(false);
            return;
        }
        let now = time::now();
        for chunk in chunks {
            board.show(chunk, node.core.borrow().read_right(now, chunk));
        }
    }
}
