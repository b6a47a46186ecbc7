//! Directories, listed in parts as large as the kernel's buffers.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use packfs::files::Listed;
use packfs::{Inode, InodeNumber};

use crate::convert::{GENERATION, attributes, file_type};
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::source::Source;

/// Entries that are looked up at once.
const LISTED_AT_ONCE: usize = 128;
/// Offsets in a listing: 1 after the directory itself, 2 after its parent, and a cookie and two after an entry.
const AFTER_PARENT: u64 = 2;

/// A reply that entries are added to.
pub(crate) enum Listing {
    Plain(ReplyDirectory),
    Plus(ReplyDirectoryPlus),
}

/// What the kernel is told of an entry.
enum Told {
    /// Only a kind: of the directory itself and its parent it knows more already.
    Kind(InodeNumber, FileType),
    Whole(Inode),
}

impl Listing {
    fn wants_attributes(&self) -> bool {
        matches!(self, Self::Plus(_))
    }

    /// Whether the reply was full already.
    fn add(&mut self, shared: &Shared, offset: u64, name: &[u8], told: &Told) -> bool {
        let name = OsStr::from_bytes(name);
        match (self, told) {
            (Self::Plain(reply), Told::Kind(inode, kind)) => reply.add(INodeNo(inode.0), offset, *kind, name),
            (Self::Plain(reply), Told::Whole(inode)) => {
                reply.add(INodeNo(inode.number.0), offset, file_type(inode.kind), name)
            }
            (Self::Plus(reply), Told::Whole(inode)) => {
                let node = shared.handles.named(inode.number);
                let (mut told, mut kept) = (attributes(inode), shared.caching.kept());
                if node != inode.number {
                    // The inode's number the kernel asks for when somebody wants it.
                    (told.ino, kept) = (INodeNo(node.0), std::time::Duration::ZERO);
                }
                let is_full = reply.add(told.ino, offset, name, &kept, &told, GENERATION);
                if is_full {
                    shared.handles.forget(node, 1);
                }
                is_full
            }
            (Self::Plus(reply), Told::Kind(inode, kind)) => {
                let attributes = crate::convert::kind_only(*inode, *kind);
                let at_once = std::time::Duration::ZERO;
                reply.add(INodeNo(inode.0), offset, name, &at_once, &attributes, GENERATION)
            }
        }
    }

    fn end(self, listed: Result<(), Refusal>) {
        match (self, listed) {
            (Self::Plain(reply), Ok(())) => reply.ok(),
            (Self::Plus(reply), Ok(())) => reply.ok(),
            (Self::Plain(reply), Err(refusal)) => reply.error(refusal.errno()),
            (Self::Plus(reply), Err(refusal)) => reply.error(refusal.errno()),
        }
    }
}

impl Shared {
    /// Answers with entries from an offset on, as many as fit.
    pub(crate) async fn list(&self, directory: InodeNumber, handle: u64, offset: u64, mut reply: Listing) {
        let listed = self.fill(directory, handle, offset, &mut reply).await;
        reply.end(listed);
    }

    async fn fill(
        &self,
        directory: InodeNumber,
        handle: u64,
        offset: u64,
        reply: &mut Listing,
    ) -> Result<(), Refusal> {
        if offset < AFTER_PARENT {
            let parent = self.look(async |source| source.parent(directory).await).await?;
            for (own, name, inode) in [(1, &b"."[..], directory), (AFTER_PARENT, b"..", parent)] {
                if offset < own && reply.add(self, own, name, &Told::Kind(inode, FileType::Directory)) {
                    return Ok(());
                }
            }
        }
        let mut after = offset.checked_sub(AFTER_PARENT).filter(|cookie| *cookie > 0);
        let mut after_name = after.and_then(|cookie| self.listed_name(handle, cookie));
        let mut added = Vec::new();
        let plus = reply.wants_attributes();
        loop {
            let name = after_name.as_deref();
            let batch = self.look(async |source| batch(source, directory, after, name, plus).await);
            let batch = batch.await?;
            let Some((last, _)) = batch.last() else { break };
            (after, after_name) = (Some(last.cookie), Some(last.name.clone()));
            for (listed, told) in batch {
                if reply.add(self, listed.cookie + AFTER_PARENT, &listed.name, &told) {
                    self.listed(handle, added);
                    return Ok(());
                }
                added.push((listed.cookie, listed.name));
            }
        }
        self.listed(handle, added);
        Ok(())
    }
}

async fn batch(
    source: &Source,
    directory: InodeNumber,
    after: Option<u64>,
    after_name: Option<&[u8]>,
    plus: bool,
) -> Result<Vec<(Listed, Told)>, Refusal> {
    let found = source.list(directory, after, after_name, LISTED_AT_ONCE).await?;
    let mut batch = Vec::with_capacity(found.len());
    for mut listed in found {
        let told = match listed.attributes.take() {
            Some(inode) => Told::Whole(inode),
            None if plus => Told::Whole(source.stat(listed.inode).await?),
            None => Told::Kind(listed.inode, file_type(listed.kind)),
        };
        batch.push((listed, told));
    }
    Ok(batch)
}
