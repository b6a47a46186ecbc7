//! Portals of the simulated volume, on nodes of it: what they know of the masters' record, how they make hosts' changes
//! of it (`docs/decisions/0100`).

use std::collections::{BTreeSet, VecDeque};

use super::hosts::{Way, claim};
use super::reserve::{Call, Change, PORTALS, ReserveEvent, View, is_too_old};
use super::world::{Event, MS, SECOND, World};
use crate::identity::{HostId, Session, WriterToken};
use crate::output::Status;
use crate::planted::Bug;

/// How long the masters may take to answer.
const ANSWER_LIMIT: u64 = 1500 * MS;
/// By then a change has ended, made or not.
const CHANGE_LIMIT: u64 = 6 * SECOND;
/// A chunk that has not answered is asked again.
const CLAIM_PAUSE: u64 = 200 * MS;
const LOOK_PAUSE: u64 = 50 * MS;
const FORCE_PAUSE: u64 = 500 * MS;
/// Answers for portals themselves come under numbers that no client has.
pub(super) const NO_CLIENT: usize = 1000;

/// What a portal does for a host, or for nobody: to put in force what is not.
#[derive(Debug)]
struct Work {
    /// The host, its attempt, and what it wants.
    host: Option<(usize, u64, Change)>,
    number: u64,
    step: Step,
}

/// What it waits for.
#[derive(Debug)]
enum Step {
    Read,
    Replace,
    /// The chunks are asked; the state whose token they are told.
    Enforce(View),
    Note(View),
}

/// A portal, as long as its process runs and it serves as many chunks.
#[derive(Debug)]
pub(super) struct Portal {
    pub(super) life: u64,
    /// Chunks that it serves; 0 while it does not run.
    pub(super) serves: usize,
    /// Chunks that it has heard of: it serves them once it has seen what is reserved since.
    heard: usize,
    pub(super) known: Option<View>,
    /// The chunks that know a token.
    told: (WriterToken, BTreeSet<usize>),
    work: Option<Work>,
    waiting: VecDeque<(usize, u64, Change)>,
    /// The number of the last call or work.
    numbers: u64,
    /// The call that it waits for, if for one; and that of the look under way.
    call: Option<u64>,
    pub(super) look: Option<u64>,
    pub(super) looks: u64,
    forces: bool,
    force_pause: u64,
}

impl Portal {
    pub(super) fn new(serves: usize) -> Self {
        Self {
            life: 1,
            serves,
            heard: serves,
            known: None,
            told: (WriterToken(0), BTreeSet::new()),
            work: None,
            waiting: VecDeque::new(),
            numbers: 0,
            call: None,
            look: None,
            looks: 0,
            forces: false,
            force_pause: 0,
        }
    }
}

impl World {
    pub(super) fn at_portal(&mut self, portal: usize) -> &mut Portal {
        &mut self.reserved().portals[portal]
    }

    pub(super) fn portal_stands(&self, portal: usize) -> bool {
        self.nodes[portal].core.is_none() || self.nodes[portal].paused_until > self.now
    }

    /// The node's process has ended: whatever the portal knew and did is gone, and its hosts' claims.
    pub(super) fn portal_begins(&mut self, node: usize, serves: usize) {
        let Some(reserved) = &mut self.reserved else {
            return;
        };
        let Some(portal) = reserved.portals.get_mut(node) else {
            return;
        };
        let (life, numbers) = (portal.life + 1, portal.numbers);
        *portal = Portal {
            life,
            numbers,
            ..Portal::new(serves)
        };
        for client in self.clients.iter_mut().skip(node).step_by(PORTALS) {
            client.way = Way::default();
            // What it is answered on the connections of before it does not hear.
            client.attempt += 1;
        }
        if serves > 0 {
            self.look(node);
        }
        for client in (node..self.clients.len()).step_by(PORTALS) {
            let delay = self.random.between(MS, 100 * MS);
            self.at(delay, Event::ClientStep { client });
        }
    }

