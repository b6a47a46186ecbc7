//! A client of the masters, for nodes, programs and the command line.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use identity::{Cluster, Files, Stamp};

use crate::MESSAGE_BYTES_MAX;
use crate::beats::Beats;
use crate::connect::{HEAD_START, check_address, first_of, open, unreachable};
use crate::v1;
use crate::v1::chunks_client::ChunksClient;
use crate::v1::cluster_client::ClusterClient;
use crate::v1::data_path_client::DataPathClient;
use crate::v1::joining_client::JoiningClient;
use crate::v1::leases_client::LeasesClient;
use crate::v1::nodes_client::NodesClient;
use crate::v1::reservations_client::ReservationsClient;
use crate::v1::snapshots_client::SnapshotsClient;
use crate::v1::volumes_client::VolumesClient;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};
pub use tonic::Code;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

/// Longer than any call takes but a watch, which has no limit.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// How long a call looks for a master that can answer it: longer than it takes until another one leads.
const FAILOVER_LIMIT: Duration = Duration::from_secs(10);
/// Pause before a master that had no better idea is followed by another one.
const PAUSE: Duration = Duration::from_millis(100);
/// A master that names one that leads and does not answer is asked so often, before others are.
const IN_VAIN_MAX: u32 = 3;

/// Why a call to the masters failed.
#[derive(Clone, Debug, Error)]
pub enum ClientError {
    /// No address was given, or one that is none.
    #[error("\"{address}\" is no address of a master; write host:port, several separated by commas")]
    Address {
        /// What was given.
        address: String,
    },
    /// None of the masters answers.
    #[error(
        "no master answers at {addresses} ({why}); start one, or name others with --cluster or REDHARE_CLUSTER (a master's \
         port, not a node's)"
    )]
    Unreachable {
        /// Where it was tried.
        addresses: String,
        /// What the last one failed with.
        why: String,
    },
    /// A master answers, but it and we do not trust each other.
    #[error("the master at {address} cannot be used: {why}")]
    Untrusted {
        /// The master.
        address: String,
        /// Why, and what to do.
        why: String,
    },
    /// Our own credentials.
    #[error("{why}")]
    Credentials {
        /// Which, why, and what to do.
        why: String,
    },
    /// A master answers, and it is one of another cluster than this client keeps to. It has done nothing.
    #[error(
        "the master at {address} is of cluster {answered}, and cluster {asked} was asked; name the masters of {asked} with \
         --cluster or REDHARE_CLUSTER, and see who has taken that address over"
    )]
    Foreign {
        /// The master.
        address: String,
        /// The cluster that this client keeps to.
        asked: String,
        /// The master's.
        answered: String,
    },
    /// The life of a target is over: the masters have given its node a later number ([`OUTLIVED`]). The text is the master's own.
    #[error("{message}")]
    Outlived {
        /// What, why and what to do.
        message: String,
    },
    /// The master refused; the text is its own.
    #[error("{message}")]
    Refused {
        /// What sort of refusal.
        code: Code,
        /// What, why and what to do.
        message: String,
    },
}

impl ClientError {
    /// Whether the same call may succeed a little later: no master was reached, or one that could not answer now. A
    /// refusal that stands is an answer.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Address { .. } | Self::Outlived { .. } => false,
            // Certificates are renewed while programs run.
            Self::Unreachable { .. } | Self::Untrusted { .. } | Self::Credentials { .. } => true,
            // Its own masters may come back to their address.
            Self::Foreign { .. } => true,
            Self::Refused { code, .. } => matches!(
                code,
                Code::Cancelled
                    | Code::Unknown
                    | Code::DeadlineExceeded
                    | Code::ResourceExhausted
                    | Code::Aborted
                    | Code::Unavailable
            ),
        }
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        let message = match status.message() {
            // What tonic says of a method that is not there.
            "" if status.code() == Code::Unimplemented => {
                "the masters are of an earlier release, which does not know this call; upgrade them first"
                    .to_owned()
            }
            "" => format!("the master answered {}; repeat the call", status.code()),
            message => message.to_owned(),
        };
        if status.metadata().contains_key(OUTLIVED) {
            return Self::Outlived { message };
        }
        Self::Refused {
            code: status.code(),
            message,
        }
    }
}

/// The header in which a master that does not lead names the one that does; empty while none does. Whatever has it
/// was refused before anything was done.
pub const LEADER: &str = "redhare-leader";

