//! A clone of a volume on whole nodes: its first copies are made of a snapshot's without copying, have an identity, records and
//! checksums of their own from the first moment on, and go on alone; flattened, they need the snapshot no more.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bdev::file::{FileDevice, FileOptions};
use bdev::{BlockDevice, Data};
use blobstore::{Blob, Blobstore};
use foundation::Epoch;
use reactor::BufferPool;
use volume::message::codec::NativeOperation;
use volume::{
    BlockRange, ChunkId, ChunkIndex, ChunkRecord, DurableSums, PastVerdict, SnapshotId, Status, VolumeNumber,
    sum_of,
};

use super::{expected, on_client};
use crate::support::{Client, Cluster, DISK, VOLUME, geometry};

pub(super) const CLONE: u32 = 9;
const SNAPSHOT: SnapshotId = SnapshotId(5);
const WRITES: u64 = 20;
/// Pages of a copy's blob before the chunk's blocks, and of one place of the record.
const HEAD_PAGES: u64 = 32;
const SLOT_PAGES: u64 = 16;

pub(super) fn chunk(volume: u32) -> ChunkId {
    ChunkId {
        volume: VolumeNumber(volume),
        index: ChunkIndex(0),
    }
}

/// What a disk's journal takes, a cluster.
const JOURNAL_BYTES: u64 = 1 << 20;

fn used(cluster: &Cluster, index: usize) -> u64 {
    let disk = &cluster.node(index).disks()[0];
    disk.capacity_bytes - disk.free_bytes
}

/// Has every node do something.
pub(super) fn on_nodes<F: Future<Output = ()> + 'static>(
    cluster: &Cluster,
    nodes: &[usize],
    work: impl Fn(Rc<target::node::Node>, usize) -> F + Copy + 'static,
) {
    let done = Rc::new(Cell::new(0));
    for &index in nodes {
        let (node, done) = (cluster.node(index), done.clone());
        cluster
            .simulation
            .start(cluster.hosts[index], move || async move {
                work(node, index).await;
                done.set(done.get() + 1);
            });
    }
    cluster.simulation.run_for(Duration::from_secs(3));
    assert_eq!(done.get(), nodes.len());
}

#[test]
fn a_clone_begins_as_its_snapshot_and_outlives_it() {
    let cluster = Cluster::with_volume(93);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for n in 0..WRITES {
            client.write_until_done(1, n * 30, n).await;
        }
        for operation in [NativeOperation::Cut(SNAPSHOT), NativeOperation::Release(SNAPSHOT)] {
            assert_eq!(client.run(operation, 1, 0, 0, Data::None).await.0, Status::Done);
        }
        for n in 0..WRITES / 2 {
            client.write_until_done(1, n * 30, 100 + n).await;
        }
    });
    let before = used(&cluster, 0);
    let make = |node: Rc<target::node::Node>, index: usize| async move {
        let place = (DISK + index as u128, true);
        let none = node.clone_copy(chunk(CLONE), geometry(), place, (chunk(VOLUME), SnapshotId(6)));
        let said = none.await.unwrap_err().to_string();
        assert!(said.contains("is not here yet"), "{said}");
        // The order may come twice.
        for _ in 0..2 {
            let made = node.clone_copy(chunk(CLONE), geometry(), place, (chunk(VOLUME), SNAPSHOT));
            made.await.unwrap();
        }
    };
    on_nodes(&cluster, &[0, 1, 2], make);
    let taken = used(&cluster, 0) - before;
    assert!(
        taken < (before / 2).max(1),
        "{taken} bytes taken, {before} before"
    );

    // It is durable when the node has said that it is there.
    cluster
        .hosts
        .iter()
        .for_each(|host| cluster.simulation.power_off(*host));
    cluster.simulation.run_for(Duration::from_secs(1));
    for host in &cluster.hosts {
        look_at_disk(&cluster, *host, true);
    }
    (0..3).for_each(|index| cluster.start(index));
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.tell_of(CLONE, &[0, 1, 2], 1, 1, &[0, 1, 2]);
    cluster.configure(2, 2, &[0, 1, 2]);
    cluster.simulation.run_for(Duration::from_secs(8));
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        for (index, host) in hosts.iter().enumerate() {
            let reader = Client::connect(*host, index, 20).await.unwrap().of(CLONE);
            for n in 0..WRITES {
                assert!(
                    reader.read_until_done(1, n * 30).await == expected(n),
                    "{n} at node {index}"
                );
            }
            assert!(
                reader.read_until_done(1, 15).await == vec![0; 8192],
                "never written"
            );
        }
        let writer = Client::connect(hosts[1], 1, 21).await.unwrap().of(CLONE);
        for n in (0..WRITES).step_by(3) {
            writer.write_until_done(1, n * 30, 200 + n).await;
        }
    });
    check(&cluster, (2, 1));

    // One node does not hear of it before its copy of the snapshot is to go.
    on_nodes(&cluster, &[0, 2], |node, _| async move {
        node.flatten(&[CLONE]);
        reactor::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(node.flattening(), [(CLONE, 0, 1)]);
        node.flatten(&[]);
    });
    check(&cluster, (2, 1));
    on_nodes(&cluster, &[0, 1, 2], |node, _| async move {
        node.delete_snapshots([(VolumeNumber(VOLUME), SNAPSHOT)]);
        reactor::time::sleep(Duration::from_secs(2)).await;
    });
    check(&cluster, (2, 1));
    cluster
        .hosts
        .iter()
        .for_each(|host| cluster.simulation.power_off(*host));
    cluster.simulation.run_for(Duration::from_secs(1));
    for host in &cluster.hosts {
        look_at_disk(&cluster, *host, false);
    }
    (0..3).for_each(|index| cluster.start(index));
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.tell_of(CLONE, &[0, 1, 2], 2, 0, &[0, 1, 2]);
    cluster.configure(3, 1, &[0, 1, 2]);
    cluster.simulation.run_for(Duration::from_secs(8));
    check(&cluster, (3, 2));

    // Each gives back what is its own.
    let before = used(&cluster, 1);
    on_nodes(&cluster, &[0, 1, 2], |node, _| async move {
        node.delete_volume(VolumeNumber(VOLUME)).await;
    });
    assert!(used(&cluster, 1) < before);
    on_nodes(&cluster, &[0, 1, 2], |node, _| async move {
        node.delete_volume(VolumeNumber(CLONE)).await;
    });
    for index in 0..3 {
        assert_eq!(used(&cluster, index), JOURNAL_BYTES, "node {index}");
    }
}

