//! The stream of map changes.

use std::pin::Pin;
use std::task::{Context, Poll};

use control::{Changes, ChunkId, Scope};
use proto::v1;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

use crate::convert;
use crate::engine::Engine;

/// Chunks in one message: far below gRPC's limit of 4 MiB.
const CHUNKS_MAX: usize = 4096;
/// Messages that wait for a slow reader.
const QUEUE: usize = 4;

/// The messages of one watch.
#[derive(Debug)]
pub(crate) struct WatchStream(mpsc::Receiver<Result<v1::WatchResponse, Status>>);

impl Stream for WatchStream {
    type Item = Result<v1::WatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// Begins a watch; it ends when its reader is gone.
pub(crate) fn start(engine: Engine, scope: Scope, known: u64) -> WatchStream {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let watch = Watch {
            engine,
            scope,
            sender,
        };
        if let Err(status) = watch.run(known).await {
            // The reader may have gone already.
            drop(watch.sender.send(Err(status)).await);
        }
    });
    WatchStream(receiver)
}

struct Watch {
    engine: Engine,
    scope: Scope,
    sender: mpsc::Sender<Result<v1::WatchResponse, Status>>,
}

impl Watch {
    async fn run(&self, mut known: u64) -> Result<(), Status> {
        let mut news = self.engine.news();
        let scope = self.scope;
        // Who knows nothing gets everything; otherwise even an answer without news, so that the
        // reader knows that it is up to date.
        let mut is_first = true;
        loop {
            news.mark_unchanged();
            let changes = match known {
                0 => None,
                known => {
                    self.engine
                        .call(move |control, _| control.changes(scope, known))
                        .await?
                }
            };
            known = match changes {
                Some(changes) => {
                    let revision = changes.revision;
                    let is_news = !(changes.volumes.is_empty()
                        && changes.chunks.is_empty()
                        && changes.removed_volumes.is_empty()
                        && changes.nodes.is_empty());
                    if (is_news || is_first) && !self.send_changes(&changes).await {
                        return Ok(());
                    }
                    revision
                }
                None => match self.send_snapshot().await? {
                    Some(revision) => revision,
                    None => return Ok(()),
                },
            };
            is_first = false;
            tokio::select! {
                changed = news.changed() => {
                    if changed.is_err() {
                        return Err(Status::unavailable("this master is ending; watch at another one"));
                    }
                }
                () = self.sender.closed() => return Ok(()),
            }
        }
    }

    /// Sends changes in messages of bounded size; false when the reader is gone.
    async fn send_changes(&self, changes: &Changes) -> bool {
        let mut response = response(changes);
        let mut chunks = convert::chunks(&changes.chunks);
        loop {
            let rest = chunks.split_off(chunks.len().min(CHUNKS_MAX));
            response.chunks = chunks;
            response.complete = rest.is_empty();
            if self.sender.send(Ok(response)).await.is_err() {
                return false;
            }
            if rest.is_empty() {
                return true;
            }
            chunks = rest;
            response = v1::WatchResponse {
                revision: changes.revision,
                ..v1::WatchResponse::default()
            };
        }
    }

    /// Sends everything; the revision from which changes go on, or none when the reader is gone.
    async fn send_snapshot(&self) -> Result<Option<u64>, Status> {
        let scope = self.scope;
        let mut from: Option<ChunkId> = None;
        let mut first_revision = None;
        loop {
            let part = self
                .engine
                .call(move |control, _| control.snapshot(scope, from, CHUNKS_MAX))
                .await?;
            // What changes while the parts are read comes again as a change after the first one.
            let revision = *first_revision.get_or_insert(part.revision);
            let response = v1::WatchResponse {
                snapshot: from.is_none(),
                complete: part.next.is_none(),
                revision,
                chunks: convert::chunks(&part.chunks),
                ..response(&part)
            };
            if self.sender.send(Ok(response)).await.is_err() {
                return Ok(None);
            }
            match part.next {
                None => return Ok(Some(revision)),
                next => from = next,
            }
        }
    }
}

/// All but the chunks.
fn response(changes: &Changes) -> v1::WatchResponse {
    v1::WatchResponse {
        snapshot: false,
        complete: false,
        revision: changes.revision,
        volumes: changes.volumes.iter().map(convert::volume).collect(),
        removed_volumes: changes.removed_volumes.iter().map(|number| number.0).collect(),
        chunks: Vec::new(),
        nodes: changes
            .nodes
            .iter()
            .map(|(id, node)| convert::address(*id, node, true))
            .collect(),
    }
}
