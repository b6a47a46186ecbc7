//! Proved here: beside a snapshot by name a volume gets back what the snapshot has not, from writes that were made since, from
//! segments by compaction, and after the writer was opened anew; the snapshot stays byte for byte; nothing that it has is copied, so
//! compaction takes no room; what cannot be read of a snapshot is told, and then nothing of what it may have is used; one that was deleted counts until no tree
//! that may come back has it. That this survives power cuts is proved by `held_crash`, `files_crash` and `hour`.

use std::path::Path;
use std::rc::Rc;

use super::support::{DISK, ROOT, on_host, sized_medium, small, spoil, superblock_of, world, writer_options};
use crate::files::{FileSystem, NewInode};
use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::superblock::Superblock;
use crate::lease::memory::LocalLeases;
use crate::space::PlantedBug;
use crate::{
    Attributes, Medium, Reader, ReaderOptions, Target, Timestamp, VerifyOptions, WriteError, Writer, format,
    verify,
};

const BYTES: u64 = 8 << 20;
const NOW: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanoseconds: 3,
};

fn attributes() -> Attributes {
    small().root
}

fn name(kind: &str, index: u32) -> Vec<u8> {
    format!("{kind} {index}").into_bytes()
}

fn bytes(index: u32) -> Vec<u8> {
    vec![index as u8 | 1; 3000 + index as usize % 2000]
}

async fn fresh(leases: &Rc<LocalLeases>) -> Writer {
    let medium = sized_medium(BYTES);
    format(medium.clone(), leases.clone(), "a formatter", &small())
        .await
        .unwrap();
    open(&medium, leases).await
}

async fn open(medium: &Medium, leases: &Rc<LocalLeases>) -> Writer {
    let opened = Writer::open(medium.clone(), leases.clone(), &writer_options()).await;
    opened.unwrap()
}

async fn create(writer: &mut Writer, kind: &str, indices: impl Iterator<Item = u32>) {
    for index in indices {
        let (name, bytes) = (name(kind, index), bytes(index));
        let made = writer.create_file(ROOT, &name, &attributes(), &bytes).await;
        made.unwrap();
    }
}

async fn remove(writer: &mut Writer, kind: &str, indices: impl Iterator<Item = u32>) {
    for index in indices {
        writer.remove(ROOT, &name(kind, index)).await.unwrap();
    }
}

/// Commits until what the last one gave back may be used.
async fn settle(writer: &mut Writer) {
    writer.commit_always().await.unwrap();
    writer.commit_always().await.unwrap();
}

/// Whether files are there with their bytes, in the newest state or in a snapshot.
async fn assert_files(
    medium: &Medium,
    leases: &Rc<LocalLeases>,
    snapshot: Option<&[u8]>,
    kind: &str,
    indices: impl Iterator<Item = u32>,
) {
    let options = ReaderOptions {
        snapshot: snapshot.map(<[u8]>::to_vec),
        cache_bytes: 0,
        ..ReaderOptions::default()
    };
    let reader = Reader::open(medium.clone(), leases.clone(), &options)
        .await
        .unwrap();
    for index in indices {
        let name = name(kind, index);
        let found = reader.read_many(&[Target::Path(&name)]).await.remove(0);
        assert!(found.unwrap().to_vec() == bytes(index), "{kind} {index}");
    }
    reader.close().await.unwrap();
}

async fn assert_clean(medium: &Medium, leases: &Rc<LocalLeases>) {
    let report = verify(medium, leases.clone(), &VerifyOptions::default())
        .await
        .unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

#[test]
fn what_is_written_after_a_snapshot_comes_back_beside_it() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        let leases = Rc::new(LocalLeases::new());
        let mut writer = fresh(&leases).await;
        create(&mut writer, "kept", 0..400).await;
        writer.create_snapshot(b"s", NOW).await.unwrap();
        remove(&mut writer, "kept", (0..400).filter(|index| index % 2 > 0)).await;
        // Four times what the volume has.
        for round in 0..16 {
            create(&mut writer, "new", 0..500).await;
            writer.commit().await.unwrap();
            remove(&mut writer, "new", 0..500).await;
            settle(&mut writer).await;
            let held = writer.held_bytes().0;
            assert!(held < 600_000, "{held} bytes are held in round {round}");
        }
        writer.close().await.unwrap();
        assert_files(&medium, &leases, Some(b"s"), "kept", 0..400).await;
        assert_files(
            &medium,
            &leases,
            None,
            "kept",
            (0..400).filter(|index| index % 2 == 0),
        )
        .await;
        assert_clean(&medium, &leases).await;
    })
    .unwrap();
}

