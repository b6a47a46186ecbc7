//! Submission queue entry (NVM Express Base Specification 2.0, section 3.3.3.1, figure 86).

/// Length of a submission queue entry, in bytes.
pub const COMMAND_BYTES: usize = 64;

/// A command: 64 bytes as they travel, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command {
    bytes: [u8; COMMAND_BYTES],
}

impl Command {
    /// Takes a command as it came.
    pub const fn from_bytes(bytes: [u8; COMMAND_BYTES]) -> Self {
        Self { bytes }
    }

    /// The command as it travels.
    pub const fn as_bytes(&self) -> &[u8; COMMAND_BYTES] {
        &self.bytes
    }
}
