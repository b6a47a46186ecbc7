//! A certificate, its key and the authorities to trust, as PEM files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{
    AlpnError, SslAcceptor, SslConnector, SslMethod, SslSessionCacheMode, SslVerifyMode, SslVersion,
    select_next_proto,
};
use openssl::x509::X509;
use openssl::x509::store::{X509Store, X509StoreBuilder};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::durable::fresh_of;
use crate::{Identity, IdentityError};

/// A file that is longer holds something else.
const BYTES_MAX: u64 = 1 << 20;
/// Permissions that a key file may not give: anything for its group and others.
const OTHERS: u32 = 0o077;
/// HTTP/2, as ALPN has it (RFC 7540, section 3.3).
pub(crate) const HTTP2: &[u8] = b"\x02h2";

/// Where credentials are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The roots to trust.
    pub authority: PathBuf,
    /// The certificate, followed by those between it and a root, if there are any.
    pub certificate: PathBuf,
    /// Its key, which nobody else may read.
    pub key: PathBuf,
}

impl Files {
    /// `ca.pem`, `cert.pem` and `key.pem` in a directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            authority: directory.join("ca.pem"),
            certificate: directory.join("cert.pem"),
            key: directory.join("key.pem"),
        }
    }

    /// Whether there is a certificate. One whose first writer was cut off before it took its place does so now.
    pub fn has_certificate(&self) -> bool {
        let finish = |key| matches!(next_of(&self.certificate, &key), Ok(Some(_)));
        self.certificate.exists() || key(&self.key).is_ok_and(finish)
    }

    /// Changes whenever one of the files is another one, or has another content.
    pub fn stamp(&self) -> Stamp {
        let one = |path: &Path| {
            let metadata = std::fs::metadata(path).ok()?;
            let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
            Some((metadata.ino(), metadata.len(), seconds, nanoseconds))
        };
        Stamp([one(&self.authority), one(&self.certificate), one(&self.key)])
    }
}

/// See [`Files::stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp([Option<(u64, u64, i64, i64)>; 3]);

/// Why credentials cannot be used. No text has anything of a key in it.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// The system does not let us.
    #[error("{}: {source}; give --credentials a directory with ca.pem, cert.pem and key.pem that \"redhare ca issue\" made", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is no PEM file of at most {BYTES_MAX} bytes with {what} in it ({why}); make it anew with \"redhare ca issue --force\"", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What belongs there.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Others may use the key.
    #[error("the key {} has mode {mode:04o}, so that others can use it; chmod 0600 it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Key and certificate are of different pairs.
    #[error("the key {} is not that of the certificate {}; put both there as they were made, or make them anew with \"redhare ca renew\"", key.display(), certificate.display())]
    Mismatch {
        /// The key.
        key: PathBuf,
        /// The certificate.
        certificate: PathBuf,
    },
    /// A certificate, but none of a cluster's.
    #[error("the certificate {} is none of a Redhare cluster: {source}; make one with \"redhare ca issue\", with --force in its place", path.display())]
    Identity {
        /// The certificate.
        path: PathBuf,
        /// What is wrong.
        source: IdentityError,
    },
    /// It holds no more, or not yet.
    #[error("the certificate {} of {role} \"{name}\" {when}; {remedy}", path.display())]
    Time {
        /// The certificate.
        path: PathBuf,
        /// Whose.
        role: crate::Role,
        /// Whose.
        name: String,
        /// Since when, or from when.
        when: String,
        /// What to do.
        remedy: &'static str,
    },
    /// OpenSSL.
    #[error("OpenSSL refuses the credentials with {}: {source}; make them anew with \"redhare ca renew\", or \"redhare ca issue --force\"", path.display())]
    OpenSsl {
        /// The certificate.
        path: PathBuf,
        /// Its answer.
        source: ErrorStack,
    },
}

