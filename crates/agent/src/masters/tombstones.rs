//! Volumes that are deleted for good, of which the target is to have nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use agentlink::{Chunk, ToTarget};

use super::Life;
use crate::link::Link;

/// Of which volumes this life of the target was told.
///
/// Masters name every volume that was ever deleted whenever a node reads everything anew: after each change of the master that leads, and when
/// it was cut off for long. The target looks for all of them once in its life, at what no engine knows too: copies that cannot be read, and those
/// of snapshots.
#[derive(Default)]
pub(super) struct Tombstones(BTreeSet<u32>);

impl Tombstones {
    /// Whether the target is to be told that this volume is deleted. Once, and again as long as there is something of it.
    fn is_news(&mut self, volume: u32, is_here: bool) -> bool {
        self.0.insert(volume) || is_here
    }

    /// Whether the target was told that this volume is deleted.
    fn has(&self, volume: u32) -> bool {
        self.0.contains(&volume)
    }

    /// There is a volume of this number: masters whose metadata are from a backup may give one that they have forgotten.
    pub(super) fn exists(&mut self, volume: u32) {
        self.0.remove(&volume);
    }
}

/// All chunks that a volume could have.
fn all_of(volume: u32) -> RangeInclusive<Chunk> {
    let chunk = |index| Chunk { volume, index };
    chunk(0)..=chunk(u32::MAX)
}

/// Takes out what is of these. Looks at nothing else: many volumes may go at a time, beside very many copies.
fn take<K: Ord + Copy, V>(from: &mut BTreeMap<K, V>, wanted: RangeInclusive<K>) {
    let found: Vec<K> = from.range(wanted).map(|(key, _)| *key).collect();
    found.iter().for_each(|key| drop(from.remove(key)));
}

fn take_out(from: &mut BTreeSet<Chunk>, wanted: RangeInclusive<Chunk>) {
    let found: Vec<Chunk> = from.range(wanted).copied().collect();
    for chunk in found {
        from.remove(&chunk);
    }
}

impl Life {
    /// A copy that the target was asked for is there: perhaps its volume was deleted while it was made.
    pub(super) fn bury_late(&self, volume: u32, link: &Link) {
        if self.tombstones.has(volume) {
            let _ = link.send.send(ToTarget::DeleteVolume { volume });
        }
    }

    /// Masters name volumes that are deleted.
    pub(super) fn bury(&mut self, volumes: &[u32], link: &Link) {
        for &volume in volumes {
            self.sync_told.remove(&volume);
            let is_here = self.here.range(all_of(volume)).next().is_some()
                || self.asked.range(all_of(volume)).next().is_some()
                || self.doubt.is_about_volume(volume);
            if self.tombstones.is_news(volume, is_here) {
                let _ = link.send.send(ToTarget::DeleteVolume { volume });
                if is_here {
                    self.forget_volume(volume);
                }
            }
        }
    }

    /// Nothing is to be here of a volume any more.
    pub(super) fn forget_volume(&mut self, volume: u32) {
        let (first, last) = all_of(volume).into_inner();
        take_out(&mut self.here, all_of(volume));
        take_out(&mut self.asked, all_of(volume));
        take(&mut self.placed, (first, 0)..=(last, u128::MAX));
        self.preparing.remove(&volume);
        self.growing.remove(&volume);
        take(&mut self.configurations, all_of(volume));
        take(&mut self.wanted, all_of(volume));
        self.kinds.remove(&volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_a_volume_is_taken_out() {
        let chunk = |volume, index| Chunk { volume, index };
        for volume in [1, 2, u32::MAX] {
            let all = [0, 7, u32::MAX].map(|index| [1, 2, u32::MAX].map(|of| chunk(of, index)));
            let all: BTreeSet<Chunk> = all.into_iter().flatten().collect();
            let (mut set, mut placed) = (all.clone(), BTreeMap::new());
            placed.extend(
                all.iter()
                    .flat_map(|chunk| [(*chunk, 0), (*chunk, u128::MAX)].map(|key| (key, ()))),
            );
            let (first, last) = all_of(volume).into_inner();
            take_out(&mut set, first..=last);
            take(&mut placed, (first, 0)..=(last, u128::MAX));
            assert!(
                set.iter().all(|chunk| chunk.volume != volume) && set.len() == 6,
                "{set:?}"
            );
            assert!(placed.keys().all(|(chunk, _)| chunk.volume != volume) && placed.len() == 12);
        }
    }

    #[test]
    fn a_deleted_volume_is_told_once_in_a_life_and_again_while_there_is_something_of_it() {
        let mut tombstones = Tombstones::default();
        let news = |tombstones: &mut Tombstones, here: &[u32]| {
            let told = (1..=4).filter(|volume| tombstones.is_news(*volume, here.contains(volume)));
            told.collect::<Vec<u32>>()
        };
        assert_eq!(news(&mut tombstones, &[]), [1, 2, 3, 4]);
        assert!(news(&mut tombstones, &[]).is_empty());
        assert_eq!(news(&mut tombstones, &[3]), [3]);
        assert!(news(&mut tombstones, &[]).is_empty());
        tombstones.exists(2);
        assert_eq!(news(&mut tombstones, &[]), [2]);
    }
}
