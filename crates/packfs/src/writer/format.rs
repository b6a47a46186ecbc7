//! Making a volume a PackFS.

use std::rc::Rc;

use foundation::ByteCount;

use super::{Writer, explain};
use crate::cache::PageCache;
use crate::error::{OpenError, TreeError, WriteError};
use crate::format::entry::{Attributes, Inode, Kind, Layout};
use crate::format::key::{InodeNumber, Key};
use crate::format::superblock::{
    Features, Identity, LABEL_BYTES, Parameters, SUPERBLOCK_BYTES, Superblock, SuperblockError, Totals,
};
use crate::format::{PAGE_BYTES_U64, PagePointer, RESERVED_BYTES, SUPERBLOCK_ADDRESSES};
use crate::io::Medium;
use crate::lease::LeaseSource;
use crate::lease::hold::WriterHold;
use crate::mount::Mounted;
use crate::space::Space;
use crate::tree::Tree;

/// How a volume is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// A fresh random number that names the file system.
    pub uuid: [u8; 16],
    /// Where it belongs.
    pub identity: Identity,
    /// See [`Parameters`].
    pub parameters: Parameters,
    /// A name for people, ended by zeros.
    pub label: [u8; LABEL_BYTES],
    /// Mode, owner and times of the root directory.
    pub root: Attributes,
    /// Overwrite whatever is there.
    pub force: bool,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            uuid: [0; 16],
            identity: Identity::default(),
            parameters: Parameters::default(),
            label: [0; LABEL_BYTES],
            root: Attributes {
                mode: 0o755,
                ..Attributes::default()
            },
            force: false,
        }
    }
}

/// Pages besides one segment that a volume must have for the smallest of trees.
const PAGES_MIN: u64 = 96;

/// Makes the volume an empty PackFS, as its one writer, shown as `holder` to whoever is refused meanwhile. From
/// then on the volume is leased: all of it refuses writes without a writer's token.
///
/// # Errors
/// [`OpenError::NotEmpty`] if its first 128 KiB hold anything, unless forced.
pub async fn format(
    medium: Medium,
    leases: Rc<dyn LeaseSource>,
    holder: &str,
    options: &FormatOptions,
) -> Result<(), OpenError> {
    let parameters = options.parameters;
    if !parameters.are_possible() {
        return Err(OpenError::Parameters {
            parameters: format!("{parameters:?}"),
        });
    }
    let volume_bytes = medium.capacity_bytes() / PAGE_BYTES_U64 * PAGE_BYTES_U64;
    let segment = u64::from(parameters.segment_bytes);
    let needed = RESERVED_BYTES.next_multiple_of(segment) + segment + PAGES_MIN * PAGE_BYTES_U64;
    if volume_bytes < needed {
        return Err(OpenError::TooSmall {
            found: ByteCount(volume_bytes),
            needed: ByteCount(needed),
        });
    }
    let hold = WriterHold::acquire(leases, holder, None).await?;
    let made = format_under(medium, &hold, volume_bytes, options).await;
    let made = match made {
        Ok(()) => Ok(()),
        Err(error) => Err(explain(&hold, error).await),
    };
    // The lease ends by itself if this fails.
    let _ = hold.release().await;
    made
}

async fn format_under(
    medium: Medium,
    hold: &Rc<WriterHold>,
    volume_bytes: u64,
    options: &FormatOptions,
) -> Result<(), OpenError> {
    let medium = medium.under(hold);
    // Before the fence, because what belongs to others must not be fenced off from them.
    if !options.force {
        check_empty(&medium).await?;
    }
    medium.fence(0, medium.capacity_bytes()).await?;
    if !options.force {
        check_empty(&medium).await?;
    }
    let zeros = vec![0; RESERVED_BYTES as usize];
    medium.write_bytes(0, &zeros, false).await?;
    medium.flush().await?;
    hold.ensure().await?;
    write_first_commit(medium, hold.clone(), volume_bytes, options).await
}

async fn check_empty(medium: &Medium) -> Result<(), OpenError> {
    let bytes = medium.read_fresh(0, RESERVED_BYTES as usize).await?;
    for address in SUPERBLOCK_ADDRESSES {
        let at = address as usize;
        let found = Superblock::decode(&bytes[at..at + SUPERBLOCK_BYTES], address);
        if !matches!(found, Err(SuperblockError::Absent)) {
            let what = "it holds a PackFS";
            return Err(OpenError::NotEmpty { what });
        }
    }
    if bytes.iter().any(|&byte| byte != 0) {
        let what = "its first 128 KiB hold something that is not a PackFS";
        return Err(OpenError::NotEmpty { what });
    }
    Ok(())
}

async fn write_first_commit(
    medium: Medium,
    hold: Rc<WriterHold>,
    volume_bytes: u64,
    options: &FormatOptions,
) -> Result<(), OpenError> {
    let superblock = Superblock {
        generation: 0,
        uuid: options.uuid,
        identity: options.identity,
        volume_bytes,
        parameters: options.parameters,
        features: Features::default(),
        root: PagePointer::default(),
        space: PagePointer::default(),
        next_inode: InodeNumber::ROOT.0 + 1,
        totals: Totals {
            directories: 1,
            ..Totals::default()
        },
        writer_token: hold.token(),
        label: options.label,
    };
    let mounted = Mounted {
        superblock,
        slot: 0,
        next_generation: 1,
        other: Err(SuperblockError::Absent),
    };
    let mut tree = Tree::empty(medium.clone(), PageCache::new(0));
    let root = Inode {
        number: InodeNumber::ROOT,
        kind: Kind::Directory,
        attributes: options.root,
        links: 1,
        size: 0,
        layout: Layout::Inline(Vec::new()),
    };
    tree.insert(Key::Inode(InodeNumber::ROOT).encode(), root.encode())
        .await?;
    let space = Space::fresh(volume_bytes, &options.parameters);
    let mut writer = Writer::assemble(medium, hold, tree, space, mounted, 1);
    match writer.commit().await {
        Ok(_) => Ok(()),
        Err(WriteError::Io { source, .. }) => Err(source.into()),
        Err(WriteError::Lease(source)) => Err(source.into()),
        Err(WriteError::Tree(source)) => Err(source.into()),
        Err(WriteError::Buffer(source)) => Err(TreeError::Buffer { page: 0, source }.into()),
        Err(_) => Err(OpenError::TooSmall {
            found: ByteCount(volume_bytes),
            needed: ByteCount(volume_bytes * 2),
        }),
    }
}
