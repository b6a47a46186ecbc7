//! Verifying a whole file system: every page, every extent, and that they agree with each other.
//!
//! Checking goes on after damage: what lies behind a damaged page cannot be reached and is not reported again.
//!
//! Memory is bounded, whatever the file system holds (`docs/decisions/0112-a-check-in-bounded-memory.md`). A walk through the
//! index makes rows of 48 bytes of what it says about numbers of inodes and names (`numbers`), in which the two indexes cancel
//! each other out, and rows of 32 bytes of who has which bytes of the volume (`bytes`). Where there are more than the memory
//! has room for, the lowest are kept and compared, and the next walk has those that follow (`lowest`). Beside them there are 16 bytes for
//! each directory (`directories`), and the record of space, as a writer has it. A walk more is made where there are quotas
//! (`trees`).

mod bytes;
mod content;
mod directories;
mod index;
mod lowest;
mod names;
mod numbers;
mod trees;
mod walk;

use std::rc::Rc;

use bdev::IoError;

use crate::error::{OpenError, TreeError};
use crate::format::key::InodeNumber;
use crate::format::superblock::{Features, Identity, Superblock, Totals};
use crate::io::Medium;
use crate::lease::hold::ReaderHold;
use crate::lease::{LeaseError, LeaseSource};
use crate::mount::mount_what_is_left;
use crate::name::Shown;
use crate::space::Space;
use crate::writer::load_space;

use bytes::{Around, Bytes, check_held};
use content::Content;
use index::Index;
use names::Names;
use trees::Charges;
use walk::walk;

/// Memory for what is compared, unless told otherwise: enough for some eight million files in one walk through the index.
const MEMORY_BYTES: u64 = 1 << 30;

/// How a file system is verified.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Refuse a file system that belongs elsewhere.
    pub identity: Option<Identity>,
    /// Read every extent, not only the index.
    pub read_content: bool,
    /// Problems that are kept; more are counted only.
    pub problems_max: usize,
    /// Memory for what is compared, in bytes: what there is no room for costs another walk through the index.
    pub memory_bytes: u64,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            identity: None,
            read_content: true,
            problems_max: 1000,
            memory_bytes: MEMORY_BYTES,
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

/// Verifies the generation that counts, under a reader's lease. Takes memory as the options say, and 16 bytes for each directory.
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
    let hold = ReaderHold::acquire(leases, None).await?;
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
    let mounted = mount_what_is_left(medium, options.identity.as_ref(), false).await?;
    hold.hold_from(mounted.superblock.generation).await?;
    let job = Job {
        medium,
        hold,
        options,
    };
    let report = verify_generation(&job, &mounted.superblock, tell).await;
    // A lease that has ended does not come back: now says it for every page before.
    if hold.is_held() {
        Ok(report)
    } else {
        Err(LeaseError::Ended.into())
    }
}

/// Whoever claims bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claimant {
    Superblock,
    Page(u64),
    Record,
    Free,
    Segment,
    /// What is no part of a segment that was written.
    Unwritten,
    File(InodeNumber),
}

/// A problem, before people's names for inodes were looked up.
enum Finding {
    Problem(Problem),
    Overlap {
        start: u64,
        end: u64,
        first: Claimant,
        second: Claimant,
    },
}

/// Findings, the first ones.
struct Findings {
    kept: Vec<Finding>,
    more: u64,
    findings_max: usize,
}

impl Findings {
    fn add(&mut self, problem: Problem) {
        self.find(Finding::Problem(problem));
    }

    fn find(&mut self, finding: Finding) {
        if self.kept.len() < self.findings_max {
            self.kept.push(finding);
        } else {
            self.more += 1;
        }
    }

    /// Puts them into a report.
    async fn tell(self, names: &Names, report: &mut VerifyReport) {
        for finding in self.kept {
            report.add(match finding {
                Finding::Problem(problem) => problem,
                Finding::Overlap {
                    start,
                    end,
                    first,
                    second,
                } => Problem::Overlap {
                    start,
                    end,
                    first: names.claimant(first).await,
                    second: names.claimant(second).await,
                },
            });
        }
        report.more_problems += self.more;
    }
}

/// What one check has in its hands.
struct Job<'a> {
    medium: &'a Medium,
    hold: &'a ReaderHold,
    options: &'a VerifyOptions,
}

/// Whose tree is checked.
enum Whose<'a> {
    Newest,
    /// With the record of space, if it can be had.
    Snapshot(Option<&'a Space>),
}

