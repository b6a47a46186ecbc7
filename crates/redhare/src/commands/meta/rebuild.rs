//! `redhare meta rebuild`: the masters' lost store made anew from the nodes' disks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;
use foundation::ByteCount;
use master::meta;
use master::meta::rebuild::{
    ChunkFound, ClusterId, CopyReport, Disk, DiskId, Found, Geometry, Image, Incarnation, NodeId, NodeReport,
    SealedConfiguration, Uuid, VolumeNumber, Wishes, WriterToken, rebuild,
};

use super::StoreArguments;
use crate::output::{Failure, Output, table};

#[derive(Args)]
pub(super) struct RebuildArguments {
    /// The data directories of all nodes of the cluster ("redhare node --data"), none of which is running; separated by commas
    #[arg(long, value_name = "DIR,...", value_delimiter = ',', required = true)]
    from_nodes: Vec<PathBuf>,
    #[command(flatten)]
    store: StoreArguments,
    /// Only say what is found
    #[arg(long)]
    dry_run: bool,
    /// The name of a volume, which only the lost store knew; can be repeated
    #[arg(long = "name", value_name = "NUMBER=NAME", value_parser = parse_name)]
    names: Vec<(u32, String)>,
    /// An old file of "redhare meta export": names, identities for hosts and exports come from there, nothing else
    #[arg(long, value_name = "FILE")]
    backup: Option<PathBuf>,
    /// Give up a volume that cannot be determined, or was deleted; can be repeated
    #[arg(long = "without-volume", value_name = "NUMBER")]
    without: Vec<u32>,
}

fn parse_name(text: &str) -> Result<(u32, String), String> {
    let (number, name) = text.split_once('=').ok_or("write NUMBER=NAME, such as 3=data")?;
    let number = number
        .parse()
        .map_err(|error| format!("\"{number}\": {error}; write NUMBER=NAME"))?;
    match name.is_empty() {
        false => Ok((number, name.to_owned())),
        true => Err("the name is empty; write NUMBER=NAME, such as 3=data".to_owned()),
    }
}

#[derive(serde::Serialize)]
struct RebuildView {
    cluster: String,
    /// The store was filled; false after a dry run.
    filled: bool,
    /// Nothing stands in the way.
    complete: bool,
    nodes: Vec<String>,
    /// Nodes that configurations name and that were not read.
    missing_nodes: Vec<String>,
    volumes: Vec<VolumeRow>,
    /// What only the lost store knew, in words.
    lost: Vec<&'static str>,
}

#[derive(serde::Serialize)]
struct VolumeRow {
    number: u32,
    name: String,
    /// False if only the lost store knew it.
    name_known: bool,
    problem: Option<String>,
    chunks: Vec<ChunkRow>,
}

#[derive(serde::Serialize)]
struct ChunkRow {
    index: u32,
    epoch: u64,
    in_sync: Vec<String>,
    missing: Vec<String>,
    stale: Vec<String>,
    problem: Option<String>,
}

/// Of which no disk says anything.
const LOST: [&str; 4] = [
    "exports to hosts, unless a backup was given",
    "pinned write nodes, drains and moves: to be asked for again",
    "write leases: who writes has to open the volume anew",
    "volumes being deleted or enlarged: to be deleted or enlarged again",
];

pub(super) fn run(arguments: &RebuildArguments, output: &Output) -> Result<(), Failure> {
    let store = arguments.store.read()?;
    let mut reports = Vec::new();
    for directory in &arguments.from_nodes {
        reports.push(read_node(directory)?);
    }
    let wishes = Wishes {
        names: arguments
            .names
            .iter()
            .map(|(number, name)| (VolumeNumber(*number), name.clone()))
            .collect::<BTreeMap<_, _>>(),
        backup: arguments.backup.as_deref().map(super::read).transpose()?,
        without: arguments
            .without
            .iter()
            .map(|&number| VolumeNumber(number))
            .collect::<BTreeSet<_>>(),
    };
    let mut seed = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| std::io::Read::read_exact(&mut random, &mut seed))
        .map_err(|error| Failure::new(format!("cannot read /dev/urandom: {error}")))?;
    let found = rebuild(&reports, &wishes, u64::from_le_bytes(seed)).map_err(Failure::new)?;
    let fills = found.image.as_ref().filter(|_| !arguments.dry_run);
    if let Some(image) = fills {
        fill(image, &store, output)?;
    }
    let view = view(&found, fills.is_some());
    output.print(&view, || {
        let mut text = describe(&view);
        if view.filled {
            let name = meta::name(&store);
            text.push_str(&format!(
                "\nStart the masters with: redhare master --store {name} ...\nand then every node."
            ));
        }
        text
    });
    match (view.complete, arguments.dry_run) {
        (true, _) | (_, true) => Ok(()),
        (false, false) => Err(Failure::new(
            "the store was not filled: what is said above could not be determined; read the nodes that are missing, or give volumes up with --without-volume NUMBER",
        )),
    }
}

