//! A device in this process' memory, shared by all cores.
//!
//! Cost of a 4 KiB read: one copy of 4 KiB, or none where the caller brings no buffer and gets the bytes where they lie
//! ([`crate::Channel::lends`]). It completes inside `submit`.

use std::rc::Rc;
use std::sync::Arc;

use foundation::{BlockCount, Lba};
use reactor::{Buffer, BufferPool};

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::error::IoError;
use crate::request::{Data, Operation, Request};

mod ahead;
mod map;
mod pages;

use ahead::Ahead;
use pages::{Allowance, PAGE_BYTES, Pages};

/// See the module.
pub struct MemoryDevice {
    geometry: Geometry,
    pages: Arc<Pages>,
}

impl MemoryDevice {
    /// A zeroed device of `blocks` blocks of `block_bytes` bytes. Memory is taken as it is written.
    pub fn new(block_bytes: u32, blocks: BlockCount) -> Result<Self, OpenError> {
        let geometry = Geometry {
            block_bytes,
            blocks,
            metadata_bytes: 0,
            boundary_blocks: 0,
            write_cache: false,
        };
        let length = usize::try_from(geometry.capacity_bytes()).unwrap_or(usize::MAX);
        let pages = Pages::new(length).map_err(|source| OpenError::Os {
            path: format!("{length} bytes of memory"),
            source,
        })?;
        Ok(Self {
            geometry,
            pages: Arc::new(pages),
        })
    }
}

impl MemoryDevice {
    /// Sets every byte, before anybody uses the device. Blocks for as long as the memory takes.
    pub fn fill(&self, byte: u8) {
        self.pages.prefer_large_pages();
        let piece = [byte; PAGE_BYTES];
        let length = self.geometry.capacity_bytes() as usize;
        for offset in (0..length).step_by(piece.len()) {
            self.pages
                .write(offset, &piece[..piece.len().min(length - offset)]);
        }
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(MemoryChannel {
            geometry: self.geometry,
            allowance: self.pages.allowance(),
            pages: self.pages.clone(),
            ahead: Ahead::default(),
        }))
    }
}

struct MemoryChannel {
    geometry: Geometry,
    pages: Arc<Pages>,
    allowance: Allowance,
    ahead: Ahead,
}

impl MemoryChannel {
    fn serve(
        &self,
        operation: Operation,
        lba: Lba,
        blocks: BlockCount,
        data: &mut Data,
    ) -> Result<(), IoError> {
        if operation == Operation::Flush {
            return Ok(());
        }
        self.geometry.check_range(lba, blocks)?;
        let offset = self.geometry.offset_bytes(lba) as usize;
        let length = blocks.0 as usize * self.geometry.block_bytes as usize;
        match (operation, data) {
            (Operation::Read, Data::Into(buffer)) if buffer.len() == length => {
                self.pages.read(offset, buffer)
            }
            (Operation::Read, data @ Data::None) => *data = Data::From(self.bytes(offset, length)?),
            (Operation::Write { .. }, Data::From(buffer)) if buffer.len() == length => {
                self.pages.write(offset, buffer);
            }
            (Operation::Compare, Data::From(buffer)) if buffer.len() == length => {
                if !self.pages.equals(offset, buffer) {
                    return Err(IoError::Mismatch);
                }
            }
            (Operation::WriteZeroes { .. } | Operation::Deallocate, _) => self.pages.zero(offset, length),
            (Operation::Fence | Operation::CompareAndWrite { .. }, _) => return Err(IoError::Unsupported),
            _ => return Err(IoError::Unaligned),
        }
        Ok(())
    }
}

impl MemoryChannel {
    /// The bytes of a range where they lie, else copied.
    fn bytes(&self, offset: usize, length: usize) -> Result<Buffer, IoError> {
        if let Some(lent) = self.pages.lend(&self.allowance, offset, length) {
            return Ok(lent);
        }
        let room = BufferPool::current().try_allocate(length);
        let mut buffer = room.map_err(|_| IoError::Exhausted)?;
        self.pages.read(offset, &mut buffer);
        Ok(buffer.freeze())
    }
}

impl Channel for MemoryChannel {
    fn lends(&self) -> bool {
        true
    }

    fn ends_at_once(&self) -> bool {
        true
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn will_read(&self, lba: Lba, blocks: BlockCount) {
        if self.geometry.check_range(lba, blocks).is_ok() && blocks.0 > 0 {
            let length = blocks.0 as usize * self.geometry.block_bytes as usize;
            self.pages
                .announce(&self.ahead, self.geometry.offset_bytes(lba) as usize, length);
            self.pages.fetch_step(&self.ahead);
        }
    }

    fn submit(&self, mut request: Request) {
        self.pages.fetch_step(&self.ahead);
        let status = self.serve(request.operation, request.lba, request.blocks, &mut request.data);
        request.complete(status);
    }
}
