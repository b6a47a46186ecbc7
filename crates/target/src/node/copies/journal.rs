//! The journal of a disk: marks of regions that are about to be written, of many copies in one page (`docs/decisions/0126`,
//! `docs/formats/chunk-record.md`). A mark has to be durable before the region's first write; without the journal each costs
//! a whole record.
//!
//! Pages are written one after the other. Where none is left, the records of all copies that have marks here are written whole, and the
//! journal begins anew. An entry names the generation of the record that it follows: one of a record that was written since is
//! over, so nothing has to be taken away.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bdev::{ChannelExt, IoError};
use blobstore::{BlobChannel, BlobId, Blobstore};
use foundation::checksum::Crc32c;
use foundation::{Epoch, Lba};
use reactor::BufferPool;

use super::BLOCK_BYTES;

/// Names the blob.
pub(super) const ATTRIBUTE_JOURNAL: &str = "redhare.journal";
const MAGIC: [u8; 8] = *b"RHJRNL01";
/// Magic, sequence, first sequence of its batch, number of entries, CRC32C of all that and the entries.
const HEAD_BYTES: usize = 32;
/// Blob, generation, region, epoch.
const ENTRY_BYTES: usize = 28;
const ENTRIES_PER_PAGE: usize = (BLOCK_BYTES - HEAD_BYTES) / ENTRY_BYTES;
/// What one batch may take: one request.
const BATCH_PAGES: usize = 16;
/// No journal is longer.
const PAGES_MAX: u64 = 1024;
/// A journal takes no more of a disk than one part in so many, but a cluster at least.
const SHARE: u64 = 256;
/// A disk with fewer clusters has none.
const CLUSTERS_MIN: u32 = 16;
/// Pages that are read at a time.
const READ_PAGES: u64 = 64;

/// A region of a copy is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) region: u32,
    pub(super) epoch: Epoch,
}

/// A mark of one copy, and the generation of the record that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) blob: BlobId,
    pub(super) generation: u64,
    pub(super) mark: Mark,
}

/// See the module.
pub(super) struct Journal {
    channel: Rc<BlobChannel>,
    pages: u64,
    next: Cell<u64>,
    sequence: Cell<u64>,
    /// It is written no more.
    is_over: Cell<bool>,
}

/// What a journal held when its disk was opened.
#[derive(Default)]
pub(super) struct Contents {
    /// By blob, with the generation that each follows, in the order in which they were written.
    entries: BTreeMap<BlobId, Vec<(u64, Mark)>>,
    next_sequence: u64,
    /// A page cannot be read that was durable once: nobody knows what it held.
    pub(super) is_doubtful: bool,
}

impl Contents {
    /// Of a journal that cannot be read at all.
    pub(super) fn lost() -> Self {
        Self {
            is_doubtful: true,
            ..Self::default()
        }
    }

    /// The marks that follow this record.
    pub(super) fn after(&self, blob: BlobId, generation: u64) -> impl Iterator<Item = Mark> + '_ {
        let of_blob = self.entries.get(&blob).into_iter().flatten();
        of_blob
            .filter(move |(follows, _)| *follows == generation)
            .map(|(_, mark)| *mark)
    }
}

impl Journal {
    /// Makes one, if the disk is large enough and has room; none else.
    pub(super) async fn create(store: &Blobstore) -> Option<Self> {
        let described = store.describe();
        let cluster_pages = described.cluster_size.0 / BLOCK_BYTES as u64;
        let capacity_pages = u64::from(described.clusters) * cluster_pages;
        if described.clusters < CLUSTERS_MIN || cluster_pages > PAGES_MAX {
            return None;
        }
        let pages = (capacity_pages / SHARE).clamp(cluster_pages, PAGES_MAX);
        let pages = pages.next_multiple_of(cluster_pages);
        let blob = store.create(pages).ok()?;
        let journal = Self::over(blob.channel(), pages);
        let made = async {
            // So that no write of it needs a commit of the store.
            for first in (0..pages).step_by(READ_PAGES as usize) {
                let count = READ_PAGES.min(pages - first);
                let room = BufferPool::current().allocate(count as usize * BLOCK_BYTES).await;
                let mut zeros = room.map_err(|_| IoError::Exhausted)?;
                zeros.fill(0);
                journal.channel.write(Lba(first), zeros.freeze()).await?;
            }
            blob.set_attribute(ATTRIBUTE_JOURNAL, &[])
                .map_err(|error| error.status())?;
            store.sync().await.map_err(|error| error.status())
        };
        match made.await {
            Ok(()) => Some(journal),
            Err(error) => {
                tracing::warn!(%error, "a disk gets no journal: records of its chunk copies are written whole");
                // What is left of it goes at the next start.
                let _ = store.delete(blob.id()).await;
                None
            }
        }
    }

