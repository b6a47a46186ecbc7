//! `redhare bench volume`: what a volume costs a reader, with checksums and without, beside a bare target on the same disk.
//!
//! One core a side: a node with its disk, and a target with a file, on processor 0; this program's child on processor 1, by TCP.
//! Both files are read past the page cache.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bdev::{BlockDevice, Channel, ChannelExt};
use bench::paired::quantile;
use bench::process::{Priority, Server, cpu_time, pinned, run_timed};
use bench::report::{Bar, Row};
use clap::Args;
use client::{Nearby, Session};
use fabrics::initiator::{ConnectOptions, Controller};
use foundation::{Lba, Random};
use protocols::nvme::Nqn;
use reactor::BufferPool;

use super::scratch::Scratch;
use super::target::{HOST_NQN, NQN, wait_for_listeners};
use super::up::{Place, Up};
use crate::output::{Failure, Output};

/// The promises: shares of the bare target's reads.
const CHECKED_BAR: f64 = 0.9;
const UNCHECKED_BAR: f64 = 0.95;
const READ_BYTES: usize = 4096;
const DEPTH: usize = 32;
/// Of one write while the volumes are filled.
const FILL_BYTES: usize = 256 << 10;
/// What a node keeps beside its volumes, and room for it to choose.
const ROOM_BYTES: u64 = 2 << 30;
/// The two volumes: with checksums and without.
const VOLUMES: [&str; 2] = ["checked", "unchecked"];

/// How much, and how long.
#[derive(Args)]
#[command(after_help = "Needs two CPUs and three times --mib of the disk.
Example:
  redhare bench volume --rounds 10")]
pub(crate) struct VolumeArguments {
    /// Rounds of three slices: the bare target, the volume with checksums, the one without
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Length of a slice, in milliseconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    milliseconds: u64,
    /// Size of each volume, and of the bare target's file, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(64..=65_536))]
    mib: u64,
    /// The master's port; the next one and the one after that are used as well
    #[arg(long, default_value_t = 7480, value_parser = clap::value_parser!(u16).range(1..=65_000))]
    port: u16,
    /// A directory that is made for this, and removed
    #[arg(long, value_name = "DIR", default_value = ".redhare/bench-volume")]
    data: PathBuf,
    /// Measure the target there and the cluster's volumes, which this command started
    #[arg(long, hide = true)]
    connect: Option<SocketAddr>,
    /// The processes of all servers
    #[arg(long, hide = true, value_delimiter = ',')]
    servers: Vec<u32>,
}

impl VolumeArguments {
    pub(super) fn with(rounds: usize) -> Self {
        Self {
            rounds: u16::try_from(rounds).unwrap_or(u16::MAX).max(1),
            milliseconds: 300,
            mib: 1024,
            port: 7480,
            data: PathBuf::from(".redhare/bench-volume"),
            connect: None,
            servers: Vec::new(),
        }
    }

    fn bytes(&self) -> u64 {
        self.mib << 20
    }
}

/// Of the bare target, the volume with checksums, and the one without: medians.
#[derive(serde::Serialize, serde::Deserialize)]
struct Measured {
    rounds: usize,
    reads_per_second: [f64; 3],
    cpu_us: [f64; 3],
    /// Of a round's volume and bare target.
    ratios: [f64; 2],
    /// The same, a quarter and three quarters of the rounds.
    quartiles: [(f64, f64); 2],
}

pub(crate) fn run(arguments: &VolumeArguments, output: &Output) -> Result<(), Failure> {
    if let Some(address) = arguments.connect {
        let measured = measure(address, arguments)?;
        output.print(&measured, || describe(&measured));
        return Ok(());
    }
    let rows = rows(arguments)?;
    output.print(&rows, || super::report::describe(&rows));
    super::report::check(&rows, output)
}

