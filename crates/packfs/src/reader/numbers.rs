//! What those ask who know inodes by their numbers, as a kernel does.

use super::list::key_after;
use super::{DirectoryEntry, OpenFile, Reader};
use crate::error::ReadError;
use crate::format::CodecError;
use crate::format::entry::{Inode, Kind, decode_place};
use crate::format::key::{InodeNumber, Key, directory_prefix};
use crate::format::quota::Quota;
use crate::name::Shown;

/// Deeper directories are a circle.
const DEPTH_MAX: usize = 1 << 20;

impl Reader {
    /// An inode of this reader's generation, to be read.
    pub fn file(&self, inode: Inode) -> OpenFile {
        let path = format!("inode {}", inode.number).into_bytes();
        self.opened(inode, &path)
    }

    /// The path of an inode by one of its names, for people; none where it cannot be found out.
    pub async fn path_of(&self, number: InodeNumber) -> Option<Shown> {
        crate::paths::find(&self.0.tree, number).await
    }

    /// The directory that an inode stands in, by its first name; the root's is the root.
    pub async fn parent(&self, number: InodeNumber) -> Result<InodeNumber, ReadError> {
        if number == InodeNumber::ROOT {
            return Ok(number);
        }
        let shown = format!("inode {number}").into_bytes();
        let value = self.value(&Key::Name(number.0).encode(), &shown).await?;
        let value = value.ok_or(ReadError::NoInode(number))?;
        let place = decode_place(&value).map_err(|error| self.malformed(&shown, error))?;
        Ok(place.0)
    }

    /// All quotas with the paths of their directories, in the order of paths.
    pub async fn quotas(&self) -> Result<Vec<(Vec<u8>, Quota)>, ReadError> {
        let listed = crate::quotas::list(&self.0.tree).await;
        self.check_lease()?;
        let shown = b"the list of quotas";
        let mut found = Vec::new();
        for (directory, quota) in listed.map_err(|error| self.tree_error(shown, error))? {
            let (mut at, mut path) = (directory, Vec::new());
            while at != InodeNumber::ROOT {
                let value = self.value(&Key::Name(at.0).encode(), shown).await?;
                let value = value.ok_or(ReadError::NoInode(at))?;
                let (parent, name) = decode_place(&value).map_err(|error| self.malformed(shown, error))?;
                if path.len() > DEPTH_MAX {
                    return Err(self.malformed(shown, CodecError::Inconsistent));
                }
                path.push(name.to_vec());
                at = parent;
            }
            path.reverse();
            found.push((path.join(&b'/'), quota));
        }
        found.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(found)
    }

    /// Names of a directory in the order of their bytes, at most `limit` of them (at least one), after the name `after`,
    /// which need not be there any more. Empty at the end.
    pub async fn read_directory_after(
        &self,
        directory: InodeNumber,
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>, ReadError> {
        if self.inode(directory).await?.kind != Kind::Directory {
            let path = crate::name::Shown::new(format!("inode {directory}").as_bytes());
            return Err(ReadError::NotADirectory { path });
        }
        let shown = format!("directory {directory}").into_bytes();
        let from = match after.is_empty() {
            true => directory_prefix(directory),
            false => key_after(directory, after),
        };
        self.list_from(directory, from, limit.max(1), &shown).await
    }
}
