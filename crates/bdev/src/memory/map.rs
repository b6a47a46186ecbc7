//! Memory that several cores read and write without a lock, as they would a disk.

use std::io;

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
    pub(super) fn prefer_large_pages(&self) {
        // SAFETY: the range is this mapping, and the advice does not change what it holds.
        unsafe { libc::madvise(self.address.cast(), self.length, libc::MADV_HUGEPAGE) };
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

impl Drop for MemoryMap {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and no channel holds it any more (they share an Arc).
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}
