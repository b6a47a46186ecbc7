//! Times and bounds of the masters.

use std::time::Duration;

use foundation::ByteCount;

use crate::identity::ClusterId;

/// Times and bounds of the masters of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a node shall say that it lives.
    pub heartbeat_interval: Duration,
    /// Without a heartbeat for so long a node counts as gone and is left out.
    pub heartbeat_timeout: Duration,
    /// The write lease's term where the holder names none.
    pub writer_term: Duration,
    /// The longest term a write lease may have.
    pub writer_term_max: Duration,
    /// A reader's lease, fixed by contract at 60 s.
    pub reader_term: Duration,
    /// Every so often all chunks are looked at, though nothing is known to have happened: another
    /// master may have acted.
    pub audit_interval: Duration,
    /// A snapshot that is not complete after so long is given up.
    pub snapshot_term: Duration,
    /// A copy that is out of sync for so long, and sent nothing, is rebuilt on another node.
    pub rebuild_after: Duration,
    /// The most copies made anew at a time for each living node; the others follow as these are in sync.
    pub rebuilds_per_node: usize,
    /// Whether copies move by themselves until every node is used to the same share.
    pub rebalance: bool,
    /// The most copies that move at a time to even out the nodes.
    pub moves_max: usize,
    /// How long a key of the data path is in use; what is made with it is believed for one to two of these.
    pub data_key_period: Duration,
    /// How much of a disk is promised to copies, in percent of its capacity: at least 100. With more, disks may run full by writes to
    /// volumes that exist.
    pub overcommit_percent: u32,
    /// Chunk changes remembered for those who ask for what is new; who asks later gets all.
    pub changes_kept: usize,
    /// The identity that a cluster is founded with in an empty store, and that a store which is not empty must have.
    /// Without it one is drawn, and any will do.
    pub cluster: Option<ClusterId>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_timeout: Duration::from_secs(3),
            writer_term: Duration::from_secs(30),
            writer_term_max: Duration::from_secs(600),
            reader_term: Duration::from_secs(60),
            audit_interval: Duration::from_secs(60),
            snapshot_term: Duration::from_secs(30),
            rebuild_after: Duration::from_secs(600),
            rebuilds_per_node: 8,
            rebalance: true,
            moves_max: 4,
            data_key_period: Duration::from_secs(1800),
            overcommit_percent: 100,
            changes_kept: 65_536,
            cluster: None,
        }
    }
}

/// Of a disk that is promised more than once, nothing more is promised once this share of it is in use, in percent.
const FULL_PERCENT: u64 = 90;

impl Settings {
    /// What of a disk may be promised.
    pub(crate) fn promised_of(&self, capacity: ByteCount) -> ByteCount {
        ByteCount(percent(capacity, self.overcommit_percent.max(100).into()))
    }

    /// Whether a disk is too full to be promised to anybody, though promises allow it. Without overcommitting they never do.
    pub(crate) fn is_too_full(&self, capacity: ByteCount, used: ByteCount) -> bool {
        self.overcommit_percent > 100 && used.0 >= percent(capacity, FULL_PERCENT)
    }
}

fn percent(of: ByteCount, percent: u64) -> u64 {
    u64::try_from(u128::from(of.0) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}
