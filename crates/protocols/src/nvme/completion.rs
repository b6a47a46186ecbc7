//! Completion queue entry (NVM Express Base Specification 2.0, section 3.3.3.2, figure 89).

/// Length of a completion queue entry, in bytes.
pub const COMPLETION_BYTES: usize = 16;

/// A completion: 16 bytes as they travel, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Completion {
    bytes: [u8; COMPLETION_BYTES],
}

impl Completion {
    /// Takes a completion as it came.
    pub const fn from_bytes(bytes: [u8; COMPLETION_BYTES]) -> Self {
        Self { bytes }
    }

    /// The completion as it travels.
    pub const fn as_bytes(&self) -> &[u8; COMPLETION_BYTES] {
        &self.bytes
    }
}
