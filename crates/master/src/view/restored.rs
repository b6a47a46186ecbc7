//! Masters whose metadata are from a backup.

use proto::v1;

use crate::uuid_text;

/// How far they are with finding out what the nodes have done since, as JSON has it.
#[derive(Debug, Default, serde::Serialize)]
pub struct RestoredView {
    /// The metadata are from a backup, and what nodes have done since is not known yet.
    pub restored: bool,
    /// The revision of the store that the backup is of; 0 where nodes made it known.
    pub revision: u64,
    /// Chunks of which it is known.
    pub settled_chunks: u32,
    /// All there are.
    pub chunks: u32,
    /// Nodes that have yet to say something.
    pub awaited: Vec<AwaitedRow>,
    /// Chunks that cannot be settled, all of them.
    pub refused_chunks: u32,
    /// The first of these.
    pub refused: Vec<RefusedRow>,
    /// Volumes that came after the backup, by number.
    pub unknown_volumes: Vec<u32>,
    /// Volumes that have grown since.
    pub grown_volumes: Vec<u32>,
}

/// A node that has yet to say something.
#[derive(Debug, serde::Serialize)]
pub struct AwaitedRow {
    /// Its UUID.
    pub node: String,
    /// Of so many chunks; 0 before it has said which it has.
    pub chunks: u32,
}

/// A chunk that cannot be settled.
#[derive(Debug, serde::Serialize)]
pub struct RefusedRow {
    /// The volume's number.
    pub volume: u32,
    /// The chunk of it.
    pub chunk: u32,
    /// What is in the way.
    pub why: String,
}

impl RestoredView {
    /// What a master has answered.
    pub fn of(restored: Option<&v1::RestoredStatus>) -> Self {
        let Some(restored) = restored else {
            return Self::default();
        };
        let awaited = |awaited: &v1::AwaitedNode| AwaitedRow {
            node: uuid_text(&awaited.node),
            chunks: awaited.chunks,
        };
        let refused = |refused: &v1::RefusedChunk| RefusedRow {
            volume: refused.volume,
            chunk: refused.index,
            why: refused.why.clone(),
        };
        Self {
            restored: true,
            revision: restored.revision,
            settled_chunks: restored.settled_chunks,
            chunks: restored.chunks,
            awaited: restored.awaited.iter().map(awaited).collect(),
            refused_chunks: restored.refused_chunks,
            refused: restored.refused.iter().map(refused).collect(),
            unknown_volumes: restored.unknown_volumes.clone(),
            grown_volumes: restored.grown_volumes.clone(),
        }
    }

    /// What it means for the cluster, in a line; none if its metadata are the newest there are.
    pub fn trouble(&self) -> Option<String> {
        self.restored.then(|| {
            format!(
                "the masters' metadata are from a backup, and nothing is changed before it is known what the nodes have done since: {} of {} chunks are settled; see \"redhare meta restored\"",
                self.settled_chunks, self.chunks
            )
        })
    }
}
