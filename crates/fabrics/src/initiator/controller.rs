//! An association with a target's subsystem (NVM Express Base Specification 2.0c, sections 3.5 and 6.3).

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::Data;
use protocols::auth::Policy;
use protocols::nvme::admin::{GetLogPage, Identify, SetFeatures, async_event_request, keep_alive};
use protocols::nvme::async_event::AsyncEvent;
use protocols::nvme::fabrics::{
    Connect, ConnectAnswer, ConnectData, DYNAMIC_CNTLID, PropertyGet, PropertySet, PropertySize,
};
use protocols::nvme::features::{AsyncEventConfiguration, Feature, QueueCounts};
use protocols::nvme::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, IdentifyStructure, NamespaceIdentifiers,
    NamespaceList, controller_bits,
};
use protocols::nvme::log::{DiscoveryEntry, DiscoveryHeader, LogPage};
use protocols::nvme::registers::{CC_OFFSET, CSTS_OFFSET, Configuration, ControllerStatus};
use protocols::nvme::{Command, Completion, Nqn, NqnField, Status};
use protocols::tcp::initiator::Options;
use protocols::tls::Psk;
use reactor::buffer::AllocateError;
use reactor::net::TcpOptions;
use reactor::sync::{Receiver, channel};
use reactor::{Buffer, BufferMut, BufferPool, spawn, time};

use super::authenticate::{AuthenticationError, authenticate};
use super::namespace::NamespaceChannel;
use super::queue::{CommandResult, Queue};
use crate::authentication::Credentials;
use crate::secure::{NamedPsk, SecureError};

/// Entries of the admin queue.
const ADMIN_QUEUE_ENTRIES: u16 = 32;
/// A discovery log longer than this is not believed.
const DISCOVERY_ENTRIES_MAX: u64 = 4096;
/// A discovery log that changes while it is read is read again, at most so often.
const DISCOVERY_READS_MAX: u32 = 8;
/// Nor is a list of more namespaces than this.
const NAMESPACES_MAX: usize = 1 << 16;
/// Events that wait to be taken; more are dropped, since each only says "look again".
const EVENTS_MAX: usize = 16;

/// Why an association could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// TCP failed.
    #[error("cannot reach the NVMe/TCP target at {address}: {source}; is it running and listening there?")]
    Socket {
        /// The target.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The connection ended before it was a queue.
    #[error("the peer at {address} ended the connection: it does not speak NVMe/TCP as we do, see its log")]
    Refused {
        /// The target.
        address: SocketAddr,
    },
    /// Too slow.
    #[error(
        "the NVMe/TCP target at {address} did not answer within {limit:?}: check the network and its load"
    )]
    TimedOut {
        /// The target.
        address: SocketAddr,
        /// How long we waited.
        limit: Duration,
    },
    /// A command failed.
    #[error("{command} to {subsystem} at {address} failed: {}; {remedy}", named(command, *status))]
    Command {
        /// What was asked.
        command: &'static str,
        /// The target.
        address: SocketAddr,
        /// The subsystem.
        subsystem: String,
        /// The answer.
        status: Status,
        /// What to do.
        remedy: &'static str,
    },
    /// No memory for a command of connecting, within the limit.
    #[error("no buffer for a command to the NVMe/TCP target at {address}: {source}")]
    NoBuffer {
        /// The target.
        address: SocketAddr,
        /// Why.
        source: AllocateError,
    },
    /// The namespace is another than before.
    #[error(
        "namespace {nsid} of {subsystem} at {address} is not the one that was there before: its identifiers, its block \
         size or its size have changed; bring it back, or attach it anew"
    )]
    Changed {
        /// The target.
        address: SocketAddr,
        /// The subsystem.
        subsystem: String,
        /// The namespace.
        nsid: u32,
    },
    /// There is no TLS connection.
    #[error("no TLS connection to the NVMe/TCP target at {address}: {why}")]
    Secure {
        /// The target.
        address: SocketAddr,
        /// Why.
        why: SecureError,
    },
    /// A second path leads elsewhere.
    #[error(
        "namespace {nsid} of {subsystem} at {address} cannot be another path to the device: {why}; attach it under another \
         name, or give the address of the same subsystem"
    )]
    OtherNamespace {
        /// The target.
        address: SocketAddr,
        /// The subsystem.
        subsystem: String,
        /// The namespace.
        nsid: u32,
        /// What differs.
        why: &'static str,
    },
    /// The namespace is not to be reached there.
    #[error(
        "namespace {nsid} of {subsystem} is not accessible at {address} (asymmetric namespace access): the path's other \
         addresses are tried"
    )]
    Inaccessible {
        /// The target.
        address: SocketAddr,
        /// The subsystem.
        subsystem: String,
        /// The namespace.
        nsid: u32,
    },
    /// One side did not prove who it is.
    #[error("authentication to {subsystem} at {address} failed: {why}")]
    Authentication {
        /// The target.
        address: SocketAddr,
        /// The subsystem.
        subsystem: String,
        /// Why.
        why: AuthenticationError,
    },
}

