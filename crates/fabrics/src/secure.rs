//! What carries a queue's bytes: a connection as it is, or one over TLS 1.3 (NVMe over TCP transport specification 1.0c,
//! section 3.6.1; `docs/decisions/0051`).
//!
//! [`accept`] and [`connect`] do the handshake on the reactor's own sockets; after it, [`Receiver`] and [`Sender`] look the
//! same to a queue whatever they are. A plain connection costs one comparison a batch for that.
//!
//! What a TLS connection holds is bounded: a record of 16 KiB each way, [`channel::PIECE_BYTES`] of what is being sent, and
//! OpenSSL's state.

mod channel;
mod handshake;

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use protocols::tls::ConfiguredPsk;
use reactor::net::{ReceivedBytes, SendBatch, TcpReceiver, TcpSender, TcpStream};

use channel::{SecureReceiver, SecureSender};
pub use handshake::SecureError;
pub(crate) use handshake::{accept, connect};

/// A pre-shared key with the name under which people know it. Nothing secret is in its Debug output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPsk {
    /// Name of the key.
    pub key_name: String,
    /// The key.
    pub psk: Arc<ConfiguredPsk>,
}

/// Whom a handshake proved: the host, as an allowed one of this subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proven {
    pub(crate) host: String,
    pub(crate) subsystem: String,
}

/// A connection that is ready for the first PDU.
pub(crate) struct Stream {
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// Whether the peer is a process of this machine, on a Unix socket.
    pub(crate) is_local: bool,
    /// Of a TLS connection that a host made.
    pub(crate) proven: Option<Proven>,
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        let (peer, local) = (stream.peer_address(), stream.local_address());
        let is_local = stream.is_local();
        let (receiver, sender) = stream.split();
        Self {
            receiver: Receiver::Plain(receiver),
            sender: Sender::Plain(sender),
            peer,
            local,
            is_local,
            proven: None,
        }
    }
}

/// The receiving direction.
pub(crate) enum Receiver {
    Plain(TcpReceiver),
    Secure(Box<SecureReceiver>),
}

/// Bytes that arrived.
pub(crate) enum Received<'a> {
    Plain(ReceivedBytes),
    Secure(&'a [u8]),
}

impl Deref for Received<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Secure(bytes) => bytes,
        }
    }
}

impl Receiver {
    /// The next bytes, at least one; `None` at the end of the stream. Safe to drop: no bytes are lost.
    pub(crate) async fn receive(&mut self) -> io::Result<Option<Received<'_>>> {
        match self {
            Self::Plain(receiver) => Ok(receiver.receive().await?.map(Received::Plain)),
            Self::Secure(receiver) => Ok(receiver.receive().await?.map(Received::Secure)),
        }
    }

    /// As [`Receiver::receive`] for what has already arrived: `None` if that is nothing, or cannot be read.
    pub(crate) fn try_receive(&mut self) -> Option<Received<'_>> {
        match self {
            Self::Plain(receiver) => receiver.try_receive().map(Received::Plain),
            Self::Secure(receiver) => receiver.try_receive().map(Received::Secure),
        }
    }
}

/// The sending direction.
pub(crate) enum Sender {
    Plain(TcpSender),
    Secure(Box<SecureSender>),
}

impl Sender {
    /// Sends the whole batch and returns it emptied. After an error, or if the future is dropped, any part of it may have
    /// gone out: close the connection.
    pub(crate) async fn send(&mut self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        match self {
            Self::Plain(sender) => sender.send(batch).await,
            Self::Secure(sender) => sender.send(batch).await,
        }
    }

    /// Ends both directions; over TLS the peer is told before.
    pub(crate) async fn close(&mut self) {
        match self {
            Self::Plain(sender) => sender.shutdown(),
            Self::Secure(sender) => sender.close().await,
        }
    }
}
