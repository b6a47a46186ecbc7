//! As much of HTTP/1.1 as a scrape needs: one GET a connection, answered and closed.
//!
//! The parser is `httparse`. There is no HTTP server here: those that are well kept bring an asynchronous runtime
//! along, and the target has one already, which must not be asked to do this.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Connections at once; further ones are closed as they come.
const CONNECTIONS_MAX: usize = 16;
/// A request's line and headers, at most.
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// A client that has not sent its request by then is not waited for.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// A client that takes nothing of its answer for so long is not waited for.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics on {address}: {source}; choose a free port and an address of this host")]
pub struct ListenError {
    /// The address asked for.
    pub address: SocketAddr,
    /// The system's answer.
    pub source: std::io::Error,
}

/// Serves until dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    accepting: Option<thread::JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(
        address: SocketAddr,
        page: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self, ListenError> {
        let failed = |source| ListenError { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let accepting = thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || accept(&listener, &stopping, &Arc::new(page)))
            .map_err(failed)?;
        Ok(Self {
            address,
            stop,
            accepting: Some(accepting),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let mut own = self.address;
        if own.ip().is_unspecified() {
            own.set_ip(match own {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        // The thread looks whether it is to end when somebody connects.
        if TcpStream::connect_timeout(&own, Duration::from_secs(1)).is_ok()
            && let Some(accepting) = self.accepting.take()
        {
            drop(accepting.join());
        }
    }
}

fn accept<P: Fn() -> String + Send + Sync + 'static>(
    listener: &TcpListener,
    stop: &AtomicBool,
    page: &Arc<P>,
) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if stop.load(Ordering::Acquire) {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection for metrics");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (page, counted) = (page.clone(), open.clone());
        let started = thread::Builder::new()
            .name("metrics-peer".to_owned())
            .spawn(move || {
                // An error means that the client has gone.
                drop(converse(stream, &*page));
                counted.fetch_sub(1, Ordering::AcqRel);
            });
        if let Err(error) = started {
            open.fetch_sub(1, Ordering::AcqRel);
            tracing::error!(%error, "cannot start a thread for metrics");
        }
    }
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics { with_body: bool },
    Elsewhere,
    OtherMethod,
    Bad,
}

/// Reads a request's head; `None` while there is more to come.
fn parse(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(_) => return Some(Request::Bad),
    }
    let path = request.path.unwrap_or_default();
    let is_metrics = path.split('?').next() == Some("/metrics");
    Some(match (request.method, is_metrics) {
        (Some("GET"), true) => Request::Metrics { with_body: true },
        (Some("HEAD"), true) => Request::Metrics { with_body: false },
        (Some("GET" | "HEAD"), false) => Request::Elsewhere,
        _ => Request::OtherMethod,
    })
}

fn converse(mut stream: TcpStream, page: &dyn Fn() -> String) -> std::io::Result<()> {
    let deadline = Instant::now() + REQUEST_LIMIT;
    let mut head = Vec::new();
    let request = loop {
        if let Some(request) = parse(&head) {
            break request;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&bytes[..count]),
        }
    };
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    let plain = "text/plain; charset=utf-8";
    let (status, kind, body) = match request {
        Request::Metrics { .. } => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", page()),
        Request::Elsewhere => (
            "404 Not Found",
            plain,
            "The metrics are at /metrics.\n".to_owned(),
        ),
        Request::OtherMethod => (
            "405 Method Not Allowed\r\nAllow: GET, HEAD",
            plain,
            "Use GET.\n".to_owned(),
        ),
        Request::Bad => (
            "400 Bad Request",
            plain,
            "This is no HTTP/1 request.\n".to_owned(),
        ),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if request != (Request::Metrics { with_body: false }) {
        answer.push_str(&body);
    }
    stream.write_all(answer.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let all = Some(Request::Metrics { with_body: true });
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), all);
        assert_eq!(parse(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), all);
        let head = Some(Request::Metrics { with_body: false });
        assert_eq!(parse(b"HEAD /metrics HTTP/1.1\r\n\r\n"), head);
        assert_eq!(parse(b"GET / HTTP/1.1\r\n\r\n"), Some(Request::Elsewhere));
        assert_eq!(
            parse(b"POST /metrics HTTP/1.1\r\n\r\n"),
            Some(Request::OtherMethod)
        );
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost"), None);
        assert_eq!(parse(b"\x16\x03\x01\x02"), Some(Request::Bad));
        let endless = [b"GET /".as_slice(), &[b'a'; REQUEST_BYTES_MAX]].concat();
        assert_eq!(parse(&endless), Some(Request::Bad));
    }
}
