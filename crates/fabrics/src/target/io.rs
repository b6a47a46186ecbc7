//! The NVM command set on an I/O queue (NVM Command Set Specification 1.0c, section 3).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bdev::{Channel, ChannelExt, Data, IoError, Operation, Request, Token, TraceId};
use foundation::{BlockCount, Lba};
use protocols::nvme::dsm::decode_ranges;
use protocols::nvme::{Command, NvmOpcode, SglDescriptor, Status};
use reactor::{Buffer, spawn};

use super::command::{Call, CommandHandler, HostIdentity, Reply};
use super::connection::{Connection, SharedController};
use super::queue::{Answer, TRANSFER_LIMIT_BYTES};
use super::subsystem::Subsystem;

/// Flush and a few others take this for "all namespaces".
const BROADCAST_NSID: u32 = 0xffff_ffff;

/// One I/O queue's ways to the namespaces.
pub(super) struct IoQueue {
    subsystem: Arc<Subsystem>,
    controller: SharedController,
    qid: u16,
    /// Takes all commands, where the subsystem is not one of block devices.
    handler: Option<Rc<dyn CommandHandler>>,
    channels: RefCell<Channels>,
}

#[derive(Default)]
struct Channels {
    version: u64,
    open: Vec<(u32, Rc<dyn Channel>)>,
}

impl IoQueue {
    /// `None` if the subsystem's handlers do not want this host.
    pub(super) fn new(subsystem: Arc<Subsystem>, controller: SharedController, qid: u16) -> Option<Rc<Self>> {
        let handler = match subsystem.commands() {
            None => None,
            Some(open) => {
                let host = HostIdentity {
                    nqn: controller.host_nqn.clone(),
                    id: controller.host_id,
                };
                Some(open(&host)?)
            }
        };
        Some(Rc::new(Self {
            subsystem,
            controller,
            qid,
            handler,
            channels: RefCell::default(),
        }))
    }

    /// The connection is gone: the queue's number is free again.
    pub(super) fn end(&self) {
        self.controller.remove_io_queue(self.qid);
        if let Some(handler) = &self.handler {
            handler.closed();
        }
    }

    /// Lets go of all channels if namespaces have changed: those that are still there are opened again on use.
    pub(super) fn close_stale_channels(&self) {
        let mut channels = self.channels.borrow_mut();
        let version = self.subsystem.version();
        if channels.version != version {
            channels.open.clear();
            channels.version = version;
        }
    }

    /// The channel of a namespace, opened on first use; closed channels go when namespaces change.
    fn channel(&self, nsid: u32) -> Option<Rc<dyn Channel>> {
        self.close_stale_channels();
        let mut channels = self.channels.borrow_mut();
        if let Some((_, channel)) = channels.open.iter().find(|(open, _)| *open == nsid) {
            return Some(channel.clone());
        }
        let namespace = self.subsystem.namespace(nsid)?;
        match namespace.device.open_channel() {
            Ok(channel) => {
                channels.open.push((nsid, channel.clone()));
                Some(channel)
            }
            Err(error) => {
                tracing::error!(nqn = self.subsystem.nqn().as_str(), nsid, %error, "a namespace cannot be opened");
                None
            }
        }
    }

    /// Starts a command whose data, if the host sends any, has come.
    pub(super) fn execute(&self, connection: &Connection, slot: u16, command: &Command, data: Buffer) {
        if let Some(handler) = &self.handler {
            let room_bytes = match command.sgl() {
                SglDescriptor::Transport { length } => (length as usize).min(TRANSFER_LIMIT_BYTES),
                _ => 0,
            };
            let reply = Reply::new(connection.own(), slot);
            return handler.submit(Call {
                command: *command,
                data,
                room_bytes,
                reply,
            });
        }
        let refuse = |status| connection.answer(slot, Answer::refuse(status));
        let Some(opcode) = command.nvm_opcode() else {
            return refuse(Status::INVALID_COMMAND_OPCODE);
        };
        if opcode == NvmOpcode::Flush && command.nsid() == BROADCAST_NSID {
            return self.flush_all(connection, slot);
        }
        let Some(channel) = self.channel(command.nsid()) else {
            return refuse(Status::INVALID_NAMESPACE_OR_FORMAT);
        };
        let fua = command.force_unit_access();
        match opcode {
            NvmOpcode::Read => read(connection, &channel, slot, command),
            NvmOpcode::Write => store(
                connection,
                &channel,
                slot,
                command,
                Operation::Write { fua },
                data,
            ),
            NvmOpcode::Compare => store(connection, &channel, slot, command, Operation::Compare, data),
            NvmOpcode::Flush => submit(connection, &channel, slot, Operation::Flush, command, Data::None),
            NvmOpcode::WriteZeroes => {
                let operation = Operation::WriteZeroes {
                    deallocate: command.deallocate_requested(),
                    fua,
                };
                submit(connection, &channel, slot, operation, command, Data::None);
            }
            NvmOpcode::DatasetManagement => manage(connection, channel, slot, command, &data),
            _ => refuse(Status::INVALID_COMMAND_OPCODE),
        }
    }

