//! Hints for the processor's cache: what will be read soon begins to come while something else is done.

/// Begins to bring the line that holds the beginning of `value` into the cache. Never waits, reads nothing and changes nothing;
/// on a processor without such a hint, does nothing.
#[inline(always)]
pub fn fetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is that of a reference, and a hint accesses nothing, whatever its address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
