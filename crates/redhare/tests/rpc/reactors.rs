//! The program on two reactors, with its metrics: what is managed on one serves hosts on both, and the numbers agree.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::json;

use super::daemon::{Daemon, NQN, free_address};
use super::host::{connect, read, run, write};

fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    answer
}

/// The value of a series.
fn value(page: &str, series: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    let line = line.unwrap_or_else(|| panic!("there is no {series} in {page}"));
    line.trim().parse().unwrap()
}

#[test]
fn one_target_serves_on_two_reactors_and_shows_what_they_do() {
    let (address, metrics) = (free_address(), free_address());
    let daemon = Daemon::start(&["--reactors", "2", "--metrics", &metrics.to_string()]);
    daemon.listen(address);
    daemon.add_memory("Malloc0");
    run(async {
        let controller = connect(address).await.unwrap();
        let (one, two) = (
            controller.open_namespace(1).await.unwrap(),
            controller.open_namespace(1).await.unwrap(),
        );
        for lba in 0..4 {
            write(&one, lba, 7).await.unwrap();
            assert!(read(&two, lba).await.unwrap().iter().all(|&byte| byte == 7));
        }
        let queues = daemon.call("nvmf_subsystem_get_qpairs", json!({ "nqn": NQN }));
        let groups: BTreeSet<_> = queues.as_array().unwrap()[1..]
            .iter()
            .map(|queue| queue["thread"].as_str().unwrap().to_owned())
            .collect();
        let both = ["nvmf_tgt_poll_group_000", "nvmf_tgt_poll_group_001"].map(str::to_owned);
        assert_eq!(groups, BTreeSet::from(both));
        let statistics = daemon.call("nvmf_get_stats", json!({}));
        for group in statistics["poll_groups"].as_array().unwrap() {
            assert_eq!(
                (&group["current_io_qpairs"], &group["completed_nvme_io"]),
                (&json!(1), &json!(4))
            );
        }
        let reactors = daemon.call("framework_get_reactors", json!({}));
        let threads: BTreeSet<_> = reactors["reactors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|reactor| {
                assert!(reactor["busy"].as_u64().unwrap() > 0 && reactor["lcore"].is_u64());
                reactor["tid"].as_u64().unwrap()
            })
            .collect();
        assert_eq!(threads.len(), 2);
        let page = scrape(metrics);
        for (operation, reactor, other) in [("write", 0, 1), ("read", 1, 0)] {
            let series = format!(
                "redhare_namespace_commands_total{{subsystem=\"{NQN}\",nsid=\"1\",operation=\"{operation}\"}}"
            );
            assert_eq!(value(&page, &series), 4);
            let of = |reactor| {
                let series = format!(
                    "redhare_reactor_commands_total{{reactor=\"{reactor}\",operation=\"{operation}\"}}"
                );
                value(&page, &series)
            };
            // Which of the two serves which queue is not said.
            assert_eq!(of(reactor) + of(other), 4);
            assert!(of(reactor) == 4 || of(other) == 4);
        }
    });
    daemon.end();
    assert!(TcpStream::connect(metrics).is_err());
}

#[test]
fn reactors_that_cannot_be_are_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("target.toml");
    let node = "[nvme_tcp]\nlisten = [\"127.0.0.1:0\"]\n[node]\ncluster = \"1\"\nnode = \"1\"\nincarnation = 1\nagent_socket = \"/nowhere\"\n";
    std::fs::write(&config, node).unwrap();
    let config = config.to_str().unwrap();
    for (arguments, why) in [
        (vec!["--metrics", "127.0.0.1:0"], "--rpc-socket"),
        (vec!["--rpc-socket", "/nowhere/x", "--reactors", "0"], "1..=256"),
        (
            vec!["--rpc-socket", "/nowhere/x", "--reactors", "2", "--cpus", "0"],
            "cannot be used with",
        ),
        (vec!["--rpc-socket", "/nowhere/x", "--cpus", "0,0"], "named twice"),
        (
            vec!["--rpc-socket", "/nowhere/x", "--cpus", "0,4096"],
            "name processors that this process may use",
        ),
        (
            vec!["--config", config, "--reactors", "2"],
            "runs on one reactor; leave --reactors out",
        ),
    ] {
        let ended = Command::new(env!("CARGO_BIN_EXE_redhare"))
            .arg("target")
            .args(&arguments)
            .env_remove("RUST_LOG")
            .output()
            .unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(
            !ended.status.success() && said.contains(why),
            "{arguments:?}: {said}"
        );
    }
}
