//! A device in this process' memory, shared by all cores.
//!
//! Cost of a 4 KiB read: one copy of 4 KiB; it completes inside `submit`.

use std::rc::Rc;
use std::sync::Arc;

use foundation::{BlockCount, Lba};

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::error::IoError;
use crate::request::{Data, Operation, Request};

mod map;
use map::MemoryMap;

/// See the module.
pub struct MemoryDevice {
    geometry: Geometry,
    map: Arc<MemoryMap>,
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
        let map = MemoryMap::new(length).map_err(|source| OpenError::Os {
            path: format!("{length} bytes of memory"),
            source,
        })?;
        Ok(Self {
            geometry,
            map: Arc::new(map),
        })
    }
}

impl MemoryDevice {
    /// Sets every byte, before anybody uses the device. Blocks for as long as the memory takes.
    pub fn fill(&self, byte: u8) {
        self.map.prefer_large_pages();
        let piece = [byte; 4096];
        let length = self.geometry.capacity_bytes() as usize;
        for offset in (0..length).step_by(piece.len()) {
            self.map.write(offset, &piece[..piece.len().min(length - offset)]);
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
            map: self.map.clone(),
        }))
    }
}

struct MemoryChannel {
    geometry: Geometry,
    map: Arc<MemoryMap>,
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
            (Operation::Read, Data::Into(buffer)) if buffer.len() == length => self.map.read(offset, buffer),
            (Operation::Write { .. }, Data::From(buffer)) if buffer.len() == length => {
                self.map.write(offset, buffer);
            }
            (Operation::Compare, Data::From(buffer)) if buffer.len() == length => {
                if !self.map.equals(offset, buffer) {
                    return Err(IoError::Mismatch);
                }
            }
            (Operation::WriteZeroes { .. } | Operation::Deallocate, _) => self.map.zero(offset, length),
            (Operation::Fence, _) => return Err(IoError::Unsupported),
            _ => return Err(IoError::Unaligned),
        }
        Ok(())
    }
}

impl Channel for MemoryChannel {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) {
        let status = self.serve(request.operation, request.lba, request.blocks, &mut request.data);
        request.complete(status);
    }
}
