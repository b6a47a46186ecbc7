//! Live targets and initiators on simulated hosts, with someone hostile at the other end of the connection.

mod between;
mod raw;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::memory::MemoryDevice;
use bdev::{ChannelExt, IoError};
use fabrics::initiator::{ConnectOptions, Controller};
use fabrics::target::{Hosts, Namespace, Options, Server, Subsystem, Target, serve};
use foundation::{BlockCount, Lba, Random};
use protocols::nvme::Nqn;
use reactor::sim::{Host, Simulation};
use reactor::{Buffer, BufferPool, time};

pub(crate) use between::initiator_connections;

use crate::input::Input;
use raw::{Hostile, Reached};

const PORT: u16 = 4420;
/// What hostile hosts name.
const NQN: &str = "nqn.2026-11.io.redhare:test";
/// The good host's own: nobody else writes there.
const GOOD: &str = "nqn.2026-11.io.redhare:good";
const HOST: &str = "nqn.2026-11.io.redhare:host";
/// Blocks of 512 bytes of each namespace.
const BLOCKS: u64 = 512;
/// More buffers than this no input makes anybody take: three connections hold 256 KiB each.
const POOL_BYTES_MAX: usize = 16 << 20;
/// Nothing takes longer, in the world's time.
const PATIENCE: Duration = Duration::from_secs(120);

fn nqn(text: &str) -> Nqn {
    text.parse().expect("a name of ours")
}

fn subsystem(target: &Target, name: &str) -> Arc<Subsystem> {
    let subsystem = Subsystem::new(nqn(name), "SERIAL", "Redhare", Hosts::Any);
    let device = MemoryDevice::new(512, BlockCount(BLOCKS)).expect("it is small");
    let namespace = Namespace {
        nsid: 1,
        uuid: [7; 16],
        device: Arc::new(device),
    };
    subsystem.add_namespace(namespace).expect("it is the first");
    target.add_subsystem(subsystem.clone());
    subsystem
}

fn options() -> Options {
    Options {
        held_bytes_max: 256 << 10,
        connect_limit: Duration::from_secs(2),
        stall_limit: Duration::from_secs(1),
        ..Options::default()
    }
}

fn listen(target: Arc<Target>, address: SocketAddr) -> Server {
    serve(target, address, options()).expect("the port is free")
}

/// What all hosts of a world know.
#[derive(Default)]
struct Shared {
    /// Rounds of the good host.
    verified: Cell<u64>,
    /// The hostile one has ended.
    done: Cell<bool>,
    /// What it got.
    reached: Cell<Reached>,
    /// Most buffers of the host under attack, in bytes.
    pool_bytes: Cell<usize>,
    /// Associations with the subsystem that hostile hosts name.
    associations: Cell<usize>,
}

/// A live target of one host, a good host, and a hostile one that opens up to three connections and sends what the
/// input says: right handshakes, commands with any field, data, noise.
pub(crate) fn target_connections(bytes: &[u8]) {
    attack(bytes);
}

fn attack(bytes: &[u8]) -> Reached {
    let simulation = Simulation::new(1);
    simulation.set_latency(Duration::from_micros(5), Duration::from_micros(20));
    let shared = Rc::<Shared>::default();
    let served = simulation.add_host("target");
    let address = SocketAddr::new(served.address(), PORT);
    start_target(&simulation, served, shared.clone());
    let good = simulation.add_host("good");
    let (connect, counts) = (good_options(address), shared.clone());
    simulation.start(good, move || async move { good_host(connect, &counts).await });
    run_until(&simulation, "the good host begins", || shared.verified.get() > 0);
    let bad = simulation.add_host("bad");
    let (input, counts) = (bytes.to_vec(), shared.clone());
    simulation.start(bad, move || async move {
        let reached = Hostile::new(address).act(&mut Input::new(&input)).await;
        counts.reached.set(reached);
        counts.done.set(true);
    });
    run_until(&simulation, "the hostile host ends", || shared.done.get());
    // All it had is let go, and it cost nobody else anything.
    run_until(&simulation, "its associations end", || {
        shared.associations.get() == 0
    });
    let before = shared.verified.get();
    run_until(&simulation, "the good host goes on", || {
        shared.verified.get() >= before + 2
    });
    let pool = shared.pool_bytes.get();
    assert!(pool <= POOL_BYTES_MAX, "the target took {pool} bytes of buffers");
    shared.reached.get()
}

