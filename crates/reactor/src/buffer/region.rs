//! One large piece of zeroed memory at a fixed address.
//!
//! It is a mapping of its own, taken by the kernel as it is touched, and begins where a large page may: a buffer then
//! lies in one physical piece, which the disk driver describes with one segment rather than one for each 4 KiB.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

/// Length of a large page in bytes, on x86-64 and on aarch64 with pages of 4 KiB.
const LARGE_PAGE_BYTES: usize = 2 << 20;

pub(super) struct Region {
    memory: NonNull<u8>,
    length_bytes: usize,
}

impl Region {
    /// Memory for `length_bytes`, a multiple of the large page.
    pub(super) fn new(length_bytes: usize) -> Self {
        assert!(
            length_bytes > 0 && length_bytes.is_multiple_of(LARGE_PAGE_BYTES),
            "a region is whole large pages"
        );
        let mapped_bytes = length_bytes + LARGE_PAGE_BYTES;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing of ours.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let Some(mapped) = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED) else {
            let layout = Layout::from_size_align(length_bytes, LARGE_PAGE_BYTES);
            handle_alloc_error(layout.expect("a region's layout is valid"))
        };
        let before = mapped.as_ptr().align_offset(LARGE_PAGE_BYTES);
        // SAFETY: the mapping is longer than the region by a large page, and `before` is less than one.
        let memory = unsafe { mapped.add(before) };
        // SAFETY: as above; this is the region's end, inside the mapping or at its end.
        let end = unsafe { memory.add(length_bytes) };
        unmap(mapped, before);
        unmap(end, LARGE_PAGE_BYTES - before);
        // SAFETY: the range is this mapping, and the advice does not change what it holds. Without large pages
        // everything works as well, so an error says nothing.
        unsafe { libc::madvise(memory.as_ptr().cast(), length_bytes, libc::MADV_HUGEPAGE) };
        Self { memory, length_bytes }
    }

    pub(super) fn pointer_at(&self, offset: usize) -> *mut u8 {
        assert!(
            offset <= self.length_bytes,
            "offset {offset} lies outside a region"
        );
        // SAFETY: the offset lies inside the region or one past its end (asserted above).
        unsafe { self.memory.as_ptr().add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        unmap(self.memory, self.length_bytes);
    }
}

/// Gives whole pages of a mapping back; nothing for a length of 0.
fn unmap(from: NonNull<u8>, length_bytes: usize) {
    if length_bytes > 0 {
        // SAFETY: the callers name pages of a mapping of theirs that nobody uses any more.
        unsafe { libc::munmap(from.as_ptr().cast(), length_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_zeroed_aligned_and_writable_to_its_end() {
        let regions: Vec<Region> = (0..4).map(|_| Region::new(2 * LARGE_PAGE_BYTES)).collect();
        for region in &regions {
            let first = region.pointer_at(0);
            assert_eq!(first.align_offset(LARGE_PAGE_BYTES), 0);
            // SAFETY: the last byte of a region that nobody else uses.
            unsafe {
                let last = first.add(2 * LARGE_PAGE_BYTES - 1);
                assert_eq!((*first, *last), (0, 0));
                *last = 7;
                assert_eq!(*region.pointer_at(2 * LARGE_PAGE_BYTES - 1), 7);
            }
        }
    }
}
