//! The cluster at a glance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foundation::{ByteCount, Instant};

use crate::controller::care::{Absence, Drain, is_crowded};
use crate::controller::clones::OriginView;
use crate::controller::damage::{Damage, Scrub};
use crate::controller::drain::Drained;
use crate::controller::health::DiskHealth;
use crate::controller::nodes::Resync;
use crate::controller::releases::Releases;
use crate::controller::room::Unplaced;
use crate::controller::uses::VolumeUse;
use crate::controller::{Controller, Heard, NodeView};
use crate::error::ControlError;
use crate::identity::{ClusterId, Incarnation, NodeId, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Copy, Disk, Volume};
use crate::pace::Work;
use crate::store::MetadataStore;

/// The cluster at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The cluster's identity.
    pub cluster: ClusterId,
    /// The store's revision.
    pub revision: u64,
    /// Its nodes.
    pub nodes: Vec<NodeStatus>,
    /// Its volumes.
    pub volumes: Vec<VolumeStatus>,
}

/// A node at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node.
    pub view: NodeView,
    /// Since its last heartbeat; none when this master has not heard it.
    pub silent: Option<Duration>,
    /// Its disks, with the bytes that are promised to copies.
    pub disks: Vec<(Disk, ByteCount)>,
    /// How they are, in the same order.
    pub health: Vec<DiskHealth>,
    /// Copies are moved away from all of it, or from one of its disks.
    pub is_drained: bool,
    /// What is still there of that.
    pub drained: Drained,
    /// For that, as fast as it went in the last minutes; none before anything can be said.
    pub drain_left: Option<Duration>,
    /// While it is gone: its copies that are out of sync, and when they are made elsewhere, as this master has seen it; none once that
    /// has begun, or cannot be.
    pub absence: Option<Absence>,
    /// How far it is with comparing its copies; none when this master has not heard it.
    pub scrub: Option<Scrub>,
    /// Which releases its processes are; none when this master has not heard it yet.
    pub releases: Option<Releases>,
}

/// A volume at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// The volume.
    pub volume: Volume,
    /// Chunks that are placed.
    pub chunks: u32,
    /// Chunks with fewer copies in sync than they should have.
    pub degraded_chunks: u32,
    /// Copies in sync that these lack in all.
    pub lacking_copies: u32,
    /// Bytes promised to them.
    pub lacking: ByteCount,
    /// For these, as fast as it went in the last minutes; none before anything can be said.
    pub mend_left: Option<Duration>,
    /// Chunks with fewer living copies in sync than the minimum: writes wait.
    pub waiting_chunks: u32,
    /// Chunks of which fewer copies in sync than the minimum are on disks with room: writes that need room are refused.
    pub roomless_chunks: u32,
    /// Chunks that lack a copy for which there was no place when this master last looked for one.
    pub placeless_chunks: u32,
    /// Chunks with more copies in one rack than need be: two, or, where racks are fewer than copies, two more than another rack has that has a node for one.
    pub crowded_chunks: u32,
    /// Racks are fewer than copies, and nobody has asked for different ones.
    pub few_racks: bool,
    /// Copies that are sent what they have missed, as living write nodes last said.
    pub resyncs: Vec<Resync>,
    /// What it is a clone of.
    pub origin: Option<OriginView>,
    /// What it uses of disks, as [`Controller::uses`] has it.
    pub used: Option<VolumeUse>,
    /// What checksums of its copies in sync have shown.
    pub damage: Damage,
    /// Complete snapshots of it with blocks that no copy has right, as far as living nodes know, by name.
    pub lost_of_snapshots: Vec<(String, u64)>,
    /// Chunks of one that is being made or grows for which there is no place.
    pub unplaced: Option<Unplaced>,
}

