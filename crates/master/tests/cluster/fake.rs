//! A master in a thread, and nodes that register, beat, and claim to have done their duties.

use std::path::Path;
use std::time::Duration;

use master::{Client, ClientError, Config, Master, v1};

/// A master in a thread with a runtime of its own.
pub(crate) struct Running {
    port: u16,
    http: Option<std::net::SocketAddr>,
    end: tokio::sync::oneshot::Sender<bool>,
    thread: std::thread::JoinHandle<()>,
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// A timeout of 0 is the default one.
pub(crate) fn config(store: &Path, heartbeat_timeout_ms: u64) -> Config {
    let mut config = Config::new(([127, 0, 0, 1], 0).into(), store.to_path_buf());
    if heartbeat_timeout_ms > 0 {
        config.settings.heartbeat_timeout = Duration::from_millis(heartbeat_timeout_ms);
        config.settings.heartbeat_interval = config.settings.heartbeat_timeout / 10;
    } else {
        config.settings.heartbeat_interval = Duration::from_millis(50);
    }
    config
}

impl Running {
    pub(crate) fn start(store: &Path, heartbeat_timeout_ms: u64) -> Self {
        Self::begin(config(store, heartbeat_timeout_ms))
    }

    /// Where another master was before.
    pub(crate) fn start_at(store: &Path, port: u16) -> Self {
        let mut config = config(store, 0);
        config.listen.set_port(port);
        Self::begin(config)
    }

    pub(crate) fn begin(config: Config) -> Self {
        let (end, ended) = tokio::sync::oneshot::channel();
        let (tell_port, port) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                // An abandoned master's thread closes the store a moment after it was dropped.
                let mut attempts = 0;
                let master = loop {
                    attempts += 1;
                    match Master::start(&config).await {
                        Ok(master) => break master,
                        Err(error) => assert!(attempts < 500, "{error}"),
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                };
                let told = tell_port.send((master.address().port(), master.http_address()));
                told.unwrap();
                let (graceful, abandoned) = tokio::sync::oneshot::channel::<()>();
                let run = master.run(async { drop(abandoned.await) });
                let mut run = std::pin::pin!(run);
                tokio::select! {
                    result = &mut run => result.unwrap(),
                    // Without a graceful end the run is dropped as it stands.
                    is_graceful = ended => if is_graceful.unwrap() {
                        drop(graceful);
                        run.await.unwrap();
                    },
                }
            });
        });
        let (port, http) = port.recv().unwrap();
        Self {
            port,
            http,
            end,
            thread,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where it serves HTTP.
    pub(crate) fn http(&self) -> Option<std::net::SocketAddr> {
        self.http
    }

    /// Ends it as on Ctrl-C.
    pub(crate) fn end(self) {
        self.end.send(true).unwrap();
        self.thread.join().unwrap();
    }

    /// Drops it as it stands.
    pub(crate) fn abandon(self) {
        self.end.send(false).unwrap();
        self.thread.join().unwrap();
    }
}

/// A node's agent that only talks.
pub(crate) struct Fake {
    beats: tokio::task::JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.beats.abort();
    }
}

pub(crate) fn uuid(number: u8) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[15] = number;
    bytes
}

impl Fake {
    pub(crate) async fn start(client: &Client, number: u8) -> Self {
        let disks = vec![v1::Disk {
            uuid: uuid(100 + number),
            capacity_bytes: 1 << 30,
            used_bytes: 4096,
            held_bytes: None,
        }];
        let registered = client
            .register(v1::RegisterRequest {
                node: uuid(number),
                peer_address: format!("127.0.0.1:{}", 4420 + u16::from(number)),
                disks: disks.clone(),
                ..v1::RegisterRequest::default()
            })
            .await
            .unwrap();
        let client = client.clone();
        let beats = tokio::spawn(async move {
            let (mut prepared, mut grown, mut removed) = (Vec::new(), Vec::new(), Vec::new());
            loop {
                let answer = client
                    .heartbeat(v1::HeartbeatRequest {
                        knows_reservations: true,
                        knows_doubt: true,
                        knows_sync_writes: true,
                        cluster: registered.cluster.clone(),
                        node: uuid(number),
                        incarnation: registered.incarnation,
                        disks: disks.clone(),
                        prepared_volumes: prepared,
                        grown_volumes: grown,
                        removed_volumes: removed,
                        ..v1::HeartbeatRequest::default()
                    })
                    .await
                    .unwrap();
                (prepared, removed) = (answer.prepare_volumes, answer.remove_volumes);
                grown = answer.grow_volumes;
                tokio::time::sleep(Duration::from_millis(registered.heartbeat_interval_ms)).await;
            }
        });
        Self { beats }
    }
}

pub(crate) async fn client(port: u16) -> Client {
    // The first address is dead: the second one is found.
    Client::connect(&format!("127.0.0.1:1,127.0.0.1:{port}"))
        .await
        .unwrap()
}

pub(crate) async fn create(
    client: &Client,
    name: &str,
    copies: u32,
) -> Result<v1::CreateVolumeResponse, ClientError> {
    client
        .create_volume(v1::CreateVolumeRequest {
            name: name.to_owned(),
            size_bytes: 60 << 20,
            chunk_bytes: 16 << 20,
            copies,
            ..v1::CreateVolumeRequest::default()
        })
        .await
}

/// Asks until it is so, for at most ten seconds.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
