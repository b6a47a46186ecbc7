//! Proved here: the index of files with 20-byte names takes less than 120 bytes a file in the cache, name included,
//! and a warm `read_many` of neighbours needs few reads. The figures are printed.

use std::rc::Rc;

use bdev::BlockDevice;
use bdev::memory::MemoryDevice;
use foundation::{BlockCount, Random};

use super::support::{on_host, world};
use crate::lease::memory::LocalLeases;
use crate::{
    Attributes, FormatOptions, InodeNumber, Medium, Reader, ReaderOptions, Target, Timestamp, Writer,
    WriterOptions, format,
};

const FILES: u32 = 20_000;

fn name(directory: u32, index: u32) -> Vec<u8> {
    // 20 bytes, as little alike as file names are.
    format!("img-{directory:02}-{:08x}.jpeg", index.wrapping_mul(0x9e37_79b1)).into_bytes()
}

#[test]
fn a_cached_index_is_small() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        let device = MemoryDevice::new(4096, BlockCount(64 << 10)).unwrap();
        let medium = Medium::new(device.open_channel().unwrap());
        format(medium.clone(), &FormatOptions::default()).await.unwrap();
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
            let mut names: Vec<Vec<u8>> = (0..FILES / 20).map(|index| name(directory, index)).collect();
            names.sort();
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
        let bytes = (held.cache.bytes + held.directory_bytes) as f64 / f64::from(FILES);
        println!("fully cached index: {bytes:.1} bytes a file with 20-byte names, everything counted");
        println!("{held:?}");
        assert!(bytes < 120.0, "{bytes:.1} bytes a file");
        assert_eq!(held.cache.evicted, 0);
        let misses = held.cache.misses;
        for part in paths.chunks(500) {
            let targets: Vec<_> = part.iter().map(|path| Target::Path(path)).collect();
            for content in reader.read_many(&targets).await {
                assert_eq!(content.unwrap().parts().len(), 1);
            }
        }
        let now = reader.statistics();
        assert_eq!(now.cache.misses, misses, "a warm index reads no pages");
        assert!(
            now.reads < u64::from(FILES) / 2,
            "{} reads for {FILES} neighbouring files",
            now.reads
        );
        println!("{} reads for {FILES} files", now.reads);
    })
    .unwrap();
}
