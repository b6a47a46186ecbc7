//! Copies of which there is a newer one on another disk of the node. A disk may be out of service while a copy on it is given up and made
//! anew on another one (`docs/decisions/0129`): when it is put back, it still has what it had.

use std::rc::Rc;

use foundation::Epoch;
use volume::ChunkRecord;

use super::{Copies, Copy};

/// How new a copy is. The masters name a node for a new copy of a chunk only after a configuration without the one before, so whichever
/// took part in anything later is the one that has a place; one that took part in nothing has nothing yet.
fn age(record: &ChunkRecord) -> (Epoch, Option<Epoch>, Epoch) {
    let configured = record.config.as_ref().map(|config| config.epoch);
    (record.sealed, configured, record.flushed_in)
}

/// Of two copies of a chunk the newer one, and the other.
pub(super) fn newer_of(found: Rc<Copy>, known: Option<Rc<Copy>>) -> (Rc<Copy>, Option<Rc<Copy>>) {
    match known {
        Some(known) if age(&known.record.borrow()) >= age(&found.record.borrow()) => (known, Some(found)),
        known => (found, known),
    }
}

impl Copies {
    /// Deletes what is superseded, but for a copy that is as new as the one that is used: of these nobody knows which is right.
    pub(crate) async fn delete_superseded(&self) {
        for old in self.superseded.take() {
            let chunk = old.record.borrow().chunk;
            let used = self.record_of(chunk);
            let (disk, sealed) = (&self.disks[old.disk], old.record.borrow().sealed.0);
            let path = disk.path.display();
            if used.is_none_or(|used| age(&used) <= age(&old.record.borrow())) {
                tracing::error!(?chunk, %path, sealed, "two disks have a copy of one chunk, and neither is the newer: this one is left alone");
                continue;
            }
            let deleted = match disk.store.delete(old.blob).await {
                Ok(()) => disk.store.sync().await,
                failed => failed,
            };
            match deleted {
                Ok(()) => {
                    tracing::warn!(?chunk, %path, sealed, "an old copy is deleted: a newer one is on another disk")
                }
                Err(error) => {
                    tracing::error!(?chunk, %path, %error, "an old copy stays on its disk: a newer one is on another");
                }
            }
        }
    }
}
