//! One connection to a target: one queue pair.
//!
//! Commands that are submitted in one turn of the reactor leave in one vectored send; received data goes straight
//! from the shared receive buffer to the caller's. A completion is handed over without a task or an allocation.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use bdev::{Data, IoError, Token};
use foundation::Instant;
use foundation::checksum::crc32c;
use protocols::nvme::{Command, Completion, Status};
use protocols::tcp::initiator::{Direction, Event, Initiator as Protocol, Options, Transfer};
use protocols::tls::Psk;
use reactor::net::{SendBatch, TcpOptions, TcpStream};
use reactor::sync::Notify;
use reactor::{Buffer, JoinHandle, spawn, time};

use super::controller::ConnectError;
use crate::secure::{self, Receiver, Sender, Stream};

/// How long the end of a connection may take to be told.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Debug)]
pub struct CommandResult {
    /// The target's completion; `None` if the connection was lost before it came.
    pub completion: Option<Completion>,
    /// The command's buffer.
    pub data: Data,
    /// How much data came from the target, in bytes.
    pub received_bytes: usize,
}

impl CommandResult {
    /// The status; "path lost" without a completion.
    pub fn status(&self) -> Status {
        self.completion
            .map_or(Status::INTERNAL_PATH_ERROR, |completion| completion.status())
    }

    /// Whether less data came from the target than there is room for. A target that says so of a read that succeeded is in
    /// error: the rest of the buffer holds what it held before.
    pub fn is_short(&self) -> bool {
        is_short(&self.data, self.received_bytes)
    }
}

fn is_short(data: &Data, received_bytes: usize) -> bool {
    matches!(data, Data::Into(buffer) if received_bytes < buffer.len())
}

#[derive(Default)]
struct Waiter {
    result: RefCell<Option<CommandResult>>,
    waker: RefCell<Option<Waker>>,
}

/// Receives the ends of raw commands; the tag is the one given to [`Queue::submit_raw`].
pub trait CommandSink {
    /// Takes a command's end, perhaps from inside `submit_raw`.
    fn ended(&self, tag: u64, result: CommandResult);

    /// Whether the command is wanted still. One that is not when its turn comes to be sent ends without a completion instead.
    fn wants(&self, tag: u64) -> bool;
}

/// Who is told of a command's end.
enum Completer {
    Device(Token),
    Waiter(Rc<Waiter>),
    Sink(Rc<dyn CommandSink>, u64),
    /// It was given up.
    Nobody,
}

impl Completer {
    fn is_wanted(&self) -> bool {
        match self {
            Completer::Sink(sink, tag) => sink.wants(*tag),
            Completer::Device(_) | Completer::Waiter(_) | Completer::Nobody => true,
        }
    }

