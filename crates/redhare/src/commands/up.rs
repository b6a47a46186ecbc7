//! `redhare up`: a whole cluster on this machine, in the foreground.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use foundation::ByteCount;
use rustix::process::{Pid, Signal, kill_process};

use crate::output::Failure;

/// Run a master and some nodes on this machine, with file-backed disks, until Ctrl-C
#[derive(Args)]
#[command(
    after_help = "Example:\n  redhare up --data ~/redhare &\n  redhare volume create photos --size 4GiB\n  redhare status"
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
    /// The master's port; the nodes take the ones that follow
    #[arg(long, default_value_t = 7400)]
    port: u16,
}

/// How long the master may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// What is not gone by then is killed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Where a running `redhare up` leaves its masters' addresses for other commands.
fn local_file() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(home);
    base.unwrap_or_else(std::env::temp_dir)
        .join("redhare/local-cluster")
}

/// The masters of the cluster that `redhare up` runs on this machine, if one does.
pub(crate) fn local_cluster() -> Option<String> {
    let text = std::fs::read_to_string(local_file()).ok()?;
    let address: SocketAddr = text.trim().parse().ok()?;
    TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()?;
    Some(address.to_string())
}

struct Process {
    name: String,
    child: Child,
}

/// All processes of the cluster; ended when dropped, nodes before the master.
struct Processes(Vec<Process>);

impl Drop for Processes {
    fn drop(&mut self) {
        let deadline = Instant::now() + END_LIMIT;
        while let Some(mut process) = self.0.pop() {
            let id = Pid::from_raw(process.child.id().cast_signed());
            if let Some(id) = id
                && let Err(error) = kill_process(id, Signal::TERM)
            {
                tracing::debug!(process = process.name, %error, "has ended by itself");
            }
            while Instant::now() < deadline && matches!(process.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
            if matches!(process.child.try_wait(), Ok(None)) {
                tracing::warn!(process = process.name, "did not end: killed");
                drop(process.child.kill());
            }
            drop(process.child.wait());
        }
        drop(std::fs::remove_file(local_file()));
    }
}

pub(crate) fn run(arguments: &UpArguments) -> Result<(), Failure> {
    if arguments.nodes == 0 || arguments.nodes > 64 {
        return Err(Failure::new(format!(
            "--nodes is {}; write 1 to 64",
            arguments.nodes
        )));
    }
    reactor::probe().map_err(Failure::new)?;
    let data = &arguments.data;
    std::fs::create_dir_all(data)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", data.display())))?;
    let lock = lock(data)?;
    let stop = stopped()?;
    let mut processes = Processes(Vec::new());
    let master = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
    processes.0.push(start(
        data,
        "master",
        &[
            "master".to_owned(),
            "--listen".to_owned(),
            master.to_string(),
            "--store".to_owned(),
            data.join("master").display().to_string(),
        ],
    )?);
    wait_for(master, &mut processes)?;
    for number in 1..=arguments.nodes {
        let directory = data.join(format!("node{number}"));
        std::fs::create_dir_all(&directory)
            .map_err(|error| Failure::new(format!("cannot make {}: {error}", directory.display())))?;
        let port = arguments.port + number;
        let disk = format!("{}:{}", directory.join("disk").display(), arguments.disk_size.0);
        processes.0.push(start(
            data,
            &format!("node{number}"),
            &[
                "node".to_owned(),
                "--master".to_owned(),
                master.to_string(),
                "--listen".to_owned(),
                SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string(),
                "--disk".to_owned(),
                disk,
                "--data".to_owned(),
                directory.display().to_string(),
                "--end-target".to_owned(),
            ],
        )?);
    }
    publish(master)?;
    println!(
        "master at {master}, {} nodes, everything in {}\ntry: redhare status; redhare volume create scratch --size 4GiB\nCtrl-C ends it; the next \"redhare up\" goes on with the same data",
        arguments.nodes,
        data.display()
    );
    let outcome = watch(&mut processes, &stop);
    drop(processes);
    drop(lock);
    outcome
}

fn lock(data: &Path) -> Result<std::fs::File, Failure> {
    let path = data.join("lock");
    let file = std::fs::File::create(&path)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", path.display())))?;
    file.try_lock().map_err(|_| {
        Failure::new(format!(
            "another \"redhare up\" runs on {}; end it first, or give --data another directory and --port another port",
            data.display()
        ))
    })?;
    Ok(file)
}

fn stopped() -> Result<std::sync::mpsc::Receiver<()>, Failure> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
            .map_err(Failure::new)?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

fn start(data: &Path, name: &str, arguments: &[String]) -> Result<Process, Failure> {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().map_err(Failure::new)?;
    let log = data.join(format!("{name}.log"));
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .map_err(|error| Failure::new(format!("cannot open {}: {error}", log.display())))?;
    let mut command = Command::new(program);
    // A group of its own: Ctrl-C reaches only us, and we end the others in order.
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .process_group(0);
    let child = command
        .spawn()
        .map_err(|error| Failure::new(format!("cannot start {name}: {error}")))?;
    Ok(Process {
        name: name.to_owned(),
        child,
    })
}

fn wait_for(master: SocketAddr, processes: &mut Processes) -> Result<(), Failure> {
    let deadline = Instant::now() + START_LIMIT;
    while TcpStream::connect_timeout(&master, Duration::from_millis(200)).is_err() {
        if let Some(name) = ended(processes) {
            return Err(Failure::new(format!(
                "{name} ended while it started; its log, {name}.log in the data directory, says why (a port in use \
                 is the usual reason: give --port)"
            )));
        }
        if Instant::now() > deadline {
            return Err(Failure::new(format!(
                "the master does not answer at {master} within {START_LIMIT:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn ended(processes: &mut Processes) -> Option<String> {
    let gone = |process: &mut Process| !matches!(process.child.try_wait(), Ok(None));
    processes
        .0
        .iter_mut()
        .find_map(|process| gone(process).then(|| process.name.clone()))
}

fn publish(master: SocketAddr) -> Result<(), Failure> {
    let path = local_file();
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    written
        .and_then(|()| std::fs::write(&path, master.to_string()))
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))
}

/// Waits for Ctrl-C. A node that ends is reported once and left out: that is what a cluster is for.
fn watch(processes: &mut Processes, stop: &std::sync::mpsc::Receiver<()>) -> Result<(), Failure> {
    loop {
        if stop.recv_timeout(Duration::from_millis(500)).is_ok() {
            eprintln!("ending");
            return Ok(());
        }
        if let Some(name) = ended(processes) {
            if name == "master" {
                return Err(Failure::new(
                    "the master ended; its log, master.log in the data directory, says why",
                ));
            }
            eprintln!("{name} ended; the cluster goes on without it (see {name}.log)");
            processes.0.retain(|process| process.name != name);
        }
    }
}
