//! Proved here: what a device cannot give costs what lies there and nothing else, and what it cannot give now costs nothing once it can
//! again: superblocks, content below new content, neighbours in a run, a repair, an import.

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use bdev::IoError;
use reactor::sim::disk::DiskHandle;

use super::files_test::options;
use super::support::{
    DISK, Faults, NEW, NOW, ROOT, Second, VOLUME_BYTES, leases, medium, on_host, small, superblock_of, world,
};
use super::walks::empty;
use crate::files::{FileError, FileOptions, FileSystem, SetAttributes, errno};
use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::entry::Inode;
use crate::format::key::entry_key;
use crate::fsck::{FsckError, FsckOptions, fsck};
use crate::lease::memory::LocalLeases;
use crate::{
    Existing, FormatOptions, ImportContent, ImportEntry, ImportOptions, ImportPiece, ImportPieces, Importer,
    InodeNumber, Medium, OpenError, Problem, ReadError, Reader, ReaderOptions, Target, VerifyOptions, format,
    verify,
};

/// Where content begins.
const FIRST_SEGMENT: u64 = 128 << 10;

fn number<T>(result: Result<T, FileError>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

async fn opened(medium: &Medium) -> FileSystem {
    let leases = Rc::new(LocalLeases::new());
    FileSystem::open(medium.clone(), leases, &options())
        .await
        .unwrap()
}

/// A file of `bytes`, committed by a file system that is closed again.
async fn file_of(medium: &Medium, name: &[u8], bytes: &[u8]) -> InodeNumber {
    let mut files = opened(medium).await;
    let file = files.create(ROOT, name, NEW, NOW).await.unwrap().number;
    files.write(file, 0, bytes, NOW).await.unwrap();
    files.commit().await.unwrap();
    files.close().await.unwrap();
    file
}

/// Where bytes lie on a disk.
fn place_of(disk: &DiskHandle, bytes: &[u8]) -> u64 {
    let all = disk.read(0, VOLUME_BYTES as usize);
    let found = all.windows(bytes.len()).position(|window| window == bytes);
    found.expect("the bytes are on the disk") as u64
}

#[test]
fn a_superblock_that_cannot_be_read_is_written_anew() {
    for address in SUPERBLOCK_ADDRESSES {
        let (simulation, host) = world(1);
        on_host(&simulation, host, move || async move {
            let faults = Faults::default();
            let medium = faults.on(&medium());
            format(medium.clone(), leases(), "a formatter", &small())
                .await
                .unwrap();
            file_of(&medium, b"one", b"first").await;
            file_of(&medium, b"two", b"second").await;
            let block = address..address + 4096;
            // A device that gives no answer now may have the commit that counts.
            faults.add(block.clone(), IoError::TimedOut);
            let refused = Reader::open(medium.clone(), leases(), &ReaderOptions::default()).await;
            assert!(matches!(refused.err(), Some(OpenError::Io(IoError::TimedOut))));
            faults.clear();

            let check = async |repair| {
                let settings = FsckOptions {
                    repair,
                    ..FsckOptions::default()
                };
                fsck(&medium, leases(), &settings, &mut |_| {}).await.unwrap()
            };
            for error in [IoError::Media, IoError::Checksum] {
                faults.add(block.clone(), error);
                // It may be the newest commit's, over which whoever went on from the other would write.
                let reader = Reader::open(medium.clone(), leases(), &ReaderOptions::default()).await;
                assert!(matches!(reader.err(), Some(OpenError::Io(met)) if met == error));
                let writer = FileSystem::open(medium.clone(), leases(), &options()).await;
                assert!(matches!(writer.err(), Some(OpenError::Io(met)) if met == error));
                let told = check(false).await.superblock.unwrap();
                assert!(told.contains("cannot be read"), "{told}");
                let mended = check(true).await;
                assert!(!mended.has_uncorrected(), "{mended:?}");
                assert!(faults.are_none(), "the repair wrote the superblock anew");
                assert_eq!(check(false).await.superblock, None);
            }
            let file = file_of(&medium, b"three", b"third").await;
            let files = opened(&medium).await;
            assert_eq!(files.read(file, 0, 10).await.unwrap(), b"third");
        })
        .unwrap();
    }
}

#[test]
fn content_waits_for_a_device_that_gives_no_answer() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        let faults = Faults::default();
        let medium = faults.on(&medium());
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let file = file_of(&medium, b"file", &[9; 12_000]).await;
        for error in [IoError::Unavailable, IoError::TimedOut, IoError::Aborted] {
            let mut files = opened(&medium).await;
            files.write(file, 5, b"new", NOW).await.unwrap();
            faults.add(FIRST_SEGMENT..VOLUME_BYTES / 2, error);
            for _ in 0..3 {
                assert_eq!(number(files.sync(file).await), errno::EIO);
                assert_eq!(number(files.commit().await), errno::EIO);
                assert_eq!(number(files.commit_unasked().await), errno::EIO);
            }
            assert!(!files.is_committed());
            faults.clear();
            files.sync(file).await.unwrap();
            files.commit().await.unwrap();
            assert_eq!(files.read(file, 4, 5).await.unwrap(), b"\x09new\x09");
            files.write(file, 5, &[9; 3], NOW).await.unwrap();
            files.commit().await.unwrap();
            files.close().await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn each_file_hears_of_its_own_content() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let faults = Faults::default();
        let medium = faults.on(&medium());
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let mut numbers = Vec::new();
        for name in [&b"a"[..], b"b", b"c"] {
            numbers.push(file_of(&medium, name, &[9; 16_000]).await);
        }
        let mut files = opened(&medium).await;
        let all = FIRST_SEGMENT..VOLUME_BYTES / 2;
        faults.add(all.clone(), IoError::Media);
        for &file in &numbers {
            files.write(file, 5, b"new", NOW).await.unwrap();
        }
        assert_eq!(number(files.commit().await), errno::EIO);
        // One answer told of one of them.
        let synced = [numbers[0], numbers[1], numbers[1]];
        let mut told = Vec::new();
        for file in synced {
            told.push(number(files.sync(file).await));
        }
        assert_eq!(told, [0, errno::EIO, 0]);
        assert_eq!(number(files.commit().await), errno::EIO);
        files.commit().await.unwrap();
        // The first is dropped, the last one waits: each is told its own.
        faults.clear();
        for &file in &numbers {
            files.write(file, 5, b"new", NOW).await.unwrap();
        }
        faults.add(FIRST_SEGMENT..FIRST_SEGMENT + 4096, IoError::Media);
        faults.add(FIRST_SEGMENT + (40 << 10)..all.end, IoError::TimedOut);
        let error = files.sync(numbers[2]).await.unwrap_err().to_string();
        let own = format!("inode {}", numbers[2]);
        assert!(error.contains(&own), "{error}");
        files.sync(numbers[1]).await.unwrap();
        assert_eq!(number(files.sync(numbers[0]).await), errno::EIO);
        files.sync(numbers[0]).await.unwrap();
        faults.clear();
        files.sync(numbers[2]).await.unwrap();
        assert_eq!(files.read(numbers[2], 4, 5).await.unwrap(), b"\x09new\x09");
    })
    .unwrap();
}

