//! Who may look at the file system, and who may change it: many at once, or one alone, of one thread's tasks.
//!
//! Whoever waits to change it lets no later reader past, so a change waits for those who read now and for nobody else.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use reactor::sync::{Notify, Permit, Semaphore};

/// See the module.
pub(crate) struct Gate<T> {
    value: RefCell<T>,
    /// Held by whoever changes the value, or waits until the last reader has left.
    entrance: Rc<Semaphore>,
    readers: Cell<usize>,
    left: Notify,
}

/// The right to look.
pub(crate) struct Reading<'a, T> {
    /// Ends before the count says so.
    value: Option<Ref<'a, T>>,
    gate: &'a Gate<T>,
}

/// The right to change.
pub(crate) struct Changing<'a, T> {
    value: RefMut<'a, T>,
    _entrance: Permit,
}

impl<T> Gate<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: RefCell::new(value),
            entrance: Semaphore::new(1),
            readers: Cell::new(0),
            left: Notify::new(),
        }
    }

    pub(crate) async fn read(&self) -> Reading<'_, T> {
        drop(self.entrance.acquire().await);
        self.readers.set(self.readers.get() + 1);
        Reading {
            value: Some(self.value.borrow()),
            gate: self,
        }
    }

    pub(crate) async fn change(&self) -> Changing<'_, T> {
        let entrance = self.entrance.acquire().await;
        self.left.until(|| self.readers.get() == 0).await;
        Changing {
            value: self.value.borrow_mut(),
            _entrance: entrance,
        }
    }

    /// The value, once nobody else has the gate.
    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
            .as_ref()
            .expect("it is taken only when this is dropped")
    }
}

impl<T> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.gate.readers.set(self.gate.readers.get() - 1);
        self.gate.left.notify();
    }
}

impl<T> Deref for Changing<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Changing<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::time::sleep;
    use std::time::Duration;

    #[test]
    fn readers_share_it_and_a_change_waits_for_them_alone() {
        let seen = reactor::run(&reactor::Config::default(), async {
            let gate = Rc::new(Gate::new(0));
            let first = gate.read().await;
            let second = gate.read().await;
            let changer = gate.clone();
            let change = reactor::spawn(async move { *changer.change().await += 1 });
            sleep(Duration::from_millis(1)).await;
            // It came after the change, and sees it.
            let late = gate.clone();
            let late = reactor::spawn(async move { *late.read().await });
            sleep(Duration::from_millis(1)).await;
            assert_eq!((*first, *second), (0, 0));
            assert!(!change.is_finished() && !late.is_finished());
            drop((first, second));
            (change.await, late.await)
        });
        assert_eq!(seen.unwrap(), (Some(()), Some(1)));
    }
}
