//! Identify (NVM Express Base Specification 2.0c, section 5.17; NVM Command Set Specification 1.0c, section 4.1.5).

use std::sync::Arc;

use protocols::nvme::admin::Identify;
use protocols::nvme::copy::COPY_FORMAT_0;
use protocols::nvme::identify::{
    COMBINATION_NVM, CommandSet, CommandSetCombinations, ControllerList, IDENTIFY_BYTES, IdentifyController,
    IdentifyNamespace, IdentifyNamespaceIndependent, IdentifyNvmController, IdentifyStructure, LbaFormat,
    NSTAT_READY, NamespaceIdentifiers, NamespaceList, controller_bits, namespace_bits,
};
use protocols::nvme::{NqnField, Status, Text};

use super::cross_reset::RESETS_MAX;
use super::{ABORTS_MAX, AdminQueue, EVENT_REQUESTS_MAX};
use crate::target::access;
use crate::target::controller::Controller;
use crate::target::errors::ENTRIES_MAX;
use crate::target::io::{ATOMIC_COMPARE_AND_WRITE, COPY_LIMIT_BYTES, COPY_RANGES_MAX};
use crate::target::queue::{Answer, TRANSFER_LIMIT_BYTES};
use crate::target::subsystem::{Namespace, Subsystem};

/// In-capsule data of I/O commands, in bytes.
pub const IN_CAPSULE_BYTES: u32 = 8192;
/// What can be given back, and written without reading first: the page of file systems and of memory, in bytes.
const GRANULE_BYTES: u32 = 4096;
/// What a command should deallocate at most of a namespace that several targets serve (DMRSL, DMSL), in bytes: so little that hosts do not
/// give it up before every part of it is done.
const DEALLOCATED_BYTES: u32 = 1 << 30;
/// Unit of MDTS: the smallest memory page (CAP.MPSMIN is 0).
const PAGE_BYTES: usize = 4096;

pub(super) fn answer(admin: &AdminQueue, identify: &Identify) -> Answer {
    let invalid = || Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
    let Some(structure) = IdentifyStructure::from_code(identify.cns) else {
        return invalid();
    };
    if structure == IdentifyStructure::Controller {
        return Answer::data(controller(admin).encode().to_vec());
    }
    let Some(subsystem) = &admin.subsystem else {
        return invalid();
    };
    let nsids = || subsystem.namespaces().into_iter().map(|namespace| namespace.nsid);
    let is_nvm = identify.csi == CommandSet::Nvm.code();
    match structure {
        IdentifyStructure::CommandSetActiveNamespaceList if !is_nvm => invalid(),
        IdentifyStructure::ActiveNamespaceList
        | IdentifyStructure::AllocatedNamespaceList
        | IdentifyStructure::CommandSetActiveNamespaceList => {
            // FFFFFFFEh and above have no successor (section 5.17.2.2).
            if identify.nsid >= 0xffff_fffe {
                return Answer::refuse(Status::INVALID_NAMESPACE_OR_FORMAT);
            }
            Answer::data(NamespaceList::after(identify.nsid, nsids()).encode().to_vec())
        }
        IdentifyStructure::Namespace | IdentifyStructure::AllocatedNamespace => {
            namespace_answer(admin, identify.nsid, |namespace, rescap| {
                describe_namespace(namespace, rescap, group_of(subsystem, identify.nsid))
            })
        }
        IdentifyStructure::NamespaceDescriptors => match subsystem.namespace(identify.nsid) {
            Some(namespace) => Answer::data(descriptors(&namespace)),
            None => Answer::refuse(Status::INVALID_NAMESPACE_OR_FORMAT),
        },
        IdentifyStructure::IndependentNamespace => namespace_answer(admin, identify.nsid, |_, rescap| {
            let independent = IdentifyNamespaceIndependent {
                anagrpid: group_of(subsystem, identify.nsid),
                nmic: namespace_bits::NMIC_SHARED,
                rescap,
                nstat: NSTAT_READY,
                ..Default::default()
            };
            independent.encode().to_vec()
        }),
        IdentifyStructure::CommandSetNamespace if is_nvm => {
            namespace_answer(admin, identify.nsid, |_, _| vec![0; IDENTIFY_BYTES])
        }
        IdentifyStructure::CommandSetController if is_nvm => {
            Answer::data(nvm_controller(subsystem).encode().to_vec())
        }
        IdentifyStructure::CommandSetCombinations => {
            let mut combinations = CommandSetCombinations::default();
            combinations.combinations[0] = COMBINATION_NVM;
            Answer::data(combinations.encode().to_vec())
        }
        IdentifyStructure::NamespaceControllerList if subsystem.namespace(identify.nsid).is_none() => {
            Answer::refuse(Status::INVALID_NAMESPACE_OR_FORMAT)
        }
        // Every controller has every namespace.
        IdentifyStructure::ControllerList | IdentifyStructure::NamespaceControllerList => {
            let cntlids = subsystem
                .controllers()
                .into_iter()
                .map(|controller| controller.cntlid);
            Answer::data(
                ControllerList::from_first(identify.cntid, cntlids)
                    .encode()
                    .to_vec(),
            )
        }
        _ => invalid(),
    }
}

