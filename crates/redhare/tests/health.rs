//! A disk whose requests stand, in whole processes: each stage of the reset cures the fault that is planted for it, clients lose
//! nothing, and the disk that stands again and again is put out of service, rebuilt elsewhere, and put back by command. And a disk that
//! is slow: the masters find it, and a client asks it seldom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bdev::ChannelExt;
use client::{Nearby, Session};
use foundation::{Lba, Random};
use reactor::BufferPool;
use serde_json::Value;

use crate::support::nodes::Nodes;
use crate::support::{Place, kill, wait_until};

const NODE: u16 = 2;

/// A client that reads a volume one block at a time, once it has written all of it.
struct Reader {
    counts: Arc<Counts>,
    thread: JoinHandle<Result<(), String>>,
}

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    reads: AtomicU64,
    /// Those that took [`Reader::SLOW`] or longer.
    slow: AtomicU64,
}

impl Reader {
    /// What a slow disk needs for a request, in milliseconds.
    const DISK_MS: u64 = 200;
    /// A client does not wait that long before it asks another copy, too.
    const SLOW: Duration = Duration::from_millis(20);
    const BLOCK_BYTES: usize = 4096;

    fn start(masters: String, volume: &'static str) -> Self {
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        let thread = std::thread::spawn(move || {
            let session = Session::connect(masters.as_str(), volume).map_err(|error| error.to_string())?;
            let work = async {
                Self::work(&session, &shared)
                    .await
                    .map_err(|error| error.to_string())
            };
            reactor::run(&reactor::Config::default(), work).map_err(|error| error.to_string())?
        });
        Self { counts, thread }
    }

