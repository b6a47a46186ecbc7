//! Copies move until every node is used to the same share of its capacity (`docs/decisions/0076`): after nodes or disks were
//! added, after a drain ended, after much was deleted. Single moves by command are in `by_command.rs`.
//!
//! Before that, copies move out of racks that have another copy of their chunk, or, where racks are few, more than others could have, as far
//! as there is room (`docs/decisions/0101`).
//!
//! A move is a place more, out of sync, with a record that names the copy which goes once the new one is in sync; what is
//! done then is done by [`crate::places`], as for a drain. A move is only begun if afterwards the node that gave is still
//! used no less than the one that took: so each one lowers the sum of the squares of what is used, weighted by the
//! capacities, and they end. They begin when two nodes differ by more than [`BEGINS`] of the mean, and end at [`ENDS`].
//!
//! Once that is so, the disks of each node are evened out among themselves (`disk_balance.rs`).
//!
//! Copies go from nodes that have more than their share to such as have less, so that each moves once. Where that helps no more and
//! two nodes still differ too much, all chunks of the one have a copy on the other: then also by nodes that have what they should.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foundation::{ByteCount, Instant};

use crate::configuration::Standing;
use crate::controller::disk_balance::DiskBalancer;
use crate::controller::disk_moves::DiskMoveStatus;
use crate::controller::{Controller, PAGE, Stored};
use crate::error::ControlError;
use crate::identity::{ChunkId, NodeId, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Moving, Number, Volume};
use crate::pace::Work;
use crate::placement::{Candidate, place_one};
use crate::places::with_place;
use crate::racks::{Racks, Spread};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// Between two looks while copies move, and while they need not.
const BUSY_INTERVAL: Duration = Duration::from_millis(500);
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// The differences at which it begins and ends, in thousandths of the mean share in use.
pub(super) const BEGINS: u128 = 50;
pub(super) const ENDS: u128 = 20;

/// What the masters do about nodes that are used to different shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebalanceState {
    /// The masters' configuration forbids it.
    Off,
    /// Somebody has stopped it.
    Stopped,
    /// Something else comes first: what.
    Waiting(&'static str),
    /// Copies move.
    Moving,
    /// Nothing is to be moved, or nothing that could be would make it better.
    Even,
}

/// A copy that is being moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveStatus {
    /// The chunk.
    pub chunk: ChunkId,
    /// From where to where.
    pub moving: Moving,
}

/// How evenly the nodes are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// What is being done.
    pub state: RebalanceState,
    /// The copies that are being moved.
    pub moves: Vec<MoveStatus>,
    /// The copies that are being moved between the disks of a node.
    pub disk_moves: Vec<DiskMoveStatus>,
    /// Share in use of the node that is used least, of all nodes together, and of the one that is used most, in millionths;
    /// of the living nodes that are not drained, and with what moves counted where it goes.
    pub shares: [u32; 3],
    /// Promised bytes that lie on nodes beyond the share of all.
    pub left: ByteCount,
    /// For these and what is on its way without a command, as fast as it went in the last minutes; none before anything can be said.
    pub time_left: Option<Duration>,
}

/// What is kept between looks. A hint: a master that starts anew looks at everything once.
#[derive(Debug)]
pub(super) struct Balancer {
    next: Instant,
    /// It has begun and not ended yet.
    is_active: bool,
    /// Where the pass over all chunks goes on, and whether it has begun a move.
    cursor: Vec<u8>,
    has_moved: bool,
    /// Whether it has come upon chunks that are about to change, and whether it takes detours.
    has_left_out: bool,
    by_detours: bool,
    /// The shares that a whole pass could not make better: of promises alone, since what snapshots hold changes with each of them.
    settled: BTreeMap<NodeId, Share>,
    /// The chunk with more copies in one rack than need be that was looked at last.
    crowded: Option<ChunkId>,
    /// What is known of the disks of each node.
    pub(super) disks: DiskBalancer,
    state: RebalanceState,
}

impl Default for Balancer {
    fn default() -> Self {
        Self {
            next: Instant::default(),
            is_active: false,
            cursor: keys::CHUNKS.to_vec(),
            has_moved: false,
            has_left_out: false,
            by_detours: false,
            settled: BTreeMap::new(),
            crowded: None,
            disks: DiskBalancer::default(),
            state: RebalanceState::Waiting("the masters have just started"),
        }
    }
}

