//! Snapshots of a volume that is written to, by processes of their own: each is one moment of all chunks, also when a node has just
//! been killed; it is read from whatever node has it and stays as it was; deleting it gives the space back.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::nodes::Nodes;
use crate::support::{Place, wait_until};
use bdev::{BlockDevice, ChannelExt};
use client::{Nearby, Session};
use foundation::Lba;
use reactor::BufferPool;
use rustix::process::Signal;

const BLOCK: usize = 4096;
const CHUNKS: u64 = 8;
const WRITERS: u64 = 3;
/// Where what is written once lies, and how long it is.
const FILL_AT: u64 = 32 << 20;
const FILL_BYTES: u64 = 16 << 20;

/// A block of each chunk is each writer's own: stripe units of 256 KiB go round.
fn lba(writer: u64, chunk: u64) -> Lba {
    Lba((chunk * (256 << 10)) / BLOCK as u64 + writer)
}

/// What a writer has been told, and has asked for.
#[derive(Default)]
struct Progress {
    issued: AtomicU64,
    acknowledged: AtomicU64,
    /// The longest that a write took.
    longest: Mutex<Duration>,
}

/// Writers that write numbers, one above the other: chunk 0, 1, 2 and so on, then the next number, each write after the one before was
/// acknowledged.
struct Load {
    progress: Vec<Arc<Progress>>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(address: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let progress: Vec<Arc<Progress>> = (0..WRITERS).map(|_| Arc::default()).collect();
        let start = |writer: u64| {
            let (address, stop) = (address.to_owned(), stop.clone());
            let progress = progress[writer as usize].clone();
            std::thread::spawn(move || {
                let session = Session::connect(&address[..], "data").unwrap();
                let device = session.device(Nearby::Socket);
                let written = reactor::run(&reactor::Config::default(), async {
                    let channel = device.open_channel().unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        let n = progress.issued.fetch_add(1, Ordering::SeqCst);
                        let began = Instant::now();
                        let mut block = BufferPool::current().allocate(BLOCK).await.unwrap();
                        block.fill(0);
                        block[..8].copy_from_slice(&stamp(n).to_le_bytes());
                        block[8] = 0xa0 | writer as u8;
                        channel
                            .write(lba(writer, n % CHUNKS), block.freeze())
                            .await
                            .unwrap();
                        progress.acknowledged.store(n + 1, Ordering::SeqCst);
                        let mut longest = progress.longest.lock().unwrap();
                        *longest = longest.max(began.elapsed());
                    }
                });
                written.unwrap();
            })
        };
        let threads = (0..WRITERS).map(start).collect();
        Self {
            progress,
            stop,
            threads,
        }
    }

    fn counts(&self, which: impl Fn(&Progress) -> &AtomicU64) -> Vec<u64> {
        let count = |progress: &Arc<Progress>| which(progress).load(Ordering::SeqCst);
        self.progress.iter().map(count).collect()
    }

    fn wait_for_more(&self, writes: u64) {
        let before = self.counts(|progress| &progress.acknowledged);
        wait_until("all writers go on", || {
            let now = self.counts(|progress| &progress.acknowledged);
            now.iter()
                .zip(&before)
                .all(|(now, before)| *now >= before + writes)
        });
    }

    fn end(mut self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        self.counts(|progress| &progress.acknowledged)
    }
}

/// The number that the n-th write of a writer has.
fn stamp(n: u64) -> u64 {
    n / CHUNKS + 1
}

/// How many writes of each writer are in an image; none if what it has is not what it had at any moment.
fn writes_in(image: &[u8]) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    for writer in 0..WRITERS {
        let mut stamps = Vec::new();
        for chunk in 0..CHUNKS {
            let at = lba(writer, chunk).0 as usize * BLOCK;
            let block = &image[at..at + BLOCK];
            let number = u64::from_le_bytes(block[..8].try_into().unwrap());
            let of_writer = if number == 0 { 0 } else { 0xa0 | writer as u8 };
            assert!(
                block[8] == of_writer && block[9..].iter().all(|byte| *byte == 0),
                "a block that nobody wrote: writer {writer}, chunk {chunk}"
            );
            stamps.push(number);
        }
        // Chunk after chunk: the first ones may be one ahead of the rest.
        let (first, last) = (stamps[0], stamps[CHUNKS as usize - 1]);
        let ahead = stamps.iter().take_while(|stamp| **stamp == first).count();
        let rest_is_behind = stamps[ahead..]
            .iter()
            .all(|stamp| stamp + 1 == first && *stamp == last);
        if !rest_is_behind {
            return None;
        }
        found.push((first.max(1) - 1) * CHUNKS + if first == 0 { 0 } else { ahead as u64 });
    }
    Some(found)
}

struct Test {
    cluster: Nodes,
}

impl Test {
    fn path(&self, name: &str) -> PathBuf {
        self.cluster.place.0.join(name)
    }

