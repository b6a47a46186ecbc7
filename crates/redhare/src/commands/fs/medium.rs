//! Where a file system is: a local file or block device, or a cluster's volume.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdev::fence::TokenKeeper;
use bdev::file::{FileDevice, FileOptions};
use bdev::{BlockDevice, Channel};
use client::{Copies, MasterLeases, Nearby, Session, SnapshotDevice};
use foundation::ByteCount;
use master::v1;
use packfs::lease::memory::LocalLeases;
use packfs::lease::{LeaseError, LeaseSource};
use volume::client::VolumeDevice;

use packfs::{
    CopySelector, Medium, OpenError, Reader, ReaderOptions, Writer, WriterOptions, is_snapshot_name,
};

use crate::output::Failure;

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Read committed generations.
    Read,
    /// Be the one writer.
    Write,
    /// Make a file system; a local file that is missing or empty gets this size.
    Format {
        /// The size for a local file.
        size: Option<ByteCount>,
    },
}

/// How somebody who writes the volume is made to hand it over.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct TakeOverArguments {
    /// Ask whoever writes the volume to hand it over, for 60 s at most; it does after its next commit, and writes no more
    #[arg(long)]
    take_over: bool,
}

/// So long a writer is asked to hand over: several renewals of its lease, at each of which it learns of it.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(60);

impl TakeOverArguments {
    /// How long to ask, if at all.
    pub(super) fn within(&self) -> Option<Duration> {
        self.take_over.then_some(TAKE_OVER_WITHIN)
    }
}

/// A volume that was found: what all cores share.
pub(super) struct Found {
    /// As it was named.
    pub(super) volume: Volume,
    way: Way,
}

enum Way {
    File(FileDevice),
    Named(Arc<Session>, VolumeDevice),
    Kept(SnapshotDevice),
}

/// A volume that can be used, by one core.
pub(super) struct Opened {
    /// The way to its blocks.
    pub(super) channel: Rc<dyn Channel>,
    /// Who may write and what readers hold.
    pub(super) leases: Rc<dyn LeaseSource>,
    /// Chooses another copy after damage, where there are copies.
    pub(super) copies: Option<Rc<dyn CopySelector>>,
    /// Holds the device, and with it the lock on a file.
    pub(super) found: Arc<Found>,
}

impl Opened {
    /// The volume as PackFS uses it.
    pub(super) fn medium(&self) -> Medium {
        let medium = Medium::new(self.channel.clone());
        match &self.copies {
            Some(copies) => medium.with_copies(copies.clone()),
            None => medium,
        }
    }

    /// A reader of the newest generation, or of the snapshot that was named.
    pub(super) async fn reader(&self, options: &ReaderOptions) -> Result<Reader, Failure> {
        let options = ReaderOptions {
            snapshot: self.found.volume.snapshot().map(<[u8]>::to_vec),
            ..options.clone()
        };
        let opened = Reader::open(self.medium(), self.leases.clone(), &options).await;
        opened.map_err(|error| self.found.failure(error))
    }

    /// The volume's writer, as `program`. A lease that nobody renews any more is waited for.
    pub(super) async fn writer(
        &self,
        program: &str,
        take_over: &TakeOverArguments,
    ) -> Result<Writer, Failure> {
        let options = WriterOptions {
            holder: holder(program),
            take_over: take_over.within(),
            ..WriterOptions::default()
        };
        let mut held = HeldLease::default();
        loop {
            let error = match Writer::open(self.medium(), self.leases.clone(), &options).await {
                Ok(writer) => return Ok(writer),
                Err(error) => error,
            };
            let goes_on = match &error {
                OpenError::Lease(error) => held.wait(&self.found.volume, error).await,
                _ => false,
            };
            if !goes_on {
                return Err(self.found.failure(error));
            }
        }
    }
}

/// A held lease is looked at so often, to see whether it is renewed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Clocks and answers differ by so much.
const LEASE_SLACK: Duration = Duration::from_millis(500);

/// The lease of somebody who writes, or who was killed and gave nothing back: that one ends by itself, and what was
/// interrupted can be repeated at once. Whoever renews it lives.
#[derive(Default)]
pub(super) struct HeldLease {
    /// Who had it at first, and when it ends if nobody renews it.
    first: Option<(String, Instant)>,
}

