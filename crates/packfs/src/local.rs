//! A cache of pages and extents on a local disk, below the check of their checksums.
//!
//! One file of a fixed length: a page that says what it is, an index of buckets, and a ring that entries are written
//! into one after another, each over the oldest. Nothing about it is kept in memory. An entry is found through a slot of the
//! bucket that its key's hash chooses, and confirmed by the whole key, which stands before its bytes; whoever asks checks the
//! bytes as if they had come from the volume. So torn writes, flipped bits, entries that were written over, and slots that lead
//! to something else are entries that are not there, and nothing has to be repaired, flushed or locked for it: a process may be
//! killed at any point, and several processes share a file. What they agree on is which piece of the ring is whose: a lock
//! on a file beside it, taken for each MiB.
//!
//! What makes an entry right is in its [`Key`]; decision 0091 has the argument.
//!
//! Cost of a hit: a read of 4 KiB of the index, which the kernel has mostly cached, a read of the entry, and the check. Of
//! an entry that is stored: a copy of its bytes, two writes and a read, which nobody waits for.

mod layout;
mod prepare;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use foundation::ByteCount;
use foundation::checksum::crc32c;
use reactor::file::{File, OpenOptions};
use reactor::sync::{Notify, Semaphore};
use reactor::{Buffer, BufferMut, BufferPool};

use layout::{CHUNK_BYTES, CONTENT_BYTES_MAX, ENTRY_HEADER_BYTES, FileHeader, Geometry, PAGE_BYTES, Slot};

use crate::format::extent::Extent;

pub use layout::FILE_BYTES_MIN;
pub(crate) use layout::{Key, Origin};
pub use prepare::prepare;

/// The cache's file in its directory.
pub const FILE_NAME: &str = "redhare-cache-1";
/// The file whose lock says who gives out pieces of the ring.
pub const LOCK_NAME: &str = "redhare-cache-1.lock";

/// Bytes that wait to be written at most; what comes beyond is not stored.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// A lock that somebody holds is asked for again after so long when the cache is opened.
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// So often at most: it is held for a few system calls.
const LOCK_TRIES: usize = 1000;

const OPEN: OpenOptions = OpenOptions {
    write: true,
    create: true,
    direct: false,
};

/// Why a local cache is not used. Nothing else follows from any of them: reads go on without.
#[derive(Debug, thiserror::Error)]
pub enum LocalCacheError {
    /// Too small to be of use.
    #[error(
        "the local cache in {} may have {found}, and needs {needed} at least; give --cache-size more, or leave it out",
        directory.display()
    )]
    TooSmall {
        /// The cache's directory.
        directory: PathBuf,
        /// What it may have.
        found: ByteCount,
        /// The least.
        needed: ByteCount,
    },
    /// The file is damaged, or of another size, and cannot be made anew now.
    #[error(
        "{} is damaged or was made for another size than {wanted}, and another process uses it; end that process, give the same size, or name another directory",
        path.display()
    )]
    InUse {
        /// The cache's file.
        path: PathBuf,
        /// The size that was asked for.
        wanted: ByteCount,
    },
    /// Others could have put something there, or read it.
    #[error(
        "{} belongs to another user, or other users may read or write it; name a directory of your own, or remove the file",
        path.display()
    )]
    NotOurs {
        /// The cache's file.
        path: PathBuf,
    },
    /// The system refused something.
    #[error("{}: {source}; free or mend the disk, or name another directory", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// What a local cache has done in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalCacheStatistics {
    /// Whether there is one and it is in use: one that failed is not used any more.
    pub on: bool,
    /// Length of its file, in bytes; never above the limit.
    pub file_bytes: u64,
    /// Pages and extents that were asked for and were there.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
    /// Of the misses, those whose entry was there and had wrong bytes.
    pub damaged: u64,
    /// Bytes of the hits.
    pub hit_bytes: u64,
    /// Entries that were written.
    pub stored: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Entries that were not written: too many waited, or another process held the lock.
    pub dropped: u64,
}

