//! The admin queue as a host sees it: log pages in parts, features, Identify, notices and when they are told, and how
//! discovery follows what the target serves.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{NQN, bytes, listen, memory, nqn, read, room, run, target};
use bdev::file::{FileDevice, FileOptions};
use bdev::{ChannelExt, Data, IoError};
use fabrics::initiator::{ConnectOptions, Controller, discover};
use fabrics::target::{
    Hosts, NSID_MAX, Namespace, Options, Portal, Referral, Subsystem, SubsystemOptions, Target,
};
use foundation::{BlockCount, ByteCount, Lba};
use protocols::nvme::admin::{GetFeatures, GetLogPage, Identify, SetFeatures};
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::features::{Feature, Timestamp, capabilities};
use protocols::nvme::identify::{
    CommandSetCombinations, IdentifyNamespaceIndependent, IdentifyNvmController, controller_bits as bits,
};
use protocols::nvme::log::{
    AnaLog, AnaState, ChangedNamespaces, ErrorEntry, FeatureEffects, HealthLog, LogPage, SubsystemType,
    SupportedLogPages,
};
use protocols::nvme::{Command, Nqn, Status};
use reactor::sync::Receiver;
use reactor::time;

async fn get_log(controller: &Controller, get: GetLogPage) -> Result<Vec<u8>, String> {
    let length = get.length_bytes() as usize;
    let command = get.to_command();
    match controller.admin("Get Log Page", command, room(length)).await {
        Ok((_, data)) => Ok(data.into_read().to_vec()),
        Err(error) => Err(error.to_string()),
    }
}

fn page(page: LogPage, bytes: u64) -> GetLogPage {
    GetLogPage::new(0xffff_ffff, page.code(), bytes)
}

async fn get_feature(
    controller: &Controller,
    feature: Feature,
    select: u8,
    value: u32,
) -> Result<u32, String> {
    // Two features are a namespace's own.
    let nsid = match feature {
        Feature::ReservationNotificationMask | Feature::ReservationPersistence => 1,
        _ => 0,
    };
    let get = GetFeatures {
        nsid,
        feature: feature.code(),
        select,
        value,
    };
    match controller
        .admin("Get Features", get.to_command(), room(4096))
        .await
    {
        Ok((completion, _)) => Ok(completion.result()),
        Err(error) => Err(error.to_string()),
    }
}

async fn set_feature(
    controller: &Controller,
    feature: Feature,
    value: u32,
    data: Data,
) -> Result<(), String> {
    let set = SetFeatures {
        nsid: 0,
        feature: feature.code(),
        save: false,
        value,
    };
    let answer = controller.admin("Set Features", set.to_command(), data).await;
    answer.map(drop).map_err(|error| error.to_string())
}

async fn next(events: &mut Receiver<AsyncEvent>) -> Option<AsyncEvent> {
    let limit = Duration::from_secs(5);
    time::timeout(limit, events.recv()).await.expect("a notice comes")
}

async fn quiet(events: &mut Receiver<AsyncEvent>) {
    let wait = time::timeout(Duration::from_millis(100), events.recv()).await;
    assert!(wait.is_err(), "no notice was to come: {:?}", wait.ok());
}

