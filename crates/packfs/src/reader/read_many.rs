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

/// Where one file's content comes from.
enum Source {
    Inline(Box<[u8]>),
    /// Which of the batch's pieces, and the part of the first and last that is wanted.
    Pieces(Range<usize>, Range<u64>),
    /// The same with holes: where in the file each piece begins, and the part of the file that is wanted.
    Sparse(Range<usize>, Vec<u64>, Range<u64>),
}

/// What a batch reads, and of what files.
#[derive(Default)]
struct Pieces {
    pieces: Vec<Piece>,
    /// By tag, which is the position among the pieces.
    origins: Vec<Origin>,
}

impl Reader {
    /// The whole content of each file, in the order asked for. A file that fails fails alone. Files that would
    /// take the batch past [`super::ReaderOptions::batch_bytes_max`] are refused with
    /// [`ReadError::TooLarge`].
    pub async fn read_many(&self, targets: &[Target<'_>]) -> Vec<Result<Content, ReadError>> {
        let mut pieces = Pieces::default();
        let mut sources = Vec::with_capacity(targets.len());
        let mut budget = self.0.options.batch_bytes_max;
        for (target, inode) in targets.iter().zip(self.resolve(targets).await) {
            let path = match target {
                Target::Path(path) => path,
                Target::File(file) => file.path.bytes(),
            };
            let source = match inode {
                Ok(inode) => {
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

    /// The inodes of a batch: at once where the index is in memory, else by lookups side by side,
    /// which share the pages they read.
    async fn resolve(&self, targets: &[Target<'_>]) -> Vec<Result<Rc<Inode>, ReadError>> {
        let mut resolved = Vec::with_capacity(targets.len());
        let mut tasks = Vec::new();
        for (index, target) in targets.iter().enumerate() {
            let found = match target {
                Target::File(file) => Some(file.inode.clone()),
                Target::Path(path) => self.lookup_cached(path).map(Rc::new),
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
            resolved[index] = task.await.unwrap_or(Err(ReadError::LeaseEnded)).map(Rc::new);
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
            pieces.origins.push(Origin {
                inode: inode.number,
                ctime: inode.attributes.ctime,
                offset,
            });
        }
        self.0
            .content_bytes
            .set(self.0.content_bytes.get() + (range.end - range.start));
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
            let parts = vec![Part::Index(bytes)];
            return Ok(Content { parts });
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
    Ok(Content { parts })
}
