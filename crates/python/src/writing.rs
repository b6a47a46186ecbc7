//! The one writer of a volume, asked from Python: a thread with a reactor that does one change after the other.
//!
//! Nothing is durable or seen by readers before a commit; one that ends without (or is killed) leaves the last commit. What
//! was not committed is dropped with the last handle.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bdev::BlockDevice;
use bdev::fence::TokenKeeper;
use bdev::file::{FileDevice, FileOptions};
use client::{Copies, MasterLeases, Nearby, Session};
use packfs::files::{
    FileError, FileOptions as WritingOptions, FileSystem, NewInode, RenameMode, SetAttributes,
};
use packfs::lease::LeaseSource;
use packfs::lease::memory::LocalLeases;
use packfs::name::components;
use packfs::{InodeNumber, Kind, Medium, Timestamp, WriterOptions};
use proto::client::Masters;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use reactor::mailbox::{Mailbox, MailboxSender, mailbox};

use crate::failure::Failure;
use crate::fork::Process;
use crate::handle::{PathBytes, locked, wait};
use crate::opened::{Source, holder};

/// Changes that wait for their turn, at most: each may hold a part of a file.
const CHANGES_MAX: usize = 16;
/// Giving a lease back; a master that does not answer is not waited for longer.
const CLOSING_LIMIT: Duration = Duration::from_secs(5);
/// So often a writer that does nothing looks whether another wants the volume.
const WANTED_EVERY: Duration = Duration::from_secs(1);
/// Memory of what is changed in the index between two commits, in bytes: some hundred bytes a file.
const INDEX_BYTES_MAX: u64 = 1 << 30;
/// Names of a directory that are asked for at once.
const LISTED_AT_ONCE: usize = 1024;

/// Something to do.
enum Change {
    /// An empty file, in the place of one that there is.
    Create(Vec<u8>),
    Write(Vec<u8>, u64, Vec<u8>),
    MakeDirectories(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>, RenameMode),
    Clone(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    List(Vec<u8>),
    Commit,
}

enum Answer {
    Nothing,
    Generation(u64),
    Names(Vec<Vec<u8>>),
}

type Job = (Change, SyncSender<Result<Answer, Failure>>);
type Heard = (Receiver<Result<MailboxSender<Job>, Failure>>, Receiver<()>);

fn start(source: Source, root: Vec<u8>, take_over: Option<Duration>) -> Result<Heard, Failure> {
    let (opening, opened) = sync_channel(1);
    let (closing, closed) = sync_channel(1);
    let work = move || {
        let served = reactor::run(
            &reactor::Config::default(),
            serve(&source, &root, take_over, &opening),
        );
        if let Err(error) = served {
            // Nobody listens any more if this fails.
            let _ = opening.send(Err(Failure::new(
                error.source.raw_os_error().unwrap_or(libc::EIO),
                error,
            )));
        }
        let _ = closing.send(());
    };
    match std::thread::Builder::new()
        .name("redhare writer".to_owned())
        .spawn(work)
    {
        Ok(_) => Ok((opened, closed)),
        Err(error) => Err(Failure::new(
            error.raw_os_error().unwrap_or(libc::EAGAIN),
            format!("no thread could be started for the writer: {error}; raise the limit of processes"),
        )),
    }
}

async fn serve(
    source: &Source,
    root: &[u8],
    take_over: Option<Duration>,
    opening: &SyncSender<Result<MailboxSender<Job>, Failure>>,
) {
    let (mut files, _device) = match open(source, take_over).await {
        Ok(opened) => opened,
        Err(failure) => {
            let _ = opening.send(Err(failure));
            return;
        }
    };
    let (sender, mut jobs): (_, Mailbox<Job>) = mailbox(CHANGES_MAX);
    // Who asked may have gone: then there are no senders, and the loop ends at once.
    let _ = opening.send(Ok(sender));
    loop {
        match reactor::time::timeout(WANTED_EVERY, jobs.recv()).await {
            Ok(Some((change, answer))) => drop(answer.send(work(&mut files, root, change).await)),
            Ok(None) => break,
            Err(_) => {}
        }
        // Never in the middle of what is committed together.
        files.hand_over().await;
    }
    // The lease ends by itself if nobody takes it back.
    let _ = files.close().await;
}

async fn open(
    source: &Source,
    take_over: Option<Duration>,
) -> Result<(FileSystem, Option<FileDevice>), Failure> {
    let (medium, leases, device): (Medium, Rc<dyn LeaseSource>, _) = match source {
        Source::File(path) => {
            let device = FileDevice::open(path, FileOptions::default())?;
            let channel = device.open_channel()?;
            // The file is locked: no other process has it open.
            let medium = Medium::new(TokenKeeper::new().over(channel));
            (medium, Rc::new(LocalLeases::new()), Some(device))
        }
        Source::Volume {
            masters,
            volume,
            nearby,
        } => {
            let session = Session::connect(Masters::from_environment(masters), volume)?;
            let channel = Rc::new(session.device(*nearby).open());
            let leases = MasterLeases::new(session, &holder());
            let leases = leases.map_err(|error| Failure::new(libc::EIO, error))?;
            // What one node has rotten the next one gives, for a writer as for a reader.
            let copies = Rc::new(Copies::new(channel.clone()));
            let medium = Medium::new(channel).with_copies(copies);
            (medium, Rc::new(leases), None)
        }
    };
    let options = WritingOptions {
        writer: WriterOptions {
            holder: holder(),
            take_over,
            hands_over: false,
            ..WriterOptions::default()
        },
        // What is published together is not parted, whatever runs short.
        commits_unasked: false,
        index_bytes_max: INDEX_BYTES_MAX,
        ..WritingOptions::default()
    };
    Ok((FileSystem::open(medium, leases, &options).await?, device))
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp {
        seconds: since.as_secs() as i64,
        nanoseconds: since.subsec_nanos(),
    }
}

fn new_inode(mode: u32) -> NewInode {
    use std::os::unix::fs::MetadataExt;
    // This process as its entry in /proc has it; root where that is not there.
    let (uid, gid) = std::fs::metadata("/proc/self").map_or((0, 0), |own| (own.uid(), own.gid()));
    NewInode { mode, uid, gid }
}

/// A path below the root, and the failures that name it.
struct Named<'a> {
    path: &'a [u8],
    names: Vec<&'a [u8]>,
}