#[test]
fn compaction_gives_room_back_beside_snapshots_after_opening_anew() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        let leases = Rc::new(LocalLeases::new());
        let mut writer = fresh(&leases).await;
        create(&mut writer, "kept", 0..200).await;
        writer.create_snapshot(b"old", NOW).await.unwrap();
        create(&mut writer, "also", 0..200).await;
        writer.create_snapshot(b"newer", NOW).await.unwrap();
        create(&mut writer, "new", 0..900).await;
        writer.commit().await.unwrap();
        remove(&mut writer, "new", (0..900).filter(|index| index % 4 > 0)).await;
        remove(&mut writer, "kept", (0..200).filter(|index| index % 4 > 0)).await;
        settle(&mut writer).await;
        writer.close().await.unwrap();

        let mut writer = open(&medium, &leases).await;
        let (free, held) = (writer.free_bytes().0, writer.held_bytes().0);
        let progress = writer.compact(|_| {}).await.unwrap();
        let (free, held) = (
            writer.free_bytes().0.saturating_sub(free),
            held - writer.held_bytes().0,
        );
        // Some 4 KB each; a quarter stays, and gaps.
        assert!(free > 2_000_000, "{free} bytes came back, {progress:?}");
        assert!(held > 0, "what neither snapshot has was held before");
        let most = 225 * 5000;
        assert!(
            (1..most).contains(&progress.moved.0),
            "files of snapshots were moved: {progress:?}"
        );
        // The room is room: it is written over.
        create(&mut writer, "more", 0..free as u32 / 8000).await;
        settle(&mut writer).await;
        writer.close().await.unwrap();
        for (snapshot, kind) in [(&b"old"[..], "kept"), (b"newer", "kept"), (b"newer", "also")] {
            assert_files(&medium, &leases, Some(snapshot), kind, 0..200).await;
        }
        assert_files(
            &medium,
            &leases,
            None,
            "new",
            (0..900).filter(|index| index % 4 == 0),
        )
        .await;
        assert_clean(&medium, &leases).await;
    })
    .unwrap();
}

#[test]
fn nothing_that_a_snapshot_has_is_copied() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        let leases = Rc::new(LocalLeases::new());
        let mut writer = fresh(&leases).await;
        create(&mut writer, "kept", 0..800).await;
        writer.create_snapshot(b"s", NOW).await.unwrap();
        remove(&mut writer, "kept", (0..800).filter(|index| index % 4 > 0)).await;
        settle(&mut writer).await;
        assert!(writer.dead_bytes().0 > 2_000_000);
        for again in [false, true] {
            if again {
                writer.close().await.unwrap();
                writer = open(&medium, &leases).await;
                settle(&mut writer).await;
            }
            let free = writer.free_bytes().0;
            let progress = writer.compact(|_| {}).await.unwrap();
            assert_eq!(progress.moved.0, 0);
            assert!(writer.free_bytes().0 >= free, "compaction took room");
        }
        writer.delete_snapshot(b"s").await.unwrap();
        let progress = writer.compact(|_| {}).await.unwrap();
        assert!(progress.moved.0 > 0, "without it they can be moved");
        writer.close().await.unwrap();
        let left = (0..800).filter(|index| index % 4 == 0);
        assert_files(&medium, &leases, None, "kept", left).await;
        assert_clean(&medium, &leases).await;
    })
    .unwrap();
}

#[test]
fn what_only_a_deleted_snapshot_had_comes_back_beside_another() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        let leases = Rc::new(LocalLeases::new());
        let mut writer = fresh(&leases).await;
        create(&mut writer, "kept", 0..100).await;
        writer.create_snapshot(b"old", NOW).await.unwrap();
        create(&mut writer, "gone", 0..800).await;
        writer.create_snapshot(b"newer", NOW).await.unwrap();
        remove(&mut writer, "gone", 0..800).await;
        settle(&mut writer).await;
        let free = writer.free_bytes().0;
        writer.compact(|_| {}).await.unwrap();
        assert!(writer.free_bytes().0 < free + 200_000);
        writer.delete_snapshot(b"newer").await.unwrap();
        writer.compact(|_| {}).await.unwrap();
        let came = writer.free_bytes().0 - free;
        assert!(came > 2_500_000, "{came} bytes came back");
        writer.close().await.unwrap();
        assert_files(&medium, &leases, Some(b"old"), "kept", 0..100).await;
        assert_clean(&medium, &leases).await;
    })
    .unwrap();
}

