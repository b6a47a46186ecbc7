//! The target's life: start or adopt, watch, and start again.

use std::process::Stdio;
use std::time::Duration;

use agentlink::{Decoder, FromTarget, ToTarget, encode};
use proto::client::{Client, ClientError};
use proto::v1;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::masters::{self, Life};
use crate::state::{State, StateError};
use crate::{Config, disks, state};

/// How long a starting target may take until it listens: it reads all records of its disks.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Pause before a target that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// A target that was asked to end is killed after this.
const END_LIMIT: Duration = Duration::from_secs(5);
const QUEUE_MESSAGES: usize = 65_536;

/// Why the node engine stops.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its own state.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file or process.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The target.
    #[error("the target did not start: {why}; its log is {log}")]
    Target {
        /// What is wrong.
        why: String,
        /// Where to look.
        log: String,
    },
    /// The masters said no.
    #[error("the masters refuse this node: {0}")]
    Masters(ClientError),
}

/// The other side of a target's socket.
pub(crate) struct Link {
    pub(crate) send: mpsc::Sender<ToTarget>,
    pub(crate) receive: mpsc::Receiver<FromTarget>,
}

/// Runs until `shutdown` ends.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    tokio::pin!(shutdown);
    let client = tokio::select! {
        client = masters::connect(&config.masters) => client,
        () = &mut shutdown => return Ok(()),
    };
    let identity = client
        .identity(v1::GetIdentityRequest {})
        .await
        .map_err(AgentError::Masters)?;
    let cluster = masters::number(&identity.cluster).unwrap_or(0);
    let mut state = State::load(&config.directory, cluster)?;
    loop {
        let started = tokio::select! {
            started = begin(&config, &client, &mut state, cluster) => started,
            () = &mut shutdown => return Ok(()),
        };
        let (mut child, link, life) = started?;
        let ended = tokio::select! {
            () = masters::serve(&config, life, link) => true,
            () = &mut shutdown => false,
        };
        if !ended {
            if config.end_target {
                end(&config, &mut child).await;
            }
            return Ok(());
        }
        tracing::warn!(incarnation = state.incarnation, "the target has ended");
        end(&config, &mut child).await;
        sleep(RESTART_PAUSE).await;
    }
}

/// Adopts the target that runs, or starts one.
async fn begin(
    config: &Config,
    client: &Client,
    state: &mut State,
    cluster: u128,
) -> Result<(Option<Child>, Link, Life), AgentError> {
    let node = state.node_id();
    if let Some((link, hello)) = adopt(config).await {
        let incarnation = hello_incarnation(&hello);
        tracing::info!(incarnation, "a target runs already: adopted");
        let life = register(config, client, state, cluster, incarnation, &hello).await?;
        return Ok((None, link, life));
    }
    while !disks::nobody_uses(&config.disks) {
        tracing::warn!("a process still uses a disk of this node: waiting for its end");
        sleep(RESTART_PAUSE).await;
    }
    let request = v1::RegisterRequest {
        cluster: cluster.to_be_bytes().to_vec(),
        node: node.to_be_bytes().to_vec(),
        peer_address: config.listen.to_string(),
        incarnation: 0,
        ended_through: state.incarnation,
        disks: Vec::new(),
    };
    let registered = masters::patiently(|| client.register(request.clone()))
        .await
        .map_err(AgentError::Masters)?;
    state.incarnation = registered.incarnation;
    state.save(&config.directory)?;
    write_target_config(config, state)?;
    let mut child = spawn(config)?;
    let (link, hello) = tokio::select! {
        linked = linked(config) => linked?,
        status = child.wait() => {
            let why = status.map_or_else(|error| error.to_string(), |status| format!("it ended with {status}"));
            let log = config.target_log();
            let last = std::fs::read_to_string(&log).unwrap_or_default();
            let last = last.lines().last().unwrap_or_default();
            return Err(AgentError::Target { why: format!("{why}: {last}"), log: log.display().to_string() });
        }
    };
    tracing::info!(incarnation = state.incarnation, "target started");
    let life = register(config, client, state, cluster, registered.incarnation, &hello).await?;
    Ok((Some(child), link, life))
}