    fn complete(self, result: CommandResult) {
        match self {
            Completer::Device(token) => {
                let status = match result.completion {
                    Some(completion) => crate::status::error_of(completion.status()),
                    None => Err(IoError::Unavailable),
                };
                token.complete(status, result.data);
            }
            Completer::Waiter(waiter) => {
                *waiter.result.borrow_mut() = Some(result);
                let waker = waiter.waker.borrow_mut().take();
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Completer::Sink(sink, tag) => sink.ended(tag, result),
            Completer::Nobody => {}
        }
    }
}

struct Outstanding {
    data: Data,
    received_bytes: usize,
    completer: Completer,
}

struct Waiting {
    command: Command,
    data: Data,
    completer: Completer,
}

impl Waiting {
    /// Ends it unsent.
    fn end(self) {
        self.completer.complete(CommandResult {
            completion: None,
            data: self.data,
            received_bytes: 0,
        });
    }
}

struct State {
    protocol: Protocol,
    out: SendBatch,
    commands: Vec<Option<Outstanding>>,
    free: Vec<u16>,
    /// Submitted while every identifier was in use.
    waiting: VecDeque<Waiting>,
    in_capsule_bytes: usize,
}

/// See the module. Dropping it closes the connection; commands still in flight end without a completion.
pub struct Queue {
    state: RefCell<State>,
    ready: Notify,
    ended: Cell<bool>,
    /// When something came last, or a command was sent while none was under way.
    heard: Cell<Instant>,
    /// Of the last command of a device that has ended.
    last_status: Cell<Status>,
    end: Notify,
    opened: Cell<bool>,
    peer: SocketAddr,
    local: bool,
    /// The one that sends, and the one that receives.
    tasks: RefCell<Option<(JoinHandle<()>, JoinHandle<()>)>>,
    /// A batch is on its way into the socket.
    sending: Cell<bool>,
}

impl Queue {
    /// Connects, over TLS if there is a key for it, and exchanges the first PDUs. The queue takes only a Connect command then.
    pub(super) async fn open(
        address: SocketAddr,
        tcp: &TcpOptions,
        psk: Option<Psk>,
        options: Options,
        limit: Duration,
    ) -> Result<Rc<Self>, ConnectError> {
        let lost = |source| ConnectError::Socket { address, source };
        let opening = async {
            let stream = TcpStream::connect(address, tcp).await.map_err(lost)?;
            let stream = match psk {
                None => stream.into(),
                Some(psk) => secure::connect(stream, psk, limit)
                    .await
                    .map_err(|why| ConnectError::Secure { address, why })?,
            };
            let queue = Self::start(stream, options);
            queue.end.until(|| queue.opened.get() || queue.ended.get()).await;
            if queue.opened.get() {
                Ok(queue)
            } else {
                Err(ConnectError::Refused { address })
            }
        };
        time::timeout(limit, opening)
            .await
            .map_err(|_| ConnectError::TimedOut { address, limit })?
    }

    fn start(stream: Stream, options: Options) -> Rc<Self> {
        let Stream {
            receiver,
            sender,
            peer,
            is_local,
            ..
        } = stream;
        let mut protocol = Protocol::new(options);
        let mut out = SendBatch::new();
        protocol.initialize(out.headers());
        let entries = u16::try_from(options.queue_entries).unwrap_or(u16::MAX);
        let state = State {
            protocol,
            out,
            commands: (0..entries).map(|_| None).collect(),
            free: (0..entries).rev().collect(),
            waiting: VecDeque::new(),
            in_capsule_bytes: 0,
        };
        let queue = Rc::new(Self {
            state: RefCell::new(state),
            ready: Notify::new(),
            ended: Cell::new(false),
            heard: Cell::new(Instant::default()),
            last_status: Cell::new(Status::SUCCESS),
            end: Notify::new(),
            opened: Cell::new(false),
            peer,
            local: is_local,
            tasks: RefCell::default(),
            sending: Cell::new(false),
        });
        let sending = spawn(send_batches(Rc::downgrade(&queue), sender));
        let receiving = spawn(receive(Rc::downgrade(&queue), receiver));
        queue.tasks.replace(Some((sending, receiving)));
        queue
    }

    /// Whether the target is a process of this machine, trusted as [`reactor::net::local`] says.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// The target's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the connection is gone. Commands submitted now end without a completion.
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Waits for the end of the connection.
    pub async fn ended(&self) {
        self.end.until(|| self.ended.get()).await;
    }

    /// As [`Queue::ended`], without keeping the queue alive.
    pub(super) fn end_watch(self: &Rc<Self>) -> impl Future<Output = ()> + use<> {
        let weak = Rc::downgrade(self);
        poll_fn(move |cx| {
            let Some(queue) = weak.upgrade() else {
                return Poll::Ready(());
            };
            pin!(queue.end.until(|| queue.ended.get())).poll(cx)
        })
    }

    /// Data of up to this many bytes travels in the command's capsule.
    pub(super) fn set_in_capsule_bytes(&self, bytes: usize) {
        self.state.borrow_mut().in_capsule_bytes = bytes;
    }

