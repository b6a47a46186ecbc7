//! One large piece of zeroed memory at a fixed address.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

pub(super) struct Region {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Region {
    pub(super) fn new(length_bytes: usize, alignment: usize) -> Self {
        let layout = Layout::from_size_align(length_bytes, alignment).expect("a region's layout is valid");
        assert!(layout.size() > 0, "a region holds at least one byte");
        // SAFETY: the layout's size is not 0 (asserted above).
        let memory = unsafe { alloc_zeroed(layout) };
        match NonNull::new(memory) {
            Some(memory) => Self { memory, layout },
            None => handle_alloc_error(layout),
        }
    }

    pub(super) fn pointer_at(&self, offset: usize) -> *mut u8 {
        assert!(
            offset <= self.layout.size(),
            "offset {offset} lies outside a region"
        );
        // SAFETY: the offset lies inside the region or one past its end (asserted above).
        unsafe { self.memory.as_ptr().add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the memory came from alloc_zeroed with this layout and is freed once.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}