#[test]
fn every_log_page_is_read_in_parts_and_those_that_are_not_there_are_refused() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let controller = Controller::connect(options).await.unwrap();
        let supported = get_log(&controller, page(LogPage::SupportedLogPages, 1024))
            .await
            .unwrap();
        let supported = SupportedLogPages::decode(&supported).unwrap();
        for kind in LogPage::ALL {
            let whole = get_log(&controller, page(*kind, 4096)).await;
            assert_eq!(
                whole.is_ok(),
                supported.pages[usize::from(kind.code())] == 1,
                "{kind}"
            );
            let Ok(whole) = whole else { continue };
            let mut parts = Vec::new();
            for offset in (0..16).map(|index| index * 8) {
                let get = GetLogPage {
                    offset,
                    retain_event: true,
                    ..page(*kind, 8)
                };
                // The shortest pages are an ANA log of one group with one namespace, and a notification.
                let is_short = matches!(
                    kind,
                    LogPage::AsymmetricNamespaceAccess | LogPage::ReservationNotification
                );
                match get_log(&controller, get).await {
                    Ok(part) => parts.extend(part),
                    Err(error) => assert!(error.contains("Invalid Field") && is_short, "{error}"),
                }
            }
            assert_eq!(parts[..48], whole[..48], "{kind}");
            let beyond = GetLogPage {
                offset: 1 << 20,
                ..page(*kind, 4)
            };
            assert!(
                get_log(&controller, beyond)
                    .await
                    .unwrap_err()
                    .contains("Invalid Field")
            );
            let odd = GetLogPage {
                offset: 2,
                ..page(*kind, 4)
            };
            assert!(
                get_log(&controller, odd)
                    .await
                    .unwrap_err()
                    .contains("Invalid Field")
            );
        }
        let effects = get_log(&controller, page(LogPage::FeatureEffects, 1024))
            .await
            .unwrap();
        let effects = FeatureEffects::decode(&effects).unwrap();
        for feature in Feature::ALL {
            let there = get_feature(&controller, *feature, 0, 1).await.is_ok();
            assert_eq!(
                effects.features[usize::from(feature.code())] & 1 == 1,
                there,
                "{feature}"
            );
        }
    });
}

#[test]
fn health_counts_and_errors_are_kept() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let controller = Controller::connect(options).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        for _ in 0..3 {
            namespace.write(Lba(0), bytes(1 << 20, 1)).await.unwrap();
            read(&namespace, 0, 8).await;
        }
        let beyond = Command::read(1, Lba(2048), BlockCount(1)).with_cid(0);
        let refused = namespace
            .queue()
            .execute(beyond, room(512))
            .await
            .completion
            .unwrap();
        assert!(refused.more(), "the error log has more about it");
        let health = get_log(&controller, page(LogPage::Health, 512)).await.unwrap();
        let health = HealthLog::decode(&health).unwrap();
        // 3 MiB are 6,144 blocks of 512 bytes, and a refused read is none.
        assert_eq!((health.data_units_written, health.host_write_commands), (7, 3));
        assert_eq!((health.data_units_read, health.host_read_commands), (1, 3));
        assert_eq!(health.error_log_entries, 1);
        // Counts outlive the queue that made them.
        namespace.queue().close();
        drop(namespace);
        let again = get_log(&controller, page(LogPage::Health, 512)).await.unwrap();
        assert_eq!(HealthLog::decode(&again).unwrap().host_write_commands, 3);
        let errors = get_log(&controller, page(LogPage::ErrorInformation, 128))
            .await
            .unwrap();
        let error = ErrorEntry::decode(&errors).unwrap();
        assert_eq!(
            (error.error_count, error.sqid, error.lba, error.nsid),
            (1, 1, 2048, 1)
        );
        assert_eq!(error.status_field, refused.status_field());
        assert_eq!(errors[64..], [0; 64]);
    });
}

