//! Proves: a full device loses nothing and deleted space comes back; damage to one blob is named and leaves the others
//! usable; foreign contents and newer versions are told apart and kept; requests to allocated ranges complete inside
//! `submit`; attributes keep their bounds; a failed sync stops changes.

mod golden;
mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bdev::memory::MemoryDevice;
use bdev::{BlockDevice, Channel, ChannelExt, Data, IoError, Operation, request};
use blobstore::{ATTRIBUTES_BYTES_MAX, BlobId, Blobstore, Error, FormatError, FormatOptions, OpenError};
use foundation::{BlockCount, Lba};
use reactor::{BufferPool, spawn, time};
use support::{DiskChannel, PAGE, World, sector_tags, tagged};

const DISK_BYTES: u64 = 1 << 20;

fn options() -> FormatOptions {
    FormatOptions {
        cluster_bytes: 4 * PAGE as u32,
        blob_pages_max: Some(24),
        ..FormatOptions::default()
    }
}

fn disk() -> Rc<dyn Channel> {
    DiskChannel::open(DISK_BYTES, 4096)
}

async fn tag_at(blob: &blobstore::Blob, page: u64) -> Result<u64, IoError> {
    let buffer = BufferPool::current().try_allocate(PAGE).unwrap();
    let (status, buffer) = blob.read(page, buffer).await;
    status.map(|()| sector_tags(&buffer)[0])
}

#[test]
fn a_full_device_loses_nothing_and_deleted_space_comes_back() {
    World::new(1).process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let (kept, full) = (store.create(4).unwrap(), store.create(4000).unwrap());
        kept.write(0, tagged(&[7])).await.unwrap();
        let free = u64::from(store.describe().free_clusters);
        for cluster in 0..free {
            full.write(cluster * 4, tagged(&[100 + cluster])).await.unwrap();
        }
        assert_eq!(full.write(free * 4, tagged(&[1])).await, Err(IoError::NoSpace));
        store.sync().await.unwrap();
        for cluster in 0..free {
            assert_eq!(tag_at(&full, cluster * 4).await, Ok(100 + cluster));
        }
        store.delete(full.id()).await.unwrap();
        assert_eq!(full.write(0, tagged(&[1])).await, Err(IoError::Gone));
        // Without a sync by us: a first write makes the deletion durable when it needs the space.
        let again = store.create(4000).unwrap();
        for cluster in 0..free {
            again.write(cluster * 4 + 1, tagged(&[1])).await.unwrap();
            assert_eq!(tag_at(&again, cluster * 4).await, Ok(0));
        }
        assert_eq!(tag_at(&kept, 0).await, Ok(7));
        store.check().unwrap();
    });
}

#[test]
fn a_damaged_page_is_named_and_the_other_blobs_go_on() {
    let world = World::new(2);
    world.process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        for tag in [1, 2, 3] {
            let blob = store.create(40).unwrap();
            blob.write(0, tagged(&[tag])).await.unwrap();
            blob.set_attribute("who", &[tag as u8]).unwrap();
        }
        store.sync().await.unwrap();
    });
    let page = find_root_page(&world, 2);
    world.disk().damage(page * PAGE as u64 + 130, b"x");
    world.process(move || async move {
        let store = Blobstore::open(disk()).await.unwrap();
        assert_eq!(store.blobs(), [BlobId(1), BlobId(3)]);
        let text = store.blob(BlobId(2)).err().unwrap().to_string();
        let start = format!(
            "blob 2 cannot be used: its metadata page 0 (device page {page}) is damaged: its checksum"
        );
        assert!(text.starts_with(&start), "{text}");
        assert!(
            text.ends_with("delete the blob and restore it from another copy"),
            "{text}"
        );
        assert!(store.describe().quarantined_clusters > 0);
        let (first, third) = (store.blob(BlobId(1)).unwrap(), store.blob(BlobId(3)).unwrap());
        assert_eq!((tag_at(&first, 0).await, tag_at(&third, 0).await), (Ok(1), Ok(3)));
        // No new cluster may come from what the damaged blob may own.
        for cluster in 1..10 {
            let _ = first.write(cluster * 4, tagged(&[9])).await;
        }
        store.check().unwrap();
        store.delete(BlobId(2)).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(store.describe().quarantined_clusters, 0);
        drop(store);
        let store = Blobstore::open(disk()).await.unwrap();
        assert_eq!(store.describe().damaged, Vec::new());
        assert_eq!(store.blob(BlobId(2)).err(), Some(Error::NoSuchBlob(BlobId(2))));
        store.check().unwrap();
    });
}

