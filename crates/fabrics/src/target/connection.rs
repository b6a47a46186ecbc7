//! One TCP connection: one queue of one controller.
//!
//! The receiving task feeds bytes to the protocol core and starts commands; completions, whenever they come, append
//! to the batch that is filling; the sending task takes the whole batch each time the socket is free. Cost of a 4 KiB
//! read from memory: no system call of its own (shared with its batch), one copy, no allocation, no task.

mod below;
mod data;
mod drain;
mod leave;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use foundation::Instant;
use foundation::checksum::crc32c;
use protocols::nvme::command::Fuse;
use protocols::nvme::{Command, Completion, Status};
use protocols::tcp::target::{Event, Target as Protocol};
use protocols::tcp::{Fault, Termination};
use reactor::net::SendBatch;
use reactor::sync::Notify;
use reactor::{Buffer, BufferPool, spawn, time};

use data::HostData;

use super::admin::AdminQueue;
use super::allowance::Allowance;
use super::gate::Gate;
use super::histogram::Took;
use super::io::IoQueue;
use super::meter::{Kind, Writer};
use super::patience::Progress;
use super::queue::{Answer, ORDERS_MAX, Order, Queue, QueueState, answer_bytes, check_room, data_length};
use super::server::Shared;
use crate::secure::{Proven, Received, Receiver, Sender, Stream};

/// What the answers of an admin queue may hold together: it is open to hosts that have proved nothing.
const ADMIN_HELD_BYTES: usize = 64 << 10;
/// What a connection that is being ended may still take to send its last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A command that has not been answered.
#[derive(Default)]
struct Slot {
    command: Option<Command>,
    data: HostData,
    /// Since when the host's data is due.
    due: Option<Instant>,
    /// What the command has of the connection's allowance, in bytes.
    held_bytes: usize,
    /// Tells this command from others that have had the slot.
    serial: u64,
    /// It has not begun: it waits for the allowance or for a buffer.
    waits: bool,
    /// It is inside this gate, for as long as it is in the device.
    gate: Option<Rc<Gate>>,
    /// Where it is to be submitted, if leave had to be asked.
    leave: Option<Rc<dyn bdev::Channel>>,
    measured: Option<Measured>,
}

/// A command that is counted, and since when it is here.
#[derive(Clone)]
struct Measured {
    meter: Rc<Writer>,
    kind: Kind,
    /// What it moves if it succeeds.
    bytes: u32,
    began: Instant,
}

pub(super) struct Connection {
    own: Weak<Connection>,
    pub(super) shared: Rc<Shared>,
    pool: BufferPool,
    allowance: Allowance,
    progress: Progress,
    state: RefCell<State>,
    /// Whom a TLS handshake proved.
    pub(super) proven: Option<Proven>,
    queue: QueueState,
    /// Something is in the batch, or the connection ended.
    ready: Notify,
    ended: Cell<bool>,
    end: Notify,
    /// Commands that a device has.
    below: Cell<u32>,
    next_serial: Cell<u64>,
    /// When the reactor took in what is being looked at.
    taken_in: Cell<Instant>,
    /// A read whose blocks are being fetched.
    ahead: Cell<Option<(u16, Command)>>,
}

struct State {
    protocol: Protocol,
    out: SendBatch,
    slots: Vec<Slot>,
    /// Answers in `out`: the host cannot have seen them, so to it these commands are outstanding.
    answers: usize,
    /// What the data in `out` has of the allowance, in bytes.
    out_held_bytes: usize,
    /// The counted commands whose answers are in `out`.
    out_measured: Vec<Measured>,
}

