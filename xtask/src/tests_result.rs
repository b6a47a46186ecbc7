//! The counts in a test program's output.

/// How many tests passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// Adds what a line `test result: ok. 3 passed; 0 failed; 1 ignored; ...` says. Another line
    /// changes nothing.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ") else {
            return;
        };
        let words: Vec<&str> = counts.split_whitespace().collect();
        let before = |name: &str| -> u64 {
            let number = words
                .windows(2)
                .find(|pair| pair[1].trim_end_matches(';') == name)
                .map(|pair| pair[0]);
            number.and_then(|digits| digits.parse().ok()).unwrap_or(0)
        };
        self.passed += before("passed");
        self.failed += before("failed");
        self.skipped += before("ignored");
    }

    /// Counts `skips` of the passed tests as skipped: a test that lacks something returns early,
    /// which the test program reports as passed.
    pub(crate) fn turn_into_skips(&mut self, skips: u64) {
        self.passed = self.passed.saturating_sub(skips);
        self.skipped += skips;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_lines_with_and_without_colour() {
        let mut counts = Counts::default();
        counts.add_line(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.00s",
        );
        counts.add_line(
            "test result: \u{1b}[31mFAILED\u{1b}(B\u{1b}[m. 10 passed; 2 failed; 0 ignored; 0 measured",
        );
        counts.add_line("test some::test ... ok");
        counts.add_line("I said: 5 passed; 5 failed;");
        assert_eq!(
            counts,
            Counts {
                passed: 13,
                failed: 2,
                skipped: 1
            }
        );
        counts.turn_into_skips(2);
        assert_eq!(counts.to_string(), "11 passed, 2 failed, 3 skipped");
    }
}
