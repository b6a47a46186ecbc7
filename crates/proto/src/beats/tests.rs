//! Which heartbeats say that they need no answer, with a master of this release and of the one before.

use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;

use super::*;
use crate::client::Client;
use crate::v1;
use crate::v1::nodes_server::{Nodes, NodesServer};

/// Answers as it is told, and keeps what it was asked.
#[derive(Clone, Debug, Default)]
struct Master {
    asked: Arc<Mutex<Vec<HeartbeatRequest>>>,
    duties: Arc<Mutex<Vec<u32>>>,
    /// Of the release before: it answers each, without a number.
    is_old: bool,
    /// The first of these heartbeats that it does not answer, news or not.
    stops_at: Option<u64>,
    /// It does not lead, and believes that the one at this address does.
    names: Option<String>,
}

impl Master {
    fn answer(&self, request: HeartbeatRequest) -> Option<HeartbeatResponse> {
        let duties = self.duties.lock().unwrap().clone();
        let number = if self.is_old { 0 } else { request.number };
        let is_silent = self.stops_at.is_some_and(|from| request.number >= from);
        let wants = self.is_old || !request.unless_news || !duties.is_empty();
        self.asked.lock().unwrap().push(request);
        (wants && !is_silent).then(|| HeartbeatResponse {
            prepare_volumes: duties,
            number,
            ..HeartbeatResponse::default()
        })
    }

    /// Whether each of the heartbeats said that it needs no answer.
    fn said(&self) -> Vec<bool> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|request| request.unless_news).collect()
    }

    async fn client(&self) -> Client {
        Client::connect(&self.serve().await).await.unwrap()
    }

    /// Where it is.
    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server::builder().add_service(NodesServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }
}

type Answers = std::pin::Pin<Box<dyn Stream<Item = Result<HeartbeatResponse, Status>> + Send>>;

fn nothing<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("it takes heartbeats only"))
}

#[tonic::async_trait]
impl Nodes for Master {
    type HeartbeatsStream = Answers;

    async fn heartbeats(
        &self,
        request: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Answers>, Status> {
        if let Some(leader) = &self.names {
            let mut elsewhere = Status::unavailable("this master does not lead");
            let metadata = elsewhere.metadata_mut();
            metadata.insert(crate::client::LEADER, leader.parse().unwrap());
            return Err(elsewhere);
        }
        let master = self.clone();
        let answers = request
            .into_inner()
            .filter_map(move |request| request.map(|request| master.answer(request)).transpose());
        Ok(Response::new(Box::pin(answers)))
    }

    async fn heartbeat(&self, _: Request<HeartbeatRequest>) -> Result<Response<HeartbeatResponse>, Status> {
        nothing()
    }

    async fn register(
        &self,
        _: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        nothing()
    }

    async fn drain(&self, _: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        nothing()
    }

    async fn restore(
        &self,
        _: Request<v1::RestoreDiskRequest>,
    ) -> Result<Response<v1::RestoreDiskResponse>, Status> {
        nothing()
    }

    async fn remove(
        &self,
        _: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeResponse>, Status> {
        nothing()
    }
}

/// Sends so many, each some time after the one before, and returns what the last was answered.
async fn beat(client: &Client, count: usize, request: &HeartbeatRequest) -> HeartbeatResponse {
    let mut last = HeartbeatResponse::default();
    for _ in 0..count {
        last = client.heartbeat(request.clone()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    last
}

#[tokio::test]
async fn two_of_three_need_no_answer_where_nothing_is_new() {
    let master = Master::default();
    let client = master.client().await;
    let quiet = HeartbeatRequest::default();
    beat(&client, 7, &quiet).await;
    assert_eq!(master.said(), [false, true, true, false, true, true, false]);

    // Who says it seldom notices a silent master late enough.
    tokio::time::sleep(OFTEN).await;
    beat(&client, 1, &quiet).await;
    assert_eq!(master.said()[7..], [false]);

    // What says more is answered, and so that it was heard.
    let says_more = HeartbeatRequest {
        names_copies: true,
        ..HeartbeatRequest::default()
    };
    let answer = beat(&client, 1, &says_more).await;
    assert_eq!((answer.number, master.said()[8]), (9, false));
}

#[tokio::test]
async fn news_come_with_a_heartbeat_that_needs_no_answer() {
    let master = Master::default();
    let client = master.client().await;
    let quiet = HeartbeatRequest::default();
    beat(&client, 1, &quiet).await;
    *master.duties.lock().unwrap() = vec![7];
    // Far more than the way takes.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let answer = beat(&client, 1, &quiet).await;
    assert_eq!((answer.prepare_volumes, answer.number), (vec![7], 2));
    // As long as there is something to do, each is answered.
    beat(&client, 2, &quiet).await;
    master.duties.lock().unwrap().clear();
    let answer = beat(&client, 1, &quiet).await;
    assert_eq!((answer.prepare_volumes, answer.number), (vec![], 5));
    beat(&client, 1, &quiet).await;
    assert_eq!(master.said(), [false, true, false, false, false, true]);
}

#[tokio::test]
async fn a_master_of_the_release_before_answers_each() {
    let master = Master {
        is_old: true,
        ..Master::default()
    };
    let client = master.client().await;
    beat(&client, 4, &HeartbeatRequest::default()).await;
    assert_eq!(master.said(), [false; 4]);
}

#[tokio::test]
async fn a_master_that_is_silent_is_noticed_with_the_next_that_needs_an_answer() {
    let master = Master {
        stops_at: Some(2),
        ..Master::default()
    };
    let client = master.client().await;
    let quiet = HeartbeatRequest::default();
    beat(&client, 3, &quiet).await;
    let began = Instant::now();
    let answer = beat(&client, 1, &quiet).await;
    assert!(began.elapsed() >= LIMIT_AFTER_UNANSWERED);
    assert_eq!(answer.number, 1, "it is the first on another connection");
    assert_eq!(master.said(), [false, true, true, false, false]);
}

/// It is cut off from what tells who leads, and the one that did has ended: whoever believes it would ask the two in turns.
#[tokio::test]
async fn a_master_that_names_one_that_has_ended_is_not_asked_for_ever() {
    let ended = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let names = Some(ended.local_addr().unwrap().to_string());
    drop(ended);
    let unsure = Master {
        names,
        ..Master::default()
    };
    let leads = Master::default();
    let addresses = format!("{},{}", unsure.serve().await, leads.serve().await);
    let client = Client::connect(&addresses).await.unwrap();
    beat(&client, 1, &HeartbeatRequest::default()).await;
    assert_eq!(leads.said().len(), 1);
}
