//! A layer that fails on purpose: errors, lost, torn, misdirected and corrupt I/O, and requests that hang.
//!
//! What a layer above promises to survive is said where its tests plant these.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foundation::{BlockCount, Lba};
use reactor::Buffer;

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::error::IoError;
use crate::request::{Data, Operation, Request};
use crate::slot::ChannelExt;

/// Which requests a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Reads and compares.
    Reads,
    /// Writes and zeroing.
    Writes,
    /// Deallocation.
    Deallocations,
    /// Flushes.
    Flushes,
    /// Every request.
    All,
}

/// What happens to a request that is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails and does nothing.
    Fail(IoError),
    /// A read returns one flipped bit in each block; a write stores one.
    Corrupt,
    /// A read returns, and a write stores, the byte at `offset` of the whole request changed by XOR with `value`.
    Flip {
        /// Bytes from the beginning of the request's data; what lies beyond its end is left alone.
        offset: usize,
        /// What to change it with.
        value: u8,
    },
    /// A write or flush is acknowledged and not done.
    Lose,
    /// Only the first half of a write's blocks are stored; it is acknowledged.
    Tear,
    /// A write goes this many blocks further on; it is acknowledged.
    Misdirect(BlockCount),
    /// It never completes, until [`Faults::clear`] lets it go on.
    Hang,
}

/// One planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which operations.
    pub target: Target,
    /// Which blocks; `None` for all.
    pub range: Option<(Lba, BlockCount)>,
    /// So many matching requests pass first.
    pub skip: u64,
    /// Then so many are struck.
    pub times: u64,
    /// In this way.
    pub effect: Effect,
}

/// The faults planted in a device; shared with whoever plants them.
#[derive(Default)]
pub struct Faults {
    armed: AtomicBool,
    planted: Mutex<Vec<Fault>>,
    /// How often hanging requests were let go on.
    resumed: AtomicU64,
}

impl Faults {
    fn planted(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.planted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault.
    pub fn plant(&self, fault: Fault) {
        self.planted().push(fault);
        self.armed.store(true, Ordering::Release);
    }

    /// Removes all faults; hanging requests go on.
    pub fn clear(&self) {
        self.planted().clear();
        self.armed.store(false, Ordering::Release);
        self.resume();
    }

    /// Removes the faults for these operations; requests that hang stay.
    pub fn remove(&self, target: Target) {
        self.planted().retain(|fault| fault.target != target);
    }

    /// Lets the requests that hang go on; the faults stay.
    pub fn resume(&self) {
        self.resumed.fetch_add(1, Ordering::AcqRel);
    }

    fn strike(&self, request: &Request) -> Option<Effect> {
        if !self.armed.load(Ordering::Acquire) {
            return None;
        }
        let mut planted = self.planted();
        let fault = planted
            .iter_mut()
            .find(|fault| fault.times > 0 && fault.matches(request))?;
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        fault.times -= 1;
        Some(fault.effect)
    }
}

impl Fault {
    fn matches(&self, request: &Request) -> bool {
        let operation = match self.target {
            Target::Reads => matches!(request.operation, Operation::Read | Operation::Compare),
            Target::Writes => matches!(
                request.operation,
                Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Deallocate
            ),
            Target::Deallocations => request.operation == Operation::Deallocate,
            Target::Flushes => request.operation == Operation::Flush,
            Target::All => true,
        };
        let range = self.range.is_none_or(|(lba, blocks)| {
            request.lba.0 < lba.0.saturating_add(blocks.0)
                && lba.0 < request.lba.0.saturating_add(request.blocks.0)
        });
        operation && range
    }
}

/// See the module.
pub struct FaultDevice {
    inner: Arc<dyn BlockDevice>,
    faults: Arc<Faults>,
}

impl FaultDevice {
    /// A layer over `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, faults: Arc<Faults>) -> Self {
        Self { inner, faults }
    }
}

impl BlockDevice for FaultDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(FaultChannel {
            inner: self.inner.open_channel()?,
            faults: self.faults.clone(),
        }))
    }
}

struct FaultChannel {
    inner: Rc<dyn Channel>,
    faults: Arc<Faults>,
}

impl Channel for FaultChannel {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn will_read(&self, lba: Lba, blocks: BlockCount) {
        self.inner.will_read(lba, blocks);
    }

    fn submit(&self, request: Request) {
        let Some(effect) = self.faults.strike(&request) else {
            return self.inner.submit(request);
        };
        match effect {
            Effect::Fail(error) => request.complete(Err(error)),
            Effect::Lose => request.complete(Ok(())),
            Effect::Hang => self.hang(request),
            Effect::Corrupt | Effect::Flip { .. } | Effect::Tear | Effect::Misdirect(_) => {
                let inner = self.inner.clone();
                drop(reactor::spawn(spoil(inner, effect, request)));
            }
        }
    }
}

impl FaultChannel {
    fn hang(&self, request: Request) {
        let (inner, faults) = (self.inner.clone(), self.faults.clone());
        let resumed = faults.resumed.load(Ordering::Acquire);
        drop(reactor::spawn(async move {
            while faults.resumed.load(Ordering::Acquire) == resumed {
                reactor::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            inner.submit(request);
        }));
    }
}

async fn spoil(inner: Rc<dyn Channel>, effect: Effect, request: Request) {
    let block_bytes = inner.geometry().block_bytes as usize;
    let Request {
        operation,
        lba,
        blocks,
        data,
        token,
        fence,
        ..
    } = request;
    let change = |bytes: &mut [u8]| match effect {
        Effect::Flip { offset, value } => {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= value;
            }
        }
        _ => flip(bytes, block_bytes),
    };
    match (effect, operation, data) {
        (Effect::Corrupt | Effect::Flip { .. }, Operation::Read, data) => {
            let mut completion = inner.execute(operation, lba, blocks, data, fence).await;
            if let Data::Into(buffer) = &mut completion.data {
                change(buffer);
            }
            token.complete(completion.status, completion.data);
        }
        (Effect::Corrupt | Effect::Flip { .. }, Operation::Write { .. }, Data::From(original)) => {
            let spoiled = copy(&original, change);
            let status = match spoiled {
                Ok(spoiled) => inner.write(lba, spoiled).await,
                Err(error) => Err(error),
            };
            token.complete(status, Data::From(original));
        }
        (Effect::Tear, Operation::Write { .. }, Data::From(original)) => {
            let half = original.len() / block_bytes / 2 * block_bytes;
            let status = if half == 0 {
                Ok(())
            } else {
                inner.write(lba, original.slice(0..half)).await
            };
            token.complete(status, Data::From(original));
        }
        (Effect::Misdirect(by), Operation::Write { .. }, Data::From(original)) => {
            let status = inner.write(Lba(lba.0 + by.0), original.clone()).await;
            token.complete(status, Data::From(original));
        }
        (_, operation, data) => {
            let completion = inner.execute(operation, lba, blocks, data, fence).await;
            token.complete(completion.status, completion.data);
        }
    }
}

fn flip(bytes: &mut [u8], block_bytes: usize) {
    for block in bytes.chunks_mut(block_bytes) {
        block[block.len() / 3] ^= 0x10;
    }
}

fn copy(original: &Buffer, change: impl FnOnce(&mut [u8])) -> Result<Buffer, IoError> {
    let pool = reactor::BufferPool::current();
    let mut buffer = pool
        .try_allocate(original.len())
        .map_err(|_| IoError::Exhausted)?;
    buffer.copy_from_slice(original);
    change(&mut buffer);
    Ok(buffer.freeze())
}
