//! Proved here: volumes that older programs made, kept in `golden/`, open; everything in them is as their manifests say; and
//! what this program writes into them leaves that as it is, verifies clean, and keeps the version where it needs no
//! feature of a newer one. A volume of a newer version, or with a feature from later, is refused by name.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use foundation::Random;
use foundation::checksum::crc32c;
use reactor::sim::disk::DiskHandle;

use super::model::{CHANGES_OF_VERSION_1, Model, change_of, read_back};
use super::support::{DISK, leases, on_host, sized_medium, superblock_of, world};
use crate::files::{FileOptions, FileSystem, NewInode, errno};
use crate::format::superblock::{Features, Superblock};
use crate::format::{PAGE_BYTES, SUPERBLOCK_ADDRESSES};
use crate::lease::memory::LocalLeases;
use crate::{
    DeviceNumber, InodeNumber, Kind, Medium, OpenError, Reader, ReaderOptions, Timestamp, VerifyOptions,
    Writer, WriterOptions, format, verify,
};

/// An image, how its superblock should say it was made, and what is in it.
#[derive(Clone, Copy)]
struct Golden {
    name: &'static str,
    version: u32,
    features: u32,
    image: &'static [u8],
    manifest: &'static str,
}

const GOLDEN: [Golden; 6] = [
    Golden {
        name: "version1",
        version: 1,
        features: 0,
        image: include_bytes!("../../golden/version1.image"),
        manifest: include_str!("../../golden/version1.manifest"),
    },
    Golden {
        name: "version2-files",
        version: 2,
        features: 7,
        image: include_bytes!("../../golden/version2-files.image"),
        manifest: include_str!("../../golden/version2-files.manifest"),
    },
    Golden {
        name: "version2-snapshots",
        version: 2,
        features: 15,
        image: include_bytes!("../../golden/version2-snapshots.image"),
        manifest: include_str!("../../golden/version2-snapshots.manifest"),
    },
    Golden {
        name: "version2-special",
        version: 2,
        features: 16,
        image: include_bytes!("../../golden/version2-special.image"),
        manifest: include_str!("../../golden/version2-special.manifest"),
    },
    Golden {
        name: "version2-shared",
        version: 2,
        features: 64,
        image: include_bytes!("../../golden/version2-shared.image"),
        manifest: include_str!("../../golden/version2-shared.manifest"),
    },
    Golden {
        name: "version2-quotas",
        version: 2,
        features: 32,
        image: include_bytes!("../../golden/version2-quotas.image"),
        manifest: include_str!("../../golden/version2-quotas.manifest"),
    },
];

/// The feature.
const QUOTAS: u32 = Features::QUOTAS.0;

/// What a manifest says of a name: its line up to the path, and of its extended attributes name, length and checksum.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    fields: String,
    extended: BTreeMap<Vec<u8>, (usize, u32)>,
    /// Limit and use of the tree below: bytes, then files.
    quota: Option<[u64; 4]>,
}

type State = BTreeMap<Vec<u8>, Line>;

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16).unwrap()).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] * 16 + pair[1]) as u8)
        .collect()
}

/// The states by snapshot, the newest under no name.
fn manifest(text: &str) -> BTreeMap<Option<Vec<u8>>, State> {
    let mut states: BTreeMap<_, State> = BTreeMap::new();
    let (mut snapshot, mut path) = (None, Vec::new());
    for line in text.lines() {
        let (fields, last) = line.rsplit_once(' ').unwrap();
        let state = states.entry(snapshot.clone()).or_default();
        if fields == "@" {
            snapshot = Some(unhex(last));
        } else if let Some(value) = fields.strip_prefix("x ") {
            let (length, sum) = value.split_once(' ').unwrap();
            let value = (length.parse().unwrap(), u32::from_str_radix(sum, 16).unwrap());
            state.get_mut(&path).unwrap().extended.insert(unhex(last), value);
        } else if let Some(numbers) = fields.strip_prefix("q ") {
            let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
            let quota = numbers.try_into().unwrap();
            state.get_mut(&unhex(last)).unwrap().quota = Some(quota);
        } else {
            path = unhex(last);
            state.entry(path.clone()).or_default().fields = fields.to_owned();
        }
    }
    states
}

/// Puts an image on the host's disk.
fn load(disk: &DiskHandle, image: &[u8]) {
    let number = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let mut at = 8;
    while at < image.len() {
        let length = u32::from_le_bytes(image[at + 8..at + 12].try_into().unwrap()) as usize;
        disk.damage(number(at), &image[at + 12..at + 12 + length]);
        at += 12 + length;
    }
}

fn length_of(image: &[u8]) -> u64 {
    u64::from_le_bytes(image[..8].try_into().unwrap())
}

