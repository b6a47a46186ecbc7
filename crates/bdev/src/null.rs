//! A device that keeps nothing: reads give zeros, writes vanish. For measuring what stands above it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foundation::BlockCount;

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::error::IoError;
use crate::request::{Data, Operation, Request};

/// See the module.
pub struct NullDevice {
    shape: Shape,
}

/// A geometry whose number of blocks may change while channels are open.
#[derive(Clone)]
struct Shape {
    fixed: Geometry,
    blocks: Arc<AtomicU64>,
}

impl Shape {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: BlockCount(self.blocks.load(Ordering::Relaxed)),
            ..self.fixed
        }
    }
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
        Self {
            shape: Shape {
                fixed: geometry,
                blocks: Arc::new(AtomicU64::new(blocks.0)),
            },
        }
    }

    /// Gives it another size, for all channels. Who serves the device must tell those above.
    pub fn resize(&self, blocks: BlockCount) {
        self.shape.blocks.store(blocks.0, Ordering::Relaxed);
    }
}

impl BlockDevice for NullDevice {
    fn geometry(&self) -> Geometry {
        self.shape.geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(NullChannel {
            shape: self.shape.clone(),
        }))
    }
}

struct NullChannel {
    shape: Shape,
}

impl Channel for NullChannel {
    fn ends_at_once(&self) -> bool {
        true
    }

    fn geometry(&self) -> Geometry {
        self.shape.geometry()
    }

    fn submit(&self, mut request: Request) {
        let status = match request.operation {
            Operation::Fence | Operation::CompareAndWrite { .. } => Err(IoError::Unsupported),
            _ => self.shape.geometry().check_range(request.lba, request.blocks),
        };
        if let (Operation::Read, Data::Into(buffer)) = (request.operation, &mut request.data) {
            buffer.fill(0);
        }
        request.complete(status);
    }
}
