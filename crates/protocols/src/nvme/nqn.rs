//! NVMe qualified names (NVM Express Base Specification 2.0c, section 4.5).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::layout::Field;

/// The name every discovery subsystem answers to (section 4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The longest name, in bytes, without the terminating zero.
pub const NQN_LIMIT_BYTES: usize = 223;
/// Length of a field that carries a name, in bytes.
pub const NQN_FIELD_BYTES: usize = 256;
/// What a name that rests on a UUID begins with.
pub const UUID_NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A well-formed NVMe qualified name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn {
    text: String,
}

/// Why a text is no NVMe qualified name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NqnError {
    /// Longer than 223 bytes.
    #[error("the NQN \"{text}\" is {length_bytes} bytes long and 223 is the limit; shorten it")]
    TooLong {
        /// The text.
        text: String,
        /// Its length in bytes.
        length_bytes: usize,
    },
    /// Bytes from a peer that are not UTF-8.
    #[error("an NQN of {length_bytes} bytes is not UTF-8; the peer must send the name as UTF-8")]
    NotUtf8 {
        /// How many bytes came before the terminating zero.
        length_bytes: usize,
    },
    /// A field of 256 bytes without a terminating zero.
    #[error(
        "an NQN field of 256 bytes has no terminating zero; the peer must send at most 223 bytes and a zero"
    )]
    Unterminated,
    /// A control character.
    #[error("the NQN \"{}\" has a control character at byte {at_byte}; remove it", text.escape_debug())]
    ControlCharacter {
        /// The text.
        text: String,
        /// Where the character begins.
        at_byte: usize,
    },
    /// Does not begin with `nqn.yyyy-mm.`.
    #[error(
        "the NQN \"{text}\" does not begin with nqn.YYYY-MM. and a month from 01 to 12; write it like nqn.2026-01.com.example:disk1"
    )]
    BadDate {
        /// The text.
        text: String,
    },
    /// The part after the date is no domain name in reverse order.
    #[error(
        "the NQN \"{text}\" has \"{domain}\" where a reversed domain name belongs (letters, digits and hyphens between dots); write it like nqn.2026-01.com.example:disk1"
    )]
    BadDomain {
        /// The text.
        text: String,
        /// What stands in the place of the domain name.
        domain: String,
    },
    /// Nothing after the colon, or no colon.
    #[error(
        "the NQN \"{text}\" has nothing after a colon to tell it from others of its domain; write it like nqn.2026-01.com.example:disk1"
    )]
    NoUniquePart {
        /// The text.
        text: String,
    },
    /// The UUID form with something that is no UUID.
    #[error(
        "the NQN \"{text}\" ends in \"{uuid}\", which is no UUID; write 32 hexadecimal digits grouped 8-4-4-4-12"
    )]
    BadUuid {
        /// The text.
        text: String,
        /// What stands in the place of the UUID.
        uuid: String,
    },
}

