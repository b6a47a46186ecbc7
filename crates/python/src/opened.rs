//! A data set as its reactor has it: the reader of one generation, and what it needs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use bdev::BlockDevice;
use bdev::file::{FileDevice, FileOptions};
use client::{Copies, MasterLeases, Nearby, Session};
use packfs::lease::LeaseSource;
use packfs::lease::memory::LocalLeases;
use packfs::local::{LocalCache, LocalCacheError, prepare};
use packfs::{
    Handed, Medium, OpenError, OpenFile, Reader, ReaderOptions, Sharing, Witness, is_snapshot_name,
};
use proto::client::Masters;
use reactor::sync::Semaphore;

use crate::bytes::Lending;
use crate::failure::Failure;
use crate::handle::locked;
use crate::witness::{Shown, is_held};

/// Batches of [`Options::batch_bytes`] that are under way at once.
const BATCHES_AT_ONCE: usize = 2;

/// Where a data set is.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A volume of the cluster with these masters (`host:port`, several separated by commas).
    Volume {
        masters: String,
        volume: String,
        nearby: Nearby,
    },
    /// A local file or block device.
    File(PathBuf),
}

impl Source {
    /// The volume, and the snapshot that is named behind an `@`. A local file whose own name has the sign is recognised
    /// if it exists.
    fn divided(&self) -> (Self, Option<Vec<u8>>) {
        let mut plain = self.clone();
        let text = match self {
            Source::Volume { volume, .. } => volume.as_bytes(),
            Source::File(path) if path.exists() => return (plain, None),
            Source::File(path) => path.as_os_str().as_bytes(),
        };
        let sign = text.iter().rposition(|&byte| byte == b'@');
        let Some((volume, name)) = sign
            .map(|at| (&text[..at], &text[at + 1..]))
            .filter(|(_, name)| is_snapshot_name(name))
        else {
            return (plain, None);
        };
        match &mut plain {
            Source::Volume { volume: own, .. } => *own = String::from_utf8_lossy(volume).into_owned(),
            Source::File(path) => *path = PathBuf::from(OsStr::from_bytes(volume)),
        }
        (plain, Some(name.to_vec()))
    }
}

/// How a data set is read.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Bound of the metadata cache, in bytes.
    pub(crate) cache_bytes: usize,
    /// Contents are lent in the buffers they arrived in while no more of these are in use, in bytes.
    pub(crate) memory_bytes: usize,
    /// Reads in flight at once.
    pub(crate) reads_in_flight: usize,
    /// The directory of a cache on a local disk, and its size in bytes.
    pub(crate) local: Option<(PathBuf, u64)>,
    /// The state to open if it is held still: a superblock's bytes, and where it is shown who holds it.
    pub(crate) handed: Option<(Vec<u8>, String)>,
    /// Where is told what is wrong with that cache.
    pub(crate) warnings: Warnings,
}

/// What Python has to be warned of, and was not yet.
pub(crate) type Warnings = Arc<Mutex<Vec<String>>>;

/// Warnings that wait at most: nobody may ask for them.
const WARNINGS_MAX: usize = 16;

fn warn(warnings: &Warnings, text: String) {
    let mut waiting = locked(warnings);
    if waiting.len() < WARNINGS_MAX {
        waiting.push(text);
    }
}

impl Options {
    /// The cache on a local disk. Where it cannot be had, that is a warning.
    async fn open_local(&self) -> Option<Rc<LocalCache>> {
        let (directory, size) = self.local.as_ref()?;
        let told = self.warnings.clone();
        let opened = async {
            prepare(directory)?;
            LocalCache::open(directory, *size, move |text| warn(&told, text.to_owned())).await
        };
        let opened: Result<_, LocalCacheError> = opened.await;
        opened
            .map_err(|error| warn(&self.warnings, format!("reading without a local cache: {error}")))
            .ok()
    }

    /// The state that was handed over.
    fn handed(&self) -> Result<Option<Handed>, Failure> {
        let Some((superblock, place)) = self.handed.clone() else {
            return Ok(None);
        };
        let handed = Handed::new(
            &superblock,
            Box::new(move |generation| is_held(&place, generation)),
        );
        handed
            .map(Some)
            .map_err(|error| Failure::new(libc::EINVAL, error))
    }

    /// The most content that is asked of the reader with one call, in bytes.
    pub(crate) fn batch_bytes(&self) -> u64 {
        (self.memory_bytes as u64 / 8).clamp(1 << 20, 16 << 20)
    }
}

/// How a reader is had, once more after its lease has ended.
struct Place {
    medium: Medium,
    leases: Rc<dyn LeaseSource>,
    options: ReaderOptions,
    /// Whether leases are the masters', which every process has to do with.
    is_shared: bool,
}

/// See the module.
pub(crate) struct Opened {
    pub(crate) reader: Reader,
    /// Shows other processes what the reader's lease holds.
    shown: Option<Rc<Shown>>,
    place: Rc<Place>,
    /// The directory that paths begin at, without slashes at its ends.
    root: Vec<u8>,
    session: Option<Arc<Session>>,
    /// Holds the lock on a file.
    device: Option<Rc<FileDevice>>,
    pub(crate) lending: Lending,
    pub(crate) batches: Rc<Semaphore>,
    pub(crate) batch_bytes: u64,
}

