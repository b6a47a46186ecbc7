//! The short way of a mount that stays on its commit: the reactor's thread takes the kernel's requests itself and answers those that are
//! asked for each file, so that no other thread is woken for them. Whatever else the kernel asks goes on to the library, which takes
//! it for a kernel's at the other end of a socket (`docs/decisions/0116`).
//!
//! The messages are those of Linux (`include/uapi/linux/fuse.h`), in the host's byte order.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::rc::Rc;
use std::time::Duration;

use fuser::{BackgroundSession, Config, Session};
use packfs::{Inode, InodeNumber};
use reactor::file::File;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::convert::{BLOCK_BYTES, COUNTED_BYTES, kind_bits, rdev_bits};
use crate::face::{Face, REQUEST_BYTES_MAX};
use crate::refusal::Refusal;
use crate::shared::Shared;

/// Operations (`enum fuse_opcode`).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const READ: u32 = 15;
const INIT: u32 = 26;
const READDIR: u32 = 28;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
const READDIRPLUS: u32 = 44;
/// `struct fuse_in_header` and `struct fuse_out_header`, in bytes.
const HEADER_BYTES: usize = 40;
const ANSWER_HEADER_BYTES: usize = 16;
/// A read of the device needs room for the longest write that was agreed upon, and what stands before its bytes.
const MESSAGE_BYTES_MAX: usize = REQUEST_BYTES_MAX as usize + 4096;
/// The longest answer of the library: a listing, or an extended attribute.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// The longest listing at once, in bytes.
const LISTING_BYTES_MAX: u32 = 64 << 10;
/// Requests that are taken before other work has its turn.
const BATCH: usize = 32;
/// The library's socket is full: it is tried again after so long.
const FULL_PAUSE: Duration = Duration::from_micros(100);
/// The number of what is said to the library here: none of the kernel's.
const OWN_UNIQUE: u64 = u64::MAX;
/// Of the protocol that the library is told at the other end of the socket; the kernel's own it has agreed upon before.
const PROTOCOL: (u32, u32) = (7, 31);

/// Both ends that the reactor serves between.
pub(crate) struct Direct {
    kernel: OwnedFd,
    library: UnixDatagram,
}

/// A request's header, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    operation: u32,
    unique: u64,
    inode: InodeNumber,
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(word.try_into().ok()?))
}

impl Header {
    fn read(message: &[u8]) -> Option<Self> {
        let whole = word32(message, 0)? as usize == message.len() && message.len() >= HEADER_BYTES;
        whole.then_some(Self {
            operation: word32(message, 4)?,
            unique: word64(message, 8)?,
            inode: InodeNumber(word64(message, 16)?),
        })
    }

    fn message(operation: u32, body: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + body.len()) as u32;
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(operation.to_ne_bytes());
        message.extend(OWN_UNIQUE.to_ne_bytes());
        message.resize(HEADER_BYTES, 0);
        message.extend_from_slice(body);
        message
    }
}

/// `struct fuse_init_in`.
fn beginning() -> Vec<u8> {
    let mut body = Vec::new();
    for word in [PROTOCOL.0, PROTOCOL.1, 128 << 10] {
        body.extend(word.to_ne_bytes());
    }
    body.resize(64, 0);
    Header::message(INIT, &body)
}

/// `struct fuse_attr`.
fn attributes(inode: &Inode) -> [u8; 88] {
    let a = &inode.attributes;
    let mut bytes = [0; 88];
    let wide = [
        inode.number.0,
        inode.size,
        inode.size.div_ceil(COUNTED_BYTES),
        a.atime.seconds.cast_unsigned(),
        a.mtime.seconds.cast_unsigned(),
        a.ctime.seconds.cast_unsigned(),
    ];
    let narrow = [
        a.atime.nanoseconds,
        a.mtime.nanoseconds,
        a.ctime.nanoseconds,
        kind_bits(inode.kind) | a.mode & 0o7777,
        inode.links,
        a.uid,
        a.gid,
        rdev_bits(inode),
        BLOCK_BYTES,
    ];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(wide) {
        *place = word.to_ne_bytes();
    }
    for (place, word) in bytes[48..].as_chunks_mut::<4>().0.iter_mut().zip(narrow) {
        *place = word.to_ne_bytes();
    }
    bytes
}

