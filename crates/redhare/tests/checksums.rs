//! Bits that change on a node's disk, blocks that turn to zeros and blocks that change places, while the node runs, while it is
//! killed and while everything is down: every byte that clients and hosts read is right, and the disk is mended. So are copies of
//! snapshots.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::support::{Cluster, LIMIT, Place, free_ports, kill, wait_until};
use bdev::{BlockDevice, Channel, ChannelExt, IoError};
use client::{Nearby, Session};
use fabrics::initiator::{ConnectOptions, RemoteDevice, RemoteOptions};
use foundation::{Lba, Random};
use reactor::{BufferPool, time};
use rustix::process::Signal;

const VOLUME: &str = "kept";
const BLOCK_BYTES: usize = 4096;
/// Blocks that are written, spread over four chunks.
const BLOCKS: u64 = 32;
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";

/// One cluster at a time.
static TURN: Mutex<()> = Mutex::new(());

fn lba(block: u64) -> Lba {
    // An odd number of stripe units of 256 KiB apart.
    Lba(block * 7 * (256 << 10) / BLOCK_BYTES as u64)
}

fn pattern(block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    Random::from_seed(1000 + block).fill(&mut bytes);
    bytes
}

fn on_reactor<T>(work: impl AsyncFnOnce() -> T) -> T {
    reactor::run(&reactor::Config::default(), async { work().await }).unwrap()
}

async fn write_all(channel: &dyn Channel) {
    for block in 0..BLOCKS {
        let mut buffer = BufferPool::current().allocate(BLOCK_BYTES).await.unwrap();
        buffer.copy_from_slice(&pattern(block));
        channel.write(lba(block), buffer.freeze()).await.unwrap();
    }
    channel.flush().await.unwrap();
}

async fn read_all(channel: &dyn Channel, who: &str) {
    for block in 0..BLOCKS {
        let room = BufferPool::current().allocate(BLOCK_BYTES).await.unwrap();
        let (result, bytes) = channel.read(lba(block), room).await;
        check(block, result, &bytes, who);
    }
}

fn check(block: u64, result: Result<(), IoError>, bytes: &[u8], who: &str) {
    result.unwrap_or_else(|error| panic!("{who} cannot read block {block}: {error}"));
    assert!(
        *bytes == pattern(block)[..],
        "{who} reads something else in block {block}"
    );
}

/// A file that is a node's disk, and where the blocks lie in it.
struct Disk {
    file: File,
    offsets: Vec<u64>,
}

impl Disk {
    fn of(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let patterns: Vec<Vec<u8>> = (0..BLOCKS).map(pattern).collect();
        let mut offsets = vec![None; BLOCKS as usize];
        for (at, page) in pages(&file) {
            if let Some(block) = patterns.iter().position(|pattern| *pattern == page) {
                assert_eq!(offsets[block].replace(at), None, "block {block} is there once");
            }
        }
        let offsets = offsets
            .into_iter()
            .map(|at| at.expect("each block is on the disk"));
        Self {
            file,
            offsets: offsets.collect(),
        }
    }

