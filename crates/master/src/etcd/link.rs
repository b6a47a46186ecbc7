//! Calls to etcd, whichever of its members answers, from a thread that blocks.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use control::StoreError;
use etcd_client::{Client, Error};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::EtcdConfig;
use super::connect::{NotConnected, connect};
use super::refusal::{self, Refusal};

/// Pause after all members were tried.
const PAUSE: Duration = Duration::from_millis(100);
/// So often a call that was refused for who we are is made again on another connection; each costs etcd the time that it takes to
/// look at a password, which is long on purpose.
const RENEWED_MAX: usize = 3;
/// How long one member is waited for when another one may be asked.
pub(super) const MEMBER_LIMIT: Duration = Duration::from_secs(1);
/// Answers are bounded by what is asked for: 1,024 records of at most some hundred bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Whether a call may be made again when nobody knows whether it was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It changes nothing, or the same again.
    Yes,
    /// It may have taken effect: the caller decides.
    No,
}

/// One member of an etcd at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    /// `host:port`.
    pub(crate) endpoint: String,
    /// Its version and size; or what is wrong.
    pub(crate) said: Result<String, String>,
}

struct Shared {
    config: EtcdConfig,
    clients: Mutex<Vec<Option<Client>>>,
    /// The member that answered last.
    current: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Connections to an etcd and the thread that moves them. Cheap to clone; the thread ends with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    runtime: tokio::runtime::Handle,
    _stop: Arc<tokio::sync::oneshot::Sender<()>>,
}

impl Link {
    /// Makes the thread; connects to nobody yet.
    pub(crate) fn new(config: EtcdConfig) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("etcd".to_owned())
            .spawn(move || {
                // Ends when the last link is dropped.
                drop(runtime.block_on(stopped));
            })?;
        let clients = Mutex::new(vec![None; config.endpoints.len()]);
        Ok(Self {
            shared: Arc::new(Shared {
                config,
                clients,
                current: AtomicUsize::new(0),
            }),
            runtime: handle,
            _stop: Arc::new(stop),
        })
    }

    pub(crate) fn config(&self) -> &EtcdConfig {
        &self.shared.config
    }

    /// Makes a call at the member that answered last, then at the others. Blocks until one has answered, for no
    /// longer than the limit of calls. Not to be called on a thread that runs an event loop.
    pub(crate) fn call<T, F: Future<Output = Result<T, Error>>>(
        &self,
        repeat: Repeat,
        call: impl Fn(Client) -> F,
    ) -> Result<T, StoreError> {
        let shared = &self.shared;
        self.runtime.block_on(async {
            let deadline = Instant::now() + shared.config.call_limit;
            let mut tried = 0;
            // Connections on which we have said anew who we are.
            let mut renewed = 0;
            // What a member said; that it was silent the last time tells less.
            let mut said = None;
            loop {
                let index = shared.current.load(Ordering::Relaxed) % shared.config.endpoints.len();
                let why = match shared.client(index, deadline).await {
                    // Nothing was asked yet.
                    Err(refused) if refused.is_final => return Err(shared.unavailable(&refused.why)),
                    Err(refused) => refused.why,
                    Ok(client) => {
                        let limit = match repeat {
                            Repeat::Yes if shared.config.endpoints.len() > 1 => {
                                deadline.min(Instant::now() + MEMBER_LIMIT)
                            }
                            _ => deadline,
                        };
                        match timeout_at(limit, call(client)).await {
                            Ok(Ok(answer)) => return Ok(answer),
                            Ok(Err(error)) => {
                                shared.leave(index);
                                let why = Refusal::of_call(&error, &shared.config).to_string();
                                let is_of_token = refusal::is_of_token(&error, &shared.config);
                                renewed += usize::from(is_of_token);
                                let may_repeat = repeat == Repeat::Yes || is_of_token || was_not_sent(&error);
                                let is_final = match is_of_token {
                                    true => renewed > RENEWED_MAX,
                                    false => is_final(&error),
                                };
                                if !may_repeat || is_final {
                                    return Err(shared.unavailable(&why));
                                }
                                why
                            }
                            Err(_) => {
                                shared.leave(index);
                                let why = shared.silent(index);
                                if repeat == Repeat::No {
                                    return Err(shared.unavailable(&why));
                                }
                                why
                            }
                        }
                    }
                };
                if why != shared.silent(index) {
                    said = Some(why.clone());
                }
                tried += 1;
                if tried % shared.config.endpoints.len() == 0 {
                    sleep(PAUSE).await;
                }
                if Instant::now() >= deadline {
                    return Err(shared.unavailable(&said.unwrap_or(why)));
                }
            }
        })
    }

    /// Runs a task beside all calls, on the link's thread. It ends with the link at the latest.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    /// A connection for a task, to the member that answers.
    pub(super) fn connector(&self) -> Connector {
        Connector(self.shared.clone())
    }

    /// How each member is. May be awaited in any event loop.
    pub(crate) async fn health(&self) -> Vec<Health> {
        let shared = self.shared.clone();
        let ask = async move {
            let mut found = Vec::new();
            for (index, endpoint) in shared.config.endpoints.iter().enumerate() {
                let asked = timeout(MEMBER_LIMIT, async {
                    let connected = shared.client(index, Instant::now() + MEMBER_LIMIT).await;
                    let client = connected.map_err(|refused| refused.why)?;
                    let status = client.maintenance_client().status().await;
                    let status =
                        status.map_err(|error| Refusal::of_call(&error, &shared.config).to_string())?;
                    match status.errors().first() {
                        Some(error) => Err(error.clone()),
                        None if status.leader() == 0 => Err("it knows no leader of etcd's".to_owned()),
                        None => Ok(format!(
                            "etcd {}, {}",
                            status.version(),
                            foundation::ByteCount(status.db_size().max(0).unsigned_abs())
                        )),
                    }
                });
                let said = asked.await.unwrap_or_else(|_| Err(shared.silent(index)));
                found.push(Health {
                    endpoint: endpoint.clone(),
                    said,
                });
            }
            found
        };
        // The thread lives as long as this link.
        self.runtime.spawn(ask).await.unwrap_or_default()
    }
}

