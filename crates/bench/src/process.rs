//! Contenders as processes: started on one CPU, their processor time read from the kernel.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// A running server, killed when dropped.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts `command` on `cpus`, one or a list (through `taskset`).
    pub fn start(cpus: impl Display, command: &[String]) -> io::Result<Self> {
        Self::start_at(Priority::Ordinary, cpus, command)
    }

    /// The same with a priority.
    pub fn start_at(priority: Priority, cpus: impl Display, command: &[String]) -> io::Result<Self> {
        let child = pinned(priority, cpus, command)
            // Its progress is no news here; what goes wrong is.
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child })
    }

    /// User and system time spent so far by all of its threads.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        cpu_time(self.child.id())
    }

    /// The process' number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// How a contender stands to the machine's other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// As one of them.
    Ordinary,
    /// Before them (`SCHED_FIFO`, sched(7)), so that what they do is not in its figures: a millisecond that another program
    /// takes is a hundredth of a slice's third. Two contenders that both want one CPU must not both have it.
    RealTime,
}

impl Priority {
    /// [`RealTime`](Self::RealTime) if this user may start programs so, which is tried once. Blocks while it is.
    pub fn best() -> Self {
        static MAY: OnceLock<bool> = OnceLock::new();
        let may = MAY.get_or_init(|| {
            let tried = Command::new("chrt")
                .args(["--fifo", "1", "true"])
                .stderr(Stdio::null())
                .status();
            tried.is_ok_and(|status| status.success())
        });
        if *may { Self::RealTime } else { Self::Ordinary }
    }
}

/// A command that runs on `cpus`, one or a list (through `taskset` and `chrt`).
pub fn pinned(priority: Priority, cpus: impl Display, command: &[String]) -> Command {
    let mut pinned = Command::new("taskset");
    pinned.arg("-c").arg(cpus.to_string());
    if priority == Priority::RealTime {
        pinned.args(["chrt", "--fifo", "1"]);
    }
    pinned.args(command);
    pinned
}

/// User and system time of all threads of a live process, to the nanosecond.
pub fn cpu_time(id: u32) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for thread in std::fs::read_dir(format!("/proc/{id}/task"))? {
        let path = thread?.path().join("schedstat");
        // A thread may end between the listing and the reading.
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let spent: u64 = text
            .split(' ')
            .next()
            .and_then(|first| first.parse().ok())
            .unwrap_or(0);
        total += Duration::from_nanos(spent);
    }
    Ok(total)
}

/// The processes that a process has started and that have not ended. None where the kernel does not tell.
pub fn children(id: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{id}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        found.extend(
            text.split_ascii_whitespace()
                .filter_map(|child| child.parse::<u32>().ok()),
        );
    }
    Ok(found)
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(id: u32) -> io::Result<u64> {
    status_bytes(id, "VmRSS:")
}

/// The most resident memory that a process has had, in bytes.
pub fn peak_resident_bytes(id: u32) -> io::Result<u64> {
    status_bytes(id, "VmHWM:")
}

/// The part of a process' resident memory that is no file's, in bytes: heap, stacks, buffers.
pub fn anonymous_bytes(id: u32) -> io::Result<u64> {
    status_bytes(id, "RssAnon:")
}

fn status_bytes(id: u32, name: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let missing = || io::Error::other(format!("/proc/{id}/status has no number after {name}"));
    Ok(kib.ok_or_else(missing)? * 1024)
}

/// The process that listens on a TCP address on this machine; `None` if none does, or if it is another user's.
pub fn listening_on(address: SocketAddr) -> io::Result<Option<u32>> {
    let mut sockets = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // A machine without IPv6 has no second table.
        let text = std::fs::read_to_string(table).unwrap_or_default();
        sockets.extend(
            text.lines()
                .filter_map(|line| listening_socket(line, address.port())),
        );
    }
    for process in processes()? {
        let links = links(process);
        if links.iter().any(|(_, link)| sockets.contains(link)) {
            return Ok(Some(process));
        }
    }
    Ok(None)
}

/// The socket of a line of `/proc/net/tcp` (`Documentation/networking/proc_net_tcp.rst`) that listens on a port. An
/// address of this machine and a port mean one listener.
fn listening_socket(line: &str, port: u16) -> Option<PathBuf> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let (_, digits) = local.rsplit_once(':')?;
    let listens = *state == "0A" && u16::from_str_radix(digits, 16) == Ok(port);
    listens.then(|| PathBuf::from(format!("socket:[{inode}]")))
}

/// The numbers of all processes.
pub fn processes() -> io::Result<Vec<u32>> {
    let entries = std::fs::read_dir("/proc")?;
    let number = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(number).collect())
}

