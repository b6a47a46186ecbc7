//! Proved here: what a volume that is full has taken can be made durable, whatever commits come between, however files grow.

use std::rc::Rc;
use std::time::Duration;

use foundation::Random;

use super::files_test::options;
use super::support::{NEW, NOW, ROOT, growing_medium, leases, on_host, small, world};
use crate::extended::VALUE_BYTES_MAX;
use crate::files::{FileError, FileOptions, FileSystem, SetAttributes, SetExtended};
use crate::format::superblock::Parameters;
use crate::lease::memory::LocalLeases;
use crate::{FormatOptions, InodeNumber, Reader, ReaderOptions, VerifyOptions, format, verify};

/// Files that grow side by side.
const FILES_MAX: u64 = 6;
/// Volumes have a few segments, with a spare one among them for compaction or without, at first; at most twice as many later.
const SEGMENTS_MIN: u64 = 10;
const SEGMENTS_MAX: u64 = 40;
const BYTES_MIN: u64 = 4 << 20;
/// In it compaction took a segment that it had emptied for what it moved, and moved that to and fro without end.
const KEPT_SEEDS: [u64; 1] = [179_606_977_569];

/// One of the changes that take room of the index, or change what a file is packed with: of an attribute, a directory, a file's length, which
/// is given. What finds no room is refused.
async fn other_change(
    files: &mut FileSystem,
    random: &mut Random,
    file: InodeNumber,
    length: &mut u64,
) -> Result<(), FileError> {
    let changed = match random.below(3) {
        0 => {
            let name = format!("user.{}", random.below(20));
            let value = vec![5; random.below(VALUE_BYTES_MAX as u64) as usize];
            let set = files.set_extended(file, name.as_bytes(), &value, SetExtended::Always, NOW);
            set.await
        }
        1 => {
            let name = format!("directory {}", random.next_u64());
            files.mkdir(ROOT, name.as_bytes(), NEW, NOW).await.map(drop)
        }
        _ => {
            let size = match random.below(3) {
                0 => random.below(*length + 1),
                1 => random.below((64 << 10) + 1),
                _ => *length + random.below(1 << 20),
            };
            let set = SetAttributes {
                size: Some(size),
                ..SetAttributes::default()
            };
            let set = files.set_attributes(file, &set, NOW).await;
            let is_shorter = size <= *length;
            if set.is_ok() || is_shorter {
                *length = size;
                return set.map(drop);
            }
            set.map(drop)
        }
    };
    match changed {
        Err(error) if error.is_no_space() => Ok(()),
        other => other,
    }
}

