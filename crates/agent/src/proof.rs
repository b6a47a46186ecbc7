//! Proof that nobody writes to a disk any more: the kernel holds a disk's lock until the last user of its open file is
//! gone, and a request in the kernel is one of them (`bdev::file` sends its requests through the locked file).

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

#[cfg(test)]
mod tests {
    use super::*;

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
