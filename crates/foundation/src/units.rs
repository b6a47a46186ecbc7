//! Quantities that cross crate boundaries, so that a block number is never taken for a byte count.

use std::fmt;

/// A logical block address: the index of a block on its device. Its unit is that device's block size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// A number of logical blocks. Its unit is the block size of the device it is used with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockCount(pub u64);

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

/// The version of a chunk's configuration. Grows by one with each committed change; 0 is "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Lba {
    /// The address `blocks` further on, or `None` past the end of 64 bits.
    pub fn checked_add(self, blocks: BlockCount) -> Option<Lba> {
        self.0.checked_add(blocks.0).map(Lba)
    }
}

impl ByteCount {
    /// 1024 bytes.
    pub const KIB: ByteCount = ByteCount(1 << 10);
    /// 1024 KiB.
    pub const MIB: ByteCount = ByteCount(1 << 20);
    /// 1024 MiB.
    pub const GIB: ByteCount = ByteCount(1 << 30);
    /// 1024 GiB.
    pub const TIB: ByteCount = ByteCount(1 << 40);
}

impl Epoch {
    /// A copy that is served by force begins so far above every epoch known (`docs/decisions/0105`). Much further than a
    /// chunk's configurations come while a copy is away, and than those of a store that is made anew begin.
    pub const JUMP: u64 = 1 << 16;

    /// The epoch that follows this one.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for BlockCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const BINARY_UNITS: [(&str, ByteCount); 4] = [
    ("TiB", ByteCount::TIB),
    ("GiB", ByteCount::GIB),
    ("MiB", ByteCount::MIB),
    ("KiB", ByteCount::KIB),
];

/// Binary units with at most one decimal: `4 KiB`, `1.5 GiB`, `17 B`.
impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in BINARY_UNITS {
            if self.0 >= unit.0 {
                let text = if self.0.is_multiple_of(unit.0) {
                    format!("{} {name}", self.0 / unit.0)
                } else {
                    format!("{:.1} {name}", self.0 as f64 / unit.0 as f64)
                };
                return f.pad(&text);
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

/// Why a size such as `64GiB` could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseByteCountError {
    text: String,
}

impl fmt::Display for ParseByteCountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" is not a size; write a whole number and B, KiB, MiB, GiB, TiB or PiB, below 16384 PiB in all, such as 64GiB",
            self.text
        )
    }
}

impl std::error::Error for ParseByteCountError {}

/// Accepts a whole number with an optional binary unit: `4096`, `4KiB`, `64 GiB`, `1T`.
impl std::str::FromStr for ByteCount {
    type Err = ParseByteCountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseByteCountError {
            text: text.to_owned(),
        };
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let number: u64 = trimmed[..digits].parse().map_err(|_| error())?;
        let unit = match trimmed[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => ByteCount::KIB.0,
            "m" | "mib" => ByteCount::MIB.0,
            "g" | "gib" => ByteCount::GIB.0,
            "t" | "tib" => ByteCount::TIB.0,
            "p" | "pib" => ByteCount::TIB.0 << 10,
            _ => return Err(error()),
        };
        number.checked_mul(unit).map(ByteCount).ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_as_they_are_read() {
        for text in ["17 B", "4 KiB", "64 GiB", "2 TiB"] {
            let size: ByteCount = text.parse().unwrap();
            assert_eq!(size.to_string(), text);
        }
        assert_eq!(ByteCount(1536).to_string(), "1.5 KiB");
    }

    #[test]
    fn a_bad_size_says_what_to_write() {
        for text in [
            "",
            "GiB",
            "1.5GiB",
            "4 parsecs",
            "99999999999999999999",
            "999999999999TiB",
        ] {
            let error = text.parse::<ByteCount>().unwrap_err().to_string();
            assert!(error.contains("such as 64GiB"), "{error}");
        }
    }
}
