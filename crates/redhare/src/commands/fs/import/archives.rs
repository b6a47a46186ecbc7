//! Entries of tar archives, plain or compressed, read by several threads: each takes the next archive when it is done
//! with one. Formats: POSIX.1-1988 and -2001 (pax), GNU's; gzip (RFC 1952) and zstd (RFC 8878) around them, by what a
//! file begins with.
//!
//! Entries of one archive come in its order, in runs of neighbours, since what belongs to one sample stands side by side;
//! runs of several archives alternate. A file of more than a run comes without anything in between.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use packfs::{Attributes, DeviceNumber, ImportPieces, Kind, Timestamp};
use tar::EntryType;

use super::super::feed::{Body, Lane, Message, Outlet, WHOLE_BYTES_MAX, more, queue, spawn};
use super::super::local::{Extended, LocalEntry, LocalKind, Specials, at, plain_path};
use crate::output::Failure;

/// Entries that threads may be ahead of the reactor.
const AHEAD: usize = 256;
/// A run ends after so many entries ...
const RUN_ENTRIES: usize = 64;
/// ... or so many bytes.
const RUN_BYTES: usize = 1 << 20;
/// Bytes that are read from an archive at once.
const READ_BYTES: usize = 256 << 10;

/// How an archive's names become paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// All go into one tree.
    Together,
    /// Each archive gets a directory of its name.
    ByArchive,
}

/// What archives give, as [`super::super::feed::Feed`] gives what directories have.
pub(super) struct Archives {
    entries: Lane,
    read_bytes: Arc<AtomicU64>,
    skipped: Arc<Mutex<Vec<PathBuf>>>,
}

/// What the reading threads share.
struct Shared {
    waiting: Mutex<VecDeque<PathBuf>>,
    naming: Naming,
    specials: Specials,
    read_bytes: Arc<AtomicU64>,
    skipped: Arc<Mutex<Vec<PathBuf>>>,
    /// Held while a run or a large file is sent.
    turn: Mutex<()>,
}

impl Archives {
    /// Starts `readers` threads that read `archives`; `-` is standard input.
    pub(super) fn start(
        archives: &[PathBuf],
        naming: Naming,
        specials: Specials,
        readers: usize,
    ) -> Result<Self, Failure> {
        let (outlet, entries) = queue(AHEAD);
        let shared = Arc::new(Shared {
            waiting: Mutex::new(archives.iter().cloned().collect()),
            naming,
            specials,
            read_bytes: Arc::default(),
            skipped: Arc::default(),
            turn: Mutex::new(()),
        });
        let (read_bytes, skipped) = (shared.read_bytes.clone(), shared.skipped.clone());
        for _ in 0..readers.clamp(1, archives.len().max(1)) {
            let (shared, outlet) = (shared.clone(), outlet.clone());
            spawn("fs archive", move || {
                loop {
                    let next = shared
                        .waiting
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .pop_front();
                    let Some(archive) = next else { break };
                    if !shared.read(&archive, &outlet) {
                        break;
                    }
                }
                outlet.close();
            })?;
        }
        outlet.close();
        Ok(Self {
            entries,
            read_bytes,
            skipped,
        })
    }