    async fn work(session: &Arc<Session>, counts: &Counts) -> Result<(), Box<dyn std::error::Error>> {
        // By its socket: a client that reads the disk's file itself never meets the fault, which is planted in the node.
        let device = session.device(Nearby::Socket);
        let channel = bdev::BlockDevice::open_channel(&device)?;
        let (blocks, pool) = (channel.geometry().blocks.0, BufferPool::current());
        let whole = 128 << 10;
        let step = (whole / Self::BLOCK_BYTES) as u64;
        for lba in (0..blocks).step_by(step as usize) {
            let mut buffer = pool.allocate(whole).await?;
            buffer.fill(lba as u8 | 1);
            channel.write(Lba(lba), buffer.freeze()).await?;
        }
        let mut random = Random::from_seed(1);
        while !counts.stop.load(Ordering::Relaxed) {
            let lba = random.below(blocks);
            let began = Instant::now();
            let (result, bytes) = channel
                .read(Lba(lba), pool.allocate(Self::BLOCK_BYTES).await?)
                .await;
            result?;
            let expected = (lba / step * step) as u8 | 1;
            if bytes[..] != [expected; Self::BLOCK_BYTES] {
                return Err(format!("block {lba} is not what was written").into());
            }
            counts.reads.fetch_add(1, Ordering::Relaxed);
            let is_slow = began.elapsed() >= Self::SLOW;
            counts.slow.fetch_add(is_slow.into(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for so many more reads, and says how many of them were slow.
    fn slow_among(&self, more: u64) -> u64 {
        let slow = self.slow();
        let wanted = self.counts.reads.load(Ordering::Relaxed) + more;
        wait_until(&format!("{more} more reads"), || {
            assert!(!self.thread.is_finished(), "the client has failed");
            self.counts.reads.load(Ordering::Relaxed) >= wanted
        });
        self.slow() - slow
    }

    /// How many reads were slow so far.
    fn slow(&self) -> u64 {
        self.counts.slow.load(Ordering::Relaxed)
    }

    fn finish(self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap().unwrap();
    }
}

impl Nodes {
    fn plant(&self, number: u16, fault: &str) {
        // Replaced in one step, so that no half of it is read.
        let file = self.directory(number).join("disk.fault");
        std::fs::write(file.with_extension("new"), fault).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
    }

    fn disk(&self, number: u16) -> Value {
        self.row(number)["disk_health"][0].clone()
    }

    fn wait_for_disk(&self, number: u16, what: &str, is_so: impl Fn(&Value) -> bool) {
        wait_until(what, || is_so(&self.disk(number)));
    }

    /// Every chunk has two copies in sync; none of them on this node, if one is named.
    fn wait_for_all_copies(&self, without: Option<u16>) {
        let without = without.map(|number| self.row(number)["node"].clone());
        wait_until("all copies are in sync", || {
            let chunks = self.chunks();
            let whole = |chunk: &Value| {
                let in_sync = chunk["in_sync"].as_array().cloned().unwrap_or_default();
                let none = |field: &str| chunk[field].as_array().is_some_and(Vec::is_empty);
                in_sync.len() == 2
                    && none("missing")
                    && none("out_of_sync")
                    && without.as_ref().is_none_or(|id| !in_sync.contains(id))
            };
            !chunks.is_empty() && chunks.iter().all(whole)
        });
    }
}

fn of_stages(counts: &Value) -> [u64; 4] {
    // Between two lives a node names no disk.
    ["queue", "device", "driver", "process"].map(|stage| counts[stage].as_u64().unwrap_or(0))
}

fn resets(disk: &Value) -> [u64; 4] {
    of_stages(&disk["resets"])
}

#[test]
fn a_disk_that_stands_is_reset_in_stages_and_put_out_of_service_when_it_keeps_doing_so() {
    let master = ["--no-rebalance"];
    let mut cluster = Nodes::start_with_faults(Place::in_memory("health"), &master, 3, "1s");
    let create = "volume create data --size 64MiB --chunk-size 16MiB --copies 2";
    let files = cluster.import(create, 61, 200 << 10);
    cluster.wait_for_disk(
        NODE,
        "a disk's samples are seen by its node and by others",
        |disk| {
            let samples = disk["samples"].as_array().cloned().unwrap_or_default();
            let answered = |sample: &Value| sample["samples"].as_u64() > Some(0);
            disk["state"] == "ok" && samples.len() == 3 && samples.iter().all(answered)
        },
    );
    let life = cluster.row(NODE)["incarnation"].clone();

    // The queue: nobody above notices.
    cluster.plant(NODE, "queue");
    cluster.wait_for_disk(NODE, "the queue was reset", |disk| {
        resets(disk) == [1, 0, 0, 0] && disk["state"] == "ok"
    });
    cluster.compare(&files, "queue");
    assert_eq!(resets(&cluster.disk(NODE)), [1, 0, 0, 0]);
    assert_eq!(cluster.row(NODE)["incarnation"], life);

    // The driver: nor here, but it is remembered.
    cluster.plant(NODE, "driver");
    cluster.wait_for_disk(NODE, "the driver was reset", |disk| {
        resets(disk) == [2, 1, 1, 0] && disk["state"] == "failing"
    });
    cluster.compare(&files, "driver");
    assert_eq!(cluster.row(NODE)["incarnation"], life);

    // The process: the engine ends it and starts another one.
    cluster.plant(NODE, "process");
    let planted = Instant::now();
    cluster.wait_for_disk(NODE, "the process was reset", |disk| resets(disk) == [3, 2, 2, 1]);
    wait_until("another life serves", || {
        let row = cluster.row(NODE);
        row["alive"] == true && row["incarnation"].as_u64() > life.as_u64()
    });
    cluster.plant(NODE, "");
    cluster.wait_for_all_copies(None);
    cluster.compare(&files, "process");
    // Each stage that cured is counted and timed, the process's by the engine: what is below it counts from nothing.
    cluster.wait_for_disk(NODE, "what cured is told", |disk| {
        of_stages(&disk["cured"]) == [1, 0, 1, 1]
    });
    let (disk, took) = (cluster.disk(NODE), planted.elapsed().as_millis());
    let timed = u128::from(disk["process_cured_milliseconds"].as_u64().unwrap());
    assert!((1..took).contains(&timed), "{timed} ms of {took} ms");
    let said = cluster.status();
    assert!(
        said.contains(" was reset: queue 3 times (1 cured it), device 2 times (0 cured it), driver 2 times (1 cured it), process once (1 cured it)\n"),
        "{said}"
    );

    // The third time is one too many: the disk goes, and what was on it comes up elsewhere.
    cluster.plant(NODE, "device");
    cluster.wait_for_disk(NODE, "the disk is out of service", |disk| {
        disk["state"] == "out of service"
    });
    let why = cluster.disk(NODE)["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("3 times within 10 minutes"), "{why}");
    cluster.wait_for_all_copies(Some(NODE));
    cluster.compare(&files, "out of service");
    cluster.plant(NODE, "");

    // It stays so when everything of the node starts anew, until somebody says otherwise.
    let (node, uuid) = (cluster.id(NODE), cluster.disk(NODE)["uuid"].clone());
    let uuid = uuid.as_str().unwrap().to_owned();
    let life = cluster.row(NODE)["incarnation"].as_u64();
    cluster.kill_node(NODE);
    cluster.start_node(NODE);
    wait_until("the disk is still out of service in another life", || {
        let row = cluster.row(NODE);
        let disk = &row["disk_health"][0];
        row["incarnation"].as_u64() > life && disk["state"] == "out of service" && disk["draining"] == true
    });
    cluster.wait_for_living(3);
    let restore = ["node", "restore", &node, "--disk", &uuid];
    cluster.succeed(&restore);
    cluster.wait_for_disk(NODE, "the disk is back", |disk| {
        disk["state"] == "ok" && disk["draining"] == false
    });

    // One that stands when its target starts keeps that from nothing else, and goes at once.
    cluster.plant(NODE, "disk");
    kill(&cluster.directory(NODE).join("target.lock"));
    cluster.wait_for_disk(NODE, "the disk was left out", |disk| {
        disk["state"] == "out of service"
            && disk["why"]
                .as_str()
                .unwrap_or("")
                .contains("when the node started")
    });
    cluster.plant(NODE, "");
    cluster.succeed(&restore);
    cluster.wait_for_disk(NODE, "the disk is back again", |disk| disk["state"] == "ok");
    cluster.wait_for_all_copies(None);
    cluster.compare(&files, "back");

    // The device: another queue does not help, to open it anew does, and no process has to end.
    let (before, life) = (
        resets(&cluster.disk(NODE)),
        cluster.row(NODE)["incarnation"].clone(),
    );
    let after = [before[0] + 1, before[1] + 1, before[2], before[3]];
    cluster.plant(NODE, "device");
    cluster.wait_for_disk(NODE, "the device was opened anew", |disk| resets(disk) == after);
    cluster.compare(&files, "device");
    assert_eq!(resets(&cluster.disk(NODE)), after);
    assert_eq!(cluster.row(NODE)["incarnation"], life);
}

/// Writes to every chunk, all at a time, and says how long the slowest took.
fn slowest_write(masters: String, volume: &str) -> Duration {
    let session = Session::connect(masters.as_str(), volume).unwrap();
    let work = async {
        let device = session.device(Nearby::Socket);
        let channel = bdev::BlockDevice::open_channel(&device).unwrap();
        // Of each MiB one: stripes go over all chunks.
        let step = (1 << 20) / Reader::BLOCK_BYTES as u64;
        let writes = channel.geometry().blocks.0 / step;
        let began = Instant::now();
        let write = |at| {
            let channel = channel.clone();
            reactor::spawn(async move {
                let mut buffer = BufferPool::current().allocate(Reader::BLOCK_BYTES).await.unwrap();
                buffer.fill(7);
                let written = channel.write(Lba(at * step), buffer.freeze()).await;
                written.unwrap();
                began.elapsed()
            })
        };
        let writes: Vec<_> = (0..writes).map(write).collect();
        let mut slowest = Duration::ZERO;
        for write in writes {
            slowest = slowest.max(write.await.unwrap());
        }
        slowest
    };
    reactor::run(&reactor::Config::default(), work).unwrap()
}

/// It fails nothing and answers nothing, and its reset is far away. Whoever writes waits until the others go on without it: as a member
/// of a chunk, and as its write node.
#[test]
fn writes_go_on_without_a_disk_that_stands() {
    let cluster = Nodes::start_with_faults(Place::in_memory("standing-disk"), &["--no-rebalance"], 3, "120s");
    cluster.succeed(&[
        "volume",
        "create",
        "data",
        "--size",
        "96MiB",
        "--chunk-size",
        "16MiB",
    ]);
    cluster.wait_for_sync();
    let led = cluster.chunks();
    let id = cluster.id(NODE);
    assert!(
        led.iter().any(|chunk| chunk["write_node"] == id.as_str()),
        "{led:?}"
    );
    let write = || slowest_write(cluster.address(), "data");
    let before = write();
    assert!(before < Duration::from_secs(5), "{before:?}");
    cluster.plant(NODE, "disk");
    // The node looks for it fifty times a second: until then a write is quicker.
    std::thread::sleep(Duration::from_secs(1));
    let slowest = write();
    println!("the slowest write took {slowest:?}");
    // Six seconds, and the grants that were given to it. Hosts give up after twenty.
    assert!(
        (Duration::from_secs(3)..Duration::from_secs(20)).contains(&slowest),
        "{slowest:?}"
    );
    let after = write();
    assert!(
        after < Duration::from_secs(5),
        "nobody waits for it any more: {after:?}"
    );
    cluster.plant(NODE, "");
    cluster.wait_for_sync();
}

#[test]
fn a_slow_disk_is_found_by_masters_and_asked_seldom_by_clients() {
    let master = ["--no-rebalance"];
    let cluster = Nodes::start_with_faults(Place::in_memory("slow-disk"), &master, 3, "30s");
    cluster.succeed(&[
        "volume",
        "create",
        "data",
        "--size",
        "96MiB",
        "--chunk-size",
        "16MiB",
        "--copies",
        "2",
    ]);
    let reader = Reader::start(cluster.address(), "data");
    let before = reader.slow_among(600);
    assert!(
        before <= 12,
        "{before} of 600 reads were slow with nothing planted"
    );

    // Two thirds of the chunks have a copy there, so without a measure a third of the reads would go there.
    let fault = format!("slow {}", Reader::DISK_MS);
    let before = reader.slow();
    cluster.plant(NODE, &fault);
    wait_until("a read finds out", || reader.slow() > before);
    let slow = reader.slow_among(600);
    assert!(slow <= 30, "{slow} of 600 reads went to the slow disk");
    // The masters find it by samples.
    cluster.wait_for_disk(NODE, "the disk counts as slow", |disk| disk["state"] == "slow");
    assert!([1, 3].iter().all(|&other| cluster.disk(other)["state"] == "ok"));
    reader.finish();
}

/// A sample of it is late each time, and is often refused, since another node's is under way.
#[test]
fn a_disk_that_takes_seconds_is_found_by_masters_too() {
    let master = ["--no-rebalance"];
    let cluster = Nodes::start_with_faults(Place::in_memory("seconds-disk"), &master, 3, "30s");
    cluster.wait_for_disk(NODE, "its samples are answered", |disk| {
        disk["state"] == "ok" && disk["samples"][0]["samples"].as_u64() > Some(0)
    });
    cluster.plant(NODE, "slow 2500");
    cluster.wait_for_disk(NODE, "the disk counts as slow", |disk| disk["state"] == "slow");
    assert!([1, 3].iter().all(|&other| cluster.disk(other)["state"] == "ok"));
    let said = cluster.status();
    assert!(
        said.contains(" is slow (its sample reads take much longer"),
        "{said}"
    );
}
