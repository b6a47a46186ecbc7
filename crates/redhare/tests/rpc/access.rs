//! How well namespaces are reached through each listener, as requests set it.

use bdev::IoError;
use serde_json::{Value, json};

use super::daemon::{Daemon, NQN, free_address, listener};
use super::host::{open, read, run, write};

#[test]
fn each_listener_serves_each_group_as_well_as_was_said_and_it_is_saved() {
    let (daemon, one, other) = (Daemon::start(&[]), free_address(), free_address());
    daemon.call("nvmf_create_transport", json!({ "trtype": "TCP" }));
    let create = json!({ "nqn": NQN, "allow_any_host": true, "max_namespaces": 8, "ana_reporting": true });
    daemon.call("nvmf_create_subsystem", create);
    for address in [one, other] {
        daemon.call("nvmf_subsystem_add_listener", listener(NQN, address));
    }
    daemon.add_memory("Malloc0");
    daemon.add_memory("Malloc1");
    let set = |address, more: Value| {
        let mut params = listener(NQN, address);
        params
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        daemon.try_call("nvmf_subsystem_listener_set_ana_state", params)
    };
    let states = |index: usize| {
        let listeners = daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
        let states = listeners[index]["ana_states"].as_array().unwrap().clone();
        assert_eq!(states.len(), 8, "one for each group");
        states
    };
    let first = usize::from(one > other);
    run(async {
        let (_one, first_by_one) = open(one, 1).await;
        let (_one, second_by_one) = open(one, 2).await;
        let (_other, first_by_other) = open(other, 1).await;
        write(&first_by_one, 1, 0x11).await.unwrap();
        set(one, json!({ "ana_state": "inaccessible" })).unwrap();
        assert_eq!(states(first)[7]["ana_state"], json!("inaccessible"));
        assert_eq!(states(1 - first)[7]["ana_state"], json!("optimized"));
        assert_eq!(write(&first_by_one, 1, 0x22).await, Err(IoError::Unavailable));
        assert_eq!(write(&second_by_one, 1, 0x22).await, Err(IoError::Unavailable));
        assert_eq!(read(&first_by_other, 1).await.unwrap(), vec![0x11; 4096]);

        // The second namespace alone, in a group of its own.
        set(one, json!({ "ana_state": "optimized", "anagrpid": 5 })).unwrap();
        let group = json!({ "nqn": NQN, "nsid": 2, "anagrpid": 5 });
        daemon.call("nvmf_subsystem_set_ns_ana_group", group);
        assert_eq!(write(&first_by_one, 1, 0x33).await, Err(IoError::Unavailable));
        write(&second_by_one, 1, 0x33).await.unwrap();
    });
    for (more, expected) in [
        (json!({ "ana_state": "optimized", "anagrpid": 9 }), "use 1 to 8"),
        (json!({ "ana_state": "lost" }), "unknown variant"),
    ] {
        let (code, message) = set(one, more).unwrap_err();
        assert!(code == -32602 && message.contains(expected), "{message} ({code})");
    }
    let (_, message) = set(free_address(), json!({ "ana_state": "optimized" })).unwrap_err();
    assert!(message.contains("does not listen"), "{message}");

    let saved = daemon.saved();
    daemon.end();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved.json");
    std::fs::write(&file, saved.to_string()).unwrap();
    let daemon = Daemon::start(&["--json-config", file.to_str().unwrap()]);
    assert_eq!(daemon.saved(), saved);
    run(async {
        let (_one, first_by_one) = open(one, 1).await;
        let (_one, second_by_one) = open(one, 2).await;
        assert_eq!(write(&first_by_one, 1, 0x44).await, Err(IoError::Unavailable));
        write(&second_by_one, 1, 0x44).await.unwrap();
    });
    // A listener that is made anew serves as one does at first.
    daemon.call("nvmf_subsystem_remove_listener", listener(NQN, one));
    daemon.call("nvmf_subsystem_add_listener", listener(NQN, one));
    let listeners = daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
    assert_eq!(listeners[first]["ana_states"][0]["ana_state"], json!("optimized"));
}

#[test]
fn without_ana_reporting_hosts_are_told_nothing_of_it() {
    let (daemon, address) = (Daemon::start(&[]), free_address());
    daemon.listen(address);
    daemon.add_memory("Malloc0");
    let mut params = listener(NQN, address);
    params["ana_state"] = json!("inaccessible");
    let (code, message) = daemon
        .try_call("nvmf_subsystem_listener_set_ana_state", params)
        .unwrap_err();
    assert!(
        code == -32602 && message.contains("ana_reporting true"),
        "{message} ({code})"
    );
    let listeners = daemon.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
    assert_eq!(listeners[0].get("ana_states"), None);
    run(async {
        let (controller, _channel) = open(address, 1).await;
        let identity = controller.identity();
        assert_eq!((identity.cmic & 1 << 3, identity.anagrpmax), (0, 0));
    });
}
