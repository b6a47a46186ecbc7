//! Changing parts of a file's content: new bytes go into new extents, and what remains of old ones stays where it is.
//!
//! An extent's checksum covers all of it, so an extent of which a part remains is read, verified, and its rest given
//! a checksum of its own. Rests and neighbours that are short are written anew together with the new bytes, so that
//! many small changes do not leave as many small extents. A damaged extent of which a part would remain is not changed: it may be right again
//! later, and no checksum says which part of it is.

use std::ops::Range;

use foundation::checksum::crc32c;

use super::Writer;
use crate::error::WriteError;
use crate::format::entry::{Attributes, Inode, Kind, Layout};
use crate::format::extent::{EXTENTS_EMBEDDED_MAX, EXTENTS_PER_KEY, Extent, decode_value, encode_list};
use crate::format::key::{InodeNumber, Key, extents_prefix};
use crate::format::superblock::Features;
use crate::format::{CodecError, PAGE_BYTES_U64};
use crate::tree::inconsistent;

/// An extent and where in the file it begins.
pub(crate) type Placed = (u64, Extent);

/// The longest rest that is written anew, in bytes, for the default longest extent.
const ABSORBED_BYTES_MAX: u64 = 16 << 10;

/// The most that the lengths of all files may sum up to, in bytes: a superblock that counts 2^62 is damaged.
pub(super) const LENGTHS_MAX: u64 = 1 << 61;

fn end((start, extent): &Placed) -> u64 {
    start + u64::from(extent.length)
}

/// Extents of an inode that a change loads, and the keys they stand under.
struct Window {
    placed: Vec<Placed>,
    keys: Vec<Vec<u8>>,
}

impl Writer {
    /// The extents that hold a range, and perhaps some beside it, ascending.
    pub(crate) async fn extents_around(
        &self,
        inode: &Inode,
        range: &Range<u64>,
    ) -> Result<Vec<Placed>, WriteError> {
        Ok(self.window(inode, range).await?.placed)
    }

    /// Where the extent ends that has the bytes on both sides of an offset; `None` if none has both.
    pub(crate) async fn end_of_extent_over(
        &self,
        inode: &Inode,
        offset: u64,
    ) -> Result<Option<u64>, WriteError> {
        let around = self.extents_around(inode, &(offset..offset)).await?;
        let over = around.iter().find(|one| one.0 < offset && end(one) > offset);
        Ok(over.map(end))
    }

    async fn window(&self, inode: &Inode, range: &Range<u64>) -> Result<Window, WriteError> {
        let (mut placed, mut keys) = (Vec::new(), Vec::new());
        match &inode.layout {
            Layout::Inline(_) | Layout::Device(_) => {}
            Layout::Extents(extents) => place(0, extents, &mut placed)?,
            Layout::Mapped => {
                let prefix = extents_prefix(inode.number);
                let from = Key::Extents(inode.number, range.start).encode();
                let mut cell = self.tree.last_at_or_before(&from, &prefix).await?;
                if cell.is_none() {
                    cell = self.tree.first_with_prefix(&from, &prefix).await?;
                }
                while let Some((key, value)) = cell {
                    let Ok(Key::Extents(_, offset)) = Key::decode(&key) else {
                        return Err(inconsistent(0, CodecError::Inconsistent).into());
                    };
                    if offset > range.end {
                        break;
                    }
                    let group = decode_value(&value).map_err(|source| inconsistent(0, source))?;
                    place(offset, &group, &mut placed)?;
                    let mut next = key.clone();
                    next.push(0);
                    keys.push(key);
                    cell = self.tree.first_with_prefix(&next, &prefix).await?;
                }
            }
        }
        Ok(Window { placed, keys })
    }

