//! Keys in files, hosts and controllers that authenticate with them, and that what is in the files is told to nobody.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::daemon::{Daemon, NQN, free_address};
use super::host::HOST;

/// Made by nvme-cli.
const SECRETS: [&str; 2] = [
    "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:01:wVZVDZ/YLplppdxfvOiyI6bltX8ozYUjukX68VN5xSyA7JoN:",
];

fn file(directory: &Path, name: &str, content: &str, mode: u32) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// Both keys, as `one` and `two`.
pub(crate) fn add_keys(daemon: &Daemon, directory: &Path) {
    for (name, secret) in ["one", "two"].into_iter().zip(SECRETS) {
        let path = file(directory, name, &format!("{secret}\n"), 0o600);
        daemon.call("keyring_file_add_key", json!({ "name": name, "path": path }));
    }
}

fn attach(daemon: &Daemon, address: SocketAddr, name: &str, keys: &Value) -> Result<Value, (i64, String)> {
    let mut params = json!({
        "name": name,
        "trtype": "TCP",
        "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
        "subnqn": NQN,
        "hostnqn": HOST,
    });
    params
        .as_object_mut()
        .unwrap()
        .extend(keys.as_object().unwrap().clone());
    daemon.try_call("bdev_nvme_attach_controller", params)
}

fn add_host(keys: &Value) -> Value {
    let mut params = json!({ "nqn": NQN, "host": HOST });
    params
        .as_object_mut()
        .unwrap()
        .extend(keys.as_object().unwrap().clone());
    params
}

#[test]
fn keys_are_files_that_nobody_else_can_read() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&[]);
    daemon.listen(free_address());
    let add = |name: &str, path: &Path| {
        daemon.try_call("keyring_file_add_key", json!({ "name": name, "path": path }))
    };
    let refused = |result: Result<Value, (i64, String)>, code: i64, words: &str| {
        let (found, message) = result.unwrap_err();
        assert!(found == code && message.contains(words), "{message} ({found})");
        assert!(
            !SECRETS.iter().any(|secret| message.contains(secret)),
            "{message}"
        );
    };
    for mode in [0o644, 0o640, 0o604, 0o610, 0o602] {
        let open = file(directory.path(), "open", SECRETS[0], mode);
        refused(add("open", &open), -1, "chmod 0600");
    }
    refused(add("far", Path::new("some/where")), -22, "not absolute");
    refused(add("none", &directory.path().join("none")), -2, "none");
    refused(add("directory", directory.path()), -22, "no file");
    let long = file(directory.path(), "long", &"x".repeat(5000), 0o600);
    refused(add("long", &long), -22, "4096");
    add_keys(&daemon, directory.path());
    refused(add("one", &directory.path().join("one")), -17, "one");
    let junk = file(directory.path(), "junk", &SECRETS[0][..40], 0o600);
    add("junk", &junk).unwrap();
    let add_host = |keys: &Value| daemon.try_call("nvmf_subsystem_add_host", add_host(keys));
    refused(add_host(&json!({ "dhchap_key": "junk" })), -22, "gen-dhchap-key");
    refused(
        add_host(&json!({ "dhchap_key": "nope" })),
        -126,
        "keyring_get_keys",
    );
    refused(add_host(&json!({ "dhchap_ctrlr_key": "one" })), -22, "give both");
    refused(add_host(&json!({ "psk": "one" })), -22, "gen-tls-key");
    refused(add_host(&json!({ "psk": "nope" })), -126, "keyring_get_keys");
    // The file's permissions count when it is read, too.
    file(directory.path(), "junk", SECRETS[0], 0o644);
    refused(add_host(&json!({ "dhchap_key": "junk" })), -1, "chmod 0600");
    // None of these left the host behind.
    let set = |key: Value| {
        let params = json!({ "nqn": NQN, "host": HOST, "dhchap_key": key });
        daemon.try_call("nvmf_subsystem_set_keys", params)
    };
    refused(set(json!("one")), -2, "nvmf_subsystem_add_host");
    add_host(&json!({ "dhchap_key": "one", "dhchap_ctrlr_key": "two" })).unwrap();
    let shown = daemon.call("nvmf_get_subsystems", json!({ "nqn": NQN }));
    assert_eq!(
        shown[0]["hosts"],
        json!([{ "nqn": HOST, "dhchap_key": "one", "dhchap_ctrlr_key": "two" }])
    );
    let remove = |name: &str| daemon.try_call("keyring_file_remove_key", json!({ "name": name }));
    refused(remove("two"), -16, HOST);
    set(json!("one")).unwrap();
    remove("two").unwrap();
    refused(remove("two"), -126, "two");
    refused(remove("one"), -16, HOST);
    let keys = daemon.call("keyring_get_keys", json!({}));
    let one = json!({
        "name": "one", "module": "keyring_file", "removed": false, "probed": true, "refcnt": 2,
        "path": directory.path().join("one"),
    });
    assert_eq!((keys.as_array().unwrap().len(), &keys[1]), (2, &one));
    set(Value::Null).unwrap();
    remove("one").unwrap();
    refused(
        daemon.try_call("nvmf_set_config", json!({ "dhchap_dhgroups": ["ffdhe1024"] })),
        -22,
        "ffdhe8192, ffdhe6144",
    );
}

