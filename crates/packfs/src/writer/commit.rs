//! Making changes durable: data and pages, flush, superblock with forced unit access.

use super::Writer;
use crate::error::WriteError;
use crate::format::extent::Extent;
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::format::{PAGE_BYTES, PAGE_BYTES_U64, SUPERBLOCK_ADDRESSES};
use crate::space::ReaderFloor;
use crate::space::RecordPlan;
use crate::tree::Written;
use bdev::IoError;
use foundation::ByteCount;
use reactor::buffer::BUFFER_BYTES_MAX;

/// A commit whose pages have their places. Until it has ended nothing may change.
pub(super) struct Started {
    superblock: Superblock,
    tree: Written,
    record: RecordPlan,
    /// What was packed and got no file, since then.
    forgotten: Vec<Extent>,
}

impl Started {
    /// Has extents forgotten once the commit has ended: what it says of segments has been put together.
    pub(super) fn forget(&mut self, extents: &[Extent]) {
        self.forgotten.extend_from_slice(extents);
    }
}

impl Writer {
    /// Makes everything so far durable, and gives the generation that holds it. Without changes it writes
    /// nothing. If another asked to be the writer, this one is it no more afterwards ([`super::WriterOptions::hands_over`]).
    ///
    /// # Errors
    /// [`WriteError::NoSpace`] leaves the changes uncommitted and the writer usable. After [`WriteError::DisksFull`] nothing can be changed
    /// until another call has ended this commit, which it can once there is room. After any other error only what was committed before is
    /// certain, and the writer is [`WriteError::Broken`].
    pub async fn commit(&mut self) -> Result<u64, WriteError> {
        #[cfg(test)]
        if self.space.bug == crate::space::PlantedBug::HandOverBeforeCommit {
            self.hold.hand_over().await;
        }
        let generation = self.commit_changes().await?;
        if self.hands_over {
            self.hand_over().await;
        }
        Ok(generation)
    }

    async fn commit_changes(&mut self) -> Result<u64, WriteError> {
        self.end_started().await?;
        if !self.broken && self.is_committed() {
            return Ok(self.superblock.generation);
        }
        self.compact_along().await?;
        self.commit_always().await
    }

    /// Ends the commit for which there was no room, if there is one.
    pub(crate) async fn end_started(&mut self) -> Result<(), WriteError> {
        match self.started.is_some() {
            true => self.commit_always().await.map(drop),
            false => Ok(()),
        }
    }

    /// The same also without changes: what the commit before has freed becomes free.
    pub(crate) async fn commit_always(&mut self) -> Result<u64, WriteError> {
        let before = match self.broken {
            true => return Err(WriteError::Broken),
            false => self.started.take(),
        };
        let started = match before {
            Some(started) => started,
            None => {
                self.prepare_commit().await?;
                self.ensure_takes()?;
                self.start_generation()
            }
        };
        // Whatever fails from here on leaves pages half accounted for, unless the same is done again.
        self.broken = true;
        if let Err(error) = self.write_generation(&started).await {
            let error = self.explain(error).await;
            if !error.is_disks_full() {
                return Err(error);
            }
            self.broken = false;
            self.started = Some(started);
            return Err(WriteError::DisksFull);
        }
        let Started {
            superblock,
            tree,
            record,
            forgotten,
        } = started;
        self.tree.adopt(&tree);
        self.space.committed(superblock.generation, record);
        self.broken = false;
        self.forget(&forgotten);
        self.slot = 1 - self.slot;
        self.superblock = superblock;
        self.next_generation = superblock.generation + 1;
        self.pass_floors_on();
        self.leave_emptied();
        self.release_space().await;
        Ok(superblock.generation)
    }

    /// Does what comes before the pages of a commit are written, and refuses it where there is no room for them.
    pub(crate) async fn prepare_commit(&mut self) -> Result<(), WriteError> {
        self.ensure_whole()?;
        self.put_quotas().await?;
        self.end_sharing().await;
        self.packer.finish_chunk(&mut self.space).await;
        // The record can grow by a segment given back for each one touched, which its bound has counted.
        if self.missing_for_commit().is_some() {
            // What a reader held may be free since it has gone, and without a commit nobody else would ask.
            self.release_space().await;
            self.ensure_whole()?;
        }
        if let Some(missing) = self.missing_for_commit() {
            return Err(WriteError::NoSpace { missing });
        }
        Ok(())
    }

    /// What a commit lacks now.
    fn missing_for_commit(&self) -> Option<ByteCount> {
        let needed = self.tree.changed_pages() as u64 + self.record_pages_max();
        let pages = needed.checked_sub(self.space.free_pages() + 1)?;
        Some(ByteCount((pages + 1) * PAGE_BYTES_U64))
    }

