//! Hosts, virtual time, and the order of events.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use foundation::{Instant, Random};

use super::disk::{self, Disk};
use super::network::Network;
use crate::buffer::BufferPool;
use crate::context::{self, Backend, Context};
use crate::executor::{Executor, Group};
use crate::time::Timers;

/// A simulated host, by its index in the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(pub(super) usize);

impl Host {
    /// The host's address: 10.0.x.y by its index.
    pub fn address(self) -> IpAddr {
        let number = u16::try_from(self.0 + 1).expect("a simulation has fewer than 65,535 hosts");
        let [high, low] = number.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(10, 0, high, low))
    }
}

struct HostState {
    name: String,
    /// The running process' tasks; a new number after each stop.
    group: Group,
    powered: bool,
    clock_offset: Duration,
    clock_rate_ppm: i64,
}

type Event = Box<dyn FnOnce(&Rc<World>)>;

pub(crate) struct World {
    pub(super) random: RefCell<Random>,
    now_ns: Cell<u64>,
    trace: Cell<u64>,
    sequence: Cell<u64>,
    events: RefCell<BTreeMap<(u64, u64), Event>>,
    hosts: RefCell<Vec<HostState>>,
    host_of_group: RefCell<BTreeMap<Group, Host>>,
    next_group: Cell<Group>,
    pub(super) network: Network,
    pub(super) disks: RefCell<BTreeMap<(Host, PathBuf), Rc<Disk>>>,
    /// Hosts that lose their power together.
    feeds: RefCell<Vec<Vec<Host>>>,
    context: RefCell<Weak<Context>>,
}

impl World {
    pub(crate) fn host_time(&self, group: Group) -> Instant {
        let now = self.now_ns.get();
        match self.host_of(group) {
            None => Instant::from_nanos(now),
            Some(host) => {
                let hosts = self.hosts.borrow();
                let state = &hosts[host.0];
                Instant::from_nanos(scale(now, state.clock_rate_ppm)) + state.clock_offset
            }
        }
    }

    /// When the world's clock will show what the host's clock calls `at`.
    pub(crate) fn world_time(&self, group: Group, at: Instant) -> Instant {
        match self.host_of(group) {
            None => at,
            Some(host) => {
                let hosts = self.hosts.borrow();
                let state = &hosts[host.0];
                let local = at.since(Instant::from_nanos(0) + state.clock_offset);
                let local_ns = u64::try_from(local.as_nanos()).unwrap_or(u64::MAX);
                Instant::from_nanos(unscale(local_ns, state.clock_rate_ppm))
            }
        }
    }

    pub(super) fn host_of(&self, group: Group) -> Option<Host> {
        self.host_of_group.borrow().get(&group).copied()
    }

    /// The host whose task is running, if its power is on.
    pub(super) fn current_host(&self) -> std::io::Result<Host> {
        let group = context::with(|context| context.executor.current_group());
        let host = self.host_of(group).ok_or_else(|| {
            std::io::Error::other("only a simulated host has files and sockets: use Simulation::start")
        })?;
        if self.is_powered(host) {
            Ok(host)
        } else {
            Err(std::io::ErrorKind::NotConnected.into())
        }
    }

    pub(super) fn is_powered(&self, host: Host) -> bool {
        self.hosts.borrow()[host.0].powered
    }

    pub(super) fn host_count(&self) -> usize {
        self.hosts.borrow().len()
    }