    fn read(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let at = self.offsets[block as usize];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn write(&self, block: u64, bytes: &[u8]) {
        self.file
            .write_all_at(bytes, self.offsets[block as usize])
            .unwrap();
        self.file.sync_all().unwrap();
    }

    /// Flips a bit of one block, makes one zeros, gives two each other's bytes, of the eight from `first` on.
    fn harm(&self, first: u64) {
        let mut flipped = pattern(first);
        flipped[777] ^= 0x20;
        self.write(first, &flipped);
        self.write(first + 2, &[0; BLOCK_BYTES]);
        self.write(first + 4, &pattern(first + 6));
        self.write(first + 6, &pattern(first + 4));
        assert!(self.wrong().len() >= 4);
    }

    /// Blocks that are not what was written.
    fn wrong(&self) -> Vec<u64> {
        (0..BLOCKS)
            .filter(|&block| self.read(block) != pattern(block))
            .collect()
    }
}

/// The pages of a file that are not zeros.
fn pages(file: &File) -> Vec<(u64, Vec<u8>)> {
    const PIECE: usize = 1 << 20;
    let (mut found, mut piece) = (Vec::new(), vec![0; PIECE]);
    let length = file.metadata().unwrap().len();
    for at in (0..length).step_by(PIECE) {
        let count = PIECE.min((length - at) as usize);
        file.read_exact_at(&mut piece[..count], at).unwrap();
        if piece[..count].iter().all(|byte| *byte == 0) {
            continue;
        }
        let pages = (at..)
            .step_by(BLOCK_BYTES)
            .zip(piece[..count].chunks(BLOCK_BYTES));
        found.extend(pages.map(|(at, page)| (at, page.to_vec())));
    }
    found
}

/// Regions that are marked in the chunk records of a disk; while its target runs, more may be in its journal: what is wrong in them after a crash of everything is not seen.
fn marked_regions(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    let mut newest = std::collections::BTreeMap::new();
    for (at, page) in pages(&file) {
        if page[..7] != *b"RHCPSLT" {
            continue;
        }
        let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        let (generation, length) = (number(8), number(16) as usize);
        let mut body = vec![0; length];
        file.read_exact_at(&mut body, at + 28).unwrap();
        // One that is being written is not there yet.
        let Ok(record) = volume::ChunkRecord::decode(&body) else {
            return usize::MAX;
        };
        let marks = record.intent.len();
        let entry = newest.entry(record.chunk).or_insert((generation, marks));
        if generation > entry.0 {
            *entry = (generation, marks);
        }
    }
    assert_eq!(newest.len(), 4, "the records of four chunks with checksums");
    newest.values().map(|(_, marks)| marks).sum()
}

struct Kept {
    cluster: Cluster,
    session: Arc<Session>,
    place: Place,
}

fn disk_of(cluster: &Cluster, node: u32) -> PathBuf {
    cluster.directory(node).join("disk")
}

impl Kept {
    fn new(name: &str) -> Self {
        Self::new_with(name, &[])
    }

    /// With further arguments of `redhare up`.
    fn new_with(name: &str, further: &[&str]) -> Self {
        let place = Place::in_memory(name);
        let cluster = Cluster::start_with(&place.0.join("cluster"), free_ports(), further);
        cluster.succeed(&[
            "volume",
            "create",
            VOLUME,
            "--size",
            "64MiB",
            "--chunk-size",
            "16MiB",
            "--checksums",
            "on",
        ]);
        let shown = cluster.json(&["volume", "show", VOLUME]);
        assert_eq!(shown["checksums"], true);
        assert_eq!(cluster.json(&["status"])["volumes"][0]["checksums"], true);
        cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
        let session = Session::connect(&cluster.address(), VOLUME).unwrap();
        let device = session.device(Nearby::Disk);
        on_reactor(async || write_all(&*device.open_channel().unwrap()).await);
        Self {
            cluster,
            session,
            place,
        }
    }

    /// Reads everything by a client until nothing is wrong on the disk: of each block every copy in turn, since of several it
    /// would read the one that answers soonest.
    fn client_reads_until_mended(&self, disk: &Disk) {
        let device = self.session.device(Nearby::Disk);
        on_reactor(async || {
            let channel = device.open();
            let deadline = Instant::now() + LIMIT;
            for copy in (0..3).cycle() {
                for block in 0..BLOCKS {
                    let room = BufferPool::current().allocate(BLOCK_BYTES).await.unwrap();
                    let (result, bytes) = channel.round().read(lba(block), room, copy).await;
                    check(block, result, &bytes, "a client");
                }
                let wrong = disk.wrong();
                if wrong.is_empty() {
                    return;
                }
                assert!(
                    Instant::now() < deadline,
                    "blocks {wrong:?} are still wrong on the disk"
                );
            }
        });
    }

