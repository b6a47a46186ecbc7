//! Three whole nodes on simulated hosts: real replication core, real NVMe/TCP between them, real blobstores on
//! simulated disks. The masters are played by the test. A native client writes and reads through the peer subsystem.

mod agree;
mod checksums;
mod clones;
mod counters;
mod full;
mod gently;
mod histories;
mod journal;
mod lost;
mod masters;
mod moves;
mod portals;
mod power_cuts;
mod snapshots;
mod support;
mod sync_writes;
mod two_disks;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bdev::Data;
use foundation::{ByteCount, Epoch, Random};
use protocols::nvme::Status as NvmeStatus;
use reactor::sim::Simulation;
use reactor::{BufferPool, time};
use support::{Client, Cluster, DISK, VOLUME, geometry};
use target::node::{DiskConfig, Identity, Node};
use volume::message::codec::NativeOperation;
use volume::{ClusterId, Incarnation, NodeId, Settings, Status, VolumeNumber};

fn expected(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    Random::from_seed(seed).fill(&mut bytes);
    bytes
}

fn on_client<F: Future<Output = ()> + 'static>(cluster: &Cluster, limit: Duration, make: impl FnOnce() -> F) {
    let host = cluster.simulation.add_host("client");
    let done = Rc::new(std::cell::Cell::new(false));
    let flag = done.clone();
    let work = make();
    cluster.simulation.start(host, move || async move {
        work.await;
        flag.set(true);
    });
    cluster.simulation.run_for(limit);
    assert!(done.get(), "the client has not finished");
}

#[test]
fn what_one_node_acknowledges_every_node_reads() {
    let cluster = Cluster::with_volume(1);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let clients = [
            Client::connect(hosts[0], 0, 1).await.unwrap(),
            Client::connect(hosts[1], 1, 1).await.unwrap(),
            Client::connect(hosts[2], 2, 1).await.unwrap(),
        ];
        for n in 0..20u64 {
            clients[0].write_until_done(1, n * 30, n).await;
        }
        for n in 0..20u64 {
            for client in &clients {
                assert!(client.read_until_done(1, n * 30).await == expected(n));
            }
        }
        let (status, _) = clients[0].run(NativeOperation::Flush, 1, 0, 0, Data::None).await;
        assert_eq!(status, Status::Done);
        // Another node's word on writes, an old map, a wrong range.
        assert_eq!(clients[1].write(1, 0, 5).await, Status::NotWriteNode(Epoch(1)));
        assert_eq!(clients[0].write(0, 0, 5).await, Status::StaleEpoch(Epoch(1)));
    });
}

/// Bytes in a capsule of a command that has none belong to nothing: they must not go on to other copies, which refuse them, so that
/// the write node would leave those out.
#[test]
fn bytes_with_a_change_that_has_none_are_refused_and_harm_nobody() {
    let cluster = Cluster::with_volume(1);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        client.write_until_done(1, 0, 5).await;
        for (operation, blocks) in [
            (NativeOperation::WriteZeroes { fua: false }, 2),
            (NativeOperation::Deallocate { fua: false }, 2),
            (NativeOperation::Fence, 0),
        ] {
            let mut buffer = BufferPool::current().try_allocate(4096).unwrap();
            buffer.fill(1);
            let data = Data::From(buffer.freeze());
            let (answer, _) = client.ask(operation, 1, 0, blocks, data).await;
            let status = answer.expect("it is answered").status();
            assert_eq!(status, NvmeStatus::INVALID_FIELD_IN_COMMAND, "{operation:?}");
        }
        // All copies take part still, under the same epoch.
        time::sleep(Duration::from_secs(20)).await;
        assert_eq!(client.write(1, 0, 6).await, Status::Done);
        assert!(client.read_until_done(1, 0).await == expected(6));
    });
}

