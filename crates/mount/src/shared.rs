//! What all requests share: the file system behind its gate, and what the kernel has open and cached.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use packfs::files::{FileError, FileSystem};
use packfs::{InodeNumber, Reader, Timestamp, WriteError};
use reactor::sync::Semaphore;

use crate::gate::{Changing, Gate};
use crate::handles::{At, Handles, Seen};
use crate::kept::{Kept, KeptStatistics};
use crate::refusal::Refusal;
use crate::source::{Room, Snapshot, Source, Volume};

/// What the kernel may believe without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Everything changes through the kernel: it knows as soon as we do. That something is missing it may believe, too.
    Writer,
    /// Nothing changes. Files need not be opened.
    Still,
    /// Commits come from elsewhere.
    Following,
}

/// A day: names and attributes that cannot change but through the kernel.
const FOR_LONG: Duration = Duration::from_secs(86_400);
/// Names and attributes of a volume that somebody else writes. With [`follow_every`] it is less than the time within
/// which readers see a commit.
const FOR_SHORT: Duration = Duration::from_millis(500);
/// What opening a commit may take, and the kernel until it counts what it was told.
const MARGIN: Duration = Duration::from_millis(100);
/// Of so many open files at once it is looked what a new commit has of them.
const SEEN_SIDE_BY_SIDE: usize = 64;
/// How long the end of a mount whose disks are full waits for room, and how long from one attempt to the next.
const ROOM_PATIENCE: Duration = Duration::from_secs(4);
const ROOM_PAUSE: Duration = Duration::from_millis(500);
/// `statfs` asks the masters no more often for a volume's size.
const GROWTH_PAUSE: Duration = Duration::from_secs(10);
/// So often a reader looks for a new commit that is to be seen within a time.
pub(crate) fn follow_every(within: Duration) -> Duration {
    within.max(crate::FOLLOW_WITHIN) - FOR_SHORT - MARGIN
}

impl Caching {
    pub(crate) fn kept(self) -> Duration {
        match self {
            Self::Writer | Self::Still => FOR_LONG,
            Self::Following => FOR_SHORT,
        }
    }

    /// How long it may be believed that a name is not there, if at all.
    pub(crate) fn missing_kept(self) -> Option<Duration> {
        match self {
            Self::Writer | Self::Still => Some(FOR_LONG),
            Self::Following => None,
        }
    }
}

/// Bound of the memory for entries that were listed last, in bytes. A listing that is not remembered any more goes on from its cookie, which
/// costs a lookup elsewhere, and for which the entry has to be there still (a writer remembers some thousand that were removed).
const LISTINGS_BYTES: usize = 4 << 20;

/// Entries that were listed: cookies and names.
pub(crate) type Listed = Vec<(u64, Vec<u8>)>;

pub(crate) struct Shared {
    pub(crate) source: Gate<Source>,
    pub(crate) caching: Caching,
    /// The last entries that were listed, by handle: cookies and names.
    listings: RefCell<Kept<Listed>>,
    next_handle: Cell<u64>,
    /// What is open of a volume that somebody else writes.
    pub(crate) handles: Handles,
    /// When a node was changed whose contents the kernel has, as far as that is remembered; where it is not, the kernel reads anew.
    pub(crate) contents: RefCell<Kept<Timestamp>>,
    /// One looks for a commit at a time.
    following: std::rc::Rc<Semaphore>,
    /// The kernel may believe names and attributes of an earlier commit until then.
    believed_until: Cell<foundation::Instant>,
    /// When `statfs` may ask next whether the volume has grown.
    growth_due: Cell<foundation::Instant>,
    /// Whether somebody was told that the commit that is shown is gone.
    told_stale: Cell<bool>,
    /// Content that was dropped before the volume was handed over, of which nobody was told yet.
    lost: RefCell<BTreeMap<InodeNumber, WriteError>>,
}

/// Commits everything, with some patience for room that may just have been made.
async fn commit_at_last(files: &mut FileSystem) -> Result<(), FileError> {
    let until = reactor::time::now() + ROOM_PATIENCE;
    loop {
        match files.commit().await {
            Err(FileError::Write(error)) if error.is_disks_full() && reactor::time::now() < until => {
                reactor::time::sleep(ROOM_PAUSE).await;
            }
            ended => return ended.map(drop),
        }
    }
}