    /// Reads everything by a portal on that node.
    fn portal_reads(&self, node: u32) {
        let id = self.cluster.id(node);
        let said = self.cluster.json(&["volume", "export", VOLUME, "--on", &id]);
        let address: SocketAddr = said["portals"][0]["address"].as_str().unwrap().parse().unwrap();
        let nqn = said["nqn"].as_str().unwrap().to_owned();
        on_reactor(async || {
            let deadline = Instant::now() + LIMIT;
            let device = loop {
                let (nqn, host) = (nqn.parse().unwrap(), HOST.parse().unwrap());
                let connect = ConnectOptions::new(address, nqn, host, [9; 16]);
                match RemoteDevice::connect(RemoteOptions::new(connect, 1)).await {
                    Ok(device) => break device,
                    Err(error) => assert!(Instant::now() < deadline, "no portal: {error}"),
                }
                time::sleep(Duration::from_millis(50)).await;
            };
            read_all(&*device.open_channel().unwrap(), "a host").await;
        });
    }

    /// Waits until the masters say so many blocks of copies damaged, repaired and lost, and that of the cluster.
    fn wait_for_blocks(&self, blocks: [u64; 3], verdict: &str) -> serde_json::Value {
        let mut status = serde_json::Value::Null;
        wait_until(&format!("the masters say {blocks:?}"), || {
            status = self.cluster.json(&["status"]);
            let volume = &status["volumes"][0];
            let fields = ["damaged_blocks", "repaired_blocks", "lost_blocks"];
            fields.map(|field| volume[field].as_u64().unwrap()) == blocks
        });
        assert_eq!(status["health"]["verdict"], verdict, "{}", status["health"]);
        status
    }

    /// Waits until the masters say that snapshots have so many lost blocks, each by its name, and that of the cluster.
    fn wait_for_lost_of_snapshots(&self, lost: serde_json::Value, verdict: &str) {
        let mut status = serde_json::Value::Null;
        wait_until(&format!("the masters say {lost} of snapshots"), || {
            status = self.cluster.json(&["status"]);
            status["volumes"][0]["lost_of_snapshots"] == lost
        });
        assert_eq!(status["health"]["verdict"], verdict, "{}", status["health"]);
    }

    fn wait_until_all_in_sync(&self) {
        self.cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
    }
}

#[test]
fn what_changes_on_the_disk_of_a_node_that_runs_is_read_right_and_mended() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = Kept::new("sums-running");
    let disk = Disk::of(&disk_of(&kept.cluster, 2));
    let past = kept.session.past_reads();
    // Until the client reads past the nodes, so that it is the one to find it.
    let device = kept.session.device(Nearby::Disk);
    on_reactor(async || {
        let channel = device.open_channel().unwrap();
        let deadline = Instant::now() + LIMIT;
        while kept.session.past_reads() < past + 100 {
            read_all(&*channel, "a client").await;
            assert!(Instant::now() < deadline, "no reads past nodes");
        }
    });
    disk.harm(0);
    let past = kept.session.past_reads();
    kept.client_reads_until_mended(&disk);
    assert!(
        kept.session.past_reads() > past,
        "the client has read past the nodes"
    );
    assert!(kept.cluster.target_log(2).contains("do not fit their checksums"));
    disk.harm(8);
    kept.portal_reads(2);
    kept.client_reads_until_mended(&disk);
    kept.cluster.end();
}

#[test]
fn what_changes_while_a_node_or_everything_is_down_is_read_right_and_mended() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut kept = Kept::new("sums-down");
    let disk = Disk::of(&disk_of(&kept.cluster, 2));

    // Its engine would start it again at once.
    let (engine, life) = (kept.cluster.engine_lock(2), kept.cluster.incarnation(2));
    assert!(agent::lock::signal(&engine, Signal::STOP).unwrap());
    kill(&kept.cluster.target_lock(2));
    disk.harm(16);
    assert!(agent::lock::signal(&engine, Signal::CONT).unwrap());
    kept.cluster.wait_for_life_after(2, life);
    kept.wait_until_all_in_sync();
    kept.client_reads_until_mended(&disk);

    let paths: Vec<PathBuf> = (1..=3).map(|node| disk_of(&kept.cluster, node)).collect();
    let (data, port) = (kept.cluster.data.clone(), kept.cluster.port);
    // An end in good order moves what is marked in journals to the records, where it can be seen.
    let mut attempts = 0;
    let none_is_marked = || paths.iter().all(|path| marked_regions(path) == 0);
    loop {
        wait_until("no region is marked, since nothing is written", none_is_marked);
        kept.cluster.end();
        if none_is_marked() {
            break;
        }
        attempts += 1;
        assert!(attempts < 3, "regions are marked again though nothing is written");
        kept.cluster = Cluster::start(&data, port);
        kept.wait_until_all_in_sync();
    }
    disk.harm(24);
    kept.cluster = Cluster::start(&data, port);
    kept.wait_until_all_in_sync();
    kept.portal_reads(2);
    kept.session = Session::connect(&kept.cluster.address(), VOLUME).unwrap();
    kept.client_reads_until_mended(&disk);
    assert!(kept.cluster.target_log(2).contains("do not fit their checksums"));
    kept.cluster.end();
    drop(kept.place);
}

