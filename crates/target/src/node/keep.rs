//! Copies of snapshots follow those of their chunks (`docs/decisions/0090`): what this node lacks it makes from other nodes', and what
//! has no place here goes when enough others have it. In the background, one copy at a time, after what is said in
//! [`volume::Keeper`].
//!
//! A copy that is being made has no name: a start deletes it. It gets its name when all of it is durable. It begins as a clone of
//! the copy of an older snapshot if that one shows through nothing else, so that only what differs takes room.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::{ChannelExt, Data};
use blobstore::Blob;
use fabrics::target::Call;
use foundation::{Epoch, Instant, KeptCopies, Lba};
use protocols::nvme::Status as NvmeStatus;
use reactor::{Buffer, BufferPool, spawn, time};
use volume::message::codec::{NativeCommand, NativeFields, NativeOperation, native_status_code};
use volume::{
    BlockRange, ChunkId, ChunkRecord, Geometry, LOST_BLOCK, NodeId, Sequence, SnapshotId, Status, TraceId,
    VolumeNumber, WriterToken,
};

use super::Node;
use super::copies::{BLOCK_BYTES, Copies, Copy, CopyError, HEAD_BLOCKS, copy_of, pages_of, write_record};
use super::mend::read_blocks;
use super::snapshots::{ATTRIBUTE_SNAPSHOT, KeptPlace, Key, snapshot_bytes};

/// How often it is looked what is lacking, and what has no place here.
const LOOK: Duration = Duration::from_secs(2);
/// A copy that could not be made, or not let go, is left alone for so long.
const RETRY: Duration = Duration::from_secs(10);
/// Blocks that are read at a time.
const PART_BLOCKS: u32 = 64;
/// Between two of them: others want disk and network.
const PART_PAUSE: Duration = Duration::from_millis(1);
/// How often all nodes are asked for a part.
const ROUNDS: u32 = 3;
/// Between them.
const ROUND_PAUSE: Duration = Duration::from_millis(500);
/// Who says that a block is wrong is asked for so many others, to see that its disk reads at all.
const OTHERS: u32 = 3;
/// So many blocks of a copy may be right nowhere. If there are more, those that have it are to be looked at first.
const LOST_MAX: usize = 64;
/// One in so many bytes of a disk is left to the volumes themselves.
const RESERVE: u64 = 16;

/// A copy that is being made.
pub(super) struct Unfinished {
    pub(super) disk: usize,
    pub(super) blob: Blob,
    pub(super) copy: Copy,
    /// It shows what an older snapshot has.
    pub(super) is_clone: bool,
}

impl Node {
    /// All complete snapshots of volumes, with the number of chunks of each. From the first time on their copies are looked after.
    pub fn keep_snapshots(&self, complete: impl IntoIterator<Item = ((VolumeNumber, SnapshotId), u32)>) {
        let kept = &self.copies.kept;
        kept.keeper.borrow_mut().learn(complete);
        kept.lists.set(kept.lists.get() + 1);
        if !kept.keeping.replace(true) {
            drop(spawn(run(Rc::downgrade(&self.own()))));
        }
    }

    /// Whether the chunk's copy here is in sync, as far as it knows.
    pub(super) fn is_in_sync(&self, chunk: ChunkId) -> bool {
        let core = self.core.borrow();
        let (node, incarnation) = (self.identity.node, self.identity.incarnation);
        core.member(chunk)
            .is_some_and(|member| member.is_member(node, incarnation))
    }

    /// An agent has connected: what it sends it counts from 0.
    pub fn forget_lists(&self) {
        self.copies.kept.lists.set(0);
        self.copies.kept.counted.set((0, KeptCopies::default()));
    }

    /// By which list of this connection's (0 for none), and which copies of complete snapshots are here beside copies of chunks that
    /// are in sync. As of the last look, which may be seconds ago.
    pub fn kept_snapshots(&self) -> (u32, KeptCopies) {
        self.copies.kept.counted.get()
    }

