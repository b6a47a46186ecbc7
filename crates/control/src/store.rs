//! Where the masters keep what must not be forgotten.
//!
//! The interface is the common part of an embedded store and of etcd v3: keys and values are
//! bytes, each key carries the revision at which it was last put, and a transaction compares
//! revisions and then puts and deletes, all or nothing. The store's revision grows with each
//! committed transaction, by how much is not said: in etcd the keys of others move it, too. Each
//! commit says which of our revisions it followed; who last knew another one knows that another
//! master has acted.
//!
//! Calls block until the store has answered; the masters make them on a thread of their own.

use thiserror::Error;

/// A value and the store's revision at which it was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes.
    pub value: Vec<u8>,
    /// The revision of the transaction that put them; never 0.
    pub revision: u64,
}

/// One key of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// What it holds.
    pub versioned: Versioned,
}

/// A condition of a transaction: the key was last put at this revision, or, with 0, is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key.
    pub key: Vec<u8>,
    /// The revision it must have.
    pub revision: u64,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sets the key, whether it was there or not.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes the key if it is there.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

/// Conditions and changes that are committed together or not at all. No key is changed twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All of these must hold.
    pub compares: Vec<Compare>,
    /// Then all of these are done.
    pub operations: Vec<Operation>,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// Durable.
    At {
        /// The store's revision since.
        revision: u64,
        /// The store's revision right before, so that nothing of ours was committed in between.
        previous: u64,
    },
    /// Some comparison failed; nothing was changed.
    Conflict,
}

/// Why the store did not answer. The transaction may have been committed or not.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// It cannot be reached or written now.
    #[error("the metadata store {store} cannot be used: {why}; the call may have taken effect, repeat it")]
    Unavailable {
        /// Which store.
        store: String,
        /// What it said.
        why: String,
    },
    /// The reign that this handle changes the store under has ended, or it only reads. Nothing was
    /// changed.
    #[error(
        "this master does not lead metadata store {store}, so nothing was changed; repeat the call, it goes to the one that leads"
    )]
    NotLeading {
        /// Which store.
        store: String,
    },
    /// More operations than a transaction may have: a mistake of ours.
    #[error("a transaction of {operations} operations exceeds the {limit} of metadata store {store}")]
    TooLarge {
        /// Which store.
        store: String,
        /// How many there were.
        operations: usize,
        /// How many there may be.
        limit: usize,
    },
}

/// The masters' store; see the module for what it promises.
pub trait MetadataStore {
    /// The revision of the last committed transaction; 0 before the first.
    fn revision(&self) -> Result<u64, StoreError>;

    /// What the key holds.
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError>;

    /// The first keys, at most `limit`, from `first` up to but not including `end`, in order.
    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError>;

    /// Commits; durable when it returns [`Committed::At`].
    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError>;

    /// The most comparisons, and the most operations, of one transaction.
    fn operations_max(&self) -> usize;
}

impl Transaction {
    /// A transaction without conditions and changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requires that the key was last put at `revision`, or, with 0, that it is absent.
    pub fn compare(&mut self, key: Vec<u8>, revision: u64) -> &mut Self {
        self.compares.push(Compare { key, revision });
        self
    }

    /// Sets a key.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> &mut Self {
        self.operations.push(Operation::Put { key, value });
        self
    }

    /// Removes a key.
    pub fn delete(&mut self, key: Vec<u8>) -> &mut Self {
        self.operations.push(Operation::Delete { key });
        self
    }

    /// How much of a transaction's limit is used.
    pub fn len(&self) -> usize {
        self.compares.len().max(self.operations.len())
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<S: MetadataStore + ?Sized> MetadataStore for &S {
    fn revision(&self) -> Result<u64, StoreError> {
        (**self).revision()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        (**self).get(key)
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        (**self).range(first, end, limit)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        (**self).commit(transaction)
    }

    fn operations_max(&self) -> usize {
        (**self).operations_max()
    }
}
