//! Registration and heartbeats.

use std::collections::BTreeSet;
use std::time::Duration;

use foundation::{ByteCount, Epoch, Instant, KeptCopies};

use crate::controller::clones::Flattening;
use crate::controller::disk_moves::MovedCopy;
use crate::controller::exports::Export;
use crate::controller::growth::Growing;
use crate::controller::snapshots::SnapshotKey;
use crate::controller::volumes::shown;
use crate::controller::{ATTEMPTS_MAX, Controller, Heard, Stored, contended};
use crate::error::ControlError;
use crate::identity::{ChunkId, ClusterId, DiskId, Incarnation, NodeId, VolumeNumber};
use crate::keys;
use crate::model::{ClusterRecord, Disk, FEATURE_RACKS, Node, Number, VolumeState};
use crate::racks::Rack;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

const DISKS_MAX: usize = 256;
/// What a node may keep back of a disk, at most: a share of it, and bytes of a small one.
const KEPT_BACK_SHARE: u64 = 32;
const KEPT_BACK_MIN: u64 = 4 << 20;
const ADDRESS_BYTES_MAX: usize = 256;
const RESYNCS_MAX: usize = 1024;
/// No target has lived so often: numbers from here on are a mistake, and those that follow have to have room.
const LIVES_MAX: u64 = u64::MAX / 2;

/// A node, or a new life of its target, makes itself known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The cluster its disks belong to; none when they belong to none yet.
    pub cluster: Option<ClusterId>,
    /// The node.
    pub node: NodeId,
    /// Where peers and native clients reach its target: host and port.
    pub peer_address: String,
    /// The life of its target; none asks for a new number.
    pub incarnation: Option<Incarnation>,
    /// Every life up to this one has provably ended.
    pub ended_through: Incarnation,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// What it is lost together with; none for nothing but itself.
    pub rack: Option<Rack>,
}

/// What a registration is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The life that the node's target has from now on.
    pub incarnation: Incarnation,
    /// The store's revision.
    pub revision: u64,
}

/// A node says that its target lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// The life of its target.
    pub incarnation: Incarnation,
    /// Every life up to this one has provably ended; may be the present one.
    pub ended_through: Incarnation,
    /// Its disks as they are now.
    pub disks: Vec<Disk>,
    /// Volumes in preparation of which it has every copy placed on it.
    pub prepared: Vec<VolumeNumber>,
    /// Growing volumes of which it has every copy of a new chunk that is placed on it.
    pub grown: Vec<Growing>,
    /// Volumes in deletion of which it has no copy left.
    pub removed: Vec<VolumeNumber>,
    /// Copies on other nodes that its write nodes send what they have missed. No more than 1,024 are kept.
    pub resyncs: Vec<Resync>,
    /// All copies it has, when a life begins, when it is asked to, and now and then; else none.
    pub copies: Vec<ChunkId>,
    /// These are all of them, also if there are none. Nodes of an earlier release do not say it.
    pub names_copies: bool,
    /// Copies that it was told to delete and has no more.
    pub removed_copies: Vec<ChunkId>,
    /// What came of copies that it was told to move to another of its disks.
    pub moved_copies: Vec<MovedCopy>,
    /// Its target moves copies between its disks.
    pub moves_disks: bool,
    /// All snapshots of which it has copies, as volume and number.
    pub snapshots: BTreeSet<SnapshotKey>,
    /// Clones that it was told to flatten.
    pub flattening: Vec<Flattening>,
    /// Its target knows what hosts of exported volumes reserve, and refuses what goes against that.
    pub reserves: bool,
    /// It uses no copy on a disk that was away before masters have said that its place is there.
    pub doubts: bool,
    /// The volumes of which its target acknowledges no write before it is durable; none if it does not know such.
    pub syncs: Option<BTreeSet<VolumeNumber>>,
    /// Which copies it has of the snapshots of the list of this version ([`Controller::complete_snapshots`]), beside copies of chunks that
    /// are in sync; none until it has looked.
    pub kept: Option<(u64, KeptCopies)>,
}

/// A copy that is sent what it has missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resync {
    /// The chunk.
    pub chunk: ChunkId,
    /// The node whose copy it is.
    pub node: NodeId,
    /// Still to be sent.
    pub left: ByteCount,
    /// What it lacked.
    pub total: ByteCount,
    /// Since it was let in.
    pub elapsed: Duration,
}

