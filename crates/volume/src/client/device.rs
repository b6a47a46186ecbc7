//! The device that all cores share.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::{BlockDevice, Channel, OpenError};

use crate::identity::VolumeNumber;

use super::channel::VolumeChannel;
use super::claims::Claims;
use super::peers::Peers;
use super::source::{MapSource, Sessions};
use super::unflushed::Unflushed;

/// Gives the calling core its ways to the nodes; called once for each channel.
pub type OpenPeers = Arc<dyn Fn() -> Rc<dyn Peers> + Send + Sync>;

/// How long the client's face tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// A request that has not ended after this time fails with [`bdev::IoError::Unavailable`]. Of a zeroing,
    /// deallocating or fencing request, which may be as long as the volume, each piece has this time.
    pub time_limit: Duration,
    /// The first pause before a refused write is made again; each further one is twice as long.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// Pieces of one request under way at once.
    pub window: usize,
    /// A node that answers nothing for so long, of what it was asked, is silent: its reads are asked of other copies, and its
    /// writes go on elsewhere as soon as the masters say where.
    pub silence: Duration,
    /// Every write is durable on every copy in sync before it ends, and there is no write cache.
    pub sync_writes: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            time_limit: Duration::from_secs(20),
            pause_min: Duration::from_millis(1),
            pause_max: Duration::from_millis(250),
            window: 32,
            silence: Duration::from_millis(100),
            sync_writes: false,
        }
    }
}

/// A volume as a block device. See [`crate::client`].
pub struct VolumeDevice {
    pub(super) volume: VolumeNumber,
    pub(super) source: Arc<dyn MapSource>,
    pub(super) sessions: Sessions,
    pub(super) options: ClientOptions,
    pub(super) unflushed: Arc<Unflushed>,
    open_peers: OpenPeers,
}

impl VolumeDevice {
    /// A device over `volume`. Nothing is connected until something is asked.
    pub fn new(
        volume: VolumeNumber,
        source: Arc<dyn MapSource>,
        sessions: Sessions,
        open_peers: OpenPeers,
        options: ClientOptions,
    ) -> Self {
        let chunks = source.current().geometry.chunks();
        Self {
            volume,
            source,
            sessions,
            options,
            unflushed: Arc::new(Unflushed::new(chunks)),
            open_peers,
        }
    }

    /// A channel for the calling core, with more to it than [`bdev::Channel`] has.
    pub fn open(&self) -> VolumeChannel {
        self.open_with((self.open_peers)())
    }

    /// As [`VolumeDevice::open`], with ways to the nodes that the core has already.
    pub fn open_with(&self, peers: Rc<dyn Peers>) -> VolumeChannel {
        VolumeChannel::new(self, peers, None)
    }

    /// A channel for a host behind a portal, whose writes go under claims: see [`bdev::Channel::leave`].
    pub fn open_for_host(&self, peers: Rc<dyn Peers>, claims: Rc<Claims>) -> VolumeChannel {
        VolumeChannel::new(self, peers, Some(claims))
    }
}

/// The block device's shape for a volume's. Metadata beside blocks is not offered yet.
pub(super) fn shape(geometry: &crate::Geometry, options: &ClientOptions) -> bdev::Geometry {
    bdev::Geometry {
        block_bytes: geometry.block_bytes,
        blocks: geometry.volume_blocks(),
        metadata_bytes: 0,
        boundary_blocks: geometry.stripe_unit_blocks,
        write_cache: !options.sync_writes,
    }
}

/// What a node's store takes and gives back at once, unless it was formatted otherwise, in bytes.
pub const CLUSTER_BYTES: u32 = 1 << 20;

/// Blocks of the volume that lie in whole clusters of its copies together. In stripe units smaller than those the chunks of a group take
/// turns.
fn granule(geometry: &crate::Geometry) -> u32 {
    let cluster = CLUSTER_BYTES / geometry.block_bytes;
    let width = geometry.group_chunks.iter().copied().max().unwrap_or(1);
    if geometry.stripe_unit_blocks.is_multiple_of(cluster) {
        cluster
    } else {
        cluster.saturating_mul(width)
    }
}

impl BlockDevice for VolumeDevice {
    fn geometry(&self) -> bdev::Geometry {
        shape(&self.source.current().geometry, &self.options)
    }

    fn granule_blocks(&self) -> u32 {
        granule(&self.source.current().geometry)
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(self.open()))
    }
}
