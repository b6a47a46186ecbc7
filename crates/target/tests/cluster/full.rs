//! Disks that are full for a while: their copies are left out and come back in the same life of their target once there is room, or,
//! where they cannot be, writes that need room are refused and everything else goes on.

use super::checksums::find;
use super::*;
use std::path::Path;

fn set_full(cluster: &Cluster, node: usize, is_full: bool) {
    let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
    disk.set_limit_bytes(if is_full { 0 } else { u64::MAX });
}

fn proposals_of(cluster: &Cluster, node: usize) -> Proposals {
    let proposals = Proposals::default();
    let (at, heard) = (cluster.node(node), proposals.clone());
    cluster
        .simulation
        .start(cluster.hosts[node], move || hear(at, heard));
    proposals
}

fn write(cluster: &Cluster, epoch: u64, range: std::ops::Range<u64>, salt: u64) {
    let hosts = cluster.hosts.clone();
    on_client(cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[0], 0, epoch).await.unwrap();
        for n in range {
            client.write_until_done(epoch, n * 30, n + salt).await;
        }
    });
}

/// A write that waits for the masters.
fn begin_write(cluster: &Cluster, epoch: u64, n: u64, salt: u64) {
    let hosts = cluster.hosts.clone();
    let host = cluster.simulation.add_host("waits");
    cluster.simulation.start(host, move || async move {
        let client = Client::connect(hosts[0], 0, epoch).await.unwrap();
        client.write(epoch, n * 30, n + salt).await;
    });
}

/// Waits until node 0 proposes this.
fn wait_for(cluster: &Cluster, proposals: &Proposals, wanted: (u64, Vec<u128>)) {
    for _ in 0..600 {
        if proposals.borrow().last() == Some(&wanted) {
            return;
        }
        cluster.simulation.run_for(Duration::from_millis(100));
    }
    panic!("proposed was {:?}, not {wanted:?}", proposals.borrow());
}

fn check(cluster: &Cluster, node: usize, epoch: u64, salts: Vec<u64>) {
    let hosts = cluster.hosts.clone();
    on_client(cluster, Duration::from_secs(40), move || async move {
        let client = Client::connect(hosts[node], node, 1).await.unwrap();
        for (n, salt) in (0..).zip(salts) {
            let read = client.read_until_done(epoch, n * 30).await;
            assert!(read == expected(n + salt), "write {n} is lost");
        }
    });
}

#[test]
fn a_copy_that_was_left_out_since_its_disk_was_full_comes_back_once_there_is_room() {
    for seed in 0..3 {
        let cluster = Cluster::with_volume(700 + seed);
        let proposals = proposals_of(&cluster, 0);
        write(&cluster, 1, 0..20, 0);
        set_full(&cluster, 2, true);
        begin_write(&cluster, 1, 19, 1000);
        cluster.simulation.run_for(Duration::from_secs(3));
        assert_eq!(proposals.borrow().last(), Some(&(1, vec![1, 2])));
        cluster.tell(&[0, 1, 2], 2, 0, &[0, 1]);
        cluster.simulation.run_for(Duration::from_secs(4));
        write(&cluster, 2, 10..30, 1000);
        cluster.simulation.run_for(Duration::from_secs(20));
        assert_eq!(proposals.borrow().len(), 1, "it cannot be in sync without room");
        set_full(&cluster, 2, false);
        wait_for(&cluster, &proposals, (2, vec![1, 2, 3]));
        cluster.configure(3, 0, &[0, 1, 2]);
        write(&cluster, 3, 25..32, 2000);
        cluster.simulation.power_off(cluster.hosts[0]);
        cluster.configure(4, 2, &[1, 2]);
        let salt = |n: u64| [0, 1000, 2000][usize::from(n >= 10) + usize::from(n >= 25)];
        check(&cluster, 2, 4, (0..32).map(salt).collect());
        cluster.end();
    }
}

