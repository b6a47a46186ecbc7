//! `redhare node`: the node engine, and what the masters are asked to do with a node.

mod drain;

pub(crate) use drain::find;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use foundation::ByteCount;

use super::credentials::CredentialArguments;
use crate::output::{Failure, Output};

/// Run the node engine of a server: it supervises the target and speaks with the masters
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Example:\n  redhare node --master 192.0.2.1:7400 --listen 192.0.2.5:4420 \\\n    --disk /dev/nvme0n1 --disk /var/lib/redhare/extra:64GiB\n\n\
    With a token of \"redhare ca token create\" it comes to its certificate by itself, and renews it in time:\n  \
    redhare node --master 192.0.2.1:7400 --join-file token --credentials /etc/redhare/node \\\n    \
    --listen 192.0.2.5:4420 --disk /dev/nvme0n1\n\n\
    In a rack, so that copies of its chunks are in other ones (start it with another name when it has moved):\n  \
    redhare node --master 192.0.2.1:7400 --listen 192.0.2.5:4420 --disk /dev/nvme0n1 --rack hall2-r07\n\n\
    A node has at most one copy of a chunk. For disks of one server that shall have copies of each other run a node for each; where \
    there are several such servers, those of one say the same rack, its name:\n  \
    redhare node --master 192.0.2.1:7400 --listen 192.0.2.5:4420 --disk /dev/nvme0n1 \\\n    \
    --rack server5 --data /var/lib/redhare/node0\n  \
    redhare node --master 192.0.2.1:7400 --listen 192.0.2.5:4421 --disk /dev/nvme1n1 \\\n    \
    --rack server5 --data /var/lib/redhare/node1"
)]
pub(crate) struct NodeArguments {
    #[command(subcommand)]
    command: Option<drain::NodeCommand>,
    #[command(flatten)]
    engine: Option<EngineArguments>,
}

/// Of the engine itself.
#[derive(Args)]
struct EngineArguments {
    /// The masters: host:port, several separated by commas
    #[arg(long, value_name = "ADDRS")]
    master: String,
    // Not flattened: clap takes a group that has another one in it for not given.
    /// Directory with ca.pem, cert.pem and key.pem, as "redhare ca issue" makes it: speak TLS, as the node that the certificate names [env: REDHARE_CREDENTIALS]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tls_ca", "tls_cert", "tls_key"])]
    credentials: Option<PathBuf>,
    /// At the first start, while --credentials has no certificate: come to one with this join token [env: REDHARE_JOIN]
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["join_file", "tls_ca"])]
    join: Option<String>,
    /// The same with a token in a file, so that it is on no command line; the file is not needed later
    #[arg(long, value_name = "FILE", conflicts_with = "tls_ca")]
    join_file: Option<PathBuf>,
    /// In the place of --credentials: the authorities to trust
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
    /// In the place of --credentials: the certificate, and those between it and an authority
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// In the place of --credentials: its key
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_cert"])]
    tls_key: Option<PathBuf>,
    /// Where this node's target listens for peers and clients
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// A disk: a block device, or a file with the size to make it with
    #[arg(long, value_name = "PATH[:SIZE]", required = true, value_parser = parse_disk)]
    disk: Vec<agent::Disk>,
    /// The rack it stands in, or whatever it is lost together with: copies of a chunk go to different ones. Without it the node counts
    /// as a rack of its own; give it to all nodes, or to none
    #[arg(long, value_name = "NAME", value_parser = parse_rack)]
    rack: Option<control::Rack>,
    /// Where the node keeps its identity, sockets and logs
    #[arg(long, value_name = "DIR", default_value = "/var/lib/redhare/node")]
    data: PathBuf,
    /// End the target with this process, rather than leave it for the next agent
    #[arg(long)]
    end_target: bool,
    /// Serve the target's metrics for Prometheus at http://ADDR/metrics; a target that runs already goes on as it was started
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Compare every copy with its checksums once in this time, in the background: seconds, or 30m, 12h, 14d; 0 for never. A target
    /// that runs already goes on as it was started
    #[arg(long, value_name = "TIME", default_value = SCRUB_EVERY, value_parser = parse_interval)]
    scrub_every: Duration,
    /// A request that stands on a disk for so long begins a reset, whose stages (queue, device, driver, process) get as long each:
    /// seconds, or 500ms, 2m; 0 for never
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_limit)]
    stall_limit: Duration,
    /// Overwrite what is on the disks if it is not Redhare's; for the first start, never for a unit file
    #[arg(long)]
    force: bool,
    /// Of "redhare up": the process with which this one ends
    #[arg(long, value_name = "PID", hide = true)]
    end_with: Option<u32>,
}

