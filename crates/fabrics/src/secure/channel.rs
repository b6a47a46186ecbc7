//! The two directions of a TLS connection, over the reactor's.
//!
//! They share one [`Session`]: what OpenSSL has to say while bytes are received (an alert, the answer to a KeyUpdate) waits
//! in it and leaves with what is sent next, as RFC 8446, section 4.6.3, allows.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use protocols::tls::{Read, Session, TlsError};
use reactor::net::{SendBatch, TcpReceiver, TcpSender};

/// The content of a record, at most (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;
/// How much is encrypted before it is sent: a batch may be larger, and would lie in memory twice.
pub(super) const PIECE_BYTES: usize = 256 << 10;

pub(crate) struct SecureReceiver {
    tcp: TcpReceiver,
    session: Rc<RefCell<Session>>,
    plain: Vec<u8>,
    peer: SocketAddr,
    ended: bool,
}

impl SecureReceiver {
    pub(super) fn new(tcp: TcpReceiver, session: Rc<RefCell<Session>>, peer: SocketAddr) -> Self {
        Self {
            tcp,
            session,
            plain: vec![0; RECORD_BYTES],
            peer,
            ended: false,
        }
    }

    /// The next record's content; `None` at the end of the stream.
    pub(super) async fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        let count = loop {
            match self.read()? {
                Read::Bytes(count) => break count,
                Read::Closed => return Ok(None),
                Read::Blocked => {}
            }
            match self.tcp.receive().await? {
                Some(bytes) => self.session.borrow_mut().feed(&bytes),
                None => {
                    // The PDUs have lengths of their own: nothing that was cut is taken for whole.
                    tracing::debug!(peer = %self.peer, "the peer closed the connection without saying so (close_notify)");
                    return Ok(None);
                }
            }
        };
        Ok(Some(&self.plain[..count]))
    }

    /// As [`SecureReceiver::receive`] for what has already arrived. After an error the stream has ended.
    pub(super) fn try_receive(&mut self) -> Option<&[u8]> {
        let count = loop {
            match self.read() {
                Ok(Read::Bytes(count)) => break count,
                Ok(Read::Closed) | Err(_) => return None,
                Ok(Read::Blocked) => {}
            }
            let bytes = self.tcp.try_receive()?;
            self.session.borrow_mut().feed(&bytes);
        };
        Some(&self.plain[..count])
    }

    fn read(&mut self) -> io::Result<Read> {
        if self.ended {
            return Ok(Read::Closed);
        }
        let read = self.session.borrow_mut().read(&mut self.plain);
        match read {
            Ok(Read::Closed) => self.ended = true,
            Ok(_) => {}
            Err(error) => {
                self.ended = true;
                tracing::warn!(peer = %self.peer, %error, "TLS failed: the connection ends");
                return Err(io::Error::other(error));
            }
        }
        Ok(read.unwrap_or(Read::Closed))
    }
}

pub(crate) struct SecureSender {
    tcp: TcpSender,
    session: Rc<RefCell<Session>>,
    /// Pieces smaller than a record, put together.
    record: Vec<u8>,
    out: SendBatch,
}

impl SecureSender {
    pub(super) fn new(tcp: TcpSender, session: Rc<RefCell<Session>>) -> Self {
        Self {
            tcp,
            session,
            record: Vec::with_capacity(RECORD_BYTES),
            out: SendBatch::new(),
        }
    }

    /// See [`super::Sender::send`].
    pub(super) async fn send(&mut self, mut batch: SendBatch) -> (io::Result<()>, SendBatch) {
        let result = self.encrypt_and_send(&mut batch).await;
        batch.clear();
        (result, batch)
    }

    async fn encrypt_and_send(&mut self, batch: &mut SendBatch) -> io::Result<()> {
        for piece in batch.pieces() {
            let mut rest = piece;
            while !rest.is_empty() {
                let is_direct = self.record.is_empty() && rest.len() >= RECORD_BYTES;
                let count = if is_direct {
                    (rest.len() - rest.len() % RECORD_BYTES).min(PIECE_BYTES)
                } else {
                    rest.len().min(RECORD_BYTES - self.record.len())
                };
                let (now, later) = rest.split_at(count);
                rest = later;
                if is_direct {
                    self.session.borrow_mut().write(now).map_err(broken)?;
                } else {
                    self.record.extend_from_slice(now);
                    if self.record.len() == RECORD_BYTES {
                        self.write_record()?;
                    }
                }
                let waits = self.session.borrow().outgoing_bytes();
                if waits >= PIECE_BYTES {
                    self.send_outgoing().await?;
                }
            }
        }
        self.write_record()?;
        self.send_outgoing().await
    }

    fn write_record(&mut self) -> io::Result<()> {
        self.session.borrow_mut().write(&self.record).map_err(broken)?;
        self.record.clear();
        Ok(())
    }

    /// Sends what the session has for the peer.
    pub(super) async fn send_outgoing(&mut self) -> io::Result<()> {
        let mut out = std::mem::take(&mut self.out);
        self.session.borrow_mut().take_outgoing(out.headers());
        if out.is_empty() {
            self.out = out;
            return Ok(());
        }
        let (result, emptied) = self.tcp.send(out).await;
        self.out = emptied;
        result
    }

    /// Says that nothing more comes, and ends both directions.
    pub(super) async fn close(&mut self) {
        self.session.borrow_mut().close();
        // Whoever does not take it finds the connection ended all the same.
        let _ = self.send_outgoing().await;
        self.tcp.shutdown();
    }
}

fn broken(error: TlsError) -> io::Error {
    io::Error::other(error)
}
