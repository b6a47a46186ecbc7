//! What a node agent and its target say to each other over a unix socket: frames of a length, a version and a body.
//!
//! The target listens; one agent at a time is connected, and a new one takes the old one's place. Each side sends
//! its state when the connection begins and changes after that; nothing here is on the I/O path.
//! The table is in `docs/formats/agent-link.md`.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// Version of the bodies. Kinds of frames that are added leave it as it is: who does not know them is sent none, see [`Frame`].
pub const VERSION: u16 = 1;
/// Length of a frame's head: body length (u32) and version (u16), little-endian.
pub const HEAD_BYTES: usize = 6;
/// No body is longer than this.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// How often a target says how its disks stand: the most that it is silent for.
pub const DISKS_INTERVAL: Duration = Duration::from_secs(5);

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

/// What the checksums of one copy's blocks have shown since its target began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyDamage {
    /// The chunk.
    pub chunk: Chunk,
    /// Blocks that were read and did not fit.
    pub damaged: u64,
    /// Of these, blocks that have been written since: with what another copy has, or by who uses the volume.
    pub repaired: u64,
    /// Blocks of which no copy was right when the write node here looked for one, and that have not been written since.
    pub lost: u32,
}

/// The same of all copies, and how far it is with comparing them in the background.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// Copies of which there is something to say, at most [`Damage::COPIES_MAX`]: the worst.
    pub copies: Vec<CopyDamage>,
    /// When that copy was compared, or first seen, for which it is longest ago: milliseconds of Unix time; 0 where that is not known,
    /// as on a target that compares none.
    pub scrub_oldest_unix_ms: u64,
    /// Blocks that were read only to compare them.
    pub scrubbed_blocks: u64,
}

impl Damage {
    /// No more copies are told.
    pub const COPIES_MAX: usize = 1024;
}

/// Blocks of a copy of a snapshot that do not fit their checksums, and that no other node's copy gave right when this one asked for them last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotLoss {
    /// The chunk.
    pub chunk: Chunk,
    /// The snapshot's number.
    pub snapshot: u64,
    /// So many blocks.
    pub lost: u32,
}

impl SnapshotLoss {
    /// No more copies are told.
    pub const COPIES_MAX: usize = 1024;
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
    /// How many kinds of [`FromTarget`] the agent knows: the first ones. The first frame of an agent, to a target that has
    /// said in its own first frame that it knows this one.
    Known(u32),
    /// All complete snapshots, each a volume's number, the snapshot's and how many chunks it has. Only to a target that wants them.
    KeepSnapshots(Vec<(u32, u64, u32)>),
    /// Make the first copy of a clone's chunk, from the copy of a snapshot of the same chunk of another volume, unless it is here. Only
    /// while the clone has never been used.
    CloneCopy {
        /// The chunk.
        chunk: Chunk,
        /// The clone's geometry, as the volume crate encodes it.
        geometry: Vec<u8>,
        /// On this disk.
        disk: u128,
        /// It keeps checksums of its blocks.
        checksums: bool,
        /// The number of the snapshot's volume.
        volume: u32,
        /// The snapshot's number.
        snapshot: u64,
    },
    /// All clones whose copies are to be given data of their own, in the background, by number.
    Flatten(Vec<u32>),
    /// The answer to a [`FromTarget::Reserve`].
    Reservations {
        /// The volume's number.
        volume: u32,
        /// The request.
        request: u64,
        /// What the hosts of the volume have reserved, and whether that is what was asked for; or why it could not be asked, for
        /// people.
        answer: Result<(Reservations, bool), String>,
    },
    /// The reservations of an exported volume have this version now: to a target that has said that it reads them.
    ReservationsChanged {
        /// The volume's number.
        volume: u32,
        /// The version.
        version: u64,
    },
    /// What is to be noted beside copies of complete snapshots, those of the last [`ToTarget::KeepSnapshots`], in any number of frames
    /// after it; not of those of which the masters do not say it.
    NoteSnapshots(Vec<SnapshotNote>),
    /// The masters want to know how these copies are. Answered by [`FromTarget::Described`].
    Describe(Vec<Chunk>),
    /// Whether every write of a volume is to be durable before it is acknowledged; of those not named it is as it was.
    SyncWrites {
        /// The volume's number.
        volume: u32,
        /// It is.
        is_on: bool,
    },
    /// On which disks of their nodes the copies lie that the next [`ToTarget::Routes`] of the volume names, in any number of frames:
    /// who reads avoids those that are slow.
    Places {
        /// The volume's number.
        volume: u32,
        /// Node and disk of each copy by chunk index.
        chunks: Vec<(u32, Vec<(u128, u128)>)>,
    },
    /// What becomes of copies that the target has named as doubtful. Only to a target that has.
    Doubted {
        /// Their places are on these disks: they are used from now on.
        right: Vec<(Chunk, u128)>,
        /// The node has another copy in their place, which is here: they are deleted if that is newer.
        wrong: Vec<Chunk>,
    },
    /// Move the copy of a chunk to another disk of the node. Answered by [`FromTarget::Moved`], also where it is there already.
    MoveCopy {
        /// The chunk.
        chunk: Chunk,
        /// To this disk.
        disk: u128,
    },
}

