//! Content on its way to Python: lent from the reactor's buffers, and given back.
//!
//! The reactor's buffers belong to its thread. A [`Lent`] is a pointer into one that the thread keeps for as long as the
//! `Lent` lives; dropped, on whichever thread, it leaves its number in [`Returns`], and the reactor's thread takes it from
//! there before its next batch. So giving a buffer back wakes nobody.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use packfs::{Content, Part};
use reactor::{Buffer, BufferPool};
use slab::Slab;

use crate::fork;

/// Numbers of buffers that Python needs no more.
#[derive(Default)]
struct Returns {
    numbers: Mutex<Vec<usize>>,
    /// Heard only by a thread that ends and waits for all of them.
    came: Condvar,
}

impl Returns {
    fn numbers(&self) -> MutexGuard<'_, Vec<usize>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes in a buffer that another thread keeps.
pub(crate) struct Lent {
    first: NonNull<u8>,
    length_bytes: usize,
    number: usize,
    returns: Arc<Returns>,
    process: fork::Process,
}

// SAFETY: the bytes are only read, by anybody, until the `Lent` is dropped: the buffer is frozen, and its keeper neither
// drops nor moves it before.
unsafe impl Send for Lent {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        // After a fork the keeper is another process's thread, which may have held the lock just then.
        if self.process.is_this() {
            self.returns.numbers().push(self.number);
            self.returns.came.notify_one();
        }
    }
}

/// Content of a file, or of a part of one, in one piece.
pub(crate) enum Bytes {
    /// Where it arrived.
    Lent(Lent),
    /// Copied: it came in several pieces, from the index, or too much was lent already.
    Own(Box<[u8]>),
}

impl Bytes {
    /// Address of the first byte, and length; both stay for as long as this lives.
    pub(crate) fn raw_parts(&self) -> (*const u8, usize) {
        match self {
            Bytes::Lent(lent) => (lent.first.as_ptr(), lent.length_bytes),
            Bytes::Own(bytes) => (bytes.as_ptr(), bytes.len()),
        }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.raw_parts().1
    }
}

/// The buffers that are lent. Clones share them; all belong to one thread.
#[derive(Clone)]
pub(crate) struct Lending {
    kept: Rc<RefCell<Slab<Buffer>>>,
    returns: Arc<Returns>,
    limit_bytes: usize,
}

impl Lending {
    /// Nothing is lent yet. While more than `limit_bytes` of the reactor's buffers are in use, contents are copied.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            kept: Rc::default(),
            returns: Arc::default(),
            limit_bytes,
        }
    }

    /// Takes back what Python needs no more.
    pub(crate) fn reclaim(&self) {
        let numbers = std::mem::take(&mut *self.returns.numbers());
        let mut kept = self.kept.borrow_mut();
        for number in numbers {
            drop(kept.try_remove(number));
        }
    }

    /// Lends the content where it is in one buffer and memory allows it; copies it otherwise. On the reactor.
    pub(crate) fn lend(&self, content: Content) -> Bytes {
        if content.parts().len() != 1 {
            return Bytes::Own(content.to_vec().into_boxed_slice());
        }
        match content.into_parts().pop() {
            Some(Part::Device(buffer)) if BufferPool::current().in_use_bytes() <= self.limit_bytes => {
                self.keep(buffer)
            }
            Some(Part::Device(buffer)) => Bytes::Own(buffer.to_vec().into_boxed_slice()),
            Some(Part::Index(bytes)) => Bytes::Own(bytes),
            None => Bytes::Own(Box::default()),
        }
    }

    fn keep(&self, buffer: Buffer) -> Bytes {
        let (first, length_bytes) = (NonNull::from(&buffer[..]).cast(), buffer.len());
        Bytes::Lent(Lent {
            first,
            length_bytes,
            number: self.kept.borrow_mut().insert(buffer),
            returns: self.returns.clone(),
            process: fork::Process::this(),
        })
    }

    /// Keeps what is lent until all of it came back. Blocks; to be called when the reactor has ended.
    pub(crate) fn wait_for_all(self) {
        loop {
            self.reclaim();
            if self.kept.borrow().is_empty() {
                return;
            }
            let numbers = self.returns.numbers();
            if numbers.is_empty() {
                drop(self.returns.came.wait(numbers));
            }
        }
    }
}
