//! One life of a target, as the masters see it: heartbeats, copies, configurations, proposals.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agentlink::{Chunk, Configuration, FromTarget, ToTarget};
use proto::client::{Client, ClientError};
use proto::v1;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use volume::{Geometry, GeometryError, GeometrySizes};

use crate::Config;
use crate::supervise::Link;

/// Pause between attempts to reach the masters.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Chunks asked for in one part of a map.
const MAP_PART: u32 = 4096;

/// 16 bytes as a number.
pub(crate) fn number(bytes: &[u8]) -> Option<u128> {
    Some(u128::from_be_bytes(bytes.try_into().ok()?))
}

/// Connects to a master, for as long as it takes.
pub(crate) async fn connect(addresses: &str) -> Client {
    let mut warned = false;
    loop {
        match Client::connect(addresses).await {
            Ok(client) => return client,
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(%error, "waiting for a master");
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Repeats a call until a master answers; a refusal is an answer.
pub(crate) async fn patiently<T, F: Future<Output = Result<T, ClientError>>>(
    mut call: impl FnMut() -> F,
) -> Result<T, ClientError> {
    loop {
        match call().await {
            Err(error) if is_passing(&error) => {
                tracing::warn!(%error, "a call to the masters is repeated");
                sleep(RETRY_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } => true,
        // The codes of gRPC by their numbers: cancelled 1, unknown 2, deadline 4, unavailable 14.
        ClientError::Refused { code, .. } => matches!(i32::from(*code), 1 | 2 | 4 | 14),
        ClientError::Address { .. } => false,
    }
}

/// See the module.
pub(crate) struct Life {
    pub(crate) node: u128,
    client: Client,
    cluster: u128,
    incarnation: u64,
    heartbeat: Duration,
    disks: Vec<agentlink::Disk>,
    /// Copies that are here, as the target says.
    here: BTreeSet<Chunk>,
    /// Copies that the target was asked to make.
    asked: BTreeSet<Chunk>,
    /// Volumes being prepared: the chunks of which this node shall have a copy.
    preparing: BTreeMap<u32, BTreeSet<Chunk>>,
    removed: BTreeSet<u32>,
    /// The disk of each copy, which proposals repeat.
    placed: BTreeMap<(Chunk, u128), Vec<u8>>,
    /// What the masters committed last. A configuration may come before the target has its copy.
    configurations: BTreeMap<Chunk, Configuration>,
}

impl Life {
    pub(crate) fn new(
        client: Client,
        cluster: u128,
        node: u128,
        incarnation: u64,
        registered: &v1::RegisterResponse,
        hello: &FromTarget,
    ) -> Self {
        let (disks, here) = match hello {
            FromTarget::Hello { disks, copies, .. } => {
                (disks.clone(), copies.iter().map(|(chunk, _)| *chunk).collect())
            }
            _ => Default::default(),
        };
        Self {
            node,
            client,
            cluster,
            incarnation,
            heartbeat: Duration::from_millis(registered.heartbeat_interval_ms.max(50)),
            disks,
            here,
            asked: BTreeSet::new(),
            preparing: BTreeMap::new(),
            removed: BTreeSet::new(),
            placed: BTreeMap::new(),
            configurations: BTreeMap::new(),
        }
    }

    fn node_bytes(&self) -> Vec<u8> {
        self.node.to_be_bytes().to_vec()
    }

    fn heartbeat(&self) -> v1::HeartbeatRequest {
        let is_prepared = |chunks: &BTreeSet<Chunk>| chunks.iter().all(|chunk| self.here.contains(chunk));
        let prepared = self.preparing.iter().filter(|(_, chunks)| is_prepared(chunks));
        v1::HeartbeatRequest {
            cluster: self.cluster.to_be_bytes().to_vec(),
            node: self.node_bytes(),
            incarnation: self.incarnation,
            disks: self.disks.iter().map(to_wire).collect(),
            prepared_volumes: prepared.map(|(volume, _)| *volume).collect(),
            removed_volumes: self.removed.iter().copied().collect(),
            ended_through: self.incarnation.saturating_sub(1),
        }
    }

    /// Finds out which copies of a volume belong here, and asks the target to make those that are missing.
    async fn prepare(&mut self, volume: u32, link: &Link) -> Result<(), ClientError> {
        let mut wanted = BTreeSet::new();
        let mut first_chunk = 0;
        loop {
            let request = v1::GetMapRequest {
                volume,
                first_chunk,
                limit: MAP_PART,
            };
            let map = self.client.map(request).await?;
            let described = map.volume.as_ref().and_then(|volume| volume.geometry.as_ref());
            let geometry = match described.map(geometry) {
                Some(Ok(geometry)) => geometry,
                Some(Err(error)) => {
                    tracing::error!(volume, %error, "the masters' geometry of a volume cannot be used");
                    return Ok(());
                }
                None => return Ok(()),
            };
            for chunk in &map.chunks {
                let id = Chunk {
                    volume,
                    index: chunk.index,
                };
                let Some(copy) = chunk
                    .copies
                    .iter()
                    .find(|copy| number(&copy.node) == Some(self.node))
                else {
                    continue;
                };
                wanted.insert(id);
                if !self.here.contains(&id) && self.asked.insert(id) {
                    let disk = number(&copy.disk).unwrap_or(0);
                    let message = ToTarget::CreateCopy {
                        chunk: id,
                        geometry: geometry.encode(),
                        disk,
                    };
                    // A target that is gone is noticed where its messages are read.
                    let _ = link.send.send(message).await;
                }
            }
            first_chunk += map.chunks.len() as u32;
            if map.chunks.len() < MAP_PART as usize {
                break;
            }
        }
        self.preparing.insert(volume, wanted);
        Ok(())
    }

    async fn remove(&mut self, volume: u32, link: &Link) {
        if self.removed.insert(volume) {
            let _ = link.send.send(ToTarget::DeleteVolume { volume }).await;
            self.here.retain(|chunk| chunk.volume != volume);
            self.preparing.remove(&volume);
            self.configurations.retain(|chunk, _| chunk.volume != volume);
        }
    }

    async fn beat(&mut self, link: &Link) {
        match self.client.heartbeat(self.heartbeat()).await {
            Ok(answer) => {
                self.preparing
                    .retain(|volume, _| answer.prepare_volumes.contains(volume));
                self.removed
                    .retain(|volume| answer.remove_volumes.contains(volume));
                for volume in answer.prepare_volumes {
                    if let Err(error) = self.prepare(volume, link).await {
                        tracing::warn!(volume, %error, "the map of a new volume cannot be read yet");
                    }
                }
                for volume in answer.remove_volumes {
                    self.remove(volume, link).await;
                }
            }
            Err(error) => tracing::warn!(%error, "no heartbeat reaches the masters"),
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
        if !peers.is_empty() {
            let _ = link.send.send(ToTarget::Peers(peers)).await;
        }
        for volume in &news.removed_volumes {
            let _ = link.send.send(ToTarget::DeleteVolume { volume: *volume }).await;
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
            if let Some(configuration) = configuration(chunk) {
                self.configurations.insert(id, configuration.clone());
                let _ = link
                    .send
                    .send(ToTarget::Configure {
                        chunk: id,
                        configuration,
                    })
                    .await;
            }
        }
    }

    fn propose(&self, chunk: Chunk, expected: u64, wanted: &Configuration) {
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
        let client = self.client.clone();
        // The target proposes again what it still wants; the answer comes with the watch.
        tokio::spawn(async move {
            if let Err(error) = client.propose(request).await {
                tracing::info!(?chunk, expected, %error, "a proposed configuration was not taken");
            }
        });
    }

    /// A message of the target's.
    async fn hear(&mut self, message: FromTarget, link: &Link) {
        match message {
            FromTarget::Hello { .. } => {}
            FromTarget::CopyReady { chunk } => {
                self.here.insert(chunk);
                if let Some(configuration) = self.configurations.get(&chunk).cloned() {
                    let _ = link.send.send(ToTarget::Configure { chunk, configuration }).await;
                }
            }
            FromTarget::CopyFailed { chunk, why } => {
                tracing::error!(?chunk, why, "the target could not make a copy");
                self.asked.remove(&chunk);
            }
            FromTarget::Propose {
                chunk,
                expected,
                configuration,
            } => {
                self.propose(chunk, expected, &configuration);
            }
            FromTarget::Disks(disks) => self.disks = disks,
        }
    }
}

fn configuration(chunk: &v1::Chunk) -> Option<Configuration> {
    if chunk.epoch == 0 {
        return None;
    }
    let mut members: Vec<(u128, u64)> = chunk
        .copies
        .iter()
        .filter(|copy| copy.incarnation != 0)
        .filter_map(|copy| Some((number(&copy.node)?, copy.incarnation)))
        .collect();
    members.sort_unstable();
    Some(Configuration {
        epoch: chunk.epoch,
        write_node: number(&chunk.write_node)?,
        members,
    })
}

fn to_wire(disk: &agentlink::Disk) -> v1::Disk {
    v1::Disk {
        uuid: disk.uuid.to_be_bytes().to_vec(),
        capacity_bytes: disk.capacity_bytes,
        used_bytes: disk.capacity_bytes - disk.free_bytes.min(disk.capacity_bytes),
    }
}

/// The disks that a target's first frame names.
pub(crate) fn disks_of(hello: &FromTarget) -> Vec<v1::Disk> {
    match hello {
        FromTarget::Hello { disks, .. } => disks.iter().map(to_wire).collect(),
        _ => Vec::new(),
    }
}

/// The masters' geometry in the volume crate's terms.
fn geometry(described: &v1::Geometry) -> Result<Geometry, GeometryError> {
    Geometry::try_from(GeometrySizes {
        block_bytes: described.block_bytes,
        metadata_bytes: described.metadata_bytes,
        stripe_unit_bytes: described.stripe_unit_bytes,
        chunk_bytes: described.chunk_bytes,
        region_bytes: described.region_bytes,
        copies: described.copies,
        minimum: described.minimum,
        group_chunks: described.group_chunks.clone(),
    })
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Serves one life of a target until its socket closes.
pub(crate) async fn serve(_config: &Config, mut life: Life, mut link: Link) {
    let mut beats = ticks(life.heartbeat);
    let (news_in, mut news) = tokio::sync::mpsc::channel(64);
    let watching = tokio::spawn(watch(life.client.clone(), life.node_bytes(), news_in));
    loop {
        tokio::select! {
            message = link.receive.recv() => match message {
                Some(message) => life.hear(message, &link).await,
                None => break,
            },
            Some(response) = news.recv() => life.learn(response, &link).await,
            _ = beats.tick() => life.beat(&link).await,
        }
    }
    watching.abort();
}

/// Follows the masters' changes, and begins again when the stream ends.
async fn watch(client: Client, node: Vec<u8>, news: tokio::sync::mpsc::Sender<v1::WatchResponse>) {
    let mut known = 0;
    loop {
        let scope = v1::watch_request::Scope::Node(node.clone());
        match client.watch(scope, known).await {
            Ok(mut stream) => {
                while let Ok(Some(response)) = stream.message().await {
                    if response.complete {
                        known = response.revision;
                    }
                    if news.send(response).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the masters' changes cannot be followed"),
        }
        sleep(RETRY_PAUSE).await;
    }
}
