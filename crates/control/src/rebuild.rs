//! A cluster's records made anew from what the nodes' disks say, when every store that had them is lost
//! (`docs/decisions/0078`). Pure: what the nodes say comes in, records and a report go out.
//!
//! Of each chunk the configuration with the highest epoch that any disk has sealed counts, if no later one can have been in
//! force: a later one would have to have been sealed by all its members, at least as many as the volume's minimum, or by a
//! member of that configuration. So it counts if fewer nodes than the minimum are missing, or if every member of it
//! has been read. Everything else is refused. What is numbered goes on far above all that was seen, since what the
//! lost store had given out last may have reached nobody.

mod snapshots;

use std::collections::{BTreeMap, BTreeSet};

use foundation::{Epoch, Random};

use crate::identity::{
    ChunkId, ClusterId, DiskId, Incarnation, NodeId, SessionId, SnapshotNumber, Uuid, VolumeNumber,
    WriterToken,
};
use crate::keys;
use crate::model::{
    Chunk, ClusterRecord, Copy, Disk, FEATURE_CLONES, FEATURE_SYNC_WRITES, Geometry, Node, Number,
    ReaderLease, Volume, VolumeState, WriterLease,
};
use crate::record::Record;
use crate::settings::Settings;
use crate::transfer::{Image, TransferError};

pub use snapshots::{Note, SnapshotFound, SnapshotReport};

/// Numbers of volumes, epochs and tokens go on so far above the highest seen.
pub const GAP: u32 = 1024;
// A chunk's configurations begin above what its copies have sealed, and those are not served by force.
const _: () = assert!((GAP as u64) < Epoch::JUMP);

/// What one node's disks say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The cluster its disks belong to.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Where peers and clients reach its target.
    pub peer_address: String,
    /// The last life of its target that was started.
    pub incarnation: Incarnation,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// The copies on them.
    pub copies: Vec<CopyReport>,
    /// Copies whose records cannot be read.
    pub damaged: Vec<ChunkId>,
    /// The copies of snapshots on them.
    pub snapshots: Vec<SnapshotReport>,
}

/// What the record of one copy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// The chunk.
    pub chunk: ChunkId,
    /// The disk.
    pub disk: DiskId,
    /// It keeps checksums of its blocks.
    pub checksums: bool,
    /// The volume's geometry, as this copy knows it.
    pub geometry: Geometry,
    /// Everything of an older epoch is refused there.
    pub sealed: Epoch,
    /// The newest configuration that it has sealed; none for a copy that never took part in anything.
    pub configuration: Option<SealedConfiguration>,
    /// The newest write lease that it has seen.
    pub token: WriterToken,
    /// The snapshot of another volume of which it shows something.
    pub origin: Option<(VolumeNumber, SnapshotNumber)>,
}

/// A configuration as a copy keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedConfiguration {
    /// Its epoch.
    pub epoch: Epoch,
    /// The member that orders writes.
    pub write_node: NodeId,
    /// Who is in sync, in ascending order of nodes.
    pub members: Vec<(NodeId, Incarnation)>,
}

/// What people say to it.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Names of volumes, which only the store knew.
    pub names: BTreeMap<VolumeNumber, String>,
    /// An old backup: names, identities for hosts and exports come from there.
    pub backup: Option<Image>,
    /// Volumes that are given up, or were deleted.
    pub without: BTreeSet<VolumeNumber>,
}

/// What was found of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFound {
    /// Its number.
    pub number: VolumeNumber,
    /// Its name from now on.
    pub name: String,
    /// The name and the identity for hosts come from a backup, or the name was given; otherwise the store alone knew them.
    pub is_name_known: bool,
    /// The chunks it should have, by the largest geometry found.
    pub chunks: u32,
    /// The chunks of it, those that are known and those that are not.
    pub found: Vec<ChunkFound>,
    /// Why it cannot be made anew, if it cannot.
    pub problem: Option<String>,
}

/// What was found of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkFound {
    /// Its index.
    pub index: u32,
    /// The highest epoch sealed by any copy; 0 for none.
    pub epoch: Epoch,
    /// Copies in sync by that epoch's configuration whose disks were read.
    pub in_sync: Vec<NodeId>,
    /// Copies in sync by it whose nodes are missing.
    pub missing: Vec<NodeId>,
    /// Copies that are not in sync by it.
    pub stale: Vec<NodeId>,
    /// Why it cannot be determined, if it cannot.
    pub problem: Option<String>,
}

