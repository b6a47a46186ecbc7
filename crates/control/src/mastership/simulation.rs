//! Three masters, one etcd and five nodes in virtual time from one seed: masters crash, are paused
//! and cut off from etcd, one hears no node from some moment on; etcd loses its quorum and comes back with every lease at its full term;
//! other programs write into it; answers to commits get lost; nodes die, return, and look for the
//! master that leads.
//!
//! Checked: only the one who leads commits; no node that lived all the while is left out; epochs
//! grow; no chunk falls below its minimum; a reader's lease that its holder relies on is known to
//! whoever leads; once faults stop, somebody leads who hears nodes, the dead are left out, and a
//! volume can be created.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use foundation::{ByteCount, Instant, Random};

use super::Member;
use crate::planted::Bug;
use crate::testing::{Etcd, EtcdElection, Lost};
use crate::{
    Chunk, ChunkId, ClusterId, CreateVolume, Disk, DiskId, Heartbeat, Incarnation, NodeId, Registration,
    SessionId, Settings, Uuid, VolumeNumber, VolumeState,
};

const MASTERS: usize = 3;
const NODES: u64 = 5;
const MIB: u64 = 1 << 20;
const STEP: Duration = Duration::from_millis(100);
/// How long faults go on, and how long there are none after that.
const FAULTS: u32 = 900;
const QUIET: u32 = 250;
/// The same where a master stays deaf: it may have led three times while there were faults (9, 18 and 36 s), and is patient for 72 s then.
const QUIET_DEAF: u32 = 900;
const BEAT: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(3);
/// The term of a master's lease. It is over before a new reign counts anybody's silence.
const LEASE: Duration = Duration::from_secs(2);
const _: () = assert!(LEASE.as_secs() < TIMEOUT.as_secs());

fn settings() -> Settings {
    Settings {
        heartbeat_interval: BEAT,
        heartbeat_timeout: TIMEOUT,
        audit_interval: Duration::from_secs(20),
        changes_kept: 50,
        ..Settings::default()
    }
}

struct Node {
    id: NodeId,
    incarnation: Incarnation,
    /// Since when it lives without a break; none while it is dead.
    lives_since: Option<Instant>,
    /// The master it speaks with.
    master: usize,
    /// Who named that one as the one that leads, and how often in vain, as `proto::client` has it.
    named_by: Option<usize>,
    in_vain: u32,
    beats_at: Instant,
}

/// A master that names one which does not answer is asked so often, before others are.
const IN_VAIN_MAX: u32 = 3;

impl Node {
    /// Whom to ask after a master that does not answer.
    fn turn_back(&mut self, master: usize) -> usize {
        self.in_vain += 1;
        match self.named_by {
            Some(by) if self.in_vain < IN_VAIN_MAX => by,
            by => {
                (self.named_by, self.in_vain) = (None, 0);
                (by.unwrap_or(master) + 1) % MASTERS
            }
        }
    }
}

struct World {
    etcd: Rc<RefCell<Etcd>>,
    masters: Vec<Member<EtcdElection>>,
    /// Until then a master does nothing.
    paused: [Instant; MASTERS],
    /// No node reaches this master any more, nor it a node.
    deaf: Option<usize>,
    nodes: Vec<Node>,
    random: Random,
    now: Instant,
    steps_at: [Instant; MASTERS],
    step_every: Duration,
    /// How long each step takes; and until when a master is at work, and answers nobody.
    works: Duration,
    busy: [Instant; MASTERS],
    chunks: BTreeMap<ChunkId, Chunk>,
    /// When a reader last asked for its lease with success.
    reader: Option<(VolumeNumber, Instant)>,
    reigns: u64,
    left_out: u64,
    bug: Option<Bug>,
    seed: u64,
}

/// What a run has come to, for those who ask whether it went anywhere.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    reigns: u64,
    left_out: u64,
    volumes: usize,
    revision: u64,
}

