//! What a copy is sent that comes back goes to the disk in small portions while others ask something of this node.
//!
//! A disk that keeps back what it was given writes all of that when it is flushed, and many a disk does nothing else meanwhile: a
//! flush after 8 MiB, written in 80 ms, has stopped all reads for 11 on a disk that was measured (`docs/benchmarks.md`, "Small
//! flushes"). Flushes come all the time, for marks and records, and find what resync has written since the last. So each piece is
//! made durable for itself, and counts as written only then: the write node, which pauses for as long as pieces take, goes as fast as
//! the disk can take them in so.

use std::cell::Cell;
use std::time::Duration;

use foundation::Instant;
use reactor::{spawn, time};

use super::{Event, LocalIo, Node};

/// How long after a request the next one is reckoned with; the core does so for as long (`volume`'s `member::credit`).
const BUSY_FOR: Duration = Duration::from_millis(100);

/// When others asked something last.
#[derive(Default)]
pub(super) struct Asked(Cell<Option<Instant>>);

impl Asked {
    pub(super) fn note(&self) {
        self.0.set(Some(time::turn()));
    }

    pub(super) fn is_recent(&self) -> bool {
        self.0.get().is_some_and(|at| time::turn().since(at) < BUSY_FOR)
    }
}

impl Node {
    /// A piece is on its disk: it has ended when the disk keeps nothing back of it. A flush that fails counts as the write's own failure,
    /// since the system may tell of it only once.
    pub(super) fn settle(&self, local: LocalIo) {
        let (node, store) = (self.own(), self.copies.store(local.copy.disk).clone());
        drop(spawn(async move {
            let LocalIo {
                chunk,
                copy,
                io,
                range,
                _writing,
                ..
            } = local;
            let flushed = store.sync_writes().await;
            if let Err(error) = &flushed {
                tracing::warn!(?chunk, %error, "a piece of a copy that comes back cannot be made durable");
                if let Some(sums) = &copy.sums {
                    sums.forget(range);
                }
            }
            node.look_at_room(chunk);
            node.push(Event::Local {
                chunk,
                io,
                succeeded: flushed.is_ok(),
                read: None,
            });
        }));
    }
}
