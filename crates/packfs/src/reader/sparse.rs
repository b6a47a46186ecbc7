//! Content with holes.

use std::ops::Range;

use super::fetch::Fetched;
use super::planner::Piece;
use super::read_many::arrived;
use super::{Content, OpenFile, Part, Reader};
use crate::error::ReadError;
use crate::sparse::{Seek, data_after};

impl Reader {
    /// The first byte at or after `offset` of a file that is content, or that is in a hole; `None` at the end of the file or behind
    /// it, and where only a hole follows what was to be content.
    pub async fn seek(&self, file: &OpenFile, offset: u64, what: Seek) -> Result<Option<u64>, ReadError> {
        let inode = &*file.inode;
        let mut at = offset;
        while at < inode.size {
            let found = data_after(&self.0.tree, inode, at).await;
            self.check_lease()?;
            let run = found.map_err(|error| self.tree_error(file.path.bytes(), error))?;
            match (run, what) {
                (Some(run), Seek::Data) => {
                    let at = run.start.max(offset);
                    return Ok((at < inode.size).then_some(at));
                }
                (Some(run), Seek::Hole) if run.start <= at => at = run.end,
                (None, Seek::Data) => return Ok(None),
                (_, Seek::Hole) => return Ok(Some(at)),
            }
        }
        Ok((offset < inode.size).then_some(inode.size))
    }
}

/// Puts extents that begin at `starts` and the zeros between them together to the bytes `wanted` of a file.
pub(super) fn assemble(
    indices: Range<usize>,
    starts: &[u64],
    wanted: Range<u64>,
    pieces: &[Piece],
    fetched: &[Option<Fetched>],
    path: &[u8],
) -> Result<Content, ReadError> {
    let mut parts = Vec::with_capacity(2 * indices.len() + 1);
    let mut reached = wanted.start;
    for (index, &start) in indices.zip(starts) {
        let buffer = arrived(&pieces[index].extent, &fetched[index], path)?;
        let from = start.max(wanted.start);
        let to = (start + buffer.len() as u64).min(wanted.end);
        put_zeros(&mut parts, reached, from);
        let inside = (from - start) as usize..(to - start) as usize;
        parts.push(Part::Device(buffer.slice(inside)));
        reached = to;
    }
    put_zeros(&mut parts, reached, wanted.end);
    Ok(Content::of(parts))
}

fn put_zeros(parts: &mut Vec<Part>, from: u64, to: u64) {
    if from < to {
        // The batch's budget has counted them, so they fit into memory.
        parts.push(Part::Index(vec![0; (to - from) as usize].into()));
    }
}
