//! `redhare bench memory`: small files of a volume in a target's memory, beside blocks of the same length from the same target.
//!
//! One core a side: the target on processor 0, this program's child on processor 1, over loopback. Without a disk below, what the
//! file system itself costs is all there is between the two.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bdev::fence::TokenKeeper;
use bdev::{Channel, ChannelExt};
use bench::paired::quantile;
use bench::process::{Priority, Server, cpu_time, pinned, run_timed};
use bench::report::{Bar, Row};
use bench::target::{Workload, load};
use clap::Args;
use fabrics::initiator::{ConnectOptions, Controller};
use foundation::{Lba, Random};
use packfs::lease::memory::LocalLeases;
use packfs::{
    Attributes, FormatOptions, InodeNumber, Medium, Reader, ReaderOptions, Target, Writer, WriterOptions,
};
use protocols::nvme::Nqn;
use reactor::BufferPool;

use super::target::{HOST_NQN, NQN, wait_for_listeners};
use crate::output::{Failure, Output};

/// The promises: at least this share of the blocks per second, and at most so many times a block's latency.
const RATE_BAR: f64 = 0.8;
const LATENCY_BAR: f64 = 1.10;
/// Length of each file and of each block that is read, in bytes.
const FILE_BYTES: usize = 16 << 10;
const FILES_PER_DIRECTORY: usize = 250;
/// Files, and blocks, that are read at once: calls under way, and files of each.
const TASKS: usize = 4;
const BATCH: usize = 8;
/// Room of the target's memory beside the files, in MiB.
const ROOM_MIB: usize = 256;

/// How much, and how long.
#[derive(Args)]
#[command(after_help = "Example:\n  redhare bench memory --rounds 5")]
pub(crate) struct MemoryArguments {
    /// Alternating pairs of slices
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Length of a slice, in milliseconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    milliseconds: u64,
    /// Pairs of one file and one block that a round times, one after the other
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    pairs: u32,
    /// Files, of 16 KiB each, all of them in the target's memory
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    files: u32,
    /// The target's port
    #[arg(long, default_value_t = 7495)]
    port: u16,
    /// Measure the target there, which this command started
    #[arg(long, hide = true)]
    connect: Option<SocketAddr>,
    /// That target's process
    #[arg(long, hide = true, requires = "connect")]
    server: Option<u32>,
}

