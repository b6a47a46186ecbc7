//! Simulated files: what is durable, what only the cache has, and what a power cut leaves of it.
//!
//! A write becomes visible when it completes and durable when a sync that began after that completes, or at once if it was asked for. At a
//! power cut each other write is kept, lost, or torn sector by sector. Damage is made on purpose through
//! [`DiskHandle`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use foundation::Random;

use super::world::{Host, World};
use crate::file::OpenOptions;
use crate::sync::oneshot;

const PAGE_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;

/// Sparse contents; missing pages read zeros.
#[derive(Clone, Default)]
struct Contents {
    pages: BTreeMap<u64, Box<[u8]>>,
    length: u64,
}

impl Contents {
    fn read(&self, bytes: &mut [u8], offset: u64) {
        each_page(offset, bytes.len(), |page, start, range| {
            let part = &mut bytes[range];
            match self.pages.get(&page) {
                Some(kept) => part.copy_from_slice(&kept[start..start + part.len()]),
                None => part.fill(0),
            }
        });
    }

    fn write(&mut self, bytes: &[u8], offset: u64) {
        each_page(offset, bytes.len(), |page, start, range| {
            let part = &bytes[range];
            let kept = self
                .pages
                .entry(page)
                .or_insert_with(|| vec![0; PAGE_BYTES].into_boxed_slice());
            kept[start..start + part.len()].copy_from_slice(part);
        });
        self.length = self.length.max(offset + bytes.len() as u64);
    }
}

/// Calls `visit(page, start in page, range of the buffer)` for each page that the range touches.
fn each_page(offset: u64, length: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let start = (at % PAGE_BYTES as u64) as usize;
        let part = (PAGE_BYTES - start).min(length - done);
        visit(at / PAGE_BYTES as u64, start, done..done + part);
        done += part;
    }
}

struct Unsynced {
    offset: u64,
    bytes: Vec<u8>,
    /// Order of completion; none while in flight.
    completed: Option<u64>,
    id: u64,
}

pub(crate) struct Disk {
    host: Host,
    visible: RefCell<Contents>,
    durable: RefCell<Contents>,
    unsynced: RefCell<Vec<Unsynced>>,
    most_unsynced_bytes: Cell<u64>,
    next_id: Cell<u64>,
    operations: Cell<u64>,
    power_cut_at: Cell<Option<u64>>,
    fail_syncs: Cell<bool>,
    fail_writes: Cell<bool>,
    limit_bytes: Cell<u64>,
    latency: Cell<(Duration, Duration)>,
}

impl Disk {
    fn new(host: Host) -> Self {
        Self {
            host,
            visible: RefCell::default(),
            durable: RefCell::default(),
            unsynced: RefCell::default(),
            most_unsynced_bytes: Cell::new(0),
            next_id: Cell::new(0),
            operations: Cell::new(0),
            power_cut_at: Cell::new(None),
            fail_syncs: Cell::new(false),
            fail_writes: Cell::new(false),
            limit_bytes: Cell::new(u64::MAX),
            latency: Cell::new((Duration::from_micros(10), Duration::from_micros(200))),
        }
    }

    fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    fn unsynced_bytes(&self) -> u64 {
        let unsynced = self.unsynced.borrow();
        unsynced.iter().map(|write| write.bytes.len() as u64).sum()
    }

    fn make_durable(&self, which: impl Fn(&Unsynced) -> bool) {
        let mut durable = self.durable.borrow_mut();
        let mut unsynced = self.unsynced.borrow_mut();
        // In the order of completion, so that the later of two overlapping writes wins.
        unsynced.sort_by_key(|write| (write.completed.unwrap_or(u64::MAX), write.id));
        unsynced.retain(|write| {
            let chosen = which(write);
            if chosen {
                durable.write(&write.bytes, write.offset);
            }
            !chosen
        });
        durable.length = self.visible.borrow().length;
    }

