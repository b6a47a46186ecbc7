//! Contenders that take turns.
//!
//! The machine drifts, and flips between a fast and a slow state. So each round runs both contenders for a slice
//! each, in changing order, between two hand-off calibrations; a round whose calibrations disagree by more
//! than a half is dropped; the result is the median of the rounds' ratios.

/// What one slice of one contender gave.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Slice {
    /// Operations per second.
    pub rate: f64,
    /// User and system time per operation, both sides together, in microseconds.
    pub cpu_us: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

/// The result of a comparison.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Comparison {
    /// Rounds that counted.
    pub rounds: usize,
    /// Rounds dropped because the machine changed its state.
    pub dropped: usize,
    /// Median of ours over theirs.
    pub rate_ratio: f64,
    /// Median of our median latency over theirs.
    pub latency_ratio: f64,
    /// Median of our processor time an operation over theirs.
    pub cpu_ratio: f64,
    /// Medians of ours.
    pub ours: Slice,
    /// Medians of theirs.
    pub theirs: Slice,
}

/// Runs rounds until `wanted` count, at most three times as many.
///
/// `calibrate` gives the hand-off time in nanoseconds; `run(true)` runs a slice of ours, `run(false)` of theirs.
pub fn compare<E>(
    wanted: usize,
    mut calibrate: impl FnMut() -> Result<f64, E>,
    mut run: impl FnMut(bool) -> Result<Slice, E>,
    mut progress: impl FnMut(usize),
) -> Result<Comparison, E> {
    let mut pairs: Vec<(Slice, Slice)> = Vec::with_capacity(wanted);
    let mut dropped = 0;
    let mut before = calibrate()?;
    for round in 0..wanted * 3 {
        if pairs.len() == wanted {
            break;
        }
        let ours_first = round % 2 == 0;
        let first = run(ours_first)?;
        let between = calibrate()?;
        let second = run(!ours_first)?;
        let after = calibrate()?;
        let low = before.min(between).min(after);
        let high = before.max(between).max(after);
        if high > low * 1.5 {
            dropped += 1;
        } else {
            pairs.push(if ours_first {
                (first, second)
            } else {
                (second, first)
            });
        }
        progress(pairs.len());
        before = after;
    }
    let median_of = |value: &dyn Fn(&(Slice, Slice)) -> f64| median(pairs.iter().map(value).collect());
    let slice_of = |side: fn(&(Slice, Slice)) -> Slice| Slice {
        rate: median_of(&|pair| side(pair).rate),
        cpu_us: median_of(&|pair| side(pair).cpu_us),
        p50_us: median_of(&|pair| side(pair).p50_us),
        p99_us: median_of(&|pair| side(pair).p99_us),
    };
    Ok(Comparison {
        rounds: pairs.len(),
        dropped,
        rate_ratio: median_of(&|(ours, theirs)| ours.rate / theirs.rate),
        latency_ratio: median_of(&|(ours, theirs)| ours.p50_us / theirs.p50_us),
        cpu_ratio: median_of(&|(ours, theirs)| ours.cpu_us / theirs.cpu_us),
        ours: slice_of(|pair| pair.0),
        theirs: slice_of(|pair| pair.1),
    })
}

/// The middle value; NaN of nothing.
pub fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value that `share` (0 to 1) of the values do not exceed, interpolated; NaN of nothing.
pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = last as f64 * share.clamp(0.0, 1.0);
    let below = values[at.floor() as usize];
    let above = values[at.ceil() as usize];
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(rate: f64) -> Slice {
        Slice {
            rate,
            cpu_us: 1.0,
            p50_us: 1e6 / rate,
            p99_us: 2e6 / rate,
        }
    }

    #[test]
    fn drift_cancels_out() {
        let mut speed = 1000.0;
        let result = compare::<()>(
            20,
            || Ok(30.0),
            |ours| {
                speed *= 0.99;
                Ok(slice(if ours { speed * 0.8 } else { speed }))
            },
            |_| {},
        )
        .unwrap();
        assert_eq!((result.rounds, result.dropped), (20, 0));
        assert!((result.rate_ratio - 0.8).abs() < 0.02, "{}", result.rate_ratio);
    }

    #[test]
    fn rounds_in_which_the_machine_changed_do_not_count() {
        let mut calls = 0;
        let calibrate = || {
            calls += 1;
            Ok(if calls % 7 == 0 { 160.0 } else { 31.0 })
        };
        let result = compare::<()>(
            20,
            calibrate,
            |ours| Ok(slice(if ours { 2.0 } else { 1.0 })),
            |_| {},
        )
        .unwrap();
        assert_eq!(result.rounds, 20);
        assert!(result.dropped > 5);
        assert!((result.rate_ratio - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
        assert_eq!(quantile(vec![5.0, 1.0, 2.0, 3.0, 4.0], 0.25), 2.0);
        assert_eq!(quantile(vec![1.0, 2.0], 1.0), 2.0);
    }
}
