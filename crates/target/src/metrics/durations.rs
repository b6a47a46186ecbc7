//! How long commands took, as Prometheus' histograms.

use fabrics::target::{BUCKET_ENDS_NS, Kind, Latencies};

use super::name_of;
use super::text::{Family, Text};

/// Of the buckets that are counted, queues show one in so many: there are up to 16 queues for each of hundreds of
/// hosts, and each bucket is a line of some 200 bytes. Ends are powers of four then, from 1 us to 4.2 s.
const QUEUE_STEP: usize = 4;

/// Begins a histogram.
pub(super) fn family<'a>(text: &'a mut Text, name: &'static str) -> Family<'a> {
    text.family(
        name,
        "histogram",
        "From when a command was taken in until the socket had its answer.",
    )
}

/// Every bucket.
pub(super) fn fine(family: &mut Family<'_>, labels: &[(&str, &str)], latencies: &[Latencies; 3]) {
    show(family, labels, latencies, 1);
}

/// Some of the ends, and nothing of operations that there were none of.
pub(super) fn coarse(family: &mut Family<'_>, labels: &[(&str, &str)], latencies: &[Latencies; 3]) {
    show(family, labels, latencies, QUEUE_STEP);
}

fn show(family: &mut Family<'_>, labels: &[(&str, &str)], latencies: &[Latencies; 3], step: usize) {
    for kind in Kind::ALL {
        let Latencies { buckets, sum } = &latencies[kind as usize];
        if step > 1 && buckets.iter().all(|&count| count == 0) {
            continue;
        }
        let labels = [labels, &[("operation", name_of(kind))]].concat();
        let (ends, counts) = folded(buckets, step);
        family.histogram(&labels, &ends, &counts, sum.as_secs_f64());
    }
}

/// Every `step`-th end in seconds, and what lies up to each; the last count is beyond them all.
fn folded(buckets: &[u64], step: usize) -> (Vec<f64>, Vec<u64>) {
    let (mut ends, mut counts, mut count) = (Vec::new(), Vec::new(), 0);
    for (index, bucket) in buckets.iter().enumerate() {
        count += bucket;
        if index % step == 0
            && let Some(&end_ns) = BUCKET_ENDS_NS.get(index)
        {
            ends.push(end_ns as f64 / 1e9);
            counts.push(std::mem::take(&mut count));
        }
    }
    counts.push(count);
    (ends, counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_shows_powers_of_four_and_loses_no_command() {
        let buckets: Vec<u64> = (1..=BUCKET_ENDS_NS.len() as u64 + 1).collect();
        let (ends, counts) = folded(&buckets, QUEUE_STEP);
        assert_eq!(ends.len(), 12);
        for (power, end) in ends.iter().enumerate() {
            assert_eq!(*end, 4_f64.powi(i32::try_from(power).unwrap()) / 1e6);
        }
        assert_eq!(counts[..3], [1, 2 + 3 + 4 + 5, 6 + 7 + 8 + 9]);
        assert_eq!(counts.len(), 13);
        assert_eq!(counts.iter().sum::<u64>(), buckets.iter().sum::<u64>());
        let (ends, counts) = folded(&buckets, 1);
        assert_eq!((ends.len(), counts), (BUCKET_ENDS_NS.len(), buckets));
    }
}