fn node_id(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn disks(number: u64) -> Vec<Disk> {
    vec![Disk {
        id: DiskId(Uuid(u128::from(number * 10))),
        capacity: ByteCount(4000 * MIB),
        used: ByteCount(0),
        held: None,
    }]
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let etcd = Rc::new(RefCell::new(Etcd::new(seed, LEASE)));
        let now = Instant::from_nanos(1_000_000_000);
        let mut world = Self {
            masters: Vec::new(),
            etcd,
            paused: [now; MASTERS],
            deaf: None,
            nodes: Vec::new(),
            random: Random::from_seed(seed),
            now,
            steps_at: [now; MASTERS],
            step_every: Duration::from_millis(300),
            works: Duration::ZERO,
            busy: [now; MASTERS],
            chunks: BTreeMap::new(),
            reader: None,
            reigns: 0,
            left_out: 0,
            bug,
            seed,
        };
        for index in 0..MASTERS {
            let member = world.member(index);
            world.masters.push(member);
        }
        for number in 1..=NODES {
            world.nodes.push(Node {
                id: node_id(number),
                incarnation: Incarnation(0),
                lives_since: Some(now),
                master: 0,
                named_by: None,
                in_vain: 0,
                beats_at: now,
            });
        }
        world
    }

    fn member(&mut self, index: usize) -> Member<EtcdElection> {
        let election = EtcdElection::new(self.etcd.clone(), index);
        let mut member = Member::new(election, settings(), self.random.next_u64());
        member.plant(self.bug);
        member
    }

    fn run(mut self) -> Outcome {
        let mut step = 0;
        while step < FAULTS + self.deaf.map_or(QUIET, |_| QUIET_DEAF) {
            self.now = self.now + STEP;
            self.etcd.borrow_mut().pass(self.now);
            if step < FAULTS {
                self.faults();
            } else if step == FAULTS {
                self.heal();
            }
            self.etcd.borrow_mut().others_write();
            self.move_masters();
            self.move_nodes();
            self.use_the_cluster(step);
            self.check();
            step += 1;
        }
        self.check_quiet()
    }

    fn faults(&mut self) {
        let master = self.random.below(MASTERS as u64) as usize;
        let span = Duration::from_millis(self.random.between(100, 9000));
        let until = self.now + span;
        match self.random.below(250) {
            // Crash, and start again with an empty memory.
            0..2 => {
                self.masters[master] = self.member(master);
                self.etcd.borrow_mut().forget(master);
                self.paused[master] = until;
            }
            2..5 => self.paused[master] = until,
            5..8 => self.etcd.borrow_mut().cut_off(master, until),
            8..11 => self.etcd.borrow_mut().lose_quorum(until),
            11..16 => self.lose_answer(),
            16..19 => {
                let node = self.random.below(NODES) as usize;
                let dead = self
                    .nodes
                    .iter()
                    .filter(|node| node.lives_since.is_none())
                    .count();
                if self.nodes[node].lives_since.is_some() && dead < 2 {
                    self.nodes[node].lives_since = None;
                    // A new life in a while.
                    self.nodes[node].beats_at = until + span;
                }
            }
            19 if self.deaf.is_none() => self.deaf = Some(master),
            _ => {}
        }
    }

    fn lose_answer(&mut self) {
        let lost = match self.random.chance(1, 2) {
            true => Lost::Done,
            false => Lost::NotDone,
        };
        self.etcd.borrow_mut().lose_answers(vec![lost]);
    }

    fn heal(&mut self) {
        self.etcd.borrow_mut().heal();
        self.paused = [self.now; MASTERS];
    }

    fn is_paused(&self, master: usize) -> bool {
        self.now < self.paused[master]
    }

    fn move_masters(&mut self) {
        for index in 0..MASTERS {
            if self.is_paused(index) {
                continue;
            }
            self.etcd.borrow_mut().keep_alive(index, self.now);
            if self.now < self.steps_at[index] {
                continue;
            }
            self.steps_at[index] = self.now + self.step_every;
            let led = self.masters[index].lead().is_ok();
            // An error is a store that does not answer; the member goes on.
            let _ = self.masters[index].step(self.now);
            self.busy[index] = self.now + self.works;
            self.masters[index].stepped(self.busy[index]);
            self.reigns += u64::from(!led && self.masters[index].lead().is_ok());
        }
    }

    /// Nodes beat twice a second at the master they believe in; one that does not answer, or does
    /// not lead, sends them on.
    fn move_nodes(&mut self) {
        for index in 0..self.nodes.len() {
            if self.now < self.nodes[index].beats_at {
                continue;
            }
            if self.nodes[index].lives_since.is_none() {
                self.nodes[index].lives_since = Some(self.now);
                self.nodes[index].incarnation = Incarnation(0);
            }
            let master = self.nodes[index].master;
            if self.now < self.busy[master] {
                // It is answered when that is over.
                self.nodes[index].beats_at = self.busy[master];
                continue;
            }
            let next = if self.is_paused(master) {
                Some(self.nodes[index].turn_back(master))
            } else {
                self.beat(index, master)
            };
            // Nodes do not beat in step, and some are slow to find the master that leads.
            let pause = match next {
                Some(_) => STEP * (1 + self.random.below(6) as u32),
                None => BEAT - STEP + STEP * self.random.below(3) as u32,
            };
            let node = &mut self.nodes[index];
            node.beats_at = self.now + pause;
            node.master = next.unwrap_or(master);
            if next.is_none() {
                (node.named_by, node.in_vain) = (None, 0);
            }
        }
    }

    /// None once a master that leads has heard it; otherwise whom to ask next.
    fn beat(&mut self, index: usize, master: usize) -> Option<usize> {
        let node = &mut self.nodes[index];
        if self.deaf == Some(master) {
            return Some(node.turn_back(master));
        }
        let control = match self.masters[master].lead() {
            Ok(control) => control,
            Err(refused) => {
                let told = refused.leader.and_then(|leader| leader.address.parse().ok());
                if node.named_by != Some(master) {
                    node.in_vain = 0;
                }
                node.named_by = told.map(|_: usize| master);
                return Some(told.unwrap_or((master + 1) % MASTERS));
            }
        };
        let next = Some((master + 1) % MASTERS);
        let number = node.id.0.0 as u64;
        if node.incarnation == Incarnation(0) {
            let registration = Registration {
                cluster: None,
                node: node.id,
                peer_address: format!("192.0.2.{number}:4420"),
                rack: None,
                incarnation: None,
                ended_through: Incarnation(0),
                disks: disks(number),
            };
            return match control.register(&registration, self.now) {
                Ok(registered) => {
                    node.incarnation = registered.incarnation;
                    None
                }
                Err(_) => next,
            };
        }
        let Ok(volumes) = control.volumes() else {
            return next;
        };
        let preparing = volumes
            .iter()
            .filter(|volume| volume.state == VolumeState::Preparing);
        let heartbeat = Heartbeat {
            cluster: control.cluster(),
            node: node.id,
            incarnation: node.incarnation,
            ended_through: Incarnation(0),
            disks: disks(number),
            prepared: preparing.map(|volume| volume.number).collect(),
            grown: Vec::new(),
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
        match control.heartbeat(&heartbeat, self.now) {
            Ok(_) => None,
            Err(_) => next,
        }
    }

    fn leading(&mut self) -> Option<&mut crate::Controller<crate::testing::Handle>> {
        let seated = self.etcd.borrow().leader()?;
        let is_paused = self.is_paused(seated);
        self.masters[seated].lead().ok().filter(|_| !is_paused)
    }

    /// Creates a volume now and then; a reader renews its lease well within its term.
    fn use_the_cluster(&mut self, step: u32) {
        let now = self.now;
        let name = format!("v{step}");
        let wants_volume = step % 150 == 60;
        let reader = self.reader;
        let Some(control) = self.leading() else { return };
        if wants_volume {
            let request = CreateVolume {
                chunk: ByteCount(16 * MIB),
                stripe_unit: ByteCount(MIB),
                ..CreateVolume::new(name, ByteCount(64 * MIB))
            };
            // May be refused for the moment, by the store or for the lack of nodes.
            let _ = control.create_volume(&request, now);
        }
        let renews = reader.is_none_or(|(_, asked)| now.since(asked) > Duration::from_secs(20));
        if renews {
            let known = control.volumes().ok().and_then(|volumes| {
                let ready = volumes.iter().find(|volume| volume.state == VolumeState::Ready);
                ready.map(|volume| volume.number)
            });
            let volume = reader.map(|(volume, _)| volume).or(known);
            let session = SessionId(Uuid(7));
            if let Some(volume) = volume
                && control.hold_reader(volume, session, "reader", 1, now).is_ok()
            {
                self.reader = Some((volume, now));
            }
        }
    }

    fn check(&mut self) {
        let now = self.now;
        let reader = self.reader;
        let committed = self.etcd.borrow().chunks();
        for (id, chunk) in &committed {
            assert!(chunk.is_consistent(), "{id}: {chunk:?}");
            assert!(chunk.member_count() >= 2, "{id} is below its minimum: {chunk:?}");
            if let Some(before) = self.chunks.get(id) {
                assert!(chunk.epoch >= before.epoch, "the epoch of {id} fell");
                self.check_left_out(*id, &before.clone(), chunk);
            }
        }
        self.chunks = committed;
        if let Some((volume, asked)) = reader
            && now.since(asked) < settings().reader_term / 100 * 99
            && let Some(control) = self.leading()
            && let Ok(readers) = control.readers(volume, now)
        {
            assert_eq!(readers.len(), 1, "a reader's lease was forgotten");
        }
    }

    /// Who is left out has been dead, or is in another life than the one that was in sync.
    fn check_left_out(&mut self, id: ChunkId, before: &Chunk, after: &Chunk) {
        for (member, incarnation) in before.members() {
            if after.has_member(member, incarnation) {
                continue;
            }
            self.left_out += 1;
            let node = self.nodes.iter().find(|node| node.id == member).expect("known");
            let lived = node.lives_since.map(|since| self.now.since(since));
            let lives = node.incarnation == incarnation && lived.is_some_and(|lived| lived > TIMEOUT);
            assert!(!lives, "{id}: node {member} lives and was left out: {after:?}");
        }
    }

    fn check_quiet(mut self) -> Outcome {
        let (now, seed) = (self.now, self.seed);
        let seated = self.etcd.borrow().leader();
        assert!(
            seated.is_none() || seated != self.deaf,
            "the one who leads hears nobody"
        );
        let chunks = std::mem::take(&mut self.chunks);
        let living: Vec<(NodeId, Incarnation)> = self
            .nodes
            .iter()
            .filter(|node| node.lives_since.is_some())
            .map(|node| (node.id, node.incarnation))
            .collect();
        for (id, chunk) in &chunks {
            let lives = chunk.members().filter(|member| living.contains(member)).count();
            assert!(
                lives == chunk.member_count() || lives < 2,
                "{id} still counts on the dead: {chunk:?}"
            );
        }
        let control = self
            .leading()
            .unwrap_or_else(|| panic!("seed {seed}: nobody leads"));
        let request = CreateVolume {
            chunk: ByteCount(16 * MIB),
            stripe_unit: ByteCount(MIB),
            ..CreateVolume::new("last".to_owned(), ByteCount(64 * MIB))
        };
        control.create_volume(&request, now).unwrap();
        let volumes = control.volumes().unwrap().len();
        let revision = control.revision().unwrap();
        Outcome {
            reigns: self.reigns,
            left_out: self.left_out,
            volumes,
            revision,
        }
    }
}

/// What is said of a node that was left out without a reason.
const LEFT_OUT: &str = "lives and was left out";

/// Seeds until the mistake shows; none if it never did.
fn seeds_to_find(bug: Bug, says: &str, most: u64) -> Option<u64> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = (0..most).find(|&seed| {
        std::panic::catch_unwind(|| World::new(seed, Some(bug)).run())
            .err()
            .and_then(|panic| match panic.downcast::<String>() {
                Ok(text) => Some(*text),
                Err(panic) => panic.downcast::<&str>().ok().map(|text| (*text).to_owned()),
            })
            .is_some_and(|text| text.contains(says))
    });
    std::panic::set_hook(hook);
    found.map(|seed| seed + 1)
}

