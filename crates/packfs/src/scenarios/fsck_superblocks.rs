//! Proved here: a superblock that can be read at one time and not at another, or that a copy may have which cannot be reached, is not
//! given up; what one that was damaged led to is not opened any more after the first byte that may have been written over it; and its number is not
//! used again, whoever commits in its place.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use bdev::{Channel, Geometry, IoError, Operation, Request};
use reactor::sim::disk::DiskHandle;

use super::fsck::{BYTES, check, open};
use super::support::{
    DISK, Faults, NOW, Second, leases, on_host, sized_medium, small, superblock_of, world, writer_options,
};
use crate::format::SUPERBLOCK_ADDRESSES;
use crate::format::entry::{Inode, encode_place};
use crate::format::key::{Key, entry_key};
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::{
    FsckError, FsckOptions, FsckReport, InodeNumber, Medium, OpenError, Reader, ReaderOptions, Writer,
    format, fsck,
};

const ROOT: InodeNumber = InodeNumber::ROOT;

async fn repair(medium: &Medium) -> Result<FsckReport, FsckError> {
    let options = FsckOptions {
        repair: true,
        ..FsckOptions::default()
    };
    fsck(medium, leases(), &options, &mut |_| {}).await
}

async fn add(writer: &mut Writer, name: &str, bytes: &[u8]) -> InodeNumber {
    let attributes = small().root;
    let made = writer.create_file(ROOT, name.as_bytes(), &attributes, bytes);
    made.await.unwrap()
}

/// Commits a file of a name.
async fn commit(medium: &Medium, name: &str) {
    let mut writer = open(medium).await;
    add(&mut writer, name, &[7; 5000]).await;
    writer.commit().await.unwrap();
    writer.close().await.unwrap();
}

/// A file system of two commits, with a reason to repair in both unless it is to be clean.
async fn two_commits(clean: bool) {
    let medium = sized_medium(BYTES);
    format(medium.clone(), leases(), "a formatter", &small())
        .await
        .unwrap();
    let mut writer = open(&medium).await;
    if !clean {
        let key = Key::Name(77_000).encode();
        writer.put(key, encode_place(ROOT, b"nothing")).await.unwrap();
    }
    writer.commit_always().await.unwrap();
    writer.close().await.unwrap();
    commit(&medium, "newest").await;
}

async fn has(name: &str) -> bool {
    let reader = Reader::open(sized_medium(BYTES), leases(), &ReaderOptions::default()).await;
    reader.unwrap().lookup(name.as_bytes()).await.is_ok()
}

/// Where the newest superblock stands.
fn newest(disk: &DiskHandle) -> u64 {
    let generation = superblock_of(disk).generation;
    let is_newest = |address: &u64| {
        let found = Superblock::decode(&disk.read(*address, SUPERBLOCK_BYTES), *address);
        found.is_ok_and(|superblock| superblock.generation == generation)
    };
    SUPERBLOCK_ADDRESSES.into_iter().find(is_newest).unwrap()
}

/// Says of each read and write of a block what becomes of it.
struct Scripted {
    inner: Rc<dyn Channel>,
    address: u64,
    reads: Cell<u64>,
    /// By the number of the read.
    fails: Box<dyn Fn(u64) -> bool>,
    /// What is written after so many writes is refused, with this error.
    writes: Cell<u64>,
    refused: IoError,
}

impl Channel for Scripted {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        match request.operation {
            Operation::Read if request.lba.0 * 4096 == self.address => {
                let number = self.reads.get();
                self.reads.set(number + 1);
                if (self.fails)(number) {
                    return request.complete(Err(IoError::Media));
                }
            }
            Operation::Write { .. } => match self.writes.get() {
                0 => return request.complete(Err(self.refused)),
                left => self.writes.set(left - 1),
            },
            _ => {}
        }
        self.inner.submit(request);
    }
}

