//! Proof that a target has ended: the kernel holds a disk's lock until the last descriptor is closed, and an I/O in
//! flight holds the descriptor.

use crate::Disk;

/// Whether no process has any of the disks open as a device. A disk that is not there yet was never in use.
pub(crate) fn nobody_uses(disks: &[Disk]) -> bool {
    disks.iter().all(|disk| match std::fs::File::open(&disk.path) {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let disks = [Disk {
            path: path.clone(),
            size: None,
        }];
        assert!(nobody_uses(&disks));
        std::fs::write(&path, b"x").unwrap();
        assert!(nobody_uses(&disks));
        let held = std::fs::File::open(&path).unwrap();
        held.try_lock().unwrap();
        assert!(!nobody_uses(&disks));
        drop(held);
        assert!(nobody_uses(&disks));
    }
}
