//! Quotas, as a tree lists them.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::TreeError;
use crate::format::key::{InodeNumber, Key, quotas_prefix};
use crate::format::quota::Quota;
use crate::format::{CodecError, Decoder};
use crate::tree::{Tree, inconsistent};
use crate::writer::Charged;

/// The quota that an inode without a name is charged to, by its value on the list of orphans.
pub(crate) fn charged(value: &[u8]) -> Result<Charged, CodecError> {
    if value.is_empty() {
        return Ok(None);
    }
    let mut decoder = Decoder::new(value);
    let tree = decoder.varint()?;
    decoder.finish()?;
    Ok(Some(InodeNumber(tree)))
}

/// Adds an inode of this length to what a tree has.
pub(crate) fn count(counted: &mut BTreeMap<InodeNumber, Quota>, tree: InodeNumber, size: u64) {
    let quota = counted.entry(tree).or_default();
    quota.used_files += 1;
    quota.used_bytes = quota.used_bytes.saturating_add(size);
}

/// Which tree what stands in a directory is charged to, for those who have everything in memory.
pub(crate) struct Trees<'a, P> {
    quotas: &'a BTreeMap<InodeNumber, Quota>,
    /// The directory that a directory stands in.
    parent: P,
    known: BTreeMap<InodeNumber, Charged>,
}

impl<'a, P: Fn(InodeNumber) -> Option<InodeNumber>> Trees<'a, P> {
    pub(crate) fn new(quotas: &'a BTreeMap<InodeNumber, Quota>, parent: P) -> Self {
        let known = BTreeMap::new();
        Self {
            quotas,
            parent,
            known,
        }
    }

    /// The nearest directory with a quota, from `directory` upwards. Directories that go round in circles have none.
    pub(crate) fn of(&mut self, directory: InodeNumber) -> Charged {
        let (mut at, mut passed) = (directory, BTreeSet::new());
        let found = loop {
            if self.quotas.contains_key(&at) {
                break Some(at);
            }
            if let Some(known) = self.known.get(&at) {
                break *known;
            }
            if !passed.insert(at) {
                break None;
            }
            match (self.parent)(at) {
                Some(parent) => at = parent,
                None => break None,
            }
        };
        self.known
            .extend(passed.into_iter().map(|directory| (directory, found)));
        found
    }
}

/// All of them, by directory.
pub(crate) async fn list(tree: &Tree) -> Result<Vec<(InodeNumber, Quota)>, TreeError> {
    let prefix = quotas_prefix();
    let mut from = prefix.clone();
    let mut found = Vec::new();
    while let Some((mut key, value)) = tree.first_with_prefix(&from, &prefix).await? {
        let Ok(Key::Quota(directory)) = Key::decode(&key) else {
            return Err(inconsistent(0, CodecError::Inconsistent));
        };
        let quota = Quota::decode(&value).map_err(|source| inconsistent(0, source))?;
        found.push((directory, quota));
        key.push(0);
        from = key;
    }
    Ok(found)
}
