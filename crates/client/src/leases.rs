//! PackFS's leases, kept by the masters.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use packfs::ReaderFloor;
use packfs::lease::{LeaseError, LeaseFuture, LeaseSource, ReaderLease, WriterLease};
use proto::client::ClientError;
use proto::v1;
use reactor::time;

use crate::session::{Session, random};

/// How long a writer lets masters wait for another to ask for its lease.
const WANTED_WAIT: Duration = Duration::from_secs(10);
/// How long a writer's lease is asked for.
const WRITER_TERM: Duration = Duration::from_secs(30);
/// The lease is asked for so often where it was refused because of somebody who no longer has it a moment later.
const ATTEMPTS: u32 = 3;

/// Leases on a session's volume. For one process: what it holds is known here.
pub struct MasterLeases {
    session: Arc<Session>,
    /// Shown to others.
    holder: String,
    /// Proves to the masters that it is the same writer who renews.
    writer: [u8; 16],
    /// Who else asked to be the writer, as masters told last.
    wanted: RefCell<Option<String>>,
    readers: RefCell<BTreeMap<u64, [u8; 16]>>,
    next_reader: Cell<u64>,
}

impl MasterLeases {
    /// Leases for this process, which others see as `holder`.
    pub fn new(session: Arc<Session>, holder: &str) -> std::io::Result<Self> {
        Ok(Self {
            session,
            holder: holder.to_owned(),
            writer: random()?,
            wanted: RefCell::default(),
            readers: RefCell::default(),
            next_reader: Cell::new(1),
        })
    }

    fn volume(&self) -> u32 {
        self.session.number().0
    }

    fn told(&self, wanted_by: String) {
        *self.wanted.borrow_mut() = Some(wanted_by).filter(|who| !who.is_empty());
    }

    /// Who is in the way, if somebody is: asked after a refusal, so that it may be another than the one because of whom it was
    /// refused, or nobody any more.
    async fn in_the_way(&self) -> Option<v1::WriterLease> {
        let request = v1::ShowLeasesRequest {
            volume: self.volume(),
        };
        let shown = self
            .session
            .call(move |client| async move { client.show_leases(request).await })
            .await?;
        shown.ok()?.writer.filter(|writer| writer.remaining_ms > 0)
    }

    async fn acquire(&self, holder: &str, take_over: bool) -> Result<WriterLease, LeaseError> {
        let ask = async || {
            let asked = time::now();
            let request = v1::AcquireWriterRequest {
                volume: self.volume(),
                holder: holder.to_owned(),
                term_ms: WRITER_TERM.as_millis() as u64,
                session: self.writer.to_vec(),
                take_over,
            };
            let answer = self
                .session
                .call(move |client| async move { client.acquire_writer(request).await })
                .await;
            let lease = |lease: v1::WriterLease| WriterLease {
                token: lease.token,
                until: asked + usable(lease.term_ms),
            };
            answer.map(|answer| answer.map(lease))
        };
        let lease = insist(ask, async || self.in_the_way().await).await?;
        *self.wanted.borrow_mut() = None;
        Ok(lease)
    }

    async fn hold(&self, id: u64, session: [u8; 16], generation: u64) -> Result<ReaderLease, LeaseError> {
        let asked = time::now();
        let request = v1::HoldReaderRequest {
            volume: self.volume(),
            session: session.to_vec(),
            holder: self.holder.clone(),
            generation,
        };
        match self
            .session
            .call(move |client| async move { client.hold_reader(request).await })
            .await
        {
            Some(Ok(held)) => Ok(ReaderLease {
                id,
                until: asked + usable(held.term_ms),
            }),
            Some(Err(error)) => Err(unreachable(&error)),
            None => Err(ended_session()),
        }
    }
}

/// Asks for the writer's lease. After a refusal it says who is in the way. Where nobody is any more it asks again: whoever was may
/// have given the lease up in between, as those do who are asked to hand over.
async fn insist(
    ask: impl AsyncFn() -> Option<Result<WriterLease, ClientError>>,
    in_the_way: impl AsyncFn() -> Option<v1::WriterLease>,
) -> Result<WriterLease, LeaseError> {
    let mut attempts = ATTEMPTS;
    loop {
        attempts -= 1;
        let error = match ask().await.ok_or_else(ended_session)? {
            Ok(lease) => return Ok(lease),
            Err(error) => error,
        };
        if let Some(writer) = in_the_way().await {
            return Err(LeaseError::Held {
                holder: writer.holder,
                remaining: Duration::from_millis(writer.remaining_ms),
            });
        }
        if attempts == 0 || error.is_passing() {
            return Err(unreachable(&error));
        }
    }
}

fn usable(term_ms: u64) -> Duration {
    packfs::lease::usable(Duration::from_millis(term_ms))
}

fn unreachable(error: &ClientError) -> LeaseError {
    LeaseError::Unreachable {
        why: error.to_string(),
    }
}

/// Only a master's word ends a lease: one that cannot be reached, or cannot answer now, may renew it in a moment.
fn lost(error: &ClientError) -> LeaseError {
    if error.is_passing() {
        unreachable(error)
    } else {
        LeaseError::Ended
    }
}

fn ended_session() -> LeaseError {
    LeaseError::Unreachable {
        why: "the cluster session has ended".to_owned(),
    }
}

