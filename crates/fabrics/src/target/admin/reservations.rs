//! The features and the log page of reservations (NVM Express Base Specification 2.0c, sections 5.27.1.26, 5.27.1.27 and
//! 5.16.1).

use std::sync::Arc;

use protocols::nvme::Status;
use protocols::nvme::admin::{GetFeatures, SetFeatures};
use protocols::nvme::features::{Feature, RESERVATION_PERSISTS, reservation_mask};
use reactor::spawn;

use super::AdminQueue;
use crate::target::connection::Connection;
use crate::target::io::reservation_refusal;
use crate::target::queue::Answer;
use crate::target::reservation::{Change, Failure, Owner, Refusal};
use crate::target::subsystem::Subsystem;

const BROADCAST_NSID: u32 = 0xffff_ffff;

/// The namespaces that a Set Features means.
fn named(subsystem: &Subsystem, nsid: u32) -> Result<Vec<Arc<Owner>>, Status> {
    if nsid == BROADCAST_NSID {
        return Ok(subsystem.all_reservations());
    }
    let one = subsystem.reservations(nsid);
    Ok(vec![one.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?])
}

/// Sets which notifications a namespace makes.
pub(super) fn set_mask(admin: &AdminQueue, set: &SetFeatures) -> Answer {
    let Some(subsystem) = &admin.subsystem else {
        return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
    };
    if set.value & !reservation_mask::ALL != 0 {
        return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
    }
    match named(subsystem, set.nsid) {
        Ok(owners) => {
            for owner in owners {
                owner.set_mask(set.value);
            }
            Answer::success()
        }
        Err(status) => Answer::refuse(status),
    }
}

/// Sets whether a namespace's reservations persist; answered once that is durable.
pub(super) fn set_persistence(
    admin: &AdminQueue,
    connection: &Connection,
    slot: u16,
    set: &SetFeatures,
) -> Option<Answer> {
    let Some(subsystem) = admin.subsystem.clone() else {
        return Some(Answer::refuse(Status::INVALID_FIELD_IN_COMMAND));
    };
    if set.save {
        return Some(Answer::refuse(Status::FEATURE_NOT_SAVEABLE));
    }
    if set.value & !RESERVATION_PERSISTS != 0 {
        return Some(Answer::refuse(Status::INVALID_FIELD_IN_COMMAND));
    }
    let owners = match named(&subsystem, set.nsid) {
        Ok(owners) => owners,
        Err(status) => return Some(Answer::refuse(status)),
    };
    let all = set.nsid == BROADCAST_NSID;
    let (host, on) = (
        admin.controller().host().id,
        set.value & RESERVATION_PERSISTS != 0,
    );
    let own = connection.own();
    drop(spawn(async move {
        let mut answer = Answer::success();
        for owner in owners {
            match owner.change(&subsystem, host, Change::Persist(on)).await {
                Ok(_) => {}
                // "All" are those that can.
                Err(Failure::Refused(Refusal::NotPersistent)) if all => {}
                Err(failure) => answer = reservation_refusal(failure),
            }
        }
        own.answer(slot, answer);
        own.flush();
    }));
    None
}

/// The value of either feature for one namespace.
pub(super) fn get(admin: &AdminQueue, feature: Feature, get: &GetFeatures) -> Answer {
    let owner = match &admin.subsystem {
        Some(subsystem) if get.nsid != BROADCAST_NSID => subsystem.reservations(get.nsid),
        // There is no value of all namespaces.
        _ => return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
    };
    let Some(owner) = owner else {
        return Answer::refuse(Status::INVALID_NAMESPACE_OR_FORMAT);
    };
    Answer::result(match feature {
        Feature::ReservationPersistence => owner.published().is_persistent().into(),
        _ => owner.mask(),
    })
}