    /// Copies that are to be made, the oldest of each chunk first, and copies that have no place here.
    fn snapshots_to_look_after(&self) -> (Vec<Key>, Vec<Key>) {
        let kept = &self.copies.kept;
        let (keeper, at) = (kept.keeper.borrow(), kept.at.borrow());
        if keeper.is_idle() {
            kept.counted.set((kept.lists.get(), KeptCopies::default()));
            return (Vec::new(), Vec::new());
        }
        let chunks = self.copies.chunks().into_iter();
        let in_sync = chunks.filter(|chunk| self.is_in_sync(*chunk));
        let (lacking, here) = keeper.look(in_sync, |key| at.contains_key(&key));
        kept.counted.set((kept.lists.get(), here));
        // One that a clone shows beside another goes only when that has data of its own.
        let is_shown = |place: &KeptPlace| {
            let blob = self.copies.store(place.disk).blob(place.blob);
            blob.is_ok_and(|blob| blob.children().len() > 1)
        };
        let has_no_place = |(key, place): &(&Key, &KeptPlace)| {
            keeper.is_complete(**key) && !self.copies.has_any(key.0) && !is_shown(place)
        };
        (
            lacking,
            at.iter().filter(has_no_place).map(|(key, _)| *key).collect(),
        )
    }

    /// What other nodes are asked.
    pub(super) fn about(
        &self,
        (chunk, _): Key,
        geometry: &Geometry,
        first: u32,
        operation: NativeOperation,
        blocks: u32,
    ) -> Option<NativeCommand> {
        Some(NativeCommand {
            operation,
            volume: chunk.volume,
            fields: NativeFields {
                epoch: Epoch(0),
                writer_token: WriterToken(0),
                first_lba: geometry.lba_of(chunk.index, first)?,
            },
            blocks,
            trace: TraceId(0),
            portal_token: 0,
        })
    }

    /// The other nodes whose addresses are known, those that have the chunk in sync first.
    pub(super) fn others_for(&self, chunk: ChunkId) -> Vec<NodeId> {
        let mut nodes = self.peers.known();
        let members: Vec<NodeId> = {
            let core = self.core.borrow();
            let config = core.member(chunk).and_then(|member| member.config());
            config.map_or_else(Vec::new, |config| config.members.iter().map(|m| m.node).collect())
        };
        nodes.sort_by_key(|node| !members.contains(node));
        nodes.retain(|node| *node != self.identity.node);
        nodes
    }

    /// The other nodes whose copies of a snapshot count, each with the last write in it: those that have the chunk in sync first.
    pub(super) async fn holders(&self, key: Key, geometry: &Geometry) -> Vec<(NodeId, Sequence)> {
        let Some(ask) = self.about(key, geometry, 0, NativeOperation::CountSnapshot(key.1), 0) else {
            return Vec::new();
        };
        let mut holders = Vec::new();
        for node in self.others_for(key.0) {
            if let Ok((sequence, _)) = self.peers.ask_native(self, node, &ask, Data::None).await {
                holders.push((node, Sequence(sequence)));
            }
        }
        holders
    }

    /// Makes this node's copy of a snapshot from others'.
    async fn make_snapshot_copy(&self, key: Key) -> Result<(), CopyError> {
        let (chunk, snapshot) = key;
        let (geometry, has_sums) = self.copies.shape(chunk).ok_or(CopyError::NoSuchCopy { chunk })?;
        let holders = self.holders(key, &geometry).await;
        let Some(&(_, sequence)) = holders.first() else {
            return Err(CopyError::NoSource { chunk, snapshot });
        };
        if holders.iter().any(|(_, other)| *other != sequence) {
            return Err(CopyError::SourcesDiffer { chunk, snapshot });
        }
        let nodes: Vec<NodeId> = holders.iter().map(|(node, _)| *node).collect();
        let cluster = self.identity.cluster;
        let record = ChunkRecord::new(cluster, chunk, geometry);
        let unfinished = self.copies.begin_snapshot_copy(key, record, has_sums).await?;
        let filled = self.fill(key, &nodes, &unfinished).await;
        let store = self.copies.store(unfinished.disk).clone();
        let id = unfinished.blob.id();
        let made = match filled {
            Ok(lost) => {
                let made = self.copies.name_snapshot_copy(key, sequence, unfinished).await;
                // Others may have read wrong what they read right next.
                let lost = lost.into_iter().filter(|_| made.is_ok());
                lost.for_each(|start| self.note_rot(key, BlockRange { start, count: 1 }, false));
                made
            }
            Err(error) => Err(error),
        };
        if made.is_err()
            && let Err(error) = store.delete(id).await
        {
            tracing::warn!(?chunk, snapshot = snapshot.0, %error, "an unfinished copy of a snapshot stays until the next start");
        }
        made
    }

