//! Copies that are out for too long are rebuilt elsewhere, copies are moved away from what is drained, and places that
//! nobody needs are given back. What is decided is in [`crate::places`]; here it is committed, a chunk at a time, with the
//! room it takes or gives back in the same transaction.
//!
//! A look costs what there is to do: a chunk is read when something of it has changed, or when time alone may have changed
//! what is to be done with it, and no look reads more than a bounded number.
//!
//! In memory are hints only: since when a copy is seen out by this master, and which nodes have still to be told to delete
//! a copy. A master that starts anew counts from its start, and nodes name all their copies now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foundation::{ByteCount, Epoch, Instant};

use crate::configuration::Standing;
use crate::controller::dues::Dues;
use crate::controller::reconcile::spread;
use crate::controller::siblings::{hold_room, to_give_up};
use crate::controller::{Controller, Stored};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, Incarnation, NodeId, Uuid, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Copy, Moving, Number, Volume, VolumeState};
use crate::pace::Work;
use crate::placement::{Candidate, place_one, place_one_by_promises};
use crate::places::{Move, Outlook, next_move, with_place};
use crate::planted::Bug;
use crate::racks::{Racks, Spread};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// A disk of a node that is drained; without one the whole node.
pub(super) type Drain = (NodeId, Option<DiskId>);

const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// A chunk that can only wait is looked at again after this, if nothing of it changes before.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Chunks that one look reads, at most; heartbeats are answered between looks.
const LOOKS_MAX: usize = 512;
/// Copies that one heartbeat's answer names to be deleted.
const REMOVALS_MAX: usize = 1024;

/// What a chunk gets that lacks a copy, or has one on what is drained.
#[derive(Clone, Copy)]
enum Chosen {
    /// A place on this disk.
    Place(NodeId, DiskId),
    /// Nothing: this copy moves to another disk of its node, when it is its turn.
    Shifted(Copy),
    /// Nothing yet: this copy is given up, so that its node makes it anew on another disk.
    Renewed(Copy),
    /// Nothing before this node has deleted its copy, but its room.
    Awaited(NodeId),
    /// Nothing: there is no room.
    Nothing,
}

fn lacks_copy(chunk: &Chunk, volume: &Volume) -> bool {
    chunk.member_count() < usize::from(volume.geometry.copies)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Care {
    /// Chunks whose places may not be right, and when they are to be looked at next.
    chunks: Dues,
    /// Those of them that have a new copy which is being filled.
    filling: BTreeSet<ChunkId>,
    /// Those that need a new copy, which has to wait until others are filled; and how many were let fill when last counted.
    waiting: BTreeSet<ChunkId>,
    filling_max: usize,
    /// Those that lack a copy, and had no place for one when they were last looked at.
    placeless: BTreeSet<ChunkId>,
    /// Since when this master has seen a copy out of sync.
    out: BTreeMap<(ChunkId, NodeId), Instant>,
    /// When a copy on a node was last sent anything.
    resynced: BTreeMap<NodeId, Instant>,
    next: Instant,
    /// What is drained: whole nodes, and disks.
    drains: BTreeSet<Drain>,
    /// Copies that are moved to another node without being drained.
    pub(super) moves: BTreeMap<ChunkId, Moving>,
    /// Copies that nodes have still to delete.
    removals: BTreeMap<NodeId, BTreeSet<ChunkId>>,
    /// On which nodes copies were given up, to be made anew there.
    pub(super) given_up: BTreeMap<ChunkId, NodeId>,
    /// Where the nodes stand, as of the last tick.
    pub(super) racks: Racks,
    /// Chunks with more copies in one rack than need be.
    pub(super) crowded: BTreeSet<ChunkId>,
}

/// Copies of a node that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// How many are out of sync.
    pub copies: u32,
    /// Until the first of them is made elsewhere.
    pub elsewhere_in: Duration,
}

/// What one look is made on.
struct Look<'a> {
    now: Instant,
    care: &'a Care,
    standings: &'a BTreeMap<NodeId, Standing>,
    rebuild_after: Duration,
}

/// The chunk whose copies are asked about.
struct OfChunk<'a> {
    look: &'a Look<'a>,
    id: ChunkId,
}