/// The header of a refusal by the master that leads of what it will soon be able to do: it has yet to hear the nodes.
/// Nothing was done.
pub const NOT_YET: &str = "redhare-not-yet";

/// The header of a refusal of a life whose node was given a later number since.
pub const OUTLIVED: &str = "redhare-outlived";

/// The header in which a call says which cluster it is for, as the text of a UUID, and in which a master of another one
/// says whose it is when it refuses such a call. A master of the release before does not look at it.
pub const CLUSTER: &str = "redhare-cluster";

/// Whether a call may be made again when nobody knows whether it was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// It reads, or changes the same again.
    Yes,
    /// A second time it would fail on what the first one did.
    No,
}

/// Which masters, and as whom to speak with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masters {
    /// `host:port`, several separated by commas.
    pub addresses: String,
    /// Over TLS, with these credentials; plainly if there are none.
    pub credentials: Option<Files>,
}

impl Masters {
    /// Masters at these addresses, with the credentials in the directory that REDHARE_CREDENTIALS names, if it does.
    pub fn from_environment(addresses: &str) -> Self {
        let directory = std::env::var_os("REDHARE_CREDENTIALS").filter(|directory| !directory.is_empty());
        Self {
            addresses: addresses.to_owned(),
            credentials: directory.map(|directory| Files::in_directory(directory.as_ref())),
        }
    }
}

/// Plainly.
impl From<&str> for Masters {
    fn from(addresses: &str) -> Self {
        Self {
            addresses: addresses.to_owned(),
            credentials: None,
        }
    }
}

/// Plainly.
impl From<&String> for Masters {
    fn from(addresses: &String) -> Self {
        Self::from(addresses.as_str())
    }
}

impl From<&Masters> for Masters {
    fn from(masters: &Masters) -> Self {
        masters.clone()
    }
}

/// A connection to the masters of a cluster: to one at a time, and on to the one that leads, or to another one when it
/// does not answer. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    addresses: Vec<String>,
    credentials: Option<Files>,
    current: Mutex<Current>,
    cluster: OnceLock<Cluster>,
    beats: Beats,
}

/// The way to a master, on which each call says which cluster it is for.
pub(crate) type Way = InterceptedService<Channel, ForCluster>;

/// Writes the cluster into a call's header, if there is one to keep to.
#[derive(Clone)]
pub(crate) struct ForCluster(Option<MetadataValue<Ascii>>);

impl Interceptor for ForCluster {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        if let Some(cluster) = &self.0 {
            request.metadata_mut().insert(CLUSTER, cluster.clone());
        }
        Ok(request)
    }
}

#[derive(Clone, Debug)]
struct Current {
    channel: Channel,
    address: String,
    /// Counts the connections, so that one that has failed is left once.
    number: u64,
    /// The credentials that it was made with, or older ones.
    stamp: Option<Stamp>,
}

impl Client {
    /// Connects to the first of the masters that answers.
    ///
    /// # Errors
    /// See [`ClientError`]: addresses that are none, credentials that cannot be used, or that no master answers.
    pub async fn connect(masters: impl Into<Masters>) -> Result<Self, ClientError> {
        let Masters {
            addresses,
            credentials,
        } = masters.into();
        let addresses: Vec<String> = addresses.split(',').map(|one| one.trim().to_owned()).collect();
        for address in &addresses {
            check_address(address)?;
        }
        let stamp = credentials.as_ref().map(Files::stamp);
        let (address, channel) = first_that_answers(addresses.clone(), credentials.as_ref()).await?;
        let current = Mutex::new(Current {
            channel,
            address,
            number: 0,
            stamp,
        });
        let shared = Arc::new(Shared {
            addresses,
            credentials,
            current,
            cluster: OnceLock::new(),
            beats: Beats::default(),
        });
        Ok(Self { shared })
    }

    /// From now on masters of other clusters are refused, by this client and its clones: each call says which cluster it
    /// is for, and a master of another one does nothing and says so; then the others are asked ([`ClientError::Foreign`]
    /// if they do not help). The first cluster that is named counts. Masters of the release before do not look: who takes
    /// a map from them compares it ([`Client::next_master`]).
    pub fn keep_to(&self, cluster: Cluster) {
        // A client that keeps to a cluster already stays with it.
        let _ = self.shared.cluster.set(cluster);
    }

