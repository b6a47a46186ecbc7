//! `redhare meta`: a cluster's metadata as a file.

mod inventory;
mod rebuild;
pub(crate) mod restored;

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use master::meta::Image;
use master::{Config, StoreConfig, meta};

use crate::output::{Failure, Output};

/// Back up the masters' metadata, move a cluster from one store to another, or make a lost store anew
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    redhare meta export cluster.meta --store etcd://192.0.2.11:2379/redhare\n\n\
    From one master with a file to several on etcd, with all masters stopped (volumes are read and written meanwhile):\n  \
    redhare meta export cluster.meta --move --store /var/lib/redhare/master\n  \
    redhare meta import cluster.meta --store etcd://192.0.2.11:2379/redhare")]
pub(crate) struct MetaArguments {
    #[command(subcommand)]
    command: MetaCommand,
}

#[derive(Subcommand)]
enum MetaCommand {
    /// Write all metadata of a cluster to a file
    #[command(
        after_help = "Example:\n  redhare meta export cluster.meta --store /var/lib/redhare/master\n\nA master must not have the directory open. \
        An etcd may be in use, except with --move."
    )]
    Export(ExportArguments),
    /// Put a cluster's metadata from a file into an empty store
    #[command(
        after_help = "Example:\n  redhare meta import cluster.meta --store etcd://192.0.2.11:2379/redhare\n\nAn import that was broken off can be repeated; no \
        master opens the store before."
    )]
    Import(ImportArguments),
    /// Write what the disks of a stopped node say to a file, for "redhare meta rebuild" on another machine
    #[command(
        after_help = "Example:\n  redhare meta inventory node-a.json --data /var/lib/redhare/node\n\nThe node must not be running, and must not run again before the \
        masters do: its engine keeps trying to reach them."
    )]
    Inventory(inventory::InventoryArguments),
    /// Make the masters' lost metadata anew from the nodes' disks
    #[command(
        after_help = "Examples:\n  redhare meta rebuild --from-nodes a.json,b.json,c.json --store /var/lib/redhare/new --dry-run\n  \
        redhare meta rebuild --from-nodes a.json,b.json,c.json --store /var/lib/redhare/new --name 3=data\n\n\
        No node and no master may be running, and the old store must never be used again. Name every node of the cluster: what a node that is not named \
        has done alone cannot be known. Refused where a newer configuration than those found may have been in force. Names, hosts' \
        identities of volumes and exports are lost unless an old \"redhare meta export\" is given with --backup."
    )]
    Rebuild(rebuild::RebuildArguments),
    /// Say how far masters on a store from a backup are with what the nodes have done since
    #[command(
        after_help = "Examples:\n  redhare meta restored\n  redhare meta restored --without-node 6f9c0b7e-0d5c-4c6a-9d59-3f0f6c2e8a11\n\n\
        After \"redhare meta import --backup\" the masters ask every node how its copies are, settle every chunk on what they say, and go on above all numbers \
        that were given. It takes some seconds if all nodes run. Clients that are connected need no master; who opens a volume waits, and who writes a PackFS loses its lease. What would change anything is refused and can be repeated. \
        --without-node is believed until another master leads; fewer nodes than a volume's minimum can be done without."
    )]
    Restored(restored::RestoredArguments),
    /// Check a file and say what is in it
    #[command(after_help = "Example:\n  redhare meta show cluster.meta")]
    Show {
        /// The file
        file: PathBuf,
    },
}

