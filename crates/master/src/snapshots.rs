//! The service of snapshots of volumes.

use std::time::{SystemTime, UNIX_EPOCH};

use control::{Snapshot, SnapshotNumber, SnapshotState, Volume, VolumeNumber};
use proto::v1;
use proto::v1::snapshots_server::Snapshots;
use tonic::{Request, Response, Status};

use crate::access::about;
use crate::convert;
use crate::engine::Control;
use crate::service::Face;

fn to_wire(volume: &Volume, snapshot: &Snapshot) -> v1::Snapshot {
    let state = match snapshot.state {
        SnapshotState::Pending => v1::SnapshotState::Pending,
        SnapshotState::Complete => v1::SnapshotState::Complete,
        SnapshotState::Deleting => v1::SnapshotState::Deleting,
    };
    v1::Snapshot {
        number: snapshot.number.0,
        volume: snapshot.volume.0,
        name: snapshot.name.clone(),
        state: state.into(),
        chunks: snapshot.chunks,
        created_unix_ms: snapshot.created_unix_ms,
        size_bytes: volume.geometry.chunk.0.saturating_mul(snapshot.chunks.into()),
    }
}

#[tonic::async_trait]
impl Snapshots for Face {
    async fn begin(
        &self,
        request: Request<v1::BeginSnapshotRequest>,
    ) -> Result<Response<v1::BeginSnapshotResponse>, Status> {
        let (_, extensions, v1::BeginSnapshotRequest { volume, name }) = request.into_parts();
        about(&extensions, || format!("volume {volume}, snapshot {name}"));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let call = move |control: &mut Control, _| control.begin_snapshot(&volume, &name, unix_ms);
        let (volume, snapshot) = self.engine.call(call).await?;
        let snapshot = Some(to_wire(&volume, &snapshot));
        Ok(Response::new(v1::BeginSnapshotResponse { snapshot }))
    }

    async fn complete(
        &self,
        request: Request<v1::CompleteSnapshotRequest>,
    ) -> Result<Response<v1::CompleteSnapshotResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let (volume, number) = (VolumeNumber(request.volume), SnapshotNumber(request.number));
        about(&extensions, || {
            format!("volume number {volume}, snapshot {number}")
        });
        let call = move |control: &mut Control, _| {
            let snapshot = control.complete_snapshot(volume, number)?;
            Ok((control.volume(volume)?, snapshot))
        };
        let (volume, snapshot) = self.engine.call(call).await?;
        let snapshot = Some(to_wire(&volume, &snapshot));
        Ok(Response::new(v1::CompleteSnapshotResponse { snapshot }))
    }

    async fn abort(
        &self,
        request: Request<v1::AbortSnapshotRequest>,
    ) -> Result<Response<v1::AbortSnapshotResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let (volume, number) = (VolumeNumber(request.volume), SnapshotNumber(request.number));
        about(&extensions, || {
            format!("volume number {volume}, snapshot {number}")
        });
        self.engine
            .call(move |control, _| control.abort_snapshot(volume, number))
            .await?;
        Ok(Response::new(v1::AbortSnapshotResponse {}))
    }

    async fn list(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        let name = request.into_inner().volume;
        let call = move |control: &mut Control, now| {
            let volume = control.volume_named(&name)?;
            let snapshots = control.snapshots(volume.number)?;
            Ok((volume, snapshots, control.nodes(now)?))
        };
        let (volume, snapshots, nodes) = self.engine.read(call).await?;
        let all: Vec<_> = nodes.keys().copied().collect();
        Ok(Response::new(v1::ListSnapshotsResponse {
            snapshots: snapshots
                .iter()
                .map(|snapshot| to_wire(&volume, snapshot))
                .collect(),
            nodes: convert::addresses(nodes.values(), &[], &all),
        }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        let (_, extensions, v1::DeleteSnapshotRequest { volume, name }) = request.into_parts();
        about(&extensions, || format!("volume {volume}, snapshot {name}"));
        let call = move |control: &mut Control, _| {
            let snapshot = control.delete_snapshot(&volume, &name)?;
            Ok((control.volume(snapshot.volume)?, snapshot))
        };
        let (volume, snapshot) = self.engine.call(call).await?;
        let snapshot = Some(to_wire(&volume, &snapshot));
        Ok(Response::new(v1::DeleteSnapshotResponse { snapshot }))
    }
}
