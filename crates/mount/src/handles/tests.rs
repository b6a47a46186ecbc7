use super::*;
use packfs::files::{FileOptions, FileSystem, NewInode, SetAttributes};
use packfs::{FormatOptions, Medium, ReaderFloor, ReaderOptions, Timestamp};

use bdev::BlockDevice;
use bdev::fence::TokenKeeper;
use bdev::memory::MemoryDevice;
use foundation::BlockCount;
use packfs::lease::memory::LocalLeases;
use packfs::lease::{LeaseError, LeaseFuture, LeaseSource, ReaderLease, WriterLease};

use crate::refusal::Refusal;
use crate::shared::{Caching, Shared};
use crate::source::Volume;

const ROOT: InodeNumber = InodeNumber::ROOT;

struct World {
    files: FileSystem,
    shared: Shared,
    leases: LocalLeases,
    /// How many leases of the mount's readers the masters have forgotten.
    forgotten: Rc<Cell<u64>>,
    token: u64,
}

/// Masters that forget readers, all up to a number, when they are told to.
struct Forgetful(LocalLeases, Rc<Cell<u64>>);

impl LeaseSource for Forgetful {
    fn acquire_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        self.0.acquire_writer(holder)
    }

    fn take_over_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        self.0.take_over_writer(holder)
    }

    fn wanted_by(&self) -> Option<String> {
        self.0.wanted_by()
    }

    fn renew_writer(&self, token: u64) -> LeaseFuture<'_, WriterLease> {
        self.0.renew_writer(token)
    }

    fn release_writer(&self, token: u64) -> LeaseFuture<'_, ()> {
        self.0.release_writer(token)
    }

    fn acquire_reader(&self, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        self.0.acquire_reader(generation)
    }

    fn renew_reader(&self, id: u64, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        Box::pin(async move {
            if id <= self.1.get() {
                self.0.release_reader(id).await?;
                return Err(LeaseError::Ended);
            }
            self.0.renew_reader(id, generation).await
        })
    }

    fn release_reader(&self, id: u64) -> LeaseFuture<'_, ()> {
        self.0.release_reader(id)
    }

    fn reader_floor(&self, token: u64) -> LeaseFuture<'_, ReaderFloor> {
        self.0.reader_floor(token)
    }
}

/// A mount that follows what the writer does, and remembers nothing.
async fn world() -> World {
    world_with(ReaderOptions {
        cache_bytes: 0,
        ..ReaderOptions::default()
    })
    .await
}

async fn world_with(options: ReaderOptions) -> World {
    let device = MemoryDevice::new(4096, BlockCount(8192)).unwrap();
    let medium = Medium::new(TokenKeeper::new().over(device.open_channel().unwrap()));
    let leases = LocalLeases::new();
    let keeper = || Rc::new(leases.clone());
    packfs::format(medium.clone(), keeper(), "a test", &FormatOptions::default())
        .await
        .unwrap();
    let opened = FileSystem::open(medium.clone(), keeper(), &FileOptions::default()).await;
    let forgotten = Rc::<Cell<u64>>::default();
    let volume = Volume {
        medium,
        leases: Rc::new(Forgetful(leases.clone(), forgotten.clone())),
        options,
    };
    let source = Source::Reading(Box::new(volume.read().await.unwrap()));
    let shared = Shared::new(source, Caching::Following);
    let files = opened.unwrap();
    // The first was the one that formatted.
    let token = 2;
    World {
        files,
        shared,
        leases,
        forgotten,
        token,
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: 0,
    }
}

impl World {
    async fn write(&mut self, name: &[u8], seconds: i64, bytes: &[u8]) {
        let (files, now) = (&mut self.files, at(seconds));
        let new = NewInode {
            mode: 0o644,
            uid: 0,
            gid: 0,
        };
        let inode = match files.lookup(ROOT, name).await {
            Ok(inode) => inode,
            Err(_) => files.create(ROOT, name, new, now).await.unwrap(),
        };
        let cut = SetAttributes {
            size: Some(bytes.len() as u64),
            ..SetAttributes::default()
        };
        files.set_attributes(inode.number, &cut, now).await.unwrap();
        files.write(inode.number, 0, bytes, now).await.unwrap();
    }