#[test]
fn masters_come_and_go_and_no_living_node_is_left_out() {
    let (mut reigns, mut left_out, mut volumes) = (0, 0, 0);
    let seeds = foundation::seeds::from_environment(40);
    for &seed in &seeds {
        // The last one that is named is to be replayed with REDHARE_SEED.
        println!("seed {seed}");
        let outcome = World::new(seed, None).run();
        reigns += outcome.reigns;
        left_out += outcome.left_out;
        volumes += outcome.volumes;
    }
    let many = seeds.len() as u64;
    let few = many < 10;
    assert!(
        reigns > 5 * many || few,
        "hardly any master was deposed: {reigns} reigns"
    );
    assert!(
        left_out * 2 > 5 * many || few,
        "hardly any copy was left out: {left_out}"
    );
    assert!(
        volumes > 2 * seeds.len() || few,
        "hardly any volume was made: {volumes}"
    );
}

/// A master in the seat stood still for 1.4 s, half a timeout less a little; a node that looked for another one meanwhile had not come back
/// when its own time was over.
#[test]
fn who_looked_for_another_master_while_this_one_stood_still_is_not_left_out() {
    World::new(179_573_905_156, None).run();
}

/// A master that was cut off from the store went on naming the one that had led before, which no node reached: its nodes went to and fro between
/// the two, and never asked the third, which led.
#[test]
fn a_master_that_names_one_which_does_not_answer_is_not_asked_for_ever() {
    World::new(179_603_575_634, None).run();
}

