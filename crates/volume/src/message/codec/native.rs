//! Commands of native clients: those of the NVM Command Set with more fields, and how a node
//! refuses them.
//!
//! Fields and flags of dword 12 are where the NVM Command Set Specification 1.0c has them (sections
//! 3.2.4, 3.2.6 and 3.2.8). Dwords 14 and 15, which it gives to protection information only, carry
//! the trace id: blocks travel between peers without protection fields in the command.

use foundation::{Epoch, Lba};

use super::CommandFields;
use crate::format::FormatError;
use crate::identity::{HostId, Session, SnapshotId, TraceId, VolumeNumber, WriterToken};
use crate::output::Status;

/// The most blocks one command names.
pub const NATIVE_BLOCKS_MAX: u32 = 1 << 16;

/// Opcodes of the NVM Command Set that native clients use.
pub mod native_opcode {
    /// Flush the chunk that the first block lies in.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Zeroes; with DEAC, deallocate.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Put the writer's token into force on the chunk that the first block lies in; vendor specific, no data.
    pub const FENCE: u8 = 0x80;
    /// Claim the chunk that the first block lies in for a host that writes through a portal; vendor specific, no data.
    pub const CLAIM: u8 = 0x84;
    /// Where the disk holds the chunk that the first block lies in ([`super::super::Location`](crate::message::codec::Location)); vendor specific, data to
    /// the host.
    pub const LOCATE: u8 = 0x82;
    /// Read the blocks of this copy and compare them with their checksums; vendor specific, [`super::Checked`] to the host.
    pub const CHECK: u8 = 0x8a;
    /// Read blocks of this node's copy of a snapshot; vendor specific, data to the host.
    pub const READ_SNAPSHOT: u8 = 0x8e;
    /// A chunk's part in a snapshot of its volume: begin; vendor specific, no data.
    pub const CUT: u8 = 0x90;
    /// All chunks have been cut; vendor specific, no data.
    pub const RELEASE: u8 = 0x94;
    /// The snapshot is given up; vendor specific, no data.
    pub const ABANDON: u8 = 0x98;
    /// May the asking node count this node's copy of a snapshot; vendor specific, no data, only between nodes.
    pub const COUNT_SNAPSHOT: u8 = 0xb4;
    /// Read blocks of this node's copy of a snapshot and compare them with their checksums; vendor specific, [`super::Checked`] to the host.
    pub const CHECK_SNAPSHOT: u8 = 0xba;
    /// Deallocate blocks that follow each other in the chunk that the first block lies in, not in the volume; vendor specific, no data.
    pub const DEALLOCATE_RUN: u8 = 0xb8;
    /// Write if the blocks hold what is expected; vendor specific, data to the controller: the bytes expected, then those to write.
    pub const COMPARE_AND_WRITE: u8 = 0xbd;
    /// Compare what the copies hold with each other; vendor specific, [`super::Agreed`] to the host.
    pub const COMPARE_COPIES: u8 = 0xbe;
    /// All other copies hold something else in a block; vendor specific, no data, only between nodes.
    pub const OUTVOTE: u8 = 0xbc;
}

const FORCE_UNIT_ACCESS: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;
/// Of a Locate.
const CHECKS: u32 = 1;

/// What a native client adds to a command on a peer subsystem. The block stays where the NVM
/// Command Set Specification has it; the session is that of the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeFields {
    /// The epoch of the client's map for the chunk: MPTR.
    pub epoch: Epoch,
    /// The client's write lease: CDW2 and CDW3.
    pub writer_token: WriterToken,
    /// The volume's block: CDW10 and CDW11 (SLBA). The range lies in one chunk.
    pub first_lba: Lba,
}

impl NativeFields {
    /// Writes the fields into a command.
    pub fn encode(&self, fields: &mut CommandFields) {
        fields.mptr = self.epoch.0;
        fields.cdw2 = self.writer_token.0 as u32;
        fields.cdw3 = (self.writer_token.0 >> 32) as u32;
        fields.set_quad(0, self.first_lba.0);
    }

    /// Reads the fields of a command; every value is possible.
    pub fn decode(fields: &CommandFields) -> Self {
        Self {
            epoch: Epoch(fields.mptr),
            writer_token: WriterToken(u64::from(fields.cdw2) | u64::from(fields.cdw3) << 32),
            first_lba: Lba(fields.quad(0)),
        }
    }
}