/// What a reader finds, in the manifest's form.
async fn state_of(reader: &Reader) -> (Model, State) {
    let model = read_back(reader).await.unwrap();
    let mut state = State::new();
    for (path, inode) in &model.names {
        let node = &model.nodes[inode];
        let kind = match node.kind {
            Kind::Directory => 'd',
            Kind::File => 'f',
            Kind::Symlink => 'l',
            Kind::Pipe => 'p',
            Kind::Socket => 's',
            Kind::CharacterDevice => 'c',
            Kind::BlockDevice => 'b',
        };
        let a = &node.attributes;
        // A device's number stands where others have content.
        let number = |device: DeviceNumber| [device.major.to_le_bytes(), device.minor.to_le_bytes()].concat();
        let bytes = node.device.map_or(node.bytes.clone(), number);
        let fields = format!(
            "{kind} {:o} {} {} {}.{:09} {} {} {:08x}",
            a.mode,
            a.uid,
            a.gid,
            a.mtime.seconds,
            a.mtime.nanoseconds,
            node.links,
            bytes.len(),
            crc32c(&bytes)
        );
        let mut extended = BTreeMap::new();
        for name in reader.list_extended(*inode).await.unwrap() {
            let value = reader.extended(*inode, &name).await.unwrap().unwrap();
            extended.insert(name, (value.len(), crc32c(&value)));
        }
        let quota = None;
        let line = Line {
            fields,
            extended,
            quota,
        };
        state.insert(path.clone(), line);
    }
    for (path, quota) in reader.quotas().await.unwrap() {
        let numbers = [
            quota.limit_bytes,
            quota.used_bytes,
            quota.limit_files,
            quota.used_files,
        ];
        state.get_mut(&path).unwrap().quota = Some(numbers);
    }
    (model, state)
}

/// Everything that the manifest lists is there as it says, and nothing else but directories in snapshots, whose times it
/// does not know.
async fn compare(golden: &Golden, medium: &Medium) -> Model {
    let leases = Rc::new(LocalLeases::new());
    let mut newest = None;
    for (snapshot, expected) in manifest(golden.manifest) {
        let options = ReaderOptions {
            snapshot: snapshot.clone(),
            ..ReaderOptions::default()
        };
        let reader = Reader::open(medium.clone(), leases.clone(), &options).await;
        let (model, mut found) = state_of(&reader.unwrap()).await;
        if snapshot.is_some() {
            found.retain(|path, line| expected.contains_key(path) || !line.fields.starts_with('d'));
        }
        assert_eq!(found, expected, "{} {snapshot:?}", golden.name);
        if snapshot.is_none() {
            newest = Some(model);
        }
    }
    let report = verify(medium, leases, &VerifyOptions::default()).await.unwrap();
    assert!(report.is_clean(), "{}: {:#?}", golden.name, report.problems);
    newest.expect("a manifest has the newest state")
}

/// What an older program limited stays limited, and what is written now is counted beside what was.
async fn write_under_quotas(medium: &Medium) {
    let leases = Rc::new(LocalLeases::new());
    let (now, root) = (Timestamp::default(), InodeNumber::ROOT);
    let new = NewInode {
        mode: 0o600,
        uid: 0,
        gid: 0,
    };
    for round in 1..=3u64 {
        let opened = FileSystem::open(medium.clone(), leases.clone(), &FileOptions::default()).await;
        let mut files = opened.unwrap();
        let alice = files.lookup(root, b"alice").await.unwrap().number;
        let bob = files.lookup(root, b"bob").await.unwrap().number;
        let before = files.quota_of(alice).await.unwrap().unwrap();
        let name = format!("new {round}");
        let made = files
            .create(alice, name.as_bytes(), new, now)
            .await
            .unwrap()
            .number;
        files.write(made, 0, &[7; 5000], now).await.unwrap();
        let left = before.limit_bytes - before.used_bytes - 5000;
        let over = vec![7; left as usize + 1];
        assert_eq!(
            files.write(made, 5000, &over, now).await.unwrap_err().errno(),
            errno::EDQUOT
        );
        let fits = files.create(bob, name.as_bytes(), new, now).await;
        assert_eq!(fits.is_ok(), round == 1, "there is room for one");
        files.commit().await.unwrap();
        let after = files.quota_of(alice).await.unwrap().unwrap();
        let used = (before.used_bytes + 5000, before.used_files + 1);
        assert_eq!((after.used_bytes, after.used_files), used);
        files.close().await.unwrap();
        let report = verify(medium, leases.clone(), &VerifyOptions::default())
            .await
            .unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
    }
}

fn version_on(disk: &DiskHandle) -> (u32, u32) {
    let superblock = superblock_of(disk);
    let address = SUPERBLOCK_ADDRESSES[usize::from(
        Superblock::decode(
            &disk.read(SUPERBLOCK_ADDRESSES[1], PAGE_BYTES),
            SUPERBLOCK_ADDRESSES[1],
        ) == Ok(superblock),
    )];
    let version = disk.read(address + 8, 4).try_into().unwrap();
    (u32::from_le_bytes(version), superblock.features.0)
}

