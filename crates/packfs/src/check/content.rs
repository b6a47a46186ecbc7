//! Reading every extent, in the order in which they lie on the volume.

use bdev::IoError;
use foundation::checksum::crc32c;

use super::bytes::ByteRow;
use super::names::Names;
use super::{Job, Problem, Progress, Tell, VerifyReport};
use crate::format::PAGE_BYTES_U64;
use crate::format::extent::Extent;
use crate::io::Medium;

/// What reading an extent's bytes came to.
#[derive(Clone, Copy)]
enum Read {
    Failed(IoError),
    Checksum(u32),
}

/// See the module.
pub(super) struct Content<'a> {
    job: &'a Job<'a>,
    done: u64,
    /// The extent read last: another that shares its bytes is not read again.
    last: Option<(Extent, Read)>,
}

impl<'a> Content<'a> {
    pub(super) fn new(job: &'a Job<'a>) -> Self {
        Self {
            job,
            done: 0,
            last: None,
        }
    }

    /// Reads the extents among these rows, if content is to be read.
    pub(super) async fn check(
        &mut self,
        rows: &[ByteRow],
        names: &Names,
        report: &mut VerifyReport,
        tell: &mut Tell<'_>,
    ) {
        if !self.job.options.read_content {
            return;
        }
        for (inode, extent) in rows.iter().filter_map(ByteRow::as_extent) {
            if !self.job.hold.is_held() {
                break;
            }
            tell(Progress {
                stage: "reading content",
                done: self.done,
                total: report.extents,
            });
            self.done += 1;
            let block = extent.address / PAGE_BYTES_U64;
            match self.read(&extent).await {
                Read::Checksum(found) if found == extent.checksum => {}
                Read::Checksum(_) => report.add(Problem::Extent {
                    path: names.path(inode).await,
                    block,
                    length: extent.length,
                }),
                Read::Failed(source) => report.add(Problem::ExtentIo {
                    path: names.path(inode).await,
                    block,
                    source,
                }),
            }
        }
    }

    async fn read(&mut self, extent: &Extent) -> Read {
        if let Some((last, read)) = &self.last
            && (last.address, last.length) == (extent.address, extent.length)
        {
            return *read;
        }
        let read = read(self.job.medium, extent).await;
        self.last = Some((*extent, read));
        read
    }
}

async fn read(medium: &Medium, extent: &Extent) -> Read {
    let (start, length) = medium.widen(extent.address, u64::from(extent.length));
    let length = match usize::try_from(length) {
        Ok(bytes) if start.saturating_add(length) <= medium.capacity_bytes() => bytes,
        _ => return Read::Failed(IoError::OutOfRange),
    };
    let from = (extent.address - start) as usize;
    // Right on one copy is right: that is how it is read. Wrong is what is on none, also not on one that is away.
    let check = |bytes: &[u8]| match crc32c(&bytes[from..from + extent.length as usize]) {
        found if found == extent.checksum => Ok(found),
        other => Err(other),
    };
    match medium.read_checked_by_all(start, length, check).await {
        Err(source) => Read::Failed(source),
        Ok(Ok(found) | Err(found)) => Read::Checksum(found),
    }
}
