//! What ends a connection: every wrong thing a peer can do, with the status and information that go
//! into the termination PDU (specification, sections 3.5, 3.6.2.4 and 3.6.2.5).

use thiserror::Error;

use super::pdu::{TerminationRequest, offset};

/// Fatal error status, FES (specification, figures 22 and 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalError {
    /// 01h, Invalid PDU Header Field; FEI is the field's offset from the start of the PDU.
    InvalidHeaderField = 0x01,
    /// 02h, PDU Sequence Error.
    Sequence = 0x02,
    /// 03h, Header Digest Error; FEI is the digest that was received.
    HeaderDigest = 0x03,
    /// 04h, Data Transfer Out of Range.
    OutOfRange = 0x04,
    /// 05h: Data Transfer Limit Exceeded when the controller says it, R2T Limit Exceeded when the host
    /// does.
    LimitExceeded = 0x05,
    /// 06h, Unsupported Parameter; FEI is the field's offset from the start of the PDU.
    UnsupportedParameter = 0x06,
}

/// What the peer did wrong. Where the specification names the status, the section is cited; where it
/// does not, the text says "our reading".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// PDU-Type is reserved (figure 10). Our reading: an invalid header field.
    #[error("PDU type {0:#04x} does not exist")]
    UnknownType(u8),
    /// A type that has no place in this state or direction: PDU Sequence Error (figure 22).
    #[error("PDU type {0:#04x} is out of place here")]
    UnexpectedType(u8),
    /// HLEN is not what its type fixes (section 3.6.2): Invalid PDU Header Field.
    #[error("header length is {found}, this PDU type has {expected}")]
    HeaderLength {
        /// HLEN, in bytes.
        found: u8,
        /// What the type has, in bytes.
        expected: u8,
    },
    /// HDGSTF or DDGSTF contradict what ICResp settled (section 3.3.1.1): Invalid PDU Header Field.
    #[error("flags {0:#04x} contradict the digests settled for this connection")]
    DigestFlags(u8),
    /// PDO lies within the header or breaks the alignment (sections 3.6.2.6, 3.6.2.8, 3.6.2.9): Invalid
    /// PDU Header Field.
    #[error("data offset is {found}: want a multiple of {alignment} from {minimum}")]
    DataOffset {
        /// PDO, in bytes.
        found: u8,
        /// The settled alignment, in bytes.
        alignment: u8,
        /// Length of header and digest, in bytes.
        minimum: u8,
    },
    /// PLEN contradicts its type, or PDO, or the capsule limit (section 3.6.2): Invalid PDU Header
    /// Field.
    #[error("PDU length is {found}: want {minimum} to {maximum}")]
    PduLength {
        /// PLEN, in bytes.
        found: u32,
        /// Least that would do, in bytes.
        minimum: u32,
        /// Most that would do, in bytes.
        maximum: u32,
    },
    /// The header digest does not fit the header (section 3.5, digest error handling).
    #[error("header digest is {received:#010x}, the header has {computed:#010x}")]
    HeaderDigest {
        /// HDGST.
        received: u32,
        /// CRC32C of the header.
        computed: u32,
    },
    /// PFV is not 0 (sections 3.6.2.2 and 3.6.2.3): Unsupported Parameter.
    #[error("PDU format version {0} is not supported, only 0 is")]
    FormatVersion(u16),
    /// HPDA or CPDA is over 31 (sections 3.6.2.2 and 3.6.2.3): Invalid PDU Header Field.
    #[error("data alignment {0} is over 31")]
    DataAlignment(u8),
    /// ICResp enables a digest that ICReq did not ask for (section 3.3.1.1): Invalid PDU Header Field.
    #[error("a digest is enabled that was not asked for")]
    DigestNotRequested,
    /// MAXH2CDATA is under 4096 or no multiple of 4 (section 3.6.2.3): Invalid PDU Header Field.
    #[error("MAXH2CDATA is {0}: want a multiple of 4 from 4096")]
    MaxH2cData(u32),
    /// More commands at once than the queue has entries. Our reading: PDU Sequence Error.
    #[error("more than {0} commands at once in a queue of that size")]
    QueueOverflow(u32),
    /// A capsule carries data and SGL1 is no Data Block with offset subtype, identifier 01h (section
    /// 3.3.2). Our reading: Invalid PDU Header Field.
    #[error("a capsule with data has the SGL identifier {0:#04x}, want 0x01")]
    CapsuleSgl(u8),
    /// A capsule carries another amount of data than its SGL1 says (section 3.3.1: no undefined data in
    /// a capsule). Our reading: Invalid PDU Header Field.
    #[error("a capsule carries {carried} bytes, its SGL says {described}")]
    CapsuleLength {
        /// Bytes in the capsule.
        carried: u32,
        /// Length in SGL1, in bytes.
        described: u32,
    },
    /// CCCID names no outstanding command, or not the one of its tag (section 3.3.2.1; for R2T and
    /// H2CData our reading): Invalid PDU Header Field.
    #[error("command {0} is not outstanding, or the transfer tag is not its own")]
    UnknownCommand(u16),
    /// CapsuleResp for a command that is not outstanding. Our reading: Invalid PDU Header Field.
    #[error("a completion for command {0}, which is not outstanding")]
    UnknownCompletion(u16),
    /// TTAG names no transfer (section 3.3.2.2): Invalid PDU Header Field.
    #[error("transfer tag {0} was not given")]
    UnknownTransferTag(u16),
    /// DATAL is 0 or not what PLEN and PDO leave; R2TL is 0 (section 3.6.2.8 to 3.6.2.10): Invalid PDU
    /// Header Field.
    #[error("data length is {found}, the PDU carries {carried}")]
    DataLength {
        /// DATAL or R2TL, in bytes.
        found: u32,
        /// Bytes in the PDU.
        carried: u32,
    },
    /// SUCCESS without LAST_PDU (section 3.3.2.1): Invalid PDU Header Field.
    #[error("SUCCESS without LAST for command {0}")]
    SuccessWithoutLast(u16),
    /// Data or R2T for a command that has no such transfer, or no more of it (sections 3.3.2.1 and
    /// 3.3.2.2): PDU Sequence Error.
    #[error("no data in this direction is due for command {0}")]
    UnexpectedTransfer(u16),
    /// Data or R2T that does not begin where the one before ended (sections 3.3.2.1 and 3.3.2.2): PDU
    /// Sequence Error.
    #[error("data at offset {offset}, want {expected}")]
    NotContiguous {
        /// DATAO or R2TO, in bytes.
        offset: u32,
        /// Where the one before ended, in bytes.
        expected: u32,
    },
    /// LAST_PDU set before the end of what an R2T asked for, or not set at it (section 3.3.2.2). Our
    /// reading: PDU Sequence Error.
    #[error("LAST does not fit the end of the transfer for command {0}")]
    LastFlag(u16),
    /// Data outside its R2T or its command, or R2T outside its command (sections 3.3.2.1 and 3.3.2.2;
    /// for R2T our reading): Data Transfer Out of Range.
    #[error("{length} bytes at offset {offset} are outside {begin} to {end}")]
    OutOfRange {
        /// DATAO or R2TO, in bytes.
        offset: u32,
        /// DATAL or R2TL, in bytes.
        length: u32,
        /// First byte of the range.
        begin: u32,
        /// First byte after the range.
        end: u32,
    },
    /// DATAL over MAXH2CDATA (section 3.3.2.2): Data Transfer Limit Exceeded.
    #[error("{length} bytes in one H2CData, the limit is {limit}")]
    DataLimit {
        /// DATAL, in bytes.
        length: u32,
        /// MAXH2CDATA, in bytes.
        limit: u32,
    },
    /// More R2Ts of a command at once than MAXR2T allows (section 3.3.2.2): R2T Limit Exceeded.
    #[error("more than {limit} R2Ts at once for command {cid}")]
    TransferLimit {
        /// The command's identifier.
        cid: u16,
        /// MAXR2T as a count.
        limit: u32,
    },
}

