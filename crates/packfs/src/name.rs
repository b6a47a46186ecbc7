//! Names are bytes: up to 255, no slash, no zero, not empty, not `.` or `..`.

use std::fmt;
use std::sync::Arc;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;

/// Why bytes cannot be a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing is there.
    #[error("a name is empty; give it at least one byte")]
    Empty,
    /// `.` or `..`, which mean directories themselves.
    #[error("\"{0}\" means a directory itself and cannot name an entry; choose another name")]
    Dots(Shown),
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("the name \"{name}\" has {length} bytes; the most is {NAME_BYTES_MAX}: shorten it")]
    TooLong {
        /// The name.
        name: Shown,
        /// Its length in bytes.
        length: usize,
    },
    /// A slash or a zero byte.
    #[error("the name \"{name}\" has the byte {byte:#04x} at {at}, which no name may have; rename it")]
    Forbidden {
        /// The name.
        name: Shown,
        /// The byte.
        byte: u8,
        /// Its index.
        at: usize,
    },
    /// A symbolic link's target of no bytes or of more than [`TARGET_BYTES_MAX`].
    #[error("the target of symbolic link \"{name}\" has {length} bytes; it may have 1 to {TARGET_BYTES_MAX}")]
    Target {
        /// The link's name.
        name: Shown,
        /// The target's length in bytes.
        length: usize,
    },
}

/// A name or path for a person to read: bytes that are not UTF-8 or not printable are escaped, and so are backslashes: no two names look the same. A clone costs no memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown(Arc<[u8]>);

impl Shown {
    /// Shows these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// The bytes themselves.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                // Else a name with a backslash would look like another one with a byte that is no UTF-8.
                if character.is_control() || character == '\\' {
                    write!(f, "{}", character.escape_default())?;
                } else {
                    write!(f, "{character}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Whether bytes can name an entry.
pub fn check_name(name: &[u8]) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name == b"." || name == b".." {
        return Err(NameError::Dots(Shown::new(name)));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong {
            name: Shown::new(name),
            length: name.len(),
        });
    }
    match name.iter().position(|&byte| byte == b'/' || byte == 0) {
        None => Ok(()),
        Some(at) => Err(NameError::Forbidden {
            name: Shown::new(name),
            byte: name[at],
            at,
        }),
    }
}

/// Whether bytes can be the target of the symbolic link `name`.
pub fn check_target(name: &[u8], target: &[u8]) -> Result<(), NameError> {
    if (1..=TARGET_BYTES_MAX).contains(&target.len()) {
        Ok(())
    } else {
        Err(NameError::Target {
            name: Shown::new(name),
            length: target.len(),
        })
    }
}

/// The names along a path. Repeated and outer slashes do not count.
pub fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_told_apart() {
        for (name, part) in [
            (&b""[..], "empty"),
            (b".", "directory itself"),
            (b"..", "directory itself"),
            (b"a/b", "byte 0x2f at 1"),
            (b"a\0", "byte 0x00 at 1"),
            (&[b'x'; 256], "256 bytes"),
        ] {
            let text = check_name(name).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
        for name in [&b"..."[..], b"\xff\xfe", &[b'x'; 255]] {
            check_name(name).unwrap();
        }
        assert_eq!(Shown::new(b"a\xffb\n").to_string(), "a\\xffb\\n");
        // Not the same as the name before.
        assert_eq!(Shown::new(b"a\\xffb").to_string(), "a\\\\xffb");
    }
}
