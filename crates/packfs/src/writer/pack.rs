//! Putting content back to back into segments.
//!
//! Content is collected in a buffer of up to 1 MiB and written when that is full; a commit rounds up to whole
//! pages and goes on behind, so that no block is written twice. A file that fits into a stripe unit never
//! straddles two.

use foundation::ByteCount;
use foundation::checksum::crc32c;
use reactor::BufferMut;
use reactor::buffer::BUFFER_BYTES_MAX;

use super::outbox::Outbox;
use crate::error::WriteError;
use crate::format::PAGE_BYTES_U64;
use crate::format::extent::Extent;
use crate::format::superblock::Parameters;
use crate::io::Medium;
use crate::space::{Segment, Space};

/// From this length on, content begins at a page, so that reading it touches no block more than it must.
const ALIGNED_FROM_BYTES: u64 = 32 << 10;

struct Chunk {
    address: u64,
    buffer: BufferMut,
    used: usize,
}

impl Chunk {
    fn position(&self) -> u64 {
        self.address + self.used as u64
    }

    fn room(&self) -> u64 {
        (self.buffer.len() - self.used) as u64
    }

    /// Fills with zeros up to a multiple of `alignment` (of the address), or to the end.
    fn pad(&mut self, alignment: u64) {
        let target = self.position().next_multiple_of(alignment) - self.address;
        let target = (target as usize).min(self.buffer.len());
        self.buffer[self.used..target].fill(0);
        self.used = target;
    }

    fn put(&mut self, bytes: &[u8]) -> Extent {
        let address = self.position();
        self.buffer[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
        Extent {
            address,
            length: u32::try_from(bytes.len()).expect("extents are bounded by the format"),
            checksum: crc32c(bytes),
        }
    }
}

pub(super) struct Packer {
    medium: Medium,
    outbox: Outbox,
    parameters: Parameters,
    /// The segment being written, and the byte address where it goes on.
    open: Option<(u64, u64)>,
    chunk: Option<Chunk>,
}

impl Packer {
    pub(super) fn new(
        medium: Medium,
        outbox: Outbox,
        parameters: Parameters,
        open: Option<(u64, Segment)>,
    ) -> Self {
        let open = open.map(|(start, segment)| (start, (start + segment.filled) * PAGE_BYTES_U64));
        Self {
            medium,
            outbox,
            parameters,
            open,
            chunk: None,
        }
    }

    /// First page of the segment being written.
    pub(super) fn open_segment(&self) -> Option<u64> {
        self.open.map(|(start, _)| start)
    }

    /// What fits into the segment being written, in bytes; of the last page that was begun nothing.
    pub(super) fn room_in_segment(&self) -> u64 {
        let Some((start, position)) = self.open else {
            return 0;
        };
        let position = self.chunk.as_ref().map_or(position, Chunk::position);
        let end = start * PAGE_BYTES_U64 + u64::from(self.parameters.segment_bytes);
        end.saturating_sub(position.next_multiple_of(PAGE_BYTES_U64))
    }

    /// Packs content and gives its extents. Leaves `keep` pages of the volume free.
    pub(super) async fn pack(
        &mut self,
        space: &mut Space,
        bytes: &[u8],
        keep: u64,
    ) -> Result<Vec<Extent>, WriteError> {
        let mut extents = Vec::new();
        let result = self.pack_into(space, bytes, keep, &mut extents).await;
        match result {
            Ok(()) => Ok(extents),
            Err(error) => {
                for extent in extents {
                    let known = space.remove_live(extent.address, u64::from(extent.length));
                    assert!(known, "what was just packed lies in a segment");
                }
                Err(error)
            }
        }
    }