#[test]
fn features_are_kept_and_say_what_they_are() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let host_id = options.host_id;
        let controller = Controller::connect(options).await.unwrap();
        assert_eq!(
            get_feature(&controller, Feature::KeepAliveTimer, 0, 0).await,
            Ok(10_000)
        );
        set_feature(&controller, Feature::Arbitration, 0x0302_0107, Data::None)
            .await
            .unwrap();
        assert_eq!(
            get_feature(&controller, Feature::Arbitration, 0, 0).await,
            Ok(0x0302_0107)
        );
        assert_eq!(get_feature(&controller, Feature::Arbitration, 1, 0).await, Ok(0));
        assert_eq!(
            get_feature(&controller, Feature::Arbitration, 3, 0).await,
            Ok(capabilities::CHANGEABLE)
        );
        // Thresholds over and under are two values.
        let under = 1 << 20;
        set_feature(
            &controller,
            Feature::TemperatureThreshold,
            under | 250,
            Data::None,
        )
        .await
        .unwrap();
        assert_eq!(
            get_feature(&controller, Feature::TemperatureThreshold, 0, under).await,
            Ok(250)
        );
        assert_eq!(
            get_feature(&controller, Feature::TemperatureThreshold, 0, 0).await,
            Ok(0xffff)
        );
        assert!(
            set_feature(&controller, Feature::PowerManagement, 1, Data::None)
                .await
                .is_err()
        );
        let fixed = set_feature(&controller, Feature::HostIdentifier, 1, Data::From(bytes(16, 1))).await;
        assert!(fixed.unwrap_err().contains("Not Changeable"));
        let short = get_feature(&controller, Feature::HostIdentifier, 0, 0).await;
        assert!(short.unwrap_err().contains("Inconsistent Format"));
        let data = |feature: Feature| {
            let controller = controller.clone();
            async move {
                let get = GetFeatures {
                    feature: feature.code(),
                    value: 1,
                    ..GetFeatures::default()
                };
                let (_, data) = controller
                    .admin("Get Features", get.to_command(), room(4096))
                    .await
                    .unwrap();
                data.into_read().to_vec()
            }
        };
        assert_eq!(data(Feature::HostIdentifier).await[..16], host_id);
        let mut set = reactor::BufferPool::current().try_allocate(8).unwrap();
        set.copy_from_slice(&Timestamp::from_milliseconds(5_000_000, 0).encode());
        set_feature(&controller, Feature::Timestamp, 0, Data::From(set.freeze()))
            .await
            .unwrap();
        time::sleep(Duration::from_millis(20)).await;
        let timestamp = Timestamp::decode(&data(Feature::Timestamp).await).unwrap();
        assert!((5_000_020..5_010_000).contains(&timestamp.milliseconds()));
        assert_eq!(timestamp.attributes, Timestamp::SET_BY_HOST);
    });
}

#[test]
fn identify_says_what_the_controller_can_do() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let controller = Controller::connect(options).await.unwrap();
        let identity = controller.identity();
        assert_eq!(identity.ver, bits::VERSION_2_0);
        assert_eq!(identity.cntrltype, bits::CNTRLTYPE_IO);
        assert_ne!(identity.ctratt & bits::CTRATT_TRAFFIC_BASED_KEEP_ALIVE, 0);
        assert_ne!(identity.cmic & bits::CMIC_ANA, 0);
        assert_eq!((identity.anagrpmax, identity.nanagrpid), (NSID_MAX, NSID_MAX));
        let ask = async |cns, nsid| {
            let identify = Identify {
                cns,
                nsid,
                ..Identify::default()
            };
            let answer = controller
                .admin("Identify", identify.to_command(), room(4096))
                .await;
            answer
                .map(|(_, data)| data.into_read().to_vec())
                .map_err(|error| error.to_string())
        };
        for (cns, nsid) in [
            (0, 1),
            (1, 0),
            (2, 0),
            (3, 1),
            (5, 1),
            (6, 0),
            (7, 0),
            (8, 1),
            (0x10, 0),
            (0x11, 1),
            (0x12, 1),
            (0x13, 0),
            (0x1c, 0),
        ] {
            assert!(ask(cns, nsid).await.is_ok(), "CNS {cns:02x}h");
        }
        assert_eq!(
            ask(0, 2).await.unwrap(),
            vec![0; 4096],
            "an inactive namespace reads zeros"
        );
        assert!(ask(0, 0).await.is_err() && ask(3, 2).await.is_err() && ask(0x12, 2).await.is_err());
        assert!(ask(0x55, 0).await.unwrap_err().contains("Invalid Field"));
        let combinations = CommandSetCombinations::decode(&ask(0x1c, 0).await.unwrap()).unwrap();
        assert_eq!(combinations.combinations[..2], [1, 0]);
        let independent = IdentifyNamespaceIndependent::decode(&ask(8, 1).await.unwrap()).unwrap();
        assert_eq!((independent.anagrpid, independent.nstat), (1, 1));
        assert_eq!(
            IdentifyNvmController::decode(&ask(6, 0).await.unwrap())
                .unwrap()
                .vsl,
            8
        );
    });
}

