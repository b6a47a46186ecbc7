//! What a node agent and its target say to each other over a unix socket: frames of a length, a version and a body.
//!
//! The target listens; one agent at a time is connected, and a new one takes the old one's place. Each side sends
//! its state when the connection begins and changes after that; nothing here is on the I/O path.
//! The table is in `docs/formats/agent-link.md`.

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// Version of the bodies.
pub const VERSION: u16 = 1;
/// Length of a frame's head: body length (u32) and version (u16), little-endian.
pub const HEAD_BYTES: usize = 6;
/// No body is longer than this.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// One chunk of one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Chunk {
    /// The volume's number.
    pub volume: u32,
    /// The chunk's index in it.
    pub index: u32,
}

/// A chunk's configuration: which copies are in sync, and which one orders writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Its version.
    pub epoch: u64,
    /// The node that orders writes.
    pub write_node: u128,
    /// Node and incarnation of each in-sync copy, by node.
    pub members: Vec<(u128, u64)>,
}

/// One disk, as the target sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its identity, made when it was formatted.
    pub uuid: u128,
    /// Where it is.
    pub path: String,
    /// Room for chunk copies, in bytes.
    pub capacity_bytes: u64,
    /// Of that not taken, in bytes.
    pub free_bytes: u64,
}

/// How one disk is, as its target sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskHealth {
    /// Its identity; 0 if it could not be read.
    pub uuid: u128,
    /// Where it is.
    pub path: String,
    /// It has no room for more.
    pub is_full: bool,
    /// Requests that have failed in this life, through the disk.
    pub failures: u64,
    /// For how long its oldest request stands, in milliseconds; 0 while none stands longer than its bound.
    pub standing_ms: u64,
    /// How often each stage of a reset began in this life: queue, device, driver, process.
    pub resets: [u64; 4],
    /// After how many of them it answered again before the next.
    pub cured: [u64; 4],
    /// Only a new process may help.
    pub needs_process: bool,
    /// It is not used in this life; why, for people.
    pub left_out: Option<String>,
}

/// A copy on another node that a write node here sends what it has missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resync {
    /// The chunk.
    pub chunk: Chunk,
    /// The node whose copy comes back.
    pub node: u128,
    /// Bytes still to be sent.
    pub left_bytes: u64,
    /// Bytes that it lacked.
    pub total_bytes: u64,
    /// Milliseconds since it was let in.
    pub elapsed_ms: u64,
}

/// From the agent to its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTarget {
    /// Where other nodes' targets listen; those not named stay as they were.
    Peers(Vec<(u128, String)>),
    /// Make a copy of a chunk, all zeros, unless it is here.
    CreateCopy {
        /// The chunk.
        chunk: Chunk,
        /// The volume's geometry, as the volume crate encodes it.
        geometry: Vec<u8>,
        /// On this disk.
        disk: u128,
    },
    /// Delete all copies of a volume's chunks.
    DeleteVolume {
        /// The volume's number.
        volume: u32,
    },
    /// A configuration that was committed.
    Configure {
        /// The chunk.
        chunk: Chunk,
        /// The configuration.
        configuration: Configuration,
    },
    /// A life of a target has ended, with all its I/O: grants given to it are void.
    Ended {
        /// The node.
        node: u128,
        /// The life.
        incarnation: u64,
    },
    /// Delete the copy of a chunk, for which the configuration of this epoch has no place here.
    DeleteCopy {
        /// The chunk.
        chunk: Chunk,
        /// The configuration's epoch.
        epoch: u64,
    },
    /// All volumes that the node is to export.
    Exports(Vec<Export>),
    /// What the masters say of the chunks of an exported volume; those not named are as they were.
    Routes {
        /// The volume's number.
        volume: u32,
        /// Configurations by chunk index.
        chunks: Vec<(u32, Configuration)>,
    },
    /// As [`ToTarget::CreateCopy`], of a copy that keeps checksums of its blocks.
    CreateCopyWithSums {
        /// The chunk.
        chunk: Chunk,
        /// The volume's geometry, as the volume crate encodes it.
        geometry: Vec<u8>,
        /// On this disk.
        disk: u128,
    },
    /// Delete all copies of these snapshots, each a volume's number and the snapshot's, in the background. Those that are being
    /// deleted already may be named again.
    DeleteSnapshots(Vec<(u32, u64)>),
    /// What the target checks with who comes, and proves itself with to other nodes. Only to one that wants it.
    DataKeys(DataKeys),
}

/// A key or a secret of the data path: not in Debug output, and zeroed when dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes the bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Keys and passes of the data path; they take the place of those before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataKeys {
    /// Whether who does not prove itself is to be refused.
    pub required: bool,
    /// The node's keys by number, all that are to be believed.
    pub keys: Vec<(u64, Secret)>,
    /// Whether another node that does not prove itself is to be refused.
    pub nodes_prove: bool,
    /// By node, the secret by which this one proves itself there and that by which the other one does.
    pub passes: Vec<(u128, Secret, Secret)>,
}

/// A volume that a node exports to ordinary hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// The volume's number.
    pub volume: u32,
    /// Its identity.
    pub uuid: u128,
    /// Its geometry, as the volume crate encodes it.
    pub geometry: Vec<u8>,
    /// The subsystem's name.
    pub nqn: String,
    /// The hosts that may connect; none for all.
    pub hosts: Vec<String>,
    /// Which of the volume's portals the node is, from 0.
    pub place: u8,
    /// Where the other portals listen.
    pub elsewhere: Vec<String>,
}