/// What a heartbeat is answered with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// The store's revision.
    pub revision: u64,
    /// Volumes of which it has to create its copies.
    pub prepare: Vec<VolumeNumber>,
    /// Clones of which it has to create its copies, each from its copy of the origin. Apart from the others, since a node that does
    /// not know clones would make empty ones.
    pub prepare_clones: Vec<VolumeNumber>,
    /// Clones whose copies it has to give data of their own.
    pub flatten: Vec<VolumeNumber>,
    /// Volumes of whose new chunks it has to create its copies.
    pub grow: Vec<Growing>,
    /// Volumes of which it has to remove its copies.
    pub remove: Vec<VolumeNumber>,
    /// Copies it has to delete, with the epoch that has no place for them.
    pub remove_copies: Vec<(ChunkId, Epoch)>,
    /// Copies it has to move to another of its disks, until it has said what came of it.
    pub move_copies: Vec<(ChunkId, DiskId)>,
    /// Volumes it has to export, and no others.
    pub exports: Vec<Export>,
    /// Snapshots whose copies it has to delete.
    pub remove_snapshots: Vec<SnapshotKey>,
    /// The version of the list of complete snapshots ([`Controller::complete_snapshots`]).
    pub complete_snapshots: u64,
    /// Copies of which it has to say how they are ([`Controller::note_copies`]).
    pub describe: Vec<ChunkId>,
    /// It has to name all copies it has with its next heartbeat.
    pub name_copies: bool,
    /// Not 0 while the masters find out what nodes have done since a backup; another number each time they begin. What a node has not
    /// taken in yet of what masters of before said counts no more.
    pub hold: u64,
}

impl<S: MetadataStore> Controller<S> {
    /// Takes a node, or a new life of its target, into the cluster.
    pub fn register(
        &mut self,
        registration: &Registration,
        now: Instant,
    ) -> Result<Registered, ControlError> {
        let id = registration.node;
        self.check_cluster(id, registration.cluster.unwrap_or(self.cluster))?;
        check_registration(registration)?;
        for _ in 0..ATTEMPTS_MAX {
            let key = keys::node(id);
            let stored = self.read::<Node>(&key)?;
            if stored.is_none() {
                self.check_not_removed(id)?;
            }
            let node = self.registered(registration, stored.as_ref())?;
            let incarnation = node.incarnation;
            // Masters alone give numbers to lives.
            let known = stored.as_ref().map(|stored| stored.record.incarnation);
            if registration
                .incarnation
                .is_some_and(|theirs| known.is_some_and(|known| theirs > known))
            {
                self.found_older(now)?;
            }
            let is_known = stored.as_ref().is_some_and(|stored| stored.record == node);
            if !is_known {
                let mut transaction = Transaction::new();
                transaction.compare(key.clone(), stored.map_or(0, |stored| stored.revision));
                transaction.compare(keys::removed(id), 0);
                transaction.put(key.clone(), node.encode(&key));
                self.note_racks(&mut transaction, id, node.rack.is_some(), now)?;
                let mut forgets = false;
                // While masters find out what nodes have, they change nothing but what nodes say of themselves.
                if !node.disks.is_empty() && !self.is_restoring() {
                    self.note_drains()?;
                    forgets = self.forget_drains(&mut transaction, id, &node.disks)?;
                }
                if !self.commit(&transaction)? {
                    continue;
                }
                if forgets {
                    self.note_disk_restores()?;
                    self.note_drains()?;
                }
                if known.is_some_and(|known| known < incarnation) {
                    self.note_life_of_restores(id);
                }
            }
            // Also who asks for a number is alive, though its target has still to start: a recovery would leave it out
            // otherwise, since the last proof that a life has ended comes with such a registration.
            self.hear(
                id,
                (incarnation, registration.ended_through),
                &registration.disks,
                now,
            );
            let revision = self.revision()?;
            return Ok(Registered {
                incarnation,
                revision,
            });
        }
        Err(contended())
    }

    /// Keeps masters out that cannot read a node's record, as long as there is a node with a rack.
    pub(super) fn note_racks(
        &self,
        transaction: &mut Transaction,
        id: NodeId,
        has_rack: bool,
        now: Instant,
    ) -> Result<(), ControlError> {
        let mut others = self.nodes(now)?.into_iter().filter(|(other, _)| *other != id);
        let is_needed = has_rack || others.any(|(_, view)| view.record.rack.is_some());
        let known = self.read::<ClusterRecord>(keys::CLUSTER)?;
        if known.is_some_and(|known| (known.record.features & FEATURE_RACKS != 0) != is_needed) {
            self.set_feature(transaction, FEATURE_RACKS, is_needed)?;
        }
        Ok(())
    }