fn scripted(address: u64, writes: u64, fails: impl Fn(u64) -> bool + 'static) -> Medium {
    scripted_with(address, (writes, IoError::Unavailable), fails)
}

fn scripted_with(
    address: u64,
    (writes, refused): (u64, IoError),
    fails: impl Fn(u64) -> bool + 'static,
) -> Medium {
    sized_medium(BYTES).on(|inner| {
        let (reads, writes, fails) = (Cell::new(0), Cell::new(writes), Box::new(fails));
        Rc::new(Scripted {
            inner,
            address,
            reads,
            fails,
            writes,
            refused,
        })
    })
}

#[test]
fn a_superblock_that_can_be_read_at_times_is_not_given_up() {
    // A check, what is beside it, a repair, and once more before it is written anew: each reads three times what the medium does not give.
    for failing in 1..=13 {
        for is_readable_before in [false, true] {
            let (simulation, host) = world(1);
            on_host(&simulation, host, || two_commits(false)).unwrap();
            let address = newest(&simulation.disk(host, Path::new(DISK)));
            on_host(&simulation, host, move || async move {
                let fails = move |read: u64| match is_readable_before {
                    true => read >= failing,
                    false => read < failing,
                };
                let medium = scripted(address, u64::MAX, fails);
                let ended = repair(&medium).await;
                let what = format!("{failing} reads, {is_readable_before}: {ended:?}");
                // Whoever cannot read it at all goes on without it.
                let gives_up = !is_readable_before && failing >= 12;
                assert!(has("newest").await != gives_up, "{what}");
                if let Err(error) = ended {
                    assert!(error.to_string().contains("run it again"), "{what}");
                    let again = repair(&sized_medium(BYTES)).await.unwrap();
                    assert!(again.has_corrected() && has("newest").await, "{what}");
                }
                assert!(check(false, true).await.is_clean(), "{what}");
            })
            .unwrap();
        }
    }
}

#[test]
fn the_number_of_a_superblock_that_is_gone_is_not_used_again() {
    for zeros in [true, false] {
        for repairs in [true, false] {
            let (simulation, host) = world(2);
            on_host(&simulation, host, || two_commits(true)).unwrap();
            let disk = simulation.disk(host, Path::new(DISK));
            let (address, before) = (newest(&disk), superblock_of(&disk).generation);
            match zeros {
                true => disk.damage(address, &[0; SUPERBLOCK_BYTES]),
                false => disk.damage(address + 130, &[0x77; 9]),
            }
            on_host(&simulation, host, move || async move {
                match repairs {
                    true => {
                        let report = repair(&sized_medium(BYTES)).await.unwrap();
                        assert!(report.superblock.is_some() && report.has_corrected());
                    }
                    false => commit(&sized_medium(BYTES), "another").await,
                }
            })
            .unwrap();
            let written = Superblock::decode(&disk.read(address, SUPERBLOCK_BYTES), address).unwrap();
            assert_eq!(written.generation, before + 1, "{zeros}, {repairs}");
        }
    }
}

#[test]
fn a_second_superblock_that_is_damaged_is_no_missing_one() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        format(sized_medium(BYTES), leases(), "a formatter", &small())
            .await
            .unwrap();
        let report = repair(&sized_medium(BYTES)).await.unwrap();
        assert!(report.superblock.is_none() && !report.has_corrected());
        commit(&sized_medium(BYTES), "newest").await;
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    disk.damage(newest(&disk) + 130, &[0x77; 9]);
    on_host(&simulation, host, || async {
        let told = repair(&sized_medium(BYTES)).await.unwrap();
        let text = told.superblock.unwrap();
        assert!(text.contains("generation 1 counts"), "{text}");
        assert_eq!(told.repaired.len(), 1, "{:?}", told.repaired);
        let again = repair(&sized_medium(BYTES)).await.unwrap();
        assert!(again.superblock.is_none() && !again.has_corrected());
    })
    .unwrap();
    assert_eq!(superblock_of(&disk).generation, 3);
}