async fn verify_generation(job: &Job<'_>, superblock: &Superblock, tell: &mut Tell<'_>) -> VerifyReport {
    let mut index = Index::new(superblock, job.report(), job.options.memory_bytes);
    index.report.generation = superblock.generation;
    let space = check_tree(job, superblock, &mut index, &Whose::Newest, tell).await;
    let snapshots = std::mem::take(&mut index.snapshots);
    let mut report = index.report;
    for snapshot in snapshots {
        let old = snapshot.superblock(superblock);
        let mut index = Index::new(&old, job.report(), job.options.memory_bytes);
        let whose = Whose::Snapshot(space.as_ref());
        check_tree(job, &old, &mut index, &whose, tell).await;
        report.snapshots += 1;
        report.more_problems += index.report.more_problems;
        for problem in index.report.problems {
            let (name, problem) = (Shown::new(&snapshot.name), Box::new(problem));
            report.add(Problem::Snapshot { name, problem });
        }
    }
    report
}

/// Checks everything that one tree says, in as many walks as it takes. Gives the record of space, if that was read and is right.
async fn check_tree(
    job: &Job<'_>,
    superblock: &Superblock,
    index: &mut Index,
    whose: &Whose<'_>,
    tell: &mut Tell<'_>,
) -> Option<Space> {
    let names = Names::new(job.medium, superblock);
    let mut content = Content::new(job);
    let mut bytes = Bytes::new();
    let mut read = None;
    let mut first = true;
    loop {
        let pages = walk(job.medium, superblock, index, tell).await;
        index.end_walk();
        if std::mem::take(&mut first) {
            index.report.tree_pages = pages;
            if index.whole {
                check_totals(superblock, &mut index.report);
            }
            if let Whose::Newest = whose {
                read = space_of(job.medium, superblock, &mut index.report).await;
            }
        }
        if !index.bytes.has_ended() {
            let mut found = job.findings();
            check_bytes(&mut bytes, superblock, index, whose, read.as_ref(), &mut found);
            found.tell(&names, &mut index.report).await;
            let rows = index.bytes.rows();
            content.check(rows, &names, &mut index.report, tell).await;
        }
        if !index.next_round() || !job.hold.is_held() {
            break;
        }
    }
    if index.whole {
        check_trees(job, superblock, index, tell).await;
    }
    read
}

/// Checks who has which bytes of the part of the volume that a round is about.
fn check_bytes(
    bytes: &mut Bytes,
    superblock: &Superblock,
    index: &mut Index,
    whose: &Whose<'_>,
    read: Option<&Space>,
    found: &mut Findings,
) {
    let range = index.bytes.places();
    let rows = index.bytes.rows();
    match (whose, read) {
        (Whose::Newest, Some(space)) => {
            let around = Around {
                space,
                superblock,
                shares: index.features.has(Features::SHARED),
                whole: index.whole,
            };
            bytes.check(rows, range, &around, found);
        }
        (Whose::Snapshot(Some(space)), _) => check_held(rows, space, found),
        _ => {}
    }
}

impl Job<'_> {
    fn report(&self) -> VerifyReport {
        VerifyReport {
            problems_max: self.options.problems_max.max(1),
            ..VerifyReport::default()
        }
    }

    fn findings(&self) -> Findings {
        Findings {
            kept: Vec::new(),
            more: 0,
            findings_max: self.options.problems_max.max(1),
        }
    }
}

/// The record of space, if it can be had.
async fn space_of(medium: &Medium, superblock: &Superblock, report: &mut VerifyReport) -> Option<Space> {
    match load_space(medium, superblock).await {
        Ok(space) => Some(space),
        Err(error) => {
            report.add(Problem::SpaceRecord(error.to_string()));
            None
        }
    }
}

/// What can be told only when all directories are known, in another walk if it is needed.
async fn check_trees(job: &Job<'_>, superblock: &Superblock, index: &mut Index, tell: &mut Tell<'_>) {
    let reaches_all = index.directories.settle();
    if reaches_all && !index.directories.has_strays && index.quotas.is_empty() {
        return;
    }
    let directories = &index.directories;
    let parent = |directory| directories.parent(directory);
    let report = &mut index.report;
    let memory_bytes = job.options.memory_bytes;
    let mut charges = Charges::new(directories, &index.quotas, parent, report, memory_bytes);
    loop {
        walk(job.medium, superblock, &mut charges, tell).await;
        if !charges.end_walk() || !job.hold.is_held() {
            break;
        }
    }
    charges.check();
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
