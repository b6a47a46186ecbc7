//! Random histories of a cluster under two masters that both believe they lead: masters crash
//! between the store's answer and theirs, nodes restart and fall silent, write nodes propose on
//! old maps, calls are repeated. After each step: epochs only grow and by one, no chunk has fewer
//! members than the minimum, its write node is a member, no copy is placed twice on a node or
//! moves: a place is added out of sync and taken away when three copies are in sync without it; a member that was out of sync comes in only by its write node's proposal or by a
//! recovery in which every life had ended, and the space promised is the space of the copies.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use control::configuration::Proposal;
use control::{
    Chunk, ChunkId, Committed, Controller, CreateVolume, Disk, DiskId, Entry, Heartbeat, Incarnation,
    MemoryStore, MetadataStore, NodeId, Registration, Settings, StoreError, Transaction, Uuid, Versioned,
    VolumeState,
};
use foundation::{ByteCount, Epoch, Instant, Random};

const MIB: u64 = 1 << 20;
const NODES: u64 = 5;

/// A store whose answer to a commit gets lost now and then; the commit itself has happened, or
/// not.
#[derive(Clone)]
struct Faulty {
    store: Rc<MemoryStore>,
    /// Commits until one fails; and whether that one takes effect.
    fail_after: Rc<Cell<Option<(u32, bool)>>>,
}

impl MetadataStore for Faulty {
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
        let lost = Err(StoreError::Unavailable {
            store: "faulty".to_owned(),
            why: "the answer was lost".to_owned(),
        });
        match self.fail_after.get() {
            Some((0, takes_effect)) => {
                self.fail_after.set(None);
                if takes_effect {
                    self.store.commit(transaction)?;
                }
                lost
            }
            Some((commits, takes_effect)) => {
                self.fail_after.set(Some((commits - 1, takes_effect)));
                self.store.commit(transaction)
            }
            None => self.store.commit(transaction),
        }
    }

    fn operations_max(&self) -> usize {
        self.store.operations_max()
    }
}

#[derive(Clone, Debug)]
struct World {
    incarnations: BTreeMap<u64, Incarnation>,
    silent: BTreeSet<u64>,
    /// Maps that write nodes act on, perhaps old ones.
    maps: BTreeMap<ChunkId, Chunk>,
    /// What the store held after the last step.
    committed: BTreeMap<ChunkId, Chunk>,
    ended: BTreeMap<u64, Incarnation>,
    /// Places taken away, and added.
    moved: u32,
    added: u32,
}

struct History {
    store: Faulty,
    masters: Vec<Controller<Faulty>>,
    random: Random,
    now: Instant,
    world: World,
    trace: Vec<String>,
}

fn settings() -> Settings {
    Settings {
        heartbeat_timeout: Duration::from_secs(3),
        audit_interval: Duration::from_secs(20),
        changes_kept: 50,
        rebuild_after: Duration::from_secs(8),
        ..Settings::default()
    }
}

fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn disks(number: u64) -> Vec<Disk> {
    (0..2)
        .map(|index| Disk {
            id: DiskId(Uuid(u128::from(number * 10 + index))),
            capacity: ByteCount(200 * MIB),
            used: ByteCount(0),
            held: None,
        })
        .collect()
}

impl History {
    fn new(seed: u64) -> Self {
        let store = Faulty {
            store: Rc::new(MemoryStore::with_operations_max(12)),
            fail_after: Rc::default(),
        };
        let now = Instant::from_nanos(1);
        let open = |seed| Controller::open(store.clone(), settings(), seed, now).unwrap();
        Self {
            masters: vec![open(seed), open(seed + 1)],
            store,
            random: Random::from_seed(seed),
            now,
            world: World {
                incarnations: BTreeMap::new(),
                silent: BTreeSet::new(),
                maps: BTreeMap::new(),
                committed: BTreeMap::new(),
                ended: BTreeMap::new(),
                moved: 0,
                added: 0,
            },
            trace: Vec::new(),
        }
    }

    fn step(&mut self) {
        let master = self.random.below(2) as usize;
        if self.random.chance(1, 8) {
            let takes_effect = self.random.chance(1, 2);
            self.store
                .fail_after
                .set(Some((self.random.below(3) as u32, takes_effect)));
        }
        let number = 1 + self.random.below(NODES);
        let choice = self.random.below(100);
        let result = match choice {
            0..10 => self.register(master, number),
            10..45 => self.heartbeat(master, number),
            45..70 => {
                self.now = self.now + Duration::from_millis(self.random.below(900));
                self.masters[master].tick(self.now).map(drop)
            }
            72..75 => {
                if !self.world.silent.remove(&number) {
                    self.world.silent.insert(number);
                }
                Ok(())
            }
            75..80 => self.create(master),
            80..82 => {
                let name = format!("v{}", self.random.below(4));
                self.masters[master].delete_volume(&name, self.now).map(drop)
            }
            82..86 => {
                // The master dies; another takes its place, knowing nothing.
                let seed = self.random.next_u64();
                self.store.fail_after.set(None);
                let store = self.store.clone();
                self.masters[master] = Controller::open(store, settings(), seed, self.now).unwrap();
                Ok(())
            }
            70..72 => {
                let (node, disk) = (node(number), None);
                let again = self.random.chance(1, 2);
                match self.random.chance(1, 3) {
                    true => self.masters[master].drain(node, disk, self.now).map(drop),
                    false if again => self.masters[master].undrain(node, disk).map(drop),
                    false => Ok(()),
                }
            }
            86..89 => {
                self.world.maps = self.world.committed.clone();
                Ok(())
            }
            _ => self.propose(master),
        };
        self.store.fail_after.set(None);
        self.trace
            .push(format!("{choice} on {master}, node {number}: {result:?}"));
        self.check();
    }