    /// One that was made before, and what it holds.
    pub(super) async fn open(store: &Blobstore, id: BlobId) -> Option<(Self, Contents)> {
        let blob = store.blob(id).ok()?;
        let journal = Self::over(blob.channel(), blob.size_pages());
        let mut pages = Vec::new();
        let mut is_unreadable = false;
        for first in (0..journal.pages).step_by(READ_PAGES as usize) {
            let count = READ_PAGES.min(journal.pages - first) as usize;
            let room = BufferPool::current().allocate(count * BLOCK_BYTES).await.ok()?;
            let (read, bytes) = journal.channel.read(Lba(first), room).await;
            is_unreadable |= read.is_err();
            match read {
                Ok(()) => pages.extend(bytes.chunks_exact(BLOCK_BYTES).map(decode)),
                Err(_) => pages.extend((0..count).map(|_| None)),
            }
        }
        let mut contents = gather(&pages);
        contents.is_doubtful |= is_unreadable;
        journal.sequence.set(contents.next_sequence);
        Some((journal, contents))
    }

    fn over(channel: Rc<BlobChannel>, pages: u64) -> Self {
        Self {
            channel,
            pages,
            next: Cell::new(0),
            sequence: Cell::new(1),
            is_over: Cell::new(false),
        }
    }

    /// Whether it is of use at all.
    pub(super) fn is_in_use(&self) -> bool {
        !self.is_over.get()
    }

    /// It is written no more: what it holds stays true until the records have been written whole.
    pub(super) fn give_up(&self) {
        self.is_over.set(true);
    }

    /// Whether so many entries fit now.
    pub(super) fn has_room(&self, entries: usize) -> bool {
        let pages = entries.div_ceil(ENTRIES_PER_PAGE);
        pages <= BATCH_PAGES && self.next.get() + pages as u64 <= self.pages
    }

    /// No copy has a mark here that its record lacks.
    pub(super) fn restart(&self) {
        self.next.set(0);
    }

    /// Some copies have marks here that their records lack, of before the disk was opened.
    pub(super) fn keep_all(&self) {
        self.next.set(self.pages);
    }

    /// Writes entries for which there is room, durably.
    pub(super) async fn append(&self, entries: &[Entry]) -> Result<(), IoError> {
        let pages = entries.len().div_ceil(ENTRIES_PER_PAGE);
        let (at, first) = (self.next.get(), self.sequence.get());
        self.next.set(at + pages as u64);
        self.sequence.set(first + pages as u64);
        let room = BufferPool::current().allocate(pages * BLOCK_BYTES).await;
        let mut bytes = room.map_err(|_| IoError::Exhausted)?;
        let batch = entries.chunks(ENTRIES_PER_PAGE);
        for (index, (page, entries)) in bytes.chunks_exact_mut(BLOCK_BYTES).zip(batch).enumerate() {
            encode(page, (first + index as u64, first), entries);
        }
        self.channel.write_durably(Lba(at), bytes.freeze()).await
    }
}

pub(super) fn encode(page: &mut [u8], (sequence, first): (u64, u64), entries: &[Entry]) {
    page.fill(0);
    for (bytes, entry) in page[HEAD_BYTES..].chunks_exact_mut(ENTRY_BYTES).zip(entries) {
        bytes[..8].copy_from_slice(&entry.blob.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&entry.generation.to_le_bytes());
        bytes[16..20].copy_from_slice(&entry.mark.region.to_le_bytes());
        bytes[20..28].copy_from_slice(&entry.mark.epoch.0.to_le_bytes());
    }
    page[..8].copy_from_slice(&MAGIC);
    page[8..16].copy_from_slice(&sequence.to_le_bytes());
    page[16..24].copy_from_slice(&first.to_le_bytes());
    page[24..28].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    let sum = page_sum(page);
    page[28..32].copy_from_slice(&sum.to_le_bytes());
}

/// Of everything but the sum itself.
fn page_sum(page: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    sum.update(&page[..28]);
    sum.update(&page[HEAD_BYTES..]);
    sum.value()
}

/// A page as it was written.
pub(super) struct Page {
    pub(super) sequence: u64,
    /// That of the first page of its batch.
    pub(super) first: u64,
    pub(super) entries: Vec<Entry>,
}

pub(super) fn decode(page: &[u8]) -> Option<Page> {
    let word = |at: usize| page.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let half = |at: usize| page.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let count = half(24)? as usize;
    if page[..8] != MAGIC || count > ENTRIES_PER_PAGE || page_sum(page) != half(28)? {
        return None;
    }
    let entry = |index: usize| {
        let at = HEAD_BYTES + index * ENTRY_BYTES;
        Some(Entry {
            blob: BlobId(word(at)?),
            generation: word(at + 8)?,
            mark: Mark {
                region: half(at + 16)?,
                epoch: Epoch(word(at + 20)?),
            },
        })
    };
    Some(Page {
        sequence: word(8)?,
        first: word(16)?,
        entries: (0..count).map(entry).collect::<Option<_>>()?,
    })
}

