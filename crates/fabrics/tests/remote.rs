//! A remote device over real sockets: its target is killed and started again, does not answer, or stays away.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{NQN, bytes, listen, memory, nqn, options, read, run, target};
use bdev::delay::{DelayDevice, Delays};
use bdev::{BlockDevice, ChannelExt, IoError};
use fabrics::initiator::{RemoteDevice, RemoteOptions};
use fabrics::target::{Hosts, Namespace, Options, Subsystem, Target, serve};
use foundation::Lba;
use reactor::{Config, time};

/// A target on a thread of its own, which ends without a word to its hosts.
struct Killable {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Killable {
    fn start(device: Arc<dyn BlockDevice>, at: SocketAddr, uuid: [u8; 16]) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (sender, receiver) = mpsc::channel();
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            let serving = async move {
                let subsystem = Subsystem::new(nqn(NQN), "SERIAL", "Redhare", Hosts::Any);
                let namespace = Namespace {
                    nsid: 1,
                    uuid,
                    device,
                };
                subsystem.add_namespace(namespace).unwrap();
                let target = Target::new();
                target.add_subsystem(subsystem);
                let server = serve(target, at, Options::default()).unwrap();
                sender.send(server.address()).unwrap();
                while !flag.load(Ordering::Relaxed) {
                    time::sleep(Duration::from_millis(1)).await;
                }
            };
            reactor::run(&Config::default(), serving).unwrap();
        });
        Self {
            address: receiver.recv().unwrap(),
            stop,
            thread,
        }
    }

    fn kill(self) -> SocketAddr {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.address
    }
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn patient(address: SocketAddr) -> RemoteOptions {
    RemoteOptions {
        reconnect_delay_max: Duration::from_millis(100),
        retries: 100,
        ..RemoteOptions::new(options(address), 1)
    }
}

