//! The checksums of one copy's blocks, which lie apart from the blocks: pages of sums behind the chunk, each in two
//! places written in turn. Pure: the caller reads and writes the pages, and says when they are durable.
//!
//! Nothing here is written per write. A sum changes in memory when its write is given to the device, and reaches the
//! disk with the flush after which the write's intent mark may be cleared. So outside of marked regions a durable block
//! and its durable sum belong together; inside of them, after a crash, a block is *undecided*: whatever it holds is
//! taken, since reconciliation or resync makes the copies equal there before anybody reads it
//! (`docs/decisions/0069`). Layout: `docs/formats/checksums.md`.
//!
//! Cost: 4 bytes of memory for each block of the pages kept, one look into a table of pages for each request; a write
//! never waits for a page of sums to be read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use foundation::cache;
use foundation::checksum::crc32c;

use crate::format::FormatError;
use crate::geometry::PAGE_BYTES;
use crate::identity::ChunkId;

/// Sums in one page of them.
pub const SUMS_PER_PAGE: u32 = 1008;
/// Bytes of one page of sums.
pub const SUM_PAGE_BYTES: usize = 4096;
/// Bytes before the sums in their page.
const HEAD_BYTES: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"RHVSUMS\0");
const VERSION: u16 = 1;
const WHAT: &str = "page of checksums";
/// Where the page's own checksum lies.
const OWN_SUM: Range<usize> = 12..16;

/// The sum of a block of which nothing is known.
const UNKNOWN: u32 = u32::MAX;

/// CRC32C of a block of zeros, which no block's stored sum is: that of zeros is 0, so that what was never written has
/// the right sums without having any.
static OF_ZEROS: LazyLock<u32> = LazyLock::new(|| crc32c(&[0; PAGE_BYTES as usize]));

/// The sum of a block's 4,096 bytes as it is kept: CRC32C, combined by exclusive or with that of zeros.
pub fn sum_of(block: &[u8]) -> u32 {
    match crc32c(block) ^ *OF_ZEROS {
        UNKNOWN => UNKNOWN - 1,
        sum => sum,
    }
}

/// What lies where a copy was made while no other one had the block right (`docs/decisions/0132`). Of such a block no sum is
/// kept, so that it is wrong until it is written, also where nothing is known of its region any more.
pub static LOST_BLOCK: LazyLock<[u8; PAGE_BYTES as usize]> = LazyLock::new(|| {
    let mut block = [0; PAGE_BYTES as usize];
    block
        .chunks_exact_mut(LOST_LINE.len())
        .for_each(|part| part.copy_from_slice(LOST_LINE));
    block
});
const LOST_LINE: &[u8; 64] = b"Redhare: this block is lost. No copy of its chunk had it right.\n";
/// Its sum, which other blocks may have, too.
static OF_LOST: LazyLock<u32> = LazyLock::new(|| sum_of(&LOST_BLOCK[..]));

/// What a block that was read is compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its sum.
    pub sum: u32,
    /// It is [`LOST_BLOCK`].
    pub is_lost: bool,
}

impl Found {
    /// Of a block's 4,096 bytes.
    pub fn of(block: &[u8]) -> Self {
        let sum = sum_of(block);
        let is_lost = sum == *OF_LOST && block == LOST_BLOCK.as_slice();
        Self { sum, is_lost }
    }
}

/// One that is not lost.
impl From<u32> for Found {
    fn from(sum: u32) -> Self {
        let is_lost = false;
        Self { sum, is_lost }
    }
}

/// Pages of sums that so many blocks have.
pub fn sum_pages(blocks: u32) -> u32 {
    blocks.div_ceil(SUMS_PER_PAGE)
}

/// What the sums say of blocks that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are what was written.
    Right,
    /// These are not, in ascending order.
    Wrong(Vec<u32>),
    /// This page of sums has to be read first.
    Unread(u32),
}

/// What was found where a page of sums lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageFound {
    /// It was never written: its blocks are zeros unless written in this life.
    Blank,
    /// The sums.
    Sums,
    /// No place can be believed: nothing is known of its blocks until they are read or written again.
    Damaged(FormatError),
}

