//! Processes that are killed while a client writes and reads: the target, the node engine, both, the master, everything.
//! The client sees no error and no wrong byte, what the masters say is so, and nothing runs twice.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::support::load::{self, Load};
use crate::support::{Cluster, Place, free_ports, kill, process, wait_until, writers_of};
use master::{Client, Masters, v1};
use rustix::process::{Pid, Signal, kill_process};

const VOLUME: &str = "load";

/// One cluster at a time: eleven processes and a load are enough for two processors, and a node that gets none for a
/// second and a half is left out.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster with a volume of 16 chunks, so that every node orders the writes of some.
fn cluster(place: &Place) -> Cluster {
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    let arguments = [
        "volume",
        "create",
        VOLUME,
        "--size",
        "256MiB",
        "--chunk-size",
        "16MiB",
    ];
    cluster.succeed(&arguments);
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    cluster
}

fn health(cluster: &Cluster) -> (u64, u64) {
    let status = cluster.json(&["status"]);
    let volume = &status["volumes"][0];
    let count = |field: &str| volume[field].as_u64().unwrap();
    (count("degraded_chunks"), count("waiting_chunks"))
}

#[test]
fn a_killed_target_is_started_anew_and_the_set_never_falls_below_the_minimum() {
    let _turn = turn();
    let place = Place::in_memory("killed-target");
    let cluster = cluster(&place);
    let load = Load::start(&cluster.address(), VOLUME);
    load.wait_for(300);

    let (life, engine) = (cluster.incarnation(2), process(&cluster.engine_lock(2)));
    kill(&cluster.target_lock(2));
    cluster.wait_for_life_after(2, life);
    assert_eq!(
        process(&cluster.engine_lock(2)),
        engine,
        "the node engine lives on"
    );
    load.wait_for(300);
    // Its copies are sent what they missed, under load, and are in sync again.
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    wait_until("all is well", || health(&cluster) == (0, 0));
    load.wait_for(300);
    let (contents, slowest) = load.finish();
    println!("longest operation while a target was killed: {slowest:?}");
    // The other nodes heard that this life and its requests have ended, and took their grants back.
    let name = target::node::names::of_node(volume::NodeId(
        u128::from_str_radix(&cluster.id(2).replace('-', ""), 16).unwrap(),
    ));
    for number in [1, 3] {
        let log = cluster.target_log(number);
        let said = log
            .lines()
            .any(|line| line.contains("its grants are void") && line.contains(&name));
        assert!(said, "node {number} was not told:\n{log}");
    }

    // Two at once: two members are the minimum, so one at least stays named in the life that ended, and writes wait until
    // its next life has taken its place.
    let lives = [2, 3].map(|number| cluster.incarnation(number));
    kill(&cluster.target_lock(2));
    kill(&cluster.target_lock(3));
    cluster.wait_for_life_after(2, lives[0]);
    cluster.wait_for_life_after(3, lives[1]);
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    load::check(&cluster.address(), VOLUME, &contents);

    // The one that was there all the time.
    let life = cluster.incarnation(1);
    kill(&cluster.target_lock(1));
    cluster.wait_for_life_after(1, life);
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    let load = Load::go_on(&cluster.address(), VOLUME, contents);
    load.wait_for(300);
    let (contents, _) = load.finish();
    load::check(&cluster.address(), VOLUME, &contents);
    cluster.end();
}

