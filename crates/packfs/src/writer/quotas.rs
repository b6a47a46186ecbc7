//! Quotas of trees, which are kept in memory while a writer lives and put into the tree by each commit that changed one.
//!
//! Which tree an inode belongs to stands nowhere: it is asked of the directories above it, and remembered. No inode comes to
//! belong to another, because renaming and linking across is refused; directories' answers therefore stay right until a quota
//! is set or cleared.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::Writer;
use super::namespace::Place;
use crate::error::WriteError;
use crate::format::CodecError;
use crate::format::entry::{Entry, Inode, Kind, decode_place};
use crate::format::key::{InodeNumber, Key, directory_prefix, links_prefix, orphans_prefix};
use crate::format::quota::Quota;
use crate::format::superblock::Features;
use crate::tree::inconsistent;

/// The most quotas of a volume: they are kept in memory.
pub const QUOTAS_MAX: usize = 10_000;
/// Directories that are remembered at most.
const DIRECTORIES_KEPT: usize = 10_000;
/// Deeper directories are a circle.
const DEPTH_MAX: usize = 1 << 20;

/// The tree that an inode is charged to, by its directory.
pub(crate) type Charged = Option<InodeNumber>;

struct State {
    quota: Quota,
    /// What content in memory will add to the used bytes.
    pending: i64,
}

#[derive(Default)]
pub(super) struct Quotas {
    trees: BTreeMap<InodeNumber, State>,
    /// Those that the next commit must tell of.
    changed: BTreeSet<InodeNumber>,
    /// Answers for directories.
    known: RefCell<BTreeMap<InodeNumber, Charged>>,
}

impl Quotas {
    /// Cells that the next commit changes.
    pub(super) fn changed(&self) -> u64 {
        self.changed.len() as u64
    }
}

fn malformed() -> WriteError {
    inconsistent(0, CodecError::Inconsistent).into()
}

impl Writer {
    pub(super) async fn load_quotas(&mut self) -> Result<(), crate::error::TreeError> {
        if !self.features.has(Features::QUOTAS) {
            return Ok(());
        }
        for (directory, quota) in crate::quotas::list(&self.tree).await? {
            let state = State { quota, pending: 0 };
            self.quotas.trees.insert(directory, state);
        }
        Ok(())
    }

    /// The tree that whatever stands in a directory is charged to.
    pub(crate) async fn quota_tree(&self, directory: InodeNumber) -> Result<Charged, WriteError> {
        if self.quotas.trees.is_empty() {
            return Ok(None);
        }
        let (mut at, mut passed) = (directory, Vec::new());
        let found = loop {
            if self.quotas.trees.contains_key(&at) {
                break Some(at);
            }
            if at == InodeNumber::ROOT {
                break None;
            }
            if let Some(known) = self.quotas.known.borrow().get(&at) {
                break *known;
            }
            if passed.len() > DEPTH_MAX {
                return Err(malformed());
            }
            passed.push(at);
            at = self.parent_of(at.0).await?;
        };
        let mut known = self.quotas.known.borrow_mut();
        if known.len() + passed.len() > DIRECTORIES_KEPT {
            known.clear();
        }
        known.extend(passed.into_iter().map(|directory| (directory, found)));
        Ok(found)
    }

    /// The directory that a name stands in, by its cookie.
    async fn parent_of(&self, cookie: u64) -> Result<InodeNumber, WriteError> {
        let value = self.tree.get(&Key::Name(cookie).encode()).await?;
        let value = value.ok_or(WriteError::NoInode(InodeNumber(cookie)))?;
        let (parent, _) = decode_place(&value).map_err(|source| inconsistent(0, source))?;
        Ok(parent)
    }

    /// The tree that an inode is charged to.
    pub(crate) async fn quota_tree_of(&self, inode: &Inode, place: &Place) -> Result<Charged, WriteError> {
        if self.quotas.trees.is_empty() || inode.number == InodeNumber::ROOT {
            return Ok(None);
        }
        if let Place::Entry { directory, .. } = place {
            return self.quota_tree(*directory).await;
        }
        if inode.links == 0 {
            return self.quota_tree_of_orphan(inode.number).await;
        }
        let prefix = links_prefix(inode.number);
        let link = self.tree.first_with_prefix(&prefix, &prefix).await?;
        let Some(Ok(Key::Link(_, cookie))) = link.map(|(key, _)| Key::decode(&key)) else {
            return Err(malformed());
        };
        let directory = self.parent_of(cookie).await?;
        self.quota_tree(directory).await
    }

