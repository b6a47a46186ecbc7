//! Target and initiator on simulated hosts: random requests against a model while the network is cut, either process
//! is paused or killed, connections are lost, and the disk is slower than the host's patience. The device connects again
//! by itself each time, and repeats what was in flight; with one seed in three it does not repeat, and the request fails.
//! A read gives the last acknowledged write of each block, or a write whose outcome is unknown (it failed, or its
//! process ended), and nothing else, ever. Equal seeds give equal traces. With one seed in five both ends authenticate.
//!
//! A target drains what it has of a connection that it knows to be lost before it lets the host in again
//! (`reconnect.rs`). Of a loss that only the host has seen, the host tells it. Were that left out, the old writes that
//! lie in a slow disk would be found on top of newer ones here.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::support::model::{BLOCK_BYTES, LANE_BLOCKS, LANES, Model, lane};
use crate::support::{HOST, SECRETS, credentials, options, read, target};
use bdev::BlockDevice;
use bdev::delay::{DelayDevice, Delays};
use bdev::file::{FileDevice, FileOptions};
use fabrics::authentication::Credentials;
use fabrics::initiator::{ConnectOptions, RemoteDevice, RemoteOptions};
use fabrics::target::{Options, Subsystem, serve};
use foundation::{ByteCount, Random};
use protocols::auth::{Group, HashFunction, Policy};
use reactor::sim::{Host, Simulation};
use reactor::{spawn, time};

const DISK: &str = "/disk";
const PORT: u16 = 4420;

/// The keys of both ends, where they have any.
fn keys(seed: u64) -> Option<Credentials> {
    seed.is_multiple_of(5)
        .then(|| credentials(SECRETS[0], Some(SECRETS[1])))
}

/// Without the groups whose arithmetic is done by a real thread.
fn policy() -> Policy {
    Policy {
        hashes: vec![HashFunction::Sha256],
        groups: vec![Group::Null],
    }
}

fn repeats(seed: u64) -> bool {
    !seed.is_multiple_of(3)
}

struct World {
    simulation: Simulation,
    seed: u64,
    target: Host,
    host: Host,
    model: Rc<Model>,
    stalled_until: Cell<Duration>,
    /// How late requests come to the disk.
    delays: Arc<Delays>,
    /// The running target's subsystem, to end its connections by.
    subsystem: Rc<RefCell<Option<Arc<Subsystem>>>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let simulation = Simulation::new(seed);
        let (target, host) = (simulation.add_host("target"), simulation.add_host("host"));
        let disk = simulation.disk(target, Path::new(DISK));
        disk.set_latency(Duration::from_micros(10), Duration::from_millis(1 + seed % 4));
        let world = Self {
            simulation,
            seed,
            target,
            host,
            stalled_until: Cell::default(),
            delays: Arc::default(),
            model: Model::new(),
            subsystem: Rc::default(),
        };
        world.start_target();
        world.start_host();
        world
    }

    fn start_target(&self) {
        let (place, delays, address, seed) = (
            self.subsystem.clone(),
            self.delays.clone(),
            SocketAddr::new(self.target.address(), PORT),
            self.seed,
        );
        self.simulation.start(self.target, move || async move {
            let size = ByteCount(LANES * LANE_BLOCKS * u64::from(BLOCK_BYTES));
            let file = FileOptions {
                create: Some(size),
                block_bytes: BLOCK_BYTES,
                direct: true,
                read_only: false,
            };
            let device = FileDevice::open(Path::new(DISK), file).unwrap();
            let device = DelayDevice::new(Arc::new(device), delays, seed);
            let (target, subsystem) = target(Arc::new(device));
            if let Some(keys) = keys(seed) {
                subsystem.set_credentials(HOST, Some(keys));
                target.set_authentication_policy(policy());
            }
            *place.borrow_mut() = Some(subsystem);
            let _server = serve(target, address, Options::default()).unwrap();
            std::future::pending::<()>().await;
        });
    }

    fn start_host(&self) {
        let (model, seed) = (self.model.clone(), self.seed);
        let connect = ConnectOptions {
            // In-capsule and R2T, with and without digests.
            data_digest: seed % 2 == 0,
            header_digest: seed % 3 == 0,
            keep_alive: Duration::from_millis(800),
            limit: Duration::from_millis(400),
            credentials: keys(seed),
            authentication_policy: policy(),
            ..options(SocketAddr::new(self.target.address(), PORT))
        };
        self.simulation.start(self.host, move || async move {
            let options = RemoteOptions {
                wait_limit: Duration::from_secs(60),
                reconnect_delay_max: Duration::from_millis(200),
                io_timeout: (seed % 4 != 0).then_some(Duration::from_millis(900)),
                retries: if repeats(seed) { 100 } else { 0 },
                ..RemoteOptions::new(connect, 1)
            };
            let device = loop {
                match RemoteDevice::connect(options.clone()).await {
                    Ok(device) => break device,
                    Err(_) => time::sleep(Duration::from_millis(50)).await,
                }
            };
            let channel = device.open_channel().unwrap();
            for number in 0..LANES {
                drop(spawn(lane(channel.clone(), model.clone(), number, seed)));
            }
            std::future::pending::<()>().await;
        });
    }

    fn run_for_ms(&self, random: &mut Random, most: u64) {
        self.simulation
            .run_for(Duration::from_millis(random.between(1, most)));
    }

    /// Something goes wrong, for a while.
    fn fault(&self, random: &mut Random) {
        let Self {
            simulation,
            target,
            host,
            ..
        } = self;
        match random.below(8) {
            // The host gives its connections up, and what it has sent there comes late, beside what it sends on new ones.
            6 | 7 => {
                let stall = Duration::from_millis(random.between(200, 3000));
                if random.chance(1, 2) {
                    self.delays
                        .set_write(Duration::from_millis(random.between(1, 1500)));
                }
                self.run_for_ms(random, 100);
                simulation.stall(*host, *target, stall);
                self.stalled_until.set(simulation.elapsed() + stall);
                self.run_for_ms(random, 500);
                self.delays.set_write(Duration::ZERO);
                self.run_for_ms(random, 3000);
            }
            0 => {
                let both = random.chance(1, 2);
                let (from, to) = if random.chance(1, 2) {
                    (*target, *host)
                } else {
                    (*host, *target)
                };
                simulation.partition(from, to);
                if both {
                    simulation.partition(to, from);
                }
                self.run_for_ms(random, 3000);
                simulation.heal(from, to);
                if both {
                    simulation.heal(to, from);
                }
            }
            1 => {
                let paused = if random.chance(1, 2) { *target } else { *host };
                simulation.pause(paused);
                self.run_for_ms(random, 3000);
                simulation.resume(paused);
            }
            2 => {
                simulation.stop(*target);
                self.run_for_ms(random, 1000);
                self.start_target();
            }
            3 => {
                simulation.stop(*host);
                // A process that begins anew knows nothing of the associations before: see the decision.
                let left = self.stalled_until.get().saturating_sub(simulation.elapsed());
                simulation.run_for(left);
                self.run_for_ms(random, 500);
                self.start_host();
            }
            _ => {
                let subsystem = self.subsystem.borrow().clone();
                if let Some(subsystem) = subsystem {
                    simulation.start(*target, move || async move { subsystem.disconnect_hosts() });
                }
                self.run_for_ms(random, 50);
            }
        }
    }
}

