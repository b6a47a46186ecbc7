//! Commands that take several requests to a device. Each runs in a task of its own, counted as below until it ends: a
//! lost connection does not stop it, and a reconnect waits for it.

use std::rc::Rc;

use bdev::{ChannelExt, Data, IoError, Leave, Operation};
use foundation::{BlockCount, Lba};
use protocols::nvme::dsm::{self, DsmRange};
use protocols::nvme::{Command, Completion, NvmOpcode, Status, copy};
use reactor::{Buffer, BufferPool, spawn};

use super::{ATOMIC_COMPARE_AND_WRITE, IoQueue, Open, length_bytes, refusal};
use crate::status::{is_final, status_of, status_of_write};
use crate::target::connection::Connection;
use crate::target::meter::Kind;
use crate::target::queue::{Answer, TRANSFER_LIMIT_BYTES};

/// The most a Copy moves, in bytes (MCL): all of it is read before any of it is written, so that source and
/// destination may overlap.
pub(in crate::target) const COPY_LIMIT_BYTES: usize = TRANSFER_LIMIT_BYTES;
/// Source ranges of a Copy (MSRC is one less).
pub(in crate::target) const COPY_RANGES_MAX: u16 = 128;
/// Verify reads in pieces of this size.
const VERIFY_PIECE_BYTES: usize = 128 << 10;

/// Runs what takes several device requests, and answers with its result.
fn in_task(connection: &Connection, slot: u16, work: impl Future<Output = Result<(), IoError>> + 'static) {
    let token = connection.token(slot, None);
    drop(spawn(async move {
        token.complete(work.await, Data::None);
    }));
}

impl IoQueue {
    pub(super) fn flush_all(&self, connection: &Connection, slot: u16) {
        let opened: Result<Vec<_>, _> = self
            .subsystem
            .namespaces()
            .iter()
            .map(|namespace| self.open(namespace.nsid))
            .collect();
        match opened {
            Ok(opened) if !opened.iter().all(|open| open.guard.allows(NvmOpcode::Flush)) => {
                connection.answer(slot, Answer::refuse(Status::RESERVATION_CONFLICT));
            }
            Ok(opened) => in_task(connection, slot, async move {
                for open in opened {
                    open.channel.flush().await?;
                }
                Ok(())
            }),
            // Saying that everything is durable would not be true.
            Err(status) => connection.answer(slot, Answer::status(status)),
        }
    }

    /// Asks leave to deallocate what a list of `length` bytes names, of which the end is missing still. If that is the high half of the last
    /// address, it asks for all that this may be.
    pub(in crate::target) fn leave_for_list(
        &self,
        command: &Command,
        data: &[u8],
        length: usize,
    ) -> Result<Option<Leave>, Answer> {
        let open = self.open(command.nsid()).map_err(refusal)?;
        let mut list = data.to_vec();
        let whole = usize::from(command.dsm_ranges()) * DsmRange::BYTES;
        let misses_half = length == whole;
        if misses_half {
            list.resize(whole, 0);
        }
        // Too short a list is refused when all of it is there.
        let Ok(decoded) = dsm::decode_ranges(&list, command.dsm_ranges()) else {
            return Ok(None);
        };
        let mut ranges: Vec<_> = decoded.map(|range| (range.start(), range.blocks())).collect();
        let geometry = open.channel.geometry();
        if misses_half && let Some((low, blocks)) = ranges.pop() {
            let halves = 0..=geometry.blocks.0 >> 32;
            let candidates = halves.map(|half| (Lba(low.0 | half << 32), blocks));
            ranges.extend(candidates.filter(|(lba, blocks)| geometry.check_range(*lba, *blocks).is_ok()));
        }
        if ranges
            .iter()
            .any(|(lba, blocks)| geometry.check_range(*lba, *blocks).is_err())
        {
            return Err(Answer::refuse(Status::LBA_OUT_OF_RANGE));
        }
        Ok(open.channel.leave(&ranges))
    }

