//! A cluster's records outside of any store: a backup, or on the way from one store to another. The file is described in
//! `docs/formats/store.md`.
//!
//! Two stores of one cluster must never both be led: nodes would believe whichever speaks. So a store can be closed, and
//! [`crate::Controller::open`] refuses one that is: for good when its records were moved elsewhere, and for as long as records
//! are being put into it.

use foundation::checksum::Crc32c;
use thiserror::Error;

use crate::error::ControlError;
use crate::identity::ClusterId;
use crate::keys;
use crate::model::{ClusterRecord, FEATURE_RESTORED};
use crate::record::{self, Reader, Record, RecordError, Writer};
use crate::store::{Committed, MetadataStore, StoreError, Transaction};

const MAGIC: &[u8; 4] = b"RHMX";
const VERSION: u16 = 1;
const MOVED: u16 = 1;
/// Magic, version, flags, revision and number of records.
const HEADER_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 4;
/// Keys and values are some hundred bytes; more than this is no record.
const PART_BYTES_MAX: usize = 1 << 20;
/// Records read at once.
const PAGE: usize = 1024;
/// Bytes that one transaction of an import puts, unless a single record has more: etcd takes no request above 1.5 MiB.
const BYTES_MAX: usize = 512 << 10;
/// How often a store that changes meanwhile is read anew.
const ATTEMPTS_MAX: u32 = 20;
/// All keys: every one begins with a letter.
const FIRST: &[u8] = b"A";
const END: &[u8] = b"{";

/// Why a store is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Closed {
    /// Its cluster is in another store now.
    Moved,
    /// Records are being put into it, or that was broken off.
    Filling,
}

impl Record for Closed {
    const KIND: u8 = 8;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.u8(match self {
            Self::Moved => 1,
            Self::Filling => 2,
        });
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        match reader.u8()? {
            1 => Some(Self::Moved),
            2 => Some(Self::Filling),
            _ => None,
        }
    }
}

/// That a store was filled from a backup, and what the nodes have done since is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Restored {
    /// The revision of the store that the backup is of; 0 where that is not known.
    pub(crate) revision: u64,
}

impl Record for Restored {
    const KIND: u8 = 19;
    const VERSION: u8 = 1;

    fn write(&self, out: &mut Writer) {
        out.u64(self.revision);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let revision = reader.u64()?;
        Some(Self { revision })
    }
}

/// All records of a cluster at one revision of its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The cluster.
    pub cluster: ClusterId,
    /// The store's revision.
    pub revision: u64,
    /// The store they come from was closed before: nobody changes its cluster any more.
    pub moved: bool,
    /// Keys and values, ascending by key.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why records were not moved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the fields are what the texts name them")]
pub enum TransferError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("there is no cluster in the metadata store; check which store is named")]
    NoCluster,
    #[error("it is closed: an import into it was broken off; repeat that import")]
    Unfinished,
    #[error(
        "the store was changed {attempts} times while it was read; stop the masters, or repeat when less happens"
    )]
    Busy { attempts: u32 },
    #[error(
        "there are records of a cluster in the store already, the first under key {key}; name an empty store, nothing was changed"
    )]
    Occupied { key: String },
    #[error("it is no export of a cluster's metadata: {what}; check the file's name, or take another backup")]
    Foreign { what: &'static str },
    #[error(
        "it was written by a later release (version {version}, this program knows {VERSION}); use that release"
    )]
    Newer { version: u16 },
    #[error("it is damaged: {what}; take another copy of it")]
    Damaged { what: &'static str },
    #[error("another process changes the store; stop it and repeat")]
    Contended,
}

/// Fails if the store is closed.
pub(crate) fn check_open(store: &impl MetadataStore) -> Result<(), ControlError> {
    match closed::<ControlError>(store)? {
        None => Ok(()),
        Some(why) => Err(ControlError::StoreClosed { why }),
    }
}

fn closed<E: From<StoreError> + From<RecordError>>(store: &impl MetadataStore) -> Result<Option<Closed>, E> {
    match store.get(keys::CLOSED)? {
        None => Ok(None),
        Some(found) => Ok(Some(Closed::decode(keys::CLOSED, &found.value)?)),
    }
}