/// Looks at an inode; where something of it cannot be read, its path is in the log.
async fn named<T>(
    source: &Source,
    inode: InodeNumber,
    look: &impl AsyncFn(&Source, InodeNumber) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let found = look(source, inode).await;
    if matches!(found, Err(Refusal::IO)) {
        source.name_in_log(inode).await;
    }
    found
}

impl Shared {
    pub(crate) fn new(source: Source, caching: Caching) -> Self {
        let contents_bytes = match &source {
            Source::Reading(snapshot) => snapshot.volume().contents_bytes(),
            // Its kernel believes what it has.
            Source::Writing(_) => 0,
        };
        Self {
            source: Gate::new(source),
            caching,
            listings: RefCell::new(Kept::new(LISTINGS_BYTES)),
            next_handle: Cell::new(1),
            handles: Handles::default(),
            contents: RefCell::new(Kept::new(contents_bytes)),
            following: Semaphore::new(1),
            believed_until: Cell::new(reactor::time::now()),
            growth_due: Cell::new(reactor::time::now() + GROWTH_PAUSE),
            told_stale: Cell::new(false),
            lost: RefCell::new(BTreeMap::new()),
        }
    }

    /// Looks something up. After the end of a reader's lease the volume is opened again, once.
    pub(crate) async fn look<T>(
        &self,
        look: impl AsyncFn(&Source) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let found = look(&*self.source.read().await).await;
        if !matches!(found, Err(Refusal::LeaseEnded)) {
            return found;
        }
        self.follow().await?;
        look(&*self.source.read().await).await
    }

    /// The same of an inode.
    pub(crate) async fn look_of<T>(
        &self,
        inode: InodeNumber,
        look: impl AsyncFn(&Source, InodeNumber) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.look(async |source| named(source, inode, &look).await).await
    }

    /// The same of one of the kernel's nodes, at the commit that it is pinned to if it is.
    pub(crate) async fn look_at<T>(
        &self,
        node: InodeNumber,
        look: impl AsyncFn(&Source, InodeNumber) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.look(async |source| match self.handles.at(node) {
            At::Newest(inode) => named(source, inode, &look).await,
            At::Pinned(pinned, inode) => match named(&pinned, inode, &look).await {
                Err(Refusal::LeaseEnded) => Err(Refusal::STALE),
                other => other,
            },
            At::Gone => Err(Refusal::STALE),
        })
        .await
    }

    /// Opens a file of a volume that somebody else writes, and says whether what the kernel has of its contents is still right. From then on
    /// it has them as they are.
    ///
    /// # Errors
    /// [`Refusal::STALE`] of a node that is pinned: then the kernel looks the name up, which leads to another.
    pub(crate) async fn open(&self, node: InodeNumber) -> Result<bool, Refusal> {
        let opened = self.look(async |source| match self.handles.at(node) {
            At::Newest(inode) => {
                let inode = source.stat(inode).await?;
                self.handles.open(node, &inode);
                Ok(inode.attributes.ctime)
            }
            At::Pinned(..) | At::Gone => Err(Refusal::STALE),
        });
        let changed = opened.await?;
        let before = self.contents.borrow().get(node.0).copied();
        if before.is_some_and(|before| before != changed) {
            // The kernel may believe the length of before, and would cut what it reads there. Whoever opens it meanwhile waits, too.
            self.until_believed_no_more().await;
        }
        self.contents.borrow_mut().insert(node.0, changed, 0);
        Ok(before == Some(changed))
    }

    /// Closes what [`Shared::open`] opened.
    pub(crate) async fn close(&self, node: InodeNumber) {
        if self.handles.release(node) {
            // Nobody may still read at the commit that goes.
            drop(self.source.change().await);
            self.let_older_go().await;
        }
    }

    /// Gives up what is pinned for so long or longer.
    pub(crate) async fn expire(&self, age: Duration) {
        let now = reactor::time::now();
        if !self.handles.has_expired(age, now) {
            return;
        }
        // Nobody may still read at the commit that goes.
        let source = self.source.change().await;
        self.handles.expire(age, now);
        drop(source);
        self.let_older_go().await;
    }

