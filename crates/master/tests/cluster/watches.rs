//! Many who watch at once: each gets its own map, whole, however slowly it reads.

use std::collections::BTreeMap;
use std::time::Duration;

use master::{Client, v1};

use super::fake::{Fake, Running, client, create, runtime, uuid};
use super::map;

const NODES: u8 = 5;

/// What a watch has told so far.
struct Picture {
    node: u8,
    stream: tonic::Streaming<v1::WatchResponse>,
    chunks: BTreeMap<(u32, u32), v1::Chunk>,
    revision: u64,
}

impl Picture {
    async fn begin(client: &Client, node: u8) -> Self {
        let scope = v1::watch_request::Scope::Node(uuid(node));
        Self {
            node,
            stream: client.watch(scope, 0).await.unwrap(),
            chunks: BTreeMap::new(),
            revision: 0,
        }
    }

    /// Reads until the picture is of this revision, or of a later one.
    async fn reach(&mut self, revision: u64) {
        while self.revision < revision {
            let news = tokio::time::timeout(Duration::from_secs(20), self.stream.message()).await;
            let news = news.expect("no news in time").unwrap().unwrap();
            for chunk in news.chunks {
                assert!(
                    chunk.copies.iter().any(|copy| copy.node == uuid(self.node)),
                    "node {} was told of chunk {} of volume {}, of which it has no copy",
                    self.node,
                    chunk.index,
                    chunk.volume
                );
                self.chunks.insert((chunk.volume, chunk.index), chunk);
            }
            if news.complete {
                self.revision = news.revision;
            }
        }
    }
}

/// All chunks of these volumes that have a copy on a node.
async fn expected(client: &Client, volumes: &[u32], node: u8) -> BTreeMap<(u32, u32), v1::Chunk> {
    let mut chunks = BTreeMap::new();
    for &volume in volumes {
        let all = map(client, volume).await.into_iter();
        let own = all.filter(|chunk| chunk.copies.iter().any(|copy| copy.node == uuid(node)));
        chunks.extend(own.map(|chunk| ((chunk.volume, chunk.index), chunk)));
    }
    chunks
}

#[test]
fn every_watch_has_its_own_map_however_slowly_it_reads() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    runtime().block_on(async {
        let client = client(master.port()).await;
        let mut nodes = Vec::new();
        for number in 1..=NODES {
            nodes.push(Fake::start(&client, number).await);
        }
        let mut volumes = vec![1];
        create(&client, "first", 3).await.unwrap();
        // Two of each node ask at once; what they ask for is read together.
        let mut pictures = Vec::new();
        for number in 1..=NODES {
            pictures.push(Picture::begin(&client, number).await);
            pictures.push(Picture::begin(&client, number).await);
        }
        // One asks and never reads: the others do not wait for it.
        let idle = Picture::begin(&client, 1).await;
        for picture in &mut pictures {
            picture.reach(1).await;
            assert_eq!(picture.chunks, expected(&client, &volumes, picture.node).await);
        }
        // More is committed than waits for anybody, while only every other one reads.
        for number in 2..=35 {
            create(&client, &format!("volume-{number}"), 2).await.unwrap();
            volumes.push(number);
            let revision = client.identity(v1::GetIdentityRequest {}).await.unwrap().revision;
            for picture in pictures.iter_mut().step_by(2) {
                picture.reach(revision.saturating_sub(8)).await;
            }
        }
        let revision = client.identity(v1::GetIdentityRequest {}).await.unwrap().revision;
        for picture in &mut pictures {
            picture.reach(revision).await;
            let own = expected(&client, &volumes, picture.node).await;
            assert_eq!(picture.chunks, own, "node {}", picture.node);
            assert!(own.len() > 10, "node {} has {} chunks", picture.node, own.len());
        }
        drop((idle, nodes));
    });
    master.end();
}