#[test]
fn volumes_of_every_format_open_and_are_written() {
    for golden in GOLDEN {
        let (simulation, host) = world(7);
        let length = length_of(golden.image);
        // The disk's file comes to be with the first opening.
        on_host(
            &simulation,
            host,
            move || async move { drop(sized_medium(length)) },
        )
        .unwrap();
        let disk = simulation.disk(host, Path::new(DISK));
        load(&disk, golden.image);
        let (version, features) = (golden.version, golden.features);
        assert_eq!(version_on(&disk), (version, features), "{}", golden.name);
        on_host(&simulation, host, move || async move {
            let medium = sized_medium(length);
            let mut model = compare(&golden, &medium).await;
            if golden.features & QUOTAS != 0 {
                write_under_quotas(&medium).await;
                return;
            }
            // Then it is changed, through several commits and openings.
            let mut random = Random::from_seed(3);
            let leases = Rc::new(LocalLeases::new());
            for _ in 0..3 {
                let writer = Writer::open(medium.clone(), leases.clone(), &WriterOptions::default()).await;
                let mut writer = writer.unwrap();
                for _ in 0..40 {
                    let changed = change_of(CHANGES_OF_VERSION_1, &mut writer, &mut model, &mut random);
                    changed.await.unwrap();
                }
                writer.commit().await.unwrap();
                writer.close().await.unwrap();
                let report = verify(&medium, leases.clone(), &VerifyOptions::default()).await;
                let report = report.unwrap();
                assert!(report.is_clean(), "{}: {:#?}", golden.name, report.problems);
                let options = ReaderOptions::default();
                let reader = Reader::open(medium.clone(), leases.clone(), &options)
                    .await
                    .unwrap();
                let found = read_back(&reader).await.unwrap();
                assert!(found == model, "{}: what was written reads back", golden.name);
            }
            // A snapshot holds what it held.
            for (snapshot, expected) in manifest(golden.manifest) {
                let Some(name) = snapshot else { continue };
                let options = ReaderOptions {
                    snapshot: Some(name),
                    ..ReaderOptions::default()
                };
                let reader = Reader::open(medium.clone(), leases.clone(), &options)
                    .await
                    .unwrap();
                let (_, found) = state_of(&reader).await;
                let same = expected.iter().all(|(path, line)| found.get(path) == Some(line));
                assert!(same, "{}: the snapshot has changed", golden.name);
            }
        })
        .unwrap();
        assert_eq!(version_on(&disk), (version, features), "{}", golden.name);
    }
}

#[test]
fn volumes_of_the_future_are_refused_by_name() {
    for (at, bytes, text) in [
        (
            8,
            3u32,
            "the volume has PackFS format version 3, and this program knows up to 2; update the program",
        ),
        (
            108,
            1 << 20,
            "the volume's PackFS has the features 0x100000, which this program does not all know; update the program",
        ),
    ] {
        let (simulation, host) = world(7);
        let golden = &GOLDEN[0];
        let length = length_of(golden.image);
        on_host(
            &simulation,
            host,
            move || async move { drop(sized_medium(length)) },
        )
        .unwrap();
        let disk = simulation.disk(host, Path::new(DISK));
        load(&disk, golden.image);
        // Only the older superblock is of the future: a newer program's commit may have been the one that was cut off.
        let address = SUPERBLOCK_ADDRESSES[1];
        let mut page = disk.read(address, PAGE_BYTES);
        page[8..12].copy_from_slice(&2u32.to_le_bytes());
        page[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
        page[16..20].fill(0);
        let sum = crc32c(&page).to_le_bytes();
        page[16..20].copy_from_slice(&sum);
        disk.damage(address, &page);
        let before = disk.read(0, length as usize);
        on_host(&simulation, host, move || async move {
            let medium = sized_medium(length);
            let refusal = |error: OpenError| assert_eq!(error.to_string(), text);
            let options = ReaderOptions::default();
            refusal(
                Reader::open(medium.clone(), leases(), &options)
                    .await
                    .err()
                    .unwrap(),
            );
            let options = WriterOptions::default();
            refusal(
                Writer::open(medium.clone(), leases(), &options)
                    .await
                    .err()
                    .unwrap(),
            );
            let options = VerifyOptions::default();
            refusal(verify(&medium, leases(), &options).await.err().unwrap());
            let again = format(medium, leases(), "a formatter", &super::support::small()).await;
            assert!(matches!(again, Err(OpenError::NotEmpty { .. })));
        })
        .unwrap();
        assert!(
            disk.read(0, length as usize) == before,
            "a refused volume was written"
        );
    }
}
