//! What the masters do of themselves, as time goes on.

use std::collections::{BTreeMap, BTreeSet};

use foundation::Instant;

use crate::configuration::{Standing, is_whole, successor};
use crate::controller::unfinished::Unfinished;
use crate::controller::{Controller, PAGE, Stored};
use crate::error::ControlError;
use crate::identity::{ChunkId, NodeId, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Volume, VolumeState};
use crate::planted::Bug;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// Pages of chunks that one tick reads while nothing is known of the others; heartbeats are answered between ticks.
const PAGES_URGENT: usize = 64;
/// As long as nothing is known to have happened.
const PAGES_QUIET: usize = 1;
/// Chunks that one tick looks at because something has happened to a node that has a copy of them, and how often it asks the store
/// for them: where that is elsewhere each time takes about a millisecond, and no heartbeat is answered meanwhile.
const DUE_MAX: usize = 8192;
const READS_MAX: usize = 2048;
/// So many of them are read with one question if there are no more than [`PAGE`] chunks from the first to the last.
const GROUP: usize = 256;

type Standings = BTreeMap<NodeId, Standing>;
/// The chunks that have a copy on each node, and some that were deleted since.
type ChunksOf = BTreeMap<NodeId, BTreeSet<ChunkId>>;

/// Which chunks are to be looked at.
///
/// A node's standing decides about the chunks that have a copy there, and about no others. Whether it has been heard decides only
/// about those of them that are not whole: so a new master, which hears a thousand nodes one after the other, looks at each chunk once. Where these are is known once all
/// chunks were read in this reign, and from what this master has committed since: only the master that leads changes chunks.
/// When it turns out that somebody else did, nothing of this counts and all chunks are read again; so they are now and then
/// anyway, a few at a time.
#[derive(Debug, Default)]
pub(super) struct Reconciler {
    /// By these standings every chunk was looked at or is due; none before all have been read.
    settled: Option<Standings>,
    /// Complete if there is `settled`.
    chunks_of: ChunksOf,
    sweep: Option<Sweep>,
    due: BTreeSet<ChunkId>,
    /// Those that were not whole when they were last looked at.
    wanting: BTreeSet<ChunkId>,
    /// Volumes whose chunks are still getting places, with chunks that cannot stay as they are: nodes have no copies of them yet, and are not
    /// asked for any, so nothing is changed before all have places.
    put_off: BTreeSet<VolumeNumber>,
    /// As [`super::changes::ChangeLog::strangers`] was when this was begun.
    strangers: u64,
}

/// All chunks are being read.
#[derive(Debug)]
struct Sweep {
    /// The first key that was not read yet.
    next: Vec<u8>,
    /// When it began.
    standings: Standings,
    chunks_of: ChunksOf,
}

impl Reconciler {
    /// This chunk is to be looked at with the next tick.
    pub(super) fn look_at(&mut self, id: ChunkId) {
        self.due.insert(id);
    }

    /// These chunks of a volume have places now: whether something of it was put off.
    pub(super) fn takes_up(&mut self, number: VolumeNumber) -> bool {
        self.put_off.remove(&number)
    }

    /// All chunks of a node are.
    pub(super) fn look_at_node(&mut self, node: NodeId) {
        if self.settled.is_none() {
            // What was read already may have been of this node.
            self.sweep = None;
        }
        self.due.extend(self.chunks_of.get(&node).into_iter().flatten());
    }

