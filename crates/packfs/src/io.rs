//! Bytes and pages on a channel, from whichever copy has them.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bdev::{Channel, ChannelExt, Data, Fence, IoError, Operation};
use foundation::{BlockCount, Epoch, Lba};
use reactor::{Buffer, BufferMut, BufferPool};

use crate::error::TreeError;
use crate::format::extent::Extent;
use crate::format::page::PageError;
use crate::format::{PAGE_BYTES, PAGE_BYTES_U64, PagePointer};
use crate::lease::LeaseError;
use crate::lease::hold::WriterHold;
use crate::local::{Key, LocalCache, Origin};

/// Chooses other copies after damaged bytes were read.
pub trait CopySelector {
    /// Begins to ask the copies of what is read again, one after the other. Does not block.
    fn begin(&self) -> Box<dyn CopyRound>;
}

/// One reader's way through the copies.
pub trait CopyRound {
    /// The channel for the attempt after `attempt` failed ones, from 1 on; `None` when no copy is left to try. Does not block.
    fn channel(&self, attempt: u32) -> Option<Rc<dyn Channel>>;

    /// Whether every copy of what was read by this round's channels has answered, with its bytes or an error of its medium. One that has
    /// not may have the right bytes, though another one gave its own in its place. Waits a little where one has not, if that may be known
    /// not to be a copy any more.
    fn has_heard_all(&self) -> Pin<Box<dyn Future<Output = bool>>>;
}

/// No round has more attempts than this.
const ATTEMPTS_MAX: u32 = 16;

/// Attempts to read the same from one copy after the other.
pub(crate) struct Attempts<'a> {
    medium: &'a Medium,
    made: u32,
    round: Option<Box<dyn CopyRound>>,
}

impl Attempts<'_> {
    /// Reads whole blocks by the next attempt. `Ok(None)` when no copy is left.
    pub(crate) async fn read(&mut self, address: u64, buffer: BufferMut) -> Result<Option<Buffer>, IoError> {
        let attempt = self.made;
        self.made += 1;
        let channel = match attempt {
            0 => Some(self.medium.channel.clone()),
            1..=ATTEMPTS_MAX => {
                if self.round.is_none() {
                    self.round = self.medium.copies.as_ref().map(|copies| copies.begin());
                }
                self.round.as_ref().and_then(|round| round.channel(attempt))
            }
            _ => None,
        };
        let Some(channel) = channel else { return Ok(None) };
        let (status, buffer) = channel.read(self.medium.lba(address), buffer).await;
        status.map(|()| Some(buffer.freeze()))
    }

    /// Why the bytes that were read are not all that the copies have, if one of them has not answered. To be asked when no copy is left.
    pub(crate) async fn away(&self) -> Option<IoError> {
        let heard_all = match &self.round {
            Some(round) => round.has_heard_all().await,
            None => true,
        };
        (!heard_all).then_some(IoError::Unavailable)
    }
}

/// A volume as PackFS uses it: byte addresses, whole blocks on the way.
#[derive(Clone)]
pub struct Medium {
    channel: Rc<dyn Channel>,
    copies: Option<Rc<dyn CopySelector>>,
    pool: BufferPool,
    block_bytes: u64,
    fence: Option<Fence>,
    local: Option<Rc<LocalCache>>,
    /// The file system whose pages and extents are looked for there; none until one is read, and for writers.
    local_volume: Option<[u8; 16]>,
    /// A writer's right to it: without it what is read wrong may be the next writer's.
    hold: Option<Rc<WriterHold>>,
}

impl Medium {
    /// A volume behind `channel`. Call it inside a reactor, whose buffer pool is used.
    pub fn new(channel: Rc<dyn Channel>) -> Self {
        let block_bytes = u64::from(channel.geometry().block_bytes);
        Self {
            channel,
            copies: None,
            pool: BufferPool::current(),
            block_bytes,
            fence: None,
            local: None,
            local_volume: None,
            hold: None,
        }
    }

    /// Reads damaged bytes again from the copies that `copies` chooses.
    pub fn with_copies(mut self, copies: Rc<dyn CopySelector>) -> Self {
        self.copies = Some(copies);
        self
    }

    /// Readers look for pages and extents in a cache on a local disk first, and put there what it has not. The cache is of the
    /// reactor that this medium is used on.
    pub fn with_local(mut self, cache: Option<Rc<LocalCache>>) -> Self {
        self.local = cache;
        self
    }

    /// The same as a reader of the file system `uuid` uses it.
    pub(crate) fn for_reader_of(mut self, uuid: [u8; 16]) -> Self {
        self.local_volume = Some(uuid);
        self
    }

    /// The cache on a local disk, and what is looked for in it, where there is one and this is a reader's.
    fn local_here(&self) -> Option<(&Rc<LocalCache>, &[u8; 16])> {
        self.local.as_ref().zip(self.local_volume.as_ref())
    }