/// What a copy says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyState {
    /// The disk's identity.
    pub disk: u128,
    /// Everything of an older epoch is refused.
    pub sealed: u64,
    /// The newest configuration that it has sealed or was let in under; none if it never took part in anything.
    pub configuration: Option<Configuration>,
    /// The epoch of the last flush it took part in while it was in sync.
    pub flushed: u64,
    /// The newest configuration that this target was told of in its life, if it is newer than that.
    pub told: Option<Configuration>,
    /// The newest write lease that it has seen.
    pub token: u64,
}

/// What the masters say of a complete snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotNote {
    /// Its volume's number.
    pub volume: u32,
    /// Its number.
    pub number: u64,
    /// How many chunks it has.
    pub chunks: u32,
    /// When it was begun, in milliseconds of Unix time.
    pub created_unix_ms: u64,
    /// Its name.
    pub name: String,
}

impl ToTarget {
    /// A target that knows so many kinds knows reservations of exported volumes, up to [`ToTarget::ReservationsChanged`].
    pub const KINDS_OF_RESERVATIONS: u32 = 17;
    /// A target that knows so many kinds acknowledges no write before it is durable where it is told so, by
    /// [`ToTarget::SyncWrites`].
    pub const KINDS_OF_SYNC_WRITES: u32 = 20;
    /// A target that knows so many kinds moves copies between its disks, by [`ToTarget::MoveCopy`].
    pub const KINDS_OF_MOVES: u32 = 23;
}

/// What the hosts of an exported volume have reserved (NVM Express Base Specification 2.0c, section 8.19).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservations {
    /// Counts changes; 0 if there was never one.
    pub version: u64,
    /// The token under which portals' commands go.
    pub token: u64,
    /// The token is in force on every copy.
    pub in_force: bool,
    /// A native writer has taken a newer token.
    pub taken: bool,
    /// Counts changes as hosts do.
    pub generation: u32,
    /// Hosts asked for persistence through power loss.
    pub persistent: bool,
    /// The reservation's type; 0 if none is held.
    pub kind: u8,
    /// The host that holds it; zeros if nobody or every registrant does.
    pub holder: [u8; 16],
    /// Hosts and their keys.
    pub registrants: Vec<([u8; 16], u64)>,
    /// What hosts are to be told of: the version it came with, the host, and the type of notification.
    pub notices: Vec<(u64, [u8; 16], u8)>,
    /// Chunks of the volume when this was so; the most that there can be if the masters do not say.
    pub chunks: u32,
    /// The portals' digest of the command that made it so, and of its host; 0 for none.
    pub change: u64,
}

