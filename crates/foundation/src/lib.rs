//! What every other crate stands on: unit types, checksums, time, a seeded generator, and what nodes and masters compare.
//!
//! Nothing here knows about any other part of Redhare, does I/O, or reads a clock.

pub mod cache;
pub mod checksum;
pub mod kept;
pub mod random;
pub mod seeds;
pub mod time;
pub mod units;
pub mod uuid;

pub use kept::KeptCopies;
pub use random::Random;
pub use time::Instant;
pub use units::{BlockCount, ByteCount, Epoch, Lba};

/// Which release this is, as `redhare --version` and all processes say it: the version, unless whoever built it has called it otherwise
/// by `REDHARE_RELEASE` in the environment of the build, as for what is between two versions.
pub const RELEASE: &str = match option_env!("REDHARE_RELEASE") {
    Some(release) => release,
    None => env!("CARGO_PKG_VERSION"),
};

/// The longest name of a release that is told and shown, in bytes.
pub const RELEASE_BYTES_MAX: usize = 64;

/// The name of a release that somebody else has told: none if it is none that can be shown in a line, with letters, digits and signs of
/// ASCII and at most [`RELEASE_BYTES_MAX`] of them.
pub fn release(told: &str) -> Option<&str> {
    let fits = (1..=RELEASE_BYTES_MAX).contains(&told.len());
    (fits && told.bytes().all(|byte| byte.is_ascii_graphic())).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_a_word() {
        assert_eq!(release(RELEASE), Some(RELEASE), "what is told is heard");
        let longest = "x".repeat(RELEASE_BYTES_MAX);
        assert_eq!(release(&longest), Some(&longest[..]));
        for none in [
            "",
            "a b",
            "a\n",
            "\u{1b}[2J",
            "é",
            &"x".repeat(RELEASE_BYTES_MAX + 1),
        ] {
            assert_eq!(release(none), None, "{none:?}");
        }
    }
}
