//! `redhare master`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use master::{Client, Config, Master, StoreConfig, v1};

use crate::output::{Failure, Output};

#[derive(Subcommand)]
enum MasterCommand {
    /// Forget a master that is away and does not come back, so that "redhare status" does not miss it any more
    #[command(
        after_help = "Example:\n  redhare master forget 192.0.2.3:7400\n\nOf masters that share an etcd. One that lives is not forgotten: stop it first. \
        One that was forgotten and is started again is known again."
    )]
    Forget(ForgetArguments),
}

#[derive(Args)]
struct ForgetArguments {
    /// The master, as "redhare status" names it
    #[arg(value_name = "HOST:PORT")]
    address: String,
    #[command(flatten)]
    cluster: super::cluster::ClusterArguments,
}

/// Run a master: placement, volumes, configurations and leases
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Example:\n  redhare master --listen 192.0.2.1:7400 --store /var/lib/redhare/master\n\n\
    Several masters share an etcd; one of them leads, and another one within seconds of its death:\n  \
    redhare master --listen 192.0.2.1:7400 --store etcd://192.0.2.11:2379,192.0.2.12:2379,192.0.2.13:2379/redhare\n\n\
    With etcds:// over TLS; the TOML file says with which certificate and as whom, in [etcd]: authority, certificate, key,\n\
    user, password_file, call_limit_ms (4000), lease_s (2).\n\n\
    With a certificate it answers only who has one of the same authority, and each according to its role (docs/security.md):\n  \
    redhare master --listen 192.0.2.1:7400 --credentials /etc/redhare/master --audit-log /var/log/redhare/audit\n\n\
    With an issuer nodes and clients join by tokens, and nodes renew their certificates (\"redhare ca token --help\"):\n  \
    redhare master --listen 192.0.2.1:7400 --credentials /etc/redhare/master --issuer /etc/redhare/issuer\n\n\
    With an address for HTTP it shows the cluster to browsers, and metrics (docs/metrics.md), to whoever can connect there:\n  \
    redhare master --listen 192.0.2.1:7400 --http 127.0.0.1:9901"
)]
pub(crate) struct MasterArguments {
    #[command(subcommand)]
    command: Option<MasterCommand>,
    /// Address and port to answer on
    #[arg(long, value_name = "ADDR", required = true)]
    listen: Option<SocketAddr>,
    /// Directory of the metadata store, made if it is not there; or an etcd and a prefix in it
    #[arg(
        long,
        value_name = "DIR|etcd://HOST:PORT,.../PREFIX",
        default_value = "/var/lib/redhare/master"
    )]
    store: String,
    /// By which host and port clients and nodes reach this master; the address it listens on if not given
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
    /// Rebuild a copy elsewhere that is out of sync for so many seconds [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    rebuild_after: Option<u64>,
    /// Leave copies where they are when nodes or disks are added; otherwise they move until every node is used to the same share
    #[arg(long)]
    no_rebalance: bool,
    /// Promise so many times what the disks have to volumes, which take room only as they are written: 1.5, say. Disks can then run full, and
    /// writes wait for room; say the same to every master
    #[arg(long, value_name = "RATIO")]
    overcommit: Option<f64>,
    #[command(flatten)]
    credentials: super::credentials::CredentialArguments,
    /// Append a line of JSON to this file for each action that changes something, and each that was refused to who asked; SIGHUP opens it anew
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Directory of an issuer, as "redhare ca issuer" makes it: give certificates to nodes and clients that come with a join token
    #[arg(long, value_name = "DIR")]
    issuer: Option<PathBuf>,
    /// Serve a dashboard at http://ADDR/ and metrics for Prometheus at http://ADDR/metrics, without TLS or passwords
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// TOML file with heartbeat_interval_ms, heartbeat_timeout_ms, rebuild_after_ms, rebalance (true), overcommit (1.0), data_key_period_ms (1800000), audit_log, issuer, http, [tls] (authority, certificate, key) and [etcd]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Of "redhare up": the process with which this one ends
    #[arg(long, value_name = "PID", hide = true)]
    end_with: Option<u32>,
}

/// What programs read of it.
#[derive(serde::Serialize)]
struct Forgotten<'a> {
    forgotten: &'a str,
}

fn forget(arguments: &ForgetArguments, output: &Output) -> Result<(), Failure> {
    let address = arguments.address.clone();
    let request = v1::ForgetMasterRequest { address };
    let call = |client: Client| async move { client.forget_master(request).await };
    arguments.cluster.call(call)?;
    let forgotten = &arguments.address;
    output.print(&Forgotten { forgotten }, || {
        format!("Master {forgotten} is forgotten.\n")
    });
    Ok(())
}

pub(crate) fn run(arguments: MasterArguments, output: &Output) -> Result<(), Failure> {
    if let Some(MasterCommand::Forget(forgets)) = &arguments.command {
        return forget(forgets, output);
    }
    let listen = arguments.listen.expect("it is required without a command");
    super::signals::end_with(arguments.end_with)?;
    let store = StoreConfig::parse(&arguments.store).map_err(Failure::new)?;
    let mut config = Config::new(listen, store);
    config.advertise = arguments.advertise;
    config.credentials = arguments.credentials.files();
    config.audit_log = arguments.audit_log;
    config.issuer = arguments.issuer;
    config.http = arguments.http;
    if let Some(file) = arguments.config {
        config = config.with_file(&file).map_err(Failure::new)?;
    }
    if let Some(seconds) = arguments.rebuild_after {
        config.settings.rebuild_after = std::time::Duration::from_secs(seconds);
    }
    if let Some(ratio) = arguments.overcommit {
        config.settings.overcommit_percent = master::overcommit_percent(ratio).map_err(Failure::new)?;
    }
    if arguments.no_rebalance {
        config.settings.rebalance = false;
    }
    super::cluster::runtime()?.block_on(async {
        let shutdown = super::signals::ended()?;
        let master = Master::start(&config).await.map_err(Failure::new)?;
        master.run(shutdown).await.map_err(Failure::new)
    })
}
