//! Connections to masters over TLS; those to an etcd begin alike.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_openssl::SslStream;
use hyper_util::rt::TokioIo;
use identity::{Credentials, Failure, Files, Identity, Role};
use openssl::ssl::SslConnector;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service, StdError};

use crate::connect::CONNECT_LIMIT;

/// What a connection is looked at for first: a frame's header (RFC 9113, section 4.1).
const FIRST_BYTES: usize = 9;

/// Makes connections to one master. The credentials are read anew for each, so that a connection that is lost comes
/// back with those that are there now.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    /// Host and port.
    pub(crate) address: String,
    pub(crate) files: Files,
}

impl Service<Uri> for Connector {
    type Response = Secured;
    type Error = StdError;
    type Future = BoxFuture<Secured, StdError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { address, files } = self.clone();
        Box::pin(async move { connect(&address, &files).await })
    }
}

/// A connection on which no handshake was made yet.
async fn begin(address: &str, connector: &SslConnector) -> Result<SslStream<TokioIo<TcpStream>>, StdError> {
    let ssl = connector.configure()?.into_ssl(host(address))?;
    let stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await??;
    stream.set_nodelay(true)?;
    Ok(SslStream::new(ssl, TokioIo::new(stream))?)
}

/// Who is at the other end, as its certificate proves.
fn theirs(stream: &SslStream<TokioIo<TcpStream>>) -> Result<Identity, Failure> {
    let theirs = Identity::of_peer(stream.ssl())
        .map_err(|error| Failure::new(format!("its certificate is none of a Redhare cluster: {error}")))?;
    theirs.ok_or_else(|| Failure::new("it shows no certificate"))
}

async fn connect(address: &str, files: &Files) -> Result<Secured, StdError> {
    let credentials = Credentials::load(files)?;
    let mut stream = begin(address, credentials.connector()).await?;
    if let Err(error) = Pin::new(&mut stream).connect().await {
        let verdict = stream.ssl().verify_result();
        return Err(Failure::of_handshake(&error, verdict, host(address), &credentials).into());
    }
    Failure::unless_master(&theirs(&stream)?, &credentials)?;
    // What the master makes of our certificate comes with its first bytes (RFC 8446, section 4.4.2), which it sends
    // without being asked (RFC 9113, section 3.4). Once we had written more, its alert might be lost with that.
    match Secured::after_first_bytes(stream, None).await {
        Ok(secured) => Ok(secured),
        Err(error) => Err(Failure::of_answer(&error.to_string(), &credentials).into()),
    }
}

/// As [`Connector`], for who has no certificate yet.
#[derive(Clone)]
pub(crate) struct Stranger {
    /// Host and port.
    pub(crate) address: String,
    pub(crate) connector: SslConnector,
    /// The master has to prove that it is one; otherwise it may be anybody.
    pub(crate) verifies: bool,
}

impl Service<Uri> for Stranger {
    type Response = Secured;
    type Error = StdError;
    type Future = BoxFuture<Secured, StdError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let stranger = self.clone();
        Box::pin(async move { meet(&stranger).await })
    }
}

async fn meet(stranger: &Stranger) -> Result<Secured, StdError> {
    let Stranger {
        address,
        connector,
        verifies,
    } = stranger;
    let mut stream = begin(address, connector).await?;
    if let Err(error) = Pin::new(&mut stream).connect().await {
        let verdict = stream.ssl().verify_result();
        return Err(Failure::of_unknown(&error, verdict, host(address)).into());
    }
    if *verifies {
        let theirs = theirs(&stream)?;
        if theirs.role != Role::Master {
            let (role, name) = (theirs.role, theirs.name);
            return Err(Failure::new(format!(
                "its certificate is that of {role} \"{name}\", not a master's; is this the port of a master?"
            ))
            .into());
        }
    }
    Ok(Secured {
        stream,
        first: [0; FIRST_BYTES],
        unread: 0..0,
    })
}

/// The host of `host:port`, as a certificate has it.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

async fn read_some(stream: &mut SslStream<TokioIo<TcpStream>>, into: &mut [u8]) -> io::Result<usize> {
    let mut stream = pin!(stream);
    poll_fn(|context| {
        let mut buffer = ReadBuf::new(into);
        match stream.as_mut().poll_read(context, buffer.unfilled()) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(buffer.filled().len())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A connection to somebody who has proved to be the one that is meant, and who takes us for who we are.
#[derive(Debug)]
pub struct Secured {
    stream: SslStream<TokioIo<TcpStream>>,
    first: [u8; FIRST_BYTES],
    /// Of `first`, what was not handed on yet.
    unread: std::ops::Range<usize>,
}

impl Secured {
    /// Waits for the first bytes on a connection whose handshake is done. They are not lost. Some servers write only when
    /// they are written to: after `limit` it goes on without; with none it waits as long as they take.
    ///
    /// # Errors
    /// The other end's alert, if our certificate was refused; or how else the connection ended.
    pub async fn after_first_bytes(
        mut stream: SslStream<TokioIo<TcpStream>>,
        limit: Option<Duration>,
    ) -> io::Result<Self> {
        let mut first = [0; FIRST_BYTES];
        let reading = read_some(&mut stream, &mut first);
        let length = match limit {
            None => reading.await?,
            Some(limit) => match timeout(limit, reading).await {
                Ok(length) => length?,
                Err(_) => {
                    let unread = 0..0;
                    return Ok(Self {
                        stream,
                        first,
                        unread,
                    });
                }
            },
        };
        match length {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it closed the connection",
            )),
            length => Ok(Self {
                stream,
                first,
                unread: 0..length,
            }),
        }
    }
}

impl Read for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.unread.len().min(buffer.remaining());
        let from = self.unread.start;
        buffer.put_slice(&self.first[from..from + length]);
        self.unread.start += length;
        Poll::Ready(Ok(()))
    }
}

impl Write for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_what_a_certificate_names() {
        for (address, expected) in [
            ("a.b:1", "a.b"),
            ("192.0.2.1:7400", "192.0.2.1"),
            ("[::1]:7", "::1"),
        ] {
            assert_eq!(host(address), expected);
        }
    }
}
