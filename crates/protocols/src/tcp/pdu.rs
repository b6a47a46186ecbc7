//! The PDUs of NVMe/TCP (specification, section 3.6.2) and how one is laid out on a connection.
//!
//! Everything is little-endian. A PDU is: common header (8 bytes), its own header, header digest (4
//! bytes, when enabled), padding up to the data, data, data digest (4 bytes, when enabled).

mod data;
mod header;
mod initialize;
mod layout;
mod terminate;

pub use data::{Data, ReadyToTransfer};
pub use header::{CommonHeader, PduType, TypeSet, flags};
pub use initialize::{InitializeRequest, InitializeResponse};
pub use layout::Layout;
pub use terminate::TerminationRequest;

/// Length of the common header, in bytes (specification, section 3.6.2.1, figure 19).
pub const COMMON_HEADER_BYTES: usize = 8;
/// Header length of ICReq and ICResp, in bytes: HLEN 80h (specification, sections 3.6.2.2 and 3.6.2.3).
pub const INITIALIZE_BYTES: usize = 128;
/// Header length of H2CTermReq and C2HTermReq, in bytes: HLEN 18h (specification, sections 3.6.2.4 and
/// 3.6.2.5).
pub const TERMINATION_BYTES: usize = 24;
/// Header length of CapsuleCmd, in bytes: HLEN 48h (specification, section 3.6.2.6, figure 24).
pub const COMMAND_HEADER_BYTES: usize = 72;
/// Header length of CapsuleResp, in bytes: HLEN 18h (specification, section 3.6.2.7, figure 25).
pub const RESPONSE_HEADER_BYTES: usize = 24;
/// Header length of H2CData, C2HData and R2T, in bytes (specification, sections 3.6.2.8 to 3.6.2.10,
/// figures 26 to 28; all three carry the same fields at the same offsets).
pub const DATA_HEADER_BYTES: usize = 24;
/// The longest header of any PDU, in bytes.
pub const HEADER_BYTES_MAX: usize = INITIALIZE_BYTES;
/// Length of a header or data digest, in bytes: CRC32C (specification, section 3.3.1.1).
pub const DIGEST_BYTES: usize = 4;
/// Largest data of a H2CTermReq or C2HTermReq, in bytes (specification, section 3.5, transport error
/// handling).
pub const TERMINATION_DATA_BYTES_MAX: usize = 128;
/// Largest in-capsule data of an Admin or Fabrics command, in bytes (specification, section 3.3.1,
/// figure 11).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;
/// Smallest MAXH2CDATA, in bytes (specification, section 3.6.2.3, figure 21).
pub const MAX_H2C_DATA_BYTES_MIN: u32 = 4096;
/// Largest HPDA or CPDA: 0's based, in dwords (specification, sections 3.6.2.2 and 3.6.2.3).
pub const DATA_ALIGNMENT_MAX: u8 = 31;
/// The PDU format version of this specification (PFV; section 3.6.2.2).
pub const FORMAT_VERSION: u16 = 0;

/// Offsets of fields from the start of a PDU's header, in bytes: what FEI names when a field is wrong
/// (specification, section 3.6.2.4, figure 22).
pub mod offset {
    /// PDU-Type (figure 19).
    pub const PDU_TYPE: u32 = 0;
    /// FLAGS (figure 19).
    pub const FLAGS: u32 = 1;
    /// HLEN (figure 19).
    pub const HEADER_LENGTH: u32 = 2;
    /// PDO (figure 19).
    pub const DATA_OFFSET: u32 = 3;
    /// PLEN (figure 19).
    pub const PDU_LENGTH: u32 = 4;
    /// PFV of ICReq and ICResp (figures 20 and 21).
    pub const FORMAT_VERSION: u32 = 8;
    /// HPDA of ICReq, CPDA of ICResp (figures 20 and 21).
    pub const DATA_ALIGNMENT: u32 = 10;
    /// DGST of ICReq and ICResp (figures 20 and 21).
    pub const DIGEST: u32 = 11;
    /// MAXH2CDATA of ICResp (figure 21).
    pub const MAX_H2C_DATA: u32 = 12;
    /// CCCID of H2CData, C2HData and R2T (figures 26 to 28).
    pub const CID: u32 = 8;
    /// TTAG of H2CData and R2T (figures 26 and 28).
    pub const TRANSFER_TAG: u32 = 10;
    /// DATAL of H2CData and C2HData, R2TL of R2T (figures 26 to 28).
    pub const LENGTH: u32 = 16;
    /// Length of SGL1 within CapsuleCmd: 8 bytes of common header, then byte 32 of the queue entry.
    pub const SGL_LENGTH: u32 = 8 + 32;
    /// Identifier of SGL1 within CapsuleCmd: byte 39 of the queue entry.
    pub const SGL_IDENTIFIER: u32 = 8 + 39;
    /// Command identifier within CapsuleResp: byte 12 of the completion queue entry.
    pub const COMPLETION_CID: u32 = 8 + 12;
}
