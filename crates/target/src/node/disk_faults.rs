//! Faults of a disk for tests of whole processes, each of which one stage of the reset cures and no earlier one. A node without the
//! switch ([`super::DiskCare::faults`]) has none of this in its way.
//!
//! A file beside the tests' other files says what is wrong, and is read again fifty times a second: `queue`, `device`, `driver`,
//! `process` (all requests stand until that is reset), `disk` (until the file says otherwise), `slow N` (each request takes N
//! milliseconds more), or nothing. A fault that is there when the process starts is one of the life before, but for `disk`
//! and `slow`.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::{Channel, Geometry, IoError, Request};
use reactor::{spawn, time};

const LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Queue,
    Device,
    Driver,
    Process,
    Disk,
    Slow(u64),
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        Some(match words.next()? {
            "queue" => Kind::Queue,
            "device" => Kind::Device,
            "driver" => Kind::Driver,
            "process" => Kind::Process,
            "disk" => Kind::Disk,
            "slow" => Kind::Slow(words.next()?.parse().ok()?),
            _ => return None,
        })
    }
}

/// What is wrong with one disk.
pub(super) struct DiskFaults {
    file: PathBuf,
    kind: Cell<Option<Kind>>,
    queues: Cell<u64>,
    opens: Cell<u64>,
    /// How many queues and opens there had been when the fault came.
    struck: Cell<(u64, u64)>,
    /// The driver was reset since.
    is_driver_reset: Cell<bool>,
}

impl DiskFaults {
    pub(super) fn read(directory: &Path, disk: &Path) -> Rc<Self> {
        let name = disk.file_name().unwrap_or_default().to_string_lossy();
        let file = directory.join(format!("{name}.fault"));
        tracing::warn!(file = %file.display(), "faults of a disk are planted by a test");
        let faults = Rc::new(Self {
            file,
            kind: Cell::new(None),
            queues: Cell::new(0),
            opens: Cell::new(0),
            struck: Cell::new((0, 0)),
            is_driver_reset: Cell::new(false),
        });
        let now = faults.now();
        let lasts = |kind: &Kind| matches!(kind, Kind::Disk | Kind::Slow(_));
        faults.kind.set(now.filter(lasts));
        drop(spawn(follow(Rc::downgrade(&faults), now)));
        faults
    }

    fn now(&self) -> Option<Kind> {
        Kind::parse(&std::fs::read_to_string(&self.file).unwrap_or_default())
    }

    pub(super) fn reopened(&self) {
        self.opens.set(self.opens.get() + 1);
    }

    pub(super) fn reset_driver(&self) -> Result<(), String> {
        self.is_driver_reset.set(true);
        match self.kind.get() {
            Some(Kind::Process | Kind::Disk) => Err("there is no driver to reset".to_owned()),
            _ => Ok(()),
        }
    }

    fn stands(&self, queue: u64, open: u64) -> bool {
        let (queues, opens) = self.struck.get();
        match self.kind.get() {
            None | Some(Kind::Slow(_)) => false,
            Some(Kind::Queue) => queue <= queues,
            Some(Kind::Device) => open <= opens,
            Some(Kind::Driver) => !self.is_driver_reset.get(),
            Some(Kind::Process | Kind::Disk) => true,
        }
    }
}

async fn follow(weak: Weak<DiskFaults>, mut before: Option<Kind>) {
    loop {
        time::sleep(LOOK).await;
        let Some(faults) = weak.upgrade() else { return };
        let now = faults.now();
        if std::mem::replace(&mut before, now) != now {
            tracing::warn!(file = %faults.file.display(), ?now, "what is wrong with a disk has changed");
            faults.struck.set((faults.queues.get(), faults.opens.get()));
            faults.is_driver_reset.set(false);
            faults.kind.set(now);
        }
    }
}

/// One way to such a disk.
pub(super) struct FaultyQueue {
    faults: Rc<DiskFaults>,
    queue: u64,
    open: u64,
    inner: Rc<dyn Channel>,
    held: Rc<RefCell<Vec<Request>>>,
}

impl FaultyQueue {
    pub(super) fn new(faults: Rc<DiskFaults>, inner: Rc<dyn Channel>) -> Self {
        faults.queues.set(faults.queues.get() + 1);
        let (queue, open) = (faults.queues.get(), faults.opens.get());
        let held = Rc::default();
        Self {
            faults,
            queue,
            open,
            inner,
            held,
        }
    }
}

impl Channel for FaultyQueue {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        let inner = self.inner.clone();
        if let Some(Kind::Slow(ms)) = self.faults.kind.get() {
            return drop(spawn(async move {
                time::sleep(Duration::from_millis(ms)).await;
                inner.submit(request);
            }));
        }
        if !self.faults.stands(self.queue, self.open) {
            return self.inner.submit(request);
        }
        self.held.borrow_mut().push(request);
        let (faults, held) = (self.faults.clone(), self.held.clone());
        let (queue, open) = (self.queue, self.open);
        drop(spawn(async move {
            while faults.stands(queue, open) {
                time::sleep(LOOK).await;
            }
            for request in held.take() {
                inner.submit(request);
            }
        }));
    }

    fn cancel(&self) {
        if self.faults.kind.get() == Some(Kind::Queue) {
            for request in self.held.take() {
                request.complete(Err(IoError::Aborted));
            }
        }
    }
}
