//! A layer that notices requests which stand, and resets what is below in stages (`docs/decisions/0088`).
//!
//! A request that stands longer than a bound begins the first stage; as long as nothing is answered, each bound of time brings
//! the next. What is made again, and when that is sound:
//!
//! - A **read** is taken back whenever it stands: it changes nothing. It is made again with another buffer, since the kernel may
//!   still fill the first one; what comes of the old attempt is dropped.
//! - **Everything else** is made again only when it has ended, as [`IoError::Aborted`] says after [`Channel::cancel`]. A write that
//!   stands may still land: made again it could land on what was written after it. So a write that cannot be cancelled
//!   waits for a stage that makes the device answer, or for the end of the process, which proves the end of its requests.
//!
//! Cost of a request: a slot of a reused store; the clock is looked at once in a turn of the reactor. A timer runs while there are requests, a quarter of the
//! bound apart; an idle device has none.

mod stages;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use foundation::{BlockCount, Instant, Lba};
use reactor::sync::Notify;
use reactor::{BufferMut, BufferPool, spawn, time};

use crate::device::{Channel, Geometry, OpenError};
use crate::error::IoError;
use crate::request::{Completion, Data, Fence, Operation, Request, Sink, Token, TraceId};

pub use stages::{Stage, Stages, Step};

/// A request that was cancelled is made again no more often than this.
const REPEATS_MAX: u32 = 8;

/// What a stage is doing, while it takes time.
pub type Resetting = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// What is below, and how it is reset.
pub trait Source {
    /// Another way to the device as it is open now. May block briefly.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open_queue(&self) -> Result<Rc<dyn Channel>, OpenError>;

    /// Opens the device anew; [`Source::open_queue`] then gives ways to that. May block briefly.
    ///
    /// # Errors
    /// Why that cannot be: the stage is skipped.
    fn reopen(&self) -> Result<(), String>;

    /// Resets the driver in the kernel.
    ///
    /// # Errors
    /// Why that cannot be: the stage is skipped.
    fn reset_driver(&self) -> Resetting;
}

/// What has become of a device's requests. Written by its core; any thread may read.
#[derive(Debug, Default)]
pub struct ResetMeasures {
    /// How often each stage began, by [`Stage`].
    pub begun: [AtomicU64; 4],
    /// Of those, how often it had nothing to do.
    pub skipped: [AtomicU64; 4],
    /// After how many requests were answered again before the next one began.
    pub cured: [AtomicU64; 4],
    /// From the beginning of each stage until that, summed, in microseconds.
    pub cured_us: [AtomicU64; 4],
    /// Since when the oldest request stands, in milliseconds; 0 while none stands longer than the bound.
    pub standing_ms: AtomicU64,
    /// Requests that failed through the device, not for what they asked.
    pub failures: AtomicU64,
    /// All stages but the last have been tried and did not help: the process is to be started anew.
    pub needs_process: AtomicBool,
}

struct Flight {
    /// None once it was taken back.
    token: Option<Token>,
    operation: Operation,
    lba: Lba,
    blocks: BlockCount,
    fence: Option<Fence>,
    trace: TraceId,
    /// When this attempt was given to the device.
    sent: Instant,
    length_bytes: usize,
    repeats: u32,
}

#[derive(Default)]
struct Slots {
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    answered: u64,
}

impl Slots {
    fn keep(&mut self, flight: Flight) -> u64 {
        let index = match self.free.pop() {
            Some(index) => {
                self.flights[index] = Some(flight);
                index
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() - 1
            }
        };
        index as u64
    }

    fn waiting(&self) -> impl Iterator<Item = &Flight> {
        self.flights
            .iter()
            .flatten()
            .filter(|flight| flight.token.is_some())
    }

    fn oldest(&self) -> Option<Instant> {
        self.waiting().map(|flight| flight.sent).min()
    }
}

struct Shared {
    name: String,
    limit: Duration,
    source: Rc<dyn Source>,
    queue: RefCell<Rc<dyn Channel>>,
    slots: RefCell<Slots>,
    /// Nobody looks: there is nothing to look at.
    rests: Cell<bool>,
    poke: Notify,
    /// A stage was begun and nothing has been answered since: what was cancelled is made again.
    resetting: Cell<bool>,
    measures: Arc<ResetMeasures>,
    own: Weak<Shared>,
}

