//! Proved here, with `redhare up`: `fs fsck --repair` mends the file system of a cluster's volume, whose damage every copy has. A writer that
//! holds the volume's lease writes noise over pages and content, as a mistake of a program or of a machine's memory would: the volume's own checksums then fit the noise, so
//! that no copy is right. A check finds it and writes nothing; a repair brings back what can be, names what is lost, and leaves everything else byte for byte; a
//! second check finds nothing, or the same that cannot be repaired. Imports and snapshots go on afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use crate::support::{Cluster, Place, free_ports};
use bdev::{Channel, ChannelExt, Data, Fence, Operation};
use client::{MasterLeases, Nearby, Session};
use foundation::{BlockCount, Lba, Random};
use packfs::format::PagePointer;
use packfs::format::page::Page;
use packfs::lease::LeaseSource;
use packfs::{Medium, Reader, ReaderOptions, Superblock, Target};
use reactor::BufferPool;
use serde_json::Value;

const PAGE_BYTES: usize = 4096;
/// A tree of two levels, with several leaves of entries.
const SMALL_FILES: u64 = 300;

/// The blocks of the volume, in pages of 4 KiB.
struct Raw {
    channel: Rc<dyn Channel>,
}

impl Raw {
    fn place(&self, page: u64) -> (Lba, BlockCount) {
        let block = u64::from(self.channel.geometry().block_bytes);
        let blocks = PAGE_BYTES as u64 / block;
        (Lba(page * blocks), BlockCount(blocks))
    }

    async fn read(&self, page: u64) -> Vec<u8> {
        let buffer = BufferPool::current().allocate(PAGE_BYTES).await.unwrap();
        let (status, bytes) = self.channel.read(self.place(page).0, buffer).await;
        status.unwrap();
        bytes.to_vec()
    }

    /// Writes noise over a page, under a writer's token.
    async fn spoil(&self, page: u64, writer_token: u64) {
        let mut buffer = BufferPool::current().allocate(PAGE_BYTES).await.unwrap();
        Random::from_seed(page).fill(&mut buffer);
        let (lba, blocks) = self.place(page);
        let fence = Fence {
            epoch: Default::default(),
            writer_token,
        };
        let data = Data::From(buffer.freeze());
        let write = Operation::Write { fua: true };
        let done = self.channel.execute(write, lba, blocks, data, Some(fence)).await;
        done.status.unwrap();
    }

    /// The superblock that counts, and its page.
    async fn newest(&self) -> (u64, Superblock) {
        let mut found = Vec::new();
        for page in [0, 16] {
            let decoded = Superblock::decode(&self.read(page).await, page * PAGE_BYTES as u64);
            found.extend(decoded.map(|superblock| (page, superblock)));
        }
        let newest = found
            .into_iter()
            .max_by_key(|(_, superblock)| superblock.generation);
        newest.expect("one of them is whole")
    }

    async fn page(&self, pointer: PagePointer) -> Page {
        Page::parse(&self.read(pointer.page).await, pointer).unwrap()
    }

    /// The page with these bytes at its beginning.
    async fn find(&self, bytes: &[u8], volume_bytes: u64) -> u64 {
        for page in 32..volume_bytes / PAGE_BYTES as u64 {
            if self.read(page).await.starts_with(bytes) {
                return page;
            }
        }
        panic!("the content stands nowhere");
    }
}

/// What is damaged.
#[derive(Clone, Copy)]
enum Victim<'a> {
    /// The newest tree's root.
    Root,
    /// One of its leaves.
    Leaf,
    /// The page where these bytes stand.
    Content(&'a [u8]),
    /// The superblock that counts.
    Superblock,
}

