//! The connections of a channel: one for each path, made again when it is lost.

use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bdev::{Channel, IoError};
use foundation::Instant;
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::log::AnaState;
use reactor::sync::Receiver;
use reactor::{spawn, time};

use super::access::follow_events;
use super::{
    Connection, Controller, Doubt, Look, NamespaceChannel, OpenDoubt, RemoteChannel, State, changes,
};
use crate::initiator::controller::{ConnectError, ConnectOptions};
use crate::initiator::device::Shared;
use crate::initiator::select::PathId;

/// Pause after the first attempt to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Looks within the time that a command has for its answer.
const LOOKS: u32 = 4;

/// A path of a channel.
pub(super) struct PathSlot {
    pub(super) id: PathId,
    /// At least one.
    addresses: Vec<ConnectOptions>,
    /// The one of them that is connected or tried.
    at: usize,
    pub(super) connection: Option<Connection>,
    connecting: bool,
    /// Of its last association, until that can do nothing any more.
    past: Option<Past>,
    /// When the last connection was lost, or the path came.
    without_since: Instant,
    /// There was no connection for too long.
    is_given_up: bool,
}

/// A lost association.
#[derive(Clone)]
struct Past {
    number: u64,
    address: SocketAddr,
    doubt: Doubt,
    /// Writes were in flight.
    writes: bool,
}

impl PathSlot {
    pub(super) fn address(&self) -> SocketAddr {
        self.addresses[self.at % self.addresses.len()].address
    }

    pub(super) fn has(&self, generation: u64) -> bool {
        let live = self.connection.as_ref();
        live.is_some_and(|connection| connection.generation == generation)
    }

    /// To the next address.
    pub(super) fn go_on(&mut self) {
        self.at = (self.at + 1) % self.addresses.len();
    }

    /// Whether another address may be better than one where the namespace cannot be reached.
    pub(super) fn leaves(&self, access: AnaState) -> bool {
        self.addresses.len() > 1 && is_closed(access)
    }
}

/// Whether no command goes there until somebody changes that.
fn is_closed(access: AnaState) -> bool {
    matches!(access, AnaState::Inaccessible | AnaState::PersistentLoss)
}

/// What an attempt brings.
struct Made {
    /// The lost associations that can do nothing any more.
    settled: Vec<u64>,
    controller: Rc<Controller>,
    namespace: NamespaceChannel,
    access: AnaState,
    /// Where the target tells of changes.
    events: Option<Receiver<AsyncEvent>>,
}

impl State {
    /// The lost associations that a new one at `address` may settle: the path's own, and those in doubt that were there.
    fn pasts_at(&self, address: SocketAddr, own: Option<Past>) -> Vec<Past> {
        let mut pasts: Vec<Past> = own.into_iter().collect();
        let own = pasts.first().map(|past| past.number);
        let there = self.doubts.iter().filter(|open| open.address == address);
        pasts.extend(there.filter(|open| own != Some(open.number)).map(|open| Past {
            number: open.number,
            address: open.address,
            doubt: open.doubt,
            writes: true,
        }));
        pasts
    }
}

impl RemoteChannel {
    /// Takes up the device's paths and policy as they are now.
    pub(super) fn look(&self) {
        let table = self.shared.table().clone();
        let (gone, new) = {
            let mut state = self.state.borrow_mut();
            if state.end.is_some() {
                return;
            }
            state.paths.set_policy(table.policy);
            state.paths.prefer(table.preferred);
            let mut gone = Vec::new();
            for slot in &mut state.slots {
                let entry = table.paths.iter().find(|entry| entry.id == slot.id);
                let generation = slot.connection.as_ref().map(|connection| connection.generation);
                match entry {
                    None => gone.push((Some(slot.id), generation)),
                    Some(entry) => {
                        let connected = slot.address();
                        slot.addresses.clone_from(&entry.addresses);
                        let at = slot.addresses.iter().position(|one| one.address == connected);
                        slot.at = at.unwrap_or(0);
                        if at.is_none() {
                            gone.push((None, generation));
                        }
                    }
                }
            }
            let mut new = Vec::new();
            for entry in table.paths {
                if state.slot(entry.id).is_none() {
                    state.paths.add(entry.id);
                    state.slots.push(PathSlot {
                        id: entry.id,
                        addresses: entry.addresses,
                        at: 0,
                        connection: None,
                        connecting: false,
                        past: None,
                        without_since: time::now(),
                        is_given_up: false,
                    });
                    new.push(entry.id);
                }
            }
            (gone, new)
        };
        for (path, generation) in gone {
            // While the slot is there: what is in flight there finds it.
            if let Some(generation) = generation {
                self.lose(generation);
            }
            if let Some(path) = path {
                let mut state = self.state.borrow_mut();
                state.slots.retain(|slot| slot.id != path);
                state.paths.remove(path);
            }
        }
        for id in new {
            self.connect(id);
        }
        self.publish();
        self.pump();
    }

