//! Why two ends do not trust each other.

use std::fmt;

use openssl::ssl;
use openssl::x509::X509VerifyResult;

use crate::{Credentials, Identity, Role};

/// Why a connection to a master came to nothing, complete in itself: what, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// What OpenSSL says of a chain (x509_vfy.h); numbers that distributions have had since 1.1.
mod verify {
    pub(super) const NOT_YET_VALID: i32 = 9;
    pub(super) const HAS_EXPIRED: i32 = 10;
    pub(super) const INVALID_PURPOSE: i32 = 26;
    pub(super) const HOSTNAME_MISMATCH: i32 = 62;
    pub(super) const ADDRESS_MISMATCH: i32 = 64;
    /// Of an authority that is not among those trusted: not found, signed by itself, signature wrong.
    pub(super) const UNKNOWN: [i32; 6] = [2, 7, 18, 19, 20, 21];
}

impl Failure {
    /// Of a handshake with the master at `host` that failed. `said` is OpenSSL's verdict on its certificate.
    pub fn of_handshake(error: &ssl::Error, said: X509VerifyResult, host: &str, own: &Credentials) -> Self {
        let files = own.files();
        let authority = files.authority.display();
        let message = match said.as_raw() {
            0 => return Self::of_answer(&reasons(error), own),
            verify::HAS_EXPIRED => "its certificate has expired; make it anew with \"redhare ca renew\" and put it in \
                                    the place of the old one: a master that runs takes it"
                .to_owned(),
            verify::NOT_YET_VALID => {
                "its certificate does not hold yet; set the clocks of both machines".to_owned()
            }
            verify::HOSTNAME_MISMATCH | verify::ADDRESS_MISMATCH => format!(
                "its certificate is not for \"{host}\"; name the master as its certificate does, or make one with \
                 \"redhare ca issue --role master --address {host}\""
            ),
            verify::INVALID_PURPOSE => {
                "its certificate is not a master's; is this the port of a master? Give that one a certificate of \
                 \"redhare ca issue --role master\""
                    .to_owned()
            }
            code if verify::UNKNOWN.contains(&code) => format!(
                "its certificate is of an authority that {authority} does not have; is it a master of this cluster? If \
                 it is, take the cluster's ca.pem"
            ),
            _ => format!("its certificate is not believed: {}", said.error_string()),
        };
        Self { message }
    }

    /// As [`Failure::of_handshake`], of somebody who has no certificate yet, and trusts the root that a token names.
    pub fn of_unknown(error: &ssl::Error, said: X509VerifyResult, host: &str) -> Self {
        let reasons = reasons(error);
        let message = match said.as_raw() {
            0 if is_no_tls(&reasons.to_lowercase()) => {
                "it speaks no TLS, and nobody joins a cluster whose masters have no credentials; is this the port of a \
                 master? Start it with --credentials and --issuer"
                    .to_owned()
            }
            0 => format!("the connection ended in its handshake ({reasons}); its log says more"),
            verify::HAS_EXPIRED => "its certificate has expired; make it anew with \"redhare ca renew\"".to_owned(),
            verify::NOT_YET_VALID => {
                "its certificate does not hold yet; set the clocks of both machines".to_owned()
            }
            verify::HOSTNAME_MISMATCH | verify::ADDRESS_MISMATCH => format!(
                "its certificate is not for \"{host}\"; name the master as its certificate does. Nothing of the token was \
                 sent"
            ),
            _ => format!(
                "it does not prove to be of the token's cluster ({}): is it a master of that cluster, or does somebody stand \
                 between? Nothing of the token was sent",
                said.error_string()
            ),
        };
        Self { message }
    }

    /// Of a connection on which the master ended our trust: what its alert (RFC 8446, section 6) says.
    pub fn of_answer(reasons: &str, own: &Credentials) -> Self {
        let certificate = own.files().certificate.display();
        let identity = own.identity();
        let (role, name) = (identity.role, &identity.name);
        let said = reasons.to_lowercase();
        let message = if said.contains("unknown ca") {
            format!(
                "it does not know the authority of our certificate {certificate}; use credentials of the cluster that it \
                 is a master of, and if the authority was rotated, give the master the new ca.pem"
            )
        } else if said.contains("certificate expired") {
            format!(
                "it says that our certificate {certificate} of {role} \"{name}\" does not hold now; make it anew with \
                 \"redhare ca renew\", or set the clocks of both machines"
            )
        } else if said.contains("unsupported certificate") || said.contains("bad certificate") {
            format!(
                "it does not take our certificate {certificate} of {role} \"{name}\" for a client's; use one of the \
                 role admin, node, client or read-only"
            )
        } else if is_no_tls(&said) {
            "it speaks no TLS; give that master credentials (\"redhare master --credentials DIR\"), or call it without \
             ours"
                .to_owned()
        } else {
            format!("the connection ended in its handshake ({reasons}); its log says more")
        };
        Self { message }
    }

    /// Whether whoever answered is a master of our cluster.
    ///
    /// # Errors
    /// A [`Failure`] if it is not.
    pub fn unless_master(theirs: &Identity, own: &Credentials) -> Result<(), Self> {
        if theirs.role != Role::Master {
            let message = format!(
                "its certificate is that of {} \"{}\", not a master's; is this the port of a master?",
                theirs.role, theirs.name
            );
            return Err(Self { message });
        }
        let (theirs, ours) = (theirs.cluster, own.identity().cluster);
        if theirs != ours {
            let message = format!(
                "it is of cluster {theirs}, our certificate {} of cluster {ours}; name the masters of our own cluster, \
                 or give other credentials",
                own.files().certificate.display()
            );
            return Err(Self { message });
        }
        Ok(())
    }

    /// With a text of its own.
    pub fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
        }
    }
}

/// Whether these reasons are those of an answer that is none of TLS.
fn is_no_tls(reasons: &str) -> bool {
    let known = [
        "wrong version number",
        "packet length too long",
        "record layer failure",
        "unknown protocol",
    ];
    known.iter().any(|reason| reasons.contains(reason))
}

/// What OpenSSL gives as reasons for a connection that failed, or the system.
pub fn reasons(error: &ssl::Error) -> String {
    if let Some(stack) = error.ssl_error() {
        let reasons: Vec<&str> = stack.errors().iter().filter_map(|error| error.reason()).collect();
        if !reasons.is_empty() {
            return reasons.join(", ");
        }
    }
    match error.io_error() {
        Some(error) => error.to_string(),
        None => "it was closed".to_owned(),
    }
}