/// A namespace that is not active reads as zeros, one beyond the largest number is an error
/// (section 5.17.2.1).
fn namespace_answer(
    admin: &AdminQueue,
    nsid: u32,
    describe: impl Fn(&Arc<Namespace>, u8) -> Vec<u8>,
) -> Answer {
    let found = admin
        .subsystem
        .as_ref()
        .and_then(|subsystem| subsystem.namespace(nsid));
    match found {
        Some(namespace) => {
            let subsystem = admin.subsystem.as_ref();
            let reservations = subsystem.and_then(|subsystem| subsystem.reservations(nsid));
            let persist = reservations.is_some_and(|owner| owner.is_shared() || owner.file().is_some());
            let mut rescap = namespace_bits::RESCAP_ALL_TYPES | namespace_bits::RESCAP_IGNORE_EXISTING_KEY;
            if persist {
                rescap |= namespace_bits::RESCAP_PERSISTENT;
            }
            Answer::data(describe(&namespace, rescap))
        }
        None if admin
            .subsystem
            .as_ref()
            .is_some_and(|subsystem| (1..=subsystem.namespaces_max()).contains(&nsid)) =>
        {
            Answer::data(vec![0; IDENTIFY_BYTES])
        }
        None => Answer::refuse(Status::INVALID_NAMESPACE_OR_FORMAT),
    }
}

/// Text cut to what the field holds; characters that Identify does not allow become question marks.
fn text<const N: usize>(value: &str) -> Text<N> {
    let ascii: String = value
        .chars()
        .take(N)
        .map(|c| if (' '..='~').contains(&c) { c } else { '?' })
        .collect();
    Text::new(&ascii).unwrap_or_default()
}

fn nvm_controller(subsystem: &Subsystem) -> IdentifyNvmController {
    let identify = IdentifyNvmController {
        vsl: (TRANSFER_LIMIT_BYTES / PAGE_BYTES).trailing_zeros() as u8,
        ..Default::default()
    };
    let namespaces = subsystem.namespaces();
    let Some(namespace) = namespaces.first().filter(|_| subsystem.is_exporting()) else {
        return identify;
    };
    // An exporting subsystem has one namespace, so its blocks are what is counted in. Longer lists are carried out, too, as far as they
    // can be in time.
    let blocks = DEALLOCATED_BYTES / namespace.device.geometry().block_bytes;
    IdentifyNvmController {
        dmrl: u8::MAX,
        dmrsl: blocks,
        dmsl: blocks.into(),
        ..identify
    }
}

