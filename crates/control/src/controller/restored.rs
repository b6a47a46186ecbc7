//! A store that was filled from a backup may be older than what the nodes have done since (`docs/decisions/0107`). It says so of
//! itself (`docs/formats/store.md`), and for as long the masters change nothing but what is here: they have the nodes name their copies, ask how
//! each is, settle every chunk on what is found, and go on above every number that anybody has seen.
//!
//! What is found out is in memory. A master that begins to lead asks again; what was settled already is settled once more, above that.

use std::collections::{BTreeMap, BTreeSet};

use foundation::{ByteCount, Epoch, Instant};

use crate::controller::balance::Balancer;
use crate::controller::care::Care;
use crate::controller::disk_moves::DiskMoves;
use crate::controller::force::{CopyState, EPOCH_MAX};
use crate::controller::nodes::{Heartbeat, HeartbeatAnswer};
use crate::controller::reconcile::Reconciler;
use crate::controller::snapshots::{first_number, series_of};
use crate::controller::{Controller, PAGE, contended};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, Incarnation, NodeId, SessionId, Uuid, VolumeNumber, WriterToken};
use crate::keys;
use crate::model::{
    Chunk, FEATURE_RESTORED, Number, ReaderLease, Reservations, Volume, VolumeState, WriterLease,
};
use crate::rebuild::GAP;
use crate::record::Record;
use crate::restored::{Found, Undecided, settle};
use crate::store::{MetadataStore, Operation, Transaction};
use crate::transfer::Restored;

/// Chunks that nodes are asked about at a time.
const WINDOW_MAX: usize = 4096;
/// Pages of chunks that one tick reads; heartbeats are answered between ticks.
const PAGES_MAX: usize = 64;
/// Epochs go on up to so much further above what is known than other numbers.
const GAP_DRAWN: u64 = 32_768;
// Such a step is not taken for that to a copy that is served by force.
const _: () = assert!(GAP as u64 + GAP_DRAWN < Epoch::JUMP);
/// Chunks, nodes and volumes that are named to people.
const NAMED_MAX: usize = 16;

/// What is known so far.
#[derive(Debug)]
pub(super) struct Restoring {
    /// The revision of the store that the backup is of.
    revision: u64,
    since: Instant,
    /// Tells this asking from any other, to nodes ([`HeartbeatAnswer::hold`]).
    hold: u64,
    /// Epochs go on so far above all that are known.
    gap: u64,
    /// All chunks of the store: none is made or removed in the meantime.
    chunks: usize,
    /// The life in which a node has named all its copies.
    named: BTreeMap<NodeId, Incarnation>,
    /// The nodes that have a copy of a chunk, as they say.
    holders: BTreeMap<ChunkId, BTreeSet<NodeId>>,
    /// The first chunk of the store that was not asked about in this round.
    next: Vec<u8>,
    /// Those that are being asked about.
    window: BTreeSet<ChunkId>,
    settled: BTreeSet<ChunkId>,
    /// Of which no node has a copy any more: their volumes were deleted since.
    gone: BTreeSet<ChunkId>,
    undecided: BTreeMap<ChunkId, Undecided>,
    /// The newest write leases that copies have seen.
    tokens: BTreeMap<VolumeNumber, WriterToken>,
    /// What somebody has said of what is not heard.
    consent: Consent,
}

/// What the masters cannot know, and an operator says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consent {
    /// Nodes that do not run, and whose copies nobody waits for.
    pub without_nodes: BTreeSet<NodeId>,
    /// Volumes that came after the backup and are not known to the masters any more. Their copies stay on the disks.
    pub without_volumes: BTreeSet<VolumeNumber>,
}

/// How far the masters are with finding out what the nodes have done since the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredView {
    /// The revision of the store that the backup is of.
    pub revision: u64,
    /// Chunks that are settled.
    pub settled: usize,
    /// All chunks of the store.
    pub chunks: usize,
    /// Nodes that have not named their copies yet, or have not said how a copy is without which a chunk cannot be settled; with how many
    /// chunks wait for each.
    pub awaited: Vec<(NodeId, usize)>,
    /// Chunks that cannot be settled, and why; no more than 16 of them.
    pub refused: Vec<(ChunkId, String)>,
    /// All that cannot be settled.
    pub refused_count: usize,
    /// Volumes of which nodes have copies and the store knows nothing.
    pub unknown_volumes: Vec<VolumeNumber>,
    /// Volumes that have grown since: of which nodes have chunks that the store does not know.
    pub grown_volumes: Vec<VolumeNumber>,
}

