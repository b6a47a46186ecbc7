//! Who is who in a cluster: its certificate authority, certificates with roles, and the TLS contexts made of them.
//!
//! - [`Authority`]: a directory with the cluster's root key; it issues certificates and is rotated.
//! - [`Identity`]: what a certificate says of its holder. The role is the subject's organization (`O=redhare:node`), as
//!   Kubernetes has groups; the name its common name; the cluster a URI among the alternative names (`urn:uuid:`,
//!   RFC 9562). A master's has the addresses by which it is reached among them, too.
//! - [`Files`] and [`Credentials`]: a certificate, its key and the authorities to trust, as PEM files.
//! - [`Issuer`]: what masters issue certificates with, for nodes and clients that join or renew theirs; [`JoinToken`] and
//!   [`Joining`]: what those have in hand.
//! - [`data_path`]: names and secrets of who connects to nodes.
//! - [`Failure`]: why two ends do not trust each other, in words that say what to do.
//!
//! All cryptography is OpenSSL's, as for TLS elsewhere (`docs/decisions/0051-tls-over-bytes-in-memory.md`); no I/O but
//! on files, and no clock but the system's, since certificates end by the calendar.

mod authority;
pub mod data_path;
mod durable;
mod failure;
mod files;
mod holder;
mod issuer;
mod joining;
mod making;

pub use authority::{Authority, AuthorityError, Issue, Issued, Summary, Validity, summary};
pub use failure::{Failure, reasons};
pub use files::{Credentials, CredentialsError, Files, Stamp, Watched};
pub use holder::{Cluster, Identity, IdentityError, ParseClusterError, ParseRoleError, Role};
pub use issuer::{Granted, Issuer, IssuerError, requested_fingerprint};
pub use joining::{
    JoinToken, Joining, JoiningError, ParseTokenError, ParseTokenIdError, TokenId, fingerprint, roots_text,
    unverified_connector,
};

/// Seconds since 1970 (UTC), as certificates count.
pub fn unix_now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}
