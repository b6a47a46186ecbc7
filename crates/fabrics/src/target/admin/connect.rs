//! The Connect command: what makes a connection a queue (NVM Express Base Specification 2.0c, section 6.3).

use std::sync::Arc;

use protocols::nvme::fabrics::{
    Connect, ConnectAnswer, ConnectData, DYNAMIC_CNTLID, InvalidParameter, connect_invalid_parameter,
};
use protocols::nvme::{Command, Status};
use protocols::tcp::target::QueueKind;
use reactor::{CoreHandle, spawn, time};

use super::AdminQueue;
use crate::target::authentication::{self, NotAdmitted};
use crate::target::catch_up::catch_up;
use crate::target::command::HostIdentity;
use crate::target::connection::{Connection, listen_for_orders};
use crate::target::controller::{Controller, Origin, Path, QUEUE_SIZE_MAX};
use crate::target::discovery;
use crate::target::io::IoQueue;
use crate::target::queue::{Answer, Membership, Queue};
use crate::target::subsystem::Subsystem;

/// A discovery controller's queue is no longer than this, less one: a host that has proved nothing gets no more memory than it needs.
const DISCOVERY_QUEUE_SIZE_MAX: u16 = 127;

fn invalid(parameter: InvalidParameter) -> Answer {
    Answer {
        completion: connect_invalid_parameter(0, parameter),
        data: Vec::new(),
    }
}

fn path(connection: &Connection) -> Path {
    Path {
        peer: connection.queue().peer(),
        local: connection.queue().local(),
        portal: connection.shared.portal,
        reactor: CoreHandle::current().index(),
    }
}

/// Answers a Connect, now or, when its host has commands left in the devices from before, once they have ended.
pub(super) fn answer(connection: &Connection, slot: u16, command: &Command, data: &[u8]) -> Option<Answer> {
    let asked = match Asked::read(command, data) {
        Ok(asked) => asked,
        Err(answer) => return Some(answer),
    };
    let target = &connection.shared.target;
    let Some(subsystem) = target.subsystem(&asked.subsystem_nqn) else {
        return Some(connect(connection, &asked));
    };
    let reactors = target.reactors();
    if reactors.len() < 2 && subsystem.drains().wait(&asked.host).is_none() {
        return Some(connect(connection, &asked));
    }
    let own = connection.own();
    let limit = own.shared.options.drain_limit;
    drop(spawn(async move {
        let deadline = time::now() + limit;
        let caught_up = catch_up(&reactors, limit).await;
        let answer = loop {
            if !caught_up {
                tracing::warn!(
                    "a reactor does not answer, so what it has left of a host is unknown: the host must try again"
                );
                break Answer::status(Status::CONNECT_CONTROLLER_BUSY);
            }
            let Some(mut drained) = subsystem.drains().wait(&asked.host) else {
                break connect(&own, &asked);
            };
            let left = deadline.since(time::now());
            if time::timeout(left, drained.recv()).await.is_err() {
                tracing::warn!(
                    peer = %own.queue().peer(),
                    host_nqn = asked.host.nqn,
                    subsystem_nqn = asked.subsystem_nqn,
                    limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
                    "commands of a lost connection are still in the devices: the host must try again"
                );
                break Answer::status(Status::CONNECT_CONTROLLER_BUSY);
            }
        };
        own.answer(slot, answer);
        own.flush();
    }));
    None
}

/// What a host wants.
struct Asked {
    connect: Connect,
    cntlid: u16,
    subsystem_nqn: String,
    host: HostIdentity,
}

impl Asked {
    fn read(command: &Command, data: &[u8]) -> Result<Self, Answer> {
        let connect = Connect::from_command(command);
        let Ok(data) = ConnectData::decode(data) else {
            return Err(Answer::refuse(Status::DATA_SGL_LENGTH_INVALID));
        };
        if connect.record_format != 0 {
            return Err(Answer::refuse(Status::CONNECT_INCOMPATIBLE_FORMAT));
        }
        let subsystem_nqn = data.subnqn.text();
        let subsystem_nqn = subsystem_nqn.map_err(|_| invalid(InvalidParameter::SUBNQN))?;
        let host_nqn = data.hostnqn.text();
        let host_nqn = host_nqn.map_err(|_| invalid(InvalidParameter::HOSTNQN))?;
        // A queue of one entry could never hold a command; a larger one than we offer would take memory that
        // nobody needs, admin queues included.
        if connect.sqsize == 0 || connect.sqsize > QUEUE_SIZE_MAX {
            return Err(invalid(InvalidParameter::SQSIZE));
        }
        Ok(Self {
            connect,
            cntlid: data.cntlid,
            subsystem_nqn: subsystem_nqn.to_owned(),
            host: HostIdentity {
                nqn: host_nqn.to_owned(),
                id: data.hostid,
            },
        })
    }
}