impl Balancer {
    /// What could not be made better before may be now: a new rack has room for copies of chunks that the others had.
    pub(super) fn look_again(&mut self) {
        self.settled.clear();
    }
}

/// What is used of a node, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    used: u64,
    capacity: u64,
}

impl Share {
    fn millionths(self) -> u32 {
        let share = u128::from(self.used) * 1_000_000 / u128::from(self.capacity.max(1));
        u32::try_from(share).unwrap_or(u32::MAX)
    }

    fn is_below(self, other: Share) -> bool {
        u128::from(self.used) * u128::from(other.capacity)
            < u128::from(other.used) * u128::from(self.capacity)
    }

    fn with(self, bytes: u64) -> Share {
        Share {
            used: self.used.saturating_add(bytes),
            ..self
        }
    }

    fn without(self, bytes: u64) -> Share {
        Share {
            used: self.used.saturating_sub(bytes),
            ..self
        }
    }
}

/// The shares of nodes, or of the disks of one, with all that moves counted where it goes. By promises alone: what snapshots hold follows a
/// copy only some time after it has moved, and more copies would move meanwhile.
pub(super) struct Shares<K = NodeId> {
    pub(super) parts: BTreeMap<K, Share>,
    all: Share,
}

impl Shares {
    fn of(candidates: &[Candidate]) -> Self {
        let used = |candidate: &Candidate| (candidate.node, candidate.allocated, candidate.capacity);
        Self::sum(candidates.iter().map(used))
    }
}

impl<K: Copy + Ord> Shares<K> {
    /// Whose, what is used of it, and its capacity.
    pub(super) fn sum(used: impl Iterator<Item = (K, ByteCount, ByteCount)>) -> Self {
        let (mut parts, mut all) = (BTreeMap::<K, Share>::new(), Share::default());
        for (of, used, capacity) in used {
            for share in [parts.entry(of).or_default(), &mut all] {
                share.used = share.used.saturating_add(used.0);
                share.capacity = share.capacity.saturating_add(capacity.0);
            }
        }
        Self { parts, all }
    }

    fn extremes(&self) -> Option<(Share, Share)> {
        let mut shares = self.parts.values().copied();
        let first = shares.next()?;
        Some(shares.fold((first, first), |(low, high), share| {
            let low = if share.is_below(low) { share } else { low };
            let high = if high.is_below(share) { share } else { high };
            (low, high)
        }))
    }

    /// Whether two shares differ by more than so many thousandths of the mean.
    fn differ(&self, low: Share, high: Share, thousandths: u128) -> bool {
        let difference = u128::from(high.millionths().saturating_sub(low.millionths()));
        difference * 1000 > u128::from(self.all.millionths()) * thousandths
    }

    pub(super) fn differ_at_most(&self, thousandths: u128) -> bool {
        self.extremes()
            .is_none_or(|(low, high)| !self.differ(low, high, thousandths))
    }

    fn compare(&self, a: K, b: K) -> std::cmp::Ordering {
        let (a, b) = (self.parts[&a], self.parts[&b]);
        b.is_below(a).cmp(&a.is_below(b))
    }

    /// The best move of a copy of `bytes` from one of `sources`, each of which may go to some of `targets`, if any makes it better.
    /// By detours also from nodes that have no more than their share, and to such as have it.
    pub(super) fn best(
        &self,
        bytes: u64,
        by_detours: bool,
        mut sources: Vec<K>,
        targets: &[K],
        may: impl Fn(K, K) -> bool,
    ) -> Option<(K, K)> {
        sources.sort_by(|a, b| self.compare(*b, *a));
        sources.into_iter().find_map(|from| {
            let to = targets.iter().copied().filter(|to| may(from, *to));
            let to = to.min_by(|a, b| self.compare(*a, *b))?;
            let (high, low) = (self.parts[&from], self.parts[&to]);
            let direct = self.all.is_below(high) && low.is_below(self.all);
            let gains = !high.without(bytes).is_below(low.with(bytes)) && self.differ(low, high, ENDS);
            (gains && (direct || by_detours)).then_some((from, to))
        })
    }

