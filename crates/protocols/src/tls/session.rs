//! One end of a TLS connection, without I/O.
//!
//! What came from the peer goes in by [`Session::feed`], what is for the peer comes out by [`Session::take_outgoing`]. In
//! between, OpenSSL reads and writes the two halves of a [`Pipe`]. Cost: each byte is copied once into the pipe and once out of
//! it, beside its encryption; a record holds 16 KiB at most.
//!
//! What is held is bounded: a caller that feeds what it received and then reads until [`Read::Blocked`] leaves nothing in
//! the pipe (OpenSSL keeps an unfinished record, 16 KiB and a little), and answers that OpenSSL gives by itself, such as
//! KeyUpdates, end the session once [`UNSENT_BYTES_MAX`] of them wait.

use std::io;
use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::ssl::{
    ClientHelloResponse, ErrorCode, ShutdownState, Ssl, SslAlert, SslContext, SslContextBuilder, SslMethod,
    SslMode, SslOptions, SslSessionCacheMode, SslStream, SslVerifyMode, SslVersion,
};

use super::ffi::{self, Offer};
use super::psk::Psk;
use crate::auth::{CryptoError, HashFunction};

const SUITES: &str = "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256";
/// Groups whose arithmetic takes well below a millisecond: it is done on the reactor.
const GROUPS: &str = "X25519:P-256:P-384";
/// Identities of one ClientHello that are looked at.
const IDENTITIES_MAX: usize = 4;
/// A longer identity holds something else than two names and a digest, in bytes.
const IDENTITY_BYTES_MAX: usize = 1024;
/// What may wait for the peer while it is being read from, in bytes: more than a handshake has, less than many KeyUpdates.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// What a direction may take before its keys are renewed, in bytes. AES-GCM's limit for one key is 2^24.5 full records, 362 GiB
/// (RFC 8446, section 5.5).
const RENEW_BYTES: u64 = 256 << 30;

/// Why a TLS connection ended. No text has a key in it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The client has no key that we know.
    #[error(
        "the host offers no key that is known here (it named {offered}); give the same key to both ends, for the same \
         names of host and subsystem"
    )]
    UnknownIdentity {
        /// What it named, as quoted text.
        offered: String,
    },
    /// OpenSSL found something wrong, or the peer said so by an alert.
    #[error("{what}: {reasons}")]
    Failed {
        /// What was being done.
        what: &'static str,
        /// OpenSSL's words.
        reasons: String,
    },
    /// The peer makes us answer and takes no answers.
    #[error("the peer asked for {0} bytes of answers without taking them")]
    Flooded(usize),
    /// The handshake ended well without our key.
    #[error("the peer did not use the key")]
    WithoutKey,
    /// The library could not do its work.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

impl From<ErrorStack> for TlsError {
    fn from(error: ErrorStack) -> Self {
        Self::Crypto(error.into())
    }
}

/// Finds the key of an identity that a client names.
pub type Find = dyn Fn(&str) -> Option<Psk> + Send + Sync;

/// What the servers of one listener share.
#[derive(Clone)]
pub struct Acceptor(SslContext);

impl Acceptor {
    /// For servers whose clients' keys `find` knows. It is called during a handshake, and must not block.
    ///
    /// # Errors
    /// If the library cannot be set up.
    pub fn new(find: Arc<Find>) -> Result<Self, CryptoError> {
        let mut context = context()?;
        // None is given out, so none can come back.
        context.set_num_tickets(0)?;
        ffi::find_given_psk(&mut context);
        context.set_client_hello_callback(move |ssl, alert| {
            let offered = ffi::offered_psks(ssl).map_or(Vec::new(), identities);
            let known = offered.iter().find_map(|identity| find(identity));
            let Some(psk) = known else {
                let named = if offered.is_empty() {
                    "none".to_owned()
                } else {
                    format!("{offered:?}")
                };
                ffi::set_offer(ssl, Offer::Refused(named))?;
                *alert = SslAlert::UNKNOWN_PSK_IDENTITY;
                return Err(ErrorStack::get());
            };
            // The suite is chosen before the key is looked at, and would otherwise be the client's favourite.
            ssl.set_ciphersuites(suite(psk.hash))?;
            ffi::set_offer(ssl, Offer::Taken(psk))?;
            Ok(ClientHelloResponse::SUCCESS)
        });
        Ok(Self(context.build()))
    }

