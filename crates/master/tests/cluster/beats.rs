//! Heartbeats on a stream that need no answer, at a real master.

use std::time::Duration;

use master::v1;
use master::v1::nodes_client::NodesClient;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::fake::{Fake, Running, client, create, runtime, uuid};

/// Far longer than an answer takes.
const SILENCE: Duration = Duration::from_millis(300);

struct Line {
    asks: mpsc::Sender<v1::HeartbeatRequest>,
    answers: Streaming<v1::HeartbeatResponse>,
    sent: u64,
}

impl Line {
    async fn open(port: u16, first: v1::HeartbeatRequest) -> Self {
        let (asks, asked) = mpsc::channel(4);
        asks.send(first).await.unwrap();
        let mut nodes = NodesClient::connect(format!("http://127.0.0.1:{port}"))
            .await
            .unwrap();
        let answers = nodes.heartbeats(ReceiverStream::new(asked)).await.unwrap();
        let answers = answers.into_inner();
        Self {
            asks,
            answers,
            sent: 1,
        }
    }

    async fn send(&mut self, unless_news: bool, request: &v1::HeartbeatRequest) {
        self.sent += 1;
        let request = v1::HeartbeatRequest {
            number: self.sent,
            unless_news,
            ..request.clone()
        };
        self.asks.send(request).await.unwrap();
    }

    async fn answer(&mut self) -> v1::HeartbeatResponse {
        self.answers.message().await.unwrap().unwrap()
    }

    async fn is_silent(&mut self) -> bool {
        timeout(SILENCE, self.answers.message()).await.is_err()
    }
}

#[test]
fn one_that_needs_no_answer_gets_one_if_there_are_news() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    runtime().block_on(async {
        let client = client(master.port()).await;
        let _other = Fake::start(&client, 1).await;
        let disks = vec![v1::Disk {
            uuid: uuid(102),
            capacity_bytes: 1 << 30,
            used_bytes: 4096,
            held_bytes: None,
        }];
        let register = v1::RegisterRequest {
            node: uuid(2),
            peer_address: "127.0.0.1:4422".to_owned(),
            disks: disks.clone(),
            ..v1::RegisterRequest::default()
        };
        let registered = client.register(register).await.unwrap();
        let mut quiet = v1::HeartbeatRequest {
            cluster: registered.cluster.clone(),
            node: uuid(2),
            incarnation: registered.incarnation,
            disks,
            number: 1,
            // It cannot be spared: nothing was answered before.
            unless_news: true,
            ..v1::HeartbeatRequest::default()
        };
        let mut line = Line::open(master.port(), quiet.clone()).await;
        let first = line.answer().await;
        assert_eq!((first.number, &first.prepare_volumes[..]), (1, &[][..]));
        line.send(true, &quiet).await;
        line.send(true, &quiet).await;
        assert!(line.is_silent().await);
        line.send(false, &quiet).await;
        let answer = line.answer().await;
        assert_eq!(answer, v1::HeartbeatResponse { number: 4, ..first });

        // The volume waits for this node, which hears of it though it wants news only, and once.
        let creating = tokio::spawn({
            let client = client.clone();
            async move { create(&client, "data", 2).await }
        });
        let news = loop {
            line.send(true, &quiet).await;
            if let Ok(answer) = timeout(SILENCE, line.answers.message()).await {
                break answer.unwrap().unwrap();
            }
        };
        assert_eq!((news.number, &news.prepare_volumes[..]), (line.sent, &[1][..]));
        line.send(true, &quiet).await;
        assert!(line.is_silent().await);
        // What it says counts, answered or not.
        quiet.prepared_volumes = vec![1];
        line.send(true, &quiet).await;
        let volume = creating.await.unwrap().unwrap().volume.unwrap();
        assert_eq!(volume.state(), v1::VolumeState::Ready);

        // A refusal comes in any case.
        quiet.incarnation += 1;
        line.send(true, &quiet).await;
        let refused = loop {
            if let Err(refused) = line.answers.message().await {
                break refused;
            }
        };
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    });
    master.end();
}