impl<'a> Named<'a> {
    fn new(root: &'a [u8], path: &'a [u8]) -> Self {
        Self {
            path,
            names: components(root).chain(components(path)).collect(),
        }
    }

    fn failed(&self) -> impl Fn(FileError) -> Failure + '_ {
        |error| Failure::from(error).at(self.path)
    }

    /// The directory that it stands in, and its name there.
    async fn parent(&self, files: &FileSystem) -> Result<(InodeNumber, &'a [u8]), Failure> {
        let Some((name, parents)) = self.names.split_last() else {
            let text = "names the whole file system; name something in it";
            return Err(Failure::new(libc::EINVAL, text).at(self.path));
        };
        let mut at = InodeNumber::ROOT;
        for parent in parents {
            at = files.lookup(at, parent).await.map_err(self.failed())?.number;
        }
        Ok((at, name))
    }
}

async fn work(files: &mut FileSystem, root: &[u8], change: Change) -> Result<Answer, Failure> {
    match change {
        Change::Create(path) => create(files, &Named::new(root, &path)).await?,
        Change::Write(path, offset, bytes) => {
            let named = Named::new(root, &path);
            let (directory, name) = named.parent(files).await?;
            let found = files.lookup(directory, name).await.map_err(named.failed())?;
            let written = files.write(found.number, offset, &bytes, now()).await;
            written.map_err(named.failed())?;
        }
        Change::MakeDirectories(path) => {
            let named = Named::new(root, &path);
            let mut at = InodeNumber::ROOT;
            for name in &named.names {
                at = match files.lookup(at, name).await {
                    Ok(found) => found.number,
                    Err(error) if error.errno() == libc::ENOENT => {
                        let made = files.mkdir(at, name, new_inode(0o755), now()).await;
                        made.map_err(named.failed())?.number
                    }
                    Err(error) => return Err(named.failed()(error)),
                };
            }
        }
        Change::Rename(from, to, mode) => {
            let (from, to) = (Named::new(root, &from), Named::new(root, &to));
            let (old, new) = (from.parent(files).await?, to.parent(files).await?);
            let renamed = files.rename(old, new, mode, now()).await;
            renamed.map_err(from.failed())?;
        }
        Change::Clone(from, to) => {
            let (from, to) = (Named::new(root, &from), Named::new(root, &to));
            let mut source = InodeNumber::ROOT;
            for name in &from.names {
                source = files.lookup(source, name).await.map_err(from.failed())?.number;
            }
            let (directory, name) = to.parent(files).await?;
            let cloned = files.clone_tree(source, directory, name, now()).await;
            cloned.map_err(to.failed())?;
        }
        Change::Remove(path) => remove(files, &Named::new(root, &path)).await?,
        Change::List(path) => return list(files, &Named::new(root, &path)).await.map(Answer::Names),
        Change::Commit => return Ok(Answer::Generation(files.commit().await?)),
    }
    Ok(Answer::Nothing)
}