    /// Tells whoever keeps leases what is not needed any more.
    async fn let_older_go(&self) {
        let newest = self.source.read().await.reader().cloned();
        let Some(oldest) = self.handles.oldest().or(newest) else {
            return;
        };
        // If that fails the lease goes on holding more than is needed, or has ended, which the next reader learns.
        if let Err(error) = oldest.let_older_go().await {
            tracing::debug!("the reader's lease was not moved on: {error}");
        }
    }

    /// Looks for what is open in a newer commit.
    async fn see(&self, newer: &Reader, seen: &mut Seen) -> Result<(), Refusal> {
        for batch in self.handles.unseen(seen).chunks(SEEN_SIDE_BY_SIDE) {
            let looks = batch.iter().map(|&(node, inode)| {
                let newer = newer.clone();
                (node, reactor::spawn(async move { newer.inode(inode).await }))
            });
            for (node, look) in looks.collect::<Vec<_>>() {
                let found = match look.await {
                    Some(Ok(inode)) => Some(inode),
                    Some(Err(packfs::ReadError::LeaseEnded)) => return Err(Refusal::LeaseEnded),
                    // It is gone, or cannot be read there, which whoever opens it there is told.
                    Some(Err(_)) | None => None,
                };
                seen.insert(node, found);
            }
        }
        Ok(())
    }

    /// Changes something.
    pub(crate) async fn change<T>(
        &self,
        change: impl AsyncFnOnce(&mut FileSystem) -> Result<T, FileError>,
    ) -> Result<T, Refusal> {
        let mut source: Changing<'_, Source> = self.source.change().await;
        match &mut *source {
            Source::Writing(files) => Ok(change(files).await?),
            Source::Reading(_) => Err(Refusal::READ_ONLY),
        }
    }

    /// As [`Shared::change`], where nothing need be done once the volume was handed over: then all is committed.
    pub(crate) async fn change_if_written(
        &self,
        change: impl AsyncFnOnce(&mut FileSystem) -> Result<(), FileError>,
    ) -> Result<(), Refusal> {
        match self.change(change).await {
            Err(Refusal::READ_ONLY) if matches!(*self.source.read().await, Source::Reading(_)) => Ok(()),
            other => other,
        }
    }

    /// Makes a file durable. Of a volume that was handed over all is; but of content that was dropped before, the first who asks is told.
    pub(crate) async fn sync(&self, number: InodeNumber) -> Result<(), Refusal> {
        let synced = self.change_if_written(async |files| files.sync(number).await.map(|_| ()));
        let synced = synced.await;
        if matches!(synced, Err(Refusal::IO)) {
            self.source.read().await.name_in_log(number).await;
        }
        synced?;
        match self.lost.borrow_mut().remove(&number) {
            Some(error) => Err(FileError::from(error).into()),
            None => Ok(()),
        }
    }

    /// The last commit of a mount that ends.
    ///
    /// # Errors
    /// Also for content that was dropped before, of which nobody was told.
    pub(crate) async fn end(self) -> (Source, Result<(), FileError>) {
        let mut source = self.source.into_inner();
        let committed = match &mut source {
            Source::Writing(files) => commit_at_last(files).await,
            Source::Reading(_) => Ok(()),
        };
        let lost = self.lost.into_inner().into_values().next();
        (
            source,
            committed.and(lost.map_or(Ok(()), |error| Err(error.into()))),
        )
    }

    /// What `statfs` answers. Whoever asks may have let the volume grow.
    pub(crate) async fn room(&self, inode: InodeNumber) -> Room {
        let now = reactor::time::now();
        if self.growth_due.get() <= now {
            self.growth_due.set(now + GROWTH_PAUSE);
            if let Source::Writing(files) = &mut *self.source.change().await {
                files.look_for_growth(Duration::ZERO).await;
            }
        }
        self.source.read().await.room(inode).await
    }

    /// What ends when another asks to be the writer; `None` where nothing is written.
    pub(crate) async fn asked(&self) -> Option<impl Future<Output = ()> + use<>> {
        match &*self.source.read().await {
            Source::Writing(files) => Some(files.asked()),
            Source::Reading(_) => None,
        }
    }

