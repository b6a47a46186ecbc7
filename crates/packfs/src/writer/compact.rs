//! Compaction: what is live in mostly dead segments is copied out, so that they can be used again.
//!
//! A pass chooses segments ([`crate::space`], `victims`) and goes once through the index in the order of its keys, some
//! leaves at a time. Extents that lie in a chosen segment are written anew like any other content, through the same
//! packing and the same commit; an emptied segment is freed by the commit that empties it and used again under the same
//! rule as everything else. So readers and crashes see nothing new. Cost of a pass: each leaf of entries, inodes and
//! extents read once, each live byte of the chosen segments read and written once, each leaf that names one changed
//! once. Nothing about a pass stands on the volume: one that is cut off is as if it had ended there.
//!
//! A segment in which a snapshot by name has anything is not chosen: the snapshot would hold it, emptied or not (`held`). What stands in
//! the others was written after the newest snapshot was made, and so were the leaves that name it: moving it makes no second copy of
//! anything that a snapshot has, neither of content nor of index.
//!
//! A segment in which anything is shared is not chosen: nothing says who has the bytes of an extent besides, and moving it for one would make
//! two of them. Which these are is read from the record of shared bytes before the first pass, and kept in memory then.

use std::collections::{BTreeMap, BTreeSet};

use foundation::ByteCount;

use super::Writer;
use super::namespace::Place;
use crate::error::WriteError;
use crate::format::PAGE_BYTES_U64;
use crate::format::entry::{Entry, Inode, Layout};
use crate::format::extent::{Extent, decode_value};
use crate::format::key::{InodeNumber, Key};
use crate::shared::Change;
use crate::tree::inconsistent;

/// What a commit moves along at most, in bytes, and the leaves of the index that it looks at for it.
const ALONG_BYTES: u64 = 1 << 20;
const ALONG_LEAVES: usize = 64;
/// The same between two commits of a pass that somebody waits for.
const STEP_BYTES: u64 = 8 << 20;
const STEP_LEAVES: usize = 512;
/// With more commits whose freed pages wait, what snapshots have is found out, however much is free.
const WAITING_COMMITS_MAX: usize = 4096;
/// Passes that are made for one write that finds no room.
const RECLAIM_PASSES: usize = 64;
/// First bytes of the keys of extents, and of what comes behind them.
const EXTENTS_KEYS: u8 = 0x50;
const BEHIND_EXTENTS: u8 = 0x60;
/// First byte of the keys of names, which lie between inodes and extents and lead to no content.
const NAME_KEYS: u8 = 0x30;

/// How far a pass is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionProgress {
    /// Passes begun.
    pub passes: u64,
    /// Segments chosen, of all passes.
    pub segments: u64,
    /// Live bytes that stood in them when they were chosen.
    pub planned: ByteCount,
    /// Bytes moved.
    pub moved: ByteCount,
    /// Extents that could not be read, and stay where they are with their segments.
    pub unreadable: u64,
}

struct Pass {
    victims: BTreeSet<u64>,
    /// Where the next leaf begins.
    cursor: Vec<u8>,
}

/// What a writer remembers between passes.
#[derive(Default)]
pub(super) struct Compaction {
    pass: Option<Pass>,
    /// Segments that a pass went by, and what is live in them nevertheless.
    stuck: BTreeMap<u64, u64>,
    /// Dead bytes that were left by a pass that gained nothing: the next would not either.
    left: u64,
    /// Dead bytes when the pass began, and those of them in chosen segments.
    dead: u64,
    hoped: u64,
    progress: CompactionProgress,
    /// Shared bytes by segment, once they were read.
    shared: Option<BTreeMap<u64, u64>>,
    /// Content that is moved may use the room that is kept for moving.
    pub(super) moving: bool,
}

enum Step {
    Goes,
    Ended,
}

