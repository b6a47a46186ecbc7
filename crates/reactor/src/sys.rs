//! The io_uring backend. All of this crate's conversations with the kernel, and nearly all of its
//! `unsafe`, are here.
//!
//! A submitted [`Operation`] keeps what the kernel may still touch ([`Resources`]) in the ring's slab until
//! the last completion; dropping the future only asks for cancellation.

mod operation;
mod receive_ring;
mod ring;
mod send_message;
mod shared;
mod thread;
mod user;
mod wake;

pub(crate) use operation::{Resources, Stream};
pub(crate) use receive_ring::ReceiveChunk;
pub(crate) use ring::{Ring, RingConfig, probe};
pub(crate) use send_message::SendMessage;
pub(crate) use shared::{LIFE_WORDS, SharedWords};
pub(crate) use thread::{id as thread_id, pin_to_cpu};
#[cfg(test)]
pub(crate) use user::as_user;
pub(crate) use user::{own_user, peer_user};
pub(crate) use wake::WakeFd;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{opcode, squeue, types};

use crate::buffer::{Buffer, BufferMut};

/// Turns a completion's result into a count or the kernel's error.
pub(crate) fn check(result: i32) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn file(fd: &OwnedFd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

fn kernel_length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("one operation moves less than 4 GiB")
}

/// Reads into `buffer` from `offset`; the count may be short at the end of the file.
pub(crate) async fn read_at(
    ring: &Rc<Ring>,
    fd: &Rc<OwnedFd>,
    mut buffer: BufferMut,
    offset: u64,
) -> (io::Result<u32>, BufferMut) {
    let (pointer, length) = buffer.raw_parts();
    let entry = opcode::Read::new(file(fd), pointer, kernel_length(length))
        .offset(offset)
        .build();
    match ring
        .submit_to_disk(entry, Resources::Read(buffer, fd.clone()))
        .await
    {
        (result, Resources::Read(buffer, _)) => (check(result), buffer),
        _ => unreachable!("an operation returns the resources it was given"),
    }
}

/// As [`read_at`], without a task: `ended` is called from the turn that sees the end.
pub(crate) fn begin_read(
    ring: &Rc<Ring>,
    fd: &Rc<OwnedFd>,
    mut buffer: BufferMut,
    offset: u64,
    ended: impl FnOnce(io::Result<u32>, BufferMut) + 'static,
) {
    let (pointer, length) = buffer.raw_parts();
    let entry = opcode::Read::new(file(fd), pointer, kernel_length(length))
        .offset(offset)
        .build();
    let ended = move |result, resources| match resources {
        Resources::Read(buffer, _) => ended(check(result), buffer),
        _ => unreachable!("an operation returns the resources it was given"),
    };
    ring.begin_on_disk(entry, Resources::Read(buffer, fd.clone()), Box::new(ended));
}

/// As [`write_at`], without a task: `ended` is called from the turn that sees the end.
pub(crate) fn begin_write(
    ring: &Rc<Ring>,
    fd: &Rc<OwnedFd>,
    buffer: Buffer,
    place: Place,
    ended: impl FnOnce(io::Result<u32>, Buffer) + 'static,
) {
    let entry = write_entry(fd, &buffer, place);
    let ended = move |result, resources| match resources {
        Resources::Write(buffer, _) => ended(check(result), buffer),
        _ => unreachable!("an operation returns the resources it was given"),
    };
    ring.begin_on_disk(entry, Resources::Write(buffer, fd.clone()), Box::new(ended));
}

/// Where a write goes, and whether it ends only when it is durable.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) durable: bool,
}

fn write_entry(fd: &Rc<OwnedFd>, buffer: &Buffer, place: Place) -> squeue::Entry {
    opcode::Write::new(file(fd), buffer.as_ptr(), kernel_length(buffer.len()))
        .offset(place.offset)
        .rw_flags(if place.durable { libc::RWF_DSYNC } else { 0 })
        .build()
}

