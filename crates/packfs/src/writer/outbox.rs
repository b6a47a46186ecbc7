//! Large writes in flight: a bounded number, each a task of its own, the first failure kept.

use std::cell::Cell;
use std::rc::Rc;

use bdev::IoError;
use reactor::Buffer;
use reactor::sync::{Notify, Semaphore};

use crate::error::WriteError;
use crate::format::PAGE_BYTES_U64;
use crate::io::Medium;

struct Shared {
    medium: Medium,
    permits: Rc<Semaphore>,
    outstanding: Cell<usize>,
    ended: Notify,
    failure: Cell<Option<(u64, IoError)>>,
}

#[derive(Clone)]
pub(super) struct Outbox(Rc<Shared>);

impl Outbox {
    pub(super) fn new(medium: Medium, in_flight: usize) -> Self {
        Self(Rc::new(Shared {
            medium,
            permits: Semaphore::new(in_flight.max(1)),
            outstanding: Cell::new(0),
            ended: Notify::new(),
            failure: Cell::new(None),
        }))
    }

    /// Starts a write as soon as fewer than the bound are in flight.
    pub(super) async fn send(&self, address: u64, buffer: Buffer) {
        let permit = self.0.permits.acquire().await;
        self.0.outstanding.set(self.0.outstanding.get() + 1);
        let shared = self.0.clone();
        drop(reactor::spawn(async move {
            let status = shared.medium.write(address, buffer, false).await;
            if let Err(error) = status
                && shared.failure.get().is_none()
            {
                shared.failure.set(Some((address, error)));
            }
            drop(permit);
            shared.outstanding.set(shared.outstanding.get() - 1);
            shared.ended.notify();
        }));
    }

    /// Waits until nothing is in flight; gives the first failure since the beginning.
    pub(super) async fn drain(&self) -> Result<(), WriteError> {
        self.0.ended.until(|| self.0.outstanding.get() == 0).await;
        match self.0.failure.get() {
            None => Ok(()),
            Some((address, source)) => Err(WriteError::Io {
                block: address / PAGE_BYTES_U64,
                source,
            }),
        }
    }
}
