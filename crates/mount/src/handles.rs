//! What is open of a volume that somebody else writes, and the commit each open file is read at (`docs/decisions/0117`).
//!
//! The kernel keeps one length and one set of cached pages for each of its nodes, whoever has it open. So a node whose file
//! is open stands for one content: once a commit changes the file, the node is pinned to the commit before, and names lead
//! to another node from then on. A node's number is the inode's own wherever no pin is in the way.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use foundation::Instant;
use packfs::{Inode, InodeNumber, Reader};

use crate::source::{Snapshot, Source};

/// A file that is open is read as it was for so long after the commit that changed it was seen; then it is ESTALE. So long a
/// reader may keep a writer from using space again.
pub(crate) const PINNED_FOR: Duration = Duration::from_secs(600);

/// Numbers of nodes that are no inode's own begin here; inodes, numbered one after the other, do not come so far.
const FIRST_OTHER: u64 = 1 << 63;

/// Of an open file whose content has changed.
enum Pin {
    /// It is read here, for a while after that instant.
    Held(Rc<Source>, Instant),
    /// It cannot be read any more.
    Gone,
}

struct Opened {
    /// As it was when last seen unchanged.
    inode: Rc<Inode>,
    /// How often it is open.
    opens: u64,
    pin: Option<Pin>,
}

impl Opened {
    fn has_expired(&self, age: Duration, now: Instant) -> bool {
        matches!(self.pin, Some(Pin::Held(_, since)) if since + age <= now)
    }
}

/// A node that is no inode's own.
struct Other {
    inode: InodeNumber,
    /// How often the kernel was told of it and has not forgotten it since.
    lookups: u64,
}

/// Where a node is read.
pub(crate) enum At {
    Newest(InodeNumber),
    Pinned(Rc<Source>, InodeNumber),
    Gone,
}

/// What became of open files in a newer commit: the inode there, if it has it.
pub(crate) type Seen = BTreeMap<InodeNumber, Option<Inode>>;

/// See the module. Everything is by the kernel's number of a node.
#[derive(Default)]
pub(crate) struct Handles {
    opened: RefCell<BTreeMap<InodeNumber, Opened>>,
    others: RefCell<BTreeMap<InodeNumber, Other>>,
    made: Cell<u64>,
}

impl Handles {
    fn inode_of(&self, node: InodeNumber) -> InodeNumber {
        if node.0 < FIRST_OTHER {
            return node;
        }
        self.others.borrow().get(&node).map_or(node, |other| other.inode)
    }

    fn is_pinned(&self, node: InodeNumber) -> bool {
        let opened = self.opened.borrow();
        opened.get(&node).is_some_and(|opened| opened.pin.is_some())
    }

    /// Where a node is read; right for as long as no commit takes another's place.
    pub(crate) fn at(&self, node: InodeNumber) -> At {
        match self.opened.borrow().get(&node).map(|opened| &opened.pin) {
            Some(Some(Pin::Held(source, _))) => At::Pinned(source.clone(), self.inode_of(node)),
            Some(Some(Pin::Gone)) => At::Gone,
            Some(None) | None => At::Newest(self.inode_of(node)),
        }
    }

    /// The node that names of an inode lead to. The kernel is told of it, and forgets it some day.
    pub(crate) fn named(&self, inode: InodeNumber) -> InodeNumber {
        if !self.is_pinned(inode) {
            return inode;
        }
        let mut others = self.others.borrow_mut();
        let free =
            |(node, other): &(&InodeNumber, &mut Other)| other.inode == inode && !self.is_pinned(**node);
        if let Some((node, other)) = others.iter_mut().find(free) {
            other.lookups += 1;
            return *node;
        }
        let node = InodeNumber(FIRST_OTHER + self.made.get());
        self.made.set(self.made.get() + 1);
        others.insert(node, Other { inode, lookups: 1 });
        node
    }

    /// The kernel has forgotten that it was told of a node, so many times.
    pub(crate) fn forget(&self, node: InodeNumber, times: u64) {
        let mut others = self.others.borrow_mut();
        if let Some(other) = others.get_mut(&node) {
            other.lookups = other.lookups.saturating_sub(times);
            if other.lookups == 0 {
                others.remove(&node);
            }
        }
    }

    /// A node that is not pinned is opened, and is this inode of the commit that is read.
    pub(crate) fn open(&self, node: InodeNumber, inode: &Inode) {
        let mut opened = self.opened.borrow_mut();
        let opened = opened.entry(node).or_insert_with(|| Opened {
            inode: Rc::new(inode.clone()),
            opens: 0,
            pin: None,
        });
        opened.opens += 1;
    }