fn start_target(simulation: &Simulation, host: Host, shared: Rc<Shared>) {
    let address = SocketAddr::new(host.address(), PORT);
    simulation.start(host, move || async move {
        let target = Target::new();
        let attacked = subsystem(&target, NQN);
        subsystem(&target, GOOD);
        let _server = listen(target, address);
        loop {
            let pool = BufferPool::current().reserved_bytes();
            shared.pool_bytes.set(shared.pool_bytes.get().max(pool));
            shared.associations.set(attacked.associations().len());
            time::sleep(Duration::from_millis(2)).await;
        }
    });
}

#[track_caller]
fn run_until(simulation: &Simulation, what: &str, done: impl Fn() -> bool) {
    let end = simulation.elapsed() + PATIENCE;
    while !done() {
        assert!(simulation.elapsed() < end, "not within {PATIENCE:?}: {what}");
        simulation.run_for(Duration::from_millis(5));
    }
}

fn good_options(address: SocketAddr) -> ConnectOptions {
    ConnectOptions {
        queue_entries: 8,
        data_digest: true,
        ..ConnectOptions::new(address, nqn(GOOD), nqn(HOST), [3; 16])
    }
}

fn pattern(length: usize, seed: u64) -> Buffer {
    let mut buffer = BufferPool::current()
        .try_allocate(length)
        .expect("little is in use here");
    Random::from_seed(seed).fill(&mut buffer);
    buffer.freeze()
}

/// Writes and reads back in rounds on one association, which must not end.
async fn good_host(connect: ConnectOptions, shared: &Shared) {
    let controller = Controller::connect(connect).await.expect("the target answers");
    let namespace = controller.open_namespace(1).await;
    let namespace = namespace.expect("there is a namespace");
    for round in 0.. {
        // 4 blocks travel in the capsule, 40 are asked for.
        let (lba, blocks) = (round * 40 % BLOCKS, if round % 2 == 0 { 4 } else { 40 });
        let blocks = blocks.min(BLOCKS - lba);
        let data = pattern(blocks as usize * 512, round);
        let written = namespace.write(Lba(lba), data.clone()).await;
        written.expect("the good host is not disturbed");
        let buffer = BufferPool::current().try_allocate(data.len());
        let (status, read) = namespace
            .read(Lba(lba), buffer.expect("little is in use here"))
            .await;
        assert_eq!(status, Ok::<(), IoError>(()), "round {round}");
        assert!(read[..] == data[..], "round {round} read something else");
        assert!(!controller.is_ended());
        shared.verified.set(round + 1);
        // Seldomer as it goes on: a host that sleeps for seconds is to cost nothing.
        time::sleep(Duration::from_millis((5 + round * 2).min(200))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever seeds make of the grammar. More by `REDHARE_SEEDS`.
    #[test]
    fn random_commands_harm_nobody_else() {
        let seeds = foundation::seeds::from_environment(150);
        let (mut all, count) = (Reached::default(), seeds.len());
        for seed in seeds {
            let mut random = Random::from_seed(seed);
            let mut bytes = vec![0; random.between(20, 900) as usize];
            random.fill(&mut bytes);
            let result = std::panic::catch_unwind(|| attack(&bytes));
            let one = result.unwrap_or_else(|_| panic!("seed {seed}"));
            all.succeeded += one.succeeded;
            all.failed += one.failed;
            all.data_bytes += one.data_bytes;
            all.asked += one.asked;
            all.terminations += one.terminations;
        }
        if count >= 150 {
            // Otherwise this proves nothing.
            let much = all.succeeded > 800 && all.failed > 500 && all.data_bytes > 8000;
            assert!(much && all.asked > 20 && all.terminations > 100, "{all:?}");
        }
    }

    #[test]
    fn changed_answers_end_in_errors() {
        for seed in foundation::seeds::from_environment(150) {
            let mut random = Random::from_seed(seed);
            let mut bytes = vec![0; random.between(4, 300) as usize];
            random.fill(&mut bytes);
            let result = std::panic::catch_unwind(|| initiator_connections(&bytes));
            assert!(result.is_ok(), "seed {seed}");
        }
    }
}
