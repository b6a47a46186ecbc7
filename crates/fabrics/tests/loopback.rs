//! Our initiator on our target, on real sockets: what a host sees, reads and writes, and what it is told when it
//! asks for something wrong.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{HOST, NQN, agrees_with_an_array, bytes, nqn, options, read, target};
use bdev::delay::{DelayDevice, Delays};
use bdev::fault::{Effect, Fault, FaultDevice, Faults, Target as Struck};
use bdev::memory::MemoryDevice;
use bdev::{BlockDevice, Channel, ChannelExt, Data, IoError, Operation};
use fabrics::initiator::{ConnectError, ConnectOptions, Controller, RemoteDevice, RemoteOptions, discover};
use fabrics::target::{Hosts, Namespace, Options, Server, Subsystem, Target, serve};
use foundation::{BlockCount, Lba};
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::log::{ChangedNamespaces, DiscoveryEntry, HealthLog, LogPage, SubsystemType};
use protocols::nvme::nqn::DISCOVERY_NQN;
use protocols::nvme::{Command, Status};
use reactor::{Config, time};

const BLOCKS: u64 = 2048;

fn run(future: impl Future<Output = ()>) {
    let limited = async {
        time::timeout(Duration::from_secs(60), future)
            .await
            .expect("the test ends in time")
    };
    reactor::run(&Config::default(), limited).expect("this machine can run a reactor");
}

fn memory(block_bytes: u32) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new(block_bytes, BlockCount(BLOCKS)).unwrap())
}

fn listen(target: Arc<Target>) -> (Server, ConnectOptions) {
    let server = serve(target, "127.0.0.1:0".parse().unwrap(), Options::default()).unwrap();
    let options = options(server.address());
    (server, options)
}

#[test]
fn a_remote_namespace_agrees_with_an_array() {
    run(async {
        for (block_bytes, digests, blocks_max) in [(512, false, 64), (4096, true, 40), (4096, false, 256)] {
            let (target, _) = target(memory(block_bytes));
            let (_server, options) = listen(target);
            let options = ConnectOptions {
                header_digest: digests,
                data_digest: digests,
                ..options
            };
            let controller = Controller::connect(options).await.unwrap();
            let namespace = controller.open_namespace(1).await.unwrap();
            assert_eq!(namespace.geometry().block_bytes, block_bytes);
            agrees_with_an_array(Rc::new(namespace), block_bytes.into(), 60, blocks_max).await;
        }
    });
}

