//! A cluster grows by nodes while others die and come back, masters are replaced, and write nodes fill copies at their own
//! pace, by seed. At every step: no decision of the masters takes a copy in sync from a chunk that has no more than it
//! should have, no move begins while a chunk lacks a copy, few move at a time, and space promised is the space of the copies.
//! When faults have ended: every node is used to the same share within 5 %, and nothing changes any more.
//!
//! The same in racks; there no two copies of a chunk end in one, and a whole rack may be lost, come back, and change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::configuration::Proposal;
use control::{
    Chunk, ChunkId, ControlError, Controller, CreateVolume, Disk, DiskId, Heartbeat, Incarnation,
    MemoryStore, MetadataStore, NodeId, Rack, RebalanceState, Registration, Settings, Spread, Uuid,
    VolumeState,
};
use foundation::{ByteCount, Instant, Random};

mod pace;
mod racks;

const MIB: u64 = 1 << 20;
const COPIES: usize = 3;
/// Of a disk, where it is not said otherwise.
const SIZE: u64 = 4096 * 16 * MIB;

fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn rack(number: u64) -> Rack {
    Rack::new(&format!("rack-{number}")).unwrap()
}

#[derive(Clone, Debug)]
struct Machine {
    life: Incarnation,
    /// Bytes of each of its disks.
    disks: Vec<u64>,
    /// Dead until then.
    dead_until: Instant,
    /// Copies that it has deleted as it was told to, and says so.
    deleted: BTreeSet<ChunkId>,
}

struct World<'a> {
    control: Controller<&'a MemoryStore>,
    store: &'a MemoryStore,
    machines: BTreeMap<u64, Machine>,
    /// Where the machines stand, of those that say it.
    racks: BTreeMap<u64, Rack>,
    random: Random,
    now: Instant,
    faults: bool,
    known: BTreeMap<ChunkId, Chunk>,
    /// When the copies being filled are in sync.
    filled_at: BTreeMap<(ChunkId, NodeId), Instant>,
    /// The longest that filling one takes.
    fill_max: Duration,
    /// No node finds the time to delete a copy.
    is_busy: bool,
    moves: u32,
    deaths: u32,
}

fn settings() -> Settings {
    Settings {
        rebuild_after: Duration::from_secs(20),
        ..Settings::default()
    }
}

impl<'a> World<'a> {
    fn new(store: &'a MemoryStore, seed: u64) -> Self {
        let now = Instant::from_nanos(1);
        Self {
            control: Controller::open(store, settings(), seed, now).unwrap(),
            store,
            machines: BTreeMap::new(),
            racks: BTreeMap::new(),
            random: Random::from_seed(seed),
            now,
            faults: false,
            known: BTreeMap::new(),
            filled_at: BTreeMap::new(),
            fill_max: Duration::from_secs(6),
            is_busy: false,
            moves: 0,
            deaths: 0,
        }
    }

    fn disks(number: u64, sizes: &[u64]) -> Vec<Disk> {
        let disk = |(index, &bytes): (usize, &u64)| Disk {
            id: DiskId(Uuid(u128::from(number) * 100 + index as u128)),
            capacity: ByteCount(bytes),
            used: ByteCount(0),
            held: None,
        };
        sizes.iter().enumerate().map(disk).collect()
    }

    fn add_node(&mut self, number: u64, disks: &[u64]) {
        let machine = Machine {
            life: Incarnation(0),
            disks: disks.to_vec(),
            dead_until: self.now,
            deleted: BTreeSet::new(),
        };
        self.machines.insert(number, machine);
        self.register(number);
    }

    fn register(&mut self, number: u64) {
        let machine = &self.machines[&number];
        let registration = Registration {
            cluster: None,
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            rack: self.racks.get(&number).cloned(),
            incarnation: None,
            ended_through: machine.life,
            disks: Self::disks(number, &machine.disks),
        };
        let life = self
            .control
            .register(&registration, self.now)
            .unwrap()
            .incarnation;
        self.machines.get_mut(&number).unwrap().life = life;
    }

    /// Nodes of one disk each, in racks by their number.
    fn add_in_racks(&mut self, numbers: impl Iterator<Item = u64>, racks: u64) {
        for number in numbers {
            self.racks.insert(number, rack(number % racks));
            self.add_node(number, &[SIZE]);
        }
    }