    pub(super) fn reset(&self, id: PathId) {
        let generation = {
            let mut state = self.state.borrow_mut();
            let slot = state.slot(id);
            slot.and_then(|slot| slot.connection.as_ref())
                .map(|connection| connection.generation)
        };
        if let Some(generation) = generation {
            self.lose(generation);
        }
    }

    fn connect(&self, id: PathId) {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return;
        }
        if let Some(slot) = state.slot(id)
            && !std::mem::replace(&mut slot.connecting, true)
        {
            drop(spawn(Self::keep_connecting(self.this.clone(), id)));
        }
    }

    /// When there is nothing more to try for.
    fn loss_deadline(&self, id: PathId) -> Option<Instant> {
        let limit = self.shared.options.loss_timeout?;
        let mut state = self.state.borrow_mut();
        Some(state.slot(id)?.without_since + limit)
    }

    async fn keep_connecting(weak: Weak<Self>, id: PathId) {
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(channel) = weak.upgrade() else { return };
            let (options, pasts, is_only) = {
                let mut state = channel.state.borrow_mut();
                let Some(slot) = state.slot(id) else { return };
                let at = slot.at % slot.addresses.len();
                let (options, is_only) = (slot.addresses[at].clone(), slot.addresses.len() == 1);
                let past = slot.past.clone();
                let pasts = state.pasts_at(options.address, past);
                (options, pasts, is_only)
            };
            let deadline = channel.loss_deadline(id);
            let attempt = attempt(options, channel.shared.clone(), pasts, is_only);
            // The user may go while we try.
            drop(channel);
            let outcome = match deadline {
                Some(deadline) => time::timeout(deadline.since(time::now()), attempt).await.ok(),
                None => Some(attempt.await),
            };
            let Some(channel) = weak.upgrade() else { return };
            match outcome {
                Some(Ok(made)) => return channel.connected(id, made),
                Some(Err(error)) => {
                    tracing::warn!(%error, retry_ms = pause.as_millis() as u64, "no connection");
                }
                None => {}
            }
            let now = time::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return channel.give_path_up(id);
            }
            if let Some(slot) = channel.state.borrow_mut().slot(id) {
                slot.go_on();
            }
            drop(channel);
            let left = deadline.map_or(pause, |deadline| deadline.since(now));
            time::sleep(pause.min(left)).await;
            let Some(channel) = weak.upgrade() else { return };
            pause = (pause * 2).min(channel.shared.options.reconnect_delay_max);
        }
    }

    /// There was no connection by a path for too long.
    fn give_path_up(&self, id: PathId) {
        let last = {
            let mut state = self.state.borrow_mut();
            let Some(slot) = state.slot(id) else { return };
            slot.is_given_up = true;
            tracing::error!(
                address = %slot.address(),
                subsystem = %self.shared.options.connect.subsystem,
                nsid = self.shared.options.nsid,
                "no connection within the loss timeout: the path is given up"
            );
            state.slots.iter().all(|slot| slot.is_given_up)
        };
        if last {
            self.finish(IoError::Gone);
        }
    }

    fn connected(&self, id: PathId, made: Made) {
        let Made {
            settled,
            controller,
            namespace,
            access,
            events,
        } = made;
        let several = {
            let mut state = self.state.borrow_mut();
            let generation = state.generation + 1;
            let several = state.slots.iter().any(|slot| slot.connection.is_some());
            if state.end.is_some() {
                return;
            }
            let Some(slot) = state.slot(id) else { return };
            slot.connecting = false;
            // What is still in doubt of it is among the doubts.
            slot.past = None;
            // Either may end while the other seems alive (its packets just stay away).
            let own = || self.this.clone();
            drop(spawn(Self::lose_at(own(), generation, controller.ended())));
            let ended = namespace.queue().end_watch();
            drop(spawn(Self::lose_at(own(), generation, ended)));
            if let Some(limit) = self.shared.options.io_timeout {
                drop(spawn(Self::watch_answers(own(), generation, limit)));
            }
            let look = Rc::<Look>::default();
            if let Some(events) = events {
                follow_events(events, &look);
                let controller = Rc::downgrade(&controller);
                drop(spawn(Self::follow_access(
                    own(),
                    generation,
                    controller,
                    look.clone(),
                )));
                if access == AnaState::Change {
                    look.ask();
                }
            }
            slot.connection = Some(Connection {
                generation,
                target: generation,
                controller,
                namespace,
                look,
            });
            state.generation = generation;
            state.paths.set_state(id, access);
            several.then_some(generation)
        };
        if let Some(generation) = several {
            drop(spawn(Self::learn_target(self.this.clone(), generation)));
        }
        for number in settled {
            self.settled(number);
        }
        self.publish();
        self.pump();
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
                    subsystem = %channel.shared.options.connect.subsystem,
                    nsid = channel.shared.options.nsid,
                    limit_ms = limit.as_millis() as u64,
                    "a command has no answer: its association ends"
                );
                return channel.lose(generation);
            }
        }
    }

    /// A connection is of no use any more: its requests end, move, or wait for the next.
    pub(super) fn lose(&self, generation: u64) {
        let (id, lost, settle) = {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            let taken = state.slots.iter_mut().find_map(|slot| {
                let is_meant = |connection: &mut Connection| connection.generation == generation;
                let lost = slot.connection.take_if(is_meant)?;
                Some((slot, lost))
            });
            let Some((slot, lost)) = taken else { return };
            let now = time::now();
            let doubt = Doubt::of(&lost.controller, now);
            let in_flight = state.in_flight.iter().flatten();
            let writes = in_flight
                .filter(|one| one.generation == generation)
                .any(|one| changes(one.held.operation));
            slot.without_since = now;
            let address = lost.controller.options().address;
            slot.past = Some(Past {
                number: generation,
                address,
                doubt,
                writes,
            });
            let id = slot.id;
            state.paths.disconnected(id);
            state.hopeless.retain(|number| {
                let mut in_flight = state.in_flight.iter().flatten();
                in_flight.any(|one| one.generation == *number)
            });
            let settle = writes && doubt.can_be_settled();
            if settle {
                state.doubts.push(OpenDoubt {
                    number: generation,
                    target: lost.target,
                    address,
                    doubt,
                    given_up: false,
                });
            } else if writes {
                state.hopeless.push(generation);
            }
            (id, lost, settle)
        };
        // Without a borrow: requests complete here, and may submit others.
        lost.namespace.queue().abandon();
        lost.controller.close();
        lost.look.ask();
        drop(lost);
        if settle {
            drop(spawn(Self::settle(self.this.clone(), generation)));
        }
        self.connect(id);
        self.publish();
    }
}

