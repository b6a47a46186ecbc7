//! The rows about what people use today: the files of a volume, beside the same files through the mount of a networked file system.
//!
//! Each has one copy in the same file system, and its servers and its mount run beside the readers, as ours do. A system whose program
//! is missing has no rows, and the reason is said.

mod gluster;
mod juicefs;
mod moosefs;
mod seaweedfs;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench::process::{self, run_timed};
use bench::report::{Bar, Row};

use self::juicefs::{Caches, JuiceFs};
use super::archives::native_row;
use super::mounted::Mount;
use super::race::{Data, Length, race};
use super::{FILES_IN_FLIGHT, Filled, Stage};
use crate::output::Failure;

/// The promise: so many times the files per second of any networked file system, all cold, by our own client.
const COLD_BAR: f64 = 10.0;
/// The promise: so many times those of JuiceFS with long caches, all warm, mount against mount.
const WARM_BAR: f64 = 3.0;
/// Starts one with its files below a directory.
type Start = fn(&std::path::Path) -> Result<Peer, Failure>;
/// All of them, and how those start that are measured in one way only.
const SYSTEMS: [(&str, Option<Start>); 4] = [
    ("GlusterFS", Some(gluster::start)),
    ("MooseFS", Some(moosefs::start)),
    ("SeaweedFS", Some(seaweedfs::start)),
    ("JuiceFS", None),
];
/// How long each of its processes may take until it serves, or until it has ended.
const START_LIMIT: Duration = Duration::from_secs(30);
const END_LIMIT: Duration = Duration::from_secs(10);

/// A process that is ended when this is dropped.
struct Running(Child);

impl Running {
    /// Starts it with its output thrown away: what it has to say is in its log.
    fn start(command: &mut Command, package: &str) -> Result<Self, Failure> {
        let program = command.get_program().display().to_string();
        let started = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        started
            .map(Running)
            .map_err(|error| Failure::new(format!("{program}: {error}; run: apt-get install {package}")))
    }