    fn kill(&mut self, number: u64) {
        self.machines.get_mut(&number).unwrap().dead_until = self.now + Duration::from_secs(1_000_000);
    }

    /// A new engine finds the target that runs, and says another rack of it, or none.
    fn carry(&mut self, number: u64, to: Option<u64>) {
        let life = self.machines[&number].life;
        let registration = Registration {
            cluster: None,
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            rack: to.map(rack),
            incarnation: Some(life),
            ended_through: Incarnation(life.0 - 1),
            disks: Self::disks(number, &self.machines[&number].disks),
        };
        self.control.register(&registration, self.now).unwrap();
        match to {
            Some(to) => drop(self.racks.insert(number, rack(to))),
            None => drop(self.racks.remove(&number)),
        }
    }

    /// The chunks with two copies in one rack; where racks are few, with two more in one than in another that has a node for one.
    fn crowded(&self) -> u32 {
        let status = self.control.status(self.now).unwrap();
        let shown = status.volumes.iter().map(|volume| volume.crowded_chunks).sum();
        let rack = |id: NodeId| self.racks.get(&(id.0.0 as u64));
        let mut nodes = BTreeMap::<&Rack, usize>::new();
        for rack in self.racks.values() {
            *nodes.entry(rack).or_default() += 1;
        }
        let are_few = nodes.len() < COPIES && self.racks.len() == self.machines.len();
        let is_crowded = |chunk: &Chunk| {
            let racks: Vec<_> = chunk.members().map(|member| rack(member.0)).collect();
            let copies_in = |rack: &Rack| racks.iter().filter(|other| **other == Some(rack)).count();
            let most = nodes.keys().map(|rack| copies_in(rack)).max().unwrap_or(0);
            let lacks =
                |(rack, nodes): (&&Rack, &usize)| copies_in(rack) < (*nodes).min(most.saturating_sub(1));
            match are_few {
                true => nodes.iter().any(lacks),
                false => racks.iter().collect::<BTreeSet<_>>().len() < racks.len(),
            }
        };
        let counted = self
            .chunks()
            .iter()
            .filter(|(_, chunk)| is_crowded(chunk))
            .count();
        assert_eq!(shown as usize, counted, "status says it");
        shown
    }

    fn assert_whole(&self) {
        for (id, chunk) in self.chunks() {
            let nodes: BTreeSet<_> = chunk.copies.iter().map(|copy| copy.node).collect();
            let lives = |id: NodeId| self.machines[&(id.0.0 as u64)].dead_until <= self.now;
            assert!(chunk.members().all(|member| lives(member.0)), "{id}");
            assert_eq!((chunk.member_count(), nodes.len()), (COPIES, COPIES), "{id}");
        }
    }

    /// A quarter of a second.
    fn step(&mut self) {
        self.now = self.now + Duration::from_millis(250);
        if self.faults
            && self.random.chance(1, 80)
            && self.machines.values().all(|m| m.dead_until <= self.now)
        {
            let numbers: Vec<u64> = self.machines.keys().copied().collect();
            let victim = numbers[self.random.below(numbers.len() as u64) as usize];
            let away = Duration::from_millis(self.random.between(200, 40_000));
            self.machines.get_mut(&victim).unwrap().dead_until = self.now + away;
            self.deaths += 1;
            // What it filled, and what filled it, begins again.
            self.filled_at.clear();
        }
        if self.faults && self.random.chance(1, 150) {
            let seed = self.random.next_u64();
            self.control = Controller::open(self.store, settings(), seed, self.now).unwrap();
        }
        for number in self.machines.keys().copied().collect::<Vec<_>>() {
            let machine = self.machines[&number].clone();
            if machine.dead_until > self.now {
                continue;
            }
            if machine.dead_until + Duration::from_millis(250) > self.now
                && machine.life > Incarnation(0)
                && self.deaths > 0
            {
                self.register(number);
            }
            self.beat(number);
        }
        self.control.tick(self.now).unwrap();
        self.check();
        self.fill();
    }

