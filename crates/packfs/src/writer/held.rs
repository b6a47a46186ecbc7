//! Finding out what snapshots by name have, so that everything else can be used again beside them.
//!
//! The record of space says when a page was freed, not when it was born, and of content it says nothing. So the trees of the
//! snapshots are gone through, oldest first: their pages and the segments of their content are noted. A page that was born before
//! the snapshot before was made is in that one's tree too, with all below it, and is not read again: all of them together cost
//! each page once. A writer that makes a snapshot needs no walk for it, since it has what is in use at that commit.
//!
//! Cost: 4 KiB read for each page, once for each writer, and only when space is short, on request, or for a write that finds no
//! room. In memory some fifty bytes for each run of pages that lie side by side, and the pointers of the pages that wait beside the way down.
//! Whatever cannot be read ends the walk: then it is not known what is held, and all that was freed since the oldest snapshot stays.

use std::collections::VecDeque;
use std::rc::Rc;

use super::Writer;
use crate::cache::PageCache;
use crate::error::{TreeError, WriteError};
use crate::format::entry::{Entry, Inode, Layout};
use crate::format::extent::{Extent, decode_value};
use crate::format::key::Key;
use crate::format::page::Page;
use crate::format::snapshot::Snapshot;
use crate::format::{CodecError, PAGE_BYTES_U64, PagePointer};
use crate::io::Medium;
use crate::snapshots;
use crate::space::Ranges;
use crate::tree::inconsistent;

/// For pages that are read ahead of the walk.
const CACHE_BYTES: usize = 2 << 20;

/// What a writer knows of what snapshots by name have.
#[derive(Default)]
pub(super) struct Holding {
    /// A snapshot was deleted since the set of pages was made: it may have more than is held.
    stale: bool,
    walk: Option<Walk>,
    /// A walk failed. It is tried again on request alone: it would fail at every commit, and at every write that finds no room.
    failed: bool,
}

/// A page to read, and its level if its parent is known.
struct Visit {
    pointer: PagePointer,
    level: Option<u8>,
}

/// A walk that is under way.
struct Walk {
    cache: Rc<PageCache>,
    found: Ranges,
    /// Pages to read, the next one last.
    waiting: Vec<Visit>,
    /// Trees to go through after this one, oldest first: root and generation.
    trees: VecDeque<(PagePointer, u64)>,
    /// The generation of the tree that is gone through, and of the one before.
    generation: u64,
    before: u64,
    /// More pages than the volume has mean a circle.
    left: u64,
    volume_bytes: u64,
    segment_bytes: u64,
    #[cfg(test)]
    bug: crate::space::PlantedBug,
}

impl Walk {
    /// Reads one page; `false` when there is none left.
    async fn step(&mut self, medium: &Medium) -> Result<bool, TreeError> {
        let Some(Visit { pointer, level }) = self.waiting.pop() else {
            let Some((root, generation)) = self.trees.pop_front() else {
                return Ok(false);
            };
            self.before = self.generation;
            self.generation = generation;
            self.visit(root, None);
            return Ok(true);
        };
        let wrong = || inconsistent(pointer.page, CodecError::Inconsistent);
        self.left = self.left.checked_sub(1).ok_or_else(wrong)?;
        let page = self.cache.load(medium, pointer).await?;
        if level.is_some_and(|level| level != page.level()) || pointer.birth > self.generation {
            return Err(wrong());
        }
        self.found.add(pointer.page, 1);
        if page.level() == 0 {
            self.leaf(&page)
                .map_err(|source| inconsistent(pointer.page, source))?;
            return Ok(true);
        }
        let first = self.waiting.len();
        for index in (0..page.len()).rev() {
            self.visit(page.child(index), Some(page.level() - 1));
        }
        if page.level() == 1 {
            let children = self.waiting[first..].iter().rev().map(|visit| visit.pointer);
            self.cache.read_ahead(medium, children);
        }
        Ok(true)
    }

    /// What was born before the tree before this one was committed is in that one, with all below it.
    fn visit(&mut self, pointer: PagePointer, level: Option<u8>) {
        if pointer.birth > self.before {
            self.waiting.push(Visit { pointer, level });
        }
    }

    fn leaf(&mut self, page: &Page) -> Result<(), CodecError> {
        for index in 0..page.len() {
            let value = page.value(index);
            let inode = match Key::decode(&page.key(index))? {
                Key::Entry(..) => match Entry::decode(value)? {
                    Entry::Embedded(inode) => inode,
                    Entry::Link { .. } => continue,
                },
                Key::Inode(_) => Inode::decode(value)?,
                Key::Extents(..) => {
                    self.content(&decode_value(value)?);
                    continue;
                }
                _ => continue,
            };
            if let Layout::Extents(extents) = &inode.layout {
                self.content(extents);
            }
        }
        Ok(())
    }

