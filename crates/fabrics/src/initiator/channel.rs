//! A remote device's channel: it has an association of its own, makes another when that is lost, and repeats what was in
//! flight.
//!
//! Repeated are reads, writes (of data, zeros and nothing) and flushes: done twice, with nothing of this channel in
//! between, they leave what doing them once leaves. Nothing is in between: an association is used only once the one
//! before can do nothing any more (`doubt`). Other requests, and those that were repeated too often, end with
//! "unavailable": whether they took effect is unknown.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::{Channel, Completion, Data, Geometry, IoError, Operation, Request, Sink, Token, TraceId};
use foundation::{BlockCount, Instant, Lba};
use reactor::{spawn, time};

use super::controller::{ConnectError, Controller};
use super::device::{RemoteOptions, Shape};
use super::doubt::Doubt;
use super::namespace::NamespaceChannel;

/// Pause after the first attempt to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Looks within the time that a command has for its answer.
const LOOKS: u32 = 4;

/// Opens a channel. It connects in the background.
pub(super) fn open(options: RemoteOptions, shape: Shape) -> Rc<dyn Channel> {
    let channel = Rc::new_cyclic(|this| RemoteChannel {
        shape,
        options,
        state: RefCell::new(State {
            without_since: time::now(),
            ..State::default()
        }),
        this: this.clone(),
    });
    channel.connect();
    Rc::new(Handle(channel))
}

fn may_be_repeated(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Read
            | Operation::Write { .. }
            | Operation::WriteZeroes { .. }
            | Operation::Deallocate
            | Operation::Flush
    )
}

fn changes(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Deallocate
    )
}

/// A request without its data.
struct Held {
    operation: Operation,
    lba: Lba,
    blocks: BlockCount,
    trace: TraceId,
    token: Token,
    repeated: u32,
}

struct InFlight {
    held: Held,
    generation: u64,
    since: Instant,
}

struct Waiting {
    held: Held,
    data: Data,
    deadline: Instant,
}

struct Connection {
    generation: u64,
    controller: Rc<Controller>,
    namespace: NamespaceChannel,
}

impl Connection {
    fn is_ended(&self) -> bool {
        self.namespace.queue().is_ended() || self.controller.is_ended()
    }
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Counts connections.
    generation: u64,
    connecting: bool,
    /// A task looks after the deadlines of `waiting`.
    expiring: bool,
    /// Oldest deadline first.
    waiting: VecDeque<Waiting>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// Of the last association that carried requests, until it can do nothing any more.
    doubt: Option<Doubt>,
    /// It was lost with writes in flight.
    doubtful_writes: bool,
    /// When the last connection was lost, or the channel opened.
    without_since: Instant,
    /// Nothing is begun any more, and why.
    end: Option<IoError>,
}

impl State {
    fn keep(&mut self, in_flight: InFlight) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() - 1
        });
        self.in_flight[index] = Some(in_flight);
        index as u64
    }

    fn is_lost(&self, generation: u64) -> bool {
        match &self.connection {
            Some(connection) => connection.generation != generation || connection.is_ended(),
            None => true,
        }
    }

    fn is_overdue(&self, generation: u64, limit: Duration, now: Instant) -> bool {
        self.in_flight
            .iter()
            .flatten()
            .any(|one| one.generation == generation && one.since + limit <= now)
    }
}

struct RemoteChannel {
    shape: Shape,
    options: RemoteOptions,
    state: RefCell<State>,
    this: Weak<RemoteChannel>,
}

impl RemoteChannel {
    fn run(&self, held: Held, data: Data) {
        let mut state = self.state.borrow_mut();
        if let Some(error) = state.end {
            drop(state);
            return held.token.complete(Err(error), data);
        }
        let usable = state
            .connection
            .as_ref()
            .filter(|connection| !connection.is_ended());
        let Some((generation, namespace)) =
            usable.map(|connection| (connection.generation, connection.namespace.clone()))
        else {
            drop(state);
            return self.wait(held, data);
        };
        let (operation, lba, blocks, trace) = (held.operation, held.lba, held.blocks, held.trace);
        let tag = state.keep(InFlight {
            held,
            generation,
            since: time::now(),
        });
        drop(state);
        let sink = self.this.upgrade().expect("the caller holds the channel");
        namespace.submit(Request {
            operation,
            lba,
            blocks,
            data,
            metadata: Data::None,
            fence: None,
            trace,
            token: Token::new(sink, tag),
        });
    }

