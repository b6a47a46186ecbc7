//! Progress on standard error, where somebody looks at it.

use std::cell::Cell;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foundation::ByteCount;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// A bar over bytes is drawn anew after so long even if nothing has moved: then its rate and its time left say so.
const DRAWN_EVERY: Duration = Duration::from_millis(200);

/// The first files say little of those that follow: after so long they are taken for a rate.
const KNOWN_AFTER: Duration = Duration::from_secs(1);

/// A bar over bytes, with files beside.
pub(super) struct Progress {
    bar: ProgressBar,
    is_shown: bool,
    files: Arc<Files>,
    /// Whether the bar knows how long it is.
    has_length: Cell<bool>,
    /// Files and bytes in all, once somebody has counted them.
    counted: Arc<OnceLock<(u64, u64)>>,
}

/// What is drawn of the files.
#[derive(Default)]
struct Files {
    done: AtomicU64,
    /// 0 where nobody knows.
    total: AtomicU64,
}

impl Progress {
    /// Shows nothing where standard error is not a terminal. Of 0 files in all nobody knows how many there are.
    pub(super) fn new(what: &'static str, total_files: u64, total_bytes: u64) -> Self {
        let progress = Self::over(ProgressBar::new(total_bytes), what);
        progress.files.total.store(total_files, Ordering::Relaxed);
        progress.draw_with(COUNTED);
        progress
    }

    /// A bar over bytes of which nobody knows yet how many there are.
    pub(super) fn uncounted(what: &'static str) -> Self {
        let progress = Self::over(ProgressBar::no_length(), what);
        progress.has_length.set(false);
        progress.draw_with(UNCOUNTED);
        progress
    }

    /// A bar over steps that take about as long. It is drawn by its steps alone, since these may be measured.
    pub(super) fn of_steps(what: &'static str, steps: u64) -> Self {
        let progress = Self::over(ProgressBar::new(steps), what);
        progress.bar.set_style(style(STEPS));
        progress
    }

    fn over(bar: ProgressBar, what: &'static str) -> Self {
        Self {
            is_shown: !bar.is_hidden(),
            bar: bar.with_prefix(what),
            files: Arc::default(),
            has_length: Cell::new(true),
            counted: Arc::default(),
        }
    }

    /// Begins to draw it.
    fn draw_with(&self, template: &'static str) {
        // A thread draws: formatting where it moves would cost more than some files do.
        if self.is_shown {
            self.bar.set_style(self.style(template));
            self.bar.enable_steady_tick(DRAWN_EVERY);
        }
    }

    fn style(&self, template: &'static str) -> ProgressStyle {
        let files = self.files.clone();
        style(template)
            .with_key("files", move |state: &ProgressState, text: &mut dyn Write| {
                let rate =
                    files.done.load(Ordering::Relaxed) as f64 / state.elapsed().as_secs_f64().max(0.001);
                // There is nobody to tell that a line could not be made longer.
                let _ = write!(text, "{files} files ({rate:.0}/s)");
            })
            .with_key("bytes", |state: &ProgressState, text: &mut dyn Write| {
                let rate = ByteCount(state.per_sec() as u64);
                let _ = write!(text, "{} ({rate}/s)", of_all(state.pos(), state.len()));
            })
            .with_key("left", |state: &ProgressState, text: &mut dyn Write| {
                let left = state.eta();
                let is_known = left > Duration::ZERO && state.elapsed() > KNOWN_AFTER;
                let _ = match is_known || state.fraction() >= 1.0 {
                    true => write!(text, "{:#} left", HumanDuration(left)),
                    false => write!(text, "? left"),
                };
            })
    }

    /// Where to say how many files and bytes there are, if anybody sees it.
    pub(super) fn wants_count(&self) -> Option<Arc<OnceLock<(u64, u64)>>> {
        self.is_shown.then(|| self.counted.clone())
    }

    /// What there is in all, if somebody has counted it.
    pub(super) fn counted(&self) -> Option<(u64, u64)> {
        self.counted.get().copied()
    }

    /// One more step is done.
    pub(super) fn step(&self) {
        self.bar.inc(1);
    }

    /// So much is done now.
    pub(super) fn set(&self, files: u64, bytes: u64) {
        if !self.is_shown {
            return;
        }
        self.files.done.store(files, Ordering::Relaxed);
        self.bar.set_position(bytes);
        if !self.has_length.get()
            && let Some(&(total_files, total_bytes)) = self.counted.get()
        {
            self.lengthen(total_files, total_bytes);
        }
    }

    /// Everything was done; from now on it is `what` that takes time.
    pub(super) fn last(&self, what: &'static str) {
        if !self.is_shown {
            return;
        }
        let (files, bytes) = (self.files.done.load(Ordering::Relaxed), self.bar.position());
        if !self.has_length.get() {
            // Who was to count is slower than who has done it, or there is nobody.
            let (total_files, total_bytes) = self.counted.get().copied().unwrap_or((files, bytes));
            self.lengthen(total_files, total_bytes);
        } else if self.files.total.load(Ordering::Relaxed) == 0 {
            self.files.total.store(files, Ordering::Relaxed);
        }
        self.bar.set_prefix(what);
        self.bar.force_draw();
    }

    fn lengthen(&self, total_files: u64, total_bytes: u64) {
        self.has_length.set(true);
        self.files.total.store(total_files, Ordering::Relaxed);
        self.bar.set_style(self.style(COUNTED));
        self.bar.set_length(total_bytes);
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl std::fmt::Display for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let done = self.done.load(Ordering::Relaxed);
        match self.total.load(Ordering::Relaxed) {
            0 => write!(f, "{done}"),
            total => write!(f, "{done}/{total}"),
        }
    }
}

/// Short enough for 80 columns with a million files and hundreds of GiB.
const COUNTED: &str = "{prefix} {wide_bar} {files}  {bytes}  {left}";
const UNCOUNTED: &str = "{prefix} {spinner} {files}  {bytes}";
const STEPS: &str = "{prefix} {wide_bar} {pos}/{len}  {eta} left";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates can be read")
}

/// Bytes of all bytes, with the unit once where it is the same.
fn of_all(done: u64, total: Option<u64>) -> String {
    let done = ByteCount(done).to_string();
    let Some(total) = total.map(|total| ByteCount(total).to_string()) else {
        return done;
    };
    match (done.split_once(' '), total.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number}/{total}"),
        _ => format!("{done}/{total}"),
    }
}

/// A bar for work of several stages, of which some do not know how long they are.
pub(super) struct Stages {
    bar: ProgressBar,
    stage: Cell<&'static str>,
}

impl Stages {
    /// Shows nothing where standard error is not a terminal.
    pub(super) fn new() -> Self {
        let bar = ProgressBar::no_length();
        let stage = Cell::new("");
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
                _ => STEPS,
            };
            self.bar.reset();
            self.bar.set_style(style(template));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_stands_twice_only_where_it_differs() {
        assert_eq!(of_all(1000, None), "1000 B");
        assert_eq!(of_all(3 << 19, Some(5 << 20)), "1.5/5 MiB");
        assert_eq!(of_all(7, Some(5 << 20)), "7 B/5 MiB");
        assert_eq!(of_all(0, Some(0)), "0/0 B");
    }
}
