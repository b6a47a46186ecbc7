//! Proved here: while names and content change at random below directories with quotas, what is counted is what there is, with
//! what waits in memory; what would pass a limit is refused with EDQUOT and changes nothing, and nothing gets out of a tree or
//! into it but by copying. Power may be cut at any write and flush, and the counters of what is found are right; a planted bug is seen.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use foundation::Random;

use super::files_test::options;
use super::fsck::is_found_in_little_memory;
use super::support::{DISK, ROOT, leases, medium, on_host, small, superblock_of, world};
use crate::files::{Allocate, FileError, FileSystem, NewInode, NodeKind, RenameMode, SetAttributes, errno};
use crate::format::superblock::Features;
use crate::lease::memory::LocalLeases;
use crate::space::PlantedBug;
use crate::{
    FsckOptions, InodeNumber, Kind, Quota, Reader, ReaderOptions, Timestamp, VerifyOptions, Writer, format,
    fsck, verify,
};

const NEW: NewInode = NewInode {
    mode: 0o755,
    uid: 0,
    gid: 0,
};
const NOW: Timestamp = Timestamp {
    seconds: 5,
    nanoseconds: 0,
};

fn number<T>(result: Result<T, FileError>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

fn size(size: u64) -> SetAttributes {
    SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    }
}

/// What is below a directory, by listing it.
async fn below(files: &FileSystem, directory: InodeNumber) -> BTreeMap<InodeNumber, u64> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory];
    while let Some(directory) = waiting.pop() {
        for listed in files.read_directory(directory, None, None, 10_000).await.unwrap() {
            found.insert(listed.inode, files.stat(listed.inode).await.unwrap().size);
            if listed.kind == Kind::Directory {
                waiting.push(listed.inode);
            }
        }
    }
    found
}

/// Two directories with quotas, one without, and what has lost its name and is open.
struct World {
    tops: [InodeNumber; 3],
    open: BTreeMap<InodeNumber, Option<usize>>,
    counter: u64,
}

impl World {
    async fn new(files: &mut FileSystem) -> Self {
        let mut tops = [ROOT; 3];
        for (top, name) in tops.iter_mut().zip([b"one", b"two", b"far"]) {
            *top = files.mkdir(ROOT, name, NEW, NOW).await.unwrap().number;
        }
        Self {
            tops,
            open: BTreeMap::new(),
            counter: 0,
        }
    }

    /// What a tree has: by listing, and what was unlinked while it was open.
    async fn counted(&self, files: &FileSystem, top: usize) -> (u64, u64) {
        let mut found = below(files, self.tops[top]).await;
        for (inode, tree) in &self.open {
            if *tree == Some(top) {
                found.insert(*inode, files.stat(*inode).await.unwrap().size);
            }
        }
        (found.len() as u64, found.values().sum())
    }

    async fn check(&self, files: &FileSystem) {
        for top in 0..2 {
            let quota = files.quota_of(self.tops[top]).await.unwrap().unwrap();
            let counted = self.counted(files, top).await;
            assert_eq!((quota.used_files, quota.used_bytes), counted, "tree {top}");
        }
        assert_eq!(files.quota_of(self.tops[2]).await.unwrap(), None);
    }

    /// A random directory or file: its tree, directory, name, inode and kind.
    async fn any(
        &self,
        files: &FileSystem,
        random: &mut Random,
        wanted: impl Fn(Kind) -> bool,
    ) -> Option<(usize, InodeNumber, Vec<u8>, InodeNumber, Kind)> {
        let mut all = Vec::new();
        for (top, directory) in self.tops.iter().enumerate() {
            let mut waiting = vec![*directory];
            while let Some(directory) = waiting.pop() {
                for listed in files.read_directory(directory, None, None, 10_000).await.unwrap() {
                    if listed.kind == Kind::Directory {
                        waiting.push(listed.inode);
                    }
                    if wanted(listed.kind) {
                        all.push((top, directory, listed.name, listed.inode, listed.kind));
                    }
                }
            }
        }
        let index = random.below(all.len().max(1) as u64) as usize;
        all.into_iter().nth(index)
    }

