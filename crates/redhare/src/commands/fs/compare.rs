//! `redhare fs compare`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bench::latency::Latencies;
use clap::Args;
use foundation::{ByteCount, Random};
use packfs::name::Shown;
use packfs::{Attributes, Inode, InodeNumber, Kind, OpenFile, ReadError, Reader, ReaderOptions, Target};

use super::feed::{self, Body, Lane, Message, Reading};
use super::local::{self, LocalEntry, LocalKind};
use super::medium::{Location, Role, open_volume};
use super::progress::Progress;
use super::view;
use crate::output::{Failure, Output};

/// Differences that are kept; more are counted only.
const DIFFERENCES_MAX: usize = 1000;

/// Read every file of a directory back from a volume and compare everything
#[derive(Args)]
#[command(
    after_help = "Compares every byte, mode, owner, time of change and link, in random order, with several readers \
at once; fails if anything differs. Extended attributes are not compared (\"redhare fs import --verify\" does), and pipes, sockets and devices \
that are not on the volume do not count, as import leaves them out without --special.\n\nExamples:\n  redhare fs compare file:images.packfs ./images\n  \
redhare fs compare images:train /data/train --readers 8"
)]
pub(super) struct CompareArguments {
    /// The volume, and a directory in it
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
    /// The directory that was imported
    directory: PathBuf,
    /// Readers, each with a lease, a cache and a thread for the local files
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    readers: u16,
    /// Chooses the random order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave owners out, for a directory that another user owns
    #[arg(long)]
    ignore_owners: bool,
}

#[derive(serde::Serialize)]
struct Difference {
    path: String,
    what: String,
}

#[derive(serde::Serialize)]
struct CompareView {
    equal: bool,
    entries: u64,
    content_bytes: u64,
    seconds: f64,
    files_per_second: f64,
    mib_per_second: f64,
    /// Latency of reading a whole file from the volume.
    p50_us: u64,
    p99_us: u64,
    differences: Vec<Difference>,
    more_differences: u64,
}