    pub(super) fn lose_power(&self, random: &mut Random) {
        let mut unsynced = std::mem::take(&mut *self.unsynced.borrow_mut());
        unsynced.sort_by_key(|write| (write.completed.unwrap_or(u64::MAX), write.id));
        let mut durable = self.durable.borrow_mut();
        for write in unsynced {
            match random.below(3) {
                0 => {}
                1 => durable.write(&write.bytes, write.offset),
                _ => {
                    for (index, sector) in write.bytes.chunks(SECTOR_BYTES).enumerate() {
                        if random.chance(1, 2) {
                            durable.write(sector, write.offset + (index * SECTOR_BYTES) as u64);
                        }
                    }
                }
            }
        }
        *self.visible.borrow_mut() = durable.clone();
    }
}

impl Disk {
    /// The process that uses it has ended and the kernel lives on: each write in flight was given to the device, and completes, or was
    /// not. Left as it is, one might reach the disk at a power cut of much later, over what was written since.
    pub(super) fn end_process(&self, random: &mut Random) {
        self.unsynced.borrow_mut().retain_mut(|write| {
            if write.completed.is_some() {
                return true;
            }
            write.completed = random.chance(1, 2).then(|| self.next_id());
            if write.completed.is_some() {
                self.visible.borrow_mut().write(&write.bytes, write.offset);
            }
            write.completed.is_some()
        });
    }
}

impl World {
    pub(super) fn disk(&self, host: Host, path: &Path) -> Rc<Disk> {
        let mut disks = self.disks.borrow_mut();
        disks
            .entry((host, path.to_owned()))
            .or_insert_with(|| Rc::new(Disk::new(host)))
            .clone()
    }

    pub(crate) fn open(self: &Rc<Self>, path: &Path, options: OpenOptions) -> io::Result<SimulatedFile> {
        let host = self.current_host()?;
        if !options.create && !self.disks.borrow().contains_key(&(host, path.to_owned())) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(SimulatedFile {
            world: self.clone(),
            disk: self.disk(host, path),
        })
    }
}

/// An open simulated file.
#[derive(Clone)]
pub(crate) struct SimulatedFile {
    world: Rc<World>,
    disk: Rc<Disk>,
}

impl SimulatedFile {
    pub(crate) fn length_bytes(&self) -> u64 {
        self.disk.visible.borrow().length
    }

    pub(crate) fn set_length_bytes(&self, length: u64) -> io::Result<()> {
        if length > self.disk.limit_bytes.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Growing is durable at once: a device's size does not depend on syncs.
        self.disk.visible.borrow_mut().length = length;
        self.disk.durable.borrow_mut().length = length;
        Ok(())
    }

    /// Waits as long as the device takes; never returns on a host without power.
    async fn work(&self, changes: bool) {
        let disk = &self.disk;
        if changes {
            disk.operations.set(disk.operations.get() + 1);
            if disk.power_cut_at.get() == Some(disk.operations.get()) {
                self.world.cut_power(disk.host);
            }
        }
        if !self.world.is_powered(disk.host) {
            pending::<()>().await;
        }
        let (low, high) = disk.latency.get();
        let (done, wait) = oneshot();
        self.world
            .after(self.world.draw(low, high), move |_| done.send(()));
        wait.await;
        if !self.world.is_powered(disk.host) {
            pending::<()>().await;
        }
    }

