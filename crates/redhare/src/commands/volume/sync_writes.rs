//! `redhare volume set --sync-writes`.

use std::time::{Duration, Instant};

use master::{Client, uuid_text, v1};

use super::short;
use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

/// How long the nodes have to say that they do so; they hear of it at once, and say it with their next heartbeat.
const NODES_LIMIT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(200);

/// Sets it, and waits until it is in force.
pub(super) fn set(
    cluster: &ClusterArguments,
    name: &str,
    is_on: bool,
    output: &Output,
) -> Result<(), Failure> {
    let deadline = Instant::now() + NODES_LIMIT;
    loop {
        let request = v1::SetSyncWritesRequest {
            name: name.to_owned(),
            sync_writes: is_on,
        };
        let answer = cluster.call(|client: Client| async move { client.set_sync_writes(request).await })?;
        let waiting: Vec<String> = answer.waiting_nodes.iter().map(|node| uuid_text(node)).collect();
        if waiting.is_empty() {
            let view = serde_json::json!({ "volume": name, "sync_writes": is_on });
            output.print(&view, || said(name, is_on));
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Failure::new(not_yet(name, &waiting)));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Masters of the release before have left out what they do not know.
pub(super) fn unknown_to_masters(name: &str) -> Failure {
    Failure::new(format!(
        "volume {name} was created, but without sync writes: the masters run a release that does not know them; upgrade masters and nodes, then use \
         \"redhare volume set {name} --sync-writes on\", or delete it"
    ))
}

fn said(name: &str, is_on: bool) -> String {
    match is_on {
        true => format!(
            "no write of volume {name} is acknowledged any more before it is durable on every copy in sync"
        ),
        false => {
            format!(
                "writes of volume {name} are durable when they are flushed; clients that have it open may go on as before"
            )
        }
    }
}

fn nodes(waiting: &[String]) -> String {
    waiting
        .iter()
        .map(|node| short(node))
        .collect::<Vec<_>>()
        .join(", ")
}

fn not_yet(name: &str, waiting: &[String]) -> String {
    format!(
        "sync writes are on for volume {name}, but nodes {} have not said within {} s that they do so: what is acknowledged there may not be durable; \
         see that they live (\"redhare status\"), and repeat the command",
        nodes(waiting),
        NODES_LIMIT.as_secs()
    )
}

/// What `volume show` says of a volume that has them.
pub(super) fn describe(waiting: &[String]) -> String {
    let mut text = "sync writes: none is acknowledged before it is durable on every copy in sync".to_owned();
    if !waiting.is_empty() {
        text.push_str(&format!(", but not yet at nodes {}", nodes(waiting)));
    }
    text + "\n\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_do_it_yet_is_named() {
        let nodes = ["0123456789".to_owned(), "abcdef0123".to_owned()];
        assert_eq!(
            describe(&nodes),
            "sync writes: none is acknowledged before it is durable on every copy in sync, but not yet at nodes 01234567, abcdef01\n\n"
        );
        assert_eq!(
            describe(&[]),
            "sync writes: none is acknowledged before it is durable on every copy in sync\n\n"
        );
        assert!(not_yet("data", &nodes).contains("nodes 01234567, abcdef01 have not said within 15 s"));
    }
}
