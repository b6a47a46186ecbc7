//! What changed since a revision, for those who keep a copy of the map.

use std::collections::{BTreeSet, VecDeque};

use crate::controller::Controller;
use crate::error::ControlError;
use crate::identity::{ChunkId, NodeId, Uuid, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Node, Volume};
use crate::store::{MetadataStore, Operation, Transaction};

/// Whose map it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// A client of one volume.
    Volume(VolumeNumber),
    /// A node: the chunks it has copies of, and all volumes.
    Node(NodeId),
    /// Everything, for a master that reads once what many ask for.
    All,
}

impl Scope {
    /// Whether a chunk is in the map.
    pub fn has_chunk(self, id: ChunkId, chunk: &Chunk) -> bool {
        match self {
            Scope::Volume(number) => id.volume == number,
            Scope::Node(node) => chunk.has_copy_on(node),
            Scope::All => true,
        }
    }

    /// Whether a volume's own record is in the map.
    pub fn has_volume(self, number: VolumeNumber) -> bool {
        match self {
            Scope::Volume(own) => own == number,
            Scope::Node(_) | Scope::All => true,
        }
    }
}

/// A part of a map. Records may be newer than `revision`; they come again then, unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Everything committed up to here is contained, once the last part has come.
    pub revision: u64,
    /// Volumes that are new or changed.
    pub volumes: Vec<Volume>,
    /// Volumes that were deleted. Their numbers are never used again.
    pub removed_volumes: Vec<VolumeNumber>,
    /// Chunks that are new or changed.
    pub chunks: Vec<(ChunkId, Chunk)>,
    /// Nodes that are new or changed.
    pub nodes: Vec<(NodeId, Node)>,
    /// Where the next part begins; none behind the last one.
    pub next: Option<ChunkId>,
}

/// The keys changed lately. A hint: what it does not know is read from the store.
#[derive(Clone, Debug)]
pub(crate) struct ChangeLog {
    /// Every change after this revision, up to `end`, is in `keys`.
    start: u64,
    end: u64,
    keys: VecDeque<(u64, Vec<u8>)>,
    kept: usize,
    strangers: u64,
}

impl ChangeLog {
    pub(crate) fn new(revision: u64, kept: usize) -> Self {
        Self {
            start: revision,
            end: revision,
            keys: VecDeque::new(),
            kept,
            strangers: 0,
        }
    }

    /// What is known goes up to here.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn committed(&mut self, previous: u64, revision: u64, transaction: &Transaction) {
        // What lies between what is known and what this followed, another master has committed.
        self.seen(previous);
        self.end = revision;
        for operation in &transaction.operations {
            let (Operation::Put { key, .. } | Operation::Delete { key }) = operation;
            self.keys.push_back((revision, key.clone()));
        }
        while self.keys.len() > self.kept {
            let (dropped, _) = self.keys.pop_front().expect("it is longer than its bound");
            self.start = dropped;
        }
        // A transaction of which a part was dropped is not known.
        while self
            .keys
            .front()
            .is_some_and(|(revision, _)| *revision <= self.start)
        {
            self.keys.pop_front();
        }
    }

    pub(crate) fn seen(&mut self, revision: u64) {
        if revision != self.end {
            *self = Self {
                strangers: self.strangers + 1,
                ..Self::new(revision, self.kept)
            };
        }
    }

    /// How often it was found that somebody else had committed something.
    pub(crate) fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Whether nothing under this prefix has changed after `known`, as far as is known.
    pub(crate) fn is_quiet(&self, prefix: &[u8], known: u64) -> bool {
        self.start <= known
            && known <= self.end
            && self
                .keys
                .iter()
                .rev()
                .take_while(|(revision, _)| *revision > known)
                .all(|(_, key)| !key.starts_with(prefix))
    }

    fn since(&self, known: u64) -> Option<BTreeSet<&[u8]>> {
        if known < self.start || known > self.end {
            return None;
        }
        let after = self.keys.partition_point(|(revision, _)| *revision <= known);
        Some(self.keys.range(after..).map(|(_, key)| key.as_slice()).collect())
    }
}

impl<S: MetadataStore> Controller<S> {
    /// What was committed after `known`, or none when that is too long ago (or of another store):
    /// then [`Controller::snapshot`] gives everything.
    pub fn changes(&mut self, scope: Scope, known: u64) -> Result<Option<Changes>, ControlError> {
        self.changes.seen(self.store.revision()?);
        let Some(keys) = self.changes.since(known) else {
            return Ok(None);
        };
        let mut changes = Changes {
            revision: self.changes.end,
            ..Changes::default()
        };
        for key in keys {
            self.add_change(scope, key, &mut changes)?;
        }
        Ok(Some(changes))
    }

