//! What the commands that talk to the masters share, and `redhare status`.

mod disks;
mod verdict;

use std::future::Future;

use clap::Args;
use foundation::ByteCount;
use master::{Client, ClientError, Masters, uuid_text, v1};

use crate::output::{Failure, Output, table};

/// Which cluster.
#[derive(Args)]
pub(crate) struct ClusterArguments {
    /// The masters: host:port, several separated by commas
    #[arg(long, env = "REDHARE_CLUSTER", value_name = "ADDRS", global = true)]
    cluster: Option<String>,
    /// Directory with ca.pem, cert.pem and key.pem, as "redhare ca issue" makes it: speak TLS with the masters
    #[arg(long, env = "REDHARE_CREDENTIALS", value_name = "DIR", global = true)]
    credentials: Option<std::ffi::OsString>,
}

impl ClusterArguments {
    /// Connects, makes the call, and gives its answer.
    pub(crate) fn call<T, F: Future<Output = Result<T, ClientError>>>(
        &self,
        call: impl FnOnce(Client) -> F,
    ) -> Result<T, Failure> {
        let masters = self.masters()?;
        call_at(&masters, call)
    }
}

impl ClusterArguments {
    pub(crate) fn status(&self) -> Result<v1::GetStatusResponse, Failure> {
        self.call(|client: Client| async move { client.status(v1::GetStatusRequest {}).await })
    }

    /// The masters as given, or those of the cluster that `redhare up` runs on this machine.
    pub(crate) fn masters(&self) -> Result<Masters, Failure> {
        let named = self.cluster.as_ref().filter(|addresses| !addresses.is_empty());
        let credentials = super::credentials::named(self.credentials.clone().map(Into::into));
        if let Some(addresses) = named {
            return Ok(Masters {
                addresses: addresses.clone(),
                credentials,
            });
        }
        let local = super::up::local_cluster().map(|local| Masters {
            addresses: local.addresses,
            credentials: credentials.or(local.credentials),
        });
        local.ok_or_else(|| {
            Failure::new(
                "no cluster is named and none runs here; start one with \"redhare up\", give --cluster host:port, \
                 or set REDHARE_CLUSTER",
            )
        })
    }
}

/// The masters that REDHARE_CLUSTER names, or those of the local cluster.
pub(crate) fn named_or_local() -> Result<Masters, Failure> {
    let cluster = std::env::var("REDHARE_CLUSTER")
        .ok()
        .filter(|addresses| !addresses.is_empty());
    let credentials = None;
    ClusterArguments { cluster, credentials }.masters()
}

/// What these masters say of their cluster.
pub(crate) fn status_of(masters: &Masters) -> Result<v1::GetStatusResponse, Failure> {
    call_at(masters, |client: Client| async move {
        client.status(v1::GetStatusRequest {}).await
    })
}

pub(crate) fn call_at<T, F: Future<Output = Result<T, ClientError>>>(
    masters: &Masters,
    call: impl FnOnce(Client) -> F,
) -> Result<T, Failure> {
    let answer = runtime()?.block_on(async { call(Client::connect(masters).await?).await });
    answer.map_err(Failure::new)
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(format!(
                "no event loop can be made: {error}; raise the limit of open files"
            ))
        })
}

/// Say how the cluster is
#[derive(Args)]
#[command(
    after_help = "The first line says healthy, DEGRADED (everything serves, with less than there should be) or CRITICAL (something waits, or nothing can be changed); \
    lines with ! say why, lines with > what the cluster does by itself. --json has both under \"health\".\n\nPROMISED is what the copies there may grow to, HELD what snapshots keep of USED; where a copy goes is decided by both.\n\nExample:\n  redhare status --cluster 192.0.2.1:7400"
)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
}

#[derive(serde::Serialize)]
struct StatusView {
    cluster: String,
    /// How it is in all; none until the rest is known.
    health: Option<verdict::Health>,
    revision: u64,
    masters: Vec<MasterRow>,
    store: StoreRow,
    nodes: Vec<NodeRow>,
    balance: super::rebalance::BalanceView,
    /// Whether the metadata are from a backup.
    restored: super::meta::restored::RestoredView,
    volumes: Vec<VolumeRow>,
}