async fn create(files: &mut FileSystem, named: &Named<'_>) -> Result<(), Failure> {
    let (directory, name) = named.parent(files).await?;
    match files.lookup(directory, name).await {
        Ok(found) => {
            let empty = SetAttributes {
                size: Some(0),
                ..SetAttributes::default()
            };
            let set = files.set_attributes(found.number, &empty, now()).await;
            set.map(drop).map_err(named.failed())
        }
        Err(error) if error.errno() == libc::ENOENT => {
            let made = files.create(directory, name, new_inode(0o644), now()).await;
            made.map(drop).map_err(named.failed())
        }
        Err(error) => Err(named.failed()(error)),
    }
}

/// Removes a name and all that is below it, from the leaves up.
async fn remove(files: &mut FileSystem, named: &Named<'_>) -> Result<(), Failure> {
    let (directory, name) = named.parent(files).await?;
    let mut waiting = vec![(directory, name.to_vec())];
    while let Some((directory, name)) = waiting.last().cloned() {
        let found = files.lookup(directory, &name).await.map_err(named.failed())?;
        if found.kind != Kind::Directory {
            let removed = files.unlink(directory, &name, now()).await;
            removed.map_err(named.failed())?;
            waiting.pop();
            continue;
        }
        let inside = files
            .read_directory(found.number, None, None, LISTED_AT_ONCE)
            .await;
        let inside = inside.map_err(named.failed())?;
        if inside.is_empty() {
            let removed = files.rmdir(directory, &name, now()).await;
            removed.map_err(named.failed())?;
            waiting.pop();
        }
        waiting.extend(inside.into_iter().map(|entry| (found.number, entry.name)));
    }
    Ok(())
}

async fn list(files: &FileSystem, named: &Named<'_>) -> Result<Vec<Vec<u8>>, Failure> {
    let mut at = InodeNumber::ROOT;
    for name in &named.names {
        at = files.lookup(at, name).await.map_err(named.failed())?.number;
    }
    let (mut names, mut after): (Vec<Vec<u8>>, Option<u64>) = (Vec::new(), None);
    loop {
        let found = files
            .read_directory(at, after, names.last().map(Vec::as_slice), LISTED_AT_ONCE)
            .await;
        let found = found.map_err(named.failed())?;
        let Some(last) = found.last() else {
            return Ok(names);
        };
        after = Some(last.cookie);
        names.extend(found.into_iter().map(|entry| entry.name));
    }
}

/// A volume's writer; see `redhare.Writer`.
#[pyclass(frozen, module = "redhare._native")]
pub(crate) struct WriterHandle {
    /// None once closed.
    jobs: Mutex<Option<MailboxSender<Job>>>,
    closed: Mutex<Option<Receiver<()>>>,
    process: Process,
    name: String,
}

impl WriterHandle {
    fn call(&self, py: Python<'_>, change: Change) -> PyResult<Answer> {
        if !self.process.is_this() {
            let why = "this writer was opened before a fork, and its thread is the parent's; write in one process only";
            return Err(Failure::new(libc::ESTALE, why).of(&self.name).into());
        }
        let (sender, answer) = sync_channel(1);
        let mut job = (change, sender);
        loop {
            let sent = match &*locked(&self.jobs) {
                Some(jobs) if !jobs.is_closed() => jobs.try_send(job),
                _ => {
                    return Err(Failure::new(libc::EBADF, "the writer was closed; open it again")
                        .of(&self.name)
                        .into());
                }
            };
            match sent {
                Ok(()) => break,
                // Other threads' changes wait already.
                Err(back) => job = back,
            }
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
        }
        let (_, got) = wait(py, answer, None)?;
        let got = got.unwrap_or_else(|| Err(Failure::closed()));
        got.map_err(|failure| failure.of(&self.name).into())
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // Its locks and its thread are another process's.
            std::mem::forget(std::mem::take(&mut self.jobs));
            std::mem::forget(std::mem::take(&mut self.closed));
        }
    }
}