    pub(super) fn manage(
        &self,
        connection: &Connection,
        open: Rc<Open>,
        slot: u16,
        command: &Command,
        data: &[u8],
    ) {
        let ranges = match dsm::decode_ranges(data, command.dsm_ranges()) {
            Ok(ranges) => ranges.collect::<Vec<_>>(),
            Err(_) => return connection.answer(slot, Answer::refuse(Status::DATA_SGL_LENGTH_INVALID)),
        };
        let geometry = open.channel.geometry();
        if ranges
            .iter()
            .any(|range| geometry.check_range(range.start(), range.blocks()).is_err())
        {
            return connection.answer(slot, Answer::refuse(Status::LBA_OUT_OF_RANGE));
        }
        if !command.dsm_deallocates() {
            // The other attributes are hints.
            return connection.answer(slot, Answer::success());
        }
        let channel = connection.way(slot, &open.channel);
        in_task(connection, slot, async move {
            open.gate.enter().await;
            let _inside = Inside(&open);
            for range in ranges {
                let blocks = range.blocks();
                if blocks.0 > 0 {
                    let completion = channel
                        .execute(Operation::Deallocate, range.start(), blocks, Data::None, None)
                        .await;
                    completion.status?;
                }
            }
            Ok(())
        });
    }

    /// Reads the blocks and gives them to nobody (section 3.2.5).
    pub(super) fn verify(&self, connection: &Connection, open: Rc<Open>, slot: u16, command: &Command) {
        let length = match length_bytes(&open.channel, command) {
            Ok(length) => length,
            Err(status) => return connection.answer(slot, Answer::refuse(status)),
        };
        let piece_bytes = length.min(VERIFY_PIECE_BYTES);
        if !connection.may_hold(slot, piece_bytes) {
            return;
        }
        self.share.note_read(length);
        let first = command.slba();
        let pool = connection.pool().clone();
        in_task(connection, slot, async move {
            let block_bytes = open.channel.geometry().block_bytes as usize;
            let mut done = 0;
            while done < length {
                let piece = allocate(&pool, piece_bytes.min(length - done)).await?;
                let bytes = piece.len();
                let lba = Lba(first.0 + (done / block_bytes) as u64);
                open.channel.read(lba, piece).await.0?;
                done += bytes;
            }
            Ok(())
        });
    }

    /// Compares by reading, where the device orders writes somewhere else and does not compare there (section 3.2.1). Of blocks that change
    /// meanwhile each is compared as it is at some moment until the answer.
    pub(super) fn compare_with_read(
        &self,
        connection: &Connection,
        open: Rc<Open>,
        slot: u16,
        command: &Command,
        data: Buffer,
    ) {
        match length_bytes(&open.channel, command) {
            Ok(length) if length == data.len() => {}
            Ok(_) => return connection.answer(slot, Answer::refuse(Status::DATA_SGL_LENGTH_INVALID)),
            Err(status) => return connection.answer(slot, Answer::refuse(status)),
        }
        self.share.note_read(data.len());
        // What the queue may hold for this command is one buffer: that of the host's bytes makes way for that of the blocks. So none that waits
        // for a buffer has one.
        let expected = data.to_vec();
        drop(data);
        let (first, pool) = (command.slba(), connection.pool().clone());
        in_task(connection, slot, async move {
            let room = allocate(&pool, expected.len()).await?;
            let (read, found) = open.channel.read(first, room).await;
            read?;
            if found[..] == expected[..] {
                Ok(())
            } else {
                Err(IoError::Mismatch)
            }
        });
    }

