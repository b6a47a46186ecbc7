//! A remote device's channel: by each path it has an association of its own, makes another when that is lost, and repeats
//! what was in flight, by whatever path takes commands (`select`).
//!
//! Repeated are reads, writes (of data, zeros and nothing) and flushes: done twice, with nothing of this channel in
//! between, they leave what doing them once leaves. Nothing is in between: a write that was in flight on a lost
//! association is neither repeated nor answered before that association can do nothing any more (`doubts`). Other
//! requests, and those that were repeated too often, end with "unavailable": whether they took effect is unknown.
//!
//! A command that was *answered* with a path-related error has not been done, so it moves to another path at once.

mod access;
mod connect;
mod doubts;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bdev::{Channel, Completion, Data, Geometry, IoError, Operation, Request, Sink, Token, TraceId};
use foundation::{BlockCount, Instant, Lba};
use protocols::nvme::Status;
use reactor::mailbox::{Mailbox, mailbox};
use reactor::{JoinHandle, spawn, time};

use super::controller::Controller;
use super::device::{Order, PathView, Shared, View};
use super::doubt::Doubt;
use super::namespace::NamespaceChannel;
use super::select::{PathId, Paths, SUSPICION};
use access::Look;
use connect::PathSlot;
use doubts::OpenDoubt;

/// Orders that wait to be obeyed.
const ORDERS_MAX: usize = 16;

/// Opens a channel. It connects in the background.
pub(super) fn open(shared: Arc<Shared>) -> Rc<dyn Channel> {
    let (sender, orders) = mailbox(ORDERS_MAX);
    let view = View::default();
    shared.join(sender, view.clone());
    let channel = Rc::new_cyclic(|this| RemoteChannel {
        shared,
        view,
        state: RefCell::default(),
        this: this.clone(),
    });
    channel.look();
    let obeying = spawn(obey(Rc::downgrade(&channel), orders));
    Rc::new(Handle { channel, obeying })
}

async fn obey(channel: Weak<RemoteChannel>, mut orders: Mailbox<Order>) {
    while let Some(order) = orders.recv().await {
        let Some(channel) = channel.upgrade() else { return };
        match order {
            Order::Look => channel.look(),
            Order::Reset(id) => channel.reset(id),
        }
    }
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

const fn is_access_refused(status: Status) -> bool {
    matches!(
        status,
        Status::ANA_INACCESSIBLE | Status::ANA_PERSISTENT_LOSS | Status::ANA_TRANSITION
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
    /// When a path first answered it with a path-related error.
    refused_since: Option<Instant>,
    /// The association on which it may still take effect.
    doubt: Option<u64>,
}

struct InFlight {
    held: Held,
    path: PathId,
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
    /// Equal for controllers that are known to be of one target.
    target: u64,
    controller: Rc<Controller>,
    namespace: NamespaceChannel,
    look: Rc<Look>,
}

impl Connection {
    fn is_ended(&self) -> bool {
        self.namespace.queue().is_ended() || self.controller.is_ended()
    }
}

#[derive(Default)]
struct State {
    slots: Vec<PathSlot>,
    paths: Paths,
    /// Counts connections.
    generation: u64,
    /// A task looks after the deadlines of `waiting`.
    expiring: bool,
    /// A task looks again at paths that are suspect.
    reviving: bool,
    waiting: VecDeque<Waiting>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// Lost associations on which writes may still take effect.
    doubts: Vec<OpenDoubt>,
    /// Lost associations with writes of which nothing says when they can do nothing any more.
    hopeless: Vec<u64>,
    /// Nothing is begun any more, and why.
    end: Option<IoError>,
}

impl State {
    fn keep(&mut self, in_flight: InFlight) -> u64 {
        self.paths.begin(in_flight.path);
        let index = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() - 1
        });
        self.in_flight[index] = Some(in_flight);
        index as u64
    }

    fn slot(&mut self, id: PathId) -> Option<&mut PathSlot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    fn connection(&self, generation: u64) -> Option<&Connection> {
        let mut all = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
        all.find(|connection| connection.generation == generation)
    }

    fn is_lost(&self, generation: u64) -> bool {
        self.connection(generation).is_none_or(Connection::is_ended)
    }

    fn is_overdue(&self, generation: u64, limit: Duration, now: Instant) -> bool {
        self.in_flight
            .iter()
            .flatten()
            .any(|one| one.generation == generation && one.since + limit <= now)
    }
}

