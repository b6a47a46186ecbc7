//! Serving a chunk by force (`docs/decisions/0105`): when too few copies in sync live, and none will come back, an operator
//! says which copy is to be served, whatever it lacks. Here is found out what each copy is worth, as far as its node says so,
//! and the configuration is committed that has this copy alone.
//!
//! What nodes have said is in memory: a hint, asked for anew before each decision.

use std::collections::BTreeMap;
use std::time::Duration;

use foundation::{ByteCount, Epoch, Instant};

use crate::configuration::{Standing, lives, successor};
use crate::controller::{Controller, Stored, contended};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, Incarnation, NodeId, WriterToken};
use crate::keys;
use crate::model::{Chunk, Copy, Volume, VolumeState};
use crate::rebuild::SealedConfiguration;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// Chunks that one call tells of.
pub(super) const CHUNKS_MAX: usize = 1024;
/// Chunks that one call forces: so many that every store commits them together, and the audit log names each.
pub const FORCED_MAX: usize = 64;
/// No chunk is forced to an epoch from here on: those that follow have to have room.
pub(super) const EPOCH_MAX: u64 = u64::MAX / 2;
/// A node is asked no longer than this after the last call that wanted to know.
const ASK_FOR: Duration = Duration::from_secs(60);

/// What a node says of a copy on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyState {
    /// The disk.
    pub disk: DiskId,
    /// Everything of an older epoch is refused there.
    pub sealed: Epoch,
    /// The newest configuration that it has sealed or was let in under; none for a copy that never took part in anything.
    pub configuration: Option<SealedConfiguration>,
    /// The epoch of the last flush it took part in while it was in sync.
    pub flushed: Epoch,
    /// What its node was told of by masters last, if that is newer.
    pub told: Option<SealedConfiguration>,
    /// The newest write lease that it has seen.
    pub token: WriterToken,
}

/// What a copy is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth {
    /// Nothing was ever written there.
    Empty,
    /// It was being sent what it lacked, under a configuration of this epoch: blocks of different times beside each other.
    Filling(Epoch),
    /// It was in sync until this epoch, and lacks what was acknowledged since.
    LeftOut(Epoch),
    /// It is in sync in a life that has ended: it has every acknowledged write that its disk kept, flushed ones for certain.
    InSyncBefore,
    /// It is in sync in its present life: it has every acknowledged write.
    InSync,
}

/// A copy of a chunk that too few copies can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyFound {
    /// Its place, and the life that is in sync.
    pub copy: Copy,
    /// Since its node was last heard; none if this master has not heard it.
    pub silent: Option<Duration>,
    /// Its node's present life is heard.
    pub is_heard: bool,
    /// What the node says of it: none if it has not said anything yet, or that it has no such copy.
    pub state: Option<Option<CopyState>>,
    /// What it is worth, if that is known.
    pub worth: Option<Worth>,
    /// For how long this master has seen it out of sync; it may have been so for longer.
    pub out: Option<Duration>,
}

impl CopyFound {
    fn is_awaited(&self) -> bool {
        self.is_heard && self.state.is_none()
    }

    /// What of it bears on the decision whether this copy is served, or another.
    pub fn shown(&self) -> ShownCopy {
        ShownCopy {
            node: self.copy.node,
            is_heard: self.is_heard,
            is_gone: self.state == Some(None),
            worth: self.worth,
        }
    }
}

/// A copy as it was shown to whoever decided which one is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShownCopy {
    /// Its node.
    pub node: NodeId,
    /// That was heard.
    pub is_heard: bool,
    /// It said that it has no such copy.
    pub is_gone: bool,
    /// What it was worth, if that was known.
    pub worth: Option<Worth>,
}

impl std::fmt::Display for ShownCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.is_gone, self.worth) {
            (true, _) => f.write_str("gone"),
            (_, None) => f.write_str("not known"),
            (_, Some(Worth::Empty)) => f.write_str("empty"),
            (_, Some(Worth::Filling(epoch))) => write!(f, "being filled in epoch {epoch}"),
            (_, Some(Worth::LeftOut(epoch))) => write!(f, "in sync until epoch {epoch}"),
            (_, Some(Worth::InSyncBefore)) => f.write_str("in sync in a life that has ended"),
            (_, Some(Worth::InSync)) => f.write_str("in sync"),
        }?;
        f.write_str(if self.is_heard { "" } else { ", its node silent" })
    }
}