    async fn commit(&mut self) {
        self.files.commit().await.unwrap();
        self.shared.follow().await.unwrap();
    }

    async fn name(&self, name: &[u8]) -> InodeNumber {
        let found = self
            .shared
            .look(async |source| source.lookup(ROOT, name).await)
            .await;
        self.shared.handles.named(found.unwrap().number)
    }

    async fn read(&self, node: InodeNumber) -> Result<Vec<u8>, Refusal> {
        let read = async |source: &Source, inode| source.read(inode, 0, 1 << 20).await;
        let bytes = self.shared.look_at(node, read).await?;
        Ok(bytes.with(<[u8]>::to_vec))
    }

    /// The oldest commit that readers hold.
    async fn held(&self) -> Option<u64> {
        self.leases.reader_floor(self.token).await.unwrap().0
    }
}

fn run(test: impl AsyncFnOnce() + 'static) {
    reactor::run(&reactor::Config::default(), async move { test().await }).unwrap();
}

/// One that is open goes on at its commit while names lead to what is new; closed, it lets the commit go.
#[test]
fn an_open_file_is_read_at_its_commit_and_names_lead_to_the_new_one() {
    run(async || {
        let mut world = world().await;
        world.write(b"f", 1, &[1; 100_000]).await;
        world.write(b"same", 1, &[7; 50_000]).await;
        world.commit().await;
        let (old, same) = (world.name(b"f").await, world.name(b"same").await);
        world.shared.open(old).await.unwrap();
        world.shared.open(same).await.unwrap();
        let first = world.shared.source.read().await.reader().unwrap().generation();
        for round in 2..30u8 {
            world.write(b"f", round.into(), &[round; 70_000]).await;
            world.commit().await;
        }
        assert_eq!(world.read(old).await.unwrap(), [1; 100_000]);
        assert_eq!(world.name(b"same").await, same, "unchanged");
        let new = world.name(b"f").await;
        assert!(new != old && new == world.name(b"f").await);
        assert_eq!(world.read(new).await.unwrap(), [29; 70_000]);
        assert_eq!(
            world.shared.open(old).await,
            Err(Refusal::STALE),
            "looked up anew"
        );
        assert!(!world.shared.open(new).await.unwrap());
        assert_eq!(world.held().await, Some(first), "the oldest that is open");

        // The second content is open as well when a third comes, and then the name goes.
        world.write(b"f", 30, b"third").await;
        world.commit().await;
        let third = world.name(b"f").await;
        assert!(third != new && third != old);
        world.shared.open(third).await.unwrap();
        world.files.unlink(ROOT, b"f", at(31)).await.unwrap();
        world.commit().await;
        assert_eq!(world.read(old).await.unwrap(), [1; 100_000]);
        assert_eq!(world.read(new).await.unwrap(), [29; 70_000]);
        assert_eq!(world.read(third).await.unwrap(), b"third");
        assert_eq!(world.read(same).await.unwrap(), [7; 50_000]);

        world.shared.close(old).await;
        assert!(world.held().await > Some(first));
        world.shared.close(third).await;
        world.shared.close(new).await;
        let newest = world.files.generation();
        assert_eq!(
            world.held().await,
            Some(newest),
            "one that is unchanged holds nothing"
        );
        // What the kernel has forgotten is not kept.
        world.shared.forget(new, 2);
        world.shared.forget(third, 1);
        assert_eq!(world.shared.handles.others.borrow().len(), 0);
    });
}

#[test]
fn attributes_alone_pin_nothing() {
    run(async || {
        let mut world = world().await;
        world.write(b"f", 1, &[1; 100_000]).await;
        world.commit().await;
        let node = world.name(b"f").await;
        world.shared.open(node).await.unwrap();
        let set = SetAttributes {
            mode: Some(0o600),
            ..SetAttributes::default()
        };
        world.files.set_attributes(node, &set, at(2)).await.unwrap();
        world.commit().await;
        assert_eq!(world.name(b"f").await, node);
        assert_eq!(world.held().await, Some(world.files.generation()));
    });
}

