//! Proved here, with real mounts: a tree that is copied into a mount comes back as it was, from a cluster's volume and from
//! a file; what was synced outlives kill -9 of the mount's process; a mount that reads sees commits; unmounting commits; and
//! what cannot be done is refused with a remedy. Foreign judges of the same are in `tests/posix`.

mod boot;
mod clusters;
mod damaged;
mod handover;
mod large;
mod maps;
mod memory;
mod pinned;
mod programs;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{Cluster, LIMIT, Place, REDHARE, free_ports, wait_until};
use rustix::fs::{
    FallocateFlags, FileType, Mode, RenameFlags, SeekFrom, XattrFlags, copy_file_range, fallocate,
    renameat_with, seek,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// Whether FUSE is there; where it is not, the test is noted as skipped.
pub(crate) fn can_mount(test: &str) -> bool {
    let helper = Command::new("fusermount3").arg("--version").output();
    if Path::new("/dev/fuse").exists() && helper.is_ok() {
        return true;
    }
    let lacking = "there is no /dev/fuse, or no fusermount3; run \"modprobe fuse\" and install fuse3";
    skip(test, lacking);
    false
}

/// Notes that a test is skipped, and why.
fn skip(test: &str, lacking: &str) {
    eprintln!("SKIPPED {test}: {lacking}");
    if let Ok(list) = std::env::var("REDHARE_SKIPS") {
        let mut list = File::options().append(true).open(list).unwrap();
        writeln!(list, "redhare mount {test}: {lacking}").unwrap();
    }
}

/// A mount, served in the foreground by a process of its own.
pub(crate) struct Mount {
    process: Child,
    directory: PathBuf,
}

fn command(cluster: Option<&Cluster>, arguments: &[&str]) -> Command {
    let mut command = Command::new(REDHARE);
    command.arg("fs").args(arguments).env_remove("RUST_LOG");
    match cluster {
        Some(cluster) => command.env("REDHARE_CLUSTER", cluster.address()),
        None => command.env_remove("REDHARE_CLUSTER"),
    };
    command
}

fn succeed(cluster: Option<&Cluster>, arguments: &[&str]) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command(cluster, arguments).output().unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned();
    assert!(
        status.success(),
        "{arguments:?}: {said}{}",
        String::from_utf8_lossy(&stderr)
    );
    said
}

fn refused(arguments: &[&str]) -> String {
    let output = command(None, arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} succeeded");
    String::from_utf8(output.stderr).unwrap()
}

impl Mount {
    fn start(cluster: Option<&Cluster>, volume: &str, directory: &Path, more: &[&str]) -> Self {
        Self::by(command(cluster, &[]), volume, directory, more)
    }

    /// By a command `redhare fs` that knows its cluster.
    pub(crate) fn by(mut command: Command, volume: &str, directory: &Path, more: &[&str]) -> Self {
        fs::create_dir_all(directory).unwrap_or_else(|error| {
            // What a dead process has left there is in the way of this, and is what the mount has to cope with.
            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
        });
        let arguments = [&["mount", volume, directory.to_str().unwrap()], more].concat();
        let mut process = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert!(
            line.contains("is mounted on") && line.contains("Ctrl-C"),
            "{line}"
        );
        let directory = directory.to_owned();
        Self { process, directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Ends it as Ctrl-C does.
    pub(crate) fn end(mut self) {
        self.signal(Signal::INT);
        assert!(self.process.wait().unwrap().success());
        assert!(!is_mounted(&self.directory));
    }

    /// What a crash leaves: a mount that nobody serves.
    fn kill(mut self) -> PathBuf {
        self.signal(Signal::KILL);
        self.process.wait().unwrap();
        let left = self.directory.clone();
        let error = fs::metadata(&left).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
        self.directory = PathBuf::new();
        left
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            drop(self.process.wait());
        }
        if is_mounted(&self.directory) {
            let mut command = Command::new("fusermount3");
            drop(command.args(["-u", "-z"]).arg(&self.directory).status());
        }
    }
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let wanted = directory.to_str().unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(wanted))
}

/// What of an entry must come back.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Directory { mode: u32 },
    File { mode: u32, links: u64, bytes: Vec<u8> },
    Symlink { target: PathBuf },
}

fn collect(root: &Path, below: &Path, found: &mut BTreeMap<PathBuf, Found>) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let path = below.join(entry.unwrap().file_name());
        let whole = root.join(&path);
        let metadata = fs::symlink_metadata(&whole).unwrap();
        let mode = metadata.mode() & 0o7777;
        let what = if metadata.is_dir() {
            collect(root, &path, found);
            Found::Directory { mode }
        } else if metadata.is_symlink() {
            let target = fs::read_link(&whole).unwrap();
            assert_eq!(target.as_os_str().len() as u64, metadata.len());
            Found::Symlink { target }
        } else {
            let bytes = fs::read(&whole).unwrap();
            assert_eq!(bytes.len() as u64, metadata.len());
            let links = metadata.nlink();
            Found::File { mode, links, bytes }
        };
        found.insert(path, what);
    }
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Found> {
    let mut found = BTreeMap::new();
    collect(root, Path::new(""), &mut found);
    found
}

/// A tree with what trees have: this project's sources, and odd ones beside them.
fn make_tree(at: &Path) {
    fs::create_dir_all(at).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    copy(&sources, &at.join("src"));
    let odd = at.join("odd");
    fs::create_dir(&odd).unwrap();
    for (name, length) in [
        ("empty", 0),
        ("one", 1),
        ("page", 4096),
        ("unit", 70_001),
        ("large", 5_000_007),
    ] {
        let bytes: Vec<u8> = (0..length).map(|at: usize| (at % 251) as u8).collect();
        fs::write(odd.join(name), bytes).unwrap();
    }
    let sparse = File::create(odd.join("sparse")).unwrap();
    sparse.write_all_at(b"far away", 3_000_000).unwrap();
    sparse.set_len(4_000_000).unwrap();
    fs::hard_link(odd.join("page"), odd.join("also page")).unwrap();
    symlink("../src/main.rs", odd.join("a link")).unwrap();
    fs::set_permissions(odd.join("one"), PermissionsExt::from_mode(0o4750)).unwrap();
    for number in 0..700 {
        fs::write(odd.join(format!("{number:04} of many")), number.to_string()).unwrap();
    }
}

/// As a person does it: with `cp -a`.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

fn format(cluster: Option<&Cluster>, volume: &str) {
    let mut arguments = vec!["format", volume];
    if cluster.is_none() {
        arguments.extend(["--size", "256MiB"]);
    }
    succeed(cluster, &arguments);
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// A mounted file.
fn on_a_file(name: &str) -> (Place, String, Mount) {
    let place = Place::in_memory(name);
    let volume = format!("file:{}", place.0.join("volume").display());
    format(None, &volume);
    let mount = Mount::start(None, &volume, &place.0.join("mount"), &["--allow-other"]);
    (place, volume, mount)
}