impl ConnectError {
    /// Whether it is about who host and target are: with another name or other keys it may be different.
    pub fn is_of_names(&self) -> bool {
        match self {
            Self::Authentication { .. } => true,
            Self::Command { command, status, .. } => {
                *command == CONNECT && *status == Status::CONNECT_INVALID_HOST
            }
            _ => false,
        }
    }
}

/// The status in words. Command-specific codes mean other things when a fabrics command is answered.
fn named(command: &str, status: Status) -> String {
    let is_fabrics =
        command == CONNECT || command.starts_with("Property") || command.starts_with("Authentication");
    match status.fabrics_name().filter(|_| is_fabrics) {
        Some(name) => format!(
            "{name} (SCT {:x}h, SC {:02x}h)",
            status.type_code(),
            status.code()
        ),
        None => status.to_string(),
    }
}

/// The command that makes a connection a queue.
const CONNECT: &str = "Connect";

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Where the target listens.
    pub address: SocketAddr,
    /// Which subsystem.
    pub subsystem: Nqn,
    /// Who we are.
    pub host: Nqn,
    /// Who we are, in 128 bits: the same for all connections of this host.
    pub host_id: [u8; 16],
    /// Commands in flight on an I/O queue; at most 1024, and at most what the controller takes (MAXCMD).
    pub queue_entries: u16,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// The target ends the association when it hears nothing for so long; zero for never.
    pub keep_alive: Duration,
    /// Limit of each step of connecting.
    pub limit: Duration,
    /// Sockets.
    pub tcp: TcpOptions,
    /// With which we prove who we are, and the target has to, if there is a key for it.
    pub credentials: Option<Credentials>,
    /// The hash functions and groups that are offered for that.
    pub authentication_policy: Policy,
    /// With which we connect over TLS; without, not over TLS.
    pub psk: Option<NamedPsk>,
}

impl ConnectOptions {
    /// The usual settings: 128 commands, no digests, 10 s keep-alive, as SPDK has it. After twice that and a second a target
    /// that does not answer has ended the association for certain, within the time that requests wait by default.
    pub fn new(address: SocketAddr, subsystem: Nqn, host: Nqn, host_id: [u8; 16]) -> Self {
        Self {
            address,
            subsystem,
            host,
            host_id,
            queue_entries: 128,
            header_digest: false,
            data_digest: false,
            keep_alive: Duration::from_secs(10),
            limit: Duration::from_secs(5),
            tcp: TcpOptions::default(),
            credentials: None,
            authentication_policy: Policy::default(),
            psk: None,
        }
    }

    async fn open(
        &self,
        qid: u16,
        entries: u16,
        cntlid: u16,
    ) -> Result<(Rc<Queue>, ConnectAnswer), ConnectError> {
        let options = Options {
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            max_outstanding_r2t: 16,
            queue_entries: entries.into(),
            ..Options::default()
        };
        let psk = self.tls_psk()?;
        let queue = Queue::open(self.address, &self.tcp, psk, options, self.limit).await?;
        let kato_ms = if qid == 0 {
            u32::try_from(self.keep_alive.as_millis()).unwrap_or(u32::MAX)
        } else {
            0
        };
        let connect = Connect {
            record_format: 0,
            qid,
            sqsize: entries - 1,
            attributes: 0,
            kato_ms,
        }
        .without_sq_flow_control();
        let data = ConnectData {
            hostid: self.host_id,
            cntlid,
            subnqn: NqnField::from(&self.subsystem),
            hostnqn: NqnField::from(&self.host),
        };
        let data = Data::From(self.buffer_of(&data.encode()).await?);
        let completion = self.run(&queue, CONNECT, connect.to_command(), data).await?.0;
        let answer = ConnectAnswer::from_completion(&completion);
        authenticate(self, &queue, answer).await?;
        Ok((queue, answer))
    }