impl Connection {
    /// Serves the connection until either side ends it.
    pub(super) async fn run(stream: Stream, shared: Rc<Shared>) {
        let Stream {
            receiver,
            sender,
            peer,
            local,
            proven,
            ..
        } = stream;
        let connection = Rc::new_cyclic(|own| Self {
            own: own.clone(),
            allowance: Allowance::new(shared.options.held_bytes_max),
            progress: Progress::new(),
            shared,
            pool: BufferPool::current(),
            state: RefCell::new(State {
                protocol: Protocol::new(),
                out: SendBatch::new(),
                slots: vec![Slot::default()],
                answers: 0,
                out_held_bytes: 0,
                out_measured: Vec::new(),
            }),
            proven,
            queue: QueueState::new(peer, local),
            ready: Notify::new(),
            ended: Cell::new(false),
            end: Notify::new(),
            below: Cell::new(0),
            next_serial: Cell::new(0),
            taken_in: Cell::new(time::turn()),
            ahead: Cell::new(None),
        });
        connection.shared.watched.add(&connection);
        let mut sending = spawn(connection.clone().send_batches(sender));
        let ended = connection.end.until(|| connection.ended.get());
        match first_of(connection.receive_commands(receiver), ended).await {
            Some(Ok(())) | None => {}
            Some(Err(Ended::Socket(error))) => tracing::debug!(%peer, %error, "connection lost"),
            Some(Err(Ended::Protocol(termination))) => {
                tracing::warn!(%peer, %termination, "connection terminated");
                let mut state = connection.state.borrow_mut();
                let State { protocol, out, .. } = &mut *state;
                protocol.terminate(&termination, out.headers());
            }
        }
        connection.finish();
        connection.let_go();
        connection.shared.counts.closed(&connection.queue.get());
        connection.queue.disconnected();
        if time::timeout(LAST_WORDS, &mut sending).await.is_err() {
            tracing::debug!(%peer, "the host did not take the last bytes");
            // Otherwise the batch and the socket would stay for as long as the host likes.
            sending.abort();
        }
    }

    /// Ends the connection after what is already in the batch.
    pub(super) fn finish(&self) {
        if !self.ended.replace(true) {
            // Before anybody else runs: a Connect that comes next must find the commands still below.
            self.queue.lost();
            self.settle();
        }
        self.end.notify();
        self.ready.notify();
    }

    /// Gives back what was gathered for commands that will not begin. Those of them that wait for a buffer hold the connection, and would
    /// wait for these.
    fn let_go(&self) {
        for entry in &mut self.state.borrow_mut().slots {
            entry.data = HostData::Nothing;
        }
    }

    async fn send_batches(self: Rc<Self>, mut sender: Sender) {
        let mut spare = SendBatch::new();
        let mut measured = Vec::new();
        loop {
            self.ready
                .until(|| self.ended.get() || !self.state.borrow().out.is_empty())
                .await;
            let (batch, held_bytes) = {
                let mut state = self.state.borrow_mut();
                state.answers = 0;
                let held_bytes = std::mem::take(&mut state.out_held_bytes);
                std::mem::swap(&mut state.out_measured, &mut measured);
                (std::mem::replace(&mut state.out, spare), held_bytes)
            };
            if batch.is_empty() {
                sender.close().await;
                return;
            }
            self.progress.sending.set(true);
            let (result, emptied) = sender.send(batch).await;
            self.progress.note_sent();
            self.allowance.release(held_bytes);
            spare = emptied;
            if result.is_err() {
                self.finish();
                return;
            }
            let now = time::turn();
            self.count_sent(&mut measured, now);
            self.resume_commands();
        }
    }

    /// The socket has the answers of these commands.
    fn count_sent(&self, measured: &mut Vec<Measured>, now: Instant) {
        let queue = self.queue.get();
        for command in measured.drain(..) {
            let took = Took::new(command.kind, now - command.began);
            command.meter.sent(took);
            self.shared.counts.sent(took);
            if let Queue::Io(io) = &queue {
                io.note_sent(took);
            }
        }
    }

    /// Goes on with the commands that waited for the connection's allowance. Every command's end is followed by a
    /// send, so it is enough to look here.
    fn resume_commands(&self) {
        while !self.ended.get()
            && let Some((slot, bytes)) = self.allowance.next_granted()
        {
            let command = {
                let mut state = self.state.borrow_mut();
                let entry = &mut state.slots[usize::from(slot)];
                entry.held_bytes = bytes;
                entry.waits = false;
                entry.command
            };
            if let Some(command) = command {
                self.start(slot, command);
            }
        }
    }

