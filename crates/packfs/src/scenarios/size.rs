//! Proved here: the index of files with 20-byte names takes less than 100 bytes a file in the cache, name and all included
//! (140 when they came unsorted),
//! and a warm `read_many` of neighbours needs few reads. The figures are printed.

use std::rc::Rc;

use bdev::BlockDevice;
use bdev::fence::TokenKeeper;
use bdev::memory::MemoryDevice;
use foundation::{BlockCount, Random};

use super::support::{leases, on_host, world};
use crate::lease::memory::LocalLeases;
use crate::{
    Attributes, FormatOptions, InodeNumber, Medium, Reader, ReaderOptions, Target, Timestamp, Writer,
    WriterOptions, format,
};

const FILES: u32 = 20_000;

/// 20 bytes that have nothing in common.
fn name(random: &mut Random) -> Vec<u8> {
    format!("{:016x}.jpg", random.next_u64()).into_bytes()
}

#[test]
fn a_cached_index_is_small() {
    measure(true, 100.0);
}

/// As a tree is that was filled in the order of arrival: pages are not full.
#[test]
fn a_cached_index_is_small_when_names_come_unsorted() {
    measure(false, 140.0);
}

fn measure(sorted: bool, limit: f64) {
    let (simulation, host) = world(1);
    on_host(&simulation, host, move || async move {
        let device = MemoryDevice::new(4096, BlockCount(64 << 10)).unwrap();
        let medium = Medium::new(TokenKeeper::new().over(device.open_channel().unwrap()));
        format(medium.clone(), leases(), "a formatter", &FormatOptions::default()).await.unwrap();
        let leases = Rc::new(LocalLeases::new());
        let mut writer = Writer::open(medium.clone(), leases.clone(), &WriterOptions::default())
            .await
            .unwrap();
        let mut random = Random::from_seed(2);
        let mut paths = Vec::new();
        for directory in 0..20 {
            let a = Attributes::default();
            let parent = format!("class {directory}").into_bytes();
            let inode = writer.mkdir(InodeNumber::ROOT, &parent, &a).await.unwrap();
            let mut names: Vec<Vec<u8>> = (0..FILES / 20).map(|_| name(&mut random)).collect();
            if sorted {
                names.sort();
            }
            for name in names {
                assert_eq!(name.len(), 20);
                let mut time = |base: i64| Timestamp {
                    seconds: 1_700_000_000 + base + random.below(1000) as i64,
                    nanoseconds: random.below(1_000_000_000) as u32,
                };
                let a = Attributes {
                    mode: 0o644,
                    uid: 100_000,
                    gid: 100_000,
                    mtime: time(0),
                    atime: time(50_000),
                    ctime: time(90_000),
                };
                writer.create_file(inode, &name, &a, &[1; 1000]).await.unwrap();
                paths.push([&parent[..], b"/", &name].concat());
            }
        }
        writer.commit().await.unwrap();
        let reader = Reader::open(medium, leases, &ReaderOptions::default())
            .await
            .unwrap();
        random.shuffle(&mut paths);
        for path in &paths {
            reader.lookup(path).await.unwrap();
        }
        let held = reader.statistics();
        let bytes = held.index_bytes() as f64 / f64::from(FILES);
        println!("fully cached index (sorted: {sorted}): {bytes:.1} bytes a file with 20-byte names, everything counted");
        println!("{held:?}");
        assert!(bytes < limit, "{bytes:.1} bytes a file");
        let filled = held.cache.bytes / held.cache.pages;
        assert!(!sorted || filled > 3700, "pages of {filled} bytes after inserting in order");
        assert_eq!(held.cache.evicted, 0);
        let misses = held.cache.misses;
        paths.sort();
        for part in paths.chunks(500) {
            let targets: Vec<_> = part.iter().map(|path| Target::Path(path)).collect();
            for content in reader.read_many(&targets).await {
                assert_eq!(content.unwrap().parts().len(), 1);
            }
        }
        let now = reader.statistics();
        assert_eq!(now.cache.misses, misses, "a warm index reads no pages");
        assert!(
            !sorted || now.reads < u64::from(FILES) / 50,
            "{} reads for {FILES} neighbouring files",
            now.reads
        );
        println!("{} reads for {FILES} files", now.reads);
    })
    .unwrap();
}