impl Nqn {
    /// The discovery subsystem's well-known name.
    pub fn discovery() -> Self {
        Self {
            text: DISCOVERY_NQN.to_owned(),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether this is the discovery subsystem's well-known name.
    pub fn is_discovery(&self) -> bool {
        self.text == DISCOVERY_NQN
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        check(text)?;
        Ok(Self {
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

fn check(text: &str) -> Result<(), NqnError> {
    let owned = || text.to_owned();
    if text.len() > NQN_LIMIT_BYTES {
        return Err(NqnError::TooLong {
            text: owned(),
            length_bytes: text.len(),
        });
    }
    if let Some((at_byte, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
        return Err(NqnError::ControlCharacter {
            text: owned(),
            at_byte,
        });
    }
    if text == DISCOVERY_NQN {
        return Ok(());
    }
    if let Some(uuid) = text.strip_prefix(UUID_NQN_PREFIX) {
        return if is_uuid(uuid) {
            Ok(())
        } else {
            Err(NqnError::BadUuid {
                text: owned(),
                uuid: uuid.to_owned(),
            })
        };
    }
    let rest = after_date(text).ok_or_else(|| NqnError::BadDate { text: owned() })?;
    let (domain, unique) = rest.split_once(':').unwrap_or((rest, ""));
    if !domain.split('.').all(is_label) {
        return Err(NqnError::BadDomain {
            text: owned(),
            domain: domain.to_owned(),
        });
    }
    if unique.is_empty() {
        return Err(NqnError::NoUniquePart { text: owned() });
    }
    Ok(())
}

/// What follows `nqn.yyyy-mm.`.
fn after_date(text: &str) -> Option<&str> {
    let (date, rest) = text.strip_prefix("nqn.")?.split_at_checked(8)?;
    let (year, month) = (date.get(..4)?, date.get(5..7)?);
    let month_exists = matches!(month.as_bytes(), [b'0', b'1'..=b'9'] | [b'1', b'0'..=b'2']);
    let well_formed = year.bytes().all(|byte| byte.is_ascii_digit())
        && date.get(4..5)? == "-"
        && date.get(7..8)? == "."
        && month_exists;
    well_formed.then_some(rest)
}

/// One label of a domain name (RFC 1034, section 3.5, with the digits of RFC 1123, section 2.1).
fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A 256-byte field that carries a name, UTF-8 and terminated by zeros. Holds what travels: a host's name need not
/// be well formed to be compared with another, so reading the name is a step of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NqnField {
    bytes: [u8; NQN_FIELD_BYTES],
}

impl NqnField {
    /// No name.
    pub const EMPTY: Self = Self {
        bytes: [0; NQN_FIELD_BYTES],
    };

    /// Takes a field as it came.
    pub const fn from_bytes(bytes: [u8; NQN_FIELD_BYTES]) -> Self {
        Self { bytes }
    }

    /// The field as it travels.
    pub const fn as_bytes(&self) -> &[u8; NQN_FIELD_BYTES] {
        &self.bytes
    }

    /// The text before the first zero, not checked to be a well-formed name.
    ///
    /// # Errors
    /// `NqnError` when there is no zero, more than 223 bytes, or no UTF-8.
    pub fn text(&self) -> Result<&str, NqnError> {
        let length_bytes = self
            .bytes
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(NqnError::Unterminated)?;
        let text = std::str::from_utf8(&self.bytes[..length_bytes])
            .map_err(|_| NqnError::NotUtf8 { length_bytes })?;
        if length_bytes > NQN_LIMIT_BYTES {
            return Err(NqnError::TooLong {
                text: text.to_owned(),
                length_bytes,
            });
        }
        Ok(text)
    }

    /// The name, checked.
    ///
    /// # Errors
    /// `NqnError` when the field holds no well-formed name.
    pub fn nqn(&self) -> Result<Nqn, NqnError> {
        self.text()?.parse()
    }
}

impl From<&Nqn> for NqnField {
    fn from(nqn: &Nqn) -> Self {
        let mut field = Self::EMPTY;
        field.bytes[..nqn.text.len()].copy_from_slice(nqn.text.as_bytes());
        field
    }
}

impl Default for NqnField {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for NqnField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self
            .bytes
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        write!(f, "\"{}\"", self.bytes[..end].escape_ascii())
    }
}

impl Field for NqnField {
    const BYTES: usize = NQN_FIELD_BYTES;

    fn get(bytes: &[u8]) -> Self {
        Self {
            bytes: Field::get(bytes),
        }
    }

    fn put(&self, bytes: &mut [u8]) {
        self.bytes.put(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UUID_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

    #[test]
    fn the_forms_of_the_specification_are_accepted() {
        let longest = format!("nqn.2026-01.com.example:{}", "x".repeat(199));
        assert_eq!(longest.len(), 223);
        for text in [
            DISCOVERY_NQN,
            UUID_NQN,
            "nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
            "nqn.2026-12.io.redhare:volume:\u{6570}\u{636e}",
            &longest,
        ] {
            let nqn: Nqn = text.parse().unwrap();
            assert_eq!(nqn.as_str(), text);
            assert_eq!(NqnField::from(&nqn).nqn().unwrap(), nqn);
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_reason() {
        let too_long = format!("nqn.2026-01.com.example:{}", "x".repeat(200));
        for (text, reason) in [
            ("", "does not begin with nqn.YYYY-MM."),
            ("nqn.2026-13.com.example:a", "month from 01 to 12"),
            ("nqn.2026-00.com.example:a", "month from 01 to 12"),
            (
                "nqn.\u{6570}\u{636e}\u{6570}.com:a",
                "does not begin with nqn.YYYY-MM.",
            ),
            ("iqn.2026-01.com.example:a", "does not begin"),
            (
                "nqn.2026-01.com.-example:a",
                "\"com.-example\" where a reversed domain",
            ),
            ("nqn.2026-01.:a", "reversed domain"),
            ("nqn.2026-01.com.example", "nothing after a colon"),
            ("nqn.2026-01.com.example:", "nothing after a colon"),
            ("nqn.2026-01.com.example:a\nb", "control character at byte 25"),
            ("nqn.2014-08.org.nvmexpress:uuid:12", "\"12\", which is no UUID"),
            (&too_long, "is 224 bytes long and 223 is the limit"),
        ] {
            let error = text.parse::<Nqn>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_field_without_an_end_or_with_other_bytes_is_refused() {
        assert_eq!(
            NqnField::from_bytes([b'a'; 256]).text(),
            Err(NqnError::Unterminated)
        );
        let mut bytes = [0; 256];
        bytes[0] = 0xff;
        assert_eq!(
            NqnField::from_bytes(bytes).text(),
            Err(NqnError::NotUtf8 { length_bytes: 1 })
        );
    }

    proptest! {
        #[test]
        fn noise_never_panics(text in ".{0,40}", dated in "nqn\\.[0-9]{4}-[0-9]{2}.{0,30}", bytes in prop::collection::vec(any::<u8>(), 256)) {
            let _ = text.parse::<Nqn>();
            let _ = dated.parse::<Nqn>();
            let _ = NqnField::get(&bytes).nqn();
        }
    }
}
