//! A chunk's part in a snapshot of its volume on whole nodes: every copy keeps what it had, durably and with checksums that
//! fit; what is written behind the cut is acknowledged only when it is released, abandoned, or after a second. Blocks of a snapshot that rot are mended from another node's.

use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bdev::file::{FileDevice, FileOptions};
use bdev::{BlockDevice, Data};
use blobstore::Blobstore;
use foundation::Epoch;
use reactor::time;
use volume::message::codec::{Checked, NativeOperation};
use volume::{ChunkId, ChunkIndex, SnapshotId, Status, VolumeNumber};

use super::checksums::find;
use super::{expected, on_client};
use crate::support::{Client, Cluster, VOLUME};

/// Pages of a copy's blob before the chunk's blocks.
const HEAD_PAGES: u64 = 32;

async fn step(client: &Client, operation: NativeOperation) -> Status {
    client.run(operation, 1, 0, 0, Data::None).await.0
}

/// How long a write takes to be acknowledged.
async fn write_time(client: &Client, lba: u64, n: u64) -> Duration {
    let began = time::now();
    client.write_until_done(1, lba, n).await;
    time::now().since(began)
}

#[test]
fn a_snapshot_holds_acknowledgements_and_survives_its_process() {
    let cluster = Cluster::with_volume(91);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let (writer, maker) = (
            Client::connect(hosts[0], 0, 1).await.unwrap(),
            Rc::new(Client::connect(hosts[0], 0, 2).await.unwrap()),
        );
        writer.write_until_done(1, 0, 1).await;
        writer.write_until_done(1, 30, 2).await;
        assert_eq!(
            step(&maker, NativeOperation::Release(SnapshotId(5))).await,
            Status::SnapshotAborted
        );
        assert_eq!(
            step(&maker, NativeOperation::Cut(SnapshotId(5))).await,
            Status::Done
        );
        // The next one is released after a while, and no sooner.
        let releaser = maker.clone();
        let released = reactor::spawn(async move {
            time::sleep(Duration::from_millis(300)).await;
            step(&releaser, NativeOperation::Release(SnapshotId(5))).await
        });
        let held = write_time(&writer, 0, 3).await;
        assert_eq!(released.await, Some(Status::Done));
        assert!(
            held >= Duration::from_millis(300) && held < Duration::from_millis(900),
            "{held:?}"
        );
        assert!(write_time(&writer, 30, 4).await < Duration::from_millis(200));

        // A number is used once, and nobody is held for a cut that is not made.
        assert_eq!(
            step(&maker, NativeOperation::Cut(SnapshotId(5))).await,
            Status::SnapshotAborted
        );
        assert_eq!(
            step(&maker, NativeOperation::Cut(SnapshotId(6))).await,
            Status::Done
        );
        assert_eq!(
            step(&maker, NativeOperation::Abandon(SnapshotId(6))).await,
            Status::Done
        );
        assert!(write_time(&writer, 30, 5).await < Duration::from_millis(200));
        // One whose maker is never heard of again.
        assert_eq!(
            step(&maker, NativeOperation::Cut(SnapshotId(7))).await,
            Status::Done
        );
        let held = write_time(&writer, 30, 6).await;
        assert!(
            held > Duration::from_millis(700) && held < Duration::from_millis(1500),
            "{held:?}"
        );
        assert_eq!(
            step(&maker, NativeOperation::Release(SnapshotId(7))).await,
            Status::SnapshotAborted
        );
        assert!(writer.read_until_done(1, 0).await == expected(3));
    });
    for host in &cluster.hosts {
        cluster.simulation.power_off(*host);
    }
    cluster.simulation.run_for(Duration::from_secs(1));
    for host in &cluster.hosts {
        look_at_disk(&cluster, *host);
    }
    // The nodes start with what they have, and go on.
    (0..3).for_each(|index| cluster.start(index));
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.configure(2, 2, &[0, 1, 2]);
    cluster.simulation.run_for(Duration::from_secs(8));
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[2], 2, 9).await.unwrap();
        client.write_until_done(2, 60, 7).await;
        assert!(client.read_until_done(2, 60).await == expected(7));
        for (index, host) in hosts.into_iter().enumerate() {
            let reader = Client::connect(host, index, 20).await.unwrap();
            assert!(
                read_snapshot(&reader, 5, 0).await == Ok(expected(1)),
                "node {index}"
            );
            assert!(
                read_snapshot(&reader, 6, 0).await == Ok(expected(3)),
                "node {index}"
            );
            assert!(
                read_snapshot(&reader, 7, 60).await == Ok(vec![0; 8192]),
                "never written"
            );
            assert!(read_snapshot(&reader, 8, 0).await == Err(Status::SnapshotAborted));
            assert!(read_snapshot(&reader, 5, 1 << 40).await == Err(Status::OutOfRange));
        }
    });
    a_copy_goes_and_its_snapshots_stay(&cluster);
}

