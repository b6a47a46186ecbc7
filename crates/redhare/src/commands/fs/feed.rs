//! Threads that read local files and hand them to a task of the reactor, within bounded memory.
//!
//! A lane is a queue of what was read, and the thread that reads. Files up to [`WHOLE_BYTES_MAX`] come whole, larger
//! ones in pieces of as much; a queue holds [`AHEAD`] of either, so a lane takes 9 MiB at most.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use packfs::{ImportPieces, Importer, Standing};
use reactor::mailbox::{Mailbox, MailboxSender, mailbox};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::local::{self, Entries, LocalEntry, LocalKind, at};
use crate::output::Failure;

/// The largest file that comes in one message, in bytes.
pub(super) const WHOLE_BYTES_MAX: usize = 1 << 20;
/// Messages that a thread may be ahead of the reactor.
const AHEAD: usize = 8;
/// Entries that a walk may be ahead.
const WALK_AHEAD: usize = 1024;
/// Entries that wait for each lane at most.
const ENTRIES_AHEAD: usize = 64;

/// What a lane gives.
pub(super) enum Message {
    /// An entry with its content.
    Entry(LocalEntry, Body),
    /// More of a large file; empty at its end.
    Piece(Vec<u8>),
    /// So many zeros of a large file that take no space; from lanes that look for holes only.
    Hole(u64),
    /// Something could not be read. The lane goes on with the next entry.
    Failed(Failure),
}

/// An entry's content.
pub(super) enum Body {
    /// A directory, a further name, or what is known already.
    None,
    /// The whole file, or the link's target.
    Whole(Vec<u8>),
    /// A large file: pieces follow.
    Pieces,
}

/// What a lane reads besides content.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// Holes of large files come as such.
    pub(super) holes: bool,
    /// Extended attributes.
    pub(super) extended: bool,
}

/// The sending side of a queue to a task.
pub(super) struct Outlet<T> {
    messages: SyncSender<T>,
    wake: MailboxSender<()>,
}

impl<T> Outlet<T> {
    /// Waits for room; whether anybody still listens.
    pub(super) fn send(&self, message: T) -> bool {
        let sent = self.messages.send(message).is_ok();
        // A full mailbox wakes the reader already.
        let _ = self.wake.try_send(());
        sent
    }

    /// The receiver must find the queue closed when it is woken by the mailbox's end.
    pub(super) fn close(self) {
        drop(self.messages);
        drop(self.wake);
    }
}

impl<T> Clone for Outlet<T> {
    fn clone(&self) -> Self {
        Self {
            messages: self.messages.clone(),
            wake: self.wake.clone(),
        }
    }
}

/// The receiving side, for one task.
pub(super) struct Inlet<T> {
    messages: Receiver<T>,
    wake: Mailbox<()>,
}

/// A queue from threads to a task.
pub(super) fn queue<T>(capacity: usize) -> (Outlet<T>, Inlet<T>) {
    let (sender, messages) = sync_channel(capacity);
    let (wake_sender, wake) = mailbox(1);
    let outlet = Outlet {
        messages: sender,
        wake: wake_sender,
    };
    (outlet, Inlet { messages, wake })
}

impl<T> Inlet<T> {
    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<T> {
        loop {
            match self.messages.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {
                    self.wake.recv().await;
                }
            }
        }
    }

    /// The next message, if there is one.
    fn try_next(&mut self) -> Option<T> {
        self.messages.try_recv().ok()
    }
}

/// See the module.
pub(super) type Lane = Inlet<Message>;

/// Starts a thread that reads `entries`.
pub(super) fn lane(
    entries: impl Iterator<Item = LocalEntry> + Send + 'static,
    reading: Reading,
) -> Result<Lane, Failure> {
    let (outlet, inlet) = queue(AHEAD);
    spawn("fs reader", move || {
        for entry in entries {
            let heard = match read(entry, reading, &outlet) {
                Ok(heard) => heard,
                Err(failure) => outlet.send(Message::Failed(failure)),
            };
            if !heard {
                break;
            }
        }
        outlet.close();
    })?;
    Ok(inlet)
}