#[derive(serde::Serialize)]
struct MasterRow {
    address: String,
    leads: bool,
    /// How long it has led, or been there.
    since_seconds: u64,
}

#[derive(Default, serde::Serialize)]
struct StoreRow {
    place: String,
    /// The members of an etcd.
    members: Vec<StoreMemberRow>,
}

#[derive(serde::Serialize)]
struct StoreMemberRow {
    address: String,
    healthy: bool,
    said: String,
}

#[derive(Clone, serde::Serialize)]
struct NodeRow {
    node: String,
    address: String,
    /// What it is lost together with; null for nothing but itself.
    rack: Option<String>,
    alive: bool,
    /// Copies are moved away from it, or from one of its disks; so many are still there.
    draining: bool,
    draining_copies: u32,
    draining_bytes: u64,
    /// For these, as fast as it went in the last minutes; null before anything can be said.
    draining_left_seconds: Option<u64>,
    incarnation: u64,
    disks: usize,
    disk_uuids: Vec<String>,
    disk_health: Vec<disks::DiskRow>,
    capacity_bytes: u64,
    allocated_bytes: u64,
    used_bytes: u64,
    /// Of these, what snapshots hold, as far as it has said.
    held_bytes: u64,
}

#[derive(Clone, serde::Serialize)]
struct VolumeRow {
    name: String,
    number: u32,
    size_bytes: u64,
    /// What it owns of disks; null where not every living node has said it yet.
    disk_use: Option<super::volume::DiskUse>,
    state: &'static str,
    /// Its copies keep checksums of their blocks.
    checksums: bool,
    /// Absent from one that is no clone, or not any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<super::volume::OriginView>,
    /// Nodes that export it to ordinary hosts.
    portals: Vec<String>,
    chunks: u32,
    degraded_chunks: u32,
    /// Copies in sync that these lack in all.
    lacking_copies: u32,
    lacking_bytes: u64,
    /// For these, as fast as it went in the last minutes; null before anything can be said.
    lacking_left_seconds: Option<u64>,
    waiting_chunks: u32,
    /// With two copies in one rack which should have them in different ones.
    crowded_chunks: u32,
    /// For each node whose copies are sent what they have missed.
    returning: Vec<ReturningRow>,
}

/// The copies of a volume on one node that are sent what they have missed, a few at a time.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct ReturningRow {
    node: String,
    chunks: usize,
    left_bytes: u64,
    total_bytes: u64,
    /// At the rate so far; none before anything was sent.
    left_seconds: Option<u64>,
}

/// By node, what is said of each chunk.
pub(crate) fn returning(resyncs: &[v1::Resync]) -> Vec<ReturningRow> {
    let mut nodes: Vec<&[u8]> = resyncs.iter().map(|resync| &resync.node[..]).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let row = |node: &[u8]| {
        let of_node = || resyncs.iter().filter(|resync| resync.node == node);
        let left_bytes = of_node().map(|resync| resync.left_bytes).sum();
        let rate = of_node().map(|resync| {
            let sent = resync.total_bytes.saturating_sub(resync.left_bytes) as f64;
            sent * 1000.0 / resync.elapsed_ms.max(1) as f64
        });
        let bytes_per_second: f64 = rate.sum();
        ReturningRow {
            node: uuid_text(node),
            chunks: of_node().count(),
            left_bytes,
            total_bytes: of_node().map(|resync| resync.total_bytes).sum(),
            left_seconds: (bytes_per_second > 0.0)
                .then(|| (left_bytes as f64 / bytes_per_second).ceil() as u64),
        }
    };
    nodes.into_iter().map(row).collect()
}

/// A time that nobody knows exactly, in the largest unit that has two of it.
pub(crate) fn about(seconds: u64) -> String {
    let units = [("days", 24 * 60 * 60), ("h", 60 * 60), ("min", 60)];
    let unit = units.into_iter().find(|(_, length)| seconds >= 2 * length);
    let (name, length) = unit.unwrap_or(("s", 1));
    format!("about {} {name}", seconds.div_ceil(length))
}

