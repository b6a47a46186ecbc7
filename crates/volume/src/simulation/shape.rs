//! What a simulated cluster is made of: its shape, and its nodes as one sees them from outside of their cores.

use std::collections::BTreeMap;
use std::rc::Rc;

use foundation::Instant;

use super::disk::Disk;
use super::keep::Kept;
use super::past::Board;
use crate::identity::{DataToken, RequestId, WriterToken};
use crate::node::NodeCore;

pub(super) struct Shape {
    pub(super) nodes: usize,
    pub(super) chunks: usize,
    pub(super) copies: u8,
    pub(super) minimum: u8,
    pub(super) scenario: u64,
    /// Clients write under tokens, newer ones now and then.
    pub(super) leased: bool,
    /// Copies of snapshots follow those of their chunks.
    pub(super) keeps: bool,
    /// The volume is a clone.
    pub(super) cloned: bool,
}

pub(super) struct Node {
    pub(super) core: Option<NodeCore>,
    pub(super) life: u64,
    offset_ns: u64,
    rate_ppm: i64,
    pub(super) paused_until: u64,
    pub(super) tick_at: u64,
    pub(super) disks: BTreeMap<usize, Disk>,
    pub(super) kept: Kept,
    pub(super) data: BTreeMap<DataToken, Rc<Vec<u32>>>,
    next_token: u64,
    pub(super) requests: BTreeMap<RequestId, Asked>,
    /// Outputs put out in the event being handled.
    pub(super) read: BTreeMap<RequestId, Vec<u32>>,
    pub(super) board: Board,
}

pub(super) struct Asked {
    pub(super) client: usize,
    pub(super) attempt: u64,
    pub(super) arrived: u64,
    pub(super) writes: bool,
    /// What the block is to hold for a write that compares first.
    pub(super) expected: Option<u32>,
    pub(super) is_read: bool,
    /// A read by way of a portal.
    pub(super) reads: bool,
    pub(super) token: WriterToken,
    /// The newest token that was in force when it arrived.
    pub(super) in_force: WriterToken,
}

impl Node {
    /// One whose clock is off by so much and runs at such a rate, with these copies.
    pub(super) fn new((offset_ns, rate_ppm): (u64, i64), disks: BTreeMap<usize, Disk>) -> Self {
        Self {
            core: None,
            life: 0,
            offset_ns,
            rate_ppm,
            paused_until: 0,
            tick_at: 0,
            disks,
            kept: Kept::default(),
            data: BTreeMap::new(),
            next_token: 0,
            requests: BTreeMap::new(),
            read: BTreeMap::new(),
            board: Board::default(),
        }
    }

    /// A name for bytes of this node.
    pub(super) fn new_data(&mut self) -> DataToken {
        self.next_token += 1;
        DataToken(self.next_token)
    }

    /// A name for something asked of this node.
    pub(super) fn new_request(&mut self) -> RequestId {
        self.next_token += 1;
        RequestId(self.next_token)
    }

    pub(super) fn clock(&self, now: u64) -> Instant {
        let drift = now as i64 / 1_000_000 * self.rate_ppm;
        Instant::from_nanos((self.offset_ns + now).wrapping_add_signed(drift))
    }

    pub(super) fn when(&self, clock: Instant) -> u64 {
        let local = clock.as_nanos().saturating_sub(self.offset_ns);
        let scaled = u128::from(local) * 1_000_000 / (1_000_000 + self.rate_ppm) as u128;
        scaled as u64 + 1_000
    }
}
