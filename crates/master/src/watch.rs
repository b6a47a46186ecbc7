//! The stream of map changes.

mod feed;
mod scan;

use std::pin::Pin;
use std::task::{Context, Poll};

use control::{Changes, ChunkId, Scope};
use prost::Message;
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
/// What volumes may take in one message, beside chunks and nodes.
const VOLUME_BYTES_MAX: usize = 1 << 20;
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
        let (heads, mut response) = responses(changes);
        for head in heads {
            if self.sender.send(Ok(head)).await.is_err() {
                return false;
            }
        }
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
            let (mut messages, last) = responses(&part);
            messages.push(v1::WatchResponse {
                complete: part.next.is_none(),
                chunks: convert::chunks(&part.chunks),
                ..last
            });
            for (place, message) in messages.into_iter().enumerate() {
                let message = v1::WatchResponse {
                    snapshot: from.is_none() && place == 0,
                    revision,
                    ..message
                };
                if self.sender.send(Ok(message)).await.is_err() {
                    return Ok(None);
                }
            }
            match part.next {
                None => return Ok(Some(revision)),
                next => from = next,
            }
        }
    }
}

/// All but the chunks, in messages of bounded size; those of the chunks begin with the last of these, since a reader has to know a volume
/// before its chunks.
fn responses(changes: &Changes) -> (Vec<v1::WatchResponse>, v1::WatchResponse) {
    let mut before = Vec::new();
    let mut last = v1::WatchResponse {
        snapshot: false,
        complete: false,
        revision: changes.revision,
        volumes: Vec::new(),
        removed_volumes: changes.removed_volumes.iter().map(|number| number.0).collect(),
        chunks: Vec::new(),
        nodes: changes
            .nodes
            .iter()
            .map(|(id, node)| convert::address(*id, node, true))
            .collect(),
    };
    let mut bytes = 0;
    for volume in changes.volumes.iter().map(convert::volume) {
        bytes += volume.encoded_len();
        if bytes > VOLUME_BYTES_MAX && !last.volumes.is_empty() {
            bytes = volume.encoded_len();
            let next = v1::WatchResponse {
                revision: changes.revision,
                ..v1::WatchResponse::default()
            };
            before.push(std::mem::replace(&mut last, next));
        }
        last.volumes.push(volume);
    }
    (before, last)
}

#[cfg(test)]
mod tests {
    use control::{Geometry, NodeId, Uuid, Volume, VolumeNumber, VolumeState};
    use foundation::ByteCount;

    use super::*;

    #[test]
    fn many_volumes_come_in_messages_that_grpc_takes() {
        let volume = |number| Volume {
            number: VolumeNumber(number),
            name: format!("the-volume-of-somebody-who-likes-long-names-{number}"),
            uuid: Uuid(number.into()),
            geometry: Geometry {
                block_bytes: 4096,
                metadata_bytes: 0,
                stripe_unit: ByteCount(256 << 10),
                chunk: ByteCount(256 << 20),
                region: ByteCount(1 << 20),
                copies: 3,
                minimum: 2,
                group_chunks: vec![8, 3],
            },
            state: VolumeState::Ready,
            portals: vec![NodeId(Uuid(1)); 3],
            write_pin: None,
            hosts: vec!["nqn.2014-08.org.nvmexpress:uuid:3c1f4a0e-0000-0000-0000-000000000001".to_owned(); 4],
            growth: Vec::new(),
            checksums: true,
            origin: None,
            spread: None,
            sync_writes: false,
        };
        let changes = Changes {
            revision: 7,
            volumes: (1..=20_000).map(volume).collect(),
            removed_volumes: vec![VolumeNumber(90_000)],
            ..Changes::default()
        };
        let (mut messages, last) = responses(&changes);
        messages.push(last);
        let longest = messages.iter().map(Message::encoded_len).max();
        assert!(longest < Some(3 << 19), "{longest:?}");
        assert!(messages.len() > 3, "{}", messages.len());
        let numbers = messages.iter().flat_map(|message| &message.volumes);
        assert!(numbers.map(|volume| volume.number).eq(1..=20_000));
        assert_eq!(messages[0].removed_volumes, [90_000]);
        assert!(
            messages[1..]
                .iter()
                .all(|message| message.removed_volumes.is_empty())
        );

        let (before, last) = responses(&Changes::default());
        assert!(before.is_empty() && last.volumes.is_empty());
    }
}