/// From a target to its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromTarget {
    /// The first frame.
    Hello {
        /// The cluster that the disks belong to.
        cluster: u128,
        /// The node.
        node: u128,
        /// This life.
        incarnation: u64,
        /// Where peers and hosts connect.
        address: String,
        /// The disks.
        disks: Vec<Disk>,
        /// Copies found on them, with the epoch sealed.
        copies: Vec<(Chunk, u64)>,
    },
    /// A copy is there, durably.
    CopyReady {
        /// The chunk.
        chunk: Chunk,
    },
    /// A copy could not be made.
    CopyFailed {
        /// The chunk.
        chunk: Chunk,
        /// Why, for people.
        why: String,
    },
    /// A write node wants another configuration: commit it if the present one has this epoch.
    Propose {
        /// The chunk.
        chunk: Chunk,
        /// The epoch that the proposal is made from.
        expected: u64,
        /// What is wanted.
        configuration: Configuration,
    },
    /// Now and then: how the disks stand.
    Disks(Vec<Disk>),
    /// All copies that are sent what they have missed, every second while there are any, and once when there are none.
    Resyncs(Vec<Resync>),
    /// A copy that was to be deleted is here no more.
    CopyDeleted {
        /// The chunk.
        chunk: Chunk,
    },
    /// A command of a host waits for newer [`ToTarget::Routes`], or for a word that there are none.
    WantRoutes {
        /// The volume's number.
        volume: u32,
    },
    /// All snapshots of which copies are here, each a volume's number and the snapshot's: in the beginning, and when that has
    /// changed.
    Snapshots(Vec<(u32, u64)>),
    /// The target wants [`ToTarget::DataKeys`]: in the beginning, and when what it has does not do.
    WantDataKeys,
    /// How all disks are, those that are left out among them: when a connection begins, and when that has changed, each second.
    Health(Vec<DiskHealth>),
}

/// Why a frame could not be read. The connection is of no use after that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version speaks.
    #[error(
        "the other side speaks version {found} of the agent link, this one speaks {VERSION}: use the same release for agent and target"
    )]
    Version {
        /// What came.
        found: u16,
    },
    /// No frame is so long.
    #[error(
        "a frame of {length} bytes was announced, the most is {BODY_BYTES_MAX}: the other side is not a Redhare agent or target"
    )]
    TooLong {
        /// What was announced.
        length: usize,
    },
    /// The body makes no sense.
    #[error("a frame's body cannot be read: the other side is not a Redhare agent or target of this release")]
    Body,
}

/// Appends a message as a frame.
pub fn encode(message: &impl Serialize, out: &mut Vec<u8>) {
    let body = postcard::to_allocvec(message).expect("messages are plain data");
    let length = u32::try_from(body.len()).expect("messages are short");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&body);
}

/// Collects bytes and yields messages.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Takes in what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message.
    pub fn take<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, FrameError> {
        let Some((head, rest)) = self.bytes.split_at_checked(HEAD_BYTES) else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let version = u16::from_le_bytes([head[4], head[5]]);
        if version != VERSION {
            return Err(FrameError::Version { found: version });
        }
        if length > BODY_BYTES_MAX {
            return Err(FrameError::TooLong { length });
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = postcard::from_bytes(body).map_err(|_| FrameError::Body)?;
        self.bytes.drain(..HEAD_BYTES + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<ToTarget> {
        let chunk = Chunk { volume: 7, index: 3 };
        let configuration = Configuration {
            epoch: 9,
            write_node: 1 << 100,
            members: vec![(1, 2), (3, 4)],
        };
        vec![
            ToTarget::Peers(vec![(5, "127.0.0.1:4420".to_owned())]),
            ToTarget::CreateCopy {
                chunk,
                geometry: vec![1, 2, 3],
                disk: 8,
            },
            ToTarget::Configure { chunk, configuration },
            ToTarget::Ended {
                node: 1,
                incarnation: 2,
            },
            ToTarget::DeleteVolume { volume: 7 },
            ToTarget::DeleteCopy { chunk, epoch: 4 },
            ToTarget::DeleteSnapshots(vec![(7, 1 << 50)]),
            ToTarget::CreateCopyWithSums {
                chunk,
                geometry: vec![4, 5],
                disk: 9,
            },
            ToTarget::DataKeys(DataKeys {
                required: true,
                keys: vec![(3, Secret::new(vec![77; 32]))],
                nodes_prove: false,
                passes: vec![(5, Secret::new(vec![78; 32]), Secret::new(vec![79; 32]))],
            }),
        ]
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_cut() {
        let mut bytes = Vec::new();
        for message in messages() {
            encode(&message, &mut bytes);
        }
        for cut in 1..20 {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(message) = decoder.take::<ToTarget>().unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(found, messages());
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = format!("{:?}", messages());
        assert!(
            shown.contains("Secret(..)") && !shown.contains("77") && !shown.contains("79"),
            "{shown}"
        );
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut bytes = Vec::new();
        encode(&messages()[0], &mut bytes);
        bytes[4] = 9;
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        let error = decoder.take::<ToTarget>().unwrap_err();
        assert_eq!(error, FrameError::Version { found: 9 });
        assert!(error.to_string().contains("speaks version 9"));
    }

    proptest! {
        #[test]
        fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
            framed.extend_from_slice(&VERSION.to_le_bytes());
            framed.extend_from_slice(&bytes);
            decoder.push(&framed);
            let _ = decoder.take::<ToTarget>();
            let _ = decoder.take::<FromTarget>();
        }
    }
}
