//! The listener: accepts connections, gives each to the least busy reactor, and serves it there in a task of its own.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use protocols::auth::CryptoError;
use protocols::tcp::target::Limits;
use protocols::tls::Acceptor;
use reactor::mailbox::{MailboxSender, mailbox};
use reactor::net::{DetachedStream, TcpListener, TcpOptions, TcpStream};
use reactor::{CoreHandle, JoinHandle, spawn, time};

use super::connection::Connection;
use super::controller::QueueLimits;
use super::measures::Counts;
use super::patience::{Watched, watch};
use super::placement::{LOOK, Load, Placement};
use super::subsystem::{Portal, Target};
use crate::secure::{self, Stream};

/// Connections on their way to a reactor, at most.
const HANDED_OVER_MAX: usize = 1024;

/// How a listener treats its connections.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the transport offers hosts.
    pub limits: Limits,
    /// Answer reads with the SUCCESS flag on the last data PDU instead of a response capsule. Linux and SPDK
    /// hosts take it whether or not they disabled SQ flow control; turn it off for hosts that do not.
    pub success_flag: bool,
    /// How many queues, and how long, a host is offered.
    pub queues: QueueLimits,
    /// Sockets.
    pub tcp: TcpOptions,
    /// Connections at once; more are closed as they come.
    pub connections_max: usize,
    /// Buffers that the commands of one connection may hold, in bytes; further commands wait. Bounds what a host
    /// can take from the others by not reading its answers or not sending its data.
    pub held_bytes_max: usize,
    /// A connection that is not a queue after this time is closed.
    pub connect_limit: Duration,
    /// A host that does not take a batch of answers, or sends nothing of the data it announced, for this long is
    /// disconnected; so is one that has not sent all the data of a command after twice as long.
    pub stall_limit: Duration,
    /// A host that connects again waits this long for what its lost connection left in the devices; after that it
    /// is told to try later (Controller Busy). Below the time in which hosts give up a Connect.
    pub drain_limit: Duration,
    /// Take TLS alone (`docs/decisions/0051`): hosts need a key, see [`super::Subsystem::set_psk`].
    pub secure_channel: bool,
    /// A TLS handshake that takes longer is given up.
    pub handshake_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            success_flag: true,
            queues: QueueLimits::default(),
            tcp: TcpOptions::default(),
            connections_max: 4096,
            held_bytes_max: 8 << 20,
            connect_limit: Duration::from_secs(10),
            stall_limit: Duration::from_secs(30),
            drain_limit: Duration::from_secs(3),
            secure_channel: false,
            handshake_limit: Duration::from_secs(10),
        }
    }
}

/// What the connections of one listener on one reactor share.
pub(super) struct Shared {
    pub(super) target: Arc<Target>,
    pub(super) portal: Portal,
    pub(super) counts: Arc<Counts>,
    pub(super) options: Options,
    acceptor: Option<Acceptor>,
    pub(super) watched: Watched,
}

/// Why a target does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The system does not let us.
    #[error(
        "cannot listen for NVMe/TCP on {address}: {source}; choose a free port and an address of this host"
    )]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// There is no TLS.
    #[error("cannot listen for TLS on {address}: {source}")]
    Tls {
        /// The address asked for.
        address: SocketAddr,
        /// What is wrong with it.
        source: CryptoError,
    },
}

/// A listener that serves until dropped; its connections go on until they end.
pub struct Server {
    target: Arc<Target>,
    portal: Portal,
    tasks: Vec<JoinHandle<()>>,
}

impl Server {
    /// Where hosts connect.
    pub fn address(&self) -> SocketAddr {
        self.portal.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.target.remove_portal(self.portal);
        self.target.set_secure(self.portal, false);
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }
}

/// Listens on `address` of this core's reactor for connections to `target`, which the target's reactors serve.
pub fn serve(target: Arc<Target>, address: SocketAddr, options: Options) -> Result<Server, ServeError> {
    let listener = TcpListener::bind(address, options.tcp.clone())
        .map_err(|source| ServeError::Listen { address, source })?;
    let acceptor = options.secure_channel.then(|| target.acceptor()).transpose();
    let acceptor = acceptor.map_err(|source| ServeError::Tls { address, source })?;
    let portal = Portal {
        address: listener.local_address(),
    };
    target.set_secure(portal, options.secure_channel);
    target.add_portal(portal);
    let mut reactors = target.reactors();
    if reactors.is_empty() {
        reactors.push(CoreHandle::current());
    }
    let several = reactors.len() > 1;
    let door = Rc::new(Door {
        placement: RefCell::new(Placement::new(reactors.len())),
        reactors: reactors
            .into_iter()
            .map(|handle| Reactor::new(handle, &target, portal, (&options, acceptor.as_ref())))
            .collect(),
        open: Arc::default(),
        connections_max: options.connections_max,
    });
    let beside = listener.beside().unwrap_or_else(|error| {
        tracing::warn!(address = %portal.address, %error, "no Unix socket beside this address: processes of this machine use TCP too");
        None
    });
    let listeners = [Some(listener), beside].into_iter().flatten();
    let mut tasks: Vec<_> = listeners
        .map(|listener| spawn(accept(listener, door.clone())))
        .collect();
    if several {
        tasks.push(spawn(look(door)));
    }
    Ok(Server {
        target,
        portal,
        tasks,
    })
}

