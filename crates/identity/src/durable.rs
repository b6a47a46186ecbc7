//! Files that are replaced durably and at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::authority::AuthorityError;

pub(crate) fn make_directory(path: &Path) -> Result<(), AuthorityError> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|source| AuthorityError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Replaces a file durably and at once.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), AuthorityError> {
    prepare(path, content, mode)?;
    take_place(path, content)
}

/// Where a file's next content stands until it takes its place.
pub(crate) fn fresh_of(path: &Path) -> PathBuf {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    PathBuf::from(fresh)
}

/// Makes a file's next content durable beside it.
pub(crate) fn prepare(path: &Path, content: &[u8], mode: u32) -> Result<(), AuthorityError> {
    let failed = |source| AuthorityError::Write {
        path: path.to_owned(),
        source,
    };
    let fresh = fresh_of(path);
    // One that was left behind may have another mode.
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&fresh)
        .map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    sync_directory(path).map_err(failed)
}

/// Gives what [`prepare`] made its place.
pub(crate) fn take_place(path: &Path, content: &[u8]) -> Result<(), AuthorityError> {
    let renamed = match std::fs::rename(fresh_of(path), path) {
        // Who reads may have come first.
        Err(error) if error.kind() == io::ErrorKind::NotFound => match std::fs::read(path) {
            Ok(there) if there == content => Ok(()),
            _ => Err(error),
        },
        renamed => renamed,
    };
    let renamed = renamed.and_then(|()| sync_directory(path));
    renamed.map_err(|source| AuthorityError::Write {
        path: path.to_owned(),
        source,
    })
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all())
}