#[test]
fn nobody_above_notices_that_the_target_is_killed_and_started_again() {
    let disk = memory(512);
    let mut target = Killable::start(disk.clone(), any(), [7; 16]);
    let address = target.address;
    let (done, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let (count, flag) = (done.clone(), stop.clone());
    let host = std::thread::spawn(move || {
        run(async move {
            let device = RemoteDevice::connect(patient(address)).await.unwrap();
            let channel = device.open_channel().unwrap();
            let mut lanes = Vec::new();
            for lane in 0..8u64 {
                let (channel, count, flag) = (channel.clone(), count.clone(), flag.clone());
                lanes.push(reactor::spawn(async move {
                    let mut round = lane;
                    while !flag.load(Ordering::Relaxed) {
                        // In one command, and in more than one.
                        let blocks = if round.is_multiple_of(16) { 256 } else { 8 };
                        let data = bytes(blocks * 512, round);
                        channel.write(Lba(lane * 256), data.clone()).await.unwrap();
                        assert!(read(&*channel, lane * 256, blocks as u64).await == data[..]);
                        channel.flush().await.unwrap();
                        count.fetch_add(1, Ordering::Relaxed);
                        round += 8;
                    }
                }));
            }
            for lane in lanes {
                lane.await.unwrap();
            }
        });
    });
    for _ in 0..5 {
        let before = done.load(Ordering::Relaxed);
        while done.load(Ordering::Relaxed) < before + 50 {
            assert!(!host.is_finished());
            std::thread::sleep(Duration::from_millis(1));
        }
        let at = target.kill();
        std::thread::sleep(Duration::from_millis(20));
        target = Killable::start(disk.clone(), at, [7; 16]);
    }
    let before = done.load(Ordering::Relaxed);
    while done.load(Ordering::Relaxed) < before + 50 {
        assert!(!host.is_finished());
        std::thread::sleep(Duration::from_millis(1));
    }
    stop.store(true, Ordering::Relaxed);
    host.join().unwrap();
    target.kill();
}

#[test]
fn another_namespace_in_its_place_is_not_written_to() {
    let target = Killable::start(memory(512), any(), [7; 16]);
    let address = target.address;
    let (sender, receiver) = mpsc::channel();
    let (restarted, go) = mpsc::channel();
    let host = std::thread::spawn(move || {
        run(async move {
            let options = RemoteOptions {
                wait_limit: Duration::from_millis(700),
                ..patient(address)
            };
            let device = RemoteDevice::connect(options).await.unwrap();
            let channel = device.open_channel().unwrap();
            channel.write(Lba(0), bytes(512, 1)).await.unwrap();
            sender.send(()).unwrap();
            go.recv().unwrap();
            let refused = channel.write(Lba(0), bytes(512, 2)).await;
            assert_eq!(refused, Err(IoError::Unavailable));
        });
    });
    receiver.recv().unwrap();
    let at = target.kill();
    let other = memory(512);
    let target = Killable::start(other.clone(), at, [8; 16]);
    restarted.send(()).unwrap();
    host.join().unwrap();
    target.kill();
    run(async move {
        let channel = other.open_channel().unwrap();
        assert!(read(&*channel, 0, 1).await.iter().all(|&byte| byte == 0));
    });
}

#[test]
fn a_command_without_an_answer_is_repeated_and_the_old_one_does_not_come_late() {
    run(async {
        let delays = Arc::new(Delays::default());
        let (target, subsystem) = target(Arc::new(DelayDevice::new(memory(512), delays.clone(), 1)));
        let (_server, connect) = listen(target, Options::default());
        let limit = Duration::from_millis(200);
        let device = RemoteDevice::connect(RemoteOptions {
            io_timeout: Some(limit),
            ..patient(connect.address)
        });
        let channel = device.await.unwrap().open_channel().unwrap();
        channel.write(Lba(7), bytes(512, 1)).await.unwrap();
        let before = subsystem.associations()[0].cntlid;
        let slow = limit * 4;
        delays.set_write(slow);
        let begun = time::now();
        let writing = {
            let channel = channel.clone();
            reactor::spawn(async move { channel.write(Lba(7), bytes(512, 2)).await })
        };
        time::sleep(limit / 2).await;
        delays.set_write(Duration::ZERO);
        assert_eq!(writing.await, Some(Ok(())));
        assert!(
            time::now() - begun >= slow / 2,
            "the first write was still in the device"
        );
        channel.write(Lba(7), bytes(512, 3)).await.unwrap();
        time::sleep(slow).await;
        assert_eq!(read(&*channel, 7, 1).await, bytes(512, 3)[..]);
        assert!(subsystem.associations().iter().all(|one| one.cntlid != before));
    });
}

#[test]
fn a_target_that_stays_away_is_given_up() {
    let target = Killable::start(memory(512), any(), [7; 16]);
    let address = target.address;
    run(async move {
        let loss = Duration::from_millis(800);
        let device = RemoteDevice::connect(RemoteOptions {
            wait_limit: Duration::from_millis(300),
            loss_timeout: Some(loss),
            ..patient(address)
        });
        let channel = device.await.unwrap().open_channel().unwrap();
        channel.write(Lba(0), bytes(512, 1)).await.unwrap();
        let begun = time::now();
        target.kill();
        assert_eq!(
            channel.write(Lba(0), bytes(512, 2)).await,
            Err(IoError::Unavailable)
        );
        assert!(time::now() - begun >= Duration::from_millis(300));
        let mut ended = Ok(());
        while ended != Err(IoError::Gone) {
            assert!(time::now() - begun < loss * 10, "{ended:?}");
            time::sleep(Duration::from_millis(20)).await;
            ended = channel.write(Lba(0), bytes(512, 2)).await;
        }
        assert!(time::now() - begun >= loss);
        // For good.
        let target = Killable::start(memory(512), address, [7; 16]);
        time::sleep(Duration::from_millis(300)).await;
        assert_eq!(channel.write(Lba(0), bytes(512, 2)).await, Err(IoError::Gone));
        target.kill();
    });
}