    pub(crate) async fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.work(false).await;
        let visible = self.disk.visible.borrow();
        if offset + bytes.len() as u64 > visible.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        visible.read(bytes, offset);
        Ok(())
    }

    pub(crate) async fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(bytes, offset).await.map(drop)
    }

    /// As [`SimulatedFile::write_at`], and durable when it completes; with it what it has written over.
    pub(crate) async fn write_durably_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let order = self.write(bytes, offset).await?;
        if self.disk.fail_syncs.get() {
            return Err(io::Error::other("the simulated disk failed to sync"));
        }
        let end = offset + bytes.len() as u64;
        self.disk.make_durable(|write| {
            let overlaps = write.offset < end && offset < write.offset + write.bytes.len() as u64;
            overlaps && write.completed.is_some_and(|completed| completed <= order)
        });
        Ok(())
    }

    /// Its place in the order of completion.
    async fn write(&self, bytes: &[u8], offset: u64) -> io::Result<u64> {
        let disk = &self.disk;
        if offset + bytes.len() as u64 > disk.limit_bytes.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if disk.fail_writes.get() {
            self.work(true).await;
            return Err(io::Error::other("the simulated disk failed to write"));
        }
        let id = disk.next_id();
        // A write whose issuer is killed before it completes may still reach the disk: in flight from now on.
        if self.world.is_powered(disk.host) {
            let write = Unsynced {
                offset,
                bytes: bytes.to_vec(),
                completed: None,
                id,
            };
            disk.unsynced.borrow_mut().push(write);
            let most = disk.most_unsynced_bytes.get().max(disk.unsynced_bytes());
            disk.most_unsynced_bytes.set(most);
        }
        self.work(true).await;
        let mut unsynced = disk.unsynced.borrow_mut();
        let order = disk.next_id();
        if let Some(write) = unsynced.iter_mut().find(|write| write.id == id) {
            write.completed = Some(order);
            disk.visible.borrow_mut().write(&write.bytes, write.offset);
        }
        Ok(order)
    }

    pub(crate) async fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut at = offset;
        let end = (offset + length).min(self.length_bytes());
        let zeros = vec![0; 64 * PAGE_BYTES];
        while at < end {
            let part = (end - at).min(zeros.len() as u64);
            self.write_at(&zeros[..part as usize], at).await?;
            at += part;
        }
        Ok(())
    }

    pub(crate) async fn sync_data(&self) -> io::Result<()> {
        let began = self.disk.next_id();
        self.work(true).await;
        if self.disk.fail_syncs.get() {
            return Err(io::Error::other("the simulated disk failed to sync"));
        }
        self.disk
            .make_durable(|write| write.completed.is_some_and(|order| order < began));
        Ok(())
    }
}

/// A test's view of a simulated file.
pub struct DiskHandle {
    disk: Rc<Disk>,
}

impl DiskHandle {
    pub(super) fn new(disk: Rc<Disk>) -> Self {
        Self { disk }
    }

    /// Writes and syncs issued so far.
    pub fn operations(&self) -> u64 {
        self.disk.operations.get()
    }

    /// Cuts the host's power when the `n`-th write or sync from the beginning is issued.
    pub fn cut_power_at(&self, n: u64) {
        self.disk.power_cut_at.set(Some(n));
    }

    /// The most that a sync would have had to make durable at any time since this was asked last, in bytes.
    pub fn take_most_unsynced_bytes(&self) -> u64 {
        self.disk.most_unsynced_bytes.replace(self.disk.unsynced_bytes())
    }

    /// Every sync fails from now on (or no longer).
    pub fn fail_syncs(&self, fail: bool) {
        self.disk.fail_syncs.set(fail);
    }

    /// Every write begun from now on fails and does nothing (or no longer).
    pub fn fail_writes(&self, fail: bool) {
        self.disk.fail_writes.set(fail);
    }

    /// Writes and growth beyond this length fail with "no space".
    pub fn set_limit_bytes(&self, limit_bytes: u64) {
        self.disk.limit_bytes.set(limit_bytes);
    }

    /// Delay of each operation, drawn anew between these bounds.
    pub fn set_latency(&self, low: Duration, high: Duration) {
        self.disk.latency.set((low, high));
    }

    /// What a reader sees now.
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.disk.visible.borrow().read(&mut bytes, offset);
        bytes
    }

    /// Changes bytes behind the host's back, durably: a flipped bit, a misdirected write.
    pub fn damage(&self, offset: u64, bytes: &[u8]) {
        self.disk.visible.borrow_mut().write(bytes, offset);
        self.disk.durable.borrow_mut().write(bytes, offset);
    }

    /// Length in bytes.
    pub fn length_bytes(&self) -> u64 {
        self.disk.visible.borrow().length
    }

    /// Gives it another length behind the host's back, durably: a disk that has lost its medium, or answers with less than it has.
    pub fn set_length_bytes(&self, length_bytes: u64) {
        self.disk.visible.borrow_mut().length = length_bytes;
        self.disk.durable.borrow_mut().length = length_bytes;
    }
}
