//! Connections that come in: who is at the other end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_openssl::SslStream;
use hyper_util::rt::TokioIo;
use identity::{Credentials, Identity, Watched};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Connections that wait to be served.
const WAITING: usize = 64;
/// Handshakes at a time; others wait in the kernel's queue.
const HANDSHAKES_MAX: usize = 256;
/// How long one may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// A connection from which nothing has come for so long is closed: whoever speaks HTTP/2 answers to the pings of
/// [`KEEPALIVE_INTERVAL`], and who does not has nothing to say here.
const SILENT_LIMIT: Duration = Duration::from_secs(30);
/// How often each connection is asked whether its peer is there still.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// In what time it has to say so.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the system gave no connection, which it does when files are short.
const PAUSE: Duration = Duration::from_millis(100);
/// The first byte of a TLS connection: a handshake record (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// From where.
    pub(crate) address: SocketAddr,
    pub(crate) who: Who,
}

/// What is known of who calls.
#[derive(Clone, Debug)]
pub(crate) enum Who {
    /// This master has no credentials: it asks nobody.
    Anyone,
    /// It has, and the caller speaks plainly.
    Plain,
    /// No certificate was shown.
    Unnamed,
    /// One was that says nothing to us, and why.
    Strange(Arc<str>),
    /// One of our authority, which was proved.
    Holder(Arc<Identity>),
}

/// An accepted connection.
pub(crate) struct Connection {
    stream: Stream,
    caller: Caller,
    silence: Silence,
}

/// For how long nothing has come.
struct Silence {
    limit: Duration,
    heard: Instant,
    /// Looks again whether it is too long.
    look: Pin<Box<Sleep>>,
}

impl Silence {
    fn new(limit: Duration) -> Self {
        let look = Box::pin(tokio::time::sleep(limit));
        let heard = Instant::now();
        Self { limit, heard, look }
    }

    /// Nothing has come yet; an error once that has lasted too long.
    fn lasts(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.look.as_mut().poll(context).is_ready() {
            let until = self.heard + self.limit;
            if Instant::now() >= until {
                let why = format!("the caller has said nothing for {} s", self.limit.as_secs());
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            self.look.as_mut().reset(until);
        }
        Poll::Pending
    }
}

impl Connection {
    fn new(stream: Stream, caller: Caller, limit: Duration) -> Self {
        Self {
            stream,
            caller,
            silence: Silence::new(limit),
        }
    }
}

enum Stream {
    Plain(TcpStream),
    // As tokio has it; inside as hyper has it.
    Secure(Box<TokioIo<SslStream<TokioIo<TcpStream>>>>),
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

/// The connections that come in, each once it is known who calls. Ends when the stream is dropped.
pub(crate) fn open(
    listener: TcpListener,
    credentials: Option<Arc<Watched>>,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let turns = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        loop {
            let turn = turns.clone().acquire_owned().await;
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted; raise the limit of open files");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (sender, credentials) = (sender.clone(), credentials.clone());
            tokio::spawn(async move {
                let meeting = tokio::time::timeout(HANDSHAKE_LIMIT, meet(stream, address, credentials));
                let outcome = meeting
                    .await
                    .unwrap_or_else(|_| Err("it took too long".to_owned()));
                drop(turn);
                match outcome {
                    // Nobody takes it once the master ends.
                    Ok(connection) => drop(sender.send(Ok(connection)).await),
                    Err(why) => tracing::info!(%address, "a caller was not let in: {why}"),
                }
            });
        }
    });
    ReceiverStream::new(receiver)
}

async fn meet(
    stream: TcpStream,
    address: SocketAddr,
    credentials: Option<Arc<Watched>>,
) -> Result<Connection, String> {
    let text = |error: io::Error| error.to_string();
    stream.set_nodelay(true).map_err(text)?;
    let plain = |stream, who| Connection::new(Stream::Plain(stream), Caller { address, who }, SILENT_LIMIT);
    let Some(watched) = credentials else {
        return Ok(plain(stream, Who::Anyone));
    };
    let mut first = [0];
    stream.peek(&mut first).await.map_err(text)?;
    if first[0] != HANDSHAKE {
        // Every call is refused, with words that a plain client can show.
        return Ok(plain(stream, Who::Plain));
    }
    let (credentials, error) = watched.current();
    if let Some(error) = error {
        tracing::warn!(%error, "the new credentials cannot be used: this master goes on with those it has");
    }
    secure(stream, address, &credentials).await
}

async fn secure(
    stream: TcpStream,
    address: SocketAddr,
    credentials: &Credentials,
) -> Result<Connection, String> {
    let ssl = openssl::ssl::Ssl::new(credentials.acceptor().context());
    let ssl = ssl.map_err(|error| error.to_string())?;
    let mut stream = SslStream::new(ssl, TokioIo::new(stream)).map_err(|error| error.to_string())?;
    if let Err(error) = Pin::new(&mut stream).accept().await {
        let verdict = stream.ssl().verify_result();
        return Err(match verdict.as_raw() {
            0 => error.to_string(),
            _ => format!("its certificate is not believed: {}", verdict.error_string()),
        });
    }
    let who = match Identity::of_peer(stream.ssl()) {
        Ok(None) => Who::Unnamed,
        Ok(Some(identity)) => Who::Holder(Arc::new(identity)),
        Err(error) => Who::Strange(error.to_string().into()),
    };
    let stream = Stream::Secure(Box::new(TokioIo::new(stream)));
    Ok(Connection::new(stream, Caller { address, who }, SILENT_LIMIT))
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Secure(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if read.is_pending() {
            return self.silence.lasts(context);
        }
        self.silence.heard = Instant::now();
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Secure(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Secure(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Secure(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Secure(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Secure(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn who_says_nothing_is_not_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, address) = listener.accept().await.unwrap();
        let who = Caller {
            address,
            who: Who::Plain,
        };
        let limit = Duration::from_millis(400);
        let mut connection = Connection::new(Stream::Plain(stream), who, limit);
        let began = Instant::now();
        let speaks = tokio::spawn(async move {
            for _ in 0..4 {
                tokio::time::sleep(limit / 2).await;
                caller.write_all(b"x").await.unwrap();
            }
            caller
        });
        let mut heard = [0; 4];
        connection.read_exact(&mut heard).await.unwrap();
        assert!(began.elapsed() > limit, "what it says keeps it");
        let _caller = speaks.await.unwrap();
        let error = connection.read(&mut heard).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