/// The page on the disk that holds the newest root of a blob: offsets as in the format's tables.
fn find_root_page(world: &World, blob: u64) -> u64 {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    (2..54)
        .map(|page| (page, world.disk().read(page * PAGE as u64, PAGE)))
        .filter(|(_, bytes)| bytes[6] == 3 && number(&bytes[48..56]) == blob)
        .max_by_key(|(_, bytes)| number(&bytes[24..32]))
        .unwrap()
        .0
}

#[test]
fn a_damaged_superblock_or_table_has_a_second_copy() {
    let world = World::new(3);
    world.process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        store.create(40).unwrap().write(5, tagged(&[5])).await.unwrap();
        store.sync().await.unwrap();
    });
    let superblock = world.disk().read(0, PAGE);
    let table = u32::from_le_bytes(superblock[256..260].try_into().unwrap());
    world.disk().damage(100, b"damage");
    world
        .disk()
        .damage(u64::from(table) * PAGE as u64 + 100, b"damage");
    for expected in [2, 0] {
        world.process(move || async move {
            let store = Blobstore::open(disk()).await.unwrap();
            assert_eq!(store.describe().bad_copies, expected);
            assert_eq!(tag_at(&store.blob(BlobId(1)).unwrap(), 5).await, Ok(5));
            store.sync().await.unwrap();
        });
    }
    world.disk().damage(10, b"damage");
    world.disk().damage(PAGE as u64 + 10, b"damage");
    world.process(|| async {
        let error = Blobstore::open(disk()).await.err().unwrap();
        assert!(matches!(error, OpenError::Superblocks(_)), "{error}");
    });
}

#[test]
fn what_is_on_a_device_is_said_and_kept() {
    let world = World::new(4);
    world.process(|| async {
        assert!(matches!(
            Blobstore::open(disk()).await.err(),
            Some(OpenError::Blank)
        ));
    });
    world.disk().damage(1080, b"another file system");
    world.process(|| async {
        let error = Blobstore::open(disk()).await.err().unwrap().to_string();
        assert!(error.contains("neither zeros nor a Redhare blobstore"), "{error}");
        let error = Blobstore::format(disk(), &options()).await.err().unwrap();
        assert!(matches!(error, FormatError::Foreign { page: 0 }), "{error}");
    });
    assert_eq!(&world.disk().read(1080, 19), b"another file system");
    world.process(|| async {
        let force = FormatOptions {
            force: true,
            ..options()
        };
        drop(Blobstore::format(disk(), &force).await.unwrap());
        let error = Blobstore::format(disk(), &options()).await.err().unwrap();
        assert!(matches!(error, FormatError::InUse { version: 1 }), "{error}");
    });
    // A version of the future, its checksum right.
    for address in 0..2 {
        let mut page = world.disk().read(address * PAGE as u64, PAGE);
        page[4] = 9;
        page[12..16].fill(0);
        let crc = foundation::checksum::crc32c(&page);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
        world.disk().damage(address * PAGE as u64, &page);
    }
    world.process(|| async {
        let error = Blobstore::open(disk()).await.err().unwrap().to_string();
        assert!(
            error.contains("format version 9, this program knows up to 1"),
            "{error}"
        );
    });
}