    /// What `redhare volume read` gives.
    fn read(&self, what: &str) -> Vec<u8> {
        let path = self.path("read");
        drop(std::fs::remove_file(&path));
        self.cluster
            .succeed(&["volume", "read", what, "--out", path.to_str().unwrap()]);
        std::fs::read(&path).unwrap()
    }

    /// Makes a snapshot while the load goes on, and says what has to be in it at least and at most.
    fn snapshot(&self, load: &Load, name: &str) -> Vec<u8> {
        let least = load.counts(|progress| &progress.acknowledged);
        let made = self
            .cluster
            .run(&["volume", "snapshot", "create", "data", name, "--json"]);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&made.stdout),
            String::from_utf8_lossy(&made.stderr)
        );
        eprintln!("{name}: {said}");
        assert!(made.status.success(), "{said}");
        let most = load.counts(|progress| &progress.issued);
        let image = self.read(&format!("data@{name}"));
        let found = writes_in(&image).unwrap_or_else(|| panic!("{name} is not one moment"));
        for writer in 0..WRITERS as usize {
            assert!(
                (least[writer]..=most[writer]).contains(&found[writer]),
                "{name} has {} writes of writer {writer}, {} were acknowledged before it, {} begun when it was made",
                found[writer],
                least[writer],
                most[writer]
            );
        }
        image
    }

    fn listed(&self) -> Vec<serde_json::Value> {
        let listed = self.cluster.json(&["volume", "snapshot", "list", "data"]);
        listed.as_array().cloned().unwrap_or_default()
    }

    fn copies(&self, name: &str) -> (u64, u64) {
        let listed = self.listed();
        let found = listed.iter().find(|snapshot| snapshot["name"] == name).unwrap();
        let number = |field: &str| found["copies"][field].as_u64().unwrap();
        (number("least"), number("most"))
    }

    /// The same while the targets of two nodes stand still, for a second after it was asked.
    fn copies_of_busy_nodes(&self, name: &str) -> (u64, u64) {
        let signal = |signal| {
            for node in [2, 3] {
                let lock = self.cluster.directory(node).join("target.lock");
                assert!(agent::lock::signal(&lock, signal).unwrap());
            }
        };
        signal(Signal::STOP);
        std::thread::scope(|scope| {
            let copies = scope.spawn(|| self.copies(name));
            std::thread::sleep(Duration::from_secs(1));
            signal(Signal::CONT);
            copies.join().unwrap()
        })
    }

    fn used_by_each(&self) -> Vec<u64> {
        let rows = self.cluster.rows();
        rows.iter()
            .map(|row| row["used_bytes"].as_u64().unwrap())
            .collect()
    }

    fn used(&self) -> u64 {
        self.used_by_each().iter().sum()
    }

    /// All copies of all chunks are in sync.
    fn wait_for_all_copies(&self) {
        wait_until("all copies are in sync", || {
            let chunks = self.cluster.chunks();
            let whole =
                |chunk: &serde_json::Value| chunk["in_sync"].as_array().is_some_and(|nodes| nodes.len() == 3);
            chunks.len() == CHUNKS as usize && chunks.iter().all(whole)
        });
    }

    /// Writes the same byte over all that is only written now and then.
    fn fill(&self, byte: u8) {
        let session = Session::connect(&self.cluster.address()[..], "data").unwrap();
        let device = session.device(Nearby::Socket);
        let written = reactor::run(&reactor::Config::default(), async {
            let channel = device.open_channel().unwrap();
            for at in (FILL_AT..FILL_AT + FILL_BYTES).step_by(256 << 10) {
                let mut bytes = BufferPool::current().allocate(256 << 10).await.unwrap();
                bytes.fill(byte);
                channel
                    .write(Lba(at / BLOCK as u64), bytes.freeze())
                    .await
                    .unwrap();
            }
            channel.flush().await.unwrap();
        });
        written.unwrap();
    }
}

fn filled(image: &[u8], byte: u8) -> bool {
    let filled = &image[FILL_AT as usize..(FILL_AT + FILL_BYTES) as usize];
    filled.iter().all(|found| *found == byte)
}

