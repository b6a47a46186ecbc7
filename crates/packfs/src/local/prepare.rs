//! A directory for a local cache, on a real disk.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{FILE_NAME, LOCK_NAME, LocalCacheError};

/// Makes the directory and the files that a cache needs where they are missing, readable and writable for this process's user alone: they
/// have content that not everybody may read, and whoever could write them could forge it. Blocks briefly.
///
/// # Errors
/// If a file is another user's, or open to others, or the system refuses.
pub fn prepare(directory: &Path) -> Result<(), LocalCacheError> {
    let failed = |path: &Path, source: io::Error| LocalCacheError::Io {
        path: path.to_owned(),
        source,
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| failed(directory, error))?;
    // Whose it is says who this process is to file systems.
    let own = std::fs::metadata("/proc/self").map(|process| process.uid());
    let own = own.map_err(|error| failed(Path::new("/proc/self"), error))?;
    for name in [FILE_NAME, LOCK_NAME] {
        let path = directory.join(name);
        // Neither follows a symbolic link.
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&path, error)),
            _ => {}
        }
        let found = std::fs::symlink_metadata(&path).map_err(|error| failed(&path, error))?;
        if found.uid() != own || found.mode() & 0o077 != 0 || !found.is_file() {
            return Err(LocalCacheError::NotOurs { path });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_ours_alone_or_refused() {
        let base = std::env::temp_dir().join(format!("redhare-prepare-{}", std::process::id()));
        let directory = base.join("a/b");
        prepare(&directory).unwrap();
        prepare(&directory).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        let file = directory.join(FILE_NAME);
        assert_eq!(mode(&file), 0o600);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        let refused = prepare(&directory).unwrap_err();
        assert!(matches!(refused, LocalCacheError::NotOurs { .. }), "{refused}");
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(base.join("elsewhere"), &file).unwrap();
        let refused = prepare(&directory).unwrap_err();
        assert!(matches!(refused, LocalCacheError::NotOurs { .. }), "{refused}");
        assert!(!base.join("elsewhere").exists());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
