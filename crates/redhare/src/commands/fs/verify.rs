//! `redhare fs verify`.

use std::ffi::OsString;

use clap::Args;
use foundation::ByteCount;
use packfs::{VerifyOptions, verify};

use super::medium::{Role, Volume, open_volume};
use crate::output::{Failure, Output};

/// Read and check everything on a volume; fails if anything is damaged
#[derive(Args)]
#[command(
    after_help = "Examples:\n  redhare fs verify file:images.packfs\n  redhare fs verify images --index-only"
)]
pub(super) struct VerifyArguments {
    /// The volume: its name, or file:PATH
    volume: OsString,
    /// Check the index and the bookkeeping of space, not the content
    #[arg(long)]
    index_only: bool,
    /// Memory for what is compared; what it has no room for costs another pass over the index
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: ByteCount,
}

#[derive(serde::Serialize)]
struct VerifyView {
    clean: bool,
    generation: u64,
    files: u64,
    directories: u64,
    content_bytes: u64,
    extents: u64,
    tree_pages: u64,
    snapshots: u64,
    problems: Vec<String>,
    more_problems: u64,
}

pub(super) async fn run(arguments: &VerifyArguments, output: &Output) -> Result<(), Failure> {
    let volume = Volume::parse_whole(&arguments.volume)?;
    let opened = open_volume(&volume, Role::Read)?;
    let options = VerifyOptions {
        read_content: !arguments.index_only,
        memory_bytes: arguments.memory.0,
        ..VerifyOptions::default()
    };
    let report = verify(&opened.medium(), opened.leases.clone(), &options).await;
    let report = report.map_err(|error| volume.failure(error))?;
    let view = VerifyView {
        clean: report.is_clean(),
        generation: report.generation,
        files: report.totals.files,
        directories: report.totals.directories,
        content_bytes: report.totals.content_bytes,
        extents: report.extents,
        tree_pages: report.tree_pages,
        snapshots: report.snapshots,
        problems: report.problems.iter().map(ToString::to_string).collect(),
        more_problems: report.more_problems,
    };
    let found = view.problems.len() as u64 + view.more_problems;
    if !view.clean && output.is_json() {
        output.print(&view, String::new);
        return Err(Failure::reported());
    }
    if !view.clean {
        let problems = view.problems.join("\n");
        return Err(volume.failure(format!(
            "{found} problems in generation {}:\n{problems}\nrestore what they name from another copy",
            view.generation
        )));
    }
    output.print(&view, || {
        format!(
            "{volume}: generation {} is whole: {} files, {} directories, {} in {} extents, {} pages of index{}",
            view.generation,
            view.files,
            view.directories,
            ByteCount(view.content_bytes),
            view.extents,
            view.tree_pages,
            match view.snapshots {
                0 => String::new(),
                count => format!(", and {count} snapshots"),
            }
        )
    });
    Ok(())
}
