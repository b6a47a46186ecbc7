//! Why a member of an etcd is not to be used, or does not take us, in words that say what to do.

use std::fmt;

use etcd_client::Error;
use openssl::x509::X509VerifyResult;

use super::EtcdConfig;
use super::link::text;

/// What etcd says of a token that it does not know (any more), of a call without one, and of one from before its users changed
/// (`rpctypes` in etcd's `api/v3rpc`). Nothing was done.
const STALE: [&str; 3] = [
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: revision of auth store is old",
];
/// What it says of a name and password that do not fit. A connection asks for another token with the password that it was made with.
const NO_SUCH_USER: &str = "etcdserver: authentication failed, invalid user ID or password";
/// What it says to who names a user while authentication is off.
const NO_USERS: &str = "etcdserver: authentication is not enabled";
/// What the connection's own end says, among others when a member takes our first bytes for no TLS: which one depends on whether its
/// end was seen before or after our request was sent.
const BROKEN: [&str; 3] = ["broken pipe", "connection reset", "connection closed"];
const DENIED: &str = "etcdserver: permission denied";

/// Complete in itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// We do not believe a member's certificate. `said` is OpenSSL's verdict; none if the handshake failed for something else.
    pub(super) fn of_handshake(
        reasons: &str,
        said: X509VerifyResult,
        member: &str,
        config: &EtcdConfig,
    ) -> Self {
        if said.as_raw() == 0 {
            return Self::of_answer(reasons, member, config);
        }
        let authority = match &config.authority {
            Some(path) => format!("of an authority in {} (etcd.authority)", path.display()),
            None => {
                "of one of the system's authorities, or etcd.authority names the file of another".to_owned()
            }
        };
        Self(format!(
            "{member}: its certificate is not believed ({}); it has to be for that host, and {authority}",
            said.error_string()
        ))
    }

    /// A member has ended a connection that we had taken for made.
    pub(super) fn of_answer(reasons: &str, member: &str, config: &EtcdConfig) -> Self {
        let said = reasons.to_lowercase();
        Self(
            if [
                "wrong version number",
                "record layer failure",
                "packet length too long",
            ]
            .iter()
            .any(|reason| said.contains(reason))
            {
                format!(
                    "{member} speaks no TLS; write etcd:// in the place of etcds://, or the address of one that does"
                )
            } else if !said.contains("alert") {
                format!(
                    "{member}: the connection ended in its handshake ({reasons}); does it speak TLS (if not, write etcd://)? Its log says \
                 more"
                )
            } else if let Some((certificate, _)) = &config.certificate {
                format!(
                    "{member} does not take the certificate {} ({reasons}); etcd.certificate and etcd.key have to be a client's, not \
                 expired, and of an authority that etcd trusts (its --trusted-ca-file)",
                    certificate.display()
                )
            } else {
                format!(
                    "{member} takes nobody without a certificate ({reasons}); name one with etcd.certificate and etcd.key"
                )
            },
        )
    }

    /// What etcd said of a call, and what to do when it is about who we are.
    pub(super) fn of_call(error: &Error, config: &EtcdConfig) -> Self {
        let said = text(error);
        let hint = match (&config.user, said.as_str()) {
            (None, said) if said == STALE[1] => {
                "; name a user with etcd.user and etcd.password_file, or a certificate whose common name is one".to_owned()
            }
            (Some((name, file)), NO_SUCH_USER) => format!(
                " (\"{name}\", with the password in {}); set etcd.user and etcd.password_file: the file is read again for each \
                 connection",
                file.display()
            ),
            (_, DENIED) => format!(
                "; the user's role has to read and write what begins with {}/",
                config.prefix
            ),
            (_, said) if !config.tls && ended(said) => {
                " (if its members speak TLS, write etcds://)".to_owned()
            }
            _ => String::new(),
        };
        Self(format!("{said}{hint}"))
    }
}

fn ended(said: &str) -> bool {
    let said = said.to_lowercase();
    BROKEN.iter().any(|end| said.contains(end))
}

fn says(error: &Error, known: &[&str]) -> bool {
    known.contains(&text(error).as_str())
}

/// Whether nothing was done, and may be with another connection, on which we say anew who we are.
pub(super) fn is_of_token(error: &Error, config: &EtcdConfig) -> bool {
    config.user.is_some() && (says(error, &STALE) || says(error, &[NO_SUCH_USER]))
}

/// Whether every member takes name and password for wrong.
pub(super) fn is_of_user(error: &Error) -> bool {
    says(error, &[NO_SUCH_USER])
}

/// Whether etcd has no users: it takes everybody.
pub(super) fn takes_everybody(error: &Error) -> bool {
    says(error, &[NO_USERS])
}
