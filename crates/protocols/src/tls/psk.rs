//! Pre-shared keys: as people hand them over, and as TLS takes them (NVMe over TCP transport specification 1.0c, sections
//! 3.6.1.3 to 3.6.1.5; version 1 of the identity is TP8018's, in later revisions of that specification).
//!
//! | key | is |
//! | --- | --- |
//! | configured PSK | what the interchange format holds: 32 or 48 bytes |
//! | retained PSK | `HKDF-Expand-Label(HKDF-Extract(0, configured), "HostNQN", host NQN, L)`; with hash 00 the configured PSK itself |
//! | digest | base64 of `HMAC(retained, "host subsystem NVMe-over-Fabrics")` |
//! | identity | `NVMe0Rhh host subsystem`, or `NVMe1Rhh host subsystem digest` |
//! | TLS PSK | `HKDF-Expand-Label(HKDF-Extract(0, retained), "nvme-tls-psk", context, L)` |
//!
//! The context is the identity (version 0) or `hh digest` (version 1). The hash function, and L with it, follows from the
//! length of the configured PSK: 32 bytes are SHA-256's (hh 01), 48 are SHA-384's (02). HKDF-Expand-Label is that of RFC
//! 8446, section 7.1, with the lengths of label and context before them. libnvme left those out until August 2025 (its pull
//! request 1051), so that what an older `nvme gen-tls-key --insert` puts into a keyring does not fit.

use std::fmt;

use openssl::base64::encode_block;
use zeroize::Zeroizing;

use crate::auth::{CRC_BYTES, CryptoError, HashFunction, decode_base64, frame, same, take_checksum};

const PREFIX: &str = "NVMeTLSkey-1:";
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";
/// The longest context that HKDF-Expand-Label takes, in bytes (RFC 8446, section 7.1).
const CONTEXT_BYTES_MAX: usize = 255;

/// Why a text is no configured PSK. None of these says anything of the text's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PskError {
    /// The frame is another.
    #[error("it does not have the form NVMeTLSkey-1:hh:<base64>: ; make one with nvme gen-tls-key")]
    Form,
    /// The two digits name no hash function.
    #[error("its hash function is {0:02}; it must be 00 (none), 01 (SHA-256) or 02 (SHA-384)")]
    HashFunction(u8),
    /// Not base64.
    #[error("what follows NVMeTLSkey-1:hh: is no base64")]
    Base64,
    /// The key is too long or short.
    #[error("its key has {0} bytes; it must have 32 or 48")]
    Length(usize),
    /// The hash function is that of the other length.
    #[error("its key has {length} bytes, but its hash function {hash:02} goes with {wanted}; make another")]
    OtherHash {
        /// The key's length in bytes.
        length: usize,
        /// The function's number.
        hash: u8,
        /// The length that goes with it, in bytes.
        wanted: usize,
    },
    /// It was changed on its way.
    #[error("its checksum does not fit: it was not copied whole")]
    Checksum,
}

/// Why no key for TLS could be derived.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeriveError {
    /// The names do not fit.
    #[error(
        "the names of host and subsystem make an identity of {0} bytes, and a key of identity version 0 takes at most \
         255: use shorter names, or version 1"
    )]
    Names(usize),
    /// The library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// A configured PSK. It is wiped when it goes, and neither compared in a hurry nor shown.
pub struct ConfiguredPsk {
    /// Of everything that is derived.
    hash: HashFunction,
    /// Whether the retained PSK is another than the configured one.
    is_transformed: bool,
    key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for ConfiguredPsk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ConfiguredPsk(..)")
    }
}

impl PartialEq for ConfiguredPsk {
    fn eq(&self, other: &Self) -> bool {
        self.is_transformed == other.is_transformed && same(&self.key, &other.key)
    }
}

impl Eq for ConfiguredPsk {}

impl ConfiguredPsk {
    /// Reads the interchange format; one line break after it is passed over.
    ///
    /// # Errors
    /// See [`PskError`].
    pub fn parse(text: &[u8]) -> Result<Self, PskError> {
        let (number, base64) = frame(text, PREFIX).ok_or(PskError::Form)?;
        if number > 2 {
            return Err(PskError::HashFunction(number));
        }
        let mut key = decode_base64(base64).ok_or(PskError::Base64)?;
        let length = key.len().saturating_sub(CRC_BYTES);
        let hash = match length {
            32 => HashFunction::Sha256,
            48 => HashFunction::Sha384,
            _ => return Err(PskError::Length(length)),
        };
        if !take_checksum(&mut key) {
            return Err(PskError::Checksum);
        }
        if number != 0 && number != hash.id() {
            let wanted = HashFunction::from_id(number).map_or(0, HashFunction::bytes);
            return Err(PskError::OtherHash {
                length,
                hash: number,
                wanted,
            });
        }
        Ok(Self {
            hash,
            is_transformed: number != 0,
            key,
        })
    }