    /// Commands that have not ended.
    pub fn outstanding(&self) -> usize {
        let state = self.state.borrow();
        state.commands.len() - state.free.len() + state.waiting.len()
    }

    /// For how long nothing has come though commands are under way; zero if none are.
    pub fn silence(&self) -> Duration {
        let state = self.state.borrow();
        if self.ended.get() || state.is_idle() {
            return Duration::ZERO;
        }
        time::now().since(self.heard.get())
    }

    /// Runs a command. The identifier and the data pointer are filled in here. Dropping the future
    /// leaves the command running with its buffer.
    pub async fn execute(&self, command: Command, data: Data) -> CommandResult {
        let waiter = Rc::<Waiter>::default();
        self.start_command(command, data, Completer::Waiter(waiter.clone()));
        poll_fn(|cx| match waiter.result.borrow_mut().take() {
            Some(result) => Poll::Ready(result),
            None => {
                *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// As [`Queue::execute`], without a future: `sink` is told of the end under `tag`, exactly once. Allocates
    /// nothing.
    pub fn submit_raw(&self, command: Command, data: Data, sink: Rc<dyn CommandSink>, tag: u64) {
        self.start_command(command, data, Completer::Sink(sink, tag));
    }

    /// The status behind the error that a device's request is being completed with: valid inside that call.
    pub(super) fn last_status(&self) -> Status {
        self.last_status.get()
    }

    /// Says which status is behind the error that a request is completed with next.
    pub(super) fn set_last_status(&self, status: Status) {
        self.last_status.set(status);
    }

    /// As [`Queue::execute`], for a device's request.
    pub(super) fn submit(&self, command: Command, data: Data, token: Token) {
        self.start_command(command, data, Completer::Device(token));
    }

    fn start_command(&self, command: Command, data: Data, completer: Completer) {
        let command = Waiting {
            command,
            data,
            completer,
        };
        if self.ended.get() {
            return command.end();
        }
        let mut state = self.state.borrow_mut();
        let was_empty = state.out.is_empty();
        if state.is_idle() {
            self.heard.set(time::turn());
        }
        match state.free.pop() {
            Some(cid) => state.send(cid, command),
            None => state.waiting.push_back(command),
        }
        drop(state);
        if was_empty {
            self.ready.notify();
        }
    }

    /// As [`Queue::close`], and what has not been given to the socket yet stays here.
    pub(super) fn abandon(&self) {
        self.state.borrow_mut().out = SendBatch::new();
        self.close();
    }

    /// Gives up a command of [`Queue::submit_raw`], by its tag and the sink that was given with it: its data, and the sink is
    /// told nothing more. What the target still sends for it is thrown away, and its place in the queue is free again when
    /// that has ended. None if there is no such command.
    pub fn take_back(&self, sink: &Rc<dyn CommandSink>, tag: u64) -> Option<Data> {
        let is_it = |completer: &Completer| match completer {
            Completer::Sink(own, of) => *of == tag && Rc::ptr_eq(own, sink),
            _ => false,
        };
        let mut state = self.state.borrow_mut();
        if let Some(index) = state.waiting.iter().position(|waiting| is_it(&waiting.completer)) {
            return state.waiting.remove(index).map(|waiting| waiting.data);
        }
        let found = state
            .commands
            .iter_mut()
            .flatten()
            .find(|command| is_it(&command.completer))?;
        found.completer = Completer::Nobody;
        Some(std::mem::replace(&mut found.data, Data::None))
    }

    /// Ends the connection: every command that has not ended does so without a completion.
    pub fn close(&self) {
        if self.ended.replace(true) {
            return;
        }
        let (commands, waiting) = {
            let mut state = self.state.borrow_mut();
            let commands: Vec<_> = state.commands.iter_mut().filter_map(Option::take).collect();
            (commands, std::mem::take(&mut state.waiting))
        };
        for command in commands {
            command.completer.complete(CommandResult {
                completion: None,
                data: command.data,
                received_bytes: 0,
            });
        }
        waiting.into_iter().for_each(Waiting::end);
        self.end.notify();
        self.ready.notify();
    }

    fn take(&self, mut input: &[u8]) -> bool {
        self.heard.set(time::turn());
        loop {
            let mut state = self.state.borrow_mut();
            let event = match state.protocol.receive(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => return true,
                Err(termination) => {
                    tracing::warn!(peer = %self.peer, %termination, "connection terminated");
                    let State { protocol, out, .. } = &mut *state;
                    protocol.terminate(&termination, out.headers());
                    return false;
                }
            };
            match event {
                Event::Ready(_) => {
                    self.opened.set(true);
                    drop(state);
                    self.end.notify();
                }
                Event::Data { cid, offset, bytes } => state.fill(cid, offset as usize, bytes),
                Event::DataComplete {
                    cid,
                    success: true,
                    digest_ok,
                    ..
                } => {
                    let (ended, unwanted) = state.finish(cid);
                    drop(state);
                    unwanted.into_iter().for_each(Waiting::end);
                    self.complete(ended, Completion::success(cid), digest_ok);
                }
                Event::DataComplete { .. } => {}
                Event::Response {
                    completion,
                    digest_ok,
                } => {
                    let (ended, unwanted) = state.finish(completion.cid());
                    drop(state);
                    unwanted.into_iter().for_each(Waiting::end);
                    self.complete(ended, completion, digest_ok);
                }
                Event::Transfer(transfer) => state.transfer(&transfer),
                Event::TargetTermination(termination) => {
                    tracing::warn!(peer = %self.peer, %termination, "the target ended the connection");
                    return false;
                }
            }
        }
    }

    fn complete(&self, ended: Option<Outstanding>, completion: Completion, digest_ok: bool) {
        let Some(Outstanding {
            data,
            received_bytes,
            completer,
        }) = ended
        else {
            return;
        };
        // Whoever waits for an answer of any length looks at it themselves.
        let is_whole = !matches!(completer, Completer::Device(_))
            || !completion.status().is_success()
            || !is_short(&data, received_bytes);
        let completion = if digest_ok && is_whole {
            completion
        } else {
            completion.with_status(Status::TRANSIENT_TRANSPORT_ERROR)
        };
        self.last_status.set(completion.status());
        completer.complete(CommandResult {
            completion: Some(completion),
            data,
            received_bytes,
        });
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.free.len() == self.commands.len()
    }

    fn send(&mut self, cid: u16, waiting: Waiting) {
        let Waiting {
            command,
            data,
            completer,
        } = waiting;
        let length = u32::try_from(data.length_bytes()).expect("pool buffers are at most 1 MiB");
        let mut command = command.with_cid(cid);
        let mut capsule = None;
        match &data {
            Data::From(buffer) if buffer.len() <= self.in_capsule_bytes || command.is_fabrics() => {
                command = command.with_in_capsule_data(0, length);
                capsule = Some(buffer.clone());
            }
            Data::None => {}
            _ => command = command.with_transport_data(length),
        }
        match capsule {
            Some(buffer) if length > 0 => {
                self.protocol.command(&command, Some(length), self.out.headers());
                self.push(buffer);
            }
            _ => {
                self.protocol.command(&command, None, self.out.headers());
                match &data {
                    Data::Into(_) => self.protocol.expect(cid, Direction::FromController, length),
                    Data::From(_) => self.protocol.expect(cid, Direction::ToController, length),
                    Data::None => {}
                }
            }
        }
        self.commands[usize::from(cid)] = Some(Outstanding {
            data,
            received_bytes: 0,
            completer,
        });
    }

    fn push(&mut self, buffer: Buffer) {
        let crc = self.protocol.has_data_digest().then(|| crc32c(&buffer));
        self.out.push(buffer);
        if let Some(crc) = crc {
            self.protocol.data_trailer(crc, self.out.headers());
        }
    }

    fn fill(&mut self, cid: u16, offset: usize, bytes: &[u8]) {
        if let Some(Some(Outstanding {
            data: Data::Into(buffer),
            received_bytes,
            ..
        })) = self.commands.get_mut(usize::from(cid))
        {
            // The protocol core has checked that the range lies inside the expected length, and that it comes in order.
            buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
            *received_bytes = offset + bytes.len();
        }
    }

    /// Sends the part of a command's data that the target asked for.
    fn transfer(&mut self, transfer: &Transfer) {
        let Some(Some(Outstanding {
            data: Data::From(buffer),
            ..
        })) = self.commands.get(usize::from(transfer.cid))
        else {
            return;
        };
        let buffer = buffer.clone();
        let end = transfer.offset + transfer.length;
        let mut offset = transfer.offset;
        while offset < end {
            let length = (end - offset).min(self.protocol.max_h2c_data());
            if !self
                .protocol
                .data_header(transfer, offset, length, self.out.headers())
            {
                return;
            }
            self.push(buffer.slice(offset as usize..(offset + length) as usize));
            offset += length;
        }
    }

    /// Frees the identifier, and lets the next waiting command have it that is wanted still. Those that are not wanted any
    /// more are to be ended by the caller.
    fn finish(&mut self, cid: u16) -> (Option<Outstanding>, Vec<Waiting>) {
        let mut unwanted = Vec::new();
        let ended = self.commands.get_mut(usize::from(cid)).and_then(Option::take);
        if ended.is_none() {
            return (None, unwanted);
        }
        loop {
            match self.waiting.pop_front() {
                Some(next) if !next.completer.is_wanted() => unwanted.push(next),
                Some(next) => break self.send(cid, next),
                None => break self.free.push(cid),
            }
        }
        (ended, unwanted)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.close();
        // The tasks hold the queue weakly. The one that sends has an end to tell of, unless it is stuck in the socket.
        if let Some((sending, receiving)) = self.tasks.get_mut().take() {
            receiving.abort();
            if self.sending.get() {
                sending.abort();
            }
        }
    }
}

/// Ends the connection. Over TLS the target is told (close_notify; RFC 8446, section 6.1), if it takes that in time.
async fn say_goodbye(mut sender: Sender) {
    let _ = time::timeout(GOODBYE_LIMIT, sender.close()).await;
}

async fn send_batches(queue: Weak<Queue>, mut sender: Sender) {
    let mut spare = SendBatch::new();
    loop {
        let waiting = poll_fn(|cx| {
            let Some(queue) = queue.upgrade() else {
                return Poll::Ready(None);
            };
            let wait = queue
                .ready
                .until(|| queue.ended.get() || !queue.state.borrow().out.is_empty());
            pin!(wait).poll(cx).map(|()| Some(queue.clone()))
        });
        let Some(owned) = waiting.await else {
            return say_goodbye(sender).await;
        };
        let batch = std::mem::replace(&mut owned.state.borrow_mut().out, spare);
        if batch.is_empty() {
            drop(owned);
            return say_goodbye(sender).await;
        }
        owned.sending.set(true);
        drop(owned);
        let (result, emptied) = sender.send(batch).await;
        spare = emptied;
        // Whoever drops the queue meanwhile ends this task.
        let Some(owned) = queue.upgrade() else { return };
        owned.sending.set(false);
        if result.is_err() {
            owned.close();
            return;
        }
    }
}

async fn receive(queue: Weak<Queue>, mut receiver: Receiver) {
    while let Ok(Some(bytes)) = receiver.receive().await {
        let Some(owned) = queue.upgrade() else { return };
        let mut good = owned.take(&bytes);
        drop(bytes);
        while good && let Some(more) = receiver.try_receive() {
            good = owned.take(&more);
        }
        if !owned.state.borrow().out.is_empty() {
            owned.ready.notify();
        }
        if !good {
            break;
        }
    }
    if let Some(queue) = queue.upgrade() {
        queue.close();
    }
}
