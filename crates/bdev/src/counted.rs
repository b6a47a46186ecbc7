//! A layer that counts what goes through: operations, bytes, time and failures, for each channel.
//!
//! Cost of a request: two looks at the clock, a slot of a reused store, and a dozen relaxed loads and stores of
//! counters that only this core writes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foundation::{BlockCount, Instant, Lba};
use reactor::time;

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::histogram::{Gauge, Histogram, Needle, Plan};
use crate::request::{Completion, Operation, Request, Sink, Token};

/// What one kind of operation amounts to. Only operations that succeeded are in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub operations: u64,
    /// Bytes moved or given back.
    pub bytes: u64,
    /// From submission to completion, summed, in nanoseconds.
    pub time_ns: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
    /// The shortest, in nanoseconds; 0 if there was none.
    pub shortest_ns: u64,
}

impl Tally {
    fn add(self, other: Tally) -> Tally {
        let shortest_ns = match (self.operations, other.operations) {
            (0, _) => other.shortest_ns,
            (_, 0) => self.shortest_ns,
            _ => self.shortest_ns.min(other.shortest_ns),
        };
        Tally {
            operations: self.operations + other.operations,
            bytes: self.bytes + other.bytes,
            time_ns: self.time_ns + other.time_ns,
            longest_ns: self.longest_ns.max(other.longest_ns),
            shortest_ns,
        }
    }
}

/// What has gone through a channel or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Reads.
    pub reads: Tally,
    /// Writes.
    pub writes: Tally,
    /// Deallocations.
    pub deallocations: Tally,
    /// Operations of any kind that failed.
    pub failures: u64,
}

impl Statistics {
    fn add(self, other: Statistics) -> Statistics {
        Statistics {
            reads: self.reads.add(other.reads),
            writes: self.writes.add(other.writes),
            deallocations: self.deallocations.add(other.deallocations),
            failures: self.failures + other.failures,
        }
    }
}

#[derive(Default)]
struct TallyCounters {
    operations: AtomicU64,
    bytes: AtomicU64,
    time_ns: AtomicU64,
    longest_ns: AtomicU64,
    shortest_ns: AtomicU64,
}

/// One core writes, so a load and a store make an addition.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

impl TallyCounters {
    fn count(&self, bytes: u64, took_ns: u64) {
        if took_ns > self.longest_ns.load(Ordering::Relaxed) {
            self.longest_ns.store(took_ns, Ordering::Relaxed);
        }
        let first = self.operations.load(Ordering::Relaxed) == 0;
        if first || took_ns < self.shortest_ns.load(Ordering::Relaxed) {
            self.shortest_ns.store(took_ns, Ordering::Relaxed);
        }
        bump(&self.bytes, bytes);
        bump(&self.time_ns, took_ns);
        bump(&self.operations, 1);
    }

    fn read(&self) -> Tally {
        Tally {
            operations: self.operations.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            time_ns: self.time_ns.load(Ordering::Relaxed),
            longest_ns: self.longest_ns.load(Ordering::Relaxed),
            shortest_ns: self.shortest_ns.load(Ordering::Relaxed),
        }
    }
}

#[derive(Default)]
struct Counters {
    reads: TallyCounters,
    writes: TallyCounters,
    deallocations: TallyCounters,
    failures: AtomicU64,
    gauge: Gauge,
}

