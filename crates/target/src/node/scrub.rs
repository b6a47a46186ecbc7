//! Compares every copy with its checksums now and then (`docs/decisions/0069`), the write node's with the others (`docs/decisions/0144`), and those of
//! snapshots, too (`docs/decisions/0094`): what a disk has lost is found, and repaired from another copy, while there still is one. One part at a time, behind which the disk has long pauses; when a copy was compared
//! last stands with it on its disk, so that a restart does not begin anew.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foundation::Instant;
use reactor::sync::oneshot;
use reactor::{spawn, time};
use volume::message::codec::Checked;
use volume::{
    BlockRange, ChunkId, HostId, Operation, Request, RequestId, Session, Status, TraceId, WriterToken,
};

use super::copies::BLOCK_BYTES;
use super::native::{Check, CheckAsker};
use super::snapshots::Key;
use super::{CHECKSUMS, Event, Node};

/// Blocks that are compared at a time.
const PART_BLOCKS: u32 = 64;
/// The rate at which all copies are compared is this many times what the interval asks for, within these bounds in bytes a
/// second: no slower, since a copy that is begun is best finished, and no faster, since others want the disk.
const AHEAD: u64 = 4;
const RATE_MIN: u64 = 1 << 20;
const RATE_MAX: u64 = 64 << 20;
/// A part of which another copy has said nothing for so long took too long; after so many the rest of the chunk is compared with its checksums only.
const SILENT_FOR: Duration = Duration::from_secs(2);
const SILENT_MAX: u32 = 3;
/// A part in which so many blocks are mended is compared again, so often at most.
const MENDING_MAX: u32 = 8;
/// Copies come and go, and clocks are set: at least so often it is looked what is due.
const LOOK_AGAIN: Duration = Duration::from_secs(600);
/// A copy that could not be compared, such as one that is not in sync, is left alone for so long; a shorter interval halves it.
const RETRY: Duration = Duration::from_secs(60);

/// What is compared as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A live copy of a chunk.
    Copy(ChunkId),
    /// A copy of a chunk's part in a snapshot: what lies in clusters of its own.
    Snapshot(Key),
}

/// What is known of the copies' turns beside what stands on the disks.
#[derive(Default)]
struct Turns {
    /// When this target first saw copies that have never been compared.
    seen: BTreeMap<What, u64>,
    /// Copies that could not be compared, and until when they are left alone.
    put_off: BTreeMap<What, Instant>,
}

impl Node {
    /// Has every copy with checksums compared with them once in this time, as long as the node lives.
    pub fn scrub_every(self: &Rc<Self>, interval: Duration) {
        drop(spawn(run(Rc::downgrade(self), interval)));
    }
}

async fn run(node: Weak<Node>, interval: Duration) {
    let turns = RefCell::<Turns>::default();
    let retry = RETRY.min(interval / 2);
    loop {
        let Some(next) = node.upgrade().map(|node| node.next_scrub(interval, &turns)) else {
            return;
        };
        match next {
            Some((what, wait)) if wait.is_zero() => {
                if !compare(&node, what, interval).await {
                    turns.borrow_mut().put_off.insert(what, time::now() + retry);
                }
            }
            next => {
                time::sleep(
                    next.map_or(LOOK_AGAIN, |(_, wait)| wait)
                        .min(LOOK_AGAIN)
                        .min(interval),
                )
                .await
            }
        }
    }
}

