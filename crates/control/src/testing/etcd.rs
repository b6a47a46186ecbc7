//! etcd, as far as masters use it: revisions that other programs move, transactions that compare,
//! leases, one key that says who leads, members that cannot reach it, a quorum that is lost.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use foundation::{Instant, Random};

use crate::mastership::{Election, Leader, Seat};
use crate::model::{Chunk, DiskMove, Node, Number, Reservations, Snapshot, Volume};
use crate::record::Record;
use crate::store::{Committed, Entry, MetadataStore, Operation, StoreError, Transaction, Versioned};
use crate::{ChunkId, DiskId, NodeId, SnapshotKey, VolumeNumber, keys};

/// What becomes of a commit whose answer gets lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// It never takes effect.
    NotDone,
    /// It has taken effect.
    Done,
    /// It is on its way, and takes effect at this time if it still may: compared then, and under its reign.
    DoneAt(Instant),
}

/// A commit that is on its way and that nobody waits for any more.
#[derive(Debug)]
struct Late {
    at: Instant,
    master: usize,
    reign: Option<u64>,
    transaction: Transaction,
}

/// etcd, with the faults that masters see of it. Times are its own.
#[derive(Debug)]
pub struct Etcd {
    now: Instant,
    /// The term of a master's lease.
    lease: Duration,
    /// etcd's own revision, which everybody's keys move.
    revision: u64,
    /// That of our last transaction.
    ours: u64,
    keys: BTreeMap<Vec<u8>, Versioned>,
    /// When each master's lease ends.
    leases: BTreeMap<usize, Instant>,
    leader: Option<(usize, Leader)>,
    cut_off: BTreeMap<usize, Instant>,
    no_quorum_until: Instant,
    had_quorum: bool,
    /// The answers to the next commits get lost.
    lost: VecDeque<Lost>,
    late: Vec<Late>,
    /// Changes of chunks that nobody has taken yet.
    changed: Vec<(ChunkId, Option<Chunk>)>,
    random: Random,
}

impl Etcd {
    /// An empty store, in which a master's lease lasts `lease`.
    pub fn new(seed: u64, lease: Duration) -> Self {
        Self {
            now: Instant::from_nanos(0),
            lease,
            revision: 0,
            ours: 0,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            leader: None,
            cut_off: BTreeMap::new(),
            no_quorum_until: Instant::from_nanos(0),
            had_quorum: true,
            lost: VecDeque::new(),
            late: Vec::new(),
            changed: Vec::new(),
            random: Random::from_seed(seed ^ 0xe7cd),
        }
    }

    /// Time goes on; leases end while there is a quorum to end them. A quorum that returns has
    /// elected a leader, which lets every lease last its full term again.
    pub fn pass(&mut self, now: Instant) {
        self.now = now;
        let has_quorum = self.has_quorum();
        if has_quorum && !self.had_quorum {
            for end in self.leases.values_mut() {
                *end = now + self.lease;
            }
        }
        self.had_quorum = has_quorum;
        if has_quorum {
            self.leases.retain(|_, end| now < *end);
            if let Some((master, _)) = &self.leader
                && !self.leases.contains_key(master)
            {
                self.leader = None;
                self.revision += 1;
            }
            self.take_late();
        }
    }

