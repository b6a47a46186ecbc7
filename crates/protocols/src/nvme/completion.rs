//! Completion queue entry (NVM Express Base Specification 2.0c, section 3.3.3.2).

use std::fmt;

use super::status::Status;

/// Length of a completion queue entry, in bytes.
pub const COMPLETION_BYTES: usize = 16;

const SQHD_AT: usize = 8;
const SQID_AT: usize = 10;
const CID_AT: usize = 12;
const STATUS_AT: usize = 14;

const PHASE: u16 = 1 << 0;
const STATUS_SHIFT: u16 = 1;
const STATUS_MASK: u16 = 0x7ff << STATUS_SHIFT;
const RETRY_DELAY_SHIFT: u16 = 12;
const RETRY_DELAY_MASK: u16 = 3 << RETRY_DELAY_SHIFT;
const MORE: u16 = 1 << 14;
const DO_NOT_RETRY: u16 = 1 << 15;

/// A completion: 16 bytes as they travel, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Completion {
    bytes: [u8; COMPLETION_BYTES],
}

impl Completion {
    /// Takes a completion as it came.
    #[inline]
    pub const fn from_bytes(bytes: [u8; COMPLETION_BYTES]) -> Self {
        Self { bytes }
    }

    /// The completion as it travels.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; COMPLETION_BYTES] {
        &self.bytes
    }

    /// The completion of command `cid`: no result, queue head 0, may be retried.
    #[inline]
    pub const fn new(cid: u16, status: Status) -> Self {
        Self {
            bytes: [0; COMPLETION_BYTES],
        }
        .put_u16(CID_AT, cid)
        .put_u16(STATUS_AT, status.bits() << STATUS_SHIFT)
    }

    /// Command `cid` did what it was asked.
    #[inline]
    pub const fn success(cid: u16) -> Self {
        Self::new(cid, Status::SUCCESS)
    }

    /// Adds a result in dword 0.
    #[inline]
    pub const fn with_result(self, result: u32) -> Self {
        let high = self.result_u64() & !0xffff_ffff;
        self.with_result_u64(high | result as u64)
    }

    /// Adds a result in dwords 0 and 1.
    #[inline]
    pub const fn with_result_u64(mut self, result: u64) -> Self {
        let bytes = result.to_le_bytes();
        let mut index = 0;
        while index < bytes.len() {
            self.bytes[index] = bytes[index];
            index += 1;
        }
        self
    }

    /// Sets the submission queue head (SQHD).
    #[inline]
    pub const fn with_sqhd(self, head: u16) -> Self {
        self.put_u16(SQHD_AT, head)
    }

    /// Sets the submission queue identifier (SQID); fabrics leave it zero.
    #[inline]
    pub const fn with_sqid(self, sqid: u16) -> Self {
        self.put_u16(SQID_AT, sqid)
    }

    /// Sets the command identifier (CID).
    #[inline]
    pub const fn with_cid(self, cid: u16) -> Self {
        self.put_u16(CID_AT, cid)
    }

    /// Replaces the status code and its type; the other bits of the status field stay.
    #[inline]
    pub const fn with_status(self, status: Status) -> Self {
        let field = self.status_field() & !STATUS_MASK | status.bits() << STATUS_SHIFT;
        self.put_u16(STATUS_AT, field)
    }

    /// Sets the phase tag; fabrics leave it zero.
    #[inline]
    pub const fn with_phase(self, phase: bool) -> Self {
        self.with_status_bit(PHASE, phase)
    }

    /// Says that the same command will fail again (DNR).
    #[inline]
    pub const fn with_do_not_retry(self) -> Self {
        self.with_status_bit(DO_NOT_RETRY, true)
    }

    /// Says that the error log has more about it (M).
    #[inline]
    pub const fn with_more(self) -> Self {
        self.with_status_bit(MORE, true)
    }

    /// Says which of the three retry delays of Identify Controller applies (CRD); 0 is none, higher bits than the
    /// low two are dropped.
    #[inline]
    pub const fn with_retry_delay(self, index: u8) -> Self {
        let field = self.status_field() & !RETRY_DELAY_MASK | (index as u16 & 3) << RETRY_DELAY_SHIFT;
        self.put_u16(STATUS_AT, field)
    }

    /// Result in dword 0.
    #[inline]
    pub const fn result(&self) -> u32 {
        self.result_u64() as u32
    }

    /// Result in dwords 0 and 1.
    #[inline]
    pub const fn result_u64(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.bytes;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Submission queue head (SQHD).
    #[inline]
    pub const fn sqhd(&self) -> u16 {
        self.u16_at(SQHD_AT)
    }

    /// Submission queue identifier (SQID).
    #[inline]
    pub const fn sqid(&self) -> u16 {
        self.u16_at(SQID_AT)
    }

    /// Command identifier (CID).
    #[inline]
    pub const fn cid(&self) -> u16 {
        self.u16_at(CID_AT)
    }

    /// Bytes 14 and 15 as they travel: phase tag, status, retry delay, more, do not retry.
    #[inline]
    pub const fn status_field(&self) -> u16 {
        self.u16_at(STATUS_AT)
    }

    /// Status code and its type.
    #[inline]
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_field() >> STATUS_SHIFT)
    }

    /// Phase tag (P).
    #[inline]
    pub const fn phase(&self) -> bool {
        self.status_field() & PHASE != 0
    }

    /// Whether the same command would fail again (DNR).
    #[inline]
    pub const fn do_not_retry(&self) -> bool {
        self.status_field() & DO_NOT_RETRY != 0
    }

    /// Whether the error log has more about it (M).
    #[inline]
    pub const fn more(&self) -> bool {
        self.status_field() & MORE != 0
    }

    /// Which retry delay applies (CRD), 0 to 3.
    #[inline]
    pub const fn retry_delay(&self) -> u8 {
        ((self.status_field() & RETRY_DELAY_MASK) >> RETRY_DELAY_SHIFT) as u8
    }

    const fn with_status_bit(self, bit: u16, set: bool) -> Self {
        let rest = self.status_field() & !bit;
        self.put_u16(STATUS_AT, if set { rest | bit } else { rest })
    }

    const fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    const fn put_u16(mut self, at: usize, value: u16) -> Self {
        let [low, high] = value.to_le_bytes();
        self.bytes[at] = low;
        self.bytes[at + 1] = high;
        self
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("cid", &self.cid())
            .field("status", &self.status())
            .field("do_not_retry", &self.do_not_retry())
            .field("result", &format_args!("{:x}h", self.result_u64()))
            .field("sqhd", &self.sqhd())
            .field("sqid", &self.sqid())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_land_where_the_specification_puts_them() {
        let completion = Completion::new(0x0c0b, Status::ANA_INACCESSIBLE)
            .with_result(0x0403_0201)
            .with_sqhd(0x0809)
            .with_sqid(0x0a0b)
            .with_do_not_retry();
        // Status field: DNR, SCT 3h in bits 11:9, SC 02h in bits 8:1.
        let expected = [1, 2, 3, 4, 0, 0, 0, 0, 9, 8, 0x0b, 0x0a, 0x0b, 0x0c, 0x04, 0x86];
        assert_eq!(completion.as_bytes(), &expected);
        assert_eq!(completion.with_more().status_field(), 0xc604);
        assert_eq!(completion.with_phase(true).status_field(), 0x8605);
        assert_eq!(completion.with_retry_delay(2).status_field(), 0xa604);
    }

    #[test]
    fn dword_0_leaves_dword_1() {
        let completion = Completion::success(1).with_result_u64(u64::MAX).with_result(5);
        assert_eq!(completion.result_u64(), 0xffff_ffff_0000_0005);
        assert_eq!(completion.result(), 5);
    }

    proptest! {
        #[test]
        fn what_is_set_is_read(bytes: [u8; 16], status in 0u16..0x800, delay in 0u8..4, cid: u16, phase: bool) {
            let completion = Completion::from_bytes(bytes)
                .with_status(Status::from_bits(status))
                .with_retry_delay(delay)
                .with_cid(cid)
                .with_phase(phase);
            prop_assert_eq!(completion.status().bits(), status);
            prop_assert_eq!(completion.retry_delay(), delay);
            prop_assert_eq!(completion.cid(), cid);
            prop_assert_eq!(completion.phase(), phase);
            prop_assert_eq!(completion.do_not_retry(), bytes[15] & 0x80 != 0);
            prop_assert_eq!(completion.more(), bytes[15] & 0x40 != 0);
            prop_assert_eq!(completion.result_u64().to_le_bytes(), &bytes[..8]);
            prop_assert_eq!(completion.sqhd(), u16::from_le_bytes([bytes[8], bytes[9]]));
            prop_assert_eq!(completion.sqid(), u16::from_le_bytes([bytes[10], bytes[11]]));
            let _ = format!("{completion:?}");
        }
    }
}