#[test]
fn a_killed_write_node_is_replaced_and_nothing_acknowledged_is_lost() {
    for seed in 0..5 {
        let cluster = Cluster::with_volume(100 + seed);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(30), move || async move {
            let client = Client::connect(hosts[0], 0, 1).await.unwrap();
            for n in 0..20u64 {
                client.write_until_done(1, n * 30, n).await;
            }
        });
        cluster.simulation.power_off(cluster.hosts[0]);
        // The masters notice, and name node 1 the write node of what is left.
        cluster.configure(2, 1, &[1, 2]);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(40), move || async move {
            let clients = [
                Client::connect(hosts[1], 1, 2).await.unwrap(),
                Client::connect(hosts[2], 2, 2).await.unwrap(),
            ];
            for n in 0..20u64 {
                assert!(
                    clients[1].read_until_done(2, n * 30).await == expected(n),
                    "write {n} is lost"
                );
            }
            clients[0].write_until_done(2, 0, 1000).await;
            for client in &clients {
                assert!(client.read_until_done(2, 0).await == expected(1000));
            }
        });
    }
}

#[test]
fn after_a_common_power_cut_flushed_writes_are_there() {
    let cluster = Cluster::with_volume(7);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for n in 0..20u64 {
            client.write_until_done(1, n * 30, n).await;
        }
        let (status, _) = client.run(NativeOperation::Flush, 1, 0, 0, Data::None).await;
        assert_eq!(status, Status::Done);
    });
    for host in &cluster.hosts {
        cluster.simulation.power_off(*host);
    }
    cluster.simulation.run_for(Duration::from_secs(1));
    for index in 0..3 {
        cluster.start(index);
    }
    cluster.simulation.run_for(Duration::from_secs(2));
    // Every named incarnation has ended: the masters name the new ones.
    cluster.configure(2, 2, &[0, 1, 2]);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(40), move || async move {
        let client = Client::connect(hosts[2], 2, 2).await.unwrap();
        for n in 0..20u64 {
            assert!(
                client.read_until_done(2, n * 30).await == expected(n),
                "flushed write {n} is lost"
            );
        }
        client.write_until_done(2, 0, 1000).await;
        assert!(client.read_until_done(2, 0).await == expected(1000));
    });
}

/// The epochs that a node would have replaced, and by which members.
type Proposals = Rc<RefCell<Vec<(u64, Vec<u128>)>>>;

/// What a node asks of the masters.
async fn hear(node: Rc<Node>, proposals: Proposals) {
    let (sender, mut receiver) = reactor::sync::channel(64);
    node.set_agent(sender);
    drop(node);
    while let Some(message) = receiver.recv().await {
        if let agentlink::FromTarget::Propose {
            expected,
            configuration,
            ..
        } = message
        {
            let members = configuration.members.iter().map(|(node, _)| *node);
            proposals.borrow_mut().push((expected, members.collect()));
        }
    }
}

#[test]
fn a_copy_that_comes_back_gets_what_it_missed_and_takes_over() {
    for seed in 0..4 {
        let cluster = Cluster::with_volume(500 + seed);
        let write = |epoch, range: std::ops::Range<u64>, salt: u64| {
            let hosts = cluster.hosts.clone();
            on_client(&cluster, Duration::from_secs(30), move || async move {
                let client = Client::connect(hosts[0], 0, epoch).await.unwrap();
                for n in range {
                    client.write_until_done(epoch, n * 30, n + salt).await;
                }
            });
        };
        write(1, 0..20, 0);
        cluster.simulation.power_off(cluster.hosts[2]);
        cluster.configure(2, 0, &[0, 1]);
        write(2, 10..30, 1000);

        // It is back, in another life, and hears from its masters that it is out of sync.
        let proposals = Rc::new(RefCell::new(Vec::<(u64, Vec<u128>)>::new()));
        let (node, heard) = (cluster.node(0), proposals.clone());
        cluster
            .simulation
            .start(cluster.hosts[0], move || hear(node, heard));
        cluster.start(2);
        cluster.simulation.run_for(Duration::from_secs(2));
        assert!(
            proposals.borrow().is_empty(),
            "it joins nothing for a term after its start"
        );
        cluster.tell(&[2], 2, 0, &[0, 1]);
        cluster.simulation.run_for(Duration::from_secs(3));
        assert_eq!(proposals.borrow().first(), Some(&(2_u64, vec![1_u128, 2, 3])));
        cluster.configure(3, 0, &[0, 1, 2]);
        write(3, 25..32, 2000);

        // The write node dies, and the copy that was away takes its place.
        cluster.simulation.power_off(cluster.hosts[0]);
        cluster.configure(4, 2, &[1, 2]);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(40), move || async move {
            let client = Client::connect(hosts[2], 2, 1).await.unwrap();
            for n in 0..32u64 {
                let salt = [0_u64, 1000, 2000][usize::from(n >= 10) + usize::from(n >= 25)];
                let read = client.read_until_done(4, n * 30).await;
                assert!(read == expected(n + salt), "write {n} is lost");
            }
        });
    }
}

