//! A stand-in for a node's engine (`crates/agent`), as far as masters and the node's core meet in it: `supervise.rs` (that a life has
//! ended is told with the request for the next one's number; the new life is made known before anything else is said of it),
//! `masters.rs` (heartbeats, what they are answered, copies to be made and to be deleted, configurations, proposals) and
//! `watching.rs`. What it tells its target arrives there in order. Its calls go to the master it takes for the one that leads, each
//! is waited for for a while, and who is told that another one leads asks there.

use std::collections::{BTreeMap, BTreeSet};

use control::Chunk;
use foundation::{Epoch, KeptCopies};

use super::growth::Grows;
use super::{Answer, MASTERS, News, WholeEvent, config_of, index_of};
use crate::configuration::ChunkConfig;
use crate::identity::{Incarnation, SnapshotId};
use crate::simulation::events::Event;
use crate::simulation::reserve::{self, ReserveEvent};
use crate::simulation::world::{MS, SECOND, US, World, chunk_id, node_id, node_index};

/// How often a node says that it lives.
const BEAT: u64 = 300 * MS;
/// How long an answer is waited for.
const PATIENCE: u64 = 500 * MS;
/// A watch in which nothing comes for so long is begun anew.
const SILENCE: u64 = 900 * MS;
/// How often all copies are named.
const NAME_COPIES: u64 = 5 * SECOND;

/// A life whose heartbeats are refused is made known again no more often than this.
const KNOWN_AGAIN: u64 = 5 * SECOND;

/// What an engine asks a master.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(in crate::simulation) enum Call {
    /// A life begins; without one, a number for the next one is asked for.
    Register { life: Option<u64>, ended: u64 },
    Beat {
        life: u64,
        /// All copies that are there.
        copies: Option<Vec<usize>>,
        removed: Vec<usize>,
        /// Other volumes of which it has all copies, and those of which it has none any more.
        volumes: [Vec<u32>; 2],
        /// The growth of the volume of which it has all copies that it shall have.
        grown: Vec<Grows>,
        /// The snapshots of which it has copies.
        snapshots: Vec<SnapshotId>,
        /// Which list of complete ones it has, and which copies of those beside chunks in sync, if it has looked since it got that.
        kept: Option<(u64, Option<KeptCopies>)>,
        /// Chunk, node, bytes left, bytes in all.
        resyncs: Vec<(usize, usize, u64, u64)>,
    },
    Propose {
        chunk: usize,
        life: u64,
        expected: Epoch,
        config: ChunkConfig,
    },
    /// Which of a growing volume's new chunks the node shall have copies of.
    Places { growth: Grows },
    /// What a portal asks about reservations, by its own number.
    Reserve { number: u64, asked: reserve::Call },
    /// What was committed after `known`, from now on.
    Watch { watch: u64, known: u64 },
}

/// What an engine tells its target.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(in crate::simulation) enum Told {
    Configure {
        chunk: usize,
        config: ChunkConfig,
    },
    Ended {
        node: usize,
        life: u64,
    },
    Create {
        chunk: usize,
    },
    Delete {
        chunk: usize,
        epoch: Epoch,
    },
    /// The volume that it exports has so many chunks, and reservations of this version.
    Export {
        chunks: usize,
        version: u64,
    },
    /// What its portal asked is answered; none of what was not done.
    Reserved {
        number: u64,
        found: Option<reserve::View>,
        done: bool,
    },
}

/// How far a life of the target is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// There is none, and nobody was told.
    #[default]
    Down,
    /// The number of the next one is asked for.
    Asking,
    /// It is known, and the target does not run yet.
    Numbered(u64),
    /// The target runs, and is being made known.
    Registering(u64),
    Serving(u64),
}

