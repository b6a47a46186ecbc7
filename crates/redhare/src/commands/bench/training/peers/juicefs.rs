//! JuiceFS with its metadata in redis and its objects as files in the same file system, mounted as it is unless told, or with
//! long caches: the kernel keeps names, attributes and open files for an hour.
//!
//! The program is `juicefs`, or what `REDHARE_JUICEFS` names; `scripts/juicefs/build` builds it. Its disk cache, its log and redis' files are
//! below the directory of the measurement; redis persists nothing, which costs JuiceFS nothing while it reads.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Peer, Running, free_port, listens, until};
use crate::output::Failure;

const NAME: &str = "JuiceFS";
const REDIS: &str = "redis-server";
/// Names the program where it is not in the search path.
const PROGRAM_VARIABLE: &str = "REDHARE_JUICEFS";
const HOW: &str = "run scripts/juicefs/build, and set REDHARE_JUICEFS=target/juicefs/juicefs";
/// Long: longer than a measurement.
const LONG: &str = "3600";

/// A volume of JuiceFS that serves nobody yet, and its redis.
pub(super) struct JuiceFs {
    place: PathBuf,
    address: String,
    redis: Option<Running>,
}

/// How much the kernel may keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Caches {
    Default,
    Long,
}

impl Caches {
    fn described(self) -> &'static str {
        match self {
            Caches::Default => "redis and files, caches by default",
            Caches::Long => "redis and files, long caches",
        }
    }

    /// What `juicefs mount` is told of them.
    fn options(self) -> Vec<&'static str> {
        match self {
            Caches::Default => Vec::new(),
            // The last: any number of open files, and not the first 10,000.
            Caches::Long => vec![
                "--attr-cache",
                LONG,
                "--entry-cache",
                LONG,
                "--dir-entry-cache",
                LONG,
                "--open-cache",
                LONG,
                "--open-cache-limit",
                "0",
            ],
        }
    }
}

fn program() -> PathBuf {
    std::env::var_os(PROGRAM_VARIABLE).map_or_else(|| PathBuf::from("juicefs"), PathBuf::from)
}

impl JuiceFs {
    /// Makes the volume below `scratch`. The error says what is missing and how to get it.
    pub(super) fn make(scratch: &Path) -> Result<Self, Failure> {
        let place = scratch.join("juicefs");
        for below in ["redis", "objects", "cache"] {
            std::fs::create_dir_all(place.join(below)).map_err(Failure::new)?;
        }
        // Said before redis is started.
        let found = Command::new(program()).arg("version").output();
        found.map_err(|error| Failure::new(format!("{}: {error}; {HOW}", program().display())))?;
        let port = free_port()?;
        let mut redis = Command::new(REDIS);
        redis
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--logfile", "log", "--dir"])
            .arg(place.join("redis"));
        let redis = Running::start(&mut redis, REDIS)?;
        until(NAME, "redis listens", || listens(Ipv4Addr::LOCALHOST, port))?;
        let address = format!("redis://127.0.0.1:{port}/0");
        let mut format = Command::new(program());
        format
            .args(["format", "--storage", "file", "--trash-days", "0", "--bucket"])
            // It wants a directory's name to end so.
            .arg(format!("{}/", place.join("objects").display()))
            .args([&address, "bench"]);
        // It tells much; only why it failed is of use.
        let made = format.output().map_err(Failure::new)?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr).into_owned();
            return Err(Failure::new(format!("juicefs format: {said}")));
        }
        Ok(Self {
            place,
            address,
            redis: Some(redis),
        })
    }

    /// Mounts it, and hands redis over to what is mounted: [`JuiceFs::back`] takes it back, to mount it anew.
    pub(super) fn mount(&mut self, caches: Caches) -> Result<Peer, Failure> {
        let directory = self.place.join(format!("mount-{caches:?}"));
        std::fs::create_dir_all(&directory).map_err(Failure::new)?;
        let mut peer = Peer::new(NAME, caches.described(), directory);
        if let Some(redis) = self.redis.take() {
            peer.add(redis);
        }
        let mut mount = Command::new(program());
        mount
            .args([
                "mount",
                "--no-usage-report",
                "--no-syslog",
                "--no-bgjob",
                "--backup-meta",
                "0",
            ])
            .arg("--cache-dir")
            .arg(self.place.join("cache"))
            .arg("--log")
            .arg(self.place.join(format!("mount-{caches:?}.log")))
            .args(caches.options())
            .arg(&self.address)
            .arg(&peer.directory);
        let mount = Running::start(&mut mount, "juicefs")?;
        peer.mount(mount, "fuse.juicefs")?;
        Ok(peer)
    }

    /// Unmounts it; redis goes on.
    pub(super) fn back(&mut self, mut peer: Peer) {
        peer.unmount();
        self.redis = peer.take_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_caches_are_five_options_and_default_ones_none() {
        assert!(Caches::Default.options().is_empty());
        let options = Caches::Long.options();
        assert_eq!(options.len(), 10);
        assert_eq!(options[..2], ["--attr-cache", "3600"]);
    }
}
