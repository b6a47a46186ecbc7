//! TLS 1.3 for NVMe/TCP with pre-shared keys (NVMe over TCP transport specification 1.0c, section 3.6.1; RFC 8446).
//!
//! A key is handed over as `NVMeTLSkey-1:hh:base64:` ([`ConfiguredPsk`]). From it, and from the names of host and
//! subsystem, both ends derive what TLS takes ([`Psk`]); its identity travels in the clear and names host and subsystem,
//! so that the handshake proves who the host is. There are no certificates.
//!
//! [`Session`] is one end of a connection: bytes go in and come out, and nothing here knows a socket. The records, the
//! handshake and the arithmetic are OpenSSL's. `ffi` is the only part with unsafe code: the crate `openssl` does not have
//! the callbacks for TLS 1.3 PSKs.
//!
//! | | |
//! | --- | --- |
//! | version | 1.3 only |
//! | suites | TLS_AES_128_GCM_SHA256 and TLS_AES_256_GCM_SHA384; the one whose hash is the key's |
//! | key exchange | psk_dhe_ke only, over X25519, P-256 or P-384 |
//! | off | certificates, tickets, resumption, early data, renegotiation |

mod ffi;
mod psk;
mod session;

pub use psk::{ConfiguredPsk, DeriveError, Identity, IdentityVersion, Psk, PskError};
pub use session::{Acceptor, Find, Read, Session, TlsError};

#[cfg(test)]
mod tests;