/// See the module. What belongs to one life of the target is gone with it, but for what is said.
#[derive(Debug, Default)]
pub(super) struct Engine {
    stage: Stage,
    /// Grows with each life of the target, so that what was of an earlier one comes to nothing.
    turn: u64,
    /// The last number that was given to a life, which is on the disk.
    last_life: u64,
    /// The target is to run.
    may_start: bool,
    /// The machine has no power.
    is_off: bool,
    /// The master that is asked; kept over lives.
    master: usize,
    /// Calls that wait for an answer. Numbers are never used again.
    calls: BTreeMap<u64, (usize, Call)>,
    last_call: u64,
    /// When what was told to the target last arrives.
    told_at: u64,
    // What is known of masters.
    watch: u64,
    known: u64,
    heard_at: u64,
    wanted: BTreeSet<usize>,
    asked: BTreeSet<usize>,
    deleted: BTreeSet<usize>,
    configurations: BTreeMap<usize, ChunkConfig>,
    ended: BTreeMap<usize, u64>,
    name_copies_at: u64,
    /// Other volumes that are being made, and those that are being deleted. Their copies are done as soon as they are asked for.
    volumes: [Vec<u32>; 2],
    known_again_at: u64,
    /// The growth that the node was told of last, and the new chunks that it shall have copies of.
    pub(super) growing: Option<(Grows, Vec<usize>)>,
}

impl Engine {
    pub(super) fn serves(&self) -> bool {
        matches!(self.stage, Stage::Serving(_))
    }

    /// The target's process has ended.
    fn begin_again(&mut self) {
        *self = Self {
            turn: self.turn + 1,
            last_life: self.last_life,
            master: self.master,
            last_call: self.last_call,
            watch: self.watch + 1,
            ..Self::default()
        };
    }
}

impl World {
    /// Some pauses are of a whole machine, others of the target's process alone.
    pub(super) fn engine_sleeps_until(&self, node: usize) -> u64 {
        let until = self.nodes[node].paused_until;
        match (until / MS).is_multiple_of(2) {
            true => until,
            false => 0,
        }
    }

    fn engine(&mut self, node: usize) -> &mut Engine {
        &mut self.of_whole().engines[node]
    }

    /// The target of a node has ended.
    pub(in crate::simulation) fn target_has_ended(&mut self, node: usize, power: bool) {
        if self.whole.is_some() {
            let engine = self.engine(node);
            engine.begin_again();
            engine.is_off = power;
        }
    }

    /// The end of a target is proved.
    pub(in crate::simulation) fn engine_proves_end(&mut self, node: usize, life: u64) {
        let engine = self.engine(node);
        if engine.stage == Stage::Down && !engine.is_off && engine.last_life == life {
            self.ask_for_number(node);
        }
    }

    /// The target of a node is to run, as soon as its life has a number.
    pub(in crate::simulation) fn engine_starts(&mut self, node: usize) {
        let engine = self.engine(node);
        engine.may_start = true;
        engine.is_off = false;
        match engine.stage {
            Stage::Down => self.ask_for_number(node),
            Stage::Numbered(life) => self.begin_numbered(node, life),
            _ => {}
        }
    }

    /// The first life of each node, which the masters know already.
    pub(in crate::simulation) fn engine_begins(&mut self, node: usize) {
        self.engine(node).last_life = 1;
        self.begin_numbered(node, 1);
    }

    fn ask_for_number(&mut self, node: usize) {
        let engine = self.engine(node);
        engine.stage = Stage::Asking;
        let ended = engine.last_life;
        self.ask_master(node, Call::Register { life: None, ended });
    }

    fn begin_numbered(&mut self, node: usize, life: u64) {
        self.engine(node).stage = Stage::Registering(life);
        self.begin_life(node, life);
        self.make_known(node, life);
    }

    fn make_known(&mut self, node: usize, life: u64) {
        let (life, ended) = (Some(life), life - 1);
        self.ask_master(node, Call::Register { life, ended });
    }

    /// Masters that refuse a heartbeat may have forgotten the life.
    fn make_known_again(&mut self, node: usize) {
        let now = self.now;
        let engine = self.engine(node);
        if let Stage::Serving(life) = engine.stage
            && now >= engine.known_again_at
        {
            engine.known_again_at = now + KNOWN_AGAIN;
            self.make_known(node, life);
        }
    }

    pub(super) fn engine_asks_again(&mut self, node: usize, turn: u64) {
        let engine = self.engine(node);
        if engine.turn != turn {
            return;
        }
        match engine.stage {
            Stage::Asking => self.ask_for_number(node),
            Stage::Registering(life) => self.make_known(node, life),
            _ => {}
        }
    }

