//! `redhare target`: the data plane, alone.

mod config;

mod managed;
mod reactors;

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use fabrics::key_file::read_psk;
use fabrics::secure::NamedPsk;
use fabrics::target::{Hosts, Namespace, Options, ServeError, Server, Subsystem, Target, serve};
use protocols::nvme::Nqn;
use protocols::tcp::target::Limits;
use reactor::net::TcpOptions;
use reactor::{Config, CoreHandle};
use target::management::{LogLevel, Managed};
use target::metrics::Source;
use target::node::Node;
use target::portal::Portals;

use self::config::{NamespaceConfig, NodeConfig, SubsystemConfig, TargetConfig};
use self::reactors::ReactorArguments;
use crate::output::Failure;

/// Where SPDK's tools look by themselves.
const USUAL_RPC_SOCKET: &str = "/var/tmp/spdk.sock";

/// How long a port may be in use still after whoever had it was killed.
const LISTEN_LIMIT: Duration = Duration::from_secs(1);
const LISTEN_PAUSE: Duration = Duration::from_millis(10);

/// Serve block devices over NVMe/TCP to any host.
#[derive(Args)]
#[command(after_help = "Example, target.toml:

  [nvme_tcp]
  listen = [\"0.0.0.0:4420\"]

  [[subsystem]]
  nqn = \"nqn.2026-11.io.redhare:scratch\"

  [[subsystem.namespace]]
  nsid = 1
  file = \"/var/lib/redhare/disk0\"
  size = \"64GiB\"

then: redhare target --config target.toml
and on a host: nvme connect -t tcp -a ADDRESS -s 4420 -n nqn.2026-11.io.redhare:scratch

Or start with nothing and say what to serve with SPDK's own client (pip install spdk):

  redhare target --rpc-socket &
  spdk-rpc nvmf_create_transport -t TCP
  spdk-rpc bdev_malloc_create -b Malloc0 64 4096
  spdk-rpc nvmf_create_subsystem nqn.2026-11.io.redhare:scratch -a
  spdk-rpc nvmf_subsystem_add_ns nqn.2026-11.io.redhare:scratch Malloc0
  spdk-rpc nvmf_subsystem_add_listener nqn.2026-11.io.redhare:scratch -t tcp -a 127.0.0.1 -s 4420")]
#[command(group = ArgGroup::new("source").required(true).multiple(true).args(["config", "rpc_socket", "json_config"]))]
pub(crate) struct TargetArguments {
    /// What to serve, in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Take JSON-RPC requests with SPDK's names on this unix socket [without a path: /var/tmp/spdk.sock]
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = USUAL_RPC_SOCKET)]
    rpc_socket: Option<PathBuf>,
    /// What to serve, as "spdk-rpc save_config" wrote it
    #[arg(long, value_name = "FILE")]
    json_config: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    reactors: ReactorArguments,
}

/// A reactor that has panicked answers nobody, and what its hosts wait for nobody else has: whoever supervises the process starts it anew.
fn end_with_any_reactor() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        if reactor::runs_here() {
            std::process::abort();
        }
    }));
}