#[test]
fn more_commands_than_the_queue_holds_all_end() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target);
        let options = ConnectOptions {
            queue_entries: 4,
            ..options
        };
        let controller = Controller::connect(options).await.unwrap();
        let namespace = Rc::new(controller.open_namespace(1).await.unwrap());
        let tasks: Vec<_> = (0..500)
            .map(|lba| {
                let namespace = namespace.clone();
                reactor::spawn(async move {
                    namespace.write(Lba(lba), bytes(512, lba)).await.unwrap();
                    assert_eq!(read(&*namespace, lba, 1).await, bytes(512, lba)[..]);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(namespace.queue().outstanding(), 0);
    });
}

#[test]
fn compare_deallocate_and_wrong_ranges_do_as_the_standard_says() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target);
        let controller = Controller::connect(options).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        namespace.write(Lba(5), bytes(1024, 1)).await.unwrap();
        let compare = |seed| {
            let data = Data::From(bytes(1024, seed));
            namespace.execute(Operation::Compare, Lba(5), BlockCount(2), data, None)
        };
        assert_eq!(compare(1).await.status, Ok(()));
        assert_eq!(compare(2).await.status, Err(IoError::Mismatch));
        namespace
            .execute(Operation::Deallocate, Lba(5), BlockCount(1), Data::None, None)
            .await
            .status
            .unwrap();
        assert_eq!(read(&namespace, 5, 1).await, vec![0; 512]);
        assert_eq!(read(&namespace, 6, 1).await, bytes(1024, 1)[512..]);
        // Past the end: our own channel refuses; the target must, too, when asked by another host.
        let queue = namespace.queue();
        let raw = |command, data| queue.execute(command, data);
        let buffer = || Data::Into(reactor::BufferPool::current().try_allocate(512).unwrap());
        let beyond = raw(Command::read(1, Lba(BLOCKS), BlockCount(1)), buffer()).await;
        assert_eq!(beyond.status(), Status::LBA_OUT_OF_RANGE);
        assert!(beyond.completion.unwrap().do_not_retry());
        let overflow = raw(Command::read(1, Lba(u64::MAX), BlockCount(2)), buffer()).await;
        assert_eq!(overflow.status(), Status::LBA_OUT_OF_RANGE);
        let foreign = raw(Command::read(2, Lba(0), BlockCount(1)), buffer()).await;
        assert_eq!(foreign.status(), Status::INVALID_NAMESPACE_OR_FORMAT);
        let short = raw(Command::read(1, Lba(0), BlockCount(2)), buffer()).await;
        assert_eq!(short.status(), Status::DATA_SGL_LENGTH_INVALID);
        let long = raw(
            Command::write(1, Lba(0), BlockCount(1)),
            Data::From(bytes(4096, 1)),
        )
        .await;
        assert_eq!(long.status(), Status::DATA_SGL_LENGTH_INVALID);
        let unknown = raw(Command::new(0x90, 1), Data::None).await;
        assert_eq!(unknown.status(), Status::INVALID_COMMAND_OPCODE);
        let everywhere = raw(Command::flush(u32::MAX), Data::None).await;
        assert_eq!(everywhere.status(), Status::SUCCESS);
        assert_eq!(read(&namespace, 6, 1).await, bytes(1024, 1)[512..]);
    });
}

#[test]
fn device_errors_reach_the_host_by_name() {
    run(async {
        let faults = Arc::new(Faults::default());
        let (target, _) = target(Arc::new(FaultDevice::new(memory(512), faults.clone())));
        let (_server, options) = listen(target);
        let controller = Controller::connect(options).await.unwrap();
        let namespace = controller.open_namespace(1).await.unwrap();
        // With which status, and whether the host may try again.
        for (error, status, is_final) in [
            (IoError::Media, Status::WRITE_FAULT, false),
            (IoError::NoSpace, Status::CAPACITY_EXCEEDED, false),
            (IoError::ReadOnly, Status::NAMESPACE_WRITE_PROTECTED, true),
            (IoError::Unavailable, Status::INTERNAL_PATH_ERROR, false),
        ] {
            let effect = Effect::Fail(error);
            faults.plant(Fault {
                target: Struck::Writes,
                range: None,
                skip: 0,
                times: 2,
                effect,
            });
            assert_eq!(namespace.write(Lba(0), bytes(512, 1)).await, Err(error));
            let command = Command::write(1, Lba(0), BlockCount(1));
            let answer = namespace
                .queue()
                .execute(command, Data::From(bytes(512, 1)))
                .await;
            assert_eq!(answer.status(), status);
            assert_eq!(answer.completion.unwrap().do_not_retry(), is_final, "{status}");
        }
        namespace.write(Lba(0), bytes(512, 1)).await.unwrap();
    });
}

