//! Steps of a volume whose commits' answers are lost.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use foundation::{ByteCount, Instant};

use crate::mastership::Member;
use crate::testing::{Etcd, EtcdElection, Lost};
use crate::{
    Based, Controller, CreateVolume, Disk, DiskId, Growing, Heartbeat, Incarnation, NodeId, Registration,
    Resize, Settings, Uuid, Volume, VolumeNumber, VolumeState,
};

const NODES: u128 = 3;
const CHUNK: u64 = 16 << 20;
const LEASE: Duration = Duration::from_secs(1000);
/// What is known only by looking at everything is known after so long.
const AUDIT: Duration = Duration::from_secs(2);
const VOLUME: VolumeNumber = VolumeNumber(1);

/// One master on an etcd whose answers can be lost, and nodes that are only messages.
struct Cluster {
    etcd: Rc<RefCell<Etcd>>,
    member: Member<EtcdElection>,
    now: Instant,
}

fn disks(node: u128) -> Vec<Disk> {
    vec![Disk {
        id: DiskId(Uuid(node * 10)),
        capacity: ByteCount(1 << 30),
        used: ByteCount(0),
        held: None,
    }]
}

impl Cluster {
    fn new() -> Self {
        let etcd = Rc::new(RefCell::new(Etcd::new(1, LEASE)));
        let settings = Settings {
            audit_interval: AUDIT,
            ..Settings::default()
        };
        let member = Member::new(EtcdElection::new(etcd.clone(), 0), settings, 1);
        let now = Instant::from_nanos(0) + Duration::from_secs(1);
        let mut cluster = Self { etcd, member, now };
        cluster.step();
        for node in 1..=NODES {
            let registration = Registration {
                cluster: None,
                node: NodeId(Uuid(node)),
                peer_address: format!("192.0.2.{node}:4420"),
                rack: None,
                incarnation: None,
                ended_through: Incarnation(0),
                disks: disks(node),
            };
            let now = cluster.now;
            cluster.control().register(&registration, now).unwrap();
        }
        cluster
    }

    fn control(&mut self) -> &mut Controller<crate::testing::Handle> {
        self.member.lead().unwrap()
    }

    /// An error is a store that did not answer.
    fn step(&mut self) {
        self.now = self.now + Duration::from_millis(100);
        self.etcd.borrow_mut().pass(self.now);
        drop(self.member.step(self.now));
    }

    /// Everything is as it was to be, and nobody hears of it.
    fn lose_answers(&mut self, count: usize) {
        self.etcd.borrow_mut().lose_answers(vec![Lost::Done; count]);
    }

    /// A heartbeat of each node, in which it says that it has made its copies; what they are told to do.
    fn beat(&mut self, prepared: &[VolumeNumber], grown: &[Growing]) -> (Vec<VolumeNumber>, Vec<Growing>) {
        let mut told = (Vec::new(), Vec::new());
        for node in 1..=NODES {
            let now = self.now;
            let heartbeat = Heartbeat {
                cluster: self.control().cluster(),
                node: NodeId(Uuid(node)),
                incarnation: Incarnation(1),
                ended_through: Incarnation(0),
                disks: disks(node),
                prepared: prepared.to_vec(),
                grown: grown.to_vec(),
                removed: Vec::new(),
                resyncs: Vec::new(),
                copies: Vec::new(),
                names_copies: false,
                removed_copies: Vec::new(),
                moved_copies: Vec::new(),
                moves_disks: false,
                snapshots: Default::default(),
                flattening: Vec::new(),
                reserves: true,
                doubts: true,
                syncs: None,
                kept: None,
            };
            let answer = self.control().heartbeat(&heartbeat, now).unwrap();
            told.0.extend(answer.prepare);
            told.1.extend(answer.grow);
        }
        told
    }

    fn create(&mut self) {
        let now = self.now;
        let request = CreateVolume {
            copies: 3,
            chunk: ByteCount(CHUNK),
            stripe_unit: ByteCount(CHUNK),
            stripe_width: 1,
            ..CreateVolume::new("volume", ByteCount(CHUNK))
        };
        drop(self.control().create_volume(&request, now));
    }

    /// The volume of one chunk, ready.
    fn make_ready(&mut self) {
        self.create();
        self.beat(&[VOLUME], &[]);
        self.step();
        assert_eq!(self.volume().state, VolumeState::Ready);
    }

    /// It is to have a second one, and the nodes are told.
    fn grow_to_two(&mut self) -> Growing {
        self.resize(2);
        let growing = Growing {
            number: VOLUME,
            from: 1,
            chunks: 2,
        };
        assert_eq!(self.beat(&[], &[]).1, [growing; 3]);
        growing
    }

    fn resize(&mut self, chunks: u64) {
        let now = self.now;
        drop(
            self.control()
                .resize_volume("volume", ByteCount(CHUNK * chunks), now),
        );
    }