#[test]
fn access_changes_are_told_and_commands_are_turned_away() {
    run(async {
        let (target, subsystem) = target(memory(512));
        let (server, options) = listen(target.clone(), Options::default());
        let (other_server, other) = listen(target, Options::default());
        let controller = Controller::connect(options).await.unwrap();
        let mut events = controller.events().await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        let other = Controller::connect(other).await.unwrap();
        let elsewhere = other.open_namespace(1).await.unwrap();
        namespace.write(Lba(0), bytes(512, 1)).await.unwrap();
        let log = async || {
            let log = get_log(&controller, page(LogPage::AsymmetricNamespaceAccess, 52))
                .await
                .unwrap();
            AnaLog::decode(&log).unwrap()
        };
        let before = log().await;
        assert_eq!(
            (before.groups[0].state, &before.groups[0].nsids[..]),
            (AnaState::Optimized, &[1][..])
        );
        for (state, status) in [
            (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
            (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
            (AnaState::Change, Status::ANA_TRANSITION),
        ] {
            subsystem.set_access(server.address(), state);
            assert_eq!(next(&mut events).await, Some(AsyncEvent::ANA_CHANGE));
            let now = log().await;
            assert_eq!(now.groups[0].state, state);
            assert!(now.change_count > before.change_count);
            let refused = namespace.queue().execute(Command::flush(1), Data::None).await;
            assert_eq!(refused.status(), status);
            assert!(!refused.completion.unwrap().do_not_retry());
            assert_eq!(
                namespace.write(Lba(0), bytes(512, 2)).await,
                Err(IoError::Unavailable)
            );
            // The other listener serves on.
            assert_eq!(read(&elsewhere, 0, 1).await, bytes(512, 1)[..]);
        }
        subsystem.set_access(server.address(), AnaState::NonOptimized);
        namespace.write(Lba(0), bytes(512, 3)).await.unwrap();
        assert_eq!(read(&elsewhere, 0, 1).await, bytes(512, 3)[..]);
        drop(other_server);
    });
}

#[test]
fn a_notice_is_told_once_until_its_log_is_read_without_retaining_it() {
    run(async {
        let (target, subsystem) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let controller = Controller::connect(options).await.unwrap();
        let mut events = controller.events().await.unwrap();
        let add = |nsid| {
            let namespace = Namespace {
                nsid,
                uuid: [nsid as u8; 16],
                device: memory(512),
            };
            subsystem.add_namespace(namespace).unwrap();
        };
        let changed = async |retain_event, offset| {
            let get = GetLogPage {
                retain_event,
                offset,
                ..page(LogPage::ChangedNamespaceList, 4096)
            };
            get_log(&controller, get)
                .await
                .map(|log| ChangedNamespaces::decode(&log).unwrap())
        };
        add(2);
        assert_eq!(
            next(&mut events).await,
            Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED)
        );
        add(3);
        quiet(&mut events).await;
        let both = ChangedNamespaces::Some(vec![2, 3]);
        assert_eq!(changed(true, 0).await.unwrap(), both);
        add(4);
        quiet(&mut events).await;
        // A refused read clears nothing.
        assert!(changed(false, 8192).await.is_err());
        assert_eq!(
            changed(false, 0).await.unwrap(),
            ChangedNamespaces::Some(vec![2, 3, 4])
        );
        assert_eq!(changed(false, 0).await.unwrap(), ChangedNamespaces::Some(vec![]));
        add(5);
        assert_eq!(
            next(&mut events).await,
            Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED)
        );
    });
}

