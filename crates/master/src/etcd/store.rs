//! The records, their revisions, and transactions that a reign fences.

use control::{Committed, Entry, MetadataStore, Operation, StoreError, Transaction, Versioned};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};

use super::link::{ANSWER_BYTES_MAX, Link, Repeat};

/// etcd's default (`--max-txn-ops`, 128) less the comparison of the reign, and the key `revision`.
const OPERATIONS_MAX: usize = 127;

/// A handle to the records of a cluster in an etcd. Under a reign it changes them as long as that lasts; without one
/// it only reads. Cheap to clone. Its calls block and may not be made on a thread that runs an event loop.
#[derive(Clone, Debug)]
pub struct EtcdStore {
    link: Link,
    reign: Option<u64>,
}

/// A key of ours below the cluster's prefix.
pub(super) fn key(link: &Link, name: &str) -> Vec<u8> {
    format!("{}/{name}", link.config().prefix).into_bytes()
}

pub(super) const LEADER: &str = "leader";
pub(super) const MASTERS: &str = "masters/";
pub(super) const RELEASES: &str = "releases/";
pub(super) const KNOWN: &str = "known/";
const REVISION: &str = "revision";
const RECORDS: &str = "m/";
/// What the key `revision` holds: the version of how a cluster is kept in etcd.
const VERSION: &[u8] = b"1";

impl EtcdStore {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, reign: None }
    }

    /// A handle under a reign, or to read.
    pub(crate) fn under(&self, reign: Option<u64>) -> Self {
        Self {
            reign,
            ..self.clone()
        }
    }

    fn record_key(&self, record: &[u8]) -> Vec<u8> {
        let mut key = key(&self.link, RECORDS);
        key.extend_from_slice(record);
        key
    }

    fn fetch(&self, key: Vec<u8>) -> Result<Option<KeyValue>, StoreError> {
        let mut answer = self.link.call(Repeat::Yes, |client| {
            let key = key.clone();
            async move { client.kv_client().get(key, None).await }
        })?;
        Ok(answer.take_kvs().pop())
    }

    fn versioned(found: &KeyValue) -> Versioned {
        Versioned {
            value: found.value().to_vec(),
            revision: found.mod_revision().unsigned_abs(),
        }
    }

    /// The operations of a transaction, behind the one on `revision`.
    fn operations(&self, transaction: &Transaction) -> Vec<TxnOp> {
        let count = PutOptions::new().with_prev_key();
        let first = TxnOp::put(key(&self.link, REVISION), VERSION, Some(count));
        let operations = transaction.operations.iter().map(|operation| match operation {
            Operation::Put { key, value } => TxnOp::put(self.record_key(key), value.clone(), None),
            Operation::Delete { key } => TxnOp::delete(self.record_key(key), None),
        });
        std::iter::once(first).chain(operations).collect()
    }

    /// Commits under a reign.
    fn commit_under(&self, transaction: &Transaction, reign: u64) -> Result<Committed, StoreError> {
        let leader = key(&self.link, LEADER);
        let mut compares = vec![Compare::create_revision(
            leader.clone(),
            CompareOp::Equal,
            reign as i64,
        )];
        for compare in &transaction.compares {
            // etcd says 0 of a key that is absent, too.
            let key = self.record_key(&compare.key);
            compares.push(Compare::mod_revision(
                key,
                CompareOp::Equal,
                compare.revision as i64,
            ));
        }
        let txn = Txn::new()
            .when(compares)
            .and_then(self.operations(transaction))
            .or_else([TxnOp::get(leader, None)]);
        let answer = self.link.call(Repeat::No, |client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        })?;
        let responses = answer.op_responses();
        if answer.succeeded() {
            let at = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            let before = match responses.first() {
                Some(TxnOpResponse::Put(put)) => put.prev_key().map_or(0, KeyValue::mod_revision),
                _ => 0,
            };
            return Ok(Committed::At {
                revision: at.unsigned_abs(),
                previous: before.unsigned_abs(),
            });
        }
        let reigns = match responses.first() {
            Some(TxnOpResponse::Get(get)) => get.kvs().first(),
            _ => None,
        };
        if reigns.is_some_and(|leader| leader.create_revision().unsigned_abs() == reign) {
            Ok(Committed::Conflict)
        } else {
            Err(self.not_leading())
        }
    }

    fn not_leading(&self) -> StoreError {
        StoreError::NotLeading {
            store: self.link.config().name(),
        }
    }

    fn too_large(&self, operations: usize) -> StoreError {
        StoreError::TooLarge {
            store: self.link.config().name(),
            operations,
            limit: OPERATIONS_MAX,
        }
    }
}

impl MetadataStore for EtcdStore {
    fn revision(&self) -> Result<u64, StoreError> {
        match self.fetch(key(&self.link, REVISION))? {
            None => Ok(0),
            Some(found) if found.value() == VERSION => Ok(found.mod_revision().unsigned_abs()),
            Some(found) => Err(StoreError::Unavailable {
                store: self.link.config().name(),
                why: format!(
                    "its key {}/{REVISION} says version \"{}\", this program knows 1: update it, or name another prefix",
                    self.link.config().prefix,
                    String::from_utf8_lossy(found.value()).escape_default()
                ),
            }),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        let found = self.fetch(self.record_key(key))?;
        Ok(found.as_ref().map(Self::versioned))
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        if first >= end || limit == 0 {
            return Ok(Vec::new());
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let options = GetOptions::new()
            .with_range(self.record_key(end))
            .with_limit(limit);
        let answer = self.link.call(Repeat::Yes, |client| {
            let (first, options) = (self.record_key(first), options.clone());
            async move {
                let mut kv = client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
                kv.get(first, Some(options)).await
            }
        })?;
        let prefix = self.record_key(b"").len();
        let entry = |found: &KeyValue| Entry {
            key: found.key()[prefix..].to_vec(),
            versioned: Self::versioned(found),
        };
        Ok(answer.kvs().iter().map(entry).collect())
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        if transaction.len() > OPERATIONS_MAX {
            return Err(self.too_large(transaction.len()));
        }
        let Some(reign) = self.reign else {
            return Err(self.not_leading());
        };
        self.commit_under(transaction, reign)
    }

    fn operations_max(&self) -> usize {
        OPERATIONS_MAX
    }
}
