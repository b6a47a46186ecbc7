//! What the thread's running reactor is made of.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use foundation::Instant;

use crate::buffer::BufferPool;
use crate::executor::Executor;
use crate::sim::World;
use crate::sys::Ring;
use crate::time::Timers;

pub(crate) struct Context {
    pub(crate) executor: Executor,
    pub(crate) timers: Timers,
    pub(crate) pool: BufferPool,
    pub(crate) backend: Backend,
    /// The clock when the present turn of the loop began, if it was looked at.
    pub(crate) turn: Cell<Option<Instant>>,
}

#[derive(Clone)]
pub(crate) enum Backend {
    Ring(Rc<Ring>),
    Simulated(Rc<World>),
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Context>>> = const { RefCell::new(None) };
}

/// Calls `work` with the thread's context, or returns `None` if no reactor runs here.
pub(crate) fn try_with<T>(work: impl FnOnce(&Context) -> T) -> Option<T> {
    let context = CURRENT.try_with(|current| current.borrow().clone()).ok()??;
    Some(work(&context))
}

pub(crate) fn with<T>(work: impl FnOnce(&Context) -> T) -> T {
    try_with(work).expect("a reactor runs on this thread (call this inside reactor::run or a simulation)")
}

/// Makes `context` the thread's own until the guard is dropped.
pub(crate) fn enter(context: Rc<Context>) -> Guard {
    let before = CURRENT.with(|current| current.borrow_mut().replace(context));
    Guard { before }
}

pub(crate) struct Guard {
    before: Option<Rc<Context>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let before = self.before.take();
        let left = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), before));
        drop(left);
    }
}