fn connect(connection: &Connection, asked: &Asked) -> Answer {
    if connection.is_ended() {
        // Nobody is there to have a queue.
        return Answer::status(Status::ABORTED_SQ_DELETION);
    }
    if let Some(proven) = &connection.proven
        && (proven.host != asked.host.nqn || proven.subsystem != asked.subsystem_nqn)
    {
        // The key says who may be whom (NVMe over TCP transport specification 1.0c, section 3.6.1.3).
        tracing::warn!(
            peer = %connection.queue().peer(),
            host_nqn = asked.host.nqn,
            subsystem_nqn = asked.subsystem_nqn,
            proven_host_nqn = proven.host,
            proven_subsystem_nqn = proven.subsystem,
            "connect under other names than those of the key that TLS was made with"
        );
        return Answer::refuse(Status::CONNECT_INVALID_HOST);
    }
    if asked.connect.qid == 0 {
        admin_queue(connection, asked)
    } else {
        io_queue(connection, asked)
    }
}

fn admin_queue(connection: &Connection, asked: &Asked) -> Answer {
    let target = &connection.shared.target;
    let path = path(connection);
    let peer = path.peer;
    let (host_nqn, subsystem_nqn) = (&asked.host.nqn, &asked.subsystem_nqn);
    let subsystem = target.subsystem(subsystem_nqn);
    if subsystem
        .as_ref()
        .is_some_and(|subsystem| !subsystem.is_at(path.portal))
    {
        tracing::warn!(%peer, host_nqn, subsystem_nqn, portal = %path.portal.address, "connect to a subsystem that does not listen here");
        return invalid(InvalidParameter::SUBNQN);
    }
    let is_discovery = || {
        subsystem_nqn == protocols::nvme::nqn::DISCOVERY_NQN
            || subsystem_nqn == target.discovery_nqn().as_str()
    };
    if subsystem.is_none() && !is_discovery() {
        tracing::warn!(%peer, host_nqn, subsystem_nqn, "connect to a subsystem that is not here");
        return invalid(InvalidParameter::SUBNQN);
    }
    if asked.cntlid != DYNAMIC_CNTLID {
        return invalid(InvalidParameter::CNTLID);
    }
    if subsystem.is_none() && asked.connect.sqsize > DISCOVERY_QUEUE_SIZE_MAX {
        return invalid(InvalidParameter::SQSIZE);
    }
    if subsystem
        .as_ref()
        .is_some_and(|subsystem| !subsystem.allows(host_nqn))
    {
        tracing::warn!(%peer, host_nqn, subsystem_nqn, "connect by a host that is not allowed");
        return Answer::refuse(Status::CONNECT_INVALID_HOST);
    }
    let must_prove = match &subsystem {
        Some(subsystem) => match must_prove(connection, subsystem, asked) {
            Ok(must) => must,
            Err(answer) => return answer,
        },
        None => false,
    };
    let origin = Origin {
        host: asked.host.clone(),
        path,
        limits: connection.shared.options.queues,
        kato_ms: asked.connect.kato_ms,
        admin: listen_for_orders(&connection.own()),
        drains: subsystem
            .as_ref()
            .map(|subsystem| subsystem.drains().clone())
            .unwrap_or_default(),
    };
    let make = |cntlid| Controller::new(cntlid, origin);
    let controller = match &subsystem {
        Some(subsystem) => subsystem.add_controller(make),
        None => Some(Arc::new(make(discovery::next_cntlid()))),
    };
    let Some(controller) = controller else {
        return Answer::status(Status::CONNECT_CONTROLLER_BUSY);
    };
    if let Some(subsystem) = &subsystem
        && !is_still_let_in(connection, subsystem, asked)
    {
        // Whoever took the host's right away may have looked for its controllers before this one was there.
        return Answer::refuse(Status::CONNECT_INVALID_HOST);
    }
    if subsystem.is_none() {
        target.log().watch(&controller);
    }
    let cntlid = controller.cntlid;
    tracing::info!(%peer, host_nqn, subsystem_nqn, cntlid, "host connected");
    let required = subsystem.clone();
    let admin = AdminQueue::new(controller, subsystem, target.clone());
    AdminQueue::watch_keep_alive(&admin, &connection.own());
    let sqsize = asked.connect.sqsize;
    connection.resize(u32::from(sqsize) + 1, QueueKind::Admin);
    connection.queue().connected(Queue::Admin(admin), sqsize);
    connection.shared.counts.opened(&connection.queue().get());
    let authreq = required.filter(|_| must_prove).map_or(0, |subsystem| {
        authentication::require(connection, &subsystem, host_nqn, 0, asked.connect.kato_ms)
    });
    Answer {
        completion: ConnectAnswer { cntlid, authreq }.to_completion(0),
        data: Vec::new(),
    }
}

