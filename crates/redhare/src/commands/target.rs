//! `redhare target`: the data plane, alone.

mod config;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use clap::Args;
use fabrics::target::{Hosts, Namespace, Options, Server, Subsystem, Target, serve};
use protocols::nvme::Nqn;
use protocols::tcp::target::Limits;
use reactor::Config;

use target::node::Node;

use self::config::{NamespaceConfig, NodeConfig, TargetConfig};
use crate::output::Failure;

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
and on a host: nvme connect -t tcp -a ADDRESS -s 4420 -n nqn.2026-11.io.redhare:scratch")]
pub(crate) struct TargetArguments {
    /// What to serve, in TOML
    #[arg(long)]
    config: PathBuf,
}

pub(crate) fn run(arguments: &TargetArguments) -> Result<(), Failure> {
    let config = TargetConfig::load(&arguments.config)?;
    let stop = super::signals::stop_on_signal().map_err(Failure::new)?;
    reactor::run(&Config::default(), async move {
        let (target, servers) = start(&config)?;
        let _node = match &config.node {
            Some(node) => Some(join_cluster(node, &target, &servers).await?),
            None => None,
        };
        for server in &servers {
            tracing::info!(address = %server.address(), "listening for NVMe/TCP");
        }
        stop.await;
        tracing::info!("stopping");
        Ok(())
    })
    .map_err(Failure::new)?
}

/// Opens the disks and serves the node's chunk copies to peers and native clients.
async fn join_cluster(
    config: &NodeConfig,
    target: &Arc<Target>,
    servers: &[Server],
) -> Result<Rc<Node>, Failure> {
    let Some(server) = servers.first() else {
        return Err(Failure::new("a node's target must listen: write nvme_tcp.listen"));
    };
    let node = Node::start(config.identity()?, &config.disks()?, volume::Settings::default())
        .await
        .map_err(Failure::new)?;
    target.add_subsystem(node.subsystem());
    target::agent::listen(&node, &config.agent_socket, server.address()).map_err(Failure::new)?;
    Ok(node)
}

fn start(config: &TargetConfig) -> Result<(Arc<Target>, Vec<Server>), Failure> {
    let target = Target::new();
    for described in &config.subsystem {
        let nqn: Nqn = described.nqn.parse().map_err(Failure::new)?;
        let hosts = match &described.hosts {
            None => Hosts::Any,
            Some(names) => Hosts::Only(names.iter().cloned().collect()),
        };
        let subsystem = Subsystem::new(nqn, &config::serial(described), "Redhare", hosts);
        for namespace in &described.namespace {
            add_namespace(&subsystem, namespace)?;
        }
        target.add_subsystem(subsystem);
    }
    let options = Options {
        limits: Limits {
            header_digest: config.nvme_tcp.header_digest,
            data_digest: config.nvme_tcp.data_digest,
            ..Limits::default()
        },
        success_flag: config.nvme_tcp.success_flag,
        ..Options::default()
    };
    let mut servers = Vec::new();
    for &address in &config.nvme_tcp.listen {
        servers.push(serve(target.clone(), address, options.clone()).map_err(Failure::new)?);
    }
    Ok((target, servers))
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
