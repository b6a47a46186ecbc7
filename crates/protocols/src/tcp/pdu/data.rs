//! The headers of H2CData, C2HData and R2T (specification, sections 3.6.2.8 to 3.6.2.10).

use super::{COMMON_HEADER_BYTES, DATA_HEADER_BYTES, Layout, PduType, flags};

/// What H2CData and C2HData say of the data they carry (specification, figures 26 and 27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// CCCID: the command's identifier.
    pub cid: u16,
    /// TTAG: the transfer tag of the R2T that this answers; reserved (0) in C2HData.
    pub tag: u16,
    /// DATAO: offset in the command's data, in bytes.
    pub offset: u32,
    /// DATAL: length of the data in this PDU, in bytes.
    pub length: u32,
    /// LAST_PDU.
    pub last: bool,
    /// SUCCESS; C2HData only.
    pub success: bool,
}

/// R2T (specification, section 3.6.2.10, figure 28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// CCCID: the command's identifier.
    pub cid: u16,
    /// TTAG: what H2CData must give back; the controller's choice.
    pub tag: u16,
    /// R2TO: offset in the command's data, in bytes.
    pub offset: u32,
    /// R2TL: length asked for, in bytes.
    pub length: u32,
}

type Body = [u8; DATA_HEADER_BYTES - COMMON_HEADER_BYTES];

fn encode(cid: u16, tag: u16, offset: u32, length: u32) -> Body {
    let mut body = Body::default();
    body[0..2].copy_from_slice(&cid.to_le_bytes());
    body[2..4].copy_from_slice(&tag.to_le_bytes());
    body[4..8].copy_from_slice(&offset.to_le_bytes());
    body[8..12].copy_from_slice(&length.to_le_bytes());
    body
}

impl Data {
    /// Decodes a whole header; checks nothing.
    pub fn from_header(header: &[u8; DATA_HEADER_BYTES]) -> Self {
        let ReadyToTransfer {
            cid,
            tag,
            offset,
            length,
        } = ReadyToTransfer::from_header(header);
        Self {
            cid,
            tag,
            offset,
            length,
            last: header[1] & flags::LAST != 0,
            success: header[1] & flags::SUCCESS != 0,
        }
    }

    /// Appends the header of `pdu_type` (one of the two data types), its digest and the padding.
    pub fn put(&self, pdu_type: PduType, layout: &Layout, out: &mut Vec<u8>) {
        let body = encode(self.cid, self.tag, self.offset, self.length);
        let extra = if self.last { flags::LAST } else { 0 } | if self.success { flags::SUCCESS } else { 0 };
        layout.put_header(pdu_type, extra, &body, self.length, out);
    }
}

impl ReadyToTransfer {
    /// Decodes a whole header; checks nothing.
    pub fn from_header(header: &[u8; DATA_HEADER_BYTES]) -> Self {
        Self {
            cid: u16::from_le_bytes([header[8], header[9]]),
            tag: u16::from_le_bytes([header[10], header[11]]),
            offset: u32::from_le_bytes([header[12], header[13], header[14], header[15]]),
            length: u32::from_le_bytes([header[16], header[17], header[18], header[19]]),
        }
    }

    /// Appends the PDU.
    pub fn put(&self, layout: &Layout, out: &mut Vec<u8>) {
        let body = encode(self.cid, self.tag, self.offset, self.length);
        layout.put_header(PduType::ReadyToTransfer, 0, &body, 0, out);
    }
}
