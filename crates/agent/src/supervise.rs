//! The target's life: start or adopt, watch, and start again.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use proto::client::{Client, ClientError};
use proto::v1;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::disks::Disks;
use crate::link::{self, Hello, Link};
use crate::lock::{self, LIFE_LOCK_VARIABLE, LifeLock, LockError};
use crate::masters::{Ending, Life, Serving, serve};
use crate::policy::{self, Pauses, Seen, Step};
use crate::state::{State, StateError};
use crate::{Config, TRUSTED_VARIABLE, patience, proof, renewal, target_config};

/// How often it is looked whether a target answers.
const POLL: Duration = Duration::from_millis(20);
/// A target that was asked to end is killed after this.
const END_LIMIT: Duration = Duration::from_secs(5);
/// And one that has said nothing for long after this: what does not run does not end in good order either.
const SILENT_END_LIMIT: Duration = Duration::from_secs(1);
/// A long wait is mentioned this often.
const MENTION: Duration = Duration::from_secs(10);
/// Bytes of a unix socket's path (`sockaddr_un`, unix(7)), without the zero at its end.
const SOCKET_PATH_MAX: usize = 107;
/// What a target's log says last is looked for in this much of it.
const LOG_TAIL_BYTES: u64 = 4096;

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
    /// A path that cannot be used.
    #[error("the path {} {why}; give --data or --disk another one", .path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// One node engine for a node.
    #[error("{0}: another node engine of this node runs; end it first, or give --data another directory")]
    Running(LockError),
    /// A lock of ours.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A disk of somebody else's.
    #[error(
        "the disk {} is still in use as a device by another process after {} s; stop that process (\"fuser -v {}\" \
         names it), or name another disk",
        .path.display(), policy::DISK_LIMIT.as_secs(), .path.display()
    )]
    DiskInUse {
        /// The disk.
        path: PathBuf,
    },
    /// What listens at this node's socket is another node's target.
    #[error(
        "the target at {} is of node {node:032x} in cluster {cluster:032x}, not of this node: end it, or give --data \
         another directory", .socket.display()
    )]
    Stranger {
        /// The socket.
        socket: PathBuf,
        /// The node it names.
        node: u128,
        /// The cluster it names.
        cluster: u128,
    },
    /// The target.
    #[error("the target did not start: {why}; its log is {log}")]
    Target {
        /// What is wrong.
        why: String,
        /// Where to look.
        log: String,
    },
    /// Ours cannot be used.
    #[error(transparent)]
    Credentials(ClientError),
    /// They are not a node's.
    #[error(
        "the certificate is that of {role} \"{name}\", not a node's; make one with \"redhare ca issue --role node\""
    )]
    Role {
        /// Whose.
        role: identity::Role,
        /// Whose.
        name: String,
    },
    /// The masters said no.
    #[error("the masters refuse this node: {0}")]
    Masters(ClientError),
    /// The masters said no to a target that runs.
    #[error(
        "the masters refuse the target that runs here as {process}: {source}; end it and start the node again"
    )]
    Adopted {
        /// Which process.
        process: String,
        /// What they said.
        source: ClientError,
    },
}

/// Runs until `shutdown` ends.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    check(&config)?;
    let mut own = LifeLock::take(&config.agent_lock()).map_err(|error| match error {
        LockError::Held { .. } => AgentError::Running(error),
        LockError::File { .. } => AgentError::Lock(error),
    })?;
    own.record(std::process::id())?;
    let mut supervisor = Supervisor {
        disks: Disks::load(&config.directory, &config.disks)?,
        config: &config,
        child: None,
        ended_for: None,
    };
    let result = tokio::select! {
        result = supervisor.work() => result,
        () = shutdown => Ok(()),
        never = renewal::keep_valid(&config) => match never {},
    };
    // Who stops because a target of its own making does not do leaves nothing behind.
    if config.end_target || (result.is_err() && supervisor.child.is_some()) {
        supervisor.end().await?;
    }
    result
}

/// What would fail later and with less to say.
fn check(config: &Config) -> Result<(), AgentError> {
    let socket = config.socket();
    let length = socket.as_os_str().as_bytes().len();
    if length > SOCKET_PATH_MAX {
        return Err(AgentError::Path {
            path: socket,
            why: format!("has {length} bytes, a unix socket's at most {SOCKET_PATH_MAX}"),
        });
    }
    std::fs::create_dir_all(&config.directory).map_err(|source| AgentError::System {
        what: format!("cannot make the node's directory {}", config.directory.display()),
        source,
    })
}

