//! The services of `redhare.v1`: each call is checked, handed to the controller, and answered.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use control::{
    ClusterId, DiskId, Incarnation, NodeId, Registration, Scope, SessionId, Settings, Volume, VolumeNumber,
    WriterToken, WriterView,
};
use foundation::ByteCount;
use proto::v1;
use proto::v1::chunks_server::Chunks;
use proto::v1::leases_server::Leases;
use proto::v1::nodes_server::Nodes;
use proto::v1::volumes_server::Volumes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status, Streaming};

use crate::access::{Policy, about, check_node};
use crate::beats::Beats;
use crate::convert::{self, milliseconds, optional_uuid, uuid, uuid_text};
use crate::engine::Engine;
use crate::watch::{self, Feed, WatchStream};

/// Chunks of one map answer: far below gRPC's limit of 4 MiB.
const MAP_CHUNKS_MAX: usize = 4096;
/// How long a creation waits for the nodes.
const CREATE_WAIT: Duration = Duration::from_secs(20);
/// How long whoever holds a write lease is let wait for another to ask for it.
const WANTED_WAIT: Duration = Duration::from_secs(20);
/// How often a creation that waits looks at the store without being told to.
const CREATE_LOOK: Duration = Duration::from_millis(500);

/// All services, on one engine.
#[derive(Clone, Debug)]
pub(crate) struct Face {
    pub(crate) policy: Arc<Policy>,
    pub(crate) engine: Engine,
    pub(crate) feed: Feed,
    pub(crate) settings: Settings,
    pub(crate) store: StoreFace,
    pub(crate) office: crate::joining::Office,
    /// Somebody has asked for a write lease that another holds.
    pub(crate) wanted: Arc<Notify>,
}

/// The store as `redhare status` shows it.
#[derive(Clone, Debug)]
pub(crate) enum StoreFace {
    /// The file.
    Redb(std::path::PathBuf),
    Etcd(crate::etcd::Link),
}

#[tonic::async_trait]
impl Nodes for Face {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let node = uuid_text(&request.node);
        about(&extensions, || {
            format!(
                "node {node} at {}, ended through {}",
                request.peer_address, request.ended_through
            )
        });
        check_node(&extensions, &request.node)?;
        let registration = Registration {
            cluster: optional_uuid("cluster", &request.cluster)?.map(ClusterId),
            node: NodeId(uuid("node", &request.node)?),
            peer_address: request.peer_address,
            incarnation: Some(request.incarnation)
                .filter(|&number| number > 0)
                .map(Incarnation),
            ended_through: Incarnation(request.ended_through),
            disks: convert::disks(&request.disks)?,
            rack: convert::rack(&request.rack)?,
        };
        let call = move |control: &mut crate::engine::Control, now| {
            Ok((control.cluster(), control.register(&registration, now)?))
        };
        let (cluster, registered) = self.engine.call(call).await?;
        // A life may have ended whose chunks nobody can write until it is left out.
        self.engine.hurry();
        Ok(Response::new(v1::RegisterResponse {
            cluster: cluster.0.to_bytes().to_vec(),
            incarnation: registered.incarnation.0,
            heartbeat_interval_ms: milliseconds(self.settings.heartbeat_interval),
            heartbeat_timeout_ms: milliseconds(self.settings.heartbeat_timeout),
            revision: registered.revision,
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        Ok(Response::new(self.beat(&extensions, request).await?))
    }

    type HeartbeatsStream = Beats;

    async fn heartbeats(
        &self,
        request: Request<Streaming<v1::HeartbeatRequest>>,
    ) -> Result<Response<Beats>, Status> {
        let (_, extensions, asked) = request.into_parts();
        Ok(Response::new(Beats::new(self.clone(), extensions, asked)))
    }

    async fn restore(
        &self,
        request: Request<v1::RestoreDiskRequest>,
    ) -> Result<Response<v1::RestoreDiskResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let place = [&request.node, &request.disk].map(|bytes| uuid_text(bytes));
        about(&extensions, || format!("node {}, disk {}", place[0], place[1]));
        let node = NodeId(uuid("node", &request.node)?);
        let disk = DiskId(uuid("disk", &request.disk)?);
        self.engine
            .call(move |control, _| control.restore_disk(node, disk))
            .await?;
        Ok(Response::new(v1::RestoreDiskResponse {}))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || format!("node {}", uuid_text(&request.node)));
        let node = NodeId(uuid("node", &request.node)?);
        self.engine
            .call(move |control, now| control.remove_node(node, now))
            .await?;
        Ok(Response::new(v1::RemoveNodeResponse {}))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || {
            let disk = match request.disk.is_empty() {
                true => String::new(),
                false => format!(", disk {}", uuid_text(&request.disk)),
            };
            let undo = if request.undo { ", undone" } else { "" };
            format!("node {}{disk}{undo}", uuid_text(&request.node))
        });
        let node = NodeId(uuid("node", &request.node)?);
        let disk = optional_uuid("disk", &request.disk)?.map(DiskId);
        let call = move |control: &mut crate::engine::Control, now| match request.undo {
            true => control.undrain(node, disk),
            false => control.drain(node, disk, now),
        };
        let drained = self.engine.call(call).await?;
        Ok(Response::new(v1::DrainResponse {
            copies: drained.copies,
            bytes: drained.bytes.0,
        }))
    }
}

