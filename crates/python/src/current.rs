//! The generation that a data set shows, and how another takes its place.
//!
//! What is under way goes on in the generation that it began in: the lease holds that one until the last of these calls has ended.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use packfs::Reader;
use reactor::sync::Semaphore;

use crate::failure::Failure;
use crate::opened::Opened;

/// Whether the calls in an earlier generation have ended is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// See the module. Belongs to one thread.
pub(crate) struct Current {
    opened: RefCell<Rc<Opened>>,
    /// One looks for a commit at a time.
    refreshing: Rc<Semaphore>,
    /// Earlier generations, oldest first, and whether somebody waits for their calls to end.
    older: RefCell<Vec<Rc<Opened>>>,
    is_letting_go: Cell<bool>,
}

impl Current {
    pub(crate) fn new(opened: Opened) -> Self {
        Self {
            opened: RefCell::new(Rc::new(opened)),
            refreshing: Semaphore::new(1),
            older: RefCell::default(),
            is_letting_go: Cell::new(false),
        }
    }

    /// What is shown now.
    pub(crate) fn opened(&self) -> Rc<Opened> {
        self.opened.borrow().clone()
    }

    /// Goes on to the newest commit; what is shown then.
    ///
    /// # Errors
    /// Then what was shown before still is.
    pub(crate) async fn refresh(self: &Rc<Self>) -> Result<Rc<Opened>, Failure> {
        let _alone = self.refreshing.acquire().await;
        let before = self.opened();
        if let Some(newer) = before.newer().await? {
            *self.opened.borrow_mut() = Rc::new(newer);
            self.older.borrow_mut().push(before);
            if !self.is_letting_go.replace(true) {
                let current = self.clone();
                drop(reactor::spawn(async move { current.let_older_go().await }));
            }
        }
        Ok(self.opened())
    }

    /// Has the lease hold no more than is read, once nothing is read of what came before.
    async fn let_older_go(&self) {
        loop {
            let is_used = |opened: &Rc<Opened>| Rc::strong_count(opened) > 1;
            if self.older.borrow().iter().any(is_used) {
                reactor::time::sleep(LOOK_EVERY).await;
                continue;
            }
            self.older.borrow_mut().clear();
            let reader: Reader = self.opened().reader.clone();
            // If that fails the lease goes on holding more than is needed, or has ended, which the next call learns.
            let _ = reader.let_older_go().await;
            if self.older.borrow().is_empty() {
                self.is_letting_go.set(false);
                return;
            }
        }
    }
}
