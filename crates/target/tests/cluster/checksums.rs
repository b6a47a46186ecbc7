//! Checksums of blocks on whole nodes: bits that change on a disk while it is in use and while it is not, and copies
//! that come back while every chunk is written all the time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use agentlink::{Chunk, Configuration, FromTarget};
use bdev::Data;
use reactor::time;
use volume::message::codec::NativeOperation;
use volume::{Geometry, Status};

use super::{expected, on_client};
use crate::support::{Client, Cluster, DISK, VOLUME, geometry};

/// Where a node's disk holds these bytes.
pub(super) fn find(cluster: &Cluster, node: usize, bytes: &[u8]) -> u64 {
    let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
    let mut places = (0..disk.length_bytes()).step_by(4096);
    let found = places.find(|&at| disk.read(at, 4096) == bytes[..4096]);
    found.expect("the block is on the disk")
}

/// Flips a bit of one copy of each block that was written, reads it there, and finds it mended.
fn flip_and_read(cluster: &Cluster, epoch: u64, session: u64) {
    for n in 0..9u64 {
        let node = n as usize % 3;
        let at = find(cluster, node, &expected(n));
        let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
        let byte = disk.read(at + 77, 1)[0];
        disk.damage(at + 77, &[byte ^ 8]);
        let hosts = cluster.hosts.clone();
        on_client(cluster, Duration::from_secs(20), move || async move {
            let client = Client::connect(hosts[node], node, session + n).await.unwrap();
            assert!(
                client.read_until_done(epoch, n * 30).await == expected(n),
                "block {n} of node {node}"
            );
        });
        assert!(
            disk.read(at, 4096) == expected(n)[..4096],
            "block {n} of node {node} is not mended"
        );
    }
}

#[test]
fn a_bit_that_changes_on_a_disk_is_read_right_and_mended() {
    let before = target::node::CHECKSUMS
        .repaired_blocks
        .load(std::sync::atomic::Ordering::Relaxed);
    let cluster = Cluster::with_volume(71);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for n in 0..9u64 {
            client.write_until_done(1, n * 30, n).await;
        }
        let (status, _) = client.run(NativeOperation::Flush, 1, 0, 0, Data::None).await;
        assert_eq!(status, Status::Done);
    });
    flip_and_read(&cluster, 1, 10);
    let after = target::node::CHECKSUMS
        .repaired_blocks
        .load(std::sync::atomic::Ordering::Relaxed);
    assert!(after >= before + 9, "{before} {after}");
    // All flushes of an idle chunk later no region is marked, and every sum is on the disks.
    cluster.simulation.run_for(Duration::from_secs(20));
    for host in &cluster.hosts {
        cluster.simulation.power_off(*host);
    }
    cluster.simulation.run_for(Duration::from_secs(1));
    (0..3).for_each(|index| cluster.start(index));
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.configure(2, 2, &[0, 1, 2]);
    cluster.simulation.run_for(Duration::from_secs(8));
    flip_and_read(&cluster, 2, 100);
}

#[test]
fn a_block_that_no_copy_has_right_is_an_error_until_it_is_written() {
    let cluster = Cluster::with_volume(72);
    // Of all copies: damaged, written since, lost.
    let shown = |cluster: &Cluster| {
        let damage = (0..3).flat_map(|index| cluster.node(index).damage().copies);
        damage.fold((0u64, 0u64, 0u32), |(damaged, repaired, lost), copy| {
            (damaged + copy.damaged, repaired + copy.repaired, lost + copy.lost)
        })
    };
    assert_eq!(shown(&cluster), (0, 0, 0));
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        client.write_until_done(1, 0, 1).await;
    });
    for node in 0..3 {
        let at = find(&cluster, node, &expected(1));
        let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
        disk.damage(at, &[0xee; 9]);
    }
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        for (node, host) in hosts.iter().enumerate() {
            let client = Client::connect(*host, node, 2).await.unwrap();
            let deadline = time::now() + Duration::from_secs(10);
            loop {
                let buffer = reactor::BufferPool::current().try_allocate(8192).unwrap();
                let read = client
                    .run(NativeOperation::Read, 1, 0, 2, Data::Into(buffer))
                    .await;
                match read.0 {
                    Status::DeviceFailed => break,
                    Status::NotReady => assert!(time::now() < deadline, "node {node}"),
                    other => panic!("node {node} says {other:?} of a block that nobody has"),
                }
                time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    // The block is two of the volume's, one of which is damaged; the write node alone says that it is lost.
    assert_eq!(shown(&cluster), (3, 0, 1));
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let client = Client::connect(hosts[0], 0, 2).await.unwrap();
        client.write_until_done(1, 0, 2).await;
        for (node, host) in hosts.iter().enumerate() {
            let client = Client::connect(*host, node, 3).await.unwrap();
            assert!(client.read_until_done(1, 0).await == expected(2));
        }
    });
    assert_eq!(shown(&cluster), (3, 3, 0));
}

