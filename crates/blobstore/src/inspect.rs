//! What is on a device, before anything is written to it.

use bdev::{Geometry, IoError};

use crate::error::OpenError;
use crate::format::superblock::{ADDRESSES, FEATURE_SNAPSHOTS, Superblock};
use crate::format::{PAGE_BYTES, Page, PageError};
use crate::page_io::PageIo;

/// Foreign superblocks and partition tables lie within the first or last so many pages (1 MiB).
const LOOKED_AT_PAGES: u64 = 256;

/// What a device holds.
#[derive(Debug)]
pub(crate) enum Found {
    /// Zeros, at both ends.
    Blank,
    /// Something else.
    Foreign {
        /// Number of the first page that is not all zeros.
        page: u64,
    },
    /// A store of a version that this program does not know.
    Newer {
        /// That version.
        version: u16,
    },
    /// A store, none of whose superblocks is whole.
    Damaged([PageError; 2]),
    /// A store; the newest whole superblock, and how many copies of it are good.
    Store(Box<Superblock>, u32),
}

/// Copies a page out of a buffer of pages.
pub(crate) fn page_at(bytes: &[u8], index: usize) -> &Page {
    let (pages, _) = bytes.as_chunks::<PAGE_BYTES>();
    &pages[index]
}

/// Whether the device's blocks can be used: the number of metadata bytes if not.
pub(crate) fn unsuitable(geometry: &Geometry) -> Option<u8> {
    (geometry.metadata_bytes != 0).then_some(geometry.metadata_bytes)
}

/// Looks at a device.
pub(crate) async fn look(io: &PageIo) -> Result<Found, IoError> {
    let mut copies = Vec::new();
    for address in ADDRESSES {
        let copy = match io.read(address, 1).await {
            Ok(buffer) => Superblock::decode(page_at(&buffer, 0), address),
            Err(IoError::OutOfRange) => return Err(IoError::OutOfRange),
            Err(error) => Err(PageError::Io(error)),
        };
        copies.push(copy);
    }
    for copy in &copies {
        if let Err(PageError::Version { found }) = copy {
            return Ok(Found::Newer { version: *found });
        }
    }
    let second = copies.pop().expect("two copies were read");
    let first = copies.pop().expect("two copies were read");
    match (first, second) {
        (Ok(first), Ok(second)) if second.generation > first.generation => {
            Ok(Found::Store(Box::new(second), 1))
        }
        (Ok(first), Ok(second)) => {
            let good = 1 + u32::from(first == second);
            Ok(Found::Store(Box::new(first), good))
        }
        (Ok(good), Err(_)) | (Err(_), Ok(good)) => Ok(Found::Store(Box::new(good), 1)),
        (Err(PageError::Magic), Err(PageError::Magic)) => foreign_or_blank(io).await,
        (Err(first), Err(second)) => Ok(Found::Damaged([first, second])),
    }
}

async fn foreign_or_blank(io: &PageIo) -> Result<Found, IoError> {
    let pages = io.pages();
    let head = pages.min(LOOKED_AT_PAGES);
    let tail = (pages - head).min(LOOKED_AT_PAGES);
    for (first, count) in [(0, head), (pages - tail, tail)] {
        if count == 0 {
            continue;
        }
        let bytes = io.read(first, count as usize).await?;
        if let Some(offset) = bytes.iter().position(|&byte| byte != 0) {
            let page = first + (offset / PAGE_BYTES) as u64;
            return Ok(Found::Foreign { page });
        }
    }
    Ok(Found::Blank)
}

/// The superblock to open, or why there is none.
pub(crate) async fn superblock(io: &PageIo) -> Result<(Superblock, u32), OpenError> {
    let (superblock, good_copies) = match look(io).await? {
        Found::Store(superblock, good_copies) => (*superblock, good_copies),
        Found::Blank => return Err(OpenError::Blank),
        Found::Foreign { page } => return Err(OpenError::Foreign { page }),
        Found::Newer { version } => return Err(OpenError::NewerVersion { found: version }),
        Found::Damaged(errors) => return Err(OpenError::Superblocks(errors)),
    };
    let features = superblock.features_incompatible & !FEATURE_SNAPSHOTS | superblock.features_write;
    if features != 0 {
        return Err(OpenError::Features { features });
    }
    if io.pages() < superblock.shape.device_pages {
        return Err(OpenError::Shrunk {
            store_bytes: superblock.shape.device_pages * PAGE_BYTES as u64,
            device_bytes: io.pages() * PAGE_BYTES as u64,
        });
    }
    Ok((superblock, good_copies))
}
