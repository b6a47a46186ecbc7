//! All chunk copies of one node and the grants they share: the core that the node face drives.
//! It routes events to the copy they are for and collects what all of them want done.

mod lacking;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foundation::{Epoch, Instant};

use crate::configuration::ChunkConfig;
use crate::grants::{Answer, Grants};
use crate::identity::{
    ChunkId, DataToken, Incarnation, IoToken, NodeId, PersistToken, RequestId, VolumeNumber,
};
use crate::member::{Member, ResyncProgress, Standing};
use crate::message::{Message, Refusal};
use crate::output::{ChunkOutput, Output, Request, Status};
use crate::planted::Planted;
use crate::record::ChunkRecord;
use crate::settings::Settings;

/// A copy and what the node has noted of it, so that neither time nor a grant is a reason to look at all copies.
#[derive(Debug)]
struct Place {
    member: Member,
    /// Its place in [`NodeCore::due`]: never later than the copy's next timeout.
    due: Option<Instant>,
    standing: Standing,
    /// Somebody beside the node reads by [`NodeCore::read_right`].
    watched: bool,
}

/// The replication core of one life of one node's target.
///
/// Time costs what is due, not what is here: a copy at rest is not looked at.
#[derive(Debug)]
pub struct NodeCore {
    me: NodeId,
    incarnation: Incarnation,
    started: Instant,
    settings: Settings,
    grants: Grants,
    members: BTreeMap<ChunkId, Place>,
    due: BTreeSet<(Instant, ChunkId)>,
    /// Copies that may go on when a grant comes, or when one given is given back.
    waiting_for_grants: BTreeSet<ChunkId>,
    /// Watched copies to which something has happened.
    stirred: Vec<ChunkId>,
    /// Chunks of which a copy is on its way back under a write node here.
    resyncing: BTreeSet<ChunkId>,
    /// When somebody last asked something of this node, noted while a copy is resynced here.
    foreground: Option<Instant>,
    outputs: VecDeque<ChunkOutput>,
    /// Copies taken up in this life: what each of them asks of its disk is numbered apart from all others, since an
    /// answer may come after the copy was deleted and made anew.
    copies_added: u64,
    /// When copies were deleted one by one, for as long as what they granted may bind.
    deleted: BTreeMap<ChunkId, Instant>,
    /// Chunks to lead here without a copy.
    lacking: BTreeMap<ChunkId, lacking::Successor>,
    planted: Planted,
    /// Copies looked at so far, for the test that counts.
    #[cfg(test)]
    looked_at: u64,
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
            due: BTreeSet::new(),
            waiting_for_grants: BTreeSet::new(),
            stirred: Vec::new(),
            resyncing: BTreeSet::new(),
            foreground: None,
            outputs: VecDeque::new(),
            copies_added: 0,
            deleted: BTreeMap::new(),
            lacking: BTreeMap::new(),
            planted: Planted::default(),
            #[cfg(test)]
            looked_at: 0,
        }
    }

    /// Chunk copies looked at so far, by this core and by its grants.
    #[cfg(test)]
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at + self.grants.looked_at()
    }

    #[cfg(test)]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
        self.grants.plant(planted);
    }

    /// Adds a copy, just created or found on disk, which keeps checksums of its blocks or not. A copy already here is left as it is.
    pub fn add_copy(&mut self, now: Instant, record: ChunkRecord, has_sums: bool) {
        let chunk = record.chunk;
        self.lacking.remove(&chunk);
        // One that was deleted here forgot what it granted, as a life that ends does.
        let started = self.deleted.get(&chunk).copied().unwrap_or(self.started);
        let (me, incarnation, number) = (self.me, self.incarnation, self.copies_added);
        self.copies_added += 1;
        let (settings, planted, grants) = (self.settings, self.planted, &mut self.grants);
        self.members.entry(chunk).or_insert_with(|| {
            let mut member = Member::new(me, incarnation, started, record, settings);
            member.number_from(number);
            member.plant(now, grants, planted);
            if has_sums {
                member.keep_sums();
            }
            Place {
                standing: Standing::default(),
                due: None,
                watched: false,
                member,
            }
        });
        self.note(chunk);
    }

    /// Forgets every copy of a volume that is deleted: what is held of requests and bytes ends here, and what
    /// its disk still answers is ignored.
    pub fn remove_volume(&mut self, now: Instant, volume: VolumeNumber) {
        // Nearly always there is nothing of it: nodes hear of every volume that was ever deleted, in each of their lives.
        let chunks = self.members.range(ChunkId::all_of(volume));
        for chunk in chunks.map(|(chunk, _)| *chunk).collect::<Vec<_>>() {
            self.forget(now, chunk);
        }
        let lacking = self.lacking.range(ChunkId::all_of(volume));
        for chunk in lacking.map(|(chunk, _)| *chunk).collect::<Vec<_>>() {
            self.lacking.remove(&chunk);
        }
    }

    /// Forgets the copy of a chunk for which the configuration committed as `epoch` has no place here any more: what is
    /// held of requests and bytes ends here, and what its disk still answers is ignored. False, and nothing happens, if
    /// this copy knows of that epoch or a later one, which is what an old word of the masters' would say (each change of
    /// the places has an epoch of its own; `docs/decisions/0060`). True if there is no copy.
    pub fn remove_copy(&mut self, now: Instant, chunk: ChunkId, epoch: Epoch) -> bool {
        let Some(place) = self.members.get(&chunk) else {
            return true;
        };
        if !place.member.may_be_deleted(epoch) {
            return false;
        }
        self.forget(now, chunk);
        let term = self.settings.grant_term;
        self.deleted.retain(|_, at| now.since(*at) < term);
        self.deleted.insert(chunk, now);
        true
    }

    fn forget(&mut self, now: Instant, chunk: ChunkId) {
        self.with(now, chunk, |member, grants| member.retire(grants));
        if let Some(due) = self.members.remove(&chunk).and_then(|place| place.due) {
            self.due.remove(&(due, chunk));
        }
        self.waiting_for_grants.remove(&chunk);
        self.resyncing.remove(&chunk);
        self.grants.judge(chunk, |_, _, _| false);
    }

    /// A copy here, to look at.
    pub fn member(&self, chunk: ChunkId) -> Option<&Member> {
        self.members.get(&chunk).map(|place| &place.member)
    }

    /// The grants held and given, to look at.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Whether the copy here may answer reads of settled ranges now.
    pub fn may_read(&self, now: Instant, chunk: ChunkId) -> bool {
        let member = self.member(chunk);
        member.is_some_and(|member| member.may_read(now, &self.grants))
    }

    /// From now on [`NodeCore::poll_stirred`] names this copy when something has happened to it, or does no more. False
    /// if it is not here.
    pub fn watch(&mut self, chunk: ChunkId, watched: bool) -> bool {
        let place = self.members.get_mut(&chunk);
        place.map(|place| place.watched = watched).is_some()
    }

    /// A watched copy whose [`NodeCore::read_right`] may have changed. To be asked for after each event, and before any
    /// output is carried out.
    pub fn poll_stirred(&mut self) -> Option<ChunkId> {
        self.stirred.pop()
    }

    /// The right to read the copy here beside this node: what its disk holds of the whole chunk may be given to clients
    /// until then, if this is still so after the disk has answered. None while any write is not settled, or if this copy
    /// has no right itself.
    pub fn read_right(&self, now: Instant, chunk: ChunkId) -> Option<Instant> {
        self.member(chunk)?.read_right(now, &self.grants)
    }

    fn with(&mut self, now: Instant, chunk: ChunkId, event: impl FnOnce(&mut Member, &mut Grants)) -> bool {
        let Some(place) = self.members.get_mut(&chunk) else {
            return false;
        };
        if let Some(at) = self.foreground.filter(|_| !self.resyncing.is_empty()) {
            place.member.note_foreground(at, self.resyncing.len());
        }
        event(&mut place.member, &mut self.grants);
        while let Some(output) = place.member.poll_output() {
            let chunk = Some(chunk);
            self.outputs.push_back(ChunkOutput { chunk, output });
        }
        self.note(chunk);
        self.beacons(now);
        true
    }

    /// As [`NodeCore::with`], of what a copy has asked of its disk under this number: the answer to one that was deleted says nothing of the
    /// one that was made in its place, which may lie on another disk.
    fn with_asker(
        &mut self,
        now: Instant,
        chunk: ChunkId,
        number: u64,
        event: impl FnOnce(&mut Member, &mut Grants),
    ) -> bool {
        let is_it = self.member(chunk).is_some_and(|member| member.has_asked(number));
        is_it && self.with(now, chunk, event)
    }

    /// Notes what an event may have changed of a copy: when it is due, whether it waits for grants, what may be
    /// granted of it. A timeout that was put off is left where it was: looking once too often costs less than
    /// moving it with every write.
    fn note(&mut self, chunk: ChunkId) {
        let Some(place) = self.members.get_mut(&chunk) else {
            return;
        };
        #[cfg(test)]
        {
            self.looked_at += 1;
        }
        if place.watched {
            self.stirred.push(chunk);
        }
        let member = &place.member;
        if let Some(next) = member.next_timeout(&self.grants)
            && place.due.is_none_or(|due| next < due)
        {
            if let Some(due) = place.due.replace(next) {
                self.due.remove(&(due, chunk));
            }
            self.due.insert((next, chunk));
        }
        if member.waits_for_grants() {
            self.waiting_for_grants.insert(chunk);
        } else if !self.waiting_for_grants.is_empty() {
            self.waiting_for_grants.remove(&chunk);
        }
        if member.is_resyncing() {
            self.resyncing.insert(chunk);
        } else if !self.resyncing.is_empty() {
            self.resyncing.remove(&chunk);
        }
        let standing = member.standing();
        if std::mem::replace(&mut place.standing, standing) != standing {
            self.grants
                .judge(chunk, |node, life, epoch| member.grants_to(node, life, epoch));
        }
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
        let has_copy = self.with(now, chunk, |member, grants| {
            member.handle_configuration(now, grants, config);
        });
        if !has_copy {
            self.told_without_copy(now, chunk, config);
        }
    }

    /// A client asks something of the copy of `chunk` here.
    pub fn handle_request(&mut self, now: Instant, chunk: ChunkId, request: Request) {
        self.note_foreground(now);
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

    /// A read that [`NodeCore::handle_request`] would put out at once as [`Output::LocalRead`], and nothing beside: the caller asks the
    /// device for it under this name. None, and nothing has happened, for every other request.
    pub fn read_at_once(&mut self, now: Instant, chunk: ChunkId, request: &Request) -> Option<IoToken> {
        let place = self.members.get_mut(&chunk)?;
        let io = place.member.read_at_once(now, &self.grants, request)?;
        self.note_foreground(now);
        Some(io)
    }

    /// The device has read for a client, and all that [`NodeCore::handle_local`] would put out is that this request is
    /// [`Status::Done`]: the caller answers it. None, and nothing has happened, if more is to be done.
    pub fn end_read_at_once(&mut self, now: Instant, chunk: ChunkId, io: IoToken) -> Option<RequestId> {
        let place = self.members.get_mut(&chunk)?;
        place.member.end_read_at_once(now, &self.grants, io)
    }

    /// A client asks something: what a node does with that.
    #[cfg(test)]
    pub(crate) fn handle_command(&mut self, now: Instant, chunk: ChunkId, request: Request) {
        if let Some(io) = self.read_at_once(now, chunk, &request) {
            let (range, purpose) = (request.range, crate::ReadPurpose::Request(request.id));
            return self.put_out(chunk, Output::LocalRead { io, range, purpose });
        }
        self.handle_request(now, chunk, request);
    }

    /// The device has read for a client: what a node does with that.
    #[cfg(test)]
    pub(crate) fn handle_read(&mut self, now: Instant, chunk: ChunkId, io: IoToken, succeeded: bool) {
        if succeeded && let Some(request) = self.end_read_at_once(now, chunk, io) {
            let status = Status::Done;
            return self.put_out(chunk, Output::Complete { request, status });
        }
        self.handle_local(now, chunk, io, succeeded, None);
    }

    /// While a copy is resynced here, what others ask of this node makes it slower.
    fn note_foreground(&mut self, now: Instant) {
        if !self.resyncing.is_empty() {
            self.foreground = Some(now);
        }
    }

    /// Whether the write node here has to do enough for other copies that come back.
    fn puts_off(&self, from: NodeId, chunk: ChunkId) -> bool {
        let member = self.member(chunk);
        let must = member.is_some_and(|member| member.waits_for_return_of(from));
        !must && self.resyncing.len() >= self.settings.joins_max
    }

    /// How far the copies are that come back under write nodes here.
    pub fn resyncs(&self, now: Instant) -> impl Iterator<Item = (ChunkId, ResyncProgress)> + '_ {
        let chunks = self.resyncing.iter();
        chunks.filter_map(move |&chunk| Some((chunk, self.member(chunk)?.resync_progress(now)?)))
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
                part,
                list,
                entries,
            } => {
                let members = &self.members;
                let grantable = |chunk, epoch| {
                    let place: Option<&Place> = members.get(&chunk);
                    place.is_some_and(|p| p.member.grants_to(from, incarnation, epoch))
                };
                let list = (incarnation, part, list);
                self.grants.handle_enroll(from, list, entries, grantable);
            }
            Message::Beacon {
                incarnation,
                round,
                part,
                list,
            } => {
                let (round, list) = ((incarnation, round), (part, list));
                self.grants.handle_beacon(now, from, round, list);
                self.beacons(now);
            }
            Message::Grant {
                incarnation,
                round,
                list,
                known,
                keeps_parts,
                refused,
            } => {
                let answer = Answer {
                    round,
                    list,
                    known,
                    keeps_parts,
                    refused: &refused,
                };
                self.grants.handle_grant(now, from, incarnation, &answer);
                self.grants_changed(now);
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
        match &message {
            // It asks again later.
            Message::Return { .. } if self.puts_off(from, chunk) => return,
            Message::ReplicaWrite(write) if write.join.0 == 0 => self.note_foreground(now),
            _ => {}
        }
        let epoch = match &message {
            Message::Seal { config, .. } => Some(config.epoch),
            Message::ReplicaWrite(write) => Some(write.epoch),
            Message::Settle { epoch, .. }
            | Message::Flush { epoch, .. }
            | Message::Join { epoch, .. }
            | Message::Announce { epoch, .. }
            | Message::Snapshot { epoch, .. }
            | Message::Confirm { epoch, .. }
            | Message::Fetch { epoch, .. } => Some(*epoch),
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
        let known = self.with_asker(now, chunk, io.0, |member, grants| {
            member.handle_local(now, grants, io, succeeded, data);
        });
        if let Some(data) = data.filter(|_| !known) {
            self.put_out(chunk, Output::Release { data });
        }
    }

    /// The device of `chunk`'s copy has read for [`crate::ReadPurpose::Compare`]: the blocks hold what is expected, or they do not.
    pub fn handle_compared(&mut self, now: Instant, chunk: ChunkId, io: IoToken, are_alike: bool) {
        self.with_asker(now, chunk, io.0, |member, grants| {
            member.handle_compared(now, grants, io, are_alike);
        });
    }

    /// The device of `chunk`'s copy has read, and these blocks, in ascending order, do not fit their checksums. False if
    /// that says nothing, since a write to them had begun meanwhile.
    pub fn handle_damaged(&mut self, now: Instant, chunk: ChunkId, io: IoToken, blocks: &[u32]) -> bool {
        let mut is_damaged = false;
        self.with_asker(now, chunk, io.0, |member, grants| {
            is_damaged = member.handle_damaged(now, grants, io, blocks);
        });
        is_damaged
    }

    /// Changes of the record of `chunk`'s copy are durable up to `token`.
    pub fn handle_persisted(&mut self, now: Instant, chunk: ChunkId, token: PersistToken) {
        self.with_asker(now, chunk, token.0, |member, grants| {
            member.handle_persisted(now, grants, token);
        });
    }

    /// This change of the record of `chunk`'s copy could not be made durable, and none after it will be: as if its
    /// disk had failed. None if the record was written for another reason: then it is that of the copy which is here now.
    pub fn handle_persist_failed(&mut self, now: Instant, chunk: ChunkId, token: Option<PersistToken>) {
        let is_of = |member: &Member| token.is_none_or(|token| member.has_asked(token.0));
        if self.member(chunk).is_some_and(is_of) {
            self.with(now, chunk, |member, _| member.handle_persist_failed(now));
        }
    }

    /// A write or flush of `chunk`'s copy has ended since its disk has no room; half of a write may have been done. It is asked for
    /// again, under the same number, after [`Self::handle_room`].
    pub fn handle_full(&mut self, now: Instant, chunk: ChunkId, io: IoToken) {
        self.with_asker(now, chunk, io.0, |member, grants| {
            member.handle_full(now, grants, io)
        });
    }

    /// A change of the record of `chunk`'s copy has found no room. It is made durable with a later one, of which [`Self::handle_persisted`]
    /// tells.
    pub fn handle_record_full(&mut self, now: Instant, chunk: ChunkId) {
        self.with(now, chunk, |member, grants| {
            member.handle_record_full(now, grants)
        });
    }

    /// Whether little room is left on the disk of `chunk`'s copy, of which others are told. A copy that is added counts as one that has
    /// room.
    pub fn handle_short(&mut self, now: Instant, chunk: ChunkId, is_short: bool) {
        self.with(now, chunk, |member, grants| {
            member.set_short(now, grants, is_short)
        });
    }

    /// The disk of `chunk`'s copy, which had no room, may have some again.
    pub fn handle_room(&mut self, now: Instant, chunk: ChunkId) {
        self.with(now, chunk, |member, grants| member.handle_room(now, grants));
    }

    /// The node agent of `node` has proved that this life of its target and all the I/O it gave
    /// to its kernel have ended.
    pub fn handle_incarnation_ended(&mut self, now: Instant, node: NodeId, incarnation: Incarnation) {
        self.grants.give_back(node, incarnation);
        self.grants_changed(now);
    }

    fn grants_changed(&mut self, now: Instant) {
        let waiting: Vec<ChunkId> = self.waiting_for_grants.iter().copied().collect();
        for chunk in waiting {
            self.with(now, chunk, |member, grants| member.handle_timeout(now, grants));
        }
        self.beacons(now);
    }

    /// Time has come to [`Self::next_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut ripe = Vec::new();
        while let Some(&(at, chunk)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, chunk));
            if let Some(place) = self.members.get_mut(&chunk) {
                place.due = None;
            }
            ripe.push(chunk);
        }
        for chunk in ripe {
            self.with(now, chunk, |member, grants| member.handle_timeout(now, grants));
        }
        self.ask_for_successors(now);
        self.beacons(now);
    }

    /// When [`Self::handle_timeout`] is to be called, if nothing happens before. Perhaps sooner than anything
    /// is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        let first = self.due.first().map(|(at, _)| *at);
        first.into_iter().chain(self.grants.next_timeout()).min()
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<ChunkOutput> {
        self.outputs.pop_front()
    }
}

#[cfg(test)]
mod tests;
