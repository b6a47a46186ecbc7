//! Proved here: a page of the tree, of the record of space or a superblock that is damaged costs as little as can be: what
//! stood below an inner page all comes back, what stood in a leaf as far as the commit before or the second index has it,
//! and the rest is named; damaged content is named with its range, file by file, and stays as it is. Power may be cut at any
//! write and flush of a repair, which is whole or absent. Whatever the damage, nothing panics or goes round in circles, and a
//! second run finds nothing, or the same that cannot be repaired.

use std::collections::BTreeSet;
use std::path::Path;

use bdev::IoError;
use foundation::Random;
use foundation::checksum::crc32c;
use reactor::sim::disk::DiskHandle;

use super::fsck::{BYTES, check, filled, open, state};
use super::model::{Model, Node, read_back};
use super::support::{DISK, Faults, leases, on_host, sized_medium, spoil, superblock_of, world};
use crate::format::page::Page;
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::format::{PagePointer, SUPERBLOCK_ADDRESSES, space_page};
use crate::space::PlantedBug;
use crate::{FsckError, FsckOptions, Kind, OpenError, Reader, ReaderOptions, Target, fsck};

/// All pages of the tree, level by level from the root.
fn tree_pages(disk: &DiskHandle) -> Vec<(u8, PagePointer)> {
    let mut all = Vec::new();
    let mut waiting = vec![superblock_of(disk).root];
    while let Some(pointer) = waiting.pop() {
        let page = Page::parse(&disk.read(pointer.address(), 4096), pointer).unwrap();
        if page.level() > 0 {
            waiting.extend((0..page.len()).map(|index| page.child(index)));
        }
        all.push((page.level(), pointer));
    }
    all
}

fn record_pages(disk: &DiskHandle) -> Vec<PagePointer> {
    let mut all = Vec::new();
    let mut pointer = superblock_of(disk).space;
    while !pointer.is_none() {
        all.push(pointer);
        match space_page::decode(&disk.read(pointer.address(), 4096), pointer) {
            Ok(page) => pointer = page.next,
            Err(_) => break,
        }
    }
    all
}

/// Puts the bytes of a disk back.
fn restore(disk: &DiskHandle, bytes: &[u8]) {
    for (at, part) in bytes.chunks(1 << 20).enumerate() {
        disk.damage((at << 20) as u64, part);
    }
}

/// What a reader finds, and the paths of files that cannot be read.
async fn readable() -> (Model, BTreeSet<Vec<u8>>) {
    let reader = Reader::open(sized_medium(BYTES), leases(), &ReaderOptions::default())
        .await
        .unwrap();
    let mut walk = reader.walk(crate::InodeNumber::ROOT);
    let mut model = Model::new(reader.lookup(b"").await.unwrap().attributes);
    let mut unreadable = BTreeSet::new();
    loop {
        let batch = walk.next_batch().await.unwrap();
        if batch.is_empty() {
            return (model, unreadable);
        }
        for entry in batch {
            let inode = reader.inode_of(entry.entry).await.unwrap();
            let bytes = match inode.kind {
                Kind::Directory => Vec::new(),
                kind if kind.is_special() => Vec::new(),
                _ => match reader.read_many(&[Target::Path(&entry.path)]).await.remove(0) {
                    Ok(content) => content.to_vec(),
                    Err(_) => {
                        unreadable.insert(entry.path);
                        continue;
                    }
                },
            };
            let node = Node {
                kind: inode.kind,
                attributes: inode.attributes,
                links: inode.links,
                bytes,
                device: inode.device(),
            };
            model.names.insert(entry.path, inode.number);
            model.nodes.insert(inode.number, node);
        }
    }
}