/// All that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The cluster.
    pub cluster: ClusterId,
    /// The nodes that were read.
    pub nodes: Vec<NodeId>,
    /// Nodes that configurations name and that were not read.
    pub missing: Vec<NodeId>,
    /// Every volume of which there is a copy, but those that are given up.
    pub volumes: Vec<VolumeFound>,
    /// Every snapshot of which there is a copy, but those of volumes that are given up.
    pub snapshots: Vec<SnapshotFound>,
    /// All records, if nothing stands in the way.
    pub image: Option<Image>,
}

/// Why nothing can be made of the reports at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the texts name them")]
pub enum RebuildError {
    #[error("no node was named; name every node of the cluster")]
    NoNodes,
    #[error("node {node} belongs to cluster {theirs}, node {other} to {ours}; name the nodes of one cluster")]
    Clusters {
        node: NodeId,
        theirs: ClusterId,
        other: NodeId,
        ours: ClusterId,
    },
    #[error("node {node} was named twice; name each node once")]
    Twice { node: NodeId },
    #[error(
        "the backup is of cluster {theirs}, the nodes belong to {ours}; name a backup of this cluster, or none"
    )]
    Backup { theirs: ClusterId, ours: ClusterId },
    #[error("the numbers of volumes, epochs or tokens are used up; nothing can be numbered above them")]
    UsedUp,
    #[error(transparent)]
    Record(#[from] TransferError),
}

/// Finds out what the nodes' disks say, and makes records of it. `seed` is drawn at random by the caller.
pub fn rebuild(reports: &[NodeReport], wishes: &Wishes, seed: u64) -> Result<Found, RebuildError> {
    let cluster = check(reports, wishes)?;
    let read: BTreeSet<NodeId> = reports.iter().map(|report| report.node).collect();
    let named = reports.iter().flat_map(|report| &report.copies);
    let named = named.filter_map(|copy| copy.configuration.as_ref());
    let named = named.flat_map(|config| config.members.iter().map(|member| member.0));
    let missing: BTreeSet<NodeId> = named.filter(|node| !read.contains(node)).collect();
    let lives = last_lives(reports);
    let is_behind = |report: &&NodeReport| lives[&report.node] > report.incarnation;
    let behind: BTreeSet<NodeId> = reports
        .iter()
        .filter(is_behind)
        .map(|report| report.node)
        .collect();
    let mut numbers: BTreeSet<VolumeNumber> = BTreeSet::new();
    for report in reports {
        numbers.extend(report.copies.iter().map(|copy| copy.chunk.volume));
        numbers.extend(report.damaged.iter().map(|chunk| chunk.volume));
    }
    let highest = numbers.last().copied();
    let (mut volumes, mut records) = (Vec::new(), BTreeMap::new());
    let mut maker = Maker {
        reports,
        copies: copies_by_volume(reports),
        unknown: missing.union(&behind).copied().collect(),
        behind: &behind,
        wishes,
        old: old_volumes(wishes),
        random: Random::from_seed(seed),
        names: BTreeSet::new(),
    };
    for number in numbers
        .into_iter()
        .filter(|number| !wishes.without.contains(number))
    {
        let (found, made) = maker.volume(number)?;
        records.extend(made);
        volumes.push(found);
    }
    let snapshots = maker.snapshots(&volumes, &mut records);
    let has_clones = maker.origins(&volumes, &snapshots, &mut records)?;
    let syncs = |found: &VolumeFound| maker.old.get(&found.number).is_some_and(|old| old.sync_writes);
    let features = [
        (has_clones, FEATURE_CLONES),
        (volumes.iter().any(syncs), FEATURE_SYNC_WRITES),
    ];
    let features = features.iter().fold(
        0,
        |bits, (is_there, bit)| if *is_there { bits | bit } else { bits },
    );
    let image = match volumes.iter().all(|volume| volume.problem.is_none()) {
        false => None,
        true => {
            put(
                &mut records,
                keys::CLUSTER.to_vec(),
                &ClusterRecord {
                    id: cluster,
                    features,
                },
            );
            for report in reports {
                put(
                    &mut records,
                    keys::node(report.node),
                    &node_record(report, lives[&report.node]),
                );
            }
            let known = wishes.backup.as_ref().and_then(next_number).unwrap_or(1);
            let above = highest.map_or(0, |number| u64::from(number.0)).max(known) + u64::from(GAP);
            let above = u32::try_from(above).map_err(|_| RebuildError::UsedUp)?;
            put(&mut records, keys::NEXT_VOLUME.to_vec(), &Number(above.into()));
            maker.promise(&mut records);
            // Every master-to-be finds it as the last state of a store that is closed.
            Some(Image::new(0, true, records.into_iter().collect())?)
        }
    };
    Ok(Found {
        cluster,
        nodes: read.into_iter().collect(),
        missing: missing.iter().copied().collect(),
        volumes,
        snapshots,
        image,
    })
}

