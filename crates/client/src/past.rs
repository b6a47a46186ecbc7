//! Reads past the node: a client on the node's machine asks where a chunk lies and reads the disk itself
//! (decision 0059; HDFS knows the same as short-circuit reads).
//!
//! What was read counts only if the node's board says afterwards that the chunk is as it was and may be read still
//! ([`Location`]); otherwise the node is asked, as it is whenever anything about this fails. A read costs one ring
//! operation on the disk and four loads; the node does not hear of it.
//!
//! Of a copy with checksums the client knows where their pages lie, reads those it needs once in each version of the chunk,
//! and checks what it reads. Whatever does not fit, or of which nothing is known, is asked of the node: it reads the same
//! disk, and repairs the block if it was not a write that had just begun (decision 0069).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bdev::Data;
use foundation::Instant;
use reactor::file::{File, OpenOptions};
use reactor::shared::{self, Words};
use reactor::{BufferMut, BufferPool, spawn, time};
use volume::client::{Answer, AnswerSink, PeerStatus, Place, Reply};
use volume::message::codec::{Location, NativeCommand, NativeOperation, OpenFile, Run};
use volume::{
    ChunkId, ChunkIndex, DurableSums, PastVerdict, SUM_PAGE_BYTES, SUMS_PER_PAGE, Status, VolumeNumber,
    sum_of,
};

use crate::connection::Connection;

/// Blocks of every volume so far.
const BLOCK_BYTES: u64 = 4096;
/// Room for an answer: a chunk in a thousand runs.
const LOCATION_BYTES: usize = 16 << 10;
/// Pages of checksums that one connection keeps: 32 MiB of them, which is what 31 GiB of blocks have.
const PAGES_MAX: usize = 8 << 10;
/// A read whose blocks lie in more pieces of the disk than this is the node's.
const PIECES_MAX: usize = 8;
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
    /// None of a copy without checksums.
    sums: Option<ViewSums>,
}

/// The checksums of a chunk in one version of it.
struct ViewSums {
    chunk: ChunkId,
    /// Where their pages lie, two places for each.
    runs: Vec<Run>,
    /// Those that were read, by number.
    pages: RefCell<BTreeMap<u32, Rc<DurableSums>>>,
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

    /// Where these blocks lie on the disk, if they are all there, in few pieces.
    fn places(&self, first_block: u32, blocks: u32) -> Option<Pieces> {
        if let Some(offset) = offset_in(&self.runs, first_block, blocks) {
            return Some(Pieces::One(offset));
        }
        let mut pieces = Vec::new();
        let (mut at, mut rest) = (first_block, blocks);
        while rest > 0 {
            let after = self.runs.partition_point(|run| run.first_block <= at);
            let run = self.runs.get(after.checked_sub(1)?)?;
            let skipped = at - run.first_block;
            let here = run.blocks.checked_sub(skipped)?.min(rest);
            if here == 0 || pieces.len() == PIECES_MAX {
                return None;
            }
            pieces.push((run.offset_bytes + u64::from(skipped) * BLOCK_BYTES, here));
            (at, rest) = (at.checked_add(here)?, rest - here);
        }
        Some(Pieces::Several(pieces))
    }
}

/// Where on a disk a read's blocks lie.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pieces {
    /// All from this offset on.
    One(u64),
    /// Offsets, and how many blocks follow each.
    Several(Vec<(u64, u32)>),
}