/// Both volumes have what was written to them last, at every node, in these epochs.
fn check(cluster: &Cluster, (epoch, clones_epoch): (u64, u64)) {
    let hosts = cluster.hosts.clone();
    on_client(cluster, Duration::from_secs(60), move || async move {
        for (index, host) in hosts.iter().enumerate() {
            let data = Client::connect(*host, index, 30 + 2 * epoch).await.unwrap();
            let clone = Client::connect(*host, index, 31 + 2 * epoch)
                .await
                .unwrap()
                .of(CLONE);
            for n in 0..WRITES {
                let parents = if n < WRITES / 2 { 100 + n } else { n };
                let own = if n.is_multiple_of(3) { 200 + n } else { n };
                let read = data.read_until_done(epoch, n * 30).await;
                assert!(read == expected(parents), "{n} at node {index}");
                let read = clone.read_until_done(clones_epoch, n * 30).await;
                assert!(read == expected(own), "{n} of the clone at node {index}");
            }
        }
    });
}

/// What a node's disk has of the clone: a record of its own in both places, checksums of its own that fit; as long as it is new, with
/// nothing of the other volume's in its record. Later, nothing shared.
fn look_at_disk(cluster: &Cluster, host: reactor::sim::Host, is_new: bool) {
    let found = Rc::new(Cell::new(false));
    let done = found.clone();
    cluster.simulation.start(host, move || async move {
        let options = FileOptions {
            create: None,
            block_bytes: 4096,
            direct: true,
            read_only: true,
        };
        let device = FileDevice::open(Path::new("/disk"), options).unwrap();
        let store = Blobstore::open(device.open_channel().unwrap()).await.unwrap();
        store.check().unwrap();
        let name = [CLONE.to_le_bytes(), [0; 4]].concat();
        let blobs = store.blobs().into_iter().map(|id| store.blob(id).unwrap());
        let mut copies = blobs.filter(|blob| blob.attribute("redhare.chunk").as_ref() == Some(&name));
        let (copy, more) = (copies.next().expect("the copy has a name"), copies.next());
        assert!(more.is_none());
        assert_eq!(copy.parent().is_some(), is_new);
        let snapshots = store
            .blobs()
            .into_iter()
            .filter(|id| store.blob(*id).unwrap().is_snapshot());
        assert_eq!(snapshots.count(), usize::from(is_new));
        for place in 0..2 {
            let bytes = read(&copy, place * SLOT_PAGES, SLOT_PAGES).await;
            let record = ChunkRecord::decode(&bytes[28..]).unwrap();
            assert_eq!(record.chunk, chunk(CLONE), "place {place}");
            if is_new {
                assert_eq!(
                    (record.sealed, record.flushed_in, record.config),
                    (Epoch(0), Epoch(0), None)
                );
                assert!(record.sessions.is_empty() && record.intent.is_empty());
                assert!(
                    !record.written_in.is_empty()
                        && record.written_in.values().all(|epoch| *epoch == Epoch(1))
                );
            }
        }
        let blocks = u64::from(geometry().chunk_blocks);
        let sums = read(&copy, HEAD_PAGES + blocks, 2).await;
        let (one, other) = sums.split_at(4096);
        let sums = DurableSums::read(chunk(CLONE), 0, [one, other]).expect("they are the clone's");
        let range = BlockRange { start: 0, count: 600 };
        for block in range.start..range.start + range.count {
            let bytes = read(&copy, HEAD_PAGES + u64::from(block), 1).await;
            let verdict = sums.check(block, [sum_of(&bytes)].into_iter());
            assert!(verdict == PastVerdict::Right, "block {block}: {verdict:?}");
        }
        done.set(true);
    });
    cluster.simulation.run_for(Duration::from_secs(5));
    assert!(found.get(), "the disk was not looked at");
    cluster.simulation.stop(host);
    cluster.simulation.run_for(Duration::from_secs(1));
}

async fn read(blob: &Blob, page: u64, pages: u64) -> Vec<u8> {
    let buffer = BufferPool::current().try_allocate(pages as usize * 4096).unwrap();
    let (status, bytes) = blob.read(page, buffer).await;
    status.unwrap();
    bytes.to_vec()
}