impl Face {
    /// Waits until the nodes have made all copies of a volume, which has been changed as `what` says.
    async fn wait_for_copies(&self, mut volume: Volume, what: &str) -> Result<Volume, Status> {
        let mut news = self.engine.news();
        let (deadline, mut unplaced) = (Instant::now() + CREATE_WAIT, None);
        while !volume.is_settled() {
            // Another master may bring it on: then there are no news here.
            let look = Instant::now() + CREATE_LOOK;
            let waited = timeout_at(look.min(deadline), news.changed()).await;
            if matches!(waited, Ok(Err(_))) || Instant::now() >= deadline {
                let (name, seconds) = (&volume.name, CREATE_WAIT.as_secs());
                return Err(Status::deadline_exceeded(match unplaced {
                    Some(control::Unplaced { chunks, why }) => format!(
                        "volume \"{name}\" {what}, but after {seconds} s {chunks} of its chunks have no place: {why}; it goes on by itself when \
                         there is room, \"redhare volume show {name}\" says how it stands"
                    ),
                    None => format!(
                        "volume \"{name}\" {what}, but its nodes have not made all copies within {seconds} s; \"redhare status\" \
                         shows which nodes are silent, and \"redhare volume list\" when they have done it"
                    ),
                }));
            }
            let number = volume.number;
            let look = move |control: &mut crate::engine::Control, _| {
                Ok((control.volume(number)?, control.unplaced(number).cloned()))
            };
            (volume, unplaced) = self.engine.read(look).await?;
        }
        Ok(volume)
    }
}

