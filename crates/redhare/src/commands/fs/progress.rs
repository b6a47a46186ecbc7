//! Progress on standard error, where somebody looks at it.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over bytes, with files beside.
pub(super) struct Progress {
    bar: ProgressBar,
    total_files: u64,
    begun: Instant,
    /// Files and bytes in all, once somebody has counted them.
    counted: Arc<OnceLock<(u64, u64)>>,
}

impl Progress {
    /// Shows nothing where standard error is not a terminal.
    pub(super) fn new(what: &'static str, total_files: u64, total_bytes: u64) -> Self {
        let bar = ProgressBar::new(total_bytes);
        bar.set_style(counted_style());
        bar.set_prefix(what);
        Self::over(bar, total_files)
    }

    /// A bar over bytes of which nobody knows yet how many there are.
    pub(super) fn uncounted(what: &'static str) -> Self {
        let bar = ProgressBar::no_length();
        let template = "{prefix} {spinner} {msg} files  {binary_bytes}  {binary_bytes_per_sec}";
        let style = ProgressStyle::with_template(template).expect("the template names known keys");
        bar.set_style(style);
        bar.set_prefix(what);
        Self::over(bar, 0)
    }

    fn over(bar: ProgressBar, total_files: u64) -> Self {
        Self {
            bar,
            total_files,
            begun: Instant::now(),
            counted: Arc::default(),
        }
    }

    /// Where to say how many files and bytes there are, if anybody sees it.
    pub(super) fn wants_count(&self) -> Option<Arc<OnceLock<(u64, u64)>>> {
        (!self.bar.is_hidden()).then(|| self.counted.clone())
    }

    /// A bar over steps that take about as long.
    pub(super) fn of_steps(what: &'static str, steps: u64) -> Self {
        let bar = ProgressBar::new(steps);
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len}  {eta} left")
            .expect("the template names known keys");
        bar.set_style(style);
        bar.set_prefix(what);
        Self::over(bar, steps)
    }

    /// One more step is done.
    pub(super) fn step(&self) {
        self.bar.inc(1);
    }

    /// So much is done now.
    pub(super) fn set(&self, files: u64, bytes: u64) {
        // Formatting for a bar that is not drawn would cost more than some files do.
        if !self.bar.is_hidden() {
            self.bar.set_position(bytes);
            let rate = files as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
            let total = match self.counted.get() {
                Some(&(total, total_bytes)) => {
                    if self.bar.length().is_none() {
                        self.bar.set_style(counted_style());
                        self.bar.set_length(total_bytes);
                    }
                    total
                }
                None => self.total_files,
            };
            self.bar.set_message(match total {
                0 => format!("{files} ({rate:.0}/s)"),
                total => format!("{files}/{total} ({rate:.0}/s)"),
            });
        }
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn counted_style() -> ProgressStyle {
    let template = "{prefix} {wide_bar} {msg} files  {binary_bytes}/{binary_total_bytes}  \
                    {binary_bytes_per_sec}  {eta} left";
    ProgressStyle::with_template(template).expect("the template names known keys")
}

/// A bar for work of several stages, of which some do not know how long they are.
pub(super) struct Stages {
    bar: ProgressBar,
    stage: std::cell::Cell<&'static str>,
}

impl Stages {
    /// Shows nothing where standard error is not a terminal.
    pub(super) fn new() -> Self {
        let bar = ProgressBar::no_length();
        let stage = std::cell::Cell::new("");
        Self { bar, stage }
    }

    /// So much of a stage is done; `total` is 0 where it is not known.
    pub(super) fn set(&self, stage: &'static str, done: u64, total: u64) {
        if self.bar.is_hidden() {
            return;
        }
        if self.stage.replace(stage) != stage {
            let template = match total {
                0 => "{prefix} {spinner} {pos}",
                _ => "{prefix} {wide_bar} {pos}/{len}  {eta} left",
            };
            let style = ProgressStyle::with_template(template).expect("the template names known keys");
            self.bar.reset();
            self.bar.set_style(style);
            self.bar.set_prefix(stage);
            if total > 0 {
                self.bar.set_length(total);
            }
        }
        self.bar.set_position(done);
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
