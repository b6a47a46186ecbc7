//! The socket. One thread a connection; requests of a connection are answered in their order.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use serde_json::Value;

use crate::error::RpcError;
use crate::frames::Frames;
use crate::message::{answer, response};

/// Connections at once; further ones are told so and closed.
const CONNECTIONS_MAX: usize = 64;

/// Why a server does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process answers there.
    #[error(
        "cannot listen for JSON-RPC on {path}: another process is listening there; end it, or choose another path"
    )]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// Something else lies there, and it is not ours to remove.
    #[error("cannot listen for JSON-RPC on {path}: it exists and is not a socket; choose another path")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system.
    #[error("cannot listen for JSON-RPC on {path}: {source}")]
    System {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// One request, to be run by whoever owns the state.
#[derive(Debug)]
pub struct Call {
    /// The method's name.
    pub method: String,
    /// An object or an array.
    pub params: Value,
    /// Where the outcome goes.
    pub reply: Reply,
}

/// The duty to answer a call. Dropping it answers that the program is ending.
#[derive(Debug)]
pub struct Reply(Option<mpsc::SyncSender<Result<Value, RpcError>>>);

impl Reply {
    /// Answers. Never blocks.
    pub fn send(mut self, outcome: Result<Value, RpcError>) {
        if let Some(sender) = self.0.take() {
            // The connection may be gone: then nobody wants to know.
            let _ = sender.try_send(outcome);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.try_send(Err(RpcError::internal("the program is ending")));
        }
    }
}

/// A listener that serves until dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Listens on `path`, for its owner only (mode 0600), and gives each request to `submit`, which may run on any
    /// of several threads and must not block. A socket that a dead process left there is replaced.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn start(path: &Path, submit: impl Fn(Call) + Send + Sync + 'static) -> Result<Self, ServeError> {
        let failed = |source| ServeError::System {
            path: path.to_owned(),
            source,
        };
        remove_dead_socket(path)?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, submit) = (stop.clone(), Arc::new(submit));
        std::thread::Builder::new()
            .name("json-rpc".to_owned())
            .spawn(move || accept(&listener, &stopping, &submit))
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            stop,
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the accepting thread, which then sees that it is to end.
        drop(UnixStream::connect(&self.path));
        drop(std::fs::remove_file(&self.path));
    }
}

fn remove_dead_socket(path: &Path) -> Result<(), ServeError> {
    let failed = |source| ServeError::System {
        path: path.to_owned(),
        source,
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServeError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    if UnixStream::connect(path).is_ok() {
        return Err(ServeError::Taken {
            path: path.to_owned(),
        });
    }
    std::fs::remove_file(path).map_err(failed)
}

fn accept<S: Fn(Call) + Send + Sync + 'static>(listener: &UnixListener, stop: &AtomicBool, submit: &Arc<S>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                // Out of descriptors, most likely: others may close some meanwhile.
                tracing::error!(%error, "cannot accept a JSON-RPC connection");
                std::thread::sleep(std::time::Duration::from_millis(100));
                continue;
            }
        };
        if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::AcqRel);
            let error = RpcError::internal(format!(
                "{CONNECTIONS_MAX} connections are open, which is the most: close one"
            ));
            drop(write(&mut stream, &response(Value::Null, Err(error))));
            continue;
        }
        let (submit, open_now) = (submit.clone(), open.clone());
        let thread = std::thread::Builder::new().name("json-rpc-peer".to_owned());
        let started = thread.spawn(move || {
            // An error means that the peer has gone.
            drop(converse(stream, &*submit));
            open_now.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = started {
            open.fetch_sub(1, Ordering::AcqRel);
            tracing::error!(%error, "cannot start a thread for a JSON-RPC connection");
        }
    }
}

fn converse(mut stream: UnixStream, submit: &dyn Fn(Call)) -> std::io::Result<()> {
    let mut frames = Frames::default();
    let mut bytes = vec![0; 16 << 10];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => frames.push(&bytes[..count]),
        }
        loop {
            match frames.take() {
                Ok(None) => break,
                Ok(Some(value)) => {
                    let call = |method, params| run(method, params, submit);
                    if let Some(answer) = answer(&value, call) {
                        write(&mut stream, &answer)?;
                    }
                }
                Err(error) => {
                    let error = RpcError::parse(error.to_string());
                    write(&mut stream, &response(Value::Null, Err(error)))?;
                    return stream.shutdown(std::net::Shutdown::Both);
                }
            }
        }
    }
}

fn write(stream: &mut UnixStream, answer: &Value) -> std::io::Result<()> {
    let mut bytes = serde_json::to_vec(answer)?;
    bytes.push(b'\n');
    stream.write_all(&bytes)
}

/// Hands a request in and waits for its outcome.
fn run(method: String, params: Value, submit: &dyn Fn(Call)) -> Result<Value, RpcError> {
    let (sender, outcome) = mpsc::sync_channel(1);
    submit(Call {
        method,
        params,
        reply: Reply(Some(sender)),
    });
    let ended = |_| Err(RpcError::internal("the program is ending"));
    outcome.recv().unwrap_or_else(ended)
}