#[tonic::async_trait]
impl Volumes for Face {
    async fn create(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || {
            format!("volume {}, {} bytes", request.name, request.size_bytes)
        });
        let create = convert::create_volume(&request)?;
        let volume = self
            .engine
            .call(move |control, now| control.create_volume(&create, now))
            .await?;
        let volume = match request.no_wait {
            true => volume,
            false => self.wait_for_copies(volume, "was created").await?,
        };
        let volume = Some(convert::volume(&volume));
        Ok(Response::new(v1::CreateVolumeResponse { volume }))
    }

    async fn list(
        &self,
        _: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let read = |control: &mut crate::engine::Control, now| {
            let with_origin = |volume: &Volume| {
                let origin = control.origin_of(volume)?;
                Ok::<_, control::ControlError>(convert::volume_with_origin(volume, origin))
            };
            let volumes: Result<Vec<_>, _> = control.volumes()?.iter().map(with_origin).collect();
            Ok((volumes?, control.uses(now)?))
        };
        let (volumes, uses) = self.engine.read(read).await?;
        let uses = uses.map(|uses| v1::VolumeUses {
            volumes: uses
                .into_iter()
                .map(|(volume, used)| convert::volume_use(volume, used))
                .collect(),
        });
        Ok(Response::new(v1::ListVolumesResponse { volumes, uses }))
    }

    async fn show(
        &self,
        request: Request<v1::ShowVolumeRequest>,
    ) -> Result<Response<v1::ShowVolumeResponse>, Status> {
        let name = request.into_inner().name;
        let call = move |control: &mut crate::engine::Control, now| {
            let number = control.volume_named(&name)?.number;
            let (volume, mut chunks) = control.map(number, 0, MAP_CHUNKS_MAX)?;
            let count = volume.geometry.chunk_count();
            chunks.retain(|(id, _)| id.index < count);
            let resyncs = control.resyncs(number, now);
            let origin = control.origin_of(&volume)?;
            let waiting = control.nodes_without_sync_writes(&volume, now)?;
            let used = control.uses(now)?;
            let used = used.map(|uses| uses.get(&number).copied().unwrap_or_default());
            Ok((
                (volume, origin, used),
                chunks,
                control.nodes(now)?,
                (resyncs, waiting, control.unplaced(number).cloned()),
            ))
        };
        let ((volume, origin, used), chunks, nodes, (resyncs, waiting, unplaced)) =
            self.engine.read(call).await?;
        Ok(Response::new(v1::ShowVolumeResponse {
            resyncs: resyncs.iter().map(convert::resync).collect(),
            volume: Some(convert::volume_with_origin(&volume, origin)),
            nodes: convert::addresses(nodes.values(), &chunks, &volume.portals),
            chunks: convert::chunks(&chunks),
            waiting_nodes: convert::node_ids(&waiting),
            r#use: used.map(|used| convert::volume_use(volume.number, used)),
            unplaced: unplaced.map(crate::status::unplaced),
        }))
    }

    async fn resize(
        &self,
        request: Request<v1::ResizeVolumeRequest>,
    ) -> Result<Response<v1::ResizeVolumeResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let v1::ResizeVolumeRequest {
            name,
            size_bytes,
            no_wait,
            expected_bytes,
            call,
            cancel_growth,
        } = request;
        about(&extensions, || format!("volume {name}, to {size_bytes} bytes"));
        let based = expected_bytes.map(|expected| control::Based {
            size: ByteCount(expected),
            call,
        });
        let wanted = control::Resize {
            size: ByteCount(size_bytes),
            based,
            cancels_growth: cancel_growth,
        };
        let volume = self
            .engine
            .call(move |control, now| control.resize_volume_on(&name, wanted, now))
            .await?;
        let wanted = volume.grown().size();
        let volume = match no_wait {
            true => volume,
            false => self.wait_for_copies(volume, "is growing").await?,
        };
        if volume.grown().size() < wanted {
            return Err(Status::aborted(format!(
                "volume \"{}\" has {} and not {wanted}: somebody else has taken the growth back meanwhile",
                volume.name,
                volume.size()
            )));
        }
        let volume = Some(convert::volume(&volume));
        Ok(Response::new(v1::ResizeVolumeResponse { volume }))
    }

    async fn create_clone(
        &self,
        request: Request<v1::CloneVolumeRequest>,
    ) -> Result<Response<v1::CloneVolumeResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || {
            let v1::CloneVolumeRequest {
                volume,
                snapshot,
                name,
                ..
            } = &request;
            format!("volume {name}, from {volume}@{snapshot}")
        });
        let no_wait = request.no_wait;
        let call = move |control: &mut crate::engine::Control, now| {
            control.clone_volume(&request.volume, &request.snapshot, &request.name, now)
        };
        let volume = self.engine.call(call).await?;
        let volume = match no_wait {
            true => volume,
            false => self.wait_for_copies(volume, "was cloned").await?,
        };
        let volume = Some(convert::volume(&volume));
        Ok(Response::new(v1::CloneVolumeResponse { volume }))
    }

    async fn flatten(
        &self,
        request: Request<v1::FlattenVolumeRequest>,
    ) -> Result<Response<v1::FlattenVolumeResponse>, Status> {
        let (_, extensions, v1::FlattenVolumeRequest { name }) = request.into_parts();
        about(&extensions, || format!("volume {name}"));
        let call = move |control: &mut crate::engine::Control, _| control.flatten_volume(&name);
        let volume = Some(convert::volume(&self.engine.call(call).await?));
        Ok(Response::new(v1::FlattenVolumeResponse { volume }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        let (_, extensions, v1::DeleteVolumeRequest { name }) = request.into_parts();
        about(&extensions, || format!("volume {name}"));
        let number = self
            .engine
            .call(move |control, now| control.delete_volume(&name, now))
            .await?;
        Ok(Response::new(v1::DeleteVolumeResponse { number: number.0 }))
    }

    async fn export(
        &self,
        request: Request<v1::ExportVolumeRequest>,
    ) -> Result<Response<v1::ExportVolumeResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || {
            let hosts = match request.hosts.is_empty() {
                true => "all hosts".to_owned(),
                false => request.hosts.join(" "),
            };
            format!("volume {}, for {hosts}", request.name)
        });
        let export = convert::export_volume(request)?;
        let call = move |control: &mut crate::engine::Control, now| {
            Ok((control.export_volume(&export, now)?, control.nodes(now)?))
        };
        let (volume, nodes) = self.engine.call(call).await?;
        Ok(Response::new(v1::ExportVolumeResponse {
            nodes: convert::addresses(nodes.values(), &[], &volume.portals),
            volume: Some(convert::volume(&volume)),
        }))
    }

    async fn unexport(
        &self,
        request: Request<v1::UnexportVolumeRequest>,
    ) -> Result<Response<v1::UnexportVolumeResponse>, Status> {
        let (_, extensions, v1::UnexportVolumeRequest { name }) = request.into_parts();
        about(&extensions, || format!("volume {name}"));
        let call = move |control: &mut crate::engine::Control, _| control.unexport_volume(&name);
        let volume = Some(convert::volume(&self.engine.call(call).await?));
        Ok(Response::new(v1::UnexportVolumeResponse { volume }))
    }

    async fn move_copy(
        &self,
        request: Request<v1::MoveCopyRequest>,
    ) -> Result<Response<v1::MoveCopyResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let v1::MoveCopyRequest {
            name,
            index,
            from,
            to,
        } = request;
        about(&extensions, || {
            format!(
                "volume {name}, chunk {index}, from {} to {}",
                uuid_text(&from),
                uuid_text(&to)
            )
        });
        let (from, to) = (NodeId(uuid("from", &from)?), NodeId(uuid("to", &to)?));
        let call =
            move |control: &mut crate::engine::Control, now| control.move_copy(&name, index, from, to, now);
        self.engine.call(call).await?;
        Ok(Response::new(v1::MoveCopyResponse {}))
    }

    async fn move_writes(
        &self,
        request: Request<v1::MoveWritesRequest>,
    ) -> Result<Response<v1::MoveWritesResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let v1::MoveWritesRequest { name, index, to } = request;
        about(&extensions, || {
            format!("volume {name}, chunk {index}, to {}", uuid_text(&to))
        });
        let to = NodeId(uuid("to", &to)?);
        let call = move |control: &mut crate::engine::Control, now| {
            let number = control.volume_named(&name)?.number;
            let chunk = control.move_writes(&name, index, to, now)?;
            let id = control::ChunkId {
                volume: number,
                index,
            };
            Ok((id, chunk))
        };
        let (id, chunk) = self.engine.call(call).await?;
        let chunk = Some(convert::chunk(id, &chunk));
        Ok(Response::new(v1::MoveWritesResponse { chunk }))
    }

    async fn pin_writes(
        &self,
        request: Request<v1::PinWritesRequest>,
    ) -> Result<Response<v1::PinWritesResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let v1::PinWritesRequest { name, node } = request;
        about(&extensions, || match node.is_empty() {
            true => format!("volume {name}, no node"),
            false => format!("volume {name}, node {}", uuid_text(&node)),
        });
        let node = optional_uuid("node", &node)?.map(NodeId);
        let call = move |control: &mut crate::engine::Control, _| control.pin_writes(&name, node);
        let volume = Some(convert::volume(&self.engine.call(call).await?));
        Ok(Response::new(v1::PinWritesResponse { volume }))
    }

    async fn set_sync_writes(
        &self,
        request: Request<v1::SetSyncWritesRequest>,
    ) -> Result<Response<v1::SetSyncWritesResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || {
            format!("volume {}, sync writes: {}", request.name, request.sync_writes)
        });
        self.have_sync_writes(request).await.map(Response::new)
    }

    async fn show_unserved(
        &self,
        request: Request<v1::ShowUnservedRequest>,
    ) -> Result<Response<v1::ShowUnservedResponse>, Status> {
        self.unserved(request.into_inner()).await.map(Response::new)
    }

    async fn force_serve(
        &self,
        request: Request<v1::ForceServeRequest>,
    ) -> Result<Response<v1::ForceServeResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || crate::force::object(&request));
        self.force(request).await.map(Response::new)
    }
}

