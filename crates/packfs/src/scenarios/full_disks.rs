//! Proved here: where what holds the volume has no room, a writer refuses what needs some and loses nothing that it has taken; once there
//! is room it goes on by itself, wherever in a commit it was; and if the host dies meanwhile, what was committed is there.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use foundation::Random;
use reactor::sim::disk::DiskHandle;
use reactor::time::sleep;

use super::files_test::options;
use super::support::{DISK, NEW, NOW, ROOT, leases, on_host, sized_medium, small, world, writer_options};
use crate::files::{Allocate, FileError, FileSystem, SetAttributes, SetExtended, errno};
use crate::io::Medium;
use crate::lease::memory::LocalLeases;
use crate::{
    Attributes, InodeNumber, Reader, ReaderOptions, VerifyOptions, WriteError, Writer, format, verify,
};

const VOLUME_BYTES: u64 = 16 << 20;
const CHANGES: u64 = 150;
const FILE_BYTES_MAX: u64 = 60_000;
/// What the files have together, so that the volume itself is never full.
const FILES_BYTES_MAX: usize = 4 << 20;
/// After it whatever waits for room has been tried again.
const TRIED_AGAIN: Duration = Duration::from_secs(3);

/// The byte of which a file is full, and how many of them.
type Contents = BTreeMap<String, (u8, usize)>;

#[derive(Default)]
struct Told {
    /// What was taken.
    taken: RefCell<Contents>,
    /// What was committed, and not removed since.
    committed: RefCell<Contents>,
    /// Files of which a part may have been written.
    vague: RefCell<BTreeSet<String>>,
    refused: Cell<usize>,
    /// Commits that were refused, and that another one ended.
    ended_later: Cell<usize>,
}

impl Told {
    /// Whether it was done. What was not can only be for want of room.
    fn hears<T>(&self, seed: u64, what: &str, result: Result<T, FileError>) -> bool {
        match result {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.errno(), errno::ENOSPC, "seed {seed}: {what}: {error}");
                self.refused.set(self.refused.get() + 1);
                false
            }
        }
    }
}

fn medium() -> Medium {
    sized_medium(VOLUME_BYTES)
}

/// Takes room away again and again, and gives it back.
async fn takes_room(disk: Rc<DiskHandle>, seed: u64, over: Rc<Cell<bool>>) {
    let mut random = Random::from_seed(seed ^ 0x00f0_11d1);
    while !over.get() {
        sleep(Duration::from_micros(random.below(400_000))).await;
        disk.set_limit_bytes(random.below(VOLUME_BYTES));
        let longest = if random.below(3) == 0 { 2_000_000 } else { 20_000 };
        sleep(Duration::from_micros(random.below(longest))).await;
        disk.set_limit_bytes(u64::MAX);
    }
}

/// One of the other changes, of a file that nobody compares, or of one that has no name while it is open.
async fn other_change(
    seed: u64,
    told: &Told,
    files: &mut FileSystem,
    random: &mut Random,
    from: InodeNumber,
) {
    let scratch = match files.lookup(ROOT, b"scratch").await {
        Ok(inode) => inode.number,
        Err(_) => match files.create(ROOT, b"scratch", NEW, NOW).await {
            Ok(inode) => inode.number,
            Err(error) => {
                told.hears::<()>(seed, "create", Err(error));
                return;
            }
        },
    };
    let offset = random.below(FILE_BYTES_MAX);
    let range = offset..offset + 1 + random.below(FILE_BYTES_MAX);
    let size = |size| SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    };
    let mode = SetAttributes {
        mode: Some(0o600 + random.below(8) as u32),
        ..SetAttributes::default()
    };
    let how = [Allocate::Room, Allocate::Hole, Allocate::Zeros][random.below(3) as usize];
    let changed = match random.below(8) {
        0..=1 => {
            files
                .allocate(scratch, range, how, random.below(2) == 0, NOW)
                .await
        }
        2 => files.set_attributes(scratch, &size(offset), NOW).await.map(drop),
        3 => files.set_attributes(scratch, &mode, NOW).await.map(drop),
        4 => files
            .copy_range((from, 0), (scratch, 0), range.end, NOW)
            .await
            .map(drop),
        5 => {
            let value = vec![5; random.below(2000) as usize];
            let set = files.set_extended(scratch, b"user.a", &value, SetExtended::Always, NOW);
            set.await
        }
        6 => files.write(scratch, random.below(200), &[6; 100], NOW).await,
        _ => {
            let Ok(inode) = files.create(ROOT, b"nameless", NEW, NOW).await else {
                return;
            };
            files.open_inode(inode.number).await.unwrap();
            let written = files.write(inode.number, 0, &[7; 20_000], NOW).await.err();
            let removed = files.unlink(ROOT, b"nameless", NOW).await.err();
            let committed = files.commit().await.err();
            let released = files.release(inode.number).await.err();
            for error in [written, removed, committed, released].into_iter().flatten() {
                told.hears::<()>(seed, "a file without a name", Err(error));
            }
            // It is there if its name could not be removed.
            let _ = files.unlink(ROOT, b"nameless", NOW).await;
            Ok(())
        }
    };
    told.hears(seed, "another change", changed);
}

