//! Page-aligned buffers from a pool that belongs to one thread.
//!
//! A [`BufferMut`] is the only view of its bytes; [`BufferMut::freeze`] makes it a [`Buffer`], which may
//! be cloned and sliced without copying, for a write that goes to several copies. The memory goes
//! back to the pool with the last view. Pools carve blocks out of a few large regions, so that a
//! transport can register them once. A full pool makes callers wait: it never grows past its limit.
//!
//! What was carved into blocks of one size is carved anew when another size is wanted: a region without a view at once, and for who
//! waits one region retires, which gives no block away any more until all of them are back. Otherwise a burst of one size would take
//! the memory from all others for good.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use crate::context;
use crate::net::ReceivedBytes;
use crate::sync::Notify;

mod region;
use region::Region;

/// Block sizes, in bytes. A buffer is served from the smallest that holds it.
const CLASS_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Regions are this large, so that growing is rare and the blocks of one class lie together.
const REGION_BYTES: usize = 4 << 20;
/// The longest buffer a pool serves, in bytes.
pub const BUFFER_BYTES_MAX: usize = CLASS_BYTES[CLASS_BYTES.len() - 1];
/// Buffers start at multiples of this many bytes, which direct I/O needs.
pub const BUFFER_ALIGNMENT: usize = 4096;

enum Block {
    Pooled {
        carved: Rc<Carved>,
        offset: usize,
    },
    /// Memory of somebody else's, see [`Buffer::lent`].
    Lent {
        first: NonNull<u8>,
        _owner: Box<dyn Any>,
    },
    /// What a connection received, where the kernel put it.
    Received(ReceivedBytes),
    /// Nothing: kept to be used again.
    Shell,
}

/// Shells that a thread keeps, at most: as many as views of received bytes are likely to live at once.
const SHELLS_MAX: usize = 64;

thread_local! {
    /// So that receiving allocates nothing once it is warm.
    static SHELLS: RefCell<Vec<Rc<Block>>> = const { RefCell::new(Vec::new()) };
}

impl Block {
    fn pointer_at(&self, start: usize) -> *mut u8 {
        match self {
            Self::Pooled { carved, offset } => carved.region.pointer_at(offset + start),
            // Wrapping, since what is added is checked where views are made, and nothing is read here.
            Self::Lent { first, .. } => first.as_ptr().wrapping_add(start),
            // As above. Only views that may be written are written, and none of these is.
            Self::Received(bytes) => bytes.as_ptr().wrapping_add(start).cast_mut(),
            Self::Shell => NonNull::dangling().as_ptr(),
        }
    }
}

/// A region as it is carved into blocks of one class.
struct Carved {
    region: Rc<Region>,
    class: usize,
    /// Blocks of it that have a view.
    used: Cell<usize>,
    /// It gives no block away any more.
    retires: Cell<bool>,
    pool: Weak<Inner>,
}

/// A region that gives no block away until all of them are back.
struct Retiring {
    carved: Rc<Carved>,
    /// What it is to be carved into then.
    class: usize,
    /// Those that are back.
    blocks: Vec<Rc<Block>>,
    /// How often somebody has waited in vain since it began.
    rounds: u32,
}

/// Another region retires when one has not come back after so many rounds: a block of it may be held for very long.
const ROUNDS_MAX: u32 = 1024;

struct Inner {
    free: [RefCell<Vec<Rc<Block>>>; CLASS_BYTES.len()],
    /// All regions that are carved.
    carved: RefCell<Vec<Rc<Carved>>>,
    /// The region that retires, if any does.
    retiring: RefCell<Option<Retiring>>,
    reserved_bytes: Cell<usize>,
    limit_bytes: usize,
    freed: Notify,
    waiters: Cell<usize>,
}

/// A pool of buffers. Clones share it.
#[derive(Clone)]
pub struct BufferPool(Rc<Inner>);

/// Why a buffer could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The pool is at its limit; a buffer will come back when some I/O ends.
    #[error("all {limit_bytes} bytes of the buffer pool are in use; wait for I/O to end or raise the limit")]
    Exhausted {
        /// The pool's limit, in bytes.
        limit_bytes: usize,
    },
    /// No pool serves buffers of this length.
    #[error(
        "a buffer of {length_bytes} bytes was asked for; the most is {BUFFER_BYTES_MAX}: split the request"
    )]
    TooLong {
        /// The length asked for, in bytes.
        length_bytes: usize,
    },
}

