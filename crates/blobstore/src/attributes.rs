//! Extended attributes of a blob, and their bytes: records of name length, value length, name, value.

use std::collections::BTreeMap;

use crate::format::PageError;

/// Longest name in bytes.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 64;
/// Longest value in bytes.
pub const ATTRIBUTE_VALUE_BYTES_MAX: usize = 4096;
const RECORD_HEAD_BYTES: usize = 4;

pub(crate) type Attributes = BTreeMap<String, Vec<u8>>;

/// Bytes that one attribute takes.
pub(crate) fn record_bytes(name: &str, value_bytes: usize) -> usize {
    RECORD_HEAD_BYTES + name.len() + value_bytes
}

/// Bytes that all attributes take.
pub(crate) fn encoded_bytes(attributes: &Attributes) -> usize {
    attributes
        .iter()
        .map(|(name, value)| record_bytes(name, value.len()))
        .sum()
}

/// All attributes, by name.
pub(crate) fn encode(attributes: &Attributes) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(encoded_bytes(attributes));
    for (name, value) in attributes {
        bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(value);
    }
    bytes
}

/// Reads them back; the bytes must be used up exactly.
pub(crate) fn decode(mut bytes: &[u8]) -> Result<Attributes, PageError> {
    let bad = PageError::Contents("its attributes cannot be parsed");
    let mut attributes = Attributes::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<RECORD_HEAD_BYTES>().ok_or(bad)?;
        let name_bytes = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let value_bytes = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if name_bytes == 0 || name_bytes > ATTRIBUTE_NAME_BYTES_MAX || value_bytes > ATTRIBUTE_VALUE_BYTES_MAX
        {
            return Err(bad);
        }
        let (name, rest) = rest.split_at_checked(name_bytes).ok_or(bad)?;
        let (value, rest) = rest.split_at_checked(value_bytes).ok_or(bad)?;
        let name = std::str::from_utf8(name).map_err(|_| bad)?;
        if attributes.insert(name.to_owned(), value.to_vec()).is_some() {
            return Err(bad);
        }
        bytes = rest;
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decode_undoes_encode(attributes: BTreeMap<String, Vec<u8>>) {
            let attributes: Attributes = attributes
                .into_iter()
                .filter(|(name, _)| (1..=ATTRIBUTE_NAME_BYTES_MAX).contains(&name.len()))
                .collect();
            let bytes = encode(&attributes);
            prop_assert_eq!(bytes.len(), encoded_bytes(&attributes));
            prop_assert_eq!(decode(&bytes).unwrap(), attributes);
        }

        #[test]
        fn noise_never_panics(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