#[test]
fn a_scrub_finds_and_mends_what_nobody_reads_and_says_what_no_copy_has() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = Kept::new("sums-scrub");
    let disks: Vec<Disk> = (1..=3)
        .map(|node| Disk::of(&disk_of(&kept.cluster, node)))
        .collect();
    let scrub = |status: i32| {
        let output = kept
            .cluster
            .run(&["volume", "scrub", VOLUME, "--rate", "1GiB", "--json"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        let view: serde_json::Value = serde_json::from_str(&said).unwrap();
        // Three copies of all of it.
        let compared =
            view["compared_bytes"].as_u64().unwrap() + view["lost_blocks"].as_u64().unwrap() * 4096;
        assert_eq!(
            (compared, view["unreached_bytes"].as_u64()),
            (3 << 26, Some(0)),
            "{said}"
        );
        (
            view["repaired_blocks"].as_u64().unwrap(),
            view["lost_blocks"].as_u64().unwrap(),
        )
    };
    assert_eq!(scrub(0), (0, 0));
    kept.wait_for_blocks([0, 0, 0], "healthy");
    disks[0].harm(0);
    disks[2].harm(8);
    assert_eq!(scrub(0), (8, 0));
    assert!(disks.iter().all(|disk| disk.wrong().is_empty()));
    let status = kept.wait_for_blocks([8, 8, 0], "healthy");
    assert!(
        status["health"]["notes"][0]
            .as_str()
            .unwrap()
            .contains("8 blocks"),
        "{status}"
    );
    for disk in &disks {
        let mut flipped = pattern(5);
        flipped[9] ^= 1;
        disk.write(5, &flipped);
    }
    // Each of its copies is asked.
    assert_eq!(scrub(1), (0, 3));
    // It is one block of the volume.
    kept.wait_for_blocks([11, 8, 1], "critical");
    let said = kept.cluster.succeed(&["status"]);
    assert!(
        said.contains("is CRITICAL") && said.contains("1 blocks lost"),
        "{said}"
    );
    assert!(kept.cluster.run(&["volume", "scrub", "none"]).status.code() == Some(1));
    let device = kept.session.device(Nearby::Disk);
    on_reactor(async || write_all(&*device.open_channel().unwrap()).await);
    assert_eq!(scrub(0), (0, 0));
    kept.wait_for_blocks([11, 11, 0], "healthy");
    kept.cluster.end();
}

#[test]
fn what_nobody_reads_is_mended_in_the_background_and_disks_remember_when_they_were_compared() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = Kept::new_with("sums-background", &["--scrub-every", "2s"]);
    let path = disk_of(&kept.cluster, 2);
    let disk = Disk::of(&path);
    // More than once: what was right when it was first compared goes wrong later.
    for first in [0, 8] {
        disk.harm(first);
        wait_until("the disk is mended though nobody reads it", || {
            disk.wrong().is_empty()
        });
    }
    assert!(kept.cluster.target_log(2).contains("do not fit their checksums"));
    kept.cluster.end();
    // When that was stands with the copies.
    let bytes = std::fs::read(&path).unwrap();
    let name = b"redhare.scrubbed";
    assert!(bytes.windows(name.len()).any(|window| window == name));
}

