//! A real master on a loopback port with a store on disk, and nodes that are only messages:
//! volumes come and go, the map survives the master, a silent node is left out, of two
//! proposals for one epoch one is committed.

mod beats;
#[path = "../../src/etcd/testing.rs"]
mod etcd;
mod fake;
mod foreign;
mod http;
mod nonsense;
mod silent;
mod watches;

use std::time::Duration;

use fake::{Fake, Running, client, create, eventually, runtime};
use master::{Client, ClientError, v1};
use tonic::Code;

fn code(error: ClientError) -> (Code, String) {
    match error {
        ClientError::Refused { code, message } => (code, message),
        other => panic!("not a refusal: {other}"),
    }
}

fn members(chunk: &v1::Chunk) -> Vec<u8> {
    chunk
        .copies
        .iter()
        .filter(|copy| copy.incarnation > 0)
        .map(|copy| copy.node[15])
        .collect()
}

async fn map(client: &Client, volume: u32) -> Vec<v1::Chunk> {
    let request = v1::GetMapRequest {
        with_growth: false,
        volume,
        ..v1::GetMapRequest::default()
    };
    client.map(request).await.unwrap().chunks
}

#[test]
fn a_volume_lives_through_the_death_of_its_master() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    let port = master.port();
    let (before, cluster) = runtime().block_on(async {
        let client = client(port).await;
        let _nodes = (Fake::start(&client, 1).await, Fake::start(&client, 2).await);
        let created = create(&client, "data", 2).await.unwrap().volume.unwrap();
        assert_eq!(created.state(), v1::VolumeState::Ready);
        assert_eq!((created.number, created.size_bytes), (1, 64 << 20));
        let (code, message) = code(create(&client, "data", 2).await.unwrap_err());
        assert_eq!(code, Code::AlreadyExists, "{message}");
        let (code, message) = self::code(create(&client, "more", 3).await.unwrap_err());
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.contains("3 copies need 3 nodes, but 2 of 2"), "{message}");
        let status = client.status(v1::GetStatusRequest {}).await.unwrap();
        (map(&client, 1).await, status.cluster)
    });
    assert_eq!(before.len(), 4);
    assert!(
        before
            .iter()
            .all(|chunk| members(chunk) == [1, 2] && chunk.epoch == 1)
    );
    master.abandon();
    let master = Running::start(directory.path(), 0);
    runtime().block_on(async {
        let client = client(master.port()).await;
        assert_eq!(
            client.status(v1::GetStatusRequest {}).await.unwrap().cluster,
            cluster
        );
        assert_eq!(map(&client, 1).await, before);
        let name = "data".to_owned();
        let shown = client.show_volume(v1::ShowVolumeRequest { name }).await.unwrap();
        assert_eq!((shown.chunks, shown.nodes.len()), (before, 2));
    });
    master.end();
}

#[test]
fn a_silent_node_is_left_out_and_watchers_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 300);
    runtime().block_on(async {
        let client = client(master.port()).await;
        let mut nodes = Vec::new();
        for number in 1..=3 {
            nodes.push(Fake::start(&client, number).await);
        }
        create(&client, "data", 3).await.unwrap();
        let mut watch = client
            .watch(v1::watch_request::Scope::Volume(1), 0)
            .await
            .unwrap();
        let first = watch.message().await.unwrap().unwrap();
        assert!(first.snapshot && first.complete);
        assert_eq!(
            (first.chunks.len(), first.volumes.len(), first.nodes.len()),
            (4, 1, 3)
        );
        drop(nodes.remove(0));
        let mut left_out = std::collections::BTreeSet::new();
        while left_out.len() < 4 {
            let news = tokio::time::timeout(Duration::from_secs(10), watch.message()).await;
            for chunk in news.expect("no news in time").unwrap().unwrap().chunks {
                assert_eq!((members(&chunk), chunk.epoch), (vec![2, 3], 2));
                assert_ne!(chunk.write_node[15], 1);
                left_out.insert(chunk.index);
            }
        }
        let status = client.status(v1::GetStatusRequest {}).await.unwrap();
        assert_eq!(status.volumes[0].degraded_chunks, 4);
        assert_eq!(status.nodes.iter().filter(|node| node.alive).count(), 2);
        // Node 1 returns in a new life: not in sync until its write node proposes it.
        nodes.push(Fake::start(&client, 1).await);
        let chunk = map(&client, 1).await.remove(0);
        assert_eq!(members(&chunk), [2, 3]);
        race(&client, &chunk).await;
    });
    master.end();
}

/// The write node proposes to join node 1 and to drop somebody, both on the same epoch.
async fn race(client: &Client, chunk: &v1::Chunk) {
    let joiner = v1::Copy {
        node: fake::uuid(1),
        incarnation: 2,
        ..v1::Copy::default()
    };
    let mut all: Vec<v1::Copy> = vec![joiner];
    all.extend(chunk.copies.iter().filter(|copy| copy.incarnation > 0).cloned());
    let write_node = all
        .iter()
        .find(|copy| copy.node == chunk.write_node)
        .unwrap()
        .clone();
    let propose = |members: Vec<v1::Copy>| v1::ProposeConfigurationRequest {
        node: chunk.write_node.clone(),
        incarnation: write_node.incarnation,
        expected_epoch: chunk.epoch,
        volume: chunk.volume,
        index: chunk.index,
        write_node: chunk.write_node.clone(),
        members,
    };
    let mut two = vec![all[0].clone(), write_node.clone()];
    two.sort_by(|a, b| a.node.cmp(&b.node));
    let (three, two) = tokio::join!(client.propose(propose(all.clone())), client.propose(propose(two)));
    let (won, lost): (Vec<_>, Vec<_>) = [three, two].into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 1));
    let (lost_code, message) = code(lost.into_iter().next().unwrap().unwrap_err());
    assert_eq!(lost_code, Code::Aborted);
    assert!(
        message.contains("is at epoch 3, the proposal was made for epoch 2; fetch the map"),
        "{message}"
    );
    let committed = won.into_iter().next().unwrap().unwrap().chunk.unwrap();
    assert_eq!(map(client, 1).await[0], committed);
    let (bad, message) = code(
        client
            .propose(v1::ProposeConfigurationRequest::default())
            .await
            .unwrap_err(),
    );
    assert_eq!(bad, Code::InvalidArgument);
    assert!(message.contains("no UUID but 0 bytes"), "{message}");
}

