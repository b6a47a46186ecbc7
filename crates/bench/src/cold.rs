//! Making local files cold: what the kernel keeps in memory of them goes.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

/// Empties the page cache and the caches of directory entries and inodes of the whole machine, after writing out what
/// is dirty. Only the machine's root may. Blocks, for seconds where much is dirty.
pub fn drop_caches() -> io::Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3\n")
}

/// Drops a file's clean pages from the page cache; any user who may read it may. Directory entries and inodes stay.
pub fn evict(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}