#[test]
fn a_repair_waits_for_a_copy_that_may_have_the_superblock() {
    let (simulation, host) = world(4);
    on_host(&simulation, host, || two_commits(false)).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let (address, before) = (newest(&disk), disk.read(0, BYTES as usize));
    on_host(&simulation, host, move || async move {
        let (faults, others) = (Faults::default(), Faults::default());
        let second = Second::beside(&sized_medium(BYTES), &others);
        let medium = faults.on(&sized_medium(BYTES)).with_copies(Rc::new(second));
        let block = address..address + SUPERBLOCK_BYTES as u64;
        let away = IoError::Unavailable;
        for (first, other) in [(away, IoError::Media), (IoError::Media, away)] {
            faults.add(block.clone(), first);
            others.add(block.clone(), other);
            let error = repair(&medium).await.unwrap_err().to_string();
            assert!(
                error.ends_with("repair when the device answers again"),
                "{first}, {other}: {error}"
            );
            assert!(!faults.are_none(), "nothing was written there");
            faults.clear();
            others.clear();
        }
    })
    .unwrap();
    assert!(disk.read(0, BYTES as usize) == before, "nothing was written");
}

#[test]
fn nobody_gives_up_a_superblock_that_a_copy_may_have_which_was_passed_over() {
    let (simulation, host) = world(7);
    on_host(&simulation, host, || two_commits(true)).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let address = newest(&disk);
    let whole = disk.read(address, SUPERBLOCK_BYTES);
    disk.damage(address + 130, &[0x77; 9]);
    let before = disk.read(0, BYTES as usize);
    on_host(&simulation, host, move || async move {
        // Both copies that answer give wrong bytes.
        let second = Second::beside(&sized_medium(BYTES), &Faults::default());
        second.passes_over(true);
        let medium = sized_medium(BYTES).with_copies(Rc::new(second));
        let error = repair(&medium).await.unwrap_err();
        assert!(
            matches!(error, FsckError::Away(IoError::Unavailable)),
            "{error:?}"
        );
        let refused = Writer::open(medium, leases(), &writer_options()).await.err();
        assert!(
            matches!(refused, Some(OpenError::SuperblockAway { address: at, source: IoError::Unavailable }) if at == address),
            "{refused:?}"
        );
    })
    .unwrap();
    assert!(disk.read(0, BYTES as usize) == before, "nothing was written");
    // The copy is there again, and has it.
    disk.damage(address, &whole);
    on_host(&simulation, host, || async {
        let medium = sized_medium(BYTES);
        let second = Second::beside(&medium, &Faults::default());
        commit(&medium.with_copies(Rc::new(second)), "another").await;
        assert!(has("newest").await && has("another").await);
    })
    .unwrap();
}