pub(crate) fn run(
    arguments: &TargetArguments,
    set_filter: impl Fn(&str) -> Result<(), String> + 'static,
) -> Result<(), Failure> {
    // Before anything else: the engine that started this may have ended already.
    agent::lock::record_own().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot write this process's number into its lock: a node engine that did not start it cannot end it");
    });
    let config = arguments.config.as_deref().map(TargetConfig::load).transpose()?;
    let stop = super::signals::stop_on_signal().map_err(Failure::new)?;
    end_with_any_reactor();
    let random = random().map_err(|error| Failure::new(format!("cannot read /dev/urandom: {error}")))?;
    reactor::run(&Config::default(), async move {
        let target = Target::new();
        refuse_a_node_on_several(arguments, config.as_ref())?;
        let reactors = arguments.reactors.start(&target)?;
        let _metrics = serve_metrics(arguments.metrics, &target)?;
        if arguments.rpc_socket.is_none() && arguments.json_config.is_none() {
            // Nobody will ask, so nothing is counted.
            let config = config.expect("the command line has one of the three");
            let servers = start(&config, &target)?;
            let node = join_cluster(
                config.node.as_ref(),
                &target,
                servers.first().map(Server::address),
            )
            .await?;
            for server in &servers {
                tracing::info!(address = %server.address(), "listening for NVMe/TCP");
            }
            reactors.settle()?;
            stop.await;
            end(node).await;
            return Ok(());
        }
        let set_level = Box::new(move |level| set_filter(filter_of(level)));
        let managed = Managed::new(target.clone(), random, set_level);
        let mut node = None;
        if let Some(config) = &config {
            let address = managed::start(config, &managed).await?;
            node = join_cluster(config.node.as_ref(), &target, Some(address)).await?;
        }
        if let Some(path) = &arguments.json_config {
            managed.load(path).await.map_err(Failure::new)?;
        }
        let server = match &arguments.rpc_socket {
            Some(path) => Some(managed.serve(path).map_err(Failure::new)?),
            None => None,
        };
        if let Some(server) = &server {
            tracing::info!(path = %server.path().display(), "taking JSON-RPC requests");
        }
        reactors.settle()?;
        stop.await;
        end(node).await;
        drop(server);
        Ok(())
    })
    .map_err(Failure::new)?
}

/// What a node has acknowledged outlives it.
async fn end(node: Option<Rc<Node>>) {
    tracing::info!("stopping");
    if let Some(node) = node {
        node.end().await;
    }
}

/// The replication core of a node and its disks belong to one reactor.
fn refuse_a_node_on_several(
    arguments: &TargetArguments,
    config: Option<&TargetConfig>,
) -> Result<(), Failure> {
    if arguments.reactors.are_several() && config.is_some_and(|config| config.node.is_some()) {
        return Err(Failure::new(
            "a cluster node's target runs on one reactor; leave --reactors out, and name one processor with --cpus",
        ));
    }
    Ok(())
}

fn serve_metrics(
    address: Option<SocketAddr>,
    target: &Arc<Target>,
) -> Result<Option<target::metrics::Server>, Failure> {
    let Some(address) = address else { return Ok(None) };
    let mut reactors = target.reactors();
    if reactors.is_empty() {
        reactors.push(CoreHandle::current());
    }
    let source = Source {
        target: target.clone(),
        reactors,
    };
    let server = target::metrics::serve(address, source).map_err(Failure::new)?;
    tracing::info!(address = %server.address(), "serving metrics");
    Ok(Some(server))
}

fn random() -> std::io::Result<[u8; 24]> {
    let mut bytes = [0; 24];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What `RUST_LOG` would say for one of SPDK's levels. Theirs has one more between warnings and details.
fn filter_of(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warning => "warn",
        LogLevel::Notice => "info",
        LogLevel::Info => "debug",
        LogLevel::Debug => "trace",
    }
}

/// A node of a cluster, as its engine described it to its target last.
pub(crate) struct DescribedNode {
    pub(crate) identity: target::node::Identity,
    pub(crate) disks: Vec<target::node::DiskConfig>,
    /// Where its target listens.
    pub(crate) address: String,
}

/// Reads the file that a node's engine writes for its target.
pub(crate) fn described_node(file: &std::path::Path) -> Result<DescribedNode, Failure> {
    let config = TargetConfig::load(file)?;
    let listens = config.nvme_tcp.listen.first().map(ToString::to_string);
    match (&config.node, listens) {
        (Some(node), Some(address)) => Ok(DescribedNode {
            identity: node.identity()?,
            disks: node.disks()?,
            address,
        }),
        _ => Err(Failure::new(format!(
            "{} describes no node of a cluster; name the directory that \"redhare node --data\" names",
            file.display()
        ))),
    }
}

