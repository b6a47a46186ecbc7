//! One table per wire structure: each field's name, type and byte offset, written once and used for both
//! directions. The compiler refuses a table whose fields overlap, go backwards or leave the structure.
//!
//! All numbers are little-endian (NVM Express Base Specification 2.0c, section 1.4.2).

use thiserror::Error;

/// Fewer bytes came than the structure is long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{structure} needs {needed_bytes} bytes and got {got_bytes}; ask the peer for the whole structure")]
pub struct LengthError {
    /// The structure that was to be read.
    pub structure: &'static str,
    /// How long it is, in bytes.
    pub needed_bytes: usize,
    /// How many bytes there were.
    pub got_bytes: usize,
}

/// The first `N` bytes of `bytes`, or an error that names the structure.
pub(crate) fn prefix<'a, const N: usize>(
    structure: &'static str,
    bytes: &'a [u8],
) -> Result<&'a [u8; N], LengthError> {
    bytes.first_chunk().ok_or(LengthError {
        structure,
        needed_bytes: N,
        got_bytes: bytes.len(),
    })
}

/// A value of fixed length on the wire. `get` and `put` are handed exactly `BYTES` bytes.
pub(crate) trait Field: Sized {
    /// Length on the wire.
    const BYTES: usize;
    /// Reads the value.
    fn get(bytes: &[u8]) -> Self;
    /// Writes the value.
    fn put(&self, bytes: &mut [u8]);
}

macro_rules! number_fields {
    ($($number:ty),*) => {$(
        impl Field for $number {
            const BYTES: usize = size_of::<$number>();

            fn get(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$number>()];
                array.copy_from_slice(bytes);
                Self::from_le_bytes(array)
            }

            fn put(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

number_fields!(u8, u16, u32, u64, u128);

impl<T: Field, const N: usize> Field for [T; N] {
    const BYTES: usize = T::BYTES * N;

    fn get(bytes: &[u8]) -> Self {
        std::array::from_fn(|index| T::get(&bytes[index * T::BYTES..(index + 1) * T::BYTES]))
    }

    fn put(&self, bytes: &mut [u8]) {
        for (value, place) in self.iter().zip(bytes.chunks_exact_mut(T::BYTES)) {
            value.put(place);
        }
    }
}

/// Defines a structure with `encode` and `decode` from its table. Bytes that no field names travel as zero and
/// are ignored when read, as the specification asks for reserved fields (section 1.4.3).
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident [$bytes:literal] {
            $( $(#[$field_meta:meta])* $field:ident : $kind:ty = $offset:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $kind, )*
        }

        impl $name {
            /// Length on the wire, in bytes.
            pub const BYTES: usize = $bytes;

            /// The structure as it travels; reserved bytes are zero.
            pub fn encode(&self) -> [u8; $bytes] {
                let mut bytes = [0; $bytes];
                $crate::nvme::layout::Field::put(self, &mut bytes);
                bytes
            }

            /// Reads the structure from the first bytes of `bytes`; what follows is not looked at.
            ///
            /// # Errors
            /// `LengthError` when there are fewer bytes than the structure is long. Any content is accepted.
            pub fn decode(bytes: &[u8]) -> Result<Self, $crate::nvme::LengthError> {
                let bytes: &[u8; $bytes] = $crate::nvme::layout::prefix(stringify!($name), bytes)?;
                Ok($crate::nvme::layout::Field::get(bytes))
            }
        }

        impl $crate::nvme::layout::Field for $name {
            const BYTES: usize = $bytes;

            fn get(bytes: &[u8]) -> Self {
                Self {
                    $( $field: <$kind as $crate::nvme::layout::Field>::get(
                        &bytes[$offset..$offset + <$kind as $crate::nvme::layout::Field>::BYTES],
                    ), )*
                }
            }

            fn put(&self, bytes: &mut [u8]) {
                $( $crate::nvme::layout::Field::put(
                    &self.$field,
                    &mut bytes[$offset..$offset + <$kind as $crate::nvme::layout::Field>::BYTES],
                ); )*
            }
        }

        /// All zeros.
        impl Default for $name {
            fn default() -> Self {
                $crate::nvme::layout::Field::get(&[0; $bytes])
            }
        }

        const _: () = {
            let end = 0;
            $(
                assert!($offset >= end, concat!("a field lies before the end of the one before it: ", stringify!($field)));
                let end = $offset + <$kind as $crate::nvme::layout::Field>::BYTES;
            )*
            assert!(end <= $bytes, "the fields do not fit into the structure");
        };
    };
}

pub(crate) use layout;

/// What every table must hold: any bytes decode, encoding gives them back as far as fields name them, and a
/// structure one byte short is refused.
#[cfg(test)]
macro_rules! layout_tests {
    ($($name:ident),* $(,)?) => {
        #[allow(non_snake_case)]
        mod layouts {
            use super::*;
            $(
                proptest::proptest! {
                    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
                    #[test]
                    fn $name(noise in proptest::collection::vec(proptest::prelude::any::<u8>(), $name::BYTES)) {
                        let value = $name::decode(&noise).unwrap();
                        let wire = value.encode();
                        proptest::prop_assert_eq!($name::decode(&wire).unwrap(), value);
                        proptest::prop_assert!(wire.iter().zip(&noise).all(|(a, b)| a == b || *a == 0));
                        let short = $name::decode(&noise[..$name::BYTES - 1]).unwrap_err();
                        proptest::prop_assert_eq!(short.needed_bytes, $name::BYTES);
                    }
                }
            )*
        }
    };
}

#[cfg(test)]
pub(crate) use layout_tests;

#[cfg(test)]
#[allow(unreachable_pub)]
mod tests {

    layout! {
        /// A structure with a hole.
        pub struct Sample[8] {
            /// A number.
            first: u16 = 1,
            /// Bytes.
            second: [u8; 2] = 4,
        }
    }

    #[test]
    fn fields_land_at_their_offsets_and_holes_stay_zero() {
        let sample = Sample {
            first: 0x1234,
            second: [5, 6],
        };
        assert_eq!(sample.encode(), [0, 0x34, 0x12, 0, 5, 6, 0, 0]);
        assert_eq!(Sample::decode(&[0xff; 9]).unwrap().first, 0xffff);
        assert_eq!(Sample::default().encode(), [0; 8]);
    }

    #[test]
    fn a_short_structure_says_how_much_is_missing() {
        let error = Sample::decode(&[0; 7]).unwrap_err().to_string();
        assert_eq!(
            error,
            "Sample needs 8 bytes and got 7; ask the peer for the whole structure"
        );
    }

    layout_tests!(Sample);
}
