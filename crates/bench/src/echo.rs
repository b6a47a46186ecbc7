//! The bare request/answer loop on this project's reactor: 72-byte requests, answers of a given size, all complete
//! requests parsed per wake-up, all their answers in one send. What any protocol on top can at best reach.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use reactor::net::{SendBatch, TcpListener, TcpOptions, TcpStream};
use reactor::{Buffer, BufferPool, spawn, time};

use crate::latency::Latencies;

/// Length of a request: an NVMe/TCP command capsule without data.
pub const REQUEST_BYTES: usize = 72;
/// Most requests in flight on one connection.
pub const DEPTH_MAX: usize = 256;

/// What a load run saw.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Load {
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// Median latency in microseconds.
    pub p50_us: u64,
    /// 99th percentile in microseconds.
    pub p99_us: u64,
}

/// Why the loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum EchoError {
    /// A socket failed.
    #[error("the connection to {address} failed: {source}")]
    Socket {
        /// The other side, or where we listen.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The server went away.
    #[error("the server at {address} closed the connection")]
    Closed {
        /// The server.
        address: SocketAddr,
    },
}

/// Serves until dropped.
pub async fn serve(address: SocketAddr, answer_bytes: usize) -> Result<(), EchoError> {
    let failed = |source| EchoError::Socket { address, source };
    let listener = TcpListener::bind(address, TcpOptions::default()).map_err(failed)?;
    let answer = filled(answer_bytes.min(reactor::buffer::BUFFER_BYTES_MAX));
    loop {
        let stream = listener.accept().await.map_err(failed)?;
        let answer = answer.clone();
        drop(spawn(async move {
            // A connection that fails is the client's to notice.
            drop(answer_requests(stream, answer, answer_bytes).await);
        }));
    }
}

fn filled(length: usize) -> Buffer {
    let mut buffer = BufferPool::current()
        .try_allocate(length)
        .expect("a fresh pool serves one buffer");
    buffer.fill(7);
    buffer.freeze()
}

async fn answer_requests(stream: TcpStream, answer: Buffer, answer_bytes: usize) -> std::io::Result<()> {
    let (mut receiver, mut sender) = stream.split();
    let mut batch = SendBatch::new();
    let mut partial = 0;
    while let Some(bytes) = receiver.receive().await? {
        let mut received = bytes.len();
        drop(bytes);
        while let Some(more) = receiver.try_receive() {
            received += more.len();
        }
        partial += received;
        let mut left = partial / REQUEST_BYTES * answer_bytes;
        partial %= REQUEST_BYTES;
        while left > 0 {
            let part = left.min(answer.len());
            batch.push(answer.slice(0..part));
            left -= part;
        }
        let (result, emptied) = sender.send(batch).await;
        result?;
        batch = emptied;
    }
    Ok(())
}

struct Shared {
    latencies: RefCell<Latencies>,
    stop: Cell<bool>,
}

/// Keeps `depth` requests in flight on each of `connections` for so long.
pub async fn measure(
    address: SocketAddr,
    answer_bytes: usize,
    connections: usize,
    depth: usize,
    duration: Duration,
) -> Result<Load, EchoError> {
    let shared = Rc::new(Shared {
        latencies: RefCell::default(),
        stop: Cell::new(false),
    });
    let began = time::now();
    let tasks: Vec<_> = (0..connections)
        .map(|_| {
            spawn(request_answers(
                address,
                answer_bytes,
                depth.min(DEPTH_MAX),
                shared.clone(),
            ))
        })
        .collect();
    time::sleep(duration).await;
    let elapsed = time::now() - began;
    shared.stop.set(true);
    for task in tasks {
        task.await.expect("nobody aborts these tasks")?;
    }
    let latencies = shared.latencies.borrow();
    Ok(Load {
        requests_per_second: latencies.total() as f64 / elapsed.as_secs_f64(),
        p50_us: latencies.percentile_us(0.5),
        p99_us: latencies.percentile_us(0.99),
    })
}

async fn request_answers(
    address: SocketAddr,
    answer_bytes: usize,
    depth: usize,
    shared: Rc<Shared>,
) -> Result<(), EchoError> {
    let failed = |source| EchoError::Socket { address, source };
    let stream = TcpStream::connect(address, &TcpOptions::default())
        .await
        .map_err(failed)?;
    let (mut receiver, mut sender) = stream.split();
    let requests = filled(REQUEST_BYTES * depth);
    let mut batch = SendBatch::new();
    let mut started = vec![time::now(); depth];
    let mut oldest = 0;
    let mut partial = 0;
    batch.push(requests.clone());
    loop {
        let (result, emptied) = sender.send(batch).await;
        result.map_err(failed)?;
        batch = emptied;
        let bytes = receiver
            .receive()
            .await
            .map_err(failed)?
            .ok_or(EchoError::Closed { address })?;
        partial += bytes.len();
        drop(bytes);
        while let Some(more) = receiver.try_receive() {
            partial += more.len();
        }
        if shared.stop.get() {
            return Ok(());
        }
        let answered = partial / answer_bytes;
        partial %= answer_bytes;
        let now = time::now();
        for _ in 0..answered {
            shared.latencies.borrow_mut().add(now - started[oldest]);
            started[oldest] = now;
            oldest = (oldest + 1) % depth;
        }
        batch.push(requests.slice(0..answered * REQUEST_BYTES));
    }
}