    async fn directory(&self, files: &FileSystem, random: &mut Random) -> (usize, InodeNumber) {
        let top = random.below(3) as usize;
        let found = self.any(files, random, |kind| kind == Kind::Directory).await;
        match found {
            Some((top, _, _, inode, _)) if random.chance(1, 2) => (top, inode),
            _ => (top, self.tops[top]),
        }
    }

    /// What an operation on a tree must answer if it adds so much.
    async fn limited(&self, files: &FileSystem, top: usize, more_files: u64, more_bytes: u64) -> i32 {
        let Some(quota) = files.quota_of(self.tops[top]).await.unwrap() else {
            return 0;
        };
        let (have, bytes) = self.counted(files, top).await;
        let files_over = quota.limit_files > 0 && more_files > 0 && have + more_files > quota.limit_files;
        let bytes_over = quota.limit_bytes > 0 && more_bytes > 0 && bytes + more_bytes > quota.limit_bytes;
        if files_over || bytes_over {
            errno::EDQUOT
        } else {
            0
        }
    }

    /// One random operation, which must end as the limits say.
    async fn step(&mut self, files: &mut FileSystem, random: &mut Random) {
        let (top, directory) = self.directory(files, random).await;
        self.counter += 1;
        let name = format!("n{}", self.counter).into_bytes();
        match random.below(16) {
            0..=3 => {
                let expected = self.limited(files, top, 1, 0).await;
                let made = match random.below(3) {
                    0 => files.mkdir(directory, &name, NEW, NOW).await,
                    1 => files.mknod(directory, &name, NodeKind::Pipe, NEW, NOW).await,
                    _ => files.create(directory, &name, NEW, NOW).await,
                };
                assert_eq!(number(made), expected);
            }
            4 => {
                let target = vec![b'x'; random.between(1, 300) as usize];
                let expected = self.limited(files, top, 1, target.len() as u64).await;
                let made = files.symlink(directory, &name, &target, NEW, NOW).await;
                assert_eq!(number(made), expected);
            }
            5..=9 => {
                let file = self.any(files, random, |kind| kind == Kind::File).await;
                let Some((top, _, _, inode, _)) = file else { return };
                let old = files.stat(inode).await.unwrap().size;
                let at = random.below(old + 3000);
                let length = random.between(1, 30_000);
                let growth = (at + length).saturating_sub(old);
                let expected = self.limited(files, top, 0, growth).await;
                let done = match random.below(4) {
                    0 => {
                        let set = files.set_attributes(inode, &size(at + length), NOW).await;
                        set.map(|_| ())
                    }
                    1 => {
                        let range = at..at + length;
                        files.allocate(inode, range, Allocate::Zeros, false, NOW).await
                    }
                    _ => files.write(inode, at, &vec![7; length as usize], NOW).await,
                };
                assert_eq!(number(done), expected);
                let now = files.stat(inode).await.unwrap().size;
                assert!(
                    expected == 0 || now == old,
                    "a refused write has lengthened the file"
                );
            }
            10 => {
                let file = self.any(files, random, |kind| kind == Kind::File).await;
                let Some((_, _, _, inode, _)) = file else { return };
                let to = random.below(files.stat(inode).await.unwrap().size + 1);
                files.set_attributes(inode, &size(to), NOW).await.unwrap();
            }
            11 | 12 => {
                let found = self.any(files, random, |_| true).await;
                let Some((top, parent, name, inode, kind)) = found else {
                    return;
                };
                if kind == Kind::Directory {
                    let _ = files.rmdir(parent, &name, NOW).await;
                    return;
                }
                if kind == Kind::File && random.chance(1, 2) {
                    files.open_inode(inode).await.unwrap();
                    files.unlink(parent, &name, NOW).await.unwrap();
                    if files.stat(inode).await.unwrap().links == 0 {
                        let tree = (top < 2).then_some(top);
                        assert!(self.open.insert(inode, tree).is_none());
                    } else {
                        files.release(inode).await.unwrap();
                    }
                } else {
                    files.unlink(parent, &name, NOW).await.unwrap();
                }
            }
            13 => {
                // What has no name may grow, and goes at its end.
                let Some((&inode, &tree)) = self.open.first_key_value() else {
                    return;
                };
                let old = files.stat(inode).await.unwrap().size;
                let expected = self.limited(files, tree.unwrap_or(2), 0, 100).await;
                assert_eq!(number(files.write(inode, old, &[1; 100], NOW).await), expected);
                self.open.remove(&inode);
                files.release(inode).await.unwrap();
            }
            14 => {
                let found = self.any(files, random, |kind| kind != Kind::Directory).await;
                let Some((from, _, _, inode, _)) = found else {
                    return;
                };
                let same = from == top;
                if !same && files.quotas().is_empty() {
                    return;
                }
                let linked = files.link(inode, directory, &name, NOW).await;
                assert_eq!(number(linked), if same { 0 } else { errno::EXDEV });
            }
            _ => {
                let found = self.any(files, random, |_| true).await;
                let Some((from, parent, old, _, _)) = found else {
                    return;
                };
                if from != top && files.quotas().is_empty() {
                    return;
                }
                let moved = files
                    .rename((parent, &old), (directory, &name), RenameMode::Replace, NOW)
                    .await;
                let answer = number(moved);
                match from == top {
                    true => assert!(answer == 0 || answer == errno::EINVAL, "{answer}"),
                    false => assert_eq!(answer, errno::EXDEV),
                }
            }
        }
    }
}

