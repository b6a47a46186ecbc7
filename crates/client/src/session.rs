//! A session with a cluster about one volume: its map, its nodes, its leases.
//!
//! Calls to the masters run on a thread of their own with its own event loop; a task of a reactor waits for their
//! answers through a mailbox. They are rare: one map when a volume is opened, and another when a node refuses.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Read;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foundation::Epoch;
use proto::client::{Client, ClientError, Masters};
use proto::v1;
use protocols::nvme::Nqn;
use reactor::mailbox::mailbox;
use volume::client::{ClientOptions, MapSource, Sessions, VolumeDevice, VolumeMap};
use volume::{
    ChunkConfig, ChunkIndex, ChunkMap, Geometry, GeometrySizes, HostId, Incarnation, Membership, NodeId,
    VolumeNumber,
};

use crate::links::{LinkOptions, Nearby, NodeDirectory, NodeLinks};
use crate::passes::{self, PassSource, Passes};
use crate::whose::{self, Whose};

/// Chunks asked for in one part of a map.
const MAP_PART: u32 = 4096;

/// Why a session could not be begun.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The masters.
    #[error(transparent)]
    Masters(#[from] ClientError),
    /// The volume is not ready.
    #[error("volume {name} is not ready yet: wait until \"redhare volume show {name}\" says ready")]
    NotReady {
        /// Its name.
        name: String,
    },
    /// The masters' answer makes no sense here.
    #[error("the masters' map of volume {name} cannot be used: {why}")]
    Map {
        /// The volume.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A master has answered for another volume, or another cluster.
    #[error(
        "the master at {address} gave the map of {answered}, and that of {asked} was asked for, so it is not used; name the \
         masters of that cluster with --cluster or REDHARE_CLUSTER, and see who has taken that address over"
    )]
    Foreign {
        /// The master.
        address: String,
        /// The volume of this session.
        asked: String,
        /// Whose map it is.
        answered: String,
    },
    /// The system.
    #[error("cannot begin a session: {0}")]
    System(#[from] std::io::Error),
}

#[derive(Debug)]
struct State {
    map: Arc<VolumeMap>,
    nodes: BTreeMap<NodeId, SocketAddr>,
    /// The nodes that have a place for a copy of each chunk, in sync or not.
    places: Vec<Vec<NodeId>>,
    /// Every write is to be durable before it is acknowledged.
    sync_writes: bool,
}

impl State {
    /// Takes a map over that was asked for. False if it was made before the volume grew to what is known: no volume
    /// shrinks, and a flush by the old layout would leave out what has been written since.
    fn take_over(&mut self, mut fresh: State) -> bool {
        if self.map.geometry.is_growth_of(&fresh.map.geometry) {
            return false;
        }
        for (node, address) in std::mem::take(&mut self.nodes) {
            fresh.nodes.entry(node).or_insert(address);
        }
        *self = fresh;
        true
    }
}

/// See the module. Shared by all cores.
#[derive(Debug)]
pub struct Session {
    name: String,
    whose: Whose,
    client: Client,
    runtime: tokio::runtime::Handle,
    /// Ends the thread of the event loop.
    _stop: tokio::sync::oneshot::Sender<()>,
    state: Mutex<State>,
    version: AtomicU64,
    sessions: Sessions,
    host_id: HostId,
    past_reads: Arc<AtomicU64>,
    /// None if nodes ask for no proof.
    passes: Option<Arc<Passes>>,
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Session {
    /// Begins a session about a volume. Blocks until a master has answered.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn connect(masters: impl Into<Masters>, volume: &str) -> Result<Arc<Self>, SessionError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let masters = masters.into();
        let has_credentials = masters.credentials.is_some();
        let (client, cluster, shown) = runtime.block_on(async {
            let client = Client::connect(masters).await?;
            let identity = client.identity(v1::GetIdentityRequest {}).await?;
            // All that follows is asked of this cluster's masters alone, whoever comes to their addresses.
            let cluster = whose::cluster(&identity.cluster);
            if let Some(cluster) = cluster {
                client.keep_to(cluster);
            }
            let request = v1::ShowVolumeRequest {
                name: volume.to_owned(),
            };
            let shown = client.show_volume(request).await?;
            Ok::<_, ClientError>((client, cluster, shown))
        })?;
        let described = shown.volume.unwrap_or_default();
        if described.state() != v1::VolumeState::Ready {
            return Err(SessionError::NotReady {
                name: volume.to_owned(),
            });
        }
        let whose = Whose::new(cluster, &described);
        let part = runtime.block_on(read_map(&client, &whose))?;
        let state = state_of(&part).map_err(|why| SessionError::Map {
            name: volume.to_owned(),
            why,
        })?;
        let host_id = HostId(u64::from_le_bytes(random()?));
        let passes = match has_credentials {
            true => runtime.block_on(passes::first(&client, host_id))?,
            false => None,
        };
        let passes = passes.map(|(passes, renew_after)| {
            handle.spawn(passes::keep(passes.clone(), client.clone(), renew_after));
            passes
        });
        std::thread::Builder::new()
            .name("cluster-session".to_owned())
            .spawn(move || {
                // Ends when the session is dropped.
                let _ = runtime.block_on(stopped);
            })?;
        Ok(Arc::new(Self {
            name: volume.to_owned(),
            whose,
            client,
            runtime: handle,
            _stop: stop,
            state: Mutex::new(state),
            version: AtomicU64::new(1),
            sessions: Sessions::starting_at(1),
            host_id,
            past_reads: Arc::default(),
            passes,
        }))
    }