impl BufferPool {
    /// An empty pool that reserves at most `limit_bytes` (rounded up to whole regions of 4 MiB).
    pub fn new(limit_bytes: usize) -> Self {
        Self(Rc::new(Inner {
            free: Default::default(),
            carved: RefCell::default(),
            retiring: RefCell::default(),
            reserved_bytes: Cell::new(0),
            limit_bytes: limit_bytes.next_multiple_of(REGION_BYTES),
            freed: Notify::new(),
            waiters: Cell::new(0),
        }))
    }

    /// The pool of the running reactor.
    ///
    /// # Panics
    /// Outside a reactor.
    pub fn current() -> Self {
        context::with(|context| context.pool.clone())
    }

    /// A buffer of `length_bytes`, without waiting. Its contents are what its last user left.
    pub fn try_allocate(&self, length_bytes: usize) -> Result<BufferMut, AllocateError> {
        let class = class_of(length_bytes)?;
        let free = self.0.free[class].borrow_mut().pop();
        let block = match free {
            Some(block) => block,
            None => self.find(class)?,
        };
        if let Block::Pooled { carved, .. } = &*block {
            carved.used.set(carved.used.get() + 1);
        }
        Ok(BufferMut {
            view: View {
                block: Some(block),
                start: 0,
                length: length_bytes,
            },
        })
    }

    /// A buffer of `length_bytes`; waits while the pool is exhausted.
    pub async fn allocate(&self, length_bytes: usize) -> Result<BufferMut, AllocateError> {
        let mut waiter = None;
        loop {
            let freed = self.0.freed.changed();
            match self.try_allocate(length_bytes) {
                Err(AllocateError::Exhausted { .. }) => {
                    waiter.get_or_insert_with(|| Waiter::new(&self.0));
                    self.retire_for(class_of(length_bytes)?);
                    freed.await;
                }
                result => return result,
            }
        }
    }

    /// Memory taken from the system so far, in bytes.
    pub fn reserved_bytes(&self) -> usize {
        self.0.reserved_bytes.get()
    }

    /// Memory of blocks that have a view, in bytes. Walks the regions.
    pub fn in_use_bytes(&self) -> usize {
        let all = self.0.carved.borrow();
        all.iter()
            .map(|carved| carved.used.get() * CLASS_BYTES[carved.class])
            .sum()
    }

    /// A block of a class that has none free: of a region that nobody uses, or a longer one.
    fn find(&self, class: usize) -> Result<Rc<Block>, AllocateError> {
        let inner = &self.0;
        if let Some(region) = self.reserve().or_else(|| self.take_unused()) {
            inner.carve(region, class);
        }
        let mut from_here = inner.free[class..].iter();
        let found = from_here.find_map(|free| free.borrow_mut().pop());
        found.ok_or(AllocateError::Exhausted {
            limit_bytes: inner.limit_bytes,
        })
    }

    /// More memory of the system's, below the limit.
    fn reserve(&self) -> Option<Rc<Region>> {
        let reserved = self.0.reserved_bytes.get() + REGION_BYTES;
        (reserved <= self.0.limit_bytes).then(|| {
            self.0.reserved_bytes.set(reserved);
            Rc::new(Region::new(REGION_BYTES))
        })
    }

    /// A region of which no block has a view.
    fn take_unused(&self) -> Option<Rc<Region>> {
        let unused = {
            let carved = self.0.carved.borrow();
            carved.iter().find(|carved| carved.used.get() == 0).cloned()?
        };
        self.0.withdraw(&unused);
        self.0.forget(&unused);
        Some(unused.region.clone())
    }

    /// Somebody waits for a block of this class: one region of another retires. Of those the one that will be free first, as far as can be
    /// seen.
    fn retire_for(&self, class: usize) {
        let inner = &self.0;
        let mut before = None;
        if let Some(retiring) = &mut *inner.retiring.borrow_mut() {
            retiring.rounds += 1;
            if retiring.rounds < ROUNDS_MAX {
                return;
            }
            before = Some(retiring.carved.clone());
        }
        inner.stay();
        let chosen = {
            let carved = inner.carved.borrow();
            let is_before =
                |carved: &Rc<Carved>| before.as_ref().is_some_and(|before| Rc::ptr_eq(before, carved));
            let others = carved
                .iter()
                .filter(|carved| carved.class != class && !is_before(carved));
            others.min_by_key(|carved| carved.used.get()).cloned()
        };
        let Some(carved) = chosen else { return };
        let blocks = inner.withdraw(&carved);
        carved.retires.set(true);
        *inner.retiring.borrow_mut() = Some(Retiring {
            carved,
            class,
            blocks,
            rounds: 0,
        });
    }
}

