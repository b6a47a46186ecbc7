//! A client of a volume that writes and reads all the while, and knows what it must read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bdev::{BlockDevice, Channel, ChannelExt};
use client::Session;
use fabrics::initiator::{ConnectOptions, RemoteDevice, RemoteOptions};
use foundation::{Lba, Random};
use master::Masters;
use reactor::BufferPool;

const BLOCK_BYTES: usize = 4096;
const WORKERS: u64 = 8;
const BLOCKS_PER_WORKER: u64 = 64;

/// What each block holds: the version of its last acknowledged write, by worker and block.
pub(crate) type Contents = Vec<Vec<u64>>;

#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    operations: AtomicU64,
    slowest_us: AtomicU64,
}

/// How a client reaches the volume.
#[derive(Clone)]
pub(crate) enum Way {
    /// As a native client.
    Native { masters: Masters, volume: String },
    /// As an ordinary host that has a path to each of these portals.
    #[allow(dead_code, reason = "not all tests have portals")]
    Portals { addresses: Vec<SocketAddr>, nqn: String },
}

impl Way {
    pub(crate) fn native(masters: impl Into<Masters>, volume: &str) -> Self {
        Self::Native {
            masters: masters.into(),
            volume: volume.to_owned(),
        }
    }

    /// The volume; to be called where a reactor runs. Portals that do not serve yet are waited for.
    async fn open(&self) -> Result<Box<dyn BlockDevice>, String> {
        let (addresses, nqn) = match self {
            Self::Native { masters, volume } => {
                let session = Session::connect(masters, volume).map_err(|error| error.to_string())?;
                return Ok(Box::new(session.device(client::Nearby::default())));
            }
            Self::Portals { addresses, nqn } => (addresses, nqn),
        };
        let to = |address: &SocketAddr| {
            let host = "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";
            ConnectOptions::new(*address, nqn.parse().unwrap(), host.parse().unwrap(), [7; 16])
        };
        let options = RemoteOptions {
            wait_limit: super::LIMIT,
            ..RemoteOptions::new(to(&addresses[0]), 1)
        };
        let deadline = Instant::now() + super::LIMIT;
        let device = loop {
            match RemoteDevice::connect(options.clone()).await {
                Ok(device) => break device,
                Err(error) if Instant::now() > deadline => return Err(error.to_string()),
                Err(_) => reactor::time::sleep(Duration::from_millis(50)).await,
            }
        };
        for address in &addresses[1..] {
            device.add_path(to(address));
        }
        Ok(Box::new(device))
    }
}

/// A client at work in a thread of its own.
pub(crate) struct Load {
    progress: Arc<Progress>,
    thread: JoinHandle<Result<Contents, String>>,
}

/// Of a volume that was never written.
pub(crate) fn nothing() -> Contents {
    vec![vec![0; BLOCKS_PER_WORKER as usize]; WORKERS as usize]
}

/// The blocks of a worker are spread over the whole volume.
fn lba(worker: u64, index: u64, blocks: u64) -> Lba {
    let step = blocks / (WORKERS * BLOCKS_PER_WORKER);
    Lba((index * WORKERS + worker) * step)
}

fn pattern(lba: Lba, version: u64, bytes: &mut [u8]) {
    let mut random = Random::from_seed(lba.0 << 32 ^ version);
    random.fill(bytes);
    if version == 0 {
        bytes.fill(0);
    }
}

impl Load {
    /// Writes and reads until [`Load::finish`]; every read is compared with what was written last.
    pub(crate) fn start(masters: &str, volume: &str) -> Self {
        Self::go_on(masters, volume, nothing())
    }

    /// The same on a volume with contents.
    pub(crate) fn go_on(masters: &str, volume: &str, contents: Contents) -> Self {
        Self::by(Way::native(masters, volume), contents)
    }

    /// The same by portals, on a volume that holds nothing yet.
    #[allow(dead_code, reason = "not all tests have portals")]
    pub(crate) fn through_portals(addresses: &[SocketAddr], nqn: &str) -> Self {
        let way = Way::Portals {
            addresses: addresses.to_vec(),
            nqn: nqn.to_owned(),
        };
        Self::by(way, nothing())
    }

    /// The same on a volume that holds nothing yet, as whom the masters take these credentials for.
    #[allow(dead_code, reason = "not all tests have an authority")]
    pub(crate) fn with_credentials(masters: &Masters, volume: &str) -> Self {
        Self::by(Way::native(masters, volume), nothing())
    }

    /// By any way, on a volume with contents.
    pub(crate) fn by(way: Way, contents: Contents) -> Self {
        let progress = Arc::new(Progress::default());
        let shared = progress.clone();
        let thread = std::thread::spawn(move || run(&way, contents, &shared));
        Self { progress, thread }
    }

