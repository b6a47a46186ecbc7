//! The common header, PDU types and flags (specification, section 3.6.2.1 and figure 10).

use super::{
    COMMAND_HEADER_BYTES, COMMON_HEADER_BYTES, DATA_HEADER_BYTES, INITIALIZE_BYTES, RESPONSE_HEADER_BYTES,
    TERMINATION_BYTES,
};

/// Bits of FLAGS; each type defines some of them, the others are reserved and ignored.
pub mod flags {
    /// HDGSTF: a header digest follows the header (specification, figures 24 to 28).
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data (specification, figures 24, 26 and 27).
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// LAST_PDU of H2CData (last for its R2T) and C2HData (last for its command) (figures 26 and 27).
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS of C2HData: the command has succeeded and no response follows (figure 27).
    pub const SUCCESS: u8 = 1 << 3;
}

/// PDU-Type (specification, figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PduType {
    /// ICReq: a host opens the connection (section 3.6.2.2).
    InitializeRequest = 0x00,
    /// ICResp: the controller's answer (section 3.6.2.3).
    InitializeResponse = 0x01,
    /// H2CTermReq: the host met a fatal error (section 3.6.2.4).
    HostTermination = 0x02,
    /// C2HTermReq: the controller met a fatal error (section 3.6.2.5).
    ControllerTermination = 0x03,
    /// CapsuleCmd: a command, perhaps with its data (section 3.6.2.6).
    Command = 0x04,
    /// CapsuleResp: a completion (section 3.6.2.7).
    Response = 0x05,
    /// H2CData: data a controller asked for (section 3.6.2.8).
    HostData = 0x06,
    /// C2HData: data for the host (section 3.6.2.9).
    ControllerData = 0x07,
    /// R2T: the controller asks for data (section 3.6.2.10).
    ReadyToTransfer = 0x09,
}

impl PduType {
    /// The type with this code, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::InitializeRequest,
            0x01 => Self::InitializeResponse,
            0x02 => Self::HostTermination,
            0x03 => Self::ControllerTermination,
            0x04 => Self::Command,
            0x05 => Self::Response,
            0x06 => Self::HostData,
            0x07 => Self::ControllerData,
            0x09 => Self::ReadyToTransfer,
            _ => return None,
        })
    }

    /// The one HLEN this type may have, in bytes: common header included, digest not.
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::InitializeRequest | Self::InitializeResponse => INITIALIZE_BYTES,
            Self::HostTermination | Self::ControllerTermination => TERMINATION_BYTES,
            Self::Command => COMMAND_HEADER_BYTES,
            Self::Response => RESPONSE_HEADER_BYTES,
            Self::HostData | Self::ControllerData | Self::ReadyToTransfer => DATA_HEADER_BYTES,
        }
    }

    /// Whether this type carries digests when they are enabled (specification, section 3.3.1.1: all
    /// but the initialization and termination PDUs).
    pub const fn has_digests(self) -> bool {
        !matches!(
            self,
            Self::InitializeRequest
                | Self::InitializeResponse
                | Self::HostTermination
                | Self::ControllerTermination
        )
    }

    /// Whether data may follow the header. (What follows a termination's header is a copy of another
    /// header, and nobody reads on.)
    pub const fn may_have_data(self) -> bool {
        matches!(self, Self::Command | Self::HostData | Self::ControllerData)
    }
}

/// A set of PDU types: those acceptable in some state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeSet(u16);

impl TypeSet {
    /// The set of these types.
    pub const fn of(types: &[PduType]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < types.len() {
            bits |= 1 << types[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    /// Whether this type is in the set.
    pub const fn contains(self, pdu_type: PduType) -> bool {
        self.0 & (1 << pdu_type as u8) != 0
    }
}

/// The common header as it travels (specification, section 3.6.2.1, figure 19). The type stays a bare
/// code, because it may be one nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonHeader {
    /// PDU-Type, see [`PduType::from_code`].
    pub type_code: u8,
    /// FLAGS, see [`flags`].
    pub flags: u8,
    /// HLEN: length of the header without its digest, in bytes.
    pub header_bytes: u8,
    /// PDO: where the data begins, in bytes from the start of the PDU; 0 without data.
    pub data_offset: u8,
    /// PLEN: length of the whole PDU, in bytes.
    pub pdu_bytes: u32,
}

impl CommonHeader {
    /// Decodes the first 8 bytes of a PDU; any bytes are a common header.
    pub const fn from_bytes(bytes: [u8; COMMON_HEADER_BYTES]) -> Self {
        let [type_code, flags, header_bytes, data_offset, a, b, c, d] = bytes;
        Self {
            type_code,
            flags,
            header_bytes,
            data_offset,
            pdu_bytes: u32::from_le_bytes([a, b, c, d]),
        }
    }

    /// Encodes it.
    pub const fn to_bytes(&self) -> [u8; COMMON_HEADER_BYTES] {
        let [a, b, c, d] = self.pdu_bytes.to_le_bytes();
        [
            self.type_code,
            self.flags,
            self.header_bytes,
            self.data_offset,
            a,
            b,
            c,
            d,
        ]
    }
}
