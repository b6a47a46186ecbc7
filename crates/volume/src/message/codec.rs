//! How messages lie in NVMe vendor commands (`docs/formats/peer.md` is the same as a table).
//!
//! Opcodes are vendor-specific I/O opcodes (80h–FFh) whose low two bits give the data direction:
//! 00b none, 01b host to controller, 10b controller to host (NVM Express Base Specification 2.0,
//! section 3.1.3.3, figure "Opcodes for I/O Commands"). Only fields that fabrics leave free are
//! used: CDW2, CDW3, MPTR and CDW10 to CDW15. What does not fit travels in the data; for a
//! Replica Write after the blocks, so that these stay aligned.

use foundation::Epoch;

use super::{Message, Refusal, ReplicaWrite, RoomLeft, SealAnswer, WriteKind};
use crate::configuration::ChunkConfig;
use crate::format::{FormatError, Reader, Writer};
use crate::identity::{
    BlockRange, ChunkId, ChunkIndex, HostId, Incarnation, JoinNumber, Sequence, Session, SnapshotId, TraceId,
    VolumeNumber, WriterToken,
};

mod checked;
mod grants;
mod location;
mod native;

pub use checked::{Agreed, Checked, digest_of};
pub use grants::LIST_CHUNKS_MAX;
pub use location::{Location, OpenFile, Run};
pub use native::{
    NATIVE_BLOCKS_MAX, NativeCommand, NativeFields, NativeOperation, native_opcode, native_status_code,
    native_status_from_code,
};

/// The version of the peer protocol, in byte 0 of CDW3 of each command.
pub const VERSION: u8 = 1;
/// Bytes after the blocks of a Replica Write.
pub const REPLICA_TAIL_BYTES: usize = 48;
/// No chunk sees so many writes. What is above comes from a faulty program, and the next sequence must exist.
const SEQUENCE_MAX: Sequence = Sequence(u64::MAX / 2);
/// No peer command carries more data than this beside blocks.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Room that is given to the answer of a command with data to the host, but for a Seal Answer.
pub const ANSWER_ROOM_BYTES: usize = 64 << 10;

/// Opcodes of the peer commands.
pub mod opcode {
    /// A write in a chunk's order; data to the controller.
    pub const REPLICA_WRITE: u8 = 0x81;
    /// Seal an epoch; data to the controller.
    pub const SEAL: u8 = 0x85;
    /// What the sealed copy knows; data to the host. Follows a Seal that succeeded.
    pub const SEAL_ANSWER: u8 = 0x86;
    /// Settled-through; no data.
    pub const SETTLE: u8 = 0x88;
    /// Flush one chunk copy; no data.
    pub const FLUSH: u8 = 0x8c;
    /// The list of chunks for which grants are asked; data to the controller.
    pub const ENROLL: u8 = 0x91;
    /// Asks for a grant; data to the host.
    pub const BEACON: u8 = 0x92;
    /// What a node has of a chunk; data to the host.
    pub const QUERY: u8 = 0x96;
    /// A copy that is not in sync asks to join; data to the controller.
    pub const RETURN: u8 = 0x99;
    /// A copy is let in; data to the controller.
    pub const JOIN: u8 = 0x9d;
    /// The members are told of a join; no data.
    pub const ANNOUNCE: u8 = 0x9c;
    /// A member has read blocks that do not fit their checksums; no data.
    pub const REPAIR: u8 = 0xa0;
    /// No copy has these blocks right; no data.
    pub const LOST: u8 = 0xa4;
    /// A member keeps its copy as it is, as a snapshot; no data.
    pub const SNAPSHOT: u8 = 0xa8;
    /// Whether a member is still in the write node's epoch; no data.
    pub const CONFIRM: u8 = 0xac;
    /// One page of a member's copy; data to the host.
    pub const FETCH: u8 = 0xa2;
}

const FLAG_OPEN: u8 = 1;
const FLAG_FORCE_UNIT_ACCESS: u8 = 2;
const FLAG_SESSION: u8 = 4;
const FLAG_PARTS: u8 = 8;
const FLAG_ANY: u8 = 16;
const FLAG_MARKS: u8 = 32;

impl Refusal {
    /// The command-specific status code (status code type 1) of a completion that refuses.
    pub fn status_code(self) -> u8 {
        match self {
            Self::StaleEpoch => 0xc0,
            Self::NotMember => 0xc1,
            Self::WrongJoin => 0xc2,
            Self::DeviceFailed => 0xc3,
            Self::NoSuchChunk => 0xc4,
            Self::FencedWriter => 0xc5,
            Self::NoSnapshot => 0xc6,
        }
    }