    /// Reads all blocks, from this node's copy of the snapshot or others', and writes what differs. What no copy has right is wrong in
    /// this one, too (`docs/decisions/0132`), until one has: these blocks are returned.
    pub(super) async fn fill(
        &self,
        key: Key,
        nodes: &[NodeId],
        unfinished: &Unfinished,
    ) -> Result<Vec<u32>, CopyError> {
        let geometry = unfinished.copy.geometry().clone();
        let (mut start, mut lost) = (0, Vec::new());
        while start < geometry.chunk_blocks {
            let unit = geometry.stripe_unit_blocks;
            // One piece of the volume, whatever its shape is.
            let count = (PART_BLOCKS - start % PART_BLOCKS)
                .min(unit - start % unit)
                .min(geometry.chunk_blocks - start);
            let range = BlockRange { start, count };
            match self.read_anywhere(key, nodes, &geometry, range).await {
                Ok(bytes) => self.put(key, unfinished, range, bytes, false).await?,
                Err(CopyError::NoSource { .. }) if unfinished.copy.sums.is_some() => {
                    lost.extend(self.fill_by_block(key, nodes, unfinished, range).await?);
                    if lost.len() > LOST_MAX {
                        let (chunk, snapshot) = key;
                        return Err(CopyError::NoSource { chunk, snapshot });
                    }
                }
                Err(error) => return Err(error),
            }
            start += count;
            time::sleep(PART_PAUSE).await;
        }
        Ok(lost)
    }

    /// Writes what was read, if it is not there, or what says that a block is lost.
    async fn put(
        &self,
        key: Key,
        unfinished: &Unfinished,
        range: BlockRange,
        bytes: Buffer,
        is_lost: bool,
    ) -> Result<(), CopyError> {
        let (chunk, copy) = (key.0, &unfinished.copy);
        let is_there = match unfinished.is_clone {
            true => shows(copy, range, &bytes).await,
            false => bytes.iter().all(|byte| *byte == 0),
        };
        if is_there {
            return Ok(());
        }
        self.copies.check_reserve(unfinished.disk, key)?;
        if let Some(sums) = &copy.sums {
            match is_lost {
                true => sums.lose(range),
                false => sums.note(range, Some(&bytes)),
            }
        }
        let first = Lba(HEAD_BLOCKS + u64::from(range.start));
        let written = copy.channel.write(first, bytes).await;
        written.map_err(|source| CopyError::WriteSnapshot { chunk, source })
    }

    /// The same of blocks that no copy has all of right, each by itself. Returns those that are right nowhere.
    async fn fill_by_block(
        &self,
        key: Key,
        nodes: &[NodeId],
        unfinished: &Unfinished,
        range: BlockRange,
    ) -> Result<Vec<u32>, CopyError> {
        let (chunk, snapshot) = key;
        let (geometry, mut lost) = (unfinished.copy.geometry().clone(), Vec::new());
        for start in range.start..range.start + range.count {
            let one = BlockRange { start, count: 1 };
            let read = self.read_anywhere(key, nodes, &geometry, one).await;
            let (bytes, is_lost) = match read {
                Err(CopyError::NoSource { .. })
                    if self.is_wrong_everywhere(key, nodes, &geometry, start).await =>
                {
                    tracing::error!(
                        ?chunk,
                        snapshot = snapshot.0,
                        block = start,
                        "no copy has this block of a snapshot right: it is wrong here, too, until one has"
                    );
                    lost.push(start);
                    let room = BufferPool::current().allocate(BLOCK_BYTES).await;
                    let mut room = room.map_err(|_| CopyError::NoSource { chunk, snapshot })?;
                    room.copy_from_slice(&LOST_BLOCK[..]);
                    (room.freeze(), true)
                }
                other => (other?, false),
            };
            self.put(key, unfinished, one, bytes, is_lost).await?;
        }
        Ok(lost)
    }