/// What a native client asks of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NativeOperation {
    /// Read.
    Read,
    /// Write.
    Write {
        /// Durable before it is answered.
        fua: bool,
    },
    /// Make the blocks read zeros and keep their space.
    WriteZeroes {
        /// Durable before it is answered.
        fua: bool,
    },
    /// Make the blocks read zeros and give their space back.
    Deallocate {
        /// Durable before it is answered.
        fua: bool,
    },
    /// As [`NativeOperation::Deallocate`], of blocks that follow each other in the chunk, not in the volume: a copy gives back only what it
    /// is told of at once, and a stripe unit may be less than it takes at once.
    DeallocateRun {
        /// Durable before it is answered.
        fua: bool,
    },
    /// Write if the blocks hold what is expected, in one step beside all other writes; [`Status::Differs`] if they do not. The data are the
    /// bytes expected, then those to write.
    CompareAndWrite {
        /// Durable before it is answered.
        fua: bool,
    },
    /// Make everything acknowledged in the chunk durable on every in-sync copy.
    Flush,
    /// Make the command's writer token durable on every in-sync copy of the chunk, which refuses older ones from then
    /// on.
    Fence,
    /// Tell where this node's disk holds the chunk, for one who may read that disk itself.
    Locate {
        /// Who asks checks what it reads if the copy has checksums.
        checks: bool,
    },
    /// Read the blocks of this copy and compare them with their checksums; what does not fit is repaired. The answer is
    /// [`super::Checked`]; the blocks stay where they are.
    Check,
    /// Compare what all copies in sync hold in the blocks; the write node does. A copy that all others contradict gets their bytes. The
    /// answer is [`super::Agreed`].
    CompareCopies,
    /// All other copies hold something else in this one block than this copy, where its checksum is this. If it still is, the block does not fit any
    /// more. Only from the write node.
    Outvote(u32),
    /// Take no writes of the host any more but those under the claim that this makes. See [`NativeCommand::of_portal`].
    Claim,
    /// Keep the chunk as it is, and hold acknowledgements ([`crate::Operation::Cut`]).
    Cut(SnapshotId),
    /// See [`crate::Operation::Release`].
    Release(SnapshotId),
    /// See [`crate::Operation::Abandon`].
    Abandon(SnapshotId),
    /// Read what this node's copy of a snapshot has, whatever the chunk's configuration is: a snapshot never changes. Epoch and
    /// writer's token say nothing; in the place of the token stands the snapshot's number.
    ReadSnapshot(SnapshotId),
    /// As [`NativeOperation::Check`], of this node's copy of a snapshot, which is named as in a [`NativeOperation::ReadSnapshot`].
    CheckSnapshot(SnapshotId),
    /// May the asking node count this node's copy of the chunk's part in a snapshot ([`crate::Keeper`])? Only between nodes. The result of
    /// the answer is the sequence of the last write in it.
    CountSnapshot(SnapshotId),
}

impl NativeOperation {
    /// Whether it changes the chunk, so that a second run of it would count.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Self::Read
                | Self::Flush
                | Self::Locate { .. }
                | Self::Check
                | Self::CompareCopies
                | Self::Outvote(_)
                | Self::ReadSnapshot(_)
                | Self::CheckSnapshot(_)
                | Self::CountSnapshot(_)
        )
    }

    /// Whether it reads blocks, of which another copy may do.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadSnapshot(_))
    }

    /// Whether it is about a chunk as a whole and names no blocks.
    pub fn is_of_chunk(self) -> bool {
        matches!(
            self,
            Self::Flush
                | Self::Fence
                | Self::Locate { .. }
                | Self::Claim
                | Self::Cut(_)
                | Self::Release(_)
                | Self::Abandon(_)
                | Self::CountSnapshot(_)
        )
    }

    /// The snapshot that it is about as a whole: one of which it is a step of making, or that is counted.
    pub fn snapshot(self) -> Option<SnapshotId> {
        match self {
            Self::Cut(snapshot)
            | Self::Release(snapshot)
            | Self::Abandon(snapshot)
            | Self::CountSnapshot(snapshot) => Some(snapshot),
            _ => None,
        }
    }
}

