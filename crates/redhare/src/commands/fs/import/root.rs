//! The directory that says what is deleted on the volume.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::super::local::at;
use crate::output::Failure;

/// See the module. Held open from the beginning: what is mounted elsewhere, renamed or put in its place meanwhile does not
/// say of everything that it is gone.
pub(super) struct Root {
    path: PathBuf,
    directory: File,
}

impl Root {
    /// # Errors
    /// If it cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        Ok(Self {
            path: path.to_owned(),
            directory: File::open(path).map_err(|error| at(path, &error))?,
        })
    }

    /// # Errors
    /// If its path leads to another directory now.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let id = |found: std::fs::Metadata| (found.dev(), found.ino());
        let own = self
            .directory
            .metadata()
            .map_err(|error| at(&self.path, &error))?;
        match std::fs::metadata(&self.path).map(id) {
            Ok(found) if found == id(own) => Ok(()),
            Ok(_) => {
                Err(self
                    .changed("is another directory than when the import began (mounted or replaced since?)"))
            }
            Err(error) => Err(self.changed(&format!("cannot be found any more ({error})"))),
        }
    }

    fn changed(&self, what: &str) -> Failure {
        Failure::new(format!(
            "{} {what}, so that nothing more is deleted; see that the right one is there, and import again",
            self.path.display()
        ))
    }

    /// Whether it has something of this name.
    ///
    /// # Errors
    /// If it cannot say so.
    pub(super) fn has(&self, path: &[u8]) -> Result<bool, Failure> {
        match statat(&self.directory, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            // A name of a file that was a directory.
            Err(Errno::NOENT | Errno::NOTDIR) => self.check().map(|()| false),
            Err(error) => {
                let path = self.path.join(String::from_utf8_lossy(path).as_ref());
                Err(at(&path, &error.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_its_place_says_of_nothing_that_it_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("source");
        let make = || {
            std::fs::create_dir(&path).unwrap();
            Root::open(&path).unwrap()
        };
        let root = make();
        std::fs::write(path.join("a"), "").unwrap();
        assert!(root.has(b"a").unwrap() && !root.has(b"b").unwrap() && !root.has(b"a/b").unwrap());
        root.check().unwrap();
        std::fs::rename(&path, place.path().join("away")).unwrap();
        let error = root.check().unwrap_err().to_string();
        assert!(error.contains("cannot be found any more"), "{error}");
        let other = make();
        assert!(root.has(b"a").unwrap(), "it is held open");
        for error in [root.has(b"b").map(drop), root.check()] {
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains("is another directory than when the import began")
                    && error.contains("nothing more is deleted"),
                "{error}"
            );
        }
        assert!(!other.has(b"a").unwrap());
    }
}