/// Opens the disks and serves the node's chunk copies to peers and native clients, if the target is part of a cluster.
async fn join_cluster(
    config: Option<&NodeConfig>,
    target: &Arc<Target>,
    address: Option<SocketAddr>,
) -> Result<Option<Rc<Node>>, Failure> {
    let Some(config) = config else { return Ok(None) };
    let Some(address) = address else {
        return Err(Failure::new("a node's target must listen: write nvme_tcp.listen"));
    };
    let (disks, care) = (config.disks()?, config.care());
    let settings = volume::Settings::default();
    let node = Node::start_with_care(config.identity()?, &disks, settings, care.as_ref())
        .await
        .map_err(Failure::new)?;
    if config.scrub_every_ms > 0 {
        node.scrub_every(std::time::Duration::from_millis(config.scrub_every_ms));
    }
    if config.peers_prove {
        node.require_passes();
    }
    target.add_subsystem(node.subsystem());
    let portals = Portals::new(&node, target.clone(), address);
    target::agent::listen(&node, &portals, &config.agent_socket, address).map_err(Failure::new)?;
    Ok(Some(node))
}

fn start(config: &TargetConfig, target: &Arc<Target>) -> Result<Vec<Server>, Failure> {
    for described in &config.subsystem {
        let nqn: Nqn = described.nqn.parse().map_err(Failure::new)?;
        let hosts = hosts_of(described);
        let subsystem = Subsystem::new(nqn, &config::serial(described), "Redhare", hosts);
        for namespace in &described.namespace {
            add_namespace(&subsystem, namespace)?;
        }
        for (host, path) in &described.psk {
            let psk = read_psk(path).map_err(|error| Failure::new(format!("the key of {host}, {error}")))?;
            let named = NamedPsk {
                key_name: path.display().to_string(),
                psk: Arc::new(psk),
            };
            subsystem.set_psk(host, Some(named));
        }
        target.add_subsystem(subsystem);
    }
    let mut servers = Vec::new();
    for (address, secure_channel) in config.listeners() {
        let options = Options {
            secure_channel,
            ..options_of(config)
        };
        servers.push(listen(target, address, &options)?);
    }
    Ok(servers)
}

/// Listens. A target that was killed a moment ago may have its port still, until the kernel has ended what it had asked of it:
/// that is waited for, and blocks, since nothing is served yet.
fn listen(target: &Arc<Target>, address: SocketAddr, options: &Options) -> Result<Server, Failure> {
    let deadline = Instant::now() + LISTEN_LIMIT;
    loop {
        match serve(target.clone(), address, options.clone()) {
            Err(ServeError::Listen { source, .. })
                if source.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline =>
            {
                std::thread::sleep(LISTEN_PAUSE);
            }
            served => return served.map_err(Failure::new),
        }
    }
}

fn hosts_of(described: &SubsystemConfig) -> Hosts {
    match &described.hosts {
        None => Hosts::Any,
        Some(names) => Hosts::Only(names.iter().cloned().collect()),
    }
}

fn options_of(config: &TargetConfig) -> Options {
    Options {
        limits: Limits {
            header_digest: config.nvme_tcp.header_digest,
            data_digest: config.nvme_tcp.data_digest,
            ..Limits::default()
        },
        success_flag: config.nvme_tcp.success_flag,
        tcp: TcpOptions {
            // Clients and other nodes look for it; foreign hosts would not.
            local: config.node.is_some(),
            ..TcpOptions::default()
        },
        ..Options::default()
    }
}

fn add_namespace(subsystem: &Arc<Subsystem>, described: &NamespaceConfig) -> Result<(), Failure> {
    let device = described.open()?;
    let uuid = described.uuid(subsystem.nqn().as_str())?;
    let namespace = Namespace {
        nsid: described.nsid,
        uuid,
        device,
    };
    subsystem.add_namespace(namespace).map_err(Failure::new)
}