/// A chunk that too few copies can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// The chunk.
    pub id: ChunkId,
    /// Its configuration.
    pub epoch: Epoch,
    /// Copies in sync by that.
    pub in_sync: usize,
    /// Those of them whose life is heard.
    pub living: usize,
    /// At most so much of the volume is at stake.
    pub bytes: ByteCount,
    /// Its copies, by node.
    pub copies: Vec<CopyFound>,
    /// The node of the copy that is worth most; none if no copy may be served but one that was being filled.
    pub proposed: Option<NodeId>,
}

impl Unserved {
    /// Whether a node that is heard has still to say how its copy is.
    pub fn is_awaited(&self) -> bool {
        self.copies.iter().any(CopyFound::is_awaited)
    }
}

/// A copy that is to be served whatever it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedCopy {
    /// The chunk's index.
    pub index: u32,
    /// The copy's node.
    pub node: NodeId,
    /// The epoch that was shown to whoever decided so.
    pub epoch: Epoch,
    /// The chunk's copies as they were shown. If one is otherwise now, a better one may have come back.
    pub shown: Vec<ShownCopy>,
}

/// What nodes are asked about copies, and what they have said.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    asked: BTreeMap<NodeId, BTreeMap<ChunkId, Inquiry>>,
}

#[derive(Debug)]
struct Inquiry {
    at: Instant,
    answer: Option<(Incarnation, Option<CopyState>)>,
}

impl Inquiries {
    pub(super) fn ask(&mut self, node: NodeId, id: ChunkId, anew: bool, now: Instant) {
        let of_node = self.asked.entry(node).or_default();
        let inquiry = of_node.entry(id).or_insert(Inquiry {
            at: now,
            answer: None,
        });
        inquiry.at = now;
        if anew {
            inquiry.answer = None;
        }
    }

    /// What nobody wants to know any more is asked no more.
    pub(super) fn forget(&mut self, now: Instant) {
        for of_node in self.asked.values_mut() {
            of_node.retain(|_, inquiry| now.since(inquiry.at) < ASK_FOR);
        }
        self.asked.retain(|_, of_node| !of_node.is_empty());
    }

    /// The copies of which a node has still to say how they are.
    pub(super) fn of_node(&self, node: NodeId) -> Vec<ChunkId> {
        let asked = self.asked.get(&node).into_iter().flatten();
        let open = asked.filter(|(_, inquiry)| inquiry.answer.is_none());
        open.map(|(id, _)| *id).take(CHUNKS_MAX).collect()
    }

    /// Whether there are any.
    pub(super) fn awaits(&self, node: NodeId) -> bool {
        let asked = self.asked.get(&node).into_iter().flatten();
        asked.into_iter().any(|(_, inquiry)| inquiry.answer.is_none())
    }

    /// What is known of a chunk is not wanted any more.
    pub(super) fn end(&mut self, id: ChunkId) {
        for of_node in self.asked.values_mut() {
            of_node.remove(&id);
        }
    }

    pub(super) fn answer(&self, node: NodeId, id: ChunkId, life: Incarnation) -> Option<&Option<CopyState>> {
        let (said_in, answer) = self.asked.get(&node)?.get(&id)?.answer.as_ref()?;
        (*said_in == life).then_some(answer)
    }
}

/// What a copy is worth by its place in the record and by what its node says of it; none if it is not there.
fn worth(copy: &Copy, life: Incarnation, state: &CopyState) -> Worth {
    let Some(configuration) = &state.configuration else {
        return Worth::Empty;
    };
    let named = configuration.members.iter().any(|member| member.0 == copy.node);
    match copy.incarnation {
        Some(in_sync) if in_sync == life => Worth::InSync,
        Some(_) => Worth::InSyncBefore,
        None if named => Worth::LeftOut(configuration.epoch),
        None => Worth::Filling(configuration.epoch),
    }
}

