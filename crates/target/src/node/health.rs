//! What a node knows of its disks' health: the layer that resets them in stages (`docs/decisions/0088`), sample reads, and what the
//! agent and the metrics are told.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bdev::file::FileDevice;
use bdev::reset::{ResetChannel, ResetMeasures, Resetting, Source};
use bdev::{BlockDevice, Channel, ChannelExt, IoError, OpenError};
use foundation::Lba;
use reactor::mailbox::mailbox;
use reactor::{BufferPool, time};

use super::copies::BLOCK_BYTES;
use super::disk_faults::{DiskFaults, FaultyQueue};
use super::{Copies, Node};

/// How a node looks after its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCare {
    /// A request that stands so long begins a reset; each of its stages gets as long. A disk that none of them helps when the node
    /// starts is left out, and the others serve.
    pub stall_limit: Duration,
    /// Only for tests: a directory in which a file `NAME.fault` says what is wrong with the disk of this file name.
    pub faults: Option<PathBuf>,
}

/// A disk that is not used in this life of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Where it is.
    pub path: PathBuf,
    /// Why, for people.
    pub why: String,
}

/// How one disk of this process is, for the metrics. Written by its reactor; any thread may read.
#[derive(Debug)]
pub struct DiskMeasures {
    /// Where it is.
    pub path: String,
    /// What its resets were.
    pub resets: Arc<ResetMeasures>,
    /// Sample reads that were answered.
    pub samples: AtomicU64,
    /// The time that these took at the disk, summed, in nanoseconds.
    pub sample_ns: AtomicU64,
    /// Sample reads that failed.
    pub sample_failures: AtomicU64,
    /// 1 while it has no room for more.
    pub is_full: AtomicU64,
}

/// The disks of this process.
pub static DISKS: Mutex<Vec<Arc<DiskMeasures>>> = Mutex::new(Vec::new());

/// What keeps watch over one disk.
pub(super) struct Guard {
    pub(super) measures: Arc<DiskMeasures>,
    /// Everything that is asked of the disk goes this way.
    pub(super) channel: Rc<dyn Channel>,
    /// A sample read is under way: there is no second one.
    is_sampling: Cell<bool>,
    /// It was said that the disk's store has stopped.
    is_stop_said: Cell<bool>,
    stall_limit: Option<Duration>,
}

/// What a sample read has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) uuid: u128,
    /// None if the disk has failed to answer it, or has still another to answer.
    pub(super) took: Option<Duration>,
}

struct DiskSource {
    device: Arc<FileDevice>,
    faults: Option<Rc<DiskFaults>>,
}

impl Source for DiskSource {
    fn open_queue(&self) -> Result<Rc<dyn Channel>, OpenError> {
        let channel = self.device.open_channel()?;
        let Some(faults) = &self.faults else {
            return Ok(channel);
        };
        Ok(Rc::new(FaultyQueue::new(faults.clone(), channel)))
    }

    fn reopen(&self) -> Result<(), String> {
        self.device.reopen()?;
        if let Some(faults) = &self.faults {
            faults.reopened();
        }
        Ok(())
    }

    fn reset_driver(&self) -> Resetting {
        let controller = self.device.descriptor().and_then(|descriptor| {
            let found = rustix::fs::fstat(descriptor).ok()?;
            let is_disk = rustix::fs::FileType::from_raw_mode(found.st_mode).is_block_device();
            let (major, minor) = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
            is_disk.then(|| controller_of(Path::new("/sys"), major, minor))?
        });
        let faults = self.faults.clone();
        Box::pin(async move {
            let reset = match (controller, &faults) {
                (Some(controller), _) => write_elsewhere(controller.join("reset_controller")).await,
                // A test's disk is a file, and its faults know what a driver is.
                (None, Some(_)) => Ok(()),
                (None, None) => {
                    Err("it is no NVMe disk of the kernel's: there is no driver to reset".to_owned())
                }
            };
            match faults {
                Some(faults) => reset.and_then(|()| faults.reset_driver()),
                None => reset,
            }
        })
    }
}