#[test]
fn a_namespace_grows_under_a_connected_host_and_its_device_is_let_go_when_it_is_removed() {
    run(async {
        let path = std::env::temp_dir().join(format!("redhare-fabrics-resize-{}", std::process::id()));
        let open = || {
            let options = FileOptions {
                create: Some(ByteCount(1 << 20)),
                ..FileOptions::default()
            };
            FileDevice::open(&path, options)
        };
        let file = Arc::new(open().unwrap());
        let (target, subsystem) = target(file.clone());
        let (_server, options) = listen(target, Options::default());
        let controller = Controller::connect(options).await.unwrap();
        let mut events = controller.events().await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        namespace.write(Lba(255), bytes(4096, 1)).await.unwrap();
        let write_at_256 = || {
            let write = Command::write(1, Lba(256), BlockCount(1));
            namespace.queue().execute(write, Data::From(bytes(4096, 2)))
        };
        assert_eq!(write_at_256().await.status(), Status::LBA_OUT_OF_RANGE);
        let disk = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        disk.set_len(2 << 20).unwrap();
        assert_eq!(file.look_at_size().unwrap(), BlockCount(512));
        assert!(subsystem.namespace_resized(1));
        assert!(!subsystem.namespace_resized(9));
        assert_eq!(
            next(&mut events).await,
            Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED)
        );
        assert_eq!(write_at_256().await.status(), Status::SUCCESS);
        let again = controller.open_namespace(1).await.unwrap();
        assert_eq!(bdev::Channel::geometry(&again).blocks, BlockCount(512));
        assert_eq!(
            read(&again, 255, 2).await,
            [&bytes(4096, 1)[..], &bytes(4096, 2)[..]].concat()
        );
        // Removed, though no further command comes on the queues: the file can be opened anew.
        assert!(subsystem.remove_namespace(1));
        drop(file);
        let mut attempts = 0;
        while open().is_err() {
            attempts += 1;
            assert!(attempts < 500, "the queues still hold the device");
            time::sleep(Duration::from_millis(10)).await;
        }
        std::fs::remove_file(&path).unwrap();
    });
}

async fn log_of(options: &ConnectOptions) -> Vec<(u8, String, String)> {
    let entries = discover(options.clone()).await.unwrap();
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let mut log: Vec<_> = entries
        .iter()
        .map(|entry| {
            let nqn = entry.subnqn.text().unwrap_or_default().to_owned();
            (entry.subtype, nqn, text(entry.trsvcid.as_str()))
        })
        .collect();
    log.sort();
    log
}

