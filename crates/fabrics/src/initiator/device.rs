//! A remote namespace as a block device: each channel connects by itself, and again after a loss.

use std::rc::Rc;
use std::time::Duration;

use bdev::{BlockDevice, Channel, Geometry, OpenError};
use protocols::nvme::identify::NamespaceIdentifiers;

use super::channel;
use super::controller::{ConnectError, ConnectOptions, Controller};

/// How a remote device behaves without a connection, and without answers.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Where and as whom to connect.
    pub connect: ConnectOptions,
    /// The namespace's number.
    pub nsid: u32,
    /// How long a request waits for a connection before it fails with "unavailable".
    pub wait_limit: Duration,
    /// Longest pause between attempts to connect. The first is 50 ms, and each twice the one before.
    pub reconnect_delay_max: Duration,
    /// A channel that has had no connection for so long gives up: its requests fail with "gone", for good. `None` for
    /// never.
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

/// See the module.
pub struct RemoteDevice {
    options: RemoteOptions,
    shape: Shape,
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
        Ok(Self { options, shape })
    }
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.shape.geometry
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(channel::open(self.options.clone(), self.shape))
    }
}
