//! Copies move between the disks of a node until these are used to the same share of their capacity (`docs/decisions/0145`): after a disk
//! was added, say. By the measure of nodes (`balance.rs`), after these, and one copy at a time on each node.
//!
//! All chunks are read for it, a page at a time, as long as a node that moves nothing looks for a copy to move. One for which a whole pass
//! has found none is left as it is until what is promised on its disks changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foundation::Instant;

use crate::configuration::Standing;
use crate::controller::balance::{BEGINS, ENDS, Share, Shares};
use crate::controller::disk_moves::LEFT_ALONE;
use crate::controller::{Controller, PAGE, Stored};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, NodeId, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Volume};
use crate::placement::Candidate;
use crate::record::Record;
use crate::store::MetadataStore;

/// When a node is looked at again of which a pass came upon copies that were just changing.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// What is kept between looks. A hint: a master that starts anew looks at everything once.
#[derive(Debug)]
pub(super) struct DiskBalancer {
    /// Nodes of which it has begun and not ended yet.
    active: BTreeSet<NodeId>,
    /// Where the pass over all chunks goes on.
    cursor: Vec<u8>,
    /// Nodes for which it has found nothing since it began, and when something that it had to leave out may be otherwise; none before
    /// the first page.
    searched: Option<BTreeMap<NodeId, Option<Instant>>>,
    /// What a whole pass could not make better.
    settled: BTreeMap<NodeId, Settled>,
}

/// The shares of a node's disks that stay as they are.
#[derive(Debug)]
struct Settled {
    shares: BTreeMap<DiskId, Share>,
    /// When that is looked at again though they have not changed.
    until: Option<Instant>,
}

impl Default for DiskBalancer {
    fn default() -> Self {
        Self {
            active: BTreeSet::new(),
            cursor: keys::CHUNKS.to_vec(),
            searched: None,
            settled: BTreeMap::new(),
        }
    }
}

impl DiskBalancer {
    /// Whether a node's disks are to be made more even; `is_busy` if it moves a copy already.
    fn wants(&mut self, node: NodeId, shares: &Shares<DiskId>, is_busy: bool, now: Instant) -> bool {
        let difference = if self.active.contains(&node) { ENDS } else { BEGINS };
        let is_even = shares.differ_at_most(difference);
        let is_settled = |settled: &Settled| {
            settled.shares == shares.parts && settled.until.is_none_or(|until| now < until)
        };
        if is_even || !is_busy && self.settled.get(&node).is_some_and(is_settled) {
            self.active.remove(&node);
            return false;
        }
        self.settled.remove(&node);
        self.active.insert(node);
        true
    }

    /// A pass came upon a copy of this node that it had to leave out; until when.
    fn leaves_out(&mut self, node: NodeId, until: Instant) {
        if let Some(again) = self
            .searched
            .as_mut()
            .and_then(|searched| searched.get_mut(&node))
        {
            *again = Some(again.map_or(until, |again| again.min(until)));
        }
    }

    /// Something was found for this node, or it was not looked for.
    fn is_served(&mut self, node: NodeId) {
        if let Some(searched) = &mut self.searched {
            searched.remove(&node);
        }
    }
}

/// The disks of a node that wants them more even.
struct Disks {
    shares: Shares<DiskId>,
    places: Vec<Candidate>,
    is_busy: bool,
}

