//! Who is at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The user whom this process acts as.
pub(crate) fn own_user() -> u32 {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// The user who bound the socket that this one is connected to, as the kernel knows it (`SO_PEERCRED`, `unix(7)`).
pub(crate) fn peer_user(socket: &impl AsFd) -> io::Result<u32> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("it is a few bytes");
    // SAFETY: the kernel writes at most `length` bytes to `credentials`, which is that long and lives through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(credentials.uid)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Does some work as another user, in this thread only, as root may.
#[cfg(test)]
pub(crate) fn as_user<T>(user: u32, work: impl FnOnce() -> T) -> T {
    let become_user = |user: u32| {
        // SAFETY: the raw call changes this thread's effective user only, and touches no memory.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
        let error = io::Error::last_os_error();
        assert_eq!(result, 0, "only root can be another user for a while: {error}");
    };
    become_user(user);
    let result = work();
    become_user(0);
    result
}
