//! What a node remembers of itself: its name, its cluster, and the last life of its target.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Why a node's own state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file.
    #[error("cannot use the node's state in {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Its contents.
    #[error("{path} is not a node's state: {why}; restore it, or remove it to make this a new node")]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// What is kept of its disks.
    #[error(
        "{path} does not say which disks are out of service: {why}; restore it, or remove it, and all disks are put back in service"
    )]
    Disks {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another node's certificate.
    #[error(
        "this is node {own}, the certificate is that of node {theirs}: make one with \"redhare ca issue --role node --name \
         {own}\", or give the node another directory and empty disks"
    )]
    ForeignCertificate {
        /// Ours.
        own: String,
        /// The one it names.
        theirs: String,
    },
    /// Another cluster.
    #[error(
        "this node belongs to cluster {own}, the masters to {theirs}: name the masters of its own cluster, or give \
         the node another directory and empty disks"
    )]
    ForeignCluster {
        /// Ours.
        own: String,
        /// Theirs.
        theirs: String,
    },
}

/// See the module. Identifiers are 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(crate) node: String,
    pub(crate) cluster: String,
    /// The last life that was started; 0 for none.
    pub(crate) incarnation: u64,
}

/// Which node of which cluster keeps its state in a directory; none if no node ever ran there.
pub fn identity_of(directory: &Path) -> Option<(u128, u128)> {
    let text = std::fs::read_to_string(State::path(directory)).ok()?;
    let state: State = toml::from_str(&text).ok()?;
    let number = |digits: &str| u128::from_str_radix(digits, 16).ok();
    Some((number(&state.node)?, number(&state.cluster)?))
}

/// 128 random bits from the system.
pub(crate) fn random_id() -> std::io::Result<u128> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    // RFC 9562: version 4, variant 10b.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(u128::from_be_bytes(bytes))
}

impl State {
    fn path(directory: &Path) -> PathBuf {
        directory.join("node.toml")
    }

    /// Reads the state, or makes that of a new node of `cluster`: the one that its certificate names, if it has one.
    pub(crate) fn load(directory: &Path, cluster: u128, named: Option<u128>) -> Result<Self, StateError> {
        let path = Self::path(directory);
        let file = |source| StateError::File {
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(directory).map_err(file)?;
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let node = match named {
                    Some(node) => node,
                    None => random_id().map_err(file)?,
                };
                let state = Self {
                    node: format!("{node:032x}"),
                    cluster: format!("{cluster:032x}"),
                    incarnation: 0,
                };
                state.save(directory)?;
                return Ok(state);
            }
            Err(error) => return Err(file(error)),
        };
        let wrong = |why: String| StateError::Contents {
            path: path.clone(),
            why,
        };
        let state: Self = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let digits = |text: &str| u128::from_str_radix(text, 16).is_ok();
        if !digits(&state.node) || !digits(&state.cluster) {
            return Err(wrong("an identifier is not 32 hexadecimal digits".to_owned()));
        }
        let theirs = format!("{cluster:032x}");
        if state.cluster != theirs {
            return Err(StateError::ForeignCluster {
                own: state.cluster,
                theirs,
            });
        }
        if let Some(theirs) = named.filter(|named| *named != state.node_id()) {
            return Err(StateError::ForeignCertificate {
                own: state.node,
                theirs: format!("{theirs:032x}"),
            });
        }
        Ok(state)
    }

    /// Replaces the state durably.
    pub(crate) fn save(&self, directory: &Path) -> Result<(), StateError> {
        let path = Self::path(directory);
        let failed = |source| StateError::File {
            path: path.clone(),
            source,
        };
        let text = toml::to_string(self).expect("a state is plain data");
        let fresh = directory.join("node.toml.new");
        let mut file = std::fs::File::create(&fresh).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&fresh, &path).map_err(failed)?;
        std::fs::File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed)
    }

    pub(crate) fn node_id(&self) -> u128 {
        u128::from_str_radix(&self.node, 16).expect("checked when it was read")
    }
}

/// Replaces a file by one with this text, durably.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), StateError> {
    let failed = |source| StateError::File {
        path: path.to_owned(),
        source,
    };
    let fresh = path.with_extension("toml.new");
    let mut file = std::fs::File::create(&fresh).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&fresh, path).map_err(failed)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_name_and_refuses_another_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let first = State::load(directory.path(), 7, None).unwrap();
        let again = State::load(directory.path(), 7, None).unwrap();
        assert_eq!(first, again);
        let foreign = State::load(directory.path(), 8, None).unwrap_err().to_string();
        assert!(
            foreign.contains("belongs to cluster 00000000000000000000000000000007"),
            "{foreign}"
        );
        std::fs::write(directory.path().join("node.toml"), "node = 3").unwrap();
        let broken = State::load(directory.path(), 7, None).unwrap_err().to_string();
        assert!(broken.contains("restore it, or remove it"), "{broken}");
    }

    #[test]
    fn a_new_node_is_the_one_that_its_certificate_names() {
        let directory = tempfile::tempdir().unwrap();
        let made = State::load(directory.path(), 7, Some(5)).unwrap();
        assert_eq!(made.node_id(), 5);
        assert_eq!(super::identity_of(directory.path()), Some((5, 7)));
        assert_eq!(State::load(directory.path(), 7, Some(5)).unwrap(), made);
        let refused = State::load(directory.path(), 7, Some(6)).unwrap_err().to_string();
        assert!(
            refused.contains("--role node --name 00000000000000000000000000000005"),
            "{refused}"
        );
    }

    #[test]
    fn identifiers_are_random() {
        assert_ne!(random_id().unwrap(), random_id().unwrap());
    }
}
