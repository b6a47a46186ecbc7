//! One core's channel: first attempts, which need no task, and the keeping of the map.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bdev::{Channel, Data, IoError, Leave, Operation, Request};
use foundation::{BlockCount, Epoch, Instant, Lba};
use reactor::sync::{Notify, OneshotSender};
use reactor::{spawn, time};
use slab::Slab;

use crate::identity::{ChunkIndex, NodeId, TraceId, VolumeNumber, WriterToken};
use crate::map::{ChunkMap, Route};
use crate::message::codec::{NATIVE_BLOCKS_MAX, NativeCommand, NativeOperation};
use crate::output::Status;

use super::claims::{self, Claims, Leaves};
use super::device::{ClientOptions, VolumeDevice, shape};
use super::group::Group;
use super::job::{Job, Owner, Terms};
use super::peers::{Answer, AnswerSink, PeerStatus, Peers, Place, Reply};
use super::retry::{self, Ended};
use super::round::{Round, Rounds, Turn};
use super::silence::Silences;
use super::source::{MapSource, Sessions, VolumeMap};
use super::unflushed::Unflushed;

/// A refresh of the map that takes longer is given up.
const REFRESH_LIMIT: Duration = Duration::from_secs(5);

/// Who waits for an attempt's answer.
pub(super) enum Waiting {
    /// The piece itself, at its first attempt.
    First(Job),
    /// The task that tries again; whether a read may be taken back from a silent node.
    Retry(OneshotSender<Answer>, bool),
}

/// A command with a node.
pub(super) struct Attempt {
    generation: u32,
    pub(super) route: Route,
    pub(super) chunk: ChunkIndex,
    pub(super) is_read: bool,
    session: u64,
    pub(super) sent: Instant,
    pub(super) waiting: Waiting,
}

impl Attempt {
    /// Its tag, by its place among the attempts.
    pub(super) fn tag(&self, index: usize) -> u64 {
        let index = u64::try_from(index).expect("fewer than 2^32 commands are under way");
        u64::from(self.generation) << 32 | index
    }
}

/// The map as this core knows it, and what it knows of the nodes' loads.
struct View {
    version: u64,
    map: Arc<VolumeMap>,
    chunks: ChunkMap,
}

/// What the channel, its answers and its tasks share.
pub(super) struct Core {
    pub(super) volume: VolumeNumber,
    pub(super) options: ClientOptions,
    pub(super) sessions: Sessions,
    /// Those of the portal's host for which this channel is.
    pub(super) claims: Option<Rc<Claims>>,
    pub(super) unflushed: Arc<Unflushed>,
    source: Arc<dyn MapSource>,
    pub(super) peers: Rc<dyn Peers>,
    view: RefCell<View>,
    pub(super) attempts: RefCell<Slab<Attempt>>,
    pub(super) silences: RefCell<Silences>,
    pub(super) rounds: Rounds,
    generation: Cell<u32>,
    /// Attempts at what changes the volume that may have been done, and were made again.
    pub(super) repeats: Cell<u64>,
    watching: Cell<bool>,
    refreshing: Cell<bool>,
    pub(super) refreshed: Notify,
    this: Weak<Core>,
}

/// One core's way to a volume. See [`crate::client`].
pub struct VolumeChannel {
    core: Rc<Core>,
}

impl VolumeChannel {
    pub(super) fn new(device: &VolumeDevice, peers: Rc<dyn Peers>, claims: Option<Rc<Claims>>) -> Self {
        let version = device.source.version();
        let map = device.source.current();
        let chunks = map.chunks.clone();
        let view = View { version, map, chunks };
        let core = Rc::new_cyclic(|this| Core {
            volume: device.volume,
            options: device.options,
            sessions: device.sessions.clone(),
            claims,
            unflushed: device.unflushed.clone(),
            source: device.source.clone(),
            peers,
            view: RefCell::new(view),
            attempts: RefCell::default(),
            silences: RefCell::default(),
            rounds: Rounds::default(),
            generation: Cell::new(0),
            repeats: Cell::new(0),
            watching: Cell::new(false),
            refreshing: Cell::new(false),
            refreshed: Notify::new(),
            this: this.clone(),
        });
        Self { core }
    }

