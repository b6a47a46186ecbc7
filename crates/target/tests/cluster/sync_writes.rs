//! A volume of which no write is acknowledged before it is durable: the power of everything is cut the moment that a write is acknowledged,
//! flushed or not, and it is there. And what its portals say to hosts of a write cache.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bdev::Data;
use protocols::nvme::Status;
use protocols::nvme::admin::GetFeatures;
use reactor::time;
use volume::VolumeNumber;
use volume::message::codec::NativeOperation;

use crate::portals::{Exporting, Way};
use crate::support::{Client, Cluster, VOLUME};
use crate::{expected, on_client};

/// NVM Express Base Specification 2.0c, section 5.27.1.4.
const VOLATILE_WRITE_CACHE: u8 = 6;
const BLOCK: usize = 4096;

/// Cuts the power of all nodes as soon as so many writes are acknowledged, and starts them again.
fn cut_after(cluster: &Cluster, acknowledged: &Cell<u64>, writes: u64) {
    let mut waited = 0;
    while acknowledged.get() < writes {
        cluster.simulation.run_for(Duration::from_micros(20));
        waited += 1;
        assert!(waited < 3_000_000, "only {} writes", acknowledged.get());
    }
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
}

/// Writes that were acknowledged to a native client which knows nothing of it, and are lost after the cut.
fn lost(seed: u64, sync_writes: bool) -> u64 {
    let cluster = Cluster::with_volume(seed);
    for index in 0..3 {
        cluster
            .node(index)
            .set_sync_writes(VolumeNumber(VOLUME), sync_writes);
    }
    let acknowledged = Rc::new(Cell::new(0));
    let (hosts, count) = (cluster.hosts.clone(), acknowledged.clone());
    let host = cluster.simulation.add_host("writer");
    cluster.simulation.start(host, move || async move {
        let client = Client::connect(hosts[0], 0, 1).await.unwrap();
        for n in 0..1000u64 {
            client.write_until_done(1, n % 30 * 30, n).await;
            count.set(count.get() + 1);
        }
    });
    let writes = 5 + seed % 20;
    cut_after(&cluster, &acknowledged, writes);
    let (hosts, lost) = (cluster.hosts.clone(), Rc::new(Cell::new(0)));
    let (count, acknowledged) = (lost.clone(), acknowledged.get());
    on_client(&cluster, Duration::from_secs(40), move || async move {
        let client = Client::connect(hosts[2], 2, 2).await.unwrap();
        for n in 0..acknowledged {
            let is_there = client.read_until_done(2, n * 30).await == expected(n);
            count.set(count.get() + u64::from(!is_there));
        }
    });
    lost.get()
}

#[test]
fn an_acknowledged_write_survives_a_cut_of_all_power_without_a_flush() {
    for seed in 0..8 {
        assert_eq!(lost(seed, true), 0, "seed {seed}");
    }
    // A power cut here takes what is not flushed, so the above proves something.
    let without: u64 = (0..8).map(|seed| lost(seed, false)).sum();
    assert!(without > 0);
}

#[test]
fn so_does_what_is_zeroed_or_deallocated() {
    for operation in [
        NativeOperation::WriteZeroes { fua: false },
        NativeOperation::Deallocate { fua: false },
    ] {
        let cluster = Cluster::with_volume(5);
        for index in 0..3 {
            cluster.node(index).set_sync_writes(VolumeNumber(VOLUME), true);
        }
        let acknowledged = Rc::new(Cell::new(0));
        let (hosts, count) = (cluster.hosts.clone(), acknowledged.clone());
        let host = cluster.simulation.add_host("writer");
        cluster.simulation.start(host, move || async move {
            let client = Client::connect(hosts[0], 0, 1).await.unwrap();
            client.write_until_done(1, 30, 1).await;
            let (status, _) = client.run(operation, 1, 30, 1, Data::None).await;
            assert_eq!(status, volume::Status::Done);
            count.set(1);
        });
        cut_after(&cluster, &acknowledged, 1);
        let hosts = cluster.hosts.clone();
        on_client(&cluster, Duration::from_secs(40), move || async move {
            let client = Client::connect(hosts[2], 2, 2).await.unwrap();
            let found = client.read_until_done(2, 30).await;
            assert!(found[..BLOCK].iter().all(|byte| *byte == 0), "{operation:?}");
        });
    }
}