/// Closes a store for good, because its cluster moves: no master opens it from now on. Nothing else in it changes.
pub fn close(store: &impl MetadataStore) -> Result<(), TransferError> {
    match closed::<TransferError>(store)? {
        Some(Closed::Moved) => return Ok(()),
        Some(Closed::Filling) => return Err(TransferError::Unfinished),
        None => {}
    }
    let cluster = store.get(keys::CLUSTER)?.ok_or(TransferError::NoCluster)?;
    let mut transaction = Transaction::new();
    transaction
        .compare(keys::CLOSED.to_vec(), 0)
        .compare(keys::CLUSTER.to_vec(), cluster.revision)
        .put(keys::CLOSED.to_vec(), Closed::Moved.encode(keys::CLOSED));
    commit(store, &transaction)
}

fn commit(store: &impl MetadataStore, transaction: &Transaction) -> Result<(), TransferError> {
    match store.commit(transaction)? {
        Committed::At { .. } => Ok(()),
        Committed::Conflict => Err(TransferError::Contended),
    }
}

/// Reads all records, as they were at one revision, and checks each. Masters may change the store meanwhile: then it is read
/// anew.
pub fn export(store: &impl MetadataStore) -> Result<Image, TransferError> {
    for _ in 0..ATTEMPTS_MAX {
        let revision = store.revision()?;
        let mut records = Vec::new();
        let mut first = FIRST.to_vec();
        loop {
            let page = store.range(&first, END, PAGE)?;
            let next = match page.last() {
                Some(last) if page.len() == PAGE => Some(keys::after(&last.key)),
                _ => None,
            };
            records.extend(page.into_iter().map(|entry| (entry.key, entry.versioned.value)));
            match next {
                Some(next) => first = next,
                None => break,
            }
        }
        let closed = closed::<TransferError>(store)?;
        if store.revision()? != revision {
            continue;
        }
        if closed == Some(Closed::Filling) {
            return Err(TransferError::Unfinished);
        }
        records.retain(|(key, _)| key != keys::CLOSED);
        return Image::new(revision, closed == Some(Closed::Moved), records);
    }
    Err(TransferError::Busy {
        attempts: ATTEMPTS_MAX,
    })
}

/// Puts all records into an empty store, which is closed until the last one is there. What an import that was broken off has
/// left is removed first. Records that are no last state of their store, a backup's, are marked as such: the masters find out first what
/// the nodes have done since. `progress` hears how many records are in.
pub fn import(
    store: &impl MetadataStore,
    image: &Image,
    mut progress: impl FnMut(usize),
) -> Result<(), TransferError> {
    let most = store.operations_max();
    match closed::<TransferError>(store)? {
        Some(Closed::Filling) => clear(store, most)?,
        _ => {
            let found = store.range(FIRST, END, 1)?;
            if let Some(entry) = found.first() {
                let key = record::printable(&entry.key);
                return Err(TransferError::Occupied { key });
            }
            let mut transaction = Transaction::new();
            transaction
                .compare(keys::CLOSED.to_vec(), 0)
                .compare(keys::CLUSTER.to_vec(), 0)
                .put(keys::CLOSED.to_vec(), Closed::Filling.encode(keys::CLOSED));
            commit(store, &transaction)?;
        }
    }
    let mut done = 0;
    while let Some(part) = next_part(&image.records[done..], most) {
        let mut transaction = Transaction::new();
        for (key, value) in part {
            transaction.put(key.clone(), value.clone());
        }
        commit(store, &transaction)?;
        done += part.len();
        progress(done);
    }
    let mut transaction = Transaction::new();
    transaction.delete(keys::CLOSED.to_vec());
    if !image.moved {
        mark_restored(store, &mut transaction, image.revision)?;
    }
    commit(store, &transaction)
}

/// The first of these records, as many as one transaction takes; none if there are none.
fn next_part(records: &[(Vec<u8>, Vec<u8>)], most: usize) -> Option<&[(Vec<u8>, Vec<u8>)]> {
    let mut bytes = 0;
    let fits = |(key, value): &&(Vec<u8>, Vec<u8>)| {
        bytes += key.len() + value.len();
        bytes <= BYTES_MAX
    };
    let fitting = records.iter().take(most).take_while(fits).count();
    let part = &records[..fitting.max(1).min(records.len())];
    (!part.is_empty()).then_some(part)
}

