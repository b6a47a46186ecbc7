//! Waking a reactor that sleeps in the kernel, from another thread.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// An eventfd that any thread may ring.
#[derive(Clone)]
pub(crate) struct WakeFd(Arc<OwnedFd>);

/// Takes ownership of a descriptor that the kernel has just returned.
pub(super) fn own(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "the kernel returned descriptor {fd}");
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

impl WakeFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(Arc::new(own(fd))))
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Never blocks: the counter cannot reach its limit by ones.
    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `one` is 8 readable bytes, which is what an eventfd takes.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}