    fn beat(&mut self, number: u64) {
        let machine = &self.machines[&number];
        let volumes = self.control.volumes().unwrap();
        let preparing = volumes.iter().filter(|v| v.state == VolumeState::Preparing);
        let deleting = volumes.iter().filter(|v| v.state == VolumeState::Deleting);
        let heartbeat = Heartbeat {
            incarnation: machine.life,
            disks: Self::disks(number, &machine.disks),
            prepared: preparing.map(|volume| volume.number).collect(),
            removed: deleting.map(|volume| volume.number).collect(),
            removed_copies: machine.deleted.iter().copied().collect(),
            ..crate::silent(self.control.cluster(), node(number))
        };
        match self.control.heartbeat(&heartbeat, self.now) {
            Ok(answer) => {
                let told = answer.remove_copies.into_iter().map(|(id, _)| id);
                self.machines.get_mut(&number).unwrap().deleted = told.filter(|_| !self.is_busy).collect();
            }
            Err(ControlError::StaleIncarnation { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Write nodes take in what they have filled, some seconds after it has a place.
    fn fill(&mut self) {
        let lives = |machines: &BTreeMap<u64, Machine>, id: NodeId, now: Instant| {
            machines
                .get(&(id.0.0 as u64))
                .filter(|m| m.dead_until <= now)
                .map(|m| m.life)
        };
        for (id, chunk) in self.chunks() {
            let out = chunk.copies.iter().find(|copy| {
                copy.incarnation.is_none() && lives(&self.machines, copy.node, self.now).is_some()
            });
            let Some(out) = out else { continue };
            let most = self.fill_max.as_millis() as u64;
            let takes = Duration::from_millis(self.random.between(250, most));
            let at = *self.filled_at.entry((id, out.node)).or_insert(self.now + takes);
            let writer = chunk
                .members()
                .find(|member| member.0 == chunk.write_node)
                .unwrap();
            if at > self.now || lives(&self.machines, writer.0, self.now) != Some(writer.1) {
                continue;
            }
            self.filled_at.remove(&(id, out.node));
            let mut members: BTreeMap<NodeId, Incarnation> = chunk.members().collect();
            members.insert(out.node, lives(&self.machines, out.node, self.now).unwrap());
            let proposal = Proposal {
                node: writer.0,
                incarnation: writer.1,
                expected: chunk.epoch,
                write_node: writer.0,
                members: members.into_iter().collect(),
            };
            // Refused where a life has just ended.
            drop(self.control.propose(id, &proposal, self.now));
        }
        self.known = self.chunks().into_iter().collect();
    }

    fn chunks(&self) -> Vec<(ChunkId, Chunk)> {
        let mut all = Vec::new();
        for volume in self.control.volumes().unwrap() {
            all.extend(self.control.map(volume.number, 0, 100_000).unwrap().1);
        }
        all
    }

    /// What the masters have done in this tick.
    fn check(&mut self) {
        let mut space: BTreeMap<(NodeId, DiskId), u64> = BTreeMap::new();
        let lacking = self
            .known
            .values()
            .filter(|chunk| chunk.member_count() < COPIES)
            .count();
        for (id, chunk) in self.chunks() {
            assert!(chunk.is_consistent());
            for copy in &chunk.copies {
                *space.entry((copy.node, copy.disk)).or_default() += 16 * MIB;
            }
            let Some(before) = self.known.get(&id).filter(|before| **before != chunk) else {
                continue;
            };
            let gone: Vec<_> = before
                .members()
                .filter(|member| !chunk.has_member(member.0, member.1))
                .collect();
            let dead = |&(id, life): &(NodeId, Incarnation)| {
                let machine = &self.machines[&(id.0.0 as u64)];
                machine.life != life
                    || machine.dead_until > self.now
                    || machine.dead_until + Duration::from_secs(5) > self.now
            };
            // One that lives is taken away only while there are more than there should be.
            let taken = gone.iter().filter(|member| !dead(member)).count();
            assert!(
                taken == 0 || chunk.member_count() >= COPIES || self.faults,
                "{id} loses a copy: {before:?} {chunk:?}"
            );
            if before.copies.len() > chunk.copies.len() {
                assert!(chunk.member_count() >= COPIES, "{id} lost a place: {chunk:?}");
            }
            if before.copies.len() < chunk.copies.len() && before.member_count() == COPIES {
                self.moves += 1;
                assert_eq!(lacking, 0, "{id} moves while chunks lack copies");
            }
        }
        let moving = self.control.balance(self.now).unwrap().moves.len();
        assert!(moving <= Settings::default().moves_max, "{moving} at a time");
        for status in self.control.status(self.now).unwrap().nodes {
            for (disk, allocated) in status.disks {
                let expected = space.remove(&(status.view.id, disk.id)).unwrap_or(0);
                assert_eq!(allocated.0, expected);
                assert!(allocated <= disk.capacity);
            }
        }
        assert!(space.is_empty());
    }

    fn steps(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.step();
        }
    }

    /// Steps until nothing has changed for a minute.
    fn until_quiet(&mut self, limit: u64) {
        let (mut last, mut since, begun) = (self.store_revision(), self.now, self.now);
        while self.now.since(since) < Duration::from_secs(60) {
            self.step();
            if self.store_revision() != last {
                (last, since) = (self.store_revision(), self.now);
            }
            assert!(
                self.now.since(begun) < Duration::from_secs(limit),
                "it does not end: {:?}",
                self.control.balance(self.now).unwrap()
            );
        }
    }

    fn store_revision(&self) -> u64 {
        self.control.revision().unwrap()
    }

    fn create(&mut self, chunks: u64) {
        let name = format!("v{}", self.control.volumes().unwrap().len());
        let request = CreateVolume {
            chunk: ByteCount(16 * MIB),
            stripe_unit: ByteCount(MIB),
            ..CreateVolume::new(name, ByteCount(chunks * 16 * MIB))
        };
        self.control.create_volume(&request, self.now).unwrap();
        self.steps(4);
    }

    /// By node: copies there, and how many it would have if all were used alike.
    fn copies(&self) -> BTreeMap<u64, (f64, f64)> {
        let mut copies: BTreeMap<u64, f64> = self.machines.keys().map(|&number| (number, 0.0)).collect();
        let chunks = self.chunks();
        for copy in chunks.iter().flat_map(|(_, chunk)| &chunk.copies) {
            *copies.get_mut(&(copy.node.0.0 as u64)).unwrap() += 1.0;
        }
        let size = |number: &u64| self.machines[number].disks.iter().sum::<u64>() as f64;
        let all: f64 = self.machines.keys().map(size).sum();
        let due = |number: &u64| (chunks.len() * COPIES) as f64 * size(number) / all;
        copies
            .iter()
            .map(|(number, &has)| (*number, (has, due(number))))
            .collect()
    }

    fn assert_even(&self, what: &str) {
        for (number, (has, due)) in self.copies() {
            // Within 5 %, or a copy where that is less.
            assert!(
                (has - due).abs() <= (due * 0.05).max(1.0),
                "{what}: node {number} has {has} copies and should have {due:.1}"
            );
        }
        let balance = self.control.balance(self.now).unwrap();
        assert_eq!(balance.state, RebalanceState::Even, "{balance:?}");
        assert!(balance.moves.is_empty());
    }
}

fn grows(seed: u64) -> (u32, u32, f64) {
    let store = MemoryStore::new();
    let mut world = World::new(&store, seed);
    let size = 4096 * 16 * MIB;
    for number in 1..=4 {
        world.add_node(number, &[size]);
    }
    world.steps(2);
    let chunks = world.random.between(100, 400);
    world.create(chunks);
    world.until_quiet(300);
    assert_eq!(world.moves, 0, "what is placed well is not moved");
    world.assert_even("before");
    world.faults = seed % 2 == 1;
    let double = world.random.chance(1, 2);
    world.add_node(5, &[size, size][..1 + usize::from(double)]);
    world.steps(world.random.clone().below(60));
    world.add_node(6, &[size / 2]);
    // As few as would do without faults.
    let due: f64 = world
        .copies()
        .iter()
        .filter(|(number, _)| **number > 4)
        .map(|(_, (_, due))| due)
        .sum();
    world.steps(300);
    world.faults = false;
    world.until_quiet(6000);
    world.assert_even("after");
    world.assert_whole();
    (world.moves, world.deaths, f64::from(world.moves) / due)
}

/// Found by a soak: node 5, twice as large as others, had too few copies, and all chunks of node 6, which had too many, had a
/// copy there already. It takes a move by a node that has what it should.
#[test]
fn who_has_too_many_gives_by_others_to_whom_it_cannot_give() {
    grows(179_570_892_339);
}

#[test]
fn a_cluster_that_grows_becomes_even_under_faults_and_then_rests() {
    let seeds = foundation::seeds::from_environment(12);
    let (mut moves, mut deaths) = (0, 0);
    for &seed in &seeds {
        println!("seed {seed}");
        let (moved, died, of_least) = grows(seed);
        moves += moved;
        deaths += died;
        if died == 0 {
            assert!(
                of_least < 1.15,
                "seed {seed}: {of_least:.2} times as many moves as needed"
            );
        }
    }
    assert!(
        moves > 100 && (deaths > 10 || seeds.len() < 12),
        "{moves} moves, {deaths} deaths"
    );
}

#[test]
fn a_copy_is_moved_by_command_and_what_cannot_be_is_refused_with_the_numbers() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 5);
    for number in 1..=5 {
        world.add_node(number, &[4096 * 16 * MIB]);
    }
    world.steps(2);
    world.create(20);
    world.control.set_rebalance(false).unwrap();
    world.steps(4);
    assert_eq!(
        world.control.balance(world.now).unwrap().state,
        RebalanceState::Stopped
    );
    let chunk = |world: &World<'_>| world.chunks()[7].1.clone();
    let before = chunk(&world);
    let from = before.copies[0].node;
    let to = (1..=5).map(node).find(|id| !before.has_copy_on(*id)).unwrap();
    let refused = |result: Result<_, ControlError>| match result {
        Err(error) => error.to_string(),
        Ok::<control::Moving, _>(_) => panic!("not refused"),
    };
    let now = world.now;
    let said = refused(world.control.move_copy("v0", 7, to, from, now));
    assert!(said.contains("has no copy of it"), "{said}");
    let said = refused(world.control.move_copy("v0", 7, from, before.copies[1].node, now));
    assert!(said.contains("would be lost together"), "{said}");
    let said = refused(world.control.move_copy("v0", 20, from, to, now));
    assert!(said.contains("20 chunks"), "{said}");
    let moving = world.control.move_copy("v0", 7, from, to, now).unwrap();
    assert_eq!((moving.from, moving.to), (from, to));
    assert_eq!(
        world.control.move_copy("v0", 7, from, to, now).unwrap(),
        moving,
        "repeated"
    );
    // Another master goes on with it.
    world.control = Controller::open(&store, settings(), 9, world.now).unwrap();
    world.until_quiet(300);
    let after = chunk(&world);
    assert!(after.has_copy_on(to) && !after.has_copy_on(from) && after.member_count() == 3);
    assert_eq!(chunk(&world).copies.len(), 3);
    assert_eq!(
        world.control.balance(world.now).unwrap().state,
        RebalanceState::Stopped
    );

    // The target dies for good before it has anything: the old copy stays, and nothing is left of the move.
    let number = to.0.0 as u64;
    let id = (1..=5).map(node).find(|id| !after.has_copy_on(*id)).unwrap();
    let now = world.now;
    world
        .control
        .move_copy("v0", 7, after.copies[0].node, id, now)
        .unwrap();
    assert_ne!(id, node(number));
    world.machines.get_mut(&(id.0.0 as u64)).unwrap().dead_until = world.now + Duration::from_secs(100_000);
    for _ in 0..200 {
        world.step();
    }
    assert_eq!(chunk(&world).copies, after.copies);
    assert!(world.control.balance(world.now).unwrap().moves.is_empty());
    let now = world.now;
    let said = refused(world.control.move_copy("v0", 7, after.copies[0].node, id, now));
    assert!(said.contains("is not alive"), "{said}");
}

/// The copy that was there may be on another disk than the one that has the place, and would serve from there.
#[test]
fn a_copy_moves_back_only_when_the_one_that_was_there_is_deleted() {
    for by_command in [true, false] {
        let store = MemoryStore::new();
        let mut world = World::new(&store, 8);
        for number in 1..=4 {
            world.add_node(number, &[SIZE]);
        }
        world.steps(2);
        world.create(20);
        world.control.set_rebalance(false).unwrap();
        world.is_busy = true;
        let (id, before) = world.chunks()[7].clone();
        let from = before.copies[0].node;
        let to = (1..=4).map(node).find(|id| !before.has_copy_on(*id)).unwrap();
        let now = world.now;
        world.control.move_copy("v0", 7, from, to, now).unwrap();
        world.until_quiet(300);
        let is_there = |world: &World<'_>| {
            world
                .chunks()
                .iter()
                .any(|(of, chunk)| *of == id && chunk.has_copy_on(from))
        };
        assert!(!is_there(&world));
        let now = world.now;
        match by_command {
            true => {
                let said = world
                    .control
                    .move_copy("v0", 7, to, from, now)
                    .unwrap_err()
                    .to_string();
                assert!(
                    said.contains("has still to delete the copy that it had"),
                    "{said}"
                );
            }
            // All that is elsewhere is to leave, and there is nowhere else.
            false => drop(world.control.drain(to, None, now).unwrap()),
        }
        world.steps(100);
        assert!(!is_there(&world));
        let on_drained = |world: &World<'_>| {
            world
                .chunks()
                .iter()
                .filter(|(_, chunk)| chunk.has_copy_on(to))
                .count()
        };
        if !by_command {
            assert_eq!(on_drained(&world), 1, "all others have left");
        }
        world.is_busy = false;
        world.steps(4);
        if by_command {
            let now = world.now;
            world.control.move_copy("v0", 7, to, from, now).unwrap();
        }
        world.until_quiet(300);
        assert!(is_there(&world));
        if !by_command {
            assert_eq!(on_drained(&world), 0);
        }
    }
}