/// What is under its old path has the content it had, or is told to be of an older generation; gives the paths that are
/// gone.
fn unchanged(what: &str, before: &Model, after: &Model, repaired: &[String]) -> BTreeSet<Vec<u8>> {
    let mut gone = BTreeSet::new();
    for (path, inode) in &before.names {
        let Some(found) = after.names.get(path).map(|inode| &after.nodes[inode]) else {
            gone.insert(path.clone());
            continue;
        };
        let (text, node) = (String::from_utf8_lossy(path), &before.nodes[inode]);
        assert_eq!(found.kind, node.kind, "{what}: {text}");
        let name = crate::name::Shown::new(path.rsplit(|&byte| byte == b'/').next().unwrap());
        let older = repaired.iter().any(|line| {
            line.starts_with(&format!("\"{name}\" in directory"))
                && line.contains("came back as of generation")
        });
        assert!(
            found.bytes == node.bytes || older,
            "{what}: {text}, inode {inode}, has other content ({} and {} bytes): {repaired:#?}",
            found.bytes.len(),
            node.bytes.len()
        );
    }
    gone
}

#[test]
fn each_page_of_the_tree_may_be_damaged() {
    let (simulation, host) = world(9);
    let before = on_host(&simulation, host, || async { filled(9).await.tree }).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let image = disk.read(0, BYTES as usize);
    let (mut inner, mut leaves, mut all_back) = (0, 0, 0);
    for (level, pointer) in tree_pages(&disk) {
        restore(&disk, &image);
        spoil(&disk, pointer);
        let (report, (after, unreadable)) = on_host(&simulation, host, || async {
            let report = check(true, true).await;
            (report, readable().await)
        })
        .unwrap();
        let what = format!("page {} of level {level}", pointer.page);
        assert!(!report.is_clean() && report.has_corrected(), "{what}");
        let gone = unchanged(&what, &before, &after, &report.repaired);
        let names = report.lost.join("\n");
        if level > 0 {
            inner += 1;
            assert!(after == before, "{what}: {names}");
            assert!(
                !report.has_uncorrected() && report.lost.is_empty(),
                "{what}: {names}"
            );
        } else {
            leaves += 1;
            all_back += u32::from(after == before);
            // Each that is gone is named, or what it stood in.
            for path in &unreadable {
                // By one of its names.
                let inode = before.names.get(path);
                let named = before
                    .names
                    .iter()
                    .filter(|(_, other)| Some(*other) == inode)
                    .any(|(path, _)| {
                        let shown = crate::name::Shown::new(path).to_string();
                        report.lost.iter().any(|line| line.starts_with(&shown))
                    });
                assert!(
                    named,
                    "{what}: {:?} is not named in {names}",
                    String::from_utf8_lossy(path)
                );
            }
            for path in gone.difference(&unreadable) {
                let named = path
                    .split(|&byte| byte == b'/')
                    .any(|name| names.contains(&crate::name::Shown::new(name).to_string()));
                assert!(
                    named,
                    "{what}: {:?} is not named in {names}",
                    String::from_utf8_lossy(path)
                );
            }
        }
        let again = on_host(&simulation, host, || async { check(true, true).await }).unwrap();
        let left = report.left.unwrap();
        assert!(
            again.found.problems == left.problems && !again.has_corrected(),
            "{what}"
        );
    }
    assert!(inner >= 1 && leaves > 5, "{inner} inner pages, {leaves} leaves");
    // What only the second index had comes back whole, and so does what the last commit has written anew.
    assert!(all_back >= leaves / 4, "{all_back} of {leaves} leaves came back");
}

#[test]
fn each_page_of_the_record_of_space_may_be_damaged() {
    let (simulation, host) = world(9);
    let before = on_host(&simulation, host, || async { filled(9).await.tree }).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let image = disk.read(0, BYTES as usize);
    for pointer in record_pages(&disk) {
        restore(&disk, &image);
        spoil(&disk, pointer);
        let expected = before.clone();
        on_host(&simulation, host, move || async move {
            let report = check(true, true).await;
            assert!(report.has_corrected() && !report.has_uncorrected() && report.lost.is_empty());
            assert!(state().await == expected);
            // The snapshot by name is whole, too, also after space was used again.
            let mut writer = open(&sized_medium(BYTES)).await;
            let a = super::support::small().root;
            for index in 0..40u8 {
                let name = format!("new {index}");
                let bytes = vec![index; 30_000];
                let root = crate::InodeNumber::ROOT;
                let made = writer.create_file(root, name.as_bytes(), &a, &bytes);
                made.await.unwrap();
                if index % 10 == 0 {
                    writer.commit().await.unwrap();
                }
            }
            writer.commit().await.unwrap();
            writer.close().await.unwrap();
            let report = check(false, true).await;
            assert!(
                report.is_clean() && report.found.snapshots == 1,
                "{:?}",
                report.found.problems
            );
        })
        .unwrap();
    }
}