/// What was decided on has to be what there is: a better copy may have come back, or the one that was chosen may be worth less.
fn is_as_shown(copies: &[CopyFound], shown: &[ShownCopy]) -> Result<(), String> {
    let again = "look at it again and decide anew";
    let mut now: Vec<ShownCopy> = copies.iter().map(CopyFound::shown).collect();
    let mut then = shown.to_vec();
    now.sort();
    then.sort();
    if now.len() != then.len() || now.iter().zip(&then).any(|(now, then)| now.node != then.node) {
        return Err(format!(
            "its copies were on other nodes when they were shown: {} were, and {} are; {again}",
            then.len(),
            now.len()
        ));
    }
    match now.iter().zip(&then).find(|(now, then)| now != then) {
        None => Ok(()),
        Some((now, then)) => Err(format!(
            "the copy of node {} was shown as {then}, and it is {now}; {again}",
            now.node
        )),
    }
}

/// Why a chunk needs no force, if it needs none.
fn why_served(
    chunk: &Chunk,
    volume: &Volume,
    standings: &BTreeMap<NodeId, Standing>,
    copies: &[CopyFound],
) -> Option<String> {
    let minimum = volume.geometry.minimum;
    let (in_sync, living) = (chunk.member_count(), having(chunk, standings, copies));
    if living >= usize::from(minimum).min(in_sync) {
        return Some(format!(
            "{living} of its {in_sync} copies in sync live and its minimum is {minimum}, so nothing is to be forced (a node counts as alive until it has been silent for a while)"
        ));
    }
    // All that have ended have begun anew, and have their copies.
    let is_back = |found: &CopyFound| {
        let life = found.copy.incarnation;
        let lives_on = life.is_some_and(|life| lives((found.copy.node, life), standings));
        found.state != Some(None) && (lives_on || found.is_heard && found.state.is_some())
    };
    let mut members = copies.iter().filter(|found| found.copy.incarnation.is_some());
    let goes_on = living > 0 && successor(chunk, minimum, volume.write_pin, standings, 0).is_some();
    if goes_on || members.all(is_back) {
        return Some(format!(
            "all {in_sync} nodes that have a copy in sync are back, and it is served again by itself; wait for a few seconds"
        ));
    }
    None
}

/// Members that live, but for those whose nodes say that the copy is gone: its disk failed, or was replaced.
fn having(chunk: &Chunk, standings: &BTreeMap<NodeId, Standing>, copies: &[CopyFound]) -> usize {
    let is_gone = |node| {
        copies
            .iter()
            .any(|found| found.copy.node == node && found.state == Some(None))
    };
    let members = chunk.members().filter(|member| !is_gone(member.0));
    members.filter(|&member| lives(member, standings)).count()
}

fn living(chunk: &Chunk, standings: &BTreeMap<NodeId, Standing>) -> usize {
    chunk.members().filter(|&member| lives(member, standings)).count()
}

impl<S: MetadataStore> Controller<S> {
    /// A node says how copies are that it was asked about; none for those it does not have.
    pub fn note_copies(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        copies: Vec<(ChunkId, Option<CopyState>)>,
    ) {
        let Some(of_node) = self.inquiries.asked.get_mut(&node) else {
            return;
        };
        for (id, state) in copies {
            if let Some(inquiry) = of_node.get_mut(&id) {
                inquiry.answer = Some((incarnation, state));
            }
        }
    }