/// True when the whole copy was compared, and that is noted. A block that no copy has right is no reason to stop.
async fn compare(weak: &Weak<Node>, what: What, interval: Duration) -> bool {
    let Some((runs, rate)) = (match weak.upgrade() {
        Some(node) => node.runs_of(what).await.zip(Some(node.scrub_rate(interval))),
        None => None,
    }) else {
        return false;
    };
    let mut silent = 0;
    for range in parts_of(&runs) {
        let Some(node) = weak.upgrade() else { return false };
        // The write node asks its own copy among all. Where another one says nothing the rest is not compared with it: that would take very long.
        let compared = match what {
            What::Copy(chunk) if silent < SILENT_MAX => {
                let began = time::now();
                let compared = node.compare_with_others(chunk, range).await;
                silent += u32::from(!compared && time::now() - began >= SILENT_FOR);
                compared
            }
            _ => false,
        };
        if !compared && !node.compare_part(what, range).await {
            return false;
        }
        drop(node);
        CHECKSUMS
            .scrubbed_blocks
            .fetch_add(range.count.into(), Ordering::Relaxed);
        let bytes = u64::from(range.count) * BLOCK_BYTES as u64;
        time::sleep(Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate)).await;
    }
    let Some(node) = weak.upgrade() else { return false };
    match what {
        What::Copy(chunk) => {
            CHECKSUMS.scrubbed_copies.fetch_add(1, Ordering::Relaxed);
            node.copies.note_scrub(chunk, unix_ms());
        }
        What::Snapshot(key) => {
            CHECKSUMS.scrubbed_snapshots.fetch_add(1, Ordering::Relaxed);
            node.copies.note_snapshot_scrub(key, unix_ms());
        }
    }
    true
}

impl Node {
    /// The copy that is to be compared next, and how long there is until then.
    fn next_scrub(&self, interval: Duration, turns: &RefCell<Turns>) -> Option<(What, Duration)> {
        let (now, now_unix) = (time::now(), unix_ms());
        let Turns { seen, put_off } = &mut *turns.borrow_mut();
        let copies = self.scrubbed();
        seen.retain(|what, _| copies.contains_key(what));
        put_off.retain(|what, until| *until > now && copies.contains_key(what));
        let mut oldest = now_unix;
        let mut next: Option<(What, u64)> = None;
        for (&what, &scrubbed) in &copies {
            let last = scrubbed.unwrap_or_else(|| *seen.entry(what).or_insert(now_unix));
            // A clock that was set back.
            let last = last.min(now_unix);
            oldest = oldest.min(last);
            let mut due = last + part_of_interval(what, interval);
            if let Some(until) = put_off.get(&what) {
                due = due.max(now_unix + milliseconds(until.since(now)));
            }
            if next.is_none_or(|(_, other)| due < other) {
                next = Some((what, due));
            }
        }
        CHECKSUMS.scrub_oldest_unix_ms.store(oldest, Ordering::Relaxed);
        next.map(|(what, due)| (what, Duration::from_millis(due.saturating_sub(now_unix))))
    }

    /// All that can be compared, and when it was last.
    fn scrubbed(&self) -> BTreeMap<What, Option<u64>> {
        let copies = self.copies.scrubbed().into_iter();
        let snapshots = self.copies.scrubbed_snapshots().into_iter();
        let copies = copies.map(|(chunk, last)| (What::Copy(chunk), last));
        copies
            .chain(snapshots.map(|(key, last)| (What::Snapshot(key), last)))
            .collect()
    }

    /// Bytes a second.
    fn scrub_rate(&self, interval: Duration) -> u64 {
        let blocks = |what: &What| -> u64 {
            match *what {
                What::Copy(chunk) => {
                    let runs = self.copies.written_runs(chunk);
                    runs.iter().map(|(_, blocks)| u64::from(*blocks)).sum()
                }
                What::Snapshot(key) => self.copies.own_blocks(key),
            }
        };
        let all: u64 = self.scrubbed().keys().map(blocks).sum();
        let bytes = all.saturating_mul(BLOCK_BYTES as u64);
        (bytes.saturating_mul(AHEAD) / interval.as_secs().max(1)).clamp(RATE_MIN, RATE_MAX)
    }

    /// What there is of a copy on its disk: what was never written reads zeros without any disk. None if it cannot be said.
    async fn runs_of(&self, what: What) -> Option<Vec<(u32, u32)>> {
        match what {
            What::Copy(chunk) => Some(self.copies.written_runs(chunk)),
            What::Snapshot(key) => {
                let runs = self.copies.own_runs(key).await;
                let report = |error| {
                    tracing::warn!(chunk = ?key.0, snapshot = key.1.0, %error, "a snapshot cannot be compared with its checksums");
                };
                runs.map_err(report).ok()
            }
        }
    }

