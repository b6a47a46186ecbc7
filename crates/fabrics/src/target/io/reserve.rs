//! The reservation commands (NVM Express Base Specification 2.0c, sections 7.2 to 7.5).

use protocols::nvme::reservation::{
    AcquireAction, AcquireKeys, AskReservationReport, ChangePersistence, REGISTRANT_HOLDS, RegisterAction,
    RegisterKeys, RegisteredControllerExtended, Registrants, ReleaseAction, ReleaseKey, ReservationAcquire,
    ReservationRegister, ReservationRelease, ReservationReport, ReservationStatusHeader, ReservationType,
};
use protocols::nvme::{Command, NvmOpcode, Status};
use reactor::spawn;

use super::{IoQueue, Open};
use crate::target::connection::Connection;
use crate::target::queue::{Answer, TRANSFER_LIMIT_BYTES, check_room};
use crate::target::reservation::{Change, Failure, Owner, Refusal, drain};

/// Controllers are made when hosts connect, so a registrant has none of its own (dynamic controller model).
const DYNAMIC_CNTLID: u16 = 0xffff;

impl IoQueue {
    /// Changes a reservation; answered when the change is durable and in force.
    pub(super) fn reserve(
        &self,
        connection: &Connection,
        open: &Open,
        slot: u16,
        opcode: NvmOpcode,
        command: &Command,
        data: &[u8],
    ) {
        let change = match asked(opcode, command, data) {
            Ok(change) => change,
            Err(status) => return connection.answer(slot, Answer::refuse(status)),
        };
        let (below, own) = (connection.go_below(), connection.own());
        let (subsystem, owner) = (self.subsystem.clone(), open.guard.owner().clone());
        let (host, nsid) = (self.controller.host().id, command.nsid());
        drop(spawn(async move {
            let result = owner.change(&subsystem, host, change).await;
            // What is left is no work of this queue's, and two hosts that preempt each other must not wait for it.
            drop(below);
            let answer = match result {
                Ok(outcome) => {
                    drain(&subsystem, nsid, &outcome.aborted).await;
                    Answer::success()
                }
                Err(failure) => refusal(failure),
            };
            own.answer(slot, answer);
            own.flush();
        }));
    }

    /// Reservation Report (section 7.5).
    pub(super) fn report(&self, connection: &Connection, open: &Open, slot: u16, command: &Command) {
        let ask = AskReservationReport::from_command(command);
        let answer = match usize::try_from(ask.length_bytes()) {
            // Hosts of a fabric have 128-bit identifiers.
            _ if !ask.extended => Answer::refuse(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT),
            Ok(length) if length <= TRANSFER_LIMIT_BYTES => {
                // It begins again when there is room for its answer beside the others.
                if !connection.may_hold(slot, length) {
                    return;
                }
                let owner = open.guard.owner().clone();
                let sized = move |owner: &Owner, command: &Command| {
                    let mut data = report(owner);
                    data.resize(length, 0);
                    check_room(command, Answer::data(data))
                };
                if owner.is_shared() {
                    // Another target's hosts may have changed it.
                    let (own, command) = (connection.own(), *command);
                    drop(spawn(async move {
                        let answer = match owner.settle().await {
                            true => sized(&owner, &command),
                            false => refusal(Failure::Unavailable),
                        };
                        own.answer(slot, answer);
                        own.flush();
                    }));
                    return;
                }
                sized(&owner, command)
            }
            _ => Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
        };
        connection.answer(slot, answer);
    }
}

fn report(owner: &Owner) -> Vec<u8> {
    let state = owner.published();
    let registrants = state.registrants();
    let header = ReservationStatusHeader {
        generation: state.generation(),
        kind: state.held().map_or(0, |held| held.kind.code()),
        registrants: u16::try_from(registrants.len()).unwrap_or(u16::MAX),
        persistent: state.is_persistent().into(),
    };
    let entry = |(host, key): (&[u8; 16], u64)| RegisteredControllerExtended {
        cntlid: DYNAMIC_CNTLID,
        status: if state.holds(host) { REGISTRANT_HOLDS } else { 0 },
        key,
        host: *host,
    };
    let registrants = Registrants::Extended(registrants.map(entry).collect());
    ReservationReport { header, registrants }.encode()
}

/// What a command asks for, or the status of one that makes no sense.
fn asked(opcode: NvmOpcode, command: &Command, data: &[u8]) -> Result<Change, Status> {
    let invalid = Status::INVALID_FIELD_IN_COMMAND;
    let short = |_| Status::DATA_SGL_LENGTH_INVALID;
    match opcode {
        NvmOpcode::ReservationRegister => {
            let register = ReservationRegister::from_command(command);
            let keys = RegisterKeys::decode(data).map_err(short)?;
            Ok(Change::Register {
                action: RegisterAction::from_code(register.action).ok_or(invalid)?,
                ignore_existing_key: register.ignore_existing_key,
                current: keys.current,
                new: keys.new,
                persistence: ChangePersistence::from_code(register.persistence).ok_or(invalid)?,
            })
        }
        NvmOpcode::ReservationAcquire => {
            let acquire = ReservationAcquire::from_command(command);
            let keys = AcquireKeys::decode(data).map_err(short)?;
            if acquire.ignore_existing_key {
                return Err(invalid);
            }
            Ok(Change::Acquire {
                action: AcquireAction::from_code(acquire.action).ok_or(invalid)?,
                kind: ReservationType::from_code(acquire.kind).ok_or(invalid)?,
                current: keys.current,
                preempt: keys.preempt,
            })
        }
        NvmOpcode::ReservationRelease => {
            let release = ReservationRelease::from_command(command);
            let key = ReleaseKey::decode(data).map_err(short)?;
            if release.ignore_existing_key {
                return Err(invalid);
            }
            Ok(Change::Release {
                action: ReleaseAction::from_code(release.action).ok_or(invalid)?,
                kind: release.kind,
                current: key.current,
            })
        }
        _ => Err(Status::INVALID_COMMAND_OPCODE),
    }
}

/// The answer to a change that was not made.
pub(in crate::target) fn refusal(failure: Failure) -> Answer {
    match failure {
        Failure::Refused(Refusal::Conflict) => Answer::refuse(Status::RESERVATION_CONFLICT),
        Failure::Refused(Refusal::InvalidField) => Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
        Failure::Refused(Refusal::NotPersistent) => Answer::refuse(Status::FEATURE_NOT_CHANGEABLE),
        // Others may unregister, or the disk have room again.
        Failure::Refused(Refusal::Full) | Failure::NotSaved => Answer::status(Status::INTERNAL_ERROR),
        Failure::Unavailable => Answer::status(Status::INTERNAL_PATH_ERROR),
        Failure::Gone => Answer::status(Status::INVALID_NAMESPACE_OR_FORMAT),
    }
}