#[test]
fn both_ends_authenticate_by_management_and_no_secret_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (address, saved) = (free_address(), directory.path().join("saved.json"));
    let target = Daemon::start(&[]);
    target.call("log_set_print_level", json!({ "level": "DEBUG" }));
    target.listen(address);
    target.add_memory("Malloc0");
    add_keys(&target, directory.path());
    target.call(
        "nvmf_set_config",
        json!({ "dhchap_digests": ["sha256", "sha384"], "dhchap_dhgroups": ["null", "ffdhe2048"] }),
    );
    let both = json!({ "dhchap_key": "one", "dhchap_ctrlr_key": "two" });
    target.call("nvmf_subsystem_add_host", add_host(&both));

    let initiator = Daemon::start(&[]);
    initiator.call("log_set_print_level", json!({ "level": "DEBUG" }));
    add_keys(&initiator, directory.path());
    for (keys, words) in [
        (json!({}), "dhchap_key"),
        (
            json!({ "dhchap_key": "two" }),
            "the secrets of the two ends differ",
        ),
        (
            json!({ "dhchap_key": "one", "dhchap_ctrlr_key": "one" }),
            "did not prove that it knows its secret",
        ),
    ] {
        let (code, message) = attach(&initiator, address, "Nvme0", &keys).unwrap_err();
        assert!(code == -13 && message.contains(words), "{message} ({code})");
    }
    assert_eq!(
        attach(&initiator, address, "Nvme0", &both).unwrap(),
        json!(["Nvme0n1"])
    );
    let (code, message) = initiator
        .try_call("keyring_file_remove_key", json!({ "name": "two" }))
        .unwrap_err();
    assert!(code == -16 && message.contains("Nvme0"), "{message}");

    // What is saved of both comes back, and works.
    let (saved_target, saved_initiator) = (target.saved(), initiator.saved());
    for said in [
        target.log(),
        initiator.log(),
        saved_target.to_string(),
        saved_initiator.to_string(),
    ] {
        for secret in SECRETS {
            let base64 = &secret[10..];
            assert!(!said.contains(&base64[..12]) && !said.contains("DHHC"), "{said}");
        }
    }
    assert!(target.log().contains("authentication failed"));
    assert!(target.log().contains("host authenticated"));
    let names = json!({ "nqn": NQN, "host": HOST, "dhchap_key": "one", "dhchap_ctrlr_key": "two" });
    assert!(
        saved_target.to_string().contains(&names.to_string()),
        "{saved_target}"
    );
    initiator.end();
    target.end();
    std::fs::write(&saved, saved_target.to_string()).unwrap();
    let again = Daemon::start(&["--json-config", saved.to_str().unwrap()]);
    assert_eq!(again.saved(), saved_target);
    std::fs::write(&saved, saved_initiator.to_string()).unwrap();
    let attached = Daemon::start(&["--json-config", saved.to_str().unwrap()]);
    assert_eq!(attached.saved(), saved_initiator);
    let shown = attached.call("bdev_get_bdevs", json!({ "name": "Nvme0n1" }));
    assert_eq!(shown[0]["num_blocks"], json!(4096));
}