    /// The tree that an inode without a name is charged to, as the list of orphans says.
    pub(super) async fn quota_tree_of_orphan(&self, number: InodeNumber) -> Result<Charged, WriteError> {
        let value = self.tree.get(&Key::Orphan(number).encode()).await?;
        let charged = crate::quotas::charged(&value.unwrap_or_default());
        Ok(charged.map_err(|source| inconsistent(0, source))?)
    }

    /// Whether a tree may have so many more inodes and bytes.
    pub(crate) fn check_quota(&self, tree: Charged, files: u64, bytes: u64) -> Result<(), WriteError> {
        let Some((directory, State { quota, pending })) =
            tree.and_then(|tree| self.quotas.trees.get_key_value(&tree))
        else {
            return Ok(());
        };
        let refused = |what, used, limit| WriteError::Quota {
            directory: *directory,
            what,
            used,
            limit,
        };
        let (used, limit) = (quota.used_files, quota.limit_files);
        if files > 0 && limit > 0 && used.saturating_add(files) > limit {
            return Err(refused("files", used, limit));
        }
        let (used, limit) = (
            quota.used_bytes.saturating_add_signed(*pending),
            quota.limit_bytes,
        );
        if bytes > 0 && limit > 0 && used.saturating_add(bytes) > limit {
            return Err(refused("bytes", used, limit));
        }
        Ok(())
    }

    /// Whether what is charged to one tree may get a name that is charged to the other.
    pub(crate) fn check_same_quota(&self, from: Charged, to: Charged) -> Result<(), WriteError> {
        if from == to {
            return Ok(());
        }
        let (from, to) = (from.unwrap_or(InodeNumber::ROOT), to.unwrap_or(InodeNumber::ROOT));
        Err(WriteError::CrossQuota { from, to })
    }

    /// Notes what a tree has more, or less.
    pub(crate) fn charge(&mut self, tree: Charged, files: i64, bytes: i64) {
        if let Some(tree) = tree
            && let Some(state) = self.quotas.trees.get_mut(&tree)
        {
            let quota = &mut state.quota;
            quota.used_files = quota.used_files.saturating_add_signed(files);
            quota.used_bytes = quota.used_bytes.saturating_add_signed(bytes);
            self.quotas.changed.insert(tree);
        }
    }

    /// Notes what content that waits in memory will add to a tree, or take away.
    pub(crate) fn expect(&mut self, tree: Charged, bytes: i64) {
        if let Some(state) = tree.and_then(|tree| self.quotas.trees.get_mut(&tree)) {
            state.pending += bytes;
        }
    }

    /// What a tree may have and has, with what waits in memory.
    pub(crate) fn quota(&self, tree: Charged) -> Option<Quota> {
        let state = self.quotas.trees.get(&tree?)?;
        let mut quota = state.quota;
        quota.used_bytes = quota.used_bytes.saturating_add_signed(state.pending);
        Some(quota)
    }

    /// All quotas, by directory.
    pub fn quotas(&self) -> Vec<(InodeNumber, Quota)> {
        let trees = self.quotas.trees.keys().copied();
        trees
            .filter_map(|tree| self.quota(Some(tree)).map(|quota| (tree, quota)))
            .collect()
    }

