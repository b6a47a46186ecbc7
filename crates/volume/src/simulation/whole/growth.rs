//! The volume grows while it is used, in half of the worlds: an operator asks for it, nodes are told to make copies of the new chunks,
//! read of which, and say when they have them (`crates/agent/src/maps.rs`); then the volume has its new size.

use super::{By, CHUNK, VOLUME, WholeEvent, config_of, index_of, named};
use crate::simulation::events::Event;
use crate::simulation::world::{MS, World};
use control::testing::Handle;
use control::{Chunk, ControlError, Controller, Growing, Resize};
use foundation::{ByteCount, Instant};

/// By how many chunks it grows in all, and where hosts reserve it.
const GROWTH_MAX: usize = 3;
const GROWTH_MAX_OF_HOSTS: usize = 9;

pub(super) fn growth_max(reserved: bool) -> usize {
    match reserved {
        true => GROWTH_MAX_OF_HOSTS,
        false => GROWTH_MAX,
    }
}

/// A growth, as a node is told of it: its first new chunk, and how many chunks there are with it.
pub(super) type Grows = (u32, u32);

pub(super) fn grows(growing: &Growing) -> Option<Grows> {
    (growing.number == VOLUME).then_some((growing.from, growing.chunks))
}

pub(super) fn growing((from, chunks): Grows) -> Growing {
    Growing {
        number: VOLUME,
        from,
        chunks,
    }
}

/// The new chunks of which a node shall have copies; none if the master is behind.
pub(super) fn places_of(
    control: &mut Controller<Handle>,
    node: usize,
    (from, chunks): Grows,
) -> Result<Option<Vec<usize>>, ControlError> {
    let (volume, found) = control.map(VOLUME, from, 64)?;
    let present = volume.geometry.chunk_count();
    let is_it = (present, present + volume.growth.iter().sum::<u32>()) == (from, chunks);
    if !is_it || from == chunks || found.len() != (chunks - from) as usize {
        return Ok(None);
    }
    let placed = found.iter().filter(|(_, chunk)| chunk.has_copy_on(named(node)));
    Ok(Some(placed.map(|(id, _)| id.index as usize).collect()))
}

impl World {
    /// The operator lets the volume grow, if it is drawn.
    pub(super) fn let_grow(&mut self) {
        let whole = self.of_whole();
        if whole.grows && whole.random.chance(1, 4) {
            let wanted = whole.in_use + 1 + whole.random.below(2) as usize;
            self.let_grow_to(wanted);
        }
    }

    /// The volume is to have so many chunks.
    pub(super) fn let_grow_to(&mut self, wanted: usize) {
        if self.healing {
            return;
        }
        let (now, reserved) = (self.now, self.reserved.is_some());
        let whole = self.of_whole();
        let most = whole.first_chunks + growth_max(reserved);
        let Some(master) = whole.seated(now).filter(|_| wanted <= most) else {
            return;
        };
        let clock = whole.masters[master].clock(now);
        if let Ok(control) = whole.masters[master].member.lead() {
            // Refused, or not answered: asked for again.
            let wanted = Resize {
                cancels_growth: true,
                ..Resize::to(ByteCount(CHUNK.0 * wanted as u64))
            };
            drop(control.resize_volume_on("volume", wanted, clock));
        }
    }

    /// A chunk that nobody knew has places.
    pub(super) fn chunk_is_placed(&mut self, index: usize, chunk: Chunk) {
        if index != self.shape.chunks {
            return self.fail(format!(
                "chunk {index} has places, and there are {}",
                self.shape.chunks
            ));
        }
        let config = config_of(&chunk);
        self.store.push(config.clone());
        self.first.push(config);
        let places = chunk.copies.iter().map(|copy| index_of(copy.node)).collect();
        self.places.of_chunk.push(places);
        self.add_chunk();
        self.of_whole().chunks.push(chunk);
    }

    /// The volume has other chunks than before: every copy of the new ones that counts as in sync is there.
    pub(super) fn check_growth(&mut self) {
        let whole = self.of_whole();
        let volume = whole.etcd.borrow().volume(VOLUME);
        let Some(volume) = volume else {
            return self.fail("the volume is gone".to_owned());
        };
        let (before, count) = (whole.in_use, volume.geometry.chunk_count() as usize);
        if count == before {
            return;
        }
        whole.grown += (count - before) as u64;
        whole.in_use = count;
        if let Some(reserved) = &mut self.reserved {
            reserved.grown += (count - before) as u64;
        }
        for index in before..count {
            let Some(chunk) = self.of_whole().chunks.get(index).cloned() else {
                return self.fail(format!("the volume has chunk {index}, which has no place"));
            };
            let is_missing = |node: &usize| !self.nodes[*node].disks.contains_key(&index);
            let mut members = chunk.members().map(|(node, _)| index_of(node));
            if let Some(node) = members.find(is_missing) {
                return self.fail(format!(
                    "the volume has grown to {count} chunks, and node {node} has not made its copy of chunk {index}"
                ));
            }
        }
    }

    /// A node was told which of the new chunks it shall have copies of.
    pub(super) fn engine_has_places(&mut self, node: usize, growth: Grows, placed: Vec<usize>) {
        for &chunk in &placed {
            if !self.nodes[node].disks.contains_key(&chunk) {
                self.ask_to_make(node, chunk);
            }
        }
        self.of_whole().engines[node].growing = Some((growth, placed));
    }

    /// The growth of which a node has all its copies.
    pub(super) fn grown_on(&mut self, node: usize) -> Vec<Grows> {
        let growing = self.of_whole().engines[node].growing.clone();
        let has = |chunk: &usize| self.nodes[node].disks.contains_key(chunk);
        let grown = growing.filter(|(_, placed)| placed.iter().all(has));
        grown.map(|(growth, _)| growth).into_iter().collect()
    }

    /// The operator comes again.
    pub(super) fn operator_comes_again(&mut self) {
        self.note_committed(By::Other);
        self.at(500 * MS, Event::Whole(WholeEvent::Operator));
    }
}

impl super::Whole {
    /// The master in the seat, if it runs now.
    pub(super) fn seated(&mut self, now: u64) -> Option<usize> {
        self.etcd.borrow_mut().pass(Instant::from_nanos(now));
        let seated = self.etcd.borrow().leader()?;
        let own = &self.masters[seated];
        (own.lives && own.paused_until <= now).then_some(seated)
    }
}
