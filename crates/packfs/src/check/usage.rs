//! Who claims which bytes of the volume.

use std::collections::BTreeMap;

use super::{Problem, VerifyReport};
use crate::format::extent::Extent;
use crate::format::superblock::Superblock;
use crate::format::{PAGE_BYTES_U64, RESERVED_BYTES};
use crate::name::Shown;
use crate::shared::{Record, Run, count, record};
use crate::space::Space;

/// Claims by first byte: length and claimant.
#[derive(Default)]
pub(super) struct Usage {
    claims: Vec<(u64, u64, String)>,
}

impl Usage {
    pub(super) fn claim(&mut self, start: u64, length: u64, who: impl FnOnce() -> String) {
        self.claims.push((start, length, who()));
    }

    /// Checks claims against each other and against the record of space.
    pub(super) fn check(
        &mut self,
        space: &Space,
        superblock: &Superblock,
        extents: &[(Shown, Extent)],
        shared: Option<&Record>,
        whole: bool,
        report: &mut VerifyReport,
    ) {
        let segment_bytes = space.segment_pages() * PAGE_BYTES_U64;
        for pointer in space.chain() {
            self.claim(pointer.address(), PAGE_BYTES_U64, || {
                "the space record".to_owned()
            });
        }
        for (start, count) in space.unused() {
            self.claim(start * PAGE_BYTES_U64, count * PAGE_BYTES_U64, || {
                "free space".to_owned()
            });
        }
        for &start in space.segments().keys() {
            self.claim(start * PAGE_BYTES_U64, segment_bytes, || {
                "a data segment".to_owned()
            });
        }
        self.check_overlaps(whole.then_some(superblock), report);
        check_segments(space, extents, shared, whole, report);
    }

    /// Checks that nothing that a snapshot needs is recorded as free.
    pub(super) fn check_held(&self, space: &Space, extents: &[(Shown, Extent)], report: &mut VerifyReport) {
        let pages = self
            .claims
            .iter()
            .map(|(start, length, who)| (*start, *length, who.clone()));
        let content = extents
            .iter()
            .map(|(path, extent)| (extent.address, u64::from(extent.length), path.to_string()));
        for (start, length, first) in pages.chain(content) {
            let end = start.saturating_add(length);
            let (from, to) = (start / PAGE_BYTES_U64, end.div_ceil(PAGE_BYTES_U64));
            if space.is_free(from, to - from) {
                let second = "free space".to_owned();
                report.add(Problem::Overlap {
                    start,
                    end,
                    first,
                    second,
                });
            }
        }
    }

    fn check_overlaps(&mut self, complete: Option<&Superblock>, report: &mut VerifyReport) {
        self.claims.sort();
        let mut reached = RESERVED_BYTES;
        let mut before: Option<&(u64, u64, String)> = None;
        for claim in &self.claims {
            let (start, length, who) = claim;
            let end = start.saturating_add(*length);
            if let Some((s, n, first)) = before
                && *start < s.saturating_add(*n)
            {
                report.add(Problem::Overlap {
                    start: *start,
                    end: end.min(s.saturating_add(*n)),
                    first: first.clone(),
                    second: who.clone(),
                });
            }
            if complete.is_some() && *start > reached {
                report.add(lost(reached, *start));
            }
            reached = reached.max(end);
            if before.is_none_or(|(s, n, _)| end > s.saturating_add(*n)) {
                before = Some(claim);
            }
        }
        if let Some(superblock) = complete
            && reached < superblock.volume_bytes
        {
            report.add(lost(reached, superblock.volume_bytes));
        }
    }
}

fn lost(start: u64, end: u64) -> Problem {
    Problem::Lost {
        start: start / PAGE_BYTES_U64,
        pages: (end - start) / PAGE_BYTES_U64,
    }
}

/// Extents lie apart from each other or are recorded as sharing bytes, inside segments that know of them.
fn check_segments(
    space: &Space,
    extents: &[(Shown, Extent)],
    shared: Option<&Record>,
    whole: bool,
    report: &mut VerifyReport,
) {
    let segment_bytes = space.segment_pages() * PAGE_BYTES_U64;
    let mut sorted: Vec<&(Shown, Extent)> = extents.iter().collect();
    sorted.sort_by_key(|(_, extent)| (extent.address, extent.length));
    let mut before: Option<&(Shown, Extent)> = None;
    for item in sorted {
        let (path, extent) = item;
        let start = extent.address;
        let end = start.saturating_add(u64::from(extent.length));
        let segment = start / PAGE_BYTES_U64 / space.segment_pages() * space.segment_pages();
        let filled = space
            .segments()
            .get(&segment)
            .map(|state| (segment + state.filled) * PAGE_BYTES_U64);
        if filled.is_none_or(|filled| end > filled) {
            let (first, second) = (path.to_string(), "no written data segment".to_owned());
            report.add(Problem::Overlap {
                start,
                end,
                first,
                second,
            });
        }
        if let Some((other, previous)) = before
            && shared.is_none()
            && previous.end().is_some_and(|previous| previous > start)
        {
            let (first, second) = (other.to_string(), path.to_string());
            report.add(Problem::Overlap {
                start,
                end,
                first,
                second,
            });
        }
        before = Some(item);
    }
    if !whole {
        return;
    }
    let in_segment = |extent: &Extent| {
        let segment = space.segment_of(extent.address);
        let end = (segment * PAGE_BYTES_U64).saturating_add(segment_bytes);
        space.segments().contains_key(&segment) && extent.end().is_some_and(|past| past <= end)
    };
    let counted = extents.iter().map(|(_, extent)| *extent).filter(in_segment);
    let runs = count(counted, segment_bytes);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for Run { bytes, users } in &runs {
        // Without a record each has bytes of its own, and those that do not were told above.
        let users = if shared.is_some() { 1 } else { *users };
        *live.entry(space.segment_of(bytes.start)).or_default() += (bytes.end - bytes.start) * users;
    }
    if let Some(recorded) = shared {
        check_shared(recorded, &record(&runs), report);
    }
    for (start, state) in space.segments() {
        let counted = live.get(start).copied().unwrap_or(0);
        if counted != state.live_bytes {
            report.add(Problem::Count {
                what: "live bytes of a data segment",
                recorded: state.live_bytes,
                counted,
            });
        }
    }
}

/// What is recorded as shared is what is counted.
fn check_shared(recorded: &Record, counted: &Record, report: &mut VerifyReport) {
    let mut compare = |one: &Record, other: &Record, what| {
        for (&start, shared) in one {
            if other.get(&start) != Some(shared) {
                report.add(Problem::Shared {
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
