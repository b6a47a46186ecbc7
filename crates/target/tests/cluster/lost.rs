//! Blocks that no member has right, and a copy that comes back (`docs/decisions/0132`): it is let in, has them from before if it has
//! them right, and wrong like all others if not.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use agentlink::SnapshotLoss;
use bdev::Data;
use reactor::{BufferPool, time};
use volume::message::codec::NativeOperation;
use volume::{LOST_BLOCK, SnapshotId, Status, VolumeNumber};

use super::checksums::find;
use super::clones::{CLONE, chunk, on_nodes};
use super::snapshots::{harm, read_snapshot};
use super::{Proposals, expected, hear, on_client};
use crate::support::{Client, Cluster, DISK, VOLUME, geometry};

/// Has this written in an epoch whose write node is the first node.
fn write(cluster: &Cluster, epoch: u64, lba: u64, salt: u64) {
    let hosts = cluster.hosts.clone();
    on_client(cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[0], 0, epoch).await.unwrap();
        client.write_until_done(epoch, lba, salt).await;
    });
}

/// Changes what the first two nodes have of what was written with this salt.
fn damage_members(cluster: &Cluster, salt: u64) {
    for node in [0, 1] {
        let at = find(cluster, node, &expected(salt));
        let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
        disk.damage(at, &[0xee; 9]);
    }
}

/// The third node is there again, comes back under the first in epoch 2, and is a member in epoch 3.
fn come_back(cluster: &Cluster) {
    let proposals = Proposals::default();
    let (node, heard) = (cluster.node(0), proposals.clone());
    cluster
        .simulation
        .start(cluster.hosts[0], move || hear(node, heard));
    cluster.start(2);
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.tell(&[2], 2, 0, &[0, 1]);
    cluster.simulation.run_for(Duration::from_secs(6));
    assert_eq!(proposals.borrow().first(), Some(&(2_u64, vec![1_u128, 2, 3])));
    cluster.configure(3, 0, &[0, 1, 2]);
}

/// The nodes from this one on say that they cannot read these blocks.
fn is_an_error(cluster: &Cluster, epoch: u64, lba: u64, first: usize) {
    let hosts = cluster.hosts.clone();
    on_client(cluster, Duration::from_secs(60), move || async move {
        for (node, host) in hosts.iter().enumerate().skip(first) {
            let client = Client::connect(*host, node, 10 + epoch).await.unwrap();
            fails_to_read(&client, epoch, lba).await;
        }
    });
}

async fn fails_to_read(client: &Client, epoch: u64, lba: u64) {
    let deadline = time::now() + Duration::from_secs(15);
    loop {
        let buffer = BufferPool::current().try_allocate(8192).unwrap();
        let read = client.run(NativeOperation::Read, epoch, lba, 2, Data::Into(buffer));
        match read.await.0 {
            Status::DeviceFailed => return,
            Status::NotReady => assert!(time::now() < deadline, "still not ready"),
            other => panic!("a node says {other:?} of a block that nobody has"),
        }
        time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_read(cluster: &Cluster, epoch: u64, lba: u64, salt: u64, first: usize) {
    let hosts = cluster.hosts.clone();
    on_client(cluster, Duration::from_secs(60), move || async move {
        for (node, host) in hosts.iter().enumerate().skip(first) {
            let client = Client::connect(*host, node, 20 + lba).await.unwrap();
            let read = client.read_until_done(epoch, lba).await;
            assert!(read == expected(salt), "node {node}");
        }
    });
}

#[test]
fn a_copy_comes_back_though_a_block_is_lost_and_has_it_wrong_too() {
    let cluster = Cluster::with_volume(81);
    write(&cluster, 1, 0, 1);
    write(&cluster, 1, 2, 2);
    cluster.simulation.power_off(cluster.hosts[2]);
    cluster.configure(2, 0, &[0, 1]);
    write(&cluster, 2, 0, 3);
    damage_members(&cluster, 3);
    come_back(&cluster);
    find(&cluster, 2, &LOST_BLOCK[..]);
    is_an_error(&cluster, 3, 0, 0);
    is_read(&cluster, 3, 2, 2, 0);

    // It orders the writes: the block is an error still, until it is written.
    cluster.simulation.power_off(cluster.hosts[0]);
    cluster.simulation.run_for(Duration::from_secs(1));
    cluster.configure(4, 2, &[1, 2]);
    is_an_error(&cluster, 4, 0, 1);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let client = Client::connect(hosts[2], 2, 30).await.unwrap();
        client.write_until_done(4, 0, 5).await;
    });
    is_read(&cluster, 4, 0, 5, 1);
}

#[test]
fn a_block_that_only_the_copy_that_comes_back_has_right_is_taken_from_it() {
    let cluster = Cluster::with_volume(82);
    write(&cluster, 1, 0, 1);
    cluster.simulation.run_for(Duration::from_secs(20));
    cluster.simulation.power_off(cluster.hosts[2]);
    cluster.configure(2, 0, &[0, 1]);
    // The same region: the copy lacks it.
    write(&cluster, 2, 2, 2);
    damage_members(&cluster, 1);
    come_back(&cluster);
    is_read(&cluster, 3, 0, 1, 0);
    is_read(&cluster, 3, 2, 2, 0);
    for node in 0..3 {
        find(&cluster, node, &expected(1));
    }
}