/// The controller in sysfs of an NVMe disk, or of a partition of one. Of a disk with several paths, the first.
fn controller_of(sysfs: &Path, major: u32, minor: u32) -> Option<PathBuf> {
    let device = sysfs
        .join(format!("dev/block/{major}:{minor}"))
        .canonicalize()
        .ok()?;
    let resets = |place: &Path| place.join("reset_controller").exists();
    for place in device.ancestors().take_while(|place| place.starts_with(sysfs)) {
        if resets(place) {
            return Some(place.to_owned());
        }
        // A subsystem with several paths names its controllers.
        let is_subsystem = place
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("nvme-subsys"));
        if is_subsystem {
            let mut found: Vec<PathBuf> = std::fs::read_dir(place)
                .ok()?
                .filter_map(|entry| entry.ok()?.path().canonicalize().ok())
                .filter(|place| resets(place))
                .collect();
            found.sort();
            return found.into_iter().next();
        }
    }
    None
}

/// Asks the kernel for a reset from a thread of its own: it takes seconds.
async fn write_elsewhere(path: PathBuf) -> Result<(), String> {
    let (sender, mut receiver) = mailbox(1);
    let thread = std::thread::Builder::new().name("driver-reset".to_owned());
    let spawned = thread.spawn(move || {
        let written = std::fs::write(&path, "1").map_err(|error| format!("{}: {error}", path.display()));
        // The reactor has ended if nobody takes it.
        drop(sender.try_send(written));
    });
    spawned.map_err(|error| format!("no thread can be started: {error}"))?;
    receiver
        .recv()
        .await
        .unwrap_or_else(|| Err("it was given up".to_owned()))
}

impl Guard {
    /// Puts the layer over a disk, if there is to be one.
    pub(super) fn over(
        path: &Path,
        device: &Arc<FileDevice>,
        care: Option<&DiskCare>,
    ) -> Result<Self, OpenError> {
        let resets = Arc::new(ResetMeasures::default());
        let measures = Arc::new(DiskMeasures {
            path: path.display().to_string(),
            resets: resets.clone(),
            samples: AtomicU64::new(0),
            sample_ns: AtomicU64::new(0),
            sample_failures: AtomicU64::new(0),
            is_full: AtomicU64::new(0),
        });
        let channel: Rc<dyn Channel> = match care {
            Some(care) => {
                let faults = care
                    .faults
                    .as_deref()
                    .map(|directory| DiskFaults::read(directory, path));
                let device = device.clone();
                let source = Rc::new(DiskSource { device, faults });
                let name = path.display().to_string();
                DISKS
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(measures.clone());
                ResetChannel::open(name, source, care.stall_limit, resets)?
            }
            None => device.open_channel()?,
        };
        Ok(Self {
            measures,
            channel,
            is_sampling: Cell::new(false),
            is_stop_said: Cell::new(false),
            stall_limit: care.map(|care| care.stall_limit),
        })
    }

