//! Files that are there whole or not at all: written without a name or beside their place, made durable, and put there.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat_with};
use rustix::io::Errno;

/// Names that are tried for a file, each of 64 random bits.
const NAMES: usize = 16;

/// A file that does not have its place yet. Nobody else reads it; dropped before, it is gone, and where the file system
/// has files without names, so it is if this process is killed.
pub(crate) struct Beside {
    file: File,
    /// The name that it has until it has its place, if it has any. Only this process has made a file of it.
    fresh: Option<PathBuf>,
    place: PathBuf,
}

impl Beside {
    /// For a place where nothing is, for its owner alone.
    ///
    /// # Errors
    /// The system's; also if something is there.
    pub(crate) fn new(place: &Path) -> io::Result<Self> {
        if std::fs::symlink_metadata(place).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        match unnamed(place) {
            Some(file) => Ok(Self {
                file,
                fresh: None,
                place: place.to_owned(),
            }),
            None => Self::named(place, 0o600),
        }
    }

    /// Under a name that nothing else has.
    fn named(place: &Path, mode: u32) -> io::Result<Self> {
        let name = place.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let mut failed = io::ErrorKind::AlreadyExists.into();
        for _ in 0..NAMES {
            let mut fresh = OsString::from(".");
            fresh.push(name);
            fresh.push(format!(
                ".{:016x}.new",
                RandomState::new().build_hasher().finish()
            ));
            let fresh = place.with_file_name(fresh);
            match options.open(&fresh) {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        fresh: Some(fresh),
                        place: place.to_owned(),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => failed = error,
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    /// What is written to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Makes it durable and gives it its place.
    ///
    /// # Errors
    /// The system's; also if something has come there meanwhile.
    pub(crate) fn put(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        match &self.fresh {
            None => linkat(
                CWD,
                descriptor(&self.file),
                CWD,
                &self.place,
                AtFlags::SYMLINK_FOLLOW,
            )?,
            Some(fresh) => {
                match renameat_with(CWD, fresh, CWD, &self.place, RenameFlags::NOREPLACE) {
                    // Not every file system can refuse to replace.
                    Err(Errno::INVAL | Errno::NOSYS) if std::fs::symlink_metadata(&self.place).is_err() => {
                        std::fs::rename(fresh, &self.place)?;
                    }
                    renamed => renamed?,
                }
                self.fresh = None;
            }
        }
        sync_directory(&self.place)
    }

    /// The same, in the place of what may be there.
    fn put_over(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if let Some(fresh) = &self.fresh {
            std::fs::rename(fresh, &self.place)?;
            self.fresh = None;
        }
        sync_directory(&self.place)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(fresh) = &self.fresh {
            drop(std::fs::remove_file(fresh));
        }
    }
}

fn directory_of(place: &Path) -> &Path {
    let directory = place.parent().filter(|parent| !parent.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// Where the kernel shows an open file, so that it can be given a name.
fn descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A file without a name in the same directory; none where there cannot be one, or none that would get a name.
fn unnamed(place: &Path) -> Option<File> {
    place.file_name()?;
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file: File = openat(CWD, directory_of(place), flags, Mode::RUSR | Mode::WUSR)
        .ok()?
        .into();
    descriptor(&file).symlink_metadata().is_ok().then_some(file)
}

/// As far as that can be done: the file is in its place already, and not every directory can be read or synced.
fn sync_directory(place: &Path) -> io::Result<()> {
    match File::open(directory_of(place)).and_then(|directory| directory.sync_all()) {
        Err(error)
            if [Errno::ACCESS, Errno::INVAL, Errno::NOTSUP]
                .iter()
                .any(|known| error.raw_os_error() == Some(known.raw_os_error())) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// Writes a new file, for its owner alone.
///
/// # Errors
/// The system's; also if something is there. Nothing is left then.
pub(crate) fn write_new(place: &Path, content: &[u8]) -> io::Result<()> {
    let beside = Beside::new(place)?;
    beside.file().write_all(content)?;
    beside.put()
}

/// Writes a file that others may read if `mode` says so, in the place of what may be there.
///
/// # Errors
/// The system's. What was there is there still then.
pub(crate) fn replace(place: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // One without a name could not take another's place.
    let beside = Beside::named(place, mode)?;
    beside.file().write_all(content)?;
    beside.put_over()
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
        let mode = |place: &Path| std::fs::metadata(place).unwrap().permissions().mode() & 0o7777;
        let place = directory.path().join("file");
        let with_name = |place: &Path| Beside::named(place, 0o600);
        for begin in [&Beside::new as &dyn Fn(&Path) -> io::Result<Beside>, &with_name] {
            let beside = begin(&place).unwrap();
            beside.file().write_all(b"half").unwrap();
            assert!(!place.exists());
            drop(beside);
            assert!(names().is_empty());
            // Two at once do not take each other's.
            let (first, second) = (begin(&place).unwrap(), begin(&place).unwrap());
            first.file().write_all(b"first").unwrap();
            second.file().write_all(b"second").unwrap();
            first.put().unwrap();
            assert_eq!(second.put().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&place).unwrap(), b"first");
            assert_eq!((names(), mode(&place)), (vec!["file".into()], 0o600));
            std::fs::remove_file(&place).unwrap();
        }
        write_new(&place, b"whole").unwrap();
        let error = write_new(&place, b"other").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        std::fs::remove_file(&place).unwrap();
        std::fs::write(&place, "as others are made").unwrap();
        let usual = mode(&place);
        for next in [&b"next"[..], b"one more"] {
            replace(&place, next, 0o644).unwrap();
            assert_eq!(std::fs::read(&place).unwrap(), next);
            assert_eq!(mode(&place), usual & 0o644);
        }
        assert_eq!(names(), ["file"]);
        // What is in the way of a name stays, and nothing is left beside it.
        let taken = directory.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        assert!(replace(&taken, b"", 0o600).is_err());
        assert_eq!(names(), ["file", "taken"]);
        assert!(Beside::new(Path::new("/")).is_err() && write_new(Path::new(""), b"").is_err());
    }
}