    fn take_late(&mut self) {
        let now = self.now;
        let (due, left) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|late| late.at <= now);
        self.late = left;
        for late in due as Vec<Late> {
            if self.reigns(late.master, late.reign) {
                self.commit(&late.transaction);
            }
        }
    }

    fn reigns(&self, master: usize, reign: Option<u64>) -> bool {
        let leader = self.leader.as_ref();
        leader.is_some_and(|(seated, leader)| *seated == master && Some(leader.reign) == reign)
    }

    /// Whether it has a leader of its own, and answers.
    pub fn has_quorum(&self) -> bool {
        self.now >= self.no_quorum_until
    }

    /// It has no leader until then: nothing is read or written, and no lease ends.
    pub fn lose_quorum(&mut self, until: Instant) {
        self.no_quorum_until = until;
    }

    /// A master does not reach it until then.
    pub fn cut_off(&mut self, master: usize, until: Instant) {
        self.cut_off.insert(master, until);
    }

    /// The answers to so many of the next commits get lost, and not what was to be lost until now.
    pub fn lose_answers(&mut self, lost: Vec<Lost>) {
        self.lost = lost.into();
    }

    /// Nothing is wrong any more; what is on its way still comes.
    pub fn heal(&mut self) {
        self.cut_off.clear();
        self.no_quorum_until = self.now;
        self.lost.clear();
    }

    /// Whether a commit that nobody waits for is still on its way.
    pub fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// A process that has ended keeps no lease alive; what it had lasts until its end.
    pub fn forget(&mut self, master: usize) {
        // A new process has a lease of its own; the old one's seat waits for its end.
        if let Some((seated, _)) = &mut self.leader
            && *seated == master
        {
            let end = self.leases.remove(&master).unwrap_or(self.now);
            *seated = usize::MAX;
            self.leases.insert(usize::MAX, end);
        }
    }

    /// A master keeps its lease, if it still has it and is heard.
    pub fn keep_alive(&mut self, master: usize, now: Instant) {
        if self.check(master).is_ok()
            && let Some(end) = self.leases.get_mut(&master)
        {
            *end = now + self.lease;
        }
    }

    /// Other programs move its revision.
    pub fn others_write(&mut self) {
        self.revision += self.random.below(4);
    }

    /// The master that has the seat; none if it has none, or that one's process has ended.
    pub fn leader(&self) -> Option<usize> {
        let (master, _) = self.leader.as_ref()?;
        (*master != usize::MAX).then_some(*master)
    }

    /// Every chunk.
    pub fn chunks(&self) -> BTreeMap<ChunkId, Chunk> {
        let end = keys::end_of(keys::CHUNKS);
        let range = self.keys.range(keys::CHUNKS.to_vec()..end);
        let chunk = |(key, found): (&Vec<u8>, &Versioned)| {
            let chunk = Chunk::decode(key, &found.value).expect("what was encoded");
            Some((keys::parse_chunk(key)?, chunk))
        };
        range.filter_map(chunk).collect()
    }

    /// Each change of a chunk since this was last asked, in the order of the commits; none where one was removed.
    pub fn take_changes(&mut self) -> Vec<(ChunkId, Option<Chunk>)> {
        std::mem::take(&mut self.changed)
    }

    /// Bytes promised to copies on each disk.
    pub fn allocations(&self) -> BTreeMap<(NodeId, DiskId), u64> {
        let end = keys::end_of(keys::ALLOCATIONS);
        let range = self.keys.range(keys::ALLOCATIONS.to_vec()..end);
        let bytes = |(key, found): (&Vec<u8>, &Versioned)| {
            let number = Number::decode(key, &found.value).expect("what was encoded");
            Some((keys::parse_allocation(key)?, number.0))
        };
        range.filter_map(bytes).collect()
    }

    /// The copies that move between the disks of their nodes.
    pub fn disk_moves(&self) -> BTreeMap<ChunkId, DiskMove> {
        let end = keys::end_of(keys::DISK_MOVES);
        let range = self.keys.range(keys::DISK_MOVES.to_vec()..end);
        let moving = |(key, found): (&Vec<u8>, &Versioned)| {
            let moving = DiskMove::decode(key, &found.value).expect("what was encoded");
            Some((keys::parse_disk_move(key)?, moving))
        };
        range.filter_map(moving).collect()
    }

    /// Every volume, in whatever state.
    pub fn volumes(&self) -> Vec<VolumeNumber> {
        let end = keys::end_of(keys::VOLUMES);
        let range = self.keys.range(keys::VOLUMES.to_vec()..end);
        range
            .filter_map(|(key, _)| keys::parse_volume(keys::VOLUMES, key))
            .collect()
    }

    /// A volume's record.
    pub fn volume(&self, number: VolumeNumber) -> Option<Volume> {
        let key = keys::volume(number);
        let found = self.keys.get(&key)?;
        Some(Volume::decode(&key, &found.value).expect("what was encoded"))
    }

    /// What the hosts of a volume have reserved, if they ever have.
    pub fn reservations(&self, number: VolumeNumber) -> Option<Reservations> {
        let key = keys::reservations(number);
        let found = self.keys.get(&key)?;
        Some(Reservations::decode(&key, &found.value).expect("what was encoded"))
    }

    /// A node's record.
    pub fn node(&self, node: NodeId) -> Option<Node> {
        let key = keys::node(node);
        let found = self.keys.get(&key)?;
        Some(Node::decode(&key, &found.value).expect("what was encoded"))
    }

    /// A snapshot's record.
    pub fn snapshot(&self, (volume, number): SnapshotKey) -> Option<Snapshot> {
        let key = keys::snapshot(volume, number);
        let found = self.keys.get(&key)?;
        Some(Snapshot::decode(&key, &found.value).expect("what was encoded"))
    }

    /// Every snapshot's record.
    pub fn snapshots(&self) -> BTreeMap<SnapshotKey, Snapshot> {
        let end = keys::end_of(keys::SNAPSHOTS);
        let range = self.keys.range(keys::SNAPSHOTS.to_vec()..end);
        let snapshot = |(key, found): (&Vec<u8>, &Versioned)| {
            let snapshot = Snapshot::decode(key, &found.value).expect("what was encoded");
            Some((keys::parse_snapshot(key)?, snapshot))
        };
        range.filter_map(snapshot).collect()
    }

    /// What is drained.
    pub fn drains(&self) -> Vec<(NodeId, Option<DiskId>)> {
        let end = keys::end_of(keys::DRAINS);
        let range = self.keys.range(keys::DRAINS.to_vec()..end);
        range.filter_map(|(key, _)| keys::parse_drain(key)).collect()
    }

    fn check(&self, master: usize) -> Result<(), StoreError> {
        let is_cut_off = self.cut_off.get(&master).is_some_and(|&until| self.now < until);
        let why = match (is_cut_off, self.has_quorum()) {
            (true, _) => "no answer",
            (false, false) => "etcdserver: no leader",
            (false, true) => return Ok(()),
        };
        Err(unavailable(why))
    }

    fn commit(&mut self, transaction: &Transaction) -> Committed {
        let found = |key: &[u8]| self.keys.get(key).map_or(0, |found| found.revision);
        if !transaction
            .compares
            .iter()
            .all(|compare| found(&compare.key) == compare.revision)
        {
            return Committed::Conflict;
        }
        let previous = self.ours;
        self.revision += 1;
        let revision = self.revision;
        self.ours = revision;
        for operation in &transaction.operations {
            let (Operation::Put { key, .. } | Operation::Delete { key }) = operation;
            if let Some(id) = keys::parse_chunk(key) {
                let chunk = match operation {
                    Operation::Put { key, value } => Chunk::decode(key, value).ok(),
                    Operation::Delete { .. } => None,
                };
                self.changed.push((id, chunk));
            }
            match operation {
                Operation::Put { key, value } => {
                    let value = value.clone();
                    self.keys.insert(key.clone(), Versioned { value, revision });
                }
                Operation::Delete { key } => drop(self.keys.remove(key)),
            }
        }
        Committed::At { revision, previous }
    }
}

