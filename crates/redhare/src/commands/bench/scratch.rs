//! A directory for a measurement's files, removed with what is in it.

use std::path::{Path, PathBuf};

use crate::output::Failure;

/// Says that a directory was made by a measurement, so that a later one may remove it.
const MARK: &str = "made-by-redhare-bench";

/// See the module.
pub(super) struct Scratch {
    path: PathBuf,
    is_kept: bool,
}

impl Scratch {
    /// Makes the directory anew. One that an interrupted measurement left is removed first; any other is not touched.
    pub(super) fn new(path: &Path) -> Result<Self, Failure> {
        let failed = |error| {
            Failure::new(format!(
                "{}: {error}; give --data another directory",
                path.display()
            ))
        };
        if path.join(MARK).exists() {
            std::fs::remove_dir_all(path).map_err(failed)?;
        }
        if path.exists() {
            return Err(Failure::new(format!(
                "{} exists and was not made by a measurement: give --data another directory, or remove it",
                path.display()
            )));
        }
        std::fs::create_dir_all(path).map_err(failed)?;
        std::fs::write(path.join(MARK), "").map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        Ok(Self { path, is_kept: false })
    }

    /// Where it is, from the root.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it there when this is dropped; the next measurement with the same directory removes it.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.is_kept {
            // What stays is removed by the next measurement.
            drop(std::fs::remove_dir_all(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_measurement_made_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        let scratch = Scratch::new(&path).unwrap();
        std::fs::write(path.join("left"), "over").unwrap();
        std::mem::forget(scratch);
        drop(Scratch::new(&path).unwrap());
        assert!(!path.exists());
        std::fs::create_dir_all(&path).unwrap();
        let refused = Scratch::new(&path).map(drop).unwrap_err().to_string();
        assert!(refused.contains("was not made by a measurement"), "{refused}");
        assert!(path.exists());
    }
}
