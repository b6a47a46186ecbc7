//! Scatter gather list descriptors: what the data pointer of a fabrics capsule holds (NVM Express Base
//! Specification 2.0c, section 4.1.2; the forms of NVMe/TCP: NVMe TCP Transport Specification 1.0c, section 3.2).
//!
//! A descriptor is 16 bytes. Byte 15 has the type in its high and the subtype in its low four bits.

/// Length of a descriptor, in bytes.
pub const SGL_DESCRIPTOR_BYTES: usize = 16;

const DATA_BLOCK: u8 = 0x0;
const BIT_BUCKET: u8 = 0x1;
const SEGMENT: u8 = 0x2;
const LAST_SEGMENT: u8 = 0x3;
const TRANSPORT_DATA_BLOCK: u8 = 0x5;

const SUBTYPE_ADDRESS: u8 = 0x0;
const SUBTYPE_OFFSET: u8 = 0x1;
const SUBTYPE_TRANSPORT: u8 = 0xa;

/// Where a command's data is, as its descriptor says. Lengths and offsets are in bytes and not checked against
/// anything: they come from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SglDescriptor {
    /// Data Block, subtype Offset: in this capsule, `offset` bytes after where in-capsule data begins.
    InCapsule {
        /// Bytes from the beginning of in-capsule data.
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// Transport SGL Data Block: the transport moves the data (C2HData, R2T and H2CData PDUs).
    Transport {
        /// Length in bytes.
        length: u32,
    },
    /// Data Block, subtype Address: memory of the host. Not for NVMe/TCP.
    DataBlock {
        /// Address in the host's memory.
        address: u64,
        /// Length in bytes.
        length: u32,
    },
    /// Bit Bucket: bytes of a read that the host does not want. Not for NVMe/TCP.
    BitBucket {
        /// Length in bytes.
        length: u32,
    },
    /// Segment: where more descriptors are. Not for NVMe/TCP.
    Segment {
        /// Address, or offset in the capsule.
        address: u64,
        /// Length of those descriptors in bytes.
        length: u32,
        /// Whether `address` is an offset in the capsule.
        in_capsule: bool,
    },
    /// Last Segment: where the last descriptors are. Not for NVMe/TCP.
    LastSegment {
        /// Address, or offset in the capsule.
        address: u64,
        /// Length of those descriptors in bytes.
        length: u32,
        /// Whether `address` is an offset in the capsule.
        in_capsule: bool,
    },
    /// Any other type or subtype; the answer is `Status::SGL_DESCRIPTOR_TYPE_INVALID`.
    Other {
        /// Byte 15 of the descriptor.
        identifier: u8,
    },
}

impl SglDescriptor {
    /// No data, in the form that hosts use on NVMe/TCP.
    pub const NONE: Self = Self::Transport { length: 0 };

    /// Reads a descriptor. Every content has a meaning, `Other` at least.
    #[inline]
    pub const fn decode(bytes: &[u8; SGL_DESCRIPTOR_BYTES]) -> Self {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            l0,
            l1,
            l2,
            l3,
            _,
            _,
            _,
            identifier,
        ] = *bytes;
        let address = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        match (identifier >> 4, identifier & 0xf) {
            (DATA_BLOCK, SUBTYPE_OFFSET) => Self::InCapsule {
                offset: address,
                length,
            },
            (TRANSPORT_DATA_BLOCK, SUBTYPE_TRANSPORT) => Self::Transport { length },
            (DATA_BLOCK, SUBTYPE_ADDRESS) => Self::DataBlock { address, length },
            (BIT_BUCKET, SUBTYPE_ADDRESS) => Self::BitBucket { length },
            (SEGMENT, SUBTYPE_ADDRESS | SUBTYPE_OFFSET) => Self::Segment {
                address,
                length,
                in_capsule: identifier & 0xf == SUBTYPE_OFFSET,
            },
            (LAST_SEGMENT, SUBTYPE_ADDRESS | SUBTYPE_OFFSET) => Self::LastSegment {
                address,
                length,
                in_capsule: identifier & 0xf == SUBTYPE_OFFSET,
            },
            _ => Self::Other { identifier },
        }
    }

    /// The descriptor as it travels. Of `Other`, only the identifier.
    #[inline]
    pub const fn encode(self) -> [u8; SGL_DESCRIPTOR_BYTES] {
        let (address, length, identifier) = match self {
            Self::InCapsule { offset, length } => (offset, length, DATA_BLOCK << 4 | SUBTYPE_OFFSET),
            Self::Transport { length } => (0, length, TRANSPORT_DATA_BLOCK << 4 | SUBTYPE_TRANSPORT),
            Self::DataBlock { address, length } => (address, length, DATA_BLOCK << 4 | SUBTYPE_ADDRESS),
            Self::BitBucket { length } => (0, length, BIT_BUCKET << 4 | SUBTYPE_ADDRESS),
            Self::Segment {
                address,
                length,
                in_capsule,
            } => (address, length, SEGMENT << 4 | in_capsule as u8),
            Self::LastSegment {
                address,
                length,
                in_capsule,
            } => (address, length, LAST_SEGMENT << 4 | in_capsule as u8),
            Self::Other { identifier } => (0, 0, identifier),
        };
        let [a0, a1, a2, a3, a4, a5, a6, a7] = address.to_le_bytes();
        let [l0, l1, l2, l3] = length.to_le_bytes();
        [
            a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, 0, 0, 0, identifier,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_two_forms_of_nvme_tcp_have_their_identifiers() {
        let in_capsule = SglDescriptor::InCapsule {
            offset: 0x10,
            length: 0x1000,
        }
        .encode();
        assert_eq!(
            in_capsule,
            [0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0x01]
        );
        let transport = SglDescriptor::Transport { length: 0x2000 }.encode();
        assert_eq!(transport, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0x5a]);
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(bytes: [u8; 16], known in prop::sample::select(&[0x00, 0x01, 0x10, 0x20, 0x21, 0x30, 0x31, 0x5a, 0x4f][..])) {
            for identifier in [bytes[15], known] {
                let mut bytes = bytes;
                bytes[15] = identifier;
                let descriptor = SglDescriptor::decode(&bytes);
                prop_assert_eq!(SglDescriptor::decode(&descriptor.encode()), descriptor);
                prop_assert_eq!(descriptor.encode()[15], identifier);
            }
        }
    }
}