    /// A node is closed, once; whether a commit may be let go with it.
    pub(crate) fn release(&self, node: InodeNumber) -> bool {
        let mut all = self.opened.borrow_mut();
        let Some(opened) = all.get_mut(&node) else {
            return false;
        };
        opened.opens -= 1;
        if opened.opens > 0 {
            return false;
        }
        let closed = all.remove(&node);
        matches!(closed.and_then(|closed| closed.pin), Some(Pin::Held(..)))
    }

    /// What is open at the commit that is read, and is not among these: nodes and inodes.
    pub(crate) fn unseen(&self, seen: &Seen) -> Vec<(InodeNumber, InodeNumber)> {
        let opened = self.opened.borrow();
        let unseen = opened
            .iter()
            .filter(|(node, opened)| opened.pin.is_none() && !seen.contains_key(node));
        unseen
            .map(|(node, opened)| (*node, opened.inode.number))
            .collect()
    }

    /// A newer commit takes the place of the one that is read, of which `before` is left if it can still be read. All that is open was seen.
    pub(crate) fn follow(&self, mut seen: Seen, before: Option<Snapshot>, now: Instant) {
        let before = before.map(|snapshot| Rc::new(Source::Reading(Box::new(snapshot))));
        for (node, opened) in self.opened.borrow_mut().iter_mut() {
            match (&opened.pin, seen.remove(node).flatten()) {
                (None, Some(inode)) if inode.is_content_of(&opened.inode) => opened.inode = Rc::new(inode),
                (None, _) => {
                    let held = before.clone().map(|before| Pin::Held(before, now));
                    opened.pin = Some(held.unwrap_or(Pin::Gone));
                }
                // What kept these readable is gone as well.
                (Some(Pin::Held(..)), _) if before.is_none() => opened.pin = Some(Pin::Gone),
                (Some(_), _) => {}
            }
        }
    }

    /// Whether something is pinned for so long or longer.
    pub(crate) fn has_expired(&self, age: Duration, now: Instant) -> bool {
        let opened = self.opened.borrow();
        opened.values().any(|opened| opened.has_expired(age, now))
    }

    /// Gives up what is pinned for so long or longer.
    pub(crate) fn expire(&self, age: Duration, now: Instant) {
        for opened in self.opened.borrow_mut().values_mut() {
            if opened.has_expired(age, now) {
                opened.pin = Some(Pin::Gone);
            }
        }
    }

    /// The reader of the oldest commit that something is pinned to.
    pub(crate) fn oldest(&self) -> Option<Reader> {
        let opened = self.opened.borrow();
        let readers = opened.values().filter_map(|opened| match &opened.pin {
            Some(Pin::Held(source, _)) => source.reader(),
            Some(Pin::Gone) | None => None,
        });
        readers.min_by_key(|reader| reader.generation()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packfs::files::{FileOptions, FileSystem, NewInode, SetAttributes};
    use packfs::{FormatOptions, Medium, ReaderOptions, Timestamp};

    use bdev::BlockDevice;
    use bdev::fence::TokenKeeper;
    use bdev::memory::MemoryDevice;
    use foundation::BlockCount;
    use packfs::lease::LeaseSource;
    use packfs::lease::memory::LocalLeases;

    use crate::refusal::Refusal;
    use crate::shared::{Caching, Shared};
    use crate::source::Volume;

    const ROOT: InodeNumber = InodeNumber::ROOT;

    struct World {
        files: FileSystem,
        shared: Shared,
        leases: LocalLeases,
        token: u64,
    }

    /// A mount that follows what the writer does.
    async fn world() -> World {
        let device = MemoryDevice::new(4096, BlockCount(8192)).unwrap();
        let medium = Medium::new(TokenKeeper::new().over(device.open_channel().unwrap()));
        let leases = LocalLeases::new();
        let keeper = || Rc::new(leases.clone());
        packfs::format(medium.clone(), keeper(), "a test", &FormatOptions::default())
            .await
            .unwrap();
        let opened = FileSystem::open(medium.clone(), keeper(), &FileOptions::default()).await;
        let volume = Volume {
            medium,
            leases: keeper(),
            options: ReaderOptions {
                cache_bytes: 0,
                ..ReaderOptions::default()
            },
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
            world.shared.expire(PINNED_FOR).await;
            assert_eq!(world.read(old).await.unwrap(), [1; 100_000]);
            assert!(world.held().await < Some(world.files.generation()));
            world.shared.expire(Duration::ZERO).await;
            assert_eq!(world.read(old).await, Err(Refusal::STALE));
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
}
