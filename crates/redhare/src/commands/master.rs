//! `redhare master`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use master::{Config, Master};

use crate::output::Failure;

/// Run a master: placement, volumes, configurations and leases
#[derive(Args)]
#[command(after_help = "Example:\n  redhare master --listen 192.0.2.1:7400 --store /var/lib/redhare/master")]
pub(crate) struct MasterArguments {
    /// Address and port to answer on
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Directory of the metadata store, made if it is not there
    #[arg(long, value_name = "DIR", default_value = "/var/lib/redhare/master")]
    store: PathBuf,
    /// TOML file with heartbeat_interval_ms and heartbeat_timeout_ms
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(arguments: MasterArguments) -> Result<(), Failure> {
    let mut config = Config::new(arguments.listen, arguments.store);
    if let Some(file) = arguments.config {
        config = config.with_file(&file).map_err(Failure::new)?;
    }
    super::cluster::runtime()?.block_on(async {
        let interrupted = tokio::signal::unix::SignalKind::interrupt();
        let terminated = tokio::signal::unix::SignalKind::terminate();
        let signals = (
            tokio::signal::unix::signal(interrupted),
            tokio::signal::unix::signal(terminated),
        );
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
            return Err(Failure::new(
                "the system gives no signal handlers; raise the limit of open files",
            ));
        };
        let master = Master::start(&config).await.map_err(Failure::new)?;
        let shutdown = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        master.run(shutdown).await.map_err(Failure::new)
    })
}
