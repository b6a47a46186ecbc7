//! SPDK's own client from PyPI (`tests/spdk-rpc` fetches it) drives a target from nothing to I/O, saves what it made and
//! loads it into another.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::daemon::{Daemon, NQN, free_address};
use super::host::{BLOCK_BYTES, HOST, connect, open, read, run, write};
use super::keys::add_keys;
use super::tls::key_files;

/// What `tests/spdk-rpc` ends with where the client cannot be had.
const CANNOT_BE_HAD: i32 = 69;

fn program() -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/spdk-rpc");
    Command::new(script)
}

/// Whether the client is there. If not, the test is skipped, and says so; where `CI=true` it fails.
pub(crate) fn is_there() -> bool {
    let fetched = program().arg("--fetch-only").output().unwrap();
    if fetched.status.success() {
        return true;
    }
    let said = String::from_utf8_lossy(&fetched.stderr).into_owned();
    assert_eq!(fetched.status.code(), Some(CANNOT_BE_HAD), "{said}");
    let why = said
        .lines()
        .last()
        .unwrap_or_default()
        .trim_start_matches("SKIP: ");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    eprintln!("SKIPPED: {why}");
    if let Ok(list) = std::env::var("REDHARE_SKIPS") {
        let mut list = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(list)
            .unwrap();
        writeln!(list, "SPDK's client drives a target: {why}").unwrap();
    }
    false
}

/// Runs the client with these arguments, or with the commands on its standard input.
pub(crate) fn spdk(daemon: &Daemon, arguments: &[&str], input: &str) -> Output {
    let mut client = program()
        .arg("-s")
        .arg(daemon.socket())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    client.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    client.wait_with_output().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    said
}

pub(crate) fn json_of(output: &Output) -> Value {
    serde_json::from_str(&said(output)).unwrap()
}

