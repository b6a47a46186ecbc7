//! Threads that read local files and hand them to a task of the reactor, in order, within bounded memory.
//!
//! A lane is one thread and the queue of what it has read. Files up to [`WHOLE_BYTES_MAX`] come whole, larger ones
//! in pieces of as much; a queue holds [`AHEAD`] of either, so a lane takes 9 MiB at most.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use reactor::mailbox::{Mailbox, MailboxSender, mailbox};

use super::local::{LocalEntry, LocalKind, LocalWalk, at};
use crate::output::Failure;

/// The largest file that comes in one message, in bytes.
pub(super) const WHOLE_BYTES_MAX: usize = 1 << 20;
/// Messages that a thread may be ahead of the reactor.
const AHEAD: usize = 8;
/// Entries that a walk may be ahead of each lane.
const ENTRIES_AHEAD: usize = 256;

/// What a lane gives.
pub(super) enum Message {
    /// An entry with its content.
    Entry(LocalEntry, Body),
    /// More of a large file; empty at its end.
    Piece(Vec<u8>),
    /// Something could not be read. The lane goes on with the next entry.
    Failed(Failure),
}

/// An entry's content.
pub(super) enum Body {
    /// A directory or a further name.
    None,
    /// The whole file, or the link's target.
    Whole(Vec<u8>),
    /// A large file: pieces follow.
    Pieces,
}

struct Outlet {
    messages: SyncSender<Message>,
    wake: MailboxSender<()>,
}

impl Outlet {
    /// Whether anybody still listens.
    fn send(&self, message: Message) -> bool {
        let sent = self.messages.send(message).is_ok();
        // A full mailbox wakes the reader already.
        let _ = self.wake.try_send(());
        sent
    }
}

/// See the module.
pub(super) struct Lane {
    messages: Receiver<Message>,
    wake: Mailbox<()>,
}

impl Lane {
    /// Starts a thread that reads `entries`.
    pub(super) fn start(
        entries: impl Iterator<Item = Result<LocalEntry, Failure>> + Send + 'static,
    ) -> Result<Self, Failure> {
        let (sender, messages) = sync_channel(AHEAD);
        let (wake_sender, wake) = mailbox(1);
        let outlet = Outlet {
            messages: sender,
            wake: wake_sender,
        };
        spawn("fs reader", move || {
            for entry in entries {
                let heard = match entry.and_then(|entry| read(entry, &outlet)) {
                    Ok(heard) => heard,
                    Err(failure) => outlet.send(Message::Failed(failure)),
                };
                if !heard {
                    break;
                }
            }
            // The reader must find the queue closed when it is woken by the mailbox's end.
            drop(outlet.messages);
            drop(outlet.wake);
        })?;
        Ok(Self { messages, wake })
    }

    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Message> {
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
}

/// Reads an entry and sends it; whether anybody still listens.
fn read(entry: LocalEntry, outlet: &Outlet) -> Result<bool, Failure> {
    match entry.kind {
        LocalKind::Directory | LocalKind::HardLink(_) => Ok(outlet.send(Message::Entry(entry, Body::None))),
        LocalKind::Symlink => {
            let target = std::fs::read_link(&entry.file).map_err(|error| at(&entry.file, &error))?;
            let target = target.into_os_string().into_vec();
            Ok(outlet.send(Message::Entry(entry, Body::Whole(target))))
        }
        LocalKind::File => {
            let path = entry.file.clone();
            let mut file = File::open(&path).map_err(|error| at(&path, &error))?;
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

/// A directory tree read by several lanes, given in the order of the walk.
pub(super) struct Feed {
    lanes: Vec<Lane>,
    /// Whose turn it is.
    turn: usize,
    walk: Option<JoinHandle<Vec<PathBuf>>>,
}

impl Feed {
    /// Starts a walk of `root` and `readers` threads that read.
    pub(super) fn start(root: &Path, readers: usize) -> Result<Self, Failure> {
        let mut walk = LocalWalk::new(root)?;
        let mut lanes = Vec::new();
        let mut queues = Vec::new();
        for _ in 0..readers.max(1) {
            let (queue, entries) = sync_channel(ENTRIES_AHEAD);
            lanes.push(Lane::start(entries.into_iter())?);
            queues.push(queue);
        }
        let walk = spawn("fs walk", move || {
            for queue in queues.iter().cycle() {
                let next = walk.next();
                let failed = next.is_err();
                let Some(entry) = next.transpose() else { break };
                if queue.send(entry).is_err() || failed {
                    break;
                }
            }
            walk.skipped().to_vec()
        })?;
        Ok(Self {
            lanes,
            turn: 0,
            walk: Some(walk),
        })
    }

    /// The next entry in the order of the walk.
    pub(super) async fn next(&mut self) -> Option<Result<(LocalEntry, Body), Failure>> {
        let lane = self.turn % self.lanes.len();
        self.turn += 1;
        match self.lanes[lane].next().await? {
            Message::Entry(entry, body) => Some(Ok((entry, body))),
            Message::Failed(failure) => Some(Err(failure)),
            Message::Piece(_) => unreachable!("pieces are taken before the next entry"),
        }
    }

    /// The next piece of the large file that [`Feed::next`] gave last; empty at its end.
    pub(super) async fn more(&mut self) -> Result<Vec<u8>, Failure> {
        let lane = (self.turn + self.lanes.len() - 1) % self.lanes.len();
        match self.lanes[lane].next().await {
            Some(Message::Piece(bytes)) => Ok(bytes),
            Some(Message::Failed(failure)) => Err(failure),
            Some(Message::Entry(..)) => unreachable!("a large file ends with an empty piece"),
            None => Err(Failure::new("a reading thread ended early; try again")),
        }
    }

    /// Sockets, pipes and devices that the walk left out; to be asked at the end.
    pub(super) fn skipped(&mut self) -> Vec<PathBuf> {
        self.lanes.clear();
        let walk = self.walk.take();
        walk.and_then(|walk| walk.join().ok()).unwrap_or_default()
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread
        .spawn(work)
        .map_err(|error| Failure::new(format!("a thread could not be started: {error}")))
}
