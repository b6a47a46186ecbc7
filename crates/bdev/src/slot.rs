//! Waiting for a completion with `await`: a slot per request, reused through a small per-thread store.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use foundation::{BlockCount, Lba};
use reactor::{Buffer, BufferMut};

use crate::device::Channel;
use crate::error::IoError;
use crate::request::{Completion, Data, Fence, Operation, Request, Sink, Token, TraceId};

/// Slots kept for reuse by each thread.
const KEPT_SLOTS: usize = 256;

#[derive(Default)]
struct State {
    completion: Option<Completion>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Slot(RefCell<State>);

impl Sink for Slot {
    fn complete(&self, _tag: u64, completion: Completion) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.completion = Some(completion);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

thread_local! {
    static FREE: RefCell<Vec<Rc<Slot>>> = const { RefCell::new(Vec::new()) };
}

/// A submitted request's completion, to be awaited. Dropping it leaves the request running.
pub struct Pending {
    slot: Rc<Slot>,
}

impl Pending {
    fn new() -> (Self, Token) {
        let kept = FREE.with(|free| free.borrow_mut().pop());
        let slot = kept.unwrap_or_default();
        let token = Token::new(slot.clone(), 0);
        (Self { slot }, token)
    }

    /// The completion, if it is there.
    pub fn try_take(&mut self) -> Option<Completion> {
        self.slot.0.borrow_mut().completion.take()
    }
}

impl Future for Pending {
    type Output = Completion;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completion> {
        let mut state = self.slot.0.borrow_mut();
        match state.completion.take() {
            Some(completion) => Poll::Ready(completion),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Only a slot that no token points to any more can serve another request.
        if Rc::strong_count(&self.slot) > 1 {
            self.slot.0.borrow_mut().waker = None;
            return;
        }
        *self.slot.0.borrow_mut() = State::default();
        // At thread exit the store may be gone; then the slot is just freed.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT_SLOTS {
                free.push(self.slot.clone());
            }
        });
    }
}

/// A request to fill in and submit, and the wait for its completion.
pub fn request(operation: Operation, lba: Lba, blocks: BlockCount, data: Data) -> (Request, Pending) {
    let (pending, token) = Pending::new();
    let (fence, trace) = (None, TraceId::default());
    (
        Request {
            operation,
            lba,
            blocks,
            data,
            metadata: None,
            fence,
            trace,
            token,
        },
        pending,
    )
}

/// Requests as `async` calls. Dropping a call's future leaves the request running with its buffer.
pub trait ChannelExt {
    /// Runs one request.
    fn execute(
        &self,
        operation: Operation,
        lba: Lba,
        blocks: BlockCount,
        data: Data,
        fence: Option<Fence>,
    ) -> impl Future<Output = Completion>;

    /// Fills `buffer`, whose length must be a whole number of blocks, from `lba` on.
    fn read(&self, lba: Lba, buffer: BufferMut) -> impl Future<Output = (Result<(), IoError>, BufferMut)>;

    /// Stores `buffer`, whose length must be a whole number of blocks, from `lba` on.
    fn write(&self, lba: Lba, buffer: Buffer) -> impl Future<Output = Result<(), IoError>>;

    /// As [`ChannelExt::write`], and durable when it ends (FUA); nothing is said of other writes.
    fn write_durably(&self, lba: Lba, buffer: Buffer) -> impl Future<Output = Result<(), IoError>>;

    /// Makes every completed write durable.
    fn flush(&self) -> impl Future<Output = Result<(), IoError>>;

    /// Makes the range read zeros and gives its space back if that can be done.
    fn write_zeroes(&self, lba: Lba, blocks: BlockCount) -> impl Future<Output = Result<(), IoError>>;
}

impl<C: Channel + ?Sized> ChannelExt for C {
    async fn execute(
        &self,
        operation: Operation,
        lba: Lba,
        blocks: BlockCount,
        data: Data,
        fence: Option<Fence>,
    ) -> Completion {
        let (mut request, mut pending) = request(operation, lba, blocks, data);
        request.fence = fence;
        self.submit(request);
        match pending.try_take() {
            Some(completion) => completion,
            None => pending.await,
        }
    }

    async fn read(&self, lba: Lba, buffer: BufferMut) -> (Result<(), IoError>, BufferMut) {
        let blocks = match self.geometry().blocks_in(buffer.len()) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buffer),
        };
        let completion = self
            .execute(Operation::Read, lba, blocks, Data::Into(buffer), None)
            .await;
        match completion.data {
            Data::Into(buffer) => (completion.status, buffer),
            // An aborted request has lost its buffer.
            _ => (completion.status.and(Err(IoError::Aborted)), BufferMut::empty()),
        }
    }

    async fn write(&self, lba: Lba, buffer: Buffer) -> Result<(), IoError> {
        let blocks = self.geometry().blocks_in(buffer.len())?;
        self.execute(
            Operation::Write { fua: false },
            lba,
            blocks,
            Data::From(buffer),
            None,
        )
        .await
        .status
    }

    async fn write_durably(&self, lba: Lba, buffer: Buffer) -> Result<(), IoError> {
        let blocks = self.geometry().blocks_in(buffer.len())?;
        let write = Operation::Write { fua: true };
        self.execute(write, lba, blocks, Data::From(buffer), None)
            .await
            .status
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.execute(Operation::Flush, Lba(0), BlockCount(0), Data::None, None)
            .await
            .status
    }

    async fn write_zeroes(&self, lba: Lba, blocks: BlockCount) -> Result<(), IoError> {
        let operation = Operation::WriteZeroes {
            deallocate: true,
            fua: false,
        };
        self.execute(operation, lba, blocks, Data::None, None)
            .await
            .status
    }
}