/// `PATH` or `PATH:SIZE`. What is there under the whole text is meant: names below `/dev/disk/by-path` have colons.
fn parse_disk(text: &str) -> Result<agent::Disk, String> {
    let whole = agent::Disk {
        path: PathBuf::from(text),
        size: None,
    };
    if whole.path.exists() {
        return Ok(whole);
    }
    match text.rsplit_once(':') {
        Some((path, size)) if !path.is_empty() => {
            let size: ByteCount = size.parse().map_err(|error| format!("{error}"))?;
            Ok(agent::Disk {
                path: PathBuf::from(path),
                size: Some(size),
            })
        }
        _ => Ok(whole),
    }
}

fn parse_rack(text: &str) -> Result<control::Rack, String> {
    control::Rack::new(text).map_err(|error| error.to_string())
}

fn check(arguments: &EngineArguments) -> Result<(), Failure> {
    let listen = arguments.listen;
    if listen.ip().is_unspecified() || listen.port() == 0 {
        return Err(Failure::new(format!(
            "--listen {listen} is not an address that other nodes and clients can connect to; write the one by which they \
             reach this machine, with a port, such as 192.0.2.5:4420"
        )));
    }
    let name = |disk: &agent::Disk| std::fs::canonicalize(&disk.path).unwrap_or_else(|_| disk.path.clone());
    let mut seen = std::collections::BTreeSet::new();
    match arguments.disk.iter().find(|disk| !seen.insert(name(disk))) {
        None => Ok(()),
        Some(twice) => Err(Failure::new(format!(
            "--disk names {} twice; name each disk once",
            twice.path.display()
        ))),
    }
}

pub(crate) fn run(arguments: NodeArguments, output: &Output) -> Result<(), Failure> {
    match (arguments.command, arguments.engine) {
        (Some(command), _) => drain::run(command, output),
        (None, Some(engine)) => run_engine(engine),
        (None, None) => Err(Failure::new(
            "nothing was asked for; give --master, --listen and --disk to run a node, or see \"redhare node --help\"",
        )),
    }
}

/// Pause between attempts to reach a master before there is a certificate.
const JOIN_PAUSE: Duration = Duration::from_millis(500);

/// How often copies are compared with their checksums, unless it is said otherwise.
pub(crate) const SCRUB_EVERY: &str = "14d";

/// A time as seconds, or with a unit.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(digits) => (digits, &text[digits.len()..]),
        None => (text, "s"),
    };
    let seconds = match unit {
        "d" => 86_400,
        "h" => 3600,
        "m" => 60,
        _ => 1,
    };
    let number = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(seconds));
    number.map(Duration::from_secs).ok_or_else(|| {
        format!("\"{text}\" is no time: write seconds, or a number with s, m, h or d, such as 14d")
    })
}

/// As [`parse_interval`], and milliseconds.
fn parse_limit(text: &str) -> Result<Duration, String> {
    match text.strip_suffix("ms").map(str::parse) {
        Some(Ok(ms)) => Ok(Duration::from_millis(ms)),
        _ => parse_interval(text),
    }
}

fn run_engine(arguments: EngineArguments) -> Result<(), Failure> {
    super::signals::end_with(arguments.end_with)?;
    check(&arguments)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
    // Those of a directory are this node's to renew; others are somebody else's.
    let renews_credentials = arguments.tls_ca.is_none();
    if renews_credentials {
        join(&arguments)?;
    }
    let config = agent::Config {
        renews_credentials,
        masters: master::Masters {
            addresses: arguments.master,
            credentials: super::credentials::checked(CredentialArguments {
                credentials: arguments.credentials,
                tls_ca: arguments.tls_ca,
                tls_cert: arguments.tls_cert,
                tls_key: arguments.tls_key,
            })?,
        },
        listen: arguments.listen,
        disks: arguments.disk,
        rack: arguments.rack.map_or_else(String::new, |rack| rack.to_string()),
        directory: arguments.data,
        program,
        end_target: arguments.end_target,
        metrics: arguments.metrics,
        scrub_every: Some(arguments.scrub_every).filter(|every| !every.is_zero()),
        stall_limit: Some(arguments.stall_limit).filter(|limit| !limit.is_zero()),
        force: arguments.force,
    };
    super::cluster::runtime()?.block_on(async {
        let shutdown = super::signals::ended()?;
        agent::run(config, shutdown).await.map_err(Failure::new)
    })
}