impl Shared {
    /// For the calling core's reactor.
    fn start(target: Arc<Target>, portal: Portal, options: Options, acceptor: Option<Acceptor>) -> Rc<Self> {
        let shared = Rc::new(Self {
            counts: target.counts_of(CoreHandle::current().index()),
            target,
            portal,
            options,
            acceptor,
            watched: Watched::default(),
        });
        drop(spawn(watch(Rc::downgrade(&shared))));
        shared
    }
}

/// Serves a connection in a task of its own.
fn start(stream: TcpStream, seat: Seat, shared: Rc<Shared>) {
    shared.counts.accepted();
    drop(spawn(async move {
        let _seat = seat;
        if let Some(stream) = secured(stream, &shared).await {
            Connection::run(stream, shared.clone()).await;
        }
        shared.counts.ended();
    }));
}

/// The connection as it is, or after its handshake; `None` if that failed.
async fn secured(stream: TcpStream, shared: &Shared) -> Option<Stream> {
    let Some(acceptor) = &shared.acceptor else {
        return Some(stream.into());
    };
    let peer = stream.peer_address();
    match secure::accept(stream, acceptor, shared.options.handshake_limit).await {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::warn!(%peer, %error, "no TLS connection");
            None
        }
    }
}

/// One of the connections that a listener may have, until dropped.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(open: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        // Who accepts is alone in adding.
        if open.load(Ordering::Relaxed) >= limit {
            return None;
        }
        open.fetch_add(1, Ordering::Relaxed);
        Some(Self(open.clone()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A reactor that serves connections of a listener.
struct Reactor {
    handle: CoreHandle,
    counts: Arc<Counts>,
    way: Way,
}

enum Way {
    Here(Rc<Shared>),
    There(MailboxSender<(DetachedStream, Seat)>),
}

impl Reactor {
    fn new(
        handle: CoreHandle,
        target: &Arc<Target>,
        portal: Portal,
        (options, acceptor): (&Options, Option<&Acceptor>),
    ) -> Self {
        let counts = target.counts_of(handle.index());
        let (target, options, acceptor) = (target.clone(), options.clone(), acceptor.cloned());
        let way = if handle.is_current() {
            Way::Here(Shared::start(target, portal, options, acceptor))
        } else {
            let (sender, mut given) = mailbox(HANDED_OVER_MAX);
            handle.spawn(move || async move {
                let shared = Shared::start(target, portal, options, acceptor);
                while let Some((stream, seat)) = given.recv().await {
                    start(DetachedStream::attach(stream), seat, shared.clone());
                }
            });
            Way::There(sender)
        };
        Self { handle, counts, way }
    }

    fn load(&self) -> Load {
        Load {
            busy: self.handle.usage().busy,
            connections: self.counts.read().current_connections,
        }
    }

    fn give(&self, stream: TcpStream, seat: Seat) {
        let peer = stream.peer_address();
        match &self.way {
            Way::Here(shared) => start(stream, seat, shared.clone()),
            Way::There(sender) => {
                let given = stream
                    .detach()
                    .is_ok_and(|stream| sender.try_send((stream, seat)).is_ok());
                if !given {
                    tracing::warn!(%peer, reactor = self.handle.index(), "a connection could not be handed to its reactor");
                }
            }
        }
    }
}

/// Where the connections of a listener come in.
struct Door {
    reactors: Vec<Reactor>,
    placement: RefCell<Placement>,
    open: Arc<AtomicUsize>,
    connections_max: usize,
}

impl Door {
    fn loads(&self) -> Vec<Load> {
        self.reactors.iter().map(Reactor::load).collect()
    }

    fn enter(&self, stream: TcpStream) {
        let Some(seat) = Seat::take(&self.open, self.connections_max) else {
            tracing::warn!(peer = %stream.peer_address(), limit = self.connections_max, "too many connections");
            return;
        };
        let chosen = self.placement.borrow_mut().choose(&self.loads());
        self.reactors[chosen].give(stream, seat);
    }
}

/// Looks at the reactors' load, where there is more than one.
async fn look(door: Rc<Door>) {
    let mut last = time::now();
    loop {
        time::sleep(LOOK).await;
        let now = time::now();
        door.placement.borrow_mut().look(&door.loads(), now - last);
        last = now;
    }
}

async fn accept(listener: TcpListener, door: Rc<Door>) {
    loop {
        match listener.accept().await {
            Ok(stream) => door.enter(stream),
            Err(error) => {
                // Out of descriptors, most likely: others may close some meanwhile.
                tracing::error!(%error, "cannot accept a connection");
                time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