#[test]
fn a_persistent_discovery_controller_is_told_of_every_change() {
    run(async {
        let (target, subsystem) = target(memory(512));
        let (server, options) = listen(target.clone(), Options::default());
        let port = server.address().port().to_string();
        let persistent: Rc<Controller> = Controller::connect(ConnectOptions {
            subsystem: Nqn::discovery(),
            ..options.clone()
        })
        .await
        .unwrap();
        assert_ne!(persistent.identity().oaes & bits::OAES_DISCOVERY_CHANGE, 0);
        assert_eq!(persistent.identity().cntrltype, bits::CNTRLTYPE_DISCOVERY);
        assert_eq!(persistent.identity().dctype, bits::DCTYPE_DIRECT);
        let mut events = persistent.events().await.unwrap();
        let seen = async |events: &mut Receiver<AsyncEvent>| {
            assert_eq!(next(events).await, Some(AsyncEvent::DISCOVERY_LOG_CHANGE));
            let header = get_log(&persistent, page(LogPage::Discovery, 1024))
                .await
                .unwrap();
            u64::from_le_bytes(*header.first_chunk().unwrap())
        };
        let own = |nqn: &str| {
            (
                SubsystemType::CurrentDiscovery.code(),
                nqn.to_owned(),
                port.clone(),
            )
        };
        let served = (SubsystemType::Nvm.code(), NQN.to_owned(), port.clone());
        let well_known = Nqn::discovery().as_str().to_owned();
        assert_eq!(log_of(&options).await, [served.clone(), own(&well_known)]);
        let referral = Referral {
            address: "192.0.2.7:8009".parse::<SocketAddr>().unwrap(),
            subsystem: Nqn::discovery(),
        };
        assert!(target.add_referral(referral.clone()) && !target.add_referral(referral.clone()));
        let first = seen(&mut events).await;
        let pointed = (
            SubsystemType::Referral.code(),
            well_known.clone(),
            "8009".to_owned(),
        );
        assert_eq!(
            log_of(&options).await,
            [pointed, served.clone(), own(&well_known)]
        );
        assert!(target.remove_referral(&referral) && !target.remove_referral(&referral));
        let second = seen(&mut events).await;
        assert!(second > first);
        // What this host may no longer see is gone from its log.
        subsystem.allow_any_host(false);
        seen(&mut events).await;
        assert_eq!(log_of(&options).await, [own(&well_known)]);
        let host = options.host.as_str();
        assert!(subsystem.add_host(host) && !subsystem.add_host(host));
        seen(&mut events).await;
        assert_eq!(log_of(&options).await, [served.clone(), own(&well_known)]);
        assert!(subsystem.remove_host(host) && !subsystem.remove_host(host));
        seen(&mut events).await;
        assert_eq!(log_of(&options).await, [own(&well_known)]);
        subsystem.allow_any_host(true);
        seen(&mut events).await;
        // A name of its own: hosts reach it under both.
        let unique = "nqn.2026-11.io.redhare:discovery";
        target.set_discovery_nqn(Some(nqn(unique)));
        seen(&mut events).await;
        assert_eq!(log_of(&options).await, [served.clone(), own(unique)]);
        let by_name = ConnectOptions {
            subsystem: nqn(unique),
            ..options.clone()
        };
        let named = Controller::connect(by_name).await.unwrap();
        assert_eq!(named.identity().subnqn.text(), Ok(unique));
        // A subsystem that goes, and one that is served elsewhere only.
        let at = |address: SocketAddr| Portal { address };
        assert!(subsystem.add_portal(at("127.0.0.1:1".parse().unwrap())));
        seen(&mut events).await;
        assert_eq!(log_of(&options).await, [own(unique)]);
        assert!(Controller::connect(options.clone()).await.is_err());
        assert!(subsystem.add_portal(at(options.address)));
        seen(&mut events).await;
        assert_eq!(log_of(&options).await, [served.clone(), own(unique)]);
        assert!(subsystem.remove_portal(at(options.address)));
        seen(&mut events).await;
        assert_eq!(log_of(&options).await, [own(unique)]);
        assert!(subsystem.add_portal(at(options.address)));
        seen(&mut events).await;
        assert!(target.remove_subsystem(NQN) && !target.remove_subsystem(NQN));
        seen(&mut events).await;
        assert_eq!(log_of(&options).await, [own(unique)]);
    });
}

/// As libnvme 1.3 reads it: in parts, all with RAE, and the header once more.
#[test]
fn a_discovery_log_that_was_read_to_its_end_is_told_of_anew() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target.clone(), Options::default());
        let persistent = Controller::connect(ConnectOptions {
            subsystem: Nqn::discovery(),
            ..options
        })
        .await
        .unwrap();
        let mut events = persistent.events().await.unwrap();
        let mut change = (1..).map(|port| {
            target.add_referral(Referral {
                address: SocketAddr::from(([192, 0, 2, 7], port)),
                subsystem: Nqn::discovery(),
            })
        });
        let retained = async |offset, bytes| {
            let get = GetLogPage {
                retain_event: true,
                offset,
                ..page(LogPage::Discovery, bytes)
            };
            get_log(&persistent, get).await.unwrap();
        };
        assert_eq!(change.next(), Some(true));
        assert_eq!(next(&mut events).await, Some(AsyncEvent::DISCOVERY_LOG_CHANGE));
        // A header, the subsystem, the service and a referral are 4 KiB.
        retained(0, 1024).await;
        retained(1024, 2048).await;
        assert_eq!(change.next(), Some(true));
        quiet(&mut events).await;
        retained(0, 4096).await;
        retained(4096, 1024).await;
        retained(0, 1024).await;
        assert_eq!(change.next(), Some(true));
        assert_eq!(next(&mut events).await, Some(AsyncEvent::DISCOVERY_LOG_CHANGE));
        assert_eq!(change.next(), Some(true));
        quiet(&mut events).await;
    });
}

