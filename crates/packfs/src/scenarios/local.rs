//! Proved here, of a cache on a local disk: readers with one see what is on the volume, and nothing else, while a writer commits and
//! compacts and uses space again, while the cache's file is damaged, and after power was cut at any of its writes; its length never
//! changes; a disk that is full, and a first page that is damaged, turn it off with a warning and no reader fails. Two planted
//! bugs are found by the same tests: entries that are known by their place, and bytes that are not checked.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use foundation::Random;
use foundation::checksum::crc32c;
use reactor::sim::disk::DiskHandle;
use reactor::sim::{Host, Simulation};

use super::model::{Model, change, read_back};
use super::support::{leases, medium, on_host, small, world, writer_options};
use crate::format::entry::Layout;
use crate::lease::LeaseSource;
use crate::lease::memory::LocalLeases;
use crate::local::{FILE_BYTES_MIN, FILE_NAME, LocalCache, LocalCacheError, PlantedBug};
use crate::{InodeNumber, Medium, Reader, ReaderOptions, Timestamp, Writer, format};

const DIRECTORY: &str = "/cache";
const LIMIT: u64 = FILE_BYTES_MIN + 12_345;

/// What was warned of.
type Warnings = Rc<RefCell<Vec<String>>>;

async fn cache(warnings: &Warnings) -> Rc<LocalCache> {
    let told = warnings.clone();
    let warn = move |text: &str| told.borrow_mut().push(text.to_owned());
    LocalCache::open(Path::new(DIRECTORY), LIMIT, warn).await.unwrap()
}

/// A reader that has nothing in memory, so that everything comes from the local disk or the volume.
async fn cold(medium: &Medium, leases: Rc<dyn LeaseSource>, local: &Rc<LocalCache>) -> Reader {
    let options = ReaderOptions {
        cache_bytes: 0,
        ..ReaderOptions::default()
    };
    let medium = medium.clone().with_local(Some(local.clone()));
    Reader::open(medium, leases, &options).await.unwrap()
}

fn cache_disk(simulation: &Simulation, host: Host) -> DiskHandle {
    simulation.disk(host, &Path::new(DIRECTORY).join(FILE_NAME))
}

/// Until what was read is stored.
async fn settle() {
    reactor::time::sleep(Duration::from_millis(500)).await;
}

async fn formatted() -> (Medium, Rc<LocalLeases>, Writer) {
    let medium = medium();
    format(medium.clone(), leases(), "a formatter", &small())
        .await
        .unwrap();
    let leases = Rc::new(LocalLeases::new());
    let writer = Writer::open(medium.clone(), leases.clone(), &writer_options()).await;
    (medium, leases, writer.unwrap())
}

/// A reader that follows commits with a cache, which is opened again now and then, and damaged in between.
fn follows(seed: u64, bug: PlantedBug, damage: bool) -> Result<(), String> {
    let (simulation, host) = world(seed);
    let warnings = Warnings::default();
    let told = warnings.clone();
    // The file comes to be with the first opening.
    on_host(&simulation, host, move || async move { drop(cache(&told).await) }).unwrap();
    let disk = cache_disk(&simulation, host);
    let told = warnings.clone();
    on_host(&simulation, host, move || async move {
        let mut random = Random::from_seed(seed);
        let (medium, leases, mut writer) = formatted().await;
        let mut model = Model::new(small().root);
        let mut hits = 0;
        for round in 0..10 {
            for _ in 0..1 + random.below(25) {
                change(&mut writer, &mut model, &mut random).await.unwrap();
            }
            writer.commit_always().await.unwrap();
            if round % 3 == 2 {
                writer.compact(|_| ()).await.unwrap();
            }
            let local = cache(&told).await;
            local.bug.set(bug);
            for _ in 0..2 {
                let reader = cold(&medium, leases.clone(), &local).await;
                if read_back(&reader).await? != model {
                    return Err(format!("round {round} is not what was committed"));
                }
                reader.close().await.unwrap();
                settle().await;
                if damage {
                    // Behind the first page: index and entries.
                    for _ in 0..400 {
                        let at = 4096 + random.below(1 << 20);
                        let byte = disk.read(at, 1)[0] ^ (1 << random.below(8));
                        disk.damage(at, &[byte]);
                    }
                }
            }
            let done = local.statistics();
            assert!(done.on && done.file_bytes <= LIMIT);
            assert_eq!(disk.length_bytes(), done.file_bytes);
            hits += done.hits;
        }
        assert!(hits > 100, "nothing came from the cache: {hits}");
        assert_eq!(*told.borrow(), [""; 0]);
        Ok(())
    })
    .unwrap()
}

#[test]
fn readers_see_what_was_committed() {
    for seed in 0..4 {
        follows(seed, PlantedBug::None, false).unwrap();
    }
}

