//! H2CTermReq and C2HTermReq: the last PDU of a connection that met a fatal error (specification,
//! sections 3.5, 3.6.2.4 and 3.6.2.5).

use super::{CommonHeader, PduType, TERMINATION_BYTES, TERMINATION_DATA_BYTES_MAX};

/// The fields of H2CTermReq and C2HTermReq (specification, figures 22 and 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminationRequest {
    /// FES: fatal error status.
    pub status: u16,
    /// FEI: fatal error information.
    pub information: u32,
}

impl TerminationRequest {
    /// Decodes a whole header; checks nothing.
    pub fn from_header(header: &[u8; TERMINATION_BYTES]) -> Self {
        Self {
            status: u16::from_le_bytes([header[8], header[9]]),
            information: u32::from_le_bytes([header[10], header[11], header[12], header[13]]),
        }
    }

    /// Appends the PDU, with as much of the offending PDU's header as it may carry (128 bytes).
    /// Neither digests nor padding, whatever the connection has settled (specification, section
    /// 3.3.1.1).
    pub fn put(&self, pdu_type: PduType, offender: &[u8], out: &mut Vec<u8>) {
        assert_eq!(
            pdu_type.header_bytes(),
            TERMINATION_BYTES,
            "not a termination: {pdu_type:?}"
        );
        let offender = &offender[..offender.len().min(TERMINATION_DATA_BYTES_MAX)];
        let common = CommonHeader {
            type_code: pdu_type as u8,
            flags: 0,
            header_bytes: TERMINATION_BYTES as u8,
            data_offset: 0,
            pdu_bytes: (TERMINATION_BYTES + offender.len()) as u32,
        };
        let start = out.len();
        out.extend_from_slice(&common.to_bytes());
        out.extend_from_slice(&self.status.to_le_bytes());
        out.extend_from_slice(&self.information.to_le_bytes());
        out.resize(start + TERMINATION_BYTES, 0);
        out.extend_from_slice(offender);
    }
}
