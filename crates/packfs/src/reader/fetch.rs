//! Runs from the volume: read, verified once, sliced.

use bdev::IoError;
use foundation::checksum::crc32c;
use reactor::Buffer;

use super::ahead::Reading;
use super::planner::{Piece, Run};
use super::{ExtentError, Reader};
use crate::format::extent::Extent;
use crate::io::Attempts;
use crate::local::Origin;

/// Extents that are looked for on a local disk at once, for one call.
const LOCAL_LANES: usize = 16;

/// The bytes of an extent, or why not.
pub(super) type Fetched = Result<Buffer, ExtentError>;

impl Reader {
    /// Reads runs, as many at once as allowed, and gives each piece's bytes under its tag.
    pub(super) async fn fetch(&self, runs: Vec<Run>, pieces: usize) -> Vec<Option<Fetched>> {
        let mut fetched: Vec<Option<Fetched>> = (0..pieces).map(|_| None).collect();
        let mut tasks = Vec::with_capacity(runs.len());
        let mut runs = runs.into_iter();
        let last = runs.next_back();
        for run in runs {
            let reader = self.clone();
            tasks.push(reactor::spawn(async move { reader.fetch_run(run).await }));
        }
        // The last one needs no task; mostly it is the only one.
        let mut keep = |pieces: Vec<(usize, Fetched)>| {
            for (tag, result) in pieces {
                fetched[tag] = Some(result);
            }
        };
        if let Some(run) = last {
            keep(self.fetch_run(run).await);
        }
        for task in tasks {
            // A task that was ended from outside leaves its pieces unread.
            if let Some(pieces) = task.await {
                keep(pieces);
            }
        }
        fetched
    }

    /// Extents that a local disk has, each under its index; several are looked for at once.
    pub(super) async fn fetch_local(&self, wanted: &[(Origin, Extent)]) -> Vec<Option<Buffer>> {
        let lanes = wanted.len().clamp(1, LOCAL_LANES);
        let lane = |from: usize| {
            let medium = self.0.medium.clone();
            let mine: Vec<_> = wanted.iter().copied().skip(from).step_by(lanes).collect();
            async move {
                let mut found = Vec::with_capacity(mine.len());
                for (origin, extent) in mine {
                    found.push(medium.find_extent(&origin, &extent).await);
                }
                found
            }
        };
        // The first lane needs no task; mostly there is one file.
        let others: Vec<_> = (1..lanes).map(|from| reactor::spawn(lane(from))).collect();
        let mut all = vec![None; wanted.len()];
        let mut put = |from: usize, found: Vec<Option<Buffer>>| {
            for (index, bytes) in found.into_iter().enumerate() {
                all[from + index * lanes] = bytes;
            }
        };
        put(0, lane(0).await);
        for (index, task) in others.into_iter().enumerate() {
            // A task that was ended from outside has found nothing.
            put(index + 1, task.await.unwrap_or_default());
        }
        all
    }

    /// Reads one extent, without what several need to be told apart.
    pub(super) async fn fetch_alone(&self, extent: Extent) -> Fetched {
        let length = u64::from(extent.length);
        self.look_ahead(extent.address, length);
        if let Some((start, buffer)) = self.0.ahead.find(extent.address, length).await
            && let Ok(bytes) = verify(start, &buffer, &extent)
        {
            return Ok(bytes);
        }
        self.fetch_apart(&extent).await
    }

    /// Begins to read what may be asked for after a range.
    fn look_ahead(&self, address: u64, length: u64) {
        let capacity = self.0.medium.capacity_bytes();
        for reading in self.0.ahead.notice(address, length, capacity) {
            let reader = self.clone();
            drop(reactor::spawn(async move { reader.fetch_ahead(reading).await }));
        }
    }

    async fn fetch_run(&self, run: Run) -> Vec<(usize, Fetched)> {
        self.look_ahead(run.address, run.length);
        let here = self.0.ahead.find(run.address, run.length).await;
        let here = here.filter(|(start, buffer)| {
            let fits = |piece: &Piece| verify(*start, buffer, &piece.extent).is_ok();
            run.pieces.iter().all(fits)
        });
        let read = match here {
            Some(here) => Ok(Some(here)),
            None => {
                let _permit = self.0.permits.acquire().await;
                let mut attempts = self.0.medium.attempts();
                self.read_range(run.address, run.length, &mut attempts).await
            }
        };
        let mut results = Vec::with_capacity(run.pieces.len());
        for Piece { tag, extent } in run.pieces {
            let result = match judge(&read, &extent) {
                Ok(buffer) => Ok(buffer),
                // The medium may have failed under another piece of the run, or between two.
                Err(ExtentError::Io(IoError::Media | IoError::Checksum))
                    if u64::from(extent.length) < run.length =>
                {
                    self.fetch_apart(&extent).await
                }
                Err(error) => self.fetch_from_copies(&extent, error).await,
            };
            results.push((tag, result));
        }
        results
    }

