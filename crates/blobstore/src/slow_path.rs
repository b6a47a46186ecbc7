//! Requests that need more than an address: first writes, ranges in several pieces, giving space back.
//!
//! *First write of a cluster.* A cluster is taken (on [`crate::clusters`] see which), the part of it that the write
//! does not cover is zeroed beside the write, and only when all of that has ended does the map name the
//! cluster, in memory. The next commit flushes before it writes that map. So no crash shows a reader
//! what an earlier owner left: either nothing names the cluster, or its zeros are durable. Where a parent shows, its pages
//! are copied instead of zeroed.

use std::ops::Range;
use std::rc::Rc;

use bdev::{Data, IoError, Operation};
use foundation::{BlockCount, Lba};
use reactor::buffer::BUFFER_BYTES_MAX;
use reactor::{Buffer, BufferMut, BufferPool};

use crate::channel::BlobChannel;
use crate::cluster_map;
use crate::clusters::Taken;
use crate::format::PAGE_BYTES;
use crate::page_io::finish;
use crate::store::{BlobState, Store};

/// Serves a request that moves or removes bytes, once the blob lets it in.
pub(crate) async fn serve(
    channel: &BlobChannel,
    operation: Operation,
    lba: Lba,
    blocks: BlockCount,
    data: Data,
) -> (Result<(), IoError>, Data) {
    let (store, blob) = (&channel.store, &channel.blob);
    let gives_back = matches!(
        operation,
        Operation::Deallocate | Operation::WriteZeroes { deallocate: true, .. }
    );
    let (mut shared, mut exclusive) = (None, None);
    let is_read = matches!(operation, Operation::Read | Operation::Compare);
    loop {
        if gives_back {
            exclusive = Some(blob.gate.enter_exclusive().await);
        } else {
            shared = Some(blob.gate.enter().await);
        }
        if is_read || !store.is_lent(blob) {
            break;
        }
        drop((shared.take(), exclusive.take()));
        if let Err(error) = store.commit_all().await {
            return (Err(error.status()), data);
        }
    }
    if let Err(error) = channel.check(operation, lba, blocks, &data) {
        return (Err(error), data);
    }
    let (first, pages) = (lba.0, blocks.0);
    let (mut status, data) = match (operation, data) {
        (Operation::Read, Data::Into(buffer)) => {
            let (status, buffer) = read(store, blob, first, buffer).await;
            (status, Data::Into(buffer))
        }
        (Operation::Write { .. }, Data::From(buffer)) => {
            (write(store, blob, first, &buffer).await, Data::From(buffer))
        }
        (Operation::Compare, Data::From(buffer)) => {
            (compare(store, blob, first, &buffer).await, Data::From(buffer))
        }
        (_, data) if gives_back => (give_back(store, blob, first, pages).await, data),
        (_, data) => (zero(store, blob, first, pages).await, data),
    };
    // Nobody's way is barred while the store is made durable.
    drop((shared.take(), exclusive.take()));
    let fua = matches!(
        operation,
        Operation::Write { fua: true } | Operation::WriteZeroes { fua: true, .. }
    );
    if fua && status.is_ok() {
        status = store.sync().await.map_err(|error| error.status());
    }
    (status, data)
}

async fn read(
    store: &Rc<Store>,
    blob: &BlobState,
    first: u64,
    mut buffer: BufferMut,
) -> (Result<(), IoError>, BufferMut) {
    let length = buffer.len();
    let mut parts = Vec::new();
    let mut status = Ok(());
    let mut page = first;
    while !buffer.is_empty() {
        let piece = store.piece(blob, page, (buffer.len() / PAGE_BYTES) as u64);
        let mut part = buffer.split_to(piece.pages as usize * PAGE_BYTES);
        page += piece.pages;
        match piece.device_page {
            None => part.fill(0),
            Some(device_page) => {
                let completion = store
                    .io
                    .start(Operation::Read, device_page, piece.pages, Data::Into(part))
                    .await;
                status = status.and(completion.status);
                part = match completion.data {
                    Data::Into(part) => part,
                    // An aborted request has lost its buffer, and with it the whole.
                    _ => return (status.and(Err(IoError::Aborted)), BufferMut::empty()),
                };
            }
        }
        parts.push(part);
    }
    match joined(parts, length) {
        Some(whole) => (status, whole),
        None => (status.and(Err(IoError::Aborted)), BufferMut::empty()),
    }
}

