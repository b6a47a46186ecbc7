//! What the commands that talk to the masters share, and `redhare status`.

mod disks;

use std::future::Future;

use clap::Args;
use foundation::ByteCount;
use master::view::verdict::Health;
use master::view::{StatusView, on_disks};
use master::{Client, ClientError, Masters, v1};

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

pub(crate) fn status(arguments: &StatusArguments, output: &Output) -> Result<(), Failure> {
    let answer = arguments.cluster.status()?;
    let view = StatusView::of(&answer);
    output.print(&view, || describe(&view));
    Ok(())
}

/// Masters and store, as people read them.
fn describe_masters(view: &StatusView) -> String {
    let mut rows = vec![["MASTER", "ROLE", "SINCE"].map(String::from).to_vec()];
    for master in &view.masters {
        let role = if master.leads { "leads" } else { "follows" };
        let since = format!("{} s", master.since_seconds);
        rows.push(vec![master.address.clone(), role.to_owned(), since]);
    }
    for master in &view.masters_away {
        let since = master
            .silent_seconds
            .map_or("?".to_owned(), |seconds| format!("{seconds} s"));
        rows.push(vec![master.address.clone(), master.role().to_owned(), since]);
    }
    let mut text = table(&rows);
    if !view.masters.iter().any(|master| master.leads) {
        text.push_str("no master leads at present: nothing changes, and whether nodes live is not known\n");
    }
    if let Some(data_path) = &view.data_path {
        text.push_str(&format!("{}\n", data_path.describe()));
    }
    text.push_str(&format!("store {}\n", view.store.place));
    for member in &view.store.members {
        let health = if member.healthy { "healthy" } else { "FAILED" };
        text.push_str(&format!("  {} {health}: {}\n", member.address, member.said));
    }
    text
}

/// How people read of what may be on or off.
pub(crate) fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
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
            node.describe_state(),
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
    let (word, lines) = view.health.as_ref().map(Health::describe).unzip();
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
        rows.push(vec![
            volume.name.clone(),
            bytes(volume.size_bytes),
            on_disks(volume.disk_use),
            volume.state.to_owned(),
            volume.chunks.to_string(),
            on_or_off(volume.checksums).to_owned(),
            volume.describe_health(),
        ]);
    }
    text.push_str(&table(&rows));
    text
}
