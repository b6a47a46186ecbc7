//! Real etcds on loopback for tests. Also the tests of the binary include this file.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test uses a part of it"
)]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long an etcd may take to answer, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether etcd is there. If not, the test is skipped, and says so; where `CI=true` it fails.
pub fn is_there(what: &str) -> bool {
    if Command::new("etcd").arg("--version").output().is_ok() {
        return true;
    }
    let why = "etcd is not there; \"make setup\" or apt-get install etcd-server provides it";
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    eprintln!("SKIPPED: {what}: {why}");
    if let Ok(list) = std::env::var("REDHARE_SKIPS") {
        let list = std::fs::OpenOptions::new().append(true).create(true).open(list);
        writeln!(list.unwrap(), "{what}: {why}").unwrap();
    }
    false
}

/// Members of one etcd; they end with it.
pub struct Etcd {
    members: Vec<Member>,
    directory: PathBuf,
}

struct Member {
    child: Option<Child>,
    command: Vec<String>,
    port: u16,
}

/// Files for TLS: who signed, certificate, key.
pub struct Certificates {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Etcd {
    pub fn start(members: usize) -> Self {
        Self::start_with(members, None)
    }

    /// Members that answer over TLS only, and only to those with a certificate of the same authority.
    pub fn start_with(members: usize, tls: Option<&Certificates>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("redhare-etcd-{}-{number}", std::process::id());
        // In memory where the system has such a place: what a slow disk costs is not looked at.
        let shared = Path::new("/dev/shm").join(&name);
        let directory = match std::fs::create_dir(&shared) {
            Ok(()) => shared,
            Err(_) => std::env::temp_dir().join(&name),
        };
        std::fs::create_dir_all(&directory).unwrap();
        let ports: Vec<(u16, u16)> = (0..members).map(|_| (free_port(), free_port())).collect();
        let all: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(index, (_, peer))| format!("m{index}=http://127.0.0.1:{peer}"))
            .collect();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let member = |(index, (port, peer)): (usize, &(u16, u16))| {
            let client = format!("{scheme}://127.0.0.1:{port}");
            let data = directory.join(format!("m{index}"));
            let mut command: Vec<String> = [
                ("--name", format!("m{index}")),
                ("--data-dir", data.display().to_string()),
                ("--listen-client-urls", client.clone()),
                ("--advertise-client-urls", client),
                ("--listen-peer-urls", format!("http://127.0.0.1:{peer}")),
                (
                    "--initial-advertise-peer-urls",
                    format!("http://127.0.0.1:{peer}"),
                ),
                ("--initial-cluster", all.join(",")),
                ("--logger", "zap".to_owned()),
                ("--log-level", "error".to_owned()),
            ]
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
            if let Some(tls) = tls {
                for (flag, file) in [
                    ("--trusted-ca-file", &tls.authority),
                    ("--cert-file", &tls.certificate),
                    ("--key-file", &tls.key),
                ] {
                    command.extend([flag.to_owned(), file.display().to_string()]);
                }
                command.push("--client-cert-auth".to_owned());
            }
            Member {
                child: None,
                command,
                port: *port,
            }
        };
        let members = ports.iter().enumerate().map(member).collect();
        let mut etcd = Self { members, directory };
        for index in 0..etcd.members.len() {
            etcd.spawn(index);
        }
        for index in 0..etcd.members.len() {
            etcd.wait(index);
        }
        etcd
    }

    fn spawn(&mut self, index: usize) {
        let member = &mut self.members[index];
        let log = std::fs::File::create(self.directory.join(format!("m{index}.log"))).unwrap();
        let child = Command::new("etcd")
            .args(&member.command)
            .env_remove("ETCDCTL_API")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        member.child = Some(child.unwrap());
    }

    fn wait(&self, index: usize) {
        let deadline = Instant::now() + LIMIT;
        while TcpStream::connect(("127.0.0.1", self.members[index].port)).is_err() {
            assert!(Instant::now() < deadline, "etcd's member {index} does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn restart(&mut self, index: usize) {
        self.spawn(index);
        self.wait(index);
    }

    /// As a power cut does.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.members[index].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// `host:port` of all members, separated by commas.
    pub fn endpoints(&self) -> String {
        let endpoints = self
            .members
            .iter()
            .map(|member| format!("127.0.0.1:{}", member.port));
        endpoints.collect::<Vec<_>>().join(",")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for index in 0..self.members.len() {
            self.kill(index);
        }
        // What cannot be removed lies in a place for such things.
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// An authority and a certificate of it for 127.0.0.1 and for a client, made by the openssl command.
pub fn certificates(directory: &Path) -> Certificates {
    let path = |name: &str| directory.join(name);
    let request = |name: &str, more: &[&str]| {
        let status = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ])
            .args(["-subj", &format!("/CN={name}"), "-keyout"])
            .arg(path(&format!("{name}.key")))
            .arg("-out")
            .arg(path(&format!("{name}.pem")))
            .args(more)
            .stderr(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "openssl makes a certificate");
    };
    request("authority", &[]);
    let (authority, key) = (path("authority.pem"), path("authority.key"));
    let more = [
        "-CA",
        authority.to_str().unwrap(),
        "-CAkey",
        key.to_str().unwrap(),
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-addext",
        "extendedKeyUsage=serverAuth,clientAuth",
    ];
    request("member", &more);
    Certificates {
        authority,
        certificate: path("member.pem"),
        key: path("member.key"),
    }
}
