//! `redhare bench masters`: what a large cluster costs a master.
//!
//! Two measurements on one store, the embedded one, which is on the disk that the directory is on. First the real
//! controller in this process, by a clock of its own: it places the chunks, and handles the loss of a node. Then a real
//! master process on the same store, and in this process an agent for each node, which watches its map and says that it
//! lives, over a connection of its own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bench::process::Server;
use bench::report::{Bar, Row};
use clap::Args;
use control::{
    Controller, CreateVolume, Disk, DiskId, Heartbeat, Incarnation, NodeId, Registration, Scope, Settings,
    Uuid, VolumeState,
};
use foundation::ByteCount;
use master::v1;
use master::{Client, ClientError, RedbStore};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{Failure, Output};

/// Chunks of a volume, and bytes of a chunk.
const VOLUME_CHUNKS: u64 = 10_000;
const CHUNK: ByteCount = ByteCount(256 << 20);
const COPIES: u64 = 3;
const DISKS: u64 = 2;
/// How full the disks are in the mean once all chunks are placed.
const FILL: f64 = 0.5;
/// How often a master does what time asks of it.
const TICK: Duration = Duration::from_millis(250);
/// Ticks after which a node's loss that is not handled is a failure.
const TICKS_MAX: usize = 1000;
/// Ticks after which a master knows where all copies are.
const TICKS_SETTLED: usize = 32;
/// Agents that connect at a time.
const CONNECTING: usize = 32;
/// How often an agent tells of its disks, and of what volumes use.
const NEWS_INTERVAL: Duration = Duration::from_secs(5);
/// All agents must know their maps after this.
const MAPS_LIMIT: Duration = Duration::from_secs(300);

const LOSS_SECONDS: f64 = 5.0;
const IMBALANCE_PERCENT: f64 = 5.0;
const PROCESSOR_PERCENT: f64 = 10.0;

/// How large the cluster is.
#[derive(Args)]
#[command(after_help = "Example:\n  redhare bench masters --nodes 100 --chunks 100000 --seconds 5")]
pub(crate) struct MastersArguments {
    /// Nodes, half of them with disks twice as large
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(4..=5000))]
    nodes: u32,
    /// Chunks of three copies
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    chunks: u64,
    /// How long the heartbeats' cost is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// A directory that is made for this and removed
    #[arg(long, value_name = "DIR", default_value = ".redhare/bench-masters")]
    data: PathBuf,
    /// Fail if a bar is missed
    #[arg(long)]
    check: bool,
}

impl Default for MastersArguments {
    fn default() -> Self {
        Self {
            nodes: 1000,
            chunks: 1_000_000,
            seconds: 20,
            data: PathBuf::from(".redhare/bench-masters"),
            check: false,
        }
    }
}

pub(super) fn run(arguments: &MastersArguments, output: &Output) -> Result<(), Failure> {
    let rows = rows(arguments)?;
    output.print(&rows, || super::report::describe(&rows));
    if arguments.check {
        return super::report::check(&rows, output);
    }
    Ok(())
}

/// All rows; takes minutes.
pub(super) fn rows(arguments: &MastersArguments) -> Result<Vec<Row>, Failure> {
    let scratch = super::scratch::Scratch::new(&arguments.data)?;
    let store = scratch.path().join("store");
    let (mut rows, lives) = Cluster::build(arguments, &store)?.measure(arguments)?;
    rows.extend(agents(arguments, &store, lives)?);
    Ok(rows)
}

/// A bar on the terminal, and nothing where there is none.
fn counting(total: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {eta}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(what)
}

fn node(number: u32) -> NodeId {
    NodeId(Uuid(u128::from(number) + 1))
}

/// Two disks, large enough that all copies together fill half of them.
fn disks(arguments: &MastersArguments, number: u32) -> Vec<Disk> {
    let shares = f64::from(arguments.nodes) * 1.5;
    let each = (arguments.chunks * COPIES * CHUNK.0) as f64 / FILL / shares / DISKS as f64;
    let capacity = each as u64 * u64::from(1 + number % 2);
    (0..DISKS)
        .map(|disk| Disk {
            id: DiskId(Uuid((u128::from(number) + 1) << 8 | u128::from(disk))),
            capacity: ByteCount(capacity),
            used: ByteCount(0),
            held: None,
        })
        .collect()
}

