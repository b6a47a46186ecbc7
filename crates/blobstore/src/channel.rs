//! A blob as a [`Channel`]: requests in pages of 4096 bytes.
//!
//! The fast path, for a range whose clusters are allocated and lie side by side: look the cluster up, count the
//! request in, put the device's address in its place, submit. It completes when the device does, perhaps inside
//! `submit`; no task, no allocation once warm. Reads of what was never written fill zeros at once. All
//! else (first writes, ranges over separate clusters, giving space back, waiting for a resize) gets a task.

use std::rc::Rc;

use bdev::{Channel, Data, Geometry, IoError, Operation, Request, Token};
use foundation::{BlockCount, Lba};

use crate::cluster_map::HOLE;
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
    /// First page on the device; none if nothing was written there, and it reads zeros.
    pub(crate) device_page: Option<u64>,
    /// It is the blob's own, to be written in place, and no parent's.
    pub(crate) is_own: bool,
    pub(crate) pages: u64,
}

/// What lies at a page of a blob.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// On the device.
    pub(crate) cluster: u32,
    pub(crate) is_own: bool,
    /// The page from which on zeros are read, whatever the cluster holds.
    pub(crate) end: u64,
}

impl Store {
    /// The longest part of the range that lies in one piece, from its beginning.
    #[inline]
    pub(crate) fn piece(&self, blob: &BlobState, page: u64, pages: u64) -> Piece {
        let cluster_pages = self.cluster_pages();
        let offset = page & (cluster_pages - 1);
        let first = self.shown(blob, page);
        let mut expected = first;
        // Where the piece ends, and where it ends at the latest since the parent is not shown further.
        let mut end = page - offset + cluster_pages;
        let mut last = first.map_or(u64::MAX, |found| found.end);
        while end < page + pages && last > end {
            let next = self.shown(blob, end);
            if let Some(expected) = &mut expected {
                expected.cluster += 1;
            }
            let continues = match (expected, next) {
                (Some(expected), Some(next)) => {
                    expected.cluster == next.cluster && expected.is_own == next.is_own
                }
                (None, None) => true,
                _ => false,
            };
            if !continues {
                break;
            }
            last = next.map_or(u64::MAX, |found| found.end);
            end += cluster_pages;
        }
        Piece {
            device_page: first.map(|found| u64::from(found.cluster) * cluster_pages + offset),
            is_own: first.is_some_and(|found| found.is_own),
            pages: pages.min(end.min(last) - page),
        }
    }

    /// What lies at a page: the blob's own, or what shows of its parents.
    #[inline]
    pub(crate) fn shown(&self, blob: &BlobState, page: u64) -> Option<Found> {
        let index = page / self.cluster_pages();
        match blob.map.borrow().entry(index) {
            0 if blob.parent_pages.get() > page => self.inherited(blob, page),
            0 | HOLE => None,
            cluster => Some(Found {
                cluster,
                is_own: true,
                end: u64::MAX,
            }),
        }
    }

    /// What would show of the blob's parents at a page if it had nothing there itself.
    pub(crate) fn inherited(&self, blob: &BlobState, page: u64) -> Option<Found> {
        let index = page / self.cluster_pages();
        let mut end = blob.parent_pages.get();
        let mut next = blob.parent.borrow().clone();
        while let Some(parent) = next.filter(|_| page < end) {
            match parent.map.borrow().entry(index) {
                0 => {}
                HOLE => return None,
                cluster => {
                    let is_own = false;
                    return Some(Found { cluster, is_own, end });
                }
            }
            end = end.min(parent.parent_pages.get());
            next = parent.parent.borrow().clone();
        }
        None
    }
}

impl BlobChannel {
    /// Serves the request if that needs no waiting of ours; else gives it back.
    #[inline]
    fn try_fast(&self, mut request: Request) -> Option<Request> {
        let is_durable_there = || {
            self.blob.changed_at.get() <= self.store.committed.get()
                || self.store.is_named(&self.blob, request.lba.0, request.blocks.0)
        };
        match request.operation {
            Operation::Read | Operation::Compare | Operation::Write { fua: false } => {}
            Operation::Write { fua: true } if is_durable_there() => {}
            _ => return Some(request),
        }
        let piece = self.store.piece(&self.blob, request.lba.0, request.blocks.0);
        if piece.pages != request.blocks.0 {
            return Some(request);
        }
        let is_read = matches!(request.operation, Operation::Read | Operation::Compare);
        match (piece.device_page, &mut request.data) {
            (Some(page), _) if is_read || (piece.is_own && !self.store.is_lent(&self.blob)) => {
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
        // A blob has no writer's token, since those of a chunk stand in its record, and no order of its writes.
        if matches!(operation, Operation::Fence | Operation::CompareAndWrite { .. }) {
            return Err(IoError::Unsupported);
        }
        if self.blob.is_snapshot.get() && !matches!(operation, Operation::Read | Operation::Compare) {
            return Err(IoError::ReadOnly);
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
