//! Where a node's disk holds a chunk: the answer to [`NativeOperation::Locate`](super::NativeOperation::Locate).

use crate::format::{FormatError, Reader, Writer};

const WHAT: &str = "location of a chunk";
/// Bytes of one run.
const RUN_BYTES: usize = 16;
/// The copy has no checksums; nodes that knew none wrote this, too.
const SUMS_NONE: u32 = 0;
/// Those of `docs/formats/checksums.md`.
const SUMS_CRC32C: u32 = 1;
/// No chunk lies in more runs than this; what is above comes from a faulty program.
const RUNS_MAX: usize = 1 << 16;

/// Blocks that follow each other both in the chunk and on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one in the chunk.
    pub first_block: u32,
    /// How many.
    pub blocks: u32,
    /// Where the first one lies on the disk, in bytes.
    pub offset_bytes: u64,
}

/// An open file of the node's process, as `/proc/PROCESS/fd/DESCRIPTOR`, and what `fstat(2)` says of it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// The descriptor.
    pub descriptor: u32,
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// What a client on the node's machine needs to read a chunk from the node's disk itself.
///
/// On the node's board (`reactor::shared`) words 0 and 1 are `board_identity`, and a chunk has the two words from
/// `slot`: its version, and the instant of `CLOCK_BOOTTIME` in nanoseconds until which it may be read. What was read
/// counts only if *afterwards* the version is still the one given here, that instant has not come, and the board's
/// writer lives. An odd version says that the chunk may not be read now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The node's process.
    pub process: u32,
    /// Its time namespace (the inode of `/proc/self/ns/time`): in another one the clock is another.
    pub time_namespace: u64,
    /// Its board.
    pub board: u32,
    /// What the board calls itself, in no particular order of bytes: a random number.
    pub board_identity: u128,
    /// The chunk's first word there.
    pub slot: u32,
    /// The version in which the runs are as they are here.
    pub version: u64,
    /// The disk.
    pub disk: OpenFile,
    /// Where the chunk lies, in ascending order. Blocks that are in none read zeros.
    pub runs: Vec<Run>,
    /// Of a copy with checksums: where their pages lie, two places for each, counted from the first (`docs/formats/checksums.md`).
    /// They are those of everything written before this version.
    pub sums: Option<Vec<Run>>,
}

impl Location {
    /// The answer's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.process);
        writer.u32(self.board);
        writer.u64(self.time_namespace);
        writer.u128(self.board_identity);
        writer.u64(self.version);
        writer.u32(self.slot);
        writer.u32(self.disk.descriptor);
        writer.u64(self.disk.device);
        writer.u64(self.disk.inode);
        write_runs(&mut writer, &self.runs);
        writer.u32(if self.sums.is_some() {
            SUMS_CRC32C
        } else {
            SUMS_NONE
        });
        if let Some(sums) = &self.sums {
            write_runs(&mut writer, sums);
        }
        writer.bytes
    }

    /// Reads an answer; what follows it in the client's buffer is ignored.
    ///
    /// # Errors
    /// See [`FormatError`]: cut short, or runs that are too many or not in ascending order.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(WHAT, bytes);
        let (process, board) = (reader.u32()?, reader.u32()?);
        let (time_namespace, board_identity) = (reader.u64()?, reader.u128()?);
        let (version, slot) = (reader.u64()?, reader.u32()?);
        let disk = OpenFile {
            descriptor: reader.u32()?,
            device: reader.u64()?,
            inode: reader.u64()?,
        };
        let runs = read_runs(&mut reader)?;
        let sums = match reader.u32()? {
            SUMS_NONE => None,
            SUMS_CRC32C => Some(read_runs(&mut reader)?),
            other => return Err(invalid("kind of checksums", other.into())),
        };
        Ok(Self {
            process,
            time_namespace,
            board,
            board_identity,
            slot,
            version,
            disk,
            runs,
            sums,
        })
    }
}

fn invalid(field: &'static str, value: u64) -> FormatError {
    FormatError::Invalid {
        what: WHAT,
        field,
        value,
    }
}

fn write_runs(writer: &mut Writer, runs: &[Run]) {
    writer.count(runs.len());
    for run in runs {
        writer.u32(run.first_block);
        writer.u32(run.blocks);
        writer.u64(run.offset_bytes);
    }
}

fn read_runs(reader: &mut Reader<'_>) -> Result<Vec<Run>, FormatError> {
    let count = reader.count(RUN_BYTES)?;
    if count > RUNS_MAX {
        return Err(invalid("number of runs", count as u64));
    }
    let mut runs = Vec::with_capacity(count);
    let mut end = 0;
    for _ in 0..count {
        let run = Run {
            first_block: reader.u32()?,
            blocks: reader.u32()?,
            offset_bytes: reader.u64()?,
        };
        if u64::from(run.first_block) < end || run.blocks == 0 {
            return Err(invalid("first block of a run", run.first_block.into()));
        }
        end = u64::from(run.first_block) + u64::from(run.blocks);
        runs.push(run);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn location(runs: Vec<Run>, sums: Option<Vec<Run>>) -> Location {
        Location {
            process: 1,
            time_namespace: 2,
            board: 3,
            board_identity: 4 << 100,
            slot: 5,
            version: 6,
            disk: OpenFile {
                descriptor: 7,
                device: 8,
                inode: 9,
            },
            runs,
            sums,
        }
    }

    fn run(first_block: u32, blocks: u32) -> Run {
        Run {
            first_block,
            blocks,
            offset_bytes: 4096 * u64::from(first_block),
        }
    }

    #[test]
    fn what_is_said_is_understood_and_disorder_is_not() {
        let runs = || vec![run(0, 4), run(4, 1), run(9, 2)];
        for sums in [None, Some(Vec::new()), Some(vec![run(0, 2), run(7, 1)])] {
            let told = location(runs(), sums);
            let mut bytes = told.encode();
            for length in 0..bytes.len() {
                assert!(Location::decode(&bytes[..length]).is_err(), "{length}");
            }
            bytes.extend([0; 100]);
            assert_eq!(Location::decode(&bytes), Ok(told));
        }
        for wrong in [vec![run(0, 4), run(3, 1)], vec![run(0, 0)]] {
            assert!(Location::decode(&location(wrong.clone(), None).encode()).is_err());
            assert!(Location::decode(&location(runs(), Some(wrong)).encode()).is_err());
        }
        let mut unknown = location(runs(), None).encode();
        let kind = unknown.len() - 4;
        unknown[kind] = 2;
        assert!(Location::decode(&unknown).is_err());
        let table = include_str!("../../../../../docs/formats/peer.md");
        assert!(table.contains("82h Locate"));
    }

    proptest! {
        #[test]
        fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(location) = Location::decode(&bytes) {
                prop_assert_eq!(Location::decode(&location.encode()), Ok(location));
            }
        }
    }
}
