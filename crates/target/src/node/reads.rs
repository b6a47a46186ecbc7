//! Reads of a copy: most have nothing against them, and go to the disk and back to who asked past the inbox and the outputs of the core,
//! which is asked twice whether that may be.

use bdev::{Data, Operation};
use reactor::{Buffer, BufferMut, BufferPool, spawn, time};
use volume::{BlockRange, ChunkId, IoToken, ReadPurpose, Status};

use super::copies::BLOCK_BYTES;
use super::{Event, LocalIo, Node};

/// How long blocks are.
pub(super) fn range_bytes(range: BlockRange) -> usize {
    range.count as usize * BLOCK_BYTES
}

impl Node {
    /// Nothing waits for the core, and nothing of what it wants done.
    fn is_at_rest(&self) -> bool {
        !self.pumping.get() && self.inbox.borrow().is_empty()
    }

    /// Begins a client's read against which nothing stands: what is to be asked of the disk, and room for what it reads. None if the core
    /// has to look at the request as at all others.
    ///
    /// The turn's clock is enough here and when the disk has answered: what came from a socket or a disk came before the turn that
    /// takes it in, so that at that instant the bytes were there, and the copy had the right to serve them.
    pub(super) fn begin_read(
        &self,
        chunk: ChunkId,
        request: &volume::Request,
    ) -> Option<(LocalIo, BufferMut)> {
        if !self.is_at_rest() {
            return None;
        }
        let copy = self.copies.get(chunk)?;
        let room = BufferPool::current()
            .try_allocate(range_bytes(request.range))
            .ok()?;
        let io = self
            .core
            .borrow_mut()
            .read_at_once(time::turn(), chunk, request)?;
        self.asked.note();
        let local = LocalIo {
            chunk,
            copy,
            io,
            purpose: Some(ReadPurpose::Request(request.id)),
            range: request.range,
            mends: Vec::new(),
            settles: false,
            _writing: None,
        };
        Some((local, room))
    }

    /// Answers a client's read that has ended with that; gives the bytes back if the core has more to do.
    fn end_read(&self, chunk: ChunkId, io: IoToken, bytes: Buffer) -> Result<(), Buffer> {
        if !self.is_at_rest() || self.is_ending.get() {
            return Err(bytes);
        }
        let ended = self.core.borrow_mut().end_read_at_once(time::turn(), chunk, io);
        match ended {
            Some(request) => {
                self.completed(request, Status::Done, Some(bytes));
                Ok(())
            }
            None => Err(bytes),
        }
    }

    pub(super) fn read(&self, local: LocalIo) {
        let (range, length) = (local.range, range_bytes(local.range));
        match BufferPool::current().try_allocate(length) {
            Ok(buffer) => self.submit(local, Operation::Read, Some(range), Data::Into(buffer)),
            Err(_) => {
                let node = self.own();
                drop(spawn(async move {
                    let pool = BufferPool::current();
                    let data = pool.allocate(length).await.map_or(Data::None, Data::Into);
                    node.submit(local, Operation::Read, Some(range), data);
                }));
            }
        }
    }

    /// A read of a copy has ended, and its bytes fit their checksums if there are any.
    pub(super) fn has_read(&self, local: LocalIo, succeeded: bool, bytes: Buffer) {
        let LocalIo {
            chunk, io, purpose, ..
        } = local;
        let mut read = None;
        match purpose {
            Some(ReadPurpose::Request(request)) => {
                let kept = match succeeded {
                    true => self.end_read(chunk, io, bytes),
                    false => Err(bytes),
                };
                match kept {
                    Ok(()) => return,
                    Err(bytes) => self.natives.filled(request, bytes),
                }
            }
            Some(ReadPurpose::Compare(request)) if succeeded => {
                let are_alike = self.natives.expects(request, &bytes);
                return self.push(Event::Compared { chunk, io, are_alike });
            }
            _ => read = Some(bytes),
        }
        self.push(Event::Local {
            chunk,
            io,
            succeeded,
            read: read.filter(|_| succeeded),
        });
    }
}
