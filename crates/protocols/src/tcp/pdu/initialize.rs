//! ICReq and ICResp: what both ends settle before the first command (specification, sections 3.6.2.2
//! and 3.6.2.3).

use super::{COMMON_HEADER_BYTES, INITIALIZE_BYTES, Layout, PduType};

/// HDGST_ENABLE of DGST (specification, figures 20 and 21).
const HEADER_DIGEST_ENABLE: u8 = 1 << 0;
/// DDGST_ENABLE of DGST (specification, figures 20 and 21).
const DATA_DIGEST_ENABLE: u8 = 1 << 1;

/// ICReq (specification, section 3.6.2.2, figure 20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitializeRequest {
    /// PFV, 0 in this revision.
    pub format_version: u16,
    /// HPDA: alignment of data sent to the host, 0's based, in dwords.
    pub data_alignment: u8,
    /// The host wants header digests.
    pub header_digest: bool,
    /// The host wants data digests.
    pub data_digest: bool,
    /// MAXR2T as it travels: outstanding R2Ts per command, 0's based.
    pub max_r2t: u32,
}

/// ICResp (specification, section 3.6.2.3, figure 21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitializeResponse {
    /// PFV, 0 in this revision.
    pub format_version: u16,
    /// CPDA: alignment of data sent to the controller, 0's based, in dwords.
    pub data_alignment: u8,
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// MAXH2CDATA: most data of one H2CData, in bytes.
    pub max_h2c_data_bytes: u32,
}

/// Both PDUs have the same fields at the same offsets; only the meaning of the last differs.
fn put(
    pdu_type: PduType,
    version: u16,
    alignment: u8,
    (header, data): (bool, bool),
    limit: u32,
    out: &mut Vec<u8>,
) {
    let mut body = [0; INITIALIZE_BYTES - COMMON_HEADER_BYTES];
    body[0..2].copy_from_slice(&version.to_le_bytes());
    body[2] = alignment;
    body[3] = if header { HEADER_DIGEST_ENABLE } else { 0 } | if data { DATA_DIGEST_ENABLE } else { 0 };
    body[4..8].copy_from_slice(&limit.to_le_bytes());
    Layout::PLAIN.put_header(pdu_type, 0, &body, 0, out);
}

impl InitializeRequest {
    /// Decodes a whole header; checks nothing.
    pub fn from_header(header: &[u8; INITIALIZE_BYTES]) -> Self {
        Self {
            format_version: u16::from_le_bytes([header[8], header[9]]),
            data_alignment: header[10],
            header_digest: header[11] & HEADER_DIGEST_ENABLE != 0,
            data_digest: header[11] & DATA_DIGEST_ENABLE != 0,
            max_r2t: u32::from_le_bytes([header[12], header[13], header[14], header[15]]),
        }
    }

    /// Appends the PDU.
    pub fn put(&self, out: &mut Vec<u8>) {
        put(
            PduType::InitializeRequest,
            self.format_version,
            self.data_alignment,
            (self.header_digest, self.data_digest),
            self.max_r2t,
            out,
        );
    }
}

impl InitializeResponse {
    /// Decodes a whole header; checks nothing.
    pub fn from_header(header: &[u8; INITIALIZE_BYTES]) -> Self {
        Self {
            format_version: u16::from_le_bytes([header[8], header[9]]),
            data_alignment: header[10],
            header_digest: header[11] & HEADER_DIGEST_ENABLE != 0,
            data_digest: header[11] & DATA_DIGEST_ENABLE != 0,
            max_h2c_data_bytes: u32::from_le_bytes([header[12], header[13], header[14], header[15]]),
        }
    }

    /// Appends the PDU.
    pub fn put(&self, out: &mut Vec<u8>) {
        put(
            PduType::InitializeResponse,
            self.format_version,
            self.data_alignment,
            (self.header_digest, self.data_digest),
            self.max_h2c_data_bytes,
            out,
        );
    }
}
