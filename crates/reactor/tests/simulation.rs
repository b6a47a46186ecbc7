//! The simulated backend: one seed, one trace; what crashes and partitions do.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use reactor::file::{File, OpenOptions};
use reactor::net::{SendBatch, TcpListener, TcpOptions, TcpStream};
use reactor::sim::{Host, Simulation};
use reactor::{BufferPool, spawn, time};

const WRITE: OpenOptions = OpenOptions {
    write: true,
    create: true,
    direct: true,
};

fn page(byte: u8) -> reactor::Buffer {
    let mut buffer = BufferPool::current().try_allocate(4096).unwrap();
    buffer.fill(byte);
    buffer.freeze()
}

fn at(host: Host, port: u16) -> SocketAddr {
    SocketAddr::new(host.address(), port)
}

async fn send(sender: &mut reactor::net::TcpSender, bytes: &[u8]) -> std::io::Result<()> {
    let mut batch = SendBatch::new();
    batch.headers().extend_from_slice(bytes);
    sender.send(batch).await.0
}

/// A server echoes; clients send at random times; a disk is written. Returns the trace.
fn busy_world(seed: u64) -> u64 {
    let simulation = Simulation::new(seed);
    let server = simulation.add_host("server");
    simulation.start(server, move || async move {
        let listener = TcpListener::bind(at(server, 7), TcpOptions::default()).unwrap();
        let disk = File::open(Path::new("/disk"), WRITE).unwrap();
        disk.set_length_bytes(1 << 20).unwrap();
        while let Ok(stream) = listener.accept().await {
            let (mut receiver, mut sender) = stream.split();
            let disk = disk.clone();
            spawn(async move {
                while let Ok(Some(bytes)) = receiver.receive().await {
                    disk.write_at(page(bytes[0]), 4096 * u64::from(bytes[0]))
                        .await
                        .unwrap();
                    send(&mut sender, &bytes).await.unwrap();
                }
            });
        }
    });
    let done = Rc::new(Cell::new(0));
    for client in 0..3u8 {
        let host = simulation.add_host("client");
        let done = done.clone();
        simulation.start(host, move || async move {
            time::sleep(Duration::from_millis(1)).await;
            let stream = TcpStream::connect(at(server, 7), &TcpOptions::default())
                .await
                .unwrap();
            let (mut receiver, mut sender) = stream.split();
            for round in 0..10u8 {
                send(&mut sender, &[client * 10 + round; 50]).await.unwrap();
                let mut got = 0;
                while got < 50 {
                    got += receiver.receive().await.unwrap().unwrap().len();
                }
            }
            done.set(done.get() + 1);
        });
    }
    let finished = done.clone();
    simulation.run(async move {
        while finished.get() < 3 {
            time::sleep(Duration::from_millis(1)).await;
        }
    });
    simulation.trace()
}

#[test]
fn one_seed_one_trace() {
    assert_eq!(busy_world(11), busy_world(11));
    assert_ne!(busy_world(11), busy_world(12));
}