    /// The refusal of a status code, if it is one of ours.
    pub fn from_status_code(code: u8) -> Option<Self> {
        let all = [
            Self::StaleEpoch,
            Self::NotMember,
            Self::WrongJoin,
            Self::DeviceFailed,
            Self::NoSuchChunk,
            Self::FencedWriter,
            Self::NoSnapshot,
        ];
        all.into_iter().find(|refusal| refusal.status_code() == code)
    }
}

/// The fields of a 64-byte command that this protocol uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CommandFields {
    /// Byte 0.
    pub opcode: u8,
    /// Bytes 4 to 7: the volume's number; 0 for messages between nodes as such.
    pub nsid: u32,
    /// Bytes 8 to 11.
    pub cdw2: u32,
    /// Bytes 12 to 15.
    pub cdw3: u32,
    /// Bytes 16 to 23, unused by fabrics.
    pub mptr: u64,
    /// Bytes 40 to 63.
    pub cdw10_15: [u32; 6],
}

/// A command and what travels in its data. For a Replica Write, `data` is the tail after the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedCommand {
    /// The command's fields.
    pub fields: CommandFields,
    /// Its data to the controller.
    pub data: Vec<u8>,
}

impl CommandFields {
    fn quad(&self, first: usize) -> u64 {
        u64::from(self.cdw10_15[first]) | u64::from(self.cdw10_15[first + 1]) << 32
    }

    fn set_quad(&mut self, first: usize, value: u64) {
        self.cdw10_15[first] = value as u32;
        self.cdw10_15[first + 1] = (value >> 32) as u32;
    }

    fn flag(&self, flag: u8) -> bool {
        self.cdw3.to_le_bytes()[1] & flag != 0
    }

    fn for_chunk(opcode: u8, chunk: ChunkId, epoch: Epoch, flags: u8, kind: u8) -> Self {
        Self {
            opcode,
            nsid: chunk.volume.0,
            cdw2: chunk.index.0,
            cdw3: u32::from_le_bytes([VERSION, flags, kind, 0]),
            mptr: epoch.0,
            cdw10_15: [0; 6],
        }
    }

    fn chunk(&self) -> ChunkId {
        ChunkId {
            volume: VolumeNumber(self.nsid),
            index: ChunkIndex(self.cdw2),
        }
    }
}

