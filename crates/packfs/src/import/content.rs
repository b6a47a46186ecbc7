//! The content of files and links: what is there is compared, what differs is written and then takes its place.

use super::{
    CHANGE_PAGES, Done, Existing, ImportEntry, ImportError, ImportPiece, ImportPieces, Importer, Place, at,
    is_likely_same,
};
use crate::error::WriteError;
use crate::format::PAGE_BYTES;
use crate::format::entry::{DeviceNumber, INLINE_BYTES_MAX, Inode, Kind, Layout};
use crate::format::extent::Extent;
use crate::writer::FileStream;

/// The most that is read back at once, in bytes.
const COMPARED_BYTES: u64 = 1 << 20;

/// What an extent takes of index pages that are half full, in bytes, roughly.
const EXTENT_IN_PAGES_BYTES: usize = 64;

/// Where a comparison of a large file ended.
enum Compared {
    /// Everything is there.
    Same,
    /// So many bytes are there; then comes this, if anything.
    Until(u64, Option<ImportPiece>),
}

impl Importer<'_> {
    /// A file that is in memory; `None` if its content is there.
    pub(super) async fn file<E>(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        bytes: &[u8],
    ) -> Result<Option<Done>, ImportError<E>> {
        let failed = at(&entry.path);
        let size = bytes.len() as u64;
        if let Some(found) = &place.existing
            && self
                .is_same(found, Kind::File, entry, bytes)
                .await
                .map_err(&failed)?
        {
            return Ok(None);
        }
        if self.checks() {
            return Ok(Some(missing_or(place, "has other content")));
        }
        self.make_room(size).await.map_err(&failed)?;
        self.clear_directory(place, entry, size).await.map_err(&failed)?;
        self.progress.content_bytes += size;
        if place.existing.is_none() {
            let made = self
                .writer
                .create_file(place.directory, place.name, &place.attributes, bytes)
                .await;
            return made.map(|_| Some(Done::Made)).map_err(failed);
        }
        let mut stream = self.writer.begin_file();
        let appended = self.writer.append(&mut stream, bytes).await;
        match appended {
            Ok(()) => self.finish(place, entry, stream).await.map_err(failed),
            Err(error) => {
                self.writer.abandon_file(stream);
                Err(failed(error))
            }
        }
    }

    /// A symbolic link; `None` if it is there.
    pub(super) async fn symlink<E>(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        target: &[u8],
    ) -> Result<Option<Done>, ImportError<E>> {
        let failed = at(&entry.path);
        if let Some(found) = &place.existing
            && found.kind == Kind::Symlink
            && self.equal(found, 0, target).await.map_err(&failed)?
            && found.size == target.len() as u64
        {
            return Ok(None);
        }
        if self.checks() {
            return Ok(Some(missing_or(place, "leads elsewhere, or is no link")));
        }
        crate::name::check_target(place.name, target).map_err(|error| failed(error.into()))?;
        self.progress.content_bytes += target.len() as u64;
        let made = self.make_symlink(place, entry, target).await;
        made.map(|()| Some(Done::Made)).map_err(failed)
    }

    async fn make_symlink(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        target: &[u8],
    ) -> Result<(), WriteError> {
        let size = target.len() as u64;
        self.check_quota(place, size).await?;
        self.clear_directory(place, entry, size).await?;
        if place.existing.is_none() || target.len() <= INLINE_BYTES_MAX {
            self.make_way(place, entry, 0).await?;
            let made = self
                .writer
                .symlink(place.directory, place.name, &place.attributes, target);
            return made.await.map(drop);
        }
        // All that takes room is done before the old one goes.
        let packed = self.writer.pack(target).await?;
        if let Err(error) = self.make_way(place, entry, 0).await {
            self.writer.forget(&packed);
            return Err(error);
        }
        let (attributes, kind) = (&place.attributes, Kind::Symlink);
        self.writer
            .create_with_extents(place.directory, place.name, attributes, kind, size, packed)
            .await
            .map(drop)
    }

    /// A pipe, socket or device; `None` if it is there.
    pub(super) async fn special<E>(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        kind: Kind,
        device: DeviceNumber,
    ) -> Result<Option<Done>, ImportError<E>> {
        let wanted = kind.is_device().then_some(device);
        let same = |found: &Inode| found.kind == kind && found.device() == wanted;
        if place.existing.as_ref().is_some_and(same) {
            return Ok(None);
        }
        if self.checks() {
            return Ok(Some(missing_or(place, "is something else, or another device")));
        }
        let failed = at(&entry.path);
        self.check_quota(place, 0).await.map_err(&failed)?;
        self.make_way(place, entry, 0).await.map_err(&failed)?;
        let made = self
            .writer
            .create_special(place.directory, place.name, &place.attributes, kind, device)
            .await;
        made.map(|_| Some(Done::Made)).map_err(failed)
    }

    /// A file in parts; `None` if its content is there.
    pub(super) async fn large_file<S: ImportPieces>(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        size_bytes: u64,
        pieces: &mut S,
    ) -> Result<Option<Done>, ImportError<S::Error>> {
        let failed = at(&entry.path);
        if !self.checks() {
            self.make_room(size_bytes).await.map_err(&failed)?;
            self.clear_directory(place, entry, size_bytes)
                .await
                .map_err(&failed)?;
        }
        let mut stream = self.writer.begin_file();
        if let Some(found) = place.existing.clone().filter(|found| found.kind == Kind::File) {
            if self.options.existing == Existing::SizeAndTime {
                if is_likely_same(&found, &entry.attributes, size_bytes) {
                    return Ok(None);
                }
            } else {
                match self.compare(&found, entry, pieces).await? {
                    Compared::Same => return Ok(None),
                    _ if self.checks() => return Ok(Some(Done::Differs("has other content"))),
                    Compared::Until(same, next) => {
                        let begun = self.begin_with(&mut stream, &found, same, next).await;
                        if let Err(error) = begun {
                            self.writer.abandon_file(stream);
                            return Err(failed(error));
                        }
                    }
                }
            }
        } else if self.checks() {
            return Ok(Some(missing_or(place, "is no file there")));
        }
        while !self.drained {
            let appended = match pieces.more().await {
                Ok(None) => {
                    self.drained = true;
                    break;
                }
                Ok(Some(piece)) => self.append(&mut stream, &piece).await.map_err(&failed),
                Err(error) => {
                    self.drained = true;
                    Err(ImportError::Source(error))
                }
            };
            if let Err(error) = appended {
                self.writer.abandon_file(stream);
                return Err(error);
            }
        }
        self.finish(place, entry, stream).await.map_err(failed)
    }

    async fn append(&mut self, stream: &mut FileStream, piece: &ImportPiece) -> Result<(), WriteError> {
        match piece {
            ImportPiece::Bytes(bytes) => {
                self.progress.content_bytes += bytes.len() as u64;
                self.writer.append(stream, bytes).await
            }
            ImportPiece::Hole(length) => self.writer.append_hole(stream, *length).await,
        }
    }

    /// Begins a file with what is equal in the one that is there, and what came next.
    async fn begin_with(
        &mut self,
        stream: &mut FileStream,
        found: &Inode,
        same: u64,
        next: Option<ImportPiece>,
    ) -> Result<(), WriteError> {
        let parts: Vec<std::ops::Range<u64>> = match &found.layout {
            Layout::Inline(_) => std::iter::once(0..same).collect(),
            _ => {
                let placed = self.writer.extents_around(found, &(0..same)).await?;
                let ends =
                    |(start, extent): (u64, Extent)| start..(start + u64::from(extent.length)).min(same);
                placed
                    .into_iter()
                    .map(ends)
                    .filter(|part| part.start < same)
                    .collect()
            }
        };
        for part in parts {
            let hole = part.start - stream.size();
            self.writer.append_hole(stream, hole).await?;
            while stream.size() < part.end {
                let from = stream.size();
                let to = part.end.min(from + COMPARED_BYTES);
                let bytes = self.writer.read_content(found, from..to).await?;
                self.writer.append(stream, &bytes).await?;
            }
        }
        let hole = same - stream.size();
        self.writer.append_hole(stream, hole).await?;
        match next {
            Some(piece) => self.append(stream, &piece).await,
            None => Ok(()),
        }
    }

    async fn compare<S: ImportPieces>(
        &mut self,
        found: &Inode,
        entry: &ImportEntry,
        pieces: &mut S,
    ) -> Result<Compared, ImportError<S::Error>> {
        let mut at_byte = 0;
        loop {
            let piece = match pieces.more().await {
                Ok(piece) => piece,
                Err(error) => {
                    self.drained = true;
                    return Err(ImportError::Source(error));
                }
            };
            let Some(piece) = piece else {
                self.drained = true;
                return Ok(match at_byte == found.size {
                    true => Compared::Same,
                    false => Compared::Until(at_byte, None),
                });
            };
            let (length, equal) = match &piece {
                ImportPiece::Bytes(bytes) => (bytes.len() as u64, self.equal(found, at_byte, bytes).await),
                ImportPiece::Hole(length) => (*length, self.is_zero(found, at_byte, *length).await),
            };
            if !equal.map_err(at(&entry.path))? {
                return Ok(Compared::Until(at_byte, Some(piece)));
            }
            at_byte += length;
        }
    }

    async fn is_same(
        &self,
        found: &Inode,
        kind: Kind,
        entry: &ImportEntry,
        bytes: &[u8],
    ) -> Result<bool, WriteError> {
        let size = bytes.len() as u64;
        match self.options.existing {
            Existing::SizeAndTime => Ok(is_likely_same(found, &entry.attributes, size)),
            Existing::Content | Existing::Check => {
                Ok(found.kind == kind && found.size == size && self.equal(found, 0, bytes).await?)
            }
        }
    }

    /// Whether a file has these bytes there. What is damaged has not.
    async fn equal(&self, found: &Inode, from: u64, bytes: &[u8]) -> Result<bool, WriteError> {
        let to = from + bytes.len() as u64;
        if to > found.size {
            return Ok(false);
        }
        match self.writer.read_content(found, from..to).await {
            Ok(read) => Ok(read == bytes),
            Err(error) if error.is_damaged_content() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn is_zero(&self, found: &Inode, from: u64, length: u64) -> Result<bool, WriteError> {
        let end = from.saturating_add(length);
        if end > found.size {
            return Ok(false);
        }
        if let Layout::Inline(_) = found.layout {
            return self.equal(found, from, &vec![0; length as usize]).await;
        }
        // Holes are not read: only what lies in extents can be something else.
        for (start, extent) in self.writer.extents_around(found, &(from..end)).await? {
            let (mut at, to) = (start.max(from), (start + u64::from(extent.length)).min(end));
            while at < to {
                let next = to.min(at + COMPARED_BYTES);
                let zeros = vec![0; (next - at) as usize];
                if !self.equal(found, at, &zeros).await? {
                    return Ok(false);
                }
                at = next;
            }
        }
        Ok(true)
    }

    /// Gives a file that was written its name, in the place of what had it.
    async fn finish(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        mut stream: FileStream,
    ) -> Result<Option<Done>, WriteError> {
        if place.existing.is_some() {
            // All that takes room is done before the old one goes.
            let prepared = match self.writer.settle(&mut stream).await {
                Ok(()) => match self.check_quota(place, stream.size()).await {
                    Ok(()) => self.make_way(place, entry, stream.extents()).await,
                    refused => refused,
                },
                Err(error) => Err(error),
            };
            if let Err(error) = prepared {
                self.writer.abandon_file(stream);
                return Err(error);
            }
        }
        let made = self
            .writer
            .finish_file(stream, place.directory, place.name, &place.attributes)
            .await;
        made.map(|_| Some(Done::Made))
    }

    /// Whether a quota lets what stands in an entry's place be replaced by so many bytes: the old one must not go before the
    /// new one is refused.
    pub(super) async fn check_quota(&self, place: &Place<'_>, bytes: u64) -> Result<(), WriteError> {
        let Some(found) = &place.existing else {
            return Ok(());
        };
        let tree = self.writer.quota_tree(place.directory).await?;
        // One that has other names stays, and so does what it takes.
        let (files, freed) = match found.links {
            0 | 1 => (0, found.size),
            _ => (1, 0),
        };
        self.writer.check_quota(tree, files, bytes.saturating_sub(freed))
    }

    /// Removes a directory that stands in a file's place. Where much is in it, that is committed on the way: so it goes before anything of the
    /// file is packed, which a commit would count for nobody's.
    async fn clear_directory(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        bytes: u64,
    ) -> Result<(), WriteError> {
        let found = place.existing.as_ref();
        if found.is_none_or(|found| found.kind != Kind::Directory) {
            return Ok(());
        }
        self.check_quota(place, bytes).await?;
        let made = self.make_way(place, entry, 0).await;
        // What is kept for removals is not for the content that follows.
        self.writer.use_reserve(false);
        made
    }

    /// Removes what stands in an entry's place, if there is room for the one that comes with so many extents: what follows may take of
    /// the room that is kept for removals, or neither of both would be there.
    pub(super) async fn make_way(
        &mut self,
        place: &mut Place<'_>,
        entry: &ImportEntry,
        extents: usize,
    ) -> Result<(), WriteError> {
        let Some(found) = place.existing.clone() else {
            return Ok(());
        };
        let old = match found.layout {
            Layout::Mapped => self.writer.extents_around(&found, &(0..found.size)).await?.len(),
            _ => 0,
        };
        let pages = ((old + extents) * EXTENT_IN_PAGES_BYTES / PAGE_BYTES) as u64;
        self.writer.check_room_for(false, CHANGE_PAGES + pages)?;
        place.existing = None;
        self.writer.use_reserve(true);
        if found.kind == Kind::Directory {
            self.forget(&entry.path);
            if self.options.remove_directories {
                return self.remove_tree(place.directory, place.name, |_| true).await;
            }
        }
        self.writer.remove(place.directory, place.name).await
    }
}

fn missing_or(place: &Place<'_>, what: &'static str) -> Done {
    match place.existing {
        Some(_) => Done::Differs(what),
        None => Done::Differs("is not there"),
    }
}