    /// Puts a changed window in the place of the one that was loaded.
    async fn put_window(
        &mut self,
        inode: &mut Inode,
        keys: Vec<Vec<u8>>,
        placed: Vec<Placed>,
    ) -> Result<(), WriteError> {
        if let Layout::Extents(_) | Layout::Inline(_) = inode.layout {
            let mut reached = 0;
            let follow = placed.iter().all(|one| {
                let follows = one.0 == reached;
                reached = end(one);
                follows
            });
            if follow && reached == inode.size && placed.len() <= EXTENTS_EMBEDDED_MAX {
                inode.layout = match placed.is_empty() {
                    true => Layout::Inline(Vec::new()),
                    false => Layout::Extents(placed.into_iter().map(|(_, extent)| extent).collect()),
                };
                return Ok(());
            }
            inode.layout = Layout::Mapped;
        }
        for key in keys {
            self.take(&key).await?;
        }
        self.put_placed(inode.number, &placed).await
    }

    /// Ends an inode's content at `size` bytes, which it has at least. What remains of an extent that is cut and cannot be read is taken from
    /// `new`, if that has all of it; gives the range that was. The caller writes the inode, which is as it was after a failure to read.
    pub(crate) async fn cut_content(
        &mut self,
        inode: &mut Inode,
        size: u64,
        new: impl Fn(&Range<u64>) -> Option<Vec<u8>>,
    ) -> Result<Option<Range<u64>>, WriteError> {
        if size >= inode.size {
            return Ok(None);
        }
        if let Layout::Inline(bytes) = &mut inode.layout {
            bytes.truncate(size as usize);
            self.set_size(inode, size);
            return Ok(None);
        }
        let mut taken = None;
        self.check_room_for(true, 0)?;
        let Window { placed, keys } = self.window(inode, &(size..inode.size)).await?;
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        for (start, extent) in placed {
            let placed_end = end(&(start, extent));
            if placed_end <= size {
                kept.push((start, extent));
            } else if start >= size {
                dropped.push(extent);
            } else {
                match (self.read_extent(inode, &extent).await, new(&(start..size))) {
                    (Ok(bytes), _) => {
                        let (head, tail) = split(&extent, &bytes, (size - start) as usize);
                        kept.push((start, head));
                        dropped.push(tail);
                    }
                    // Nothing of it remains.
                    (Err(WriteError::Read(_)), Some(bytes)) => {
                        dropped.push(extent);
                        taken = Some((start, bytes));
                    }
                    (Err(error), _) => return Err(error),
                }
            }
        }
        self.check_shared(&dropped).await?;
        if let Some((start, bytes)) = &taken {
            let mut at = *start;
            for extent in self.pack(bytes).await? {
                kept.push((at, extent));
                at += u64::from(extent.length);
            }
        }
        self.set_size(inode, size);
        self.put_window(inode, keys, kept).await?;
        self.give_back(&dropped).await?;
        Ok(taken.map(|(start, _)| start..size))
    }

    /// Makes a hole of a range, which lies inside the content. Content that stands beside the inode gets zeros. The caller
    /// writes the inode.
    pub(crate) async fn punch_content(
        &mut self,
        inode: &mut Inode,
        range: &Range<u64>,
    ) -> Result<(), WriteError> {
        if let Layout::Inline(bytes) = &mut inode.layout {
            let end = range.end.min(bytes.len() as u64) as usize;
            bytes[(range.start as usize).min(end)..end].fill(0);
            return Ok(());
        }
        self.check_room_for(true, 8)?;
        let Window { placed, keys } = self.window(inode, range).await?;
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        for (start, extent) in placed {
            let its_end = end(&(start, extent));
            if its_end <= range.start || start >= range.end {
                kept.push((start, extent));
                continue;
            }
            if start >= range.start && its_end <= range.end {
                dropped.push(extent);
                continue;
            }
            let bytes = self.read_extent(inode, &extent).await?;
            let (mut rest, mut rest_bytes, mut rest_at) = (extent, &bytes[..], start);
            if start < range.start {
                let length = (range.start - start) as usize;
                let (head, tail) = split(&rest, rest_bytes, length);
                kept.push((start, head));
                (rest, rest_bytes, rest_at) = (tail, &rest_bytes[length..], range.start);
            }
            if its_end > range.end {
                let (head, tail) = split(&rest, rest_bytes, (range.end - rest_at) as usize);
                kept.push((range.end, tail));
                rest = head;
            }
            dropped.push(rest);
        }
        if dropped.is_empty() {
            return Ok(());
        }
        self.check_shared(&dropped).await?;
        self.features = self.features.with(Features::HOLES);
        self.put_window(inode, keys, kept).await?;
        self.give_back(&dropped).await
    }

