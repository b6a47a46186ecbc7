//! A blob as a [`Channel`]: requests in pages of 4096 bytes.
//!
//! The fast path, for a range whose clusters are allocated and lie side by side: look the cluster up, count the
//! request in, put the device's address in its place, submit. It completes when the device does, perhaps inside
//! `submit`; no task, no allocation once warm. Reads of what was never written fill zeros at once. All
//! else (first writes, ranges over separate clusters, giving space back, waiting for a resize) gets a task.

use std::rc::Rc;

use bdev::{Channel, Data, Geometry, IoError, Operation, Request, Token};
use foundation::{BlockCount, Lba};

use crate::format::PAGE_BYTES;
use crate::slow_path;
use crate::store::{BlobState, Store};

/// One core's way to a blob.
pub struct BlobChannel {
    pub(crate) store: Rc<Store>,
    pub(crate) blob: Rc<BlobState>,
}

/// Where a range of a blob lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First page on the device; none if no cluster is allocated.
    pub(crate) device_page: Option<u64>,
    pub(crate) pages: u64,
}

impl Store {
    /// The longest part of the range that lies in one piece, from its beginning.
    #[inline]
    pub(crate) fn piece(&self, blob: &BlobState, page: u64, pages: u64) -> Piece {
        let cluster_pages = self.cluster_pages();
        let map = blob.map.borrow();
        let offset = page & (cluster_pages - 1);
        let mut cluster_index = page / cluster_pages;
        let first = map.get(cluster_index);
        let mut found = cluster_pages - offset;
        let mut expected = first;
        while found < pages {
            cluster_index += 1;
            expected = expected.map(|cluster| cluster + 1);
            if map.get(cluster_index) != expected {
                break;
            }
            found += cluster_pages;
        }
        Piece {
            device_page: first.map(|cluster| u64::from(cluster) * cluster_pages + offset),
            pages: found.min(pages),
        }
    }
}

impl BlobChannel {
    /// Serves the request if that needs no waiting of ours; else gives it back.
    #[inline]
    fn try_fast(&self, mut request: Request) -> Option<Request> {
        let is_clean = self.blob.changed_at.get() <= self.store.committed.get();
        match request.operation {
            Operation::Read | Operation::Compare | Operation::Write { fua: false } => {}
            Operation::Write { fua: true } if is_clean => {}
            _ => return Some(request),
        }
        let piece = self.store.piece(&self.blob, request.lba.0, request.blocks.0);
        if piece.pages != request.blocks.0 {
            return Some(request);
        }
        match (piece.device_page, &mut request.data) {
            (Some(page), _) => {
                (request.lba, request.blocks) = self.store.io.range(page, piece.pages);
                request.token = self.blob.gate.pass(request.token);
                if let Operation::Write { fua: true } = request.operation {
                    let tag = self.store.forced.keep(request.token);
                    request.token = Token::new(self.store.clone(), tag);
                }
                self.store.io.channel.submit(request);
                None
            }
            (None, Data::Into(buffer)) => {
                buffer.fill(0);
                request.complete(Ok(()));
                None
            }
            _ => Some(request),
        }
    }
}

impl Channel for BlobChannel {
    fn geometry(&self) -> Geometry {
        self.store.blob_geometry(&self.blob)
    }

    fn submit(&self, request: Request) {
        if self.blob.gate.is_open() {
            let checked = self.check(request.operation, request.lba, request.blocks, &request.data);
            if let Err(error) = checked {
                return request.complete(Err(error));
            }
            if request.blocks == BlockCount(0) && request.operation != Operation::Flush {
                return request.complete(Ok(()));
            }
            if let Some(request) = self.try_fast(request) {
                self.spawn(request);
            }
        } else {
            self.spawn(request);
        }
    }
}

impl BlobChannel {
    /// Serves the request in a task, checked again when its turn has come.
    fn spawn(&self, request: Request) {
        let own = BlobChannel {
            store: self.store.clone(),
            blob: self.blob.clone(),
        };
        drop(reactor::spawn(async move {
            let Request {
                operation,
                lba,
                blocks,
                data,
                token,
                ..
            } = request;
            let (status, data) = own.serve(operation, lba, blocks, data).await;
            token.complete(status, data);
        }));
    }

    async fn serve(
        &self,
        operation: Operation,
        lba: Lba,
        blocks: BlockCount,
        data: Data,
    ) -> (Result<(), IoError>, Data) {
        if operation == Operation::Flush {
            let status = match self.check(operation, lba, blocks, &data) {
                Ok(()) => self.store.sync().await.map_err(|error| error.status()),
                refused => refused,
            };
            return (status, data);
        }
        slow_path::serve(self, operation, lba, blocks, data).await
    }

    /// Whether the blob can serve the request as it is now.
    #[inline]
    pub(crate) fn check(
        &self,
        operation: Operation,
        lba: Lba,
        blocks: BlockCount,
        data: &Data,
    ) -> Result<(), IoError> {
        if self.blob.deleted.get() {
            return Err(IoError::Gone);
        }
        if operation == Operation::Flush {
            return Ok(());
        }
        // A blob has no writer's token: those of a chunk stand in its record.
        if operation == Operation::Fence {
            return Err(IoError::Unsupported);
        }
        let end = lba.checked_add(blocks).ok_or(IoError::OutOfRange)?;
        if end.0 > self.blob.size_pages.get() {
            return Err(IoError::OutOfRange);
        }
        let moves = matches!(
            operation,
            Operation::Read | Operation::Write { .. } | Operation::Compare
        );
        let right_kind = match operation {
            Operation::Read => matches!(data, Data::Into(_)),
            Operation::Write { .. } | Operation::Compare => matches!(data, Data::From(_)),
            _ => true,
        };
        if moves && (!right_kind || data.length_bytes() as u64 != blocks.0 * PAGE_BYTES as u64) {
            return Err(IoError::Unaligned);
        }
        Ok(())
    }
}
