//! `redhare volume`.

use clap::{Args, Subcommand};
use foundation::ByteCount;
use master::{Client, uuid_text, v1};

use super::cluster::ClusterArguments;
use crate::output::{Failure, Output, table};

/// Create, list, show, enlarge and delete volumes
#[derive(Args)]
#[command(
    after_help = "Examples:\n  redhare volume create data --size 64GiB\n  redhare volume list\n  redhare volume show data\n  redhare volume resize data --size 128GiB"
)]
pub(crate) struct VolumeArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(subcommand)]
    command: Volume,
}

#[derive(Subcommand)]
enum Volume {
    /// Create a volume
    #[command(
        after_help = "Examples:\n  redhare volume create data --size 64GiB\n  redhare volume create scratch --size 1TiB --copies 2 --minimum 1"
    )]
    Create {
        /// Its name
        name: String,
        /// Its size, such as 64GiB; rounded up to whole chunks
        #[arg(long, allow_hyphen_values = true)]
        size: ByteCount,
        /// Copies of each chunk, on different nodes: 1 to 16
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
        copies: u32,
        /// Copies in sync below which writes wait [default: one less than the copies]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
        minimum: Option<u32>,
        /// Bytes in a block; 512 is not served yet
        #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
        block_bytes: u32,
        /// Size of a chunk [default: 256MiB]
        #[arg(long, allow_hyphen_values = true, value_parser = parse_chunk_size)]
        chunk_size: Option<ByteCount>,
    },
    /// List all volumes
    #[command(after_help = "Example:\n  redhare volume list --json")]
    List,
    /// Show a volume and where its chunks are
    #[command(
        after_help = "Example:\n  redhare volume show data\n\nIN SYNC: has every acknowledged write. MISSING: counted in sync, but its process has ended or is\n\
        silent. NOT IN SYNC: left out until it is copied again."
    )]
    Show {
        /// Its name
        name: String,
    },
    /// Let a volume grow while it is used
    #[command(
        after_help = "Examples:\n  redhare volume resize data --size 128GiB\n  redhare volume resize data --size +64GiB\n\nNo block moves: the new part \
        is laid over the nodes that have room. A PackFS on the volume takes it when it is opened for writing next, when it runs \
        full, and when df asks a mount. Volumes cannot shrink."
    )]
    Resize {
        /// Its name
        name: String,
        /// The size to have, such as 128GiB, or +64GiB for so much more; rounded up to whole chunks
        #[arg(long, value_parser = parse_wanted)]
        size: Wanted,
        /// Do not wait until the nodes have made the new copies
        #[arg(long)]
        no_wait: bool,
    },
    /// Delete a volume and what is in it
    #[command(after_help = "Example:\n  redhare volume delete scratch")]
    Delete {
        /// Its name
        name: String,
    },
}

/// A size, or how much more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    All(ByteCount),
    More(ByteCount),
}

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    let parse = |text: &str| text.parse::<ByteCount>().map_err(|error| error.to_string());
    match text.strip_prefix('+') {
        Some(more) => parse(more).map(Wanted::More),
        None => parse(text).map(Wanted::All),
    }
}

