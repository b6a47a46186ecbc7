//! What the measuring commands read: files of a volume, by several cores with several tasks each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bench::local_files::Reading;
use packfs::order::Windows;
use packfs::{Content, Kind, ReadError, Reader, ReaderOptions, Target};
use reactor::Cores;
use reactor::mailbox::{Mailbox, MailboxSender, mailbox};

use super::bench::Index;
use super::medium::{Found, Opened};
use crate::output::Failure;

/// Bytes of a large file that are read at once; the same for local files.
pub(super) const READ_AT_ONCE: u64 = bench::local_files::READ_AT_ONCE as u64;

/// A regular file of a volume.
#[derive(Clone, Debug)]
pub(super) struct VolumeFile {
    /// From the volume's root.
    pub(super) path: Vec<u8>,
    /// Length in bytes.
    pub(super) size_bytes: u64,
}

/// Regular files below a path, in the order of the volume's directories. The reader knows the index afterwards, as far
/// as its cache takes it.
pub(super) async fn files(reader: &Reader, path: &[u8]) -> Result<Vec<VolumeFile>, ReadError> {
    let root = reader.lookup(path).await?;
    let mut walk = reader.walk(root.number);
    let mut files = Vec::new();
    loop {
        let batch = walk.next_batch().await?;
        if batch.is_empty() {
            return Ok(files);
        }
        for found in batch {
            if found.entry.kind() == Kind::File {
                let path = [path, &found.path].join(&b'/');
                let size_bytes = reader.inode_of(found.entry).await?.size;
                files.push(VolumeFile { path, size_bytes });
            }
        }
    }
}

/// Files in an order, which all tasks share out among themselves.
pub(super) struct Share {
    files: Arc<Vec<VolumeFile>>,
    order: Vec<usize>,
    next: AtomicUsize,
    /// Files that are asked for with one call.
    batch: usize,
    /// Nothing is begun after this.
    until: Option<Instant>,
}

impl Share {
    fn take(&self) -> Option<&[usize]> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let first = self.next.fetch_add(self.batch, Ordering::Relaxed);
        let last = (first + self.batch).min(self.order.len());
        self.order.get(first..last).filter(|files| !files.is_empty())
    }
}

/// What some files took.
#[derive(Default)]
pub(super) struct Taken {
    /// Files, bytes, and the latency of each call.
    pub(super) reading: Reading,
    /// Files that were read.
    pub(super) files: u64,
    /// Reads of the volume.
    pub(super) device_reads: u64,
    /// Bytes of these.
    pub(super) device_bytes: u64,
}

enum Work {
    /// Forget what is known, and learn all that there is if the index is to be warm.
    Open(Index),
    /// Read with so many tasks.
    Read(Arc<Share>, usize),
    /// Read the samples of these windows with so many tasks, as many with one call, and begin none after this.
    Windows(Box<Windows>, WindowedReading),
}

/// How windows are read.
#[derive(Clone)]
pub(super) struct WindowedReading {
    /// The places of the order that are read. The first begins a window.
    pub(super) part: Range<u64>,
    /// Samples side by side that stay together.
    pub(super) block: u64,
    /// Samples that are mixed with each other.
    pub(super) window: u64,
    /// Calls of a block each that are under way on each core.
    pub(super) calls: usize,
    /// Chooses the order.
    pub(super) seed: u64,
    /// Chooses another order with the same seed.
    pub(super) epoch: u64,
    /// No block is begun after this.
    pub(super) until: Option<Instant>,
}

impl WindowedReading {
    /// The order of a part of these places.
    pub(super) fn windows(&self, files: usize, part: Range<u64>) -> Windows {
        Windows::new(files as u64, part, self.block, self.window, self.seed, self.epoch)
    }
}

/// When a core was done, and what it did.
type Part = Result<(Instant, Taken), Failure>;

/// Cores that read a volume's files, each with a channel, a lease and an index of its own.
pub(super) struct VolumeReaders {
    files: Arc<Vec<VolumeFile>>,
    work: Vec<MailboxSender<Work>>,
    parts: Mailbox<Part>,
    in_flight: usize,
    _cores: Cores,
}

