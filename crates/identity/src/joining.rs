//! How somebody without a certificate comes to one: with a token, which lets the two ends know each other.
//!
//! A token has an id, a secret and a hash. By the hash, of a root's public key, who joins knows the cluster's master
//! before it says anything of the secret; by the secret the master knows who joins. The key of the new certificate is
//! made where it is used and stays there: only a request (PKCS #10, RFC 2986) is sent.

use std::fmt;
use std::str::FromStr;

use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::{HasPublic, PKey, PKeyRef, Private};
use openssl::sha::Sha256;
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode, SslVersion};
use openssl::x509::{X509, X509Ref, X509Req};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::authority::{Issued, bundle_pem};
use crate::files::{self, Credentials};
use crate::holder::is_issuer;
use crate::issuer::{Time, prove};
use crate::making::generate;
use crate::{Cluster, Identity, IdentityError, unix_now};

/// Before a token, with the version of its form.
const PREFIX: &str = "rhjoin1";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 16;
/// Roots and chains that a master sends: some certificates of less than a KiB.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Which token, in a cluster: no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub [u8; ID_BYTES]);

/// A token; see the module. Its text is as secret as a password.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: TokenId,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
    root: [u8; 32],
}

/// A text that is no token. It is not repeated, since it may be almost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "that is no join token, which is rhjoin1 and three numbers of 16, 32 and 64 hexadecimal digits, with dots between them; copy it as \"redhare ca token create\" printed it"
)]
pub struct ParseTokenError;

/// A text that names no token.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{text}\" is no id of a join token, which has 16 hexadecimal digits; \"redhare ca token list\" shows those that exist"
)]
pub struct ParseTokenIdError {
    text: String,
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hexadecimal(&self.0))
    }
}

impl FromStr for TokenId {
    type Err = ParseTokenIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseTokenIdError {
            text: text.to_owned(),
        };
        bytes(text).map(Self).ok_or_else(bad)
    }
}

impl TokenId {
    /// The node that joins by this token with a key of this fingerprint: a UUID of version 8 (RFC 9562, section 5.8). The
    /// same one if it asks twice, and nobody can choose it.
    pub fn node_name(self, key_sha256: &[u8; 32]) -> Cluster {
        let mut hash = Sha256::new();
        hash.update(b"redhare node\0");
        hash.update(&self.0);
        hash.update(key_sha256);
        let digest = hash.finish();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&digest[..16]);
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Cluster::from_bytes(uuid).expect("its version is not 0")
    }

    /// What the store keeps of a token's secret.
    pub fn secret_sha256(self, secret: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"redhare join token\0");
        hash.update(&self.0);
        hash.update(secret);
        hash.finish()
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl JoinToken {
    /// A new one, for whoever trusts this root.
    ///
    /// # Errors
    /// OpenSSL's.
    pub fn new(root: &X509Ref) -> Result<Self, ErrorStack> {
        let (mut id, mut secret) = ([0; ID_BYTES], Zeroizing::new([0; SECRET_BYTES]));
        openssl::rand::rand_bytes(&mut id)?;
        openssl::rand::rand_bytes(&mut *secret)?;
        Ok(Self {
            id: TokenId(id),
            secret,
            root: fingerprint(root)?,
        })
    }

    /// Which one it is.
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// What proves that one has it.
    pub fn secret(&self) -> &[u8] {
        &*self.secret
    }

    /// The token as people copy it.
    pub fn text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(hexadecimal(&*self.secret));
        let root = hexadecimal(&self.root);
        Zeroizing::new(format!("{PREFIX}.{}.{}.{root}", self.id, *secret))
    }

    /// Of what a master says are its roots, the one that this token names, and a connector that trusts nobody else.
    ///
    /// # Errors
    /// [`JoiningError::OtherRoot`], and what cannot be read.
    pub fn connector(&self, roots: &[u8]) -> Result<(SslConnector, X509), JoiningError> {
        for root in texts(roots)? {
            if fingerprint(&root)? == self.root {
                let connector = files::connector(std::slice::from_ref(&root), None)?;
                return Ok((connector, root));
            }
        }
        Err(JoiningError::OtherRoot {
            wanted: hexadecimal(&self.root),
        })
    }
}

impl FromStr for JoinToken {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.trim().split('.');
        let mut next = || parts.next().ok_or(ParseTokenError);
        let (prefix, id, secret, root) = (next()?, next()?, next()?, next()?);
        if prefix != PREFIX || parts.next().is_some() {
            return Err(ParseTokenError);
        }
        Ok(Self {
            id: TokenId(bytes(id).ok_or(ParseTokenError)?),
            secret: Zeroizing::new(bytes(secret).ok_or(ParseTokenError)?),
            root: bytes(root).ok_or(ParseTokenError)?,
        })
    }
}

