//! Get Log Page (NVM Express Base Specification 2.0c, section 5.16).

use std::net::SocketAddr;

use protocols::nvme::admin::GetLogPage;
use protocols::nvme::log::{
    CommandEffects, FirmwareSlots, HealthLog, LOG_PAGE_SUPPORTED, LogPage, SupportedLogPages, effects, window,
};
use protocols::nvme::{AdminOpcode, NvmOpcode, Status};

use super::{AdminQueue, features};
use crate::target::discovery;
use crate::target::notices::Notice;
use crate::target::queue::{Answer, TRANSFER_LIMIT_BYTES};
use crate::target::subsystem::Subsystem;

/// Room temperature in kelvins: there is no sensor, and 0 would alarm monitoring tools.
const TEMPERATURE_KELVINS: u16 = 293;
/// Unit of Data Units Read and Written (figure 207): thousands of 512 bytes, rounded up.
const DATA_UNIT_BYTES: u64 = 512 * 1000;
/// ANA log: groups without their namespaces (RGO, bit 0 of LSP).
const GROUPS_ONLY: u8 = 1 << 0;

const IO_PAGES: &[LogPage] = &[
    LogPage::SupportedLogPages,
    LogPage::ErrorInformation,
    LogPage::Health,
    LogPage::FirmwareSlot,
    LogPage::ChangedNamespaceList,
    LogPage::CommandEffects,
    LogPage::AsymmetricNamespaceAccess,
    LogPage::FeatureEffects,
    LogPage::ReservationNotification,
];
const DISCOVERY_PAGES: &[LogPage] = &[
    LogPage::SupportedLogPages,
    LogPage::ErrorInformation,
    LogPage::Discovery,
];

pub(super) fn answer(admin: &AdminQueue, local: SocketAddr, get: &GetLogPage) -> Answer {
    let pages = if admin.is_discovery() {
        DISCOVERY_PAGES
    } else {
        IO_PAGES
    };
    let Some(page) = LogPage::from_code(get.page).filter(|page| pages.contains(page)) else {
        return Answer::refuse(Status::INVALID_LOG_PAGE);
    };
    // First, so that a refused command does not clear what a good one would have read.
    let wanted = get.length_bytes();
    if get.offset_is_index || wanted > TRANSFER_LIMIT_BYTES as u64 || !get.offset.is_multiple_of(4) {
        return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
    }
    // Before the page is made, so that what changes meanwhile, on another reactor, is told anew. If the command is refused
    // below, the host may be told once too often.
    if !get.retain_event {
        match page {
            LogPage::AsymmetricNamespaceAccess => admin.controller.notice_read(Notice::Access),
            LogPage::Discovery => admin.controller.notice_read(Notice::Discovery),
            _ => {}
        }
    }
    let generation = admin.target.log().generation();
    let mut bytes = match (page, &admin.subsystem) {
        (LogPage::SupportedLogPages, subsystem) => {
            let mut log = supported(pages);
            if !subsystem
                .as_ref()
                .is_some_and(|subsystem| subsystem.reports_access())
            {
                log.pages[usize::from(LogPage::AsymmetricNamespaceAccess.code())] = 0;
            }
            log.encode().to_vec()
        }
        (LogPage::ErrorInformation, _) => admin.controller.errors().0,
        (LogPage::Discovery, _) => discovery::log(&admin.target, &admin.controller.host().nqn, local),
        (LogPage::Health, Some(subsystem)) => health(admin, subsystem).encode().to_vec(),
        (LogPage::FirmwareSlot, _) => firmware().encode().to_vec(),
        (LogPage::ChangedNamespaceList, _) => {
            // Taken below, and only if the command is good.
            admin.controller.changed_namespaces(true).encode().to_vec()
        }
        (LogPage::ReservationNotification, _) => {
            // Taken below, and only if the command is good.
            admin.controller.reservation_notice(true).encode().to_vec()
        }
        (LogPage::CommandEffects, _) => command_effects().encode().to_vec(),
        (LogPage::FeatureEffects, _) => features::effects().encode().to_vec(),
        (LogPage::AsymmetricNamespaceAccess, Some(subsystem)) if subsystem.reports_access() => {
            let namespaces = subsystem.namespaces();
            let nsids: Vec<u32> = namespaces.iter().map(|namespace| namespace.nsid).collect();
            let groups_only = get.specific & GROUPS_ONLY != 0;
            let local = admin.controller.local();
            let mut log = subsystem.access_log(local, &nsids, groups_only).encode();
            // A host reads as much as Identify says there may be, perhaps in parts, the last of them beyond the end.
            log.resize(log.len().max(access_log_bytes_max(subsystem)), 0);
            log
        }
        _ => return Answer::refuse(Status::INVALID_LOG_PAGE),
    };
    if window(&bytes, get.offset, wanted).is_none() {
        return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
    }
    if page == LogPage::Discovery && get.offset.saturating_add(wanted) >= bytes.len() as u64 {
        discovery_read_to_its_end(admin, generation);
    }
    if !get.retain_event {
        // What is given is what is taken: more may have come since.
        match page {
            LogPage::ChangedNamespaceList => {
                bytes = admin.controller.changed_namespaces(false).encode().to_vec();
            }
            LogPage::ReservationNotification => {
                bytes = admin.controller.reservation_notice(false).encode().to_vec();
            }
            _ => {}
        }
    }
    let part = window(&bytes, get.offset, wanted).unwrap_or_default();
    let mut data = part.to_vec();
    // What lies beyond the page reads zeros.
    data.resize(wanted as usize, 0);
    Answer::data(data)
}