/// The controller in this process, and the nodes it has.
struct Cluster {
    control: Controller<RedbStore>,
    lives: BTreeMap<u32, Incarnation>,
    now: foundation::Instant,
    placing: Duration,
}

impl Cluster {
    /// A cluster with all its chunks placed.
    fn build(arguments: &MastersArguments, directory: &Path) -> Result<Self, Failure> {
        let store = RedbStore::open(directory).map_err(Failure::new)?;
        let now = foundation::Instant::from_nanos(1);
        let mut control = Controller::open(store, Settings::default(), 1, now).map_err(Failure::new)?;
        let mut lives = BTreeMap::new();
        for number in 0..arguments.nodes {
            let registration = Registration {
                cluster: None,
                node: node(number),
                peer_address: format!("10.{}.{}.1:4420", number / 256, number % 256),
                incarnation: None,
                ended_through: Incarnation(0),
                disks: disks(arguments, number),
                rack: None,
            };
            let registered = control.register(&registration, now).map_err(Failure::new)?;
            lives.insert(number, registered.incarnation);
        }
        let mut cluster = Self {
            control,
            lives,
            now,
            placing: Duration::ZERO,
        };
        let bar = counting(arguments.chunks, "placing chunks");
        let mut placed = 0;
        while placed < arguments.chunks {
            let chunks = VOLUME_CHUNKS.min(arguments.chunks - placed);
            let name = format!("volume-{placed}");
            let began = Instant::now();
            let volume = CreateVolume::new(name, ByteCount(chunks * CHUNK.0));
            let made = cluster.control.create_volume(&volume, cluster.now);
            let mut made = made.map_err(Failure::new)?;
            // The chunks beyond the first few thousand get their places with the master's ticks.
            while made.state == VolumeState::Creating {
                cluster.control.tick(cluster.now).map_err(Failure::new)?;
                made = cluster.control.volume(made.number).map_err(Failure::new)?;
            }
            cluster.placing += began.elapsed();
            placed += chunks;
            bar.set_position(placed);
            // What is not heard counts as gone.
            cluster.hear(arguments, |_| true)?;
        }
        bar.finish_and_clear();
        cluster.pass(TICK);
        cluster.hear(arguments, |_| true)?;
        cluster.control.tick(cluster.now).map_err(Failure::new)?;
        let volumes = cluster.control.volumes().map_err(Failure::new)?;
        match volumes.iter().find(|volume| volume.state != VolumeState::Ready) {
            None => Ok(cluster),
            Some(volume) => Err(Failure::new(format!(
                "volume {} is {:?} though every node said that it has its copies",
                volume.name, volume.state
            ))),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// These nodes say that they live, and that they have all copies they should have.
    fn hear(&mut self, arguments: &MastersArguments, living: impl Fn(u32) -> bool) -> Result<(), Failure> {
        let volumes = self.control.volumes().map_err(Failure::new)?;
        let preparing = volumes
            .iter()
            .filter(|volume| volume.state == VolumeState::Preparing);
        let prepared: Vec<_> = preparing.map(|volume| volume.number).collect();
        for (&number, &incarnation) in self.lives.iter().filter(|(number, _)| living(**number)) {
            let heartbeat = Heartbeat {
                cluster: self.control.cluster(),
                node: node(number),
                incarnation,
                ended_through: Incarnation(incarnation.0 - 1),
                disks: disks(arguments, number),
                prepared: prepared.clone(),
                grown: Vec::new(),
                removed: Vec::new(),
                resyncs: Vec::new(),
                copies: Vec::new(),
                names_copies: false,
                removed_copies: Vec::new(),
                moved_copies: Vec::new(),
                moves_disks: false,
                flattening: Vec::new(),
                reserves: true,
                doubts: true,
                syncs: None,
                kept: None,
                snapshots: Default::default(),
            };
            self.control
                .heartbeat(&heartbeat, self.now)
                .map_err(Failure::new)?;
        }
        Ok(())
    }

    /// In-sync copies that the masters count on a node.
    fn copies_on(&self, lost: NodeId) -> Result<usize, Failure> {
        let mut count = 0;
        let mut from = None;
        loop {
            let part = self
                .control
                .snapshot(Scope::Node(lost), from, 4096)
                .map_err(Failure::new)?;
            let copies = part.chunks.iter().flat_map(|(_, chunk)| &chunk.copies);
            count += copies
                .filter(|copy| copy.node == lost && copy.incarnation.is_some())
                .count();
            match part.next {
                None => return Ok(count),
                next => from = next,
            }
        }
    }

    fn measure(
        mut self,
        arguments: &MastersArguments,
    ) -> Result<(Vec<Row>, BTreeMap<u32, Incarnation>), Failure> {
        let chunks = arguments.chunks;
        let status = self.control.status(self.now).map_err(Failure::new)?;
        let disks = status.nodes.iter().flat_map(|node| &node.disks);
        let filled = disks.map(|(disk, allocated)| allocated.0 as f64 / disk.capacity.0 as f64);
        let worst = filled
            .map(|filled| (filled / FILL - 1.0).abs())
            .fold(0.0, f64::max);
        // As in a cluster that has run for a while, the master knows where all copies are.
        for _ in 0..TICKS_SETTLED {
            self.pass(TICK);
            self.hear(arguments, |_| true)?;
            self.control.tick(self.now).map_err(Failure::new)?;
        }
        let lost = 0;
        let before = self.copies_on(node(lost))?;
        // The last heartbeats are older than that now, but for the others'.
        let timeout = self.control.settings().heartbeat_timeout;
        self.pass(timeout + TICK);
        self.hear(arguments, |number| number != lost)?;
        let (mut spent, mut longest, mut ticks) = (Duration::ZERO, Duration::ZERO, 0);
        while self.copies_on(node(lost))? > 0 {
            let began = Instant::now();
            self.control.tick(self.now).map_err(Failure::new)?;
            let took = began.elapsed();
            (spent, longest, ticks) = (spent + took, longest.max(took), ticks + 1);
            if ticks == TICKS_MAX {
                return Err(Failure::new(format!(
                    "{} of {before} copies of a lost node are still counted after {ticks} looks",
                    self.copies_on(node(lost))?
                )));
            }
            self.pass(TICK);
            self.hear(arguments, |number| number != lost)?;
        }
        let nodes = arguments.nodes;
        let rate = chunks as f64 / self.placing.as_secs_f64();
        let rows = vec![
            Row::new(
                "masters: placement, the worst disk",
                worst * 100.0,
                "% off its share",
                Some(Bar::Below(IMBALANCE_PERCENT)),
            )
            .with_note(format!(
                "{chunks} chunks of {COPIES} copies on {nodes} nodes of two sizes; {rate:.0} chunks placed a second, durably"
            )),
            Row::new(
                "masters: a node's loss",
                spent.as_secs_f64(),
                "s",
                Some(Bar::Below(LOSS_SECONDS)),
            )
            .with_note(format!(
                "{before} copies left out in {ticks} looks, the longest {:.2} s; from when the node counts as gone",
                longest.as_secs_f64()
            )),
        ];
        Ok((rows, self.lives))
    }
}

/// A real master on the store, and an agent's calls for each node.
fn agents(
    arguments: &MastersArguments,
    store: &Path,
    lives: BTreeMap<u32, Incarnation>,
) -> Result<Vec<Row>, Failure> {
    let cluster = {
        let store = RedbStore::open(store).map_err(Failure::new)?;
        let now = foundation::Instant::from_nanos(1);
        Controller::open(store, Settings::default(), 1, now)
            .map_err(Failure::new)?
            .cluster()
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7_498));
    let own = std::env::current_exe().map_err(Failure::new)?;
    let command = [
        own.display().to_string(),
        "master".to_owned(),
        "--listen".to_owned(),
        address.to_string(),
        "--store".to_owned(),
        store.display().to_string(),
    ];
    let master = Server::start("0", &command).map_err(Failure::new)?;
    let interval = Settings::default().heartbeat_interval;
    let runtime = crate::commands::cluster::runtime()?;
    runtime.block_on(async {
        let began = Instant::now();
        let cpu = |master: &Server| master.cpu_time().map_err(Failure::new);
        let (knows, mut known) = tokio::sync::mpsc::unbounded_channel();
        let connecting = std::sync::Arc::new(tokio::sync::Semaphore::new(CONNECTING));
        let mut agents = tokio::task::JoinSet::new();
        for (&number, &incarnation) in &lives {
            let beat = v1::HeartbeatRequest {
                cluster: cluster.0.to_bytes().to_vec(),
                node: node(number).0.to_bytes().to_vec(),
                incarnation: incarnation.0,
                ended_through: incarnation.0 - 1,
                disks: disks(arguments, number)
                    .iter()
                    .map(|disk| v1::Disk {
                        uuid: disk.id.0.to_bytes().to_vec(),
                        capacity_bytes: disk.capacity.0,
                        used_bytes: disk.used.0,
                        held_bytes: None,
                    })
                    .collect(),
                knows_reservations: true,
                knows_sync_writes: true,
                complete_snapshots: Some(0),
                kept_copies: Some(v1::KeptCopies::default()),
                ..v1::HeartbeatRequest::default()
            };
            let (knows, connecting) = (knows.clone(), connecting.clone());
            let news = News::of(arguments, number);
            agents.spawn(agent(address, (beat, news), interval, knows, connecting));
        }
        drop(knows);
        let bar = counting(u64::from(arguments.nodes), "agents reading their maps");
        let mut chunks_known = 0;
        for ready in 1..=u64::from(arguments.nodes) {
            tokio::select! {
                Some(count) = known.recv() => chunks_known += count,
                Some(ended) = agents.join_next() => {
                    let why = ended.map_err(Failure::new)?.map_or_else(|why| why.to_string(), |()| "its watch ended".to_owned());
                    return Err(Failure::new(format!("an agent's calls failed: {why}")));
                }
                () = tokio::time::sleep(MAPS_LIMIT.saturating_sub(began.elapsed())) => {
                    return Err(Failure::new(format!(
                        "{} of {} agents knew their maps after {MAPS_LIMIT:?}", ready - 1, arguments.nodes
                    )));
                }
            }
            bar.set_position(ready);
        }
        bar.finish_and_clear();
        let (maps, start_cpu) = (began.elapsed(), cpu(&master)?);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (before, began) = (cpu(&master)?, Instant::now());
        tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
        let spent = cpu(&master)?.saturating_sub(before);
        let elapsed = began.elapsed();
        if let Some(Ok(ended)) = agents.try_join_next() {
            let why = ended.map_or_else(|why| why.to_string(), |()| "its watch ended".to_owned());
            return Err(Failure::new(format!("an agent's calls failed: {why}")));
        }
        let client = Client::connect(&address.to_string()).await.map_err(Failure::new)?;
        let status = client.status(v1::GetStatusRequest {}).await.map_err(Failure::new)?;
        let gone = status.nodes.iter().filter(|node| !node.alive).count();
        let degraded: u64 = status.volumes.iter().map(|volume| u64::from(volume.degraded_chunks)).sum();
        let resident = bench::process::resident_bytes(master.id()).map_err(Failure::new)?;
        let share = spent.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
        let beats = f64::from(arguments.nodes) / interval.as_secs_f64();
        let each = spent.as_secs_f64() / elapsed.as_secs_f64() / beats * 1e6;
        let nodes = arguments.nodes;
        Ok(vec![
            Row::new(
                "masters: heartbeats and watches of all nodes",
                share,
                "% of a core",
                Some(Bar::Below(PROCESSOR_PERCENT)),
            )
            .with_note(format!(
                "{nodes} agents, {beats:.0} heartbeats a second, {each:.0} us of CPU each, the master's own looks included; {:.0} MiB \
                 resident; {gone} nodes count as gone, {degraded} chunks have fewer copies than they should",
                resident as f64 / f64::from(1 << 20)
            )),
            Row::new(
                "masters: a new master until every node knows its map",
                maps.as_secs_f64(),
                "s",
                None,
            )
            .with_note(format!(
                "{chunks_known} copies in their maps; {:.1} s of the master's CPU",
                start_cpu.as_secs_f64()
            )),
        ])
    })
}

/// What an agent says beside that it lives, of disks and of what volumes use, as often as a real one does.
struct News {
    disk_health: Vec<v1::DiskHealth>,
    samples: Vec<v1::DiskSample>,
    uses: v1::VolumeUses,
    due: Instant,
}

impl News {
    /// A node's disks are well; it samples its own and those of two neighbours, and has copies of every volume.
    fn of(arguments: &MastersArguments, number: u32) -> Self {
        let health = |disk: &Disk| v1::DiskHealth {
            uuid: disk.id.0.to_bytes().to_vec(),
            state: v1::DiskState::Ok.into(),
            path: format!("/dev/disk/by-id/nvme-{}", disk.id),
            resets: vec![0; 4],
            ..v1::DiskHealth::default()
        };
        let sampled = [
            number,
            (number + 1) % arguments.nodes,
            (number + 2) % arguments.nodes,
        ];
        let samples = sampled.into_iter().flat_map(|other| {
            let disks = disks(arguments, other);
            disks.into_iter().map(move |disk| v1::DiskSample {
                node: node(other).0.to_bytes().to_vec(),
                disk: disk.id.0.to_bytes().to_vec(),
                disk_us: 80,
                disk_p99_us: 200,
                answer_us: 150,
                answer_p99_us: 400,
                samples: 1000,
                ..v1::DiskSample::default()
            })
        });
        let volumes = arguments.chunks.div_ceil(VOLUME_CHUNKS) as u32;
        let volume_use = |volume| v1::VolumeUse {
            volume,
            used_bytes: CHUNK.0,
            held_bytes: 0,
        };
        // One after the other, as agents that were not started together.
        let due = NEWS_INTERVAL * number / arguments.nodes.max(1);
        Self {
            disk_health: disks(arguments, number).iter().map(health).collect(),
            samples: samples.collect(),
            uses: v1::VolumeUses {
                volumes: (1..=volumes).map(volume_use).collect(),
            },
            due: Instant::now() + due,
        }
    }