#[derive(Debug)]
struct Page {
    sums: Box<[u32]>,
    /// While the page has not been read: which of its sums were noted in this life.
    noted: Option<Box<[u64; (SUMS_PER_PAGE as usize).div_ceil(64)]>>,
    /// It has sums that were not written.
    dirty: bool,
    /// It was written and not flushed since.
    unflushed: bool,
    generation: u64,
    /// The place to write next: never the one that holds the newest durable sums.
    spare: u8,
    /// It was used since the last look for pages to let go.
    used: bool,
}

impl Page {
    fn unread() -> Self {
        Self {
            sums: vec![0; SUMS_PER_PAGE as usize].into_boxed_slice(),
            noted: Some(Box::default()),
            dirty: false,
            unflushed: false,
            generation: 0,
            spare: 0,
            used: true,
        }
    }

    fn knows(&self, at: usize) -> bool {
        self.noted
            .as_ref()
            .is_none_or(|noted| noted[at / 64] >> (at % 64) & 1 == 1)
    }

    /// Blocks of the chunk, all of which have their sums here.
    fn knows_all(&self, blocks: Range<u32>) -> bool {
        self.noted.is_none() || { blocks }.all(|block| self.knows((block % SUMS_PER_PAGE) as usize))
    }

    fn set(&mut self, at: usize, sum: u32) {
        self.sums[at] = sum;
        if let Some(noted) = &mut self.noted {
            noted[at / 64] |= 1 << (at % 64);
        }
        self.dirty = true;
    }
}

/// Those in memory, by number.
#[derive(Debug, Default)]
struct Pages {
    by_number: Vec<Option<Page>>,
    count: usize,
}

