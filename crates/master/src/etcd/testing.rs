//! Real etcds on loopback for tests. Also the tests of the binary include this file.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test uses a part of it"
)]

use std::io::{Read, Write};
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
    /// Where it answers plainly.
    plain_port: u16,
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
        Self::start_as(members, tls, &[])
    }

    /// The same with further arguments.
    pub fn start_as(members: usize, tls: Option<&Certificates>, further: &[&str]) -> Self {
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
        // For clients, for other members, and for a test's own settings.
        let ports: Vec<[u16; 3]> = (0..members)
            .map(|_| [free_port(), free_port(), free_port()])
            .collect();
        let all: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(index, [_, peer, _])| format!("m{index}=http://127.0.0.1:{peer}"))
            .collect();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let member = |(index, [port, peer, plain]): (usize, &[u16; 3])| {
            let client = format!("{scheme}://127.0.0.1:{port}");
            let plain_port = if tls.is_some() { *plain } else { *port };
            let data = directory.join(format!("m{index}"));
            let mut command: Vec<String> = [
                ("--name", format!("m{index}")),
                ("--data-dir", data.display().to_string()),
                (
                    "--listen-client-urls",
                    match tls {
                        Some(_) => format!("{client},http://127.0.0.1:{plain_port}"),
                        None => client.clone(),
                    },
                ),
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
            command.extend(further.iter().map(|&argument| argument.to_owned()));
            Member {
                child: None,
                command,
                port: *port,
                plain_port,
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

    /// Sets something, by etcd's gateway for JSON; gives the answer. `token` is root's once there are users.
    pub fn set(&self, what: &str, json: &str, token: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.members[0].plain_port)).unwrap();
        let length = json.len();
        let who = match token {
            "" => String::new(),
            token => format!("Authorization: {token}\r\n"),
        };
        write!(
            stream,
            "POST /v3/{what} HTTP/1.0\r\nHost: etcd\r\n{who}Content-Length: {length}\r\n\r\n{json}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{what}: {answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// A user of this name and password who reads and writes what begins with `prefix`, beside root, whose password is "over all".
    /// From now on nobody is served who is neither.
    pub fn add_users(&self, name: &str, password: &str, prefix: &str) {
        // The first key behind all that begin so.
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let (first, end) = (base64(prefix.as_bytes()), base64(&end));
        for (what, json) in [
            (
                "auth/user/add",
                r#"{"name":"root","password":"over all"}"#.to_owned(),
            ),
            ("auth/role/add", r#"{"name":"root"}"#.to_owned()),
            ("auth/user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
            (
                "auth/user/add",
                format!(r#"{{"name":"{name}","password":"{password}"}}"#),
            ),
            ("auth/role/add", r#"{"name":"ours"}"#.to_owned()),
            (
                "auth/role/grant",
                format!(
                    r#"{{"name":"ours","perm":{{"permType":"READWRITE","key":"{first}","range_end":"{end}"}}}}"#
                ),
            ),
            ("auth/user/grant", format!(r#"{{"user":"{name}","role":"ours"}}"#)),
            ("auth/enable", "{}".to_owned()),
        ] {
            self.set(what, &json, "");
        }
    }

    /// A token of root's, once there are users.
    pub fn root_token(&self) -> String {
        let json = r#"{"name":"root","password":"over all"}"#;
        let answer = self.set("auth/authenticate", json, "");
        let token = answer.split_once(r#""token":""#).unwrap().1;
        token.split_once('"').unwrap().0.to_owned()
    }

    /// Another password for a user; root says so.
    pub fn change_password(&self, name: &str, password: &str) {
        let json = format!(r#"{{"name":"{name}","password":"{password}"}}"#);
        self.set("auth/user/changepw", &json, &self.root_token());
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

/// As JSON has bytes (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |bits: u32| char::from(LETTERS[(bits & 63) as usize]);
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let at = |place: usize| u32::from(group.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let letters = [
            letter(bits >> 18),
            letter(bits >> 12),
            letter(bits >> 6),
            letter(bits),
        ];
        text.extend(&letters[..=group.len()]);
        text.extend(std::iter::repeat_n('=', 3 - group.len()));
    }
    text
}

/// The arguments for tokens that end after so many seconds, used or not, signed with a new key in this directory.
pub fn signed_tokens(directory: &Path, seconds: u32) -> [String; 2] {
    let (key, public) = (directory.join("tokens.key"), directory.join("tokens.pub"));
    let run = |arguments: &[&str]| {
        let status = Command::new("openssl")
            .args(arguments)
            .stderr(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "openssl {arguments:?}");
    };
    let (key, public) = (key.to_str().unwrap(), public.to_str().unwrap());
    run(&["genrsa", "-traditional", "-out", key, "2048"]);
    run(&["rsa", "-in", key, "-pubout", "-out", public]);
    let value = format!("jwt,pub-key={public},priv-key={key},sign-method=RS256,ttl={seconds}s");
    ["--auth-token".to_owned(), value]
}

/// An authority and a certificate of it for 127.0.0.1 and for a client, made by the openssl command.
pub fn certificates(directory: &Path) -> Certificates {
    make(directory, "authority", &[]);
    certificate(directory, "member")
}

/// Another one of the same authority, for 127.0.0.1 and for a client of this name.
pub fn certificate(directory: &Path, name: &str) -> Certificates {
    let path = |name: &str| directory.join(name);
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
    make(directory, name, &more);
    Certificates {
        authority,
        certificate: path(&format!("{name}.pem")),
        key: path(&format!("{name}.key")),
    }
}

fn make(directory: &Path, name: &str, more: &[&str]) {
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
        .arg(directory.join(format!("{name}.key")))
        .arg("-out")
        .arg(directory.join(format!("{name}.pem")))
        .args(more)
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success(), "openssl makes a certificate");
}