    /// The record that a registration leads to.
    fn registered(
        &self,
        registration: &Registration,
        stored: Option<&Stored<Node>>,
    ) -> Result<Node, ControlError> {
        let node = registration.node;
        let known = stored.map_or(Incarnation(0), |stored| stored.record.incarnation);
        let ended = stored.map_or(Incarnation(0), |stored| stored.record.ended_through);
        let ended_through = ended.max(registration.ended_through);
        let incarnation = match registration.incarnation {
            None => Incarnation(known.max(ended_through).0 + 1),
            Some(theirs) if theirs < known || theirs <= ended_through => {
                let known = known.max(ended_through);
                return Err(ControlError::StaleIncarnation { node, theirs, known });
            }
            Some(theirs) => theirs,
        };
        let mut disks: Vec<Disk> = registration.disks.clone();
        for disk in &mut disks {
            (disk.used, disk.held) = (ByteCount(0), None);
            let allocated = self.allocated(node, disk.id)?.0;
            // One that is as large as it was may be promised more often than masters do now.
            let before =
                stored.and_then(|stored| stored.record.disks.iter().find(|known| known.id == disk.id));
            let is_smaller = before.is_none_or(|before| disk.capacity < before.capacity);
            // A release before promised what nodes keep back now, too.
            let kept_back = ByteCount((disk.capacity.0 / KEPT_BACK_SHARE).max(KEPT_BACK_MIN));
            let was = ByteCount(disk.capacity.0.saturating_add(kept_back.0));
            if is_smaller && self.settings.promised_of(was) < allocated {
                let (disk, capacity) = (disk.id, disk.capacity);
                return Err(ControlError::DiskInUse {
                    node,
                    disk,
                    capacity,
                    allocated,
                });
            }
        }
        disks.sort_unstable_by_key(|disk| disk.id);
        Ok(Node {
            peer_address: registration.peer_address.clone(),
            incarnation,
            ended_through,
            disks,
            rack: registration.rack.clone(),
        })
    }

    /// Takes a sign of life, and answers what the node has to do.
    pub fn heartbeat(
        &mut self,
        heartbeat: &Heartbeat,
        now: Instant,
    ) -> Result<HeartbeatAnswer, ControlError> {
        let id = heartbeat.node;
        self.check_cluster(id, heartbeat.cluster)?;
        for _ in 0..ATTEMPTS_MAX {
            let Some((incarnation, ended_through)) = self.life_of(id)? else {
                self.check_not_removed(id)?;
                return Err(ControlError::NoSuchNode { node: id });
            };
            if heartbeat.incarnation != incarnation {
                return Err(ControlError::StaleIncarnation {
                    node: id,
                    theirs: heartbeat.incarnation,
                    known: incarnation,
                });
            }
            if heartbeat.ended_through > incarnation {
                return Err(ControlError::Argument {
                    field: "ended_through",
                    problem: format!(
                        "is {}, but the target has only reached incarnation {incarnation}",
                        heartbeat.ended_through
                    ),
                    remedy: "report only lives that were registered",
                });
            }
            if heartbeat.ended_through > ended_through && !self.note_end(heartbeat)? {
                continue;
            }
            let life = (incarnation, heartbeat.ended_through);
            self.hear(id, life, &heartbeat.disks, now);
            if let Some(heard) = self.heard.get_mut(&id) {
                heard.resyncs = heartbeat.resyncs.iter().take(RESYNCS_MAX).cloned().collect();
                heard.snapshots = Some(heartbeat.snapshots.clone());
                heard.reserves = heartbeat.reserves;
                heard.doubts = heartbeat.doubts;
                heard.moves_disks = heartbeat.moves_disks;
                heard.syncs.clone_from(&heartbeat.syncs);
                heard.kept = heartbeat.kept;
            }
            // Whoever is sent something lives, and is heard: nobody else is remembered.
            for resync in heartbeat.resyncs.iter().take(RESYNCS_MAX) {
                if self.heard.contains_key(&resync.node) {
                    self.care.note_resync(resync.node, now);
                }
            }
            if self.is_restoring() {
                return self.heard_while_restoring(heartbeat);
            }
            self.care.removed(id, &heartbeat.removed_copies);
            self.take_moved(id, &heartbeat.moved_copies, now)?;
            self.look_over_copies(id, &heartbeat.copies)?;
            self.take_reports(heartbeat);
            let remove_snapshots = self.snapshots_to_remove(&heartbeat.snapshots)?;
            return Ok(HeartbeatAnswer {
                remove_snapshots,
                ..self.duties(id, heartbeat.incarnation)?
            });
        }
        Err(contended())
    }

