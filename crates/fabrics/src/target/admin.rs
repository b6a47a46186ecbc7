//! Admin and fabrics commands (NVM Express Base Specification 2.0c, sections 5 and 6).

mod connect;
mod cross_reset;
mod features;
mod identify;
mod logs;
mod reservations;

pub use identify::IN_CAPSULE_BYTES;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foundation::Instant;
use protocols::nvme::admin::{Abort, CrossControllerReset, GetFeatures, GetLogPage, Identify, SetFeatures};
use protocols::nvme::fabrics::{PropertyGet, PropertySet, PropertySize};
use protocols::nvme::{AdminOpcode, Command, Completion, FabricsType, Status};
use reactor::mailbox::mailbox;
use reactor::{spawn, time};

use super::authentication;
use super::connection::{Connection, SharedController};
use super::queue::{Answer, Order, Queue};
use super::subsystem::{Subsystem, Target};

/// Asynchronous Event Requests that a host may leave waiting (AERL is one less).
const EVENT_REQUESTS_MAX: usize = 4;
/// Abort commands at a time (ACL is one less).
const ABORTS_MAX: u32 = 4;
/// Beyond the keep-alive time: a late packet is no reason to end an association.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(1);

/// Looks at a host within its keep-alive time.
const KEEP_ALIVE_LOOKS: u32 = 4;
/// The longest between two looks, since a host may promise another time at any moment.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// How long a discovery controller that was promised no keep-alive may be silent.
const DISCOVERY_SILENCE_MAX: Duration = Duration::from_secs(120);

/// The admin queue of one controller.
pub(super) struct AdminQueue {
    controller: SharedController,
    /// None for a discovery controller.
    subsystem: Option<Arc<Subsystem>>,
    target: Arc<Target>,
    /// Slots of Asynchronous Event Requests that wait for an event.
    event_requests: RefCell<VecDeque<u16>>,
    /// Abort commands that wait for another queue's answer.
    aborting: Cell<u32>,
    born: Instant,
    last_command: Cell<Instant>,
}

impl AdminQueue {
    fn new(controller: SharedController, subsystem: Option<Arc<Subsystem>>, target: Arc<Target>) -> Rc<Self> {
        let born = time::now();
        let last_command = Cell::new(born);
        Rc::new(Self {
            controller,
            subsystem,
            target,
            event_requests: RefCell::default(),
            aborting: Cell::new(0),
            born,
            last_command,
        })
    }

    fn is_discovery(&self) -> bool {
        self.subsystem.is_none()
    }

    pub(super) fn controller(&self) -> &SharedController {
        &self.controller
    }

    /// The connection is gone: so is the association.
    pub(super) fn end(&self) {
        self.controller.end();
    }

    /// Runs a command; `None` if it is answered later.
    pub(super) fn execute(
        admin: &Rc<Self>,
        connection: &Connection,
        slot: u16,
        command: &Command,
        data: &[u8],
    ) -> Option<Answer> {
        admin.last_command.set(time::now());
        let Some(opcode) = AdminOpcode::from_code(command.opcode()) else {
            return Some(Answer::refuse(Status::INVALID_COMMAND_OPCODE));
        };
        if !admin.controller.is_ready() && opcode != AdminOpcode::KeepAlive {
            return Some(Answer::refuse(Status::COMMAND_SEQUENCE_ERROR));
        }
        Some(match opcode {
            AdminOpcode::Identify => identify::answer(admin, &Identify::from_command(command)),
            AdminOpcode::GetLogPage => logs::answer(
                admin,
                connection.queue().local(),
                &GetLogPage::from_command(command),
            ),
            AdminOpcode::SetFeatures if features::answers_later(command) => {
                let set = SetFeatures::from_command(command);
                return reservations::set_persistence(admin, connection, slot, &set);
            }
            AdminOpcode::SetFeatures => features::set(admin, &SetFeatures::from_command(command), data),
            AdminOpcode::GetFeatures => features::get(admin, &GetFeatures::from_command(command)),
            AdminOpcode::KeepAlive => Answer::success(),
            AdminOpcode::AsynchronousEventRequest => return admin.request_event(connection, slot),
            AdminOpcode::Abort => {
                return Self::abort(admin, connection, slot, &Abort::from_command(command));
            }
            AdminOpcode::CrossControllerReset => {
                let reset = CrossControllerReset::from_command(command);
                return cross_reset::answer(admin, connection, slot, reset);
            }
            _ => Answer::refuse(Status::INVALID_COMMAND_OPCODE),
        })
    }

