//! The device and the per-core channel.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use foundation::{BlockCount, Lba};

use crate::error::IoError;
use crate::request::Request;

/// A device's shape and manners. Constant while a channel is open, but for `blocks`, which may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a logical block in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Number of logical blocks.
    pub blocks: BlockCount,
    /// Metadata bytes beside each block: 0 or 8. Travels in the request's metadata buffer.
    pub metadata_bytes: u8,
    /// Requests that cross a multiple of this many blocks are slower; 0 if there is none.
    pub boundary_blocks: u32,
    /// Whether an acknowledged write may be lost by a power cut until a flush.
    pub write_cache: bool,
}

impl Geometry {
    /// Capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.blocks.0 * u64::from(self.block_bytes)
    }

    /// Whether the range lies inside the device.
    pub fn check_range(&self, lba: Lba, blocks: BlockCount) -> Result<(), IoError> {
        match lba.checked_add(blocks) {
            Some(end) if end.0 <= self.blocks.0 => Ok(()),
            _ => Err(IoError::OutOfRange),
        }
    }

    /// Number of blocks that `length_bytes` make; an error unless it is a whole number.
    pub fn blocks_in(&self, length_bytes: usize) -> Result<BlockCount, IoError> {
        let block_bytes = self.block_bytes as usize;
        if length_bytes.is_multiple_of(block_bytes) {
            Ok(BlockCount((length_bytes / block_bytes) as u64))
        } else {
            Err(IoError::Unaligned)
        }
    }

    /// Byte offset of a block.
    pub fn offset_bytes(&self, lba: Lba) -> u64 {
        lba.0 * u64::from(self.block_bytes)
    }
}

/// Why a device or a channel on it could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refused.
    #[error("cannot open {path}: {source}")]
    Os {
        /// What was to be opened.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The device cannot be used as asked.
    #[error("cannot use {path} as a block device: {why}; {remedy}")]
    Unusable {
        /// What was to be opened.
        path: String,
        /// What is wrong, with the numbers.
        why: String,
        /// What to do.
        remedy: String,
    },
}

/// A source of blocks, or a layer over one. Shared by all cores.
pub trait BlockDevice: Send + Sync {
    /// The device's shape.
    fn geometry(&self) -> Geometry;

    /// Blocks that are given back together: what is deallocated of them in smaller parts, or from another multiple of as many on, reads
    /// zeros and keeps its place. 0 if that is not known.
    fn granule_blocks(&self) -> u32 {
        0
    }

    /// A channel for the calling core's reactor. May block briefly (it may open a file).
    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError>;
}

/// Leave to write that is being asked, see [`Channel::leave`].
pub type Leave = Pin<Box<dyn Future<Output = Result<Rc<dyn Channel>, IoError>>>>;

/// One core's way to a device.
pub trait Channel {
    /// The device's shape.
    fn geometry(&self) -> Geometry;

    /// Starts a request; never blocks. Its token is completed now or later on this core. Ranges, buffer
    /// lengths and alignment are checked by the callee: a wrong request completes with an error.
    fn submit(&self, request: Request);

    /// Whether a read may come without a buffer ([`crate::Data::None`]): it then ends with the bytes where they lie in memory
    /// ([`crate::Data::From`]), which do not change as long as they are held, or with [`IoError::Exhausted`].
    fn lends(&self) -> bool {
        false
    }

    /// Whether a write or compare that is submitted now has ended when [`Channel::submit`] returns, and nobody holds its bytes any
    /// more. They may then be what the caller can keep for no longer.
    fn ends_at_once(&self) -> bool {
        false
    }

    /// Asks leave to change the blocks of these ranges, before the last bytes of what is to be done with them are fetched from
    /// whoever wants it done. `None`, as usual, if that needs no leave. Else the future, which the caller may drop, ends with the
    /// channel to which that one command is to be submitted, or with what stands against it. A channel whose device asks for leave
    /// refuses what changes blocks for which none was given.
    fn leave(&self, _ranges: &[(Lba, BlockCount)]) -> Option<Leave> {
        None
    }

    /// Asks that what was submitted and has not ended may end: what can be ended does so with [`IoError::Aborted`], and is not under
    /// way any more then. The rest is as it was.
    fn cancel(&self) {}

    /// A read of these blocks is about to be submitted. Where they lie in memory the processor may begin to fetch them.
    fn will_read(&self, _lba: Lba, _blocks: BlockCount) {}

    /// Asks whoever knows whether the device has grown; once this has ended, [`Channel::geometry`] says so. Nothing to ask for a
    /// device whose size is always known, or never changes.
    fn look_for_growth(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}
