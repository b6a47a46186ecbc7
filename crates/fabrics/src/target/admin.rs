//! Admin and fabrics commands (NVM Express Base Specification 2.0c, sections 5 and 6).

mod connect;
mod identify;
mod logs;

pub use identify::IN_CAPSULE_BYTES;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foundation::Instant;
use protocols::nvme::admin::{Abort, GetFeatures, GetLogPage, Identify, SetFeatures};
use protocols::nvme::fabrics::{PropertyGet, PropertySet, PropertySize};
use protocols::nvme::features::{AsyncEventConfiguration, Feature, QueueCounts};
use protocols::nvme::{AdminOpcode, Command, Completion, FabricsType, Status};
use reactor::{spawn, time};

use super::connection::{Connection, SharedController};
use super::queue::{Answer, Order, Queue};
use super::subsystem::{Subsystem, Target};

/// Asynchronous Event Requests that a host may leave waiting (AERL is one less).
const EVENT_REQUESTS_MAX: usize = 4;
/// Beyond the keep-alive time: a late packet is no reason to end an association.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(1);

/// The admin queue of one controller.
pub(super) struct AdminQueue {
    controller: SharedController,
    /// None for a discovery controller.
    subsystem: Option<Arc<Subsystem>>,
    target: Arc<Target>,
    /// Slots of Asynchronous Event Requests that wait for an event.
    event_requests: RefCell<VecDeque<u16>>,
    last_command: Cell<Instant>,
}

impl AdminQueue {
    fn new(controller: SharedController, subsystem: Option<Arc<Subsystem>>, target: Arc<Target>) -> Rc<Self> {
        let last_command = Cell::new(time::now());
        Rc::new(Self {
            controller,
            subsystem,
            target,
            event_requests: RefCell::default(),
            last_command,
        })
    }

    fn is_discovery(&self) -> bool {
        self.subsystem.is_none()
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
            AdminOpcode::SetFeatures => admin.set_features(&SetFeatures::from_command(command), data),
            AdminOpcode::GetFeatures => admin.get_features(&GetFeatures::from_command(command)),
            AdminOpcode::KeepAlive => Answer::success(),
            AdminOpcode::AsynchronousEventRequest => return admin.request_event(connection, slot),
            AdminOpcode::Abort => Self::abort(&Abort::from_command(command)),
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

    /// Reports events to the requests that wait for them.
    pub(super) fn send_events(admin: &Rc<Self>, connection: &Connection) {
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

    /// Commands run as they come and cannot be called back: an abort is always "not aborted"
    /// (section 5.1), which the host must be ready for.
    fn abort(_abort: &Abort) -> Answer {
        Answer::result(Abort::NOT_ABORTED)
    }

    fn set_features(&self, set: &SetFeatures, _data: &[u8]) -> Answer {
        if set.save {
            return Answer::refuse(Status::FEATURE_NOT_SAVEABLE);
        }
        let Some(feature) = Feature::from_code(set.feature) else {
            return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
        };
        match feature {
            Feature::NumberOfQueues if !self.is_discovery() => {
                let asked = QueueCounts::from_value(set.value);
                if !asked.is_valid() {
                    return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
                }
                Answer::result(self.queue_counts().to_value())
            }
            Feature::AsynchronousEventConfiguration => {
                self.controller.set_events(AsyncEventConfiguration(set.value));
                Answer::success()
            }
            Feature::KeepAliveTimer => {
                self.controller.set_kato_ms(set.value);
                Answer::success()
            }
            Feature::HostIdentifier => Answer::refuse(Status::FEATURE_NOT_CHANGEABLE),
            Feature::VolatileWriteCache => Answer::refuse(Status::FEATURE_NOT_CHANGEABLE),
            Feature::HostBehaviorSupport => Answer::success(),
            _ => Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
        }
    }

    fn get_features(&self, get: &GetFeatures) -> Answer {
        let Some(feature) = Feature::from_code(get.feature) else {
            return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
        };
        match feature {
            Feature::NumberOfQueues if !self.is_discovery() => Answer::result(self.queue_counts().to_value()),
            Feature::AsynchronousEventConfiguration => Answer::result(self.controller.events().0),
            Feature::KeepAliveTimer => Answer::result(self.controller.kato_ms()),
            Feature::HostIdentifier => Answer::data(self.controller.host_id.to_vec()),
            Feature::VolatileWriteCache => Answer::result(1),
            Feature::Arbitration
            | Feature::PowerManagement
            | Feature::TemperatureThreshold
            | Feature::ErrorRecovery
            | Feature::WriteAtomicityNormal => Answer::result(0),
            _ => Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
        }
    }

    fn queue_counts(&self) -> QueueCounts {
        QueueCounts {
            submission: self.controller.limits.io_queues.into(),
            completion: self.controller.limits.io_queues.into(),
        }
    }

    /// Ends the association when the host has been silent for longer than it promised.
    fn watch_keep_alive(admin: &Rc<Self>, connection: &Rc<Connection>) {
        let (admin, weak) = (Rc::downgrade(admin), Rc::downgrade(connection));
        drop(spawn(async move {
            loop {
                let Some(limit) = admin.upgrade().map(|admin| admin.silence_limit()) else {
                    return;
                };
                time::sleep(limit.unwrap_or(Duration::from_secs(5))).await;
                let (Some(admin), Some(connection)) = (admin.upgrade(), weak.upgrade()) else {
                    return;
                };
                let Some(limit) = admin.silence_limit() else {
                    continue;
                };
                let silent = time::now() - admin.last_command.get();
                if silent > limit {
                    tracing::warn!(
                        host = admin.controller.host_nqn,
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
            0 => None,
            kato_ms => Some(Duration::from_millis(kato_ms.into()) + KEEP_ALIVE_GRACE),
        }
    }
}

/// Runs a fabrics command; `None` if it is answered later.
pub(super) fn fabrics(connection: &Connection, command: &Command, data: &[u8]) -> Option<Answer> {
    let queue = connection.queue().get();
    let answer = match (command.fabrics_type(), &queue) {
        (Some(FabricsType::Connect), Queue::New) => connect::answer(connection, command, data),
        (Some(FabricsType::Connect), _) | (_, Queue::New) => Answer::refuse(Status::COMMAND_SEQUENCE_ERROR),
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