    /// Whether the command in `slot` may hold so many bytes now, one at least; if not, it is started again later.
    pub(super) fn may_hold(&self, slot: u16, bytes: usize) -> bool {
        debug_assert!(bytes > 0, "what holds nothing waits for nothing");
        let mut state = self.state.borrow_mut();
        let entry = &mut state.slots[usize::from(slot)];
        if entry.held_bytes == 0 {
            if !self.allowance.grant(slot, bytes) {
                entry.waits = true;
                return false;
            }
            entry.held_bytes = bytes;
        }
        true
    }

    /// The command in `slot` waits for a buffer: its number, to know it again.
    pub(super) fn wait_for_buffer(&self, slot: u16) -> u64 {
        let mut state = self.state.borrow_mut();
        let entry = &mut state.slots[usize::from(slot)];
        entry.waits = true;
        entry.serial
    }

    /// Goes on after [`Connection::wait_for_buffer`]; false if the command is no longer there.
    pub(super) fn has_buffer(&self, slot: u16, serial: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let entry = &mut state.slots[usize::from(slot)];
        let there = !self.ended.get() && entry.serial == serial && entry.command.is_some();
        if there {
            entry.waits = false;
        }
        there
    }

    /// Counts the command in `slot` with `meter` when it is answered; false if it was counted with another so far.
    pub(super) fn measure(&self, slot: u16, meter: &Rc<Writer>, kind: Kind, bytes: u32) -> bool {
        let mut state = self.state.borrow_mut();
        let measured = &mut state.slots[usize::from(slot)].measured;
        let began = measured.as_ref().map(|measured| measured.began);
        *measured = Some(Measured {
            meter: meter.clone(),
            kind,
            bytes,
            began: began.unwrap_or_else(|| self.taken_in.get()),
        });
        began.is_none()
    }

    /// Aborts a command that has not begun; false if there is none, or it cannot be stopped any more.
    pub(super) fn abort(&self, cid: u16) -> bool {
        let slot = {
            let state = self.state.borrow();
            state.slots.iter().position(|entry| {
                entry.waits
                    && entry
                        .command
                        .is_some_and(|command| command.cid() == cid && command.fuse() == Fuse::Normal)
            })
        };
        let Some(slot) = slot.and_then(|slot| u16::try_from(slot).ok()) else {
            return false;
        };
        if self.ended.get() {
            return false;
        }
        self.allowance.forget(slot);
        self.answer(slot, Answer::status(Status::ABORT_REQUESTED));
        self.flush();
        true
    }

    /// The identifier of the command in `slot`, if there is one.
    pub(super) fn cid(&self, slot: u16) -> Option<u16> {
        let state = self.state.borrow();
        let command = state.slots.get(usize::from(slot))?.command;
        command.map(|command| command.cid())
    }

    async fn receive_commands(&self, mut receiver: Receiver) -> Result<(), Ended> {
        while let Some(bytes) = receiver.receive().await.map_err(Ended::Socket)? {
            self.taken_in.set(time::turn());
            self.take(bytes)?;
            while let Some(more) = receiver.try_receive() {
                self.take(more)?;
            }
            self.flush();
        }
        Ok(())
    }

    /// Wakes the sender if there is something to send.
    pub(super) fn flush(&self) {
        if !self.state.borrow().out.is_empty() {
            self.ready.notify();
        }
    }

    fn take(&self, received: Received<'_>) -> Result<(), Ended> {
        match received {
            Received::Plain(bytes) => {
                let bytes = Buffer::from(bytes);
                self.take_in(&bytes, Some(&bytes))
            }
            Received::Secure(bytes) => self.take_in(bytes, None),
        }
    }

