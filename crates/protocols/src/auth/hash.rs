//! The hash functions of DH-HMAC-CHAP, by OpenSSL.

use openssl::error::ErrorStack;
use openssl::hash::{Hasher, MessageDigest};
use openssl::pkey::PKey;
use openssl::sign::Signer;
use zeroize::Zeroizing;

/// OpenSSL could not do its work: out of memory, or without randomness. The text names no secret.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the cryptography library failed: {0}; see whether this machine has memory and randomness left")]
pub struct CryptoError(#[from] ErrorStack);

/// A hash function (NVM Express Base Specification 2.0c, section 8.13.5: "Hash function identifiers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HashFunction {
    /// 01h.
    Sha256,
    /// 02h.
    Sha384,
    /// 03h.
    Sha512,
}

impl HashFunction {
    /// All, the strongest first.
    pub const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    /// The identifier on the wire and in a secret's representation.
    pub const fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// The function of an identifier; `None` if it is reserved.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// The name that people and management tools use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// The function of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// Length of a hash, a challenge and a response, in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    fn digest_kind(self) -> MessageDigest {
        match self {
            Self::Sha256 => MessageDigest::sha256(),
            Self::Sha384 => MessageDigest::sha384(),
            Self::Sha512 => MessageDigest::sha512(),
        }
    }

    /// The hash of `bytes`.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn digest(self, bytes: &[u8]) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let mut hasher = Hasher::new(self.digest_kind())?;
        hasher.update(bytes)?;
        Ok(Zeroizing::new(hasher.finish()?.to_vec()))
    }

    /// The HMAC (RFC 2104) under `key` of `parts`, one after the other.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let key = PKey::hmac(key)?;
        let mut signer = Signer::new(self.digest_kind(), &key)?;
        for part in parts {
            signer.update(part)?;
        }
        Ok(Zeroizing::new(signer.sign_to_vec()?))
    }
}

/// Whether both are the same; how long that takes tells nothing of where they differ.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && openssl::memcmp::eq(one, other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2 (key "Jefe").
    #[test]
    fn agrees_with_the_published_examples() {
        for (hash, start) in [
            (HashFunction::Sha256, [0x5b, 0xdc, 0xc1, 0x46]),
            (HashFunction::Sha384, [0xaf, 0x45, 0xd2, 0xe3]),
            (HashFunction::Sha512, [0x16, 0x4b, 0x7a, 0x7b]),
        ] {
            let hmac = hash
                .hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"])
                .unwrap();
            assert_eq!((hmac.len(), &hmac[..4]), (hash.bytes(), &start[..]));
        }
    }

    #[test]
    fn identifiers_and_names_are_those_of_the_specification() {
        let known: Vec<_> = (0..=255).filter_map(HashFunction::from_id).collect();
        assert_eq!(
            known,
            [HashFunction::Sha256, HashFunction::Sha384, HashFunction::Sha512]
        );
        for hash in HashFunction::ALL {
            assert_eq!(HashFunction::from_name(hash.name()), Some(hash));
        }
        assert_eq!(HashFunction::from_name("md5"), None);
    }
}
