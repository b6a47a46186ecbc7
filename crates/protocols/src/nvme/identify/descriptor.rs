//! Namespace Identification Descriptor list (CNS 03h; NVM Express Base Specification 2.0c, section 5.17.2.3,
//! figure 277).
//!
//! A descriptor is a type (NIDT), a length (NIDL), two reserved bytes and the identifier. Type 0 ends the list.

use thiserror::Error;

use super::{CommandSet, IDENTIFY_BYTES};
use crate::nvme::LengthError;
use crate::nvme::layout::prefix;

const HEADER_BYTES: usize = 4;
const EUI64: u8 = 1;
const NGUID: u8 = 2;
const UUID: u8 = 3;
const COMMAND_SET: u8 = 4;

/// The identifiers of a namespace. Each stays for the namespace's life and is the same on every path to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIdentifiers {
    /// IEEE extended unique identifier, most significant byte first.
    pub eui64: Option<[u8; 8]>,
    /// Namespace globally unique identifier, most significant byte first.
    pub nguid: Option<[u8; 16]>,
    /// UUID (RFC 4122), most significant byte first.
    pub uuid: Option<[u8; 16]>,
    /// Command set identifier as it travels; a controller that knows command sets must give it.
    pub command_set: Option<u8>,
}

/// Why a descriptor list was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DescriptorError {
    /// Too short.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// A known type with another length than it has.
    #[error(
        "a namespace identification descriptor of type {kind} is {got_bytes} bytes long; the controller must send {expected_bytes}"
    )]
    WrongLength {
        /// Type (NIDT).
        kind: u8,
        /// The length it has by the specification.
        expected_bytes: usize,
        /// The length it came with.
        got_bytes: usize,
    },
    /// A descriptor that goes past the end of the list.
    #[error(
        "a namespace identification descriptor at byte {at} goes past the list of 4096 bytes; the controller must send whole descriptors"
    )]
    PastEnd {
        /// Where it begins.
        at: usize,
    },
}

impl NamespaceIdentifiers {
    /// The command set, when it is known here.
    pub fn known_command_set(&self) -> Option<CommandSet> {
        self.command_set.and_then(CommandSet::from_code)
    }

    /// The list as it travels.
    pub fn encode(&self) -> [u8; IDENTIFY_BYTES] {
        let mut bytes = [0; IDENTIFY_BYTES];
        let mut at = 0;
        let mut put = |kind: u8, identifier: &[u8]| {
            bytes[at] = kind;
            bytes[at + 1] = identifier.len() as u8;
            at += HEADER_BYTES;
            bytes[at..at + identifier.len()].copy_from_slice(identifier);
            at += identifier.len();
        };
        if let Some(eui64) = &self.eui64 {
            put(EUI64, eui64);
        }
        if let Some(nguid) = &self.nguid {
            put(NGUID, nguid);
        }
        if let Some(uuid) = &self.uuid {
            put(UUID, uuid);
        }
        if let Some(command_set) = self.command_set {
            put(COMMAND_SET, &[command_set]);
        }
        bytes
    }

    /// Reads a list. Types that are not known are passed over; of a type that comes twice the last counts.
    ///
    /// # Errors
    /// `DescriptorError` when there are fewer than 4096 bytes or a descriptor has a wrong length.
    pub fn decode(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let bytes: &[u8; IDENTIFY_BYTES] = prefix("NamespaceIdentifiers", bytes)?;
        let mut found = Self::default();
        let mut at = 0;
        while let Some(&[kind, length, _, _]) = bytes[at..].first_chunk() {
            if kind == 0 {
                break;
            }
            let begin = at + HEADER_BYTES;
            let end = begin + usize::from(length);
            let identifier = bytes.get(begin..end).ok_or(DescriptorError::PastEnd { at })?;
            match kind {
                EUI64 => found.eui64 = Some(exact(kind, identifier)?),
                NGUID => found.nguid = Some(exact(kind, identifier)?),
                UUID => found.uuid = Some(exact(kind, identifier)?),
                COMMAND_SET => found.command_set = Some(exact::<1>(kind, identifier)?[0]),
                _ => {}
            }
            at = end;
        }
        Ok(found)
    }
}

fn exact<const N: usize>(kind: u8, identifier: &[u8]) -> Result<[u8; N], DescriptorError> {
    identifier.try_into().map_err(|_| DescriptorError::WrongLength {
        kind,
        expected_bytes: N,
        got_bytes: identifier.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn descriptors_follow_one_another() {
        let identifiers = NamespaceIdentifiers {
            nguid: Some([0x11; 16]),
            command_set: Some(0),
            ..Default::default()
        };
        let bytes = identifiers.encode();
        assert_eq!(bytes[..4], [2, 16, 0, 0]);
        assert_eq!(bytes[4..20], [0x11; 16]);
        assert_eq!(bytes[20..26], [4, 1, 0, 0, 0, 0]);
        assert_eq!(identifiers.known_command_set(), Some(CommandSet::Nvm));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let mut bytes = [0; 4096];
        bytes[..2].copy_from_slice(&[UUID, 15]);
        assert_eq!(
            NamespaceIdentifiers::decode(&bytes),
            Err(DescriptorError::WrongLength {
                kind: 3,
                expected_bytes: 16,
                got_bytes: 15
            })
        );
        // Unknown types of the greatest length fill the list until one goes past its end.
        for chunk in bytes.chunks_mut(259) {
            chunk[0] = 9;
            if let Some(length) = chunk.get_mut(1) {
                *length = 255;
            }
        }
        assert_eq!(
            NamespaceIdentifiers::decode(&bytes),
            Err(DescriptorError::PastEnd { at: 15 * 259 })
        );
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(eui64: Option<[u8; 8]>, nguid: Option<[u8; 16]>, uuid: Option<[u8; 16]>, command_set: Option<u8>) {
            let identifiers = NamespaceIdentifiers { eui64, nguid, uuid, command_set };
            prop_assert_eq!(NamespaceIdentifiers::decode(&identifiers.encode()).unwrap(), identifiers);
        }

        #[test]
        fn noise_never_panics(noise in prop::collection::vec(0u8..6, 4090..4100), wild in prop::collection::vec(any::<u8>(), 4096)) {
            let _ = NamespaceIdentifiers::decode(&noise);
            let _ = NamespaceIdentifiers::decode(&wild);
        }
    }
}
