//! What travels down the layers, and what comes back.

use std::fmt;
use std::rc::Rc;

use foundation::{BlockCount, Epoch, Lba};
use reactor::{Buffer, BufferMut};

use crate::error::IoError;

/// What to do with the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the data buffer.
    Read,
    /// Store the data buffer.
    Write {
        /// Durable before it completes (forced unit access).
        fua: bool,
    },
    /// Make every write that completed before durable. The range is ignored.
    Flush,
    /// Make the range read zeros.
    WriteZeroes {
        /// Give the space back if that can be done.
        deallocate: bool,
        /// Durable before it completes.
        fua: bool,
    },
    /// Give the range's space back; afterwards it reads zeros.
    Deallocate,
    /// Let no writer before this one write any more: once this has completed, nothing is written, and nothing
    /// still on its way takes effect, in any part of the device that the range touches, unless its [`Fence`] has
    /// the writer's token of this request or a later one. The device keeps the token as durably as its blocks. It
    /// may fence more than the range. [`IoError::Fenced`] if it has seen a later token,
    /// [`IoError::Unsupported`] if it keeps none.
    Fence,
    /// Compare the range with the data buffer; [`IoError::Mismatch`] if they differ.
    Compare,
    /// Compare the range with the first half of the data buffer, and write the second half if they do not differ, in one step beside all
    /// other requests. Only [`IoError::Mismatch`] and what is refused at once say that nothing was or will be written: it is
    /// not made again where that is not known. [`IoError::Unsupported`] of a device that orders nothing, and of blocks that it orders in
    /// several places.
    CompareAndWrite {
        /// The blocks must be durable before the answer.
        fua: bool,
    },
}

/// Under whose authority a request is made: checked by the node that holds the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Version of the chunk's configuration that the sender knows.
    pub epoch: Epoch,
    /// The file system writer's token; 0 for none.
    pub writer_token: u64,
}

/// Follows one request through all layers and hosts; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceId(pub u64);

/// The bytes of a request. Buffers come back with the completion.
#[derive(Debug, Default)]
pub enum Data {
    /// The operation moves no bytes.
    #[default]
    None,
    /// To be filled.
    Into(BufferMut),
    /// To be stored or compared.
    From(Buffer),
}

impl Data {
    /// Length in bytes.
    pub fn length_bytes(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Into(buffer) => buffer.len(),
            Data::From(buffer) => buffer.len(),
        }
    }

    /// The buffer of a read.
    ///
    /// # Panics
    /// If there is none: a layer must hand back the buffer that it was given.
    pub fn into_read(self) -> BufferMut {
        match self {
            Data::Into(buffer) => buffer,
            other => panic!("a read came back with {other:?} instead of its buffer"),
        }
    }
}

/// How a request ended.
#[derive(Debug)]
pub struct Completion {
    /// Done, or why not. After an error the bytes of a read are undefined, and a write may have
    /// reached the medium in part.
    pub status: Result<(), IoError>,
    /// The request's data buffer.
    pub data: Data,
}

/// Receives completions; the tag is the one given to [`Token::new`].
pub trait Sink {
    /// Takes a completion. Called on the submitting core, perhaps from inside `submit`.
    fn complete(&self, tag: u64, completion: Completion);
}

/// The duty to complete a request. Dropping it aborts the request, so that no caller waits for ever; the
/// data buffer is then lost to the pool it came from.
pub struct Token {
    sink: Option<Rc<dyn Sink>>,
    tag: u64,
}

impl Token {
    /// A token whose completion goes to `sink` under `tag`.
    pub fn new(sink: Rc<dyn Sink>, tag: u64) -> Self {
        Self {
            sink: Some(sink),
            tag,
        }
    }

    /// Ends the request.
    pub fn complete(mut self, status: Result<(), IoError>, data: Data) {
        if let Some(sink) = self.sink.take() {
            sink.complete(self.tag, Completion { status, data });
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.complete(
                self.tag,
                Completion {
                    status: Err(IoError::Aborted),
                    data: Data::None,
                },
            );
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.tag)
    }
}

/// One request to a device.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// First block.
    pub lba: Lba,
    /// Number of blocks.
    pub blocks: BlockCount,
    /// The blocks' bytes.
    pub data: Data,
    /// The blocks' metadata bytes, for devices that have some. Few requests do, and all are moved from layer to layer.
    pub metadata: Option<Box<Data>>,
    /// Authority, where the device checks it.
    pub fence: Option<Fence>,
    /// For tracing.
    pub trace: TraceId,
    /// To be completed once.
    pub token: Token,
}

impl Request {
    /// Ends the request with its own buffer.
    pub fn complete(self, status: Result<(), IoError>) {
        self.token.complete(status, self.data);
    }
}