impl Counters {
    fn read(&self) -> Statistics {
        Statistics {
            reads: self.reads.read(),
            writes: self.writes.read(),
            deallocations: self.deallocations.read(),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

/// Counters of the channels that are open, and the sum of those that were.
#[derive(Default)]
struct Books {
    closed: Statistics,
    open: Vec<Arc<Counters>>,
    /// What is collected now, and what closed channels have collected of it.
    histogram: Option<(Plan, Histogram)>,
}

/// See the module.
pub struct CountedDevice {
    inner: Arc<dyn BlockDevice>,
    books: Arc<Mutex<Books>>,
}

fn locked(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CountedDevice {
    /// A layer over `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self {
            inner,
            books: Arc::default(),
        }
    }

    /// All that has gone through, over all channels that are and were.
    pub fn statistics(&self) -> Statistics {
        let books = locked(&self.books);
        books
            .open
            .iter()
            .fold(books.closed, |sum, counters| sum.add(counters.read()))
    }

    /// Collects a histogram from now on, of this plan and from nothing; `None` to collect none and forget.
    pub fn collect(&self, plan: Option<Plan>) {
        let mut books = locked(&self.books);
        books.histogram = plan.map(|plan| (plan, Histogram::empty(plan.shape)));
        for counters in &books.open {
            counters.gauge.set(plan);
        }
    }

    /// How long the requests took, over all channels that are and were since [`CountedDevice::collect`], those that failed
    /// among them; `None` if nothing is collected.
    pub fn histogram(&self) -> Option<Histogram> {
        let books = locked(&self.books);
        let (_, mut histogram) = books.histogram.clone()?;
        for counters in &books.open {
            histogram.add(&counters.gauge);
        }
        Some(histogram)
    }

    /// The channels that are open, each for itself.
    pub fn by_channel(&self) -> Vec<Statistics> {
        locked(&self.books)
            .open
            .iter()
            .map(|counters| counters.read())
            .collect()
    }
}

impl BlockDevice for CountedDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        let inner = self.inner.open_channel()?;
        let counters = Arc::new(Counters::default());
        {
            let mut books = locked(&self.books);
            if let Some((plan, _)) = &books.histogram {
                counters.gauge.set(Some(*plan));
            }
            books.open.push(counters.clone());
        }
        let flights = Flights {
            counters,
            needle: Needle::default(),
            block_bytes: inner.geometry().block_bytes.into(),
            slots: RefCell::default(),
        };
        Ok(Rc::new(CountedChannel {
            inner,
            flights: Rc::new(flights),
            books: self.books.clone(),
        }))
    }
}

struct CountedChannel {
    inner: Rc<dyn Channel>,
    flights: Rc<Flights>,
    books: Arc<Mutex<Books>>,
}

impl Drop for CountedChannel {
    fn drop(&mut self) {
        let mut books = locked(&self.books);
        let own = &self.flights.counters;
        books.open.retain(|counters| !Arc::ptr_eq(counters, own));
        // What is still in flight ends uncounted.
        books.closed = books.closed.add(own.read());
        if let Some((_, histogram)) = &mut books.histogram {
            histogram.add(&own.gauge);
        }
    }
}

struct Flight {
    token: Token,
    operation: Operation,
    bytes: u64,
    begun: Instant,
}

#[derive(Default)]
struct Slots {
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
}

/// Requests that have not completed.
struct Flights {
    counters: Arc<Counters>,
    needle: Needle,
    block_bytes: u64,
    slots: RefCell<Slots>,
}

impl Flights {
    fn keep(&self, flight: Flight) -> u64 {
        let mut slots = self.slots.borrow_mut();
        let index = match slots.free.pop() {
            Some(index) => {
                slots.flights[index] = Some(flight);
                index
            }
            None => {
                slots.flights.push(Some(flight));
                slots.flights.len() - 1
            }
        };
        index as u64
    }
}

impl Sink for Flights {
    fn complete(&self, tag: u64, completion: Completion) {
        let index = tag as usize;
        let flight = {
            let mut slots = self.slots.borrow_mut();
            let flight = slots.flights[index].take();
            slots.free.push(index);
            flight.expect("a tag is that of a flight until it completes")
        };
        let took_ns = (time::now() - flight.begun).as_nanos() as u64;
        self.needle.count(&self.counters.gauge, flight.operation, took_ns);
        match (completion.status, flight.operation) {
            (Err(_), _) => bump(&self.counters.failures, 1),
            (Ok(()), Operation::Read) => self.counters.reads.count(flight.bytes, took_ns),
            (Ok(()), Operation::Write { .. }) => self.counters.writes.count(flight.bytes, took_ns),
            (Ok(()), Operation::Deallocate) => self.counters.deallocations.count(flight.bytes, took_ns),
            (Ok(()), _) => {}
        }
        flight.token.complete(completion.status, completion.data);
    }
}

impl Channel for CountedChannel {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn lends(&self) -> bool {
        self.inner.lends()
    }

    fn ends_at_once(&self) -> bool {
        self.inner.ends_at_once()
    }

    fn will_read(&self, lba: Lba, blocks: BlockCount) {
        self.inner.will_read(lba, blocks);
    }

    fn submit(&self, mut request: Request) {
        // A range that is too long fails below; what it is counted with then does not matter.
        let bytes = request.blocks.0.saturating_mul(self.flights.block_bytes);
        let tag = self.flights.keep(Flight {
            token: request.token,
            operation: request.operation,
            bytes,
            begun: time::now(),
        });
        request.token = Token::new(self.flights.clone(), tag);
        self.inner.submit(request);
    }
}
