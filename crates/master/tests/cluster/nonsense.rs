//! Every call of `redhare.v1` is asked for what cannot be meant: by a table, which has each call at least once, and by noise. A
//! refusal says what, why and what to do; nothing is changed, and the master goes on.

mod noise;
mod raw;
mod rows;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use identity::{Authority, Files, Issue, Role, Validity};
use master::{Client, ClientError, Config, Masters, v1};
use tonic::Code;

use crate::fake::{self, Fake, Running, client, create, runtime, uuid};
use crate::http::get;
use raw::{Answer, Raw};
use rows::{Expected, Given, Row};

/// Longer than any call of the table waits.
const LIMIT: Duration = Duration::from_secs(20);

/// The calls that the interface's own text has.
fn declared() -> BTreeSet<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/redhare/v1");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut service = "";
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.trim_end_matches(['{', ' ']);
            }
            if let Some((call, _)) = line.strip_prefix("rpc ").and_then(|rest| rest.split_once('(')) {
                found.insert(format!("{service}/{call}"));
            }
        }
    }
    found
}

/// Two nodes, the volume "data" with copies on both, and its snapshot "cut". The nodes live until the fakes are dropped.
async fn given(client: &Client) -> (Given, [Fake; 2]) {
    let nodes = [Fake::start(client, 1).await, Fake::start(client, 2).await];
    create(client, "data", 2).await.unwrap();
    let (volume, name) = ("data".to_owned(), "cut".to_owned());
    let begun = client
        .begin_snapshot(v1::BeginSnapshotRequest { volume, name })
        .await;
    let snapshot = begun.unwrap().snapshot.unwrap();
    let complete = v1::CompleteSnapshotRequest {
        volume: snapshot.volume,
        number: snapshot.number,
    };
    client.complete_snapshot(complete).await.unwrap();
    let map = v1::GetMapRequest {
        volume: 1,
        ..v1::GetMapRequest::default()
    };
    let map = client.map(map).await.unwrap();
    let given = Given {
        cluster: map.cluster,
        chunk: map.chunks[0].clone(),
    };
    (given, nodes)
}

/// What is wrong with an answer, if anything is.
fn fault(row: &Row, answer: &Answer) -> Option<String> {
    let (code, part) = match (&row.expected, answer) {
        (Expected::Done(_), Answer::Done) => return None,
        (Expected::Done(why), other) => return Some(format!("is legitimate ({why}), and was {other:?}")),
        (Expected::Refused(code, part), Answer::Refused(..)) => (*code, *part),
        (Expected::Refused(..), other) => return Some(format!("is to be refused, and was {other:?}")),
    };
    let Answer::Refused(got, message) = answer else {
        return Some("is neither".to_owned());
    };
    let what = match message {
        message if *got != code || !message.contains(part) => format!("is no {code:?} with \"{part}\""),
        // After the semicolon stands what to do.
        message if !message.contains("; ") => "does not say what to do".to_owned(),
        message if message.contains(char::is_control) => "has what a terminal obeys".to_owned(),
        message if message.len() > 700 => "repeats all that was sent".to_owned(),
        _ => return None,
    };
    Some(format!("{what}: {got:?} {message:?}"))
}

#[test]
fn every_call_has_a_row() {
    let rows = rows::all(&Given::default());
    let asked: BTreeSet<String> = rows.iter().map(|row| row.call.to_owned()).collect();
    let declared = declared();
    assert!(declared.len() > 50, "{declared:?}");
    let lacking: Vec<_> = declared.difference(&asked).collect();
    assert!(lacking.is_empty(), "calls without a row of nonsense: {lacking:?}");
    let unknown: Vec<_> = asked.difference(&declared).collect();
    assert!(unknown.is_empty(), "rows of no call: {unknown:?}");
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_why_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let master = Running::start(directory.path(), 0);
    runtime().block_on(async {
        let client = client(master.port()).await;
        let (given, _nodes) = given(&client).await;
        let before = client.identity(v1::GetIdentityRequest {}).await.unwrap();
        let volumes = client
            .list_volumes(v1::ListVolumesRequest {})
            .await
            .unwrap()
            .volumes;
        let raw = Raw::connect(master.port()).await;
        let mut faults = Vec::new();
        for row in rows::all(&given) {
            let answer = raw.ask(row.call, row.message.clone(), LIMIT).await;
            if let Some(fault) = fault(&row, &answer) {
                faults.push(format!("{} of {} {fault}", row.call, row.what));
            }
        }
        assert!(
            faults.is_empty(),
            "{} faults:\n{}",
            faults.len(),
            faults.join("\n")
        );
        // The revision counts every change that was committed.
        let after = client.identity(v1::GetIdentityRequest {}).await.unwrap();
        assert_eq!(after, before, "something was changed");
        let status = client.status(v1::GetStatusRequest {}).await.unwrap();
        let named: Vec<&str> = status.volumes.iter().map(name).collect();
        assert_eq!((named, status.nodes.len()), (vec!["data"], 2));
        let still = client
            .list_volumes(v1::ListVolumesRequest {})
            .await
            .unwrap()
            .volumes;
        assert_eq!(still, volumes);
        let leases = v1::ShowLeasesRequest { volume: 1 };
        let leases = client.show_leases(leases).await.unwrap();
        assert_eq!(leases, v1::ShowLeasesResponse::default());
    });
    master.end();
}

