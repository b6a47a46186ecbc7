//! Proved here: what a commit in the middle of an operation changes is not lost; index pages stay in their bound whatever
//! changes them; damage in the middle of what is removed changes nothing; a failure is told to whom it concerns; room
//! for removals is not used up by anything else; a damaged orphan does not keep the next writer out.

use std::path::Path;
use std::rc::Rc;

use super::files_test::options;
use super::support::{
    DISK, NEW, NOW, ROOT, leases, medium, on_host, sized_medium, small, spoil, way_to, world,
};
use crate::files::{FileOptions, FileSystem, RenameMode, SetAttributes, errno};
use crate::format::key::Key;
use crate::lease::memory::LocalLeases;
use crate::{InodeNumber, Medium, Problem, Reader, ReaderOptions, VerifyOptions, format, verify};

const LARGE: usize = 12 << 20;

fn large_medium() -> Medium {
    sized_medium(24 << 20)
}

async fn opened(medium: Medium, options: &FileOptions) -> FileSystem {
    FileSystem::open(medium, leases(), options).await.unwrap()
}

#[test]
fn a_commit_within_a_change_of_names_keeps_what_was_written() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
        let options = FileOptions {
            index_bytes_max: 0,
            ..options()
        };
        let mut files = opened(medium(), &options).await;
        let inode = files.create(ROOT, b"a", NEW, NOW).await.unwrap().number;
        files.write(inode, 0, &[7; 5000], NOW).await.unwrap();
        let moved = files.rename((ROOT, b"a"), (ROOT, b"b"), RenameMode::Replace, NOW);
        moved.await.unwrap();
        assert_eq!(files.read(inode, 0, 9000).await.unwrap(), [7; 5000]);
        files.write(inode, 0, &[8; 5000], NOW).await.unwrap();
        files.unlink(ROOT, b"b", NOW).await.unwrap();
        files.commit().await.unwrap();
        let report = verify(&medium(), leases(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    })
    .unwrap();
}

#[test]
fn changed_index_pages_stay_in_their_bound() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        format(large_medium(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let options = FileOptions {
            index_bytes_max: 64 << 10,
            ..options()
        };
        // A single change may add some pages to what is there.
        let most = options.index_bytes_max + 24 * 8192;
        let mut files = opened(large_medium(), &options).await;
        let name = |index: u32| format!("{:08x} and a name", index.wrapping_mul(0x9e37_79b1)).into_bytes();
        let mut inodes = Vec::new();
        for index in 0..2500 {
            inodes.push(files.create(ROOT, &name(index), NEW, NOW).await.unwrap().number);
        }
        let set = SetAttributes {
            mode: Some(0o600),
            ..SetAttributes::default()
        };
        for inode in inodes {
            files.set_attributes(inode, &set, NOW).await.unwrap();
            assert!(files.uncommitted_bytes() <= most, "chmod");
        }
        for index in 0..2500 {
            files.unlink(ROOT, &name(index), NOW).await.unwrap();
            assert!(files.uncommitted_bytes() <= most, "unlink");
        }
    })
    .unwrap();
}

/// Makes a file whose extents take several leaves, and damages one in the middle, from the moment it returns.
async fn large_file(files: &mut FileSystem) -> InodeNumber {
    let inode = files.create(ROOT, b"large", NEW, NOW).await.unwrap().number;
    for at in (0..LARGE).step_by(1 << 20) {
        files
            .write(inode, at as u64, &vec![at as u8 | 1; 1 << 20], NOW)
            .await
            .unwrap();
    }
    files.commit().await.unwrap();
    inode
}

#[test]
fn damage_in_the_middle_of_a_removal_changes_nothing() {
    for truncate in [false, true] {
        let (simulation, host) = world(1);
        let inode = on_host(&simulation, host, || async {
            format(large_medium(), leases(), "a formatter", &small())
                .await
                .unwrap();
            let mut files = opened(large_medium(), &options()).await;
            let inode = large_file(&mut files).await;
            files.close().await.unwrap();
            inode
        })
        .unwrap();
        let disk = simulation.disk(host, Path::new(DISK));
        let way = |at: usize| {
            way_to(&disk, &Key::Extents(inode, at as u64).encode())
                .pop()
                .unwrap()
        };
        assert_ne!(way(0), way(LARGE / 2));
        spoil(&disk, way(LARGE / 2));
        on_host(&simulation, host, move || async move {
            let mut files = opened(large_medium(), &options()).await;
            let refused = match truncate {
                false => files.unlink(ROOT, b"large", NOW).await,
                true => {
                    let set = SetAttributes {
                        size: Some(0),
                        ..SetAttributes::default()
                    };
                    files.set_attributes(inode, &set, NOW).await.unwrap();
                    files.sync(inode).await.map(drop)
                }
            };
            assert_eq!(refused.unwrap_err().errno(), errno::EIO);
            files.create(ROOT, b"another", NEW, NOW).await.unwrap();
            files.commit().await.unwrap();
            let report = verify(&large_medium(), leases(), &VerifyOptions::default())
                .await
                .unwrap();
            assert!(
                matches!(report.problems[..], [Problem::Page(_)]),
                "{:?}",
                report.problems
            );
            assert_eq!(report.totals.content_bytes, LARGE as u64);
            assert_eq!(files.read(inode, 0, 10).await.unwrap(), [1; 10]);
        })
        .unwrap();
    }
}

