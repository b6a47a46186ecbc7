//! The superblock: what a volume is, and where its tree and its space record begin. There are two; the
//! valid one of the higher generation counts, and a commit overwrites the other.

use foundation::checksum::Crc32c;

use super::codec::{CodecError, Decoder};
use super::{FORMAT_VERSION, PAGE_BYTES, PagePointer};

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"RHPACKFS";
/// No file system counts so far. What is above comes from a damaged or made up superblock, and the next number must exist.
const COUNT_MAX: u64 = 1 << 62;
/// Length of a superblock in bytes.
pub const SUPERBLOCK_BYTES: usize = PAGE_BYTES;
/// Length of the label in bytes.
pub const LABEL_BYTES: usize = 64;

const CHECKSUM_AT: usize = 16;
/// Bytes in use; zeros follow.
const USED_BYTES: usize = 264;

/// Which cluster and volume a file system belongs to; zeros mean "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: [u8; 16],
    /// The volume.
    pub volume: [u8; 16],
}

/// What is chosen once, when a volume is formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// A packed file does not straddle a multiple of this many bytes, unless it is larger.
    pub stripe_unit_bytes: u32,
    /// Data is written and freed in segments of this many bytes.
    pub segment_bytes: u32,
    /// The longest extent, in bytes.
    pub extent_bytes_max: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            stripe_unit_bytes: 64 << 10,
            segment_bytes: 4 << 20,
            extent_bytes_max: 256 << 10,
        }
    }
}

/// What a file system has that version 1 of the format does not know, as bits of the superblock's field. Each is set
/// by the first commit that needs it and stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// Files with holes: extents keys that do not follow each other.
    pub const HOLES: Features = Features(1);
    /// Extended attributes.
    pub const EXTENDED: Features = Features(2);
    /// Inodes without a name, on the list of orphans.
    pub const ORPHANS: Features = Features(4);

    /// Snapshots by name.
    pub const SNAPSHOTS: Features = Features(8);

    /// Pipes, sockets and devices.
    pub const SPECIAL: Features = Features(16);

    /// Quotas of trees.
    pub const QUOTAS: Features = Features(32);

    /// Extents that share bytes with others, which are counted.
    pub const SHARED: Features = Features(64);

    const KNOWN: u32 = 127;

    /// Whether this program knows all of them.
    pub(crate) fn are_known(self) -> bool {
        self.0 & !Self::KNOWN == 0
    }

    /// Whether all of `other` are among these.
    pub fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and `other`.
    pub fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// These without `other`.
    pub(crate) fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// The version of the format that a reader must know.
    fn version(self) -> u32 {
        if self.0 == 0 { 1 } else { 2 }
    }
}

/// How much is in the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes that are not directories.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Bytes of content.
    pub content_bytes: u64,
}

/// One generation of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Number of the commit that wrote it, from 1.
    pub generation: u64,
    /// The file system itself, drawn when it was made.
    pub uuid: [u8; 16],
    /// Where it belongs.
    pub identity: Identity,
    /// Size of the volume that is used, in bytes.
    pub volume_bytes: u64,
    /// Chosen at format.
    pub parameters: Parameters,
    /// What a reader must know.
    pub features: Features,
    /// The tree's root.
    pub root: PagePointer,
    /// The newest page of the space record.
    pub space: PagePointer,
    /// The next inode number or cookie.
    pub next_inode: u64,
    /// Contents.
    pub totals: Totals,
    /// Token of the writer that committed it.
    pub writer_token: u64,
    /// A name for people, ended by zeros.
    pub label: [u8; LABEL_BYTES],
}

/// What stands where a superblock should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// No magic: something else, or nothing.
    #[error("there is no PackFS superblock")]
    Absent,
    /// Written by a newer program.
    #[error("format version {found} is newer than {FORMAT_VERSION}, the newest this program knows")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// Uses what this program does not know.
    #[error("the features {features:#x} are not all known to this program")]
    Features {
        /// The features' bits.
        features: u32,
    },
    /// The device cannot give it.
    #[error("the superblock cannot be read: the device says that the medium failed there")]
    Unreadable,
    /// The bytes contradict their checksum.
    #[error("the superblock's checksum does not match: it is damaged or was half written")]
    Checksum,
    /// A copy from another address.
    #[error("the superblock names address {found}, and stands at {address}")]
    Misplaced {
        /// The address it names.
        found: u64,
        /// Where it was read.
        address: u64,
    },
    /// Checksum right, contents impossible.
    #[error("the superblock's fields are wrong: {0}")]
    Fields(CodecError),
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&bytes[..CHECKSUM_AT]);
    crc.update(&[0; 4]);
    crc.update(&bytes[CHECKSUM_AT + 4..]);
    crc.value()
}