impl Pages {
    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, number: u32) -> Option<&Page> {
        self.by_number.get(number as usize)?.as_ref()
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Page> {
        self.by_number.get_mut(number as usize)?.as_mut()
    }

    fn get_or_unread(&mut self, number: u32) -> &mut Page {
        let at = number as usize;
        if at >= self.by_number.len() {
            self.by_number.resize_with(at + 1, || None);
        }
        let place = &mut self.by_number[at];
        self.count += usize::from(place.is_none());
        place.get_or_insert_with(Page::unread)
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &Page)> {
        let numbered = (0..).zip(&self.by_number);
        numbered.filter_map(|(number, page)| Some((number, page.as_ref()?)))
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut Page> {
        self.by_number.iter_mut().flatten()
    }

    fn retain(&mut self, mut stays: impl FnMut(&mut Page) -> bool) {
        for place in &mut self.by_number {
            if place.as_mut().is_some_and(|page| !stays(page)) {
                *place = None;
                self.count -= 1;
            }
        }
    }
}

/// The checksums of one copy. Blocks are of 4 KiB and counted from the chunk's first.
#[derive(Debug)]
pub struct Sums {
    chunk: ChunkId,
    blocks: u32,
    pages: Pages,
    /// Blocks of regions that were marked when this life began, by the page of their sums, until that is read.
    undecided: BTreeMap<u32, Vec<Range<u32>>>,
    /// Blocks that are lost since this life began, until they are written.
    lost: BTreeSet<u32>,
    /// Blocks that fit and are wrong all the same, until they are written: the other copies hold something else.
    outvoted: BTreeSet<u32>,
    /// Blocks whose sums were taken from what they held.
    adopted: u64,
}

impl Sums {
    /// The sums of a copy of so many blocks, none of them read yet. `marked` are the blocks of regions whose intent marks
    /// were found on disk: nothing is known of them.
    pub fn new(chunk: ChunkId, blocks: u32, marked: impl IntoIterator<Item = Range<u32>>) -> Self {
        let mut undecided: BTreeMap<u32, Vec<Range<u32>>> = BTreeMap::new();
        for range in marked {
            let (mut start, end) = (range.start, range.end.min(blocks));
            while start < end {
                let page = start / SUMS_PER_PAGE;
                let here = end.min((page + 1) * SUMS_PER_PAGE);
                undecided.entry(page).or_default().push(start..here);
                start = here;
            }
        }
        Self {
            chunk,
            blocks,
            pages: Pages::default(),
            undecided,
            lost: BTreeSet::new(),
            outvoted: BTreeSet::new(),
            adopted: 0,
        }
    }

    /// Blocks whose sums were taken from what they held, since nothing was known of them.
    pub fn adopted(&self) -> u64 {
        self.adopted
    }

    /// Pages of sums in memory.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Whether any sum is not durable.
    pub fn is_dirty(&self) -> bool {
        self.pages.iter().any(|(_, page)| page.dirty || page.unflushed)
    }

    /// A write of these sums is given to the device, from block `first` on. Pages that were not read come into being
    /// with what is known of them; none is waited for.
    ///
    /// # Panics
    /// If the copy has no such blocks.
    pub fn note(&mut self, first: u32, sums: impl ExactSizeIterator<Item = u32>) {
        assert!(sums.len() as u64 + u64::from(first) <= u64::from(self.blocks));
        let written = first..first + sums.len() as u32;
        for blocks in [&mut self.lost, &mut self.outvoted] {
            while let Some(&block) = blocks.range(written.clone()).next() {
                blocks.remove(&block);
            }
        }
        let mut sums = sums.enumerate().peekable();
        while let Some(&(at, _)) = sums.peek() {
            let number = (first + at as u32) / SUMS_PER_PAGE;
            let page = self.pages.get_or_unread(number);
            page.used = true;
            while let Some((at, sum)) = sums.next_if(|(at, _)| (first + *at as u32) / SUMS_PER_PAGE == number)
            {
                page.set(((first + at as u32) % SUMS_PER_PAGE) as usize, sum);
            }
        }
    }

    /// A write of these blocks has failed: nothing is known of them.
    ///
    /// # Panics
    /// If the copy has no such blocks.
    pub fn forget(&mut self, first: u32, count: u32) {
        self.note(first, (0..count).map(|_| UNKNOWN));
    }

    /// No copy has these blocks right, and [`LOST_BLOCK`] is given to the device in their places. They are wrong until they are
    /// written, also for a read that began before and brings what lay there.
    ///
    /// # Panics
    /// If the copy has no such blocks.
    pub fn lose(&mut self, first: u32, count: u32) {
        self.forget(first, count);
        self.lost.extend(first..first + count);
    }

    /// The other copies hold something else in a block that fits this sum here: it is wrong from now on, until it is written. False, and
    /// nothing changes, if this is not its sum, or not any more. Its page has been read ([`Sums::unread`]).
    ///
    /// That is not on the disk: no page changes but by writes, whose regions are marked. After a restart the block fits again, as it did before.
    pub fn outvote(&mut self, block: u32, sum: u32) -> bool {
        let is_so = self.vouches(block, std::iter::once(sum));
        is_so && self.outvoted.insert(block)
    }

    /// Compares what was read with the sums. Of blocks of which nothing is known, what they hold is taken for right from
    /// now on, unless it says that they are lost.
    pub fn check(
        &mut self,
        first: u32,
        mut found: impl ExactSizeIterator<Item = impl Into<Found>>,
    ) -> Verdict {
        let end = first + found.len() as u32;
        let is_in_one_page = first / SUMS_PER_PAGE == end.saturating_sub(1) / SUMS_PER_PAGE;
        // Of several pages none is looked at before all can be.
        if !is_in_one_page && let Some(page) = self.unread(first, end - first) {
            return Verdict::Unread(page);
        }
        let mut wrong = Vec::new();
        let mut block = first;
        while block < end {
            let number = block / SUMS_PER_PAGE;
            let until = end.min((number + 1) * SUMS_PER_PAGE);
            let page = self.pages.get_mut(number);
            let Some(page) = page.filter(|page| page.knows_all(block..until)) else {
                return Verdict::Unread(number);
            };
            page.used = true;
            for block in block..until {
                let at = (block % SUMS_PER_PAGE) as usize;
                // It often comes from far away, and is on its way while the sum of what was read is reckoned.
                cache::fetch(&page.sums[at]);
                let Some(found) = found.next() else { break };
                let found = found.into();
                match page.sums[at] {
                    sum if sum == found.sum && !self.outvoted.contains(&block) => {}
                    UNKNOWN
                        if !found.is_lost
                            && !self.lost.contains(&block)
                            && !self.outvoted.contains(&block) =>
                    {
                        page.set(at, found.sum);
                        self.adopted += 1;
                    }
                    _ => wrong.push(block),
                }
            }
            block = until;
        }
        match wrong.is_empty() {
            true => Verdict::Right,
            false => Verdict::Wrong(wrong),
        }
    }

    /// Whether what was read elsewhere is what these blocks are to hold here, for certain. Their pages have been read
    /// ([`Sums::unread`]).
    pub fn vouches(&self, first: u32, found: impl Iterator<Item = impl Into<Found>>) -> bool {
        let is_known = |block: u32, sum: u32| {
            let page = self.pages.get(block / SUMS_PER_PAGE);
            let at = (block % SUMS_PER_PAGE) as usize;
            page.is_some_and(|page| page.knows(at) && page.sums[at] == sum && sum != UNKNOWN)
        };
        (first..)
            .zip(found)
            .all(|(block, found)| is_known(block, found.into().sum) && !self.outvoted.contains(&block))
    }

    /// Whether a block has a sum in memory that says something of it.
    #[cfg(test)]
    pub(crate) fn knows(&self, block: u32) -> bool {
        let page = self.pages.get(block / SUMS_PER_PAGE);
        let at = (block % SUMS_PER_PAGE) as usize;
        page.is_some_and(|page| page.knows(at) && page.sums[at] != UNKNOWN)
    }

    /// The first page that has to be read before these blocks can be checked.
    pub fn unread(&self, first: u32, count: u32) -> Option<u32> {
        let mut block = first;
        while block < first + count {
            let number = block / SUMS_PER_PAGE;
            let end = (first + count).min((number + 1) * SUMS_PER_PAGE);
            let page = self.pages.get(number);
            if !page.is_some_and(|page| page.knows_all(block..end)) {
                return Some(number);
            }
            block = end;
        }
        None
    }

    /// Takes what was read from the two places of a page. Sums noted meanwhile are newer and stay. A page that is known
    /// already is left as it is.
    pub fn read(&mut self, number: u32, places: [&[u8]; 2]) -> PageFound {
        let marked = self.undecided.remove(&number);
        let page = self.pages.get_or_unread(number);
        let Some(noted) = page.noted.take() else {
            return PageFound::Sums;
        };
        let decoded = places.map(|bytes| decode(self.chunk, number, bytes));
        // Also of a place that is not believed: what is written next must count as newer than it after a restart.
        let newest = [0, 1].map(|place: u8| {
            let (generation, _) = decoded[usize::from(place)].as_ref().ok()?.as_ref()?;
            Some((*generation, place))
        });
        let newest = newest.into_iter().flatten().max();
        let (found, sums) = choose(decoded, marked.is_some());
        let chosen = sums.as_ref().map(|(generation, place, _)| (*generation, *place));
        if let Some((generation, place)) = chosen.or(newest) {
            page.generation = generation;
            page.spare = 1 - place;
        }
        let unknown = matches!(found, PageFound::Damaged(_));
        let is_noted = |at: usize| noted[at / 64] >> (at % 64) & 1 == 1;
        for at in (0..SUMS_PER_PAGE as usize).filter(|at| !is_noted(*at)) {
            page.sums[at] = match &sums {
                Some((_, _, sums)) => sums[at],
                None if unknown => UNKNOWN,
                None => 0,
            };
        }
        for block in marked.into_iter().flatten().flatten() {
            let at = (block % SUMS_PER_PAGE) as usize;
            if !is_noted(at) {
                page.sums[at] = UNKNOWN;
            }
            page.dirty = true;
        }
        page.dirty |= unknown;
        found
    }

    /// The pages that are to be written: those that are to be read before, and all.
    pub fn to_write(&self) -> (Vec<u32>, Vec<u32>) {
        let dirty = || self.pages.iter().filter(|(_, page)| page.dirty);
        let unread = dirty().filter(|(_, page)| page.noted.is_some());
        (
            unread.map(|(number, _)| number).collect(),
            dirty().map(|(number, _)| number).collect(),
        )
    }

    /// The bytes of a page to be written now, and in which of its two places. What is noted from here on belongs to the
    /// next time. None if the page need not, or cannot be written before it was read.
    pub fn write(&mut self, number: u32) -> Option<(u8, Vec<u8>)> {
        let chunk = self.chunk;
        let page = self.pages.get_mut(number)?;
        if !page.dirty || page.noted.is_some() {
            return None;
        }
        page.dirty = false;
        page.unflushed = true;
        page.generation += 1;
        Some((page.spare, encode(chunk, number, page.generation, &page.sums)))
    }

    /// What [`Sums::write`] gave could not be written: it is to be written again, to the same place.
    pub fn write_failed(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(number) {
            page.dirty = true;
        }
    }

    /// Everything that was written before a flush began is durable. Nothing may have been written since.
    pub fn flushed(&mut self) {
        for page in self.pages.values_mut().filter(|page| page.unflushed) {
            page.unflushed = false;
            page.spare = 1 - page.spare;
        }
    }

    /// Lets go of pages that need not be in memory and were not used since the last time, `count` at most. Returns how
    /// many went.
    pub fn let_go(&mut self, count: usize) -> usize {
        let before = self.pages.len();
        let mut left = count;
        self.pages.retain(|page| {
            let stays = page.dirty || page.unflushed || page.noted.is_some();
            let used = std::mem::replace(&mut page.used, false);
            if stays || used || left == 0 {
                return true;
            }
            left -= 1;
            false
        });
        before - self.pages.len()
    }
}

/// One page of sums as it is on the disk, for a client that reads that disk past its node: it knows nothing of what the
/// node has noted since, so the node says when the sums on the disk are all there is
/// ([`Location::sums`](crate::message::codec::Location)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableSums {
    number: u32,
    sums: Box<[u32]>,
}