#[test]
fn what_is_open_for_too_long_is_stale_and_holds_nothing() {
    run(async || {
        let mut world = world().await;
        world.write(b"f", 1, &[1; 100_000]).await;
        world.commit().await;
        let old = world.name(b"f").await;
        world.shared.open(old).await.unwrap();
        world.write(b"f", 2, &[2; 100_000]).await;
        world.commit().await;
        world.shared.expire(crate::KEEP_CHANGED).await;
        assert_eq!(world.read(old).await.unwrap(), [1; 100_000]);
        assert!(world.held().await < Some(world.files.generation()));
        let held = world.shared.handles.statistics();
        assert_eq!((held.pinned, held.commits, held.stale), (1, 1, 0));
        world.shared.expire(Duration::ZERO).await;
        assert_eq!(world.read(old).await, Err(Refusal::STALE));
        let held = world.shared.handles.statistics();
        assert_eq!((held.pinned, held.commits, held.stale), (0, 0, 1));
        assert_eq!(world.held().await, Some(world.files.generation()));
        let new = world.name(b"f").await;
        assert_ne!(new, old, "the kernel has the old bytes under the old number");
        assert_eq!(world.read(new).await.unwrap(), [2; 100_000]);
        world.shared.close(old).await;
        assert_eq!(
            world.name(b"f").await,
            old,
            "there is nothing in the way any more"
        );
        assert_eq!(world.read(old).await.unwrap(), [2; 100_000]);
    });
}

/// Many more files than there is room for: the bound holds, and what is in use stays.
#[test]
fn what_is_remembered_lies_within_the_cache_and_goes_one_by_one() {
    run(async || {
        let cache_bytes = 64 << 10;
        let mut world = world_with(ReaderOptions {
            cache_bytes,
            ..ReaderOptions::default()
        })
        .await;
        let name = |number: usize| format!("file {number}").into_bytes();
        for number in 0..600 {
            world.write(&name(number), 1, b"content").await;
        }
        world.commit().await;
        let hot = world.name(&name(0)).await;
        assert!(!world.shared.open(hot).await.unwrap(), "for the first time");
        for number in 1..600 {
            let node = world.name(&name(number)).await;
            world.shared.open(node).await.unwrap();
            assert_eq!(world.read(node).await.unwrap(), b"content");
            world.shared.close(node).await;
            let again = world.shared.open(hot).await.unwrap();
            assert!(again, "it was forgotten with others, at {number}");
            let contents = world.shared.contents.borrow().statistics();
            let Source::Reading(snapshot) = &*world.shared.source.read().await else {
                panic!("nothing is written here")
            };
            let (known, pages) = (snapshot.known(), snapshot.statistics().index_bytes());
            let all = known.bytes + contents.bytes + pages;
            assert!(all <= cache_bytes, "{all} bytes");
            if number == 599 {
                assert!(known.evicted > 400 && known.held > 10, "{known:?}");
                assert!(contents.evicted > 400 && contents.held > 10, "{contents:?}");
                // What was looked up is read without asking again.
                assert!(known.misses < 100, "{known:?}");
            }
        }
        let text = world.shared.statistics().await;
        assert!(
            text.contains(&format!("\"cache_bytes_max\": {cache_bytes}")),
            "{text}"
        );
        assert!(text.contains("\"open_nodes\": 1,"), "{text}");
    });
}

