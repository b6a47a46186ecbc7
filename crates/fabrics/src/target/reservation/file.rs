//! The file in which a namespace's reservation survives a loss of power (`docs/formats/reservation.md`).
//!
//! A change is whole in the file before it is answered: the new content is written beside the old, made durable, and
//! takes the old one's name. So the file is at any time one state or the next. What is read is either a state that was
//! written or an error; nothing is guessed.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foundation::checksum::crc32c;
use foundation::uuid::format_uuid;
use protocols::nvme::reservation::ReservationType;
use reactor::mailbox::mailbox;

use super::state::{Held, HostId, REGISTRANTS_MAX, Reservations};

const MAGIC: &[u8; 8] = b"RHRESERV";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 4;
const LENGTH_MAX: usize = HEADER_BYTES + REGISTRANTS_MAX * ENTRY_BYTES + CHECKSUM_BYTES;

/// Why a namespace's reservation cannot be kept in a file.
#[derive(Debug, thiserror::Error)]
pub enum ReservationFileError {
    /// The system refused.
    #[error("reservations cannot be kept in {}: cannot {action} {}: {source}; make its directory writable and give it room, or leave ptpl_file out", path.display(), at.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// On which file.
        at: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another namespace has it.
    #[error("reservations cannot be kept in {}: another namespace or process holds {}; name another ptpl_file, or end the other use", path.display(), lock.display())]
    InUse {
        /// The file.
        path: PathBuf,
        /// What is locked.
        lock: PathBuf,
    },
    /// It is not what was written.
    #[error("the reservations in {} are damaged: {what}; bring the file back from a copy, or remove it, which releases all reservations of the namespace", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: Damage,
    },
    /// It belongs to another namespace.
    #[error("the reservations in {} belong to namespace {found}, not to {wanted}; name another ptpl_file", path.display())]
    OtherNamespace {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose was asked for.
        wanted: String,
    },
}

/// What is wrong with a file of reservations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Too short or too long.
    #[error("it has {got_bytes} bytes where {needed_bytes} are needed")]
    Length {
        /// How many there are.
        got_bytes: u64,
        /// How many there must be.
        needed_bytes: u64,
    },
    /// Not a file of reservations.
    #[error("it does not begin with RHRESERV")]
    Magic,
    /// Written by a later release.
    #[error("it has version {0}, and this program knows version {VERSION}")]
    Version(u16),
    /// The checksum differs.
    #[error("its checksum is {got:08x}, its content has {computed:08x}")]
    Checksum {
        /// The one in the file.
        got: u32,
        /// The one of the content.
        computed: u32,
    },
    /// The content cannot be.
    #[error("its content contradicts itself: {0}")]
    Content(&'static str),
}

