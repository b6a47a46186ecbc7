//! All chunk copies of one node and the grants they share: the core that the node face drives.
//! It routes events to the copy they are for and collects what all of them want done.

use std::collections::{BTreeMap, VecDeque};

use foundation::{Epoch, Instant};

use crate::configuration::ChunkConfig;
use crate::grants::Grants;
use crate::identity::{ChunkId, DataToken, Incarnation, IoToken, NodeId, PersistToken, RequestId};
use crate::member::Member;
use crate::message::{Message, Refusal};
use crate::output::{ChunkOutput, Output, Request, Status};
use crate::planted::Planted;
use crate::record::ChunkRecord;
use crate::settings::Settings;

/// The replication core of one life of one node's target.
#[derive(Debug)]
pub struct NodeCore {
    me: NodeId,
    incarnation: Incarnation,
    started: Instant,
    settings: Settings,
    grants: Grants,
    members: BTreeMap<ChunkId, Member>,
    outputs: VecDeque<ChunkOutput>,
    planted: Planted,
}

impl NodeCore {
    /// A life that begins now, with no copies yet.
    pub fn new(now: Instant, me: NodeId, incarnation: Incarnation, settings: Settings) -> Self {
        Self {
            me,
            incarnation,
            started: now,
            settings,
            grants: Grants::new(incarnation, settings),
            members: BTreeMap::new(),
            outputs: VecDeque::new(),
            planted: Planted::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
        self.grants.plant(planted);
    }

    /// Adds a copy, just created or found on disk. A copy already here is left as it is.
    pub fn add_copy(&mut self, now: Instant, record: ChunkRecord) {
        let chunk = record.chunk;
        let (me, incarnation, started) = (self.me, self.incarnation, self.started);
        let (settings, planted, grants) = (self.settings, self.planted, &mut self.grants);
        self.members.entry(chunk).or_insert_with(|| {
            let mut member = Member::new(me, incarnation, started, record, settings);
            member.plant(now, grants, planted);
            member
        });
    }

    /// A copy here, to look at.
    pub fn member(&self, chunk: ChunkId) -> Option<&Member> {
        self.members.get(&chunk)
    }

    /// The grants held and given, to look at.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Whether the copy here may answer reads of settled ranges now.
    pub fn may_read(&self, now: Instant, chunk: ChunkId) -> bool {
        let member = self.members.get(&chunk);
        member.is_some_and(|member| member.may_read(now, &self.grants))
    }

    fn with(&mut self, now: Instant, chunk: ChunkId, event: impl FnOnce(&mut Member, &mut Grants)) -> bool {
        let Some(member) = self.members.get_mut(&chunk) else {
            return false;
        };
        event(member, &mut self.grants);
        while let Some(output) = member.poll_output() {
            let chunk = Some(chunk);
            self.outputs.push_back(ChunkOutput { chunk, output });
        }
        self.beacons(now);
        true
    }

    fn beacons(&mut self, now: Instant) {
        self.grants.handle_timeout(now);
        while let Some((to, message)) = self.grants.poll_output() {
            let output = Output::Send {
                to,
                message,
                data: None,
            };
            self.outputs.push_back(ChunkOutput { chunk: None, output });
        }
    }

    /// The masters have committed a configuration of a chunk.
    pub fn handle_configuration(&mut self, now: Instant, chunk: ChunkId, config: &ChunkConfig) {
        self.with(now, chunk, |member, grants| {
            member.handle_configuration(now, grants, config);
        });
    }

    /// A client asks something of the copy of `chunk` here.
    pub fn handle_request(&mut self, now: Instant, chunk: ChunkId, request: Request) {
        let known = self.with(now, chunk, |member, grants| {
            member.handle_request(now, grants, request);
        });
        if !known {
            if let Some(data) = request.data() {
                self.put_out(chunk, Output::Release { data });
            }
            let status = Status::StaleEpoch(Epoch(0));
            let request = request.id;
            self.put_out(chunk, Output::Complete { request, status });
        }
    }

    fn put_out(&mut self, chunk: ChunkId, output: Output) {
        let chunk = Some(chunk);
        self.outputs.push_back(ChunkOutput { chunk, output });
    }

    /// The connection a request came by is lost.
    pub fn handle_cancel(&mut self, now: Instant, chunk: ChunkId, request: RequestId) {
        self.with(now, chunk, |member, grants| {
            member.handle_cancel(now, grants, request);
        });
    }

    /// A message from the authenticated peer `from`, with the bytes that came with it.
    pub fn handle_message(&mut self, now: Instant, from: NodeId, message: Message, data: Option<DataToken>) {
        match message {
            Message::Enroll {
                incarnation,
                list,
                entries,
            } => self.grants.handle_enroll(from, incarnation, list, entries),
            Message::Beacon {
                incarnation,
                round,
                list,
            } => {
                let members = &self.members;
                let grantable = |chunk, epoch| {
                    let member: Option<&Member> = members.get(&chunk);
                    member.is_some_and(|m| m.grants_to(from, incarnation, epoch))
                };
                let asked = (incarnation, round, list);
                self.grants.handle_beacon(now, from, asked, grantable);
                self.beacons(now);
            }
            Message::Grant {
                incarnation,
                round,
                list,
                known,
                refused,
            } => {
                let answer = (incarnation, round, list);
                self.grants.handle_grant(now, from, answer, known, &refused);
                self.handle_timeout(now);
            }
            message => self.handle_chunk_message(now, from, message, data),
        }
    }

    fn handle_chunk_message(
        &mut self,
        now: Instant,
        from: NodeId,
        message: Message,
        data: Option<DataToken>,
    ) {
        let Some(chunk) = message.chunk() else {
            return;
        };
        let epoch = match &message {
            Message::Seal { config, .. } => Some(config.epoch),
            Message::ReplicaWrite(write) => Some(write.epoch),
            Message::Settle { epoch, .. } | Message::Flush { epoch, .. } => Some(*epoch),
            Message::Query { .. } => Some(Epoch(0)),
            _ => None,
        };
        let known = self.with(now, chunk, |member, grants| {
            member.handle_message(now, grants, from, message, data);
        });
        if known {
            return;
        }
        if let Some(data) = data {
            self.put_out(chunk, Output::Release { data });
        }
        if let Some(epoch) = epoch {
            let message = Message::Refused {
                chunk,
                epoch,
                sealed: Epoch(0),
                refusal: Refusal::NoSuchChunk,
            };
            let to = from;
            let data = None;
            self.put_out(chunk, Output::Send { to, message, data });
        }
    }

    /// The device of `chunk`'s copy has answered.
    pub fn handle_local(
        &mut self,
        now: Instant,
        chunk: ChunkId,
        io: IoToken,
        succeeded: bool,
        data: Option<DataToken>,
    ) {
        self.with(now, chunk, |member, grants| {
            member.handle_local(now, grants, io, succeeded, data);
        });
    }

    /// Changes of the record of `chunk`'s copy are durable up to `token`.
    pub fn handle_persisted(&mut self, now: Instant, chunk: ChunkId, token: PersistToken) {
        self.with(now, chunk, |member, grants| {
            member.handle_persisted(now, grants, token);
        });
    }

    /// The node agent of `node` has proved that this life of its target and all the I/O it gave
    /// to its kernel have ended.
    pub fn handle_incarnation_ended(&mut self, now: Instant, node: NodeId, incarnation: Incarnation) {
        self.grants.give_back(node, incarnation);
        self.handle_timeout(now);
    }

    /// Time has come to [`Self::next_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        for (&chunk, member) in &mut self.members {
            member.handle_timeout(now, &mut self.grants);
            while let Some(output) = member.poll_output() {
                let chunk = Some(chunk);
                self.outputs.push_back(ChunkOutput { chunk, output });
            }
        }
        self.beacons(now);
    }

    /// When [`Self::handle_timeout`] is to be called, if nothing happens before.
    pub fn next_timeout(&self) -> Option<Instant> {
        let members = self.members.values();
        let members = members.filter_map(|member| member.next_timeout(&self.grants));
        members.chain(self.grants.next_timeout()).min()
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<ChunkOutput> {
        self.outputs.pop_front()
    }
}