/// Mistakes that tests must find.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlantedBug {
    #[default]
    None,
    /// An extent is known by its place, length and checksum alone.
    KeysByPlace,
    /// Bytes are believed without a check.
    Unchecked,
}

/// The part of the ring that this process may write now.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    next: u64,
    end: u64,
}

/// See the module. Belongs to one thread; several threads and processes open the same directory each for itself.
pub struct LocalCache {
    file: File,
    path: PathBuf,
    lock_path: PathBuf,
    geometry: Geometry,
    pool: BufferPool,
    chunk: Cell<Chunk>,
    /// One asks for the next chunk.
    turn: Rc<Semaphore>,
    /// Buckets in which a slot is being written: one after another, so that of several at once none is lost.
    busy: RefCell<BTreeSet<u64>>,
    idle: Notify,
    waiting_bytes: Cell<usize>,
    off: Cell<bool>,
    warn: Box<dyn Fn(&str)>,
    statistics: RefCell<LocalCacheStatistics>,
    #[cfg(test)]
    pub(crate) bug: Cell<PlantedBug>,
}

impl std::fmt::Debug for LocalCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalCache")
            .field("path", &self.path)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

/// Bytes that wait to be written; counted until it is dropped.
struct Waiting(Rc<LocalCache>, usize);

impl Drop for Waiting {
    fn drop(&mut self) {
        let waiting = &self.0.waiting_bytes;
        waiting.set(waiting.get() - self.1);
    }
}

/// A bucket whose turn it is.
struct Busy<'a>(&'a LocalCache, u64);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.borrow_mut().remove(&self.1);
        self.0.idle.notify();
    }
}

impl LocalCache {
    /// Opens the cache in a directory, or makes one: a file of at most `limit_bytes`, which is sparse at first. One that is damaged, of
    /// another size, or no cache is thrown away. `warn` is told that, and why the cache is used no more if it fails later. On a
    /// reactor. [`prepare`] is to be called before where there is a real disk.
    ///
    /// # Errors
    /// Why there is none; to be told, and gone on without.
    pub async fn open(
        directory: &Path,
        limit_bytes: u64,
        warn: impl Fn(&str) + 'static,
    ) -> Result<Rc<Self>, LocalCacheError> {
        let geometry = Geometry::within(limit_bytes).ok_or_else(|| LocalCacheError::TooSmall {
            directory: directory.to_owned(),
            found: ByteCount(limit_bytes),
            needed: ByteCount(FILE_BYTES_MIN),
        })?;
        let (path, lock_path) = (directory.join(FILE_NAME), directory.join(LOCK_NAME));
        let _lock = wait_for_lock(&lock_path).await.map_err(of(&lock_path))?;
        let file = File::open(&path, OPEN).map_err(of(&path))?;
        let pool = BufferPool::current();
        let found = read_header(&file, &pool, &geometry).await.map_err(of(&path))?;
        if found.is_none() {
            renew(&file, &path, &pool, &geometry, limit_bytes, &warn).await?;
        }
        // Held for as long as the file is used: nobody makes it anew meanwhile.
        file.try_lock_shared().map_err(of(&path))?;
        let file_bytes = geometry.file_bytes();
        Ok(Rc::new(Self {
            file,
            path,
            lock_path,
            geometry,
            pool,
            chunk: Cell::default(),
            turn: Semaphore::new(1),
            busy: RefCell::default(),
            idle: Notify::new(),
            waiting_bytes: Cell::new(0),
            off: Cell::new(false),
            warn: Box::new(warn),
            statistics: RefCell::new(LocalCacheStatistics {
                on: true,
                file_bytes,
                ..LocalCacheStatistics::default()
            }),
            #[cfg(test)]
            bug: Cell::default(),
        }))
    }

