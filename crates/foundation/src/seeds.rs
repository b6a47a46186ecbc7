//! Which seeds a simulation tries: one rule for every crate's.

/// The seeds from `REDHARE_SEED` (just this one), or from `REDHARE_FIRST_SEED` (0) on as many as `REDHARE_SEEDS` says
/// (`default`). `cargo xtask sim` sets these.
///
/// # Panics
/// If one of them is not a whole number: a run of other seeds than those asked for would prove nothing.
pub fn from_environment(default: u64) -> Vec<u64> {
    choose(
        number("REDHARE_SEED"),
        number("REDHARE_FIRST_SEED"),
        number("REDHARE_SEEDS"),
        default,
    )
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{name} must be a whole number of 64 bits, not {text:?}")))
}

fn choose(one: Option<u64>, first: Option<u64>, count: Option<u64>, default: u64) -> Vec<u64> {
    match one {
        Some(seed) => vec![seed],
        None => {
            let first = first.unwrap_or(0);
            (first..first.saturating_add(count.unwrap_or(default))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn one_seed_goes_before_a_range_and_a_range_before_the_default() {
        assert_eq!(choose(None, None, None, 3), [0, 1, 2]);
        assert_eq!(choose(None, Some(10), Some(2), 3), [10, 11]);
        assert_eq!(choose(Some(7), Some(10), Some(2), 3), [7]);
        assert_eq!(choose(None, Some(u64::MAX), Some(2), 3), [u64::MAX; 0]);
    }
}
