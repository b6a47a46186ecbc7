//! A namespace on one queue, as a channel.

use std::rc::Rc;

use bdev::{Channel, Data, Geometry, IoError, Operation, Request};
use foundation::{BlockCount, Lba};
use protocols::nvme::dsm::{DsmRange, encode_ranges};
use protocols::nvme::identify::{IdentifyController, IdentifyNamespace, controller_bits};
use protocols::nvme::{Command, Status};
use reactor::{Buffer, BufferMut, BufferPool, spawn};

use super::queue::Queue;

/// See the module.
#[derive(Clone)]
pub struct NamespaceChannel {
    queue: Rc<Queue>,
    nsid: u32,
    geometry: Geometry,
    /// Most data of one command, in blocks.
    transfer_limit_blocks: u64,
}

impl NamespaceChannel {
    /// `None` if the namespace's format is not one we speak.
    pub(super) fn new(
        queue: Rc<Queue>,
        nsid: u32,
        namespace: &IdentifyNamespace,
        controller: &IdentifyController,
    ) -> Option<Self> {
        let block_bytes = namespace
            .block_bytes()
            .filter(|bytes| matches!(bytes, 512 | 4096))?;
        let geometry = Geometry {
            block_bytes,
            blocks: BlockCount(namespace.nsze),
            metadata_bytes: 0,
            boundary_blocks: namespace.noiob.into(),
            write_cache: controller.vwc & controller_bits::VWC_PRESENT != 0,
        };
        // The unit of MDTS is the controller's smallest page; 4 KiB is what every fabrics target has.
        let limit_bytes = controller.transfer_limit_bytes(4096).unwrap_or(u64::MAX);
        let limit_bytes = limit_bytes.min(reactor::buffer::BUFFER_BYTES_MAX as u64);
        let transfer_limit_blocks = (limit_bytes / u64::from(block_bytes)).max(1);
        Some(Self {
            queue,
            nsid,
            geometry,
            transfer_limit_blocks,
        })
    }

    /// The queue it runs on.
    pub fn queue(&self) -> &Rc<Queue> {
        &self.queue
    }

    fn check(&self, request: &Request) -> Result<(), IoError> {
        if request.operation == Operation::Flush {
            return Ok(());
        }
        // A volume's own command, which only its peer subsystem has, and two commands in one.
        if matches!(
            request.operation,
            Operation::Fence | Operation::CompareAndWrite { .. }
        ) {
            return Err(IoError::Unsupported);
        }
        self.geometry.check_range(request.lba, request.blocks)?;
        let moves = matches!(
            request.operation,
            Operation::Read | Operation::Write { .. } | Operation::Compare
        );
        let expected = if moves {
            request.blocks.0 * u64::from(self.geometry.block_bytes)
        } else {
            0
        };
        if request.data.length_bytes() as u64 != expected || (moves && expected == 0) {
            return Err(IoError::Unaligned);
        }
        Ok(())
    }

    fn command(&self, operation: Operation, lba: Lba, blocks: BlockCount) -> Command {
        let nsid = self.nsid;
        match operation {
            Operation::Read => Command::read(nsid, lba, blocks),
            Operation::Write { fua: false } => Command::write(nsid, lba, blocks),
            Operation::Write { fua: true } => Command::write(nsid, lba, blocks).with_force_unit_access(),
            Operation::Flush => Command::flush(nsid),
            Operation::Compare => Command::compare(nsid, lba, blocks),
            Operation::WriteZeroes { deallocate, fua } => {
                let command = Command::write_zeroes(nsid, lba, blocks);
                let command = if deallocate {
                    command.with_deallocate()
                } else {
                    command
                };
                if fua {
                    command.with_force_unit_access()
                } else {
                    command
                }
            }
            Operation::Deallocate => Command::deallocate(nsid, 1),
            Operation::Fence | Operation::CompareAndWrite { .. } => {
                unreachable!("they were refused when the request came")
            }
        }
    }

