//! What is made by requests serves hosts, what is taken away does not any more, and the numbers are true.

use fabrics::initiator::ConnectError;
use protocols::nvme::nqn::DISCOVERY_NQN;
use serde_json::{Value, json};

use super::daemon::{Daemon, NQN, free_address, listener};
use super::host::{BLOCK_BYTES, HOST, connect, open, read, run, write};

#[test]
fn a_target_made_by_requests_serves_io_and_counts_it() {
    let (daemon, address) = (Daemon::start(&[]), free_address());
    daemon.listen(address);
    assert_eq!(daemon.add_memory("Malloc0"), json!(1));
    run(async {
        let controller = connect(address).await.unwrap();
        let channel = controller.open_namespace(1).await.unwrap();
        for lba in 0..3 {
            write(&channel, lba, 0x40 + lba as u8).await.unwrap();
        }
        assert_eq!(read(&channel, 2).await.unwrap(), vec![0x42; BLOCK_BYTES]);

        let statistics = daemon.call("bdev_get_iostat", json!({ "names": ["Malloc0"] }));
        let device = &statistics["bdevs"][0];
        assert_eq!(device["num_write_ops"], json!(3));
        assert_eq!(device["bytes_written"], json!(3 * BLOCK_BYTES));
        assert_eq!(device["num_read_ops"], json!(1));
        assert_eq!(device["bytes_read"], json!(BLOCK_BYTES));
        assert!(device["read_latency_ticks"].as_u64().unwrap() > 0);
        let controllers = daemon.call("nvmf_subsystem_get_controllers", json!({ "nqn": NQN }));
        assert_eq!(controllers[0]["hostnqn"], json!(HOST));
        assert_eq!(controllers[0]["num_io_qpairs"], json!(1));
        let queues = daemon.call("nvmf_subsystem_get_qpairs", json!({ "nqn": NQN }));
        let qids: Vec<&Value> = queues
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| &queue["qid"])
            .collect();
        assert_eq!(qids, [&json!(0), &json!(1)]);
        let group = &daemon.call("nvmf_get_stats", json!({}))["poll_groups"][0];
        assert_eq!(group["current_io_qpairs"], json!(1));
        assert_eq!(group["completed_nvme_io"], json!(4));

        // The device is pulled out from under the host.
        daemon.call("bdev_malloc_delete", json!({ "name": "Malloc0" }));
        assert!(read(&channel, 2).await.is_err());
        let subsystems = daemon.call("nvmf_get_subsystems", json!({ "nqn": NQN }));
        assert_eq!(subsystems[0]["namespaces"], json!([]));
        daemon.call("nvmf_delete_subsystem", json!({ "nqn": NQN }));
        controller.ended().await;
        assert!(matches!(connect(address).await, Err(ConnectError::Socket { .. })));
    });
}

#[test]
fn hosts_connect_only_where_and_if_they_may() {
    let daemon = Daemon::start(&[]);
    let (address, discovery) = (free_address(), free_address());
    daemon.listen(address);
    daemon.call("nvmf_subsystem_add_listener", listener(DISCOVERY_NQN, discovery));
    let closed = json!({ "nqn": NQN, "allow_any_host": false });
    daemon.call("nvmf_subsystem_allow_any_host", closed);
    let host = json!({ "nqn": NQN, "host": HOST });
    run(async {
        assert!(connect(address).await.is_err());
        daemon.call("nvmf_subsystem_add_host", host.clone());
        let controller = connect(address).await.unwrap();
        // Discovery listens there, the subsystem does not.
        assert!(connect(discovery).await.is_err());
        daemon.call("nvmf_subsystem_remove_host", host.clone());
        controller.ended().await;
        assert!(connect(address).await.is_err());

        daemon.call("nvmf_subsystem_add_host", host);
        let controller = connect(address).await.unwrap();
        daemon.call("nvmf_subsystem_remove_listener", listener(NQN, address));
        controller.ended().await;
        assert!(matches!(connect(address).await, Err(ConnectError::Socket { .. })));
    });
}

#[test]
fn a_namespace_of_another_target_is_a_device() {
    let (origin, relay) = (Daemon::start(&[]), Daemon::start(&[]));
    let (first, second) = (free_address(), free_address());
    origin.listen(first);
    origin.add_memory("Malloc0");
    let attach = json!({
        "name": "Nvme0",
        "trtype": "TCP",
        "traddr": first.ip().to_string(),
        "trsvcid": first.port().to_string(),
        "subnqn": NQN,
        "reconnect_delay_sec": 2,
        "fast_io_fail_timeout_sec": 10,
        "ctrlr_loss_timeout_sec": 60,
    });
    let devices = relay.call("bdev_nvme_attach_controller", attach.clone());
    assert_eq!(devices, json!(["Nvme0n1"]));
    let uuid = |daemon: &Daemon, name: &str| {
        daemon.call("bdev_get_bdevs", json!({ "name": name }))[0]["uuid"].clone()
    };
    assert_eq!(uuid(&relay, "Nvme0n1"), uuid(&origin, "Malloc0"));
    assert_eq!(
        relay
            .try_call("bdev_nvme_attach_controller", attach)
            .unwrap_err()
            .0,
        -17
    );

    relay.listen(second);
    relay.add_namespace("Nvme0n1");
    run(async {
        let (_controller, channel) = open(second, 1).await;
        write(&channel, 9, 0x99).await.unwrap();
        let (_controller, channel) = open(first, 1).await;
        assert_eq!(read(&channel, 9).await.unwrap(), vec![0x99; BLOCK_BYTES]);
    });
    relay.call("bdev_nvme_detach_controller", json!({ "name": "Nvme0" }));
    assert_eq!(relay.call("bdev_get_bdevs", json!({})), json!([]));
}

