//! The Connect command: what makes a connection a queue (NVM Express Base Specification 2.0c, section 6.3).

use protocols::nvme::fabrics::{
    Connect, ConnectAnswer, ConnectData, DYNAMIC_CNTLID, InvalidParameter, connect_invalid_parameter,
};
use protocols::nvme::{Command, Status};
use protocols::tcp::target::QueueKind;

use super::AdminQueue;
use crate::target::connection::{Connection, listen_for_orders};
use crate::target::controller::{Controller, Host, Path, QUEUE_SIZE_MAX};
use crate::target::discovery;
use crate::target::io::IoQueue;
use crate::target::queue::{Answer, Queue};

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
    }
}

pub(super) fn answer(connection: &Connection, command: &Command, data: &[u8]) -> Answer {
    let connect = Connect::from_command(command);
    let Ok(host) = ConnectData::decode(data) else {
        return Answer::refuse(Status::DATA_SGL_LENGTH_INVALID);
    };
    if connect.record_format != 0 {
        return Answer::refuse(Status::CONNECT_INCOMPATIBLE_FORMAT);
    }
    let (Ok(subsystem_nqn), Ok(host_nqn)) = (host.subnqn.text(), host.hostnqn.text()) else {
        let bad = if host.subnqn.text().is_err() {
            InvalidParameter::SUBNQN
        } else {
            InvalidParameter::HOSTNQN
        };
        return invalid(bad);
    };
    // A queue of one entry could never hold a command; a larger one than we offer would take memory that nobody
    // needs, admin queues included.
    if connect.sqsize == 0 || connect.sqsize > QUEUE_SIZE_MAX {
        return invalid(InvalidParameter::SQSIZE);
    }
    if connect.qid == 0 {
        admin_queue(connection, &connect, &host, subsystem_nqn, host_nqn)
    } else {
        io_queue(connection, &connect, &host, subsystem_nqn, host_nqn)
    }
}

fn admin_queue(
    connection: &Connection,
    connect: &Connect,
    host: &ConnectData,
    subsystem_nqn: &str,
    host_nqn: &str,
) -> Answer {
    let target = &connection.shared.target;
    let path = path(connection);
    let peer = path.peer;
    let subsystem = match target.subsystem(subsystem_nqn) {
        Some(subsystem) if !subsystem.is_at(path.portal) => {
            tracing::warn!(%peer, host_nqn, subsystem_nqn, portal = %path.portal.address, "connect to a subsystem that does not listen here");
            return invalid(InvalidParameter::SUBNQN);
        }
        Some(subsystem) => Some(subsystem),
        None if subsystem_nqn == protocols::nvme::nqn::DISCOVERY_NQN => None,
        None => {
            tracing::warn!(%peer, host_nqn, subsystem_nqn, "connect to a subsystem that is not here");
            return invalid(InvalidParameter::SUBNQN);
        }
    };
    if host.cntlid != DYNAMIC_CNTLID {
        return invalid(InvalidParameter::CNTLID);
    }
    if subsystem
        .as_ref()
        .is_some_and(|subsystem| !subsystem.allows(host_nqn))
    {
        tracing::warn!(%peer, host_nqn, subsystem_nqn, "connect by a host that is not allowed");
        return Answer::refuse(Status::CONNECT_INVALID_HOST);
    }
    let orders = listen_for_orders(&connection.own());
    let host = Host {
        nqn: host_nqn.to_owned(),
        id: host.hostid,
        kato_ms: connect.kato_ms,
        path,
    };
    let limits = connection.shared.options.queues;
    let make = |cntlid| Controller::new(cntlid, host, limits, orders);
    let controller = match &subsystem {
        Some(subsystem) => subsystem.add_controller(make),
        None => Some(std::sync::Arc::new(make(discovery::next_cntlid()))),
    };
    let Some(controller) = controller else {
        return Answer::status(Status::CONNECT_CONTROLLER_BUSY);
    };
    let cntlid = controller.cntlid;
    tracing::info!(%peer, host_nqn, subsystem_nqn, cntlid, "host connected");
    let admin = AdminQueue::new(controller, subsystem, target.clone());
    AdminQueue::watch_keep_alive(&admin, &connection.own());
    connection.resize(u32::from(connect.sqsize) + 1, QueueKind::Admin);
    connection.queue().connected(Queue::Admin(admin), connect.sqsize);
    connection.shared.counts.opened(&connection.queue().get());
    Answer {
        completion: ConnectAnswer { cntlid, authreq: 0 }.to_completion(0),
        data: Vec::new(),
    }
}

fn io_queue(
    connection: &Connection,
    connect: &Connect,
    host: &ConnectData,
    subsystem_nqn: &str,
    host_nqn: &str,
) -> Answer {
    let Some(subsystem) = connection.shared.target.subsystem(subsystem_nqn) else {
        return invalid(InvalidParameter::SUBNQN);
    };
    let Some(controller) = subsystem.controller(host.cntlid) else {
        return invalid(InvalidParameter::CNTLID);
    };
    if controller.host_nqn != host_nqn {
        return invalid(InvalidParameter::HOSTNQN);
    }
    if controller.host_id != host.hostid {
        return invalid(InvalidParameter::HOSTID);
    }
    if connect.qid > controller.limits.io_queues {
        return invalid(InvalidParameter::QID);
    }
    if connect.sqsize >= controller.limits.entries {
        return invalid(InvalidParameter::SQSIZE);
    }
    if !controller.is_ready() {
        return Answer::refuse(Status::COMMAND_SEQUENCE_ERROR);
    }
    if !controller.add_io_queue(
        connect.qid,
        path(connection),
        listen_for_orders(&connection.own()),
    ) {
        return invalid(InvalidParameter::QID);
    }
    let cntlid = controller.cntlid;
    let Some(queue) = IoQueue::new(subsystem, controller.clone(), connect.qid) else {
        controller.remove_io_queue(connect.qid);
        return Answer::refuse(Status::CONNECT_INVALID_HOST);
    };
    connection.resize(u32::from(connect.sqsize) + 1, QueueKind::Io);
    connection.queue().connected(Queue::Io(queue), connect.sqsize);
    connection.shared.counts.opened(&connection.queue().get());
    Answer {
        completion: ConnectAnswer { cntlid, authreq: 0 }.to_completion(0),
        data: Vec::new(),
    }
}