impl Outlook for OfChunk<'_> {
    fn lives(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.look.standings.get(&node).is_some_and(|standing| {
            standing.is_heard && standing.incarnation == incarnation && standing.ended_through < incarnation
        })
    }

    fn drains(&self, copy: &Copy) -> bool {
        let drains = &self.look.care.drains;
        drains.contains(&(copy.node, None)) || drains.contains(&(copy.node, Some(copy.disk)))
    }

    fn moves(&self, copy: &Copy) -> bool {
        let moving = self.look.care.moves.get(&self.id);
        moving.is_some_and(|moving| moving.from == copy.node)
    }

    fn may_come(&self, copy: &Copy) -> bool {
        let care = self.look.care;
        let seen = care
            .out
            .get(&(self.id, copy.node))
            .copied()
            .unwrap_or(self.look.now);
        let since = care
            .resynced
            .get(&copy.node)
            .copied()
            .unwrap_or_default()
            .max(seen);
        !self.drains(copy) && self.look.now.since(since) < self.look.rebuild_after
    }
}

impl Care {
    /// A chunk's record as it is committed now.
    pub(super) fn note(&mut self, id: ChunkId, chunk: &Chunk, volume: &Volume) {
        let drains = |copy: &Copy| {
            self.drains.contains(&(copy.node, None)) || self.drains.contains(&(copy.node, Some(copy.disk)))
        };
        let copies = usize::from(volume.geometry.copies);
        let other = volume.write_pin.filter(|pin| *pin != chunk.write_node);
        let right = chunk.member_count() == copies
            && chunk.copies.len() == copies
            && !chunk.members().any(|(node, _)| Some(node) == other)
            && !self.moves.contains_key(&id);
        if !right || chunk.copies.iter().any(drains) {
            self.chunks.hurry(id);
        }
        if is_crowded(&self.racks, chunk, volume) {
            self.crowded.insert(id);
        } else {
            self.crowded.remove(&id);
        }
    }

    /// A chunk's record has changed.
    pub(super) fn changed(&mut self, id: ChunkId) {
        if self.chunks.contains(id) {
            self.chunks.hurry(id);
        }
    }

    /// A chunk is looked at soon, as one of which something is to be done.
    pub(super) fn look_at(&mut self, id: ChunkId) {
        self.chunks.hurry(id);
    }

    fn forget(&mut self, id: ChunkId) {
        self.chunks.remove(id);
        self.filling.remove(&id);
        self.waiting.remove(&id);
        self.placeless.remove(&id);
        self.given_up.remove(&id);
        let of_chunk = (id, NodeId::default())..=(id, NodeId(Uuid(u128::MAX)));
        let out: Vec<_> = self.out.range(of_chunk).map(|(key, _)| *key).collect();
        for key in out {
            self.out.remove(&key);
        }
    }

    /// The chunks that are to be looked at now, as many as one look may read: also those that may be given a new copy because
    /// another one has been filled.
    fn due(&self, now: Instant) -> BTreeSet<ChunkId> {
        let free = self.filling_max.saturating_sub(self.filling.len());
        let waiting = self.waiting.iter().take(free.min(LOOKS_MAX / 2)).copied();
        let due = self.chunks.due(now).take(LOOKS_MAX / 2);
        waiting.chain(due).collect()
    }

    /// A copy of a chunk begins to move.
    pub(super) fn moves(&mut self, id: ChunkId, moving: Moving) {
        self.moves.insert(id, moving);
        self.chunks.hurry(id);
        self.filling.insert(id);
    }

    /// Chunks whose places are not right, except those of which a copy is being moved without need.
    pub(super) fn unsettled(&self) -> usize {
        let unsettled = self.chunks.chunks().filter(|id| !self.moves.contains_key(id));
        unsettled.count()
    }

    /// Whether nothing is to be done about the places of any chunk of a volume.
    fn is_settled(&self, volume: VolumeNumber) -> bool {
        !self.chunks.has_any_of(volume)
    }

    /// What a copy that has gone was moved away for, if that is counted.
    pub(super) fn work_of(&self, copy: &Copy, moving: Option<Moving>) -> Option<Work> {
        if self.is_drained(copy.node, Some(copy.disk)) {
            return Some(Work::Drain(copy.node));
        }
        let moves = moving.is_some_and(|moving| moving.from == copy.node && !moving.by_command);
        moves.then_some(Work::Balance)
    }