impl RestoredView {
    fn is_done(&self) -> bool {
        self.settled == self.chunks
            && self.awaited.is_empty()
            && self.refused_count == 0
            && self.unknown_volumes.is_empty()
            && self.grown_volumes.is_empty()
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Whether the store is older than what the nodes have done, as far as is known.
    pub(super) fn is_restoring(&self) -> bool {
        self.restoring.is_some()
    }

    pub(super) fn note_restored(&mut self, now: Instant) -> Result<(), ControlError> {
        let Some(restored) = self.read::<Restored>(keys::RESTORED)? else {
            return Ok(());
        };
        let mut chunks = 0;
        let end = keys::end_of(keys::CHUNKS);
        self.read_range::<Chunk>(keys::CHUNKS.to_vec(), &end, |_, _| chunks += 1)?;
        // Drawn, so that a backup which is put back twice does not give the same epochs twice.
        let gap = u64::from(GAP) + self.random.below(GAP_DRAWN);
        self.restoring = Some(Restoring {
            gap,
            chunks,
            revision: restored.record.revision,
            since: now,
            // 0 stands for none.
            hold: self.random.next_u64().max(1),
            named: BTreeMap::new(),
            holders: BTreeMap::new(),
            next: keys::CHUNKS.to_vec(),
            window: BTreeSet::new(),
            settled: BTreeSet::new(),
            gone: BTreeSet::new(),
            undecided: BTreeMap::new(),
            tokens: BTreeMap::new(),
            consent: Consent::default(),
        });
        Ok(())
    }

    /// Whether a transaction may be committed while the nodes are being asked: what they say of themselves may.
    pub(super) fn check_restored(&self, transaction: &Transaction) -> Result<(), ControlError> {
        let may = |key: &[u8]| {
            let of_nodes = [keys::NODES, keys::JOIN_TOKENS, keys::DATA_KEYS];
            key == keys::CLUSTER || of_nodes.iter().any(|prefix| key.starts_with(prefix))
        };
        let is_allowed = |operation: &Operation| match operation {
            Operation::Put { key, .. } | Operation::Delete { key } => may(key),
        };
        match transaction.operations.iter().all(is_allowed) {
            true => Ok(()),
            false => self.check_newest(),
        }
    }

    /// Fails while the store is older than what the nodes have done.
    pub(super) fn check_newest(&self) -> Result<(), ControlError> {
        let Some(restoring) = &self.restoring else {
            return Ok(());
        };
        let awaited = self.awaited(restoring)?;
        let mut nodes = awaited.keys();
        let awaited = match (nodes.next(), nodes.len()) {
            (None, _) => String::new(),
            (Some(node), 0) => format!(", node {node} is awaited"),
            (Some(node), others) => format!(", node {node} and {others} more are awaited"),
        };
        Err(ControlError::Restoring {
            decided: restoring.settled.len() + restoring.gone.len(),
            chunks: restoring.chunks,
            awaited,
        })
    }

    /// The nodes that have not said what they have to say, and how many chunks wait for each.
    fn awaited(&self, restoring: &Restoring) -> Result<BTreeMap<NodeId, usize>, ControlError> {
        let mut awaited: BTreeMap<NodeId, usize> = BTreeMap::new();
        for undecided in restoring.undecided.values() {
            if let Undecided::Awaits(node) = undecided {
                *awaited.entry(*node).or_default() += 1;
            }
        }
        for node in self.read_nodes()?.into_keys() {
            let is_named = restoring.named.contains_key(&node);
            if !is_named && !restoring.consent.without_nodes.contains(&node) {
                awaited.entry(node).or_default();
            }
        }
        Ok(awaited)
    }

    /// What is still to be found out; none if the store is the newest there is.
    pub fn restored(&self) -> Result<Option<RestoredView>, ControlError> {
        let Some(restoring) = &self.restoring else {
            return Ok(None);
        };
        // Another master may have come to the end of it.
        if self.store.get(keys::RESTORED)?.is_none() {
            return Ok(None);
        }
        let refused = restoring
            .undecided
            .iter()
            .filter_map(|(id, undecided)| match undecided {
                Undecided::Awaits(_) => None,
                Undecided::Refused(why) => Some((*id, why.clone())),
            });
        let mut refused: Vec<(ChunkId, String)> = refused.collect();
        let (unknown_volumes, grown_volumes) = self.unknown_to_the_store(restoring)?;
        let refused_count = refused.len();
        refused.truncate(NAMED_MAX);
        Ok(Some(RestoredView {
            revision: restoring.revision,
            settled: restoring.settled.len() + restoring.gone.len(),
            chunks: restoring.chunks,
            awaited: self.awaited(restoring)?.into_iter().collect(),
            refused,
            refused_count,
            unknown_volumes,
            grown_volumes,
        }))
    }

    /// The volumes of which nodes have copies that the store knows nothing of: those that it does not know at all, but for those
    /// that somebody has given up, and those that have grown since.
    fn unknown_to_the_store(
        &self,
        restoring: &Restoring,
    ) -> Result<(Vec<VolumeNumber>, Vec<VolumeNumber>), ControlError> {
        // With how many chunks, and whether each of these has a record.
        let volumes: BTreeMap<VolumeNumber, (u32, bool)> = self
            .volumes()?
            .into_iter()
            .map(|volume| {
                let is_placed = volume.state != VolumeState::Creating && volume.growth.is_empty();
                (volume.number, (volume.grown().chunk_count(), is_placed))
            })
            .collect();
        let (mut unknown, mut grown) = (BTreeSet::new(), BTreeSet::new());
        for id in restoring.holders.keys() {
            match volumes.get(&id.volume) {
                Some((chunks, true)) if id.index < *chunks => {}
                // The backup is of when only some had places: the others would get new ones, without what they hold.
                Some((chunks, false))
                    if id.index < *chunks && self.store.get(&keys::chunk(*id))?.is_some() => {}
                Some(_) => drop(grown.insert(id.volume)),
                // One that was deleted before the backup, whose copies a node that was away has still.
                None if self.store.get(&keys::tombstone(id.volume))?.is_some() => {}
                None if restoring.consent.without_volumes.contains(&id.volume) => {}
                None => drop(unknown.insert(id.volume)),
            }
        }
        Ok((unknown.into_iter().collect(), grown.into_iter().collect()))
    }

    /// Somebody says that these nodes do not run, and that these volumes are given up.
    ///
    /// # Errors
    /// If a node lives: it says itself what it has.
    pub fn go_on_without(&mut self, consent: &Consent, now: Instant) -> Result<(), ControlError> {
        for (id, view) in self.nodes(now)? {
            if view.is_heard && consent.without_nodes.contains(&id) {
                return Err(ControlError::Argument {
                    field: "without_node",
                    problem: format!("names node {id}, which lives: it says itself what its copies are"),
                    remedy: "name only nodes that are switched off",
                });
            }
        }
        if let Some(restoring) = &mut self.restoring {
            let (theirs, ours) = (consent.clone(), &mut restoring.consent);
            ours.without_nodes.extend(theirs.without_nodes);
            ours.without_volumes.extend(theirs.without_volumes);
        }
        Ok(())
    }

    /// What a heartbeat is answered with in the meantime: what is exported goes on, and nothing is made or removed.
    pub(super) fn heard_while_restoring(
        &mut self,
        heartbeat: &Heartbeat,
    ) -> Result<HeartbeatAnswer, ControlError> {
        let node = heartbeat.node;
        if let Some(restoring) = &mut self.restoring {
            // A node that is heard is not one that somebody takes for switched off.
            restoring.consent.without_nodes.remove(&node);
            if heartbeat.names_copies || !heartbeat.copies.is_empty() {
                for holders in restoring.holders.values_mut() {
                    holders.remove(&node);
                }
                for id in &heartbeat.copies {
                    restoring.holders.entry(*id).or_default().insert(node);
                }
                restoring.holders.retain(|_, holders| !holders.is_empty());
                restoring.named.insert(node, heartbeat.incarnation);
            }
        }
        let named = self.restoring.as_ref().and_then(|found| found.named.get(&node));
        let name_copies = named != Some(&heartbeat.incarnation);
        Ok(HeartbeatAnswer {
            revision: self.store.revision()?,
            exports: self.exports_of(node)?,
            complete_snapshots: self.snapshots.version(),
            describe: self.inquiries.of_node(node),
            name_copies,
            hold: self.restoring.as_ref().map_or(0, |found| found.hold),
            ..HeartbeatAnswer::default()
        })
    }

    /// Goes on with finding out; ends it when all is known. To be called with each tick.
    pub(super) fn find_out(&mut self, now: Instant) -> Result<(), ControlError> {
        // The end was committed, and its answer lost, or what was to be done then failed.
        if self.store.get(keys::RESTORED)?.is_none() {
            return self.go_on(now);
        }
        if !self.has_heard_the_nodes(now)? {
            return Ok(());
        }
        self.fill_window(now)?;
        self.settle_window(now)?;
        let is_open = |restoring: &Restoring| {
            !restoring.window.is_empty() || !restoring.undecided.is_empty() || restoring.next != keys::CHUNKS
        };
        if self.restoring.as_ref().is_none_or(is_open) {
            return Ok(());
        }
        match self.restored()?.is_some_and(|view| view.is_done()) {
            true => self.end_restoring(now),
            false => Ok(()),
        }
    }

    /// A node knows what only a newer store can have told it: this one was put back from a copy.
    pub(super) fn found_older(&mut self, now: Instant) -> Result<(), ControlError> {
        if self.restoring.is_some() {
            return Ok(());
        }
        let mut transaction = Transaction::new();
        transaction.compare(keys::RESTORED.to_vec(), 0);
        transaction.put(
            keys::RESTORED.to_vec(),
            Restored { revision: 0 }.encode(keys::RESTORED),
        );
        self.set_feature(&mut transaction, FEATURE_RESTORED, true)?;
        let committed = self.commit_unchecked(&transaction);
        // Also where another one was quicker, and where the answer was lost: it may be there all the same. What comes later still, the
        // next tick finds.
        self.note_restored(now)?;
        match committed? || self.is_restoring() {
            true => Ok(()),
            false => Err(contended()),
        }
    }

    /// Every node has named its copies, or does not run, as somebody says.
    fn has_heard_the_nodes(&self, now: Instant) -> Result<bool, ControlError> {
        let Some(restoring) = &self.restoring else {
            return Ok(false);
        };
        // One that the backup does not know makes itself known meanwhile.
        if now.since(restoring.since) < self.settings.heartbeat_timeout {
            return Ok(false);
        }
        let has_named = |view: &super::NodeView| {
            restoring.named.get(&view.id) == Some(&view.record.incarnation)
                || restoring.consent.without_nodes.contains(&view.id)
        };
        Ok(self.nodes(now)?.values().all(has_named))
    }

    /// Takes the next chunks up, and has their nodes asked.
    fn fill_window(&mut self, now: Instant) -> Result<(), ControlError> {
        let end = keys::end_of(keys::CHUNKS);
        let Some(restoring) = &mut self.restoring else {
            return Ok(());
        };
        for _ in 0..PAGES_MAX {
            if restoring.window.len() >= WINDOW_MAX {
                break;
            }
            let entries = self.store.range(&restoring.next, &end, PAGE)?;
            for entry in &entries {
                let id = keys::parse_chunk(&entry.key);
                let is_open = |id: &ChunkId| !restoring.settled.contains(id) && !restoring.gone.contains(id);
                restoring.window.extend(id.filter(is_open));
            }
            match entries.last() {
                Some(last) if entries.len() == PAGE => restoring.next = keys::after(&last.key),
                _ => {
                    // What could not be settled is tried again.
                    restoring.next = keys::CHUNKS.to_vec();
                    break;
                }
            }
        }
        let heard = |node: &NodeId| {
            let heard = self.heard.get(node);
            heard.is_some_and(|heard| now.since(heard.at) < self.settings.heartbeat_timeout)
        };
        for id in &restoring.window {
            let mut nodes: BTreeSet<NodeId> = restoring.holders.get(id).cloned().unwrap_or_default();
            if let Some(stored) = super::read::<Chunk>(&self.store, &keys::chunk(*id))? {
                nodes.extend(stored.record.copies.iter().map(|copy| copy.node));
            }
            if let Some(Undecided::Awaits(node)) = restoring.undecided.get(id) {
                nodes.insert(*node);
            }
            for node in nodes.into_iter().filter(heard) {
                self.inquiries.ask(node, *id, false, now);
            }
        }
        Ok(())
    }

    fn settle_window(&mut self, now: Instant) -> Result<(), ControlError> {
        let Some(mut restoring) = self.restoring.take() else {
            return Ok(());
        };
        let settled = self.settle_chunks(&mut restoring, now);
        self.restoring = Some(restoring);
        settled
    }

    fn settle_chunks(&mut self, restoring: &mut Restoring, now: Instant) -> Result<(), ControlError> {
        let lives: BTreeMap<NodeId, (Incarnation, bool)> = self
            .nodes(now)?
            .into_iter()
            .map(|(id, view)| (id, (view.record.incarnation, view.is_heard)))
            .collect();
        let mut steps = Vec::new();
        for id in restoring.window.clone() {
            let Some(stored) = self.read::<Chunk>(&keys::chunk(id))? else {
                restoring.window.remove(&id);
                continue;
            };
            let holders = restoring.holders.get(&id).into_iter().flatten().copied();
            let places = stored.record.copies.iter().map(|copy| copy.node);
            let nodes: BTreeSet<NodeId> = holders.chain(places).collect();
            let answer = |node: &NodeId| {
                let (life, _) = lives.get(node)?;
                self.inquiries.answer(*node, id, *life)
            };
            let is_heard = |node: &NodeId| lives.get(node).is_some_and(|(_, is_heard)| *is_heard);
            let off = &restoring.consent.without_nodes;
            let mut awaited = nodes
                .iter()
                .filter(|node| answer(node).is_none() && !off.contains(node));
            if let Some(&node) = awaited.next() {
                // Who is asked and lives answers soon. For the others this one does not keep the next chunks waiting.
                if !is_heard(&node) {
                    restoring.undecided.insert(id, Undecided::Awaits(node));
                    restoring.window.remove(&id);
                    self.inquiries.end(id);
                }
                continue;
            }
            let answered = nodes
                .iter()
                .filter_map(|node| Some((*node, answer(node)?.clone())));
            let mut said: BTreeMap<NodeId, Option<CopyState>> = answered.collect();
            let minimum = self.minimum_of(id.volume)?;
            let found = loop {
                match settle(
                    &stored.record,
                    minimum,
                    &said,
                    &restoring.consent.without_nodes,
                    restoring.gap,
                ) {
                    // A node that was asked since it was found out that it has to be.
                    Err(Undecided::Awaits(node)) if answer(&node).is_some() => {
                        said.extend(answer(&node).map(|state| (node, state.clone())));
                    }
                    found => break found,
                }
            };
            let newest = said.values().flatten().map(|state| state.token).max();
            if let Some(token) = newest {
                let newest = restoring.tokens.entry(id.volume).or_default();
                *newest = token.max(*newest);
            }
            match found {
                Ok(Found::Chunk(next)) => steps.push((id, stored.revision, next)),
                Ok(Found::Nothing) => drop(restoring.gone.insert(id)),
                Err(undecided) => {
                    // It names a node that was not asked yet, and is asked with the next tick.
                    let is_new = matches!(&undecided, Undecided::Awaits(node) if is_heard(node));
                    restoring.undecided.insert(id, undecided);
                    if !is_new {
                        restoring.window.remove(&id);
                        self.inquiries.end(id);
                    }
                    continue;
                }
            }
            restoring.undecided.remove(&id);
            restoring.window.remove(&id);
            self.inquiries.end(id);
        }
        for batch in steps.chunks(self.store.operations_max().max(1)) {
            let mut transaction = Transaction::new();
            for (id, revision, next) in batch {
                let key = keys::chunk(*id);
                transaction.compare(key.clone(), *revision);
                transaction.put(key.clone(), next.encode(&key));
            }
            // What somebody else has changed is looked at again: it is not settled.
            if self.commit_unchecked(&transaction)? {
                restoring.settled.extend(batch.iter().map(|step| step.0));
            }
        }
        Ok(())
    }

    fn minimum_of(&self, number: VolumeNumber) -> Result<u8, ControlError> {
        let volume = self.read::<Volume>(&keys::volume(number))?;
        Ok(volume.map_or(1, |stored| stored.record.geometry.minimum))
    }

    /// All is known: numbers go on above all that was seen, and the masters go on as ever.
    fn end_restoring(&mut self, now: Instant) -> Result<(), ControlError> {
        let Some(restoring) = self.restoring.take() else {
            return Ok(());
        };
        let ended = self.lift_numbers(&restoring);
        self.restoring = Some(restoring);
        ended?;
        self.go_on(now)
    }

    /// What the store says is the newest there is, and is taken up as by a master that begins to lead.
    fn go_on(&mut self, now: Instant) -> Result<(), ControlError> {
        // What was read of the store before is of before.
        self.reconciler = Reconciler::default();
        self.care = Care::default();
        self.balancer = Balancer::default();
        self.disk_moves = DiskMoves::default();
        self.exported = None;
        self.unfinished.clear();
        self.note_drains()?;
        self.note_disk_restores()?;
        self.note_snapshots()?;
        self.note_leases(now)?;
        self.note_unfinished()?;
        self.restoring = None;
        Ok(())
    }

    fn lift_numbers(&mut self, restoring: &Restoring) -> Result<(), ControlError> {
        self.promise_anew()?;
        for volume in self.volumes()? {
            let seen = restoring.tokens.get(&volume.number).copied().unwrap_or_default();
            self.lift_token(&volume, seen)?;
        }
        let Some(mark) = self.read::<Restored>(keys::RESTORED)? else {
            return Ok(());
        };
        let mut transaction = Transaction::new();
        transaction.compare(keys::RESTORED.to_vec(), mark.revision);
        let next = self.read::<Number>(keys::NEXT_VOLUME)?;
        let highest = restoring.holders.keys().map(|id| id.volume.0).max().unwrap_or(0);
        let known = next.map_or(0, |stored| stored.record.0);
        let above = known.max(u64::from(highest) + 1).saturating_add(GAP.into());
        transaction.put(
            keys::NEXT_VOLUME.to_vec(),
            Number(above).encode(keys::NEXT_VOLUME),
        );
        // A series of its own: of a snapshot that came after the backup there is no record, and in the backup's series it would be
        // taken for one that was deleted.
        let known = self.read::<Number>(keys::NEXT_SNAPSHOT)?;
        let known = known.map(|stored| series_of(stored.record.0));
        let heard = self.heard.values().filter_map(|heard| heard.snapshots.as_ref());
        let mut series: BTreeSet<u64> = heard.flatten().map(|(_, number)| series_of(number.0)).collect();
        series.extend(known);
        let mut first = first_number(self.random.next_u64());
        while series.contains(&series_of(first)) {
            first = first_number(self.random.next_u64());
        }
        transaction.put(
            keys::NEXT_SNAPSHOT.to_vec(),
            Number(first).encode(keys::NEXT_SNAPSHOT),
        );
        transaction.delete(keys::RESTORED.to_vec());
        self.set_feature(&mut transaction, FEATURE_RESTORED, false)?;
        match self.commit_unchecked(&transaction)? {
            true => Ok(()),
            false => Err(contended()),
        }
    }

    /// The room that copies have on each disk, counted anew: some have moved since.
    fn promise_anew(&mut self) -> Result<(), ControlError> {
        let mut sizes: BTreeMap<VolumeNumber, u64> = BTreeMap::new();
        for volume in self.volumes()? {
            sizes.insert(volume.number, volume.geometry.chunk.0);
        }
        let mut promised: BTreeMap<(NodeId, DiskId), ByteCount> = BTreeMap::new();
        let mut operations = Vec::new();
        // A copy that was to move to another disk of its node is there already, or is to go there still.
        for (id, moving) in self.read_disk_moves()? {
            let stored = self.read::<Chunk>(&keys::chunk(id))?;
            if stored.is_some_and(|stored| moving.is_of(&stored.record)) {
                let bytes = promised.entry((moving.node, moving.to)).or_default();
                bytes.0 = bytes.0.saturating_add(moving.bytes.0);
            } else {
                operations.push(Operation::Delete {
                    key: keys::disk_move(id),
                });
            }
        }
        let end = keys::end_of(keys::CHUNKS);
        self.read_range::<Chunk>(keys::CHUNKS.to_vec(), &end, |key, stored| {
            let size = keys::parse_chunk(key).and_then(|id| sizes.get(&id.volume));
            for copy in &stored.record.copies {
                let bytes = promised.entry((copy.node, copy.disk)).or_default();
                bytes.0 = bytes.0.saturating_add(size.copied().unwrap_or(0));
            }
        })?;
        let end = keys::end_of(keys::ALLOCATIONS);
        self.read_range::<Number>(keys::ALLOCATIONS.to_vec(), &end, |key, _| {
            if keys::parse_allocation(key).is_none_or(|place| !promised.contains_key(&place)) {
                operations.push(Operation::Delete { key: key.to_vec() });
            }
        })?;
        for ((node, disk), bytes) in promised {
            let key = keys::allocation(node, disk);
            let value = Number(bytes.0).encode(&key);
            operations.push(Operation::Put { key, value });
        }
        for batch in operations.chunks(self.store.operations_max().max(1)) {
            let transaction = Transaction {
                compares: Vec::new(),
                operations: batch.to_vec(),
            };
            self.commit_unchecked(&transaction)?;
        }
        Ok(())
    }

    /// A token above all that were seen, held by nobody, and a lease for the readers of whom the lost store knew.
    fn lift_token(&mut self, volume: &Volume, seen: WriterToken) -> Result<(), ControlError> {
        if volume.state == VolumeState::Deleting {
            return Ok(());
        }
        let key = keys::writer(volume.number);
        let lease = self.read::<WriterLease>(&key)?;
        let reserved = self.read::<Reservations>(&keys::reservations(volume.number))?;
        let known = lease.as_ref().map_or(WriterToken(0), |lease| lease.record.token);
        let reserved = reserved.map_or(WriterToken(0), |stored| stored.record.token);
        let newest = known.max(reserved).max(seen);
        let mut transaction = Transaction::new();
        if newest > WriterToken(0) {
            let token = newest
                .0
                .checked_add(GAP.into())
                .filter(|token| *token < EPOCH_MAX);
            let token = token.ok_or_else(|| ControlError::Argument {
                field: "token",
                problem: format!(
                    "{} is the highest that was seen of volume {}",
                    newest.0, volume.number
                ),
                remedy: "take what is on it to another volume, there are no numbers left for its writers",
            })?;
            let lease = WriterLease {
                token: WriterToken(token),
                session: None,
                holder: "lost with what the masters knew since the backup".to_owned(),
                term: self.settings.writer_term,
            };
            transaction.put(key.clone(), lease.encode(&key));
        }
        let session = SessionId(Uuid::from_random_bits(
            self.random.next_u64(),
            self.random.next_u64(),
        ));
        let key = keys::reader(volume.number, session);
        let lease = ReaderLease {
            holder: "readers of whom the masters knew nothing since the backup".to_owned(),
            generation: 0,
        };
        transaction.put(key.clone(), lease.encode(&key));
        match self.commit_unchecked(&transaction)? {
            true => Ok(()),
            false => Err(contended()),
        }
    }
}

/// The epoch so far above all that are known; none if there is no room for those that follow.
pub(crate) fn above(highest: Epoch, gap: u64) -> Option<Epoch> {
    let epoch = highest.0.checked_add(gap)?;
    (epoch < EPOCH_MAX).then_some(Epoch(epoch))
}
