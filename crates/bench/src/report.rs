//! The rows of a report: what was measured, and the bar it has to meet.

/// What a measured value must be.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Less than this.
    Below(f64),
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bar::AtLeast(least) => write!(f, ">= {least}"),
            Bar::AtMost(most) => write!(f, "<= {most}"),
            Bar::Below(limit) => write!(f, "< {limit}"),
        }
    }
}

/// One measured value.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// The value; NaN (null in JSON) if nothing could be measured.
    pub value: f64,
    /// What the value counts.
    pub unit: &'static str,
    /// The bar; some rows have none.
    pub bar: Option<Bar>,
    /// Whether the value meets the bar.
    pub met: Option<bool>,
    /// What else there is to know.
    pub note: String,
}

impl Row {
    /// A row; a value that is no number misses any bar.
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str, bar: Option<Bar>) -> Self {
        let meets = |bar: Bar| match bar {
            Bar::AtLeast(least) => value >= least,
            Bar::AtMost(most) => value <= most,
            Bar::Below(limit) => value < limit,
        };
        Self {
            name: name.into(),
            value,
            unit,
            bar,
            met: bar.map(meets),
            note: String::new(),
        }
    }

    /// A row that cannot be measured here, and why. Its bar counts as missed: who has not measured has not met it.
    pub fn missing(name: impl Into<String>, bar: Bar, why: impl Into<String>) -> Self {
        Self::new(name, f64::NAN, "", Some(bar)).with_note(why)
    }

    /// The same with a note.
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Whether it has a bar and misses it.
    pub fn is_missed(&self) -> bool {
        self.met == Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_at_its_edge_only_from_the_right_side() {
        let missed = |value, bar| Row::new("x", value, "y", bar).is_missed();
        assert!(!missed(1.0, Some(Bar::AtLeast(1.0))));
        assert!(missed(0.999, Some(Bar::AtLeast(1.0))));
        assert!(missed(200.0, Some(Bar::Below(200.0))));
        assert!(!missed(199.9, Some(Bar::Below(200.0))));
        assert!(!missed(2.0, Some(Bar::AtMost(2.0))));
        assert!(missed(2.001, Some(Bar::AtMost(2.0))) && missed(f64::NAN, Some(Bar::AtMost(2.0))));
        assert!(!missed(1e9, None));
        assert!(missed(f64::NAN, Some(Bar::AtLeast(0.0))) && missed(f64::NAN, Some(Bar::Below(9.0))));
        assert!(Row::missing("x", Bar::AtMost(1.0), "there is none").is_missed());
    }
}
