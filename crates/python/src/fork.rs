//! Whether a process is still the one it was.
//!
//! A child of `fork` has the memory of its parent, but none of its threads: locks may be held for ever, and the ring is the
//! parent's. So everything here that belongs to a thread remembers its process, and the child touches none of it.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often this process came out of a fork, as far as Python has told.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// To be called in a child, before anything else of this module's users (`os.register_at_fork`).
pub(crate) fn happened() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A process, as this module tells them apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    /// The calling one.
    pub(crate) fn this() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is the calling one.
    pub(crate) fn is_this(self) -> bool {
        self == Self::this()
    }
}
