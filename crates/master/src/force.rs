//! Serving chunks by force: nodes are asked how their copies are, and what an operator decided on that is committed.

use std::time::Duration;

use control::rebuild::SealedConfiguration;
use control::{
    ChunkId, CopyFound, CopyState, DiskId, FORCED_MAX, ForcedCopy, Incarnation, NodeId, ShownCopy, Unserved,
    VolumeNumber, Worth, WriterToken,
};
use foundation::Epoch;
use proto::v1;
use tonic::Status;

use crate::convert::{self, ConvertError, milliseconds, uuid, uuid_text};
use crate::service::Face;

/// How long nodes may take to say how their copies are: some heartbeats.
const ANSWER_WAIT: Duration = Duration::from_secs(8);
/// How often it is looked whether they have.
const ANSWER_LOOK: Duration = Duration::from_millis(100);

pub(crate) fn chunk_ids(chunks: &[ChunkId]) -> Vec<v1::ChunkId> {
    let id = |id: &ChunkId| v1::ChunkId {
        volume: id.volume.0,
        index: id.index,
    };
    chunks.iter().map(id).collect()
}

/// What the audit log says of a call.
pub(crate) fn object(request: &v1::ForceServeRequest) -> String {
    let copy = |copy: &v1::ForcedCopy| {
        format!(
            "chunk {} by the copy of node {} (epoch {})",
            copy.index,
            uuid_text(&copy.node),
            copy.epoch
        )
    };
    let mut named: Vec<String> = request.copies.iter().take(FORCED_MAX).map(copy).collect();
    match request.copies.len().saturating_sub(FORCED_MAX) {
        0 => {}
        more => named.push(format!("and {more} more")),
    }
    format!("volume {}: {}", request.name, named.join(", "))
}

fn state(wire: &v1::CopyState) -> Result<Option<CopyState>, ConvertError> {
    if !wire.found {
        return Ok(None);
    }
    let member = |copy: &v1::Copy| {
        let node = NodeId(uuid("members.node", &copy.node)?);
        Ok((node, Incarnation(copy.incarnation)))
    };
    let configuration = |epoch, write_node, members: &[v1::Copy]| match epoch {
        0 => Ok(None),
        epoch => Ok::<_, ConvertError>(Some(SealedConfiguration {
            epoch: Epoch(epoch),
            write_node: NodeId(uuid("write_node", write_node)?),
            members: members.iter().map(member).collect::<Result<_, ConvertError>>()?,
        })),
    };
    Ok(Some(CopyState {
        disk: DiskId(uuid("disk", &wire.disk)?),
        sealed: Epoch(wire.sealed_epoch),
        configuration: configuration(wire.configured_epoch, &wire.write_node, &wire.members)?,
        flushed: Epoch(wire.flushed_epoch),
        told: configuration(wire.told_epoch, &wire.told_write_node, &wire.told_members)?,
        token: WriterToken(wire.token),
    }))
}

fn copy(found: &CopyFound) -> v1::UnservedCopy {
    let (worth, epoch) = match (&found.state, found.worth) {
        (Some(None), _) => (v1::CopyWorth::Gone, Epoch(0)),
        (_, None) => (v1::CopyWorth::Unknown, Epoch(0)),
        (_, Some(Worth::Empty)) => (v1::CopyWorth::Empty, Epoch(0)),
        (_, Some(Worth::Filling(epoch))) => (v1::CopyWorth::Filling, epoch),
        (_, Some(Worth::LeftOut(epoch))) => (v1::CopyWorth::LeftOut, epoch),
        (_, Some(Worth::InSyncBefore)) => (v1::CopyWorth::InSyncBefore, Epoch(0)),
        (_, Some(Worth::InSync)) => (v1::CopyWorth::InSync, Epoch(0)),
    };
    let state = found.state.as_ref().and_then(Option::as_ref);
    let epoch_of = |epoch: fn(&CopyState) -> Epoch| state.map_or(0, |state| epoch(state).0);
    v1::UnservedCopy {
        copy: Some(v1::Copy {
            node: found.copy.node.0.to_bytes().to_vec(),
            disk: found.copy.disk.0.to_bytes().to_vec(),
            incarnation: found.copy.incarnation.map_or(0, |life| life.0),
        }),
        heard: found.is_heard,
        silent_ms: found.silent.map(milliseconds),
        worth: worth.into(),
        epoch: epoch.0,
        sealed_epoch: epoch_of(|state| state.sealed),
        flushed_epoch: epoch_of(|state| state.flushed),
        out_ms: found.out.map(milliseconds),
    }
}