#[test]
fn a_writer_that_cannot_open_has_written_no_superblock_anew() {
    let (simulation, host) = world(8);
    on_host(&simulation, host, || async {
        two_commits(true).await;
        let mut writer = open(&sized_medium(BYTES)).await;
        writer.create_snapshot(b"kept", NOW).await.unwrap();
        writer.commit().await.unwrap();
        writer.close().await.unwrap();
        commit(&sized_medium(BYTES), "after it").await;
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let address = newest(&disk);
    disk.damage(address + 130, &[0x77; 9]);
    let before = disk.read(0, BYTES as usize);
    let root = superblock_of(&disk).root.address();
    on_host(&simulation, host, move || async move {
        let faults = Faults::default();
        faults.add(root..root + 4096, IoError::Unavailable);
        let medium = faults.on(&sized_medium(BYTES));
        let refused = Writer::open(medium, leases(), &writer_options()).await;
        assert!(refused.is_err());
    })
    .unwrap();
    assert!(disk.read(0, BYTES as usize) == before, "nothing was written");
    on_host(&simulation, host, || async {
        commit(&sized_medium(BYTES), "another").await;
    })
    .unwrap();
    assert_ne!(
        disk.read(address, SUPERBLOCK_BYTES),
        before[address as usize..][..SUPERBLOCK_BYTES]
    );
}

#[test]
fn what_a_repair_is_refused_for_it_is_before_it_writes_a_superblock_anew() {
    let (simulation, host) = world(5);
    on_host(&simulation, host, || async {
        two_commits(true).await;
        let medium = sized_medium(BYTES);
        let mut writer = open(&medium).await;
        let found = writer.lookup(ROOT, b"newest").await.unwrap().unwrap();
        let inode = writer.inode(found.inode()).await.unwrap();
        let two = add(&mut writer, "two", &[9; 5000]).await;
        // Both claim the content of the first: it is copied for one of them.
        let claims = Inode {
            layout: inode.layout.clone(),
            ..writer.inode(two).await.unwrap()
        };
        writer
            .put(entry_key(ROOT, b"two"), claims.encode())
            .await
            .unwrap();
        writer.commit_always().await.unwrap();
        writer.commit_always().await.unwrap();
        writer.close().await.unwrap();
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let address = newest(&disk);
    disk.damage(address + 130, &[0x77; 9]);
    let before = disk.read(address, SUPERBLOCK_BYTES);
    on_host(&simulation, host, move || async move {
        let faults = Faults::default();
        faults.add(128 << 10..BYTES / 2, IoError::Unavailable);
        let error = repair(&faults.on(&sized_medium(BYTES))).await.unwrap_err();
        assert!(matches!(error, FsckError::Write(_)), "{error:?}");
    })
    .unwrap();
    assert!(disk.read(address, SUPERBLOCK_BYTES) == before);
    // What fails later says what was done, and also why where another writer took over.
    for (writes, refused, why) in [
        (0, IoError::Fenced, "the lease has ended"),
        (1, IoError::Fenced, "the lease has ended"),
        (1, IoError::Unavailable, "cannot serve"),
    ] {
        on_host(&simulation, host, move || async move {
            let medium = scripted_with(address, (writes, refused), |_| false);
            let error = repair(&medium).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains("superblock was written anew"), "{text}");
            assert!(text.contains("not committed") && text.contains(why), "{text}");
        })
        .unwrap();
        disk.damage(address, &before);
    }
    on_host(&simulation, host, move || async move {
        let error = repair(&scripted(address, 1, |_| false)).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("superblock was written anew"), "{text}");
        assert!(text.contains("not committed"), "{text}");
        let report = repair(&sized_medium(BYTES)).await.unwrap();
        assert!(report.superblock.is_none() && !report.has_uncorrected());
    })
    .unwrap();
}

#[test]
fn a_writer_that_goes_on_from_the_older_superblock_makes_it_count_first() {
    let (simulation, host) = world(6);
    on_host(&simulation, host, || two_commits(true)).unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    let address = newest(&disk);
    let (whole, generation) = (
        disk.read(address, SUPERBLOCK_BYTES),
        superblock_of(&disk).generation,
    );
    disk.damage(address + 130, &[0x77; 9]);
    on_host(&simulation, host, move || async move {
        let mut writer = open(&sized_medium(BYTES)).await;
        for index in 0..100u8 {
            let name = format!("{index}");
            add(&mut writer, &name, &[index; 9000]).await;
        }
        // Written over what the damaged one leads to, and never committed.
        drop(writer);
    })
    .unwrap();
    // A copy comes back that has it whole, where what was written anew is not.
    let now = disk.read(address, SUPERBLOCK_BYTES);
    if now[..130] == whole[..130] {
        disk.damage(address, &whole);
    }
    assert!(superblock_of(&disk).generation > generation);
    on_host(&simulation, host, || async {
        assert!(check(false, true).await.is_clean());
        assert!(!has("newest").await);
    })
    .unwrap();
}
