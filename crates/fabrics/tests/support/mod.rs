//! A target and hosts for the tests of this directory.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod arena;
pub(crate) mod model;
pub(crate) mod reserving;
pub(crate) mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use bdev::{BlockDevice, Channel, ChannelExt};
use fabrics::authentication::Credentials;
use fabrics::initiator::ConnectOptions;
use fabrics::target::{Hosts, Namespace, Subsystem, Target};
use foundation::{BlockCount, Lba, Random};
use protocols::auth::{Keys, Secret};
use protocols::nvme::Nqn;
use reactor::{Buffer, BufferPool};

pub(crate) const NQN: &str = "nqn.2026-11.io.redhare:test";
pub(crate) const HOST: &str = "nqn.2026-11.io.redhare:host";

/// A host that has to authenticate with the first of [`SECRETS`] in an `arena`.
pub(crate) const KEYED: &str = "nqn.2026-11.io.redhare:keyed";
/// Made by nvme-cli; the first is not bound to its owner's name.
pub(crate) const SECRETS: [&str; 3] = [
    "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:01:wVZVDZ/YLplppdxfvOiyI6bltX8ozYUjukX68VN5xSyA7JoN:",
    "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
];

/// Keys as people would have given them.
pub(crate) fn credentials(host: &str, controller: Option<&str>) -> Credentials {
    let secret = |text: &str| Secret::parse(text.as_bytes()).unwrap();
    Credentials {
        key_name: "host-key".to_owned(),
        controller_key_name: controller.map(|_| "controller-key".to_owned()),
        keys: Arc::new(Keys {
            host: secret(host),
            controller: controller.map(secret),
        }),
    }
}

/// Runs a test on a reactor, for a minute at most.
pub(crate) fn run(future: impl Future<Output = ()>) {
    let limited = async {
        reactor::time::timeout(std::time::Duration::from_secs(60), future)
            .await
            .expect("the test ends in time")
    };
    reactor::run(&reactor::Config::default(), limited).expect("this machine can run a reactor");
}

/// A memory device of 2,048 blocks.
pub(crate) fn memory(block_bytes: u32) -> Arc<dyn BlockDevice> {
    Arc::new(bdev::memory::MemoryDevice::new(block_bytes, BlockCount(2048)).unwrap())
}

/// Serves `target` on a free port of the loopback.
pub(crate) fn listen(
    target: Arc<Target>,
    with: fabrics::target::Options,
) -> (fabrics::target::Server, ConnectOptions) {
    let server = fabrics::target::serve(target, "127.0.0.1:0".parse().unwrap(), with).unwrap();
    let options = options(server.address());
    (server, options)
}

/// An empty buffer for what a command brings.
pub(crate) fn room(length: usize) -> bdev::Data {
    bdev::Data::Into(BufferPool::current().try_allocate(length).unwrap())
}

pub(crate) fn nqn(text: &str) -> Nqn {
    text.parse().unwrap()
}

/// A target with one subsystem that serves `device` as namespace 1.
pub(crate) fn target(device: Arc<dyn BlockDevice>) -> (Arc<Target>, Arc<Subsystem>) {
    let subsystem = Subsystem::new(nqn(NQN), "SERIAL", "Redhare", Hosts::Any);
    subsystem
        .add_namespace(Namespace {
            nsid: 1,
            uuid: [7; 16],
            device,
        })
        .unwrap();
    let target = Target::new();
    target.add_subsystem(subsystem.clone());
    (target, subsystem)
}

pub(crate) fn options(address: SocketAddr) -> ConnectOptions {
    ConnectOptions::new(address, nqn(NQN), nqn(HOST), [9; 16])
}

pub(crate) fn bytes(length: usize, seed: u64) -> Buffer {
    let mut buffer = BufferPool::current().try_allocate(length).unwrap();
    Random::from_seed(seed).fill(&mut buffer);
    buffer.freeze()
}

pub(crate) async fn read(channel: &dyn Channel, lba: u64, blocks: u64) -> Vec<u8> {
    let length = blocks as usize * channel.geometry().block_bytes as usize;
    let buffer = BufferPool::current().try_allocate(length).unwrap();
    let (result, buffer) = channel.read(Lba(lba), buffer).await;
    result.unwrap();
    buffer.to_vec()
}

/// Random requests of up to `blocks_max` blocks, up to eight at once on disjoint ranges, against an array.
pub(crate) async fn agrees_with_an_array(
    channel: std::rc::Rc<dyn Channel>,
    seed: u64,
    rounds: u64,
    blocks_max: u64,
) {
    let geometry = channel.geometry();
    let block = geometry.block_bytes as usize;
    let blocks = geometry.blocks.0;
    let mut model = vec![0u8; block * blocks as usize];
    let mut random = Random::from_seed(seed);
    let stripe = blocks / 8;
    for round in 0..rounds {
        let mut tasks = Vec::new();
        for lane in 0..8 {
            let start = lane * stripe + random.below(stripe);
            let count = random.between(1, blocks_max.min((lane + 1) * stripe - start));
            let range = start as usize * block..(start + count) as usize * block;
            let channel = channel.clone();
            match random.below(4) {
                0 | 1 => {
                    let data = bytes(range.len(), seed ^ (round * 8 + lane));
                    model[range].copy_from_slice(&data);
                    tasks.push(reactor::spawn(async move {
                        channel.write(Lba(start), data).await.unwrap()
                    }));
                }
                2 => {
                    model[range].fill(0);
                    let blocks = BlockCount(count);
                    tasks.push(reactor::spawn(async move {
                        channel.write_zeroes(Lba(start), blocks).await.unwrap();
                    }));
                }
                _ => {
                    let expected = model[range].to_vec();
                    tasks.push(reactor::spawn(async move {
                        assert!(
                            read(&*channel, start, count).await == expected,
                            "round {round} of seed {seed}"
                        );
                    }));
                }
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
    channel.flush().await.unwrap();
    for (index, chunk) in model.chunks(block * 16).enumerate() {
        let count = (chunk.len() / block) as u64;
        assert!(read(&*channel, index as u64 * 16, count).await == chunk);
    }
}