#[test]
fn flipped_bits_are_misses() {
    for seed in 0..4 {
        follows(seed, PlantedBug::None, true).unwrap();
    }
    assert!((0..4).any(|seed| follows(seed, PlantedBug::Unchecked, true).is_err()));
}

/// The same checksum, other bytes: CRC32C's polynomial, laid over them (RFC 3720, appendix B.4, bits in its reflected order).
pub(super) fn same_checksum(bytes: &[u8]) -> Vec<u8> {
    let mut other = bytes.to_vec();
    let polynomial: u64 = 1 | (0x82f6_3b78 << 1);
    for (byte, change) in other[100..].iter_mut().zip(&polynomial.to_le_bytes()[..5]) {
        *byte ^= change;
    }
    assert_ne!(other, bytes);
    assert_eq!(crc32c(&other), crc32c(bytes));
    other
}

/// Writes files over and over until one with `content` lies where the first did; gives its name.
async fn lay_there(writer: &mut Writer, content: &[u8], address: u64) -> Vec<u8> {
    let mut attributes = small().root;
    for number in 0..2000u32 {
        attributes.ctime = Timestamp {
            seconds: i64::from(number),
            nanoseconds: 0,
        };
        let name = format!("later {number}").into_bytes();
        let root = InodeNumber::ROOT;
        let made = writer
            .create_file(root, &name, &attributes, content)
            .await
            .unwrap();
        writer.commit().await.unwrap();
        let inode = writer.inode(made).await.unwrap();
        let Layout::Extents(extents) = &inode.layout else {
            panic!("a small file has its extents beside it")
        };
        if extents[0].address == address {
            return name;
        }
        writer.remove(root, &name).await.unwrap();
        writer.commit().await.unwrap();
    }
    panic!("the space of the first file was never used again");
}

/// Whether a file is read right that lies where another lay, is as long, and has the same checksum.
fn reuse_is_seen(bug: PlantedBug) -> bool {
    let (simulation, host) = world(5);
    on_host(&simulation, host, move || async move {
        let (medium, leases, mut writer) = formatted().await;
        let warnings = Warnings::default();
        let local = cache(&warnings).await;
        local.bug.set(bug);
        let first: Vec<u8> = (0..16_384u32).map(|number| (number * 7) as u8).collect();
        let root = InodeNumber::ROOT;
        let made = writer.create_file(root, b"first", &small().root, &first).await;
        made.unwrap();
        writer.commit().await.unwrap();
        let reader = cold(&medium, leases.clone(), &local).await;
        let file = reader.open_file(b"first").await.unwrap();
        assert_eq!(reader.read(&file, 0, 1 << 20).await.unwrap().to_vec(), first);
        let Layout::Extents(extents) = &file.inode.layout else {
            panic!("a small file has its extents beside it")
        };
        let address = extents[0].address;
        settle().await;
        let before = local.statistics().hits;
        assert_eq!(reader.read(&file, 0, 1 << 20).await.unwrap().to_vec(), first);
        assert_eq!(local.statistics().hits, before + 1, "the second read hits");
        reader.close().await.unwrap();
        writer.remove(root, b"first").await.unwrap();
        let second = same_checksum(&first);
        let name = lay_there(&mut writer, &second, address).await;
        let reader = cold(&medium, leases, &local).await;
        let file = reader.open_file(&name).await.unwrap();
        let found = reader.read(&file, 0, 1 << 20).await.unwrap().to_vec();
        assert!(found == first || found == second);
        found == second
    })
    .unwrap()
}

#[test]
fn what_lay_there_before_is_never_served() {
    assert!(reuse_is_seen(PlantedBug::None));
    assert!(
        !reuse_is_seen(PlantedBug::KeysByPlace),
        "the planted bug was not found"
    );
}

/// Cuts power at a write of the cache; whether there were as many.
fn survives(seed: u64, cut: u64) -> bool {
    let (simulation, host) = world(seed);
    let warnings = Warnings::default();
    let told = warnings.clone();
    let model = on_host(&simulation, host, move || async move {
        drop(cache(&told).await);
        let mut random = Random::from_seed(seed);
        let (_, _, mut writer) = formatted().await;
        let mut model = Model::new(small().root);
        for _ in 0..40 {
            change(&mut writer, &mut model, &mut random).await.unwrap();
        }
        writer.commit().await.unwrap();
        model
    })
    .unwrap();
    let disk = cache_disk(&simulation, host);
    disk.cut_power_at(disk.operations() + cut);
    let read = |wanted: Model, told: Warnings| {
        move || async move {
            let local = cache(&told).await;
            for _ in 0..3 {
                let reader = cold(&medium(), leases(), &local).await;
                assert!(read_back(&reader).await.unwrap() == wanted);
                reader.close().await.unwrap();
                settle().await;
            }
            local.statistics().hits
        }
    };
    let cut = on_host(&simulation, host, read(model.clone(), warnings.clone())).is_none();
    let hits = on_host(&simulation, host, read(model, warnings)).unwrap();
    assert!(hits > 0, "it is used again");
    cut
}

