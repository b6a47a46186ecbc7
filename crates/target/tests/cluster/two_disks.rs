//! A node with two disks, one of which comes and goes: an old copy on it does not pass for the one that was made on the other meanwhile,
//! whichever of the disks is opened first, nor alone, and is deleted when it is known to be old. A broken one does not hold up the
//! other, and a copy that cannot be deleted is not said to be.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use agentlink::{Chunk, Configuration};
use foundation::{ByteCount, Epoch};
use reactor::sim::disk::DiskHandle;
use reactor::sim::{Host, Simulation};
use reactor::time;
use target::node::{DiskCare, DiskConfig, Identity, Node, Trust, from_chunk, inventory, to_config};
use volume::{ChunkId, ClusterId, Incarnation, NodeId, Settings};

use crate::support::{DISK, VOLUME, geometry};

const CLUSTER: ClusterId = ClusterId(0xc1);

/// After which a request stands on a disk that is watched.
const STALL_LIMIT: Duration = Duration::from_secs(2);

fn chunk() -> ChunkId {
    from_chunk(Chunk {
        volume: VOLUME,
        index: 0,
    })
}

fn disk(which: u128) -> DiskConfig {
    DiskConfig {
        path: PathBuf::from(format!("/disk{which}")),
        size: Some(ByteCount(32 << 20)),
        new_uuid: DISK + which,
        force: false,
        trust: Trust::Always,
    }
}

/// What happens in a life.
#[derive(Clone, Copy)]
enum Does {
    Nothing,
    /// A copy is made on a disk, unless it is there, and told a configuration of this epoch.
    Makes(u128, u64),
    /// The masters say that the copy that is not used is right.
    Adopts,
    /// That it is not.
    DeletesOld,
    /// There is no place for it any more.
    Deletes,
    /// Nor now, and its disk fails just then.
    DeletesInVain,
}

/// A node with these disks, each of which is watched.
async fn watched(disks: &[DiskConfig]) -> Result<Rc<Node>, String> {
    let identity = Identity {
        cluster: CLUSTER,
        node: NodeId(1),
        incarnation: Incarnation(1000),
    };
    let care = DiskCare {
        stall_limit: STALL_LIMIT,
        faults: None,
    };
    let started = Node::start_with_care(identity, disks, Settings::default(), Some(&care)).await;
    started.map_err(|error| error.to_string())
}

struct Machine {
    simulation: Simulation,
    host: Host,
    life: u64,
    /// Disks that were away.
    away: Vec<u128>,
}

impl Machine {
    fn new() -> Self {
        let simulation = Simulation::new(7);
        let host = simulation.add_host("node");
        Self {
            simulation,
            host,
            life: 0,
            away: Vec::new(),
        }
    }

    /// A life of the node with these disks, which ends without power. Bytes that are free on each disk, and whether a copy was taken up,
    /// or deleted.
    fn live(&mut self, disks: &[u128], does: Does) -> (Vec<u64>, bool) {
        self.life += 1;
        let identity = Identity {
            cluster: CLUSTER,
            node: NodeId(1),
            incarnation: Incarnation(self.life),
        };
        let there = [1, 2].into_iter().filter(|which| !self.away.contains(which));
        let trust = Trust::Among(there.map(|which| DISK + which).collect());
        let disks: Vec<DiskConfig> = disks
            .iter()
            .map(|&which| DiskConfig {
                trust: trust.clone(),
                ..disk(which)
            })
            .collect();
        let slot = Rc::new(RefCell::new((None, false)));
        let place = slot.clone();
        let failing = self.device(1);
        self.simulation.start(self.host, move || async move {
            let node = Node::start(identity, &disks, Settings::default()).await.unwrap();
            place.borrow_mut().0 = Some(node.clone());
            match does {
                Does::Nothing => {}
                Does::Makes(which, epoch) => {
                    node.create_copy(chunk(), geometry(), (DISK + which, true))
                        .await
                        .unwrap();
                    // A copy that has nothing is a member in the first epoch only.
                    for epoch in [1, epoch] {
                        let configuration = Configuration {
                            epoch,
                            write_node: 1,
                            members: vec![(1, identity.incarnation.0)],
                        };
                        node.configure(chunk(), to_config(&configuration));
                        time::sleep(Duration::from_secs(1)).await;
                    }
                }
                Does::Adopts => place.borrow_mut().1 = node.adopt_copy(chunk(), DISK + 1),
                Does::DeletesOld => node.delete_old_copies(&[chunk()].into()).await,
                Does::Deletes => place.borrow_mut().1 = node.delete_copy(chunk(), Epoch(100)).await,
                Does::DeletesInVain => {
                    failing.fail_syncs(true);
                    place.borrow_mut().1 = node.delete_copy(chunk(), Epoch(100)).await;
                    // Asked again it says no better.
                    place.borrow_mut().1 |= node.delete_copy(chunk(), Epoch(100)).await;
                }
            }
            std::future::pending::<()>().await;
        });
        self.simulation.run_for(Duration::from_secs(4));
        let (node, is_adopted) = slot.take();
        let node: Rc<Node> = node.expect("it has started");
        let free = node.disks().iter().map(|disk| disk.free_bytes).collect();
        drop(node);
        self.simulation.power_off(self.host);
        self.simulation.run_for(Duration::from_secs(1));
        (free, is_adopted)
    }

