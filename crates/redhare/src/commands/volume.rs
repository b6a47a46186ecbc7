//! `redhare volume`.

mod clone;
mod delete;
mod force;
mod leases;
mod moves;
mod read;
mod reservations;
mod resize;
mod scrub;
mod snapshot;
mod sync_writes;

use clap::{Args, Subcommand};
use foundation::ByteCount;
use master::view::{
    DiskUse, OriginView, ReturningRow, UnplacedView, describe_returning, on_disks, origin, returning, short,
    state,
};
use master::{Client, uuid_text, v1};

use super::cluster::ClusterArguments;
use crate::output::{Failure, Output, table};

/// Create, list, show, enlarge, export, clone and delete volumes
#[derive(Args)]
#[command(
    after_help = "Examples:\n  redhare volume create data --size 64GiB\n  redhare volume list\n  redhare volume show data\n  redhare volume resize data --size 128GiB\n  redhare volume export data\n  redhare volume snapshot create data monday\n  redhare volume clone data@monday trial"
)]
pub(crate) struct VolumeArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(subcommand)]
    command: Volume,
}

/// Nodes that export a volume unless somebody says otherwise: the loss of one is survived.
const PORTALS_DEFAULT: u32 = 2;

#[derive(Subcommand)]
enum Volume {
    /// Create a volume
    #[command(
        after_help = "Examples:\n  redhare volume create data --size 64GiB\n  redhare volume create scratch --size 1TiB --copies 2 --minimum 1\n  redhare volume create photos --size 1TiB --checksums off\n  redhare volume create models --size 1TiB --spread rack"
    )]
    Create {
        /// Its name
        name: String,
        /// Its size, such as 64GiB; rounded up to whole chunks
        #[arg(long, allow_hyphen_values = true)]
        size: ByteCount,
        /// Copies of each chunk, on different nodes, and in different racks as --spread says: 1 to 16
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
        /// Keep a checksum of each block apart from it: what a disk returns wrong is noticed at the next read and
        /// repaired from another copy. It cannot be changed later
        #[arg(long, value_enum, default_value_t = Switch::On)]
        checksums: Switch,
        /// What no two copies of a chunk may have in common: "rack" refuses what does not fit so, "node" does not look at racks.
        /// [default: rack; with fewer racks than copies over all of them, as evenly as room allows]
        #[arg(long, value_enum)]
        spread: Option<Spread>,
        /// Acknowledge no write before it is durable on every copy in sync, so that a power cut everywhere takes nothing, flushed or not.
        /// Writes take as long as the slowest disk's flush. "redhare volume set" changes it
        #[arg(long)]
        sync_writes: bool,
    },
    /// Move a copy of a chunk to another node, or its writes to another copy
    #[command(after_help = moves::EXAMPLES)]
    Move(moves::MoveArguments),
    /// Choose the node that orders all writes of a volume, or whether each is durable before it is acknowledged
    #[command(
        after_help = "Examples:\n  redhare volume set data --write-node 6f9c\n  redhare volume set data --write-node any\n  redhare volume set data --sync-writes on\n\nThe write node must have a copy of every \
        chunk. While it is gone others order the writes; they come back to it when its copies are in sync again.\n\nWith sync writes no write is acknowledged before it is durable on every copy in sync, whoever writes. Hosts of an exported volume are disconnected \
        for a moment, since a controller says for its whole life whether there is a write cache."
    )]
    Set {
        /// The volume's name
        name: String,
        /// The node: its UUID, or the beginning of it; "any" leaves it to the masters
        #[arg(
            long,
            value_name = "NODE|any",
            required_unless_present = "sync_writes",
            conflicts_with = "sync_writes"
        )]
        write_node: Option<String>,
        /// Whether each write is durable on every copy in sync before it is acknowledged
        #[arg(long, value_enum)]
        sync_writes: Option<Switch>,
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
    #[command(after_help = resize::EXAMPLES)]
    Resize(resize::ResizeArguments),
    /// Export a volume to ordinary NVMe/TCP hosts, by some of the nodes
    #[command(
        after_help = "Examples:\n  redhare volume export data\n  redhare volume export data --portals 3\n  \
        redhare volume export data --on 6f9c,0b7e --host nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427\n\n\
        A host connects to each portal (nvme connect-all -t tcp -a ADDRESS -s PORT does so) and sees one disk. It uses the \
        first portal as long as it reaches it. To change portals or hosts, export again: what is not named is taken back."
    )]
    Export {
        /// Its name
        name: String,
        /// How many nodes: 1 to 4; those that export it already stay as long as they live [default: 2]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4))]
        portals: Option<u32>,
        /// On these nodes, the one that hosts prefer first: UUIDs, or the beginnings of them
        #[arg(
            long,
            value_name = "NODE,..",
            value_delimiter = ',',
            conflicts_with = "portals"
        )]
        on: Vec<String>,
        /// Only for hosts of these names (NQNs) [default: all]
        #[arg(long = "host", value_name = "NQN")]
        hosts: Vec<String>,
    },
    /// Show who writes a volume's file system, who asks for it, and who reads which state of it
    #[command(after_help = leases::EXAMPLES)]
    Leases(leases::LeasesArguments),
    /// Show what the hosts of an exported volume have reserved, or void it
    #[command(after_help = reservations::EXAMPLES)]
    Reservations(reservations::ReservationsArguments),
    /// Export a volume no more; its hosts are disconnected
    #[command(after_help = "Example:\n  redhare volume unexport data")]
    Unexport {
        /// Its name
        name: String,
    },
    /// Compare every block of every copy, those of snapshots too, with its checksum, and repair what does not fit
    #[command(
        after_help = "Examples:\n  redhare volume scrub data\n  redhare volume scrub data --rate 50MiB --json\n\nThe nodes read their disks; the blocks stay \
        there. The volume is used all the while. The command runs until all is compared; what it has repaired stays so if it is \
        stopped. The exit status is 1 if a block is lost, or if not all copies could be compared. For a scrub now and then let \
        cron or a systemd timer run it."
    )]
    Scrub {
        /// Its name
        name: String,
        /// Bytes of copies compared in a second at most, over all nodes
        #[arg(long, default_value = "200MiB", value_name = "SIZE", value_parser = parse_rate)]
        rate: ByteCount,
    },
    /// Keep a volume as it is at one moment, list what is kept, delete it
    Snapshot(snapshot::SnapshotArguments),
    /// Make a volume of a snapshot, without copying it
    #[command(after_help = clone::CLONE_EXAMPLES)]
    Clone(clone::CloneArguments),
    /// Give a clone data of its own, so that its snapshot can be deleted
    #[command(after_help = clone::FLATTEN_EXAMPLES)]
    Flatten(clone::FlattenArguments),
    /// Read the bytes of a volume, or of a snapshot of it
    #[command(after_help = read::EXAMPLES)]
    Read(read::ReadArguments),
    /// Have a copy served whatever it lacks, where too few copies in sync are left: what it lacks is lost
    #[command(after_help = force::EXAMPLES)]
    ForceServe(force::ForceArguments),
    /// Delete a volume and what is in it
    #[command(after_help = delete::EXAMPLES)]
    Delete(delete::DeleteArguments),
}