/// Makes a life known with the disks that its target found.
async fn register(
    config: &Config,
    client: &Client,
    state: &mut State,
    cluster: u128,
    incarnation: u64,
    hello: &FromTarget,
) -> Result<Life, AgentError> {
    let node = state.node_id();
    let request = v1::RegisterRequest {
        cluster: cluster.to_be_bytes().to_vec(),
        node: node.to_be_bytes().to_vec(),
        peer_address: config.listen.to_string(),
        incarnation,
        ended_through: incarnation.saturating_sub(1),
        disks: masters::disks_of(hello),
    };
    let registered = masters::patiently(|| client.register(request.clone()))
        .await
        .map_err(AgentError::Masters)?;
    state.incarnation = incarnation;
    state.save(&config.directory)?;
    Ok(Life::new(
        client.clone(),
        cluster,
        node,
        incarnation,
        &registered,
        hello,
    ))
}

fn hello_incarnation(hello: &FromTarget) -> u64 {
    match hello {
        FromTarget::Hello { incarnation, .. } => *incarnation,
        _ => 0,
    }
}

async fn adopt(config: &Config) -> Option<(Link, FromTarget)> {
    let stream = UnixStream::connect(config.socket()).await.ok()?;
    greet(stream).await
}

async fn linked(config: &Config) -> Result<(Link, FromTarget), AgentError> {
    let connect = async {
        loop {
            if let Some(linked) = adopt(config).await {
                return linked;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(START_LIMIT, connect)
        .await
        .map_err(|_| AgentError::Target {
            why: format!("it did not listen within {START_LIMIT:?}"),
            log: config.target_log().display().to_string(),
        })
}

/// Starts the two pumps of a connection and waits for the target's first frame.
async fn greet(stream: UnixStream) -> Option<(Link, FromTarget)> {
    let (mut reader, mut writer) = stream.into_split();
    let (send, mut outgoing) = mpsc::channel::<ToTarget>(QUEUE_MESSAGES);
    let (incoming, mut receive) = mpsc::channel::<FromTarget>(QUEUE_MESSAGES);
    tokio::spawn(async move {
        let mut frame = Vec::new();
        while let Some(message) = outgoing.recv().await {
            frame.clear();
            encode(&message, &mut frame);
            if writer.write_all(&frame).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let mut decoder = Decoder::default();
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = reader.read(&mut bytes).await {
            decoder.push(&bytes[..count]);
            loop {
                match decoder.take::<FromTarget>() {
                    Ok(None) => break,
                    Ok(Some(message)) => {
                        if incoming.send(message).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "the target's frames cannot be read");
                        return;
                    }
                }
            }
        }
    });
    let hello = timeout(Duration::from_secs(5), receive.recv()).await.ok()??;
    Some((Link { send, receive }, hello))
}

fn write_target_config(config: &Config, state: &State) -> Result<(), AgentError> {
    let mut text = format!(
        "# Written by \"redhare node\" for its target.\n[nvme_tcp]\nlisten = [\"{}\"]\n\n[node]\ncluster = \"{}\"\nnode = \"{}\"\nincarnation = {}\nagent_socket = {:?}\n",
        config.listen,
        state.cluster,
        state.node,
        state.incarnation,
        config.socket().display().to_string(),
    );
    for disk in &config.disks {
        let system = |source| AgentError::System {
            what: "cannot draw a random number".to_owned(),
            source,
        };
        let uuid = state::random_id().map_err(system)?;
        text.push_str(&format!(
            "\n[[node.disk]]\npath = {:?}\n",
            disk.path.display().to_string()
        ));
        text.push_str(&format!("new_uuid = \"{uuid:032x}\"\n"));
        if let Some(size) = disk.size {
            text.push_str(&format!("size = \"{}\"\n", size.0));
        }
    }
    let path = config.target_config();
    std::fs::write(&path, text).map_err(|source| AgentError::System {
        what: format!("cannot write {}", path.display()),
        source,
    })
}

fn spawn(config: &Config) -> Result<Child, AgentError> {
    let log = config.target_log();
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .map_err(|source| AgentError::System {
            what: format!("cannot open {}", log.display()),
            source,
        })?;
    // A group of its own: signals for the agent are not the target's.
    Command::new(&config.program)
        .arg("target")
        .arg("--config")
        .arg(config.target_config())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .process_group(0)
        .spawn()
        .map_err(|source| AgentError::System {
            what: format!("cannot start {} target", config.program.display()),
            source,
        })
}

/// Asks the target to end, and kills it if it does not.
async fn end(config: &Config, child: &mut Option<Child>) {
    let Some(child) = child else { return };
    let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(id) = id
        && let Err(error) = kill_process(id, Signal::TERM)
    {
        tracing::debug!(%error, "the target has ended by itself");
    }
    if timeout(END_LIMIT, child.wait()).await.is_err() {
        tracing::warn!("the target does not end: killed");
        let _ = child.kill().await;
    }
    let _ = std::fs::remove_file(config.socket());
}