#[test]
fn a_damaged_superblock_is_written_anew_and_two_are_not_guessed() {
    let (simulation, host) = world(9);
    on_host(&simulation, host, || async { filled(9).await }).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let image = disk.read(0, BYTES as usize);
    for address in SUPERBLOCK_ADDRESSES {
        restore(&disk, &image);
        disk.damage(address + 130, &[0x77; 9]);
        on_host(&simulation, host, move || async move {
            let report = check(false, true).await;
            let text = report.superblock.clone().unwrap();
            assert!(text.contains(&format!("at byte {address}: ")), "{text}");
            assert!(report.is_clean());
            let report = check(true, true).await;
            assert!(report.has_corrected() && !report.has_uncorrected());
            let report = check(true, true).await;
            assert!(report.superblock.is_none() && !report.has_corrected());
        })
        .unwrap();
    }
    for address in SUPERBLOCK_ADDRESSES {
        disk.damage(address + 130, &[0x77; 9]);
    }
    let damaged = disk.read(0, BYTES as usize);
    on_host(&simulation, host, || async {
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let refused = fsck(&sized_medium(BYTES), leases(), &options, &mut |_| {}).await;
        assert!(matches!(refused, Err(FsckError::Open(OpenError::Damaged { .. }))));
    })
    .unwrap();
    assert!(disk.read(0, BYTES as usize) == damaged, "nothing is written then");
}

#[test]
fn damaged_content_is_named_and_kept() {
    let (simulation, host) = world(9);
    let before = on_host(&simulation, host, || async { filled(9).await.tree }).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    // Bytes of "known/one" stand nowhere else.
    let image = disk.read(0, BYTES as usize);
    let at = image
        .windows(3000)
        .position(|bytes| bytes.iter().all(|&byte| byte == b'o'))
        .unwrap();
    disk.damage(at as u64 + 17, b"x");
    on_host(&simulation, host, move || async move {
        assert!(
            check(true, false).await.is_clean(),
            "without the content it is not read"
        );
        for _ in 0..2 {
            let report = check(true, true).await;
            assert!(report.has_uncorrected() && !report.has_corrected());
            let left = report.left.unwrap();
            assert_eq!(left.problems.len(), 1);
            let text = left.problems[0].to_string();
            let block = at / 4096;
            let expected = format!("known/one: the 3000 bytes at block {block} of the volume are damaged");
            assert_eq!(text, expected);
        }
        let reader = Reader::open(sized_medium(BYTES), leases(), &ReaderOptions::default())
            .await
            .unwrap();
        assert!(read_back(&reader).await.unwrap_err().contains("known/one"));
        assert!(reader.lookup(b"known/one").await.unwrap().size == 3000);
        assert!(before.names.contains_key(&b"known/one"[..]));
    })
    .unwrap();
}

/// Damage of several kinds at once: an inner page, the newest leaf of the second index, counts.
async fn several() {
    let medium = sized_medium(BYTES);
    let mut writer = open(&medium).await;
    writer.set_counts(
        crate::Totals::default(),
        crate::format::superblock::Features(31),
        100_000,
    );
    let key = crate::format::key::Key::Name(77_000).encode();
    let place = crate::format::entry::encode_place(crate::InodeNumber::ROOT, b"nothing");
    writer.put(key, place).await.unwrap();
    writer.commit_always().await.unwrap();
    writer.close().await.unwrap();
}

