//! Copies that the target does not use before the masters have said that their places are where they are: those on disks that were away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use agentlink::{Chunk, ToTarget};
use proto::client::ClientError;

use crate::maps::Placed;

/// How long after an answer it is asked again, as long as there are any: their places may have changed, or other copies have come.
const AGAIN: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Default)]
pub(crate) struct Doubt {
    /// On which disks they are.
    copies: BTreeMap<Chunk, BTreeSet<u128>>,
    /// When the masters are to be asked about each of their volumes; none while they are asked.
    volumes: BTreeMap<u32, Option<Instant>>,
}

impl Doubt {
    /// The target names all of them.
    pub(crate) fn heard(&mut self, copies: Vec<(Chunk, u128)>) {
        self.copies.clear();
        for (chunk, disk) in copies {
            self.copies.entry(chunk).or_default().insert(disk);
            let now = Instant::now();
            self.volumes.entry(chunk.volume).or_insert(Some(now));
        }
        let copies = &self.copies;
        self.volumes
            .retain(|volume, asked| asked.is_none() || copies.keys().any(|chunk| chunk.volume == *volume));
    }

    /// Their chunks.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.copies.keys()
    }

    /// Whether there is one of this volume.
    pub(crate) fn is_about_volume(&self, volume: u32) -> bool {
        let mut from = self.copies.range(Chunk { volume, index: 0 }..);
        from.next().is_some_and(|(chunk, _)| chunk.volume == volume)
    }

    /// Whether there is one of this chunk.
    pub(crate) fn is_about(&self, chunk: Chunk) -> bool {
        self.copies.contains_key(&chunk)
    }

    /// Whether there is one of this chunk on this disk.
    pub(crate) fn is_of(&self, chunk: Chunk, disk: u128) -> bool {
        self.copies.get(&chunk).is_some_and(|disks| disks.contains(&disk))
    }

    /// There is none of this chunk any more.
    pub(crate) fn is_over(&mut self, chunk: Chunk) {
        self.copies.remove(&chunk);
    }

    /// The volumes that the masters are to be asked about now. It is taken as done.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        for (volume, at) in &mut self.volumes {
            if at.is_some_and(|at| at <= now) {
                *at = None;
                due.push(*volume);
            }
        }
        due
    }

    /// What the masters say of a volume's places on this node; what the target is to be told then. What has no place here is deleted as
    /// any such copy is.
    pub(crate) fn answered(
        &mut self,
        volume: u32,
        answer: Result<Option<Vec<Placed>>, ClientError>,
        here: &BTreeSet<Chunk>,
    ) -> Option<ToTarget> {
        let again = Instant::now() + AGAIN;
        match self.copies.keys().any(|chunk| chunk.volume == volume) {
            true => drop(self.volumes.insert(volume, Some(again))),
            false => drop(self.volumes.remove(&volume)),
        }
        let placed = match answer {
            Ok(placed) => placed?,
            Err(error) => {
                tracing::warn!(volume, %error, "where copies are to be that are not used yet cannot be read yet");
                return None;
            }
        };
        let (mut right, mut wrong) = (Vec::new(), Vec::new());
        for Placed { chunk, disk, .. } in placed {
            // Metadata that were made anew do not say on which disk a copy is.
            let on = self.copies.get(&chunk).and_then(|disks| match disk {
                0 => disks.first(),
                disk => disks.get(&disk),
            });
            if let Some(disk) = on {
                right.push((chunk, *disk));
            } else if self.is_about(chunk) && here.contains(&chunk) {
                wrong.push(chunk);
            }
        }
        let is_news = !right.is_empty() || !wrong.is_empty();
        is_news.then_some(ToTarget::Doubted { right, wrong })
    }
}
