//! etcd, as far as masters use it: revisions that other programs move, transactions that compare,
//! leases, one key that says who leads, members that cannot reach it, a quorum that is lost.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use foundation::{Instant, Random};

use crate::mastership::{Election, Leader, Seat};
use crate::model::Chunk;
use crate::record::Record;
use crate::store::{Committed, Entry, MetadataStore, Operation, StoreError, Transaction, Versioned};
use crate::{ChunkId, keys};

/// The term of a master's lease.
pub(super) const LEASE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Etcd {
    now: Instant,
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
    /// The next commit's answer gets lost; whether the commit takes effect.
    pub(super) lose_answer: Option<bool>,
    random: Random,
}

impl Etcd {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: Instant::from_nanos(0),
            revision: 0,
            ours: 0,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            leader: None,
            cut_off: BTreeMap::new(),
            no_quorum_until: Instant::from_nanos(0),
            had_quorum: true,
            lose_answer: None,
            random: Random::from_seed(seed ^ 0xe7cd),
        }
    }

    /// Time goes on; leases end while there is a quorum to end them. A quorum that returns has
    /// elected a leader, which lets every lease last its full term again.
    pub(super) fn pass(&mut self, now: Instant) {
        self.now = now;
        let has_quorum = self.has_quorum();
        if has_quorum && !self.had_quorum {
            for end in self.leases.values_mut() {
                *end = now + LEASE;
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
        }
    }

    fn has_quorum(&self) -> bool {
        self.now >= self.no_quorum_until
    }

    pub(super) fn lose_quorum(&mut self, until: Instant) {
        self.no_quorum_until = until;
    }

    pub(super) fn cut_off(&mut self, master: usize, until: Instant) {
        self.cut_off.insert(master, until);
    }

    pub(super) fn heal(&mut self) {
        self.cut_off.clear();
        self.no_quorum_until = self.now;
        self.lose_answer = None;
    }

    /// A process that has ended keeps no lease alive; what it had lasts until its end.
    pub(super) fn forget(&mut self, master: usize) {
        // A new process has a lease of its own; the old one's seat waits for its end.
        if let Some((seated, _)) = &mut self.leader
            && *seated == master
        {
            let end = self.leases.remove(&master).unwrap_or(self.now);
            *seated = usize::MAX;
            self.leases.insert(usize::MAX, end);
        }
    }

    pub(super) fn keep_alive(&mut self, master: usize, now: Instant) {
        if self.check(master).is_ok()
            && let Some(end) = self.leases.get_mut(&master)
        {
            *end = now + LEASE;
        }
    }

    pub(super) fn others_write(&mut self) {
        self.revision += self.random.below(4);
    }

    pub(super) fn leader(&self) -> Option<usize> {
        let (master, _) = self.leader.as_ref()?;
        (*master != usize::MAX).then_some(*master)
    }

    pub(super) fn chunks(&self) -> BTreeMap<ChunkId, Chunk> {
        let end = keys::end_of(keys::CHUNKS);
        let range = self.keys.range(keys::CHUNKS.to_vec()..end);
        let chunk = |(key, found): (&Vec<u8>, &Versioned)| {
            let chunk = Chunk::decode(key, &found.value).expect("what was encoded");
            Some((keys::parse_chunk(key)?, chunk))
        };
        range.filter_map(chunk).collect()
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
pub(super) struct Handle {
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
        let reigns = etcd
            .leader
            .as_ref()
            .is_some_and(|(master, leader)| *master == self.master && Some(leader.reign) == self.reign);
        if !reigns {
            return Err(StoreError::NotLeading {
                store: "etcd in memory".to_owned(),
            });
        }
        match etcd.lose_answer.take() {
            Some(takes_effect) => {
                if takes_effect {
                    etcd.commit(transaction);
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
pub(super) struct EtcdElection {
    etcd: Rc<RefCell<Etcd>>,
    master: usize,
}

impl EtcdElection {
    pub(super) fn new(etcd: Rc<RefCell<Etcd>>, master: usize) -> Self {
        Self { etcd, master }
    }
}

impl Election for EtcdElection {
    type Store = Handle;

    fn stand(&mut self) -> Result<Seat, StoreError> {
        let mut etcd = self.etcd.borrow_mut();
        etcd.check(self.master)?;
        let end = etcd.now + LEASE;
        etcd.leases.entry(self.master).or_insert(end);
        if let Some((master, leader)) = &etcd.leader {
            let leader = leader.clone();
            return Ok(match *master == self.master {
                true => Seat::Ours(leader),
                false => Seat::Theirs(leader),
            });
        }
        etcd.revision += 1;
        let leader = Leader {
            address: self.master.to_string(),
            since_unix_ms: 0,
            reign: etcd.revision,
        };
        etcd.leader = Some((self.master, leader.clone()));
        Ok(Seat::Ours(leader))
    }

    fn store(&self, reign: Option<u64>) -> Handle {
        Handle {
            etcd: self.etcd.clone(),
            master: self.master,
            reign,
        }
    }
}