    /// Waits until so many more operations have ended.
    pub(crate) fn wait_for(&self, more: u64) {
        let wanted = self.progress.operations.load(Ordering::Relaxed) + more;
        super::wait_until(&format!("{more} more operations of a client"), || {
            assert!(!self.thread.is_finished(), "the client has failed");
            self.progress.operations.load(Ordering::Relaxed) >= wanted
        });
    }

    /// Ends the work with a flush: what was written, and the longest time that one operation took. Any error or wrong
    /// byte fails here.
    pub(crate) fn finish(self) -> (Contents, Duration) {
        self.progress.stop.store(true, Ordering::Relaxed);
        let contents = self.thread.join().unwrap().unwrap();
        let slowest = Duration::from_micros(self.progress.slowest_us.load(Ordering::Relaxed));
        (contents, slowest)
    }
}

/// Reads every block once and compares it.
pub(crate) fn check(masters: &str, volume: &str, contents: &Contents) {
    check_by(&Way::native(masters, volume), contents);
}

/// As [`check`], by any way.
pub(crate) fn check_by(way: &Way, contents: &Contents) {
    let outcome = reactor::run(&reactor::Config::default(), async {
        let device = way.open().await?;
        let channel = device.open_channel().unwrap();
        let blocks = channel.geometry().blocks.0;
        for (worker, versions) in (0..).zip(contents) {
            for (index, &version) in (0..).zip(versions) {
                read(&*channel, lba(worker, index, blocks), version).await?;
            }
        }
        Ok::<_, String>(())
    });
    outcome.unwrap().unwrap();
}

fn run(way: &Way, contents: Contents, progress: &Arc<Progress>) -> Result<Contents, String> {
    let done = reactor::run(&reactor::Config::default(), async {
        let device = way.open().await?;
        let channel = device.open_channel().map_err(|error| error.to_string())?;
        let workers: Vec<_> = (0..)
            .zip(contents)
            .map(|(worker, versions)| {
                reactor::spawn(work(channel.clone(), worker, versions, progress.clone()))
            })
            .collect();
        let mut contents = Contents::new();
        for worker in workers {
            contents.push(worker.await.ok_or("a worker was aborted")??);
        }
        channel.flush().await.map_err(|error| format!("flush: {error}"))?;
        Ok(contents)
    });
    let done = done.map_err(|error| error.to_string()).flatten();
    if let Err(why) = &done {
        // Who waits for more operations sees only that there are none.
        eprintln!("the client has failed: {why}");
    }
    done
}

async fn work(
    channel: std::rc::Rc<dyn Channel>,
    worker: u64,
    mut versions: Vec<u64>,
    progress: Arc<Progress>,
) -> Result<Vec<u64>, String> {
    let blocks = channel.geometry().blocks.0;
    let mut random = Random::from_seed(worker + 1);
    while !progress.stop.load(Ordering::Relaxed) {
        let index = random.below(BLOCKS_PER_WORKER);
        let lba = lba(worker, index, blocks);
        let version = &mut versions[index as usize];
        let began = Instant::now();
        if random.below(2) == 0 {
            write(&*channel, lba, *version + 1).await?;
            *version += 1;
        } else {
            read(&*channel, lba, *version).await?;
        }
        let took = began.elapsed().as_micros() as u64;
        progress.slowest_us.fetch_max(took, Ordering::Relaxed);
        progress.operations.fetch_add(1, Ordering::Relaxed);
        // A steady trickle: these tests are about faults, not speed, and the machine has other work.
        reactor::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(versions)
}

async fn write(channel: &dyn Channel, lba: Lba, version: u64) -> Result<(), String> {
    let mut buffer = allocate().await?;
    pattern(lba, version, &mut buffer);
    let written = channel.write(lba, buffer.freeze()).await;
    written.map_err(|error| format!("write of {lba:?}: {error}"))
}

async fn read(channel: &dyn Channel, lba: Lba, version: u64) -> Result<(), String> {
    let (result, bytes) = channel.read(lba, allocate().await?).await;
    result.map_err(|error| format!("read of {lba:?}: {error}"))?;
    let mut expected = vec![0; BLOCK_BYTES];
    pattern(lba, version, &mut expected);
    if bytes[..] == expected[..] {
        return Ok(());
    }
    let older = (0..version).rev().find(|&older| {
        pattern(lba, older, &mut expected);
        bytes[..] == expected[..]
    });
    Err(format!("{lba:?} holds version {older:?} instead of {version}"))
}

async fn allocate() -> Result<reactor::BufferMut, String> {
    let pool = BufferPool::current();
    pool.allocate(BLOCK_BYTES)
        .await
        .map_err(|error| error.to_string())
}