fn check(reports: &[NodeReport], wishes: &Wishes) -> Result<ClusterId, RebuildError> {
    let first = reports.first().ok_or(RebuildError::NoNodes)?;
    let mut seen = BTreeSet::new();
    for report in reports {
        if report.cluster != first.cluster {
            return Err(RebuildError::Clusters {
                node: report.node,
                theirs: report.cluster,
                other: first.node,
                ours: first.cluster,
            });
        }
        if !seen.insert(report.node) {
            return Err(RebuildError::Twice { node: report.node });
        }
    }
    match &wishes.backup {
        Some(backup) if backup.cluster != first.cluster => Err(RebuildError::Backup {
            theirs: backup.cluster,
            ours: first.cluster,
        }),
        _ => Ok(first.cluster),
    }
}

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn put(records: &mut Records, key: Vec<u8>, record: &impl Record) {
    let value = record.encode(&key);
    records.insert(key, value);
}

/// The last life of each node that anything names.
fn last_lives(reports: &[NodeReport]) -> BTreeMap<NodeId, Incarnation> {
    let own = reports.iter().map(|report| (report.node, report.incarnation));
    let configs = reports.iter().flat_map(|report| &report.copies);
    let configs = configs.filter_map(|copy| copy.configuration.as_ref());
    let named = configs.flat_map(|config| config.members.iter().copied());
    let mut lives = BTreeMap::new();
    for (node, life) in own.chain(named) {
        let last = lives.entry(node).or_insert(life);
        *last = life.max(*last);
    }
    lives
}

fn node_record(report: &NodeReport, last_life: Incarnation) -> Node {
    let mut disks = report.disks.clone();
    disks.sort_unstable_by_key(|disk| disk.id);
    Node {
        peer_address: report.peer_address.clone(),
        incarnation: last_life,
        // That the last one has ended, too, the node's engine proves when it starts.
        ended_through: Incarnation(report.incarnation.0.saturating_sub(1)),
        disks,
        // Each says it again when it registers.
        rack: None,
    }
}

fn old_volumes(wishes: &Wishes) -> BTreeMap<VolumeNumber, Volume> {
    let records = wishes.backup.iter().flat_map(|backup| &backup.records);
    let volumes = records.filter(|(key, _)| key.starts_with(keys::VOLUMES));
    let volumes = volumes.filter_map(|(key, value)| Volume::decode(key, value).ok());
    volumes.map(|volume| (volume.number, volume)).collect()
}

fn next_number(backup: &Image) -> Option<u64> {
    let (key, value) = backup.records.iter().find(|(key, _)| key == keys::NEXT_VOLUME)?;
    Some(Number::decode(key, value).ok()?.0)
}

type CopiesByVolume<'a> = BTreeMap<VolumeNumber, Vec<(NodeId, &'a CopyReport)>>;

fn copies_by_volume(reports: &[NodeReport]) -> CopiesByVolume<'_> {
    let mut copies = CopiesByVolume::new();
    for report in reports {
        for copy in &report.copies {
            let of_volume = copies.entry(copy.chunk.volume).or_default();
            of_volume.push((report.node, copy));
        }
    }
    copies
}

struct Maker<'a> {
    reports: &'a [NodeReport],
    copies: CopiesByVolume<'a>,
    /// Nodes of which it is not known what they have done last: not read, or their disks are older than that.
    unknown: BTreeSet<NodeId>,
    /// Those of which others know a later life than they do themselves.
    behind: &'a BTreeSet<NodeId>,
    wishes: &'a Wishes,
    old: BTreeMap<VolumeNumber, Volume>,
    random: Random,
    names: BTreeSet<String>,
}

impl<'a> Maker<'a> {
    fn uuid(&mut self) -> Uuid {
        Uuid::from_random_bits(self.random.next_u64(), self.random.next_u64())
    }

    fn copies_of(&self, number: VolumeNumber) -> Vec<(NodeId, &'a CopyReport)> {
        self.copies.get(&number).cloned().unwrap_or_default()
    }