/// The state as it lies in the file. What does not persist is written as nothing.
fn encode(state: &Reservations, uuid: &[u8; 16]) -> Vec<u8> {
    let nothing = Reservations::default();
    let state = if state.persistent { state } else { &nothing };
    let mut bytes = Vec::with_capacity(LENGTH_MAX);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(state.held.map_or(0, |held| held.kind.code()));
    bytes.push(state.persistent.into());
    let count = u32::try_from(state.registrants.len()).expect("at most REGISTRANTS_MAX are registered");
    bytes.extend(count.to_le_bytes());
    bytes.extend(uuid);
    bytes.extend(state.held.and_then(|held| held.holder).unwrap_or_default());
    debug_assert_eq!(bytes.len(), HEADER_BYTES);
    for (host, key) in &state.registrants {
        bytes.extend(host);
        bytes.extend(key.to_le_bytes());
    }
    let checksum = crc32c(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// Takes the next `N` bytes; the length was checked before.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// The state in a file's bytes, and the namespace to which it belongs.
fn decode(bytes: &[u8]) -> Result<(Reservations, [u8; 16]), Damage> {
    let length = |needed: usize| Damage::Length {
        got_bytes: bytes.len() as u64,
        needed_bytes: needed as u64,
    };
    let short = || length(HEADER_BYTES + CHECKSUM_BYTES);
    if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES {
        return Err(short());
    }
    let mut rest = bytes;
    if &take::<8>(&mut rest).ok_or_else(short)? != MAGIC {
        return Err(Damage::Magic);
    }
    let version = u16::from_le_bytes(take(&mut rest).ok_or_else(short)?);
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let [kind, persistent] = take(&mut rest).ok_or_else(short)?;
    let count = u32::from_le_bytes(take(&mut rest).ok_or_else(short)?) as usize;
    if count > REGISTRANTS_MAX {
        return Err(Damage::Content("more registrants than there can be"));
    }
    let needed = HEADER_BYTES + count * ENTRY_BYTES + CHECKSUM_BYTES;
    if bytes.len() != needed {
        return Err(length(needed));
    }
    let (content, checksum) = bytes.split_last_chunk().ok_or_else(short)?;
    let (got, computed) = (u32::from_le_bytes(*checksum), crc32c(content));
    if got != computed {
        return Err(Damage::Checksum { got, computed });
    }
    let uuid = take(&mut rest).ok_or_else(short)?;
    let holder: HostId = take(&mut rest).ok_or_else(short)?;
    let mut state = Reservations {
        persistent: persistent == 1,
        ..Reservations::default()
    };
    let mut last = None;
    for _ in 0..count {
        let host: HostId = take(&mut rest).ok_or_else(short)?;
        let key = u64::from_le_bytes(take(&mut rest).ok_or_else(short)?);
        if last.is_some_and(|last| last >= host) || key == 0 {
            return Err(Damage::Content("registrants out of order or without a key"));
        }
        last = Some(host);
        state.registrants.insert(host, key);
    }
    state.held = match (kind, ReservationType::from_code(kind)) {
        (0, _) => None,
        (_, None) => return Err(Damage::Content("a type of reservation that there is not")),
        (_, Some(kind)) => Some(Held {
            kind,
            holder: (!kind.is_held_by_all()).then_some(holder),
        }),
    };
    let holder_is_known = match state.held {
        None => holder == HostId::default(),
        Some(Held { holder: None, .. }) => holder == HostId::default() && count > 0,
        Some(Held {
            holder: Some(holder), ..
        }) => state.registrants.contains_key(&holder),
    };
    if !holder_is_known {
        return Err(Damage::Content("the holder is not a registrant"));
    }
    if persistent > 1 || persistent == 0 && count > 0 {
        return Err(Damage::Content("registrants that do not persist"));
    }
    Ok((state, uuid))
}

/// What is done to files, in the order in which [`save`] does it.
trait Disk {
    /// Creates or empties a file and writes it.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Makes a file's content durable.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Gives a file another's name, in place of that.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes a directory's names durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

struct SystemDisk;

impl Disk for SystemDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        std::fs::write(path, bytes)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// `path` with something behind its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Replaces the file's content, durably. Blocks.
fn save(disk: &impl Disk, path: &Path, bytes: &[u8]) -> Result<(), ReservationFileError> {
    let new = beside(path, ".new");
    let directory = directory_of(path);
    let failed = |action, at: &Path, source| ReservationFileError::Io {
        path: path.to_owned(),
        action,
        at: at.to_owned(),
        source,
    };
    disk.write(&new, bytes)
        .map_err(|error| failed("write", &new, error))?;
    disk.sync(&new).map_err(|error| failed("sync", &new, error))?;
    disk.rename(&new, path)
        .map_err(|error| failed("rename", &new, error))?;
    disk.sync_directory(directory)
        .map_err(|error| failed("sync", directory, error))
}

/// A file of reservations, opened for one namespace and locked against other uses.
#[derive(Debug)]
pub struct ReservationFile {
    path: PathBuf,
    uuid: [u8; 16],
    /// Beside the file, which is another one after each change.
    _lock: File,
    restored: Reservations,
}

impl ReservationFile {
    /// Opens the file for the namespace with this UUID and reads what it holds; one that is not there is made. Blocks
    /// for a few file operations.
    ///
    /// # Errors
    /// If the file is damaged, of another namespace, in use, or cannot be written.
    pub fn open(path: &Path, uuid: [u8; 16]) -> Result<Self, ReservationFileError> {
        let failed = |action, at: &Path, source| ReservationFileError::Io {
            path: path.to_owned(),
            action,
            at: at.to_owned(),
            source,
        };
        let at = beside(path, ".lock");
        let mut options = File::options();
        let lock = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(&at)
            .map_err(|error| failed("open", &at, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.to_owned();
                return Err(ReservationFileError::InUse { path, lock: at });
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &at, error)),
        }
        let damaged = |what| ReservationFileError::Damaged {
            path: path.to_owned(),
            what,
        };
        let restored = match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let nothing = Reservations::default();
                // A place where nothing can be written is found out now, not with the first reservation.
                save(&SystemDisk, path, &encode(&nothing, &uuid))?;
                nothing
            }
            Err(error) => return Err(failed("look at", path, error)),
            Ok(metadata) if metadata.len() > LENGTH_MAX as u64 => {
                return Err(damaged(Damage::Length {
                    got_bytes: metadata.len(),
                    needed_bytes: LENGTH_MAX as u64,
                }));
            }
            Ok(_) => {
                let bytes = std::fs::read(path).map_err(|error| failed("read", path, error))?;
                let (state, found) = decode(&bytes).map_err(damaged)?;
                if found != uuid {
                    return Err(ReservationFileError::OtherNamespace {
                        path: path.to_owned(),
                        found: format_uuid(&found),
                        wanted: format_uuid(&uuid),
                    });
                }
                state
            }
        };
        Ok(Self {
            path: path.to_owned(),
            uuid,
            _lock: lock,
            restored,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was in it when it was opened.
    pub(super) fn restored(&self) -> &Reservations {
        &self.restored
    }

    /// Writes a state; it is durable when this returns. A thread of its own waits for the disk, since an `fsync` may
    /// take long and a reactor must not.
    pub(super) async fn save(self: &Arc<Self>, state: &Reservations) -> Result<(), ReservationFileError> {
        let bytes = encode(state, &self.uuid);
        let own = self.clone();
        let (sender, mut result) = mailbox(1);
        let failed = |source| ReservationFileError::Io {
            path: self.path.clone(),
            action: "start a thread to write",
            at: self.path.clone(),
            source,
        };
        std::thread::Builder::new()
            .name("reservations".to_owned())
            .spawn(move || {
                let result = save(&SystemDisk, &own.path, &bytes);
                // Before the answer: who has it may remove the namespace and add it again.
                drop(own);
                // Who asked may have gone with its reactor.
                let _ = sender.try_send(result);
            })
            .map_err(failed)?;
        let ended = || Err(failed(io::Error::other("the thread ended early")));
        result.recv().await.unwrap_or_else(ended)
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
