//! Forgetting a node for good.

use foundation::{ByteCount, Instant};

use crate::controller::{ATTEMPTS_MAX, Controller, NodeView, Stored, contended};
use crate::error::ControlError;
use crate::identity::{DiskId, NodeId};
use crate::keys;
use crate::model::{Node, Number};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

impl<S: MetadataStore> Controller<S> {
    /// Takes a node out of the cluster. It is refused when it comes back: what it knows of configurations is of a time when it
    /// was a member, and nobody looks after its copies any more. Refused, with the numbers, while copies are promised to it, while a
    /// volume is exported by it or pinned to it, and while it lives and is not drained, since the next copy could be
    /// placed on it. Repeating it changes nothing.
    pub fn remove_node(&mut self, node: NodeId, now: Instant) -> Result<(), ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let key = keys::node(node);
            let Some(stored) = self.read::<Node>(&key)? else {
                let was_removed = self.read::<Number>(&keys::removed(node))?.is_some();
                return if was_removed {
                    Ok(())
                } else {
                    Err(ControlError::NoSuchNode { node })
                };
            };
            let promised = self.check_unused(node, &stored, now)?;
            let mut transaction = Transaction::new();
            transaction.compare(key.clone(), stored.revision).delete(key);
            // A copy that is being placed there changes these.
            for (disk, revision) in promised {
                let key = keys::allocation(node, disk);
                transaction.compare(key.clone(), revision);
                if revision > 0 {
                    transaction.delete(key);
                }
            }
            self.note_drains()?;
            for disk in self.care.drained_of(node).1 {
                transaction.delete(keys::drain(node, disk));
            }
            for disk in self.health.restoring_of(node) {
                transaction.delete(keys::disk_restore(node, disk));
            }
            let removed = keys::removed(node);
            transaction.put(
                removed.clone(),
                Number(stored.record.incarnation.0).encode(&removed),
            );
            // The last node with a rack may go.
            if stored.record.rack.is_some() {
                self.note_racks(&mut transaction, node, false, now)?;
            }
            if self.commit(&transaction)? {
                self.heard.remove(&node);
                self.note_disk_restores()?;
                return self.note_drains();
            }
        }
        Err(contended())
    }

    /// Whether nothing is left that needs the node; its disks, with the revisions of what is promised there.
    fn check_unused(
        &mut self,
        node: NodeId,
        stored: &Stored<Node>,
        now: Instant,
    ) -> Result<Vec<(DiskId, u64)>, ControlError> {
        let refuse = |why: String, remedy: String| Err(ControlError::NodeInUse { node, why, remedy });
        let (mut promised, mut bytes) = (Vec::new(), ByteCount(0));
        // Also disks that the node has no more.
        let (first, end) = keys::allocations_of(node);
        self.read_range::<Number>(first, &end, |key, stored| {
            if let Some((_, disk)) = keys::parse_allocation(key) {
                promised.push((disk, stored.revision));
                bytes.0 += stored.record.0;
            }
        })?;
        for disk in &stored.record.disks {
            if promised.iter().all(|(known, _)| *known != disk.id) {
                promised.push((disk.id, 0));
            }
        }
        let is_drained = self.read::<Number>(&keys::drain(node, None))?.is_some();
        // After the records were made anew from the disks there may be places on it for which nothing is promised: of a copy in sync
        // whose node was not read, only that knows the disk.
        let left = self.left_to_drain(node, None)?;
        if bytes.0 > 0 || left.copies > 0 {
            let (copies, bytes) = (left.copies, bytes.max(left.bytes));
            let remedy = match is_drained {
                true => {
                    "wait until they have been moved away, \"redhare status\" shows what is left".to_owned()
                }
                false => format!("move them away with \"redhare node drain {node}\""),
            };
            return refuse(
                format!("{copies} copies ({bytes}) are promised to its disks"),
                remedy,
            );
        }
        for volume in self.volumes()? {
            let name = &volume.name;
            if volume.portals.contains(&node) {
                let remedy = format!(
                    "have others export it (\"redhare volume export {name} --on NODE,NODE\"), or end that (\"redhare volume unexport {name}\")"
                );
                return refuse(format!("volume {name} is exported by it"), remedy);
            }
            if volume.write_pin == Some(node) {
                let remedy = format!("unpin them (\"redhare volume set {name} --write-node any\")");
                return refuse(format!("the writes of volume {name} are pinned to it"), remedy);
            }
        }
        if self.nodes(now)?.get(&node).is_some_and(NodeView::is_awaited) {
            return refuse(
                "this master, which leads since a moment ago, has not heard it yet".to_owned(),
                "try again in a few seconds".to_owned(),
            );
        }
        let is_heard = self.is_heard(node, stored.record.incarnation, now);
        if let Some(why) = self.needs_for_snapshots(node, is_heard)? {
            return refuse(
                why,
                "drain it and wait until others have them (\"redhare volume snapshot list VOLUME\" counts the copies), or delete those snapshots".to_owned(),
            );
        }
        if is_heard && !is_drained {
            return refuse(
                "it lives, and copies may be placed on it".to_owned(),
                format!("drain it first (\"redhare node drain {node}\"), or end it"),
            );
        }
        Ok(promised)
    }

    /// Why a node may have copies of snapshots that others lack. One that lives says which it has, and lets go what others have. What one
    /// that does not said last may be older than the last snapshot, and a new master has not heard it: there it counts whether all others
    /// have theirs.
    fn needs_for_snapshots(&mut self, node: NodeId, is_heard: bool) -> Result<Option<String>, ControlError> {
        match self.snapshots_on(node).filter(|_| is_heard) {
            Some(0) => Ok(None),
            Some(count) => Ok(Some(format!(
                "its disks have copies of {count} snapshots of volumes that other nodes have not made yet"
            ))),
            None => {
                let lacks = self.lacks_of_snapshots()?;
                Ok(lacks.map(|lacks| {
                    format!("its disks may have copies of snapshots that nobody else has: {lacks}")
                }))
            }
        }
    }

    /// Refuses a node that was removed for good.
    ///
    /// # Errors
    /// [`ControlError::NodeRemoved`].
    pub fn check_not_removed(&self, node: NodeId) -> Result<(), ControlError> {
        match self.read::<Number>(&keys::removed(node))? {
            None => Ok(()),
            Some(_) => Err(ControlError::NodeRemoved { node }),
        }
    }
}