#[test]
fn requests_to_allocated_ranges_complete_inside_submit() {
    World::new(5).process(|| async {
        let device = MemoryDevice::new(512, BlockCount(DISK_BYTES / 512)).unwrap();
        let store = Blobstore::format(device.open_channel().unwrap(), &options())
            .await
            .unwrap();
        let blob = store.create(16).unwrap();
        let channel = blob.channel();
        blob.write(2, tagged(&[1, 2, 3, 4])).await.unwrap();
        store.sync().await.unwrap();
        let at_once = |operation, page, data| {
            let (request, mut pending) = request(operation, Lba(page), BlockCount(1), data);
            channel.submit(request);
            pending.try_take().map(|completion| completion.status)
        };
        let write = Operation::Write { fua: true };
        assert_eq!(at_once(write, 3, Data::From(tagged(&[9]))), Some(Ok(())));
        let buffer = || Data::Into(BufferPool::current().try_allocate(PAGE).unwrap());
        assert_eq!(at_once(Operation::Read, 3, buffer()), Some(Ok(())));
        assert_eq!(at_once(Operation::Read, 12, buffer()), Some(Ok(())));
        assert_eq!(
            at_once(Operation::Compare, 3, Data::From(tagged(&[9]))),
            Some(Ok(()))
        );
        assert_eq!(
            at_once(Operation::Compare, 3, Data::From(tagged(&[8]))),
            Some(Err(IoError::Mismatch))
        );
        assert_eq!(
            at_once(Operation::Read, 16, buffer()),
            Some(Err(IoError::OutOfRange))
        );
        assert_eq!(
            at_once(Operation::Read, 1, Data::None),
            Some(Err(IoError::Unaligned))
        );
        assert_eq!(at_once(write, 12, Data::From(tagged(&[9]))), None);
        assert_eq!((tag_at(&blob, 3).await, tag_at(&blob, 5).await), (Ok(9), Ok(4)));
    });
}

#[test]
fn a_resize_waits_for_writes_and_holds_back_later_ones() {
    World::new(6).process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(8).unwrap();
        blob.write(0, tagged(&[1; 8])).await.unwrap();
        let (writer, ended) = (blob.clone(), Rc::new(Cell::new(false)));
        let flag = ended.clone();
        let early = reactor::spawn(async move {
            writer.write(6, tagged(&[2])).await.unwrap();
            flag.set(true);
        });
        reactor::yield_now().await;
        let before = blob
            .channel()
            .read(Lba(0), BufferPool::current().try_allocate(PAGE).unwrap())
            .await;
        assert_eq!(before.0, Ok(()));
        early.await;
        blob.resize(5).await.unwrap();
        assert!(ended.get());
        assert_eq!(blob.write(6, tagged(&[3])).await, Err(IoError::OutOfRange));
        blob.resize(8).await.unwrap();
        assert_eq!((tag_at(&blob, 4).await, tag_at(&blob, 6).await), (Ok(1), Ok(0)));
        assert_eq!(store.describe().blobs[0].clusters.len(), 2);
    });
}

#[test]
fn attributes_keep_their_bounds() {
    World::new(7).process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(0).unwrap();
        assert!(matches!(
            blob.set_attribute("", b""),
            Err(Error::AttributeName { .. })
        ));
        assert!(matches!(
            blob.set_attribute(&"n".repeat(65), b""),
            Err(Error::AttributeName { .. })
        ));
        assert!(matches!(
            blob.set_attribute("n", &[0; 4097]),
            Err(Error::AttributeValue { .. })
        ));
        for name in ["a", "b", "c", "d"] {
            blob.set_attribute(name, &[name.as_bytes()[0]; 4096]).unwrap();
        }
        let rest = ATTRIBUTES_BYTES_MAX - 4 * (4096 + 5) - 5;
        let full = blob.set_attribute("e", &vec![1; rest + 1]).unwrap_err();
        assert!(full.to_string().contains("the most are 18048"), "{full}");
        blob.set_attribute("e", &vec![1; rest]).unwrap();
        store.sync().await.unwrap();
        drop((blob, store));
        let store = Blobstore::open(disk()).await.unwrap();
        let blob = store.blob(BlobId(1)).unwrap();
        assert_eq!(blob.attribute_names(), ["a", "b", "c", "d", "e"]);
        assert_eq!(blob.attribute("d"), Some(vec![b'd'; 4096]));
        assert_eq!(blob.attribute("e"), Some(vec![1; rest]));
        assert_eq!(blob.remove_attribute("a"), Ok(true));
        assert_eq!(blob.remove_attribute("a"), Ok(false));
        assert_eq!(blob.attribute("a"), None);
    });
}

