//! Messages between cores: a bounded queue that any thread sends into and one reactor's task empties.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    open: bool,
    senders: usize,
    waker: Option<Waker>,
}

struct Shared<T>(Mutex<State<T>>);

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending side; may be cloned and moved to any thread.
pub struct MailboxSender<T>(Arc<Shared<T>>);

/// The receiving side, for one task.
pub struct Mailbox<T>(Arc<Shared<T>>);

/// A mailbox with room for `capacity` messages.
pub fn mailbox<T: Send>(capacity: usize) -> (MailboxSender<T>, Mailbox<T>) {
    assert!(capacity > 0, "a mailbox needs room for one message");
    let state = State {
        queue: VecDeque::new(),
        capacity,
        open: true,
        senders: 1,
        waker: None,
    };
    let shared = Arc::new(Shared(Mutex::new(state)));
    (MailboxSender(shared.clone()), Mailbox(shared))
}

impl<T> Clone for MailboxSender<T> {
    fn clone(&self) -> Self {
        self.0.state().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> MailboxSender<T> {
    /// Queues a message without blocking; gives it back if the mailbox is full or closed.
    pub fn try_send(&self, message: T) -> Result<(), T> {
        let waker = {
            let mut state = self.0.state();
            if !state.open || state.queue.len() >= state.capacity {
                return Err(message);
            }
            state.queue.push_back(message);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> MailboxSender<T> {
    /// Whether the receiving side is gone, so that nothing can be sent any more.
    pub fn is_closed(&self) -> bool {
        !self.0.state().open
    }
}

impl<T> Drop for MailboxSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.state();
            state.senders -= 1;
            if state.senders == 0 {
                state.waker.take()
            } else {
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Mailbox<T> {
    /// The next message; `None` once all senders are gone and the queue is empty.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| {
            let mut state = self.0.state();
            if let Some(message) = state.queue.pop_front() {
                return Poll::Ready(Some(message));
            }
            if state.senders == 0 {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<T> Mailbox<T> {
    /// The next message, if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.state().queue.pop_front()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.0.state().open = false;
    }
}
