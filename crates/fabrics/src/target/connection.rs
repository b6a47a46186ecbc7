//! One TCP connection: one queue of one controller.
//!
//! The receiving task feeds bytes to the protocol core and starts commands; completions, whenever they come, append
//! to the batch that is filling; the sending task takes the whole batch each time the socket is free. Cost of a 4 KiB
//! read from memory: no system call of its own (shared with its batch), one copy, no allocation, no task.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bdev::{Completion as DeviceCompletion, Data, Sink};
use foundation::checksum::crc32c;
use protocols::nvme::{Command, Completion, Status};
use protocols::tcp::Termination;
use protocols::tcp::target::{Event, Target as Protocol};
use reactor::net::{SendBatch, TcpReceiver, TcpSender, TcpStream};
use reactor::sync::Notify;
use reactor::{Buffer, BufferMut, BufferPool, spawn, time};

use super::admin::AdminQueue;
use super::io::IoQueue;
use super::queue::{Answer, Order, Queue, QueueState, data_length};
use super::server::Shared;

/// What a connection that is being ended may still take to send its last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A command that has not been answered.
#[derive(Default)]
struct Slot {
    command: Option<Command>,
    /// Where the host's data goes while it arrives.
    filling: Option<BufferMut>,
    /// No buffer could be had: the data is passed over and the command fails.
    refused: bool,
}

pub(super) struct Connection {
    own: Weak<Connection>,
    pub(super) shared: Rc<Shared>,
    pool: BufferPool,
    state: RefCell<State>,
    queue: QueueState,
    /// Something is in the batch, or the connection ended.
    ready: Notify,
    ended: Cell<bool>,
    end: Notify,
}

struct State {
    protocol: Protocol,
    out: SendBatch,
    slots: Vec<Slot>,
}

impl Connection {
    /// Serves the connection until either side ends it.
    pub(super) async fn run(stream: TcpStream, shared: Rc<Shared>) {
        let peer = stream.peer_address();
        let local = stream.local_address();
        let connection = Rc::new_cyclic(|own| Self {
            own: own.clone(),
            shared,
            pool: BufferPool::current(),
            state: RefCell::new(State {
                protocol: Protocol::new(),
                out: SendBatch::new(),
                slots: vec![Slot::default()],
            }),
            queue: QueueState::new(peer, local),
            ready: Notify::new(),
            ended: Cell::new(false),
            end: Notify::new(),
        });
        let (receiver, sender) = stream.split();
        let sending = spawn(connection.clone().send_batches(sender));
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
        connection.queue.disconnected();
        if time::timeout(LAST_WORDS, sending).await.is_err() {
            tracing::debug!(%peer, "the host did not take the last bytes");
        }
    }

    /// Ends the connection after what is already in the batch.
    pub(super) fn finish(&self) {
        self.ended.set(true);
        self.end.notify();
        self.ready.notify();
    }

    async fn send_batches(self: Rc<Self>, mut sender: TcpSender) {
        let mut spare = SendBatch::new();
        loop {
            self.ready
                .until(|| self.ended.get() || !self.state.borrow().out.is_empty())
                .await;
            let batch = std::mem::replace(&mut self.state.borrow_mut().out, spare);
            if batch.is_empty() {
                sender.shutdown();
                return;
            }
            let (result, emptied) = sender.send(batch).await;
            spare = emptied;
            if result.is_err() {
                self.finish();
                return;
            }
        }
    }

    async fn receive_commands(&self, mut receiver: TcpReceiver) -> Result<(), Ended> {
        while let Some(bytes) = receiver.receive().await.map_err(Ended::Socket)? {
            self.take(&bytes)?;
            drop(bytes);
            while let Some(more) = receiver.try_receive() {
                self.take(&more)?;
            }
            self.flush();
        }
        Ok(())
    }

    /// Wakes the sender if there is something to send.
    fn flush(&self) {
        if !self.state.borrow().out.is_empty() {
            self.ready.notify();
        }
    }

