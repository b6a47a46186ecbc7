//! Makes changed records durable, all that have changed on a disk in one go: while one flush runs, the next changes
//! gather. Each disk has a task of its own, so that one that hangs holds up nobody else's records.

use std::rc::Weak;

use bdev::IoError;

use super::Node;

pub(super) async fn run(weak: Weak<Node>, disk: usize) {
    loop {
        let Some(node) = weak.upgrade() else { return };
        node.copies.noted(disk).await;
        let outcomes = node.copies.persist(disk).await;
        for (chunk, token, result) in outcomes {
            match result {
                Ok(()) => token.into_iter().for_each(|token| node.persisted(chunk, token)),
                Err(IoError::NoSpace) => token
                    .into_iter()
                    .for_each(|token| node.persist_again(chunk, token)),
                // Nothing may be sent or completed that depends on it: the copy takes no further part.
                Err(error) => {
                    tracing::error!(?chunk, %error, "the record of a chunk copy cannot be written");
                    node.persist_failed(chunk, token);
                }
            }
        }
    }
}