/// Why a certificate that was asked for is none that can be used.
#[derive(Debug, Error)]
pub enum JoiningError {
    /// Another cluster, or somebody in between.
    #[error(
        "it does not have the root that the token names (SHA-256 {wanted}): it is no master of the token's cluster, somebody \
         stands between, or the authority was rotated since; check the address, or make a new token. Nothing of the token \
         was sent"
    )]
    OtherRoot {
        /// The root's hash.
        wanted: String,
    },
    /// What is no certificate.
    #[error("what it sent as certificates cannot be read: {why}; is it a master of the same release?")]
    Text {
        /// What is wrong.
        why: String,
    },
    /// A certificate that does not serve.
    #[error(
        "the certificate that it sent cannot be used: {why}; make the issuer and the masters' credentials anew (\"redhare ca renew\")"
    )]
    Certificate {
        /// What is wrong.
        why: String,
    },
    /// OpenSSL.
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// A key for a certificate that is to be issued elsewhere. It never leaves this process but into its own file.
pub struct Joining {
    key: PKey<Private>,
}

impl fmt::Debug for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joining").finish_non_exhaustive()
    }
}

impl Joining {
    /// With a new key.
    ///
    /// # Errors
    /// OpenSSL's.
    pub fn new() -> Result<Self, ErrorStack> {
        Ok(Self { key: generate()? })
    }

    /// The request for its certificate, in DER. It says nothing but the key: who its holder is, the master says.
    ///
    /// # Errors
    /// OpenSSL's.
    pub fn request(&self) -> Result<Vec<u8>, ErrorStack> {
        let mut builder = X509Req::builder()?;
        builder.set_version(0)?;
        builder.set_pubkey(&self.key)?;
        builder.sign(&self.key, MessageDigest::sha256())?;
        builder.build().to_der()
    }

    /// The certificate that a master gave for it, with the roots to trust from now on: those of the master's that are
    /// among `trusted`, or for which one of those vouches.
    ///
    /// # Errors
    /// See [`JoiningError`]: it is for another key, or not of those roots.
    pub fn finish(&self, chain: &[u8], roots: &[u8], trusted: &[X509]) -> Result<Issued, JoiningError> {
        let bad = |why: String| JoiningError::Certificate { why };
        let certificates = texts(chain)?;
        let (leaf, between) = certificates
            .split_first()
            .ok_or_else(|| bad("there is none".to_owned()))?;
        if !leaf.public_key()?.public_eq(&self.key) {
            return Err(bad("it is for another key".to_owned()));
        }
        let roots = accepted(&texts(roots)?, between, trusted)?;
        if roots.is_empty() {
            return Err(bad("none of its roots is one that we trust".to_owned()));
        }
        let proved = prove(leaf, between, &roots, Time::Now)?.map_err(bad)?;
        let identity = Identity::of_chain(proved.iter().map(|one| &**one))
            .map_err(|error: IdentityError| bad(error.to_string()))?;
        Ok(Issued {
            identity,
            certificate: bundle_pem(&certificates)?,
            key: Zeroizing::new(self.key.private_key_to_pem_pkcs8()?),
            authority: bundle_pem(&roots)?,
        })
    }
}

impl Credentials {
    /// Whether the certificate ought to be renewed: a third of its life or less is left, by this machine's clock.
    pub fn is_due(&self) -> bool {
        let identity = self.identity();
        let life = identity.not_after - identity.not_before;
        unix_now() >= identity.not_after - life / 3
    }

    /// Whether the masters' roots, as far as we may trust them, or their issuer are others than those of this
    /// certificate, by what they sent: the authority is being rotated.
    ///
    /// # Errors
    /// What was sent cannot be read.
    pub fn is_superseded(&self, roots: &[u8], issuer: &[u8]) -> Result<bool, JoiningError> {
        let issuer = match issuer.is_empty() {
            true => return Ok(false),
            false => texts(issuer)?,
        };
        let [leaf, between @ ..] = self.chain() else {
            return Ok(false);
        };
        let is_ours = |signer: &X509| -> Result<bool, ErrorStack> { leaf.verify(&*signer.public_key()?) };
        if between.first().is_some_and(|signer| is_issuer(signer))
            && !issuer.first().map_or(Ok(true), is_ours)?
        {
            return Ok(true);
        }
        let names = |roots: &[X509]| -> Result<std::collections::BTreeSet<Vec<u8>>, ErrorStack> {
            roots.iter().map(|root| root.to_der()).collect()
        };
        let accepted = accepted(&texts(roots)?, &issuer, self.authorities())?;
        Ok(!accepted.is_empty() && names(&accepted)? != names(self.authorities())?)
    }
}

