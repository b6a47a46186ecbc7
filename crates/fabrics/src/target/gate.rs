//! Keeps a fused Compare-and-Write whole: while it runs, no other command changes the namespace.
//!
//! One gate for each namespace and core. Commands that change blocks pass it, reads do not. It closes for the whole
//! namespace, not for a range: fused commands are rare (cluster file systems take their locks with them), and a
//! command that changes blocks then costs two counter steps instead of a search.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak as WeakRc};
use std::sync::{Arc, Weak};

use reactor::sync::Notify;

use super::subsystem::Namespace;

/// See the module.
#[derive(Default)]
pub(super) struct Gate {
    /// Commands inside that change blocks.
    changing: Cell<u32>,
    exclusive: Cell<bool>,
    /// Tickets of those who wait, in order.
    waiting: RefCell<VecDeque<u64>>,
    next_ticket: Cell<u64>,
    moved: Notify,
}

thread_local! {
    static GATES: RefCell<Vec<(Weak<Namespace>, WeakRc<Gate>)>> = const { RefCell::new(Vec::new()) };
}

impl Gate {
    /// This core's gate of a namespace.
    pub(super) fn of(namespace: &Arc<Namespace>) -> Rc<Self> {
        GATES.with(|gates| {
            let mut gates = gates.borrow_mut();
            gates.retain(|(of, gate)| of.strong_count() > 0 && gate.strong_count() > 0);
            let found = gates
                .iter()
                .find(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(namespace)))
                .and_then(|(_, gate)| gate.upgrade());
            found.unwrap_or_else(|| {
                let gate = Rc::<Self>::default();
                gates.push((Arc::downgrade(namespace), Rc::downgrade(&gate)));
                gate
            })
        })
    }

    /// Lets a command that changes blocks in, unless it must wait.
    pub(super) fn try_enter(&self) -> bool {
        let open = !self.exclusive.get() && self.waiting.borrow().is_empty();
        if open {
            self.changing.set(self.changing.get() + 1);
        }
        open
    }

    /// A command that was let in has ended.
    pub(super) fn leave(&self) {
        self.changing.set(self.changing.get() - 1);
        if !self.waiting.borrow().is_empty() {
            self.moved.notify();
        }
    }

    /// As [`Gate::try_enter`], waiting behind those that wait already.
    pub(super) async fn enter(&self) {
        self.turn(|| !self.exclusive.get()).await;
        self.changing.set(self.changing.get() + 1);
        // The next may go in as well.
        self.moved.notify();
    }

    /// Waits until nothing changes the namespace, and keeps it so while the guard lives.
    pub(super) async fn close(self: Rc<Self>) -> Closed {
        self.turn(|| !self.exclusive.get() && self.changing.get() == 0)
            .await;
        self.exclusive.set(true);
        Closed(self)
    }

    async fn turn(&self, admissible: impl Fn() -> bool) {
        let ticket = Ticket::take(self);
        self.moved
            .until(|| self.waiting.borrow().front() == Some(&ticket.number) && admissible())
            .await;
    }
}

/// A place in the line, given up when the wait is dropped.
struct Ticket<'a> {
    gate: &'a Gate,
    number: u64,
}

impl<'a> Ticket<'a> {
    fn take(gate: &'a Gate) -> Self {
        let number = gate.next_ticket.get();
        gate.next_ticket.set(number + 1);
        gate.waiting.borrow_mut().push_back(number);
        Self { gate, number }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.gate
            .waiting
            .borrow_mut()
            .retain(|number| *number != self.number);
        self.gate.moved.notify();
    }
}

/// A closed gate; opens when dropped.
pub(super) struct Closed(Rc<Gate>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.exclusive.set(false);
        self.0.moved.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn nothing_changes_while_the_gate_is_closed_and_nobody_overtakes() {
        let gate = Rc::<Gate>::default();
        assert!(gate.try_enter() && gate.try_enter());
        let mut closing = Box::pin(gate.clone().close());
        assert!(poll(&mut closing).is_pending());
        assert!(!gate.try_enter(), "who closes waits first");
        let mut entering = Box::pin(gate.enter());
        assert!(poll(&mut entering).is_pending());
        gate.leave();
        assert!(poll(&mut closing).is_pending());
        gate.leave();
        let Poll::Ready(closed) = poll(&mut closing) else {
            panic!("nothing is inside");
        };
        assert!(!gate.try_enter());
        assert!(poll(&mut entering).is_pending());
        drop(closed);
        assert!(poll(&mut entering).is_ready());
        gate.leave();
        assert!(gate.try_enter());
    }

    #[test]
    fn who_gives_up_leaves_the_line() {
        let gate = Rc::<Gate>::default();
        assert!(gate.try_enter());
        let mut closing = Box::pin(gate.clone().close());
        assert!(poll(&mut closing).is_pending());
        drop(closing);
        assert!(gate.try_enter());
    }
}