    /// Commands carry at most 65,536 blocks, and data at most the transfer limit.
    fn piece_limit_blocks(&self, operation: Operation) -> u64 {
        match operation {
            Operation::WriteZeroes { .. } => 1 << 16,
            Operation::Deallocate => u32::MAX.into(),
            _ => self.transfer_limit_blocks.min(1 << 16),
        }
    }

    /// Runs a request in pieces, one after the other.
    async fn in_pieces(
        &self,
        operation: Operation,
        lba: Lba,
        blocks: BlockCount,
        data: Data,
    ) -> (Result<(), IoError>, Data) {
        let limit = self.piece_limit_blocks(operation);
        let block_bytes = self.geometry.block_bytes as usize;
        let mut rest = data;
        let mut joined = BufferMut::empty();
        let mut done = 0;
        while done < blocks.0 {
            let count = limit.min(blocks.0 - done);
            let bytes = count as usize * block_bytes;
            let (piece, left) = split(rest, bytes);
            rest = left;
            let command = self.command(operation, Lba(lba.0 + done), BlockCount(count));
            let result = self.queue.execute(command, piece).await;
            let is_short = result.is_short();
            let ended = result.completion.map(|completion| match completion.status() {
                // As the queue does with what comes whole in one command.
                status if status.is_success() && is_short => Status::TRANSIENT_TRANSPORT_ERROR,
                status => status,
            });
            if let Data::Into(buffer) = result.data {
                joined = joined.join(buffer).expect("the pieces come from one buffer");
            }
            let status = ended.map_or(Err(IoError::Unavailable), crate::status::error_of);
            self.queue.set_last_status(ended.unwrap_or(Status::SUCCESS));
            if status.is_err() {
                if let Data::Into(left) = rest {
                    joined = joined.join(left).expect("the pieces come from one buffer");
                }
                return (status, Data::Into(joined));
            }
            done += count;
        }
        (Ok(()), Data::Into(joined))
    }
}

fn split(data: Data, bytes: usize) -> (Data, Data) {
    match data {
        Data::None => (Data::None, Data::None),
        Data::Into(mut buffer) => {
            let head = buffer.split_to(bytes);
            (Data::Into(head), Data::Into(buffer))
        }
        Data::From(buffer) => (
            Data::From(buffer.slice(0..bytes)),
            Data::From(buffer.slice(bytes..buffer.len())),
        ),
    }
}

/// One range of Dataset Management, as a command's data.
fn range_list(lba: Lba, blocks: BlockCount) -> Result<Buffer, IoError> {
    let length = u32::try_from(blocks.0).map_err(|_| IoError::OutOfRange)?;
    let bytes = encode_ranges(&[DsmRange::new(lba, length)]).map_err(|_| IoError::OutOfRange)?;
    let mut buffer = BufferPool::current()
        .try_allocate(bytes.len())
        .map_err(|_| IoError::Exhausted)?;
    buffer.copy_from_slice(&bytes);
    Ok(buffer.freeze())
}

impl Channel for NamespaceChannel {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) {
        if let Err(error) = self.check(&request) {
            return request.complete(Err(error));
        }
        let (operation, lba, blocks) = (request.operation, request.lba, request.blocks);
        if operation != Operation::Flush && blocks.0 > self.piece_limit_blocks(operation) {
            let own = self.clone();
            drop(spawn(async move {
                let Request { data, token, .. } = request;
                let kept = if let Data::From(buffer) = &data {
                    Some(buffer.clone())
                } else {
                    None
                };
                let (status, data) = own.in_pieces(operation, lba, blocks, data).await;
                token.complete(status, kept.map_or(data, Data::From));
            }));
            return;
        }
        if operation == Operation::Deallocate {
            match range_list(lba, blocks) {
                Ok(list) => request.data = Data::From(list),
                Err(error) => return request.complete(Err(error)),
            }
        }
        let command = self.command(operation, lba, blocks);
        let Request { data, token, .. } = request;
        self.queue.submit(command, data, token);
    }
}
