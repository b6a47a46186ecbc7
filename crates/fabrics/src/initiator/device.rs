//! A remote namespace as a block device: each channel connects by itself, by each of the device's paths, and again after
//! a loss.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bdev::{BlockDevice, Channel, Geometry, OpenError};
use protocols::nvme::identify::{NamespaceIdentifiers, controller_bits};
use protocols::nvme::log::AnaState;
use reactor::mailbox::MailboxSender;

use super::channel;
use super::controller::{ConnectError, ConnectOptions, Controller};
use super::select::{PathId, Policy};
use crate::authentication::Credentials;

/// How a remote device behaves without a connection, and without answers.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Where and as whom to connect, by the first path.
    pub connect: ConnectOptions,
    /// The namespace's number.
    pub nsid: u32,
    /// How long a request waits for a connection before it fails with "unavailable".
    pub wait_limit: Duration,
    /// Longest pause between attempts to connect. The first is 50 ms, and each twice the one before.
    pub reconnect_delay_max: Duration,
    /// A path that has had no connection for so long is given up, and a channel with its last path: its requests fail with
    /// "gone", for good. `None` for never.
    pub loss_timeout: Option<Duration>,
    /// A command without an answer for so long ends its association; the command is repeated like any other that was in
    /// flight then. `None` for never.
    pub io_timeout: Option<Duration>,
    /// How often a request is repeated whose association was lost, if it may be repeated.
    pub retries: u32,
}

impl RemoteOptions {
    /// The usual: requests wait 30 s for a connection, and 30 s for an answer; attempts every 5 s at the latest, and for
    /// ever; a request is repeated three times.
    pub fn new(connect: ConnectOptions, nsid: u32) -> Self {
        Self {
            connect,
            nsid,
            wait_limit: Duration::from_secs(30),
            reconnect_delay_max: Duration::from_secs(5),
            loss_timeout: None,
            io_timeout: Some(Duration::from_secs(30)),
            retries: 3,
        }
    }
}

/// What must be the same at each connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) geometry: Geometry,
    /// `None` if the target does not tell.
    pub(super) identifiers: Option<NamespaceIdentifiers>,
}

/// A path as a channel has it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathView {
    /// Which.
    pub id: PathId,
    /// Where its connection ends.
    pub address: SocketAddr,
    /// The number of its controller; `None` without a connection.
    pub cntlid: Option<u16>,
    /// How well the namespace is reached by it; `None` without a connection.
    pub access: Option<AnaState>,
    /// Whether the next command takes it.
    pub is_current: bool,
}

/// A path, as it was added.
#[derive(Clone, Debug)]
pub(super) struct PathEntry {
    pub(super) id: PathId,
    /// Tried in turn; one of them at a time is connected to. At least one.
    pub(super) addresses: Vec<ConnectOptions>,
}

/// What a device tells its channels.
#[derive(Debug)]
pub(super) enum Order {
    /// The paths or the policy are others now.
    Look,
    /// End the association of a path, and make another.
    Reset(PathId),
}

pub(super) type View = Arc<Mutex<Vec<PathView>>>;

/// The paths of a device, which its channels take up.
#[derive(Clone, Default)]
pub(super) struct Table {
    pub(super) paths: Vec<PathEntry>,
    pub(super) policy: Policy,
    pub(super) preferred: Option<PathId>,
    next: u64,
    channels: Vec<(MailboxSender<Order>, View)>,
}

/// What the channels of a device share.
pub(super) struct Shared {
    pub(super) options: RemoteOptions,
    pub(super) shape: Shape,
    table: Mutex<Table>,
}

impl Shared {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel looks at the table and is told of changes from now on.
    pub(super) fn join(&self, orders: MailboxSender<Order>, view: View) {
        let mut table = self.table();
        table.channels.retain(|(orders, _)| !orders.is_closed());
        table.channels.push((orders, view));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table();
        let result = change(&mut table);
        for (orders, _) in &table.channels {
            // One that is full has a look before it anyway.
            let _ = orders.try_send(Order::Look);
        }
        result
    }
}

/// See the module. What is changed by its methods, channels take up at once.
pub struct RemoteDevice {
    shared: Arc<Shared>,
}

impl RemoteDevice {
    /// Connects once to learn the namespace's shape.
    pub async fn connect(options: RemoteOptions) -> Result<Self, ConnectError> {
        let controller = Controller::connect(options.connect.clone()).await?;
        let geometry = controller.open_namespace(options.nsid).await?.geometry();
        let identifiers = controller.identifiers(options.nsid).await.ok();
        let shape = Shape {
            geometry,
            identifiers,
        };
        let first = options.connect.clone();
        let shared = Arc::new(Shared {
            options,
            shape,
            table: Mutex::default(),
        });
        let device = Self { shared };
        device.add_path(first);
        Ok(device)
    }

