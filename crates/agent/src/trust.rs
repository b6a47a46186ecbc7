//! Which disks' copies a life of the target uses without asking: those of disks that were there in the life before, or whose copies were all
//! settled since (`docs/decisions/0129`). Kept in a file of its own, which a release before leaves alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::state::{StateError, replace};

/// In the target's environment: the identities of these disks, 32 hexadecimal digits each, with commas between them.
pub const TRUSTED_VARIABLE: &str = "REDHARE_TRUSTED_DISKS";

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    #[serde(default)]
    uuid: BTreeSet<String>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Trusted {
    path: PathBuf,
    file: File,
    /// The file on disk is another: it could not be replaced.
    is_unsaved: bool,
}

fn text(uuid: u128) -> String {
    format!("{uuid:032x}")
}

impl Trusted {
    /// What is kept in a node's directory; where there is nothing yet, since a release before has run here, those that are `known`.
    pub(crate) fn load(directory: &Path, known: impl Iterator<Item = String>) -> Result<Self, StateError> {
        let path = directory.join("trusted-disks.toml");
        let file = match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|error| StateError::Disks {
                path: path.clone(),
                why: error.to_string(),
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => File {
                uuid: known.collect(),
            },
            Err(source) => return Err(StateError::File { path, source }),
        };
        Ok(Self {
            path,
            file,
            is_unsaved: false,
        })
    }

    /// As it stands in the environment.
    pub(crate) fn list(&self) -> String {
        self.file.uuid.iter().cloned().collect::<Vec<_>>().join(",")
    }

    fn change(&mut self, uuid: BTreeSet<String>) -> Result<(), StateError> {
        if self.file.uuid == uuid && !self.is_unsaved {
            return Ok(());
        }
        self.file.uuid = uuid;
        let text = toml::to_string(&self.file).expect("identities are plain data");
        let saved = replace(&self.path, &text);
        self.is_unsaved = saved.is_err();
        saved
    }

    /// Saves what could not be saved before.
    pub(crate) fn save_again(&mut self) {
        if self.is_unsaved && self.change(self.file.uuid.clone()).is_ok() {
            tracing::info!("it is saved which disks are trusted");
        }
    }

    /// A life of the target runs, with these disks: others are away.
    pub(crate) fn new_life(&mut self, found: &[agentlink::Disk]) -> Result<(), StateError> {
        let mut trusted = self.file.uuid.clone();
        trusted.retain(|uuid| found.iter().any(|disk| text(disk.uuid) == *uuid));
        self.change(trusted)
    }

    /// The copies on these disks are settled, but for some on those that are named. What cannot be saved is saved later: that the node's
    /// directory is full, say, is no reason to end a target.
    pub(crate) fn settled(&mut self, found: &[agentlink::Disk], but: &[u128]) {
        let mut trusted = self.file.uuid.clone();
        for disk in found {
            match but.contains(&disk.uuid) {
                true => drop(trusted.remove(&text(disk.uuid))),
                false => drop(trusted.insert(text(disk.uuid))),
            }
        }
        if let Err(error) = self.change(trusted) {
            tracing::warn!(%error, "which disks are trusted holds until this engine ends: saving it is tried again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(uuid: u128) -> agentlink::Disk {
        agentlink::Disk {
            uuid,
            path: format!("/{uuid}"),
            capacity_bytes: 1 << 30,
            free_bytes: 1 << 20,
        }
    }

    #[test]
    fn a_disk_is_trusted_when_it_was_there_in_the_life_before_or_its_copies_are_settled() {
        let directory = tempfile::tempdir().unwrap();
        let load = || Trusted::load(directory.path(), std::iter::empty()).unwrap();
        let both = [disk(1), disk(2)];
        let list = |uuids: &[u128]| uuids.iter().map(|uuid| text(*uuid)).collect::<Vec<_>>().join(",");
        let mut trusted = load();
        trusted.new_life(&both).unwrap();
        assert_eq!(load().list(), "", "nobody knows whether their copies are right");
        trusted.settled(&both, &[2]);
        assert_eq!(load().list(), list(&[1]));
        trusted.settled(&both, &[]);
        assert_eq!(load().list(), list(&[1, 2]));
        // One was away for a life; that it has no copies in doubt while it is not there says nothing.
        let mut trusted = load();
        trusted.new_life(&both[..1]).unwrap();
        trusted.settled(&both[..1], &[]);
        assert_eq!(load().list(), list(&[1]));
        trusted.new_life(&both).unwrap();
        assert_eq!(load().list(), list(&[1]));
        // An old copy that could not be deleted is on a disk like any that was away.
        trusted.settled(&both, &[1]);
        assert_eq!(load().list(), list(&[2]));
    }

    #[test]
    fn after_a_release_before_those_are_trusted_that_it_knew() {
        let directory = tempfile::tempdir().unwrap();
        let known = [text(7)].into_iter();
        assert_eq!(Trusted::load(directory.path(), known).unwrap().list(), text(7));
        std::fs::write(directory.path().join("trusted-disks.toml"), "uuid = 3").unwrap();
        let refused = Trusted::load(directory.path(), std::iter::empty()).unwrap_err();
        assert!(refused.to_string().contains("trusted-disks.toml"), "{refused}");
    }
}