    async fn pack_into(
        &mut self,
        space: &mut Space,
        bytes: &[u8],
        keep: u64,
        extents: &mut Vec<Extent>,
    ) -> Result<(), WriteError> {
        let unit = u64::from(self.parameters.stripe_unit_bytes);
        let longest = u64::from(self.parameters.extent_bytes_max);
        let total = bytes.len() as u64;
        let mut rest = bytes;
        while !rest.is_empty() {
            let chunk = self.chunk(space, rest.len() as u64, keep).await?;
            if total >= ALIGNED_FROM_BYTES || total.is_multiple_of(PAGE_BYTES_U64) {
                chunk.pad(PAGE_BYTES_U64);
            }
            let position = chunk.position();
            if total <= unit && position % unit + total > unit {
                chunk.pad(unit);
            }
            let room = chunk.room();
            let length = match total <= unit {
                // Chunks end at stripe units, so it fits whole or not at all.
                true if room < total => 0,
                true => total,
                false => room.min(rest.len() as u64).min(longest),
            };
            if length == 0 {
                self.finish_chunk(space).await;
                continue;
            }
            let (head, tail) = rest.split_at(length as usize);
            let extent = chunk.put(head);
            let (segment, _) = self.open.expect("a chunk lies in the open segment");
            space.add_live(segment, length);
            extents.push(extent);
            rest = tail;
        }
        Ok(())
    }

    /// The chunk that is being filled, a new one if need be.
    async fn chunk(&mut self, space: &mut Space, wanted: u64, keep: u64) -> Result<&mut Chunk, WriteError> {
        if self.chunk.as_ref().is_some_and(|chunk| chunk.room() == 0) {
            self.finish_chunk(space).await;
        }
        if self.chunk.is_none() {
            if self.outbox.is_full() {
                return Err(WriteError::DisksFull);
            }
            let (start, position) = match self.open {
                Some(open) => open,
                None => self.take_segment(space, wanted, keep)?,
            };
            let segment_end = start * PAGE_BYTES_U64 + u64::from(self.parameters.segment_bytes);
            let unit = u64::from(self.parameters.stripe_unit_bytes);
            let end = ((position + BUFFER_BYTES_MAX as u64) / unit * unit).min(segment_end);
            let length = usize::try_from(end - position).expect("a chunk fits into a buffer");
            let buffer = self.medium.pool().allocate(length).await?;
            self.open = Some((start, position));
            self.chunk = Some(Chunk {
                address: position,
                buffer,
                used: 0,
            });
        }
        Ok(self.chunk.as_mut().expect("there is a chunk now"))
    }

    fn take_segment(&mut self, space: &mut Space, wanted: u64, keep: u64) -> Result<(u64, u64), WriteError> {
        let segment_bytes = u64::from(self.parameters.segment_bytes);
        let Some(start) = space.take_segment(keep) else {
            let needed = wanted.next_multiple_of(segment_bytes) + keep * PAGE_BYTES_U64;
            let missing = needed.saturating_sub(space.free_pages() * PAGE_BYTES_U64);
            return Err(WriteError::NoSpace {
                // Enough pages may be free, but not side by side.
                missing: ByteCount(missing.max(wanted)),
            });
        };
        Ok((start, start * PAGE_BYTES_U64))
    }

    /// Bytes that have not been sent; `None` if they have.
    pub(super) fn find(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        let chunk = self.chunk.as_ref()?;
        let from = usize::try_from(address.checked_sub(chunk.address)?).ok()?;
        let to = from.checked_add(usize::try_from(length).ok()?)?;
        chunk.buffer[..chunk.used].get(from..to).map(<[u8]>::to_vec)
    }

    /// Sends what is in the chunk, rounded up to whole pages.
    pub(super) async fn finish_chunk(&mut self, space: &mut Space) {
        let Some(mut chunk) = self.chunk.take() else {
            return;
        };
        let (start, _) = self.open.expect("a chunk lies in the open segment");
        chunk.pad(PAGE_BYTES_U64);
        let position = chunk.position();
        let segment_end = start * PAGE_BYTES_U64 + u64::from(self.parameters.segment_bytes);
        space.set_filled(start, position / PAGE_BYTES_U64 - start);
        self.open = (position < segment_end).then_some((start, position));
        if chunk.used > 0 {
            let buffer = chunk.buffer.freeze().slice(0..chunk.used);
            self.outbox.send(chunk.address, buffer).await;
        }
    }
}
