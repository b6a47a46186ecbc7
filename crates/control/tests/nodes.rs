//! When a node counts as alive: not before its target serves, and not after it was said to have ended.

use std::time::Duration;

use control::{Controller, Disk, DiskId, Incarnation, MemoryStore, NodeId, Registration, Settings, Uuid};
use foundation::{ByteCount, Instant};

const NODE: NodeId = NodeId(Uuid(1));

fn at(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

fn registration(incarnation: Option<u64>, ended_through: u64) -> Registration {
    let disk = Disk {
        id: DiskId(Uuid(1)),
        capacity: ByteCount::TIB,
        used: ByteCount(0),
    };
    Registration {
        cluster: None,
        node: NODE,
        peer_address: "192.0.2.1:4420".to_owned(),
        incarnation: incarnation.map(Incarnation),
        ended_through: Incarnation(ended_through),
        disks: incarnation.map(|_| disk).into_iter().collect(),
    }
}

#[test]
fn a_life_begins_when_its_target_serves_not_when_it_gets_its_number() {
    let store = MemoryStore::new();
    let mut master = Controller::open(&store, Settings::default(), 1, at(0)).unwrap();
    // Past the time in which a master that has just started takes no silence for an absence.
    let timeout = Settings::default().heartbeat_timeout + Duration::from_millis(1);
    let mut now = at(0) + timeout;
    let alive = |master: &Controller<&MemoryStore>, now| master.nodes(now).unwrap()[&NODE].is_alive;
    for life in 1..4 {
        let given = master.register(&registration(None, life - 1), now).unwrap();
        assert_eq!(given.incarnation, Incarnation(life));
        assert!(!alive(&master, now), "life {life} has only its number");
        master.register(&registration(Some(life), life - 1), now).unwrap();
        assert!(alive(&master, now));
        now = now + Duration::from_millis(100);
    }
    let stale = master.register(&registration(Some(2), 1), now).unwrap_err();
    assert!(stale.to_string().contains("incarnation 2 of node"), "{stale}");
    assert!(!alive(&master, now + timeout));
}