/// All that the pages say. Those of earlier rounds are taken, too: what they say follows records that were written since.
fn gather(pages: &[Option<Page>]) -> Contents {
    let mut contents = Contents {
        next_sequence: 1,
        ..Contents::default()
    };
    let written = pages
        .iter()
        .enumerate()
        .filter_map(|(at, page)| Some((at, page.as_ref()?)));
    let Some((last_at, last)) = written.clone().max_by_key(|(_, page)| page.sequence) else {
        return contents;
    };
    contents.next_sequence = last.sequence.saturating_add(1);
    for (at, page) in pages[..last_at].iter().enumerate() {
        let Some(due) = last.sequence.checked_sub((last_at - at) as u64) else {
            continue;
        };
        // Of the last batch some pages may be missing: nobody was told that it is durable.
        let is_right = page.as_ref().is_some_and(|page| page.sequence == due);
        contents.is_doubtful |= !is_right && due < last.first;
    }
    let mut in_order: Vec<&Page> = written.map(|(_, page)| page).collect();
    in_order.sort_by_key(|page| page.sequence);
    for entry in in_order.into_iter().flat_map(|page| &page.entries) {
        let of_blob = contents.entries.entry(entry.blob).or_default();
        of_blob.push((entry.generation, entry.mark));
    }
    contents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(blob: u64, generation: u64, region: u32) -> Entry {
        let epoch = Epoch(3);
        Entry {
            blob: BlobId(blob),
            generation,
            mark: Mark { region, epoch },
        }
    }

    fn page(sequence: u64, first: u64, entries: &[Entry]) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        encode(&mut bytes, (sequence, first), entries);
        bytes
    }

    fn read(pages: &[Vec<u8>]) -> Contents {
        let pages: Vec<Option<Page>> = pages.iter().map(|bytes| decode(bytes)).collect();
        gather(&pages)
    }

    fn regions(contents: &Contents, blob: u64, generation: u64) -> Vec<u32> {
        let marks = contents.after(BlobId(blob), generation);
        marks.map(|mark| mark.region).collect()
    }

    #[test]
    fn marks_follow_the_record_that_they_were_made_after() {
        let contents = read(&[
            page(7, 7, &[entry(1, 4, 10), entry(2, 9, 11), entry(1, 4, 12)]),
            page(8, 8, &[entry(1, 5, 13)]),
            vec![0; BLOCK_BYTES],
        ]);
        assert_eq!(regions(&contents, 1, 4), [10, 12]);
        assert_eq!(regions(&contents, 1, 5), [13]);
        assert_eq!(regions(&contents, 2, 9), [11]);
        assert_eq!(regions(&contents, 2, 10), [] as [u32; 0]);
        assert_eq!((contents.next_sequence, contents.is_doubtful), (9, false));
    }

    #[test]
    fn a_full_page_comes_back_and_no_bit_of_it_may_differ() {
        let all: Vec<Entry> = (0..ENTRIES_PER_PAGE as u32)
            .map(|region| entry(5, 1, region))
            .collect();
        let whole = page(1, 1, &all);
        assert_eq!(
            regions(&read(std::slice::from_ref(&whole)), 5, 1).len(),
            ENTRIES_PER_PAGE
        );
        for at in (0..BLOCK_BYTES).step_by(61) {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            assert!(decode(&changed).is_none(), "byte {at}");
        }
        let mut counts = whole;
        counts[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(decode(&counts).is_none() && decode(&[]).is_none());
    }

    #[test]
    fn a_page_that_was_durable_and_is_missing_is_told_from_a_batch_that_was_cut_off() {
        let one = [entry(1, 1, 1)];
        let torn = vec![9; BLOCK_BYTES];
        // The last batch has three pages, of which the first did not get there.
        let cut_off = [page(4, 4, &one), torn.clone(), page(6, 5, &one)];
        assert!(!read(&cut_off).is_doubtful);
        // Here the page before the last batch is missing.
        let missing = [page(4, 4, &one), torn.clone(), page(6, 6, &one)];
        assert!(read(&missing).is_doubtful);
        // One of an earlier round stands there: the same.
        let stale = [page(4, 4, &one), page(2, 2, &one), page(6, 6, &one)];
        assert!(read(&stale).is_doubtful);
        // What follows the last page is of an earlier round, whatever it is.
        let earlier = [page(9, 9, &one), torn, page(3, 3, &one)];
        assert!(!read(&earlier).is_doubtful);
        assert_eq!(read(&earlier).next_sequence, 10);
    }

    /// Later releases read it.
    #[test]
    fn a_page_is_laid_out_as_the_format_says() {
        let bytes = page(0x0102, 0x0101, &[entry(0x0a, 0x0b, 0x0c)]);
        assert_eq!(&bytes[..8], b"RHJRNL01");
        assert_eq!(
            bytes[8..28],
            [2, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
        );
        let sum = u32::from_le_bytes(bytes[28..32].try_into().unwrap());
        let covered = [&bytes[..28], &bytes[32..]].concat();
        assert_eq!(sum, foundation::checksum::crc32c(&covered));
        assert_eq!(bytes[32..40], 0x0a_u64.to_le_bytes());
        assert_eq!(bytes[40..48], 0x0b_u64.to_le_bytes());
        assert_eq!(bytes[48..52], 0x0c_u32.to_le_bytes());
        assert_eq!(bytes[52..60], 3_u64.to_le_bytes());
        assert!(bytes[60..].iter().all(|byte| *byte == 0));
    }
}