/// Cuts power at the `cut`-th write or flush of a repair; `None` when it ended before.
fn cut_repair(
    image: &[u8],
    before: &Model,
    (cut, seed): (u64, u64),
    bug: PlantedBug,
) -> Option<Result<(), String>> {
    let (simulation, host) = world(cut * 1000 + seed);
    on_host(&simulation, host, || async { drop(sized_medium(BYTES)) }).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    restore(&disk, image);
    let generation = superblock_of(&disk).generation;
    disk.cut_power_at(disk.operations() + cut);
    let ended = on_host(&simulation, host, move || async move {
        let options = FsckOptions {
            repair: true,
            bug,
            ..FsckOptions::default()
        };
        fsck(&sized_medium(BYTES), leases(), &options, &mut |_| {})
            .await
            .unwrap();
    });
    let expected = before.clone();
    let found = superblock_of(&disk).generation;
    let right = on_host(&simulation, host, move || async move {
        let report = check(false, true).await;
        if report.is_clean() == (found == generation) {
            return Err(format!(
                "generation {found} after {generation}: {:?}",
                report.found.problems
            ));
        }
        let report = check(true, true).await;
        if report.has_uncorrected() || !report.lost.is_empty() || state().await != expected {
            return Err(format!("{:?} {:?}", report.lost, report.left));
        }
        Ok(())
    });
    match (ended, right.unwrap()) {
        (Some(()), Ok(())) => None,
        (_, right) => Some(right),
    }
}

fn all_cuts(bug: PlantedBug) -> Result<u64, String> {
    let (simulation, host) = world(9);
    let before = on_host(&simulation, host, || async { filled(9).await.tree }).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async { several().await }).unwrap();
    spoil(&disk, superblock_of(&disk).root);
    let image = disk.read(0, BYTES as usize);
    let mut cuts = 0;
    for cut in 1.. {
        // What of the writes before the last flush is there after a power cut is by chance.
        for seed in 0..8 {
            match cut_repair(&image, &before, (cut, seed), bug) {
                None => return Ok(cuts),
                Some(Ok(())) => cuts += 1,
                Some(Err(error)) => return Err(format!("cut {cut}, seed {seed}: {error}")),
            }
        }
    }
    unreachable!("cuts end with the repair")
}

#[test]
fn a_repair_is_whole_or_absent() {
    let cuts = all_cuts(PlantedBug::None).unwrap();
    assert!(cuts >= 32, "only {cuts} cuts");
}

#[test]
fn a_repair_whose_superblock_comes_before_its_flush_is_found() {
    assert!(all_cuts(PlantedBug::SuperblockBeforeFlush).is_err());
}

/// What a check finds and a reader sees, or that nothing can be read.
async fn standing() -> Result<(Vec<String>, Model), String> {
    let options = FsckOptions {
        read_content: true,
        ..FsckOptions::default()
    };
    let checked = fsck(&sized_medium(BYTES), leases(), &options, &mut |_| {}).await;
    let report = checked.map_err(|error| error.to_string())?;
    let problems: Vec<String> = report.found.problems.iter().map(ToString::to_string).collect();
    let reader = Reader::open(sized_medium(BYTES), leases(), &ReaderOptions::default()).await;
    let read = read_back(&reader.map_err(|error| error.to_string())?).await;
    let model = read.map_err(|error| format!("{error}: {problems:#?}"))?;
    Ok((problems, model))
}