    /// Turns to the next master that answers, also if that is the same one: this one's answers are of no use.
    ///
    /// # Errors
    /// None answers.
    pub async fn next_master(&self) -> Result<(), ClientError> {
        self.turn_from(&self.current()).await
    }

    /// How many masters were named.
    pub fn masters(&self) -> usize {
        self.shared.addresses.len()
    }

    /// The master it is connected to.
    pub fn address(&self) -> String {
        self.current().address
    }

    /// Begins to watch a map; the stream has no time limit.
    pub async fn watch(
        &self,
        scope: v1::watch_request::Scope,
        known_revision: u64,
    ) -> Result<tonic::Streaming<v1::WatchResponse>, ClientError> {
        let scope = Some(scope);
        let request = v1::WatchRequest {
            scope,
            known_revision,
        };
        self.run(Repeat::Yes, |channel, _| {
            let request = request.clone();
            async move {
                let client = ChunksClient::new(channel);
                client
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .watch(request)
                    .await
            }
        })
        .await
    }

    /// Says that a node's target lives: on a stream that stays, where the master takes one. One at a time; others wait.
    pub async fn heartbeat(
        &self,
        request: v1::HeartbeatRequest,
    ) -> Result<v1::HeartbeatResponse, ClientError> {
        self.run(Repeat::Yes, |channel, connection| {
            let (shared, request) = (self.shared.clone(), request.clone());
            async move { shared.beats.beat(channel, connection, request).await }
        })
        .await
    }

    fn current(&self) -> Current {
        let current = self.shared.current.lock();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn way(&self, channel: Channel) -> Way {
        let cluster = self.shared.cluster.get();
        // The text of a UUID is a header's value.
        let header = cluster.and_then(|cluster| cluster.to_string().parse().ok());
        InterceptedService::new(channel, ForCluster(header))
    }

    /// What a refusal by a master of another cluster is to the caller; none if it is no such refusal.
    fn foreign(&self, address: &str, status: &Status) -> Option<ClientError> {
        let answered = status.metadata().get(CLUSTER)?;
        Some(ClientError::Foreign {
            address: address.to_owned(),
            asked: self.shared.cluster.get()?.to_string(),
            answered: answered.to_str().unwrap_or_default().to_owned(),
        })
    }

    /// Makes a call at the master connected to, then where it is sent. The call is told the connection's number, too.
    async fn run<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        repeat: Repeat,
        call: impl Fn(Way, u64) -> F,
    ) -> Result<T, ClientError> {
        let began = Instant::now();
        let mut ahead = None;
        // How often a master was named that did not answer.
        let mut in_vain = 0;
        // Where masters of other clusters are.
        let mut strangers = BTreeSet::new();
        loop {
            let current = self.current();
            let status = match call(self.way(current.channel.clone()), current.number).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            if let Some(foreign) = self.foreign(&current.address, &status) {
                // A second time: the others do not answer, or are strangers, too.
                if !strangers.insert(current.address.clone()) || self.shared.addresses.len() == 1 {
                    return Err(foreign);
                }
                self.turn_from(&current).await?;
                continue;
            }
            if status.code() == Code::Unauthenticated && self.turn_to_fresh(&current).await {
                continue;
            }
            if status.metadata().contains_key(NOT_YET) && began.elapsed() < FAILOVER_LIMIT {
                sleep(PAUSE).await;
                continue;
            }
            let leader = status.metadata().get(LEADER);
            let leader = leader.map(|leader| leader.to_str().unwrap_or_default().to_owned());
            let is_passing = leader.is_some()
                || repeat == Repeat::Yes && (status.code() == Code::Unavailable || is_broken(&status))
                || was_not_sent(&status);
            if !is_passing || began.elapsed() > FAILOVER_LIMIT {
                return Err(failure(&current.address, status));
            }
            match leader.filter(|leader| !leader.is_empty() && *leader != current.address) {
                // Whoever names it may not hear of another, and be the only one that does not.
                Some(_) if in_vain == IN_VAIN_MAX => {
                    in_vain = 0;
                    self.turn_from(&current).await?;
                }
                Some(leader) => {
                    ahead = self.turn_to(&current, leader, ahead).await;
                    in_vain = if self.current().number == current.number {
                        in_vain + 1
                    } else {
                        0
                    };
                }
                None if is_broken(&status) => self.turn_from(&current).await?,
                // It has no better idea, or not yet.
                None if self.shared.addresses.len() == 1 => return Err(failure(&current.address, status)),
                None => {
                    sleep(PAUSE).await;
                    self.turn_from(&current).await?;
                }
            }
        }
    }