    fn take(&self, mut input: &[u8]) -> Result<(), Ended> {
        loop {
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
                    self.queue.command_fetched();
                    self.begin(slot, command, in_capsule_length);
                }
                Some(Event::Payload { slot, offset, bytes }) => self.fill(slot, offset, bytes),
                Some(Event::PayloadComplete { slot, digest_ok }) => self.filled(slot, digest_ok),
                Some(Event::HostTermination(termination)) => {
                    tracing::warn!(peer = %self.queue.peer(), %termination, "the host ended the connection");
                    self.finish();
                    return Ok(());
                }
            }
        }
        let mut state = self.state.borrow_mut();
        let State { protocol, out, .. } = &mut *state;
        protocol.poll_transmit(out.headers());
        Ok(())
    }

    /// A command has come: execute it, or gather its data first.
    fn begin(&self, slot: u16, command: Command, in_capsule_length: u32) {
        let in_capsule = in_capsule_length as usize;
        {
            let mut state = self.state.borrow_mut();
            let entry = &mut state.slots[usize::from(slot)];
            *entry = Slot {
                command: Some(command),
                ..Slot::default()
            };
            if in_capsule > 0 {
                match self.pool.try_allocate(in_capsule) {
                    Ok(buffer) => entry.filling = Some(buffer),
                    Err(_) => entry.refused = true,
                }
                return;
            }
        }
        match data_length(&command) {
            Ok(0) => self.execute(slot, command, Buffer::empty()),
            Ok(length) => self.ask(slot, length),
            Err(status) => self.answer(slot, Answer::status(status)),
        }
    }

    /// Asks the host for the command's data, once there is a buffer for it.
    fn ask(&self, slot: u16, length: usize) {
        match self.pool.try_allocate(length) {
            Ok(buffer) => self.ask_into(slot, buffer),
            Err(reactor::buffer::AllocateError::TooLong { .. }) => {
                self.answer(slot, Answer::status(Status::INVALID_FIELD_IN_COMMAND));
            }
            Err(reactor::buffer::AllocateError::Exhausted { .. }) => {
                let connection = self.own();
                drop(spawn(async move {
                    if let Ok(buffer) = connection.pool.allocate(length).await
                        && !connection.ended.get()
                    {
                        connection.ask_into(slot, buffer);
                        connection.flush();
                    }
                }));
            }
        }
    }

    fn ask_into(&self, slot: u16, buffer: BufferMut) {
        let mut state = self.state.borrow_mut();
        let State { protocol, out, slots } = &mut *state;
        let length = u32::try_from(buffer.len()).expect("pool buffers are at most 1 MiB");
        slots[usize::from(slot)].filling = Some(buffer);
        protocol.request_data(slot, length, out.headers());
    }

    fn fill(&self, slot: u16, offset: u32, bytes: &[u8]) {
        let mut state = self.state.borrow_mut();
        if let Some(buffer) = &mut state.slots[usize::from(slot)].filling {
            let start = offset as usize;
            buffer[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn filled(&self, slot: u16, digest_ok: bool) {
        let (command, buffer, refused) = {
            let mut state = self.state.borrow_mut();
            let entry = &mut state.slots[usize::from(slot)];
            (entry.command, entry.filling.take(), entry.refused)
        };
        let Some(command) = command else { return };
        match buffer {
            _ if !digest_ok => self.answer(slot, Answer::status(Status::TRANSIENT_TRANSPORT_ERROR)),
            Some(buffer) => self.execute(slot, command, buffer.freeze()),
            None if refused => self.answer(slot, Answer::status(Status::COMMAND_INTERRUPTED)),
            None => self.answer(slot, Answer::status(Status::INTERNAL_ERROR)),
        }
    }

    fn execute(&self, slot: u16, command: Command, data: Buffer) {
        if command.is_fabrics() {
            return self.answer_later(slot, super::admin::fabrics(self, &command, &data));
        }
        match self.queue.get() {
            Queue::New => self.answer(slot, Answer::status(Status::COMMAND_SEQUENCE_ERROR)),
            Queue::Admin(admin) => {
                let answer = AdminQueue::execute(&admin, self, slot, &command, &data);
                self.answer_later(slot, answer);
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

    /// Whether nobody waits for answers any more.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Makes room for the queue's commands, as Connect told.
    pub(super) fn resize(&self, entries: u32, kind: protocols::tcp::target::QueueKind) {
        let mut state = self.state.borrow_mut();
        state.protocol.set_queue_size(entries, kind);
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
        }
    }

    /// Answers a command with little or no data.
    pub(super) fn answer(&self, slot: u16, answer: Answer) {
        if self.ended.get() {
            return;
        }
        let mut data = Buffer::empty();
        let mut completion = answer.completion;
        if !answer.data.is_empty() && completion.status().is_success() {
            match self.pool.try_allocate(answer.data.len()) {
                Ok(mut buffer) => {
                    buffer.copy_from_slice(&answer.data);
                    data = buffer.freeze();
                }
                Err(_) => completion = completion.with_status(Status::COMMAND_INTERRUPTED),
            }
        }
        self.finish_command(slot, completion, data);
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
        let State { protocol, out, slots } = &mut *state;
        let Some(command) = slots[usize::from(slot)].command.take() else {
            return;
        };
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
            let completion = completion.with_cid(command.cid()).with_sqhd(self.queue.head());
            protocol.response(slot, &completion, out.headers());
        }
    }
}

impl Sink for Connection {
    /// A device has finished the command in slot `tag`, perhaps inside `submit`.
    fn complete(&self, tag: u64, completion: DeviceCompletion) {
        if self.ended.get() {
            return;
        }
        let slot = u16::try_from(tag).expect("tags are slots");
        let status = match completion.status {
            Ok(()) => Status::SUCCESS,
            Err(error) => crate::status::status_of(error),
        };
        let data = match completion.data {
            Data::Into(buffer) if status.is_success() => buffer.freeze(),
            _ => Buffer::empty(),
        };
        self.finish_command(slot, Completion::new(0, status), data);
        self.ready.notify();
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
    let (sender, mut mailbox) = reactor::mailbox::mailbox(16);
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
