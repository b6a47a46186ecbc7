//! The staged reset in virtual time: for each stage a fault that only this stage cures, what is repeated and what never is.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bdev::file::{FileDevice, FileOptions};
use bdev::memory::MemoryDevice;
use bdev::reset::{ResetChannel, ResetMeasures, Resetting, Source};
use bdev::{BlockDevice, Channel, ChannelExt, Data, IoError, OpenError, Operation, Request};
use foundation::{BlockCount, ByteCount, Lba};
use reactor::sim::Simulation;
use reactor::{BufferPool, Config, spawn, time};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const LIMIT: Duration = Duration::from_secs(1);

/// What a request waits for once the fault is there: for ever, if nothing comes that cures it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Requests of the queue that was there stand; they can be cancelled.
    Queue,
    /// Whatever goes through the open device stands, by whichever queue.
    Device,
    /// Everything stands until the driver is reset.
    Driver,
    /// Everything stands.
    Process,
}

struct World {
    memory: Arc<MemoryDevice>,
    fault: Cell<Fault>,
    queues: Cell<u32>,
    opens: Cell<u32>,
    driver_resets: Cell<u32>,
    /// When the fault came: so many queues and opens there had been.
    struck: Cell<(u32, u32)>,
    /// How long the device takes for what does not stand.
    takes: Cell<Duration>,
    /// Writes that reached the device.
    landed: RefCell<Vec<u64>>,
}

struct Below(Rc<World>);

struct Queue {
    world: Rc<World>,
    number: u32,
    open: u32,
    inner: Rc<dyn Channel>,
    held: Rc<RefCell<Vec<Request>>>,
}

impl Source for Below {
    fn open_queue(&self) -> Result<Rc<dyn Channel>, OpenError> {
        let world = self.0.clone();
        world.queues.set(world.queues.get() + 1);
        let (number, open) = (world.queues.get(), world.opens.get());
        let inner = world.memory.open_channel()?;
        let held = Rc::default();
        Ok(Rc::new(Queue {
            world,
            number,
            open,
            inner,
            held,
        }))
    }

    fn reopen(&self) -> Result<(), String> {
        self.0.opens.set(self.0.opens.get() + 1);
        Ok(())
    }

    fn reset_driver(&self) -> Resetting {
        let world = self.0.clone();
        Box::pin(async move {
            world.driver_resets.set(world.driver_resets.get() + 1);
            match world.fault.get() {
                Fault::Driver => {
                    world.fault.set(Fault::None);
                    Ok(())
                }
                Fault::Process => Err("this disk has no driver of its own".to_owned()),
                _ => Ok(()),
            }
        })
    }
}

impl Queue {
    fn stands(&self) -> bool {
        let (queues, opens) = self.world.struck.get();
        match self.world.fault.get() {
            Fault::None => false,
            Fault::Queue => self.number <= queues,
            Fault::Device => self.open <= opens,
            Fault::Driver | Fault::Process => true,
        }
    }

    fn pass(&self, request: Request) {
        if matches!(request.operation, Operation::Write { .. }) {
            self.world.landed.borrow_mut().push(request.lba.0);
        }
        self.inner.submit(request);
    }
}

impl Channel for Queue {
    fn geometry(&self) -> bdev::Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        if !self.stands() {
            let takes = self.world.takes.get();
            if takes.is_zero() {
                return self.pass(request);
            }
            let inner = self.inner.clone();
            drop(spawn(async move {
                time::sleep(takes).await;
                inner.submit(request);
            }));
            return;
        }
        self.held.borrow_mut().push(request);
        let (world, held, inner) = (self.world.clone(), self.held.clone(), self.inner.clone());
        // The kernel goes on with what it has as soon as its driver does.
        drop(spawn(async move {
            while world.fault.get() != Fault::None {
                time::sleep(Duration::from_millis(10)).await;
            }
            for request in held.take() {
                if matches!(request.operation, Operation::Write { .. }) {
                    world.landed.borrow_mut().push(request.lba.0);
                }
                inner.submit(request);
            }
        }));
    }

    fn cancel(&self) {
        if self.world.fault.get() == Fault::Queue {
            for request in self.held.take() {
                request.complete(Err(IoError::Aborted));
            }
        }
    }
}

fn counts(counters: &[AtomicU64; 4]) -> Vec<u64> {
    counters
        .iter()
        .map(|counter| counter.load(Ordering::Relaxed))
        .collect()
}

/// What is logged, each as its level and the fields in their order.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Plants a fault below a channel, asks for something, and says which stages began, which cured, and whether it was answered.
fn strike(fault: Fault, write: bool) -> (Vec<u64>, Vec<u64>, bool, Vec<u64>, bool) {
    strike_measured(fault, write, Duration::ZERO, &Arc::default())
}

