//! A target that starts with nothing, and requests to it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

pub(crate) const NQN: &str = "nqn.2026-11.io.redhare:managed";

/// An address that was free a moment ago, and that no connection takes for its own end: those come from 32768 on.
/// Should another process take it meanwhile, the test fails loudly.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 1000) as u16;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (first * 10 + number) % 12_000;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap();
        }
    }
}

pub(crate) struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
    log: Arc<Mutex<String>>,
}

impl Daemon {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_redhare"))
            .args(["target", "--rpc-socket"])
            .arg(directory.path().join("rpc.sock"))
            .args(arguments)
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        loop {
            let Some(Ok(line)) = lines.next() else {
                panic!("the target ended: {}", said.join("\n"));
            };
            if line.contains("taking JSON-RPC requests") {
                break;
            }
            said.push(line);
        }
        // So that it never waits for somebody to read its log.
        let log = Arc::<Mutex<String>>::default();
        let kept = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = kept.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self {
            child,
            directory,
            log,
        }
    }

    /// What it has logged since it took requests.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("rpc.sock")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn send(&self, method: &str, params: &Value) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        stream.write_all(request.to_string().as_bytes()).unwrap();
        stream
    }

    /// The result, or code and message.
    pub(crate) fn try_call(&self, method: &str, params: Value) -> Result<Value, (i64, String)> {
        let stream = self.send(method, &params);
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let mut response: Value = serde_json::from_str(&line).unwrap();
        match response.get("error") {
            Some(error) => Err((
                error["code"].as_i64().unwrap(),
                error["message"].as_str().unwrap().to_owned(),
            )),
            None => Ok(response["result"].take()),
        }
    }

    pub(crate) fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params)
            .unwrap_or_else(|(code, message)| panic!("{method}: {message} ({code})"))
    }

    /// Ends it as people do. What it listened on is free afterwards.
    pub(crate) fn end(mut self) {
        // It may be gone before it has answered.
        let _answer = self.send("spdk_kill_instance", &json!({ "sig_name": "SIGTERM" }));
        assert!(self.child.wait().unwrap().success(), "SIGTERM ends it cleanly");
    }

    /// A transport and a subsystem for all hosts that listens on `address`.
    pub(crate) fn listen(&self, address: SocketAddr) {
        self.call("nvmf_create_transport", json!({ "trtype": "TCP" }));
        let params = json!({ "nqn": NQN, "allow_any_host": true, "serial_number": "S1" });
        self.call("nvmf_create_subsystem", params);
        self.call("nvmf_subsystem_add_listener", listener(NQN, address));
    }

    /// A memory device of 16 MiB as a namespace.
    pub(crate) fn add_memory(&self, name: &str) -> Value {
        let params = json!({ "name": name, "num_blocks": 4096, "block_size": 4096 });
        assert_eq!(self.call("bdev_malloc_create", params), json!(name));
        self.add_namespace(name)
    }

    pub(crate) fn add_namespace(&self, name: &str) -> Value {
        self.call(
            "nvmf_subsystem_add_ns",
            json!({ "nqn": NQN, "namespace": { "bdev_name": name } }),
        )
    }

    /// What is saved of all subsystems.
    pub(crate) fn saved(&self) -> Value {
        let of = |name: &str| {
            let config = self.call("framework_get_config", json!({ "name": name }));
            json!({ "subsystem": name, "config": config })
        };
        json!({ "subsystems": [of("keyring"), of("bdev"), of("nvmf")] })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

pub(crate) fn listener(nqn: &str, address: SocketAddr) -> Value {
    json!({
        "nqn": nqn,
        "listen_address": {
            "trtype": "tcp",
            "traddr": address.ip().to_string(),
            "trsvcid": address.port().to_string(),
        },
    })
}
