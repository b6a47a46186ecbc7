//! A data set as Python holds it, and calls that wait for its thread.

use std::borrow::Cow;
use std::ffi::OsString;
use std::future::Future;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use client::Nearby;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use reactor::mailbox::MailboxSender;

use crate::buffer::Buffer;
use crate::current::Current;
use crate::entry::Entry;
use crate::failure::Failure;
use crate::files::Files;
use crate::fork::Process;
use crate::opened::{Opened, Options, Source, Warnings};
use crate::reading::{Contents, Wanted, read_many, read_range};
use crate::worker::{Job, start};

/// How often a waiting call looks for signals: Ctrl-C is heard within this.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);
/// Closing gives a lease back; a master that does not answer is not waited for longer.
const CLOSING_LIMIT: Duration = Duration::from_secs(5);
/// Names of a directory that are asked for at once.
const LISTED_AT_ONCE: usize = 1024;

/// Waits with the interpreter free for others, until the answer, the limit or a signal's exception.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    mut answer: Receiver<T>,
    limit: Option<Duration>,
) -> PyResult<(Receiver<T>, Option<T>)> {
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SIGNALS_EVERY, |left| left.min(SIGNALS_EVERY));
        let (back, got) = py.detach(move || {
            let got = answer.recv_timeout(slice);
            (answer, got)
        });
        answer = back;
        match got {
            Ok(value) => return Ok((answer, Some(value))),
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::closed().into()),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
        }
        if left == Some(Duration::ZERO) {
            return Ok((answer, None));
        }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a path: text as the file system encodes it, or bytes as they are.
pub(crate) struct PathBytes(Vec<u8>);

impl PathBytes {
    /// The bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for PathBytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(bytes.as_bytes().to_vec()));
        }
        let path: PathBuf = object.extract()?;
        Ok(Self(path.into_os_string().into_vec()))
    }
}

/// The regular files of a data set by position.
#[pyclass(frozen, module = "redhare._native")]
pub(crate) struct Index(Arc<Files>);

impl Index {
    fn check(&self, position: usize) -> PyResult<()> {
        if position < self.0.len() {
            return Ok(());
        }
        let why = format!("there is no position {position} among {} files", self.0.len());
        Err(pyo3::exceptions::PyIndexError::new_err(why))
    }
}

#[pymethods]
impl Index {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn path(&self, position: usize) -> PyResult<OsString> {
        self.check(position)?;
        Ok(OsString::from_vec(
            self.0.path(position).unwrap_or_default().to_vec(),
        ))
    }

    fn size(&self, position: usize) -> PyResult<u64> {
        self.check(position)?;
        Ok(self.0.size(position).unwrap_or_default())
    }

    /// The paths of the symbolic links, which have no positions.
    fn links(&self) -> Vec<OsString> {
        let paths = self.0.links();
        paths.map(|path| OsString::from_vec(path.to_vec())).collect()
    }
}

/// An answer that is on its way.
#[pyclass(frozen, module = "redhare._native")]
pub(crate) struct Pending {
    answer: Mutex<Option<Receiver<Contents>>>,
    process: Process,
}

#[pymethods]
impl Pending {
    /// The contents; waits for them, at most `timeout` seconds. A file's failure is raised, or stands in its place.
    #[pyo3(signature = (timeout=None, raise_errors=true))]
    fn result<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        raise_errors: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let limit = match timeout.map(Duration::try_from_secs_f64) {
            None => None,
            Some(Ok(limit)) => Some(limit),
            Some(Err(_)) => return Err(PyValueError::new_err("timeout is no number of seconds")),
        };
        if !self.process.is_this() {
            return Err(
                Failure::new(libc::ESTALE, "this read was begun before a fork; read again here").into(),
            );
        }
        let taken = locked(&self.answer).take();
        let Some(answer) = taken else {
            return Err(PyValueError::new_err(
                "the result was taken already; keep what result() returned",
            ));
        };
        match wait(py, answer, limit)? {
            (_, Some(contents)) => views(py, contents, raise_errors),
            (answer, None) => {
                *locked(&self.answer) = Some(answer);
                Err(PyTimeoutError::new_err(
                    "nothing came in time; ask again, or leave the timeout out",
                ))
            }
        }
    }
}

