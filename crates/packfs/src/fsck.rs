//! Checking a file system and repairing what can be repaired, in one commit.
//!
//! The checker ([`crate::verify`]) says what is wrong before and after; the repair does not ask it, but makes a whole file
//! system of what can still be read (`gather`), in which everything agrees (`contents`, `mend`), counts its space anew and
//! commits it (`apply`). Nothing that any tree on the volume has is written over before that commit is durable, so it is
//! whole or absent wherever it is cut off. What only a superblock leads to that cannot be read may be written over, so that one
//! is written anew first. A repair takes memory for the whole index, a check does not.

mod apply;
mod contents;
mod gather;
mod mend;
mod quotas;

use std::rc::Rc;

use bdev::IoError;

use crate::check::{Progress, VerifyOptions, VerifyReport, verify_telling};
use crate::error::{OpenError, TreeError, WriteError};
use crate::format::entry::Layout;
use crate::format::snapshot::Snapshot;
use crate::format::superblock::{Identity, Superblock};
use crate::format::{PAGE_BYTES_U64, RESERVED_BYTES, SUPERBLOCK_ADDRESSES};
use crate::io::Medium;
use crate::lease::hold::WriterHold;
use crate::lease::{LeaseError, LeaseSource};
use crate::mount::{Mounted, mount_what_is_left};
use crate::space::{Ranges, Space};
use crate::writer::{explain, load_space};

use apply::{Repair, add, pages_of};
use contents::{Contents, placed};
use gather::{Gathered, walk};
use mend::{Told, mend};

/// How a file system is checked.
#[derive(Clone, Debug)]
pub struct FsckOptions {
    /// Shown to whoever is refused while it is repaired.
    pub holder: String,
    /// Refuse a file system that belongs elsewhere.
    pub identity: Option<Identity>,
    /// Read every extent, not only the index.
    pub read_content: bool,
    /// Repair what can be repaired, as the volume's writer. Without it nothing is written.
    pub repair: bool,
    /// Problems that are kept; more are counted only.
    pub problems_max: usize,
    /// Memory for what a check compares, in bytes, as [`VerifyOptions`] has it. A repair takes what the whole index needs.
    pub memory_bytes: u64,
    #[cfg(test)]
    pub(crate) bug: crate::space::PlantedBug,
}

impl Default for FsckOptions {
    fn default() -> Self {
        Self {
            holder: "a local check".to_owned(),
            identity: None,
            read_content: false,
            repair: false,
            problems_max: 1000,
            memory_bytes: VerifyOptions::default().memory_bytes,
            #[cfg(test)]
            bug: crate::space::PlantedBug::None,
        }
    }
}

/// What a check found and a repair did.
#[derive(Clone, Debug, Default)]
pub struct FsckReport {
    /// What was wrong at first.
    pub found: VerifyReport,
    /// A superblock that is damaged beside the one that counts: as a power cut in mid-commit leaves it, which costs
    /// nothing, or damage, which may have cost the last commit.
    pub superblock: Option<String>,
    /// What was done, for people.
    pub repaired: Vec<String>,
    /// What is gone, by name and range.
    pub lost: Vec<String>,
    /// What is wrong after a repair; `None` without one.
    pub left: Option<VerifyReport>,
}

impl FsckReport {
    /// Whether nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.found.is_clean()
    }

    /// Whether anything was corrected.
    pub fn has_corrected(&self) -> bool {
        let better = self.left.as_ref().is_some_and(|left| {
            left.problems != self.found.problems || left.more_problems != self.found.more_problems
        });
        better || !self.repaired.is_empty()
    }

    /// Whether something is wrong still.
    pub fn has_uncorrected(&self) -> bool {
        !self.left.as_ref().unwrap_or(&self.found).is_clean()
    }
}

/// A check or repair could not be done.
#[derive(Debug, thiserror::Error)]
pub enum FsckError {
    /// The file system cannot be opened at all.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device gave no answer. What it does not give is not given up.
    #[error("{0}; nothing was changed: repair when the device answers again")]
    Unreadable(TreeError),
    /// Readers hold what a repair without the record of space cannot spare.
    #[error(
        "the record of space is damaged, and readers still hold generation {held}, which is older than {kept}, the oldest \
         that a repair keeps; end them, or wait until their leases end (60 s), and repair again"
    )]
    Readers {
        /// The lowest generation held.
        held: u64,
        /// The lowest that would stay.
        kept: u64,
    },
    /// The repair could not be written. The file system is as it was, but a damaged superblock may have been written anew: see [`FsckError::Begun`].
    #[error("the repair was not committed: {0}")]
    Write(#[from] WriteError),
    /// A copy that may have a superblock that counts could not be reached.
    #[error(
        "a superblock could not be read from every copy: {0}; nothing was changed: repair when the device answers again"
    )]
    Away(IoError),
    /// A superblock was read at one time, and not at another.
    #[error("a superblock can be read at one time and not at another; nothing was changed: run it again")]
    Unsteady,
    /// The repair ended after the damaged superblock was written anew, or while it was. The same state counts, and what that superblock may have led to
    /// is given up.
    #[error(
        "{0}; before that the damaged superblock was written anew, so that the state that was repaired counts; run it again"
    )]
    Begun(Box<FsckError>),
    /// No lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// Tells how far it is.
