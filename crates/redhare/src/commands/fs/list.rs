//! `redhare fs ls`, `stat` and `cat`.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use packfs::name::Shown;
use packfs::{Inode, Kind, OpenFile, Reader, ReaderOptions};

use super::medium::{Location, Opened, Role, Volume, open_volume};
use super::view::{self, InodeView};
use crate::output::{Failure, Output, table};

/// Entries that are listed at once.
const LISTED_AT_ONCE: usize = 1024;
/// Bytes of a file that are read at once.
const READ_AT_ONCE: u64 = 4 << 20;

/// List a directory
#[derive(Args)]
#[command(after_help = "Examples:\n  redhare fs ls images\n  redhare fs ls -l file:images.packfs:train/cats")]
pub(super) struct LsArguments {
    /// The volume, and a path in it
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
    /// Show mode, links, owner, group, size and time
    #[arg(short = 'l')]
    long: bool,
}

/// Show everything known about a file, directory or link
#[derive(Args)]
#[command(after_help = "Example:\n  redhare fs stat file:images.packfs:train/cats/1.jpg")]
pub(super) struct StatArguments {
    /// The volume, and a path in it
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
}

/// Write a file to standard output
#[derive(Args)]
#[command(after_help = "Example:\n  redhare fs cat file:images.packfs:labels.csv | head")]
pub(super) struct CatArguments {
    /// The volume, and a file in it
    #[arg(value_name = "VOLUME:PATH")]
    location: OsString,
}

/// A reader, and what keeps its volume open.
struct Source {
    volume: Volume,
    path: Vec<u8>,
    reader: Reader,
    _opened: Opened,
}

async fn open(location: &OsString) -> Result<Source, Failure> {
    let Location { volume, path } = Location::parse(location)?;
    let opened = open_volume(&volume, Role::Read)?;
    let reader = opened.reader(&ReaderOptions::default()).await?;
    Ok(Source {
        volume,
        path,
        reader,
        _opened: opened,
    })
}

impl Source {
    async fn file(&self) -> Result<OpenFile, Failure> {
        let opened = self.reader.open_file(&self.path).await;
        opened.map_err(|error| self.volume.failure(error))
    }

    async fn view(&self, path: &[u8], name: &[u8], inode: &Inode) -> Result<InodeView, Failure> {
        let target = match inode.kind {
            Kind::Symlink => {
                let target = self.reader.read_link(path).await;
                let target = target.map_err(|error| self.volume.failure(error))?;
                Some(Shown::new(&target).to_string())
            }
            _ => None,
        };
        Ok(InodeView::new(Shown::new(name).to_string(), inode, target))
    }
}

pub(super) async fn ls(arguments: &LsArguments, output: &Output) -> Result<(), Failure> {
    let source = open(&arguments.location).await?;
    let file = source.file().await?;
    let mut rows = Vec::new();
    let mut views = Vec::new();
    if file.inode.kind != Kind::Directory {
        let view = source.view(&source.path, &source.path, &file.inode).await?;
        rows.push(row(&view, &file.inode));
        views.push(view);
    } else {
        let mut after = None;
        loop {
            let listed = source
                .reader
                .read_directory(file.inode.number, after, LISTED_AT_ONCE);
            let batch = listed.await.map_err(|error| source.volume.failure(error))?;
            let Some(last) = batch.last() else { break };
            after = Some(last.entry.cookie());
            for found in batch {
                let inode = source.reader.inode_of(found.entry).await;
                let inode = inode.map_err(|error| source.volume.failure(error))?;
                let path = [&source.path[..], &found.name].join(&b'/');
                let view = source.view(&path, &found.name, &inode).await?;
                rows.push(row(&view, &inode));
                views.push(view);
            }
        }
    }
    output.print(&views, || {
        if arguments.long {
            return table(&rows);
        }
        views
            .iter()
            .map(|view| view.path.clone() + "\n")
            .collect::<String>()
    });
    Ok(())
}

fn row(view: &InodeView, inode: &Inode) -> Vec<String> {
    let name = match &view.target {
        Some(target) => format!("{} -> {target}", view.path),
        None => view.path.clone(),
    };
    vec![
        view::mode(inode.kind, inode.attributes.mode),
        view.links.to_string(),
        view.uid.to_string(),
        view.gid.to_string(),
        view.size_bytes.to_string(),
        // To the second, as lists are read.
        view.mtime.get(..19).unwrap_or(&view.mtime).to_owned(),
        name,
    ]
}

pub(super) async fn stat(arguments: &StatArguments, output: &Output) -> Result<(), Failure> {
    let source = open(&arguments.location).await?;
    let file = source.file().await?;
    let view = source.view(&source.path, &source.path, &file.inode).await?;
    output.print(&view, || {
        let mut rows = vec![
            ["path", &view.path].map(String::from).to_vec(),
            ["kind", view.kind].map(String::from).to_vec(),
            ["inode", &view.inode.to_string()].map(String::from).to_vec(),
            ["mode", &view.mode].map(String::from).to_vec(),
            ["links", &view.links.to_string()].map(String::from).to_vec(),
            ["owner", &format!("{}:{}", view.uid, view.gid)]
                .map(String::from)
                .to_vec(),
            ["size", &format!("{} B", view.size_bytes)]
                .map(String::from)
                .to_vec(),
            ["mtime", &view.mtime].map(String::from).to_vec(),
            ["atime", &view.atime].map(String::from).to_vec(),
            ["ctime", &view.ctime].map(String::from).to_vec(),
        ];
        if let Some(target) = &view.target {
            rows.push(vec!["target".to_owned(), target.clone()]);
        }
        table(&rows)
    });
    Ok(())
}

pub(super) async fn cat(arguments: &CatArguments) -> Result<(), Failure> {
    let source = open(&arguments.location).await?;
    let file = source.file().await?;
    let mut out = std::io::stdout().lock();
    let mut offset = 0;
    loop {
        let read = source.reader.read(&file, offset, READ_AT_ONCE).await;
        let content = read.map_err(|error| source.volume.failure(error))?;
        let written = content.parts().iter().try_for_each(|part| out.write_all(part));
        let is_over = content.is_empty() || written.is_err();
        match written.and_then(|()| if is_over { out.flush() } else { Ok(()) }) {
            Ok(()) if is_over => return Ok(()),
            Ok(()) => {}
            // A reader that has seen enough ("| head") is no failure.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::new(format!("standard output: {error}"))),
        }
        offset += content.len() as u64;
    }
}