#[test]
fn power_may_be_cut_at_any_of_its_writes() {
    let cuts = (1..60).filter(|&cut| survives(cut, cut)).count();
    assert!(cuts > 30, "too few of the cuts came: {cuts}");
}

#[test]
fn the_oldest_go_and_the_length_stays() {
    let (simulation, host) = world(2);
    let warnings = Warnings::default();
    let told = warnings.clone();
    on_host(&simulation, host, move || async move { drop(cache(&told).await) }).unwrap();
    let disk = cache_disk(&simulation, host);
    let length = disk.length_bytes();
    assert!(length <= LIMIT && length + (2 << 20) > LIMIT);
    // Not one byte more is ever written: it would fail.
    disk.set_limit_bytes(length);
    on_host(&simulation, host, move || async move {
        let local = cache(&warnings).await;
        let pointer = |page| crate::format::PagePointer {
            page,
            birth: 1,
            checksum: 0,
        };
        let key = |page| crate::local::Key::page(&[3; 16], pointer(page));
        let bytes = |page: u64| page.to_le_bytes().repeat(512);
        // Three times around.
        let count = 3 * length / 4096;
        for page in 0..count {
            local.store(&key(page), &bytes(page));
            if page % 64 == 0 {
                settle().await;
            }
        }
        settle().await;
        let mut found = 0;
        for page in 0..count {
            let right = |got: reactor::Buffer| (got[..] == bytes(page)).then_some(());
            let got = local.find(&key(page), right).await;
            found += u64::from(got.is_some());
            assert!(got.is_none() || page > count / 3, "an old one has stayed: {page}");
        }
        let done = local.statistics();
        assert!(done.on);
        assert_eq!((done.damaged, done.stored, done.dropped), (0, count, 0));
        assert_eq!((done.hits, done.misses), (found, count - found));
        // All but the chunk that is begun.
        assert!(found > length / 4096 * 8 / 10, "{found} of {count}");
        // Another that is opened finds what this one has stored, and what it stores from now on.
        let other = cache(&warnings).await;
        other
            .find(&key(count - 1), |_| Some(()))
            .await
            .expect("it is there");
        local.store(&key(count), &bytes(count));
        settle().await;
        other.find(&key(count), |_| Some(())).await.expect("it is there");
        assert_eq!(*warnings.borrow(), [""; 0]);
    })
    .unwrap();
    assert_eq!(disk.length_bytes(), length);
}

#[test]
fn a_full_disk_turns_it_off() {
    let (simulation, host) = world(3);
    let warnings = Warnings::default();
    let told = warnings.clone();
    on_host(&simulation, host, move || async move { drop(cache(&told).await) }).unwrap();
    cache_disk(&simulation, host).set_limit_bytes(100 << 10);
    let told = warnings.clone();
    let warned = on_host(&simulation, host, move || async move {
        let mut random = Random::from_seed(3);
        let (medium, leases, mut writer) = formatted().await;
        let mut model = Model::new(small().root);
        for _ in 0..40 {
            change(&mut writer, &mut model, &mut random).await.unwrap();
        }
        writer.commit().await.unwrap();
        let local = cache(&told).await;
        for _ in 0..2 {
            let reader = cold(&medium, leases.clone(), &local).await;
            assert!(read_back(&reader).await.unwrap() == model);
            settle().await;
        }
        assert!(!local.statistics().on);
        told.borrow().clone()
    })
    .unwrap();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(
        warned[0].starts_with("the local cache /cache/redhare-cache-1 is not used any more: ")
            && warned[0].ends_with("; reads go on without it"),
        "{warned:?}"
    );
}

#[test]
fn one_that_is_damaged_or_foreign_is_made_anew() {
    let (simulation, host) = world(4);
    let warnings = Warnings::default();
    let told = warnings.clone();
    on_host(&simulation, host, move || async move { drop(cache(&told).await) }).unwrap();
    let disk = cache_disk(&simulation, host);
    assert_eq!(warnings.borrow().len(), 0, "a new one is nothing to warn of");
    disk.damage(16, &[1, 2, 3]);
    let told = warnings.clone();
    on_host(&simulation, host, move || async move { drop(cache(&told).await) }).unwrap();
    let text =
        "the local cache /cache/redhare-cache-1 was damaged or of another size; it is made anew, empty";
    assert_eq!(*warnings.borrow(), [text]);
    let refused = on_host(&simulation, host, || async {
        LocalCache::open(Path::new(DIRECTORY), 1 << 20, |_| ())
            .await
            .unwrap_err()
    });
    let refused = refused.unwrap();
    assert!(matches!(refused, LocalCacheError::TooSmall { .. }));
    assert_eq!(
        refused.to_string(),
        "the local cache in /cache may have 1 MiB, and needs 16 MiB at least; give --cache-size more, or leave it out"
    );
}