    fn device(&self, which: u128) -> DiskHandle {
        self.simulation.disk(self.host, &disk(which).path)
    }

    /// Why a node with these disks, each of which is watched, does not start; else those that it serves.
    fn start(&self, disks: &[u128]) -> Result<Vec<u128>, String> {
        let disks = disks.iter().map(|&which| disk(which)).collect();
        self.start_within(Duration::from_secs(2), disks)
    }

    /// The same with disks that it has had, which are not made anew.
    fn start_as_had(&self, disks: &[u128]) -> Result<Vec<u128>, String> {
        let had = |which: &u128| DiskConfig {
            size: None,
            ..disk(*which)
        };
        self.start_within(Duration::from_secs(2), disks.iter().map(had).collect())
    }

    fn start_within(&self, limit: Duration, disks: Vec<DiskConfig>) -> Result<Vec<u128>, String> {
        let found = Rc::new(RefCell::new(None));
        let put = found.clone();
        self.simulation.start(self.host, move || async move {
            let started = watched(&disks).await;
            let serves = started.map(|node| node.disks().iter().map(|disk| disk.uuid - DISK).collect());
            *put.borrow_mut() = Some(serves);
        });
        self.simulation.run_for(limit);
        self.simulation.power_off(self.host);
        self.simulation.run_for(Duration::from_secs(1));
        found.take().expect("it has ended")
    }

    /// The epochs of the copies on these disks, by disk, as the node would take them.
    fn found(&self, disks: &[u128]) -> Vec<(u128, u64)> {
        let disks: Vec<DiskConfig> = disks.iter().map(|&which| disk(which)).collect();
        let found = Rc::new(RefCell::new(Vec::new()));
        let put = found.clone();
        self.simulation.start(self.host, move || async move {
            let read = inventory(CLUSTER, &disks).await.unwrap();
            let copies = read.copies.iter();
            *put.borrow_mut() = copies
                .map(|copy| (copy.disk - DISK, copy.record.sealed.0))
                .collect();
        });
        self.simulation.run_for(Duration::from_secs(1));
        self.simulation.power_off(self.host);
        self.simulation.run_for(Duration::from_secs(1));
        found.take()
    }
}

#[test]
fn of_two_copies_the_one_that_took_part_later_is_used_and_the_old_one_deleted_by_order() {
    for order in [[1, 2], [2, 1]] {
        let mut machine = Machine::new();
        let empty = machine.live(&[1], Does::Nothing).0[0];
        assert!(machine.live(&[1], Does::Makes(1, 5)).0[0] < empty);
        // Without that disk the copy is made anew, and takes part in something later.
        machine.live(&[2], Does::Makes(2, 8));
        assert_eq!(machine.found(&[1]), [(1, 5)]);
        assert_eq!(machine.found(&order), [(2, 8)], "{order:?}");
        machine.live(&order, Does::Makes(2, 9));
        // Nobody has said so: it may be needed.
        assert_eq!(machine.found(&[1]), [(1, 5)]);
        assert!(!machine.live(&order, Does::Adopts).1, "another one is used");
        machine.live(&order, Does::DeletesOld);
        assert_eq!(machine.found(&[1]), [], "{order:?}");
        assert_eq!(machine.found(&order), [(2, 9)], "{order:?}");
        assert_eq!(
            machine.live(&[1], Does::Nothing).0[0],
            empty,
            "its room is free again"
        );
    }
}