/// Turns the first byte of this block over on a node's disk, where it has these bytes, and says where that is.
pub(super) fn harm(cluster: &Cluster, node: usize, bytes: &[u8]) -> u64 {
    let at = find(cluster, node, bytes);
    let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
    disk.damage(at, &[!bytes[0]]);
    at
}

fn block_at(cluster: &Cluster, node: usize, at: u64) -> Vec<u8> {
    let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
    disk.read(at, 4096)
}

/// What a node says of two blocks of the snapshot: how it ended, compared and repaired blocks.
async fn check_snapshot(client: &Client, number: u64, lba: u64) -> (Status, u32, u32) {
    let room = reactor::BufferPool::current()
        .try_allocate(Checked::BYTES)
        .unwrap();
    let operation = NativeOperation::CheckSnapshot(SnapshotId(number));
    let (status, data) = client.run(operation, 0, lba, 2, Data::Into(room)).await;
    let Checked {
        compared, damaged, ..
    } = Checked::decode(&data.into_read());
    (status, compared, damaged)
}

#[test]
fn a_block_of_a_snapshot_that_rots_is_mended_from_another_copy() {
    let cluster = Cluster::with_volume(94);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for n in 0..9 {
            client.write_until_done(1, n * 30, n).await;
        }
        for number in [5, 6] {
            assert_eq!(
                step(&client, NativeOperation::Cut(SnapshotId(number))).await,
                Status::Done
            );
            assert_eq!(
                step(&client, NativeOperation::Release(SnapshotId(number))).await,
                Status::Done
            );
            // The first chunk's first cluster is another one afterwards.
            client.write_until_done(1, 0, 100 + number).await;
        }
    });
    // One that only the first snapshot has, and one that all have and the live copy, too.
    let harmed: Vec<u64> = [0, 8].map(|n| harm(&cluster, 1, &expected(n)[..4096])).into();
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[1], 1, 2).await.unwrap();
        for (n, number) in [(0, 5), (8, 6)] {
            assert_eq!(
                read_snapshot(&client, number, n * 30).await,
                Err(Status::DeviceFailed),
                "block {n}"
            );
            let deadline = time::now() + Duration::from_secs(5);
            while read_snapshot(&client, number, n * 30).await != Ok(expected(n)) {
                assert!(time::now() < deadline, "block {n} is not mended");
                time::sleep(Duration::from_millis(20)).await;
            }
        }
        assert!(read_snapshot(&client, 5, 240).await == Ok(expected(8)));
        assert!(client.read_until_done(1, 240).await == expected(8));
        assert_eq!(check_snapshot(&client, 5, 0).await, (Status::Done, 2, 0));
        assert_eq!(check_snapshot(&client, 7, 0).await.0, Status::SnapshotAborted);
    });
    for (n, at) in [0, 8].into_iter().zip(&harmed) {
        assert!(block_at(&cluster, 1, *at) == expected(n)[..4096], "block {n}");
    }

    // What nobody reads is found by the scrub. Its turns go by the time of day, of which little passes here.
    for index in 0..3 {
        let node = cluster.node(index);
        cluster
            .simulation
            .start(cluster.hosts[index], move || async move {
                node.keep_snapshots([((VolumeNumber(VOLUME), SnapshotId(5)), 1)]);
                node.scrub_every(Duration::from_millis(2));
            });
    }
    let compared = &target::node::CHECKSUMS.scrubbed_snapshots;
    let before = compared.load(Ordering::Relaxed);
    let at = harm(&cluster, 2, &expected(0)[..4096]);
    cluster.simulation.run_for(Duration::from_secs(10));
    assert!(block_at(&cluster, 2, at) == expected(0)[..4096], "not mended");
    assert!(compared.load(Ordering::Relaxed) >= before + 3);

    // What no copy has right waits until one has.
    let harmed: Vec<u64> = (0..3)
        .map(|node| harm(&cluster, node, &expected(0)[..4096]))
        .collect();
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[1], 1, 3).await.unwrap();
        assert_eq!(check_snapshot(&client, 5, 0).await.0, Status::DeviceFailed);
    });
    assert!(block_at(&cluster, 1, harmed[1]) != expected(0)[..4096]);
    let disk = cluster.simulation.disk(cluster.hosts[0], Path::new("/disk"));
    disk.damage(harmed[0], &expected(0)[..1]);
    cluster.simulation.run_for(Duration::from_secs(80));
    for (node, at) in harmed.iter().enumerate() {
        assert!(
            block_at(&cluster, node, *at) == expected(0)[..4096],
            "node {node}"
        );
    }
}