    fn volume(&mut self, number: VolumeNumber) -> Result<(VolumeFound, Records), RebuildError> {
        let copies = self.copies_of(number);
        let (name, is_name_known) = self.name(number);
        let largest = copies.iter().map(|(_, copy)| &copy.geometry);
        let Some(geometry) = largest.max_by_key(|geometry| geometry.chunk_count()).cloned() else {
            let found = VolumeFound {
                number,
                name,
                is_name_known,
                chunks: 0,
                found: Vec::new(),
                problem: Some("no record of any copy of it can be read".to_owned()),
            };
            return Ok((found, Records::new()));
        };
        let mut by_chunk: BTreeMap<u32, Vec<(NodeId, &CopyReport)>> = BTreeMap::new();
        for &(node, copy) in &copies {
            by_chunk.entry(copy.chunk.index).or_default().push((node, copy));
        }
        let (mut records, mut found, mut token) = (Records::new(), Vec::new(), 0);
        for index in 0..geometry.chunk_count() {
            let of_chunk = by_chunk.remove(&index).unwrap_or_default();
            token = of_chunk
                .iter()
                .map(|(_, copy)| copy.token.0)
                .max()
                .unwrap_or(0)
                .max(token);
            let (chunk, record) = self.chunk(index, &of_chunk, geometry.minimum)?;
            if let Some(record) = record {
                let key = keys::chunk(ChunkId {
                    volume: number,
                    index,
                });
                put(&mut records, key, &record);
            }
            found.push(chunk);
        }
        let checksums = copies.iter().any(|(_, copy)| copy.checksums);
        let starts = |copy: &CopyReport| geometry.group_chunks.starts_with(&copy.geometry.group_chunks);
        let bad = found.iter().filter(|chunk| chunk.problem.is_some()).count();
        let problem = if !copies.iter().all(|(_, copy)| starts(copy)) {
            Some("its copies contradict each other about its geometry".to_owned())
        } else if !self.names.insert(name.clone()) {
            Some(format!(
                "another volume is named \"{name}\" already; give one of them another name"
            ))
        } else if bad > 0 {
            Some(format!(
                "{bad} of its {} chunks cannot be determined",
                found.len()
            ))
        } else {
            None
        };
        let old = self.old.get(&number).cloned();
        let uuid = old.as_ref().map(|old| old.uuid);
        let uuid = uuid.unwrap_or_else(|| self.uuid());
        let volume = Volume {
            number,
            name: name.clone(),
            uuid,
            geometry,
            state: VolumeState::Ready,
            portals: old
                .as_ref()
                .map_or_else(Vec::new, |old| self.still_there(&old.portals)),
            write_pin: None,
            sync_writes: old.as_ref().is_some_and(|old| old.sync_writes),
            hosts: old.map_or_else(Vec::new, |old| old.hosts),
            growth: Vec::new(),
            checksums,
            origin: None,
            spread: None,
        };
        put(&mut records, keys::name(&name), &Number(number.0.into()));
        put(&mut records, keys::volume(number), &volume);
        self.leases(number, token, &mut records)?;
        let chunks = volume.geometry.chunk_count();
        let found = VolumeFound {
            number,
            name,
            is_name_known,
            chunks,
            found,
            problem,
        };
        Ok((found, records))
    }

    fn still_there(&self, portals: &[NodeId]) -> Vec<NodeId> {
        let read = |node: &NodeId| self.reports.iter().any(|report| report.node == *node);
        portals.iter().copied().filter(read).collect()
    }

    fn name(&self, number: VolumeNumber) -> (String, bool) {
        let given = self.wishes.names.get(&number).cloned();
        let given = given.or_else(|| self.old.get(&number).map(|old| old.name.clone()));
        match given {
            Some(name) => (name, true),
            None => (format!("recovered-{number}"), false),
        }
    }

