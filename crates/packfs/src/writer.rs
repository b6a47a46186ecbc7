//! The one writer of a volume: packs data, changes the tree, commits.
//!
//! Nothing that was committed is overwritten; everything since the last commit is lost if the writer ends
//! without another. Cost of a commit: the changed pages (each 4 KiB), a page or so of the space record, one
//! flush and one forced superblock write.

mod commit;
mod format;
mod namespace;
mod outbox;
mod pack;
mod stream;

use std::collections::BTreeSet;
use std::rc::Rc;

use foundation::{ByteCount, Instant};

use crate::cache::PageCache;
use crate::error::{OpenError, TreeError, WriteError};
use crate::format::key::InodeNumber;
use crate::format::superblock::{Identity, Parameters, Superblock, Totals};
use crate::format::{CodecError, PAGE_BYTES_U64, space_page};
use crate::io::Medium;
use crate::lease::{LeaseError, LeaseSource, WriterLease};
use crate::mount::{Mounted, mount};
use crate::space::Space;
use crate::tree::{Tree, inconsistent};

pub use format::{FormatOptions, format};
pub use stream::FileStream;

use outbox::Outbox;
use pack::Packer;

/// How a writer is opened.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Shown to whoever is refused meanwhile.
    pub holder: String,
    /// Refuse a file system that belongs elsewhere.
    pub identity: Option<Identity>,
    /// Bound of the page cache, in bytes.
    pub cache_bytes: usize,
    /// Large writes in flight at once.
    pub writes_in_flight: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            holder: "a local writer".to_owned(),
            identity: None,
            cache_bytes: 64 << 20,
            writes_in_flight: 8,
        }
    }
}

/// See the module. Lives inside a reactor.
pub struct Writer {
    pub(crate) medium: Medium,
    pub(crate) tree: Tree,
    pub(crate) space: Space,
    outbox: Outbox,
    packer: Packer,
    /// The last durable commit; generation 0 while formatting.
    superblock: Superblock,
    slot: usize,
    next_generation: u64,
    next_inode: u64,
    totals: Totals,
    leases: Option<(Rc<dyn LeaseSource>, WriterLease)>,
    /// Inodes that were seen to be directories; spares a lookup for each new entry.
    directories: BTreeSet<InodeNumber>,
    broken: bool,
}

/// Directories that are remembered at most.
const DIRECTORIES_KEPT: usize = 10_000;

impl Writer {
    /// Becomes the volume's writer and opens its last commit.
    pub async fn open(
        medium: Medium,
        leases: Rc<dyn LeaseSource>,
        options: &WriterOptions,
    ) -> Result<Self, OpenError> {
        let lease = leases.acquire_writer(&options.holder).await?;
        let medium = medium.with_token(lease.token);
        let opened = Self::open_under(medium, options).await;
        match opened {
            Ok(mut writer) => {
                writer.leases = Some((leases, lease));
                writer.release_space().await;
                Ok(writer)
            }
            Err(error) => {
                // The first error is the one to tell; the lease ends by itself if this fails too.
                let _ = leases.release_writer(lease.token).await;
                Err(error)
            }
        }
    }

    async fn open_under(medium: Medium, options: &WriterOptions) -> Result<Self, OpenError> {
        let mounted = mount(&medium, options.identity.as_ref()).await?;
        let space = load_space(&medium, &mounted.superblock).await?;
        let cache = PageCache::new(options.cache_bytes);
        let tree = Tree::new(medium.clone(), cache, mounted.superblock.root);
        Ok(Self::assemble(
            medium,
            tree,
            space,
            mounted,
            options.writes_in_flight,
        ))
    }

    fn assemble(medium: Medium, tree: Tree, space: Space, mounted: Mounted, in_flight: usize) -> Self {
        let superblock = mounted.superblock;
        let outbox = Outbox::new(medium.clone(), in_flight);
        Self {
            packer: Packer::new(
                medium.clone(),
                outbox.clone(),
                superblock.parameters,
                space.open_segment(),
            ),
            medium,
            tree,
            space,
            outbox,
            superblock,
            slot: mounted.slot,
            next_generation: mounted.next_generation,
            next_inode: superblock.next_inode,
            totals: superblock.totals,
            leases: None,
            directories: BTreeSet::from([InodeNumber::ROOT]),
            broken: false,
        }
    }

