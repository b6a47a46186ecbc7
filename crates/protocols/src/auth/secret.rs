//! Secrets as people hand them over, `DHHC-1:xx:base64:`, and the keys made of them (NVM Express Base Specification
//! 2.0c, sections 8.13.5.7 and 8.13.5.8).

use foundation::checksum::crc32;
use zeroize::Zeroizing;

use super::hash::{CryptoError, HashFunction};

const PREFIX: &str = "DHHC-1:";
/// What each key is bound to beside a name.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";
/// Of the checksum behind each key.
pub(crate) const CRC_BYTES: usize = 4;

/// Why a text is no secret. None of these says anything of the text's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The frame is another.
    #[error("it does not have the form DHHC-1:xx:<base64>: ; make one with nvme gen-dhchap-key")]
    Form,
    /// The two digits name no hash function.
    #[error("its hash function is {0:02}; it must be 00 (none), 01, 02 or 03 (SHA-256, SHA-384, SHA-512)")]
    HashFunction(u8),
    /// Not base64.
    #[error("what follows DHHC-1:xx: is no base64")]
    Base64,
    /// The key is too long or short.
    #[error("its key has {0} bytes; it must have 32, 48 or 64")]
    Length(usize),
    /// It was changed on its way.
    #[error("its checksum does not fit: it was not copied whole")]
    Checksum,
}

/// A secret. It is wiped when it goes, and neither compared in a hurry nor shown.
pub struct Secret {
    /// With which the key is bound to its owner's name.
    transformation: Option<HashFunction>,
    key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.transformation == other.transformation && super::hash::same(&self.key, &other.key)
    }
}

impl Eq for Secret {}

impl Secret {
    /// Reads the representation; one line break after it is passed over.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn parse(text: &[u8]) -> Result<Self, SecretError> {
        let (hash, base64) = frame(text, PREFIX).ok_or(SecretError::Form)?;
        let transformation = match hash {
            0 => None,
            id => Some(HashFunction::from_id(id).ok_or(SecretError::HashFunction(id))?),
        };
        let mut key = decode_base64(base64).ok_or(SecretError::Base64)?;
        let length = key.len().saturating_sub(CRC_BYTES);
        if !matches!(length, 32 | 48 | 64) {
            return Err(SecretError::Length(length));
        }
        if !take_checksum(&mut key) {
            return Err(SecretError::Checksum);
        }
        Ok(Self { transformation, key })
    }

    /// A key that no person has written down: used as it is, whatever the name.
    pub fn from_key(key: &[u8]) -> Self {
        Self {
            transformation: None,
            key: Zeroizing::new(key.to_vec()),
        }
    }

    /// The key with which the party of this name answers challenges.
    pub(super) fn key(&self, nqn: &str) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        match self.transformation {
            None => Ok(self.key.clone()),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), PURPOSE]),
        }
    }
}

/// Takes `PREFIXhh:base64:` apart: the number and the base64. One line break after it is passed over.
pub(crate) fn frame<'a>(text: &'a [u8], prefix: &str) -> Option<(u8, &'a [u8])> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    match text.strip_prefix(prefix.as_bytes())?.strip_suffix(b":")? {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9', b':', base64 @ ..] => {
            Some(((tens - b'0') * 10 + (ones - b'0'), base64))
        }
        _ => None,
    }
}

/// Takes the CRC-32 off the end of a key; false if it does not fit what it stands behind.
pub(crate) fn take_checksum(key: &mut Vec<u8>) -> bool {
    let Some(length) = key.len().checked_sub(CRC_BYTES) else {
        return false;
    };
    let fits = crc32(&key[..length]).to_le_bytes() == key[length..];
    key.truncate(length);
    fits
}