    /// The same, also if it takes a growth back.
    fn cut(&mut self, chunks: u64) {
        let now = self.now;
        let wanted = Resize {
            cancels_growth: true,
            ..Resize::to(ByteCount(CHUNK * chunks))
        };
        drop(self.control().resize_volume_on("volume", wanted, now));
    }

    fn volume(&mut self) -> Volume {
        self.control().volume(VOLUME).unwrap()
    }

    fn chunks(&mut self) -> u32 {
        self.volume().geometry.chunk_count()
    }
}

#[test]
fn what_was_reported_of_one_growth_does_not_count_for_the_next() {
    let mut cluster = Cluster::new();
    cluster.make_ready();
    let growing = cluster.grow_to_two();
    cluster.beat(&[], &[growing]);
    // It has grown, and the master does not know; then it grows again, and the master does not know that either.
    cluster.lose_answers(1);
    cluster.step();
    assert_eq!(cluster.chunks(), 2);
    cluster.lose_answers(1);
    cluster.resize(3);
    for _ in 0..5 {
        cluster.step();
    }
    let next = Growing {
        number: VOLUME,
        from: 2,
        chunks: 3,
    };
    assert_eq!(
        Growing::of(&cluster.volume()),
        Some(next),
        "no node has its copy yet"
    );
    assert_eq!(cluster.beat(&[], &[growing]).1, [next; 3]);
    cluster.step();
    assert_eq!(cluster.chunks(), 2);
    cluster.beat(&[], &[next]);
    cluster.step();
    assert_eq!(cluster.chunks(), 3);
}

#[test]
fn nodes_hear_of_a_volume_though_no_commit_that_made_it_was_answered() {
    let mut cluster = Cluster::new();
    cluster.lose_answers(1);
    cluster.create();
    assert_eq!(cluster.volume().state, VolumeState::Creating);
    // The master finds it, places its chunk, and lets the nodes make the copies; it hears of none of that.
    for _ in 0..100 {
        cluster.lose_answers(1);
        cluster.step();
        if cluster.volume().state == VolumeState::Preparing {
            break;
        }
    }
    cluster.lose_answers(0);
    cluster.step();
    assert_eq!(cluster.volume().state, VolumeState::Preparing);
    assert_eq!(cluster.beat(&[], &[]).0, [VOLUME; 3]);
    cluster.beat(&[VOLUME], &[]);
    cluster.step();
    assert_eq!(cluster.volume().state, VolumeState::Ready);
}

#[test]
fn a_growth_of_which_no_chunk_has_a_place_is_taken_back() {
    let mut cluster = Cluster::new();
    cluster.make_ready();
    let settled = cluster.volume();
    // It is to grow, and the master that was to place its chunks did not hear of that.
    cluster.lose_answers(1);
    cluster.resize(3);
    assert_eq!(cluster.volume().growth.iter().sum::<u32>(), 2);
    cluster.cut(1);
    assert_eq!(cluster.volume(), settled);
    for _ in 0..5 {
        cluster.step();
    }
    assert_eq!(cluster.volume(), settled);
    assert_eq!(cluster.control().map(VOLUME, 0, 10).unwrap().1.len(), 1);
    let growing = cluster.grow_to_two();
    // Now nodes have been told.
    cluster.cut(1);
    assert_eq!(Growing::of(&cluster.volume()), Some(growing));
}

#[test]
fn a_call_that_comes_again_does_not_undo_that_its_growth_was_taken_back() {
    let mut cluster = Cluster::new();
    cluster.make_ready();
    let settled = cluster.volume();
    let add = |cluster: &mut Cluster, call| {
        let (now, size) = (cluster.now, ByteCount(CHUNK));
        let wanted = Resize {
            based: Some(Based { size, call }),
            ..Resize::to(ByteCount(3 * CHUNK))
        };
        cluster.control().resize_volume_on("volume", wanted, now)
    };
    cluster.lose_answers(1);
    drop(add(&mut cluster, 7));
    assert_eq!(cluster.volume().growth.iter().sum::<u32>(), 2);
    // In part first: it still grows then, but to less.
    cluster.cut(2);
    assert_eq!(cluster.volume().growth.iter().sum::<u32>(), 1);
    let refused = add(&mut cluster, 7).unwrap_err().to_string();
    let still = format!(
        "has {} and is growing to {}, and not {}",
        ByteCount(CHUNK),
        ByteCount(2 * CHUNK),
        ByteCount(3 * CHUNK)
    );
    assert!(refused.contains(&still), "{refused}");
    cluster.cut(1);
    assert_eq!(cluster.volume(), settled);
    let refused = add(&mut cluster, 7).unwrap_err().to_string();
    let as_it_is = format!("has {}, and not {}", ByteCount(CHUNK), ByteCount(3 * CHUNK));
    assert!(
        refused.contains(&as_it_is) && refused.contains("that was taken back meanwhile"),
        "{refused}"
    );
    assert_eq!(cluster.volume(), settled);
    assert!(add(&mut cluster, 8).is_ok(), "it is another one");
}
