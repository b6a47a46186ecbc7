//! Files that are there whole or not at all: written beside their place, made durable, and renamed.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// A file that does not have its place yet. Nobody else reads it; dropped before, it is removed.
pub(crate) struct Beside {
    file: File,
    fresh: PathBuf,
    place: PathBuf,
}

impl Beside {
    /// For a place where nothing is.
    ///
    /// # Errors
    /// The system's; also if something is there.
    pub(crate) fn new(place: &Path) -> io::Result<Self> {
        match std::fs::symlink_metadata(place) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => Self::over(place),
        }
    }

    /// For a place where something may be.
    fn over(place: &Path) -> io::Result<Self> {
        let name = place.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut fresh = OsString::from(".");
        fresh.push(name);
        fresh.push(format!(".{}.new", std::process::id()));
        let fresh = place.with_file_name(fresh);
        let open = || {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(&fresh)
        };
        let file = match open() {
            // Left behind by a process of the same number that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(&fresh)?;
                open()?
            }
            opened => opened?,
        };
        Ok(Self {
            file,
            fresh,
            place: place.to_owned(),
        })
    }

    /// What is written to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Makes it durable and gives it its place.
    ///
    /// # Errors
    /// The system's; also if something has come there meanwhile.
    pub(crate) fn put(self) -> io::Result<()> {
        self.file.sync_all()?;
        match renameat_with(CWD, &self.fresh, CWD, &self.place, RenameFlags::NOREPLACE) {
            // Not every file system can refuse to replace.
            Err(Errno::INVAL | Errno::NOSYS) if std::fs::symlink_metadata(&self.place).is_err() => {
                std::fs::rename(&self.fresh, &self.place)?;
            }
            renamed => renamed?,
        }
        self.sync_directory()
    }

    fn sync_directory(&self) -> io::Result<()> {
        let directory = self
            .place
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It is not there any more once it has its place.
        drop(std::fs::remove_file(&self.fresh));
    }
}

/// Writes a new file.
///
/// # Errors
/// The system's; also if something is there. Nothing is left then.
pub(crate) fn write_new(place: &Path, content: &[u8]) -> io::Result<()> {
    let beside = Beside::new(place)?;
    beside.file().write_all(content)?;
    beside.put()
}

/// Writes a file, in the place of what may be there.
///
/// # Errors
/// The system's. What was there is there still then.
pub(crate) fn replace(place: &Path, content: &[u8]) -> io::Result<()> {
    let beside = Beside::over(place)?;
    beside.file().write_all(content)?;
    beside.file().sync_all()?;
    std::fs::rename(&beside.fresh, &beside.place)?;
    beside.sync_directory()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let names = || {
            let entries = std::fs::read_dir(directory.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let place = directory.path().join("file");
        let beside = Beside::new(&place).unwrap();
        beside.file().write_all(b"half").unwrap();
        assert!(!place.exists());
        drop(beside);
        assert!(names().is_empty());
        // What a process of this number has left is in nobody's way.
        let left = directory.path().join(format!(".file.{}.new", std::process::id()));
        std::fs::write(&left, "left").unwrap();
        write_new(&place, b"whole").unwrap();
        assert_eq!(names(), ["file"]);
        assert_eq!(
            std::fs::metadata(&place).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        let error = write_new(&place, b"other").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        replace(&place, b"next").unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"next");
        // One that comes meanwhile stays.
        let late = directory.path().join("late");
        let beside = Beside::new(&late).unwrap();
        std::fs::write(&late, "first").unwrap();
        assert_eq!(beside.put().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&late).unwrap(), b"first");
        assert_eq!(names(), ["file", "late"]);
        assert!(Beside::new(Path::new("/")).is_err() && write_new(Path::new(""), b"").is_err());
    }
}