const CHUNKS: u32 = 16;
const UNIT: u32 = 16;

struct Volume {
    /// Of each chunk; the write node is always the first node.
    configurations: RefCell<Vec<Configuration>>,
    proposals: RefCell<VecDeque<(u32, u64, Configuration)>>,
    written: RefCell<Vec<u64>>,
    stop: Cell<bool>,
}

async fn hear(node: Rc<target::node::Node>, volume: Rc<Volume>) {
    let (sender, mut receiver) = reactor::sync::channel(256);
    node.set_agent(sender);
    drop(node);
    while let Some(message) = receiver.recv().await {
        if let FromTarget::Propose {
            chunk,
            expected,
            configuration,
        } = message
        {
            let proposal = (chunk.index, expected, configuration);
            volume.proposals.borrow_mut().push_back(proposal);
        }
    }
}

/// Writes one chunk without a pause, each place again and again.
async fn write_chunk(chunk: u32, client: Rc<Client>, volume: Rc<Volume>) {
    let mut n = 0;
    while !volume.stop.get() {
        let epoch = volume.configurations.borrow()[chunk as usize].epoch;
        // A stripe is as many units as there are chunks.
        let stripe = n % 8 * u64::from(CHUNKS * UNIT);
        let lba = stripe + u64::from(chunk * UNIT) + n % 7 * 2;
        match client.write(epoch, lba, n).await {
            Status::Done => {
                volume.written.borrow_mut()[chunk as usize] += 1;
                time::sleep(Duration::from_millis(4)).await;
            }
            _ => time::sleep(Duration::from_millis(10)).await,
        }
        n += 1;
    }
}

struct Loaded {
    cluster: Cluster,
    volume: Rc<Volume>,
}

