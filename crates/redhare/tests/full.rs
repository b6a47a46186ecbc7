//! Volumes that promise more than their disks hold (`--overcommit`), until the disks of all copies are full: what needs room is refused
//! with a word about it and at once, everything that is there can be read, and with room made the same command goes on.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bdev::{BlockDevice, ChannelExt, IoError};
use fabrics::initiator::{ConnectOptions, RemoteDevice, RemoteOptions};
use foundation::Lba;
use rustix::io::Errno;

use crate::mount::{Mount, can_mount};
use crate::support::nodes::Nodes;
use crate::support::{Place, wait_until};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";

fn status(cluster: &Nodes) -> (String, Vec<u64>) {
    let status = cluster.json(&["status"]);
    let rows = status["volumes"].as_array().unwrap();
    let roomless = rows.iter().map(|row| row["roomless_chunks"].as_u64().unwrap());
    (
        status["health"]["verdict"].as_str().unwrap().to_owned(),
        roomless.collect(),
    )
}

/// A volume as a host has it.
struct Portal {
    address: SocketAddr,
    nqn: String,
}

impl Portal {
    /// Makes a volume, and exports it.
    fn of(cluster: &Nodes, name: &str) -> Self {
        cluster.succeed(&["volume", "create", name, "--size", "128MiB", "--copies", "3"]);
        let said = cluster.json(&["volume", "export", name, "--host", HOST]);
        let portal = Self {
            address: said["portals"][0]["address"].as_str().unwrap().parse().unwrap(),
            nqn: said["nqn"].as_str().unwrap().to_owned(),
        };
        wait_until("the portal serves", || portal.write(0, 1).is_ok());
        portal
    }

    fn options(&self) -> RemoteOptions {
        let (nqn, host) = (self.nqn.parse().unwrap(), HOST.parse().unwrap());
        RemoteOptions::new(ConnectOptions::new(self.address, nqn, host, [9; 16]), 1)
    }

    /// Writes a MiB of one byte, and flushes.
    fn write(&self, mib: u64, byte: u8) -> Result<(), IoError> {
        let options = self.options();
        reactor::run(&reactor::Config::default(), async move {
            let device = RemoteDevice::connect(options).await.map_err(|_| IoError::Gone)?;
            let channel = device.open_channel().unwrap();
            let mut buffer = reactor::BufferPool::current().allocate(1 << 20).await.unwrap();
            buffer.fill(byte);
            channel.write(Lba(mib * 256), buffer.freeze()).await?;
            channel.flush().await
        })
        .unwrap()
    }

    /// Whether a MiB is of one byte.
    fn has(&self, mib: u64, byte: u8) -> bool {
        let options = self.options();
        reactor::run(&reactor::Config::default(), async move {
            let device = RemoteDevice::connect(options).await.unwrap();
            let channel = device.open_channel().unwrap();
            let buffer = reactor::BufferPool::current().allocate(1 << 20).await.unwrap();
            let (status, bytes) = channel.read(Lba(mib * 256), buffer).await;
            status.unwrap();
            bytes.iter().all(|found| *found == byte)
        })
        .unwrap()
    }
}

/// What a program on a mount is told of files that find no room: the first error of a write or of `fsync`.
fn fill(mount: &Mount) -> Errno {
    let piece = vec![9; 1 << 20];
    let number = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    let mut file = std::fs::File::create(mount.path("more")).unwrap();
    // What an import that was refused has written already needs no more room.
    for _ in 0..700 {
        if let Err(error) = file.write_all(&piece) {
            return number(error);
        }
    }
    number(file.sync_all().unwrap_err())
}

fn mount(cluster: &Nodes, volume: &str) -> Mount {
    let directory = cluster.place.0.join("mounted");
    Mount::by(cluster.command_as("admin", &["fs"]), volume, &directory, &[])
}

