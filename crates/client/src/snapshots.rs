//! Makes snapshots of a volume: the coordinator of `docs/decisions/0081`, which may be any process, and die at any time.
//!
//! The chunks are cut at their write nodes, all at once, since none is held for longer than a second; when all are, they are
//! released; and when every write node says that it has held, the masters are told that the snapshot is complete. Whatever fails
//! before, the snapshot is given up, and the next try has another number.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bdev::Data;
use proto::client::ClientError;
use proto::v1;
use reactor::{spawn, time};
use volume::client::{PeerStatus, Place};
use volume::message::codec::{NativeCommand, NativeFields, NativeOperation};
use volume::{ChunkIndex, NodeId, Route, SnapshotId, Status, TraceId, WriterToken};

use crate::ask::ask;
use crate::links::{Nearby, NodeLinks};
use crate::session::Session;

/// How long a snapshot is tried: until a node that has ended is left out, and its successor serves.
const TRY_LIMIT: Duration = Duration::from_secs(20);
/// Before the next try.
const PAUSE: Duration = Duration::from_millis(500);
/// No step takes longer: a write node holds for a second at most.
const STEP_LIMIT: Duration = Duration::from_millis(2500);

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The masters.
    #[error(transparent)]
    Masters(#[from] ClientError),
    /// Chunks could not be cut together, however often it was tried.
    #[error(
        "volume {volume}: no snapshot \"{name}\" was made in {tries} tries, the last one failed at {step} chunk {chunk}: {why}; \
         \"redhare volume show {volume}\" tells how its copies are, try again when they are in sync"
    )]
    Chunk {
        /// The volume.
        volume: String,
        /// What it was to be called.
        name: String,
        /// How often it was tried.
        tries: u32,
        /// What failed.
        step: &'static str,
        /// Where.
        chunk: u32,
        /// What its write node said.
        why: String,
    },
    /// There is none that could be read.
    #[error(
        "volume {volume} has no complete snapshot \"{name}\"; \"redhare volume snapshot list {volume}\" shows those it has"
    )]
    NoSuch {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// The session's thread has ended.
    #[error("volume {volume}: the session has ended")]
    Ended {
        /// The volume.
        volume: String,
    },
}

/// A snapshot that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotMade {
    /// What the masters say of it.
    pub snapshot: v1::Snapshot,
    /// How often it was tried, this one included.
    pub tries: u32,
    /// From the first cut to the last answer of a release: acknowledgements were held no longer.
    pub held: Duration,
}

/// What a try failed at.
struct Failed {
    step: &'static str,
    chunk: ChunkIndex,
    why: String,
}

impl Session {
    /// Makes a snapshot of the volume. To be called where a reactor runs. Until the chunks are cut and released, for a second at
    /// most, writes are not acknowledged; reads go on.
    ///
    /// # Errors
    /// See [`SnapshotError`]; there is no snapshot then, except if the masters could not be asked whether it is complete.
    pub async fn make_snapshot(self: &Arc<Self>, name: &str) -> Result<SnapshotMade, SnapshotError> {
        let links = self.links(Nearby::Socket);
        let began = time::now();
        let mut tries = 0;
        loop {
            tries += 1;
            let request = v1::BeginSnapshotRequest {
                volume: self.name().to_owned(),
                name: name.to_owned(),
            };
            let begun = self
                .masters(|client| async move { client.begin_snapshot(request).await })
                .await?;
            let begun = begun.snapshot.unwrap_or_default();
            // The volume does not grow from now on.
            self.refresh().await;
            let number = SnapshotId(begun.number);
            let (volume, chunks) = (begun.volume, begun.chunks);
            let failed = match self.cut_and_release(&links, number, chunks).await {
                Ok(held) => {
                    let number = begun.number;
                    let request = v1::CompleteSnapshotRequest { volume, number };
                    let completed = self
                        .masters(|client| async move { client.complete_snapshot(request).await })
                        .await?;
                    let snapshot = completed.snapshot.unwrap_or_default();
                    return Ok(SnapshotMade {
                        snapshot,
                        tries,
                        held,
                    });
                }
                Err(failed) => failed,
            };
            let number = begun.number;
            let request = v1::AbortSnapshotRequest { volume, number };
            let aborted = self
                .masters(|client| async move { client.abort_snapshot(request).await })
                .await;
            if let Err(error) = aborted {
                tracing::warn!(number, %error, "the masters give a snapshot up by themselves after a while");
            }
            tracing::info!(
                number,
                step = failed.step,
                chunk = failed.chunk.0,
                why = failed.why,
                "a snapshot was given up"
            );
            if time::now().since(began) >= TRY_LIMIT {
                return Err(SnapshotError::Chunk {
                    volume: self.name().to_owned(),
                    name: name.to_owned(),
                    tries,
                    step: failed.step,
                    chunk: failed.chunk.0,
                    why: failed.why,
                });
            }
            time::sleep(PAUSE).await;
            self.refresh().await;
        }
    }

    /// A call to the masters that has to be answered.
    async fn masters<T: Send + 'static, F: Future<Output = Result<T, ClientError>> + Send + 'static>(
        &self,
        call: impl FnOnce(proto::client::Client) -> F,
    ) -> Result<T, SnapshotError> {
        let ended = || SnapshotError::Ended {
            volume: self.name().to_owned(),
        };
        Ok(self.call(call).await.ok_or_else(ended)??)
    }