    /// The volume's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The volume's number.
    pub fn number(&self) -> VolumeNumber {
        self.whose.number()
    }

    /// How many reads went past nodes of this machine, to their disks, see [`Nearby::Disk`].
    pub fn past_reads(&self) -> u64 {
        self.past_reads.load(Ordering::Relaxed)
    }

    /// The volume as a block device of native speed: each request goes to a copy in one hop. `nearby` says how nodes
    /// of this machine are reached.
    pub fn device(self: &Arc<Self>, nearby: Nearby) -> VolumeDevice {
        let session = self.clone();
        let open_peers = Arc::new(move || session.links(nearby) as Rc<dyn volume::client::Peers>);
        let source: Arc<dyn MapSource> = Arc::new(Maps(self.clone()));
        // Not while the state is locked: the device looks at it.
        let sync_writes = self.state().sync_writes;
        let options = ClientOptions {
            sync_writes,
            ..ClientOptions::default()
        };
        VolumeDevice::new(self.number(), source, self.sessions.clone(), open_peers, options)
    }

    /// Ways to the nodes for the calling core.
    pub(crate) fn links(self: &Arc<Self>, nearby: Nearby) -> Rc<NodeLinks> {
        let name = format!("nqn.2026-11.io.redhare:client:{:016x}", self.host_id.0);
        let host: Nqn = name.parse().expect("client names are well-formed");
        let options = LinkOptions {
            queues: 2,
            nearby,
            past_reads: self.past_reads.clone(),
            passes: self.passes.clone().map(|passes| passes as Arc<dyn PassSource>),
            ..LinkOptions::new(host, self.host_id)
        };
        let directory: Arc<dyn NodeDirectory> = self.clone();
        NodeLinks::new(options, self.sessions.clone(), directory)
    }

    /// The volume as it is known now.
    pub(crate) fn map(&self) -> Arc<VolumeMap> {
        self.state().map.clone()
    }

    /// All nodes that are known, those that have a place for a copy of the chunk first.
    pub(crate) fn nodes_for(&self, chunk: ChunkIndex) -> Vec<NodeId> {
        let state = self.state();
        let mut nodes = state.places.get(chunk.0 as usize).cloned().unwrap_or_default();
        let others = state.nodes.keys().filter(|node| !nodes.contains(node)).copied();
        let others: Vec<NodeId> = others.collect();
        nodes.extend(others);
        nodes
    }

    /// Where further nodes are found.
    pub(crate) fn learn_nodes(&self, nodes: &[v1::NodeAddress]) {
        self.state().nodes.extend(nodes.iter().filter_map(address));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call on the session's thread; a task of any reactor may wait for it. `None` if the session ended.
    pub(crate) async fn call<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        call: impl FnOnce(Client) -> F,
    ) -> Option<T> {
        let (sender, mut answer) = mailbox(1);
        let work = call(self.client.clone());
        self.runtime.spawn(async move {
            // Nobody waits any more if this fails.
            let _ = sender.try_send(work.await);
        });
        answer.recv().await
    }

    pub(crate) async fn refresh(&self) {
        let whose = self.whose.clone();
        let answer = self
            .call(move |client| async move { read_map(&client, &whose).await })
            .await;
        match answer {
            Some(Ok(part)) => match state_of(&part) {
                Ok(fresh) => {
                    if self.state().take_over(fresh) {
                        self.version.fetch_add(1, Ordering::Release);
                    }
                }
                Err(why) => tracing::warn!(volume = self.name, why, "the masters' map cannot be used"),
            },
            Some(Err(error)) => tracing::warn!(volume = self.name, %error, "no newer map"),
            None => {}
        }
    }
}

impl NodeDirectory for Session {
    fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.state().nodes.get(&node).copied()
    }
}

struct Maps(Arc<Session>);

impl MapSource for Maps {
    fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    fn current(&self) -> Arc<VolumeMap> {
        self.0.state().map.clone()
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let session = self.0.clone();
        Box::pin(async move { session.refresh().await })
    }
}

/// All parts of a volume's map; nodes and volume as of the last part. A master that gives another volume's is left for the
/// next one.
async fn read_map(client: &Client, whose: &Whose) -> Result<v1::GetMapResponse, SessionError> {
    let mut asked = 1;
    loop {
        match read_map_here(client, whose).await {
            Err(SessionError::Foreign { .. }) if asked < client.masters() => client.next_master().await?,
            answer => return answer,
        }
        asked += 1;
    }
}