#[test]
fn new_content_over_damaged_needs_nothing_of_it() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || async {
        let faults = Faults::default();
        let medium = faults.on(&medium());
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let file = file_of(&medium, b"file", &[9; 12_000]).await;
        let mut files = opened(&medium).await;
        faults.add(FIRST_SEGMENT..FIRST_SEGMENT + 4096, IoError::Media);
        assert_eq!(number(files.read(file, 0, 10).await), errno::EIO);
        files.write(file, 7000, &[3; 5500], NOW).await.unwrap();
        files.write(file, 0, &[2; 7000], NOW).await.unwrap();
        let expected = [vec![2; 7000], vec![3; 5500]].concat();
        assert!(files.read(file, 0, 20_000).await.unwrap() == expected);
        assert!(files.read(file, 100, 7000).await.unwrap() == expected[100..7100]);
        files.sync(file).await.unwrap();
        assert!(files.read(file, 0, 20_000).await.unwrap() == expected);
    })
    .unwrap();
}

/// More than goes into the tree at once.
const LONG: usize = 1_500_000;

/// A file of so many bytes whose extents end nowhere near a run's end, and where they lie.
async fn long_file(medium: &Medium) -> (InodeNumber, Range<u64>) {
    let file = file_of(medium, b"file", &[9; 5000]).await;
    let mut files = opened(medium).await;
    files.write(file, 5000, &[9; LONG - 5000], NOW).await.unwrap();
    files.commit().await.unwrap();
    files.close().await.unwrap();
    let pages = 8192 + (LONG as u64 - 5000).next_multiple_of(4096);
    (file, FIRST_SEGMENT..FIRST_SEGMENT + pages)
}

