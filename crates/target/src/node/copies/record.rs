//! The record of a copy in its two places at the beginning of the copy's blob, written in turn (`docs/formats/chunk-record.md`).

use bdev::{Channel, ChannelExt, IoError};
use blobstore::{BlobId, Blobstore};
use foundation::Lba;
use foundation::checksum::Crc32c;
use reactor::BufferPool;
use volume::{ChunkId, ChunkRecord, RecordDelta};

use super::journal::{Contents, Mark};
use super::{BLOCK_BYTES, Copy, pages_of};

/// One place of the record, in blocks.
const SLOT_BLOCKS: u64 = 16;
/// Before the chunk's own blocks: two places of the record.
pub(in crate::node) const HEAD_BLOCKS: u64 = 2 * SLOT_BLOCKS;
/// Before the record in its place: magic, generation, length, CRC32C of all that.
const SLOT_HEAD_BYTES: usize = 28;
/// The longest record that fits its place.
pub(super) const RECORD_BYTES_MAX: usize = SLOT_BLOCKS as usize * BLOCK_BYTES - SLOT_HEAD_BYTES;

/// What a place says beside the record. A program that would not keep a copy's checksums must not take it for one of its own, nor one
/// that does not look for later marks in the journal of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) has_sums: bool,
    pub(super) is_journaled: bool,
}

impl Kind {
    fn magic(self) -> [u8; 8] {
        match (self.has_sums, self.is_journaled) {
            (false, false) => *b"RHCPSLT1",
            (true, false) => *b"RHCPSLT2",
            (false, true) => *b"RHCPSLT3",
            (true, true) => *b"RHCPSLT4",
        }
    }

    fn of(magic: &[u8]) -> Option<Self> {
        let kind = |has_sums, is_journaled| Self {
            has_sums,
            is_journaled,
        };
        let all = [
            kind(false, false),
            kind(true, false),
            kind(false, true),
            kind(true, true),
        ];
        all.into_iter().find(|kind| kind.magic() == magic)
    }
}

/// What one of the places holds.
pub(in crate::node) struct Slot {
    pub(super) generation: u64,
    pub(in crate::node) record: ChunkRecord,
    pub(super) kind: Kind,
    /// Something is in the other place that cannot be read: it may have been newer. Most likely it was torn when power failed, and
    /// nothing was built on it yet; but nothing tells that from a page that has rotted.
    pub(super) may_be_old: bool,
}

impl Slot {
    /// Whether the copy has checksums.
    pub(in crate::node) fn has_sums(&self) -> bool {
        self.kind.has_sums
    }

    /// Whether regions may have been marked of which nothing is left.
    pub(super) fn may_lack_marks(&self, journal: &Contents) -> bool {
        self.may_be_old || journal.is_doubtful && self.kind.is_journaled
    }

    /// Takes in what the journal has of it, or may have; whether that is anything.
    pub(super) fn take_marks(&mut self, journal: &Contents, blob: BlobId) -> bool {
        let may_lack_marks = self.may_lack_marks(journal);
        if !self.kind.is_journaled && !may_lack_marks {
            return false;
        }
        let mut marks: Vec<Mark> = journal.after(blob, self.generation).collect();
        if may_lack_marks {
            // More marks than there were cost time, fewer would cost data.
            let epoch = self.record.sealed;
            marks.extend((0..self.record.geometry.regions()).map(|region| Mark { region, epoch }));
        }
        // What the disk says is not taken for a region that the chunk has not.
        marks.retain(|mark| mark.region < self.record.geometry.regions());
        for &Mark { region, epoch } in &marks {
            let known = self.record.written_in.get(&region).copied();
            let epoch = known.map_or(epoch, |known| known.max(epoch));
            self.record.apply(&RecordDelta::Mark { region, epoch });
        }
        !marks.is_empty()
    }
}

/// The newer of the records in a copy's two places.
pub(in crate::node) async fn newest_record(
    channel: &dyn Channel,
    chunk: ChunkId,
    size_pages: u64,
) -> Result<Slot, String> {
    let mut best: Option<Slot> = None;
    let mut why = "neither place holds one".to_owned();
    let mut is_any_unread = false;
    for slot in 0..2 {
        match read_slot(channel, slot).await {
            Ok(None) => {}
            Ok(Some(found)) if found.record.chunk != chunk => {
                why = format!("it is that of {:?}", found.record.chunk);
                is_any_unread = true;
            }
            Ok(Some(found)) if size_pages < pages_of(&found.record, found.kind.has_sums) => {
                why = format!("its blob has {size_pages} pages, too few for it");
                is_any_unread = true;
            }
            Ok(Some(found)) => {
                if best
                    .as_ref()
                    .is_none_or(|newest| found.generation > newest.generation)
                {
                    best = Some(found);
                }
            }
            Err(error) => {
                why = error;
                is_any_unread = true;
            }
        }
    }
    let mut newest = best.ok_or_else(|| why.clone())?;
    if is_any_unread {
        newest.may_be_old = true;
        tracing::warn!(
            ?chunk,
            why,
            "one of a copy's records cannot be read and may have been the newer: all its regions count as about to be written, and \
             are made equal"
        );
    }
    Ok(newest)
}

