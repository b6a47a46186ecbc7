//! Quotas that are there, and what they count.

use std::collections::{BTreeMap, BTreeSet};

use super::contents::Contents;
use super::mend::Told;
use crate::format::entry::{Entry, Kind};
use crate::format::key::InodeNumber;
use crate::format::quota::Quota;
use crate::quotas::{Trees, count};

/// Takes out quotas of what is no directory, those that stand below another, and those whose tree has an inode with a name elsewhere; counts
/// the others anew.
pub(super) fn recount(contents: &mut Contents, told: &mut Told) {
    if contents.quotas.is_empty() {
        return;
    }
    let inodes: BTreeMap<InodeNumber, (Kind, u64)> = contents
        .inodes()
        .map(|inode| (inode.number, (inode.kind, inode.size)))
        .collect();
    let mut parents = BTreeMap::new();
    for ((directory, _), entry) in &contents.entries {
        if entry.kind() == Kind::Directory {
            parents.insert(entry.inode(), *directory);
        }
    }
    let parent = |at: InodeNumber| parents.get(&at).copied();
    let mut out = BTreeSet::new();
    let mut trees = Trees::new(&contents.quotas, parent);
    for directory in contents.quotas.keys() {
        let is_one = inodes
            .get(directory)
            .is_some_and(|(kind, _)| *kind == Kind::Directory);
        let nested = parent(*directory).is_some_and(|above| trees.of(above).is_some());
        if !is_one {
            told.repaired.push(format!(
                "the quota of {directory}, which is no directory, was taken out"
            ));
            out.insert(*directory);
        } else if nested {
            told.repaired.push(format!(
                "the quota of directory {directory}, which stands below another, was taken out"
            ));
            out.insert(*directory);
        }
    }
    let mut trees = Trees::new(&contents.quotas, parent);
    let mut linked: BTreeMap<InodeNumber, BTreeSet<Option<InodeNumber>>> = BTreeMap::new();
    for ((directory, _), entry) in &contents.entries {
        if let Entry::Link { inode, .. } = entry {
            linked.entry(*inode).or_default().insert(trees.of(*directory));
        }
    }
    for (inode, found) in linked.iter().filter(|(_, found)| found.len() > 1) {
        for directory in found.iter().flatten() {
            if out.insert(*directory) {
                told.repaired.push(format!(
                    "the quota of directory {directory} was taken out: inode {inode} has names inside and outside of it"
                ));
            }
        }
    }
    contents.quotas.retain(|directory, _| !out.contains(directory));
    let mut counted: BTreeMap<InodeNumber, Quota> = BTreeMap::new();
    let mut trees = Trees::new(&contents.quotas, parent);
    let mut seen = BTreeSet::new();
    for ((directory, _), entry) in &contents.entries {
        if let (Some(tree), true) = (trees.of(*directory), seen.insert(entry.inode())) {
            let size = inodes.get(&entry.inode()).map_or(0, |(_, size)| *size);
            count(&mut counted, tree, size);
        }
    }
    for (directory, quota) in &mut contents.quotas {
        let found = counted.get(directory).copied().unwrap_or_default();
        let right = Quota {
            used_bytes: found.used_bytes,
            used_files: found.used_files,
            ..*quota
        };
        if *quota != right {
            told.repaired.push(format!(
                "the quota of directory {directory} counted {} files and {} bytes, and there are {} and {}",
                quota.used_files, quota.used_bytes, right.used_files, right.used_bytes
            ));
            *quota = right;
        }
    }
}
