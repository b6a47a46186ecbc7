//! The map of an exported volume: what the masters say, by way of the node agent.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentlink::FromTarget;
use volume::client::{MapSource, VolumeMap};
use volume::{ChunkConfig, ChunkIndex, ChunkMap, Geometry, NodeId, VolumeNumber};

use super::find;

type Places = BTreeMap<u32, Vec<(u128, u128)>>;

/// See the module.
pub(super) struct Routes {
    node: NodeId,
    volume: VolumeNumber,
    map: Mutex<Arc<VolumeMap>>,
    /// Node and disk of each copy, by chunk index, for the configurations to come: a map is made anew once, not for each part.
    places: Mutex<Places>,
    /// Chunks that the volume is said to have.
    announced: AtomicU64,
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
            places: Mutex::default(),
            announced: AtomicU64::new(0),
            version: AtomicU64::new(1),
        })
    }

    fn map(&self) -> MutexGuard<'_, Arc<VolumeMap>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chunks that are served: fewer than the volume has, while it has just grown.
    pub(super) fn chunks(&self) -> u32 {
        u32::try_from(self.map().geometry.chunks()).unwrap_or(u32::MAX)
    }

    /// The volume is said to have grown to this; it is served so only after [`Routes::grow`].
    pub(super) fn announce(&self, geometry: &Geometry) {
        self.announced.fetch_max(geometry.chunks(), Ordering::AcqRel);
    }

    /// The volume has grown to this. Nothing is known yet of where the chunks are that came.
    pub(super) fn grow(&self, geometry: Geometry) {
        let mut map = self.map();
        let mut chunks = map.chunks.clone();
        chunks.grow(usize::try_from(geometry.chunks()).unwrap_or(usize::MAX));
        *map = Arc::new(VolumeMap { geometry, chunks });
        drop(map);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Notes on which disks of their nodes the copies lie that the next [`Routes::learn`] names.
    pub(super) fn lie_on(&self, chunks: Vec<(u32, Vec<(u128, u128)>)>) {
        self.places().extend(chunks);
    }

    /// Takes over what is newer, and where those copies lie as far as that was said before.
    pub(super) fn learn(&self, chunks: &[(ChunkIndex, ChunkConfig)]) {
        let places = std::mem::take(&mut *self.places());
        let mut map = self.map();
        let mut known = map.chunks.clone();
        for (chunk, config) in chunks {
            if let Err(error) = known.update(*chunk, config.clone()) {
                tracing::warn!(volume = self.volume.0, %error, "the masters' map of an exported volume cannot be used");
            }
        }
        for (chunk, copies) in places {
            for (node, disk) in copies {
                known.lies_on(ChunkIndex(chunk), NodeId(node), disk);
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

    fn is_behind(&self) -> bool {
        self.announced.load(Ordering::Acquire) > self.map().geometry.chunks()
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

#[cfg(test)]
mod tests {
    use foundation::Epoch;
    use volume::{Incarnation, Membership};

    use super::*;

    #[test]
    fn where_copies_lie_is_learned_and_outlives_the_next_epoch() {
        let geometry = Geometry {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit_blocks: 4,
            chunk_blocks: 32,
            region_blocks: 8,
            copies: 1,
            minimum: 1,
            group_chunks: vec![1],
        };
        let routes = Routes::new(NodeId(1), VolumeNumber(7), geometry);
        let chunk = ChunkIndex(0);
        let config = |epoch| ChunkConfig {
            epoch: Epoch(epoch),
            write_node: NodeId(2),
            members: vec![Membership {
                node: NodeId(2),
                incarnation: Incarnation(1),
            }],
        };
        routes.learn(&[(chunk, config(1))]);
        let before = routes.current();
        routes.lie_on(vec![(0, vec![(2, 77), (3, 78)]), (9, vec![(2, 77)])]);
        routes.learn(&[(chunk, config(1))]);
        let after = routes.current();
        assert_ne!(
            before.chunks.write_route(chunk),
            after.chunks.write_route(chunk),
            "by another disk"
        );
        routes.learn(&[(chunk, config(2))]);
        let mut later = routes.current().chunks.write_route(chunk).unwrap();
        later.epoch = Epoch(1);
        assert_eq!(Some(later), after.chunks.write_route(chunk));
    }

    #[test]
    fn a_portal_is_behind_from_the_word_of_a_growth_until_it_serves_it() {
        let geometry = |group_chunks: &[u32]| Geometry {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit_blocks: 4,
            chunk_blocks: 32,
            region_blocks: 8,
            copies: 1,
            minimum: 1,
            group_chunks: group_chunks.to_vec(),
        };
        let routes = Routes::new(NodeId(1), VolumeNumber(7), geometry(&[1]));
        assert!(!routes.is_behind());
        routes.announce(&geometry(&[1, 2]));
        routes.announce(&geometry(&[1, 2, 1]));
        assert!(routes.is_behind());
        routes.grow(geometry(&[1, 2]));
        assert!(routes.is_behind());
        routes.grow(geometry(&[1, 2, 1]));
        assert!(!routes.is_behind());
    }
}