#[test]
fn a_failed_sync_stops_changes_but_not_reads() {
    let world = World::new(8);
    let disk_handle = world.disk();
    world.process(|| async move {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(8).unwrap();
        blob.write(0, tagged(&[5])).await.unwrap();
        disk_handle.fail_syncs(true);
        assert_eq!(store.sync().await, Err(Error::Stopped(IoError::Media)));
        disk_handle.fail_syncs(false);
        assert_eq!(store.sync().await, Err(Error::Stopped(IoError::Media)));
        assert_eq!(store.create(1).err(), Some(Error::Stopped(IoError::Media)));
        assert_eq!(tag_at(&blob, 0).await, Ok(5));
    });
}

#[test]
fn after_a_failed_forced_write_nothing_is_called_durable() {
    let world = World::new(8);
    let disk_handle = world.disk();
    world.process(|| async move {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(8).unwrap();
        blob.write(0, tagged(&[5])).await.unwrap();
        store.sync().await.unwrap();
        let other = store.create(8).unwrap();
        other.write(0, tagged(&[6])).await.unwrap();
        store.sync().await.unwrap();
        other.write(0, tagged(&[7])).await.unwrap();
        disk_handle.fail_syncs(true);
        let (request, pending) = bdev::request(
            bdev::Operation::Write { fua: true },
            foundation::Lba(0),
            foundation::BlockCount(1),
            bdev::Data::From(tagged(&[5])),
        );
        bdev::Channel::submit(&*blob.channel(), request);
        assert_eq!(pending.await.status, Err(IoError::Media));
        disk_handle.fail_syncs(false);
        // The other blob's write may be what could not be made durable.
        assert_eq!(other.flush().await, Err(Error::Stopped(IoError::Media)));
        assert_eq!(store.create(1).err(), Some(Error::Stopped(IoError::Media)));
        assert_eq!(tag_at(&blob, 0).await, Ok(5));
    });
}

/// What a sparse file has no room for was not written; that is no flush that failed.
#[test]
fn a_forced_write_without_room_stops_nothing() {
    let world = World::new(11);
    let disk_handle = world.disk();
    world.process(|| async move {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(8).unwrap();
        blob.write(0, tagged(&[5])).await.unwrap();
        store.sync().await.unwrap();
        let forced = async |tag| {
            let (write, data) = (Operation::Write { fua: true }, Data::From(tagged(&[tag])));
            let (request, pending) = request(write, Lba(0), BlockCount(1), data);
            Channel::submit(&*blob.channel(), request);
            pending.await.status
        };
        disk_handle.set_limit_bytes(0);
        assert_eq!(forced(6).await, Err(IoError::NoSpace));
        disk_handle.set_limit_bytes(u64::MAX);
        assert_eq!(tag_at(&blob, 0).await, Ok(5));
        assert_eq!(forced(7).await, Ok(()));
        store.sync().await.unwrap();
        assert_eq!(tag_at(&blob, 0).await, Ok(7));
    });
}

#[test]
fn a_page_is_named_once_cluster_and_size_are_durable_and_it_is_no_snapshots() {
    World::new(9).process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(2).unwrap();
        assert!(!blob.is_named(0, 1), "nothing is there");
        blob.write(0, tagged(&[1])).await.unwrap();
        assert!(!blob.is_named(0, 1), "no commit has named it");
        store.sync().await.unwrap();
        assert!(blob.is_named(0, 2) && !blob.is_named(0, 3));
        blob.resize(4).await.unwrap();
        assert!(
            !blob.is_named(2, 1),
            "after a crash the blob would be as short as before"
        );
        let (write, data) = (Operation::Write { fua: true }, Data::From(tagged(&[2])));
        let (request, pending) = request(write, Lba(2), BlockCount(1), data);
        Channel::submit(&*blob.channel(), request);
        pending.await.status.unwrap();
        assert!(blob.is_named(0, 4), "a forced write has made the size durable");
        let other = store.create(8).unwrap();
        other.write(0, tagged(&[3])).await.unwrap();
        assert!(blob.is_named(0, 4), "another blob's clusters do not matter");
        let snapshot = store.snapshot(blob.id()).await.unwrap();
        store.sync().await.unwrap();
        assert!(!blob.is_named(0, 1), "it is the snapshot's");
        store.delete(snapshot.id()).await.unwrap();
        assert!(
            blob.is_named(0, 4),
            "the deletion is durable, and it is the blob's again"
        );
    });
}