    /// Whether all who have a snapshot say that their disks do not have a block of it right, though they read others: one whose disk
    /// reads nothing at present may have it.
    async fn is_wrong_everywhere(&self, key: Key, nodes: &[NodeId], geometry: &Geometry, block: u32) -> bool {
        for &node in nodes {
            let said = self.ask_for_block(node, key, geometry, block).await;
            if said.err() != Some(Some(Status::DeviceFailed)) {
                return false;
            }
            let mut reads_others = false;
            for step in 1..=OTHERS {
                let other =
                    (block + step * (geometry.chunk_blocks / (OTHERS + 1)).max(1)) % geometry.chunk_blocks;
                let read = self.ask_for_block(node, key, geometry, other).await;
                reads_others |= other != block && read.is_ok();
            }
            if !reads_others {
                return false;
            }
        }
        !nodes.is_empty()
    }

    /// One block of a snapshot of another node; else what it says, or none.
    async fn ask_for_block(
        &self,
        node: NodeId,
        (chunk, snapshot): Key,
        geometry: &Geometry,
        block: u32,
    ) -> Result<Data, Option<Status>> {
        let operation = NativeOperation::ReadSnapshot(snapshot);
        let command = self
            .about((chunk, snapshot), geometry, block, operation, 1)
            .ok_or(None)?;
        let room = BufferPool::current().allocate(BLOCK_BYTES).await;
        let room = Data::Into(room.map_err(|_| None)?);
        let answer = self.peers.ask_native(self, node, &command, room).await?;
        Ok(answer.1)
    }

    /// Blocks of a snapshot that fit the checksums of this node's copy, or another's.
    async fn read_anywhere(
        &self,
        key: Key,
        nodes: &[NodeId],
        geometry: &Geometry,
        range: BlockRange,
    ) -> Result<Buffer, CopyError> {
        let operation = NativeOperation::ReadSnapshot(key.1);
        let is_here = self.copies.kept.at.borrow().contains_key(&key);
        if let Some(command) = self.about(key, geometry, range.start, operation, range.count)
            && is_here
            && let Ok(bytes) = self.read_snapshot(&command, key.1).await
        {
            return Ok(bytes);
        }
        self.read_from_others(key, nodes, geometry, range).await
    }

    /// Blocks of a snapshot that fit the checksums of another node's copy.
    pub(super) async fn read_from_others(
        &self,
        key: Key,
        nodes: &[NodeId],
        geometry: &Geometry,
        range: BlockRange,
    ) -> Result<Buffer, CopyError> {
        let (chunk, snapshot) = key;
        let operation = NativeOperation::ReadSnapshot(snapshot);
        let command = self.about(key, geometry, range.start, operation, range.count);
        let command = command.ok_or(CopyError::OutsideSnapshot { chunk })?;
        for round in 0..ROUNDS {
            if round > 0 {
                time::sleep(ROUND_PAUSE).await;
            }
            for &node in nodes {
                let Ok(room) = BufferPool::current()
                    .allocate(range.count as usize * BLOCK_BYTES)
                    .await
                else {
                    continue;
                };
                let answer = self
                    .peers
                    .ask_native(self, node, &command, Data::Into(room))
                    .await;
                if let Ok((_, Data::Into(bytes))) = answer {
                    return Ok(bytes.freeze());
                }
            }
        }
        Err(CopyError::NoSource { chunk, snapshot })
    }

