//! Proved here: whatever a process was about to write when it was killed, and however far the next one on the same device got when the power went, the store
//! opens, and has what was durable before the kill: what was read by the next one and was not durable is not built upon.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bdev::{Channel, Geometry, Request};
use blobstore::{BlobId, Blobstore, FormatOptions};
use foundation::seeds::from_environment;
use reactor::BufferPool;
use reactor::time;

mod support;
use support::{DiskChannel, PAGE, World, sector_tags, tagged};

const DISK_BYTES: u64 = 1 << 20;
const PAGES: u64 = 8;

/// A device whose requests after so many are never done.
struct Hangs {
    device: Rc<dyn Channel>,
    left: Cell<u64>,
    held: std::cell::RefCell<Vec<Request>>,
}

impl Channel for Hangs {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn submit(&self, request: Request) {
        let Some(left) = self.left.get().checked_sub(1) else {
            return self.held.borrow_mut().push(request);
        };
        self.left.set(left);
        self.device.submit(request);
    }
}

async fn has(store: &Blobstore, id: BlobId, tag: u64) {
    let blob = store.blob(id).unwrap();
    let buffer = BufferPool::current().try_allocate(PAGES as usize * PAGE).unwrap();
    let (status, buffer) = blob.read(0, buffer).await;
    status.unwrap();
    for page in buffer.chunks(PAGE) {
        assert_eq!(sector_tags(page), [tag; 8]);
    }
}

/// The first process is killed after so many requests of a commit, and the power goes at a disk operation of the second; false if that
/// one did not come so far, and the requests that the commit has if it was not killed.
fn run(seed: u64, requests: u64, cut: u64) -> (bool, u64) {
    let world = World::new(seed);
    let kept = world.process(|| async move {
        let options = FormatOptions {
            cluster_bytes: 4 * PAGE as u32,
            ..FormatOptions::default()
        };
        let store = Blobstore::format(DiskChannel::open(DISK_BYTES, 4096), &options).await;
        let store = store.unwrap();
        let kept = store.create(PAGES).unwrap();
        kept.write(0, tagged(&[1; PAGES as usize])).await.unwrap();
        let gone = store.create(PAGES).unwrap();
        gone.write(0, tagged(&[2; PAGES as usize])).await.unwrap();
        store.sync().await.unwrap();
        (kept.id(), gone.id())
    });
    let (kept, gone) = kept.unwrap();
    let used = world.process(move || async move {
        let store = Blobstore::open(DiskChannel::open(DISK_BYTES, 4096))
            .await
            .unwrap();
        drop(store);
        let hangs = Rc::new(Hangs {
            device: DiskChannel::open(DISK_BYTES, 4096),
            left: Cell::new(u64::MAX),
            held: Default::default(),
        });
        let store = Blobstore::open(hangs.clone()).await.unwrap();
        // The commit gives up a cluster and places of metadata.
        store.delete(gone).await.unwrap();
        store.blob(kept).unwrap().set_attribute("a", b"b").unwrap();
        hangs.left.set(requests);
        let synced = time::timeout(Duration::from_millis(200), store.sync()).await;
        assert!(
            synced.is_err() || requests > 4,
            "{requests} requests are no commit"
        );
        requests - hangs.left.get()
    });
    let before = world.disk().operations();
    world.disk().cut_power_at(before + cut);
    let ended = world.process(move || async move {
        let store = Blobstore::open(DiskChannel::open(DISK_BYTES, 4096))
            .await
            .unwrap();
        has(&store, kept, 1).await;
        let more = store.create(PAGES * 4).unwrap();
        for page in 0..PAGES * 4 {
            more.write(page, tagged(&[3])).await.unwrap();
        }
        store.sync().await.unwrap();
        store.blob(kept).unwrap().set_attribute("c", b"d").unwrap();
        store.sync().await.unwrap();
    });
    if ended.is_some() {
        return (false, used.unwrap());
    }
    let checked = world.process(move || async move {
        let store = Blobstore::open(DiskChannel::open(DISK_BYTES, 4096))
            .await
            .unwrap();
        assert_eq!(store.describe().damaged, Vec::new());
        store.check().unwrap();
        has(&store, kept, 1).await;
        if store.blobs().contains(&gone) {
            has(&store, gone, 2).await;
        }
    });
    checked.expect("the power stays on");
    (true, used.unwrap())
}

#[test]
fn what_a_killed_process_left_undurable_is_not_built_upon() {
    for seed in from_environment(3) {
        let (_, commit) = run(seed, 1000, u64::MAX / 2);
        for requests in 0..commit {
            for cut in 1.. {
                let result = std::panic::catch_unwind(|| run(seed, requests, cut).0);
                match result {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(panic) => {
                        eprintln!(
                            "seed {seed}, killed after {requests} requests, power cut at {cut}: REDHARE_SEED={seed}"
                        );
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }
}
