//! The thread's clock and its place. `CLOCK_BOOTTIME` runs on through suspend, and no administrator sets it.

use foundation::Instant;

pub(crate) fn now() -> Instant {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for one timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    assert_eq!(result, 0, "every kernel with io_uring has CLOCK_BOOTTIME");
    Instant::from_nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// The calling thread's number.
pub(crate) fn id() -> u32 {
    // SAFETY: it takes nothing and changes nothing.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// Keeps the calling thread on one CPU.
pub(crate) fn pin_to_cpu(cpu: usize) -> std::io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(std::io::Error::other(format!("this system has no CPU {cpu}")));
    }
    // SAFETY: cpu_set_t is plain data for which all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index lies inside the set (checked above).
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` is readable and its size is given.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