#[tonic::async_trait]
impl Chunks for Face {
    type WatchStream = WatchStream;

    async fn get_map(
        &self,
        request: Request<v1::GetMapRequest>,
    ) -> Result<Response<v1::GetMapResponse>, Status> {
        let request = request.into_inner();
        let limit = match request.limit {
            0 => MAP_CHUNKS_MAX,
            limit => MAP_CHUNKS_MAX.min(limit as usize),
        };
        let call = move |control: &mut crate::engine::Control, now| {
            let revision = control.revision()?;
            let number = VolumeNumber(request.volume);
            let (volume, mut chunks) = control.map(number, request.first_chunk, limit)?;
            if !request.with_growth {
                let count = volume.geometry.chunk_count();
                chunks.retain(|(id, _)| id.index < count);
            }
            Ok((control.cluster(), revision, volume, chunks, control.nodes(now)?))
        };
        let (cluster, revision, volume, chunks, nodes) = self.engine.read(call).await?;
        Ok(Response::new(v1::GetMapResponse {
            volume: Some(convert::volume(&volume)),
            nodes: convert::addresses(nodes.values(), &chunks, &volume.portals),
            chunks: convert::chunks(&chunks),
            revision,
            cluster: cluster.0.to_bytes().to_vec(),
        }))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (_, extensions, request) = request.into_parts();
        let scope = match request.scope {
            Some(v1::watch_request::Scope::Volume(number)) => {
                let number = VolumeNumber(number);
                self.engine.call(move |control, _| control.volume(number)).await?;
                Scope::Volume(number)
            }
            Some(v1::watch_request::Scope::Node(node)) => {
                check_node(&extensions, &node)?;
                Scope::Node(NodeId(uuid("node", &node)?))
            }
            None => return Err(convert::ConvertError::Missing { field: "scope" }.into()),
        };
        Ok(Response::new(watch::start(
            self.engine.clone(),
            self.feed.clone(),
            scope,
            request.known_revision,
        )))
    }