fn put_pointer(out: &mut Vec<u8>, pointer: PagePointer) {
    out.extend_from_slice(&pointer.page.to_le_bytes());
    out.extend_from_slice(&pointer.birth.to_le_bytes());
    out.extend_from_slice(&pointer.checksum.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
}

fn take_pointer(decoder: &mut Decoder<'_>) -> Result<PagePointer, CodecError> {
    let (page, birth, checksum) = (decoder.u64()?, decoder.u64()?, decoder.u32()?);
    decoder.take(4)?;
    Ok(PagePointer {
        page,
        birth,
        checksum,
    })
}

impl Parameters {
    /// Whether the format can work with these.
    pub fn are_possible(&self) -> bool {
        let page = PAGE_BYTES as u32;
        let unit = self.stripe_unit_bytes;
        unit.is_power_of_two()
            && unit >= page
            && unit <= 1 << 20
            && self.segment_bytes.is_multiple_of(unit)
            && self.segment_bytes >= unit
            && self.segment_bytes <= 1 << 30
            && self.extent_bytes_max.is_multiple_of(page)
            && self.extent_bytes_max >= unit
            // A read is widened to whole blocks and must still fit into one buffer.
            && self.extent_bytes_max as usize <= reactor::buffer::BUFFER_BYTES_MAX / 2
    }
}

impl Superblock {
    /// The bytes to write at byte `address`.
    pub fn encode(&self, address: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(SUPERBLOCK_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.features.version().to_le_bytes());
        out.extend_from_slice(&(USED_BYTES as u32).to_le_bytes());
        out.extend_from_slice(&[0; 8]); // the checksum, and four bytes of nothing
        out.extend_from_slice(&address.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.identity.cluster);
        out.extend_from_slice(&self.identity.volume);
        out.extend_from_slice(&self.volume_bytes.to_le_bytes());
        out.extend_from_slice(&self.parameters.stripe_unit_bytes.to_le_bytes());
        out.extend_from_slice(&self.parameters.segment_bytes.to_le_bytes());
        out.extend_from_slice(&self.parameters.extent_bytes_max.to_le_bytes());
        out.extend_from_slice(&self.features.0.to_le_bytes());
        put_pointer(&mut out, self.root);
        put_pointer(&mut out, self.space);
        out.extend_from_slice(&self.next_inode.to_le_bytes());
        out.extend_from_slice(&self.totals.files.to_le_bytes());
        out.extend_from_slice(&self.totals.directories.to_le_bytes());
        out.extend_from_slice(&self.totals.content_bytes.to_le_bytes());
        out.extend_from_slice(&self.writer_token.to_le_bytes());
        out.extend_from_slice(&self.label);
        assert_eq!(
            out.len(),
            USED_BYTES,
            "the superblock's fields fill what the table says"
        );
        out.resize(SUPERBLOCK_BYTES, 0);
        let sum = checksum(&out);
        out[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The superblock that stands in `bytes`, read at byte `address`.
    pub fn decode(bytes: &[u8], address: u64) -> Result<Self, SuperblockError> {
        if bytes.len() != SUPERBLOCK_BYTES || bytes[..8] != MAGIC {
            return Err(SuperblockError::Absent);
        }
        let mut decoder = Decoder::new(&bytes[8..]);
        let malformed = SuperblockError::Fields;
        let version = decoder.u32().map_err(malformed)?;
        let used = decoder.u32().map_err(malformed)?;
        let stored = decoder.u32().map_err(malformed)?;
        // A newer layout may keep its checksum elsewhere, so the version comes first.
        if version > FORMAT_VERSION {
            return Err(SuperblockError::Newer { found: version });
        }
        if stored != checksum(bytes) {
            return Err(SuperblockError::Checksum);
        }
        decoder.take(4).map_err(malformed)?;
        let found = decoder.u64().map_err(malformed)?;
        if found != address {
            return Err(SuperblockError::Misplaced { found, address });
        }
        if used as usize != USED_BYTES {
            return Err(malformed(CodecError::Inconsistent));
        }
        let superblock = Self::decode_fields(&mut decoder).map_err(malformed)?;
        let features = superblock.features.0;
        if !superblock.features.are_known() {
            return Err(SuperblockError::Features { features });
        }
        if superblock.features.version() != version {
            return Err(malformed(CodecError::Inconsistent));
        }
        Ok(superblock)
    }

    fn decode_fields(decoder: &mut Decoder<'_>) -> Result<Self, CodecError> {
        let generation = decoder.u64()?;
        let uuid = decoder.array()?;
        let identity = Identity {
            cluster: decoder.array()?,
            volume: decoder.array()?,
        };
        let volume_bytes = decoder.u64()?;
        let parameters = Parameters {
            stripe_unit_bytes: decoder.u32()?,
            segment_bytes: decoder.u32()?,
            extent_bytes_max: decoder.u32()?,
        };
        let features = Features(decoder.u32()?);
        let superblock = Self {
            generation,
            uuid,
            identity,
            volume_bytes,
            parameters,
            features,
            root: take_pointer(decoder)?,
            space: take_pointer(decoder)?,
            next_inode: decoder.u64()?,
            totals: Totals {
                files: decoder.u64()?,
                directories: decoder.u64()?,
                content_bytes: decoder.u64()?,
            },
            writer_token: decoder.u64()?,
            label: decoder.array()?,
        };
        let Totals {
            files,
            directories,
            content_bytes,
        } = superblock.totals;
        let counts = [
            generation,
            superblock.next_inode,
            files,
            directories,
            content_bytes,
        ];
        if counts.iter().any(|&count| count > COUNT_MAX) {
            return Err(CodecError::TooLarge);
        }
        if !parameters.are_possible() || generation == 0 || superblock.root.is_none() {
            return Err(CodecError::Inconsistent);
        }
        Ok(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock() -> Superblock {
        let pointer = |page| PagePointer {
            page,
            birth: 6,
            checksum: 7,
        };
        Superblock {
            generation: 0x0102,
            uuid: [0xaa; 16],
            identity: Identity {
                cluster: [0xbb; 16],
                volume: [0xcc; 16],
            },
            volume_bytes: 1 << 30,
            parameters: Parameters::default(),
            features: Features::default(),
            root: pointer(5),
            space: pointer(8),
            next_inode: 99,
            totals: Totals {
                files: 1,
                directories: 2,
                content_bytes: 3,
            },
            writer_token: 4,
            label: [b'l'; LABEL_BYTES],
        }
    }

    #[test]
    fn bytes_are_those_of_the_table() {
        let bytes = superblock().encode(65536);
        assert_eq!(&bytes[0..8], b"RHPACKFS");
        assert_eq!(bytes[8..12], 1u32.to_le_bytes());
        assert_eq!(bytes[12..16], 264u32.to_le_bytes());
        assert_eq!(bytes[16..20], checksum(&bytes).to_le_bytes());
        assert_eq!(bytes[24..32], 65536u64.to_le_bytes());
        assert_eq!(bytes[32..40], 0x0102u64.to_le_bytes());
        assert_eq!(bytes[40..56], [0xaa; 16]);
        assert_eq!(bytes[56..72], [0xbb; 16]);
        assert_eq!(bytes[72..88], [0xcc; 16]);
        assert_eq!(bytes[88..96], (1u64 << 30).to_le_bytes());
        assert_eq!(bytes[96..100], 65536u32.to_le_bytes());
        assert_eq!(bytes[100..104], (4u32 << 20).to_le_bytes());
        assert_eq!(bytes[104..108], (256u32 << 10).to_le_bytes());
        assert_eq!(bytes[108..112], [0; 4]);
        assert_eq!(bytes[112..120], 5u64.to_le_bytes());
        assert_eq!(bytes[136..144], 8u64.to_le_bytes());
        assert_eq!(bytes[160..168], 99u64.to_le_bytes());
        assert_eq!(bytes[168..176], 1u64.to_le_bytes());
        assert_eq!(bytes[192..200], 4u64.to_le_bytes());
        assert_eq!(bytes[200..264], [b'l'; 64]);
        assert!(bytes[264..].iter().all(|&byte| byte == 0));
        assert_eq!(Superblock::decode(&bytes, 65536), Ok(superblock()));
    }

    #[test]
    fn what_is_not_one_is_told_apart() {
        let bytes = superblock().encode(0);
        let misplaced = Superblock::decode(&bytes, 65536);
        assert_eq!(
            misplaced,
            Err(SuperblockError::Misplaced {
                found: 0,
                address: 65536
            })
        );
        assert_eq!(Superblock::decode(&[0; 4096], 0), Err(SuperblockError::Absent));
        let mut newer = bytes.clone();
        newer[8] = 3;
        assert_eq!(
            Superblock::decode(&newer, 0),
            Err(SuperblockError::Newer { found: 3 })
        );
    }

    #[test]
    fn features_are_told_by_the_version_and_unknown_ones_refused() {
        let with = |features| Superblock {
            features,
            ..superblock()
        };
        let made = with(Features::HOLES.with(Features::ORPHANS));
        let bytes = made.encode(0);
        assert_eq!(bytes[8..12], 2u32.to_le_bytes());
        assert_eq!(bytes[108..112], 5u32.to_le_bytes());
        assert_eq!(Superblock::decode(&bytes, 0), Ok(made));
        let unknown = with(Features(1 << 31)).encode(0);
        assert_eq!(
            Superblock::decode(&unknown, 0),
            Err(SuperblockError::Features { features: 1 << 31 })
        );
        let mut contradiction = superblock().encode(0);
        contradiction[8] = 2;
        let sum = checksum(&contradiction);
        contradiction[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        let refused = Superblock::decode(&contradiction, 0);
        assert_eq!(refused, Err(SuperblockError::Fields(CodecError::Inconsistent)));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_noticed(bit in 0..SUPERBLOCK_BYTES * 8) {
            let mut bytes = superblock().encode(0);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::decode(&bytes, 0).is_err());
        }

        #[test]
        fn noise_never_panics(changes in proptest::collection::vec((20..280usize, any::<u8>()), 0..30)) {
            let mut bytes = superblock().encode(0);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            let sum = checksum(&bytes);
            bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
            let _ = Superblock::decode(&bytes, 0);
        }
    }
}
