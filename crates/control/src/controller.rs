//! The masters' decisions on a store: read, decide, commit with comparisons, answer.

pub(crate) mod balance;
mod by_command;
mod care;
pub(crate) mod changes;
mod chunks;
pub(crate) mod clones;
pub(crate) mod damage;
pub(crate) mod data_keys;
mod disk_balance;
pub(crate) mod disk_moves;
pub(crate) mod drain;
mod dues;
pub(crate) mod exports;
pub(crate) mod force;
pub(crate) mod growth;
pub(crate) mod health;
pub(crate) mod joining;
mod keeping;
pub(crate) mod leases;
pub(crate) mod nodes;
mod reconcile;
pub(crate) mod releases;
mod removal;
pub(crate) mod reservations;
pub(crate) mod restored;
pub(crate) mod room;
mod siblings;
pub(crate) mod snapshots;
pub(crate) mod status;
mod sync_writes;
mod unfinished;
pub(crate) mod uses;
pub(crate) mod volumes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foundation::{ByteCount, Instant, KeptCopies, Random};

use crate::configuration::Standing;
use crate::error::ControlError;
use crate::identity::{ClusterId, DiskId, Incarnation, NodeId, Uuid, VolumeNumber};
use crate::keys;
use crate::model::{Chunk, ClusterRecord, FEATURES_KNOWN, Node, Volume};
use crate::pace::Pace;
use crate::planted::Planted;
use crate::racks::Racks;
use crate::record::Record;
use crate::settings::Settings;
use crate::store::{Committed, MetadataStore, Operation, Transaction};
use crate::transfer;

use balance::Balancer;
use care::Care;
use changes::ChangeLog;
use damage::Damages;
use disk_moves::DiskMoves;
use force::Inquiries;
use health::Health;
use leases::LeaseClock;
use reconcile::Reconciler;
use restored::Restoring;
use snapshots::{SnapshotKey, Snapshots};
use unfinished::Unfinished;
use uses::Uses;

/// How often a decision is made anew when another master was quicker.
const ATTEMPTS_MAX: u32 = 16;
/// Timeouts after which no arrival keeps a new master waiting for nodes that it has not heard.
const ARRIVALS_MAX: u32 = 10;
/// Records read at a time.
const PAGE: usize = 1024;

/// The masters' decisions on a store; see the crate's documentation.
#[derive(Debug)]
pub struct Controller<S> {
    store: S,
    settings: Settings,
    cluster: ClusterId,
    random: Random,
    /// Since when this master has been able to hear nodes.
    listening: Instant,
    /// When it last heard a node for the first time.
    arrival: Instant,
    heard: BTreeMap<NodeId, Heard>,
    changes: ChangeLog,
    lease_clock: LeaseClock,
    /// Volumes between two states, and what nodes have reported about them.
    unfinished: BTreeMap<VolumeNumber, Unfinished>,
    reconciler: Reconciler,
    audited: Instant,
    care: Care,
    /// The exported volumes, and the store's revision at which they were so.
    exported: Option<(u64, Vec<Volume>)>,
    /// The nodes' records, and the store's revision at which they were so.
    nodes_known: RefCell<Option<(u64, BTreeMap<NodeId, Node>)>>,
    balancer: Balancer,
    /// Copies that move between the disks of their nodes.
    disk_moves: DiskMoves,
    /// How fast copies are moved and made.
    pace: Pace,
    snapshots: Snapshots,
    /// When this master turned the keys of the data path last.
    data_keys_turned: Option<Instant>,
    /// The nodes that have asked this master for them.
    data_keys_known: BTreeSet<NodeId>,
    health: Health,
    uses: Uses,
    damages: Damages,
    releases: releases::Told,
    /// What nodes are asked about copies of chunks that nobody can serve.
    inquiries: Inquiries,
    /// The store is older than what the nodes have done, and that is being found out.
    restoring: Option<Restoring>,
    planted: Planted,
}

/// When a node was last heard.
#[derive(Clone, Debug)]
struct Heard {
    incarnation: Incarnation,
    ended_through: Incarnation,
    at: Instant,
    used: BTreeMap<DiskId, ByteCount>,
    /// What snapshots hold of its disks, as far as any life of it has said.
    held: BTreeMap<DiskId, ByteCount>,
    resyncs: Vec<nodes::Resync>,
    /// Of which it has copies; none before it has said so.
    snapshots: Option<BTreeSet<SnapshotKey>>,
    /// Its target knows reservations of exported volumes.
    reserves: bool,
    /// It uses no copy on a disk that was away before it has asked.
    doubts: bool,
    /// Its target moves copies between its disks.
    moves_disks: bool,
    /// The volumes of which its target acknowledges no write before it is durable; none if it does not know such.
    syncs: Option<BTreeSet<VolumeNumber>>,
    /// Which copies of snapshots it has beside copies of chunks in sync, by the list of complete ones of that version.
    kept: Option<(u64, KeptCopies)>,
}