    /// Names a file of these extents, in the order of their places, with zeros between and behind them; gives them back
    /// on failure.
    pub(super) async fn create_with_holes(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
        size: u64,
        placed: &[Placed],
    ) -> Result<InodeNumber, WriteError> {
        let mut checked = self.check_new(directory, name, attributes).await;
        if checked.is_ok() {
            let tree = self.quota_tree(directory).await;
            checked = tree.and_then(|tree| self.check_quota(tree, 1, size));
        }
        if checked.is_ok() && self.totals.content_bytes.saturating_add(size) > LENGTHS_MAX {
            let (what, inode) = ("the sum of all lengths, with that", InodeNumber(self.next_inode));
            checked = Err(WriteError::OutOfRange { what, inode });
        }
        if let Err(error) = checked {
            let extents: Vec<Extent> = placed.iter().map(|(_, extent)| *extent).collect();
            self.forget(&extents);
            return Err(error);
        }
        self.features = self.features.with(Features::HOLES);
        self.put_placed(InodeNumber(self.next_inode), placed).await?;
        self.add(directory, name, attributes, Kind::File, size, Layout::Mapped)
            .await
    }

    /// Writes extents under keys of their own, one for each so many that follow each other.
    async fn put_placed(&mut self, inode: InodeNumber, placed: &[Placed]) -> Result<(), WriteError> {
        for run in placed.chunk_by(|before, after| end(before) == after.0) {
            for group in run.chunks(EXTENTS_PER_KEY) {
                let extents: Vec<Extent> = group.iter().map(|(_, extent)| *extent).collect();
                let key = Key::Extents(inode, group[0].0).encode();
                self.put(key, encode_list(&extents)).await?;
            }
        }
        Ok(())
    }

    /// Lengthens an inode's content by a hole. The caller writes the inode.
    pub(crate) async fn grow_content(&mut self, inode: &mut Inode, size: u64) -> Result<(), WriteError> {
        if size > inode.size {
            self.check_room_for(false, 0)?;
            if self.totals.content_bytes.saturating_add(size) > LENGTHS_MAX {
                let (what, inode) = ("the sum of all lengths, with that", inode.number);
                return Err(WriteError::OutOfRange { what, inode });
            }
            let whole = 0..inode.size;
            if inode.layout != Layout::Mapped {
                let Window { placed, keys } = self.window(inode, &whole).await?;
                inode.layout = Layout::Mapped;
                self.put_window(inode, keys, placed).await?;
            }
            self.features = self.features.with(Features::HOLES);
            self.set_size(inode, size);
        }
        Ok(())
    }

    /// A shorter extent, or rest of one, is packed with what changes beside it, in bytes.
    pub(crate) fn absorbed_bytes(&self) -> u64 {
        (u64::from(self.parameters().extent_bytes_max) / 16).min(ABSORBED_BYTES_MAX)
    }