    /// What TLS takes, for the names of both ends.
    fn tls_psk(&self) -> Result<Option<Psk>, ConnectError> {
        let Some(named) = &self.psk else { return Ok(None) };
        let derived = named
            .psk
            .derive_usual(self.host.as_str(), self.subsystem.as_str());
        derived.map(Some).map_err(|error| ConnectError::Secure {
            address: self.address,
            why: error.into(),
        })
    }

    pub(super) async fn run(
        &self,
        queue: &Queue,
        name: &'static str,
        command: Command,
        data: Data,
    ) -> Result<(Completion, Data), ConnectError> {
        let result = self.run_counted(queue, name, command, data).await?;
        let completion = result.completion.expect("a command that succeeded has one");
        Ok((completion, result.data))
    }

    /// Runs a command; its result has a completion whose status is success.
    pub(super) async fn run_counted(
        &self,
        queue: &Queue,
        name: &'static str,
        command: Command,
        data: Data,
    ) -> Result<CommandResult, ConnectError> {
        let result = time::timeout(self.limit, queue.execute(command, data))
            .await
            .map_err(|_| ConnectError::TimedOut {
                address: self.address,
                limit: self.limit,
            })?;
        match result.completion {
            Some(completion) if completion.status().is_success() => Ok(result),
            _ => Err(self.refused(name, result.status())),
        }
    }

    /// Room for a command's data, in zeros: a target that sends less than was asked for leaves them, not another's bytes. What
    /// else this core does may hold all of the pool, and some of it comes back with each request that ends.
    pub(super) async fn room(&self, bytes: usize) -> Result<BufferMut, ConnectError> {
        let pool = BufferPool::current();
        let waited = time::timeout(self.limit, pool.allocate(bytes)).await;
        let allocated = waited.unwrap_or_else(|time::Elapsed| pool.try_allocate(bytes));
        let mut buffer = allocated.map_err(|source| ConnectError::NoBuffer {
            address: self.address,
            source,
        })?;
        buffer.fill(0);
        Ok(buffer)
    }

    /// A command's data. Waits as [`ConnectOptions::room`] does.
    pub(super) async fn buffer_of(&self, bytes: &[u8]) -> Result<Buffer, ConnectError> {
        let mut buffer = self.room(bytes.len()).await?;
        buffer.copy_from_slice(bytes);
        Ok(buffer.freeze())
    }