/// A command that a message travels as; none for answers, see [`encode_answer`].
pub fn encode_command(message: &Message) -> Option<EncodedCommand> {
    let mut data = Writer::default();
    let fields = match message {
        Message::Seal { chunk, config } => {
            config.encode(&mut data);
            CommandFields::for_chunk(opcode::SEAL, *chunk, config.epoch, 0, 0)
        }
        Message::ReplicaWrite(write) => encode_replica_write(write, &mut data),
        Message::Settle {
            chunk,
            epoch,
            settled,
            flushed,
            open,
        } => {
            let flags = if *open { FLAG_OPEN } else { 0 };
            let mut fields = CommandFields::for_chunk(opcode::SETTLE, *chunk, *epoch, flags, 0);
            fields.set_quad(2, flushed.0);
            fields.set_quad(4, settled.0);
            fields
        }
        Message::Flush {
            chunk,
            epoch,
            number,
            join,
        } => {
            let mut fields = CommandFields::for_chunk(opcode::FLUSH, *chunk, *epoch, 0, 0);
            fields.cdw10_15[0] = join.0;
            fields.set_quad(2, *number);
            fields
        }
        Message::Return {
            chunk,
            epoch,
            incarnation,
            flushed_in,
            marks,
            takes_marks,
        } => {
            data.u64(incarnation.0);
            data.u64(flushed_in.0);
            encode_marks(marks, &mut data);
            let flags = if *takes_marks { FLAG_MARKS } else { 0 };
            CommandFields::for_chunk(opcode::RETURN, *chunk, *epoch, flags, 0)
        }
        Message::Join {
            chunk,
            epoch,
            join,
            incarnation,
            writer_token,
            sessions,
            marks,
        } => {
            data.u64(incarnation.0);
            data.u64(writer_token.0);
            encode_sessions(sessions, &mut data);
            // A release before knows no such list, and would not read on.
            let flags = if marks.is_empty() { 0 } else { FLAG_MARKS };
            if flags != 0 {
                encode_marks(marks, &mut data);
            }
            let mut fields = CommandFields::for_chunk(opcode::JOIN, *chunk, *epoch, flags, 0);
            fields.cdw10_15[0] = join.0;
            fields
        }
        Message::Announce { chunk, epoch, join } => {
            let mut fields = CommandFields::for_chunk(opcode::ANNOUNCE, *chunk, *epoch, 0, 0);
            fields.cdw10_15[0] = join.0;
            fields
        }
        Message::Repair { chunk, epoch, range } => ranged(opcode::REPAIR, *chunk, *epoch, *range),
        Message::Lost { chunk, epoch, range } => ranged(opcode::LOST, *chunk, *epoch, *range),
        Message::Snapshot {
            chunk,
            epoch,
            snapshot,
            sequence,
        } => {
            let mut fields = CommandFields::for_chunk(opcode::SNAPSHOT, *chunk, *epoch, 0, 0);
            fields.set_quad(2, snapshot.0);
            fields.set_quad(4, sequence.0);
            fields
        }
        Message::Confirm {
            chunk,
            epoch,
            snapshot,
        } => {
            let mut fields = CommandFields::for_chunk(opcode::CONFIRM, *chunk, *epoch, 0, 0);
            fields.set_quad(2, snapshot.0);
            fields
        }
        Message::Fetch {
            chunk,
            epoch,
            number,
            range,
            any,
        } => {
            let flags = if *any { FLAG_ANY } else { 0 };
            let mut fields = CommandFields::for_chunk(opcode::FETCH, *chunk, *epoch, flags, 0);
            (fields.cdw10_15[0], fields.cdw10_15[1]) = (range.start, range.count);
            fields.set_quad(2, *number);
            fields
        }
        Message::Enroll {
            incarnation,
            part,
            list,
            entries,
        } => {
            grants::encode_entries(entries, &mut data);
            let list = (*part, *list);
            grants::between_nodes(opcode::ENROLL, *incarnation, list, (0, 0))
        }
        Message::Beacon {
            incarnation,
            round,
            part,
            list,
        } => {
            let flags = if part.is_some() { FLAG_PARTS } else { 0 };
            let list = (part.unwrap_or(0), *list);
            grants::between_nodes(opcode::BEACON, *incarnation, list, (*round, flags))
        }
        Message::Query { chunk } => CommandFields::for_chunk(opcode::QUERY, *chunk, Epoch(0), 0, 0),
        _ => return None,
    };
    let data = data.bytes;
    Some(EncodedCommand { fields, data })
}

fn encode_sessions(sessions: &[Session], out: &mut Writer) {
    out.count(sessions.len());
    for session in sessions {
        out.u64(session.host.0);
        out.u64(session.number);
    }
}

fn decode_sessions(reader: &mut Reader<'_>) -> Result<Vec<Session>, FormatError> {
    let count = reader.count(16)?;
    let mut sessions = Vec::with_capacity(count);
    for _ in 0..count {
        let host = HostId(reader.u64()?);
        let number = reader.u64()?;
        sessions.push(Session { host, number });
    }
    Ok(sessions)
}

fn encode_marks(marks: &[u32], out: &mut Writer) {
    out.count(marks.len());
    marks.iter().for_each(|region| out.u32(*region));
}

fn decode_marks(reader: &mut Reader<'_>) -> Result<Vec<u32>, FormatError> {
    let count = reader.count(4)?;
    let mut marks = Vec::with_capacity(count);
    for _ in 0..count {
        marks.push(reader.u32()?);
    }
    Ok(marks)
}

fn ranged(opcode: u8, chunk: ChunkId, epoch: Epoch, range: BlockRange) -> CommandFields {
    let mut fields = CommandFields::for_chunk(opcode, chunk, epoch, 0, 0);
    (fields.cdw10_15[0], fields.cdw10_15[1]) = (range.start, range.count);
    fields
}

