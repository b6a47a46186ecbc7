//! `redhare node drain`, `undrain`, `restore` and `remove`.

use clap::{Args, Subcommand};
use foundation::ByteCount;
use master::{Client, uuid_text, v1};

use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

#[derive(Subcommand)]
pub(super) enum NodeCommand {
    /// Move every copy away from a node, or from one of its disks, and place none there
    #[command(
        after_help = "Examples:\n  redhare node drain 6f9c\n  redhare node drain 6f9c --disk 0b7e\n\nIt returns at once; \
        \"redhare status\" shows what is left. Volumes serve all the while; writes to a chunk wait for up to a grant term (3 s) \
        when its old copy is left out. What is on a disk goes to other nodes; where none has room, to another disk of its node, \
        a few chunks at a time, which have a copy less meanwhile. Refused if the copies have nowhere to go."
    )]
    Drain(PlaceArguments),
    /// End a drain: what is there stays
    #[command(after_help = "Example:\n  redhare node undrain 6f9c")]
    Undrain(PlaceArguments),
    /// Put a disk back in service that its node has put out of it
    #[command(
        after_help = "Example:\n  redhare node restore 6f9c --disk 0b7e\n\nThe drain of the disk ends, and its node starts its target anew to use it, within \
        seconds. What was rebuilt elsewhere does not come back by itself, but new copies may be placed there again."
    )]
    Restore(RestoreArguments),
    /// Take a node out of the cluster for good, once nothing is on it
    #[command(
        after_help = "Example:\n  redhare node drain 6f9c\n  redhare status          # until nothing is left on it\n  redhare node remove 6f9c\n\n\
        Refused while copies are promised to it, while a volume is exported by it or pinned to it, and while it lives and is not \
        drained. A node that is gone and whose copies were rebuilt elsewhere needs no drain. A removed node is refused when it \
        comes back; with an empty data directory and wiped disks its machine is a new node."
    )]
    Remove(RemoveArguments),
}

#[derive(Args)]
pub(super) struct RemoveArguments {
    /// The node's UUID, or the beginning of it
    node: String,
    #[command(flatten)]
    cluster: ClusterArguments,
}

#[derive(Args)]
pub(super) struct RestoreArguments {
    /// The node's UUID, or the beginning of it
    node: String,
    /// The disk's UUID, or the beginning of it
    #[arg(long, value_name = "DISK")]
    disk: String,
    #[command(flatten)]
    cluster: ClusterArguments,
}

