//! Gives the core its time.

use std::time::Duration;

use foundation::Instant;
use reactor::time;

use super::{Event, Node};

/// A poke only says that the next time may be earlier than it was, so a busy node looks at most once in `slack`.
pub(super) async fn run(weak: std::rc::Weak<Node>, slack: Duration) {
    loop {
        let Some(node) = weak.upgrade() else { return };
        let poked = node.poke.changed();
        let next = node.core.borrow().next_timeout();
        let now = time::now();
        match next {
            Some(at) if at <= now => {
                drop(poked);
                node.push(Event::Timeout);
                drop(node);
                time::sleep(slack / 4).await;
            }
            Some(at) => {
                if time::timeout(at - now, poked).await.is_ok() {
                    time::sleep(slack.min(remaining(at))).await;
                }
            }
            None => poked.await,
        }
    }
}

fn remaining(at: Instant) -> Duration {
    at - time::now()
}
