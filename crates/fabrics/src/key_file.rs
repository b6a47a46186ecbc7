//! Files with keys in them, which nobody else may read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use protocols::tls::{ConfiguredPsk, PskError};
use zeroize::Zeroizing;

/// A key file that is longer holds something else.
const BYTES_MAX: u64 = 4096;
/// Permissions that a key file may not give: anything for its group and others.
const OTHERS: u32 = 0o077;

/// Why a key was not read. No text has anything of the file's content in it.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The system does not let us.
    #[error("file {}: {source}; a key file is one that this program can read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "file {}: it is no file of at most {BYTES_MAX} bytes; name the file with the key",
        path.display()
    )]
    NoKeyFile {
        /// The file.
        path: PathBuf,
    },
    /// Others may use it.
    #[error(
        "file {}: its mode is {mode:04o}, so that others can use it; chmod 0600 it",
        path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds no pre-shared key.
    #[error("file {}, is no pre-shared key for TLS: {source}", path.display())]
    NoPsk {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: PskError,
    },
}

impl KeyFileError {
    /// The number by which programs know such an error.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Unreadable { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::NoKeyFile { .. } | Self::NoPsk { .. } => libc::EINVAL,
            Self::Open { .. } => libc::EPERM,
        }
    }
}

/// Opens a key file that nobody else can read. Blocks as long as the file system does.
pub(crate) fn open(path: &Path) -> Result<File, KeyFileError> {
    let unreadable = |source| KeyFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    // Of what was opened: the name may be another file's by now.
    let metadata = file.metadata().map_err(unreadable)?;
    let path = path.to_owned();
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        return Err(KeyFileError::NoKeyFile { path });
    }
    if metadata.mode() & OTHERS != 0 {
        let mode = metadata.mode() & 0o7777;
        return Err(KeyFileError::Open { path, mode });
    }
    Ok(file)
}

/// What such a file holds; wiped when it goes.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let file = open(path)?;
    // Room for all of it from the start, so that growing leaves no copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(2 * BYTES_MAX as usize));
    let read = file.take(BYTES_MAX).read_to_end(&mut text);
    read.map_err(|source| KeyFileError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    Ok(text)
}

/// The pre-shared key in a file. Blocks as long as the file system does.
///
/// # Errors
/// See [`KeyFileError`].
pub fn read_psk(path: &Path) -> Result<ConfiguredPsk, KeyFileError> {
    ConfiguredPsk::parse(&read(path)?).map_err(|source| KeyFileError::NoPsk {
        path: path.to_owned(),
        source,
    })
}