    pub(super) fn ask_master(&mut self, node: usize, call: Call) {
        let engine = self.engine(node);
        engine.last_call += 1;
        let (number, master) = (engine.last_call, engine.master);
        engine.calls.insert(number, (master, call.clone()));
        let event = WholeEvent::Call {
            master,
            node,
            number,
            call: call.clone(),
        };
        match self.is_held_up(&call) {
            Some(delay) => self.at(delay, Event::Whole(event)),
            None => self.send_to_master(node, master, event),
        }
        self.at(PATIENCE, Event::Whole(WholeEvent::Late { node, number }));
    }

    /// Some requests for a life's number lie in a master's socket for longer than they are waited for, and are carried out all the same.
    fn is_held_up(&mut self, call: &Call) -> Option<u64> {
        let (healing, whole) = (self.healing, self.of_whole());
        let asks_for_number = matches!(call, Call::Register { life: None, .. });
        let is_held_up = asks_for_number && !healing && whole.random.chance(1, 12);
        is_held_up.then(|| whole.random.between(PATIENCE, 4 * PATIENCE))
    }

    pub(super) fn engine_waits_no_more(&mut self, node: usize, number: u64) {
        let engine = self.engine(node);
        let Some((master, call)) = engine.calls.remove(&number) else {
            return;
        };
        // A watch is answered by what it brings.
        if engine.master == master {
            engine.master = (master + 1) % MASTERS;
        }
        self.has_failed(node, &call, 100 * MS);
    }

    pub(super) fn engine_is_answered(&mut self, node: usize, number: u64, answer: Answer) {
        let engine = self.engine(node);
        let Some((master, call)) = engine.calls.remove(&number) else {
            return;
        };
        match (answer, call) {
            (Answer::Elsewhere(leader), call) => {
                if engine.master == master {
                    engine.master = leader.unwrap_or((master + 1) % MASTERS);
                }
                self.has_failed(node, &call, 40 * MS);
            }
            (Answer::Registered(life), Call::Register { life: None, .. }) => {
                engine.last_life = life;
                engine.stage = Stage::Numbered(life);
                if engine.may_start {
                    self.begin_numbered(node, life);
                }
            }
            (Answer::Registered(life), Call::Register { .. }) => self.begin_to_serve(node, life),
            (
                Answer::Beaten {
                    remove,
                    name_copies,
                    volumes,
                    grow,
                    forget,
                    complete,
                    export,
                },
                Call::Beat { life, .. },
            ) => {
                engine.volumes = volumes;
                if let Some(list) = complete
                    && engine.stage == Stage::Serving(life)
                {
                    self.learn_complete(node, list);
                }
                if let Some((chunks, version)) = export {
                    self.tell_target(node, Told::Export { chunks, version });
                }
                self.take_duties(node, remove, name_copies);
                self.take_growth(node, &grow);
                self.forget_snapshots(node, &forget);
            }
            (Answer::Placed(placed), Call::Places { growth }) => {
                self.engine_has_places(node, growth, placed);
            }
            (Answer::Reserved { found, done }, Call::Reserve { number, .. }) => {
                let found = Some(found);
                self.tell_target(node, Told::Reserved { number, found, done });
            }
            (Answer::Outlived, Call::Register { life: Some(_), .. }) => {
                // A request for a number that was given up, or one of before, was carried out late: nobody will hear this life any
                // more. The target is ended, and another one begins.
                self.of_whole().outlived += 1;
                self.crash_for(node, false, 20 * MS);
            }
            (Answer::Refused, Call::Register { life: Some(_), .. }) if !engine.serves() => {
                self.crash_for(node, false, 20 * MS);
            }
            (Answer::Refused | Answer::Outlived, Call::Beat { .. }) => self.make_known_again(node),
            (Answer::Failed | Answer::Refused | Answer::Outlived, call) => {
                self.has_failed(node, &call, 100 * MS)
            }
            _ => {}
        }
    }

    /// A call was not answered as it should be: it is made again, or something later makes up for it.
    fn has_failed(&mut self, node: usize, call: &Call, pause: u64) {
        let now = self.now;
        let engine = self.engine(node);
        let turn = engine.turn;
        match call {
            Call::Register { .. } => self.at(pause, Event::Whole(WholeEvent::Again { node, turn })),
            // Perhaps the one that named the copies.
            Call::Beat { .. } => engine.name_copies_at = now,
            Call::Watch { .. } => engine.heard_at = 0,
            &Call::Reserve { number, .. } => {
                let (found, done) = (None, false);
                self.tell_target(node, Told::Reserved { number, found, done });
            }
            // The next heartbeat is answered with it again.
            Call::Propose { .. } | Call::Places { .. } => {}
        }
    }