#[test]
fn what_has_changed_is_committed_soon_if_that_is_asked_for_and_then_nothing_more() {
    let world = World::new(10);
    world.process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        store.commit_within(Duration::from_secs(1));
        let blob = store.create(2).unwrap();
        blob.write(0, tagged(&[7])).await.unwrap();
        assert!(!blob.is_named(0, 1), "it is not committed at once");
        time::sleep(Duration::from_millis(1_100)).await;
        assert!(blob.is_named(0, 1));
    });
    let device = world.disk();
    world.process(|| async move {
        let store = Blobstore::open(disk()).await.unwrap();
        store.commit_within(Duration::from_secs(1));
        let blob = store.blob(store.blobs()[0]).unwrap();
        assert_eq!(tag_at(&blob, 0).await, Ok(7));
        time::sleep(Duration::from_secs(10)).await;
        let before = device.operations();
        blob.write(0, tagged(&[8])).await.unwrap();
        let one = device.operations() - before;
        time::sleep(Duration::from_secs(10)).await;
        assert_eq!(
            device.operations(),
            before + one,
            "a write in place needs no commit"
        );
    });
}

/// Fills the clusters from `first` on, one page in each.
async fn fill(blob: &blobstore::Blob, clusters: std::ops::Range<u64>, tag: u64) {
    for cluster in clusters {
        blob.write(cluster * 4 + 1, tagged(&[tag + cluster]))
            .await
            .unwrap();
    }
}

#[test]
fn clusters_that_several_blobs_show_are_counted_once() {
    World::new(21).process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let free = || store.describe().free_clusters;
        let held = || store.held_by_snapshots().0 / store.describe().cluster_size.0;
        let all = free();
        let blob = store.create(40).unwrap();
        fill(&blob, 0..10, 100).await;
        assert_eq!((free(), held()), (all - 10, 0));
        let old = store.snapshot(blob.id()).await.unwrap();
        assert_eq!(held(), 10, "also what the blob shows still");
        let (one, other) = (
            store.clone_snapshot(old.id()).unwrap(),
            store.clone_snapshot(old.id()).unwrap(),
        );
        assert_eq!(free(), all - 10, "neither snapshot nor clone takes space");
        fill(&blob, 0..3, 200).await;
        fill(&one, 3..4, 300).await;
        assert_eq!((free(), held()), (all - 14, 10));
        for (blob, tags) in [
            (&old, [100, 103]),
            (&blob, [200, 103]),
            (&one, [100, 303]),
            (&other, [100, 103]),
        ] {
            assert_eq!(tag_at(blob, 1).await, Ok(tags[0]));
            assert_eq!(tag_at(blob, 13).await, Ok(tags[1]));
        }
        assert_eq!(old.write(0, tagged(&[1])).await, Err(IoError::ReadOnly));
        let refused = store.delete(old.id()).await;
        assert!(
            matches!(refused, Err(Error::HasChildren { children: 3, .. })),
            "{refused:?}"
        );
        assert_eq!(store.given_back_by(old.id()), Ok(0));

        // Flattened, the clone has its nine others as well; then only the blob itself is made of the snapshot.
        assert_eq!(one.flatten().await, Ok(9));
        assert_eq!((one.parent(), free()), (None, all - 23));
        assert_eq!(store.given_back_by(other.id()), Ok(0));
        store.delete(other.id()).await.unwrap();
        // What the blob has overwritten nobody shows any more.
        assert_eq!(store.given_back_by(old.id()), Ok(3));
        store.delete(old.id()).await.unwrap();
        assert_eq!((blob.parent(), free(), held()), (None, all - 20, 0));
        assert_eq!(tag_at(&blob, 13).await, Ok(103));
        assert_eq!(tag_at(&one, 1).await, Ok(100));
        store.check().unwrap();
    });
}