#[test]
fn a_damaged_orphan_does_not_keep_the_next_writer_out() {
    let (simulation, host) = world(1);
    let inode = on_host(&simulation, host, || async {
        format(large_medium(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let mut files = opened(large_medium(), &options()).await;
        let inode = large_file(&mut files).await;
        let other = files.create(ROOT, b"other", NEW, NOW).await.unwrap().number;
        for (inode, name) in [(inode, &b"large"[..]), (other, &b"other"[..])] {
            files.open_inode(inode).await.unwrap();
            files.unlink(ROOT, name, NOW).await.unwrap();
        }
        files.commit().await.unwrap();
        files.close().await.unwrap();
        inode
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let key = Key::Extents(inode, LARGE as u64 / 2).encode();
    spoil(&disk, *way_to(&disk, &key).last().unwrap());
    on_host(&simulation, host, || async {
        let files = opened(large_medium(), &options()).await;
        // The other orphan went, the damaged one is still there.
        assert_eq!(files.statistics().totals.files, 1);
    })
    .unwrap();
}

#[test]
fn a_failure_is_told_to_whom_it_concerns() {
    let (simulation, host) = world(1);
    let inode = on_host(&simulation, host, || async {
        format(large_medium(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let mut files = opened(large_medium(), &options()).await;
        let inode = large_file(&mut files).await;
        files.close().await.unwrap();
        inode
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let key = Key::Extents(inode, LARGE as u64 / 2).encode();
    spoil(&disk, *way_to(&disk, &key).last().unwrap());
    on_host(&simulation, host, move || async move {
        let mut files = opened(large_medium(), &options()).await;
        let other = files.create(ROOT, b"other", NEW, NOW).await.unwrap().number;
        files.write(inode, LARGE as u64 / 2 + 5, b"x", NOW).await.unwrap();
        files.write(other, 0, b"y", NOW).await.unwrap();
        files.sync(other).await.unwrap();
        // Nor is it forgotten when somebody commits who does not speak for that file.
        files.commit_unasked().await.unwrap();
        assert_eq!(files.sync(inode).await.unwrap_err().errno(), errno::EIO);
        files.sync(inode).await.unwrap();
        // Whoever commits everything is told, once, whenever it was dropped.
        files.write(inode, LARGE as u64 / 2 + 5, b"x", NOW).await.unwrap();
        assert_eq!(files.commit_unasked().await.unwrap_err().errno(), errno::EIO);
        files.commit_unasked().await.unwrap();
        assert_eq!(files.commit().await.unwrap_err().errno(), errno::EIO);
        files.commit().await.unwrap();
        files.sync(inode).await.unwrap();
    })
    .unwrap();
}

#[test]
fn room_for_removals_is_not_used_up_by_renames() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let medium = sized_medium(2 << 20);
        format(medium.clone(), leases(), "a formatter", &small())
            .await
            .unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut files = FileSystem::open(medium.clone(), leases.clone(), &options())
            .await
            .unwrap();
        let mut name = b"name 0".to_vec();
        files.create(ROOT, &name, NEW, NOW).await.unwrap();
        let file = files.create(ROOT, b"file", NEW, NOW).await.unwrap().number;
        let mut at = 0;
        while files.write(file, at, &[1; 4000], NOW).await.is_ok() {
            at += 4000;
        }
        files.commit().await.unwrap();
        // It needs everything from here on, so nothing that is given back can be used.
        let reader = Reader::open(medium, leases, &ReaderOptions::default())
            .await
            .unwrap();
        let mut refused = false;
        for index in 1..400 {
            let to = format!("name {index}").into_bytes();
            let moved = files
                .rename((ROOT, &name), (ROOT, &to), RenameMode::Replace, NOW)
                .await;
            match moved {
                Ok(()) => {
                    name = to;
                    files.commit().await.unwrap();
                }
                Err(error) => {
                    assert!(error.is_no_space(), "{error}");
                    refused = true;
                    break;
                }
            }
        }
        assert!(refused, "a full volume takes no renames for ever");
        files.unlink(ROOT, b"file", NOW).await.unwrap();
        files.commit().await.unwrap();
        drop(reader);
    })
    .unwrap();
}
