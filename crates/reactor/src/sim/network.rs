//! Simulated TCP: ordered byte streams with delay, arbitrary segment boundaries, partitions, resets.
//!
//! A partition holds bytes back (TCP retransmits) rather than dropping them; a host that lost power answers
//! nothing, and resets old connections once it runs again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::world::{Host, World};
use crate::sync::{OneshotSender, oneshot};

/// Bytes in flight in one direction before a sender waits.
const WINDOW_BYTES: usize = 1 << 20;

/// Both directions, and the other side's address for a listener, our own for a caller.
type Accepted = (SimulatedReceiver, SimulatedSender, SocketAddr);

#[derive(Default)]
struct Listening {
    queue: VecDeque<Accepted>,
    waker: Option<Waker>,
}

/// The network's state.
pub(crate) struct Network {
    latency: Cell<(Duration, Duration)>,
    partitions: RefCell<BTreeSet<(Host, Host)>>,
    listeners: RefCell<BTreeMap<SocketAddr, Rc<RefCell<Listening>>>>,
    next_port: Cell<u16>,
    /// Deliveries that wait for a partition to end, in order.
    held: RefCell<Vec<Held>>,
    /// Every direction of every connection that is still in use.
    pipes: RefCell<Vec<Weak<RefCell<Pipe>>>>,
}

struct Held {
    from: Host,
    to: Host,
    deliver: Deliver,
}

type Deliver = Box<dyn FnOnce(&Rc<World>)>;

impl Default for Network {
    fn default() -> Self {
        Self {
            latency: Cell::new((Duration::from_micros(20), Duration::from_micros(500))),
            partitions: RefCell::default(),
            listeners: RefCell::default(),
            next_port: Cell::new(40_000),
            held: RefCell::default(),
            pipes: RefCell::default(),
        }
    }
}

impl Network {
    pub(super) fn set_latency(&self, low: Duration, high: Duration) {
        self.latency.set((low, high));
    }

    pub(super) fn partition(&self, from: Host, to: Host) {
        self.partitions.borrow_mut().insert((from, to));
    }

    pub(super) fn heal(world: &Rc<World>, from: Host, to: Host) {
        world.network.partitions.borrow_mut().remove(&(from, to));
        let held = std::mem::take(&mut *world.network.held.borrow_mut());
        for message in held {
            if (message.from, message.to) == (from, to) {
                (message.deliver)(world);
            } else {
                world.network.held.borrow_mut().push(message);
            }
        }
    }
}

impl World {
    pub(super) fn stall(&self, from: Host, to: Host, duration: Duration) {
        let until_ns = self.now_ns() + duration.as_nanos() as u64;
        let mut pipes = self.network.pipes.borrow_mut();
        pipes.retain(|pipe| pipe.strong_count() > 0);
        for pipe in pipes.iter().filter_map(Weak::upgrade) {
            let mut pipe = pipe.borrow_mut();
            if (pipe.from, pipe.to) == (from, to) {
                pipe.last_delivery_ns = pipe.last_delivery_ns.max(until_ns);
            }
        }
    }
}

/// One direction of a connection.
struct Pipe {
    from: Host,
    to: Host,
    arrived: VecDeque<Vec<u8>>,
    in_flight_bytes: usize,
    last_delivery_ns: u64,
    ended: bool,
    reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    reader_gone: bool,
}

type SharedPipe = Rc<RefCell<Pipe>>;

impl Pipe {
    fn new(from: Host, to: Host) -> SharedPipe {
        Rc::new(RefCell::new(Pipe {
            from,
            to,
            arrived: VecDeque::new(),
            in_flight_bytes: 0,
            last_delivery_ns: 0,
            ended: false,
            reset: false,
            reader: None,
            writer: None,
            reader_gone: false,
        }))
    }
}

