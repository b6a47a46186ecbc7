//! Verifying a whole file system: every page, every extent, and that they agree with each other.
//!
//! Checking goes on after damage: what lies behind a damaged page cannot be reached and is not reported again.

mod index;
mod usage;

use std::rc::Rc;

use bdev::IoError;
use foundation::checksum::crc32c;

use crate::error::{OpenError, TreeError};
use crate::format::extent::Extent;
use crate::format::superblock::{Identity, Superblock, Totals};
use crate::format::{PAGE_BYTES_U64, SUPERBLOCK_ADDRESSES};
use crate::io::Medium;
use crate::lease::hold::ReaderHold;
use crate::lease::{LeaseError, LeaseSource};
use crate::mount::mount;
use crate::name::Shown;
use crate::space::Space;
use crate::writer::load_space;

use index::Index;
use usage::Usage;

/// How a file system is verified.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Refuse a file system that belongs elsewhere.
    pub identity: Option<Identity>,
    /// Read every extent, not only the index.
    pub read_content: bool,
    /// Problems that are kept; more are counted only.
    pub problems_max: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            identity: None,
            read_content: true,
            problems_max: 1000,
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A page of the index cannot be had; all that it leads to is lost.
    #[error("{0}")]
    Page(TreeError),
    /// A cell means nothing, or stands where it may not.
    #[error("page {page} of the index: {what}")]
    Cell {
        /// The page's number.
        page: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A file's extent cannot be had.
    #[error("{path}: the {length} bytes at block {block} of the volume are damaged")]
    Extent {
        /// The file.
        path: Shown,
        /// 4 KiB block of the volume.
        block: u64,
        /// Length in bytes.
        length: u32,
    },
    /// A file's extent cannot be read.
    #[error("{path}: block {block} of the volume cannot be read: {source}")]
    ExtentIo {
        /// The file.
        path: Shown,
        /// 4 KiB block of the volume.
        block: u64,
        /// The device's answer.
        source: IoError,
    },
    /// Two things claim the same bytes, or something claims bytes that are free.
    #[error("bytes {start} to {end} of the volume are claimed by {first} and by {second}")]
    Overlap {
        /// First byte.
        start: u64,
        /// First byte after.
        end: u64,
        /// One claimant.
        first: String,
        /// The other.
        second: String,
    },
    /// An inode and its names disagree.
    #[error("inode {inode}: {what}")]
    Inode {
        /// The inode's number.
        inode: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Something was counted otherwise than is recorded.
    #[error("{what}: {recorded} recorded, {counted} counted")]
    Count {
        /// What.
        what: &'static str,
        /// As recorded.
        recorded: u64,
        /// As counted.
        counted: u64,
    },
    /// The record of shared bytes is not what files have.
    #[error("bytes {start} to {end} of the volume: that {users} extents share them {what}")]
    Shared {
        /// First byte.
        start: u64,
        /// First byte after.
        end: u64,
        /// How many extents.
        users: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Space that nothing uses is not recorded as free.
    #[error("{pages} pages from page {start} on are neither used nor free")]
    Lost {
        /// First page.
        start: u64,
        /// Number of pages.
        pages: u64,
    },
    /// Something is wrong with what only a snapshot by name has, or has too.
    #[error("snapshot \"{name}\": {problem}")]
    Snapshot {
        /// The snapshot's name.
        name: Shown,
        /// What is wrong.
        problem: Box<Problem>,
    },
    /// The space record cannot be had: nothing can be written, everything can be read.
    #[error("the space record: {0}")]
    SpaceRecord(String),
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// The generation that was verified.
    pub generation: u64,
    /// Pages of the tree.
    pub tree_pages: u64,
    /// Contents, as counted.
    pub totals: Totals,
    /// Extents read or listed.
    pub extents: u64,
    /// Snapshots by name, each verified as a whole.
    pub snapshots: u64,
    /// Problems, the first ones.
    pub problems: Vec<Problem>,
    /// Problems that were not kept.
    pub more_problems: u64,
    problems_max: usize,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.more_problems == 0
    }

    fn add(&mut self, problem: Problem) {
        if self.problems.len() < self.problems_max {
            self.problems.push(problem);
        } else {
            self.more_problems += 1;
        }
    }
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is done now.
    pub stage: &'static str,
    /// Pages or extents that are done.
    pub done: u64,
    /// How many there are; 0 if that is not known.
    pub total: u64,
}

/// Whoever wants to know how far it is.
pub(crate) type Tell<'a> = dyn FnMut(Progress) + 'a;

/// Verifies the generation that counts, under a reader's lease. Takes memory for every inode and extent.
///
/// # Errors
/// When there is no file system to verify, or when the lease could not be kept until the end; damage is in the
/// report.
pub async fn verify(
    medium: &Medium,
    leases: Rc<dyn LeaseSource>,
    options: &VerifyOptions,
) -> Result<VerifyReport, OpenError> {
    verify_telling(medium, leases, options, &mut |_| {}).await
}

/// The same as [`verify`], and tells how far it is.
///
/// # Errors
/// As [`verify`].
pub async fn verify_telling(
    medium: &Medium,
    leases: Rc<dyn LeaseSource>,
    options: &VerifyOptions,
    tell: &mut (dyn FnMut(Progress) + '_),
) -> Result<VerifyReport, OpenError> {
    // First hold everything, as a reader does.
    let hold = ReaderHold::acquire(leases).await?;
    let verified = verify_under(medium, &hold, options, tell).await;
    // The lease ends by itself if this fails.
    let _ = hold.release().await;
    verified
}

async fn verify_under(
    medium: &Medium,
    hold: &ReaderHold,
    options: &VerifyOptions,
    tell: &mut Tell<'_>,
) -> Result<VerifyReport, OpenError> {
    let mounted = mount(medium, options.identity.as_ref()).await?;
    hold.hold_from(mounted.superblock.generation).await?;
    let report = verify_generation(medium, hold, &mounted.superblock, options, tell).await;
    // A lease that has ended does not come back: now says it for every page before.
    if hold.is_held() {
        Ok(report)
    } else {
        Err(LeaseError::Ended.into())
    }
}

async fn verify_generation(
    medium: &Medium,
    hold: &ReaderHold,
    superblock: &Superblock,
    options: &VerifyOptions,
    tell: &mut Tell<'_>,
) -> VerifyReport {
    let mut report = VerifyReport {
        generation: superblock.generation,
        problems_max: options.problems_max.max(1),
        ..VerifyReport::default()
    };
    let mut usage = Usage::default();
    for address in SUPERBLOCK_ADDRESSES {
        usage.claim(address, PAGE_BYTES_U64, || "a superblock".to_owned());
    }
    let mut index = Index::default();
    index
        .walk(medium, superblock, &mut report, &mut usage, tell)
        .await;
    // What cannot be reached makes everything else look wrong.
    let whole = report.is_clean();
    index.check(&mut report, whole);
    let extents = index.extents(&mut report, whole);
    report.extents = extents.len() as u64;
    if whole {
        check_totals(superblock, &mut report);
    }
    let space = match load_space(medium, superblock).await {
        Ok(space) => {
            usage.check(&space, superblock, &extents, index.shared(), whole, &mut report);
            Some(space)
        }
        Err(error) => {
            report.add(Problem::SpaceRecord(error.to_string()));
            None
        }
    };
    if options.read_content {
        check_content(medium, hold, &extents, &mut report, tell).await;
    }
    for snapshot in index.take_snapshots() {
        let old = snapshot.superblock(superblock);
        let own = verify_snapshot(medium, hold, &old, space.as_ref(), options, tell).await;
        report.snapshots += 1;
        report.more_problems += own.more_problems;
        for problem in own.problems {
            let (name, problem) = (Shown::new(&snapshot.name), Box::new(problem));
            report.add(Problem::Snapshot { name, problem });
        }
    }
    report
}

/// Verifies the tree of a snapshot by name, what it shares with the newest one included.
async fn verify_snapshot(
    medium: &Medium,
    hold: &ReaderHold,
    superblock: &Superblock,
    space: Option<&Space>,
    options: &VerifyOptions,
    tell: &mut Tell<'_>,
) -> VerifyReport {
    let mut report = VerifyReport {
        problems_max: options.problems_max.max(1),
        ..VerifyReport::default()
    };
    let (mut usage, mut index) = (Usage::default(), Index::default());
    index
        .walk(medium, superblock, &mut report, &mut usage, tell)
        .await;
    let whole = report.is_clean();
    index.check(&mut report, whole);
    let extents = index.extents(&mut report, whole);
    if whole {
        check_totals(superblock, &mut report);
    }
    if let Some(space) = space {
        usage.check_held(space, &extents, &mut report);
    }
    if options.read_content {
        check_content(medium, hold, &extents, &mut report, tell).await;
    }
    report
}

async fn check_content(
    medium: &Medium,
    hold: &ReaderHold,
    extents: &[(Shown, Extent)],
    report: &mut VerifyReport,
    tell: &mut Tell<'_>,
) {
    for (index, (path, extent)) in extents.iter().enumerate() {
        if !hold.is_held() {
            break;
        }
        tell(Progress {
            stage: "reading content",
            done: index as u64,
            total: extents.len() as u64,
        });
        if let Some(problem) = check_extent(medium, path, extent).await {
            report.add(problem);
        }
    }
}

fn check_totals(superblock: &Superblock, report: &mut VerifyReport) {
    let (recorded, counted) = (superblock.totals, report.totals);
    for (what, recorded, counted) in [
        ("files", recorded.files, counted.files),
        ("directories", recorded.directories, counted.directories),
        ("bytes of content", recorded.content_bytes, counted.content_bytes),
    ] {
        if recorded != counted {
            report.add(Problem::Count {
                what,
                recorded,
                counted,
            });
        }
    }
}

async fn check_extent(medium: &Medium, path: &Shown, extent: &Extent) -> Option<Problem> {
    let block = extent.address / PAGE_BYTES_U64;
    let (start, length) = medium.widen(extent.address, u64::from(extent.length));
    let io = |source| Problem::ExtentIo {
        path: path.clone(),
        block,
        source,
    };
    if start.saturating_add(length) > medium.capacity_bytes() {
        return Some(io(IoError::OutOfRange));
    }
    let Ok(length) = usize::try_from(length) else {
        return Some(io(IoError::OutOfRange));
    };
    match medium.read_fresh(start, length).await {
        Err(source) => Some(io(source)),
        Ok(buffer) => {
            let from = (extent.address - start) as usize;
            let bytes = &buffer[from..from + extent.length as usize];
            (crc32c(bytes) != extent.checksum).then(|| Problem::Extent {
                path: path.clone(),
                block,
                length: extent.length,
            })
        }
    }
}
