//! A channel on a simulated disk, and ways to run something on a simulated host.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bdev::fence::TokenKeeper;
use bdev::{Channel, ChannelExt, Data, Geometry, IoError, Operation, Request};
use foundation::{BlockCount, Instant, Random};
use reactor::file::{File, OpenOptions};
use reactor::sim::disk::DiskHandle;
use reactor::sim::{Host, Simulation};
use reactor::sync::Notify;
use reactor::time;

use crate::files::NewInode;
use crate::format::page::Page;
use crate::format::superblock::Superblock;
use crate::format::{PagePointer, SUPERBLOCK_ADDRESSES};
use crate::lease::memory::{LocalLeases, READER_TERM, WRITER_TERM};
use crate::lease::{LeaseError, LeaseFuture, LeaseSource, ReaderLease, WriterLease, usable};
use crate::{
    CopyRound, CopySelector, FormatOptions, InodeNumber, Medium, Parameters, ReaderFloor, Timestamp,
    WriterOptions,
};

pub(super) const VOLUME_BYTES: u64 = 8 << 20;
pub(super) const ROOT: InodeNumber = InodeNumber::ROOT;
/// What scenarios make, and when, where it does not matter.
pub(super) const NEW: NewInode = NewInode {
    mode: 0o644,
    uid: 1,
    gid: 2,
};
pub(super) const NOW: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanoseconds: 1,
};

/// A simulated file as a block device of 4 KiB blocks with a volatile write cache.
struct FileChannel {
    file: File,
    blocks: u64,
}

impl Channel for FileChannel {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_bytes: 4096,
            blocks: BlockCount(self.blocks),
            metadata_bytes: 0,
            boundary_blocks: 0,
            write_cache: true,
        }
    }

    fn submit(&self, mut request: Request) {
        let file = self.file.clone();
        let offset = self.geometry().offset_bytes(request.lba);
        drop(reactor::spawn(async move {
            let status = match (request.operation, std::mem::take(&mut request.data)) {
                (Operation::Read, Data::Into(buffer)) => {
                    let (status, buffer) = file.read_at(buffer, offset).await;
                    request.data = Data::Into(buffer);
                    status
                }
                (Operation::Write { fua }, Data::From(buffer)) => match file.write_at(buffer, offset).await {
                    Ok(()) if fua => file.sync_data().await,
                    status => status,
                },
                (Operation::Flush, _) => file.sync_data().await,
                _ => panic!("PackFS uses reads, writes and flushes only"),
            };
            request.complete(status.map_err(|error| IoError::from(&error)));
        }));
    }
}

pub(super) const DISK: &str = "/disk";

/// The host's disk as a medium. Call it in a task of the host.
pub(crate) fn medium() -> Medium {
    sized_medium(VOLUME_BYTES)
}

pub(super) fn sized_medium(bytes: u64) -> Medium {
    raw(bytes).on(|file| TokenKeeper::new().over(file))
}

/// The host's disk as a medium that keeps no writer's token.
pub(super) fn raw_medium() -> Medium {
    raw(VOLUME_BYTES)
}

pub(super) fn raw(bytes: u64) -> Medium {
    let options = OpenOptions {
        write: true,
        create: true,
        direct: true,
    };
    let file = File::open(Path::new(DISK), options).unwrap();
    file.set_length_bytes(bytes).unwrap();
    let blocks = bytes / 4096;
    Medium::new(Rc::new(FileChannel { file, blocks }))
}

/// A volume that others let grow; a host sees it when it asks.
#[derive(Clone)]
pub(super) struct Growth {
    blocks: Rc<Cell<u64>>,
    seen: Rc<Cell<u64>>,
}

impl Growth {
    pub(super) fn to(&self, bytes: u64) {
        self.blocks.set(bytes / 4096);
    }
}

struct GrowingChannel {
    inner: Rc<dyn Channel>,
    growth: Growth,
}

impl Channel for GrowingChannel {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: BlockCount(self.growth.seen.get()),
            ..self.inner.geometry()
        }
    }

    fn submit(&self, request: Request) {
        self.inner.submit(request);
    }

    fn look_for_growth(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let growth = self.growth.clone();
        Box::pin(async move { growth.seen.set(growth.blocks.get()) })
    }
}