    /// A chunk has been looked at; `fills` if a new copy of it is being filled.
    pub(super) fn looked_at(&mut self, id: ChunkId, again: Instant, fills: bool) {
        self.chunks.put(id, again);
        self.waiting.remove(&id);
        self.placeless.remove(&id);
        if fills {
            self.filling.insert(id);
        } else {
            self.filling.remove(&id);
        }
    }

    /// Notes which copies of a chunk are out, from the moment they are first seen so.
    fn note_out(&mut self, now: Instant, id: ChunkId, chunk: &Chunk) {
        for copy in &chunk.copies {
            match copy.incarnation {
                None => drop(self.out.entry((id, copy.node)).or_insert(now)),
                Some(_) => drop(self.out.remove(&(id, copy.node))),
            }
        }
    }

    /// For how long this master has seen a copy out of sync.
    pub(super) fn out_for(&self, id: ChunkId, node: NodeId, now: Instant) -> Option<Duration> {
        self.out.get(&(id, node)).map(|since| now.since(*since))
    }

    /// How many copies of a node are out of sync, and how long it is until the first of them is made elsewhere; none where none is out,
    /// or that time is over.
    pub(super) fn absence_of(&self, node: NodeId, now: Instant, rebuild_after: Duration) -> Option<Absence> {
        let since = self
            .out
            .iter()
            .filter(|((_, of), _)| *of == node)
            .map(|(_, since)| *since);
        let (copies, first) = since.fold((0, None), |(copies, first): (u32, Option<Instant>), since| {
            (
                copies.saturating_add(1),
                Some(first.map_or(since, |first| first.min(since))),
            )
        });
        let sent = self.resynced.get(&node).copied().unwrap_or_default();
        let left = rebuild_after.checked_sub(now.since(first?.max(sent)))?;
        Some(Absence {
            copies,
            elsewhere_in: left,
        })
        .filter(|_| !left.is_zero())
    }

    /// Whether a chunk lacks a copy, and there was no place for one when it was last looked at.
    pub(super) fn is_placeless(&self, id: ChunkId) -> bool {
        self.placeless.contains(&id)
    }

    /// Whether any copy is to be moved away from there.
    pub(super) fn is_drained(&self, node: NodeId, disk: Option<DiskId>) -> bool {
        self.drains.contains(&(node, None)) || disk.is_some() && self.drains.contains(&(node, disk))
    }

    /// Whether the copies of this disk are to be moved away, and not only those of all its node.
    pub(super) fn is_drained_itself(&self, node: NodeId, disk: DiskId) -> bool {
        self.drains.contains(&(node, Some(disk)))
    }

    /// All drains: nodes, and disks of nodes.
    pub(super) fn drains(&self) -> impl Iterator<Item = Drain> + '_ {
        self.drains.iter().copied()
    }

    /// Whether all of a node is drained, and what of it is.
    pub(super) fn drained_of(&self, node: NodeId) -> (bool, Vec<Option<DiskId>>) {
        let any: Vec<_> = self
            .drains
            .iter()
            .filter(|drain| drain.0 == node)
            .map(|drain| drain.1)
            .collect();
        (any.contains(&None), any)
    }

    /// Copies on this node are sent what they lack.
    pub(super) fn note_resync(&mut self, node: NodeId, now: Instant) {
        self.resynced.insert(node, now);
    }

    /// Whether the node has copies left to delete.
    pub(super) fn has_removals_of(&self, node: NodeId) -> bool {
        self.removals
            .get(&node)
            .is_some_and(|removals| !removals.is_empty())
    }

    /// The node has deleted these.
    pub(super) fn removed(&mut self, node: NodeId, chunks: &[ChunkId]) {
        for chunk in chunks {
            let removals = self.removals.get_mut(&node);
            if removals.is_some_and(|removals| removals.remove(chunk)) {
                // It may have waited for that.
                self.changed(*chunk);
            }
        }
    }

    /// Whether the node has still to delete a copy of this chunk.
    pub(super) fn is_removing(&self, node: NodeId, id: ChunkId) -> bool {
        self.removals
            .get(&node)
            .is_some_and(|removals| removals.contains(&id))
    }

    /// The node that has still to delete a copy of this chunk that it is to make anew.
    fn given_up(&self, id: ChunkId) -> Option<NodeId> {
        let node = self.given_up.get(&id).copied();
        node.filter(|node| self.is_removing(*node, id))
    }

    /// Looks at what is due with the next tick.
    pub(super) fn look_soon(&mut self) {
        self.next = Instant::default();
    }

    /// Looks again soon, at everything.
    pub(super) fn hurry(&mut self) {
        self.next = Instant::default();
        self.chunks.hurry_all();
    }
}

