//! A portal's ways to the nodes: one association with each other node, made when the first command needs it, and none to its own.
//!
//! They are apart from those by which the nodes replicate: else the commands of hosts could fill the queues by which the copies
//! are to be written that these commands wait for.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::{Data, IoError};
use fabrics::initiator::{CommandResult, CommandSink, ConnectError, ConnectOptions, Controller, Queue};
use foundation::Instant;
use protocols::nvme::{Completion, Nqn, Status as NvmeStatus};
use reactor::net::TcpOptions;
use reactor::{spawn, time};
use slab::Slab;
use volume::client::{PeerStatus, Peers, Place, Reply};
use volume::message::codec::{NativeCommand, NativeOperation, native_status_from_code};
use volume::{NodeId, Status};

use crate::node::{Node, names};

/// Commands in flight with one node; more wait in the queue.
const QUEUE_ENTRIES: u16 = 256;
/// Commands that wait for one node's connection; more are refused as unreachable.
const WAITING_MAX: usize = 4096;
/// After an attempt to connect that failed commands are refused for so long.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Limit of each step of connecting. A read that waits goes elsewhere after it.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A node that is silent for about this long is lost.
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// A connection in which more places than this are taken by commands that nobody wants any more is ended: the node cancels
/// them then.
const UNWANTED_MAX: usize = QUEUE_ENTRIES as usize / 4;
/// Status code type of command-specific codes.
const COMMAND_SPECIFIC: u8 = 1;

/// No way to any node.
pub(super) struct Nowhere;

impl Peers for Nowhere {
    fn submit(&self, _: NodeId, _: u64, _: NativeCommand, _: Place, data: Data, reply: Reply) {
        reply.answer(PeerStatus::Unreachable, data);
    }
}

/// See the module.
pub(super) struct Links {
    node: Weak<Node>,
    links: RefCell<BTreeMap<NodeId, Rc<Link>>>,
}

impl Links {
    pub(super) fn new(node: &Rc<Node>) -> Rc<Self> {
        Rc::new(Self {
            node: Rc::downgrade(node),
            links: RefCell::default(),
        })
    }
}

impl Peers for Links {
    fn submit(&self, to: NodeId, _session: u64, command: NativeCommand, _: Place, data: Data, reply: Reply) {
        let Some(node) = self.node.upgrade() else {
            return reply.answer(PeerStatus::Unreachable, data);
        };
        if to == node.identity().node {
            return node.serve_portal(&command, data, reply);
        }
        let link = self.links.borrow_mut().entry(to).or_default().clone();
        link.submit(&node, to, Waiting { command, data, reply });
    }

    fn given_up(&self, node: NodeId) {
        let link = self.links.borrow().get(&node).cloned();
        let connection = link.and_then(|link| link.state.borrow().connection.clone());
        if let Some(connection) = connection {
            connection.given_up();
        }
    }
}

struct Waiting {
    command: NativeCommand,
    data: Data,
    reply: Reply,
}

impl Waiting {
    fn fail(self) {
        self.reply.answer(PeerStatus::Unreachable, self.data);
    }
}

#[derive(Default)]
struct State {
    connection: Option<Rc<Connection>>,
    connecting: bool,
    waiting: VecDeque<Waiting>,
    retry_at: Instant,
}

#[derive(Default)]
struct Link {
    state: RefCell<State>,
}

impl Link {
    fn submit(self: &Rc<Self>, node: &Rc<Node>, to: NodeId, command: Waiting) {
        let mut state = self.state.borrow_mut();
        if let Some(connection) = state.connection.clone() {
            if !connection.is_ended() {
                drop(state);
                return connection.submit(command);
            }
            state.connection = None;
        }
        if state.waiting.len() >= WAITING_MAX || (!state.connecting && time::now() < state.retry_at) {
            drop(state);
            return command.fail();
        }
        state.waiting.push_back(command);
        if !std::mem::replace(&mut state.connecting, true) {
            drop(spawn(self.clone().connect(Rc::downgrade(node), to)));
        }
    }

    async fn connect(self: Rc<Self>, node: Weak<Node>, to: NodeId) {
        let options = node.upgrade().and_then(|node| options(&node, to));
        let opened = match options {
            Some(options) => Connection::open(options).await.map_err(|error| error.to_string()),
            None => Err("its address is not known yet".to_owned()),
        };
        let waiting = {
            let mut state = self.state.borrow_mut();
            state.connecting = false;
            state.connection = opened.as_ref().ok().cloned();
            state.retry_at = time::now() + CONNECT_PAUSE;
            std::mem::take(&mut state.waiting)
        };
        match opened {
            // What was given up meanwhile is sent no more.
            Ok(connection) => waiting
                .into_iter()
                .filter(|command| command.reply.is_wanted())
                .for_each(|command| connection.submit(command)),
            Err(error) => {
                tracing::debug!(node = %to, error, "no connection to a node of an exported volume");
                waiting.into_iter().for_each(Waiting::fail);
            }
        }
    }
}