/// The host's disk of `bytes`, of which the volume has `now` bytes at first.
pub(super) fn growing_medium(now: u64, bytes: u64) -> (Medium, Growth) {
    let growth = Growth {
        blocks: Rc::new(Cell::new(now / 4096)),
        seen: Rc::new(Cell::new(now / 4096)),
    };
    let own = growth.clone();
    let medium = sized_medium(bytes).on(|inner| Rc::new(GrowingChannel { inner, growth }));
    (medium, own)
}

/// Reads of some bytes of a device, by where these begin and end, fail.
#[derive(Clone, Default)]
pub(super) struct Faults(Rc<RefCell<Vec<Fault>>>);

type Fault = (Range<u64>, IoError);

impl Faults {
    /// A medium on which they are.
    pub(super) fn on(&self, medium: &Medium) -> Medium {
        let faults = self.clone();
        medium.on(|inner| Rc::new(FaultyChannel { inner, faults }))
    }

    pub(super) fn add(&self, range: Range<u64>, error: IoError) {
        self.0.borrow_mut().push((range, error));
    }

    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    pub(super) fn are_none(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

struct FaultyChannel {
    inner: Rc<dyn Channel>,
    faults: Faults,
}

impl Channel for FaultyChannel {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        let block = u64::from(self.geometry().block_bytes);
        let (start, end) = (request.lba.0 * block, (request.lba.0 + request.blocks.0) * block);
        let mut faults = self.faults.0.borrow_mut();
        match request.operation {
            Operation::Read => {
                let found = faults
                    .iter()
                    .find(|(range, _)| start < range.end && range.start < end);
                if let Some((_, error)) = found {
                    let error = *error;
                    drop(faults);
                    return request.complete(Err(error));
                }
            }
            // What is written anew can be read again.
            Operation::Write { .. } => {
                faults.retain(|(range, _)| range.start < start || range.end > end);
            }
            _ => {}
        }
        drop(faults);
        self.inner.submit(request);
    }
}

/// A second copy behind a channel, which is asked after the first, and whether it answers for all there are.
#[derive(Clone)]
pub(super) struct Second {
    channel: Rc<dyn Channel>,
    has_heard_all: Rc<Cell<bool>>,
}

impl Second {
    pub(super) fn new(channel: Rc<dyn Channel>) -> Self {
        Self {
            channel,
            has_heard_all: Rc::new(Cell::new(true)),
        }
    }

    /// The volume that `medium` is, with a second copy of it that is the same but for faults of its own.
    pub(super) fn beside(medium: &Medium, faults: &Faults) -> Self {
        let mut channel = None;
        faults.on(medium).on(|inner| {
            channel = Some(inner.clone());
            inner
        });
        Self::new(channel.expect("a layer is put over the channel"))
    }

    /// From now on a copy that cannot answer is passed over, or none is.
    pub(super) fn passes_over(&self, passes: bool) {
        self.has_heard_all.set(!passes);
    }
}

impl CopySelector for Second {
    fn begin(&self) -> Box<dyn CopyRound> {
        Box::new(self.clone())
    }
}

impl CopyRound for Second {
    fn channel(&self, attempt: u32) -> Option<Rc<dyn Channel>> {
        (attempt == 1).then(|| self.channel.clone())
    }

