//! Who may write, and what readers still need: asked of whoever keeps leases (a cluster's masters, or
//! [`memory::LocalLeases`] where everything is in one process).

pub(crate) mod hold;
pub mod memory;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use foundation::Instant;

use crate::space::ReaderFloor;

/// A future of a lease source.
pub type LeaseFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LeaseError>> + 'a>>;

/// Why a lease could not be had or kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Another writer has the volume.
    #[error(
        "the volume is being written by {holder}, whose lease has {} s left; wait, end that writer, or ask it to hand over (--take-over)",
        remaining.as_secs_f32().ceil()
    )]
    Held {
        /// Who.
        holder: String,
        /// Time left if it is not renewed.
        remaining: Duration,
    },
    /// The lease ended or was taken over.
    #[error("the lease has ended or was taken over; open the file system again")]
    Ended,
    /// Another asked for the lease, and it was given up after a commit.
    #[error(
        "the volume was handed over to {to}, who asked for it; all that was committed is kept, and nothing more can be \
         written here; once that writer has ended, open the file system again"
    )]
    HandedOver {
        /// Who asked.
        to: String,
    },
    /// The present writer was asked to hand over, and has not done so in time.
    #[error(
        "{holder} writes the volume, was asked to hand it over, and has not done so within {} s; it does at its next commit, \
         unless it is of a release before hand-overs: wait longer, or end that writer",
        waited.as_secs()
    )]
    NotHandedOver {
        /// Who.
        holder: String,
        /// How long it was asked.
        waited: Duration,
    },
    /// The lease ended without being renewed, and another writer has the volume.
    #[error(
        "the writer's lease ended before it was renewed (was this program stopped, or cut from the masters?), and \
         {holder} writes the volume now; wait for that writer, then open the file system again"
    )]
    TakenOver {
        /// Who.
        holder: String,
    },
    /// The lease ended because it could not be renewed.
    #[error(
        "the lease has ended because it could not be renewed: {why}; check that a master can be reached, then open \
         the file system again"
    )]
    Lapsed {
        /// What went wrong.
        why: String,
    },
    /// Nobody answers.
    #[error("the lease could not be asked for: {why}; check that a master can be reached")]
    Unreachable {
        /// What went wrong.
        why: String,
    },
}

/// The right to write, until an instant of this host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterLease {
    /// Larger than every token before it; travels in every write.
    pub token: u64,
    /// When it ends unless renewed.
    pub until: Instant,
}

/// A promise that a generation's pages are not used again, until an instant of this host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderLease {
    /// Names the lease.
    pub id: u64,
    /// When it ends unless renewed.
    pub until: Instant,
}

/// What a holder uses of a term that was granted: so long after the moment at which it asked, by its own clock. Clocks' rates differ by up to 1 %.
pub fn usable(term: Duration) -> Duration {
    term / 100 * 99
}

/// Grants leases on one volume.
pub trait LeaseSource {
    /// Asks to be the writer. `holder` is shown to those who are refused meanwhile. The token is above every one
    /// given before, and durably so; it stops older writers only where the device is told of it
    /// ([`bdev::Operation::Fence`]), which comes before the superblock is read.
    fn acquire_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease>;

    /// The same, and where another is the writer, that one is asked to hand over: it learns so by [`LeaseSource::await_wanted`], or at its next renewal. To be asked again every second for as long as it
    /// is wanted; who asks no more is forgotten.
    fn take_over_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease>;

    /// Who else asked to be the writer, as was told last.
    fn wanted_by(&self) -> Option<String>;

    /// Waits until another asks to be the writer, but not for long: [`LeaseSource::wanted_by`] says whether one did. Renews nothing.
    /// [`LeaseError::Unreachable`] may be tried again; after every other error it is known from renewals only. A source that cannot tell
    /// waits without end.
    fn await_wanted(&self, _token: u64) -> LeaseFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Goes on being the writer, also after the lease's end if nobody else has been the writer since.
    /// [`LeaseError::Unreachable`] may be tried again; every other error is for good.
    fn renew_writer(&self, token: u64) -> LeaseFuture<'_, WriterLease>;

    /// Stops being the writer.
    fn release_writer(&self, token: u64) -> LeaseFuture<'_, ()>;

    /// Holds every generation from `generation` on; 0 while the newest is not known yet.
    fn acquire_reader(&self, generation: u64) -> LeaseFuture<'_, ReaderLease>;

    /// Goes on holding, from `generation` on, which may be later than before. An answer that comes after the
    /// lease's end proves nothing about the time in between.
    fn renew_reader(&self, id: u64, generation: u64) -> LeaseFuture<'_, ReaderLease>;

    /// Holds nothing any more.
    fn release_reader(&self, id: u64) -> LeaseFuture<'_, ()>;

    /// The lowest generation that any reader lease or named snapshot holds; asked by the writer.
    fn reader_floor(&self, token: u64) -> LeaseFuture<'_, ReaderFloor>;
}