/// What [`DurableSums`] say of blocks that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastVerdict {
    /// They are what was written.
    Right,
    /// Nothing is known of one of them at least, and the others are right.
    Unknown,
    /// One of them at least is not what was written.
    Wrong,
}

impl DurableSums {
    /// Takes what was read from the two places of a page; none if they cannot be believed, one being written perhaps.
    pub fn read(chunk: ChunkId, number: u32, places: [&[u8]; 2]) -> Option<Self> {
        let decoded = places.map(|bytes| decode(chunk, number, bytes));
        let sums = match choose(decoded, false) {
            (PageFound::Damaged(_), _) => return None,
            (_, Some((_, _, sums))) => sums,
            (_, None) => vec![0; SUMS_PER_PAGE as usize],
        };
        let sums = sums.into_boxed_slice();
        Some(Self { number, sums })
    }

    /// Compares what was read with the sums, from block `first` of the chunk on. Blocks whose sums are in other pages are not
    /// looked at.
    pub fn check(&self, first: u32, found: impl Iterator<Item = u32>) -> PastVerdict {
        let own = u64::from(self.number) * u64::from(SUMS_PER_PAGE);
        let mut verdict = PastVerdict::Right;
        for (block, found) in (u64::from(first)..).zip(found) {
            let at = block.checked_sub(own).and_then(|at| self.sums.get(at as usize));
            match at {
                Some(&UNKNOWN) => verdict = PastVerdict::Unknown,
                Some(&sum) if sum != found => return PastVerdict::Wrong,
                _ => {}
            }
        }
        verdict
    }
}