    /// What the channel shares with its tasks.
    pub(super) fn core(&self) -> Rc<Core> {
        self.core.clone()
    }

    /// Copies that each chunk should have.
    pub fn copies(&self) -> u32 {
        self.core.view().map.geometry.copies.into()
    }

    /// How many attempts at what changes the volume were made again by this channel so far though they may have been done: each
    /// counts as a write of its own until its write is acknowledged, so whoever judges a history must know of it
    /// (decision 0082). Those that surely were not done are not counted.
    pub fn repeats(&self) -> u64 {
        self.core.repeats.get()
    }

    /// Begins to ask the copies of what is read again one after the other, for a reader whose checksum did not match. Does not block.
    pub fn round(&self) -> Round {
        Round::new(self.core.clone())
    }
}

impl Channel for VolumeChannel {
    fn geometry(&self) -> bdev::Geometry {
        self.core.shape()
    }

    fn submit(&self, request: Request) {
        self.core.submit(request, None, no_leaves());
    }

    fn look_for_growth(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let core = self.core.clone();
        Box::pin(async move {
            let refreshed = core.refreshed.changed();
            core.refresh();
            refreshed.await;
        })
    }

    fn leave(&self, ranges: &[(Lba, BlockCount)]) -> Option<Leave> {
        let claims = self.core.claims.clone()?;
        let (core, ranges) = (self.core.clone(), ranges.to_vec());
        Some(Box::pin(async move {
            let claimed = claims::leave(core, claims, ranges).await?;
            Ok(Rc::new(claimed) as Rc<dyn Channel>)
        }))
    }
}

/// Whether a command of a host is for those who may write (NVM Express Base Specification 2.0c, section 8.19: a Flush is).
pub(super) fn needs_to_write(operation: NativeOperation) -> bool {
    operation.changes() || operation == NativeOperation::Flush
}

/// What goes under no claim.
pub(super) fn no_leaves() -> Leaves {
    Rc::from([])
}

/// The operation as nodes know it.
fn native(operation: Operation, syncs: bool) -> Result<NativeOperation, IoError> {
    Ok(match operation {
        Operation::Read => NativeOperation::Read,
        Operation::Write { fua } => NativeOperation::Write { fua: fua || syncs },
        Operation::WriteZeroes {
            deallocate: false,
            fua,
        } => NativeOperation::WriteZeroes { fua: fua || syncs },
        Operation::WriteZeroes {
            deallocate: true,
            fua,
        } => NativeOperation::Deallocate { fua: fua || syncs },
        Operation::Deallocate => NativeOperation::Deallocate { fua: syncs },
        Operation::Flush => NativeOperation::Flush,
        Operation::Fence => NativeOperation::Fence,
        Operation::CompareAndWrite { fua } => NativeOperation::CompareAndWrite { fua: fua || syncs },
        Operation::Compare => return Err(IoError::Unsupported),
    })
}

fn check(request: &Request, operation: NativeOperation, shape: bdev::Geometry) -> Result<(), IoError> {
    if request.metadata.is_some() {
        return Err(IoError::Unsupported);
    }
    if operation == NativeOperation::Flush {
        return Ok(());
    }
    shape.check_range(request.lba, request.blocks)?;
    let moved = || request.blocks.0.saturating_mul(shape.block_bytes.into());
    let fits = match (operation, &request.data) {
        (NativeOperation::Read, Data::Into(buffer)) => buffer.len() as u64 == moved(),
        (NativeOperation::Write { .. }, Data::From(buffer)) => buffer.len() as u64 == moved(),
        // What is expected, and what is to be written.
        (NativeOperation::CompareAndWrite { .. }, Data::From(buffer)) => {
            buffer.len() as u64 == moved().saturating_mul(2)
        }
        (
            NativeOperation::Read | NativeOperation::Write { .. } | NativeOperation::CompareAndWrite { .. },
            _,
        ) => false,
        (_, data) => data.length_bytes() == 0,
    };
    if fits { Ok(()) } else { Err(IoError::Unaligned) }
}