    /// Takes bytes in; `shared` if what they are part of can be kept.
    fn take_in(&self, mut input: &[u8], shared: Option<&Buffer>) -> Result<(), Ended> {
        loop {
            if self.ended.get() {
                // What a lost connection had not read is not begun any more.
                return Ok(());
            }
            let event = self
                .state
                .borrow_mut()
                .protocol
                .receive(&mut input)
                .map_err(Ended::Protocol)?;
            match event {
                None => break,
                Some(Event::Initialize(_)) => {
                    let mut state = self.state.borrow_mut();
                    let State { protocol, out, .. } = &mut *state;
                    protocol.accept(self.shared.options.limits, out.headers());
                }
                Some(Event::Command {
                    slot,
                    command,
                    in_capsule_length,
                }) => {
                    self.check_outstanding()?;
                    self.queue.command_fetched();
                    self.begin(slot, command, in_capsule_length);
                }
                Some(Event::Payload { slot, offset, bytes }) => self.fill(slot, offset, bytes, shared),
                Some(Event::PartComplete { slot, digest_ok }) => self.part_filled(slot, digest_ok),
                Some(Event::PayloadComplete { slot, digest_ok }) => self.filled(slot, digest_ok),
                Some(Event::HostTermination(termination)) => {
                    tracing::warn!(peer = %self.queue.peer(), %termination, "the host ended the connection");
                    self.finish();
                    return Ok(());
                }
            }
        }
        self.start_ahead();
        let mut state = self.state.borrow_mut();
        let State { protocol, out, .. } = &mut *state;
        protocol.poll_transmit(out.headers());
        Ok(())
    }

    /// A host reuses a place in its queue when it has seen the answer. So commands without an answer and
    /// answers that have not begun to leave are never more than the queue holds; a host that takes no answers and
    /// sends on would fill our memory with them.
    fn check_outstanding(&self) -> Result<(), Ended> {
        let state = self.state.borrow();
        let entries = state.slots.len();
        if state.protocol.outstanding() as usize + state.answers > entries {
            let fault =
                Fault::QueueOverflow(u32::try_from(entries).expect("queues have at most 65,536 entries"));
            return Err(Ended::Protocol(fault.into()));
        }
        Ok(())
    }

    /// A command has come: execute it, or gather its data first.
    fn begin(&self, slot: u16, command: Command, in_capsule_length: u32) {
        let in_capsule = in_capsule_length as usize;
        {
            let mut state = self.state.borrow_mut();
            let entry = &mut state.slots[usize::from(slot)];
            let serial = self.next_serial.get();
            self.next_serial.set(serial + 1);
            *entry = Slot {
                command: Some(command),
                serial,
                ..Slot::default()
            };
        }
        let earlier = self.ahead.take();
        let waits = in_capsule == 0 && self.is_fetched_ahead(&command);
        if let Some((slot, command)) = earlier {
            self.start(slot, command);
        }
        if waits {
            return self.ahead.set(Some((slot, command)));
        }
        if let Some(status) = self.pair(slot, &command) {
            self.count_failed(slot, &command);
            return self.answer(slot, Answer::refuse(status));
        }
        {
            let mut state = self.state.borrow_mut();
            let entry = &mut state.slots[usize::from(slot)];
            if in_capsule > 0 {
                entry.data = HostData::InCapsule(in_capsule);
                entry.due = Some(self.taken_in.get());
                self.progress.gathering.set(self.progress.gathering.get() + 1);
                return;
            }
        }
        if !command.is_fabrics()
            && let Some(answer) = self.queue.too_early()
        {
            // Nothing is asked for or allocated for a host that has not said who it is, or not proved it.
            return self.answer(slot, answer);
        }
        self.start(slot, command);
    }

    /// Whether a command is a read whose blocks its device has begun to fetch. It starts when the next one has come, or when
    /// all that has arrived is read: so much earlier its blocks are on their way.
    fn is_fetched_ahead(&self, command: &Command) -> bool {
        if command.is_fabrics() || self.queue.is_barred() || self.queue.expects_half() {
            return false;
        }
        matches!(self.queue.get(), Queue::Io(io) if io.fetch_ahead(command))
    }

