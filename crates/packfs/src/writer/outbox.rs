//! Large writes in flight: a bounded number, each a task of its own, the first failure kept.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bdev::IoError;
use reactor::Buffer;
use reactor::sync::{Notify, Semaphore};

use crate::error::WriteError;
use crate::format::PAGE_BYTES_U64;
use crate::io::Medium;
use crate::lease::LeaseError;
use crate::lease::hold::WriterHold;

struct Shared {
    medium: Medium,
    hold: Rc<WriterHold>,
    permits: Rc<Semaphore>,
    outstanding: Cell<usize>,
    ended: Notify,
    failure: RefCell<Option<Failure>>,
    /// Addresses and bytes of the writes in flight.
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
            let status = shared.medium.write(address, buffer, false).await;
            if let Err(error) = status {
                let mut failure = shared.failure.borrow_mut();
                failure.get_or_insert(Failure::Io(address, error));
            }
            shared.buffers.borrow_mut().retain(|(start, _)| *start != address);
            drop(permit);
            shared.outstanding.set(shared.outstanding.get() - 1);
            shared.ended.notify();
        }));
    }

    /// Waits until nothing is in flight; gives the first failure since the beginning.
    pub(super) async fn drain(&self) -> Result<(), WriteError> {
        self.0.ended.until(|| self.0.outstanding.get() == 0).await;
        self.failure().await
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