    /// Makes free what may be used already, and says whether a commit would make more so. Beside a reader that stays with an older commit it
    /// would not, nor where only snapshots hold what waits: each would only take some pages more of what is kept for removals.
    pub(crate) async fn gains_by_commit(&mut self) -> bool {
        // Of snapshots that are gone, or of which nothing is known yet, a commit may let go.
        let gains = |writer: &Self| {
            !writer.is_committed()
                || !writer.floors_are_settled()
                || writer.waiting_bytes() > writer.held_bytes()
        };
        if !gains(self) {
            return false;
        }
        self.release_space().await;
        let generation = self.superblock.generation;
        // One that follows has the newest, or soon will.
        let stays = |floor: ReaderFloor| {
            floor
                .0
                .is_some_and(|lowest| lowest.saturating_add(1) < generation)
        };
        match self.readers {
            Some(floor) if !stays(floor) => gains(self),
            // Without an answer nothing becomes free either.
            _ => false,
        }
    }

    /// What a failed write means: after a long pause requests have timed out, and the lease has ended, which is what
    /// to tell.
    async fn explain(&self, error: WriteError) -> WriteError {
        match &error {
            WriteError::Io {
                source: IoError::Fenced,
                ..
            } => self.hold.lost().await.into(),
            WriteError::Io { .. } | WriteError::DisksFull => {
                self.hold.ensure().await.map_or_else(WriteError::from, |()| error)
            }
            _ => error,
        }
    }

    /// Gives everything that a commit writes its place. There is room for it.
    fn start_generation(&mut self) -> Started {
        let generation = self.next_generation;
        for pointer in self.tree.take_replaced() {
            self.space.free_page(pointer.page);
        }
        let space = &mut self.space;
        let place = || {
            space
                .take_page()
                .expect("enough pages were free before the commit began")
        };
        let tree = self.tree.write_out(generation, place);
        let open = self.packer.open_segment();
        let record = self.space.plan_record(generation, open);
        let record = record.expect("enough pages were free before the commit began");
        let superblock = Superblock {
            generation,
            root: tree.root,
            space: record.pointer,
            next_inode: self.next_inode,
            totals: self.totals,
            features: self.features,
            writer_token: self.hold.token(),
            volume_bytes: self.volume_bytes,
            ..self.superblock
        };
        Started {
            superblock,
            tree,
            record,
            forgotten: Vec::new(),
        }
    }

    /// May be done again as a whole: each time it writes the same to the same places.
    async fn write_generation(&self, started: &Started) -> Result<(), WriteError> {
        self.send_pages(&started.tree, &started.record.pages).await?;
        self.outbox.drain().await?;
        self.flush().await?;
        // The token would refuse the superblock of a writer that slept through its lease if somebody else has been
        // the writer since; this says why.
        self.hold.ensure().await?;
        let address = SUPERBLOCK_ADDRESSES[1 - self.slot];
        let bytes = started.superblock.encode(address);
        assert_eq!(bytes.len(), SUPERBLOCK_BYTES, "a superblock is a page");
        let forced = self.medium.write_bytes(address, &bytes, true).await;
        forced.map_err(|source| WriteError::Io {
            block: address / PAGE_BYTES_U64,
            source,
        })
    }

    async fn flush(&self) -> Result<(), WriteError> {
        #[cfg(test)]
        if self.space.bug == crate::space::PlantedBug::SuperblockBeforeFlush {
            return Ok(());
        }
        let block = 0;
        let flushed = self.medium.flush().await;
        flushed.map_err(|source| WriteError::Io { block, source })
    }

    /// Sends pages in runs of neighbours, each one write.
    async fn send_pages(&self, tree: &Written, record: &[(u64, Vec<u8>)]) -> Result<(), WriteError> {
        let tree = tree.pages.iter().map(|(pointer, bytes)| (pointer.page, bytes));
        let mut pages: Vec<(u64, &Vec<u8>)> = tree
            .chain(record.iter().map(|(page, bytes)| (*page, bytes)))
            .collect();
        pages.sort_by_key(|(page, _)| *page);
        let mut rest = &pages[..];
        while let Some(&(first, _)) = rest.first() {
            if self.outbox.is_full() {
                return Err(WriteError::DisksFull);
            }
            let most = rest.len().min(BUFFER_BYTES_MAX / PAGE_BYTES);
            let run = (0..most)
                .take_while(|&index| rest[index].0 == first + index as u64)
                .count();
            let mut buffer = self.medium.pool().allocate(run * PAGE_BYTES).await?;
            for (part, (_, bytes)) in buffer.chunks_mut(PAGE_BYTES).zip(&rest[..run]) {
                part.copy_from_slice(bytes);
            }
            self.outbox.send(first * PAGE_BYTES_U64, buffer.freeze()).await;
            rest = &rest[run..];
        }
        Ok(())
    }

    /// Makes free what neither the two superblocks nor any reader need. Without an answer about readers
    /// nothing becomes free this time. Where the record of space contradicts itself, nothing more can be committed.
    pub(crate) async fn release_space(&mut self) {
        self.readers = self.hold.reader_floor().await.ok();
        if let Some(readers) = self.readers {
            let named = self.snapshot_floor();
            let released = self.space.release(self.superblock.generation, readers, named);
            // What is free is not certain any more: nothing may be written there.
            self.broken |= released.is_err();
        }
    }
}
