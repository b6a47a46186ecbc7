//! A snapshot of a volume as a block device that nobody can write.
//!
//! A snapshot never changes, so any copy may answer at any time: no epoch, no grant and no session is needed. The nodes that have
//! a place for a copy of the chunk are asked first, then all others: a copy of a snapshot stays where it was made.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::{BlockDevice, Channel, Data, IoError, OpenError, Operation, Request};
use foundation::{BlockCount, Epoch, Instant, Lba};
use proto::v1;
use reactor::sync::Semaphore;
use reactor::{BufferMut, BufferPool, spawn, time};
use volume::client::{PeerStatus, Place};
use volume::message::codec::{NativeCommand, NativeFields, NativeOperation};
use volume::{ChunkIndex, NodeId, Piece, SnapshotId, Status, TraceId, WriterToken};

use crate::ask::ask;
use crate::links::{Nearby, NodeLinks};
use crate::session::Session;

/// A read that no copy has answered after this time fails.
const READ_LIMIT: Duration = Duration::from_secs(20);
/// A node that does not answer for so long is passed over; for twice as long when all are asked again, since they may just be
/// busy.
const PATIENCE: Duration = Duration::from_secs(1);
/// Before all nodes are asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a node that cannot be reached is asked again whether it has copies, from when it could not first: it may just be busy.
const COUNT_LIMIT: Duration = Duration::from_secs(3);
/// Copies that are asked at a time whether they are there.
const DEPTH: usize = 64;

/// See the module.
pub struct SnapshotDevice {
    session: Arc<Session>,
    number: SnapshotId,
    geometry: bdev::Geometry,
}

/// How many copies the chunks of a snapshot have, as far as nodes answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiesOfSnapshot {
    /// Of the chunk that has the fewest.
    pub least: u32,
    /// Of the chunk that has the most.
    pub most: u32,
    /// How many each chunk should have.
    pub wanted: u32,
    /// Chunks that have fewer.
    pub short_chunks: u32,
    /// Chunks of which no copy is found.
    pub missing_chunks: u32,
    /// Nodes that did not answer, so that there may be more copies.
    pub silent_nodes: u32,
}

impl Session {
    /// A complete snapshot of the volume as a block device.
    pub fn snapshot_device(self: &Arc<Self>, snapshot: &v1::Snapshot) -> SnapshotDevice {
        let shape = self.map().geometry.clone();
        let chunk_blocks = u64::from(shape.chunk_blocks);
        SnapshotDevice {
            session: self.clone(),
            number: SnapshotId(snapshot.number),
            geometry: bdev::Geometry {
                block_bytes: shape.block_bytes,
                blocks: BlockCount(chunk_blocks * u64::from(snapshot.chunks)),
                metadata_bytes: 0,
                boundary_blocks: shape.stripe_unit_blocks,
                write_cache: false,
            },
        }
    }

    /// Asks the nodes how many copies of each chunk a snapshot has: those that have a place for one, and all others if these have
    /// fewer than the volume's number. To be called where a reactor runs.
    pub async fn copies_of_snapshot(self: &Arc<Self>, snapshot: &v1::Snapshot) -> CopiesOfSnapshot {
        let channel = Rc::new(self.snapshot_device(snapshot).open());
        let wanted = u32::from(self.map().geometry.copies);
        let slots = Semaphore::new(DEPTH);
        let mut counts = Vec::new();
        for chunk in (0..snapshot.chunks).map(ChunkIndex) {
            let slot = slots.acquire().await;
            let channel = channel.clone();
            counts.push(spawn(async move {
                let _slot = slot;
                channel.count(chunk, wanted).await
            }));
        }
        let mut found = CopiesOfSnapshot {
            least: u32::MAX,
            wanted,
            ..CopiesOfSnapshot::default()
        };
        let mut silent = std::collections::BTreeSet::new();
        for count in counts {
            let (copies, unanswered) = count.await.unwrap_or_default();
            found.least = found.least.min(copies);
            found.most = found.most.max(copies);
            found.short_chunks += u32::from(copies < wanted);
            found.missing_chunks += u32::from(copies == 0);
            silent.extend(unanswered);
        }
        found.least = found.least.min(found.most);
        found.silent_nodes = silent.len() as u32;
        found
    }
}

