//! Writes whose association was lost: they are repeated by another path, or answered, only once the association can do
//! nothing any more. What was not in flight there goes on meanwhile.

use std::net::SocketAddr;
use std::rc::Weak;
use std::time::Duration;

use reactor::time;

use super::{Doubt, Held, RemoteChannel, State, changes};

/// Between attempts to have a lost association ended through another path.
const PAUSE: Duration = Duration::from_millis(100);

/// A lost association on which writes may still take effect.
pub(super) struct OpenDoubt {
    /// The generation of its connection.
    pub(super) number: u64,
    /// Equal for controllers that are known to be of one target.
    pub(super) target: u64,
    /// Where it was.
    pub(super) address: SocketAddr,
    pub(super) doubt: Doubt,
    /// One of these writes was answered as being of unknown outcome: nothing may pass it any more.
    pub(super) given_up: bool,
}

impl State {
    /// Whether something that may still take effect would come on top of the request, or is this request.
    pub(super) fn must_wait(&self, held: &Held) -> bool {
        self.doubts
            .iter()
            .any(|open| open.given_up || held.doubt == Some(open.number))
    }

    /// A request ends with its outcome unknown.
    pub(super) fn give_up(&mut self, held: &Held) {
        if !changes(held.operation) {
            return;
        }
        let open = self
            .doubts
            .iter_mut()
            .find(|open| held.doubt == Some(open.number));
        if let Some(open) = open {
            open.given_up = true;
        }
    }

    /// Controllers of these two numbers are of one target.
    pub(super) fn are_of_one_target(&mut self, target: u64, other: u64) {
        let connections = self.slots.iter_mut().filter_map(|slot| slot.connection.as_mut());
        let targets = connections.map(|connection| &mut connection.target);
        for one in targets.chain(self.doubts.iter_mut().map(|open| &mut open.target)) {
            if *one == other {
                *one = target;
            }
        }
    }
}

impl RemoteChannel {
    /// An association can do nothing any more.
    pub(super) fn settled(&self, number: u64) {
        let before = {
            let mut state = self.state.borrow_mut();
            let before = state.doubts.len();
            state.doubts.retain(|open| open.number != number);
            before != state.doubts.len()
        };
        if before {
            self.pump();
        }
    }

    /// Has a lost association ended through whatever other path there is, or waits until it has by itself. A new
    /// association by its own path settles it, too.
    pub(super) async fn settle(weak: Weak<Self>, number: u64) {
        loop {
            let Some(channel) = weak.upgrade() else { return };
            let (doubt, helpers) = {
                let state = channel.state.borrow();
                let Some(open) = state.doubts.iter().find(|open| open.number == number) else {
                    return;
                };
                let connections = state.slots.iter().filter_map(|slot| slot.connection.as_ref());
                let live = connections.filter(|connection| !connection.is_ended());
                let helpers: Vec<_> = live
                    .map(|connection| (connection.controller.clone(), connection.target == open.target))
                    .collect();
                (open.doubt, helpers)
            };
            // The user may go while we ask.
            drop(channel);
            for (controller, same_target) in helpers {
                match doubt.settle_elsewhere(&controller, same_target).await {
                    Ok(true) => {
                        if let Some(channel) = weak.upgrade() {
                            channel.settled(number);
                        }
                        return;
                    }
                    Ok(false) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a lost association could not be ended by another path");
                    }
                }
            }
            let now = time::now();
            let left = doubt.quiet_end().map_or(PAUSE, |end| end.since(now));
            if left.is_zero() {
                if let Some(channel) = weak.upgrade() {
                    channel.settled(number);
                }
                return;
            }
            time::sleep(left.min(PAUSE)).await;
        }
    }

    /// Learns which of the live controllers are of the same target as this one: by one of them the others can be ended.
    pub(super) async fn learn_target(weak: Weak<Self>, generation: u64) {
        let Some(channel) = weak.upgrade() else { return };
        let (controller, others) = {
            let state = channel.state.borrow();
            let Some(own) = state.connection(generation) else {
                return;
            };
            let connections = state.slots.iter().filter_map(|slot| slot.connection.as_ref());
            let others: Vec<_> = connections
                .filter(|other| other.generation != generation && !other.is_ended())
                .map(|other| (other.generation, other.controller.cntlid()))
                .collect();
            (own.controller.clone(), others)
        };
        drop(channel);
        for (other, cntlid) in others {
            if !matches!(controller.lists(cntlid).await, Ok(true)) {
                continue;
            }
            let Some(channel) = weak.upgrade() else { return };
            let mut state = channel.state.borrow_mut();
            // It was there while we asked only if it still is.
            let target_of = |generation| state.connection(generation).filter(|one| !one.is_ended());
            if let (Some(own), Some(other)) = (target_of(generation), target_of(other)) {
                let (own, other) = (own.target, other.target);
                state.are_of_one_target(own, other);
            }
        }
    }
}