/// A host that has read the discovery log of this generation to its end is told of the next change, also if it wanted the
/// event retained: libnvme 1.3 (Debian 12) sets RAE on every part of a log of more than 4 KiB, and would never hear again.
/// One that reads once more to clear the event loses nothing (`docs/decisions/0064`).
fn discovery_read_to_its_end(admin: &AdminQueue, generation: u64) {
    admin.controller.notice_read(Notice::Discovery);
    // What has changed since, on another reactor, found the notice told and did not tell it.
    if admin.target.log().generation() != generation {
        admin.controller.notify(Notice::Discovery);
    }
}

/// The length of an ANA log page with NANAGRPID groups and MNAN namespaces (section 5.16.1.13): a header of 16 bytes, 32
/// bytes a group, 4 bytes a namespace.
fn access_log_bytes_max(subsystem: &Subsystem) -> usize {
    16 + subsystem.namespaces_max() as usize * (32 + 4)
}

fn supported(pages: &[LogPage]) -> SupportedLogPages {
    let mut log = SupportedLogPages::default();
    for page in pages {
        log.pages[usize::from(page.code())] = LOG_PAGE_SUPPORTED;
    }
    log
}

/// What all hosts of the subsystem have done since they connected, errors of this controller's.
fn health(admin: &AdminQueue, subsystem: &Subsystem) -> HealthLog {
    let mut totals = crate::target::share::Totals::default();
    let mut media_errors = 0;
    for controller in subsystem.controllers() {
        totals += controller.totals();
        media_errors += u128::from(controller.media_errors());
    }
    HealthLog {
        composite_temperature: TEMPERATURE_KELVINS,
        available_spare: 100,
        available_spare_threshold: 10,
        data_units_read: totals.read_bytes.div_ceil(DATA_UNIT_BYTES).into(),
        data_units_written: totals.written_bytes.div_ceil(DATA_UNIT_BYTES).into(),
        host_read_commands: totals.reads.into(),
        host_write_commands: totals.writes.into(),
        media_errors,
        error_log_entries: admin.controller.errors().1.into(),
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
        AdminOpcode::CrossControllerReset,
        AdminOpcode::SetFeatures,
        AdminOpcode::GetFeatures,
        AdminOpcode::AsynchronousEventRequest,
        AdminOpcode::KeepAlive,
    ] {
        log.admin[usize::from(opcode.code())] = effects::SUPPORTED;
    }
    for opcode in [
        NvmOpcode::Flush,
        NvmOpcode::Read,
        NvmOpcode::Compare,
        NvmOpcode::Verify,
        NvmOpcode::ReservationRegister,
        NvmOpcode::ReservationReport,
        NvmOpcode::ReservationAcquire,
        NvmOpcode::ReservationRelease,
    ] {
        log.io[usize::from(opcode.code())] = effects::SUPPORTED;
    }
    for opcode in [
        NvmOpcode::Write,
        NvmOpcode::WriteZeroes,
        NvmOpcode::DatasetManagement,
        NvmOpcode::Copy,
    ] {
        log.io[usize::from(opcode.code())] = effects::SUPPORTED | effects::CHANGES_BLOCKS;
    }
    log
}
