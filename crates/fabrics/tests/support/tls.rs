//! Keys for TLS, hosts that speak it badly, and bridges through OpenSSL's own programs.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabrics::secure::NamedPsk;
use protocols::tls::{ConfiguredPsk, IdentityVersion, Psk, Read as Record, Session};

/// Made by nvme-cli, and by libnvme's test.
pub(crate) const KEY: &str = "NVMeTLSkey-1:01:cTUtI0LmuMq92ONxarul/mjBkR8pYyQAUMRi5j3th/cRqp+5:";
pub(crate) const LONG_KEY: &str =
    "NVMeTLSkey-1:02:MscmcXOlW9cscL9+LIm0uv04BR0dOlmoPGlA9nVn4nhm1NeaKgF+irGftOO+Q8U2velBmg==:";
pub(crate) const OTHER_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

/// Nothing of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A key as people would have given it.
pub(crate) fn named(text: &str) -> NamedPsk {
    NamedPsk {
        key_name: "tls-key".to_owned(),
        psk: Arc::new(ConfiguredPsk::parse(text.as_bytes()).unwrap()),
    }
}

/// What TLS takes.
pub(crate) fn psk(text: &str, version: IdentityVersion, host: &str, subsystem: &str) -> Psk {
    named(text).psk.derive(version, host, subsystem).unwrap()
}

/// A host whose TLS and PDUs the test makes itself.
pub(crate) struct RawTls {
    pub(crate) socket: TcpStream,
    pub(crate) session: Session,
}

impl RawTls {
    /// Connected, with the handshake done.
    pub(crate) fn connect(address: SocketAddr, psk: Psk) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let session = Session::connect(psk).unwrap();
        let mut raw = Self { socket, session };
        while !raw.session.handshake().unwrap() {
            raw.flush();
            assert!(raw.feed(), "the target ended the handshake");
        }
        raw.flush();
        raw
    }

    pub(crate) fn flush(&mut self) {
        let mut bytes = Vec::new();
        self.session.take_outgoing(&mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    fn feed(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let count = self.socket.read(&mut bytes).unwrap();
        self.session.feed(&bytes[..count]);
        count > 0
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.session.write(bytes).unwrap();
        self.flush();
    }

    /// So many bytes of content.
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            let mut bytes = vec![0; count - all.len()];
            match self.session.read(&mut bytes).unwrap() {
                Record::Bytes(count) => all.extend_from_slice(&bytes[..count]),
                Record::Blocked => assert!(self.feed(), "the target closed the connection"),
                Record::Closed => panic!("the target said that nothing more comes"),
            }
        }
        all
    }

    /// How the connection ends: what TLS says, and then the end of the stream.
    pub(crate) fn end(&mut self) -> Result<Record, String> {
        let mut bytes = [0; 4096];
        loop {
            match self.session.read(&mut bytes) {
                Ok(Record::Bytes(_)) => {}
                Ok(Record::Closed) => return Ok(Record::Closed),
                Ok(Record::Blocked) if self.feed() => {}
                Ok(Record::Blocked) => return Ok(Record::Blocked),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// What a peer answers to raw bytes before it closes; `None` if it keeps the connection open for `patience`.
pub(crate) fn answer_to(address: SocketAddr, bytes: &[u8], patience: Duration) -> Option<Vec<u8>> {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    // A peer that has seen enough may be gone before the last byte.
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Ok(_) => Some(answer),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Some(answer),
        Err(_) => None,
    }
}

/// Whether `openssl` is there; says so if not.
pub(crate) fn has_openssl() -> bool {
    let there = Command::new("openssl").arg("version").output().is_ok();
    if !there {
        eprintln!("skipped: there is no program openssl; apt-get install openssl");
    }
    there
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn openssl(command: &str, psk: &Psk) -> Command {
    let mut openssl = Command::new("openssl");
    openssl.args([command, "-tls1_3"]);
    openssl.args(["-psk_identity", psk.identity(), "-psk", &hex(psk.key())]);
    openssl
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    openssl
}

/// Carries bytes between a socket and a program until either ends.
fn carry(mut program: Child, socket: TcpStream) {
    let mut input = program.stdin.take().unwrap();
    let mut output = program.stdout.take().unwrap();
    let (mut from, mut to) = (socket.try_clone().unwrap(), socket);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if input.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        drop(input);
        // It ends with its connection; one that does not must not outlive the test.
        let _ = program.kill();
        let _ = program.wait();
    });
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = output.read(&mut bytes) {
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // The other thread ends then, too.
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// An address where a plain host reaches the TLS target at `target` through `openssl s_client`, one for each connection.
pub(crate) fn through_s_client(target: SocketAddr, psk: Psk) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the process.
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut client = openssl("s_client", &psk);
            client.args(["-quiet", "-connect", &target.to_string()]);
            carry(client.spawn().unwrap(), socket.unwrap());
        }
    });
    address
}

/// A connection that OpenSSL's client makes, whose input begins with a letter for what is a command to it.
pub(crate) struct Commanded(Child);

impl Commanded {
    pub(crate) fn connect(target: SocketAddr, psk: &Psk) -> Self {
        let mut client = openssl("s_client", psk);
        client.args(["-brief", "-connect", &target.to_string()]);
        Self(client.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Sends bytes that are no command.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let input = self.0.stdin.as_mut().unwrap();
        input.write_all(bytes).unwrap();
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.stdout.as_mut().unwrap().read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Gives a command, and waits until it says this.
    pub(crate) fn command(&mut self, command: &str, said: &str) {
        self.send(command.as_bytes());
        let errors = self.0.stderr.as_mut().unwrap();
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(said) {
            let mut byte = [0];
            errors.read_exact(&mut byte).unwrap();
            all.push(byte[0]);
        }
    }
}

impl Drop for Commanded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address where a TLS host reaches the plain target at `target` through `openssl s_server`, for one connection.
pub(crate) fn through_s_server(target: SocketAddr, psk: &Psk) -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let mut server = openssl("s_server", psk);
    server.args([
        "-quiet",
        "-accept",
        &address.to_string(),
        "-nocert",
        "-naccept",
        "1",
    ]);
    carry(server.spawn().unwrap(), TcpStream::connect(target).unwrap());
    let deadline = Instant::now() + PATIENCE;
    // Not by connecting, which would be its one connection.
    while !listens(address) {
        assert!(Instant::now() < deadline, "openssl s_server does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    address
}

/// Whether somebody listens, as the system says.
fn listens(address: SocketAddr) -> bool {
    let port = format!(":{:04X} ", address.port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    sockets.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words
            .get(1)
            .is_some_and(|local| format!("{local} ").ends_with(&port))
            && words.get(3) == Some(&"0A")
    })
}