#[test]
fn discovery_lists_what_a_host_may_see() {
    run(async {
        let (target, _) = target(memory(512));
        let only = Hosts::Only([HOST.to_owned()].into());
        target.add_subsystem(Subsystem::new(nqn("nqn.2026-11.io.redhare:mine"), "S", "M", only));
        let other = Hosts::Only(["nqn.2026-11.io.redhare:other".to_owned()].into());
        let hidden = "nqn.2026-11.io.redhare:hidden";
        target.add_subsystem(Subsystem::new(nqn(hidden), "S", "M", other));
        let (server, options) = listen(target);
        let entries = discover(options.clone()).await.unwrap();
        let (subsystems, own): (Vec<&DiscoveryEntry>, Vec<_>) = entries
            .iter()
            .partition(|entry| entry.subtype == SubsystemType::Nvm.code());
        let names: Vec<_> = subsystems
            .iter()
            .map(|entry| entry.subnqn.text().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["nqn.2026-11.io.redhare:mine", NQN]);
        assert_eq!(own.len(), 1);
        assert_eq!(own[0].subtype, SubsystemType::CurrentDiscovery.code());
        assert_eq!(own[0].subnqn.text(), Ok(DISCOVERY_NQN));
        let port = server.address().port().to_string();
        assert!(entries.iter().all(|entry| entry.trsvcid.as_str() == Some(&port)));
        assert!(
            entries
                .iter()
                .all(|entry| entry.traddr.as_str() == Some("127.0.0.1"))
        );
        let refused = Controller::connect(ConnectOptions {
            subsystem: nqn(hidden),
            ..options
        })
        .await;
        assert_status(
            refused.err(),
            Status::CONNECT_INVALID_HOST,
            "let the target's administrator allow",
        );
    });
}

fn assert_status(error: Option<ConnectError>, expected: Status, remedy: &str) {
    let error = error.expect("the target refuses");
    assert!(error.to_string().contains(remedy), "{error}");
    let name = match error {
        ConnectError::Command {
            command: "Connect", ..
        } => expected.fabrics_name(),
        _ => expected.name(),
    };
    assert!(error.to_string().contains(name.unwrap()), "{error}");
    assert!(
        matches!(error, ConnectError::Command { status, .. } if status == expected),
        "{error}"
    );
}

#[test]
fn a_wrong_name_or_number_is_refused_with_a_remedy() {
    run(async {
        let (target, _) = target(memory(512));
        let (server, options) = listen(target);
        let stranger = ConnectOptions {
            subsystem: nqn("nqn.2026-11.io.redhare:nobody"),
            ..options.clone()
        };
        let refused = Controller::connect(stranger).await.err();
        assert_status(
            refused,
            Status::CONNECT_INVALID_PARAMETERS,
            "check the subsystem's name",
        );
        let controller = Controller::connect(options.clone()).await.unwrap();
        assert_eq!(controller.namespaces().await.unwrap(), [1]);
        let missing = controller.open_namespace(2).await.err();
        assert_status(
            missing,
            Status::INVALID_NAMESPACE_OR_FORMAT,
            "check the namespace's number",
        );
        drop(server);
        drop(controller);
        time::sleep(Duration::from_millis(50)).await;
        let gone = Controller::connect(options).await.err().unwrap().to_string();
        assert!(gone.contains("is it running and listening there?"), "{gone}");
    });
}

#[test]
fn namespaces_come_and_go_under_a_connected_host() {
    run(async {
        let (target, subsystem) = target(memory(512));
        let (_server, options) = listen(target);
        let controller = Controller::connect(options).await.unwrap();
        let mut events = controller.events().await.unwrap();
        let first = controller.open_namespace(1).await.unwrap();
        subsystem
            .add_namespace(Namespace {
                nsid: 3,
                uuid: [3; 16],
                device: memory(4096),
            })
            .unwrap();
        assert_eq!(events.recv().await, Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED));
        assert_eq!(controller.namespaces().await.unwrap(), [1, 3]);
        let log = controller
            .log_page(LogPage::ChangedNamespaceList, 0xffff_ffff, 4096)
            .await
            .unwrap();
        assert_eq!(
            ChangedNamespaces::decode(&log).unwrap(),
            ChangedNamespaces::Some(vec![3])
        );
        let third = controller.open_namespace(3).await.unwrap();
        third.write(Lba(9), bytes(4096, 3)).await.unwrap();
        assert!(subsystem.remove_namespace(1));
        assert_eq!(events.recv().await, Some(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED));
        assert_eq!(first.write(Lba(0), bytes(512, 1)).await, Err(IoError::Gone));
        assert_eq!(read(&third, 9, 1).await, bytes(4096, 3)[..]);
        let taken = subsystem.add_namespace(Namespace {
            nsid: 3,
            uuid: [4; 16],
            device: memory(512),
        });
        assert!(taken.unwrap_err().to_string().contains("remove it first"));
        let health = controller
            .log_page(LogPage::Health, 0xffff_ffff, HealthLog::BYTES)
            .await
            .unwrap();
        assert_eq!(HealthLog::decode(&health).unwrap().available_spare, 100);
    });
}