/// Comes to a certificate, if there is none yet and a token was given. Waits for a master that answers.
fn join(arguments: &EngineArguments) -> Result<(), Failure> {
    let files = super::credentials::named(arguments.credentials.clone());
    if files.as_ref().is_some_and(|files| files.has_certificate()) {
        return Ok(());
    }
    let token = super::ca::token::given(arguments.join.clone(), arguments.join_file.as_deref())?;
    let Some(token) = token else {
        return Ok(());
    };
    let directory = files.as_ref().and_then(|files| files.certificate.parent());
    let directory = directory.ok_or_else(|| {
        Failure::new("a join token was given, and no place for what is had by it; give --credentials DIR")
    })?;
    // A node that exists stays the one that it is.
    let known = agent::identity_of(&arguments.data);
    let known = known.and_then(|(node, _)| identity::Cluster::from_bytes(node.to_be_bytes()));
    let name = known.map_or(String::new(), |node| node.to_string());
    // One key, however often it is asked with: were an answer lost with its master, another key would take another use.
    let joiner = master::Joiner::new(&arguments.master, &token, &name).map_err(Failure::new)?;
    let issued = super::cluster::runtime()?.block_on(async {
        let mut is_said = false;
        loop {
            match joiner.join().await {
                Err(error)
                    if error.is_passing() && !matches!(error, master::ClientError::Untrusted { .. }) =>
                {
                    if !std::mem::replace(&mut is_said, true) {
                        tracing::warn!(%error, "waiting for a master, to join its cluster");
                    }
                    tokio::time::sleep(JOIN_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    });
    let issued = issued.map_err(Failure::new)?;
    issued.write(directory).map_err(Failure::new)?;
    tracing::info!(
        node = %issued.identity.name,
        "joined by a token; the credentials are in {}",
        directory.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_units() {
        let seconds = |text| parse_interval(text).map(|time| time.as_secs());
        assert_eq!(seconds(SCRUB_EVERY), Ok(14 * 86_400));
        let expected = [("90", 90), ("90s", 90), ("2m", 120), ("3h", 10_800), ("0", 0)];
        for (text, expected) in expected {
            assert_eq!(seconds(text), Ok(expected));
        }
        for wrong in [
            "",
            "d",
            "-1s",
            "1w",
            "1.5h",
            "99999999999999999999",
            "9999999999999999d",
        ] {
            assert!(seconds(wrong).unwrap_err().contains("such as 14d"), "{wrong}");
        }
    }

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

    #[test]
    fn a_disk_whose_name_has_colons_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pci-0000:01:00");
        std::fs::write(&path, b"").unwrap();
        let text = path.to_str().unwrap();
        let disk = parse_disk(text).unwrap();
        assert_eq!((disk.path.as_path(), disk.size), (path.as_path(), None));
        let disk = parse_disk(&format!("{text}:1GiB")).unwrap();
        assert_eq!((disk.path, disk.size), (path, Some(ByteCount(1 << 30))));
    }

    #[test]
    fn what_cannot_work_is_refused_before_anything_starts() {
        let arguments = |listen: &str, disks: &[&str]| EngineArguments {
            master: String::new(),
            credentials: None,
            join: None,
            join_file: None,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            listen: listen.parse().unwrap(),
            disk: disks.iter().map(|disk| parse_disk(disk).unwrap()).collect(),
            rack: None,
            data: PathBuf::new(),
            end_target: false,
            metrics: None,
            scrub_every: Duration::ZERO,
            stall_limit: Duration::ZERO,
            force: false,
            end_with: None,
        };
        for listen in ["0.0.0.0:4420", "[::]:4420", "127.0.0.1:0"] {
            let error = check(&arguments(listen, &["/x"])).unwrap_err().to_string();
            assert!(error.contains("such as 192.0.2.5:4420"), "{error}");
        }
        let error = check(&arguments("127.0.0.1:4420", &["/x:1GiB", "/x"]))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "--disk names /x twice; name each disk once");
        check(&arguments("127.0.0.1:4420", &["/x", "/y"])).unwrap();
    }
}