async fn attempt(
    options: ConnectOptions,
    shared: Arc<Shared>,
    pasts: Vec<Past>,
    is_only: bool,
) -> Result<Made, ConnectError> {
    let (nsid, shape, address) = (shared.options.nsid, shared.shape, options.address);
    let changed = ConnectError::Changed {
        address,
        subsystem: options.subsystem.as_str().to_owned(),
        nsid,
    };
    let closed = ConnectError::Inaccessible {
        address,
        subsystem: options.subsystem.as_str().to_owned(),
        nsid,
    };
    let controller = Controller::connect(options).await?;
    let mut settled = Vec::new();
    for past in pasts {
        let is_settled = match past.address == address {
            true => past.doubt.settle(&controller, past.writes).await?,
            false => past.doubt.settle_away(&controller, past.writes).await?,
        };
        if is_settled {
            settled.push(past.number);
        } else if past.doubt.can_be_settled() {
            tracing::error!(
                %address,
                subsystem = %controller.options().subsystem,
                lost_cntlid = past.doubt.cntlid(),
                lost_address = %past.address,
                "nothing proves that the lost controller has ended: this one has no Cross-Controller Reset, as the lost one \
                 had, and there was no keep-alive time. Writes that were in flight there are held back until a controller \
                 of the same target ends it, and fail at the request's limit, as all then does. Where it is certain that the \
                 old target has ended, detach the controller and attach it anew, with a keep-alive time"
            );
        }
    }
    let namespace = controller.open_namespace(nsid).await?;
    if let Some(identifiers) = shape.identifiers
        && controller.identifiers(nsid).await? != identifiers
    {
        return Err(changed);
    }
    let geometry = namespace.geometry();
    if geometry.block_bytes != shape.geometry.block_bytes || geometry.blocks < shape.geometry.blocks {
        return Err(changed);
    }
    // Asked for first, so that no change falls between.
    let events = match controller.reports_access() {
        true => Some(controller.events().await?),
        false => None,
    };
    let access = controller.access(nsid).await?;
    if !is_only && is_closed(access) {
        return Err(closed);
    }
    Ok(Made {
        settled,
        controller,
        namespace,
        access,
        events,
    })
}
