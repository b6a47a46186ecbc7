//! Writing a file whose bytes come in pieces.

use super::Writer;
use super::extents::{LENGTHS_MAX, Placed};
use crate::error::WriteError;
use crate::format::entry::{Attributes, INLINE_BYTES_MAX, Kind};
use crate::format::extent::Extent;
use crate::format::key::InodeNumber;
use crate::name::check_name;

/// A file that is being written; its name appears with [`Writer::finish_file`]. Dropping it leaves its bytes
/// counted as used until then; end it with [`Writer::abandon_file`].
#[derive(Debug, Default)]
pub struct FileStream {
    pending: Vec<u8>,
    /// Where the first byte that is pending belongs.
    pending_at: u64,
    placed: Vec<Placed>,
    size: u64,
    holes: bool,
}

impl FileStream {
    /// Bytes so far, holes included.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Extents so far.
    pub(crate) fn extents(&self) -> usize {
        self.placed.len()
    }
}

impl Writer {
    /// Begins a file.
    pub fn begin_file(&self) -> FileStream {
        FileStream::default()
    }

    /// Adds bytes. Holds at most one extent in memory. Waits for writes in flight.
    pub async fn append(&mut self, stream: &mut FileStream, bytes: &[u8]) -> Result<(), WriteError> {
        let limit = self.parameters().extent_bytes_max as usize;
        let mut rest = bytes;
        while !rest.is_empty() {
            let part = rest.len().min(limit - stream.pending.len());
            stream.pending.extend_from_slice(&rest[..part]);
            rest = &rest[part..];
            // A full extent waits for the byte that proves the file to be longer: one that ends here packs whole.
            if stream.pending.len() == limit && !rest.is_empty() {
                self.pack_pending(stream).await?;
            }
        }
        stream.size += bytes.len() as u64;
        Ok(())
    }

    /// Adds a hole of `length` bytes, which reads as zeros and takes no space. Waits for writes in flight.
    pub async fn append_hole(&mut self, stream: &mut FileStream, length: u64) -> Result<(), WriteError> {
        if length == 0 {
            return Ok(());
        }
        if !stream.pending.is_empty() {
            self.pack_pending(stream).await?;
        }
        let size = stream
            .size
            .checked_add(length)
            .filter(|&size| size <= LENGTHS_MAX);
        stream.size = size.ok_or(WriteError::OutOfRange {
            what: "the length",
            inode: InodeNumber(self.next_inode),
        })?;
        stream.pending_at = stream.size;
        stream.holes = true;
        Ok(())
    }

    /// Packs what is left of a file, so that giving it its name takes no more room for content.
    pub(crate) async fn settle(&mut self, stream: &mut FileStream) -> Result<(), WriteError> {
        match stream.placed.is_empty() && !stream.holes && stream.pending.len() <= INLINE_BYTES_MAX {
            true => Ok(()),
            false if stream.pending.is_empty() => Ok(()),
            false => self.pack_pending(stream).await,
        }
    }

    async fn pack_pending(&mut self, stream: &mut FileStream) -> Result<(), WriteError> {
        let bytes = std::mem::take(&mut stream.pending);
        for extent in self.pack(&bytes).await? {
            stream.placed.push((stream.pending_at, extent));
            stream.pending_at += u64::from(extent.length);
        }
        Ok(())
    }

    /// Gives the file its name.
    pub async fn finish_file(
        &mut self,
        mut stream: FileStream,
        directory: InodeNumber,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<InodeNumber, WriteError> {
        if stream.placed.is_empty() && !stream.holes {
            return self
                .create_file(directory, name, attributes, &stream.pending)
                .await;
        }
        let checked = match check_name(name) {
            Ok(()) if stream.pending.is_empty() => Ok(()),
            Ok(()) => self.pack_pending(&mut stream).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = checked {
            self.abandon_file(stream);
            return Err(error);
        }
        let FileStream {
            placed, size, holes, ..
        } = stream;
        if holes {
            return self
                .create_with_holes(directory, name, attributes, size, &placed)
                .await;
        }
        self.create_with_extents(directory, name, attributes, Kind::File, size, extents(&placed))
            .await
    }

    /// Gives the space of an unfinished file back.
    pub fn abandon_file(&mut self, stream: FileStream) {
        self.forget(&extents(&stream.placed));
    }
}

fn extents(placed: &[Placed]) -> Vec<Extent> {
    placed.iter().map(|(_, extent)| *extent).collect()
}