fn encode_replica_write(write: &ReplicaWrite, tail: &mut Writer) -> CommandFields {
    let mut flags = 0;
    if write.open {
        flags |= FLAG_OPEN;
    }
    if write.force_unit_access {
        flags |= FLAG_FORCE_UNIT_ACCESS;
    }
    if write.session.is_some() {
        flags |= FLAG_SESSION;
    }
    let kind = match write.kind {
        WriteKind::Data => 0,
        WriteKind::Zeroes => 1,
        WriteKind::Deallocate => 2,
        WriteKind::Fence => 3,
        WriteKind::Lost => 4,
    };
    let opcode = opcode::REPLICA_WRITE;
    let mut fields = CommandFields::for_chunk(opcode, write.chunk, write.epoch, flags, kind);
    fields.cdw10_15[0] = write.range.start;
    fields.cdw10_15[1] = write.range.count;
    fields.set_quad(2, write.sequence.0);
    fields.set_quad(4, write.settled.0);
    let session = write.session.unwrap_or_default();
    tail.u64(session.host.0);
    tail.u64(session.number);
    tail.u64(write.writer_token.0);
    tail.u32(write.join.0);
    tail.u32(0);
    tail.u64(write.trace.0);
    tail.u64(0);
    fields
}

/// Reads a command. `data` is its data to the controller; of a Replica Write, the tail.
pub fn decode_command(fields: &CommandFields, data: &[u8]) -> Result<Message, FormatError> {
    const WHAT: &str = "peer command";
    let [version, _, _, _] = fields.cdw3.to_le_bytes();
    if version != VERSION {
        return Err(FormatError::Version {
            what: WHAT,
            found: version.into(),
            known: VERSION.into(),
        });
    }
    let mut reader = Reader::new(WHAT, data);
    let (chunk, epoch) = (fields.chunk(), Epoch(fields.mptr));
    let incarnation = Incarnation(fields.mptr);
    let range = BlockRange {
        start: fields.cdw10_15[0],
        count: fields.cdw10_15[1],
    };
    let message = match fields.opcode {
        opcode::SEAL => Message::Seal {
            chunk,
            config: ChunkConfig::decode(&mut reader)?,
        },
        opcode::REPLICA_WRITE => Message::ReplicaWrite(decode_replica_write(fields, &mut reader)?),
        opcode::SETTLE => Message::Settle {
            chunk,
            epoch,
            settled: Sequence(fields.quad(4)),
            flushed: Sequence(fields.quad(2)),
            open: fields.flag(FLAG_OPEN),
        },
        opcode::FLUSH => Message::Flush {
            chunk,
            epoch,
            number: fields.quad(2),
            join: JoinNumber(fields.cdw10_15[0]),
        },
        opcode::RETURN => Message::Return {
            chunk,
            epoch,
            incarnation: Incarnation(reader.u64()?),
            flushed_in: Epoch(reader.u64()?),
            marks: decode_marks(&mut reader)?,
            takes_marks: fields.flag(FLAG_MARKS),
        },
        opcode::JOIN => Message::Join {
            chunk,
            epoch,
            join: JoinNumber(fields.cdw10_15[0]),
            incarnation: Incarnation(reader.u64()?),
            writer_token: WriterToken(reader.u64()?),
            sessions: decode_sessions(&mut reader)?,
            marks: match fields.flag(FLAG_MARKS) {
                true => decode_marks(&mut reader)?,
                false => Vec::new(),
            },
        },
        opcode::ANNOUNCE => Message::Announce {
            chunk,
            epoch,
            join: JoinNumber(fields.cdw10_15[0]),
        },
        opcode::REPAIR => Message::Repair { chunk, epoch, range },
        opcode::LOST => Message::Lost { chunk, epoch, range },
        opcode::SNAPSHOT => Message::Snapshot {
            chunk,
            epoch,
            snapshot: SnapshotId(fields.quad(2)),
            sequence: Sequence(fields.quad(4)),
        },
        opcode::CONFIRM => Message::Confirm {
            chunk,
            epoch,
            snapshot: SnapshotId(fields.quad(2)),
        },
        opcode::FETCH => Message::Fetch {
            chunk,
            epoch,
            number: fields.quad(2),
            range,
            any: fields.flag(FLAG_ANY),
        },
        opcode::ENROLL => Message::Enroll {
            incarnation,
            part: fields.cdw2,
            list: fields.cdw10_15[0],
            entries: grants::decode_entries(&mut reader)?,
        },
        opcode::BEACON => Message::Beacon {
            incarnation,
            round: fields.quad(2),
            part: fields.flag(FLAG_PARTS).then_some(fields.cdw2),
            list: fields.cdw10_15[0],
        },
        opcode::QUERY => Message::Query { chunk },
        other => {
            return Err(FormatError::Invalid {
                what: WHAT,
                field: "opcode",
                value: other.into(),
            });
        }
    };
    reader.finish()?;
    Ok(message)
}

