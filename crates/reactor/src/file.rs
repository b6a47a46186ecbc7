//! Files and block devices, by offset.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;

use crate::buffer::{Buffer, BufferMut};
use crate::context::{self, Backend};
use crate::sim::disk::SimulatedFile;
use crate::sys::{self, Place, Ring};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Allow writes; reads always are.
    pub write: bool,
    /// Make the file if it is missing.
    pub create: bool,
    /// Pass the page cache by (`O_DIRECT`): offsets, lengths and buffers must be multiples of the
    /// device's block.
    pub direct: bool,
}

/// Takes the end of a write, and its buffer.
type WriteEnded = Box<dyn FnOnce(io::Result<()>, Buffer)>;

/// An open file. Clones share it.
#[derive(Clone)]
pub struct File {
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Ring(Rc<Ring>, Rc<OwnedFd>),
    Simulated(SimulatedFile),
}

impl File {
    /// Opens `path`. Blocks for as long as the kernel takes to look the name up.
    pub fn open(path: &Path, options: OpenOptions) -> io::Result<Self> {
        let kind = match context::with(|context| context.backend.clone()) {
            Backend::Ring(ring) => {
                let file = std::fs::OpenOptions::new()
                    .read(true)
                    .write(options.write)
                    .create(options.create)
                    .custom_flags(libc::O_CLOEXEC | if options.direct { libc::O_DIRECT } else { 0 })
                    .open(path)?;
                Kind::Ring(ring, Rc::new(file.into()))
            }
            Backend::Simulated(world) => Kind::Simulated(world.open(path, options)?),
        };
        Ok(Self { kind })
    }

    /// Length of a file or block device, in bytes. Blocks briefly.
    pub fn length_bytes(&self) -> io::Result<u64> {
        match &self.kind {
            Kind::Ring(_, fd) => {
                // Seeking to the end works for files and block devices alike, and nobody uses the position.
                let mut file = std::fs::File::from(fd.try_clone()?);
                io::Seek::seek(&mut file, io::SeekFrom::End(0))
            }
            Kind::Simulated(file) => Ok(file.length_bytes()),
        }
    }

    /// Sets a file's length. Blocks briefly.
    pub fn set_length_bytes(&self, length_bytes: u64) -> io::Result<()> {
        match &self.kind {
            Kind::Ring(_, fd) => std::fs::File::from(fd.try_clone()?).set_len(length_bytes),
            Kind::Simulated(file) => file.set_length_bytes(length_bytes),
        }
    }

    /// Takes the exclusive lock that ends with the last descriptor (`flock`), or fails at once if
    /// another process holds it.
    pub fn try_lock(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Ring(_, fd) => match std::fs::File::from(fd.try_clone()?).try_lock() {
                Ok(()) => Ok(()),
                Err(std::fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
                Err(std::fs::TryLockError::Error(error)) => Err(error),
            },
            Kind::Simulated(_) => Ok(()),
        }
    }

    /// Takes a lock that many may hold and that excludes [`File::try_lock`]; it ends with the last descriptor (`flock`).
    /// Fails at once if another holds the exclusive one.
    pub fn try_lock_shared(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Ring(_, fd) => match std::fs::File::from(fd.try_clone()?).try_lock_shared() {
                Ok(()) => Ok(()),
                Err(std::fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
                Err(std::fs::TryLockError::Error(error)) => Err(error),
            },
            Kind::Simulated(_) => Ok(()),
        }
    }

    /// Asks the kernel to end what this thread has asked of the file, by whatever descriptor of it, and what can be ended: it ends
    /// with `ECANCELED`, and is not under way any more then. Does not block; in a simulation it does nothing.
    pub fn cancel(&self) {
        match &self.kind {
            Kind::Ring(ring, fd) => ring.cancel_file(fd),
            Kind::Simulated(_) => {}
        }
    }

    /// Fills `buffer` from `offset`. Reading past the end is an `UnexpectedEof` error.
    pub async fn read_at(&self, mut buffer: BufferMut, offset: u64) -> (io::Result<()>, BufferMut) {
        match &self.kind {
            Kind::Ring(ring, fd) => {
                let wanted = buffer.len();
                let (result, returned) = sys::read_at(ring, fd, buffer, offset).await;
                match result {
                    Ok(count) if count as usize == wanted => (Ok(()), returned),
                    Ok(0) => (Err(io::ErrorKind::UnexpectedEof.into()), returned),
                    Ok(count) => self.read_rest(returned, count as usize, offset).await,
                    Err(error) => (Err(error), returned),
                }
            }
            Kind::Simulated(file) => {
                let result = file.read_at(&mut buffer, offset).await;
                (result, buffer)
            }
        }
    }

    /// As [`File::read_at`], begun at once and without a task. `ended` is called on this thread when the read has ended, never
    /// from inside this call.
    pub fn begin_read(
        &self,
        buffer: BufferMut,
        offset: u64,
        ended: impl FnOnce(io::Result<()>, BufferMut) + 'static,
    ) {
        let file = self.clone();
        let Kind::Ring(ring, fd) = &self.kind else {
            drop(crate::spawn(async move {
                let (result, buffer) = file.read_at(buffer, offset).await;
                ended(result, buffer);
            }));
            return;
        };
        let wanted = buffer.len();
        sys::begin_read(ring, fd, buffer, offset, move |result, buffer| match result {
            Ok(count) if count as usize == wanted => ended(Ok(()), buffer),
            Ok(0) => ended(Err(io::ErrorKind::UnexpectedEof.into()), buffer),
            Ok(count) => drop(crate::spawn(async move {
                let (result, buffer) = file.read_rest(buffer, count as usize, offset).await;
                ended(result, buffer);
            })),
            Err(error) => ended(Err(error), buffer),
        });
    }

