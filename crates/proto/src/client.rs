//! A client of the masters, for nodes, programs and the command line.

use std::time::Duration;

use crate::v1;
use crate::v1::chunks_client::ChunksClient;
use crate::v1::cluster_client::ClusterClient;
use crate::v1::leases_client::LeasesClient;
use crate::v1::nodes_client::NodesClient;
use crate::v1::volumes_client::VolumesClient;
use thiserror::Error;
pub use tonic::Code;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Longer than any call takes but a watch, which has no limit.
const CALL_LIMIT: Duration = Duration::from_secs(30);

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
            Self::Address { .. } => false,
            Self::Unreachable { .. } => true,
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
            "" => format!("the master answered {}; repeat the call", status.code()),
            message => message.to_owned(),
        };
        Self::Refused {
            code: status.code(),
            message,
        }
    }
}

/// A connection to one master. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    address: String,
}

impl Client {
    /// Connects to the first of the addresses (`host:port`, separated by commas) that answers.
    pub async fn connect(addresses: &str) -> Result<Self, ClientError> {
        let mut why = String::new();
        for address in addresses.split(',').map(str::trim) {
            let bad = || ClientError::Address {
                address: address.to_owned(),
            };
            let has_port = address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            if !has_port {
                return Err(bad());
            }
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| bad())?;
            let endpoint = endpoint
                .connect_timeout(CONNECT_LIMIT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(Duration::from_secs(10))
                .keep_alive_timeout(Duration::from_secs(5));
            match endpoint.connect().await {
                Ok(channel) => {
                    let address = address.to_owned();
                    return Ok(Self { channel, address });
                }
                Err(error) => why = deepest(&error),
            }
        }
        Err(ClientError::Unreachable {
            addresses: addresses.to_owned(),
            why,
        })
    }

    /// The master it is connected to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The generated client of the service of that name, for calls that have no method here.
    pub fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel.clone())
    }

    /// See [`Client::cluster`].
    pub fn nodes(&self) -> NodesClient<Channel> {
        NodesClient::new(self.channel.clone())
    }

    /// See [`Client::cluster`].
    pub fn volumes(&self) -> VolumesClient<Channel> {
        VolumesClient::new(self.channel.clone())
    }

    /// See [`Client::cluster`].
    pub fn chunks(&self) -> ChunksClient<Channel> {
        ChunksClient::new(self.channel.clone())
    }

    /// See [`Client::cluster`].
    pub fn leases(&self) -> LeasesClient<Channel> {
        LeasesClient::new(self.channel.clone())
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
        let answer = self.chunks().watch(request).await;
        Ok(answer.map_err(|status| self.failure(status))?.into_inner())
    }
}

impl Client {
    /// A status of the connection's own making has a cause; one that a master sent has none.
    fn failure(&self, status: Status) -> ClientError {
        match std::error::Error::source(&status) {
            Some(cause) => ClientError::Unreachable {
                addresses: self.address.clone(),
                why: deepest(cause),
            },
            None => status.into(),
        }
    }
}

/// The innermost cause, which says what a person can act on.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident: $service:ident.$call:ident($request:ident) -> $response:ident;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                pub async fn $name(&self, request: v1::$request) -> Result<v1::$response, ClientError> {
                    let mut request = tonic::Request::new(request);
                    request.set_timeout(CALL_LIMIT);
                    let answer = self.$service().$call(request).await;
                    Ok(answer.map_err(|status| self.failure(status))?.into_inner())
                }
            )*
        }
    };
}

calls! {
    /// The cluster's identity.
    identity: cluster.get_identity(GetIdentityRequest) -> GetIdentityResponse;
    /// The cluster at a glance.
    status: cluster.get_status(GetStatusRequest) -> GetStatusResponse;
    /// Makes a node, or a new life of its target, known.
    register: nodes.register(RegisterRequest) -> RegisterResponse;
    /// Says that a node's target lives.
    heartbeat: nodes.heartbeat(HeartbeatRequest) -> HeartbeatResponse;
    /// Moves all copies away from a node or disk, or ends that.
    drain: nodes.drain(DrainRequest) -> DrainResponse;
    /// Creates a volume.
    create_volume: volumes.create(CreateVolumeRequest) -> CreateVolumeResponse;
    /// Every volume.
    list_volumes: volumes.list(ListVolumesRequest) -> ListVolumesResponse;
    /// One volume and its map, at most its first 4096 chunks.
    show_volume: volumes.show(ShowVolumeRequest) -> ShowVolumeResponse;
    /// Begins to delete a volume.
    delete_volume: volumes.delete(DeleteVolumeRequest) -> DeleteVolumeResponse;
    /// A part of a volume's map.
    map: chunks.get_map(GetMapRequest) -> GetMapResponse;
    /// Proposes a configuration as write node.
    propose: chunks.propose_configuration(ProposeConfigurationRequest) -> ProposeConfigurationResponse;
    /// Asks for the write lease.
    acquire_writer: leases.acquire_writer(AcquireWriterRequest) -> WriterLease;
    /// Renews it.
    renew_writer: leases.renew_writer(RenewWriterRequest) -> WriterLease;
    /// Gives it back.
    release_writer: leases.release_writer(ReleaseWriterRequest) -> ReleaseWriterResponse;
    /// Takes or renews a reader's lease.
    hold_reader: leases.hold_reader(HoldReaderRequest) -> HoldReaderResponse;
    /// Gives it back.
    release_reader: leases.release_reader(ReleaseReaderRequest) -> ReleaseReaderResponse;
    /// Who holds leases.
    show_leases: leases.show(ShowLeasesRequest) -> ShowLeasesResponse;
}
