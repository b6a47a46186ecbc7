//! A device that keeps nothing: reads give zeros, writes vanish. For measuring what stands above it.

use std::rc::Rc;

use foundation::BlockCount;

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::error::IoError;
use crate::request::{Data, Operation, Request};

/// See the module.
pub struct NullDevice {
    geometry: Geometry,
}

impl NullDevice {
    /// A device of `blocks` blocks of `block_bytes` bytes.
    pub fn new(block_bytes: u32, blocks: BlockCount) -> Self {
        let geometry = Geometry {
            block_bytes,
            blocks,
            metadata_bytes: 0,
            boundary_blocks: 0,
            write_cache: false,
        };
        Self { geometry }
    }
}

impl BlockDevice for NullDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(NullChannel {
            geometry: self.geometry,
        }))
    }
}

struct NullChannel {
    geometry: Geometry,
}

impl Channel for NullChannel {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) {
        let status = match request.operation {
            Operation::Fence => Err(IoError::Unsupported),
            _ => self.geometry.check_range(request.lba, request.blocks),
        };
        if let (Operation::Read, Data::Into(buffer)) = (request.operation, &mut request.data) {
            buffer.fill(0);
        }
        request.complete(status);
    }
}