/// Starts the servers, and measures them from another process.
pub(super) fn rows(arguments: &VolumeArguments) -> Result<Vec<Row>, Failure> {
    let scratch = Scratch::new(&arguments.data)?;
    let own = std::env::current_exe()
        .map_err(Failure::new)?
        .display()
        .to_string();
    let bytes = arguments.bytes().to_string();
    let place = Place {
        nodes: 1,
        on: Some((Priority::best(), "0")),
    };
    let disk_bytes = 2 * arguments.bytes() + arguments.bytes() / 4 + ROOM_BYTES;
    let up = Up::start_at(
        &place,
        &scratch.path().join("cluster"),
        arguments.port,
        disk_bytes,
    )?;
    for (volume, checksums) in VOLUMES.into_iter().zip(["on", "off"]) {
        let create = ["volume", "create", volume, "--size", &bytes, "--copies", "1"];
        up.redhare(&[&create[..], &["--checksums", checksums]].concat())?;
    }
    let port = arguments.port + 2;
    let config = scratch.path().join("target.toml");
    let file = scratch.path().join("bare");
    let text = format!(
        "[nvme_tcp]\nlisten = [\"127.0.0.1:{port}\"]\n\n[[subsystem]]\nnqn = \"{NQN}\"\n\n[[subsystem.namespace]]\nnsid = 1\nfile = \"{}\"\n\
         size = \"{bytes}\"\n",
        file.display()
    );
    std::fs::write(&config, text).map_err(Failure::new)?;
    let serve = [&own, "target", "--config", &config.display().to_string()].map(str::to_owned);
    let bare = Server::start_at(Priority::best(), "0", &serve).map_err(Failure::new)?;
    wait_for_listeners(&[port])?;
    let servers: Vec<String> = up
        .processes()?
        .into_iter()
        .chain([bare.id()])
        .map(|id| id.to_string())
        .collect();
    let words = [
        own.as_str(),
        "--json",
        "bench",
        "volume",
        "--connect",
        &SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string(),
        "--servers",
        &servers.join(","),
        "--rounds",
        &arguments.rounds.to_string(),
        "--milliseconds",
        &arguments.milliseconds.to_string(),
        "--mib",
        &arguments.mib.to_string(),
        "--port",
        &arguments.port.to_string(),
    ]
    .map(str::to_owned);
    let mut child = pinned(Priority::best(), "1", &words);
    child.env("RUST_LOG", "error").env_remove("REDHARE_CREDENTIALS");
    let (text, _) = run_timed(&mut child).map_err(Failure::new)?;
    let measured: Measured = serde_json::from_str(&text).map_err(Failure::new)?;
    let row = |index: usize, name: &str, bar: f64| {
        let name = format!("4 KiB reads of a volume {name}, {DEPTH} in flight, one core a side");
        let bar = Some(Bar::AtLeast(bar));
        Row::new(name, measured.ratios[index], "of the bare target's", bar)
    };
    Ok(vec![
        row(0, "with checksums", CHECKED_BAR).with_note(describe(&measured)),
        row(1, "without checksums", UNCHECKED_BAR),
    ])
}

fn describe(measured: &Measured) -> String {
    let side = |index: usize| {
        format!(
            "{:.0} /s and {:.2} us of CPU each (both sides)",
            measured.reads_per_second[index], measured.cpu_us[index]
        )
    };
    let spread = |index: usize| {
        let (low, high) = measured.quartiles[index];
        format!(
            "half of the {} rounds between {low:.2} and {high:.2}",
            measured.rounds
        )
    };
    format!(
        "bare target {}; with checksums {}, {}; without {}, {}",
        side(0),
        side(1),
        spread(0),
        side(2),
        spread(1)
    )
}

fn measure(address: SocketAddr, arguments: &VolumeArguments) -> Result<Measured, Failure> {
    let master = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port)).to_string();
    let session = |volume: &str| Session::connect(master.as_str(), volume).map_err(Failure::new);
    let sessions = [session(VOLUMES[0])?, session(VOLUMES[1])?];
    let measured = reactor::run(&reactor::Config::default(), async {
        let name = |text: &str| text.parse::<Nqn>().map_err(Failure::new);
        let connect = ConnectOptions::new(address, name(NQN)?, name(HOST_NQN)?, [0xbe; 16]);
        let controller = Controller::connect(connect).await.map_err(Failure::new)?;
        let bare: Rc<dyn Channel> = Rc::new(controller.open_namespace(1).await.map_err(Failure::new)?);
        let mut channels = vec![bare];
        let devices = sessions.each_ref().map(|session| session.device(Nearby::Tcp));
        for device in &devices {
            channels.push(device.open_channel().map_err(Failure::new)?);
        }
        for channel in &channels {
            fill(channel, arguments.bytes()).await?;
        }
        in_turns(&channels, arguments).await
    });
    measured.map_err(Failure::new)?
}

