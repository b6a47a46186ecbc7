//! The regular files of a data set by their position: compact, never changed, shared by all threads.

use packfs::Kind;

use crate::failure::Failure;
use crate::opened::Opened;

/// Paths in the order of the walk: each directory's names by their bytes, then its subdirectories. A file costs its path
/// and 16 bytes.
#[derive(Default)]
pub(crate) struct Files {
    paths: Vec<u8>,
    /// Where each path ends.
    ends: Vec<u64>,
    sizes: Vec<u64>,
}

impl Files {
    /// Walks the whole data set.
    pub(crate) async fn list(opened: &Opened) -> Result<Self, Failure> {
        let fail = |error| Failure::from(error);
        let root = opened.reader.lookup(&opened.full(b"")).await.map_err(fail)?;
        let mut walk = opened.reader.walk(root.number);
        let mut files = Self::default();
        loop {
            let batch = walk.next_batch().await.map_err(fail)?;
            if batch.is_empty() {
                break;
            }
            for found in batch {
                if found.entry.kind() == Kind::File {
                    let inode = opened.reader.inode_of(found.entry).await.map_err(fail)?;
                    files.paths.extend_from_slice(&found.path);
                    files.ends.push(files.paths.len() as u64);
                    files.sizes.push(inode.size);
                }
            }
            // Other calls get their turn.
            reactor::yield_now().await;
        }
        files.paths.shrink_to_fit();
        files.ends.shrink_to_fit();
        files.sizes.shrink_to_fit();
        Ok(files)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The path at a position.
    pub(crate) fn path(&self, position: usize) -> Option<&[u8]> {
        let end = *self.ends.get(position)?;
        let begin = position.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.paths.get(begin as usize..end as usize)
    }

    /// The length in bytes of the file at a position.
    pub(crate) fn size(&self, position: usize) -> Option<u64> {
        self.sizes.get(position).copied()
    }
}