    /// There is no connection, or only one that has ended.
    fn wait(&self, held: Held, data: Data) {
        let deadline = time::now() + self.options.wait_limit;
        let (ended, expiring) = {
            let mut state = self.state.borrow_mut();
            state.waiting.push_back(Waiting { held, data, deadline });
            let ended = state.connection.as_ref().map(|connection| connection.generation);
            (ended, std::mem::replace(&mut state.expiring, true))
        };
        if let Some(generation) = ended {
            self.lose(generation);
        }
        self.connect();
        if !expiring {
            drop(spawn(Self::expire(self.this.clone())));
        }
    }

    fn connect(&self) {
        let mut state = self.state.borrow_mut();
        if state.end.is_none() && !std::mem::replace(&mut state.connecting, true) {
            drop(spawn(Self::keep_connecting(self.this.clone())));
        }
    }

    /// When there is nothing more to try for.
    fn loss_deadline(&self) -> Option<Instant> {
        let limit = self.options.loss_timeout?;
        Some(self.state.borrow().without_since + limit)
    }

    async fn keep_connecting(weak: Weak<Self>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(channel) = weak.upgrade() else { return };
            let (doubt, writes) = {
                let state = channel.state.borrow();
                (state.doubt, state.doubtful_writes)
            };
            let deadline = channel.loss_deadline();
            let attempt = attempt(channel.options.clone(), channel.shape, doubt, writes);
            // The user may go while we try.
            drop(channel);
            let outcome = match deadline {
                Some(deadline) => time::timeout(deadline.since(time::now()), attempt).await.ok(),
                None => Some(attempt.await),
            };
            let Some(channel) = weak.upgrade() else { return };
            match outcome {
                Some(Ok((controller, namespace))) => return channel.connected(controller, namespace),
                Some(Err(error)) => {
                    tracing::warn!(%error, retry_ms = pause.as_millis() as u64, "no connection");
                }
                None => {}
            }
            let now = time::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                tracing::error!(
                    address = %channel.options.connect.address,
                    subsystem = %channel.options.connect.subsystem,
                    nsid = channel.options.nsid,
                    "no connection within the loss timeout: the device is given up"
                );
                return channel.finish(IoError::Gone);
            }
            drop(channel);
            let left = deadline.map_or(pause, |deadline| deadline.since(now));
            time::sleep(pause.min(left)).await;
            let Some(channel) = weak.upgrade() else { return };
            pause = (pause * 2).min(channel.options.reconnect_delay_max);
        }
    }

    fn connected(&self, controller: Rc<Controller>, namespace: NamespaceChannel) {
        let waiting = {
            let mut state = self.state.borrow_mut();
            if state.end.is_some() {
                return;
            }
            state.connecting = false;
            state.generation += 1;
            state.doubt = None;
            state.doubtful_writes = false;
            let generation = state.generation;
            // Either may end while the other seems alive (its packets just stay away).
            drop(spawn(Self::lose_at(
                self.this.clone(),
                generation,
                controller.ended(),
            )));
            let ended = namespace.queue().end_watch();
            drop(spawn(Self::lose_at(self.this.clone(), generation, ended)));
            if let Some(limit) = self.options.io_timeout {
                drop(spawn(Self::watch_answers(self.this.clone(), generation, limit)));
            }
            state.connection = Some(Connection {
                generation,
                controller,
                namespace,
            });
            std::mem::take(&mut state.waiting)
        };
        for Waiting { held, data, .. } in waiting {
            self.run(held, data);
        }
    }

    async fn lose_at(weak: Weak<Self>, generation: u64, ended: impl Future<Output = ()>) {
        ended.await;
        if let Some(channel) = weak.upgrade() {
            channel.lose(generation);
        }
    }

    async fn watch_answers(weak: Weak<Self>, generation: u64, limit: Duration) {
        loop {
            time::sleep(limit / LOOKS).await;
            let Some(channel) = weak.upgrade() else { return };
            let overdue = {
                let state = channel.state.borrow();
                if state.is_lost(generation) {
                    return;
                }
                state.is_overdue(generation, limit, time::now())
            };
            if overdue {
                tracing::warn!(
                    address = %channel.options.connect.address,
                    subsystem = %channel.options.connect.subsystem,
                    nsid = channel.options.nsid,
                    limit_ms = limit.as_millis() as u64,
                    "a command has no answer: its association ends"
                );
                return channel.lose(generation);
            }
        }
    }

    /// The connection is of no use any more: its requests end, or wait for the next.
    fn lose(&self, generation: u64) {
        let lost = {
            let mut state = self.state.borrow_mut();
            let Some(lost) = state
                .connection
                .take_if(|connection| connection.generation == generation)
            else {
                return;
            };
            let now = time::now();
            state.without_since = now;
            state.doubt = Some(Doubt::of(&lost.controller, now));
            let State {
                in_flight,
                doubtful_writes,
                ..
            } = &mut *state;
            *doubtful_writes |= in_flight
                .iter()
                .flatten()
                .any(|one| one.generation == generation && changes(one.held.operation));
            lost
        };
        // Without a borrow: requests complete here, and may submit others.
        lost.namespace.queue().abandon();
        drop(lost);
        self.connect();
    }

    /// Ends everything, now and for good.
    fn finish(&self, error: IoError) {
        let (lost, waiting) = {
            let mut state = self.state.borrow_mut();
            state.end = Some(error);
            (state.connection.take(), std::mem::take(&mut state.waiting))
        };
        if let Some(lost) = lost {
            lost.namespace.queue().abandon();
        }
        for Waiting { held, data, .. } in waiting {
            held.token.complete(Err(error), data);
        }
    }

    /// Fails what has waited too long, for as long as anything waits.
    async fn expire(weak: Weak<Self>) {
        loop {
            let Some(channel) = weak.upgrade() else { return };
            let now = time::now();
            let (late, next) = {
                let mut state = channel.state.borrow_mut();
                let late = match state.waiting.front() {
                    Some(first) if first.deadline <= now => state.waiting.pop_front(),
                    _ => None,
                };
                let next = state.waiting.front().map(|first| first.deadline);
                state.expiring = late.is_some() || next.is_some();
                (late, next)
            };
            match (late, next) {
                (Some(Waiting { held, data, .. }), _) => {
                    held.token.complete(Err(IoError::Unavailable), data);
                }
                (None, Some(deadline)) => {
                    drop(channel);
                    time::sleep(deadline.since(now)).await;
                }
                (None, None) => return,
            }
        }
    }
}