fn unavailable(why: &str) -> StoreError {
    StoreError::Unavailable {
        store: "etcd in memory".to_owned(),
        why: why.to_owned(),
    }
}

/// A master's way to etcd, under a reign or to read.
#[derive(Debug)]
pub struct Handle {
    etcd: Rc<RefCell<Etcd>>,
    master: usize,
    reign: Option<u64>,
}

impl MetadataStore for Handle {
    fn revision(&self) -> Result<u64, StoreError> {
        let etcd = self.etcd.borrow();
        etcd.check(self.master)?;
        Ok(etcd.ours)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        let etcd = self.etcd.borrow();
        etcd.check(self.master)?;
        Ok(etcd.keys.get(key).cloned())
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        let etcd = self.etcd.borrow();
        etcd.check(self.master)?;
        if first >= end {
            return Ok(Vec::new());
        }
        let range = etcd.keys.range(first.to_vec()..end.to_vec()).take(limit);
        let entry = |(key, versioned): (&Vec<u8>, &Versioned)| Entry {
            key: key.clone(),
            versioned: versioned.clone(),
        };
        Ok(range.map(entry).collect())
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let mut etcd = self.etcd.borrow_mut();
        etcd.check(self.master)?;
        if !etcd.reigns(self.master, self.reign) {
            return Err(StoreError::NotLeading {
                store: "etcd in memory".to_owned(),
            });
        }
        match etcd.lost.pop_front() {
            Some(lost) => {
                match lost {
                    Lost::NotDone => {}
                    Lost::Done => drop(etcd.commit(transaction)),
                    Lost::DoneAt(at) => etcd.late.push(Late {
                        at,
                        master: self.master,
                        reign: self.reign,
                        transaction: transaction.clone(),
                    }),
                }
                Err(unavailable("the answer was lost"))
            }
            None => Ok(etcd.commit(transaction)),
        }
    }