    fn flush_all(&self, connection: &Connection, slot: u16) {
        let channels: Vec<_> = self
            .subsystem
            .namespaces()
            .iter()
            .filter_map(|namespace| self.channel(namespace.nsid))
            .collect();
        in_task(connection, slot, async move {
            for channel in channels {
                channel.flush().await?;
            }
            Ok(())
        });
    }
}

/// Runs what takes several device requests, and answers with its result.
fn in_task(connection: &Connection, slot: u16, work: impl Future<Output = Result<(), IoError>> + 'static) {
    let connection = connection.own();
    drop(spawn(async move {
        let token = Token::new(connection, u64::from(slot));
        token.complete(work.await, Data::None);
    }));
}

fn submit(
    connection: &Connection,
    channel: &Rc<dyn Channel>,
    slot: u16,
    operation: Operation,
    command: &Command,
    data: Data,
) {
    let (lba, blocks) = match operation {
        Operation::Flush => (Lba(0), BlockCount(0)),
        _ => (command.slba(), command.nlb()),
    };
    channel.submit(Request {
        operation,
        lba,
        blocks,
        data,
        metadata: Data::None,
        fence: None,
        trace: TraceId::default(),
        token: Token::new(connection.own(), u64::from(slot)),
    });
}

/// Length of the command's blocks in bytes, if a command may move so many.
fn length_bytes(channel: &Rc<dyn Channel>, command: &Command) -> Result<usize, Status> {
    let geometry = channel.geometry();
    geometry
        .check_range(command.slba(), command.nlb())
        .map_err(|_| Status::LBA_OUT_OF_RANGE)?;
    let bytes = command.nlb().0 * u64::from(geometry.block_bytes);
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= TRANSFER_LIMIT_BYTES => Ok(bytes),
        _ => Err(Status::INVALID_FIELD_IN_COMMAND),
    }
}

fn read(connection: &Connection, channel: &Rc<dyn Channel>, slot: u16, command: &Command) {
    let length = match length_bytes(channel, command) {
        Ok(length) => length,
        Err(status) => return connection.answer(slot, Answer::refuse(status)),
    };
    match command.sgl() {
        SglDescriptor::Transport { length: room } if room as usize == length => {}
        SglDescriptor::Transport { .. } => {
            return connection.answer(slot, Answer::refuse(Status::DATA_SGL_LENGTH_INVALID));
        }
        _ => return connection.answer(slot, Answer::refuse(Status::SGL_DESCRIPTOR_TYPE_INVALID)),
    }
    if !connection.may_hold(slot, length) {
        return;
    }
    if let Ok(buffer) = connection.pool().try_allocate(length) {
        return submit(
            connection,
            channel,
            slot,
            Operation::Read,
            command,
            Data::Into(buffer),
        );
    }
    // No buffer is free: wait for one without holding up the queue's other commands.
    let (own, channel, command) = (connection.own(), channel.clone(), *command);
    drop(spawn(async move {
        if let Ok(buffer) = own.pool().allocate(length).await
            && !own.is_ended()
        {
            submit(
                &own,
                &channel,
                slot,
                Operation::Read,
                &command,
                Data::Into(buffer),
            );
        }
    }));
}

fn store(
    connection: &Connection,
    channel: &Rc<dyn Channel>,
    slot: u16,
    command: &Command,
    operation: Operation,
    data: Buffer,
) {
    match length_bytes(channel, command) {
        Ok(length) if length == data.len() => {
            submit(connection, channel, slot, operation, command, Data::From(data));
        }
        Ok(_) => connection.answer(slot, Answer::refuse(Status::DATA_SGL_LENGTH_INVALID)),
        Err(status) => connection.answer(slot, Answer::refuse(status)),
    }
}

fn manage(connection: &Connection, channel: Rc<dyn Channel>, slot: u16, command: &Command, data: &[u8]) {
    let ranges = match decode_ranges(data, command.dsm_ranges()) {
        Ok(ranges) => ranges.collect::<Vec<_>>(),
        Err(_) => return connection.answer(slot, Answer::refuse(Status::DATA_SGL_LENGTH_INVALID)),
    };
    let geometry = channel.geometry();
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
    in_task(connection, slot, async move {
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
