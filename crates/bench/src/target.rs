//! Load on an NVMe/TCP target through our initiator: a fixed number of commands in flight, each answered one replaced
//! at once, without a task or an allocation per command.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::memory::MemoryDevice;
use bdev::null::NullDevice;
use bdev::{
    BlockDevice, Channel, Completion, Data, IoError, OpenError, Operation, Request, Sink, Token, TraceId,
};
use fabrics::initiator::{ConnectError, ConnectOptions, Controller};
use fabrics::target::{
    Hosts, Namespace, NamespaceError, Options, ServeError, Server, Subsystem, Target, serve,
};
use foundation::{BlockCount, Instant, Lba, Random};
use protocols::nvme::Nqn;
use reactor::sync::Notify;
use reactor::{Buffer, BufferMut, BufferPool, CoreHandle, spawn, time};

use crate::latency::Latencies;

/// Caches, windows and pools settle for so long before anything counts.
const WARM_UP: Duration = Duration::from_millis(30);
/// Most commands in flight on one connection.
pub const DEPTH_MAX: usize = 1000;

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Where and as whom to connect.
    pub connect: ConnectOptions,
    /// The namespace's number.
    pub nsid: u32,
    /// Share of reads; the others are writes.
    pub read_percent: u64,
    /// Length of each request, in bytes; a multiple of the namespace's block.
    pub request_bytes: u32,
    /// Connections (I/O queues).
    pub connections: usize,
    /// Commands in flight on each, at most [`DEPTH_MAX`].
    pub depth: usize,
    /// How many requests begin each second, on all connections together, whether or not earlier ones are answered; as many
    /// as are answered if there is none. A request's latency counts from when it should have begun.
    pub rate: Option<f64>,
    /// How long to measure.
    pub duration: Duration,
}

/// What a load run saw.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Measured {
    /// Commands completed per second.
    pub requests_per_second: f64,
    /// Median latency in microseconds.
    pub p50_us: u64,
    /// 99th percentile in microseconds.
    pub p99_us: u64,
    /// Commands completed in all, warm-up included: what processor time is divided by.
    pub operations: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No association.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The request does not fit the namespace.
    #[error(
        "requests of {request_bytes} bytes do not fit namespace {nsid}, which has {blocks} blocks of {block_bytes} bytes: \
         choose a multiple of the block, at most 1 MiB"
    )]
    Shape {
        /// Length of a request, in bytes.
        request_bytes: u32,
        /// The namespace.
        nsid: u32,
        /// Its size in blocks.
        blocks: u64,
        /// Its block, in bytes.
        block_bytes: u32,
    },
    /// A command failed.
    #[error("a command to {address} failed: {source}; see the target's log")]
    Command {
        /// The target.
        address: SocketAddr,
        /// How.
        source: IoError,
    },
}

struct Shared {
    latencies: RefCell<Latencies>,
    measuring: Cell<bool>,
    stop: Cell<bool>,
    failure: Cell<Option<IoError>>,
    operations: Cell<u64>,
    in_flight: Cell<usize>,
    idle: Notify,
    /// With a rate: lanes that wait for their time, as connection and lane.
    free: Option<RefCell<VecDeque<(usize, usize)>>>,
}

/// One command in flight after the other.
struct Lane {
    started: Instant,
    buffer: Option<BufferMut>,
}

/// One connection's commands.
struct Connection {
    own: std::rc::Weak<Connection>,
    number: usize,
    channel: Rc<dyn Channel>,
    shared: Rc<Shared>,
    lanes: RefCell<Vec<Lane>>,
    random: RefCell<Random>,
    written: Buffer,
    blocks: BlockCount,
    places: u64,
    read_percent: u64,
}

impl Connection {
    fn submit(&self, index: usize, now: Instant) {
        let (place, is_read) = {
            let mut random = self.random.borrow_mut();
            let place = random.below(self.places);
            (
                place,
                self.read_percent >= 100 || random.below(100) < self.read_percent,
            )
        };
        let (operation, data) = {
            let mut lanes = self.lanes.borrow_mut();
            let lane = &mut lanes[index];
            lane.started = now;
            if is_read {
                let buffer = lane
                    .buffer
                    .take()
                    .expect("a lane has its buffer between commands");
                (Operation::Read, Data::Into(buffer))
            } else {
                (Operation::Write { fua: false }, Data::From(self.written.clone()))
            }
        };
        let own = self.own.upgrade().expect("the connection lives while it submits");
        self.channel.submit(Request {
            operation,
            lba: Lba(place * self.blocks.0),
            blocks: self.blocks,
            data,
            metadata: None,
            fence: None,
            trace: TraceId::default(),
            token: Token::new(own, index as u64),
        });
    }
}

