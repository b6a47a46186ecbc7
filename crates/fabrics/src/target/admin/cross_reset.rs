//! Cross-Controller Reset (NVM Express Base Specification 2.3, section 5.4.3): a host that has given an association up,
//! and cannot know whether we have noticed, has us end it. What it has sent there is then not begun any more, and what
//! was begun has ended in the devices, before the command is answered.

use std::sync::Arc;

use protocols::nvme::Status;
use protocols::nvme::admin::CrossControllerReset;
use reactor::{spawn, time};

use super::AdminQueue;
use crate::target::connection::Connection;
use crate::target::queue::Answer;

/// Such commands at a time (CCRL). Each only waits, and the admin queue bounds them anyhow.
pub(super) const RESETS_MAX: u8 = 31;

fn is_meant(admin: &AdminQueue, reset: CrossControllerReset) -> bool {
    let controller = admin.controller();
    controller.cntlid == reset.cntlid && controller.cirn == reset.cirn
}

/// Ends the association that is meant, if it is there and of the same host; answers once nothing of this host's lost
/// queues is left below.
pub(super) fn answer(
    admin: &AdminQueue,
    connection: &Connection,
    slot: u16,
    reset: CrossControllerReset,
) -> Option<Answer> {
    let Some(subsystem) = admin.subsystem.clone() else {
        return Some(Answer::refuse(Status::INVALID_COMMAND_OPCODE));
    };
    if reset.cirn == 0 || is_meant(admin, reset) {
        return Some(Answer::refuse(Status::INVALID_FIELD_IN_COMMAND));
    }
    let host = admin.controller().host().clone();
    // A controller with another number at random is a later one that must not suffer; then the one that is meant has
    // ended already, and perhaps not drained.
    let meant = subsystem
        .controller(reset.cntlid)
        .filter(|controller| reset.ciu == 0 && controller.cirn == reset.cirn && *controller.host() == host);
    if let Some(controller) = meant {
        tracing::warn!(
            host_nqn = host.nqn,
            cntlid = reset.cntlid,
            by_cntlid = admin.controller().cntlid,
            "the host has an association reset from another"
        );
        controller.end();
        controller.disconnect();
    }
    let own = connection.own();
    let drains = Arc::clone(subsystem.drains());
    let mut drained = match drains.wait(&host) {
        Some(drained) => drained,
        None => return Some(Answer::result(CrossControllerReset::IMMEDIATE)),
    };
    let limit = own.shared.options.drain_limit;
    drop(spawn(async move {
        let deadline = time::now() + limit;
        let answer = loop {
            let left = deadline.since(time::now());
            if time::timeout(left, drained.recv()).await.is_err() {
                // The host asks again.
                break Answer::status(Status::COMMAND_INTERRUPTED);
            }
            match drains.wait(&host) {
                Some(again) => drained = again,
                None => break Answer::result(CrossControllerReset::IMMEDIATE),
            }
        };
        own.answer(slot, answer);
        own.flush();
    }));
    None
}
