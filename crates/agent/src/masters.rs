//! One life of a target, as the masters see it: heartbeats, copies, configurations, proposals.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use agentlink::{Chunk, Configuration, FromTarget, ToTarget};
use proto::client::{Client, ClientError};
use proto::v1;
use tokio::sync::mpsc;

use crate::data_keys;
use crate::disks::Disks;
use crate::doubt::Doubt;
use crate::keeping::Keeping;
use crate::link::{Hello, Link};
use crate::maps::{Placed, Routes, read_places};
use crate::patience::ticks;
use crate::policy::{SILENCE_STEP, Silence};
use crate::probe::Prober;
use crate::reservations;
use crate::usage::Usage;
use crate::watching;
use crate::wire::{
    Kind, chunk_id, configuration, copy_state, flattening, kind_of, number, resync, snapshot_id,
};

mod exporting;
mod moving;
mod tombstones;

use exporting::Exporting;
use moving::Moving;
use tombstones::Tombstones;

/// Answers that wait to be looked at; each call under way has one.
const ANSWERS: usize = 64;
/// How often all copies are named to the masters, who say which of them have no place.
const NAME_COPIES_INTERVAL: Duration = Duration::from_secs(600);
/// How often the masters hear how the disks are; at once when that has changed.
const DISKS_INTERVAL: Duration = Duration::from_secs(5);
/// How often a node whose heartbeats are refused makes itself known again.
const REGISTER_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is looked whether anything can be saved, before a target is ended for a disk.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Proposals under way; the target makes the others again.
const PROPOSALS_MAX: usize = 1024;

/// See the module.
pub(crate) struct Life {
    pub(crate) node: u128,
    client: Client,
    cluster: u128,
    incarnation: u64,
    /// How this life was made known, and when it may be made known again.
    registration: (v1::RegisterRequest, Instant),
    /// The target knows reservations of exported volumes.
    reserves: bool,
    /// The target knows volumes of which it acknowledges no write before it is durable.
    syncs: bool,
    /// Those of which it says that it does so.
    syncing: Vec<u32>,
    /// What it was told of each volume.
    sync_told: BTreeMap<u32, bool>,
    heartbeat: Duration,
    disks: Vec<agentlink::Disk>,
    resyncs: Vec<agentlink::Resync>,
    /// Snapshots of which copies are here, as the target says.
    snapshots: Vec<(u32, u64)>,
    usage: Usage,
    keeping: Keeping,
    /// Clones that the target was last told to flatten.
    flatten: Vec<u32>,
    /// How copies are that the masters asked about, until they have been told.
    described: Vec<v1::CopyState>,
    /// How far it is with them, as it says.
    flattening: Vec<(u32, u32, u32)>,
    /// Copies that are here, as the target says.
    here: BTreeSet<Chunk>,
    /// Copies that the target was asked to make.
    asked: BTreeSet<Chunk>,
    doubt: Doubt,
    /// What copies of the volumes are like.
    kinds: BTreeMap<u32, Kind>,
    /// Copies that the masters have a place for here and that are not in sync; they are made if they are missing.
    wanted: BTreeMap<Chunk, u128>,
    /// Copies that the masters have no place for any more, and that are gone.
    deleted: BTreeSet<Chunk>,
    moving: Moving,
    /// The target moves copies between its disks.
    moves_disks: bool,
    /// When all copies are to be named to the masters again.
    name_copies_at: Instant,
    /// Volumes being prepared: the chunks of which this node shall have a copy.
    preparing: BTreeMap<u32, BTreeSet<Chunk>>,
    /// Volumes that grow: the new chunks of which this node shall have a copy.
    growing: BTreeMap<u32, (v1::Growing, BTreeSet<Chunk>)>,
    removed: BTreeSet<u32>,
    tombstones: Tombstones,
    /// The disk of each copy, which proposals repeat.
    placed: BTreeMap<(Chunk, u128), Vec<u8>>,
    /// What the masters committed last. A configuration may come before the target has its copy.
    configurations: BTreeMap<Chunk, Configuration>,
    /// The last life of each node that the target was told has ended.
    ended: BTreeMap<u128, u64>,
    /// Calls under way; their answers come back to [`serve`].
    answers: mpsc::Sender<Answer>,
    is_beating: bool,
    mapping: BTreeSet<u32>,
    proposing: BTreeSet<Chunk>,
    exporting: Exporting,
    /// The versions of what the hosts of exported volumes have reserved, as the masters said last.
    reserved: BTreeMap<u32, u64>,
    /// Exported volumes whose maps are being read.
    routing: BTreeSet<u32>,
    data_keys: data_keys::Care,
    prober: Prober,
    /// When the masters are to hear again how the disks are.
    tell_disks_at: Instant,
}

