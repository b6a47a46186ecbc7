//! Several paths to one controller's namespaces, managed by requests and by SPDK's own client: a path fails, another is
//! added or taken away, keys and policies change, and whoever uses the device does not notice.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::daemon::{Daemon, NQN, free_address, listener};
use super::host::{BLOCK_BYTES, HOST, open, read, run, write};
use super::keys::add_keys;
use super::spdk_client::{is_there, json_of, said, spdk};

/// A target with a namespace and two listeners.
fn origin() -> (Daemon, [SocketAddr; 2]) {
    let (daemon, addresses) = (Daemon::start(&[]), [free_address(), free_address()]);
    daemon.call("nvmf_create_transport", json!({ "trtype": "TCP" }));
    let subsystem = json!({ "nqn": NQN, "allow_any_host": true, "ana_reporting": true });
    daemon.call("nvmf_create_subsystem", subsystem);
    for address in addresses {
        daemon.call("nvmf_subsystem_add_listener", listener(NQN, address));
    }
    daemon.add_memory("Malloc0");
    (daemon, addresses)
}

fn attach(address: SocketAddr, more: &Value) -> Value {
    let mut params = json!({
        "name": "Nvme0",
        "trtype": "TCP",
        "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
        "subnqn": NQN,
        "hostnqn": HOST,
    });
    if let (Some(params), Some(more)) = (params.as_object_mut(), more.as_object()) {
        params.extend(more.clone());
    }
    params
}

fn set_state(origin: &Daemon, address: SocketAddr, state: &str) {
    let mut params = listener(NQN, address);
    params["ana_state"] = json!(state);
    origin.call("nvmf_subsystem_listener_set_ana_state", params);
}

/// The paths of the device's first channel.
fn io_paths(relay: &Daemon) -> Vec<Value> {
    let shown = relay.call("bdev_nvme_get_io_paths", json!({ "name": "Nvme0n1" }));
    let group = shown["poll_groups"][0]["io_paths"].as_array();
    group.cloned().unwrap_or_default()
}

/// Waits until the paths are as expected.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("not within 10 s: {what}");
}

fn current(relay: &Daemon) -> Option<u64> {
    let paths = io_paths(relay);
    let current = paths.iter().find(|path| path["current"] == json!(true))?;
    current["transport"]["trsvcid"].as_str()?.parse().ok()
}

#[test]
fn paths_come_and_go_under_a_device_in_use() {
    let (origin, [first, second]) = origin();
    let (relay, portal) = (Daemon::start(&[]), free_address());
    let port = |address: SocketAddr| Some(u64::from(address.port()));
    relay.call(
        "bdev_nvme_attach_controller",
        attach(first, &json!({ "multipath": "multipath" })),
    );
    let added = relay.call("bdev_nvme_attach_controller", attach(second, &json!({})));
    assert_eq!(added, json!(["Nvme0n1"]));
    relay.listen(portal);
    relay.add_namespace("Nvme0n1");
    run(async {
        let (_controller, channel) = open(portal, 1).await;
        write(&channel, 1, 0x11).await.unwrap();
        until("both paths are connected", || {
            io_paths(&relay)
                .iter()
                .filter(|path| path["connected"] == json!(true))
                .count()
                == 2
        });
        assert_eq!(current(&relay), port(first));
        set_state(&origin, first, "inaccessible");
        write(&channel, 2, 0x22).await.unwrap();
        until("the other path is taken", || current(&relay) == port(second));
        set_state(&origin, first, "optimized");
        set_state(&origin, second, "non_optimized");
        until("the better path is taken", || current(&relay) == port(first));

        // The second is optimized again, and preferred.
        set_state(&origin, second, "optimized");
        let cntlid = |address: SocketAddr| {
            let paths = io_paths(&relay);
            let port = json!(address.port().to_string());
            let path = paths.iter().find(|path| path["transport"]["trsvcid"] == port);
            path.map(|path| path["cntlid"].clone()).unwrap_or_default()
        };
        relay.call(
            "bdev_nvme_set_preferred_path",
            json!({ "name": "Nvme0n1", "cntlid": cntlid(second) }),
        );
        until("the preferred path is taken", || current(&relay) == port(second));
        let policy = json!({ "name": "Nvme0n1", "policy": "active_active", "selector": "round_robin", "rr_min_io": 2 });
        relay.call("bdev_nvme_set_multipath_policy", policy);
        let before = cntlid(first);
        relay.call(
            "bdev_nvme_reset_controller",
            json!({ "name": "Nvme0", "cntlid": before }),
        );
        until("the path has a new controller", || {
            ![json!(0), before.clone()].contains(&cntlid(first))
        });
        for lba in 0..20 {
            write(&channel, lba, lba as u8).await.unwrap();
        }

        // One listener goes altogether, and the path with it.
        origin.call("nvmf_subsystem_remove_listener", listener(NQN, first));
        for lba in 0..20 {
            assert_eq!(read(&channel, lba).await.unwrap(), vec![lba as u8; BLOCK_BYTES]);
        }
        let detach = json!({
            "name": "Nvme0", "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": first.port().to_string(),
        });
        relay.call("bdev_nvme_detach_controller", detach);
        until("the path is gone", || io_paths(&relay).len() == 1);
        write(&channel, 3, 0x33).await.unwrap();
        let controllers = relay.call("bdev_nvme_get_controllers", json!({}));
        let trid = &controllers[0]["ctrlrs"][0]["trid"];
        assert_eq!(trid["trsvcid"], json!(second.port().to_string()));
        assert_eq!(controllers[0]["ctrlrs"].as_array().unwrap().len(), 1);
    });
}