    /// What it has done so far.
    pub fn statistics(&self) -> LocalCacheStatistics {
        LocalCacheStatistics {
            on: !self.off.get(),
            ..*self.statistics.borrow()
        }
    }

    /// The bytes of an extent, if they are here and right.
    pub(crate) async fn find_extent(
        &self,
        volume: &[u8; 16],
        origin: &Origin,
        extent: &Extent,
    ) -> Option<Buffer> {
        let right = |bytes: &Buffer| {
            #[cfg(test)]
            if self.bug.get() == PlantedBug::Unchecked {
                return true;
            }
            crc32c(bytes) == extent.checksum
        };
        let key = self.extent_key(volume, origin, extent);
        self.find(&key, |bytes| right(&bytes).then_some(bytes)).await
    }

    /// Stores the bytes of an extent, which were found right.
    pub(crate) fn store_extent(
        self: &Rc<Self>,
        volume: &[u8; 16],
        origin: &Origin,
        extent: &Extent,
        bytes: &[u8],
    ) {
        self.store(&self.extent_key(volume, origin, extent), bytes);
    }

    fn extent_key(&self, volume: &[u8; 16], origin: &Origin, extent: &Extent) -> Key {
        #[cfg(test)]
        if self.bug.get() == PlantedBug::KeysByPlace {
            let origin = Origin {
                inode: crate::InodeNumber::ROOT,
                ctime: crate::Timestamp::default(),
                offset: 0,
            };
            return Key::extent(volume, &origin, extent);
        }
        Key::extent(volume, origin, extent)
    }

    fn count(&self, change: impl FnOnce(&mut LocalCacheStatistics)) {
        change(&mut self.statistics.borrow_mut());
    }

    fn turn_off(&self, error: &io::Error) {
        if !self.off.replace(true) {
            let path = self.path.display();
            (self.warn)(&format!(
                "the local cache {path} is not used any more: {error}; reads go on without it"
            ));
        }
    }

    /// What `accept` makes of the bytes of a key, if they are here; it checks them as if they had come from the volume.
    pub(crate) async fn find<T>(&self, key: &Key, mut accept: impl FnMut(Buffer) -> Option<T>) -> Option<T> {
        if self.off.get() {
            return None;
        }
        let looked = self.look(key).await;
        let bytes = looked.unwrap_or_else(|error| {
            self.turn_off(&error);
            None
        });
        let Some(bytes) = bytes else {
            self.count(|done| done.misses += 1);
            return None;
        };
        let length = bytes.len() as u64;
        let accepted = accept(bytes);
        self.count(|done| match accepted {
            Some(_) => (done.hits, done.hit_bytes) = (done.hits + 1, done.hit_bytes + length),
            None => (done.misses, done.damaged) = (done.misses + 1, done.damaged + 1),
        });
        accepted
    }

    async fn look(&self, key: &Key) -> io::Result<Option<Buffer>> {
        let fingerprint = key.fingerprint();
        let Some(bucket) = self.read(self.geometry.bucket(fingerprint), PAGE_BYTES).await? else {
            return Ok(None);
        };
        let wanted = |slot: &Slot| {
            slot.fingerprint == fingerprint
                && slot.content_bytes == key.content_bytes()
                && self.geometry.holds(slot.position, slot.content_bytes)
                && !self.is_over(slot)
        };
        for slot in layout::slots(&bucket).flatten().filter(wanted) {
            let length = ENTRY_HEADER_BYTES + slot.content_bytes as usize;
            let Some(entry) = self.read(self.geometry.place(slot.position), length).await? else {
                return Ok(None);
            };
            if layout::is_entry_header(key, slot.position, &entry[..ENTRY_HEADER_BYTES]) {
                return Ok(Some(self.without_header(entry)));
            }
        }
        Ok(None)
    }

    /// Whether what was at a slot's position is known to have been written over. Other processes may have come further.
    fn is_over(&self, slot: &Slot) -> bool {
        slot.position.saturating_add(self.geometry.ring_bytes()) < self.chunk.get().end
    }

