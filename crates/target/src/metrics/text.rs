//! Prometheus' text format, version 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{Display, Write};

/// Metrics, family by family.
#[derive(Default)]
pub(super) struct Text(String);

/// The samples of one metric, which stand together.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Text {
    /// Begins a metric. `help` has no line breaks and no backslashes.
    pub(super) fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        debug_assert!(!help.contains(['\n', '\\']));
        let text = &mut self.0;
        write_to(text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { text, name }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes what is written");
}

impl Family<'_> {
    /// One value under labels.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, None, value);
    }

    /// A histogram: `buckets` holds one count more than there are `ends`, for what is beyond.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], ends: &[f64], buckets: &[u64], sum: f64) {
        let mut count = 0;
        for (end, bucket) in ends.iter().zip(buckets) {
            count += bucket;
            self.line("_bucket", labels, Some(&end.to_string()), count);
        }
        count += buckets[ends.len()..].iter().sum::<u64>();
        self.line("_bucket", labels, Some("+Inf"), count);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], end: Option<&str>, value: impl Display) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let all = labels.iter().copied().chain(end.map(|end| ("le", end)));
        let mut separator = '{';
        for (name, value) in all {
            self.text.push(separator);
            separator = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        if separator == ',' {
            self.text.push('}');
        }
        write_to(self.text, format_args!(" {value}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_histograms_look_as_prometheus_wants_them() {
        let mut text = Text::default();
        text.family("a_total", "counter", "Things.").sample(&[], 3_u32);
        let mut family = text.family("b_seconds", "histogram", "Times.");
        family.histogram(&[("host", "a\"b\\c\nd")], &[0.000001, 0.0000015], &[1, 2, 4], 0.5);
        let expected = "# HELP a_total Things.\n# TYPE a_total counter\na_total 3\n\
            # HELP b_seconds Times.\n# TYPE b_seconds histogram\n\
            b_seconds_bucket{host=\"a\\\"b\\\\c\\nd\",le=\"0.000001\"} 1\n\
            b_seconds_bucket{host=\"a\\\"b\\\\c\\nd\",le=\"0.0000015\"} 3\n\
            b_seconds_bucket{host=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 7\n\
            b_seconds_sum{host=\"a\\\"b\\\\c\\nd\"} 0.5\n\
            b_seconds_count{host=\"a\\\"b\\\\c\\nd\"} 7\n";
        assert_eq!(text.finish(), expected);
    }
}
