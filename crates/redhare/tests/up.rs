//! `redhare up` leaves nothing behind, however it ends, and says what stands in its way when it starts.

use std::net::TcpListener;
use std::process::Output;

use crate::support::load::Load;
use crate::support::{Cluster, Place, free_ports, kill, process, processes_of, wait_until};
use rustix::process::Signal;

const VOLUME: &str = "load";

fn loaded(place: &Place) -> (Cluster, Load) {
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    let arguments = [
        "volume",
        "create",
        VOLUME,
        "--size",
        "64MiB",
        "--chunk-size",
        "16MiB",
    ];
    cluster.succeed(&arguments);
    let load = Load::start(&cluster.address(), VOLUME);
    load.wait_for(100);
    (cluster, load)
}

fn refused(mut command: std::process::Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert!(!status.success(), "{said}");
    said
}

#[test]
fn a_signal_under_load_ends_every_process() {
    let place = Place::new("up-signals");
    for signals in [
        &[Signal::TERM][..],
        // Twice, as somebody does who is in a hurry.
        &[Signal::INT, Signal::INT][..],
    ] {
        let (mut cluster, load) = loaded(&place);
        for &signal in signals {
            cluster.signal(signal);
        }
        assert!(cluster.ended().success());
        assert_eq!(processes_of(&cluster.data), Vec::<String>::new());
        // The client's cluster is gone: it fails, in its own time.
        drop(load);
        std::fs::remove_dir_all(&cluster.data).unwrap();
    }
}

#[test]
fn a_target_whose_engine_has_died_is_ended_too() {
    let place = Place::new("up-orphan");
    let (mut cluster, load) = loaded(&place);
    for number in 1..=3 {
        kill(&cluster.engine_lock(number));
    }
    cluster.signal(Signal::INT);
    assert!(cluster.ended().success());
    assert_eq!(processes_of(&cluster.data), Vec::<String>::new());
    drop(load);
}

#[test]
fn processes_end_with_an_up_that_is_killed_and_the_next_one_goes_on() {
    let place = Place::new("up-killed");
    let (mut cluster, load) = loaded(&place);
    let (data, port) = (cluster.data.clone(), cluster.port);
    // With one engine at the same time: nobody is left who would end its target.
    let orphan = process(&cluster.target_lock(2));
    let life = cluster.incarnation(2);
    // The engine first: it would end its target as soon as it sees that `up` is gone, and `up` waits before it starts it anew.
    kill(&cluster.engine_lock(2));
    cluster.signal(Signal::KILL);
    assert!(!cluster.ended().success());
    drop(load);
    let mut cluster = Cluster::start(&data, port);
    assert_eq!(
        process(&cluster.target_lock(2)),
        orphan,
        "the next engine adopts it"
    );
    assert_eq!(cluster.incarnation(2), life);
    let second = refused(Cluster::command(&data, free_ports()));
    assert!(second.contains("another \"redhare up\" runs on"), "{second}");
    cluster.signal(Signal::KILL);
    assert!(!cluster.ended().success());
    wait_until("everything ends without up", || processes_of(&data).is_empty());
}

#[test]
fn a_port_in_use_is_named_before_anything_starts() {
    let place = Place::new("up-port");
    let port = free_ports();
    let _taken = TcpListener::bind(("127.0.0.1", port + 2)).unwrap();
    let said = refused(Cluster::command(&place.0, port));
    let expected = format!("port {}, which node 2 is to take, cannot be used", port + 2);
    assert!(said.contains(&expected) && said.contains("give --port"), "{said}");
    assert_eq!(processes_of(&place.0), Vec::<String>::new());
}

#[test]
fn a_disk_with_foreign_contents_stays_as_it_is_and_the_node_says_why() {
    let place = Place::new("up-foreign");
    let data = place.0.join("cluster");
    let disk = data.join("node2/disk");
    std::fs::create_dir_all(data.join("node2")).unwrap();
    let contents = vec![0x5a; 64 << 20];
    std::fs::write(&disk, &contents).unwrap();
    let mut command = Cluster::command(&data, free_ports());
    let mut up = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let lines = std::io::BufReader::new(up.stderr.take().unwrap());
    for line in std::io::BufRead::lines(lines) {
        said.push_str(&line.unwrap());
        if said.contains("again and again") {
            break;
        }
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&up), Signal::INT).unwrap();
    assert!(up.wait().unwrap().success());
    assert!(
        said.contains("node2/disk holds something that is not Redhare's") && said.contains("--force"),
        "{said}"
    );
    assert!(
        std::fs::read(&disk).unwrap() == contents,
        "not a byte was touched"
    );
    assert_eq!(processes_of(&data), Vec::<String>::new());
}
