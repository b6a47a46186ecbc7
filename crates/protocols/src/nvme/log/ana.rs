//! Asymmetric Namespace Access log (LID 0Ch; NVM Express Base Specification 2.0c, section 5.16.1.13).
//!
//! A header of 16 bytes, then for each group a descriptor of 32 bytes and its namespace identifiers.

use thiserror::Error;

use crate::nvme::LengthError;
use crate::nvme::codes::codes;
use crate::nvme::layout::{Field, layout};

codes! {
    /// How well a group's namespaces can be reached through this controller.
    pub enum AnaState: u8 {
        Optimized = 0x01 "ANA Optimized",
        NonOptimized = 0x02 "ANA Non-Optimized",
        Inaccessible = 0x03 "ANA Inaccessible",
        PersistentLoss = 0x04 "ANA Persistent Loss",
        Change = 0x0f "ANA Change",
    }
}

layout! {
    /// Header of the log.
    pub struct AnaHeader[16] {
        /// Grows with each change (Change Count).
        change_count: u64 = 0,
        /// Number of group descriptors that follow.
        groups: u16 = 8,
    }
}

layout! {
    /// Descriptor of a group, without its namespaces.
    pub struct AnaGroupHeader[32] {
        /// ANA group identifier (ANAGRPID).
        anagrpid: u32 = 0,
        /// Number of namespace identifiers that follow.
        namespaces: u32 = 4,
        /// Change count of this group.
        change_count: u64 = 8,
        /// State in bits 3:0.
        state: u8 = 16,
    }
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// ANA group identifier (ANAGRPID).
    pub anagrpid: u32,
    /// Grows with each change of the group.
    pub change_count: u64,
    /// State of all its namespaces.
    pub state: AnaState,
    /// Its namespaces, ascending; empty when only groups were asked for (RGO).
    pub nsids: Vec<u32>,
}

/// The log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaLog {
    /// Grows with each change.
    pub change_count: u64,
    /// The groups, ascending.
    pub groups: Vec<AnaGroup>,
}

/// Why a log was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AnaError {
    /// Too short for what it announces.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// A group says more namespaces than bytes follow.
    #[error(
        "ANA group {anagrpid} announces {namespaces} namespaces and {got_bytes} bytes follow; read the whole log again"
    )]
    Namespaces {
        /// The group.
        anagrpid: u32,
        /// How many it announces.
        namespaces: u32,
        /// How many bytes follow.
        got_bytes: usize,
    },
    /// A reserved state.
    #[error(
        "ANA group {anagrpid} has the reserved state {state:x}h; the controller must send 1h to 4h or Fh"
    )]
    State {
        /// The group.
        anagrpid: u32,
        /// Its state.
        state: u8,
    },
}

impl AnaLog {
    /// Length on the wire, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        let group_bytes = |group: &AnaGroup| AnaGroupHeader::BYTES + group.nsids.len() * 4;
        AnaHeader::BYTES + self.groups.iter().map(group_bytes).sum::<usize>()
    }

    /// The log as it travels. A log has at most 65535 groups; more are left out.
    pub fn encode(&self) -> Vec<u8> {
        let groups = self.groups.len().min(usize::from(u16::MAX));
        let mut bytes = Vec::with_capacity(self.encoded_bytes());
        let header = AnaHeader {
            change_count: self.change_count,
            groups: groups as u16,
        };
        bytes.extend(header.encode());
        for group in &self.groups[..groups] {
            let header = AnaGroupHeader {
                anagrpid: group.anagrpid,
                namespaces: group.nsids.len() as u32,
                change_count: group.change_count,
                state: group.state.code(),
            };
            bytes.extend(header.encode());
            bytes.extend(group.nsids.iter().flat_map(|nsid| nsid.to_le_bytes()));
        }
        bytes
    }

    /// Reads a log. What it holds in memory is bounded by the length of `bytes`, not by the numbers in it.
    ///
    /// # Errors
    /// `AnaError` when it is cut off or has a reserved state.
    pub fn decode(bytes: &[u8]) -> Result<Self, AnaError> {
        let header = AnaHeader::decode(bytes)?;
        let mut rest = &bytes[AnaHeader::BYTES..];
        let mut groups = Vec::new();
        for _ in 0..header.groups {
            let group = AnaGroupHeader::decode(rest)?;
            rest = &rest[AnaGroupHeader::BYTES..];
            let anagrpid = group.anagrpid;
            let (nsids, after) = usize::try_from(group.namespaces)
                .ok()
                .and_then(|namespaces| rest.split_at_checked(namespaces.checked_mul(4)?))
                .ok_or(AnaError::Namespaces {
                    anagrpid,
                    namespaces: group.namespaces,
                    got_bytes: rest.len(),
                })?;
            let state = group.state & 0xf;
            groups.push(AnaGroup {
                anagrpid,
                change_count: group.change_count,
                state: AnaState::from_code(state).ok_or(AnaError::State { anagrpid, state })?,
                nsids: nsids.chunks_exact(4).map(u32::get).collect(),
            });
            rest = after;
        }
        Ok(Self {
            change_count: header.change_count,
            groups,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_log_travels_as_the_specification_says() {
        let log = AnaLog {
            change_count: 5,
            groups: vec![AnaGroup {
                anagrpid: 1,
                change_count: 4,
                state: AnaState::NonOptimized,
                nsids: vec![7, 8],
            }],
        };
        let bytes = log.encode();
        assert_eq!(bytes.len(), 56);
        assert_eq!((bytes[0], bytes[8], bytes[9]), (5, 1, 0));
        assert_eq!((bytes[16], bytes[20], bytes[24], bytes[32]), (1, 2, 4, 2));
        assert_eq!(bytes[48..], [7, 0, 0, 0, 8, 0, 0, 0]);
    }

    #[test]
    fn numbers_that_promise_too_much_are_refused() {
        let mut bytes = vec![0; 48];
        bytes[8] = 1;
        bytes[20..24].fill(0xff);
        assert!(matches!(
            AnaLog::decode(&bytes),
            Err(AnaError::Namespaces {
                namespaces: u32::MAX,
                ..
            })
        ));
        bytes[20..24].fill(0);
        assert_eq!(
            AnaLog::decode(&bytes),
            Err(AnaError::State {
                anagrpid: 0,
                state: 0
            })
        );
        bytes[8..10].fill(0xff);
        bytes[32] = 1;
        assert!(matches!(AnaLog::decode(&bytes), Err(AnaError::Length(_))));
    }

    proptest! {
        #[test]
        fn decode_of_encode_is_identity(change_count: u64, groups in prop::collection::vec((any::<u32>(), any::<u64>(), prop::sample::select(AnaState::ALL), prop::collection::vec(any::<u32>(), 0..9)), 0..9)) {
            let groups = groups.into_iter().map(|(anagrpid, change_count, state, nsids)| AnaGroup { anagrpid, change_count, state, nsids }).collect();
            let log = AnaLog { change_count, groups };
            let wire = log.encode();
            prop_assert_eq!(wire.len(), log.encoded_bytes());
            prop_assert_eq!(AnaLog::decode(&wire).unwrap(), log);
        }

        #[test]
        fn noise_never_panics(noise in prop::collection::vec(0u8..4, 0..300)) {
            let _ = AnaLog::decode(&noise);
        }
    }
}