    /// The next heartbeat.
    fn with(&mut self, beat: &v1::HeartbeatRequest) -> v1::HeartbeatRequest {
        let mut beat = beat.clone();
        if Instant::now() >= self.due {
            self.due = Instant::now() + NEWS_INTERVAL;
            beat.disk_health.clone_from(&self.disk_health);
            beat.samples.clone_from(&self.samples);
            beat.uses = Some(self.uses.clone());
            beat.damage = Some(v1::Damage {
                snapshots: Vec::new(),
                copies: Vec::new(),
                scrub: Some(v1::Scrub::default()),
            });
            beat.releases = Some(v1::Releases {
                engine: foundation::RELEASE.to_owned(),
                target: foundation::RELEASE.to_owned(),
            });
        }
        beat
    }
}

/// What an agent calls: it watches its map, says when it knows it, and goes on saying that it lives.
async fn agent(
    address: SocketAddr,
    (mut beat, mut news): (v1::HeartbeatRequest, News),
    interval: Duration,
    knows: tokio::sync::mpsc::UnboundedSender<usize>,
    connecting: std::sync::Arc<tokio::sync::Semaphore>,
) -> Result<(), ClientError> {
    let client = {
        let _turn = connecting.acquire().await;
        loop {
            match Client::connect(&address.to_string()).await {
                Ok(client) => break client,
                Err(error @ ClientError::Address { .. }) => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let scope = v1::watch_request::Scope::Node(beat.node.clone());
    let mut beats = tokio::time::interval(interval);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    client.heartbeat(beat.clone()).await?;
    // As an agent does: heartbeats go on while the map is being read.
    let watching = {
        let client = client.clone();
        tokio::spawn(async move {
            let mut stream = client.watch(scope, 0).await?;
            let mut chunks = 0;
            let mut knows = Some(knows);
            while let Ok(Some(response)) = stream.message().await {
                chunks += response.chunks.len();
                if response.complete
                    && let Some(knows) = knows.take()
                {
                    // Nobody counts any more once all are ready.
                    let _ = knows.send(chunks);
                }
            }
            Ok::<(), ClientError>(())
        })
    };
    loop {
        beats.tick().await;
        if watching.is_finished() {
            return watching.await.unwrap_or(Ok(()));
        }
        let answer = client.heartbeat(news.with(&beat)).await?;
        if let Some(list) = answer.complete_snapshots {
            beat.complete_snapshots = Some(list.version);
        }
    }
}
