//! The stream of map changes.

mod feed;
mod scan;

use std::pin::Pin;
use std::task::{Context, Poll};

use control::{Changes, ChunkId, Scope};
use proto::v1;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

use crate::convert;
use crate::engine::Engine;
pub(crate) use feed::Feed;
use feed::Part;

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
pub(crate) fn start(engine: Engine, feed: Feed, scope: Scope, known: u64) -> WatchStream {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let watch = Watch {
            engine,
            feed,
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
    feed: Feed,
    scope: Scope,
    sender: mpsc::Sender<Result<v1::WatchResponse, Status>>,
}

impl Watch {
    async fn run(&self, known: u64) -> Result<(), Status> {
        // Before anything is read, so that nothing falls between what is read and what is handed on.
        let mut parts = self.feed.subscribe();
        let Some(mut known) = self.catch_up(known).await? else {
            return Ok(());
        };
        loop {
            let received = tokio::select! {
                received = parts.recv() => received,
                () = self.sender.closed() => return Ok(()),
            };
            let part = match received {
                Ok(part) => Some(part?),
                Err(RecvError::Lagged(_)) => None,
                Err(RecvError::Closed) => {
                    return Err(Status::unavailable("this master is ending; watch at another one"));
                }
            };
            let after = match part {
                Some(part) if part.changes.revision <= known => Some(known),
                Some(part) if part.from <= known => self.hand_on(&part).await,
                // Something was missed.
                _ => self.catch_up(known).await?,
            };
            match after {
                Some(revision) => known = revision,
                None => return Ok(()),
            }
        }
    }

    /// Brings the reader from what it knows to what is committed: who knows nothing, or too little, gets everything;
    /// otherwise an answer comes even without news, so that the reader knows that it is up to date. The revision, or none when
    /// the reader is gone.
    async fn catch_up(&self, known: u64) -> Result<Option<u64>, Status> {
        let scope = self.scope;
        let changes = match known {
            0 => None,
            known => {
                self.engine
                    .call(move |control, _| control.changes(scope, known))
                    .await?
            }
        };
        match (changes, scope) {
            (Some(changes), _) => {
                let revision = changes.revision;
                Ok(self.send_changes(&changes).await.then_some(revision))
            }
            (None, Scope::Node(node)) => self.feed.scans.send(node, self.sender.clone()).await,
            (None, _) => self.send_snapshot().await,
        }
    }

    /// Sends what of a part is in scope, if anything is.
    async fn hand_on(&self, part: &Part) -> Option<u64> {
        let (scope, all) = (self.scope, &part.changes);
        let volumes = all
            .volumes
            .iter()
            .filter(|volume| scope.has_volume(volume.number));
        let removed = all
            .removed_volumes
            .iter()
            .filter(|number| scope.has_volume(**number));
        let chunks = all
            .chunks
            .iter()
            .filter(|(id, chunk)| scope.has_chunk(*id, chunk));
        let own = Changes {
            revision: all.revision,
            volumes: volumes.cloned().collect(),
            removed_volumes: removed.copied().collect(),
            chunks: chunks.cloned().collect(),
            nodes: all.nodes.clone(),
            next: None,
        };
        let is_news = !(own.volumes.is_empty()
            && own.chunks.is_empty()
            && own.removed_volumes.is_empty()
            && own.nodes.is_empty());
        (!is_news || self.send_changes(&own).await).then_some(own.revision)
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
