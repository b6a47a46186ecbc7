//! Memory of whole words that several processes map, and a mark in it that the kernel sets when the thread that made it ends.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Set by the kernel in a robust futex whose owner has ended (`FUTEX_OWNER_DIED`, `futex(2)`).
const OWNER_DIED: u32 = 0x4000_0000;
/// The owner's thread in a futex word.
const OWNER: u32 = 0x3fff_ffff;

/// Words that a [`mark_life`](SharedWords::mark_life) takes.
pub(crate) const LIFE_WORDS: usize = size_of::<libc::pthread_mutex_t>().div_ceil(8);

/// A shared mapping of 64-bit words.
pub(crate) struct SharedWords {
    first: NonNull<AtomicU64>,
    count: usize,
    descriptor: OwnedFd,
    writable: bool,
}

// SAFETY: the words are only reached as atomics, which any thread may use, and the mapping lives as long as this value.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// What the threads' library answers: an error's number, or 0.
fn answered(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

impl SharedWords {
    /// Makes a file in memory of so many words, all zero, whose length nobody can change.
    pub(crate) fn create(name: &CStr, count: usize) -> io::Result<Self> {
        // SAFETY: the name ends with a zero byte; the result is a new descriptor or an error.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        // SAFETY: it is new, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(checked(raw)?) };
        let length = i64::try_from(count * 8).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the call changes only the file's length.
        checked(unsafe { libc::ftruncate(descriptor.as_raw_fd(), length) })?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the call takes a number.
        checked(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
        Self::map(descriptor, count, true)
    }

    /// Maps another process's words, to look at. Only a file in memory whose length cannot change is taken: with any other
    /// a look could end this process.
    pub(crate) fn open(descriptor: OwnedFd) -> io::Result<Self> {
        // SAFETY: the call takes no memory.
        let seals = checked(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) })?;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::other("it is not a file in memory of fixed length"));
        }
        let length = std::fs::File::from(descriptor.try_clone()?).metadata()?.len();
        let count = usize::try_from(length / 8).map_err(|_| io::ErrorKind::InvalidInput)?;
        Self::map(descriptor, count, false)
    }

    fn map(descriptor: OwnedFd, count: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours. Its pages stay, since the
        // file is sealed against shrinking.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * 8,
                protection,
                libc::MAP_SHARED,
                descriptor.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            first: NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            count,
            descriptor,
            writable,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// A word of a mapping that may be written.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(self.writable, "another process's words are only looked at");
        self.look(at)
    }

    /// A word to load only: a store to it would end the process if the mapping is another's.
    fn look(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.count, "word {at} of {}", self.count);
        // SAFETY: the index lies inside the mapping, which is aligned to a page, stays as long as `self`, and is only
        // ever reached through atomics. Loads of 8 bytes from memory that may only be read are sound on the
        // platforms this runs on ("Atomic accesses to read-only memory", `std::sync::atomic`).
        unsafe { self.first.add(at).as_ref() }
    }

    pub(crate) fn load(&self, at: usize) -> u64 {
        self.look(at).load(Ordering::Acquire)
    }

    /// Marks the calling thread as alive in [`LIFE_WORDS`] words from `at`, until it ends, however it ends. The mapping
    /// then stays for good, since the kernel looks at it at the thread's end.
    pub(crate) fn mark_life(self, at: usize) -> io::Result<&'static Self> {
        let words: &'static Self = Box::leak(Box::new(self));
        assert!(at + LIFE_WORDS <= words.count && words.writable);
        let mutex: *mut libc::pthread_mutex_t = words.word(at).as_ptr().cast();
        // SAFETY: attributes and mutex are valid places for what is initialised there before it is used; the mutex lies
        // in zeroed memory that is aligned to 8 bytes and never unmapped or moved.
        unsafe {
            let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            let attributes = attributes.as_mut_ptr();
            answered(libc::pthread_mutexattr_init(attributes))?;
            answered(libc::pthread_mutexattr_setpshared(
                attributes,
                libc::PTHREAD_PROCESS_SHARED,
            ))?;
            answered(libc::pthread_mutexattr_setrobust(
                attributes,
                libc::PTHREAD_MUTEX_ROBUST,
            ))?;
            answered(libc::pthread_mutex_init(mutex, attributes))?;
            answered(libc::pthread_mutexattr_destroy(attributes))?;
            answered(libc::pthread_mutex_lock(mutex))?;
        }
        // That the futex comes first in a mutex is not promised by any standard, so it is looked at.
        if words.life_word(at) & OWNER == super::thread_id() {
            Ok(words)
        } else {
            Err(io::Error::other("this C library keeps its locks in another way"))
        }
    }

    fn life_word(&self, at: usize) -> u32 {
        let word = std::ptr::from_ref(self.look(at)).cast::<AtomicU32>();
        // SAFETY: the first half of a word of the mapping, which all sides use as a 32-bit atomic only.
        unsafe { &*word }.load(Ordering::Acquire)
    }

    /// Whether the thread that marked its life at `at` has not ended.
    pub(crate) fn is_alive(&self, at: usize) -> bool {
        let word = self.life_word(at);
        word & OWNER_DIED == 0 && word & OWNER != 0
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nothing borrowed from `self` outlives it.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.count * 8) };
    }
}