impl Inner {
    /// Makes all of a region blocks of a class.
    fn carve(self: &Rc<Self>, region: Rc<Region>, class: usize) {
        let carved = Rc::new(Carved {
            region,
            class,
            used: Cell::new(0),
            retires: Cell::new(false),
            pool: Rc::downgrade(self),
        });
        self.carved.borrow_mut().push(carved.clone());
        let mut free = self.free[class].borrow_mut();
        // Descending, so that the first pops come from the region's start.
        free.extend((0..REGION_BYTES / CLASS_BYTES[class]).rev().map(|index| {
            let offset = index * CLASS_BYTES[class];
            Rc::new(Block::Pooled {
                carved: carved.clone(),
                offset,
            })
        }));
    }

    /// Takes a region's free blocks away.
    fn withdraw(&self, carved: &Rc<Carved>) -> Vec<Rc<Block>> {
        let is_of = |block: &mut Rc<Block>| matches!(&**block, Block::Pooled { carved: of, .. } if Rc::ptr_eq(of, carved));
        self.free[carved.class]
            .borrow_mut()
            .extract_if(.., is_of)
            .collect()
    }

    /// The region that retires, if any does, goes on as it was.
    fn stay(&self) {
        if let Some(Retiring { carved, blocks, .. }) = self.retiring.take() {
            carved.retires.set(false);
            self.free[carved.class].borrow_mut().extend(blocks);
        }
    }

    fn forget(&self, carved: &Rc<Carved>) {
        self.carved
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, carved));
    }

    /// A block of the region that retires is back. With the last of them, those who wait get all of it.
    fn is_back(self: &Rc<Self>, block: Rc<Block>, is_last: bool) {
        let mut place = self.retiring.borrow_mut();
        if let Some(retiring) = &mut *place {
            retiring.blocks.push(block);
        }
        if is_last && let Some(Retiring { carved, class, .. }) = place.take() {
            self.forget(&carved);
            self.carve(carved.region.clone(), class);
        }
    }
}

/// The smallest class that holds so many bytes.
fn class_of(length_bytes: usize) -> Result<usize, AllocateError> {
    let class = CLASS_BYTES.iter().position(|&bytes| length_bytes <= bytes);
    class.ok_or(AllocateError::TooLong { length_bytes })
}

struct Waiter<'a>(&'a Inner);

impl<'a> Waiter<'a> {
    fn new(pool: &'a Inner) -> Self {
        pool.waiters.set(pool.waiters.get() + 1);
        Self(pool)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let left = self.0.waiters.get() - 1;
        self.0.waiters.set(left);
        if left == 0 {
            self.0.stay();
        }
    }
}

/// A range of a block, counted through the block's `Rc`.
struct View {
    /// Absent only for empty views and while being dropped.
    block: Option<Rc<Block>>,
    start: usize,
    length: usize,
}

impl View {
    fn pointer(&self) -> *mut u8 {
        match &self.block {
            Some(block) => block.pointer_at(self.start),
            None => std::ptr::NonNull::dangling().as_ptr(),
        }
    }

    fn part(&self, range: Range<usize>) -> View {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "the part {range:?} lies outside a buffer of {} bytes",
            self.length
        );
        View {
            block: self.block.clone(),
            start: self.start + range.start,
            length: range.end - range.start,
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let Some(mut block) = self.block.take() else {
            return;
        };
        if Rc::strong_count(&block) > 1 {
            return;
        }
        if let Some(received @ Block::Received(_)) = Rc::get_mut(&mut block) {
            *received = Block::Shell;
            // Where the thread ends there is no list any more, and no use for it.
            let _ = SHELLS.try_with(|shells| {
                let mut shells = shells.borrow_mut();
                if shells.len() < SHELLS_MAX {
                    shells.push(block);
                }
            });
            return;
        }
        let Block::Pooled { carved, .. } = &*block else {
            return;
        };
        let Some(pool) = carved.pool.upgrade() else { return };
        let used = carved.used.get() - 1;
        carved.used.set(used);
        if carved.retires.get() {
            pool.is_back(block, used == 0);
        } else {
            let class = carved.class;
            pool.free[class].borrow_mut().push(block);
        }
        if pool.waiters.get() > 0 {
            pool.freed.notify();
        }
    }
}