    /// The cache on a local disk.
    pub(crate) fn local(&self) -> Option<&Rc<LocalCache>> {
        self.local_here().map(|(cache, _)| cache)
    }

    /// A page from the local disk, if it is there and `check` accepts it.
    pub(crate) async fn find_page<T>(
        &self,
        pointer: PagePointer,
        mut check: impl FnMut(&[u8]) -> Result<T, PageError>,
    ) -> Option<T> {
        let (cache, uuid) = self.local_here()?;
        cache
            .find(&Key::page(uuid, pointer), |bytes| check(&bytes).ok())
            .await
    }

    /// Puts a page that was found right on the local disk.
    pub(crate) fn keep_page(&self, pointer: PagePointer, bytes: &[u8]) {
        if let Some((cache, uuid)) = self.local_here() {
            cache.store(&Key::page(uuid, pointer), bytes);
        }
    }

    /// An extent from the local disk, if it is there and its bytes are right.
    pub(crate) async fn find_extent(&self, origin: &Origin, extent: &Extent) -> Option<Buffer> {
        let (cache, uuid) = self.local_here()?;
        cache.find_extent(uuid, origin, extent).await
    }

    /// Puts an extent whose bytes were found right on the local disk.
    pub(crate) fn keep_extent(&self, origin: &Origin, extent: &Extent, bytes: &[u8]) {
        if let Some((cache, uuid)) = self.local_here() {
            cache.store_extent(uuid, origin, extent, bytes);
        }
    }

    /// The same for the writer that has this lease: writes go under its token.
    pub(crate) fn under(mut self, hold: &Rc<WriterHold>) -> Self {
        self.fence = Some(Fence {
            epoch: Epoch::default(),
            writer_token: hold.token(),
        });
        self.hold = Some(hold.clone());
        self
    }

    /// Whether what was read wrong is damage: not if this is a writer's whose lease has ended, since the next one may have used the place
    /// again.
    ///
    /// # Errors
    /// How the lease ended.
    pub(crate) async fn ensure_damage(&self) -> Result<(), LeaseError> {
        match &self.hold {
            Some(hold) => hold.ensure().await,
            None => Ok(()),
        }
    }

    /// The same volume through a layer over its channel.
    #[cfg(test)]
    pub(crate) fn on(&self, layer: impl FnOnce(Rc<dyn Channel>) -> Rc<dyn Channel>) -> Self {
        let channel = layer(self.channel.clone());
        Self {
            channel,
            ..self.clone()
        }
    }

    /// Lets no older writer write any more where the range lies: to be done before what it may have written is read.
    pub(crate) async fn fence(&self, address: u64, length: u64) -> Result<(), IoError> {
        let (address, length) = self.widen(address, length);
        let blocks = BlockCount(length / self.block_bytes);
        let completion = self.channel.execute(
            Operation::Fence,
            self.lba(address),
            blocks,
            Data::None,
            self.fence,
        );
        completion.await.status
    }

    /// Asks whether the volume has grown; afterwards its capacity says so.
    pub(crate) async fn look_for_growth(&self) {
        self.channel.look_for_growth().await;
    }