type Decoded = Result<Option<(u64, Vec<u32>)>, FormatError>;
/// Generation, place, sums.
type Chosen = (u64, u8, Vec<u32>);

/// Which of the two places holds the page. One that is damaged beside a good one was being written when the power failed
/// if any region of the page is marked, and the good one then is right outside of these; otherwise it may have been the
/// newer one, and neither is believed.
fn choose([first, second]: [Decoded; 2], marked: bool) -> (PageFound, Option<Chosen>) {
    match (first, second) {
        (Ok(None), Ok(None)) => (PageFound::Blank, None),
        (Ok(Some((generation, sums))), Ok(Some((other, _)))) if generation > other => {
            (PageFound::Sums, Some((generation, 0, sums)))
        }
        (Ok(Some((generation, sums))), Ok(None)) => (PageFound::Sums, Some((generation, 0, sums))),
        (Ok(_), Ok(Some((generation, sums)))) => (PageFound::Sums, Some((generation, 1, sums))),
        (Ok(Some((generation, sums))), Err(_)) if marked => (PageFound::Sums, Some((generation, 0, sums))),
        (Err(_), Ok(Some((generation, sums)))) if marked => (PageFound::Sums, Some((generation, 1, sums))),
        (Err(_), Ok(None)) | (Ok(None), Err(_)) if marked => (PageFound::Blank, None),
        (Err(error), _) | (_, Err(error)) => (PageFound::Damaged(error), None),
    }
}