/// What it has from before is not taken if something newer was acknowledged meanwhile.
#[test]
fn what_a_copy_that_comes_back_has_from_before_does_not_pass_for_what_is_lost() {
    let cluster = Cluster::with_volume(83);
    write(&cluster, 1, 0, 1);
    cluster.simulation.run_for(Duration::from_secs(20));
    cluster.simulation.power_off(cluster.hosts[2]);
    cluster.configure(2, 0, &[0, 1]);
    write(&cluster, 2, 0, 2);
    damage_members(&cluster, 2);
    find(&cluster, 2, &expected(1));
    come_back(&cluster);
    is_an_error(&cluster, 3, 0, 0);
}

/// The first copies of a clone, of copies that have a block wrong or say that it is lost: it is an error there, until it is written.
fn a_clone_has_it_wrong_too(cluster: &Cluster, snapshot: SnapshotId) {
    let make = move |node: Rc<target::node::Node>, index: usize| async move {
        let (place, origin) = ((DISK + index as u128, true), (chunk(VOLUME), snapshot));
        node.clone_copy(chunk(CLONE), geometry(), place, origin)
            .await
            .unwrap();
    };
    on_nodes(cluster, &[0, 1, 2], make);
    cluster.tell_of(CLONE, &[0, 1, 2], 1, 2, &[0, 1, 2]);
    cluster.simulation.run_for(Duration::from_secs(8));
    let hosts = cluster.hosts.clone();
    on_client(cluster, Duration::from_secs(60), move || async move {
        for (node, host) in hosts.iter().enumerate() {
            let client = Client::connect(*host, node, 40).await.unwrap().of(CLONE);
            assert!(client.read_until_done(1, 30).await == expected(1), "node {node}");
            fails_to_read(&client, 1, 0).await;
        }
        let client = Client::connect(hosts[2], 2, 41).await.unwrap().of(CLONE);
        client.write_until_done(1, 0, 7).await;
        assert!(client.read_until_done(1, 0).await == expected(7));
    });
}

/// A copy of a snapshot is made though a block of it is right nowhere, which is wrong there too: until one has it right.
#[test]
fn a_copy_of_a_snapshot_is_made_though_a_block_is_right_nowhere() {
    let cluster = Cluster::with_volume(84);
    cluster.simulation.power_off(cluster.hosts[2]);
    cluster.configure(2, 0, &[0, 1]);
    let snapshot = SnapshotId(5);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for n in 0..9 {
            client.write_until_done(2, n * 30, n).await;
        }
        // Bytes like any others, though they are those by which a block is known that is lost.
        let mut buffer = BufferPool::current().try_allocate(4096).unwrap();
        buffer.copy_from_slice(&LOST_BLOCK[..]);
        let (write, data) = (NativeOperation::Write { fua: false }, Data::From(buffer.freeze()));
        assert_eq!(client.run(write, 2, 4, 1, data).await.0, Status::Done);
        for operation in [NativeOperation::Cut(snapshot), NativeOperation::Release(snapshot)] {
            let (status, _) = client.run(operation, 2, 0, 0, Data::None).await;
            assert_eq!(status, Status::Done);
        }
        // The snapshot's first cluster is its own from now on.
        client.write_until_done(2, 0, 100).await;
    });
    let harmed = [0, 1].map(|node| harm(&cluster, node, &expected(0)[..4096]));
    come_back(&cluster);
    for index in 0..3 {
        let node = cluster.node(index);
        cluster
            .simulation
            .start(cluster.hosts[index], move || async move {
                node.keep_snapshots([((VolumeNumber(VOLUME), snapshot), 1)]);
            });
    }
    cluster.simulation.run_for(Duration::from_secs(20));
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[2], 2, 2).await.unwrap();
        assert_eq!(read_snapshot(&client, 5, 0).await, Err(Status::DeviceFailed));
        for n in 1..9 {
            assert!(read_snapshot(&client, 5, n * 30).await == Ok(expected(n)), "{n}");
        }
        let others = read_snapshot(&client, 5, 4).await.unwrap();
        assert!(others[..4096] == LOST_BLOCK[..], "they were written, not lost");
        assert!(client.read_until_done(3, 0).await == expected(100));
    });
    a_clone_has_it_wrong_too(&cluster, snapshot);
    let losses = || [0, 1, 2].map(|node| cluster.node(node).snapshot_losses());
    let lost = SnapshotLoss {
        chunk: agentlink::Chunk {
            volume: VOLUME,
            index: 0,
        },
        snapshot: 5,
        lost: 1,
    };
    assert_eq!(losses(), [vec![lost], vec![lost], vec![lost]]);
    // One of the others reads it right after all.
    let disk = cluster.simulation.disk(cluster.hosts[1], Path::new("/disk"));
    disk.damage(harmed[1], &expected(0)[..1]);
    cluster.simulation.run_for(Duration::from_secs(150));
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        for (node, host) in hosts.iter().enumerate() {
            let client = Client::connect(*host, node, 3).await.unwrap();
            assert!(
                read_snapshot(&client, 5, 0).await == Ok(expected(0)),
                "node {node}"
            );
        }
    });
    assert_eq!(losses(), [vec![], vec![], vec![]]);
}
