//! How PDUs are laid out in one direction of a connection: digests and padding.

use foundation::checksum::crc32c;

use super::{COMMON_HEADER_BYTES, CommonHeader, DATA_ALIGNMENT_MAX, DIGEST_BYTES, PduType, flags};

/// Layout of the PDUs in one direction, as ICReq and ICResp have settled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Header digests are on, in both directions alike.
    pub header_digest: bool,
    /// Data digests are on, in both directions alike.
    pub data_digest: bool,
    /// HPDA for what the controller sends, CPDA for what the host sends: 0's based, in dwords, at most
    /// [`DATA_ALIGNMENT_MAX`].
    pub data_alignment: u8,
}

impl Layout {
    /// The layout before ICResp: no digest, no padding.
    pub const PLAIN: Self = Self {
        header_digest: false,
        data_digest: false,
        data_alignment: 0,
    };

    /// The alignment of data from the start of its PDU, in bytes: 4 to 128.
    pub const fn alignment_bytes(&self) -> usize {
        (self.data_alignment as usize + 1) * 4
    }

    /// Length of a header with its digest, in bytes.
    pub const fn header_bytes(&self, pdu_type: PduType) -> usize {
        if self.header_digest && pdu_type.has_digests() {
            pdu_type.header_bytes() + DIGEST_BYTES
        } else {
            pdu_type.header_bytes()
        }
    }

    /// Where data begins, in bytes from the start of the PDU (PDO). At most 128 for every type and
    /// alignment, so it always fits its byte.
    pub const fn data_offset(&self, pdu_type: PduType) -> usize {
        self.header_bytes(pdu_type)
            .next_multiple_of(self.alignment_bytes())
    }

    /// Length of what follows data, in bytes.
    pub const fn trailer_bytes(&self) -> usize {
        if self.data_digest { DIGEST_BYTES } else { 0 }
    }

    /// Appends a header with its digest, and the padding when `data_bytes` of data follow. `body` is
    /// what comes after the common header; `extra_flags` are those that are not about digests.
    ///
    /// # Panics
    /// When the lengths contradict the type, which is our own mistake.
    pub fn put_header(
        &self,
        pdu_type: PduType,
        extra_flags: u8,
        body: &[u8],
        data_bytes: u32,
        out: &mut Vec<u8>,
    ) {
        assert_eq!(
            COMMON_HEADER_BYTES + body.len(),
            pdu_type.header_bytes(),
            "header of another type"
        );
        assert!(
            data_bytes == 0 || pdu_type.may_have_data(),
            "{pdu_type:?} carries no data"
        );
        assert!(
            self.data_alignment <= DATA_ALIGNMENT_MAX,
            "alignment {}",
            self.data_alignment
        );
        let with_digest = self.header_digest && pdu_type.has_digests();
        let (data_offset, pdu_bytes) = match data_bytes {
            0 => (0, self.header_bytes(pdu_type) as u32),
            _ => {
                let offset = self.data_offset(pdu_type);
                let around = (offset + self.trailer_bytes()) as u32;
                (
                    offset,
                    data_bytes.checked_add(around).expect("a PDU is far below 4 GiB"),
                )
            }
        };
        let common = CommonHeader {
            type_code: pdu_type as u8,
            flags: extra_flags
                | if with_digest { flags::HEADER_DIGEST } else { 0 }
                | if data_bytes > 0 && self.data_digest {
                    flags::DATA_DIGEST
                } else {
                    0
                },
            header_bytes: pdu_type.header_bytes() as u8,
            data_offset: data_offset as u8,
            pdu_bytes,
        };
        let start = out.len();
        out.extend_from_slice(&common.to_bytes());
        out.extend_from_slice(body);
        if with_digest {
            let digest = crc32c(&out[start..]);
            out.extend_from_slice(&digest.to_le_bytes());
        }
        if data_bytes > 0 {
            out.resize(start + data_offset, 0);
        }
    }
}