    /// Puts what has changed into the tree.
    pub(super) async fn put_quotas(&mut self) -> Result<(), WriteError> {
        while let Some(directory) = self.quotas.changed.pop_first() {
            let Some(quota) = self.quotas.trees.get(&directory).map(|state| state.quota) else {
                continue;
            };
            #[cfg(test)]
            if self.space.bug == crate::space::PlantedBug::QuotaNotCommitted {
                continue;
            }
            if let Err(error) = self.put(Key::Quota(directory).encode(), quota.encode()).await {
                self.quotas.changed.insert(directory);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A directory is gone, and its quota with it.
    pub(super) async fn drop_quota(&mut self, directory: InodeNumber) -> Result<(), WriteError> {
        if self.quotas.trees.remove(&directory).is_some() {
            self.quotas.known.borrow_mut().clear();
            self.take(&Key::Quota(directory).encode()).await?;
        }
        Ok(())
    }

    /// Sets the limits of what stands below a directory, 0 for none, and commits. The first time, everything below is counted, which reads
    /// the index of all of it. A tree that has more than its limits keeps it, and gets no more.
    ///
    /// # Errors
    /// [`WriteError::NotADirectory`]; [`WriteError::QuotaNested`] where the directory stands in another tree or has one below
    /// it; [`WriteError::QuotaLink`] where a file below it has a name elsewhere; [`WriteError::TooManyQuotas`].
    pub async fn set_quota(
        &mut self,
        directory: InodeNumber,
        limit_bytes: u64,
        limit_files: u64,
    ) -> Result<Quota, WriteError> {
        self.check_room_for(true, 8)?;
        if self.find(directory).await?.0.kind != Kind::Directory {
            return Err(WriteError::NotADirectory(directory));
        }
        let old = self.quotas.trees.get(&directory).map(|state| state.quota);
        let counted = match old {
            Some(quota) => quota,
            None => self.count_for_quota(directory).await?,
        };
        let quota = Quota {
            // What counts less is no limit that anything could meet.
            limit_bytes: limit_bytes.min(1 << 62),
            limit_files: limit_files.min(1 << 62),
            ..counted
        };
        self.features = self.features.with(Features::QUOTAS);
        self.put(Key::Quota(directory).encode(), quota.encode()).await?;
        let before = self.quotas.trees.get(&directory);
        let pending = before.map_or(0, |state| state.pending);
        self.quotas.trees.insert(directory, State { quota, pending });
        self.quotas.known.borrow_mut().clear();
        self.commit_always().await?;
        Ok(quota)
    }

    /// Takes the limits of a tree away, and commits.
    ///
    /// # Errors
    /// [`WriteError::NoQuota`].
    pub async fn clear_quota(&mut self, directory: InodeNumber) -> Result<(), WriteError> {
        self.check_room_for(true, 8)?;
        if !self.quotas.trees.contains_key(&directory) {
            return Err(WriteError::NoQuota(directory));
        }
        self.drop_quota(directory).await?;
        self.commit_always().await?;
        Ok(())
    }

    /// Counts what a new quota finds, and refuses what could not be counted right from then on.
    async fn count_for_quota(&self, directory: InodeNumber) -> Result<Quota, WriteError> {
        if self.quotas.trees.len() >= QUOTAS_MAX {
            return Err(WriteError::TooManyQuotas);
        }
        if let Some(other) = self.quota_tree(directory).await? {
            return Err(WriteError::QuotaNested { directory, other });
        }
        let mut quota = Quota::default();
        let mut linked: BTreeMap<InodeNumber, u32> = BTreeMap::new();
        let mut waiting = vec![directory];
        while let Some(directory_now) = waiting.pop() {
            if self.quotas.trees.contains_key(&directory_now) {
                let other = directory_now;
                return Err(WriteError::QuotaNested { directory, other });
            }
            let prefix = directory_prefix(directory_now);
            let mut from = Some(prefix.clone());
            while let Some(at) = from {
                let part = self.tree.part(&prefix, &at).await?;
                for (_, value) in part.cells {
                    match Entry::decode(&value).map_err(|source| inconsistent(0, source))? {
                        Entry::Link { inode, .. } => *linked.entry(inode).or_default() += 1,
                        Entry::Embedded(inode) => {
                            quota.used_files += 1;
                            quota.used_bytes = quota.used_bytes.saturating_add(inode.size);
                            if inode.kind == Kind::Directory {
                                waiting.push(inode.number);
                            }
                        }
                    }
                }
                from = part.next;
            }
        }
        // A quota that was here before may have left some.
        let prefix = orphans_prefix();
        let mut from = prefix.clone();
        while let Some((mut key, _)) = self.tree.first_with_prefix(&from, &prefix).await? {
            if let Ok(Key::Orphan(number)) = Key::decode(&key)
                && self.quota_tree_of_orphan(number).await? == Some(directory)
            {
                quota.used_files += 1;
                quota.used_bytes = quota.used_bytes.saturating_add(self.find(number).await?.0.size);
            }
            key.push(0);
            from = key;
        }
        for (number, names) in linked {
            let inode = self.find(number).await?.0;
            if inode.links != names {
                let inode = number;
                return Err(WriteError::QuotaLink { directory, inode });
            }
            quota.used_files += 1;
            quota.used_bytes = quota.used_bytes.saturating_add(inode.size);
        }
        Ok(quota)
    }
}
