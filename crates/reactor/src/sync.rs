//! Waiting for other tasks of the same thread. Nothing here locks or is shared between threads;
//! see [`crate::mailbox`] for that.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Wakes whoever waits for "something changed".
#[derive(Default)]
pub struct Notify {
    version: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Nobody waits yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all that wait now, and those that called [`Notify::changed`] before and have not waited yet.
    pub fn notify(&self) {
        self.version.set(self.version.get() + 1);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for waker in waiting {
            waker.wake();
        }
    }

    /// Waits for the first [`Notify::notify`] after this call (not after the first poll).
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.version.get();
        poll_fn(move |cx| {
            if self.version.get() != seen {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Waits until `condition` holds, checking again after each [`Notify::notify`].
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        loop {
            let changed = self.changed();
            if condition() {
                return;
            }
            changed.await;
        }
    }
}

struct OneshotState<T> {
    value: Option<T>,
    waker: Option<Waker>,
    closed: bool,
}

/// Gives one value to a [`OneshotReceiver`].
pub struct OneshotSender<T>(Rc<RefCell<OneshotState<T>>>);

/// Waits for one value; `None` if the sender was dropped without sending.
pub struct OneshotReceiver<T>(Rc<RefCell<OneshotState<T>>>);

/// A place for one value between two tasks.
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let state = Rc::new(RefCell::new(OneshotState {
        value: None,
        waker: None,
        closed: false,
    }));
    (OneshotSender(state.clone()), OneshotReceiver(state))
}

impl<T> OneshotSender<T> {
    /// Hands the value over. It is dropped if nobody waits any more.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.closed = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.borrow_mut();
        if state.closed {
            return Poll::Ready(state.value.take());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

struct ChannelState<T> {
    queue: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receiver_gone: bool,
    receiver_waker: Option<Waker>,
    sender_wakers: Vec<Waker>,
}

/// Sends into a bounded queue; may be cloned.
pub struct Sender<T>(Rc<RefCell<ChannelState<T>>>);

/// Takes out of a bounded queue.
pub struct Receiver<T>(Rc<RefCell<ChannelState<T>>>);

/// A bounded queue between tasks of one thread. `capacity` must be at least 1.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel needs room for one item");
    let state = Rc::new(RefCell::new(ChannelState {
        queue: VecDeque::with_capacity(capacity.min(64)),
        capacity,
        senders: 1,
        receiver_gone: false,
        receiver_waker: None,
        sender_wakers: Vec::new(),
    }));
    (Sender(state.clone()), Receiver(state))
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.borrow_mut().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Sender<T> {
    /// Queues the item, or gives it back if the queue is full or nobody receives any more.
    pub fn try_send(&self, item: T) -> Result<(), T> {
        let waker = {
            let mut state = self.0.borrow_mut();
            if state.receiver_gone || state.queue.len() >= state.capacity {
                return Err(item);
            }
            state.queue.push_back(item);
            state.receiver_waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Waits for room and queues the item; gives it back if nobody receives any more.
    pub async fn send(&self, item: T) -> Result<(), T> {
        let mut item = Some(item);
        poll_fn(|cx| {
            if let Some(kept) = item.take() {
                match self.try_send(kept) {
                    Ok(()) => return Poll::Ready(Ok(())),
                    Err(back) if self.0.borrow().receiver_gone => return Poll::Ready(Err(back)),
                    Err(back) => item = Some(back),
                }
            }
            self.0.borrow_mut().sender_wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.senders -= 1;
            if state.senders == 0 {
                state.receiver_waker.take()
            } else {
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The next item without waiting.
    pub fn try_recv(&mut self) -> Option<T> {
        let (item, wakers) = {
            let mut state = self.0.borrow_mut();
            (state.queue.pop_front(), std::mem::take(&mut state.sender_wakers))
        };
        for waker in wakers {
            waker.wake();
        }
        item
    }

    /// The next item; `None` once all senders are gone and the queue is empty.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| {
            if let Some(item) = self.try_recv() {
                return Poll::Ready(Some(item));
            }
            let mut state = self.0.borrow_mut();
            if state.senders == 0 {
                return Poll::Ready(None);
            }
            state.receiver_waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let (queue, wakers) = {
            let mut state = self.0.borrow_mut();
            state.receiver_gone = true;
            (
                std::mem::take(&mut state.queue),
                std::mem::take(&mut state.sender_wakers),
            )
        };
        drop(queue);
        for waker in wakers {
            waker.wake();
        }
    }
}

/// A number of permits that tasks take and give back.
pub struct Semaphore {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Waker>>,
}

impl Semaphore {
    /// `permits` are free.
    pub fn new(permits: usize) -> Rc<Self> {
        Rc::new(Self {
            free: Cell::new(permits),
            waiting: RefCell::default(),
        })
    }

    /// Waits for a permit; it is given back when dropped.
    pub async fn acquire(self: &Rc<Self>) -> Permit {
        poll_fn(|cx| {
            if self.free.get() > 0 {
                self.free.set(self.free.get() - 1);
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
        Permit(self.clone())
    }

    /// Permits that nobody holds.
    pub fn available(&self) -> usize {
        self.free.get()
    }
}

/// One permit of a [`Semaphore`].
pub struct Permit(Rc<Semaphore>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        // All are woken: the first in line may have been dropped meanwhile.
        let waiting = std::mem::take(&mut *self.0.waiting.borrow_mut());
        for waker in waiting {
            waker.wake();
        }
    }
}
