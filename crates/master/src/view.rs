//! A cluster as people and programs are shown it, by `redhare status` and over HTTP: what the Status call answers, named, summed up,
//! and judged ([`verdict`]).

mod away;
mod balance;
mod data_path;
mod disk_use;
mod disks;
mod releases;
mod restored;
pub mod verdict;
mod volume;

use proto::v1;

use crate::uuid_text;

pub use away::MasterAwayRow;
pub use balance::{BalanceView, DiskMoveRow, MoveRow};
pub use data_path::DataPathRow;
pub use disk_use::{DiskUse, on_disks};
pub use disks::{DiskRow, Resets, STAGES, SampleRow, describe_time};
pub use restored::{AwaitedRow, RefusedRow, RestoredView};
pub use volume::{
    LostOfSnapshot, OriginView, ReturningRow, UnplacedView, VolumeRow, describe_returning, origin, returning,
    state,
};

/// All of it. Serialised it is what `redhare status --json` prints.
#[derive(Debug, serde::Serialize)]
pub struct StatusView {
    /// The cluster's UUID.
    pub cluster: String,
    /// How it is in all; none until the rest is known.
    pub health: Option<verdict::Health>,
    /// Of the store.
    pub revision: u64,
    /// Those that live.
    pub masters: Vec<MasterRow>,
    /// Those that were there and are not.
    pub masters_away: Vec<MasterAwayRow>,
    /// Whether who connects to nodes has to prove who it is; null in a cluster without certificates.
    pub data_path: Option<DataPathRow>,
    /// Where they keep what must not be forgotten.
    pub store: StoreRow,
    /// All that are known.
    pub nodes: Vec<NodeRow>,
    /// How evenly they are used.
    pub balance: BalanceView,
    /// Whether the metadata are from a backup.
    pub restored: RestoredView,
    /// All there are, those that are made or deleted among them.
    pub volumes: Vec<VolumeRow>,
}

/// A master that lives.
#[derive(Debug, serde::Serialize)]
pub struct MasterRow {
    /// By which clients and nodes reach it.
    pub address: String,
    /// One at most does.
    pub leads: bool,
    /// How long it has led, or been there.
    pub since_seconds: u64,
    /// Which it is; null for one that does not say it.
    pub release: Option<String>,
}

/// The masters' store.
#[derive(Debug, Default, serde::Serialize)]
pub struct StoreRow {
    /// A file, or an etcd with a prefix.
    pub place: String,
    /// The members of an etcd.
    pub members: Vec<StoreMemberRow>,
}

/// A member of an etcd.
#[derive(Debug, serde::Serialize)]
pub struct StoreMemberRow {
    /// Where it is asked.
    pub address: String,
    /// It answers.
    pub healthy: bool,
    /// Its version, or why it is not healthy.
    pub said: String,
}

/// A node.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeRow {
    /// Its UUID.
    pub node: String,
    /// Where peers and clients reach its target.
    pub address: String,
    /// What it is lost together with; null for nothing but itself.
    pub rack: Option<String>,
    /// It is heard.
    pub alive: bool,
    /// Copies are moved away from it, or from one of its disks; so many are still there.
    pub draining: bool,
    /// Copies still there.
    pub draining_copies: u32,
    /// What is promised to these.
    pub draining_bytes: u64,
    /// For these, as fast as it went in the last minutes; null before anything can be said.
    pub draining_left_seconds: Option<u64>,
    /// Its present life's number.
    pub incarnation: u64,
    /// How many it has.
    pub disks: usize,
    /// Of those that have been heard of.
    pub disk_uuids: Vec<String>,
    /// Each of them.
    pub disk_health: Vec<DiskRow>,
    /// What its disks have in all.
    pub capacity_bytes: u64,
    /// What the masters have promised of it to copies.
    pub allocated_bytes: u64,
    /// What is used of it.
    pub used_bytes: u64,
    /// Of these, what snapshots hold, as far as it has said.
    pub held_bytes: u64,
    /// While it is gone: what is waited for; null once its copies are made elsewhere, or cannot be.
    pub absence: Option<AbsenceRow>,
    /// How far it is with comparing its copies in the background; null where the master has not heard it.
    pub scrub: Option<ScrubRow>,
    /// Which release its engine is; null where the master has not heard it, or it does not say it.
    pub engine_release: Option<String>,
    /// The same of its target.
    pub target_release: Option<String>,
    /// The master has heard which releases these are, or would have if both said it.
    #[serde(skip)]
    pub tells_release: bool,
    /// Since its last heartbeat; absent where the master has not heard it.
    #[serde(skip)]
    pub silent_milliseconds: Option<u64>,
}

/// What is waited for before a node's copies are made elsewhere.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AbsenceRow {
    /// Its copies that are out of sync.
    pub copies: u32,
    /// Until the first of them is made elsewhere.
    pub elsewhere_in_seconds: u64,
}

/// How far a node is with comparing its copies with their checksums.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ScrubRow {
    /// Since when, by its clock, every copy that can be compared has been, or was first seen; null where that is not known.
    pub oldest_unix_seconds: Option<u64>,
    /// What its target has read only for that.
    pub compared_blocks: u64,
}

