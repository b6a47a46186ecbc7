//! How much of the buffer pool the commands of one connection may hold.
//!
//! A host may have a queue full of reads of 1 MiB and take none of their data, or announce as many writes and send
//! none. Without a bound per connection it would hold the whole pool, and every other host would wait for it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// See the module.
pub(super) struct Allowance {
    limit_bytes: Cell<usize>,
    held_bytes: Cell<usize>,
    /// Commands that wait for their turn: slot and bytes. At most one a slot, so never more than the queue has.
    waiting: RefCell<VecDeque<(u16, usize)>>,
}

impl Allowance {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes: Cell::new(limit_bytes),
            held_bytes: Cell::new(0),
            waiting: RefCell::default(),
        }
    }

    /// Allows no more than this from now on.
    pub(super) fn narrow(&self, limit_bytes: usize) {
        self.limit_bytes.set(self.limit_bytes.get().min(limit_bytes));
    }

    /// Grants bytes to the command in `slot`, or queues it behind those that wait already. A single command is
    /// granted whatever it needs (at most the transfer limit), so that a small allowance stops nobody for good.
    pub(super) fn grant(&self, slot: u16, bytes: usize) -> bool {
        if self.waiting.borrow().is_empty() && self.fits(bytes) {
            self.held_bytes.set(self.held_bytes.get() + bytes);
            return true;
        }
        self.waiting.borrow_mut().push_back((slot, bytes));
        false
    }

    /// The next command that waits, and its bytes, now granted.
    pub(super) fn next_granted(&self) -> Option<(u16, usize)> {
        let mut waiting = self.waiting.borrow_mut();
        let (_, bytes) = *waiting.front()?;
        if !self.fits(bytes) {
            return None;
        }
        self.held_bytes.set(self.held_bytes.get() + bytes);
        waiting.pop_front()
    }

    /// Takes a command out of the line; false if it does not wait.
    pub(super) fn forget(&self, slot: u16) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.len();
        waiting.retain(|(waits, _)| *waits != slot);
        waiting.len() < before
    }

    /// Takes back what was granted.
    pub(super) fn release(&self, bytes: usize) {
        let held = self.held_bytes.get().checked_sub(bytes);
        self.held_bytes
            .set(held.expect("only granted bytes are released, and once"));
    }

    fn fits(&self, bytes: usize) -> bool {
        let held = self.held_bytes.get();
        held == 0 || held + bytes <= self.limit_bytes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_wait_in_order_and_nothing_is_lost() {
        let allowance = Allowance::new(100);
        assert!(allowance.grant(1, 60));
        assert!(!allowance.grant(2, 60));
        assert!(!allowance.grant(3, 10), "nobody overtakes");
        assert_eq!(allowance.next_granted(), None);
        allowance.release(60);
        assert_eq!(allowance.next_granted(), Some((2, 60)));
        assert_eq!(allowance.next_granted(), Some((3, 10)));
        assert_eq!(allowance.next_granted(), None);
        allowance.release(70);
        assert!(allowance.grant(4, 1000), "alone, any command may run");
        assert!(!allowance.grant(5, 1));
        allowance.release(1000);
        assert!(!allowance.forget(9));
        assert_eq!(allowance.next_granted(), Some((5, 1)));
        assert!(!allowance.grant(6, 100) && allowance.forget(6));
        allowance.release(1);
        assert_eq!(allowance.next_granted(), None);
        allowance.narrow(200);
        assert!(allowance.grant(7, 100));
        allowance.narrow(20);
        allowance.release(100);
        assert!(allowance.grant(8, 15) && !allowance.grant(9, 10));
    }
}
