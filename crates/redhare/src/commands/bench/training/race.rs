//! Two directories with the same files, read in turns by as many threads each.

use std::time::Duration;

use bench::local_files::{LocalFile, LocalReaders};
use bench::paired::quantile;
use bench::{cold, process};
use foundation::Random;

use crate::output::Failure;

/// Files of the slices that find out how many make one.
const TRIAL_FILES: usize = 512;

/// What the rounds gave.
pub(super) struct Raced {
    /// Median of the rounds' ratios, ours by theirs, and where half of them lie.
    pub(super) ratio: f64,
    pub(super) quartiles: (f64, f64),
    pub(super) rounds: usize,
    pub(super) ours: Side,
    pub(super) theirs: Side,
}

/// What one side did in a slice, or in all rounds.
#[derive(Default)]
pub(super) struct Side {
    files: f64,
    seconds: f64,
    cpu: Duration,
}

impl Side {
    /// Adds a slice.
    pub(super) fn add(&mut self, files: f64, seconds: f64, cpu: Duration) {
        self.files += files;
        self.seconds += seconds;
        self.cpu += cpu;
    }

    /// Files per second.
    pub(super) fn rate(&self) -> f64 {
        self.files / self.seconds
    }
}

impl std::ops::AddAssign for Side {
    fn add_assign(&mut self, other: Self) {
        self.add(other.files, other.seconds, other.cpu);
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu_us = self.cpu.as_secs_f64() * 1e6 / self.files;
        let rate = self.rate();
        write!(f, "{rate:.0} files/s, {cpu_us:.1} us of CPU a file")
    }
}

/// How long, and in how many slices.
pub(super) struct Length {
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) in_flight: usize,
    pub(super) data: Data,
}

/// Where the files' bytes are before they are read; names and inodes are in memory in any case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    /// Not in the kernel's memory: nothing is read twice before all was read once, and what it keeps is dropped before each such pass.
    Cold,
    /// All was read before, and nothing is dropped: what each side keeps is its own matter.
    Warm,
}

impl std::fmt::Display for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Data::Cold => "data cold",
            Data::Warm => "data warm",
        })
    }
}

/// Reads `ours` and `theirs`, which have the same files in the same order, in turns. `ours_beside` and `theirs_beside` are the
/// processor time of the processes that serve each.
pub(super) fn race(
    ours: Vec<LocalFile>,
    theirs: Vec<LocalFile>,
    length: &Length,
    ours_beside: impl Fn() -> Result<Duration, Failure>,
    theirs_beside: impl Fn() -> Result<Duration, Failure>,
) -> Result<Raced, Failure> {
    reactor::run(
        &reactor::Config::default(),
        run(ours, theirs, length, ours_beside, theirs_beside),
    )
    .map_err(Failure::new)?
}

