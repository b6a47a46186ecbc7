//! Who claims which bytes of the volume: pages of the tree, extents, and what is recorded as shared, a range of the volume at
//! a time. Pure.

use std::collections::BTreeMap;

use super::lowest::Row;
use super::{Claimant, Finding, Findings, Problem};
use crate::format::extent::Extent;
use crate::format::key::InodeNumber;
use crate::format::shared::Shared;
use crate::format::superblock::Superblock;
use crate::format::{PAGE_BYTES_U64, PagePointer, RESERVED_BYTES, SUPERBLOCK_ADDRESSES};
use crate::shared::{Record, Run, count, record};
use crate::space::{Segment, Space};

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Page,
    Extent,
    Shared,
}

/// Bytes that something has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ByteRow {
    address: u64,
    what: What,
    length: u32,
    /// An extent's inode, or how many share bytes.
    of: u64,
    checksum: u32,
}

/// So much memory is counted for each.
const _: () = assert!(size_of::<ByteRow>() == 32);

impl ByteRow {
    /// A page that a pointer of the tree leads to.
    pub(super) fn page(pointer: PagePointer) -> Self {
        Self {
            address: pointer.address(),
            what: What::Page,
            length: PAGE_BYTES_U64 as u32,
            of: 0,
            checksum: 0,
        }
    }

    /// An extent of a file.
    pub(super) fn extent(inode: InodeNumber, extent: &Extent) -> Self {
        Self {
            address: extent.address,
            what: What::Extent,
            length: extent.length,
            of: inode.0,
            checksum: extent.checksum,
        }
    }

    /// Bytes that are recorded as shared; `None` if they are more than a segment can have.
    pub(super) fn shared(start: u64, shared: &Shared) -> Option<Self> {
        Some(Self {
            address: start,
            what: What::Shared,
            length: u32::try_from(shared.length).ok()?,
            of: shared.users,
            checksum: 0,
        })
    }

    /// The extent and its inode, if it is one.
    pub(super) fn as_extent(&self) -> Option<(InodeNumber, Extent)> {
        (self.what == What::Extent).then_some((
            InodeNumber(self.of),
            Extent {
                address: self.address,
                length: self.length,
                checksum: self.checksum,
            },
        ))
    }

    fn as_shared(&self) -> Option<(u64, Shared)> {
        let length = u64::from(self.length);
        let users = self.of;
        (self.what == What::Shared).then_some((self.address, Shared { length, users }))
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(u64::from(self.length))
    }

    fn claimant(&self) -> Claimant {
        match self.what {
            What::Page => Claimant::Page(self.address / PAGE_BYTES_U64),
            What::Extent | What::Shared => Claimant::File(InodeNumber(self.of)),
        }
    }
}

impl Row for ByteRow {
    fn place(&self) -> u64 {
        self.address
    }

    // Each extent is checked by itself.
    fn join(_rows: &mut Vec<Self>) {}
}

/// Bytes from a place on that something claims.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    start: u64,
    end: u64,
    who: Claimant,
}

/// What is kept from one range of the volume to the next.
pub(super) struct Bytes {
    /// The first byte that nothing was seen to claim yet.
    reached: u64,
    /// The claim that reaches furthest.
    claim: Option<Claim>,
    /// The extent before.
    extent: Option<ByteRow>,
}

/// What is known of the whole.
pub(super) struct Around<'a> {
    pub(super) space: &'a Space,
    pub(super) superblock: &'a Superblock,
    /// Whether extents may share bytes, which the record of it then says.
    pub(super) shares: bool,
    /// Whether every page was read.
    pub(super) whole: bool,
}

impl Bytes {
    pub(super) fn new() -> Self {
        Self {
            reached: RESERVED_BYTES,
            claim: None,
            extent: None,
        }
    }

    /// Checks what there is in a range, from a first byte up to one that is none of it any more. Ranges come in order.
    pub(super) fn check(
        &mut self,
        rows: &[ByteRow],
        range: (u64, Option<u64>),
        around: &Around<'_>,
        found: &mut Findings,
    ) {
        self.check_claims(rows, range, around, found);
        self.check_extents(rows, around, found);
        if around.whole {
            check_counts(rows, range, around, found);
        }
    }

    fn check_claims(
        &mut self,
        rows: &[ByteRow],
        range: (u64, Option<u64>),
        around: &Around<'_>,
        found: &mut Findings,
    ) {
        for claim in claims(rows, range, around.space) {
            if let Some(before) = self.claim.filter(|before| claim.start < before.end) {
                found.overlap(claim.start, claim.end.min(before.end), before.who, claim.who);
            }
            if around.whole && claim.start > self.reached {
                found.add(lost(self.reached, claim.start));
            }
            self.reached = self.reached.max(claim.end);
            if self.claim.is_none_or(|before| claim.end > before.end) {
                self.claim = Some(claim);
            }
        }
        let end = around.superblock.volume_bytes;
        if range.1.is_none() && around.whole && self.reached < end {
            found.add(lost(self.reached, end));
        }
    }

    /// Extents lie inside of what is written of a segment, and apart from each other where they may not share bytes.
    fn check_extents(&mut self, rows: &[ByteRow], around: &Around<'_>, found: &mut Findings) {
        let space = around.space;
        for row in rows.iter().filter(|row| row.what == What::Extent) {
            let segment = space.segment_of(row.address);
            let filled = space
                .segments()
                .get(&segment)
                .map(|state| (segment + state.filled) * PAGE_BYTES_U64);
            if filled.is_none_or(|filled| row.end() > filled) {
                found.overlap(row.address, row.end(), row.claimant(), Claimant::Unwritten);
            }
            if let Some(before) = self.extent.filter(|before| before.end() > row.address)
                && !around.shares
            {
                found.overlap(row.address, row.end(), before.claimant(), row.claimant());
            }
            self.extent = Some(*row);
        }
    }
}