/// A program writes until it is refused, again and again: the file system makes room before it refuses anything.
#[test]
fn a_write_is_not_refused_while_snapshots_leave_room() {
    let (simulation, host) = world(5);
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        let leases = Rc::new(LocalLeases::new());
        let mut writer = fresh(&leases).await;
        create(&mut writer, "kept", 0..300).await;
        writer.create_snapshot(b"s", NOW).await.unwrap();
        writer.close().await.unwrap();
        let new = NewInode {
            mode: 0o644,
            uid: 1,
            gid: 2,
        };
        let mut written = 0;
        for round in 0..4 {
            let options = super::files_test::options();
            let mut files = FileSystem::open(medium.clone(), leases.clone(), &options)
                .await
                .unwrap();
            let mut count = 0;
            loop {
                let made = files.create(ROOT, &name("new", count), new, NOW).await;
                let done = match made {
                    Ok(inode) => files.write(inode.number, 0, &bytes(count), NOW).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = done {
                    assert!(error.is_no_space(), "{error}");
                    break;
                }
                count += 1;
            }
            files.commit().await.unwrap();
            assert!(
                count > 900,
                "{count} files in round {round}, after {written} before"
            );
            written += count;
            for index in 0..count {
                files.unlink(ROOT, &name("new", index), NOW).await.unwrap();
            }
            // The one that was refused may have its name.
            let _ = files.unlink(ROOT, &name("new", count), NOW).await;
            files.commit().await.unwrap();
            files.close().await.unwrap();
        }
        assert_files(&medium, &leases, Some(b"s"), "kept", 0..300).await;
        assert_clean(&medium, &leases).await;
    })
    .unwrap();
}

#[test]
fn commits_find_out_by_themselves_what_snapshots_leave() {
    let (simulation, host) = world(6);
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        let leases = Rc::new(LocalLeases::new());
        let mut writer = fresh(&leases).await;
        create(&mut writer, "kept", 0..900).await;
        writer.create_snapshot(b"s", NOW).await.unwrap();
        create(&mut writer, "new", 0..850).await;
        settle(&mut writer).await;
        writer.close().await.unwrap();
        let mut writer = open(&medium, &leases).await;
        remove(&mut writer, "new", 0..850).await;
        writer.commit().await.unwrap();
        let free = writer.free_bytes().0;
        assert!(
            free < BYTES / 4,
            "{free} bytes are free: too much to test anything"
        );
        for _ in 0..6 {
            writer.set_attributes(ROOT, &attributes()).await.unwrap();
            writer.commit().await.unwrap();
        }
        let came = writer.free_bytes().0.saturating_sub(free);
        assert!(came > 2_000_000, "{came} bytes came back");
        writer.close().await.unwrap();
        assert_files(&medium, &leases, Some(b"s"), "kept", 0..900).await;
        assert_clean(&medium, &leases).await;
    })
    .unwrap();
}

