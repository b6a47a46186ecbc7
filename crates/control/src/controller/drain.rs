//! Draining: every copy on a node, or on one of its disks, is moved away, one chunk after the other, while all goes on.

use std::collections::BTreeMap;

use foundation::{ByteCount, Instant};

use crate::controller::siblings::has_spare;
use crate::controller::{ATTEMPTS_MAX, Controller, contended};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, NodeId, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Disk, Node, Number, Volume};
use crate::pace::Work;
use crate::placement::place_one;
use crate::racks::Spread;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// What is still to be moved away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Copies.
    pub copies: u32,
    /// Bytes promised to them.
    pub bytes: ByteCount,
}

/// Refuses the disk of number zero, which no disk has: in the store it stands for all of its node.
fn check_disk(node: NodeId, disk: Option<DiskId>) -> Result<(), ControlError> {
    match disk.filter(|disk| *disk == DiskId::default()) {
        None => Ok(()),
        Some(disk) => Err(ControlError::NoSuchDisk { node, disk }),
    }
}

impl<S: MetadataStore> Controller<S> {
    /// From now on places no copy on a node, or on one disk of it, and moves those away that are there. Refused, with the
    /// numbers, if they have nowhere to go. Repeating it changes nothing; a drain lasts until [`Controller::undrain`].
    pub fn drain(
        &mut self,
        node: NodeId,
        disk: Option<DiskId>,
        now: Instant,
    ) -> Result<Drained, ControlError> {
        self.check_place(node, disk)?;
        let drained = self.left_to_drain(node, disk)?;
        self.check_room_elsewhere(node, disk, now)?;
        self.set_drain(node, disk, true)?;
        Ok(drained)
    }

    /// Ends a drain: what is there stays, what has gone does not come back by itself.
    pub fn undrain(&mut self, node: NodeId, disk: Option<DiskId>) -> Result<Drained, ControlError> {
        check_disk(node, disk)?;
        // Also of a node that was removed, by masters of a release that could leave it.
        if self.read::<Number>(&keys::drain(node, disk))?.is_none() {
            self.check_place(node, disk)?;
        }
        self.set_drain(node, disk, false)?;
        self.left_to_drain(node, disk)
    }

    pub(super) fn check_place(&self, node: NodeId, disk: Option<DiskId>) -> Result<(), ControlError> {
        check_disk(node, disk)?;
        let Some(stored) = self.read::<Node>(&keys::node(node))? else {
            return Err(ControlError::NoSuchNode { node });
        };
        let Some(disk) = disk.filter(|disk| !stored.record.has_disk(*disk)) else {
            return Ok(());
        };
        // Also one that it has no more, while copies are promised to it or its drain is to be ended.
        let is_known = self.allocated(node, disk)?.0 > ByteCount(0)
            || self.read::<Number>(&keys::drain(node, Some(disk)))?.is_some();
        match is_known {
            true => Ok(()),
            false => Err(ControlError::NoSuchDisk { node, disk }),
        }
    }

    /// Ends, with a registration, the drains of disks that the node has no more and that nothing is promised to, and the wishes to put such
    /// disks back in service: nobody could.
    pub(super) fn forget_drains(
        &self,
        transaction: &mut Transaction,
        node: NodeId,
        disks: &[Disk],
    ) -> Result<bool, ControlError> {
        let mut forgets = false;
        for drained in self.care.drained_of(node).1.into_iter().flatten() {
            let is_there = disks.iter().any(|disk| disk.id == drained);
            if !is_there && self.allocated(node, drained)?.0 == ByteCount(0) {
                transaction.delete(keys::drain(node, Some(drained)));
                forgets = true;
            }
        }
        let mut restoring = self.health.restoring_of(node);
        restoring.retain(|wished| disks.iter().all(|disk| disk.id != *wished));
        for disk in restoring {
            transaction.delete(keys::disk_restore(node, disk));
            forgets = true;
        }
        Ok(forgets)
    }