    /// Whether a heartbeat says only that its node lives on as it did when it was last heard, and nothing waits for it: with a
    /// store in this process, [`heartbeat`](Self::heartbeat) then writes nothing, and reads at most the records of the
    /// other portals of what the node exports.
    pub fn has_no_news(&self, heartbeat: &Heartbeat) -> bool {
        let Heartbeat {
            cluster: _,
            node,
            incarnation,
            ended_through,
            disks: _,
            prepared,
            grown,
            removed,
            resyncs,
            copies,
            names_copies: _,
            removed_copies,
            moved_copies,
            moves_disks,
            snapshots,
            flattening,
            reserves,
            doubts,
            syncs,
            kept: _,
        } = heartbeat;
        let lives_on = self.heard.get(node).is_some_and(|heard| {
            heard.incarnation == *incarnation
                && heard.ended_through == *ended_through
                && heard.snapshots.as_ref() == Some(snapshots)
                && heard.reserves == *reserves
                && heard.doubts == *doubts
                && heard.moves_disks == *moves_disks
                && heard.syncs == *syncs
        });
        let reports = prepared.len()
            + grown.len()
            + removed.len()
            + resyncs.len()
            + copies.len()
            + removed_copies.len()
            + moved_copies.len()
            + flattening.len();
        lives_on
            && reports == 0
            && !self.is_restoring()
            && self.unfinished.is_empty()
            && self.is_life_known()
            && self.is_exported_known()
            && !self.care.has_removals_of(*node)
            && !self.disk_moves.has_of(*node)
            && !self.inquiries.awaits(*node)
            && self.snapshots.keeps(snapshots)
    }

    /// Puts on record which lives of a node have ended; false if its record has changed meanwhile.
    fn note_end(&mut self, heartbeat: &Heartbeat) -> Result<bool, ControlError> {
        let key = keys::node(heartbeat.node);
        let Some(stored) = self.read::<Node>(&key)? else {
            return Ok(false);
        };
        let mut node = stored.record;
        if node.incarnation != heartbeat.incarnation || node.ended_through >= heartbeat.ended_through {
            return Ok(false);
        }
        node.ended_through = heartbeat.ended_through;
        let mut transaction = Transaction::new();
        transaction
            .compare(key.clone(), stored.revision)
            .put(key.clone(), node.encode(&key));
        self.commit(&transaction)
    }

    fn hear(
        &mut self,
        id: NodeId,
        (incarnation, ended_through): (Incarnation, Incarnation),
        disks: &[Disk],
        now: Instant,
    ) {
        let used = disks.iter().map(|disk| (disk.id, disk.used)).collect();
        // A life that has just begun has not said it: what the one before held is still there.
        let before = self.heard.get(&id).map(|heard| &heard.held);
        let held = disks.iter().filter_map(|disk| {
            let before = || before.and_then(|held| held.get(&disk.id)).copied();
            Some((disk.id, disk.held.or_else(before)?))
        });
        let held = held.collect();
        let heard = Heard {
            incarnation,
            ended_through,
            at: now,
            used,
            held,
            resyncs: Vec::new(),
            snapshots: None,
            reserves: false,
            doubts: false,
            moves_disks: false,
            syncs: None,
            kept: None,
        };
        if self.heard.insert(id, heard).is_none() {
            self.arrival = now;
        }
    }

