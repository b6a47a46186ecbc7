//! Marks of regions in the disks' journals: what is acknowledged is marked on every copy when the power comes back, also where the journal
//! was full and has begun anew, and where a page of it has rotted; and after an end in good order a release before reads every record.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use agentlink::Chunk;
use foundation::ByteCount;
use target::node::{DiskConfig, inventory};
use volume::{ChunkRecord, ClusterId, Geometry};

use crate::support::{Client, Cluster, DISK, VOLUME};

const PAGE: usize = 4096;
/// Pages of the journal of a disk as small as these.
const JOURNAL_PAGES: u64 = 256;

/// Blocks of a region are as many as the client writes at a time.
fn small_regions() -> Geometry {
    Geometry {
        region_blocks: 2,
        ..crate::geometry()
    }
}

fn with_small_regions(seed: u64) -> Cluster {
    let cluster = Cluster::new(seed);
    cluster.simulation.run_for(Duration::from_secs(2));
    for index in 0..3 {
        let node = cluster.node(index);
        cluster
            .simulation
            .start(cluster.hosts[index], move || async move {
                let chunk = target::node::from_chunk(Chunk {
                    volume: VOLUME,
                    index: 0,
                });
                node.create_copy(chunk, small_regions(), (DISK + index as u128, true))
                    .await
                    .unwrap();
            });
    }
    cluster.simulation.run_for(Duration::from_secs(1));
    cluster.configure(1, 0, &[0, 1, 2]);
    cluster
}

/// Writes a region after the other until so many writes are acknowledged; the regions of these.
fn write_regions(cluster: &Cluster, count: u64) -> Vec<u32> {
    let acknowledged = Rc::new(RefCell::new(Vec::new()));
    let (hosts, noted) = (cluster.hosts.clone(), acknowledged.clone());
    let host = cluster.simulation.add_host("writer");
    cluster.simulation.start(host, move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for region in 0..500 {
            client.write_until_done(1, region * 2, region).await;
            noted.borrow_mut().push(region as u32);
        }
    });
    let mut waited = 0;
    while (acknowledged.borrow().len() as u64) < count {
        cluster.simulation.run_for(Duration::from_micros(50));
        waited += 1;
        assert!(waited < 1_000_000, "only {} writes", acknowledged.borrow().len());
    }
    cluster.simulation.power_off(host);
    acknowledged.take()
}

/// What a start of the node finds on its disk.
fn record_on(cluster: &Cluster, index: usize) -> ChunkRecord {
    let found = Rc::new(RefCell::new(None));
    let put = found.clone();
    cluster.forget(index);
    cluster
        .simulation
        .start(cluster.hosts[index], move || async move {
            let disk = DiskConfig {
                path: PathBuf::from("/disk"),
                size: Some(ByteCount(32 << 20)),
                new_uuid: DISK,
                force: false,
                trust: Default::default(),
            };
            let mut read = inventory(ClusterId(0xc1), &[disk]).await.unwrap();
            assert_eq!((read.copies.len(), read.damaged.len()), (1, 0));
            *put.borrow_mut() = read.copies.pop().map(|copy| copy.record);
        });
    cluster.simulation.run_for(Duration::from_secs(1));
    cluster.simulation.power_off(cluster.hosts[index]);
    cluster.simulation.run_for(Duration::from_secs(1));
    let record = found.borrow_mut().take();
    record.expect("a copy is there")
}

/// The pages of a disk that begin with these bytes, and where they are.
fn pages(cluster: &Cluster, index: usize, magic: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let disk = cluster.simulation.disk(cluster.hosts[index], Path::new("/disk"));
    let places = (0..disk.length_bytes()).step_by(PAGE);
    places
        .map(|at| (at, disk.read(at, PAGE)))
        .filter(|(_, page)| page.starts_with(magic))
        .collect()
}

