//! `redhare up`: a whole cluster on this machine, in the foreground.
//!
//! Every process ends with it: asked to when `up` ends in order, by the kernel's word to them when `up` is killed
//! (`--end-with`). Each holds a lock file while it lives, so the next `up` knows what still runs.

mod local;
mod processes;
mod security;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use foundation::ByteCount;
use master::{Client, ClientError, Masters, v1};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

use self::processes::{News, Processes, Service};
use crate::output::{Failure, Output};

pub(crate) use self::local::local_cluster;

/// Run a master and some nodes on this machine, with file-backed disks, until Ctrl-C
#[derive(Args)]
#[command(
    after_help = "Example:\n  redhare up --data ~/redhare &\n  redhare volume create photos --size 4GiB\n  redhare status\n\n\
    A master or node that dies is started again; five short lives in a row are the last. Ctrl-C ends everything in\n\
    order, a second Ctrl-C kills. If \"redhare up\" itself is killed, its processes end by themselves."
)]
pub(crate) struct UpArguments {
    /// Where everything is kept; the cluster is the same after the next start
    #[arg(long, value_name = "DIR", default_value = ".redhare")]
    data: PathBuf,
    /// How many nodes
    #[arg(long, default_value_t = 3)]
    nodes: u16,
    /// Size of each node's disk: a sparse file, so it takes only what is written
    #[arg(long, value_name = "SIZE", default_value = "64GiB")]
    disk_size: ByteCount,
    /// Rebuild a copy elsewhere that is out of sync for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    rebuild_after: u64,
    /// Make a certificate authority in the data directory, and let nobody in without a certificate of it
    #[arg(long)]
    tls: bool,
    /// Compare every copy with its checksums once in this time, in the background: seconds, or 30m, 12h, 14d; 0 for never
    #[arg(long, value_name = "TIME", default_value = super::node::SCRUB_EVERY, value_parser = super::node::parse_interval)]
    scrub_every: Duration,
    /// Serve a dashboard and metrics here, as "redhare master --http" does, to whoever can connect; 127.0.0.1:7480, say
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// The master's port; the nodes take the ones that follow
    #[arg(long, default_value_t = 7400)]
    port: u16,
}

/// The smallest disk that has room for the store's own records and a chunk.
const DISK_SIZE_MIN: ByteCount = ByteCount(64 << 20);
const NODES_MAX: u16 = 64;
/// How long the master may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long processes of a killed `redhare up` may take to end.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(20);
/// How long the kernel may take to give back the ports of killed processes.
const PORT_LIMIT: Duration = Duration::from_secs(5);
/// How often the processes are looked at until all serve.
const LOOK: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(20);

pub(crate) fn run(arguments: &UpArguments, output: &Output) -> Result<(), Failure> {
    check(arguments)?;
    reactor::probe().map_err(Failure::new)?;
    let data = &arguments.data;
    std::fs::create_dir_all(data)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", data.display())))?;
    let lock = lock(data)?;
    let stop = signals()?;
    if !wait_for_leftovers(data, &stop)? {
        return Ok(());
    }
    check_ports(arguments)?;
    if arguments.tls {
        security::prepare(data, arguments.nodes)?;
    }
    let mut processes = Processes::new(data);
    let outcome = run_all(arguments, output, &mut processes, &stop);
    local::retract(master_address(arguments));
    let ended = processes.end(Some(&stop));
    drop(lock);
    outcome.and(ended)
}

fn run_all(
    arguments: &UpArguments,
    output: &Output,
    processes: &mut Processes,
    stop: &Receiver<Heard>,
) -> Result<(), Failure> {
    let data = &arguments.data;
    let master = master_address(arguments);
    let service = master_service(arguments);
    processes.start(service.clone())?;
    if !wait_for(master, &service, processes, stop)? {
        return Ok(());
    }
    for number in 1..=arguments.nodes {
        processes.start(node_service(arguments, number)?)?;
    }
    let own = arguments
        .tls
        .then(|| std::path::absolute(security::directory(data, "admin")));
    let own = own.transpose().map_err(Failure::new)?;
    local::publish(master, own.as_deref())?;
    if !wait_for_nodes(master, arguments, processes, stop)? {
        return Ok(());
    }
    let view = serde_json::json!({
        "master": master.to_string(), "nodes": arguments.nodes, "data": data, "credentials": own, "http": arguments.http,
    });
    output.print(&view, || {
        let secure = own.as_ref().map_or(String::new(), |own| {
            format!(
                "\nothers need a certificate: yours is in {}, more are made with \"redhare ca issue {}\"",
                own.display(),
                data.join("ca").display()
            )
        });
        let dashboard = arguments
            .http
            .map_or_else(String::new, |address| format!("\ndashboard at http://{address}/"));
        format!(
            "master at {master}, {} nodes, everything in {}{secure}{dashboard}\ntry: redhare status; redhare volume create scratch --size 4GiB\n\
             Ctrl-C ends it; the next \"redhare up\" goes on with the same data",
            arguments.nodes,
            data.display()
        )
    });
    watch(processes, data, stop)
}