/// Writes noise over something while nobody has the volume open.
fn spoil(cluster: &Cluster, victim: Victim<'_>) {
    let done = reactor::run(&reactor::Config::default(), async {
        let session = Session::connect(cluster.address().as_str(), "data").unwrap();
        let raw = Raw {
            channel: Rc::new(session.device(Nearby::default()).open()),
        };
        let holder = "a program that makes a mistake";
        let leases = MasterLeases::new(session, holder).unwrap();
        let lease = leases.acquire_writer(holder).await.unwrap();
        let (place, superblock) = raw.newest().await;
        let page = match victim {
            Victim::Root => superblock.root.page,
            Victim::Leaf => {
                let tree = raw.page(superblock.root).await;
                assert_eq!(tree.level(), 1, "the test expects leaves below the root");
                // Entries come first. These are neither the first nor the last ones, to which later names are added.
                tree.child(1).page
            }
            Victim::Content(bytes) => raw.find(bytes, superblock.volume_bytes).await,
            Victim::Superblock => place,
        };
        raw.spoil(page, lease.token).await;
        leases.release_writer(lease.token).await.unwrap();
    });
    done.unwrap();
}

fn fsck(cluster: &Cluster, flags: &[&str]) -> (Option<i32>, Value) {
    let output = cluster.run(&[&["fs", "fsck", "data", "--json"], flags].concat());
    let said = serde_json::from_slice(&output.stdout);
    let report = said.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code(), report)
}

fn texts(report: &Value, field: &str) -> Vec<String> {
    serde_json::from_value(report[field].clone()).unwrap_or_default()
}

/// Every file of the source by name, with its bytes.
type Files = BTreeMap<String, Vec<u8>>;