/// The same, with measures that outlive it, and a device that takes its time.
fn strike_measured(
    fault: Fault,
    write: bool,
    takes: Duration,
    measures: &Arc<ResetMeasures>,
) -> (Vec<u64>, Vec<u64>, bool, Vec<u64>, bool) {
    let simulation = Simulation::new(5);
    let host = simulation.add_host("node");
    let answered = Rc::new(Cell::new(false));
    let (seen, flag) = (measures.clone(), answered.clone());
    let landed = Rc::new(RefCell::new(Vec::new()));
    let landed_out = landed.clone();
    simulation.start(host, move || async move {
        let world = Rc::new(World {
            memory: Arc::new(MemoryDevice::new(4096, BlockCount(64)).unwrap()),
            fault: Cell::new(Fault::None),
            queues: Cell::default(),
            opens: Cell::default(),
            driver_resets: Cell::default(),
            struck: Cell::default(),
            takes: Cell::default(),
            landed: RefCell::default(),
        });
        let below = Rc::new(Below(world.clone()));
        let channel = ResetChannel::open("disk".to_owned(), below, LIMIT, seen).unwrap();
        let mut buffer = BufferPool::current().try_allocate(4096).unwrap();
        buffer.fill(7);
        channel.write(Lba(1), buffer.freeze()).await.unwrap();
        world.struck.set((world.queues.get(), world.opens.get()));
        world.takes.set(takes);
        world.fault.set(fault);
        if write {
            let mut buffer = BufferPool::current().try_allocate(4096).unwrap();
            buffer.fill(8);
            channel.write(Lba(2), buffer.freeze()).await.unwrap();
        } else {
            let buffer = BufferPool::current().try_allocate(4096).unwrap();
            let (result, bytes) = channel.read(Lba(1), buffer).await;
            result.unwrap();
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
        landed_out.borrow_mut().extend(world.landed.borrow().iter());
        flag.set(true);
        // For the look that sees the answer.
        time::sleep(LIMIT).await;
    });
    simulation.run_for(Duration::from_secs(20));
    let needs_process = measures.needs_process.load(Ordering::Relaxed);
    let landed = landed.borrow().clone();
    (
        counts(&measures.begun),
        counts(&measures.cured),
        answered.get(),
        landed,
        needs_process,
    )
}

#[test]
fn each_stage_cures_the_fault_that_only_it_cures() {
    assert_eq!(
        strike(Fault::Queue, false),
        (vec![1, 0, 0, 0], vec![1, 0, 0, 0], true, vec![1], false)
    );
    assert_eq!(
        strike(Fault::Device, false),
        (vec![1, 1, 0, 0], vec![0, 1, 0, 0], true, vec![1], false)
    );
    assert_eq!(
        strike(Fault::Driver, false),
        (vec![1, 1, 1, 0], vec![0, 0, 1, 0], true, vec![1], false)
    );
    let (begun, cured, answered, _, needs_process) = strike(Fault::Process, false);
    assert_eq!((begun, cured), (vec![1, 1, 1, 1], vec![0, 0, 0, 0]));
    assert!(!answered && needs_process);
}

/// How long a stage took until the disk answered again, and what the log says of it: no stage's is another one's, and none is lost.
#[test]
fn each_stage_is_timed_and_logged() {
    let names = ["queue", "device", "driver"];
    for (place, fault) in [Fault::Queue, Fault::Device, Fault::Driver]
        .into_iter()
        .enumerate()
    {
        let measures = Arc::new(ResetMeasures::default());
        let log = Arc::new(Log::default());
        tracing::subscriber::with_default(log.clone(), || {
            strike_measured(fault, false, LIMIT / 20, &measures)
        });
        let took = counts(&measures.cured_us);
        // The next look sees the answer; the next stage would have begun after the limit.
        let (looks, limit) = (LIMIT.as_micros() as u64 / 4, LIMIT.as_micros() as u64);
        assert!((looks..limit).contains(&took[place]), "{fault:?}: {took:?}");
        assert_eq!(took.iter().sum::<u64>(), took[place], "{fault:?}: {took:?}");
        let log = log.0.lock().unwrap();
        let said = |level: &str, message: &str, stage: &str| {
            let found = log.iter().filter(|line| {
                line.starts_with(level)
                    && line.contains(message)
                    && line.contains(&format!("stage=\"{stage}\""))
            });
            let lines: Vec<&String> = found.collect();
            assert!(
                lines.iter().all(|line| line.contains("disk=\"disk\"")),
                "{lines:?}"
            );
            lines
                .into_iter()
                .map(|line| line.contains("took="))
                .collect::<Vec<bool>>()
        };
        for (other, name) in names.into_iter().enumerate() {
            let begun = usize::from(other <= place);
            assert_eq!(
                said("ERROR", "it is reset", name).len(),
                begun,
                "{fault:?}: {log:?}"
            );
            assert_eq!(
                said("INFO", "a stage of the reset is done", name),
                vec![true; begun],
                "{log:?}"
            );
            let cured = usize::from(other == place);
            assert_eq!(said("WARN", "answers again", name), vec![true; cured], "{log:?}");
        }
    }
}

/// Without memory for another attempt a read goes on standing: an error would be taken for the disk's.
#[test]
fn a_read_waits_for_memory_to_be_made_again() {
    let simulation = Simulation::new(6);
    let host = simulation.add_host("node");
    let answered = Rc::new(Cell::new(false));
    let flag = answered.clone();
    simulation.start(host, move || async move {
        let world = Rc::new(World {
            memory: Arc::new(MemoryDevice::new(4096, BlockCount(64)).unwrap()),
            fault: Cell::new(Fault::None),
            queues: Cell::default(),
            opens: Cell::default(),
            driver_resets: Cell::default(),
            struck: Cell::default(),
            takes: Cell::default(),
            landed: RefCell::default(),
        });
        let below = Rc::new(Below(world.clone()));
        let measures = Arc::new(ResetMeasures::default());
        let channel = ResetChannel::open("disk".to_owned(), below, LIMIT, measures).unwrap();
        world.struck.set((world.queues.get(), world.opens.get()));
        world.fault.set(Fault::Device);
        let buffer = BufferPool::current().try_allocate(4096).unwrap();
        let reading = channel.clone();
        let read = spawn(async move { reading.read(Lba(1), buffer).await.0 });
        let mut all = Vec::new();
        for length in [1 << 20, 4096] {
            while let Ok(buffer) = BufferPool::current().try_allocate(length) {
                all.push(buffer);
            }
        }
        // Longer than all stages take.
        time::sleep(LIMIT * 8).await;
        assert!(!read.is_finished());
        world.fault.set(Fault::None);
        drop(all);
        assert_eq!(read.await, Some(Ok(())));
        flag.set(true);
    });
    simulation.run_for(Duration::from_secs(60));
    assert!(answered.get());
}

#[test]
fn a_write_is_made_again_only_when_it_has_ended() {
    // Cancelled: made again, once.
    let (begun, cured, answered, landed, _) = strike(Fault::Queue, true);
    assert_eq!(
        (begun, cured, answered),
        (vec![1, 0, 0, 0], vec![1, 0, 0, 0], true)
    );
    assert_eq!(landed, [1, 2]);
    // Not to be cancelled: the opened device gets nothing of it, so the driver is next, which does not help either.
    let (begun, cured, answered, landed, needs_process) = strike(Fault::Device, true);
    assert_eq!((begun, cured, answered), (vec![1, 1, 1, 1], vec![0; 4], false));
    assert!(landed.is_empty() && needs_process);
    // The driver goes on with the one that it has: it lands once.
    let (_, cured, answered, landed, _) = strike(Fault::Driver, true);
    assert_eq!((cured, answered, landed), (vec![0, 0, 1, 0], true, vec![1, 2]));
}

#[test]
fn a_file_that_is_opened_anew_stays_locked_until_the_last_user_of_either_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let options = FileOptions {
        create: Some(ByteCount(1 << 20)),
        ..FileOptions::default()
    };
    let opened = |path: &Path| {
        let file = std::fs::File::open(path).unwrap();
        file.try_lock().is_ok()
    };
    reactor::run(&Config::default(), async {
        let device = FileDevice::open(&path, options).unwrap();
        let before = device.open_channel().unwrap();
        assert!(!opened(&path));
        device.reopen().unwrap();
        let after = device.open_channel().unwrap();
        let mut buffer = BufferPool::current().try_allocate(4096).unwrap();
        buffer.fill(3);
        after.write(Lba(0), buffer.freeze()).await.unwrap();
        before.cancel();
        let buffer = BufferPool::current().try_allocate(4096).unwrap();
        let (result, bytes) = before.read(Lba(0), buffer).await;
        result.unwrap();
        assert_eq!(bytes[0], 3);
        assert!(FileDevice::open(&path, options).is_err());
        drop(device);
        assert!(!opened(&path), "two channels have it");
        drop(before);
        assert!(!opened(&path), "one channel has it");
        drop(after);
        // Another file under this name is not what was open.
        let device = FileDevice::open(&path, options).unwrap();
        std::fs::rename(&path, directory.path().join("away")).unwrap();
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        assert!(
            device
                .reopen()
                .unwrap_err()
                .contains("is another file or disk now")
        );
    })
    .unwrap();
}

#[test]
fn wrong_requests_are_no_failures_of_the_disk() {
    reactor::run(&Config::default(), async {
        let world = Rc::new(World {
            memory: Arc::new(MemoryDevice::new(4096, BlockCount(64)).unwrap()),
            fault: Cell::new(Fault::None),
            queues: Cell::default(),
            opens: Cell::default(),
            driver_resets: Cell::default(),
            struck: Cell::default(),
            takes: Cell::default(),
            landed: RefCell::default(),
        });
        let measures = Arc::new(ResetMeasures::default());
        let channel =
            ResetChannel::open("disk".to_owned(), Rc::new(Below(world)), LIMIT, measures.clone()).unwrap();
        channel.flush().await.unwrap();
        let completion = channel
            .execute(Operation::Read, Lba(900), BlockCount(1), Data::None, None)
            .await;
        assert!(completion.status.is_err());
        assert_eq!(
            measures.failures.load(Ordering::Relaxed),
            0,
            "the disk did nothing wrong"
        );
    })
    .unwrap();
}