    /// Commits, and lets whoever asked be the writer; whether that is so. What was committed is shown from then on, under a reader's lease that is taken
    /// while the writer's lasts, so that the kernel may go on believing what it was told.
    pub(crate) async fn hand_over(&self, volume: &Volume) -> bool {
        let mut source = self.source.change().await;
        let Source::Writing(files) = &mut *source else {
            return true;
        };
        // Who asked may have given it up.
        let Some(to) = files.wanted_by() else {
            return false;
        };
        // What was dropped before keeps nobody from the volume, and is told to whoever syncs its file.
        if let Err(error) = files.commit_unasked().await {
            tracing::error!("{to} asked for the volume, and what was changed cannot be committed: {error}");
            return false;
        }
        let snapshot = match volume.again().read().await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                tracing::error!("{to} asked for the volume, and it cannot be read here: {error}");
                return false;
            }
        };
        if !files.hand_over().await {
            snapshot.close().await;
            return false;
        }
        self.lost.replace(files.take_dropped());
        *source = Source::Reading(Box::new(snapshot));
        tracing::warn!(
            "the volume was handed over to {to}, who asked for it; what was committed is still shown, and nothing more can be written"
        );
        true
    }

    /// What `fsync` does where nothing is written: goes on to the newest commit, and ends when everybody who asks sees that one. The kernel
    /// may believe for half a second what it was told of the one before; it cannot be told better here, because it holds a lock meanwhile that
    /// taking a name back needs.
    pub(crate) async fn refresh(&self) -> Result<(), Refusal> {
        if self.caching != Caching::Following {
            return Ok(());
        }
        self.follow().await?;
        self.until_believed_no_more().await;
        Ok(())
    }

    /// Waits until the kernel believes no names and attributes of an earlier commit any more.
    async fn until_believed_no_more(&self) {
        let left = self.believed_until.get().since(reactor::time::now());
        if !left.is_zero() {
            reactor::time::sleep(left).await;
        }
    }

    /// Makes everything durable so far; nothing on a volume that is only read.
    pub(crate) async fn commit(&self) -> Result<(), Refusal> {
        let mut source = self.source.change().await;
        match &mut *source {
            // Whoever syncs a file is still told of its content that was dropped.
            Source::Writing(files) => Ok(files.commit_unasked().await.map(|_| ())?),
            Source::Reading(_) => Ok(()),
        }
    }

    /// Goes on to the newest commit. Reads go on meanwhile; only while one generation takes the other's place they wait.
    pub(crate) async fn follow(&self) -> Result<(), Refusal> {
        let _alone = self.following.acquire().await;
        let (found, is_held) = match &*self.source.read().await {
            Source::Writing(_) => return Ok(()),
            Source::Reading(snapshot) => match snapshot.newer().await {
                Ok(None) => return Ok(()),
                Ok(Some(reader)) => (reader, true),
                Err(packfs::OpenError::Lease(_)) => {
                    let reader = snapshot.again().await?;
                    self.check_may_follow(snapshot, &reader)?;
                    (reader, false)
                }
                Err(error) => return Err(error.into()),
            },
        };
        let mut seen = Seen::new();
        self.see(&found, &mut seen).await?;
        if let Source::Reading(snapshot) = &mut *self.source.change().await {
            // What was opened meanwhile.
            self.see(&found, &mut seen).await?;
            let now = reactor::time::now();
            let before = snapshot.replace(found);
            self.handles.follow(seen, is_held.then_some(before), now);
            self.believed_until.set(now + FOR_SHORT + MARGIN);
        }
        self.let_older_go().await;
        Ok(())
    }

    /// Whether another reader may take the place of one whose lease has ended. Where the kernel was told that nothing changes it
    /// must show the same commit: it would mix two.
    fn check_may_follow(&self, snapshot: &Snapshot, reader: &Reader) -> Result<(), Refusal> {
        let (shown, found) = (snapshot.generation(), reader.generation());
        let is_same = snapshot.is_of(reader);
        if is_same && (self.caching == Caching::Following || shown == found) {
            return Ok(());
        }
        if !is_same && !self.told_stale.replace(true) {
            tracing::error!(
                "the volume was formatted anew, and this mount showed what it had before: nothing more can be read here; unmount it and mount \
                 it again"
            );
        }
        if !self.told_stale.replace(true) {
            tracing::error!(
                "the lease that kept commit {shown} readable has ended, and the volume is at commit {found} now, while this mount stays on \
                 the one it began with: nothing more can be read here; unmount it and mount it again"
            );
        }
        Err(Refusal::STALE)
    }

    /// The kernel has nothing of a node any more, of which it was told so many times.
    pub(crate) fn forget(&self, node: InodeNumber, times: u64) {
        self.contents.borrow_mut().remove(node.0);
        self.handles.forget(node, times);
    }

    /// A number for a directory that is opened.
    pub(crate) fn new_handle(&self) -> u64 {
        let handle = self.next_handle.get();
        self.next_handle.set(handle + 1);
        handle
    }

    /// Remembers the entries that the kernel has been given through a handle: it goes on after one of them.
    pub(crate) fn listed(&self, handle: u64, entries: Listed) {
        if !entries.is_empty() {
            let bytes = listing_bytes(&entries);
            self.listings.borrow_mut().insert(handle, entries, bytes);
        }
    }

    /// The name that an entry had when it was listed, if that is remembered.
    pub(crate) fn listed_name(&self, handle: u64, cookie: u64) -> Option<Vec<u8>> {
        let listings = self.listings.borrow();
        let found = listings.get(handle)?.iter().find(|(listed, _)| *listed == cookie);
        found.map(|(_, name)| name.clone())
    }

    pub(crate) fn release_directory(&self, handle: u64) {
        self.listings.borrow_mut().remove(handle);
    }

    pub(crate) fn listings(&self) -> KeptStatistics {
        self.listings.borrow().statistics()
    }
}