/// What a target asks of the reservations of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReservationCall {
    /// As they are.
    Read,
    /// Put these in the place of those of version `expected`.
    Replace {
        /// The version that they were made from.
        expected: u64,
        /// As they shall be.
        next: Box<Reservations>,
        /// They take rights from a host, so there is to be another token.
        restricts: bool,
    },
    /// A token is in force on every copy.
    Enforced {
        /// The token.
        token: u64,
        /// The chunks of the volume, as far as the portal knows.
        chunks: u32,
    },
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
    /// The target looks after copies of snapshots, and wants [`ToTarget::KeepSnapshots`]: when the agent has said that it knows this.
    WantSnapshots,
    /// How far the clones of [`ToTarget::Flatten`] are: each one's number, copies that are left, and all copies here, those of its
    /// snapshots among them. When that has changed.
    Flattening(Vec<(u32, u32, u32)>),
    /// A host of an exported volume reserves, or waits to know what is reserved. Answered by [`ToTarget::Reservations`].
    Reserve {
        /// The volume's number.
        volume: u32,
        /// Counted by the target in its life.
        request: u64,
        /// What it asks.
        call: ReservationCall,
    },
    /// What snapshots hold of each disk, by its identity, in bytes: when the agent has said that it knows this, and when it has
    /// changed.
    Held(Vec<(u128, u64)>),
    /// The answer to a [`ToTarget::Describe`]: each of its copies; none for those that are not here, or cannot be read.
    Described(Vec<(Chunk, Option<CopyState>)>),
    /// All volumes of which the target acknowledges no write before it is durable, by number: when the agent has said that it knows this,
    /// and when that has changed.
    SyncWrites(Vec<u32>),
    /// What the copies of each volume own of the node's disks, by the volume's number: bytes that its chunks own, and bytes that its
    /// snapshots do. All volumes of which something is here: when the agent has said that it knows this, and when it has changed.
    Used(Vec<(u32, u64, u64)>),
    /// How many copies of complete snapshots are here beside the copies of chunks that are in sync here. When that has changed, and
    /// the agent has said that it knows this.
    Kept {
        /// By which list: that of so many [`ToTarget::KeepSnapshots`] on this connection; 0 for one of before it.
        lists: u32,
        /// So many.
        copies: u64,
        /// Which, as `foundation::KeptCopies` has it.
        digest: u64,
    },
    /// All copies here that are not used until the masters have said that their places are on these disks, which were away, or have a
    /// newer copy of the same chunk beside them ([`ToTarget::Doubted`]). When the agent has said that it knows this, and when it has
    /// changed.
    Doubtful(Vec<(Chunk, u128)>),
    /// What checksums have shown: when the agent has said that it knows this, and when it has changed, each second.
    Damage(Damage),
    /// Which release the target is (`foundation::RELEASE`): once, when the agent has said that it knows this.
    Release(String),
    /// Copies of snapshots with blocks that no copy has right, [`SnapshotLoss::COPIES_MAX`] at most: when the agent has said that it knows
    /// this, and when it has changed, each second.
    SnapshotLosses(Vec<SnapshotLoss>),
    /// Chunks with blocks that their copies hold differently though each fits its checksum, and how many, as their write node here has found,
    /// [`Damage::COPIES_MAX`] at most: when the agent has said that it knows this, and when it has changed, each second.
    Differing(Vec<(Chunk, u32)>),
    /// The answer to a [`ToTarget::MoveCopy`].
    Moved {
        /// The chunk.
        chunk: Chunk,
        /// Where its copy was to go.
        disk: u128,
        /// Why it is not there, for people; none if it is, durably.
        why: Option<String>,
    },
}