impl Loaded {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::new(seed);
        cluster.simulation.run_for(Duration::from_secs(2));
        let geometry = Geometry {
            stripe_unit_blocks: UNIT,
            chunk_blocks: 128,
            region_blocks: 16,
            group_chunks: vec![CHUNKS],
            ..geometry()
        };
        for index in 0..3 {
            let (node, geometry) = (cluster.node(index), geometry.clone());
            cluster
                .simulation
                .start(cluster.hosts[index], move || async move {
                    for chunk in 0..CHUNKS {
                        let chunk = target::node::from_chunk(Chunk {
                            volume: VOLUME,
                            index: chunk,
                        });
                        let made = node.create_copy(chunk, geometry.clone(), (DISK + index as u128, true));
                        made.await.unwrap();
                    }
                });
        }
        cluster.simulation.run_for(Duration::from_secs(2));
        let members = (0..3).map(|n| (1 + n as u128, cluster.incarnation(n)));
        let first = Configuration {
            epoch: 1,
            write_node: 1,
            members: members.collect(),
        };
        let volume = Rc::new(Volume {
            configurations: RefCell::new(vec![first; CHUNKS as usize]),
            proposals: RefCell::default(),
            written: RefCell::new(vec![0; CHUNKS as usize]),
            stop: Cell::new(false),
        });
        let loaded = Self { cluster, volume };
        for chunk in 0..CHUNKS {
            loaded.tell(chunk, &[0, 1, 2]);
        }
        loaded.listen_to(0);
        loaded
    }

    fn listen_to(&self, index: usize) {
        let (node, volume) = (self.cluster.node(index), self.volume.clone());
        self.cluster
            .simulation
            .start(self.cluster.hosts[index], move || hear(node, volume));
    }

    fn tell(&self, chunk: u32, nodes: &[usize]) {
        let configuration = self.volume.configurations.borrow()[chunk as usize].clone();
        for &index in nodes {
            let (node, configuration) = (self.cluster.node(index), configuration.clone());
            self.cluster
                .simulation
                .start(self.cluster.hosts[index], move || async move {
                    let chunk = target::node::from_chunk(Chunk {
                        volume: VOLUME,
                        index: chunk,
                    });
                    node.configure(chunk, target::node::to_config(&configuration));
                });
        }
    }

    /// The masters commit what is asked for, and tell those who live.
    fn pass(&self, time: Duration, nodes: &[usize]) {
        let slice = Duration::from_millis(50);
        for _ in 0..time.as_millis() / slice.as_millis() {
            self.cluster.simulation.run_for(slice);
            while let Some((chunk, asked, configuration)) = self.next_proposal() {
                let known = self.volume.configurations.borrow()[chunk as usize].epoch;
                if known == asked {
                    self.volume.configurations.borrow_mut()[chunk as usize] = configuration;
                    self.tell(chunk, nodes);
                }
            }
        }
    }

    fn next_proposal(&self) -> Option<(u32, u64, Configuration)> {
        self.volume.proposals.borrow_mut().pop_front()
    }

    fn members(&self) -> Vec<usize> {
        let configurations = self.volume.configurations.borrow();
        configurations.iter().map(|c| c.members.len()).collect()
    }
}

/// A copy that has to read its pages of sums, and a write node that has to read its own for what it resends, both under
/// writes that never pause: nothing may wait for ever behind what only needs its turn.
#[test]
fn every_copy_comes_back_while_all_chunks_are_written_without_a_pause() {
    for seed in 0..1 {
        let loaded = Loaded::new(700 + seed);
        let (host, volume) = (loaded.cluster.hosts[0], loaded.volume.clone());
        let writer = loaded.cluster.simulation.add_host("writer");
        loaded.cluster.simulation.start(writer, move || async move {
            for task in 0..CHUNKS {
                let client = Client::connect_as(1000 + u64::from(task), host, 0, 1);
                let client = Rc::new(client.await.unwrap());
                drop(reactor::spawn(write_chunk(task % CHUNKS, client, volume.clone())));
            }
            std::future::pending::<()>().await;
        });
        loaded.pass(Duration::from_secs(2), &[0, 1, 2]);
        for round in 0..1 {
            loaded.cluster.simulation.power_off(loaded.cluster.hosts[2]);
            loaded.pass(Duration::from_secs(6), &[0, 1]);
            assert_eq!(loaded.members(), [2; CHUNKS as usize], "it is left out");
            let before = loaded.volume.written.borrow().clone();
            loaded.cluster.start(2);
            loaded.pass(Duration::from_secs(1), &[0, 1]);
            for chunk in 0..CHUNKS {
                loaded.tell(chunk, &[2]);
            }
            let mut waited = 0;
            while loaded.members() != [3; CHUNKS as usize] {
                assert!(waited < 40, "seed {seed} round {round}: {:?}", loaded.members());
                loaded.pass(Duration::from_secs(1), &[0, 1, 2]);
                waited += 1;
            }
            let after = loaded.volume.written.borrow().clone();
            for (chunk, (before, after)) in before.iter().zip(&after).enumerate() {
                assert!(
                    after > &(before + 20),
                    "chunk {chunk} was written meanwhile: {before} {after}"
                );
            }
        }
        loaded.volume.stop.set(true);
    }
}