enum Message {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// Sends in order: each message arrives no earlier than the one before.
fn transmit(world: &Rc<World>, pipe: &SharedPipe, message: Message) {
    let at = {
        let (low, high) = world.network.latency.get();
        let delay = world.draw(low, high);
        let mut state = pipe.borrow_mut();
        let at = (world.now_ns() + delay.as_nanos() as u64).max(state.last_delivery_ns);
        state.last_delivery_ns = at;
        at
    };
    let pipe = pipe.clone();
    world.at(at, move |world| arrive(world, pipe, message));
}

fn arrive(world: &Rc<World>, pipe: SharedPipe, message: Message) {
    let (from, to) = {
        let state = pipe.borrow();
        (state.from, state.to)
    };
    let cut = world.network.partitions.borrow().contains(&(from, to));
    let waiting = world
        .network
        .held
        .borrow()
        .iter()
        .any(|held| (held.from, held.to) == (from, to));
    if cut || waiting {
        let deliver = Box::new(move |world: &Rc<World>| deliver(world, &pipe, message));
        world.network.held.borrow_mut().push(Held { from, to, deliver });
        return;
    }
    deliver(world, &pipe, message);
}

fn deliver(world: &Rc<World>, pipe: &SharedPipe, message: Message) {
    let mut state = pipe.borrow_mut();
    if !world.is_powered(state.to) {
        return;
    }
    match message {
        Message::Bytes(bytes) => {
            state.in_flight_bytes = state.in_flight_bytes.saturating_sub(bytes.len());
            // Segment boundaries mean nothing: sometimes the bytes arrive in two pieces.
            let mut random = world.random.borrow_mut();
            if bytes.len() > 1 && random.chance(1, 4) {
                let cut = random.between(1, bytes.len() as u64 - 1) as usize;
                state.arrived.push_back(bytes[..cut].to_vec());
                state.arrived.push_back(bytes[cut..].to_vec());
            } else {
                state.arrived.push_back(bytes);
            }
        }
        Message::End => state.ended = true,
        Message::Reset => state.reset = true,
    }
    let wakers = [state.reader.take(), state.writer.take()];
    drop(state);
    for waker in wakers.into_iter().flatten() {
        waker.wake();
    }
}

impl World {
    pub(crate) fn listen(self: &Rc<Self>, address: SocketAddr) -> io::Result<SimulatedListener> {
        let host = self.current_host()?;
        let port = if address.port() == 0 {
            self.free_port()
        } else {
            address.port()
        };
        let address = SocketAddr::new(host.address(), port);
        let mut listeners = self.network.listeners.borrow_mut();
        if listeners.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let state = Rc::<RefCell<Listening>>::default();
        listeners.insert(address, state.clone());
        Ok(SimulatedListener {
            world: self.clone(),
            address,
            state,
        })
    }

    fn free_port(&self) -> u16 {
        let port = self.network.next_port.get();
        self.network.next_port.set(port.checked_add(1).unwrap_or(40_000));
        port
    }

    pub(crate) async fn connect(self: &Rc<Self>, address: SocketAddr) -> io::Result<Accepted> {
        let from = self.current_host()?;
        let local = SocketAddr::new(from.address(), self.free_port());
        let (done, answer) = oneshot();
        let (low, high) = self.network.latency.get();
        self.after(self.draw(low, high), move |world| {
            world.arrive_connect(from, local, address, done)
        });
        let (receiver, sender) = answer
            .await
            .unwrap_or_else(|| Err(io::ErrorKind::ConnectionRefused.into()))?;
        Ok((receiver, sender, local))
    }

    fn arrive_connect(
        self: &Rc<Self>,
        from: Host,
        local: SocketAddr,
        address: SocketAddr,
        done: OneshotSender<io::Result<(SimulatedReceiver, SimulatedSender)>>,
    ) {
        let Some(to) = self.host_at(address) else { return };
        let cut = self.network.partitions.borrow();
        if cut.contains(&(from, to)) || cut.contains(&(to, from)) {
            drop(cut);
            let deliver = Box::new(move |world: &Rc<World>| world.arrive_connect(from, local, address, done));
            let direction = if self.network.partitions.borrow().contains(&(from, to)) {
                (from, to)
            } else {
                (to, from)
            };
            let held = Held {
                from: direction.0,
                to: direction.1,
                deliver,
            };
            self.network.held.borrow_mut().push(held);
            return;
        }
        drop(cut);
        if !self.is_powered(to) {
            // Nobody answers; the caller's own time limit ends the wait when the host comes back or not.
            let keep = RefCell::new(Some(done));
            self.after(Duration::from_secs(20), move |_| drop(keep.take()));
            return;
        }
        let listener = self.network.listeners.borrow().get(&address).cloned();
        let Some(listener) = listener else { return };
        let (there, back) = (Pipe::new(from, to), Pipe::new(to, from));
        let mut pipes = self.network.pipes.borrow_mut();
        pipes.retain(|pipe| pipe.strong_count() > 0);
        pipes.extend([Rc::downgrade(&there), Rc::downgrade(&back)]);
        drop(pipes);
        let accepted = halves(self, &there, &back);
        listener
            .borrow_mut()
            .queue
            .push_back((accepted.0, accepted.1, local));
        let waker = listener.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
        done.send(Ok(halves(self, &back, &there)));
    }