    fn start_ahead(&self) {
        if let Some((slot, command)) = self.ahead.take() {
            self.start(slot, command);
        }
    }

    /// Shows a command to those who look for fused ones; a status if it cannot be taken.
    fn pair(&self, slot: u16, command: &Command) -> Option<Status> {
        if command.fuse() == Fuse::Normal && !self.queue.expects_half() || self.queue.is_barred() {
            return None;
        }
        match self.queue.get() {
            Queue::Io(io) => io.pair(self, slot, command.fuse()),
            Queue::Admin(_) | Queue::New => Some(Status::INVALID_FIELD_IN_COMMAND),
        }
    }

    /// Starts a command without in-capsule data, perhaps for the second time.
    fn start(&self, slot: u16, command: Command) {
        match data_length(&command) {
            Ok(0) => self.execute(slot, command, Buffer::empty()),
            Ok(length) if self.has_leave(slot, &command) => self.ask(slot, length),
            Ok(_) => {}
            // Another attempt would not be different.
            Err(status) => self.fail(slot, &command, Answer::refuse(status)),
        }
    }

    /// An I/O command fails before it reaches its namespace.
    fn count_failed(&self, slot: u16, command: &Command) {
        if let Queue::Io(io) = self.queue.get() {
            io.measure_failed(self, slot, command);
        }
    }

    /// Answers a command that fails before it has its data; the other half of a fused one fails with it.
    fn fail(&self, slot: u16, command: &Command, answer: Answer) {
        self.count_failed(slot, command);
        if command.fuse() != Fuse::Normal
            && let Queue::Io(io) = self.queue.get()
        {
            io.half_failed(self, slot);
        }
        self.answer(slot, answer);
    }

    fn execute(&self, slot: u16, command: Command, data: Buffer) {
        if command.is_fabrics() {
            return self.answer_later(slot, super::admin::fabrics(self, slot, &command, &data));
        }
        if self.queue.is_barred() {
            // Its data came in the capsule.
            return self.answer(slot, Answer::refuse(Status::AUTHENTICATION_REQUIRED));
        }
        match self.queue.get() {
            Queue::New => self.answer(slot, Answer::refuse(Status::COMMAND_SEQUENCE_ERROR)),
            Queue::Admin(admin) => {
                // A host may ask for a queue full of long answers and take none of them.
                let bytes = answer_bytes(&command);
                if bytes > 0 && !self.may_hold(slot, bytes) {
                    return;
                }
                let answer = AdminQueue::execute(&admin, self, slot, &command, &data);
                self.answer_later(slot, answer.map(|answer| check_room(&command, answer)));
            }
            Queue::Io(io) => IoQueue::execute(&io, self, slot, &command, data),
        }
    }

    fn answer_later(&self, slot: u16, answer: Option<Answer>) {
        if let Some(answer) = answer {
            self.answer(slot, answer);
        }
    }

    pub(super) fn own(&self) -> Rc<Self> {
        self.own.upgrade().expect("a connection is alive while it runs")
    }

    pub(super) fn queue(&self) -> &QueueState {
        &self.queue
    }

    pub(super) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Whether some command's data has been due for longer than `limit`.
    pub(super) fn is_data_overdue(&self, now: Instant, limit: Duration) -> bool {
        let overdue = |entry: &Slot| entry.due.is_some_and(|since| now - since > limit);
        self.progress.gathering.get() > 0 && self.state.borrow().slots.iter().any(overdue)
    }

    /// Whether nobody waits for answers any more.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Makes room for the queue's commands, as Connect told.
    pub(super) fn resize(&self, entries: u32, kind: protocols::tcp::target::QueueKind) {
        let mut state = self.state.borrow_mut();
        state.protocol.set_queue_size(entries, kind);
        if kind == protocols::tcp::target::QueueKind::Admin {
            self.allowance.narrow(ADMIN_HELD_BYTES);
        }
        state.slots.resize_with(entries as usize, Slot::default);
    }