    /// The next entry; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<(LocalEntry, Body), Failure>> {
        match self.entries.next().await? {
            Message::Entry(entry, body) => Some(Ok((entry, body))),
            Message::Failed(failure) => Some(Err(failure)),
            Message::Piece(_) | Message::Hole(_) => unreachable!("pieces are taken before the next entry"),
        }
    }

    /// Bytes of the archives that were read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Pipes and devices that were left out.
    pub(super) fn skipped(self) -> Vec<PathBuf> {
        std::mem::take(&mut self.skipped.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ImportPieces for Archives {
    type Error = Failure;

    async fn more(&mut self) -> Result<Option<packfs::ImportPiece>, Failure> {
        more(&mut self.entries).await
    }
}

fn special_kind(kind: EntryType) -> Kind {
    match kind {
        EntryType::Char => Kind::CharacterDevice,
        EntryType::Block => Kind::BlockDevice,
        _ => Kind::Pipe,
    }
}

/// What a pipe or device is; sockets are in no archive.
fn special(header: &tar::Header) -> io::Result<LocalKind> {
    let kind = special_kind(header.entry_type());
    let device = match kind.is_device() {
        // A header that has no such field says nothing of them; old archives mean 0 then.
        true => DeviceNumber {
            major: header.device_major()?.unwrap_or(0),
            minor: header.device_minor()?.unwrap_or(0),
        },
        false => DeviceNumber::default(),
    };
    Ok(LocalKind::Special(kind, device))
}

/// Counts what is read.
struct Counted<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// What waits to be sent in one go.
#[derive(Default)]
struct Run {
    messages: Vec<Message>,
    bytes: usize,
}

impl Shared {
    /// Sends all of an archive; whether anybody still listens.
    fn read(&self, archive: &Path, outlet: &Outlet<Message>) -> bool {
        let mut run = Run::default();
        let failed = match self.entries(archive, outlet, &mut run) {
            Ok(heard) => return heard && self.send(&mut run, outlet),
            Err(failure) => failure,
        };
        // With what was read before: between another archive's pieces it would be taken for theirs.
        self.put(Message::Failed(failed), &mut run, outlet) && self.send(&mut run, outlet)
    }

    fn entries(&self, path: &Path, outlet: &Outlet<Message>, run: &mut Run) -> Result<bool, Failure> {
        let failed = |error: &io::Error| {
            let path = path.display();
            Failure::new(format!(
                "{path}: the archive cannot be read on: {error}; make it again, or check the file"
            ))
        };
        let mut archive = tar::Archive::new(self.open(path)?);
        for entry in archive.entries().map_err(|error| failed(&error))? {
            let mut entry = entry.map_err(|error| failed(&error))?;
            let found = self.entry(path, &mut entry);
            let local = match found {
                Ok(Some(local)) => local,
                Ok(None) => continue,
                Err(why) => {
                    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
                    let failure = Failure::new(format!("{}: {name}: {why}", path.display()));
                    if !self.put(Message::Failed(failure), run, outlet) {
                        return Ok(false);
                    }
                    continue;
                }
            };
            if local.kind == LocalKind::File && local.size_bytes > WHOLE_BYTES_MAX as u64 {
                if !self.send(run, outlet) || !self.large(local, &mut entry, outlet)? {
                    return Ok(false);
                }
                continue;
            }
            let body = match local.kind {
                LocalKind::Directory
                | LocalKind::HardLink(_)
                | LocalKind::KnownFile
                | LocalKind::Special(..) => Body::None,
                LocalKind::Symlink => Body::Whole(entry.link_name_bytes().unwrap_or_default().into_owned()),
                LocalKind::File => {
                    let mut bytes = Vec::with_capacity(local.size_bytes as usize);
                    entry.read_to_end(&mut bytes).map_err(|error| failed(&error))?;
                    if bytes.len() as u64 != local.size_bytes {
                        return Err(ended(path, &local, bytes.len() as u64));
                    }
                    run.bytes += bytes.len();
                    Body::Whole(bytes)
                }
            };
            if !self.put(Message::Entry(local, body), run, outlet) {
                return Ok(false);
            }
        }
        // What is behind the last entry is padding; but a compressed archive's checksum stands at its end, and is compared there.
        io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(|error| failed(&error))?;
        Ok(true)
    }

    /// Adds to a run, and sends it when it is long enough; whether anybody still listens.
    fn put(&self, message: Message, run: &mut Run, outlet: &Outlet<Message>) -> bool {
        run.messages.push(message);
        let full = run.messages.len() >= RUN_ENTRIES || run.bytes >= RUN_BYTES;
        !full || self.send(run, outlet)
    }

    fn send(&self, run: &mut Run, outlet: &Outlet<Message>) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let run = std::mem::take(run);
        run.messages.into_iter().all(|message| outlet.send(message))
    }

    /// Sends a file in pieces; whether anybody still listens.
    fn large(
        &self,
        local: LocalEntry,
        content: &mut impl Read,
        outlet: &Outlet<Message>,
    ) -> Result<bool, Failure> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, size) = (local.clone(), local.size_bytes);
        if !outlet.send(Message::Entry(local, Body::Pieces)) {
            return Ok(false);
        }
        let mut done = 0;
        loop {
            let mut bytes = Vec::with_capacity(WHOLE_BYTES_MAX);
            let read = content.take(WHOLE_BYTES_MAX as u64).read_to_end(&mut bytes);
            let piece = match read {
                Err(error) => Message::Failed(at(&file.file, &error)),
                Ok(0) if done < size => Message::Failed(ended(&file.file, &file, done)),
                Ok(0) => Message::Piece(Vec::new()),
                // A file that was sparse comes as zeros.
                Ok(count) if bytes.iter().all(|&byte| byte == 0) => Message::Hole(count as u64),
                Ok(_) => Message::Piece(bytes),
            };
            let last = match &piece {
                Message::Piece(bytes) => {
                    done += bytes.len() as u64;
                    bytes.is_empty()
                }
                Message::Hole(count) => {
                    done += count;
                    false
                }
                Message::Failed(_) | Message::Entry(..) => true,
            };
            let heard = outlet.send(piece);
            if !heard || last {
                return Ok(heard);
            }
        }
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Read>, Failure> {
        let failed = |error: io::Error| at(path, &error);
        let mut plain: Box<dyn Read> = match path.as_os_str() == "-" {
            true => Box::new(Counted(io::stdin(), self.read_bytes.clone())),
            false => {
                let file = File::open(path).map_err(failed)?;
                Box::new(Counted(file, self.read_bytes.clone()))
            }
        };
        let mut first = Vec::new();
        plain.by_ref().take(4).read_to_end(&mut first).map_err(failed)?;
        let whole = BufReader::with_capacity(READ_BYTES, Cursor::new(first.clone()).chain(plain));
        Ok(match first[..] {
            // Several members behind each other are one file, as parallel compressors write it.
            [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
            [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::with_buffer(whole).map_err(failed)?),
            _ => Box::new(whole),
        })
    }

    /// Whether a pipe or device is taken.
    fn takes(&self, header: &tar::Header) -> bool {
        self.specials.take(special_kind(header.entry_type()))
    }

    /// What an entry is; `None` for what is left out.
    fn entry<R: Read>(
        &self,
        archive: &Path,
        entry: &mut tar::Entry<'_, R>,
    ) -> Result<Option<LocalEntry>, String> {
        let header = entry.header().clone();
        let own = |path: &[u8]| -> Result<Vec<u8>, String> {
            let path = plain_path(path)?;
            Ok(match self.naming {
                Naming::Together => path,
                Naming::ByArchive => [&stem(archive)[..], &path].join(&b'/'),
            })
        };
        let path = own(&entry.path_bytes())?;
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => LocalKind::File,
            EntryType::Directory => LocalKind::Directory,
            EntryType::Symlink => LocalKind::Symlink,
            EntryType::Link => {
                let target = entry.link_name_bytes().ok_or("a hard link that names nothing")?;
                LocalKind::HardLink(own(&target)?)
            }
            EntryType::XGlobalHeader => return Ok(None),
            EntryType::Char | EntryType::Block | EntryType::Fifo if self.takes(&header) => {
                special(&header).map_err(|error| error.to_string())?
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
                skipped.push(archive.join(String::from_utf8_lossy(&path).as_ref()));
                return Ok(None);
            }
            other => {
                return Err(format!(
                    "has the type {:#04x}, which is not known",
                    other.as_byte()
                ));
            }
        };
        // Some programs leave fields empty that they have nothing to say in.
        let number =
            |value: io::Result<u64>, field: &[u8]| match field.iter().all(|byte| matches!(byte, 0 | b' ')) {
                true => Ok(0),
                false => value.map_err(|error| error.to_string()),
            };
        let fields = header.as_old();
        let id = |value: io::Result<u64>, field: &[u8]| {
            let wide = number(value, field)?;
            u32::try_from(wide)
                .map_err(|_| format!("belongs to {wide}, which is no user or group of this system"))
        };
        let mtime = Timestamp {
            seconds: i64::try_from(number(header.mtime(), &fields.mtime)?)
                .map_err(|error| error.to_string())?,
            nanoseconds: 0,
        };
        let mut attributes = Attributes {
            mode: header.mode().map_err(|error| error.to_string())? & 0o7777,
            uid: id(header.uid(), &fields.uid)?,
            gid: id(header.gid(), &fields.gid)?,
            mtime,
            atime: mtime,
            ctime: mtime,
        };
        let extended = extensions(entry, &mut attributes)?;
        let size_bytes = match kind {
            LocalKind::File => entry.size(),
            _ => 0,
        };
        Ok(Some(LocalEntry {
            path,
            file: archive.to_owned(),
            attributes,
            kind,
            size_bytes,
            links: 1,
            extended: Some(extended),
        }))
    }
}

