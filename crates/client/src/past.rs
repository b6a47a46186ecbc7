//! Reads past the node: a client on the node's machine asks where a chunk lies and reads the disk itself
//! (decision 0059; HDFS knows the same as short-circuit reads).
//!
//! What was read counts only if the node's board says afterwards that the chunk is as it was and may be read still
//! ([`Location`]); otherwise the node is asked, as it is whenever anything about this fails. A read costs one ring
//! operation on the disk and four loads; the node does not hear of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bdev::Data;
use foundation::Instant;
use reactor::file::{File, OpenOptions};
use reactor::shared::{self, Words};
use reactor::{BufferMut, BufferPool, spawn, time};
use volume::client::{Answer, AnswerSink, PeerStatus, Place, Reply};
use volume::message::codec::{Location, NativeCommand, NativeOperation, OpenFile, Run};
use volume::{ChunkIndex, Status, VolumeNumber};

use crate::connection::Connection;

/// Blocks of every volume so far.
const BLOCK_BYTES: u64 = 4096;
/// Room for an answer: a chunk in a thousand runs.
const LOCATION_BYTES: usize = 16 << 10;
/// A chunk that may not be read now is asked for again after this.
const PAUSE: Duration = Duration::from_millis(100);
/// One that could not be located, or not be opened, after this.
const LONG_PAUSE: Duration = Duration::from_secs(10);

/// A chunk of a volume.
type Key = (VolumeNumber, ChunkIndex);

/// What is known of a chunk.
enum Known {
    /// The node has been asked.
    Asked,
    /// Not to be asked for before this.
    Not(Instant),
    Here(Rc<View>),
}

/// A chunk on a disk that is open here.
struct View {
    board: Rc<Words>,
    slot: usize,
    version: u64,
    disk: File,
    runs: Vec<Run>,
}

impl View {
    /// Whether the chunk may be read and lies where it did.
    fn is_true(&self) -> bool {
        self.board.load(self.slot) == Some(self.version)
            && self
                .board
                .load(self.slot + 1)
                .is_some_and(|until| time::now().as_nanos() < until)
            && self.board.is_alive()
    }

    /// Where these blocks lie on the disk, if they are all there and follow each other.
    fn offset(&self, first_block: u32, blocks: u32) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.first_block <= first_block);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let skipped = first_block - run.first_block;
        let ends = u64::from(skipped) + u64::from(blocks);
        (ends <= u64::from(run.blocks)).then_some(run.offset_bytes + u64::from(skipped) * BLOCK_BYTES)
    }
}

/// Reads past one node, by one connection with it.
#[derive(Default)]
pub(crate) struct Past {
    /// None where the node's disks are not to be read from here.
    counted: Option<std::sync::Arc<AtomicU64>>,
    chunks: RefCell<BTreeMap<Key, Known>>,
    board: RefCell<Option<(u128, Rc<Words>)>>,
    disks: RefCell<BTreeMap<(u64, u64), File>>,
    /// Something could not be opened: no chunk is asked for before this.
    closed_until: Cell<Instant>,
    told: Cell<bool>,
}

impl Past {
    /// Reads past the node, each of which is counted.
    pub(crate) fn new(counted: Option<std::sync::Arc<AtomicU64>>) -> Self {
        Self {
            counted,
            ..Self::default()
        }
    }

    /// The view of the chunk that a command reads, and where its blocks lie. If there is none the node is asked for it,
    /// for later reads.
    fn find(
        &self,
        connection: &Connection,
        command: &NativeCommand,
        place: Place,
    ) -> Option<(Rc<View>, u64)> {
        if command.operation != NativeOperation::Read {
            return None;
        }
        self.counted.as_ref()?;
        if self.closed_until.get() > Instant::default() && time::now() < self.closed_until.get() {
            return None;
        }
        let key = (command.volume, place.chunk);
        let mut chunks = self.chunks.borrow_mut();
        match chunks.get(&key) {
            Some(Known::Here(view)) if view.is_true() => {
                let offset = view.offset(place.first_block, command.blocks)?;
                return Some((view.clone(), offset));
            }
            Some(Known::Here(_)) => drop(chunks.insert(key, Known::Not(time::now() + PAUSE))),
            Some(Known::Not(until)) if time::now() >= *until => {
                chunks.insert(key, Known::Asked);
                drop(chunks);
                self.ask(connection, key, command);
            }
            Some(Known::Asked | Known::Not(_)) => {}
            None => {
                chunks.insert(key, Known::Asked);
                drop(chunks);
                self.ask(connection, key, command);
            }
        }
        None
    }

    fn ask(&self, connection: &Connection, key: Key, read: &NativeCommand) {
        let Ok(room) = BufferPool::current().try_allocate(LOCATION_BYTES) else {
            return self.put_off(key, PAUSE);
        };
        let command = NativeCommand {
            operation: NativeOperation::Locate,
            blocks: 0,
            ..*read
        };
        let sink = Rc::new(Locating {
            connection: connection.own(),
            key,
        });
        connection.send(&command, Data::Into(room), Reply::new(sink, 0));
    }

    fn put_off(&self, key: Key, pause: Duration) {
        let until = time::now() + pause;
        self.chunks.borrow_mut().insert(key, Known::Not(until));
    }

    fn located(&self, key: Key, answer: &Answer) {
        let (PeerStatus::Answered(Status::Done), Data::Into(bytes)) = (answer.status, &answer.data) else {
            return self.put_off(key, LONG_PAUSE);
        };
        let opened = Location::decode(bytes)
            .map_err(|error| error.to_string())
            .and_then(|location| self.open(location).map_err(|error| error.to_string()));
        match opened {
            Ok(Some(view)) => drop(self.chunks.borrow_mut().insert(key, Known::Here(Rc::new(view)))),
            Ok(None) => self.put_off(key, PAUSE),
            Err(error) => {
                if !self.told.replace(true) {
                    tracing::info!(%error, "a node of this machine is read through, not past");
                }
                self.put_off(key, LONG_PAUSE);
                self.closed_until.set(time::now() + LONG_PAUSE);
            }
        }
    }

