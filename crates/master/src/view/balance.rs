//! How evenly the nodes are used.

use foundation::ByteCount;
use proto::v1;

use super::{about_left, seconds};
use crate::uuid_text;

/// How evenly the nodes are used, as JSON has it.
#[derive(Debug, Default, serde::Serialize)]
pub struct BalanceView {
    /// off, stopped, waiting, moving or even; empty where the masters are of an earlier release.
    pub state: &'static str,
    /// Before copies move again.
    pub waits_for: String,
    /// Of the node that is used least.
    pub least_percent: f64,
    /// Of all together.
    pub all_percent: f64,
    /// Of the node that is used most.
    pub most_percent: f64,
    /// What is too much on some.
    pub left_bytes: u64,
    /// For these and what is on its way without a command, as fast as it went in the last minutes; null before anything can be said.
    pub left_seconds: Option<u64>,
    /// Copies that move.
    pub moves: Vec<MoveRow>,
    /// Copies that move between the disks of a node.
    pub disk_moves: Vec<DiskMoveRow>,
}

/// A copy that moves.
#[derive(Debug, serde::Serialize)]
pub struct MoveRow {
    /// The volume's number.
    pub volume: u32,
    /// The chunk of it.
    pub chunk: u32,
    /// The node that gives it up.
    pub from: String,
    /// The node that takes it.
    pub to: String,
    /// Somebody has asked for it.
    pub by_command: bool,
    /// Still to be sent and in all, as the write node said last; none before it has begun.
    pub left_bytes: Option<u64>,
    /// To be sent in all.
    pub total_bytes: Option<u64>,
}

/// A copy that moves to another disk of its node.
#[derive(Debug, serde::Serialize)]
pub struct DiskMoveRow {
    /// The volume's number.
    pub volume: u32,
    /// The chunk of it.
    pub chunk: u32,
    /// Whose copy it is.
    pub node: String,
    /// The disk that gives it up.
    pub from: String,
    /// The disk that takes it.
    pub to: String,
}

impl BalanceView {
    /// What a master has answered, with how far the volumes' copies are.
    pub fn of(balance: Option<&v1::Balance>, volumes: &[v1::VolumeStatus]) -> Self {
        let Some(balance) = balance else {
            return Self::default();
        };
        let resyncs = || volumes.iter().flat_map(|volume| &volume.resyncs);
        let row = |moving: &v1::Moving| {
            let resync = resyncs().find(|resync| {
                (resync.volume, resync.index) == (moving.volume, moving.index) && resync.node == moving.to
            });
            MoveRow {
                volume: moving.volume,
                chunk: moving.index,
                from: uuid_text(&moving.from),
                to: uuid_text(&moving.to),
                by_command: moving.by_command,
                left_bytes: resync.map(|resync| resync.left_bytes),
                total_bytes: resync.map(|resync| resync.total_bytes),
            }
        };
        let disk_row = |moving: &v1::DiskMoving| DiskMoveRow {
            volume: moving.volume,
            chunk: moving.index,
            node: uuid_text(&moving.node),
            from: uuid_text(&moving.from),
            to: uuid_text(&moving.to),
        };
        let percent = |millionths: u32| f64::from(millionths) / 10_000.0;
        Self {
            state: match balance.state() {
                v1::BalanceState::Unspecified => "",
                v1::BalanceState::Off => "off",
                v1::BalanceState::Stopped => "stopped",
                v1::BalanceState::Waiting => "waiting",
                v1::BalanceState::Moving => "moving",
                v1::BalanceState::Even => "even",
            },
            waits_for: balance.waits_for.clone(),
            least_percent: percent(balance.least_millionths),
            all_percent: percent(balance.all_millionths),
            most_percent: percent(balance.most_millionths),
            left_bytes: balance.left_bytes,
            left_seconds: seconds(balance.left_ms),
            moves: balance.moves.iter().map(row).collect(),
            disk_moves: balance.disk_moves.iter().map(disk_row).collect(),
        }
    }

    /// What moves by itself or by command, in a line; none if nothing does.
    pub fn doing(&self) -> Option<String> {
        let (moves, left) = (self.moves.len(), ByteCount(self.left_bytes));
        let disks = match self.disk_moves.len() {
            0 => String::new(),
            moves => format!("{moves} copies move to other disks of their nodes"),
        };
        match (self.state, moves) {
            // Nodes are even by then, or as even as they can be.
            (_, 0) if !disks.is_empty() => Some(disks),
            ("moving", _) => Some(format!(
                "copies move to even nodes out: {moves} under way, {left} too much on some{}",
                about_left(self.left_seconds)
            )),
            (_, 1..) => Some(format!("{moves} copies move{}", about_left(self.left_seconds))),
            _ => None,
        }
    }
}
