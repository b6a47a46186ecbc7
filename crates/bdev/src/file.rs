//! A file or a kernel block device, with direct I/O where the file system takes it.
//!
//! The file is locked for as long as the device, a channel of it or a request in the kernel lives, so two processes never
//! share it: all of them use one open file, whose lock (`flock(2)`) ends with its last user. A node agent takes the lock
//! as the proof that a dead process has no more writes on their way. Cost of a read or a write: one ring operation, no task;
//! of anything else: a task as well, which flushes share that come during one.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use foundation::{BlockCount, ByteCount};
use reactor::buffer::BUFFER_ALIGNMENT;
use reactor::file::{File, OpenOptions};
use reactor::{Buffer, BufferPool};

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::error::IoError;
use crate::request::{Data, Operation, Request, Token};

/// Zeros for file systems that cannot punch holes are written in pieces of this size.
const ZERO_PIECE_BYTES: usize = 256 << 10;

/// How to open a file as a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Make a sparse file of this size if it is missing; an existing one keeps its size.
    pub create: Option<ByteCount>,
    /// Logical block size in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Pass the page cache by where the file system can; otherwise it is used, and said so by
    /// [`FileDevice::is_direct`].
    pub direct: bool,
    /// Only read: any number of processes may at once, and none that writes meanwhile. The file may be one that may not be
    /// written.
    pub read_only: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            create: None,
            block_bytes: 4096,
            direct: true,
            read_only: false,
        }
    }
}

/// A geometry whose number of blocks may change while channels are open.
#[derive(Clone)]
struct Shape {
    fixed: Geometry,
    blocks: Arc<AtomicU64>,
}

impl Shape {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: BlockCount(self.blocks.load(Ordering::Relaxed)),
            ..self.fixed
        }
    }
}

/// See the module.
pub struct FileDevice {
    path: PathBuf,
    shape: Shape,
    direct: bool,
    read_only: bool,
    /// The open file that holds the lock; absent in a simulation, where nobody else is.
    shared: Option<OwnedFd>,
    /// The file as it was opened anew: what is asked from then on goes through it.
    anew: Mutex<Option<OwnedFd>>,
    /// How often the system has said that it could not write what it had taken. It says so once, whichever channel asks.
    lost: Arc<AtomicU64>,
}

