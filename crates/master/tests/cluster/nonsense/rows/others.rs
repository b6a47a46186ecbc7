//! Calls of the services Chunks, Leases, Reservations, Joining and DataPath. The last two are those of a master without an authority.

use master::v1;
use tonic::Code;

use super::{Given, Rows, long_name, no_such, nobody, numbered, short};
use crate::fake::uuid;

const NO_VOLUME: &str = "there is no volume 0; \"redhare volume list\" shows";
const NO_LAST: &str = "there is no volume 4294967295; ";

pub(super) fn add(rows: &mut Rows, given: &Given) {
    chunks(rows);
    proposals(rows, given);
    writers(rows);
    readers(rows);
    reservations(rows);
    joining(rows);
    let why = "without an authority there are no keys, and nobody is asked for a proof";
    rows.yes("DataPath/GetKeys", &v1::GetDataKeysRequest { node: short() }, why);
    rows.yes(
        "DataPath/GetPasses",
        &v1::GetPassesRequest { host: u64::MAX },
        why,
    );
}

fn chunks(rows: &mut Rows) {
    let call = "Chunks/GetMap";
    let map = |volume, first_chunk, limit| v1::GetMapRequest {
        volume,
        first_chunk,
        limit,
        with_growth: true,
    };
    rows.absent(call, &v1::GetMapRequest::default(), NO_VOLUME);
    rows.absent(call, &map(u32::MAX, 0, 0), NO_LAST);
    let why = "a part of the map, in which no chunk is";
    rows.yes(call, &map(1, u32::MAX, u32::MAX), why);

    let call = "Chunks/Watch";
    let watch = |scope, known_revision| v1::WatchRequest {
        scope: Some(scope),
        known_revision,
    };
    let of_node = v1::watch_request::Scope::Node;
    let of_volume = v1::watch_request::Scope::Volume;
    rows.invalid(call, &v1::WatchRequest::default(), "scope is missing; send it");
    rows.absent(call, &watch(of_volume(0), 0), NO_VOLUME);
    rows.absent(call, &watch(of_volume(u32::MAX), u64::MAX), NO_LAST);
    rows.invalid(
        call,
        &watch(of_node(Vec::new()), 0),
        "node is no UUID but 0 bytes",
    );
    rows.invalid(call, &watch(of_node(short()), 0), "node is no UUID but 3 bytes");
    let why = "who knows what is not committed yet gets everything";
    rows.yes(call, &watch(of_volume(1), u64::MAX), why);
    rows.yes(
        call,
        &watch(of_node(nobody()), 0),
        "a node without copies may follow the map",
    );
}

fn proposals(rows: &mut Rows, given: &Given) {
    let call = "Chunks/ProposeConfiguration";
    let own = || v1::ProposeConfigurationRequest {
        node: given.chunk.write_node.clone(),
        incarnation: 1,
        expected_epoch: given.chunk.epoch,
        volume: 1,
        index: 0,
        write_node: given.chunk.write_node.clone(),
        members: given.chunk.copies.clone(),
    };
    type Proposal = v1::ProposeConfigurationRequest;
    let default = Proposal::default();
    rows.invalid(call, &default, "node is no UUID but 0 bytes");
    let write_node = Proposal {
        write_node: short(),
        ..own()
    };
    rows.invalid(call, &write_node, "write_node is no UUID but 3 bytes");
    let member = |node, incarnation| Proposal {
        members: vec![v1::Copy {
            node,
            incarnation,
            ..v1::Copy::default()
        }],
        ..own()
    };
    rows.invalid(call, &member(short(), 1), "members.node is no UUID but 3 bytes");
    rows.invalid(call, &member(uuid(1), 0), "members.incarnation is missing");
    rows.invalid(
        call,
        &member(nobody(), 1),
        "names node 00000000-0000-0000-0000-00000000004d",
    );
    let none = Proposal {
        members: Vec::new(),
        ..own()
    };
    rows.invalid(call, &none, "leaves 0 in-sync copies");
    let at = |volume, index| Proposal {
        volume,
        index,
        ..own()
    };
    rows.absent(call, &at(0, 0), NO_VOLUME);
    rows.absent(call, &at(1, u32::MAX), "does not exist; the volume has 4 chunks");
    let expected = |expected_epoch| Proposal {
        expected_epoch,
        ..own()
    };
    rows.yes(
        call,
        &expected(0),
        "it is what is committed: repeating it changes nothing",
    );
    let stale = Proposal {
        expected_epoch: 0,
        ..member(uuid(1), 1)
    };
    let part = "is at epoch 1, the proposal was made for epoch 0";
    rows.no(call, &stale, Code::Aborted, part);
    // No reason to take the store for an old one.
    rows.invalid(
        call,
        &expected(u64::MAX),
        "expected_epoch is 18446744073709551614",
    );
    rows.invalid(
        call,
        &expected(u64::MAX / 2),
        "expected_epoch is 9223372036854775807",
    );
    let stranger = Proposal {
        node: nobody(),
        ..own()
    };
    rows.unmet(call, &stranger, "may not propose for");
    let other_life = Proposal {
        incarnation: u64::MAX,
        ..own()
    };
    rows.unmet(call, &other_life, "incarnation 18446744073709551615 of node");
}

