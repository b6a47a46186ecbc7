//! What is inside NVMe capsules: fields of commands, the data that travels with them, and authentication.

use std::sync::Arc;

use protocols::auth::{
    AuthenticationCommand, Controller, Group, HashFunction, Host, Keys, Names, Policy, Secret, Step,
};
use protocols::nvme::admin::{Abort, CrossControllerReset, GetFeatures, GetLogPage, Identify, SetFeatures};
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::copy::decode_ranges as decode_sources;
use protocols::nvme::dsm::decode_ranges;
use protocols::nvme::fabrics::{
    Connect, ConnectAnswer, ConnectData, PropertyGet, PropertySet, connect_refused_parameter,
};
use protocols::nvme::identify::{
    CommandSetCombinations, ControllerList, IdentifyController, IdentifyNamespace,
    IdentifyNamespaceIndependent, IdentifyNvmController, IdentifyNvmNamespace, NamespaceIdentifiers,
    NamespaceList,
};
use protocols::nvme::log::{
    AnaLog, ChangedNamespaces, CommandEffects, DiscoveryEntry, DiscoveryHeader, ErrorEntry, FirmwareSlots,
    HealthLog, ReservationNotification, window,
};
use protocols::nvme::reservation::{
    AcquireKeys, AskReservationReport, RegisterKeys, ReleaseKey, ReservationAcquire, ReservationRegister,
    ReservationRelease, ReservationReport,
};
use protocols::nvme::{AdminOpcode, Command, Completion, Nqn, NqnField, NvmOpcode, SglDescriptor};

use crate::input::Input;

/// What was read from a command gives a command from which the same is read.
macro_rules! same_again {
    ($command:expr, $($kind:ident)*) => {
        $(
            let read = $kind::from_command($command);
            assert_eq!($kind::from_command(&read.to_command()), read, stringify!($kind));
        )*
    };
}

/// A submission queue entry and a completion queue entry.
pub(crate) fn commands(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let command = Command::from_bytes(input.array());
    let _ = (AdminOpcode::from_code(command.opcode()), command.nvm_opcode());
    let _ = (NvmOpcode::from_code(command.opcode()), command.fabrics_type());
    let _ = (command.data_direction(), command.data_pointer_kind());
    let _ = (command.fuse(), command.slba(), command.protection());
    assert!((1..=1 << 16).contains(&command.nlb().0));
    assert!((1..=256).contains(&command.dsm_ranges()));
    assert!((1..=256).contains(&command.copy_ranges()));
    let sgl = command.sgl();
    assert_eq!(SglDescriptor::decode(&sgl.encode()), sgl);
    assert_eq!(command.with_sgl(sgl).sgl(), sgl);
    let _ = AuthenticationCommand::from_command(&command);
    same_again!(&command, Identify SetFeatures GetFeatures Abort CrossControllerReset Connect);
    same_again!(&command, ReservationRegister ReservationAcquire ReservationRelease);
    let _ = (
        PropertyGet::from_command(&command),
        PropertySet::from_command(&command),
    );
    assert!(GetLogPage::from_command(&command).length_bytes() >= 4);
    assert!(AskReservationReport::from_command(&command).length_bytes() >= 4);
    let completion = Completion::from_bytes(input.array());
    let status = completion.status();
    assert_eq!(completion.with_status(status).status(), status);
    let _ = (status.name(), status.fabrics_name(), status.to_string());
    let _ = connect_refused_parameter(&completion);
    let _ = ConnectAnswer::from_completion(&completion);
    let event = AsyncEvent::from_result(completion.result());
    assert_eq!(AsyncEvent::from_result(event.to_result()), event);
    for take in [completion.do_not_retry(), completion.more(), completion.phase()] {
        let _ = take;
    }
    assert!(completion.retry_delay() < 4);
}

/// What reads, reads the same again after it was written.
macro_rules! structures {
    ($bytes:expr, $($kind:ident)*) => {
        $(
            if let Ok(read) = $kind::decode($bytes) {
                assert_eq!($kind::decode(&read.encode()).as_ref(), Ok(&read), stringify!($kind));
            } else {
                assert!($bytes.len() < $kind::BYTES);
            }
        )*
    };
}

