//! How the room of a volume is used, for people.

use std::rc::Rc;

use foundation::ByteCount;

use crate::cache::PageCache;
use crate::error::OpenError;
use crate::format::PAGE_BYTES_U64;
use crate::format::snapshot::Snapshot;
use crate::format::superblock::{Identity, Totals};
use crate::io::Medium;
use crate::lease::LeaseSource;
use crate::lease::hold::ReaderHold;
use crate::mount::mount;
use crate::snapshots;
use crate::space::ReaderFloor;
use crate::tree::Tree;
use crate::writer::load_space;

/// Room, as of the newest generation. Free, waiting and the rest make the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The generation.
    pub generation: u64,
    /// Bytes of the volume that are used.
    pub volume: ByteCount,
    /// Bytes that a writer may take now.
    pub free: ByteCount,
    /// Bytes that become free once commits, readers and snapshots are past.
    pub waiting: ByteCount,
    /// Those of them that snapshots by name hold.
    pub held: ByteCount,
    /// Bytes in packed segments that no file uses, which compaction makes free; beside shared ones, once these are not shared any more.
    pub dead: ByteCount,
    /// Contents.
    pub totals: Totals,
    /// Snapshots by name, oldest first.
    pub snapshots: Vec<Snapshot>,
}

/// Reads the record of space and the list of snapshots, under a reader's lease. Takes a few reads.
///
/// # Errors
/// When there is no file system, or when these cannot be read.
pub async fn usage(
    medium: &Medium,
    leases: Rc<dyn LeaseSource>,
    identity: Option<&Identity>,
) -> Result<Usage, OpenError> {
    let hold = ReaderHold::acquire(leases, None).await?;
    let read = usage_under(medium, &hold, identity).await;
    // The lease ends by itself if this fails.
    let _ = hold.release().await;
    read
}

async fn usage_under(
    medium: &Medium,
    hold: &ReaderHold,
    identity: Option<&Identity>,
) -> Result<Usage, OpenError> {
    let superblock = mount(medium, identity).await?.superblock;
    hold.hold_from(superblock.generation).await?;
    let space = load_space(medium, &superblock).await?;
    let tree = Tree::new(medium.clone(), PageCache::new(0), superblock.root);
    let snapshots = snapshots::list(&tree).await?;
    let floor = ReaderFloor(snapshots.iter().map(|snapshot| snapshot.generation).min());
    let pages = |pages: u64| ByteCount(pages * PAGE_BYTES_U64);
    Ok(Usage {
        generation: superblock.generation,
        volume: ByteCount(superblock.volume_bytes),
        free: pages(space.free_pages()),
        waiting: pages(space.waiting_pages()),
        held: pages(space.held_pages(floor)),
        dead: ByteCount(space.dead_bytes()),
        totals: superblock.totals,
        snapshots,
    })
}