#[test]
fn what_is_no_path_is_refused_with_the_remedy() {
    let (origin, [first, second]) = origin();
    let (stranger, elsewhere) = (Daemon::start(&[]), free_address());
    stranger.listen(elsewhere);
    stranger.add_memory("Malloc0");
    let relay = Daemon::start(&[]);
    let refused = |method: &str, params: Value, code: i64, words: &str| {
        let (found, message) = relay.try_call(method, params).unwrap_err();
        assert!(
            found == code && message.contains(words),
            "{method}: {message} ({found})"
        );
    };
    relay.call(
        "bdev_nvme_attach_controller",
        attach(first, &json!({ "multipath": "failover" })),
    );
    for (address, more, code, words) in [
        (first, json!({}), -17, "give another address"),
        (second, json!({ "multipath": "disable" }), -17, "has one path"),
        (
            second,
            json!({ "multipath": "multipath" }),
            -17,
            "with failover; use that",
        ),
        (
            second,
            json!({ "reconnect_delay_sec": 1 }),
            -95,
            "those of the first are for all",
        ),
        (
            second,
            json!({ "hostnqn": "nqn.2026-11.io.redhare:somebody" }),
            -32602,
            "all paths are of one host",
        ),
        (elsewhere, json!({}), -22, "its identifiers"),
        (
            second,
            json!({ "multipath_opts": { "policy": "active_passive", "min_io": 2 } }),
            -32602,
            "active_active",
        ),
    ] {
        refused("bdev_nvme_attach_controller", attach(address, &more), code, words);
    }
    for (method, params, code, words) in [
        (
            "bdev_nvme_set_options",
            json!({ "action_on_timeout": "abort" }),
            -95,
            "write reset",
        ),
        (
            "bdev_nvme_set_options",
            json!({ "action_on_timeout": "none", "timeout_us": 5 }),
            -95,
            "write reset",
        ),
        (
            "bdev_nvme_set_options",
            json!({ "rdma_srq_size": 5 }),
            -95,
            "leave it out",
        ),
        (
            "bdev_nvme_set_options",
            json!({ "bdev_retry_count": -2 }),
            -32602,
            "-1 for ever",
        ),
        (
            "bdev_nvme_set_options",
            json!({ "dhchap_digests": ["md5"] }),
            -22,
            "bdev_nvme_set_options",
        ),
        (
            "bdev_nvme_set_options",
            json!({ "speed": 5 }),
            -32602,
            "unknown field",
        ),
        (
            "bdev_nvme_set_preferred_path",
            json!({ "name": "Nvme0n1", "cntlid": 999 }),
            -19,
            "bdev_nvme_get_io_paths",
        ),
        (
            "bdev_nvme_get_io_paths",
            json!({ "name": "Nope" }),
            -19,
            "bdev_nvme_get_io_paths",
        ),
        (
            "bdev_nvme_reset_controller",
            json!({ "name": "Nope" }),
            -19,
            "bdev_nvme_get_controllers",
        ),
        (
            "bdev_nvme_detach_controller",
            json!({ "name": "Nvme0", "traddr": "127.0.0.1", "trsvcid": "1" }),
            -19,
            "no path by 127.0.0.1:1",
        ),
        (
            "bdev_nvme_set_keys",
            json!({ "name": "Nvme0", "dhchap_key": "nope" }),
            -126,
            "keyring_get_keys",
        ),
    ] {
        refused(method, params, code, words);
    }
    drop(origin);
}