    /// Carries out what another core's controller asks.
    pub(super) fn order(&self, order: Order) {
        match order {
            Order::End => self.finish(),
            Order::Events => {
                if let Queue::Admin(admin) = self.queue.get() {
                    AdminQueue::send_events(&admin, self);
                    self.flush();
                }
            }
            Order::Namespaces => {
                if let Queue::Io(io) = self.queue.get() {
                    io.look_at_namespaces();
                }
            }
            Order::Drain(nsid, done) => self.drain(nsid, done),
            Order::Abort(cid, answer) => {
                // Who asked may have gone.
                let _ = answer.try_send(self.abort(cid));
            }
        }
    }

    /// Answers a command with data that are no blocks, or with none. They stay where they were made: the pool is for blocks, and a host
    /// does not begin a command again that another one's blocks leave no room for.
    pub(super) fn answer(&self, slot: u16, answer: Answer) {
        if self.ended.get() {
            return;
        }
        let data = match answer.completion.status().is_success() {
            true => Buffer::from(answer.data),
            false => Buffer::empty(),
        };
        self.finish_command(slot, answer.completion, data);
    }

    /// A handler has answered a command.
    pub(super) fn reply(&self, slot: u16, completion: Completion, data: Buffer) {
        if !self.ended.get() {
            self.finish_command(slot, completion, data);
            self.ready.notify();
        }
    }

    /// Appends a command's data and completion to the batch.
    fn finish_command(&self, slot: u16, completion: Completion, data: Buffer) {
        let mut state = self.state.borrow_mut();
        let State {
            protocol,
            out,
            slots,
            answers,
            out_held_bytes,
            out_measured,
        } = &mut *state;
        let entry = &mut slots[usize::from(slot)];
        let Some(command) = entry.command.take() else {
            return;
        };
        entry.waits = false;
        entry.leave = None;
        let held_bytes = std::mem::take(&mut entry.held_bytes);
        if data.is_empty() {
            self.allowance.release(held_bytes);
        } else {
            *out_held_bytes += held_bytes;
        }
        *answers += 1;
        if let Some(measured) = entry.measured.take() {
            let Measured {
                meter, kind, bytes, ..
            } = &measured;
            meter.answered(*kind, *bytes, completion.status());
            self.shared.counts.answered(*kind, *bytes, completion.status());
            out_measured.push(measured);
        }
        let mut done = false;
        if !data.is_empty() {
            let length = u32::try_from(data.len()).expect("pool buffers are at most 1 MiB");
            done = self.shared.options.success_flag
                && completion.status().is_success()
                && completion.result_u64() == 0;
            protocol.data_header(slot, 0, length, true, done, out.headers());
            let crc = protocol.has_data_digest().then(|| crc32c(&data));
            out.push(data);
            if let Some(crc) = crc {
                protocol.data_trailer(crc, out.headers());
            }
        }
        if !done {
            let mut completion = completion.with_cid(command.cid()).with_sqhd(self.queue.head());
            if !completion.status().is_success() {
                completion = self.queue.note_error(&command, completion);
            }
            protocol.response(slot, &completion, out.headers());
        }
    }
}

enum Ended {
    Socket(std::io::Error),
    Protocol(Termination),
}

/// The first future's result, or `None` if the second ended first.
async fn first_of<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    poll_fn(|cx| {
        if let Poll::Ready(result) = first.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        second.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// The controller's way to a connection on another core.
pub(super) fn listen_for_orders(connection: &Rc<Connection>) -> reactor::mailbox::MailboxSender<Order> {
    let (sender, mut mailbox) = reactor::mailbox::mailbox(ORDERS_MAX);
    let weak = Rc::downgrade(connection);
    drop(spawn(async move {
        while let Some(order) = mailbox.recv().await {
            let Some(connection) = weak.upgrade() else { return };
            connection.order(order);
        }
    }));
    sender
}

/// A controller is shared by the queues of its association, which may be on several cores.
pub(super) type SharedController = Arc<super::controller::Controller>;