#[test]
fn a_snapshot_is_one_moment_of_a_volume_that_is_written_and_stays_as_it_was() {
    let mut test = Test {
        cluster: Nodes::start(Place::in_memory("snapshots"), &[], 3),
    };
    let create = "volume create data --size 64MiB --chunk-size 8MiB";
    test.cluster.succeed(&create.split(' ').collect::<Vec<_>>());
    test.fill(1);
    let load = Load::start(&test.cluster.address());
    load.wait_for_more(100);

    // Looked at without a snapshot it is not one moment: the test would see it.
    let mut looks = 0..200;
    assert!(
        looks.any(|_| writes_in(&test.read("data")).is_none()),
        "reading block after block while three write is never seen to be no moment"
    );

    let mut images = Vec::new();
    for name in ["first", "second", "third"] {
        images.push((name, test.snapshot(&load, name)));
        load.wait_for_more(100);
    }
    assert!(images.iter().all(|(_, image)| filled(image, 1)));
    assert_eq!(test.copies("first"), (3, 3));
    assert_eq!(test.copies_of_busy_nodes("first"), (3, 3));
    test.fill(2);

    // A node is killed: until its copies are left out, nothing can be cut; then the snapshot is made of the others.
    test.cluster.kill_node(3);
    let image = test.snapshot(&load, "during");
    assert!(filled(&image, 2));
    images.push(("during", image));
    load.wait_for_more(100);
    assert_eq!(test.copies("during").0, 2);
    test.cluster.start_node(3);
    test.cluster.wait_for_living(3);
    test.wait_for_all_copies();
    // What it had of the others it has still, which nobody knows before it has said so, and it makes its copy of the one that was made
    // without it.
    wait_until("the node has said which copies it has", || {
        test.listed()
            .iter()
            .all(|snapshot| snapshot["copies"].is_object())
    });
    assert_eq!(test.copies("first"), (3, 3));
    wait_until("the node has made the copy that it missed", || {
        test.copies("during") == (3, 3)
    });
    // Another node is gone: the copies that are left are read.
    test.cluster.kill_node(1);
    for (name, image) in &images {
        assert!(test.read(&format!("data@{name}")) == *image, "{name} has changed");
    }
    test.cluster.start_node(1);
    test.cluster.wait_for_living(3);
    test.wait_for_all_copies();

    let refused = test.cluster.refused(&["volume", "delete", "data"]);
    assert!(
        refused.contains("has 4 snapshots, which would be lost with it"),
        "{refused}"
    );
    let refused = test
        .cluster
        .refused(&["volume", "snapshot", "create", "data", "first"]);
    assert!(refused.contains("has a snapshot \"first\" already"), "{refused}");
    let refused = test
        .cluster
        .refused(&["volume", "read", "data@friday", "--out", "/dev/shm/no"]);
    assert!(
        refused.contains("has no complete snapshot \"friday\""),
        "{refused}"
    );

    // The space of what only the first three show comes back, and what the volume and the fourth show stays.
    // Each of them: one that has just been started says nothing of its disk at first.
    wait_until("the nodes have said what they use", || {
        test.used_by_each().iter().all(|used| *used > FILL_BYTES)
    });
    let before = test.used();
    println!("used by each, with all snapshots: {:?}", test.used_by_each());
    for name in ["first", "second", "third"] {
        test.cluster
            .succeed(&["volume", "snapshot", "delete", "data", name]);
    }
    wait_until("the deleted snapshots are gone", || test.listed().len() == 1);
    println!("used by each, soon after: {:?}", test.used_by_each());
    wait_until("the space is back", || {
        before.saturating_sub(test.used()) >= 3 * FILL_BYTES
    });
    let (name, image) = images.pop().unwrap();
    assert!(test.read(&format!("data@{name}")) == image, "{name} has changed");
    load.wait_for_more(100);
    let acknowledged = load.end();
    let live = test.read("data");
    assert!(filled(&live, 2));
    assert_eq!(writes_in(&live).unwrap(), acknowledged);
    test.cluster
        .succeed(&["volume", "snapshot", "delete", "data", "during"]);
    test.cluster.succeed(&["volume", "delete", "data"]);
}

#[test]
fn a_file_system_is_read_in_a_snapshot_of_its_volume() {
    let cluster = Nodes::start(Place::in_memory("snapshots-fs"), &[], 3);
    let files = cluster.import(
        "volume create data --size 128MiB --chunk-size 16MiB",
        85,
        200 << 10,
    );
    cluster.succeed(&["volume", "snapshot", "create", "data", "before"]);
    let was = cluster.place.0.join("was");
    std::fs::create_dir(&was).unwrap();
    for entry in std::fs::read_dir(&files).unwrap() {
        let path = entry.unwrap().path();
        std::fs::rename(&path, was.join(path.file_name().unwrap())).unwrap();
        std::fs::write(&path, "another").unwrap();
    }
    cluster.succeed(&["fs", "import", files.to_str().unwrap(), "data"]);
    cluster.compare(&files, "now");
    let out = cluster.place.0.join("then");
    cluster.succeed(&["fs", "export", "data@@before", out.to_str().unwrap()]);
    for entry in std::fs::read_dir(&was).unwrap() {
        let name = entry.unwrap().file_name();
        let (then, was) = (std::fs::read(out.join(&name)), std::fs::read(was.join(&name)));
        assert!(then.unwrap() == was.unwrap(), "{name:?} is another");
    }
    cluster.succeed(&["fs", "fsck", "data@@before"]);
    let refused = cluster.refused(&["fs", "import", files.to_str().unwrap(), "data@@before"]);
    assert!(refused.contains("a snapshot is never written"), "{refused}");
    let refused = cluster.refused(&["fs", "ls", "data@@after"]);
    assert!(
        refused.contains("has no complete snapshot \"after\""),
        "{refused}"
    );
}