/// Reads an entry and sends it; whether anybody still listens.
fn read(mut entry: LocalEntry, reading: Reading, outlet: &Outlet<Message>) -> Result<bool, Failure> {
    if reading.extended && !matches!(entry.kind, LocalKind::HardLink(_)) {
        entry.extended = Some(local::extended(&entry.file)?);
    }
    match entry.kind {
        LocalKind::Directory | LocalKind::HardLink(_) | LocalKind::KnownFile | LocalKind::Special(..) => {
            Ok(outlet.send(Message::Entry(entry, Body::None)))
        }
        LocalKind::Symlink => {
            let target = std::fs::read_link(&entry.file).map_err(|error| at(&entry.file, &error))?;
            let target = target.into_os_string().into_vec();
            Ok(outlet.send(Message::Entry(entry, Body::Whole(target))))
        }
        LocalKind::File => {
            let path = entry.file.clone();
            let mut file = File::open(&path).map_err(|error| at(&path, &error))?;
            if reading.holes && entry.size_bytes > WHOLE_BYTES_MAX as u64 && has_holes(&file, &path)? {
                return Ok(outlet.send(Message::Entry(entry, Body::Pieces)) && sparse(&file, &path, outlet)?);
            }
            let likely = entry.size_bytes.min(WHOLE_BYTES_MAX as u64) as usize;
            let first = piece(&mut file, &path, likely)?;
            if first.len() <= WHOLE_BYTES_MAX {
                return Ok(outlet.send(Message::Entry(entry, Body::Whole(first))));
            }
            let mut heard = outlet.send(Message::Entry(entry, Body::Pieces));
            let mut bytes = first;
            while heard && !bytes.is_empty() {
                heard = outlet.send(Message::Piece(bytes));
                bytes = piece(&mut file, &path, WHOLE_BYTES_MAX)?;
            }
            Ok(heard && outlet.send(Message::Piece(Vec::new())))
        }
    }
}

/// Up to one byte more than [`WHOLE_BYTES_MAX`], so that what is longer shows.
fn piece(file: &mut File, path: &Path, likely: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::with_capacity(likely + 1);
    let limit = WHOLE_BYTES_MAX as u64 + 1;
    let read = file.take(limit).read_to_end(&mut bytes);
    read.map_err(|error| at(path, &error))?;
    Ok(bytes)
}

fn has_holes(file: &File, path: &Path) -> Result<bool, Failure> {
    let metadata = file.metadata().map_err(|error| at(path, &error))?;
    Ok(metadata.blocks().saturating_mul(512) < metadata.size())
}

/// Sends what a file with holes has; whether anybody still listens.
fn sparse(file: &File, path: &Path, outlet: &Outlet<Message>) -> Result<bool, Failure> {
    let size = file.metadata().map_err(|error| at(path, &error))?.size();
    let seek = |place, otherwise| match rustix::fs::seek(file, place) {
        Ok(found) => Ok(found.min(size)),
        // Nothing follows, or this file system does not tell.
        Err(Errno::NXIO) => Ok(size),
        Err(Errno::INVAL) => Ok(otherwise),
        Err(error) => Err(at(path, &error.into())),
    };
    let mut from = 0;
    while from < size {
        let data = seek(SeekFrom::Data(from), from)?;
        if data > from && !outlet.send(Message::Hole(data - from)) {
            return Ok(false);
        }
        let hole = match data < size {
            true => seek(SeekFrom::Hole(data), size)?,
            false => size,
        };
        from = data;
        while from < hole {
            let mut bytes = vec![0; (hole - from).min(WHOLE_BYTES_MAX as u64) as usize];
            let read = file.read_exact_at(&mut bytes, from);
            read.map_err(|error| at(path, &error))?;
            from += bytes.len() as u64;
            if !outlet.send(Message::Piece(bytes)) {
                return Ok(false);
            }
        }
    }
    Ok(outlet.send(Message::Piece(Vec::new())))
}

/// What was asked for next.
pub(super) enum Next {
    /// An entry with its content.
    Entry(LocalEntry, Body),
    /// A file that is on the volume with all its attributes.
    Same(LocalEntry),
}

/// What waits to be given, in the order of the walk.
enum Waiting {
    Lane(usize),
    Same(LocalEntry),
    Failed(Failure),
}

/// Local entries, asked for by the importer before they are read by several lanes, given in the order of the walk.
pub(super) struct Feed {
    walk: Inlet<Result<LocalEntry, Failure>>,
    lanes: Vec<Lane>,
    /// What each lane is to read.
    orders: Vec<SyncSender<LocalEntry>>,
    /// Who gets the next entry.
    turn: usize,
    /// Whose large file is being given.
    current: usize,
    waiting: VecDeque<Waiting>,
    skipped: Arc<Mutex<Vec<PathBuf>>>,
}

impl Feed {
    /// Starts a walk and `readers` threads that read.
    pub(super) fn start(mut walk: impl Entries, readers: usize) -> Result<Self, Failure> {
        let (mut lanes, mut orders) = (Vec::new(), Vec::new());
        let reading = Reading {
            holes: true,
            extended: true,
        };
        for _ in 0..readers.max(1) {
            let (order, entries) = sync_channel(ENTRIES_AHEAD);
            lanes.push(lane(entries.into_iter(), reading)?);
            orders.push(order);
        }
        let (outlet, inlet) = queue(WALK_AHEAD);
        let skipped: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
        let shared = skipped.clone();
        spawn("fs walk", move || {
            loop {
                let next = walk.next().transpose();
                // Before the entry, and before the end: whoever has been told of that finds all of them.
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let known = shared.len();
                shared.extend_from_slice(&walk.skipped()[known..]);
                drop(shared);
                if !next.is_some_and(|entry| outlet.send(entry)) {
                    break;
                }
            }
            outlet.close();
        })?;
        Ok(Self {
            walk: inlet,
            lanes,
            orders,
            turn: 0,
            current: 0,
            waiting: VecDeque::new(),
            skipped,
        })
    }