#[test]
fn a_fence_holds_on_every_node_and_after_a_restart_of_all() {
    for seed in 0..4 {
        let cluster = Cluster::with_volume(300 + seed);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(30), move || async move {
            let nobody = Client::connect(hosts[0], 0, 1).await.unwrap();
            // Until somebody has a lease anyone may write.
            nobody.write_until_done(1, 0, 1).await;
            let old = Client::writer(hosts[0], 0, 1).await;
            old.fence_until_done(1).await;
            nobody.is_fenced(1, 1).await;
            old.write_until_done(1, 30, 2).await;
            // A write under a newer token fences as well.
            let newer = Client::writer(hosts[0], 0, 2).await;
            newer.write_until_done(1, 60, 3).await;
            old.is_fenced(1, 2).await;
            let newest = Client::writer(hosts[0], 0, 3).await;
            newest.fence_until_done(1).await;
        });
        for host in &cluster.hosts {
            cluster.simulation.power_off(*host);
        }
        cluster.simulation.run_for(Duration::from_secs(1));
        (0..3).for_each(|index| cluster.start(index));
        cluster.simulation.run_for(Duration::from_secs(2));
        cluster.configure(2, 2, &[0, 1, 2]);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(40), move || async move {
            let newer = Client::writer(hosts[2], 2, 2).await;
            newer.is_fenced(2, 3).await;
            let newest = Client::writer(hosts[2], 2, 3).await;
            newest.write_until_done(2, 90, 4).await;
        });
        cluster.simulation.power_off(cluster.hosts[2]);
        cluster.configure(3, 1, &[0, 1]);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(40), move || async move {
            let newer = Client::writer(hosts[1], 1, 2).await;
            newer.is_fenced(3, 3).await;
            let nobody = Client::connect(hosts[1], 1, 2).await.unwrap();
            nobody.is_fenced(3, 3).await;
            let newest = Client::writer(hosts[1], 1, 3).await;
            newest.write_until_done(3, 0, 5).await;
            assert!(newest.read_until_done(3, 90).await == expected(4));
        });
    }
}

#[test]
fn writers_follow_each_other_without_end() {
    let cluster = Cluster::with_volume(9);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        // Each is a host of its own, as every process is.
        for token in 1..=volume::SESSIONS_MAX as u64 + 20 {
            let writer = Client::writer(hosts[0], 0, token).await;
            writer.write_until_done(1, 0, token).await;
        }
        let last = volume::SESSIONS_MAX as u64 + 20;
        let client = Client::connect(hosts[1], 1, 1).await.unwrap();
        assert!(client.read_until_done(1, 0).await == expected(last));
    });
}

