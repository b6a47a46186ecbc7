//! `redhare fs bench --against`: a volume and the local directory it was filled from, read in turns.
//!
//! A round gives both the same files in the same order, one after the other, and every second round begins with the
//! other side; the ratio of a round is that of the two times, and the result the median of all rounds. No file is read
//! twice before all were read once, and then what is in memory is dropped again, so data is cold on both sides; what
//! is dropped between slices does not count.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::latency::Latencies;
use bench::local_files::{LocalFile, LocalReaders, Reading};
use bench::paired::quantile;
use bench::{cold, process};
use foundation::{ByteCount, Random};
use packfs::ReaderOptions;

use super::bench::{Evict, Index};
use super::medium::{Opened, Volume};
use super::processes::ClusterProcesses;
use super::progress::Progress;
use super::readers::{VolumeFile, VolumeReaders, WindowedReading};
use crate::output::{Failure, table};

/// Files that each side reads first to find out how many make a slice, a multiple of the files in flight.
const TRIAL_BATCHES: usize = 16;
/// Longest bar of the chart, in characters.
const CHART_WIDTH: f64 = 40.0;

/// What is compared, and how.
pub(super) struct Against<'a> {
    pub(super) opened: &'a Opened,
    pub(super) volume: &'a Volume,
    /// The directory on the volume.
    pub(super) from: &'a [u8],
    pub(super) options: &'a ReaderOptions,
    /// The same directory locally.
    pub(super) directory: &'a Path,
    pub(super) in_flight: usize,
    /// Cores that read the volume.
    pub(super) cores: usize,
    /// Files of the volume that are asked for with one call.
    pub(super) batch: usize,
    /// How the order is shuffled and the volume read, where not every file may follow any other.
    pub(super) windowed: Option<WindowedReading>,
    /// Of all slices together.
    pub(super) duration: Duration,
    pub(super) rounds: usize,
    pub(super) index: Index,
    pub(super) evict: Evict,
    pub(super) seed: u64,
}

/// One side's result over all rounds.
#[derive(serde::Serialize)]
pub(super) struct SideView {
    name: String,
    files: u64,
    content_bytes: u64,
    seconds: f64,
    files_per_second: f64,
    mib_per_second: f64,
    p50_us: u64,
    p99_us: u64,
    /// User and system time of every process that takes part.
    cpu_us_per_file: f64,
    /// Of these, what the cluster's processes took.
    cluster_cpu_us_per_file: f64,
    /// Processors kept busy.
    cpu_cores: f64,
}

/// The comparison.
#[derive(serde::Serialize)]
pub(super) struct AgainstView {
    volume: SideView,
    local: SideView,
    /// Median of the rounds' ratios of files per second, volume over local.
    ratio: f64,
    ratio_lower_quartile: f64,
    ratio_upper_quartile: f64,
    rounds: usize,
    files_per_slice: usize,
    files_in_flight: usize,
    /// Cores that read the volume; local files are read by a thread for each file in flight.
    cores: usize,
    index: Index,
    /// The volume's reads that came from disks of this machine past their nodes.
    past_reads: u64,
    /// Files there are in both places.
    common_files: usize,
    common_bytes: u64,
    /// Files of the volume that the directory does not have with that length.
    left_out: usize,
    /// How the sides were made cold.
    cold_volume: String,
    cold_local: String,
    /// Whose processor time is in the volume's figures.
    cpu: String,
    /// Processes that wanted a processor in the minute before, on average, and processors there are.
    load_before: f64,
    processors: usize,
}

#[derive(Default)]
struct Side {
    files: u64,
    bytes: u64,
    seconds: f64,
    latencies: Latencies,
    cpu: Duration,
    cluster_cpu: Duration,
}

impl Side {
    fn add(&mut self, files: usize, reading: &Reading, spent: Spent) {
        self.files += files as u64;
        self.bytes += reading.bytes;
        self.seconds += reading.seconds;
        for &us in &reading.latencies_us {
            self.latencies.add(Duration::from_micros(us.into()));
        }
        self.cpu += spent.own + spent.cluster;
        self.cluster_cpu += spent.cluster;
    }

    fn view(&self, name: String) -> SideView {
        let files = self.files.max(1) as f64;
        SideView {
            name,
            files: self.files,
            content_bytes: self.bytes,
            seconds: self.seconds,
            files_per_second: self.files as f64 / self.seconds,
            mib_per_second: self.bytes as f64 / self.seconds / ByteCount::MIB.0 as f64,
            p50_us: self.latencies.percentile_us(0.5),
            p99_us: self.latencies.percentile_us(0.99),
            cpu_us_per_file: self.cpu.as_secs_f64() * 1e6 / files,
            cluster_cpu_us_per_file: self.cluster_cpu.as_secs_f64() * 1e6 / files,
            cpu_cores: self.cpu.as_secs_f64() / self.seconds,
        }
    }
}