#[test]
fn spdk_s_client_makes_a_target_and_saves_it() {
    if !is_there() {
        return;
    }
    let (daemon, address) = (Daemon::start(&[]), free_address());
    let port = address.port();
    let disk = daemon.directory().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(4 << 20).unwrap();
    let disk = disk.display();
    let directory = tempfile::tempdir().unwrap();
    add_keys(&daemon, directory.path());
    let third = directory.path().join("one");
    let third = third.display();
    let [_, long] = key_files(directory.path());
    let long = long.display();
    let secure = free_address().port();
    let commands = format!(
        "keyring_file_add_key three {third}\n\
         keyring_file_remove_key three\n\
         bdev_malloc_create -b Malloc0 64 4096\n\
         bdev_null_create Null0 1024 4096\n\
         bdev_aio_create {disk} Aio0 4096\n\
         bdev_aio_delete Aio0\n\
         bdev_uring_create {disk} Uring0 4096\n\
         bdev_error_create Malloc0\n\
         bdev_delay_create -b EE_Malloc0 -d Slow0 -r 10 -t 20 -w 10 -n 20\n\
         bdev_delay_update_latency Slow0 avg_read 5\n\
         bdev_set_qos_limit Uring0 --rw-mbytes-per-sec 200\n\
         nvmf_create_transport -t TCP -m 4 -q 64\n\
         nvmf_create_subsystem {NQN} -a -s SERIAL7 -d Model -m 4 -r\n\
         nvmf_subsystem_add_ns {NQN} Slow0\n\
         nvmf_subsystem_add_ns {NQN} Uring0 -n 4\n\
         nvmf_subsystem_add_host {NQN} nqn.2026-11.io.redhare:friend\n\
         nvmf_set_config --dhchap-digests sha256,sha512 --dhchap-dhgroups ffdhe2048\n\
         nvmf_subsystem_add_host {NQN} nqn.2026-11.io.redhare:keyed --dhchap-key one --dhchap-ctrlr-key two\n\
         nvmf_subsystem_set_keys {NQN} nqn.2026-11.io.redhare:keyed --dhchap-key two\n\
         nvmf_subsystem_add_listener {NQN} -t tcp -a 127.0.0.1 -s {port}\n\
         keyring_file_add_key long {long}\n\
         nvmf_subsystem_add_host {NQN} {HOST} --psk long\n\
         nvmf_subsystem_add_listener {NQN} -t tcp -a 127.0.0.1 -s {secure} --secure-channel\n\
         nvmf_subsystem_add_listener discovery -t tcp -a 127.0.0.1 -s {port}\n\
         nvmf_discovery_add_referral -t tcp -a 192.0.2.1 -s 8009\n\
         nvmf_subsystem_set_ns_ana_group {NQN} 4 3\n\
         nvmf_subsystem_listener_set_ana_state {NQN} -n non_optimized -t tcp -a 127.0.0.1 -s {port} -g 3\n\
         bdev_null_resize Null0 2048\n\
         bdev_uring_rescan Uring0\n\
         bdev_enable_histogram Malloc0 --histogram --opc write\n\
         log_set_print_level WARNING\n\
         framework_wait_init\n"
    );
    said(&spdk(&daemon, &[], &commands));
    for namespace in [1, 4] {
        run(async {
            let controller = connect(address).await.unwrap();
            let channel = controller.open_namespace(namespace).await.unwrap();
            write(&channel, 5, 0x55).await.unwrap();
            assert_eq!(read(&channel, 5).await.unwrap(), vec![0x55; BLOCK_BYTES]);
            let queues = json_of(&spdk(&daemon, &["nvmf_subsystem_get_qpairs", NQN], ""));
            assert_eq!(queues.as_array().unwrap().len(), 2, "{queues}");
        });
    }
    let one = |arguments: &[&str]| json_of(&spdk(&daemon, arguments, ""));
    assert_eq!(one(&["bdev_get_bdevs", "-b", "Slow0"])[0]["claimed"], json!(true));
    let statistics = one(&["bdev_get_iostat", "--names", "Malloc0,Uring0"]);
    for device in statistics["bdevs"].as_array().unwrap() {
        assert_eq!(device["num_write_ops"], json!(1), "{device}");
    }
    let histogram = one(&["bdev_get_histogram", "Malloc0"]);
    assert_eq!(
        (&histogram["granularity"], &histogram["max_range"]),
        (&json!(7), &json!(57)),
        "{histogram}"
    );
    said(&spdk(
        &daemon,
        &["bdev_enable_histogram", "Malloc0", "--no-histogram"],
        "",
    ));
    let resized = &one(&["bdev_get_bdevs", "-b", "Null0"])[0];
    assert_eq!(resized["num_blocks"], json!((2048_u64 << 20) / 4096));
    let states = one(&["nvmf_subsystem_get_listeners", NQN])[0]["ana_states"].clone();
    let expected = ["optimized", "optimized", "non_optimized", "optimized"];
    for (group, state) in (1..).zip(expected) {
        let shown = json!({ "ana_group": group, "ana_state": state });
        assert_eq!(states[group - 1], shown);
    }
    assert_eq!(one(&["nvmf_get_transports"])[0]["max_queue_depth"], json!(64));
    let subsystems = one(&["nvmf_get_subsystems"]);
    assert_eq!(subsystems[1]["serial_number"], json!("SERIAL7"));
    assert_eq!(subsystems[1]["namespaces"][1]["nsid"], json!(4));
    assert_eq!(subsystems[1]["namespaces"][1]["anagrpid"], json!(3));
    assert!(
        !one(&["framework_get_reactors"])["reactors"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    assert_eq!(subsystems[1]["hosts"][2]["dhchap_key"], json!("two"));
    let keys = one(&["keyring_get_keys"]);
    assert_eq!((&keys[1]["name"], &keys[2]["refcnt"]), (&json!("one"), &json!(2)));
    let refused = spdk(&daemon, &["bdev_malloc_delete", "Nope"], "");
    let errors = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(
        !refused.status.success() && errors.contains("\"code\": -19"),
        "{errors}"
    );
    let absent = spdk(&daemon, &["bdev_lvol_get_lvols"], "");
    assert!(!absent.status.success());
    assert!(String::from_utf8_lossy(&absent.stdout).contains("-32601"));

    let initiator = Daemon::start(&[]);
    let attach = format!(
        "keyring_file_add_key long {long}\n\
         bdev_nvme_attach_controller -b Nvme0 -t tcp -f ipv4 -a 127.0.0.1 -s {secure} -n {NQN} -q {HOST} --psk long\n"
    );
    said(&spdk(&initiator, &[], &attach));
    let attached = json_of(&spdk(&initiator, &["bdev_get_bdevs", "-b", "Nvme0n1"], ""));
    assert_eq!(attached[0]["block_size"], json!(BLOCK_BYTES));
    initiator.end();
    assert_eq!(subsystems[1]["hosts"][1], json!({ "nqn": HOST, "psk": "long" }));

    let saved = spdk(&daemon, &["save_config"], "");
    let text = said(&saved);
    // Its listeners and files are free for the other one.
    daemon.end();
    let other = Daemon::start(&[]);
    std::fs::File::create(other.directory().join("disk"))
        .unwrap()
        .set_len(4 << 20)
        .unwrap();
    let text = text.replace(
        &disk.to_string(),
        &other.directory().join("disk").display().to_string(),
    );
    said(&spdk(&other, &["load_config"], &text));
    let again = said(&spdk(&other, &["save_config"], ""));
    assert_eq!(
        serde_json::from_str::<Value>(&again).unwrap(),
        serde_json::from_str::<Value>(&text).unwrap()
    );
    run(async { drop(open(address, 1).await) });
}