    /// Lets a copy go that has no place here, if as many others have one as there should be.
    async fn let_snapshot_go(&self, key: Key) -> Result<bool, CopyError> {
        let kept = &self.copies.kept;
        let Some(opened) = self.copies.open_snapshot(key).await? else {
            return Ok(true);
        };
        let Some(own) = kept.at.borrow().get(&key).map(|place| place.sequence) else {
            return Ok(true);
        };
        let Some(attempt) = kept.keeper.borrow_mut().begin_to_leave(key) else {
            return Ok(false);
        };
        // Only now: an answer from before may be of one that has counted this copy.
        let holders = self.holders(key, &opened.geometry).await;
        let copies = usize::from(opened.geometry.copies);
        let may_go = {
            let mut keeper = kept.keeper.borrow_mut();
            for (node, sequence) in holders {
                if sequence == own {
                    keeper.heard(key, attempt, node);
                }
            }
            let may_go = !self.copies.has_any(key.0) && keeper.may_go(key, attempt, copies);
            if !may_go {
                keeper.stays(key);
            }
            may_go
        };
        if !may_go {
            return Ok(false);
        }
        // One that could not be deleted may be gone after the next start: it must never count again.
        let gone = self.copies.delete_snapshot(key).await;
        if gone {
            kept.keeper.borrow_mut().has_gone(key);
        }
        Ok(gone)
    }

    /// Answers another node that asks whether it may count this node's copy of a snapshot.
    pub(super) fn count_snapshot(&self, native: NativeCommand, snapshot: SnapshotId, call: Call) {
        let node = self.own();
        drop(spawn(async move {
            let none = || native_status_code(Status::SnapshotAborted).map_or(0, |(code, _)| code);
            let (status, result) = match node.counted(&native, snapshot).await {
                Some(sequence) => (NvmeStatus::SUCCESS, sequence.0),
                None => (NvmeStatus::new(1, none()), 0),
            };
            call.reply.complete(status, result, Buffer::empty());
        }));
    }

    async fn counted(&self, native: &NativeCommand, snapshot: SnapshotId) -> Option<Sequence> {
        let (of, first) = ((native.volume, snapshot), native.fields.first_lba);
        let (chunk, _) = self.copies.place_in_snapshot(of, first, 1).await.ok()??;
        let key = (chunk, snapshot);
        // One whose record cannot be read is none.
        self.copies.open_snapshot(key).await.ok()??;
        let place = self.copies.kept.at.borrow().get(&key).copied()?;
        let counts = self.copies.kept.keeper.borrow().counts(key);
        counts.then_some(place.sequence)
    }
}

impl Copies {
    /// Makes a blob for a copy of a snapshot: one that shows what the copy of an older one has, if there is such, or one with a
    /// record and nothing else.
    async fn begin_snapshot_copy(
        &self,
        key: Key,
        record: ChunkRecord,
        has_sums: bool,
    ) -> Result<Unfinished, CopyError> {
        let chunk = key.0;
        let failed = |source| CopyError::Store { chunk, source };
        if let Some(base) = self.base_for(key)
            && let Ok(Some(opened)) = self.open_snapshot(base.0).await
        {
            let disk = base.1.disk;
            self.check_reserve(disk, key)?;
            let blob = self.store(disk).clone_snapshot(base.1.blob).map_err(failed)?;
            let copy = copy_of(&blob, disk, record, 0, opened.sums.is_some());
            return Ok(Unfinished {
                disk,
                blob,
                copy,
                is_clone: true,
            });
        }
        let disk = self.disk_of(chunk).ok_or(CopyError::NoSuchCopy { chunk })?;
        self.check_reserve(disk, key)?;
        let blob = self
            .store(disk)
            .create(pages_of(&record, has_sums))
            .map_err(failed)?;
        let copy = copy_of(&blob, disk, record, 0, has_sums);
        if let Err(source) = write_record(&copy).await {
            drop(self.store(disk).delete(blob.id()).await);
            return Err(CopyError::Record { chunk, source });
        }
        Ok(Unfinished {
            disk,
            blob,
            copy,
            is_clone: false,
        })
    }

    /// The newest older snapshot of the chunk here, if nothing else shows it: then neither of them is in the way when the other is
    /// deleted.
    fn base_for(&self, (chunk, snapshot): Key) -> Option<(Key, KeptPlace)> {
        let at = self.kept.at.borrow();
        let mut older = at.range((chunk, SnapshotId(0))..(chunk, snapshot));
        let (key, place) = older.next_back()?;
        let blob = self.store(place.disk).blob(place.blob).ok()?;
        blob.children().is_empty().then_some((*key, *place))
    }

