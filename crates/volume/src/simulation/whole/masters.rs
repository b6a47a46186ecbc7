//! The masters' processes: what `crates/master` does around the real `Member` (`engine.rs` there: it steps, answers calls while it
//! leads, and sends on; `watch.rs`: what is committed goes to those who watch, in order, as long as their connection lasts).

use std::collections::BTreeMap;
use std::time::Duration;

use control::mastership::{Member, NotLeading};
use control::testing::{EtcdElection, Handle, Lost};
use control::{
    Changes, Chunk, ControlError, Controller, CreateVolume, ErrorKind, Incarnation, Resync, Scope,
    SnapshotNumber, VolumeNumber, VolumeState,
};
use foundation::{ByteCount, Epoch, Instant, Random};

use super::growth::{self, Grows};
use super::{By, CHUNK, Call, MASTERS, VOLUME, WholeEvent, chunk_named, index_of, named, reserve, snapshots};
use crate::configuration::ChunkConfig;
use crate::identity::SnapshotId;
use crate::simulation::events::Event;
use crate::simulation::injected::Injected;
use crate::simulation::reserve::View;
use crate::simulation::world::{HARM, MS, SECOND, US, World};

/// A master steps so often ...
const STEP: u64 = 250 * MS;
/// ... and keeps its lease so often.
const KEEP: u64 = 100 * MS;
/// Who watches hears something at least so often.
const PING: u64 = 300 * MS;

/// A clock that runs at a rate of its own from a moment of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    offset_ns: u64,
    rate_ppm: i64,
}

impl Clock {
    pub(super) fn draw(random: &mut Random) -> Self {
        Self {
            offset_ns: random.below(1000 * SECOND),
            rate_ppm: random.below(8000) as i64 - 4000,
        }
    }
}

/// A master's process.
pub(super) struct Master {
    pub(super) member: Member<EtcdElection>,
    clock: Clock,
    life: u64,
    pub(super) lives: bool,
    pub(super) paused_until: u64,
    steps_at: u64,
    watches: BTreeMap<usize, Watch>,
}

/// A node that follows what is committed, as the master knows it.
#[derive(Clone, Copy, Debug)]
struct Watch {
    number: u64,
    known: u64,
    /// When something was sent to it last.
    sent: u64,
}

/// What a node's engine is answered.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(in crate::simulation) enum Answer {
    Registered(u64),
    /// Copies to be deleted, and whether all are to be named.
    Beaten {
        remove: Vec<(usize, Epoch)>,
        name_copies: bool,
        /// Other volumes to be made, and those to be deleted.
        volumes: [Vec<u32>; 2],
        /// The volume grows, and the node has not said that it has its copies.
        grow: Vec<Grows>,
        /// Snapshots whose copies are to be deleted.
        forget: Vec<SnapshotId>,
        /// Another list of complete snapshots than the node has, with the chunks of each.
        complete: Option<(u64, Vec<(SnapshotId, u32)>)>,
        /// It exports the volume: its chunks, and the version of its reservations.
        export: Option<(usize, u64)>,
    },
    /// What is reserved, and whether what was asked is done.
    Reserved {
        found: View,
        done: bool,
    },
    /// New chunks of which the node shall have copies.
    Placed(Vec<usize>),
    Done,
    /// Another master leads, perhaps this one.
    Elsewhere(Option<usize>),
    /// Not now.
    Failed,
    Refused,
    /// The masters have given the node the number of a later life.
    Outlived,
}

/// A part of what is new for a node.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(in crate::simulation) struct News {
    /// Everything up to here has been told.
    pub(super) revision: u64,
    pub(super) chunks: Vec<(usize, Chunk)>,
    /// The last life of each node that is new or changed which has ended.
    pub(super) ended: Vec<(usize, u64)>,
}

impl News {
    fn of(changes: &Changes) -> Self {
        let chunks = changes.chunks.iter().filter(|(id, _)| id.volume == VOLUME);
        let nodes = changes.nodes.iter();
        Self {
            revision: changes.revision,
            chunks: chunks
                .map(|(id, chunk)| (id.index as usize, chunk.clone()))
                .collect(),
            ended: nodes
                .map(|(id, node)| (index_of(*id), node.ended_through.0))
                .collect(),
        }
    }
}