impl SnapshotDevice {
    fn open(&self) -> SnapshotChannel {
        SnapshotChannel(Rc::new(Reader {
            session: self.session.clone(),
            links: self.session.links(Nearby::Socket),
            number: self.number,
            geometry: self.geometry,
            answered: RefCell::default(),
            silent_until: RefCell::default(),
        }))
    }
}

impl BlockDevice for SnapshotDevice {
    fn geometry(&self) -> bdev::Geometry {
        self.geometry
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(self.open()))
    }
}

struct SnapshotChannel(Rc<Reader>);

impl std::ops::Deref for SnapshotChannel {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.0
    }
}

struct Reader {
    session: Arc<Session>,
    links: Rc<NodeLinks>,
    number: SnapshotId,
    geometry: bdev::Geometry,
    /// The node that had the chunk's blocks last.
    answered: RefCell<BTreeMap<ChunkIndex, NodeId>>,
    /// Nodes that could not be asked whether they have copies, and when that is given up.
    silent_until: RefCell<BTreeMap<NodeId, Instant>>,
}

impl Channel for SnapshotChannel {
    fn geometry(&self) -> bdev::Geometry {
        self.geometry
    }

    fn submit(&self, request: Request) {
        let Request {
            operation,
            lba,
            blocks,
            data,
            token,
            ..
        } = request;
        match operation {
            Operation::Read => {}
            // Nothing was written: all of it is durable.
            Operation::Flush => return token.complete(Ok(()), data),
            _ => return token.complete(Err(IoError::ReadOnly), data),
        }
        if let Err(error) = self.geometry.check_range(lba, blocks) {
            return token.complete(Err(error), data);
        }
        let reader = self.0.clone();
        drop(spawn(async move {
            let (status, room) = reader.read(lba, blocks, data.into_read()).await;
            token.complete(status, Data::Into(room));
        }));
    }
}

impl Reader {
    async fn read(
        self: &Rc<Self>,
        lba: Lba,
        blocks: BlockCount,
        mut room: BufferMut,
    ) -> (Result<(), IoError>, BufferMut) {
        let map = self.session.map();
        let Ok(pieces) = map.geometry.pieces(lba, blocks) else {
            return (Err(IoError::OutOfRange), room);
        };
        let read = |piece: Piece| {
            let (reader, first) = (self.clone(), Lba(lba.0 + piece.request_offset.0));
            (piece, spawn(async move { reader.read_piece(piece, first).await }))
        };
        let reads: Vec<_> = pieces.map(read).collect();
        let block_bytes = self.geometry.block_bytes as usize;
        let mut status = Ok(());
        for (piece, read) in reads {
            let at = piece.request_offset.0 as usize * block_bytes;
            match read.await.unwrap_or(Err(IoError::Aborted)) {
                Ok(bytes) => room[at..at + bytes.len()].copy_from_slice(&bytes),
                Err(error) => status = status.and(Err(error)),
            }
        }
        (status, room)
    }

