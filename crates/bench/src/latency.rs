//! Latencies in microseconds, counted without allocation.

use std::time::Duration;

/// Counts up to this many microseconds one by one; all longer ones count as this.
const LIMIT_US: usize = 1 << 20;

/// How often each latency was seen.
pub struct Latencies {
    counts: Vec<u32>,
    total: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            counts: vec![0; LIMIT_US],
            total: 0,
        }
    }
}

impl Latencies {
    /// Notes one.
    pub fn add(&mut self, latency: Duration) {
        let us = usize::try_from(latency.as_micros())
            .unwrap_or(LIMIT_US)
            .min(LIMIT_US - 1);
        self.counts[us] = self.counts[us].saturating_add(1);
        self.total += 1;
    }

    /// How many were noted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The latency in microseconds that `share` (0 to 1) of all do not exceed; 0 if there are none.
    pub fn percentile_us(&self, share: f64) -> u64 {
        let wanted = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (us, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= wanted {
                return us as u64;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_below_the_limit() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile_us(0.5), 0);
        for us in 1..=1000 {
            latencies.add(Duration::from_micros(us));
        }
        assert_eq!(latencies.percentile_us(0.5), 500);
        assert_eq!(latencies.percentile_us(0.99), 990);
        assert_eq!(latencies.percentile_us(1.0), 1000);
        latencies.add(Duration::from_secs(3600));
        assert_eq!(latencies.percentile_us(1.0), LIMIT_US as u64 - 1);
    }
}