/// The parts of a buffer as one again. A layer below may have put another in the place of one of them, which a reset took back from a
/// disk that stood: then all are copied.
fn joined(parts: Vec<BufferMut>, length: usize) -> Option<BufferMut> {
    let mut left = parts.into_iter();
    let mut whole = BufferMut::empty();
    while let Some(part) = left.next() {
        match whole.join(part) {
            Ok(joined) => whole = joined,
            Err((before, part)) => {
                // None that has buffers waits for one.
                let mut fresh = BufferPool::current().try_allocate(length).ok()?;
                let mut at = 0;
                for piece in [before, part].into_iter().chain(left) {
                    fresh.get_mut(at..at + piece.len())?.copy_from_slice(&piece);
                    at += piece.len();
                }
                return (at == length).then_some(fresh);
            }
        }
    }
    Some(whole)
}

/// Writes every part of the buffer to its cluster. All that needs no new cluster is in flight together.
async fn write(store: &Rc<Store>, blob: &Rc<BlobState>, first: u64, buffer: &Buffer) -> Result<(), IoError> {
    let pages = (buffer.len() / PAGE_BYTES) as u64;
    let cluster_pages = store.cluster_pages();
    let mut pending = Vec::new();
    let mut status = Ok(());
    let mut done = 0;
    while done < pages && status.is_ok() {
        let page = first + done;
        let mut piece = store.piece(blob, page, pages - done);
        if !piece.is_own {
            piece.device_page = None;
            piece.pages = piece.pages.min(cluster_pages - page % cluster_pages);
        }
        let start = done as usize * PAGE_BYTES;
        let part = buffer.slice(start..start + piece.pages as usize * PAGE_BYTES);
        match piece.device_page {
            Some(device_page) => {
                let operation = Operation::Write { fua: false };
                pending.push(
                    store
                        .io
                        .start(operation, device_page, piece.pages, Data::From(part)),
                );
                done += piece.pages;
            }
            None => match first_write(store, blob, page, part).await {
                Ok(true) => done += piece.pages,
                Ok(false) => {}
                Err(error) => status = Err(error),
            },
        }
    }
    status.and(finish(pending).await)
}

/// Waits until no first write of a cluster is under way; whether one was.
async fn waited(blob: &BlobState, cluster_index: u64) -> bool {
    let is_over = || !blob.allocating.borrow().contains(&cluster_index);
    if is_over() {
        return false;
    }
    blob.allocated.until(is_over).await;
    true
}

/// Writes into a cluster that the blob does not have yet, beside what its parents have there. False if another write has brought it
/// meanwhile.
async fn first_write(
    store: &Rc<Store>,
    blob: &Rc<BlobState>,
    page: u64,
    part: Buffer,
) -> Result<bool, IoError> {
    let cluster_index = page / store.cluster_pages();
    if waited(blob, cluster_index).await {
        return Ok(false);
    }
    store
        .reserve_page(blob, cluster_map::page_index(cluster_index))
        .map_err(|error| error.status())?;
    blob.allocating.borrow_mut().insert(cluster_index);
    let result = fill_cluster(store, blob, page, part).await;
    blob.allocating.borrow_mut().remove(&cluster_index);
    blob.allocated.notify();
    result.map(|()| true)
}

/// The blob's first write of a cluster is under way; over when this ends.
struct Allocating(Rc<BlobState>, u64);

impl Drop for Allocating {
    fn drop(&mut self) {
        self.0.allocating.borrow_mut().remove(&self.1);
        self.0.allocated.notify();
    }
}

/// A cluster that nobody owns yet; free again where it ends so.
struct Unowned {
    store: Rc<Store>,
    cluster: Option<u32>,
    _allocating: Allocating,
}

impl Drop for Unowned {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.take() {
            self.store.state.borrow_mut().clusters.give_back(cluster);
        }
    }
}

/// Gives the blob a cluster of its own with what it shows at `page`, without writing anything. Whoever waits may give up: the copy then
/// ends by itself, and the blob has no cluster there still. False if a write has brought one meanwhile.
pub(crate) async fn copy_cluster(
    store: &Rc<Store>,
    blob: &Rc<BlobState>,
    page: u64,
) -> Result<bool, IoError> {
    let cluster_pages = store.cluster_pages();
    let index = page / cluster_pages;
    if waited(blob, index).await {
        return Ok(false);
    }
    store
        .reserve_page(blob, cluster_map::page_index(index))
        .map_err(|error| error.status())?;
    blob.allocating.borrow_mut().insert(index);
    let allocating = Allocating(blob.clone(), index);
    let (own_store, own_blob) = (store.clone(), blob.clone());
    let copied = reactor::spawn(async move {
        let taken = own_store.take_cluster().await?;
        let unowned = Unowned {
            store: own_store,
            cluster: Some(taken.cluster),
            _allocating: allocating,
        };
        let first = index * cluster_pages;
        fill(&unowned.store, &own_blob, first, taken, 0..cluster_pages).await?;
        Ok(unowned)
    });
    let mut copied = copied.await.unwrap_or(Err(IoError::Aborted))?;
    if let Some(cluster) = copied.cluster.take() {
        store.own(blob, index, cluster);
        store.mark_dirty(blob, cluster_map::page_index(index));
    }
    Ok(true)
}