    fn operations_max(&self) -> usize {
        12
    }
}

/// How a master stands for election.
#[derive(Debug)]
pub struct EtcdElection {
    etcd: Rc<RefCell<Etcd>>,
    master: usize,
}

impl EtcdElection {
    /// One of the masters, by its number.
    pub fn new(etcd: Rc<RefCell<Etcd>>, master: usize) -> Self {
        Self { etcd, master }
    }
}

impl Election for EtcdElection {
    type Store = Handle;

    fn stand(&mut self) -> Result<Seat, StoreError> {
        let seat = self.look()?;
        if seat != Seat::Vacant {
            return Ok(seat);
        }
        let mut etcd = self.etcd.borrow_mut();
        etcd.revision += 1;
        let leader = Leader {
            address: self.master.to_string(),
            since_unix_ms: 0,
            reign: etcd.revision,
        };
        etcd.leader = Some((self.master, leader.clone()));
        Ok(Seat::Ours(leader))
    }

    fn look(&mut self) -> Result<Seat, StoreError> {
        let mut etcd = self.etcd.borrow_mut();
        etcd.check(self.master)?;
        let end = etcd.now + etcd.lease;
        etcd.leases.entry(self.master).or_insert(end);
        Ok(match &etcd.leader {
            None => Seat::Vacant,
            Some((master, leader)) if *master == self.master => Seat::Ours(leader.clone()),
            Some((_, leader)) => Seat::Theirs(leader.clone()),
        })
    }

    fn has_others(&self) -> Result<bool, StoreError> {
        let etcd = self.etcd.borrow();
        etcd.check(self.master)?;
        Ok(etcd
            .leases
            .keys()
            .any(|&other| other != self.master && other != usize::MAX))
    }

    fn resign(&mut self, reign: u64) -> Result<(), StoreError> {
        let mut etcd = self.etcd.borrow_mut();
        etcd.check(self.master)?;
        if etcd.reigns(self.master, Some(reign)) {
            etcd.leader = None;
            etcd.revision += 1;
        }
        Ok(())
    }

    fn store(&self, reign: Option<u64>) -> Handle {
        Handle {
            etcd: self.etcd.clone(),
            master: self.master,
            reign,
        }
    }
}