    async fn cut_and_release(
        self: &Arc<Self>,
        links: &Rc<NodeLinks>,
        number: SnapshotId,
        chunks: u32,
    ) -> Result<Duration, Failed> {
        let mut routes = Vec::new();
        for chunk in (0..chunks).map(ChunkIndex) {
            let Some(route) = self.map().chunks.write_route(chunk) else {
                let why = "the masters name no write node for it".to_owned();
                let step = "finding";
                return Err(Failed { step, chunk, why });
            };
            routes.push((chunk, route));
        }
        // Nobody holds anything while connections are made: there is nothing to abandon yet.
        let nodes: BTreeMap<NodeId, (ChunkIndex, Route)> = routes
            .iter()
            .map(|&(chunk, route)| (route.node, (chunk, route)))
            .collect();
        let nodes: Vec<_> = nodes.into_values().collect();
        self.step(
            links,
            NativeOperation::Abandon(number),
            "reaching the write node of",
            &nodes,
        )
        .await?;
        let began = time::now();
        let cut = self
            .step(links, NativeOperation::Cut(number), "cutting", &routes)
            .await;
        let released = match cut {
            Ok(()) => {
                self.step(links, NativeOperation::Release(number), "releasing", &routes)
                    .await
            }
            failed => failed,
        };
        if released.is_err() {
            // Else they would hold until their second is over. Who does not hear it, does that.
            drop(
                self.step(links, NativeOperation::Abandon(number), "abandoning", &routes)
                    .await,
            );
        }
        released.map(|()| time::now().since(began))
    }

    /// Asks all these write nodes at once; the first failure ends it, and what is still asked is not waited for.
    async fn step(
        self: &Arc<Self>,
        links: &Rc<NodeLinks>,
        operation: NativeOperation,
        step: &'static str,
        routes: &[(ChunkIndex, Route)],
    ) -> Result<(), Failed> {
        let map = self.map();
        let limit = time::now() + STEP_LIMIT;
        let mut asked = Vec::with_capacity(routes.len());
        for &(chunk, route) in routes {
            let Some(first_lba) = map.geometry.first_lba(chunk) else {
                let why = "it is not in the volume's map".to_owned();
                return Err(Failed { step, chunk, why });
            };
            let command = NativeCommand {
                operation,
                volume: self.number(),
                fields: NativeFields {
                    epoch: route.epoch,
                    writer_token: WriterToken(0),
                    first_lba,
                },
                blocks: 0,
                trace: TraceId(0),
                portal_token: 0,
            };
            let place = Place {
                chunk,
                first_block: 0,
            };
            let links = links.clone();
            let answer = spawn(async move { ask(&links, route.node, command, place, Data::None).await.0 });
            asked.push((chunk, route.node, answer));
        }
        for (chunk, node, answer) in asked {
            let left = limit.since(time::now().min(limit));
            let why = match time::timeout(left, answer).await {
                Ok(Some(PeerStatus::Answered(Status::Done))) => continue,
                Ok(Some(PeerStatus::Answered(status))) => {
                    format!("its write node {node} says {}", in_words(status))
                }
                Ok(Some(PeerStatus::Unreachable | PeerStatus::Lost)) => {
                    format!("its write node {node} cannot be reached")
                }
                Ok(Some(PeerStatus::Failed(error))) => {
                    format!("its write node {node} refuses it ({error}); is it of this release?")
                }
                Ok(None) | Err(time::Elapsed) => format!("its write node {node} does not answer"),
            };
            return Err(Failed { step, chunk, why });
        }
        Ok(())
    }

    /// The volume's snapshots, as the masters say.
    ///
    /// # Errors
    /// The masters do not answer.
    pub async fn snapshots(&self) -> Result<Vec<v1::Snapshot>, SnapshotError> {
        let request = v1::ListSnapshotsRequest {
            volume: self.name().to_owned(),
        };
        let listed = self
            .masters(|client| async move { client.list_snapshots(request).await })
            .await?;
        self.learn_nodes(&listed.nodes);
        Ok(listed.snapshots)
    }

    /// The complete snapshot of that name.
    ///
    /// # Errors
    /// The masters do not answer, or know of none.
    pub async fn snapshot_named(&self, name: &str) -> Result<v1::Snapshot, SnapshotError> {
        let mut snapshots = self.snapshots().await?.into_iter();
        let wanted = |snapshot: &v1::Snapshot| {
            snapshot.name == name && snapshot.state() == v1::SnapshotState::Complete
        };
        snapshots.find(wanted).ok_or_else(|| SnapshotError::NoSuch {
            volume: self.name().to_owned(),
            name: name.to_owned(),
        })
    }
}

fn in_words(status: Status) -> String {
    match status {
        Status::SnapshotAborted => {
            "that it did not hold, or that a copy could not keep what it has".to_owned()
        }
        Status::StaleEpoch(epoch) => format!("that its configuration has changed (epoch {})", epoch.0),
        Status::NotReady | Status::NotWriteNode(_) => "that it does not order the writes now".to_owned(),
        other => format!("{other:?}"),
    }
}