#[test]
fn time_passes_only_in_the_world() {
    let simulation = Simulation::new(1);
    let began = std::time::Instant::now();
    simulation.run(async { time::sleep(Duration::from_secs(3600 * 24)).await });
    assert!(simulation.elapsed() >= Duration::from_secs(3600 * 24));
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_fast_clock_fires_early_in_world_time() {
    let simulation = Simulation::new(2);
    let host = simulation.add_host("fast");
    simulation.set_clock_rate_ppm(host, 10_000);
    let woke = Rc::new(Cell::new(false));
    let flag = woke.clone();
    simulation.start(host, move || async move {
        time::sleep(Duration::from_secs(100)).await;
        flag.set(true);
    });
    simulation.run_for(Duration::from_millis(99_000));
    assert!(!woke.get());
    simulation.run_for(Duration::from_millis(20));
    simulation.run_for(Duration::from_millis(0));
    assert!(woke.get() || simulation.elapsed() < Duration::from_millis(99_010));
    simulation.run_for(Duration::from_millis(100));
    assert!(woke.get());
}

/// Over many seeds: a synced page always survives a power cut; an unsynced one is sometimes kept,
/// sometimes lost, sometimes torn at sector boundaries, and nothing else ever happens to it.
#[test]
fn a_power_cut_keeps_what_was_synced_and_nothing_is_sure_about_the_rest() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..60 {
        let simulation = Simulation::new(seed);
        let host = simulation.add_host("node");
        let path = Path::new("/disk");
        let disk = simulation.disk(host, path);
        disk.cut_power_at(4);
        simulation.start(host, move || async move {
            let file = File::open(path, WRITE).unwrap();
            file.set_length_bytes(1 << 20).unwrap();
            file.write_at(page(1), 0).await.unwrap();
            file.sync_data().await.unwrap();
            file.write_at(page(2), 4096).await.unwrap();
            file.sync_data().await.unwrap();
            unreachable!("the power went with the fourth operation");
        });
        simulation.run_for(Duration::from_secs(1));
        assert!(!simulation.is_powered(host));
        let seen = Rc::new(RefCell::new(None));
        let place = seen.clone();
        simulation.start(host, move || async move {
            let file = File::open(path, WRITE).unwrap();
            let read = BufferPool::current().try_allocate(8192).unwrap();
            let (result, bytes) = file.read_at(read, 0).await;
            result.unwrap();
            *place.borrow_mut() = Some(bytes.to_vec());
        });
        simulation.run_for(Duration::from_secs(1));
        let bytes = seen.borrow_mut().take().expect("the host runs again");
        assert!(bytes[..4096].iter().all(|&b| b == 1));
        let twos = bytes[4096..]
            .chunks(512)
            .filter(|sector| sector.iter().all(|&b| b == 2))
            .count();
        let zeros = bytes[4096..]
            .chunks(512)
            .filter(|sector| sector.iter().all(|&b| b == 0))
            .count();
        assert_eq!(twos + zeros, 8);
        match twos {
            0 => lost += 1,
            8 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(
        kept > 5 && lost > 5 && torn > 5,
        "kept {kept}, lost {lost}, torn {torn}"
    );
}

/// Over many seeds: what was written durably survives a power cut, also over what had been written there before, and
/// says nothing of a write beside it.
#[test]
fn a_durable_write_outlives_the_power_and_only_that() {
    let mut uncertain = [0; 2];
    for seed in 0..60 {
        let simulation = Simulation::new(seed);
        let host = simulation.add_host("node");
        let path = Path::new("/disk");
        simulation.disk(host, path).cut_power_at(5);
        simulation.start(host, move || async move {
            let file = File::open(path, WRITE).unwrap();
            file.set_length_bytes(1 << 20).unwrap();
            file.write_at(page(1), 0).await.unwrap();
            file.write_at(page(2), 4096).await.unwrap();
            file.write_durably_at(page(3), 0).await.unwrap();
            let (tell, told) = reactor::sync::oneshot();
            file.begin_durable_write(page(4), 8192, |result, _| tell.send(result));
            told.await.unwrap().unwrap();
            file.sync_data().await.unwrap();
            unreachable!("the power went with the fifth operation");
        });
        simulation.run_for(Duration::from_secs(1));
        assert!(!simulation.is_powered(host));
        let seen = Rc::new(RefCell::new(None));
        let place = seen.clone();
        simulation.start(host, move || async move {
            let file = File::open(path, WRITE).unwrap();
            let read = BufferPool::current().try_allocate(12288).unwrap();
            let (result, bytes) = file.read_at(read, 0).await;
            result.unwrap();
            *place.borrow_mut() = Some(bytes.to_vec());
        });
        simulation.run_for(Duration::from_secs(1));
        let bytes = seen.borrow_mut().take().expect("the host runs again");
        assert!(bytes[..4096].iter().all(|&b| b == 3), "seed {seed}");
        assert!(bytes[8192..].iter().all(|&b| b == 4), "seed {seed}");
        let kept = bytes[4096..8192].iter().all(|&b| b == 2);
        uncertain[usize::from(kept)] += 1;
    }
    assert!(
        uncertain.iter().all(|&times| times > 5),
        "lost and kept: {uncertain:?}"
    );
}

#[test]
fn a_killed_process_resets_its_connections_and_keeps_its_files() {
    let simulation = Simulation::new(5);
    let (server, client) = (simulation.add_host("server"), simulation.add_host("client"));
    simulation.start(server, move || async move {
        let file = File::open(Path::new("/disk"), WRITE).unwrap();
        file.set_length_bytes(4096).unwrap();
        file.write_at(page(3), 0).await.unwrap();
        let listener = TcpListener::bind(at(server, 7), TcpOptions::default()).unwrap();
        let _kept = listener.accept().await.unwrap();
        std::future::pending::<()>().await;
    });
    let ended = Rc::new(Cell::new(false));
    let flag = ended.clone();
    simulation.start(client, move || async move {
        time::sleep(Duration::from_millis(10)).await;
        let stream = TcpStream::connect(at(server, 7), &TcpOptions::default())
            .await
            .unwrap();
        let (mut receiver, _sender) = stream.split();
        assert!(!matches!(receiver.receive().await, Ok(Some(_))));
        flag.set(true);
    });
    simulation.run_for(Duration::from_millis(100));
    assert!(!ended.get());
    simulation.stop(server);
    simulation.run_for(Duration::from_millis(100));
    assert!(ended.get());
    assert_eq!(
        simulation.disk(server, Path::new("/disk")).read(0, 4096),
        vec![3; 4096]
    );
}

/// What a killed process was writing is there or is not from then on: it does not come over what was written since, with a power cut.
#[test]
fn a_write_of_a_killed_process_does_not_come_later() {
    let mut there = 0;
    for seed in 0..40 {
        let simulation = Simulation::new(seed);
        let host = simulation.add_host("host");
        let disk = simulation.disk(host, Path::new("/disk"));
        simulation.start(host, || async {
            let file = File::open(Path::new("/disk"), WRITE).unwrap();
            file.set_length_bytes(4096).unwrap();
            file.write_at(page(1), 0).await.unwrap();
        });
        simulation.run_for(Duration::from_micros(5));
        simulation.stop(host);
        there += u64::from(disk.read(0, 1) == [1]);
        simulation.start(host, || async {
            let file = File::open(Path::new("/disk"), WRITE).unwrap();
            file.write_at(page(2), 0).await.unwrap();
            file.sync_data().await.unwrap();
        });
        simulation.run_for(Duration::from_millis(5));
        simulation.power_off(host);
        assert!(disk.read(0, 4096) == vec![2; 4096], "seed {seed}");
    }
    assert!(there > 5 && there < 35, "{there}");
}

#[test]
fn hosts_on_one_feed_lose_their_power_together() {
    let simulation = Simulation::new(4);
    let hosts = [0, 1, 2].map(|n| simulation.add_host(&format!("host{n}")));
    simulation.share_power(&hosts[..2]);
    simulation.disk(hosts[1], Path::new("/disk")).cut_power_at(1);
    simulation.start(hosts[1], || async {
        let file = File::open(Path::new("/disk"), WRITE).unwrap();
        file.set_length_bytes(4096).unwrap();
        file.write_at(page(1), 0).await.unwrap();
    });
    simulation.run_for(Duration::from_millis(5));
    let powered = hosts.map(|host| simulation.is_powered(host));
    assert_eq!(powered, [false, false, true]);
}

#[test]
fn a_partition_holds_bytes_back_in_one_direction() {
    let simulation = Simulation::new(6);
    let (server, client) = (simulation.add_host("server"), simulation.add_host("client"));
    let heard = Rc::new(RefCell::new(Vec::new()));
    let place = heard.clone();
    simulation.start(server, move || async move {
        let listener = TcpListener::bind(at(server, 7), TcpOptions::default()).unwrap();
        let (mut receiver, _sender) = listener.accept().await.unwrap().split();
        while let Ok(Some(bytes)) = receiver.receive().await {
            place.borrow_mut().extend_from_slice(&bytes);
        }
    });
    simulation.start(client, move || async move {
        time::sleep(Duration::from_millis(10)).await;
        let stream = TcpStream::connect(at(server, 7), &TcpOptions::default())
            .await
            .unwrap();
        let (_receiver, mut sender) = stream.split();
        for letter in b'a'..=b'z' {
            send(&mut sender, &[letter]).await.unwrap();
            time::sleep(Duration::from_millis(10)).await;
        }
        std::future::pending::<()>().await;
    });
    simulation.run_for(Duration::from_millis(100));
    simulation.partition(client, server);
    simulation.run_for(Duration::from_millis(50));
    let before = heard.borrow().len();
    simulation.run_for(Duration::from_millis(50));
    assert_eq!(heard.borrow().len(), before);
    assert!(before > 0 && before < 26);
    simulation.heal(client, server);
    simulation.run_for(Duration::from_secs(1));
    assert_eq!(*heard.borrow(), (b'a'..=b'z').collect::<Vec<_>>());
}

#[test]
fn a_paused_host_goes_on_where_it_stopped() {
    let simulation = Simulation::new(8);
    let host = simulation.add_host("node");
    let count = Rc::new(Cell::new(0));
    let counter = count.clone();
    simulation.start(host, move || async move {
        loop {
            time::sleep(Duration::from_millis(10)).await;
            counter.set(counter.get() + 1);
        }
    });
    simulation.run_for(Duration::from_millis(100));
    let before = count.get();
    assert!(before >= 8);
    simulation.pause(host);
    simulation.run_for(Duration::from_secs(1));
    assert_eq!(count.get(), before);
    simulation.resume(host);
    simulation.run_for(Duration::from_millis(100));
    assert!(count.get() >= before + 8);
}