/// What happens to masters, etcd, and the ways to them.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(in crate::simulation) enum MasterFault {
    /// A process ends, and begins again after `down`.
    Crash { master: usize, down: u64 },
    /// It stands still.
    Pause { master: usize, until: u64 },
    /// It does not reach etcd.
    CutFromEtcd { master: usize, until: u64 },
    /// etcd has no leader.
    NoQuorum { until: u64 },
    /// The answers to the next commits are lost.
    LoseAnswers { lost: Vec<Lost> },
    /// Nothing gets from a node to a master, or back.
    Cut {
        node: usize,
        master: usize,
        to_master: bool,
        until: u64,
    },
}

impl Master {
    pub(super) fn new(member: Member<EtcdElection>, clock: Clock) -> Self {
        Self {
            member,
            clock,
            life: 0,
            lives: true,
            paused_until: 0,
            steps_at: 0,
            watches: BTreeMap::new(),
        }
    }

    pub(super) fn clock(&self, now: u64) -> Instant {
        let drift = now as i64 / 1_000_000 * self.clock.rate_ppm;
        Instant::from_nanos((self.clock.offset_ns + now).wrapping_add_signed(drift))
    }

    /// The cluster, of a master that leads for certain.
    pub(super) fn leads(&mut self) -> &mut Controller<Handle> {
        self.member.lead().expect("it leads")
    }
}

/// The answer of a master that does not lead.
pub(super) fn sent_on(master: usize, elsewhere: NotLeading) -> Answer {
    let leader = elsewhere.leader.and_then(|leader| leader.address.parse().ok());
    Answer::Elsewhere(leader.filter(|&leader| leader != master && leader < MASTERS))
}

/// As `crates/master/src/convert.rs` has it.
pub(super) fn refusal(error: &ControlError) -> Answer {
    if matches!(error, ControlError::StaleIncarnation { theirs, known, .. } if theirs <= known) {
        return Answer::Outlived;
    }
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Aborted => Answer::Failed,
        _ => Answer::Refused,
    }
}

impl World {
    pub(super) fn master_steps(&mut self, master: usize, life: u64) {
        let now = self.now;
        let whole = self.of_whole();
        let own = &mut whole.masters[master];
        if !own.lives || own.life != life {
            return;
        }
        whole
            .etcd
            .borrow_mut()
            .keep_alive(master, Instant::from_nanos(now));
        if now >= own.steps_at {
            own.steps_at = now + STEP;
            whole.etcd.borrow_mut().others_write();
            let led = own.member.lead().is_ok();
            let clock = own.clock(now);
            // An error is a store that does not answer; the member goes on.
            let _ = own.member.step(clock);
            whole.reigns += u64::from(!led && own.member.lead().is_ok());
            self.note_committed(By::Masters);
        }
        self.send_news(master, true);
        self.at(KEEP, Event::Whole(WholeEvent::Step { master, life }));
    }

    pub(super) fn master_starts(&mut self, master: usize) {
        let whole = self.of_whole();
        if whole.masters[master].lives {
            return;
        }
        let member = whole.member(master);
        let own = &mut whole.masters[master];
        own.member = member;
        own.lives = true;
        own.life += 1;
        let life = own.life;
        self.at(0, Event::Whole(WholeEvent::Step { master, life }));
    }

    /// A call has arrived at a master.
    pub(super) fn master_is_called(&mut self, master: usize, node: usize, number: u64, call: Call) {
        // Also of a caller that has gone meanwhile.
        if !self.of_whole().masters[master].lives {
            return;
        }
        let answer = self.answer_of(master, node, call);
        self.note_committed(By::Other);
        let event = WholeEvent::Answer { node, number, answer };
        self.send_to_node(master, node, event);
        self.send_news(master, false);
    }