    fn register(&mut self, master: usize, number: u64) -> Result<(), control::ControlError> {
        let known = self.world.incarnations.get(&number).copied();
        let proves = self.random.chance(2, 3);
        let ended_through = known.filter(|_| proves).unwrap_or_default();
        // True from now on, whether the masters' answer arrives or not.
        let ended = self.world.ended.entry(number).or_default();
        *ended = ended_through.max(*ended);
        let registered = self.masters[master].register(
            &Registration {
                cluster: None,
                node: node(number),
                peer_address: format!("192.0.2.{number}:4420"),
                rack: None,
                incarnation: None,
                ended_through,
                disks: disks(number),
            },
            self.now,
        )?;
        assert!(
            known.is_none_or(|known| registered.incarnation > known),
            "a life was numbered twice"
        );
        self.world.incarnations.insert(number, registered.incarnation);
        self.world.silent.remove(&number);
        Ok(())
    }

    fn heartbeat(&mut self, _: usize, number: u64) -> Result<(), control::ControlError> {
        let Some(&incarnation) = self.world.incarnations.get(&number) else {
            return Ok(());
        };
        if self.world.silent.contains(&number) {
            return Ok(());
        }
        // Each master is told, as nodes do that know both; each may miss it.
        for master in 0..2 {
            if self.random.chance(1, 10) {
                continue;
            }
            let cluster = self.masters[master].cluster();
            let volumes = self.masters[master].volumes()?;
            let in_state = |state| {
                volumes
                    .iter()
                    .filter(|volume| volume.state == state)
                    .map(|volume| volume.number)
                    .collect()
            };
            let heartbeat = Heartbeat {
                incarnation,
                disks: disks(number),
                prepared: in_state(VolumeState::Preparing),
                removed: in_state(VolumeState::Deleting),
                ..crate::silent(cluster, node(number))
            };
            self.masters[master].heartbeat(&heartbeat, self.now)?;
        }
        Ok(())
    }

    fn create(&mut self, master: usize) -> Result<(), control::ControlError> {
        let name = format!("v{}", self.random.below(4));
        let request = CreateVolume {
            chunk: ByteCount(16 * MIB),
            stripe_unit: ByteCount(MIB),
            ..CreateVolume::new(name, ByteCount(MIB * self.random.between(1, 300)))
        };
        self.masters[master].create_volume(&request, self.now).map(drop)
    }

    /// A write node proposes on the map it knows: to join, replace or leave out somebody.
    fn propose(&mut self, master: usize) -> Result<(), control::ControlError> {
        if self.world.maps.is_empty() {
            return Ok(());
        }
        let knows_all = self.random.chance(1, 2) && !self.world.committed.is_empty();
        let maps = if knows_all {
            &self.world.committed
        } else {
            &self.world.maps
        };
        let index = self.random.below(maps.len() as u64) as usize;
        let (&id, chunk) = maps.iter().nth(index).expect("below the length");
        let mut members: BTreeMap<NodeId, Incarnation> = chunk.members().collect();
        let copy = chunk.copies[self.random.below(chunk.copies.len() as u64) as usize].node;
        if self.random.chance(2, 3) {
            let number = copy.0.0 as u64;
            let incarnation = self
                .world
                .incarnations
                .get(&number)
                .copied()
                .unwrap_or(Incarnation(1));
            members.insert(copy, incarnation);
        } else {
            members.remove(&copy);
        }
        let proposer = chunk.write_node;
        let incarnation = chunk
            .members()
            .find(|member| member.0 == proposer)
            .expect("a member")
            .1;
        let proposal = Proposal {
            node: proposer,
            incarnation,
            expected: chunk.epoch,
            write_node: if self.random.chance(1, 4) { copy } else { proposer },
            members: members.into_iter().collect(),
        };
        let committed = self.masters[master].propose(id, &proposal, self.now)?;
        let again = self.masters[1 - master].propose(id, &proposal, self.now)?;
        assert_eq!(committed, again, "a repeated proposal says the same");
        Ok(())
    }