async fn opened() -> FileSystem {
    let leases = Rc::new(LocalLeases::new());
    FileSystem::open(medium(), leases, &options()).await.unwrap()
}

async fn clean(what: &str) {
    let report = verify(&medium(), leases(), &VerifyOptions::default())
        .await
        .unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.problems);
    is_found_in_little_memory(&medium(), true, &report).await;
}

#[test]
fn counters_are_what_there_is() {
    for seed in 0..6 {
        let (simulation, host) = world(seed);
        on_host(&simulation, host, move || async move {
            format(medium(), leases(), "a formatter", &small()).await.unwrap();
            let mut files = opened().await;
            let mut random = Random::from_seed(seed);
            let mut world = World::new(&mut files).await;
            // Something is there before the quota is.
            for _ in 0..30 {
                world.step(&mut files, &mut random).await;
                for (_, tree) in world.open.iter_mut() {
                    *tree = None;
                }
            }
            let unlimited = world.tops[0];
            files.set_quota(unlimited, 300_000, 25).await.unwrap();
            files.set_quota(world.tops[1], 0, 0).await.unwrap();
            world.check(&files).await;
            for round in 0..8 {
                for _ in 0..25 {
                    world.step(&mut files, &mut random).await;
                    world.check(&files).await;
                }
                files.commit().await.unwrap();
                world.check(&files).await;
                clean("after a commit").await;
                match round {
                    3 => {
                        // A limit below what there is takes nothing away, and lets nothing in.
                        files.set_quota(world.tops[0], 1, 1).await.unwrap();
                        world.check(&files).await;
                    }
                    5 => {
                        files.set_quota(world.tops[0], 500_000, 0).await.unwrap();
                        // Orphans of a tree are counted again when its quota comes again.
                        files.clear_quota(world.tops[1]).await.unwrap();
                        clean("without one quota").await;
                        files.set_quota(world.tops[1], 200_000, 40).await.unwrap();
                        world.check(&files).await;
                    }
                    _ => {}
                }
            }
            drop(files);
        })
        .unwrap();
    }
}