/// Runs one seed to its end; the trace, how many faults there were, and how many writes of unknown outcome.
fn simulate(seed: u64) -> (u64, u64, u64) {
    let world = World::new(seed);
    let mut random = Random::from_seed(seed.wrapping_mul(77));
    let mut faults = 0;
    while !world.model.is_done() && faults < 30 {
        world.run_for_ms(&mut random, 200);
        world.fault(&mut random);
        faults += 1;
    }
    let mut waited = 0;
    while !world.model.is_done() {
        world.simulation.run_for(Duration::from_millis(100));
        waited += 1;
        let left = world.model.left.borrow().clone();
        assert!(
            waited < 600,
            "seed {seed}: a minute after the last fault, {left:?} requests are left"
        );
    }
    (world.simulation.trace(), faults, world.model.unknown.get())
}

#[test]
fn a_remote_device_survives_what_happens_to_it() {
    let seeds = foundation::seeds::from_environment(60);
    let (mut faults, mut unknown) = (0, 0);
    for &seed in &seeds {
        let (_, of_faults, of_unknown) = simulate(seed);
        faults += of_faults;
        unknown += of_unknown;
        assert!(
            of_unknown == 0 || !repeats(seed),
            "seed {seed}: {of_unknown} writes failed, though the device repeats them"
        );
    }
    if seeds.len() >= 60 {
        // Otherwise this proves nothing.
        assert!(
            faults > 200 && unknown > 40,
            "{faults} faults, {unknown} writes of unknown outcome"
        );
    }
}

#[test]
fn requests_in_flight_end_with_the_association() {
    let world = World::new(3);
    world.simulation.run_for(Duration::from_millis(20));
    // Every lane waits for an answer that never comes, so nobody submits anything that would notice.
    world.simulation.partition(world.host, world.target);
    world.simulation.partition(world.target, world.host);
    world.simulation.run_for(Duration::from_secs(5));
    assert!(
        world.model.unknown.get() > 0,
        "writes have ended, their outcome unknown"
    );
}

#[test]
fn one_seed_one_trace() {
    assert_eq!(simulate(5), simulate(5));
    assert_ne!(simulate(5).0, simulate(6).0);
}

#[test]
fn what_was_written_survives_a_restarted_target() {
    let world = World::new(1);
    while !world.model.is_done() {
        world.simulation.run_for(Duration::from_millis(100));
    }
    assert_eq!(world.model.unknown.get(), 0, "without faults, nothing is unknown");
    world.simulation.stop(world.target);
    world.start_target();
    world.simulation.stop(world.host);
    let (model, checked) = (world.model.clone(), Rc::new(Cell::new(false)));
    let (flag, address) = (checked.clone(), SocketAddr::new(world.target.address(), PORT));
    world.simulation.start(world.host, move || async move {
        let options = RemoteOptions {
            wait_limit: Duration::from_secs(5),
            ..RemoteOptions::new(options(address), 1)
        };
        let device = loop {
            match RemoteDevice::connect(options.clone()).await {
                Ok(device) => break device,
                Err(_) => time::sleep(Duration::from_millis(50)).await,
            }
        };
        let channel = device.open_channel().unwrap();
        model.check(0, &read(&*channel, 0, LANES * LANE_BLOCKS).await, 1);
        flag.set(true);
    });
    world.simulation.run_for(Duration::from_secs(5));
    assert!(checked.get());
}