/// A node as the masters see it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node.
    pub id: NodeId,
    /// What the store knows of it.
    pub record: Node,
    /// Heard recently enough, or not yet missing since this master started.
    pub is_alive: bool,
    /// This master itself has heard the life that the store names, recently enough.
    pub is_heard: bool,
}

impl NodeView {
    /// Whether it may still be on its way to a master that has just begun to lead.
    pub(crate) fn is_awaited(&self) -> bool {
        let lives = self.record.ended_through < self.record.incarnation;
        lives && self.is_alive && !self.is_heard
    }
}

/// A record and the store's revision at which it was put.
#[derive(Clone, Debug)]
pub(crate) struct Stored<R> {
    pub(crate) record: R,
    pub(crate) revision: u64,
}

impl<S: MetadataStore> Controller<S> {
    /// Takes up the cluster in `store`, or founds one in an empty store. `seed` is drawn at
    /// random by the caller, anew in each process.
    pub fn open(store: S, settings: Settings, seed: u64, now: Instant) -> Result<Self, ControlError> {
        transfer::check_open(&store)?;
        let mut random = Random::from_seed(seed);
        let cluster = found(&store, settings.cluster, &mut random)?;
        let revision = store.revision()?;
        let mut controller = Self {
            store,
            settings,
            cluster,
            random,
            listening: now,
            arrival: now,
            heard: BTreeMap::new(),
            changes: ChangeLog::new(revision, settings.changes_kept),
            lease_clock: LeaseClock::default(),
            unfinished: BTreeMap::new(),
            reconciler: Reconciler::default(),
            audited: now,
            care: Care::default(),
            exported: None,
            nodes_known: RefCell::default(),
            balancer: Balancer::default(),
            disk_moves: DiskMoves::default(),
            pace: Pace::default(),
            snapshots: Snapshots::default(),
            data_keys_turned: None,
            data_keys_known: BTreeSet::new(),
            health: Health::default(),
            uses: Uses::default(),
            damages: Damages::default(),
            releases: releases::Told::default(),
            inquiries: Inquiries::default(),
            restoring: None,
            planted: Planted::default(),
        };
        controller.note_restored(now)?;
        controller.note_drains()?;
        controller.note_disk_restores()?;
        controller.note_snapshots()?;
        controller.note_leases(now)?;
        controller.note_unfinished()?;
        Ok(controller)
    }

    /// The cluster's identity.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The times and bounds in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The store's revision: changes with every committed change of the cluster's state.
    pub fn revision(&self) -> Result<u64, ControlError> {
        Ok(self.store.revision()?)
    }

    /// What was not heard up to now says nothing: this master has not been listening. Every node
    /// has a whole term from now on before it counts as gone.
    pub fn listen_anew(&mut self, now: Instant) {
        self.listening = now;
    }

    /// What was not heard for `gap` up to now says nothing: this master has stood still for that long, which is too short to begin
    /// anew. Every node has as much longer before it counts as gone.
    pub(crate) fn forgive(&mut self, gap: Duration, now: Instant) {
        self.listening = now.min(self.listening + gap);
        for heard in self.heard.values_mut() {
            heard.at = now.min(heard.at + gap);
        }
    }

    /// Whether this master itself has heard any node lately.
    pub(crate) fn hears_a_node(&self, now: Instant) -> bool {
        self.has_heard_within(self.settings.heartbeat_timeout, now)
    }

    /// Whether any node was heard within this time.
    fn has_heard_within(&self, time: Duration, now: Instant) -> bool {
        self.heard.values().any(|heard| now.since(heard.at) < time)
    }

    pub(crate) fn with_planted(mut self, planted: Planted) -> Self {
        self.planted = planted;
        self
    }