/// A command of a native client to the node of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeCommand {
    /// What to do.
    pub operation: NativeOperation,
    /// The volume: NSID.
    pub volume: VolumeNumber,
    /// Authority, and where.
    pub fields: NativeFields,
    /// How many blocks, 1 to [`NATIVE_BLOCKS_MAX`]; 0 for those of a whole chunk.
    pub blocks: u32,
    /// Follows the request: CDW14 and CDW15.
    pub trace: TraceId,
    /// Of a portal's command, the low half of the writer's token under which it goes: CDW13. 0 in all others, and where hosts
    /// have agreed on nothing.
    pub portal_token: u32,
}

impl NativeCommand {
    /// The command as a portal sends it for one of its hosts: the number of the claim stands in the place of the writer's
    /// token, that in dword 13, and the host in the place of the trace id. Of a [`NativeOperation::Claim`] the number is that
    /// of the claim that must be in force still, or 0 for any.
    #[must_use]
    pub fn of_portal(self, session: Session) -> Self {
        let mut command = self;
        // Masters give no number that does not fit (`docs/decisions/0100-reservations-of-exported-volumes.md`).
        command.portal_token = u32::try_from(self.fields.writer_token.0).unwrap_or(u32::MAX);
        command.fields.writer_token = WriterToken(session.number);
        command.trace = TraceId(session.host.0);
        command
    }

    /// Takes a portal's command apart: for whom and under which claim, and the command without them.
    pub fn from_portal(self) -> (Session, Self) {
        let session = Session {
            host: HostId::through_portals(self.trace.0),
            number: self.fields.writer_token.0,
        };
        let mut command = self;
        command.fields.writer_token = WriterToken(self.portal_token.into());
        command.portal_token = 0;
        command.trace = TraceId(0);
        (session, command)
    }

    /// The command's fields.
    ///
    /// # Panics
    /// If the number of blocks is not one the operation can have: splitting is the caller's duty.
    pub fn encode(&self) -> CommandFields {
        let of_chunk = self.operation.is_of_chunk();
        let valid = if of_chunk {
            self.blocks == 0
        } else {
            (1..=NATIVE_BLOCKS_MAX).contains(&self.blocks)
        };
        assert!(
            valid,
            "a command names 1 to 65536 blocks, or a whole chunk: {self:?}"
        );
        let (opcode, fua, deallocate) = match self.operation {
            NativeOperation::Read => (native_opcode::READ, false, false),
            NativeOperation::Write { fua } => (native_opcode::WRITE, fua, false),
            NativeOperation::WriteZeroes { fua } => (native_opcode::WRITE_ZEROES, fua, false),
            NativeOperation::Deallocate { fua } => (native_opcode::WRITE_ZEROES, fua, true),
            NativeOperation::DeallocateRun { fua } => (native_opcode::DEALLOCATE_RUN, fua, false),
            NativeOperation::CompareAndWrite { fua } => (native_opcode::COMPARE_AND_WRITE, fua, false),
            NativeOperation::Flush => (native_opcode::FLUSH, false, false),
            NativeOperation::Fence => (native_opcode::FENCE, false, false),
            NativeOperation::Locate { .. } => (native_opcode::LOCATE, false, false),
            NativeOperation::Claim => (native_opcode::CLAIM, false, false),
            NativeOperation::Check => (native_opcode::CHECK, false, false),
            NativeOperation::CompareCopies => (native_opcode::COMPARE_COPIES, false, false),
            NativeOperation::Outvote(_) => (native_opcode::OUTVOTE, false, false),
            NativeOperation::Cut(_) => (native_opcode::CUT, false, false),
            NativeOperation::Release(_) => (native_opcode::RELEASE, false, false),
            NativeOperation::Abandon(_) => (native_opcode::ABANDON, false, false),
            NativeOperation::ReadSnapshot(_) => (native_opcode::READ_SNAPSHOT, false, false),
            NativeOperation::CountSnapshot(_) => (native_opcode::COUNT_SNAPSHOT, false, false),
            NativeOperation::CheckSnapshot(_) => (native_opcode::CHECK_SNAPSHOT, false, false),
        };
        let mut fields = CommandFields {
            opcode,
            nsid: self.volume.0,
            ..CommandFields::default()
        };
        let mut own = self.fields;
        if let NativeOperation::ReadSnapshot(snapshot) | NativeOperation::CheckSnapshot(snapshot) =
            self.operation
        {
            own.writer_token = WriterToken(snapshot.0);
        }
        if let NativeOperation::Outvote(sum) = self.operation {
            own.writer_token = WriterToken(sum.into());
        }
        own.encode(&mut fields);
        if !of_chunk {
            fields.cdw10_15[2] = self.blocks - 1;
        }
        if fua {
            fields.cdw10_15[2] |= FORCE_UNIT_ACCESS;
        }
        if deallocate {
            fields.cdw10_15[2] |= DEALLOCATE;
        }
        if self.operation == (NativeOperation::Locate { checks: true }) {
            fields.cdw10_15[2] |= CHECKS;
        }
        match self.operation.snapshot() {
            Some(snapshot) => fields.set_quad(2, snapshot.0),
            None => fields.cdw10_15[3] = self.portal_token,
        }
        fields.set_quad(4, self.trace.0);
        fields
    }

