//! The library's side: every request, with its reply, becomes a task of the reactor's thread.
//!
//! What is not here (locks, `ioctl`) the library refuses with ENOSYS, and the kernel
//! does it itself or tells the caller that it cannot be had. A request that cannot be queued any more, because the file
//! system is closed, is answered with EIO when its reply is dropped.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use packfs::files::{Allocate, NewInode, NodeKind, RenameMode, SetAttributes, SetExtended};
use packfs::name::NAME_BYTES_MAX;
use packfs::{Inode, Seek};
use reactor::mailbox::MailboxSender;

use crate::convert::{GENERATION, attributes, chosen, device, missing, now, number};
use crate::listing::Listing;
use crate::outcome::Outcome;
use crate::refusal::Refusal;
use crate::shared::{Caching, Shared};
use crate::source::Source;

/// Permission bits, set-uid, set-gid and sticky.
const MODE_BITS: u32 = 0o7777;
/// The bits of a mode that say what kind of file it is, and those of the kinds that `mknod(2)` makes (`inode(7)`).
const KIND_BITS: u32 = 0o170_000;
const REGULAR_BITS: u32 = 0o100_000;
const PIPE_BITS: u32 = 0o010_000;
const CHARACTER_BITS: u32 = 0o020_000;
const BLOCK_BITS: u32 = 0o060_000;
const SOCKET_BITS: u32 = 0o140_000;
/// `setxattr(2)`.
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
/// `lseek(2)`.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// `fallocate(2)`.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
/// The longest write and read that the kernel asks for at once, in bytes.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel has under way for nobody in particular, such as reading ahead.
const BACKGROUND_MAX: u16 = 64;
/// Access control lists of POSIX, which nobody here would enforce.
const SYSTEM_ATTRIBUTES: &[u8] = b"system.";
/// `statfs` counts in these, in bytes.
const BLOCK_BYTES: u32 = 4096;
/// Inodes whose numbers follow each other, that are asked about of the same reactor.
const NEIGHBOURS: u64 = 64;
/// A thread that finds the mailbox full tries again so much later.
const FULL_PAUSE: Duration = Duration::from_millis(1);

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What the mailbox holds.
pub(crate) enum Job {
    /// A request, to be made a task of.
    Work(Box<dyn FnOnce(Rc<Shared>) -> Task + Send>),
    /// Unmount.
    Stop,
    /// It is unmounted.
    Ended,
}

/// Queues a job, waiting for room. Without anybody who takes it, it is dropped.
pub(crate) fn send(sender: &MailboxSender<Job>, mut job: Job) {
    while let Err(back) = sender.try_send(job) {
        if sender.is_closed() {
            return;
        }
        job = back;
        std::thread::sleep(FULL_PAUSE);
    }
}

pub(crate) struct Face {
    sender: MailboxSender<Job>,
    /// Those who may answer what only looks, the one above among them.
    lookers: Vec<MailboxSender<Job>>,
    caching: Caching,
    /// Of a mount that writes.
    outcome: Option<Arc<Outcome>>,
}

impl Face {
    pub(crate) fn new(
        sender: MailboxSender<Job>,
        helpers: Vec<MailboxSender<Job>>,
        caching: Caching,
        outcome: Option<Arc<Outcome>>,
    ) -> Self {
        Self {
            outcome,
            lookers: std::iter::once(sender.clone()).chain(helpers).collect(),
            sender,
            caching,
        }
    }