struct Tell<'a>(&'a mut (dyn FnMut(Progress) + 'a));

impl Tell<'_> {
    fn step(&mut self, stage: &'static str, done: u64) {
        let total = 0;
        (self.0)(Progress { stage, done, total });
    }
}

/// Checks a file system, and repairs it if that is asked for and anything is wrong. A check alone takes a reader's lease, a
/// repair the writer's.
///
/// # Errors
/// When there is nothing that can be checked, or the repair could not be done; what is wrong with the file system is in the
/// report.
pub async fn fsck(
    medium: &Medium,
    leases: Rc<dyn LeaseSource>,
    options: &FsckOptions,
    tell: &mut (dyn FnMut(Progress) + '_),
) -> Result<FsckReport, FsckError> {
    let verify_options = VerifyOptions {
        identity: options.identity,
        read_content: options.read_content,
        problems_max: options.problems_max,
        memory_bytes: options.memory_bytes,
    };
    let found = verify_telling(medium, leases.clone(), &verify_options, tell).await;
    let away = |error| away(options, error);
    let found = found.map_err(away)?;
    let mounted = mount_what_is_left(medium, options.identity.as_ref(), options.repair).await;
    let mut report = FsckReport {
        superblock: other_superblock(&mounted.map_err(away)?).1,
        found,
        ..FsckReport::default()
    };
    if !options.repair || (report.found.is_clean() && report.superblock.is_none()) {
        return Ok(report);
    }
    let hold = WriterHold::acquire(leases.clone(), &options.holder, None).await?;
    let repaired = repair(medium, &hold, options, report.found.generation, &mut Tell(tell)).await;
    let repaired = match repaired {
        Err(error) => Err(explained(&hold, error).await),
        Ok(told) => Ok(told),
    };
    // The lease ends by itself if this fails.
    let _ = hold.release().await;
    let told = repaired?;
    report.repaired = told.repaired;
    report.lost = told.lost;
    report.left = Some(verify_telling(medium, leases, &verify_options, tell).await?);
    Ok(report)
}

/// Says how the lease was lost where the volume takes no more writes of this one, also after something was begun.
async fn explained(hold: &WriterHold, error: FsckError) -> FsckError {
    match error {
        FsckError::Open(error) => FsckError::Open(explain(hold, error).await),
        FsckError::Write(WriteError::Io {
            source: IoError::Fenced,
            ..
        }) => FsckError::Write(hold.lost().await.into()),
        FsckError::Begun(error) => FsckError::Begun(Box::new(Box::pin(explained(hold, *error)).await)),
        other => other,
    }
}

/// An answer that is not of the bytes of a superblock keeps a repair from taking it for damaged.
fn away(options: &FsckOptions, error: OpenError) -> FsckError {
    match error {
        OpenError::Io(source) | OpenError::SuperblockAway { source, .. } if options.repair => {
            FsckError::Away(source)
        }
        error => error.into(),
    }
}

/// The superblock beside the one that counts, if it is of this file system, and what is wrong with it.
fn other_superblock(mounted: &Mounted) -> (Option<Superblock>, Option<String>) {
    let address = SUPERBLOCK_ADDRESSES[1 - mounted.slot];
    let damaged = mounted.is_other_damaged();
    match mounted.other {
        Ok(other) if !damaged => (Some(other), None),
        Ok(_) => {
            let told = format!("the superblock at byte {address} is of another file system");
            (None, Some(told))
        }
        Err(error) => {
            let counts = mounted.superblock.generation;
            let told = format!("at byte {address}: {error}; generation {counts} counts");
            (None, damaged.then_some(told))
        }
    }
}

/// Pages of a tree and its content, added to what must not be written over.
fn claim(ranges: &mut Ranges, gathered: &Gathered, limit: u64) {
    for &page in &gathered.pages {
        add(ranges, page, 1);
    }
    let contents = Contents::of(&gathered.cells, 1, &mut Vec::new());
    for inode in contents
        .inodes()
        .filter(|inode| !matches!(inode.layout, Layout::Inline(_) | Layout::Device(_)))
    {
        for (_, extent) in placed(inode, contents.mapped.get(&inode.number)) {
            let (start, count) = pages_of(&extent);
            if start + count <= limit && start >= RESERVED_BYTES / PAGE_BYTES_U64 {
                add(ranges, start, count);
            }
        }
    }
}

async fn repair(
    medium: &Medium,
    hold: &Rc<WriterHold>,
    options: &FsckOptions,
    checked: u64,
    tell: &mut Tell<'_>,
) -> Result<Told, FsckError> {
    let medium = medium.clone().under(hold);
    let fenced = medium.fence(0, RESERVED_BYTES).await;
    fenced.map_err(OpenError::from)?;
    let mounted = mount_what_is_left(&medium, options.identity.as_ref(), true).await;
    let mounted = mounted.map_err(|error| away(options, error))?;
    let (other, damaged) = other_superblock(&mounted);
    let superblock = mounted.superblock;
    if superblock.generation < checked {
        return Err(FsckError::Unsteady);
    }
    let volume_bytes = superblock.volume_bytes;
    let limit = volume_bytes / PAGE_BYTES_U64;
    let mut told = Told::default();

    let mut gathered = walk(&medium, superblock.root, volume_bytes, tell).await?;
    told.repaired.append(&mut gathered.problems);
    let recorded = recorded_space(&medium, &superblock, &mut told).await?;
    if let Some(space) = &recorded {
        let generation = superblock.generation;
        let found = gathered
            .find_leaves(&medium, space, generation, volume_bytes, tell)
            .await?;
        if found > 0 {
            told.repaired.push(format!(
                "{found} cells came back from pages that nothing led to any more"
            ));
        }
    }

    // What older trees have: what is lost in this one may still be there, and nothing of theirs may be written over.
    let mut needed = Ranges::default();
    let mut older: Option<(u64, Gathered)> = None;
    if let Some(other) = other.filter(|other| other.generation < superblock.generation) {
        let tree = walk(&medium, other.root, volume_bytes, tell).await?;
        claim(&mut needed, &tree, limit);
        if recorded.is_none() {
            claim_record(&mut needed, &medium, &other).await;
        }
        older = Some((other.generation, tree));
    }
    let kept = older
        .as_ref()
        .map_or(superblock.generation, |(generation, _)| *generation);
    check_readers(hold, recorded.is_some(), kept).await?;
    let snapshots: Vec<Snapshot> = {
        let mut all = gathered.cells.clone();
        if let Some((_, tree)) = &older {
            gathered.clone_lost_snapshots(tree, &mut all);
        }
        Contents::of(&all, 1, &mut Vec::new()).snapshots
    };
    let mut take = |generation, tree: &Gathered, is_before: bool| {
        if gathered.lost.is_empty() {
            return;
        }
        for what in gathered.take_older(&tree.cells, is_before) {
            told.repaired
                .push(format!("{what} came back as of generation {generation}"));
        }
    };
    if let Some((generation, tree)) = older {
        take(generation, &tree, true);
    }
    // One whole index besides the one that counts is in memory at a time, however many snapshots there are.
    for snapshot in snapshots.iter().rev() {
        let tree = walk(&medium, snapshot.root, volume_bytes, tell).await?;
        claim(&mut needed, &tree, limit);
        take(snapshot.generation, &tree, false);
    }

    let mut contents = Contents::of(&gathered.cells, superblock.next_inode, &mut told.repaired);
    mend(&mut contents, &gathered.lost, &mut told);
    let repair = Repair {
        medium: &medium,
        hold,
        mounted,
        damaged,
        begun: false,
        gathered,
        recorded,
        needed,
        #[cfg(test)]
        bug: options.bug,
    };
    repair.commit(contents, &mut told).await?;
    Ok(told)
}

/// The record of space, if it can be read.
async fn recorded_space(
    medium: &Medium,
    superblock: &Superblock,
    told: &mut Told,
) -> Result<Option<Space>, FsckError> {
    match load_space(medium, superblock).await {
        Ok(space) => Ok(Some(space)),
        Err(OpenError::Tree(error)) if gather::is_damage(&error) => {
            told.repaired.push(format!(
                "the record of space was made anew from what uses space ({error})"
            ));
            Ok(None)
        }
        Err(OpenError::Tree(error)) => Err(FsckError::Unreadable(error)),
        Err(error) => Err(error.into()),
    }
}

/// The pages of another superblock's record of space, as far as they can be read.
async fn claim_record(ranges: &mut Ranges, medium: &Medium, superblock: &Superblock) {
    if let Ok(space) = load_space(medium, superblock).await {
        for pointer in space.chain() {
            add(ranges, pointer.page, 1);
        }
    }
}

/// Without the record of space it is not known what readers of older generations need.
async fn check_readers(hold: &WriterHold, recorded: bool, kept: u64) -> Result<(), FsckError> {
    if recorded {
        return Ok(());
    }
    match hold.reader_floor().await?.0 {
        Some(held) if held < kept => Err(FsckError::Readers { held, kept }),
        _ => Ok(()),
    }
}