    /// A server for a client that has just connected.
    ///
    /// # Errors
    /// If the library has no memory for it.
    pub fn accept(&self) -> Result<Session, CryptoError> {
        let mut ssl = Ssl::new(&self.0)?;
        ssl.set_accept_state();
        Session::new(ssl)
    }
}

/// What both ends have in common.
fn context() -> Result<SslContextBuilder, ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_ciphersuites(SUITES)?;
    context.set_groups_list(GROUPS)?;
    context.set_options(SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION | SslOptions::NO_COMPRESSION);
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    // An idle connection holds no record buffers.
    context.set_mode(SslMode::RELEASE_BUFFERS);
    Ok(context)
}

/// The suite of a key.
const fn suite(hash: HashFunction) -> &'static str {
    match hash {
        HashFunction::Sha256 => "TLS_AES_128_GCM_SHA256",
        _ => "TLS_AES_256_GCM_SHA384",
    }
}

/// The identities in a `pre_shared_key` extension of a ClientHello (RFC 8446, section 4.2.11), as far as they are text of a
/// length that could be one of ours, and not beyond the first few.
fn identities(extension: &[u8]) -> Vec<&str> {
    let mut found = Vec::new();
    let Some(mut rest) = counted(extension).map(|(list, _binders)| list) else {
        return found;
    };
    while found.len() < IDENTITIES_MAX
        && let Some((identity, behind)) = counted(rest)
    {
        if identity.len() <= IDENTITY_BYTES_MAX
            && let Ok(text) = std::str::from_utf8(identity)
        {
            found.push(text);
        }
        // The ticket's age.
        rest = behind.get(4..).unwrap_or_default();
    }
    found
}

/// Bytes behind their count of 16 bits, and what follows them.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*count)))
}

/// What OpenSSL reads from and writes to.
#[derive(Default)]
struct Pipe {
    incoming: Vec<u8>,
    /// Of it, what has been read.
    taken: usize,
    outgoing: Vec<u8>,
}

impl io::Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.incoming[self.taken..];
        let count = rest.len().min(into.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        if self.taken == self.incoming.len() {
            self.incoming.clear();
            self.taken = 0;
        }
        Ok(count)
    }
}

impl io::Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing before more has been fed.
    Blocked,
    /// The peer has said that nothing more comes (close_notify).
    Closed,
}

/// See the module.
pub struct Session {
    stream: SslStream<Pipe>,
    /// Of the end that sees to the renewal of keys.
    renewal: Option<Renewal>,
}

/// What was encrypted with the keys of now.
struct Renewal {
    limit_bytes: u64,
    written_bytes: u64,
    read_bytes: u64,
}

impl Renewal {
    fn after(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            written_bytes: 0,
            read_bytes: 0,
        }
    }

    /// Whether it is time, with so many bytes more; counts anew if so.
    fn is_due(&mut self, bytes: usize) -> bool {
        self.written_bytes += bytes as u64;
        let due = self.written_bytes.max(self.read_bytes) > self.limit_bytes;
        if due {
            *self = Self::after(self.limit_bytes);
        }
        due
    }
}

impl Session {
    /// A client that uses this key and no other, and takes only a server that has it.
    ///
    /// # Errors
    /// If the library cannot be set up.
    pub fn connect(psk: Psk) -> Result<Self, CryptoError> {
        let mut context = context()?;
        context.set_ciphersuites(suite(psk.hash))?;
        // A certificate is never believed, since none is trusted: the server must have the key.
        context.set_verify(SslVerifyMode::PEER);
        ffi::use_given_psk(&mut context);
        let mut ssl = Ssl::new(&context.build())?;
        ffi::set_offer(&mut ssl, Offer::Taken(psk))?;
        ssl.set_connect_state();
        let mut session = Self::new(ssl)?;
        session.renew_after(RENEW_BYTES);
        Ok(session)
    }

    fn new(ssl: Ssl) -> Result<Self, CryptoError> {
        Ok(Self {
            stream: SslStream::new(ssl, Pipe::default())?,
            renewal: None,
        })
    }

    /// Has the keys of both directions renewed whenever one has taken so many bytes.
    pub(super) fn renew_after(&mut self, bytes: u64) {
        self.renewal = Some(Renewal::after(bytes));
    }