    /// As [`Face::ask`], of any who may: for what looks and leaves no trace. An inode is asked about of the same one, who remembers it,
    /// as are those of its neighbourhood, which lie side by side on the volume.
    fn ask_one<F>(&self, inode: INodeNo, work: impl FnOnce(Rc<Shared>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let neighbourhood = inode.0 / NEIGHBOURS;
        let one = (neighbourhood % self.lookers.len() as u64) as usize;
        send(
            &self.lookers[one],
            Job::Work(Box::new(|shared| Box::pin(work(shared)))),
        );
    }

    fn ask<F>(&self, work: impl FnOnce(Rc<Shared>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        send(&self.sender, Job::Work(Box::new(|shared| Box::pin(work(shared)))));
    }
}

fn reply_entry(shared: &Shared, made: Result<Inode, Refusal>, reply: ReplyEntry) {
    match made {
        Ok(inode) => {
            let node = shared.handles.named(inode.number);
            let (mut told, kept) = (attributes(&inode), shared.caching.kept());
            if node == inode.number {
                return reply.entry(&kept, &told, GENERATION);
            }
            // The library takes both numbers from here. The kernel asks for the attributes, and with them the inode's number, when somebody wants them.
            told.ino = INodeNo(node.0);
            reply.entry_with_ttls(&Duration::ZERO, &kept, &told, GENERATION);
        }
        Err(refusal) => reply.error(refusal.errno()),
    }
}

fn reply_attributes(shared: &Shared, found: Result<Inode, Refusal>, reply: ReplyAttr) {
    match found {
        Ok(inode) => reply.attr(&shared.caching.kept(), &attributes(&inode)),
        Err(refusal) => reply.error(refusal.errno()),
    }
}

fn reply_empty(done: Result<(), Refusal>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(refusal) => reply.error(refusal.errno()),
    }
}

/// Answers with bytes, or with how many there are (`getxattr(2)`).
fn reply_sized(found: Result<Vec<u8>, Refusal>, size: u32, reply: ReplyXattr) {
    match found {
        Err(refusal) => reply.error(refusal.errno()),
        // A value or list has at most 64 KiB.
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}

fn new_inode(request: &Request, mode: u32, umask: u32) -> NewInode {
    NewInode {
        mode: mode & !umask & MODE_BITS,
        uid: request.uid(),
        gid: request.gid(),
    }
}

impl Filesystem for Face {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is a help where the kernel has it, and none is needed.
        for wanted in [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_ASYNC_DIO,
        ] {
            let _ = config.add_capabilities(wanted);
        }
        if self.caching == Caching::Following {
            // Contents that the kernel has go when it learns of another length or time.
            let _ = config.add_capabilities(InitFlags::FUSE_AUTO_INVAL_DATA);
        }
        if let Err(nearest) = config.set_max_write(REQUEST_BYTES_MAX) {
            let _ = config.set_max_write(nearest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        send(&self.sender, Job::Ended);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        if self.caching == Caching::Following {
            self.ask(async move |shared| shared.forget(number(ino), nlookup));
        }
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.ask_one(parent, async move |shared| {
            let found = shared
                .look_of(number(parent), async |source, parent| {
                    source.lookup(parent, &name).await
                })
                .await;
            match (found, shared.caching.missing_kept()) {
                (Err(Refusal::NO_SUCH_ENTRY), Some(kept)) => reply.entry(&kept, &missing(), GENERATION),
                (found, _) => reply_entry(&shared, found, reply),
            }
        });
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.ask_one(ino, async move |shared| {
            let found = shared.look_at(number(ino), async |source, inode| source.stat(inode).await);
            let found = found.await;
            reply_attributes(&shared, found, reply);
        });
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let now = now();
        let set = SetAttributes {
            mode: mode.map(|mode| mode & MODE_BITS),
            uid,
            gid,
            size,
            atime: atime.map(|time| chosen(time, now)),
            mtime: mtime.map(|time| chosen(time, now)),
        };
        self.ask(async move |shared| {
            let changed = shared.change(async |files| files.set_attributes(number(ino), &set, now).await);
            reply_attributes(&shared, changed.await, reply);
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        self.ask_one(ino, async move |shared| {
            match shared
                .look_of(number(ino), async |source, inode| source.read_link(inode).await)
                .await
            {
                Ok(target) => target.with(|target| reply.data(target)),
                Err(refusal) => reply.error(refusal.errno()),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (name, new) = (name.as_bytes().to_vec(), new_inode(request, mode, umask));
        let kind = match mode & KIND_BITS {
            REGULAR_BITS | 0 => NodeKind::File,
            PIPE_BITS => NodeKind::Pipe,
            SOCKET_BITS => NodeKind::Socket,
            CHARACTER_BITS => NodeKind::CharacterDevice(device(rdev)),
            BLOCK_BITS => NodeKind::BlockDevice(device(rdev)),
            _ => return reply.error(Errno::EINVAL),
        };
        self.ask(async move |shared| {
            let made =
                shared.change(async |files| files.mknod(number(parent), &name, kind, new, now()).await);
            reply_entry(&shared, made.await, reply);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, new) = (name.as_bytes().to_vec(), new_inode(request, mode, umask));
        self.ask(async move |shared| {
            let made = shared.change(async |files| files.mkdir(number(parent), &name, new, now()).await);
            reply_entry(&shared, made.await, reply);
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.ask(async move |shared| {
            let done = shared.change(async |files| files.unlink(number(parent), &name, now()).await);
            reply_empty(done.await, reply);
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.ask(async move |shared| {
            let done = shared.change(async |files| files.rmdir(number(parent), &name, now()).await);
            reply_empty(done.await, reply);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, new) = (name.as_bytes().to_vec(), new_inode(request, 0o777, 0));
        let target = target.as_os_str().as_bytes().to_vec();
        self.ask(async move |shared| {
            let made =
                shared.change(async |files| files.symlink(number(parent), &name, &target, new, now()).await);
            reply_entry(&shared, made.await, reply);
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = if flags == RenameFlags::empty() {
            RenameMode::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (name, newname) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        self.ask(async move |shared| {
            let (from, to) = ((number(parent), &name[..]), (number(newparent), &newname[..]));
            let done = shared.change(async |files| files.rename(from, to, mode, now()).await);
            reply_empty(done.await, reply);
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let name = newname.as_bytes().to_vec();
        self.ask(async move |shared| {
            let made =
                shared.change(async |files| files.link(number(ino), number(newparent), &name, now()).await);
            reply_entry(&shared, made.await, reply);
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = FileHandle(ino.0);
        match self.caching {
            // From now on the kernel opens files by itself, without asking (FUSE_NO_OPEN_SUPPORT).
            Caching::Still => reply.error(Errno::ENOSYS),
            Caching::Writer => self.ask(async move |shared| {
                match shared
                    .change_if_written(async |files| files.open_inode(number(ino)).await)
                    .await
                {
                    Ok(()) => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
                    Err(refusal) => reply.error(refusal.errno()),
                }
            }),
            Caching::Following => self.ask(async move |shared| match shared.open(number(ino)).await {
                Ok(true) => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE),
                Ok(false) => reply.opened(handle, FopenFlags::empty()),
                Err(refusal) => reply.error(refusal.errno()),
            }),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, new) = (name.as_bytes().to_vec(), new_inode(request, mode, umask));
        self.ask(async move |shared| {
            let made = shared.change(async |files| {
                let inode = files.create(number(parent), &name, new, now()).await?;
                files.open_inode(inode.number).await?;
                Ok(inode)
            });
            match made.await {
                Ok(inode) => {
                    let handle = FileHandle(inode.number.0);
                    let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                    reply.created(
                        &shared.caching.kept(),
                        &attributes(&inode),
                        GENERATION,
                        handle,
                        flags,
                    );
                }
                Err(refusal) => reply.error(refusal.errno()),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.ask_one(ino, async move |shared| {
            let read = async |source: &Source, inode| source.read(inode, offset, size.into()).await;
            let found = shared.look_at(number(ino), read);
            match found.await {
                Ok(bytes) => bytes.with(|bytes| reply.data(bytes)),
                Err(refusal) => reply.error(refusal.errno()),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        self.ask(async move |shared| {
            // As write(2) has it: what there is room for is written, and the program hears how much that is.
            let done = shared.change(async |files| files.write_some(number(ino), offset, &data, now()).await);
            match done.await {
                // The kernel sends at most `REQUEST_BYTES_MAX`.
                Ok(written) => reply.written(written as u32),
                Err(refusal) => reply.error(refusal.errno()),
            }
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            // The kernel does the others itself.
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        self.ask(async move |shared| {
            let found = shared
                .look_at(number(ino), async |source, inode| {
                    source.seek(inode, offset, what).await
                })
                .await;
            match found {
                // Files are shorter than 2^63 bytes.
                Ok(at) => reply.offset(at as i64),
                Err(refusal) => reply.error(refusal.errno()),
            }
        });
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let how = match mode & !KEEP_SIZE {
            0 => Allocate::Room,
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => Allocate::Hole,
            ZERO_RANGE => Allocate::Zeros,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let (range, keep_size) = (offset..offset.saturating_add(length), mode & KEEP_SIZE != 0);
        self.ask(async move |shared| {
            let done =
                shared.change(async |files| files.allocate(number(ino), range, how, keep_size, now()).await);
            reply_empty(done.await, reply);
        });
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((number(ino_in), offset_in), (number(ino_out), offset_out));
        self.ask(async move |shared| {
            let copied = shared.change(async |files| files.copy_range(from, to, len, now()).await);
            match copied.await {
                // One call copies less than 2^32 bytes.
                Ok(copied) => reply.written(copied as u32),
                Err(refusal) => reply.error(refusal.errno()),
            }
        });
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing has to be told when a file is closed, and the kernel asks no more.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        match self.caching {
            Caching::Writer => {}
            Caching::Still => return reply.ok(),
            Caching::Following => {
                return self.ask(async move |shared| {
                    reply.ok();
                    shared.close(number(ino)).await;
                });
            }
        }
        self.ask(async move |shared| {
            let done = shared.change_if_written(async |files| files.release(number(ino)).await);
            reply_empty(done.await, reply);
        });
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if self.caching != Caching::Writer {
            return self.ask(async move |shared| reply_empty(shared.refresh().await, reply));
        }
        self.ask(async move |shared| {
            reply_empty(shared.sync(number(ino)).await, reply);
        });
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.ask(async move |shared| {
            let handle = FileHandle(shared.new_handle());
            reply.opened(handle, FopenFlags::empty());
        });
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.ask(async move |shared| {
            shared
                .list(number(ino), fh.0, offset, Listing::Plain(reply))
                .await;
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.ask(async move |shared| {
            shared.list(number(ino), fh.0, offset, Listing::Plus(reply)).await;
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.ask(async move |shared| {
            shared.release_directory(fh.0);
            reply.ok();
        });
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        if self.caching != Caching::Writer {
            return self.ask(async move |shared| reply_empty(shared.refresh().await, reply));
        }
        self.ask(async move |shared| reply_empty(shared.commit().await, reply));
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.ask(async move |shared| {
            let found = shared.room(number(ino)).await;
            let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
            let free = blocks(found.free_bytes);
            let inodes = found.totals.files + found.totals.directories;
            // An inode takes a part of a page at least, so there is room for as many as there are free pages.
            let (total, name) = (inodes + free, NAME_BYTES_MAX as u32);
            let (mut volume, mut free, mut total, mut left) = (blocks(found.volume_bytes), free, total, free);
            if let Some(quota) = found.quota {
                // As of a file system of its own, and no larger than the one below.
                if quota.limit_bytes > 0 {
                    let unused = quota.limit_bytes.saturating_sub(quota.used_bytes);
                    (volume, free) = (blocks(quota.limit_bytes).min(volume), blocks(unused).min(free));
                }
                if quota.limit_files > 0 {
                    let unused = quota.limit_files.saturating_sub(quota.used_files);
                    (total, left) = (quota.limit_files, unused.min(left));
                }
            }
            reply.statfs(volume, free, free, total, left, BLOCK_BYTES, name, BLOCK_BYTES);
        });
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        let mode = match flags {
            XATTR_CREATE => SetExtended::Create,
            XATTR_REPLACE => SetExtended::Replace,
            _ => SetExtended::Always,
        };
        if name.starts_with(SYSTEM_ATTRIBUTES) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.ask(async move |shared| {
            let set = shared
                .change(async |files| files.set_extended(number(ino), &name, &value, mode, now()).await);
            reply_empty(set.await, reply);
        });
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes().to_vec();
        if name.starts_with(SYSTEM_ATTRIBUTES) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        if ino == INodeNo::ROOT && name == crate::PROCESS_ATTRIBUTE.as_bytes() {
            return reply_sized(Ok(std::process::id().to_string().into_bytes()), size, reply);
        }
        if let Some(outcome) = self.outcome.as_ref().filter(|_| ino == INodeNo::ROOT)
            && name == crate::OUTCOME_ATTRIBUTE.as_bytes()
        {
            return reply_sized(Ok(outcome.path().into_bytes()), size, reply);
        }
        let is_statistics = ino == INodeNo::ROOT && name == crate::STATISTICS_ATTRIBUTE.as_bytes();
        self.ask(async move |shared| {
            if is_statistics {
                let text = shared.statistics().await;
                return reply_sized(Ok(text.into_bytes()), size, reply);
            }
            let extended = async |source: &Source, inode| source.extended(inode, &name).await;
            let found = shared.look_at(number(ino), extended);
            reply_sized(found.await, size, reply);
        });
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.ask(async move |shared| {
            let names = shared.look_at(number(ino), async |source, inode| {
                source.list_extended(inode).await
            });
            let ended = |mut name: Vec<u8>| {
                name.push(0);
                name
            };
            let listed = names
                .await
                .map(|names| names.into_iter().flat_map(ended).collect());
            reply_sized(listed, size, reply);
        });
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.ask(async move |shared| {
            let removed = shared.change(async |files| files.remove_extended(number(ino), &name, now()).await);
            reply_empty(removed.await, reply);
        });
    }
}
