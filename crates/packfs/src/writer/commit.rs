//! Making changes durable: data and pages, flush, superblock with forced unit access.

use super::Writer;
use crate::error::WriteError;
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::format::{PAGE_BYTES, PAGE_BYTES_U64, SUPERBLOCK_ADDRESSES};
use crate::tree::Written;
use bdev::IoError;
use foundation::ByteCount;
use reactor::buffer::BUFFER_BYTES_MAX;

impl Writer {
    /// Makes everything so far durable, and gives the generation that holds it. Without changes it writes
    /// nothing. If another asked to be the writer, this one is it no more afterwards ([`super::WriterOptions::hands_over`]).
    ///
    /// # Errors
    /// [`WriteError::NoSpace`] leaves the changes uncommitted and the writer usable; after any other error
    /// only what was committed before is certain, and the writer is [`WriteError::Broken`], or [`WriteError::DisksFull`].
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
        if !self.broken && self.tree.is_committed() {
            return Ok(self.superblock.generation);
        }
        self.compact_along().await?;
        self.commit_always().await
    }

    /// The same also without changes: what the commit before has freed becomes free.
    pub(crate) async fn commit_always(&mut self) -> Result<u64, WriteError> {
        self.ensure_whole()?;
        self.put_quotas().await?;
        self.end_sharing().await;
        self.packer.finish_chunk(&mut self.space).await;
        // The record can grow by a segment given back for each one touched, which its bound has counted.
        let needed = self.tree.changed_pages() as u64 + self.record_pages_max();
        if let Some(pages) = needed.checked_sub(self.space.free_pages() + 1) {
            let missing = ByteCount((pages + 1) * PAGE_BYTES_U64);
            return Err(WriteError::NoSpace { missing });
        }
        // Whatever fails from here on leaves pages half accounted for.
        self.broken = true;
        let superblock = match self.write_generation().await {
            Ok(superblock) => superblock,
            Err(error) => {
                let error = self.explain(error).await;
                self.disks_full = error.is_disks_full();
                return Err(error);
            }
        };
        self.broken = false;
        self.slot = 1 - self.slot;
        self.superblock = superblock;
        self.next_generation = superblock.generation + 1;
        self.pass_floors_on();
        self.release_space().await;
        Ok(superblock.generation)
    }

    /// What a failed write means: after a long pause requests have timed out, and the lease has ended, which is what
    /// to tell.
    async fn explain(&self, error: WriteError) -> WriteError {
        match &error {
            WriteError::Io {
                source: IoError::Fenced,
                ..
            } => self.hold.lost().await.into(),
            WriteError::Io { .. } => self.hold.ensure().await.map_or_else(WriteError::from, |()| error),
            _ => error,
        }
    }

    async fn write_generation(&mut self) -> Result<Superblock, WriteError> {
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
        let written = self.tree.write_out(generation, place);
        let open = self.packer.open_segment();
        let plan = self.space.plan_record(generation, open);
        let plan = plan.expect("enough pages were free before the commit began");
        self.send_pages(&written, &plan.pages).await?;
        self.outbox.drain().await?;
        self.flush().await?;
        // The token would refuse the superblock of a writer that slept through its lease if somebody else has been
        // the writer since; this says why.
        self.hold.ensure().await?;
        let superblock = Superblock {
            generation,
            root: written.root,
            space: plan.pointer,
            next_inode: self.next_inode,
            totals: self.totals,
            features: self.features,
            writer_token: self.hold.token(),
            volume_bytes: self.volume_bytes,
            ..self.superblock
        };
        let address = SUPERBLOCK_ADDRESSES[1 - self.slot];
        let bytes = superblock.encode(address);
        assert_eq!(bytes.len(), SUPERBLOCK_BYTES, "a superblock is a page");
        let forced = self.medium.write_bytes(address, &bytes, true).await;
        forced.map_err(|source| WriteError::Io {
            block: address / PAGE_BYTES_U64,
            source,
        })?;
        self.tree.adopt(&written);
        self.space.committed(generation, plan);
        Ok(superblock)
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
    /// nothing becomes free this time.
    pub(crate) async fn release_space(&mut self) {
        if let Ok(readers) = self.hold.reader_floor().await {
            let named = self.snapshot_floor();
            self.space.release(self.superblock.generation, readers, named);
        }
    }
}