/// Credentials in use: whom to trust, and as whom to speak. The key stays in OpenSSL's memory.
#[derive(Clone)]
pub struct Credentials {
    files: Files,
    identity: Identity,
    authorities: Vec<X509>,
    chain: Vec<X509>,
    acceptor: SslAcceptor,
    connector: SslConnector,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Credentials");
        shown
            .field("files", &self.files)
            .field("identity", &self.identity);
        shown.finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads and checks them. Blocks as long as the file system does.
    ///
    /// # Errors
    /// See [`CredentialsError`]. Those whose certificate has ended, too.
    pub fn load(files: &Files) -> Result<Self, CredentialsError> {
        let authorities = certificates(&files.authority, "the certificates of authorities")?;
        // The first one of a directory may stand beside its place still.
        let finished = match files.certificate.exists() {
            true => None,
            false => key(&files.key)
                .ok()
                .and_then(|key| next_of(&files.certificate, &key).ok()?),
        };
        let mut chain = match finished {
            Some(chain) => chain,
            None => certificates(&files.certificate, "a certificate")?,
        };
        let key = key(&files.key)?;
        let path = || files.certificate.clone();
        let openssl = |source| CredentialsError::OpenSsl { path: path(), source };
        if let Some(next) = broken_off(&files.certificate, &chain, &key).map_err(openssl)? {
            chain = next;
        }
        let leaf = &chain[0];
        if !leaf.public_key().map_err(openssl)?.public_eq(&key) {
            return Err(CredentialsError::Mismatch {
                key: files.key.clone(),
                certificate: path(),
            });
        }
        let identity =
            Identity::of(leaf).map_err(|source| CredentialsError::Identity { path: path(), source })?;
        check_time(&identity, &files.certificate)?;
        let acceptor = acceptor(&authorities, &chain, &key).map_err(openssl)?;
        let connector = connector(&authorities, Some((&chain, &key))).map_err(openssl)?;
        Ok(Self {
            files: files.clone(),
            identity,
            authorities,
            chain,
            acceptor,
            connector,
        })
    }

    /// Where they came from.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// As whom their holder speaks.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The roots that are trusted.
    pub fn authorities(&self) -> &[X509] {
        &self.authorities
    }

    /// The certificate, and those between it and a root.
    pub(crate) fn chain(&self) -> &[X509] {
        &self.chain
    }

    /// For connections that come in: TLS 1.3, HTTP/2. A certificate that is shown must be of a trusted authority; who
    /// shows none is let in, and is to be refused by what is asked.
    pub fn acceptor(&self) -> &SslAcceptor {
        &self.acceptor
    }

    /// For connections to masters: TLS 1.3, HTTP/2, nobody trusted but the authorities.
    pub fn connector(&self) -> &SslConnector {
        &self.connector
    }
}

/// The certificate that was to take the place of one which is not this key's, if its writer was cut off between the two: it takes its place
/// now, if that can be done.
fn broken_off(path: &Path, chain: &[X509], key: &PKey<Private>) -> Result<Option<Vec<X509>>, ErrorStack> {
    let is_of_key = |chain: &[X509]| chain[0].public_key().map(|public| public.public_eq(key));
    if is_of_key(chain)? {
        return Ok(None);
    }
    next_of(path, key)
}

/// The certificate of this key that stands beside this place, if there is one: it takes its place, if that can be done.
fn next_of(path: &Path, key: &PKey<Private>) -> Result<Option<Vec<X509>>, ErrorStack> {
    let fresh = fresh_of(path);
    let Ok(next) = certificates(&fresh, "a certificate") else {
        return Ok(None);
    };
    if !next[0].public_key()?.public_eq(key) {
        return Ok(None);
    }
    // Who may read it but not write there goes on with it as well.
    drop(std::fs::rename(&fresh, path));
    Ok(Some(next))
}

fn check_time(identity: &Identity, path: &Path) -> Result<(), CredentialsError> {
    let now = crate::unix_now();
    let (when, remedy) = if now > identity.not_after {
        let ago = (now - identity.not_after) / 86_400;
        let when = format!("has expired, {ago} days ago");
        (when, "make it anew with \"redhare ca renew\"")
    } else if now < identity.not_before {
        let when = format!("does not hold for another {} s", identity.not_before - now);
        (when, "set this machine's clock")
    } else {
        return Ok(());
    };
    Err(CredentialsError::Time {
        path: path.to_owned(),
        role: identity.role,
        name: identity.name.clone(),
        when,
        remedy,
    })
}

fn acceptor(authorities: &[X509], chain: &[X509], key: &PKey<Private>) -> Result<SslAcceptor, ErrorStack> {
    let mut builder = SslAcceptor::mozilla_modern_v5(SslMethod::tls_server())?;
    present(&mut builder, chain, key)?;
    builder.set_cert_store(store(authorities)?);
    for authority in authorities {
        builder.add_client_ca(authority)?;
    }
    builder.set_verify(SslVerifyMode::PEER);
    // Every connection proves itself anew: a ticket would outlive the certificate.
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_num_tickets(0)?;
    builder.set_alpn_select_callback(|_, offered| select_next_proto(HTTP2, offered).ok_or(AlpnError::NOACK));
    Ok(builder.build())
}