/// A file system that has room in memory for all that is written.
async fn roomy(medium: &Medium) -> FileSystem {
    let options = FileOptions {
        dirty_bytes_max: 8 << 20,
        ..options()
    };
    let leases = Rc::new(LocalLeases::new());
    FileSystem::open(medium.clone(), leases, &options).await.unwrap()
}

#[test]
fn new_content_in_several_runs_needs_nothing_of_what_it_covers() {
    let (simulation, host) = world(9);
    on_host(&simulation, host, || async {
        for error in [IoError::Media, IoError::Unavailable] {
            let faults = Faults::default();
            let medium = faults.on(&medium());
            let forced = FormatOptions {
                force: true,
                ..small()
            };
            format(medium.clone(), leases(), "a formatter", &forced)
                .await
                .unwrap();
            let (file, old) = long_file(&medium).await;
            let mut files = roomy(&medium).await;
            faults.add(old, error);
            assert_eq!(number(files.read(file, 0, 10).await), errno::EIO);
            // Written in parts of which none ends where an extent does.
            let new: Vec<u8> = (0..LONG).map(|at| (at / 1000) as u8).collect();
            for (index, part) in new.chunks(70_001).enumerate() {
                let at = index as u64 * 70_001;
                files.write(file, at, part, NOW).await.unwrap();
            }
            files.sync(file).await.unwrap();
            files.close().await.unwrap();
            let files = opened(&medium).await;
            assert!(files.read(file, 0, LONG as u64 + 1).await.unwrap() == new);
        }
    })
    .unwrap();
}

