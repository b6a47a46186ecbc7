//! Makes changed records durable, all that have changed in one go: while one flush runs, the next changes gather.

use std::rc::Weak;

use super::Node;

pub(super) async fn run(weak: Weak<Node>) {
    loop {
        let Some(node) = weak.upgrade() else { return };
        let changed = node.copies.changed.changed();
        if !node.copies.has_pending() {
            changed.await;
            continue;
        }
        let outcomes = node.copies.persist().await;
        for (chunk, token, result) in outcomes {
            match result {
                Ok(()) => node.persisted(chunk, token),
                // Nothing may be sent or completed that depends on it: the copy stops answering, and the write
                // node leaves it out.
                Err(error) => {
                    tracing::error!(?chunk, %error, "the record of a chunk copy cannot be written: the copy stops");
                }
            }
        }
    }
}
