//! One core's ways to the nodes: an association with each, made when the first command needs it.
//!
//! A connected node costs a command one ordered map lookup and one slab slot. Without a connection a command
//! waits while one is being made; a read only for [`LinkOptions::patience`], since another copy may answer it. After
//! a failed attempt commands fail at once until the next is due. A link that nobody uses does nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bdev::Data;
use fabrics::initiator::{ConnectError, ConnectOptions};
use foundation::Instant;
use protocols::nvme::Nqn;
use reactor::net::TcpOptions;
use reactor::{spawn, time};
use volume::client::{AnswerSink, PeerStatus, Peers, Place, Reply, Sessions};
use volume::message::codec::NativeCommand;
use volume::{HostId, NodeId};

use crate::connection::Connection;
use crate::passes::PassSource;

/// Commands that wait for one node's connection; more are refused as unreachable.
const WAITING_MAX: usize = 4096;

/// Where nodes are found; shared by all cores.
pub trait NodeDirectory: Send + Sync {
    /// Where the node's peer subsystem listens; none if that is not known. Asked before each attempt to connect.
    fn address(&self, node: NodeId) -> Option<SocketAddr>;
}

/// How nodes of this machine are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nearby {
    /// By Unix socket ([`reactor::net::local`]), and their disks are read past them (decision 0059).
    #[default]
    Disk,
    /// By Unix socket.
    Socket,
    /// By TCP, as all others.
    Tcp,
}

/// As whom and how to connect.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The host's name.
    pub host: Nqn,
    /// The host's number, given by the masters.
    pub host_id: HostId,
    /// Commands in flight on a queue.
    pub queue_entries: u16,
    /// Queues with a node, at most.
    pub queues: usize,
    /// How long a read waits for a connection before it is tried elsewhere.
    pub patience: Duration,
    /// The first pause after a failed attempt to connect; each further one is twice as long.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// A node that is silent for about this long is lost.
    pub keep_alive: Duration,
    /// Limit of each step of connecting.
    pub limit: Duration,
    /// How nodes of this machine are reached.
    pub nearby: Nearby,
    /// Counts what was read past nodes.
    pub past_reads: Arc<AtomicU64>,
    /// How nodes are shown who this is; none if they do not ask.
    pub passes: Option<Arc<dyn PassSource>>,
}

impl LinkOptions {
    /// The usual settings: one queue of 128 commands, 150 ms of patience, lost after 4 to 6 s of silence.
    pub fn new(host: Nqn, host_id: HostId) -> Self {
        Self {
            host,
            host_id,
            queue_entries: 128,
            queues: 1,
            patience: Duration::from_millis(150),
            pause_min: Duration::from_millis(20),
            pause_max: Duration::from_secs(1),
            keep_alive: Duration::from_secs(4),
            limit: Duration::from_secs(3),
            nearby: Nearby::default(),
            past_reads: Arc::default(),
            passes: None,
        }
    }
}

/// The name of a node's peer subsystem.
pub fn node_subsystem(node: NodeId) -> Nqn {
    let digits = format!("{:032x}", node.0);
    let uuid = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ]
    .join("-");
    format!("nqn.2026-11.io.redhare:node:{uuid}")
        .parse()
        .expect("the name is well formed for every number")
}

/// The 128-bit host identifier of an association: host and session, little-endian.
fn host_identifier(host: HostId, session: u64) -> [u8; 16] {
    let mut identifier = [0; 16];
    identifier[..8].copy_from_slice(&host.0.to_le_bytes());
    identifier[8..].copy_from_slice(&session.to_le_bytes());
    identifier
}

/// What all links of a core share.
struct Settings {
    options: LinkOptions,
    sessions: Sessions,
    directory: Arc<dyn NodeDirectory>,
}

impl Settings {
    async fn connect(&self, node: NodeId) -> Result<Rc<Connection>, ConnectFailure> {
        let address = self.directory.address(node).ok_or(ConnectFailure::UnknownNode)?;
        let options = &self.options;
        let session = self.sessions.current();
        let host_id = host_identifier(options.host_id, session);
        let mut connect = ConnectOptions {
            queue_entries: options.queue_entries,
            keep_alive: options.keep_alive,
            limit: options.limit,
            tcp: TcpOptions {
                local: options.nearby != Nearby::Tcp,
                ..TcpOptions::default()
            },
            ..ConnectOptions::new(address, node_subsystem(node), options.host.clone(), host_id)
        };
        if let Some(passes) = &options.passes {
            passes.apply(node, &mut connect);
        }
        let past = (options.nearby == Nearby::Disk).then(|| options.past_reads.clone());
        let opened = Connection::open(connect, session, options.queues, past).await;
        if let (Some(passes), Err(error)) = (&options.passes, &opened)
            && error.is_of_names()
        {
            passes.renew();
        }
        Ok(opened?)
    }
}