impl HeldLease {
    /// Waits a little, and gives whether to ask again.
    pub(super) async fn wait(&mut self, volume: &Volume, error: &LeaseError) -> bool {
        let LeaseError::Held { holder, remaining } = error else {
            return false;
        };
        let now = Instant::now();
        match &self.first {
            None => {
                let seconds = remaining.as_secs_f32().ceil();
                tracing::info!(
                    "{volume} is being written by {holder}; waiting up to {seconds} s to see whether that has died"
                );
                self.first = Some((holder.clone(), now + *remaining));
            }
            Some((first, ends)) => {
                let latest = *ends + LEASE_SLACK;
                if first != holder || now + *remaining > latest || now > latest {
                    return false;
                }
            }
        }
        reactor::time::sleep((*remaining + LEASE_SLACK / 2).min(LOOK_EVERY)).await;
        true
    }
}

/// A volume as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Volume {
    /// A local file or block device.
    File(PathBuf),
    /// A cluster's volume.
    Named(String),
    /// A snapshot of a cluster's volume, with all that was in it, snapshots of the file system included.
    Kept(String, String),
    /// A snapshot of the file system by name, of one of those.
    Snapshot(Box<Volume>, Vec<u8>),
}

impl std::fmt::Display for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Volume::File(path) => write!(f, "file:{}", path.display()),
            Volume::Named(name) => write!(f, "{name}"),
            Volume::Kept(name, snapshot) => write!(f, "{name}@@{snapshot}"),
            Volume::Snapshot(volume, name) => write!(f, "{volume}@{}", packfs::name::Shown::new(name)),
        }
    }
}

impl Volume {
    /// A failure that names the volume.
    pub(super) fn failure(&self, error: impl std::fmt::Display) -> Failure {
        Failure::new(format!("{self}: {error}"))
    }

    /// The snapshot that was named with it.
    pub(super) fn snapshot(&self) -> Option<&[u8]> {
        match self {
            Volume::File(_) | Volume::Named(_) | Volume::Kept(..) => None,
            Volume::Snapshot(_, name) => Some(name),
        }
    }

    /// Nobody changes what is named: a snapshot of either kind.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self, Volume::Snapshot(..) | Volume::Kept(..))
    }

    /// The volume itself: for what concerns all of it, and not one snapshot.
    pub(super) fn parse_whole(text: &OsStr) -> Result<Self, Failure> {
        match Self::parse(text)? {
            Volume::Snapshot(volume, _) => Err(Failure::new(format!(
                "{}: this concerns the whole volume and cannot be done with a snapshot of it; name {volume}",
                text.display()
            ))),
            volume => Ok(volume),
        }
    }

    /// Reads `file:PATH` or a name, either with `@SNAPSHOT` behind it; the whole text is the volume. A local file whose
    /// own name has the sign is recognised if it exists.
    pub(super) fn parse(text: &OsStr) -> Result<Self, Failure> {
        let bytes = text.as_bytes();
        let file = bytes.strip_prefix(b"file:");
        let exists = file.is_some_and(|path| Path::new(OsStr::from_bytes(path)).exists());
        let sign = bytes.iter().rposition(|&byte| byte == b'@');
        // The second sign of two: a snapshot of the volume.
        let sign = sign.filter(|&at| file.is_some() || at == 0 || bytes[at - 1] != b'@');
        if let Some(at) = sign.filter(|&at| !exists && !bytes[at..].contains(&b'/')) {
            let name = &bytes[at + 1..];
            if !is_snapshot_name(name) {
                return Err(Failure::new(format!(
                    "\"{}\" names no snapshot behind the @; \"redhare fs snapshot list\" names those there are",
                    text.display()
                )));
            }
            let volume = Self::parse_plain(OsStr::from_bytes(&bytes[..at]))?;
            return Ok(Volume::Snapshot(Box::new(volume), name.to_vec()));
        }
        Self::parse_plain(text)
    }

    fn parse_plain(text: &OsStr) -> Result<Self, Failure> {
        let bytes = text.as_bytes();
        if let Some(path) = bytes.strip_prefix(b"file:") {
            if path.is_empty() {
                return Err(Failure::new("file: names no file; write file:PATH"));
            }
            return Ok(Volume::File(PathBuf::from(OsString::from_vec(path.to_vec()))));
        }
        let kept = text.to_str().and_then(|text| text.split_once("@@"));
        match (kept, text.to_str()) {
            (Some((name, snapshot)), _) if !name.is_empty() && !snapshot.is_empty() => {
                Ok(Volume::Kept(name.to_owned(), snapshot.to_owned()))
            }
            (None, Some(name)) if !name.is_empty() => Ok(Volume::Named(name.to_owned())),
            _ => Err(Failure::new(format!(
                "\"{}\" is not a volume's name; write a name, VOLUME@@SNAPSHOT for a snapshot of the volume (\"redhare volume snapshot list\" names those there are), or file:PATH for a local file or block device",
                text.display()
            ))),
        }
    }
}

