//! Times and bounds of the replication. The defaults are the contracted ones.

use std::time::Duration;

use crate::message::codec::LIST_CHUNKS_MAX;

/// Times and bounds that all nodes of a cluster share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a grant lasts, on the grantor's clock.
    pub grant_term: Duration,
    /// How often a node asks each peer for a grant; the contract allows at most 0.5 s.
    pub beacon_interval: Duration,
    /// The most chunks of one part of what a node asks of a peer; never more than [`LIST_CHUNKS_MAX`].
    pub list_chunks_max: usize,
    /// When something unanswered is sent again.
    pub resend_interval: Duration,
    /// How long settled-through may wait for a replica write to travel with; at most 1 ms.
    pub settle_delay: Duration,
    /// How long a read is held before the client is told to try elsewhere.
    pub read_hold: Duration,
    /// How long a write node waits for a member before it proposes to leave it out.
    pub suspect_after: Duration,
    /// How long after the last write the write node flushes by itself, to clear intent marks.
    pub idle_flush_after: Duration,
    /// The most blocks one reconciliation write carries.
    pub reconcile_blocks: u32,
    /// The most reconciliation writes under way.
    pub reconcile_depth: usize,
    /// How often a copy that is not in sync asks to join.
    pub return_interval: Duration,
    /// The most resync pieces of one chunk under way while nobody else asks anything of the node; one otherwise, and
    /// each followed by a pause as long as itself.
    pub resync_depth: usize,
    /// The most chunks a write node resyncs at a time; those that hold up writes come on top.
    pub joins_max: usize,
    /// How long acknowledgements are held for a snapshot before it is given up.
    pub snapshot_hold: Duration,
    /// The most requests one chunk holds at a time; more are answered with `Busy`.
    pub requests_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grant_term: Duration::from_secs(3),
            beacon_interval: Duration::from_millis(450),
            list_chunks_max: LIST_CHUNKS_MAX,
            resend_interval: Duration::from_millis(100),
            settle_delay: Duration::from_micros(500),
            read_hold: Duration::from_millis(50),
            suspect_after: Duration::from_millis(1500),
            idle_flush_after: Duration::from_secs(5),
            reconcile_blocks: 32,
            reconcile_depth: 8,
            return_interval: Duration::from_millis(500),
            resync_depth: 4,
            joins_max: 4,
            snapshot_hold: Duration::from_secs(1),
            requests_max: 1024,
        }
    }
}

impl Settings {
    /// What the asker may use of a grant: 0.99 of the term, since clock rates differ by up to 1 %.
    pub fn usable_term(&self) -> Duration {
        self.grant_term / 100 * 99
    }
}