/// Whether copies in sync are in one rack that should be in different ones, or could be, where racks are few.
pub(super) fn is_crowded(racks: &Racks, chunk: &Chunk, volume: &Volume) -> bool {
    let nodes = chunk.members().map(|member| member.0);
    racks.is_crowded(volume.spread, volume.geometry.copies, nodes)
}

impl<S: MetadataStore> Controller<S> {
    /// Reads what is drained and what is moved, to other nodes and to other disks.
    pub(super) fn note_drains(&mut self) -> Result<(), ControlError> {
        let mut drains = BTreeSet::new();
        self.read_range::<Number>(keys::DRAINS.to_vec(), &keys::end_of(keys::DRAINS), |key, _| {
            drains.extend(keys::parse_drain(key));
        })?;
        self.care.drains = drains;
        let mut moves = BTreeMap::new();
        self.read_range::<Moving>(keys::MOVES.to_vec(), &keys::end_of(keys::MOVES), |key, stored| {
            moves.extend(keys::parse_move(key).map(|id| (id, stored.record)));
        })?;
        // Also those of which another master has decided.
        for &id in moves.keys().filter(|id| !self.care.moves.contains_key(id)) {
            self.care.chunks.hurry(id);
        }
        self.care.moves = moves;
        self.note_disk_moves()
    }