    fn answer_of(&mut self, master: usize, node: usize, call: Call) -> Answer {
        if let Call::Reserve { asked, .. } = call {
            return self.answer_about_reservations(master, node, asked);
        }
        let now = self.now;
        let whole = self.of_whole();
        let clock = whole.masters[master].clock(now);
        let is_seated = whole.etcd.borrow().leader() == Some(master);
        let cluster = match whole.masters[master].member.lead() {
            Ok(control) => control.cluster(),
            Err(elsewhere) => return sent_on(master, elsewhere),
        };
        match call {
            Call::Register { life, ended } => {
                let registration = whole.registration(node, life, ended);
                match whole.masters[master].leads().register(&registration, clock) {
                    Ok(registered) => Answer::Registered(registered.incarnation.0),
                    Err(error) => refusal(&error),
                }
            }
            Call::Beat {
                life,
                copies,
                removed,
                volumes: [prepared, gone],
                grown,
                snapshots,
                kept,
                resyncs,
            } => {
                let mut heartbeat = whole.heartbeat(node, life, cluster);
                heartbeat.names_copies = copies.is_some();
                heartbeat.copies = copies.unwrap_or_default().into_iter().map(chunk_named).collect();
                heartbeat.removed_copies = removed.into_iter().map(chunk_named).collect();
                let numbers = |volumes: Vec<u32>| volumes.into_iter().map(VolumeNumber).collect();
                (heartbeat.prepared, heartbeat.removed) = (numbers(prepared), numbers(gone));
                let keys = snapshots.iter();
                heartbeat.snapshots = keys
                    .map(|snapshot| (VOLUME, SnapshotNumber(snapshot.0)))
                    .collect();
                heartbeat.grown = grown.into_iter().map(growth::growing).collect();
                let resync = |(chunk, to, left, total)| Resync {
                    chunk: chunk_named(chunk),
                    node: named(to),
                    left: ByteCount(left),
                    total: ByteCount(total),
                    elapsed: Duration::ZERO,
                };
                heartbeat.resyncs = resyncs.into_iter().map(resync).collect();
                heartbeat.kept = kept.and_then(|(list, kept)| Some((list, kept?)));
                match whole.masters[master].leads().heartbeat(&heartbeat, clock) {
                    Ok(answer) => {
                        let control = whole.masters[master].leads();
                        let complete = kept
                            .filter(|(list, _)| *list != answer.complete_snapshots)
                            .map(|_| snapshots::list_of(control));
                        if is_seated {
                            whole.heard[node] = (life, now);
                        }
                        let numbers =
                            |volumes: Vec<VolumeNumber>| volumes.iter().map(|volume| volume.0).collect();
                        let remove = answer.remove_copies.into_iter();
                        let remove = remove.filter(|(id, _)| id.volume == VOLUME);
                        Answer::Beaten {
                            remove: remove.map(|(id, epoch)| (id.index as usize, epoch)).collect(),
                            name_copies: answer.name_copies,
                            volumes: [numbers(answer.prepare), numbers(answer.remove)],
                            forget: answer
                                .remove_snapshots
                                .iter()
                                .map(|(_, number)| SnapshotId(number.0))
                                .collect(),
                            complete,
                            export: reserve::exported(&answer.exports),
                            grow: answer.grow.iter().filter_map(growth::grows).collect(),
                        }
                    }
                    Err(error) => refusal(&error),
                }
            }
            Call::Propose {
                chunk,
                life,
                expected,
                config,
            } => {
                let proposal = control::configuration::Proposal {
                    node: named(node),
                    incarnation: Incarnation(life),
                    expected,
                    write_node: control::NodeId(control::Uuid(config.write_node.0)),
                    members: members_of(&config),
                };
                let control = whole.masters[master].leads();
                match control.propose(chunk_named(chunk), &proposal, clock) {
                    Ok(_) => Answer::Done,
                    Err(error) => refusal(&error),
                }
            }
            Call::Places { growth } => {
                let control = whole.masters[master].leads();
                match growth::places_of(control, node, growth) {
                    Ok(Some(placed)) => Answer::Placed(placed),
                    Ok(None) => Answer::Failed,
                    Err(error) => refusal(&error),
                }
            }
            Call::Reserve { .. } => unreachable!("it is answered above"),
            Call::Watch { watch, known } => {
                let (number, sent) = (watch, 0);
                let watch = Watch { number, known, sent };
                whole.masters[master].watches.insert(node, watch);
                Answer::Done
            }
        }
    }

    /// Sends those who watch at a master what is new, and, if it is time, that nothing is.
    fn send_news(&mut self, master: usize, pings: bool) {
        let now = self.now;
        let own = &mut self.of_whole().masters[master];
        for (node, watch) in own.watches.clone() {
            let own = &mut self.of_whole().masters[master];
            let Ok(control) = own.member.lead() else {
                // It ends every watch, and tells so whom it reaches; the others notice that nothing comes.
                own.watches.clear();
                return;
            };
            let Ok(changes) = news_of(control, node, watch.known) else {
                return;
            };
            let news = News::of(&changes);
            let is_empty = news.chunks.is_empty() && news.ended.is_empty();
            let known = news.revision;
            let is_due = watch.sent == 0 || pings && now >= watch.sent + PING;
            let sent = match is_empty && !is_due {
                true => watch.sent,
                false => {
                    let number = watch.number;
                    let event = WholeEvent::News {
                        node,
                        watch: number,
                        news,
                    };
                    if !self.send_to_node(master, node, event) {
                        self.of_whole().masters[master].watches.remove(&node);
                        continue;
                    }
                    now
                }
            };
            let watch = Watch { known, sent, ..watch };
            self.of_whole().masters[master].watches.insert(node, watch);
        }
    }