/// There may be as many of them as commits in ten minutes.
#[test]
fn a_commit_that_is_kept_for_an_open_file_remembers_nothing() {
    run(async || {
        let mut world = world_with(ReaderOptions {
            data_cache_bytes: 2 << 20,
            ..ReaderOptions::default()
        })
        .await;
        for number in 0..32u8 {
            world.write(&[b'a' + number], 1, &[number; 60_000]).await;
        }
        world.commit().await;
        let old = world.name(b"a").await;
        world.shared.open(old).await.unwrap();
        for round in 2..12 {
            let mut ahead = 0;
            for number in 0..32u8 {
                let node = world.name(&[b'a' + number]).await;
                world.read(node).await.unwrap();
                let source = world.shared.source.read().await;
                ahead = ahead.max(source.reader().unwrap().statistics().data.bytes);
            }
            assert!(ahead > 0, "nothing was read ahead, and this shows nothing");
            world.shared.open(world.name(b"a").await).await.unwrap();
            world.write(b"a", round, &[round as u8; 60_000]).await;
            world.commit().await;
            assert_eq!(world.read(old).await.unwrap(), [0; 60_000]);
        }
        let statistics = world.shared.handles.statistics();
        assert_eq!((statistics.pinned, statistics.commits), (10, 10));
        for opened in world.shared.handles.opened.borrow().values() {
            let Some(Pin::Held(source, _)) = &opened.pin else {
                panic!("all were changed")
            };
            let Source::Reading(snapshot) = &**source else {
                panic!("nothing is written here")
            };
            let data = snapshot.statistics().data.bytes;
            assert_eq!((snapshot.known().bytes, data), (0, 0));
        }
    });
}

#[test]
fn listings_that_nobody_goes_on_with_take_no_more_than_their_bound() {
    run(async || {
        let world = world().await;
        let entries = || (0..100).map(|cookie| (cookie, vec![b'n'; 200])).collect();
        let begun = world.shared.new_handle();
        world.shared.listed(begun, entries());
        for _ in 0..2000 {
            world.shared.listed(world.shared.new_handle(), entries());
            assert!(world.shared.listings().bytes <= 4 << 20);
            let name = world.shared.listed_name(begun, 99);
            assert_eq!(name, Some(vec![b'n'; 200]), "somebody goes on with this one");
        }
        assert!(world.shared.listings().evicted > 1500);
        world.shared.release_directory(begun);
        assert_eq!(world.shared.listed_name(begun, 99), None);
    });
}

/// The lease ends while one file is pinned and another, unchanged, is open: what was pinned cannot be read any more, and holds nothing.
#[test]
fn a_lease_that_ends_takes_the_pins_with_it() {
    run(async || {
        let mut world = world().await;
        world.write(b"f", 1, &[1; 100_000]).await;
        world.write(b"same", 1, &[7; 50_000]).await;
        world.commit().await;
        let (old, same) = (world.name(b"f").await, world.name(b"same").await);
        world.shared.open(old).await.unwrap();
        world.shared.open(same).await.unwrap();
        world.write(b"f", 2, &[2; 100_000]).await;
        world.commit().await;
        assert_eq!(world.read(old).await.unwrap(), [1; 100_000]);
        let second = world.name(b"f").await;
        world.shared.open(second).await.unwrap();

        // The mount learns of it when it goes on to the next commit, which pins the second content as well.
        world.forgotten.set(1000);
        world.write(b"f", 3, &[3; 100_000]).await;
        world.commit().await;
        world.forgotten.set(0);
        // Its space is used again, several times over.
        for round in 4..12u8 {
            world.write(b"f", round.into(), &[round; 100_000]).await;
            world.files.commit().await.unwrap();
        }
        for node in [old, second] {
            assert_eq!(world.read(node).await, Err(Refusal::STALE));
        }
        assert_eq!(
            world.read(same).await.unwrap(),
            [7; 50_000],
            "of the newest commit"
        );
        for node in [old, second] {
            assert_eq!(world.read(node).await, Err(Refusal::STALE), "for good");
        }
        assert_eq!(
            world.held().await,
            Some(world.files.generation()),
            "under a new lease"
        );
        let statistics = world.shared.handles.statistics();
        assert_eq!(
            (statistics.stale, statistics.pinned, statistics.commits),
            (2, 0, 0)
        );
        let new = world.name(b"f").await;
        assert!(new != old && new != second);
        assert_eq!(world.read(new).await.unwrap(), [11; 100_000]);
        world.shared.close(old).await;
        world.shared.close(second).await;
        assert_eq!(world.shared.handles.statistics().open, 1);
    });
}
