//! A layer that holds requests back, so that no more operations or bytes a second go through than was allowed.
//!
//! Each limit keeps the instant at which its budget is used up. A request moves that instant on by what it costs and
//! begins when it has come, so requests begin in their order and none is refused. Limits hold for all channels
//! together. Without limits a request costs one load.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use reactor::time;

use foundation::{BlockCount, Lba};

use crate::device::{BlockDevice, Channel, Geometry, OpenError};
use crate::request::{Operation, Request};

/// What may be used at once after a pause. Also what a request may begin too early, so that timers need not be exact.
const BURST_NS: u64 = 1_000_000;

/// Limits a second; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Reads and writes together.
    pub operations: u64,
    /// Bytes of reads and writes together.
    pub bytes: u64,
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Bytes of writes.
    pub write_bytes: u64,
}

/// One limit.
#[derive(Default)]
struct Limit {
    per_second: AtomicU64,
    /// When what was allowed is used up, on the host's clock.
    used_until_ns: AtomicU64,
}

impl Limit {
    fn set(&self, per_second: u64) {
        self.per_second.store(per_second, Ordering::Relaxed);
        self.used_until_ns.store(0, Ordering::Relaxed);
    }

    /// Uses `cost`; when the request may begin.
    fn use_up(&self, cost: u64, now_ns: u64) -> u64 {
        let per_second = self.per_second.load(Ordering::Relaxed);
        if per_second == 0 {
            return 0;
        }
        let cost_ns = u128::from(cost) * 1_000_000_000 / u128::from(per_second);
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX);
        let mut begin_ns = 0;
        // The closure always gives a value, so the update succeeds.
        let _ = self
            .used_until_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until_ns| {
                begin_ns = until_ns.max(now_ns.saturating_sub(BURST_NS));
                Some(begin_ns.saturating_add(cost_ns))
            });
        begin_ns
    }
}

/// Limits that may be changed while requests run; those that were already held back keep their turn.
#[derive(Default)]
pub struct Limits {
    any: AtomicBool,
    operations: Limit,
    bytes: Limit,
    read_bytes: Limit,
    write_bytes: Limit,
}

impl Limits {
    /// Sets all.
    pub fn set(&self, rates: Rates) {
        self.operations.set(rates.operations);
        self.bytes.set(rates.bytes);
        self.read_bytes.set(rates.read_bytes);
        self.write_bytes.set(rates.write_bytes);
        self.any.store(rates != Rates::default(), Ordering::Release);
    }

    /// The limits as they are.
    pub fn rates(&self) -> Rates {
        let of = |limit: &Limit| limit.per_second.load(Ordering::Relaxed);
        Rates {
            operations: of(&self.operations),
            bytes: of(&self.bytes),
            read_bytes: of(&self.read_bytes),
            write_bytes: of(&self.write_bytes),
        }
    }

    /// How long a request has to wait before it begins.
    fn wait(&self, operation: Operation, bytes: u64) -> Duration {
        let direction = match operation {
            Operation::Read => &self.read_bytes,
            Operation::Write { .. } => &self.write_bytes,
            _ => return Duration::ZERO,
        };
        let now_ns = time::now().as_nanos();
        let begin_ns = self
            .operations
            .use_up(1, now_ns)
            .max(self.bytes.use_up(bytes, now_ns))
            .max(direction.use_up(bytes, now_ns));
        Duration::from_nanos(begin_ns.saturating_sub(now_ns))
    }
}

/// See the module.
pub struct ThrottleDevice {
    inner: Arc<dyn BlockDevice>,
    limits: Arc<Limits>,
}

impl ThrottleDevice {
    /// A layer over `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, limits: Arc<Limits>) -> Self {
        Self { inner, limits }
    }
}

impl BlockDevice for ThrottleDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        Ok(Rc::new(ThrottleChannel {
            inner: self.inner.open_channel()?,
            limits: self.limits.clone(),
        }))
    }
}

struct ThrottleChannel {
    inner: Rc<dyn Channel>,
    limits: Arc<Limits>,
}

impl Channel for ThrottleChannel {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn lends(&self) -> bool {
        // What a read moves is counted by its buffer.
        !self.limits.any.load(Ordering::Acquire) && self.inner.lends()
    }

    fn ends_at_once(&self) -> bool {
        !self.limits.any.load(Ordering::Acquire) && self.inner.ends_at_once()
    }

    fn will_read(&self, lba: Lba, blocks: BlockCount) {
        self.inner.will_read(lba, blocks);
    }

    fn submit(&self, request: Request) {
        if !self.limits.any.load(Ordering::Acquire) {
            return self.inner.submit(request);
        }
        let wait = self
            .limits
            .wait(request.operation, request.data.length_bytes() as u64);
        if wait.is_zero() {
            return self.inner.submit(request);
        }
        let inner = self.inner.clone();
        drop(reactor::spawn(async move {
            time::sleep(wait).await;
            inner.submit(request);
        }));
    }
}