    /// What a portal hears with its node's heartbeat.
    pub(super) fn tell_portal(&mut self, node: usize) {
        let (chunks, masters) = (self.shape.chunks, self.shape.nodes);
        let Some(reserved) = self.reserved.as_ref().filter(|_| node < PORTALS) else {
            return;
        };
        let export = ReserveEvent::Export {
            portal: node,
            life: self.nodes[node].life,
            chunks,
            version: reserved.record.version,
        };
        self.send(masters, node, Event::Reserve(export));
    }

    pub(super) fn portal(&mut self, event: ReserveEvent) {
        match event {
            ReserveEvent::Ask {
                portal,
                host,
                attempt,
                change,
            } if self.nodes[portal].core.is_some() && self.at_portal(portal).serves > 0 => {
                self.at_portal(portal).waiting.push_back((host, attempt, change));
                self.work(portal);
            }
            ReserveEvent::Answer {
                portal,
                number,
                found,
                done,
            } => self.masters_answered(portal, number, found, done),
            ReserveEvent::CallTimeout { portal, number } => {
                self.masters_answered(portal, number, None, false);
            }
            ReserveEvent::Enforce { portal, work } => self.ask_chunks(portal, work),
            ReserveEvent::WorkTimeout { portal, work } if self.works_at(portal, work) => {
                self.work_ends(portal, None);
            }
            ReserveEvent::Force { portal, life } if self.at_portal(portal).life == life => self.force(portal),
            ReserveEvent::Look { portal } => self.look(portal),
            ReserveEvent::Export {
                portal,
                life,
                chunks,
                version,
            } if self.alive(portal, life) => {
                let state = self.at_portal(portal);
                let serves = state.serves;
                if serves == 0 {
                    self.portal_begins(portal, chunks);
                } else if chunks > self.at_portal(portal).heard {
                    self.at_portal(portal).heard = chunks;
                    if self.planted.is(Bug::GrownPortalGoesOn) {
                        self.at_portal(portal).serves = chunks;
                    } else {
                        self.look(portal);
                    }
                }
                let state = self.at_portal(portal);
                if state.known.as_ref().is_none_or(|known| known.version < version) {
                    self.look(portal);
                }
            }
            _ => {}
        }
    }

    fn works_at(&mut self, portal: usize, number: u64) -> bool {
        let work = self.at_portal(portal).work.as_ref();
        work.is_some_and(|work| work.number == number)
    }

    fn call(&mut self, portal: usize, call: Call) -> u64 {
        let state = self.at_portal(portal);
        state.numbers += 1;
        let number = state.numbers;
        if self.whole.is_some() {
            self.call_by_engine(portal, number, call);
        } else {
            let masters = self.shape.nodes;
            let event = ReserveEvent::Call { portal, number, call };
            self.send(portal, masters, Event::Reserve(event));
        }
        self.at(
            ANSWER_LIMIT,
            Event::Reserve(ReserveEvent::CallTimeout { portal, number }),
        );
        number
    }

    pub(super) fn look(&mut self, portal: usize) {
        if self.at_portal(portal).look.is_none() && self.at_portal(portal).serves > 0 {
            let number = self.call(portal, Call::Read);
            self.at_portal(portal).look = Some(number);
        }
    }

    /// Begins the next change that waits, if nothing is under way.
    fn work(&mut self, portal: usize) {
        let state = self.at_portal(portal);
        if state.work.is_some() {
            return;
        }
        if let Some(next) = state.waiting.pop_front() {
            self.begin_work(portal, Some(next));
        }
    }

    fn begin_work(&mut self, portal: usize, host: Option<(usize, u64, Change)>) {
        let state = self.at_portal(portal);
        state.numbers += 1;
        let work = state.numbers;
        state.work = Some(Work {
            host,
            number: work,
            step: Step::Read,
        });
        let number = self.call(portal, Call::Read);
        self.at_portal(portal).call = Some(number);
        self.at(
            CHANGE_LIMIT,
            Event::Reserve(ReserveEvent::WorkTimeout { portal, work }),
        );
    }

