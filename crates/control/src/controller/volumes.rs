//! Volumes from creation to deletion. Each state leads to the next by steps that may be repeated,
//! so a master that dies between two of them, or another one at the same time, does no harm.

use std::collections::{BTreeMap, BTreeSet};

use foundation::{ByteCount, Epoch, Instant};

use crate::controller::exports::PORTALS_MAX;
use crate::controller::reconcile::spread;
use crate::controller::unfinished::Unfinished;
use crate::controller::{ATTEMPTS_MAX, Controller, PAGE, Stored, contended};
use crate::error::ControlError;
use crate::identity::{ChunkId, DiskId, Incarnation, NodeId, Uuid, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, Copy, FEATURE_SYNC_WRITES, Geometry, Node, Number, Volume, VolumeState};
use crate::placement::{Places, Request, place};
use crate::racks::Spread;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

const NAME_BYTES_MAX: usize = 128;
/// The most chunks that a volume is given: a master has the places of all of them in memory when it chooses them. 1 PiB in chunks of
/// 256 MiB.
pub(super) const VOLUME_CHUNKS_MAX: u32 = 1 << 22;
/// So many chunks get places, or give theirs back, in one call or tick: some forty transactions, and tenths of a second with an etcd. A master
/// that did all of a large volume at once would hear nobody for minutes.
pub(super) const STEP_CHUNKS: usize = 4096;

/// A volume to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateVolume {
    /// Its name.
    pub name: String,
    /// Its size, rounded up to whole chunks.
    pub size: ByteCount,
    /// Copies of each chunk.
    pub copies: u8,
    /// In-sync copies below which writes wait; none: one less than the copies, at least 1.
    pub minimum: Option<u8>,
    /// Bytes in a block.
    pub block_bytes: u32,
    /// The stripe unit.
    pub stripe_unit: ByteCount,
    /// The size of a chunk.
    pub chunk: ByteCount,
    /// Chunks over which stripe units go round.
    pub stripe_width: u32,
    /// Nodes that export it to ordinary hosts.
    pub portals: Vec<NodeId>,
    /// A node that is to order all writes.
    pub write_pin: Option<NodeId>,
    /// Its copies keep checksums of their blocks.
    pub checksums: bool,
    /// What no two copies of a chunk are to have in common; none: racks, as long as there are as many as copies, else nodes.
    pub spread: Option<Spread>,
    /// Every write is to be durable on every copy in sync before it is acknowledged.
    pub sync_writes: bool,
}

impl CreateVolume {
    /// A volume of the defaults: 3 copies, blocks and chunks of 4 KiB and 256 MiB, no checksums.
    pub fn new(name: impl Into<String>, size: ByteCount) -> Self {
        Self {
            name: name.into(),
            size,
            copies: 3,
            minimum: None,
            block_bytes: 4096,
            stripe_unit: ByteCount(256 << 10),
            chunk: ByteCount(256 << 20),
            stripe_width: 8,
            portals: Vec::new(),
            write_pin: None,
            checksums: false,
            spread: None,
            sync_writes: false,
        }
    }