/// What no two copies of a chunk may have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Spread {
    Node,
    Rack,
}

/// Whether something is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

/// The masters take 0 for "the default", which is not what somebody means who writes it.
fn parse_chunk_size(text: &str) -> Result<ByteCount, String> {
    match text.parse::<ByteCount>() {
        Ok(ByteCount(0)) => Err("a chunk of 0 B holds nothing; write a size such as 256MiB".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

fn parse_rate(text: &str) -> Result<ByteCount, String> {
    match text.parse::<ByteCount>() {
        Ok(ByteCount(0)) => Err("nothing would ever be compared; write a size such as 50MiB".to_owned()),
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
    /// Its copies keep checksums of their blocks.
    checksums: bool,
    /// Every write is durable on every copy in sync before it is acknowledged.
    sync_writes: bool,
    /// What it owns of disks; null where not every living node has said it yet, or it was not asked.
    disk_use: Option<DiskUse>,
    /// What no two copies of a chunk may have in common; absent if nobody has said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<&'static str>,
    /// Absent from one that is no clone, or not any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<OriginView>,
}

/// How ordinary hosts reach a volume.
#[derive(serde::Serialize)]
struct ExportView {
    nqn: String,
    /// The one that hosts prefer first.
    portals: Vec<PortalView>,
    /// The hosts that may connect; none for all.
    hosts: Vec<String>,
}

#[derive(serde::Serialize)]
struct PortalView {
    node: String,
    address: String,
    alive: bool,
}

#[derive(serde::Serialize)]
struct ShowView {
    #[serde(flatten)]
    volume: VolumeView,
    /// Absent if it is not exported.
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<ExportView>,
    /// Nodes that may still acknowledge a write before it is durable, though no write should be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_yet_sync_nodes: Vec<String>,
    /// Absent as long as its chunks find places.
    #[serde(skip_serializing_if = "Option::is_none")]
    unplaced: Option<UnplacedView>,
    chunks: Vec<ChunkView>,
    returning: Vec<ReturningRow>,
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
            checksums,
            spread,
            sync_writes,
        } => {
            let request = v1::CreateVolumeRequest {
                name,
                size_bytes: size.0,
                copies,
                minimum: minimum.unwrap_or(0),
                block_bytes,
                chunk_bytes: chunk_size.map_or(0, |size| size.0),
                checksums: checksums == Switch::On,
                sync_writes,
                spread: match spread {
                    None => v1::Spread::Unspecified,
                    Some(Spread::Node) => v1::Spread::Node,
                    Some(Spread::Rack) => v1::Spread::Rack,
                }
                .into(),
                ..v1::CreateVolumeRequest::default()
            };
            let answer = cluster.call(|client: Client| async move { client.create_volume(request).await })?;
            let view = view(&answer.volume.unwrap_or_default());
            if sync_writes && !view.sync_writes {
                return Err(sync_writes::unknown_to_masters(&view.name));
            }
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
            let answer = cluster.call(call)?;
            let mut views: Vec<VolumeView> = answer.volumes.iter().map(view).collect();
            if let Some(uses) = &answer.uses {
                views
                    .iter_mut()
                    .for_each(|view| view.disk_use = Some(DiskUse::among(uses, view.number)));
            }
            output.print(&views, || list(&views));
        }
        Volume::Show { name } => {
            let request = v1::ShowVolumeRequest { name };
            let answer = cluster.call(|client: Client| async move { client.show_volume(request).await })?;
            let described = answer.volume.unwrap_or_default();
            let view = ShowView {
                export: exported(&described, &answer.nodes),
                volume: VolumeView {
                    disk_use: answer.r#use.as_ref().map(DiskUse::of),
                    ..view(&described)
                },
                unplaced: answer.unplaced.as_ref().map(UnplacedView::of),
                not_yet_sync_nodes: answer.waiting_nodes.iter().map(|node| uuid_text(node)).collect(),
                chunks: answer
                    .chunks
                    .iter()
                    .map(|part| chunk(part, &answer.nodes, &answer.resyncs))
                    .collect(),
                returning: returning(&answer.resyncs),
            };
            output.print(&view, || show(&view));
        }
        Volume::Resize(arguments) => resize::run(cluster, arguments, output)?,
        Volume::Move(arguments) => moves::run(cluster, arguments, output)?,
        Volume::Set {
            name,
            write_node,
            sync_writes,
        } => match (write_node, sync_writes) {
            (Some(node), _) => moves::pin(cluster, name, &node, output)?,
            (None, wanted) => sync_writes::set(cluster, &name, wanted == Some(Switch::On), output)?,
        },
        Volume::Export {
            name,
            portals,
            on,
            hosts,
        } => export(cluster, (name, portals, on, hosts), output)?,
        Volume::ForceServe(arguments) => force::run(cluster, arguments, output)?,
        Volume::Leases(arguments) => leases::run(cluster, arguments, output)?,
        Volume::Reservations(arguments) => reservations::run(cluster, arguments, output)?,
        Volume::Unexport { name } => {
            let request = v1::UnexportVolumeRequest { name: name.clone() };
            cluster.call(|client: Client| async move { client.unexport_volume(request).await })?;
            let view = serde_json::json!({ "name": name });
            output.print(&view, || format!("volume {name} is exported no more"));
        }
        Volume::Scrub { name, rate } => scrub::run(cluster, name, rate, output)?,
        Volume::Snapshot(arguments) => snapshot::run(cluster, arguments, output)?,
        Volume::Clone(arguments) => clone::run(cluster, arguments, output)?,
        Volume::Flatten(arguments) => clone::flatten(cluster, &arguments, output)?,
        Volume::Read(arguments) => read::run(cluster, &arguments, output)?,
        Volume::Delete(arguments) => delete::run(cluster, arguments, output)?,
    }
    Ok(())
}

fn export(
    cluster: &ClusterArguments,
    (name, portals, on, hosts): (String, Option<u32>, Vec<String>, Vec<String>),
    output: &Output,
) -> Result<(), Failure> {
    let mut nodes = Vec::new();
    if !on.is_empty() {
        let status = cluster.status()?;
        let known: Vec<&[u8]> = status.nodes.iter().map(|node| &node.node[..]).collect();
        for text in &on {
            nodes.push(super::node::find("node", text, &known)?);
        }
    }
    let request = v1::ExportVolumeRequest {
        name,
        nodes,
        count: portals.unwrap_or(PORTALS_DEFAULT),
        hosts,
    };
    let answer = cluster.call(|client: Client| async move { client.export_volume(request).await })?;
    let volume = answer.volume.unwrap_or_default();
    let Some(view) = exported(&volume, &answer.nodes) else {
        return Err(Failure::new(
            "the masters named no portals: use masters and commands of one release",
        ));
    };
    output.print(&view, || {
        let mut text = describe_export(&view);
        text.push_str("a portal serves it once its node has heard so, within a heartbeat");
        text
    });
    Ok(())
}

/// How a volume is exported; none if it is not.
fn exported(volume: &v1::Volume, nodes: &[v1::NodeAddress]) -> Option<ExportView> {
    let portal = |uuid: &Vec<u8>| {
        let node = nodes.iter().find(|node| node.node == *uuid);
        PortalView {
            node: uuid_text(uuid),
            address: node.map_or_else(String::new, |node| node.peer_address.clone()),
            alive: node.is_some_and(|node| node.alive),
        }
    };
    (!volume.portals.is_empty()).then(|| ExportView {
        nqn: volume.export_nqn.clone(),
        portals: volume.portals.iter().map(portal).collect(),
        hosts: volume.hosts.clone(),
    })
}

fn describe_export(export: &ExportView) -> String {
    let hosts = match export.hosts.len() {
        0 => "all hosts".to_owned(),
        _ => export.hosts.join(", "),
    };
    let mut text = format!("exported as {} to {hosts}\n", export.nqn);
    let mut rows = vec![["PORTAL", "NODE", "STATE"].map(String::from).to_vec()];
    for (place, portal) in export.portals.iter().enumerate() {
        let state = match (portal.alive, place) {
            (false, _) => "gone",
            (true, 0) => "alive, preferred",
            (true, _) => "alive",
        };
        rows.push(vec![
            portal.address.clone(),
            portal.node.clone(),
            state.to_owned(),
        ]);
    }
    text.push_str(&table(&rows));
    text.push('\n');
    text
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
        checksums: volume.checksums,
        sync_writes: volume.sync_writes,
        disk_use: None,
        spread: match volume.spread() {
            v1::Spread::Unspecified => None,
            v1::Spread::Node => Some("node"),
            v1::Spread::Rack => Some("rack"),
        },
        origin: origin(volume),
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
    let has_clones = views.iter().any(|view| view.origin.is_some());
    let mut head = vec!["NAME", "NUMBER", "SIZE", "ON DISKS", "COPIES", "STATE"];
    head.extend(has_clones.then_some("ORIGIN"));
    let mut rows = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    for view in views {
        let mut row = vec![
            view.name.clone(),
            view.number.to_string(),
            sizes(view),
            on_disks(view.disk_use),
            view.copies.to_string(),
            view.state.to_owned(),
        ];
        if has_clones {
            row.push(view.origin.as_ref().map_or_else(String::new, clone::describe));
        }
        rows.push(row);
    }
    table(&rows)
}

fn show(view: &ShowView) -> String {
    let ShowView {
        volume,
        export,
        not_yet_sync_nodes,
        unplaced,
        chunks,
        returning,
    } = view;
    let mut text = format!(
        "volume {} (number {}, {})\n{} in {} copies, at least {} in sync for writes; blocks of {} B, chunks of {}; checksums {}; {}\n\n",
        volume.name,
        volume.number,
        volume.uuid,
        sizes(volume),
        volume.copies,
        volume.minimum,
        volume.block_bytes,
        ByteCount(volume.chunk_bytes),
        super::cluster::on_or_off(volume.checksums),
        volume.state
    );
    if let Some(unplaced) = unplaced {
        text.push_str(&format!("{}\n\n", unplaced.describe()));
    }
    if let Some(disk_use) = volume.disk_use {
        text.push_str(&disk_use.describe());
    }
    if let Some(spread) = volume.spread {
        text.push_str(&format!("no two copies of a chunk in one {spread}\n\n"));
    }
    if volume.sync_writes {
        text.push_str(&sync_writes::describe(not_yet_sync_nodes));
    }
    if let Some(origin) = &volume.origin {
        text.push_str(&format!("clone of {}\n\n", clone::describe(origin)));
    }
    if let Some(export) = export {
        text.push_str(&describe_export(export));
    }
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
        text.push_str(&describe_returning(row));
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
        let rows = returning(&[resync.clone(), resync]);
        let said: Vec<String> = rows.iter().map(describe_returning).collect();
        assert_eq!(
            said,
            ["05050505 is sent what it missed of 2 chunks, 4 MiB of 6 MiB left, about 1 s"]
        );
    }
}
