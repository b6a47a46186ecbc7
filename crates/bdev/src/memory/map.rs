//! Memory that several cores read and write without a lock, as they would a disk.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// A line of the cache.
pub(super) const LINE_BYTES: usize = 64;

/// A private mapping. Rust never holds a reference into it: bytes are copied in and out.
pub(super) struct MemoryMap {
    address: *mut u8,
    length: usize,
}

// SAFETY: the address stays valid until drop, and all access is by bounded copies through `&self`. Two cores
// that write the same bytes at once leave either's, or a mixture: what overlapping commands do on any disk
// (NVMe Base 2.0, 2.1.4.2: atomicity is the host's to ask for). No reference to the bytes ever exists.
unsafe impl Send for MemoryMap {}
// SAFETY: as above.
unsafe impl Sync for MemoryMap {}

impl MemoryMap {
    pub(super) fn new(length: usize) -> io::Result<Self> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing of ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            address: address.cast(),
            length,
        })
    }

    /// Asks the kernel for large pages, for memory that will all be used: random access then costs fewer page
    /// table walks. Without them everything works as well, so an error says nothing.
    pub(super) fn prefer_large_pages(&self, length: usize) {
        // SAFETY: the range lies in this mapping, and the advice does not change what it holds.
        unsafe { libc::madvise(self.at(0, length).cast(), length, libc::MADV_HUGEPAGE) };
    }

    /// The address of a range that lies inside.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "{length} bytes at {offset} lie outside the memory"
        );
        // SAFETY: the range lies inside the mapping (asserted).
        unsafe { self.address.add(offset) }
    }

    /// Begins to bring so many lines from `offset` on into the cache.
    pub(super) fn fetch(&self, offset: usize, lines: usize) {
        let first = self.at(offset, (lines - 1) * LINE_BYTES + 1);
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines {
            // SAFETY: the line's first byte lies inside the mapping (`at` has asserted it), and a hint reads and changes nothing.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                    first.add(line * LINE_BYTES).cast(),
                )
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = first;
    }

    /// The address of a range.
    pub(super) fn address(&self, offset: usize, length: usize) -> NonNull<u8> {
        NonNull::new(self.at(offset, length)).expect("no mapping begins at zero")
    }

    /// Copies one part of the memory to another.
    pub(super) fn copy(&self, from: usize, to: usize, length: usize) {
        let (from, to) = (self.at(from, length), self.at(to, length));
        // SAFETY: both ranges lie inside the mapping; `copy` allows them to overlap.
        unsafe { std::ptr::copy(from, to, length) }
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: source and destination are valid for the length and cannot overlap: nobody else has a
        // reference into the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        let into = self.at(offset, from.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
    }

    /// As [`MemoryMap::write`], for what will hardly be read soon: past the cache, where the processor can. To write into a line
    /// it would fetch the line first, which takes longer than all else about it (docs/benchmarks.md).
    pub(super) fn write_past_cache(&self, offset: usize, from: &[u8]) {
        let into = self.at(offset, from.len());
        #[cfg(target_arch = "x86_64")]
        if into.addr().is_multiple_of(LINE_BYTES) && from.len().is_multiple_of(LINE_BYTES) {
            // SAFETY: both ranges are valid for the length and cannot overlap, as in `read`; `into` is aligned to lines, and
            // whole lines are asked for.
            return unsafe { stream::copy(from.as_ptr(), into, from.len()) };
        }
        self.write(offset, from);
    }

    pub(super) fn zero(&self, offset: usize, length: usize) {
        let into = self.at(offset, length);
        // SAFETY: the range lies inside the mapping.
        unsafe { std::ptr::write_bytes(into, 0, length) }
    }

    pub(super) fn equals(&self, offset: usize, with: &[u8]) -> bool {
        let mut part = [0; 4096];
        with.chunks(part.len()).enumerate().all(|(index, chunk)| {
            let own = &mut part[..chunk.len()];
            self.read(offset + index * 4096, own);
            own == chunk
        })
    }
}