async fn read_map_here(client: &Client, whose: &Whose) -> Result<v1::GetMapResponse, SessionError> {
    let mut whole = v1::GetMapResponse::default();
    loop {
        let first_chunk = whole.chunks.len() as u32;
        let part = client
            .map(v1::GetMapRequest {
                volume: whose.number().0,
                first_chunk,
                limit: MAP_PART,
                with_growth: false,
            })
            .await?;
        whose.check(&part).map_err(|answered| SessionError::Foreign {
            address: client.address(),
            asked: whose.to_string(),
            answered,
        })?;
        let last = part.chunks.len() < MAP_PART as usize;
        whole.chunks.extend(part.chunks);
        whole.volume = part.volume;
        whole.nodes.extend(part.nodes);
        if last {
            return Ok(whole);
        }
    }
}

fn number(bytes: &[u8]) -> Option<u128> {
    Some(u128::from_be_bytes(bytes.try_into().ok()?))
}

fn node_id(bytes: &[u8]) -> Option<NodeId> {
    number(bytes).map(NodeId)
}

fn state_of(map: &v1::GetMapResponse) -> Result<State, String> {
    let described = map.volume.as_ref().and_then(|volume| volume.geometry.as_ref());
    let described = described.ok_or("it has no geometry")?;
    let geometry = GeometrySizes {
        block_bytes: described.block_bytes,
        metadata_bytes: described.metadata_bytes,
        stripe_unit_bytes: described.stripe_unit_bytes,
        chunk_bytes: described.chunk_bytes,
        region_bytes: described.region_bytes,
        copies: described.copies,
        minimum: described.minimum,
        group_chunks: described.group_chunks.clone(),
    };
    let geometry = Geometry::try_from(geometry).map_err(|error| error.to_string())?;
    let mut chunks = ChunkMap::new(usize::try_from(geometry.chunks()).unwrap_or(usize::MAX));
    let mut places = vec![Vec::new(); usize::try_from(geometry.chunks()).unwrap_or(0)];
    for chunk in map.chunks.iter().filter(|chunk| chunk.epoch > 0) {
        if let Some(places) = places.get_mut(chunk.index as usize) {
            *places = chunk
                .copies
                .iter()
                .filter_map(|copy| node_id(&copy.node))
                .collect();
        }
        let mut members: Vec<Membership> = chunk
            .copies
            .iter()
            .filter(|copy| copy.incarnation != 0)
            .filter_map(|copy| {
                Some(Membership {
                    node: node_id(&copy.node)?,
                    incarnation: Incarnation(copy.incarnation),
                })
            })
            .collect();
        members.sort_unstable();
        let write_node = node_id(&chunk.write_node).ok_or("a write node in it has no name")?;
        let config = ChunkConfig {
            epoch: Epoch(chunk.epoch),
            write_node,
            members,
        };
        let index = ChunkIndex(chunk.index);
        chunks.update(index, config).map_err(|error| error.to_string())?;
        for copy in &chunk.copies {
            if let (Some(node), Some(disk)) = (node_id(&copy.node), number(&copy.disk)) {
                chunks.lies_on(index, node, disk);
            }
        }
    }
    Ok(State {
        map: Arc::new(VolumeMap { geometry, chunks }),
        nodes: map.nodes.iter().filter_map(address).collect(),
        places,
        sync_writes: map.volume.as_ref().is_some_and(|volume| volume.sync_writes),
    })
}

fn address(node: &v1::NodeAddress) -> Option<(NodeId, SocketAddr)> {
    Some((node_id(&node.node)?, node.peer_address.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(group_chunks: &[u32], node: u128, port: u16) -> State {
        let geometry = Geometry {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit_blocks: 4,
            chunk_blocks: 32,
            region_blocks: 8,
            copies: 1,
            minimum: 1,
            group_chunks: group_chunks.to_vec(),
        };
        let chunks = ChunkMap::new(geometry.chunks() as usize);
        State {
            map: Arc::new(VolumeMap { geometry, chunks }),
            nodes: BTreeMap::from([(NodeId(node), SocketAddr::from(([127, 0, 0, 1], port)))]),
            places: Vec::new(),
            sync_writes: false,
        }
    }

    #[test]
    fn a_map_of_before_the_volume_grew_is_not_taken() {
        let mut known = state(&[1], 1, 10);
        assert!(known.take_over(state(&[1, 2], 2, 20)));
        assert_eq!((known.map.geometry.chunks(), known.nodes.len()), (3, 2));
        assert!(!known.take_over(state(&[1], 1, 30)));
        assert_eq!((known.map.geometry.chunks(), known.nodes.len()), (3, 2));
        assert_eq!(known.nodes[&NodeId(1)].port(), 10);
        // The same again is news, and so are further groups.
        assert!(known.take_over(state(&[1, 2], 1, 40)));
        assert_eq!(known.nodes[&NodeId(1)].port(), 40);
        assert!(known.take_over(state(&[1, 2, 1], 1, 40)));
        assert_eq!(known.map.geometry.chunks(), 4);
    }
}