    /// The last durable commit.
    pub fn generation(&self) -> u64 {
        self.superblock.generation
    }

    /// What the file system holds, uncommitted changes included.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What was chosen at format.
    pub fn parameters(&self) -> Parameters {
        self.superblock.parameters
    }

    /// Memory that uncommitted index pages take, in bytes, roughly. A long import commits when this grows.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.tree.changed_pages() as u64 * 2 * PAGE_BYTES_U64
    }

    /// Space that new data may take now, in bytes.
    pub fn free_bytes(&self) -> ByteCount {
        let free = self.space.free_pages().saturating_sub(self.pages_kept());
        ByteCount(free * PAGE_BYTES_U64)
    }

    /// Space that becomes free once commits and readers are past, in bytes.
    pub fn waiting_bytes(&self) -> ByteCount {
        ByteCount(self.space.waiting_pages() * PAGE_BYTES_U64)
    }

    /// When the writer's lease ends unless renewed.
    pub fn lease_until(&self) -> Option<Instant> {
        self.leases.as_ref().map(|(_, lease)| lease.until)
    }

    /// Renews the writer's lease; to be called well before [`Writer::lease_until`].
    pub async fn renew(&mut self) -> Result<(), LeaseError> {
        if let Some((leases, lease)) = &mut self.leases {
            *lease = leases.renew_writer(lease.token).await?;
        }
        Ok(())
    }

    /// Gives the lease back. Changes since the last commit are dropped.
    pub async fn close(self) -> Result<(), LeaseError> {
        self.outbox.drain().await.ok();
        match self.leases {
            Some((leases, lease)) => leases.release_writer(lease.token).await,
            None => Ok(()),
        }
    }

    /// Pages that new data leaves free, so that what is changed can be committed and something removed.
    fn pages_kept(&self) -> u64 {
        let total = self.superblock.volume_bytes / PAGE_BYTES_U64;
        self.pages_needed() + 16 + total / 256
    }

    /// Pages that a commit needs after one more change.
    fn pages_needed(&self) -> u64 {
        self.tree.changed_pages() as u64 + self.space.record_pages_max(self.tree.changed_pages()) + 24
    }

    fn check_room(&self, removal: bool) -> Result<(), WriteError> {
        if self.broken {
            return Err(WriteError::Broken);
        }
        let needed = if removal {
            self.pages_needed()
        } else {
            self.pages_kept()
        };
        match needed.checked_sub(self.space.free_pages()) {
            None | Some(0) => Ok(()),
            Some(pages) => Err(WriteError::NoSpace {
                missing: ByteCount(pages * PAGE_BYTES_U64),
            }),
        }
    }

    #[cfg(test)]
    pub(crate) fn plant(&mut self, bug: crate::space::PlantedBug) {
        self.space.bug = bug;
    }
}

/// The bookkeeping of space at a generation.
pub(crate) async fn load_space(medium: &Medium, superblock: &Superblock) -> Result<Space, OpenError> {
    let mut chain = Vec::new();
    let mut pointer = superblock.space;
    let limit = superblock.volume_bytes / PAGE_BYTES_U64;
    while !pointer.is_none() {
        if chain.len() as u64 >= limit {
            return Err(inconsistent(pointer.page, CodecError::Inconsistent).into());
        }
        let read = medium.read_page(pointer, |bytes| space_page::decode(bytes, pointer));
        let page = read.await?;
        let next = page.next;
        chain.push((pointer, page));
        pointer = next;
    }
    let page = superblock.space.page;
    Space::from_chain(chain, superblock.volume_bytes, &superblock.parameters).map_err(|_| {
        OpenError::Tree(TreeError::Inconsistent {
            page,
            source: CodecError::Inconsistent,
        })
    })
}