    /// Asks one copy after the other.
    async fn read_piece(&self, piece: Piece, first: Lba) -> Result<BufferMut, IoError> {
        let limit = time::now() + READ_LIMIT;
        let mut knows_all = false;
        let mut patience = PATIENCE;
        loop {
            let last = self.answered.borrow().get(&piece.chunk).copied();
            let mut nodes = self.session.nodes_for(piece.chunk);
            // Copies of one chunk after the other have to do with it, and the one that did last comes first.
            let places = nodes.len().min(self.session.map().geometry.copies.into());
            nodes[..places].rotate_left(piece.chunk.0 as usize % places.max(1));
            if let Some(at) = nodes.iter().position(|node| Some(*node) == last) {
                nodes[..=at].rotate_right(1);
            }
            // What can only be waited for, and what was wrong where it was answered.
            let (mut silent, mut wrong) = (false, false);
            for node in nodes {
                let asked = time::timeout(patience, self.ask(node, piece, first)).await;
                match asked.unwrap_or(Ok((PeerStatus::Lost, Data::None)))? {
                    (PeerStatus::Answered(Status::Done), Data::Into(bytes)) => {
                        self.answered.borrow_mut().insert(piece.chunk, node);
                        return Ok(bytes);
                    }
                    (PeerStatus::Answered(Status::SnapshotAborted), _) => {}
                    (PeerStatus::Answered(Status::DeviceFailed) | PeerStatus::Failed(_), _) => wrong = true,
                    _ => silent = true,
                }
            }
            match (silent, wrong) {
                (false, true) => return Err(IoError::Media),
                (false, false) if knows_all => return Err(IoError::Gone),
                // None of those has a copy: perhaps another node has.
                (false, false) => {
                    knows_all = time::timeout(READ_LIMIT, self.session.snapshots()).await.is_ok();
                    continue;
                }
                (true, _) if time::now() >= limit => return Err(IoError::Unavailable),
                (true, _) => {}
            }
            patience = (patience * 2).min(READ_LIMIT / 4);
            time::sleep(PAUSE).await;
            // The next look at the clock bounds what follows.
            let _ = time::timeout(READ_LIMIT, self.session.refresh()).await;
        }
    }

    async fn ask(&self, node: NodeId, piece: Piece, first_lba: Lba) -> Result<(PeerStatus, Data), IoError> {
        let length = piece.range.count as usize * self.geometry.block_bytes as usize;
        let room = BufferPool::current().allocate(length).await;
        let room = room.map_err(|_| IoError::Exhausted)?;
        let command = NativeCommand {
            operation: NativeOperation::ReadSnapshot(self.number),
            volume: self.session.number(),
            fields: NativeFields {
                epoch: Epoch(0),
                writer_token: WriterToken(0),
                first_lba,
            },
            blocks: piece.range.count,
            trace: TraceId(0),
            portal_token: 0,
        };
        let place = Place {
            chunk: piece.chunk,
            first_block: piece.range.start,
        };
        Ok(ask(&self.links, node, command, place, Data::Into(room)).await)
    }

    /// Copies of a chunk, and the nodes that did not say whether they have one.
    async fn count(&self, chunk: ChunkIndex, wanted: u32) -> (u32, Vec<NodeId>) {
        let map = self.session.map();
        let first = map.geometry.first_lba(chunk).unwrap_or_default();
        let Some(piece) = map
            .geometry
            .pieces(first, BlockCount(1))
            .ok()
            .and_then(|mut pieces| pieces.next())
        else {
            return (0, Vec::new());
        };
        let (mut copies, mut silent) = (0, Vec::new());
        for node in self.session.nodes_for(chunk) {
            if copies >= wanted {
                break;
            }
            match self.has_copy(node, piece, first).await {
                Some(has) => copies += u32::from(has),
                None => silent.push(node),
            }
        }
        (copies, silent)
    }

    /// Whether a node has a right copy of a chunk; none if it does not say. Links let a read wait for a connection for a moment only,
    /// since other copies have the same; here each counts.
    async fn has_copy(&self, node: NodeId, piece: Piece, first: Lba) -> Option<bool> {
        loop {
            let has = match self.ask(node, piece, first).await {
                Ok((PeerStatus::Answered(Status::Done), _)) => Some(true),
                Ok((PeerStatus::Answered(Status::SnapshotAborted | Status::DeviceFailed), _)) => Some(false),
                _ => None,
            };
            if has.is_some() {
                self.silent_until.borrow_mut().remove(&node);
                return has;
            }
            let now = time::now();
            let limit = *self
                .silent_until
                .borrow_mut()
                .entry(node)
                .or_insert(now + COUNT_LIMIT);
            if now >= limit {
                return None;
            }
            time::sleep(PAUSE).await;
        }
    }
}