/// An attempt's generation and place.
fn parts_of(tag: u64) -> (u32, usize) {
    ((tag >> 32) as u32, (tag & 0xffff_ffff) as usize)
}

impl Core {
    /// The map, and what is known of the nodes.
    pub(super) fn chunks(&self) -> RefMut<'_, ChunkMap> {
        RefMut::map(self.view.borrow_mut(), |view| &mut view.chunks)
    }

    fn view(&self) -> Ref<'_, View> {
        self.view.borrow()
    }

    /// Takes a newer map over if there is one.
    pub(super) fn look_at_map(&self) {
        let version = self.source.version();
        if version == self.view.borrow().version {
            return;
        }
        let map = self.source.current();
        let mut view = self.view.borrow_mut();
        view.version = version;
        view.chunks.adopt(&map.chunks);
        // No volume shrinks: this map was made before it grew. A flush by it would leave out what has been written since.
        if !view.map.geometry.is_growth_of(&map.geometry) {
            view.map = map;
        }
    }

    pub(super) fn copies(&self) -> u32 {
        self.view().map.geometry.copies.into()
    }

    pub(super) fn shape(&self) -> bdev::Geometry {
        shape(&self.view().map.geometry, &self.options)
    }

    /// The chunks of a range.
    pub(super) fn chunks_of(&self, lba: Lba, blocks: BlockCount) -> Result<Vec<ChunkIndex>, IoError> {
        self.shape().check_range(lba, blocks)?;
        let view = self.view();
        view.map
            .geometry
            .chunks_of(lba, blocks)
            .map_err(|_| IoError::OutOfRange)
    }

    /// A block of the volume that lies in the chunk.
    pub(super) fn first_lba(&self, chunk: ChunkIndex) -> Option<Lba> {
        self.view().map.geometry.first_lba(chunk)
    }

    /// Where what changes a chunk goes; none if its configuration is not known.
    pub(super) fn write_route(&self, chunk: ChunkIndex) -> Option<Route> {
        self.view().chunks.write_route(chunk)
    }

    /// A piece's command for a node that knows the chunk by `epoch`; none if reservations leave it to others than the host.
    pub(super) fn command(&self, job: &Job, epoch: Epoch) -> Option<NativeCommand> {
        let mut command = job.command(self.volume, epoch);
        if let Some(claims) = &self.claims {
            command.fields.writer_token = claims.token(needs_to_write(job.terms.operation))?;
            command = command.of_portal(claims.session(job.terms.claim.unwrap_or(0)));
        }
        Some(command)
    }

    /// All chunks of the volume.
    pub(super) fn all_chunks(&self) -> Vec<ChunkIndex> {
        self.view().map.geometry.all_chunks()
    }

    pub(super) fn submit(self: &Rc<Self>, request: Request, turn: Option<Turn>, leaves: Leaves) {
        let deadline = time::now() + self.options.time_limit;
        self.submit_until(request, turn, leaves, deadline);
    }

    /// As [`Core::submit`], to be ended at a time that is known already.
    pub(super) fn submit_until(
        self: &Rc<Self>,
        request: Request,
        turn: Option<Turn>,
        leaves: Leaves,
        deadline: Instant,
    ) {
        self.look_at_map();
        let map = self.view().map.clone();
        let shape = shape(&map.geometry, &self.options);
        let checked = native(request.operation, self.options.sync_writes)
            .and_then(|operation| check(&request, operation, shape).map(|()| operation));
        let operation = match checked {
            Ok(operation) => operation,
            Err(error) => return request.complete(Err(error)),
        };
        let terms = Terms {
            operation,
            writer_token: WriterToken(request.fence.map_or(0, |fence| fence.writer_token)),
            trace: TraceId(request.trace.0),
            deadline,
            turn,
            claim: None,
        };
        if self.claims.is_some() && operation.changes() && leaves.is_empty() {
            // What the host sends without being asked cannot be told from what it has sent by another way since.
            return request.complete(Err(IoError::Unsupported));
        }
        if operation == NativeOperation::Flush {
            return self.flush(request, terms, map);
        }
        if operation == NativeOperation::Fence {
            let chunks = map.geometry.chunks_of(request.lba, request.blocks);
            let chunks = chunks.expect("the range was checked against the same geometry");
            let Request { data, token, .. } = request;
            return Group::start_chunks(self, terms, map, (chunks, Vec::new()), data, token);
        }
        let pieces = map.geometry.pieces(request.lba, request.blocks);
        let first = pieces
            .expect("the range was checked against the same geometry")
            .next();
        let Some(piece) = first else {
            return request.complete(Ok(()));
        };
        let Request {
            lba,
            blocks,
            data,
            token,
            ..
        } = request;
        if u64::from(piece.range.count) != blocks.0 || piece.range.count > NATIVE_BLOCKS_MAX {
            if matches!(operation, NativeOperation::CompareAndWrite { .. }) {
                // Several write nodes do nothing in one step.
                return token.complete(Err(IoError::Unsupported), data);
            }
            if self.is_unclaimed(operation, &leaves, &map, (lba, blocks)) {
                return token.complete(Err(IoError::Unavailable), data);
            }
            return Group::start_range(self, terms, map, (lba, blocks), (data, leaves), token);
        }
        let kept = match &data {
            Data::From(buffer) => Some(buffer.clone()),
            _ => None,
        };
        let terms = Terms {
            claim: claims::leave_for(&leaves, piece.chunk),
            ..terms
        };
        if self.claims.is_some() && operation.changes() && terms.claim.is_none() {
            return token.complete(Err(IoError::Unavailable), data);
        }
        let job = Job {
            terms,
            place: Place {
                chunk: piece.chunk,
                first_block: piece.range.start,
            },
            first_lba: lba,
            blocks: piece.range.count,
            kept,
            owner: Owner::Request(token),
        };
        self.start(job, data);
    }

    /// Whether a portal's command changes a chunk for which it has no claim. Nothing of it is done then.
    fn is_unclaimed(
        &self,
        operation: NativeOperation,
        leaves: &Leaves,
        map: &VolumeMap,
        (lba, blocks): (Lba, BlockCount),
    ) -> bool {
        if self.claims.is_none() || !operation.changes() {
            return false;
        }
        let chunks = map.geometry.chunks_of(lba, blocks);
        let mut chunks = chunks.unwrap_or_default().into_iter();
        chunks.any(|chunk| claims::leave_for(leaves, chunk).is_none())
    }

    fn flush(self: &Rc<Self>, request: Request, terms: Terms, map: Arc<VolumeMap>) {
        if self.claims.is_some() && self.source.is_behind() {
            // What the host wrote through another portal may lie where this one does not look yet.
            return request.complete(Err(IoError::Unavailable));
        }
        let due = match self.claims {
            // What the host wrote through another portal is to be flushed, too.
            Some(_) => (map.geometry.all_chunks(), Vec::new()),
            None => self.unflushed.begin(map.geometry.chunks()),
        };
        if due.0.is_empty() {
            return request.complete(Ok(()));
        }
        let Request { data, token, .. } = request;
        Group::start_chunks(self, terms, map, due, data, token);
    }

    /// Makes a piece's first attempt.
    pub(super) fn start(self: &Rc<Self>, job: Job, data: Data) {
        if let Some(turn) = job.terms.turn {
            self.rounds.touch(turn, job.place);
        }
        let Some(route) = self.route(&job, &[]) else {
            return drop(spawn(retry::finish(self.clone(), job, data, None)));
        };
        match self.command(&job, route.epoch) {
            Some(command) => {
                self.send(route, command, job.place, data, Waiting::First(job));
            }
            None => {
                let ended = Ended::unasked(route);
                drop(spawn(retry::finish(self.clone(), job, data, Some(ended))));
            }
        }
    }

    /// Where a piece goes; none if its chunk's configuration is not known, or if all copies are avoided.
    pub(super) fn route(&self, job: &Job, avoid: &[NodeId]) -> Option<Route> {
        let view = self.view();
        if job.terms.operation != NativeOperation::Read {
            return view.chunks.write_route(job.place.chunk);
        }
        let wanted = job
            .terms
            .turn
            .map(|turn| self.rounds.copy(turn, job.place))
            .and_then(|copy| view.chunks.copy_route(job.place.chunk, copy))
            .filter(|route| !avoid.contains(&route.node));
        wanted.or_else(|| view.chunks.read_route_avoiding(job.place.chunk, avoid))
    }

    /// The nodes that have copies of a chunk in sync; none if its configuration is not known.
    pub(super) fn members(&self, chunk: ChunkIndex) -> Vec<NodeId> {
        let view = self.view();
        let members = view.chunks.config(chunk).map(|config| &config.members);
        members.into_iter().flatten().map(|member| member.node).collect()
    }

    /// The epoch known of a chunk; 0 for none.
    pub(super) fn epoch(&self, chunk: ChunkIndex) -> Epoch {
        self.view()
            .chunks
            .config(chunk)
            .map_or(Epoch(0), |config| config.epoch)
    }

    /// Hands a command to the peers. Returns the attempt's tag and session.
    pub(super) fn send(
        &self,
        route: Route,
        command: NativeCommand,
        place: Place,
        data: Data,
        waiting: Waiting,
    ) -> (u64, u64) {
        let session = if command.operation.changes() && self.claims.is_none() {
            self.sessions.current()
        } else {
            0
        };
        let generation = self.generation.get().wrapping_add(1);
        self.generation.set(generation);
        let is_read = command.operation == NativeOperation::Read;
        let attempt = Attempt {
            generation,
            route,
            chunk: place.chunk,
            is_read,
            session,
            sent: time::turn(),
            waiting,
        };
        let index = self.attempts.borrow_mut().insert(attempt);
        let tag = u64::from(generation) << 32
            | u64::from(u32::try_from(index).expect("fewer than 2^32 commands are under way"));
        self.view.borrow_mut().chunks.started(route, is_read);
        let sink = self.this.upgrade().expect("the caller holds the core");
        self.peers
            .submit(route.node, session, command, place, data, Reply::new(sink, tag));
        self.watch();
        (tag, session)
    }

    fn take(&self, tag: u64) -> Option<Attempt> {
        let (generation, index) = parts_of(tag);
        let mut attempts = self.attempts.borrow_mut();
        match attempts.get(index) {
            Some(attempt) if attempt.generation == generation => Some(attempts.remove(index)),
            _ => None,
        }
    }

    /// Waits for an attempt no more. An answer that comes after all is dropped.
    pub(super) fn forget(&self, tag: u64) {
        if let Some(attempt) = self.take(tag) {
            self.given_up(&attempt);
        }
    }

    /// A node did not answer in time: what it was asked may have been done, or may still be.
    fn given_up(&self, attempt: &Attempt) {
        self.view.borrow_mut().chunks.lost(attempt.route.node);
        if attempt.session != 0 {
            self.sessions.renew(attempt.session);
        }
        self.peers.given_up(attempt.route.node);
    }

    /// A write has ended of which it is not known whether it will still be done: nothing more is written under its claim.
    pub(super) fn leave_claim(&self, job: &Job) {
        if let (Some(claims), Some(number)) = (&self.claims, job.terms.claim) {
            claims.drop_claim(job.place.chunk, number);
        }
    }

    fn note_end(&self, attempt: &Attempt, status: PeerStatus) {
        let mut view = self.view.borrow_mut();
        let took = attempt.is_read.then(|| time::turn().since(attempt.sent));
        match status {
            PeerStatus::Answered(status) => drop(view.chunks.finished(attempt.route, took, status)),
            PeerStatus::Failed(_) => drop(view.chunks.finished(attempt.route, took, Status::DeviceFailed)),
            PeerStatus::Unreachable | PeerStatus::Lost => view.chunks.lost(attempt.route.node),
        }
    }

    /// Asks for a newer map, unless that is under way already. [`Core::refreshed`] tells of the end.
    pub(super) fn refresh(self: &Rc<Self>) {
        if self.refreshing.replace(true) {
            return;
        }
        let core = self.clone();
        drop(spawn(async move {
            // A source that is slow is asked again by whoever still needs it.
            let _ = time::timeout(REFRESH_LIMIT, core.source.refresh()).await;
            core.look_at_map();
            core.refreshing.set(false);
            core.refreshed.notify();
        }));
    }

    /// Sees to it that first attempts end at their time limit, and that silent nodes are noticed. One task for all of them,
    /// which looks at them a few times in each limit and ends when there are none: requests pay no timer.
    fn watch(&self) {
        if self.attempts.borrow().is_empty() || self.watching.replace(true) {
            return;
        }
        let period = (self.options.time_limit / 16).min(self.options.silence / 4);
        let weak = self.this.clone();
        drop(spawn(async move {
            loop {
                time::sleep(period).await;
                let Some(core) = weak.upgrade() else { return };
                core.end_late_attempts();
                core.look_for_silence(period);
                if core.attempts.borrow().is_empty() {
                    core.watching.set(false);
                    return;
                }
            }
        }));
    }

    fn end_late_attempts(self: &Rc<Self>) {
        let now = time::now();
        loop {
            let late = {
                let mut attempts = self.attempts.borrow_mut();
                let index = attempts
                    .iter()
                    .find_map(|(index, attempt)| match &attempt.waiting {
                        Waiting::First(job) if job.terms.deadline <= now => Some(index),
                        _ => None,
                    });
                index.map(|index| attempts.remove(index))
            };
            let Some(attempt) = late else { return };
            self.given_up(&attempt);
            if let Waiting::First(job) = attempt.waiting {
                self.leave_claim(&job);
                job.finish(self, Err(IoError::Unavailable), Data::None);
            }
        }
    }
}

impl AnswerSink for Core {
    fn waits(&self, tag: u64) -> bool {
        let (generation, index) = parts_of(tag);
        let attempts = self.attempts.borrow();
        attempts
            .get(index)
            .is_some_and(|attempt| attempt.generation == generation)
    }

    fn answer(&self, tag: u64, answer: Answer) {
        let Some(attempt) = self.take(tag) else { return };
        self.note_end(&attempt, answer.status);
        let core = self.this.upgrade().expect("the reply holds the core");
        match attempt.waiting {
            Waiting::First(job) if answer.status == PeerStatus::Answered(Status::Done) => {
                if let Some(turn) = job.terms.turn {
                    self.rounds
                        .hear(turn, job.place, attempt.route.node, answer.status);
                }
                job.finish(&core, Ok(()), answer.data);
            }
            Waiting::First(job) => {
                let ended = Ended {
                    node: attempt.route.node,
                    epoch: attempt.route.epoch,
                    session: attempt.session,
                    status: answer.status,
                };
                drop(spawn(retry::finish(core, job, answer.data, Some(ended))));
            }
            Waiting::Retry(sender, _) => sender.send(answer),
        }
    }
}
