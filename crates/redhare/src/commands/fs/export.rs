//! `redhare fs export`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use foundation::ByteCount;
use packfs::{Attributes, Inode, InodeNumber, Kind, Reader, ReaderOptions, Target, Timestamp};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat};
use rustix::io::Errno;

use super::local::at;
use super::medium::{Location, Role, Volume, open_volume};
use super::progress::Progress;
use crate::output::{Failure, Output};

/// Files up to this long are read many at once, in bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// Content of one batch, in bytes.
const BATCH_BYTES: u64 = 8 << 20;

/// Copy a volume's directory into a new local directory
#[derive(Args)]
#[command(
    after_help = "Keeps names, modes, times, symbolic links and hard links, and owners where this user may set them.\n\n\
Example:\n  redhare fs export file:images.packfs:train ./train"
)]
pub(super) struct ExportArguments {
    /// The volume, and a directory in it
    #[arg(value_name = "VOLUME[:PATH]")]
    location: OsString,
    /// The directory to make; it may exist if it is empty
    directory: PathBuf,
}

#[derive(Default, serde::Serialize)]
struct ExportView {
    entries: u64,
    content_bytes: u64,
    /// Entries whose owner this user may not set.
    owners_not_kept: u64,
    /// Devices that this user may not make.
    devices_not_made: u64,
    seconds: f64,
}

struct Export {
    volume: Volume,
    reader: Reader,
    /// The path on the volume that is exported.
    from: Vec<u8>,
    to: PathBuf,
    /// Where a file with several names was put first.
    first_names: BTreeMap<InodeNumber, PathBuf>,
    directories: Vec<(PathBuf, Attributes)>,
    /// Small files to be read together.
    batch: Vec<(Vec<u8>, PathBuf, Inode)>,
    batch_bytes: u64,
    done: ExportView,
    progress: Progress,
}

pub(super) async fn run(arguments: &ExportArguments, output: &Output) -> Result<(), Failure> {
    let Location { volume, path } = Location::parse(&arguments.location)?;
    let opened = open_volume(&volume, Role::Read)?;
    let reader = opened.reader(&ReaderOptions::default()).await?;
    let root = reader
        .lookup(&path)
        .await
        .map_err(|error| volume.failure(error))?;
    if root.kind != Kind::Directory {
        let shown = packfs::name::Shown::new(&path);
        let why = format!("{shown}: is not a directory; use \"redhare fs cat\" for a file");
        return Err(volume.failure(why));
    }
    prepare(&arguments.directory)?;
    let totals = reader.superblock().totals;
    let begun = Instant::now();
    let mut export = Export {
        progress: Progress::new("export", totals.files + totals.directories, totals.content_bytes),
        volume,
        reader,
        from: path,
        to: arguments.directory.clone(),
        first_names: BTreeMap::new(),
        directories: vec![(arguments.directory.clone(), root.attributes)],
        batch: Vec::new(),
        batch_bytes: 0,
        done: ExportView::default(),
    };
    let result = export.all(root.number).await;
    export.progress.end();
    result?;
    export.done.seconds = begun.elapsed().as_secs_f64();
    let view = &export.done;
    output.print(view, || {
        let mut text = format!(
            "exported {} entries, {} in {:.1} s\n",
            view.entries,
            ByteCount(view.content_bytes),
            view.seconds
        );
        if view.owners_not_kept > 0 {
            text.push_str(&format!(
                "{} entries belong to this user now: only root may give files away\n",
                view.owners_not_kept
            ));
        }
        if view.devices_not_made > 0 {
            text.push_str(&format!(
                "{} devices were left out: only root may make devices\n",
                view.devices_not_made
            ));
        }
        text
    });
    Ok(())
}

/// Makes the directory; one that exists must be empty, so that nothing in it can lead elsewhere.
fn prepare(directory: &Path) -> Result<(), Failure> {
    match std::fs::create_dir(directory) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut entries = std::fs::read_dir(directory).map_err(|error| at(directory, &error))?;
            match entries.next() {
                None => Ok(()),
                Some(_) => Err(Failure::new(format!(
                    "{}: is not empty; name a new or an empty directory",
                    directory.display()
                ))),
            }
        }
        Err(error) => Err(at(directory, &error)),
    }
}

impl Export {
    async fn all(&mut self, root: InodeNumber) -> Result<(), Failure> {
        let mut walk = self.reader.walk(root);
        loop {
            let batch = walk
                .next_batch()
                .await
                .map_err(|error| self.volume.failure(error))?;
            if batch.is_empty() {
                break;
            }
            for found in batch {
                let inode = self.reader.inode_of(found.entry).await;
                let inode = inode.map_err(|error| self.volume.failure(error))?;
                self.entry(&found.path, inode).await?;
            }
        }
        self.write_batch().await?;
        // Their times change as long as something is put into them.
        for (path, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            self.attributes(path, attributes, Kind::Directory)?;
        }
        Ok(())
    }

