//! Bytes that several extents have: how many do is counted, and the last one gives them back.
//!
//! Cost: an extent that begins or ends to have bytes costs a look at the record and at most four changes of it; nothing while no
//! bytes are shared.

use std::ops::Range;

use super::Writer;
use crate::error::{TreeError, WriteError};
use crate::format::extent::Extent;
use crate::format::key::{Key, shared_prefix};
use crate::format::shared::Shared;
use crate::format::superblock::Features;
use crate::format::{CodecError, PAGE_BYTES_U64};
use crate::shared::{Change, Record, Run, change};
use crate::tree::inconsistent;

fn cell(key: &[u8], value: &[u8]) -> Result<(u64, Shared), TreeError> {
    let malformed = |source| inconsistent(0, source);
    let Key::Shared(start) = Key::decode(key).map_err(malformed)? else {
        return Err(malformed(CodecError::Inconsistent));
    };
    Ok((start, Shared::decode(start, value).map_err(malformed)?))
}

impl Writer {
    pub(super) fn segment_bytes(&self) -> u64 {
        self.space.segment_pages() * PAGE_BYTES_U64
    }

    fn shares(&self) -> bool {
        self.features.has(Features::SHARED)
    }

    /// Whether an extent lies in a data segment. What lies elsewhere is damage, and nobody counts it.
    pub(super) fn is_counted(&self, extent: &Extent) -> bool {
        let segment = self.space.segment_of(extent.address);
        let end = (segment * PAGE_BYTES_U64).saturating_add(self.segment_bytes());
        self.space.segments().contains_key(&segment) && extent.end().is_some_and(|past| past <= end)
    }

    /// What extents have, those that follow each other in a segment as one.
    fn ranges(&self, extents: &[Extent]) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(extents.len());
        for extent in extents.iter().filter(|extent| self.is_counted(extent)) {
            let end = extent.address + u64::from(extent.length);
            match ranges.last_mut() {
                Some(last)
                    if last.end == extent.address && !last.end.is_multiple_of(self.segment_bytes()) =>
                {
                    last.end = end;
                }
                _ => ranges.push(extent.address..end),
            }
        }
        ranges
    }

    /// The runs of the record that touch a range.
    async fn shared_around(&self, range: &Range<u64>) -> Result<Record, TreeError> {
        let prefix = shared_prefix();
        let mut found = Record::new();
        let before = Key::Shared(range.start.saturating_sub(1)).encode();
        if let Some((key, value)) = self.tree.last_at_or_before(&before, &prefix).await? {
            let (start, shared) = cell(&key, &value)?;
            if start + shared.length >= range.start {
                found.insert(start, shared);
            }
        }
        let mut from = Key::Shared(range.start).encode();
        while let Some((mut key, value)) = self.tree.first_with_prefix(&from, &prefix).await? {
            let (start, shared) = cell(&key, &value)?;
            if start > range.end {
                break;
            }
            found.insert(start, shared);
            key.push(0);
            from = key;
        }
        Ok(found)
    }

    async fn change_of(&self, range: &Range<u64>, by: i64) -> Result<Change, WriteError> {
        let around = self.shared_around(range).await?;
        let change = change(&around, range, by, self.segment_bytes());
        Ok(change.map_err(|source| inconsistent(0, source))?)
    }

    async fn change_users(&mut self, range: &Range<u64>, by: i64) -> Result<(), WriteError> {
        let change = self.change_of(range, by).await;
        // Who called has changed something already.
        self.broken |= change.is_err();
        let change = change?;
        for start in change
            .taken
            .keys()
            .filter(|start| !change.put.contains_key(start))
        {
            self.take(&Key::Shared(*start).encode()).await?;
        }
        for (start, shared) in &change.put {
            self.put(Key::Shared(*start).encode(), shared.encode()).await?;
        }
        self.note_shared(&change);
        for dead in change.dead {
            self.space.remove_live(dead.start, dead.end - dead.start);
        }
        Ok(())
    }

    /// Reads everything that [`Writer::give_back`] changes, so that damage is met before anything does.
    pub(super) async fn check_shared(&self, extents: &[Extent]) -> Result<(), WriteError> {
        if self.shares() {
            for range in self.ranges(extents) {
                self.change_of(&range, -1).await?;
            }
        }
        Ok(())
    }

    /// Extents that a file has no more: their bytes are free unless others have them too. Extents outside every segment are damage
    /// that `verify` reports.
    ///
    /// # Errors
    /// The record of shared bytes cannot be read; that leaves the writer broken.
    pub(crate) async fn give_back(&mut self, extents: &[Extent]) -> Result<(), WriteError> {
        if !self.shares() {
            self.forget(extents);
            return Ok(());
        }
        for range in self.ranges(extents) {
            self.change_users(&range, -1).await?;
        }
        Ok(())
    }

    /// The same for extents that were packed and that no file has had.
    pub(crate) fn forget(&mut self, extents: &[Extent]) {
        if let Some(started) = &mut self.started {
            started.forget(extents);
            return;
        }
        for extent in extents {
            self.space.remove_live(extent.address, u64::from(extent.length));
        }
    }

    /// Bytes that some extents have get so many users more.
    pub(super) async fn share(&mut self, runs: &[Run]) -> Result<(), WriteError> {
        if runs.is_empty() {
            return Ok(());
        }
        self.features = self.features.with(Features::SHARED);
        #[cfg(test)]
        if self.space.bug == crate::space::PlantedBug::SharedNotCounted {
            return Ok(());
        }
        for Run { bytes, users } in runs {
            // There are not as many extents as that.
            let users = i64::try_from(*users).unwrap_or(i64::MAX);
            self.change_users(bytes, users).await?;
        }
        Ok(())
    }

    /// Lets older programs open the volume again where nothing is shared any more, in no snapshot either.
    pub(super) async fn end_sharing(&mut self) {
        let prefix = shared_prefix();
        // A record that cannot be read is no reason not to commit.
        if self.shares()
            && self.has_no_snapshots()
            && let Ok(None) = self.tree.first_with_prefix(&prefix, &prefix).await
        {
            self.features = self.features.without(Features::SHARED);
        }
    }

    /// The whole record.
    pub(crate) async fn shared(&self) -> Result<Record, WriteError> {
        let mut record = Record::new();
        if !self.shares() {
            return Ok(record);
        }
        let prefix = shared_prefix();
        let mut from = Some(prefix.clone());
        while let Some(at) = from {
            let part = self.tree.part(&prefix, &at).await?;
            for (key, value) in &part.cells {
                let (start, shared) = cell(key, value)?;
                record.insert(start, shared);
            }
            from = part.next;
        }
        Ok(record)
    }
}