fn name(row: &v1::VolumeStatus) -> &str {
    row.volume.as_ref().map_or("", |volume| &volume.name)
}

/// Nodes that say more of themselves than can be added up are shown, and get copies.
#[test]
fn numbers_that_cannot_be_added_up_are_borne() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = fake::config(directory.path(), 0);
    config.settings.heartbeat_timeout = Duration::from_secs(60);
    config.http = Some(([127, 0, 0, 1], 0).into());
    let master = Running::begin(config);
    runtime().block_on(async {
        let client = client(master.port()).await;
        // As many disks as a node may have, on so many nodes that chunks of a page are not to be counted any more.
        for number in 1..=17u8 {
            let endless = |disk: u8| v1::Disk {
                uuid: vec![number, disk, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
                capacity_bytes: u64::MAX,
                used_bytes: u64::MAX,
                held_bytes: Some(u64::MAX / 64),
            };
            let disks: Vec<v1::Disk> = (0..=255).map(endless).collect();
            let register = v1::RegisterRequest {
                node: uuid(number),
                peer_address: format!("192.0.2.{number}:4420"),
                disks: disks.clone(),
                ..v1::RegisterRequest::default()
            };
            let registered = client.register(register).await.unwrap();
            let resync = v1::Resync {
                volume: 1,
                index: 0,
                node: uuid(1),
                left_bytes: u64::MAX,
                total_bytes: u64::MAX,
                elapsed_ms: u64::MAX,
            };
            let whole = v1::VolumeUse {
                volume: 1,
                used_bytes: u64::MAX,
                held_bytes: u64::MAX,
            };
            let heartbeat = v1::HeartbeatRequest {
                cluster: registered.cluster,
                node: uuid(number),
                incarnation: registered.incarnation,
                disks,
                resyncs: vec![resync; 2],
                uses: Some(v1::VolumeUses {
                    volumes: vec![whole; 2],
                }),
                ..v1::HeartbeatRequest::default()
            };
            client.heartbeat(heartbeat).await.unwrap();
        }
        let volume = v1::CreateVolumeRequest {
            name: "pages".to_owned(),
            size_bytes: 4 << 12,
            chunk_bytes: 4096,
            stripe_unit_bytes: 4096,
            copies: 1,
            no_wait: true,
            ..v1::CreateVolumeRequest::default()
        };
        client.create_volume(volume).await.unwrap();
        client.status(v1::GetStatusRequest {}).await.unwrap();
        let http = master.http().unwrap();
        for path in ["/", "/metrics", "/status.json"] {
            let page = tokio::task::spawn_blocking(move || get(http, path))
                .await
                .unwrap();
            assert!(page.starts_with("HTTP/1.1 200 "), "{path}: {page}");
        }
    });
    master.end();
}

/// A master with an authority and an issuer.
fn secure(directory: &Path) -> (Config, impl Fn(Role, Option<String>) -> Files) {
    let authority = Authority::init(&directory.join("ca"), None, Validity::days(3650)).unwrap();
    let issuer = directory.join("issuer");
    let made = authority.issuer(Validity::days(200)).unwrap();
    made.write(&issuer).unwrap();
    let at = directory.to_owned();
    let issue = move |role: Role, name: Option<String>| {
        let addresses = match role {
            Role::Master => vec!["127.0.0.1".to_owned()],
            _ => Vec::new(),
        };
        let issue = Issue {
            role,
            name,
            addresses,
            validity: Validity::days(200),
        };
        let place: PathBuf = at.join(role.name());
        authority.issue(&issue).unwrap().write(&place).unwrap()
    };
    let mut config = fake::config(&directory.join("store"), 0);
    config.credentials = Some(issue(Role::Master, None));
    config.issuer = Some(issuer);
    (config, issue)
}