fn views(py: Python<'_>, contents: Contents, raise_errors: bool) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for content in contents {
        match content {
            Ok(bytes) => list.append(Buffer::view(py, bytes)?)?,
            Err(failure) if raise_errors => return Err(failure.into()),
            Err(failure) => list.append(PyErr::from(failure).into_value(py))?,
        }
    }
    Ok(list)
}

/// A data set that is open; see `redhare.DataSet`.
#[pyclass(frozen, module = "redhare._native")]
pub(crate) struct Handle {
    /// None once closed.
    jobs: Mutex<Option<MailboxSender<Job>>>,
    closed: Mutex<Option<Receiver<()>>>,
    process: Process,
    name: String,
    warnings: Warnings,
    generation: AtomicU64,
    #[pyo3(get)]
    uuid: [u8; 16],
}

impl Handle {
    /// Begins something on the reactor, in the generation that is shown when it begins.
    fn begin<T, F>(
        &self,
        py: Python<'_>,
        make: impl FnOnce(Rc<Opened>) -> F + Send + 'static,
    ) -> PyResult<Receiver<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.begin_with(py, move |current| make(current.opened()))
    }

    fn begin_with<T, F>(
        &self,
        py: Python<'_>,
        make: impl FnOnce(Rc<Current>) -> F + Send + 'static,
    ) -> PyResult<Receiver<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        if self.is_foreign() {
            let why = "this handle was opened before a fork, and its thread is the parent's; open the data set again";
            return Err(Failure::new(libc::ESTALE, why).of(&self.name).into());
        }
        let (sender, answer) = sync_channel(1);
        let mut job: Job = Box::new(move |current| {
            let future = make(current);
            Box::pin(async move {
                // Who asked may have gone.
                let _ = sender.send(future.await);
            })
        });
        loop {
            let sent = match &*locked(&self.jobs) {
                Some(jobs) if !jobs.is_closed() => jobs.try_send(job),
                _ => return Err(Failure::closed().of(&self.name).into()),
            };
            match sent {
                Ok(()) => return Ok(answer),
                // Thousands of calls wait already.
                Err(back) => job = back,
            }
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
        }
    }

    fn call<T, F>(&self, py: Python<'_>, make: impl FnOnce(Rc<Opened>) -> F + Send + 'static) -> PyResult<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + 'static,
    {
        self.answered(py, self.begin(py, make)?)
    }

    fn answered<T: Send>(&self, py: Python<'_>, answer: Receiver<Result<T, Failure>>) -> PyResult<T> {
        let (_, got) = wait(py, answer, None)?;
        let got = got.unwrap_or_else(|| Err(Failure::closed()));
        got.map_err(|failure| failure.of(&self.name).into())
    }

    fn begin_read(&self, py: Python<'_>, wanted: Wanted) -> PyResult<Pending> {
        let name = self.name.clone();
        let read = move |opened| async move {
            let contents = read_many(opened, wanted).await;
            contents
                .into_iter()
                .map(|content| content.map_err(|failure| failure.of(&name)))
                .collect()
        };
        Ok(Pending {
            answer: Mutex::new(Some(self.begin(py, read)?)),
            process: self.process,
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_foreign() {
            // Its locks and its thread are another process's.
            std::mem::forget(std::mem::take(&mut self.jobs));
            std::mem::forget(std::mem::take(&mut self.closed));
        }
    }
}

#[pymethods]
impl Handle {
    /// The generation that is shown.
    #[getter]
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Goes on to the newest commit; its generation. What is under way goes on in the generation that it began in.
    fn refresh(&self, py: Python<'_>) -> PyResult<u64> {
        let answer = self.begin_with(py, |current| async move {
            let opened = current.refresh().await?;
            Ok(opened.reader.generation())
        })?;
        let generation = self.answered(py, answer)?;
        // Two threads may ask at once, and the one that was told of less come here last.
        let before = self.generation.fetch_max(generation, Ordering::Relaxed);
        Ok(before.max(generation))
    }

    /// What another process needs to open the state that is shown: a superblock, and where this process shows that it holds it.
    fn handed(&self, py: Python<'_>) -> PyResult<Option<(Cow<'static, [u8]>, String)>> {
        let answer = self.begin(py, |opened| async move { Ok(opened.to_hand()) })?;
        let handed = self.answered(py, answer)?;
        Ok(handed.map(|(superblock, place)| (Cow::Owned(superblock), place)))
    }

    /// Whether it was opened before a fork that made this process.
    fn is_foreign(&self) -> bool {
        !self.process.is_this()
    }

    /// Begins to read whole files by path.
    fn begin_paths(&self, py: Python<'_>, paths: Vec<PathBytes>) -> PyResult<Pending> {
        let paths = paths.into_iter().map(|path| path.0).collect();
        self.begin_read(py, Wanted::Paths(paths))
    }

    /// Begins to read whole files by position.
    fn begin_positions(&self, py: Python<'_>, index: &Index, positions: Vec<usize>) -> PyResult<Pending> {
        for &position in &positions {
            index.check(position)?;
        }
        self.begin_read(py, Wanted::Positions(index.0.clone(), positions))
    }

    /// Bytes offset to offset + length of a file, or as many as there are.
    fn read_range<'py>(
        &self,
        py: Python<'py>,
        path: PathBytes,
        offset: u64,
        length: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.call(py, move |opened| read_range(opened, path.0, offset, length))?;
        Buffer::view(py, bytes)
    }

    /// Walks everything.
    fn index(&self, py: Python<'_>) -> PyResult<Index> {
        let files = self.call(py, |opened| async move { Files::list(&opened).await })?;
        Ok(Index(Arc::new(files)))
    }

    /// The entries of a directory, by the bytes of their names.
    fn list(&self, py: Python<'_>, path: PathBytes) -> PyResult<Vec<Entry>> {
        self.call(py, |opened| async move { list(&opened, &path.0).await })
    }

    /// What there is at a path; a symbolic link is not followed.
    fn stat(&self, py: Python<'_>, path: PathBytes) -> PyResult<Entry> {
        self.call(py, |opened| async move {
            let found = opened.reader.lookup(&opened.full(&path.0)).await;
            let inode = found.map_err(|error| Failure::from(error).at(&path.0))?;
            let last = packfs::name::components(&path.0).next_back();
            Ok(Entry::new(last.unwrap_or_default().to_vec(), &inode))
        })
    }

    /// The target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: PathBytes) -> PyResult<OsString> {
        let target = self.call(py, |opened| async move {
            let read = opened.reader.read_link(&opened.full(&path.0)).await;
            read.map_err(|error| Failure::from(error).at(&path.0))
        })?;
        Ok(OsString::from_vec(target))
    }

    /// The targets of symbolic links, in the order asked for.
    fn readlinks(&self, py: Python<'_>, paths: Vec<PathBytes>) -> PyResult<Vec<OsString>> {
        self.call(py, |opened| async move {
            let mut targets = Vec::with_capacity(paths.len());
            for PathBytes(path) in paths {
                let read = opened.reader.read_link(&opened.full(&path)).await;
                let target = read.map_err(|error| Failure::from(error).at(&path))?;
                targets.push(OsString::from_vec(target));
                if targets.len().is_multiple_of(LISTED_AT_ONCE) {
                    // Other calls get their turn.
                    reactor::yield_now().await;
                }
            }
            Ok(targets)
        })
    }

    /// Reads of the volume, bytes of these, those past nodes, bytes of content, and of the metadata cache; of its pages, those that were found,
    /// not found, dropped, and read ahead; of the cache on a local disk, whether there is one in use, hits, misses, those of them that were
    /// damaged, bytes of hits, entries stored, their bytes, entries dropped, and length of the file.
    fn statistics(&self, py: Python<'_>) -> PyResult<[u64; 18]> {
        self.call(py, |opened| async move {
            let done = opened.reader.statistics();
            let cached = done.index_bytes() as u64;
            Ok([
                done.reads,
                done.read_bytes,
                opened.past_reads(),
                done.content_bytes,
                cached,
                done.cache.hits,
                done.cache.misses,
                done.cache.evicted,
                done.cache.ahead,
                done.local.on.into(),
                done.local.hits,
                done.local.misses,
                done.local.damaged,
                done.local.hit_bytes,
                done.local.stored,
                done.local.stored_bytes,
                done.local.dropped,
                done.local.file_bytes,
            ])
        })
    }

    /// Takes out what is to be warned of: why the cache on a local disk is not, or no longer, used.
    fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut *locked(&self.warnings))
    }

    /// Gives the lease back and ends the thread. What was read stays.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_foreign() {
            return Ok(());
        }
        drop(locked(&self.jobs).take());
        let closed = locked(&self.closed).take();
        if let Some(closed) = closed {
            // A thread that has ended already has closed, too.
            let _ = wait(py, closed, Some(CLOSING_LIMIT));
            py.check_signals()?;
        }
        Ok(())
    }
}