/// Has a transaction say that what is in the store was so at `revision` of another one, and may be older than what nodes have done.
fn mark_restored(
    store: &impl MetadataStore,
    transaction: &mut Transaction,
    revision: u64,
) -> Result<(), TransferError> {
    let found = store.get(keys::CLUSTER)?.ok_or(TransferError::NoCluster)?;
    let mut cluster = ClusterRecord::decode(keys::CLUSTER, &found.value)?;
    cluster.features |= FEATURE_RESTORED;
    transaction
        .compare(keys::CLUSTER.to_vec(), found.revision)
        .put(keys::CLUSTER.to_vec(), cluster.encode(keys::CLUSTER))
        .put(
            keys::RESTORED.to_vec(),
            Restored { revision }.encode(keys::RESTORED),
        );
    Ok(())
}

/// Removes all records but the one that says that the store is being filled.
fn clear(store: &impl MetadataStore, most: usize) -> Result<(), TransferError> {
    loop {
        let mut found = store.range(FIRST, END, most)?;
        found.retain(|entry| entry.key != keys::CLOSED);
        if found.is_empty() {
            return Ok(());
        }
        let mut transaction = Transaction::new();
        for entry in found {
            transaction.delete(entry.key);
        }
        commit(store, &transaction)?;
    }
}

impl Image {
    pub(crate) fn new(
        revision: u64,
        moved: bool,
        records: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, TransferError> {
        for (key, value) in &records {
            record::check(key, value)?;
        }
        let cluster = records.iter().find(|(key, _)| key == keys::CLUSTER);
        let (key, value) = cluster.ok_or(TransferError::NoCluster)?;
        Ok(Self {
            cluster: ClusterRecord::decode(key, value)?.id,
            revision,
            moved,
            records,
        })
    }

    /// How many nodes, volumes and chunks there are.
    pub fn counts(&self) -> [usize; 3] {
        let count = |prefix: &[u8]| {
            self.records
                .iter()
                .filter(|(key, _)| key.starts_with(prefix))
                .count()
        };
        [count(keys::NODES), count(keys::VOLUMES), count(keys::CHUNKS)]
    }

    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&if self.moved { MOVED } else { 0 }.to_le_bytes());
        bytes.extend_from_slice(&self.revision.to_le_bytes());
        bytes.extend_from_slice(&(self.records.len() as u64).to_le_bytes());
        for part in self.records.iter().flat_map(|(key, value)| [key, value]) {
            let length = u32::try_from(part.len()).expect("records are far below 4 GiB");
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the bytes of a file, and checks every record.
    pub fn decode(bytes: &[u8]) -> Result<Self, TransferError> {
        let damaged = |what| TransferError::Damaged { what };
        if bytes.get(..4) != Some(MAGIC) {
            let what = "it does not begin with RHMX";
            return Err(TransferError::Foreign { what });
        }
        if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES {
            return Err(damaged("it is too short"));
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            return Err(TransferError::Newer { version });
        }
        let (body, stored) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if checksum(body).to_le_bytes() != stored {
            return Err(damaged("its checksum is wrong"));
        }
        let number = |at: usize| {
            let field: [u8; 8] = body[at..at + 8]
                .try_into()
                .expect("a field of the header has 8 bytes");
            u64::from_le_bytes(field)
        };
        let mut rest = &body[HEADER_BYTES..];
        let mut records: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for _ in 0..number(16) {
            let record = part(&mut rest).zip(part(&mut rest));
            let (key, value) = record.ok_or_else(|| damaged("a record is cut off"))?;
            if records.last().is_some_and(|(last, _)| *last >= key) {
                return Err(damaged("its records are not in order"));
            }
            records.push((key, value));
        }
        if !rest.is_empty() {
            return Err(damaged("there is something behind its last record"));
        }
        let flags = u16::from_le_bytes([body[6], body[7]]);
        Self::new(number(8), flags & MOVED != 0, records)
    }
}

fn part(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let (length, tail) = rest.split_at_checked(4)?;
    let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
    if length > PART_BYTES_MAX {
        return None;
    }
    let (bytes, tail) = tail.split_at_checked(length)?;
    *rest = tail;
    Some(bytes.to_vec())
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut checksum = Crc32c::new();
    checksum.update(bytes);
    checksum.value()
}

#[cfg(test)]
mod tests;
