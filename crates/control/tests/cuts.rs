//! A growth that one master gives places while another one takes it back: whoever comes first, no chunk has a place beyond the volume's size at
//! the end, and what disks have promised is what the volume has.

use std::cell::RefCell;
use std::rc::Rc;

use control::{
    Committed, ControlError, Controller, CreateVolume, Disk, DiskId, Entry, Growing, Heartbeat, Incarnation,
    MemoryStore, MetadataStore, NodeId, Registration, Resize, Settings, StoreError, Transaction, Uuid,
    Versioned, Volume, VolumeNumber, VolumeState,
};
use foundation::{ByteCount, Instant};

const CHUNK: ByteCount = ByteCount(64 << 20);
const NODES: u64 = 3;
const ROOM: u64 = 6000;
/// So many chunks get places at once.
const STEP: u64 = 4096;
/// Chunks before the growth, with its first step, and with all of it.
const BEFORE: u64 = 2;
const FIRST: u64 = BEFORE + STEP;
const ALL: u64 = FIRST + 400;
/// Commits of the second step: some 120 chunks each.
const COMMITS: usize = 4;

/// What happens before a commit.
enum Before {
    /// Somebody else does this.
    Other(Box<dyn FnOnce()>),
    /// The commit is refused, as where another transaction came first that has since been undone.
    Conflict,
}

/// A store in which something happens before one of the next commits.
#[derive(Clone)]
struct Raced {
    store: &'static MemoryStore,
    before: Rc<RefCell<Option<(usize, Before)>>>,
}

impl MetadataStore for Raced {
    fn revision(&self) -> Result<u64, StoreError> {
        self.store.revision()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Versioned>, StoreError> {
        self.store.get(key)
    }

    fn range(&self, first: &[u8], end: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.store.range(first, end, limit)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let before = self.before.borrow_mut().take();
        match before {
            Some((0, Before::Other(other))) => other(),
            Some((0, Before::Conflict)) => return Ok(Committed::Conflict),
            Some((later, before)) => *self.before.borrow_mut() = Some((later - 1, before)),
            None => {}
        }
        self.store.commit(transaction)
    }

    fn operations_max(&self) -> usize {
        self.store.operations_max()
    }
}

type Master = Rc<RefCell<Controller<Raced>>>;

fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn disks(number: u64) -> Vec<Disk> {
    vec![Disk {
        id: DiskId(Uuid(u128::from(number))),
        capacity: ByteCount(ROOM * CHUNK.0),
        used: ByteCount(0),
        held: None,
    }]
}

/// Two masters that both believe that they lead.
struct Cluster {
    places: Master,
    cuts: Master,
    store: Raced,
    number: VolumeNumber,
    now: Instant,
}

fn cut(master: &Master, chunks: u64, now: Instant) -> Result<Volume, ControlError> {
    let wanted = Resize {
        cancels_growth: true,
        ..Resize::to(ByteCount(chunks * CHUNK.0))
    };
    master.borrow_mut().resize_volume_on("data", wanted, now)
}

impl Cluster {
    /// A volume that grows to all, of which the first step has places.
    fn growing() -> Self {
        let now = Instant::from_nanos(1);
        let store = Raced {
            // The other master is called from inside a commit of the first.
            store: Box::leak(Box::new(MemoryStore::new())),
            before: Rc::default(),
        };
        let open = |seed| {
            let master = Controller::open(store.clone(), Settings::default(), seed, now).unwrap();
            Rc::new(RefCell::new(master))
        };
        let cluster = Self {
            places: open(3),
            cuts: open(4),
            store: store.clone(),
            number: VolumeNumber(1),
            now,
        };
        for (master, life) in [(&cluster.places, None), (&cluster.cuts, Some(Incarnation(1)))] {
            for number in 1..=NODES {
                let registration = Registration {
                    cluster: None,
                    node: node(number),
                    peer_address: format!("192.0.2.{number}:4420"),
                    rack: None,
                    incarnation: life,
                    ended_through: Incarnation(0),
                    disks: disks(number),
                };
                master.borrow_mut().register(&registration, now).unwrap();
            }
        }
        let request = CreateVolume {
            chunk: CHUNK,
            ..CreateVolume::new("data", ByteCount(BEFORE * CHUNK.0))
        };
        cluster.places.borrow_mut().create_volume(&request, now).unwrap();
        cluster.beat(None);
        cluster.places.borrow_mut().tick(now).unwrap();
        assert_eq!(cluster.volume().state, VolumeState::Ready);
        let size = ByteCount(ALL * CHUNK.0);
        cluster
            .places
            .borrow_mut()
            .resize_volume("data", size, now)
            .unwrap();
        assert_eq!(cluster.placed(), FIRST);
        cluster
    }

    /// Every node says that it has made what it shall.
    fn beat(&self, grown: Option<Growing>) {
        for number in 1..=NODES {
            let mut master = self.places.borrow_mut();
            let heartbeat = Heartbeat {
                disks: disks(number),
                prepared: vec![self.number],
                grown: grown.into_iter().collect(),
                ..crate::silent(master.cluster(), node(number))
            };
            master.heartbeat(&heartbeat, self.now).unwrap();
        }
    }

    fn volume(&self) -> Volume {
        self.places.borrow().volume(self.number).unwrap()
    }