    fn check(&mut self) {
        let mut found = BTreeMap::new();
        let mut space: BTreeMap<(NodeId, DiskId), u64> = BTreeMap::new();
        let master = &self.masters[0];
        for volume in master.volumes().unwrap() {
            let (_, chunks) = master.map(volume.number, 0, 10_000).unwrap();
            if matches!(volume.state, VolumeState::Preparing | VolumeState::Ready) {
                assert_eq!(chunks.len() as u32, volume.geometry.chunk_count());
            }
            for (id, chunk) in chunks {
                assert!(chunk.is_consistent(), "{chunk:?}");
                assert!(chunk.copies.len() >= 3, "{id} has too few places: {chunk:?}");
                assert!(chunk.member_count() >= 2, "{id} is below its minimum: {chunk:?}");
                for copy in &chunk.copies {
                    *space.entry((copy.node, copy.disk)).or_default() += volume.geometry.chunk.0;
                }
                if let Some(before) = self.world.committed.get(&id) {
                    self.check_transition(id, before, &chunk);
                    self.world.moved += u32::from(before.copies.len() > chunk.copies.len());
                    self.world.added += u32::from(before.copies.len() < chunk.copies.len());
                }
                found.insert(id, chunk);
            }
        }
        for status in master.status(self.now).unwrap().nodes {
            for (disk, allocated) in status.disks {
                let expected = space.remove(&(status.view.id, disk.id)).unwrap_or(0);
                assert_eq!(allocated.0, expected, "the space on disk {} is wrong", disk.id);
                assert!(allocated <= disk.capacity);
            }
        }
        assert!(space.is_empty());
        self.world.committed = found;
    }

    fn check_transition(&self, id: ChunkId, before: &Chunk, after: &Chunk) {
        let places = |chunk: &Chunk| {
            chunk
                .copies
                .iter()
                .map(|copy| (copy.node, copy.disk))
                .collect::<Vec<_>>()
        };
        if after.epoch == before.epoch.next() {
            let (was, is) = (places(before), places(after));
            let added: Vec<_> = is.iter().filter(|place| !was.contains(place)).collect();
            let gone = was.iter().filter(|place| !is.contains(place)).count();
            assert!(added.len() <= 1, "{id}: {} copies at once", added.len());
            for &&(node, _) in &added {
                let is_out = after
                    .copies
                    .iter()
                    .any(|c| c.node == node && c.incarnation.is_none());
                assert!(is_out, "{id}: a new copy passes for one in sync");
            }
            assert!(
                gone == 0 || after.member_count() >= 3,
                "{id} lost a place it needed: {after:?}"
            );
        }
        if before.epoch == after.epoch {
            assert_eq!(before, after, "{id} changed without an epoch");
            return;
        }
        assert!(after.epoch > before.epoch, "the epoch of {id} fell");
        if after.epoch != before.epoch.next() {
            return;
        }
        let stays = after
            .members()
            .any(|(node, incarnation)| before.has_member(node, incarnation));
        assert_eq!(after.recovery, !stays, "{id}: only a recovery keeps no life");
        if after.recovery {
            for (node, incarnation) in before.members() {
                let ended = self.world.ended.get(&(node.0.0 as u64));
                assert!(
                    ended.is_some_and(|ended| *ended >= incarnation),
                    "{id} recovered unproved"
                );
            }
        }
    }
}

fn run(seed: u64, steps: u32) -> History {
    let mut history = History::new(seed);
    for number in 1..=NODES {
        history.register(0, number).unwrap();
        history.heartbeat(0, number).unwrap();
    }
    for step in 0..steps {
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.step()));
        if let Err(panic) = shown {
            eprintln!("seed {seed}, step {step}; the last steps:");
            for line in history.trace.iter().rev().take(12) {
                eprintln!("  {line}");
            }
            std::panic::resume_unwind(panic);
        }
    }
    history
}

#[test]
fn random_histories_keep_the_invariants_and_get_somewhere() {
    let (mut epochs, mut ready, mut recoveries, mut moved, mut added) = (0, 0, 0, 0, 0);
    for seed in 0..60 {
        let history = run(seed, 400);
        moved += history.world.moved;
        added += history.world.added;
        for chunk in history.world.committed.values() {
            epochs += u64::from(chunk.epoch > Epoch(1));
            recoveries += u64::from(chunk.recovery);
        }
        let volumes = history.masters[1].volumes().unwrap();
        ready += volumes
            .iter()
            .filter(|volume| volume.state == VolumeState::Ready)
            .count();
    }
    assert!(epochs > 100, "hardly any configuration changed: {epochs}");
    assert!(ready > 20, "hardly any volume became ready: {ready}");
    assert!(recoveries > 0, "no chunk was ever recovered");
    // It takes a chunk all of whose members are heard, and a new copy that gets in: rare where all is random.
    assert!(added > 0, "no copy was placed elsewhere");
    assert!(moved > 0, "no place was ever taken away");
}

#[test]
fn one_seed_gives_one_history() {
    assert_eq!(run(7, 200).trace, run(7, 200).trace);
}
