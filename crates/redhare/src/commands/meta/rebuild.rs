//! `redhare meta rebuild`: the masters' lost store made anew from the nodes' disks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use master::meta;
use master::meta::rebuild::{ChunkFound, Found, Image, NodeId, SnapshotFound, VolumeNumber, Wishes, rebuild};

use super::StoreArguments;
use crate::output::{Failure, Output, table};

#[derive(Args)]
pub(super) struct RebuildArguments {
    /// Every node of the cluster: its data directory ("redhare node --data") if it is stopped and its disks are at hand, or a file of
    /// "redhare meta inventory"; separated by commas
    #[arg(long, value_name = "DIR|FILE,...", value_delimiter = ',', required = true)]
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
    snapshots: Vec<SnapshotRow>,
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
struct SnapshotRow {
    volume: u32,
    number: u64,
    /// None if no copy says it.
    name: Option<String>,
    created_unix_ms: u64,
    /// Chunks that it has, and those of which a copy was found.
    chunks: u32,
    found_chunks: u32,
    /// As it was called, if it is called otherwise now.
    was_named: Option<String>,
    /// Why it is not made anew, if it is not.
    problem: Option<String>,
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
    for node in &arguments.from_nodes {
        reports.push(super::inventory::read(node)?);
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
    let describe = || {
        let mut text = describe(&view);
        if view.filled {
            let name = meta::name(&store);
            text.push_str(&format!(
                "\nStart the masters with: redhare master --store {name} ...\nand then every node."
            ));
        }
        text
    };
    if view.complete || arguments.dry_run {
        output.print(&view, describe);
        return Ok(());
    }
    let failure = Failure::new(
        "the store was not filled: what is said above could not be determined; read the nodes that are missing, or give volumes up with --without-volume NUMBER",
    );
    Err(output.print_failed(&view, failure, describe))
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
    let snapshot = |snapshot: &SnapshotFound| SnapshotRow {
        volume: snapshot.volume.0,
        number: snapshot.number.0,
        name: snapshot.name.clone(),
        created_unix_ms: snapshot.created_unix_ms,
        chunks: snapshot.chunks,
        found_chunks: snapshot.found_chunks,
        was_named: snapshot.was_named.clone(),
        problem: snapshot.problem.clone(),
    };
    RebuildView {
        cluster: found.cluster.to_string(),
        filled,
        complete: found.image.is_some(),
        nodes: names(&found.nodes),
        missing_nodes: names(&found.missing),
        volumes: volumes.collect(),
        snapshots: found.snapshots.iter().map(snapshot).collect(),
        lost: LOST.to_vec(),
    }
}

fn describe_snapshots(view: &RebuildView) -> String {
    if view.snapshots.is_empty() {
        return String::new();
    }
    let volume_of = |snapshot: &SnapshotRow| {
        let mut volumes = view.volumes.iter();
        let found = volumes.find(|volume| volume.number == snapshot.volume);
        found.map_or_else(|| snapshot.volume.to_string(), |volume| volume.name.clone())
    };
    let header = ["SNAPSHOT", "VOLUME", "NUMBER", "CHUNKS", "FOUND"];
    let mut rows = vec![header.map(String::from).to_vec()];
    for snapshot in &view.snapshots {
        let lacking = snapshot.chunks.saturating_sub(snapshot.found_chunks);
        let mut state = match (&snapshot.problem, lacking) {
            (Some(problem), _) => format!("not made anew: {problem}"),
            (None, 0) => "every chunk".to_owned(),
            (None, lacking) => format!("no copy of {lacking} chunks"),
        };
        if let Some(name) = &snapshot.was_named {
            state.push_str(&format!(
                "; it was called \"{name}\" and was being deleted: another has that name"
            ));
        }
        rows.push(vec![
            snapshot.name.clone().unwrap_or_else(|| "-".to_owned()),
            volume_of(snapshot),
            snapshot.number.to_string(),
            snapshot.found_chunks.to_string(),
            state,
        ]);
    }
    format!("\n{}", table(&rows))
}

fn describe(view: &RebuildView) -> String {
    let mut text = format!("cluster {}, {} nodes read\n", view.cluster, view.nodes.len());
    for node in &view.missing_nodes {
        text.push_str(&format!(
            "node {node} is named by configurations and was not read\n"
        ));
    }
    if !view.missing_nodes.is_empty() {
        text.push_str(
            "if a copy on a node that was not read was ever served by force (\"redhare volume force-serve\", which the masters' audit log names), \
             read that node too: what it served since is not found otherwise\n",
        );
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
    text.push_str(&describe_snapshots(view));
    text.push_str("\nOnly the lost store knew, and no disk says:\n");
    for lost in &view.lost {
        text.push_str(&format!("  {lost}\n"));
    }
    text
}