/// The node that our certificate names; none if the masters are spoken with plainly.
fn named(config: &Config) -> Result<Option<u128>, AgentError> {
    let Some(files) = &config.masters.credentials else {
        return Ok(None);
    };
    let credentials = identity::Credentials::load(files).map_err(|error| {
        let why = error.to_string();
        AgentError::Credentials(ClientError::Credentials { why })
    })?;
    let identity = credentials.identity();
    let name = identity.name.parse::<identity::Cluster>().ok();
    match (identity.role, name) {
        (identity::Role::Node, Some(name)) => Ok(Some(u128::from_be_bytes(name.to_bytes()))),
        (role, _) => Err(AgentError::Role {
            role,
            name: identity.name.clone(),
        }),
    }
}

/// The masters have given the node the number of a later life.
fn is_outlived(error: &AgentError) -> bool {
    let (AgentError::Masters(why) | AgentError::Adopted { source: why, .. }) = error else {
        return false;
    };
    matches!(why, ClientError::Outlived { .. })
}

struct Supervisor<'a> {
    config: &'a Config,
    /// The target, if this agent has started it.
    child: Option<Child>,
    disks: Disks,
    /// Why a target was ended that should serve on, and when that was begun.
    ended_for: Option<(String, Instant)>,
}

impl Supervisor<'_> {
    /// Serves one life of the target after the other. Ends only with what a person has to mend.
    async fn work(&mut self) -> Result<(), AgentError> {
        let named = named(self.config)?;
        let client = patience::connect(&self.config.masters).await?;
        let identity = patience::patiently(|| client.identity(v1::GetIdentityRequest {}))
            .await
            .map_err(AgentError::Masters)?;
        let cluster = crate::wire::number(&identity.cluster).unwrap_or(0);
        let mut state = State::load(&self.config.directory, cluster, named)?;
        // Another cluster's masters may come to the same address: what they say of its volumes must not reach this target.
        if let Some(cluster) = identity::Cluster::from_bytes(cluster.to_be_bytes()) {
            client.keep_to(cluster);
        }
        let mut pauses = Pauses::default();
        let (mut pause, mut is_first) = (Duration::ZERO, true);
        loop {
            match self.begin(&client, &mut state, cluster, is_first, pause).await {
                Ok((link, life)) => {
                    is_first = false;
                    let began = Instant::now();
                    if let Some((why, since)) = self.ended_for.take() {
                        tracing::warn!(stage = "process", why, took = ?since.elapsed(), "the target serves in a new process");
                    }
                    match serve(life, link, &mut self.disks).await {
                        Ending::Gone => {
                            tracing::warn!(
                                incarnation = state.incarnation,
                                "the target's connection has ended"
                            );
                            pause = pauses.after(began.elapsed());
                        }
                        // A request for a number that this engine gave up, or one of before, was carried out late: nobody
                        // will hear this life any more.
                        Ending::Outlived(why) => {
                            tracing::error!(
                                why,
                                "the target is ended, since its life is over for the masters"
                            );
                            self.end().await?;
                            pause = pauses.after(began.elapsed());
                        }
                        Ending::Disk(why) => {
                            tracing::error!(why, "the target is ended, for a new process to go on");
                            self.ended_for = Some((why, Instant::now()));
                            self.end().await?;
                            pause = pauses.after(began.elapsed());
                        }
                        Ending::Silent(silent) => {
                            let why = format!("it has said nothing for {} s", silent.as_secs());
                            tracing::error!(
                                why,
                                "the target stands still: it is ended, for a new process to go on"
                            );
                            self.ended_for = Some((why, Instant::now()));
                            self.end_within(SILENT_END_LIMIT).await?;
                            pause = pauses.after(began.elapsed());
                        }
                    }
                }
                Err(error) if !self.is_tried_again(&error, is_first) => return Err(error),
                Err(error) => {
                    // What was started and does not do stands in the way of the next one.
                    self.end_child().await?;
                    pause = pauses.after(Duration::ZERO);
                    tracing::error!(%error, "the target does not serve: tried again in {pause:?}");
                }
            }
        }
    }

    /// Whether another life is tried after this. A disk that was just put back keeps the others from serving no longer than one attempt.
    fn is_tried_again(&mut self, error: &AgentError, is_first: bool) -> bool {
        let is_changed = match error {
            AgentError::Target { why, .. } => self.disks.give_up_putting_back(why),
            _ => false,
        };
        is_changed || !is_first || is_outlived(error)
    }

    /// Adopts the target that runs, or starts one after the last has provably ended. The masters hear of that end
    /// before `pause`.
    async fn begin(
        &mut self,
        client: &Client,
        state: &mut State,
        cluster: u128,
        is_first: bool,
        pause: Duration,
    ) -> Result<(Link, Serving), AgentError> {
        while let Some((link, hello)) = self.find(is_first).await? {
            match self.adopt(client, state, cluster, link, hello).await {
                Err(error) if is_outlived(&error) => {
                    tracing::error!(%error, "the target that runs already is ended, since its life is over for the masters");
                    self.end().await?;
                }
                adopted => return adopted,
            }
        }
        let incarnation = self.report_end(client, state, cluster).await?;
        state.incarnation = incarnation;
        state.save(&self.config.directory)?;
        sleep(pause).await;
        self.disks
            .await_missing(&self.config.disks, policy::MISSING_LIMIT)
            .await?;
        // Only a person who looks on says that a disk may be overwritten: never again for a later life.
        let in_service = self.disks.in_service(&self.config.disks);
        target_config::write(self.config, &in_service, state, self.config.force && is_first)?;
        self.spawn()?;
        let (link, hello) = self.answer().await?;
        tracing::info!(incarnation, "target started");
        self.check_identity(&hello, state, cluster)?;
        let life = self
            .register(client, state, cluster, &hello, false)
            .await?
            .map_err(AgentError::Masters)?;
        Ok((link, life))
    }

    /// The target that runs already; none once every life has provably ended.
    async fn find(&mut self, is_first: bool) -> Result<Option<(Link, Hello)>, AgentError> {
        let began = Instant::now();
        let mut mentioned = began;
        loop {
            if let Some(found) = link::connect(&self.config.socket()).await {
                return Ok(Some(found));
            }
            let process = lock::holder(&self.config.target_lock())?;
            // A disk that is out of service is not opened by the next life: what may still be under way to it changes nothing that
            // anybody reads, and its lock keeps it from being put back before that has ended.
            let in_service = self.disks.in_service(&self.config.disks);
            let disk = proof::in_use(&in_service);
            let step = policy::next(Seen {
                process: process.is_some(),
                disk: disk.is_some(),
                can_do_without: disk.is_some_and(|path| self.disks.can_leave(path)),
                since: began.elapsed(),
                answer_limit: self.answer_limit(),
                is_first,
            });
            match (step, disk) {
                (Step::Start, _) => {
                    self.reap().await;
                    return Ok(None);
                }
                (Step::EndProcess, _) => {
                    tracing::warn!(
                        ?process,
                        "a target of this node lives but does not answer: it is ended"
                    );
                    self.end().await?;
                }
                (Step::LeaveDisk, Some(path)) => self.disks.leave(path),
                (Step::RefuseDisk, Some(path)) => {
                    let path = path.to_owned();
                    return Err(AgentError::DiskInUse { path });
                }
                (_, disk) => {
                    if mentioned.elapsed() >= MENTION {
                        mentioned = Instant::now();
                        tracing::warn!(
                            ?process,
                            ?disk,
                            "waiting for the end of what still uses this node"
                        );
                    }
                    sleep(POLL).await;
                }
            }
        }
    }

    async fn adopt(
        &mut self,
        client: &Client,
        state: &mut State,
        cluster: u128,
        link: Link,
        hello: Hello,
    ) -> Result<(Link, Serving), AgentError> {
        self.check_identity(&hello, state, cluster)?;
        let incarnation = hello.incarnation;
        tracing::info!(incarnation, "a target runs already: adopted");
        self.compare(&hello);
        let life = self
            .register(client, state, cluster, &hello, true)
            .await?
            .map_err(|source| {
                let holder = lock::holder(&self.config.target_lock()).ok().flatten();
                let process = holder.and_then(|holder| holder.process);
                AgentError::Adopted {
                    process: process.map_or("another process".to_owned(), |id| format!("process {id}")),
                    source,
                }
            })?;
        // As a rule it is known: that the node's directory is full, say, then ends nothing.
        if state.incarnation != incarnation {
            state.incarnation = incarnation;
            state.save(&self.config.directory)?;
        }
        Ok((link, life))
    }

    fn check_identity(&self, hello: &Hello, state: &State, cluster: u128) -> Result<(), AgentError> {
        if (hello.cluster, hello.node) == (cluster, state.node_id()) && hello.incarnation > 0 {
            return Ok(());
        }
        Err(AgentError::Stranger {
            socket: self.config.socket(),
            node: hello.node,
            cluster: hello.cluster,
        })
    }

    /// Says where a running target differs from what this agent was told. It goes on as it is: to end it would cost
    /// its copies until they are resynced.
    fn compare(&self, hello: &Hello) {
        let end = "takes effect with the target's next start";
        if hello
            .address
            .parse()
            .is_ok_and(|address: SocketAddr| address != self.config.listen)
        {
            let (listens, told) = (&hello.address, self.config.listen);
            tracing::warn!("the running target listens on {listens}, not on {told}: --listen {end}");
        }
        for disk in self.disks.in_service(&self.config.disks) {
            let path = disk.path.display().to_string();
            if !hello.disks.iter().any(|found| found.path == path) {
                tracing::warn!("the running target does not have the disk {path}: --disk {end}");
            }
        }
    }

    /// Makes a life known with the disks that its target found, and those that are out of service.
    async fn register(
        &mut self,
        client: &Client,
        state: &State,
        cluster: u128,
        hello: &Hello,
        is_adopted: bool,
    ) -> Result<Result<Serving, ClientError>, AgentError> {
        self.disks.new_life(&hello.disks, is_adopted)?;
        let node = state.node_id();
        let found = hello.disks.iter().map(crate::wire::to_wire);
        let request = v1::RegisterRequest {
            cluster: cluster.to_be_bytes().to_vec(),
            node: node.to_be_bytes().to_vec(),
            peer_address: hello.address.clone(),
            incarnation: hello.incarnation,
            ended_through: hello.incarnation.saturating_sub(1),
            disks: found.chain(self.disks.absent(&hello.disks)).collect(),
            rack: self.config.rack.clone(),
        };
        let registered = patience::patiently(|| client.register(request.clone())).await;
        Ok(registered
            .map(|registered| Life::new(client.clone(), cluster, node, (request, &registered), hello)))
    }

    /// Tells the masters that every life so far has ended, and gets the number of the next one.
    async fn report_end(&self, client: &Client, state: &State, cluster: u128) -> Result<u64, AgentError> {
        let request = v1::RegisterRequest {
            cluster: cluster.to_be_bytes().to_vec(),
            node: state.node_id().to_be_bytes().to_vec(),
            peer_address: self.config.listen.to_string(),
            incarnation: 0,
            ended_through: state.incarnation,
            disks: Vec::new(),
            rack: self.config.rack.clone(),
        };
        let registered = patience::patiently(|| client.register(request.clone()))
            .await
            .map_err(AgentError::Masters)?;
        Ok(registered.incarnation)
    }

    fn spawn(&mut self) -> Result<(), AgentError> {
        let config = self.config;
        let log = config.target_log();
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|source| AgentError::System {
                what: format!("cannot open {}", log.display()),
                source,
            })?;
        let mut held = LifeLock::take(&config.target_lock())?;
        // A group of its own: signals for the agent are not the target's.
        let child = Command::new(&config.program)
            .arg("target")
            .arg("--config")
            .arg(config.target_config())
            .args(
                config
                    .metrics
                    .iter()
                    .flat_map(|address| ["--metrics".to_owned(), address.to_string()]),
            )
            .env(TRUSTED_VARIABLE, self.disks.trusted.list())
            .env(LIFE_LOCK_VARIABLE, "")
            .stdin(held.to_child()?)
            .stdout(Stdio::null())
            .stderr(file)
            .process_group(0)
            .spawn()
            .map_err(|source| AgentError::System {
                what: format!("cannot start {} target", config.program.display()),
                source,
            })?;
        let id = child.id();
        self.child = Some(child);
        id.map_or(Ok(()), |id| Ok(held.record(id)?))
    }

    /// In what time a target answers that lives.
    fn answer_limit(&self) -> Duration {
        policy::answer_limit(self.config.stall_limit, self.config.disks.len())
    }

    /// Waits until the target that was just started says who it is.
    async fn answer(&mut self) -> Result<(Link, Hello), AgentError> {
        let socket = self.config.socket();
        let (began, limit) = (Instant::now(), self.answer_limit());
        loop {
            if let Some(found) = link::connect(&socket).await {
                return Ok(found);
            }
            let status = self.child.as_mut().map(Child::try_wait);
            let why = match status {
                Some(Ok(Some(status))) => {
                    self.child = None;
                    let last = last_line(&self.config.target_log());
                    format!("it ended with {status}: {last}")
                }
                Some(Err(error)) => error.to_string(),
                _ if began.elapsed() >= limit => format!("it did not answer within {limit:?}"),
                _ => {
                    sleep(POLL).await;
                    continue;
                }
            };
            let log = self.config.target_log().display().to_string();
            return Err(AgentError::Target { why, log });
        }
    }

    /// Ends the target, whoever started it.
    async fn end(&mut self) -> Result<(), AgentError> {
        self.end_within(END_LIMIT).await
    }

    /// The same; it is killed if it has not ended by itself in that time.
    async fn end_within(&mut self, limit: Duration) -> Result<(), AgentError> {
        let path = self.config.target_lock();
        let is_nameless = lock::holder(&path)?.is_some_and(|holder| holder.process.is_none());
        if let Some(child) = self.child.as_mut().filter(|_| is_nameless) {
            // Nobody could write its number down, for want of room, say: it cannot be found by that.
            drop(child.start_kill());
        }
        let ended = tokio::task::spawn_blocking(move || lock::end(&path, limit)).await;
        match ended {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                let holder = lock::holder(&self.config.target_lock())?;
                tracing::error!(
                    ?holder,
                    "the target does not end, even killed: the kernel holds it"
                );
                return Ok(());
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(error) => tracing::error!(%error, "the target could not be ended"),
        }
        self.reap().await;
        // Its listener is gone; another one replaces the file.
        drop(std::fs::remove_file(self.config.socket()));
        Ok(())
    }

    async fn end_child(&mut self) -> Result<(), AgentError> {
        match self.child {
            Some(_) => self.end().await,
            None => Ok(()),
        }
    }

    /// Collects the child's status, which has ended.
    async fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            match child.wait().await {
                Ok(status) => tracing::info!(%status, "the target has ended"),
                Err(error) => tracing::warn!(%error, "the target's status is lost"),
            }
        }
    }
}