    pub(super) fn draw(&self, low: Duration, high: Duration) -> Duration {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).expect("delays are short");
        Duration::from_nanos(self.random.borrow_mut().between(ns(low), ns(high)))
    }

    /// Calls `event` after `delay` of world time.
    pub(super) fn after(&self, delay: Duration, event: impl FnOnce(&Rc<World>) + 'static) {
        let at = self.now_ns.get() + u64::try_from(delay.as_nanos()).expect("delays are short");
        self.at(at, event);
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(super) fn at(&self, at_ns: u64, event: impl FnOnce(&Rc<World>) + 'static) {
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        self.events
            .borrow_mut()
            .insert((at_ns.max(self.now_ns.get()), sequence), Box::new(event));
    }

    pub(super) fn note(&self, what: u64) {
        let mixed = (self.trace.get() ^ what).wrapping_mul(0x0000_0100_0000_01b3);
        self.trace.set(mixed.rotate_left(29) ^ self.now_ns.get());
    }

    fn context(&self) -> Rc<Context> {
        self.context
            .borrow()
            .upgrade()
            .expect("the world's context lives as long as its simulation")
    }

    /// Cuts the power of a host, and of all that share it.
    pub(super) fn cut_power(self: &Rc<Self>, host: Host) {
        let feeds = self.feeds.borrow();
        let feed = feeds.iter().find(|feed| feed.contains(&host));
        let feed = feed.cloned().unwrap_or_else(|| vec![host]);
        drop(feeds);
        feed.into_iter().for_each(|host| self.cut_power_of(host));
    }

    /// Cuts a host's power: at once for its disks and its network, with the next event for its tasks.
    fn cut_power_of(self: &Rc<Self>, host: Host) {
        if !std::mem::replace(&mut self.hosts.borrow_mut()[host.0].powered, false) {
            return;
        }
        self.note(0x0ff0 + host.0 as u64);
        for disk in self.disks_of(host) {
            disk.lose_power(&mut self.random.borrow_mut());
        }
        self.after(Duration::ZERO, move |world| world.end_process(host));
    }

    fn disks_of(&self, host: Host) -> Vec<Rc<Disk>> {
        let disks = self.disks.borrow();
        let own = disks.iter().filter(|((owner, _), _)| *owner == host);
        own.map(|(_, disk)| disk.clone()).collect()
    }

    fn end_process(&self, host: Host) {
        let group = self.hosts.borrow()[host.0].group;
        self.context().executor.kill_group(Some(group));
        self.new_group(host);
    }

    fn new_group(&self, host: Host) {
        let group = self.next_group.get();
        self.next_group.set(group + 1);
        self.hosts.borrow_mut()[host.0].group = group;
        self.host_of_group.borrow_mut().insert(group, host);
    }

    /// Runs one task or, if none is ready, lets time pass to the next event. False if nothing is left.
    fn step(self: &Rc<Self>, context: &Context, until_ns: u64) -> bool {
        context.executor.accept_remote();
        let ran = context.executor.run_chosen(|count| {
            let chosen = self.random.borrow_mut().below(count as u64);
            self.note(chosen);
            chosen as usize
        });
        if ran {
            return true;
        }
        let event_ns = self.events.borrow().first_key_value().map(|((at, _), _)| *at);
        let timer_ns = context.timers.next().map(Instant::as_nanos);
        let next_ns = match (event_ns, timer_ns) {
            (Some(event), Some(timer)) => event.min(timer),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return false,
        };
        if next_ns > until_ns {
            self.now_ns.set(until_ns.max(self.now_ns.get()));
            return false;
        }
        self.now_ns.set(next_ns.max(self.now_ns.get()));
        if event_ns == Some(next_ns) {
            let event = self.events.borrow_mut().pop_first();
            if let Some((key, event)) = event {
                self.note(key.1);
                event(self);
            }
        } else {
            context.timers.fire(Instant::from_nanos(next_ns));
        }
        true
    }
}