struct RemoteChannel {
    shared: Arc<Shared>,
    /// What others see of its paths.
    view: View,
    state: RefCell<State>,
    this: Weak<RemoteChannel>,
}

impl RemoteChannel {
    /// Sends a request by the best path, or lets it wait for one.
    fn run(&self, held: Held, data: Data) {
        if let Some((held, data)) = self.try_run(held, data) {
            let deadline = time::now() + self.shared.options.wait_limit;
            let expiring = {
                let mut state = self.state.borrow_mut();
                state.waiting.push_back(Waiting { held, data, deadline });
                std::mem::replace(&mut state.expiring, true)
            };
            if !expiring {
                drop(spawn(Self::expire(self.this.clone())));
            }
        }
    }

    /// Gives the request back if it has to wait.
    fn try_run(&self, held: Held, data: Data) -> Option<(Held, Data)> {
        let (tag, namespace, operation, lba, blocks, trace) = loop {
            let mut state = self.state.borrow_mut();
            if let Some(error) = state.end {
                drop(state);
                held.token.complete(Err(error), data);
                return None;
            }
            if state.must_wait(&held) {
                return Some((held, data));
            }
            let now = time::now();
            let Some(path) = state.paths.choose(now) else {
                return Some((held, data));
            };
            let connection = state.slot(path).and_then(|slot| slot.connection.as_ref());
            let Some(connection) = connection else {
                return Some((held, data));
            };
            let generation = connection.generation;
            if connection.is_ended() {
                drop(state);
                self.lose(generation);
                continue;
            }
            let namespace = connection.namespace.clone();
            let (operation, lba, blocks, trace) = (held.operation, held.lba, held.blocks, held.trace);
            let tag = state.keep(InFlight {
                held,
                path,
                generation,
                since: now,
            });
            break (tag, namespace, operation, lba, blocks, trace);
        };
        let sink = self.this.upgrade().expect("the caller holds the channel");
        namespace.submit(Request {
            operation,
            lba,
            blocks,
            data,
            metadata: None,
            fence: None,
            trace,
            token: Token::new(sink, tag),
        });
        None
    }

    /// Something has changed for the better: sends what waits, if it may go.
    fn pump(&self) {
        let waiting = std::mem::take(&mut self.state.borrow_mut().waiting);
        for Waiting { held, data, deadline } in waiting {
            if let Some((held, data)) = self.try_run(held, data) {
                self.state
                    .borrow_mut()
                    .waiting
                    .push_back(Waiting { held, data, deadline });
            }
        }
    }

    /// The association it was sent on is lost.
    fn after_loss(&self, mut held: Held, data: Data, generation: u64) {
        let repeat = {
            let mut state = self.state.borrow_mut();
            let changing = changes(held.operation);
            let open = changing && state.doubts.iter().any(|open| open.number == generation);
            let hopeless = changing && state.hopeless.contains(&generation);
            let repeat =
                may_be_repeated(held.operation) && held.repeated < self.shared.options.retries && !hopeless;
            held.repeated += 1;
            held.doubt = open.then_some(generation);
            if !repeat {
                state.give_up(&held);
            }
            repeat
        };
        if repeat {
            self.run_again(held, data);
        } else {
            held.token.complete(Err(IoError::Unavailable), data);
        }
    }

    /// A path has answered that it could not do it, so it has not been done.
    fn after_refusal(&self, mut held: Held, data: Data, path: PathId, generation: u64, status: Status) {
        let now = time::now();
        let first = *held.refused_since.get_or_insert(now);
        let (again, reviving) = {
            let mut state = self.state.borrow_mut();
            let known = is_access_refused(status) || state.slots.len() > 1;
            let again = known && now < first + self.shared.options.wait_limit;
            if again {
                state.paths.suspect(path, now);
                if let Some(connection) = state.connection(generation) {
                    connection.look.ask();
                }
            }
            (again, again && std::mem::replace(&mut state.reviving, true))
        };
        if again {
            if !reviving {
                drop(spawn(Self::revive(self.this.clone())));
            }
            self.run_again(held, data);
        } else {
            held.token.complete(Err(IoError::Unavailable), data);
        }
    }