/// Without an own certificate: for who has none yet.
pub(crate) fn connector(
    authorities: &[X509],
    own: Option<(&[X509], &PKey<Private>)>,
) -> Result<SslConnector, ErrorStack> {
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    if let Some((chain, key)) = own {
        present(&mut builder, chain, key)?;
    }
    // In the place of those that the system trusts.
    builder.set_cert_store(store(authorities)?);
    builder.set_alpn_protos(HTTP2)?;
    Ok(builder.build())
}

fn present(
    context: &mut openssl::ssl::SslContextBuilder,
    chain: &[X509],
    key: &PKey<Private>,
) -> Result<(), ErrorStack> {
    let (leaf, between) = chain.split_first().expect("a file with a certificate has one");
    context.set_certificate(leaf)?;
    for certificate in between {
        context.add_extra_chain_cert(certificate.clone())?;
    }
    context.set_private_key(key)?;
    context.check_private_key()
}

fn store(authorities: &[X509]) -> Result<X509Store, ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    for authority in authorities {
        store.add_cert(authority.clone())?;
    }
    Ok(store.build())
}

/// At least one certificate.
pub(crate) fn certificates(path: &Path, what: &'static str) -> Result<Vec<X509>, CredentialsError> {
    let content = |why: String| CredentialsError::Content {
        path: path.to_owned(),
        what,
        why,
    };
    let text = read(path, what, |_| None)?;
    let found = X509::stack_from_pem(&text).map_err(|error| content(error.to_string()))?;
    if found.is_empty() {
        return Err(content("there is none".to_owned()));
    }
    Ok(found)
}

/// A private key in a file that nobody else can use.
pub(crate) fn key(path: &Path) -> Result<PKey<Private>, CredentialsError> {
    let what = "a private key";
    let is_open = |mode: u32| {
        (mode & OTHERS != 0).then(|| CredentialsError::Open {
            path: path.to_owned(),
            mode: mode & 0o7777,
        })
    };
    let text = read(path, what, is_open)?;
    // A key that asks for a passphrase would stop a daemon: it is refused.
    let key = PKey::private_key_from_pem_callback(&text, |_| Ok(0));
    key.map_err(|_| CredentialsError::Content {
        path: path.to_owned(),
        what,
        why: "OpenSSL reads no key without a passphrase there".to_owned(),
    })
}

/// What a file holds, wiped when it goes, unless its mode speaks against it.
fn read(
    path: &Path,
    what: &'static str,
    refuse: impl FnOnce(u32) -> Option<CredentialsError>,
) -> Result<Zeroizing<Vec<u8>>, CredentialsError> {
    let unreadable = |source| CredentialsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    // Of what was opened: the name may be another file's by now.
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        return Err(CredentialsError::Content {
            path: path.to_owned(),
            what,
            why: format!("it has {} bytes or is no file", metadata.len()),
        });
    }
    if let Some(error) = refuse(metadata.mode()) {
        return Err(error);
    }
    let length = usize::try_from(metadata.len()).unwrap_or(0);
    // Room for all of it from the start, so that growing leaves no copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(length + 1));
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// Credentials of a server, read again when their files are others.
#[derive(Debug)]
pub struct Watched {
    files: Files,
    state: Mutex<(Stamp, Arc<Credentials>)>,
}

impl Watched {
    /// Reads them for the first time.
    ///
    /// # Errors
    /// See [`CredentialsError`].
    pub fn load(files: &Files) -> Result<Self, CredentialsError> {
        let stamp = files.stamp();
        let credentials = Arc::new(Credentials::load(files)?);
        Ok(Self {
            files: files.clone(),
            state: Mutex::new((stamp, credentials)),
        })
    }

    /// What the files say. If they say nothing that can be used, then what they said before, and once for each change
    /// why. Blocks as long as the file system does: three calls of stat(2), and reading only after a change.
    pub fn current(&self) -> (Arc<Credentials>, Option<CredentialsError>) {
        let stamp = self.files.stamp();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 == stamp {
            return (state.1.clone(), None);
        }
        state.0 = stamp;
        match Credentials::load(&self.files) {
            Ok(fresh) => {
                state.1 = Arc::new(fresh);
                (state.1.clone(), None)
            }
            Err(error) => (state.1.clone(), Some(error)),
        }
    }
}