fn word(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

fn cut_all(cluster: &Cluster) {
    for host in &cluster.hosts {
        cluster.simulation.power_off(*host);
    }
    cluster.simulation.run_for(Duration::from_secs(1));
}

#[test]
fn what_is_acknowledged_is_marked_when_the_power_is_back() {
    for (seed, count) in [(1, 3), (2, 40), (3, 255), (4, 257), (5, 300), (6, 450)] {
        let cluster = with_small_regions(seed);
        let regions = write_regions(&cluster, count);
        cut_all(&cluster);
        for index in 0..3 {
            let journal = pages(&cluster, index, b"RHJRNL01");
            let newest = journal.iter().map(|(_, page)| word(page, 8)).max();
            assert!(
                newest.is_some_and(|newest| newest + 20 > count),
                "{newest:?} of {count}"
            );
            assert!(journal.len() as u64 <= JOURNAL_PAGES);
            let record = record_on(&cluster, index);
            let missing = regions.iter().find(|region| !record.intent.contains(region));
            assert_eq!(missing, None, "seed {seed}: node {index} after {count} writes");
            let unwritten = regions
                .iter()
                .find(|region| !record.written_in.contains_key(region));
            assert_eq!(unwritten, None, "seed {seed}: node {index} after {count} writes");
        }
        cluster.end();
    }
}

#[test]
fn a_page_that_has_rotted_marks_everything() {
    let cluster = with_small_regions(7);
    write_regions(&cluster, 60);
    cut_all(&cluster);
    let before = record_on(&cluster, 0).intent.len();
    let newest = pages(&cluster, 0, b"RHJRNL01")
        .into_iter()
        .max_by_key(|(_, page)| word(page, 8));
    let (at, _) = newest.expect("the journal is used");
    let disk = cluster.simulation.disk(cluster.hosts[0], Path::new("/disk"));
    disk.damage(at - 5 * PAGE as u64 + 100, b"rotten");
    let record = record_on(&cluster, 0);
    assert!(before < 100, "{before}");
    assert_eq!(record.intent.len(), small_regions().regions() as usize);
    cluster.end();
}

#[test]
fn a_record_beside_one_that_cannot_be_read_marks_everything() {
    let cluster = with_small_regions(9);
    write_regions(&cluster, 60);
    cut_all(&cluster);
    let (before, all) = (record_on(&cluster, 0), small_regions().regions() as usize);
    assert!(before.intent.len() < 100, "{}", before.intent.len());
    let newest = pages(&cluster, 0, b"RHCPSLT")
        .into_iter()
        .max_by_key(|(_, page)| word(page, 8));
    let (at, _) = newest.expect("a record");
    let disk = cluster.simulation.disk(cluster.hosts[0], Path::new("/disk"));
    disk.damage(at + 100, b"rotten");
    let record = record_on(&cluster, 0);
    assert_eq!(record.intent.len(), all);
    assert_eq!(record.written_in.len(), all);
    cluster.end();
}

#[test]
fn a_release_before_reads_every_record_after_an_end_in_good_order() {
    let cluster = with_small_regions(8);
    let regions = write_regions(&cluster, 60);
    for index in 0..3 {
        assert!(!pages(&cluster, index, b"RHCPSLT4").is_empty(), "node {index}");
        let node = cluster.node(index);
        cluster
            .simulation
            .start(cluster.hosts[index], move || async move {
                node.end().await;
            });
    }
    cluster.simulation.run_for(Duration::from_secs(3));
    cut_all(&cluster);
    for index in 0..3 {
        let mut newest = BTreeMap::new();
        for (_, page) in pages(&cluster, index, b"RHCPSLT") {
            newest.insert(word(&page, 8), page[7]);
        }
        let (_, kind) = newest.pop_last().expect("a record");
        assert_eq!(kind, b'2', "node {index}");
        let record = record_on(&cluster, index);
        let missing = regions
            .iter()
            .find(|region| !record.written_in.contains_key(region));
        assert_eq!(missing, None, "node {index}");
    }
    cluster.end();
}
