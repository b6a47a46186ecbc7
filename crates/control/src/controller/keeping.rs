//! Whether all copies of snapshots are where those of their chunks are (`docs/decisions/0125`).
//!
//! Nodes look after copies of snapshots themselves (`docs/decisions/0090`), and say which they have beside copies of chunks that are in
//! sync. Which these have to be the store says. Where each node has what it has to, no node that has no copy of any chunk is needed for
//! a snapshot, whatever it has, and though nobody can ask it.

use std::collections::BTreeMap;

use foundation::KeptCopies;

use super::{Controller, Snapshots};
use crate::error::ControlError;
use crate::identity::{Incarnation, NodeId, VolumeNumber};
use crate::keys;
use crate::model::Chunk;
use crate::store::MetadataStore;

impl<S: MetadataStore> Controller<S> {
    /// What is missing for every complete snapshot to have all its copies beside those of its chunks; none if nothing is, as far as
    /// nodes have said. Reads every chunk if there is a snapshot.
    pub(super) fn lacks_of_snapshots(&mut self) -> Result<Option<String>, ControlError> {
        self.refresh_snapshots()?;
        if self.snapshots.complete().is_empty() {
            return Ok(None);
        }
        let volumes = self.volumes()?.into_iter();
        let copies: BTreeMap<VolumeNumber, usize> = volumes
            .map(|volume| (volume.number, usize::from(volume.geometry.copies)))
            .collect();
        let (mut due, mut short) = (BTreeMap::<(NodeId, Incarnation), KeptCopies>::new(), 0_u64);
        let end = keys::end_of(keys::CHUNKS);
        self.read_range::<Chunk>(keys::CHUNKS.to_vec(), &end, |key, stored| {
            let Some(id) = keys::parse_chunk(key) else { return };
            let parts = parts_of(&self.snapshots, id.volume, id.index);
            if parts == 0 {
                return;
            }
            let chunk = stored.record;
            let wanted = copies.get(&id.volume).copied().unwrap_or_default();
            short += u64::from(chunk.member_count() < wanted);
            for member in chunk.members() {
                let due = due.entry(member).or_default();
                due.note(id.volume.0, id.index, parts);
            }
        })?;
        if short > 0 {
            return Ok(Some(format!(
                "{short} chunks of volumes with snapshots have fewer copies in sync than they should"
            )));
        }
        let version = self.snapshots.version();
        for ((node, incarnation), due) in due {
            let heard = self
                .heard
                .get(&node)
                .filter(|heard| heard.incarnation == incarnation);
            let said = heard
                .and_then(|heard| heard.kept)
                .filter(|(list, _)| *list == version);
            match said.map(|(_, kept)| kept) {
                None => {
                    return Ok(Some(format!(
                        "node {node} has not said yet that it has the {} copies of snapshots that it should have",
                        due.count
                    )));
                }
                Some(kept) if kept.count != due.count => {
                    let (has, due) = (kept.count, due.count);
                    return Ok(Some(format!(
                        "node {node} has {has} of the {due} copies of snapshots that it should have"
                    )));
                }
                Some(kept) if kept != due => {
                    return Ok(Some(format!(
                        "node {node} has copies of snapshots of other chunks than those that are in sync there by now"
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(None)
    }
}

/// Of how many complete snapshots a chunk is part.
fn parts_of(snapshots: &Snapshots, volume: VolumeNumber, index: u32) -> u64 {
    let of_volume = snapshots.complete().range(super::snapshots::all_of(volume));
    of_volume.filter(|(_, snapshot)| index < snapshot.chunks).count() as u64
}