    /// Reads a command; fields that it does not have are ignored.
    ///
    /// # Errors
    /// [`FormatError::Invalid`] for an opcode that is none of [`native_opcode`].
    pub fn decode(fields: &CommandFields) -> Result<Self, FormatError> {
        let dword = fields.cdw10_15[2];
        let fua = dword & FORCE_UNIT_ACCESS != 0;
        let mut own = NativeFields::decode(fields);
        let operation = match fields.opcode {
            native_opcode::READ_SNAPSHOT | native_opcode::CHECK_SNAPSHOT => {
                let number = SnapshotId(std::mem::take(&mut own.writer_token).0);
                match fields.opcode {
                    native_opcode::READ_SNAPSHOT => NativeOperation::ReadSnapshot(number),
                    _ => NativeOperation::CheckSnapshot(number),
                }
            }
            native_opcode::READ => NativeOperation::Read,
            native_opcode::WRITE => NativeOperation::Write { fua },
            native_opcode::WRITE_ZEROES if dword & DEALLOCATE != 0 => NativeOperation::Deallocate { fua },
            native_opcode::WRITE_ZEROES => NativeOperation::WriteZeroes { fua },
            native_opcode::DEALLOCATE_RUN => NativeOperation::DeallocateRun { fua },
            native_opcode::COMPARE_AND_WRITE => NativeOperation::CompareAndWrite { fua },
            native_opcode::FLUSH => NativeOperation::Flush,
            native_opcode::FENCE => NativeOperation::Fence,
            native_opcode::LOCATE => NativeOperation::Locate {
                checks: dword & CHECKS != 0,
            },
            native_opcode::CLAIM => NativeOperation::Claim,
            native_opcode::CHECK => NativeOperation::Check,
            native_opcode::COMPARE_COPIES => NativeOperation::CompareCopies,
            // A checksum has no more bits.
            native_opcode::OUTVOTE => {
                NativeOperation::Outvote(std::mem::take(&mut own.writer_token).0 as u32)
            }
            native_opcode::CUT => NativeOperation::Cut(SnapshotId(fields.quad(2))),
            native_opcode::RELEASE => NativeOperation::Release(SnapshotId(fields.quad(2))),
            native_opcode::ABANDON => NativeOperation::Abandon(SnapshotId(fields.quad(2))),
            native_opcode::COUNT_SNAPSHOT => NativeOperation::CountSnapshot(SnapshotId(fields.quad(2))),
            other => {
                return Err(FormatError::Invalid {
                    what: "native command",
                    field: "opcode",
                    value: other.into(),
                });
            }
        };
        let blocks = match operation {
            operation if operation.is_of_chunk() => 0,
            _ => (dword & 0xffff) + 1,
        };
        Ok(Self {
            operation,
            volume: VolumeNumber(fields.nsid),
            fields: own,
            blocks,
            trace: TraceId(fields.quad(4)),
            portal_token: match operation.snapshot() {
                Some(_) => 0,
                None => fields.cdw10_15[3],
            },
        })
    }
}

const STALE_EPOCH: u8 = 0xc0;
const DEVICE_FAILED: u8 = 0xc3;
const NOT_WRITE_NODE: u8 = 0xc8;
const NOT_READY: u8 = 0xc9;
const STALE_SESSION: u8 = 0xca;
const FENCED_WRITER: u8 = 0xcb;
const OUT_OF_RANGE: u8 = 0xcc;
const BUSY: u8 = 0xcd;
const CANCELLED: u8 = 0xce;
const UNKNOWN: u8 = 0xcf;
const SNAPSHOT_ABORTED: u8 = 0xd0;
const DIFFERS: u8 = 0xd1;
const LOST: u8 = 0xd2;
const NO_ROOM: u8 = 0xd3;