#[test]
fn a_superblock_that_can_be_read_again_leads_to_nothing_that_a_repair_wrote_over() {
    let (simulation, host) = world(9);
    on_host(&simulation, host, || async { filled(9).await }).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async {
        // A reason to write, in both.
        several().await;
        let mut writer = open(&sized_medium(BYTES)).await;
        let (root, attributes) = (crate::InodeNumber::ROOT, super::support::small().root);
        for index in 0..60u8 {
            let (name, bytes) = (format!("newest {index}"), [index; 9000]);
            let made = writer.create_file(root, name.as_bytes(), &attributes, &bytes);
            made.await.unwrap();
        }
        writer.commit().await.unwrap();
        writer.close().await.unwrap();
    })
    .unwrap();
    let image = disk.read(0, BYTES as usize);
    let newest = superblock_of(&disk).generation;
    let is_newest = |address: &u64| {
        let found = Superblock::decode(&disk.read(*address, SUPERBLOCK_BYTES), *address);
        found.is_ok_and(|superblock| superblock.generation == newest)
    };
    let address = SUPERBLOCK_ADDRESSES.into_iter().find(is_newest).unwrap();
    let newer = on_host(&simulation, host, standing).unwrap().unwrap();
    disk.damage(address + 130, &[0x77; 9]);
    let older = on_host(&simulation, host, standing).unwrap().unwrap();
    assert!(newer.1 != older.1 && !newer.0.is_empty() && !older.0.is_empty());
    let repaired = (Vec::new(), older.1.clone());
    for cut in 1.. {
        let (simulation, host) = world(cut);
        on_host(&simulation, host, || async { drop(sized_medium(BYTES)) }).unwrap();
        let disk = simulation.disk(host, Path::new(DISK));
        restore(&disk, &image);
        disk.cut_power_at(disk.operations() + cut);
        let ended = on_host(&simulation, host, move || async move {
            let faults = Faults::default();
            faults.add(address..address + SUPERBLOCK_BYTES as u64, IoError::Media);
            let options = FsckOptions {
                repair: true,
                ..FsckOptions::default()
            };
            let medium = faults.on(&sized_medium(BYTES));
            fsck(&medium, leases(), &options, &mut |_| {}).await.unwrap();
        });
        // From here on it can be read, unless it was written anew.
        let found = on_host(&simulation, host, standing).unwrap();
        let found = found.unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        let is_whole = [&newer, &older, &repaired].contains(&&found);
        assert!(is_whole, "cut {cut}: {:#?}", found.0);
        if ended.is_some() {
            assert!(cut > 4 && found == repaired, "{cut} cuts");
            return;
        }
    }
}