    /// The bytes of an entry, in a buffer that is no larger for the header's sake if one can be had: they may be held for long.
    fn without_header(&self, entry: Buffer) -> Buffer {
        let content = entry.slice(ENTRY_HEADER_BYTES..entry.len());
        if content.len().next_power_of_two() == entry.len().next_power_of_two() {
            return content;
        }
        let Ok(mut smaller) = self.pool.try_allocate(content.len()) else {
            return content;
        };
        smaller.copy_from_slice(&content);
        smaller.freeze()
    }

    /// `None` if there is no buffer.
    async fn read(&self, offset: u64, length: usize) -> io::Result<Option<Buffer>> {
        let Ok(buffer) = self.pool.try_allocate(length) else {
            return Ok(None);
        };
        let (read, buffer) = self.file.read_at(buffer, offset).await;
        read.map(|()| Some(buffer.freeze()))
    }

    /// Stores bytes that were found right. Does not wait, and says nothing of what becomes of it.
    pub(crate) fn store(self: &Rc<Self>, key: &Key, bytes: &[u8]) {
        let length = ENTRY_HEADER_BYTES + bytes.len();
        if self.off.get() || bytes.is_empty() || bytes.len() > CONTENT_BYTES_MAX {
            return;
        }
        assert_eq!(
            bytes.len(),
            key.content_bytes() as usize,
            "a key says how long its bytes are"
        );
        let full = self.waiting_bytes.get() + length > WAITING_BYTES_MAX;
        let buffer = self.pool.try_allocate(length).ok().filter(|_| !full);
        let Some(mut buffer) = buffer else {
            self.count(|done| done.dropped += 1);
            return;
        };
        // Copied now, so that what the bytes came in is not held until they are written.
        buffer[ENTRY_HEADER_BYTES..].copy_from_slice(bytes);
        self.waiting_bytes.set(self.waiting_bytes.get() + length);
        let (waiting, key) = (Waiting(self.clone(), length), *key);
        drop(reactor::spawn(async move {
            let cache = &waiting.0;
            match cache.write_entry(&key, buffer).await {
                Ok(true) => cache.count(|done| {
                    done.stored += 1;
                    done.stored_bytes += u64::from(key.content_bytes());
                }),
                Ok(false) => cache.count(|done| done.dropped += 1),
                Err(error) => cache.turn_off(&error),
            }
        }));
    }

    /// Whether it was written.
    async fn write_entry(&self, key: &Key, mut entry: BufferMut) -> io::Result<bool> {
        let Some(position) = self.take(entry.len() as u64).await? else {
            return Ok(false);
        };
        layout::encode_entry_header(key, position, &mut entry[..ENTRY_HEADER_BYTES]);
        self.file
            .write_at(entry.freeze(), self.geometry.place(position))
            .await?;
        // The entry is there; now what leads to it. Of two processes that choose the same slot one loses its entry.
        let slot = Slot {
            fingerprint: key.fingerprint(),
            position,
            content_bytes: key.content_bytes(),
        };
        let bucket_at = self.geometry.bucket(slot.fingerprint);
        self.idle.until(|| !self.busy.borrow().contains(&bucket_at)).await;
        self.busy.borrow_mut().insert(bucket_at);
        let _busy = Busy(self, bucket_at);
        let Some(bucket) = self.read(bucket_at, PAGE_BYTES).await? else {
            return Ok(false);
        };
        let range = layout::slot_range(self.choose(&bucket, slot.fingerprint));
        let Ok(mut out) = self.pool.try_allocate(range.len()) else {
            return Ok(false);
        };
        slot.encode(&mut out);
        self.file
            .write_at(out.freeze(), bucket_at + range.start as u64)
            .await?;
        Ok(true)
    }