    /// How long something takes one way between a node and a master, in the order in which it is sent; none if it is lost.
    fn way(&mut self, node: usize, master: usize, to_master: bool) -> Option<u64> {
        let (now, all) = (self.now, self.shape.nodes);
        let (from, to) = if to_master { (node, all) } else { (all, node) };
        let is_cut = self.blocked[from][to] > now;
        let is_slow = self.slow[node][all] > now;
        let (loss, faults) = (self.loss, !self.healing);
        let whole = self.of_whole();
        let mut delay = whole.random.between(50 * US, 2 * MS);
        if is_slow {
            delay += whole.random.below(SECOND);
        } else if faults && whole.random.chance(1, 100) {
            delay += whole.random.below(300 * MS);
        }
        let is_lost = faults && whole.random.below(1000) < loss;
        let way = match to_master {
            true => &mut whole.out[node][master],
            false => &mut whole.back[node][master],
        };
        if is_cut || is_lost || way.cut_until > now {
            return None;
        }
        way.arrives = way.arrives.max(now + delay);
        Some(way.arrives - now)
    }

    pub(super) fn send_to_master(&mut self, node: usize, master: usize, event: WholeEvent) {
        if let Some(delay) = self.way(node, master, true) {
            self.at(delay, Event::Whole(event));
        }
    }

    /// False if it is lost.
    fn send_to_node(&mut self, master: usize, node: usize, event: WholeEvent) -> bool {
        let delay = self.way(node, master, false);
        if let Some(delay) = delay {
            self.at(delay, Event::Whole(event));
        }
        delay.is_some()
    }

    /// Something happens to the masters, mostly to the one that leads.
    pub(super) fn master_fault(&mut self) {
        if self.healing {
            return;
        }
        let (now, nodes) = (self.now, self.shape.nodes as u64);
        // Where disks do harm, the other copy of a block may be the only good one: none is left out without need.
        let may_cut = self.shape.scenario != HARM;
        let whole = self.of_whole();
        let random = &mut whole.random;
        let mut master = random.below(MASTERS as u64) as usize;
        let seated = whole.etcd.borrow().leader();
        if random.chance(2, 3) {
            master = seated.unwrap_or(master);
        }
        let span = random.between(100 * MS, 3 * SECOND);
        let (until, node) = (now + span, random.below(nodes) as usize);
        let (choice, to_master) = (random.below(12), random.chance(1, 2));
        let pause = random.between(50 * MS, 2 * SECOND);
        let lose = |_| match random.below(4) {
            0 => Lost::NotDone,
            1 => Lost::Done,
            _ => Lost::DoneAt(Instant::from_nanos(now + random.below(2 * SECOND))),
        };
        let lost: Vec<Lost> = (0..3).map(lose).collect();
        let faults = match choice {
            0 | 1 => vec![MasterFault::Crash { master, down: span }],
            2 | 3 => vec![MasterFault::Pause { master, until }],
            4 => vec![MasterFault::CutFromEtcd { master, until }],
            5 => {
                let until = now + span / 2;
                vec![MasterFault::NoQuorum { until }]
            }
            6..=8 => vec![MasterFault::LoseAnswers { lost }],
            9 if may_cut => vec![MasterFault::Cut {
                node,
                master,
                to_master,
                until,
            }],
            10 if may_cut => {
                // A master that nobody hears, or that hears nobody.
                let cut = |node| MasterFault::Cut {
                    node,
                    master,
                    to_master,
                    until,
                };
                (0..nodes as usize).map(cut).collect()
            }
            _ => Vec::new(),
        };
        for fault in faults {
            self.inject(Injected::Master(fault));
        }
        self.at(pause, Event::Whole(WholeEvent::Fault));
    }

    pub(in crate::simulation) fn apply_master_fault(&mut self, fault: MasterFault) {
        let now = self.now;
        let whole = self.of_whole();
        whole.etcd.borrow_mut().pass(Instant::from_nanos(now));
        match fault {
            MasterFault::Crash { master, down } => {
                let own = &mut whole.masters[master];
                own.lives = false;
                own.paused_until = 0;
                own.watches.clear();
                whole.etcd.borrow_mut().forget(master);
                self.at(down, Event::Whole(WholeEvent::Start { master }));
            }
            MasterFault::Pause { master, until } => whole.masters[master].paused_until = until,
            MasterFault::CutFromEtcd { master, until } => {
                let until = Instant::from_nanos(until);
                whole.etcd.borrow_mut().cut_off(master, until);
            }
            MasterFault::NoQuorum { until } => {
                whole.etcd.borrow_mut().lose_quorum(Instant::from_nanos(until));
            }
            MasterFault::LoseAnswers { lost } => {
                whole.lost += lost.len() as u64;
                whole.etcd.borrow_mut().lose_answers(lost);
            }
            MasterFault::Cut {
                node,
                master,
                to_master,
                until,
            } => {
                let way = match to_master {
                    true => &mut whole.out[node][master],
                    false => &mut whole.back[node][master],
                };
                way.cut_until = until;
            }
        }
    }