/// Why a life is served no more.
pub(crate) enum Ending {
    /// The target's socket has closed.
    Gone,
    /// A disk wants another process; why, for people.
    Disk(String),
    /// The masters have given the node the number of a later life; in their words.
    Outlived(String),
    /// The target has said nothing for so long, though its socket is open.
    Silent(Duration),
}

/// A life and the answers to its calls.
pub(crate) type Serving = (Life, mpsc::Receiver<Answer>);

/// What the masters answer. The calls run beside [`serve`]: a master that is slow or gone holds up nothing else.
pub(crate) enum Answer {
    Heartbeat(Box<Result<v1::HeartbeatResponse, ClientError>>),
    Registered(Result<v1::RegisterResponse, ClientError>),
    /// No places if the map said less than was needed: the next heartbeat asks again.
    Placed(u32, Option<v1::Growing>, Result<Option<Vec<Placed>>, ClientError>),
    Proposed(Chunk),
    /// Where a volume's copies on this node are to be.
    Doubted(u32, Result<Option<Vec<Placed>>, ClientError>),
    Routes(u32, Result<Routes, ClientError>),
    /// Of a volume, to a request of the target.
    Reservations(u32, u64, Result<(agentlink::Reservations, bool), String>),
    DataKeys(data_keys::Fetched),
}

impl Life {
    pub(crate) fn new(
        client: Client,
        cluster: u128,
        node: u128,
        (request, registered): (v1::RegisterRequest, &v1::RegisterResponse),
        hello: &Hello,
    ) -> Serving {
        let (answers, incoming) = mpsc::channel(ANSWERS);
        let life = Self {
            node,
            client,
            cluster,
            incarnation: hello.incarnation,
            registration: (request, Instant::now()),
            reserves: hello.kinds >= ToTarget::KINDS_OF_RESERVATIONS,
            syncs: hello.kinds >= ToTarget::KINDS_OF_SYNC_WRITES,
            syncing: Vec::new(),
            sync_told: BTreeMap::new(),
            heartbeat: Duration::from_millis(registered.heartbeat_interval_ms.max(50)),
            disks: hello.disks.clone(),
            resyncs: Vec::new(),
            snapshots: Vec::new(),
            usage: Usage::new(),
            keeping: Keeping::default(),
            flatten: Vec::new(),
            flattening: Vec::new(),
            described: Vec::new(),
            here: hello.copies.iter().map(|(chunk, _)| *chunk).collect(),
            asked: BTreeSet::new(),
            doubt: Doubt::default(),
            kinds: BTreeMap::new(),
            wanted: BTreeMap::new(),
            deleted: BTreeSet::new(),
            moving: Moving::default(),
            moves_disks: hello.kinds >= ToTarget::KINDS_OF_MOVES,
            name_copies_at: Instant::now(),
            preparing: BTreeMap::new(),
            growing: BTreeMap::new(),
            removed: BTreeSet::new(),
            tombstones: Tombstones::default(),
            placed: BTreeMap::new(),
            configurations: BTreeMap::new(),
            ended: BTreeMap::new(),
            answers,
            is_beating: false,
            mapping: BTreeSet::new(),
            proposing: BTreeSet::new(),
            exporting: Exporting::default(),
            reserved: BTreeMap::new(),
            routing: BTreeSet::new(),
            data_keys: data_keys::Care::default(),
            prober: Prober::start(node, hello.address.parse().ok()),
            tell_disks_at: Instant::now(),
        };
        (life, incoming)
    }

    fn node_bytes(&self) -> Vec<u8> {
        self.node.to_be_bytes().to_vec()
    }