impl MemoryArguments {
    pub(super) fn with(rounds: usize) -> Self {
        Self {
            rounds: u16::try_from(rounds).unwrap_or(u16::MAX).max(1),
            milliseconds: 300,
            pairs: 500,
            files: 40_000,
            port: 7495,
            connect: None,
            server: None,
        }
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Measured {
    rounds: usize,
    rate_ratio: f64,
    rate_quartiles: (f64, f64),
    files_per_second: f64,
    blocks_per_second: f64,
    cpu_us_per_file: f64,
    cpu_us_per_block: f64,
    latency_ratio: f64,
    latency_quartiles: (f64, f64),
    file_us: f64,
    block_us: f64,
}

pub(crate) fn run(arguments: &MemoryArguments, output: &Output) -> Result<(), Failure> {
    if let Some(address) = arguments.connect {
        let measured = reactor::run(&reactor::Config::default(), measure(address, arguments));
        let measured = measured.map_err(Failure::new)??;
        output.print(&measured, || describe(&measured));
        return Ok(());
    }
    let rows = rows(arguments)?;
    output.print(&rows, || super::report::describe(&rows));
    super::report::check(&rows, output)
}

/// Starts the target, and measures it from another process.
pub(super) fn rows(arguments: &MemoryArguments) -> Result<Vec<Row>, Failure> {
    let own = std::env::current_exe().map_err(Failure::new)?;
    let command = |words: &[&str]| -> Vec<String> {
        let own = own.display().to_string();
        std::iter::once(own)
            .chain(words.iter().map(|&word| word.to_owned()))
            .collect()
    };
    let mib = (arguments.files as usize * FILE_BYTES).div_ceil(1 << 20) * 5 / 4 + ROOM_MIB;
    let (port, mib) = (arguments.port.to_string(), mib.to_string());
    let serve = command(&["bench", "target", "serve", "--port", &port, "--mib", &mib]);
    let server = Server::start_at(Priority::best(), "0", &serve).map_err(Failure::new)?;
    wait_for_listeners(&[arguments.port])?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
    let measure = command(&[
        "--json",
        "bench",
        "memory",
        "--connect",
        &address.to_string(),
        "--server",
        &server.id().to_string(),
        "--rounds",
        &arguments.rounds.to_string(),
        "--milliseconds",
        &arguments.milliseconds.to_string(),
        "--pairs",
        &arguments.pairs.to_string(),
        "--files",
        &arguments.files.to_string(),
    ]);
    let (text, _) = run_timed(&mut pinned(Priority::best(), "1", &measure)).map_err(Failure::new)?;
    let measured: Measured = serde_json::from_str(&text).map_err(Failure::new)?;
    let rate = Row::new(
        format!(
            "16 KiB files of a volume in memory, one core a side, {} in flight",
            TASKS * BATCH
        ),
        measured.rate_ratio,
        "of 16 KiB blocks/s",
        Some(Bar::AtLeast(RATE_BAR)),
    );
    let latency = Row::new(
        "one 16 KiB file of a volume in memory, one in flight",
        measured.latency_ratio,
        "of a block's latency",
        Some(Bar::AtMost(LATENCY_BAR)),
    );
    Ok(vec![rate.with_note(describe(&measured)), latency])
}

fn describe(measured: &Measured) -> String {
    format!(
        "files {:.0} /s, {:.1} us of CPU each (both sides); blocks {:.0} /s, {:.1} us; half of the {} rounds between {:.2} and {:.2}; alone, a \
         file takes {:.1} us and a block {:.1} us (medians), half of the rounds between {:.2} and {:.2}",
        measured.files_per_second,
        measured.cpu_us_per_file,
        measured.blocks_per_second,
        measured.cpu_us_per_block,
        measured.rounds,
        measured.rate_quartiles.0,
        measured.rate_quartiles.1,
        measured.file_us,
        measured.block_us,
        measured.latency_quartiles.0,
        measured.latency_quartiles.1,
    )
}

/// The paths of all files.
fn paths(files: usize) -> Vec<Vec<u8>> {
    let path = |number: usize| format!("{:06}/{number:08}", number / FILES_PER_DIRECTORY).into_bytes();
    (0..files).map(path).collect()
}

async fn fill(medium: &Medium, leases: &Rc<LocalLeases>, files: usize) -> Result<(), Failure> {
    let format = FormatOptions {
        uuid: [9; 16],
        // The device was filled once, so that all of its memory is there.
        force: true,
        ..FormatOptions::default()
    };
    let formatted = packfs::format(medium.clone(), leases.clone(), "redhare bench memory", &format).await;
    formatted.map_err(Failure::new)?;
    let opened = Writer::open(medium.clone(), leases.clone(), &WriterOptions::default()).await;
    let mut writer = opened.map_err(Failure::new)?;
    let mut random = Random::from_seed(1);
    let mut content = vec![0; FILE_BYTES];
    let mut inside = InodeNumber::ROOT;
    for (number, path) in paths(files).iter().enumerate() {
        let (directory, name) = path.split_at(7);
        if number % FILES_PER_DIRECTORY == 0 {
            let made = writer
                .mkdir(InodeNumber::ROOT, &directory[..6], &Attributes::default())
                .await;
            inside = made.map_err(Failure::new)?;
        }
        random.fill(&mut content);
        let made = writer
            .create_file(inside, name, &Attributes::default(), &content)
            .await;
        made.map_err(Failure::new)?;
    }
    writer.commit().await.map_err(Failure::new)?;
    writer.close().await.map_err(Failure::new)
}

async fn measure(address: SocketAddr, arguments: &MemoryArguments) -> Result<Measured, Failure> {
    let name = |text: &str| text.parse::<Nqn>().map_err(Failure::new);
    let connect = ConnectOptions::new(address, name(NQN)?, name(HOST_NQN)?, [0xbe; 16]);
    let controller = Controller::connect(connect.clone()).await.map_err(Failure::new)?;
    let namespace = controller.open_namespace(1).await.map_err(Failure::new)?;
    let channel: Rc<dyn Channel> = Rc::new(namespace);
    let medium = Medium::new(TokenKeeper::new().over(channel.clone()));
    let leases = Rc::new(LocalLeases::new());
    let files = arguments.files as usize;
    fill(&medium, &leases, files).await?;
    let options = ReaderOptions {
        cache_bytes: 512 << 20,
        reads_in_flight: TASKS * BATCH,
        ..ReaderOptions::default()
    };
    let reader = Reader::open(medium, leases, &options)
        .await
        .map_err(Failure::new)?;
    let paths = Rc::new(paths(files));
    for path in paths.iter() {
        reader.lookup(path).await.map_err(Failure::new)?;
    }
    let slice = Duration::from_millis(arguments.milliseconds);
    let workload = Workload {
        connect,
        nsid: 1,
        read_percent: 100,
        request_bytes: FILE_BYTES as u32,
        connections: 1,
        depth: TASKS * BATCH,
        rate: None,
        duration: slice,
    };
    let spent = || -> Result<Duration, Failure> {
        let own = cpu_time(std::process::id()).map_err(Failure::new)?;
        let server = arguments.server.map(cpu_time).transpose().map_err(Failure::new)?;
        Ok(own + server.unwrap_or_default())
    };
    // Blocks first, then files.
    let (mut ratios, mut rates, mut cpu) = (Vec::new(), [Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let (mut latency_ratios, mut latencies) = (Vec::new(), [Vec::new(), Vec::new()]);
    for round in 0..usize::from(arguments.rounds) {
        for side in [round % 2, (round + 1) % 2] {
            let before = spent()?;
            let (rate, operations) = if side == 0 {
                let measured = load(&workload).await.map_err(Failure::new)?;
                (measured.requests_per_second, measured.operations as f64)
            } else {
                let seed = round as u64;
                read_files(&reader, &paths, slice, seed).await?
            };
            rates[side].push(rate);
            cpu[side].push(spent()?.saturating_sub(before).as_secs_f64() * 1e6 / operations);
        }
        ratios.push(rates[1][round] / rates[0][round]);
        let [block, file] =
            one_by_one(&channel, &reader, &paths, arguments.pairs as usize, round as u64).await?;
        latency_ratios.push(file / block);
        latencies[0].push(block);
        latencies[1].push(file);
    }
    let median = |values: &[f64]| quantile(values.to_vec(), 0.5);
    let quartiles = |values: &[f64]| (quantile(values.to_vec(), 0.25), quantile(values.to_vec(), 0.75));
    Ok(Measured {
        rounds: ratios.len(),
        rate_ratio: median(&ratios),
        rate_quartiles: quartiles(&ratios),
        files_per_second: median(&rates[1]),
        blocks_per_second: median(&rates[0]),
        cpu_us_per_file: median(&cpu[1]),
        cpu_us_per_block: median(&cpu[0]),
        latency_ratio: median(&latency_ratios),
        latency_quartiles: quartiles(&latency_ratios),
        file_us: median(&latencies[1]),
        block_us: median(&latencies[0]),
    })
}

/// Files per second of [`TASKS`] tasks that read [`BATCH`] random ones with each call, and how many were read.
async fn read_files(
    reader: &Reader,
    paths: &Rc<Vec<Vec<u8>>>,
    slice: Duration,
    seed: u64,
) -> Result<(f64, f64), Failure> {
    let count = Rc::new(Cell::new(0usize));
    let begun = Instant::now();
    let start = |task: usize| {
        let (reader, paths, count) = (reader.clone(), paths.clone(), count.clone());
        let mut random = Random::from_seed(seed * TASKS as u64 + task as u64);
        reactor::spawn(async move {
            while begun.elapsed() < slice {
                let chosen: [usize; BATCH] =
                    std::array::from_fn(|_| random.below(paths.len() as u64) as usize);
                let targets = chosen.map(|index| Target::Path(&paths[index]));
                for content in reader.read_many(&targets).await {
                    let length = content.map_err(Failure::new)?.len();
                    if length != FILE_BYTES {
                        return Err(Failure::new(format!(
                            "a file came with {length} bytes and not {FILE_BYTES}"
                        )));
                    }
                }
                count.set(count.get() + BATCH);
            }
            Ok(())
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(start).collect();
    for task in tasks {
        task.await
            .unwrap_or_else(|| Err(Failure::new("a reading task was ended")))?;
    }
    let files = count.get() as f64;
    Ok((files / begun.elapsed().as_secs_f64(), files))
}

/// Medians of how long a block takes and how long a file takes, one after the other, in microseconds.
async fn one_by_one(
    channel: &Rc<dyn Channel>,
    reader: &Reader,
    paths: &[Vec<u8>],
    pairs: usize,
    seed: u64,
) -> Result<[f64; 2], Failure> {
    let mut random = Random::from_seed(seed);
    let pool = BufferPool::current();
    let geometry = channel.geometry();
    let blocks_each = FILE_BYTES as u64 / u64::from(geometry.block_bytes);
    let places = geometry.blocks.0 / blocks_each;
    let (mut blocks, mut files) = (Vec::with_capacity(pairs), Vec::with_capacity(pairs));
    for _ in 0..pairs {
        let lba = Lba(random.below(places) * blocks_each);
        let begun = Instant::now();
        let buffer = pool.allocate(FILE_BYTES).await.map_err(Failure::new)?;
        let (status, buffer) = channel.read(lba, buffer).await;
        status.map_err(Failure::new)?;
        blocks.push(begun.elapsed().as_secs_f64() * 1e6);
        drop(buffer);
        let path = &paths[random.below(paths.len() as u64) as usize];
        let begun = Instant::now();
        let content = reader.read_file(Target::Path(path)).await;
        files.push(begun.elapsed().as_secs_f64() * 1e6);
        content.map_err(Failure::new)?;
    }
    Ok([quantile(blocks, 0.5), quantile(files, 0.5)])
}