#[test]
fn one_seed_one_trace() {
    let trace = |seed| {
        let cluster = Cluster::with_volume(seed);
        cluster.simulation.run_for(Duration::from_secs(2));
        cluster.simulation.trace()
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

#[test]
fn a_foreign_disk_is_refused() {
    let simulation = Simulation::new(1);
    let host = simulation.add_host("node");
    simulation
        .disk(host, Path::new("/disk"))
        .damage(0, b"somebody's data");
    let said = Rc::new(RefCell::new(String::new()));
    let place = said.clone();
    simulation.start(host, move || async move {
        let disk = DiskConfig {
            path: PathBuf::from("/disk"),
            size: Some(ByteCount(32 << 20)),
            new_uuid: 1,
            force: false,
            trust: Default::default(),
        };
        let identity = Identity {
            cluster: ClusterId(1),
            node: NodeId(1),
            incarnation: Incarnation(1),
        };
        // The file is as long as a disk, and not empty.
        let file = reactor::file::File::open(
            Path::new("/disk"),
            reactor::file::OpenOptions {
                write: true,
                create: true,
                direct: false,
            },
        );
        file.unwrap().set_length_bytes(32 << 20).unwrap();
        let refused = Node::start(identity, &[disk], Settings::default()).await;
        *place.borrow_mut() = refused.err().map(|error| error.to_string()).unwrap_or_default();
    });
    simulation.run_for(Duration::from_secs(5));
    assert!(
        said.borrow().contains("holds something that is not Redhare's"),
        "{}",
        said.borrow()
    );
}

/// A volume's chunk copies go from their disks and from the node's memory while clients use them.
#[test]
fn a_volume_that_is_deleted_in_use_refuses_what_was_asked() {
    let cluster = Cluster::with_volume(11);
    let free = cluster.node(0).disks()[0].free_bytes;
    let (hosts, node) = (cluster.hosts.clone(), cluster.node(0));
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Rc::new(Client::connect(hosts[0], 0, 1).await.unwrap());
        client.write_until_done(1, 0, 1).await;
        let running: Vec<_> = (0..20u64)
            .map(|n| {
                let client = client.clone();
                reactor::spawn(async move { client.write(1, n * 30, n).await })
            })
            .collect();
        node.delete_volume(VolumeNumber(VOLUME)).await;
        for write in running {
            let status = write.await.expect("it is not aborted");
            assert!(
                matches!(
                    status,
                    Status::Done | Status::Unknown | Status::StaleEpoch(_) | Status::NotReady
                ),
                "{status:?}"
            );
        }
        assert_eq!(
            client.write(1, 0, 1).await,
            Status::NotReady,
            "the volume is not here any more"
        );
    });
    assert!(cluster.node(0).disks()[0].free_bytes >= free);
}

#[test]
fn a_copy_whose_record_is_damaged_does_not_keep_its_node_from_starting() {
    let cluster = Cluster::with_volume(12);
    cluster.simulation.run_for(Duration::from_secs(1));
    cluster.simulation.stop(cluster.hosts[1]);
    let disk = cluster.simulation.disk(cluster.hosts[1], Path::new("/disk"));
    let places: Vec<u64> = (0..disk.length_bytes())
        .step_by(4096)
        .filter(|&at| disk.read(at, 7) == *b"RHCPSLT")
        .collect();
    assert!(!places.is_empty());
    for at in places {
        // The length says more than there is.
        disk.damage(at + 16, &[0xff; 8]);
    }
    cluster.start(1);
    cluster.simulation.run_for(Duration::from_secs(2));
    let node = cluster.node(1);
    let made = Rc::new(RefCell::new(String::new()));
    let place = made.clone();
    cluster.simulation.start(cluster.hosts[1], move || async move {
        let chunk = target::node::from_chunk(agentlink::Chunk {
            volume: VOLUME,
            index: 0,
        });
        let again = node.create_copy(chunk, geometry(), (DISK + 1, true)).await;
        *place.borrow_mut() = again.map_err(|error| error.to_string()).unwrap_err();
        node.delete_volume(VolumeNumber(VOLUME)).await;
        node.create_copy(chunk, geometry(), (DISK + 1, true))
            .await
            .unwrap();
    });
    cluster.simulation.run_for(Duration::from_secs(2));
    assert!(made.borrow().contains("not made anew"), "{}", made.borrow());
}