    fn heartbeat(&mut self, disks: &mut Disks) -> v1::HeartbeatRequest {
        let now = Instant::now();
        let (mut disk_health, mut samples) = (Vec::new(), Vec::new());
        if now >= self.tell_disks_at {
            self.tell_disks_at = now + DISKS_INTERVAL;
            (disk_health, samples) = (disks.reports(), self.prober.samples());
        }
        let names_copies = now >= self.name_copies_at;
        if names_copies {
            self.name_copies_at = now + NAME_COPIES_INTERVAL;
        }
        let is_prepared = |chunks: &BTreeSet<Chunk>| chunks.iter().all(|chunk| self.here.contains(chunk));
        let prepared = self.preparing.iter().filter(|(_, chunks)| is_prepared(chunks));
        let grown = self.growing.values().filter(|(_, chunks)| is_prepared(chunks));
        v1::HeartbeatRequest {
            cluster: self.cluster.to_be_bytes().to_vec(),
            node: self.node_bytes(),
            incarnation: self.incarnation,
            disks: self
                .usage
                .disks(&self.disks)
                .chain(disks.absent(&self.disks))
                .collect(),
            uses: self.usage.due(),
            damage: self.usage.damage_due(),
            releases: self.usage.releases_due(),
            disk_health,
            samples,
            prepared_volumes: prepared.map(|(volume, _)| *volume).collect(),
            grown_volumes: grown.map(|(growing, _)| *growing).collect(),
            removed_volumes: self.removed.iter().copied().collect(),
            ended_through: self.incarnation.saturating_sub(1),
            resyncs: self.resyncs.iter().map(resync).collect(),
            copies: match names_copies {
                true => self
                    .here
                    .iter()
                    .chain(self.doubt.chunks())
                    .map(chunk_id)
                    .collect(),
                false => Vec::new(),
            },
            names_copies,
            removed_copies: self.deleted.iter().map(chunk_id).collect(),
            moved_copies: self.moving.answers(),
            knows_disk_moves: self.moves_disks,
            snapshots: self.snapshots.iter().map(snapshot_id).collect(),
            complete_snapshots: self.keeping.version(),
            kept_copies: self.keeping.kept(),
            flattening: flattening(&self.flattening, &self.flatten),
            knows_reservations: self.reserves,
            knows_doubt: true,
            knows_sync_writes: self.syncs,
            sync_volumes: self.syncing.clone(),
            // Should it not arrive, it is asked for again.
            described_copies: std::mem::take(&mut self.described),
            ..v1::HeartbeatRequest::default()
        }
    }

    /// Makes a call beside everything else.
    fn call(&self, call: impl Future<Output = Answer> + Send + 'static) {
        let answers = self.answers.clone();
        tokio::spawn(async move {
            // A life that has ended needs no answer.
            drop(answers.send(call.await).await);
        });
    }

    /// Asks for what the target proves itself and checks others with, if it is time.
    fn ask_for_data_keys(&mut self) {
        if let Some(number) = self.data_keys.ask(Instant::now()) {
            let (client, node) = (self.client.clone(), self.node_bytes());
            self.call(async move { Answer::DataKeys(data_keys::fetch(client, node, number).await) });
        }
    }

    /// Asks where the copies are to be that the target does not use before it knows, if it is time.
    fn ask_about_doubts(&mut self) {
        for volume in self.doubt.due(Instant::now()) {
            let (client, node) = (self.client.clone(), self.node);
            self.call(async move { Answer::Doubted(volume, read_places(&client, volume, None, node).await) });
        }
    }

    fn beat(&mut self, disks: &mut Disks) {
        self.ask_for_data_keys();
        self.ask_about_doubts();
        if std::mem::replace(&mut self.is_beating, true) {
            return;
        }
        let (request, client) = (self.heartbeat(disks), self.client.clone());
        self.call(async move { Answer::Heartbeat(Box::new(client.heartbeat(request).await)) });
    }

    /// Masters whose metadata are from a backup may not know this life, or this node.
    fn register_again(&mut self) {
        let (request, at) = &mut self.registration;
        if Instant::now() >= *at {
            *at = Instant::now() + REGISTER_INTERVAL;
            let (client, request) = (self.client.clone(), request.clone());
            self.call(async move { Answer::Registered(client.register(request).await) });
        }
    }