impl VolumeReaders {
    /// Starts `cores` reactors, which will keep `in_flight` files of those below `from` in flight together.
    pub(super) fn start(
        opened: &Opened,
        options: &ReaderOptions,
        from: &[u8],
        files: Vec<VolumeFile>,
        in_flight: usize,
        cores: usize,
    ) -> Result<Self, Failure> {
        let count = cores.clamp(1, in_flight.max(1));
        let cores = Cores::start(count, None, &reactor::Config::default()).map_err(Failure::new)?;
        let (sender, parts) = mailbox(count);
        let files = Arc::new(files);
        let start = |handle: &reactor::CoreHandle| {
            let (work, mailbox) = mailbox(1);
            let server = (
                opened.found.clone(),
                options.clone(),
                from.to_vec(),
                files.clone(),
            );
            let sender = sender.clone();
            handle.spawn(move || serve(server, mailbox, sender));
            work
        };
        let work = cores.handles().map(start).collect();
        Ok(Self {
            files,
            work,
            parts,
            in_flight,
            _cores: cores,
        })
    }

    /// How many cores read.
    pub(super) fn cores(&self) -> usize {
        self.work.len()
    }

    /// Opens the volume anew on every core.
    pub(super) async fn open(&mut self, index: Index) -> Result<(), Failure> {
        self.all(|_| Work::Open(index)).await.map(drop)
    }

    /// Reads the files of these indices in this order, `batch` with one call; begins none after `until`.
    pub(super) async fn read(
        &mut self,
        order: &[usize],
        batch: usize,
        until: Option<Instant>,
    ) -> Result<Taken, Failure> {
        let share = Arc::new(Share {
            files: self.files.clone(),
            order: order.to_vec(),
            next: AtomicUsize::new(0),
            batch: batch.max(1),
            until,
        });
        let (cores, in_flight) = (self.work.len(), self.in_flight.div_ceil(batch.max(1)));
        let tasks = |core: usize| in_flight / cores + usize::from(core < in_flight % cores);
        self.all(|core| Work::Read(share.clone(), tasks(core))).await
    }

    /// Reads the files of these places, every core its share of the windows.
    pub(super) async fn read_windows(&mut self, reading: WindowedReading) -> Result<Taken, Failure> {
        let (files, cores) = (self.files.len(), self.work.len() as u64);
        let Range { start, end } = reading.part;
        let windows = end.saturating_sub(start).div_ceil(reading.window);
        self.all(|core| {
            let begin = |core: u64| end.min(start + windows * core / cores * reading.window);
            let part = begin(core as u64)..begin(core as u64 + 1);
            Work::Windows(Box::new(reading.windows(files, part)), reading.clone())
        })
        .await
    }