/// One core's way to a device that is reset in stages.
pub struct ResetChannel {
    shared: Rc<Shared>,
}

impl ResetChannel {
    /// A way to `source`, called `name` in logs. A request that stands for `limit` begins the first stage.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        name: String,
        source: Rc<dyn Source>,
        limit: Duration,
        measures: Arc<ResetMeasures>,
    ) -> Result<Rc<Self>, OpenError> {
        let queue = source.open_queue()?;
        let shared = Rc::new_cyclic(|own| Shared {
            name,
            limit,
            source,
            queue: RefCell::new(queue),
            slots: RefCell::default(),
            rests: Cell::new(false),
            poke: Notify::new(),
            resetting: Cell::new(false),
            measures,
            own: own.clone(),
        });
        drop(spawn(watch(Rc::downgrade(&shared))));
        Ok(Rc::new(Self { shared }))
    }
}

impl Drop for ResetChannel {
    fn drop(&mut self) {
        // Whoever looks lets go of the device.
        self.shared.rests.set(false);
        self.shared.poke.notify();
    }
}

impl Channel for ResetChannel {
    fn geometry(&self) -> Geometry {
        self.shared.queue.borrow().geometry()
    }

    fn submit(&self, mut request: Request) {
        let flight = Flight {
            token: Some(request.token),
            operation: request.operation,
            lba: request.lba,
            blocks: request.blocks,
            fence: request.fence,
            trace: request.trace,
            sent: time::turn(),
            length_bytes: request.data.length_bytes(),
            repeats: 0,
        };
        let tag = self.shared.slots.borrow_mut().keep(flight);
        if self.shared.rests.replace(false) {
            self.shared.poke.notify();
        }
        request.token = Token::new(self.shared.clone(), tag);
        let queue = self.shared.queue.borrow().clone();
        queue.submit(request);
    }
}

impl Sink for Shared {
    fn complete(&self, tag: u64, completion: Completion) {
        let index = tag as usize;
        let mut flight = {
            let mut slots = self.slots.borrow_mut();
            let flight = slots.flights[index].take();
            slots.free.push(index);
            flight.expect("a tag is that of a flight until it completes")
        };
        let Some(token) = flight.token.take() else {
            return;
        };
        let Completion { status, data } = completion;
        let has_data = data.length_bytes() == flight.length_bytes;
        if self.resetting.get() && status == Err(IoError::Aborted) && has_data && flight.repeats < REPEATS_MAX
        {
            flight.repeats += 1;
            return self.send(flight, token, data);
        }
        self.slots.borrow_mut().answered += 1;
        if status.is_err_and(is_of_the_device) {
            bump(&self.measures.failures, 1);
        }
        token.complete(status, data);
    }
}

impl Shared {
    /// Gives a request to the device once more.
    fn send(&self, flight: Flight, token: Token, data: Data) {
        let Some(own) = self.own.upgrade() else {
            return token.complete(Err(IoError::Aborted), data);
        };
        let (operation, lba, blocks) = (flight.operation, flight.lba, flight.blocks);
        let (fence, trace) = (flight.fence, flight.trace);
        let tag = self.slots.borrow_mut().keep(Flight {
            token: Some(token),
            sent: time::now(),
            ..flight
        });
        let queue = self.queue.borrow().clone();
        queue.submit(Request {
            operation,
            lba,
            blocks,
            data,
            metadata: None,
            fence,
            trace,
            token: Token::new(own, tag),
        });
    }

    /// Sends the reads that stand by the queue that is there now.
    fn take_back_reads(&self) {
        let now = time::now();
        let taken: Vec<(Flight, Token, BufferMut)> = {
            let mut slots = self.slots.borrow_mut();
            let stands = |flight: &&mut Flight| {
                flight.operation == Operation::Read && now.since(flight.sent) >= self.limit
            };
            let take = |flight: &mut Flight| {
                flight.token.as_ref()?;
                // Its own buffer is with the kernel. While there is no other it goes on standing, until the next stage or until the
                // device answers: whoever asked would take a refusal for the disk's.
                let buffer = BufferPool::current().try_allocate(flight.length_bytes).ok()?;
                let token = flight.token.take()?;
                let again = Flight {
                    token: None,
                    ..*flight
                };
                Some((again, token, buffer))
            };
            let flights = slots.flights.iter_mut().flatten();
            flights.filter(stands).filter_map(take).collect()
        };
        for (flight, token, buffer) in taken {
            self.send(flight, token, Data::Into(buffer));
        }
    }

