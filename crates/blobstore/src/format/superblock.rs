//! The store's root: its geometry, and where the table pages lie.

use super::{
    COUNT_MAX, Identity, Kind, PAGE_BYTES, Page, PageError, bytes, get_u32, get_u64, put, seal, verify,
};

/// The two copies' page numbers.
pub(crate) const ADDRESSES: [u64; 2] = [0, 1];
/// Room for so many pointers to table pages.
pub(crate) const POINTERS_MAX: usize = 240;
const POINTER_BYTES: usize = 16;
/// Bytes of metadata that a checksum region keeps for each page.
pub(crate) const CHECKSUM_BYTES_PER_PAGE: u32 = 8;

/// In `features_incompatible`: blobs may have parents, and holes in their maps.
pub(crate) const FEATURE_SNAPSHOTS: u64 = 1;

pub(crate) mod field {
    crate::format::fields! {
        OWNER "owner" 64 16;
        DEVICE_PAGES "device_pages" 80 8;
        CLUSTER_PAGES "cluster_pages" 88 4;
        METADATA_FIRST_PAGE "metadata_first_page" 92 4;
        METADATA_PAGES "metadata_pages" 96 4;
        BLOB_PAGES_MAX "blob_pages_max" 100 4;
        CHECKSUM_FIRST_PAGE "checksum_first_page" 104 8;
        CHECKSUM_PAGES "checksum_pages" 112 8;
        CHECKSUM_KIND "checksum_kind" 120 4;
        CHECKSUM_BYTES "checksum_bytes_per_page" 124 4;
        FIRST_DATA_CLUSTER "first_data_cluster" 128 4;
        CLUSTERS "clusters" 132 4;
        UNTOUCHED_CLUSTER "untouched_cluster" 136 4;
        TABLE_PAGES "table_pages" 140 4;
        NEXT_BLOB "next_blob" 144 8;
        FEATURES_INCOMPATIBLE "features_incompatible" 152 8;
        FEATURES_WRITE "features_write" 160 8;
        RESERVED "superblock_reserved" 168 88;
        POINTERS "table_pointers" 256 3840;
    }
}

/// Fixed at format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) uuid: [u8; 16],
    pub(crate) owner: [u8; 16],
    pub(crate) device_pages: u64,
    pub(crate) cluster_pages: u32,
    pub(crate) metadata_first_page: u32,
    pub(crate) metadata_pages: u32,
    pub(crate) blob_pages_max: u32,
    pub(crate) checksum_first_page: u64,
    pub(crate) checksum_pages: u64,
    pub(crate) first_data_cluster: u32,
    pub(crate) clusters: u32,
}

/// Where the two copies of a table page lie; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) pages: [u32; 2],
    pub(crate) crc: [u32; 2],
}

/// One state of the whole store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) shape: Shape,
    pub(crate) generation: u64,
    /// No cluster from here on was used since the format made them read zeros.
    pub(crate) untouched_cluster: u32,
    pub(crate) next_blob: u64,
    pub(crate) features_incompatible: u64,
    pub(crate) features_write: u64,
    pub(crate) table: Vec<Pointer>,
}

