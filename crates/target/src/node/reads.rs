//! Reads of a copy: most have nothing against them, and go to the disk and back to who asked past the inbox and the outputs of the core,
//! which is asked twice whether that may be.

use bdev::{Data, Operation};
use reactor::{Buffer, spawn, time};
use volume::{BlockRange, ChunkId, IoToken, ReadPurpose, Status};

use super::{Event, LocalIo, Node, copies};

impl Node {
    /// Nothing waits for the core, and nothing of what it wants done.
    fn is_at_rest(&self) -> bool {
        !self.pumping.get() && self.inbox.borrow().is_empty()
    }

    /// Begins a read against which nothing stands; false if the core has to look at the request as at all others.
    pub(super) fn read_at_once(&self, chunk: ChunkId, request: &volume::Request) -> bool {
        if request.operation != volume::Operation::Read || !self.is_at_rest() {
            return false;
        }
        let begun = self.core.borrow_mut().read_at_once(time::now(), chunk, request);
        let Some(io) = begun else { return false };
        let local = LocalIo {
            chunk,
            io,
            purpose: Some(ReadPurpose::Request(request.id)),
            range: request.range,
            mends: false,
        };
        self.read(local, request.range);
        true
    }

    /// Whether a client's read has ended with that, and is answered.
    fn ends_at_once(&self, chunk: ChunkId, io: IoToken) -> bool {
        if !self.is_at_rest() || self.is_ending.get() {
            return false;
        }
        let ended = self.core.borrow_mut().end_read_at_once(time::now(), chunk, io);
        if let Some(request) = ended {
            self.completed(request, Status::Done);
        }
        ended.is_some()
    }

    pub(super) fn read(&self, local: LocalIo, range: BlockRange) {
        let length = range.count as usize * copies::BLOCK_BYTES;
        match reactor::BufferPool::current().try_allocate(length) {
            Ok(buffer) => self.submit(local, Operation::Read, Some(range), Data::Into(buffer)),
            Err(_) => {
                let node = self.own();
                drop(spawn(async move {
                    let pool = reactor::BufferPool::current();
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
                self.natives.filled(request, bytes);
                if succeeded && self.ends_at_once(chunk, io) {
                    return;
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