async fn changes(seed: u64, told: Rc<Told>, files: &mut FileSystem) {
    let mut random = Random::from_seed(seed);
    let mut refused_commit = false;
    for number in 0..CHANGES {
        let mut names: Vec<String> = told.taken.borrow().keys().cloned().collect();
        names.sort_by_key(|name| name.len());
        let chosen = names.get(random.below(names.len().max(1) as u64) as usize);
        let total: usize = told.taken.borrow().values().map(|(_, length)| length).sum();
        match random.below(16) {
            0..=4 if total < FILES_BYTES_MAX => {
                let name = format!("{number}");
                let created = files.create(ROOT, name.as_bytes(), NEW, NOW).await;
                let inode = created.as_ref().map_or(0, |inode| inode.number.0);
                if !told.hears(seed, "create", created) {
                    continue;
                }
                let longest = if random.below(3) == 0 {
                    3_000
                } else {
                    FILE_BYTES_MAX
                };
                let (byte, length) = (1 + random.below(255) as u8, random.below(longest) as usize);
                let bytes = vec![byte; length];
                let written = files.write(InodeNumber(inode), 0, &bytes, NOW).await;
                match told.hears(seed, "write", written) {
                    true => drop(told.taken.borrow_mut().insert(name, (byte, length))),
                    false => drop(told.vague.borrow_mut().insert(name)),
                }
            }
            0..=5 => {
                let Some(name) = chosen else { continue };
                let removed = files.unlink(ROOT, name.as_bytes(), NOW).await;
                if told.hears(seed, "unlink", removed) {
                    told.taken.borrow_mut().remove(name);
                    told.committed.borrow_mut().remove(name);
                }
            }
            6..=7 => {
                let Some(name) = chosen else { continue };
                let (byte, length) = told.taken.borrow()[name];
                let inode = files.lookup(ROOT, name.as_bytes()).await.unwrap().number;
                let read = files.read(inode, 0, FILE_BYTES_MAX).await.unwrap();
                assert!(
                    read == vec![byte; length],
                    "seed {seed}: {name} reads as something else"
                );
            }
            8..=9 => {
                let committed = told.hears(seed, "commit", files.commit().await);
                if committed {
                    told.committed.replace(told.taken.borrow().clone());
                    told.ended_later
                        .set(told.ended_later.get() + usize::from(refused_commit));
                }
                refused_commit = !committed;
            }
            10..=11 => sleep(Duration::from_micros(random.below(300_000))).await,
            _ => {
                let Some(name) = chosen else { continue };
                let from = files.lookup(ROOT, name.as_bytes()).await.unwrap().number;
                other_change(seed, &told, files, &mut random, from).await;
            }
        }
    }
}

/// That the volume is whole, and has these files.
async fn check(seed: u64, contents: &Contents) {
    let report = verify(&medium(), leases(), &VerifyOptions::default())
        .await
        .unwrap();
    assert!(report.is_clean(), "seed {seed}: {:#?}", report.problems);
    let reader = Reader::open(medium(), leases(), &ReaderOptions::default())
        .await
        .unwrap();
    for (name, &(byte, length)) in contents {
        let file = reader.open_file(name.as_bytes()).await;
        let file = file.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let read = reader.read(&file, 0, 1 << 20).await.unwrap().to_vec();
        assert!(
            read == vec![byte; length],
            "seed {seed}: {name} has something else"
        );
    }
    reader.close().await.unwrap();
}

