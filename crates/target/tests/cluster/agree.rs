//! Copies that fit their checksums and are not the same: a disk lost a write and the page of checksums that was written after it
//! (`docs/decisions/0144`).

use std::path::Path;
use std::time::Duration;

use bdev::Data;
use foundation::Random;
use foundation::checksum::crc32c;
use reactor::{BufferPool, time};
use volume::message::codec::{Agreed, NativeOperation};
use volume::{Status, sum_of};

use super::checksums::find;
use super::{expected, on_client};
use crate::support::{Client, Cluster};

const BLOCK_BYTES: usize = 4096;

fn lba(n: u64) -> u64 {
    n * 30
}

/// What a disk has in the place of a block.
fn other(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    Random::from_seed(9000 + n).fill(&mut bytes);
    bytes
}

/// A volume with blocks that are written and flushed, of which no region is marked any more, on nodes without power.
fn written(seed: u64) -> Cluster {
    let cluster = Cluster::with_volume(seed);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(30), move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for n in 0..6 {
            client.write_until_done(1, lba(n), n).await;
        }
        let (status, _) = client.run(NativeOperation::Flush, 1, 0, 0, Data::None).await;
        assert_eq!(status, Status::Done);
    });
    cluster.simulation.run_for(Duration::from_secs(20));
    for host in &cluster.hosts {
        cluster.simulation.power_off(*host);
    }
    cluster.simulation.run_for(Duration::from_secs(1));
    cluster
}

/// Gives a copy other bytes in the first of two blocks, and their checksum.
fn differ(cluster: &Cluster, node: usize, n: u64, bytes: &[u8]) -> u64 {
    let at = find(cluster, node, &expected(n));
    let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
    let right = sum_of(&disk.read(at, BLOCK_BYTES)).to_le_bytes();
    disk.damage(at, bytes);
    let mut changed = 0;
    for place in (0..disk.length_bytes()).step_by(BLOCK_BYTES) {
        let mut page = disk.read(place, BLOCK_BYTES);
        if page[..8] != *b"RHVSUMS\0" {
            continue;
        }
        for sum in page[64..].chunks_exact_mut(4).filter(|sum| **sum == right) {
            sum.copy_from_slice(&sum_of(bytes).to_le_bytes());
            changed += 1;
        }
        page[12..16].fill(0);
        let own = crc32c(&page).to_le_bytes();
        page[12..16].copy_from_slice(&own);
        disk.damage(place, &page);
    }
    assert!((1..=2).contains(&changed), "{changed} places");
    at
}

fn start_again(cluster: &Cluster) {
    (0..3).for_each(|index| cluster.start(index));
    cluster.simulation.run_for(Duration::from_secs(2));
    cluster.configure(2, 0, &[0, 1, 2]);
    cluster.simulation.run_for(Duration::from_secs(8));
}

async fn compare(client: &Client, epoch: u64, n: u64) -> (Status, Agreed) {
    let room = BufferPool::current().try_allocate(Agreed::BYTES).unwrap();
    let (status, data) = client
        .run(NativeOperation::CompareCopies, epoch, lba(n), 2, Data::Into(room))
        .await;
    (status, Agreed::decode(&data.into_read()))
}

#[test]
fn a_copy_that_most_others_contradict_gets_their_bytes() {
    let cluster = written(91);
    // The write node's own copy is one of them.
    let places: Vec<u64> = (0..3)
        .map(|node| differ(&cluster, node, node as u64, &other(7)))
        .collect();
    start_again(&cluster);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let mut clients = Vec::new();
        for (node, host) in hosts.iter().enumerate() {
            clients.push(Client::connect(*host, node, 2).await.unwrap());
        }
        for n in 0..3u64 {
            let read = clients[n as usize].read_until_done(2, lba(n)).await;
            assert!(
                read[..BLOCK_BYTES] == other(7),
                "its checksum says that it is right"
            );
        }
        let (status, _) = compare(&clients[1], 2, 0).await;
        assert_eq!(status, Status::NotReady, "another node orders the writes");
        for n in 0..4 {
            let (status, agreed) = compare(&clients[0], 2, n).await;
            let right = Agreed {
                compared: 2,
                mended: u32::from(n < 3),
                differing: 0,
                first: 0,
            };
            assert_eq!((status, agreed), (Status::Done, right), "{n}");
            for client in &clients {
                assert!(client.read_until_done(2, lba(n)).await == expected(n), "{n}");
            }
            let again = compare(&clients[0], 2, n).await.1;
            assert_eq!((again.compared, again.mended), (2, 0));
        }
    });
    for (node, at) in places.into_iter().enumerate() {
        let disk = cluster.simulation.disk(cluster.hosts[node], Path::new("/disk"));
        assert!(disk.read(at, BLOCK_BYTES) == expected(node as u64)[..BLOCK_BYTES]);
    }
}

