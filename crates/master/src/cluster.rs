//! The cluster as a whole: how it is, and what people say of all of it.

use control::{Consent, NodeId, RestoredView, VolumeNumber};
use proto::v1;
use proto::v1::cluster_server::Cluster;
use tonic::{Request, Response, Status};

use crate::access::about;
use crate::convert::{self, ConvertError, uuid, uuid_text};
use crate::etcd::Forgotten;
use crate::service::{Face, StoreFace};

/// No host and port are longer.
const ADDRESS_BYTES_MAX: usize = 300;

fn restored_status(view: &RestoredView) -> v1::RestoredStatus {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let awaited = |(node, chunks): &(NodeId, usize)| v1::AwaitedNode {
        node: node.0.to_bytes().to_vec(),
        chunks: count(*chunks),
    };
    let refused = |(id, why): &(control::ChunkId, String)| v1::RefusedChunk {
        volume: id.volume.0,
        index: id.index,
        why: why.clone(),
    };
    v1::RestoredStatus {
        revision: view.revision,
        settled_chunks: count(view.settled),
        chunks: count(view.chunks),
        awaited: view.awaited.iter().map(awaited).collect(),
        refused: view.refused.iter().map(refused).collect(),
        refused_chunks: count(view.refused_count),
        unknown_volumes: view.unknown_volumes.iter().map(|number| number.0).collect(),
        grown_volumes: view.grown_volumes.iter().map(|number| number.0).collect(),
    }
}

impl StoreFace {
    async fn status(&self) -> v1::StoreStatus {
        match self {
            Self::Redb(path) => v1::StoreStatus {
                place: path.display().to_string(),
                members: Vec::new(),
            },
            Self::Etcd(link) => {
                let member = |health: crate::etcd::Health| {
                    let (healthy, said) = match health.said {
                        Ok(said) => (true, said),
                        Err(said) => (false, said),
                    };
                    v1::StoreMember {
                        address: health.endpoint,
                        healthy,
                        said,
                    }
                };
                v1::StoreStatus {
                    place: link.config().name(),
                    members: link.health().await.into_iter().map(member).collect(),
                }
            }
        }
    }
}

impl Face {
    /// The masters that live. One that leads and is not among them has just ended.
    pub(crate) async fn masters(&self) -> Result<Vec<v1::MasterStatus>, Status> {
        let look =
            |master: &mut crate::engine::Master| (master.leader().cloned(), master.election().present());
        let (leader, present) = self.engine.look(look).await?;
        let present = present.map_err(|error| convert::status(&error.into()))?;
        let master = |present: crate::etcd::Present| {
            let reign = leader.as_ref().filter(|leader| leader.address == present.address);
            v1::MasterStatus {
                leads: reign.is_some(),
                since_unix_ms: reign.map_or(0, |leader| leader.since_unix_ms),
                started_unix_ms: present.since_unix_ms,
                release: present.release.unwrap_or_default(),
                address: present.address,
            }
        };
        Ok(present.into_iter().map(master).collect())
    }

    /// The masters that are known and do not live.
    async fn masters_away(&self) -> Result<Vec<v1::MasterAway>, Status> {
        let look = |master: &mut crate::engine::Master| master.election().away();
        let away = self.engine.look(look).await?;
        let away = away.map_err(|error| convert::status(&error.into()))?;
        let master = |away: crate::etcd::Away| v1::MasterAway {
            address: away.address,
            seen_unix_ms: away.seen_unix_ms,
            ended: away.ended,
        };
        Ok(away.into_iter().map(master).collect())
    }
}

