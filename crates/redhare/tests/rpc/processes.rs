//! Two processes serve one subsystem, with the same name, namespace and ANA group, and numbers of controllers of their own,
//! over one device: the namespace of a third target. A host with a path to each reads back what it writes while one after the other is killed: no
//! request fails and nothing is lost. `tests/vm/nvme-access.sh` does the same with a stock kernel.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fabrics::initiator::NamespaceChannel;
use serde_json::json;

use super::daemon::{Daemon, NQN, free_address, listener};
use super::host::{BLOCK_BYTES, HOST, open, read, run, write};

const ORIGIN: &str = "nqn.2026-11.io.redhare:origin";
const UUID: &str = "1f6e8c6e-52e5-4f8b-8d0b-3c5f0e6f9a11";
const LANES: u64 = 4;
const LANE_BLOCKS: u64 = 16;

/// One of the processes; its number says which controllers are its own.
fn serve(number: u16, origin: SocketAddr, address: SocketAddr) -> Daemon {
    let daemon = Daemon::start(&[]);
    daemon.call("nvmf_create_transport", json!({ "trtype": "TCP" }));
    let first = 1 + number * 1000;
    let subsystem = json!({
        "nqn": NQN, "allow_any_host": true, "ana_reporting": true, "serial_number": "S1",
        "min_cntlid": first, "max_cntlid": first + 999,
    });
    daemon.call("nvmf_create_subsystem", subsystem);
    let below = json!({
        "name": "Shared", "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": origin.port().to_string(),
        "subnqn": ORIGIN, "hostnqn": format!("{HOST}-{number}"),
    });
    daemon.call("bdev_nvme_attach_controller", below);
    let namespace = json!({ "bdev_name": "Sharedn1", "nsid": 1, "uuid": UUID, "anagrpid": 1 });
    daemon.call(
        "nvmf_subsystem_add_ns",
        json!({ "nqn": NQN, "namespace": namespace }),
    );
    // The kernel ends a killed process's ring, and with it its sockets, a moment after the process.
    let limit = Instant::now() + Duration::from_secs(20);
    while TcpListener::bind(address).is_err() {
        assert!(Instant::now() < limit, "{address} stays taken");
        std::thread::sleep(Duration::from_millis(10));
    }
    daemon.call("nvmf_subsystem_add_listener", listener(NQN, address));
    daemon
}

/// What a lane has written to its blocks.
struct Lane {
    number: u64,
    bytes: Vec<u8>,
}

impl Lane {
    /// Writes blocks and reads them back, with what was there before.
    async fn round(&mut self, channel: &NamespaceChannel, round: u64) {
        let block = round * 7 % LANE_BLOCKS;
        let lba = self.number * LANE_BLOCKS + block;
        let byte = (1 + round % 250) as u8;
        write(channel, lba, byte)
            .await
            .expect("a write goes by another path");
        self.bytes[block as usize] = byte;
        let other = round * 5 % LANE_BLOCKS;
        let found = read(channel, self.number * LANE_BLOCKS + other).await;
        let found = found.expect("a read goes by another path");
        let expected = self.bytes[other as usize];
        assert!(
            found == vec![expected; BLOCK_BYTES],
            "block {other}: {} for {expected}",
            found[0]
        );
    }
}

/// Lanes of I/O until `end` is told; each round is told of.
fn work(portal: SocketAddr, told: &mpsc::Sender<()>, end: &mpsc::Receiver<()>) {
    run(async {
        let (_controller, channel) = open(portal, 1).await;
        let channel = Rc::new(channel);
        let mut lanes: Vec<_> = (0..LANES)
            .map(|number| Lane {
                number,
                bytes: vec![0; LANE_BLOCKS as usize],
            })
            .collect();
        let mut round = 0;
        while end.try_recv() == Err(mpsc::TryRecvError::Empty) {
            let tasks: Vec<_> = lanes
                .drain(..)
                .map(|mut lane| {
                    let channel = channel.clone();
                    reactor::spawn(async move {
                        lane.round(&channel, round).await;
                        lane
                    })
                })
                .collect();
            for task in tasks {
                lanes.push(task.await.expect("a lane ends well"));
            }
            round += 1;
            told.send(()).unwrap();
        }
        for lane in &lanes {
            for (block, &byte) in lane.bytes.iter().enumerate() {
                let found = read(&channel, lane.number * LANE_BLOCKS + block as u64)
                    .await
                    .unwrap();
                assert!(
                    found == vec![byte; BLOCK_BYTES],
                    "block {block} of lane {}",
                    lane.number
                );
            }
        }
    });
}

#[test]
fn one_of_two_processes_of_a_subsystem_may_be_killed_at_any_time() {
    let (below, origin) = (Daemon::start(&[]), free_address());
    below.call("nvmf_create_transport", json!({ "trtype": "TCP" }));
    below.call(
        "nvmf_create_subsystem",
        json!({ "nqn": ORIGIN, "allow_any_host": true }),
    );
    below.call("nvmf_subsystem_add_listener", listener(ORIGIN, origin));
    below.call(
        "bdev_malloc_create",
        json!({ "name": "Malloc0", "num_blocks": 256, "block_size": BLOCK_BYTES }),
    );
    let namespace = json!({ "nqn": ORIGIN, "namespace": { "bdev_name": "Malloc0" } });
    below.call("nvmf_subsystem_add_ns", namespace);
    let addresses = [free_address(), free_address()];
    let mut served: Vec<_> = (0..2)
        .map(|number| Some(serve(number, origin, addresses[usize::from(number)])))
        .collect();
    let (relay, portal) = (Daemon::start(&[]), free_address());
    // Twice this and a second is how long a write that was in flight to a killed process waits, should it not come back.
    relay.call("bdev_nvme_set_options", json!({ "keep_alive_timeout_ms": 1000 }));
    for address in addresses {
        let params = json!({
            "name": "Nvme0", "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": address.port().to_string(),
            "subnqn": NQN, "hostnqn": HOST, "multipath": "multipath",
        });
        relay.call("bdev_nvme_attach_controller", params);
    }
    let policy = json!({ "name": "Nvme0n1", "policy": "active_active", "selector": "round_robin" });
    relay.call("bdev_nvme_set_multipath_policy", policy);
    relay.listen(portal);
    relay.add_namespace("Nvme0n1");
    let (told, rounds) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let host = std::thread::spawn(move || work(portal, &told, &ended));
    let goes_on = |what: &str| {
        for _ in 0..50 {
            rounds
                .recv_timeout(Duration::from_secs(30))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    };
    let both_paths = || {
        let shown = relay.call("bdev_nvme_get_io_paths", json!({ "name": "Nvme0n1" }));
        let paths = shown["poll_groups"][0]["io_paths"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        paths
            .iter()
            .filter(|path| path["connected"] == json!(true))
            .count()
            == 2
    };
    goes_on("both live");
    for number in [0, 1, 0] {
        let limit = Instant::now() + Duration::from_secs(20);
        while !both_paths() {
            assert!(Instant::now() < limit, "a path does not come back");
            std::thread::sleep(Duration::from_millis(20));
        }
        goes_on("both live");
        // By SIGKILL.
        served[number] = None;
        // Also what was in flight there ends, though it is not back.
        goes_on("one is killed");
        served[number] = Some(serve(number as u16, origin, addresses[number]));
        goes_on("it is back");
    }
    end.send(()).unwrap();
    while rounds.recv().is_ok() {}
    host.join().unwrap();
}