    /// A copy that is promised elsewhere already counts no more here.
    pub(super) fn leaves(&mut self, bytes: u64, from: K) {
        if let Some(share) = self.parts.get_mut(&from) {
            *share = share.without(bytes);
            self.all = self.all.without(bytes);
        }
    }

    fn moved(&mut self, bytes: u64, from: K, to: K) {
        if let Some(share) = self.parts.get_mut(&from) {
            *share = share.without(bytes);
        }
        if let Some(share) = self.parts.get_mut(&to) {
            *share = share.with(bytes);
        }
    }
}

/// Between which nodes a copy of a chunk may move.
struct Ways<'a> {
    chunk: &'a Chunk,
    racks: &'a Racks,
    spread: Spread,
    sources: Vec<NodeId>,
    /// Those with room that have no copy of it.
    targets: Vec<NodeId>,
}

impl<'a> Ways<'a> {
    fn of(
        volume: &Volume,
        chunk: &'a Chunk,
        shares: &Shares,
        candidates: &[Candidate],
        racks: &'a Racks,
    ) -> Self {
        let may_go = |node: &NodeId| Some(*node) != volume.write_pin && shares.parts.contains_key(node);
        let bytes = volume.geometry.chunk.0;
        let has_room =
            |candidate: &&Candidate| !chunk.has_copy_on(candidate.node) && candidate.free() >= bytes;
        let targets = candidates.iter().filter(has_room).map(|candidate| candidate.node);
        Self {
            chunk,
            racks,
            spread: racks.spread_of(volume),
            sources: chunk.copies.iter().map(|copy| copy.node).filter(may_go).collect(),
            targets: targets.collect::<BTreeSet<_>>().into_iter().collect(),
        }
    }

