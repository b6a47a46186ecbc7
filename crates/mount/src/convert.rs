//! Between the kernel's words and ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, Generation, INodeNo, TimeOrNow};
use packfs::{DeviceNumber, Inode, InodeNumber, Kind, Timestamp};

/// Inode numbers are never used again, so one generation is enough.
pub(crate) const GENERATION: Generation = Generation(0);
/// What `st_blocks` counts in, in bytes (`stat(2)`).
pub(crate) const COUNTED_BYTES: u64 = 512;
/// What is best read and written at once, in bytes.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// The wall clock.
pub(crate) fn now() -> Timestamp {
    timestamp(SystemTime::now())
}

/// A point of time as PackFS keeps it.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(error) => {
            let before = error.duration();
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => Timestamp {
                    seconds: -seconds,
                    nanoseconds: 0,
                },
                part => Timestamp {
                    seconds: -seconds - 1,
                    nanoseconds: 1_000_000_000 - part,
                },
            }
        }
    }
}

/// What `setattr` asks for.
pub(crate) fn chosen(time: TimeOrNow, now: Timestamp) -> Timestamp {
    match time {
        TimeOrNow::SpecificTime(time) => timestamp(time),
        TimeOrNow::Now => now,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let part = Duration::from_nanos(time.nanoseconds.into());
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let begun = match time.seconds >= 0 {
        true => UNIX_EPOCH.checked_add(whole),
        false => UNIX_EPOCH.checked_sub(whole),
    };
    // Times that this host cannot express are shown as the beginning of time.
    begun
        .and_then(|begun| begun.checked_add(part))
        .unwrap_or(UNIX_EPOCH)
}

/// A device's number from the kernel's 32 bits (`new_decode_dev` of Linux): twelve of the driver, twenty of the device.
pub(crate) fn device(bits: u32) -> DeviceNumber {
    DeviceNumber {
        major: bits >> 8 & 0xfff,
        minor: bits & 0xff | bits >> 12 & 0xf_ff00,
    }
}

/// The reverse of [`device`]. What another system may have stored beyond these bits is not shown.
fn device_bits(device: DeviceNumber) -> u32 {
    device.minor & 0xff | (device.major & 0xfff) << 8 | (device.minor & 0xf_ff00) << 12
}

/// What the kernel calls a kind.
pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Pipe => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The bits of a mode that say what kind of inode it is (`inode(7)`).
pub(crate) fn kind_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File => 0o100_000,
        Kind::Directory => 0o040_000,
        Kind::Symlink => 0o120_000,
        Kind::Pipe => 0o010_000,
        Kind::Socket => 0o140_000,
        Kind::CharacterDevice => 0o020_000,
        Kind::BlockDevice => 0o060_000,
    }
}

/// The number of a device as the kernel has it; 0 of anything else.
pub(crate) fn rdev_bits(inode: &Inode) -> u32 {
    inode.device().map_or(0, device_bits)
}

/// What `stat` shows.
pub(crate) fn attributes(inode: &Inode) -> FileAttr {
    let a = &inode.attributes;
    FileAttr {
        ino: INodeNo(inode.number.0),
        size: inode.size,
        blocks: inode.size.div_ceil(COUNTED_BYTES),
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(inode.kind),
        // Twelve bits.
        perm: a.mode as u16,
        nlink: inode.links,
        uid: a.uid,
        gid: a.gid,
        rdev: rdev_bits(inode),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// What is told of an inode of which only the kind is known.
pub(crate) fn kind_only(inode: InodeNumber, kind: FileType) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode.0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// What tells the kernel that a name is not there, so that it may believe that for a while: no inode has number 0.
pub(crate) fn missing() -> FileAttr {
    kind_only(InodeNumber(0), FileType::RegularFile)
}

/// An inode by the kernel's number, which is ours.
pub(crate) fn number(inode: INodeNo) -> InodeNumber {
    InodeNumber(inode.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for bits in [0, 0x103, 0xfff1_23ff, u32::MAX, 0x0010_0800] {
            assert_eq!(device_bits(device(bits)), bits);
        }
        let (major, minor) = (259, 0x1_0002);
        assert_eq!(device(0x1001_0302), DeviceNumber { major, minor });
    }

    #[test]
    fn times_before_and_after_the_epoch_come_back() {
        for (seconds, nanoseconds) in [(0, 0), (5, 7), (-1, 999_999_999), (-5, 0), (-7, 1), (1 << 33, 3)] {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(timestamp(system_time(time)), time);
        }
    }
}
