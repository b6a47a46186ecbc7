//! Receive buffers that all connections of a ring share: the kernel picks one when bytes arrive, so an
//! idle connection holds none.

use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::ring::Ring;

/// The only buffer group this crate registers.
pub(super) const GROUP: u16 = 0;

/// Page-aligned memory from the kernel, zeroed.
struct Mapping {
    address: *mut u8,
    length: usize,
}

impl Mapping {
    fn new(length: usize) -> io::Result<Self> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing of ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
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
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `new` and nothing points into it any more: the ring that
        // knew it is gone (fields of `Ring` drop in order, the ring first).
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

pub(super) struct ReceiveRing {
    entries: Mapping,
    memory: Mapping,
    count: u16,
    buffer_bytes: usize,
    tail: std::cell::Cell<u16>,
}

impl ReceiveRing {
    /// `count` must be a power of two.
    pub(super) fn new(count: u16, buffer_bytes: usize) -> io::Result<Self> {
        assert!(
            count.is_power_of_two(),
            "the kernel wants a power of two of receive buffers, not {count}"
        );
        let entries = Mapping::new(usize::from(count) * size_of::<BufRingEntry>())?;
        let memory = Mapping::new(usize::from(count) * buffer_bytes)?;
        let ring = Self {
            entries,
            memory,
            count,
            buffer_bytes,
            tail: std::cell::Cell::new(0),
        };
        for id in 0..count {
            ring.give_back(id);
        }
        Ok(ring)
    }

    pub(super) fn register(&self, uring: &io_uring::IoUring) -> io::Result<()> {
        let address = self.entries.address as u64;
        // SAFETY: the entries are page aligned, `count` of them are mapped, and both mappings outlive
        // the ring (see `Mapping::drop`).
        unsafe {
            uring
                .submitter()
                .register_buf_ring_with_flags(address, self.count, GROUP, 0)
        }
    }

    /// Lets the kernel use buffer `id` again.
    pub(super) fn give_back(&self, id: u16) {
        let tail = self.tail.get();
        let base = self.entries.address.cast::<BufRingEntry>();
        let index = usize::from(tail & (self.count - 1));
        // SAFETY: the index lies below `count`, so the entry is mapped; the kernel does not read it
        // before the tail moves past it.
        let entry = unsafe { &mut *base.add(index) };
        entry.set_addr(self.memory.address as u64 + u64::from(id) * self.buffer_bytes as u64);
        entry.set_len(u32::try_from(self.buffer_bytes).expect("receive buffers are small"));
        entry.set_bid(id);
        let tail = tail.wrapping_add(1);
        self.tail.set(tail);
        // SAFETY: the tail lies in the first entry's reserved field, which is mapped and aligned; the
        // kernel reads it atomically.
        let published = unsafe { &*BufRingEntry::tail(base.cast_const()).cast::<AtomicU16>() };
        published.store(tail, Ordering::Release);
    }

    fn bytes(&self, id: u16, length: usize) -> &[u8] {
        assert!(
            id < self.count && length <= self.buffer_bytes,
            "the kernel named buffer {id} with {length} bytes"
        );
        // SAFETY: the range lies inside the mapping (asserted), which starts zeroed; the kernel does
        // not write to a buffer that it has handed out until it is given back.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.address.add(usize::from(id) * self.buffer_bytes),
                length,
            )
        }
    }
}

/// Received bytes in a shared buffer, which goes back to the kernel when this is dropped. Hold it briefly.
pub(crate) struct ReceiveChunk {
    ring: Rc<Ring>,
    id: u16,
    length: usize,
}

impl ReceiveChunk {
    pub(super) fn new(ring: Rc<Ring>, id: u16, length: usize) -> Self {
        Self { ring, id, length }
    }
}

impl Deref for ReceiveChunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.ring.receive().bytes(self.id, self.length)
    }
}

impl Drop for ReceiveChunk {
    fn drop(&mut self) {
        self.ring.receive().give_back(self.id);
    }
}
