//! Snapshots by name, as a tree lists them.

use crate::error::TreeError;
use crate::format::CodecError;
use crate::format::key::{Key, snapshots_prefix};
use crate::format::snapshot::Snapshot;
use crate::tree::{Tree, inconsistent};

/// All of them, by generation and name.
pub(crate) async fn list(tree: &Tree) -> Result<Vec<Snapshot>, TreeError> {
    let prefix = snapshots_prefix();
    let mut from = prefix.clone();
    let mut found = Vec::new();
    while let Some((mut key, value)) = tree.first_with_prefix(&from, &prefix).await? {
        let Ok(Key::Snapshot(generation, name)) = Key::decode(&key) else {
            return Err(inconsistent(0, CodecError::Inconsistent));
        };
        let snapshot = Snapshot::decode(generation, &name, &value);
        found.push(snapshot.map_err(|source| inconsistent(0, source))?);
        key.push(0);
        from = key;
    }
    Ok(found)
}

/// The one of a name.
pub(crate) async fn find(tree: &Tree, name: &[u8]) -> Result<Option<Snapshot>, TreeError> {
    let listed = list(tree).await?;
    Ok(listed.into_iter().find(|snapshot| snapshot.name == name))
}