/// A node that has copies ends. Whether any chunk still counts on it after this many steps of the simulation.
fn counts_on_the_dead_after(world: &mut World, steps: u32) -> bool {
    let pass = |world: &mut World, steps: std::ops::Range<u32>| {
        for step in steps {
            world.now = world.now + STEP;
            world.etcd.borrow_mut().pass(world.now);
            world.move_masters();
            world.move_nodes();
            world.use_the_cluster(step);
            world.check();
        }
    };
    let counts = |world: &World| {
        let members = world.chunks.values().flat_map(Chunk::members);
        members.filter(|member| member.0 == node_id(1)).count()
    };
    pass(world, 0..300);
    assert!(counts(world) > 0, "it has copies");
    world.nodes[0].lives_since = None;
    world.nodes[0].beats_at = world.now + Duration::from_secs(1000);
    pass(world, 300..300 + steps);
    counts(world) > 0
}

/// Each step begins later than a heartbeat's interval after the one before.
#[test]
fn a_master_that_is_always_slow_finds_the_dead() {
    let mut world = World::new(1, None);
    world.step_every = Duration::from_millis(900);
    assert!(!counts_on_the_dead_after(&mut world, 100), "10 s after its end");
}

/// Each step takes longer than half a heartbeat timeout, after which one that had stood still would begin to listen anew.
#[test]
fn a_master_that_is_always_at_work_finds_the_dead() {
    let mut world = World::new(1, None);
    (world.works, world.step_every) = (Duration::from_secs(2), Duration::from_millis(2300));
    assert!(!counts_on_the_dead_after(&mut world, 200), "20 s after its end");
}