#[derive(Args)]
struct StoreArguments {
    /// Directory of the metadata store; or an etcd and a prefix in it
    #[arg(long, value_name = "DIR|etcd://HOST:PORT,.../PREFIX")]
    store: String,
    /// The masters' TOML file, for its [etcd]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
struct ExportArguments {
    /// The file to write; it must not be there
    file: PathBuf,
    #[command(flatten)]
    store: StoreArguments,
    /// The cluster moves: close the store for good, so that no master starts on it again
    #[arg(long = "move")]
    moves: bool,
}

#[derive(Args)]
struct ImportArguments {
    /// The file
    file: PathBuf,
    #[command(flatten)]
    store: StoreArguments,
    /// The file is a backup of a store that was not closed by "export --move", and no master will ever start on that again. The masters find out from
    /// the nodes what was done since ("redhare meta restored")
    #[arg(long)]
    backup: bool,
}

#[derive(serde::Serialize)]
struct MetaView {
    file: String,
    cluster: String,
    revision: u64,
    moved: bool,
    nodes: usize,
    volumes: usize,
    chunks: usize,
    records: usize,
}

pub(crate) fn run(arguments: &MetaArguments, output: &Output) -> Result<(), Failure> {
    match &arguments.command {
        MetaCommand::Export(arguments) => export(arguments, output),
        MetaCommand::Import(arguments) => import(arguments, output),
        MetaCommand::Inventory(arguments) => inventory::run(arguments, output),
        MetaCommand::Rebuild(arguments) => rebuild::run(arguments, output),
        MetaCommand::Restored(arguments) => restored::run(arguments, output),
        MetaCommand::Show { file } => {
            let image = read(file)?;
            let view = MetaView::new(file, &image);
            output.print(&view, || format!("{}{}", view.table(), remark(&image)));
            Ok(())
        }
    }
}

impl StoreArguments {
    fn read(&self) -> Result<StoreConfig, Failure> {
        let store = StoreConfig::parse(&self.store).map_err(Failure::new)?;
        let Some(file) = &self.config else {
            return Ok(store);
        };
        // Where a master would listen does not matter here.
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Config::new(nowhere, store).with_file(file);
        Ok(config.map_err(Failure::new)?.store)
    }
}

fn export(arguments: &ExportArguments, output: &Output) -> Result<(), Failure> {
    let store = arguments.store.read()?;
    let file = &arguments.file;
    let failed =
        |error: std::io::Error| Failure::new(format!("{} cannot be written: {error}", file.display()));
    // Before the store is closed: what stands in the way is known then.
    // The keys of the data path go into it.
    let mut options = std::fs::OpenOptions::new();
    let out = options.write(true).create_new(true).mode(0o600).open(file);
    let mut out = out.map_err(failed)?;
    let taken = meta::export(&store, arguments.moves).map_err(Failure::new);
    let written = taken.and_then(|image| {
        let written = out.write_all(&image.encode()).and_then(|()| out.sync_all());
        written.map_err(|error| match arguments.moves {
            true => closed(file, &store, &error),
            false => failed(error),
        })?;
        Ok(image)
    });
    let image = match written {
        Ok(image) => image,
        Err(failure) => {
            drop(std::fs::remove_file(file));
            return Err(failure);
        }
    };
    let view = MetaView::new(file, &image);
    output.print(&view, || {
        let next = if image.moved {
            let name = meta::name(&store);
            format!(
                "\nNo master starts on {name} any more. Go on with: redhare meta import {} --store NEW",
                file.display()
            )
        } else {
            String::new()
        };
        format!("{}{next}", view.table())
    });
    Ok(())
}

/// The file could not be written once the store was closed.
fn closed(file: &Path, store: &StoreConfig, error: &std::io::Error) -> Failure {
    Failure::new(format!(
        "{} cannot be written: {error}. The store {} is closed already, and no master starts on it; nothing of it is lost: repeat the \
         same command with a file where there is room",
        file.display(),
        meta::name(store)
    ))
}

fn import(arguments: &ImportArguments, output: &Output) -> Result<(), Failure> {
    let store = arguments.store.read()?;
    let image = read(&arguments.file)?;
    if !image.moved && !arguments.backup {
        return Err(Failure::new(format!(
            "{} is a backup of a store that was not closed (revision {}): what was changed since is not in it. To move a cluster, take \
             a file with \"redhare meta export --move\"; if the store is lost, repeat with --backup: the masters then ask the nodes what \
             they have done since",
            arguments.file.display(),
            image.revision
        )));
    }
    let bar = indicatif::ProgressBar::new(image.records.len() as u64);
    if output.is_json() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let done = meta::import(&image, &store, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    done.map_err(Failure::new)?;
    let view = MetaView::new(&arguments.file, &image);
    output.print(&view, || {
        let name = meta::name(&store);
        let next = match image.moved {
            true => "",
            false => "\nThey first ask the nodes what was done since the backup: \"redhare meta restored\" says how far that is.",
        };
        format!(
            "{}\nStart the masters with: redhare master --store {name} ...{next}",
            view.table()
        )
    });
    Ok(())
}

fn read(file: &Path) -> Result<Image, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| failed(&error))?;
    Image::decode(&bytes).map_err(|error| failed(&error))
}

fn remark(image: &Image) -> &'static str {
    if image.moved {
        "\nIts store was closed before: it can be imported."
    } else {
        "\nA backup: its store was not closed."
    }
}

impl MetaView {
    fn new(file: &Path, image: &Image) -> Self {
        let [nodes, volumes, chunks] = image.counts();
        Self {
            file: file.display().to_string(),
            cluster: image.cluster.to_string(),
            revision: image.revision,
            moved: image.moved,
            nodes,
            volumes,
            chunks,
            records: image.records.len(),
        }
    }

    fn table(&self) -> String {
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        crate::output::table(&[
            row("file", self.file.clone()),
            row("cluster", self.cluster.clone()),
            row("revision", self.revision.to_string()),
            row("nodes", self.nodes.to_string()),
            row("volumes", self.volumes.to_string()),
            row("chunks", self.chunks.to_string()),
        ])
    }
}