impl Sink for Connection {
    fn complete(&self, tag: u64, completion: Completion) {
        let shared = &self.shared;
        let now = time::now();
        let index = usize::try_from(tag).expect("tags are lanes");
        {
            let lane = &mut self.lanes.borrow_mut()[index];
            if let Data::Into(buffer) = completion.data {
                lane.buffer = Some(buffer);
            }
            if shared.measuring.get() {
                shared.latencies.borrow_mut().add(now - lane.started);
            }
        }
        shared.operations.set(shared.operations.get() + 1);
        if let Err(error) = completion.status {
            shared.failure.set(Some(error));
            shared.stop.set(true);
        }
        if shared.stop.get() || shared.free.is_some() {
            shared.in_flight.set(shared.in_flight.get() - 1);
            shared.idle.notify();
        }
        if let Some(free) = &shared.free {
            free.borrow_mut().push_back((self.number, index));
        } else if !shared.stop.get() {
            self.submit(index, now);
        }
    }
}

fn buffer(length: usize) -> BufferMut {
    let pool = BufferPool::current();
    let mut buffer = pool
        .try_allocate(length)
        .expect("the pool serves a load's buffers");
    buffer.fill(7);
    buffer
}

/// Connects, warms up, and measures.
pub async fn load(workload: &Workload) -> Result<Measured, LoadError> {
    let depth = workload.depth.clamp(1, DEPTH_MAX);
    let connect = ConnectOptions {
        queue_entries: (depth as u16 + 1).max(workload.connect.queue_entries),
        ..workload.connect.clone()
    };
    let controller = Controller::connect(connect).await?;
    let shared = Rc::new(Shared {
        latencies: RefCell::default(),
        measuring: Cell::new(false),
        stop: Cell::new(false),
        failure: Cell::new(None),
        operations: Cell::new(0),
        in_flight: Cell::new(0),
        idle: Notify::new(),
        free: workload.rate.map(|_| RefCell::default()),
    });
    let mut connections = Vec::new();
    for number in 0..workload.connections {
        let channel = controller.open_namespace(workload.nsid).await?;
        connections.push(open(workload, depth, number, Rc::new(channel), &shared)?);
    }
    let connections = Rc::new(connections);
    let mut pacing = None;
    match (workload.rate, &shared.free) {
        (Some(rate), Some(free)) => {
            // Connections take turns.
            let lanes =
                (0..depth).flat_map(|lane| (0..workload.connections).map(move |number| (number, lane)));
            free.borrow_mut().extend(lanes);
            let interval = Duration::from_secs_f64(1.0 / rate.max(1e-3));
            pacing = Some(spawn(pace(connections.clone(), shared.clone(), interval)));
        }
        _ => {
            for connection in connections.iter() {
                shared.in_flight.set(shared.in_flight.get() + depth);
                for index in 0..depth {
                    connection.submit(index, time::now());
                }
            }
        }
    }
    time::sleep(WARM_UP).await;
    shared.measuring.set(true);
    let began = time::now();
    time::sleep(workload.duration).await;
    shared.measuring.set(false);
    let elapsed = time::now() - began;
    shared.stop.set(true);
    if let Some(pacing) = pacing {
        pacing.abort();
    }
    shared.idle.until(|| shared.in_flight.get() == 0).await;
    if let Some(source) = shared.failure.take() {
        let address = workload.connect.address;
        return Err(LoadError::Command { address, source });
    }
    let latencies = shared.latencies.borrow();
    Ok(Measured {
        requests_per_second: latencies.total() as f64 / elapsed.as_secs_f64(),
        p50_us: latencies.percentile_us(0.5),
        p99_us: latencies.percentile_us(0.99),
        operations: shared.operations.get(),
    })
}

/// Begins one request after each interval, on the connection whose turn it is. When no lane is free, requests fall behind
/// and begin as soon as one is; the time they lost is part of their latency.
async fn pace(connections: Rc<Vec<Rc<Connection>>>, shared: Rc<Shared>, interval: Duration) {
    let mut due = time::now();
    loop {
        let now = time::now();
        while due <= now
            && let Some((connection, lane)) = shared
                .free
                .as_ref()
                .and_then(|free| free.borrow_mut().pop_front())
        {
            shared.in_flight.set(shared.in_flight.get() + 1);
            connections[connection].submit(lane, due);
            due = due + interval;
        }
        if due > now {
            time::sleep(due - now).await;
        } else {
            shared.idle.changed().await;
        }
    }
}