/// Whether what was looked at before a controller was added is so after it: those who change it disconnect the controllers that are
/// there, from any reactor.
fn is_still_let_in(connection: &Connection, subsystem: &Arc<Subsystem>, asked: &Asked) -> bool {
    let here = connection.shared.target.subsystem(&asked.subsystem_nqn);
    subsystem.allows(&asked.host.nqn)
        && subsystem.is_at(connection.shared.portal)
        && here.is_some_and(|here| Arc::ptr_eq(&here, subsystem))
}

/// Whether the host has to authenticate. Asked once for a queue: what is decided later is of its next queues.
fn must_prove(connection: &Connection, subsystem: &Subsystem, asked: &Asked) -> Result<bool, Answer> {
    match subsystem.admit(&asked.host.nqn) {
        Ok(keys) => Ok(keys.is_some()),
        Err(NotAdmitted::Yet(why)) => {
            let (host_nqn, qid) = (&asked.host.nqn, asked.connect.qid);
            tracing::debug!(host_nqn, qid, why, "connect by a host that is to come again");
            Err(Answer::status(Status::CONNECT_CONTROLLER_BUSY))
        }
        Err(NotAdmitted::Ever(why)) => {
            tracing::warn!(
                peer = %connection.queue().peer(),
                host_nqn = asked.host.nqn,
                subsystem_nqn = asked.subsystem_nqn,
                qid = asked.connect.qid,
                why,
                "connect by a host that is refused"
            );
            Err(Answer::refuse(Status::CONNECT_INVALID_HOST))
        }
    }
}

fn io_queue(connection: &Connection, asked: &Asked) -> Answer {
    let Some(subsystem) = connection.shared.target.subsystem(&asked.subsystem_nqn) else {
        return invalid(InvalidParameter::SUBNQN);
    };
    let Some(controller) = subsystem.controller(asked.cntlid) else {
        return invalid(InvalidParameter::CNTLID);
    };
    if controller.host().nqn != asked.host.nqn {
        return invalid(InvalidParameter::HOSTNQN);
    }
    if controller.host().id != asked.host.id {
        return invalid(InvalidParameter::HOSTID);
    }
    let path = path(connection);
    if path.portal != controller.path().portal {
        // What the admin queue has proved, by its key or by being let in there, this queue has not.
        tracing::warn!(
            peer = %path.peer,
            host_nqn = asked.host.nqn,
            subsystem_nqn = asked.subsystem_nqn,
            cntlid = asked.cntlid,
            portal = %path.portal.address,
            "connect of an I/O queue by another listener than its controller's"
        );
        return invalid(InvalidParameter::CNTLID);
    }
    let Connect { qid, sqsize, .. } = asked.connect;
    if qid > controller.limits().io_queues {
        return invalid(InvalidParameter::QID);
    }
    if sqsize >= controller.limits().entries {
        return invalid(InvalidParameter::SQSIZE);
    }
    if !controller.is_ready() {
        return Answer::refuse(Status::COMMAND_SEQUENCE_ERROR);
    }
    if !subsystem.allows(&asked.host.nqn) {
        return Answer::refuse(Status::CONNECT_INVALID_HOST);
    }
    let must_prove = match must_prove(connection, &subsystem, asked) {
        Ok(must) => must,
        Err(answer) => return answer,
    };
    let orders = listen_for_orders(&connection.own());
    let Some(share) = controller.add_io_queue(qid, path, orders) else {
        return invalid(InvalidParameter::QID);
    };
    let cntlid = controller.cntlid;
    let waits = subsystem.commands().is_none();
    let membership = Membership::new(controller.clone(), qid, waits);
    let local = connection.queue().local();
    let kato_ms = controller.kato_ms();
    let Some(queue) = IoQueue::new(subsystem.clone(), controller, qid, local, share) else {
        // The membership goes, and with it the place in the controller.
        return Answer::refuse(Status::CONNECT_INVALID_HOST);
    };
    connection.queue().join(membership);
    connection.resize(u32::from(sqsize) + 1, QueueKind::Io);
    connection.queue().connected(Queue::Io(queue), sqsize);
    connection.shared.counts.opened(&connection.queue().get());
    let authreq = match must_prove {
        true => authentication::require(connection, &subsystem, &asked.host.nqn, qid, kato_ms),
        false => 0,
    };
    Answer {
        completion: ConnectAnswer { cntlid, authreq }.to_completion(0),
        data: Vec::new(),
    }
}
