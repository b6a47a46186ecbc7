//! Requests in flight on a blob, and keeping others out while it is resized or deleted.
//!
//! Requests on different ranges run beside each other and only count themselves. Resize, delete and giving space
//! back wait until none is in flight and hold later ones back meanwhile, because a cluster may get a new
//! owner only when no request of the old one can reach it any more.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bdev::{Completion, Sink, Token};
use reactor::sync::Notify;

/// See the module.
#[derive(Default)]
pub(crate) struct Gate {
    shared: Cell<u32>,
    exclusive: Cell<bool>,
    exclusive_waiting: Cell<u32>,
    changed: Notify,
    tokens: Tokens,
}

/// Callers' tokens of requests that went straight to the device, by tag.
#[derive(Default)]
pub(crate) struct Tokens {
    kept: RefCell<Vec<Option<Token>>>,
    free_tags: RefCell<Vec<u32>>,
}

impl Tokens {
    #[inline]
    pub(crate) fn keep(&self, token: Token) -> u64 {
        let mut kept = self.kept.borrow_mut();
        match self.free_tags.borrow_mut().pop() {
            Some(tag) => {
                kept[tag as usize] = Some(token);
                tag.into()
            }
            None => {
                kept.push(Some(token));
                kept.len() as u64 - 1
            }
        }
    }

    #[inline]
    pub(crate) fn take(&self, tag: u64) -> Token {
        let token = self.kept.borrow_mut()[tag as usize].take();
        self.free_tags.borrow_mut().push(tag as u32);
        token.expect("a token is completed once")
    }
}

/// One request in flight.
pub(crate) struct Shared(Rc<Gate>);

/// Nothing else in flight.
pub(crate) struct Exclusive(Rc<Gate>);

struct Waiting<'a>(&'a Gate);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = self.0.exclusive_waiting.get() - 1;
        self.0.exclusive_waiting.set(left);
        if left == 0 {
            // Those who were held back for one that is given up.
            self.0.changed.notify();
        }
    }
}

impl Gate {
    /// Whether a request may start now.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        !self.exclusive.get() && self.exclusive_waiting.get() == 0
    }

    /// Waits for its turn and counts a request in.
    pub(crate) async fn enter(self: &Rc<Self>) -> Shared {
        self.changed.until(|| self.is_open()).await;
        self.shared.set(self.shared.get() + 1);
        Shared(self.clone())
    }

    /// Waits until nothing is in flight and keeps others out.
    pub(crate) async fn enter_exclusive(self: &Rc<Self>) -> Exclusive {
        self.exclusive_waiting.set(self.exclusive_waiting.get() + 1);
        let waiting = Waiting(self);
        self.changed
            .until(|| self.shared.get() == 0 && !self.exclusive.get())
            .await;
        drop(waiting);
        self.exclusive.set(true);
        Exclusive(self.clone())
    }

    /// Counts a request in and keeps its token; the new one is completed by the device.
    #[inline]
    pub(crate) fn pass(self: &Rc<Self>, token: Token) -> Token {
        self.shared.set(self.shared.get() + 1);
        let tag = self.tokens.keep(token);
        Token::new(self.clone(), tag)
    }

    fn leave(&self) {
        self.shared.set(self.shared.get() - 1);
        if self.shared.get() == 0 && self.exclusive_waiting.get() > 0 {
            self.changed.notify();
        }
    }
}

impl Sink for Gate {
    #[inline]
    fn complete(&self, tag: u64, completion: Completion) {
        let token = self.tokens.take(tag);
        self.leave();
        token.complete(completion.status, completion.data);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.exclusive.set(false);
        self.0.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::time;
    use std::time::Duration;

    #[test]
    fn who_gives_up_waiting_holds_nobody_back() {
        let seen = reactor::run(&reactor::Config::default(), async {
            let gate: Rc<Gate> = Rc::default();
            let in_flight = gate.enter().await;
            let given_up = time::timeout(Duration::from_millis(1), gate.enter_exclusive());
            let (other, late) = (gate.clone(), gate.clone());
            let late = reactor::spawn(async move {
                time::sleep(Duration::from_micros(100)).await;
                drop(late.enter().await);
            });
            assert!(given_up.await.is_err());
            assert!(time::timeout(Duration::from_secs(5), late).await.is_ok());
            drop(in_flight);
            drop(other.enter_exclusive().await);
        });
        seen.unwrap();
    }
}