    /// How many other copies a copy that leaves `from` finds in the rack of `at`.
    fn crowd(&self, from: NodeId, at: NodeId) -> usize {
        let others = self.chunk.copies.iter().map(|copy| copy.node);
        self.racks
            .crowd(self.spread, at, others.filter(|other| *other != from))
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Begins moves that make the nodes more evenly used, a few at a time, if nothing else is to be done.
    pub(super) fn rebalance(
        &mut self,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> Result<(), ControlError> {
        if now < self.balancer.next {
            return Ok(());
        }
        let mut state = self.rebalance_once(standings, now)?;
        // Also where nodes differ and nothing would make that better.
        if state == RebalanceState::Even && self.even_out_disks(standings, now)? {
            state = RebalanceState::Moving;
        }
        let busy = state == RebalanceState::Moving;
        // While it waits it goes on soon: each copy that has moved has it wait for a moment.
        if !busy && !matches!(state, RebalanceState::Waiting(_)) {
            self.pace.ended(Work::Balance);
        }
        self.balancer.next = now + if busy { BUSY_INTERVAL } else { IDLE_INTERVAL };
        self.balancer.state = state;
        Ok(())
    }

    fn rebalance_once(
        &mut self,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> Result<RebalanceState, ControlError> {
        if !self.settings.rebalance {
            return Ok(RebalanceState::Off);
        }
        if self.read::<Number>(keys::REBALANCE_STOPPED)?.is_some() {
            return Ok(RebalanceState::Stopped);
        }
        self.note_drains()?;
        if !self.reconciler.is_settled() || self.care.unsettled() > 0 {
            return Ok(RebalanceState::Waiting(
                "chunks lack a copy, or are moved away from what is drained",
            ));
        }
        let (mut candidates, racks) = (self.candidates(now)?, self.racks(now)?);
        if !self.all_used_are_heard(standings)? {
            return Ok(RebalanceState::Waiting("a node with copies is not heard"));
        }
        // In the same order each time; what moves is promised on both sides, and counts where it goes.
        let mut shares = Shares::of(&candidates);
        for (moving, bytes) in self.moved_sizes()? {
            shares.leaves(bytes, moving.from);
        }
        self.count_disk_moves_once(&mut shares, &candidates);
        self.spread_out(&mut candidates, &mut shares, &racks, standings, now)?;
        let difference = if self.balancer.is_active { ENDS } else { BEGINS };
        if shares.differ_at_most(difference) || shares.parts == self.balancer.settled {
            (self.balancer.is_active, self.balancer.by_detours) = (false, false);
            return Ok(self.at_rest());
        }
        self.balancer.is_active = true;
        if self.care.moves.len() >= self.settings.moves_max {
            return Ok(RebalanceState::Moving);
        }
        for id in self.care.moves.keys().copied().collect::<Vec<_>>() {
            let volume = self.volume(id.volume);
            let lacks = |chunk: &Chunk, copies: u8| chunk.member_count() < usize::from(copies);
            if let (Ok(volume), Some(stored)) = (volume, self.read::<Chunk>(&keys::chunk(id))?)
                && lacks(&stored.record, volume.geometry.copies)
            {
                return Ok(RebalanceState::Waiting(
                    "a chunk of which a copy moves lacks another",
                ));
            }
        }
        self.begin_moves(candidates, &mut shares, &racks, standings, now)
    }

    /// Between which nodes a copy of a chunk may move now, and whether there are more once they have deleted the one they had.
    fn ways<'a>(
        &self,
        id: ChunkId,
        volume: &Volume,
        chunk: &'a Chunk,
        (shares, candidates, racks): (&Shares, &[Candidate], &'a Racks),
    ) -> (Ways<'a>, bool) {
        let mut ways = Ways::of(volume, chunk, shares, candidates, racks);
        let all = ways.targets.len();
        ways.targets.retain(|node| !self.care.is_removing(*node, id));
        let waits = ways.targets.len() < all;
        (ways, waits)
    }

    /// Moves copies out of racks that have another one of their chunk, to where there is room and none, or fewer.
    fn spread_out(
        &mut self,
        candidates: &mut [Candidate],
        shares: &mut Shares,
        racks: &Racks,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> Result<(), ControlError> {
        let after = |id: ChunkId| (std::ops::Bound::Excluded(id), std::ops::Bound::Unbounded);
        let rest = self.balancer.crowded.map(|id| self.care.crowded.range(after(id)));
        let rest = rest.unwrap_or_else(|| self.care.crowded.range(..));
        let ids: Vec<ChunkId> = rest.take(PAGE).copied().collect();
        for &id in &ids {
            if self.care.moves.len() >= self.settings.moves_max {
                return Ok(());
            }
            self.balancer.crowded = Some(id);
            let volume = self.read::<Volume>(&keys::volume(id.volume))?;
            let stored = self.read::<Chunk>(&keys::chunk(id))?;
            let (Some(volume), Some(stored)) = (volume, stored) else {
                self.care.crowded.remove(&id);
                continue;
            };
            if !self.is_right(id, &stored.record, &volume.record, standings, now) {
                continue;
            }
            let bytes = volume.record.geometry.chunk;
            let (ways, _) = self.ways(id, &volume.record, &stored.record, (shares, candidates, racks));
            let sources = ways
                .sources
                .iter()
                .copied()
                .filter(|from| ways.crowd(*from, *from) > 0);
            let most = |a: &NodeId, b: &NodeId| ways.crowd(*a, *a).cmp(&ways.crowd(*b, *b));
            let Some(from) = sources.max_by(|a, b| most(a, b).then(shares.compare(*a, *b))) else {
                continue;
            };
            let better = |to: &NodeId| ways.crowd(from, *to) < ways.crowd(from, from);
            let targets = ways.targets.iter().copied().filter(better);
            let Some(to) = targets.min_by(|a, b| shares.compare(*a, *b)) else {
                continue;
            };
            let by_command = false;
            let moving = Moving { from, to, by_command };
            if self.begin_move(id, &volume, &stored, moving, candidates)? {
                shares.moved(bytes.0, from, to);
            }
        }
        if ids.len() < PAGE {
            self.balancer.crowded = None;
        }
        Ok(())
    }

    fn at_rest(&self) -> RebalanceState {
        match self.care.moves.values().any(|moving| !moving.by_command) {
            true => RebalanceState::Moving,
            false => RebalanceState::Even,
        }
    }

    /// Looks at one page of the chunks.
    fn begin_moves(
        &mut self,
        mut candidates: Vec<Candidate>,
        shares: &mut Shares,
        racks: &Racks,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> Result<RebalanceState, ControlError> {
        let before = shares.parts.clone();
        let entries = self
            .store
            .range(&self.balancer.cursor, &keys::end_of(keys::CHUNKS), PAGE)?;
        let mut volume: Option<(VolumeNumber, Option<Stored<Volume>>)> = None;
        for entry in &entries {
            if self.care.moves.len() >= self.settings.moves_max {
                self.balancer.cursor = entry.key.clone();
                return Ok(RebalanceState::Moving);
            }
            let Some(id) = keys::parse_chunk(&entry.key) else {
                continue;
            };
            if volume.as_ref().is_none_or(|(number, _)| *number != id.volume) {
                volume = Some((id.volume, self.read::<Volume>(&keys::volume(id.volume))?));
            }
            let Some((_, Some(of_volume))) = &volume else {
                continue;
            };
            let stored = Stored {
                record: Chunk::decode(&entry.key, &entry.versioned.value)?,
                revision: entry.versioned.revision,
            };
            if !self.is_right(id, &stored.record, &of_volume.record, standings, now) {
                self.balancer.has_left_out = true;
                continue;
            }
            let bytes = of_volume.record.geometry.chunk;
            let (ways, waits) = self.ways(
                id,
                &of_volume.record,
                &stored.record,
                (shares, &candidates, racks),
            );
            self.balancer.has_left_out |= waits;
            // No rack gets more copies by it than the other one had.
            let may = |from, to| ways.crowd(from, to) <= ways.crowd(from, from);
            let (sources, by_detours) = (ways.sources.clone(), self.balancer.by_detours);
            let Some((from, to)) = shares.best(bytes.0, by_detours, sources, &ways.targets, may) else {
                continue;
            };
            let by_command = false;
            let moving = Moving { from, to, by_command };
            if self.begin_move(id, of_volume, &stored, moving, &mut candidates)? {
                shares.moved(bytes.0, from, to);
                self.balancer.has_moved = true;
            }
        }
        match entries.last() {
            Some(last) if entries.len() == PAGE => self.balancer.cursor = keys::after(&last.key),
            _ => {
                self.balancer.cursor = keys::CHUNKS.to_vec();
                let was_by_detours = std::mem::take(&mut self.balancer.by_detours);
                let has_left_out = std::mem::take(&mut self.balancer.has_left_out);
                if !std::mem::take(&mut self.balancer.has_moved) && self.care.moves.is_empty() {
                    if !was_by_detours && !shares.differ_at_most(BEGINS) {
                        self.balancer.by_detours = true;
                        return Ok(RebalanceState::Moving);
                    }
                    // Nothing that could be moved makes it better, until something changes.
                    if !has_left_out {
                        self.balancer.settled = before;
                    }
                    self.balancer.is_active = false;
                    return Ok(RebalanceState::Even);
                }
            }
        }
        Ok(RebalanceState::Moving)
    }

    /// Gives a chunk a place on the node to which a copy is to move; false if another change was quicker, or no disk has room.
    pub(super) fn begin_move(
        &mut self,
        id: ChunkId,
        volume: &Stored<Volume>,
        stored: &Stored<Chunk>,
        moving: Moving,
        candidates: &mut [Candidate],
    ) -> Result<bool, ControlError> {
        let bytes = volume.record.geometry.chunk;
        let may = |node| (node == moving.to).then_some(0);
        let Some(place) = place_one(candidates, bytes, &mut self.random, may) else {
            return Ok(false);
        };
        let next = with_place(&stored.record, place.0, place.1);
        let (chunk_key, move_key) = (keys::chunk(id), keys::moving(id));
        let mut transaction = Transaction::new();
        transaction.compare(keys::volume(id.volume), volume.revision);
        transaction
            .compare(chunk_key.clone(), stored.revision)
            .put(chunk_key.clone(), next.encode(&chunk_key));
        transaction
            .compare(move_key.clone(), 0)
            .put(move_key.clone(), moving.encode(&move_key));
        self.add_allocation(&mut transaction, place.0, place.1, |allocated| {
            allocated.saturating_add(bytes.0)
        })?;
        let committed = self.commit(&transaction)?;
        if committed {
            self.care.moves(id, moving);
        }
        Ok(committed)
    }

    /// What moves between the disks of a node is promised on both, if copies may be placed on the one that it leaves.
    fn count_disk_moves_once(&self, shares: &mut Shares, candidates: &[Candidate]) {
        for (_, moving) in self.disk_moves.all() {
            let is_it = |place: &Candidate| (place.node, place.disk) == (moving.node, moving.from);
            if candidates.iter().any(is_it) {
                shares.leaves(moving.bytes.0, moving.node);
            }
        }
    }

    /// Every node that has something promised is heard: else its chunks are about to lack a copy.
    fn all_used_are_heard(&self, standings: &BTreeMap<NodeId, Standing>) -> Result<bool, ControlError> {
        let heard = |node: NodeId| {
            standings
                .get(&node)
                .is_some_and(|standing| standing.is_heard && standing.ended_through < standing.incarnation)
        };
        let mut all = true;
        let end = keys::end_of(keys::ALLOCATIONS);
        self.read_range::<Number>(keys::ALLOCATIONS.to_vec(), &end, |key, stored| {
            let place = keys::parse_allocation(key).filter(|_| stored.record.0 > 0);
            all &= place.is_none_or(|(node, _)| heard(node));
        })?;
        Ok(all)
    }

    /// What moves, with the bytes of each copy.
    fn moved_sizes(&self) -> Result<Vec<(Moving, u64)>, ControlError> {
        let mut sizes = Vec::with_capacity(self.care.moves.len());
        for (id, moving) in &self.care.moves {
            if let Some(volume) = self.read::<Volume>(&keys::volume(id.volume))? {
                sizes.push((*moving, volume.record.geometry.chunk.0));
            }
        }
        Ok(sizes)
    }

    /// How evenly the nodes are used, and what is being done about it.
    pub fn balance(&self, now: Instant) -> Result<Balance, ControlError> {
        let candidates = self.candidates(now)?;
        let mut shares = Shares::of(&candidates);
        self.count_disk_moves_once(&mut shares, &candidates);
        let mut under_way = 0u64;
        for (moving, bytes) in self.moved_sizes()? {
            shares.leaves(bytes, moving.from);
            under_way = under_way.saturating_add(if moving.by_command { 0 } else { bytes });
        }
        let (low, high) = shares.extremes().unwrap_or_default();
        let beyond = |share: &Share| {
            let due = u128::from(share.capacity) * u128::from(shares.all.used)
                / u128::from(shares.all.capacity.max(1));
            share.used.saturating_sub(u64::try_from(due).unwrap_or(u64::MAX))
        };
        let moves = self.care.moves.iter();
        let moves = moves
            .map(|(&chunk, &moving)| MoveStatus { chunk, moving })
            .collect();
        let left = ByteCount(shares.parts.values().map(beyond).sum());
        let all_left = ByteCount(left.0.saturating_add(under_way));
        Ok(Balance {
            state: self.balancer.state.clone(),
            time_left: self.pace.time_left(Work::Balance, all_left, now),
            moves,
            disk_moves: self
                .disk_moves
                .all()
                .map(|(chunk, moving)| DiskMoveStatus { chunk, moving })
                .collect(),
            shares: [low, shares.all, high].map(Share::millionths),
            left,
        })
    }

    /// Stops the masters from evening out the nodes, or lets them again. What moves already goes on.
    pub fn set_rebalance(&mut self, allowed: bool) -> Result<(), ControlError> {
        let key = keys::REBALANCE_STOPPED;
        let stored = self.read::<Number>(key)?;
        if stored.is_none() != allowed {
            let mut transaction = Transaction::new();
            match allowed {
                true => transaction.delete(key.to_vec()),
                false => transaction.put(key.to_vec(), Number(1).encode(key)),
            };
            self.commit(&transaction)?;
        }
        self.balancer = Balancer::default();
        self.balancer.state = match (self.settings.rebalance, allowed) {
            (false, _) => RebalanceState::Off,
            (true, false) => RebalanceState::Stopped,
            (true, true) => RebalanceState::Waiting("it has just been allowed"),
        };
        Ok(())
    }
}