/// The data of commands, in both directions. The first bytes say what the command beside it says.
pub(crate) fn data(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (kind, ranges) = (input.u8(), input.u16());
    let (offset, length) = (input.u64(), u64::from(input.u32()));
    let bytes = input.rest();
    match kind % 8 {
        0 => {
            structures!(bytes, ConnectData RegisterKeys AcquireKeys ReleaseKey);
            if let Ok(data) = ConnectData::decode(bytes) {
                name(&data.subnqn);
                name(&data.hostnqn);
            }
        }
        1 => {
            if let Ok(list) = decode_ranges(bytes, ranges) {
                assert_eq!(list.count(), usize::from(ranges));
            }
            if let Ok(list) = decode_sources(bytes, ranges) {
                assert_eq!(list.clone().count(), usize::from(ranges));
                assert!(list.into_iter().all(|range| range.blocks().0 <= 1 << 16));
            }
        }
        2 => {
            let report = ReservationReport::decode(bytes, ranges & 1 != 0);
            if let Ok(report) = report {
                let again = ReservationReport::decode(&report.encode(), ranges & 1 != 0);
                assert_eq!(again, Ok(report));
            }
            structures!(bytes, ReservationNotification);
        }
        3 => {
            structures!(bytes, IdentifyController IdentifyNamespace IdentifyNvmNamespace IdentifyNvmController);
            structures!(bytes, IdentifyNamespaceIndependent CommandSetCombinations);
            if let Ok(controller) = IdentifyController::decode(bytes) {
                let _ = controller.in_capsule_data_bytes();
                let _ = controller.transfer_limit_bytes(4096);
                let _ = (controller.sn.to_string(), controller.mn.to_string());
            }
            if let Ok(namespace) = IdentifyNamespace::decode(bytes) {
                let _ = (namespace.format_in_use(), namespace.block_bytes());
            }
        }
        4 => {
            if let Ok(list) = NamespaceList::decode(bytes) {
                assert!(list.nsids().is_sorted() && list.nsids().len() <= 1024);
                assert_eq!(NamespaceList::decode(&list.encode()), Ok(list));
            }
            if let Ok(list) = ControllerList::decode(bytes) {
                assert_eq!(ControllerList::decode(&list.encode()), Ok(list));
            }
            if let Ok(identifiers) = NamespaceIdentifiers::decode(bytes) {
                let again = NamespaceIdentifiers::decode(&identifiers.encode());
                assert_eq!(again, Ok(identifiers));
            }
        }
        5 => {
            if let Ok(log) = AnaLog::decode(bytes) {
                assert_eq!(log.encode().len(), log.encoded_bytes());
                assert_eq!(AnaLog::decode(&log.encode()), Ok(log));
            }
            if let Ok(changed) = ChangedNamespaces::decode(bytes) {
                assert_eq!(ChangedNamespaces::decode(&changed.encode()), Ok(changed));
            }
        }
        6 => {
            structures!(bytes, DiscoveryHeader DiscoveryEntry ErrorEntry HealthLog FirmwareSlots CommandEffects);
            if let Ok(entry) = DiscoveryEntry::decode(bytes) {
                name(&entry.subnqn);
            }
        }
        _ => {
            if let Some(part) = window(bytes, offset, length) {
                assert!(part.len() as u64 <= length);
            }
            if let Ok(text) = std::str::from_utf8(bytes)
                && let Ok(name) = text.parse::<Nqn>()
            {
                assert_eq!(NqnField::from(&name).nqn(), Ok(name));
            }
        }
    }
}

fn name(field: &NqnField) {
    if let Ok(name) = field.nqn() {
        assert_eq!(field.text(), Ok(name.as_str()));
    }
}

const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

/// Both ends with the same secret; what travels between them is the input's, or right with bytes of the input on top.
pub(crate) fn authentication(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setting = input.u8();
    if setting & 7 == 7 {
        let text = input.rest();
        if let Ok(secret) = Secret::parse(text) {
            // It is written nowhere.
            assert!(!format!("{secret:?}").contains(&*String::from_utf8_lossy(text)));
        }
        return;
    }
    let secret = || Secret::parse(SECRET.as_bytes()).expect("nvme-cli made it");
    let keys = Arc::new(Keys {
        host: secret(),
        controller: (setting & 1 != 0).then(secret),
    });
    let names = || Names {
        host: "nqn.2026-11.io.redhare:host".to_owned(),
        subsystem: "nqn.2026-11.io.redhare:test".to_owned(),
    };
    let policy = || Policy {
        hashes: vec![HashFunction::Sha256, HashFunction::Sha384],
        // The arithmetic of the larger groups is OpenSSL's, and slow.
        groups: if setting & 6 == 6 {
            vec![Group::Ffdhe2048]
        } else {
            vec![Group::Null]
        },
    };
    let mut host = Host::new(names(), keys.clone(), policy(), 7);
    let mut controller = Controller::new(names(), keys, policy());
    let mut entropy = |out: &mut [u8]| {
        out.fill(0x5a);
        Ok(())
    };
    let mut untouched = true;
    let mut message = host.negotiate();
    for sequence in 1..6 {
        untouched &= !change(&mut input, &mut message);
        if controller.take(&message).is_err() {
            return;
        }
        let Ok(mut answer) = controller.give(sequence, &mut entropy) else {
            return;
        };
        untouched &= !change(&mut input, &mut answer);
        match host.take(&answer, sequence, &mut entropy) {
            Ok(Step::Reply(next)) => message = next,
            Ok(Step::Passed(last)) => {
                if let Some(last) = last
                    && controller.take(&last).is_err()
                {
                    return;
                }
                assert!(!untouched || controller.has_passed(), "right messages pass");
                return;
            }
            Err(error) => {
                assert!(!untouched, "right messages were refused: {error}");
                let Some(complaint) = host.complaint(&error) else {
                    return;
                };
                message = complaint;
            }
        }
    }
}

/// Changes a message as the input says; true if it is another now.
fn change(input: &mut Input<'_>, message: &mut Vec<u8>) -> bool {
    let before = message.clone();
    match input.u8() % 4 {
        0 => {}
        1 => {
            let count = input.below(512);
            *message = input.bytes(count).to_vec();
        }
        2 => {
            for _ in 0..1 + input.below(3) {
                let (at, value) = (input.below(message.len().max(1)), input.u8());
                if let Some(byte) = message.get_mut(at) {
                    *byte = value;
                }
            }
        }
        _ => message.truncate(input.below(message.len() + 1)),
    }
    *message != before
}