/// `struct fuse_entry_out`; without an inode it says for how long there is none.
fn entry(inode: Option<&Inode>, kept: Duration) -> [u8; 128] {
    let mut bytes = [0; 128];
    let seconds = kept.as_secs().to_ne_bytes();
    bytes[..8].copy_from_slice(&inode.map_or(0, |inode| inode.number.0).to_ne_bytes());
    bytes[16..24].copy_from_slice(&seconds);
    bytes[24..32].copy_from_slice(&seconds);
    for at in [32, 36] {
        bytes[at..at + 4].copy_from_slice(&kept.subsec_nanos().to_ne_bytes());
    }
    if let Some(inode) = inode {
        bytes[40..].copy_from_slice(&attributes(inode));
    }
    bytes
}

/// `struct fuse_attr_out`.
fn attribute_answer(inode: &Inode, kept: Duration) -> [u8; 104] {
    let mut bytes = [0; 104];
    bytes[..8].copy_from_slice(&kept.as_secs().to_ne_bytes());
    bytes[8..12].copy_from_slice(&kept.subsec_nanos().to_ne_bytes());
    bytes[16..].copy_from_slice(&attributes(inode));
    bytes
}

/// Answers a request. What the kernel does not take belongs to nobody any more: whoever asked was killed, or all is unmounted.
fn answer(kernel: &OwnedFd, unique: u64, found: Result<&[u8], Refusal>) {
    let (bytes, error) = match found {
        Ok(bytes) => (bytes, 0),
        Err(refusal) => (&[][..], -refusal.number()),
    };
    let mut header = [0; ANSWER_HEADER_BYTES];
    header[..4].copy_from_slice(&((ANSWER_HEADER_BYTES + bytes.len()) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    let _ = rustix::io::writev(kernel, &[IoSlice::new(&header), IoSlice::new(bytes)]);
}

impl Direct {
    /// Puts the reactor between a mount, which has begun, and the library, which serves what is sent on to it with `face`.
    ///
    /// # Errors
    /// If there are no descriptors or threads left.
    pub(crate) fn begin(
        mounted: &Session<Face>,
        face: Face,
        config: &Config,
    ) -> io::Result<(Self, BackgroundSession)> {
        let (library, its_end) = UnixDatagram::pair()?;
        // The library begins with what a kernel says first.
        library.send(&beginning())?;
        let session = Session::from_fd(face, its_end.into(), config.acl, config.clone())?;
        library.recv(&mut [0; 256])?;
        let kernel = mounted.as_fd().try_clone_to_owned()?;
        // The mount's own descriptor, which nobody else reads.
        rustix::io::ioctl_fionbio(&kernel, true)?;
        pass_answers_on(library.try_clone()?, kernel.try_clone()?)?;
        Ok((Self { kernel, library }, session.spawn()?))
    }

    /// Takes requests until all is unmounted, or until this is dropped. What is under way then ends by itself.
    pub(crate) async fn serve(self, shared: Rc<Shared>) {
        let _ended = Ended(&self.library);
        let device = Rc::new(self.kernel);
        if let Err(error) = pump(&device, &self.library, &shared).await {
            tracing::error!("the kernel's requests cannot be read any more, and the mount ends: {error}");
        }
    }
}

/// Tells the library that the mount has ended.
struct Ended<'a>(&'a UnixDatagram);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = send(self.0, &Header::message(DESTROY, &[]), SendFlags::DONTWAIT);
    }
}

