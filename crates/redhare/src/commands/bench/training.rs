//! `redhare bench training`: what a training run gets from a volume, beside what it gets from the local file system: a mount,
//! images and archives that people use today, an import, commits that are followed, a loader.

mod archives;
mod commits;
mod import;
mod loader;
mod mounted;
mod peers;
mod race;

use std::path::{Path, PathBuf};

use bench::local_files::LocalFile;
use bench::report::Row;
use clap::Args;

use super::scratch::Scratch;
use super::up::{Up, make_files};
use crate::output::{Failure, Output};

/// Length of each file in bytes.
const FILE_BYTES: usize = 16 << 10;
/// Files that are read at once, on each side.
const FILES_IN_FLIGHT: usize = 16;
const VOLUME: &str = "bench";
/// Room of a volume beside its files.
const ROOM_BYTES: u64 = 1 << 30;

/// What, how much, and how long.
#[derive(Args)]
#[command(
    after_help = "Starts a cluster of three nodes for it. Rows: 16 KiB files through a mount against the local file system; \
shuffled reads of the volume against an EROFS image and against a tar that is read from its beginning; reads of the volume, by our client and through a mount, against the same through the \
mounts of GlusterFS and of JuiceFS, cold and warm; an import of small \
files, synced, against \"cp -r\" and sync; how soon a commit is seen by a mount that follows; a PyTorch loader that decodes JPEGs against the same loader on local files, and both with a \
timer in place of the decoding. A row whose tools are missing (fuse3, erofs-utils, glusterfs-server, redis-server and JuiceFS of scripts/juicefs/build, PyTorch with Pillow, our Python library beside this \
program) is left out and says so. EROFS, GlusterFS and JuiceFS need root.
Example:
  redhare bench training --rounds 5 --only mount"
)]
pub(crate) struct TrainingArguments {
    /// Alternating pairs of slices; an import has a quarter of them
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Files that are read, of 16 KiB each
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    files: u32,
    /// Files that are imported, of 16 KiB each
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    import_files: u32,
    /// Images that an epoch of the loader has
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    images: u32,
    /// Commits that a mount that follows is to see
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    commits: u32,
    /// Length of all slices of one comparison together, imports and epochs excepted
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Only the parts whose name contains this: mount, archives, peers, import, commits, loader
    #[arg(long, default_value = "")]
    only: String,
    /// The master's port; the nodes take the ones that follow
    #[arg(long, default_value_t = 7490)]
    port: u16,
    /// A directory that is made for this and removed; the disk under it is measured
    #[arg(long, value_name = "DIR", default_value = ".redhare/bench-training")]
    data: PathBuf,
}

impl TrainingArguments {
    pub(super) fn with(rounds: usize) -> Self {
        Self {
            rounds: u16::try_from(rounds).unwrap_or(u16::MAX).max(1),
            files: 20_000,
            import_files: 50_000,
            images: 4_000,
            commits: 30,
            seconds: 10.0,
            only: String::new(),
            port: 7490,
            data: PathBuf::from(".redhare/bench-training"),
        }
    }
}

/// What all parts use.
struct Stage<'a> {
    arguments: &'a TrainingArguments,
    up: Up,
    scratch: &'a Path,
}

/// A volume that was filled, and what it was filled from.
struct Filled {
    source: PathBuf,
    files: Vec<LocalFile>,
}

impl Filled {
    /// The same files below another directory.
    fn below(&self, directory: &Path) -> Result<Vec<LocalFile>, Failure> {
        let moved = |file: &LocalFile| -> Result<LocalFile, Failure> {
            let below = file.path.strip_prefix(&self.source).map_err(Failure::new)?;
            Ok(LocalFile {
                path: directory.join(below),
                size_bytes: file.size_bytes,
            })
        };
        self.files.iter().map(moved).collect()
    }
}

impl Stage<'_> {
    fn rounds(&self) -> usize {
        self.arguments.rounds.into()
    }

    /// Files, and a volume of three copies with them.
    fn fill(&self) -> Result<Filled, Failure> {
        let source = self.scratch.join("source");
        let files = make_files(&source, self.arguments.files as usize, FILE_BYTES)?;
        let content: u64 = files.iter().map(|file| file.size_bytes).sum();
        self.volume(VOLUME, content * 2 + ROOM_BYTES, 3)?;
        self.up
            .redhare(&["fs", "import", &source.display().to_string(), VOLUME])?;
        Ok(Filled { source, files })
    }

    fn volume(&self, name: &str, size_bytes: u64, copies: u32) -> Result<(), Failure> {
        let (size, copies) = (size_bytes.to_string(), copies.to_string());
        self.up
            .redhare(&["volume", "create", name, "--size", &size, "--copies", &copies])?;
        self.up.redhare(&["fs", "format", name])?;
        Ok(())
    }
}

pub(crate) fn run(arguments: &TrainingArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments)?;
    output.print(&rows, || super::report::describe(&rows));
    super::report::check(&rows, output)
}

/// Runs the parts that were chosen. Takes minutes.
pub(super) fn rows(arguments: &TrainingArguments) -> Result<Vec<Row>, Failure> {
    let scratch = Scratch::new(&arguments.data)?;
    let most = arguments.files.max(arguments.import_files).max(arguments.images);
    // Each disk takes a copy of everything: what is read, what is imported, images; and the same again in dead space.
    let disk_bytes = u64::from(most) * FILE_BYTES as u64 * 6 + 4 * ROOM_BYTES;
    let up = Up::start(&scratch.path().join("cluster"), arguments.port, disk_bytes)?;
    let stage = Stage {
        arguments,
        up,
        scratch: scratch.path(),
    };
    let chosen = |name: &str| name.contains(&arguments.only);
    let mut rows = Vec::new();
    if chosen("mount") || chosen("archives") || chosen("peers") {
        let filled = stage.fill()?;
        if chosen("mount") {
            rows.push(mounted::row(&stage, &filled)?);
        }
        if chosen("archives") {
            rows.extend(archives::rows(&stage, &filled)?);
        }
        if chosen("peers") {
            rows.extend(peers::rows(&stage, &filled)?);
        }
    }
    if chosen("import") {
        rows.extend(import::rows(&stage)?);
    }
    if chosen("commits") {
        rows.extend(commits::rows(&stage)?);
    }
    if chosen("loader") {
        rows.extend(loader::rows(&stage)?);
    }
    if rows.is_empty() {
        return Err(Failure::new(format!(
            "nothing was measured: --only {} names none of mount, archives, peers, import, commits, loader, or what they need is missing (above)",
            arguments.only
        )));
    }
    Ok(rows)
}