fn check(arguments: &UpArguments) -> Result<(), Failure> {
    let UpArguments {
        nodes,
        port,
        disk_size,
        ..
    } = *arguments;
    if nodes == 0 || nodes > NODES_MAX {
        let said = format!("--nodes is {nodes}; write 1 to {NODES_MAX}");
        return Err(Failure::new(said));
    }
    let last_first = u16::MAX - nodes;
    if port == 0 || port > last_first {
        return Err(Failure::new(format!(
            "--port is {port}; the master takes that port and {nodes} nodes the ones that follow: write 1 to {last_first}"
        )));
    }
    if disk_size < DISK_SIZE_MIN {
        return Err(Failure::new(format!(
            "--disk-size is {disk_size}, too small for a node's disk; write {DISK_SIZE_MIN} or more (it is a sparse file)"
        )));
    }
    Ok(())
}

fn master_address(arguments: &UpArguments) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port))
}

fn node_directory(arguments: &UpArguments, number: u16) -> PathBuf {
    arguments.data.join(format!("node{number}"))
}

fn node_address(arguments: &UpArguments, number: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port + number))
}

fn master_service(arguments: &UpArguments) -> Service {
    let store = arguments.data.join("master");
    Service {
        name: "master".to_owned(),
        arguments: vec![
            "master".into(),
            "--listen".into(),
            master_address(arguments).to_string().into(),
            "--store".into(),
            store.into(),
            "--rebuild-after".into(),
            arguments.rebuild_after.to_string().into(),
        ]
        .into_iter()
        .chain(credentials(arguments, "master"))
        .chain(issuer(arguments))
        .chain(http(arguments))
        .collect(),
        data: arguments.data.clone(),
    }
}

/// What the master is told of its dashboard.
fn http(arguments: &UpArguments) -> impl Iterator<Item = std::ffi::OsString> {
    let given = arguments
        .http
        .map(|address| ["--http".into(), address.to_string().into()]);
    given.into_iter().flatten()
}

/// What a process is told of its credentials.
fn credentials(arguments: &UpArguments, who: &str) -> Vec<std::ffi::OsString> {
    match arguments.tls {
        true => vec![
            "--credentials".into(),
            security::directory(&arguments.data, who).into(),
        ],
        false => Vec::new(),
    }
}

/// What the master is told of its issuer.
fn issuer(arguments: &UpArguments) -> Vec<std::ffi::OsString> {
    match arguments.tls {
        true => vec!["--issuer".into(), security::issuer(&arguments.data).into()],
        false => Vec::new(),
    }
}

fn node_service(arguments: &UpArguments, number: u16) -> Result<Service, Failure> {
    let directory = node_directory(arguments, number);
    std::fs::create_dir_all(&directory)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", directory.display())))?;
    let mut disk = directory.join("disk").into_os_string();
    disk.push(format!(":{}", arguments.disk_size.0));
    Ok(Service {
        name: format!("node{number}"),
        arguments: vec![
            "node".into(),
            "--master".into(),
            master_address(arguments).to_string().into(),
            "--listen".into(),
            node_address(arguments, number).to_string().into(),
            "--scrub-every".into(),
            arguments.scrub_every.as_secs().to_string().into(),
            "--disk".into(),
            disk,
            "--data".into(),
            directory.into(),
            "--end-target".into(),
        ]
        .into_iter()
        .chain(credentials(arguments, &format!("node{number}")))
        .collect(),
        data: arguments.data.clone(),
    })
}

