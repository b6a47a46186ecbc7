//! The listener: accepts connections and serves each in a task of its own.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocols::tcp::target::Limits;
use reactor::net::{TcpListener, TcpOptions};
use reactor::{CoreHandle, JoinHandle, spawn, time};

use super::connection::Connection;
use super::controller::QueueLimits;
use super::measures::Counts;
use super::patience::{Watched, watch};
use super::subsystem::{Portal, Target};

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
    /// A host that takes nothing of a batch of answers, or sends nothing of the data it announced, for this long
    /// is disconnected.
    pub stall_limit: Duration,
    /// A host that connects again waits this long for what its lost connection left in the devices; after that it
    /// is told to try later (Controller Busy). Below the time in which hosts give up a Connect.
    pub drain_limit: Duration,
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
        }
    }
}

/// What the connections of one listener share.
pub(super) struct Shared {
    pub(super) target: Arc<Target>,
    pub(super) portal: Portal,
    pub(super) counts: Arc<Counts>,
    pub(super) options: Options,
    pub(super) watched: Watched,
    connections: Cell<usize>,
}

/// Why a target does not listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for NVMe/TCP on {address}: {source}; choose a free port and an address of this host")]
pub struct ServeError {
    /// The address asked for.
    pub address: SocketAddr,
    /// The system's answer.
    pub source: std::io::Error,
}

/// A listener that serves until dropped; its connections go on until they end.
pub struct Server {
    target: Arc<Target>,
    portal: Portal,
    accepting: JoinHandle<()>,
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
        self.accepting.abort();
    }
}

/// Listens on `address` of this core's reactor for connections to `target`.
pub fn serve(target: Arc<Target>, address: SocketAddr, options: Options) -> Result<Server, ServeError> {
    let listener =
        TcpListener::bind(address, options.tcp.clone()).map_err(|source| ServeError { address, source })?;
    let portal = Portal {
        address: listener.local_address(),
    };
    target.add_portal(portal);
    let shared = Rc::new(Shared {
        target: target.clone(),
        portal,
        counts: target.counts_of(CoreHandle::current().index()),
        options,
        watched: Watched::default(),
        connections: Cell::new(0),
    });
    drop(spawn(watch(Rc::downgrade(&shared))));
    let accepting = spawn(accept(listener, shared));
    Ok(Server {
        target,
        portal,
        accepting,
    })
}

async fn accept(listener: TcpListener, shared: Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok(stream) if shared.connections.get() >= shared.options.connections_max => {
                tracing::warn!(peer = %stream.peer_address(), limit = shared.options.connections_max, "too many connections");
            }
            Ok(stream) => {
                shared.connections.set(shared.connections.get() + 1);
                shared.counts.accepted();
                let shared = shared.clone();
                drop(spawn(async move {
                    Connection::run(stream, shared.clone()).await;
                    shared.connections.set(shared.connections.get() - 1);
                    shared.counts.ended();
                }));
            }
            Err(error) => {
                // Out of descriptors, most likely: others may close some meanwhile.
                tracing::error!(%error, "cannot accept a connection");
                time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