/// A time that nobody knows exactly, in the largest unit that has two of it.
pub fn about(seconds: u64) -> String {
    let units = [("days", 24 * 60 * 60), ("h", 60 * 60), ("min", 60)];
    let unit = units.into_iter().find(|(_, length)| seconds >= 2 * length);
    let (name, length) = unit.unwrap_or(("s", 1));
    format!("about {} {name}", seconds.div_ceil(length))
}

/// What follows what is still to be done, if it is known how long that takes.
pub fn about_left(seconds: Option<u64>) -> String {
    seconds.map_or(String::new(), |seconds| format!(", {} left", about(seconds)))
}

/// What nodes say of themselves may be more than can be counted.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// As JSON has it.
fn seconds(milliseconds: Option<u64>) -> Option<u64> {
    milliseconds.map(|milliseconds| milliseconds.div_ceil(1000))
}

/// A UUID as people tell the few of a cluster apart.
pub fn short(uuid: &str) -> &str {
    uuid.get(..8).unwrap_or(uuid)
}

impl StatusView {
    /// What a master has answered, judged.
    pub fn of(answer: &v1::GetStatusResponse) -> Self {
        let mut view = Self {
            cluster: uuid_text(&answer.cluster),
            health: None,
            revision: answer.revision,
            masters: answer.masters.iter().map(MasterRow::of).collect(),
            masters_away: answer.masters_away.iter().map(MasterAwayRow::of).collect(),
            data_path: answer.data_path.as_ref().map(DataPathRow::of),
            store: answer.store.as_ref().map(StoreRow::of).unwrap_or_default(),
            nodes: answer.nodes.iter().map(NodeRow::of).collect(),
            balance: BalanceView::of(answer.balance.as_ref(), &answer.volumes),
            restored: RestoredView::of(answer.restored.as_ref()),
            volumes: answer.volumes.iter().filter_map(VolumeRow::of).collect(),
        };
        view.health = Some(verdict::of(&view));
        view
    }
}

impl MasterRow {
    /// One of those that an answer names.
    pub fn of(master: &v1::MasterStatus) -> Self {
        let since = if master.leads {
            master.since_unix_ms
        } else {
            master.started_unix_ms
        };
        Self {
            address: master.address.clone(),
            leads: master.leads,
            since_seconds: unix_ms().saturating_sub(since) / 1000,
            release: releases::told(&master.release),
        }
    }
}

impl StoreRow {
    fn of(store: &v1::StoreStatus) -> Self {
        let member = |member: &v1::StoreMember| StoreMemberRow {
            address: member.address.clone(),
            healthy: member.healthy,
            said: member.said.clone(),
        };
        Self {
            place: store.place.clone(),
            members: store.members.iter().map(member).collect(),
        }
    }
}

impl NodeRow {
    /// One of those that an answer names.
    pub fn of(node: &v1::NodeStatus) -> Self {
        let disks = || node.disks.iter().filter_map(|disk| disk.disk.as_ref());
        let releases = || node.releases.as_ref();
        Self {
            node: uuid_text(&node.node),
            address: node.peer_address.clone(),
            rack: Some(node.rack.clone()).filter(|rack| !rack.is_empty()),
            alive: node.alive,
            draining: node.draining,
            draining_copies: node.draining_copies,
            draining_bytes: node.draining_bytes,
            draining_left_seconds: seconds(node.draining_left_ms),
            disk_uuids: disks().map(|disk| uuid_text(&disk.uuid)).collect(),
            disk_health: disks::rows(node),
            incarnation: node.incarnation,
            disks: node.disks.len(),
            capacity_bytes: sum(disks().map(|disk| disk.capacity_bytes)),
            allocated_bytes: sum(node.disks.iter().map(|disk| disk.allocated_bytes)),
            used_bytes: sum(disks().map(|disk| disk.used_bytes)),
            held_bytes: sum(disks().filter_map(|disk| disk.held_bytes)),
            absence: node.absence.map(|absence| AbsenceRow {
                copies: absence.copies,
                elsewhere_in_seconds: absence.elsewhere_in_ms.div_ceil(1000),
            }),
            scrub: node.scrub.as_ref().map(|scrub| ScrubRow {
                oldest_unix_seconds: (scrub.oldest_unix_ms > 0).then_some(scrub.oldest_unix_ms / 1000),
                compared_blocks: scrub.compared_blocks,
            }),
            engine_release: releases().and_then(|told| releases::told(&told.engine)),
            target_release: releases().and_then(|told| releases::told(&told.target)),
            tells_release: node.releases.is_some(),
            silent_milliseconds: node.silent_ms,
        }
    }

    /// Its state for people.
    pub fn describe_state(&self) -> String {
        let state = if self.alive { "alive" } else { "gone" };
        match (self.draining, self.draining_copies) {
            (false, _) => state.to_owned(),
            (true, 0) => format!("{state}, drained"),
            (true, copies) => {
                let time = self.draining_left_seconds;
                let time = time.map_or(String::new(), |seconds| format!(", {}", about(seconds)));
                format!("{state}, draining: {copies} copies left{time}")
            }
        }
    }
}