    /// Writes `bytes` over an inode's content from `offset` on, or beyond its end. Content that is not in extents
    /// must have been taken out before. The caller writes the inode, also after [`WriteError::NoSpace`], which
    /// leaves the content as it was.
    pub(crate) async fn replace_content(
        &mut self,
        inode: &mut Inode,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        if offset > inode.size {
            self.grow_content(inode, offset).await?;
        }
        let range = offset..offset + bytes.len() as u64;
        // The window's keys, and those of the extents that come in their place.
        let more = bytes.len() as u64 / (EXTENTS_PER_KEY as u64 * PAGE_BYTES_U64) + 8;
        self.check_room_for(false, more)?;
        let Window { placed, keys } = self.window(inode, &range).await?;
        let absorbed = self.absorbed_bytes();
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        let mut start = range.start;
        for (at, extent) in placed {
            let its_end = end(&(at, extent));
            let short = u64::from(extent.length) < absorbed;
            let touches = (its_end == range.start || at == range.end) && short;
            if (its_end <= range.start || at >= range.end) && !touches {
                kept.push((at, extent));
                continue;
            }
            if at >= range.start && its_end <= range.end {
                dropped.push(extent);
                continue;
            }
            let old = match self.read_extent(inode, &extent).await {
                // What merely stands beside it may stay where it lies.
                Err(WriteError::Read(_)) if touches => {
                    kept.push((at, extent));
                    continue;
                }
                read => read?,
            };
            let mut rest = extent;
            let mut rest_bytes = &old[..];
            let mut rest_at = at;
            if at < range.start {
                let length = (range.start - at) as usize;
                if (length as u64) < absorbed {
                    before = old[..length].to_vec();
                    start = at;
                } else {
                    let (head, tail) = split(&extent, &old, length);
                    kept.push((at, head));
                    (rest, rest_bytes, rest_at) = (tail, &old[length..], range.start);
                }
            }
            if its_end > range.end {
                let length = (its_end - range.end) as usize;
                if (length as u64) < absorbed {
                    behind = old[old.len() - length..].to_vec();
                } else {
                    let (head, tail) = split(&rest, rest_bytes, (range.end - rest_at) as usize);
                    kept.push((range.end, tail));
                    rest = head;
                }
            }
            if rest.length > 0 {
                dropped.push(rest);
            }
        }
        self.check_shared(&dropped).await?;
        let whole = [&before[..], bytes, &behind[..]].concat();
        let mut at = start;
        for extent in self.pack(&whole).await? {
            kept.push((at, extent));
            at += u64::from(extent.length);
        }
        kept.sort_by_key(|(at, _)| *at);
        self.set_size(inode, inode.size.max(range.end));
        self.put_window(inode, keys, kept).await?;
        self.give_back(&dropped).await
    }

    /// Gives an inode other content as a whole, which is short. The caller writes the inode.
    pub(crate) async fn renew_content(
        &mut self,
        inode: &mut Inode,
        layout: Layout,
        size: u64,
    ) -> Result<(), WriteError> {
        // Damage in the middle of what is dropped is met before anything changes.
        self.check_droppable(inode).await?;
        self.drop_content(inode).await?;
        inode.layout = layout;
        self.set_size(inode, size);
        Ok(())
    }

    pub(super) fn set_size(&mut self, inode: &mut Inode, size: u64) {
        let without = self.totals.content_bytes.saturating_sub(inode.size);
        self.totals.content_bytes = without.saturating_add(size);
        inode.size = size;
    }
}

fn place(offset: u64, extents: &[Extent], placed: &mut Vec<Placed>) -> Result<(), WriteError> {
    let mut at = offset;
    for extent in extents {
        placed.push((at, *extent));
        let next = at.checked_add(u64::from(extent.length));
        at = next.ok_or_else(|| inconsistent(0, CodecError::TooLarge))?;
    }
    Ok(())
}

/// The two parts of an extent of these bytes, each with its checksum. The first may be empty.
fn split(extent: &Extent, bytes: &[u8], at: usize) -> (Extent, Extent) {
    let (head, tail) = bytes.split_at(at);
    let part = |address, bytes: &[u8]| Extent {
        address,
        // Parts of an extent are no longer than it is.
        length: bytes.len() as u32,
        checksum: crc32c(bytes),
    };
    (part(extent.address, head), part(extent.address + at as u64, tail))
}