#[test]
fn quotas_are_refused_where_they_could_not_be_counted() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let mut f = opened().await;
        let outer = f.mkdir(ROOT, b"outer", NEW, NOW).await.unwrap().number;
        let inner = f.mkdir(outer, b"inner", NEW, NOW).await.unwrap().number;
        let file = f.create(inner, b"file", NEW, NOW).await.unwrap().number;
        f.link(file, ROOT, b"elsewhere", NOW).await.unwrap();
        assert_eq!(number(f.set_quota(outer, 1, 1).await), errno::EBUSY);
        assert_eq!(number(f.set_quota(file, 1, 1).await), errno::ENOTDIR);
        assert_eq!(number(f.clear_quota(outer).await), errno::ENOENT);
        f.unlink(ROOT, b"elsewhere", NOW).await.unwrap();
        let quota = f.set_quota(inner, 1000, 2).await.unwrap();
        assert_eq!((quota.used_files, quota.used_bytes), (1, 0));
        assert_eq!(number(f.set_quota(outer, 1, 1).await), errno::EBUSY);
        let below = f.mkdir(inner, b"below", NEW, NOW).await.unwrap().number;
        assert_eq!(number(f.set_quota(below, 1, 1).await), errno::EBUSY);
        assert_eq!(number(f.create(below, b"x", NEW, NOW).await), errno::EDQUOT);
        // Exchanging across is renaming across; the directory itself may be renamed, and keeps its quota.
        f.create(outer, b"out", NEW, NOW).await.unwrap();
        let across = f
            .rename((outer, b"out"), (inner, b"file"), RenameMode::Exchange, NOW)
            .await;
        assert_eq!(number(across), errno::EXDEV);
        f.rename((outer, b"inner"), (ROOT, b"moved"), RenameMode::Replace, NOW)
            .await
            .unwrap();
        assert_eq!(number(f.create(inner, b"x", NEW, NOW).await), errno::EDQUOT);
        f.commit().await.unwrap();
        f.close().await.unwrap();
        clean("refused").await;
        // Another opening knows it, a writer for imports keeps to it, and a reader lists it.
        let mut writer = Writer::open(medium(), leases(), &super::support::writer_options())
            .await
            .unwrap();
        let a = small().root;
        let refused = writer.create_file(inner, b"y", &a, b"").await.unwrap_err();
        let text = format!(
            "the quota of directory {inner} is used up: 2 of 2 files; remove something below it, or raise it"
        );
        assert_eq!(refused.to_string(), text);
        writer.remove(inner, b"below").await.unwrap();
        let refused = writer.create_file(inner, b"y", &a, &[0; 1001]).await.unwrap_err();
        assert!(refused.to_string().contains("0 of 1000 bytes"), "{refused}");
        let mut sparse = writer.begin_file();
        writer.append_hole(&mut sparse, 2000).await.unwrap();
        let refused = writer.finish_file(sparse, inner, b"y", &a).await.unwrap_err();
        assert!(refused.to_string().contains("0 of 1000 bytes"), "{refused}");
        writer.create_file(inner, b"y", &a, &[0; 1000]).await.unwrap();
        writer.commit().await.unwrap();
        writer.close().await.unwrap();
        clean("imported").await;
        let reader = Reader::open(medium(), leases(), &ReaderOptions::default())
            .await
            .unwrap();
        let quota = Quota {
            limit_bytes: 1000,
            limit_files: 2,
            used_bytes: 1000,
            used_files: 2,
        };
        assert_eq!(reader.quotas().await.unwrap(), [(b"moved".to_vec(), quota)]);
        reader.close().await.unwrap();
        // Its quota goes with a directory.
        let mut f = opened().await;
        for name in [&b"file"[..], b"y"] {
            f.unlink(inner, name, NOW).await.unwrap();
        }
        f.rmdir(ROOT, b"moved", NOW).await.unwrap();
        assert_eq!(f.quotas(), []);
        f.commit().await.unwrap();
        f.close().await.unwrap();
        clean("removed").await;
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    assert!(superblock_of(&disk).features.has(Features::QUOTAS));
}

