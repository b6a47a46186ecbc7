//! The handshake, before the first PDU.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use protocols::tls::{Acceptor, DeriveError, Identity, Psk, Session, TlsError};
use reactor::net::{TcpReceiver, TcpStream};
use reactor::time;

use super::channel::{SecureReceiver, SecureSender};
use super::{Proven, Receiver, Sender, Stream};

/// The type of a handshake record, with which a client begins (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum SecureError {
    /// The connection was lost meanwhile.
    #[error("the connection was lost during the TLS handshake: {0}")]
    Socket(#[from] io::Error),
    /// The peer went.
    #[error(
        "the peer closed the connection during the TLS handshake: does it take TLS there, and does it know this host's \
         key? See its log"
    )]
    Closed,
    /// The host speaks something else.
    #[error(
        "the host does not begin with TLS (its first byte is {first:02x}h), which is required here: let it connect with \
         TLS (nvme connect --tls), or use another listener"
    )]
    NotTls {
        /// What came first.
        first: u8,
    },
    /// TLS itself.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no key for these names.
    #[error(transparent)]
    Derive(#[from] DeriveError),
    /// Too slow.
    #[error("the TLS handshake did not end within {limit:?}: check the network and the peer's load")]
    TimedOut {
        /// How long we waited.
        limit: Duration,
    },
}

/// Lets a host prove who it is, within `limit`.
pub(crate) async fn accept(
    stream: TcpStream,
    acceptor: &Acceptor,
    limit: Duration,
) -> Result<Stream, SecureError> {
    let session = acceptor.accept().map_err(TlsError::from)?;
    let mut stream = within(limit, shake(stream, session, true)).await?;
    let identity = stream.1.borrow().identity().map(str::to_owned);
    // The acceptor takes only keys of identities that it could read.
    stream.0.proven = identity
        .as_deref()
        .and_then(Identity::parse)
        .map(|identity| Proven {
            host: identity.host.to_owned(),
            subsystem: identity.subsystem.to_owned(),
        });
    match stream.0.proven {
        Some(_) => Ok(stream.0),
        None => Err(TlsError::WithoutKey.into()),
    }
}

/// Proves to a target who we are, and lets it prove that it has the same key, within `limit`.
pub(crate) async fn connect(stream: TcpStream, psk: Psk, limit: Duration) -> Result<Stream, SecureError> {
    let session = Session::connect(psk).map_err(TlsError::from)?;
    let (stream, _) = within(limit, shake(stream, session, false)).await?;
    Ok(stream)
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, SecureError>>,
) -> Result<T, SecureError> {
    time::timeout(limit, work)
        .await
        .unwrap_or(Err(SecureError::TimedOut { limit }))
}

type Shared = Rc<RefCell<Session>>;

async fn shake(
    stream: TcpStream,
    session: Session,
    is_target: bool,
) -> Result<(Stream, Shared), SecureError> {
    let (peer, local) = (stream.peer_address(), stream.local_address());
    let is_local = stream.is_local();
    let session = Rc::new(RefCell::new(session));
    let (mut receiver, tcp) = stream.split();
    let mut sender = SecureSender::new(tcp, session.clone());
    if is_target {
        feed(&mut receiver, &session, Some(HANDSHAKE_RECORD)).await?;
    }
    loop {
        let progress = session.borrow_mut().handshake();
        // After an error it is the alert that says so.
        let sent = sender.send_outgoing().await;
        match progress {
            Ok(true) => {
                sent?;
                break;
            }
            Ok(false) => sent?,
            Err(error) => {
                sender.close().await;
                return Err(error.into());
            }
        }
        feed(&mut receiver, &session, None).await?;
    }
    tracing::debug!(%peer, suite = session.borrow().suite(), identity = session.borrow().identity(), "TLS begins");
    let receiver = SecureReceiver::new(receiver, session.clone(), peer);
    let stream = Stream {
        receiver: Receiver::Secure(Box::new(receiver)),
        sender: Sender::Secure(Box::new(sender)),
        peer,
        local,
        is_local,
        proven: None,
    };
    Ok((stream, session))
}

/// Waits for bytes and gives them to the session; the very first may have to be of one value.
async fn feed(receiver: &mut TcpReceiver, session: &Shared, first: Option<u8>) -> Result<(), SecureError> {
    let bytes = receiver.receive().await?.ok_or(SecureError::Closed)?;
    if let (Some(wanted), Some(first)) = (first, bytes.first().copied())
        && first != wanted
    {
        return Err(SecureError::NotTls { first });
    }
    session.borrow_mut().feed(&bytes);
    Ok(())
}