fn writers(rows: &mut Rows) {
    let call = "Leases/AcquireWriter";
    let acquire = |volume, holder: &str, term_ms, session| v1::AcquireWriterRequest {
        volume,
        holder: holder.to_owned(),
        term_ms,
        session,
        take_over: true,
    };
    rows.invalid(
        call,
        &v1::AcquireWriterRequest::default(),
        "session is no UUID but 0 bytes",
    );
    rows.invalid(
        call,
        &acquire(1, "a", 0, short()),
        "session is no UUID but 3 bytes",
    );
    rows.invalid(call, &acquire(1, "", 0, uuid(9)), "holder has 0 bytes");
    rows.invalid(
        call,
        &acquire(1, "a\n", 0, uuid(9)),
        "holder has 2 bytes or control characters",
    );
    rows.invalid(
        call,
        &acquire(1, &long_name(), 0, uuid(9)),
        "holder has 5000 bytes",
    );
    let term = "term of 18446744073709551615 ms is not 1 to 600000 ms";
    rows.invalid(call, &acquire(1, "a", u64::MAX, uuid(9)), term);
    rows.absent(call, &acquire(0, "a", 0, uuid(9)), NO_VOLUME);
    rows.absent(call, &acquire(u32::MAX, "a", 0, uuid(9)), NO_LAST);

    let lost = "write lease 18446744073709551615 of volume 1 is over";
    let call = "Leases/RenewWriter";
    let renew = |volume, token, session| v1::RenewWriterRequest {
        volume,
        token,
        session,
    };
    rows.invalid(
        call,
        &v1::RenewWriterRequest::default(),
        "session is no UUID but 0 bytes",
    );
    rows.absent(call, &renew(0, 1, uuid(9)), NO_VOLUME);
    rows.unmet(call, &renew(1, u64::MAX, uuid(9)), lost);

    let call = "Leases/AwaitWanted";
    let await_wanted = |volume, token, session| v1::AwaitWantedRequest {
        volume,
        token,
        session,
        wait_ms: u64::MAX,
    };
    rows.invalid(
        call,
        &v1::AwaitWantedRequest::default(),
        "session is no UUID but 0 bytes",
    );
    rows.absent(call, &await_wanted(0, 1, uuid(9)), NO_VOLUME);
    rows.unmet(call, &await_wanted(1, u64::MAX, uuid(9)), lost);

    let call = "Leases/ReleaseWriter";
    let release = |volume, token, session| v1::ReleaseWriterRequest {
        volume,
        token,
        session,
    };
    rows.invalid(
        call,
        &v1::ReleaseWriterRequest::default(),
        "session is no UUID but 0 bytes",
    );
    rows.absent(call, &release(0, 1, uuid(9)), NO_VOLUME);
    rows.unmet(call, &release(1, u64::MAX, uuid(9)), lost);
}

fn readers(rows: &mut Rows) {
    let call = "Leases/HoldReader";
    let hold = |volume, session, holder: &str| v1::HoldReaderRequest {
        volume,
        session,
        holder: holder.to_owned(),
        generation: u64::MAX,
    };
    rows.invalid(
        call,
        &v1::HoldReaderRequest::default(),
        "session is no UUID but 0 bytes",
    );
    rows.invalid(call, &hold(1, short(), "a"), "session is no UUID but 3 bytes");
    rows.invalid(call, &hold(1, uuid(9), ""), "holder has 0 bytes");
    rows.invalid(
        call,
        &hold(1, uuid(9), "a\u{1b}"),
        "holder has 2 bytes or control characters",
    );
    rows.absent(call, &hold(0, uuid(9), "a"), NO_VOLUME);

    let call = "Leases/ReleaseReader";
    let release = |volume, session| v1::ReleaseReaderRequest { volume, session };
    rows.invalid(
        call,
        &v1::ReleaseReaderRequest::default(),
        "session is no UUID but 0 bytes",
    );
    rows.invalid(call, &release(1, short()), "session is no UUID but 3 bytes");
    rows.yes(
        call,
        &release(0, uuid(9)),
        "it is given back already: repeating it changes nothing",
    );

    let call = "Leases/Show";
    rows.absent(call, &v1::ShowLeasesRequest { volume: 0 }, NO_VOLUME);
    rows.absent(call, &v1::ShowLeasesRequest { volume: u32::MAX }, NO_LAST);
}