    /// Whether every chunk has been looked at since something has happened.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.is_some() && self.due.is_empty()
    }

    /// A configuration is committed.
    pub(super) fn committed(&mut self, id: ChunkId, chunk: &Chunk) {
        let sweep = self.sweep.as_mut().map(|sweep| &mut sweep.chunks_of);
        for chunks_of in std::iter::once(&mut self.chunks_of).chain(sweep) {
            note_nodes(chunks_of, id, chunk);
        }
        if let Some(settled) = &self.settled {
            let is_whole = is_whole(chunk, settled);
            self.note_whole(id, is_whole);
        }
    }

    /// A chunk has no place on a node any more.
    pub(super) fn left(&mut self, node: NodeId, id: ChunkId) {
        let sweep = self.sweep.as_mut().map(|sweep| &mut sweep.chunks_of);
        for chunks_of in std::iter::once(&mut self.chunks_of).chain(sweep) {
            if let Some(chunks) = chunks_of.get_mut(&node) {
                chunks.remove(&id);
            }
        }
    }

    /// Whether a chunk has a place on a node, as far as is known, or was deleted since. That it has none is to be asked of the store.
    pub(super) fn knows_place(&self, node: NodeId, id: ChunkId) -> bool {
        let chunks = self.settled.as_ref().and_then(|_| self.chunks_of.get(&node));
        chunks.is_some_and(|chunks| chunks.contains(&id))
    }

    fn note_whole(&mut self, id: ChunkId, is_whole: bool) {
        if is_whole {
            self.wanting.remove(&id);
        } else {
            self.wanting.insert(id);
        }
    }

    /// What the nodes' standings are now.
    fn take(&mut self, standings: &Standings) {
        let Some(settled) = &self.settled else {
            return;
        };
        if settled == standings {
            return;
        }
        let nodes: BTreeSet<NodeId> = settled.keys().chain(standings.keys()).copied().collect();
        let differ = nodes
            .into_iter()
            .filter(|node| settled.get(node) != standings.get(node));
        for node in differ {
            let chunks = self.chunks_of.get(&node).into_iter().flatten();
            if is_only_heard_otherwise(settled.get(&node), standings.get(&node)) {
                self.due.extend(chunks.filter(|id| self.wanting.contains(id)));
            } else {
                self.due.extend(chunks);
            }
        }
        self.settled = Some(standings.clone());
    }

    fn begin_sweep(&mut self, standings: &Standings) {
        if self.sweep.is_none() {
            self.sweep = Some(Sweep {
                next: keys::CHUNKS.to_vec(),
                standings: standings.clone(),
                chunks_of: ChunksOf::new(),
            });
        }
    }

    fn end_sweep(&mut self) {
        if let Some(sweep) = self.sweep.take() {
            self.chunks_of = sweep.chunks_of;
            // What has happened to nodes since then, the next tick finds.
            self.settled.get_or_insert(sweep.standings);
        }
    }
}

/// Whether two standings of a node differ at most in whether it has been heard.
fn is_only_heard_otherwise(before: Option<&Standing>, now: Option<&Standing>) -> bool {
    let (Some(&before), Some(&now)) = (before, now) else {
        return false;
    };
    let is_heard = before.is_heard;
    before == Standing { is_heard, ..now }
}

fn note_nodes(chunks_of: &mut ChunksOf, id: ChunkId, chunk: &Chunk) {
    for copy in &chunk.copies {
        chunks_of.entry(copy.node).or_default().insert(id);
    }
}

/// A configuration to be committed.
struct Step {
    id: ChunkId,
    /// The revision of the record it was decided on.
    revision: u64,
    next: Chunk,
}

/// What the store says of some chunks.
type ChunksRead = Vec<(ChunkId, Stored<Chunk>)>;

/// The volume whose chunks are being looked at: they come in its order.
#[derive(Default)]
struct Current(Option<(VolumeNumber, Option<Volume>)>);