impl Opened {
    /// Opens the newest generation. On the reactor; blocks it until a master has answered.
    pub(crate) async fn open(
        source: &Source,
        root: Vec<u8>,
        options: &Options,
        lending: Lending,
    ) -> Result<Self, Failure> {
        let (source, snapshot) = source.divided();
        let reader_options = ReaderOptions {
            snapshot,
            cache_bytes: options.cache_bytes,
            reads_in_flight: options.reads_in_flight,
            // A piece of a file counts with the whole extents that it touches.
            batch_bytes_max: options.batch_bytes() * 2 + (4 << 20),
            ..ReaderOptions::default()
        };
        let (medium, leases, session, device) = match &source {
            Source::File(path) => {
                let (device, medium) = open_file(path)?;
                let leases: Rc<dyn LeaseSource> = Rc::new(LocalLeases::new());
                (medium, leases, None, Some(device))
            }
            Source::Volume {
                masters,
                volume,
                nearby,
            } => {
                let session = Session::connect(Masters::from_environment(masters), volume)?;
                let channel = Rc::new(session.device(*nearby).open());
                let leases = MasterLeases::new(session.clone(), &holder());
                let leases = leases.map_err(|error| Failure::new(libc::EIO, error))?;
                let leases: Rc<dyn LeaseSource> = Rc::new(leases);
                let medium = Medium::new(channel.clone()).with_copies(Rc::new(Copies::new(channel)));
                (medium, leases, Some(session), None)
            }
        };
        let medium = medium.with_local(options.open_local().await);
        let place = Place {
            medium,
            leases,
            options: reader_options,
            is_shared: session.is_some(),
        };
        let (reader, shown) = place.open(options.handed()?).await?;
        let opened = Self {
            reader,
            shown,
            place: Rc::new(place),
            root,
            session,
            device: device.map(Rc::new),
            lending,
            batches: Semaphore::new(BATCHES_AT_ONCE),
            batch_bytes: options.batch_bytes(),
        };
        opened.check_root().await?;
        Ok(opened)
    }

    /// Named now, not at the first read.
    async fn check_root(&self) -> Result<(), Failure> {
        if !self.root.is_empty() {
            let found = self.reader.lookup(&self.root).await;
            found.map_err(|error| Failure::from(error).at(&self.root))?;
        }
        Ok(())
    }

    /// The newest generation, if that is a later one than this: `None` for a snapshot by name, too, which stays what it is. After the lease's end it is
    /// under a new lease, and may be the same generation.
    pub(crate) async fn newer(&self) -> Result<Option<Self>, Failure> {
        if self.place.options.snapshot.is_some() {
            return Ok(None);
        }
        let (reader, shown) = match self.reader.newer().await {
            Ok(None) => return Ok(None),
            Ok(Some(reader)) => (reader, self.shown.clone()),
            Err(OpenError::Lease(_)) => self.place.open(None).await?,
            Err(error) => return Err(error.into()),
        };
        let newer = Self {
            reader,
            shown,
            place: self.place.clone(),
            root: self.root.clone(),
            session: self.session.clone(),
            device: self.device.clone(),
            lending: self.lending.clone(),
            batches: self.batches.clone(),
            batch_bytes: self.batch_bytes,
        };
        newer.check_root().await?;
        Ok(Some(newer))
    }

    /// What a child needs to open the same state: its superblock, and where it is shown who holds it. `None` for a file, which its readers lock.
    pub(crate) fn to_hand(&self) -> Option<(Vec<u8>, String)> {
        let shown = self.shown.as_ref()?;
        Some((self.reader.to_hand(), shown.place()))
    }

    /// A path of the data set as the reader knows it.
    pub(crate) fn full(&self, path: &[u8]) -> Vec<u8> {
        if self.root.is_empty() {
            path.to_vec()
        } else {
            [&self.root, path].join(&b'/')
        }
    }

    /// Looks a file up.
    pub(crate) async fn open_file(&self, path: &[u8]) -> Result<OpenFile, Failure> {
        let opened = self.reader.open_file(&self.full(path)).await;
        opened.map_err(|error| Failure::from(error).at(path))
    }

    /// Reads that went past nodes of this machine, to their disks.
    pub(crate) fn past_reads(&self) -> u64 {
        self.session.as_ref().map_or(0, |session| session.past_reads())
    }
}

impl Place {
    /// A reader under a lease of its own, which is shown.
    async fn open(&self, handed: Option<Handed>) -> Result<(Reader, Option<Rc<Shown>>), OpenError> {
        // Where there is none, children find no state but the newest.
        let shown = self.is_shared.then(Shown::new).and_then(Result::ok).map(Rc::new);
        let sharing = Sharing {
            witness: shown.clone().map(|shown| shown as Rc<dyn Witness>),
            handed: handed.filter(|_| self.is_shared),
        };
        let opened = Reader::open_sharing(self.medium.clone(), self.leases.clone(), &self.options, &sharing);
        Ok((opened.await?, shown))
    }
}

fn open_file(path: &Path) -> Result<(FileDevice, Medium), Failure> {
    if path.is_dir() {
        let text = format!(
            "{} is a directory; name a PackFS image, or read the directory itself",
            path.display()
        );
        return Err(Failure::new(libc::EISDIR, text));
    }
    let options = FileOptions {
        read_only: true,
        ..FileOptions::default()
    };
    let device = FileDevice::open(path, options)?;
    let medium = Medium::new(device.open_channel()?);
    Ok((device, medium))
}

/// This process as others see it who want a lease it holds.
pub(crate) fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!(
        "redhare for Python, process {} on {}",
        std::process::id(),
        host.trim()
    )
}