    fn begin_to_serve(&mut self, node: usize, life: u64) {
        let engine = self.engine(node);
        if engine.stage != Stage::Registering(life) {
            return;
        }
        engine.stage = Stage::Serving(life);
        let turn = engine.turn;
        self.at(0, Event::Whole(WholeEvent::Beat { node, turn }));
    }

    /// A heartbeat, and a look at whether anything comes of what is watched.
    pub(super) fn engine_beats(&mut self, node: usize, turn: u64) {
        let now = self.now;
        let engine = self.engine(node);
        let Stage::Serving(life) = engine.stage else {
            return;
        };
        if engine.turn != turn {
            return;
        }
        if now >= engine.heard_at + SILENCE {
            engine.watch += 1;
            engine.heard_at = now;
            let (watch, known) = (engine.watch, engine.known);
            self.ask_master(node, Call::Watch { watch, known });
        }
        let engine = self.engine(node);
        let is_beating = engine
            .calls
            .values()
            .any(|(_, call)| matches!(call, Call::Beat { .. }));
        if !is_beating {
            let beat = self.heartbeat_of(node, life);
            self.ask_master(node, beat);
        }
        self.at(BEAT, Event::Whole(WholeEvent::Beat { node, turn }));
    }

    fn heartbeat_of(&mut self, node: usize, life: u64) -> Call {
        let now = self.now;
        let here: Vec<usize> = self.nodes[node].disks.keys().copied().collect();
        let clock = self.nodes[node].clock(now);
        let core = self.nodes[node].core.as_ref();
        let resyncs = core.into_iter().flat_map(|core| core.resyncs(clock));
        let resync = |(id, progress): (crate::ChunkId, crate::ResyncProgress)| {
            let (chunk, to) = (id.index.0 as usize, node_index(progress.node));
            (chunk, to, progress.left_bytes, progress.total_bytes)
        };
        let resyncs = resyncs.map(resync).collect();
        let (grown, snapshots, kept) = (self.grown_on(node), self.snapshots_on(node), self.kept_on(node));
        let engine = self.engine(node);
        let names = now >= engine.name_copies_at;
        if names {
            engine.name_copies_at = now + NAME_COPIES;
        }
        Call::Beat {
            life,
            copies: names.then_some(here),
            removed: engine.deleted.iter().copied().collect(),
            volumes: engine.volumes.clone(),
            grown,
            snapshots,
            kept,
            resyncs,
        }
    }

    fn take_duties(&mut self, node: usize, remove: Vec<(usize, Epoch)>, name_copies: bool) {
        let now = self.now;
        let engine = self.engine(node);
        if name_copies {
            engine.name_copies_at = now;
        }
        engine
            .deleted
            .retain(|chunk| remove.iter().any(|(removed, _)| removed == chunk));
        for (chunk, epoch) in remove {
            let here = self.nodes[node].disks.contains_key(&chunk);
            let engine = self.engine(node);
            engine.wanted.remove(&chunk);
            if here {
                self.tell_target(node, Told::Delete { chunk, epoch });
            } else if !engine.asked.contains(&chunk) {
                engine.deleted.insert(chunk);
            }
        }
    }

    /// A growing volume: what is not known of it yet is asked for.
    fn take_growth(&mut self, node: usize, grow: &[Grows]) {
        let engine = self.engine(node);
        if engine
            .growing
            .as_ref()
            .is_some_and(|(growth, _)| !grow.contains(growth))
        {
            engine.growing = None;
        }
        let asks = |call: &Call| matches!(call, Call::Places { .. });
        if let Some(&growth) = grow.first()
            && !engine.calls.values().any(|(_, call)| asks(call))
        {
            self.ask_master(node, Call::Places { growth });
        }
    }

    /// A copy that is missing is made, once.
    pub(super) fn ask_to_make(&mut self, node: usize, chunk: usize) {
        if self.engine(node).asked.insert(chunk) {
            self.tell_target(node, Told::Create { chunk });
        }
    }