#[test]
fn traffic_on_any_queue_keeps_an_association_alive() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target, Options::default());
        let controller = Controller::connect(options).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        set_feature(&controller, Feature::KeepAliveTimer, 200, Data::None)
            .await
            .unwrap();
        controller.stop_keep_alive();
        // No admin command for twice the time that the target waits, but reads.
        for _ in 0..60 {
            time::sleep(Duration::from_millis(50)).await;
            read(&namespace, 0, 1).await;
        }
        assert!(!controller.is_ended());
        let limit = Duration::from_secs(10);
        time::timeout(limit, controller.ended())
            .await
            .expect("silence ends it");
    });
}

#[test]
fn several_listeners_and_ipv6_serve_one_subsystem() {
    run(async {
        let (target, _) = target(memory(512));
        let (_one, options) = listen(target.clone(), Options::default());
        let six = fabrics::target::serve(target, "[::1]:0".parse().unwrap(), Options::default());
        let Ok(six) = six else {
            return println!("SKIP: no IPv6 loopback: ip -6 addr add ::1/128 dev lo");
        };
        let by_six = ConnectOptions {
            address: six.address(),
            ..options.clone()
        };
        assert_eq!(log_of(&by_six).await.len(), 4);
        let (one, two) = (
            Controller::connect(options).await.unwrap(),
            Controller::connect(by_six).await.unwrap(),
        );
        assert_ne!(one.cntlid(), two.cntlid());
        let written = one.open_namespace(1).await.unwrap();
        written.write(Lba(9), bytes(512, 4)).await.unwrap();
        let namespace = two.open_namespace(1).await.unwrap();
        assert_eq!(read(&namespace, 9, 1).await, bytes(512, 4)[..]);
    });
}

#[test]
fn controllers_are_numbered_in_turn_from_their_range() {
    run(async {
        let target = Target::new();
        target.add_subsystem(Subsystem::with_options(SubsystemOptions {
            nqn: nqn(NQN),
            serial: "1".to_owned(),
            model: "Redhare".to_owned(),
            hosts: Hosts::Any,
            namespaces_max: 16,
            cntlids: 100..=101,
            everywhere: true,
            reports_access: false,
        }));
        let (_server, options) = listen(target, Options::default());
        let one = Controller::connect(options.clone()).await.unwrap();
        let two = Controller::connect(options.clone()).await.unwrap();
        assert_eq!((one.cntlid(), two.cntlid()), (100, 101));
        let busy = Controller::connect(options.clone()).await.err().unwrap();
        assert!(busy.to_string().contains("Controller Busy"), "{busy}");
        drop(one);
        let mut again = Controller::connect(options.clone()).await;
        while again.is_err() {
            time::sleep(Duration::from_millis(10)).await;
            again = Controller::connect(options.clone()).await;
        }
        assert_eq!(again.unwrap().cntlid(), 100);
    });
}

#[test]
fn a_write_of_several_r2ts_arrives_whole() {
    run(async {
        for max_outstanding_r2t in [1, 3, 16] {
            let (target, _) = target(memory(512));
            let mut with = Options::default();
            with.limits.r2t_bytes = 12 * 1024;
            with.limits.max_outstanding_r2t = max_outstanding_r2t;
            let (_server, options) = listen(target, with);
            let controller = Controller::connect(ConnectOptions {
                data_digest: true,
                ..options
            })
            .await
            .unwrap();
            let namespace = controller.open_namespace(1).await.unwrap();
            namespace.write(Lba(3), bytes(1000 * 512, 8)).await.unwrap();
            assert!(read(&namespace, 3, 1000).await == bytes(1000 * 512, 8)[..]);
        }
    });
}
