//! Operations in flight: their slab slots, and the futures that wait for them.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::ring::Ring;
use super::send_message::SendMessage;
use crate::buffer::{Buffer, BufferMut};

/// What the kernel may touch or needs open until an operation's last completion. Held, never read:
/// each keeps its descriptor open and its memory in place.
#[expect(
    dead_code,
    reason = "descriptors and addresses are held for the kernel, not read by us"
)]
pub(crate) enum Resources {
    Descriptor(Rc<OwnedFd>),
    Accept(Rc<OwnedFd>),
    Read(BufferMut, Rc<OwnedFd>),
    Write(Buffer, Rc<OwnedFd>),
    Send(Box<SendMessage>, Rc<OwnedFd>),
    Address(Box<socket2::SockAddr>, Rc<OwnedFd>),
}

/// One completion of a multishot receive: the result and the chosen buffer, if any.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    pub(crate) result: i32,
    pub(crate) buffer: Option<u16>,
}

/// Takes an operation's result and its resources when it has ended.
pub(super) type Ended = Box<dyn FnOnce(i32, Resources)>;

pub(super) enum State {
    /// One completion is expected.
    Single { result: Option<i32> },
    /// One completion is expected, which is handed on in the turn that sees it or one of the next.
    Handed { ended: Ended },
    /// Any number of completions; `armed` until the kernel says that it was the last.
    Stream { queue: VecDeque<Received>, armed: bool },
}

/// A slab slot. It stays occupied until the kernel's last completion, whoever waits.
pub(super) struct Slot {
    pub(super) state: State,
    pub(super) resources: Option<Resources>,
    pub(super) waker: Option<Waker>,
    pub(super) abandoned: bool,
    /// Cancellation was asked for.
    pub(super) cancelled: bool,
}

impl Slot {
    pub(super) fn new(state: State, resources: Resources) -> Self {
        Self {
            state,
            resources: Some(resources),
            waker: None,
            abandoned: false,
            cancelled: false,
        }
    }
}

/// Waits for a single completion and returns the result with the resources.
pub(crate) struct Operation {
    ring: Rc<Ring>,
    index: Option<usize>,
}

impl Operation {
    pub(super) fn new(ring: Rc<Ring>, index: usize) -> Self {
        Self {
            ring,
            index: Some(index),
        }
    }
}

impl Future for Operation {
    type Output = (i32, Resources);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self.index.expect("an operation is not polled after it completed");
        match self.ring.take_result(index, cx.waker()) {
            Some(done) => {
                self.index = None;
                Poll::Ready(done)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.ring.abandon(index);
        }
    }
}

/// A multishot receive.
pub(crate) struct Stream {
    pub(super) ring: Rc<Ring>,
    pub(super) index: usize,
}

impl Stream {
    /// The next completion, or `None` once the kernel has sent its last and all are taken.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        self.ring.poll_stream(self.index, cx.waker())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ring.abandon(self.index);
    }
}
