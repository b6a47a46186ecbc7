//! A new master that hears its nodes one after the other: who has not been heard is awaited while others arrive, and not for ever.

use control::{
    ClusterId, ControlError, Controller, CreateVolume, Disk, DiskId, ErrorKind, Heartbeat, Incarnation,
    MemoryStore, NodeId, Registration, Settings, Uuid,
};
use foundation::{ByteCount, Instant};

const START: u64 = 100;

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid(number))
}

/// What a node's first life asks for.
fn registration(number: u128) -> Registration {
    Registration {
        cluster: None,
        node: node(number),
        peer_address: format!("192.0.2.{number}:4420"),
        rack: None,
        incarnation: None,
        ended_through: Incarnation(0),
        disks: vec![Disk {
            id: DiskId(Uuid(number)),
            capacity: ByteCount::TIB,
            used: ByteCount(0),
            held: None,
        }],
    }
}

/// A store with so many nodes, and a master that is new to them.
fn new_master(store: &MemoryStore, nodes: u128) -> Controller<&MemoryStore> {
    let mut before = Controller::open(store, Settings::default(), 1, at(0)).unwrap();
    for number in 1..=nodes {
        before.register(&registration(number), at(0)).unwrap();
    }
    Controller::open(store, Settings::default(), 2, at(START)).unwrap()
}

fn beat(master: &mut Controller<&MemoryStore>, cluster: ClusterId, number: u128, now: Instant) {
    let heartbeat = Heartbeat {
        incarnation: Incarnation(1),
        ..crate::silent(cluster, node(number))
    };
    master.heartbeat(&heartbeat, now).unwrap();
}

fn is_alive(master: &Controller<&MemoryStore>, number: u128, now: u64) -> bool {
    master.nodes(at(now)).unwrap()[&node(number)].is_alive
}

#[test]
fn a_node_is_awaited_while_others_arrive() {
    let store = MemoryStore::new();
    let mut master = new_master(&store, 5);
    let cluster = master.cluster();
    assert!(is_alive(&master, 5, START + 2));
    assert!(!is_alive(&master, 5, START + 3), "nobody arrives");
    for number in 1..=4 {
        let now = START + 2 * number as u64;
        beat(&mut master, cluster, number, at(now));
        assert!(
            is_alive(&master, 5, now + 2),
            "node {number} arrived two seconds ago"
        );
    }
    // The first is silent, and that it was heard counts, not that others arrived since.
    assert!(is_alive(&master, 1, START + 4) && !is_alive(&master, 1, START + 5));
    assert!(
        !is_alive(&master, 5, START + 8 + 3),
        "the last has arrived three seconds ago"
    );
    // Once heard it is as alive as the others.
    beat(&mut master, cluster, 5, at(START + 12));
    assert!(is_alive(&master, 5, START + 14) && !is_alive(&master, 5, START + 15));
}

#[test]
fn arrivals_keep_no_one_waiting_for_ever() {
    let store = MemoryStore::new();
    let nodes = 40;
    let mut master = new_master(&store, nodes);
    let cluster = master.cluster();
    let timeout = Settings::default().heartbeat_timeout.as_secs();
    let mut gone = None;
    for number in 1..nodes {
        let now = START + number as u64;
        beat(&mut master, cluster, number, at(now));
        if gone.is_none() && !is_alive(&master, nodes, now) {
            gone = Some(now - START);
        }
    }
    assert_eq!(gone, Some(11 * timeout), "ten timeouts of arrivals and one more");
}

#[test]
fn a_volume_is_put_off_while_nodes_are_awaited_and_refused_when_they_are_not() {
    let store = MemoryStore::new();
    let mut master = new_master(&store, 3);
    let cluster = master.cluster();
    let request = CreateVolume::new("v".to_owned(), ByteCount::GIB);
    let create =
        |master: &mut Controller<&MemoryStore>, now| master.create_volume(&request, at(now)).map(drop);

    beat(&mut master, cluster, 1, at(START + 1));
    let put_off = create(&mut master, START + 1).unwrap_err();
    assert_eq!(put_off.kind(), ErrorKind::Unavailable);
    assert_eq!(
        put_off.to_string(),
        "2 of 3 known nodes have not been heard since this master began to lead, and without them: 3 copies need 3 nodes, \
         but 1 of 3 known nodes are alive with a disk; start more nodes, or ask for fewer copies; repeat the call in a few seconds"
    );

    beat(&mut master, cluster, 2, at(START + 2));
    // Nobody arrives any more.
    beat(&mut master, cluster, 1, at(START + 6));
    beat(&mut master, cluster, 2, at(START + 6));
    let refused = create(&mut master, START + 6).unwrap_err();
    assert!(
        matches!(
            refused,
            ControlError::NotEnoughNodes {
                live: 2,
                known: 3,
                ..
            }
        ),
        "{refused}"
    );

    beat(&mut master, cluster, 3, at(START + 7));
    create(&mut master, START + 7).unwrap();
}

#[test]
fn a_node_of_another_cluster_is_refused_and_changes_nothing() {
    let store = MemoryStore::new();
    let mut master = new_master(&store, 2);
    let (ours, theirs) = (master.cluster(), ClusterId(Uuid(0xbad)));
    let revision = master.revision().unwrap();
    let foreign = |number| Registration {
        cluster: Some(theirs),
        ..registration(number)
    };
    // One that is not known, and one that is: it may have been moved here with its disks, or have the wrong masters.
    for number in [3, 2] {
        let refused = master.register(&foreign(number), at(START)).unwrap_err();
        assert!(
            matches!(refused, ControlError::ForeignCluster { node: of, theirs: its, ours: this }
                if (of, its, this) == (node(number), theirs, ours)),
            "{refused}"
        );
    }
    let beat = Heartbeat {
        incarnation: Incarnation(1),
        ..crate::silent(theirs, node(2))
    };
    let refused = master.heartbeat(&beat, at(START)).unwrap_err();
    assert!(
        matches!(refused, ControlError::ForeignCluster { .. }),
        "{refused}"
    );
    assert_eq!(master.revision().unwrap(), revision);
    assert!(!is_alive(&master, 2, START + 3), "it was not heard");
    assert!(!master.nodes(at(START)).unwrap().contains_key(&node(3)));
    // Its own cluster it may name.
    let own = Registration {
        cluster: Some(ours),
        ..registration(3)
    };
    assert_eq!(
        master.register(&own, at(START)).unwrap().incarnation,
        Incarnation(1)
    );
}