    /// The slot to write: that of the same key, one that leads nowhere, or the oldest.
    fn choose(&self, bucket: &[u8], fingerprint: u64) -> usize {
        let worth = |slot: Option<Slot>| match slot {
            Some(slot) if slot.fingerprint == fingerprint => (0, 0),
            None => (1, 0),
            Some(slot) if self.is_over(&slot) => (1, 0),
            Some(slot) => (2, slot.position),
        };
        let least = layout::slots(bucket)
            .enumerate()
            .min_by_key(|(_, slot)| worth(*slot));
        least.map_or(0, |(index, _)| index)
    }

    /// A position of the ring for so many bytes; `None` while another process holds the lock.
    async fn take(&self, length: u64) -> io::Result<Option<u64>> {
        let _turn = self.turn.acquire().await;
        let mut chunk = self.chunk.get();
        if chunk.next + length > chunk.end {
            let Some(next) = self.next_chunk().await? else {
                return Ok(None);
            };
            chunk = next;
        }
        let position = chunk.next;
        chunk.next += length;
        self.chunk.set(chunk);
        Ok(Some(position))
    }

    async fn next_chunk(&self) -> io::Result<Option<Chunk>> {
        let Some(_lock) = try_lock(&self.lock_path)? else {
            return Ok(None);
        };
        let Some(header) = read_header(&self.file, &self.pool, &self.geometry).await? else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its first page is damaged; it is made anew when it is next opened",
            ));
        };
        let chunk = Chunk {
            next: header.head,
            end: header.head + CHUNK_BYTES,
        };
        write_header(&self.file, &self.pool, &self.geometry, chunk.end).await?;
        Ok(Some(chunk))
    }
}

fn of(path: &Path) -> impl Fn(io::Error) -> LocalCacheError {
    let path = path.to_owned();
    move |source| LocalCacheError::Io {
        path: path.clone(),
        source,
    }
}

/// The lock, which ends when the file is dropped; `None` while another has it.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = File::open(path, OPEN)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

async fn wait_for_lock(path: &Path) -> io::Result<File> {
    for _ in 0..LOCK_TRIES {
        if let Some(lock) = try_lock(path)? {
            return Ok(lock);
        }
        reactor::time::sleep(LOCK_PAUSE).await;
    }
    Err(io::Error::new(
        io::ErrorKind::WouldBlock,
        "another process holds its lock for seconds",
    ))
}

async fn read_header(file: &File, pool: &BufferPool, geometry: &Geometry) -> io::Result<Option<FileHeader>> {
    if file.length_bytes()? != geometry.file_bytes() {
        return Ok(None);
    }
    let buffer = pool.allocate(PAGE_BYTES).await.map_err(io::Error::other)?;
    let (read, buffer) = file.read_at(buffer, 0).await;
    read?;
    Ok(FileHeader::decode(geometry, &buffer))
}

async fn write_header(file: &File, pool: &BufferPool, geometry: &Geometry, head: u64) -> io::Result<()> {
    let mut buffer = pool.allocate(PAGE_BYTES).await.map_err(io::Error::other)?;
    FileHeader { head }.encode(geometry, &mut buffer);
    file.write_at(buffer.freeze(), 0).await
}

/// Makes the file anew, unless somebody uses it.
async fn renew(
    file: &File,
    path: &Path,
    pool: &BufferPool,
    geometry: &Geometry,
    limit_bytes: u64,
    warn: &impl Fn(&str),
) -> Result<(), LocalCacheError> {
    match file.try_lock() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(LocalCacheError::InUse {
                path: path.to_owned(),
                wanted: ByteCount(limit_bytes),
            });
        }
        locked => locked.map_err(of(path))?,
    }
    if file.length_bytes().map_err(of(path))? != 0 {
        warn(&format!(
            "the local cache {} was damaged or of another size; it is made anew, empty",
            path.display()
        ));
    }
    let made = async {
        file.set_length_bytes(0)?;
        file.set_length_bytes(geometry.file_bytes())?;
        write_header(file, pool, geometry, 0).await
    };
    made.await.map_err(of(path))
}