/// Base64 with padding (RFC 4648, section 4); `None` for anything else. Nothing of it is left in memory.
pub(crate) fn decode_base64(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    // Whole from the start, so that growing leaves no copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 4 * 3));
    for group in text[..text.len() - padding].chunks(4) {
        let mut bits = 0_u32;
        for byte in group {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let missing = 4 - group.len();
        bits <<= 6 * missing;
        let [_, decoded @ ..] = bits.to_be_bytes();
        // Bits that stand for nothing are zero, so that there is one text for each key.
        if decoded[3 - missing..].iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&decoded[..3 - missing]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Made by `nvme gen-dhchap-key --secret=000102.. --key-length=N --hmac=0` of nvme-cli 2.3.
    const MADE: [(&str, usize); 3] = [
        ("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", 32),
        (
            "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
            48,
        ),
        (
            "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:",
            64,
        ),
    ];

    #[test]
    fn reads_what_nvme_cli_makes() {
        for (text, length) in MADE {
            let secret = Secret::parse(text.as_bytes()).unwrap();
            let counted: Vec<u8> = (0..=255).take(length).collect();
            assert_eq!(*secret.key, counted);
            assert_eq!(*secret.key("any").unwrap(), counted, "00 is no transformation");
            assert_eq!(Secret::parse(format!("{text}\n").as_bytes()).unwrap(), secret);
        }
    }

    /// The value is Python's `hmac.digest(bytes(range(32)), b"nqn.2026-11.io.redhare:host" b"NVMe-over-Fabrics",
    /// "sha256")`, and what `nvme gen-dhchap-key --hmac=1 --nqn=nqn.2026-11.io.redhare:host` derives.
    #[test]
    fn keys_are_bound_to_names() {
        let bound = Secret::parse(MADE[0].0.replace(":00:", ":01:").as_bytes()).unwrap();
        let key = bound.key("nqn.2026-11.io.redhare:host").unwrap();
        let made = Secret::parse(b"DHHC-1:01:wVZVDZ/YLplppdxfvOiyI6bltX8ozYUjukX68VN5xSyA7JoN:").unwrap();
        assert_eq!(*key, *made.key);
        assert_ne!(*bound.key("nqn.2026-11.io.redhare:other").unwrap(), *key);
    }

    #[test]
    fn refuses_what_is_no_secret_and_says_why() {
        let good = MADE[0].0;
        let error = |text: &str| Secret::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error(""), SecretError::Form);
        assert_eq!(error("secret"), SecretError::Form);
        assert_eq!(error(&good[..good.len() - 1]), SecretError::Form);
        assert_eq!(error(&good.replace(":00:", ":0:")), SecretError::Form);
        assert_eq!(error(&good.replace(":00:", ":04:")), SecretError::HashFunction(4));
        assert_eq!(error(&good.replace("AAEC", "AAE?")), SecretError::Base64);
        assert_eq!(error(&good.replace("AAEC", "AAE")), SecretError::Base64);
        assert_eq!(error(&good.replace("AAEC", "")), SecretError::Length(29));
        assert_eq!(error(&good.replace("AAEC", "AAED")), SecretError::Checksum);
        assert_eq!(error(&MADE[1].0.replace("BQ==", "BR==")), SecretError::Base64);
        assert_eq!(error("DHHC-1:00:====:"), SecretError::Base64);
        assert_eq!(error("DHHC-1:00::"), SecretError::Length(0));
    }

    #[test]
    fn is_not_shown() {
        let secret = Secret::parse(MADE[0].0.as_bytes()).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    proptest! {
        #[test]
        fn noise_is_refused_without_a_panic(noise in proptest::collection::vec(any::<u8>(), 0..120)) {
            prop_assert!(Secret::parse(&noise).is_err());
            let framed = [b"DHHC-1:00:", &noise[..], b":"].concat();
            prop_assert!(Secret::parse(&framed).is_err());
        }

        #[test]
        fn one_changed_byte_is_noticed(which in 0_usize..3, at: prop::sample::Index, byte: u8) {
            let mut text = MADE[which].0.as_bytes().to_vec();
            let at = at.index(text.len());
            prop_assume!(text[at] != byte);
            text[at] = byte;
            // Another hash function is another secret; everything else is an error.
            match Secret::parse(&text) {
                Ok(secret) => prop_assert_eq!((at, secret.transformation.is_some()), (8, true)),
                Err(_) => prop_assert!(true),
            }
        }
    }
}