#[derive(Debug)]
enum ConnectFailure {
    UnknownNode,
    Connect(ConnectError),
}

impl From<ConnectError> for ConnectFailure {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

/// See the module.
pub struct NodeLinks {
    settings: Rc<Settings>,
    links: RefCell<BTreeMap<NodeId, Rc<Link>>>,
}

impl NodeLinks {
    /// Ways to the nodes for the calling core. `sessions` is the host's, the same as the volumes have.
    pub fn new(options: LinkOptions, sessions: Sessions, directory: Arc<dyn NodeDirectory>) -> Rc<Self> {
        Rc::new(Self {
            settings: Rc::new(Settings {
                options,
                sessions,
                directory,
            }),
            links: RefCell::default(),
        })
    }

    fn link(&self, node: NodeId) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        let settings = &self.settings;
        let link = links
            .entry(node)
            .or_insert_with(|| Link::new(node, settings.clone()));
        link.clone()
    }
}

impl Peers for NodeLinks {
    fn submit(
        &self,
        node: NodeId,
        session: u64,
        command: NativeCommand,
        place: Place,
        data: Data,
        reply: Reply,
    ) {
        let command = Waiting {
            session,
            command,
            place,
            data,
            reply,
        };
        self.link(node).submit(command);
    }

    fn given_up(&self, node: NodeId) {
        let link = self.links.borrow().get(&node).cloned();
        if let Some(link) = link {
            link.given_up();
        }
    }

    fn take_back(&self, node: NodeId, sink: &Rc<dyn AnswerSink>, tag: u64) -> Option<Data> {
        let link = self.links.borrow().get(&node).cloned()?;
        link.take_back(sink, tag)
    }
}

/// A command on its way to a node.
struct Waiting {
    session: u64,
    command: NativeCommand,
    place: Place,
    data: Data,
    reply: Reply,
}

impl Waiting {
    fn is_read(&self) -> bool {
        self.command.operation.is_read()
    }

    /// Whether the session it was to be sent in is over. Sent in a newer one it would be noted under a session that it
    /// was not sent in: were it lost, its repetition would go out in the very session in which it may still arrive.
    fn is_too_late_for(&self, connection: &Connection) -> bool {
        self.session != 0 && self.session < connection.session()
    }

    fn fail(self) {
        self.reply.answer(PeerStatus::Unreachable, self.data);
    }
}

struct State {
    connection: Option<Rc<Connection>>,
    connecting: bool,
    /// The attempt to connect takes longer than reads wait.
    slow: bool,
    waiting: VecDeque<Waiting>,
    /// No attempt before this, and the pause after the next failure.
    retry_at: Instant,
    pause: Duration,
}

/// One core's way to one node.
struct Link {
    node: NodeId,
    settings: Rc<Settings>,
    state: RefCell<State>,
    this: Weak<Link>,
}

impl Link {
    fn new(node: NodeId, settings: Rc<Settings>) -> Rc<Self> {
        let pause = settings.options.pause_min;
        Rc::new_cyclic(|this| Self {
            node,
            settings,
            state: RefCell::new(State {
                connection: None,
                connecting: false,
                slow: false,
                waiting: VecDeque::new(),
                retry_at: Instant::default(),
                pause,
            }),
            this: this.clone(),
        })
    }

    fn submit(&self, command: Waiting) {
        let mut state = self.state.borrow_mut();
        if let Some(connection) = &state.connection {
            if connection.is_ended() {
                state.connection = None;
            } else if connection.session() >= command.session {
                let connection = connection.clone();
                drop(state);
                if command.is_too_late_for(&connection) {
                    return command.fail();
                }
                return connection.submit(&command.command, command.place, command.data, command.reply);
            }
        }
        let refuse = if state.connecting {
            (state.slow && command.is_read()) || state.waiting.len() >= WAITING_MAX
        } else {
            time::now() < state.retry_at
        };
        if refuse {
            drop(state);
            return command.fail();
        }
        state.waiting.push_back(command);
        if !std::mem::replace(&mut state.connecting, true) {
            drop(spawn(connect(self.this.clone())));
        }
    }