#[test]
fn a_target_that_stands_still_under_a_living_engine_is_ended_and_writes_go_on() {
    let _turn = turn();
    let place = Place::in_memory("stopped-target");
    let cluster = cluster(&place);
    let load = Load::start(&cluster.address(), VOLUME);
    load.wait_for(300);

    // It is the write node of some chunks; its engine and its machine go on, and nobody wakes it.
    let (life, engine) = (cluster.incarnation(2), process(&cluster.engine_lock(2)));
    let target = process(&cluster.target_lock(2)).unwrap();
    let pid = Pid::from_raw(i32::try_from(target).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    cluster.wait_for_life_after(2, life);
    assert_eq!(process(&cluster.engine_lock(2)), engine);
    assert!(cluster.engine_log(2).contains("the target stands still"));
    load.wait_for(300);
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    let (contents, slowest) = load.finish();
    println!("longest operation while a target stood still: {slowest:?}");
    load::check(&cluster.address(), VOLUME, &contents);
    cluster.end();
}

#[test]
fn a_target_outlives_its_node_engine_and_is_adopted() {
    let _turn = turn();
    let place = Place::in_memory("killed-engine");
    let cluster = cluster(&place);
    let load = Load::start(&cluster.address(), VOLUME);
    load.wait_for(200);
    let life = cluster.incarnation(2);
    let target = process(&cluster.target_lock(2));
    let engine = process(&cluster.engine_lock(2));
    kill(&cluster.engine_lock(2));
    wait_until("another engine has adopted the target", || {
        cluster.engine_log(2).contains("a target runs already: adopted")
    });
    assert_ne!(process(&cluster.engine_lock(2)), engine);
    assert_eq!(process(&cluster.target_lock(2)), target);
    assert_eq!(cluster.incarnation(2), life);
    let disk = std::fs::canonicalize(cluster.directory(2).join("disk")).unwrap();
    assert_eq!(
        writers_of(&disk),
        Vec::from_iter(target),
        "one process has the disk open"
    );
    load.wait_for(200);
    load.finish();
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    // The adopted target still hears what the masters want.
    cluster.succeed(&[
        "volume",
        "create",
        "after",
        "--size",
        "16MiB",
        "--chunk-size",
        "16MiB",
    ]);
    cluster.wait_for_chunks("after", &[1, 2, 3], &[], &[]);

    // And its own end is still seen: by an engine that is not its parent.
    kill(&cluster.target_lock(2));
    cluster.wait_for_life_after(2, life);
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    cluster.end();
}

#[test]
fn a_node_that_died_whole_comes_back_as_another_life() {
    let _turn = turn();
    let place = Place::in_memory("killed-node");
    let cluster = cluster(&place);
    let load = Load::start(&cluster.address(), VOLUME);
    load.wait_for(200);
    let life = cluster.incarnation(1);
    kill(&cluster.engine_lock(1));
    kill(&cluster.target_lock(1));
    cluster.wait_for_life_after(1, life);
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    load.wait_for(200);
    let (contents, slowest) = load.finish();
    println!("longest operation while a node was killed: {slowest:?}");
    load::check(&cluster.address(), VOLUME, &contents);
    cluster.end();
}

#[test]
fn input_and_output_need_no_master() {
    let _turn = turn();
    let place = Place::in_memory("killed-master");
    let cluster = cluster(&place);
    let load = Load::start(&cluster.address(), VOLUME);
    load.wait_for(200);
    let lives = [1, 2, 3].map(|number| cluster.incarnation(number));
    for _ in 0..3 {
        let master = process(&cluster.master_lock());
        kill(&cluster.master_lock());
        load.wait_for(100);
        wait_until("another master answers", || {
            process(&cluster.master_lock()).is_some_and(|now| Some(now) != master)
                && cluster.run(&["status"]).status.success()
        });
    }
    load.wait_for(200);
    let (_, slowest) = load.finish();
    println!("longest operation while masters were killed: {slowest:?}");
    // The engines have found the new master, and nobody lost anything by it.
    // Right after its start a master has not heard them yet.
    let create = [
        "volume",
        "create",
        "after",
        "--size",
        "16MiB",
        "--chunk-size",
        "16MiB",
    ];
    wait_until("a volume can be created", || {
        cluster.run(&create).status.success()
    });
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    assert_eq!([1, 2, 3].map(|number| cluster.incarnation(number)), lives);
    cluster.end();
}

#[test]
fn what_was_flushed_survives_the_death_of_everything_at_once() {
    let _turn = turn();
    let place = Place::in_memory("killed-all");
    let mut cluster = cluster(&place);
    let load = Load::start(&cluster.address(), VOLUME);
    load.wait_for(500);
    let (contents, _) = load.finish();
    // Stopped first, so that it starts nothing again and nothing ends because of its end.
    cluster.signal(Signal::STOP);
    for number in 1..=3 {
        kill(&cluster.engine_lock(number));
        kill(&cluster.target_lock(number));
    }
    kill(&cluster.master_lock());
    cluster.signal(Signal::KILL);
    assert!(!cluster.ended().success());
    let (data, port) = (cluster.data.clone(), cluster.port);
    let cluster = Cluster::start(&data, port);
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    load::check(&cluster.address(), VOLUME, &contents);
    let load = Load::go_on(&cluster.address(), VOLUME, contents);
    load.wait_for(100);
    load.finish();
    cluster.end();
}

/// A node's request for the number of its next life, which stood with a master that stood still, and is carried out when
/// the engine has got a number elsewhere long since.
fn ask_late(cluster: &Cluster, number: u32) -> u64 {
    let node = u128::from_str_radix(&cluster.id(number).replace('-', ""), 16).unwrap();
    let peer_address = cluster.node(number)["address"].as_str().unwrap().to_owned();
    let ended_through = cluster.incarnation(number) - 1;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let masters = Masters {
            addresses: cluster.address(),
            credentials: None,
        };
        let client = Client::connect(masters).await.unwrap();
        let identity = client.identity(v1::GetIdentityRequest {}).await.unwrap();
        let request = v1::RegisterRequest {
            cluster: identity.cluster,
            node: node.to_be_bytes().to_vec(),
            peer_address,
            ended_through,
            ..Default::default()
        };
        client.register(request).await.unwrap().incarnation
    })
}

#[test]
fn a_life_that_is_over_for_the_masters_is_ended_and_the_next_one_serves() {
    let _turn = turn();
    let place = Place::in_memory("outlived");
    let cluster = cluster(&place);
    let load = Load::start(&cluster.address(), VOLUME);
    load.wait_for(300);
    let target = process(&cluster.target_lock(2));
    let passed = ask_late(&cluster, 2);
    assert!(passed > 1, "the life that serves has number {passed}");
    cluster.wait_for_life_after(2, passed);
    assert_ne!(process(&cluster.target_lock(2)), target);
    cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    load.wait_for(300);
    load.finish();
    cluster.end();
}
