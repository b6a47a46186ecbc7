//! What the client's face needs to know from the masters: the map, and the host's session.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::geometry::Geometry;
use crate::map::ChunkMap;

/// A volume's layout and the configurations of its chunks, as known at some moment.
#[derive(Clone, Debug)]
pub struct VolumeMap {
    /// The layout. A later map may have more stripe groups; nothing else of it changes.
    pub geometry: Geometry,
    /// The chunks' configurations.
    pub chunks: ChunkMap,
}

/// Where maps come from; shared by all cores.
pub trait MapSource: Send + Sync {
    /// Grows whenever [`MapSource::current`] has something newer. Read for each request, so cheap.
    fn version(&self) -> u64;

    /// What is known now; at least what `version` said before the call.
    fn current(&self) -> Arc<VolumeMap>;

    /// Whether the volume is known to have grown beyond what [`MapSource::current`] says: a portal's flush by it would
    /// leave out what a host wrote through another portal.
    fn is_behind(&self) -> bool {
        false
    }

    /// Asks for news and ends when they have come or could not be had. Polled on a reactor; dropping it
    /// gives the attempt up. How often it is called is bounded by the caller.
    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// The number of the session under which a host's writes count; clones share it. It belongs to the host,
/// not to a volume or a core, since nodes know one session of a host at a time.
#[derive(Clone, Debug)]
pub struct Sessions(Arc<AtomicU64>);

impl Sessions {
    /// Begins with a number greater than any this host has used before: the masters say which.
    pub fn starting_at(first: u64) -> Self {
        Self(Arc::new(AtomicU64::new(first.max(1))))
    }

    /// The session that new writes belong to.
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Opens a new session unless one newer than `seen` is open already, so that many writes that are
    /// lost together open one. Returns the session now current.
    pub fn renew(&self, seen: u64) -> u64 {
        let next = seen.saturating_add(1);
        match self
            .0
            .compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => next,
            Err(current) => current,
        }
    }
}