    pub(super) fn set_drain(
        &mut self,
        node: NodeId,
        disk: Option<DiskId>,
        drains: bool,
    ) -> Result<(), ControlError> {
        let key = keys::drain(node, disk);
        // Copies leave a disk that was to be put back in service: it is not any more.
        let wished = disk.filter(|disk| drains && self.health.restoring_of(node).contains(disk));
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.read::<Number>(&key)?;
            if stored.is_some() != drains {
                let mut transaction = Transaction::new();
                transaction.compare(key.clone(), stored.map_or(0, |stored| stored.revision));
                if drains {
                    // Written anew, so that a removal of the node that is on its way, and ends only the drains that it knows, fails.
                    let of_node = keys::node(node);
                    let stored = self.read::<Node>(&of_node)?;
                    let stored = stored.ok_or(ControlError::NoSuchNode { node })?;
                    transaction
                        .compare(of_node.clone(), stored.revision)
                        .put(of_node.clone(), stored.record.encode(&of_node))
                        .put(key.clone(), Number(1).encode(&key));
                    if let Some(disk) = wished {
                        transaction.delete(keys::disk_restore(node, disk));
                    }
                } else {
                    transaction.delete(key.clone());
                }
                if !self.commit(&transaction)? {
                    continue;
                }
                self.pace.ended(Work::Drain(node));
                if wished.is_some() {
                    self.note_disk_restores()?;
                }
            }
            self.note_drains()?;
            // Its chunks are looked at with the next tick.
            self.reconciler.look_at_node(node);
            self.care.hurry();
            return Ok(());
        }
        Err(contended())
    }

    /// The copies that are on a node, or on one of its disks, now. Reads every chunk.
    pub fn left_to_drain(&self, node: NodeId, disk: Option<DiskId>) -> Result<Drained, ControlError> {
        let sizes = self.chunk_sizes()?;
        let mut drained = Drained::default();
        self.each_copy_on(node, disk, |id, _| {
            drained.copies += 1;
            drained.bytes.0 += sizes.get(&id.volume).map_or(0, |bytes| bytes.0);
        })?;
        // What is on its way there may be there already.
        for moving in disk
            .into_iter()
            .flat_map(|disk| self.disk_moves.coming(node, disk))
        {
            drained.copies += 1;
            drained.bytes.0 += moving.bytes.0;
        }
        Ok(drained)
    }

    fn chunk_sizes(&self) -> Result<BTreeMap<VolumeNumber, ByteCount>, ControlError> {
        let volumes = self.volumes()?;
        let size = |volume: &Volume| (volume.number, volume.geometry.chunk);
        Ok(volumes.iter().map(size).collect())
    }

    fn each_copy_on(
        &self,
        node: NodeId,
        disk: Option<DiskId>,
        mut each: impl FnMut(ChunkId, Chunk),
    ) -> Result<(), ControlError> {
        let end = keys::end_of(keys::CHUNKS);
        self.read_range::<Chunk>(keys::CHUNKS.to_vec(), &end, |key, stored| {
            let is_there =
                |copy: &crate::model::Copy| copy.node == node && disk.is_none_or(|disk| copy.disk == disk);
            if let Some(id) = keys::parse_chunk(key)
                && stored.record.copies.iter().any(is_there)
            {
                each(id, stored.record);
            }
        })
    }

    /// Tries a place for each copy that has to go, as they would be chosen now.
    fn check_room_elsewhere(
        &mut self,
        node: NodeId,
        disk: Option<DiskId>,
        now: Instant,
    ) -> Result<(), ControlError> {
        let volumes = self.volumes()?.into_iter().map(|volume| (volume.number, volume));
        let volumes: BTreeMap<VolumeNumber, Volume> = volumes.collect();
        // With the last of its nodes a rack goes.
        let (racks, before) = (
            self.racks_but(disk.is_none().then_some(node), now)?,
            self.racks(now)?,
        );
        let mut chunks = Vec::new();
        self.each_copy_on(node, disk, |id, chunk| chunks.push((id, chunk)))?;
        let mut candidates = self.candidates(now)?;
        candidates.retain(|place| place.node != node || disk.is_some() && Some(place.disk) != disk);
        // On its own node a copy cannot stand twice: also if only its disk is drained it goes to another one, if any has room for it.
        let others = candidates
            .iter()
            .map(|place| place.node)
            .filter(|other| *other != node);
        let others = others.collect::<std::collections::BTreeSet<_>>().len();
        // A disk that works gives its copies to the others of its node, with none given up.
        let shifts = match disk {
            Some(disk) => {
                self.moves_disks(node) && self.has_disk(node, disk)? && !self.is_out_of_service(node, disk)
            }
            None => false,
        };
        let copies = chunks.len();
        let (mut placed, mut lacking, mut too_few, mut crowded) = (0usize, ByteCount(0), None, 0usize);
        for (id, chunk) in &chunks {
            let Some(volume) = volumes.get(&id.volume) else {
                continue;
            };
            let bytes = volume.geometry.chunk;
            // A copy that moves has its place already, and leaves one behind.
            let moving = self.care.moves.get(id);
            let leaves = moving
                .map(|moving| moving.from)
                .filter(|from| chunk.has_copy_on(*from));
            if disk.is_none() && leaves == Some(node) {
                placed += 1;
                continue;
            }
            // As one that moves to another disk of its node.
            if disk.is_some() && self.disk_moves.leaves(*id, node, disk) {
                placed += 1;
                continue;
            }
            let may = |place: NodeId| !chunk.has_copy_on(place) || leaves == Some(place);
            let others = || {
                chunk
                    .copies
                    .iter()
                    .map(|copy| copy.node)
                    .filter(|other| *other != node && leaves != Some(*other))
            };
            let spread = racks.spread_of(volume);
            let crowd = |place: NodeId| may(place).then(|| racks.crowd(spread, place, others()));
            // It may move to another disk of its own node, or be given up and made anew there, of which there is none if all of the node
            // is drained: where no other node has room, or only in the rack of another copy.
            let is_out = !chunk.members().any(|(member, _)| member == node);
            let renews = is_out || has_spare(chunk.member_count(), &volume.geometry);
            let shifts = shifts && !is_out && self.may_change_disks(volume);
            let renews = renews && disk.is_some() && self.renews(node) || shifts;
            let own = before.crowd(spread, node, others());
            let best = match renews && spread == Spread::Rack && !racks.are_few_for(volume) {
                true => {
                    let places = candidates.iter().filter(|place| place.free() >= bytes.0);
                    places.filter_map(|place| crowd(place.node)).min()
                }
                false => None,
            };
            let at_home = |place: NodeId| (place == node).then_some(own);
            let random = &mut self.random;
            let mut place = None;
            if best.is_some_and(|best| best > own) {
                place = place_one(&mut candidates, bytes, random, at_home);
            }
            if place.is_none() {
                place = place_one(&mut candidates, bytes, random, crowd);
            }
            if place.is_none() && renews {
                place = place_one(&mut candidates, bytes, random, at_home);
            }
            match place {
                Some((place, _)) => {
                    placed += 1;
                    let worse = !racks.are_few_for(volume) && racks.crowd(spread, place, others()) > own;
                    crowded += usize::from(worse);
                }
                None => {
                    lacking.0 += bytes.0;
                    let elsewhere = candidates
                        .iter()
                        .any(|place| may(place.node) || renews && place.node == node);
                    too_few = too_few.or((!elsewhere).then_some(chunk.copies.len()));
                }
            }
        }
        if let Some(needed) = too_few {
            let why = ControlError::DrainNodes { node, needed, others };
            return Err(self.unless_awaited(why, now)?);
        }
        if placed < copies {
            let why = ControlError::DrainRoom {
                node,
                copies,
                placed,
                lacking,
            };
            return Err(self.unless_awaited(why, now)?);
        }
        if crowded > 0 {
            let copies = crowded;
            let why = ControlError::DrainRacks { node, copies };
            return Err(self.unless_awaited(why, now)?);
        }
        Ok(())
    }
}