fn controller(admin: &AdminQueue) -> IdentifyController {
    use controller_bits as bits;
    let cntlid = admin.controller.cntlid;
    let common = IdentifyController {
        fr: text(env!("CARGO_PKG_VERSION")),
        cntlid,
        ver: Controller::version().bits(),
        ctratt: bits::CTRATT_HOST_IDENTIFIER_128 | bits::CTRATT_TRAFFIC_BASED_KEEP_ALIVE,
        elpe: ENTRIES_MAX as u8 - 1,
        aerl: EVENT_REQUESTS_MAX as u8 - 1,
        lpa: bits::LPA_EXTENDED_DATA | bits::LPA_SUPPORTED_PAGES,
        kas: 10,
        maxcmd: admin.controller.limits().entries,
        sgls: bits::SGLS_BYTE_ALIGNED | bits::SGLS_OFFSETS | bits::SGLS_TRANSPORT_DATA_BLOCK,
        mdts: (TRANSFER_LIMIT_BYTES / PAGE_BYTES).trailing_zeros() as u8,
        ..Default::default()
    };
    let Some(subsystem) = &admin.subsystem else {
        return IdentifyController {
            sn: text("discovery"),
            mn: text("Redhare"),
            cntrltype: bits::CNTRLTYPE_DISCOVERY,
            dctype: bits::DCTYPE_DIRECT,
            oaes: bits::OAES_DISCOVERY_CHANGE,
            subnqn: NqnField::from(&admin.target.discovery_nqn()),
            ..common
        };
    };
    let reported = subsystem.reports_access();
    let if_reported = |value: u32| if reported { value } else { 0 };
    let alone = !subsystem.is_exporting();
    let only_alone = |bits: u16| if alone { bits } else { 0 };
    let in_capsule_bytes = if alone { IN_CAPSULE_BYTES } else { 0 };
    IdentifyController {
        sn: text(subsystem.serial()),
        mn: text(subsystem.model()),
        cmic: bits::CMIC_MULTIPLE_PORTS
            | bits::CMIC_MULTIPLE_CONTROLLERS
            | if_reported(bits::CMIC_ANA.into()) as u8,
        oaes: bits::OAES_NAMESPACE_ATTRIBUTE | if_reported(bits::OAES_ANA_CHANGE),
        cntrltype: bits::CNTRLTYPE_IO,
        lpa: common.lpa | bits::LPA_COMMAND_EFFECTS,
        anatt: if_reported(access::TRANSITION_SECONDS.into()) as u8,
        anacap: if_reported(bits::ANACAP_ALL_STATES.into()) as u8,
        anagrpmax: if_reported(subsystem.namespaces_max()),
        nanagrpid: if_reported(subsystem.namespaces_max()),
        cirn: admin.controller.cirn,
        ccrl: if admin.controller.cirn == 0 { 0 } else { RESETS_MAX },
        acl: ABORTS_MAX as u8 - 1,
        frmw: bits::FRMW_SLOT_1_READ_ONLY | 1 << 1,
        sqes: bits::SQES_64_BYTES,
        cqes: bits::CQES_16_BYTES,
        nn: subsystem.namespaces_max(),
        mnan: subsystem.namespaces_max(),
        oncs: bits::ONCS_SAVE_AND_SELECT
            | bits::ONCS_TIMESTAMP
            | bits::ONCS_VERIFY
            | bits::ONCS_DATASET_MANAGEMENT
            | bits::ONCS_RESERVATIONS
            | bits::ONCS_COMPARE
            | only_alone(bits::ONCS_WRITE_ZEROES | bits::ONCS_COPY),
        fuses: bits::FUSES_COMPARE_AND_WRITE,
        acwu: ATOMIC_COMPARE_AND_WRITE,
        cdfs: only_alone(COPY_FORMAT_0),
        vwc: bits::VWC_BROADCAST_FLUSH
            | if subsystem.has_write_cache() {
                bits::VWC_PRESENT
            } else {
                0
            },
        subnqn: NqnField::from(subsystem.nqn()),
        // Capsule sizes are in units of 16 bytes: the 64 of the command and the data in it; the 16 of the answer.
        ioccsz: (64 + in_capsule_bytes) / 16,
        iorcsz: 1,
        msdbd: 1,
        ofcs: bits::OFCS_DISCONNECT,
        ..common
    }
}

/// A namespace's ANA group; 0 where none are reported.
fn group_of(subsystem: &Subsystem, nsid: u32) -> u32 {
    if subsystem.reports_access() {
        subsystem.access_group(nsid)
    } else {
        0
    }
}

fn describe_namespace(namespace: &Arc<Namespace>, rescap: u8, anagrpid: u32) -> Vec<u8> {
    let geometry = namespace.device.geometry();
    let blocks = geometry.blocks.0;
    let format = LbaFormat {
        metadata_bytes: u16::from(geometry.metadata_bytes),
        block_size_power: geometry.block_bytes.trailing_zeros() as u8,
        relative_performance: 0,
    };
    // Preferred sizes count blocks from 0.
    let granule = (GRANULE_BYTES / geometry.block_bytes).saturating_sub(1) as u16;
    let given_back = match namespace.device.granule_blocks() {
        0 => granule,
        blocks => u16::try_from(blocks - 1).unwrap_or(u16::MAX),
    };
    let copy_blocks = (COPY_LIMIT_BYTES / geometry.block_bytes as usize) as u32;
    let mut identify = IdentifyNamespace {
        nsfeat: namespace_bits::NSFEAT_PREFERRED_SIZES,
        npwg: granule,
        npwa: granule,
        npdg: given_back,
        npda: given_back,
        mssrl: u16::try_from(copy_blocks).unwrap_or(u16::MAX),
        mcl: copy_blocks,
        msrc: COPY_RANGES_MAX as u8 - 1,
        anagrpid,
        nsze: blocks,
        ncap: blocks,
        nuse: blocks,
        nmic: namespace_bits::NMIC_SHARED,
        rescap,
        dlfeat: namespace_bits::DLFEAT_READS_ZEROS | namespace_bits::DLFEAT_WRITE_ZEROES_DEALLOCATES,
        noiob: u16::try_from(geometry.boundary_blocks).unwrap_or(0),
        nguid: namespace.uuid,
        ..Default::default()
    };
    identify.lbaf[0] = format;
    identify.encode().to_vec()
}

fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let identifiers = NamespaceIdentifiers {
        eui64: None,
        nguid: Some(namespace.uuid),
        uuid: Some(namespace.uuid),
        command_set: Some(CommandSet::Nvm.code()),
    };
    identifiers.encode().to_vec()
}