impl Fault {
    /// FES and FEI for this fault.
    const fn status(self) -> (FatalError, u32) {
        use FatalError::*;
        match self {
            Self::UnknownType(_) => (InvalidHeaderField, offset::PDU_TYPE),
            Self::DigestFlags(_) | Self::SuccessWithoutLast(_) => (InvalidHeaderField, offset::FLAGS),
            Self::HeaderLength { .. } => (InvalidHeaderField, offset::HEADER_LENGTH),
            Self::DataOffset { .. } => (InvalidHeaderField, offset::DATA_OFFSET),
            Self::PduLength { .. } => (InvalidHeaderField, offset::PDU_LENGTH),
            Self::DataAlignment(_) => (InvalidHeaderField, offset::DATA_ALIGNMENT),
            Self::DigestNotRequested => (InvalidHeaderField, offset::DIGEST),
            Self::MaxH2cData(_) => (InvalidHeaderField, offset::MAX_H2C_DATA),
            Self::CapsuleSgl(_) => (InvalidHeaderField, offset::SGL_IDENTIFIER),
            Self::CapsuleLength { .. } => (InvalidHeaderField, offset::SGL_LENGTH),
            Self::UnknownCommand(_) => (InvalidHeaderField, offset::CID),
            Self::UnknownCompletion(_) => (InvalidHeaderField, offset::COMPLETION_CID),
            Self::UnknownTransferTag(_) => (InvalidHeaderField, offset::TRANSFER_TAG),
            Self::DataLength { .. } => (InvalidHeaderField, offset::LENGTH),
            Self::UnexpectedType(_)
            | Self::QueueOverflow(_)
            | Self::UnexpectedTransfer(_)
            | Self::NotContiguous { .. }
            | Self::LastFlag(_) => (Sequence, 0),
            Self::HeaderDigest { received, .. } => (HeaderDigest, received),
            Self::OutOfRange { .. } => (OutOfRange, 0),
            Self::DataLimit { .. } | Self::TransferLimit { .. } => (LimitExceeded, 0),
            Self::FormatVersion(_) => (UnsupportedParameter, offset::FORMAT_VERSION),
        }
    }
}