/// Processor time of this process, and of the cluster's.
#[derive(Clone, Copy)]
struct Spent {
    own: Duration,
    cluster: Duration,
}

/// Both contenders and the files they take turns with.
struct Race<'a> {
    against: &'a Against<'a>,
    volume_readers: VolumeReaders,
    local_files: Vec<LocalFile>,
    readers: LocalReaders,
    processes: Option<ClusterProcesses>,
    /// Disks of nodes that must be dropped from the page cache too.
    buffered: Vec<PathBuf>,
    drops_all: bool,
    random: Random,
    order: Vec<usize>,
    next: usize,
    /// Passes that were begun.
    passes: u64,
}

impl Race<'_> {
    /// The places of the next files in random order. When all were read, everything is made cold and it begins anew.
    async fn next_files(&mut self, count: usize) -> Result<Range<usize>, Failure> {
        if self.next + count > self.order.len() {
            self.begin_pass().await?;
        }
        let files = self.next..self.next + count;
        self.next += count;
        Ok(files)
    }

    async fn begin_pass(&mut self) -> Result<(), Failure> {
        self.passes += 1;
        match self.windowed(0..self.order.len()) {
            None => self.random.shuffle(&mut self.order),
            Some(reading) => {
                let windows = reading.windows(self.order.len(), reading.part.clone());
                let given = (0..windows.length()).filter_map(|place| windows.get(place));
                self.order = given.map(|sample| sample as usize).collect();
            }
        }
        self.next = 0;
        self.drops_all = self.against.evict == Evict::All && cold::drop_caches().is_ok();
        if !self.drops_all {
            let local = self.local_files.iter().map(|file| file.path.as_path());
            for path in local.chain(self.buffered.iter().map(PathBuf::as_path)) {
                cold::evict(path).map_err(|error| super::local::at(path, &error))?;
            }
        }
        match self.index() {
            Index::Cold => self.volume_readers.open(Index::Cold).await?,
            Index::Warm if self.drops_all => self.warm_local(),
            Index::Warm => {}
        }
        Ok(())
    }

    /// How the files of these places are read where the order is shuffled by blocks.
    fn windowed(&self, places: Range<usize>) -> Option<WindowedReading> {
        let reading = self.against.windowed.clone()?;
        Some(WindowedReading {
            part: places.start as u64..places.end as u64,
            epoch: self.passes,
            ..reading
        })
    }

    /// Without the right to drop directory entries and inodes both sides have them in memory.
    fn index(&self) -> Index {
        if self.drops_all {
            self.against.index
        } else {
            Index::Warm
        }
    }

    fn warm_local(&self) {
        for file in &self.local_files {
            // Whether it is as it was is seen when it is read.
            drop(std::fs::metadata(&file.path));
        }
    }

    fn spent(&self) -> Result<Spent, Failure> {
        let own = process::cpu_time(std::process::id()).map_err(Failure::new)?;
        let cluster = self.processes.as_ref().map(ClusterProcesses::cpu_time);
        let cluster = cluster.unwrap_or_default();
        Ok(Spent { own, cluster })
    }

    /// A slice of one side.
    async fn slice(&mut self, of_volume: bool, places: &Range<usize>) -> Result<(Reading, Spent), Failure> {
        let order = &self.order[places.clone()];
        let before = self.spent()?;
        let reading = match (of_volume, self.windowed(places.clone())) {
            (true, Some(reading)) => self.volume_readers.read_windows(reading).await?.reading,
            (true, None) => {
                self.volume_readers
                    .read(order, self.against.batch, None)
                    .await?
                    .reading
            }
            (false, _) => self.readers.read(order).await.map_err(Failure::new)?,
        };
        let after = self.spent()?;
        let spent = Spent {
            own: after.own.saturating_sub(before.own),
            cluster: if of_volume {
                after.cluster.saturating_sub(before.cluster)
            } else {
                Duration::ZERO
            },
        };
        Ok((reading, spent))
    }

    /// As many files or fewer that end a window: two at least, so that each core has one, where there are as many.
    fn whole_windows(&self, files: usize) -> usize {
        let Some(reading) = &self.against.windowed else {
            return files;
        };
        let window = reading.window as usize;
        let whole = (files / window).max(2) * window;
        if whole > self.order.len() {
            self.order.len() / window * window
        } else {
            whole
        }
    }

    /// So many files that a slice of each side together takes its share of the time.
    async fn files_per_slice(&mut self) -> Result<usize, Failure> {
        let trial = (TRIAL_BATCHES * self.against.in_flight).min(self.order.len());
        let trial = self.whole_windows(trial);
        let files = self.next_files(trial).await?;
        let mut seconds = 0.0;
        for of_volume in [true, false] {
            seconds += self.slice(of_volume, &files).await?.0.seconds;
        }
        let share = self.against.duration.as_secs_f64() / self.against.rounds as f64;
        let count = (trial as f64 * share / seconds.max(1e-6)) as usize;
        let count = count.clamp(self.against.in_flight, self.order.len().max(1));
        Ok(self.whole_windows(count))
    }
}

