//! Integers of variable length, and a reader that never runs over the end.

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end in the middle of a field.
    #[error("the bytes end in the middle of a field")]
    Truncated,
    /// Bytes follow where none may.
    #[error("bytes follow the last field")]
    Trailing,
    /// A number is longer than 64 bits, or than its field allows.
    #[error("a number is too large for its field")]
    TooLarge,
    /// A code or flag that this version does not know.
    #[error("unknown code {0:#04x}")]
    Unknown(u8),
    /// A field's value contradicts another one.
    #[error("a field's value contradicts another one")]
    Inconsistent,
}

/// Appends `value` in groups of seven bits, lowest first, the high bit set on all but the last byte.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number so that small ones of either sign stay short.
pub(crate) fn put_zigzag(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Takes fields from the front of some bytes.
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], CodecError> {
        if length > self.rest.len() {
            return Err(CodecError::Truncated);
        }
        let (head, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().expect("take gives as many bytes as asked for"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, CodecError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(CodecError::TooLarge);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::TooLarge)
    }

    pub(crate) fn varint_u32(&mut self) -> Result<u32, CodecError> {
        u32::try_from(self.varint()?).map_err(|_| CodecError::TooLarge)
    }

    pub(crate) fn zigzag(&mut self) -> Result<i64, CodecError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn finish(self) -> Result<(), CodecError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(CodecError::Trailing)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, signed: i64) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            put_zigzag(&mut bytes, signed);
            let mut decoder = Decoder::new(&bytes);
            prop_assert_eq!(decoder.varint().unwrap(), value);
            prop_assert_eq!(decoder.zigzag().unwrap(), signed);
            decoder.finish().unwrap();
        }
    }

    #[test]
    fn numbers_past_64_bits_are_refused() {
        assert_eq!(Decoder::new(&[0xff; 9]).varint(), Err(CodecError::Truncated));
        assert_eq!(Decoder::new(&[0xff; 11]).varint(), Err(CodecError::TooLarge));
        let mut top = [0xff; 10];
        top[9] = 1;
        assert_eq!(Decoder::new(&top).varint(), Ok(u64::MAX));
        top[9] = 2;
        assert_eq!(Decoder::new(&top).varint(), Err(CodecError::TooLarge));
    }
}