    /// Nothing is wrong with masters and etcd any more.
    pub(in crate::simulation) fn heal_masters(&mut self) {
        if self.whole.is_none() {
            return;
        }
        let whole = self.of_whole();
        whole.etcd.borrow_mut().heal();
        for way in whole.out.iter_mut().chain(&mut whole.back).flatten() {
            way.cut_until = 0;
        }
        for master in 0..MASTERS {
            self.of_whole().masters[master].paused_until = 0;
            self.at(0, Event::Whole(WholeEvent::Start { master }));
        }
    }

    /// Has the master that leads drain what is to be drained, end what is not, and make and delete volumes that nobody uses.
    pub(super) fn operator(&mut self) {
        let now = self.now;
        let mut wanted = self.places.draining.clone();
        for (node, drains) in wanted.iter_mut().enumerate() {
            *drains |= self.is_to_leave(node);
        }
        let healing = self.healing;
        let whole = self.of_whole();
        let drained = whole.etcd.borrow().drains();
        let seated = whole.etcd.borrow().leader();
        let own = seated.map(|master| &mut whole.masters[master]);
        if let Some(own) = own.filter(|own| own.lives && own.paused_until <= now) {
            let clock = own.clock(now);
            for (node, &drains) in wanted.iter().enumerate() {
                let is_drained = drained.contains(&(named(node), None));
                if let Ok(control) = own.member.lead() {
                    // Refused, or not answered: tried again.
                    let _ = match (drains, is_drained) {
                        (true, false) => control.drain(named(node), None, clock).map(drop),
                        (false, true) => control.undrain(named(node), None).map(drop),
                        _ => Ok(()),
                    };
                }
            }
            let choice = match healing {
                true => None,
                false => Some(whole.random.next_u64()),
            };
            if let Ok(control) = own.member.lead() {
                let made = make_and_delete(control, choice, clock);
                whole.volumes += u64::from(made == Ok(true));
            }
        }
        self.let_grow();
        self.delete_a_snapshot();
        self.remove_a_node();
        self.drain_disks();
        self.operator_comes_again();
    }
}

/// Makes another volume, or deletes one, as it is drawn; with nothing drawn, deletes all others. Whether one was made.
fn make_and_delete(
    control: &mut Controller<Handle>,
    drawn: Option<u64>,
    now: Instant,
) -> Result<bool, ControlError> {
    let volumes = control.volumes()?;
    let others = volumes
        .iter()
        .filter(|volume| volume.number != VOLUME && volume.state != VolumeState::Deleting);
    for other in others {
        if drawn.is_none_or(|drawn| drawn % 3 == 0) {
            control.delete_volume(&other.name, now)?;
        }
    }
    if let Some(drawn) = drawn.filter(|drawn| drawn % 3 == 1) {
        let request = CreateVolume {
            copies: 2,
            chunk: CHUNK,
            stripe_unit: CHUNK,
            stripe_width: 1,
            ..CreateVolume::new(format!("other-{drawn}"), ByteCount(CHUNK.0 * (1 + drawn / 3 % 3)))
        };
        control.create_volume(&request, now)?;
        return Ok(true);
    }
    Ok(false)
}

fn members_of(config: &ChunkConfig) -> Vec<(control::NodeId, Incarnation)> {
    let members = config.members.iter();
    let named = |node: crate::identity::NodeId| control::NodeId(control::Uuid(node.0));
    members
        .map(|member| (named(member.node), Incarnation(member.incarnation.0)))
        .collect()
}

/// What a node has to hear that knows everything up to this revision.
fn news_of(control: &mut Controller<Handle>, node: usize, known: u64) -> Result<Changes, ControlError> {
    let scope = Scope::Node(named(node));
    let changes = match known {
        0 => None,
        known => control.changes(scope, known)?,
    };
    match changes {
        Some(changes) => Ok(changes),
        None => control.snapshot(scope, None, 1000),
    }
}