    fn refused(&self, command: &'static str, status: Status) -> ConnectError {
        let remedy = match status {
            Status::CONNECT_INVALID_PARAMETERS => "check the subsystem's name (\"nvme discover\" lists them)",
            Status::CONNECT_CONTROLLER_BUSY => {
                "commands of an earlier connection have not ended, or too many hosts are connected: try again"
            }
            Status::CONNECT_INVALID_HOST => "let the target's administrator allow this host's name",
            Status::INVALID_NAMESPACE_OR_FORMAT => "check the namespace's number",
            _ => "see the target's log",
        };
        let subsystem = self.subsystem.as_str().to_owned();
        ConnectError::Command {
            command,
            address: self.address,
            subsystem,
            status,
            remedy,
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // Whoever waits for the end holds the queue, too.
        self.admin.close();
    }
}

/// An association. Dropping it ends its keep-alive and closes the admin queue, and with that the target ends
/// the I/O queues.
pub struct Controller {
    options: ConnectOptions,
    admin: Rc<Queue>,
    cntlid: u16,
    identify: IdentifyController,
    next_qid: Cell<u16>,
    queues: u16,
    keep_alive: Cell<bool>,
}

impl Controller {
    /// Connects the admin queue, enables the controller and identifies it.
    pub async fn connect(options: ConnectOptions) -> Result<Rc<Self>, ConnectError> {
        let (admin, answer) = options.open(0, ADMIN_QUEUE_ENTRIES, DYNAMIC_CNTLID).await?;
        admin.set_in_capsule_bytes(4096);
        enable(&options, &admin).await?;
        let identify = identify(
            &options,
            &admin,
            Identify {
                cns: IdentifyStructure::Controller.code(),
                nsid: 0,
                cntid: 0,
                cns_specific: 0,
                csi: 0,
            },
        )
        .await?;
        let identify = IdentifyController::decode(&identify).expect("Identify answers are 4096 bytes");
        let mut queues = 0;
        let is_discovery = identify.cntrltype == controller_bits::CNTRLTYPE_DISCOVERY;
        if !is_discovery && !options.subsystem.is_discovery() {
            queues = ask_for_queues(&options, &admin).await?;
        }
        let cntlid = answer.cntlid;
        let controller = Rc::new(Self {
            options,
            admin,
            cntlid,
            identify,
            next_qid: Cell::new(1),
            queues,
            keep_alive: Cell::new(true),
        });
        if !controller.options.keep_alive.is_zero() {
            drop(spawn(keep_alive_task(Rc::downgrade(&controller))));
        }
        Ok(controller)
    }

    /// The controller's number at the target.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// After so long without a command the target ends the association; zero for never.
    pub(super) fn keep_alive(&self) -> Duration {
        self.options.keep_alive
    }

    /// What the controller says of itself.
    pub fn identity(&self) -> &IdentifyController {
        &self.identify
    }

    /// Whether the association is gone.
    pub fn is_ended(&self) -> bool {
        self.admin.is_ended()
    }

    /// Waits for the end of the association. The future does not keep it alive.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.admin.end_watch()
    }

    /// Sends no keep-alive any more: the target ends the association once its time has passed.
    pub fn stop_keep_alive(&self) {
        self.keep_alive.set(false);
    }

    /// Runs an admin command.
    pub async fn admin(
        &self,
        name: &'static str,
        command: Command,
        data: Data,
    ) -> Result<(Completion, Data), ConnectError> {
        self.options.run(&self.admin, name, command, data).await
    }

    /// Connects another I/O queue.
    pub async fn open_queue(&self) -> Result<Rc<Queue>, ConnectError> {
        let qid = self.next_qid.get();
        if qid > self.queues {
            return Err(self.options.refused(CONNECT, Status::INVALID_QUEUE_IDENTIFIER));
        }
        self.next_qid.set(qid + 1);
        // MAXCMD is 0 where nothing is said; a queue of one entry could hold no command.
        let entries = match self.identify.maxcmd {
            0 => self.options.queue_entries,
            most => self.options.queue_entries.min(most.max(2)),
        };
        let (queue, _) = self.options.open(qid, entries, self.cntlid).await?;
        let in_capsule = usize::try_from(self.identify.in_capsule_data_bytes()).unwrap_or(0);
        queue.set_in_capsule_bytes(in_capsule);
        Ok(queue)
    }

    /// The numbers of the active namespaces. A controller that lists what was not asked for, or without end, is refused.
    pub async fn namespaces(&self) -> Result<Vec<u32>, ConnectError> {
        let mut nsids: Vec<u32> = Vec::new();
        loop {
            let after = nsids.last().copied().unwrap_or(0);
            let page = self
                .identify(IdentifyStructure::ActiveNamespaceList, after)
                .await?;
            let list = NamespaceList::decode(&page).ok();
            // Only numbers above the one named are asked for (NVM Express Base Specification 2.0c, section 5.17.2.2), and
            // the list is ascending: otherwise this would never end.
            let list = list.filter(|list| list.nsids().first().is_none_or(|&first| first > after));
            let Some(list) = list.filter(|list| nsids.len() + list.nsids().len() <= NAMESPACES_MAX) else {
                return Err(self.options.refused("Identify", Status::INTERNAL_ERROR));
            };
            nsids.extend(list.nsids());
            if !list.is_full() {
                return Ok(nsids);
            }
        }
    }