    /// Takes over what another controller had in memory: the mistake that the simulation plants.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn remember(&mut self, other: Self) {
        self.listening = other.listening;
        self.arrival = other.arrival;
        self.heard = other.heard;
        self.changes = other.changes;
        self.lease_clock = other.lease_clock;
        self.unfinished = other.unfinished;
        self.reconciler = other.reconciler;
        self.audited = other.audited;
        self.exported = other.exported;
        self.nodes_known = other.nodes_known;
    }

    /// The revision up to which this master knows what was committed; asks nobody.
    pub fn known_revision(&self) -> u64 {
        self.changes.end()
    }

    fn read<R: Record>(&self, key: &[u8]) -> Result<Option<Stored<R>>, ControlError> {
        read(&self.store, key)
    }

    /// Every record from `first` up to `end`, read in pages.
    fn read_range<R: Record>(
        &self,
        first: Vec<u8>,
        end: &[u8],
        mut each: impl FnMut(&[u8], Stored<R>),
    ) -> Result<(), ControlError> {
        let mut first = first;
        loop {
            let entries = self.store.range(&first, end, PAGE)?;
            for entry in &entries {
                let record = R::decode(&entry.key, &entry.versioned.value)?;
                let revision = entry.versioned.revision;
                each(&entry.key, Stored { record, revision });
            }
            match entries.last() {
                Some(last) if entries.len() == PAGE => first = keys::after(&last.key),
                _ => return Ok(()),
            }
        }
    }

    /// Commits; true when committed, false when another master was quicker. Refused, but for what nodes say of themselves, as long
    /// as the store is older than what the nodes have done.
    fn commit(&mut self, transaction: &Transaction) -> Result<bool, ControlError> {
        self.check_restored(transaction)?;
        self.commit_unchecked(transaction)
    }

    fn commit_unchecked(&mut self, transaction: &Transaction) -> Result<bool, ControlError> {
        match self.store.commit(transaction)? {
            Committed::At { revision, previous } => {
                self.changes.committed(previous, revision, transaction);
                for operation in &transaction.operations {
                    self.snapshots.committed(operation)?;
                    self.disk_moves.committed(operation)?;
                    let (Operation::Put { key, .. } | Operation::Delete { key }) = operation;
                    let Some(id) = keys::parse_chunk(key) else {
                        continue;
                    };
                    self.care.changed(id);
                    if let Operation::Put { value, .. } = operation {
                        self.reconciler.committed(id, &Chunk::decode(key, value)?);
                    }
                }
                Ok(true)
            }
            Committed::Conflict => Ok(false),
        }
    }

    /// Has a transaction put the cluster's record anew, with or without a bit that keeps out masters that do not know something. To be
    /// committed with whatever decides that. Whether it changes anything.
    fn set_feature(
        &self,
        transaction: &mut Transaction,
        feature: u64,
        is_set: bool,
    ) -> Result<bool, ControlError> {
        let Some(stored) = read::<ClusterRecord>(&self.store, keys::CLUSTER)? else {
            return Ok(false);
        };
        let features = match is_set {
            true => stored.record.features | feature,
            false => stored.record.features & !feature,
        };
        let record = ClusterRecord {
            features,
            ..stored.record
        };
        transaction
            .compare(keys::CLUSTER.to_vec(), stored.revision)
            .put(keys::CLUSTER.to_vec(), record.encode(keys::CLUSTER));
        Ok(features != stored.record.features)
    }

    /// Every node of the cluster.
    pub fn nodes(&self, now: Instant) -> Result<BTreeMap<NodeId, NodeView>, ControlError> {
        let revision = self.store.revision()?;
        let known = &mut *self.nodes_known.borrow_mut();
        let (at, nodes) = match known {
            Some((at, nodes)) if self.is_known(revision, *at) => (at, nodes),
            _ => {
                let (at, nodes) = known.insert((0, self.read_nodes()?));
                (at, nodes)
            }
        };
        // What was read may be newer than that, not older.
        *at = revision;
        let view = |(&id, record): (&NodeId, &Node)| (id, self.view(id, record.clone(), now));
        Ok(nodes.iter().map(view).collect())
    }

    /// The racks of the cluster as they are now, as if a node were not there.
    fn racks_but(&self, gone: Option<NodeId>, now: Instant) -> Result<Racks, ControlError> {
        let nodes = self.nodes(now)?;
        let others = nodes.iter().filter(|(id, _)| Some(**id) != gone);
        Ok(Racks::new(others.map(|(&id, view)| {
            (id, view.record.rack.as_ref(), self.care.is_drained(id, None))
        })))
    }

    /// The racks of the cluster as they are now.
    fn racks(&self, now: Instant) -> Result<Racks, ControlError> {
        self.racks_but(None, now)
    }

    /// Whether no node's record has changed between a revision and the store's present one.
    fn is_known(&self, revision: u64, at: u64) -> bool {
        revision == self.changes.end() && self.changes.is_quiet(keys::NODES, at)
    }

    /// The life of a node that the store names and what is known of its end, from memory if nothing has changed there.
    fn life_of(&self, id: NodeId) -> Result<Option<(Incarnation, Incarnation)>, ControlError> {
        let life = |node: &Node| (node.incarnation, node.ended_through);
        let revision = self.store.revision()?;
        if let Some((at, nodes)) = &*self.nodes_known.borrow()
            && self.is_known(revision, *at)
        {
            return Ok(nodes.get(&id).map(life));
        }
        // One record and not all of them: while nodes register, each one's record is new.
        Ok(self
            .read::<Node>(&keys::node(id))?
            .map(|stored| life(&stored.record)))
    }

    /// Whether the nodes' lives are in memory, as far as this master knows.
    fn is_life_known(&self) -> bool {
        let known = self.nodes_known.borrow();
        known
            .as_ref()
            .is_some_and(|(at, _)| self.changes.is_quiet(keys::NODES, *at))
    }

    fn read_nodes(&self) -> Result<BTreeMap<NodeId, Node>, ControlError> {
        let mut nodes = BTreeMap::new();
        let end = keys::end_of(keys::NODES);
        self.read_range::<Node>(keys::NODES.to_vec(), &end, |key, stored| {
            let id = key.strip_prefix(keys::NODES).and_then(Uuid::from_bytes);
            nodes.extend(id.map(|id| (NodeId(id), stored.record)));
        })?;
        Ok(nodes)
    }

    fn view(&self, id: NodeId, record: Node, now: Instant) -> NodeView {
        let timeout = self.settings.heartbeat_timeout;
        let heard = self
            .heard
            .get(&id)
            .filter(|heard| heard.incarnation == record.incarnation);
        // A node that this master could not hear is not taken for gone before it had the time to be
        // heard. While others are heard for the first time it may be on its way as they were: a thousand
        // nodes are not heard at once by a master that is new to them.
        let is_recent = |since| now.since(since) < timeout;
        let awaited = || self.arrival.min(self.listening + timeout * ARRIVALS_MAX);
        let since = heard.map_or_else(awaited, |heard| heard.at);
        NodeView {
            id,
            is_alive: is_recent(since.max(self.listening)),
            is_heard: heard.is_some_and(|heard| is_recent(heard.at)),
            record,
        }
    }

    /// What decides about configurations, of all nodes.
    fn standings(&self, now: Instant) -> Result<BTreeMap<NodeId, Standing>, ControlError> {
        let nodes = self.nodes(now)?;
        Ok(nodes
            .into_iter()
            .map(|(id, view)| (id, view.standing()))
            .collect())
    }

    /// Whether this master itself has heard that life lately.
    fn is_heard(&self, id: NodeId, incarnation: Incarnation, now: Instant) -> bool {
        self.heard.get(&id).is_some_and(|heard| {
            heard.incarnation == incarnation && now.since(heard.at) < self.settings.heartbeat_timeout
        })
    }
}

