//! Proved here: beside a reader that stays, neither changes that a full volume refuses nor compaction use up what is kept for removals; and once the
//! reader has gone, what it held is free without anything being opened anew.

use std::rc::Rc;

use super::files_test::options;
use super::support::{NEW, NOW, ROOT, on_host, sized_medium, small, world};
use crate::files::FileSystem;
use crate::lease::memory::LocalLeases;
use crate::{InodeNumber, Reader, ReaderOptions, VerifyOptions, format, verify};

const BYTES: u64 = 8 << 20;

fn name(index: u32) -> Vec<u8> {
    format!("file {index}").into_bytes()
}

/// A full volume: the file system, the files that have content, and a reader that stays where it is.
async fn full(leases: &Rc<LocalLeases>) -> (FileSystem, Vec<u32>, Reader) {
    let medium = sized_medium(BYTES);
    format(medium.clone(), super::support::leases(), "a formatter", &small())
        .await
        .unwrap();
    let opened = FileSystem::open(medium.clone(), leases.clone(), &options()).await;
    let mut files = opened.unwrap();
    let mut made = Vec::new();
    for index in 0.. {
        let Ok(inode) = files.create(ROOT, &name(index), NEW, NOW).await else {
            break;
        };
        let bytes = vec![index as u8; 3000 + index as usize % 2000];
        if files.write(inode.number, 0, &bytes, NOW).await.is_err() {
            files.unlink(ROOT, &name(index), NOW).await.unwrap();
            break;
        }
        made.push(index);
    }
    files.commit().await.unwrap();
    let reader = Reader::open(medium, leases.clone(), &ReaderOptions::default()).await;
    (files, made, reader.unwrap())
}

async fn remove(files: &mut FileSystem, index: u32) -> bool {
    files.unlink(ROOT, &name(index), NOW).await.is_ok() && files.commit().await.is_ok()
}

async fn assert_clean(leases: Rc<LocalLeases>) {
    let report = verify(&sized_medium(BYTES), leases, &VerifyOptions::default()).await;
    let report = report.unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

#[test]
fn what_is_refused_beside_a_reader_takes_nothing() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        let (mut files, made, reader) = full(&leases).await;
        // The last of them, side by side: what they give back waits for the reader.
        for index in made[made.len() - 400..].iter().rev() {
            files.unlink(ROOT, &name(*index), NOW).await.unwrap();
        }
        files.commit().await.unwrap();
        let kept: InodeNumber = files.lookup(ROOT, &name(made[0])).await.unwrap().number;
        let generation = files.generation();
        let mut refused = 0;
        for round in 0..300u64 {
            let written = files.write(kept, 10_000 + round, &[5; 200_000], NOW).await;
            if let Err(error) = written {
                assert!(error.is_no_space(), "{error}");
                refused += 1;
            }
        }
        assert!(refused > 250, "{refused} writes were refused");
        let commits = files.generation() - generation;
        assert!(commits < 20, "{commits} commits");
        assert!(remove(&mut files, made[1]).await, "a removal finds no room");
        reader.close().await.unwrap();
        files.write(kept, 10_000, &[5; 500_000], NOW).await.unwrap();
        files.sync(kept).await.unwrap();
        assert_clean(leases).await;
    })
    .unwrap();
}

#[test]
fn a_volume_that_a_reader_filled_goes_on_once_it_has_gone() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        let (mut files, made, reader) = full(&leases).await;
        // Far from each other, so that each takes index of its own.
        let mut removed = 0;
        let mut refused = 0;
        for index in (0..made.len()).step_by(7) {
            match remove(&mut files, made[index]).await {
                true => removed += 1,
                false => refused += 1,
            }
        }
        assert!(
            removed > 5 && refused > 20,
            "{removed} removed, {refused} refused"
        );
        reader.close().await.unwrap();
        let more = (0..made.len()).step_by(7).map(|index| made[index + 1]);
        for index in more.take(50) {
            assert!(remove(&mut files, index).await, "a removal finds no room");
        }
        assert_clean(leases).await;
    })
    .unwrap();
}

/// Whatever used it up: a commit asks by itself whether the readers are still there.
#[test]
fn a_commit_finds_what_a_reader_that_has_gone_held() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        let (mut files, _, reader) = full(&leases).await;
        let mut commits = 0;
        while let Ok(()) = files.make_durable_again().await {
            commits += 1;
            assert!(commits < 10_000, "a commit beside a reader takes no room");
        }
        reader.close().await.unwrap();
        files.make_durable_again().await.unwrap();
        assert_clean(leases).await;
    })
    .unwrap();
}

#[test]
fn compaction_beside_a_reader_leaves_room_for_removals() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        let (mut files, made, reader) = full(&leases).await;
        reader.close().await.unwrap();
        // Half of each segment dies, and some of them as a whole.
        for index in made.iter().filter(|index| **index % 2 == 0) {
            files.unlink(ROOT, &name(*index), NOW).await.unwrap();
        }
        for index in made[..200].iter().filter(|index| **index % 2 == 1) {
            files.unlink(ROOT, &name(*index), NOW).await.unwrap();
        }
        files.commit().await.unwrap();
        files.make_durable_again().await.unwrap();
        files.make_durable_again().await.unwrap();
        let reader = Reader::open(sized_medium(BYTES), leases.clone(), &ReaderOptions::default()).await;
        let reader = reader.unwrap();
        files.compact(|_| {}).await.unwrap();
        for index in (201..made.len()).step_by(201).filter(|index| index % 2 == 1) {
            assert!(
                remove(&mut files, made[index]).await,
                "removal {index} finds no room"
            );
        }
        reader.close().await.unwrap();
        files.compact(|_| {}).await.unwrap();
        assert_clean(leases).await;
    })
    .unwrap();
}