/// A process and all that it, or any below it, has started and not yet outlived.
pub fn with_descendants(first: u32) -> io::Result<Vec<u32>> {
    let parents: Vec<(u32, u32)> = processes()?
        .into_iter()
        .filter_map(|process| Some((process, parent(process)?)))
        .collect();
    let mut family = vec![first];
    let mut at = 0;
    while let Some(&member) = family.get(at) {
        at += 1;
        let children = parents.iter().filter(|(_, parent)| *parent == member);
        family.extend(children.map(|(child, _)| *child));
    }
    Ok(family)
}

fn parent(process: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the program's name in brackets and may hold blanks.
    let after_name = text.rsplit(')').next()?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

/// Descriptors of a process and what they lead to; none of a process that has ended or is another user's.
fn links(process: u32) -> Vec<(String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else {
        return Vec::new();
    };
    let link = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let number = entry.file_name().into_string().ok()?;
        Some((number, std::fs::read_link(entry.path()).ok()?))
    };
    entries.filter_map(link).collect()
}

/// The parent of a process, if that runs the same program.
pub fn parent_of_same_program(process: u32) -> Option<u32> {
    let parent = parent(process)?;
    let program = |process: u32| std::fs::read_link(format!("/proc/{process}/exe")).ok();
    (program(parent)? == program(process)?).then_some(parent)
}

/// No disk is smaller than this, in bytes; the locks and sockets of a process are.
const DISK_BYTES_MIN: u64 = 1 << 20;

/// Files and block devices that a process has open to read and write through the page cache, so without `O_DIRECT`.
pub fn buffered_disks(process: u32) -> Vec<PathBuf> {
    let is_buffered = |number: &str, link: &Path| {
        let is_disk = std::fs::metadata(format!("/proc/{process}/fd/{number}"))
            .is_ok_and(|found| found.size() >= DISK_BYTES_MIN || found.file_type().is_block_device());
        let text = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        let flags = rustix::fs::OFlags::from_bits_retain(flags.unwrap_or(0));
        // Memory that processes share is open in the same way, and its name is absolute too.
        let is_memory = link.to_string_lossy().starts_with("/memfd:");
        is_disk
            && link.is_absolute()
            && !is_memory
            && flags.contains(rustix::fs::OFlags::RDWR)
            && !flags.contains(rustix::fs::OFlags::DIRECT)
    };
    let links = links(process).into_iter();
    links
        .filter(|(number, link)| is_buffered(number, link))
        .map(|(_, link)| link)
        .collect()
}

/// Builds a C yardstick beside the build's other output; the compiler's message on failure.
pub fn compile(source: &Path, output: &Path) -> io::Result<()> {
    let built = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .arg(output)
        .arg(source)
        .output()?;
    if built.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    Err(io::Error::other(format!(
        "cc could not build {}: {said}",
        source.display()
    )))
}

/// Runs a command to its end: what it printed, and the processor time it took.
pub fn run_timed(command: &mut Command) -> io::Result<(String, Duration)> {
    let before = children_cpu_time()?;
    let output = command.stderr(Stdio::inherit()).output()?;
    let spent = children_cpu_time()?.saturating_sub(before);
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "{command:?} ended with {}",
            output.status
        )));
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), spent))
}

/// Processor time of this process' ended children, in ticks of 10 ms (`/proc/self/stat`, fields 16 and 17).
fn children_cpu_time() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // The second field is the program's name in brackets and may hold blanks.
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks = |index: usize| -> u64 {
        after_name
            .split_whitespace()
            .nth(index)
            .and_then(|number| number.parse().ok())
            .unwrap_or(0)
    };
    Ok(Duration::from_millis((ticks(13) + ticks(14)) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(listening_on(address).unwrap(), Some(std::process::id()));
        drop(listener);
        assert_eq!(listening_on(address).unwrap(), None);
    }

    #[test]
    fn a_process_has_its_children() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let family = with_descendants(std::process::id()).unwrap();
        assert!(family.contains(&std::process::id()) && family.contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn files_that_pass_through_the_page_cache_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, [1; 4096]).unwrap();
        let own = || buffered_disks(std::process::id()).contains(&path);
        assert!(!own());
        let _only_read = std::fs::File::open(&path).unwrap();
        assert!(!own());
        let _both = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        assert!(!own(), "a lock is no disk");
        std::fs::write(&path, vec![1; DISK_BYTES_MIN as usize]).unwrap();
        assert!(own());
    }

    #[test]
    fn memory_that_processes_share_is_no_disk() {
        let memory = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 2 * DISK_BYTES_MIN).unwrap();
        let found = buffered_disks(std::process::id());
        let is_shared = |path: &PathBuf| path.to_string_lossy().contains("memfd:shared");
        assert!(!found.iter().any(is_shared), "{found:?}");
    }
}
