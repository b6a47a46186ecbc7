//! The names of clusters, nodes, disks, volumes and chunks, each its own type.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A UUID (RFC 9562) as a number, its first byte the most significant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub u128);

/// Why a UUID could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{text}\" is not a UUID; write 32 hexadecimal digits, such as 0b6e61f2-8f0d-4d6b-9d3a-6a3c1c1f2a77"
)]
pub struct ParseUuidError {
    text: String,
}

impl Uuid {
    /// A version 4 UUID (RFC 9562, section 5.4) from random bits.
    pub fn from_random_bits(high: u64, low: u64) -> Self {
        let bits = (u128::from(high) << 64) | u128::from(low);
        let version = (bits & !(0xf << 76)) | (4 << 76);
        Self((version & !(0b11 << 62)) | (0b10 << 62))
    }

    /// The 16 bytes in the order of the text form.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// From exactly 16 bytes that are not all zero; `None` otherwise.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 16] = bytes.try_into().ok()?;
        let number = u128::from_be_bytes(bytes);
        (number != 0).then_some(Self(number))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let text = format!(
            "{}-{}-{}-{}-{}",
            &digits[..8],
            &digits[8..12],
            &digits[12..16],
            &digits[16..20],
            &digits[20..]
        );
        f.pad(&text)
    }
}

impl FromStr for Uuid {
    type Err = ParseUuidError;

    /// Reads 32 hexadecimal digits, with or without hyphens; not all zero.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseUuidError {
            text: text.chars().take(64).collect(),
        };
        let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
        if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(error());
        }
        let number = u128::from_str_radix(&digits, 16).map_err(|_| error())?;
        if number == 0 {
            return Err(error());
        }
        Ok(Self(number))
    }
}

macro_rules! uuid_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_name!(
    /// A cluster. Whatever names another one is refused.
    ClusterId
);
uuid_name!(
    /// A node.
    NodeId
);
uuid_name!(
    /// A disk of a node.
    DiskId
);
uuid_name!(
    /// One session of a lease holder, drawn at random by it.
    SessionId
);

/// One life of one target process. Greater is later; 0 is never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A volume's number in its cluster, which is also its namespace identifier in peer subsystems.
/// Never used again after the volume's deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeNumber(pub u32);

/// A join token's name in its cluster: no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinTokenId(pub [u8; 8]);

impl fmt::Display for JoinTokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// A snapshot's number in its cluster. Never used again, neither after its deletion nor for a second try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotNumber(pub u64);

/// One chunk of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// The volume.
    pub volume: VolumeNumber,
    /// The chunk's index in it.
    pub index: u32,
}

/// The number of a volume's write lease; 0 is "never leased".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterToken(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for VolumeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SnapshotNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {} of volume {}", self.index, self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_prints_as_it_is_read() {
        let uuid = Uuid::from_random_bits(u64::MAX, u64::MAX);
        assert_eq!(uuid.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_eq!(uuid.to_string().replace('-', "").parse(), Ok(uuid));
        assert_eq!(Uuid::from_bytes(&uuid.to_bytes()), Some(uuid));
        assert_eq!(
            Uuid::from_random_bits(0, 0).to_string(),
            "00000000-0000-4000-8000-000000000000"
        );
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for text in [
            "",
            "1",
            "00000000-0000-0000-0000-000000000000",
            "+fffffffffff4fffbfffffffffffffff",
        ] {
            let error = text.parse::<Uuid>().unwrap_err().to_string();
            assert!(error.contains("32 hexadecimal digits"), "{error}");
        }
        assert_eq!(Uuid::from_bytes(&[1; 15]), None);
        assert_eq!(Uuid::from_bytes(&[0; 16]), None);
    }
}