/// The only view of some bytes: they may be written.
pub struct BufferMut {
    view: View,
}

/// A shared view of bytes that no longer change. Cloning and slicing copy nothing.
pub struct Buffer {
    view: View,
}

impl BufferMut {
    /// A buffer of no bytes.
    pub fn empty() -> Self {
        Self {
            view: View {
                block: None,
                start: 0,
                length: 0,
            },
        }
    }

    /// Gives up the right to write.
    pub fn freeze(self) -> Buffer {
        Buffer { view: self.view }
    }

    /// Splits off the first `length` bytes; `self` keeps the rest.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn split_to(&mut self, length: usize) -> BufferMut {
        let head = self.view.part(0..length);
        self.view.start += length;
        self.view.length -= length;
        BufferMut { view: head }
    }

    /// Puts two neighbours from the same block together again, or gives both back.
    pub fn join(self, next: BufferMut) -> Result<BufferMut, (BufferMut, BufferMut)> {
        if next.is_empty() {
            return Ok(self);
        }
        if self.is_empty() {
            return Ok(next);
        }
        let same = match (&self.view.block, &next.view.block) {
            (Some(a), Some(b)) => Rc::ptr_eq(a, b),
            _ => false,
        };
        if !same || self.view.start + self.view.length != next.view.start {
            return Err((self, next));
        }
        let mut joined = self;
        joined.view.length += next.view.length;
        Ok(joined)
    }

    /// Cuts the buffer down to its first `length` bytes; no effect if it is not longer.
    pub fn truncate(&mut self, length: usize) {
        self.view.length = self.view.length.min(length);
    }

    /// Address and length for the kernel; valid while this buffer lives.
    pub(crate) fn raw_parts(&mut self) -> (*mut u8, usize) {
        (self.view.pointer(), self.view.length)
    }
}

impl Buffer {
    /// A buffer of no bytes.
    pub fn empty() -> Self {
        BufferMut::empty().freeze()
    }

    /// A view of bytes that lie elsewhere, for as long as their owner is kept: it is dropped with the last view, on this
    /// thread.
    ///
    /// # Safety
    /// Until the owner is dropped, the `length_bytes` bytes from `first` must be initialised, stay where they are, and not
    /// change.
    pub unsafe fn lent(first: NonNull<u8>, length_bytes: usize, owner: Box<dyn Any>) -> Self {
        let _owner = owner;
        Buffer {
            view: View {
                block: Some(Rc::new(Block::Lent { first, _owner })),
                start: 0,
                length: length_bytes,
            },
        }
    }

    /// A view of a part.
    ///
    /// # Panics
    /// If the range lies outside.
    pub fn slice(&self, range: Range<usize>) -> Buffer {
        Buffer {
            view: self.view.part(range),
        }
    }

    /// A view of bytes that this one shows: those at their address. `None` if they lie elsewhere.
    pub fn slice_of(&self, bytes: &[u8]) -> Option<Buffer> {
        let start = bytes.as_ptr().addr().checked_sub(self.as_ptr().addr())?;
        let end = start.checked_add(bytes.len())?;
        (end <= self.len()).then(|| self.slice(start..end))
    }

    /// Makes the bytes writable if no other view of the block is left and they are the pool's; otherwise gives itself back.
    pub fn try_into_mut(self) -> Result<BufferMut, Buffer> {
        match &self.view.block {
            Some(block) if Rc::strong_count(block) > 1 || !matches!(**block, Block::Pooled { .. }) => {
                Err(self)
            }
            _ => Ok(BufferMut { view: self.view }),
        }
    }
}

/// What was received, without copying it: the kernel gets the memory back when the last view is gone. It has little of it, so
/// hold a view no longer than the bytes themselves.
impl From<ReceivedBytes> for Buffer {
    fn from(bytes: ReceivedBytes) -> Buffer {
        let length = bytes.len();
        let shell = SHELLS.with(|shells| shells.borrow_mut().pop());
        let mut block = shell.unwrap_or_else(|| Rc::new(Block::Shell));
        *Rc::get_mut(&mut block).expect("nobody else has a shell") = Block::Received(bytes);
        Buffer {
            view: View {
                block: Some(block),
                start: 0,
                length,
            },
        }
    }
}