fn lost(start: u64, end: u64) -> Problem {
    Problem::Lost {
        start: start / PAGE_BYTES_U64,
        pages: (end - start) / PAGE_BYTES_U64,
    }
}

/// Whether a place is in a range.
fn is_in(range: (u64, Option<u64>), place: u64) -> bool {
    place >= range.0 && range.1.is_none_or(|bound| place < bound)
}

/// Everything that claims bytes from the range on, files aside, in order.
fn claims(rows: &[ByteRow], range: (u64, Option<u64>), space: &Space) -> Vec<Claim> {
    let pages = |page: u64, count: u64, who| Claim {
        start: page * PAGE_BYTES_U64,
        end: (page + count).saturating_mul(PAGE_BYTES_U64),
        who,
    };
    let of_tree = rows.iter().filter(|row| row.what == What::Page).map(|row| Claim {
        start: row.address,
        end: row.end(),
        who: row.claimant(),
    });
    let superblocks = SUPERBLOCK_ADDRESSES
        .iter()
        .map(|address| pages(address / PAGE_BYTES_U64, 1, Claimant::Superblock));
    let chain = space
        .chain()
        .iter()
        .map(|pointer| pages(pointer.page, 1, Claimant::Record));
    let unused = space.unused().into_iter();
    let unused = unused.map(|(start, count)| pages(start, count, Claimant::Free));
    let segments = space.segments().keys();
    let segments = segments.map(|start| pages(*start, space.segment_pages(), Claimant::Segment));
    let others = superblocks.chain(chain).chain(unused).chain(segments);
    let mut all: Vec<Claim> = of_tree
        .chain(others.filter(|claim| is_in(range, claim.start)))
        .collect();
    all.sort_unstable();
    all
}

/// What is counted of segments and of shared bytes is what is recorded.
fn check_counts(rows: &[ByteRow], range: (u64, Option<u64>), around: &Around<'_>, found: &mut Findings) {
    let space = around.space;
    let recorded: Record = rows.iter().filter_map(ByteRow::as_shared).collect();
    let mut counted = Record::new();
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    // Rows of a segment are together, and those of no other range.
    for rows in rows.chunk_by(|a, b| space.segment_of(a.address) == space.segment_of(b.address)) {
        let segment = space.segment_of(rows[0].address);
        let runs = runs(rows, segment, space);
        for Run { bytes, users } in &runs {
            // Without a record each has bytes of its own, and those that do not were told above.
            let users = if around.shares { 1 } else { *users };
            *live.entry(segment).or_default() += (bytes.end - bytes.start) * users;
        }
        if around.shares {
            counted.extend(record(&runs));
        }
    }
    if around.shares {
        check_shared(&recorded, &counted, found);
    }
    let here = |(start, _): &(&u64, &Segment)| is_in(range, **start * PAGE_BYTES_U64);
    for (start, state) in space.segments().iter().filter(here) {
        let counted = live.get(start).copied().unwrap_or(0);
        if counted != state.live_bytes {
            found.add(Problem::Count {
                what: "live bytes of a data segment",
                recorded: state.live_bytes,
                counted,
            });
        }
    }
}

/// How many extents have which bytes of a segment; nobody has any of what is none.
fn runs(rows: &[ByteRow], segment: u64, space: &Space) -> Vec<Run> {
    if !space.segments().contains_key(&segment) {
        return Vec::new();
    }
    let segment_bytes = space.segment_pages() * PAGE_BYTES_U64;
    let past = (segment * PAGE_BYTES_U64).saturating_add(segment_bytes);
    let extents = rows.iter().filter_map(ByteRow::as_extent);
    let inside = extents
        .map(|(_, extent)| extent)
        .filter(|extent| extent.end().is_some_and(|end| end <= past));
    count(inside, segment_bytes)
}

/// What is recorded as shared is what is counted.
fn check_shared(recorded: &Record, counted: &Record, found: &mut Findings) {
    let mut compare = |one: &Record, other: &Record, what| {
        for (&start, shared) in one {
            if other.get(&start) != Some(shared) {
                found.add(Problem::Shared {
                    start,
                    end: start.saturating_add(shared.length),
                    users: shared.users,
                    what,
                });
            }
        }
    };
    compare(recorded, counted, "is recorded and not what is counted");
    compare(counted, recorded, "is counted and not what is recorded");
}

/// Checks that nothing that a snapshot needs is recorded as free.
pub(super) fn check_held(rows: &[ByteRow], space: &Space, found: &mut Findings) {
    for row in rows.iter().filter(|row| row.what != What::Shared) {
        let (start, end) = (row.address, row.end());
        let (from, to) = (start / PAGE_BYTES_U64, end.div_ceil(PAGE_BYTES_U64));
        if space.is_free(from, to - from) {
            found.overlap(start, end, row.claimant(), Claimant::Free);
        }
    }
}

impl Findings {
    fn overlap(&mut self, start: u64, end: u64, first: Claimant, second: Claimant) {
        self.find(Finding::Overlap {
            start,
            end,
            first,
            second,
        });
    }
}
