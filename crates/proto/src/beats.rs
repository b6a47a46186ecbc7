//! A node's heartbeats: on one stream for as long as its connection lasts, and each as a call of its own with a master that knows no such
//! stream. What a call costs beside, headers and the making of a stream, was more than what a master does for a heartbeat.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::client::Way;
use crate::v1::nodes_client::NodesClient;
use crate::v1::{HeartbeatRequest, HeartbeatResponse};

/// A node has to be heard by the next master before this one's silence costs it its place: well below the least
/// heartbeat timeout that is in use.
const LIMIT: Duration = Duration::from_millis(1500);

/// How the master at the other end of a connection takes heartbeats.
#[derive(Debug, Default)]
enum Line {
    /// Not known, or the last one ended badly.
    #[default]
    None,
    Stream {
        asks: mpsc::Sender<HeartbeatRequest>,
        answers: Box<Streaming<HeartbeatResponse>>,
    },
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
        match timeout(LIMIT, ask(line, way.clone(), request.clone())).await {
            Ok(Ok((answer, line))) => {
                state.line = line;
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
    NodesClient::new(way).heartbeat(request).await
}

async fn ask(line: Line, way: Way, request: HeartbeatRequest) -> Result<(HeartbeatResponse, Line), Status> {
    let (asks, mut answers) = match line {
        Line::Stream { asks, answers } => {
            // Where nobody takes it any more, the answer says why.
            drop(asks.send(request).await);
            (asks, answers)
        }
        Line::None | Line::Calls => {
            let (asks, asked) = mpsc::channel(1);
            // There is room for one.
            drop(asks.send(request).await);
            let answers = NodesClient::new(way)
                .heartbeats(ReceiverStream::new(asked))
                .await?;
            (asks, Box::new(answers.into_inner()))
        }
    };
    match answers.message().await? {
        Some(answer) => Ok((answer, Line::Stream { asks, answers })),
        None => Err(broken(ErrorKind::UnexpectedEof)),
    }
}

/// A status of our own making, as one of a connection that has failed: it has a cause.
fn broken(kind: ErrorKind) -> Status {
    Status::from_error(std::io::Error::from(kind).into())
}