    /// Gives each core its work, and waits for all of them; the first failure, once all have stopped.
    async fn all(&mut self, work: impl Fn(usize) -> Work) -> Result<Taken, Failure> {
        let gone = || Failure::new("a reading thread has ended; measure again");
        let begun = Instant::now();
        for (core, mailbox) in self.work.iter().enumerate() {
            mailbox.try_send(work(core)).map_err(|_| gone())?;
        }
        let (mut ended, mut total, mut failure) = (begun, Taken::default(), None);
        for _ in &self.work {
            match self.parts.recv().await.ok_or_else(gone)? {
                Ok((end, part)) => {
                    ended = ended.max(end);
                    total.files += part.files;
                    total.device_reads += part.device_reads;
                    total.device_bytes += part.device_bytes;
                    total.reading.bytes += part.reading.bytes;
                    total.reading.latencies_us.extend(part.reading.latencies_us);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        total.reading.seconds = (ended - begun).as_secs_f64();
        failure.map_or(Ok(total), Err)
    }
}

/// One core's part, until the readers are dropped.
async fn serve(
    (found, options, from, files): (Arc<Found>, ReaderOptions, Vec<u8>, Arc<Vec<VolumeFile>>),
    mut work: Mailbox<Work>,
    parts: MailboxSender<Part>,
) {
    let mut opened = None;
    let mut reader = None;
    while let Some(work) = work.recv().await {
        let part = match work {
            Work::Open(index) => {
                let way = match &opened {
                    Some(way) => Ok(way),
                    None => found.clone().open().map(|way| &*opened.insert(way)),
                };
                match way {
                    Ok(way) => match open(way, &options, &from, index).await {
                        Ok(fresh) => {
                            reader = Some(fresh);
                            Ok((Instant::now(), Taken::default()))
                        }
                        Err(error) => Err(error),
                    },
                    Err(error) => Err(error),
                }
            }
            Work::Read(share, tasks) => match &reader {
                Some(reader) => read(reader, &share, tasks)
                    .await
                    .map_err(|error| found.failure(error)),
                None => Err(found.failure("it was not opened on this core")),
            },
            Work::Windows(windows, reading) => match &reader {
                Some(reader) => read_windows(reader, &files, windows, reading)
                    .await
                    .map_err(|error| found.failure(error)),
                None => Err(found.failure("it was not opened on this core")),
            },
        };
        // The mailbox has room for a part of each core.
        if parts.try_send(part).is_err() {
            return;
        }
    }
}

async fn open(way: &Opened, options: &ReaderOptions, from: &[u8], index: Index) -> Result<Reader, Failure> {
    let reader = way.reader(options).await?;
    if index == Index::Warm {
        let listed = files(&reader, from).await;
        listed.map_err(|error| way.found.failure(error))?;
    }
    Ok(reader)
}

async fn read(reader: &Reader, share: &Arc<Share>, tasks: usize) -> Result<(Instant, Taken), ReadError> {
    let before = reader.statistics();
    let taken = Rc::<RefCell<Taken>>::default();
    let start = |_| {
        let (reader, share, taken) = (reader.clone(), share.clone(), taken.clone());
        reactor::spawn(async move { read_in_turn(&reader, &share, &taken).await })
    };
    let tasks: Vec<_> = (0..tasks).map(start).collect();
    for task in tasks {
        // None ends these tasks but themselves.
        task.await.unwrap_or(Err(ReadError::LeaseEnded))?;
    }
    let after = reader.statistics();
    let mut taken = taken.take();
    taken.device_reads = after.reads - before.reads;
    taken.device_bytes = after.read_bytes - before.read_bytes;
    Ok((Instant::now(), taken))
}

/// Windows that are read, and what is here of those that are not whole.
struct Held {
    windows: Box<Windows>,
    next: u64,
    /// By window: how many samples are here, and their contents by place.
    parts: BTreeMap<u64, (u64, Vec<Option<Content>>)>,
    taken: Taken,
}

impl Held {
    /// The places of the next call: of one window, and of one block where it is read from its beginning.
    fn take(&mut self, reading: &WindowedReading) -> Option<Range<u64>> {
        if reading.until.is_some_and(|until| Instant::now() >= until) || self.next >= self.windows.length() {
            return None;
        }
        let start = self.next;
        let whole = self.windows.places(start / reading.window).end;
        self.next = (start + reading.block).min(whole);
        Some(start..self.next)
    }

    /// A sample is here. Whoever completes a window gives all of it, in its order.
    fn arrived(&mut self, window: u64, place: u64, content: Content) {
        let places = self.windows.places(window);
        let count = places.end - places.start;
        let (here, contents) = self.parts.entry(window).or_insert_with(|| {
            let mut contents = Vec::new();
            contents.resize_with(count as usize, || None);
            (0, contents)
        });
        *here += 1;
        contents[(place - places.start) as usize] = Some(content);
        if *here == count {
            let (_, mut contents) = self.parts.remove(&window).unwrap_or_default();
            let mixed = self.windows.mixed(window);
            for place in (0..count).filter_map(|place| mixed.get(place)) {
                self.taken.files += 1;
                let content = contents[place as usize].take();
                self.taken.reading.bytes += content.map_or(0, |content| content.len() as u64);
            }
        }
    }
}

/// One core's windows. What was begun is given also where its window is not whole in the end.
async fn read_windows(
    reader: &Reader,
    files: &Arc<Vec<VolumeFile>>,
    windows: Box<Windows>,
    reading: WindowedReading,
) -> Result<(Instant, Taken), ReadError> {
    let before = reader.statistics();
    let held = Rc::new(RefCell::new(Held {
        windows,
        next: 0,
        parts: BTreeMap::new(),
        taken: Taken::default(),
    }));
    let start = |_| {
        let (reader, files, held, reading) = (reader.clone(), files.clone(), held.clone(), reading.clone());
        reactor::spawn(async move {
            loop {
                let Some(places) = held.borrow_mut().take(&reading) else {
                    return Ok(());
                };
                let begun = Instant::now();
                let samples: Vec<u64> = {
                    let held = held.borrow();
                    places
                        .clone()
                        .filter_map(|place| held.windows.read_at(place))
                        .collect()
                };
                let targets: Vec<_> = samples
                    .iter()
                    .map(|&sample| Target::Path(&files[sample as usize].path))
                    .collect();
                let contents = reader.read_many(&targets).await;
                let mut held = held.borrow_mut();
                for (place, content) in places.zip(contents) {
                    held.arrived(place / reading.window, place, content?);
                }
                let latency = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
                held.taken.reading.latencies_us.push(latency);
            }
        })
    };
    let tasks: Vec<_> = (0..reading.calls).map(start).collect();
    for task in tasks {
        // None ends these tasks but themselves.
        task.await.unwrap_or(Err(ReadError::LeaseEnded))?;
    }
    let after = reader.statistics();
    let mut held = held.borrow_mut();
    let rest = std::mem::take(&mut held.parts);
    let mut taken = std::mem::take(&mut held.taken);
    for content in rest.into_values().flat_map(|(_, contents)| contents).flatten() {
        taken.files += 1;
        taken.reading.bytes += content.len() as u64;
    }
    taken.device_reads = after.reads - before.reads;
    taken.device_bytes = after.read_bytes - before.read_bytes;
    Ok((Instant::now(), taken))
}

/// One task: one call after another.
async fn read_in_turn(reader: &Reader, share: &Share, taken: &RefCell<Taken>) -> Result<(), ReadError> {
    while let Some(indices) = share.take() {
        let begun = Instant::now();
        let bytes = match indices {
            &[index] => read_whole(reader, &share.files[index]).await?,
            several => read_batch(reader, &share.files, several).await?,
        };
        let latency = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
        let mut taken = taken.borrow_mut();
        taken.files += indices.len() as u64;
        taken.reading.bytes += bytes;
        taken.reading.latencies_us.push(latency);
    }
    Ok(())
}

/// Reads one whole file; how many bytes came.
async fn read_whole(reader: &Reader, file: &VolumeFile) -> Result<u64, ReadError> {
    if file.size_bytes <= READ_AT_ONCE {
        return Ok(reader.read_file(Target::Path(&file.path)).await?.len() as u64);
    }
    let opened = reader.open_file(&file.path).await?;
    let mut offset = 0;
    while offset < file.size_bytes {
        offset += reader.read(&opened, offset, READ_AT_ONCE).await?.len() as u64;
    }
    Ok(offset)
}

/// Reads several files with one call. Large ones go on their own.
async fn read_batch(reader: &Reader, files: &[VolumeFile], indices: &[usize]) -> Result<u64, ReadError> {
    let most = ReaderOptions::default().batch_bytes_max;
    let (mut together, mut alone, mut total, mut bytes) =
        (Vec::with_capacity(indices.len()), Vec::new(), 0, 0);
    for &index in indices {
        let file = &files[index];
        if file.size_bytes > READ_AT_ONCE || total + file.size_bytes > most {
            alone.push(file);
        } else {
            total += file.size_bytes;
            together.push(Target::Path(&file.path));
        }
    }
    for content in reader.read_many(&together).await {
        bytes += content?.len() as u64;
    }
    for file in alone {
        bytes += read_whole(reader, file).await?;
    }
    Ok(bytes)
}