fn make(source: &Path) -> Files {
    std::fs::create_dir(source).unwrap();
    let mut random = Random::from_seed(5);
    let mut files = Files::new();
    for index in 0..SMALL_FILES {
        let mut bytes = vec![0; random.between(200, 5000) as usize];
        random.fill(&mut bytes);
        files.insert(format!("small {index:03}"), bytes);
    }
    for index in 0..2 {
        let mut bytes = vec![0; 3 << 20];
        random.fill(&mut bytes);
        files.insert(format!("large {index}"), bytes);
    }
    for (name, bytes) in &files {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    files
}

/// Reads every file; gives the names of those that are not there with their bytes, and for each of them why.
fn missing(cluster: &Cluster, files: &Files) -> BTreeMap<String, String> {
    let read = reactor::run(&reactor::Config::default(), async {
        let session = Session::connect(cluster.address().as_str(), "data").unwrap();
        let channel: Rc<dyn Channel> = Rc::new(session.device(Nearby::default()).open());
        let leases = Rc::new(MasterLeases::new(session, "a test").unwrap());
        let reader = Reader::open(Medium::new(channel), leases, &ReaderOptions::default()).await;
        let reader = reader.unwrap();
        let mut missing = BTreeMap::new();
        for (name, bytes) in files {
            let found = reader.read_many(&[Target::Path(name.as_bytes())]).await.remove(0);
            match found {
                Ok(found) if found.to_vec() == *bytes => {}
                Ok(_) => panic!("{name} has other bytes, and nobody says so"),
                Err(error) => {
                    missing.insert(name.clone(), error.to_string());
                }
            }
        }
        reader.close().await.unwrap();
        missing
    });
    read.unwrap()
}

#[test]
fn damage_that_every_copy_has_is_mended_on_a_clusters_volume() {
    let place = Place::new("repair");
    let cluster = Cluster::start(&place.0.join("cluster"), free_ports());
    cluster.succeed(&[
        "volume",
        "create",
        "data",
        "--size",
        "64MiB",
        "--chunk-size",
        "16MiB",
    ]);
    cluster.succeed(&["fs", "format", "data"]);
    let source = place.0.join("source");
    let mut files = make(&source);
    cluster.succeed(&["fs", "import", source.to_str().unwrap(), "data"]);
    assert_eq!(fsck(&cluster, &["--data"]).0, Some(0));
    assert_eq!(missing(&cluster, &files), BTreeMap::new());

    // Nothing is lost with the root: all that stood below it is there.
    spoil(&cluster, Victim::Root);
    let (status, found) = fsck(&cluster, &[]);
    assert_eq!(
        (status, &found["uncorrected"]),
        (Some(4), &true.into()),
        "{found}"
    );
    assert_eq!(fsck(&cluster, &[]).1, found, "a check writes nothing");
    let (status, report) = fsck(&cluster, &["--repair"]);
    assert_eq!(
        (status, texts(&report, "lost")),
        (Some(1), Vec::new()),
        "{report}"
    );
    assert_eq!(fsck(&cluster, &["--repair", "--data"]).0, Some(0));
    assert_eq!(missing(&cluster, &files), BTreeMap::new());

    // A leaf that both trees on the volume have: its entries are gone, and named.
    let late = place.0.join("late");
    for (name, byte) in [("zz 1", 7u8), ("zz 2", 8)] {
        std::fs::create_dir(&late).unwrap();
        std::fs::write(late.join(name), vec![byte; 10_000]).unwrap();
        files.insert(name.to_owned(), vec![byte; 10_000]);
        cluster.succeed(&["fs", "import", late.to_str().unwrap(), "data"]);
        std::fs::remove_dir_all(&late).unwrap();
    }
    spoil(&cluster, Victim::Leaf);
    let (status, report) = fsck(&cluster, &["--repair"]);
    assert_eq!(status, Some(1), "{report}");
    let lost = texts(&report, "lost");
    let gone = missing(&cluster, &files);
    assert!((10..200).contains(&gone.len()), "{gone:?}");
    assert_eq!(lost.len(), gone.len(), "{lost:?} {gone:?}");
    for name in gone.keys() {
        let told = format!("\"{name}\" in directory 1 ");
        assert!(
            lost.iter().any(|text| text.starts_with(&told)),
            "{name}: {lost:?}"
        );
        files.remove(name);
    }
    assert_eq!(fsck(&cluster, &["--repair", "--data"]).0, Some(0));
    // They come back from where they came from.
    cluster.succeed(&["fs", "import", source.to_str().unwrap(), "data"]);
    for name in gone.keys() {
        files.insert(name.clone(), std::fs::read(source.join(name)).unwrap());
    }
    assert_eq!(missing(&cluster, &files), BTreeMap::new());

    // Content is not made up: the file stays an error until it is written anew, and only that one.
    spoil(&cluster, Victim::Content(&files["large 0"][..PAGE_BYTES]));
    assert_eq!(fsck(&cluster, &["--repair"]).0, Some(0), "the index is whole");
    let (status, report) = fsck(&cluster, &["--repair", "--data"]);
    assert_eq!(status, Some(4), "{report}");
    let left = texts(&report, "left");
    assert!(left.len() == 1 && left[0].starts_with("large 0: "), "{left:?}");
    let gone = missing(&cluster, &files);
    assert_eq!(gone.keys().collect::<Vec<_>>(), ["large 0"], "{gone:?}");

    // The newest superblock takes one commit with it; the one before stands, and the volume can be written.
    std::fs::create_dir(&late).unwrap();
    std::fs::write(late.join("zz 3"), "last").unwrap();
    cluster.succeed(&["fs", "import", late.to_str().unwrap(), "data"]);
    spoil(&cluster, Victim::Superblock);
    let (status, report) = fsck(&cluster, &["--repair"]);
    assert_eq!(status, Some(1), "{report}");
    assert!(report["superblock"].is_string(), "{report}");
    let gone = missing(&cluster, &files);
    assert_eq!(gone.keys().collect::<Vec<_>>(), ["large 0"], "{gone:?}");
    cluster.succeed(&["fs", "import", late.to_str().unwrap(), "data"]);
    cluster.succeed(&["fs", "snapshot", "create", "data", "after"]);
    files.insert("zz 3".to_owned(), b"last".to_vec());
    let gone = missing(&cluster, &files);
    assert_eq!(gone.keys().collect::<Vec<_>>(), ["large 0"], "{gone:?}");
    assert_eq!(fsck(&cluster, &[]).0, Some(0));
    cluster.end();
}