async fn list(opened: &Opened, path: &[u8]) -> Result<Vec<Entry>, Failure> {
    let fail = |error| Failure::from(error).at(path);
    let directory = opened.reader.lookup(&opened.full(path)).await.map_err(fail)?;
    if directory.kind != packfs::Kind::Directory {
        let text = "is not a directory; read it, or list the directory it is in";
        return Err(Failure::new(libc::ENOTDIR, text).at(path));
    }
    let (mut entries, mut after) = (Vec::new(), None);
    loop {
        let batch = opened
            .reader
            .read_directory(directory.number, after, LISTED_AT_ONCE)
            .await
            .map_err(fail)?;
        let Some(last) = batch.last() else {
            return Ok(entries);
        };
        after = Some(last.entry.cookie());
        for found in batch {
            let inode = opened.reader.inode_of(found.entry).await.map_err(fail)?;
            entries.push(Entry::new(found.name, &inode));
        }
    }
}

fn opened(
    py: Python<'_>,
    name: String,
    source: Source,
    root: PathBytes,
    options: Options,
) -> PyResult<Handle> {
    let warnings = options.warnings.clone();
    let (opening, closed) = start(source, root.0, options)?;
    let (_, started) = wait(py, opening, None)?;
    let started = started.unwrap_or_else(|| Err(Failure::closed()));
    let started = started.map_err(|failure| failure.of(&name))?;
    Ok(Handle {
        jobs: Mutex::new(Some(started.jobs)),
        closed: Mutex::new(Some(closed)),
        process: Process::this(),
        name,
        warnings,
        generation: AtomicU64::new(started.generation),
        uuid: started.uuid,
    })
}

