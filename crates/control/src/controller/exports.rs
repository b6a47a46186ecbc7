//! Which nodes export a volume to ordinary hosts.

use std::collections::{BTreeMap, BTreeSet};

use foundation::Instant;

use crate::controller::volumes::shown;
use crate::controller::{ATTEMPTS_MAX, Controller, contended};
use crate::error::ControlError;
use crate::identity::NodeId;
use crate::keys;
use crate::model::{Node, Volume, VolumeState};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// The most nodes that export one volume.
pub const PORTALS_MAX: usize = 4;
const HOSTS_MAX: usize = 256;
/// NVM Express Base Specification 2.0c, section 4.5.
const NQN_BYTES_MAX: usize = 223;

/// How a volume is to be exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportVolume {
    /// The volume's name.
    pub name: String,
    /// The nodes that are to export it, the one that hosts prefer first; none leaves the choice.
    pub nodes: Vec<NodeId>,
    /// If the choice is left: how many.
    pub count: usize,
    /// The names of the hosts that may connect; none for all.
    pub hosts: Vec<String>,
}

/// A volume that a node is to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The volume.
    pub volume: Volume,
    /// Which of its portals the node is, from 0.
    pub place: usize,
    /// Where the targets of the other portals listen: host and port.
    pub elsewhere: Vec<String>,
    /// The version of what its hosts have reserved.
    pub reservations: u64,
}

impl Volume {
    /// The name of the subsystem under which portals export it.
    pub fn export_nqn(&self) -> String {
        format!("nqn.2026-11.io.redhare:volume:{}", self.uuid)
    }
}

fn argument<T>(field: &'static str, problem: String, remedy: &'static str) -> Result<T, ControlError> {
    Err(ControlError::Argument {
        field,
        problem,
        remedy,
    })
}

impl<S: MetadataStore> Controller<S> {
    /// Has nodes export a volume. Those that export it already go on where the choice is left and they live.
    ///
    /// # Errors
    /// If there is no such volume, if a node is not known, or if too few nodes live.
    pub fn export_volume(&mut self, request: &ExportVolume, now: Instant) -> Result<Volume, ControlError> {
        check(request)?;
        for &node in &request.nodes {
            if self.read::<Node>(&keys::node(node))?.is_none() {
                return Err(ControlError::NoSuchNode { node });
            }
        }
        self.change_export(&request.name, |control, volume| {
            if volume.state == VolumeState::Deleting {
                let name = volume.name.clone();
                return Err(ControlError::VolumeDeleting { name });
            }
            let portals = match request.nodes.is_empty() {
                true => control.choose_portals(volume, request.count, now)?,
                false => request.nodes.clone(),
            };
            Ok((portals, request.hosts.clone()))
        })
    }

    /// Has nobody export a volume any more. Repeating it changes nothing.
    ///
    /// # Errors
    /// If there is no such volume.
    pub fn unexport_volume(&mut self, name: &str) -> Result<Volume, ControlError> {
        self.change_export(name, |_, _| Ok((Vec::new(), Vec::new())))
    }

