//! A node's heartbeats: on one stream for as long as its connection lasts, and each as a call of its own with a master that knows no such
//! stream. What a call costs beside, headers and the making of a stream, was more than what a master does for a heartbeat. Where nothing has
//! changed on either side, two of three heartbeats on a stream are not answered: that it was heard is told by the next answer.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::MESSAGE_BYTES_MAX;
use crate::client::Way;
use crate::v1::nodes_client::NodesClient;
use crate::v1::{HeartbeatRequest, HeartbeatResponse};

/// A node has to be heard by the next master before this one's silence costs it its place: well below the least
/// heartbeat timeout that is in use.
const LIMIT: Duration = Duration::from_millis(1500);
/// The same for one before which others went unanswered: so much of that time has passed.
const LIMIT_AFTER_UNANSWERED: Duration = Duration::from_millis(1000);
/// Heartbeats in a row that need no answer.
const UNANSWERED_MAX: u32 = 2;
/// Only where they come at least so often: a master's silence is noticed after three of these and the limit above, before it counts the node
/// as gone by the timeout that is usual.
const OFTEN: Duration = Duration::from_millis(600);
/// What a master has to say to one that needs no answer comes within this time, and half of that between two, or with the next one.
const NEWS_WITHIN: Duration = Duration::from_millis(200);

/// A stream that a master takes heartbeats on.
#[derive(Debug)]
struct Stream {
    asks: mpsc::Sender<HeartbeatRequest>,
    answers: Streaming<HeartbeatResponse>,
    /// Heartbeats that were sent on it.
    sent: u64,
    /// When the last one was.
    sent_at: Instant,
    /// How long news are waited for.
    patience: Duration,
    /// Heartbeats since the last answer.
    unanswered: u32,
    /// The last answer.
    answer: Option<HeartbeatResponse>,
}

/// How the master at the other end of a connection takes heartbeats.
#[derive(Debug, Default)]
enum Line {
    /// Not known, or the last one ended badly.
    #[default]
    None,
    Stream(Box<Stream>),
    /// One of the release before.
    Calls,
}

#[derive(Debug, Default)]
struct State {
    connection: u64,
    line: Line,
}

/// See the module. One heartbeat is under way at a time.
#[derive(Debug, Default)]
pub(crate) struct Beats(Mutex<State>);

impl Beats {
    /// Sends a heartbeat on a connection, which its number tells from others, and waits for the answer.
    pub(crate) async fn beat(
        &self,
        way: Way,
        connection: u64,
        request: HeartbeatRequest,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        let mut state = self.0.lock().await;
        if state.connection != connection {
            *state = State {
                connection,
                line: Line::None,
            };
        }
        // Who gives up in the middle leaves none: the next answer on it would be to somebody else's heartbeat.
        let line = std::mem::take(&mut state.line);
        if matches!(line, Line::Calls) {
            state.line = Line::Calls;
            drop(state);
            return call(way, request).await;
        }
        let limit = match &line {
            Line::Stream(stream) if stream.unanswered > 0 => LIMIT_AFTER_UNANSWERED,
            _ => LIMIT,
        };
        match timeout(limit, ask(line, way.clone(), request.clone())).await {
            Ok(Ok((answer, stream))) => {
                state.line = Line::Stream(stream);
                Ok(Response::new(answer))
            }
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                state.line = Line::Calls;
                drop(state);
                call(way, request).await
            }
            Ok(Err(status)) => Err(status),
            Err(_) => Err(broken(ErrorKind::TimedOut)),
        }
    }
}

async fn call(way: Way, request: HeartbeatRequest) -> Result<Response<HeartbeatResponse>, Status> {
    let mut request = Request::new(request);
    request.set_timeout(LIMIT);
    let client = NodesClient::new(way);
    client
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .heartbeat(request)
        .await
}

async fn ask(
    line: Line,
    way: Way,
    mut request: HeartbeatRequest,
) -> Result<(HeartbeatResponse, Box<Stream>), Status> {
    let mut stream = match line {
        Line::Stream(mut stream) => {
            stream.number(&mut request);
            // Where nobody takes it any more, the answer says why.
            drop(stream.asks.send(request.clone()).await);
            stream
        }
        Line::None | Line::Calls => {
            let (asks, asked) = mpsc::channel(1);
            request.number = 1;
            // There is room for one.
            drop(asks.send(request.clone()).await);
            let answers = NodesClient::new(way)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .heartbeats(ReceiverStream::new(asked))
                .await?;
            Box::new(Stream {
                asks,
                answers: answers.into_inner(),
                sent: 1,
                sent_at: Instant::now(),
                patience: Duration::ZERO,
                unanswered: 0,
                answer: None,
            })
        }
    };
    let answer = stream.answer_to(&request).await?;
    Ok((answer, stream))
}

