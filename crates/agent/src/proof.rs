//! Proof that nobody writes to a disk any more: the kernel holds a disk's lock until the last user of its open file is
//! gone, and a request in the kernel is one of them (`bdev::file` sends its requests through the locked file).

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Disk;

/// The first of the disks that a process or a request in the kernel still uses as a device. A disk that is not there yet
/// was never in use; one that cannot be opened is refused with its reason when the target starts.
pub(crate) fn in_use(disks: &[Disk]) -> Option<&Path> {
    let mut paths = disks.iter().map(|disk| disk.path.as_path());
    paths.find(|path| is_in_use(path))
}

/// Whether a process or a request in the kernel uses this disk as a device.
pub(crate) fn is_in_use(path: &Path) -> bool {
    std::fs::File::open(path)
        .is_ok_and(|file| matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
}

/// Whether the lock of this disk is this process's own, by what the kernel says of all locks (proc_locks(5)).
pub(crate) fn is_locked_by(path: &Path, process: u32) -> bool {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let Ok(inode) = std::fs::metadata(path).map(|found| found.ino()) else {
        return false;
    };
    // The device's number is left alone: some file systems have another one there than files show.
    locks.lines().any(|line| is_lock_of(line, process, inode))
}

/// Whether a line such as `1: FLOCK  ADVISORY  WRITE 712 08:01:123 0 EOF` says that this process holds a lock of this file.
fn is_lock_of(line: &str, process: u32, inode: u64) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let &[_, "FLOCK", _, _, holder, file, ..] = &fields[..] else {
        return false;
    };
    let file = file.rsplit(':').next();
    holder.parse() == Ok(process) && file.and_then(|inode| inode.parse().ok()) == Some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_lock_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, b"x").unwrap();
        let (own, inode) = (std::process::id(), std::fs::metadata(&path).unwrap().ino());
        assert!(!is_locked_by(&path, own));
        let held = std::fs::File::open(&path).unwrap();
        held.try_lock().unwrap();
        assert!(is_locked_by(&path, own) && !is_locked_by(&path, own + 1));
        let line = format!("3: FLOCK  ADVISORY  WRITE {own} 08:01:{inode} 0 EOF");
        assert!(is_lock_of(&line, own, inode));
        // One that waits for it.
        let line = format!("3: -> FLOCK  ADVISORY  WRITE {own} 08:01:{inode} 0 EOF");
        assert!(!is_lock_of(&line, own, inode));
    }

    #[test]
    fn a_lock_is_seen_as_long_as_a_descriptor_of_its_file_lives() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let disks = [Disk {
            path: path.clone(),
            size: None,
        }];
        assert_eq!(in_use(&disks), None);
        std::fs::write(&path, b"x").unwrap();
        assert_eq!(in_use(&disks), None);
        let held = std::fs::File::open(&path).unwrap();
        held.try_lock().unwrap();
        let request = held.try_clone().unwrap();
        assert_eq!(in_use(&disks), Some(path.as_path()));
        drop(held);
        assert_eq!(in_use(&disks), Some(path.as_path()));
        drop(request);
        assert_eq!(in_use(&disks), None);
    }
}