    fn has_heard_all(&self) -> Pin<Box<dyn Future<Output = bool>>> {
        Box::pin(std::future::ready(self.has_heard_all.get()))
    }
}

/// Leases that nobody else asks for.
pub(super) fn leases() -> Rc<dyn LeaseSource> {
    Rc::new(LocalLeases::new())
}

pub(super) fn small() -> FormatOptions {
    FormatOptions {
        parameters: Parameters {
            stripe_unit_bytes: 16 << 10,
            segment_bytes: 64 << 10,
            extent_bytes_max: 16 << 10,
        },
        ..FormatOptions::default()
    }
}

pub(super) fn writer_options() -> WriterOptions {
    WriterOptions {
        holder: "the test's writer".to_owned(),
        cache_bytes: 256 << 10,
        writes_in_flight: 3,
        ..WriterOptions::default()
    }
}

/// Runs a task on the host until it ends or the host loses power; gives what it returned.
pub(crate) fn on_host<T: 'static, F: Future<Output = T> + 'static>(
    simulation: &Simulation,
    host: Host,
    make: impl FnOnce() -> F + 'static,
) -> Option<T> {
    let place: Rc<RefCell<Option<T>>> = Rc::default();
    let result = place.clone();
    simulation.start(host, move || async move {
        let value = make().await;
        *result.borrow_mut() = Some(value);
    });
    loop {
        if let Some(value) = place.borrow_mut().take() {
            return Some(value);
        }
        if !simulation.is_powered(host) {
            return None;
        }
        simulation.run_for(std::time::Duration::from_millis(1));
    }
}

/// A simulated world with one host.
pub(crate) fn world(seed: u64) -> (Simulation, Host) {
    let simulation = Simulation::new(seed);
    let host = simulation.add_host("writer");
    (simulation, host)
}

/// Something that can be stopped: what comes by waits until it goes on.
#[derive(Clone)]
pub(super) struct Gate(Rc<GateState>);

struct GateState {
    open: Cell<bool>,
    /// It closes before the one that makes this 0.
    left: Cell<u64>,
    changed: Notify,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self(Rc::new(GateState {
            open: Cell::new(true),
            left: Cell::new(u64::MAX),
            changed: Notify::new(),
        }))
    }

    pub(super) fn close(&self) {
        self.0.open.set(false);
    }

    /// Closes when so many have come by.
    pub(super) fn close_after(&self, count: u64) {
        self.0.left.set(count + 1);
    }

    pub(super) fn open(&self) {
        self.0.left.set(u64::MAX);
        self.0.open.set(true);
        self.0.changed.notify();
    }

    async fn pass(&self) {
        let left = self.0.left.get().saturating_sub(1);
        self.0.left.set(left);
        if left == 0 {
            self.close();
        }
        self.0.changed.until(|| self.0.open.get()).await;
    }
}

/// Requests, and their completions, wait at a gate.
pub(super) struct GatedChannel {
    inner: Rc<dyn Channel>,
    gate: Gate,
}

impl GatedChannel {
    pub(super) fn new(inner: Rc<dyn Channel>, gate: Gate) -> Self {
        Self { inner, gate }
    }
}

impl Channel for GatedChannel {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        let (inner, gate) = (self.inner.clone(), self.gate.clone());
        drop(reactor::spawn(async move {
            let Request {
                operation,
                lba,
                blocks,
                data,
                fence,
                token,
                ..
            } = request;
            gate.pass().await;
            let completion = inner.execute(operation, lba, blocks, data, fence).await;
            gate.pass().await;
            token.complete(completion.status, completion.data);
        }));
    }
}

/// What a holder of leases makes of its clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// How much faster than the masters' it runs, in millionths.
    pub(super) rate_ppm: i64,
    pub(super) bug: ClockBug,
}

/// A planted mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ClockBug {
    #[default]
    None,
    /// All of a term is used, as if rates were equal.
    IgnoresRates,
    /// A term begins when the answer is here.
    CountsFromAnswer,
}

impl Clock {
    /// One within the bounds: at them, or between.
    pub(super) fn random(random: &mut Random) -> Self {
        const BOUND_PPM: i64 = 10_000;
        let rate_ppm = match random.below(3) {
            0 => -BOUND_PPM,
            1 => BOUND_PPM,
            _ => random.below(2 * BOUND_PPM as u64) as i64 - BOUND_PPM,
        };
        let bug = ClockBug::None;
        Self { rate_ppm, bug }
    }

    /// When the holder believes that a term ends, as the masters' clock has it.
    fn end(self, asked: Instant, answered: Instant, term: Duration) -> Instant {
        let from = match self.bug {
            ClockBug::CountsFromAnswer => answered,
            _ => asked,
        };
        let used = match self.bug {
            ClockBug::IgnoresRates => term,
            _ => usable(term),
        };
        let nanos = used.as_nanos() * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm)) as u128;
        from + Duration::from_nanos(nanos as u64)
    }
}

/// Leases whose keeper cannot be reached while a gate is closed, held as a client of masters does: they count a term by their clock from when they
/// grant it, the holder by its own from before it asked.
pub(super) struct GatedLeases {
    leases: Rc<dyn LeaseSource>,
    gate: Gate,
    clock: Clock,
    /// They say nothing between renewals.
    is_reticent: bool,
}

