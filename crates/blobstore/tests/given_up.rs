//! Proved here: a copy of a blob's clusters that is given up in the middle blocks nothing, and a snapshot whose child cannot be read stays until it can
//! be, or is deleted.

use std::time::Duration;

use blobstore::{BlobId, Blobstore, Error, FormatOptions};
use reactor::BufferPool;
use reactor::time;

mod support;
use support::{DiskChannel, PAGE, World, sector_tags, tagged};

const DISK_BYTES: u64 = 1 << 20;
const PAGES: u64 = 24;

fn options() -> FormatOptions {
    FormatOptions {
        cluster_bytes: 4 * PAGE as u32,
        ..FormatOptions::default()
    }
}

async fn open() -> Blobstore {
    Blobstore::open(DiskChannel::open(DISK_BYTES, 4096))
        .await
        .unwrap()
}

async fn tags(store: &Blobstore, id: BlobId) -> Vec<u64> {
    let buffer = BufferPool::current().try_allocate(PAGES as usize * PAGE).unwrap();
    let (status, buffer) = store.blob(id).unwrap().read(0, buffer).await;
    status.unwrap();
    buffer.chunks(PAGE).map(|page| sector_tags(page)[0]).collect()
}

/// A durable store of a blob and a snapshot of it.
async fn with_snapshot() -> (BlobId, BlobId) {
    let store = Blobstore::format(DiskChannel::open(DISK_BYTES, 4096), &options())
        .await
        .unwrap();
    let blob = store.create(PAGES).unwrap();
    blob.write(0, tagged(&[7; PAGES as usize])).await.unwrap();
    let kept = store.snapshot(blob.id()).await.unwrap().id();
    store.sync().await.unwrap();
    (blob.id(), kept)
}

#[test]
fn a_flattening_that_is_given_up_leaves_no_cluster_behind() {
    let mut given_up = 0;
    for seed in 0..80 {
        let world = World::new(seed);
        let done = world.process(move || async move {
            let (id, kept) = with_snapshot().await;
            let store = open().await;
            let blob = store.blob(id).unwrap();
            let pause = Duration::from_micros(seed * 15);
            given_up += u32::from(time::timeout(pause, blob.flatten()).await.is_err());
            for page in 0..PAGES {
                let written = time::timeout(Duration::from_secs(1), blob.write(page, tagged(&[9]))).await;
                written.expect("nothing stands in its way").unwrap();
            }
            let deleted = time::timeout(Duration::from_secs(1), store.delete(kept)).await;
            deleted.expect("nothing stands in its way").unwrap();
            store.sync().await.unwrap();
            store.check().unwrap();
            assert_eq!(tags(&store, id).await, [9; PAGES as usize]);
            let described = store.describe();
            let owned: usize = described.blobs.iter().map(|blob| blob.clusters.len()).sum();
            assert_eq!(owned as u64, PAGES / 4);
            store.delete(id).await.unwrap();
            store.sync().await.unwrap();
            let (before, after) = (described.free_clusters, store.describe().free_clusters);
            assert_eq!(u64::from(after - before), PAGES / 4, "what it had is free");
            given_up
        });
        given_up = done.unwrap();
    }
    assert!((20..80).contains(&given_up), "{given_up} of 80 were given up");
}

#[test]
fn a_snapshot_stays_while_a_child_cannot_be_read() {
    let world = World::new(3);
    let (child, kept) = world.process(with_snapshot).unwrap();
    let disk = world.disk();
    let mut refused = 0;
    for page in 2..disk.length_bytes() / PAGE as u64 {
        let whole = disk.read(page * PAGE as u64, PAGE);
        disk.damage(page * PAGE as u64, &[0x5a; PAGE]);
        let is_damaged = world.process(move || async move {
            let store = open().await;
            let is_damaged = store.describe().damaged.iter().any(|(id, _)| *id == child);
            if is_damaged && store.blob(kept).is_ok() {
                let deleted = store.delete(kept).await;
                assert!(
                    matches!(deleted, Err(Error::Damaged { blob, .. }) if blob == child),
                    "{deleted:?}"
                );
            }
            store.sync().await.unwrap();
            is_damaged
        });
        refused += u32::from(is_damaged.unwrap());
        // What could not be read for a while is there again.
        disk.damage(page * PAGE as u64, &whole);
        if is_damaged.unwrap() {
            let found = world.process(move || async move { tags(&open().await, child).await });
            assert_eq!(found.unwrap(), [7; PAGES as usize], "page {page}");
        }
    }
    assert!(refused > 0);
    // Once the damaged one is deleted the snapshot may go.
    for page in 2..disk.length_bytes() / PAGE as u64 {
        let whole = disk.read(page * PAGE as u64, PAGE);
        disk.damage(page * PAGE as u64, &[0x5a; PAGE]);
        let gone = world.process(move || async move {
            let store = open().await;
            let is_damaged = store.describe().damaged.iter().any(|(id, _)| *id == child);
            if !is_damaged || store.blob(kept).is_err() {
                return false;
            }
            store.delete(child).await.unwrap();
            store.delete(kept).await.unwrap();
            store.sync().await.unwrap();
            store.check().unwrap();
            store.blobs().is_empty()
        });
        if gone.unwrap() {
            return;
        }
        disk.damage(page * PAGE as u64, &whole);
    }
    panic!("no page was the child's alone");
}
