//! Extended attributes of a snapshot.

use super::Reader;
use crate::error::{ReadError, TreeError};
use crate::extended;
use crate::format::key::InodeNumber;

impl Reader {
    /// The value of an inode's extended attribute; `None` if it has none of this name.
    pub async fn extended(&self, inode: InodeNumber, name: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.check_extended(inode, extended::get(&self.0.tree, inode, name).await)
    }

    /// The names of an inode's extended attributes, in the order of their bytes.
    pub async fn list_extended(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>, ReadError> {
        self.check_extended(inode, extended::list(&self.0.tree, inode).await)
    }

    fn check_extended<T>(&self, inode: InodeNumber, read: Result<T, TreeError>) -> Result<T, ReadError> {
        self.check_lease()?;
        read.map_err(|error| self.tree_error(format!("inode {inode}").as_bytes(), error))
    }
}