    /// Opens what the node named; none if the chunk may not be read now.
    fn open(&self, location: Location) -> std::io::Result<Option<View>> {
        if !location.version.is_multiple_of(2) {
            return Ok(None);
        }
        let other = |why: &str| std::io::Error::other(why.to_owned());
        if std::fs::metadata("/proc/self/ns/time")?.ino() != location.time_namespace {
            return Err(other("it lives in another time namespace"));
        }
        let board = self.open_board(&location)?;
        let disk = self.open_disk(location.process, location.disk)?;
        Ok(Some(View {
            board,
            slot: usize::try_from(location.slot).map_err(|_| other("its board is too long"))?,
            version: location.version,
            disk,
            runs: location.runs,
        }))
    }

    fn open_board(&self, location: &Location) -> std::io::Result<Rc<Words>> {
        let mut board = self.board.borrow_mut();
        if let Some((identity, words)) = &*board
            && *identity == location.board_identity
        {
            return Ok(words.clone());
        }
        let descriptor = i32::try_from(location.board).map_err(std::io::Error::other)?;
        let words = Words::open(location.process, descriptor)?;
        let word = |at| words.load(at).map(u128::from);
        let found = word(0).zip(word(1)).map(|(low, high)| low | high << 64);
        if found != Some(location.board_identity) {
            return Err(std::io::Error::other(
                "what it calls its board is something else here (another process namespace?)",
            ));
        }
        let words = Rc::new(words);
        *board = Some((location.board_identity, words.clone()));
        Ok(words)
    }

    /// The disk, as an open file of our own: not the one whose lock says that the node lives.
    fn open_disk(&self, process: u32, named: OpenFile) -> std::io::Result<File> {
        let key = (named.device, named.inode);
        if let Some(file) = self.disks.borrow().get(&key) {
            return Ok(file.clone());
        }
        let descriptor = i32::try_from(named.descriptor).map_err(std::io::Error::other)?;
        let options = OpenOptions {
            direct: true,
            ..OpenOptions::default()
        };
        let file = File::open(&shared::path_of(process, descriptor), options)?;
        let copy: Option<OwnedFd> = file.duplicate()?;
        let found = std::fs::File::from(copy.ok_or(std::io::ErrorKind::Unsupported)?).metadata()?;
        if (found.dev(), found.ino()) != key {
            return Err(std::io::Error::other(
                "what it calls its disk is another file here",
            ));
        }
        self.disks.borrow_mut().insert(key, file.clone());
        Ok(file)
    }
}

/// The answer to where a chunk lies.
struct Locating {
    connection: Weak<Connection>,
    key: Key,
}

impl AnswerSink for Locating {
    fn answer(&self, _: u64, answer: Answer) {
        if let Some(connection) = self.connection.upgrade() {
            connection.past().located(self.key, &answer);
        }
    }

    fn waits(&self, _: u64) -> bool {
        true
    }
}

/// A command that the node has to be asked after all.
pub(crate) type Unread = (Data, Reply);

impl Connection {
    /// Reads past the node if that can be; otherwise gives the command back.
    pub(crate) fn read_past(
        self: &Rc<Self>,
        command: &NativeCommand,
        place: Place,
        data: Data,
        reply: Reply,
    ) -> Option<Unread> {
        let Some((view, offset)) = self.past().find(self, command, place) else {
            return Some((data, reply));
        };
        let buffer = match data {
            Data::Into(buffer) if buffer.len() as u64 == u64::from(command.blocks) * BLOCK_BYTES => buffer,
            data => return Some((data, reply)),
        };
        let (connection, command) = (self.clone(), *command);
        drop(spawn(async move {
            let (read, buffer): (_, BufferMut) = view.disk.read_at(buffer, offset).await;
            if read.is_ok() && view.is_true() {
                if let Some(counted) = &connection.past().counted {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                reply.answer(PeerStatus::Answered(Status::Done), Data::Into(buffer));
            } else if reply.is_wanted() {
                connection.send(&command, Data::Into(buffer), reply);
            }
        }));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_in_one_run_only() {
        let run = |first_block, blocks, offset_bytes| Run {
            first_block,
            blocks,
            offset_bytes,
        };
        reactor::run(&reactor::Config::default(), async {
            let board = shared::Board::create("test", 4).unwrap();
            let words = Words::open(std::process::id(), board.descriptor()).unwrap();
            let options = OpenOptions::default();
            let view = View {
                board: Rc::new(words),
                slot: 2,
                version: 6,
                disk: File::open(std::path::Path::new("/dev/null"), options).unwrap(),
                runs: vec![run(4, 4, 1 << 20), run(8, 2, 0)],
            };
            let found = [(0, 1), (3, 2), (4, 4), (5, 2), (7, 2), (8, 2), (9, 2), (10, 1)];
            let found = found.map(|(first, blocks)| view.offset(first, blocks));
            let at = |block: u64| Some((1 << 20) + block * BLOCK_BYTES);
            assert_eq!(found, [None, None, at(0), at(1), None, Some(0), None, None]);
            let later = (time::now() + Duration::from_secs(9)).as_nanos();
            for (version, until, is_true) in [
                (6, later, true),
                (7, later, false),
                (8, later, false),
                (6, 1, false),
            ] {
                board.store(3, until);
                board.store(2, version);
                assert_eq!(view.is_true(), is_true, "version {version} until {until}");
            }
        })
        .unwrap();
    }
}