#[test]
fn a_damaged_extent_is_not_given_up_for_content_that_covers_a_part_of_it() {
    let (simulation, host) = world(10);
    on_host(&simulation, host, || async {
        let faults = Faults::default();
        let medium = faults.on(&medium());
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let (file, old) = long_file(&medium).await;
        let short = file_of(&medium, b"short", &[8; 3000]).await;
        let mut files = roomy(&medium).await;
        let cut_to = |size| SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        let all = old.start..VOLUME_BYTES / 2;
        for kind in 0..4 {
            faults.add(all.clone(), IoError::Media);
            let changed = if kind == 3 { short } else { file };
            match kind {
                // From the middle of an extent to that of another, over the end of a run.
                0 => files
                    .write(file, 7000, &vec![3; LONG - 207_000], NOW)
                    .await
                    .unwrap(),
                1 => files.write(file, 6000, &[5; 3], NOW).await.unwrap(),
                2 => drop(
                    files
                        .set_attributes(file, &cut_to(LONG as u64 - 90_000), NOW)
                        .await,
                ),
                _ => files.write(short, 10, &[5; 3], NOW).await.unwrap(),
            }
            let told = files.sync(changed).await.unwrap_err();
            assert_eq!(told.errno(), errno::EIO, "{told}");
            files.sync(changed).await.unwrap();
            // A copy comes back, or a device recovers: all that was there is right.
            faults.clear();
            assert!(files.read(file, 0, LONG as u64 + 1).await.unwrap() == vec![9; LONG]);
            assert!(files.read(short, 0, 4000).await.unwrap() == [8; 3000]);
        }
        // What merely stands beside it is kept.
        faults.add(all, IoError::Media);
        files.write(short, 3000, &[5; 300], NOW).await.unwrap();
        files.sync(short).await.unwrap();
        files.close().await.unwrap();
        faults.clear();
        let files = opened(&medium).await;
        let expected = [vec![8; 3000], vec![5; 300]].concat();
        assert!(files.read(short, 0, 4000).await.unwrap() == expected);
        assert!(files.read(file, 0, LONG as u64 + 1).await.unwrap() == vec![9; LONG]);
        files.close().await.unwrap();
        let with_content = VerifyOptions {
            read_content: true,
            ..VerifyOptions::default()
        };
        let report = verify(&medium, leases(), &with_content).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
    })
    .unwrap();
}

