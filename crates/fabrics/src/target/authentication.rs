//! Authentication of hosts: DH-HMAC-CHAP on each queue that a host with keys connects (NVM Express Base Specification
//! 2.0c, section 8.13). Until it has passed, the queue takes no other command.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use foundation::Instant;
use protocols::auth::{
    AuthenticationCommand, Controller as Protocol, CryptoError, Keys, Names, Policy, system_entropy,
};
use protocols::nvme::{Command, FabricsType, SglDescriptor, Status};
use reactor::{spawn, time};

use super::connection::Connection;
use super::queue::Answer;
use super::subsystem::{Subsystem, Target};
use crate::authentication::{Credentials, elsewhere, next_sequence};

/// ATR of Connect's answer: the host must authenticate (section 6.3).
const AUTHENTICATION_REQUIRED: u16 = 1 << 1;
/// How long a message may be due from a host without keep-alive; with one, its time is the limit (section 8.13.5), but no
/// longer: who has proved nothing does not say how long it keeps a connection.
const PATIENCE: Duration = Duration::from_secs(120);

/// What becomes of a host that connects, as who decides that says of its name.
#[derive(Debug)]
pub enum Admission {
    /// It authenticates if keys were set for it ([`Subsystem::set_credentials`]).
    Usual,
    /// It authenticates with one of these.
    Proof(Vec<Arc<Keys>>),
    /// It is told Connect Invalid Host, and the log why.
    Refused(&'static str),
    /// Nobody can say yet. It is told Controller Busy, and comes again.
    NotYet(&'static str),
}

/// Why a host is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// As [`Admission::Refused`].
    Ever(&'static str),
    /// As [`Admission::NotYet`].
    Yet(&'static str),
}

/// Decides about hosts by their names; called on any core, for each of their queues.
pub type Admit = Arc<dyn Fn(&str) -> Admission + Send + Sync>;

/// The hosts that have to authenticate, by name.
#[derive(Default)]
pub(super) struct Credentialed {
    named: Mutex<BTreeMap<String, Credentials>>,
    admit: OnceLock<Admit>,
}

impl Credentialed {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Credentials>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subsystem {
    /// The keys with which a host has to authenticate; `None` if it need not.
    pub fn credentials(&self, host: &str) -> Option<Credentials> {
        self.credentialed.locked().get(host).cloned()
    }

    /// The hosts that have to, by name.
    pub fn credentialed_hosts(&self) -> Vec<(String, Credentials)> {
        let all = self.credentialed.locked();
        all.iter()
            .map(|(host, credentials)| (host.clone(), credentials.clone()))
            .collect()
    }

    /// Has `admit` decide about every host that connects from now on; once for a subsystem, before it is served.
    pub fn set_admission(&self, admit: Admit) {
        assert!(
            self.credentialed.admit.set(admit).is_ok(),
            "who decides about hosts is set once"
        );
    }

    /// The keys of which a host has to know one, if it has to; or why it is refused.
    pub(super) fn admit(&self, host: &str) -> Result<Option<Vec<Arc<Keys>>>, NotAdmitted> {
        let admission = self.credentialed.admit.get().map(|admit| admit(host));
        match admission {
            Some(Admission::Refused(why)) => Err(NotAdmitted::Ever(why)),
            Some(Admission::NotYet(why)) => Err(NotAdmitted::Yet(why)),
            Some(Admission::Proof(keys)) => Ok(Some(keys)),
            Some(Admission::Usual) | None => {
                Ok(self.credentials(host).map(|credentials| vec![credentials.keys]))
            }
        }
    }

    /// Makes a host authenticate from its next connection on, or not any more. Queues that are connected go on; an
    /// authentication that they begin uses the new keys.
    pub fn set_credentials(&self, host: &str, credentials: Option<Credentials>) {
        let mut all = self.credentialed.locked();
        match credentials {
            Some(credentials) => all.insert(host.to_owned(), credentials),
            None => all.remove(host),
        };
    }
}

impl Target {
    /// The hash functions and groups that hosts may authenticate with, the most wanted first.
    pub fn authentication_policy(&self) -> Policy {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets them, for authentications that begin from now on.
    pub fn set_authentication_policy(&self, policy: Policy) {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy;
    }
}

/// A queue's authentication.
pub(super) struct Authentication {
    names: Names,
    qid: u16,
    subsystem: Arc<Subsystem>,
    target: Arc<Target>,
    place: RefCell<Place>,
    has_passed: Cell<bool>,
    limit: Duration,
    born: Instant,
    /// When the host's last message came.
    moved: Cell<Instant>,
}

/// Where the protocol's state is.
enum Place {
    /// None is under way.
    Idle,
    Here(Protocol),
    /// With the thread for arithmetic.
    Away,
}

/// What a command wants.
enum Work {
    Take(Vec<u8>),
    /// With so much room, in bytes.
    Give(usize),
}

/// What became of it: a message for the host, if it asked for one.
type Outcome = Result<Option<Vec<u8>>, CryptoError>;

impl Work {
    fn run(&self, protocol: &mut Protocol) -> Outcome {
        match self {
            Work::Take(message) => protocol.take(message).map(|()| None),
            Work::Give(_) => protocol.give(next_sequence()?, &mut system_entropy).map(Some),
        }
    }
}

impl Authentication {
    /// Whether the host has not authenticated yet.
    pub(super) fn bars(&self) -> bool {
        !self.has_passed.get()
    }

    /// Whether the host lets us wait for too long.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        // Messages that lead nowhere gain no time.
        if self.bars() && now - self.born > PATIENCE {
            return true;
        }
        let is_under_way = self.bars() || matches!(*self.place.borrow(), Place::Here(_));
        is_under_way && now - self.moved.get() > self.limit
    }

    /// The protocol's state, for a message; `None` if none is due.
    fn enter(&self, work: &Work) -> Option<Protocol> {
        match std::mem::replace(&mut *self.place.borrow_mut(), Place::Away) {
            Place::Here(protocol) => return Some(protocol),
            Place::Away => return None,
            Place::Idle => {}
        }
        let known = self.subsystem.admit(&self.names.host);
        let fresh = known
            .ok()
            .flatten()
            .filter(|_| self.bars() || matches!(work, Work::Take(_)));
        if fresh.is_none() {
            *self.place.borrow_mut() = Place::Idle;
        }
        let policy = self.target.authentication_policy();
        Some(Protocol::with_any(self.names.clone(), fresh?, policy))
    }

    /// Answers a command, and says what became of the authentication.
    fn leave(&self, connection: &Connection, slot: u16, work: &Work, protocol: Protocol, outcome: Outcome) {
        self.moved.set(time::now());
        let Names { host, subsystem } = &self.names;
        let (peer, qid) = (connection.queue().peer(), self.qid);
        let mut failed = true;
        let answer = match (outcome, work) {
            (Err(error), _) => {
                tracing::error!(%peer, host, subsystem, qid, %error, "a host could not be authenticated");
                Answer::status(Status::INTERNAL_ERROR)
            }
            (Ok(Some(message)), Work::Give(room)) if message.len() > *room => {
                Answer::refuse(Status::INVALID_FIELD_IN_COMMAND)
            }
            (Ok(message), _) => {
                failed = false;
                message.map_or_else(Answer::success, Answer::data)
            }
        };
        let mut next = Place::Idle;
        if !failed {
            if let Some(reason) = protocol.failure() {
                failed = true;
                tracing::warn!(%peer, host, subsystem, qid, %reason, "authentication failed");
            } else if protocol.has_passed() {
                self.has_passed.set(true);
                tracing::info!(%peer, host, subsystem, qid, "host authenticated");
            } else {
                next = Place::Here(protocol);
            }
        }
        *self.place.borrow_mut() = next;
        connection.answer(slot, answer);
        if failed {
            // After the answer: a queue whose host failed is of no use.
            connection.finish();
        } else {
            connection.flush();
        }
    }
}

/// Makes the host authenticate before it uses the queue; Connect's AUTHREQ says so.
pub(super) fn require(
    connection: &Connection,
    subsystem: &Arc<Subsystem>,
    host: &str,
    qid: u16,
    kato_ms: u32,
) -> u16 {
    let authentication = Authentication {
        names: Names {
            host: host.to_owned(),
            subsystem: subsystem.nqn().as_str().to_owned(),
        },
        qid,
        subsystem: subsystem.clone(),
        target: connection.shared.target.clone(),
        place: RefCell::new(Place::Idle),
        has_passed: Cell::new(false),
        limit: match kato_ms {
            0 => PATIENCE,
            kato_ms => Duration::from_millis(kato_ms.into()).min(PATIENCE),
        },
        born: time::now(),
        moved: Cell::new(time::now()),
    };
    connection.queue().require(authentication);
    AUTHENTICATION_REQUIRED
}

/// Runs Authentication Send or Receive. One that is taken is answered here.
pub(super) fn run(connection: &Connection, slot: u16, command: &Command, data: &[u8]) -> Option<Answer> {
    let asked = AuthenticationCommand::from_command(command);
    if !asked.is_ours {
        return Some(Answer::refuse(Status::INVALID_FIELD_IN_COMMAND));
    }
    if command.fabrics_type() == Some(FabricsType::AuthenticationSend) {
        if asked.length_bytes as usize != data.len() {
            return Some(Answer::refuse(Status::INVALID_FIELD_IN_COMMAND));
        }
        return begin(connection, slot, Work::Take(data.to_vec()));
    }
    match command.sgl() {
        SglDescriptor::Transport { length } => begin(
            connection,
            slot,
            Work::Give(length.min(asked.length_bytes) as usize),
        ),
        _ => Some(Answer::refuse(Status::SGL_DESCRIPTOR_TYPE_INVALID)),
    }
}

fn begin(connection: &Connection, slot: u16, work: Work) -> Option<Answer> {
    let entered = connection.queue().authentication().and_then(|authentication| {
        let protocol = authentication.enter(&work)?;
        Some((authentication, protocol))
    });
    let Some((authentication, mut protocol)) = entered else {
        return Some(Answer::refuse(Status::COMMAND_SEQUENCE_ERROR));
    };
    if !protocol.is_laborious() {
        let outcome = work.run(&mut protocol);
        authentication.leave(connection, slot, &work, protocol, outcome);
        return None;
    }
    let own = connection.own();
    drop(spawn(async move {
        let done = elsewhere(move || {
            let outcome = work.run(&mut protocol);
            (work, protocol, outcome)
        });
        let done = done.await;
        if let Some(authentication) = own.queue().authentication() {
            match done {
                Some((work, protocol, outcome)) => {
                    authentication.leave(&own, slot, &work, protocol, outcome);
                }
                None => {
                    own.answer(slot, Answer::status(Status::INTERNAL_ERROR));
                    own.finish();
                }
            }
        }
    }));
    None
}