    /// Refuses to take the last room of a disk.
    fn check_reserve(&self, disk: usize, (chunk, snapshot): Key) -> Result<(), CopyError> {
        let described = &self.disks()[disk];
        let reserve_bytes = described.capacity_bytes / RESERVE;
        match described.free_bytes > reserve_bytes {
            true => Ok(()),
            false => Err(CopyError::NoRoomForSnapshot {
                chunk,
                snapshot,
                path: described.path.clone(),
                free_bytes: described.free_bytes,
                reserve_bytes,
            }),
        }
    }

    /// Makes a copy durable that has all it should, and names it.
    async fn name_snapshot_copy(
        &self,
        key: Key,
        sequence: Sequence,
        unfinished: Unfinished,
    ) -> Result<(), CopyError> {
        let (chunk, snapshot) = key;
        let failed = |source| CopyError::Store { chunk, source };
        let Unfinished { disk, blob, copy, .. } = unfinished;
        let flushed = match &copy.sums {
            Some(sums) => sums.flush().await,
            None => copy.channel.flush().await,
        };
        flushed.map_err(|source| CopyError::Flush { chunk, source })?;
        let store = self.store(disk);
        let kept = store.snapshot(blob.id()).await.map_err(failed)?;
        let named = [&snapshot_bytes(chunk, snapshot)[..], &sequence.0.to_le_bytes()].concat();
        let named = kept.set_attribute(ATTRIBUTE_SNAPSHOT, &named);
        // Its child shows it, and has nothing of its own.
        let deleted = store.delete(blob.id()).await;
        let done = match named.and(deleted) {
            Ok(()) => store.sync().await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            // Nobody knows it by its name: it would take its room until the next start, which looks for such. So it does if this
            // fails.
            let _ = store.delete(kept.id()).await;
            return Err(failed(error));
        }
        let place = KeptPlace {
            disk,
            blob: kept.id(),
            sequence,
        };
        self.kept.at.borrow_mut().insert(key, place);
        self.kept.unnoted.borrow_mut().insert(key);
        Ok(())
    }
}

/// Whether a copy has these bytes, and checksums that fit them: what only happens to lie there, since the older snapshot has rotted to
/// it, would go when that is mended.
async fn shows(copy: &Copy, range: BlockRange, bytes: &[u8]) -> bool {
    let own = read_blocks(&*copy.channel, range).await;
    if own.is_err() || own.is_ok_and(|own| own[..] != *bytes) {
        return false;
    }
    match &copy.sums {
        Some(sums) => sums.check_reading(range, bytes).await.is_empty(),
        None => true,
    }
}

async fn run(weak: Weak<Node>) {
    let mut put_off: BTreeMap<Key, Instant> = BTreeMap::new();
    loop {
        time::sleep(LOOK).await;
        let Some((lacking, strays)) = weak.upgrade().map(|node| node.snapshots_to_look_after()) else {
            return;
        };
        let now = time::now();
        put_off.retain(|_, until| *until > now);
        for key in lacking
            .into_iter()
            .filter(|key| !put_off.contains_key(key))
            .collect::<Vec<_>>()
        {
            let Some(node) = weak.upgrade() else { return };
            let (chunk, snapshot) = (key.0, key.1.0);
            match node.make_snapshot_copy(key).await {
                Ok(()) => tracing::info!(
                    ?chunk,
                    snapshot,
                    "a copy of a snapshot was made from another node's"
                ),
                Err(error) => {
                    tracing::warn!(?chunk, snapshot, %error, "a copy of a snapshot cannot be made yet");
                    put_off.insert(key, time::now() + RETRY);
                }
            }
        }
        for key in strays
            .into_iter()
            .filter(|key| !put_off.contains_key(key))
            .collect::<Vec<_>>()
        {
            let Some(node) = weak.upgrade() else { return };
            let (chunk, snapshot) = (key.0, key.1.0);
            match node.let_snapshot_go(key).await {
                Ok(true) => tracing::info!(?chunk, snapshot, "a copy of a snapshot went: others have it"),
                Ok(false) => drop(put_off.insert(key, time::now() + RETRY / 4)),
                Err(error) => {
                    tracing::warn!(?chunk, snapshot, %error, "a copy of a snapshot stays here");
                    put_off.insert(key, time::now() + RETRY);
                }
            }
        }
    }
}