    fn chunk(
        &self,
        index: u32,
        copies: &[(NodeId, &CopyReport)],
        minimum: u8,
    ) -> Result<(ChunkFound, Option<Chunk>), RebuildError> {
        let mut found = ChunkFound {
            index,
            epoch: Epoch(0),
            in_sync: Vec::new(),
            missing: Vec::new(),
            stale: Vec::new(),
            problem: None,
        };
        let configured = copies.iter().filter_map(|(_, copy)| copy.configuration.as_ref());
        let Some(newest) = configured.max_by_key(|config| config.epoch) else {
            found.stale = copies.iter().map(|copy| copy.0).collect();
            found.problem = Some(match copies.len() {
                0 => "no copy of it was found; read the other nodes".to_owned(),
                count => format!(
                    "{count} copies of it were found, and none ever took part in anything: they may be empty while others have the data; read the other nodes"
                ),
            });
            return Ok((found, None));
        };
        let sealed = copies
            .iter()
            .map(|(_, copy)| copy.sealed)
            .max()
            .unwrap_or_default();
        found.epoch = sealed.max(newest.epoch);
        // Disks that are older than their node's membership lack what was written since.
        let members = newest
            .members
            .iter()
            .filter(|member| !self.behind.contains(&member.0));
        let members: Vec<(NodeId, Incarnation)> = members.copied().collect();
        let is_member = |node: NodeId| members.iter().any(|member| member.0 == node);
        for &(node, _) in copies {
            let list = if is_member(node) {
                &mut found.in_sync
            } else {
                &mut found.stale
            };
            list.push(node);
        }
        let lacking = members.iter().map(|member| member.0);
        found.missing = lacking.filter(|node| !found.in_sync.contains(node)).collect();
        let others = copies.iter().filter_map(|(_, copy)| copy.configuration.as_ref());
        let contradicted = others
            .filter(|config| config.epoch == newest.epoch)
            .any(|config| config != newest);
        let unread = newest
            .members
            .iter()
            .any(|member| self.unknown.contains(&member.0));
        found.problem = if contradicted {
            Some(format!(
                "two copies say different things of epoch {}",
                newest.epoch.0
            ))
        } else if sealed > newest.epoch {
            Some(format!(
                "epoch {} is sealed, and no copy says which configuration that is; read the other nodes",
                sealed.0
            ))
        } else if found.in_sync.is_empty() {
            Some("no copy that was in sync was found; read the other nodes".to_owned())
        } else if unread && self.unknown.len() >= usize::from(minimum) {
            Some(format!(
                "{} nodes were not read or have old disks, and {minimum} of them would have been enough to go on without the others; read them as they were last",
                self.unknown.len()
            ))
        } else if members.len() < usize::from(minimum).min(newest.members.len()) {
            Some(format!(
                "{} of its copies in sync are on disks that are older than that, {} are left and {minimum} needed; find the newer disks",
                newest.members.len() - members.len(),
                members.len()
            ))
        } else {
            None
        };
        if found.problem.is_some() {
            return Ok((found, None));
        }
        let epoch = newest
            .epoch
            .0
            .checked_add(GAP.into())
            .filter(|epoch| *epoch < u64::MAX / 2);
        let mut places: BTreeMap<NodeId, Copy> = BTreeMap::new();
        for &(node, incarnation) in &members {
            // On which of its disks a copy is that was not read, only its node knows.
            let disk = DiskId::default();
            let incarnation = Some(incarnation);
            places.insert(
                node,
                Copy {
                    node,
                    disk,
                    incarnation,
                },
            );
        }
        for &(node, copy) in copies {
            let empty = Copy {
                node,
                disk: copy.disk,
                incarnation: None,
            };
            places.entry(node).or_insert(empty).disk = copy.disk;
        }
        let chunk = Chunk {
            epoch: Epoch(epoch.ok_or(RebuildError::UsedUp)?),
            write_node: match is_member(newest.write_node) {
                true => newest.write_node,
                false => members[0].0,
            },
            copies: places.into_values().collect(),
            recovery: false,
        };
        if !chunk.is_consistent() {
            found.problem = Some(format!(
                "the configuration of epoch {} cannot be one",
                newest.epoch.0
            ));
            return Ok((found, None));
        }
        Ok((found, Some(chunk)))
    }

    /// A token above all that were seen, held by nobody; and a lease for the readers of whom only the lost store knew.
    fn leases(
        &mut self,
        number: VolumeNumber,
        token: u64,
        records: &mut Records,
    ) -> Result<(), RebuildError> {
        if token > 0 {
            let token = token
                .checked_add(GAP.into())
                .filter(|token| *token < u64::MAX / 2);
            let lease = WriterLease {
                token: WriterToken(token.ok_or(RebuildError::UsedUp)?),
                session: None,
                holder: "lost with the masters' store".to_owned(),
                term: Settings::default().writer_term,
            };
            put(records, keys::writer(number), &lease);
        }
        let session = SessionId(self.uuid());
        let lease = ReaderLease {
            holder: "readers of whom only the masters' lost store knew".to_owned(),
            generation: 0,
        };
        put(records, keys::reader(number, session), &lease);
        Ok(())
    }

    /// The room that the copies have, by disk.
    fn promise(&self, records: &mut Records) {
        let mut promised: BTreeMap<(NodeId, DiskId), u64> = BTreeMap::new();
        for report in self.reports {
            for copy in &report.copies {
                if records.contains_key(&keys::chunk(copy.chunk)) {
                    *promised.entry((report.node, copy.disk)).or_default() += copy.geometry.chunk.0;
                }
            }
        }
        for ((node, disk), bytes) in promised {
            put(records, keys::allocation(node, disk), &Number(bytes));
        }
    }
}

#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;
