//! Hosts that are let write and kept out while portals know of it late or never: what a host is kept out of from a moment on it does
//! not write after that, whatever is lost, late or held.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bdev::{Channel, ChannelExt, Data, IoError, Operation};
use foundation::{BlockCount, Lba, Random};
use reactor::sim::Simulation;
use reactor::{BufferPool, spawn, time};

use super::nodes::{BLOCK, Chaos, Nodes, links};
use crate::client::{Admission, Claims, ClientOptions, Told, VolumeChannel, VolumeDevice, enforce};
use crate::identity::{HostId, WriterToken};
use crate::message::codec::NativeOperation;

const HOSTS: u64 = 3;
const LIMIT: Duration = Duration::from_secs(20);
const HOST_BLOCKS: u64 = 128 / HOSTS;

/// What is agreed on: a token, and the hosts that are kept out.
#[derive(Clone, Default)]
struct Agreed {
    token: u64,
    out: BTreeSet<u64>,
}

/// A portal's knowledge, for one host.
struct Portal {
    host: u64,
    masters: Rc<RefCell<Agreed>>,
    /// Whether it reaches them.
    reaches: Rc<Cell<bool>>,
    known: Rc<RefCell<Agreed>>,
}

impl Admission for Portal {
    fn token(&self, changes: bool) -> Option<WriterToken> {
        let known = self.known.borrow();
        let may = !changes || !known.out.contains(&self.host);
        may.then_some(WriterToken(known.token))
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = bool>>> {
        let (masters, known, reaches) = (self.masters.clone(), self.known.clone(), self.reaches.clone());
        Box::pin(async move {
            time::sleep(Duration::from_millis(1)).await;
            if !reaches.get() {
                return false;
            }
            let agreed = masters.borrow().clone();
            time::sleep(Duration::from_millis(1)).await;
            let mut known = known.borrow_mut();
            if agreed.token >= known.token {
                *known = agreed;
            }
            true
        })
    }
}

async fn write(way: &VolumeChannel, lba: Lba, byte: u8) -> Result<(), IoError> {
    let claimed = way
        .leave(&[(lba, BlockCount(1))])
        .expect("a portal asks for leave")
        .await?;
    let mut buffer = BufferPool::current().try_allocate(BLOCK).unwrap();
    buffer.fill(byte);
    let (request, ended) = bdev::request(
        Operation::Write { fua: false },
        lba,
        BlockCount(1),
        Data::From(buffer.freeze()),
    );
    claimed.submit(request);
    ended.await.status
}

/// Whether a portal reaches the masters, and what it knows.
type Reach = (Rc<Cell<bool>>, Rc<RefCell<Agreed>>);

struct World {
    nodes: Rc<Nodes>,
    device: Rc<VolumeDevice>,
    masters: Rc<RefCell<Agreed>>,
    portals: Vec<Reach>,
    told: RefCell<Told>,
}

impl World {
    fn connect(&self, host: u64, portal: usize) -> Rc<VolumeChannel> {
        let (reaches, known) = self.portals[portal].clone();
        let admission = Portal {
            host,
            masters: self.masters.clone(),
            reaches,
            known,
        };
        let claims = Claims::new(HostId::through_portals(1 + host), Rc::new(admission));
        Rc::new(self.device.open_for_host(links(&self.nodes), claims))
    }

    async fn enforce(&self, token: u64, limit: Duration) -> Result<(), IoError> {
        let links = links(&self.nodes);
        enforce(&self.device, links, WriterToken(token), limit, &self.told).await
    }

    /// Changes who is kept out; returns when that is in force.
    async fn agree(&self, out: BTreeSet<u64>) {
        let token = {
            let mut agreed = self.masters.borrow_mut();
            agreed.token += 1;
            agreed.out = out;
            agreed.token
        };
        loop {
            match self.enforce(token, LIMIT).await {
                Ok(()) => return,
                Err(error) => assert_eq!(error, IoError::Unavailable),
            }
        }
    }

