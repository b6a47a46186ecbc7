//! A namespace's reservation in its `ptpl_file`: kept when the target is killed, named in what is saved, and a damaged file
//! stops the namespace.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use bdev::Data;
use fabrics::initiator::NamespaceChannel;
use protocols::nvme::Command;
use protocols::nvme::reservation::{
    AcquireKeys, AskReservationReport, ChangePersistence, RegisterKeys, ReservationAcquire,
    ReservationRegister, ReservationReport, ReservationType,
};
use reactor::BufferPool;
use serde_json::json;

use super::daemon::{Daemon, NQN, free_address};
use super::host::{open, run, write};

const KEY: u64 = 0xabc;

async fn send(channel: &NamespaceChannel, command: Command, bytes: &[u8]) {
    let mut buffer = BufferPool::current().try_allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    let result = channel
        .queue()
        .execute(command, Data::From(buffer.freeze()))
        .await;
    assert!(result.status().is_success(), "{}", result.status());
}

async fn reserve(channel: &NamespaceChannel) {
    let register = ReservationRegister {
        nsid: 1,
        persistence: ChangePersistence::Persist.code(),
        ..ReservationRegister::default()
    };
    let keys = RegisterKeys { current: 0, new: KEY };
    send(channel, register.to_command(), &keys.encode()).await;
    let acquire = ReservationAcquire {
        nsid: 1,
        kind: ReservationType::ExclusiveAccess.code(),
        ..ReservationAcquire::default()
    };
    let keys = AcquireKeys {
        current: KEY,
        preempt: 0,
    };
    send(channel, acquire.to_command(), &keys.encode()).await;
}

/// Waits until nobody listens there: the kernel ends a killed process's ring, and with it the sockets, a moment after the
/// process.
fn wait_until_free(address: SocketAddr) -> bool {
    let limit = Instant::now() + Duration::from_secs(20);
    while Instant::now() < limit {
        if TcpListener::bind(address).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn a_reservation_outlives_a_target_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (address, config) = (free_address(), directory.path().join("saved.json"));
    let kept = directory.path().join("reservations");
    let saved = {
        let daemon = Daemon::start(&[]);
        daemon.listen(address);
        let memory = json!({ "name": "Malloc0", "num_blocks": 4096, "block_size": 4096 });
        daemon.call("bdev_malloc_create", memory);
        let mut namespace = json!({ "bdev_name": "Malloc0", "ptpl_file": "/nowhere/at/all" });
        let add = |namespace: &serde_json::Value| {
            let params = json!({ "nqn": NQN, "namespace": namespace });
            daemon.try_call("nvmf_subsystem_add_ns", params)
        };
        let (code, message) = add(&namespace).unwrap_err();
        assert_eq!(code, -32602);
        assert!(message.contains("cannot be kept in /nowhere/at/all"), "{message}");
        namespace["ptpl_file"] = json!(kept);
        assert_eq!(add(&namespace), Ok(json!(1)));
        let subsystems = daemon.call("nvmf_get_subsystems", json!({}));
        assert_eq!(subsystems[1]["namespaces"][0]["ptpl_file"], json!(kept));
        run(async {
            let (_controller, channel) = open(address, 1).await;
            reserve(&channel).await;
        });
        daemon.saved()
        // The daemon is killed here.
    };
    std::fs::write(&config, saved.to_string()).unwrap();
    let gone = wait_until_free(address);
    assert!(gone, "a killed target leaves its port");
    {
        let daemon = Daemon::start(&["--json-config", config.to_str().unwrap()]);
        assert_eq!(daemon.saved(), saved);
        run(async {
            let (_controller, channel) = open(address, 1).await;
            write(&channel, 0, 1).await.unwrap();
            let ask = AskReservationReport {
                nsid: 1,
                length_dwords: 1024,
                extended: true,
            };
            let room = Data::Into(BufferPool::current().try_allocate(4096).unwrap());
            let result = channel.queue().execute(ask.to_command(), room).await;
            let report = ReservationReport::decode(&result.data.into_read(), true).unwrap();
            let header = report.header;
            assert_eq!((header.kind, header.registrants, header.persistent), (2, 1, 1));
        });
        let again = json!({ "nqn": NQN, "namespace": { "bdev_name": "Null0", "ptpl_file": kept } });
        let null = json!({ "name": "Null0", "num_blocks": 8, "block_size": 512 });
        daemon.call("bdev_null_create", null);
        let (_, message) = daemon.try_call("nvmf_subsystem_add_ns", again).unwrap_err();
        assert!(
            message.contains("another namespace or process holds"),
            "{message}"
        );
    }
    assert!(wait_until_free(address));
    let mut bytes = std::fs::read(&kept).unwrap();
    bytes[48] ^= 1;
    std::fs::write(&kept, bytes).unwrap();
    let daemon = Daemon::start(&[]);
    daemon.listen(address);
    let memory = json!({ "name": "Malloc0", "num_blocks": 4096, "block_size": 4096 });
    daemon.call("bdev_malloc_create", memory);
    let namespace = json!({ "bdev_name": "Malloc0", "ptpl_file": kept });
    let params = json!({ "nqn": NQN, "namespace": namespace });
    let (_, message) = daemon.try_call("nvmf_subsystem_add_ns", params).unwrap_err();
    assert!(message.contains("are damaged: its checksum is"), "{message}");
}