async fn run(
    ours: Vec<LocalFile>,
    theirs: Vec<LocalFile>,
    length: &Length,
    ours_beside: impl Fn() -> Result<Duration, Failure>,
    theirs_beside: impl Fn() -> Result<Duration, Failure>,
) -> Result<Raced, Failure> {
    let start = |files: &[LocalFile]| LocalReaders::start(files.to_vec(), length.in_flight);
    let mut readers = [
        start(&theirs).map_err(Failure::new)?,
        start(&ours).map_err(Failure::new)?,
    ];
    let mut deck = Deck {
        random: Random::from_seed(1),
        order: (0..ours.len()).collect(),
        next: ours.len(),
        drops: match length.data {
            Data::Cold => theirs.into_iter().chain(ours).collect(),
            Data::Warm => Vec::new(),
        },
        is_cold: length.data == Data::Cold,
    };
    if length.data == Data::Warm {
        let all = deck.order.clone();
        for readers in &mut readers {
            readers.read(&all).await.map_err(Failure::new)?;
        }
    }
    let own = || process::cpu_time(std::process::id()).map_err(Failure::new);
    let trial = deck.deal(TRIAL_FILES)?;
    let mut seconds = 0.0;
    for readers in &mut readers {
        seconds += readers.read(&trial).await.map_err(Failure::new)?.seconds;
    }
    let share = length.seconds / length.rounds as f64;
    let count = (trial.len() as f64 * share / seconds.max(1e-6)) as usize;
    let count = count.max(length.in_flight);
    let mut sides = [Side::default(), Side::default()];
    let mut ratios = Vec::with_capacity(length.rounds);
    for round in 0..length.rounds {
        let files = deck.deal(count)?;
        let mut taken = [0.0; 2];
        for side in [round % 2, (round + 1) % 2] {
            let spent = || -> Result<Duration, Failure> {
                let beside = if side == 0 { theirs_beside() } else { ours_beside() };
                Ok(own()? + beside?)
            };
            let before = spent()?;
            let reading = readers[side].read(&files).await.map_err(Failure::new)?;
            let spent = spent()?;
            taken[side] = reading.seconds;
            sides[side].add(files.len() as f64, reading.seconds, spent.saturating_sub(before));
        }
        ratios.push(taken[0] / taken[1]);
    }
    let [theirs, ours] = sides;
    Ok(Raced {
        ratio: quantile(ratios.clone(), 0.5),
        quartiles: (quantile(ratios.clone(), 0.25), quantile(ratios, 0.75)),
        rounds: length.rounds,
        ours,
        theirs,
    })
}

/// Files in random order, none twice before all came once.
struct Deck {
    random: Random,
    order: Vec<usize>,
    next: usize,
    /// What is dropped from memory before each pass, of both sides.
    drops: Vec<LocalFile>,
    is_cold: bool,
}

impl Deck {
    fn deal(&mut self, count: usize) -> Result<Vec<usize>, Failure> {
        let count = count.min(self.order.len());
        if self.next + count > self.order.len() {
            self.random.shuffle(&mut self.order);
            self.next = 0;
            let is_dropped = self.is_cold && cold::drop_caches().is_ok();
            for file in &self.drops {
                let done = match is_dropped {
                    true => std::fs::metadata(&file.path).map(drop),
                    false => cold::evict(&file.path),
                };
                done.map_err(|error| Failure::new(format!("{}: {error}", file.path.display())))?;
            }
        }
        self.next += count;
        Ok(self.order[self.next - count..self.next].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_add_up_to_files_a_second_and_processor_time_a_file() {
        let mut side = Side::default();
        side.add(100.0, 0.5, Duration::from_millis(2));
        let mut other = Side::default();
        other.add(300.0, 0.5, Duration::from_millis(2));
        side += other;
        assert_eq!(side.to_string(), "400 files/s, 10.0 us of CPU a file");
    }

    #[test]
    fn both_sides_get_the_same_files_and_all_before_one_again() {
        let directory = tempfile::tempdir().unwrap();
        let files: Vec<LocalFile> = (0..40)
            .map(|number| {
                let path = directory.path().join(number.to_string());
                std::fs::write(&path, [1; 100]).unwrap();
                LocalFile {
                    path,
                    size_bytes: 100,
                }
            })
            .collect();
        let mut deck = Deck {
            random: Random::from_seed(1),
            order: (0..40).collect(),
            next: 40,
            drops: Vec::new(),
            is_cold: true,
        };
        let mut seen: Vec<usize> = (0..4).flat_map(|_| deck.deal(10).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
        let length = Length {
            rounds: 3,
            seconds: 0.01,
            in_flight: 2,
            data: Data::Cold,
        };
        let nothing = || Ok(Duration::ZERO);
        let raced = race(files.clone(), files.clone(), &length, nothing, nothing).unwrap();
        assert!(raced.ratio > 0.0 && raced.ours.files == raced.theirs.files);
        let other = files
            .iter()
            .map(|file| LocalFile {
                size_bytes: 7,
                ..file.clone()
            })
            .collect();
        assert!(race(files, other, &length, nothing, nothing).is_err());
    }
}