impl Stream {
    /// Gives the next heartbeat its number, and says whether it needs an answer.
    fn number(&mut self, request: &mut HeartbeatRequest) {
        let now = Instant::now();
        let pace = now.duration_since(self.sent_at);
        self.patience = NEWS_WITHIN.min(pace / 2);
        (self.sent, self.sent_at) = (self.sent + 1, now);
        request.number = self.sent;
        let is_settled = self.answer.as_ref().is_some_and(asks_nothing);
        request.unless_news =
            self.unanswered < UNANSWERED_MAX && pace <= OFTEN && is_settled && tells_nothing(request);
    }

    /// Waits for the answer to the last heartbeat; if it needs none and gets none, that is what was answered before.
    async fn answer_to(&mut self, request: &HeartbeatRequest) -> Result<HeartbeatResponse, Status> {
        loop {
            let next = match &self.answer {
                Some(before) if request.unless_news => {
                    match timeout(self.patience, self.answers.message()).await {
                        Ok(next) => next?,
                        Err(_) => {
                            self.unanswered += 1;
                            return Ok(before.clone());
                        }
                    }
                }
                _ => self.answers.message().await?,
            };
            let answer = next.ok_or_else(|| broken(ErrorKind::UnexpectedEof))?;
            self.unanswered = 0;
            self.answer = Some(answer.clone());
            // An answer may come so late that nobody waited for it any more. One without a number answers each.
            if answer.number == 0 || answer.number == request.number {
                return Ok(answer);
            }
        }
    }
}

/// Whether an answer leaves the node nothing to do, and the next ones may be told apart from it by the master.
fn asks_nothing(answer: &HeartbeatResponse) -> bool {
    let HeartbeatResponse {
        revision: _,
        prepare_volumes,
        remove_volumes,
        remove_copies,
        exports: _,
        grow_volumes,
        remove_snapshots,
        restore_disks,
        restore_wishes: _,
        complete_snapshots,
        prepare_clones,
        flatten_volumes,
        describe_copies,
        name_copies,
        hold,
        number,
        move_copies,
    } = answer;
    let duties = prepare_volumes.len()
        + remove_volumes.len()
        + remove_copies.len()
        + grow_volumes.len()
        + remove_snapshots.len()
        + restore_disks.len()
        + prepare_clones.len()
        + flatten_volumes.len()
        + describe_copies.len()
        + move_copies.len();
    duties == 0 && complete_snapshots.is_none() && !name_copies && *hold == 0 && *number > 0
}

/// Whether a heartbeat says only that its node lives on, and what it says each time.
fn tells_nothing(request: &HeartbeatRequest) -> bool {
    let HeartbeatRequest {
        cluster: _,
        node: _,
        incarnation: _,
        disks: _,
        prepared_volumes,
        removed_volumes,
        ended_through: _,
        resyncs,
        copies,
        removed_copies,
        grown_volumes,
        snapshots: _,
        disk_health,
        samples,
        complete_snapshots: _,
        flattening,
        knows_reservations: _,
        described_copies,
        names_copies,
        knows_sync_writes: _,
        sync_volumes: _,
        uses,
        kept_copies: _,
        knows_doubt: _,
        damage,
        releases,
        number: _,
        unless_news: _,
        moved_copies,
        knows_disk_moves: _,
    } = request;
    let told = prepared_volumes.len()
        + removed_volumes.len()
        + resyncs.len()
        + copies.len()
        + removed_copies.len()
        + grown_volumes.len()
        + disk_health.len()
        + samples.len()
        + flattening.len()
        + described_copies.len()
        + moved_copies.len();
    told == 0 && !names_copies && uses.is_none() && damage.is_none() && releases.is_none()
}

/// A status of our own making, as one of a connection that has failed: it has a cause.
fn broken(kind: ErrorKind) -> Status {
    Status::from_error(std::io::Error::from(kind).into())
}

#[cfg(test)]
mod tests;