    /// Finds out which copies of a volume belong here; of one that grows, which of its new ones.
    fn prepare(&mut self, volume: u32, growing: Option<v1::Growing>) {
        if self.mapping.insert(volume) {
            let (client, node) = (self.client.clone(), self.node);
            self.call(async move {
                let placed = read_places(&client, volume, growing, node).await;
                Answer::Placed(volume, growing, placed)
            });
        }
    }

    async fn answered(&mut self, answer: Answer, link: &Link) {
        match answer {
            Answer::Heartbeat(answer) => {
                self.is_beating = false;
                match *answer {
                    Ok(answer) => self.take_duties(answer, link).await,
                    Err(error) if error.is_passing() => {
                        // Perhaps the one that named the copies.
                        self.name_copies_at = Instant::now();
                        tracing::warn!(%error, "no heartbeat reaches the masters");
                    }
                    Err(error) => {
                        tracing::error!(%error, "the masters refuse the heartbeat of this node");
                        self.register_again();
                    }
                }
            }
            Answer::Registered(answer) => match answer {
                Ok(_) => {
                    self.name_copies_at = Instant::now();
                    tracing::warn!(
                        "this node was made known to the masters again, which had forgotten this life of it"
                    );
                }
                Err(error) => tracing::error!(%error, "the masters do not take this node"),
            },
            Answer::Placed(volume, growing, answer) => {
                self.mapping.remove(&volume);
                match answer {
                    Ok(Some(placed)) => self.make_copies(volume, growing, placed, link).await,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(volume, %error, "the map of a new or growing volume cannot be read yet");
                    }
                }
            }
            Answer::Proposed(chunk) => drop(self.proposing.remove(&chunk)),
            Answer::Doubted(volume, answer) => {
                if let Some(message) = self.doubt.answered(volume, answer, &self.here) {
                    let _ = link.send.send(message);
                }
            }
            Answer::DataKeys(fetched) => {
                if let Some(keys) = self.data_keys.take(fetched, Instant::now()) {
                    let _ = link.send.send(ToTarget::DataKeys(keys));
                }
            }
            Answer::Reservations(volume, request, answer) => {
                let message = ToTarget::Reservations {
                    volume,
                    request,
                    answer,
                };
                let _ = link.send.send(message);
            }
            Answer::Routes(volume, answer) => {
                self.routing.remove(&volume);
                match answer {
                    Ok(routes) => {
                        for message in routes.messages(volume, self.node) {
                            let _ = link.send.send(message);
                        }
                    }
                    Err(error) => tracing::warn!(volume, %error, "no newer map of an exported volume"),
                }
            }
        }
    }

    async fn take_duties(&mut self, answer: v1::HeartbeatResponse, link: &Link) {
        if answer.name_copies {
            self.name_copies_at = Instant::now();
        }
        let prepared = answer.prepare_volumes.iter().chain(&answer.prepare_clones);
        let prepared: BTreeSet<u32> = prepared.copied().collect();
        self.preparing.retain(|volume, _| prepared.contains(volume));
        self.growing
            .retain(|_, (growing, _)| answer.grow_volumes.contains(growing));
        self.removed
            .retain(|volume| answer.remove_volumes.contains(volume));
        for volume in prepared {
            self.prepare(volume, None);
        }
        if self.flatten != answer.flatten_volumes {
            self.flatten.clone_from(&answer.flatten_volumes);
            let _ = link.send.send(ToTarget::Flatten(answer.flatten_volumes));
        }
        for growing in answer.grow_volumes {
            self.prepare(growing.volume, Some(growing));
        }
        for volume in answer.remove_volumes {
            self.remove(volume, link).await;
        }
        let removals = answer.remove_copies.iter().map(|removal| {
            let (volume, index) = (removal.volume, removal.index);
            (Chunk { volume, index }, removal.epoch)
        });
        let removals: BTreeMap<Chunk, u64> = removals.collect();
        self.deleted.retain(|chunk| removals.contains_key(chunk));
        for (&chunk, &epoch) in &removals {
            self.delete_copy(chunk, epoch, link).await;
        }
        // One that was told to a target of a later release waits for the next such.
        if self.moves_disks {
            for message in self.moving.learn(&answer.move_copies) {
                let _ = link.send.send(message);
            }
        }
        if !answer.remove_snapshots.is_empty() {
            let removed = answer.remove_snapshots.iter().map(|id| (id.volume, id.number));
            let _ = link.send.send(ToTarget::DeleteSnapshots(removed.collect()));
        }
        if let Some(list) = answer.complete_snapshots {
            self.keeping.learn(list, link).await;
        }
        if !answer.describe_copies.is_empty() {
            let chunk = |id: &v1::ChunkId| Chunk {
                volume: id.volume,
                index: id.index,
            };
            let chunks = answer.describe_copies.iter().map(chunk).collect();
            let _ = link.send.send(ToTarget::Describe(chunks));
        }
        self.export(&answer.exports, link).await;
    }

    /// Has a copy deleted that the configuration of `epoch` has no place for.
    async fn delete_copy(&mut self, chunk: Chunk, epoch: u64, link: &Link) {
        self.wanted.remove(&chunk);
        // One that is being made is deleted when it is there.
        if self.here.contains(&chunk) || self.doubt.is_about(chunk) {
            let _ = link.send.send(ToTarget::DeleteCopy { chunk, epoch });
        } else if !self.asked.contains(&chunk) {
            self.deleted.insert(chunk);
        }
    }

    /// Asks the target to make the copies that the masters have a place for here and that are missing. Only such as are
    /// not in sync: one that should be, and is missing, is lost, and an empty one must not pass for it.
    async fn make_wanted(&mut self, link: &Link) {
        let missing = self.wanted.iter().filter(|(chunk, _)| !self.here.contains(chunk));
        for (chunk, disk) in missing.map(|(chunk, disk)| (*chunk, *disk)).collect::<Vec<_>>() {
            let Some(kind) = self.kinds.get(&chunk.volume).cloned() else {
                continue;
            };
            // What is there already is taken up again.
            if self.doubt.is_of(chunk, disk) {
                continue;
            }
            if self.asked.insert(chunk) {
                let _ = link.send.send(kind.create(chunk, disk));
            }
        }
    }

    /// Asks the target to make those copies that are missing.
    async fn make_copies(
        &mut self,
        volume: u32,
        growing: Option<v1::Growing>,
        placed: Vec<Placed>,
        link: &Link,
    ) {
        let wanted = placed.iter().map(|placed| placed.chunk).collect();
        for Placed {
            chunk,
            kind,
            disk,
            from,
        } in placed
        {
            if self.doubt.is_of(chunk, disk) {
                // It is there already, and this is its place.
                let (right, wrong) = (vec![(chunk, disk)], Vec::new());
                let _ = link.send.send(ToTarget::Doubted { right, wrong });
            } else if !self.here.contains(&chunk) && self.asked.insert(chunk) {
                let order = match from {
                    Some(from) => kind.clone_from(from, chunk, disk),
                    None => kind.create(chunk, disk),
                };
                // A target that is gone is noticed where its messages are read.
                let _ = link.send.send(order);
            }
        }
        match growing {
            Some(growing) => drop(self.growing.insert(volume, (growing, wanted))),
            None => drop(self.preparing.insert(volume, wanted)),
        }
    }

    async fn remove(&mut self, volume: u32, link: &Link) {
        if self.removed.insert(volume) {
            let _ = link.send.send(ToTarget::DeleteVolume { volume });
            self.forget_volume(volume);
        }
    }

    /// News from the masters, for the target.
    async fn learn(&mut self, news: v1::WatchResponse, link: &Link) {
        tracing::debug!(
            revision = news.revision,
            chunks = news.chunks.len(),
            nodes = news.nodes.len(),
            "news from the masters"
        );
        let peers: Vec<(u128, String)> = news
            .nodes
            .iter()
            .filter_map(|peer| Some((number(&peer.node)?, peer.peer_address.clone())))
            .filter(|(node, _)| *node != self.node)
            .collect();
        self.data_keys.see(peers.iter().map(|(node, _)| *node));
        if !peers.is_empty() {
            self.prober.learn(&peers);
            let _ = link.send.send(ToTarget::Peers(peers));
        }
        for peer in &news.nodes {
            let Some(node) = number(&peer.node) else { continue };
            let told = self.ended.entry(node).or_default();
            if peer.ended_through > *told {
                *told = peer.ended_through;
                let message = ToTarget::Ended {
                    node,
                    incarnation: peer.ended_through,
                };
                let _ = link.send.send(message);
            }
        }
        self.bury(&news.removed_volumes, link);
        for volume in &news.volumes {
            self.tombstones.exists(volume.number);
            // Before the configurations of its chunks: nothing is acknowledged otherwise.
            self.tell_sync_writes(volume.number, volume.sync_writes, link)
                .await;
            if let Some(Ok(kind)) = kind_of(volume) {
                self.kinds.insert(volume.number, kind);
            }
        }
        for chunk in &news.chunks {
            let id = Chunk {
                volume: chunk.volume,
                index: chunk.index,
            };
            for copy in &chunk.copies {
                if let Some(node) = number(&copy.node) {
                    self.placed.insert((id, node), copy.disk.clone());
                }
            }
            let mut own = chunk
                .copies
                .iter()
                .filter(|copy| number(&copy.node) == Some(self.node));
            match own.next() {
                Some(copy) if copy.incarnation == 0 => {
                    self.deleted.remove(&id);
                    self.wanted.insert(id, number(&copy.disk).unwrap_or(0));
                }
                _ => drop(self.wanted.remove(&id)),
            }
            if let Some(configuration) = configuration(chunk) {
                self.configurations.insert(id, configuration.clone());
                let _ = link.send.send(ToTarget::Configure {
                    chunk: id,
                    configuration,
                });
            }
        }
        self.make_wanted(link).await;
    }

    fn propose(&mut self, chunk: Chunk, expected: u64, wanted: &Configuration) {
        let copy = |&(node, incarnation): &(u128, u64)| v1::Copy {
            node: node.to_be_bytes().to_vec(),
            disk: self.placed.get(&(chunk, node)).cloned().unwrap_or_default(),
            incarnation,
        };
        let request = v1::ProposeConfigurationRequest {
            node: self.node_bytes(),
            incarnation: self.incarnation,
            expected_epoch: expected,
            volume: chunk.volume,
            index: chunk.index,
            write_node: wanted.write_node.to_be_bytes().to_vec(),
            members: wanted.members.iter().map(copy).collect(),
        };
        // The target proposes again what it still wants; the answer comes with the watch.
        if self.proposing.len() < PROPOSALS_MAX && self.proposing.insert(chunk) {
            let client = self.client.clone();
            self.call(async move {
                if let Err(error) = client.propose(request).await {
                    tracing::info!(?chunk, expected, %error, "a proposed configuration was not taken");
                }
                Answer::Proposed(chunk)
            });
        }
    }

    /// A message of the target's.
    async fn hear(&mut self, message: FromTarget, link: &Link) {
        match message {
            FromTarget::Hello { .. } | FromTarget::Health(_) | FromTarget::Doubtful(_) => {}
            FromTarget::CopyReady { chunk } => {
                self.here.insert(chunk);
                self.bury_late(chunk.volume, link);
                if let Some(configuration) = self.configurations.get(&chunk).cloned() {
                    let _ = link.send.send(ToTarget::Configure { chunk, configuration });
                }
            }
            FromTarget::CopyFailed { chunk, why } => {
                tracing::error!(?chunk, why, "the target could not make a copy");
                self.asked.remove(&chunk);
                // The masters find another place for it after a while.
                self.wanted.remove(&chunk);
            }
            FromTarget::CopyDeleted { chunk } => {
                self.here.remove(&chunk);
                self.asked.remove(&chunk);
                self.configurations.remove(&chunk);
                self.deleted.insert(chunk);
                self.doubt.is_over(chunk);
                // It may have got a place again meanwhile.
                self.make_wanted(link).await;
            }
            FromTarget::Propose {
                chunk,
                expected,
                configuration,
            } => {
                self.propose(chunk, expected, &configuration);
            }
            FromTarget::WantRoutes { volume } => self.route(volume),
            FromTarget::Reserve {
                volume,
                request,
                call,
            } => {
                let (client, node) = (self.client.clone(), self.node_bytes());
                let version = self.reserved.get(&volume).copied();
                self.call(async move {
                    let answer = reservations::ask(client, node, volume, version, call).await;
                    Answer::Reservations(volume, request, answer)
                });
            }
            FromTarget::WantDataKeys => {
                self.data_keys.want();
                self.ask_for_data_keys();
            }
            FromTarget::Disks(disks) => self.disks = disks,
            FromTarget::Resyncs(resyncs) => self.resyncs = resyncs,
            FromTarget::Snapshots(snapshots) => self.snapshots = snapshots,
            FromTarget::WantSnapshots => self.keeping.is_wanted(),
            FromTarget::Kept {
                lists,
                copies: count,
                digest,
            } => self.keeping.heard(lists, v1::KeptCopies { count, digest }),
            FromTarget::Flattening(flattening) => self.flattening = flattening,
            FromTarget::Described(copies) => self.described = copies.into_iter().map(copy_state).collect(),
            FromTarget::Held(held) => self.usage.held(held),
            FromTarget::Used(volumes) => self.usage.volumes(volumes),
            FromTarget::Damage(damage) => self.usage.damaged(damage),
            FromTarget::SnapshotLosses(losses) => self.usage.snapshots_lost(losses),
            FromTarget::Differing(chunks) => self.usage.copies_differ(chunks),
            FromTarget::Release(release) => self.usage.release(release),
            FromTarget::SyncWrites(volumes) => self.syncing = volumes,
            FromTarget::Moved { chunk, disk, why } => self.moving.moved(chunk, disk, why),
        }
    }
}