    /// The chunks of a volume that too few copies can serve, no more than 1,024 of them, or those of `only`, of which
    /// each must be such a one. Asks their nodes how the copies are: the answers come with the heartbeats; `anew` if what was said before does not count.
    pub fn unserved(
        &mut self,
        name: &str,
        only: &[u32],
        anew: bool,
        now: Instant,
    ) -> Result<Vec<Unserved>, ControlError> {
        self.inquiries.forget(now);
        let volume = self.forcible(name)?;
        let nodes = self.standings(now)?;
        let mut stored: Vec<(ChunkId, Chunk)> = Vec::new();
        if only.is_empty() {
            let (first, end) = keys::chunks_of(volume.number, 0);
            self.read_range::<Chunk>(first, &end, |key, chunk| {
                let needed = usize::from(volume.geometry.minimum).min(chunk.record.member_count());
                if living(&chunk.record, &nodes) < needed {
                    stored.extend(keys::parse_chunk(key).map(|id| (id, chunk.record)));
                }
            })?;
        } else {
            for &index in only.iter().take(CHUNKS_MAX) {
                let id = ChunkId {
                    volume: volume.number,
                    index,
                };
                stored.push((id, self.chunk(id)?));
            }
        }
        let mut unserved = Vec::new();
        for (id, chunk) in stored {
            // Those that need no force do not count.
            if unserved.len() == CHUNKS_MAX {
                break;
            }
            for copy in &chunk.copies {
                if nodes.get(&copy.node).is_some_and(|standing| standing.is_heard) {
                    self.inquiries.ask(copy.node, id, anew, now);
                }
            }
            let (found, served) = self.look_at(id, &chunk, &volume, &nodes, now);
            match served {
                None => unserved.push(found),
                Some(_) if only.is_empty() => {}
                // A node that has not spoken yet may say that its copy is gone.
                Some(_) if found.is_awaited() => unserved.push(found),
                Some(why) => return Err(ControlError::ForceRefused { chunk: id, why }),
            }
        }
        Ok(unserved)
    }

    /// Has these copies served, each as the only one in sync, in epochs above all that is known; all of them or, should one be
    /// refused, none. What they lack is lost. The other copies are sent all that these have, or made anew elsewhere.
    pub fn force_serve(
        &mut self,
        name: &str,
        forced: &[ForcedCopy],
        now: Instant,
    ) -> Result<Vec<(ChunkId, Chunk)>, ControlError> {
        let volume = self.forcible(name)?;
        if let Some(lease) = self.writer(volume.number, now)? {
            return Err(ControlError::VolumeLeased {
                name: volume.name,
                holder: lease.holder,
                remaining: lease.remaining,
            });
        }
        let standings = self.standings(now)?;
        let mut steps: Vec<(ChunkId, u64, Chunk)> = Vec::new();
        for (position, forced) in forced.iter().enumerate() {
            let id = ChunkId {
                volume: volume.number,
                index: forced.index,
            };
            let refuse = |why: String| ControlError::ForceRefused { chunk: id, why };
            if position >= FORCED_MAX {
                return Err(refuse(format!(
                    "one call forces {FORCED_MAX} chunks at most; make another one for the others"
                )));
            }
            if steps.iter().any(|step| step.0 == id) {
                return Err(refuse("it is named twice".to_owned()));
            }
            let Some(stored) = self.read::<Chunk>(&keys::chunk(id))? else {
                return Err(self.no_such_chunk(id));
            };
            if stored.record.epoch != forced.epoch {
                return Err(ControlError::StaleProposal {
                    chunk: id,
                    expected: forced.epoch,
                    current: stored.record.epoch,
                });
            }
            let (found, served) = self.look_at(id, &stored.record, &volume, &standings, now);
            if let Some(why) = served {
                return Err(refuse(why));
            }
            let next = self.forced(&stored, &found, forced, &standings).map_err(refuse)?;
            steps.push((id, stored.revision, next));
        }
        let mut transaction = Transaction::new();
        for (id, revision, next) in &steps {
            let key = keys::chunk(*id);
            transaction.compare(key.clone(), *revision);
            transaction.put(key.clone(), next.encode(&key));
        }
        if !self.commit(&transaction)? {
            return Err(contended());
        }
        for (id, _, next) in &steps {
            self.care.note(*id, next, &volume);
        }
        Ok(steps.into_iter().map(|(id, _, next)| (id, next)).collect())
    }

    /// The volume, if its chunks can have lost anything.
    fn forcible(&self, name: &str) -> Result<Volume, ControlError> {
        let volume = self.volume_named(name)?;
        match volume.state {
            VolumeState::Ready => Ok(volume),
            VolumeState::Deleting => Err(ControlError::VolumeDeleting { name: volume.name }),
            VolumeState::Creating | VolumeState::Preparing => {
                Err(ControlError::ForceUnready { volume: volume.name })
            }
        }
    }