/// A master that leads has been at work for long. Who was found dead before stays dead.
#[test]
fn a_long_step_revives_nobody() {
    let mut world = World::new(1, None);
    assert!(!counts_on_the_dead_after(&mut world, 100), "10 s after its end");
    let leads = world.etcd.borrow().leader().expect("nothing was done to it");
    let is_alive = |world: &mut World| {
        let now = world.now;
        let control = world.masters[leads].lead().expect("it goes on");
        control.nodes(now).unwrap()[&node_id(1)].is_alive
    };
    assert!(!is_alive(&mut world));
    world.masters[leads].step(world.now).unwrap();
    world.now = world.now + TIMEOUT * 2;
    world.masters[leads].stepped(world.now);
    world.masters[leads].step(world.now).unwrap();
    assert!(!is_alive(&mut world), "it was at work");
    world.masters[leads].stepped(world.now);
    world.now = world.now + TIMEOUT;
    world.masters[leads].step(world.now).unwrap();
    assert!(is_alive(&mut world), "it stood still");
}

/// The master in the seat cannot deal with what is in the store, and the others can.
#[test]
fn who_cannot_read_the_store_gives_way() {
    let mut world = World::new(1, None);
    let pass = |world: &mut World, steps: u32| {
        for _ in 0..steps {
            world.now = world.now + STEP;
            world.etcd.borrow_mut().pass(world.now);
            world.move_masters();
        }
    };
    pass(&mut world, 20);
    let first = world.etcd.borrow().leader().expect("nothing is done to it");
    // It starts anew with another cluster's certificate, and finds itself in the seat; a store of a later release it would refuse, too.
    let election = EtcdElection::new(world.etcd.clone(), first);
    let settings = Settings {
        cluster: Some(ClusterId(Uuid(1))),
        ..settings()
    };
    world.masters[first] = Member::new(election, settings, 1);
    pass(&mut world, 30);
    let leads = world.etcd.borrow().leader().expect("the others do not");
    assert_ne!(leads, first);
    assert!(world.masters[leads].lead().is_ok());
}

/// The first master in the seat never hears anybody, so that no node is ever known to it.
#[test]
fn who_hears_nobody_from_the_first_moment_gives_way_too() {
    World::new(507_990, None).run();
}

#[test]
fn one_seed_gives_one_run() {
    assert_eq!(World::new(3, None).run(), World::new(3, None).run());
}

#[test]
fn a_new_reign_that_acts_on_memory_is_found() {
    let seeds = seeds_to_find(Bug::ActsOnMemory, LEFT_OUT, 40).expect("it is found");
    println!("found with seed {}", seeds - 1);
    assert!(seeds <= 20, "it took {seeds} seeds");
}

#[test]
fn deafness_that_counts_as_silence_is_found() {
    let seeds = seeds_to_find(Bug::CountsDeafness, LEFT_OUT, 40).expect("it is found");
    println!("found with seed {}", seeds - 1);
    assert!(seeds <= 20, "it took {seeds} seeds");
}

#[test]
fn a_master_that_leads_and_hears_nobody_is_found() {
    let seeds = seeds_to_find(Bug::LeadsDeaf, "hears nobody", 60).expect("it is found");
    println!("found with seed {}", seeds - 1);
    assert!(seeds <= 40, "it took {seeds} seeds");
}

#[test]
fn a_deaf_master_that_leaves_out_the_first_is_found() {
    let seeds = seeds_to_find(Bug::TrustsDeafEars, LEFT_OUT, 60).expect("it is found");
    println!("found with seed {}", seeds - 1);
    assert!(seeds <= 40, "it took {seeds} seeds");
}