    /// Copies source ranges, one behind the other, to the destination (section 3.2.2).
    pub(super) fn copy(
        &self,
        connection: &Connection,
        open: Rc<Open>,
        slot: u16,
        command: &Command,
        data: &[u8],
    ) {
        let refuse = |status| connection.answer(slot, Answer::refuse(status));
        if command.copy_format() != 0 {
            return refuse(Status::INVALID_FIELD_IN_COMMAND);
        }
        if command.copy_ranges() > COPY_RANGES_MAX {
            return refuse(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        let Ok(ranges) = copy::decode_ranges(data, command.copy_ranges()) else {
            return refuse(Status::DATA_SGL_LENGTH_INVALID);
        };
        let ranges: Vec<_> = ranges.map(|range| (range.start(), range.blocks())).collect();
        let geometry = open.channel.geometry();
        let total: u64 = ranges.iter().map(|(_, blocks)| blocks.0).sum();
        let bytes = total * u64::from(geometry.block_bytes);
        if bytes > COPY_LIMIT_BYTES as u64 {
            return refuse(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        let destination = command.slba();
        let outside = |lba, blocks| geometry.check_range(lba, blocks).is_err();
        if outside(destination, BlockCount(total))
            || ranges.iter().any(|(lba, blocks)| outside(*lba, *blocks))
        {
            return refuse(Status::LBA_OUT_OF_RANGE);
        }
        self.share.note_read(bytes as usize);
        self.share.note_write(bytes as usize);
        let operation = Operation::Write {
            fua: self.durable(command),
        };
        let (below, own) = (connection.go_below(), connection.own());
        let (pool, copies) = (connection.pool().clone(), self.copies.clone());
        drop(spawn(async move {
            let _below = below;
            let _turn = copies.acquire().await;
            let result =
                gather_and_store(&pool, &open, &ranges, bytes as usize, destination, operation).await;
            let completion = match result {
                Ok(()) => Completion::success(0),
                // DW0 tells the lowest source range that was not copied: nothing was.
                Err(status) => Completion::new(0, status),
            };
            own.reply(slot, completion, Buffer::empty());
        }));
    }

    /// Runs a fused operation; the only one is Compare and Write (section 3.3).
    pub(super) fn compare_and_write(
        &self,
        connection: &Connection,
        (first, (compare, expected)): (u16, (Command, Buffer)),
        (second, (write, data)): (u16, (Command, Buffer)),
    ) {
        let refuse = |answer: fn() -> Answer| {
            connection.answer(first, answer());
            connection.answer(second, answer());
        };
        let (one, two) = (compare.nvm_opcode(), write.nvm_opcode());
        let same_range =
            |a: &Command, b: &Command| (a.nsid(), a.slba(), a.nlb()) == (b.nsid(), b.slba(), b.nlb());
        if (one, two) != (Some(NvmOpcode::Compare), Some(NvmOpcode::Write)) || !same_range(&compare, &write) {
            return refuse(|| Answer::refuse(Status::INVALID_FIELD_IN_COMMAND));
        }
        if write.nlb().0 > u64::from(ATOMIC_COMPARE_AND_WRITE) + 1 {
            return refuse(|| Answer::refuse(Status::ATOMIC_WRITE_UNIT_EXCEEDED));
        }
        let open = match self.open(compare.nsid()) {
            Ok(open) => {
                connection.measure(first, &open.meter, Kind::Other, 0);
                connection.measure(second, &open.meter, Kind::Other, 0);
                open
            }
            Err(status) => {
                connection.answer(first, refusal(status));
                return connection.answer(second, Answer::status(Status::ABORTED_FAILED_FUSED));
            }
        };
        if !open.guard.allows(NvmOpcode::Compare) {
            connection.answer(first, Answer::refuse(Status::RESERVATION_CONFLICT));
            return connection.answer(second, Answer::status(Status::ABORTED_FAILED_FUSED));
        }
        if !open.guard.allows(NvmOpcode::Write) {
            connection.answer(first, Answer::status(Status::ABORTED_FAILED_FUSED));
            return connection.answer(second, Answer::refuse(Status::RESERVATION_CONFLICT));
        }
        match length_bytes(&open.channel, &compare) {
            Ok(length) if length == expected.len() && length == data.len() => {}
            Ok(_) => return refuse(|| Answer::refuse(Status::DATA_SGL_LENGTH_INVALID)),
            Err(Status::LBA_OUT_OF_RANGE) => return refuse(|| Answer::refuse(Status::LBA_OUT_OF_RANGE)),
            Err(_) => return refuse(|| Answer::refuse(Status::INVALID_FIELD_IN_COMMAND)),
        }
        self.share.note_read(expected.len());
        self.share.note_write(data.len());
        let fua = self.durable(&write);
        if self.subsystem.is_exporting() {
            return in_one_step(
                connection,
                &open,
                (first, second),
                fua,
                &write,
                (&expected, &data),
            );
        }
        let operation = Operation::Write { fua };
        let (below, own) = (connection.go_below(), connection.own());
        drop(spawn(async move {
            let _below = below;
            let _closed = open.gate.clone().close().await;
            let (lba, blocks) = (write.slba(), write.nlb());
            let run = async |operation, data| {
                let channel = &open.channel;
                match channel
                    .execute(operation, lba, blocks, Data::From(data), None)
                    .await
                    .status
                {
                    Ok(()) => Status::SUCCESS,
                    Err(error) if operation == Operation::Compare => status_of(error),
                    Err(error) => status_of_write(error),
                }
            };
            let compared = run(Operation::Compare, expected).await;
            let written = if compared.is_success() {
                run(operation, data).await
            } else {
                Status::ABORTED_FAILED_FUSED
            };
            own.reply(first, completion_of(compared), Buffer::empty());
            own.reply(second, completion_of(written), Buffer::empty());
        }));
    }
}

/// Runs a Compare and Write where the device orders writes somewhere else, which does both in one step there.
fn in_one_step(
    connection: &Connection,
    open: &Rc<Open>,
    (first, second): (u16, u16),
    fua: bool,
    write: &Command,
    (expected, data): (&[u8], &[u8]),
) {
    let channel = connection.way(second, &open.channel);
    let (below, own, pool) = (connection.go_below(), connection.own(), connection.pool().clone());
    let (lba, blocks) = (write.slba(), write.nlb());
    // The host's bytes leave their buffers before another is asked for: so nothing that waits for a buffer has one.
    let both = [expected, data].concat();
    drop(spawn(async move {
        let _below = below;
        let stored = async {
            let mut room = allocate(&pool, both.len()).await?;
            room.copy_from_slice(&both);
            let operation = Operation::CompareAndWrite { fua };
            let data = Data::From(room.freeze());
            channel.execute(operation, lba, blocks, data, None).await.status
        };
        let (compared, written) = statuses_of(stored.await);
        own.reply(first, completion_of(compared), Buffer::empty());
        own.reply(second, completion_of(written), Buffer::empty());
    }));
}

fn completion_of(status: Status) -> Completion {
    let completion = Completion::new(0, status);
    if is_final(status) {
        completion.with_do_not_retry()
    } else {
        completion
    }
}

/// What both halves say of a Compare and Write in one step. Where it is not known whether it was done, neither says that it was not.
fn statuses_of(stored: Result<(), IoError>) -> (Status, Status) {
    match stored {
        Ok(()) => (Status::SUCCESS, Status::SUCCESS),
        Err(error @ (IoError::Unavailable | IoError::TimedOut | IoError::Aborted)) => {
            (status_of(error), status_of_write(error))
        }
        // What stands against it stands against the write.
        Err(error @ IoError::Fenced) => (Status::ABORTED_FAILED_FUSED, status_of_write(error)),
        Err(error) => (status_of(error), Status::ABORTED_FAILED_FUSED),
    }
}

/// Inside a namespace's gate until dropped.
struct Inside<'a>(&'a Open);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

async fn allocate(pool: &BufferPool, bytes: usize) -> Result<reactor::BufferMut, IoError> {
    pool.allocate(bytes).await.map_err(|_| IoError::Exhausted)
}

async fn gather_and_store(
    pool: &BufferPool,
    open: &Open,
    ranges: &[(Lba, BlockCount)],
    bytes: usize,
    destination: Lba,
    operation: Operation,
) -> Result<(), Status> {
    let block_bytes = open.channel.geometry().block_bytes as usize;
    let mut rest = allocate(pool, bytes).await.map_err(status_of)?;
    open.gate.enter().await;
    let _inside = Inside(open);
    let mut gathered = reactor::BufferMut::empty();
    for (lba, blocks) in ranges {
        let piece = rest.split_to(blocks.0 as usize * block_bytes);
        let (result, piece) = open.channel.read(*lba, piece).await;
        result.map_err(status_of)?;
        gathered = gathered.join(piece).map_err(|_| status_of(IoError::Exhausted))?;
    }
    let blocks = BlockCount((bytes / block_bytes) as u64);
    let data = Data::From(gathered.freeze());
    open.channel
        .execute(operation, destination, blocks, data, None)
        .await
        .status
        .map_err(status_of_write)
}