    /// What is known of a chunk and its copies, and why it needs no force, if it needs none.
    fn look_at(
        &self,
        id: ChunkId,
        chunk: &Chunk,
        volume: &Volume,
        standings: &BTreeMap<NodeId, Standing>,
        now: Instant,
    ) -> (Unserved, Option<String>) {
        let found = |copy: &Copy| {
            let standing = standings.get(&copy.node);
            let heard = self.heard.get(&copy.node);
            let is_heard = standing
                .is_some_and(|standing| standing.is_heard && standing.ended_through < standing.incarnation);
            let life = standing.map(|standing| standing.incarnation);
            let state = life
                .filter(|_| is_heard)
                .and_then(|life| self.inquiries.answer(copy.node, id, life));
            let known = life.zip(state.and_then(Option::as_ref));
            CopyFound {
                copy: *copy,
                silent: heard.map(|heard| now.since(heard.at)),
                is_heard,
                worth: known.map(|(life, state)| worth(copy, life, state)),
                state: state.cloned(),
                out: self.care.out_for(id, copy.node, now),
            }
        };
        let copies: Vec<CopyFound> = chunk.copies.iter().map(found).collect();
        let served = why_served(chunk, volume, standings, &copies);
        let may = |found: &&CopyFound| found.worth.is_some_and(|worth| worth >= Worth::LeftOut(Epoch(0)));
        let best = copies.iter().filter(may).max_by_key(|found| found.worth);
        // The one that has not spoken yet may be worth more.
        let is_awaited = copies.iter().any(CopyFound::is_awaited);
        let best = best.filter(|_| !is_awaited);
        let found = Unserved {
            id,
            epoch: chunk.epoch,
            in_sync: chunk.member_count(),
            living: having(chunk, standings, &copies),
            bytes: volume.geometry.chunk,
            proposed: best.map(|found| found.copy.node),
            copies,
        };
        (found, served)
    }

    /// The configuration that has the copy of this node alone; or why there is none.
    fn forced(
        &self,
        stored: &Stored<Chunk>,
        found: &Unserved,
        forced: &ForcedCopy,
        standings: &BTreeMap<NodeId, Standing>,
    ) -> Result<Chunk, String> {
        let (chunk, node) = (&stored.record, forced.node);
        let of_node = found.copies.iter().find(|found| found.copy.node == node);
        let Some(chosen) = of_node else {
            let nodes: Vec<String> = chunk.copies.iter().map(|copy| copy.node.to_string()).collect();
            return Err(format!(
                "node {node} has no copy of it; {} nodes have one: {}",
                nodes.len(),
                nodes.join(", ")
            ));
        };
        let standing = standings.get(&node).filter(|_| chosen.is_heard);
        let Some(life) = standing.map(|standing| standing.incarnation) else {
            return Err(match chosen.silent {
                Some(silent) => format!(
                    "node {node}, which has that copy, has been silent for {} s; start it, or name a copy of another node",
                    silent.as_secs()
                ),
                None => format!(
                    "node {node}, which has that copy, has not been heard since this master began to lead; start it, or name a copy of another node"
                ),
            });
        };
        match (&chosen.state, chosen.worth) {
            (None, _) => {
                return Err(format!(
                    "node {node} has not said yet how its copy is; repeat the call (a node of an earlier release does not say it: upgrade it)"
                ));
            }
            (Some(None), _) => {
                return Err(format!(
                    "node {node} lives and has no such copy, or cannot read what is noted of it; name a copy of another node"
                ));
            }
            (_, Some(Worth::Empty)) => {
                return Err(format!(
                    "the copy of node {node} never took part in anything: there is nothing in it"
                ));
            }
            _ => {}
        }
        is_as_shown(&found.copies, &forced.shown)?;
        let sealed = found
            .copies
            .iter()
            .filter_map(|found| found.state.as_ref()?.as_ref());
        let highest = sealed
            .map(|state| state.sealed)
            .max()
            .unwrap_or_default()
            .max(chunk.epoch);
        let epoch = highest
            .0
            .checked_add(Epoch::JUMP)
            .filter(|epoch| *epoch < EPOCH_MAX)
            .ok_or_else(|| format!("its epoch is {highest}, and none so far above it is left"))?;
        let copies = chunk.copies.iter().map(|copy| Copy {
            incarnation: Some(life).filter(|_| copy.node == node),
            ..*copy
        });
        Ok(Chunk {
            epoch: Epoch(epoch),
            write_node: node,
            copies: copies.collect(),
            recovery: false,
        })
    }
}
