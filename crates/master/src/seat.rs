//! A master's store, of either kind, and its seat in it.

use std::sync::Arc;

use control::mastership::{Election, Leader, Seat};
use control::{Committed, Entry, MetadataStore, StoreError, Transaction, Versioned};

use crate::etcd::{Away, EtcdElection, EtcdStore, Forgotten};
use crate::redb_store::RedbStore;

/// A handle to either kind of store.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Redb(Arc<RedbStore>),
    Etcd(EtcdStore),
}

/// How a master comes to lead.
#[derive(Debug)]
pub(crate) enum Candidate {
    /// Only one process can have the file open: it leads.
    Redb { store: Arc<RedbStore>, leader: Leader },
    /// By a lease.
    Etcd(EtcdElection),
}

impl Candidate {
    /// The one master of an embedded store.
    pub(crate) fn alone(store: RedbStore, address: String) -> Self {
        Self::Redb {
            store: Arc::new(store),
            leader: Leader {
                address,
                since_unix_ms: crate::etcd::unix_ms(),
                reign: 1,
            },
        }
    }

    /// The masters that live, with when each was started.
    pub(crate) fn present(&self) -> Result<Vec<crate::etcd::Present>, StoreError> {
        match self {
            Self::Redb { leader, .. } => Ok(vec![crate::etcd::Present {
                address: leader.address.clone(),
                since_unix_ms: leader.since_unix_ms,
                release: Some(foundation::RELEASE.to_owned()),
            }]),
            Self::Etcd(election) => election.present(),
        }
    }
}

impl Candidate {
    /// The masters that are known and do not live; the one of an embedded store is this one.
    pub(crate) fn away(&self) -> Result<Vec<Away>, StoreError> {
        match self {
            Self::Redb { .. } => Ok(Vec::new()),
            Self::Etcd(election) => election.away(),
        }
    }

    /// Forgets a master that does not live.
    pub(crate) fn forget(&self, address: &str) -> Result<Forgotten, StoreError> {
        match self {
            Self::Redb { leader, .. } if leader.address == address => Ok(Forgotten::Lives),
            Self::Redb { .. } => Ok(Forgotten::Unknown),
            Self::Etcd(election) => election.forget(address),
        }
    }
}

impl Election for Candidate {
    type Store = Store;

    fn stand(&mut self) -> Result<Seat, StoreError> {
        match self {
            Self::Redb { leader, .. } => Ok(Seat::Ours(leader.clone())),
            Self::Etcd(election) => election.stand(),
        }
    }

    fn look(&mut self) -> Result<Seat, StoreError> {
        match self {
            Self::Redb { leader, .. } => Ok(Seat::Ours(leader.clone())),
            Self::Etcd(election) => election.look(),
        }
    }

    fn has_others(&self) -> Result<bool, StoreError> {
        match self {
            Self::Redb { .. } => Ok(false),
            Self::Etcd(election) => election.has_others(),
        }
    }

    fn resign(&mut self, reign: u64) -> Result<(), StoreError> {
        match self {
            // There is nobody else: it is never asked to.
            Self::Redb { .. } => Ok(()),
            Self::Etcd(election) => election.resign(reign),
        }
    }

    fn store(&self, reign: Option<u64>) -> Store {
        match self {
            Self::Redb { store, .. } => Store::Redb(store.clone()),
            Self::Etcd(election) => Store::Etcd(election.store(reign)),
        }
    }
}

impl MetadataStore for Store {
    fn revision(&self) -> Result<u64, StoreError> {
        match self {
            Self::Redb(store) => store.revision(),
            Self::Etcd(store) => store.revision(),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        match self {
            Self::Redb(store) => store.get(key),
            Self::Etcd(store) => store.get(key),
        }
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        match self {
            Self::Redb(store) => store.range(first, end, limit),
            Self::Etcd(store) => store.range(first, end, limit),
        }
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        match self {
            Self::Redb(store) => store.commit(transaction),
            Self::Etcd(store) => store.commit(transaction),
        }
    }

    fn operations_max(&self) -> usize {
        match self {
            Self::Redb(store) => store.operations_max(),
            Self::Etcd(store) => store.operations_max(),
        }
    }
}
