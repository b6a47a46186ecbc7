//! Pages on the device: a page is one or eight of the device's blocks.

use std::rc::Rc;

use bdev::{Channel, ChannelExt, Completion, Data, IoError, Operation, Pending, request};
use foundation::{BlockCount, Lba};
use reactor::buffer::BUFFER_BYTES_MAX;
use reactor::{Buffer, BufferPool};

use crate::format::{PAGE_BYTES, Page};

/// Metadata and zeros have buffers of their own: whoever holds the reactor's while it waits for a commit must not
/// keep that commit from getting one. So has each of the two sizes that are used, a page and the longest: who commits holds pages until
/// all of a batch are written, and would wait for one whose memory long reads have.
const POOL_BYTES: usize = 4 << 20;
const ZEROS_BYTES: usize = BUFFER_BYTES_MAX;
/// Pages that are made zero by one request.
const ZERO_PAGES_MAX: u64 = (128 << 20) / PAGE_BYTES as u64;
/// Requests that one operation of ours keeps in flight.
const IN_FLIGHT_MAX: usize = 32;

/// The device below, addressed in pages.
pub(crate) struct PageIo {
    pub(crate) channel: Rc<dyn Channel>,
    page_pool: BufferPool,
    long_pool: BufferPool,
    blocks_per_page: u64,
    pages: u64,
}

impl PageIo {
    /// Wraps a channel whose blocks are 512 or 4096 bytes.
    pub(crate) fn new(channel: Rc<dyn Channel>) -> Self {
        let geometry = channel.geometry();
        let blocks_per_page = (PAGE_BYTES as u64 / u64::from(geometry.block_bytes)).max(1);
        Self {
            channel,
            page_pool: BufferPool::new(POOL_BYTES),
            long_pool: BufferPool::new(POOL_BYTES),
            blocks_per_page,
            pages: geometry.blocks.0 / blocks_per_page,
        }
    }

    /// Whole pages of the device.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// The device's range for pages.
    #[inline]
    pub(crate) fn range(&self, page: u64, pages: u64) -> (Lba, BlockCount) {
        (
            Lba(page * self.blocks_per_page),
            BlockCount(pages * self.blocks_per_page),
        )
    }

    /// Starts a request.
    pub(crate) fn start(&self, operation: Operation, page: u64, pages: u64, data: Data) -> Pending {
        let (lba, blocks) = self.range(page, pages);
        let (request, pending) = request(operation, lba, blocks, data);
        self.channel.submit(request);
        pending
    }

    /// Reads consecutive pages, at most 256.
    pub(crate) async fn read(&self, page: u64, pages: usize) -> Result<Buffer, IoError> {
        let bytes = pages * PAGE_BYTES;
        assert!((1..=BUFFER_BYTES_MAX).contains(&bytes), "a read of {pages} pages");
        let (pool, size) = match pages {
            1 => (&self.page_pool, PAGE_BYTES),
            _ => (&self.long_pool, BUFFER_BYTES_MAX),
        };
        let mut buffer = pool.allocate(size).await.map_err(|_| IoError::Exhausted)?;
        buffer.truncate(bytes);
        let completion = self
            .start(Operation::Read, page, pages as u64, Data::Into(buffer))
            .await;
        completion.status?;
        match completion.data {
            Data::Into(buffer) => Ok(buffer.freeze()),
            _ => Err(IoError::Aborted),
        }
    }

    /// Writes each page to its place; some are in flight together. The first error is returned when all have ended.
    pub(crate) async fn write_pages(&self, pages: &[(u64, Page)]) -> Result<(), IoError> {
        let write = Operation::Write { fua: false };
        let mut result = Ok(());
        for batch in pages.chunks(IN_FLIGHT_MAX) {
            let mut pending = Vec::with_capacity(batch.len());
            for (address, page) in batch {
                let mut buffer = match self.page_pool.allocate(PAGE_BYTES).await {
                    Ok(buffer) => buffer,
                    Err(_) => return Err(IoError::Exhausted),
                };
                buffer.copy_from_slice(page);
                pending.push(self.start(write, *address, 1, Data::From(buffer.freeze())));
            }
            result = result.and(finish(pending).await);
        }
        result
    }

    /// Makes what was written durable. A flush that fails is never a mere want of room: what was written before may be lost.
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        self.channel.flush().await.map_err(|error| match error {
            IoError::NoSpace => IoError::Media,
            other => other,
        })
    }

    /// Makes pages read zeros; writes them where the device cannot do it itself. Piece by piece: a request for a whole disk may take so
    /// long that it counts as one that stands.
    pub(crate) async fn zero(&self, page: u64, pages: u64, deallocate: bool) -> Result<(), IoError> {
        let mut done = 0;
        while done < pages {
            let part = (pages - done).min(ZERO_PAGES_MAX);
            self.zero_piece(page + done, part, deallocate).await?;
            done += part;
        }
        Ok(())
    }

    async fn zero_piece(&self, page: u64, pages: u64, deallocate: bool) -> Result<(), IoError> {
        let operation = Operation::WriteZeroes {
            deallocate,
            fua: false,
        };
        match self.start(operation, page, pages, Data::None).await.status {
            Err(IoError::Unsupported) => {}
            other => return other,
        }
        let mut zeros = self
            .long_pool
            .allocate(ZEROS_BYTES)
            .await
            .map_err(|_| IoError::Exhausted)?;
        zeros.fill(0);
        let zeros = zeros.freeze();
        let mut done = 0;
        while done < pages {
            let part = (pages - done).min((ZEROS_BYTES / PAGE_BYTES) as u64);
            let data = Data::From(zeros.slice(0..part as usize * PAGE_BYTES));
            let write = Operation::Write { fua: false };
            self.start(write, page + done, part, data).await.status?;
            done += part;
        }
        Ok(())
    }
}

/// Waits for all; the first error.
pub(crate) async fn finish(pending: Vec<Pending>) -> Result<(), IoError> {
    let mut result = Ok(());
    for pending in pending {
        let Completion { status, .. } = pending.await;
        result = result.and(status);
    }
    result
}
