//! Reading content through the writer: what was committed, and what is on its way.

use std::ops::Range;

use bdev::IoError;
use foundation::checksum::crc32c;

use super::Writer;
use crate::error::{ReadError, WriteError, is_of_now};
use crate::format::PAGE_BYTES_U64;
use crate::format::entry::{Inode, Layout};
use crate::format::extent::Extent;
use crate::name::Shown;

impl Writer {
    /// The bytes `range` of an inode's content, uncommitted ones included; holes are zeros. The range lies inside the
    /// content.
    pub(crate) async fn read_content(&self, inode: &Inode, range: Range<u64>) -> Result<Vec<u8>, WriteError> {
        self.read_content_where(inode, range, |_| true).await
    }

    /// The same, of extents of whose part in the range `counts` says that it counts; the others are not read, and zeros.
    pub(crate) async fn read_content_where(
        &self,
        inode: &Inode,
        range: Range<u64>,
        counts: impl Fn(&Range<u64>) -> bool,
    ) -> Result<Vec<u8>, WriteError> {
        let mut out = vec![0; (range.end - range.start) as usize];
        if let Layout::Inline(bytes) = &inode.layout {
            let part = bytes.get(range.start as usize..range.end as usize);
            out.copy_from_slice(part.unwrap_or(&[]));
            return Ok(out);
        }
        for (start, extent) in self.extents_around(inode, &range).await? {
            let end = start + u64::from(extent.length);
            let (from, to) = (start.max(range.start), end.min(range.end));
            if from >= to || !counts(&(from..to)) {
                continue;
            }
            let bytes = self.read_extent(inode, &extent).await?;
            let target = (from - range.start) as usize..(to - range.start) as usize;
            out[target].copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
        Ok(out)
    }

    /// An extent's bytes, verified. They are damaged only if every copy that was asked was there to say so: one that was not may have them
    /// right.
    pub(crate) async fn read_extent(&self, inode: &Inode, extent: &Extent) -> Result<Vec<u8>, WriteError> {
        let length = u64::from(extent.length);
        let waiting = self.packer.find(extent.address, length);
        if let Some(bytes) = waiting.or_else(|| self.outbox.find(extent.address, length)) {
            return Ok(bytes);
        }
        let path = || Shown::new(format!("inode {}", inode.number).as_bytes());
        let block = extent.address / PAGE_BYTES_U64;
        let (start, wide) = self.medium.widen(extent.address, length);
        if start.saturating_add(wide) > self.medium.capacity_bytes() {
            let (path, source) = (path(), IoError::OutOfRange);
            return Err(ReadError::Io { path, block, source }.into());
        }
        let (mut failure, mut away, mut has_place) = (None, None, false);
        let mut attempts = self.medium.attempts();
        loop {
            let buffer = self.medium.pool().allocate(wide as usize).await?;
            match attempts.read(start, buffer).await {
                Ok(None) => break,
                Ok(Some(buffer)) => {
                    let from = (extent.address - start) as usize;
                    let bytes = &buffer[from..from + extent.length as usize];
                    if crc32c(bytes) == extent.checksum {
                        return Ok(bytes.to_vec());
                    }
                    (failure, has_place) = (None, true);
                }
                Err(error) => {
                    has_place |= error != IoError::OutOfRange;
                    match error {
                        IoError::Media | IoError::Checksum => failure = failure.or(Some(error)),
                        other => away = away.filter(|&met| is_of_now(met)).or(Some(other)),
                    }
                }
            }
        }
        if away.is_none() {
            away = attempts.away().await;
        }
        let path = path();
        // A copy that has no such place, where another one has, has not grown yet.
        let away = away.map(|error| match error {
            IoError::OutOfRange if has_place => IoError::Unavailable,
            other => other,
        });
        let failure = away.or(failure);
        if failure.is_none() {
            // What was never written is no damage.
            self.outbox.failure().await?;
            self.medium.ensure_damage().await?;
        }
        Err(match failure {
            Some(source) => ReadError::Io { path, block, source },
            None => ReadError::Damaged {
                path,
                block,
                length: extent.length,
            },
        }
        .into())
    }
}