impl NodeView {
    fn standing(&self) -> Standing {
        Standing {
            incarnation: self.record.incarnation,
            ended_through: self.record.ended_through,
            is_alive: self.is_alive,
            is_heard: self.is_heard,
        }
    }
}

fn read<R: Record>(store: &impl MetadataStore, key: &[u8]) -> Result<Option<Stored<R>>, ControlError> {
    let Some(versioned) = store.get(key)? else {
        return Ok(None);
    };
    let record = R::decode(key, &versioned.value)?;
    let revision = versioned.revision;
    Ok(Some(Stored { record, revision }))
}

/// The identity in the store, put there first if the store is empty.
fn found(
    store: &impl MetadataStore,
    wanted: Option<ClusterId>,
    random: &mut Random,
) -> Result<ClusterId, ControlError> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(stored) = read::<ClusterRecord>(store, keys::CLUSTER)? {
            let ours = stored.record.id;
            let unknown = stored.record.features & !FEATURES_KNOWN;
            if unknown != 0 {
                return Err(ControlError::StoreFeatures { unknown });
            }
            return match wanted.filter(|wanted| *wanted != ours) {
                None => Ok(ours),
                Some(theirs) => Err(ControlError::ForeignCertificate { ours, theirs }),
            };
        }
        let drawn = || ClusterId(Uuid::from_random_bits(random.next_u64(), random.next_u64()));
        let id = wanted.unwrap_or_else(drawn);
        let mut transaction = Transaction::new();
        let record = ClusterRecord { id, features: 0 }.encode(keys::CLUSTER);
        transaction
            .compare(keys::CLUSTER.to_vec(), 0)
            .put(keys::CLUSTER.to_vec(), record);
        store.commit(&transaction)?;
    }
    Err(contended())
}

fn contended() -> ControlError {
    ControlError::Contended {
        attempts: ATTEMPTS_MAX,
    }
}