/// Stores that go past the cache.
#[cfg(target_arch = "x86_64")]
mod stream {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm512_loadu_si512, _mm512_stream_si512,
    };

    use super::LINE_BYTES;

    /// Copies, and has it in memory before all that is stored after it.
    ///
    /// # Safety
    /// Both ranges are valid for the length and do not overlap. `into` and `length` are multiples of [`LINE_BYTES`].
    pub(super) unsafe fn copy(from: *const u8, into: *mut u8, length: usize) {
        // SAFETY: as the caller's; the processor has what is called.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                whole_lines(from, into, length);
            } else {
                quarters_of_lines(from, into, length);
            }
        }
        // SAFETY: only orders stores: these before all that follow, which they would not be by themselves.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    /// As [`copy`], on a processor with AVX-512.
    #[target_feature(enable = "avx512f")]
    unsafe fn whole_lines(from: *const u8, into: *mut u8, length: usize) {
        for line in (0..length).step_by(LINE_BYTES) {
            // SAFETY: the line lies inside both ranges, `into` is aligned to lines, `from` may lie anywhere (`loadu`).
            unsafe { _mm512_stream_si512(into.add(line).cast(), _mm512_loadu_si512(from.add(line).cast())) }
        }
    }

    /// # Safety
    /// As [`copy`]. SSE2 is part of every x86-64.
    unsafe fn quarters_of_lines(from: *const u8, into: *mut u8, length: usize) {
        const LANES: usize = LINE_BYTES / size_of::<__m128i>();
        for line in (0..length).step_by(LINE_BYTES) {
            // SAFETY: as in `whole_lines`.
            unsafe {
                let (from, into) = (from.add(line).cast::<__m128i>(), into.add(line).cast::<__m128i>());
                let lanes: [__m128i; LANES] = std::array::from_fn(|lane| _mm_loadu_si128(from.add(lane)));
                for (lane, bytes) in lanes.into_iter().enumerate() {
                    _mm_stream_si128(into.add(lane), bytes);
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[repr(align(64))]
        struct Lines([u8; 4 * LINE_BYTES]);

        #[test]
        fn either_way_copies_what_it_is_told_and_nothing_beside() {
            let from: Vec<u8> = (0..4 * LINE_BYTES).map(|at| at as u8 | 1).collect();
            for whole_lines in [true, false] {
                let mut into = Lines([0; 4 * LINE_BYTES]);
                let (first, place) = (from[3..].as_ptr(), into.0[LINE_BYTES..].as_mut_ptr());
                // SAFETY: two lines from an odd place of `from`, into the two in the middle of `into`.
                unsafe {
                    match whole_lines {
                        true => copy(first, place, 2 * LINE_BYTES),
                        false => quarters_of_lines(first, place, 2 * LINE_BYTES),
                    }
                };
                assert_eq!(into.0[LINE_BYTES..3 * LINE_BYTES], from[3..3 + 2 * LINE_BYTES]);
                assert_eq!(into.0[..LINE_BYTES], [0; LINE_BYTES]);
                assert_eq!(into.0[3 * LINE_BYTES..], [0; LINE_BYTES]);
            }
        }
    }
}

impl Drop for MemoryMap {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and no channel holds it any more (they share an Arc).
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

/// Many numbers, all zero at first, that cores share. Memory is taken as they are used.
pub(super) struct NumberMap {
    map: MemoryMap,
    count: usize,
}

impl NumberMap {
    pub(super) fn new(count: usize) -> io::Result<Self> {
        Ok(Self {
            map: MemoryMap::new((count * size_of::<AtomicU32>()).max(1))?,
            count,
        })
    }

    /// Begins to bring a number into the cache.
    pub(super) fn fetch(&self, index: u32) {
        self.map.fetch(index as usize * size_of::<AtomicU32>(), 1);
    }

    /// A number.
    pub(super) fn at(&self, index: u32) -> &AtomicU32 {
        let index = index as usize;
        assert!(index < self.count, "number {index} of {}", self.count);
        let address = self
            .map
            .at(index * size_of::<AtomicU32>(), size_of::<AtomicU32>());
        // SAFETY: the number lies inside the mapping (asserted), which is aligned to pages, zeroed, lives as long as
        // `self`, and is reached as atomics only.
        unsafe { &*address.cast::<AtomicU32>() }
    }
}