impl<S: MetadataStore> Controller<S> {
    /// Leaves out what is gone, recovers what has returned, and brings volumes on. To be called
    /// every fraction of the heartbeat timeout; costs little when nothing happened. True when it
    /// committed something.
    pub fn tick(&mut self, now: Instant) -> Result<bool, ControlError> {
        self.inquiries.forget(now);
        let before = self.store.revision()?;
        self.changes.seen(before);
        let strangers = self.changes.strangers();
        // Somebody else, or this master itself with a commit whose answer was lost.
        if self.reconciler.strangers != strangers && !self.is_restoring() {
            self.note_restored(now)?;
        }
        if self.is_restoring() {
            self.find_out(now)?;
            return Ok(self.changes.end() != before);
        }
        if self.reconciler.strangers != strangers {
            self.reconciler = Reconciler {
                strangers,
                ..Reconciler::default()
            };
            for unfinished in self.unfinished.values_mut() {
                unfinished.placed = 0;
            }
            self.disk_moves.look_again();
            self.note_disk_moves()?;
        }
        let standings = self.standings(now)?;
        let racks = self.racks(now)?;
        if racks != self.care.racks {
            // What is apart, and what should be, may be otherwise now: every chunk is looked at again.
            if racks.are_there() || self.care.racks.are_there() {
                self.reconciler.sweep = None;
                self.reconciler.begin_sweep(&standings);
                self.balancer.look_again();
            }
            self.care.racks = racks;
        }
        if now.since(self.audited) >= self.settings.audit_interval {
            self.audited = now;
            self.reconciler.begin_sweep(&standings);
            self.note_unfinished()?;
            self.note_snapshots()?;
            self.forget_readers(now)?;
        }
        // Nodes do not fall silent one after the other because all do: where none is heard any more it is this master that is
        // deaf, and the first whose time is over may live.
        if self.has_heard_within(self.settings.heartbeat_timeout / 2, now)
            || self.planted.is(Bug::TrustsDeafEars)
        {
            self.reconcile(&standings)?;
        }
        self.bring_volumes_on(now)?;
        self.look_after_snapshots(now)?;
        self.look_after_disk_moves(now)?;
        self.look_after_places(&standings, now)?;
        self.rebalance(&standings, now)?;
        Ok(self.changes.end() != before)
    }

    fn reconcile(&mut self, standings: &Standings) -> Result<(), ControlError> {
        let is_known = self.reconciler.settled.is_some();
        if !is_known {
            self.reconciler.begin_sweep(standings);
        }
        let pages = if is_known { PAGES_QUIET } else { PAGES_URGENT };
        for _ in 0..pages {
            if self.reconciler.sweep.is_some() {
                self.sweep_on(standings)?;
            }
        }
        self.reconciler.take(standings);
        self.look_at_due(standings)
    }

    /// Reads the next page of all chunks.
    fn sweep_on(&mut self, standings: &Standings) -> Result<(), ControlError> {
        let Some(sweep) = &self.reconciler.sweep else {
            return Ok(());
        };
        let end = keys::end_of(keys::CHUNKS);
        let entries = self.store.range(&sweep.next, &end, PAGE)?;
        let (mut steps, mut current) = (Vec::new(), Current::default());
        for entry in &entries {
            let Some(id) = keys::parse_chunk(&entry.key) else {
                continue;
            };
            let chunk = Chunk::decode(&entry.key, &entry.versioned.value)?;
            if let Some(sweep) = &mut self.reconciler.sweep {
                note_nodes(&mut sweep.chunks_of, id, &chunk);
            }
            steps.extend(self.look(id, &chunk, entry.versioned.revision, standings, &mut current)?);
        }
        self.commit_steps(&steps)?;
        // Only now: what could not be committed is read again.
        match (entries.last(), &mut self.reconciler.sweep) {
            (Some(last), Some(sweep)) if entries.len() == PAGE => sweep.next = keys::after(&last.key),
            _ => self.reconciler.end_sweep(),
        }
        Ok(())
    }

    /// Looks at the chunks to whose nodes something has happened, as many as one tick may read.
    fn look_at_due(&mut self, standings: &Standings) -> Result<(), ControlError> {
        let mut due: Vec<ChunkId> = self.reconciler.due.iter().copied().take(DUE_MAX).collect();
        let (mut steps, mut current) = (Vec::new(), Current::default());
        let (mut looked_at, mut reads) = (0, 0);
        for group in due.chunks(GROUP) {
            let (chunks, asked) = self.read_chunks(group)?;
            for (id, stored) in chunks {
                steps.extend(self.look(id, &stored.record, stored.revision, standings, &mut current)?);
            }
            (looked_at, reads) = (looked_at + group.len(), reads + asked);
            if reads >= READS_MAX {
                break;
            }
        }
        // The others are, with the next tick.
        due.truncate(looked_at);
        for id in &due {
            self.reconciler.due.remove(id);
        }
        let committed = self.commit_steps(&steps);
        if committed.is_err() {
            self.reconciler.due.extend(due);
        }
        committed
    }

