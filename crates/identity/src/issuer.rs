//! What masters issue certificates with.
//!
//! An issuer is an authority of its own below the root, with a key that masters hold. Whoever gets hold of that key makes
//! nodes and clients, but neither administrators nor masters: its certificate has a path length of 0, the purpose *client*,
//! name constraints, and an organization by which both ends of our connections know it ([`Identity::of_chain`]).

use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Private, Public};
use openssl::stack::Stack;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::X509VerifyFlags;
use openssl::x509::{X509, X509Ref, X509Req, X509StoreContext};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::authority::{AuthorityError, Summary, Validity, bundle_pem, summary};
use crate::durable::{make_directory, replace};
use crate::files::{self, CredentialsError};
use crate::holder::{cluster_of, is_issuer, unix};
use crate::making::{Kind, Making, holder_subject};
use crate::{Cluster, Identity, IdentityError, Role, unix_now};

/// Key and certificate, and after a rotation the root as the one before it vouches for it. One file, so that one rename
/// replaces all of it.
const FILE: &str = "issuer.pem";
/// A request is some hundred bytes.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Why an issuer does not do what it was asked.
#[derive(Debug, Error)]
pub enum IssuerError {
    /// There is none, or it cannot be read.
    #[error("{} is no issuer: {source}; make one with \"redhare ca issuer\", with --force in the place of what is there", path.display())]
    Open {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        source: CredentialsError,
    },
    /// It has ended.
    #[error("the issuer {} has expired; make it anew with \"redhare ca renew\"", path.display())]
    Expired {
        /// Its file.
        path: PathBuf,
    },
    /// A role that it may not give.
    #[error(
        "an issuer makes certificates of the roles node, client and read-only, not {role}; \"redhare ca issue\" makes others"
    )]
    Role {
        /// The role.
        role: Role,
    },
    /// What is no request.
    #[error(
        "the request for a certificate cannot be used: {why}; send one as PKCS #10 in DER, signed by its own key on P-256"
    )]
    Request {
        /// What is wrong.
        why: String,
    },
    /// Nobody would believe it.
    #[error("what the issuer {} signs is not believed here: {why}; make it anew with \"redhare ca renew\", and give masters the ca.pem of now", path.display())]
    Untrusted {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// OpenSSL.
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// A certificate that was issued for somebody else's key.
#[derive(Clone, Debug)]
pub struct Granted {
    /// What it says.
    pub identity: Identity,
    /// The certificate, and those between it and a root, as PEM.
    pub chain: Vec<u8>,
}

/// See the module.
pub struct Issuer {
    path: PathBuf,
    cluster: Cluster,
    key: PKey<Private>,
    certificate: X509,
    /// The root as the one before it vouches for it.
    vouched: Vec<X509>,
}

impl std::fmt::Debug for Issuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Issuer");
        shown.field("path", &self.path).field("cluster", &self.cluster);
        shown.finish_non_exhaustive()
    }
}

impl Issuer {
    pub(crate) fn new(cluster: Cluster, key: PKey<Private>, certificate: X509, vouched: Vec<X509>) -> Self {
        Self {
            path: PathBuf::from(FILE),
            cluster,
            key,
            certificate,
            vouched,
        }
    }