    fn change_export(
        &mut self,
        name: &str,
        change: impl Fn(&mut Self, &Volume) -> Result<(Vec<NodeId>, Vec<String>), ControlError>,
    ) -> Result<Volume, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let number = self.volume_named(name)?.number;
            let key = keys::volume(number);
            let Some(stored) = self.read::<Volume>(&key)? else {
                continue;
            };
            let (portals, hosts) = change(self, &stored.record)?;
            if (&portals, &hosts) != (&stored.record.portals, &stored.record.hosts) {
                self.check_not_pending(&stored.record, "be exported otherwise")?;
            }
            let volume = Volume {
                portals,
                hosts,
                ..stored.record.clone()
            };
            if volume == stored.record {
                return Ok(volume);
            }
            let mut transaction = Transaction::new();
            transaction
                .compare(key.clone(), stored.revision)
                .put(key.clone(), volume.encode(&key));
            if self.commit(&transaction)? {
                return Ok(volume);
            }
        }
        Err(contended())
    }

    /// Living nodes: those that export the volume already, then those that export least.
    fn choose_portals(
        &self,
        volume: &Volume,
        count: usize,
        now: Instant,
    ) -> Result<Vec<NodeId>, ControlError> {
        let mut exports: BTreeMap<NodeId, usize> = BTreeMap::new();
        for other in self.volumes()? {
            for node in other.portals {
                *exports.entry(node).or_default() += 1;
            }
        }
        let nodes = self.nodes(now)?;
        let mut living: Vec<NodeId> = nodes
            .values()
            .filter(|view| view.is_alive)
            .map(|view| view.id)
            .collect();
        if living.len() < count {
            let problem = format!("is {count}, but {} of {} nodes live", living.len(), nodes.len());
            return argument("portals", problem, "name fewer, or start the other nodes first");
        }
        living.sort_by_key(|node| {
            let place = volume.portals.iter().position(|portal| portal == node);
            (
                place.unwrap_or(PORTALS_MAX),
                exports.get(node).copied().unwrap_or(0),
                *node,
            )
        });
        living.truncate(count);
        Ok(living)
    }

    /// The volumes that any node exports, as they are committed. Read anew only after a volume's record has changed: each
    /// heartbeat asks for them.
    fn exported(&mut self) -> Result<&[Volume], ControlError> {
        let revision = self.store.revision()?;
        self.changes.seen(revision);
        match &mut self.exported {
            Some((known, _)) if self.changes.is_quiet(keys::VOLUMES, *known) => *known = revision,
            _ => {
                let mut volumes = self.volumes()?;
                volumes.retain(|volume| !volume.portals.is_empty());
                self.exported = Some((revision, volumes));
            }
        }
        Ok(self.exported.as_ref().map_or(&[], |(_, volumes)| volumes))
    }

    /// Whether it is in memory which volumes are exported.
    pub(super) fn is_exported_known(&self) -> bool {
        let known = self.exported.as_ref();
        known.is_some_and(|(known, _)| self.changes.is_quiet(keys::VOLUMES, *known))
    }

    /// What a node is to export.
    pub(super) fn exports_of(&mut self, node: NodeId) -> Result<Vec<Export>, ControlError> {
        let mut exports = Vec::new();
        let volumes = self.exported()?.iter();
        let volumes: Vec<Volume> = volumes
            .filter(|volume| volume.portals.contains(&node))
            .cloned()
            .collect();
        for volume in volumes {
            let place = volume.portals.iter().position(|portal| *portal == node);
            let Some(place) = place.filter(|_| volume.state == VolumeState::Ready) else {
                continue;
            };
            let mut elsewhere = Vec::new();
            for other in volume.portals.iter().filter(|portal| **portal != node) {
                if let Some(stored) = self.read::<Node>(&keys::node(*other))? {
                    elsewhere.push(stored.record.peer_address);
                }
            }
            let reservations = self.reservations_version(volume.number)?;
            exports.push(Export {
                volume,
                place,
                elsewhere,
                reservations,
            });
        }
        Ok(exports)
    }
}

fn check(request: &ExportVolume) -> Result<(), ControlError> {
    let (nodes, count) = (&request.nodes, request.count);
    if nodes.len() > PORTALS_MAX {
        let problem = format!("lists {} nodes of at most {PORTALS_MAX}", nodes.len());
        return argument(
            "portals",
            problem,
            "name 1 to 4 nodes, 2 so that hosts survive the loss of one",
        );
    }
    if nodes.iter().collect::<BTreeSet<_>>().len() < nodes.len() {
        return argument("portals", "lists a node twice".to_owned(), "name each node once");
    }
    if nodes.is_empty() && !(1..=PORTALS_MAX).contains(&count) {
        let problem = format!("is {count}");
        return argument(
            "portals",
            problem,
            "ask for 1 to 4, 2 so that hosts survive the loss of one",
        );
    }
    if request.hosts.len() > HOSTS_MAX {
        let problem = format!("lists {} names of at most {HOSTS_MAX}", request.hosts.len());
        return argument("hosts", problem, "name none, so that all hosts may connect");
    }
    let is_name = |host: &str| {
        let is_odd = |c: char| c.is_control() || c.is_whitespace();
        host.starts_with("nqn.") && host.len() <= NQN_BYTES_MAX && !host.contains(is_odd)
    };
    if let Some(wrong) = request.hosts.iter().find(|host| !is_name(host)) {
        let problem = match wrong.len() {
            ..=NQN_BYTES_MAX => format!("has \"{}\"", shown(wrong)),
            length => format!("has a name of {length} bytes (\"{}...\")", shown(wrong)),
        };
        return argument(
            "hosts",
            problem,
            "write a host's NQN of at most 223 bytes, as in /etc/nvme/hostnqn",
        );
    }
    Ok(())
}