    fn content(&mut self, extents: &[Extent]) {
        #[cfg(test)]
        if self.bug == crate::space::PlantedBug::ContentNotHeld {
            return;
        }
        for extent in extents {
            // What a repair could not find stands outside of the volume.
            let Some(end) = extent.end().filter(|end| *end <= self.volume_bytes) else {
                continue;
            };
            let from = extent.address / self.segment_bytes * self.segment_bytes;
            // The volume's last segment may be cut off, and then is none.
            let to = end.checked_next_multiple_of(self.segment_bytes).unwrap_or(end);
            let to = to.min(self.volume_bytes).div_ceil(PAGE_BYTES_U64);
            let from = from / PAGE_BYTES_U64;
            self.found.add(from, to - from);
        }
    }
}

impl Writer {
    /// Whether it is known what snapshots have, or there are none.
    pub(super) fn knows_held(&self) -> bool {
        self.snapshot_floor().0.is_none() || self.space.knows_held()
    }

    /// Whether a walk would tell more, and may begin: what a tree that may come back has counts, too.
    fn may_learn_held(&self) -> bool {
        let is_exact = self.space.knows_held() && !self.holding.stale;
        self.snapshot_floor().0.is_some() && !is_exact && self.floors_are_settled()
    }

    /// A snapshot was made of the last commit.
    pub(super) fn hold_new_snapshot(&mut self) {
        #[cfg(test)]
        if self.space.bug == crate::space::PlantedBug::SnapshotNotHeld {
            self.space.hold(Ranges::default());
            return;
        }
        if self.snapshot_floor().0.is_none() {
            // It is the only one.
            self.space.hold(Ranges::default());
            self.holding = Holding::default();
        }
        self.space.hold_what_is_used(self.volume_bytes);
        if let Some(walk) = &mut self.holding.walk {
            for (start, count) in self.space.used(self.volume_bytes / PAGE_BYTES_U64).iter() {
                walk.found.add(start, count);
            }
        }
    }

    /// A snapshot was deleted: more may be free than is known.
    pub(super) fn unhold_snapshot(&mut self) {
        self.holding.stale = true;
        self.holding.failed = false;
        // It goes through the deleted one still.
        self.holding.walk = None;
    }

    /// After a commit or a deletion: without snapshots there is nothing to know.
    pub(super) fn forget_held_without_snapshots(&mut self) {
        if self.snapshot_floor().0.is_none() && self.space.knows_held() {
            self.space.forget_held();
            self.holding = Holding::default();
        }
    }

    async fn begin_walk(&self) -> Result<Walk, TreeError> {
        let mut listed: Vec<Snapshot> = snapshots::list(&self.tree).await?;
        listed.sort_by_key(|snapshot| snapshot.generation);
        let trees = listed.iter().map(|snapshot| (snapshot.root, snapshot.generation));
        Ok(Walk {
            cache: PageCache::new(CACHE_BYTES),
            found: Ranges::default(),
            waiting: Vec::new(),
            trees: trees.collect(),
            generation: 0,
            before: 0,
            left: self.volume_bytes / PAGE_BYTES_U64,
            volume_bytes: self.volume_bytes,
            segment_bytes: self.space.segment_pages() * PAGE_BYTES_U64,
            #[cfg(test)]
            bug: self.space.bug,
        })
    }

    /// Reads so many pages more; at the end it is known what snapshots have.
    async fn walk_held(&mut self, pages: u64) -> Result<(), TreeError> {
        let mut walk = match self.holding.walk.take() {
            Some(walk) => walk,
            None => self.begin_walk().await?,
        };
        for _ in 0..pages {
            if !walk.step(&self.medium).await? {
                self.space.hold(walk.found);
                self.holding.stale = false;
                return Ok(());
            }
        }
        self.holding.walk = Some(walk);
        Ok(())
    }

    /// Whether what snapshots have was tried to find out, in vain.
    pub(super) fn has_failed_to_learn_held(&self) -> bool {
        self.holding.failed
    }

    /// Reads a little of it along with a commit. Nobody asked for it: what fails is tried again on request.
    pub(crate) async fn learn_held_along(&mut self, pages: u64) {
        if self.may_learn_held() && !self.holding.failed {
            self.holding.failed = self.walk_held(pages).await.is_err();
        }
    }

    /// Finds out what snapshots have, and makes free what they have not. Commits, unless all that is known.
    ///
    /// # Errors
    /// What a page of a snapshot's tree cannot be read for; as [`Writer::commit`].
    pub(super) async fn learn_held(&mut self) -> Result<(), WriteError> {
        while self.snapshot_floor().0.is_some() && !self.floors_are_settled() {
            self.commit_always().await?;
        }
        if self.may_learn_held() {
            let walked = self.walk_held(u64::MAX).await;
            self.holding.failed = walked.is_err();
            walked?;
            self.release_space().await;
            // What was found out is worth keeping.
            self.commit_always().await?;
        }
        Ok(())
    }
}
