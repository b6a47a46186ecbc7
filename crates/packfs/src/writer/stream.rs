//! Writing a file whose bytes come in pieces.

use super::Writer;
use crate::error::WriteError;
use crate::format::entry::{Attributes, Kind};
use crate::format::extent::Extent;
use crate::format::key::InodeNumber;
use crate::name::check_name;

/// A file that is being written; its name appears with [`Writer::finish_file`]. Dropping it leaves its bytes
/// counted as used until then; end it with [`Writer::abandon_file`].
#[derive(Debug, Default)]
pub struct FileStream {
    pending: Vec<u8>,
    extents: Vec<Extent>,
    size: u64,
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

    async fn pack_pending(&mut self, stream: &mut FileStream) -> Result<(), WriteError> {
        let bytes = std::mem::take(&mut stream.pending);
        let extents = self.pack(&bytes).await?;
        stream.extents.extend(extents);
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
        if stream.extents.is_empty() {
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
        let FileStream { extents, size, .. } = stream;
        self.create_with_extents(directory, name, attributes, Kind::File, size, extents)
            .await
    }

    /// Gives the space of an unfinished file back.
    pub fn abandon_file(&mut self, stream: FileStream) {
        self.give_back(&stream.extents);
    }
}