    fn add_change(&self, scope: Scope, key: &[u8], changes: &mut Changes) -> Result<(), ControlError> {
        let wants = |number| scope.has_volume(number);
        if let Some(id) = keys::parse_chunk(key) {
            if wants(id.volume)
                && let Some(stored) = self.read::<Chunk>(key)?
                && scope.has_chunk(id, &stored.record)
            {
                changes.chunks.push((id, stored.record));
            }
        } else if let Some(number) = keys::parse_volume(keys::VOLUMES, key) {
            if wants(number)
                && let Some(stored) = self.read::<Volume>(key)?
            {
                changes.volumes.push(stored.record);
            }
        } else if let Some(number) = keys::parse_volume(keys::TOMBSTONES, key) {
            if wants(number) {
                changes.removed_volumes.push(number);
            }
        } else if let Some(id) = key.strip_prefix(keys::NODES).and_then(Uuid::from_bytes)
            && let Some(stored) = self.read::<Node>(key)?
        {
            changes.nodes.push((NodeId(id), stored.record));
        }
        Ok(())
    }

    /// Everything in `scope`, in parts of about `limit` chunks: the first with `from` none, which
    /// has the volumes and nodes, the others as [`Changes::next`] says.
    pub fn snapshot(
        &self,
        scope: Scope,
        from: Option<ChunkId>,
        limit: usize,
    ) -> Result<Changes, ControlError> {
        let mut part = Changes {
            revision: self.store.revision()?,
            ..Changes::default()
        };
        if from.is_none() {
            self.add_all_but_chunks(scope, &mut part)?;
        }
        let (all_first, end) = match scope {
            Scope::Volume(number) => keys::chunks_of(number, 0),
            Scope::Node(_) | Scope::All => (keys::CHUNKS.to_vec(), keys::end_of(keys::CHUNKS)),
        };
        let mut first = from.map_or(all_first, keys::chunk);
        let page = limit.clamp(1, super::PAGE);
        loop {
            let entries = self.store.range(&first, &end, page)?;
            for entry in &entries {
                use crate::record::Record;
                let chunk = Chunk::decode(&entry.key, &entry.versioned.value)?;
                if let Some(id) = keys::parse_chunk(&entry.key)
                    && scope.has_chunk(id, &chunk)
                {
                    part.chunks.push((id, chunk));
                }
            }
            let Some(last) = entries.last().filter(|_| entries.len() == page) else {
                return Ok(part);
            };
            first = keys::after(&last.key);
            if part.chunks.len() >= limit {
                part.next = keys::parse_chunk(&last.key).and_then(following);
                return Ok(part);
            }
        }
    }

    fn add_all_but_chunks(&self, scope: Scope, part: &mut Changes) -> Result<(), ControlError> {
        let wants = |number| scope.has_volume(number);
        let end = keys::end_of(keys::VOLUMES);
        self.read_range::<Volume>(keys::VOLUMES.to_vec(), &end, |_, stored| {
            if wants(stored.record.number) {
                part.volumes.push(stored.record);
            }
        })?;
        let end = keys::end_of(keys::TOMBSTONES);
        self.read_range::<crate::model::Number>(keys::TOMBSTONES.to_vec(), &end, |key, _| {
            part.removed_volumes
                .extend(keys::parse_volume(keys::TOMBSTONES, key).filter(|&number| wants(number)));
        })?;
        let end = keys::end_of(keys::NODES);
        self.read_range::<Node>(keys::NODES.to_vec(), &end, |key, stored| {
            if let Some(id) = key.strip_prefix(keys::NODES).and_then(Uuid::from_bytes) {
                part.nodes.push((NodeId(id), stored.record));
            }
        })
    }
}

/// The chunk behind `id` in the order of the store.
fn following(id: ChunkId) -> Option<ChunkId> {
    match id.index.checked_add(1) {
        Some(index) => Some(ChunkId { index, ..id }),
        None => Some(ChunkId {
            volume: VolumeNumber(id.volume.0.checked_add(1)?),
            index: 0,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &[u8]) -> Transaction {
        let mut transaction = Transaction::new();
        transaction.put(key.to_vec(), Vec::new());
        transaction
    }

    #[test]
    fn the_log_answers_only_for_what_it_has_seen_whole() {
        let mut log = ChangeLog::new(10, 3);
        for (revision, key) in [(11, b"a"), (12, b"b"), (13, b"a")] {
            log.committed(revision - 1, revision, &put(key));
        }
        let since = |log: &ChangeLog, known| log.since(known).map(|keys| keys.len());
        assert_eq!(since(&log, 10), Some(2));
        assert_eq!(since(&log, 12), Some(1));
        assert_eq!(since(&log, 13), Some(0));
        assert_eq!(since(&log, 9), None);
        assert_eq!(since(&log, 14), None);
        assert!(log.is_quiet(b"b", 12) && !log.is_quiet(b"b", 11) && !log.is_quiet(b"b", 9));
        log.committed(13, 14, &put(b"d"));
        assert_eq!((since(&log, 10), since(&log, 11)), (None, Some(3)));
        log.committed(15, 16, &put(b"e"));
        assert_eq!(
            (since(&log, 14), since(&log, 15)),
            (None, Some(1)),
            "15 was another master's"
        );
        log.seen(20);
        assert_eq!((since(&log, 16), since(&log, 20)), (None, Some(0)));
        log.committed(20, 27, &put(b"f"));
        assert_eq!(
            (since(&log, 20), since(&log, 27)),
            (Some(1), Some(0)),
            "21 to 26 were other people's keys"
        );
    }
}
