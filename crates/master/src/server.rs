//! A master from start to end.

use std::future::Future;
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use proto::v1::chunks_server::ChunksServer;
use proto::v1::cluster_server::ClusterServer;
use proto::v1::leases_server::LeasesServer;
use proto::v1::nodes_server::NodesServer;
use proto::v1::volumes_server::VolumesServer;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use crate::config::{Config, StoreConfig};
use crate::engine::{Engine, StartError};
use crate::etcd::{EtcdElection, Link};
use crate::redb_store::{OpenStoreError, RedbStore};
use crate::seat::Candidate;
use crate::service::{Face, StoreFace};
use crate::watch::Feed;

/// How long streams may go on once the end was asked for.
const END_WAIT: Duration = Duration::from_secs(1);

/// Why a master could not start or go on.
#[derive(Debug, Error)]
pub enum RunError {
    /// Its store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    /// What is in its store cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The address cannot be listened on.
    #[error(
        "the master cannot listen on {address}: {source}; choose another address with --listen, or stop what uses it"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Other masters could not say where it is.
    #[error(
        "the master listens on {address}, which nobody can connect to by that name; give --advertise host:port, by \
         which clients and nodes reach it"
    )]
    Advertise {
        /// Where it listens.
        address: SocketAddr,
    },
    /// No thread for the connections to etcd.
    #[error("the system gives no thread for etcd: {0}; raise the limit (ulimit -u)")]
    Thread(std::io::Error),
    /// No random bits.
    #[error("/dev/urandom cannot be read: {0}; make it available")]
    Random(std::io::Error),
    /// The server stopped of itself.
    #[error("the master's server stopped: {0}; start the master again")]
    Serve(#[from] tonic::transport::Error),
}

/// A master that listens; [`Master::run`] serves.
#[derive(Debug)]
pub struct Master {
    listener: TcpListener,
    address: SocketAddr,
    face: Face,
    thread: std::thread::JoinHandle<()>,
}

impl Master {
    /// Opens the store and listens. To be called within a tokio runtime with I/O and time.
    pub async fn start(config: &Config) -> Result<Self, RunError> {
        let opened = match &config.store {
            StoreConfig::Directory(directory) => Ok(RedbStore::open(directory)?),
            StoreConfig::Etcd(etcd) => Err(etcd),
        };
        let listen = |source| RunError::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let seed = random_seed().map_err(RunError::Random)?;
        let advertised = config.advertise.clone().unwrap_or_else(|| address.to_string());
        let (candidate, store) = match opened {
            Ok(store) => {
                let face = StoreFace::Redb(store.path().to_owned());
                (Candidate::alone(store, advertised), face)
            }
            Err(etcd) => {
                if config.advertise.is_none() && address.ip().is_unspecified() {
                    return Err(RunError::Advertise { address });
                }
                let link = Link::new(etcd.clone()).map_err(RunError::Thread)?;
                let face = StoreFace::Etcd(link.clone());
                (Candidate::Etcd(EtcdElection::new(link, advertised)), face)
            }
        };
        let must_lead = matches!(store, StoreFace::Redb(_));
        let settings = config.settings;
        let (engine, thread) = Engine::start(candidate, settings, seed, must_lead)?;
        Ok(Self {
            listener,
            address,
            face: Face {
                feed: Feed::start(&engine),
                engine,
                settings,
                store,
            },
            thread,
        })
    }

    /// Where it listens; tells the port when port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is done, then ends: calls under way are answered, watches ended,
    /// and the store closed. Whatever was answered is durable at any time before.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let Self {
            listener,
            address,
            face,
            thread,
        } = self;
        tracing::info!("master listens on {address}");
        let (ask_end, end_asked) = tokio::sync::oneshot::channel::<()>();
        let ticks = face.engine.clone();
        let every = (face.settings.heartbeat_timeout / 10)
            .clamp(Duration::from_millis(10), Duration::from_millis(500));
        let server = tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .add_service(ClusterServer::new(face.clone()))
            .add_service(NodesServer::new(face.clone()))
            .add_service(VolumesServer::new(face.clone()))
            .add_service(ChunksServer::new(face.clone()))
            .add_service(LeasesServer::new(face))
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
                // A dropped sender is a request to end, too.
                drop(end_asked.await);
            });
        let mut server = std::pin::pin!(server);
        let result = tokio::select! {
            result = &mut server => result,
            () = ticks.tick_forever(every) => unreachable!("it ticks forever"),
            () = shutdown => {
                drop(ask_end);
                // Watches never end of themselves; their readers find another master.
                tokio::time::timeout(END_WAIT, server).await.unwrap_or(Ok(()))
            }
        };
        ticks.end().await;
        // Connections may hold handles until the runtime ends; the store is closed now.
        if thread.join().is_err() {
            tracing::error!("the control thread of the master on {address} panicked");
        }
        tracing::info!("master on {address} has ended");
        Ok(result?)
    }
}

fn random_seed() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
