//! The regular files of a data set by their position: compact, never changed, shared by all threads.

use packfs::Kind;

use crate::failure::Failure;
use crate::opened::Opened;

/// Paths one behind another.
#[derive(Default)]
struct Paths {
    bytes: Vec<u8>,
    /// Where each path ends.
    ends: Vec<u64>,
}

impl Paths {
    fn push(&mut self, path: &[u8]) {
        self.bytes.extend_from_slice(path);
        self.ends.push(self.bytes.len() as u64);
    }

    fn get(&self, number: usize) -> Option<&[u8]> {
        let end = *self.ends.get(number)?;
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(begin as usize..end as usize)
    }

    fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

/// Paths in the order of the walk: each directory's names by their bytes, then its subdirectories. A file costs its path
/// and 16 bytes. Symbolic links have no position; their paths are kept beside, for who follows them.
#[derive(Default)]
pub(crate) struct Files {
    paths: Paths,
    sizes: Vec<u64>,
    links: Paths,
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
                match found.entry.kind() {
                    Kind::File => {
                        let inode = opened.reader.inode_of(found.entry).await.map_err(fail)?;
                        files.paths.push(&found.path);
                        files.sizes.push(inode.size);
                    }
                    Kind::Symlink => files.links.push(&found.path),
                    _ => {}
                }
            }
            // Other calls get their turn.
            reactor::yield_now().await;
        }
        files.paths.shrink_to_fit();
        files.sizes.shrink_to_fit();
        files.links.shrink_to_fit();
        Ok(files)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.sizes.len()
    }

    /// The path at a position.
    pub(crate) fn path(&self, position: usize) -> Option<&[u8]> {
        self.paths.get(position)
    }

    /// The paths of the symbolic links.
    pub(crate) fn links(&self) -> impl Iterator<Item = &[u8]> {
        (0..).map_while(|number| self.links.get(number))
    }

    /// The length in bytes of the file at a position.
    pub(crate) fn size(&self, position: usize) -> Option<u64> {
        self.sizes.get(position).copied()
    }
}