    fn given_up(&self) {
        let connection = self.state.borrow().connection.clone();
        if let Some(connection) = connection {
            connection.end_silent(self.settings.options.keep_alive);
        }
    }

    fn take_back(&self, sink: &Rc<dyn AnswerSink>, tag: u64) -> Option<Data> {
        let mut state = self.state.borrow_mut();
        if let Some(index) = state
            .waiting
            .iter()
            .position(|waiting| waiting.reply.is_for(sink, tag))
        {
            let Waiting { data, reply, .. } = state.waiting.remove(index)?;
            reply.withdraw();
            return Some(data);
        }
        // A connection that a newer one has replaced ends its commands itself.
        let connection = state.connection.clone()?;
        drop(state);
        connection.take_back(sink, tag)
    }

    /// Takes over a new connection. Returns whether commands wait for one of a newer session still.
    fn connected(&self, connection: &Rc<Connection>) -> bool {
        let (late, ready, more) = {
            let mut state = self.state.borrow_mut();
            state.connection = Some(connection.clone());
            state.pause = self.settings.options.pause_min;
            state.slow = false;
            let mut waiting = std::mem::take(&mut state.waiting);
            // Given up meanwhile: sent now they would belong to a session that is newer than they are.
            waiting.retain(|command| command.reply.is_wanted());
            let (late, waiting): (VecDeque<_>, VecDeque<_>) = waiting
                .into_iter()
                .partition(|command| command.is_too_late_for(connection));
            let (ready, rest): (VecDeque<_>, VecDeque<_>) = waiting
                .into_iter()
                .partition(|command| command.session <= connection.session());
            state.waiting = rest;
            state.connecting = !state.waiting.is_empty();
            (late, ready, state.connecting)
        };
        // They were never sent: whoever repeats them does so in the session of now.
        late.into_iter().for_each(Waiting::fail);
        for command in ready {
            connection.submit(&command.command, command.place, command.data, command.reply);
        }
        more
    }

    fn failed(&self, failure: &ConnectFailure) {
        let waiting = {
            let mut state = self.state.borrow_mut();
            state.connecting = false;
            state.slow = false;
            state.retry_at = time::now() + state.pause;
            tracing::warn!(
                node = %self.node,
                error = %failure,
                retry_ms = state.pause.as_millis() as u64,
                "no connection to the node"
            );
            state.pause = (state.pause * 2).min(self.settings.options.pause_max);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waiting::fail);
    }

    /// Reads have waited long enough for this attempt.
    fn patience_is_over(&self) {
        let reads = {
            let mut state = self.state.borrow_mut();
            state.slow = true;
            let (reads, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut state.waiting)
                .into_iter()
                .partition(Waiting::is_read);
            state.waiting = rest;
            reads
        };
        reads.into_iter().for_each(Waiting::fail);
    }
}

impl std::fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownNode => f.write_str("its address is not known; is it registered with the masters?"),
            Self::Connect(error) => error.fmt(f),
        }
    }
}

/// Makes a link's connection, and further ones while commands wait for a newer session.
async fn connect(weak: Weak<Link>) {
    loop {
        let Some((node, settings)) = weak.upgrade().map(|link| (link.node, link.settings.clone())) else {
            return;
        };
        let mut attempt = pin!(settings.connect(node));
        let outcome = match time::timeout(settings.options.patience, attempt.as_mut()).await {
            Ok(outcome) => outcome,
            Err(time::Elapsed) => {
                let Some(link) = weak.upgrade() else { return };
                link.patience_is_over();
                drop(link);
                attempt.await
            }
        };
        let Some(link) = weak.upgrade() else { return };
        match outcome {
            Ok(connection) => {
                if !link.connected(&connection) {
                    return;
                }
            }
            Err(failure) => return link.failed(&failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_the_format_says() {
        let node = NodeId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        assert_eq!(
            node_subsystem(node).as_str(),
            "nqn.2026-11.io.redhare:node:00112233-4455-6677-8899-aabbccddeeff"
        );
        let identifier = host_identifier(HostId(0x0102), 0x0304);
        assert_eq!(identifier, [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0]);
    }
}
