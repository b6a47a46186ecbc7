//! TLS by management methods and by the configuration file: both ends are whole programs, and what is in the key files is
//! told to nobody.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabrics::initiator::{ConnectOptions, Controller};
use fabrics::secure::NamedPsk;
use serde_json::{Value, json};

use super::daemon::{Daemon, NQN, free_address, listener};
use super::host::{BLOCK_BYTES, HOST, connect, read, run, write};

/// Made by nvme-cli.
pub(crate) const KEYS: [&str; 2] = [
    "NVMeTLSkey-1:01:cTUtI0LmuMq92ONxarul/mjBkR8pYyQAUMRi5j3th/cRqp+5:",
    "NVMeTLSkey-1:02:MscmcXOlW9cscL9+LIm0uv04BR0dOlmoPGlA9nVn4nhm1NeaKgF+irGftOO+Q8U2velBmg==:",
];

/// The keys as files `short` and `long`.
pub(crate) fn key_files(directory: &Path) -> [PathBuf; 2] {
    let file = |name: &str, key: &str| {
        let path = directory.join(name);
        std::fs::write(&path, format!("{key}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    [file("short", KEYS[0]), file("long", KEYS[1])]
}

fn add_keys(daemon: &Daemon, directory: &Path) {
    for (name, path) in ["short", "long"].into_iter().zip(key_files(directory)) {
        daemon.call("keyring_file_add_key", json!({ "name": name, "path": path }));
    }
}

fn secure(address: SocketAddr) -> Value {
    let mut params = listener(NQN, address);
    params["secure_channel"] = json!(true);
    params
}

fn attach(daemon: &Daemon, address: SocketAddr, key: Option<&str>) -> Result<Value, (i64, String)> {
    let params = json!({
        "name": "Nvme0",
        "trtype": "TCP",
        "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
        "subnqn": NQN,
        "hostnqn": HOST,
        "psk": key,
    });
    daemon.try_call("bdev_nvme_attach_controller", params)
}

#[test]
fn both_ends_use_tls_by_management_and_no_key_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (address, plain) = (free_address(), free_address());
    let target = Daemon::start(&[]);
    target.call("log_set_print_level", json!({ "level": "DEBUG" }));
    target.call("nvmf_create_transport", json!({ "trtype": "TCP" }));
    target.call(
        "nvmf_create_subsystem",
        json!({ "nqn": NQN, "serial_number": "S1" }),
    );
    target.call("nvmf_subsystem_add_listener", secure(address));
    target.call("nvmf_subsystem_add_listener", listener(NQN, plain));
    target.add_memory("Malloc0");
    add_keys(&target, directory.path());
    target.call(
        "nvmf_subsystem_add_host",
        json!({ "nqn": NQN, "host": HOST, "psk": "long" }),
    );
    // An address is of one kind, whoever is reached there.
    let mut other = listener("discovery", address);
    other["nqn"] = json!("nqn.2014-08.org.nvmexpress.discovery");
    let (code, message) = target
        .try_call("nvmf_subsystem_add_listener", other.clone())
        .unwrap_err();
    assert!(
        code == -22 && message.contains("secure_channel true"),
        "{message}"
    );
    other["secure_channel"] = json!(true);
    target.call("nvmf_subsystem_add_listener", other);

    let initiator = Daemon::start(&[]);
    initiator.call("log_set_print_level", json!({ "level": "DEBUG" }));
    add_keys(&initiator, directory.path());
    let refused = |address: SocketAddr, key: Option<&str>, code: i64, words: &str| {
        let (found, message) = attach(&initiator, address, key).unwrap_err();
        assert!(found == code && message.contains(words), "{message} ({found})");
    };
    refused(address, None, -104, "ended the connection");
    refused(address, Some("short"), -13, "alert");
    refused(address, Some("nope"), -126, "keyring_get_keys");
    refused(plain, Some("long"), -13, "no TLS connection");
    assert_eq!(
        attach(&initiator, address, Some("long")).unwrap(),
        json!(["Nvme0n1"])
    );
    for (daemon, user) in [(&initiator, "Nvme0"), (&target, HOST)] {
        let (code, message) = daemon
            .try_call("keyring_file_remove_key", json!({ "name": "long" }))
            .unwrap_err();
        assert!(code == -16 && message.contains(user), "{message}");
    }
    let listeners = target.call("nvmf_subsystem_get_listeners", json!({ "nqn": NQN }));
    let mut kinds: Vec<_> = listeners
        .as_array()
        .unwrap()
        .iter()
        .map(|shown| {
            (
                shown["address"]["trsvcid"].clone(),
                shown["secure_channel"].clone(),
            )
        })
        .collect();
    kinds.sort_by_key(|(_, is_secure)| is_secure.as_bool());
    let port = |address: SocketAddr| json!(address.port().to_string());
    assert_eq!(kinds, [(port(plain), json!(false)), (port(address), json!(true))]);
    let shown = target.call("nvmf_get_subsystems", json!({ "nqn": NQN }));
    assert_eq!(shown[0]["hosts"], json!([{ "nqn": HOST, "psk": "long" }]));

    let (saved_target, saved_initiator) = (target.saved(), initiator.saved());
    for said in [
        target.log(),
        initiator.log(),
        saved_target.to_string(),
        saved_initiator.to_string(),
    ] {
        for key in KEYS {
            let base64 = &key[16..];
            assert!(
                !said.contains(&base64[..12]) && !said.contains("NVMeTLS"),
                "{said}"
            );
        }
    }
    let log = target.log();
    for words in [
        "does not begin with TLS",
        "no key that is known",
        "NVMe0R01",
        "TLS begins",
        "host connected",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
    initiator.end();
    target.end();

    // What is saved of both comes back, and works.
    let file = directory.path().join("saved.json");
    std::fs::write(&file, saved_target.to_string()).unwrap();
    let again = Daemon::start(&["--json-config", file.to_str().unwrap()]);
    assert_eq!(again.saved(), saved_target);
    std::fs::write(&file, saved_initiator.to_string()).unwrap();
    let attached = Daemon::start(&["--json-config", file.to_str().unwrap()]);
    assert_eq!(attached.saved(), saved_initiator);
    let shown = attached.call("bdev_get_bdevs", json!({ "name": "Nvme0n1" }));
    assert_eq!(shown[0]["num_blocks"], json!(4096));
}

fn does_io_over_tls(address: SocketAddr) {
    run(async {
        let (subsystem, host) = (NQN.parse().unwrap(), HOST.parse().unwrap());
        let psk = protocols::tls::ConfiguredPsk::parse(KEYS[0].as_bytes()).unwrap();
        let options = ConnectOptions {
            psk: Some(NamedPsk {
                key_name: "short".to_owned(),
                psk: Arc::new(psk),
            }),
            ..ConnectOptions::new(address, subsystem, host, [7; 16])
        };
        let controller = Controller::connect(options).await.unwrap();
        let channel = controller.open_namespace(1).await.unwrap();
        write(&channel, 5, 0x77).await.unwrap();
        assert_eq!(read(&channel, 5).await.unwrap(), vec![0x77; BLOCK_BYTES]);
        assert!(connect(address).await.is_err(), "without TLS");
    });
}

#[test]
fn a_configuration_file_asks_for_tls() {
    let directory = tempfile::tempdir().unwrap();
    let [short, _] = key_files(directory.path());
    let (address, plain) = (free_address(), free_address());
    let file = directory.path().join("target.toml");
    let text = format!(
        "[nvme_tcp]\nlisten = [\"{plain}\"]\nsecure_listen = [\"{address}\"]\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nhosts = [\"{HOST}\"]\npsk = {{ \"{HOST}\" = {short:?} }}\n\
         [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n"
    );
    std::fs::write(&file, &text).unwrap();
    // Managed, and saved without the key.
    let daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    does_io_over_tls(address);
    let saved = daemon.saved().to_string();
    assert!(
        saved.contains("secure_channel") && !saved.contains("NVMeTLS"),
        "{saved}"
    );
    daemon.end();
    // As it is.
    let mut target = Command::new(env!("CARGO_BIN_EXE_redhare"))
        .args(["target", "--config"])
        .arg(&file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(plain).is_err() {
        assert!(Instant::now() < deadline, "the target does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    does_io_over_tls(address);
    target.kill().unwrap();
    target.wait().unwrap();
    // What cannot be meant is refused.
    let refused = |text: &str, words: &str| {
        std::fs::write(&file, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_redhare"))
            .args(["target", "--config"])
            .arg(&file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{said}");
        assert!(!said.contains("NVMeTLS"), "{said}");
    };
    refused(
        &text.replace(&format!("[\"{HOST}\"]"), "[]"),
        "not among its hosts",
    );
    std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&text, "chmod 0600");
}