/// Extended attributes, as GNU tar and star keep them; and the times, which are exact only there.
fn extensions<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    attributes: &mut Attributes,
) -> Result<Extended, String> {
    let mut extended = Vec::new();
    let unreadable =
        "its extended header cannot be read (values with line breaks cannot); archive it in another format";
    let Some(records) = entry.pax_extensions().map_err(|_| unreadable)? else {
        return Ok(extended);
    };
    let mut mtime = None;
    for record in records {
        let record = record.map_err(|_| unreadable)?;
        match record.key_bytes() {
            b"mtime" => mtime = Some(time(record.value_bytes()).ok_or("its time of change is no time")?),
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(
                    "is a sparse file as GNU tar keeps it in archives of the format pax, which is not read; archive it with \
                     --format=gnu, or without --sparse"
                        .to_owned(),
                );
            }
            key => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.")
                    && !name.starts_with(b"system.")
                    && !name.starts_with(b"security.selinux")
                {
                    extended.push((name.to_vec(), record.value_bytes().to_vec()));
                }
            }
        }
    }
    if let Some(mtime) = mtime {
        (attributes.mtime, attributes.atime, attributes.ctime) = (mtime, mtime, mtime);
    }
    Ok(extended)
}

/// Seconds with a fraction (POSIX.1-2017, pax: "pax Extended Header File Times").
fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole_seconds = whole.parse::<i64>().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds = digits.parse::<u32>().ok()?;
    // A time before 1970 counts its fraction away from zero.
    Some(match (whole.starts_with('-'), nanoseconds) {
        (true, 1..) => Timestamp {
            seconds: whole_seconds.checked_sub(1)?,
            nanoseconds: 1_000_000_000 - nanoseconds,
        },
        _ => Timestamp {
            seconds: whole_seconds,
            nanoseconds,
        },
    })
}

