//! How well the namespace is reached by each path: the ANA log is read when a path is connected, when the target says that
//! something has changed, and when a path has refused a command.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use foundation::Instant;
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::log::AnaState;
use reactor::sync::{Notify, Receiver};
use reactor::{spawn, time};

use super::{Controller, RemoteChannel};

/// Between looks at a group in the state Change, of whose end not every target tells.
const CHANGE_PAUSE: Duration = Duration::from_millis(200);

/// Asks for another look at the log.
#[derive(Default)]
pub(super) struct Look {
    wanted: Cell<bool>,
    asked: Notify,
}

impl Look {
    pub(super) fn ask(&self) {
        self.wanted.set(true);
        self.asked.notify();
    }

    async fn wanted(&self) {
        self.asked.until(|| self.wanted.get()).await;
        self.wanted.set(false);
    }
}

/// Each notice is a reason to look, and so is their end.
pub(super) fn follow_events(mut events: Receiver<AsyncEvent>, look: &Rc<Look>) {
    let look = Rc::downgrade(look);
    drop(spawn(async move {
        while events.recv().await.is_some() {
            let Some(look) = look.upgrade() else { return };
            look.ask();
        }
    }));
}

impl RemoteChannel {
    /// Keeps the state of a connection up to date until it is lost.
    pub(super) async fn follow_access(
        weak: Weak<Self>,
        generation: u64,
        controller: Weak<Controller>,
        look: Rc<Look>,
    ) {
        let mut changing: Option<Instant> = None;
        loop {
            if changing.is_some() {
                // Whether asked or not.
                let _ = time::timeout(CHANGE_PAUSE, look.wanted()).await;
            } else {
                look.wanted().await;
            }
            let Some(controller) = controller.upgrade() else {
                return;
            };
            let Some(nsid) = weak.upgrade().map(|channel| channel.shared.options.nsid) else {
                return;
            };
            let access = controller.access(nsid).await;
            let Some(channel) = weak.upgrade() else { return };
            let now = time::now();
            let access = match access {
                Ok(access) => access,
                Err(error) => {
                    tracing::warn!(%error, "the state of a path cannot be read: it is connected anew");
                    return channel.lose(generation);
                }
            };
            if !channel.has_access(generation, access) {
                return;
            }
            changing = (access == AnaState::Change).then(|| changing.unwrap_or(now));
            if changing.is_some_and(|since| controller.transition_end(since) <= now) {
                tracing::warn!(
                    address = %controller.options().address,
                    seconds = controller.identity().anatt,
                    "a path is in the state Change for longer than the target said (ANATT): it is connected anew"
                );
                channel.leave(generation);
                return;
            }
        }
    }

    /// Ends a connection, so that the path's next address is tried.
    fn leave(&self, generation: u64) {
        {
            let mut state = self.state.borrow_mut();
            let slot = state.slots.iter_mut().find(|slot| slot.has(generation));
            if let Some(slot) = slot {
                slot.go_on();
            }
        }
        self.lose(generation);
    }

    /// False if the connection is lost.
    fn has_access(&self, generation: u64, access: AnaState) -> bool {
        let leave = {
            let mut state = self.state.borrow_mut();
            let slot = state.slots.iter_mut().find(|slot| slot.has(generation));
            let Some(slot) = slot else { return false };
            let (id, leave) = (slot.id, slot.leaves(access));
            if state.paths.state(id) != Some(access) {
                tracing::info!(path = id.0, ?access, "access to a namespace has changed");
            }
            state.paths.set_state(id, access);
            leave
        };
        if leave {
            self.leave(generation);
            return false;
        }
        self.publish();
        self.pump();
        true
    }
}