async fn client_as(port: u16, files: Files) -> Client {
    let masters = Masters {
        addresses: format!("127.0.0.1:{port}"),
        credentials: Some(files),
    };
    Client::connect(masters).await.unwrap()
}

/// Refused so, with these words, and with what to do.
fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>, code: Code, part: &str) {
    match answer {
        Err(ClientError::Refused { code: got, message }) => assert!(
            got == code && message.contains(part) && message.contains("; "),
            "{got:?} instead of {code:?} with \"{part}\": {message}"
        ),
        other => panic!("no {code:?} with \"{part}\" but {other:?}"),
    }
}

/// What a master without an authority never comes to look at.
#[test]
fn a_master_with_an_authority_refuses_nonsense_about_certificates_and_keys() {
    let directory = tempfile::tempdir().unwrap();
    let (config, issue) = secure(directory.path());
    let node = master::uuid_text(&uuid(1));
    let (admin, node) = (issue(Role::Admin, None), issue(Role::Node, Some(node)));
    let master = Running::begin(config);
    runtime().block_on(async {
        let admin = client_as(master.port(), admin).await;
        let node = client_as(master.port(), node).await;
        let valid = || v1::CreateTokenRequest {
            role: v1::JoinRole::Node.into(),
            name: String::new(),
            uses: 1,
            expires_s: 60,
            certificate_s: 60,
        };
        let named = |role: v1::JoinRole, name: &str, uses| v1::CreateTokenRequest {
            role: role.into(),
            name: name.to_owned(),
            uses,
            ..valid()
        };
        let lasting = |expires_s, certificate_s| v1::CreateTokenRequest {
            expires_s,
            certificate_s,
            ..valid()
        };
        let (a_node, a_client) = (v1::JoinRole::Node, v1::JoinRole::Client);
        for (request, part) in [
            (v1::CreateTokenRequest::default(), "role is missing"),
            (named(v1::JoinRole::Unspecified, "x", 1), "role is missing"),
            (v1::CreateTokenRequest { role: 99, ..valid() }, "role is missing"),
            (v1::CreateTokenRequest { role: -1, ..valid() }, "role is missing"),
            (named(a_node, "x", 1), "name is \"x\", which is no node's"),
            (
                named(a_node, &master::uuid_text(&uuid(9)), 2),
                "uses is 2 for the name of one node",
            ),
            (named(a_client, "a/b", 1), "name has 3 bytes"),
            (named(a_client, "a\n", 1), "name has 2 bytes"),
            (named(a_client, &"x".repeat(65), 1), "name has 65 bytes"),
            (named(a_node, "", 0), "uses is 0"),
            (named(a_node, "", u32::MAX), "uses is 4294967295"),
            (lasting(0, 60), "expires is 0 s"),
            (lasting(u64::MAX, 60), "expires is 18446744073709551615 s"),
            (lasting(60, 0), "certificate_lasts is 0 s"),
            (
                lasting(60, u64::MAX),
                "certificate_lasts is 18446744073709551615 s",
            ),
        ] {
            refused(admin.create_token(request).await, Code::InvalidArgument, part);
        }
        let revoke = |id: &[u8]| admin.revoke_token(v1::RevokeTokenRequest { id: id.to_vec() });
        refused(revoke(&[7; 3]).await, Code::InvalidArgument, "id has 3 bytes");
        refused(
            revoke(&[7; 8]).await,
            Code::NotFound,
            "no join token 0707070707070707",
        );
        let renew = |request: &[u8]| v1::RenewRequest {
            request: request.to_vec(),
        };
        let not_a_node = admin.renew_certificate(renew(&[])).await;
        refused(not_a_node, Code::PermissionDenied, "only a node renews");
        for request in [&[] as &[u8], &[0x30, 0x80, 0xff]] {
            let refusal = node.renew_certificate(renew(request)).await;
            refused(refusal, Code::InvalidArgument, "request");
        }
        let keys = |node: Vec<u8>| v1::GetDataKeysRequest { node };
        for other in [Vec::new(), vec![7; 3], uuid(2)] {
            let refusal = node.data_keys(keys(other)).await;
            refused(refusal, Code::PermissionDenied, "cannot speak for node");
        }
        let of_nobody = admin.data_keys(keys(uuid(1))).await;
        refused(of_nobody, Code::PermissionDenied, "are for nodes alone");
        // It has a certificate, and has not registered.
        let unknown = node.data_keys(keys(uuid(1))).await;
        refused(unknown, Code::NotFound, "there is no node");
        let tokens = admin.list_tokens(v1::ListTokensRequest {}).await.unwrap();
        assert_eq!(tokens, v1::ListTokensResponse::default(), "a token was made");
    });
    master.end();
}
