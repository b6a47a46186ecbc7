//! Enumerations of wire codes, each with the specification's name, from one table.

/// Defines an enumeration whose variants have a code and the specification's name.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $number:ty {
            $( $(#[$variant_meta:meta])* $variant:ident = $code:literal $text:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($number)]
        pub enum $name {
            $( #[doc = $text] $(#[$variant_meta])* $variant = $code, )*
        }

        impl $name {
            /// Every code of the table, in its order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The meaning of a code, or `None` when it is reserved or not known here.
            pub const fn from_code(code: $number) -> Option<Self> {
                match code {
                    $( $code => Some(Self::$variant), )*
                    _ => None,
                }
            }

            /// The code as it travels.
            pub const fn code(self) -> $number {
                self as $number
            }

            /// The specification's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use codes;

#[cfg(test)]
#[allow(unreachable_pub)]
mod tests {
    codes! {
        /// A sample.
        pub enum Sample: u8 {
            First = 0x01 "The First",
            /// More about it.
            Third = 0x03 "The Third",
        }
    }

    #[test]
    fn codes_and_variants_agree() {
        for sample in Sample::ALL {
            assert_eq!(Sample::from_code(sample.code()), Some(*sample));
        }
        assert_eq!(Sample::from_code(2), None);
        assert_eq!(Sample::Third.to_string(), "The Third");
    }
}
