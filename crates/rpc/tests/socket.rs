//! The server as a client of the socket sees it.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rpc::{Call, RpcError, ServeError, Server};
use serde_json::{Value, json};

/// Answers as a program would, without a registry: "echo" gives its parameters back.
fn echo(call: Call) {
    let outcome = match call.method.as_str() {
        "echo" => Ok(call.params),
        "lose" => return drop(call.reply),
        other => Err(RpcError::method_not_found(other)),
    };
    call.reply.send(outcome);
}

struct Peer {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl Peer {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self {
            stream,
            bytes: Vec::new(),
        }
    }

    fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    fn receive(&mut self) -> Value {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                return serde_json::from_slice(&line).unwrap();
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the server closed the connection");
            self.bytes.extend_from_slice(&bytes[..count]);
        }
    }

    fn is_closed(&mut self) -> bool {
        self.stream.read(&mut [0; 16]).unwrap() == 0
    }
}

#[test]
fn requests_are_answered_in_order_however_they_arrive() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rpc.sock");
    let _server = Server::start(&path, echo).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let mut peer = Peer::connect(&path);
    peer.send(r#"{"jsonrpc":"2.0","method":"echo","params":{"a":1},"id":1}{"jsonrpc":"2.0","me"#);
    assert_eq!(
        peer.receive(),
        json!({"jsonrpc": "2.0", "id": 1, "result": {"a": 1}})
    );
    peer.send(r#"thod":"nothing","id":"two"}"#);
    assert_eq!(
        peer.receive(),
        json!({"jsonrpc": "2.0", "id": "two", "error": {"code": -32601, "message": "nothing"}})
    );
}

#[test]
fn a_batch_is_answered_as_one_and_notifications_are_not_answered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rpc.sock");
    let _server = Server::start(&path, echo).unwrap();
    let mut peer = Peer::connect(&path);
    peer.send(r#"{"jsonrpc":"2.0","method":"echo"}"#);
    peer.send(
        r#"[{"jsonrpc":"2.0","method":"echo","params":[1],"id":1},{"jsonrpc":"2.0","method":"echo"},
            {"jsonrpc":"2.0","method":"echo","params":[2],"id":2}]"#,
    );
    let answers = peer.receive();
    assert_eq!(answers.as_array().map(Vec::len), Some(2));
    assert_eq!(answers[1]["result"], json!([2]));
}

#[test]
fn a_stream_that_is_no_json_is_told_so_and_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rpc.sock");
    let _server = Server::start(&path, echo).unwrap();
    let mut peer = Peer::connect(&path);
    peer.send("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(peer.receive()["error"]["code"], json!(-32700));
    assert!(peer.is_closed());
    // Others are served on.
    let mut other = Peer::connect(&path);
    other.send(r#"{"jsonrpc":"2.0","method":"echo","id":null}"#);
    assert_eq!(other.receive()["result"], json!({}));
}

#[test]
fn a_call_that_the_program_loses_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rpc.sock");
    let _server = Server::start(&path, echo).unwrap();
    let mut peer = Peer::connect(&path);
    peer.send(r#"{"jsonrpc":"2.0","method":"lose","id":1}"#);
    assert_eq!(peer.receive()["error"]["code"], json!(-32603));
}

#[test]
fn a_socket_in_use_is_not_taken_and_a_dead_one_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rpc.sock");
    let server = Server::start(&path, echo).unwrap();
    assert!(matches!(
        Server::start(&path, echo),
        Err(ServeError::Taken { .. })
    ));
    drop(server);
    assert!(!path.exists());
    // As a killed process leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _server = Server::start(&path, echo).unwrap();
    std::fs::write(directory.path().join("file"), b"x").unwrap();
    let error = Server::start(&directory.path().join("file"), echo).unwrap_err();
    assert!(matches!(error, ServeError::NotASocket { .. }), "{error}");
}
