//! What a command between nodes and its answer have in common.

use foundation::Epoch;
use volume::message::SealAnswer;
use volume::{ChunkId, Incarnation, JoinNumber, Message, Sequence, SnapshotId};

/// What an answer from the core is about, and so which command it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Seal(ChunkId, Epoch),
    Replica(ChunkId, Epoch, Sequence, JoinNumber),
    Settle(ChunkId, Epoch, Sequence, Sequence, bool),
    Flush(ChunkId, Epoch, u64, JoinNumber),
    Join(ChunkId, Epoch, JoinNumber),
    Announce(ChunkId, Epoch, JoinNumber),
    Snapshot(ChunkId, Epoch, SnapshotId, Sequence),
    Confirm(ChunkId, Epoch, SnapshotId),
    Fetch(ChunkId, Epoch, u64),
    Beacon(Incarnation, u64),
    Query(ChunkId),
}

impl Key {
    pub(super) fn of_command(message: &Message) -> Option<Self> {
        Some(match *message {
            Message::Seal { chunk, ref config } => Key::Seal(chunk, config.epoch),
            Message::ReplicaWrite(write) => {
                Key::Replica(write.chunk, write.epoch, write.sequence, write.join)
            }
            Message::Settle {
                chunk,
                epoch,
                settled,
                flushed,
                open,
            } => Key::Settle(chunk, epoch, settled, flushed, open),
            Message::Flush {
                chunk,
                epoch,
                number,
                join,
            } => Key::Flush(chunk, epoch, number, join),
            Message::Join {
                chunk, epoch, join, ..
            } => Key::Join(chunk, epoch, join),
            Message::Announce { chunk, epoch, join } => Key::Announce(chunk, epoch, join),
            Message::Snapshot {
                chunk,
                epoch,
                snapshot,
                sequence,
            } => Key::Snapshot(chunk, epoch, snapshot, sequence),
            Message::Confirm {
                chunk,
                epoch,
                snapshot,
            } => Key::Confirm(chunk, epoch, snapshot),
            Message::Fetch {
                chunk, epoch, number, ..
            } => Key::Fetch(chunk, epoch, number),
            Message::Beacon {
                incarnation, round, ..
            } => Key::Beacon(incarnation, round),
            Message::Query { chunk } => Key::Query(chunk),
            _ => return None,
        })
    }

    pub(super) fn of_answer(message: &Message) -> Option<Self> {
        Some(match *message {
            Message::SealAnswer(SealAnswer { chunk, epoch, .. }) => Key::Seal(chunk, epoch),
            Message::ReplicaAnswer {
                chunk,
                epoch,
                sequence,
                join,
                ..
            } => Key::Replica(chunk, epoch, sequence, join),
            Message::SettleAnswer {
                chunk,
                epoch,
                settled,
                flushed,
                open,
                ..
            } => Key::Settle(chunk, epoch, settled, flushed, open),
            Message::FlushAnswer {
                chunk,
                epoch,
                number,
                join,
                ..
            } => Key::Flush(chunk, epoch, number, join),
            Message::JoinAnswer {
                chunk, epoch, join, ..
            } => Key::Join(chunk, epoch, join),
            Message::AnnounceAnswer {
                chunk, epoch, join, ..
            } => Key::Announce(chunk, epoch, join),
            Message::SnapshotAnswer {
                chunk,
                epoch,
                snapshot,
                sequence,
                ..
            } => Key::Snapshot(chunk, epoch, snapshot, sequence),
            Message::ConfirmAnswer {
                chunk,
                epoch,
                snapshot,
                ..
            } => Key::Confirm(chunk, epoch, snapshot),
            Message::FetchAnswer {
                chunk, epoch, number, ..
            } => Key::Fetch(chunk, epoch, number),
            Message::Grant {
                incarnation, round, ..
            } => Key::Beacon(incarnation, round),
            Message::QueryAnswer { chunk, .. } => Key::Query(chunk),
            _ => return None,
        })
    }

    /// Whether a peer that has such a command answers it in the end, so that it need not hear it again by the same
    /// connection. (A Seal may come while another is being written down, and is then passed over.)
    pub(super) fn is_sent_once(&self) -> bool {
        matches!(self, Key::Replica(..) | Key::Settle(..) | Key::Flush(..))
    }

    /// Whether its answer may have to wait for a disk of the peer's.
    pub(super) fn asks_disk(&self) -> bool {
        !matches!(self, Key::Settle(..) | Key::Beacon(..) | Key::Query(_))
    }

    /// Chunk and epoch, by which a refusal names its command.
    pub(super) fn place(&self) -> Option<(ChunkId, Epoch)> {
        match *self {
            Key::Seal(chunk, epoch)
            | Key::Replica(chunk, epoch, ..)
            | Key::Settle(chunk, epoch, ..)
            | Key::Flush(chunk, epoch, ..)
            | Key::Join(chunk, epoch, _)
            | Key::Announce(chunk, epoch, _)
            | Key::Snapshot(chunk, epoch, ..)
            | Key::Confirm(chunk, epoch, _)
            | Key::Fetch(chunk, epoch, _) => Some((chunk, epoch)),
            Key::Query(chunk) => Some((chunk, Epoch(0))),
            Key::Beacon(..) => None,
        }
    }
}