/// What follows what is still to be done, if it is known how long that takes.
pub(crate) fn about_left(seconds: Option<u64>) -> String {
    seconds.map_or(String::new(), |seconds| format!(", {} left", about(seconds)))
}

/// As JSON has it.
pub(crate) fn seconds(milliseconds: Option<u64>) -> Option<u64> {
    milliseconds.map(|milliseconds| milliseconds.div_ceil(1000))
}

/// What people read of it.
pub(crate) fn describe_returning(row: &ReturningRow) -> String {
    let node = row.node.get(..8).unwrap_or(&row.node);
    let (left, total) = (ByteCount(row.left_bytes), ByteCount(row.total_bytes));
    let time = row
        .left_seconds
        .map_or(String::new(), |seconds| format!(", {}", about(seconds)));
    let chunks = row.chunks;
    format!("{node} is sent what it missed of {chunks} chunks, {left} of {total} left{time}")
}

pub(crate) fn status(arguments: &StatusArguments, output: &Output) -> Result<(), Failure> {
    let answer = arguments.cluster.status()?;
    let mut view = StatusView {
        cluster: uuid_text(&answer.cluster),
        health: None,
        revision: answer.revision,
        masters: answer.masters.iter().map(master_row).collect(),
        store: answer.store.as_ref().map(store_row).unwrap_or_default(),
        nodes: answer.nodes.iter().map(node_row).collect(),
        balance: super::rebalance::view(answer.balance.as_ref(), &answer.volumes),
        restored: super::meta::restored::view(answer.restored.as_ref()),
        volumes: answer.volumes.iter().filter_map(volume_row).collect(),
    };
    view.health = Some(verdict::of(&view));
    output.print(&view, || describe(&view));
    Ok(())
}