/// What the readers share.
struct Compare {
    /// The path on the volume that is compared.
    from: Vec<u8>,
    ignore_owners: bool,
    /// Pipes, sockets and devices with several names, by the first.
    specials: BTreeSet<Vec<u8>>,
    progress: Progress,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    entries: u64,
    content_bytes: u64,
    latencies: Latencies,
    differences: Vec<Difference>,
    more_differences: u64,
    /// Inodes on the volume by local path, of what has several names.
    links: BTreeMap<Vec<u8>, InodeNumber>,
    /// Names that mean the same, locally: the later and the first.
    linked: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Compare {
    fn differs(&self, path: &[u8], what: impl std::fmt::Display) {
        let mut state = self.state.borrow_mut();
        if state.differences.len() >= DIFFERENCES_MAX {
            state.more_differences += 1;
            return;
        }
        let path = Shown::new(path).to_string();
        let what = what.to_string();
        state.differences.push(Difference { path, what });
    }

    fn advance(&self, entries: u64, bytes: u64) {
        let mut state = self.state.borrow_mut();
        state.entries += entries;
        state.content_bytes += bytes;
        self.progress.set(state.entries, state.content_bytes);
    }

    /// Compares all that a lane gives.
    async fn lane(&self, reader: &Reader, mut lane: Lane) {
        while let Some(message) = lane.next().await {
            match message {
                Message::Entry(entry, body) => self.entry(reader, &entry, body, &mut lane).await,
                Message::Failed(failure) => self.differs(b"", format!("cannot be read locally: {failure}")),
                // The rest of a file that was given up.
                Message::Piece(_) | Message::Hole(_) => continue,
            }
            self.advance(1, 0);
        }
    }

    async fn entry(&self, reader: &Reader, local: &LocalEntry, body: Body, lane: &mut Lane) {
        let path = [&self.from[..], &local.path].join(&b'/');
        let begun = Instant::now();
        let file = match reader.open_file(&path).await {
            Ok(file) => file,
            Err(ReadError::NotFound { .. }) if self.is_special(local) => return,
            Err(error) => return self.differs(&local.path, format!("on the volume: {error}")),
        };
        self.attributes(local, &file.inode);
        if !self.kind(local, &file.inode) {
            return;
        }
        match body {
            Body::None => {}
            Body::Whole(bytes) => self.whole(reader, local, &file, &bytes, begun).await,
            Body::Pieces => self.pieces(reader, local, &file, lane).await,
        }
    }

    /// Whether it is locally what an import may leave out.
    fn is_special(&self, local: &LocalEntry) -> bool {
        match &local.kind {
            LocalKind::Special(..) => true,
            LocalKind::HardLink(first) => self.specials.contains(first),
            _ => false,
        }
    }

    /// Whether both are of one kind; notes links.
    fn kind(&self, local: &LocalEntry, inode: &Inode) -> bool {
        let mut state = self.state.borrow_mut();
        if local.links > 1 && local.kind != LocalKind::Directory {
            state.links.insert(local.path.clone(), inode.number);
        }
        let expected = match &local.kind {
            LocalKind::Directory => Kind::Directory,
            LocalKind::File | LocalKind::KnownFile => Kind::File,
            LocalKind::Symlink => Kind::Symlink,
            LocalKind::Special(kind, _) => *kind,
            LocalKind::HardLink(first) => {
                state.linked.push((local.path.clone(), first.clone()));
                return true;
            }
        };
        drop(state);
        if inode.kind != expected {
            let (found, expected) = (view::kind(inode.kind), view::kind(expected));
            self.differs(&local.path, format!("is a {found}, and locally a {expected}"));
        }
        if let LocalKind::Special(_, number) = &local.kind
            && inode.kind.is_device()
            && inode.device().unwrap_or_default() != *number
        {
            self.differs(&local.path, "is another device than locally");
        }
        inode.kind == expected
    }

    fn attributes(&self, local: &LocalEntry, inode: &Inode) {
        let (found, expected): (&Attributes, &Attributes) = (&inode.attributes, &local.attributes);
        let path = &local.path;
        if found.mode != expected.mode {
            let what = format!("has mode {:04o}, and locally {:04o}", found.mode, expected.mode);
            self.differs(path, what);
        }
        if !self.ignore_owners && (found.uid, found.gid) != (expected.uid, expected.gid) {
            let what = format!(
                "belongs to {}:{}, and locally to {}:{}",
                found.uid, found.gid, expected.uid, expected.gid
            );
            self.differs(path, what);
        }
        if found.mtime != expected.mtime {
            let (found, expected) = (view::time(found.mtime), view::time(expected.mtime));
            self.differs(path, format!("was changed at {found}, and locally at {expected}"));
        }
    }

    async fn whole(
        &self,
        reader: &Reader,
        local: &LocalEntry,
        file: &OpenFile,
        bytes: &[u8],
        begun: Instant,
    ) {
        if file.inode.size != bytes.len() as u64 {
            return self.size(local, file.inode.size, bytes.len() as u64);
        }
        let content = match reader.read_file(Target::File(file)).await {
            Ok(content) => content,
            Err(error) => return self.differs(&local.path, error),
        };
        self.state.borrow_mut().latencies.add(begun.elapsed());
        let mut at = 0;
        for part in content.parts() {
            if !self.same(local, at as u64, part, bytes.get(at..at + part.len())) {
                return;
            }
            at += part.len();
        }
        if at < bytes.len() {
            return self.size(local, at as u64, bytes.len() as u64);
        }
        self.advance(0, at as u64);
    }

    async fn pieces(&self, reader: &Reader, local: &LocalEntry, file: &OpenFile, lane: &mut Lane) {
        let mut offset = 0_u64;
        let mut same = true;
        let mut spent = Duration::ZERO;
        loop {
            let bytes = match lane.next().await {
                Some(Message::Piece(bytes)) => bytes,
                Some(Message::Failed(failure)) => return self.differs(&local.path, failure),
                Some(Message::Entry(..) | Message::Hole(_)) | None => {
                    unreachable!(
                        "a large file ends with an empty piece or a failure, and holes were not asked for"
                    )
                }
            };
            if bytes.is_empty() {
                break;
            }
            let begun = Instant::now();
            if same {
                same = self.piece(reader, local, file, offset, &bytes).await;
            }
            spent += begun.elapsed();
            offset += bytes.len() as u64;
        }
        if same && offset != file.inode.size {
            return self.size(local, file.inode.size, offset);
        }
        if same {
            self.state.borrow_mut().latencies.add(spent);
        }
    }

    async fn piece(
        &self,
        reader: &Reader,
        local: &LocalEntry,
        file: &OpenFile,
        offset: u64,
        bytes: &[u8],
    ) -> bool {
        let content = match reader.read(file, offset, bytes.len() as u64).await {
            Ok(content) => content,
            Err(error) => {
                self.differs(&local.path, error);
                return false;
            }
        };
        if content.len() != bytes.len() {
            self.size(local, file.inode.size, offset + bytes.len() as u64);
            return false;
        }
        let mut at = 0;
        for part in content.parts() {
            if !self.same(local, offset + at as u64, part, bytes.get(at..at + part.len())) {
                return false;
            }
            at += part.len();
        }
        self.advance(0, at as u64);
        true
    }

    fn same(&self, local: &LocalEntry, at: u64, found: &[u8], expected: Option<&[u8]>) -> bool {
        if expected == Some(found) {
            return true;
        }
        let differing = expected.and_then(|expected| {
            found
                .iter()
                .zip(expected)
                .position(|(found, expected)| found != expected)
        });
        let byte = at + differing.unwrap_or(0) as u64;
        self.differs(
            &local.path,
            format!("has other content: byte {byte} is the first that differs"),
        );
        false
    }

    fn size(&self, local: &LocalEntry, found: u64, expected: u64) {
        self.differs(&local.path, format!("has {found} bytes, and locally {expected}"));
    }

    /// Names that are one file locally must be one file there.
    fn links(&self) {
        let (links, linked) = {
            let mut state = self.state.borrow_mut();
            (
                std::mem::take(&mut state.links),
                std::mem::take(&mut state.linked),
            )
        };
        for (path, first) in linked {
            if let (Some(one), Some(other)) = (links.get(&path), links.get(&first))
                && one != other
            {
                let first = Shown::new(&first);
                self.differs(
                    &path,
                    format!("is another file than {first}, and locally the same"),
                );
            }
        }
    }

    /// What is on the volume and not in the directory.
    async fn extra(&self, reader: &Reader, known: &BTreeSet<Vec<u8>>) -> Result<(), ReadError> {
        let root = reader.lookup(&self.from).await?;
        let mut walk = reader.walk(root.number);
        loop {
            let batch = walk.next_batch().await?;
            if batch.is_empty() {
                return Ok(());
            }
            for found in batch.iter().filter(|found| !known.contains(&found.path)) {
                self.differs(&found.path, "is on the volume, and not in the directory");
            }
        }
    }
}

pub(super) async fn run(arguments: &CompareArguments, output: &Output) -> Result<(), Failure> {
    let Location { volume, path } = Location::parse(&arguments.location)?;
    let mut entries = local::all(&arguments.directory)?;
    let known: BTreeSet<Vec<u8>> = entries.iter().map(|entry| entry.path.clone()).collect();
    let specials = entries
        .iter()
        .filter(|entry| entry.links > 1 && matches!(entry.kind, LocalKind::Special(..)));
    let specials = specials.map(|entry| entry.path.clone()).collect();
    let total_bytes = entries.iter().map(|entry| entry.size_bytes).sum();
    Random::from_seed(arguments.seed).shuffle(&mut entries);
    let opened = open_volume(&volume, Role::Read)?;
    let compare = Rc::new(Compare {
        from: path,
        ignore_owners: arguments.ignore_owners,
        specials,
        progress: Progress::new("compare", entries.len() as u64, total_bytes),
        state: RefCell::default(),
    });
    let readers = usize::from(arguments.readers);
    let begun = Instant::now();
    let mut shares: Vec<Vec<LocalEntry>> = (0..readers).map(|_| Vec::new()).collect();
    for (index, entry) in entries.into_iter().enumerate() {
        shares[index % readers].push(entry);
    }
    let mut tasks = Vec::new();
    for share in shares {
        let reader = opened.reader(&ReaderOptions::default()).await?;
        let lane = feed::lane(share.into_iter(), Reading::default())?;
        let compare = compare.clone();
        tasks.push(reactor::spawn(async move { compare.lane(&reader, lane).await }));
    }
    for task in tasks {
        let ended = task.await;
        ended.ok_or_else(|| volume.failure("a reader ended early; compare again"))?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    compare.links();
    let reader = opened.reader(&ReaderOptions::default()).await?;
    if let Err(error) = compare.extra(&reader, &known).await {
        compare.differs(&compare.from, format!("cannot be listed on the volume: {error}"));
    }
    compare.progress.end();
    let state = compare.state.take();
    let view = CompareView {
        equal: state.differences.is_empty(),
        entries: state.entries,
        content_bytes: state.content_bytes,
        seconds,
        files_per_second: state.entries as f64 / seconds,
        mib_per_second: state.content_bytes as f64 / seconds / ByteCount::MIB.0 as f64,
        p50_us: state.latencies.percentile_us(0.5),
        p99_us: state.latencies.percentile_us(0.99),
        differences: state.differences,
        more_differences: state.more_differences,
    };
    output.print(&view, || describe(&view));
    if view.equal {
        Ok(())
    } else {
        Err(Failure::reported())
    }
}

fn describe(view: &CompareView) -> String {
    let mut text = String::new();
    for Difference { path, what } in &view.differences {
        text.push_str(&format!("{path}: {what}\n"));
    }
    let found = view.differences.len() as u64 + view.more_differences;
    text.push_str(&format!(
        "{} entries, {} compared in {:.1} s: {}\n{:.0} files/s, {:.1} MiB/s, p50 {} us, p99 {} us\n",
        view.entries,
        ByteCount(view.content_bytes),
        view.seconds,
        if view.equal {
            "all equal".to_owned()
        } else {
            format!("{found} differences")
        },
        view.files_per_second,
        view.mib_per_second,
        view.p50_us,
        view.p99_us
    ));
    text
}