/// Of the roots that are offered, those that are trusted, and those that stand among `between` as signed by a trusted one.
fn accepted(offered: &[X509], between: &[X509], trusted: &[X509]) -> Result<Vec<X509>, JoiningError> {
    let mut accepted = Vec::new();
    for root in offered {
        let (own, key) = (root.to_der()?, root.public_key()?);
        let mut is_trusted = false;
        for known in trusted {
            is_trusted |= known.to_der()? == own;
            for link in between {
                // Whoever else a root has signed, such as an issuer, is no root by that.
                let names_it = link.pathlen().is_some_and(|depth| depth > 0)
                    && link.public_key()?.public_eq(&key)
                    && link.subject_name().to_der()? == root.subject_name().to_der()?;
                is_trusted |= names_it && link.verify(&*known.public_key()?)?;
            }
        }
        if is_trusted {
            accepted.push(root.clone());
        }
    }
    Ok(accepted)
}

/// For the first question to a master of which nothing is known yet: it believes whoever answers, so what is asked must
/// be no secret, and what is answered be compared with the token.
///
/// # Errors
/// OpenSSL's.
pub fn unverified_connector() -> Result<SslConnector, ErrorStack> {
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_verify(SslVerifyMode::NONE);
    builder.set_alpn_protos(files::HTTP2)?;
    Ok(builder.build())
}

/// SHA-256 of a certificate's public key (DER of SubjectPublicKeyInfo).
///
/// # Errors
/// OpenSSL's.
pub fn fingerprint(certificate: &X509Ref) -> Result<[u8; 32], ErrorStack> {
    key_sha256(&*certificate.public_key()?)
}

pub(crate) fn key_sha256(key: &PKeyRef<impl HasPublic>) -> Result<[u8; 32], ErrorStack> {
    Ok(openssl::sha::sha256(&key.public_key_to_der()?))
}

/// Roots as they are sent.
///
/// # Errors
/// OpenSSL's.
pub fn roots_text(roots: &[X509]) -> Result<Vec<u8>, ErrorStack> {
    bundle_pem(roots)
}

/// Certificates that were sent.
fn texts(text: &[u8]) -> Result<Vec<X509>, JoiningError> {
    let bad = |why: String| JoiningError::Text { why };
    if text.len() > TEXT_BYTES_MAX {
        let length = text.len();
        return Err(bad(format!("{length} bytes, at most {TEXT_BYTES_MAX} are taken")));
    }
    X509::stack_from_pem(text).map_err(|error| bad(error.to_string()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly so many bytes from lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut found = [0; N];
    for (byte, pair) in found.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            id: TokenId([1, 2, 3, 4, 5, 6, 7, 0xf8]),
            secret: Zeroizing::new([0xab; SECRET_BYTES]),
            root: [0xcd; 32],
        }
    }

    #[test]
    fn a_token_is_read_as_it_is_written_and_says_no_secret_to_a_log() {
        let token = token();
        let text = token.text();
        assert_eq!(
            *text,
            format!("rhjoin1.01020304050607f8.{}.{}", "ab".repeat(16), "cd".repeat(32))
        );
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_eq!(format!(" {}\n", *text).parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains("abab") && !format!("{token:?}").contains("171"));
        assert_eq!(token.id().to_string().parse(), Ok(token.id()));
    }

    #[test]
    fn what_is_no_token_is_refused_and_not_repeated() {
        let text = token().text();
        for end in 0..text.len() {
            let error = text[..end].parse::<JoinToken>().unwrap_err().to_string();
            assert!(
                error.contains("redhare ca token create") && !error.contains("abab"),
                "{error}"
            );
        }
        for bad in [
            format!("{}0", *text),
            format!("{}.00", *text),
            text.replace("rhjoin1", "rhjoin2"),
            text.replace("ab", "AB"),
            text.replace("ab", "é"),
        ] {
            assert_eq!(bad.parse::<JoinToken>(), Err(ParseTokenError), "{bad}");
        }
    }

    #[test]
    fn a_nodes_name_and_a_secrets_hash_are_those_of_one_token() {
        let (one, other) = (TokenId([1; 8]), TokenId([2; 8]));
        assert_eq!(one.node_name(&[7; 32]), one.node_name(&[7; 32]));
        assert_ne!(one.node_name(&[7; 32]), one.node_name(&[8; 32]));
        assert_ne!(one.node_name(&[7; 32]), other.node_name(&[7; 32]));
        // Version 8 and variant 10b.
        let name = one.node_name(&[7; 32]).to_bytes();
        assert_eq!((name[6] >> 4, name[8] >> 6), (8, 2));
        assert_ne!(one.secret_sha256(b"a"), other.secret_sha256(b"a"));
        assert_ne!(one.secret_sha256(b"a"), one.secret_sha256(b"b"));
    }
}
