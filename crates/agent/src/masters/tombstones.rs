//! Volumes that are deleted for good, of which the target is to have nothing.

use std::collections::BTreeSet;

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

    /// There is a volume of this number: masters whose metadata are from a backup may give one that they have forgotten.
    pub(super) fn exists(&mut self, volume: u32) {
        self.0.remove(&volume);
    }
}

/// All chunks that a volume could have.
fn all_of(volume: u32) -> std::ops::RangeInclusive<Chunk> {
    let chunk = |index| Chunk { volume, index };
    chunk(0)..=chunk(u32::MAX)
}

impl Life {
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
        self.here.retain(|chunk| chunk.volume != volume);
        self.asked.retain(|chunk| chunk.volume != volume);
        self.placed.retain(|(chunk, _), _| chunk.volume != volume);
        self.preparing.remove(&volume);
        self.growing.remove(&volume);
        self.configurations.retain(|chunk, _| chunk.volume != volume);
        self.wanted.retain(|chunk, _| chunk.volume != volume);
        self.kinds.remove(&volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