async fn fill_cluster(
    store: &Rc<Store>,
    blob: &Rc<BlobState>,
    page: u64,
    part: Buffer,
) -> Result<(), IoError> {
    let taken = store.take_cluster().await?;
    let cluster = taken.cluster;
    let cluster_pages = store.cluster_pages();
    let start = u64::from(cluster) * cluster_pages;
    let offset = page % cluster_pages;
    let pages = (part.len() / PAGE_BYTES) as u64;
    let write = Operation::Write { fua: false };
    let data = store.io.start(write, start + offset, pages, Data::From(part));
    let first = page - offset;
    let before = fill(store, blob, first, taken, 0..offset).await;
    let after = fill(store, blob, first, taken, offset + pages..cluster_pages).await;
    let status = data.await.status.and(before.and(after));
    if let Err(error) = status {
        store.state.borrow_mut().clusters.give_back(cluster);
        return Err(error);
    }
    let cluster_index = page / cluster_pages;
    store.own(blob, cluster_index, cluster);
    store.mark_dirty(blob, cluster_map::page_index(cluster_index));
    Ok(())
}

/// Makes pages of a new cluster, whose first page in the blob is `first`, what they were before: what shows of the parents,
/// and zeros.
async fn fill(
    store: &Rc<Store>,
    blob: &BlobState,
    first: u64,
    taken: Taken,
    pages: Range<u64>,
) -> Result<(), IoError> {
    let cluster_pages = store.cluster_pages();
    let start = u64::from(taken.cluster) * cluster_pages;
    let mut page = pages.start;
    if let Some(found) = store.inherited(blob, first)
        && blob.map.borrow().entry(first / cluster_pages) == 0
    {
        let from = u64::from(found.cluster) * cluster_pages;
        let end = pages.end.min(found.end - first);
        while page < end {
            let part = (end - page).min((BUFFER_BYTES_MAX / PAGE_BYTES) as u64);
            let bytes = store.io.read(from + page, part as usize).await?;
            let write = Operation::Write { fua: false };
            let written = store.io.start(write, start + page, part, Data::From(bytes));
            written.await.status?;
            page += part;
        }
    }
    if taken.zeros || page >= pages.end {
        return Ok(());
    }
    store.io.zero(start + page, pages.end - page, true).await
}

async fn compare(store: &Rc<Store>, blob: &BlobState, first: u64, buffer: &Buffer) -> Result<(), IoError> {
    let pages = (buffer.len() / PAGE_BYTES) as u64;
    let mut done = 0;
    while done < pages {
        let piece = store.piece(blob, first + done, pages - done);
        let start = done as usize * PAGE_BYTES;
        let part = buffer.slice(start..start + piece.pages as usize * PAGE_BYTES);
        match piece.device_page {
            None if part.iter().any(|&byte| byte != 0) => return Err(IoError::Mismatch),
            None => {}
            Some(device_page) => {
                store
                    .io
                    .start(Operation::Compare, device_page, piece.pages, Data::From(part))
                    .await
                    .status?;
            }
        }
        done += piece.pages;
    }
    Ok(())
}

/// Makes the range read zeros: in place where the blob has a cluster of its own, and where a parent shows by hiding it, or
/// in a cluster of its own if the rest of it is to show further on.
pub(crate) async fn zero(
    store: &Rc<Store>,
    blob: &Rc<BlobState>,
    first: u64,
    pages: u64,
) -> Result<(), IoError> {
    let cluster_pages = store.cluster_pages();
    let mut done = 0;
    while done < pages {
        let page = first + done;
        let piece = store.piece(blob, page, pages - done);
        let Some(device_page) = piece.device_page else {
            done += piece.pages;
            continue;
        };
        if piece.is_own {
            store.io.zero(device_page, piece.pages, false).await?;
            done += piece.pages;
            continue;
        }
        let cluster_index = page / cluster_pages;
        let whole = page.is_multiple_of(cluster_pages)
            && store.inherited(blob, page).is_some_and(|found| {
                let shown = found.end.min(page + cluster_pages) - page;
                piece.pages >= shown
            });
        if !whole {
            // Then it is found again, as one of the blob's own.
            copy_cluster(store, blob, page).await?;
        } else if !waited(blob, cluster_index).await {
            let reserved = store.reserve_page(blob, cluster_map::page_index(cluster_index));
            reserved.map_err(|error| error.status())?;
            store.hide(blob, cluster_index);
        }
    }
    Ok(())
}