impl LeaseSource for MasterLeases {
    fn acquire_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        Box::pin(self.acquire(holder, false))
    }

    fn take_over_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        Box::pin(self.acquire(holder, true))
    }

    fn wanted_by(&self) -> Option<String> {
        self.wanted.borrow().clone()
    }

    fn await_wanted(&self, token: u64) -> LeaseFuture<'_, ()> {
        Box::pin(async move {
            let request = v1::AwaitWantedRequest {
                volume: self.volume(),
                token,
                session: self.writer.to_vec(),
                wait_ms: WANTED_WAIT.as_millis() as u64,
            };
            match self
                .session
                .call(move |client| async move { client.await_wanted(request).await })
                .await
            {
                Some(Ok(lease)) => {
                    self.told(lease.wanted_by);
                    Ok(())
                }
                Some(Err(error)) => Err(lost(&error)),
                None => Err(ended_session()),
            }
        })
    }

    fn renew_writer(&self, token: u64) -> LeaseFuture<'_, WriterLease> {
        Box::pin(async move {
            let asked = time::now();
            let (volume, session) = (self.volume(), self.writer.to_vec());
            let request = v1::RenewWriterRequest {
                volume,
                token,
                session,
            };
            match self
                .session
                .call(move |client| async move { client.renew_writer(request).await })
                .await
            {
                Some(Ok(lease)) => {
                    self.told(lease.wanted_by);
                    Ok(WriterLease {
                        token,
                        until: asked + usable(lease.term_ms),
                    })
                }
                Some(Err(error)) => Err(match lost(&error) {
                    LeaseError::Ended => match self.in_the_way().await {
                        Some(writer) => LeaseError::TakenOver {
                            holder: writer.holder,
                        },
                        None => LeaseError::Ended,
                    },
                    passing => passing,
                }),
                None => Err(ended_session()),
            }
        })
    }

    fn release_writer(&self, token: u64) -> LeaseFuture<'_, ()> {
        Box::pin(async move {
            let (volume, session) = (self.volume(), self.writer.to_vec());
            let request = v1::ReleaseWriterRequest {
                volume,
                token,
                session,
            };
            match self
                .session
                .call(move |client| async move { client.release_writer(request).await })
                .await
            {
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err(lost(&error)),
                None => Err(ended_session()),
            }
        })
    }

    fn acquire_reader(&self, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        Box::pin(async move {
            let session = random().map_err(|error| LeaseError::Unreachable {
                why: error.to_string(),
            })?;
            let id = self.next_reader.get();
            self.next_reader.set(id + 1);
            let lease = self.hold(id, session, generation).await?;
            self.readers.borrow_mut().insert(id, session);
            Ok(lease)
        })
    }

    fn renew_reader(&self, id: u64, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        Box::pin(async move {
            let session = self.readers.borrow().get(&id).copied().ok_or(LeaseError::Ended)?;
            self.hold(id, session, generation).await
        })
    }

    fn release_reader(&self, id: u64) -> LeaseFuture<'_, ()> {
        Box::pin(async move {
            let session = self.readers.borrow_mut().remove(&id).ok_or(LeaseError::Ended)?;
            let request = v1::ReleaseReaderRequest {
                volume: self.volume(),
                session: session.to_vec(),
            };
            match self
                .session
                .call(move |client| async move { client.release_reader(request).await })
                .await
            {
                Some(Ok(_)) => Ok(()),
                Some(Err(error)) => Err(unreachable(&error)),
                None => Err(ended_session()),
            }
        })
    }

    fn reader_floor(&self, _token: u64) -> LeaseFuture<'_, ReaderFloor> {
        Box::pin(async move {
            let request = v1::ShowLeasesRequest {
                volume: self.volume(),
            };
            match self
                .session
                .call(move |client| async move { client.show_leases(request).await })
                .await
            {
                Some(Ok(shown)) => Ok(ReaderFloor(shown.oldest_generation)),
                Some(Err(error)) => Err(unreachable(&error)),
                None => Err(ended_session()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use foundation::Instant;
    use proto::client::Code;

    use super::*;

    const LEASE: WriterLease = WriterLease {
        token: 9,
        until: Instant::from_nanos(1),
    };

    fn refused(code: Code) -> ClientError {
        ClientError::Refused {
            code,
            message: "volume 1 is leased by somebody".to_owned(),
        }
    }

    /// What comes of asking, and how often the lease was asked for: it is had at the call `granted`, and somebody is in the way
    /// until the call `free`.
    fn asking(granted: u32, free: u32, code: Code) -> (Result<WriterLease, LeaseError>, u32) {
        let calls = Cell::new(0);
        let ask = async || {
            calls.set(calls.get() + 1);
            Some(if calls.get() >= granted {
                Ok(LEASE)
            } else {
                Err(refused(code))
            })
        };
        let in_the_way = async || {
            (calls.get() < free).then(|| v1::WriterLease {
                holder: "somebody".to_owned(),
                remaining_ms: 30_000,
                ..Default::default()
            })
        };
        let mut asked = std::pin::pin!(insist(ask, in_the_way));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(outcome) = asked.as_mut().poll(&mut context) else {
            panic!("nothing in it waits");
        };
        (outcome, calls.get())
    }

    #[test]
    fn a_lease_that_is_given_up_between_the_refusal_and_the_look_is_asked_for_again() {
        assert_eq!(asking(1, 1, Code::FailedPrecondition), (Ok(LEASE), 1));
        assert_eq!(asking(2, 1, Code::FailedPrecondition), (Ok(LEASE), 2));
        let (held, calls) = asking(2, 2, Code::FailedPrecondition);
        assert!(matches!(held, Err(LeaseError::Held { .. })), "{held:?}");
        assert_eq!(calls, 1);
        // Refused for something else, or not answered: not for ever.
        for (code, times) in [(Code::FailedPrecondition, ATTEMPTS), (Code::Unavailable, 1)] {
            let (error, calls) = asking(u32::MAX, 0, code);
            assert!(matches!(error, Err(LeaseError::Unreachable { .. })), "{error:?}");
            assert_eq!(calls, times, "{code:?}");
        }
    }
}