#[tonic::async_trait]
impl Cluster for Face {
    async fn get_identity(
        &self,
        _: Request<v1::GetIdentityRequest>,
    ) -> Result<Response<v1::GetIdentityResponse>, Status> {
        let call = |control: &mut crate::engine::Control, _| Ok((control.cluster(), control.revision()?));
        let (cluster, revision) = self.engine.read(call).await?;
        let cluster = cluster.0.to_bytes().to_vec();
        Ok(Response::new(v1::GetIdentityResponse { cluster, revision }))
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let status = self
            .engine
            .call_or_read(|control, now| control.status(now))
            .await?;
        let balance = self
            .engine
            .call_or_read(|control, now| control.balance(now))
            .await?;
        let restored = self.engine.call_or_read(|control, _| control.restored()).await?;
        let proof = match self.policy.cluster {
            // Who does not lead has heard no node ask.
            Some(_) => {
                let proof = self.engine.call(|control, now| control.data_path_proof(now));
                proof.await.ok().flatten()
            }
            // Without certificates nobody can prove anything.
            None => None,
        };
        let (masters, store) = (self.masters().await?, self.store.status().await);
        let masters_away = self.masters_away().await?;
        Ok(Response::new(v1::GetStatusResponse {
            cluster: status.cluster.0.to_bytes().to_vec(),
            revision: status.revision,
            nodes: status.nodes.iter().map(crate::status::node).collect(),
            volumes: status.volumes.iter().map(crate::status::volume).collect(),
            masters,
            masters_away,
            store: Some(store),
            balance: Some(convert::balance(&balance)),
            restored: restored.as_ref().map(restored_status),
            data_path: proof.map(|proof| v1::DataPathProof {
                required: proof.required,
                awaited: proof
                    .awaited
                    .iter()
                    .map(|node| node.0.to_bytes().to_vec())
                    .collect(),
            }),
        }))
    }

    async fn restored(
        &self,
        request: Request<v1::RestoredRequest>,
    ) -> Result<Response<v1::RestoredResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || {
            let nodes: Vec<String> = request.without_nodes.iter().map(|node| uuid_text(node)).collect();
            match (nodes.len(), request.without_volumes.len()) {
                (0, 0) => "asked".to_owned(),
                _ => format!(
                    "without nodes [{}] and volumes {:?}",
                    nodes.join(", "),
                    request.without_volumes
                ),
            }
        });
        let node = |bytes: &Vec<u8>| Ok(NodeId(uuid("without_nodes", bytes)?));
        let consent = Consent {
            without_nodes: request
                .without_nodes
                .iter()
                .map(node)
                .collect::<Result<_, ConvertError>>()?,
            without_volumes: request
                .without_volumes
                .iter()
                .copied()
                .map(VolumeNumber)
                .collect(),
        };
        let call = move |control: &mut crate::engine::Control, now| {
            control.go_on_without(&consent, now)?;
            control.restored()
        };
        let restored = self.engine.call(call).await?;
        let restored = restored.as_ref().map(restored_status);
        Ok(Response::new(v1::RestoredResponse { restored }))
    }

    async fn rebalance(
        &self,
        request: Request<v1::RebalanceRequest>,
    ) -> Result<Response<v1::RebalanceResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let allowed = request.allowed;
        about(&extensions, || match allowed {
            None => "asked".to_owned(),
            Some(allowed) => format!("allowed: {allowed}"),
        });
        let call = move |control: &mut crate::engine::Control, now| {
            if let Some(allowed) = allowed {
                control.set_rebalance(allowed)?;
            }
            control.balance(now)
        };
        let balance = Some(convert::balance(&self.engine.call(call).await?));
        Ok(Response::new(v1::RebalanceResponse { balance }))
    }

    async fn forget_master(
        &self,
        request: Request<v1::ForgetMasterRequest>,
    ) -> Result<Response<v1::ForgetMasterResponse>, Status> {
        let (_, extensions, v1::ForgetMasterRequest { address }) = request.into_parts();
        if address.is_empty() || address.len() > ADDRESS_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "address has {} bytes, a master's has 1 to {ADDRESS_BYTES_MAX}; \"redhare status\" names the masters",
                address.len()
            )));
        }
        let shown = address.escape_debug().to_string();
        about(&extensions, || format!("master {shown}"));
        let look = move |master: &mut crate::engine::Master| master.election().forget(&address);
        let forgotten = self.engine.look(look).await?;
        match forgotten.map_err(|error| convert::status(&error.into()))? {
            Forgotten::Done => Ok(Response::new(v1::ForgetMasterResponse {})),
            Forgotten::Lives => Err(Status::failed_precondition(format!(
                "master \"{shown}\" lives; stop it first, and repeat the call"
            ))),
            Forgotten::Unknown => Err(Status::not_found(format!(
                "no master \"{shown}\" is known; \"redhare status\" names those that are"
            ))),
        }
    }
}