/// Has one place of a page, which is right for a chunk, be that of another one with the same content. False, and nothing is
/// changed, if the place was never written or is not right.
pub fn readdress_sums(place: &mut [u8], number: u32, from: ChunkId, to: ChunkId) -> bool {
    if !matches!(decode(from, number, place), Ok(Some(_))) {
        return false;
    }
    address(place, to);
    place[OWN_SUM].fill(0);
    let own = crc32c(&place[..SUM_PAGE_BYTES]);
    place[OWN_SUM].copy_from_slice(&own.to_le_bytes());
    true
}

fn address(bytes: &mut [u8], chunk: ChunkId) {
    bytes[16..20].copy_from_slice(&chunk.volume.0.to_le_bytes());
    bytes[20..24].copy_from_slice(&chunk.index.0.to_le_bytes());
}

pub(crate) fn encode(chunk: ChunkId, number: u32, generation: u64, sums: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; SUM_PAGE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    address(&mut bytes, chunk);
    bytes[24..28].copy_from_slice(&number.to_le_bytes());
    bytes[32..40].copy_from_slice(&generation.to_le_bytes());
    for (place, sum) in bytes[HEAD_BYTES..].chunks_exact_mut(4).zip(sums) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    let own = crc32c(&bytes);
    bytes[OWN_SUM].copy_from_slice(&own.to_le_bytes());
    bytes
}

/// Reads one place of a page; none if it was never written.
pub(crate) fn decode(chunk: ChunkId, number: u32, bytes: &[u8]) -> Decoded {
    let Some(bytes) = bytes.get(..SUM_PAGE_BYTES) else {
        return Err(FormatError::Truncated {
            what: WHAT,
            need_bytes: SUM_PAGE_BYTES,
            have_bytes: bytes.len(),
        });
    };
    let quad = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    if quad(0) != MAGIC {
        return Err(FormatError::Magic {
            what: WHAT,
            found: quad(0),
        });
    }
    let mut own = foundation::checksum::Crc32c::new();
    own.update(&bytes[..OWN_SUM.start]);
    own.update(&[0; 4]);
    own.update(&bytes[OWN_SUM.end..]);
    let (found, computed) = (word(OWN_SUM.start), own.value());
    if found != computed {
        return Err(FormatError::Checksum {
            what: WHAT,
            found,
            computed,
        });
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != VERSION {
        return Err(FormatError::Version {
            what: WHAT,
            found: version.into(),
            known: VERSION.into(),
        });
    }
    for (field, found, expected) in [
        ("volume", word(16), chunk.volume.0),
        ("chunk index", word(20), chunk.index.0),
        ("number of the page", word(24), number),
    ] {
        if found != expected {
            return Err(FormatError::Invalid {
                what: WHAT,
                field,
                value: found.into(),
            });
        }
    }
    let sums = bytes[HEAD_BYTES..].chunks_exact(4);
    let sums = sums.map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]));
    // The next one must exist.
    let generation = quad(32).min(u64::MAX / 2);
    Ok(Some((generation, sums.collect())))
}

#[cfg(test)]
mod tests;