    /// The work has ended: with the state that is in force, or none if it is to be tried again.
    fn work_ends(&mut self, portal: usize, in_force: Option<View>) {
        let state = self.at_portal(portal);
        state.call = None;
        if let Some(Work {
            host: Some((host, attempt, _)),
            ..
        }) = state.work.take()
        {
            let ended = in_force.is_some();
            if let Some(view) = in_force {
                // The promise: whatever lost a right by this state has no effect any more.
                self.now_in_force(view.token);
                self.reserved().changes += 1;
            }
            let delay = self.random.between(MS / 10, 2 * MS);
            if self.healing || self.random.below(1000) >= self.loss {
                let told = ReserveEvent::Told { host, attempt, ended };
                self.at(delay, Event::Reserve(told));
            }
        }
        self.see_to_force(portal);
        self.work(portal);
    }

    fn learn(&mut self, portal: usize, found: &View) {
        // Planted: also in the place of what it knows, as who begins anew would.
        let takes_old = self.planted.is(Bug::OldAnswerTaken);
        let state = self.at_portal(portal);
        let order = |view: &View| (view.version, view.token);
        match &mut state.known {
            Some(known) if order(known) > order(found) && !(takes_old && found.chunks < state.heard) => {}
            Some(known) if order(known) == order(found) => {
                known.enforced = known.enforced.max(found.enforced);
            }
            known => *known = Some(found.clone()),
        }
    }

    fn masters_answered(&mut self, portal: usize, number: u64, found: Option<View>, done: bool) {
        let planted = self.planted;
        let state = self.at_portal(portal);
        let found = found.filter(|found| !is_too_old(found, state.heard, planted));
        if state.look == Some(number) {
            state.look = None;
            state.looks += 1;
            if let Some(found) = found {
                self.learn(portal, &found);
                let state = self.at_portal(portal);
                state.serves = state.heard;
                self.see_to_force(portal);
            } else {
                self.at(LOOK_PAUSE, Event::Reserve(ReserveEvent::Look { portal }));
            }
            return;
        }
        if state.call != Some(number) {
            return;
        }
        state.call = None;
        let Some(found) = found else {
            return self.work_ends(portal, None);
        };
        let Some(work) = &mut state.work else {
            return;
        };
        match std::mem::replace(&mut work.step, Step::Read) {
            Step::Read => {
                self.learn(portal, &found);
                match found.in_force() {
                    true => self.apply(portal, found),
                    false => self.enforce(portal, found),
                }
            }
            Step::Replace if !done => {
                // Another portal's host was first.
                let number = self.call(portal, Call::Read);
                self.at_portal(portal).call = Some(number);
            }
            Step::Replace => {
                self.learn(portal, &found);
                match found.in_force() {
                    true => self.work_ends(portal, Some(found)),
                    false => self.enforce(portal, found),
                }
            }
            Step::Note(mut view) => {
                view.enforced = view.token;
                self.learn(portal, &view);
                self.enforced(portal, view);
            }
            Step::Enforce(_) => {}
        }
    }

    /// What was not in force is: of a change before, or of the one that is being made.
    fn enforced(&mut self, portal: usize, view: View) {
        let work = self.at_portal(portal).work.as_ref();
        match work.and_then(|work| work.host) {
            Some((host, _, change)) if view.change != Some((host, change)) => self.apply(portal, view),
            _ => self.work_ends(portal, Some(view)),
        }
    }

    /// Applies the change of a host to what is in force.
    fn apply(&mut self, portal: usize, seen: View) {
        let work = self.at_portal(portal).work.as_ref();
        let Some((host, _, change)) = work.and_then(|work| work.host) else {
            return self.work_ends(portal, Some(seen));
        };
        // A conflict is an answer, too; so is one with what the change itself has made.
        let next = seen.rules.after(host, change).filter(|next| *next != seen.rules);
        let Some(rules) = next else {
            return self.work_ends(portal, Some(seen));
        };
        let call = Call::Replace {
            expected: seen.version,
            restricts: rules.restricts(&seen.rules),
            rules,
            change: (host, change),
        };
        let number = self.call(portal, call);
        let state = self.at_portal(portal);
        state.call = Some(number);
        if let Some(work) = &mut state.work {
            work.step = Step::Replace;
        }
    }