#[test]
fn a_snapshot_of_a_clone_parts_from_what_the_clone_was_made_of() {
    World::new(29).process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let free = || store.describe().free_clusters;
        let all = free();
        let blob = store.create(40).unwrap();
        fill(&blob, 0..10, 100).await;
        let old = store.snapshot(blob.id()).await.unwrap();
        let clone = store.clone_snapshot(old.id()).unwrap();
        fill(&clone, 0..2, 200).await;
        let cut = store.snapshot(clone.id()).await.unwrap();
        fill(&clone, 1..3, 300).await;
        let refused = store.delete(old.id()).await;
        assert!(
            matches!(refused, Err(Error::HasChildren { children: 2, .. })),
            "{refused:?}"
        );
        let pauses = Cell::new(0);
        let pause = || {
            pauses.set(pauses.get() + 1);
            time::sleep(Duration::from_millis(1))
        };
        // What the clone reads meanwhile is what it was, wherever that lies by now.
        let reading = {
            let clone = store.blob(clone.id()).unwrap();
            spawn(async move {
                for (cluster, tag) in (0..10).zip((100..).take(10)) {
                    let tag = [200, 301, 302].get(cluster).copied().unwrap_or(tag);
                    assert_eq!(tag_at(&clone, 4 * cluster as u64 + 1).await, Ok(tag));
                }
            })
        };
        assert_eq!(cut.flatten_with_pauses(pause).await, Ok(8));
        reading.await.unwrap();
        assert_eq!(pauses.get(), 8);
        assert_eq!((cut.parent(), clone.parent()), (None, Some(cut.id())));
        assert_eq!(free(), all - 22);
        store.delete(old.id()).await.unwrap();
        for (blob, tags) in [
            (&cut, [200, 201, 102]),
            (&clone, [200, 301, 302]),
            (&blob, [100, 101, 102]),
        ] {
            for (cluster, tag) in (0..).zip(tags) {
                assert_eq!(tag_at(blob, 4 * cluster + 1).await, Ok(tag));
            }
            assert_eq!(tag_at(blob, 37).await, Ok(109));
        }
        assert_eq!((blob.parent(), free()), (None, all - 22));
        store.check().unwrap();
    });
}

#[test]
fn what_is_deallocated_piece_by_piece_is_given_back_with_the_last_piece() {
    World::new(23).process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(16).unwrap();
        let free = || store.describe().free_clusters;
        let before = free();
        let tags: Vec<u64> = (1..=12).collect();
        blob.write(0, tagged(&tags)).await.unwrap();
        assert_eq!(free(), before - 3);
        let mut expected = tags;
        let steps = [
            // One cluster page by page; parts of two; the rest of each.
            (1, 1, 3),
            (0, 1, 3),
            (2, 1, 3),
            (3, 1, 2),
            (6, 3, 2),
            (4, 2, 1),
            (9, 3, 0),
        ];
        for (first, pages, left) in steps {
            let range = (Lba(first), BlockCount(pages));
            blob.channel().write_zeroes(range.0, range.1).await.unwrap();
            expected[first as usize..(first + pages) as usize].fill(0);
            assert_eq!(free(), before - left, "after {pages} pages from {first} on");
            for (page, tag) in (0..).zip(&expected) {
                assert_eq!(tag_at(&blob, page).await, Ok(*tag));
            }
        }
        // Both ends at once: of the outer clusters a part is zeros already.
        blob.write(0, tagged(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]))
            .await
            .unwrap();
        let range = (Lba(1), BlockCount(10));
        blob.channel().write_zeroes(range.0, range.1).await.unwrap();
        assert_eq!(free(), before);
        // Elsewhere in it is something: it stays.
        blob.write(0, tagged(&[1, 2, 0, 0])).await.unwrap();
        blob.channel().write_zeroes(Lba(1), BlockCount(1)).await.unwrap();
        assert_eq!((free(), tag_at(&blob, 0).await), (before - 1, Ok(1)));
        store.sync().await.unwrap();
        store.check().unwrap();
    });
}