    fn retained(&self, host: &str) -> Result<Zeroizing<Vec<u8>>, DeriveError> {
        if !self.is_transformed {
            return Ok(self.key.clone());
        }
        expand_label(self.hash, &self.key, "HostNQN", host.as_bytes())
    }

    /// What a host and a subsystem of these names use in TLS.
    ///
    /// # Errors
    /// If the names are too long for the identity's version, or the library fails.
    pub fn derive(&self, version: IdentityVersion, host: &str, subsystem: &str) -> Result<Psk, DeriveError> {
        let retained = self.retained(host)?;
        Psk::of_retained(self.hash, &retained, version, host, subsystem)
    }

    /// As [`ConfiguredPsk::derive`], of version 0 if the names allow it: there are targets that know no other.
    ///
    /// # Errors
    /// If the library fails.
    pub fn derive_usual(&self, host: &str, subsystem: &str) -> Result<Psk, DeriveError> {
        match self.derive(IdentityVersion::V0, host, subsystem) {
            Err(DeriveError::Names(_)) => self.derive(IdentityVersion::V1, host, subsystem),
            other => other,
        }
    }
}

/// The form of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityVersion {
    /// `NVMe0`: names only.
    V0,
    /// `NVMe1`: names, and a digest that tells keys apart.
    V1,
}

/// What TLS takes: an identity and a key of a suite. The key is wiped when it goes, and not shown.
pub struct Psk {
    pub(super) identity: String,
    pub(super) hash: HashFunction,
    pub(super) key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Psk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Psk").field(&self.identity).finish()
    }
}

impl Psk {
    fn of_retained(
        hash: HashFunction,
        retained: &[u8],
        version: IdentityVersion,
        host: &str,
        subsystem: &str,
    ) -> Result<Self, DeriveError> {
        let number = hash.id();
        let (identity, context) = match version {
            IdentityVersion::V0 => {
                let identity = format!("NVMe0R{number:02} {host} {subsystem}");
                (identity.clone(), identity)
            }
            IdentityVersion::V1 => {
                let parts = [host.as_bytes(), b" ", subsystem.as_bytes(), b" ", PURPOSE];
                let digest = encode_block(&hash.hmac(retained, &parts)?);
                let identity = format!("NVMe1R{number:02} {host} {subsystem} {digest}");
                (identity, format!("{number:02} {digest}"))
            }
        };
        let key = expand_label(hash, retained, "nvme-tls-psk", context.as_bytes())?;
        Ok(Self { identity, hash, key })
    }

    /// By which the other end knows which key is meant. Not secret.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The key's bytes, to give them to another program.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

/// What an identity says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// Its form.
    pub version: IdentityVersion,
    /// The host's name.
    pub host: &'a str,
    /// The subsystem's name.
    pub subsystem: &'a str,
}

impl<'a> Identity<'a> {
    /// Reads an identity of a retained PSK; `None` for anything else. What it says is what the peer claims.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split(' ');
        let version = match words.next()? {
            "NVMe0R01" | "NVMe0R02" => IdentityVersion::V0,
            "NVMe1R01" | "NVMe1R02" => IdentityVersion::V1,
            _ => return None,
        };
        let (host, subsystem) = (words.next()?, words.next()?);
        let has_digest = words.next().is_some();
        let fits = has_digest == (version == IdentityVersion::V1) && words.next().is_none();
        (fits && !host.is_empty() && !subsystem.is_empty()).then_some(Self {
            version,
            host,
            subsystem,
        })
    }
}

/// `HKDF-Expand-Label(HKDF-Extract(0, secret), label, context, L)` (RFC 5869; RFC 8446, section 7.1), L being the length of
/// the hash: one block.
fn expand_label(
    hash: HashFunction,
    secret: &[u8],
    label: &str,
    context: &[u8],
) -> Result<Zeroizing<Vec<u8>>, DeriveError> {
    const LABEL_PREFIX: &str = "tls13 ";
    if context.len() > CONTEXT_BYTES_MAX {
        return Err(DeriveError::Names(context.len()));
    }
    let extracted = hash.hmac(&vec![0; hash.bytes()], &[secret])?;
    // At most 48, 18 and 255.
    let length = (hash.bytes() as u16).to_be_bytes();
    let label_length = [(LABEL_PREFIX.len() + label.len()) as u8];
    let context_length = [context.len() as u8];
    let block = [1];
    let parts: [&[u8]; 7] = [
        &length,
        &label_length,
        LABEL_PREFIX.as_bytes(),
        label.as_bytes(),
        &context_length,
        context,
        &block,
    ];
    Ok(hash.hmac(&extracted, &parts)?)
}

#[cfg(test)]
mod tests;