/// A controller to attach with these limits.
fn lossy(mut limits: Value) -> Value {
    for (key, value) in [
        ("name", "Nvme0"),
        ("trtype", "TCP"),
        ("traddr", "127.0.0.1"),
        ("trsvcid", "4420"),
        ("subnqn", NQN),
    ] {
        limits[key] = json!(value);
    }
    limits
}

#[test]
fn mistakes_get_a_code_and_a_remedy() {
    let daemon = Daemon::start(&[]);
    daemon.call(
        "bdev_malloc_create",
        json!({ "name": "Malloc0", "num_blocks": 8, "block_size": 512 }),
    );
    let listen = listener(NQN, "127.0.0.1:4420".parse().unwrap());
    daemon.call("nvmf_create_subsystem", json!({ "nqn": NQN }));
    for (method, params, code, expected) in [
        (
            "bdev_mallok_create",
            json!({}),
            -32601,
            "did you mean bdev_malloc_create?",
        ),
        ("bdev_lvol_get_lvols", json!({}), -32601, "rpc_get_methods"),
        (
            "bdev_nvme_attach_controller",
            lossy(json!({ "ctrlr_loss_timeout_sec": 0 })),
            -95,
            "or -1 for ever",
        ),
        (
            "bdev_nvme_attach_controller",
            lossy(json!({ "ctrlr_loss_timeout_sec": 5, "reconnect_delay_sec": 6 })),
            -32602,
            "reconnect_delay_sec is 6 s, longer than ctrlr_loss_timeout_sec with 5 s",
        ),
        (
            "bdev_nvme_attach_controller",
            lossy(json!({ "fast_io_fail_timeout_sec": 1, "reconnect_delay_sec": 2 })),
            -32602,
            "longer than fast_io_fail_timeout_sec with 1 s",
        ),
        (
            "bdev_malloc_create",
            json!({ "num_blocks": 8 }),
            -32602,
            "missing field `block_size`",
        ),
        (
            "bdev_malloc_create",
            json!({ "num_blocks": 8, "block_size": 512, "speed": 9 }),
            -32602,
            "unknown field `speed`",
        ),
        (
            "bdev_malloc_create",
            json!({ "num_blocks": 8, "block_size": 520 }),
            -22,
            "use 512 or 4096",
        ),
        (
            "bdev_malloc_create",
            json!({ "num_blocks": 8, "block_size": 512, "md_size": 8 }),
            -95,
            "leave it out",
        ),
        (
            "bdev_malloc_create",
            json!({ "name": "Malloc0", "num_blocks": 8, "block_size": 512 }),
            -17,
            "choose another name",
        ),
        (
            "bdev_null_delete",
            json!({ "name": "Malloc0" }),
            -19,
            "its own kind's method",
        ),
        (
            "bdev_get_bdevs",
            json!({ "name": "Nope" }),
            -19,
            "bdev_get_bdevs lists",
        ),
        (
            "bdev_aio_create",
            json!({ "name": "A", "filename": "/nonexistent/disk", "block_size": 512 }),
            -2,
            "/nonexistent/disk",
        ),
        (
            "bdev_set_qos_limit",
            json!({ "name": "Malloc0", "rw_ios_per_sec": 5 }),
            -22,
            "at least 1000",
        ),
        (
            "nvmf_subsystem_add_listener",
            listen,
            -32602,
            "nvmf_create_transport",
        ),
        (
            "nvmf_create_transport",
            json!({ "trtype": "RDMA" }),
            -32602,
            "only transport is TCP",
        ),
        (
            "nvmf_create_transport",
            json!({ "trtype": "TCP", "in_capsule_data_size": 4096 }),
            -95,
            "write 8192",
        ),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": "x" }),
            -32602,
            "no NVMe qualified name",
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": "Nope" } }),
            -19,
            "no device called Nope",
        ),
        (
            "nvmf_delete_subsystem",
            json!({ "nqn": "nqn.2026-11.io.redhare:no" }),
            -32602,
            "nvmf_get_subsystems",
        ),
        (
            "framework_get_config",
            json!({ "name": "scsi" }),
            -32602,
            "framework_get_subsystems",
        ),
    ] {
        let (found, message) = daemon.try_call(method, params).unwrap_err();
        assert!(
            found == code && message.contains(expected),
            "{method}: {message} ({found})"
        );
    }
}
