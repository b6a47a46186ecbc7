//! Content of many files at once, and of one in part.

use std::ops::Range;
use std::rc::Rc;

use reactor::Buffer;

use super::planner::{Piece, plan};
use super::{Content, ExtentError, OpenFile, Part, Reader, sparse};
use crate::error::ReadError;
use crate::format::entry::{Inode, Kind, Layout};
use crate::format::extent::{Extent, decode_value};
use crate::format::key::{Key, extents_prefix};
use crate::format::superblock::Features;
use crate::format::{CodecError, PAGE_BYTES_U64};
use crate::local::Origin;
use crate::name::Shown;

/// A file to read.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// By its path from the root.
    Path(&'a [u8]),
    /// Looked up before.
    File(&'a OpenFile),
}

impl Target<'_> {
    fn path(&self) -> &[u8] {
        match self {
            Target::Path(path) => path,
            Target::File(file) => file.path.bytes(),
        }
    }
}

/// Where one file's content comes from.
enum Source {
    Inline(Box<[u8]>),
    /// Which of the batch's pieces, and the part of the first and last that is wanted.
    Pieces(Range<usize>, Range<u64>),
    /// The same with holes: where in the file each piece begins, and the part of the file that is wanted.
    Sparse(Range<usize>, Vec<u64>, Range<u64>),
}

/// What a lookup gave.
enum Found {
    /// The only extent of a file.
    Packed(Extent),
    Inode(Rc<Inode>),
}

/// What a batch reads, and of what files.
#[derive(Default)]
struct Pieces {
    pieces: Vec<Piece>,
    /// By tag, which is the position among the pieces. Only where a local disk is asked for them.
    origins: Vec<Origin>,
}

