//! Metadata pages of a blob: the root (index 0), more attributes (1 to 4), more of the cluster map (16 and on).

use super::{PAGE_BYTES, Page, PageError, get_u32, get_u64, header, put};

pub(crate) mod field {
    crate::format::fields! {
        SIZE_PAGES "size_pages" 64 8;
        PARENT "parent" 72 8;
        FLAGS "flags" 80 8;
        ATTRIBUTE_BYTES "attribute_bytes" 88 4;
        PARENT_PAGES "parent_pages" 92 8;
        RESERVED "root_reserved" 100 28;
        ATTRIBUTES "attributes" 128 1920;
        MAP "map" 2048 2048;
    }
}

/// Pages that continue attributes or map.
pub(crate) mod continued {
    crate::format::fields! {
        BYTES "contents" 64 4032;
    }
}

/// Clusters that the root maps.
pub(crate) const ROOT_CLUSTERS: usize = field::MAP.length / 4;
/// Clusters that another map page maps.
pub(crate) const PAGE_CLUSTERS: usize = continued::BYTES.length / 4;
/// Pages of attributes after the root, at most.
pub(crate) const ATTRIBUTE_PAGES: usize = 4;
/// Index of the first map page after the root.
pub(crate) const MAP_INDEX: u32 = 16;
/// Map pages after the root, at most: 15.7 TiB with clusters of 1 MiB.
pub(crate) const MAP_PAGES_MAX: usize = 16_384;
/// Bytes that all attributes of a blob take at most.
pub const ATTRIBUTES_BYTES_MAX: usize = field::ATTRIBUTES.length + ATTRIBUTE_PAGES * continued::BYTES.length;

/// In the flags: the blob is a snapshot, which nobody writes to.
pub(crate) const FLAG_SNAPSHOT: u64 = 1;

/// The root page's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) size_pages: u64,
    /// The blob whose clusters show through where this one has none; 0 for none.
    pub(crate) parent: u64,
    /// Only this one's first so many pages show it.
    pub(crate) parent_pages: u64,
    pub(crate) flags: u64,
    pub(crate) attribute_bytes: u32,
}

/// A root page without header.
pub(crate) fn encode_root(root: &Root, attributes: &[u8], clusters: &[u32]) -> Page {
    let mut page = [0; PAGE_BYTES];
    put(&mut page, field::SIZE_PAGES, &root.size_pages.to_le_bytes());
    put(&mut page, field::PARENT, &root.parent.to_le_bytes());
    put(&mut page, field::PARENT_PAGES, &root.parent_pages.to_le_bytes());
    put(&mut page, field::FLAGS, &root.flags.to_le_bytes());
    put(
        &mut page,
        field::ATTRIBUTE_BYTES,
        &root.attribute_bytes.to_le_bytes(),
    );
    let start = field::ATTRIBUTES.offset;
    page[start..start + attributes.len()].copy_from_slice(attributes);
    put_clusters(&mut page[field::MAP.offset..], clusters);
    page
}

/// A page that continues attributes, without header.
pub(crate) fn encode_attributes(attributes: &[u8]) -> Page {
    let mut page = [0; PAGE_BYTES];
    page[header::BYTES..header::BYTES + attributes.len()].copy_from_slice(attributes);
    page
}

/// A page that continues the map, without header.
pub(crate) fn encode_map(clusters: &[u32]) -> Page {
    let mut page = [0; PAGE_BYTES];
    put_clusters(&mut page[header::BYTES..], clusters);
    page
}

fn put_clusters(bytes: &mut [u8], clusters: &[u32]) {
    let (places, _) = bytes.as_chunks_mut::<4>();
    for (place, cluster) in places.iter_mut().zip(clusters) {
        *place = cluster.to_le_bytes();
    }
}

/// The numbers of a verified root page.
pub(crate) fn decode_root(page: &Page) -> Result<Root, PageError> {
    let root = Root {
        size_pages: get_u64(page, field::SIZE_PAGES),
        parent: get_u64(page, field::PARENT),
        parent_pages: get_u64(page, field::PARENT_PAGES),
        flags: get_u64(page, field::FLAGS),
        attribute_bytes: get_u32(page, field::ATTRIBUTE_BYTES),
    };
    if root.attribute_bytes as usize > ATTRIBUTES_BYTES_MAX {
        return Err(PageError::Contents("its attributes are longer than they can be"));
    }
    if root.flags & !FLAG_SNAPSHOT != 0 {
        return Err(PageError::Contents(
            "it has flags that this program does not know",
        ));
    }
    if root.parent_pages > root.size_pages || root.parent == 0 && root.parent_pages != 0 {
        return Err(PageError::Contents("it shows more of a parent than it can"));
    }
    Ok(root)
}

/// The attribute bytes of a verified page: of the root, or of a page that continues them.
pub(crate) fn attribute_bytes(page: &Page, index: u32) -> &[u8] {
    if index == 0 {
        &page[field::ATTRIBUTES.offset..field::ATTRIBUTES.offset + field::ATTRIBUTES.length]
    } else {
        &page[header::BYTES..]
    }
}

/// The clusters of a verified page: of the root, or of a page that continues the map.
pub(crate) fn clusters(page: &Page, index: u32) -> impl Iterator<Item = u32> + '_ {
    let start = if index == 0 {
        field::MAP.offset
    } else {
        header::BYTES
    };
    page[start..]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
}
