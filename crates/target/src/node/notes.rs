//! Notes beside copies of snapshots: what only the masters know of a complete one, its name and when it was made, stands on each disk
//! that has a copy of it (`docs/decisions/0099`). Read when masters whose store is lost are made anew.
//!
//! A copy gets its note when this node has heard from the masters that its snapshot is complete: without one, nobody can tell later
//! whether it ever was.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use reactor::{spawn, time};
use volume::{ChunkId, ChunkIndex, SnapshotId, SnapshotNote, VolumeNumber};

use super::Node;
use super::copies::Copies;
use super::inventory::FoundSnapshot;
use super::snapshots::Key;

/// The note, as [`SnapshotNote::encode`] has it.
pub(super) const ATTRIBUTE_NOTE: &str = "redhare.snapshot-note";
/// How often it is looked which copies have no note yet.
const LOOK: Duration = Duration::from_secs(2);
/// Copies that get theirs in one look, so that others come to the disk.
const NOTES_MAX: usize = 256;

impl Node {
    /// What the masters say of complete snapshots; more may follow for the same list of [`Node::keep_snapshots`].
    pub fn note_snapshots(
        &self,
        notes: impl IntoIterator<Item = ((VolumeNumber, SnapshotId), SnapshotNote)>,
    ) {
        let kept = &self.copies.kept;
        let keeper = kept.keeper.borrow();
        let index = ChunkIndex(0);
        let mut known = kept.notes.borrow_mut();
        known.retain(|(volume, number), _| {
            let volume = *volume;
            keeper.is_complete((ChunkId { volume, index }, *number))
        });
        known.extend(notes);
        drop((known, keeper));
        if !kept.noting.replace(true) {
            drop(spawn(run(Rc::downgrade(&self.own()))));
        }
    }
}

impl Copies {
    /// Notes beside copies that have no note what is known of their snapshots, durably; how many.
    async fn write_notes(&self) -> usize {
        let kept = &self.kept;
        let due: Vec<(Key, Vec<u8>)> = {
            let (keeper, notes, unnoted) = (kept.keeper.borrow(), kept.notes.borrow(), kept.unnoted.borrow());
            let complete = unnoted.iter().filter(|key| keeper.is_complete(**key));
            let noted = |key: &Key| Some((*key, notes.get(&(key.0.volume, key.1))?.encode()?));
            complete.filter_map(noted).take(NOTES_MAX).collect()
        };
        let mut disks = BTreeSet::new();
        let mut written = 0;
        for (key, note) in &due {
            kept.unnoted.borrow_mut().remove(key);
            let Some(place) = kept.at.borrow().get(key).copied() else {
                continue;
            };
            let blob = self.store(place.disk).blob(place.blob);
            match blob.and_then(|blob| blob.set_attribute(ATTRIBUTE_NOTE, note)) {
                Ok(()) => {
                    disks.insert(place.disk);
                    written += 1;
                }
                // Of a disk that has failed, most likely. Other copies have it.
                Err(error) => {
                    let (chunk, snapshot) = (key.0, key.1.0);
                    tracing::warn!(?chunk, snapshot, %error, "what a snapshot is called cannot be noted beside its copy");
                }
            }
        }
        for disk in disks {
            // It becomes durable with what is next, else.
            if let Err(error) = self.store(disk).sync().await {
                tracing::warn!(%error, "what snapshots are called is not durable on a disk yet");
            }
        }
        written
    }

    /// All copies of snapshots, with their notes.
    pub(super) fn found_snapshots(&self) -> Vec<FoundSnapshot> {
        let at = self.kept.at.borrow();
        let found = |(&(chunk, snapshot), place): (&Key, &super::snapshots::KeptPlace)| {
            let blob = self.store(place.disk).blob(place.blob);
            FoundSnapshot {
                disk: self.disks[place.disk].uuid,
                chunk,
                snapshot,
                note: blob.ok().and_then(|blob| blob.attribute(ATTRIBUTE_NOTE)),
            }
        };
        at.iter().map(found).collect()
    }
}

async fn run(weak: Weak<Node>) {
    loop {
        let Some(node) = weak.upgrade() else { return };
        let copies = node.copies.write_notes().await;
        drop(node);
        if copies > 0 {
            tracing::info!(copies, "what snapshots are called is noted beside their copies");
        }
        // There may be more.
        if copies < NOTES_MAX {
            time::sleep(LOOK).await;
        }
    }
}