    /// Connects to the same master anew if the credentials are others than when this connection was made: a certificate
    /// may end while it is in use.
    async fn turn_to_fresh(&self, from: &Current) -> bool {
        let stamp = self.shared.credentials.as_ref().map(Files::stamp);
        if stamp == from.stamp {
            return false;
        }
        let connected = open(&from.address, self.shared.credentials.as_ref()).await;
        if let Ok(channel) = connected {
            self.turn(from, from.address.clone(), channel, stamp);
            return true;
        }
        false
    }

    /// Turns to the master that leads. If it does not answer, the one that named it is asked again: another one may lead
    /// by then. An attempt that takes its time is given back, and goes on if the same one is named again.
    async fn turn_to(&self, from: &Current, leader: String, ahead: Option<Attempt>) -> Option<Attempt> {
        let same = ahead.filter(|attempt| attempt.address == leader);
        let mut attempt = same.unwrap_or_else(|| Attempt::begin(leader, self.shared.credentials.clone()));
        match timeout(HEAD_START, &mut attempt.opening).await {
            Err(_) => return Some(attempt),
            Ok(Ok(channel)) => self.turn(from, attempt.address, channel, attempt.stamp),
            Ok(Err(_)) => sleep(PAUSE).await,
        }
        None
    }

    /// Turns to the next master that answers.
    async fn turn_from(&self, from: &Current) -> Result<(), ClientError> {
        let addresses = &self.shared.addresses;
        let place = addresses.iter().position(|address| *address == from.address);
        let next = place.map_or(0, |place| place + 1);
        let order = addresses.iter().cycle().skip(next).take(addresses.len());
        let credentials = self.shared.credentials.as_ref();
        let stamp = credentials.map(Files::stamp);
        let (address, channel) = first_that_answers(order.cloned().collect(), credentials).await?;
        self.turn(from, address, channel, stamp);
        Ok(())
    }

    /// Unless somebody has turned meanwhile.
    fn turn(&self, from: &Current, address: String, channel: Channel, stamp: Option<Stamp>) {
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == from.number {
            let number = from.number + 1;
            *current = Current {
                channel,
                address,
                number,
                stamp,
            };
        }
    }
}

/// A connection in the making to a master that is said to lead.
struct Attempt {
    address: String,
    stamp: Option<Stamp>,
    opening: Pin<Box<dyn Future<Output = Result<Channel, ClientError>> + Send>>,
}

impl Attempt {
    fn begin(address: String, credentials: Option<Files>) -> Self {
        let stamp = credentials.as_ref().map(Files::stamp);
        let to = address.clone();
        let opening = Box::pin(async move { open(&to, credentials.as_ref()).await });
        Self {
            address,
            stamp,
            opening,
        }
    }
}

async fn first_that_answers(
    order: Vec<String>,
    credentials: Option<&Files>,
) -> Result<(String, Channel), ClientError> {
    let credentials = credentials.cloned();
    let connect = |address: String| {
        let credentials = credentials.clone();
        async move { open(&address, credentials.as_ref()).await }
    };
    first_of(order, HEAD_START, connect).await
}

/// A status of the connection's own making has a cause; one that a master sent has none.
fn is_broken(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// Whether nobody can have heard the call: there was no connection.
fn was_not_sent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn failure(address: &str, status: Status) -> ClientError {
    match std::error::Error::source(&status) {
        Some(cause) => unreachable(address, cause),
        None => status.into(),
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($repeat:ident, $limit:ident): $client:ident.$call:ident($request:ident) -> $response:ident;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                pub async fn $name(&self, request: v1::$request) -> Result<v1::$response, ClientError> {
                    self.run(Repeat::$repeat, |channel, _| {
                        let mut request = tonic::Request::new(request.clone());
                        request.set_timeout($limit);
                        async move {
                            let client = $client::new(channel);
                            client.max_decoding_message_size(MESSAGE_BYTES_MAX).$call(request).await
                        }
                    })
                    .await
                }
            )*
        }
    };
}