/// A block of which three copies hold three different things, and the clients of the nodes.
fn with_three_contents(seed: u64) -> Cluster {
    let cluster = written(seed);
    differ(&cluster, 1, 3, &other(1));
    differ(&cluster, 2, 3, &other(2));
    start_again(&cluster);
    let (hosts, write_node) = (cluster.hosts.clone(), cluster.node(0));
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let client = Client::connect(hosts[0], 0, 2).await.unwrap();
        let (status, agreed) = compare(&client, 2, 3).await;
        let different = Agreed {
            compared: 2,
            mended: 0,
            differing: 1,
            first: 0,
        };
        assert_eq!((status, agreed), (Status::Done, different));
        for (node, first) in [expected(3), other(1), other(2)].into_iter().enumerate() {
            let client = Client::connect(hosts[node], node, 3).await.unwrap();
            let read = client.read_until_done(2, lba(3)).await;
            assert!(read[..BLOCK_BYTES] == first[..BLOCK_BYTES], "nothing has changed");
        }
        assert_eq!(write_node.differing().len(), 1);
    });
    cluster
}

#[test]
fn where_nothing_says_which_copy_is_right_people_hear_of_it_until_it_is_written() {
    let cluster = with_three_contents(92);
    let (hosts, write_node) = (cluster.hosts.clone(), cluster.node(0));
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let client = Client::connect(hosts[0], 0, 2).await.unwrap();
        client.write_until_done(2, lba(3), 3).await;
        assert_eq!(write_node.differing(), [], "before anybody looks");
        let (_, agreed) = compare(&client, 2, 3).await;
        assert_eq!((agreed.compared, agreed.mended, agreed.differing), (2, 0, 0));
    });
}

#[test]
fn a_node_that_orders_the_writes_no_more_says_nothing_of_copies_that_differ() {
    let cluster = with_three_contents(95);
    cluster.configure(3, 1, &[0, 1, 2]);
    cluster.simulation.run_for(Duration::from_secs(70));
    assert_eq!(cluster.node(0).differing(), []);
}

#[test]
fn while_a_copy_says_nothing_no_other_is_believed_to_be_wrong() {
    let cluster = written(96);
    let at = differ(&cluster, 2, 4, &other(3));
    start_again(&cluster);
    cluster.simulation.power_off(cluster.hosts[1]);
    let (hosts, write_node) = (cluster.hosts.clone(), cluster.node(0));
    on_client(&cluster, Duration::from_secs(60), move || async move {
        let client = Client::connect(hosts[0], 0, 2).await.unwrap();
        let (status, agreed) = compare(&client, 2, 4).await;
        assert_eq!((status, agreed), (Status::Done, Agreed::default()));
        assert_eq!(write_node.differing(), []);
    });
    let disk = cluster.simulation.disk(cluster.hosts[2], Path::new("/disk"));
    assert!(disk.read(at, BLOCK_BYTES) == other(3));
}

#[test]
fn the_odd_copy_is_found_in_the_background() {
    let cluster = written(93);
    let at = differ(&cluster, 2, 4, &other(3));
    start_again(&cluster);
    let node = cluster.node(0);
    cluster.simulation.start(cluster.hosts[0], move || async move {
        // By the clock of this machine, which stands still here.
        node.scrub_every(Duration::from_millis(1));
    });
    cluster.simulation.run_for(Duration::from_secs(5));
    let disk = cluster.simulation.disk(cluster.hosts[2], Path::new("/disk"));
    assert!(disk.read(at, BLOCK_BYTES) == expected(4)[..BLOCK_BYTES]);
}

/// Copies that are read one after the other say different things while blocks are written, and no copy may be taken for the odd one.
#[test]
fn copies_that_are_written_meanwhile_are_no_different() {
    let cluster = Cluster::with_volume(94);
    let hosts = cluster.hosts.clone();
    on_client(&cluster, Duration::from_secs(120), move || async move {
        for number in 0..4u64 {
            let writer = Client::connect_as(100 + number, hosts[0], 0, 1).await.unwrap();
            drop(reactor::spawn(async move {
                // The same few bytes come back again and again.
                for n in number.. {
                    writer.write_until_done(1, lba(n % 2), n / 3 % 3).await;
                    time::sleep(Duration::from_micros(n % 7 * 300)).await;
                }
            }));
        }
        time::sleep(Duration::from_secs(1)).await;
        let client = Client::connect_as(78, hosts[0], 0, 1).await.unwrap();
        for n in 0..40 {
            let (status, agreed) = compare(&client, 1, n % 2).await;
            assert_eq!(status, Status::Done);
            let found = (agreed.compared, agreed.mended, agreed.differing);
            assert_eq!(found, (2, 0, 0), "{n}");
        }
    });
}