    fn request_event(&self, connection: &Connection, slot: u16) -> Option<Answer> {
        let mut waiting = self.event_requests.borrow_mut();
        if waiting.len() >= EVENT_REQUESTS_MAX {
            return Some(Answer::refuse(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED));
        }
        waiting.push_back(slot);
        drop(waiting);
        self.send_events_to(connection);
        None
    }

    /// Reports events to the requests that wait for them, as the controller has told us to.
    pub(super) fn send_events(admin: &Rc<Self>, connection: &Connection) {
        admin.controller.events_looked_at();
        admin.send_events_to(connection);
    }

    fn send_events_to(&self, connection: &Connection) {
        while !self.event_requests.borrow().is_empty() {
            let Some(event) = self.controller.take_event() else {
                return;
            };
            let slot = self.event_requests.borrow_mut().pop_front();
            if let Some(slot) = slot {
                connection.answer(slot, Answer::result(event.to_result()));
            }
        }
    }

    /// Aborts what has not begun: commands that wait for a buffer, and requests for events. What is with a device
    /// cannot be called back, and the answer says so (section 5.1).
    fn abort(admin: &Rc<Self>, connection: &Connection, slot: u16, abort: &Abort) -> Option<Answer> {
        if abort.sqid == 0 {
            return Some(abort_answer(admin.abort_event_request(connection, abort.cid)));
        }
        if admin.aborting.get() >= ABORTS_MAX {
            return Some(Answer::refuse(Status::ABORT_COMMAND_LIMIT_EXCEEDED));
        }
        let (sender, mut answer) = mailbox(1);
        let queue = admin.controller.io_queue(abort.sqid);
        if queue.is_none_or(|queue| queue.try_send(Order::Abort(abort.cid, sender)).is_err()) {
            return Some(abort_answer(false));
        }
        admin.aborting.set(admin.aborting.get() + 1);
        let (admin, own) = (admin.clone(), connection.own());
        drop(spawn(async move {
            // Nothing comes from a queue that has ended, and its commands have ended with it.
            let aborted = answer.recv().await.unwrap_or(false);
            admin.aborting.set(admin.aborting.get() - 1);
            own.answer(slot, abort_answer(aborted));
            own.flush();
        }));
        None
    }

    fn abort_event_request(&self, connection: &Connection, cid: u16) -> bool {
        let slot = {
            let mut waiting = self.event_requests.borrow_mut();
            let found = waiting.iter().position(|slot| connection.cid(*slot) == Some(cid));
            found.and_then(|index| waiting.remove(index))
        };
        if let Some(slot) = slot {
            connection.answer(slot, Answer::status(Status::ABORT_REQUESTED));
        }
        slot.is_some()
    }

