//! A sample read: a command by which whoever looks after a node's disks sees how they are (`docs/formats/peer.md`).

use std::time::Duration;

/// Reads one page of a disk; data to the host.
pub const OPCODE: u8 = 0xb2;
/// Bytes of an answer: as many as were read.
pub const ANSWER_BYTES: usize = 4096;

/// What a sample read is answered with. The bytes of the page itself stay where they are: they may be of deleted volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleAnswer {
    /// The disk's identity.
    pub uuid: u128,
    /// How many disks the node has.
    pub disks: u32,
    /// How long the disk took; none if it failed, or has still to answer an earlier one.
    pub took: Option<Duration>,
}

impl SampleAnswer {
    /// The beginning of the answer; what follows is zero.
    pub fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.uuid.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.disks.to_le_bytes());
        bytes[20] = u8::from(self.took.is_some());
        let took_ns = self
            .took
            .map_or(0, |took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        bytes[24..].copy_from_slice(&took_ns.to_le_bytes());
        bytes
    }

    /// What was answered; none if it is too short.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; 32] = bytes.first_chunk()?;
        let (uuid, rest) = head.split_first_chunk::<16>()?;
        let (disks, rest) = rest.split_first_chunk::<4>()?;
        let (is_read, took) = (rest.first()?, rest.last_chunk::<8>()?);
        Some(Self {
            uuid: u128::from_be_bytes(*uuid),
            disks: u32::from_le_bytes(*disks),
            took: (*is_read == 1).then(|| Duration::from_nanos(u64::from_le_bytes(*took))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_out_as_they_went_in() {
        for took in [None, Some(Duration::ZERO), Some(Duration::from_micros(81))] {
            let answer = SampleAnswer {
                uuid: 7 << 100,
                disks: 3,
                took,
            };
            let bytes = answer.encode();
            assert_eq!(SampleAnswer::decode(&bytes), Some(answer));
            assert_eq!(SampleAnswer::decode(&bytes[..31]), None);
        }
        assert_eq!(OPCODE & 3, 2, "data to the host");
    }
}