#[test]
fn spdk_s_client_manages_paths() {
    if !is_there() {
        return;
    }
    let (origin, [first, second]) = origin();
    let directory = tempfile::tempdir().unwrap();
    add_keys(&origin, directory.path());
    let host = json!({ "nqn": NQN, "host": HOST, "dhchap_key": "one" });
    origin.call("nvmf_subsystem_add_host", host);
    let (relay, portal) = (Daemon::start(&[]), free_address());
    add_keys(&relay, directory.path());
    let attach = |address: SocketAddr, more: &str| {
        let port = address.port();
        format!(
            "bdev_nvme_attach_controller -b Nvme0 -t tcp -a 127.0.0.1 -s {port} -f ipv4 -n {NQN} -q {HOST} {more}\n"
        )
    };
    let mut commands = "bdev_nvme_set_options -a reset -t 20000000 -k 5000 -r 5 -o 1 -u 10 -l 60 --tcp-connect-timeout-ms 2000\n".to_owned();
    commands += &attach(
        first,
        "-x multipath --dhchap-key one --policy active_active --selector queue_depth",
    );
    commands += &attach(second, "-x multipath");
    said(&spdk(&relay, &[], &commands));
    relay.listen(portal);
    relay.add_namespace("Nvme0n1");
    run(async {
        let (_controller, channel) = open(portal, 1).await;
        write(&channel, 1, 0x11).await.unwrap();
        until("both paths are connected", || {
            let shown = json_of(&spdk(&relay, &["bdev_nvme_get_io_paths", "-n", "Nvme0n1"], ""));
            let paths = shown["poll_groups"][0]["io_paths"].as_array().unwrap().clone();
            paths.len() == 2 && paths.iter().all(|path| path["accessible"] == json!(true))
        });
        // The target has other keys now: those here are good until the next connection.
        let keys = json!({ "nqn": NQN, "host": HOST, "dhchap_key": "two" });
        origin.call("nvmf_subsystem_set_keys", keys);
        let wrong = spdk(
            &relay,
            &["bdev_nvme_set_keys", "Nvme0", "--dhchap-key", "one"],
            "",
        );
        assert!(!wrong.status.success());
        let commands = format!(
            "bdev_nvme_set_keys Nvme0 --dhchap-key two\n\
             bdev_nvme_reset_controller Nvme0\n\
             bdev_nvme_detach_controller Nvme0 -t tcp -a 127.0.0.1 -f ipv4 -s {} -n {NQN}\n",
            first.port()
        );
        said(&spdk(&relay, &[], &commands));
        assert_eq!(read(&channel, 1).await.unwrap(), vec![0x11; BLOCK_BYTES]);
        said(&spdk(&relay, &[], &attach(first, "-x multipath")));
    });
    let controllers = json_of(&spdk(&relay, &["bdev_nvme_get_controllers", "-n", "Nvme0"], ""));
    assert_eq!(
        controllers[0]["ctrlrs"].as_array().unwrap().len(),
        2,
        "{controllers}"
    );

    // What was saved is the same when it is loaded.
    let text = said(&spdk(&relay, &["save_config"], ""));
    relay.end();
    let again = Daemon::start(&[]);
    said(&spdk(&again, &["load_config"], &text));
    let saved = said(&spdk(&again, &["save_config"], ""));
    assert_eq!(
        serde_json::from_str::<Value>(&saved).unwrap(),
        serde_json::from_str::<Value>(&text).unwrap()
    );
    assert!(
        text.contains("bdev_nvme_set_options") && text.contains("queue_depth"),
        "{text}"
    );
    said(&spdk(&again, &["bdev_nvme_detach_controller", "Nvme0"], ""));
}