impl<S: MetadataStore> Controller<S> {
    /// The cluster at a glance. Reads every record.
    pub fn status(&self, now: Instant) -> Result<Status, ControlError> {
        let (nodes, racks) = (self.nodes(now)?, self.racks(now)?);
        let standings: BTreeMap<_, _> = nodes.iter().map(|(&id, view)| (id, view.standing())).collect();
        let mut volumes: BTreeMap<VolumeNumber, VolumeStatus> = BTreeMap::new();
        let uses = self.uses_on(&nodes);
        let living = nodes.values().filter(|view| view.is_alive);
        let lives = living.map(|view| (view.id, view.record.incarnation));
        let lost = self.damages.of_snapshots(lives);
        for volume in self.volumes()? {
            let used = |uses: &BTreeMap<_, VolumeUse>| uses.get(&volume.number).copied().unwrap_or_default();
            let status = VolumeStatus {
                chunks: 0,
                degraded_chunks: 0,
                lacking_copies: 0,
                lacking: ByteCount(0),
                mend_left: None,
                waiting_chunks: 0,
                roomless_chunks: 0,
                placeless_chunks: 0,
                crowded_chunks: 0,
                few_racks: racks.are_few_for(&volume),
                resyncs: self.resyncs(volume.number, now),
                origin: self.origin_of(&volume)?,
                used: uses.as_ref().map(used),
                damage: Damage::default(),
                lost_of_snapshots: self.lost_of_snapshots(&volume, &lost)?,
                unplaced: self.unplaced(volume.number).cloned(),
                volume,
            };
            volumes.insert(status.volume.number, status);
        }
        let end = keys::end_of(keys::CHUNKS);
        let is_unharmed = self.damages.is_empty();
        let full = self.full_disks(now);
        let mut drained: BTreeMap<Drain, Drained> = self
            .care
            .drains()
            .map(|drain| (drain, Drained::default()))
            .collect();
        // What is on its way to a disk may be there already.
        for (_, moving) in self.disk_moves.all() {
            if let Some(drained) = drained.get_mut(&(moving.node, Some(moving.to))) {
                drained.copies += 1;
                drained.bytes.0 += moving.bytes.0;
            }
        }
        self.read_range::<Chunk>(keys::CHUNKS.to_vec(), &end, |key, stored| {
            let Some(id) = keys::parse_chunk(key) else { return };
            if !drained.is_empty() {
                let bytes = volumes
                    .get(&id.volume)
                    .map_or(0, |status| status.volume.geometry.chunk.0);
                let on = |copy: &Copy| [(copy.node, None), (copy.node, Some(copy.disk))];
                let places: BTreeSet<Drain> = stored.record.copies.iter().flat_map(on).collect();
                for place in places {
                    if let Some(drained) = drained.get_mut(&place) {
                        drained.copies += 1;
                        drained.bytes.0 += bytes;
                    }
                }
            }
            let Some(status) = volumes.get_mut(&id.volume) else {
                return;
            };
            if !is_unharmed {
                let bytes = status.volume.geometry.chunk;
                status
                    .damage
                    .add(self.damages.of_chunk(id, &stored.record, bytes));
            }
            let geometry = &status.volume.geometry;
            let lives = |node: NodeId, incarnation: Incarnation| {
                standings.get(&node).is_some_and(|standing| {
                    standing.is_alive
                        && standing.incarnation == incarnation
                        && standing.ended_through < incarnation
                })
            };
            let members = stored.record.members();
            let living = members.filter(|(node, incarnation)| lives(*node, *incarnation));
            let living = living.count();
            status.chunks += 1;
            status.crowded_chunks += u32::from(is_crowded(&racks, &stored.record, &status.volume));
            let lacking = usize::from(geometry.copies).saturating_sub(living);
            status.degraded_chunks += u32::from(lacking > 0);
            status.lacking_copies += u32::try_from(lacking).unwrap_or(u32::MAX);
            status.placeless_chunks += u32::from(lacking > 0 && self.care.is_placeless(id));
            status.lacking.0 += lacking as u64 * geometry.chunk.0;
            // A copy that is served by force is alone until others are in sync again.
            let needed = usize::from(geometry.minimum).min(stored.record.member_count());
            status.waiting_chunks += u32::from(living < needed);
            if !full.is_empty() {
                let has_room = |copy: &&Copy| {
                    let is_in = copy
                        .incarnation
                        .is_some_and(|incarnation| lives(copy.node, incarnation));
                    is_in && !full.contains(&(copy.node, copy.disk))
                };
                let with_room = stored.record.copies.iter().filter(has_room).count();
                status.roomless_chunks += u32::from(with_room < needed);
            }
        })?;
        for (&number, status) in &mut volumes {
            // Of a volume whose copies own all that they may hold nothing needs any.
            let whole = status
                .volume
                .size()
                .0
                .saturating_mul(status.volume.geometry.copies.into());
            if status.used.is_some_and(|used| used.used.0 >= whole) {
                status.roomless_chunks = 0;
            }
            status.mend_left = self.pace.time_left(Work::Mend(number), status.lacking, now);
        }
        let nodes: Result<Vec<_>, _> = nodes
            .into_values()
            .map(|view| self.node_status(view, &drained, now))
            .collect();
        Ok(Status {
            cluster: self.cluster,
            revision: self.revision()?,
            nodes: nodes?,
            volumes: volumes.into_values().collect(),
        })
    }

