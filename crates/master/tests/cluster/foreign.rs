//! Two clusters whose masters come to the same address one after the other: who keeps to the first hears nothing of the second
//! and changes nothing there, and asks the other masters it knows.

use std::path::Path;

use master::{Client, ClientError, v1};
use tonic::Code;

use crate::fake::{Fake, Running, client, create, runtime};

async fn cluster_of(client: &Client) -> Vec<u8> {
    let identity = client.identity(v1::GetIdentityRequest {}).await;
    identity.unwrap().cluster
}

fn keep(client: &Client, cluster: &[u8]) {
    client.keep_to(identity::Cluster::from_bytes(cluster.try_into().unwrap()).unwrap());
}

/// A cluster with one volume, whose master has ended.
fn founded(store: &Path) -> Vec<u8> {
    let master = Running::start(store, 0);
    let cluster = runtime().block_on(async {
        let client = client(master.port()).await;
        let _nodes = (Fake::start(&client, 1).await, Fake::start(&client, 2).await);
        create(&client, "data", 2).await.unwrap();
        cluster_of(&client).await
    });
    master.end();
    cluster
}

fn writer() -> v1::AcquireWriterRequest {
    v1::AcquireWriterRequest {
        volume: 1,
        holder: "test".to_owned(),
        term_ms: 5000,
        session: vec![9; 16],
        take_over: false,
    }
}

fn map() -> v1::GetMapRequest {
    v1::GetMapRequest {
        volume: 1,
        ..v1::GetMapRequest::default()
    }
}

#[test]
fn masters_of_another_cluster_are_refused_and_the_others_asked() {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [ours, theirs] = [0, 1].map(|index: usize| founded(directories[index].path()));
    let first = Running::start(directories[0].path(), 0);
    let port = first.port();
    let kept = runtime();
    let client_of_ours = kept.block_on(async {
        let client = client(port).await;
        assert_eq!(client.map(map()).await.unwrap().cluster, ours);
        keep(&client, &ours);
        assert_eq!(client.map(map()).await.unwrap().cluster, ours);
        client
    });
    first.end();

    // At the very same address.
    let second = Running::start_at(directories[1].path(), port);
    kept.block_on(async {
        let asked = [
            client_of_ours.map(map()).await.map(drop),
            client_of_ours.acquire_writer(writer()).await.map(drop),
            client_of_ours
                .watch(v1::watch_request::Scope::Volume(1), 0)
                .await
                .map(drop),
        ];
        for answer in asked {
            let error = answer.unwrap_err();
            assert!(matches!(error, ClientError::Foreign { .. }), "{error}");
            assert!(error.is_passing());
            let [ours, theirs] = [&ours, &theirs].map(|cluster| master::uuid_text(cluster));
            let said = format!(
                "the master at 127.0.0.1:{port} is of cluster {theirs}, and cluster {ours} was asked; name the masters of \
                 {ours} with --cluster or REDHARE_CLUSTER, and see who has taken that address over"
            );
            assert_eq!(error.to_string(), said);
        }
        // Nothing was done: the lease is free. Who keeps to no cluster asks whoever answers.
        let anyone = client(port).await;
        let leases = anyone.show_leases(v1::ShowLeasesRequest { volume: 1 }).await.unwrap();
        assert_eq!(leases.writer.map_or(0, |writer| writer.token), 0);
        assert_eq!(anyone.map(map()).await.unwrap().cluster, theirs);
    });

    // A master of the own cluster is known, too: it is found behind the stranger.
    let third = Running::start(directories[0].path(), 0);
    kept.block_on(async {
        let addresses = format!("127.0.0.1:{port},127.0.0.1:{}", third.port());
        let client = Client::connect(&addresses).await.unwrap();
        keep(&client, &ours);
        for _ in 0..3 {
            assert_eq!(client.map(map()).await.unwrap().cluster, ours);
        }
        assert_eq!(client.address(), format!("127.0.0.1:{}", third.port()));
    });
    third.end();
    // Now the stranger is all that is left, and the own one does not answer.
    kept.block_on(async {
        let addresses = format!("127.0.0.1:{port},127.0.0.1:1");
        let client = Client::connect(&addresses).await.unwrap();
        keep(&client, &ours);
        let error = client.map(map()).await.unwrap_err();
        assert!(matches!(error, ClientError::Foreign { .. }), "{error}");
        keep(&client, &theirs);
        assert!(
            client.map(map()).await.is_err(),
            "the first cluster that is named counts"
        );
    });
    second.end();
    // Back at its address.
    let first = Running::start_at(directories[0].path(), port);
    kept.block_on(async {
        let found = client_of_ours.map(map()).await;
        let found = match found {
            // The connection ended with the stranger; it is made anew with the next call.
            Err(ClientError::Unreachable { .. }) => client_of_ours.map(map()).await,
            found => found,
        };
        assert_eq!(found.unwrap().cluster, ours);
        let unknown = v1::GetMapRequest { volume: 7, ..map() };
        let error = client_of_ours.map(unknown).await.unwrap_err();
        assert!(
            matches!(
                error,
                ClientError::Refused {
                    code: Code::NotFound,
                    ..
                }
            ),
            "{error}"
        );
    });
    first.end();
}