    /// Looks at suspect paths again for as long as there are some.
    async fn revive(weak: Weak<Self>) {
        loop {
            time::sleep(SUSPICION).await;
            let Some(channel) = weak.upgrade() else { return };
            let suspects = {
                let mut state = channel.state.borrow_mut();
                state.reviving = state.paths.has_suspects(time::now());
                state.reviving
            };
            channel.pump();
            channel.publish();
            if !suspects {
                return;
            }
        }
    }

    fn run_again(&self, held: Held, data: Data) {
        // A range list, or an empty buffer, may have taken the place of no data.
        let data = match held.operation {
            Operation::Read | Operation::Write { .. } | Operation::Compare => data,
            _ => Data::None,
        };
        self.run(held, data);
    }

    /// Ends everything, now and for good.
    fn finish(&self, error: IoError) {
        let (lost, waiting) = {
            let mut state = self.state.borrow_mut();
            state.end = Some(error);
            let slots = state.slots.iter_mut();
            let lost: Vec<_> = slots.filter_map(|slot| slot.connection.take()).collect();
            (lost, std::mem::take(&mut state.waiting))
        };
        for lost in lost {
            lost.namespace.queue().abandon();
            lost.controller.close();
            lost.look.ask();
        }
        for Waiting { held, data, .. } in waiting {
            held.token.complete(Err(error), data);
        }
        self.publish();
    }

    /// Fails what has waited too long, for as long as anything waits.
    async fn expire(weak: Weak<Self>) {
        loop {
            let Some(channel) = weak.upgrade() else { return };
            let now = time::now();
            let (late, next) = {
                let mut state = channel.state.borrow_mut();
                let late = state.waiting.iter().position(|one| one.deadline <= now);
                let late = late.and_then(|index| state.waiting.remove(index));
                if let Some(late) = &late {
                    state.give_up(&late.held);
                }
                let next = state.waiting.iter().map(|one| one.deadline).min();
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

    /// Lets others see the paths as they are now.
    fn publish(&self) {
        let views: Vec<_> = {
            let state = self.state.borrow();
            let current = state.paths.peek(time::now());
            let slots = state.slots.iter();
            let view = |slot: &PathSlot| {
                let live = slot.connection.as_ref();
                PathView {
                    id: slot.id,
                    address: slot.address(),
                    cntlid: live.map(|connection| connection.controller.cntlid()),
                    access: state.paths.state(slot.id),
                    is_current: current == Some(slot.id),
                }
            };
            slots.map(view).collect()
        };
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = views;
    }
}

impl Sink for RemoteChannel {
    fn complete(&self, tag: u64, completion: Completion) {
        let Completion { status, data } = completion;
        let index = usize::try_from(tag).expect("tags are indexes");
        let unavailable = status == Err(IoError::Unavailable);
        // How the command of a live association ended, while that can still be told.
        let mut refused = None;
        if unavailable {
            let generation = {
                let state = self.state.borrow();
                let Some(one) = &state.in_flight[index] else {
                    return;
                };
                if !state.is_lost(one.generation) {
                    let connection = state.connection(one.generation);
                    refused = connection.map(|connection| connection.namespace.queue().last_status());
                }
                one.generation
            };
            if refused.is_none() {
                // First, while this request still counts as being in flight there.
                self.lose(generation);
            }
        }
        let (one, ended) = {
            let mut state = self.state.borrow_mut();
            let Some(one) = state.in_flight[index].take() else {
                return;
            };
            state.free.push(index);
            state.paths.end(one.path);
            (one, state.end.is_some())
        };
        let InFlight {
            held,
            path,
            generation,
            ..
        } = one;
        match refused {
            _ if ended || !unavailable => held.token.complete(status, data),
            None => self.after_loss(held, data, generation),
            Some(refused) if refused.is_path_related() => {
                self.after_refusal(held, data, path, generation, refused);
            }
            Some(_) => held.token.complete(status, data),
        }
    }
}

/// What the user holds: everything stops with it.
struct Handle {
    channel: Rc<RemoteChannel>,
    obeying: JoinHandle<()>,
}

impl Channel for Handle {
    fn geometry(&self) -> Geometry {
        self.channel.shared.shape.geometry
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
            refused_since: None,
            doubt: None,
        };
        self.channel.run(held, data);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.obeying.abort();
        self.channel.finish(IoError::Aborted);
    }
}
