//! What became of what was changed last, for whoever unmounts: the mount's process ends as nobody's child, so nobody has its exit status.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use packfs::files::FileError;
use rustix::fs::MemfdFlags;

/// A file in memory ([`crate::OUTCOME_ATTRIBUTE`]). It leaves nothing behind, however the process ends.
pub(crate) struct Outcome(File);

impl Outcome {
    /// None where the kernel has no memory for it: then the unmount says no more than that the process has ended.
    pub(crate) fn new() -> Option<Self> {
        let made = rustix::fs::memfd_create("redhare-outcome", MemfdFlags::CLOEXEC);
        made.ok().map(|file| Self(file.into()))
    }

    /// Where another process finds it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    pub(crate) fn say(&self, committed: &Result<(), FileError>) {
        let said = match committed {
            Ok(()) => crate::OUTCOME_DURABLE.to_owned(),
            Err(error) => error.to_string(),
        };
        if let Err(error) = (&self.0).write_all(said.as_bytes()) {
            tracing::warn!("what became of the last commit cannot be said to who unmounts: {error}");
        }
    }
}