impl Superblock {
    /// The page as it is written to `address`.
    pub(crate) fn encode(&self, address: u64) -> Page {
        let mut page = [0; PAGE_BYTES];
        let shape = &self.shape;
        put(&mut page, field::OWNER, &shape.owner);
        for (place, value) in [
            (field::DEVICE_PAGES, shape.device_pages),
            (field::CHECKSUM_FIRST_PAGE, shape.checksum_first_page),
            (field::CHECKSUM_PAGES, shape.checksum_pages),
            (field::NEXT_BLOB, self.next_blob),
            (field::FEATURES_INCOMPATIBLE, self.features_incompatible),
            (field::FEATURES_WRITE, self.features_write),
        ] {
            put(&mut page, place, &value.to_le_bytes());
        }
        for (place, value) in [
            (field::CLUSTER_PAGES, shape.cluster_pages),
            (field::METADATA_FIRST_PAGE, shape.metadata_first_page),
            (field::METADATA_PAGES, shape.metadata_pages),
            (field::BLOB_PAGES_MAX, shape.blob_pages_max),
            (field::CHECKSUM_BYTES, CHECKSUM_BYTES_PER_PAGE),
            (field::FIRST_DATA_CLUSTER, shape.first_data_cluster),
            (field::CLUSTERS, shape.clusters),
            (field::UNTOUCHED_CLUSTER, self.untouched_cluster),
            (field::TABLE_PAGES, self.table.len() as u32),
        ] {
            put(&mut page, place, &value.to_le_bytes());
        }
        let (pointers, _) = page[field::POINTERS.offset..].as_chunks_mut::<POINTER_BYTES>();
        for (place, pointer) in pointers.iter_mut().zip(&self.table) {
            let words = [pointer.pages[0], pointer.pages[1], pointer.crc[0], pointer.crc[1]];
            for (place, word) in place.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *place = word.to_le_bytes();
            }
        }
        let identity = Identity {
            kind: Kind::Superblock,
            address,
            generation: self.generation,
            uuid: shape.uuid,
            blob: 0,
            index: 0,
        };
        seal(&mut page, &identity, PAGE_BYTES);
        page
    }

    /// Reads a copy back; everything that later code relies on is checked here.
    pub(crate) fn decode(page: &Page, address: u64) -> Result<Self, PageError> {
        let (identity, _) = verify(page, Kind::Superblock, address)?;
        let shape = Shape {
            uuid: identity.uuid,
            owner: bytes(page, field::OWNER),
            device_pages: get_u64(page, field::DEVICE_PAGES),
            cluster_pages: get_u32(page, field::CLUSTER_PAGES),
            metadata_first_page: get_u32(page, field::METADATA_FIRST_PAGE),
            metadata_pages: get_u32(page, field::METADATA_PAGES),
            blob_pages_max: get_u32(page, field::BLOB_PAGES_MAX),
            checksum_first_page: get_u64(page, field::CHECKSUM_FIRST_PAGE),
            checksum_pages: get_u64(page, field::CHECKSUM_PAGES),
            first_data_cluster: get_u32(page, field::FIRST_DATA_CLUSTER),
            clusters: get_u32(page, field::CLUSTERS),
        };
        shape.check()?;
        if get_u32(page, field::CHECKSUM_KIND) != 0 {
            return Err(PageError::Contents(
                "it keeps checksums of data, which version 1 does not know",
            ));
        }
        let untouched_cluster = get_u32(page, field::UNTOUCHED_CLUSTER);
        if untouched_cluster < shape.first_data_cluster || untouched_cluster > shape.clusters {
            return Err(PageError::Contents(
                "the mark of untouched clusters lies outside the device",
            ));
        }
        let table_pages = get_u32(page, field::TABLE_PAGES) as usize;
        if table_pages > shape.table_pages_max() {
            return Err(PageError::Contents(
                "it names more table pages than the store can have",
            ));
        }
        let next_blob = get_u64(page, field::NEXT_BLOB);
        if identity.generation > COUNT_MAX || next_blob > COUNT_MAX {
            return Err(PageError::Contents("it counts further than any store"));
        }
        let (pointers, _) = page[field::POINTERS.offset..].as_chunks::<POINTER_BYTES>();
        let table: Vec<Pointer> = pointers[..table_pages].iter().map(decode_pointer).collect();
        if table
            .iter()
            .any(|pointer| pointer.pages.iter().any(|&page| !shape.is_metadata(page)))
        {
            return Err(PageError::Contents(
                "a table page lies outside the metadata region",
            ));
        }
        Ok(Self {
            shape,
            generation: identity.generation,
            untouched_cluster,
            next_blob,
            features_incompatible: get_u64(page, field::FEATURES_INCOMPATIBLE),
            features_write: get_u64(page, field::FEATURES_WRITE),
            table,
        })
    }
}

fn decode_pointer(bytes: &[u8; POINTER_BYTES]) -> Pointer {
    let mut words = [0; 4];
    for (word, part) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*part);
    }
    Pointer {
        pages: [words[0], words[1]],
        crc: [words[2], words[3]],
    }
}

impl Shape {
    /// Whether the page number lies in the metadata region.
    pub(crate) fn is_metadata(&self, page: u32) -> bool {
        page.checked_sub(self.metadata_first_page)
            .is_some_and(|index| index < self.metadata_pages)
    }

    /// Table pages at most.
    pub(crate) fn table_pages_max(&self) -> usize {
        (self.blob_pages_max as usize).div_ceil(super::table::ENTRIES_PER_PAGE)
    }

    fn check(&self) -> Result<(), PageError> {
        let bad = |why| Err(PageError::Contents(why));
        let cluster_pages = u64::from(self.cluster_pages);
        if !self.cluster_pages.is_power_of_two() || self.cluster_pages > crate::layout::CLUSTER_PAGES_MAX {
            return bad("the cluster size is not a power of two of pages up to 64 MiB");
        }
        if self.device_pages > u64::MAX / PAGE_BYTES as u64 {
            return bad("the device has more bytes than can be counted");
        }
        if u64::from(self.clusters) * cluster_pages > self.device_pages {
            return bad("the clusters reach beyond the device");
        }
        if self.first_data_cluster == 0 || self.first_data_cluster > self.clusters {
            return bad("the first data cluster lies outside the device");
        }
        let metadata_end = u64::from(self.metadata_first_page) + u64::from(self.metadata_pages);
        let checksum_end = self.checksum_first_page.checked_add(self.checksum_pages);
        let data_first_page = u64::from(self.first_data_cluster) * cluster_pages;
        if u64::from(self.metadata_first_page) < ADDRESSES.len() as u64
            || checksum_end.is_none_or(|end| end > data_first_page)
            || metadata_end > self.checksum_first_page
        {
            return bad("its regions overlap");
        }
        let needed = crate::layout::metadata_pages_for(self.blob_pages_max);
        if self.table_pages_max() > POINTERS_MAX || needed > u64::from(self.metadata_pages) {
            return bad("the metadata region is too small for the number of blob pages");
        }
        Ok(())
    }
}
