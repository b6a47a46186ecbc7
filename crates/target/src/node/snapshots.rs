//! Snapshots of chunk copies: each is a snapshot of the copy's blob, named by chunk and number, with the record and the
//! checksums as they were (`docs/decisions/0081`, `docs/formats/checksums.md`).

use bdev::ChannelExt;
use blobstore::{BlobId, Blobstore};
use volume::{ChunkId, IoToken, Sequence, SnapshotId};

use super::copies::{Copies, CopyError, chunk_bytes};
use super::{Event, Node};

/// Names a snapshot of a blob: volume and chunk index as those of the copy, then number and sequence, 8 bytes each.
pub(super) const ATTRIBUTE_SNAPSHOT: &str = "redhare.snapshot";

impl Node {
    /// Keeps a copy as it is.
    pub(super) fn snapshot(&self, chunk: ChunkId, io: IoToken, name: (SnapshotId, Sequence)) {
        let node = self.own();
        drop(reactor::spawn(async move {
            let kept = node.copies.snapshot(chunk, name).await;
            if let Err(error) = &kept {
                tracing::warn!(?chunk, snapshot = name.0.0, %error, "no snapshot can be made of a chunk copy");
            }
            node.push(Event::Local {
                chunk,
                io,
                succeeded: kept.is_ok(),
                read: None,
            });
        }));
    }
}

impl Copies {
    /// Makes a copy's writes and their checksums durable and keeps it as it is, durable under this name when it returns. No
    /// write may be under way.
    pub(super) async fn snapshot(
        &self,
        chunk: ChunkId,
        (snapshot, sequence): (SnapshotId, Sequence),
    ) -> Result<(), CopyError> {
        let (store, blob) = self.place(chunk).ok_or(CopyError::NoSuchCopy { chunk })?;
        let failed = |source| CopyError::Store { chunk, source };
        let name = snapshot_bytes(chunk, snapshot);
        for id in line_of(&store, blob.id()) {
            let there = store.blob(id).map_err(failed)?.attribute(ATTRIBUTE_SNAPSHOT);
            if there.is_some_and(|there| there.starts_with(&name)) {
                return Err(CopyError::SnapshotExists { chunk, snapshot });
            }
        }
        let flushed = match self.sums(chunk) {
            Some(sums) => sums.flush().await,
            None => blob.channel().flush().await,
        };
        flushed.map_err(|source| CopyError::Flush { chunk, source })?;
        let kept = store.snapshot(blob.id()).await.map_err(failed)?;
        let named = [&name[..], &sequence.0.to_le_bytes()].concat();
        // The name and the snapshot are in the same commit: neither is found without the other.
        if let Err(error) = kept.set_attribute(ATTRIBUTE_SNAPSHOT, &named) {
            store.delete(kept.id()).await.map_err(failed)?;
            return Err(failed(error));
        }
        store.sync().await.map_err(failed)
    }
}

/// The snapshots that a copy's blob shows, newest first.
fn line_of(store: &Blobstore, copy: BlobId) -> Vec<BlobId> {
    let parent = |id: &BlobId| store.blob(*id).ok()?.parent();
    std::iter::successors(parent(&copy), parent).collect()
}

/// A snapshot's name on a disk, without its sequence.
fn snapshot_bytes(chunk: ChunkId, snapshot: SnapshotId) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&chunk_bytes(chunk));
    bytes[8..].copy_from_slice(&snapshot.0.to_le_bytes());
    bytes
}

/// Deletes a copy's blob and the snapshots that nobody else is made of.
pub(super) async fn delete_with_snapshots(store: &Blobstore, copy: BlobId) -> Result<(), blobstore::Error> {
    let line = line_of(store, copy);
    store.delete(copy).await?;
    for snapshot in line {
        if !store.blob(snapshot)?.children().is_empty() {
            break;
        }
        store.delete(snapshot).await?;
    }
    store.sync().await
}