    /// What comes goes by another queue, and what stands too, as far as it can.
    fn use_another_queue(&self) -> Result<(), String> {
        let queue = self.source.open_queue().map_err(|error| error.to_string())?;
        let before = self.queue.replace(queue);
        // What this ends comes back at once or later, and goes by the new queue. What has gone by it is not asked to end.
        before.cancel();
        self.take_back_reads();
        Ok(())
    }

    async fn act(&self, stage: Stage) -> Result<(), String> {
        match stage {
            Stage::Queue => self.use_another_queue(),
            Stage::Device => {
                self.source.reopen()?;
                self.use_another_queue()
            }
            Stage::Driver => {
                self.source.reset_driver().await?;
                self.use_another_queue()
            }
            Stage::Process => {
                self.measures.needs_process.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

fn is_of_the_device(error: IoError) -> bool {
    use IoError::{Gone, Media, Os, TimedOut, Unavailable};
    matches!(error, Media | Gone | TimedOut | Unavailable | Os(_))
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Looks at the requests under way, and begins what is to be done, for as long as the channel lives.
async fn watch(weak: Weak<Shared>) {
    let Some(limit) = weak.upgrade().map(|shared| shared.limit) else {
        return;
    };
    let mut stages = Stages::new(limit);
    loop {
        let Some(shared) = weak.upgrade() else { return };
        if shared.slots.borrow().waiting().next().is_none() && !shared.resetting.get() {
            shared.rests.set(true);
            shared.poke.until(|| !shared.rests.get()).await;
        }
        drop(shared);
        let before = time::now();
        time::sleep(limit / 4).await;
        // A process that did not run has not seen what was answered meanwhile.
        if time::now() - before > limit / 2 {
            continue;
        }
        let Some(shared) = weak.upgrade() else { return };
        look(&shared, &mut stages).await;
    }
}

async fn look(shared: &Shared, stages: &mut Stages) {
    loop {
        let now = time::now();
        let (oldest, answered) = {
            let slots = shared.slots.borrow();
            (slots.oldest(), slots.answered)
        };
        let measures = &shared.measures;
        let standing = oldest.map_or(Duration::ZERO, |since| now.since(since));
        let shown = if standing >= shared.limit {
            standing.as_millis() as u64
        } else {
            0
        };
        measures.standing_ms.store(shown, Ordering::Relaxed);
        match stages.look(now, oldest, answered) {
            Step::Nothing => return,
            Step::Cured(stage, took) => {
                shared.resetting.set(false);
                measures.needs_process.store(false, Ordering::Relaxed);
                bump(&measures.cured[stage as usize], 1);
                bump(&measures.cured_us[stage as usize], took.as_micros() as u64);
                let (disk, stage) = (&shared.name, stage.name());
                tracing::warn!(
                    disk,
                    stage,
                    ?took,
                    "the disk answers again after this stage of its reset"
                );
                return;
            }
            Step::Begin(stage) => {
                let requests = shared.slots.borrow().waiting().count();
                let (disk, name) = (&shared.name, stage.name());
                tracing::error!(
                    disk,
                    stage = name,
                    ?standing,
                    requests,
                    "requests of a disk stand: it is reset"
                );
                shared.resetting.set(true);
                bump(&measures.begun[stage as usize], 1);
                if let Err(why) = shared.act(stage).await {
                    tracing::warn!(disk, stage = name, why, "a stage of the reset is skipped");
                    bump(&measures.skipped[stage as usize], 1);
                    stages.skip();
                }
                tracing::info!(disk, stage = name, took = ?(time::now() - now), "a stage of the reset is done");
                if stage == Stage::Process {
                    return;
                }
            }
        }
    }
}