/// The masters take 0 for "the default", which is not what somebody means who writes it.
fn parse_chunk_size(text: &str) -> Result<ByteCount, String> {
    match text.parse::<ByteCount>() {
        Ok(ByteCount(0)) => Err("a chunk of 0 B holds nothing; write a size such as 256MiB".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

#[derive(serde::Serialize)]
struct VolumeView {
    name: String,
    number: u32,
    uuid: String,
    size_bytes: u64,
    /// The size that it will have.
    #[serde(skip_serializing_if = "Option::is_none")]
    growing_to_bytes: Option<u64>,
    state: &'static str,
    copies: u32,
    minimum: u32,
    block_bytes: u32,
    chunk_bytes: u64,
}

#[derive(serde::Serialize)]
struct ShowView {
    #[serde(flatten)]
    volume: VolumeView,
    chunks: Vec<ChunkView>,
    returning: Vec<super::cluster::ReturningRow>,
}

#[derive(serde::Serialize)]
struct ChunkView {
    index: u32,
    epoch: u64,
    write_node: String,
    /// Members whose life is the node's present one and is heard.
    in_sync: Vec<String>,
    /// Members whose life has ended or is silent, though the set cannot do without them.
    missing: Vec<String>,
    out_of_sync: Vec<String>,
    /// Of those, or in the place of a missing one: who is being sent what it has missed.
    returning: Vec<String>,
}

pub(crate) fn run(arguments: VolumeArguments, output: &Output) -> Result<(), Failure> {
    let cluster = &arguments.cluster;
    match arguments.command {
        Volume::Create {
            name,
            size,
            copies,
            minimum,
            block_bytes,
            chunk_size,
        } => {
            let request = v1::CreateVolumeRequest {
                name,
                size_bytes: size.0,
                copies,
                minimum: minimum.unwrap_or(0),
                block_bytes,
                chunk_bytes: chunk_size.map_or(0, |size| size.0),
                ..v1::CreateVolumeRequest::default()
            };
            let answer = cluster.call(|client: Client| async move { client.create_volume(request).await })?;
            let view = view(&answer.volume.unwrap_or_default());
            output.print(&view, || {
                let size = ByteCount(view.size_bytes);
                format!(
                    "volume {} of {size} in {} copies is {}",
                    view.name, view.copies, view.state
                )
            });
        }
        Volume::List => {
            let call = |client: Client| async move { client.list_volumes(v1::ListVolumesRequest {}).await };
            let views: Vec<VolumeView> = cluster.call(call)?.volumes.iter().map(view).collect();
            output.print(&views, || list(&views));
        }
        Volume::Show { name } => {
            let request = v1::ShowVolumeRequest { name };
            let answer = cluster.call(|client: Client| async move { client.show_volume(request).await })?;
            let view = ShowView {
                volume: view(&answer.volume.unwrap_or_default()),
                chunks: answer
                    .chunks
                    .iter()
                    .map(|part| chunk(part, &answer.nodes, &answer.resyncs))
                    .collect(),
                returning: super::cluster::returning(&answer.resyncs),
            };
            output.print(&view, || show(&view));
        }
        Volume::Resize { name, size, no_wait } => {
            let shown = v1::ShowVolumeRequest { name: name.clone() };
            let before = cluster.call(|client: Client| async move { client.show_volume(shown).await })?;
            let before = before.volume.unwrap_or_default().size_bytes;
            let request = v1::ResizeVolumeRequest {
                name,
                size_bytes: match size {
                    Wanted::All(size) => size.0,
                    Wanted::More(more) => before.saturating_add(more.0),
                },
                no_wait,
            };
            let answer = cluster.call(|client: Client| async move { client.resize_volume(request).await })?;
            let view = view(&answer.volume.unwrap_or_default());
            output.print(&view, || resized(&view, ByteCount(before)));
        }
        Volume::Delete { name } => {
            let request = v1::DeleteVolumeRequest { name: name.clone() };
            let answer = cluster.call(|client: Client| async move { client.delete_volume(request).await })?;
            let view = serde_json::json!({ "name": name, "number": answer.number });
            output.print(&view, || format!("volume {name} is being deleted"));
        }
    }
    Ok(())
}

pub(crate) fn state(volume: &v1::Volume) -> &'static str {
    match volume.state() {
        v1::VolumeState::Unspecified => "unknown",
        v1::VolumeState::Creating => "creating",
        v1::VolumeState::Preparing => "preparing",
        v1::VolumeState::Ready => "ready",
        v1::VolumeState::Deleting => "deleting",
    }
}

fn resized(view: &VolumeView, before: ByteCount) -> String {
    let (name, size) = (&view.name, ByteCount(view.size_bytes));
    match view.growing_to_bytes {
        Some(more) => format!("volume {name} of {size} is growing to {}", ByteCount(more)),
        None if size == before => format!("volume {name} has {size} already"),
        None => format!("volume {name} has grown from {before} to {size}"),
    }
}

fn view(volume: &v1::Volume) -> VolumeView {
    let geometry = volume.geometry.clone().unwrap_or_default();
    let added: u64 = volume.growth_chunks.iter().copied().map(u64::from).sum();
    VolumeView {
        name: volume.name.clone(),
        number: volume.number,
        uuid: uuid_text(&volume.uuid),
        size_bytes: volume.size_bytes,
        growing_to_bytes: (added > 0).then(|| volume.size_bytes + added * geometry.chunk_bytes),
        state: state(volume),
        copies: geometry.copies,
        minimum: geometry.minimum,
        block_bytes: geometry.block_bytes,
        chunk_bytes: geometry.chunk_bytes,
    }
}

fn chunk(chunk: &v1::Chunk, nodes: &[v1::NodeAddress], resyncs: &[v1::Resync]) -> ChunkView {
    let lives = |copy: &v1::Copy| {
        let node = nodes.iter().find(|node| node.node == copy.node);
        node.is_some_and(|node| {
            node.alive && node.incarnation == copy.incarnation && node.ended_through < copy.incarnation
        })
    };
    let named = |wanted: &dyn Fn(&v1::Copy) -> bool| {
        let copies = chunk.copies.iter().filter(|copy| wanted(copy));
        copies.map(|copy| uuid_text(&copy.node)).collect()
    };
    ChunkView {
        index: chunk.index,
        epoch: chunk.epoch,
        write_node: uuid_text(&chunk.write_node),
        in_sync: named(&|copy| copy.incarnation > 0 && lives(copy)),
        missing: named(&|copy| copy.incarnation > 0 && !lives(copy)),
        out_of_sync: named(&|copy| copy.incarnation == 0),
        returning: resyncs
            .iter()
            .filter(|resync| resync.index == chunk.index)
            .map(|resync| uuid_text(&resync.node))
            .collect(),
    }
}

/// Its size, and the one it is growing to.
fn sizes(view: &VolumeView) -> String {
    let size = ByteCount(view.size_bytes);
    match view.growing_to_bytes {
        Some(more) => format!("{size} -> {}", ByteCount(more)),
        None => size.to_string(),
    }
}

fn list(views: &[VolumeView]) -> String {
    let mut rows = vec![
        ["NAME", "NUMBER", "SIZE", "COPIES", "STATE"]
            .map(String::from)
            .to_vec(),
    ];
    for view in views {
        rows.push(vec![
            view.name.clone(),
            view.number.to_string(),
            sizes(view),
            view.copies.to_string(),
            view.state.to_owned(),
        ]);
    }
    table(&rows)
}

/// The first digits of a node's UUID tell nodes apart.
fn short(uuid: &str) -> &str {
    uuid.get(..8).unwrap_or(uuid)
}

fn show(view: &ShowView) -> String {
    let ShowView {
        volume,
        chunks,
        returning,
    } = view;
    let mut text = format!(
        "volume {} (number {}, {})\n{} in {} copies, at least {} in sync for writes; blocks of {} B, chunks of {}; {}\n\n",
        volume.name,
        volume.number,
        volume.uuid,
        sizes(volume),
        volume.copies,
        volume.minimum,
        volume.block_bytes,
        ByteCount(volume.chunk_bytes),
        volume.state
    );
    let mut rows = vec![
        [
            "CHUNK",
            "EPOCH",
            "WRITES AT",
            "IN SYNC",
            "MISSING",
            "NOT IN SYNC",
            "RETURNING",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for chunk in chunks {
        let nodes = |nodes: &[String]| nodes.iter().map(|node| short(node)).collect::<Vec<_>>().join(" ");
        rows.push(vec![
            chunk.index.to_string(),
            chunk.epoch.to_string(),
            short(&chunk.write_node).to_owned(),
            nodes(&chunk.in_sync),
            nodes(&chunk.missing),
            nodes(&chunk.out_of_sync),
            nodes(&chunk.returning),
        ]);
    }
    for row in returning {
        text.push_str(&super::cluster::describe_returning(row));
        text.push_str("\n\n");
    }
    text.push_str(&table(&rows));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_in_sync_only_in_the_life_that_runs() {
        let node = |number: u8, incarnation, alive, ended_through| v1::NodeAddress {
            node: vec![number; 16],
            peer_address: String::new(),
            incarnation,
            alive,
            ended_through,
        };
        let copy = |number: u8, incarnation| v1::Copy {
            node: vec![number; 16],
            disk: Vec::new(),
            incarnation,
        };
        let nodes = [
            node(1, 5, true, 4),
            node(2, 6, true, 5),
            node(3, 5, false, 4),
            node(4, 5, true, 5),
            node(5, 9, true, 8),
        ];
        let described = v1::Chunk {
            copies: vec![copy(1, 5), copy(2, 5), copy(3, 5), copy(4, 5), copy(5, 0)],
            ..v1::Chunk::default()
        };
        let resync = v1::Resync {
            node: vec![5; 16],
            total_bytes: 3 << 20,
            left_bytes: 2 << 20,
            elapsed_ms: 500,
            ..v1::Resync::default()
        };
        let view = chunk(&described, &nodes, std::slice::from_ref(&resync));
        let names = |numbers: &[u8]| {
            numbers
                .iter()
                .map(|number| uuid_text(&[*number; 16]))
                .collect::<Vec<_>>()
        };
        assert_eq!(view.in_sync, names(&[1]));
        assert_eq!(view.missing, names(&[2, 3, 4]));
        assert_eq!(view.out_of_sync, names(&[5]));
        assert_eq!(view.returning, names(&[5]));
        let rows = super::super::cluster::returning(&[resync.clone(), resync]);
        let said: Vec<String> = rows
            .iter()
            .map(super::super::cluster::describe_returning)
            .collect();
        assert_eq!(
            said,
            ["05050505 is sent what it missed of 2 chunks, 4 MiB of 6 MiB left, about 1 s"]
        );
    }
}