/// Whether a controller says that there is a write cache, and whether it has the feature that switches one off.
async fn write_cache(way: &Way) -> (bool, bool) {
    let features = GetFeatures {
        nsid: 0,
        feature: VOLATILE_WRITE_CACHE,
        select: 0,
        value: 0,
    };
    let answer = way
        .controller
        .admin("get features", features.to_command(), Data::None);
    let has_feature = match answer.await {
        Ok(_) => true,
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("Invalid Field in Command"), "{said}");
            false
        }
    };
    (way.controller.identity().vwc & 1 == 1, has_feature)
}

/// What the agents of all nodes do when the masters say so.
fn switch(exporting: &Exporting, is_on: bool) {
    let cluster = &exporting.cluster;
    for index in 0..3 {
        let node = cluster.node(index);
        let portals = cluster.portals[index]
            .borrow()
            .clone()
            .expect("the node has started");
        cluster
            .simulation
            .start(cluster.hosts[index], move || async move {
                node.set_sync_writes(VolumeNumber(VOLUME), is_on);
                portals.sync_writes_changed(VolumeNumber(VOLUME));
            });
    }
    cluster.simulation.run_for(Duration::from_millis(200));
}

#[test]
fn portals_say_that_there_is_no_write_cache_while_there_is_none() {
    let exporting = Exporting::new(4, [1, 2]);
    let address = exporting.address(0);
    let ended = Rc::new(Cell::new(0));
    for (round, is_on) in [(0, false), (1, true), (2, false)] {
        if round > 0 {
            switch(&exporting, is_on);
        }
        // Those of before are disconnected: a controller says it for its whole life.
        assert_eq!(ended.get(), round);
        let ended = ended.clone();
        let host = exporting.cluster.simulation.add_host("host");
        let is_right = Rc::new(Cell::new(false));
        let flag = is_right.clone();
        exporting.cluster.simulation.start(host, move || async move {
            let way = Way::connect(address, 1).await.unwrap();
            assert_eq!(write_cache(&way).await, (!is_on, !is_on));
            assert_eq!(way.write(3, 2, 7).await, Some(Status::SUCCESS));
            assert_eq!(way.read(3, 2).await, Ok(vec![7; 2 * BLOCK]));
            flag.set(true);
            way.controller.ended().await;
            ended.set(ended.get() + 1);
        });
        exporting.cluster.simulation.run_for(Duration::from_secs(2));
        assert!(is_right.get(), "round {round}");
    }
    exporting.cluster.end();
}

/// The write nodes have not heard of it: what the portal says holds all the same.
#[test]
fn what_a_portal_says_of_a_write_cache_does_not_wait_for_the_write_nodes() {
    let lost = |sync_writes: bool| {
        let exporting = Exporting::new(6, [1, 2]);
        let cluster = &exporting.cluster;
        let (node, portals) = (cluster.node(1), cluster.portals[1].borrow().clone());
        cluster.simulation.start(cluster.hosts[1], move || async move {
            node.set_sync_writes(VolumeNumber(VOLUME), sync_writes);
            portals.unwrap().sync_writes_changed(VolumeNumber(VOLUME));
        });
        cluster.simulation.run_for(Duration::from_millis(200));
        let acknowledged = Rc::new(Cell::new(0));
        let (address, count) = (exporting.address(0), acknowledged.clone());
        let host = cluster.simulation.add_host("host");
        cluster.simulation.start(host, move || async move {
            let way = Way::connect(address, 1).await.unwrap();
            for n in 0..10u64 {
                while way.write(n * 30, 1, n as u8 + 1).await != Some(Status::SUCCESS) {
                    time::sleep(Duration::from_millis(5)).await;
                }
                count.set(count.get() + 1);
            }
        });
        cut_after(cluster, &acknowledged, 10);
        let (hosts, lost) = (cluster.hosts.clone(), Rc::new(Cell::new(0u64)));
        let count = lost.clone();
        on_client(cluster, Duration::from_secs(40), move || async move {
            let client = Client::connect(hosts[2], 2, 2).await.unwrap();
            for n in 0..10u64 {
                let found = client.read_until_done(2, n * 30).await;
                let is_there = found[..BLOCK].iter().all(|byte| *byte == n as u8 + 1);
                count.set(count.get() + u64::from(!is_there));
            }
        });
        lost.get()
    };
    assert_eq!(lost(true), 0);
    assert!(lost(false) > 0, "a power cut here takes what is not flushed");
}