/// Writes all of a device.
pub(super) async fn fill(channel: &Rc<dyn Channel>, bytes: u64) -> Result<(), Failure> {
    let mut random = Random::from_seed(1);
    let blocks_each = FILL_BYTES as u64 / u64::from(channel.geometry().block_bytes);
    for piece in 0..bytes / FILL_BYTES as u64 {
        let pool = BufferPool::current();
        let mut buffer = pool.allocate(FILL_BYTES).await.map_err(Failure::new)?;
        random.fill(&mut buffer);
        let written = channel.write(Lba(piece * blocks_each), buffer.freeze()).await;
        written.map_err(Failure::new)?;
    }
    channel.flush().await.map_err(Failure::new)
}

async fn in_turns(channels: &[Rc<dyn Channel>], arguments: &VolumeArguments) -> Result<Measured, Failure> {
    let slice = Duration::from_millis(arguments.milliseconds);
    let spent = || -> Result<Duration, Failure> {
        let all = arguments.servers.iter().copied().chain([std::process::id()]);
        all.map(cpu_time)
            .sum::<Result<Duration, _>>()
            .map_err(Failure::new)
    };
    let mut rates = [const { Vec::new() }; 3];
    let mut cpu = [const { Vec::new() }; 3];
    for round in 0..usize::from(arguments.rounds) {
        for turn in 0..channels.len() {
            let side = (round + turn) % channels.len();
            let before = spent()?;
            let (reads, took) = read(&channels[side], arguments.bytes(), slice, round as u64).await?;
            cpu[side].push(spent()?.saturating_sub(before).as_secs_f64() * 1e6 / reads);
            rates[side].push(reads / took.as_secs_f64());
        }
    }
    let ratios = |side: usize| -> Vec<f64> {
        let pairs = rates[side].iter().zip(&rates[0]);
        pairs.map(|(volume, bare)| volume / bare).collect()
    };
    let ratios = [ratios(1), ratios(2)];
    let at = |values: &Vec<f64>, share: f64| quantile(values.clone(), share);
    Ok(Measured {
        rounds: rates[0].len(),
        reads_per_second: rates.each_ref().map(|values| at(values, 0.5)),
        cpu_us: cpu.each_ref().map(|values| at(values, 0.5)),
        ratios: ratios.each_ref().map(|values| at(values, 0.5)),
        quartiles: ratios
            .each_ref()
            .map(|values| (at(values, 0.25), at(values, 0.75))),
    })
}

/// Reads random blocks, [`DEPTH`] at a time; how many, and in what time.
async fn read(
    channel: &Rc<dyn Channel>,
    bytes: u64,
    slice: Duration,
    seed: u64,
) -> Result<(f64, Duration), Failure> {
    let begun = Instant::now();
    let blocks_each = READ_BYTES as u64 / u64::from(channel.geometry().block_bytes);
    let places = bytes / READ_BYTES as u64;
    let start = |task: u64| {
        let channel = channel.clone();
        let mut random = Random::from_seed(seed * DEPTH as u64 + task);
        reactor::spawn(async move {
            let pool = BufferPool::current();
            let mut reads = 0.0;
            while begun.elapsed() < slice {
                let buffer = pool.allocate(READ_BYTES).await.map_err(Failure::new)?;
                let (status, _) = channel
                    .read(Lba(random.below(places) * blocks_each), buffer)
                    .await;
                status.map_err(Failure::new)?;
                reads += 1.0;
            }
            Ok::<_, Failure>(reads)
        })
    };
    let tasks: Vec<_> = (0..DEPTH as u64).map(start).collect();
    let mut reads = 0.0;
    for task in tasks {
        let ended = || Err(Failure::new("a reading task was ended"));
        reads += task.await.unwrap_or_else(ended)?;
    }
    Ok((reads, begun.elapsed()))
}