/// Runs all rounds.
pub(super) async fn measure(against: &Against<'_>, files: Vec<VolumeFile>) -> Result<AgainstView, Failure> {
    let all = files.len();
    let (volume_files, local_files): (Vec<_>, Vec<_>) = files
        .into_iter()
        .filter_map(|file| Some((file.clone(), local_file(against, &file)?)))
        .unzip();
    let common_files = volume_files.len();
    if let Some(reading) = &against.windowed
        && common_files < reading.window as usize
    {
        return Err(Failure::new(format!(
            "{} has {common_files} of the files of {}, fewer than a window of {}; give a smaller --window",
            against.directory.display(),
            against.volume,
            reading.window
        )));
    }
    if common_files == 0 {
        return Err(Failure::new(format!(
            "{} has none of the {all} files of {}; name the directory that was imported there",
            against.directory.display(),
            against.volume
        )));
    }
    let load_before = load_average();
    let processes = ClusterProcesses::of(against.volume);
    let buffered = processes
        .as_ref()
        .map(ClusterProcesses::buffered_disks)
        .unwrap_or_default();
    let (processes, cpu) = match processes {
        Ok(found) if found.count() > 0 => {
            let cpu = format!(
                "user and system time of this process and of the cluster's {} processes, all on this machine",
                found.count()
            );
            (Some(found), cpu)
        }
        Ok(_) => (None, "user and system time of this process".to_owned()),
        Err(why) => (None, format!("of this process only, not of the nodes: {why}")),
    };
    let Against {
        opened,
        options,
        from,
        in_flight,
        cores,
        ..
    } = *against;
    let mut volume_readers = VolumeReaders::start(opened, options, from, volume_files, in_flight, cores)?;
    volume_readers.open(Index::Warm).await?;
    let mut race = Race {
        against,
        volume_readers,
        readers: LocalReaders::start(local_files.clone(), against.in_flight).map_err(Failure::new)?,
        local_files,
        processes,
        buffered,
        drops_all: false,
        random: Random::from_seed(against.seed),
        order: (0..common_files).collect(),
        next: common_files,
        passes: 0,
    };
    let files_per_slice = race.files_per_slice().await?;
    let past_before = opened.found.past_reads();
    let (mut volume, mut local) = (Side::default(), Side::default());
    let mut ratios = Vec::with_capacity(against.rounds);
    let progress = Progress::of_steps("rounds", against.rounds as u64);
    for round in 0..against.rounds {
        let files = race.next_files(files_per_slice).await?;
        let mut seconds = [0.0; 2];
        for of_volume in [round % 2 == 0, round % 2 != 0] {
            let (reading, spent) = race.slice(of_volume, &files).await?;
            seconds[usize::from(of_volume)] = reading.seconds;
            if of_volume { &mut volume } else { &mut local }.add(files.len(), &reading, spent);
        }
        ratios.push(seconds[0] / seconds[1]);
        progress.step();
    }
    progress.end();
    Ok(AgainstView {
        volume: volume.view(against.volume.to_string()),
        local: local.view(against.directory.display().to_string()),
        ratio: quantile(ratios.clone(), 0.5),
        ratio_lower_quartile: quantile(ratios.clone(), 0.25),
        ratio_upper_quartile: quantile(ratios, 0.75),
        rounds: against.rounds,
        files_per_slice,
        files_in_flight: against.in_flight,
        cores: race.volume_readers.cores(),
        past_reads: opened.found.past_reads() - past_before,
        index: race.index(),
        common_files,
        common_bytes: race.local_files.iter().map(|file| file.size_bytes).sum(),
        left_out: all - common_files,
        cold_volume: cold_volume(&race),
        cold_local: cold_local(&race),
        cpu,
        load_before,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
    })
}

