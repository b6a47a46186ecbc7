//! Volumes of which every write is durable before it is acknowledged.

use proto::v1;
use tonic::Status;

use crate::convert;
use crate::service::Face;

impl Face {
    /// Sets it, and says where it is not in force yet.
    pub(crate) async fn have_sync_writes(
        &self,
        request: v1::SetSyncWritesRequest,
    ) -> Result<v1::SetSyncWritesResponse, Status> {
        let v1::SetSyncWritesRequest { name, sync_writes } = request;
        let call = move |control: &mut crate::engine::Control, now| {
            let volume = control.set_sync_writes(&name, sync_writes, now)?;
            let waiting = control.nodes_without_sync_writes(&volume, now)?;
            Ok((volume, waiting))
        };
        let (volume, waiting) = self.engine.call(call).await?;
        Ok(v1::SetSyncWritesResponse {
            volume: Some(convert::volume(&volume)),
            waiting_nodes: convert::node_ids(&waiting),
        })
    }
}