#[test]
fn a_copy_on_a_disk_that_was_away_is_not_used_before_the_masters_have_said_so() {
    let mut machine = Machine::new();
    machine.live(&[1], Does::Makes(1, 5));
    machine.away = vec![1];
    // The disk with the newer copy is not there: an order to use the old one would be needed.
    machine.live(&[1], Does::DeletesOld);
    assert_eq!(machine.found(&[1]), [(1, 5)], "there is no newer one");
    // One that the masters want on another disk is made there, and the old one stays in doubt.
    machine.live(&[1, 2], Does::Makes(2, 3));
    assert_eq!(machine.found(&[2]), [(2, 3)]);
    // It is the newer one as far as anybody can see.
    machine.live(&[1, 2], Does::DeletesOld);
    assert_eq!(machine.found(&[1]), [(1, 5)]);

    let mut machine = Machine::new();
    machine.live(&[1], Does::Makes(1, 5));
    machine.away = vec![1];
    assert!(machine.live(&[1], Does::Adopts).1);
    machine.away.clear();
    machine.live(&[1], Does::Makes(1, 6));
    assert_eq!(machine.found(&[1]), [(1, 6)], "it goes on");
}

#[test]
fn a_broken_disk_does_not_hold_up_the_others() {
    let mut machine = Machine::new();
    machine.live(&[1, 2], Does::Makes(2, 5));
    // Both superblocks.
    for page in [0, 4096] {
        machine.device(1).damage(page + 60, b"rotten");
    }
    assert_eq!(machine.start(&[1, 2]), Ok(vec![2]));
    assert_eq!(machine.start(&[2, 1]), Ok(vec![2]));
    let alone = machine.start(&[1]).unwrap_err();
    assert!(alone.contains("/disk1"), "{alone}");
    assert_eq!(machine.found(&[2]), [(2, 5)]);
}

#[test]
fn one_that_is_smaller_than_it_was_or_empty_is_most_likely_another_and_refused() {
    let mut machine = Machine::new();
    machine.live(&[1, 2], Does::Makes(2, 5));
    for length_bytes in [16 << 20, 0] {
        machine.device(1).set_length_bytes(length_bytes);
        // As a node names a disk that it has had: it is not made anew.
        let refused = machine.start_as_had(&[1, 2]).unwrap_err();
        assert!(refused.contains("/disk1"), "{length_bytes} bytes: {refused}");
    }
    assert_eq!(machine.found(&[2]), [(2, 5)]);
}

#[test]
fn behind_a_disk_that_is_refused_nothing_is_made() {
    let mut machine = Machine::new();
    machine.live(&[1], Does::Nothing);
    machine.device(1).set_length_bytes(0);
    let had = DiskConfig {
        size: None,
        ..disk(1)
    };
    assert!(machine.start_within(STALL_LIMIT, vec![had, disk(2)]).is_err());
    assert!(machine.start_as_had(&[2]).is_err(), "it was not made");
}

#[test]
fn a_disk_whose_store_has_stopped_wants_another_process() {
    let machine = Machine::new();
    let told = Rc::new(RefCell::new(Vec::new()));
    let (put, failing) = (told.clone(), machine.device(1));
    machine.simulation.start(machine.host, move || async move {
        let node = watched(&[disk(1), disk(2)]).await.unwrap();
        let wants = |node: &Node| -> Vec<bool> {
            let health = node.disk_health();
            health.iter().map(|disk| disk.needs_process).collect()
        };
        put.borrow_mut().push(wants(&node));
        failing.fail_syncs(true);
        let made = node.create_copy(chunk(), geometry(), (DISK + 1, true)).await;
        assert!(made.is_err(), "its disk fails");
        // Once: what a flush that fails leaves is not known, though the next one goes well.
        failing.fail_syncs(false);
        put.borrow_mut().push(wants(&node));
        std::future::pending::<()>().await;
    });
    machine.simulation.run_for(Duration::from_secs(4));
    assert_eq!(*told.borrow(), [[false, false], [true, false]]);
}

#[test]
fn a_copy_whose_deletion_is_not_durable_is_not_said_to_be_deleted() {
    let mut machine = Machine::new();
    let empty = machine.live(&[1], Does::Nothing).0[0];
    machine.live(&[1], Does::Makes(1, 5));
    assert!(!machine.live(&[1], Does::DeletesInVain).1);
    machine.device(1).fail_syncs(false);
    assert_eq!(machine.found(&[1]), [(1, 5)], "it is there again");
    assert!(machine.live(&[1], Does::Deletes).1);
    assert_eq!(machine.found(&[1]), []);
    assert_eq!(
        machine.live(&[1], Does::Nothing).0[0],
        empty,
        "its room is free again"
    );
}
