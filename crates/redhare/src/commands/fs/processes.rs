//! The processes of a cluster on this machine: what processor time they take, and how they read their disks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bench::process;
use master::v1;

use super::medium::Volume;
use crate::commands::cluster::{named_or_local, status_of};

/// Targets, agents and masters of a cluster, if all of it runs here.
pub(super) struct ClusterProcesses {
    targets: Vec<u32>,
    others: Vec<u32>,
}

impl ClusterProcesses {
    /// The processes behind a volume; why not, if they cannot all be found on this machine. A local file has none.
    pub(super) fn of(volume: &Volume) -> Result<Self, String> {
        let Volume::Named(_) = volume else {
            return Ok(Self {
                targets: Vec::new(),
                others: Vec::new(),
            });
        };
        let masters = named_or_local().map_err(|failure| failure.to_string())?;
        let status = status_of(&masters).map_err(|failure| failure.to_string())?;
        let alive = status.nodes.iter().filter(|node| node.alive);
        let targets: Vec<u32> = alive
            .map(|node: &v1::NodeStatus| find(&node.peer_address))
            .collect::<Result<_, _>>()?;
        let mut others: Vec<u32> = targets
            .iter()
            .filter_map(|target| process::parent_of_same_program(*target))
            .collect();
        for master in masters.addresses.split(',') {
            others.push(find(master)?);
        }
        others.sort_unstable();
        others.dedup();
        Ok(Self { targets, others })
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.targets.len() + self.others.len()
    }

    /// Processor time of all of them so far. One that has ended counts no more.
    pub(super) fn cpu_time(&self) -> Duration {
        let all = self.targets.iter().chain(&self.others);
        all.filter_map(|&id| process::cpu_time(id).ok()).sum()
    }

    /// Disks that are read through the page cache; a local file is this process' own disk.
    pub(super) fn buffered_disks(&self) -> Vec<PathBuf> {
        let own = std::process::id();
        let all = self.targets.iter().chain([&own]);
        all.flat_map(|&id| process::buffered_disks(id)).collect()
    }
}

fn find(address: &str) -> Result<u32, String> {
    let parsed: SocketAddr = address
        .trim()
        .parse()
        .map_err(|_| format!("{address} is no address of this machine"))?;
    match process::listening_on(parsed) {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(format!(
            "no process on this machine that this user may look at listens on {address}"
        )),
        Err(error) => Err(format!("/proc cannot be read: {error}")),
    }
}