/// What a place holds; none if nothing was ever written there.
async fn read_slot(channel: &dyn Channel, slot: u64) -> Result<Option<Slot>, String> {
    let buffer = BufferPool::current()
        .allocate(SLOT_BLOCKS as usize * BLOCK_BYTES)
        .await
        .map_err(|error| error.to_string())?;
    let (result, bytes) = channel.read(Lba(slot * SLOT_BLOCKS), buffer).await;
    result.map_err(|error| error.to_string())?;
    decode_slot(&bytes, slot)
}

/// What a place holds, from its bytes.
pub(super) fn decode_slot(bytes: &[u8], slot: u64) -> Result<Option<Slot>, String> {
    let Some(kind) = Kind::of(&bytes[..8]) else {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        return Err(format!("place {slot} begins with {:02x?}", &bytes[..8]));
    };
    let number = |at: usize| {
        let mut array = [0; 8];
        array.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(array)
    };
    let (generation, length) = (number(8), number(16));
    let body = usize::try_from(length)
        .ok()
        .and_then(|length| bytes.get(SLOT_HEAD_BYTES..SLOT_HEAD_BYTES.checked_add(length)?));
    let body = body.ok_or_else(|| format!("place {slot} claims {length} bytes"))?;
    let mut sum = [0; 4];
    sum.copy_from_slice(&bytes[24..28]);
    if slot_sum(&bytes[..24], body) != u32::from_le_bytes(sum) {
        return Err(format!("the checksum of place {slot} does not match"));
    }
    let record = ChunkRecord::decode(body).map_err(|error| error.to_string())?;
    Ok(Some(Slot {
        generation,
        record,
        kind,
        may_be_old: false,
    }))
}

/// A place that holds a record, in bytes that were zeros and are long enough.
pub(super) fn encode_slot(place: &mut [u8], kind: Kind, generation: u64, record: &[u8]) {
    place[..8].copy_from_slice(&kind.magic());
    place[8..16].copy_from_slice(&generation.to_le_bytes());
    place[16..24].copy_from_slice(&(record.len() as u64).to_le_bytes());
    let sum = slot_sum(&place[..24], record);
    place[24..28].copy_from_slice(&sum.to_le_bytes());
    place[SLOT_HEAD_BYTES..SLOT_HEAD_BYTES + record.len()].copy_from_slice(record);
}

fn slot_sum(head: &[u8], body: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    sum.update(head);
    sum.update(body);
    sum.value()
}

/// Writes the record to the older of its places. Durable after a flush. With `is_journaled` later marks may be in the disk's journal.
pub(super) async fn write_slot(copy: &Copy, is_journaled: bool) -> Result<(), IoError> {
    let generation = copy.generation.get() + 1;
    copy.generation.set(generation);
    let body = copy.record.borrow().encode();
    let length = (SLOT_HEAD_BYTES + body.len()).next_multiple_of(BLOCK_BYTES);
    if length > SLOT_BLOCKS as usize * BLOCK_BYTES {
        return Err(IoError::NoSpace);
    }
    copy.record_pages.set((length / BLOCK_BYTES) as u64);
    let mut buffer = BufferPool::current()
        .allocate(length)
        .await
        .map_err(|_| IoError::Exhausted)?;
    buffer.fill(0);
    let kind = Kind {
        has_sums: copy.sums.is_some(),
        is_journaled,
    };
    encode_slot(&mut buffer, kind, generation, &body);
    copy.is_journaled.set(is_journaled);
    copy.channel
        .write(Lba(generation % 2 * SLOT_BLOCKS), buffer.freeze())
        .await
}

/// Whether a completed commit names the pages of the place that was written last.
pub(super) fn is_record_named(store: &Blobstore, copy: &Copy) -> bool {
    let first = copy.generation.get() % 2 * SLOT_BLOCKS;
    let pages = copy.record_pages.get();
    store
        .blob(copy.blob)
        .is_ok_and(|blob| blob.is_named(first, pages))
}

/// Makes a new copy's record durable.
pub(in crate::node) async fn write_record(copy: &Copy) -> Result<(), IoError> {
    write_slot(copy, false).await?;
    copy.channel.flush().await
}