/// Gives how often something was refused, and how many commits another one ended.
fn story(seed: u64) -> (usize, usize) {
    let (simulation, host) = world(seed);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
    })
    .unwrap();
    let disk = Rc::new(simulation.disk(host, Path::new(DISK)));
    let mut random = Random::from_seed(!seed);
    let dies = random.below(3) == 0;
    if dies {
        disk.cut_power_at(disk.operations() + 10 + random.below(400));
    }
    let told = Rc::new(Told::default());
    let (own, room) = (told.clone(), disk.clone());
    let lived = on_host(&simulation, host, move || async move {
        let keeper = Rc::new(LocalLeases::new());
        let mut files = FileSystem::open(medium(), keeper, &options()).await.unwrap();
        let over = Rc::new(Cell::new(false));
        let taker = reactor::spawn(takes_room(room, seed, over.clone()));
        changes(seed, own.clone(), &mut files).await;
        over.set(true);
        taker.await.unwrap();
        sleep(TRIED_AGAIN).await;
        let ended = files.commit().await;
        ended.unwrap_or_else(|error| panic!("seed {seed}: with room again: {error}"));
        own.committed.replace(own.taken.borrow().clone());
        files.close().await.unwrap();
    });
    assert!(lived.is_some() || dies, "seed {seed}: nobody cut the power");
    disk.set_limit_bytes(u64::MAX);
    let contents = told.committed.borrow().clone();
    on_host(
        &simulation,
        host,
        move || async move { check(seed, &contents).await },
    )
    .unwrap();
    (told.refused.get(), told.ended_later.get())
}

#[test]
fn a_writer_goes_on_once_there_is_room() {
    let (mut refused, mut ended_later) = (0, 0);
    let seeds = foundation::seeds::from_environment(100);
    let count = seeds.len();
    for seed in seeds {
        let (refusals, commits) = story(seed);
        refused += refusals;
        ended_later += commits;
    }
    if count >= 50 {
        assert!(refused > count, "{refused} refusals in {count} stories");
        assert!(
            4 * ended_later > count,
            "{ended_later} commits ended later in {count} stories"
        );
    }
}

/// Nothing is taken while a commit waits, what was committed and what was not can be read, and nobody has to open anything anew.
#[test]
fn a_commit_that_finds_no_room_waits_for_some() {
    let (simulation, host) = world(1);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, move || async move {
        let keeper = Rc::new(LocalLeases::new());
        let mut files = FileSystem::open(medium(), keeper, &options()).await.unwrap();
        let old = files.create(ROOT, b"old", NEW, NOW).await.unwrap().number;
        files.write(old, 0, &[1; 50_000], NOW).await.unwrap();
        let generation = files.commit().await.unwrap();
        let new = files.create(ROOT, b"new", NEW, NOW).await.unwrap().number;
        files.write(new, 0, b"short", NOW).await.unwrap();
        disk.set_limit_bytes(0);
        for _ in 0..3 {
            let error = files.commit().await.unwrap_err();
            assert_eq!(error.errno(), errno::ENOSPC);
            assert!(
                error.to_string().contains("no room where the volume lies"),
                "{error}"
            );
            assert!(!files.is_committed());
            let refused = [
                files.create(ROOT, b"more", NEW, NOW).await.err(),
                files.write(old, 0, b"changed", NOW).await.err(),
                files.unlink(ROOT, b"old", NOW).await.err(),
            ];
            let numbers = refused.map(|error| error.map(|error| error.errno()));
            assert_eq!(numbers, [Some(errno::ENOSPC); 3]);
            assert!(files.read(old, 0, 60_000).await.unwrap() == [1; 50_000]);
            assert_eq!(files.read(new, 0, 10).await.unwrap(), b"short");
            sleep(Duration::from_secs(2)).await;
        }
        disk.set_limit_bytes(u64::MAX);
        sleep(TRIED_AGAIN).await;
        assert_eq!(files.commit().await.unwrap(), generation + 1);
        files.unlink(ROOT, b"old", NOW).await.unwrap();
        files.commit().await.unwrap();
        files.close().await.unwrap();
        check(0, &Contents::new()).await;
    })
    .unwrap();
}