    /// The namespace's number.
    pub fn nsid(&self) -> u32 {
        self.shared.options.nsid
    }

    /// Checks that a controller's namespace of the same number is this device's, so that it may be another path to it:
    /// the same subsystem, identifiers and geometry, and one that controllers share.
    ///
    /// # Errors
    /// What differs, or that the controller did not answer.
    pub async fn check_path(&self, controller: &Controller) -> Result<(), ConnectError> {
        let options = controller.options();
        let shape = &self.shared.shape;
        let other = |why| ConnectError::OtherNamespace {
            address: options.address,
            subsystem: options.subsystem.as_str().to_owned(),
            nsid: self.nsid(),
            why,
        };
        if options.subsystem != self.shared.options.connect.subsystem {
            return Err(other("the subsystem's name is another"));
        }
        let shared = controller_bits::CMIC_MULTIPLE_CONTROLLERS;
        if controller.identity().cmic & shared == 0 {
            return Err(other("the subsystem has one controller only (CMIC)"));
        }
        let Some(identifiers) = shape.identifiers else {
            return Err(other("the target tells no identifiers of the namespace"));
        };
        if controller.identifiers(self.nsid()).await? != identifiers {
            return Err(other("its identifiers (UUID, NGUID, EUI64) are others"));
        }
        let geometry = controller.open_namespace(self.nsid()).await?.geometry();
        if geometry.block_bytes != shape.geometry.block_bytes || geometry.blocks < shape.geometry.blocks {
            return Err(other("its block size is another, or it is smaller"));
        }
        Ok(())
    }

    /// Adds a path, which must lead to the same namespace (see [`RemoteDevice::check_path`]; each connection is checked
    /// again before it is used).
    pub fn add_path(&self, options: ConnectOptions) -> PathId {
        self.shared.change(|table| {
            let id = PathId(table.next);
            table.next += 1;
            table.paths.push(PathEntry {
                id,
                addresses: vec![options],
            });
            id
        })
    }

    /// Adds an address that a path's connection is made to when the one before cannot be reached. False if there is no
    /// such path.
    pub fn add_alternate(&self, id: PathId, options: ConnectOptions) -> bool {
        self.shared.change(|table| {
            let path = table.paths.iter_mut().find(|path| path.id == id);
            path.map(|path| path.addresses.push(options)).is_some()
        })
    }

    /// Removes an address, and the path with its last one; what is in flight there is moved. False if there is none, or
    /// if nothing would be left.
    pub fn remove_address(&self, id: PathId, address: SocketAddr) -> bool {
        self.shared.change(|table| {
            let all: usize = table.paths.iter().map(|path| path.addresses.len()).sum();
            let Some(path) = table.paths.iter_mut().find(|path| path.id == id) else {
                return false;
            };
            let before = path.addresses.len();
            if all == 1 {
                return false;
            }
            path.addresses.retain(|options| options.address != address);
            let removed = path.addresses.len() < before;
            table.paths.retain(|path| !path.addresses.is_empty());
            removed
        })
    }

    /// How commands are shared out among paths.
    pub fn set_policy(&self, policy: Policy) {
        self.shared.change(|table| table.policy = policy);
    }

    /// How they are shared out.
    pub fn policy(&self) -> Policy {
        self.shared.table().policy
    }

    /// How long a request waits for a connection, the longest pause between attempts to connect, and when a path is given
    /// up.
    pub fn limits(&self) -> (Duration, Duration, Option<Duration>) {
        let options = &self.shared.options;
        (
            options.wait_limit,
            options.reconnect_delay_max,
            options.loss_timeout,
        )
    }

    /// The path that goes before those that are as good, where one is active.
    pub fn prefer(&self, id: PathId) {
        self.shared.change(|table| table.preferred = Some(id));
    }

    /// With which all paths authenticate from the next connection on.
    pub fn set_credentials(&self, credentials: &Option<Credentials>) {
        self.shared.change(|table| {
            for options in table.paths.iter_mut().flat_map(|path| &mut path.addresses) {
                options.credentials.clone_from(credentials);
            }
        });
    }

    /// Ends the associations of a path; each channel makes another. What is in flight there is repeated or moved.
    pub fn reset(&self, id: PathId) {
        for (orders, _) in &self.shared.table().channels {
            // A mailbox that is full has a reset in it.
            let _ = orders.try_send(Order::Reset(id));
        }
    }

    /// The paths of each open channel, as they are now.
    pub fn paths(&self) -> Vec<Vec<PathView>> {
        let table = self.shared.table();
        let open = table.channels.iter().filter(|(orders, _)| !orders.is_closed());
        open.map(|(_, view)| view.lock().unwrap_or_else(PoisonError::into_inner).clone())
            .collect()
    }
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.shared.shape.geometry
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(channel::open(self.shared.clone()))
    }
}