#[test]
fn deletion_gives_the_space_back_and_leases_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    runtime().block_on(async {
        let client = client(master.port()).await;
        let _nodes = (Fake::start(&client, 1).await, Fake::start(&client, 2).await);
        create(&client, "data", 2).await.unwrap();
        let acquire = |session: u8, holder: &str| v1::AcquireWriterRequest {
            take_over: false,
            volume: 1,
            holder: holder.to_owned(),
            term_ms: 0,
            session: fake::uuid(session),
        };
        let lease = client.acquire_writer(acquire(1, "alice")).await.unwrap();
        assert_eq!(lease.token, 1);
        let (refused, message) = code(client.acquire_writer(acquire(2, "bob")).await.unwrap_err());
        assert_eq!(refused, Code::FailedPrecondition);
        assert!(message.contains("leased by \"alice\" for another"), "{message}");
        let delete = || v1::DeleteVolumeRequest {
            name: "data".to_owned(),
        };
        assert!(client.delete_volume(delete()).await.is_err());
        let (token, session) = (lease.token, fake::uuid(1));
        let release = v1::ReleaseWriterRequest {
            volume: 1,
            token,
            session,
        };
        client.release_writer(release).await.unwrap();
        client.delete_volume(delete()).await.unwrap();
        eventually("the volume is gone", async || {
            client
                .list_volumes(v1::ListVolumesRequest {})
                .await
                .unwrap()
                .volumes
                .is_empty()
        })
        .await;
        let status = client.status(v1::GetStatusRequest {}).await.unwrap();
        assert!(status.nodes.iter().all(|node| node.disks[0].allocated_bytes == 0));
        let again = create(&client, "data", 2).await.unwrap().volume.unwrap();
        assert_eq!(again.number, 2, "a number is never used again");
    });
    master.end();
}

#[test]
fn who_holds_the_write_lease_hears_at_once_who_wants_it() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    runtime().block_on(async {
        let client = client(master.port()).await;
        let _nodes = (Fake::start(&client, 1).await, Fake::start(&client, 2).await);
        create(&client, "data", 2).await.unwrap();
        let acquire = |session: u8, holder: &str| v1::AcquireWriterRequest {
            take_over: session > 1,
            volume: 1,
            holder: holder.to_owned(),
            term_ms: 0,
            session: fake::uuid(session),
        };
        let await_wanted = |token, wait_ms| v1::AwaitWantedRequest {
            volume: 1,
            token,
            session: fake::uuid(1),
            wait_ms,
        };
        let lease = client.acquire_writer(acquire(1, "alice")).await.unwrap();
        let unwanted = client.await_wanted(await_wanted(lease.token, 1)).await.unwrap();
        assert_eq!(unwanted.wanted_by, "");
        // It waits for longer than anybody waits here; only being asked ends it in time.
        let waiting = client.await_wanted(await_wanted(lease.token, 20_000));
        let asking = async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            client.acquire_writer(acquire(2, "bob")).await
        };
        let began = std::time::Instant::now();
        let (heard, refused) = tokio::join!(waiting, asking);
        assert_eq!(code(refused.unwrap_err()).0, Code::FailedPrecondition);
        assert_eq!(heard.unwrap().wanted_by, "bob");
        assert!(began.elapsed() < std::time::Duration::from_secs(15));
        // Whoever asked shortly before is told of at once, too; and whose lease is another's by now hears that.
        let wanted = client.await_wanted(await_wanted(lease.token, 20_000)).await;
        assert_eq!(wanted.unwrap().wanted_by, "bob");
        let (token, session) = (lease.token, fake::uuid(1));
        let release = v1::ReleaseWriterRequest {
            volume: 1,
            token,
            session,
        };
        client.release_writer(release).await.unwrap();
        client.acquire_writer(acquire(2, "bob")).await.unwrap();
        let lost = client.await_wanted(await_wanted(lease.token, 20_000)).await;
        assert_eq!(code(lost.unwrap_err()).0, Code::FailedPrecondition);
    });
    master.end();
}

#[test]
fn a_second_master_on_the_store_and_an_absent_one_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    let config = fake::config(directory.path(), 0);
    let error = runtime()
        .block_on(master::Master::start(&config))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is open in another process; stop the master that uses it"),
        "{error}"
    );
    let port = master.port();
    master.end();
    runtime().block_on(async {
        let error = Client::connect(&format!("127.0.0.1:{port}"))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("no master answers at 127.0.0.1:{port}")),
            "{error}"
        );
        assert!(error.contains("--cluster or REDHARE_CLUSTER"), "{error}");
        let error = Client::connect("nonsense").await.unwrap_err().to_string();
        assert!(error.contains("write host:port"), "{error}");
    });
}