/// Opens a volume of the cluster with these masters. Waits until one has answered.
#[pyfunction]
#[pyo3(signature = (masters, volume, root, *, via, cache_bytes, memory_bytes, reads_in_flight, cache_dir=None, cache_size=0, handed=None))]
#[allow(clippy::too_many_arguments, reason = "they have names in Python")]
pub(crate) fn open_volume(
    py: Python<'_>,
    masters: String,
    volume: String,
    root: PathBytes,
    via: &str,
    cache_bytes: usize,
    memory_bytes: usize,
    reads_in_flight: usize,
    cache_dir: Option<PathBuf>,
    cache_size: u64,
    handed: Option<(Vec<u8>, String)>,
) -> PyResult<Handle> {
    let nearby = match via {
        "disk" => Nearby::Disk,
        "socket" => Nearby::Socket,
        "tcp" => Nearby::Tcp,
        _ => {
            return Err(PyValueError::new_err(format!(
                "via is \"disk\", \"socket\" or \"tcp\", not \"{via}\""
            )));
        }
    };
    let name = format!("redhare://{masters}/{volume}");
    let options = Options {
        cache_bytes,
        memory_bytes,
        reads_in_flight,
        local: cache_dir.map(|directory| (directory, cache_size)),
        handed,
        warnings: Warnings::default(),
    };
    opened(
        py,
        name,
        Source::Volume {
            masters,
            volume,
            nearby,
        },
        root,
        options,
    )
}

/// Opens a PackFS in a local file or block device, which others may read meanwhile and nobody may write.
#[pyfunction]
#[pyo3(signature = (path, root, *, cache_bytes, memory_bytes, reads_in_flight, cache_dir=None, cache_size=0))]
#[allow(clippy::too_many_arguments, reason = "they have names in Python")]
pub(crate) fn open_file(
    py: Python<'_>,
    path: PathBytes,
    root: PathBytes,
    cache_bytes: usize,
    memory_bytes: usize,
    reads_in_flight: usize,
    cache_dir: Option<PathBuf>,
    cache_size: u64,
) -> PyResult<Handle> {
    let path = PathBuf::from(OsString::from_vec(path.0));
    let name = format!("file:{}", path.display());
    let options = Options {
        cache_bytes,
        memory_bytes,
        reads_in_flight,
        local: cache_dir.map(|directory| (directory, cache_size)),
        handed: None,
        warnings: Warnings::default(),
    };
    opened(py, name, Source::File(path), root, options)
}