    /// Whether nothing is to be done about the places of a chunk, and every copy of it is in sync in a life that is heard.
    pub(super) fn is_right(
        &self,
        id: ChunkId,
        chunk: &Chunk,
        volume: &Volume,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> bool {
        let look = Look {
            now,
            care: &self.care,
            standings,
            rebuild_after: self.settings.rebuild_after,
        };
        let look = OfChunk { look: &look, id };
        let (copies, pin) = (volume.geometry.copies, volume.write_pin);
        volume.is_settled()
            && !self.care.moves.contains_key(&id)
            && !self.disk_moves.has(id)
            && next_move(chunk, copies, pin, spread(id), &look) == Move::Right
            && chunk.members().all(|(node, life)| look.lives(node, life))
    }

    /// Takes the next move for each chunk whose places are not right, now and then.
    pub(super) fn look_after_places(
        &mut self,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> Result<(), ControlError> {
        if now < self.care.next || self.care.chunks.is_empty() {
            return Ok(());
        }
        let chunks = self.care.due(now);
        let pause = self.settings.rebuild_after / 8;
        // What one look does not reach, the next tick does.
        let whole = chunks.len() < LOOKS_MAX / 2;
        self.care.next = if whole { now + pause.min(INTERVAL_MAX) } else { now };
        if chunks.is_empty() {
            return Ok(());
        }
        self.note_drains()?;
        let again = now + pause.min(WAIT_MAX);
        let mut volume: Option<(VolumeNumber, Option<Stored<Volume>>)> = None;
        let mut to_add = Vec::new();
        for id in chunks {
            if volume.as_ref().is_none_or(|(number, _)| *number != id.volume) {
                volume = Some((id.volume, self.read::<Volume>(&keys::volume(id.volume))?));
            }
            let of_volume = volume.as_ref().and_then(|(_, stored)| stored.as_ref());
            let ready = of_volume.filter(|stored| stored.record.state == VolumeState::Ready);
            let (Some(of_volume), Some(stored)) = (ready, self.read::<Chunk>(&keys::chunk(id))?) else {
                if of_volume.is_none_or(|stored| stored.record.state == VolumeState::Deleting) {
                    self.care.forget(id);
                    self.end_move(id)?;
                } else {
                    self.care.looked_at(id, again, false);
                }
                continue;
            };
            self.care.note_out(now, id, &stored.record);
            let look = Look {
                now,
                care: &self.care,
                standings,
                rebuild_after: self.settings.rebuild_after,
            };
            let geometry = &of_volume.record.geometry;
            let pin = of_volume.record.write_pin;
            let look = OfChunk { look: &look, id };
            match next_move(&stored.record, geometry.copies, pin, spread(id), &look) {
                Move::Right => {
                    self.care.forget(id);
                    self.end_move(id)?;
                    if self.care.is_settled(id.volume) {
                        self.pace.ended(Work::Mend(id.volume));
                    }
                }
                Move::Abandon => {
                    // Its new place is taken away with the next look.
                    self.end_move(id)?;
                    self.care.looked_at(id, now, false);
                }
                Move::HandOver(next) => {
                    self.care.looked_at(id, now, false);
                    self.commit_places_of(id, of_volume.revision, &stored, &next, None, &[], 0)?;
                }
                Move::Wait => {
                    // A new copy that is being filled, rather than an old one that is waited for. One that is made anew on another disk
                    // of its node goes on counting: there is no place more than there should be.
                    let has_more = stored.record.copies.len() > usize::from(geometry.copies);
                    let fills = has_more || self.care.filling.contains(&id);
                    self.care.looked_at(id, again, fills);
                }
                // Its copy is on its way to another disk, and nothing lacks.
                Move::Add if self.awaits_disk_move(id) && !lacks_copy(&stored.record, &of_volume.record) => {
                    self.care.looked_at(id, again, false);
                }
                Move::Add => {
                    self.care.looked_at(id, now, false);
                    to_add.push((id, of_volume.clone(), stored));
                }
                Move::Remove(next, gone) => {
                    // Looked at again with the next tick.
                    self.care.looked_at(id, now, false);
                    let (bytes, moving) = (geometry.chunk, self.care.moves.get(&id).copied());
                    let revision = of_volume.revision;
                    if self.commit_places_of(id, revision, &stored, &next, None, &gone, bytes.0)? {
                        for work in gone.iter().filter_map(|copy| self.care.work_of(copy, moving)) {
                            self.pace.finished(work, bytes, now);
                        }
                    }
                }
            }
        }
        self.add_places(to_add, now, again)
    }

    /// Gives each chunk a new place, as many as may be filled at a time; the others wait.
    fn add_places(
        &mut self,
        mut to_add: Vec<(ChunkId, Stored<Volume>, Stored<Chunk>)>,
        now: Instant,
        again: Instant,
    ) -> Result<(), ControlError> {
        if to_add.is_empty() {
            return Ok(());
        }
        let (mut candidates, racks) = (self.candidates(now)?, self.racks(now)?);
        let givers = self.givers(now)?;
        let living: BTreeSet<NodeId> = candidates.iter().map(|candidate| candidate.node).collect();
        self.care.filling_max = living.len() * self.settings.rebuilds_per_node;
        // Whoever lacks a copy comes first, also before one is given up that is to be made anew.
        to_add.sort_by_key(|(_, volume, stored)| !lacks_copy(&stored.record, &volume.record));
        for (id, volume, stored) in to_add {
            // One that was given up to be made anew, and is still to be deleted: it goes on counting, and its room is its own.
            let awaits = match lacks_copy(&stored.record, &volume.record) {
                true => self.care.given_up(id).filter(|node| living.contains(node)),
                false => None,
            };
            self.care.looked_at(id, again, awaits.is_some());
            if awaits.is_none() && self.care.filling.len() >= self.care.filling_max {
                // As many as a lost node had may wait: they are not all read again each second.
                self.care.waiting.insert(id);
                continue;
            }
            let chunk = (id, &volume.record, &stored.record);
            let shifted = match awaits {
                Some(_) => None,
                None => self.to_shift(chunk, &candidates, &givers, now),
            };
            match self.choose_place(&mut candidates, &racks, chunk, (awaits, shifted)) {
                Chosen::Place(node, disk) => {
                    let next = with_place(&stored.record, node, disk);
                    let (bytes, place) = (volume.record.geometry.chunk, Some((node, disk)));
                    self.commit_places_of(id, volume.revision, &stored, &next, place, &[], bytes.0)?;
                    self.care.looked_at(id, now, true);
                }
                Chosen::Shifted(copy) => self.shift(id, &volume, &stored, copy, &mut candidates)?,
                Chosen::Renewed(copy) => {
                    self.give_up(id, &volume, &stored, copy, &mut candidates, now)?;
                }
                Chosen::Awaited(node) => hold_room(&mut candidates, node, &volume.record.geometry),
                Chosen::Nothing if lacks_copy(&stored.record, &volume.record) => {
                    self.care.placeless.insert(id);
                }
                Chosen::Nothing => {}
            }
        }
        Ok(())
    }

    /// What a chunk is to get that lacks a copy, or has one on what is drained; `awaits` is the node that has still to delete one that was
    /// given up to be made anew there, `shifted` a copy that its node can move to another disk. The room of a place that is chosen is taken from its candidate.
    fn choose_place(
        &mut self,
        candidates: &mut [Candidate],
        racks: &Racks,
        (id, volume, chunk): (ChunkId, &Volume, &Chunk),
        (awaits, shifted): (Option<NodeId>, Option<Copy>),
    ) -> Chosen {
        let (geometry, lacks) = (&volume.geometry, lacks_copy(chunk, volume));
        let spread = racks.spread_of(volume);
        let in_sync = chunk.copies.iter().filter(|copy| copy.incarnation.is_some());
        let drained = |copy: &&Copy| self.care.is_drained(copy.node, Some(copy.disk));
        let (go, stay): (Vec<&Copy>, Vec<&Copy>) = in_sync.partition(drained);
        let crowd = |node| racks.crowd(spread, node, stay.iter().map(|copy| copy.node));
        // A second copy in a rack is better than a copy less. What is only drained waits for room where it is no worse, and so does
        // what its own node makes anew. Where racks are few nothing waits for that.
        let anywhere = lacks || racks.are_few_for(volume);
        let most = match (anywhere, awaits) {
            (_, Some(node)) => crowd(node),
            (true, None) => usize::MAX,
            (false, None) => go.iter().map(|copy| crowd(copy.node)).max().unwrap_or(0),
        };
        // Where an earlier copy is still to be deleted, that one would pass for the new one.
        let is_free = |node| !chunk.has_copy_on(node) && !self.care.is_removing(node, id);
        let may = |node| Some(crowd(node)).filter(|crowd| *crowd <= most && is_free(node));
        // That nothing is given up for is better than that a copy is.
        let own = match (awaits, shifted) {
            (Some(_), _) => None,
            (None, Some(copy)) => Some((copy, Chosen::Shifted(copy))),
            (None, None) => to_give_up(chunk, geometry, candidates, |node| self.renews(node))
                .map(|copy| (copy, Chosen::Renewed(copy))),
        };
        // Another disk of its own node is better than a second copy in a rack.
        let crowded = |copy: &Copy| {
            let places = candidates.iter().filter(|place| place.free() >= geometry.chunk.0);
            let best = places.filter_map(|place| may(place.node)).min();
            best.is_some_and(|best| best > crowd(copy.node))
        };
        // (Where racks are few it is no reason to have a copy less for a while.)
        let awaits_own = spread == Spread::Rack && !racks.are_few_for(volume);
        if let Some((_, own)) = own.as_ref().filter(|(copy, _)| awaits_own && crowded(copy)) {
            return *own;
        }
        let random = &mut self.random;
        let mut place = place_one(candidates, geometry.chunk, random, may);
        if place.is_none() && lacks {
            // A disk that may run full is better than a copy less.
            place = place_one_by_promises(candidates, geometry.chunk, random, may);
        }
        match (place, own, awaits) {
            (Some((node, disk)), ..) => Chosen::Place(node, disk),
            (None, Some((_, own)), _) => own,
            (None, None, Some(node)) => Chosen::Awaited(node),
            (None, None, None) => Chosen::Nothing,
        }
    }

    /// Disks that may take copies, with what is promised there, and what snapshots hold as their nodes said last.
    pub(super) fn candidates(&self, now: Instant) -> Result<Vec<Candidate>, ControlError> {
        let mut allocated = BTreeMap::new();
        let end = keys::end_of(keys::ALLOCATIONS);
        self.read_range::<Number>(keys::ALLOCATIONS.to_vec(), &end, |key, stored| {
            allocated.extend(keys::parse_allocation(key).map(|place| (place, ByteCount(stored.record.0))));
        })?;
        let sync_writes = self.has_sync_writes()?;
        let mut candidates = Vec::new();
        for (&node, view) in &self.nodes(now)? {
            let lives = view.record.ended_through < view.record.incarnation;
            if !lives || !self.is_heard(node, view.record.incarnation, now) {
                continue;
            }
            if sync_writes && !self.knows_sync_writes(node) {
                continue;
            }
            let heard = self.heard.get(&node);
            let held = heard.map(|heard| &heard.held);
            for disk in &view.record.disks {
                let used = heard.and_then(|heard| heard.used.get(&disk.id)).copied();
                let is_full = self.settings.is_too_full(disk.capacity, used.unwrap_or_default());
                if self.care.is_drained(node, Some(disk.id)) {
                    continue;
                }
                let allocated = allocated.get(&(node, disk.id)).copied().unwrap_or_default();
                candidates.push(Candidate {
                    node,
                    disk: disk.id,
                    capacity: match is_full {
                        true => allocated,
                        false => self.settings.promised_of(disk.capacity),
                    },
                    allocated,
                    held: held
                        .and_then(|held| held.get(&disk.id))
                        .copied()
                        .unwrap_or_default(),
                });
            }
        }
        Ok(candidates)
    }

    /// False if another change was quicker.
    #[allow(clippy::too_many_arguments, reason = "they are one transaction's parts")]
    pub(super) fn commit_places_of(
        &mut self,
        id: ChunkId,
        volume_revision: u64,
        stored: &Stored<Chunk>,
        next: &Chunk,
        added: Option<(NodeId, DiskId)>,
        gone: &[Copy],
        chunk_bytes: u64,
    ) -> Result<bool, ControlError> {
        let key = keys::chunk(id);
        let mut transaction = Transaction::new();
        transaction.compare(keys::volume(id.volume), volume_revision);
        transaction
            .compare(key.clone(), stored.revision)
            .put(key.clone(), next.encode(&key));
        if let Some((node, disk)) = added {
            self.add_allocation(&mut transaction, node, disk, |allocated| {
                allocated.saturating_add(chunk_bytes)
            })?;
        }
        let given_back = match self.planted.is(Bug::KeepsRoomOfGivenUp) {
            true => 0,
            false => chunk_bytes,
        };
        for copy in gone {
            self.add_allocation(&mut transaction, copy.node, copy.disk, |allocated| {
                allocated.saturating_sub(given_back)
            })?;
        }
        // The move ends with the place it was to free.
        let moving = self.care.moves.get(&id).copied();
        let ends = moving.is_some_and(|moving| gone.iter().any(|copy| copy.node == moving.from));
        if ends {
            transaction.delete(keys::moving(id));
        }
        // Lost to another change: decided anew with the next look.
        let committed = self.commit(&transaction)?;
        if committed {
            if ends {
                self.care.moves.remove(&id);
            }
            for copy in gone {
                self.reconciler.left(copy.node, id);
            }
            for copy in gone.iter().filter(|_| !self.planted.is(Bug::LeavesGivenUp)) {
                self.care.removals.entry(copy.node).or_default().insert(id);
                self.care.out.remove(&(id, copy.node));
            }
        }
        Ok(committed)
    }

    /// A copy of this chunk is not moved any more, if it was.
    fn end_move(&mut self, id: ChunkId) -> Result<(), ControlError> {
        if self.care.moves.remove(&id).is_some() {
            let mut transaction = Transaction::new();
            transaction.delete(keys::moving(id));
            self.commit(&transaction)?;
        }
        Ok(())
    }

    /// A node has named all copies it has: those without a place are to be deleted. The store is asked of those only that have none as far
    /// as this master knows: of a node with very many copies hardly any.
    pub(super) fn look_over_copies(&mut self, node: NodeId, copies: &[ChunkId]) -> Result<(), ControlError> {
        for &id in copies.iter().filter(|_| !self.planted.is(Bug::LeavesGivenUp)) {
            if self.reconciler.knows_place(node, id) {
                continue;
            }
            let stored = self.read::<Chunk>(&keys::chunk(id))?;
            if stored.is_some_and(|stored| !stored.record.has_copy_on(node)) {
                self.care.removals.entry(node).or_default().insert(id);
            }
        }
        Ok(())
    }

    /// The copies that a node has to delete, and the epochs that have no place for them.
    pub(super) fn removals_of(&mut self, node: NodeId) -> Result<Vec<(ChunkId, Epoch)>, ControlError> {
        let Some(removals) = self.care.removals.get(&node) else {
            return Ok(Vec::new());
        };
        let ids: Vec<ChunkId> = removals.iter().copied().take(REMOVALS_MAX).collect();
        let mut answer = Vec::with_capacity(ids.len());
        for id in ids {
            match self.read::<Chunk>(&keys::chunk(id))? {
                Some(stored) if !stored.record.has_copy_on(node) => answer.push((id, stored.record.epoch)),
                // It has a place again, or the volume was deleted.
                _ => self.care.removed(node, &[id]),
            }
        }
        Ok(answer)
    }
}