/// Changes bytes of pages and makes their checksums right again, up to the superblock.
fn falsify(disk: &DiskHandle, random: &mut Random, way: &[PagePointer]) {
    let mut pointer = *way.last().unwrap();
    let mut page = disk.read(pointer.address(), 4096);
    for _ in 0..random.between(1, 4) {
        let used = u16::from_le_bytes([page[24], page[25]]).clamp(64, 4096);
        let at = random.between(6, u64::from(used) - 1) as usize;
        page[at] = random.below(256) as u8;
    }
    let seal = |page: &mut Vec<u8>, at: usize| {
        page[at..at + 4].fill(0);
        let sum = crc32c(page);
        page[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        sum
    };
    let mut sum = seal(&mut page, 28);
    disk.damage(pointer.address(), &page);
    for parent in way.iter().rev().skip(1) {
        let mut page = disk.read(parent.address(), 4096);
        let old = pointer.checksum.to_le_bytes();
        let Some(at) = page.windows(4).position(|bytes| bytes == old) else {
            return;
        };
        page[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        pointer = *parent;
        sum = seal(&mut page, 28);
        disk.damage(parent.address(), &page);
    }
    for address in SUPERBLOCK_ADDRESSES {
        let mut page = disk.read(address, SUPERBLOCK_BYTES);
        let Ok(superblock) = Superblock::decode(&page, address) else {
            continue;
        };
        for (at, kept) in [(112, superblock.root), (136, superblock.space)] {
            if kept == pointer {
                page[at + 16..at + 20].copy_from_slice(&sum.to_le_bytes());
                seal(&mut page, 16);
                disk.damage(address, &page);
            }
        }
    }
}

/// One random damage.
fn damage(disk: &DiskHandle, random: &mut Random) {
    match random.below(10) {
        0 => {
            let record = record_pages(disk);
            if !record.is_empty() {
                spoil(disk, record[random.below(record.len() as u64) as usize]);
            }
        }
        1 => {
            let record = record_pages(disk);
            if let Some(&first) = record.first() {
                falsify(disk, random, &[first]);
            }
        }
        2 => {
            let address = SUPERBLOCK_ADDRESSES[random.below(2) as usize];
            disk.damage(address + random.below(300), &[random.below(256) as u8]);
        }
        3 | 4 => {
            // Anywhere.
            for _ in 0..random.between(1, 20) {
                disk.damage(random.between(256 << 10, BYTES - 1), &[random.below(256) as u8]);
            }
        }
        kind => {
            let mut key = [0x10 + 0x10 * random.below(8) as u8, 1, 0, 0];
            key[2] = random.below(256) as u8;
            let way = way_to(disk, &key);
            if kind < 7 {
                spoil(disk, way[random.below(way.len() as u64) as usize]);
            } else {
                falsify(disk, random, &way);
            }
        }
    }
}

/// The pages from the root to the leaf where a key stands, or to the first that is damaged.
fn way_to(disk: &DiskHandle, key: &[u8]) -> Vec<PagePointer> {
    let mut pointer = superblock_of(disk).root;
    let mut way = Vec::new();
    while way.len() < 25 {
        way.push(pointer);
        let inside = pointer.page < BYTES / 4096;
        let page = inside.then(|| Page::parse(&disk.read(pointer.address(), 4096), pointer));
        match page {
            Some(Ok(page)) if page.level() > 0 => pointer = page.child(page.child_index(key)),
            _ => break,
        }
    }
    way.retain(|pointer| pointer.page < BYTES / 4096);
    way
}

#[test]
fn whatever_the_damage_a_second_run_finds_the_same() {
    let (simulation, host) = world(9);
    let before = on_host(&simulation, host, || async { filled(9).await.tree }).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let image = disk.read(0, BYTES as usize);
    let (mut clean, mut left, mut refused, mut files) = (0, 0, 0, 0u64);
    for seed in 0..150 {
        restore(&disk, &image);
        let mut random = Random::from_seed(seed);
        for _ in 0..random.between(1, 4) {
            let newest = SUPERBLOCK_ADDRESSES
                .iter()
                .any(|&address| Superblock::decode(&disk.read(address, SUPERBLOCK_BYTES), address).is_ok());
            if newest {
                damage(&disk, &mut random);
            }
        }
        let found = on_host(&simulation, host, move || async move {
            let options = FsckOptions {
                repair: true,
                read_content: true,
                ..FsckOptions::default()
            };
            let first = fsck(&sized_medium(BYTES), leases(), &options, &mut |_| {}).await;
            let first = first.map_err(|error| error.to_string())?;
            let second = fsck(&sized_medium(BYTES), leases(), &options, &mut |_| {}).await;
            let second = second.unwrap_or_else(|error| panic!("seed {seed}: the second run: {error}"));
            let problems =
                |report: &crate::FsckReport| report.left.as_ref().unwrap_or(&report.found).problems.clone();
            assert_eq!(
                problems(&first),
                problems(&second),
                "seed {seed}: {:#?}",
                first.repaired
            );
            assert!(!second.has_corrected(), "seed {seed}: {:#?}", second.repaired);
            let options = ReaderOptions::default();
            let reader = Reader::open(sized_medium(BYTES), leases(), &options)
                .await
                .unwrap();
            Ok::<_, String>((problems(&first).is_empty(), read_back(&reader).await))
        })
        .unwrap();
        match found {
            Err(_) => refused += 1,
            Ok((true, model)) => {
                clean += 1;
                let model = model.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                files += model
                    .nodes
                    .values()
                    .filter(|node| node.kind == Kind::File)
                    .count() as u64;
            }
            Ok((false, _)) => left += 1,
        }
    }
    let all = before
        .nodes
        .values()
        .filter(|node| node.kind == Kind::File)
        .count() as u64;
    assert!(
        clean > 60 && left > 3 && refused < 30,
        "{clean} clean, {left} left, {refused} refused"
    );
    assert!(
        files > clean * all * 3 / 4,
        "{files} of {} files are there",
        clean * all
    );
}
