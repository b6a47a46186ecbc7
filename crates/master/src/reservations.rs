//! The service of what the hosts of exported volumes have reserved.

use control::{NodeId, ReservationNotice, ReservationsView, VolumeNumber, WriterToken};
use proto::v1;
use proto::v1::reservations_server::Reservations;
use tonic::{Request, Response, Status};

use crate::access::{about, check_node};
use crate::convert::uuid;
use crate::engine::Control;
use crate::service::Face;

fn to_wire(view: &ReservationsView) -> v1::HostReservations {
    let found = &view.reservations;
    let registrant = |(host, key): (&[u8; 16], &u64)| v1::Registrant {
        host: host.to_vec(),
        key: *key,
    };
    let notice = |notice: &ReservationNotice| v1::ReservationNotice {
        version: notice.version,
        host: notice.host.to_vec(),
        r#type: notice.kind.into(),
    };
    v1::HostReservations {
        version: found.version,
        token: view.token.0,
        in_force: view.in_force(),
        taken: view.taken,
        generation: found.generation,
        persistent: found.persistent,
        r#type: found.kind.into(),
        holder: match found.holder {
            none if none == [0; 16] => Vec::new(),
            holder => holder.to_vec(),
        },
        registrants: found.registrants.iter().map(registrant).collect(),
        notices: found.notices.iter().map(notice).collect(),
        chunks: view.chunks,
        change: found.change,
    }
}

fn host(bytes: &[u8]) -> Result<[u8; 16], Status> {
    let wrong = |_| {
        let length = bytes.len();
        Status::invalid_argument(format!(
            "a host's identifier has {length} bytes, not 16; use the same release on all nodes"
        ))
    };
    bytes.try_into().map_err(wrong)
}

fn byte(what: &str, value: u32) -> Result<u8, Status> {
    let wrong = |_| {
        Status::invalid_argument(format!(
            "there is no {what} {value}; use the same release on all nodes"
        ))
    };
    u8::try_from(value).map_err(wrong)
}

/// What a portal wants; version, tokens and what follows from them are the masters' to say.
fn from_wire(wanted: &v1::HostReservations) -> Result<control::Reservations, Status> {
    let registrants = wanted.registrants.iter();
    let notices = wanted.notices.iter().map(|notice| {
        Ok(ReservationNotice {
            version: notice.version,
            host: host(&notice.host)?,
            kind: byte("notification of type", notice.r#type)?,
        })
    });
    Ok(control::Reservations {
        generation: wanted.generation,
        persistent: wanted.persistent,
        kind: byte("reservation of type", wanted.r#type)?,
        holder: match wanted.holder.is_empty() {
            true => [0; 16],
            false => host(&wanted.holder)?,
        },
        registrants: registrants
            .map(|registrant| Ok((host(&registrant.host)?, registrant.key)))
            .collect::<Result<_, Status>>()?,
        notices: notices.collect::<Result<_, Status>>()?,
        change: wanted.change,
        ..control::Reservations::default()
    })
}

#[tonic::async_trait]
impl Reservations for Face {
    async fn show(
        &self,
        request: Request<v1::ShowReservationsRequest>,
    ) -> Result<Response<v1::ShowReservationsResponse>, Status> {
        let number = VolumeNumber(request.into_inner().volume);
        let call = move |control: &mut Control, _| control.reservations(number);
        // A follower may be behind, and a portal relies on the answer.
        let view = self.engine.call(call).await?;
        let reservations = Some(to_wire(&view));
        Ok(Response::new(v1::ShowReservationsResponse { reservations }))
    }

    async fn replace(
        &self,
        request: Request<v1::ReplaceReservationsRequest>,
    ) -> Result<Response<v1::ReplaceReservationsResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let (number, expected) = (VolumeNumber(request.volume), request.expected);
        let wanted = request.reservations.unwrap_or_default();
        about(&extensions, || {
            format!(
                "volume number {number}, version {}: type {}, {} registrants",
                expected.saturating_add(1),
                wanted.r#type,
                wanted.registrants.len()
            )
        });
        check_node(&extensions, &request.node)?;
        let node = NodeId(uuid("node", &request.node)?);
        let (next, restricts) = (from_wire(&wanted)?, request.restricts);
        let call = move |control: &mut Control, now| {
            control.replace_reservations(number, Some(node), expected, &next, restricts, now)
        };
        let reservations = self.engine.call(call).await?.as_ref().map(to_wire);
        Ok(Response::new(v1::ReplaceReservationsResponse { reservations }))
    }

    async fn enforced(
        &self,
        request: Request<v1::EnforcedReservationsRequest>,
    ) -> Result<Response<v1::EnforcedReservationsResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        check_node(&extensions, &request.node)?;
        let node = NodeId(uuid("node", &request.node)?);
        let (number, token) = (VolumeNumber(request.volume), WriterToken(request.token));
        self.engine
            .call(move |control, _| control.enforced_reservations(number, node, token, request.chunks))
            .await?;
        Ok(Response::new(v1::EnforcedReservationsResponse {}))
    }

    async fn clear(
        &self,
        request: Request<v1::ClearReservationsRequest>,
    ) -> Result<Response<v1::ClearReservationsResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let name = request.volume;
        about(&extensions, || format!("volume {name}"));
        let call = move |control: &mut Control, now| control.clear_reservations(&name, now);
        let reservations = Some(to_wire(&self.engine.call(call).await?));
        Ok(Response::new(v1::ClearReservationsResponse { reservations }))
    }
}