    async fn contents(&self, host: u64) -> Vec<u8> {
        let reader = self.connect(99, 0);
        let mut bytes = Vec::new();
        for block in 0..HOST_BLOCKS {
            let buffer = BufferPool::current().try_allocate(BLOCK).unwrap();
            let (status, buffer) = reader.read(Lba(host * HOST_BLOCKS + block), buffer).await;
            assert_eq!(status, Ok(()));
            bytes.push(buffer[0]);
        }
        bytes
    }
}

/// How often a host was kept out, or what went wrong.
fn run(seed: u64, tokens_ignored: bool) -> Result<u64, String> {
    Simulation::new(seed).run(async move {
        let nodes = Nodes::new();
        nodes.tokens_ignored.set(tokens_ignored);
        let mut random = Random::from_seed(seed);
        *nodes.chaos.borrow_mut() = Some(Chaos {
            random: random.fork(),
            one_in: 12,
        });
        let (device, _channel) = nodes.open(ClientOptions::default());
        let portal = || (Rc::new(Cell::new(true)), Rc::new(RefCell::new(Agreed::default())));
        let world = Rc::new(World {
            nodes,
            device: Rc::new(device),
            masters: Rc::default(),
            portals: vec![portal(), portal()],
            told: RefCell::default(),
        });
        let (stop, refused) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let mut hosts = Vec::new();
        for host in 0..HOSTS {
            for portal in 0..2 {
                let (world, stop, refused) = (world.clone(), stop.clone(), refused.clone());
                let mut random = random.fork();
                hosts.push(spawn(async move {
                    let way = world.connect(host, portal);
                    let mut byte = 0u8;
                    while !stop.get() {
                        let lba = Lba(host * HOST_BLOCKS + random.below(HOST_BLOCKS));
                        byte = byte.wrapping_add(1);
                        match write(&way, lba, byte).await {
                            Ok(()) | Err(IoError::Unavailable) => {}
                            Err(IoError::Fenced) => refused.set(refused.get() + 1),
                            Err(error) => panic!("a write ended with {error}"),
                        }
                        time::sleep(Duration::from_micros(random.between(1, 3_000))).await;
                    }
                }));
            }
        }
        let mut outcome = Ok(());
        for _ in 0..6 {
            time::sleep(Duration::from_millis(random.between(1, 40))).await;
            // One portal does not hear of it for a while.
            let cut = random.below(2) as usize;
            world.portals[cut].0.set(random.chance(1, 2));
            let out = random.below(HOSTS);
            world.agree([out].into()).await;
            world.portals[0].0.set(true);
            let before = world.contents(out).await;
            time::sleep(Duration::from_millis(random.between(1, 80))).await;
            if world.contents(out).await != before {
                outcome = Err(format!("host {out} wrote after it was kept out"));
                break;
            }
            world.portals[cut].0.set(true);
            world.agree(BTreeSet::new()).await;
        }
        // In the end everybody may write again, by either portal.
        if outcome.is_ok() {
            *world.nodes.chaos.borrow_mut() = None;
            stop.set(true);
            for host in hosts {
                host.await.expect("hosts are not aborted");
            }
            for (host, portal) in [(0, 0), (0, 1), (2, 1), (1, 0)] {
                let way = world.connect(host, portal);
                assert_eq!(write(&way, Lba(host * HOST_BLOCKS), 7).await, Ok(()));
            }
        }
        outcome.map(|()| refused.get())
    })
}

#[test]
fn who_is_kept_out_writes_nothing_after() {
    let seeds = foundation::seeds::from_environment(40);
    let refused: u64 = seeds
        .iter()
        .map(|&seed| run(seed, false).unwrap_or_else(|why| panic!("seed {seed}: {why}")))
        .sum();
    assert!(
        refused > 200 || seeds.len() < 40,
        "only {refused} writes were refused: the test proves too little"
    );
}

#[test]
fn it_does_if_copies_do_not_look_at_tokens() {
    let found = (0..40).find_map(|seed| run(seed, true).err());
    assert!(
        found.is_some_and(|why| why.contains("wrote after")),
        "the bug was not found"
    );
}

#[test]
fn a_portal_that_cannot_ask_refuses_nothing_for_good() {
    Simulation::new(3).run(async {
        let nodes = Nodes::new();
        let (device, _channel) = nodes.open(ClientOptions::default());
        let knows = (
            Rc::new(Cell::new(false)),
            Rc::new(RefCell::new(Agreed::default())),
        );
        let world = World {
            nodes,
            device: Rc::new(device),
            masters: Rc::default(),
            portals: vec![knows],
            told: RefCell::default(),
        };
        let way = world.connect(1, 0);
        let read = async || {
            let buffer = BufferPool::current().try_allocate(BLOCK).unwrap();
            way.read(Lba(HOST_BLOCKS), buffer).await.0
        };
        assert_eq!(write(&way, Lba(HOST_BLOCKS), 1).await, Ok(()));
        world.agree([2].into()).await;
        // The copies know a newer token; what it says the portal cannot learn.
        assert_eq!(write(&way, Lba(HOST_BLOCKS), 1).await, Err(IoError::Unavailable));
        assert_eq!(read().await, Err(IoError::Unavailable));
        world.portals[0].0.set(true);
        assert_eq!(read().await, Ok(()));
        assert_eq!(write(&way, Lba(HOST_BLOCKS), 1).await, Ok(()));
        world.agree([1].into()).await;
        assert_eq!(write(&way, Lba(HOST_BLOCKS), 1).await, Err(IoError::Fenced));
        assert_eq!(read().await, Ok(()));
        // A token that is older than the one in force has nothing left to do.
        let older = world.enforce(1, LIMIT).await;
        assert_eq!(older, Ok(()));
    });
}

#[test]
fn a_token_is_put_in_force_in_several_attempts_if_need_be() {
    Simulation::new(4).run(async {
        let nodes = Nodes::new();
        let (device, _channel) = nodes.open(ClientOptions::default());
        let world = World {
            nodes: nodes.clone(),
            device: Rc::new(device),
            masters: Rc::default(),
            portals: Vec::new(),
            told: RefCell::default(),
        };
        let asked = || nodes.asked(NativeOperation::Claim);
        // One chunk's write node says nothing: the others know the token all the same.
        *nodes.silent.borrow_mut() = vec![nodes.masters.config(0).write_node];
        let limit = Duration::from_millis(80);
        assert_eq!(world.enforce(5, limit).await, Err(IoError::Unavailable));
        assert_eq!(asked(), 4);
        nodes.silent.borrow_mut().clear();
        assert_eq!(world.enforce(5, limit).await, Ok(()));
        assert_eq!(asked(), 5, "only the chunk that was not reached is asked again");
        assert_eq!(world.enforce(5, limit).await, Ok(()));
        assert_eq!(asked(), 5);
        // Another token is none that they know.
        assert_eq!(world.enforce(6, limit).await, Ok(()));
        assert_eq!(asked(), 9);
    });
}