/// The load average of the last minute; 0 where the system does not say.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The file in the directory that a file on the volume came from, if it has the same length still.
fn local_file(against: &Against<'_>, file: &VolumeFile) -> Option<LocalFile> {
    let below = file.path.strip_prefix(against.from)?;
    let below = below.strip_prefix(b"/").unwrap_or(below);
    let path = against.directory.join(std::ffi::OsStr::from_bytes(below));
    let found = std::fs::symlink_metadata(&path).ok()?;
    (found.is_file() && found.len() == file.size_bytes).then_some(LocalFile {
        path,
        size_bytes: file.size_bytes,
    })
}

fn cold_volume(race: &Race<'_>) -> String {
    let disks = match (&race.processes, &race.against.volume, race.buffered.as_slice()) {
        (None, Volume::Named(_), _) => "how the nodes read their disks was not looked at".to_owned(),
        (_, _, []) => "disks are open with O_DIRECT, as /proc says".to_owned(),
        (_, _, disks) => format!(
            "{} disks are read through the page cache, which was dropped",
            disks.len()
        ),
    };
    let index = match race.index() {
        Index::Cold => "the index is read anew",
        Index::Warm => "the index is in memory",
    };
    format!("no data is kept by the client; {disks}; {index}")
}

fn cold_local(race: &Race<'_>) -> String {
    match (race.drops_all, race.index()) {
        (true, Index::Cold) => {
            "page cache, directory entries and inodes dropped (/proc/sys/vm/drop_caches) before the first read".to_owned()
        }
        (true, Index::Warm) => {
            "page cache dropped (/proc/sys/vm/drop_caches) before the first read; directory entries and inodes are in memory"
                .to_owned()
        }
        (false, _) => "each file dropped from the page cache (posix_fadvise) before the first read; directory entries and \
                       inodes are in memory: only root can drop those"
            .to_owned(),
    }
}

/// The table for people.
pub(super) fn describe(view: &AgainstView) -> String {
    let heading = [
        "",
        "FILES/S",
        "MIB/S",
        "P50 US",
        "P99 US",
        "CPU US/FILE",
        "OF IT CLUSTER",
        "CORES",
    ];
    let row = |side: &SideView| {
        vec![
            side.name.clone(),
            format!("{:.0}", side.files_per_second),
            format!("{:.1}", side.mib_per_second),
            side.p50_us.to_string(),
            side.p99_us.to_string(),
            format!("{:.1}", side.cpu_us_per_file),
            format!("{:.1}", side.cluster_cpu_us_per_file),
            format!("{:.2}", side.cpu_cores),
        ]
    };
    let sides = [&view.volume, &view.local];
    let mut rows = vec![heading.map(String::from).to_vec()];
    rows.extend(sides.map(row));
    let left_out = match view.left_out {
        0 => String::new(),
        count => format!(" ({count} others differ in length or are not there, and are left out)"),
    };
    let busy = if view.load_before > view.processors as f64 / 2.0 {
        format!(
            "\nbusy: {:.1} processes wanted this machine's {} processors before it began, which slows down the side more whose \
             processes wait for each other",
            view.load_before, view.processors
        )
    } else {
        String::new()
    };
    format!(
        "{} files, {}{left_out}; {} rounds of {} files in random order, the same for both, {} in flight, {} of this process \
         for the volume\n\n{}\n{}\n\
         {:.2} of the local files/s (median of {} rounds; half of them between {:.2} and {:.2})\n\
         {}\n\n\
         cold, {}: {}\ncold, {}: {}\nCPU: {}{busy}",
        view.common_files,
        ByteCount(view.common_bytes),
        view.rounds,
        view.files_per_slice,
        view.files_in_flight,
        match view.cores {
            1 => "one core".to_owned(),
            cores => format!("{cores} cores"),
        },
        table(&rows),
        chart(sides),
        view.ratio,
        view.rounds,
        view.ratio_lower_quartile,
        view.ratio_upper_quartile,
        match view.past_reads {
            0 => "all of the volume's bytes came from its nodes".to_owned(),
            reads => format!("{reads} reads of the volume went past its nodes, to their disks (--via disk)"),
        },
        view.volume.name,
        view.cold_volume,
        view.local.name,
        view.cold_local,
        view.cpu
    )
}

/// Files per second as bars.
fn chart(sides: [&SideView; 2]) -> String {
    let longest = sides.iter().map(|side| side.files_per_second).fold(1.0, f64::max);
    let width = sides
        .iter()
        .map(|side| side.name.chars().count())
        .max()
        .unwrap_or(0);
    let bar = |side: &SideView| {
        let length = (side.files_per_second / longest * CHART_WIDTH).round() as usize;
        format!(
            "{:<width$}  {} {:.0} files/s\n",
            side.name,
            "█".repeat(length),
            side.files_per_second
        )
    };
    sides.map(bar).concat()
}