/// Lets some files grow by pieces until nothing more is taken, then syncs one and commits all.
async fn fills(seed: u64) {
    let mut random = Random::from_seed(seed);
    let segment_bytes = 64 << (10 + random.below(5));
    let formatted = FormatOptions {
        parameters: Parameters {
            segment_bytes,
            ..Parameters::default()
        },
        ..small()
    };
    let segments = SEGMENTS_MIN + random.below(SEGMENTS_MAX - SEGMENTS_MIN);
    let bytes = BYTES_MIN.max(u64::from(segment_bytes) * segments);
    let later = bytes + u64::from(segment_bytes) * random.below(SEGMENTS_MAX);
    let (medium, growth) = growing_medium(bytes, later);
    format(medium.clone(), leases(), "a formatter", &formatted)
        .await
        .unwrap();
    let leases = Rc::new(LocalLeases::new());
    let settings = FileOptions {
        dirty_bytes_max: (1 << 20) << random.below(5),
        ..options()
    };
    let opened = FileSystem::open(medium.clone(), leases.clone(), &settings).await;
    let mut files = opened.unwrap();
    let mut grown = Vec::new();
    for name in 0..=random.below(FILES_MAX) {
        let made = files.create(ROOT, &[b'a' + name as u8], NEW, NOW).await;
        grown.push((made.unwrap().number, 0));
    }
    let (largest, commits_one_in) = (1 << (9 + random.below(12)), 2 + random.below(200));
    let (rewrites, follows) = (random.below(3) == 0, random.below(2) == 0);
    let others_one_in = 2 + random.below(100);
    let mut others = 100 * random.below(2);
    let mut reader: Option<Reader> = None;
    let mut grows = later > bytes;
    let full = loop {
        let chosen = random.below(grown.len() as u64) as usize;
        let (file, length) = &mut grown[chosen];
        if others > 0 && random.below(others_one_in) == 0 {
            others -= 1;
            let changed = other_change(&mut files, &mut random, *file, length).await;
            changed.unwrap_or_else(|error| panic!("seed {seed}: another change: {error}"));
        }
        let piece = vec![seed as u8; 1 + random.below(largest) as usize];
        let offset = match rewrites && random.below(3) == 0 {
            true => random.below(*length + 1),
            false => *length,
        };
        match files.write(*file, offset, &piece, NOW).await {
            Ok(()) => *length = (*length).max(offset + piece.len() as u64),
            Err(error) => {
                assert!(error.is_no_space(), "seed {seed}: {error}");
                if !std::mem::take(&mut grows) {
                    break *file;
                }
                growth.to(later);
                reactor::time::sleep(Duration::from_secs(3)).await;
            }
        }
        if follows && random.below(commits_one_in) == 0 {
            let newer = Reader::open(medium.clone(), leases.clone(), &ReaderOptions::default()).await;
            if let Some(older) = reader.replace(newer.unwrap()) {
                older.close().await.unwrap();
            }
        }
        if random.below(commits_one_in) == 0 {
            let kept = files.commit_unasked().await;
            kept.unwrap_or_else(|error| panic!("seed {seed}: a commit unasked: {error}"));
        }
    };
    let synced = files.sync(full).await;
    synced.unwrap_or_else(|error| panic!("seed {seed}: the sync: {error}"));
    let kept = files.commit().await;
    kept.unwrap_or_else(|error| panic!("seed {seed}: the commit: {error}"));
    drop((files, reader));
    let report = verify(&medium, leases, &VerifyOptions::default()).await.unwrap();
    assert!(report.is_clean(), "seed {seed}: {:#?}", report.problems);
}

#[test]
fn what_a_full_volume_has_taken_becomes_durable() {
    for seed in KEPT_SEEDS
        .into_iter()
        .chain(foundation::seeds::from_environment(40))
    {
        let (simulation, host) = world(seed);
        on_host(&simulation, host, move || async move { fills(seed).await }).unwrap();
    }
}

/// A volume without a spare segment, and one with.
#[test]
fn small_volumes_take_nearly_all_that_is_free() {
    const SEGMENT_BYTES: u64 = 4 << 20;
    for bytes in [16 << 20, 32 << 20, 96 << 20] {
        let (simulation, host) = world(7);
        on_host(&simulation, host, move || async move {
            let (medium, _) = growing_medium(bytes, bytes);
            let formatted = FormatOptions::default();
            format(medium.clone(), leases(), "a formatter", &formatted)
                .await
                .unwrap();
            let leases = Rc::new(LocalLeases::new());
            let opened = FileSystem::open(medium, leases, &FileOptions::default()).await;
            let mut files = opened.unwrap();
            let free = files.statistics().free.0;
            let file = files.create(ROOT, b"file", NEW, NOW).await.unwrap().number;
            let (piece, mut taken) = ([7; 16 << 10], 0);
            while files.write(file, taken, &piece, NOW).await.is_ok() {
                files.sync(file).await.unwrap();
                taken += piece.len() as u64;
            }
            // The superblocks stand in the first segment, and the index in the last.
            let left = free.saturating_sub(taken);
            let ends = 2 * SEGMENT_BYTES + (1 << 20);
            assert!(left < ends, "{left} of {free} bytes are left of {bytes}");
            assert!(taken > bytes / 3, "{taken} bytes were taken of {bytes}");
        })
        .unwrap();
    }
}
