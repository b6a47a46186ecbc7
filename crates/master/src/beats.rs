//! Heartbeats: each as a call of its own, or one after the other on a stream (`docs/decisions/0128`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use control::{ClusterId, Heartbeat, HeartbeatAnswer, Incarnation, NodeId, VolumeNumber};
use proto::v1;
use tokio_stream::Stream;
use tonic::codegen::http::Extensions;
use tonic::{Status, Streaming};

use crate::access::{check_node, check_stream};
use crate::convert::{self, uuid};
use crate::damage;
use crate::disks;
use crate::engine::Control;
use crate::releases;
use crate::service::Face;

impl Face {
    /// Takes a sign of life, and answers what the node has to do.
    pub(crate) async fn beat(&self, extensions: &Extensions, request: v1::HeartbeatRequest) -> Answer {
        check_node(extensions, &request.node)?;
        let heartbeat = heartbeat(&request)?;
        let life = (heartbeat.node, heartbeat.incarnation);
        let (reports, samples) = (
            disks::reports(&request.disk_health)?,
            disks::samples(&request.samples)?,
        );
        let answer = self.engine.heartbeat(heartbeat).await?;
        self.note_copies((life.0, request.incarnation), &request.described_copies)
            .await?;
        let uses = request.uses.as_ref().map(convert::uses);
        let damage = request.damage.as_ref().map(damage::of);
        let releases = request.releases.as_ref().map(releases::of);
        let tells_disks = !reports.is_empty() || !samples.is_empty();
        let wants_list = is_behind(&request, &answer);
        let mut response = response(answer);
        let says_more = uses.is_some() || damage.is_some() || releases.is_some();
        if says_more || tells_disks || wants_list {
            let note = move |control: &mut Control, now| {
                if let Some(uses) = uses {
                    control.note_use(life, uses);
                }
                if let Some(told) = damage {
                    control.note_damage(life, told);
                }
                if let Some(releases) = releases {
                    control.note_releases(life, releases);
                }
                let noted = match tells_disks {
                    true => Some(control.note_disks(life.0, reports, samples, now)?),
                    false => None,
                };
                Ok((noted, wants_list.then(|| control.complete_snapshots())))
            };
            let (noted, list) = self.engine.call(note).await?;
            if let Some(noted) = noted {
                disks::tell(life.0, &noted);
                let restore = noted.restore.iter();
                let restore = restore.map(|(disk, wish)| (disk.0.to_bytes().to_vec(), *wish));
                (response.restore_disks, response.restore_wishes) = restore.unzip();
            }
            response.complete_snapshots = list.map(convert::complete_snapshots);
        }
        Ok(response)
    }

    /// The answer to a heartbeat that says nothing new, without waiting for anything; none if it has to be taken as others are, for whatever
    /// reason.
    fn beat_at_once(
        &self,
        extensions: &Extensions,
        request: &v1::HeartbeatRequest,
    ) -> Option<v1::HeartbeatResponse> {
        let says_more = request.disk_health.len()
            + request.samples.len()
            + request.described_copies.len()
            + usize::from(request.uses.is_some())
            + usize::from(request.damage.is_some())
            + usize::from(request.releases.is_some());
        if says_more > 0 {
            return None;
        }
        check_node(extensions, &request.node).ok()?;
        let answer = self.engine.answer_from_memory(&heartbeat(request).ok()?)?.ok()?;
        (!is_behind(request, &answer)).then(|| response(answer))
    }
}

/// Whether the node wants lists of complete snapshots, and has an older one than there is.
fn is_behind(request: &v1::HeartbeatRequest, answer: &HeartbeatAnswer) -> bool {
    let version = request.complete_snapshots;
    version.is_some_and(|version| version != answer.complete_snapshots)
}

fn heartbeat(request: &v1::HeartbeatRequest) -> Result<Heartbeat, Status> {
    let volumes = |numbers: &[u32]| numbers.iter().copied().map(VolumeNumber).collect();
    Ok(Heartbeat {
        cluster: ClusterId(uuid("cluster", &request.cluster)?),
        node: NodeId(uuid("node", &request.node)?),
        incarnation: Incarnation(request.incarnation),
        ended_through: Incarnation(request.ended_through),
        disks: convert::disks(&request.disks)?,
        prepared: volumes(&request.prepared_volumes),
        grown: request.grown_volumes.iter().map(convert::grown).collect(),
        removed: volumes(&request.removed_volumes),
        resyncs: convert::resyncs(&request.resyncs)?,
        copies: convert::chunk_ids(&request.copies),
        names_copies: request.names_copies,
        removed_copies: convert::chunk_ids(&request.removed_copies),
        moved_copies: convert::moved_copies(&request.moved_copies)?,
        moves_disks: request.knows_disk_moves,
        snapshots: request.snapshots.iter().map(convert::snapshot_key).collect(),
        flattening: request.flattening.iter().map(convert::flattening).collect(),
        reserves: request.knows_reservations,
        doubts: request.knows_doubt,
        syncs: request
            .knows_sync_writes
            .then(|| volumes(&request.sync_volumes).into_iter().collect()),
        kept: request
            .complete_snapshots
            .zip(request.kept_copies.as_ref().map(convert::kept_copies)),
    })
}