impl FileDevice {
    /// Opens and locks `path`. Blocks briefly. Must be called on a reactor.
    pub fn open(path: &Path, options: FileOptions) -> Result<Self, OpenError> {
        let name = || path.display().to_string();
        let os = |source| OpenError::Os { path: name(), source };
        let unusable = |why: String, remedy: &str| OpenError::Unusable {
            path: name(),
            why,
            remedy: remedy.to_owned(),
        };
        if !matches!(options.block_bytes, 512 | 4096) {
            let why = format!("a block size of {} bytes was asked for", options.block_bytes);
            return Err(unusable(why, "use 512 or 4096"));
        }
        let plain = OpenOptions {
            write: !options.read_only,
            create: options.create.is_some() && !options.read_only,
            direct: false,
        };
        let file = File::open(path, plain).map_err(os)?;
        let through = OpenOptions {
            direct: true,
            ..plain
        };
        let (file, direct) = match options.direct.then(|| File::open(path, through)) {
            Some(Ok(file)) => (file, true),
            _ => (file, false),
        };
        // The very file that the requests go through: a request that outlives its process keeps the lock.
        let locked = match options.read_only {
            true => file.try_lock_shared(),
            false => file.try_lock(),
        };
        locked.map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => unusable(
                "another process has it open as a device".to_owned(),
                "stop that process first (\"fuser -v\" on the file names it)",
            ),
            _ => os(error),
        })?;
        let mut length = file.length_bytes().map_err(os)?;
        if let (0, Some(size)) = (length, options.create) {
            file.set_length_bytes(size.0).map_err(os)?;
            length = size.0;
        }
        let blocks = length / u64::from(options.block_bytes);
        if blocks == 0 {
            let why = format!(
                "it holds {length} bytes, less than a block of {}",
                options.block_bytes
            );
            return Err(unusable(why, "name a size to create it with, such as PATH:64GiB"));
        }
        let geometry = Geometry {
            block_bytes: options.block_bytes,
            blocks: BlockCount(blocks),
            metadata_bytes: 0,
            boundary_blocks: 0,
            write_cache: true,
        };
        Ok(Self {
            path: path.to_owned(),
            shape: Shape {
                fixed: geometry,
                blocks: Arc::new(AtomicU64::new(blocks)),
            },
            direct,
            read_only: options.read_only,
            shared: file.duplicate().map_err(os)?,
            anew: Mutex::default(),
            lost: Arc::default(),
        })
    }

    /// Whether the page cache is passed by.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The open file that all requests go through; none in a simulation.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(AsFd::as_fd)
    }

    /// Opens the file or disk anew, under the same path: channels that are opened from now on go that way. What is under way
    /// stays where it is, and its open file holds the lock still. So from now on both hold one that does not exclude others
    /// of its kind: who only reads may come in, and no lock is free before the last request of either has ended. Blocks briefly.
    ///
    /// # Errors
    /// Says why, for people: it cannot be opened, is not the same one any more, or somebody else has locked it. Nothing is
    /// changed then, but that who only reads may come in.
    pub fn reopen(&self) -> Result<(), String> {
        let Some(shared) = &self.shared else {
            return Err("the device is simulated".to_owned());
        };
        let options = OpenOptions {
            write: !self.read_only,
            create: false,
            direct: self.direct,
        };
        let named = |what: &str, error: std::io::Error| format!("{}: {what}: {error}", self.path.display());
        let file = File::open(&self.path, options).map_err(|error| named("it cannot be opened", error))?;
        let file = file
            .duplicate()
            .map_err(|error| named("it cannot be kept open", error))?
            .ok_or("the device is simulated")?;
        let identity = |file: &OwnedFd| -> std::io::Result<(u64, u64, u64)> {
            let found = std::fs::File::from(file.try_clone()?).metadata()?;
            Ok((found.dev(), found.ino(), found.rdev()))
        };
        let identity =
            |file: &OwnedFd| identity(file).map_err(|error| named("it cannot be looked at", error));
        if identity(shared)? != identity(&file)? {
            let path = self.path.display();
            return Err(format!("{path} is another file or disk now"));
        }
        let lock = |file: &OwnedFd| -> std::io::Result<()> {
            let file = std::fs::File::from(file.try_clone()?);
            file.try_lock_shared().map_err(std::io::Error::from)
        };
        // The one that has the lock first: it lets the other one in.
        lock(shared)
            .and_then(|()| lock(&file))
            .map_err(|error| named("its lock cannot be shared", error))?;
        *self.anew.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    /// Takes over the size that the file or disk has now, for all channels, and gives its number of blocks. Who serves
    /// the device must tell those above. Blocks briefly. Must be called on a reactor.
    ///
    /// # Errors
    /// The file cannot be looked at, or holds less than a block; the size stays as it was.
    pub fn look_at_size(&self) -> Result<BlockCount, OpenError> {
        let blocks = self.size_now()?;
        self.shape.blocks.store(blocks.0, Ordering::Relaxed);
        Ok(blocks)
    }

    /// The number of blocks that the file or disk holds now, which the device need not have. Blocks briefly. Must be called
    /// on a reactor.
    ///
    /// # Errors
    /// The file cannot be looked at, or holds less than a block.
    pub fn size_now(&self) -> Result<BlockCount, OpenError> {
        let os = |source| OpenError::Os {
            path: self.path.display().to_string(),
            source,
        };
        let plain = OpenOptions {
            write: false,
            create: false,
            direct: false,
        };
        let file = File::open(&self.path, plain).map_err(os)?;
        let length = file.length_bytes().map_err(os)?;
        let blocks = length / u64::from(self.shape.fixed.block_bytes);
        if blocks == 0 {
            return Err(OpenError::Unusable {
                path: self.path.display().to_string(),
                why: format!("it holds {length} bytes now, less than a block"),
                remedy: "give it back its size".to_owned(),
            });
        }
        Ok(BlockCount(blocks))
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.shape.geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        let os = |source| OpenError::Os {
            path: self.path.display().to_string(),
            source,
        };
        let options = OpenOptions {
            write: !self.read_only,
            create: false,
            direct: self.direct,
        };
        let anew = self.anew.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match anew.as_ref().or(self.shared.as_ref()) {
            Some(shared) => shared.try_clone().and_then(File::from_descriptor),
            None => File::open(&self.path, options),
        };
        let file = file.map_err(os)?;
        Ok(Rc::new(FileChannel {
            shape: self.shape.clone(),
            read_only: self.read_only,
            is_direct: self.direct,
            file,
            flushes: Rc::new(Flushes {
                known: Cell::new(self.lost.load(Ordering::Acquire)),
                lost: self.lost.clone(),
                is_direct: self.direct,
                is_under_way: Cell::new(false),
                waiting: RefCell::default(),
            }),
        }))
    }
}