/// How a status travels in a completion: the command-specific status code (status code type 1)
/// and dwords 0 and 1; none for [`Status::Done`] and [`Status::Claimed`].
pub fn native_status_code(status: Status) -> Option<(u8, u64)> {
    Some(match status {
        Status::Done | Status::Claimed(_) => return None,
        Status::StaleEpoch(epoch) => (STALE_EPOCH, epoch.0),
        Status::DeviceFailed => (DEVICE_FAILED, 0),
        Status::NotWriteNode(epoch) => (NOT_WRITE_NODE, epoch.0),
        Status::NotReady => (NOT_READY, 0),
        Status::StaleSession => (STALE_SESSION, 0),
        Status::FencedWriter(token) => (FENCED_WRITER, token.0),
        Status::OutOfRange => (OUT_OF_RANGE, 0),
        Status::Busy => (BUSY, 0),
        Status::Cancelled => (CANCELLED, 0),
        Status::Unknown => (UNKNOWN, 0),
        Status::SnapshotAborted => (SNAPSHOT_ABORTED, 0),
        Status::Differs => (DIFFERS, 0),
        Status::Lost => (LOST, 0),
        Status::NoRoom => (NO_ROOM, 0),
    })
}

/// The status of a command-specific status code and dwords 0 and 1; none if the code is none of these.
pub fn native_status_from_code(code: u8, result: u64) -> Option<Status> {
    Some(match code {
        STALE_EPOCH => Status::StaleEpoch(Epoch(result)),
        DEVICE_FAILED => Status::DeviceFailed,
        NOT_WRITE_NODE => Status::NotWriteNode(Epoch(result)),
        NOT_READY => Status::NotReady,
        STALE_SESSION => Status::StaleSession,
        FENCED_WRITER => Status::FencedWriter(WriterToken(result)),
        OUT_OF_RANGE => Status::OutOfRange,
        BUSY => Status::Busy,
        CANCELLED => Status::Cancelled,
        UNKNOWN => Status::Unknown,
        SNAPSHOT_ABORTED => Status::SnapshotAborted,
        DIFFERS => Status::Differs,
        LOST => Status::Lost,
        NO_ROOM => Status::NoRoom,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: &str = include_str!("../../../../../docs/formats/peer.md");

    #[test]
    fn the_table_has_every_status() {
        for (status, name, result) in [
            (Status::StaleEpoch(Epoch(0x1_0000_0007)), "stale epoch", "epoch"),
            (Status::DeviceFailed, "device failed", "0"),
            (Status::NotWriteNode(Epoch(7)), "not the write node", "epoch"),
            (Status::NotReady, "not ready", "0"),
            (Status::StaleSession, "stale session", "0"),
            (
                Status::FencedWriter(WriterToken(u64::MAX)),
                "fenced writer",
                "writer token in force",
            ),
            (Status::OutOfRange, "out of range", "0"),
            (Status::Busy, "busy", "0"),
            (Status::Cancelled, "cancelled", "0"),
            (Status::Unknown, "unknown", "0"),
            (Status::SnapshotAborted, "snapshot aborted", "0"),
            (Status::Differs, "differs", "0"),
            (Status::Lost, "lost", "0"),
            (Status::NoRoom, "no room", "0"),
        ] {
            let (code, value) = native_status_code(status).unwrap();
            let row = format!("| {code:02X}h | {name} | {result} |");
            assert!(TABLE.contains(&row), "docs/formats/peer.md lacks {row}");
            assert_eq!(native_status_from_code(code, value), Some(status));
        }
        assert_eq!(native_status_code(Status::Done), None);
        assert_eq!(native_status_from_code(0, 0), None);
        for refusal in [
            crate::message::Refusal::StaleEpoch,
            crate::message::Refusal::DeviceFailed,
        ] {
            assert!(native_status_from_code(refusal.status_code(), 1).is_some());
        }
    }

    #[test]
    fn a_command_lies_where_the_standard_and_the_table_say() {
        let command = NativeCommand {
            operation: NativeOperation::Deallocate { fua: true },
            volume: VolumeNumber(3),
            fields: NativeFields {
                epoch: Epoch(0x44),
                writer_token: WriterToken(0x5_0000_0006),
                first_lba: Lba(0x7_0000_0008),
            },
            blocks: 9,
            trace: TraceId(0xa_0000_000b),
            portal_token: 0,
        };
        let fields = command.encode();
        assert_eq!((fields.opcode, fields.nsid, fields.mptr), (0x08, 3, 0x44));
        assert_eq!((fields.cdw2, fields.cdw3), (6, 5));
        assert_eq!(fields.cdw10_15, [8, 7, 0x4200_0008, 0, 0xb, 0xa]);
        let run = NativeCommand {
            operation: NativeOperation::DeallocateRun { fua: true },
            ..command
        };
        assert_eq!(
            run.encode(),
            CommandFields {
                opcode: 0xb8,
                cdw10_15: [8, 7, 0x4000_0008, 0, 0xb, 0xa],
                ..fields
            }
        );
        assert!(TABLE.contains("B8h Deallocate Run"));
        let compare = NativeCommand {
            operation: NativeOperation::CompareAndWrite { fua: false },
            ..command
        };
        assert_eq!(
            compare.encode(),
            CommandFields {
                opcode: 0xbd,
                cdw10_15: [8, 7, 8, 0, 0xb, 0xa],
                ..fields
            }
        );
        assert!(TABLE.contains("BDh Compare And Write"));
    }

    #[test]
    #[should_panic(expected = "1 to 65536 blocks")]
    fn a_read_of_nothing_is_a_mistake_of_ours() {
        let fields = CommandFields {
            opcode: native_opcode::READ,
            ..Default::default()
        };
        let mut command = NativeCommand::decode(&fields).unwrap();
        command.blocks = 0;
        command.encode();
    }

    #[test]
    fn a_copy_that_is_outvoted_is_told_by_the_checksum_that_it_has() {
        let fields = CommandFields {
            opcode: 0xbc,
            mptr: 9,
            cdw2: 0xfedc_ba98,
            cdw10_15: [7, 0, 0, 0, 0, 0],
            ..Default::default()
        };
        let command = NativeCommand::decode(&fields).unwrap();
        assert_eq!(
            (command.operation, command.fields.writer_token, command.blocks),
            (NativeOperation::Outvote(0xfedc_ba98), WriterToken(0), 1)
        );
        assert_eq!(command.encode(), fields);
        assert!(TABLE.contains("BCh Outvote"));
    }

    #[test]
    fn a_step_of_a_snapshot_names_it_where_the_table_says() {
        let read = CommandFields {
            opcode: 0x8e,
            cdw2: 6,
            cdw3: 5,
            cdw10_15: [7, 0, 3, 0, 0, 0],
            ..Default::default()
        };
        let command = NativeCommand::decode(&read).unwrap();
        assert_eq!(
            (command.operation, command.fields.writer_token, command.blocks),
            (
                NativeOperation::ReadSnapshot(SnapshotId(0x5_0000_0006)),
                WriterToken(0),
                4
            )
        );
        assert_eq!(command.encode(), read);
        assert!(TABLE.contains("8Eh Read Snapshot"));
        let check = CommandFields { opcode: 0xba, ..read };
        let command = NativeCommand::decode(&check).unwrap();
        assert_eq!(
            (command.operation, command.fields.writer_token, command.blocks),
            (
                NativeOperation::CheckSnapshot(SnapshotId(0x5_0000_0006)),
                WriterToken(0),
                4
            )
        );
        assert_eq!(command.encode(), check);
        assert!(TABLE.contains("BAh Check Snapshot"));
        for (operation, opcode, name) in [
            (NativeOperation::Cut(SnapshotId(0x5_0000_0006)), 0x90, "90h Cut"),
            (
                NativeOperation::Release(SnapshotId(0x5_0000_0006)),
                0x94,
                "94h Release",
            ),
            (
                NativeOperation::Abandon(SnapshotId(0x5_0000_0006)),
                0x98,
                "98h Abandon",
            ),
            (
                NativeOperation::CountSnapshot(SnapshotId(0x5_0000_0006)),
                0xb4,
                "B4h Count Snapshot",
            ),
        ] {
            let fields = CommandFields {
                opcode,
                mptr: 9,
                cdw10_15: [7, 0, 6, 5, 0, 0],
                ..Default::default()
            };
            let command = NativeCommand::decode(&fields).unwrap();
            assert_eq!((command.operation, command.blocks), (operation, 0));
            assert_eq!(command.encode(), fields);
            assert!(TABLE.contains(name), "{name}");
        }
        assert!(TABLE.contains("CDW12–13"));
    }

    #[test]
    fn a_portals_command_names_host_and_claim_where_others_have_token_and_trace() {
        let command = NativeCommand {
            operation: NativeOperation::Claim,
            volume: VolumeNumber(3),
            fields: NativeFields {
                epoch: Epoch(0x44),
                writer_token: WriterToken(0),
                first_lba: Lba(7),
            },
            blocks: 0,
            trace: TraceId(0),
            portal_token: 0,
        };
        let session = Session {
            host: HostId::through_portals(0xa_0000_000b),
            number: 0x5_0000_0006,
        };
        let fields = command.of_portal(session).encode();
        assert_eq!((fields.opcode, fields.cdw2, fields.cdw3), (0x84, 6, 5));
        assert_eq!(fields.cdw10_15, [7, 0, 0, 0, 0xb, 0x8000_000a]);
        let decoded = NativeCommand::decode(&fields).unwrap();
        assert_eq!(decoded.from_portal(), (session, command));
        // Under reservations: the token beside it.
        let mut reserved = command;
        reserved.fields.writer_token = WriterToken(0xc0d0);
        let fields = reserved.of_portal(session).encode();
        assert_eq!((fields.cdw2, fields.cdw3), (6, 5));
        assert_eq!(fields.cdw10_15, [7, 0, 0, 0xc0d0, 0xb, 0x8000_000a]);
        let decoded = NativeCommand::decode(&fields).unwrap();
        assert_eq!(decoded.from_portal(), (session, reserved));
    }

    proptest! {
        #[test]
        fn commands_say_what_was_said(kind in 0..19u8, fua: bool, n: [u64; 4], volume: u32, blocks in 1..=NATIVE_BLOCKS_MAX) {
            let operation = match kind {
                0 => NativeOperation::Read,
                1 => NativeOperation::Write { fua },
                2 => NativeOperation::WriteZeroes { fua },
                3 => NativeOperation::Deallocate { fua },
                4 => NativeOperation::Flush,
                5 => NativeOperation::Fence,
                6 => NativeOperation::Claim,
                7 => NativeOperation::Check,
                8 => NativeOperation::Cut(SnapshotId(n[3])),
                9 => NativeOperation::Release(SnapshotId(n[3])),
                10 => NativeOperation::Abandon(SnapshotId(n[3])),
                11 => NativeOperation::ReadSnapshot(SnapshotId(n[3])),
                12 => NativeOperation::CountSnapshot(SnapshotId(n[3])),
                13 => NativeOperation::CheckSnapshot(SnapshotId(n[3])),
                14 => NativeOperation::DeallocateRun { fua },
                15 => NativeOperation::CompareAndWrite { fua },
                16 => NativeOperation::CompareCopies,
                17 => NativeOperation::Outvote(n[3] as u32),
                _ => NativeOperation::Locate { checks: fua },
            };
            let command = NativeCommand {
                operation,
                volume: VolumeNumber(volume),
                fields: NativeFields { epoch: Epoch(n[0]), writer_token: WriterToken(if matches!(kind, 11 | 13 | 17) { 0 } else { n[1] }), first_lba: Lba(n[2]) },
                blocks: if operation.is_of_chunk() { 0 } else { blocks },
                trace: TraceId(n[3]),
                portal_token: if operation.snapshot().is_some() { 0 } else { volume.rotate_left(9) },
            };
            prop_assert_eq!(NativeCommand::decode(&command.encode()), Ok(command));
        }

        #[test]
        fn noise_never_panics(opcode: u8, words: [u32; 6], mptr: u64) {
            let fields = CommandFields { opcode, mptr, cdw10_15: words, ..Default::default() };
            if let Ok(command) = NativeCommand::decode(&fields) {
                prop_assert_eq!(NativeCommand::decode(&command.encode()), Ok(command));
            }
        }
    }
}