fn options(node: &Node, to: NodeId) -> Option<ConnectOptions> {
    let parse = |name: String| name.parse::<Nqn>().expect("node names are well-formed");
    let identity = node.identity();
    let mut host_id = [0; 16];
    host_id[..8].copy_from_slice(&(identity.node.0 as u64).to_le_bytes());
    host_id[8..].copy_from_slice(&identity.incarnation.0.to_le_bytes());
    let address = node.peer_address(to)?;
    let (subsystem, host) = (parse(names::of_node(to)), parse(names::of_node(identity.node)));
    let mut options = ConnectOptions {
        queue_entries: QUEUE_ENTRIES,
        keep_alive: KEEP_ALIVE,
        limit: CONNECT_LIMIT,
        tcp: TcpOptions {
            local: true,
            ..TcpOptions::default()
        },
        ..ConnectOptions::new(address, subsystem, host, host_id)
    };
    if !node.passes().apply(to, &mut options).is_ready() {
        node.want_passes();
    }
    Some(options)
}

/// A command under way, and what its completion says: of a claim its number, and of a read as much data as was asked for.
struct Asked {
    reply: Reply,
    operation: NativeOperation,
}

struct Connection {
    controller: Rc<Controller>,
    queue: Rc<Queue>,
    asked: RefCell<Slab<Asked>>,
    own: Weak<Connection>,
}

impl Connection {
    async fn open(options: ConnectOptions) -> Result<Rc<Self>, ConnectError> {
        let controller = Controller::connect(options).await?;
        let queue = controller.open_queue().await?;
        let connection = Rc::new_cyclic(|own| Self {
            controller,
            queue,
            asked: RefCell::default(),
            own: own.clone(),
        });
        // A node that is silent is known by its keep-alive: then no command is left waiting.
        let (weak, ended) = (Rc::downgrade(&connection), connection.controller.ended());
        drop(spawn(async move {
            ended.await;
            if let Some(connection) = weak.upgrade() {
                connection.queue.close();
            }
        }));
        Ok(connection)
    }

    fn is_ended(&self) -> bool {
        self.controller.is_ended() || self.queue.is_ended()
    }

    fn submit(&self, command: Waiting) {
        let Waiting { command, data, reply } = command;
        let operation = command.operation;
        let tag = self.asked.borrow_mut().insert(Asked { reply, operation });
        let sink = self.own.upgrade().expect("the caller holds the connection");
        let encoded = crate::node::command_of(&command.encode());
        self.queue.submit_raw(encoded, data, sink, tag as u64);
    }

    /// Ends it if nothing came for a while, which the keep-alive of the admin queue does not see, or if too many of its commands
    /// are like the one that was given up.
    fn given_up(&self) {
        let asked = self.asked.borrow();
        let unwanted = asked.iter().filter(|(_, asked)| !asked.reply.is_wanted()).count();
        drop(asked);
        if unwanted > UNWANTED_MAX || self.queue.silence() >= KEEP_ALIVE {
            tracing::warn!(peer = %self.queue.peer_address(), unwanted, "a connection does not go on: it is ended");
            self.queue.close();
        }
    }
}

impl CommandSink for Connection {
    fn ended(&self, tag: u64, result: CommandResult) {
        let index = usize::try_from(tag).expect("tags are slab indices");
        let Asked { reply, operation } = self.asked.borrow_mut().remove(index);
        reply.answer(end_of(&result, operation), result.data);
    }

    fn wants(&self, tag: u64) -> bool {
        let index = usize::try_from(tag).expect("tags are slab indices");
        self.asked
            .borrow()
            .get(index)
            .is_some_and(|asked| asked.reply.is_wanted())
    }
}

/// How a command has ended. Of a read that succeeded all bytes have come, or nothing is known of those that have not.
fn end_of(result: &CommandResult, operation: NativeOperation) -> PeerStatus {
    match status_of(result.completion, operation == NativeOperation::Claim) {
        PeerStatus::Answered(Status::Done) if operation.is_read() && result.is_short() => PeerStatus::Lost,
        status => status,
    }
}

/// What a completion says; without one the connection was lost (`docs/formats/peer.md`).
fn status_of(completion: Option<Completion>, claims: bool) -> PeerStatus {
    let Some(completion) = completion else {
        return PeerStatus::Lost;
    };
    let status = completion.status();
    if status.is_success() {
        return PeerStatus::Answered(if claims {
            Status::Claimed(completion.result_u64())
        } else {
            Status::Done
        });
    }
    if status.type_code() == COMMAND_SPECIFIC
        && let Some(native) = native_status_from_code(status.code(), completion.result_u64())
    {
        return PeerStatus::Answered(native);
    }
    refused(status)
}

/// What a node means that did not take the command as such.
pub(crate) fn refused(status: NvmeStatus) -> PeerStatus {
    match status {
        // The node does not serve the volume (yet, or any more).
        NvmeStatus::INVALID_NAMESPACE_OR_FORMAT => PeerStatus::Answered(Status::NotReady),
        status => PeerStatus::Failed(fabrics::status::error_of(status).err().unwrap_or(IoError::Media)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_came_in_part_was_not_done() {
        let pool = reactor::BufferPool::new(4 << 20);
        let result = |received_bytes| CommandResult {
            completion: Some(Completion::success(1).with_result_u64(7)),
            data: Data::Into(pool.try_allocate(8192).unwrap()),
            received_bytes,
        };
        let done = PeerStatus::Answered(Status::Done);
        assert_eq!(end_of(&result(8192), NativeOperation::Read), done);
        assert_eq!(end_of(&result(4096), NativeOperation::Read), PeerStatus::Lost);
        assert_eq!(end_of(&result(4096), NativeOperation::Check), done);
        let claimed = PeerStatus::Answered(Status::Claimed(7));
        assert_eq!(end_of(&result(0), NativeOperation::Claim), claimed);
    }
}