#[test]
fn volumes_whose_disks_are_full_are_read_and_go_on_when_there_is_room() {
    let cluster = Nodes::start(Place::in_memory("full"), &["--overcommit", "4"], 3);
    let files = cluster.import(
        "volume create data --size 768MiB --chunk-size 128MiB --copies 3",
        7,
        1 << 20,
    );
    let portal = Portal::of(&cluster, "disk");
    let large = cluster.place.0.join("large");
    std::fs::create_dir_all(&large).unwrap();
    for number in 0..6 {
        // More than one of these is on its way at a time.
        let bytes = vec![number as u8 + 1; 100 << 20];
        std::fs::write(large.join(format!("{number}")), bytes).unwrap();
    }
    let large = large.to_str().unwrap();
    let small = cluster.place.0.join("small-files");
    std::fs::create_dir_all(&small).unwrap();
    std::fs::write(small.join("small"), "committed").unwrap();
    for name in ["second", "third"] {
        let create = ["volume", "create", name, "--size", "768MiB"];
        cluster.succeed(&[&create[..], &["--chunk-size", "128MiB", "--copies", "3"]].concat());
        cluster.succeed(&["fs", "format", name]);
        cluster.succeed(&["fs", "import", small.to_str().unwrap(), name]);
    }
    cluster.succeed(&["fs", "import", large, "second"]);
    let began = Instant::now();
    let refused = cluster.refused(&["fs", "import", large, "third"]);
    let took = began.elapsed();
    let full = "there is no room where the volume lies";
    assert!(
        refused.contains(full) && refused.contains("delete volumes"),
        "{refused}"
    );
    assert!(took < Duration::from_secs(30), "{took:?}");
    wait_until("the masters know that there is no room", || {
        let (verdict, roomless) = status(&cluster);
        verdict == "critical" && roomless.iter().all(|chunks| *chunks > 0)
    });
    // Somebody starts anew and reads all: files, and what was committed of the volume that got no more.
    for name in ["data", "second", "third"] {
        cluster.succeed(&["fs", "verify", name]);
    }
    cluster.compare(&files, "while-full");
    let again = cluster.refused(&["fs", "import", large, "third"]);
    assert!(
        again.contains(full) && again.contains("delete volumes"),
        "{again}"
    );
    cluster.succeed(&["fs", "verify", "third"]);
    // A host overwrites, and is told Capacity Exceeded where it would need room.
    assert_eq!(portal.write(0, 2), Ok(()));
    assert_eq!(portal.write(1, 2), Err(IoError::NoSpace));
    assert!(portal.has(0, 2) && portal.has(100, 0));
    let can_mount = can_mount("full disks");
    let mounted = can_mount.then(|| mount(&cluster, "third"));
    if let Some(mounted) = &mounted {
        assert_eq!(fill(mounted), Errno::NOSPC);
        // Nothing more is taken, and what was committed can be read.
        let refused = std::fs::write(mounted.path("another"), "x").unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOSPC));
        let file = std::fs::File::options().write(true).open(mounted.path("small"));
        let refused = file.unwrap().write(b"more").unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOSPC));
        assert_eq!(std::fs::read(mounted.path("small")).unwrap(), b"committed");
    }

    cluster.succeed(&["volume", "delete", "second"]);
    wait_until("there is room", || {
        status(&cluster) == ("healthy".to_owned(), vec![0; 3])
    });
    assert_eq!(portal.write(1, 3), Ok(()));
    assert!(portal.has(0, 2) && portal.has(1, 3));
    if let Some(mounted) = mounted {
        // The same mount goes on, with what it has taken.
        let kept = mounted.path("more");
        wait_until("the mount takes files again", || {
            std::fs::write(mounted.path("another"), "there is room").is_ok()
        });
        std::fs::File::open(mounted.path("another"))
            .unwrap()
            .sync_all()
            .unwrap();
        let length = std::fs::metadata(&kept).unwrap().len();
        mounted.end();
        let again = mount(&cluster, "third");
        let bytes = std::fs::read(again.path("more")).unwrap();
        assert!(bytes.len() as u64 == length && length > 0 && bytes.iter().all(|byte| *byte == 9));
        assert_eq!(std::fs::read(again.path("another")).unwrap(), b"there is room");
        std::fs::remove_file(again.path("more")).unwrap();
        again.end();
    }
    cluster.succeed(&["fs", "import", large, "third"]);
    for name in ["data", "third"] {
        cluster.succeed(&["fs", "verify", name]);
    }
    cluster.compare(&files, "after");
}