impl Sink for RemoteChannel {
    fn complete(&self, tag: u64, completion: Completion) {
        let Completion { status, data } = completion;
        let (held, repeat) = {
            let mut state = self.state.borrow_mut();
            let index = usize::try_from(tag).expect("tags are indexes");
            let Some(InFlight {
                mut held, generation, ..
            }) = state.in_flight[index].take()
            else {
                return;
            };
            state.free.push(index);
            let mut repeat = false;
            if status == Err(IoError::Unavailable) && state.end.is_none() && state.is_lost(generation) {
                let settled = match (&state.connection, &state.doubt) {
                    (Some(connection), _) if connection.generation == generation => {
                        Doubt::of(&connection.controller, time::now()).can_be_settled()
                    }
                    (_, Some(doubt)) => doubt.can_be_settled(),
                    // It has been settled already.
                    (_, None) => true,
                };
                let writes = changes(held.operation);
                state.doubtful_writes |= writes && state.generation == generation;
                repeat = may_be_repeated(held.operation)
                    && held.repeated < self.options.retries
                    && (settled || !writes);
                held.repeated += 1;
            }
            (held, repeat)
        };
        if repeat {
            // A range list, or an empty buffer, may have taken the place of no data.
            let data = match held.operation {
                Operation::Read | Operation::Write { .. } => data,
                _ => Data::None,
            };
            self.run(held, data);
        } else {
            held.token.complete(status, data);
        }
    }
}

async fn attempt(
    options: RemoteOptions,
    shape: Shape,
    doubt: Option<Doubt>,
    writes: bool,
) -> Result<(Rc<Controller>, NamespaceChannel), ConnectError> {
    let changed = ConnectError::Changed {
        address: options.connect.address,
        subsystem: options.connect.subsystem.as_str().to_owned(),
        nsid: options.nsid,
    };
    let controller = Controller::connect(options.connect).await?;
    if let Some(doubt) = doubt {
        doubt.settle(&controller, writes).await?;
    }
    let namespace = controller.open_namespace(options.nsid).await?;
    if let Some(identifiers) = shape.identifiers
        && controller.identifiers(options.nsid).await? != identifiers
    {
        return Err(changed);
    }
    let geometry = namespace.geometry();
    if geometry.block_bytes != shape.geometry.block_bytes || geometry.blocks < shape.geometry.blocks {
        return Err(changed);
    }
    Ok((controller, namespace))
}

/// What the user holds: everything stops with it.
struct Handle(Rc<RemoteChannel>);

impl Channel for Handle {
    fn geometry(&self) -> Geometry {
        self.0.shape.geometry
    }

    fn submit(&self, request: Request) {
        let Request {
            operation,
            lba,
            blocks,
            data,
            trace,
            token,
            ..
        } = request;
        let held = Held {
            operation,
            lba,
            blocks,
            trace,
            token,
            repeated: 0,
        };
        self.0.run(held, data);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.finish(IoError::Aborted);
    }
}