fn decode_replica_write(fields: &CommandFields, tail: &mut Reader<'_>) -> Result<ReplicaWrite, FormatError> {
    let [_, _, kind, _] = fields.cdw3.to_le_bytes();
    let kind = match kind {
        0 => WriteKind::Data,
        1 => WriteKind::Zeroes,
        2 => WriteKind::Deallocate,
        3 => WriteKind::Fence,
        4 => WriteKind::Lost,
        other => {
            return Err(FormatError::Invalid {
                what: "peer command",
                field: "kind of write",
                value: other.into(),
            });
        }
    };
    let session = Session {
        host: HostId(tail.u64()?),
        number: tail.u64()?,
    };
    let writer_token = WriterToken(tail.u64()?);
    let join = JoinNumber(tail.u32()?);
    let _zero = tail.u32()?;
    let trace = TraceId(tail.u64()?);
    let _zero = tail.u64()?;
    Ok(ReplicaWrite {
        chunk: fields.chunk(),
        epoch: Epoch(fields.mptr),
        sequence: Sequence(fields.quad(2)),
        settled: Sequence(fields.quad(4)),
        open: fields.flag(FLAG_OPEN),
        range: BlockRange {
            start: fields.cdw10_15[0],
            count: fields.cdw10_15[1],
        },
        kind,
        force_unit_access: fields.flag(FLAG_FORCE_UNIT_ACCESS),
        session: fields.flag(FLAG_SESSION).then_some(session),
        writer_token,
        join,
        trace,
    })
}

/// An answer: bytes 0 to 7 of the completion, and data to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedAnswer {
    /// DW0 and DW1 of the completion; of a refusal, the epoch sealed.
    pub result: u64,
    /// The refusal, as a command-specific vendor status code (C0h and up); none is success.
    pub refusal: Option<Refusal>,
    /// Data to the host.
    pub data: Vec<u8>,
}

/// How an answer travels in the completion of its command; none for commands. The answering
/// life's incarnation is that of the association, told when it was made.
pub fn encode_answer(message: &Message) -> Option<EncodedAnswer> {
    let mut data = Writer::default();
    let (mut result, mut refusal) = (0, None);
    match message {
        Message::SealAnswer(answer) => {
            result = answer.stays.into();
            data.u64(answer.highest.0);
            data.u64(answer.writer_token.0);
            encode_marks(&answer.marks, &mut data);
            encode_sessions(&answer.sessions, &mut data);
        }
        Message::ReplicaAnswer { room, .. } | Message::SettleAnswer { room, .. } => {
            result = *room as u64;
        }
        Message::FlushAnswer { .. }
        | Message::SnapshotAnswer { .. }
        | Message::ConfirmAnswer { .. }
        | Message::AnnounceAnswer { .. } => {}
        Message::Grant {
            known,
            keeps_parts,
            refused,
            ..
        } => {
            result = u64::from(*known) | u64::from(*keeps_parts) << 1;
            grants::encode_chunks(refused, &mut data);
        }
        Message::JoinAnswer { keeps_lost, .. } => result = u64::from(*keeps_lost),
        Message::FetchAnswer { found, .. } => result = u64::from(*found),
        Message::QueryAnswer { sealed, config, .. } => {
            result = sealed.0;
            data.u8(config.is_some().into());
            config.iter().for_each(|config| config.encode(&mut data));
        }
        Message::Refused {
            sealed, refusal: why, ..
        } => {
            result = sealed.0;
            refusal = Some(*why);
        }
        _ => return None,
    }
    Some(EncodedAnswer {
        result,
        refusal,
        data: data.bytes,
    })
}

/// What bits 0 and 1 of DW0 say; a release before says 0.
fn room_left(result: u64) -> RoomLeft {
    match result & 3 {
        0 => RoomLeft::Enough,
        1 => RoomLeft::Little,
        _ => RoomLeft::Nothing,
    }
}

