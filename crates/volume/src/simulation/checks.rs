//! What must hold at every acknowledgement and when all is quiet. (That blocks are linearizable is
//! checked where clients get their answers.)

use super::clients::Client;
use super::linear::Monitor;
use super::world::{CHUNK_BLOCKS, World, chunk_id, node_index};
use crate::identity::{BlockRange, RequestId};
use crate::member::Phase;
use crate::output::Status;

impl World {
    pub(super) fn completed(&mut self, node: usize, chunk: usize, request: RequestId, status: Status) {
        if self.ordered(node, request, status) || self.scrubbed(node, request) {
            return;
        }
        let Some(asked) = self.nodes[node].requests.remove(&request) else {
            self.fail(format!("node {node} completed {request:?} twice"));
            return;
        };
        let values = self.nodes[node].read.remove(&request).unwrap_or_default();
        let core = self.nodes[node].core.as_ref();
        let epoch = core.and_then(|c| c.member(chunk_id(chunk))?.lead_epoch());
        if status == Status::Done && asked.writes {
            let epoch = epoch.expect("only a write node acknowledges");
            let later = self.opened[chunk]
                .range(epoch.next()..)
                .map(|(_, (at, _))| *at)
                .min();
            if later.is_some_and(|at| at < asked.arrived) {
                self.fail(format!(
                    "node {node} acknowledged a write in epoch {epoch}, begun when a later one served"
                ));
            }
        }
        self.refused_for_room += u64::from(status == Status::NoRoom);
        if status == Status::Done && asked.is_read {
            self.read_at(node, chunk);
            self.reads_without_room(chunk);
        }
        if status == Status::Done && asked.reads && asked.token < self.in_force[chunk] {
            let (token, newer) = (asked.token.0, self.in_force[chunk].0);
            self.fail(format!(
                "node {node} answered a read of chunk {chunk} under token {token} when {newer} was in force"
            ));
        }
        if status == Status::Done && asked.writes {
            if asked.token < asked.in_force {
                let (token, newer) = (asked.token.0, asked.in_force.0);
                self.fail(format!(
                    "node {node} acknowledged a write of chunk {chunk} under token {token} that came when {newer} was in force"
                ));
            }
            self.take_over(chunk, asked.token);
        }
        let (client, attempt) = (asked.client, asked.attempt);
        self.answer(client, attempt, status, values);
    }

    /// Notes when an epoch begins to serve, and when lost data may first be seen.
    pub(super) fn watch(&mut self, node: usize) {
        for chunk in 0..self.shape.chunks {
            let core = self.nodes[node].core.as_ref();
            let Some(member) = core.and_then(|core| core.member(chunk_id(chunk))) else {
                continue;
            };
            let (Some(epoch), Some(phase)) = (member.lead_epoch(), member.phase()) else {
                continue;
            };
            if phase != Phase::Sealing {
                self.begin_anew(node, chunk, epoch);
            }
            if phase != Phase::Sealing && self.loss_due[chunk].is_some_and(|due| epoch >= due) {
                self.loss_due[chunk] = None;
                self.monitors[chunk].iter_mut().for_each(Monitor::all_dead);
                self.note_loss(chunk);
                self.lost_again(chunk);
            }
            if phase == Phase::Serving {
                self.serves_in(node, chunk, epoch);
            }
        }
    }

    pub(super) fn members_of(&self, chunk: usize) -> Vec<usize> {
        self.store[chunk]
            .members
            .iter()
            .map(|m| node_index(m.node))
            .collect()
    }

    /// Every client is done, every copy is in sync again and none has anything left to do.
    pub(super) fn at_rest(&self) -> bool {
        self.nothing_is_left_over() && self.rests_but_for_places()
    }

    /// The same, whatever nodes have that has no place there.
    pub(super) fn rests_but_for_places(&self) -> bool {
        self.restless().is_none()
    }