/// Pages that are read at once to find out whether they are zeros.
const LOOK_PAGES: u64 = 16;

/// Whether pages of one cluster of the blob's own hold zeros, so that nothing is lost if it is given back. What cannot be read is
/// taken for something else.
async fn holds_zeros(store: &Store, blob: &BlobState, pages: Range<u64>) -> bool {
    let mut page = pages.start;
    while page < pages.end {
        let piece = store.piece(blob, page, LOOK_PAGES.min(pages.end - page));
        let (Some(device_page), true) = (piece.device_page, piece.is_own) else {
            return false;
        };
        let count = usize::try_from(piece.pages).expect("a look takes few pages");
        match store.io.read(device_page, count).await {
            Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => page += piece.pages,
            _ => return false,
        }
    }
    true
}

/// Gives whole clusters of the range back and makes the rest of it read zeros. Nothing else is in flight. A cluster at either end of
/// which the range has only a part is given back, too, if the rest of it holds zeros: what is deallocated piece by piece is given
/// back with its last piece.
async fn give_back(store: &Rc<Store>, blob: &Rc<BlobState>, first: u64, pages: u64) -> Result<(), IoError> {
    store.check_running().map_err(|error| error.status())?;
    let cluster_pages = store.cluster_pages();
    let end = first + pages;
    let (mut first_whole, mut end_whole) = (first.div_ceil(cluster_pages), end / cluster_pages);
    let (first_start, last_end) = (
        first / cluster_pages * cluster_pages,
        end.next_multiple_of(cluster_pages),
    );
    // Of the first cluster what lies before the range, and, if that is the last one as well, behind it.
    let in_one = last_end - first_start == cluster_pages;
    let before_is_zero = first > first_start && holds_zeros(store, blob, first_start..first).await;
    let looks_behind = last_end > end && (!in_one || first == first_start || before_is_zero);
    let behind_is_zero = looks_behind && holds_zeros(store, blob, end..last_end).await;
    if in_one {
        if (first == first_start || before_is_zero) && (end == last_end || behind_is_zero) {
            (first_whole, end_whole) = (first_start / cluster_pages, last_end / cluster_pages);
        }
    } else {
        first_whole -= u64::from(before_is_zero);
        end_whole += u64::from(behind_is_zero);
    }
    if first_whole >= end_whole {
        return zero(store, blob, first, pages).await;
    }
    let (whole_start, whole_end) = (first_whole * cluster_pages, end_whole * cluster_pages);
    zero(store, blob, first, whole_start.saturating_sub(first)).await?;
    zero(store, blob, whole_end, end.saturating_sub(whole_end)).await?;
    let given = store.give_up(blob, first_whole, end_whole);
    given.map_err(|error| error.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_several_buffers_become_one() {
        let joining = async {
            let filled = |length: usize, with: u8| {
                let mut buffer = BufferPool::current().try_allocate(length).unwrap();
                buffer.fill(with);
                buffer
            };
            let mut first = filled(3 * PAGE_BYTES, 1);
            let (one, two) = (first.split_to(PAGE_BYTES), first.split_to(PAGE_BYTES));
            let address = one.as_ptr();
            let whole = joined(vec![one, two, first], 3 * PAGE_BYTES).unwrap();
            assert_eq!((whole.as_ptr(), whole.len()), (address, 3 * PAGE_BYTES));

            // A reset has put another in the place of the second.
            let mut first = filled(3 * PAGE_BYTES, 1);
            let one = first.split_to(PAGE_BYTES);
            drop(first.split_to(PAGE_BYTES));
            let parts = vec![one, filled(PAGE_BYTES, 2), first];
            let whole = joined(parts, 3 * PAGE_BYTES).unwrap();
            let ends = [0, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES, 3 * PAGE_BYTES - 1];
            assert_eq!(ends.map(|at| whole[at]), [1, 1, 2, 1, 1]);
            assert!(joined(vec![filled(PAGE_BYTES, 1), filled(PAGE_BYTES, 1)], 3 * PAGE_BYTES).is_none());
        };
        reactor::run(&reactor::Config::default(), joining).unwrap();
    }
}