impl GatedLeases {
    pub(super) fn new(leases: Rc<dyn LeaseSource>, gate: Gate) -> Self {
        Self::with_clock(leases, gate, Clock::default())
    }

    pub(super) fn with_clock(leases: Rc<dyn LeaseSource>, gate: Gate, clock: Clock) -> Self {
        Self {
            leases,
            gate,
            clock,
            is_reticent: false,
        }
    }

    /// As masters of a release before.
    pub(super) fn reticent(self) -> Self {
        Self {
            is_reticent: true,
            ..self
        }
    }

    fn writers<'a>(&'a self, answer: LeaseFuture<'a, WriterLease>) -> LeaseFuture<'a, WriterLease> {
        Box::pin(async move {
            let asked = time::now();
            let lease = self.gated(answer).await?;
            let until = self.clock.end(asked, time::now(), WRITER_TERM);
            Ok(WriterLease { until, ..lease })
        })
    }

    fn readers<'a>(&'a self, answer: LeaseFuture<'a, ReaderLease>) -> LeaseFuture<'a, ReaderLease> {
        Box::pin(async move {
            let asked = time::now();
            let lease = self.gated(answer).await?;
            let until = self.clock.end(asked, time::now(), READER_TERM);
            Ok(ReaderLease { until, ..lease })
        })
    }

    fn gated<'a, T: 'a>(&'a self, answer: LeaseFuture<'a, T>) -> LeaseFuture<'a, T> {
        Box::pin(async move {
            self.gate.pass().await;
            let answer = answer.await;
            self.gate.pass().await;
            answer
        })
    }
}

impl LeaseSource for GatedLeases {
    fn acquire_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        self.writers(self.leases.acquire_writer(holder))
    }

    fn take_over_writer<'a>(&'a self, holder: &'a str) -> LeaseFuture<'a, WriterLease> {
        self.writers(self.leases.take_over_writer(holder))
    }

    fn wanted_by(&self) -> Option<String> {
        self.leases.wanted_by()
    }

    fn await_wanted(&self, token: u64) -> LeaseFuture<'_, ()> {
        match self.is_reticent {
            true => Box::pin(async { Err(LeaseError::Ended) }),
            false => self.gated(self.leases.await_wanted(token)),
        }
    }

    fn renew_writer(&self, token: u64) -> LeaseFuture<'_, WriterLease> {
        self.writers(self.leases.renew_writer(token))
    }

    fn release_writer(&self, token: u64) -> LeaseFuture<'_, ()> {
        self.gated(self.leases.release_writer(token))
    }

    fn acquire_reader(&self, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        self.readers(self.leases.acquire_reader(generation))
    }

    fn renew_reader(&self, id: u64, generation: u64) -> LeaseFuture<'_, ReaderLease> {
        self.readers(self.leases.renew_reader(id, generation))
    }

    fn release_reader(&self, id: u64) -> LeaseFuture<'_, ()> {
        self.gated(self.leases.release_reader(id))
    }

    fn reader_floor(&self, token: u64) -> LeaseFuture<'_, ReaderFloor> {
        self.gated(self.leases.reader_floor(token))
    }
}

/// The superblock that counts, as it stands on a disk.
pub(super) fn superblock_of(disk: &DiskHandle) -> Superblock {
    let found = SUPERBLOCK_ADDRESSES.map(|address| Superblock::decode(&disk.read(address, 4096), address));
    let newest = found
        .into_iter()
        .flatten()
        .max_by_key(|superblock| superblock.generation);
    newest.expect("a volume has a superblock")
}

/// The pages from the root to the leaf where a key stands or would stand.
pub(super) fn way_to(disk: &DiskHandle, key: &[u8]) -> Vec<PagePointer> {
    let mut pointer = superblock_of(disk).root;
    let mut way = Vec::new();
    loop {
        way.push(pointer);
        let page = Page::parse(&disk.read(pointer.address(), 4096), pointer).expect("the page is whole");
        if page.level() == 0 {
            return way;
        }
        pointer = page.child(page.child_index(key));
    }
}

/// Makes a page unreadable.
pub(super) fn spoil(disk: &DiskHandle, pointer: PagePointer) {
    disk.damage(pointer.address() + 40, &[0x5a; 16]);
}