/// The end of a connection by the peer's fault: send the termination PDU (`terminate`), then close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the NVMe/TCP peer broke the protocol: {fault} (fatal error status {:#04x}, information \
     {information:#x}); the connection ends and the host may connect again, see the peer's log",
    *.status as u16
)]
pub struct Termination {
    /// FES.
    pub status: FatalError,
    /// FEI: see [`FatalError`]; 0 where reserved.
    pub information: u32,
    /// What happened.
    pub fault: Fault,
}

impl From<Fault> for Termination {
    fn from(fault: Fault) -> Self {
        let (status, information) = fault.status();
        Self {
            status,
            information,
            fault,
        }
    }
}

/// The end of a connection by the peer's word (H2CTermReq or C2HTermReq): close without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the NVMe/TCP peer ended the connection: it says we broke the protocol (fatal error status \
     {status:#06x}, information {information:#x})"
)]
pub struct PeerTermination {
    /// FES as it came; 0 when the PDU's length was out of bounds and the rest therefore ignored
    /// (specification, section 3.5, transport error handling).
    pub status: u16,
    /// FEI as it came; 0 likewise.
    pub information: u32,
}

impl PeerTermination {
    /// Reads a termination header of a PDU with this PLEN.
    pub(crate) fn from_request(request: TerminationRequest, pdu_bytes: u32) -> Self {
        use super::pdu::{TERMINATION_BYTES, TERMINATION_DATA_BYTES_MAX};
        let longest = TERMINATION_BYTES + TERMINATION_DATA_BYTES_MAX;
        if (TERMINATION_BYTES as u32..=longest as u32).contains(&pdu_bytes) {
            Self {
                status: request.status,
                information: request.information,
            }
        } else {
            Self {
                status: 0,
                information: 0,
            }
        }
    }
}