    /// True if all copies have said what they hold in a part, this one among them.
    async fn compare_with_others(&self, chunk: ChunkId, range: BlockRange) -> bool {
        for _ in 0..MENDING_MAX {
            let Some(agreed) = self.compare_copies(chunk, range).await else {
                return false;
            };
            if agreed.compared == range.count || agreed.mended == 0 {
                return agreed.compared == range.count;
            }
        }
        false
    }

    /// False if the copy has gone, or could not be compared.
    async fn compare_part(&self, what: What, range: BlockRange) -> bool {
        match what {
            What::Copy(chunk) => {
                let Some(answer) = self.check_part(chunk, range) else {
                    return false;
                };
                matches!(answer.await, Some((Status::Done | Status::DeviceFailed, _)))
            }
            What::Snapshot(key) => match self.compare_snapshot(key, range).await {
                Ok(None) => false,
                Ok(Some(compared)) => {
                    if compared.wrong > 0 {
                        self.note_rot(key, range, true);
                    }
                    true
                }
                Err(error) => {
                    tracing::warn!(chunk = ?key.0, snapshot = key.1.0, %error, "a snapshot cannot be compared with its checksums");
                    false
                }
            },
        }
    }

    /// Has the core read a part, as for a client that wants to know what the checksums say; none if the copy has gone.
    pub(super) fn check_part(
        &self,
        chunk: ChunkId,
        range: BlockRange,
    ) -> Option<impl Future<Output = Option<(Status, Checked)>> + use<>> {
        let epoch = self.copies.epoch_of(chunk)?;
        let (answer, answered) = oneshot();
        let request = Request {
            id: RequestId(0),
            operation: Operation::Read,
            range,
            epoch,
            session: Session {
                host: HostId::native(0),
                number: 0,
            },
            writer_token: WriterToken(0),
            needs_room: false,
            trace: TraceId::default(),
        };
        let id = self
            .natives
            .check(Check::new(CheckAsker::Scrub(answer), chunk, request));
        self.push(Event::Request {
            chunk,
            request: Request { id, ..request },
            data: None,
        });
        Some(answered)
    }
}

/// Blocks of runs, some at a time.
fn parts_of(runs: &[(u32, u32)]) -> Vec<BlockRange> {
    let mut parts = Vec::new();
    for &(start, count) in runs {
        let mut at = start;
        while at < start + count {
            let count = PART_BLOCKS.min(start + count - at);
            parts.push(BlockRange { start: at, count });
            at += count;
        }
    }
    parts
}

/// From one comparison of a copy to the next, in milliseconds: three quarters of the interval and more, so that copies which were
/// made together do not stay together.
fn part_of_interval(what: What, interval: Duration) -> u64 {
    let (chunk, snapshot) = match what {
        What::Copy(chunk) => (chunk, 0),
        What::Snapshot((chunk, snapshot)) => (chunk, snapshot.0),
    };
    let number = u64::from(chunk.volume.0) << 32 | u64::from(chunk.index.0);
    let mixed = (number ^ snapshot.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let share = 768 + (mixed >> 56);
    milliseconds(interval).saturating_mul(share) / 1024
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn unix_ms() -> u64 {
    // A clock before 1970 makes everything due.
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::{ChunkIndex, VolumeNumber};

    #[test]
    fn copies_that_were_made_together_are_compared_apart() {
        let chunk = |index| {
            What::Copy(ChunkId {
                volume: VolumeNumber(7),
                index: ChunkIndex(index),
            })
        };
        let interval = Duration::from_secs(1024);
        let waits: Vec<u64> = (0..1000)
            .map(|index| part_of_interval(chunk(index), interval))
            .collect();
        assert!(
            waits.iter().all(|wait| (768_000..1_024_000).contains(wait)),
            "{waits:?}"
        );
        for quarter in 0..4 {
            let from = 768_000 + quarter * 64_000;
            let within = waits
                .iter()
                .filter(|wait| (from..from + 64_000).contains(*wait))
                .count();
            assert!(
                (200..300).contains(&within),
                "{within} of 1000 in quarter {quarter}"
            );
        }
    }
}