/// The last thing a log says, without the colours of a terminal.
fn last_line(path: &std::path::Path) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("its log is empty").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(directory: String) -> Config {
        Config {
            masters: "".into(),
            renews_credentials: false,
            listen: "127.0.0.1:1".parse().unwrap(),
            disks: Vec::new(),
            rack: String::new(),
            directory: directory.into(),
            program: PathBuf::new(),
            end_target: false,
            metrics: None,
            scrub_every: None,
            stall_limit: None,
            force: false,
        }
    }

    #[test]
    fn an_engine_whose_first_target_does_not_start_with_a_disk_that_was_put_back_tries_without_it() {
        let directory = tempfile::tempdir().unwrap();
        let configured = ["a", "b"].map(|name| crate::Disk {
            path: directory.path().join(name),
            size: None,
        });
        let found = [0, 1].map(|at| agentlink::Disk {
            uuid: at + 1,
            path: configured[at as usize].path.display().to_string(),
            capacity_bytes: 1 << 30,
            free_bytes: 0,
        });
        let mut disks = Disks::load(directory.path(), &configured).unwrap();
        disks.new_life(&found, false).unwrap();
        disks.note(&[agentlink::DiskHealth {
            path: found[1].path.clone(),
            left_out: Some("it stands".to_owned()),
            ..agentlink::DiskHealth::default()
        }]);
        std::fs::write(&configured[1].path, "").unwrap();
        assert!(disks.restore(&[2u128.to_be_bytes().to_vec()], &[7]));
        let config = config(String::new());
        let mut supervisor = Supervisor {
            config: &config,
            child: None,
            disks,
            ended_for: None,
        };
        let other = AgentError::DiskInUse { path: PathBuf::new() };
        assert!(!supervisor.is_tried_again(&other, true));
        assert_eq!(supervisor.disks.in_service(&configured).len(), 2);
        let target = AgentError::Target {
            why: "it did not answer within 60s".to_owned(),
            log: String::new(),
        };
        assert!(supervisor.is_tried_again(&target, true));
        let left = supervisor.disks.in_service(&configured);
        assert_eq!(left.len(), 1, "{left:?}");
        // Nothing is left that could be done without.
        assert!(!supervisor.is_tried_again(&target, true));
        assert!(supervisor.is_tried_again(&target, false));
    }

    #[test]
    fn a_directory_too_long_for_a_socket_is_refused_with_the_numbers() {
        let error = check(&config(format!("/{}", "d".repeat(100))))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("has 113 bytes, a unix socket's at most 107; give --data"),
            "{error}"
        );
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("a/b");
        check(&config(made.display().to_string())).unwrap();
        assert!(made.is_dir());
    }

    #[test]
    fn the_last_line_of_a_log_is_found_in_a_long_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert_eq!(last_line(&path), "its log is empty");
        std::fs::write(&path, format!("{}\nthe reason\n\n", "x".repeat(9000))).unwrap();
        assert_eq!(last_line(&path), "the reason");
    }
}