fn open(
    workload: &Workload,
    depth: usize,
    number: usize,
    channel: Rc<dyn Channel>,
    shared: &Rc<Shared>,
) -> Result<Rc<Connection>, LoadError> {
    let geometry = channel.geometry();
    let request_bytes = workload.request_bytes;
    let blocks = BlockCount(u64::from(request_bytes / geometry.block_bytes));
    let places = geometry.blocks.0.checked_div(blocks.0).unwrap_or(0);
    let fits = request_bytes.is_multiple_of(geometry.block_bytes)
        && request_bytes as usize <= reactor::buffer::BUFFER_BYTES_MAX;
    if places == 0 || !fits {
        return Err(LoadError::Shape {
            request_bytes,
            nsid: workload.nsid,
            blocks: geometry.blocks.0,
            block_bytes: geometry.block_bytes,
        });
    }
    let now = time::now();
    let lanes = (0..depth)
        .map(|_| Lane {
            started: now,
            buffer: Some(buffer(request_bytes as usize)),
        })
        .collect();
    Ok(Rc::new_cyclic(|own| Connection {
        own: own.clone(),
        number,
        channel,
        shared: shared.clone(),
        lanes: RefCell::new(lanes),
        random: RefCell::new(Random::from_seed(number as u64)),
        written: buffer(request_bytes as usize).freeze(),
        blocks,
        places,
        read_percent: workload.read_percent,
    }))
}

/// Why a device is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeDeviceError {
    /// The namespace was not taken.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// No listener.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Block of the devices that are served here, in bytes.
const BLOCK_BYTES: u32 = 4096;

/// Memory of so many bytes, all of it written once: pages that were never written are one and the same page of zeros to
/// the machine, and would come from its cache. Blocks while it writes.
pub fn memory(bytes: u64) -> Result<Arc<dyn BlockDevice>, OpenError> {
    let device = MemoryDevice::new(BLOCK_BYTES, BlockCount(bytes / u64::from(BLOCK_BYTES)))?;
    device.fill(7);
    Ok(Arc::new(device))
}

/// A device of so many bytes that keeps nothing and reads zeros.
pub fn null(bytes: u64) -> Arc<dyn BlockDevice> {
    Arc::new(NullDevice::new(
        BLOCK_BYTES,
        BlockCount(bytes / u64::from(BLOCK_BYTES)),
    ))
}

/// Serves a device as namespace 1 of a subsystem that takes any host. Connections go to `reactors`, or to the calling one if
/// there are none.
pub fn serve_device(
    address: SocketAddr,
    subsystem: Nqn,
    device: Arc<dyn BlockDevice>,
    reactors: Vec<CoreHandle>,
) -> Result<Server, ServeDeviceError> {
    let subsystem = Subsystem::new(subsystem, "BENCH", "Redhare", Hosts::Any);
    subsystem.add_namespace(Namespace {
        nsid: 1,
        uuid: [1; 16],
        device,
    })?;
    let target = Target::new();
    target.serve_on(reactors);
    target.add_subsystem(subsystem);
    Ok(serve(target, address, Options::default())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_load_runs_and_counts() {
        let run = async {
            let nqn: Nqn = "nqn.2026-11.io.redhare:bench".parse().unwrap();
            let address = "127.0.0.1:0".parse().unwrap();
            let server = serve_device(address, nqn.clone(), memory(4 << 20).unwrap(), Vec::new()).unwrap();
            let workload = Workload {
                connect: ConnectOptions::new(server.address(), nqn.clone(), nqn, [1; 16]),
                nsid: 1,
                read_percent: 50,
                request_bytes: 8192,
                connections: 2,
                depth: 4,
                rate: None,
                duration: Duration::from_millis(50),
            };
            let measured = load(&workload).await.unwrap();
            assert!(measured.operations > 100 && measured.requests_per_second > 1000.0);
            assert!(measured.p50_us <= measured.p99_us && measured.p99_us > 0);
            let wrong = Workload {
                request_bytes: 1000,
                ..workload
            };
            let error = load(&wrong).await.unwrap_err().to_string();
            assert!(
                error.contains("blocks of 4096 bytes: choose a multiple"),
                "{error}"
            );
        };
        reactor::run(&reactor::Config::default(), run).unwrap();
    }
}