    async fn entry(&mut self, path: &[u8], inode: Inode) -> Result<(), Failure> {
        let to = self.to.join(OsStr::from_bytes(path));
        let from = [&self.from[..], path].join(&b'/');
        self.done.entries += 1;
        if inode.links > 1 && inode.kind != Kind::Directory {
            if let Some(first) = self.first_names.get(&inode.number).cloned() {
                // It must be there before it gets another name.
                self.write_batch().await?;
                return std::fs::hard_link(first, &to).map_err(|error| at(&to, &error));
            }
            self.first_names.insert(inode.number, to.clone());
        }
        match inode.kind {
            Kind::Directory => {
                std::fs::create_dir(&to).map_err(|error| at(&to, &error))?;
                self.directories.push((to, inode.attributes));
            }
            Kind::Symlink => {
                let target = self.reader.read_link(&from).await;
                let target = target.map_err(|error| self.volume.failure(error))?;
                symlink(OsStr::from_bytes(&target), &to).map_err(|error| at(&to, &error))?;
                self.attributes(&to, &inode.attributes, Kind::Symlink)?;
            }
            Kind::Pipe | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => {
                if !special(&to, &inode)? {
                    self.first_names.remove(&inode.number);
                    self.done.devices_not_made += 1;
                    return Ok(());
                }
                self.attributes(&to, &inode.attributes, inode.kind)?;
            }
            Kind::File if inode.size > SMALL_BYTES => self.large(&from, &to).await?,
            Kind::File => {
                self.batch_bytes += inode.size;
                self.batch.push((from, to, inode));
                if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= 256 {
                    self.write_batch().await?;
                }
            }
        }
        self.progress.set(self.done.entries, self.done.content_bytes);
        Ok(())
    }

    async fn write_batch(&mut self) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let targets: Vec<Target<'_>> = batch.iter().map(|(from, ..)| Target::Path(from)).collect();
        let contents = self.reader.read_many(&targets).await;
        for (content, (_, to, inode)) in contents.into_iter().zip(&batch) {
            let content = content.map_err(|error| self.volume.failure(error))?;
            let mut file = create(to)?;
            for part in content.parts() {
                file.write_all(part).map_err(|error| at(to, &error))?;
            }
            self.done.content_bytes += content.len() as u64;
            self.attributes(to, &inode.attributes, Kind::File)?;
        }
        Ok(())
    }

    async fn large(&mut self, from: &[u8], to: &Path) -> Result<(), Failure> {
        let opened = self.reader.open_file(from).await;
        let opened = opened.map_err(|error| self.volume.failure(error))?;
        let mut file = create(to)?;
        let mut offset = 0;
        while offset < opened.inode.size {
            let content = self.reader.read(&opened, offset, BATCH_BYTES).await;
            let content = content.map_err(|error| self.volume.failure(error))?;
            for part in content.parts() {
                file.write_all(part).map_err(|error| at(to, &error))?;
            }
            offset += content.len() as u64;
            self.done.content_bytes += content.len() as u64;
            self.progress.set(self.done.entries, self.done.content_bytes);
        }
        self.attributes(to, &opened.inode.attributes, Kind::File)
    }

    /// Owner first, because giving a file away takes its set-uid bit; times last.
    fn attributes(&mut self, path: &Path, attributes: &Attributes, kind: Kind) -> Result<(), Failure> {
        let failed = |error: io::Error| at(path, &error);
        match lchown(path, Some(attributes.uid), Some(attributes.gid)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.done.owners_not_kept += 1,
            Err(error) => return Err(failed(error)),
        }
        if kind != Kind::Symlink {
            let mode = Permissions::from_mode(attributes.mode);
            std::fs::set_permissions(path, mode).map_err(failed)?;
        }
        let time = |time: Timestamp| Timespec {
            tv_sec: time.seconds,
            tv_nsec: i64::from(time.nanoseconds),
        };
        let times = Timestamps {
            last_access: time(attributes.atime),
            last_modification: time(attributes.mtime),
        };
        let set = utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
        set.map_err(|error| failed(error.into()))
    }
}

/// Makes a pipe, socket or device, or says that this user may not.
fn special(path: &Path, inode: &Inode) -> Result<bool, Failure> {
    let kind = match inode.kind {
        Kind::Pipe => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharacterDevice,
        _ => FileType::BlockDevice,
    };
    let device = inode.device().unwrap_or_default();
    let number = makedev(device.major, device.minor);
    match mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, number) {
        Ok(()) => Ok(true),
        Err(Errno::PERM) if inode.kind.is_device() => Ok(false),
        Err(error) => Err(at(path, &error.into())),
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    // Nobody else reads it before it has its mode.
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map_err(|error| at(path, &error))
}