struct FileChannel {
    shape: Shape,
    read_only: bool,
    is_direct: bool,
    file: File,
    flushes: Rc<Flushes>,
}

/// One flush at a time: those that come meanwhile share the next. A disk does little else while it flushes, so that one for many is what
/// everybody else waits for once.
struct Flushes {
    /// Losses of all channels, and those of which this one has told.
    lost: Arc<AtomicU64>,
    known: Cell<u64>,
    is_direct: bool,
    is_under_way: Cell<bool>,
    waiting: RefCell<Vec<(Token, Data)>>,
}

impl Flushes {
    fn add(self: &Rc<Self>, file: &File, token: Token, data: Data) {
        self.waiting.borrow_mut().push((token, data));
        if self.is_under_way.replace(true) {
            return;
        }
        let (running, file) = (Running(self.clone()), file.clone());
        drop(reactor::spawn(async move {
            loop {
                let mut asked = running.0.waiting.take();
                if asked.is_empty() {
                    return;
                }
                let synced = file.sync_data().await.map_err(|error| IoError::from(&error));
                let status = running.0.heard(synced);
                if status.is_err() {
                    // The system tells once that something could not be written, perhaps of what these are about.
                    asked.extend(running.0.waiting.take());
                }
                Self::end(asked, status);
            }
        }));
    }

    /// What the system has said to a channel that asked it to write what it had taken. What passes the page cache by is not kept back, so
    /// nothing of others can be lost there.
    fn note(&self, said: Result<(), IoError>) {
        if !self.is_direct && said.is_err_and(|error| error != IoError::Aborted) {
            self.lost.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// What a flush of this channel ends with: also what another channel, or a durable write, was told since the last.
    ///
    /// Through the page cache want of room is a loss: the system tells once, and takes the pages for written from then on.
    fn heard(&self, synced: Result<(), IoError>) -> Result<(), IoError> {
        self.note(synced);
        let synced = match synced {
            Err(IoError::NoSpace) if !self.is_direct => Err(IoError::Media),
            other => other,
        };
        let lost = self.lost.load(Ordering::Acquire);
        match self.known.replace(lost) == lost {
            true => synced,
            false => synced.and(Err(IoError::Media)),
        }
    }

    fn end(asked: Vec<(Token, Data)>, status: Result<(), IoError>) {
        for (token, data) in asked {
            token.complete(status, data);
        }
    }
}

/// The task that flushes. Whoever waits when it ends before its time is not kept by what it keeps itself.
struct Running(Rc<Flushes>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_under_way.set(false);
        drop(self.0.waiting.take());
    }
}

impl FileChannel {
    fn check(&self, request: &Request) -> Result<(), IoError> {
        if request.operation == Operation::Flush {
            return Ok(());
        }
        if matches!(request.operation, Operation::CompareAndWrite { .. }) {
            return Err(IoError::Unsupported);
        }
        if self.read_only && !matches!(request.operation, Operation::Read | Operation::Compare) {
            return Err(IoError::ReadOnly);
        }
        let geometry = self.shape.geometry();
        geometry.check_range(request.lba, request.blocks)?;
        let moves_bytes = matches!(
            request.operation,
            Operation::Read | Operation::Write { .. } | Operation::Compare
        );
        let expected = if moves_bytes {
            request.blocks.0 * u64::from(geometry.block_bytes)
        } else {
            0
        };
        if request.data.length_bytes() as u64 == expected {
            Ok(())
        } else {
            Err(IoError::Unaligned)
        }
    }
}

impl Channel for FileChannel {
    fn geometry(&self) -> Geometry {
        self.shape.geometry()
    }