calls! {
    /// The cluster's identity.
    identity(Yes, CALL_LIMIT): ClusterClient.get_identity(GetIdentityRequest) -> GetIdentityResponse;
    /// The cluster at a glance.
    status(Yes, CALL_LIMIT): ClusterClient.get_status(GetStatusRequest) -> GetStatusResponse;
    /// Says how evenly the nodes are used, and whether copies shall move by themselves.
    rebalance(Yes, CALL_LIMIT): ClusterClient.rebalance(RebalanceRequest) -> RebalanceResponse;
    /// How far the masters are with metadata from a backup.
    restored(Yes, CALL_LIMIT): ClusterClient.restored(RestoredRequest) -> RestoredResponse;
    /// Forgets a master that is away.
    forget_master(No, CALL_LIMIT): ClusterClient.forget_master(ForgetMasterRequest) -> ForgetMasterResponse;
    /// Makes a node, or a new life of its target, known.
    register(Yes, CALL_LIMIT): NodesClient.register(RegisterRequest) -> RegisterResponse;
    /// Moves all copies away from a node or disk, or ends that.
    drain(Yes, CALL_LIMIT): NodesClient.drain(DrainRequest) -> DrainResponse;
    /// Has a node put a disk back in service.
    restore_disk(Yes, CALL_LIMIT): NodesClient.restore(RestoreDiskRequest) -> RestoreDiskResponse;
    /// Forgets a node for good.
    remove_node(Yes, CALL_LIMIT): NodesClient.remove(RemoveNodeRequest) -> RemoveNodeResponse;
    /// Creates a volume.
    create_volume(No, CALL_LIMIT): VolumesClient.create(CreateVolumeRequest) -> CreateVolumeResponse;
    /// Every volume.
    list_volumes(Yes, CALL_LIMIT): VolumesClient.list(ListVolumesRequest) -> ListVolumesResponse;
    /// One volume and its map, at most its first 4096 chunks.
    show_volume(Yes, CALL_LIMIT): VolumesClient.show(ShowVolumeRequest) -> ShowVolumeResponse;
    /// Lets a volume grow.
    resize_volume(No, CALL_LIMIT): VolumesClient.resize(ResizeVolumeRequest) -> ResizeVolumeResponse;
    /// Creates a volume from a snapshot of another.
    clone_volume(No, CALL_LIMIT): VolumesClient.create_clone(CloneVolumeRequest) -> CloneVolumeResponse;
    /// Has a clone get data of its own.
    flatten_volume(Yes, CALL_LIMIT): VolumesClient.flatten(FlattenVolumeRequest) -> FlattenVolumeResponse;
    /// Begins to delete a volume.
    delete_volume(No, CALL_LIMIT): VolumesClient.delete(DeleteVolumeRequest) -> DeleteVolumeResponse;
    /// Has nodes export a volume to ordinary hosts.
    export_volume(Yes, CALL_LIMIT): VolumesClient.export(ExportVolumeRequest) -> ExportVolumeResponse;
    /// Has nobody export it any more.
    unexport_volume(Yes, CALL_LIMIT): VolumesClient.unexport(UnexportVolumeRequest) -> UnexportVolumeResponse;
    /// Moves a copy of a chunk to another node.
    move_copy(Yes, CALL_LIMIT): VolumesClient.move_copy(MoveCopyRequest) -> MoveCopyResponse;
    /// Has another copy order the writes of a chunk.
    move_writes(Yes, CALL_LIMIT): VolumesClient.move_writes(MoveWritesRequest) -> MoveWritesResponse;
    /// Pins the writes of a volume to a node.
    pin_writes(Yes, CALL_LIMIT): VolumesClient.pin_writes(PinWritesRequest) -> PinWritesResponse;
    /// Has every write of a volume be durable before it is acknowledged.
    set_sync_writes(Yes, CALL_LIMIT): VolumesClient.set_sync_writes(SetSyncWritesRequest) -> SetSyncWritesResponse;
    /// The chunks that too few copies can serve.
    show_unserved(Yes, CALL_LIMIT): VolumesClient.show_unserved(ShowUnservedRequest) -> ShowUnservedResponse;
    /// Has copies served whatever they lack.
    force_serve(No, CALL_LIMIT): VolumesClient.force_serve(ForceServeRequest) -> ForceServeResponse;
    /// Begins a snapshot of a volume.
    begin_snapshot(No, CALL_LIMIT): SnapshotsClient.begin(BeginSnapshotRequest) -> BeginSnapshotResponse;
    /// Says that every chunk has its part of a snapshot.
    complete_snapshot(Yes, CALL_LIMIT): SnapshotsClient.complete(CompleteSnapshotRequest) -> CompleteSnapshotResponse;
    /// Gives up a snapshot that is pending.
    abort_snapshot(Yes, CALL_LIMIT): SnapshotsClient.abort(AbortSnapshotRequest) -> AbortSnapshotResponse;
    /// The snapshots of a volume.
    list_snapshots(Yes, CALL_LIMIT): SnapshotsClient.list(ListSnapshotsRequest) -> ListSnapshotsResponse;
    /// Begins to delete a snapshot.
    delete_snapshot(No, CALL_LIMIT): SnapshotsClient.delete(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    /// What the hosts of a volume have reserved.
    reservations(Yes, CALL_LIMIT): ReservationsClient.show(ShowReservationsRequest) -> ShowReservationsResponse;
    /// Puts other reservations in the place of those of one version.
    replace_reservations(No, CALL_LIMIT): ReservationsClient.replace(ReplaceReservationsRequest) -> ReplaceReservationsResponse;
    /// Says that a token is in force on every copy.
    enforced_reservations(Yes, CALL_LIMIT): ReservationsClient.enforced(EnforcedReservationsRequest) -> EnforcedReservationsResponse;
    /// Voids what the hosts of a volume have reserved.
    clear_reservations(No, CALL_LIMIT): ReservationsClient.clear(ClearReservationsRequest) -> ClearReservationsResponse;
    /// What the masters trust and issue with.
    roots(Yes, CALL_LIMIT): JoiningClient.get_roots(GetRootsRequest) -> GetRootsResponse;
    /// Another certificate for the node that is speaking.
    renew_certificate(Yes, CALL_LIMIT): JoiningClient.renew(RenewRequest) -> RenewResponse;
    /// Makes a join token.
    create_token(No, CALL_LIMIT): JoiningClient.create_token(CreateTokenRequest) -> CreateTokenResponse;
    /// Every join token, without its secret.
    list_tokens(Yes, CALL_LIMIT): JoiningClient.list_tokens(ListTokensRequest) -> ListTokensResponse;
    /// Forgets a join token.
    revoke_token(No, CALL_LIMIT): JoiningClient.revoke_token(RevokeTokenRequest) -> RevokeTokenResponse;
    /// A part of a volume's map.
    map(Yes, CALL_LIMIT): ChunksClient.get_map(GetMapRequest) -> GetMapResponse;
    /// Proposes a configuration as write node.
    propose(Yes, CALL_LIMIT): ChunksClient.propose_configuration(ProposeConfigurationRequest) -> ProposeConfigurationResponse;
    /// Asks for the write lease.
    acquire_writer(Yes, CALL_LIMIT): LeasesClient.acquire_writer(AcquireWriterRequest) -> WriterLease;
    /// Renews it.
    renew_writer(Yes, CALL_LIMIT): LeasesClient.renew_writer(RenewWriterRequest) -> WriterLease;
    /// Waits until another asks for it.
    await_wanted(Yes, CALL_LIMIT): LeasesClient.await_wanted(AwaitWantedRequest) -> WriterLease;
    /// Gives it back.
    release_writer(Yes, CALL_LIMIT): LeasesClient.release_writer(ReleaseWriterRequest) -> ReleaseWriterResponse;
    /// Takes or renews a reader's lease.
    hold_reader(Yes, CALL_LIMIT): LeasesClient.hold_reader(HoldReaderRequest) -> HoldReaderResponse;
    /// Gives it back.
    release_reader(Yes, CALL_LIMIT): LeasesClient.release_reader(ReleaseReaderRequest) -> ReleaseReaderResponse;
    /// What a node checks with who comes.
    data_keys(Yes, CALL_LIMIT): DataPathClient.get_keys(GetDataKeysRequest) -> GetDataKeysResponse;
    /// What the caller proves itself to nodes with.
    passes(Yes, CALL_LIMIT): DataPathClient.get_passes(GetPassesRequest) -> GetPassesResponse;
    /// Who holds leases.
    show_leases(Yes, CALL_LIMIT): LeasesClient.show(ShowLeasesRequest) -> ShowLeasesResponse;
}