#[test]
fn damage_of_one_copy_is_none_while_another_is_out_of_reach() {
    let (simulation, host) = world(11);
    on_host(&simulation, host, || async {
        let (faults, others) = (Faults::default(), Faults::default());
        let second = Second::beside(&medium(), &others);
        let medium = faults.on(&medium()).with_copies(Rc::new(second));
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let file = file_of(&medium, b"file", &[9; 12_000]).await;
        let all = FIRST_SEGMENT..VOLUME_BYTES / 2;
        let (away, shorter) = (IoError::Unavailable, IoError::OutOfRange);
        for (first, other) in [
            (away, IoError::Media),
            (IoError::Media, away),
            (IoError::Checksum, shorter),
            (IoError::Gone, away),
        ] {
            let mut files = opened(&medium).await;
            files.write(file, 5, b"new", NOW).await.unwrap();
            faults.add(all.clone(), first);
            others.add(all.clone(), other);
            assert_eq!(number(files.sync(file).await), errno::EIO);
            faults.clear();
            others.clear();
            files.sync(file).await.unwrap();
            assert_eq!(files.read(file, 4, 5).await.unwrap(), b"\x09new\x09");
            files.write(file, 5, &[9; 3], NOW).await.unwrap();
            files.commit().await.unwrap();
            files.close().await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn new_content_over_all_that_a_cut_leaves_of_a_damaged_extent_needs_nothing_of_it() {
    let (simulation, host) = world(13);
    on_host(&simulation, host, || async {
        let faults = Faults::default();
        let medium = faults.on(&medium());
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let (file, old) = long_file(&medium).await;
        let cut_to = |size| SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        // Extents end with stripe units of 16 KiB on the volume: where one begins in the file, and where it lies.
        let begins = 13_192 + 85 * (16 << 10);
        let lies = old.start + 8192 + begins - 5000;
        let mut files = roomy(&medium).await;
        for covers in [false, true] {
            faults.add(lies..old.end, IoError::Media);
            let cut = cut_to(begins + 4000);
            files.set_attributes(file, &cut, NOW).await.unwrap();
            let from = if covers { begins - 1000 } else { begins + 1000 };
            let new = vec![4; 30_000];
            files.write(file, from, &new, NOW).await.unwrap();
            if !covers {
                assert_eq!(number(files.sync(file).await), errno::EIO);
                faults.clear();
                assert!(files.read(file, 0, LONG as u64 + 1).await.unwrap() == vec![9; LONG]);
                continue;
            }
            files.sync(file).await.unwrap();
            files.close().await.unwrap();
            faults.clear();
            files = opened(&medium).await;
            let expected = [vec![9; from as usize], new].concat();
            assert!(files.read(file, 0, LONG as u64 + 1).await.unwrap() == expected);
        }
        files.close().await.unwrap();
        let with_content = VerifyOptions {
            read_content: true,
            ..VerifyOptions::default()
        };
        let report = verify(&medium, leases(), &with_content).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
    })
    .unwrap();
}

#[test]
fn wrong_bytes_are_no_damage_while_a_copy_is_passed_over() {
    let (simulation, host) = world(12);
    let disk = simulation.disk(host, Path::new(DISK));
    let (file, place) = {
        let file = on_host(&simulation, host, || async {
            format(medium(), leases(), "a formatter", &small()).await.unwrap();
            file_of(&medium(), b"file", &[9; 12_000]).await
        });
        (file.unwrap(), place_of(&disk, &[9; 12_000]))
    };
    disk.damage(place + 9000, &[1; 10]);
    let mend = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, move || async move {
        let second = Second::beside(&medium(), &Faults::default());
        let medium = medium().with_copies(Rc::new(second.clone()));
        second.passes_over(true);
        let mut files = opened(&medium).await;
        let told = files.read(file, 0, 10).await.unwrap_err().to_string();
        assert!(!told.contains("damaged in every copy"), "{told}");
        let with_content = VerifyOptions {
            read_content: true,
            ..VerifyOptions::default()
        };
        let report = verify(&medium, leases(), &with_content).await.unwrap();
        let away = |problem: &Problem| {
            matches!(
                problem,
                Problem::ExtentIo {
                    source: IoError::Unavailable,
                    ..
                }
            )
        };
        assert!(
            !report.is_clean() && report.problems.iter().all(away),
            "{:#?}",
            report.problems
        );
        files.write(file, 5, b"new", NOW).await.unwrap();
        for _ in 0..3 {
            assert_eq!(number(files.sync(file).await), errno::EIO);
        }
        // The copy is there again, and has the right bytes: what was written is not lost.
        mend.damage(place + 9000, &[9; 10]);
        second.passes_over(false);
        files.sync(file).await.unwrap();
        assert_eq!(files.read(file, 4, 5).await.unwrap(), b"\x09new\x09");
        assert_eq!(files.read(file, 9000, 10).await.unwrap(), [9; 10]);
    })
    .unwrap();
}

#[test]
fn a_reader_is_not_told_of_lost_bytes_while_a_copy_is_passed_over() {
    let (simulation, host) = world(15);
    on_host(&simulation, host, || async {
        let (faults, others) = (Faults::default(), Faults::default());
        let second = Second::beside(&medium(), &others);
        let medium = faults.on(&medium()).with_copies(Rc::new(second.clone()));
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        file_of(&medium, b"file", &[9; 12_000]).await;
        let reader = Reader::open(medium, leases(), &ReaderOptions::default())
            .await
            .unwrap();
        for one in [&faults, &others] {
            one.add(FIRST_SEGMENT..VOLUME_BYTES / 2, IoError::Media);
        }
        for (passes, expected) in [(true, IoError::Unavailable), (false, IoError::Media)] {
            second.passes_over(passes);
            let found = reader.read_many(&[Target::Path(b"file")]).await.remove(0);
            assert!(
                matches!(found, Err(ReadError::Io { source, .. }) if source == expected),
                "{:?}",
                found.err()
            );
        }
    })
    .unwrap();
}

#[test]
fn a_repair_gives_up_no_page_that_a_copy_may_have_which_was_passed_over() {
    let (simulation, host) = world(14);
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        file_of(&medium(), b"file", &[9; 12_000]).await;
    })
    .unwrap();
    let page = superblock_of(&disk).root.address();
    let whole = disk.read(page, 4096);
    disk.damage(page + 200, &[0x77; 9]);
    let before = disk.read(0, VOLUME_BYTES as usize);
    let repair = async |medium: &Medium| {
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        fsck(medium, leases(), &options, &mut |_| {}).await
    };
    on_host(&simulation, host, move || async move {
        // The page is wrong, or the medium of the copies that answer does not give it.
        for fails in [false, true] {
            let (faults, others) = (Faults::default(), Faults::default());
            let second = Second::beside(&medium(), &others);
            second.passes_over(true);
            if fails {
                faults.add(page..page + 4096, IoError::Media);
                others.add(page..page + 4096, IoError::Media);
            }
            let medium = faults.on(&medium()).with_copies(Rc::new(second));
            let repaired = repair(&medium).await;
            assert!(matches!(repaired, Err(FsckError::Unreadable(_))), "{repaired:?}");
        }
    })
    .unwrap();
    assert!(
        disk.read(0, VOLUME_BYTES as usize) == before,
        "nothing was written"
    );
    disk.damage(page, &whole);
    on_host(&simulation, host, move || async move {
        let report = repair(&medium()).await.unwrap();
        assert!(report.is_clean() && !report.has_corrected(), "{report:?}");
    })
    .unwrap();
}

#[test]
fn a_file_grows_beside_a_damaged_end() {
    let (simulation, host) = world(5);
    let disk = simulation.disk(host, Path::new(DISK));
    let content = [vec![1; 16 << 10], vec![2; 16 << 10], vec![3; 500]].concat();
    let (first, expected) = (content.clone(), content);
    let file = on_host(&simulation, host, move || async move {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        file_of(&medium(), b"file", &first).await
    })
    .unwrap();
    disk.damage(place_of(&disk, &[3; 500]) + 10, &[99]);
    on_host(&simulation, host, move || async move {
        let mut files = opened(&medium()).await;
        let end = expected.len() as u64;
        assert_eq!(number(files.read(file, end - 10, 10).await), errno::EIO);
        files.write(file, end, &[4; 5000], NOW).await.unwrap();
        files.sync(file).await.unwrap();
        assert!(files.read(file, end, 9000).await.unwrap() == [4; 5000]);
        assert!(files.read(file, 0, 32 << 10).await.unwrap() == expected[..32 << 10]);
        assert_eq!(number(files.read(file, end - 10, 10).await), errno::EIO);
    })
    .unwrap();
}

#[test]
fn a_bad_block_costs_the_files_on_it_only() {
    let (simulation, host) = world(6);
    on_host(&simulation, host, || async {
        let faults = Faults::default();
        let (leases, mut writer) = empty().await;
        let names: Vec<String> = (0..20).map(|index| format!("file {index}")).collect();
        let attributes = small().root;
        for (index, name) in names.iter().enumerate() {
            let bytes = [index as u8 + 1; 3000];
            let made = writer.create_file(ROOT, name.as_bytes(), &attributes, &bytes);
            made.await.unwrap();
        }
        writer.commit().await.unwrap();
        let medium = faults.on(&medium());
        let reader = Reader::open(medium, leases, &ReaderOptions::default())
            .await
            .unwrap();
        let targets: Vec<_> = names.iter().map(|name| Target::Path(name.as_bytes())).collect();
        // Files of 3000 bytes lie back to back: three of them have some of the third block.
        faults.add(FIRST_SEGMENT + 8192..FIRST_SEGMENT + 12_288, IoError::Media);
        let mut failed = Vec::new();
        for (index, content) in reader.read_many(&targets).await.into_iter().enumerate() {
            match content {
                Ok(content) => assert!(content.to_vec() == [index as u8 + 1; 3000]),
                Err(_) => failed.push(index),
            }
        }
        assert_eq!(failed, [2, 3, 4]);
    })
    .unwrap();
}

struct NoParts;

impl ImportPieces for NoParts {
    type Error = &'static str;

    async fn more(&mut self) -> Result<Option<ImportPiece>, Self::Error> {
        Ok(None)
    }
}

#[test]
fn an_import_heals_what_cannot_be_read() {
    let (simulation, host) = world(7);
    on_host(&simulation, host, || async {
        let faults = Faults::default();
        let medium = faults.on(&medium());
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        file_of(&medium, b"file", &[9; 12_000]).await;
        let leases = Rc::new(LocalLeases::new());
        let opened = crate::Writer::open(medium.clone(), leases, &super::support::writer_options()).await;
        let mut writer = opened.unwrap();
        let entry = ImportEntry {
            path: b"file".to_vec(),
            attributes: small().root,
            extended: None,
            content: ImportContent::File(vec![9; 12_000]),
        };
        let import = async |existing, writer: &mut crate::Writer| {
            let options = ImportOptions {
                existing,
                remove_directories: false,
            };
            let mut importer = Importer::new(writer, ROOT, options);
            let done = importer.entry(&entry, &mut NoParts).await;
            if existing != Existing::Check {
                importer.commit().await.unwrap();
            }
            done.map(|done| format!("{done:?}"))
                .map_err(|error| error.to_string())
        };
        faults.add(FIRST_SEGMENT..FIRST_SEGMENT + 4096, IoError::Unavailable);
        import(Existing::Content, &mut writer).await.unwrap_err();
        faults.clear();
        faults.add(FIRST_SEGMENT..FIRST_SEGMENT + 4096, IoError::Media);
        let checked = import(Existing::Check, &mut writer).await.unwrap();
        assert!(checked.contains("other content"), "{checked}");
        let healed = import(Existing::Content, &mut writer).await.unwrap();
        assert_eq!(healed, "Replaced");
        let inode = writer.lookup(ROOT, b"file").await.unwrap().unwrap().inode();
        let inode = writer.inode(inode).await.unwrap();
        assert!(writer.read_content(&inode, 0..12_000).await.unwrap() == [9; 12_000]);
    })
    .unwrap();
}

#[test]
fn a_repair_waits_for_a_device_that_gives_no_answer() {
    let (simulation, host) = world(8);
    on_host(&simulation, host, || async {
        let faults = Faults::default();
        let (leases, mut writer) = empty().await;
        let attributes = small().root;
        for (name, byte) in [(&b"one"[..], 1), (b"two", 2)] {
            let made = writer.create_file(ROOT, name, &attributes, &[byte; 5000]).await;
            made.unwrap();
        }
        writer.commit().await.unwrap();
        let mut inodes = Vec::new();
        for name in [&b"one"[..], b"two"] {
            let found = writer.lookup(ROOT, name).await.unwrap().unwrap().inode();
            inodes.push(writer.inode(found).await.unwrap());
        }
        // Both claim the content of the first: it is copied for one of them.
        let claims = Inode {
            layout: inodes[0].layout.clone(),
            ..inodes[1].clone()
        };
        writer
            .put(entry_key(ROOT, b"two"), claims.encode())
            .await
            .unwrap();
        writer.commit_always().await.unwrap();
        writer.close().await.unwrap();
        let medium = faults.on(&medium());
        let repair = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        faults.add(FIRST_SEGMENT..FIRST_SEGMENT + 8192, IoError::Unavailable);
        let error = fsck(&medium, leases.clone(), &repair, &mut |_| {})
            .await
            .unwrap_err();
        assert!(error.to_string().contains("not committed"), "{error}");
        faults.clear();
        let report = fsck(&medium, leases.clone(), &repair, &mut |_| {}).await.unwrap();
        assert!(
            !report.has_uncorrected() && !report.repaired.is_empty(),
            "{report:?}"
        );
        let reader = Reader::open(medium, leases, &ReaderOptions::default())
            .await
            .unwrap();
        for name in [&b"one"[..], b"two"] {
            let file = reader.open_file(name).await.unwrap();
            assert!(reader.read(&file, 0, 9000).await.unwrap().to_vec() == [1; 5000]);
        }
    })
    .unwrap();
}