    fn geometry(&self) -> Result<Geometry, ControlError> {
        let argument = |field, problem, remedy| {
            Err(ControlError::Argument {
                field,
                problem,
                remedy,
            })
        };
        if self.size.0 == 0 {
            return argument("size", "is 0".to_owned(), "name a size such as 64GiB");
        }
        if self.stripe_width == 0 {
            return argument("stripe_width", "is 0".to_owned(), "use 1 or more chunks");
        }
        let chunks = self.size.0.div_ceil(self.chunk.0.max(1));
        let fitting = u32::try_from(chunks)
            .ok()
            .filter(|&chunks| chunks <= VOLUME_CHUNKS_MAX);
        let Some(chunks) = fitting else {
            let problem = format!(
                "of {} makes {chunks} chunks of {}, and a volume has at most {VOLUME_CHUNKS_MAX}",
                self.size, self.chunk
            );
            return argument("size", problem, "use larger chunks, or name a smaller size");
        };
        // At most 1,024 intent regions a chunk, and none below 1 MiB: a copy's record has 16 bytes for each
        // (`docs/formats/chunk-record.md`), and must fit in its place.
        let region = self.chunk.0.div_ceil(1024).next_power_of_two().max(1 << 20);
        let geometry = Geometry {
            block_bytes: self.block_bytes,
            metadata_bytes: 0,
            stripe_unit: self.stripe_unit,
            chunk: self.chunk,
            region: ByteCount(region),
            copies: self.copies,
            minimum: self.minimum.unwrap_or(self.copies.saturating_sub(1).max(1)),
            group_chunks: Geometry::groups(chunks, self.stripe_width),
        };
        geometry.validate()?;
        Ok(geometry)
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Creates a volume. On return its first [`STEP_CHUNKS`] chunks are placed. The others follow with [`Controller::tick`]s, and it is ready
    /// when its nodes have reported its copies.
    pub fn create_volume(&mut self, request: &CreateVolume, now: Instant) -> Result<Volume, ControlError> {
        check_name(&request.name)?;
        let geometry = request.geometry()?;
        self.check_newest()?;
        self.check_nodes(request)?;
        let volume = Volume {
            number: VolumeNumber(0),
            name: request.name.clone(),
            uuid: Uuid::from_random_bits(self.random.next_u64(), self.random.next_u64()),
            geometry,
            state: VolumeState::Creating,
            portals: request.portals.clone(),
            write_pin: request.write_pin,
            hosts: Vec::new(),
            growth: Vec::new(),
            checksums: request.checksums,
            origin: None,
            spread: request.spread,
            sync_writes: request.sync_writes,
        };
        if volume.sync_writes {
            self.check_nodes_sync(&volume.name, now)?;
        }
        // Refused here, before anything is stored, if it is impossible.
        self.check_room(&volume, volume.geometry.chunk_count(), now)?;
        for _ in 0..ATTEMPTS_MAX {
            let mut transaction = Transaction::new();
            if volume.sync_writes {
                self.set_feature(&mut transaction, FEATURE_SYNC_WRITES, true)?;
            }
            if let Some(number) = self.try_found(volume.clone(), transaction)? {
                return self.place_founded(number, now);
            }
        }
        Err(contended())
    }

    /// Places the chunks of a volume that was just founded; it is given up again if that cannot be.
    pub(super) fn place_founded(
        &mut self,
        number: VolumeNumber,
        now: Instant,
    ) -> Result<Volume, ControlError> {
        match self.place_chunks(number, now) {
            Ok(_) => self.volume(number),
            Err(error) => {
                // Somebody else took the room meanwhile.
                if let Some(stored) = self.read::<Volume>(&keys::volume(number))? {
                    self.set_state(stored, VolumeState::Deleting)?;
                }
                Err(error)
            }
        }
    }

    /// Gives a volume its number and name, in a transaction with what is in this one already. None if another master was quicker
    /// somewhere.
    pub(super) fn try_found(
        &mut self,
        volume: Volume,
        mut transaction: Transaction,
    ) -> Result<Option<VolumeNumber>, ControlError> {
        let name_key = keys::name(&volume.name);
        if let Some(stored) = self.read::<Number>(&name_key)? {
            return Err(self.name_taken(&volume.name, stored.record));
        }
        let next = self.read::<Number>(keys::NEXT_VOLUME)?;
        let next_revision = next.as_ref().map_or(0, |stored| stored.revision);
        let number = next.map_or(1, |stored| stored.record.0);
        // Number 2^32 - 1 names all namespaces (NVMe Base 2.0, section 3.2.1.2).
        let Some(short) = u32::try_from(number).ok().filter(|&number| number < u32::MAX) else {
            return Err(ControlError::Argument {
                field: "name",
                problem: "cannot get a number: all 2^32 - 2 were used".to_owned(),
                remedy: "found a new cluster",
            });
        };
        let volume = Volume {
            number: VolumeNumber(short),
            ..volume
        };
        let key = keys::volume(volume.number);
        transaction
            .compare(name_key.clone(), 0)
            .compare(keys::NEXT_VOLUME.to_vec(), next_revision);
        transaction.put(name_key.clone(), Number(number).encode(&name_key));
        transaction.put(
            keys::NEXT_VOLUME.to_vec(),
            Number(number + 1).encode(keys::NEXT_VOLUME),
        );
        transaction.put(key.clone(), volume.encode(&key));
        if !self.commit(&transaction)? {
            return Ok(None);
        }
        self.unfinished.insert(volume.number, Unfinished::default());
        Ok(Some(volume.number))
    }

    fn name_taken(&self, name: &str, number: Number) -> ControlError {
        let number = VolumeNumber(u32::try_from(number.0).unwrap_or(u32::MAX));
        let name = name.to_owned();
        match self.volume(number) {
            Ok(volume) if volume.state == VolumeState::Deleting => ControlError::VolumeDeleting { name },
            Ok(volume) => ControlError::VolumeExists {
                name,
                number,
                size: volume.size(),
            },
            Err(error) => error,
        }
    }

    /// Places the next chunks that have no place yet, and once all have one lets the nodes prepare them.
    /// How many it has looked after.
    fn place_chunks(&mut self, number: VolumeNumber, now: Instant) -> Result<usize, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let key = keys::volume(number);
            let Some(stored) = self.read::<Volume>(&key)? else {
                return Err(ControlError::NoSuchVolume { number });
            };
            if stored.record.state != VolumeState::Creating {
                return Ok(0);
            }
            let volume = &stored.record;
            self.unfinished_of(volume);
            let chunks = volume.geometry.chunk_count();
            let missing = self.next_unplaced(number, 0..chunks)?;
            if !self.commit_places(&stored, &missing, now)? {
                continue;
            }
            self.note_placed(number, &missing);
            if missing.last().is_some_and(|last| last + 1 < chunks) {
                return Ok(missing.len());
            }
            // Also the volume's own record may have changed under us.
            let mut transaction = Transaction::new();
            let next = Volume {
                state: VolumeState::Preparing,
                ..volume.clone()
            };
            transaction
                .compare(key.clone(), stored.revision)
                .put(key.clone(), next.encode(&key));
            if self.commit(&transaction)? {
                self.unfinished.insert(number, Unfinished::default());
                self.note_nodes(number, 0)?;
                return Ok(missing.len());
            }
        }
        Err(contended())
    }

    /// Commits places for these chunks, as many at a time as a transaction takes; false when
    /// another master was quicker somewhere.
    pub(super) fn commit_places(
        &mut self,
        volume: &Stored<Volume>,
        missing: &[u32],
        now: Instant,
    ) -> Result<bool, ControlError> {
        let Stored { record, revision } = volume;
        let chunk_bytes = record.geometry.chunk.0;
        let placed = match record.origin.filter(|_| record.state == VolumeState::Creating) {
            Some(origin) => self.places_of_origin(record, origin, missing, now)?,
            None => self.places(record, missing.len() as u32, now)?,
        };
        let mut rest: &[(u32, Places)] = &missing.iter().copied().zip(placed).collect::<Vec<_>>();
        while !rest.is_empty() {
            let mut growth: BTreeMap<(NodeId, DiskId), u64> = BTreeMap::new();
            let mut count = 0;
            for (_, places) in rest {
                let new = places.iter().filter(|place| !growth.contains_key(place)).count();
                // One more than the chunks and disks: the volume's own comparison.
                if count > 0 && count + growth.len() + new + 2 > self.store.operations_max() {
                    break;
                }
                for &place in places {
                    *growth.entry(place).or_default() += chunk_bytes;
                }
                count += 1;
            }
            let (batch, others) = rest.split_at(count);
            let mut transaction = Transaction::new();
            transaction.compare(keys::volume(record.number), *revision);
            self.add_chunks(&mut transaction, record, batch)?;
            for (&(node, disk), &bytes) in &growth {
                self.add_allocation(&mut transaction, node, disk, |allocated| {
                    allocated.saturating_add(bytes)
                })?;
            }
            if !self.commit(&transaction)? {
                return Ok(false);
            }
            rest = others;
        }
        Ok(true)
    }

    fn add_chunks(
        &self,
        transaction: &mut Transaction,
        volume: &Volume,
        batch: &[(u32, Places)],
    ) -> Result<(), ControlError> {
        let mut incarnations: BTreeMap<NodeId, Incarnation> = BTreeMap::new();
        for &(index, ref places) in batch {
            let id = ChunkId {
                volume: volume.number,
                index,
            };
            let mut copies = Vec::with_capacity(places.len());
            for &(node, disk) in places {
                let incarnation = match incarnations.get(&node) {
                    Some(&incarnation) => incarnation,
                    None => {
                        let stored = self.read::<Node>(&keys::node(node))?;
                        let stored = stored.ok_or(ControlError::NoSuchNode { node })?;
                        incarnations.insert(node, stored.record.incarnation);
                        stored.record.incarnation
                    }
                };
                let incarnation = Some(incarnation);
                copies.push(Copy {
                    node,
                    disk,
                    incarnation,
                });
            }
            let pinned = volume
                .write_pin
                .filter(|pin| places.iter().any(|place| place.0 == *pin));
            let chunk = Chunk {
                epoch: Epoch(1),
                write_node: pinned.unwrap_or(places[(spread(id) % places.len() as u64) as usize].0),
                copies,
                recovery: false,
            };
            let key = keys::chunk(id);
            transaction
                .compare(key.clone(), 0)
                .put(key.clone(), chunk.encode(&key));
        }
        Ok(())
    }

    pub(super) fn add_allocation(
        &self,
        transaction: &mut Transaction,
        node: NodeId,
        disk: DiskId,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<(), ControlError> {
        let key = keys::allocation(node, disk);
        let (allocated, revision) = self.allocated(node, disk)?;
        transaction.compare(key.clone(), revision);
        transaction.put(key.clone(), Number(change(allocated.0)).encode(&key));
        Ok(())
    }

    pub(super) fn places(
        &mut self,
        volume: &Volume,
        chunks: u32,
        now: Instant,
    ) -> Result<Vec<Places>, ControlError> {
        let known = self.nodes(now)?.len();
        let (candidates, racks) = (self.candidates(now)?, self.racks(now)?);
        let request = Request {
            chunks,
            chunk: volume.geometry.chunk,
            copies: volume.geometry.copies,
            pin: volume.write_pin,
            spread: racks.spread_of(volume),
            few_racks: racks.are_few_for(volume),
        };
        let placed = place(&candidates, known, &racks, &request, self.random.next_u64());
        placed.or_else(|why| Err(self.unless_awaited(why, now)?))
    }

    /// What to say instead of a refusal for want of nodes or room while some nodes may still be on their way to a master
    /// that has just begun to lead.
    pub(super) fn unless_awaited(
        &self,
        why: ControlError,
        now: Instant,
    ) -> Result<ControlError, ControlError> {
        let nodes = self.nodes(now)?;
        let awaited = nodes.values().filter(|view| view.is_awaited()).count();
        Ok(match awaited {
            0 => why,
            _ => ControlError::NodesAwaited {
                awaited,
                known: nodes.len(),
                why: Box::new(why),
            },
        })
    }

    fn check_nodes(&self, request: &CreateVolume) -> Result<(), ControlError> {
        if request.portals.len() > PORTALS_MAX {
            return Err(ControlError::Argument {
                field: "portals",
                problem: format!("lists {} nodes of at most {PORTALS_MAX}", request.portals.len()),
                remedy: "name 2 to 4 nodes, or none",
            });
        }
        if request.portals.iter().collect::<BTreeSet<_>>().len() < request.portals.len() {
            return Err(ControlError::Argument {
                field: "portals",
                problem: "lists a node twice".to_owned(),
                remedy: "name each node once",
            });
        }
        for &node in request.portals.iter().chain(&request.write_pin) {
            if self.read::<Node>(&keys::node(node))?.is_none() {
                return Err(ControlError::NoSuchNode { node });
            }
        }
        Ok(())
    }

    /// Every volume, by number.
    pub fn volumes(&self) -> Result<Vec<Volume>, ControlError> {
        let mut volumes = Vec::new();
        let end = keys::end_of(keys::VOLUMES);
        self.read_range::<Volume>(keys::VOLUMES.to_vec(), &end, |_, stored| {
            volumes.push(stored.record)
        })?;
        Ok(volumes)
    }

    /// The volume of that number.
    pub fn volume(&self, number: VolumeNumber) -> Result<Volume, ControlError> {
        let stored = self.read::<Volume>(&keys::volume(number))?;
        stored
            .map(|stored| stored.record)
            .ok_or(ControlError::NoSuchVolume { number })
    }

    /// The volume of that name.
    pub fn volume_named(&self, name: &str) -> Result<Volume, ControlError> {
        let stored = if name.len() <= NAME_BYTES_MAX {
            self.read::<Number>(&keys::name(name))?
        } else {
            None
        };
        let number = stored.and_then(|stored| u32::try_from(stored.record.0).ok());
        match number {
            Some(number) => self.volume(VolumeNumber(number)),
            None => Err(ControlError::NoSuchVolumeName { name: shown(name) }),
        }
    }

    /// Begins to delete a volume; nobody may hold its write lease. Repeating it changes nothing.
    pub fn delete_volume(&mut self, name: &str, now: Instant) -> Result<VolumeNumber, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let number = self.volume_named(name)?.number;
            if let Some(writer) = self.writer(number, now)? {
                return Err(ControlError::VolumeLeased {
                    name: name.to_owned(),
                    holder: writer.holder,
                    remaining: writer.remaining,
                });
            }
            let Some(stored) = self.read::<Volume>(&keys::volume(number))? else {
                continue;
            };
            if stored.record.state != VolumeState::Deleting {
                self.check_no_snapshots(&stored.record)?;
            }
            if stored.record.state == VolumeState::Deleting
                || self.set_state(stored, VolumeState::Deleting)?
            {
                self.note_nodes(number, 0)?;
                return Ok(number);
            }
        }
        Err(contended())
    }

    fn set_state(&mut self, stored: Stored<Volume>, state: VolumeState) -> Result<bool, ControlError> {
        let number = stored.record.number;
        let key = keys::volume(number);
        let volume = Volume {
            state,
            ..stored.record
        };
        let mut transaction = Transaction::new();
        transaction
            .compare(key.clone(), stored.revision)
            .put(key.clone(), volume.encode(&key));
        if !self.commit(&transaction)? {
            return Ok(false);
        }
        if state == VolumeState::Ready {
            self.unfinished.remove(&number);
        } else {
            self.unfinished.insert(number, Unfinished::default());
        }
        Ok(true)
    }

    /// Remembers which volumes are between two states.
    pub(super) fn note_unfinished(&mut self) -> Result<(), ControlError> {
        for volume in self.volumes()? {
            if volume.is_settled() && !volume.is_flattening() {
                self.unfinished.remove(&volume.number);
            } else {
                self.unfinished.entry(volume.number).or_default();
            }
        }
        Ok(())
    }

    /// Remembers which nodes have copies of a volume's chunks from `first_chunk` on.
    pub(super) fn note_nodes(&mut self, number: VolumeNumber, first_chunk: u32) -> Result<(), ControlError> {
        let mut nodes = BTreeSet::new();
        let (mut due, is_put_off) = (Vec::new(), self.reconciler.takes_up(number));
        let (first, end) = keys::chunks_of(number, first_chunk);
        self.read_range::<Chunk>(first, &end, |key, stored| {
            nodes.extend(stored.record.copies.iter().map(|copy| copy.node));
            due.extend(keys::parse_chunk(key).filter(|_| is_put_off));
        })?;
        due.into_iter().for_each(|id| self.reconciler.look_at(id));
        self.unfinished.entry(number).or_default().nodes = Some(nodes);
        Ok(())
    }

    /// Brings every volume that is between two states as far as it goes now.
    pub(super) fn bring_volumes_on(&mut self, now: Instant) -> Result<(), ControlError> {
        // What all of them together may still change with this tick. Those with the lowest numbers come first, and end.
        let mut left = STEP_CHUNKS;
        for number in self.unfinished.keys().copied().collect::<Vec<_>>() {
            let Some(stored) = self.read::<Volume>(&keys::volume(number))? else {
                self.unfinished.remove(&number);
                continue;
            };
            if stored.record.is_settled() && !stored.record.is_flattening() {
                self.unfinished.remove(&number);
                continue;
            }
            if left == 0 {
                // Whether there is room now is looked at when it is its turn.
                self.unfinished
                    .entry(number)
                    .and_modify(|known| known.unplaced = None);
                continue;
            }
            if stored.record.state == VolumeState::Ready && !stored.record.is_flattening() {
                let changed = self.bring_growth_on(number, now)?;
                left = left.saturating_sub(changed);
                continue;
            }
            let unfinished = self.unfinished_of(&stored.record);
            if unfinished.is_some_and(|unfinished| unfinished.nodes.is_none()) {
                self.note_nodes(number, 0)?;
            }
            let changed = match stored.record.state {
                VolumeState::Creating => {
                    let placed = self.place_chunks(number, now);
                    self.unless_no_room(&stored.record, placed)?
                }
                VolumeState::Preparing if self.is_prepared(number, 0)? => {
                    self.set_state(stored, VolumeState::Ready)?;
                    0
                }
                VolumeState::Deleting if self.is_done_by_the_living(number, now)? => {
                    self.remove_volume(&stored)?.max(STEP_CHUNKS / 32)
                }
                VolumeState::Ready => {
                    self.bring_flattening_on(&stored, now)?;
                    0
                }
                _ => 0,
            };
            left = left.saturating_sub(changed);
        }
        Ok(())
    }

    /// Whether every in-sync copy of the chunks from `first_chunk` on has been reported by the life that is in sync. Copies may have moved
    /// since it was noted which nodes have some: those that have now are to report.
    pub(super) fn is_prepared(
        &mut self,
        number: VolumeNumber,
        first_chunk: u32,
    ) -> Result<bool, ControlError> {
        let Some(unfinished) = self.unfinished.get(&number) else {
            return Ok(false);
        };
        if unfinished.reported.is_empty() {
            return Ok(false);
        }
        let (mut all, mut nodes) = (true, BTreeSet::new());
        let (first, end) = keys::chunks_of(number, first_chunk);
        self.read_range::<Chunk>(first, &end, |_, stored| {
            nodes.extend(stored.record.copies.iter().map(|copy| copy.node));
            all &= stored
                .record
                .members()
                .all(|member| unfinished.reported.contains(&member));
        })?;
        if let Some(unfinished) = self.unfinished.get_mut(&number) {
            unfinished.nodes = Some(nodes);
        }
        Ok(all)
    }

    /// Whether every living node has done its part with its copies, such as removed them; the others do it when they return.
    pub(super) fn is_done_by_the_living(
        &self,
        number: VolumeNumber,
        now: Instant,
    ) -> Result<bool, ControlError> {
        let Some(unfinished) = self.unfinished.get(&number) else {
            return Ok(false);
        };
        for &id in unfinished.nodes.iter().flatten() {
            let Some(stored) = self.read::<Node>(&keys::node(id))? else {
                continue;
            };
            let view = self.view(id, stored.record, now);
            let incarnation = view.record.incarnation;
            if view.is_alive && !unfinished.reported.contains(&(id, incarnation)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives the space of the next chunks back, and once all have given theirs forgets the volume, but for its number.
    /// How many those were.
    fn remove_volume(&mut self, stored: &Stored<Volume>) -> Result<usize, ControlError> {
        let number = stored.record.number;
        let chunk_bytes = stored.record.geometry.chunk.0;
        let (first, end) = keys::chunks_of(number, 0);
        let mut removed = 0;
        while removed < STEP_CHUNKS {
            let entries = self.store.range(&first, &end, PAGE)?;
            let mut transaction = Transaction::new();
            let mut freed: BTreeMap<(NodeId, DiskId), u64> = BTreeMap::new();
            for (count, entry) in entries.iter().enumerate() {
                let chunk = Chunk::decode(&entry.key, &entry.versioned.value)?;
                // One operation for each chunk and for each disk: more disks than the volume has copies where some were just made elsewhere.
                let places = chunk.copies.iter().map(|copy| (copy.node, copy.disk));
                let new = places.clone().filter(|place| !freed.contains_key(place)).count();
                if count > 0 && count + 1 + freed.len() + new > self.store.operations_max() {
                    break;
                }
                for place in places {
                    *freed.entry(place).or_default() += chunk_bytes;
                }
                transaction.compare(entry.key.clone(), entry.versioned.revision);
                transaction.delete(entry.key.clone());
                removed += 1;
            }
            if entries.is_empty() {
                self.forget_volume(stored)?;
                break;
            }
            for (&(node, disk), &bytes) in &freed {
                self.add_allocation(&mut transaction, node, disk, |allocated| {
                    allocated.saturating_sub(bytes)
                })?;
            }
            if !self.commit(&transaction)? {
                // Decided anew with the next tick.
                break;
            }
        }
        Ok(removed)
    }

    fn forget_volume(&mut self, stored: &Stored<Volume>) -> Result<(), ControlError> {
        let number = stored.record.number;
        self.remove_readers(number)?;
        self.remove_snapshots(number)?;
        let tombstone = keys::tombstone(number);
        let mut transaction = Transaction::new();
        transaction.compare(keys::volume(number), stored.revision);
        transaction
            .delete(keys::volume(number))
            .delete(keys::name(&stored.record.name));
        transaction.delete(keys::writer(number));
        transaction.delete(keys::reservations(number));
        transaction.delete(keys::grown_by(number));
        transaction.put(tombstone.clone(), Number(u64::from(number.0)).encode(&tombstone));
        if self.commit(&transaction)? {
            self.unfinished.remove(&number);
            if stored.record.origin.is_some() {
                self.clear_clone_feature()?;
            }
        }
        Ok(())
    }
}

/// A name that may be anything, for a message: its beginning, without what a terminal would obey.
pub(super) fn shown(name: &str) -> String {
    let beginning = name.chars().take(64);
    beginning.flat_map(char::escape_debug).collect()
}

pub(crate) fn check_name(name: &str) -> Result<(), ControlError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins_well && name.len() <= NAME_BYTES_MAX && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err(ControlError::Argument {
        field: "name",
        problem: match name.len() {
            ..=NAME_BYTES_MAX => format!("is \"{}\"", shown(name)),
            length => format!("has {length} bytes (\"{}...\")", shown(name)),
        },
        remedy: "use 1 to 128 letters, digits, '-', '_' and '.', the first a letter or digit",
    })
}
