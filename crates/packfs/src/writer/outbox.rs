//! Large writes in flight: a bounded number, each a task of its own, the first failure kept.
//!
//! One that finds no room where the volume lies has not failed: it is kept and made again until there is some, for as long as the writer
//! lives. Nobody adds to those that wait ([`Outbox::is_full`]), so they are a few more than may be in flight.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bdev::IoError;
use reactor::Buffer;
use reactor::sync::{Notify, Semaphore};
use reactor::time::sleep;

use crate::error::WriteError;
use crate::format::PAGE_BYTES_U64;
use crate::io::Medium;
use crate::lease::LeaseError;
use crate::lease::hold::WriterHold;

/// How long a write that found no room waits before it is made again.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

struct Shared {
    medium: Medium,
    hold: Rc<WriterHold>,
    permits: Rc<Semaphore>,
    outstanding: Cell<usize>,
    /// Those of them that wait for room.
    waiting: Cell<usize>,
    ended: Notify,
    failure: RefCell<Option<Failure>>,
    /// Addresses and bytes of the writes that are outstanding.
    buffers: RefCell<Vec<(u64, Buffer)>>,
}

#[derive(Clone)]
enum Failure {
    Io(u64, IoError),
    Lease(LeaseError),
}

#[derive(Clone)]
pub(super) struct Outbox(Rc<Shared>);

impl Outbox {
    pub(super) fn new(medium: Medium, hold: Rc<WriterHold>, in_flight: usize) -> Self {
        Self(Rc::new(Shared {
            medium,
            hold,
            permits: Semaphore::new(in_flight.max(1)),
            outstanding: Cell::new(0),
            waiting: Cell::new(0),
            ended: Notify::new(),
            failure: RefCell::default(),
            buffers: RefCell::default(),
        }))
    }

    /// Bytes that are on their way to the volume; `None` if they are there already.
    pub(super) fn find(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        let buffers = self.0.buffers.borrow();
        let found = buffers.iter().find_map(|(start, buffer)| {
            let from = usize::try_from(address.checked_sub(*start)?).ok()?;
            buffer.get(from..from.checked_add(usize::try_from(length).ok()?)?)
        });
        found.map(<[u8]>::to_vec)
    }

    /// Starts a write as soon as fewer than the bound are in flight; none once the lease has ended.
    pub(super) async fn send(&self, address: u64, buffer: Buffer) {
        if let Err(error) = self.0.hold.ensure().await {
            self.0.failure.borrow_mut().get_or_insert(Failure::Lease(error));
            return;
        }
        let permit = self.0.permits.acquire().await;
        self.0.outstanding.set(self.0.outstanding.get() + 1);
        self.0.buffers.borrow_mut().push((address, buffer.clone()));
        let shared = self.0.clone();
        drop(reactor::spawn(async move {
            let status = shared.medium.write(address, buffer.clone(), false).await;
            // Others may be tried meanwhile.
            drop(permit);
            let (shared, status) = match status {
                Err(IoError::NoSpace) => match shared.write_when_there_is_room(address, buffer).await {
                    Some(ended) => ended,
                    None => return,
                },
                other => (shared, other.map_err(|error| Failure::Io(address, error))),
            };
            if let Err(error) = status {
                shared.failure.borrow_mut().get_or_insert(error);
            }
            shared.buffers.borrow_mut().retain(|(start, _)| *start != address);
            shared.outstanding.set(shared.outstanding.get() - 1);
            shared.ended.notify();
        }));
    }

    /// Whether a write waits for room.
    pub(super) fn is_full(&self) -> bool {
        self.0.waiting.get() > 0
    }

    /// Waits until nothing is in flight; gives the first failure since the beginning.
    ///
    /// # Errors
    /// [`WriteError::DisksFull`] where something still waits for room.
    pub(super) async fn drain(&self) -> Result<(), WriteError> {
        let shared = &self.0;
        let none_in_flight = || shared.outstanding.get() == shared.waiting.get();
        shared.ended.until(none_in_flight).await;
        self.failure().await?;
        match self.is_full() {
            true => Err(WriteError::DisksFull),
            false => Ok(()),
        }
    }

    /// The first failure since the beginning: what was sent then or later may not be on the volume. A device that refuses this
    /// writer's token knows a newer one; this says whose.
    pub(super) async fn failure(&self) -> Result<(), WriteError> {
        let failure = self.0.failure.borrow().clone();
        match failure {
            None => Ok(()),
            Some(Failure::Lease(error)) => Err(error.into()),
            Some(Failure::Io(_, IoError::Fenced)) => Err(self.0.hold.lost().await.into()),
            Some(Failure::Io(address, source)) => Err(WriteError::Io {
                block: address / PAGE_BYTES_U64,
                source,
            }),
        }
    }
}

impl Shared {
    /// Makes a write again and again that found no room, and gives what came of it in the end; `None` once the writer is gone.
    async fn write_when_there_is_room(
        self: Rc<Self>,
        address: u64,
        buffer: Buffer,
    ) -> Option<(Rc<Self>, Result<(), Failure>)> {
        self.waiting.set(self.waiting.get() + 1);
        self.ended.notify();
        let mut shared = self;
        let status = loop {
            let weak = Rc::downgrade(&shared);
            drop(shared);
            sleep(ROOM_PAUSE).await;
            shared = weak.upgrade()?;
            if let Err(error) = shared.hold.ensure().await {
                break Err(Failure::Lease(error));
            }
            match shared.medium.write(address, buffer.clone(), false).await {
                Err(IoError::NoSpace) => {}
                other => break other.map_err(|error| Failure::Io(address, error)),
            }
        };
        shared.waiting.set(shared.waiting.get() - 1);
        Some((shared, status))
    }
}