/// Every port is tried before anything starts. That of a target that is still there will be adopted with it.
fn check_ports(arguments: &UpArguments) -> Result<(), Failure> {
    let nodes = (1..=arguments.nodes)
        .filter(|&number| !processes::has_target(&node_directory(arguments, number)))
        .map(|number| (format!("node {number}"), node_address(arguments, number)));
    // A target that was just killed keeps its port until the kernel has taken its ring apart.
    let was_used = arguments.data.join("master").exists();
    let deadline = Instant::now() + if was_used { PORT_LIMIT } else { Duration::ZERO };
    for (who, address) in std::iter::once(("the master".to_owned(), master_address(arguments))).chain(nodes) {
        let mut bound = TcpListener::bind(address);
        while bound.is_err() && Instant::now() < deadline {
            std::thread::sleep(POLL);
            bound = TcpListener::bind(address);
        }
        if let Err(error) = bound {
            return Err(Failure::new(format!(
                "port {port}, which {who} is to take, cannot be used on {ip}: {error}; stop what uses it (\"ss -ltnp 'sport \
                 = :{port}'\" names it), or give --port another first port of {count} in a row",
                port = address.port(),
                ip = address.ip(),
                count = arguments.nodes + 1
            )));
        }
    }
    Ok(())
}

fn lock(data: &Path) -> Result<std::fs::File, Failure> {
    let path = data.join("lock");
    let file = std::fs::File::create(&path)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Failure::new(format!(
            "another \"redhare up\" runs on {}; end it first, or give --data another directory and --port another port",
            data.display()
        ))),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(Failure::new(format!("cannot lock {}: {error}", path.display())))
        }
    }
}

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// To end.
    Stop,
    /// A child may have ended.
    Child,
}

fn signals() -> Result<Receiver<Heard>, Failure> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGCHLD]).map_err(Failure::new)?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let heard = if signal == SIGCHLD {
                Heard::Child
            } else {
                Heard::Stop
            };
            if sender.send(heard).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Waits for so long, or until a child has ended; true when asked to stop.
fn is_stopped(heard: &Receiver<Heard>, wait: Duration) -> bool {
    !matches!(
        heard.recv_timeout(wait),
        Ok(Heard::Child) | Err(RecvTimeoutError::Timeout)
    )
}

/// Waits for what a killed `redhare up` has left and what is about to end; false when asked to stop. Targets without a
/// node engine do no harm: the new engines adopt them.
fn wait_for_leftovers(data: &Path, stop: &Receiver<Heard>) -> Result<bool, Failure> {
    let deadline = Instant::now() + LEFTOVER_LIMIT;
    let mut is_said = false;
    loop {
        let left = processes::leftovers(data)?;
        if left.is_empty() {
            return Ok(true);
        }
        let number = |left: &processes::Leftover| left.process.map(|process| process.to_string());
        let names: Vec<String> = left
            .iter()
            .map(|left| match number(left) {
                Some(process) => format!("{} (process {process})", left.name),
                None => left.name.clone(),
            })
            .collect();
        let names = names.join(", ");
        if Instant::now() >= deadline {
            let numbers: Vec<String> = left.iter().filter_map(number).collect();
            return Err(Failure::new(format!(
                "an earlier \"redhare up\" on {} was killed, and after {} s these of its processes still run: {names}; \
                 end them with \"kill {numbers}\", if that does not help with \"kill -9 {numbers}\"",
                data.display(),
                LEFTOVER_LIMIT.as_secs(),
                numbers = numbers.join(" ")
            )));
        }
        if !std::mem::replace(&mut is_said, true) {
            eprintln!("an earlier \"redhare up\" here was killed; waiting for its processes to end: {names}");
        }
        if is_stopped(stop, POLL) {
            return Ok(false);
        }
    }
}