    /// As [`File::write_at`], begun at once and without a task. `ended` is called on this thread when the write has ended, with
    /// the buffer, never from inside this call.
    pub fn begin_write(
        &self,
        buffer: Buffer,
        offset: u64,
        ended: impl FnOnce(io::Result<()>, Buffer) + 'static,
    ) {
        let durable = false;
        self.begin(buffer, Place { offset, durable }, Box::new(ended));
    }

    /// As [`File::write_durably_at`], begun at once and without a task, as [`File::begin_write`].
    pub fn begin_durable_write(
        &self,
        buffer: Buffer,
        offset: u64,
        ended: impl FnOnce(io::Result<()>, Buffer) + 'static,
    ) {
        let durable = true;
        self.begin(buffer, Place { offset, durable }, Box::new(ended));
    }

    fn begin(&self, buffer: Buffer, place: Place, ended: WriteEnded) {
        let file = self.clone();
        let write_rest = move |file: Self, buffer: Buffer, done: usize, ended: WriteEnded| {
            drop(crate::spawn(async move {
                let rest = buffer.slice(done..buffer.len());
                let offset = place.offset + done as u64;
                let result = file.write(rest, Place { offset, ..place }).await;
                ended(result, buffer);
            }));
        };
        let Kind::Ring(ring, fd) = &self.kind else {
            return write_rest(file, buffer, 0, ended);
        };
        let wanted = buffer.len();
        sys::begin_write(ring, fd, buffer, place, move |result, buffer| match result {
            Ok(count) if count as usize == wanted => ended(Ok(()), buffer),
            Ok(0) => ended(Err(io::ErrorKind::WriteZero.into()), buffer),
            Ok(count) => write_rest(file, buffer, count as usize, ended),
            Err(error) => ended(Err(error), buffer),
        });
    }

    /// A short read: rare, so it may be slow. Reads the rest into a part of the same buffer.
    async fn read_rest(
        &self,
        mut buffer: BufferMut,
        done: usize,
        offset: u64,
    ) -> (io::Result<()>, BufferMut) {
        let head = buffer.split_to(done);
        let (result, rest) = Box::pin(self.read_at(buffer, offset + done as u64)).await;
        let whole = head.join(rest).expect("the parts come from one buffer");
        (result, whole)
    }

    /// Writes all of `buffer` at `offset`. Durable only after [`File::sync_data`].
    pub async fn write_at(&self, buffer: Buffer, offset: u64) -> io::Result<()> {
        let durable = false;
        self.write(buffer, Place { offset, durable }).await
    }

    /// Writes all of `buffer` at `offset` and makes it durable, and what reading it back needs; nothing is said of other writes
    /// (`RWF_DSYNC`, pwritev2(2)). One request, where a write and a [`File::sync_data`] are two, one after the other.
    pub async fn write_durably_at(&self, buffer: Buffer, offset: u64) -> io::Result<()> {
        let durable = true;
        self.write(buffer, Place { offset, durable }).await
    }

    async fn write(&self, buffer: Buffer, mut place: Place) -> io::Result<()> {
        match &self.kind {
            Kind::Ring(ring, fd) => {
                let mut rest = buffer;
                while !rest.is_empty() {
                    let (result, returned) = sys::write_at(ring, fd, rest, place).await;
                    let count = result?;
                    if count == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    place.offset += u64::from(count);
                    rest = returned.slice(count as usize..returned.len());
                }
                Ok(())
            }
            Kind::Simulated(file) if place.durable => file.write_durably_at(&buffer, place.offset).await,
            Kind::Simulated(file) => file.write_at(&buffer, place.offset).await,
        }
    }

    /// Waits until the descriptor has something to be read, or an error to tell, which the next read does: of devices that give a message
    /// to each read, such as FUSE's.
    ///
    /// # Errors
    /// `Unsupported` in a simulation, which has no descriptors.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Ring(ring, fd) => sys::readable(ring, fd).await,
            Kind::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Makes every write that ended before this call durable.
    pub async fn sync_data(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Ring(ring, fd) => sys::sync_data(ring, fd).await,
            Kind::Simulated(file) => file.sync_data().await,
        }
    }

    /// Makes a range read zeros and gives its space back where the file system can.
    pub async fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        match &self.kind {
            Kind::Ring(ring, fd) => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                sys::allocate(ring, fd, mode, offset, length).await
            }
            Kind::Simulated(file) => file.punch_hole(offset, length).await,
        }
    }

    /// Another descriptor of the same open file, so with the same lock and the same flags; `None` in a simulation.
    pub fn duplicate(&self) -> io::Result<Option<OwnedFd>> {
        match &self.kind {
            Kind::Ring(_, fd) => fd.try_clone().map(Some),
            Kind::Simulated(_) => Ok(None),
        }
    }

    /// Takes over what [`File::duplicate`] gave, on any core with a ring.
    ///
    /// # Errors
    /// `Unsupported` in a simulation, which has no descriptors.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        match context::with(|context| context.backend.clone()) {
            Backend::Ring(ring) => Ok(Self {
                kind: Kind::Ring(ring, Rc::new(descriptor)),
            }),
            Backend::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The descriptor's number, for messages and `ioctl`s of the layer above; `None` in a simulation.
    pub fn raw_descriptor(&self) -> Option<i32> {
        match &self.kind {
            Kind::Ring(_, fd) => Some(fd.as_raw_fd()),
            Kind::Simulated(_) => None,
        }
    }
}