/// Connects tasks on the link's thread; see [`Link::connector`].
#[derive(Clone, Debug)]
pub(super) struct Connector(Arc<Shared>);

impl Connector {
    pub(super) async fn client(&self) -> Result<Client, String> {
        let index = self.0.current.load(Ordering::Relaxed) % self.0.config.endpoints.len();
        let connected = self.0.client(index, Instant::now() + MEMBER_LIMIT).await;
        connected.map_err(|refused| refused.why)
    }

    /// The member that answered last does not: the next one is asked.
    pub(super) fn leave(&self) {
        let index = self.0.current.load(Ordering::Relaxed) % self.0.config.endpoints.len();
        self.0.leave(index);
    }
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Vec<Option<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to a member, made if there is none.
    async fn client(&self, index: usize, deadline: Instant) -> Result<Client, NotConnected> {
        if let Some(client) = self.clients()[index].clone() {
            return Ok(client);
        }
        let limit = deadline.min(Instant::now() + MEMBER_LIMIT);
        let connected = timeout_at(limit, connect(&self.config, index)).await;
        match connected.unwrap_or_else(|_| Err(self.silent(index).into())) {
            Ok(client) => {
                self.clients()[index] = Some(client.clone());
                Ok(client)
            }
            Err(refused) => {
                self.leave(index);
                Err(refused)
            }
        }
    }

    /// Forgets the connection to a member and turns to the next one.
    fn leave(&self, index: usize) {
        self.clients()[index] = None;
        let next = (index + 1) % self.config.endpoints.len();
        // Unless another call has turned already.
        let _ = self
            .current
            .compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn silent(&self, index: usize) -> String {
        format!("{} does not answer", self.config.endpoints[index])
    }

    fn unavailable(&self, why: &str) -> StoreError {
        StoreError::Unavailable {
            store: self.config.name(),
            why: why.to_owned(),
        }
    }
}

/// What etcd said, or the innermost cause of what went wrong on the way.
pub(super) fn text(error: &Error) -> String {
    if let Error::GRpcStatus(status) = error
        && !status.message().is_empty()
        && std::error::Error::source(status).is_none()
    {
        return status.message().to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    if let Error::GRpcStatus(status) = error {
        cause = status;
    }
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Whether the call certainly never reached a member: nobody listens there.
fn was_not_sent(error: &Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = match error {
        Error::GRpcStatus(status) => Some(status),
        other => Some(other),
    };
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return error.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        cause = error.source();
    }
    false
}

/// Whether every member would say the same.
fn is_final(error: &Error) -> bool {
    use tonic::Code;
    match error {
        Error::GRpcStatus(status) => matches!(
            status.code(),
            Code::InvalidArgument | Code::PermissionDenied | Code::NotFound | Code::FailedPrecondition
        ),
        _ => false,
    }
}