fn response(answer: HeartbeatAnswer) -> v1::HeartbeatResponse {
    let numbers = |volumes: &[VolumeNumber]| volumes.iter().map(|number| number.0).collect();
    v1::HeartbeatResponse {
        revision: answer.revision,
        prepare_volumes: numbers(&answer.prepare),
        grow_volumes: answer.grow.iter().map(convert::growing).collect(),
        remove_volumes: numbers(&answer.remove),
        remove_copies: answer.remove_copies.iter().map(convert::remove_copy).collect(),
        exports: answer.exports.iter().map(convert::export).collect(),
        remove_snapshots: answer.remove_snapshots.iter().map(convert::snapshot_id).collect(),
        restore_disks: Vec::new(),
        restore_wishes: Vec::new(),
        complete_snapshots: None,
        prepare_clones: numbers(&answer.prepare_clones),
        flatten_volumes: numbers(&answer.flatten),
        describe_copies: crate::force::chunk_ids(&answer.describe),
        name_copies: answer.name_copies,
        hold: answer.hold,
        number: 0,
        move_copies: answer.move_copies.iter().map(convert::move_copy).collect(),
    }
}

type Answer = Result<v1::HeartbeatResponse, Status>;

/// A heartbeat that is being answered.
struct Answering {
    wants: Wants,
    answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
}

/// Which answer a heartbeat on a stream wants.
#[derive(Clone, Copy)]
struct Wants {
    number: u64,
    unless_news: bool,
}

/// The answers to a stream of heartbeats. The next heartbeat is read when the last one is answered, or needs no answer; nothing comes after
/// a refusal.
pub(crate) struct Beats {
    caller: Arc<(Face, Extensions)>,
    asked: Streaming<v1::HeartbeatRequest>,
    answering: Option<Answering>,
    /// What was answered last, without its number.
    answered: Option<v1::HeartbeatResponse>,
}

impl Beats {
    pub(crate) fn new(face: Face, extensions: Extensions, asked: Streaming<v1::HeartbeatRequest>) -> Self {
        Self {
            caller: Arc::new((face, extensions)),
            asked,
            answering: None,
            answered: None,
        }
    }

    /// What to send; nothing if it is not wanted.
    fn told(&mut self, wants: Wants, answer: Answer) -> Option<Answer> {
        let caller = self.caller.clone();
        let (face, extensions) = &*caller;
        face.policy.note_heartbeat(extensions, answer.as_ref().err());
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(status) => return Some(Err(status)),
        };
        if self.answered.as_ref() != Some(&answer) {
            self.answered = Some(answer.clone());
        } else if wants.unless_news {
            return None;
        }
        answer.number = wants.number;
        Some(Ok(answer))
    }
}

impl Stream for Beats {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        loop {
            if let Some(Answering { wants, answer }) = &mut self.answering {
                let wants = *wants;
                let answer = ready!(answer.as_mut().poll(context));
                self.answering = None;
                match self.told(wants, answer) {
                    None => continue,
                    told => return Poll::Ready(told),
                }
            }
            match ready!(Pin::new(&mut self.asked).poll_next(context)) {
                None => return Poll::Ready(None),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                Some(Ok(request)) => {
                    let wants = Wants {
                        number: request.number,
                        unless_news: request.unless_news,
                    };
                    let caller = self.caller.clone();
                    let (face, extensions) = &*caller;
                    // Who calls is looked at when a call begins, and this one goes on for days.
                    let at_once = check_stream(extensions)
                        .is_ok()
                        .then(|| face.beat_at_once(extensions, &request));
                    if let Some(answer) = at_once.flatten() {
                        match self.told(wants, Ok(answer)) {
                            None => continue,
                            told => return Poll::Ready(told),
                        }
                    }
                    let answer = Box::pin(async move {
                        let (face, extensions) = &*caller;
                        check_stream(extensions)?;
                        face.beat(extensions, request).await
                    });
                    self.answering = Some(Answering { wants, answer });
                }
            }
        }
    }
}