    /// The first of what does not rest.
    fn restless(&self) -> Option<&'static str> {
        let idle = |node: usize, chunk: usize| {
            let core = self.nodes[node].core.as_ref();
            core.and_then(|c| c.member(chunk_id(chunk)))
                .is_some_and(|m| m.is_idle())
        };
        let leads = |chunk: usize| {
            let core = self.nodes[node_index(self.store[chunk].write_node)].core.as_ref();
            let member = core.and_then(|c| c.member(chunk_id(chunk)));
            member.is_some_and(|m| m.phase() == Some(Phase::Serving))
        };
        let complete = |chunk: usize| self.store[chunk].members.len() == usize::from(self.shape.copies);
        let idle = |c: usize| leads(c) && self.members_of(c).iter().all(|&n| idle(n, c));
        let conditions: [(&str, &dyn Fn() -> bool); 9] = [
            ("clients", &|| self.clients.iter().all(Client::is_done)),
            ("snapshots", &|| {
                self.snapshots
                    .as_ref()
                    .is_none_or(|snapshots| snapshots.is_idle())
            }),
            ("copies in sync", &|| (0..self.shape.chunks).all(complete)),
            ("reservations", &|| self.reservations_rest()),
            ("the store", &|| self.store_rests()),
            ("what is lost", &|| self.nothing_is_lost()),
            ("masters", &|| self.masters_rest()),
            ("copies of snapshots", &|| self.snapshots_are_in_place()),
            ("members", &|| (0..self.shape.chunks).all(idle)),
        ];
        conditions
            .iter()
            .find(|(_, rests)| !rests())
            .map(|(what, _)| *what)
    }

    /// What a copy holds, but for blocks that do not fit their sums.
    fn intact(&mut self, node: usize, chunk: usize, all: BlockRange) -> Vec<Option<u32>> {
        let disk = self.disk(node, chunk);
        let wrong = disk.damage();
        let values = disk.current(all).into_iter();
        let keep = |(block, value)| (!wrong.contains(&block)).then_some(value);
        (0..).zip(values).map(keep).collect()
    }

    pub(super) fn check_equal(&mut self) {
        let all = BlockRange {
            start: 0,
            count: CHUNK_BLOCKS,
        };
        for chunk in 0..self.shape.chunks {
            let members = self.members_of(chunk);
            let first = self.intact(members[0], chunk, all);
            for &node in &members[1..] {
                let other = self.intact(node, chunk, all);
                // A block that does not fit its sum is as good as none: whoever reads it has it repaired.
                let differ = |(one, other): (&Option<u32>, &Option<u32>)| {
                    one.is_some() && other.is_some() && one != other
                };
                if first.iter().zip(&other).any(differ) {
                    self.fail(format!(
                        "copies {} and {node} of chunk {chunk} differ at rest: {first:?} {other:?}",
                        members[0]
                    ));
                }
            }
        }
        self.check_snapshots_equal();
        self.check_places();
        for node in 0..self.shape.nodes {
            // One that was removed for good while it was cut off waits for an answer for ever.
            let is_removed = self.is_removed(node);
            if self.nodes[node].core.is_some() && !self.nodes[node].data.is_empty() && !is_removed {
                let left = self.nodes[node].data.len();
                self.fail(format!("node {node} has not released {left} payloads"));
            }
        }
    }

    pub(super) fn describe(&self) -> String {
        let mut text = match (self.restless(), self.nothing_is_left_over()) {
            (Some(what), _) => format!("{what} do not rest; "),
            (None, false) => "nodes have what has no place there; ".to_owned(),
            (None, true) => String::new(),
        };
        text += &format!("store {:?}", self.store);
        for (index, node) in self.nodes.iter().enumerate() {
            for chunk in 0..self.shape.chunks {
                if let Some(member) = node.core.as_ref().and_then(|c| c.member(chunk_id(chunk))) {
                    text += &format!("\n node {index} life {} chunk {chunk}: {member:?}", node.life);
                }
            }
        }
        for client in self.clients.iter().filter(|c| !c.is_done()) {
            text += &format!("\n {client:?}");
        }
        if let Some(reserved) = &self.reserved {
            text += &reserved.describe();
        }
        if let Some(whole) = &self.whole {
            text += &whole.describe();
        }
        text
    }
}
