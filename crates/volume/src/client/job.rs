//! One piece of a request: what one node is asked, and who is told of the end.

use std::rc::Rc;

use bdev::{Data, IoError, Token};
use foundation::{Epoch, Instant, Lba};
use reactor::Buffer;

use crate::identity::{BlockRange, TraceId, VolumeNumber, WriterToken};
use crate::message::codec::{NativeCommand, NativeFields, NativeOperation};

use super::channel::Core;
use super::group::Group;
use super::peers::Place;
use super::round::Turn;

/// What all pieces of a request have in common.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) operation: NativeOperation,
    pub(super) writer_token: WriterToken,
    pub(super) trace: TraceId,
    pub(super) deadline: Instant,
    /// Of a read, the copy that is asked first; none leaves the choice.
    pub(super) turn: Option<Turn>,
    /// Of a portal's write, the claim on its chunk.
    pub(super) claim: Option<u64>,
}

/// Who waits for a piece.
pub(super) enum Owner {
    /// It is the whole request.
    Request(Token),
    /// It is one of several.
    Part { group: Rc<Group>, index: usize },
}

/// See the module.
pub(super) struct Job {
    pub(super) terms: Terms,
    pub(super) place: Place,
    pub(super) first_lba: Lba,
    pub(super) blocks: u32,
    /// The bytes of a write, to be sent again if need be.
    pub(super) kept: Option<Buffer>,
    pub(super) owner: Owner,
}

impl Job {
    /// The command for a node whose configuration of the chunk has this epoch.
    pub(super) fn command(&self, volume: VolumeNumber, epoch: Epoch) -> NativeCommand {
        NativeCommand {
            operation: self.terms.operation,
            volume,
            fields: NativeFields {
                epoch,
                writer_token: self.terms.writer_token,
                first_lba: self.first_lba,
            },
            blocks: self.blocks,
            trace: self.terms.trace,
            portal_token: 0,
        }
    }

    /// Ends the piece. `data` is what came back of it.
    pub(super) fn finish(self, core: &Rc<Core>, status: Result<(), IoError>, data: Data) {
        let Self {
            terms,
            place,
            kept,
            owner,
            blocks,
            ..
        } = self;
        if status.is_ok() && needs_flush(terms.operation) {
            core.unflushed.wrote(place.chunk);
        }
        // One view only goes back, so that the caller may write into its buffer again.
        let data = match (kept, data) {
            (Some(buffer), sent) => {
                drop(sent);
                Data::From(buffer)
            }
            (None, data) => data,
        };
        match owner {
            Owner::Request(token) => token.complete(status, data),
            // A node of the release before does not know runs, and has done nothing.
            Owner::Part { group, .. }
                if matches!(terms.operation, NativeOperation::DeallocateRun { .. })
                    && matches!(status, Err(IoError::Unaligned | IoError::Unsupported)) =>
            {
                group.split_run(
                    core,
                    place.chunk,
                    BlockRange {
                        start: place.first_block,
                        count: blocks,
                    },
                );
            }
            Owner::Part { group, index } => group.part_ended(core, index, status, data),
        }
    }
}

fn needs_flush(operation: NativeOperation) -> bool {
    match operation {
        NativeOperation::Read
        | NativeOperation::Flush
        | NativeOperation::Fence
        | NativeOperation::Check
        | NativeOperation::CompareCopies
        | NativeOperation::Outvote(_)
        | NativeOperation::Locate { .. }
        | NativeOperation::Cut(_)
        | NativeOperation::Release(_)
        | NativeOperation::ReadSnapshot(_)
        | NativeOperation::CheckSnapshot(_)
        | NativeOperation::CountSnapshot(_)
        | NativeOperation::Abandon(_)
        | NativeOperation::Claim => false,
        NativeOperation::Write { fua }
        | NativeOperation::WriteZeroes { fua }
        | NativeOperation::Deallocate { fua }
        | NativeOperation::DeallocateRun { fua }
        | NativeOperation::CompareAndWrite { fua } => !fua,
    }
}