    /// Reads what may be asked for soon. Where it cannot be had, whoever asks for it reads it and is told why.
    async fn fetch_ahead(&self, reading: Reading) {
        let _permit = self.0.permits.acquire().await;
        let mut attempts = self.0.medium.attempts();
        let read = self.read_range(reading.start, reading.length, &mut attempts);
        if let Ok(Some((_, buffer))) = read.await {
            reading.arrived(buffer);
        }
    }

    /// Reads one extent by itself, and from other copies where the first has it not.
    async fn fetch_apart(&self, extent: &Extent) -> Fetched {
        let read = {
            let _permit = self.0.permits.acquire().await;
            let mut attempts = self.0.medium.attempts();
            self.read_range(extent.address, u64::from(extent.length), &mut attempts)
                .await
        };
        match judge(&read, extent) {
            Ok(buffer) => Ok(buffer),
            Err(error) => self.fetch_from_copies(extent, error).await,
        }
    }

    /// Asks other copies, one after another, for an extent that was damaged or could not be read.
    async fn fetch_from_copies(&self, extent: &Extent, first: ExtentError) -> Fetched {
        // What lies outside the volume does so for every copy.
        if self
            .blocks_around(extent.address, u64::from(extent.length))
            .is_err()
        {
            return Err(first);
        }
        let (mut kept, mut away) = (first, None);
        let mut attempts = self.0.medium.further_attempts();
        loop {
            let _permit = self.0.permits.acquire().await;
            match self
                .read_range(extent.address, u64::from(extent.length), &mut attempts)
                .await
            {
                Ok(None) => break,
                Ok(Some((start, buffer))) => match verify(start, &buffer, extent) {
                    Ok(buffer) => return Ok(buffer),
                    Err(_) => kept = ExtentError::Damaged,
                },
                Err(IoError::Media | IoError::Checksum) => {}
                // One that has no such place, where another has, has not grown yet.
                Err(IoError::OutOfRange) => away = Some(IoError::Unavailable),
                Err(error) => away = Some(error),
            }
        }
        // Nobody is told to give up what one that did not answer may have.
        if let ExtentError::Damaged | ExtentError::Io(IoError::Media | IoError::Checksum) = kept
            && let Some(error) = attempts.away().await.or(away)
        {
            return Err(ExtentError::Io(error));
        }
        Err(kept)
    }

    /// The whole blocks around a range: address and length.
    fn blocks_around(&self, address: u64, length: u64) -> Result<(u64, u64), IoError> {
        let (start, length) = self.0.medium.widen(address, length);
        if start.saturating_add(length) > self.0.medium.capacity_bytes() {
            return Err(IoError::OutOfRange);
        }
        Ok((start, length))
    }

    /// Reads the blocks around a range; gives where they start.
    async fn read_range(
        &self,
        address: u64,
        length: u64,
        attempts: &mut Attempts<'_>,
    ) -> Result<Option<(u64, Buffer)>, IoError> {
        let (start, length) = self.blocks_around(address, length)?;
        let bytes = usize::try_from(length).map_err(|_| IoError::OutOfRange)?;
        let allocated = self.0.medium.pool().allocate(bytes).await;
        let buffer = allocated.map_err(|_| IoError::Exhausted)?;
        self.0.reads.set(self.0.reads.get() + 1);
        self.0.read_bytes.set(self.0.read_bytes.get() + length);
        #[cfg(test)]
        if self.0.asked_early.get().is_some() {
            self.0.asked_early.set(Some(self.0.hold.is_held()));
        }
        let read = attempts.read(start, buffer).await?;
        Ok(read.map(|buffer| (start, buffer)))
    }
}

/// An extent's bytes out of a read, or what is wrong with them.
fn judge(read: &Result<Option<(u64, Buffer)>, IoError>, extent: &Extent) -> Fetched {
    match read {
        Ok(Some((start, buffer))) => verify(*start, buffer, extent),
        Ok(None) => Err(ExtentError::Damaged),
        Err(error) => Err(ExtentError::Io(*error)),
    }
}

fn verify(start: u64, buffer: &Buffer, extent: &Extent) -> Fetched {
    let from = (extent.address - start) as usize;
    let bytes = buffer.slice(from..from + extent.length as usize);
    if crc32c(&bytes) == extent.checksum {
        Ok(bytes)
    } else {
        Err(ExtentError::Damaged)
    }
}
