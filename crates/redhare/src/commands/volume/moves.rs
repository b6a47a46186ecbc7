//! `redhare volume move` and `set`.

use clap::Args;
use master::{Client, uuid_text, v1};

use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

pub(super) const EXAMPLES: &str = "Examples:\n  redhare volume move data --chunk 7 --from 6f9c --to 0b7e\n  redhare volume move data --chunk 7 --write-node 0b7e\n\n\
    A copy moves in the background: the new one is added, comes in sync, and only then the old one is taken away; \"redhare status\" shows it. \
    Refused while a copy of the chunk is missing.";

#[derive(Args)]
pub(super) struct MoveArguments {
    /// The volume's name
    name: String,
    /// The chunk's number, as "redhare volume show" gives it
    #[arg(long, value_name = "N")]
    chunk: u32,
    /// The node that has the copy: its UUID, or the beginning of it
    #[arg(
        long,
        value_name = "NODE",
        requires = "to",
        required_unless_present = "write_node"
    )]
    from: Option<String>,
    /// The node that gets it
    #[arg(long, value_name = "NODE", requires = "from")]
    to: Option<String>,
    /// Instead: the node whose copy, which is in sync, is to order the writes from now on
    #[arg(long, value_name = "NODE", conflicts_with_all = ["from", "to"])]
    write_node: Option<String>,
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: MoveArguments,
    output: &Output,
) -> Result<(), Failure> {
    let MoveArguments { name, chunk, .. } = arguments;
    if let Some(to) = &arguments.write_node {
        let to = node(cluster, to)?;
        let request = v1::MoveWritesRequest {
            name: name.clone(),
            index: chunk,
            to: to.clone(),
        };
        let answer = cluster.call(|client: Client| async move { client.move_writes(request).await })?;
        let (epoch, to) = (answer.chunk.unwrap_or_default().epoch, uuid_text(&to));
        let view = serde_json::json!({ "volume": name, "chunk": chunk, "write_node": to, "epoch": epoch });
        output.print(&view, || {
            format!("node {to} orders the writes of chunk {chunk} of volume {name}, from epoch {epoch} on")
        });
        return Ok(());
    }
    let (from, to) = (
        arguments.from.unwrap_or_default(),
        arguments.to.unwrap_or_default(),
    );
    let (from, to) = (node(cluster, &from)?, node(cluster, &to)?);
    let request = v1::MoveCopyRequest {
        name: name.clone(),
        index: chunk,
        from: from.clone(),
        to: to.clone(),
    };
    cluster.call(|client: Client| async move { client.move_copy(request).await })?;
    let (from, to) = (uuid_text(&from), uuid_text(&to));
    let view = serde_json::json!({ "volume": name, "chunk": chunk, "from": from, "to": to });
    output.print(&view, || {
        format!(
            "the copy of chunk {chunk} of volume {name} moves from node {from} to node {to}; \"redhare status\" shows when it is there"
        )
    });
    Ok(())
}

pub(super) fn pin(
    cluster: &ClusterArguments,
    name: String,
    write_node: &str,
    output: &Output,
) -> Result<(), Failure> {
    let node = match write_node {
        "any" => Vec::new(),
        text => node(cluster, text)?,
    };
    let request = v1::PinWritesRequest { name, node };
    let answer = cluster.call(|client: Client| async move { client.pin_writes(request).await })?;
    let volume = answer.volume.unwrap_or_default();
    let pinned = (!volume.write_pin.is_empty()).then(|| uuid_text(&volume.write_pin));
    let name = volume.name;
    let view = serde_json::json!({ "volume": name, "write_node": pinned });
    output.print(&view, || match &pinned {
        Some(node) => format!("node {node} orders the writes of volume {name} wherever its copy is in sync"),
        None => format!("the masters choose who orders the writes of volume {name}"),
    });
    Ok(())
}

fn node(cluster: &ClusterArguments, text: &str) -> Result<Vec<u8>, Failure> {
    let status = cluster.status()?;
    let known: Vec<&[u8]> = status.nodes.iter().map(|node| &node.node[..]).collect();
    crate::commands::node::find("node", text, &known)
}