#[test]
fn a_lost_connection_ends_its_commands_and_a_device_connects_again() {
    run(async {
        let delays = Arc::new(Delays::default());
        delays.set_read(Duration::from_millis(300));
        let slow = Arc::new(DelayDevice::new(memory(512), delays.clone(), 1));
        let (target, _) = target(slow);
        let (server, options) = listen(target.clone());
        let address = server.address();
        let wait_limit = Duration::from_secs(20);
        let device = RemoteDevice::connect(RemoteOptions {
            wait_limit,
            reconnect_delay_max: Duration::from_millis(200),
            ..RemoteOptions::new(options, 1)
        })
        .await
        .unwrap();
        let channel = device.open_channel().unwrap();
        channel.write(Lba(1), bytes(512, 1)).await.unwrap();
        // A comparison is not repeated, a read is.
        let comparing = {
            let channel = channel.clone();
            reactor::spawn(async move {
                let data = Data::From(bytes(512, 1));
                channel
                    .execute(Operation::Compare, Lba(1), BlockCount(1), data, None)
                    .await
                    .status
            })
        };
        let reading = {
            let channel = channel.clone();
            reactor::spawn(async move { read(&*channel, 1, 1).await })
        };
        time::sleep(Duration::from_millis(50)).await;
        // Every connection of the target goes; nobody listens for a moment.
        drop(server);
        for subsystem in target.subsystems() {
            subsystem.disconnect_hosts();
        }
        assert_eq!(comparing.await, Some(Err(IoError::Unavailable)));
        delays.set_read(Duration::ZERO);
        let waiting = {
            let channel = channel.clone();
            reactor::spawn(async move { read(&*channel, 1, 1).await })
        };
        time::sleep(Duration::from_millis(200)).await;
        assert!(!waiting.is_finished() && !reading.is_finished());
        let _server = serve(target, address, Options::default()).unwrap();
        assert_eq!(reading.await.unwrap(), bytes(512, 1)[..]);
        assert_eq!(waiting.await.unwrap(), bytes(512, 1)[..]);
    });
}

#[test]
fn a_silent_host_is_disconnected_after_its_keep_alive_time() {
    run(async {
        let (target, _) = target(memory(512));
        let (_server, options) = listen(target);
        let keep_alive = Duration::from_millis(300);
        let alive = Controller::connect(ConnectOptions {
            keep_alive,
            ..options.clone()
        })
        .await
        .unwrap();
        time::sleep(Duration::from_millis(2500)).await;
        assert!(!alive.is_ended(), "its keep-alive commands keep it connected");
        // This one promises and then sends nothing: its runtime does not get to run the keep-alive.
        let silent = Controller::connect(ConnectOptions {
            keep_alive,
            ..options
        })
        .await
        .unwrap();
        let set = protocols::nvme::admin::SetFeatures {
            nsid: 0,
            feature: protocols::nvme::features::Feature::KeepAliveTimer.code(),
            save: false,
            value: 1,
        };
        silent
            .admin("Set Features", set.to_command(), Data::None)
            .await
            .unwrap();
        silent.stop_keep_alive();
        time::sleep(Duration::from_millis(3500)).await;
        assert!(silent.is_ended());
    });
}