    /// Waits until it has ended by itself. Blocks, for [`END_LIMIT`] at most.
    fn wait(&mut self) {
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Processor time of it and of what it has started.
    fn cpu_time(&self) -> Result<Duration, Failure> {
        let own = process::cpu_time(self.0.id()).map_err(Failure::new)?;
        let children = process::children(self.0.id()).map_err(Failure::new)?;
        let of = |child| process::cpu_time(child).unwrap_or_default();
        Ok(own + children.into_iter().map(of).sum::<Duration>())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A networked file system that runs and is mounted.
struct Peer {
    name: &'static str,
    /// How it is set up, in a few words.
    setup: &'static str,
    directory: PathBuf,
    processes: Vec<Running>,
    is_mounted: bool,
    /// What its processes listen at, if this host has it only for them; dropped after them.
    address: Option<moosefs::Address>,
}

impl Peer {
    fn new(name: &'static str, setup: &'static str, directory: PathBuf) -> Self {
        Self {
            name,
            setup,
            directory,
            processes: Vec::new(),
            is_mounted: false,
            address: None,
        }
    }

    fn add(&mut self, running: Running) {
        self.processes.push(running);
    }

    /// Waits until this process has mounted it as `kind`. It is the last of its processes.
    fn mount(&mut self, running: Running, kind: &str) -> Result<(), Failure> {
        self.add(running);
        self.is_mounted = true;
        let shown = self.directory.display().to_string();
        until(self.name, "it is mounted", || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            mounts
                .lines()
                .any(|line| line.contains(&shown) && line.contains(kind))
                && std::fs::read_dir(&shown).is_ok()
        })
    }

    /// Its mount is gone afterwards, and the process that served it.
    fn unmount(&mut self) {
        if !std::mem::take(&mut self.is_mounted) {
            return;
        }
        let mut command = Command::new("umount");
        if let Err(error) = run_timed(command.arg("-l").arg(&self.directory)) {
            tracing::warn!(%error, "a mount of {} stays", self.name);
        }
        if let Some(mut mount) = self.processes.pop() {
            mount.wait();
        }
    }

    /// Its first process, which goes on.
    fn take_first(&mut self) -> Option<Running> {
        (!self.processes.is_empty()).then(|| self.processes.remove(0))
    }

    fn cpu_time(&self) -> Result<Duration, Failure> {
        self.processes.iter().map(Running::cpu_time).sum()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// A port that is free when it is asked for, which is all that can be had.
fn free_port() -> Result<u16, Failure> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    Ok(free.map_err(Failure::new)?.port())
}

fn listens(address: Ipv4Addr, port: u16) -> bool {
    TcpStream::connect((address, port)).is_ok()
}

fn until(name: &str, what: &str, is_so: impl Fn() -> bool) -> Result<(), Failure> {
    let deadline = Instant::now() + START_LIMIT;
    while !is_so() {
        if Instant::now() > deadline {
            return Err(Failure::new(format!(
                "{name}: after {} s it is still not so: {what}; its logs are in the directory of --data",
                START_LIMIT.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn missing(name: &str, why: impl std::fmt::Display) -> Row {
    Row::missing(
        format!("16 KiB files, against {name}"),
        Bar::AtLeast(COLD_BAR),
        why.to_string(),
    )
}

/// The rows; of what is missing that it is.
pub(super) fn rows(stage: &Stage<'_>, filled: &Filled) -> Result<Vec<Row>, Failure> {
    if !rustix::process::geteuid().is_root() {
        let missing = |name| missing(name, "only root may mount it");
        return Ok(SYSTEMS.map(|(name, _)| missing(name)).into());
    }
    let mut rows = Vec::new();
    for (name, start) in SYSTEMS {
        let Some(start) = start else { continue };
        match start(stage.scratch) {
            Ok(peer) => {
                peer.fill(filled)?;
                rows.extend(rows_of(stage, filled, &peer, None)?);
            }
            Err(why) => rows.push(missing(name, why)),
        }
    }
    match JuiceFs::make(stage.scratch) {
        Ok(mut made) => {
            let peer = made.mount(Caches::Default)?;
            peer.fill(filled)?;
            rows.extend(rows_of(stage, filled, &peer, None)?);
            made.back(peer);
            let peer = made.mount(Caches::Long)?;
            rows.extend(rows_of(stage, filled, &peer, Some(Bar::AtLeast(WARM_BAR)))?);
        }
        Err(why) => rows.push(missing("JuiceFS", why)),
    }
    Ok(rows)
}

impl Peer {
    fn fill(&self, filled: &Filled) -> Result<(), Failure> {
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(filled.source.join(".")).arg(&self.directory);
        run_timed(&mut copy).map_err(Failure::new)?;
        Ok(())
    }
}

fn rows_of(stage: &Stage<'_>, filled: &Filled, peer: &Peer, warm: Option<Bar>) -> Result<Vec<Row>, Failure> {
    let against = format!("{} ({})", peer.name, peer.setup);
    let mut rows = vec![native_row(
        stage,
        &peer.directory,
        &against,
        Some(Bar::AtLeast(COLD_BAR)),
    )?];
    if let Some(mount) = Mount::of(stage)? {
        let race = |data, bar| race_of(stage, filled, peer, &mount, (data, bar));
        rows.push(race(Data::Cold, None)?);
        rows.push(race(Data::Warm, warm)?);
    }
    Ok(rows)
}

/// Mount against mount.
fn race_of(
    stage: &Stage<'_>,
    filled: &Filled,
    peer: &Peer,
    mount: &Mount,
    (data, bar): (Data, Option<Bar>),
) -> Result<Row, Failure> {
    let length = Length {
        rounds: stage.rounds(),
        seconds: stage.arguments.seconds,
        in_flight: FILES_IN_FLIGHT,
        data,
    };
    let raced = race(
        filled.below(mount.directory())?,
        filled.below(&peer.directory)?,
        &length,
        || mount.cpu_time(stage),
        || peer.cpu_time(),
    )?;
    let (name, setup) = (peer.name, peer.setup);
    let row = Row::new(
        format!(
            "16 KiB files, {FILES_IN_FLIGHT} in flight, index in memory, {data}, through a mount, against {name} ({setup})"
        ),
        raced.ratio,
        "of its files/s",
        bar,
    );
    Ok(row.with_note(format!(
        "our mount, 3 copies, {} (readers, mount and cluster); {name}'s {} (readers, mount and servers); half of the {} rounds between \
         {:.2} and {:.2}",
        raced.ours, raced.theirs, raced.rounds, raced.quartiles.0, raced.quartiles.1
    )))
}