    async fn propose_configuration(
        &self,
        request: Request<v1::ProposeConfigurationRequest>,
    ) -> Result<Response<v1::ProposeConfigurationResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        check_node(&extensions, &request.node)?;
        let (id, proposal) = convert::proposal(&request)?;
        let chunk = self
            .engine
            .call(move |control, now| control.propose(id, &proposal, now))
            .await?;
        let chunk = Some(convert::chunk(id, &chunk));
        Ok(Response::new(v1::ProposeConfigurationResponse { chunk }))
    }
}

#[tonic::async_trait]
impl Leases for Face {
    async fn acquire_writer(
        &self,
        request: Request<v1::AcquireWriterRequest>,
    ) -> Result<Response<v1::WriterLease>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || {
            format!("volume number {}, for {}", request.volume, request.holder)
        });
        let number = VolumeNumber(request.volume);
        let session = SessionId(uuid("session", &request.session)?);
        let term = Some(request.term_ms)
            .filter(|&term| term > 0)
            .map(Duration::from_millis);
        let (holder, take_over) = (request.holder, request.take_over);
        let call = move |control: &mut crate::engine::Control, now| match take_over {
            true => control.take_over_writer(number, session, &holder, term, now),
            false => control.acquire_writer(number, session, &holder, term, now),
        };
        let lease = self.engine.call(call).await;
        if take_over && lease.is_err() {
            self.wanted.notify_waiters();
        }
        Ok(Response::new(writer_lease(number, lease?)))
    }

    async fn await_wanted(
        &self,
        request: Request<v1::AwaitWantedRequest>,
    ) -> Result<Response<v1::WriterLease>, Status> {
        let request = request.into_inner();
        let number = VolumeNumber(request.volume);
        let session = SessionId(uuid("session", &request.session)?);
        let token = WriterToken(request.token);
        let deadline = Instant::now() + Duration::from_millis(request.wait_ms).min(WANTED_WAIT);
        loop {
            // From before the look on, so that nobody who asks after it is missed.
            let mut asked = pin!(self.wanted.notified());
            asked.as_mut().enable();
            let look = move |control: &mut crate::engine::Control, now| {
                control.held_writer(number, session, token, now)
            };
            let lease = self.engine.call(look).await?;
            if lease.wanted_by.is_some() || Instant::now() >= deadline {
                return Ok(Response::new(writer_lease(number, lease)));
            }
            // Late or asked: the next look tells.
            drop(timeout_at(deadline, asked).await);
        }
    }

    async fn renew_writer(
        &self,
        request: Request<v1::RenewWriterRequest>,
    ) -> Result<Response<v1::WriterLease>, Status> {
        let request = request.into_inner();
        let number = VolumeNumber(request.volume);
        let session = SessionId(uuid("session", &request.session)?);
        let token = WriterToken(request.token);
        let call = move |control: &mut crate::engine::Control, now| {
            control.renew_writer(number, session, token, now)
        };
        let lease = self.engine.call(call).await?;
        Ok(Response::new(writer_lease(number, lease)))
    }

    async fn release_writer(
        &self,
        request: Request<v1::ReleaseWriterRequest>,
    ) -> Result<Response<v1::ReleaseWriterResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        about(&extensions, || format!("volume number {}", request.volume));
        let session = SessionId(uuid("session", &request.session)?);
        let (number, token) = (VolumeNumber(request.volume), WriterToken(request.token));
        self.engine
            .call(move |control, _| control.release_writer(number, session, token))
            .await?;
        Ok(Response::new(v1::ReleaseWriterResponse {}))
    }

    async fn hold_reader(
        &self,
        request: Request<v1::HoldReaderRequest>,
    ) -> Result<Response<v1::HoldReaderResponse>, Status> {
        let request = request.into_inner();
        let number = VolumeNumber(request.volume);
        let session = SessionId(uuid("session", &request.session)?);
        let call = move |control: &mut crate::engine::Control, now| {
            control.hold_reader(number, session, &request.holder, request.generation, now)
        };
        let term_ms = milliseconds(self.engine.call(call).await?);
        Ok(Response::new(v1::HoldReaderResponse { term_ms }))
    }

    async fn release_reader(
        &self,
        request: Request<v1::ReleaseReaderRequest>,
    ) -> Result<Response<v1::ReleaseReaderResponse>, Status> {
        let request = request.into_inner();
        let session = SessionId(uuid("session", &request.session)?);
        let number = VolumeNumber(request.volume);
        self.engine
            .call(move |control, _| control.release_reader(number, session))
            .await?;
        Ok(Response::new(v1::ReleaseReaderResponse {}))
    }

    async fn show(
        &self,
        request: Request<v1::ShowLeasesRequest>,
    ) -> Result<Response<v1::ShowLeasesResponse>, Status> {
        let number = VolumeNumber(request.into_inner().volume);
        let call = move |control: &mut crate::engine::Control, now| {
            control.volume(number)?;
            Ok((control.writer(number, now)?, control.readers(number, now)?))
        };
        let (writer, readers) = self.engine.call(call).await?;
        let oldest_generation = readers.iter().map(|reader| reader.generation).min();
        let reader = |reader: control::ReaderView| v1::ReaderLease {
            holder: reader.holder,
            generation: reader.generation,
            remaining_ms: milliseconds(reader.remaining),
        };
        Ok(Response::new(v1::ShowLeasesResponse {
            writer: writer.map(|lease| writer_lease(number, lease)),
            readers: readers.into_iter().map(reader).collect(),
            oldest_generation,
        }))
    }
}

fn writer_lease(number: VolumeNumber, lease: WriterView) -> v1::WriterLease {
    v1::WriterLease {
        volume: number.0,
        token: lease.token.0,
        holder: lease.holder,
        term_ms: milliseconds(lease.term),
        remaining_ms: milliseconds(lease.remaining),
        wanted_by: lease.wanted_by.unwrap_or_default(),
    }
}