impl FromTarget {
    /// An agent that knows so many kinds knows reservations of exported volumes, up to [`FromTarget::Reserve`].
    pub const KINDS_OF_RESERVATIONS: u32 = 14;
    /// One that knows so many kinds passes on what volumes use, by [`FromTarget::Used`].
    pub const KINDS_OF_USE: u32 = 18;
    /// One that knows so many kinds passes on how many copies of snapshots are here, by [`FromTarget::Kept`].
    pub const KINDS_OF_KEPT: u32 = 19;
    /// One that knows so many kinds asks the masters about copies that are named by [`FromTarget::Doubtful`].
    pub const KINDS_OF_DOUBT: u32 = 20;
    /// One that knows so many kinds passes on what checksums have shown, by [`FromTarget::Damage`].
    pub const KINDS_OF_DAMAGE: u32 = 21;
    /// One that knows so many kinds passes on which release the target is, by [`FromTarget::Release`].
    pub const KINDS_OF_RELEASE: u32 = 22;
    /// One that knows so many kinds passes on which snapshots have lost blocks, by [`FromTarget::SnapshotLosses`].
    pub const KINDS_OF_SNAPSHOT_LOSSES: u32 = 23;
    /// One that knows so many kinds passes on which copies differ, by [`FromTarget::Differing`].
    pub const KINDS_OF_DIFFERING: u32 = 24;
    /// One that knows so many kinds hears of copies that were to go to another disk, by [`FromTarget::Moved`].
    pub const KINDS_OF_MOVES: u32 = 25;
}

/// What goes one way over the link.
///
/// Kinds are only ever appended to the enum, so how many one side knows says which. Each side says so: a target behind its
/// `Hello`, an agent by [`ToTarget::Known`]. Releases that say nothing know what stood in the enums before there was this
/// ([`Frame::KINDS_BEFORE`]). Nobody is sent a kind that it does not know, and who gets one all the same leaves it out.
pub trait Frame: Serialize + DeserializeOwned {
    /// How many kinds this release knows.
    const KINDS: u32;
    /// How many a release knows that does not say.
    const KINDS_BEFORE: u32;

    /// How many kinds of what goes the other way the sender says it knows, if this frame carries that behind its own fields.
    fn tells(&self) -> Option<u32> {
        None
    }
}

impl Frame for ToTarget {
    const KINDS: u32 = 23;
    const KINDS_BEFORE: u32 = 11;
}

impl Frame for FromTarget {
    const KINDS: u32 = 25;
    // `WantDataKeys` is the last that every agent knows which starts a target that says it; `Health` is not.
    const KINDS_BEFORE: u32 = 10;

    fn tells(&self) -> Option<u32> {
        matches!(self, Self::Hello { .. }).then_some(ToTarget::KINDS)
    }
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
pub fn encode(message: &impl Frame, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&VERSION.to_le_bytes());
    let mut body = postcard::to_allocvec(message).expect("messages are plain data");
    out.append(&mut body);
    if let Some(known) = message.tells() {
        // Readers of earlier releases stop where the fields end that they know.
        out.append(&mut postcard::to_allocvec(&known).expect("a number is plain data"));
    }
    let length = u32::try_from(out.len() - start - HEAD_BYTES).expect("messages are short");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The same for another side that knows so many kinds; false, and nothing appended, if this is none of them.
pub fn encode_known<T: Frame>(message: &T, known: u32, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    encode(message, out);
    let kind = postcard::take_from_bytes::<u32>(&out[start + HEAD_BYTES..]);
    let is_known = kind.is_ok_and(|(kind, _)| kind < known);
    if !is_known {
        out.truncate(start);
    }
    is_known
}

/// Collects bytes and yields messages.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    told: Option<u32>,
    left_out: u64,
}

impl Decoder {
    /// Takes in what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message of a kind that this release knows; others are left out.
    pub fn take<T: Frame>(&mut self) -> Result<Option<T>, FrameError> {
        loop {
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
            let (kind, _) = postcard::take_from_bytes::<u32>(body).map_err(|_| FrameError::Body)?;
            let message = if kind < T::KINDS {
                let (message, rest) = postcard::take_from_bytes::<T>(body).map_err(|_| FrameError::Body)?;
                if message.tells().is_some() {
                    // Nothing there: a release that does not say.
                    self.told = postcard::from_bytes(rest).ok();
                }
                Some(message)
            } else {
                self.left_out += 1;
                None
            };
            self.bytes.drain(..HEAD_BYTES + length);
            if message.is_some() {
                return Ok(message);
            }
        }
    }

    /// How many kinds of frames the other side has said it knows, behind one that was taken; none if it has not.
    pub fn told(&self) -> Option<u32> {
        self.told
    }

    /// Frames of kinds that this release does not know, so far.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests;