/// While a copy moves, its chunk has one on every node: what it leaves behind is a place all the same.
#[test]
fn a_node_is_drained_while_copies_move() {
    for drains_source in [false, true] {
        let store = MemoryStore::new();
        let mut world = World::new(&store, 6);
        for number in 1..=4 {
            world.add_node(number, &[4096 * 16 * MIB]);
        }
        world.steps(2);
        world.create(20);
        world.control.set_rebalance(false).unwrap();
        world.steps(4);
        let before = world.chunks()[7].1.clone();
        let (from, other) = (before.copies[0].node, before.copies[1].node);
        let to = (1..=4).map(node).find(|id| !before.has_copy_on(*id)).unwrap();
        let now = world.now;
        world.control.move_copy("v0", 7, from, to, now).unwrap();
        world.step();
        assert_eq!(world.chunks()[7].1.copies.len(), 4);
        let drained = if drains_source { from } else { other };
        let now = world.now;
        world.control.drain(drained, None, now).unwrap();
        world.until_quiet(600);
        let chunks = world.chunks();
        assert!(
            chunks
                .iter()
                .all(|(_, chunk)| !chunk.has_copy_on(drained) && chunk.member_count() == 3)
        );
    }
}

#[test]
fn writes_move_to_the_node_that_is_asked_for() {
    let store = MemoryStore::new();
    let mut world = World::new(&store, 6);
    for number in 1..=3 {
        world.add_node(number, &[4096 * 16 * MIB]);
    }
    world.steps(2);
    world.create(9);
    let other = |world: &World<'_>| {
        let chunk = world.chunks()[4].1.clone();
        (1..=3).map(node).find(|id| *id != chunk.write_node).unwrap()
    };
    let (to, now) = (other(&world), world.now);
    let committed = world.control.move_writes("v0", 4, to, now).unwrap();
    assert_eq!(committed, world.chunks()[4].1);
    world.until_quiet(300);
    assert_eq!(world.chunks()[4].1, committed, "it stays so");

    world.control.pin_writes("v0", Some(node(2))).unwrap();
    world.until_quiet(300);
    let all_at = |world: &World<'_>, at| {
        world
            .chunks()
            .iter()
            .all(|(_, chunk)| chunk.write_node == node(at))
    };
    assert!(all_at(&world, 2));
    let now = world.now;
    let said = world
        .control
        .move_writes("v0", 4, node(1), now)
        .unwrap_err()
        .to_string();
    assert!(said.contains("pinned to another node"), "{said}");
    // It dies, others take over; when it is back and in sync, it has them again.
    world.machines.get_mut(&2).unwrap().dead_until = world.now + Duration::from_secs(10);
    world.deaths = 1;
    world.steps(8);
    assert!(
        world
            .chunks()
            .iter()
            .all(|(_, chunk)| chunk.write_node != node(2))
    );
    world.until_quiet(600);
    assert!(all_at(&world, 2));
    world.add_node(4, &[4096 * 16 * MIB]);
    world.until_quiet(600);
    assert!(all_at(&world, 2), "its copies are not moved away");
    let said = world
        .control
        .pin_writes("v0", Some(node(4)))
        .unwrap_err()
        .to_string();
    assert!(said.contains("of its 9 chunks"), "{said}");
    world.control.pin_writes("v0", None).unwrap();
    assert_eq!(world.control.volume_named("v0").unwrap().write_pin, None);
}