#[test]
fn a_line_of_snapshots_keeps_each_moment_and_survives_a_restart() {
    let world = World::new(22);
    let made = world.process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(16).unwrap();
        let mut snapshots = Vec::new();
        for moment in 0..4 {
            blob.write(moment, tagged(&[10 + moment])).await.unwrap();
            if moment == 2 {
                blob.channel().write_zeroes(Lba(0), BlockCount(16)).await.unwrap();
            }
            let snapshot = store.snapshot(blob.id()).await.unwrap();
            snapshot.set_attribute("moment", &[moment as u8]).unwrap();
            snapshots.push(snapshot.id());
        }
        store.sync().await.unwrap();
        snapshots
    });
    let snapshots = made.expect("the power stays on");
    world.process(move || async move {
        let store = Blobstore::open(disk()).await.unwrap();
        let pages = [[10, 0, 0, 0], [10, 11, 0, 0], [0, 0, 0, 0], [0, 0, 0, 13]];
        for (at, id) in snapshots.iter().enumerate() {
            let snapshot = store.blob(*id).unwrap();
            assert!(snapshot.is_snapshot());
            assert_eq!(snapshot.attribute("moment"), Some(vec![at as u8]));
            for page in 0..4 {
                assert_eq!(tag_at(&snapshot, page).await, Ok(pages[at][page as usize]));
            }
        }
        // One from the middle: its neighbours stay what they are.
        store.delete(snapshots[1]).await.unwrap();
        let (first, third) = (
            store.blob(snapshots[0]).unwrap(),
            store.blob(snapshots[2]).unwrap(),
        );
        assert_eq!(third.parent(), Some(first.id()));
        assert_eq!(
            (tag_at(&first, 0).await, tag_at(&third, 0).await),
            (Ok(10), Ok(0))
        );
        store.check().unwrap();
    });
}

#[test]
fn what_a_clone_gave_up_does_not_come_back_from_its_parent() {
    World::new(23).process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(12).unwrap();
        for page in 0..12 {
            blob.write(page, tagged(&[page + 1])).await.unwrap();
        }
        let snapshot = store.snapshot(blob.id()).await.unwrap();
        // In the middle of a cluster, so that this one is shown in part.
        blob.resize(6).await.unwrap();
        blob.resize(12).await.unwrap();
        let shown = |page| if page < 6 { page + 1 } else { 0 };
        for page in 0..12 {
            assert_eq!(tag_at(&blob, page).await, Ok(shown(page)));
        }
        // Deleting the snapshot leaves the child what it shows, and no more.
        store.delete(snapshot.id()).await.unwrap();
        for page in 0..12 {
            assert_eq!(tag_at(&blob, page).await, Ok(shown(page)));
        }
        store.check().unwrap();
    });
}

/// Where on the device a page of a blob lies.
fn device_page(blob: &blobstore::Blob, page: u64) -> u64 {
    let runs = blob.runs();
    let run = runs
        .iter()
        .find(|run| (run.page..run.page + run.pages).contains(&page));
    let run = run.expect("the page was written");
    run.device_page + page - run.page
}

