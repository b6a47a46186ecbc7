//! Wrong words on the command line, as a new user writes them: each is refused with what is wrong, the numbers and what to
//! do next, for people and for machines.

use std::process::Command;

use crate::support::{Cluster, Place, REDHARE, free_ports};

/// The exit status and what was said on standard error, or as JSON.
fn say(cluster: &str, arguments: &[&str]) -> (i32, String) {
    let mut all = arguments.to_vec();
    all.push("--json");
    let run = |arguments: &[&str]| {
        Command::new(REDHARE)
            .args(arguments)
            .env("REDHARE_CLUSTER", cluster)
            .env("XDG_STATE_HOME", "/nonexistent")
            .output()
            .unwrap()
    };
    let (plain, json) = (run(arguments), run(&all));
    let said = String::from_utf8_lossy(&plain.stderr).into_owned();
    assert!(!plain.status.success(), "{arguments:?} is not refused");
    assert_eq!(plain.status.code(), json.status.code());
    let value: serde_json::Value = serde_json::from_slice(&json.stdout)
        .unwrap_or_else(|error| panic!("{arguments:?} --json is no JSON: {error}: {json:?}"));
    assert!(
        value["error"].as_str().is_some_and(|text| !text.is_empty()),
        "{value}"
    );
    (plain.status.code().unwrap(), said)
}

#[test]
fn what_needs_no_cluster() {
    let nobody = "127.0.0.1:1";
    for (arguments, expected) in [
        (
            &["volume", "create", "x", "--size", "-5"][..],
            "\"-5\" is not a size; write a whole number",
        ),
        (
            &["volume", "create", "x", "--size", "-5GiB"],
            "\"-5GiB\" is not a size",
        ),
        (
            &["volume", "create", "x", "--size", "1.5GiB"],
            "\"1.5GiB\" is not a size",
        ),
        (
            &["volume", "create", "x", "--size", "16384PiB"],
            "below 16384 PiB",
        ),
        (
            &["volume", "create", "x", "--size", "1GiB", "--copies", "0"],
            "0 is not in 1..=16",
        ),
        (
            &["volume", "create", "x", "--size", "1GiB", "--copies", "300"],
            "300 is not in 1..=16",
        ),
        (
            &["volume", "create", "x", "--size", "1GiB", "--minimum", "0"],
            "0 is not in 1..=16",
        ),
        (
            &["volume", "create", "x", "--size", "1GiB", "--chunk-size", "0"],
            "write a size such as 256MiB",
        ),
        (
            &["volume", "create", "x", "--size", "1GiB", "--block-bytes", "0"],
            "0 is not in 1..",
        ),
        (&["volume", "create", "x"], "--size <SIZE>"),
        (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (
            &["status"],
            "no master answers at 127.0.0.1:1 (Connection refused",
        ),
        (
            &["status", "--cluster", "foo"],
            "\"foo\" is no address of a master; write host:port",
        ),
        (&["up", "--nodes", "0"], "--nodes is 0; write 1 to 64"),
        (&["up", "--port", "65535"], "write 1 to 65532"),
        (&["up", "--disk-size", "4KiB"], "--disk-size is 4 KiB, too small"),
        (&["up", "--data", "/proc/nope"], "cannot make /proc/nope"),
        (
            &[
                "node",
                "--master",
                "foo",
                "--listen",
                "127.0.0.1:7749",
                "--disk",
                "/x",
                "--data",
                "/proc/nope",
            ],
            "cannot make the node's directory /proc/nope",
        ),
        (
            &[
                "node",
                "--master",
                "127.0.0.1:1",
                "--listen",
                "0.0.0.0:4420",
                "--disk",
                "/x",
            ],
            "--listen 0.0.0.0:4420 is not an address that other nodes and clients can connect to",
        ),
        (
            &[
                "node",
                "--master",
                "127.0.0.1:1",
                "--listen",
                "127.0.0.1:4420",
                "--disk",
                "/x:large",
            ],
            "\"large\" is not a size",
        ),
        (
            &["master", "--listen", "127.0.0.1:7749", "--store", "/proc/nope"],
            "cannot be opened",
        ),
        (
            &["target", "--config", "/nonexistent"],
            "cannot read /nonexistent",
        ),
        (&["fs", "ls", "file:/nonexistent"], "there is no such file"),
    ] {
        let (_, said) = say(nobody, arguments);
        assert!(said.contains(expected), "{arguments:?} says {said}");
    }
}

#[test]
fn what_a_cluster_refuses() {
    let place = Place::new("walk");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    let long = "a".repeat(200);
    let node = format!("127.0.0.1:{}", cluster.port + 1);
    for (arguments, expected) in [
        (
            &["volume", "create", "x", "--size", "0"][..],
            "size is 0; name a size such as 64GiB",
        ),
        (
            &["volume", "create", "x", "--size", "1TiB"],
            "there is room for 768 MiB on different nodes",
        ),
        (
            &["volume", "create", "x", "--size", "16383PiB"],
            "use larger chunks",
        ),
        (
            &["volume", "create", "x", "--size", "1GiB", "--copies", "5"],
            "5 copies need 5 nodes, but 3 of 3 known nodes are alive with a disk; start more nodes",
        ),
        (
            &[
                "volume",
                "create",
                "x",
                "--size",
                "1GiB",
                "--copies",
                "2",
                "--minimum",
                "3",
            ],
            "2 copies with a minimum of 3 cannot work",
        ),
        (
            &["volume", "create", "x", "--size", "64MiB", "--block-bytes", "512"],
            "block_bytes is 512, which the nodes do not serve yet; use 4096",
        ),
        (
            &["volume", "create", "", "--size", "1GiB"],
            "name is \"\"; use 1 to 128 letters",
        ),
        (
            &["volume", "create", "a\x1b[31mb", "--size", "1GiB"],
            "name is \"a\\u{1b}[31mb\"",
        ),
        (
            &["volume", "create", &long, "--size", "1GiB"],
            "name has 200 bytes",
        ),
        (
            &["volume", "show", "no\x1bpe"],
            "there is no volume \"no\\u{1b}pe\"; \"redhare volume list\"",
        ),
        (&["volume", "delete", "nope"], "there is no volume \"nope\""),
        (&["fs", "ls", "nope"], "there is no volume \"nope\""),
        (&["status", "--cluster", &node], "a master's port, not a node's"),
    ] {
        let (code, said) = say(&cluster.address(), arguments);
        assert!(said.contains(expected), "{arguments:?} says {said}");
        assert!(
            !said.contains('\x1b'),
            "{arguments:?} reaches the terminal: {said:?}"
        );
        assert_eq!(code, 1);
    }
    assert_eq!(cluster.json(&["volume", "list"]), serde_json::json!([]));
    cluster.end();
}

#[test]
fn completion_works_for_every_shell() {
    for (shell, expected) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef redhare"),
        ("fish", "complete -c redhare"),
    ] {
        let output = Command::new(REDHARE)
            .args(["completion", shell])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains(expected), "{said}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    use std::process::Stdio;
    let mut child = Command::new(REDHARE)
        .args(["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