/// Bytes of nobody's pool: for what is rare, small, or must not wait for a pool that others fill. Copies nothing.
impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        let bytes = bytes.into_boxed_slice();
        let (first, length_bytes) = (NonNull::from(&bytes[..]).cast(), bytes.len());
        // SAFETY: the bytes are initialised and lie on the heap, where moving their box leaves them; nobody reaches the box any more
        // before it is dropped with the last view.
        unsafe { Self::lent(first, length_bytes, Box::new(bytes)) }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        self.slice(0..self.view.length)
    }
}

impl Deref for BufferMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the view lies inside its block (checked where views are made), blocks are always
        // initialised (regions start zeroed), and no other view covers these bytes.
        unsafe { std::slice::from_raw_parts(self.view.pointer(), self.view.length) }
    }
}

impl DerefMut for BufferMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; a BufferMut is made only by the pool or by splitting another, so
        // it is the only view of these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.view.pointer(), self.view.length) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the view lies inside its initialised block, and frozen bytes are never written
        // while a shared view exists.
        unsafe { std::slice::from_raw_parts(self.view.pointer(), self.view.length) }
    }
}

impl From<BufferMut> for Buffer {
    fn from(buffer: BufferMut) -> Buffer {
        buffer.freeze()
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMut({} bytes)", self.len())
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    #[test]
    fn views_share_and_return_their_block() {
        let pool = BufferPool::new(REGION_BYTES);
        let mut buffer = pool.try_allocate(10_000).unwrap();
        buffer[9_999] = 7;
        let address = buffer.as_ptr();
        assert_eq!(address as usize % BUFFER_ALIGNMENT, 0);
        assert_eq!(pool.in_use_bytes(), 16 << 10);
        let shared = buffer.freeze();
        let tail = shared.slice(9_990..10_000);
        drop(shared);
        assert_eq!(tail[9], 7);
        let other = pool.try_allocate(10_000).unwrap();
        assert_ne!(other.as_ptr(), address);
        drop((tail, other));
        assert_eq!(pool.in_use_bytes(), 0);
        let _other = pool.try_allocate(10_000).unwrap();
        assert_eq!(pool.try_allocate(10_000).unwrap().as_ptr(), address);
    }

    #[test]
    fn parts_split_and_join() {
        let pool = BufferPool::new(REGION_BYTES);
        let mut rest = pool.try_allocate(100).unwrap();
        for (i, byte) in rest.iter_mut().enumerate() {
            *byte = i as u8;
        }
        let head = rest.split_to(40);
        assert_eq!((head.len(), rest.len(), rest[0]), (40, 60, 40));
        let (rest, head) = rest.join(head).unwrap_err();
        let whole = head.join(rest).unwrap();
        assert!(whole.iter().enumerate().all(|(i, &byte)| byte == i as u8));
        let frozen = whole.freeze();
        let again = frozen.clone();
        let frozen = frozen.try_into_mut().unwrap_err();
        drop(again);
        assert!(frozen.try_into_mut().is_ok());
    }

    #[test]
    fn a_full_pool_says_so_and_never_grows() {
        let pool = BufferPool::new(1);
        let held: Vec<_> = (0..4)
            .map(|_| pool.try_allocate(BUFFER_BYTES_MAX).unwrap())
            .collect();
        let limit_bytes = REGION_BYTES;
        assert_eq!(
            pool.try_allocate(1).unwrap_err(),
            AllocateError::Exhausted { limit_bytes }
        );
        assert_eq!(pool.reserved_bytes(), REGION_BYTES);
        drop(held);
        assert!(pool.try_allocate(BUFFER_BYTES_MAX).is_ok());
        let length_bytes = BUFFER_BYTES_MAX + 1;
        assert_eq!(
            pool.try_allocate(length_bytes).unwrap_err(),
            AllocateError::TooLong { length_bytes }
        );
    }

    #[test]
    fn a_burst_of_one_size_leaves_the_memory_to_others() {
        let pool = BufferPool::new(4 * REGION_BYTES);
        let burst = |length: usize| {
            let count = 4 * REGION_BYTES / length;
            let all: Vec<_> = (0..count).map(|_| pool.try_allocate(length).unwrap()).collect();
            assert!(pool.try_allocate(1).is_err(), "{length}");
            assert_eq!(pool.in_use_bytes(), 4 * REGION_BYTES);
            all
        };
        for length in [1 << 20, 4 << 10, 256 << 10, 16 << 10, 64 << 10, 1 << 20] {
            drop(burst(length));
            assert_eq!(
                (pool.in_use_bytes(), pool.reserved_bytes()),
                (0, 4 * REGION_BYTES)
            );
        }
        // A short one takes a longer block where nothing else is free.
        let mut held = burst(1 << 20);
        held.pop();
        let short = pool.try_allocate(100).unwrap();
        assert!(pool.try_allocate(100).is_err());
        drop(short);
        assert!(pool.try_allocate(1 << 20).is_ok());
    }

    #[test]
    fn who_waits_for_a_long_one_gets_it_though_short_ones_come_and_go() {
        let pool = BufferPool::new(2 * REGION_BYTES);
        let mut short: Vec<_> = (0..2 * REGION_BYTES / 4096)
            .map(|_| pool.try_allocate(4096).unwrap())
            .collect();
        // Some of both regions stay.
        short.retain(|buffer| (buffer.as_ptr() as usize / 4096).is_multiple_of(8));
        let mut waiting = Box::pin(pool.allocate(1 << 20));
        let mut poll = || {
            let waker = std::task::Waker::noop();
            waiting.as_mut().poll(&mut std::task::Context::from_waker(waker))
        };
        assert!(poll().is_pending());
        // The oldest goes and a new one comes, for ever.
        let mut turns = 0;
        let long = loop {
            short.remove(0);
            if let std::task::Poll::Ready(long) = poll() {
                break long.unwrap();
            }
            short.push(pool.try_allocate(4096).unwrap());
            turns += 1;
            assert!(turns < 10_000, "a long one never comes");
        };
        assert_eq!(long.len(), 1 << 20);
        drop(short);
        assert_eq!(pool.in_use_bytes(), 1 << 20);
    }

    #[test]
    fn a_block_that_never_comes_back_holds_nobody_up() {
        let pool = BufferPool::new(3 * REGION_BYTES);
        let all: Vec<_> = (0..3 * REGION_BYTES / 4096)
            .map(|_| pool.try_allocate(4096).unwrap())
            .collect();
        let region_of = |buffer: &BufferMut| buffer.as_ptr() as usize / REGION_BYTES;
        let stuck_in = region_of(&all[0]);
        // Of one region a single block is left, and for ever; of the others some, which go in the end.
        let mut is_first = true;
        let (stuck, mut others): (Vec<_>, Vec<_>) = all
            .into_iter()
            .filter(|buffer| match region_of(buffer) == stuck_in {
                true => std::mem::take(&mut is_first),
                false => (buffer.as_ptr() as usize / 4096).is_multiple_of(2),
            })
            .partition(|buffer| region_of(buffer) == stuck_in);
        assert_eq!(stuck.len(), 1);
        let mut waiting = Box::pin(pool.allocate(1 << 20));
        let mut poll = || {
            let waker = std::task::Waker::noop();
            waiting.as_mut().poll(&mut std::task::Context::from_waker(waker))
        };
        assert!(poll().is_pending());
        let long = loop {
            drop(others.pop().expect("all others are back"));
            if let std::task::Poll::Ready(long) = poll() {
                break long.unwrap();
            }
        };
        // Nobody waits any more: what retired goes on.
        drop(waiting);
        drop((long, others));
        assert_eq!(pool.in_use_bytes(), 4096);
        let short: Vec<_> = (0..3 * REGION_BYTES / 4096 - 1)
            .map_while(|_| pool.try_allocate(4096).ok())
            .collect();
        assert!(short.len() >= REGION_BYTES / 4096, "{}", short.len());
        drop(stuck);
    }

    #[test]
    fn bytes_of_the_heap_are_a_buffer() {
        let buffer = Buffer::from(vec![1, 2, 3]);
        let tail = buffer.slice(1..3);
        drop(buffer);
        assert_eq!(*tail, [2, 3]);
        assert!(tail.try_into_mut().is_err());
        assert!(Buffer::from(Vec::new()).is_empty());
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn a_part_outside_is_refused() {
        BufferPool::new(1).try_allocate(10).unwrap().freeze().slice(5..11);
    }
}