    /// By what a namespace is told from all others.
    pub async fn identifiers(&self, nsid: u32) -> Result<NamespaceIdentifiers, ConnectError> {
        let page = self
            .identify(IdentifyStructure::NamespaceDescriptors, nsid)
            .await?;
        NamespaceIdentifiers::decode(&page)
            .map_err(|_| self.options.refused("Identify", Status::INTERNAL_ERROR))
    }

    /// A namespace on a queue of its own.
    pub async fn open_namespace(&self, nsid: u32) -> Result<NamespaceChannel, ConnectError> {
        let page = self.identify(IdentifyStructure::Namespace, nsid).await?;
        let namespace = IdentifyNamespace::decode(&page).expect("Identify answers are 4096 bytes");
        if namespace.nsze == 0 {
            return Err(self
                .options
                .refused("Identify", Status::INVALID_NAMESPACE_OR_FORMAT));
        }
        let queue = self.open_queue().await?;
        NamespaceChannel::new(queue, nsid, &namespace, &self.identify)
            .ok_or_else(|| self.options.refused("Identify", Status::INVALID_FORMAT))
    }

    async fn identify(&self, structure: IdentifyStructure, nsid: u32) -> Result<Buffer, ConnectError> {
        self.identify_with(Identify {
            cns: structure.code(),
            nsid,
            cntid: 0,
            cns_specific: 0,
            csi: 0,
        })
        .await
    }

    pub(super) async fn identify_with(&self, command: Identify) -> Result<Buffer, ConnectError> {
        identify(&self.options, &self.admin, command).await
    }

    /// How it was connected.
    pub(super) fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// What an answer that makes no sense is to the caller.
    pub(super) fn failed(&self, command: &'static str, status: Status) -> ConnectError {
        self.options.refused(command, status)
    }

    /// Ends the association from this side, whoever still holds it.
    pub(super) fn close(&self) {
        self.admin.close();
    }

    /// Asks for notices and delivers them: each says only that something changed, so look again.
    pub async fn events(self: &Rc<Self>) -> Result<Receiver<AsyncEvent>, ConnectError> {
        let wanted = AsyncEventConfiguration::NAMESPACE_ATTRIBUTE
            | AsyncEventConfiguration::ANA_CHANGE
            | AsyncEventConfiguration::DISCOVERY_CHANGE;
        // Only those that the controller has (OAES, the same bits): others are refused, by stock Linux for one.
        let wanted = wanted & self.identity().oaes;
        let set = SetFeatures {
            nsid: 0,
            feature: Feature::AsynchronousEventConfiguration.code(),
            save: false,
            value: wanted,
        };
        self.admin("Set Features", set.to_command(), Data::None).await?;
        let (sender, receiver) = channel(EVENTS_MAX);
        let weak = Rc::downgrade(&self.admin);
        drop(spawn(async move {
            while let Some(admin) = weak.upgrade() {
                let result = admin.execute(async_event_request(), Data::None).await;
                let Some(completion) = result.completion.filter(|c| c.status().is_success()) else {
                    return;
                };
                // A reader that has enough notices waiting needs no more of them.
                let _ = sender.try_send(AsyncEvent::from_result(completion.result()));
            }
        }));
        Ok(receiver)
    }

    /// Reads a log page from its beginning.
    pub async fn log_page(
        &self,
        page: LogPage,
        nsid: u32,
        length_bytes: usize,
    ) -> Result<Vec<u8>, ConnectError> {
        read_log(
            &self.options,
            &self.admin,
            GetLogPage::new(nsid, page.code(), length_bytes as u64),
        )
        .await
    }
}

