//! A client that reads the disks of this machine's nodes past them, while another one writes and nodes stop and die: what
//! was acknowledged before a read began is what it reads, or something newer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::support::{Cluster, Place, free_ports, kill, wait_until};
use bdev::{BlockDevice, ChannelExt};
use client::{Nearby, Session};
use foundation::Lba;
use reactor::{BufferMut, BufferPool, time};
use rustix::process::Signal;

const VOLUME: &str = "watched";
const BLOCK_BYTES: usize = 4096;
/// Blocks that are written, all in different chunks.
const BLOCKS: u64 = 8;
const STEP: u64 = (16 << 20) / BLOCK_BYTES as u64;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Of each block the version that was acknowledged last.
    acknowledged: [AtomicU64; BLOCKS as usize],
    reads: AtomicU64,
}

fn fill(version: u64, buffer: &mut BufferMut) {
    buffer
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&version.to_le_bytes()));
}

fn version_of(bytes: &[u8]) -> Option<u64> {
    let mut words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let first = words.next()?;
    words.all(|word| word == first).then_some(first)
}

async fn room() -> BufferMut {
    BufferPool::current().allocate(BLOCK_BYTES).await.unwrap()
}

/// Runs a client in a thread of its own.
fn client<F: Future<Output = ()>>(
    session: &Arc<Session>,
    work: impl FnOnce(std::rc::Rc<dyn bdev::Channel>) -> F + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let device = session.device(Nearby::Disk);
    std::thread::spawn(move || {
        reactor::run(&reactor::Config::default(), async {
            work(device.open_channel().unwrap()).await
        })
        .unwrap();
    })
}

/// Writes each block every fraction of a second: between two writes its chunk may be read past its nodes.
fn writer(cluster: &Cluster, shared: &Arc<Shared>) -> std::thread::JoinHandle<()> {
    let session = Session::connect(&cluster.address(), VOLUME).unwrap();
    let shared = shared.clone();
    client(&session.clone(), async move |channel| {
        let _session = session;
        let mut version = 0;
        while !shared.stop.load(Ordering::Relaxed) {
            version += 1;
            for block in 0..BLOCKS {
                let mut buffer = room().await;
                fill(version, &mut buffer);
                channel.write(Lba(block * STEP), buffer.freeze()).await.unwrap();
                shared.acknowledged[block as usize].store(version, Ordering::SeqCst);
            }
            time::sleep(Duration::from_millis(400)).await;
        }
    })
}

fn reader(session: &Arc<Session>, shared: &Arc<Shared>, seed: u64) -> std::thread::JoinHandle<()> {
    let shared = shared.clone();
    client(session, async move |channel| {
        let mut random = foundation::Random::from_seed(seed);
        let mut seen = HashMap::new();
        while !shared.stop.load(Ordering::Relaxed) {
            let block = random.below(BLOCKS);
            let least = shared.acknowledged[block as usize].load(Ordering::SeqCst);
            let (result, bytes) = channel.read(Lba(block * STEP), room().await).await;
            result.unwrap();
            let found = version_of(&bytes).expect("a block is of one version");
            let newest = seen.entry(block).or_insert(0);
            assert!(
                found >= least && found >= *newest,
                "block {block} holds version {found}: {least} was acknowledged, and {newest} was read before"
            );
            *newest = found;
            // Not all the time: with two processors a node that gets none for a while is rightly left out.
            if shared.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) {
                time::sleep(Duration::from_millis(1)).await;
            }
        }
    })
}

/// One cluster at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A cluster with a client that writes and two that read.
struct Watched {
    cluster: Cluster,
    session: Arc<Session>,
    shared: Arc<Shared>,
    clients: Vec<std::thread::JoinHandle<()>>,
    _place: Place,
    _turn: MutexGuard<'static, ()>,
}

impl Watched {
    fn start(name: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Place::in_memory(name);
        let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
        cluster.succeed(&[
            "volume",
            "create",
            VOLUME,
            "--size",
            "128MiB",
            "--chunk-size",
            "16MiB",
        ]);
        cluster.wait_for_chunks(VOLUME, &[1, 2, 3], &[], &[]);
        let shared = Arc::new(Shared::default());
        let session = Session::connect(&cluster.address(), VOLUME).unwrap();
        let clients = vec![
            writer(&cluster, &shared),
            reader(&session, &shared, 1),
            reader(&session, &shared, 2),
        ];
        let watched = Self {
            cluster,
            session,
            shared,
            clients,
            _place: place,
            _turn: turn,
        };
        watched.goes_on("all are well", 2000);
        watched
    }

    /// Waits until so many more reads went past nodes, and everything was written twice more.
    fn goes_on(&self, what: &str, more: u64) {
        let shared = &self.shared;
        let (reads, past) = (shared.reads.load(Ordering::Relaxed), self.session.past_reads());
        let written = shared.acknowledged[0].load(Ordering::Relaxed);
        wait_until(
            &format!("{what}: {more} more reads past nodes, and two writes of all"),
            || {
                assert!(
                    !self.clients.iter().any(|client| client.is_finished()),
                    "{what}: a client has failed"
                );
                self.session.past_reads() >= past + more
                    && shared.acknowledged[0].load(Ordering::Relaxed) >= written + 2
            },
        );
        let read = shared.reads.load(Ordering::Relaxed) - reads;
        println!(
            "{what}: {} of {read} reads went past nodes",
            self.session.past_reads() - past
        );
    }

    fn end(self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
        self.cluster.end();
    }
}

#[test]
fn what_is_read_past_a_node_that_stands_still_is_never_old() {
    let watched = Watched::start("past-still");
    // Its copies are left out, and what its board shows ends with its grants.
    // Not the write node of the first block: that a write node stands still is found out only by another one's write.
    let leads = watched.cluster.json(&["volume", "show", VOLUME])["chunks"][0]["write_node"].clone();
    let number = if leads == watched.cluster.id(2).as_str() {
        3
    } else {
        2
    };
    let target = watched.cluster.target_lock(number);
    assert!(agent::lock::signal(&target, Signal::STOP).unwrap());
    watched.goes_on("one stands still", 500);
    std::thread::sleep(Duration::from_secs(4));
    watched.goes_on("it was left out", 2000);
    assert!(agent::lock::signal(&target, Signal::CONT).unwrap());
    watched.goes_on("it goes on", 2000);
    watched.end();
}

#[test]
fn what_is_read_past_a_node_that_dies_is_never_old() {
    let watched = Watched::start("past-dead");
    // The others go on as soon as its end is proved, long before its grants would have ended.
    let life = watched.cluster.incarnation(3);
    kill(&watched.cluster.target_lock(3));
    watched.goes_on("one has died", 2000);
    watched.cluster.wait_for_life_after(3, life);
    watched.goes_on("it lives again", 2000);
    watched.end();
}