/// Heap memory of what was listed, in bytes.
fn listing_bytes(entries: &Listed) -> usize {
    let names: usize = entries.iter().map(|(_, name)| name.capacity().max(16) + 16).sum();
    entries.capacity() * size_of::<(u64, Vec<u8>)>() + names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    use bdev::fence::TokenKeeper;
    use bdev::memory::MemoryDevice;
    use bdev::{BlockDevice, Channel, Data, Geometry, Request};
    use foundation::BlockCount;
    use packfs::files::{FileOptions, NewInode};
    use packfs::lease::memory::LocalLeases;
    use packfs::lease::{LeaseError, LeaseFuture, LeaseSource, ReaderLease, WriterLease};
    use packfs::{Attributes, FormatOptions, Medium, ReaderFloor, ReaderOptions, Writer, WriterOptions};

    /// How long leases of readers last, whatever is asked.
    const TERM: Duration = Duration::from_millis(300);

    struct ShortLeases(LocalLeases, Cell<foundation::Instant>);

    impl LeaseSource for ShortLeases {
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
            Box::pin(async move {
                let lease = self.0.acquire_reader(generation).await?;
                let until = reactor::time::now() + TERM;
                self.1.set(until);
                Ok(ReaderLease { until, ..lease })
            })
        }

        fn renew_reader(&self, id: u64, generation: u64) -> LeaseFuture<'_, ReaderLease> {
            Box::pin(async move {
                let until = self.1.get();
                if reactor::time::now() >= until {
                    return Err(LeaseError::Ended);
                }
                let lease = self.0.renew_reader(id, generation).await?;
                Ok(ReaderLease { until, ..lease })
            })
        }

        fn release_reader(&self, id: u64) -> LeaseFuture<'_, ()> {
            self.0.release_reader(id)
        }

        fn reader_floor(&self, token: u64) -> LeaseFuture<'_, ReaderFloor> {
            self.0.reader_floor(token)
        }
    }

    /// What a mount shows once its lease has ended, and another commit was made meanwhile or not.
    async fn after_its_lease(caching: Caching, commits: bool) -> Result<InodeNumber, Refusal> {
        let device = MemoryDevice::new(4096, BlockCount(4096)).unwrap();
        let medium = Medium::new(TokenKeeper::new().over(device.open_channel().unwrap()));
        let leases = LocalLeases::new();
        packfs::format(
            medium.clone(),
            Rc::new(leases.clone()),
            "a test",
            &FormatOptions::default(),
        )
        .await
        .unwrap();
        let opened = Writer::open(medium.clone(), Rc::new(leases.clone()), &WriterOptions::default()).await;
        let mut writer = opened.unwrap();
        let attributes = Attributes {
            mode: 0o644,
            ..Attributes::default()
        };
        let root = InodeNumber::ROOT;
        writer.create_file(root, b"old", &attributes, b"x").await.unwrap();
        writer.commit().await.unwrap();
        let volume = Volume {
            medium,
            leases: Rc::new(ShortLeases(leases, Cell::new(reactor::time::now()))),
            options: ReaderOptions::default(),
        };
        let source = Source::Reading(Box::new(volume.read().await.unwrap()));
        let shared = Shared::new(source, caching);
        let name: &[u8] = match commits {
            true => {
                writer.create_file(root, b"new", &attributes, b"y").await.unwrap();
                writer.commit().await.unwrap();
                b"new"
            }
            false => b"old",
        };
        reactor::time::sleep(TERM * 2).await;
        let look = async |source: &Source| source.lookup(root, name).await;
        shared.look(look).await.map(|inode| inode.number)
    }

    /// The kernel believes for a day what it was told of a commit that stays: another one must not be mixed in.
    #[test]
    fn a_commit_that_stays_gives_way_to_no_other() {
        let seen = reactor::run(&reactor::Config::default(), async {
            for caching in [Caching::Still, Caching::Writer] {
                assert_eq!(after_its_lease(caching, true).await, Err(Refusal::STALE));
                after_its_lease(caching, false).await.unwrap();
            }
            after_its_lease(Caching::Following, true).await.unwrap();
        });
        seen.unwrap();
    }

    /// A device that spoils content on its way: what is read of it does not fit its checksum.
    struct Spoiling(Rc<dyn Channel>);

    const CONTENT: u8 = 0xA7;

    impl Channel for Spoiling {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn submit(&self, mut request: Request) {
            if let Data::From(bytes) = &request.data
                && bytes.len() > 512
                && bytes[..512].iter().all(|byte| *byte == CONTENT)
            {
                let mut spoilt = bytes.to_vec();
                spoilt[100] ^= 1;
                request.data = Data::From(spoilt.into());
            }
            self.0.submit(request);
        }
    }

    #[test]
    fn content_that_was_dropped_is_told_after_the_volume_was_handed_over() {
        let told = reactor::run(&reactor::Config::default(), async {
            let device = MemoryDevice::new(4096, BlockCount(8192)).unwrap();
            let spoiling = Rc::new(Spoiling(device.open_channel().unwrap()));
            let medium = Medium::new(TokenKeeper::new().over(spoiling));
            let leases = LocalLeases::new();
            let keeper = || Rc::new(leases.clone());
            packfs::format(medium.clone(), keeper(), "a test", &FormatOptions::default())
                .await
                .unwrap();
            let mut options = FileOptions::default();
            options.writer.hands_over = false;
            let (new, now) = (
                NewInode {
                    mode: 0o644,
                    uid: 0,
                    gid: 0,
                },
                Timestamp::default(),
            );
            let opened = FileSystem::open(medium.clone(), keeper(), &options).await;
            let mut files = opened.unwrap();
            let made = files.create(InodeNumber::ROOT, b"spoilt", new, now).await;
            let (spoilt, long) = (made.unwrap().number, vec![CONTENT; 600_000]);
            files.write(spoilt, 0, &long, now).await.unwrap();
            files.commit().await.unwrap();
            files.close().await.unwrap();
            // Another, which has nothing of it in memory.
            let opened = FileSystem::open(medium.clone(), keeper(), &options).await;
            let mut files = opened.unwrap();
            files.write(spoilt, 101, b"part of a page", now).await.unwrap();
            files.commit_unasked().await.unwrap_err();
            let shared = Shared::new(Source::Writing(Box::new(files)), Caching::Writer);
            leases.take_over_writer("another").await.unwrap_err();
            shared.asked().await.unwrap().await;
            let volume = Volume {
                medium,
                leases: keeper(),
                options: ReaderOptions::default(),
            };
            assert!(shared.hand_over(&volume).await);
            let other = InodeNumber::ROOT;
            shared.sync(other).await.unwrap();
            shared.sync(spoilt).await.unwrap_err();
            shared.sync(spoilt).await.unwrap();
        });
        told.unwrap();
    }
}