    /// Ends the association when the host has been silent for longer than it promised.
    fn watch_keep_alive(admin: &Rc<Self>, connection: &Rc<Connection>) {
        let (admin, weak) = (Rc::downgrade(admin), Rc::downgrade(connection));
        drop(spawn(async move {
            let mut seen = [0; 3];
            loop {
                let Some(limit) = admin.upgrade().map(|admin| admin.silence_limit()) else {
                    return;
                };
                time::sleep(limit.map_or(LOOK_MAX, |limit| (limit / KEEP_ALIVE_LOOKS).min(LOOK_MAX))).await;
                let (Some(admin), Some(connection)) = (admin.upgrade(), weak.upgrade()) else {
                    return;
                };
                // Commands on any queue keep the association alive (TBKAS, section 3.9).
                let commands = admin.controller.totals().commands;
                if commands != seen {
                    seen = commands;
                    admin.last_command.set(time::now());
                }
                let Some(limit) = admin.silence_limit() else {
                    continue;
                };
                let silent = time::now() - admin.last_command.get();
                if silent > limit {
                    tracing::warn!(
                        host = admin.controller.host().nqn,
                        cntlid = admin.controller.cntlid,
                        silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
                        "keep-alive expired: the association ends"
                    );
                    connection.finish();
                    return;
                }
            }
        }));
    }

    fn silence_limit(&self) -> Option<Duration> {
        match self.controller.kato_ms() {
            // Nobody has proved anything here, and what looks once at the log goes at once.
            0 if self.is_discovery() => Some(DISCOVERY_SILENCE_MAX),
            0 => None,
            kato_ms => Some(Duration::from_millis(kato_ms.into()) + KEEP_ALIVE_GRACE),
        }
    }
}

fn abort_answer(aborted: bool) -> Answer {
    Answer::result(if aborted { 0 } else { Abort::NOT_ABORTED })
}

/// Runs a fabrics command; `None` if it is answered later.
pub(super) fn fabrics(connection: &Connection, slot: u16, command: &Command, data: &[u8]) -> Option<Answer> {
    let queue = connection.queue().get();
    let answer = match (command.fabrics_type(), &queue) {
        (Some(FabricsType::Connect), Queue::New) => return connect::answer(connection, slot, command, data),
        (Some(FabricsType::Connect), _) | (_, Queue::New) => Answer::refuse(Status::COMMAND_SEQUENCE_ERROR),
        (Some(FabricsType::AuthenticationSend | FabricsType::AuthenticationReceive), queue) => {
            if let Queue::Admin(admin) = queue {
                admin.last_command.set(time::now());
            }
            return authentication::run(connection, slot, command, data);
        }
        _ if connection.queue().is_barred() => Answer::refuse(Status::AUTHENTICATION_REQUIRED),
        (Some(FabricsType::PropertyGet), Queue::Admin(admin)) => {
            admin.last_command.set(time::now());
            property_get(admin, &PropertyGet::from_command(command))
        }
        (Some(FabricsType::PropertySet), Queue::Admin(admin)) => {
            admin.last_command.set(time::now());
            let set = PropertySet::from_command(command);
            if admin.controller.set_property(set.offset, set.value) {
                Answer::success()
            } else {
                Answer::refuse(Status::INVALID_FIELD_IN_COMMAND)
            }
        }
        // Only I/O queues are deleted one by one (section 6.4), and there is one format of the record.
        (Some(FabricsType::Disconnect), Queue::Admin(_)) => Answer::refuse(Status::INVALID_QUEUE_TYPE),
        (Some(FabricsType::Disconnect), Queue::Io(_)) if command.cdw10() as u16 != 0 => {
            Answer::refuse(Status::CONNECT_INCOMPATIBLE_FORMAT)
        }
        (Some(FabricsType::Disconnect), Queue::Io(_)) => {
            let own = connection.own();
            // The answer goes out first.
            drop(spawn(async move {
                time::sleep(Duration::from_millis(10)).await;
                own.order(Order::End);
            }));
            Answer::success()
        }
        _ => Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
    };
    Some(answer)
}

fn property_get(admin: &AdminQueue, get: &PropertyGet) -> Answer {
    match (admin.controller.property(get.offset), get.size) {
        (Some(value), PropertySize::Eight) => Answer {
            completion: Completion::success(0).with_result_u64(value),
            data: Vec::new(),
        },
        (Some(value), PropertySize::Four) => Answer::result(value as u32),
        _ => Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
    }
}