fn master_row(master: &v1::MasterStatus) -> MasterRow {
    let since = if master.leads {
        master.since_unix_ms
    } else {
        master.started_unix_ms
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    MasterRow {
        address: master.address.clone(),
        leads: master.leads,
        since_seconds: now.saturating_sub(since) / 1000,
    }
}

fn store_row(store: &v1::StoreStatus) -> StoreRow {
    let member = |member: &v1::StoreMember| StoreMemberRow {
        address: member.address.clone(),
        healthy: member.healthy,
        said: member.said.clone(),
    };
    StoreRow {
        place: store.place.clone(),
        members: store.members.iter().map(member).collect(),
    }
}

/// Masters and store, as people read them.
fn describe_masters(view: &StatusView) -> String {
    let mut rows = vec![["MASTER", "ROLE", "SINCE"].map(String::from).to_vec()];
    for master in &view.masters {
        let role = if master.leads { "leads" } else { "follows" };
        let since = format!("{} s", master.since_seconds);
        rows.push(vec![master.address.clone(), role.to_owned(), since]);
    }
    let mut text = table(&rows);
    if !view.masters.iter().any(|master| master.leads) {
        text.push_str("no master leads at present: nothing changes, and whether nodes live is not known\n");
    }
    text.push_str(&format!("store {}\n", view.store.place));
    for member in &view.store.members {
        let health = if member.healthy { "healthy" } else { "FAILED" };
        text.push_str(&format!("  {} {health}: {}\n", member.address, member.said));
    }
    text
}

fn node_row(node: &v1::NodeStatus) -> NodeRow {
    let disks = || node.disks.iter().filter_map(|disk| disk.disk.as_ref());
    NodeRow {
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
        capacity_bytes: disks().map(|disk| disk.capacity_bytes).sum(),
        allocated_bytes: node.disks.iter().map(|disk| disk.allocated_bytes).sum(),
        used_bytes: disks().map(|disk| disk.used_bytes).sum(),
        held_bytes: disks().filter_map(|disk| disk.held_bytes).sum(),
    }
}

fn volume_row(status: &v1::VolumeStatus) -> Option<VolumeRow> {
    let volume = status.volume.as_ref()?;
    Some(VolumeRow {
        name: volume.name.clone(),
        number: volume.number,
        size_bytes: volume.size_bytes,
        disk_use: status.r#use.as_ref().map(super::volume::DiskUse::of),
        state: super::volume::state(volume),
        checksums: volume.checksums,
        origin: super::volume::origin(volume),
        portals: volume.portals.iter().map(|node| uuid_text(node)).collect(),
        chunks: status.chunks,
        degraded_chunks: status.degraded_chunks,
        lacking_copies: status.lacking_copies,
        lacking_bytes: status.lacking_bytes,
        lacking_left_seconds: seconds(status.lacking_left_ms),
        waiting_chunks: status.waiting_chunks,
        crowded_chunks: status.crowded_chunks,
        returning: returning(&status.resyncs),
    })
}

/// How people read of what may be on or off.
pub(crate) fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn describe_node(node: &NodeRow) -> String {
    let state = if node.alive { "alive" } else { "gone" };
    match (node.draining, node.draining_copies) {
        (false, _) => state.to_owned(),
        (true, 0) => format!("{state}, drained"),
        (true, copies) => {
            let time = node.draining_left_seconds;
            let time = time.map_or(String::new(), |seconds| format!(", {}", about(seconds)));
            format!("{state}, draining: {copies} copies left{time}")
        }
    }
}

fn describe(view: &StatusView) -> String {
    let bytes = |bytes| ByteCount(bytes).to_string();
    let mut rows = vec![
        [
            "NODE", "ADDRESS", "STATE", "DISKS", "CAPACITY", "PROMISED", "USED", "HELD",
        ]
        .map(String::from)
        .to_vec(),
    ];
    let has_racks = view.nodes.iter().any(|node| node.rack.is_some());
    rows[0].extend(has_racks.then(|| "RACK".to_owned()));
    for node in &view.nodes {
        let mut row = vec![
            node.node.clone(),
            node.address.clone(),
            describe_node(node),
            node.disks.to_string(),
            bytes(node.capacity_bytes),
            bytes(node.allocated_bytes),
            bytes(node.used_bytes),
            bytes(node.held_bytes),
        ];
        row.extend(has_racks.then(|| node.rack.clone().unwrap_or_else(|| "-".to_owned())));
        rows.push(row);
    }
    let masters = describe_masters(view);
    let balance = super::rebalance::describe(&view.balance);
    let disks = disks::describe(view.nodes.iter().flat_map(|node| &node.disk_health));
    let (word, lines) = view.health.as_ref().map(verdict::Health::describe).unzip();
    let (word, lines) = (word.unwrap_or_default(), lines.unwrap_or_default());
    let mut text = format!(
        "cluster {} is {word}\n{lines}\n{masters}\n{}{balance}\n\n{disks}\n",
        view.cluster,
        table(&rows)
    );
    let mut rows = vec![
        [
            "VOLUME",
            "SIZE",
            "ON DISKS",
            "STATE",
            "CHUNKS",
            "CHECKSUMS",
            "HEALTH",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for volume in &view.volumes {
        let health = match (volume.state, volume.waiting_chunks, volume.degraded_chunks) {
            ("deleting", ..) => "its copies are being removed".to_owned(),
            ("ready", 0, 0) => "all copies in sync".to_owned(),
            ("ready", 0, degraded) => {
                let time = about_left(volume.lacking_left_seconds);
                format!("{degraded} chunks lack a copy{time}")
            }
            ("ready", waiting, _) => format!("writes wait for copies in {waiting} chunks"),
            _ => "its copies are being made".to_owned(),
        };
        let returning = volume.returning.iter().map(describe_returning);
        let crowded = match volume.crowded_chunks {
            0 => None,
            count => Some(format!("{count} chunks have two copies in one rack")),
        };
        let exported = match volume.portals.len() {
            0 => None,
            1 => Some("exported by 1 node".to_owned()),
            count => Some(format!("exported by {count} nodes")),
        };
        let health = std::iter::once(health)
            .chain(crowded)
            .chain(exported)
            .chain(returning)
            .collect::<Vec<_>>()
            .join("; ");
        rows.push(vec![
            volume.name.clone(),
            bytes(volume.size_bytes),
            super::volume::on_disks(volume.disk_use),
            volume.state.to_owned(),
            volume.chunks.to_string(),
            on_or_off(volume.checksums).to_owned(),
            health,
        ]);
    }
    text.push_str(&table(&rows));
    text
}