impl Writer {
    /// How far compaction is since this writer was opened.
    pub fn compaction(&self) -> CompactionProgress {
        self.compaction.progress
    }

    /// Bytes in data segments that no file uses and that only compaction makes free.
    pub fn dead_bytes(&self) -> ByteCount {
        ByteCount(self.space.dead_bytes())
    }

    /// Moves a little along with a commit, where much is dead and little free. Failures that leave the writer usable
    /// end the pass and are nobody's.
    pub(super) async fn compact_along(&mut self) -> Result<(), WriteError> {
        if self.compaction.pass.is_none() {
            let volume = self.volume_bytes;
            // Each commit since the oldest snapshot is remembered until it is known what that has.
            if self.space.waiting_commits() > WAITING_COMMITS_MAX {
                self.learn_held_along(ALONG_LEAVES as u64).await;
            }
            if self.free_bytes().0 >= volume / 4 {
                return Ok(());
            }
            let held = self.held_bytes().0;
            if held > volume / 16 || self.space.dead_bytes() > volume / 8 {
                self.learn_held_along(ALONG_LEAVES as u64).await;
            }
            let (dead, left) = (self.space.gainable_bytes(), self.compaction.left);
            let much = dead > volume / 8 && dead > left + volume / 16;
            // What readers hold would only grow.
            let waits = self.waiting_bytes().0.saturating_sub(held) > volume / 8;
            if !much || waits {
                return Ok(());
            }
            match self.begin_pass().await {
                Ok(true) => {}
                // Whoever needs what cannot be read will be told.
                Ok(false) | Err(_) => return Ok(()),
            }
        }
        match self.compact_step(ALONG_BYTES, ALONG_LEAVES).await {
            Err(error) if self.broken => Err(error),
            Err(_) => {
                self.end_pass();
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Chooses segments; `false` where none is worth it, there is no room to move anything to, or it is not known what snapshots have.
    async fn begin_pass(&mut self) -> Result<bool, WriteError> {
        if !self.knows_held() {
            return Ok(false);
        }
        let segment = self.space.segment_pages();
        let kept = match self.is_beside_readers() {
            true => self.pages_kept() + 8,
            false => self.pages_needed() + 32,
        };
        let spare = self.space.free_pages().saturating_sub(kept);
        // Half of the room, so that what is freed meanwhile may wait for its commits.
        let segments = match spare / segment {
            0 => return Ok(false),
            n => n.div_ceil(2),
        };
        // Packing leaves gaps.
        let budget = segments * segment * PAGE_BYTES_U64 / 8 * 7;
        let open = self.packer.open_segment();
        self.load_shared().await?;
        let Compaction { stuck, shared, .. } = &self.compaction;
        let is_shared = |start| shared.as_ref().is_some_and(|shared| shared.contains_key(&start));
        let victims = self.space.victims(open, budget, stuck, is_shared);
        if victims.is_empty() {
            return Ok(false);
        }
        let planned: u64 = victims.iter().map(|&start| self.space.live_bytes(start)).sum();
        let progress = &mut self.compaction.progress;
        progress.passes += 1;
        progress.segments += victims.len() as u64;
        progress.planned.0 += planned;
        let cursor = Vec::new();
        self.compaction.dead = self.space.gainable_bytes();
        self.compaction.hoped = (victims.len() as u64 * segment * PAGE_BYTES_U64).saturating_sub(planned);
        self.compaction.pass = Some(Pass { victims, cursor });
        Ok(true)
    }

    /// Whether there were readers that stay when they were asked for last, by a commit at the latest, or there was no answer. What is emptied beside
    /// them waits for them, so that the room it takes to empty it is gone until then: what is kept for removals is left alone. One that follows has
    /// the newest commit, or, right after one, the commit before.
    pub(super) fn is_beside_readers(&self) -> bool {
        let follows = self.superblock.generation.saturating_sub(1);
        let stays = |lowest: u64| lowest < follows;
        self.readers.is_none_or(|floor| floor.0.is_some_and(stays))
    }

    async fn load_shared(&mut self) -> Result<(), WriteError> {
        if self.compaction.shared.is_none() {
            let mut shared = BTreeMap::new();
            for (start, run) in self.shared().await? {
                *shared.entry(self.space.segment_of(start)).or_default() += run.length;
            }
            self.compaction.shared = Some(shared);
        }
        Ok(())
    }

    /// The record of shared bytes changes: segments begin or end to be left alone.
    pub(super) fn note_shared(&mut self, change: &Change) {
        let Compaction {
            shared: Some(shared),
            pass,
            ..
        } = &mut self.compaction
        else {
            return;
        };
        for (start, run) in &change.put {
            let segment = self.space.segment_of(*start);
            *shared.entry(segment).or_default() += run.length;
            if let Some(pass) = pass {
                pass.victims.remove(&segment);
            }
        }
        for (start, run) in &change.taken {
            let segment = self.space.segment_of(*start);
            if let Some(bytes) = shared.get_mut(&segment) {
                *bytes = bytes.saturating_sub(run.length);
                if *bytes == 0 {
                    shared.remove(&segment);
                }
            }
        }
    }

    /// What a pass has emptied is no matter of it any more: a commit gives it back, and the packer may take it anew, for what the pass moves
    /// itself. That would then be moved to and fro for ever. Before anything that was emptied can be taken.
    pub(super) fn leave_emptied(&mut self) {
        if let Some(pass) = &mut self.compaction.pass {
            let space = &self.space;
            pass.victims.retain(|&start| space.live_bytes(start) > 0);
        }
    }

    /// Gives a pass up: a new snapshot has whatever it would move.
    pub(super) fn stop_pass(&mut self) {
        self.compaction.pass = None;
    }

    fn end_pass(&mut self) {
        let Some(pass) = self.compaction.pass.take() else {
            return;
        };
        self.compaction
            .stuck
            .retain(|start, _| self.space.live_bytes(*start) > 0);
        for start in pass.victims {
            let live = self.space.live_bytes(start);
            if live > 0 {
                self.compaction.stuck.insert(start, live);
            }
        }
        let dead = self.space.gainable_bytes();
        let gained = self.compaction.dead.saturating_sub(dead) >= self.compaction.hoped / 4;
        self.compaction.left = if gained { 0 } else { dead };
    }

    /// Goes on with the pass, for so many bytes or leaves; [`Step::Ended`] without one.
    async fn compact_step(&mut self, bytes: u64, leaves: usize) -> Result<Step, WriteError> {
        let Some(mut pass) = self.compaction.pass.take() else {
            return Ok(Step::Ended);
        };
        self.compaction.moving = true;
        let step = self.go_on(&mut pass, bytes, leaves).await;
        self.compaction.moving = false;
        self.compaction.pass = Some(pass);
        if let Ok(Step::Ended) = step {
            self.end_pass();
        }
        step
    }

    async fn go_on(&mut self, pass: &mut Pass, bytes: u64, leaves: usize) -> Result<Step, WriteError> {
        let until = self.compaction.progress.moved.0 + bytes;
        for _ in 0..leaves {
            debug_assert!(
                self.packer
                    .open_segment()
                    .is_none_or(|open| !pass.victims.contains(&open)),
                "what is moved out of a segment goes into another"
            );
            let batch = self.tree.batch(&pass.cursor).await?;
            for (key, value) in batch.cells {
                self.move_cell(pass, &key, &value).await?;
                // Behind this one, also where the next is the one that finds no room.
                pass.cursor = key;
                pass.cursor.push(0);
                if self.compaction.progress.moved.0 >= until {
                    return Ok(Step::Goes);
                }
            }
            match batch.next {
                None => return Ok(Step::Ended),
                Some(next) => pass.cursor = next,
            }
            match pass.cursor.first() {
                Some(&kind) if kind >= BEHIND_EXTENTS => return Ok(Step::Ended),
                Some(&kind) if (NAME_KEYS..EXTENTS_KEYS).contains(&kind) => pass.cursor = vec![EXTENTS_KEYS],
                _ => {}
            }
            if pass
                .victims
                .iter()
                .all(|&start| self.space.live_bytes(start) == 0)
            {
                return Ok(Step::Ended);
            }
        }
        Ok(Step::Goes)
    }

    /// Moves what a cell has in chosen segments.
    async fn move_cell(&mut self, pass: &Pass, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        let malformed = |source| inconsistent(0, source);
        match key.first() {
            Some(&kind) if kind < NAME_KEYS || kind == EXTENTS_KEYS => {}
            _ => return Ok(()),
        }
        match Key::decode(key).map_err(malformed)? {
            Key::Entry(directory, name) => {
                if let Entry::Embedded(inode) = Entry::decode(value).map_err(malformed)? {
                    let place = Place::Entry { directory, name };
                    self.move_inode(pass, inode, &place).await?;
                }
            }
            Key::Inode(_) => {
                let inode = Inode::decode(value).map_err(malformed)?;
                self.move_inode(pass, inode, &Place::OwnKey).await?;
            }
            Key::Extents(number, offset) => self.move_mapped(pass, number, offset, key).await?,
            _ => {}
        }
        Ok(())
    }

    fn is_chosen(&self, pass: &Pass, extent: &Extent) -> bool {
        pass.victims.contains(&self.space.segment_of(extent.address))
    }

    async fn move_inode(&mut self, pass: &Pass, mut inode: Inode, place: &Place) -> Result<(), WriteError> {
        let Layout::Extents(extents) = &inode.layout else {
            return Ok(());
        };
        let mut at = 0;
        let mut wanted = Vec::new();
        for extent in extents {
            if self.is_chosen(pass, extent) {
                wanted.push(at);
            }
            at += u64::from(extent.length);
        }
        self.move_all(pass, &mut inode, place, &wanted).await
    }

    /// Of a file whose extents stand under keys. The one that was listed may have changed meanwhile: neighbours are
    /// moved along where they are short.
    async fn move_mapped(
        &mut self,
        pass: &Pass,
        number: InodeNumber,
        offset: u64,
        key: &[u8],
    ) -> Result<(), WriteError> {
        let Some(value) = self.tree.get(key).await? else {
            return Ok(());
        };
        let mut at = offset;
        let mut wanted = Vec::new();
        for extent in decode_value(&value).map_err(|source| inconsistent(0, source))? {
            if self.is_chosen(pass, &extent) {
                wanted.push(at);
            }
            at = at.saturating_add(u64::from(extent.length));
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let (mut inode, place) = self.find(number).await?;
        self.move_all(pass, &mut inode, &place, &wanted).await
    }

    /// Moves the extents that begin at these offsets of a file, where they still do.
    async fn move_all(
        &mut self,
        pass: &Pass,
        inode: &mut Inode,
        place: &Place,
        wanted: &[u64],
    ) -> Result<(), WriteError> {
        let mut result = Ok(());
        let mut moved = false;
        for &at in wanted {
            let around = self.extents_around(inode, &(at..at + 1)).await?;
            let found = around.into_iter().find(|(start, _)| *start == at);
            let Some((_, extent)) = found.filter(|(_, extent)| self.is_chosen(pass, extent)) else {
                continue;
            };
            result = self.move_extent(inode, at, &extent).await;
            moved |= result.is_ok();
            if result.is_err() {
                break;
            }
        }
        if moved {
            self.put_inode(inode, place).await?;
        }
        result
    }

    async fn move_extent(&mut self, inode: &mut Inode, at: u64, extent: &Extent) -> Result<(), WriteError> {
        let moved = match self.read_extent(inode, extent).await {
            Ok(bytes) => self.replace_content(inode, at, &bytes).await,
            Err(error) => Err(error),
        };
        match moved {
            Ok(()) => {
                self.compaction.progress.moved.0 += u64::from(extent.length);
                Ok(())
            }
            // Damage stays where it is, for whoever reads it to be told.
            Err(WriteError::Read(_)) => {
                self.compaction.progress.unreadable += 1;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// One pass to its end, with commits on the way. `Ok(false)` where nothing was worth it.
    async fn run_pass(&mut self, tell: &mut impl FnMut(&CompactionProgress)) -> Result<bool, WriteError> {
        if self.compaction.pass.is_none() && !self.begin_pass().await? {
            return Ok(false);
        }
        let mut refused = 0;
        loop {
            let before = self.compaction.progress.moved;
            let step = self.compact_step(STEP_BYTES, STEP_LEAVES).await;
            let ended = match step {
                Ok(Step::Ended) => true,
                Ok(Step::Goes) => false,
                // What was changed so far is committed, which gives room back.
                Err(WriteError::NoSpace { .. }) => {
                    refused = if self.compaction.progress.moved > before {
                        0
                    } else {
                        refused + 1
                    };
                    refused > 2
                }
                Err(error) => return Err(error),
            };
            tell(&self.compaction.progress);
            self.commit_always().await?;
            if ended {
                self.end_pass();
                // Two commits later what was emptied is free.
                self.commit_always().await?;
                return Ok(true);
            }
        }
    }

    /// Compacts until nothing is worth it any more. What snapshots by name have stays where it is; which that is is read from their
    /// trees first, unless it is known, and the rest of what was given back since they were made becomes free. Commits, so nothing that is under
    /// way may be half done. `tell` is called after each step.
    ///
    /// # Errors
    /// As [`Writer::commit`], and where a snapshot's tree cannot be read. Nothing is lost by one.
    pub async fn compact(
        &mut self,
        mut tell: impl FnMut(&CompactionProgress),
    ) -> Result<CompactionProgress, WriteError> {
        self.compaction.stuck.clear();
        self.learn_held().await?;
        if !self.is_beside_readers() {
            // Some may have come since the last commit.
            self.release_space().await;
        }
        // What dies by moving is less from pass to pass, but packing leaves gaps: it ends where dead bytes stay.
        let mut dead = u64::MAX;
        while self.space.gainable_bytes() < dead {
            dead = self.space.gainable_bytes();
            if !self.run_pass(&mut tell).await? {
                break;
            }
        }
        Ok(self.compaction.progress)
    }

    /// Makes room for `wanted` bytes of content by compaction, if that can be: not while readers hold what it would free.
    /// Commits.
    pub(crate) async fn reclaim(&mut self, wanted: ByteCount) -> Result<(), WriteError> {
        let held = self.hold.reader_floor().await;
        if held.is_err() || held.is_ok_and(|floor| floor.0.is_some()) {
            return Ok(());
        }
        if !self.has_failed_to_learn_held() {
            match self.learn_held().await {
                // Without it all that may be a snapshot's stays.
                Err(WriteError::Tree(_)) => return Ok(()),
                learned => learned?,
            }
        }
        for _ in 0..RECLAIM_PASSES {
            let free = self.space.free_pages();
            if self.free_bytes() >= wanted || !self.run_pass(&mut |_| {}).await? {
                break;
            }
            if self.space.free_pages() <= free {
                break;
            }
        }
        Ok(())
    }

    /// One small step of a pass, begun if there is none.
    #[cfg(test)]
    pub(crate) async fn compact_a_little(&mut self) -> Result<(), WriteError> {
        self.learn_held_along(3).await;
        if self.compaction.pass.is_none() && !self.begin_pass().await? {
            self.compaction.stuck.clear();
            return Ok(());
        }
        self.compact_step(40_000, 3).await.map(drop)
    }
}
