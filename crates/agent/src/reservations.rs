//! What hosts of exported volumes reserve: the target's questions, asked of the masters.

use agentlink::{ReservationCall, Reservations};
use proto::client::{Client, ClientError, Code};
use proto::v1;

/// Asks the masters; answers what is in force, and whether what was asked has been done. `version` is that of the volume's reservations
/// as the heartbeat's answer had it last, if it had any.
pub(crate) async fn ask(
    client: Client,
    node: Vec<u8>,
    volume: u32,
    version: Option<u64>,
    call: ReservationCall,
) -> Result<(Reservations, bool), String> {
    let answer = match call {
        ReservationCall::Read => show(&client, volume, version).await.map(|found| (found, true)),
        ReservationCall::Replace {
            expected,
            next,
            restricts,
        } => {
            let request = v1::ReplaceReservationsRequest {
                volume,
                node,
                expected,
                reservations: Some(to_wire(&next)),
                restricts,
            };
            match client.replace_reservations(request).await {
                Ok(v1::ReplaceReservationsResponse {
                    reservations: Some(stored),
                }) => Ok((Some(stored), true)),
                Ok(_) => show(&client, volume, version).await.map(|found| (found, false)),
                Err(error) => Err(error),
            }
        }
        ReservationCall::Enforced { token, chunks } => {
            let request = v1::EnforcedReservationsRequest {
                volume,
                token,
                node,
                chunks,
            };
            match client.enforced_reservations(request).await {
                Ok(_) => show(&client, volume, version).await.map(|found| (found, true)),
                Err(error) => Err(error),
            }
        }
    };
    match answer {
        Ok((Some(found), done)) => match from_wire(&found) {
            Some(found) => Ok((found, done)),
            None => Err("the masters' answer makes no sense".to_owned()),
        },
        Ok((None, _)) => Err("the masters' answer is empty".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

async fn show(
    client: &Client,
    volume: u32,
    version: Option<u64>,
) -> Result<Option<v1::HostReservations>, ClientError> {
    let request = v1::ShowReservationsRequest { volume };
    match client.reservations(request).await {
        Ok(answer) => Ok(answer.reservations),
        Err(error) => of_before(error, version).map(Some),
    }
}

/// What the answer of a master of a release before means, which does not know the call: nothing is reserved, but only if hosts have never
/// reserved anything, as the one that leads has said. One that only follows does not know; it is asked again.
fn of_before(error: ClientError, version: Option<u64>) -> Result<v1::HostReservations, ClientError> {
    let unknown = matches!(
        error,
        ClientError::Refused {
            code: Code::Unimplemented,
            ..
        }
    );
    match (unknown, version) {
        (true, Some(0)) => Ok(v1::HostReservations {
            in_force: true,
            chunks: u32::MAX,
            ..v1::HostReservations::default()
        }),
        _ => Err(error),
    }
}

fn to_wire(wanted: &Reservations) -> v1::HostReservations {
    let registrant = |(host, key): &([u8; 16], u64)| v1::Registrant {
        host: host.to_vec(),
        key: *key,
    };
    let notice = |(version, host, kind): &(u64, [u8; 16], u8)| v1::ReservationNotice {
        version: *version,
        host: host.to_vec(),
        r#type: (*kind).into(),
    };
    v1::HostReservations {
        version: wanted.version,
        token: wanted.token,
        in_force: wanted.in_force,
        taken: wanted.taken,
        generation: wanted.generation,
        persistent: wanted.persistent,
        r#type: wanted.kind.into(),
        holder: match wanted.holder {
            none if none == [0; 16] => Vec::new(),
            holder => holder.to_vec(),
        },
        registrants: wanted.registrants.iter().map(registrant).collect(),
        notices: wanted.notices.iter().map(notice).collect(),
        chunks: wanted.chunks,
        change: wanted.change,
    }
}

fn from_wire(found: &v1::HostReservations) -> Option<Reservations> {
    let host = |bytes: &Vec<u8>| <[u8; 16]>::try_from(bytes.as_slice()).ok();
    let registrants = found.registrants.iter();
    let notices = found.notices.iter();
    Some(Reservations {
        version: found.version,
        token: found.token,
        in_force: found.in_force,
        taken: found.taken,
        generation: found.generation,
        persistent: found.persistent,
        kind: u8::try_from(found.r#type).ok()?,
        holder: match found.holder.is_empty() {
            true => [0; 16],
            false => host(&found.holder)?,
        },
        registrants: registrants
            .map(|registrant| Some((host(&registrant.host)?, registrant.key)))
            .collect::<Option<_>>()?,
        notices: notices
            .map(|notice| {
                Some((
                    notice.version,
                    host(&notice.host)?,
                    u8::try_from(notice.r#type).ok()?,
                ))
            })
            .collect::<Option<_>>()?,
        chunks: found.chunks,
        change: found.change,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_of_before_says_nothing_of_what_was_ever_reserved() {
        let refused = |code| ClientError::Refused {
            code,
            message: "no such call".to_owned(),
        };
        let never = of_before(refused(Code::Unimplemented), Some(0)).expect("nothing was ever reserved");
        assert!(never.in_force && never.version == 0 && never.r#type == 0);
        // It only follows, and the one that leads has said that there was a change; or nobody has said anything yet.
        for version in [Some(1), Some(7), None] {
            let error = of_before(refused(Code::Unimplemented), version).expect_err("nothing is known");
            assert!(error.to_string().contains("no such call"), "{error}");
        }
        assert!(of_before(refused(Code::Unavailable), Some(0)).is_err());
    }

    #[test]
    fn what_a_portal_wants_arrives_as_it_was_said() {
        let said = Reservations {
            version: 5,
            token: 3,
            in_force: true,
            taken: true,
            generation: 9,
            persistent: true,
            kind: 1,
            holder: [7; 16],
            registrants: vec![([7; 16], 0x1234), ([8; 16], u64::MAX)],
            notices: vec![(4, [8; 16], 2)],
            chunks: 6,
            change: u64::MAX,
        };
        assert_eq!(from_wire(&to_wire(&said)), Some(said.clone()));
        let nobody = Reservations::default();
        assert_eq!(from_wire(&to_wire(&nobody)), Some(nobody));
        let mut wrong = to_wire(&said);
        wrong.registrants[0].host.pop();
        assert_eq!(from_wire(&wrong), None);
        let mut wrong = to_wire(&said);
        wrong.r#type = 256;
        assert_eq!(from_wire(&wrong), None);
    }
}