/// A volume and a path inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The volume.
    pub(super) volume: Volume,
    /// Path from the root; empty for the root.
    pub(super) path: Vec<u8>,
}

impl Location {
    /// Reads `VOLUME` or `VOLUME:PATH`. The first colon divides; a local file whose own name has colons is
    /// recognised if it exists.
    pub(super) fn parse(text: &OsStr) -> Result<Self, Failure> {
        let bytes = text.as_bytes();
        let name_from = if bytes.starts_with(b"file:") { 5 } else { 0 };
        let colons = (name_from..bytes.len()).filter(|&at| bytes[at] == b':');
        let exists = |&end: &usize| {
            let path = Path::new(OsStr::from_bytes(&bytes[name_from..end]));
            name_from > 0 && path.metadata().is_ok_and(|found| !found.is_dir())
        };
        let mut ends = colons.clone().chain([bytes.len()]);
        let end = ends.find(exists).or(colons.clone().next());
        let end = end.unwrap_or(bytes.len());
        let path = bytes.get(end + 1..).unwrap_or_default().to_vec();
        let volume = Volume::parse(OsStr::from_bytes(&bytes[..end]))?;
        Ok(Self { volume, path })
    }
}

/// Opens a volume. Must be called on a reactor.
///
/// # Errors
/// What is missing or in the way, and what to do about it.
pub(super) fn open_volume(volume: &Volume, role: Role) -> Result<Opened, Failure> {
    open_volume_over(volume, role, Nearby::default())
}

/// As [`open_volume`]; without `local`, nodes of this machine are reached by TCP too.
pub(super) fn open_volume_over(volume: &Volume, role: Role, nearby: Nearby) -> Result<Opened, Failure> {
    let plain = match volume {
        Volume::Snapshot(..) | Volume::Kept(..) if role != Role::Read => {
            return Err(volume.failure("a snapshot is never written; name the volume without it"));
        }
        Volume::Snapshot(plain, _) => plain,
        plain => plain,
    };
    let way = match plain {
        Volume::File(path) => Way::File(find_file(plain, path, role)?),
        Volume::Named(name) => find_named(plain, name, nearby)?,
        Volume::Kept(name, snapshot) => find_kept(plain, name, snapshot)?,
        Volume::Snapshot(_, _) => return Err(volume.failure("a snapshot has no snapshots; name one")),
    };
    let volume = volume.clone();
    Arc::new(Found { volume, way }).open()
}

impl Found {
    /// Reads that went past nodes of this machine, to their disks.
    pub(super) fn past_reads(&self) -> u64 {
        match &self.way {
            Way::File(_) | Way::Kept(_) => 0,
            Way::Named(session, _) => session.past_reads(),
        }
    }

    /// A failure that names the volume.
    pub(super) fn failure(&self, error: impl std::fmt::Display) -> Failure {
        self.volume.failure(error)
    }

    /// Opens it for the calling core, whose reactor must run.
    ///
    /// # Errors
    /// As [`open_volume`].
    pub(super) fn open(self: Arc<Self>) -> Result<Opened, Failure> {
        match &self.way {
            Way::File(device) => {
                let channel = device.open_channel().map_err(Failure::new)?;
                Ok(Opened {
                    // The file is locked: no other process has a writer on it.
                    channel: TokenKeeper::new().over(channel),
                    leases: Rc::new(LocalLeases::new()),
                    copies: None,
                    found: self,
                })
            }
            Way::Kept(device) => Ok(Opened {
                channel: device.open_channel().map_err(Failure::new)?,
                // Nobody changes it, so that nobody need know who reads it.
                leases: Rc::new(LocalLeases::new()),
                copies: None,
                found: self,
            }),
            Way::Named(session, device) => {
                let channel = Rc::new(device.open());
                let leases = MasterLeases::new(session.clone(), &holder("redhare fs"));
                let leases = leases.map_err(|error| self.volume.failure(error))?;
                let copies = Copies::new(channel.clone());
                Ok(Opened {
                    channel,
                    leases: Rc::new(leases),
                    copies: Some(Rc::new(copies)),
                    found: self,
                })
            }
        }
    }
}

