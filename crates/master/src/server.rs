//! A master from start to end.

use std::future::Future;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use identity::{CredentialsError, Issuer, IssuerError, Role, Watched};
use proto::MESSAGE_BYTES_MAX;
use proto::v1::chunks_server::ChunksServer;
use proto::v1::cluster_server::ClusterServer;
use proto::v1::data_path_server::DataPathServer;
use proto::v1::joining_server::JoiningServer;
use proto::v1::leases_server::LeasesServer;
use proto::v1::nodes_server::NodesServer;
use proto::v1::reservations_server::ReservationsServer;
use proto::v1::snapshots_server::SnapshotsServer;
use proto::v1::volumes_server::VolumesServer;
use thiserror::Error;
use tokio::net::TcpListener;

use crate::access::{Guarded, Policy};
use crate::audit::{self, AuditLog};
use crate::config::{Config, StoreConfig};
use crate::data_path;
use crate::door;
use crate::engine::{Engine, StartError};
use crate::etcd::{EtcdElection, Link};
use crate::http;
use crate::joining::Office;
use crate::redb_store::{OpenStoreError, RedbStore};
use crate::seat::Candidate;
use crate::service::{Face, StoreFace};
use crate::watch::Feed;
use crate::whose::Whose;

/// How long streams may go on once the end was asked for.
const END_WAIT: Duration = Duration::from_secs(1);
/// A certificate that ends within so many days is spoken of.
const EXPIRY_WARNING_DAYS: i64 = 30;
/// An issuer is spoken of before it cuts short what it issues, which holds for 90 days.
const ISSUER_WARNING_DAYS: i64 = 120;

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
    /// Nor the one for HTTP.
    #[error(
        "the master cannot serve the dashboard and metrics on {address}: {source}; choose a free port and an address of this host \
         with --http"
    )]
    Http {
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
    /// Its own credentials.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Those of somebody else.
    #[error(
        "the certificate {} is that of {role} \"{name}\", and nobody would take this for a master; make one with \"redhare \
         ca issue --role master --address HOST\"", .path.display()
    )]
    Role {
        /// The certificate.
        path: PathBuf,
        /// Whose.
        role: Role,
        /// Whose.
        name: String,
    },
    /// What it would issue certificates with.
    #[error(transparent)]
    Issuer(#[from] IssuerError),
    /// It would issue certificates of a cluster that it does not know.
    #[error(
        "--issuer is for a master with credentials of the same cluster; give it --credentials DIR (\"redhare ca issue --role \
         master\"), or no issuer"
    )]
    IssuerAlone,
    /// Its audit log cannot be written.
    #[error("the audit log {} cannot be opened: {source}; give --audit-log a file that can be appended to", .path.display())]
    AuditLog {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
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
    advertised: String,
    http: Option<TcpListener>,
    face: Face,
    credentials: Option<Arc<Watched>>,
    policy: Arc<Policy>,
    thread: std::thread::JoinHandle<()>,
}

/// Who the master is; none if it has no credentials.
fn own_credentials(config: &Config) -> Result<Option<Watched>, RunError> {
    let Some(files) = &config.credentials else {
        return Ok(None);
    };
    let watched = Watched::load(files)?;
    let identity = watched.current().0.identity().clone();
    if identity.role != Role::Master {
        return Err(RunError::Role {
            path: files.certificate.clone(),
            role: identity.role,
            name: identity.name,
        });
    }
    if identity.days_left() < EXPIRY_WARNING_DAYS {
        tracing::warn!(
            "this master's certificate ends in {} days; make it anew with \"redhare ca renew\"",
            identity.days_left()
        );
    }
    Ok(Some(watched))
}

/// Refuses an issuer whose certificates nobody would believe.
fn check_issuer(config: &Config, credentials: Option<&Watched>) -> Result<(), RunError> {
    let Some(directory) = &config.issuer else {
        return Ok(());
    };
    let own = credentials.ok_or(RunError::IssuerAlone)?.current().0;
    let issuer = Issuer::open(directory)?;
    if issuer.cluster() != own.identity().cluster {
        return Err(RunError::IssuerAlone);
    }
    issuer.check(own.authorities())?;
    let days = (issuer.summary()?.not_after - identity::unix_now()).div_euclid(86_400);
    if days < ISSUER_WARNING_DAYS {
        tracing::warn!("this master's issuer ends in {days} days; make it anew with \"redhare ca renew\"");
    }
    Ok(())
}