/// Serves one life of a target until its socket closes, it says nothing any more, or a disk wants another one. The last waits as long as
/// nothing can be saved in the node's directory: no other life could begin.
pub(crate) async fn serve((mut life, mut answers): Serving, mut link: Link, disks: &mut Disks) -> Ending {
    let mut beats = ticks(life.heartbeat);
    let mut watching = watching::of_node(life.client.clone(), life.node_bytes());
    let (mut silence, mut listening) = (Silence::default(), ticks(SILENCE_STEP));
    // Why a disk wants another life, and when it is looked whether one could begin.
    let mut wanted = disks.used_though_out(&life.disks);
    let mut look_at = Instant::now();
    let ending = loop {
        let now = Instant::now();
        if let Some(why) = wanted.take_if(|_| now >= look_at) {
            if disks.can_be_saved() {
                break Ending::Disk(why);
            }
            (wanted, look_at) = (Some(why), now + SAVE_INTERVAL);
        }
        tokio::select! {
            message = link.receive.recv() => { silence.is_broken(); match message {
                Some(FromTarget::Health(health)) => {
                    life.tell_disks_at = Instant::now();
                    let decision = disks.note(&health);
                    // One that was left out when this life began needs no other.
                    let is_used = |path: &str| {
                        health.iter().any(|disk| disk.path == path && disk.left_out.is_none())
                    };
                    let out = decision.out.iter().find(|(path, _)| is_used(path));
                    if let Some((path, why)) = out {
                        wanted = Some(format!("the disk {path} is put out of service: {why}"));
                    } else if let Some((path, why)) = decision.restart {
                        wanted.get_or_insert(format!("the disk {path} {why}"));
                    }
                }
                Some(FromTarget::Doubtful(doubtful)) => {
                    let on: Vec<u128> = doubtful.iter().map(|(_, disk)| *disk).collect();
                    disks.trusted.settled(&life.disks, &on);
                    life.doubt.heard(doubtful);
                    life.ask_about_doubts();
                    // What was in doubt and is not there any more may be wanted.
                    life.make_wanted(&link).await;
                    // The masters say which of them have no place here at all.
                    life.name_copies_at = Instant::now();
                }
                Some(message) => life.hear(message, &link).await,
                None => break Ending::Gone,
            }},
            response = watching.next() => life.learn(response, &link).await,
            Some(answer) = answers.recv() => {
                if let Answer::Heartbeat(answer) = &answer && let Ok(answer) = &**answer {
                    if disks.restore(&answer.restore_disks, &answer.restore_wishes) {
                        wanted = Some("a disk is put back in service".to_owned());
                    }
                    watching.heard_of(answer.hold);
                }
                if let Answer::Registered(Err(ClientError::Outlived { message })) = answer {
                    break Ending::Outlived(message);
                }
                life.answered(answer, &link).await;
            }
            _ = listening.tick() => if let Some(silent) = silence.lasts() {
                break Ending::Silent(silent);
            },
            _ = beats.tick() => {
                disks.save_again();
                life.beat(disks);
            }
        }
    };
    drop(watching);
    ending
}
