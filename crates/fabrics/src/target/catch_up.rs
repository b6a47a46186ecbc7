//! Lets the other reactors take in what has come to them, before a Connect looks whether its host has left something.
//!
//! On one reactor the end of a host's old connection is seen before its new one is served, because it came first. On
//! several, the old connection's reactor may still be at something else when another reads the Connect; it would not
//! yet know that there is something to wait for.

use std::time::Duration;

use reactor::mailbox::mailbox;
use reactor::{CoreHandle, time, yield_now};

/// Turns of a reactor after which a connection has seen the end that lay in the socket when the first began: one brings
/// the completion and wakes the task, in the next it runs, and we run behind it in the one after that.
const TURNS: usize = 3;

/// Waits until each of `reactors` but this one has taken in what lay in its sockets; false if one of them has not done
/// so in `limit`.
pub(super) async fn catch_up(reactors: &[CoreHandle], limit: Duration) -> bool {
    let mut replies = Vec::new();
    for reactor in reactors.iter().filter(|reactor| !reactor.is_current()) {
        let (reply, caught_up) = mailbox(1);
        replies.push(caught_up);
        reactor.spawn(move || async move {
            for _ in 0..TURNS {
                yield_now().await;
            }
            // Who asked may have gone.
            let _ = reply.try_send(());
        });
    }
    let all = async {
        for reply in &mut replies {
            reply.recv().await;
        }
    };
    time::timeout(limit, all).await.is_ok()
}
