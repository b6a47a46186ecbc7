//! The map of an exported volume: what the masters say, by way of the node agent.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentlink::FromTarget;
use volume::client::{MapSource, VolumeMap};
use volume::{ChunkConfig, ChunkIndex, ChunkMap, Geometry, NodeId, VolumeNumber};

use super::find;

/// See the module.
pub(super) struct Routes {
    node: NodeId,
    volume: VolumeNumber,
    map: Mutex<Arc<VolumeMap>>,
    version: AtomicU64,
}

impl Routes {
    /// Nothing is known yet of where the chunks are.
    pub(super) fn new(node: NodeId, volume: VolumeNumber, geometry: Geometry) -> Arc<Self> {
        let chunks = ChunkMap::new(usize::try_from(geometry.chunks()).unwrap_or(usize::MAX));
        Arc::new(Self {
            node,
            volume,
            map: Mutex::new(Arc::new(VolumeMap { geometry, chunks })),
            version: AtomicU64::new(1),
        })
    }

    fn map(&self) -> MutexGuard<'_, Arc<VolumeMap>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what is newer.
    pub(super) fn learn(&self, chunks: &[(ChunkIndex, ChunkConfig)]) {
        let mut map = self.map();
        let mut known = map.chunks.clone();
        for (chunk, config) in chunks {
            if let Err(error) = known.update(*chunk, config.clone()) {
                tracing::warn!(volume = self.volume.0, %error, "the masters' map of an exported volume cannot be used");
            }
        }
        let geometry = map.geometry.clone();
        *map = Arc::new(VolumeMap {
            geometry,
            chunks: known,
        });
        drop(map);
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl MapSource for Routes {
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn current(&self) -> Arc<VolumeMap> {
        self.map().clone()
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let (node, volume) = (self.node, self.volume);
        Box::pin(async move {
            let Some(exported) = find(node, volume) else {
                return;
            };
            let before = exported.routes.version();
            if let Some(node) = exported.node.upgrade() {
                node.tell(FromTarget::WantRoutes { volume: volume.0 });
            }
            exported.news.until(|| exported.routes.version() != before).await;
        })
    }
}
