//! A layer that makes a device slower, for tests and for trying what slow disks do to a volume.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foundation::{BlockCount, Lba, Random};

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::request::{Operation, Request};

/// Delays that may be changed while requests run.
#[derive(Default)]
pub struct Delays {
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    read_p99_ns: AtomicU64,
    write_p99_ns: AtomicU64,
    jitter_ns: AtomicU64,
}

impl Delays {
    /// One read of a hundred, chosen at random, gets this delay instead; zero for none.
    pub fn set_read_p99(&self, delay: Duration) {
        self.read_p99_ns.store(nanos(delay), Ordering::Relaxed);
    }

    /// The same for everything else.
    pub fn set_write_p99(&self, delay: Duration) {
        self.write_p99_ns.store(nanos(delay), Ordering::Relaxed);
    }

    /// Delay before each read begins.
    pub fn set_read(&self, delay: Duration) {
        self.read_ns.store(nanos(delay), Ordering::Relaxed);
    }

    /// Delay before everything else begins.
    pub fn set_write(&self, delay: Duration) {
        self.write_ns.store(nanos(delay), Ordering::Relaxed);
    }

    /// Added to each delay: a random part of this.
    pub fn set_jitter(&self, jitter: Duration) {
        self.jitter_ns.store(nanos(jitter), Ordering::Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// See the module.
pub struct DelayDevice {
    inner: Arc<dyn BlockDevice>,
    delays: Arc<Delays>,
    random: Arc<Mutex<Random>>,
}

impl DelayDevice {
    /// A layer over `inner`; the jitter follows from `seed`.
    pub fn new(inner: Arc<dyn BlockDevice>, delays: Arc<Delays>, seed: u64) -> Self {
        Self {
            inner,
            delays,
            random: Arc::new(Mutex::new(Random::from_seed(seed))),
        }
    }
}

impl BlockDevice for DelayDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        let inner = self.inner.open_channel()?;
        Ok(Rc::new(DelayChannel {
            inner,
            delays: self.delays.clone(),
            random: self.random.clone(),
        }))
    }
}

struct DelayChannel {
    inner: Rc<dyn Channel>,
    delays: Arc<Delays>,
    random: Arc<Mutex<Random>>,
}

impl Channel for DelayChannel {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn will_read(&self, lba: Lba, blocks: BlockCount) {
        self.inner.will_read(lba, blocks);
    }

    fn submit(&self, request: Request) {
        let (usual, p99) = match request.operation {
            Operation::Read | Operation::Compare => (&self.delays.read_ns, &self.delays.read_p99_ns),
            _ => (&self.delays.write_ns, &self.delays.write_p99_ns),
        };
        let mut delay_ns = usual.load(Ordering::Relaxed);
        let p99_ns = p99.load(Ordering::Relaxed);
        let jitter_ns = self.delays.jitter_ns.load(Ordering::Relaxed);
        if p99_ns > 0 || jitter_ns > 0 {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            if p99_ns > 0 && random.chance(1, 100) {
                delay_ns = p99_ns;
            }
            if jitter_ns > 0 {
                delay_ns += random.below(jitter_ns);
            }
        }
        if delay_ns == 0 {
            return self.inner.submit(request);
        }
        let inner = self.inner.clone();
        drop(reactor::spawn(async move {
            reactor::time::sleep(Duration::from_nanos(delay_ns)).await;
            inner.submit(request);
        }));
    }
}