#[test]
fn a_page_of_a_snapshot_is_mended_where_it_lies_for_all_that_show_it() {
    let world = World::new(12);
    let disk_of_world = world.disk();
    world.process(move || async move {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        let blob = store.create(40).unwrap();
        for page in 0..12 {
            blob.write(page, tagged(&[10 + page])).await.unwrap();
        }
        let first = store.snapshot(blob.id()).await.unwrap();
        blob.write(4, tagged(&[50])).await.unwrap();
        let second = store.snapshot(blob.id()).await.unwrap();
        blob.write(8, tagged(&[60])).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(second.own_runs().iter().map(|run| run.pages).sum::<u64>(), 4);
        assert_eq!(first.own_runs(), first.runs());

        // Page 1 lies in the first one's cluster, and shows in all three; so does page 9, but not in the blob.
        for page in [1, 9] {
            disk_of_world.damage(device_page(&second, page) * PAGE as u64, &[0xee; PAGE]);
            second.mend(page, tagged(&[10 + page])).await.unwrap();
            assert_eq!(tag_at(&first, page).await, Ok(10 + page));
            assert_eq!(tag_at(&second, page).await, Ok(10 + page));
        }
        assert_eq!(tag_at(&blob, 1).await, Ok(11));
        // The second one's own, which is another page than the first one's.
        disk_of_world.damage(device_page(&second, 4) * PAGE as u64, &[0xee; PAGE]);
        second.mend(4, tagged(&[50])).await.unwrap();
        for (blob, tag) in [(&first, 14), (&second, 50), (&blob, 50)] {
            assert_eq!(tag_at(blob, 4).await, Ok(tag));
        }
        let io = |id, error| Err(Error::Io { blob: id, error });
        assert_eq!(
            blob.mend(4, tagged(&[1])).await,
            Err(Error::NotASnapshot(blob.id()))
        );
        assert_eq!(
            second.mend(30, tagged(&[1])).await,
            io(second.id(), IoError::Unsupported)
        );
        assert_eq!(
            second.mend(40, tagged(&[1])).await,
            io(second.id(), IoError::OutOfRange)
        );

        // A deletion that comes while a page is written waits, or it comes first; what the child then writes there itself stays.
        let mending = {
            let second = second.clone();
            reactor::spawn(async move { second.mend(5, tagged(&[15])).await })
        };
        let (id, deleting) = (second.id(), store.clone());
        let deleted = reactor::spawn(async move { deleting.delete(id).await });
        let mended = mending.await.unwrap();
        assert!(matches!(mended, Ok(()) | Err(Error::NoSuchBlob(_))), "{mended:?}");
        assert_eq!(deleted.await, Some(Ok(())));
        blob.write(5, tagged(&[70])).await.unwrap();
        assert_eq!(tag_at(&blob, 5).await, Ok(70));
        assert_eq!(
            second.mend(5, tagged(&[15])).await,
            Err(Error::NoSuchBlob(second.id()))
        );
        store.sync().await.unwrap();
        store.check().unwrap();
    });
    world.process(move || async move {
        let store = Blobstore::open(disk()).await.unwrap();
        let found = store.blobs().into_iter().map(|id| store.blob(id).unwrap());
        let (mut snapshots, mut blobs): (Vec<_>, Vec<_>) = found.partition(|blob| blob.is_snapshot());
        let (first, blob) = (snapshots.remove(0), blobs.remove(0));
        assert_eq!(
            (tag_at(&first, 1).await, tag_at(&blob, 1).await),
            (Ok(11), Ok(11))
        );
        assert_eq!(
            (tag_at(&first, 9).await, tag_at(&blob, 9).await),
            (Ok(19), Ok(19))
        );
        assert_eq!((tag_at(&blob, 8).await, tag_at(&blob, 5).await), (Ok(60), Ok(70)));
        store.check().unwrap();
    });
}

#[test]
fn a_damaged_snapshot_takes_its_children_along_and_nobody_else() {
    let world = World::new(24);
    world.process(|| async {
        let store = Blobstore::format(disk(), &options()).await.unwrap();
        for tag in [1, 2] {
            let blob = store.create(8).unwrap();
            blob.write(0, tagged(&[tag])).await.unwrap();
            store.snapshot(blob.id()).await.unwrap();
        }
        store.sync().await.unwrap();
    });
    // Blobs 1 and 3, their snapshots 2 and 4.
    let page = find_root_page(&world, 2);
    world.disk().damage(page * PAGE as u64 + 130, b"x");
    world.process(|| async {
        let store = Blobstore::open(disk()).await.unwrap();
        let damaged: Vec<BlobId> = store.describe().damaged.iter().map(|(id, _)| *id).collect();
        assert_eq!(damaged, [BlobId(1), BlobId(2)]);
        assert_eq!(tag_at(&store.blob(BlobId(3)).unwrap(), 0).await, Ok(2));
        for id in damaged {
            store.delete(id).await.unwrap();
        }
        store.sync().await.unwrap();
        store.check().unwrap();
    });
}
