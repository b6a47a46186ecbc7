//! The row about what people use today: the files of a volume through our mount, beside the same files through GlusterFS's.
//!
//! One brick, which is one copy, in the same file system; server and client as `glusterd` sets them up by default, but without it: their
//! volume files are written here, so nothing of the machine's is touched.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench::process::{self, run_timed};
use bench::report::Row;

use super::mounted::Mount;
use super::race::{Length, race};
use super::{FILES_IN_FLIGHT, Filled, Stage};
use crate::output::Failure;

const SERVER: &str = "glusterfsd";
const CLIENT: &str = "glusterfs";
/// How long each of its processes may take until it serves.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A process that is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// GlusterFS of one brick, mounted. The order of the fields is that in which they end.
struct Gluster {
    directory: PathBuf,
    client: Running,
    server: Running,
}

impl Drop for Gluster {
    fn drop(&mut self) {
        let mut command = Command::new("umount");
        if let Err(error) = run_timed(command.arg("-l").arg(&self.directory)) {
            tracing::warn!(%error, "a mount of GlusterFS stays");
        }
    }
}

impl Gluster {
    fn start(scratch: &Path) -> Result<Self, Failure> {
        let place = scratch.join("gluster");
        let (brick, directory) = (place.join("brick"), place.join("mount"));
        for path in [&brick, &directory] {
            std::fs::create_dir_all(path).map_err(Failure::new)?;
        }
        // Free when it is asked for, which is all that can be had.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
        let port = free.map_err(Failure::new)?.port();
        let (server, client) = (place.join("server.vol"), place.join("client.vol"));
        std::fs::write(&server, server_volume(&brick, port)).map_err(Failure::new)?;
        std::fs::write(&client, client_volume(port)).map_err(Failure::new)?;
        let start = |program: &str, volume: &Path| {
            let mut command = Command::new(program);
            command
                .arg("--no-daemon")
                .arg("--volfile")
                .arg(volume)
                .arg("--log-file")
                .arg(volume.with_extension("log"))
                .arg("--pid-file")
                .arg(volume.with_extension("pid"))
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            if program == CLIENT {
                command.arg(&directory);
            }
            let started = command.spawn();
            started.map(Running).map_err(|error| {
                Failure::new(format!(
                    "{program}: {error}; run: apt-get install glusterfs-server"
                ))
            })
        };
        let server = start(SERVER, &server)?;
        until("its server listens", || {
            std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })?;
        let client = start(CLIENT, &client)?;
        let gluster = Self {
            directory,
            client,
            server,
        };
        until("it is mounted", || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            let shown = gluster.directory.display().to_string();
            mounts
                .lines()
                .any(|line| line.contains(&shown) && line.contains("fuse.glusterfs"))
                && std::fs::read_dir(&gluster.directory).is_ok()
        })?;
        Ok(gluster)
    }

    fn cpu_time(&self) -> Result<Duration, Failure> {
        let of = |running: &Running| process::cpu_time(running.0.id()).map_err(Failure::new);
        Ok(of(&self.client)? + of(&self.server)?)
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) -> Result<(), Failure> {
    let deadline = Instant::now() + START_LIMIT;
    while !is_so() {
        if Instant::now() > deadline {
            return Err(Failure::new(format!(
                "GlusterFS: after {} s it is still not so: {what}; its logs are in the directory of --data, below gluster",
                START_LIMIT.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A translator: its name, its type, and its options.
type Translator<'a> = (&'a str, &'a str, &'a [(&'a str, String)]);

/// A volume file of translators, each on top of the one before.
fn volume_file(layers: &[Translator<'_>]) -> String {
    let mut text = String::new();
    let mut below = None;
    for (name, kind, options) in layers {
        text.push_str(&format!("volume {name}\n  type {kind}\n"));
        for (option, value) in *options {
            text.push_str(&format!("  option {option} {value}\n"));
        }
        if let Some(below) = below.replace(name) {
            text.push_str(&format!("  subvolumes {below}\n"));
        }
        text.push_str("end-volume\n\n");
    }
    text
}

fn server_volume(brick: &Path, port: u16) -> String {
    let shown = brick.display().to_string();
    let listen = [
        ("transport-type", "tcp".to_owned()),
        ("transport.socket.listen-port", port.to_string()),
        ("transport.socket.bind-address", Ipv4Addr::LOCALHOST.to_string()),
        ("transport.address-family", "inet".to_owned()),
        ("auth.addr.brick.allow", "*".to_owned()),
    ];
    volume_file(&[
        ("posix", "storage/posix", &[("directory", shown)]),
        ("locks", "features/locks", &[]),
        ("upcall", "features/upcall", &[]),
        (
            "brick",
            "performance/io-threads",
            &[("thread-count", "16".to_owned())],
        ),
        ("server", "protocol/server", &listen),
    ])
}

fn client_volume(port: u16) -> String {
    let connect = [
        ("transport-type", "tcp".to_owned()),
        ("remote-host", Ipv4Addr::LOCALHOST.to_string()),
        ("remote-port", port.to_string()),
        ("remote-subvolume", "brick".to_owned()),
        ("transport.address-family", "inet".to_owned()),
    ];
    volume_file(&[
        ("client", "protocol/client", &connect),
        ("write-behind", "performance/write-behind", &[]),
        ("open-behind", "performance/open-behind", &[]),
        ("quick-read", "performance/quick-read", &[]),
        ("md-cache", "performance/md-cache", &[]),
        ("io-threads", "performance/io-threads", &[]),
    ])
}

/// The row; none where something is missing.
pub(super) fn row(stage: &Stage<'_>, filled: &Filled) -> Result<Option<Row>, Failure> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("no row about GlusterFS: only root may mount it");
        return Ok(None);
    }
    let gluster = match Gluster::start(stage.scratch) {
        Ok(gluster) => gluster,
        Err(why) => {
            eprintln!("no row about GlusterFS: {why}");
            return Ok(None);
        }
    };
    let mut copy = Command::new("cp");
    copy.arg("-r")
        .arg(filled.source.join("."))
        .arg(&gluster.directory);
    run_timed(&mut copy).map_err(Failure::new)?;
    let Some(mount) = Mount::of(stage)? else {
        return Ok(None);
    };
    let length = Length {
        rounds: stage.rounds(),
        seconds: stage.arguments.seconds,
        in_flight: FILES_IN_FLIGHT,
    };
    let ours = filled.below(mount.directory())?;
    let theirs = filled.below(&gluster.directory)?;
    let raced = race(
        ours,
        theirs,
        &length,
        || mount.cpu_time(stage),
        || gluster.cpu_time(),
    )?;
    let row = Row::new(
        format!(
            "16 KiB files, {FILES_IN_FLIGHT} in flight, index in memory, through a mount, against GlusterFS"
        ),
        raced.ratio,
        "of its files/s",
        None,
    );
    Ok(Some(row.with_note(format!(
        "our mount, 3 copies, {} (readers, mount and cluster); GlusterFS's, one brick, {} (readers, client and server); half of the {} rounds \
         between {:.2} and {:.2}",
        raced.ours, raced.theirs, raced.rounds, raced.quartiles.0, raced.quartiles.1
    ))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_translator_stands_on_the_one_before() {
        let text = server_volume(Path::new("/b"), 4711);
        assert!(
            text.starts_with("volume posix\n  type storage/posix\n  option directory /b\nend-volume\n"),
            "{text}"
        );
        assert!(
            text.contains("option transport.socket.listen-port 4711\n"),
            "{text}"
        );
        assert!(text.ends_with("  subvolumes brick\nend-volume\n\n"), "{text}");
        let text = client_volume(4711);
        assert!(
            text.contains("option remote-port 4711\n  option remote-subvolume brick\n"),
            "{text}"
        );
        assert_eq!(text.matches("subvolumes").count(), 5);
    }
}