/// Neither of two copies can be left out: writes are refused (the disk takes none at all, the record's among them), and reads go on.
#[test]
fn a_chunk_whose_disk_is_full_is_read_and_takes_more_once_there_is_room() {
    for seed in 0..3 {
        for full in [0, 1] {
            let cluster = Cluster::with_volume(800 + seed);
            write(&cluster, 1, 0..20, 0);
            cluster.simulation.power_off(cluster.hosts[2]);
            cluster.configure(2, 0, &[0, 1]);
            write(&cluster, 2, 5..10, 500);
            let proposals = proposals_of(&cluster, 0);
            set_full(&cluster, full, true);
            let hosts = cluster.hosts.clone();
            on_client(&cluster, Duration::from_secs(30), move || async move {
                let client = Client::connect(hosts[0], 0, 2).await.unwrap();
                for n in [31, 32, 33, 31] {
                    let began = time::now();
                    assert_eq!(client.write(2, n * 30, n).await, Status::NoRoom);
                    let took = time::now().since(began);
                    assert!(took < Duration::from_secs(4), "{took:?}");
                }
            });
            let salt = |n: u64| if (5..10).contains(&n) { 500 } else { 0 };
            for node in [0, 1] {
                check(&cluster, node, 2, (0..20).map(salt).collect());
            }
            set_full(&cluster, full, false);
            cluster.simulation.run_for(Duration::from_secs(20));
            write(&cluster, 2, 31..34, 0);
            assert_eq!(*proposals.borrow(), [], "another configuration would help nobody");
            let hosts = cluster.hosts.clone();
            on_client(&cluster, Duration::from_secs(30), move || async move {
                let client = Client::connect(hosts[1], 1, 1).await.unwrap();
                for n in 31..34 {
                    assert!(client.read_until_done(2, n * 30).await == expected(n));
                }
            });
            cluster.end();
        }
    }
}

/// The disk takes what lies before the block, changes of the record among them, so that each attempt to mend the block finds no room. None of
/// them makes its wrong bytes pass for right: the node that is to order the next epoch would give them to the others.
#[test]
fn a_block_whose_mending_finds_no_room_is_found_wrong_again_however_often() {
    for seed in 0..3 {
        let cluster = Cluster::with_volume(900 + seed);
        write(&cluster, 1, 0..20, 0);
        cluster.simulation.power_off(cluster.hosts[2]);
        cluster.configure(2, 0, &[0, 1]);
        write(&cluster, 2, 7..8, 0);
        let disk = cluster.simulation.disk(cluster.hosts[1], Path::new("/disk"));
        let at = find(&cluster, 1, &expected(7));
        let byte = disk.read(at + 77, 1)[0];
        disk.damage(at + 77, &[byte ^ 8]);
        disk.set_limit_bytes(at);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(12), move || async move {
            let client = Client::connect(hosts[1], 1, 1).await.unwrap();
            let until = time::now() + Duration::from_secs(10);
            while time::now() < until {
                let buffer = BufferPool::current().try_allocate(8192).unwrap();
                let read = client.run(NativeOperation::Read, 2, 7 * 30, 2, Data::Into(buffer));
                assert_ne!(read.await.0, Status::Done, "the block cannot be mended");
                time::sleep(Duration::from_millis(20)).await;
            }
        });
        let shown = cluster.node(1).damage().copies;
        disk.set_limit_bytes(u64::MAX);
        cluster.configure(3, 1, &[0, 1]);
        for node in [1, 0] {
            check(&cluster, node, 3, (0..20).map(|_| 0).collect());
        }
        assert!(disk.read(at, 4096) == expected(7)[..4096], "it is mended");
        // What is shown meanwhile.
        assert!(
            matches!(shown[..], [copy] if (copy.damaged, copy.repaired) == (1, 0)),
            "{shown:?}"
        );
        cluster.end();
    }
}