    fn enforce(&mut self, portal: usize, view: View) {
        let state = self.at_portal(portal);
        if state.told.0 != view.token {
            state.told = (view.token, BTreeSet::new());
        }
        if let Some(work) = &mut state.work {
            work.step = Step::Enforce(view);
            let work = work.number;
            self.ask_chunks(portal, work);
        }
    }

    /// Claims the chunks that do not know the token, for a host that there is not; notes the token once there are none.
    fn ask_chunks(&mut self, portal: usize, number: u64) {
        let state = self.at_portal(portal);
        let Some(Work {
            number: current,
            step: Step::Enforce(view),
            ..
        }) = &state.work
        else {
            return;
        };
        if *current != number || view.token != state.told.0 {
            return;
        }
        let token = view.token;
        let left: Vec<usize> = (0..state.serves)
            .filter(|chunk| !state.told.1.contains(chunk))
            .collect();
        let serves = state.serves;
        let enough = match self.planted.is(Bug::EnforcedBeforeAllKnow) {
            true => left.len() <= 1,
            false => left.is_empty(),
        };
        if enough {
            let call = Call::Enforced {
                token,
                chunks: serves,
            };
            let number = self.call(portal, call);
            let state = self.at_portal(portal);
            state.call = Some(number);
            if let Some(work) = &mut state.work
                && let Step::Enforce(view) = std::mem::replace(&mut work.step, Step::Read)
            {
                work.step = Step::Note(view);
            }
            return;
        }
        for chunk in left {
            let session = Session {
                host: HostId::through_portals(0),
                number: 0,
            };
            let config = self.store[chunk].clone();
            let asker = NO_CLIENT + portal * 100 + chunk;
            let request = claim(&config, session, token);
            self.send_request(portal, asker, token.0, chunk, (&config, request), None);
        }
        let work = number;
        self.at(
            CLAIM_PAUSE,
            Event::Reserve(ReserveEvent::Enforce { portal, work }),
        );
    }

    /// A chunk's answer to a portal itself; true if it was one.
    pub(super) fn chunk_told(&mut self, asker: usize, token: u64, status: Status) -> bool {
        let Some(place) = asker.checked_sub(NO_CLIENT) else {
            return false;
        };
        let (portal, chunk) = (place / 100, place % 100);
        if self.portal_stands(portal) || self.at_portal(portal).told.0 != WriterToken(token) {
            return true;
        }
        if matches!(status, Status::Claimed(_) | Status::FencedWriter(_)) {
            let state = self.at_portal(portal);
            state.told.1.insert(chunk);
            if let Some(work) = state.work.as_ref().map(|work| work.number) {
                let complete = (0..state.serves).all(|chunk| state.told.1.contains(&chunk));
                if complete {
                    self.ask_chunks(portal, work);
                }
            }
        }
        true
    }

    /// What nobody has put in force for a while a portal does.
    fn see_to_force(&mut self, portal: usize) {
        let state = self.at_portal(portal);
        if state.forces || state.known.as_ref().is_none_or(View::in_force) {
            return;
        }
        state.forces = true;
        state.force_pause = FORCE_PAUSE * (1 + 3 * portal as u64);
        let (life, pause) = (state.life, state.force_pause);
        self.at(pause, Event::Reserve(ReserveEvent::Force { portal, life }));
    }

    fn force(&mut self, portal: usize) {
        let state = self.at_portal(portal);
        if state.known.as_ref().is_none_or(View::in_force) {
            state.forces = false;
            return;
        }
        state.force_pause = (state.force_pause * 2).min(4 * SECOND);
        let (life, pause) = (state.life, state.force_pause);
        if state.work.is_none() {
            self.begin_work(portal, None);
        }
        self.at(pause, Event::Reserve(ReserveEvent::Force { portal, life }));
    }
}
