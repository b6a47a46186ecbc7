//! `redhare fs export`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use foundation::ByteCount;
use packfs::{Attributes, Content, Inode, InodeNumber, Kind, Reader, ReaderOptions, Seek, Target, Timestamp};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr, makedev, mknodat, utimensat,
};
use rustix::io::Errno;

use super::local::at;
use super::medium::{Location, Role, Volume, open_volume};
use super::progress::Progress;
use crate::output::{Failure, Output};

/// Files up to this long are read many at once, in bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// Content of one batch, in bytes.
const BATCH_BYTES: u64 = 8 << 20;
/// So many zeros at a multiple of as many are not written: files that were sparse become so again.
const HOLE_BYTES: u64 = 4096;

/// Copy a volume's directory into a new local directory
#[derive(Args)]
#[command(
    after_help = "Keeps names, modes, times, symbolic links and hard links, and owners and extended attributes where this user may set them; without its owner a \
file loses its set-uid and set-gid bits. Blocks of zeros take no room.\n\n\
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
    /// Extended attributes that this user may not set, or the file system does not take.
    extended_not_kept: u64,
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
    directories: Vec<(PathBuf, InodeNumber, Attributes)>,
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
        directories: vec![(arguments.directory.clone(), root.number, root.attributes)],
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
                "{} entries belong to this user now, without set-uid and set-gid bits: only root may give files away\n",
                view.owners_not_kept
            ));
        }
        if view.extended_not_kept > 0 {
            text.push_str(&format!(
                "{} extended attributes were left out: this user may not set them, or the file system there has none\n",
                view.extended_not_kept
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
    match make_directory(directory) {
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

/// Makes a directory that nobody else looks into before it has its mode.
fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
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
        for (path, number, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            self.attributes(path, *number, attributes, Kind::Directory)
                .await?;
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
                make_directory(&to).map_err(|error| at(&to, &error))?;
                self.directories.push((to, inode.number, inode.attributes));
            }
            Kind::Symlink => {
                let target = self.reader.read_link(&from).await;
                let target = target.map_err(|error| self.volume.failure(error))?;
                symlink(OsStr::from_bytes(&target), &to).map_err(|error| at(&to, &error))?;
                self.attributes(&to, inode.number, &inode.attributes, Kind::Symlink)
                    .await?;
            }
            Kind::Pipe | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => {
                if !special(&to, &inode)? {
                    self.first_names.remove(&inode.number);
                    self.done.devices_not_made += 1;
                    return Ok(());
                }
                self.attributes(&to, inode.number, &inode.attributes, inode.kind)
                    .await?;
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
            let file = create(to)?;
            put(&file, 0, &content)
                .and_then(|()| file.set_len(content.len() as u64))
                .map_err(|error| at(to, &error))?;
            self.done.content_bytes += content.len() as u64;
            self.attributes(to, inode.number, &inode.attributes, Kind::File)
                .await?;
        }
        Ok(())
    }

    async fn large(&mut self, from: &[u8], to: &Path) -> Result<(), Failure> {
        let opened = self.reader.open_file(from).await;
        let opened = opened.map_err(|error| self.volume.failure(error))?;
        let file = create(to)?;
        let size = opened.inode.size;
        file.set_len(size).map_err(|error| at(to, &error))?;
        let mut offset = 0;
        while offset < size {
            let data = self.reader.seek(&opened, offset, Seek::Data).await;
            // Nothing but a hole may follow.
            let from = data.map_err(|error| self.volume.failure(error))?.unwrap_or(size);
            let mut to_offset = from;
            if from < size {
                let content = self.reader.read(&opened, from, BATCH_BYTES).await;
                let content = content.map_err(|error| self.volume.failure(error))?;
                put(&file, from, &content).map_err(|error| at(to, &error))?;
                to_offset += content.len() as u64;
            }
            self.done.content_bytes += to_offset - offset;
            offset = to_offset;
            self.progress.set(self.done.entries, self.done.content_bytes);
        }
        self.attributes(to, opened.inode.number, &opened.inode.attributes, Kind::File)
            .await
    }

    /// Owner first, because giving a file away takes its set-uid bit and capabilities; then what takes the right to write;
    /// times last.
    async fn attributes(
        &mut self,
        path: &Path,
        number: InodeNumber,
        attributes: &Attributes,
        kind: Kind,
    ) -> Result<(), Failure> {
        let failed = |error: io::Error| at(path, &error);
        let is_owned = match lchown(path, Some(attributes.uid), Some(attributes.gid)) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
            Err(error) => return Err(failed(error)),
        };
        self.done.owners_not_kept += u64::from(!is_owned);
        self.extended(path, number, is_owned).await?;
        if kind != Kind::Symlink {
            // With another owner these bits would give away what this user may, and not what the owner may.
            let mask = if is_owned { 0o7777 } else { 0o1777 };
            let mode = Permissions::from_mode(attributes.mode & mask);
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

    async fn extended(&mut self, path: &Path, number: InodeNumber, is_owned: bool) -> Result<(), Failure> {
        let names = self.reader.list_extended(number).await;
        for name in names.map_err(|error| self.volume.failure(error))? {
            let value = self.reader.extended(number, &name).await;
            let Some(value) = value.map_err(|error| self.volume.failure(error))? else {
                continue;
            };
            // Capabilities are like set-uid bits.
            if !is_owned && name.starts_with(b"security.") {
                self.done.extended_not_kept += 1;
                continue;
            }
            match lsetxattr(path, OsStr::from_bytes(&name), &value, XattrFlags::empty()) {
                Ok(()) => {}
                // Not for this user, not of this kind of file, or not on this file system; some have room for few only.
                Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::INVAL)
                | Err(Errno::TOOBIG | Errno::RANGE | Errno::NOSPC) => self.done.extended_not_kept += 1,
                Err(error) => return Err(at(path, &error.into())),
            }
        }
        Ok(())
    }
}

/// Writes content that begins at `at` of a file, without blocks of zeros: a new file reads zeros where nothing was written.
fn put(file: &File, mut at: u64, content: &Content) -> io::Result<()> {
    for part in content.parts() {
        let mut rest: &[u8] = part;
        while !rest.is_empty() {
            let block = |rest: &[u8], at: u64| rest.len().min((HOLE_BYTES - at % HOLE_BYTES) as usize);
            let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            let first = block(rest, at);
            if is_zero(&rest[..first]) {
                (rest, at) = (&rest[first..], at + first as u64);
                continue;
            }
            // As far as there are no zeros, in one go.
            let mut length = first;
            while length < rest.len() {
                let next = block(&rest[length..], at + length as u64);
                if is_zero(&rest[length..length + next]) {
                    break;
                }
                length += next;
            }
            file.write_all_at(&rest[..length], at)?;
            (rest, at) = (&rest[length..], at + length as u64);
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_looks_into_a_directory_that_has_no_mode_yet() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("new");
        prepare(&directory).unwrap();
        let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }
}