impl Master {
    /// Opens the store and listens. To be called within a tokio runtime with I/O and time.
    pub async fn start(config: &Config) -> Result<Self, RunError> {
        let credentials = own_credentials(config)?.map(Arc::new);
        let cluster = credentials
            .as_ref()
            .map(|watched| watched.current().0.identity().cluster);
        check_issuer(config, credentials.as_deref())?;
        let audit = match &config.audit_log {
            None => None,
            Some(path) => {
                let opened = AuditLog::open(path).map_err(|source| RunError::AuditLog {
                    path: path.clone(),
                    source,
                })?;
                Some(Arc::new(opened))
            }
        };
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
        let http = match config.http {
            None => None,
            Some(address) => {
                let bound = TcpListener::bind(address).await;
                Some(bound.map_err(|source| RunError::Http { address, source })?)
            }
        };
        let seed = random_seed().map_err(RunError::Random)?;
        let advertised = config.advertise.clone().unwrap_or_else(|| address.to_string());
        let (candidate, store) = match opened {
            Ok(store) => {
                let face = StoreFace::Redb(store.path().to_owned());
                (Candidate::alone(store, advertised.clone()), face)
            }
            Err(etcd) => {
                if config.advertise.is_none() && address.ip().is_unspecified() {
                    return Err(RunError::Advertise { address });
                }
                let link = Link::new(etcd.clone()).map_err(RunError::Thread)?;
                let face = StoreFace::Etcd(link.clone());
                let election = EtcdElection::new(link, advertised.clone()).known();
                (Candidate::Etcd(election), face)
            }
        };
        let must_lead = matches!(store, StoreFace::Redb(_));
        let mut settings = config.settings;
        settings.cluster = cluster
            .and_then(|cluster| control::Uuid::from_bytes(&cluster.to_bytes()))
            .map(control::ClusterId);
        let (engine, thread) = Engine::start(candidate, settings, seed, must_lead)?;
        let policy = Arc::new(Policy::new(cluster, audit));
        Ok(Self {
            listener,
            address,
            advertised,
            http,
            face: Face {
                policy: policy.clone(),
                feed: Feed::start(&engine),
                engine,
                settings,
                store,
                office: Office {
                    issuer: config.issuer.clone(),
                    credentials: credentials.clone(),
                },
                wanted: Arc::default(),
            },
            credentials,
            policy,
            thread,
        })
    }

    /// Where it listens; tells the port when port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the dashboard and the metrics are served, if they are.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until `shutdown` is done, then ends: calls under way are answered, watches ended,
    /// and the store closed. Whatever was answered is durable at any time before.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let Self {
            listener,
            address,
            advertised,
            http,
            face,
            credentials,
            policy,
            thread,
        } = self;
        let showing = http.map(|listener| {
            if let Ok(address) = listener.local_addr() {
                tracing::info!("the dashboard is at http://{address}/, the metrics at http://{address}/metrics, for anyone");
            }
            let site = http::Site {
                face: face.clone(),
                policy: policy.clone(),
                advertised,
            };
            tokio::spawn(http::serve(listener, site))
        });
        match &credentials {
            Some(_) => {
                tracing::info!("master listens on {address}, for holders of the cluster's certificates")
            }
            None => tracing::info!("master listens on {address}, for anyone"),
        }
        let reopening = policy
            .audit
            .clone()
            .map(audit::reopen_on_hangup)
            .map(tokio::spawn);
        let (ask_end, end_asked) = tokio::sync::oneshot::channel::<()>();
        let ticks = face.engine.clone();
        let turning = policy.cluster.map(|_| {
            tokio::spawn(data_path::turn_keys(
                face.engine.clone(),
                face.settings.data_key_period,
            ))
        });
        let every = (face.settings.heartbeat_timeout / 10)
            .clamp(Duration::from_millis(10), Duration::from_millis(500));
        let whose = Whose::new(face.engine.clone());
        // A node names its copies, of which it may have very many.
        let nodes = NodesServer::new(face.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let server = tonic::transport::Server::builder()
            // Of a peer that is gone without a word nothing else is ever heard: its watches would stay for ever.
            .http2_keepalive_interval(Some(door::KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(door::KEEPALIVE_TIMEOUT))
            .add_service(Guarded::new(ClusterServer::new(face.clone()), &policy, &whose))
            .add_service(Guarded::new(nodes, &policy, &whose))
            .add_service(Guarded::new(VolumesServer::new(face.clone()), &policy, &whose))
            .add_service(Guarded::new(ChunksServer::new(face.clone()), &policy, &whose))
            .add_service(Guarded::new(JoiningServer::new(face.clone()), &policy, &whose))
            .add_service(Guarded::new(SnapshotsServer::new(face.clone()), &policy, &whose))
            .add_service(Guarded::new(
                ReservationsServer::new(face.clone()),
                &policy,
                &whose,
            ))
            .add_service(Guarded::new(DataPathServer::new(face.clone()), &policy, &whose))
            .add_service(Guarded::new(LeasesServer::new(face), &policy, &whose))
            .serve_with_incoming_shutdown(door::open(listener, credentials), async {
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
        for task in reopening.into_iter().chain(turning).chain(showing) {
            task.abort();
        }
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
