//! Which cluster of the device holds which cluster of a blob. 0 is none: cluster 0 holds the superblock. Where a blob has a
//! parent, 0 lets the parent show through, and [`HOLE`] does not.

use crate::format::blob_page::{MAP_INDEX, MAP_PAGES_MAX, PAGE_CLUSTERS, ROOT_CLUSTERS};

/// Reads zeros, whatever the parent has there. No device has a cluster of this number.
pub(crate) const HOLE: u32 = u32::MAX;

/// Clusters of the largest blob.
pub(crate) const BLOB_CLUSTERS_MAX: u64 = (ROOT_CLUSTERS + MAP_PAGES_MAX * PAGE_CLUSTERS) as u64;

/// In memory as on the device: one part for the root page, one for each further map page that has an entry.
#[derive(Debug)]
pub(crate) struct ClusterMap {
    root: Box<[u32; ROOT_CLUSTERS]>,
    pages: Vec<Option<Box<[u32; PAGE_CLUSTERS]>>>,
    /// Entries that name a cluster of the device.
    allocated: u64,
}

/// Index of the metadata page that maps a cluster of the blob.
pub(crate) fn page_index(cluster_index: u64) -> u32 {
    match cluster_index.checked_sub(ROOT_CLUSTERS as u64) {
        None => 0,
        Some(further) => MAP_INDEX + (further / PAGE_CLUSTERS as u64) as u32,
    }
}

/// The first cluster of the blob that a map page maps.
pub(crate) fn first_cluster(page_index: u32) -> u64 {
    match page_index.checked_sub(MAP_INDEX) {
        None => 0,
        Some(further) => ROOT_CLUSTERS as u64 + u64::from(further) * PAGE_CLUSTERS as u64,
    }
}

impl ClusterMap {
    /// Nothing allocated.
    pub(crate) fn new() -> Self {
        Self {
            root: Box::new([0; ROOT_CLUSTERS]),
            pages: Vec::new(),
            allocated: 0,
        }
    }

    /// How many clusters of the device it names.
    pub(crate) fn allocated_count(&self) -> u64 {
        self.allocated
    }

    /// As it stands in the map: the device's cluster, [`HOLE`], or 0.
    #[inline]
    pub(crate) fn entry(&self, cluster_index: u64) -> u32 {
        if cluster_index < ROOT_CLUSTERS as u64 {
            self.root[cluster_index as usize]
        } else {
            let further = cluster_index as usize - ROOT_CLUSTERS;
            match self.pages.get(further / PAGE_CLUSTERS) {
                Some(Some(page)) => page[further % PAGE_CLUSTERS],
                _ => 0,
            }
        }
    }

    /// Sets a cluster; 0 for none, or [`HOLE`]. The index must be below [`BLOB_CLUSTERS_MAX`].
    pub(crate) fn set(&mut self, cluster_index: u64, cluster: u32) {
        assert!(
            cluster_index < BLOB_CLUSTERS_MAX,
            "cluster {cluster_index} of a blob"
        );
        let is_allocated = |entry: u32| entry != 0 && entry != HOLE;
        self.allocated -= u64::from(is_allocated(self.entry(cluster_index)));
        self.allocated += u64::from(is_allocated(cluster));
        if cluster_index < ROOT_CLUSTERS as u64 {
            self.root[cluster_index as usize] = cluster;
            return;
        }
        let further = cluster_index as usize - ROOT_CLUSTERS;
        let page = further / PAGE_CLUSTERS;
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([0; PAGE_CLUSTERS]));
        page[further % PAGE_CLUSTERS] = cluster;
    }

    /// All allocated clusters from an index on: (index in the blob, device's cluster).
    pub(crate) fn allocated_from(&self, first: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.named_from(first).filter(|&(_, cluster)| cluster != HOLE)
    }

    /// As [`ClusterMap::allocated_from`], with the [`HOLE`]s.
    pub(crate) fn named_from(&self, first: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let root = self
            .root
            .iter()
            .enumerate()
            .map(|(index, &cluster)| (index as u64, cluster));
        let further = self.pages.iter().enumerate().flat_map(|(page, clusters)| {
            let start = first_cluster(MAP_INDEX + page as u32);
            clusters
                .iter()
                .flat_map(move |clusters| (start..).zip(clusters.iter().copied()))
        });
        root.chain(further)
            .filter(move |&(index, cluster)| index >= first && cluster != 0)
    }

    /// Clusters of a metadata page, as they are encoded.
    pub(crate) fn page(&self, page_index: u32) -> &[u32] {
        match page_index.checked_sub(MAP_INDEX) {
            None => &*self.root,
            Some(further) => match self.pages.get(further as usize) {
                Some(Some(page)) => &**page,
                _ => &[],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_found_where_they_were_put() {
        let mut map = ClusterMap::new();
        let places = [0, 511, 512, 1519, 1520, 100_000, BLOB_CLUSTERS_MAX - 1];
        for (number, &index) in places.iter().enumerate() {
            map.set(index, number as u32 + 1);
        }
        for (number, &index) in places.iter().enumerate() {
            assert_eq!(map.entry(index), number as u32 + 1);
            let page = page_index(index);
            let inside = (index - first_cluster(page)) as usize;
            assert_eq!(map.page(page)[inside], number as u32 + 1);
        }
        assert_eq!(map.entry(513), 0);
        assert_eq!(page_index(1519), MAP_INDEX);
        assert_eq!(page_index(1520), MAP_INDEX + 1);
        let found: Vec<u64> = map.allocated_from(512).map(|(index, _)| index).collect();
        assert_eq!(found, places[2..]);
        map.set(600, HOLE);
        assert_eq!(map.allocated_from(512).count() + 1, map.named_from(512).count());
        // Put again, taken away, hidden: it is counted what is named.
        for (index, cluster) in [(0, 9), (511, 0), (511, 0), (600, 0), (1519, HOLE), (1600, 4)] {
            map.set(index, cluster);
            assert_eq!(map.allocated_count(), map.allocated_from(0).count() as u64);
        }
        assert_eq!(map.allocated_count(), 6);
    }
}