/// A copy as it was shown.
fn shown(wire: &v1::UnservedCopy) -> Result<ShownCopy, ConvertError> {
    let place = wire.copy.as_ref();
    let place = place.ok_or(ConvertError::Missing { field: "shown.copy" })?;
    let epoch = Epoch(wire.epoch);
    let worth = match wire.worth() {
        v1::CopyWorth::Gone | v1::CopyWorth::Unknown | v1::CopyWorth::Unspecified => None,
        v1::CopyWorth::Empty => Some(Worth::Empty),
        v1::CopyWorth::Filling => Some(Worth::Filling(epoch)),
        v1::CopyWorth::LeftOut => Some(Worth::LeftOut(epoch)),
        v1::CopyWorth::InSyncBefore => Some(Worth::InSyncBefore),
        v1::CopyWorth::InSync => Some(Worth::InSync),
    };
    Ok(ShownCopy {
        node: NodeId(uuid("shown.node", &place.node)?),
        is_heard: wire.heard,
        is_gone: wire.worth() == v1::CopyWorth::Gone,
        worth,
    })
}

fn chunk(unserved: &Unserved) -> v1::UnservedChunk {
    v1::UnservedChunk {
        index: unserved.id.index,
        epoch: unserved.epoch.0,
        bytes: unserved.bytes.0,
        in_sync: unserved.in_sync as u32,
        living: unserved.living as u32,
        copies: unserved.copies.iter().map(copy).collect(),
        proposed: unserved
            .proposed
            .map_or_else(Vec::new, |node| node.0.to_bytes().to_vec()),
    }
}

impl Face {
    /// A node has said how copies are.
    pub(crate) async fn note_copies(
        &self,
        (node, incarnation): (NodeId, u64),
        copies: &[v1::CopyState],
    ) -> Result<(), Status> {
        if copies.is_empty() {
            return Ok(());
        }
        let described = |copy: &v1::CopyState| {
            let id = ChunkId {
                volume: VolumeNumber(copy.volume),
                index: copy.index,
            };
            Ok((id, state(copy)?))
        };
        let described = copies
            .iter()
            .map(described)
            .collect::<Result<_, ConvertError>>()?;
        let note = move |control: &mut crate::engine::Control, _| {
            control.note_copies(node, Incarnation(incarnation), described);
            Ok(())
        };
        self.engine.call(note).await
    }

    /// What is known of chunks once every node that is heard has said how its copies are, or has had the time to.
    async fn ask(&self, name: &str, only: &[u32]) -> Result<Vec<Unserved>, Status> {
        let deadline = tokio::time::Instant::now() + ANSWER_WAIT;
        let mut anew = true;
        loop {
            let (name, only) = (name.to_owned(), only.to_vec());
            let call =
                move |control: &mut crate::engine::Control, now| control.unserved(&name, &only, anew, now);
            let unserved = self.engine.call(call).await?;
            let is_awaited = unserved.iter().any(Unserved::is_awaited);
            if !is_awaited || tokio::time::Instant::now() >= deadline {
                return Ok(unserved);
            }
            anew = false;
            tokio::time::sleep(ANSWER_LOOK).await;
        }
    }

    pub(crate) async fn unserved(
        &self,
        request: v1::ShowUnservedRequest,
    ) -> Result<v1::ShowUnservedResponse, Status> {
        let unserved = self.ask(&request.name, &request.chunks).await?;
        let call = move |control: &mut crate::engine::Control, _| control.volume_named(&request.name);
        let volume = self.engine.call(call).await?;
        Ok(v1::ShowUnservedResponse {
            volume: Some(convert::volume(&volume)),
            chunks: unserved.iter().map(chunk).collect(),
        })
    }

    pub(crate) async fn force(
        &self,
        request: v1::ForceServeRequest,
    ) -> Result<v1::ForceServeResponse, Status> {
        let forced = |copy: &v1::ForcedCopy| {
            Ok(ForcedCopy {
                index: copy.index,
                node: NodeId(uuid("copies.node", &copy.node)?),
                epoch: Epoch(copy.epoch),
                shown: copy
                    .shown
                    .iter()
                    .map(shown)
                    .collect::<Result<_, ConvertError>>()?,
            })
        };
        let forced = request
            .copies
            .iter()
            .map(forced)
            .collect::<Result<Vec<_>, ConvertError>>()?;
        if forced.is_empty() {
            return Err(ConvertError::Missing { field: "copies" }.into());
        }
        // What was shown may be minutes old.
        let only: Vec<u32> = forced.iter().map(|copy| copy.index).collect();
        self.ask(&request.name, &only).await?;
        let call =
            move |control: &mut crate::engine::Control, now| control.force_serve(&request.name, &forced, now);
        let chunks = self.engine.call(call).await?;
        for (id, chunk) in &chunks {
            tracing::warn!(chunk = %id, node = %chunk.write_node, epoch = chunk.epoch.0, "a copy is served by force: what it lacks is lost");
        }
        Ok(v1::ForceServeResponse {
            chunks: convert::chunks(&chunks),
        })
    }
}
