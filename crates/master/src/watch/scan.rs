//! The maps of nodes, read from the store in one go for all nodes that ask at the same time.
//!
//! The store is in the order of chunks, and a node's copies are anywhere. When a master begins to lead, all nodes ask at once:
//! read for each, the whole store would be read a thousand times.

use std::collections::HashMap;
use std::time::Duration;

use control::{Changes, ChunkId, NodeId, Scope};
use proto::v1;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

use super::responses;
use crate::convert;
use crate::engine::Engine;

/// Requests for maps come together for so long.
const GATHER: Duration = Duration::from_millis(20);
/// Chunks that are read at a time: heartbeats are answered in between.
const PAGE: usize = 1024;
/// Chunks of a node that are sent together, so that a thousand nodes' are not kept until the end.
const CHUNKS_MAX: usize = 256;
/// How long the readers of one scan together may hold it up.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a watch sends to its reader.
pub(super) type Messages = mpsc::Sender<Result<v1::WatchResponse, Status>>;

/// A node's map that is asked for.
struct Ask {
    node: NodeId,
    messages: Messages,
    /// The revision from which changes go on; none when the reader is gone.
    done: oneshot::Sender<Result<Option<u64>, Status>>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Scans {
    asks: mpsc::UnboundedSender<Ask>,
}

impl Scans {
    /// Starts the task that reads; it ends with the last handle.
    pub(super) fn start(engine: Engine) -> Self {
        let (asks, mut asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(first) = asked.recv().await {
                tokio::time::sleep(GATHER).await;
                let mut scan = Scan::default();
                scan.add(first);
                while let Ok(more) = asked.try_recv() {
                    scan.add(more);
                }
                scan.run(&engine).await;
            }
        });
        Self { asks }
    }

    /// Sends a node's map; the revision from which changes go on, or none when the reader is gone.
    pub(super) async fn send(&self, node: NodeId, messages: Messages) -> Result<Option<u64>, Status> {
        let ending = || Status::unavailable("this master is ending; watch at another one");
        let (done, wait) = oneshot::channel();
        let ask = Ask { node, messages, done };
        self.asks.send(ask).map_err(|_| ending())?;
        wait.await.map_err(|_| ending())?
    }
}

/// A reader, and what is still to be sent to it.
struct Reader {
    /// None once it is gone, or was left behind.
    ask: Option<Ask>,
    next: v1::WatchResponse,
}

#[derive(Default)]
struct Scan {
    readers: Vec<Reader>,
    /// Those of each node.
    of: HashMap<NodeId, Vec<usize>>,
    /// Readers that are left.
    reading: usize,
    waited: Duration,
}

impl Scan {
    fn add(&mut self, ask: Ask) {
        self.of.entry(ask.node).or_default().push(self.readers.len());
        let (ask, next) = (Some(ask), v1::WatchResponse::default());
        self.readers.push(Reader { ask, next });
        self.reading += 1;
    }

    async fn run(mut self, engine: &Engine) {
        let (mut from, mut first): (Option<ChunkId>, Option<u64>) = (None, None);
        loop {
            let began = Instant::now();
            let page = engine
                .call(move |control, _| control.snapshot(Scope::All, from, PAGE))
                .await;
            let part = match page {
                Ok(part) => part,
                Err(status) => return self.end(&Err(status)),
            };
            // What changes while the parts are read comes again as a change after the first one.
            let revision = *first.get_or_insert(part.revision);
            if from.is_none() {
                self.begin(&part, revision).await;
            }
            self.sort_in(&part, revision).await;
            match part.next {
                Some(_) if self.reading > 0 => {
                    from = part.next;
                    // Half of the time is everybody else's: nodes whose heartbeats wait would count as gone.
                    tokio::time::sleep(began.elapsed()).await;
                }
                _ => {
                    for reader in 0..self.readers.len() {
                        self.readers[reader].next.complete = true;
                        self.send(reader, revision).await;
                    }
                    return self.end(&Ok(Some(revision)));
                }
            }
        }
    }

    /// All but the chunks is the same for everybody.
    async fn begin(&mut self, part: &Changes, revision: u64) {
        let (mut heads, last) = responses(part);
        heads.push(last);
        heads[0].snapshot = true;
        let count = heads.len();
        for (place, head) in heads.into_iter().enumerate() {
            for reader in 0..self.readers.len() {
                self.readers[reader].next = head.clone();
                if place + 1 < count {
                    self.send(reader, revision).await;
                }
            }
        }
    }

    async fn sort_in(&mut self, part: &Changes, revision: u64) {
        for (id, chunk) in &part.chunks {
            let wire = convert::chunk(*id, chunk);
            let nodes = chunk.copies.iter().map(|copy| copy.node);
            let readers: Vec<usize> = nodes
                .filter_map(|node| self.of.get(&node))
                .flatten()
                .copied()
                .collect();
            for reader in readers {
                let waiting = &mut self.readers[reader].next.chunks;
                waiting.push(wire.clone());
                if waiting.len() >= CHUNKS_MAX {
                    self.send(reader, revision).await;
                }
            }
        }
    }

    /// Sends what there is for a reader. One that does not take it in time is left behind: its watch ends, and may begin again.
    async fn send(&mut self, reader: usize, revision: u64) {
        let Reader { ask: Some(ask), next } = &mut self.readers[reader] else {
            return;
        };
        let message = v1::WatchResponse {
            revision,
            ..std::mem::take(next)
        };
        let began = Instant::now();
        let patience = PATIENCE.saturating_sub(self.waited);
        let sent = ask.messages.send_timeout(Ok(message), patience).await;
        self.waited += began.elapsed();
        let end = match sent {
            Ok(()) => return,
            Err(SendTimeoutError::Closed(_)) => Ok(None),
            Err(SendTimeoutError::Timeout(_)) => Err(Status::unavailable(
                "this watch does not take its map as fast as it is read; begin it again",
            )),
        };
        self.reading -= 1;
        if let Some(ask) = self.readers[reader].ask.take() {
            // Nobody may wait for it any more.
            drop(ask.done.send(end));
        }
    }

    fn end(self, how: &Result<Option<u64>, Status>) {
        for ask in self.readers.into_iter().filter_map(|reader| reader.ask) {
            drop(ask.done.send(how.clone()));
        }
    }
}