/// A snapshot of a cluster's volume. Blocks until a master has answered.
fn find_kept(volume: &Volume, name: &str, snapshot: &str) -> Result<Way, Failure> {
    let masters = crate::commands::cluster::named_or_local().map_err(|error| volume.failure(error))?;
    let request = v1::ListSnapshotsRequest {
        volume: name.to_owned(),
    };
    let listed = crate::commands::cluster::call_at(&masters, |client: master::Client| async move {
        client.list_snapshots(request).await
    })?;
    let is_it =
        |found: &&v1::Snapshot| found.name == snapshot && found.state() == v1::SnapshotState::Complete;
    let found = listed.snapshots.iter().find(is_it).ok_or_else(|| {
        volume.failure(format!(
            "the volume has no complete snapshot \"{snapshot}\"; \"redhare volume snapshot list {name}\" shows those it has"
        ))
    })?;
    let session = Session::connect(&masters, name).map_err(|error| volume.failure(error))?;
    Ok(Way::Kept(session.snapshot_device(found)))
}

/// A cluster's volume, through a session with its masters. Blocks until a master has answered.
fn find_named(volume: &Volume, name: &str, nearby: Nearby) -> Result<Way, Failure> {
    let masters = crate::commands::cluster::named_or_local().map_err(|error| {
        volume.failure(format!(
            "{error}; if \"{name}\" is a file here, write file:{name}"
        ))
    })?;
    let session = Session::connect(&masters, name).map_err(|error| volume.failure(error))?;
    let device = session.device(nearby);
    Ok(Way::Named(session, device))
}

/// This process as others see it who want a lease it holds.
pub(super) fn holder(program: &str) -> String {
    format!("{program}, process {} on {}", std::process::id(), host_name())
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() {
        "this host".to_owned()
    } else {
        name.trim().to_owned()
    }
}

fn find_file(volume: &Volume, path: &Path, role: Role) -> Result<FileDevice, Failure> {
    let create = match role {
        Role::Format { size } => size,
        Role::Read | Role::Write => None,
    };
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            let why = "it is a directory; name a file or a block device";
            return Err(volume.failure(why));
        }
        Ok(found) => {
            if let Some(size) = create.filter(|size| found.is_file() && ![0, size.0].contains(&found.len())) {
                return Err(volume.failure(format!(
                    "the file exists with {}, and --size asks for {size}; leave --size out to format it as it is, or \
                     remove it first",
                    ByteCount(found.len())
                )));
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && create.is_none() => {
            return Err(volume.failure(format!(
                "there is no such file; make it with \"redhare fs format {volume} --size 64GiB\""
            )));
        }
        // Opening it says what is wrong.
        Err(_) => {}
    }
    let options = FileOptions {
        create,
        read_only: role == Role::Read,
        ..FileOptions::default()
    };
    FileDevice::open(path, options).map_err(Failure::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_colon_divides_a_location() {
        for (text, volume, path) in [
            ("data", Volume::Named("data".into()), ""),
            ("data:", Volume::Named("data".into()), ""),
            ("data:a/b", Volume::Named("data".into()), "a/b"),
            ("file:x.img", Volume::File("x.img".into()), ""),
            ("data:a:b", Volume::Named("data".into()), "a:b"),
            ("file:/no/x:a:b", Volume::File("/no/x".into()), "a:b"),
            (
                "data@mon:a@b",
                Volume::Snapshot(Box::new(Volume::Named("data".into())), b"mon".to_vec()),
                "a@b",
            ),
            ("data@@mon:a@b", Volume::Kept("data".into(), "mon".into()), "a@b"),
            (
                "data@@mon@tue:a",
                Volume::Snapshot(
                    Box::new(Volume::Kept("data".into(), "mon".into())),
                    b"tue".to_vec(),
                ),
                "a",
            ),
            (
                "file:/no/x@y",
                Volume::Snapshot(Box::new(Volume::File("/no/x".into())), b"y".to_vec()),
                "",
            ),
            ("file:/no@x/y", Volume::File("/no@x/y".into()), ""),
            (
                "file:/proc/self/exe:a:b",
                Volume::File("/proc/self/exe".into()),
                "a:b",
            ),
        ] {
            let path = path.as_bytes().to_vec();
            assert_eq!(
                Location::parse(OsStr::new(text)).unwrap(),
                Location { volume, path }
            );
        }
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("x:y");
        std::fs::write(&file, "").expect("a file");
        let text = format!("file:{}:a", file.display());
        let found = Location::parse(OsStr::new(&text)).expect("a location");
        assert_eq!((found.volume, &found.path[..]), (Volume::File(file), &b"a"[..]));
        for text in ["", "file:", ":a", "data@", "@mon", "data@@", "@@mon"] {
            assert!(Location::parse(OsStr::new(text)).is_err(), "{text}");
        }
    }
}