impl Reader {
    /// The whole content of each file, in the order asked for. A file that fails fails alone. Files that would
    /// take the batch past [`super::ReaderOptions::batch_bytes_max`] are refused with
    /// [`ReadError::TooLarge`].
    pub async fn read_many(&self, targets: &[Target<'_>]) -> Vec<Result<Content, ReadError>> {
        match targets {
            &[target] => vec![self.read_file(target).await],
            _ => self.read_batch(targets).await,
        }
    }

    /// The whole content of one file; [`Reader::read_many`] is for several.
    pub async fn read_file(&self, target: Target<'_>) -> Result<Content, ReadError> {
        match self.packed(&target) {
            Some(extent) => self.read_packed(extent, target.path()).await,
            None => {
                let read = self.read_batch(&[target]).await.pop();
                read.expect("one target gives one result")
            }
        }
    }

    async fn read_batch(&self, targets: &[Target<'_>]) -> Vec<Result<Content, ReadError>> {
        let mut pieces = Pieces::default();
        let mut sources = Vec::with_capacity(targets.len());
        let mut budget = self.0.options.batch_bytes_max;
        for (target, found) in targets.iter().zip(self.resolve(targets).await) {
            let path = target.path();
            let source = match found {
                Ok(Found::Packed(extent)) => self.plan_packed(extent, &mut pieces, &mut budget, path),
                Ok(Found::Inode(inode)) => {
                    let range = 0..inode.size;
                    self.plan_file(&inode, range, &mut pieces, &mut budget, path)
                        .await
                }
                Err(error) => Err(error),
            };
            sources.push((source, path));
        }
        let fetched = self.fetch_pieces(&pieces).await;
        let ended = self.check_lease();
        let finish = |(source, path): (Result<Source, ReadError>, &[u8])| {
            let source = source?;
            ended.clone()?;
            assemble(source, &pieces.pieces, &fetched, path)
        };
        sources.into_iter().map(finish).collect()
    }

    /// Bytes `offset..offset + length` of a file, or as many as there are.
    pub async fn read(&self, file: &OpenFile, offset: u64, length: u64) -> Result<Content, ReadError> {
        let mut pieces = Pieces::default();
        let mut budget = self.0.options.batch_bytes_max;
        let end = offset.saturating_add(length).min(file.inode.size);
        let range = offset.min(end)..end;
        let source = self
            .plan_file(&file.inode, range, &mut pieces, &mut budget, file.path.bytes())
            .await?;
        let fetched = self.fetch_pieces(&pieces).await;
        self.check_lease()?;
        assemble(source, &pieces.pieces, &fetched, file.path.bytes())
    }

    /// The only extent of a file that is found at once, all of whose bytes are there; `None` if it is not like that, or where a local
    /// disk is asked first, which wants to know more.
    fn packed(&self, target: &Target<'_>) -> Option<Extent> {
        if self.0.medium.local().is_some() {
            return None;
        }
        let path = match target {
            Target::File(file) => return only_extent(&file.inode),
            Target::Path(path) => path,
        };
        if let Some(extent) = self.0.packed.find(path) {
            return Some(extent);
        }
        let extent = only_extent(&self.lookup_cached(path)?)?;
        self.0.packed.insert(path, &extent);
        Some(extent)
    }

    /// A packed file alone, without what several need.
    async fn read_packed(&self, extent: Extent, path: &[u8]) -> Result<Content, ReadError> {
        let length = u64::from(extent.length);
        if length > self.0.options.batch_bytes_max {
            return Err(self.too_large(path, length));
        }
        self.count_content(length);
        let fetched = Some(self.fetch_alone(extent).await);
        self.check_lease()?;
        let bytes = arrived(&extent, &fetched, path)?.clone();
        Ok(Content::of_one(Part::Device(bytes)))
    }

    fn count_content(&self, bytes: u64) {
        let counted = &self.0.content_bytes;
        counted.set(counted.get() + bytes);
    }

    async fn fetch_pieces(&self, all: &Pieces) -> Vec<Option<super::fetch::Fetched>> {
        if self.0.medium.local().is_none() {
            return self.fetch_from_volume(&all.pieces).await;
        }
        let of = |piece: &Piece| (all.origins[piece.tag], piece.extent);
        let wanted: Vec<_> = all.pieces.iter().map(of).collect();
        let here = self.fetch_local(&wanted).await;
        let mut fetched: Vec<_> = here.into_iter().map(|bytes| bytes.map(Ok)).collect();
        // Tags are positions among those that are read.
        let missing: Vec<usize> = (0..fetched.len()).filter(|&at| fetched[at].is_none()).collect();
        let piece = |(tag, &at): (usize, &usize)| Piece {
            tag,
            extent: all.pieces[at].extent,
        };
        let pieces: Vec<Piece> = missing.iter().enumerate().map(piece).collect();
        if pieces.is_empty() {
            return fetched;
        }
        for (at, result) in missing.into_iter().zip(self.fetch_from_volume(&pieces).await) {
            if let Some(Ok(bytes)) = &result {
                let (origin, extent) = &wanted[at];
                self.0.medium.keep_extent(origin, extent, bytes);
            }
            fetched[at] = result;
        }
        fetched
    }

    async fn fetch_from_volume(&self, pieces: &[Piece]) -> Vec<Option<super::fetch::Fetched>> {
        if let &[piece] = pieces {
            return vec![Some(self.fetch_alone(piece.extent).await)];
        }
        let options = &self.0.options;
        let runs = plan(pieces.to_vec(), options.join_gap_bytes, options.run_bytes_max);
        self.fetch(runs, pieces.len()).await
    }

    /// Where the bytes of a packed file come from.
    fn plan_packed(
        &self,
        extent: Extent,
        pieces: &mut Pieces,
        budget: &mut u64,
        path: &[u8],
    ) -> Result<Source, ReadError> {
        let length = u64::from(extent.length);
        *budget = budget
            .checked_sub(length)
            .ok_or_else(|| self.too_large(path, length))?;
        let tag = pieces.pieces.len();
        pieces.pieces.push(Piece { tag, extent });
        self.count_content(length);
        Ok(Source::Pieces(tag..tag + 1, 0..length))
    }

    /// The files of a batch: at once where the index is in memory, else by lookups side by side,
    /// which share the pages they read.
    async fn resolve(&self, targets: &[Target<'_>]) -> Vec<Result<Found, ReadError>> {
        let mut resolved = Vec::with_capacity(targets.len());
        let mut tasks = Vec::new();
        for (index, target) in targets.iter().enumerate() {
            let found = match (self.packed(target), target) {
                (Some(extent), _) => Some(Found::Packed(extent)),
                (None, Target::File(file)) => Some(Found::Inode(file.inode.clone())),
                (None, Target::Path(path)) => self.lookup_cached(path).map(Rc::new).map(Found::Inode),
            };
            if let (None, Target::Path(path)) = (&found, target) {
                let (reader, path) = (self.clone(), path.to_vec());
                let task = reactor::spawn(async move { reader.lookup(&path).await });
                tasks.push((index, task));
            }
            // Overwritten below where a task was started.
            resolved.push(found.ok_or(ReadError::LeaseEnded));
        }
        for (index, task) in tasks {
            // A task that was ended from outside leaves the reader's end as its reason.
            let found = task.await.unwrap_or(Err(ReadError::LeaseEnded));
            resolved[index] = found.map(Rc::new).map(Found::Inode);
        }
        resolved
    }

    /// Adds the extents that hold a range of a file to the batch.
    async fn plan_file(
        &self,
        inode: &Inode,
        range: Range<u64>,
        pieces: &mut Pieces,
        budget: &mut u64,
        path: &[u8],
    ) -> Result<Source, ReadError> {
        if inode.kind == Kind::Directory {
            let path = Shown::new(path);
            return Err(ReadError::IsADirectory { path });
        }
        if inode.kind.is_special() {
            let path = Shown::new(path);
            return Err(ReadError::NotAFile { path });
        }
        let first = pieces.pieces.len();
        let extents = match &inode.layout {
            Layout::Inline(bytes) => {
                let part = bytes.get(range.start as usize..range.end as usize);
                let part = part.ok_or_else(|| self.malformed(path, CodecError::Inconsistent))?;
                return Ok(Source::Inline(part.into()));
            }
            _ if range.is_empty() => return Ok(Source::Inline(Box::default())),
            Layout::Extents(extents) => overlapping(extents, 0, &range),
            // No other inode decodes with one.
            Layout::Device(_) => Vec::new(),
            Layout::Mapped => self.mapped(inode, &range, *budget, path).await?,
        };
        let begin = extents.first().map_or(0, |(offset, _)| *offset);
        let total: u64 = extents.iter().map(|(_, extent)| u64::from(extent.length)).sum();
        let last = extents
            .last()
            .map_or(0, |(offset, extent)| offset + u64::from(extent.length));
        let sparse = begin > range.start || last < range.end || last - begin != total;
        let holes = inode.layout == Layout::Mapped && self.0.superblock.features.has(Features::HOLES);
        if sparse && !holes {
            return Err(self.malformed(path, CodecError::Inconsistent));
        }
        let starts: Vec<u64> = match sparse {
            true => extents.iter().map(|(offset, _)| *offset).collect(),
            false => Vec::new(),
        };
        // Holes take memory as well.
        let total = if sparse {
            total + (range.end - range.start)
        } else {
            total
        };
        *budget = budget
            .checked_sub(total)
            .ok_or_else(|| self.too_large(path, inode.size))?;
        for (offset, extent) in extents {
            let tag = pieces.pieces.len();
            pieces.pieces.push(Piece { tag, extent });
            if self.0.medium.local().is_some() {
                pieces.origins.push(Origin {
                    inode: inode.number,
                    ctime: inode.attributes.ctime,
                    offset,
                });
            }
        }
        self.count_content(range.end - range.start);
        if sparse {
            return Ok(Source::Sparse(first..pieces.pieces.len(), starts, range));
        }
        Ok(Source::Pieces(
            first..pieces.pieces.len(),
            range.start - begin..range.end - begin,
        ))
    }

    fn too_large(&self, path: &[u8], size: u64) -> ReadError {
        ReadError::TooLarge {
            path: Shown::new(path),
            size,
            limit: self.0.options.batch_bytes_max,
        }
    }

    /// The extents of a large file that hold a range, with their offsets in the file.
    async fn mapped(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        budget: u64,
        path: &[u8],
    ) -> Result<Vec<(u64, Extent)>, ReadError> {
        if range.end - range.start > budget {
            return Err(self.too_large(path, inode.size));
        }
        let tree_error = |error| self.tree_error(path, error);
        let malformed = |error| self.malformed(path, error);
        let prefix = extents_prefix(inode.number);
        let key = Key::Extents(inode.number, range.start).encode();
        let found = self.0.tree.last_at_or_before(&key, &prefix).await;
        let mut cell = found.map_err(tree_error)?;
        if cell.is_none() {
            // The file begins with a hole.
            let found = self.0.tree.first_with_prefix(&key, &prefix).await;
            cell = found.map_err(tree_error)?;
        }
        let holes = self.0.superblock.features.has(Features::HOLES);
        let mut extents = Vec::new();
        let mut expected = None;
        while let Some((key, value)) = cell {
            let Ok(Key::Extents(_, offset)) = Key::decode(&key) else {
                return Err(malformed(CodecError::Inconsistent));
            };
            let apart = |expected| offset < expected || (offset > expected && !holes);
            if expected.is_some_and(apart) {
                return Err(malformed(CodecError::Inconsistent));
            }
            if offset >= range.end {
                break;
            }
            let group = decode_value(&value).map_err(malformed)?;
            let length: u64 = group.iter().map(|extent| u64::from(extent.length)).sum();
            let end = offset
                .checked_add(length)
                .ok_or_else(|| malformed(CodecError::TooLarge))?;
            extents.extend(overlapping(&group, offset, range));
            if end >= range.end {
                break;
            }
            expected = Some(end);
            let next = Key::Extents(inode.number, end).encode();
            let found = self.0.tree.first_with_prefix(&next, &prefix).await;
            cell = found.map_err(tree_error)?;
        }
        self.check_lease()?;
        Ok(extents)
    }
}

/// The extent that has all bytes of a file, if one does.
fn only_extent(inode: &Inode) -> Option<Extent> {
    let Layout::Extents(extents) = &inode.layout else {
        return None;
    };
    let &[extent] = &extents[..] else { return None };
    (inode.kind == Kind::File && u64::from(extent.length) == inode.size).then_some(extent)
}

/// The extents, the first of which begins at `offset`, that have bytes of a range.
fn overlapping(extents: &[Extent], offset: u64, range: &Range<u64>) -> Vec<(u64, Extent)> {
    let mut at = offset;
    let mut found = Vec::new();
    for extent in extents {
        let end = at + u64::from(extent.length);
        if end > range.start && at < range.end {
            found.push((at, *extent));
        }
        at = end;
    }
    found
}

/// The bytes of an extent, or why there are none.
pub(super) fn arrived<'a>(
    extent: &Extent,
    fetched: &'a Option<super::fetch::Fetched>,
    path: &[u8],
) -> Result<&'a Buffer, ReadError> {
    let Extent { address, length, .. } = *extent;
    let block = address / PAGE_BYTES_U64;
    let path = || Shown::new(path);
    match fetched {
        Some(Ok(buffer)) => Ok(buffer),
        Some(Err(ExtentError::Damaged)) => Err(ReadError::Damaged {
            path: path(),
            block,
            length,
        }),
        Some(Err(ExtentError::Io(source))) => Err(ReadError::Io {
            path: path(),
            block,
            source: *source,
        }),
        None => Err(ReadError::Io {
            path: path(),
            block,
            source: bdev::IoError::Aborted,
        }),
    }
}

fn assemble(
    source: Source,
    pieces: &[Piece],
    fetched: &[Option<super::fetch::Fetched>],
    path: &[u8],
) -> Result<Content, ReadError> {
    let (indices, wanted) = match source {
        Source::Inline(bytes) if bytes.is_empty() => return Ok(Content::default()),
        Source::Inline(bytes) => {
            return Ok(Content::of_one(Part::Index(bytes)));
        }
        Source::Pieces(indices, wanted) => (indices, wanted),
        Source::Sparse(indices, starts, wanted) => {
            return sparse::assemble(indices, &starts, wanted, pieces, fetched, path);
        }
    };
    let mut parts = Vec::with_capacity(indices.len());
    let mut at = 0;
    for index in indices {
        let length = pieces[index].extent.length;
        let buffer = arrived(&pieces[index].extent, &fetched[index], path)?;
        let from = wanted.start.saturating_sub(at).min(buffer.len() as u64) as usize;
        let to = wanted.end.saturating_sub(at).min(buffer.len() as u64) as usize;
        if from < to {
            parts.push(Part::Device(buffer.slice(from..to)));
        }
        at += u64::from(length);
    }
    Ok(Content::of(parts))
}