/// Waits until the master answers; false when asked to stop.
fn wait_for(
    master: SocketAddr,
    service: &Service,
    processes: &mut Processes,
    stop: &Receiver<Heard>,
) -> Result<bool, Failure> {
    let deadline = Instant::now() + START_LIMIT;
    while TcpStream::connect_timeout(&master, Duration::from_millis(200)).is_err() {
        if let Some(News::Again { why, .. } | News::GivenUp { why, .. }) = processes.look().pop() {
            return Err(Failure::new(format!(
                "the master ended while it started: {why} (its log is {})",
                service.log().display()
            )));
        }
        if Instant::now() > deadline {
            return Err(Failure::new(format!(
                "the master does not answer at {master} within {START_LIMIT:?}; its log is {}",
                service.log().display()
            )));
        }
        if is_stopped(stop, POLL) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits until every node serves a disk, so that the next command finds a whole cluster; false when asked to stop. A
/// node that does not come up is said, and is no reason to end the others.
fn wait_for_nodes(
    master: SocketAddr,
    arguments: &UpArguments,
    processes: &mut Processes,
    stop: &Receiver<Heard>,
) -> Result<bool, Failure> {
    let runtime = super::cluster::runtime()?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let serving = runtime.block_on(async {
            let own = arguments
                .tls
                .then(|| security::directory(&arguments.data, "admin"));
            let masters = Masters {
                addresses: master.to_string(),
                credentials: own.map(|own| identity::Files::in_directory(&own)),
            };
            let client = Client::connect(masters).await?;
            let status = client.status(v1::GetStatusRequest {}).await?;
            let serves = |node: &&v1::NodeStatus| node.alive && !node.disks.is_empty();
            Ok::<_, ClientError>(status.nodes.iter().filter(serves).count())
        });
        let serving = serving.unwrap_or(0);
        if serving >= usize::from(arguments.nodes) {
            return Ok(true);
        }
        say(processes, &arguments.data)?;
        if Instant::now() >= deadline {
            eprintln!(
                "{serving} of {} nodes serve after {START_LIMIT:?}; \"redhare status\" shows which, and the logs in {} say why",
                arguments.nodes,
                arguments.data.display()
            );
            return Ok(true);
        }
        if is_stopped(stop, LOOK) {
            return Ok(false);
        }
    }
}

/// Waits for Ctrl-C. What ends meanwhile is started again, and said; a node that ends again and again is left out. Nothing is
/// looked at until a child has ended, or one's pause is over.
fn watch(processes: &mut Processes, data: &Path, stop: &Receiver<Heard>) -> Result<(), Failure> {
    loop {
        // What was heard while the nodes started may have been the end of one.
        say(processes, data)?;
        let is_asked = match processes.next_start() {
            Some(at) => is_stopped(stop, at.saturating_duration_since(Instant::now())),
            None => stop.recv() != Ok(Heard::Child),
        };
        if is_asked {
            eprintln!("ending; once more kills");
            return Ok(());
        }
    }
}

/// Looks after the processes and says what happened to them; fails when the master is lost for good.
fn say(processes: &mut Processes, data: &Path) -> Result<(), Failure> {
    for news in processes.look() {
        match news {
            News::Again { name, why, pause } => {
                eprintln!("{name} ended ({why}); it is started again in {pause:?}");
            }
            News::GivenUp { name, why } => {
                let log = data.join(format!("{name}.log"));
                let said = format!("{name} ended again and again, the last time so: {why}");
                if name == "master" {
                    return Err(Failure::new(format!("{said}; its log is {}", log.display())));
                }
                eprintln!(
                    "{said}; the cluster goes on without it. Its log is {}. Mend what it says, then start \"redhare up\" again",
                    log.display()
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(nodes: u16, port: u16, disk_size: &str) -> UpArguments {
        UpArguments {
            tls: false,
            data: "x".into(),
            nodes,
            disk_size: disk_size.parse().unwrap(),
            rebuild_after: 600,
            scrub_every: Duration::ZERO,
            http: None,
            port,
        }
    }

    #[test]
    fn a_master_is_told_of_its_dashboard_if_there_is_to_be_one() {
        let told = |arguments: &UpArguments| {
            let words = master_service(arguments).arguments;
            let at = words.iter().position(|word| word == "--http")?;
            words.get(at + 1).cloned()
        };
        let mut arguments = arguments(3, 7400, "1GiB");
        assert_eq!(told(&arguments), None);
        arguments.http = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7480)));
        assert_eq!(told(&arguments), Some("127.0.0.1:7480".into()));
    }

    #[test]
    fn numbers_that_cannot_work_are_refused_with_those_that_can() {
        for (arguments, expected) in [
            (arguments(0, 7400, "1GiB"), "--nodes is 0; write 1 to 64"),
            (arguments(65, 7400, "1GiB"), "--nodes is 65; write 1 to 64"),
            (arguments(3, 0, "1GiB"), "write 1 to 65532"),
            (arguments(3, 65_533, "1GiB"), "write 1 to 65532"),
            (arguments(3, 7400, "1MiB"), "--disk-size is 1 MiB, too small"),
        ] {
            let error = check(&arguments).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        check(&arguments(3, 65_532, "64MiB")).unwrap();
    }

    #[test]
    fn a_port_in_use_is_named_with_its_taker() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = check_ports(&arguments(1, port - 1, "1GiB"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("port {port}, which node 1 is to take"))
                || error.contains("which the master is to take"),
            "{error}"
        );
        assert!(
            error.contains("give --port another first port of 2 in a row"),
            "{error}"
        );
    }
}