    fn cancel(&self) {
        // Those that wait for the next flush would be asked for after this, of what is to be used no more.
        let waiting = self.flushes.waiting.take();
        self.file.cancel();
        Flushes::end(waiting, Err(IoError::Aborted));
    }

    fn submit(&self, request: Request) {
        if let Err(error) = self.check(&request) {
            return request.complete(Err(error));
        }
        let offset = self.shape.fixed.offset_bytes(request.lba);
        let length = request.blocks.0 * u64::from(self.shape.fixed.block_bytes);
        let status = |result: std::io::Result<()>| result.map_err(|error| IoError::from(&error));
        let request = match (request.operation, request) {
            (
                Operation::Read,
                Request {
                    data: Data::Into(buffer),
                    token,
                    ..
                },
            ) => {
                let ended = move |result, buffer| token.complete(status(result), Data::Into(buffer));
                return self.file.begin_read(buffer, offset, ended);
            }
            (
                Operation::Write { fua },
                Request {
                    data: Data::From(buffer),
                    token,
                    ..
                },
            ) => {
                let is_direct = self.is_direct;
                let flushes = self.flushes.clone();
                let ended = move |result, buffer| {
                    let status = status(result);
                    if fua {
                        flushes.note(status);
                    }
                    let status = match status {
                        // Perhaps of an earlier write that the kernel had taken, and tells of now.
                        Err(IoError::NoSpace) if fua && !is_direct => Err(IoError::Media),
                        status => status,
                    };
                    token.complete(status, Data::From(buffer));
                };
                return match fua {
                    true => self.file.begin_durable_write(buffer, offset, ended),
                    false => self.file.begin_write(buffer, offset, ended),
                };
            }
            (Operation::Flush, Request { token, data, .. }) => {
                return self.flushes.add(&self.file, token, data);
            }
            (_, request) => request,
        };
        let (file, flushes) = (self.file.clone(), self.flushes.clone());
        drop(reactor::spawn(async move {
            let Request {
                operation,
                data,
                token,
                ..
            } = request;
            let (status, data) = serve(&file, operation, offset, length, data).await;
            if let Operation::WriteZeroes { fua: true, .. } = operation {
                flushes.note(status);
            }
            token.complete(status, data);
        }));
    }
}

async fn serve(
    file: &File,
    operation: Operation,
    offset: u64,
    length: u64,
    data: Data,
) -> (Result<(), IoError>, Data) {
    let status = |result: std::io::Result<()>| result.map_err(|error| IoError::from(&error));
    match (operation, data) {
        (Operation::Read, Data::Into(buffer)) => {
            let (result, buffer) = file.read_at(buffer, offset).await;
            (status(result), Data::Into(buffer))
        }
        (Operation::Compare, Data::From(buffer)) => compare(file, offset, buffer).await,
        (Operation::WriteZeroes { fua, .. }, data) => {
            let mut result = zero(file, offset, length).await;
            if fua && result.is_ok() {
                result = status(file.sync_data().await);
            }
            (result, data)
        }
        (Operation::Deallocate, data) => (zero(file, offset, length).await, data),
        (Operation::Fence | Operation::CompareAndWrite { .. }, data) => (Err(IoError::Unsupported), data),
        (_, data) => (Err(IoError::Unaligned), data),
    }
}

/// Reads to where the expected bytes were, which go to the heap meanwhile: as many of those that wait for a second buffer as fill the
/// pool would wait for each other.
async fn compare(file: &File, offset: u64, buffer: Buffer) -> (Result<(), IoError>, Data) {
    let expected = buffer.to_vec();
    let own = buffer.try_into_mut();
    let room = match own.map(|own| (own.as_ptr().addr().is_multiple_of(BUFFER_ALIGNMENT), own)) {
        Ok((true, own)) => Ok(own),
        // Somebody else's as well, or no place for direct I/O.
        other => {
            drop(other);
            BufferPool::current().allocate(expected.len()).await
        }
    };
    let compared = match room {
        Ok(room) => {
            let (result, found) = file.read_at(room, offset).await;
            match result {
                Ok(()) if found[..] == expected[..] => Ok(()),
                Ok(()) => Err(IoError::Mismatch),
                Err(error) => Err(IoError::from(&error)),
            }
        }
        Err(_) => Err(IoError::Exhausted),
    };
    (compared, Data::From(Buffer::from(expected)))
}

/// Punches a hole, or writes zeros where the file system cannot.
async fn zero(file: &File, offset: u64, length: u64) -> Result<(), IoError> {
    match file.punch_hole(offset, length).await {
        Ok(()) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        Err(error) => return Err(IoError::from(&error)),
    }
    let pool = reactor::BufferPool::current();
    let mut zeros = pool
        .allocate(ZERO_PIECE_BYTES)
        .await
        .map_err(|_| IoError::Exhausted)?;
    zeros.fill(0);
    let zeros = zeros.freeze();
    let mut done = 0;
    while done < length {
        let part = (length - done).min(ZERO_PIECE_BYTES as u64);
        let piece = zeros.slice(0..part as usize);
        file.write_at(piece, offset + done)
            .await
            .map_err(|error| IoError::from(&error))?;
        done += part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_channel_was_told_of_lost_writes_each_one_hears_once() {
        let lost = Arc::<AtomicU64>::default();
        let channel = |is_direct| Flushes {
            lost: lost.clone(),
            known: Cell::new(lost.load(Ordering::Acquire)),
            is_direct,
            is_under_way: Cell::new(false),
            waiting: RefCell::default(),
        };
        let (one, two) = (channel(false), channel(false));
        assert_eq!((one.heard(Ok(())), two.heard(Ok(()))), (Ok(()), Ok(())));
        assert_eq!(one.heard(Err(IoError::NoSpace)), Err(IoError::Media));
        assert_eq!(channel(true).heard(Err(IoError::NoSpace)), Err(IoError::NoSpace));
        assert_eq!(
            (one.heard(Ok(())), two.heard(Ok(()))),
            (Ok(()), Err(IoError::Media))
        );
        assert_eq!((one.heard(Ok(())), two.heard(Ok(()))), (Ok(()), Ok(())));
        // A durable write was told; each flush tells it on.
        two.note(Err(IoError::Media));
        assert_eq!(
            (one.heard(Ok(())), two.heard(Ok(()))),
            (Err(IoError::Media), Err(IoError::Media))
        );
        // Given up is not lost.
        two.note(Err(IoError::Aborted));
        channel(true).note(Err(IoError::Media));
        assert_eq!((one.heard(Ok(())), two.heard(Ok(()))), (Ok(()), Ok(())));
    }
}
