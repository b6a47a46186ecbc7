//! Proved here: a file system takes what its volume has grown by, when it is opened and when it would be full otherwise, also below
//! a snapshot that holds everything that was freed; a reader that does not know of the growth asks, and reads what lies there.

use std::rc::Rc;

use super::files_test::options;
use super::support::{NEW, NOW, ROOT, growing_medium, leases, on_host, sized_medium, small, world};
use crate::files::FileSystem;
use crate::lease::memory::LocalLeases;
use crate::{InodeNumber, Reader, ReaderOptions, VerifyOptions, format, verify};

const BEFORE: u64 = 4 << 20;
const AFTER: u64 = 7 << 20;
const STEP: usize = 100_000;

/// Appends until the volume is full; gives the bytes.
async fn fill(files: &mut FileSystem, file: InodeNumber, from: u64) -> u64 {
    let mut offset = from;
    loop {
        match files.write(file, offset, &[offset as u8; STEP], NOW).await {
            Ok(_) => offset += STEP as u64,
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                return offset;
            }
        }
    }
}

#[test]
fn a_full_volume_that_grows_takes_more_and_every_reader_finds_it() {
    let (simulation, host) = world(5);
    on_host(&simulation, host, || async {
        let (medium, growth) = growing_medium(BEFORE, AFTER);
        let (behind, behind_growth) = growing_medium(BEFORE, AFTER);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut files = FileSystem::open(medium.clone(), leases.clone(), &options())
            .await
            .unwrap();
        let file = files.create(ROOT, b"file", NEW, NOW).await.unwrap().number;
        let first = fill(&mut files, file, 0).await;
        assert!(first > 2 << 20 && first < BEFORE, "{first} bytes");
        // Somebody who removes nothing and waits finds no room either: what was freed is held.
        files.create_snapshot(b"kept", NOW).await.unwrap();
        assert_eq!(fill(&mut files, file, first).await, first);
        growth.to(AFTER);
        behind_growth.to(AFTER);
        reactor::time::sleep(std::time::Duration::from_secs(3)).await;
        let second = fill(&mut files, file, first).await;
        assert!(second > first + (2 << 20), "{first} bytes, then {second}");
        files.commit().await.unwrap();
        assert_eq!(files.statistics().volume.0, AFTER);
        drop(files);
        assert_eq!(behind.capacity_bytes(), BEFORE);
        let reader = Reader::open(behind.clone(), leases.clone(), &ReaderOptions::default())
            .await
            .unwrap();
        let opened = reader.open_file(b"file").await.unwrap();
        assert_eq!(opened.inode.size, second);
        for offset in (0..second).step_by(STEP) {
            let bytes = reader.read(&opened, offset, STEP as u64).await.unwrap().to_vec();
            assert!(bytes == [offset as u8; STEP], "at {offset}");
        }
        let report = verify(&medium, leases, &VerifyOptions::default()).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
    })
    .unwrap();
}

#[test]
fn the_next_writer_takes_what_a_volume_has_grown_by_and_a_smaller_one_is_refused() {
    let (simulation, host) = world(6);
    on_host(&simulation, host, || async {
        format(sized_medium(BEFORE), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let (medium, _) = growing_medium(AFTER, AFTER);
        let mut files = FileSystem::open(medium.clone(), leases.clone(), &options())
            .await
            .unwrap();
        assert_eq!(files.statistics().volume.0, AFTER);
        files.create(ROOT, b"file", NEW, NOW).await.unwrap();
        files.commit().await.unwrap();
        drop(files);
        let report = verify(&medium, leases.clone(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        let (small, _) = growing_medium(BEFORE, AFTER);
        let refused = Reader::open(small, leases, &ReaderOptions::default()).await;
        let text = refused.err().unwrap().to_string();
        assert!(text.contains("4 MiB") && text.contains("7 MiB"), "{text}");
    })
    .unwrap();
}