async fn enable(options: &ConnectOptions, admin: &Queue) -> Result<(), ConnectError> {
    let configuration = Configuration::default().with_en(1).with_iosqes(6).with_iocqes(4);
    let set = PropertySet {
        size: PropertySize::Four,
        offset: CC_OFFSET,
        value: configuration.bits().into(),
    };
    options
        .run(admin, "Property Set", set.to_command(), Data::None)
        .await?;
    let deadline = time::now() + options.limit;
    loop {
        let get = PropertyGet {
            size: PropertySize::Four,
            offset: CSTS_OFFSET,
        };
        let (completion, _) = options
            .run(admin, "Property Get", get.to_command(), Data::None)
            .await?;
        if ControllerStatus::from_bits(completion.result()).is_ready() {
            return Ok(());
        }
        if time::now() >= deadline {
            return Err(ConnectError::TimedOut {
                address: options.address,
                limit: options.limit,
            });
        }
        time::sleep(Duration::from_millis(10)).await;
    }
}

async fn identify(
    options: &ConnectOptions,
    admin: &Queue,
    identify: Identify,
) -> Result<Buffer, ConnectError> {
    let page = options.room(IDENTIFY_BYTES).await?;
    let (_, data) = options
        .run(admin, "Identify", identify.to_command(), Data::Into(page))
        .await?;
    Ok(data.into_read().freeze())
}

async fn ask_for_queues(options: &ConnectOptions, admin: &Queue) -> Result<u16, ConnectError> {
    let wanted = QueueCounts {
        submission: 64,
        completion: 64,
    };
    let set = SetFeatures {
        nsid: 0,
        feature: Feature::NumberOfQueues.code(),
        save: false,
        value: wanted.to_value(),
    };
    let (completion, _) = options
        .run(admin, "Set Features", set.to_command(), Data::None)
        .await?;
    let given = QueueCounts::from_value(completion.result());
    Ok(u16::try_from(given.submission.min(given.completion)).unwrap_or(u16::MAX))
}

async fn keep_alive_task(controller: Weak<Controller>) {
    loop {
        let Some(period) = controller
            .upgrade()
            .map(|controller| controller.options.keep_alive / 2)
        else {
            return;
        };
        time::sleep(period).await;
        let Some(controller) = controller
            .upgrade()
            .filter(|controller| controller.keep_alive.get())
        else {
            return;
        };
        if controller
            .admin("Keep Alive", keep_alive(), Data::None)
            .await
            .is_err()
        {
            controller.admin.close();
            return;
        }
    }
}

async fn read_log(options: &ConnectOptions, admin: &Queue, get: GetLogPage) -> Result<Vec<u8>, ConnectError> {
    let length = usize::try_from(get.length_bytes()).unwrap_or(usize::MAX);
    let page = options
        .room(length.min(reactor::buffer::BUFFER_BYTES_MAX))
        .await?;
    let (_, data) = options
        .run(admin, "Get Log Page", get.to_command(), Data::Into(page))
        .await?;
    Ok(data.into_read().to_vec())
}

/// Asks a discovery service which subsystems it knows.
pub async fn discover(options: ConnectOptions) -> Result<Vec<DiscoveryEntry>, ConnectError> {
    let controller = Controller::connect(ConnectOptions {
        subsystem: Nqn::discovery(),
        ..options
    })
    .await?;
    for _ in 0..DISCOVERY_READS_MAX {
        let header = controller
            .log_page(LogPage::Discovery, 0, DiscoveryHeader::BYTES)
            .await?;
        let header = DiscoveryHeader::decode(&header).expect("a header's bytes were read");
        let count = header.entries.min(DISCOVERY_ENTRIES_MAX);
        let mut entries = Vec::new();
        for index in 0..count {
            let get = GetLogPage {
                offset: DiscoveryHeader::BYTES as u64 + index * DiscoveryEntry::BYTES as u64,
                ..GetLogPage::new(0, LogPage::Discovery.code(), DiscoveryEntry::BYTES as u64)
            };
            let bytes = read_log(&controller.options, &controller.admin, get).await?;
            entries.push(DiscoveryEntry::decode(&bytes).expect("an entry's bytes were read"));
        }
        // The log may have changed between the reads (section 5.16.1.23): then read it again.
        let again = controller
            .log_page(LogPage::Discovery, 0, DiscoveryHeader::BYTES)
            .await?;
        let again = DiscoveryHeader::decode(&again).expect("a header's bytes were read");
        if again.generation_counter == header.generation_counter {
            return Ok(entries);
        }
    }
    Err(controller.options.refused("Get Log Page", Status::INTERNAL_ERROR))
}