/// Reads the answer to `command` from a peer whose association is with `incarnation`. The answer
/// to a Seal is read with the Seal Answer command that follows it.
pub fn decode_answer(
    command: &Message,
    incarnation: Incarnation,
    answer: &EncodedAnswer,
) -> Result<Message, FormatError> {
    let mut reader = Reader::new("peer answer", &answer.data);
    if let Some(refusal) = answer.refusal {
        return Ok(Message::Refused {
            chunk: command.chunk().unwrap_or_default(),
            epoch: command_epoch(command),
            sealed: Epoch(answer.result),
            refusal,
        });
    }
    let message = match *command {
        Message::Seal { chunk, ref config } => {
            let epoch = config.epoch;
            Message::SealAnswer(decode_seal_answer(
                (chunk, epoch, incarnation),
                // A version before that does not say so is not known to stay.
                answer.result & 1 == 1,
                &mut reader,
            )?)
        }
        Message::ReplicaWrite(write) => Message::ReplicaAnswer {
            chunk: write.chunk,
            epoch: write.epoch,
            sequence: write.sequence,
            incarnation,
            join: write.join,
            room: room_left(answer.result),
        },
        Message::Settle {
            chunk,
            epoch,
            settled,
            flushed,
            open,
        } => Message::SettleAnswer {
            chunk,
            epoch,
            settled,
            flushed,
            open,
            incarnation,
            room: room_left(answer.result),
        },
        Message::Flush {
            chunk,
            epoch,
            number,
            join,
        } => Message::FlushAnswer {
            chunk,
            epoch,
            number,
            incarnation,
            join,
        },
        Message::Join {
            chunk, epoch, join, ..
        } => Message::JoinAnswer {
            chunk,
            epoch,
            join,
            incarnation,
            keeps_lost: answer.result & 1 == 1,
        },
        Message::Announce { chunk, epoch, join } => Message::AnnounceAnswer {
            chunk,
            epoch,
            join,
            incarnation,
        },
        Message::Snapshot {
            chunk,
            epoch,
            snapshot,
            sequence,
        } => Message::SnapshotAnswer {
            chunk,
            epoch,
            snapshot,
            sequence,
            incarnation,
        },
        Message::Confirm {
            chunk,
            epoch,
            snapshot,
        } => Message::ConfirmAnswer {
            chunk,
            epoch,
            snapshot,
            incarnation,
        },
        // Its page is no part of what is read here.
        Message::Fetch {
            chunk,
            epoch,
            number,
            range,
            any,
        } => Message::FetchAnswer {
            chunk,
            epoch,
            number,
            incarnation,
            range,
            any,
            found: answer.result == 1,
        },
        Message::Beacon {
            incarnation,
            round,
            part,
            list,
        } => Message::Grant {
            incarnation,
            round,
            list,
            known: answer.result & 1 == 1,
            keeps_parts: part.is_some() && answer.result & 2 == 2,
            refused: grants::decode_chunks(&mut reader)?,
        },
        Message::Query { chunk } => Message::QueryAnswer {
            chunk,
            sealed: Epoch(answer.result),
            config: match reader.u8()? {
                0 => None,
                _ => Some(ChunkConfig::decode(&mut reader)?),
            },
        },
        _ => {
            return Err(FormatError::Invalid {
                what: "peer answer",
                field: "command",
                value: 0,
            });
        }
    };
    reader.finish()?;
    Ok(message)
}

fn command_epoch(command: &Message) -> Epoch {
    match command {
        Message::Seal { config, .. } => config.epoch,
        Message::ReplicaWrite(write) => write.epoch,
        Message::Settle { epoch, .. }
        | Message::Flush { epoch, .. }
        | Message::Join { epoch, .. }
        | Message::Announce { epoch, .. }
        | Message::Snapshot { epoch, .. }
        | Message::Confirm { epoch, .. }
        | Message::Fetch { epoch, .. } => *epoch,
        _ => Epoch(0),
    }
}

fn decode_seal_answer(
    (chunk, epoch, incarnation): (ChunkId, Epoch, Incarnation),
    stays: bool,
    reader: &mut Reader<'_>,
) -> Result<SealAnswer, FormatError> {
    let highest = Sequence(reader.u64()?);
    if highest > SEQUENCE_MAX {
        return Err(FormatError::Invalid {
            what: "peer answer",
            field: "highest sequence",
            value: highest.0,
        });
    }
    let writer_token = WriterToken(reader.u64()?);
    let marks = decode_marks(reader)?;
    let sessions = decode_sessions(reader)?;
    Ok(SealAnswer {
        chunk,
        epoch,
        incarnation,
        highest,
        marks,
        sessions,
        writer_token,
        stays,
    })
}

#[cfg(test)]
mod tests;