#[test]
fn a_chunk_with_too_many_regions_for_its_record_is_refused() {
    let cluster = Cluster::new(13);
    cluster.simulation.run_for(Duration::from_secs(2));
    let node = cluster.node(0);
    let said = Rc::new(RefCell::new(String::new()));
    let place = said.clone();
    cluster.simulation.start(cluster.hosts[0], move || async move {
        let chunk = target::node::from_chunk(agentlink::Chunk {
            volume: VOLUME,
            index: 0,
        });
        let geometry = volume::Geometry {
            stripe_unit_blocks: 1,
            chunk_blocks: 4096,
            region_blocks: 1,
            ..geometry()
        };
        let refused = node.create_copy(chunk, geometry, (DISK, true)).await;
        *place.borrow_mut() = refused.map_err(|error| error.to_string()).unwrap_err();
    });
    cluster.simulation.run_for(Duration::from_secs(1));
    assert!(said.borrow().contains("larger regions"), "{}", said.borrow());
}

/// A volume of one chunk has one stripe unit as long as itself, so nothing else cuts long writes.
#[test]
fn the_longest_piece_is_written_to_all_copies() {
    let cluster = Cluster::with_volume(14);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let mut bytes = vec![0; volume::PIECE_BYTES_MAX as usize];
        Random::from_seed(14).fill(&mut bytes);
        let blocks = volume::PIECE_BYTES_MAX / 4096;
        let data = |bytes: &[u8]| {
            let mut buffer = reactor::BufferPool::current().try_allocate(bytes.len()).unwrap();
            buffer.copy_from_slice(bytes);
            buffer
        };
        let writer = Client::connect(hosts[0], 0, 1).await.unwrap();
        writer.write_until_done(1, 0, 1).await;
        let write = NativeOperation::Write { fua: false };
        let (status, _) = writer
            .run(write, 1, blocks.into(), blocks, Data::From(data(&bytes).freeze()))
            .await;
        assert_eq!(status, Status::Done);
        for (index, host) in hosts.iter().enumerate() {
            let client = Client::connect(*host, index, 2).await.unwrap();
            let deadline = reactor::time::now() + Duration::from_secs(5);
            loop {
                let room = Data::Into(data(&vec![0; bytes.len()]));
                let read = client.run(NativeOperation::Read, 1, blocks.into(), blocks, room);
                match read.await {
                    (Status::Done, read) => {
                        assert!(read.into_read()[..] == bytes[..], "node {index} has other bytes");
                        break;
                    }
                    // Until it has heard that the write is settled.
                    (status, _) => assert!(reactor::time::now() < deadline, "node {index}: still {status:?}"),
                }
                reactor::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
}

/// What a write node sends again and again to a member whose disk takes long must not fill the connection: by it go
/// the beacons, too.
#[test]
fn a_disk_that_hangs_does_not_keep_its_node_from_granting() {
    let cluster = Cluster::with_volume(14);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(10), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        client.write_until_done(1, 0, 1).await;
        client.write_until_done(1, 300, 1).await;
    });
    let disk = cluster.simulation.disk(cluster.hosts[1], Path::new("/disk"));
    disk.set_latency(Duration::from_secs(60), Duration::from_secs(60));
    // Without the third node every grant comes from the one with the bad disk. The masters do nothing.
    cluster.simulation.power_off(cluster.hosts[2]);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Rc::new(Client::connect(hosts[0], 0, 1).await.unwrap());
        for n in 0..40u64 {
            let client = client.clone();
            drop(reactor::spawn(async move {
                client.write(1, 310 + 2 * n, n).await;
            }));
        }
        for _ in 0..10 {
            assert!(client.read_until_done(1, 0).await == expected(1));
            reactor::time::sleep(Duration::from_secs(1)).await;
        }
        let buffer = reactor::BufferPool::current().try_allocate(8192).unwrap();
        let read = client
            .run(NativeOperation::Read, 1, 0, 2, Data::Into(buffer))
            .await;
        assert_eq!(read.0, Status::Done);
    });
}
