//! Fixed-length ASCII fields such as the serial number: left-justified, padded with spaces (NVM Express Base
//! Specification 2.0c, section 1.4.2).

use std::fmt;

use thiserror::Error;

use super::layout::Field;

/// An ASCII field of `N` bytes. Holds what travels, so a peer's odd padding survives a round trip.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
}

/// Why a text does not fit an ASCII field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// Longer than the field.
    #[error("\"{text}\" is {length_bytes} bytes long and the field holds {limit_bytes}; shorten it")]
    TooLong {
        /// The text.
        text: String,
        /// Its length in bytes.
        length_bytes: usize,
        /// The length of the field in bytes.
        limit_bytes: usize,
    },
    /// A character outside 20h to 7Eh.
    #[error("\"{text}\" has the character {character:?}; only printable ASCII (20h to 7Eh) is allowed here")]
    NotAscii {
        /// The text.
        text: String,
        /// The first character that is not allowed.
        character: char,
    },
}

impl<const N: usize> Text<N> {
    /// Spaces only.
    pub const EMPTY: Self = Self { bytes: [b' '; N] };

    /// Pads `text` with spaces.
    ///
    /// # Errors
    /// `TextError` when it is too long or has anything but printable ASCII.
    pub fn new(text: &str) -> Result<Self, TextError> {
        if let Some(character) = text.chars().find(|c| !matches!(c, ' '..='~')) {
            return Err(TextError::NotAscii {
                text: text.to_owned(),
                character,
            });
        }
        if text.len() > N {
            return Err(TextError::TooLong {
                text: text.to_owned(),
                length_bytes: text.len(),
                limit_bytes: N,
            });
        }
        let mut field = Self::EMPTY;
        field.bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(field)
    }

    /// Takes a field as it came.
    pub const fn from_bytes(bytes: [u8; N]) -> Self {
        Self { bytes }
    }

    /// The field as it travels.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.bytes
    }

    /// The text without padding, or `None` when the peer sent something that is not printable ASCII. Zeros are
    /// taken for padding too, because many implementations send them.
    pub fn as_str(&self) -> Option<&str> {
        let padding_from = self
            .bytes
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.bytes.len());
        let text = std::str::from_utf8(&self.bytes[..padding_from]).ok()?;
        text.bytes()
            .all(|byte| matches!(byte, b' '..=b'~'))
            .then(|| text.trim_end_matches(' '))
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// The text, or its bytes escaped when it is not text.
impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_str() {
            Some(text) => f.pad(text),
            None => write!(f, "{}", self.bytes.escape_ascii()),
        }
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.bytes.escape_ascii())
    }
}

impl<const N: usize> Field for Text<N> {
    const BYTES: usize = N;

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

    #[test]
    fn padding_is_added_with_spaces_and_dropped_when_read() {
        let text = Text::<6>::new("ab c").unwrap();
        assert_eq!(text.as_bytes(), b"ab c  ");
        assert_eq!(text.as_str(), Some("ab c"));
        assert_eq!(Text::from_bytes(*b"ab\0\xffcd").as_str(), Some("ab"));
        assert_eq!(Text::from_bytes(*b"a\xffb").as_str(), None);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        assert_eq!(
            Text::<2>::new("abc").unwrap_err().to_string(),
            "\"abc\" is 3 bytes long and the field holds 2; shorten it"
        );
        assert!(
            Text::<9>::new("a\u{e4}")
                .unwrap_err()
                .to_string()
                .contains("printable ASCII")
        );
    }
}