    /// The copies of a volume that are sent what they have missed, as living write nodes last said.
    pub fn resyncs(&self, volume: VolumeNumber, now: Instant) -> Vec<Resync> {
        let recent = |heard: &&Heard| now.since(heard.at) < self.settings.heartbeat_timeout;
        let resyncs = self
            .heard
            .values()
            .filter(recent)
            .flat_map(|heard| &heard.resyncs);
        let of_volume = resyncs.filter(|resync| resync.chunk.volume == volume);
        of_volume.cloned().collect()
    }

    /// `left` has what is left of every drain.
    fn node_status(
        &self,
        view: NodeView,
        left: &BTreeMap<Drain, Drained>,
        now: Instant,
    ) -> Result<NodeStatus, ControlError> {
        let heard = self.heard.get(&view.id);
        let missing = self.missing_disks(view.id, &view.record)?;
        let known: Vec<Disk> = view.record.disks.iter().copied().chain(missing).collect();
        let mut disks = Vec::with_capacity(known.len());
        for disk in &known {
            let used = heard
                .and_then(|heard| heard.used.get(&disk.id))
                .copied()
                .unwrap_or_default();
            let held = heard.and_then(|heard| heard.held.get(&disk.id)).copied();
            let allocated = self.allocated(view.id, disk.id)?.0;
            disks.push((Disk { used, held, ..*disk }, allocated));
        }
        let disk_health = |disk: &Disk| match view.record.has_disk(disk.id) {
            true => self.disk_health(view.id, disk.id, now),
            false => self.missing_disk(view.id, disk.id),
        };
        let health = known.iter().map(disk_health).collect();
        let (whole, any) = self.care.drained_of(view.id);
        let mut drained = Drained::default();
        for &disk in any.iter().filter(|disk| !whole || disk.is_none()) {
            let of_it = left.get(&(view.id, disk)).copied().unwrap_or_default();
            drained.copies += of_it.copies;
            drained.bytes.0 += of_it.bytes.0;
        }
        let awaits = !view.is_alive && !whole;
        let rebuild_after = self.settings.rebuild_after;
        Ok(NodeStatus {
            absence: match awaits {
                true => self.care.absence_of(view.id, now, rebuild_after),
                false => None,
            },
            is_drained: !any.is_empty(),
            drained,
            drain_left: self.pace.time_left(Work::Drain(view.id), drained.bytes, now),
            silent: heard.map(|heard| now.since(heard.at)),
            scrub: self.damages.scrub(view.id, view.record.incarnation),
            releases: self.releases(view.id, view.record.incarnation, now),
            disks,
            health,
            view,
        })
    }
}