/// What was packed, and is given up while the commit waits that counts it, is counted no more by the one after that.
#[test]
fn what_is_given_up_while_a_commit_waits_is_given_back() {
    let (simulation, host) = world(2);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, move || async move {
        let opened = Writer::open(medium(), Rc::new(LocalLeases::new()), &writer_options()).await;
        let mut writer = opened.unwrap();
        let attributes = Attributes::default();
        let made = writer.create_file(ROOT, b"kept", &attributes, &[1; 30_000]);
        made.await.unwrap();
        let mut stream = writer.begin_file();
        writer.append(&mut stream, &[2; 100_000]).await.unwrap();
        disk.set_limit_bytes(0);
        assert!(matches!(writer.commit().await, Err(WriteError::DisksFull)));
        assert!(matches!(
            writer.append(&mut stream, &[2; 100_000]).await,
            Err(WriteError::DisksFull)
        ));
        writer.abandon_file(stream);
        disk.set_limit_bytes(u64::MAX);
        sleep(TRIED_AGAIN).await;
        writer.commit().await.unwrap();
        let made = writer.create_file(ROOT, b"another", &attributes, &[3; 30_000]);
        made.await.unwrap();
        writer.commit().await.unwrap();
        writer.close().await.unwrap();
        let files = [("kept", (1, 30_000)), ("another", (3, 30_000))];
        check(2, &files.map(|(name, full)| (name.to_owned(), full)).into()).await;
    })
    .unwrap();
}

/// Content that is in memory while a commit waits stays there, whatever asks for the file; and who closes a file without a name then leaves
/// none behind.
#[test]
fn content_and_nameless_files_wait_for_the_commit_that_waits() {
    let (simulation, host) = world(3);
    on_host(&simulation, host, || async {
        format(medium(), leases(), "a formatter", &small()).await.unwrap();
    })
    .unwrap();
    let disk = simulation.disk(host, Path::new(DISK));
    on_host(&simulation, host, move || async move {
        let keeper = Rc::new(LocalLeases::new());
        let mut files = FileSystem::open(medium(), keeper, &options()).await.unwrap();
        let short = files.create(ROOT, b"short", NEW, NOW).await.unwrap().number;
        let long = files.create(ROOT, b"long", NEW, NOW).await.unwrap().number;
        let nameless = files.create(ROOT, b"nameless", NEW, NOW).await.unwrap().number;
        files.write(long, 0, &[1; 300_000], NOW).await.unwrap();
        files.commit().await.unwrap();
        files.open_inode(nameless).await.unwrap();
        files.unlink(ROOT, b"nameless", NOW).await.unwrap();
        // It waits in memory, and the commit below is of the index only.
        files.write(short, 0, &[2; 100], NOW).await.unwrap();
        files.write(long, 0, &[1; 100], NOW).await.unwrap();
        disk.set_limit_bytes(0);
        assert!(files.make_durable_again().await.is_err());
        for file in [short, long] {
            // Of the long one as a whole, where what waits of both is put into the tree first.
            let copied = files.copy_range((long, 0), (short, 0), 1 << 20, NOW).await;
            let punched = files.allocate(file, 0..50, Allocate::Hole, true, NOW).await;
            let numbers = (copied.unwrap_err().errno(), punched.unwrap_err().errno());
            assert_eq!(numbers, (errno::ENOSPC, errno::ENOSPC));
        }
        assert_eq!(files.release(nameless).await.unwrap_err().errno(), errno::ENOSPC);
        disk.set_limit_bytes(u64::MAX);
        sleep(TRIED_AGAIN).await;
        files.commit().await.unwrap();
        assert!(files.stat(nameless).await.is_err());
        files.commit().await.unwrap();
        files.close().await.unwrap();
        let files = [("short", (2, 100)), ("long", (1, 300_000))];
        check(3, &files.map(|(name, full)| (name.to_owned(), full)).into()).await;
    })
    .unwrap();
}