    /// Takes in what came from the peer.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.stream.get_mut().incoming.extend_from_slice(bytes);
    }

    /// Goes on with the handshake; true once it has ended well. Whatever it says, there may be something for the peer.
    ///
    /// # Errors
    /// If the ends do not fit, the peer proves nothing, or sends what is no handshake.
    pub fn handshake(&mut self) -> Result<bool, TlsError> {
        forget_errors();
        match self.stream.do_handshake() {
            Ok(()) if self.identity().is_some() && self.stream.ssl().session_reused() => Ok(true),
            // Without the key there is a certificate, and none passes; so it does not come to this.
            Ok(()) => Err(TlsError::WithoutKey),
            Err(error) if error.code() == ErrorCode::WANT_READ => Ok(false),
            Err(error) => match ffi::offer(self.stream.ssl()) {
                Some(Offer::Refused(offered)) => Err(TlsError::UnknownIdentity {
                    offered: offered.clone(),
                }),
                _ => Err(failed("the handshake failed", &error)),
            },
        }
    }

    /// The identity of the key that the handshake uses, once it has ended: what the peer has proved.
    pub fn identity(&self) -> Option<&str> {
        match ffi::offer(self.stream.ssl()) {
            Some(Offer::Taken(psk)) if self.stream.ssl().is_init_finished() => Some(psk.identity()),
            _ => None,
        }
    }

    /// The suite's name, for people.
    pub fn suite(&self) -> &'static str {
        self.stream
            .ssl()
            .current_cipher()
            .map_or("none", |cipher| cipher.name())
    }

    /// Decrypts what was fed, one record at most, into `into`.
    ///
    /// # Errors
    /// If a record is not the peer's, or the peer ended the connection by an alert.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Read, TlsError> {
        forget_errors();
        let result = self.stream.ssl_read(into);
        let unsent = self.stream.get_ref().outgoing.len();
        match result {
            Ok(count) => {
                if let Some(renewal) = &mut self.renewal {
                    renewal.read_bytes += count as u64;
                }
                Ok(Read::Bytes(count))
            }
            Err(error) if error.code() == ErrorCode::ZERO_RETURN => Ok(Read::Closed),
            Err(error) if error.code() == ErrorCode::WANT_READ && unsent > UNSENT_BYTES_MAX => {
                Err(TlsError::Flooded(unsent))
            }
            Err(error) if error.code() == ErrorCode::WANT_READ => Ok(Read::Blocked),
            Err(error) => Err(failed("the connection broke off", &error)),
        }
    }

    /// Encrypts bytes for the peer: records of 16 KiB, the last one shorter. A client has the keys of both directions renewed
    /// before one has taken 256 GiB and what of that direction was on its way meanwhile.
    ///
    /// # Errors
    /// If the connection has failed.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        forget_errors();
        if let Some(renewal) = &mut self.renewal
            && renewal.is_due(bytes.len())
        {
            ffi::renew_keys(self.stream.ssl())?;
        }
        while !bytes.is_empty() {
            match self.stream.ssl_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) => return Err(failed("nothing could be sent", &error)),
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more comes. Nothing can be written after it.
    pub fn close(&mut self) {
        forget_errors();
        if !self.stream.get_shutdown().contains(ShutdownState::SENT) {
            // A connection that has failed says nothing more.
            let _ = self.stream.shutdown();
        }
    }

    /// What is for the peer, in bytes.
    pub fn outgoing_bytes(&self) -> usize {
        self.stream.get_ref().outgoing.len()
    }

    /// Appends what is for the peer to `into`.
    pub fn take_outgoing(&mut self, into: &mut Vec<u8>) {
        into.append(&mut self.stream.get_mut().outgoing);
    }
}

/// OpenSSL reads the thread's list of errors to say how a call ended: what others left there must not be taken for ours.
fn forget_errors() {
    drop(ErrorStack::get());
}

fn failed(what: &'static str, error: &openssl::ssl::Error) -> TlsError {
    let reasons: Vec<_> = error
        .ssl_error()
        .into_iter()
        .flat_map(ErrorStack::errors)
        .filter_map(openssl::error::Error::reason)
        .collect();
    let reasons = if reasons.is_empty() {
        "the peer's bytes make no sense".to_owned()
    } else {
        reasons.join(", ")
    };
    TlsError::Failed { what, reasons }
}