/// Writes `buffer` at a place; the count may be short.
pub(crate) async fn write_at(
    ring: &Rc<Ring>,
    fd: &Rc<OwnedFd>,
    buffer: Buffer,
    place: Place,
) -> (io::Result<u32>, Buffer) {
    let entry = write_entry(fd, &buffer, place);
    match ring
        .submit_to_disk(entry, Resources::Write(buffer, fd.clone()))
        .await
    {
        (result, Resources::Write(buffer, _)) => (check(result), buffer),
        _ => unreachable!("an operation returns the resources it was given"),
    }
}

/// Waits until a descriptor has something to be read, or an error to tell.
pub(crate) async fn readable(ring: &Rc<Ring>, fd: &Rc<OwnedFd>) -> io::Result<()> {
    let entry = opcode::PollAdd::new(file(fd), libc::POLLIN as u32).build();
    let (result, _) = ring.submit(entry, Resources::Descriptor(fd.clone())).await;
    check(result).map(drop)
}

/// Makes everything written before durable, with as much metadata as reading it back needs.
pub(crate) async fn sync_data(ring: &Rc<Ring>, fd: &Rc<OwnedFd>) -> io::Result<()> {
    let entry = opcode::Fsync::new(file(fd))
        .flags(types::FsyncFlags::DATASYNC)
        .build();
    check(ring.submit(entry, Resources::Descriptor(fd.clone())).await.0).map(drop)
}

/// Changes a file's allocation as `fallocate(2)` does.
pub(crate) async fn allocate(
    ring: &Rc<Ring>,
    fd: &Rc<OwnedFd>,
    mode: i32,
    offset: u64,
    length: u64,
) -> io::Result<()> {
    let entry = opcode::Fallocate::new(file(fd), length)
        .offset(offset)
        .mode(mode)
        .build();
    check(ring.submit(entry, Resources::Descriptor(fd.clone())).await.0).map(drop)
}

/// Waits for the next connection on a listening socket.
pub(crate) async fn accept(ring: &Rc<Ring>, fd: &Rc<OwnedFd>) -> io::Result<OwnedFd> {
    let entry = opcode::Accept::new(file(fd), std::ptr::null_mut(), std::ptr::null_mut())
        .flags(libc::SOCK_CLOEXEC)
        .build();
    let operation = ring.submit(entry, Resources::Accept(fd.clone()));
    let (result, _) = operation.await;
    check(result).map(|fd| wake::own(fd.cast_signed()))
}

/// Connects a socket.
pub(crate) async fn connect(ring: &Rc<Ring>, fd: &Rc<OwnedFd>, address: socket2::SockAddr) -> io::Result<()> {
    let address = Box::new(address);
    let entry = opcode::Connect::new(file(fd), address.as_ptr().cast(), address.len()).build();
    check(
        ring.submit(entry, Resources::Address(address, fd.clone()))
            .await
            .0,
    )
    .map(drop)
}

/// Sends all of `message`; an error leaves unknown how much went out.
pub(crate) async fn send(
    ring: &Rc<Ring>,
    fd: &Rc<OwnedFd>,
    mut message: Box<SendMessage>,
) -> (io::Result<()>, Box<SendMessage>) {
    loop {
        let Some((header, expected)) = message.prepare() else {
            return (Ok(()), message);
        };
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL).cast_unsigned();
        let entry = opcode::SendMsg::new(file(fd), header).flags(flags).build();
        let (result, resources) = ring.submit(entry, Resources::Send(message, fd.clone())).await;
        let Resources::Send(returned, _) = resources else {
            unreachable!("an operation returns the resources it was given")
        };
        message = returned;
        match check(result) {
            Ok(0) if expected > 0 => return (Err(io::ErrorKind::WriteZero.into()), message),
            Ok(sent) => message.advance(sent as usize),
            Err(error) => return (Err(error), message),
        }
    }
}