    /// The chunks with places: those up to this one, and no other.
    fn placed(&self) -> u64 {
        let mut found = 0;
        loop {
            let (_, chunks) = self.places.borrow().map(self.number, found as u32, 1000).unwrap();
            if chunks.is_empty() {
                return found;
            }
            for (id, _) in chunks {
                assert_eq!(u64::from(id.index), found, "places come in order");
                found += 1;
            }
        }
    }

    /// This happens before that commit from now on.
    fn before(&self, commits: usize, before: Before) {
        *self.store.before.borrow_mut() = Some((commits, before));
    }

    /// The growth goes on to its end, and the volume has so many chunks.
    fn ends_with(&self, chunks: u64, what: &str) {
        assert!(
            self.store.before.borrow().is_none(),
            "{what}: it did not come to that"
        );
        for _ in 0..4 {
            self.places.borrow_mut().tick(self.now).unwrap();
        }
        self.beat(Some(Growing {
            number: self.number,
            from: BEFORE as u32,
            chunks: chunks as u32,
        }));
        self.places.borrow_mut().tick(self.now).unwrap();
        let volume = self.volume();
        assert!(volume.is_settled(), "{what}");
        assert_eq!(u64::from(volume.geometry.chunk_count()), chunks, "{what}");
        assert_eq!(self.placed(), chunks, "{what}");
        for node in self.places.borrow().status(self.now).unwrap().nodes {
            for (_, promised) in node.disks {
                assert_eq!(promised.0, chunks * CHUNK.0, "{what}");
            }
        }
    }
}

/// The chunks that have places when so many commits of the second step are done.
fn placed_after(commits: usize) -> u64 {
    let cluster = Cluster::growing();
    let at = Rc::new(RefCell::new(0));
    let (seen, master, number) = (at.clone(), cluster.cuts.clone(), cluster.number);
    cluster.before(
        commits,
        Before::Other(Box::new(move || {
            let (_, chunks) = master.borrow().map(number, FIRST as u32, 1000).unwrap();
            *seen.borrow_mut() = FIRST + chunks.len() as u64;
        })),
    );
    cluster.places.borrow_mut().tick(cluster.now).unwrap();
    let at = *at.borrow();
    assert!(at < ALL, "{commits} commits and more");
    at
}

#[test]
fn a_growth_that_is_cut_while_its_chunks_get_places_has_none_beyond() {
    for commits in 0..COMMITS {
        let placed = placed_after(commits);
        assert_eq!(placed == FIRST, commits == 0);
        // As far as it goes at that moment, and to less than the step is about to place.
        for wanted in [placed, placed + 10] {
            let cluster = Cluster::growing();
            let (master, now) = (cluster.cuts.clone(), cluster.now);
            cluster.before(
                commits,
                Before::Other(Box::new(move || {
                    let refused = cut(&master, placed - 1, now).unwrap_err();
                    assert!(matches!(refused, ControlError::GrowthPlaced { .. }), "{refused}");
                    let cut = cut(&master, wanted, now).unwrap();
                    assert_eq!(u64::from(cut.grown().chunk_count()), wanted);
                })),
            );
            cluster.places.borrow_mut().tick(now).unwrap();
            cluster.ends_with(wanted, &format!("cut to {wanted} before commit {commits}"));
        }
    }
}

#[test]
fn a_cut_that_chunks_get_places_before_is_refused_or_spares_them() {
    for (wanted, least) in [(FIRST, ALL), (ALL - 1, ALL)] {
        let cluster = Cluster::growing();
        let (master, now) = (cluster.places.clone(), cluster.now);
        // Between the look for the first chunk without a place and the commit.
        cluster.before(
            0,
            Before::Other(Box::new(move || assert!(master.borrow_mut().tick(now).is_ok()))),
        );
        let refused = cut(&cluster.cuts, wanted, now).unwrap_err();
        assert!(matches!(refused, ControlError::GrowthPlaced { .. }), "{refused}");
        cluster.ends_with(least, &format!("cut to {wanted} behind all places"));
    }
    // A step of which a part comes first.
    for commits in 1..COMMITS {
        let placed = placed_after(commits);
        for (wanted, ends) in [(FIRST, ALL), (placed, placed)] {
            let cluster = Cluster::growing();
            let (places, cuts, now) = (cluster.places.clone(), cluster.cuts.clone(), cluster.now);
            let inner = cluster.store.clone();
            cluster.before(
                0,
                Before::Other(Box::new(move || {
                    // This step is cut off, as where its master loses its seat.
                    *inner.before.borrow_mut() = Some((commits, Before::Conflict));
                    places.borrow_mut().tick(now).unwrap();
                })),
            );
            let result = cut(&cuts, wanted, now);
            assert_eq!(result.is_ok(), wanted == ends, "{commits}: {result:?}");
            cluster.ends_with(ends, &format!("cut to {wanted} behind {commits} commits"));
        }
    }
}

#[test]
fn a_step_or_a_cut_whose_commit_is_refused_is_decided_anew() {
    for commits in 0..COMMITS {
        let cluster = Cluster::growing();
        cluster.before(commits, Before::Conflict);
        cluster.places.borrow_mut().tick(cluster.now).unwrap();
        let placed = cluster.placed();
        assert_eq!(placed == FIRST, commits == 0, "{commits}: {placed}");
        cluster.before(0, Before::Conflict);
        cut(&cluster.cuts, placed, cluster.now).unwrap();
        cluster.ends_with(placed, &format!("commit {commits} refused"));
    }
}