/// A host's clock after `ns` of world time, for a rate error in millionths.
fn scale(ns: u64, rate_ppm: i64) -> u64 {
    let scaled = i128::from(ns) * i128::from(1_000_000 + rate_ppm) / 1_000_000;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// World time at which a host's clock first shows `local_ns`.
fn unscale(local_ns: u64, rate_ppm: i64) -> u64 {
    let rate = i128::from(1_000_000 + rate_ppm);
    let exact = (i128::from(local_ns) * 1_000_000 + rate - 1) / rate;
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// A simulated world. Clones are handles on the same one.
#[derive(Clone)]
pub struct Simulation {
    owner: Rc<Owner>,
}

struct Owner {
    context: Rc<Context>,
    world: Rc<World>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _guard = context::enter(self.context.clone());
        self.context.executor.kill_group(None);
        let events = std::mem::take(&mut *self.world.events.borrow_mut());
        drop(events);
    }
}

impl Simulation {
    /// An empty world whose every accident follows from `seed`.
    pub fn new(seed: u64) -> Self {
        let world = Rc::new(World {
            random: RefCell::new(Random::from_seed(seed)),
            now_ns: Cell::new(1_000_000_000),
            trace: Cell::new(seed),
            sequence: Cell::new(0),
            events: RefCell::default(),
            hosts: RefCell::default(),
            host_of_group: RefCell::default(),
            next_group: Cell::new(1),
            network: Network::default(),
            disks: RefCell::default(),
            feeds: RefCell::default(),
            context: RefCell::new(Weak::new()),
        });
        let context = Rc::new(Context {
            executor: Executor::new(0, || {}),
            timers: Timers::default(),
            pool: BufferPool::new(256 << 20),
            backend: Backend::Simulated(world.clone()),
            turn: std::cell::Cell::new(None),
        });
        *world.context.borrow_mut() = Rc::downgrade(&context);
        Self {
            owner: Rc::new(Owner { context, world }),
        }
    }

    /// Adds a host. Its clock starts at a random offset and keeps world time's rate.
    pub fn add_host(&self, name: &str) -> Host {
        let world = &self.owner.world;
        let host = Host(world.hosts.borrow().len());
        let clock_offset = world.draw(Duration::ZERO, Duration::from_secs(1_000_000));
        let state = HostState {
            name: name.to_owned(),
            group: 0,
            powered: true,
            clock_offset,
            clock_rate_ppm: 0,
        };
        world.hosts.borrow_mut().push(state);
        world.new_group(host);
        host
    }

    /// The name given to [`Simulation::add_host`].
    pub fn name(&self, host: Host) -> String {
        self.owner.world.hosts.borrow()[host.0].name.clone()
    }

    /// Makes the host's clock run faster (or slower) by so many millionths. Set it before time passes.
    pub fn set_clock_rate_ppm(&self, host: Host, rate_ppm: i64) {
        assert!(rate_ppm.abs() < 500_000, "a clock cannot be wrong by half");
        self.owner.world.hosts.borrow_mut()[host.0].clock_rate_ppm = rate_ppm;
    }

    /// Starts a task of the host's process; powers the host on if it was off.
    pub fn start<F: Future<Output = ()> + 'static>(&self, host: Host, make: impl FnOnce() -> F) {
        let _guard = context::enter(self.owner.context.clone());
        let group = {
            let mut hosts = self.owner.world.hosts.borrow_mut();
            hosts[host.0].powered = true;
            hosts[host.0].group
        };
        let executor = &self.owner.context.executor;
        executor.in_group(group, || drop(crate::spawn(make())));
    }

    /// Ends the host's process as `kill -9` does. The kernel lives on: files keep what was written, and of what was being written some,
    /// connections are reset.
    pub fn stop(&self, host: Host) {
        let _guard = context::enter(self.owner.context.clone());
        let world = &self.owner.world;
        world.note(0x5709 + host.0 as u64);
        for disk in world.disks_of(host) {
            disk.end_process(&mut world.random.borrow_mut());
        }
        world.end_process(host);
    }

    /// Cuts the host's power. Writes that no completed sync covers are kept, lost or torn at random.
    pub fn power_off(&self, host: Host) {
        let _guard = context::enter(self.owner.context.clone());
        self.owner.world.cut_power_of(host);
    }

    /// From now on these hosts lose their power together where one of them loses it by
    /// a cut at an operation of its disk (`DiskHandle::cut_power_at`).
    pub fn share_power(&self, hosts: &[Host]) {
        self.owner.world.feeds.borrow_mut().push(hosts.to_vec());
    }

    /// Stops polling the host's tasks (SIGSTOP) until [`Simulation::resume`].
    pub fn pause(&self, host: Host) {
        let group = self.owner.world.hosts.borrow()[host.0].group;
        self.owner.context.executor.pause(group);
    }

    /// Lets a paused host go on.
    pub fn resume(&self, host: Host) {
        let group = self.owner.world.hosts.borrow()[host.0].group;
        self.owner.context.executor.resume(group);
    }

    /// Whether the host has power.
    pub fn is_powered(&self, host: Host) -> bool {
        self.owner.world.is_powered(host)
    }

    /// Runs the world until `future`, which belongs to no host, has ended.
    ///
    /// # Panics
    /// If nothing is left to happen before that: something waits for ever.
    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let _guard = context::enter(self.owner.context.clone());
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        drop(crate::spawn(async move {
            let value = future.await;
            *place.borrow_mut() = Some(value);
        }));
        loop {
            if let Some(value) = result.borrow_mut().take() {
                return value;
            }
            let moved = self.owner.world.step(&self.owner.context, u64::MAX);
            let done = result.borrow().is_some();
            assert!(
                moved || done,
                "the simulation is stuck: nothing is left to happen, and the future has not ended"
            );
        }
    }

    /// Runs the world for so much of its time.
    pub fn run_for(&self, duration: Duration) {
        let _guard = context::enter(self.owner.context.clone());
        let until = Instant::from_nanos(self.owner.world.now_ns.get()) + duration;
        while self.owner.world.step(&self.owner.context, until.as_nanos()) {}
        self.owner.world.now_ns.set(until.as_nanos());
    }

    /// World time passed since the beginning.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.owner.world.now_ns.get() - 1_000_000_000)
    }

    /// A hash of everything that has happened. Equal seeds and programs give equal traces.
    pub fn trace(&self) -> u64 {
        self.owner.world.trace.get()
    }

    /// Delay of each network message, drawn anew between these bounds.
    pub fn set_latency(&self, low: Duration, high: Duration) {
        self.owner.world.network.set_latency(low, high);
    }

    /// Holds back everything from one host to another, in that direction only, until
    /// [`Simulation::heal`].
    pub fn partition(&self, from: Host, to: Host) {
        self.owner.world.note(0xca7);
        self.owner.world.network.partition(from, to);
    }

    /// Ends a partition; what was held back arrives now, in order.
    pub fn heal(&self, from: Host, to: Host) {
        let _guard = context::enter(self.owner.context.clone());
        self.owner.world.note(0x4ea1);
        Network::heal(&self.owner.world, from, to);
    }

    /// What is sent from now on over the connections that two hosts have, in that direction, arrives no earlier than
    /// after `duration`; what is sent over newer connections passes it (a lost packet's retransmissions back off).
    pub fn stall(&self, from: Host, to: Host, duration: Duration) {
        self.owner.world.note(0x57a11);
        self.owner.world.stall(from, to, duration);
    }

    /// The faults and contents of a host's file; made empty if the host has not opened it yet.
    pub fn disk(&self, host: Host, path: &Path) -> disk::DiskHandle {
        disk::DiskHandle::new(self.owner.world.disk(host, path))
    }
}