    /// Size of the volume in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.channel.geometry().capacity_bytes()
    }

    pub(crate) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    fn lba(&self, address: u64) -> Lba {
        assert!(
            address.is_multiple_of(self.block_bytes),
            "address {address} does not begin a block"
        );
        Lba(address / self.block_bytes)
    }

    /// The whole blocks that cover a range: address and length.
    pub(crate) fn widen(&self, address: u64, length: u64) -> (u64, u64) {
        let start = address / self.block_bytes * self.block_bytes;
        let end = address
            .saturating_add(length)
            .checked_next_multiple_of(self.block_bytes)
            .unwrap_or(u64::MAX);
        (start, end - start)
    }

    /// Reads whole blocks, from any copy.
    pub(crate) async fn read_blocks(&self, address: u64, buffer: BufferMut) -> Result<Buffer, IoError> {
        let (status, buffer) = self.channel.read(self.lba(address), buffer).await;
        status.map(|()| buffer.freeze())
    }

    /// Attempts to read the same, the first from any copy.
    pub(crate) fn attempts(&self) -> Attempts<'_> {
        Attempts {
            medium: self,
            made: 0,
            round: None,
        }
    }

    /// The same where the first has been made.
    pub(crate) fn further_attempts(&self) -> Attempts<'_> {
        Attempts {
            made: 1,
            ..self.attempts()
        }
    }

    /// Reads a page until `check` accepts it or no copy is left.
    pub(crate) async fn read_page<T>(
        &self,
        pointer: PagePointer,
        mut check: impl FnMut(&[u8]) -> Result<T, PageError>,
    ) -> Result<T, TreeError> {
        if let Some(value) = self.find_page(pointer, &mut check).await {
            return Ok(value);
        }
        let page = pointer.page;
        let mut last = None;
        let mut attempts = self.attempts();
        loop {
            let allocated = self.pool.allocate(PAGE_BYTES).await;
            let buffer = allocated.map_err(|source| TreeError::Buffer { page, source })?;
            if page > self.capacity_bytes() / PAGE_BYTES_U64 {
                let source = IoError::OutOfRange;
                return Err(TreeError::Io { page, source });
            }
            match attempts.read(pointer.address(), buffer).await {
                Ok(None) => break,
                Ok(Some(buffer)) => match check(&buffer) {
                    Ok(value) => {
                        self.keep_page(pointer, &buffer);
                        return Ok(value);
                    }
                    Err(source) => last = Some(TreeError::Damaged { page, source }),
                },
                // Damage says more than a copy that cannot be reached.
                Err(source) => last = last.or(Some(TreeError::Io { page, source })),
            }
        }
        if let Some(
            TreeError::Damaged { .. }
            | TreeError::Io {
                source: IoError::Media | IoError::Checksum,
                ..
            },
        ) = last
            && let Some(source) = attempts.away().await
        {
            return Err(TreeError::Io { page, source });
        }
        if let Some(TreeError::Damaged { .. }) = last {
            self.ensure_damage().await?;
        }
        Err(last.expect("the first attempt always has a channel"))
    }

    /// Reads whole blocks until `check` accepts them or no copy is left. What it said of the first is the answer then: the others
    /// are asked because that one may be damaged.
    ///
    /// # Errors
    /// If the first cannot be read and no other is accepted.
    pub(crate) async fn read_checked<T, E>(
        &self,
        address: u64,
        length: usize,
        check: impl FnMut(&[u8]) -> Result<T, E>,
    ) -> Result<Result<T, E>, IoError> {
        self.read_copies(address, length, check, false).await
    }

    /// The same for what is given up if it is damaged.
    ///
    /// # Errors
    /// Also if any copy cannot be reached and no other is accepted: that one may be right.
    pub(crate) async fn read_checked_by_all<T, E>(
        &self,
        address: u64,
        length: usize,
        check: impl FnMut(&[u8]) -> Result<T, E>,
    ) -> Result<Result<T, E>, IoError> {
        self.read_copies(address, length, check, true).await
    }

    async fn read_copies<T, E>(
        &self,
        address: u64,
        length: usize,
        mut check: impl FnMut(&[u8]) -> Result<T, E>,
        all: bool,
    ) -> Result<Result<T, E>, IoError> {
        let (mut first, mut away, mut gave) = (None, None, false);
        let mut attempts = self.attempts();
        loop {
            let buffer = self.pool.allocate(length).await.map_err(|_| IoError::Exhausted)?;
            let said = match attempts.read(address, buffer).await {
                Ok(None) => break,
                Ok(Some(buffer)) => Ok(check(&buffer)),
                Err(error) => Err(error),
            };
            gave |= said.is_ok();
            match said {
                Ok(Ok(value)) => return Ok(Ok(value)),
                Err(error) if all && !matches!(error, IoError::Media | IoError::Checksum) => {
                    away = away.or(Some(error));
                }
                _ => {}
            }
            first.get_or_insert(said);
        }
        if all && away.is_none() {
            away = attempts.away().await;
        }
        // Where one copy has it, another one that has not grown so far yet is behind.
        if away == Some(IoError::OutOfRange) && gave {
            away = Some(IoError::Unavailable);
        }
        match away {
            Some(error) => Err(error),
            None => first.expect("the first attempt always has a channel"),
        }
    }

    /// Writes whole blocks.
    pub(crate) async fn write(&self, address: u64, buffer: Buffer, fua: bool) -> Result<(), IoError> {
        let blocks = self.channel.geometry().blocks_in(buffer.len())?;
        let operation = Operation::Write { fua };
        let data = Data::From(buffer);
        let completion = self
            .channel
            .execute(operation, self.lba(address), blocks, data, self.fence);
        completion.await.status
    }

    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        let completion =
            self.channel
                .execute(Operation::Flush, Lba(0), BlockCount(0), Data::None, self.fence);
        completion.await.status
    }

    /// A whole number of blocks read into a fresh buffer.
    pub(crate) async fn read_fresh(&self, address: u64, length: usize) -> Result<Buffer, IoError> {
        let buffer = self.pool.allocate(length).await.map_err(|_| IoError::Exhausted)?;
        self.read_blocks(address, buffer).await
    }

    /// A copy of `bytes` written as whole blocks.
    pub(crate) async fn write_bytes(&self, address: u64, bytes: &[u8], fua: bool) -> Result<(), IoError> {
        let allocated = self.pool.allocate(bytes.len()).await;
        let mut buffer = allocated.map_err(|_| IoError::Exhausted)?;
        buffer.copy_from_slice(bytes);
        self.write(address, buffer.freeze(), fua).await
    }
}