impl Pieces {
    /// Fills the buffer, which is as long as the pieces are; those of several are read side by side.
    async fn read(&self, disk: &File, mut buffer: BufferMut) -> (std::io::Result<()>, BufferMut) {
        let pieces = match self {
            Self::One(offset) => return disk.read_at(buffer, *offset).await,
            Self::Several(pieces) => pieces,
        };
        let mut reads: Vec<_> = pieces
            .iter()
            .map(|&(offset, blocks)| {
                let part = buffer.split_to(blocks as usize * BLOCK_BYTES as usize);
                Box::pin(disk.read_at(part, offset))
            })
            .collect();
        let mut ended: Vec<Option<(std::io::Result<()>, BufferMut)>> = Vec::new();
        ended.resize_with(reads.len(), || None);
        poll_fn(|context| {
            for (read, ended) in reads.iter_mut().zip(&mut ended) {
                if ended.is_none()
                    && let Poll::Ready(end) = read.as_mut().poll(context)
                {
                    *ended = Some(end);
                }
            }
            if ended.iter().all(Option::is_some) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let (mut result, mut whole) = (Ok(()), BufferMut::empty());
        for (read, part) in ended.into_iter().flatten() {
            result = result.and(read);
            match whole.join(part) {
                Ok(joined) => whole = joined,
                // They were neighbours before.
                Err((front, _)) => {
                    return (Err(std::io::Error::other("a buffer came apart")), front);
                }
            }
        }
        (result, whole)
    }
}

/// Where these blocks lie, if they are all in one run.
fn offset_in(runs: &[Run], first_block: u32, blocks: u32) -> Option<u64> {
    let after = runs.partition_point(|run| run.first_block <= first_block);
    let run = runs.get(after.checked_sub(1)?)?;
    let skipped = first_block - run.first_block;
    let ends = u64::from(skipped) + u64::from(blocks);
    (ends <= u64::from(run.blocks)).then_some(run.offset_bytes + u64::from(skipped) * BLOCK_BYTES)
}

/// Reads past one node, by one connection with it.
#[derive(Default)]
pub(crate) struct Past {
    /// None where the node's disks are not to be read from here.
    counted: Option<std::sync::Arc<AtomicU64>>,
    chunks: RefCell<BTreeMap<Key, Known>>,
    board: RefCell<Option<(u128, Rc<Words>)>>,
    disks: RefCell<BTreeMap<(u64, u64), File>>,
    /// The pages of checksums that are kept, the one read first in front.
    sum_pages: RefCell<VecDeque<(Weak<View>, u32)>>,
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
    ) -> Option<(Rc<View>, Pieces)> {
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
                let pieces = view.places(place.first_block, command.blocks)?;
                return Some((view.clone(), pieces));
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
            operation: NativeOperation::Locate { checks: true },
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
            .and_then(|location| self.open(key, location).map_err(|error| error.to_string()));
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
    fn open(&self, (volume, index): Key, location: Location) -> std::io::Result<Option<View>> {
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
            sums: location.sums.map(|runs| ViewSums {
                chunk: ChunkId { volume, index },
                runs,
                pages: RefCell::default(),
            }),
        }))
    }

    /// Whether what was read fits the checksums, if there are any. What does not, or is not known, the node is asked for.
    async fn fits(&self, view: &Rc<View>, first_block: u32, bytes: &[u8]) -> bool {
        let Some(sums) = &view.sums else { return true };
        let (mut block, mut rest) = (first_block, bytes);
        while !rest.is_empty() {
            let number = block / SUMS_PER_PAGE;
            let here = (SUMS_PER_PAGE - block % SUMS_PER_PAGE) as usize;
            let (now, later) = rest.split_at(rest.len().min(here * BLOCK_BYTES as usize));
            let kept = sums.pages.borrow().get(&number).cloned();
            let page = match kept {
                Some(page) => page,
                None => match self.read_sums(view, sums, number).await {
                    Some(page) => page,
                    None => return false,
                },
            };
            match page.check(block, now.chunks_exact(BLOCK_BYTES as usize).map(sum_of)) {
                PastVerdict::Right => {}
                PastVerdict::Unknown => {
                    // The node knows it once it has read it, and has it on the disk when the chunk is asked for again.
                    sums.pages.borrow_mut().remove(&number);
                    self.put_off((sums.chunk.volume, sums.chunk.index), PAUSE);
                    return false;
                }
                PastVerdict::Wrong => {
                    sums.pages.borrow_mut().remove(&number);
                    tracing::debug!(chunk = ?sums.chunk, block, "what was read past a node does not fit its checksum");
                    return false;
                }
            }
            (block, rest) = (block + here as u32, later);
        }
        true
    }

    /// Reads a page of checksums; none if it cannot be believed now.
    async fn read_sums(&self, view: &Rc<View>, sums: &ViewSums, number: u32) -> Option<Rc<DurableSums>> {
        let offset = offset_in(&sums.runs, number.checked_mul(2)?, 2)?;
        let room = BufferPool::current().allocate(2 * SUM_PAGE_BYTES).await.ok()?;
        let (read, bytes): (_, BufferMut) = view.disk.read_at(room, offset).await;
        read.ok()?;
        let (first, second) = bytes.split_at(SUM_PAGE_BYTES);
        let page = Rc::new(DurableSums::read(sums.chunk, number, [first, second])?);
        // Pages of before a write have no place among those of after it.
        if !view.is_true() {
            return None;
        }
        let is_new = sums.pages.borrow_mut().insert(number, page.clone()).is_none();
        if is_new {
            self.keep_bound(view, number);
        }
        Some(page)
    }

    /// Lets the oldest page of checksums go if there are too many.
    fn keep_bound(&self, view: &Rc<View>, number: u32) {
        let mut kept = self.sum_pages.borrow_mut();
        kept.push_back((Rc::downgrade(view), number));
        if kept.len() <= PAGES_MAX {
            return;
        }
        if let Some((oldest, number)) = kept.pop_front()
            && let Some(sums) = oldest.upgrade().as_ref().and_then(|view| view.sums.as_ref())
        {
            sums.pages.borrow_mut().remove(&number);
        }
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
        let Some((view, pieces)) = self.past().find(self, command, place) else {
            return Some((data, reply));
        };
        let buffer = match data {
            Data::Into(buffer) if buffer.len() as u64 == u64::from(command.blocks) * BLOCK_BYTES => buffer,
            data => return Some((data, reply)),
        };
        let (connection, command) = (self.clone(), *command);
        drop(spawn(async move {
            let (read, buffer) = pieces.read(&view.disk, buffer).await;
            let past = connection.past();
            let fits = read.is_ok() && past.fits(&view, place.first_block, &buffer).await;
            // Last of all: it says of everything that was read that it was true.
            if fits && view.is_true() {
                if let Some(counted) = &past.counted {
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
    fn pieces_are_read_into_one_buffer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let block = |number: u8| vec![number; BLOCK_BYTES as usize];
        std::fs::write(file.path(), (0..8).flat_map(block).collect::<Vec<_>>()).unwrap();
        reactor::run(&reactor::Config::default(), async {
            let disk = File::open(file.path(), OpenOptions::default()).unwrap();
            let room = async |blocks: usize| {
                let pool = BufferPool::current();
                pool.allocate(blocks * BLOCK_BYTES as usize).await.unwrap()
            };
            let pieces = Pieces::Several(vec![(6 * BLOCK_BYTES, 2), (0, 1), (3 * BLOCK_BYTES, 1)]);
            let (read, buffer) = pieces.read(&disk, room(4).await).await;
            read.unwrap();
            let wanted: Vec<_> = [6, 7, 0, 3].into_iter().flat_map(block).collect();
            assert_eq!(buffer[..], wanted);
            // Beyond the end there is nothing, wherever the others lie.
            let beyond = Pieces::Several(vec![(8 * BLOCK_BYTES, 1), (0, 1)]);
            let (read, buffer) = beyond.read(&disk, room(2).await).await;
            assert!(read.is_err() && buffer.len() as u64 == 2 * BLOCK_BYTES);
        })
        .unwrap();
    }

    #[test]
    fn blocks_are_found_in_one_run_or_in_several() {
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
                sums: None,
            };
            let found = [(0, 1), (3, 2), (4, 4), (5, 2), (7, 2), (8, 2), (9, 2), (10, 1)];
            let found = found.map(|(first, blocks)| view.places(first, blocks));
            let offset = |block: u64| (1 << 20) + block * BLOCK_BYTES;
            let at = |block: u64| Some(Pieces::One(offset(block)));
            let two = Some(Pieces::Several(vec![(offset(3), 1), (0, 1)]));
            assert_eq!(
                found,
                [None, None, at(0), at(1), two, Some(Pieces::One(0)), None, None]
            );
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