    /// The next entry in the order of the walk; asks where those stand that come behind it.
    pub(super) async fn next(&mut self, importer: &Importer<'_>) -> Option<Result<Next, Failure>> {
        // As many as all lanes hold, one after the other: so none of them is ever full.
        while self.waiting.len() < self.lanes.len() * ENTRIES_AHEAD {
            let found = match self.waiting.is_empty() {
                true => self.walk.next().await,
                false => self.walk.try_next(),
            };
            let Some(found) = found else { break };
            let waiting = match found {
                Ok(entry) => self.order(entry, importer).await,
                Err(failure) => Waiting::Failed(failure),
            };
            self.waiting.push_back(waiting);
        }
        match self.waiting.pop_front()? {
            Waiting::Same(entry) => Some(Ok(Next::Same(entry))),
            Waiting::Failed(failure) => Some(Err(failure)),
            Waiting::Lane(lane) => {
                self.current = lane;
                Some(match self.lanes[lane].next().await {
                    Some(Message::Entry(entry, body)) => Ok(Next::Entry(entry, body)),
                    Some(Message::Failed(failure)) => Err(failure),
                    Some(Message::Piece(_) | Message::Hole(_)) => {
                        unreachable!("pieces are taken before the next entry")
                    }
                    None => Err(Failure::new("a reading thread ended early; try again")),
                })
            }
        }
    }

    async fn order(&mut self, mut entry: LocalEntry, importer: &Importer<'_>) -> Waiting {
        if entry.kind == LocalKind::File {
            let standing = importer
                .standing(&entry.path, &entry.attributes, entry.size_bytes)
                .await;
            match standing {
                Ok(Standing::Same) => return Waiting::Same(entry),
                Ok(Standing::SameContent) => entry.kind = LocalKind::KnownFile,
                Ok(Standing::Wanted) => {}
                Err(error) => return Waiting::Failed(Failure::new(error)),
            }
        }
        let lane = self.turn % self.lanes.len();
        self.turn += 1;
        match self.orders[lane].try_send(entry) {
            Ok(()) => Waiting::Lane(lane),
            Err(_) => Waiting::Failed(Failure::new("a reading thread ended early; try again")),
        }
    }

    /// Sockets, pipes and devices that the walk has left out so far: all of them once there is no next entry. Does not
    /// wait for the walk, which may hang as its file system does.
    pub(super) fn skipped(&self) -> Vec<PathBuf> {
        self.skipped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ImportPieces for Feed {
    type Error = Failure;

    async fn more(&mut self) -> Result<Option<packfs::ImportPiece>, Failure> {
        more(&mut self.lanes[self.current]).await
    }
}

/// The next piece of the large file that a lane gave last.
pub(super) async fn more(lane: &mut Lane) -> Result<Option<packfs::ImportPiece>, Failure> {
    match lane.next().await {
        Some(Message::Piece(bytes)) if bytes.is_empty() => Ok(None),
        Some(Message::Piece(bytes)) => Ok(Some(packfs::ImportPiece::Bytes(bytes))),
        Some(Message::Hole(length)) => Ok(Some(packfs::ImportPiece::Hole(length))),
        Some(Message::Failed(failure)) => Err(failure),
        Some(Message::Entry(..)) => unreachable!("a large file ends with an empty piece or a failure"),
        None => Err(Failure::new("a reading thread ended early; try again")),
    }
}

/// Starts a thread.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread
        .spawn(work)
        .map_err(|error| Failure::new(format!("a thread could not be started: {error}")))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    /// Leaves a pipe out and then hangs for as long as the test runs.
    struct Hanging {
        hangs: Sender<()>,
        until: Receiver<()>,
        skipped: Vec<PathBuf>,
    }

    impl Entries for Hanging {
        fn next(&mut self) -> Result<Option<LocalEntry>, Failure> {
            if self.skipped.is_empty() {
                self.skipped.push("pipe".into());
                return Err(Failure::new("not this one"));
            }
            self.hangs.send(()).unwrap();
            let _ = self.until.recv();
            Ok(None)
        }

        fn skipped(&self) -> &[PathBuf] {
            &self.skipped
        }
    }

    #[test]
    fn nobody_waits_for_a_walk_that_hangs() {
        let (hangs, begun) = std::sync::mpsc::channel();
        let (ends, until) = std::sync::mpsc::channel();
        let walk = Hanging {
            hangs,
            until,
            skipped: Vec::new(),
        };
        let feed = Feed::start(walk, 2).unwrap();
        begun.recv().unwrap();
        assert_eq!(feed.skipped(), [PathBuf::from("pipe")]);
        drop(feed);
        drop(ends);
    }
}