/// A cluster whose volume has the snapshot "first", and since then other bytes everywhere: only the snapshot shows the old ones.
fn with_snapshot(name: &str, further: &[&str]) -> (Kept, Vec<Disk>) {
    let kept = Kept::new_with(name, further);
    let disks = (1..=3).map(|node| Disk::of(&disk_of(&kept.cluster, node)));
    let disks = disks.collect();
    kept.cluster
        .succeed(&["volume", "snapshot", "create", VOLUME, "first"]);
    let device = kept.session.device(Nearby::Disk);
    on_reactor(async || {
        let channel = device.open_channel().unwrap();
        for block in 0..BLOCKS {
            let mut buffer = BufferPool::current().allocate(BLOCK_BYTES).await.unwrap();
            buffer.fill(block as u8 + 1);
            channel.write(lba(block), buffer.freeze()).await.unwrap();
        }
        channel.flush().await.unwrap();
    });
    (kept, disks)
}

#[test]
fn what_rots_in_a_snapshot_is_mended_though_nobody_reads_it() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (kept, disks) = with_snapshot("sums-snapshot-background", &["--scrub-every", "2s"]);
    for (disk, first) in [(&disks[1], 0), (&disks[2], 8)] {
        disk.harm(first);
        wait_until("the disk is mended though nobody reads the snapshot", || {
            disk.wrong().is_empty()
        });
    }
    assert!(
        kept.cluster
            .target_log(2)
            .contains("blocks of a snapshot are mended")
    );
    kept.cluster.end();
}

#[test]
fn a_snapshot_is_read_right_while_a_copy_of_it_rots_and_a_scrub_names_what_no_copy_has() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (kept, disks) = with_snapshot("sums-snapshot", &[]);
    let snapshot = format!("{VOLUME}@first");
    let read = || {
        let path = kept.place.0.join("read");
        drop(std::fs::remove_file(&path));
        let out = path.to_str().unwrap();
        kept.cluster.succeed(&["volume", "read", &snapshot, "--out", out]);
        let bytes = std::fs::read(&path).unwrap();
        for block in 0..BLOCKS {
            let at = lba(block).0 as usize * BLOCK_BYTES;
            assert!(
                bytes[at..at + BLOCK_BYTES] == pattern(block)[..],
                "block {block} is read wrong"
            );
        }
    };
    // Whichever copy a reader asks: what it finds wrong is read from another, and mended behind it.
    disks[0].harm(0);
    disks[1].harm(8);
    read();
    disks[2].harm(16);
    let scrub = |status: i32| {
        let output = kept
            .cluster
            .run(&["volume", "scrub", VOLUME, "--rate", "1GiB", "--json"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        let view: serde_json::Value = serde_json::from_str(&said).unwrap();
        let found = &view["snapshots"][0];
        assert_eq!(found["name"], snapshot);
        let count = |field: &str| found[field].as_u64().unwrap();
        let compared = count("compared_bytes") + count("lost_blocks") * BLOCK_BYTES as u64;
        assert_eq!((compared, count("unreached_bytes")), (3 << 26, 0), "{said}");
        (count("repaired_blocks"), count("lost_blocks"))
    };
    assert!(scrub(0).0 >= 4);
    assert!(disks.iter().all(|disk| disk.wrong().is_empty()));
    assert_eq!(scrub(0), (0, 0));
    for disk in &disks {
        let mut flipped = pattern(5);
        flipped[9] ^= 1;
        disk.write(5, &flipped);
    }
    assert_eq!(scrub(1), (0, 3));
    // The three mean the same block.
    let lost = serde_json::json!([{ "snapshot": "first", "lost_blocks": 1 }]);
    kept.wait_for_lost_of_snapshots(lost, "critical");
    // One of them comes back: the others have it from there.
    disks[1].write(5, &pattern(5));
    let (repaired, lost) = scrub(0);
    assert!(repaired <= 2 && lost == 0, "{repaired} {lost}");
    kept.wait_for_lost_of_snapshots(serde_json::json!([]), "healthy");
    assert!(disks.iter().all(|disk| disk.wrong().is_empty()));
    read();
    kept.cluster.end();
}