    /// Whether there is one in a directory.
    pub fn is_in(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    /// Opens the one in a directory. Blocks as long as the file system does.
    ///
    /// # Errors
    /// [`IssuerError::Open`].
    pub fn open(directory: &Path) -> Result<Self, IssuerError> {
        let path = directory.join(FILE);
        let open = |source| IssuerError::Open {
            path: path.clone(),
            source,
        };
        let content = |why: &str| {
            open(CredentialsError::Content {
                path: path.clone(),
                what: "an issuer's key and certificate",
                why: why.to_owned(),
            })
        };
        let key = files::key(&path).map_err(open)?;
        let mut chain = files::certificates(&path, "an issuer's certificate").map_err(open)?;
        let vouched = chain.split_off(1);
        let certificate = chain.remove(0);
        if !certificate.public_key()?.public_eq(&key) {
            return Err(content("the key is not that of the certificate"));
        }
        if !is_issuer(&certificate) {
            return Err(content("the certificate is not an issuer's"));
        }
        let cluster = cluster_of(&certificate).ok_or_else(|| content("the certificate names no cluster"))?;
        Ok(Self {
            path,
            cluster,
            key,
            certificate,
            vouched,
        })
    }

    /// Writes it into a directory, made if it is not there, in the place of what was there; the key with it, so nobody
    /// else can read the file.
    ///
    /// # Errors
    /// [`AuthorityError::Write`].
    pub fn write(&self, directory: &Path) -> Result<PathBuf, AuthorityError> {
        make_directory(directory)?;
        let mut text = Zeroizing::new(Vec::with_capacity(16_384));
        text.extend(&*Zeroizing::new(self.key.private_key_to_pem_pkcs8()?));
        text.extend(bundle_pem(&self.chain())?);
        let path = directory.join(FILE);
        replace(&path, &text, 0o600)?;
        Ok(path)
    }

    /// The cluster it is for.
    pub fn cluster(&self) -> Cluster {
        self.cluster
    }

    /// Its certificate, for people.
    ///
    /// # Errors
    /// OpenSSL's.
    pub fn summary(&self) -> Result<Summary, IssuerError> {
        Ok(summary(&self.certificate)?)
    }

    fn chain(&self) -> Vec<X509> {
        let chain = std::iter::once(&self.certificate).chain(&self.vouched);
        chain.cloned().collect()
    }

    /// Its certificate, and those between it and a root, as PEM.
    ///
    /// # Errors
    /// OpenSSL's.
    pub fn chain_text(&self) -> Result<Vec<u8>, IssuerError> {
        Ok(bundle_pem(&self.chain())?)
    }

    /// Whether what it signs now is believed by whoever trusts these roots.
    ///
    /// # Errors
    /// [`IssuerError::Expired`] and [`IssuerError::Untrusted`].
    pub fn check(&self, roots: &[X509]) -> Result<(), IssuerError> {
        if unix(self.certificate.not_after())? < unix_now() {
            let path = self.path.clone();
            return Err(IssuerError::Expired { path });
        }
        self.prove(&self.certificate, &self.vouched, roots).map(drop)
    }

    fn prove(&self, leaf: &X509Ref, between: &[X509], roots: &[X509]) -> Result<Vec<X509>, IssuerError> {
        let proved = prove(leaf, between, roots, Time::Now)?;
        proved.map_err(|why| IssuerError::Untrusted {
            path: self.path.clone(),
            why,
        })
    }

    /// Issues a certificate for the key that made `request` (PKCS #10, RFC 2986, in DER), of which nothing else is taken.
    /// It ends with the issuer at the latest, and is believed by whoever trusts one of `roots`.
    ///
    /// # Errors
    /// See [`IssuerError`].
    pub fn issue(
        &self,
        request: &[u8],
        role: Role,
        name: &str,
        validity: Validity,
        roots: &[X509],
    ) -> Result<Granted, IssuerError> {
        if !Role::JOINING.contains(&role) {
            return Err(IssuerError::Role { role });
        }
        self.check(roots)?;
        let key = requested_key(request)?;
        let subject = holder_subject(role, name)?;
        let certificate = Making {
            subject: &subject,
            cluster: self.cluster,
            addresses: &[],
            validity: Validity {
                from: validity.from,
                until: validity.until.min(unix(self.certificate.not_after())?),
            },
            kind: Kind::Holder(role),
        }
        .sign(&key, Some(&self.certificate), &self.key)?;
        let between = self.chain();
        let untrusted = |error: IdentityError| IssuerError::Untrusted {
            path: self.path.clone(),
            why: error.to_string(),
        };
        // What we give out we have looked at as those who are shown it will.
        let chain = self.prove(&certificate, &between, roots)?;
        let identity = Identity::of_chain(chain.iter().map(|one| &**one)).map_err(untrusted)?;
        let mut text = certificate.to_pem()?;
        text.extend(bundle_pem(&between)?);
        Ok(Granted {
            identity,
            chain: text,
        })
    }
}

/// SHA-256 of the key that a request is for, as [`crate::fingerprint`] has it, which the request proves to be in its
/// maker's hands.
///
/// # Errors
/// [`IssuerError::Request`].
pub fn requested_fingerprint(request: &[u8]) -> Result<[u8; 32], IssuerError> {
    let key = requested_key(request)?;
    Ok(crate::joining::key_sha256(&key)?)
}

/// The key in a request that is signed with it.
fn requested_key(request: &[u8]) -> Result<PKey<Public>, IssuerError> {
    let bad = |why: String| IssuerError::Request { why };
    if request.len() > REQUEST_BYTES_MAX {
        return Err(bad(format!(
            "it has {} bytes, at most {REQUEST_BYTES_MAX} are taken",
            request.len()
        )));
    }
    let parsed = X509Req::from_der(request).map_err(|_| bad("it is none".to_owned()))?;
    let key = parsed
        .public_key()
        .map_err(|_| bad("it has no public key".to_owned()))?;
    let curve = match key.id() {
        Id::EC => key.ec_key()?.group().curve_name(),
        _ => None,
    };
    if curve != Some(Nid::X9_62_PRIME256V1) {
        return Err(bad("its key is not on P-256".to_owned()));
    }
    match parsed.verify(&key) {
        Ok(true) => Ok(key),
        _ => Err(bad("its signature is not by its own key".to_owned())),
    }
}

/// Whether certificates have to hold now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// As for every use.
    Now,
    /// Whether or not they have ended.
    Any,
}

/// The chain from a certificate up to one of `roots`, or why there is none.
pub(crate) fn prove(
    leaf: &X509Ref,
    between: &[X509],
    roots: &[X509],
    time: Time,
) -> Result<Result<Vec<X509>, String>, ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    for root in roots {
        store.add_cert(root.clone())?;
    }
    if time == Time::Any {
        store.set_flags(X509VerifyFlags::NO_CHECK_TIME)?;
    }
    let mut untrusted = Stack::new()?;
    for certificate in between {
        untrusted.push(certificate.clone())?;
    }
    X509StoreContext::new()?.init(&store.build(), leaf, &untrusted, |context| {
        if !context.verify_cert()? {
            return Ok(Err(context.error().error_string().to_owned()));
        }
        let chain = context.chain().into_iter().flatten();
        Ok(Ok(chain.map(X509Ref::to_owned).collect()))
    })
}