    pub(super) fn engine_learns(&mut self, node: usize, watch: u64, news: News) {
        let now = self.now;
        let engine = self.engine(node);
        if engine.watch != watch || !engine.serves() {
            return;
        }
        engine.heard_at = now;
        engine.known = news.revision;
        for (peer, life) in news.ended {
            let told = self.engine(node).ended.entry(peer).or_default();
            if life > *told {
                *told = life;
                self.tell_target(node, Told::Ended { node: peer, life });
            }
        }
        for (chunk, committed) in news.chunks {
            self.learn_chunk(node, chunk, &committed);
        }
        self.make_wanted(node);
    }

    fn learn_chunk(&mut self, node: usize, chunk: usize, committed: &Chunk) {
        let engine = self.engine(node);
        let mut copies = committed.copies.iter();
        let own = copies.find(|copy| index_of(copy.node) == node);
        match own {
            Some(copy) if copy.incarnation.is_none() => {
                engine.deleted.remove(&chunk);
                engine.wanted.insert(chunk);
            }
            _ => drop(engine.wanted.remove(&chunk)),
        }
        let config = config_of(committed);
        engine.configurations.insert(chunk, config.clone());
        self.tell_target(node, Told::Configure { chunk, config });
    }

    /// Has those copies made that have a place here, are missing and need not be in sync.
    fn make_wanted(&mut self, node: usize) {
        let here: BTreeSet<usize> = self.nodes[node].disks.keys().copied().collect();
        let engine = self.engine(node);
        let missing: Vec<usize> = engine.wanted.difference(&here).copied().collect();
        for chunk in missing {
            self.ask_to_make(node, chunk);
        }
    }

    pub(super) fn tell_target(&mut self, node: usize, told: Told) {
        let now = self.now;
        let life = self.nodes[node].life;
        let whole = self.of_whole();
        let delay = whole.random.between(20 * US, 300 * US);
        let engine = &mut whole.engines[node];
        engine.told_at = engine.told_at.max(now + delay);
        let delay = engine.told_at - now;
        self.at(delay, Event::Whole(WholeEvent::Told { node, life, told }));
    }

    pub(super) fn target_is_told(&mut self, node: usize, life: u64, told: Told) {
        if !self.alive(node, life) {
            return;
        }
        match told {
            Told::Configure { chunk, config } => {
                if self.nodes[node].disks.contains_key(&chunk) {
                    self.core(node, None, |core, now| {
                        core.handle_configuration(now, chunk_id(chunk), &config);
                    });
                }
            }
            Told::Ended { node: peer, life } => self.core(node, None, |core, now| {
                core.handle_incarnation_ended(now, node_id(peer), Incarnation(life));
            }),
            Told::Export { chunks, version } => {
                let portal = node;
                self.reserve(ReserveEvent::Export {
                    portal,
                    life,
                    chunks,
                    version,
                });
            }
            Told::Reserved { number, found, done } => {
                let portal = node;
                self.reserve(ReserveEvent::Answer {
                    portal,
                    number,
                    found,
                    done,
                });
            }
            Told::Create { chunk } => {
                let delay = self.of_whole().random.between(MS, 40 * MS);
                self.at(delay, Event::Whole(WholeEvent::Made { node, life, chunk }));
            }
            Told::Delete { chunk, epoch } => {
                if self.delete_copy(node, chunk, epoch) {
                    let engine = self.engine(node);
                    engine.asked.remove(&chunk);
                    engine.configurations.remove(&chunk);
                    engine.deleted.insert(chunk);
                    self.make_wanted(node);
                }
            }
        }
    }

    pub(super) fn target_has_made(&mut self, node: usize, life: u64, chunk: usize) {
        if !self.alive(node, life) || self.nodes[node].disks.contains_key(&chunk) {
            return;
        }
        self.make_copy(node, chunk);
        if let Some(config) = self.engine(node).configurations.get(&chunk).cloned() {
            self.tell_target(node, Told::Configure { chunk, config });
        }
    }

    /// A write node proposes a configuration.
    pub(in crate::simulation) fn engine_proposes(
        &mut self,
        node: usize,
        chunk: usize,
        expected: Epoch,
        config: ChunkConfig,
    ) {
        let engine = self.engine(node);
        let Stage::Serving(life) = engine.stage else {
            return;
        };
        let of_chunk = |call: &Call| matches!(call, Call::Propose { chunk: other, .. } if *other == chunk);
        if !engine.calls.values().any(|(_, call)| of_chunk(call)) {
            self.ask_master(
                node,
                Call::Propose {
                    chunk,
                    life,
                    expected,
                    config,
                },
            );
        }
    }
}