impl Disks {
    fn with_room(&self, bytes: u64) -> Vec<DiskId> {
        let places = self.places.iter().filter(|place| place.free() >= bytes);
        places.map(|place| place.disk).collect()
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Begins moves that make the disks of nodes more evenly used. Whether any are under way, or looked for.
    pub(super) fn even_out_disks(
        &mut self,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> Result<bool, ControlError> {
        let mut uneven = self.uneven_disks(now)?;
        if uneven.is_empty() {
            let disks = &mut self.balancer.disks;
            (disks.cursor, disks.searched) = (keys::CHUNKS.to_vec(), None);
        }
        if uneven.values().any(|disks| !disks.is_busy) {
            self.begin_disk_moves(&mut uneven, standings, now)?;
            let settled = &self.balancer.disks.settled;
            uneven.retain(|node, _| !settled.contains_key(node));
        }
        Ok(!uneven.is_empty() || !self.disk_moves.is_empty())
    }

    /// The nodes whose disks are to be made more even: disks that may take copies, of nodes that can move them.
    fn uneven_disks(&mut self, now: Instant) -> Result<BTreeMap<NodeId, Disks>, ControlError> {
        let mut places: BTreeMap<NodeId, Vec<Candidate>> = BTreeMap::new();
        for candidate in self.candidates(now)? {
            places.entry(candidate.node).or_default().push(candidate);
        }
        places.retain(|node, places| places.len() > 1 && self.moves_disks(*node));
        let mut uneven = BTreeMap::new();
        if places.is_empty() {
            return Ok(uneven);
        }
        let nodes = self.nodes(now)?;
        for (node, places) in places {
            let Some(view) = nodes.get(&node) else { continue };
            // Of a disk that is too full, too: it takes nothing, and is the first to give.
            let capacity = |disk: DiskId| {
                let known = view.record.disks.iter().find(|known| known.id == disk);
                self.settings
                    .promised_of(known.map(|known| known.capacity).unwrap_or_default())
            };
            let used = places
                .iter()
                .map(|place| (place.disk, place.allocated, capacity(place.disk)));
            let mut shares = Shares::sum(used);
            for (_, moving) in self.disk_moves.all().filter(|(_, moving)| moving.node == node) {
                shares.leaves(moving.bytes.0, moving.from);
            }
            let is_busy = self.disk_moves.has_of(node);
            if self.balancer.disks.wants(node, &shares, is_busy, now) {
                uneven.insert(
                    node,
                    Disks {
                        shares,
                        places,
                        is_busy,
                    },
                );
            }
        }
        Ok(uneven)
    }

    /// Looks at one page of the chunks.
    fn begin_disk_moves(
        &mut self,
        uneven: &mut BTreeMap<NodeId, Disks>,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> Result<(), ControlError> {
        let disks = &mut self.balancer.disks;
        if disks.searched.is_none() {
            disks.searched = Some(uneven.keys().map(|node| (*node, None)).collect());
        }
        for (node, _) in uneven.iter().filter(|(_, disks)| disks.is_busy) {
            disks.is_served(*node);
        }
        let entries = self
            .store
            .range(&disks.cursor, &keys::end_of(keys::CHUNKS), PAGE)?;
        let mut volume: Option<(VolumeNumber, Option<Stored<Volume>>)> = None;
        for entry in &entries {
            if uneven.values().all(|disks| disks.is_busy) {
                self.balancer.disks.cursor = entry.key.clone();
                return Ok(());
            }
            let Some(id) = keys::parse_chunk(&entry.key) else {
                continue;
            };
            let stored = Stored {
                record: Chunk::decode(&entry.key, &entry.versioned.value)?,
                revision: entry.versioned.revision,
            };
            let is_idle = |node: &NodeId| uneven.get(node).is_some_and(|disks| !disks.is_busy);
            if !stored.record.copies.iter().any(|copy| is_idle(&copy.node)) {
                continue;
            }
            if volume.as_ref().is_none_or(|(number, _)| *number != id.volume) {
                volume = Some((id.volume, self.read::<Volume>(&keys::volume(id.volume))?));
            }
            let Some((_, Some(of_volume))) = &volume else {
                continue;
            };
            self.begin_one(id, of_volume, &stored, uneven, standings, now)?;
        }
        let last = entries.last().filter(|_| entries.len() == PAGE);
        let disks = &mut self.balancer.disks;
        let Some(last) = last else {
            disks.cursor = keys::CHUNKS.to_vec();
            for (node, until) in disks.searched.take().into_iter().flatten() {
                if let Some(of_node) = uneven.get(&node) {
                    let shares = of_node.shares.parts.clone();
                    disks.settled.insert(node, Settled { shares, until });
                }
            }
            return Ok(());
        };
        disks.cursor = keys::after(&last.key);
        Ok(())
    }

    /// Has a copy of a chunk move to another disk of its node, if that makes these more even.
    fn begin_one(
        &mut self,
        id: ChunkId,
        volume: &Stored<Volume>,
        stored: &Stored<Chunk>,
        uneven: &mut BTreeMap<NodeId, Disks>,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> Result<(), ControlError> {
        let bytes = volume.record.geometry.chunk.0;
        for copy in &stored.record.copies {
            let node = copy.node;
            let Some(disks) = uneven.get_mut(&node).filter(|disks| !disks.is_busy) else {
                continue;
            };
            if !disks.shares.parts.contains_key(&copy.disk) {
                continue;
            }
            let targets = disks.with_room(bytes);
            let best = disks
                .shares
                .best(bytes, false, vec![copy.disk], &targets, |_, _| true);
            let Some((from, to)) = best else { continue };
            if !self.may_change_disks(&volume.record) {
                // Until its snapshots are gone, say.
                self.balancer.disks.leaves_out(node, now + LEFT_ALONE);
                continue;
            }
            if let Some(until) = self.disk_moves.left_alone(id, node, now) {
                self.balancer.disks.leaves_out(node, until);
                continue;
            }
            // One copy of a chunk at a time; while it moves, the others stay.
            if !self.is_right(id, &stored.record, &volume.record, standings, now)
                || !self.begin_disk_move(id, volume, stored, (node, from, to))?
            {
                self.balancer.disks.leaves_out(node, now + LOOK_AGAIN);
                continue;
            }
            disks.is_busy = true;
            self.balancer.disks.is_served(node);
        }
        Ok(())
    }
}
