//! `redhare fs fsck`.

use std::ffi::OsString;

use clap::Args;
use foundation::ByteCount;
use packfs::lease::{LeaseError, LeaseSource};
use packfs::{FsckError, FsckOptions, FsckReport, fsck};

use super::medium::{HeldLease, Role, Volume, holder, open_volume};
use super::progress::Stages;
use crate::output::{Failure, Output};

/// As fsck(8) says: the sum of these.
const CORRECTED: u8 = 1;
const UNCORRECTED: u8 = 4;
const OPERATIONAL: u8 = 8;

/// Check the index, the bookkeeping of space and all snapshots; with --repair, mend what can be mended
///
/// Exit status, as fsck(8) has it: 0 nothing is wrong, 1 everything was repaired, 4 something is wrong still (5: and
/// something was repaired), 8 it could not be checked or repaired.
///
/// A repair takes the writer's lease, and is one commit: whole, or as if it had not been. It uses what the damaged pages'
/// neighbours, the second index, the commit before and snapshots still have. What no name leads to gets one in lost+found.
/// Content that is damaged is named and left as it is.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  redhare fs fsck file:images.packfs\n  redhare fs fsck images --data\n  \
redhare fs fsck images --repair --json"
)]
pub(super) struct FsckArguments {
    /// The volume: its name, or file:PATH
    volume: OsString,
    /// Repair what can be repaired; nobody else may write meanwhile
    #[arg(long)]
    repair: bool,
    /// Read every file's content too, and compare checksums
    #[arg(long)]
    data: bool,
    /// Memory for what is compared; what it has no room for costs another pass over the index. A repair needs more
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: ByteCount,
}

#[derive(serde::Serialize)]
struct FsckView {
    clean: bool,
    corrected: bool,
    uncorrected: bool,
    generation: u64,
    files: u64,
    directories: u64,
    content_bytes: u64,
    tree_pages: u64,
    extents: u64,
    snapshots: u64,
    /// What was wrong at first, and how much more there was.
    problems: Vec<String>,
    more_problems: u64,
    /// A superblock that is damaged beside the one that counts.
    superblock: Option<String>,
    repaired: Vec<String>,
    lost: Vec<String>,
    /// What is wrong after a repair.
    left: Option<Vec<String>>,
}

impl FsckView {
    fn of(report: &FsckReport) -> Self {
        let texts = |problems: &[packfs::Problem]| problems.iter().map(ToString::to_string).collect();
        let newest = report.left.as_ref().unwrap_or(&report.found);
        Self {
            clean: report.is_clean(),
            corrected: report.has_corrected(),
            uncorrected: report.has_uncorrected(),
            generation: newest.generation,
            files: newest.totals.files,
            directories: newest.totals.directories,
            content_bytes: newest.totals.content_bytes,
            tree_pages: newest.tree_pages,
            extents: newest.extents,
            snapshots: newest.snapshots,
            problems: texts(&report.found.problems),
            more_problems: report.found.more_problems,
            superblock: report.superblock.clone(),
            repaired: report.repaired.clone(),
            lost: report.lost.clone(),
            left: report.left.as_ref().map(|left| texts(&left.problems)),
        }
    }

    fn status(&self) -> u8 {
        u8::from(self.corrected) * CORRECTED + u8::from(self.uncorrected) * UNCORRECTED
    }
}

pub(super) async fn run(arguments: &FsckArguments, output: &Output) -> Result<(), Failure> {
    let checked = check(arguments, output).await;
    checked.map_err(|failure| failure.or_status(OPERATIONAL))
}

async fn check(arguments: &FsckArguments, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(&arguments.volume)?;
    let role = if arguments.repair { Role::Write } else { Role::Read };
    let opened = open_volume(&volume, role)?;
    let options = FsckOptions {
        holder: holder("redhare fs fsck"),
        read_content: arguments.data,
        repair: arguments.repair,
        memory_bytes: arguments.memory.0,
        ..FsckOptions::default()
    };
    let stages = Stages::new();
    let mut held = HeldLease::default();
    let report = loop {
        let report = fsck(
            &opened.medium(),
            opened.leases.clone(),
            &options,
            &mut |progress| {
                stages.set(progress.stage, progress.done, progress.total);
            },
        )
        .await;
        match report {
            // Checked anew then: whoever had the lease may have written meanwhile.
            Err(FsckError::Lease(error)) => {
                let lease = free_lease(&volume, &*opened.leases, &options.holder, &mut held, error).await;
                if let Err(error) = lease {
                    break Err(FsckError::Lease(error));
                }
            }
            report => break report,
        }
    };
    stages.end();
    let report = report.map_err(|error| volume.failure(error))?;
    let view = FsckView::of(&report);
    output.print(&view, || text(&volume, &view, arguments));
    match view.status() {
        0 => Ok(()),
        status => Err(Failure::reported().or_status(status)),
    }
}

/// Waits until the lease can be had, and gives it back: a check takes long, and wants none.
async fn free_lease(
    volume: &Volume,
    leases: &dyn LeaseSource,
    holder: &str,
    held: &mut HeldLease,
    mut error: LeaseError,
) -> Result<(), LeaseError> {
    while held.wait(volume, &error).await {
        match leases.acquire_writer(holder).await {
            Ok(lease) => return leases.release_writer(lease.token).await,
            Err(held) => error = held,
        }
    }
    Err(error)
}

fn text(volume: &Volume, view: &FsckView, arguments: &FsckArguments) -> String {
    let mut lines = Vec::new();
    let mut part = |what: &str, items: &[String]| {
        if !items.is_empty() {
            lines.push(format!("{what}:"));
            lines.extend(items.iter().map(|item| format!("  {item}")));
        }
    };
    part("wrong", &view.problems);
    if view.more_problems > 0 {
        part("and", &[format!("{} problems more", view.more_problems)]);
    }
    if let Some(superblock) = &view.superblock {
        part(
            "a superblock beside the one that counts",
            std::slice::from_ref(superblock),
        );
    }
    part("repaired", &view.repaired);
    part("lost", &view.lost);
    part("wrong still", view.left.as_deref().unwrap_or_default());
    let verdict = match (view.uncorrected, view.corrected, arguments.repair) {
        (false, false, _) => "nothing is wrong",
        (false, true, _) => "everything is repaired",
        (true, _, false) => "something is wrong; repair it with --repair",
        (true, false, true) => {
            "what is wrong cannot be repaired; restore the files that are named from another copy, or remove them"
        }
        (true, true, true) => {
            "the rest cannot be repaired; restore the files that are named from another copy, or remove them"
        }
    };
    lines.push(format!(
        "{volume}: generation {}: {} files, {} directories, {} in {} extents, {} pages of index, {} snapshots: {verdict}",
        view.generation,
        view.files,
        view.directories,
        ByteCount(view.content_bytes),
        view.extents,
        view.tree_pages,
        view.snapshots,
    ));
    lines.join("\n")
}