fn fill(image: &Image, store: &master::StoreConfig, output: &Output) -> Result<(), Failure> {
    let bar = indicatif::ProgressBar::new(image.records.len() as u64);
    if output.is_json() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let done = meta::import(image, store, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    done.map_err(Failure::new)
}

/// What the disks of the node in `directory` say. Blocks.
fn read_node(directory: &Path) -> Result<NodeReport, Failure> {
    let described = crate::commands::target::described_node(&directory.join("target.toml"))?;
    let failed = |error: String| Failure::new(format!("the node in {}: {error}", directory.display()));
    let (identity, disks) = (described.identity, described.disks);
    let inventory = reactor::run(&reactor::Config::default(), async move {
        target::node::inventory(identity.cluster, &disks)
            .await
            .map_err(|error| error.to_string())
    });
    let inventory = inventory
        .map_err(|error| failed(error.to_string()))?
        .map_err(failed)?;
    let disks = inventory.disks.iter().map(|disk| Disk {
        id: DiskId(Uuid(disk.uuid)),
        capacity: ByteCount(disk.capacity_bytes),
        used: ByteCount(disk.capacity_bytes.saturating_sub(disk.free_bytes)),
    });
    let chunk_id = |chunk: volume::ChunkId| meta::rebuild::ChunkId {
        volume: VolumeNumber(chunk.volume.0),
        index: chunk.index.0,
    };
    let copy = |found: &target::node::FoundCopy| CopyReport {
        chunk: chunk_id(found.record.chunk),
        disk: DiskId(Uuid(found.disk)),
        checksums: found.checksums,
        geometry: geometry(&found.record.geometry),
        sealed: found.record.sealed,
        configuration: found.record.config.as_ref().map(configuration),
        token: WriterToken(found.record.writer_token.0),
    };
    Ok(NodeReport {
        cluster: ClusterId(Uuid(identity.cluster.0)),
        node: NodeId(Uuid(identity.node.0)),
        peer_address: described.address,
        incarnation: Incarnation(identity.incarnation.0),
        disks: disks.collect(),
        copies: inventory.copies.iter().map(copy).collect(),
        damaged: inventory.damaged.iter().map(|chunk| chunk_id(*chunk)).collect(),
    })
}

fn configuration(config: &volume::ChunkConfig) -> SealedConfiguration {
    let member =
        |member: &volume::Membership| (NodeId(Uuid(member.node.0)), Incarnation(member.incarnation.0));
    SealedConfiguration {
        epoch: config.epoch,
        write_node: NodeId(Uuid(config.write_node.0)),
        members: config.members.iter().map(member).collect(),
    }
}

/// The same in bytes, as the masters keep it.
fn geometry(geometry: &volume::Geometry) -> Geometry {
    let bytes = |blocks: u32| ByteCount(u64::from(blocks) * u64::from(geometry.block_bytes));
    Geometry {
        block_bytes: geometry.block_bytes,
        metadata_bytes: geometry.metadata_bytes,
        stripe_unit: bytes(geometry.stripe_unit_blocks),
        chunk: bytes(geometry.chunk_blocks),
        region: bytes(geometry.region_blocks),
        copies: geometry.copies,
        minimum: geometry.minimum,
        group_chunks: geometry.group_chunks.clone(),
    }
}

fn view(found: &Found, filled: bool) -> RebuildView {
    let names = |nodes: &[NodeId]| nodes.iter().map(ToString::to_string).collect();
    let chunk = |chunk: &ChunkFound| ChunkRow {
        index: chunk.index,
        epoch: chunk.epoch.0,
        in_sync: names(&chunk.in_sync),
        missing: names(&chunk.missing),
        stale: names(&chunk.stale),
        problem: chunk.problem.clone(),
    };
    let volumes = found.volumes.iter().map(|volume| VolumeRow {
        number: volume.number.0,
        name: volume.name.clone(),
        name_known: volume.is_name_known,
        problem: volume.problem.clone(),
        chunks: volume.found.iter().map(chunk).collect(),
    });
    RebuildView {
        cluster: found.cluster.to_string(),
        filled,
        complete: found.image.is_some(),
        nodes: names(&found.nodes),
        missing_nodes: names(&found.missing),
        volumes: volumes.collect(),
        lost: LOST.to_vec(),
    }
}

fn describe(view: &RebuildView) -> String {
    let mut text = format!("cluster {}, {} nodes read\n", view.cluster, view.nodes.len());
    for node in &view.missing_nodes {
        text.push_str(&format!(
            "node {node} is named by configurations and was not read\n"
        ));
    }
    let header = ["VOLUME", "NUMBER", "CHUNKS", "EPOCHS UP TO", "FOUND"];
    let mut rows = vec![header.map(String::from).to_vec()];
    for volume in &view.volumes {
        let lacking = volume
            .chunks
            .iter()
            .filter(|chunk| !chunk.missing.is_empty() || !chunk.stale.is_empty());
        let state = match (&volume.problem, lacking.count()) {
            (Some(problem), _) => problem.clone(),
            (None, 0) => "every copy".to_owned(),
            (None, count) => format!("what is needed; {count} chunks have a copy that is old or missing"),
        };
        let lost = if volume.name_known {
            ""
        } else {
            "; its name is lost, give it with --name"
        };
        rows.push(vec![
            volume.name.clone(),
            volume.number.to_string(),
            volume.chunks.len().to_string(),
            volume
                .chunks
                .iter()
                .map(|chunk| chunk.epoch)
                .max()
                .unwrap_or(0)
                .to_string(),
            format!("{state}{lost}"),
        ]);
    }
    text.push_str(&table(&rows));
    for volume in &view.volumes {
        for chunk in &volume.chunks {
            if let Some(problem) = &chunk.problem {
                text.push_str(&format!(
                    "chunk {} of volume {}: {problem}\n",
                    chunk.index, volume.number
                ));
            }
        }
    }
    text.push_str("\nOnly the lost store knew, and no disk says:\n");
    for lost in &view.lost {
        text.push_str(&format!("  {lost}\n"));
    }
    text
}