#[pymethods]
impl WriterHandle {
    /// Makes an empty file, or empties the one that there is.
    fn create(&self, py: Python<'_>, path: PathBytes) -> PyResult<()> {
        self.call(py, Change::Create(path.into_bytes())).map(drop)
    }

    /// Writes bytes at an offset of a file that there is. They are copied before other threads run.
    fn write(&self, py: Python<'_>, path: PathBytes, offset: u64, data: PyBuffer<u8>) -> PyResult<()> {
        let bytes = data.to_vec(py)?;
        self.call(py, Change::Write(path.into_bytes(), offset, bytes))
            .map(drop)
    }

    /// Makes a directory and those along the way.
    fn makedirs(&self, py: Python<'_>, path: PathBytes) -> PyResult<()> {
        self.call(py, Change::MakeDirectories(path.into_bytes()))
            .map(drop)
    }

    /// Gives an entry another name.
    fn rename(&self, py: Python<'_>, old: PathBytes, new: PathBytes, exchange: bool) -> PyResult<()> {
        let mode = match exchange {
            true => RenameMode::Exchange,
            false => RenameMode::Replace,
        };
        self.call(py, Change::Rename(old.into_bytes(), new.into_bytes(), mode))
            .map(drop)
    }

    /// Gives a file or directory a further time a name, with all that is below it; its content is shared.
    fn clone(&self, py: Python<'_>, source: PathBytes, destination: PathBytes) -> PyResult<()> {
        let change = Change::Clone(source.into_bytes(), destination.into_bytes());
        self.call(py, change).map(drop)
    }

    /// Removes a name and all that is below it.
    fn remove(&self, py: Python<'_>, path: PathBytes) -> PyResult<()> {
        self.call(py, Change::Remove(path.into_bytes())).map(drop)
    }

    /// The names in a directory, what was not committed included.
    fn list(&self, py: Python<'_>, path: PathBytes) -> PyResult<Vec<OsString>> {
        match self.call(py, Change::List(path.into_bytes()))? {
            Answer::Names(names) => Ok(names.into_iter().map(OsString::from_vec).collect()),
            Answer::Nothing | Answer::Generation(_) => Ok(Vec::new()),
        }
    }

    /// Makes everything so far durable; the generation that has it.
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        match self.call(py, Change::Commit)? {
            Answer::Generation(generation) => Ok(generation),
            Answer::Nothing | Answer::Names(_) => Ok(0),
        }
    }

    /// Gives the lease back and ends the thread; what was not committed is dropped.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.process.is_this() {
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

fn opened(
    py: Python<'_>,
    name: String,
    source: Source,
    root: PathBytes,
    take_over: Option<Duration>,
) -> PyResult<WriterHandle> {
    let (opening, closed) = start(source, root.into_bytes(), take_over)?;
    let (_, started) = wait(py, opening, None)?;
    let started = started.unwrap_or_else(|| Err(Failure::closed()));
    let jobs = started.map_err(|failure| failure.of(&name))?;
    Ok(WriterHandle {
        jobs: Mutex::new(Some(jobs)),
        closed: Mutex::new(Some(closed)),
        process: Process::this(),
        name,
    })
}

/// Becomes the writer of a volume of the cluster with these masters. Waits until one has answered; with `take_over` whoever writes is asked for
/// so many seconds to hand over.
#[pyfunction]
#[pyo3(signature = (masters, volume, root, take_over=0.0))]
pub(crate) fn write_volume(
    py: Python<'_>,
    masters: String,
    volume: String,
    root: PathBytes,
    take_over: f64,
) -> PyResult<WriterHandle> {
    let take_over = Duration::try_from_secs_f64(take_over)
        .map_err(|_| PyValueError::new_err("take_over is no number of seconds"))?;
    let name = format!("redhare://{masters}/{volume}");
    let source = Source::Volume {
        masters,
        volume,
        nearby: Nearby::default(),
    };
    let take_over = Some(take_over).filter(|asked| !asked.is_zero());
    opened(py, name, source, root, take_over)
}

/// Becomes the writer of a PackFS in a local file or block device.
#[pyfunction]
pub(crate) fn write_file(py: Python<'_>, path: PathBytes, root: PathBytes) -> PyResult<WriterHandle> {
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    let name = format!("file:{}", path.display());
    opened(py, name, Source::File(path), root, None)
}