#[test]
fn a_snapshot_that_cannot_be_read_is_told_and_keeps_everything() {
    let (simulation, host) = world(7);
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        let mut writer = fresh(&leases).await;
        create(&mut writer, "kept", 0..300).await;
        writer.commit().await.unwrap();
        writer.close().await.unwrap();
    })
    .unwrap();
    let root = superblock_of(&disk).root;
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        let mut writer = open(&sized_medium(BYTES), &leases).await;
        writer.create_snapshot(b"s", NOW).await.unwrap();
        create(&mut writer, "new", 0..300).await;
        settle(&mut writer).await;
        remove(&mut writer, "new", 0..300).await;
        remove(&mut writer, "kept", 0..300).await;
        writer.commit().await.unwrap();
        writer.close().await.unwrap();
    })
    .unwrap();
    spoil(&disk, root);
    on_host(&simulation, host, move || async move {
        let leases = Rc::new(LocalLeases::new());
        let mut writer = open(&sized_medium(BYTES), &leases).await;
        settle(&mut writer).await;
        let free = writer.free_bytes().0;
        let error = writer.compact(|_| {}).await.unwrap_err();
        assert!(
            matches!(&error, WriteError::Tree(error) if error.to_string().starts_with(&format!("page {}", root.page))),
            "{error}"
        );
        writer.set_attributes(ROOT, &attributes()).await.unwrap();
        settle(&mut writer).await;
        let now = writer.free_bytes().0;
        assert!(now <= free, "{now} bytes are free, and {free} were");
        // It goes on, and without the snapshot all comes back.
        create(&mut writer, "more", 0..10).await;
        writer.delete_snapshot(b"s").await.unwrap();
        writer.compact(|_| {}).await.unwrap();
        assert!(writer.free_bytes().0 > free + 2_000_000);
        writer.close().await.unwrap();
        assert_clean(&sized_medium(BYTES), &leases).await;
    })
    .unwrap();
}

/// The newest superblock is lost after a writer that saw a snapshot deleted has written without a commit.
fn a_lost_deletion(bug: PlantedBug) -> bool {
    let (simulation, host) = world(8);
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        let mut writer = fresh(&leases).await;
        create(&mut writer, "kept", 0..20).await;
        writer.create_snapshot(b"other", NOW).await.unwrap();
        create(&mut writer, "gone", 0..700).await;
        let made = writer.create_snapshot(b"s", NOW).await.unwrap();
        remove(&mut writer, "gone", 0..700).await;
        settle(&mut writer).await;
        // The deletion, cut off before its second commit.
        writer.take(&made.key().encode()).await.unwrap();
        writer.commit_always().await.unwrap();
    })
    .unwrap();
    on_host(&simulation, host, move || async move {
        let leases = Rc::new(LocalLeases::new());
        let mut writer = open(&sized_medium(BYTES), &leases).await;
        writer.plant(bug);
        writer.learn_held_along(u64::MAX).await;
        writer.release_space().await;
        create(&mut writer, "over", 0..600).await;
        writer.take_back_packed().await.unwrap();
    })
    .unwrap();
    let newest = superblock_of(&disk).generation;
    for address in SUPERBLOCK_ADDRESSES {
        let found = Superblock::decode(&disk.read(address, 4096), address);
        if found.is_ok_and(|found| found.generation == newest) {
            disk.damage(address + 100, &[0xa5; 8]);
        }
    }
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        let report = verify(&sized_medium(BYTES), leases, &VerifyOptions::default()).await;
        report.unwrap().is_clean()
    })
    .unwrap()
}

#[test]
fn a_deleted_snapshot_counts_while_it_may_come_back() {
    assert!(a_lost_deletion(PlantedBug::None));
}

#[test]
fn a_deleted_snapshot_that_counts_no_more_is_found() {
    assert!(!a_lost_deletion(PlantedBug::DeletedNotHeld));
}

#[test]
fn commits_beside_a_snapshot_are_not_remembered_for_ever() {
    let (simulation, host) = world(9);
    on_host(&simulation, host, || async {
        let leases = Rc::new(LocalLeases::new());
        // With so much room, nothing has to be found out for want of it.
        let medium = sized_medium(512 << 20);
        format(medium.clone(), leases.clone(), "a formatter", &small())
            .await
            .unwrap();
        let mut writer = open(&medium, &leases).await;
        create(&mut writer, "kept", 0..20).await;
        writer.create_snapshot(b"s", NOW).await.unwrap();
        writer.close().await.unwrap();
        // Whoever opens it does not know what the snapshot has.
        let mut writer = open(&medium, &leases).await;
        let mut most = 0;
        for _ in 0..4500 {
            create(&mut writer, "new", 0..1).await;
            remove(&mut writer, "new", 0..1).await;
            writer.commit().await.unwrap();
            most = most.max(writer.space.waiting_commits());
        }
        assert!(most > 4000, "{most}");
        let waiting = writer.space.waiting_commits();
        assert!(waiting < 1000, "{waiting} commits are remembered");
        assert_clean(&medium, &leases).await;
        assert_files(&medium, &leases, Some(b"s"), "kept", 0..20).await;
    })
    .unwrap();
}