/// Gives the kernel what the library answers, in a thread of its own: the reactor must not wait for a socket that it fills itself.
fn pass_answers_on(library: UnixDatagram, kernel: OwnedFd) -> io::Result<()> {
    let pass_on = move || {
        let mut answer = vec![0; ANSWER_BYTES_MAX];
        loop {
            match library.recv(&mut answer) {
                Ok(length) if word64(&answer[..length], 8) == Some(OWN_UNIQUE) => return,
                // As of what is answered here.
                Ok(length) => drop(rustix::io::write(&kernel, &answer[..length])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    };
    let named = std::thread::Builder::new().name("fuse answers".to_owned());
    named.spawn(pass_on).map(drop)
}

async fn pump(device: &Rc<OwnedFd>, library: &UnixDatagram, shared: &Rc<Shared>) -> io::Result<()> {
    let waiting = File::from_descriptor(device.try_clone()?)?;
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    loop {
        waiting.readable().await?;
        for _ in 0..BATCH {
            match rustix::io::read(device, &mut message) {
                Ok(length) => {
                    let message = &mut message[..length];
                    if !take(message, device, shared) {
                        bound_listing(message);
                        send_on(library, message).await?;
                    }
                }
                Err(Errno::AGAIN) => break,
                // Whoever asked gave up before it was read.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(Errno::NODEV) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What a listing may answer at once has to fit into one message of the socket. The kernel asks for the rest.
fn bound_listing(message: &mut [u8]) {
    let is_listing =
        Header::read(message).is_some_and(|header| matches!(header.operation, READDIR | READDIRPLUS));
    let at = HEADER_BYTES + 16;
    if is_listing && word32(message, at).is_some_and(|size| size > LISTING_BYTES_MAX) {
        message[at..at + 4].copy_from_slice(&LISTING_BYTES_MAX.to_ne_bytes());
    }
}

async fn send_on(library: &UnixDatagram, message: &[u8]) -> io::Result<()> {
    loop {
        match send(library, message, SendFlags::DONTWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => reactor::time::sleep(FULL_PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Begins to answer a request; false if the library is to do it.
fn take(message: &[u8], device: &Rc<OwnedFd>, shared: &Rc<Shared>) -> bool {
    let Some(Header {
        operation,
        unique,
        inode,
    }) = Header::read(message)
    else {
        return false;
    };
    let body = &message[HEADER_BYTES..];
    let (device, shared) = (device.clone(), shared.clone());
    match operation {
        READ => {
            let (Some(offset), Some(size)) = (word64(body, 8), word32(body, 16)) else {
                return false;
            };
            drop(reactor::spawn(async move {
                let read = shared.look_of(inode, async |source, inode| {
                    source.read(inode, offset, size.into()).await
                });
                match read.await {
                    Ok(bytes) => bytes.with(|bytes| answer(&device, unique, Ok(bytes))),
                    Err(refusal) => answer(&device, unique, Err(refusal)),
                }
            }));
        }
        LOOKUP => {
            let Some((0, name)) = body.split_last() else {
                return false;
            };
            let name = name.to_vec();
            drop(reactor::spawn(async move {
                let found = shared
                    .look_of(inode, async |source, inode| source.lookup(inode, &name).await)
                    .await;
                let kept = shared.caching.kept();
                match (found, shared.caching.missing_kept()) {
                    (Ok(inode), _) => answer(&device, unique, Ok(&entry(Some(&inode), kept))),
                    (Err(Refusal::NO_SUCH_ENTRY), Some(kept)) => {
                        answer(&device, unique, Ok(&entry(None, kept)))
                    }
                    (Err(refusal), _) => answer(&device, unique, Err(refusal)),
                }
            }));
        }
        GETATTR => drop(reactor::spawn(async move {
            let found = shared
                .look_of(inode, async |source, inode| source.stat(inode).await)
                .await;
            let found = found.map(|inode| attribute_answer(&inode, shared.caching.kept()));
            answer(
                &device,
                unique,
                found.as_ref().map(|bytes| &bytes[..]).map_err(|refusal| *refusal),
            );
        })),
        // These want no answer, and of a commit that stays nothing is noted for the kernel's sake.
        FORGET | BATCH_FORGET => {}
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_messages_are_taken() {
        let message = Header::message(READ, &[7; 40]);
        let header = Header::read(&message).unwrap();
        assert_eq!(
            (header.operation, header.unique, header.inode.0),
            (READ, OWN_UNIQUE, 0)
        );
        for length in 0..message.len() {
            assert_eq!(Header::read(&message[..length]), None);
        }
        assert_eq!(word64(&message, message.len() - 7), None);
        assert_eq!(word32(&message, usize::MAX), None);
    }

    #[test]
    fn only_long_listings_are_bounded() {
        for (operation, size, bounded) in [
            (READDIR, 1 << 20, LISTING_BYTES_MAX),
            (READDIRPLUS, 4096, 4096),
            (READ, 1 << 20, 1 << 20),
        ] {
            let mut body = [0; 40];
            body[16..20].copy_from_slice(&u32::to_ne_bytes(size));
            let mut message = Header::message(operation, &body);
            bound_listing(&mut message);
            assert_eq!(word32(&message, HEADER_BYTES + 16), Some(bounded));
        }
        bound_listing(&mut Header::message(READDIR, &[]));
    }

    #[test]
    fn an_entry_that_is_not_there_has_no_inode_and_a_time() {
        let bytes = entry(None, Duration::from_millis(2500));
        assert_eq!(word64(&bytes, 0), Some(0));
        assert_eq!(
            (word64(&bytes, 16), word32(&bytes, 32)),
            (Some(2), Some(500_000_000))
        );
    }
}