    /// Those of these chunks, ascending, that there are, and how often the store was asked for them: once where they lie together.
    fn read_chunks(&self, ids: &[ChunkId]) -> Result<(ChunksRead, usize), ControlError> {
        let mut chunks = Vec::with_capacity(ids.len());
        if let (Some(first), Some(last)) = (ids.first(), ids.last())
            && first.volume == last.volume
            && ((last.index - first.index) as usize) < PAGE
            && ids.len() > 1
        {
            let end = keys::after(&keys::chunk(*last));
            for entry in self.store.range(&keys::chunk(*first), &end, PAGE)? {
                if let Some(id) = keys::parse_chunk(&entry.key).filter(|id| ids.binary_search(id).is_ok()) {
                    let record = Chunk::decode(&entry.key, &entry.versioned.value)?;
                    let revision = entry.versioned.revision;
                    chunks.push((id, Stored { record, revision }));
                }
            }
            return Ok((chunks, 1));
        }
        for &id in ids {
            chunks.extend(self.read::<Chunk>(&keys::chunk(id))?.map(|stored| (id, stored)));
        }
        Ok((chunks, ids.len()))
    }

    /// What a chunk's configuration has to become, if it cannot stay.
    fn look(
        &mut self,
        id: ChunkId,
        chunk: &Chunk,
        revision: u64,
        standings: &Standings,
        Current(volume): &mut Current,
    ) -> Result<Option<Step>, ControlError> {
        if volume.as_ref().is_none_or(|(number, _)| *number != id.volume) {
            let stored = self.read::<Volume>(&keys::volume(id.volume))?;
            *volume = Some((id.volume, stored.map(|stored| stored.record)));
        }
        let Some((_, Some(volume))) = volume else {
            self.reconciler.note_whole(id, true);
            return Ok(None);
        };
        self.reconciler.note_whole(id, is_whole(chunk, standings));
        self.care.note(id, chunk, volume);
        let minimum = volume.geometry.minimum;
        let next = successor(chunk, minimum, volume.write_pin, standings, spread(id));
        if next.is_some() && is_getting_places(&self.unfinished, volume, id.index) {
            self.reconciler.put_off.insert(id.volume);
            return Ok(None);
        }
        Ok(next.map(|next| {
            self.care.note(id, &next, volume);
            Step { id, revision, next }
        }))
    }

    /// Commits many configurations at a time; those decided on something that is no longer so are
    /// decided anew with the next tick.
    fn commit_steps(&mut self, steps: &[Step]) -> Result<(), ControlError> {
        for batch in steps.chunks(self.store.operations_max().max(1)) {
            if self.commit_batch(batch)? {
                continue;
            }
            // One of them was changed by somebody else: the others need not wait for it.
            for step in batch {
                if !self.commit_batch(std::slice::from_ref(step))? {
                    self.reconciler.look_at(step.id);
                }
            }
        }
        Ok(())
    }

    fn commit_batch(&mut self, batch: &[Step]) -> Result<bool, ControlError> {
        let mut transaction = Transaction::new();
        for step in batch {
            let key = keys::chunk(step.id);
            transaction.compare(key.clone(), step.revision);
            transaction.put(key.clone(), step.next.encode(&key));
        }
        self.commit(&transaction)
    }
}

/// Whether a chunk belongs to those of a volume of which not all have places yet.
fn is_getting_places(unfinished: &BTreeMap<VolumeNumber, Unfinished>, volume: &Volume, index: u32) -> bool {
    let has_nodes = || {
        let known = unfinished.get(&volume.number);
        known.is_some_and(|unfinished| unfinished.nodes.is_some())
    };
    let is_new = !volume.growth.is_empty() && index >= volume.geometry.chunk_count();
    volume.state == VolumeState::Creating || is_new && !has_nodes()
}

/// A number that differs from chunk to chunk, so that the writes of a lost node spread.
pub(super) fn spread(id: ChunkId) -> u64 {
    u64::from(id.volume.0).wrapping_add(u64::from(id.index))
}