#[derive(Args)]
pub(super) struct PlaceArguments {
    /// The node's UUID, or the beginning of it
    node: String,
    /// One of its disks: its UUID, or the beginning of it
    #[arg(long, value_name = "DISK")]
    disk: Option<String>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

#[derive(serde::Serialize)]
struct DrainView {
    node: String,
    disk: Option<String>,
    draining: bool,
    /// Copies that are there now, and the bytes promised to them.
    copies: u32,
    bytes: u64,
}

pub(super) fn run(command: NodeCommand, output: &Output) -> Result<(), Failure> {
    let (arguments, undo) = match &command {
        NodeCommand::Drain(arguments) => (arguments, false),
        NodeCommand::Undrain(arguments) => (arguments, true),
        NodeCommand::Remove(arguments) => return remove(arguments, output),
        NodeCommand::Restore(arguments) => return restore(arguments, output),
    };
    let status = arguments.cluster.status()?;
    let node = find_node(&status, &arguments.node)?;
    let disk = match &arguments.disk {
        Some(text) => Some(find_disk(&status, &node, text)?),
        None => None,
    };
    let request = v1::DrainRequest {
        node: node.clone(),
        disk: disk.clone().unwrap_or_default(),
        undo,
    };
    let call = |client: Client| async move { client.drain(request).await };
    let answer = arguments.cluster.call(call)?;
    let view = DrainView {
        node: uuid_text(&node),
        disk: disk.as_deref().map(uuid_text),
        draining: !undo,
        copies: answer.copies,
        bytes: answer.bytes,
    };
    output.print(&view, || {
        let (copies, bytes) = (view.copies, ByteCount(view.bytes));
        let place = match &view.disk {
            Some(disk) => format!("disk {disk} of node {}", view.node),
            None => format!("node {}", view.node),
        };
        match undo {
            false => format!("{place} is being drained: {copies} copies ({bytes}) are moved away; \"redhare status\" shows what is left"),
            true => format!("{place} is not drained any more: {copies} copies ({bytes}) are there"),
        }
    });
    Ok(())
}

fn find_node(status: &v1::GetStatusResponse, text: &str) -> Result<Vec<u8>, Failure> {
    let nodes: Vec<&[u8]> = status.nodes.iter().map(|node| &node.node[..]).collect();
    find("node", text, &nodes)
}

fn find_disk(status: &v1::GetStatusResponse, node: &[u8], text: &str) -> Result<Vec<u8>, Failure> {
    let of_node = status.nodes.iter().find(|known| known.node == node);
    let disks = of_node.into_iter().flat_map(|node| &node.disks);
    let disks: Vec<&[u8]> = disks
        .filter_map(|disk| Some(&disk.disk.as_ref()?.uuid[..]))
        .collect();
    find("disk", text, &disks)
}

fn restore(arguments: &RestoreArguments, output: &Output) -> Result<(), Failure> {
    let status = arguments.cluster.status()?;
    let node = find_node(&status, &arguments.node)?;
    let disk = find_disk(&status, &node, &arguments.disk)?;
    let request = v1::RestoreDiskRequest {
        node: node.clone(),
        disk: disk.clone(),
    };
    let call = |client: Client| async move { client.restore_disk(request).await };
    arguments.cluster.call(call)?;
    let (node, disk) = (uuid_text(&node), uuid_text(&disk));
    let view = serde_json::json!({ "node": node, "disk": disk, "restoring": true });
    output.print(&view, || {
        format!("disk {disk} of node {node} is put back in service; \"redhare status\" shows when it is")
    });
    Ok(())
}

fn remove(arguments: &RemoveArguments, output: &Output) -> Result<(), Failure> {
    let status = arguments.cluster.status()?;
    let node = find_node(&status, &arguments.node)?;
    let request = v1::RemoveNodeRequest { node: node.clone() };
    let call = |client: Client| async move { client.remove_node(request).await };
    arguments.cluster.call(call)?;
    let view = serde_json::json!({ "node": uuid_text(&node), "removed": true });
    output.print(&view, || {
        format!(
            "node {} is removed; end it (its engine and target say so in their logs), and wipe its disks before they are used again",
            uuid_text(&node)
        )
    });
    Ok(())
}

/// The one of `known` that `text` is, or is the beginning of.
pub(crate) fn find(what: &str, text: &str, known: &[&[u8]]) -> Result<Vec<u8>, Failure> {
    let begins = |uuid: &&&[u8]| !text.is_empty() && uuid_text(uuid).starts_with(&text.to_lowercase());
    let found: Vec<&&[u8]> = known.iter().filter(begins).collect();
    match found[..] {
        [one] => Ok(one.to_vec()),
        [] => Err(Failure::new(format!(
            "no {what} is called \"{text}\"; \"redhare status --json\" names all"
        ))),
        _ => Err(Failure::new(format!(
            "\"{text}\" is the beginning of {} {what}s; write more of it",
            found.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_names_one_node_or_is_refused() {
        let (one, two) = ([0x6f; 16], [0x60; 16]);
        let known = [&one[..], &two[..]];
        assert_eq!(find("node", "6F", &known).unwrap(), one);
        for wrong in ["6", "7", ""] {
            assert!(find("node", wrong, &known).is_err(), "{wrong}");
        }
    }
}