    /// What a future ends with; none if requests of the disk stand meanwhile, and no stage of a reset helps but the last.
    pub(super) async fn unless_it_stands<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let Some(limit) = self.stall_limit else {
            return Some(future.await);
        };
        loop {
            match time::timeout(limit / 4, future.as_mut()).await {
                Ok(ended) => return Some(ended),
                Err(_) if self.measures.resets.needs_process.load(Ordering::Relaxed) => return None,
                Err(_) => {}
            }
        }
    }

    /// Such a disk.
    pub(super) fn left_out(&self, path: &Path) -> LeftOut {
        let standing = self.measures.resets.standing_ms.load(Ordering::Relaxed);
        let why = format!("its requests stood for {standing} ms when the node started, and no reset helped");
        tracing::error!(path = %path.display(), why, "a disk is left out");
        LeftOut {
            path: path.to_owned(),
            why,
        }
    }

    /// Whether the disk's store has stopped, so that nothing is made durable there before it is opened anew, which another process does:
    /// nobody knows what of it a failed flush has left. Says so once.
    fn has_stopped(&self, stopped: Option<IoError>) -> bool {
        let Some(error) = stopped else { return false };
        if !self.is_stop_said.replace(true) {
            let disk = &self.measures.path;
            tracing::error!(
                disk,
                %error,
                "nothing can be made durable on a disk any more, since a write or flush of its metadata failed: the target is to be started anew"
            );
        }
        true
    }

    /// Reads one page, and says how long the disk took; none if it failed, or is at another one.
    async fn sample(&self, random: u64) -> Option<Duration> {
        if self.is_sampling.replace(true) {
            return None;
        }
        // What is waited for before is no time of the disk's.
        let buffer = BufferPool::current().allocate(BLOCK_BYTES).await;
        let began = time::now();
        let read = match buffer {
            Ok(buffer) => {
                let pages = self.channel.geometry().blocks.0.max(1);
                self.channel.read(Lba(random % pages), buffer).await.0
            }
            Err(_) => Err(IoError::Exhausted),
        };
        self.is_sampling.set(false);
        let took = time::now() - began;
        match read {
            Ok(()) => {
                let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                self.measures.samples.fetch_add(1, Ordering::Relaxed);
                self.measures.sample_ns.fetch_add(took_ns, Ordering::Relaxed);
                Some(took)
            }
            Err(error) => {
                let disk = &self.measures.path;
                tracing::warn!(disk, %error, "a sample read of a disk failed");
                self.measures.sample_failures.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

impl Copies {
    /// Reads one page of the disk of this number, and how many disks there are.
    pub(super) async fn sample(&self, disk: usize, random: u64) -> Option<Sample> {
        let disk = self.disks.get(disk)?;
        let took = disk.guard.sample(random).await;
        let uuid = disk.uuid;
        Some(Sample { uuid, took })
    }

    /// The disks' health, those that are left out among them.
    fn health(&self) -> Vec<agentlink::DiskHealth> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of_disk = |disk: &super::copies::Disk| {
            let measures = &disk.guard.measures;
            let is_full = disk.is_short();
            measures.is_full.store(is_full.into(), Ordering::Relaxed);
            let resets = &measures.resets;
            agentlink::DiskHealth {
                uuid: disk.uuid,
                path: disk.path.display().to_string(),
                is_full,
                failures: load(&resets.failures),
                standing_ms: load(&resets.standing_ms),
                resets: resets.begun.each_ref().map(load),
                cured: resets.cured.each_ref().map(load),
                needs_process: resets.needs_process.load(Ordering::Relaxed)
                    || disk.guard.has_stopped(disk.store.stopped()),
                left_out: None,
            }
        };
        let left_out = |left: &LeftOut| agentlink::DiskHealth {
            path: left.path.display().to_string(),
            left_out: Some(left.why.clone()),
            ..agentlink::DiskHealth::default()
        };
        let used = self.disks.iter().map(of_disk);
        used.chain(self.left_out.iter().map(left_out)).collect()
    }
}

impl Node {
    /// How the disks are.
    pub fn disk_health(&self) -> Vec<agentlink::DiskHealth> {
        self.copies.health()
    }

    pub(super) fn disk_count(&self) -> usize {
        self.copies.disk_count()
    }

    pub(super) async fn sample_disk(&self, disk: usize, random: u64) -> Option<Sample> {
        self.copies.sample(disk, random).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_controller_of_a_disk_is_found_with_one_path_and_with_several() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = root.path().canonicalize().unwrap();
        let make = |path: &str| std::fs::create_dir_all(sysfs.join(path)).unwrap();
        make("dev/block");
        make("devices/pci/nvme/nvme3/nvme3n1/nvme3n1p2");
        std::fs::write(sysfs.join("devices/pci/nvme/nvme3/reset_controller"), "").unwrap();
        let link = |number: &str, to: &str| {
            symlink(sysfs.join(to), sysfs.join("dev/block").join(number)).unwrap();
        };
        link("259:0", "devices/pci/nvme/nvme3/nvme3n1");
        link("259:1", "devices/pci/nvme/nvme3/nvme3n1/nvme3n1p2");
        make("devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1");
        symlink(
            sysfs.join("devices/pci/nvme/nvme3"),
            sysfs.join("devices/virtual/nvme-subsystem/nvme-subsys0/nvme3"),
        )
        .unwrap();
        link("259:2", "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1");
        make("devices/virtual/block/loop0");
        link("7:0", "devices/virtual/block/loop0");
        let controller = Some(sysfs.join("devices/pci/nvme/nvme3"));
        for minor in 0..3 {
            assert_eq!(controller_of(&sysfs, 259, minor), controller, "259:{minor}");
        }
        assert_eq!(controller_of(&sysfs, 7, 0), None);
        assert_eq!(controller_of(&sysfs, 8, 0), None);
    }
}