fn reservations(rows: &mut Rows) {
    let call = "Reservations/Show";
    rows.absent(call, &v1::ShowReservationsRequest { volume: 0 }, NO_VOLUME);
    rows.absent(call, &v1::ShowReservationsRequest { volume: u32::MAX }, NO_LAST);

    let call = "Reservations/Replace";
    type Replace = v1::ReplaceReservationsRequest;
    type Wanted = v1::HostReservations;
    let replace = |volume, node, reservations| Replace {
        volume,
        node,
        expected: u64::MAX,
        reservations: Some(reservations),
        restricts: true,
    };
    let of_one = |wanted| replace(1, uuid(1), wanted);
    rows.invalid(call, &Replace::default(), "node is no UUID but 0 bytes");
    rows.invalid(
        call,
        &replace(1, short(), Wanted::default()),
        "node is no UUID but 3 bytes",
    );
    rows.absent(call, &replace(0, uuid(1), Wanted::default()), NO_VOLUME);
    rows.unmet(
        call,
        &of_one(Wanted::default()),
        "does not export volume \"data\"",
    );
    let holder = Wanted {
        holder: short(),
        ..Wanted::default()
    };
    rows.invalid(call, &of_one(holder), "a host's identifier has 3 bytes, not 16");
    let of_type = |r#type| Wanted {
        r#type,
        registrants: vec![v1::Registrant {
            host: uuid(9),
            key: 1,
        }],
        ..Wanted::default()
    };
    rows.invalid(call, &of_one(of_type(7)), "there is no reservation of type 7");
    rows.invalid(call, &of_one(of_type(256)), "there is no reservation of type 256");
    rows.invalid(
        call,
        &of_one(of_type(u32::MAX)),
        "there is no reservation of type 4294967295",
    );
    rows.invalid(call, &of_one(of_type(1)), "the holder is not a registrant");
    let keys = |keys: u64| Wanted {
        registrants: (0..keys)
            .map(|key| v1::Registrant {
                host: numbered(key),
                key,
            })
            .collect(),
        ..Wanted::default()
    };
    rows.invalid(call, &of_one(keys(1)), "a registrant has the key 0");
    rows.invalid(call, &of_one(keys(257)), "it has 257 registrants of at most 256");
    let notice = |host, r#type| Wanted {
        notices: vec![v1::ReservationNotice {
            version: u64::MAX,
            host,
            r#type,
        }],
        ..Wanted::default()
    };
    rows.invalid(
        call,
        &of_one(notice(short(), 1)),
        "a host's identifier has 3 bytes",
    );
    rows.invalid(
        call,
        &of_one(notice(uuid(9), 256)),
        "there is no notification of type 256",
    );

    let call = "Reservations/Enforced";
    let enforced = |volume, node, chunks| v1::EnforcedReservationsRequest {
        volume,
        token: u64::MAX,
        node,
        chunks,
    };
    rows.invalid(
        call,
        &enforced(1, Vec::new(), u32::MAX),
        "node is no UUID but 0 bytes",
    );
    rows.invalid(
        call,
        &enforced(1, short(), u32::MAX),
        "node is no UUID but 3 bytes",
    );
    rows.absent(call, &enforced(0, uuid(1), 0), NO_VOLUME);
    rows.unmet(call, &enforced(1, uuid(1), 4), "does not export volume \"data\"");

    let call = "Reservations/Clear";
    let clear = |volume| v1::ClearReservationsRequest { volume };
    rows.absent(call, &clear(String::new()), "there is no volume \"\"");
    rows.absent(call, &clear(no_such()), "there is no volume \"no-such\"");
}

fn joining(rows: &mut Rows) {
    let none = "this master has no credentials and answers anyone, so nobody has to join";
    rows.unmet("Joining/GetRoots", &v1::GetRootsRequest {}, none);
    let call = "Joining/Join";
    let join = |id: &[u8]| v1::JoinRequest {
        id: id.to_vec(),
        secret: short(),
        request: short(),
        name: long_name(),
    };
    rows.invalid(
        call,
        &v1::JoinRequest::default(),
        "id has 0 bytes; send the 8 bytes",
    );
    rows.invalid(call, &join(&[7; 9]), "id has 9 bytes; send the 8 bytes");
    rows.unmet(call, &join(&[7; 8]), "this master has no issuer");
    let call = "Joining/Renew";
    let renew = v1::RenewRequest { request: short() };
    rows.no(
        call,
        &renew,
        Code::PermissionDenied,
        "only a node renews its own certificate here",
    );
    let call = "Joining/CreateToken";
    let create = |role| v1::CreateTokenRequest {
        role,
        uses: u32::MAX,
        expires_s: u64::MAX,
        ..v1::CreateTokenRequest::default()
    };
    rows.invalid(call, &v1::CreateTokenRequest::default(), "role is missing");
    rows.invalid(call, &create(99), "role is missing");
    rows.unmet(call, &create(1), none);
    rows.yes("Joining/ListTokens", &v1::ListTokensRequest {}, "it asks");
    let call = "Joining/RevokeToken";
    let revoke = |id: &[u8]| v1::RevokeTokenRequest { id: id.to_vec() };
    rows.invalid(call, &revoke(&[]), "id has 0 bytes; send the 8 bytes");
    rows.invalid(call, &revoke(&[7; 16]), "id has 16 bytes; send the 8 bytes");
    rows.absent(call, &revoke(&[7; 8]), "there is no join token 0707070707070707");
}
