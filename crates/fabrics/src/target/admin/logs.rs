//! Get Log Page (NVM Express Base Specification 2.0c, section 5.16).

use std::net::SocketAddr;

use protocols::nvme::admin::GetLogPage;
use protocols::nvme::log::{CommandEffects, ErrorEntry, FirmwareSlots, HealthLog, LogPage, effects, window};
use protocols::nvme::{AdminOpcode, NvmOpcode, Status};

use super::AdminQueue;
use crate::target::discovery;
use crate::target::queue::{Answer, TRANSFER_LIMIT_BYTES};

/// Room temperature in kelvins: there is no sensor, and 0 would alarm monitoring tools.
const TEMPERATURE_KELVINS: u16 = 293;

pub(super) fn answer(admin: &AdminQueue, local: SocketAddr, get: &GetLogPage) -> Answer {
    let Some(page) = LogPage::from_code(get.page) else {
        return Answer::refuse(Status::INVALID_LOG_PAGE);
    };
    // First, so that a refused command does not clear what a good one would have read.
    let wanted = get.length_bytes();
    if get.offset_is_index || wanted > TRANSFER_LIMIT_BYTES as u64 {
        return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
    }
    let bytes = match (page, admin.is_discovery()) {
        (LogPage::Discovery, true) => discovery::log(&admin.target, &admin.controller.host_nqn, local),
        (LogPage::ErrorInformation, _) => ErrorEntry::default().encode().to_vec(),
        (LogPage::Health, false) => health().encode().to_vec(),
        (LogPage::FirmwareSlot, false) => firmware().encode().to_vec(),
        (LogPage::ChangedNamespaceList, false) => admin
            .controller
            .changed_namespaces(get.retain_event)
            .encode()
            .to_vec(),
        (LogPage::CommandEffects, false) => command_effects().encode().to_vec(),
        _ => return Answer::refuse(Status::INVALID_LOG_PAGE),
    };
    match window(&bytes, get.offset, wanted) {
        Some(part) => {
            let mut data = part.to_vec();
            // What lies beyond the page reads zeros.
            data.resize(wanted as usize, 0);
            Answer::data(data)
        }
        None => Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
    }
}

fn health() -> HealthLog {
    HealthLog {
        composite_temperature: TEMPERATURE_KELVINS,
        available_spare: 100,
        available_spare_threshold: 10,
        ..Default::default()
    }
}

fn firmware() -> FirmwareSlots {
    let mut revision = [b' '; 8];
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let length = version.len().min(revision.len());
    revision[..length].copy_from_slice(&version[..length]);
    let mut slots = FirmwareSlots {
        active: 1,
        ..Default::default()
    };
    slots.revisions[0] = revision;
    slots
}

fn command_effects() -> CommandEffects {
    let mut log = CommandEffects::default();
    for opcode in [
        AdminOpcode::GetLogPage,
        AdminOpcode::Identify,
        AdminOpcode::Abort,
        AdminOpcode::SetFeatures,
        AdminOpcode::GetFeatures,
        AdminOpcode::AsynchronousEventRequest,
        AdminOpcode::KeepAlive,
    ] {
        log.admin[usize::from(opcode.code())] = effects::SUPPORTED;
    }
    for opcode in [NvmOpcode::Flush, NvmOpcode::Read, NvmOpcode::Compare] {
        log.io[usize::from(opcode.code())] = effects::SUPPORTED;
    }
    for opcode in [
        NvmOpcode::Write,
        NvmOpcode::WriteZeroes,
        NvmOpcode::DatasetManagement,
    ] {
        log.io[usize::from(opcode.code())] = effects::SUPPORTED | effects::CHANGES_BLOCKS;
    }
    log
}