/// Two blocks of a snapshot, as a node has them.
pub(super) async fn read_snapshot(client: &Client, number: u64, lba: u64) -> Result<Vec<u8>, Status> {
    let room = reactor::BufferPool::current().try_allocate(8192).unwrap();
    let operation = NativeOperation::ReadSnapshot(SnapshotId(number));
    match client.run(operation, 0, lba, 2, Data::Into(room)).await {
        (Status::Done, data) => Ok(data.into_read().to_vec()),
        (status, _) => Err(status),
    }
}

/// The copy on a node has no place there any more; then two of its snapshots are deleted, and after a restart the third is there
/// still.
fn a_copy_goes_and_its_snapshots_stay(cluster: &Cluster) {
    let (node, volume) = (cluster.node(1), VolumeNumber(VOLUME));
    let chunk = ChunkId {
        volume,
        index: ChunkIndex(0),
    };
    let used = |node: &target::node::Node| {
        let disk = &node.disks()[0];
        disk.capacity_bytes - disk.free_bytes
    };
    let before = Rc::new(std::cell::Cell::new(0));
    let found = before.clone();
    cluster.simulation.start(cluster.hosts[1], move || async move {
        assert!(node.delete_copy(chunk, Epoch(3)).await);
        found.set(used(&node));
        node.delete_snapshots([
            (volume, SnapshotId(5)),
            (volume, SnapshotId(7)),
            (volume, SnapshotId(9)),
        ]);
    });
    cluster.simulation.run_for(Duration::from_secs(2));
    assert!(used(&cluster.node(1)) < before.get(), "nothing was given back");
    for restarted in [false, true] {
        if restarted {
            cluster.simulation.power_off(cluster.hosts[1]);
            cluster.simulation.run_for(Duration::from_secs(1));
            cluster.start(1);
            cluster.simulation.run_for(Duration::from_secs(2));
        }
        let host = cluster.hosts[1];
        on_client(cluster, Duration::from_secs(10), move || async move {
            let reader = Client::connect(host, 1, 30).await.unwrap();
            for gone in [5, 7] {
                assert!(read_snapshot(&reader, gone, 0).await == Err(Status::SnapshotAborted));
            }
            assert!(read_snapshot(&reader, 6, 0).await == Ok(expected(3)));
            assert!(read_snapshot(&reader, 6, 30).await == Ok(expected(4)));
        });
    }
}

/// The snapshots on a node's disk: what the first one has, and that all have names.
fn look_at_disk(cluster: &Cluster, host: reactor::sim::Host) {
    let found = Rc::new(std::cell::Cell::new(false));
    let done = found.clone();
    cluster.simulation.start(host, || async move {
        let options = FileOptions {
            create: None,
            block_bytes: 4096,
            direct: true,
            read_only: true,
        };
        let device = FileDevice::open(Path::new("/disk"), options).unwrap();
        let store = Blobstore::open(device.open_channel().unwrap()).await.unwrap();
        store.check().unwrap();
        let named: Vec<_> = store
            .blobs()
            .into_iter()
            .filter_map(|id| {
                let blob = store.blob(id).unwrap();
                let name = blob.attribute("redhare.snapshot")?;
                Some((name[8..16].to_vec(), blob))
            })
            .collect();
        let numbers: Vec<u64> = named
            .iter()
            .map(|(name, _)| u64::from_le_bytes(name[..].try_into().unwrap()))
            .collect();
        assert_eq!(numbers, [5, 6, 7]);
        for (lba, n) in [(0, 1), (30, 2)] {
            let buffer = reactor::BufferPool::current().try_allocate(8192).unwrap();
            let (status, bytes) = named[0].1.read(HEAD_PAGES + lba, buffer).await;
            status.unwrap();
            assert!(bytes[..] == expected(n)[..], "block {lba}");
        }
        done.set(true);
    });
    cluster.simulation.run_for(Duration::from_secs(5));
    assert!(found.get(), "the disk was not looked at");
    cluster.simulation.stop(host);
    cluster.simulation.run_for(Duration::from_secs(1));
}
