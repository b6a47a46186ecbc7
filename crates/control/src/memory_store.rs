//! A store in memory, for tests and simulation.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::store::{Committed, Entry, MetadataStore, Operation, StoreError, Transaction, Versioned};

/// Keeps everything in one map, with the limits of etcd as it is shipped.
#[derive(Debug)]
pub struct MemoryStore {
    state: RefCell<State>,
    operations_max: usize,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    keys: BTreeMap<Vec<u8>, Versioned>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store with etcd's default of 128 operations in a transaction.
    pub fn new() -> Self {
        Self::with_operations_max(128)
    }

    /// An empty store with another limit.
    pub fn with_operations_max(operations_max: usize) -> Self {
        Self {
            state: RefCell::default(),
            operations_max,
        }
    }
}

impl MetadataStore for MemoryStore {
    fn revision(&self) -> Result<u64, StoreError> {
        Ok(self.state.borrow().revision)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        Ok(self.state.borrow().keys.get(key).cloned())
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        if first >= end {
            return Ok(Vec::new());
        }
        let bounds = (Bound::Included(first), Bound::Excluded(end));
        let state = self.state.borrow();
        let entries = state.keys.range::<[u8], _>(bounds).take(limit);
        Ok(entries
            .map(|(key, versioned)| Entry {
                key: key.clone(),
                versioned: versioned.clone(),
            })
            .collect())
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        if transaction.len() > self.operations_max {
            return Err(StoreError::TooLarge {
                store: "in memory".to_owned(),
                operations: transaction.len(),
                limit: self.operations_max,
            });
        }
        let mut state = self.state.borrow_mut();
        let holds = |compare: &crate::store::Compare| {
            state.keys.get(&compare.key).map_or(0, |found| found.revision) == compare.revision
        };
        if !transaction.compares.iter().all(holds) {
            return Ok(Committed::Conflict);
        }
        let previous = state.revision;
        let revision = previous + 1;
        state.revision = revision;
        for operation in &transaction.operations {
            match operation {
                Operation::Put { key, value } => {
                    let value = value.clone();
                    state.keys.insert(key.clone(), Versioned { value, revision });
                }
                Operation::Delete { key } => drop(state.keys.remove(key)),
            }
        }
        Ok(Committed::At { revision, previous })
    }

    fn operations_max(&self) -> usize {
        self.operations_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_all_or_nothing() {
        let store = MemoryStore::new();
        let mut first = Transaction::new();
        first.compare(b"a".to_vec(), 0).put(b"a".to_vec(), b"1".to_vec());
        let at = |revision, previous| Ok(Committed::At { revision, previous });
        assert_eq!(store.commit(&first), at(1, 0));
        assert_eq!(store.commit(&first), Ok(Committed::Conflict));
        let mut both = Transaction::new();
        both.compare(b"a".to_vec(), 1).compare(b"b".to_vec(), 7);
        both.put(b"b".to_vec(), b"2".to_vec()).delete(b"a".to_vec());
        assert_eq!(store.commit(&both), Ok(Committed::Conflict));
        assert_eq!(store.get(b"a").unwrap().unwrap().revision, 1);
        both.compares[1].revision = 0;
        assert_eq!(store.commit(&both), at(2, 1));
        assert_eq!(store.get(b"a"), Ok(None));
        let entries = store.range(b"", b"z", 10).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(
            (entries[0].key.as_slice(), entries[0].versioned.revision),
            (b"b".as_slice(), 2)
        );
        assert_eq!(store.range(b"b", b"b", 10), Ok(Vec::new()));
        assert_eq!(store.revision(), Ok(2));
    }
}