/// An archive's name without what says that it is one.
pub(super) fn stem(archive: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let name = archive.file_name().unwrap_or_default().as_bytes();
    let known = [".tar.gz", ".tar.zst", ".tgz", ".tzst", ".tar"];
    let ending = known.iter().find(|ending| name.ends_with(ending.as_bytes()));
    let stem = &name[..name.len() - ending.map_or(0, |ending| ending.len())];
    match stem {
        [] => name.to_vec(),
        stem => stem.to_vec(),
    }
}

fn ended(path: &Path, local: &LocalEntry, done: u64) -> Failure {
    Failure::new(format!(
        "{}: the archive ends in the middle of {}, after {done} of {} bytes; make it again, or fetch the rest of it",
        path.display(),
        String::from_utf8_lossy(&local.path),
        local.size_bytes
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_fractions() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("1000000000.123456789", Some((1_000_000_000, 123_456_789))),
            ("7.5", Some((7, 500_000_000))),
            ("7.0000000019", Some((7, 1))),
            ("-1.25", Some((-2, 750_000_000))),
            ("-0.5", Some((-1, 500_000_000))),
            ("-3", Some((-3, 0))),
            ("", None),
            ("1.x", None),
            ("1.-5", None),
            ("99999999999999999999", None),
        ] {
            let expected = expected.map(|(seconds, nanoseconds)| Timestamp { seconds, nanoseconds });
            assert_eq!(time(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn archives_are_named_without_their_ending() {
        for (path, expected) in [
            ("a/train-00.tar", "train-00"),
            ("train-00.tar.gz", "train-00"),
            ("x.tgz", "x"),
            ("x.y.tar.zst", "x.y"),
            ("data", "data"),
            (".tar", ".tar"),
        ] {
            assert_eq!(stem(Path::new(path)), expected.as_bytes(), "{path}");
        }
    }
}