#[test]
fn wrong_counters_are_found_and_repaired() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let mut files = opened().await;
        let mut random = Random::from_seed(4);
        let mut world = World::new(&mut files).await;
        for _ in 0..60 {
            world.step(&mut files, &mut random).await;
        }
        for inode in std::mem::take(&mut world.open).into_keys() {
            files.release(inode).await.unwrap();
        }
        let right = files.set_quota(world.tops[0], 1 << 30, 0).await.unwrap();
        files.set_quota(world.tops[1], 0, 1000).await.unwrap();
        files.close().await.unwrap();
        let nested = {
            let mut writer = Writer::open(medium(), leases(), &super::support::writer_options())
                .await
                .unwrap();
            let wrong = Quota {
                used_bytes: right.used_bytes + 5,
                used_files: 0,
                ..right
            };
            let a = small().root;
            let nested = writer.mkdir(world.tops[1], b"nested", &a).await.unwrap();
            let file = writer.create_file(ROOT, b"plain", &a, b"x").await.unwrap();
            writer.commit().await.unwrap();
            for (at, quota) in [(world.tops[0], wrong), (nested, wrong), (file, wrong)] {
                let key = crate::format::key::Key::Quota(at).encode();
                writer.put(key, quota.encode()).await.unwrap();
            }
            writer.commit_always().await.unwrap();
            writer.close().await.unwrap();
            nested
        };
        let found = verify(&medium(), leases(), &VerifyOptions::default())
            .await
            .unwrap();
        is_found_in_little_memory(&medium(), true, &found).await;
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let report = fsck(&medium(), leases(), &options, &mut |_| {}).await.unwrap();
        let problems: Vec<String> = report.found.problems.iter().map(ToString::to_string).collect();
        for part in [
            "bytes below a directory with a quota",
            "stands below another",
            "is not a directory",
        ] {
            assert!(
                problems.iter().any(|problem| problem.contains(part)),
                "{part}: {problems:?}"
            );
        }
        assert!(report.left.unwrap().is_clean());
        let reader = Reader::open(medium(), leases(), &ReaderOptions::default())
            .await
            .unwrap();
        let quotas = reader.quotas().await.unwrap();
        assert_eq!(quotas.len(), 2);
        assert_eq!(quotas[0], (b"one".to_vec(), right));
        assert!(nested.0 > 0 && quotas[1].1.limit_files == 1000);
        reader.close().await.unwrap();
        let again = fsck(&medium(), leases(), &options, &mut |_| {}).await.unwrap();
        assert!(again.is_clean(), "{:?}", again.found.problems);
    })
    .unwrap();
}

async fn write(seed: u64, ready: Rc<Cell<bool>>, bug: PlantedBug) {
    let mut files = opened().await;
    files.plant(bug);
    let mut random = Random::from_seed(seed);
    let mut world = World::new(&mut files).await;
    files.set_quota(world.tops[0], 200_000, 20).await.unwrap();
    files.set_quota(world.tops[1], 100_000, 0).await.unwrap();
    ready.set(true);
    for _ in 0..6 {
        for _ in 0..random.between(3, 12) {
            world.step(&mut files, &mut random).await;
        }
        files.commit().await.unwrap();
    }
}

/// Cuts power at the `cut`-th write or flush; `None` when the run ended before.
fn run(seed: u64, cut: u64, bug: PlantedBug) -> Option<Result<(), String>> {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap()
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    disk.cut_power_at(disk.operations() + cut);
    let ready = Rc::new(Cell::new(false));
    let told = ready.clone();
    if on_host(&simulation, host, move || write(seed, told, bug)).is_some() {
        return None;
    }
    let complete = ready.get();
    let found = on_host(&simulation, host, move || async move {
        let check = async |what: &str| {
            let report = verify(&medium(), leases(), &VerifyOptions::default())
                .await
                .unwrap();
            match report.is_clean() {
                true => Ok(()),
                false => Err(format!("{what}: {:?}", report.problems)),
            }
        };
        check("after the cut").await?;
        // The next writer drops what was open, counts on from there, and is right.
        let mut files = opened().await;
        let quotas = files.quotas();
        if complete && quotas.len() != 2 {
            return Err("a quota is gone".to_owned());
        }
        for (directory, quota) in quotas {
            let found = below(&files, directory).await;
            let counted = (found.len() as u64, found.values().sum::<u64>());
            if (quota.used_files, quota.used_bytes) != counted {
                return Err(format!("{quota:?}, and there is {counted:?}"));
            }
        }
        files.commit().await.unwrap();
        check("after the takeover").await
    });
    Some(found.unwrap())
}

fn all_cuts(seeds: std::ops::Range<u64>, bug: PlantedBug) -> Result<u64, String> {
    let mut cuts = 0;
    for seed in seeds {
        for cut in 1.. {
            match run(seed, cut, bug) {
                None => break,
                Some(Ok(())) => cuts += 1,
                Some(Err(error)) => return Err(format!("seed {seed}, cut {cut}: {error}")),
            }
        }
    }
    Ok(cuts)
}

#[test]
fn counters_are_right_after_every_power_cut() {
    let cuts = all_cuts(0..4, PlantedBug::None).unwrap();
    assert!(cuts > 100, "only {cuts} cuts");
}

#[test]
fn counters_that_are_not_committed_are_found() {
    assert!(all_cuts(0..2, PlantedBug::QuotaNotCommitted).is_err());
}