    fn take_reports(&mut self, heartbeat: &Heartbeat) {
        let life = (heartbeat.node, heartbeat.incarnation);
        for number in heartbeat.prepared.iter().chain(&heartbeat.removed) {
            // A report about another state than the present one is an old one. The states are
            // read from the store when the volume is brought on.
            let Ok(volume) = self.volume(*number) else {
                continue;
            };
            let wanted = match volume.state {
                VolumeState::Preparing => heartbeat.prepared.contains(number),
                VolumeState::Deleting => heartbeat.removed.contains(number),
                VolumeState::Creating | VolumeState::Ready => false,
            };
            if let Some(unfinished) = self.unfinished_of(&volume).filter(|_| wanted) {
                unfinished.reported.insert(life);
            }
        }
        self.take_flattening(life, &heartbeat.flattening);
        for growing in &heartbeat.grown {
            let Ok(volume) = self.volume(growing.number) else {
                continue;
            };
            // Of the present growth: what was reported of an earlier one says nothing of these chunks.
            if Growing::of(&volume) == Some(*growing)
                && let Some(unfinished) = self.unfinished_of(&volume)
            {
                unfinished.reported.insert(life);
            }
        }
    }

    fn duties(&mut self, id: NodeId, incarnation: Incarnation) -> Result<HeartbeatAnswer, ControlError> {
        let mut answer = HeartbeatAnswer {
            revision: self.store.revision()?,
            remove_copies: self.removals_of(id)?,
            move_copies: self.disk_moves.wishes_of(id),
            exports: self.exports_of(id)?,
            complete_snapshots: self.snapshots.version(),
            describe: self.inquiries.of_node(id),
            ..HeartbeatAnswer::default()
        };
        for (&number, unfinished) in &self.unfinished {
            if !self.concerns(number, id) || unfinished.reported.contains(&(id, incarnation)) {
                continue;
            }
            let Ok(volume) = self.volume(number) else {
                continue;
            };
            match volume.state {
                VolumeState::Preparing if volume.origin.is_some() => answer.prepare_clones.push(number),
                VolumeState::Preparing => answer.prepare.push(number),
                VolumeState::Deleting => answer.remove.push(number),
                VolumeState::Ready if volume.is_flattening() => answer.flatten.push(number),
                VolumeState::Ready => answer.grow.extend(Growing::of(&volume)),
                VolumeState::Creating => {}
            }
        }
        Ok(answer)
    }

    fn check_cluster(&self, node: NodeId, theirs: ClusterId) -> Result<(), ControlError> {
        if theirs == self.cluster {
            return Ok(());
        }
        Err(ControlError::ForeignCluster {
            node,
            theirs,
            ours: self.cluster,
        })
    }

    /// Bytes promised to copies on a disk, and the revision of that number.
    pub(super) fn allocated(&self, node: NodeId, disk: DiskId) -> Result<(ByteCount, u64), ControlError> {
        let stored = self.read::<Number>(&keys::allocation(node, disk))?;
        Ok(stored.map_or((ByteCount(0), 0), |stored| {
            (ByteCount(stored.record.0), stored.revision)
        }))
    }
}

fn check_registration(registration: &Registration) -> Result<(), ControlError> {
    let argument = |field, problem, remedy| {
        Err(ControlError::Argument {
            field,
            problem,
            remedy,
        })
    };
    let address = &registration.peer_address;
    let is_host =
        |host: &str| !host.is_empty() && !host.contains(|c: char| c.is_control() || c.is_whitespace());
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let parts = address.rsplit_once(':');
    let is_address = parts.is_some_and(|(host, port)| is_host(host) && is_port(port));
    if !is_address || address.len() > ADDRESS_BYTES_MAX {
        return argument(
            "peer_address",
            match address.len() {
                ..=ADDRESS_BYTES_MAX => format!("is \"{}\"", shown(address)),
                length => format!("has {length} bytes (\"{}...\")", shown(address)),
            },
            "write host and port, such as 192.0.2.7:4420",
        );
    }
    let lives = [
        ("incarnation", registration.incarnation.unwrap_or_default()),
        ("ended_through", registration.ended_through),
    ];
    if let Some((field, life)) = lives.into_iter().find(|(_, life)| life.0 >= LIVES_MAX) {
        let problem = format!("is {life}, and no target has lived 2^63 - 1 times or more often");
        return argument(
            field,
            problem,
            "report only lives that were registered, and ask for a new number with 0",
        );
    }
    if registration.disks.len() > DISKS_MAX {
        let problem = format!("lists {} disks of at most {DISKS_MAX}", registration.disks.len());
        return argument("disks", problem, "join disks into larger ones, or run two nodes");
    }
    let mut ids: Vec<DiskId> = registration.disks.iter().map(|disk| disk.id).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        let problem = format!("lists disk {} twice", pair[0]);
        return argument("disks", problem, "name each disk once");
    }
    Ok(())
}
