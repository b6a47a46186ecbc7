//! `redhare node`: the node engine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use foundation::ByteCount;

use crate::output::Failure;

/// Run the node engine of a server: it supervises the target and speaks with the masters
#[derive(Args)]
#[command(
    after_help = "Example:\n  redhare node --master 192.0.2.1:7400 --listen 192.0.2.5:4420 \\\n    --disk /dev/nvme0n1 --disk /var/lib/redhare/extra:64GiB"
)]
pub(crate) struct NodeArguments {
    /// The masters: host:port, several separated by commas
    #[arg(long, value_name = "ADDRS")]
    master: String,
    /// Where this node's target listens for peers and clients
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// A disk: a block device, or a file with the size to make it with
    #[arg(long, value_name = "PATH[:SIZE]", required = true, value_parser = parse_disk)]
    disk: Vec<agent::Disk>,
    /// Where the node keeps its identity, sockets and logs
    #[arg(long, value_name = "DIR", default_value = "/var/lib/redhare/node")]
    data: PathBuf,
    /// End the target with this process, rather than leave it for the next agent
    #[arg(long)]
    end_target: bool,
}

/// `PATH` or `PATH:SIZE`.
fn parse_disk(text: &str) -> Result<agent::Disk, String> {
    match text.rsplit_once(':') {
        Some((path, size)) if !path.is_empty() => {
            let size: ByteCount = size.parse().map_err(|error| format!("{error}"))?;
            Ok(agent::Disk {
                path: PathBuf::from(path),
                size: Some(size),
            })
        }
        _ => Ok(agent::Disk {
            path: PathBuf::from(text),
            size: None,
        }),
    }
}

pub(crate) fn run(arguments: NodeArguments) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
    let config = agent::Config {
        masters: arguments.master,
        listen: arguments.listen,
        disks: arguments.disk,
        directory: arguments.data,
        program,
        end_target: arguments.end_target,
    };
    super::cluster::runtime()?.block_on(async {
        let shutdown = super::signals::ended()?;
        agent::run(config, shutdown).await.map_err(Failure::new)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_may_name_its_size() {
        let disk = parse_disk("/a/b:64GiB").unwrap();
        assert_eq!(
            (disk.path.to_str(), disk.size),
            (Some("/a/b"), Some(ByteCount(64 << 30)))
        );
        assert_eq!(parse_disk("/dev/nvme0n1").unwrap().size, None);
        assert!(parse_disk("/a:large").unwrap_err().contains("such as 64GiB"));
    }
}