    fn host_at(&self, address: SocketAddr) -> Option<Host> {
        (0..self.host_count())
            .map(Host)
            .find(|host| host.address() == address.ip())
    }
}

/// Both halves of one side: it reads from `incoming` and writes to `outgoing`.
fn halves(
    world: &Rc<World>,
    incoming: &SharedPipe,
    outgoing: &SharedPipe,
) -> (SimulatedReceiver, SimulatedSender) {
    let side = Rc::new(Side {
        world: world.clone(),
        incoming: incoming.clone(),
        outgoing: outgoing.clone(),
    });
    (SimulatedReceiver(side.clone()), SimulatedSender(side))
}

/// One side of a connection; dropped with its last half.
struct Side {
    world: Rc<World>,
    incoming: SharedPipe,
    outgoing: SharedPipe,
}

impl Drop for Side {
    fn drop(&mut self) {
        let unread = {
            let mut incoming = self.incoming.borrow_mut();
            incoming.reader_gone = true;
            !incoming.arrived.is_empty()
        };
        let from = self.outgoing.borrow().from;
        if !self.world.is_powered(from) {
            return;
        }
        // As the kernel does: unread bytes turn an orderly end into a reset.
        transmit(
            &self.world,
            &self.outgoing,
            if unread { Message::Reset } else { Message::End },
        );
    }
}

pub(crate) struct SimulatedListener {
    world: Rc<World>,
    address: SocketAddr,
    state: Rc<RefCell<Listening>>,
}

impl SimulatedListener {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            match state.queue.pop_front() {
                Some(accepted) => Poll::Ready(Ok(accepted)),
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for SimulatedListener {
    fn drop(&mut self) {
        self.world.network.listeners.borrow_mut().remove(&self.address);
        let queue = std::mem::take(&mut self.state.borrow_mut().queue);
        drop(queue);
    }
}

pub(crate) struct SimulatedReceiver(Rc<Side>);

impl SimulatedReceiver {
    pub(crate) fn try_receive(&mut self) -> Option<Vec<u8>> {
        self.0.incoming.borrow_mut().arrived.pop_front()
    }

    pub(crate) async fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        poll_fn(|cx| {
            let mut pipe = self.0.incoming.borrow_mut();
            if pipe.reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if let Some(bytes) = pipe.arrived.pop_front() {
                return Poll::Ready(Ok(Some(bytes)));
            }
            if pipe.ended {
                return Poll::Ready(Ok(None));
            }
            pipe.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

pub(crate) struct SimulatedSender(Rc<Side>);

impl SimulatedSender {
    pub(crate) async fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let side = &self.0;
        poll_fn(|cx| {
            let broken = {
                let incoming = side.incoming.borrow();
                incoming.reset
            };
            let mut pipe = side.outgoing.borrow_mut();
            if broken || pipe.reset {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe)));
            }
            if pipe.in_flight_bytes < WINDOW_BYTES {
                return Poll::Ready(Ok(()));
            }
            pipe.writer = Some(cx.waker().clone());
            Poll::Pending
        })
        .await?;
        let (gone, from, to) = {
            let mut pipe = side.outgoing.borrow_mut();
            pipe.in_flight_bytes += bytes.len();
            (pipe.reader_gone, pipe.from, pipe.to)
        };
        if !side.world.is_powered(from) {
            return Ok(());
        }
        if gone && side.world.is_powered(to) {
            // The other kernel knows no such connection and answers with a reset.
            transmit(&side.world, &side.incoming, Message::Reset);
            return Ok(());
        }
        transmit(&side.world, &side.outgoing, Message::Bytes(bytes));
        Ok(())
    }

    pub(crate) fn shutdown(&mut self) {
        let side = &self.0;
        side.incoming.borrow_mut().ended = true;
        let reader = side.incoming.borrow_mut().reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
        transmit(&side.world, &side.outgoing, Message::End);
    }
}
