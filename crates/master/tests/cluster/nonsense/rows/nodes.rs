//! Calls of the services Cluster and Nodes.

use master::v1;

use super::{Given, ODD_NAMES, Rows, long_name, nobody, numbered, short};
use crate::fake::uuid;

pub(super) fn add(rows: &mut Rows, given: &Given) {
    cluster(rows);
    register(rows);
    heartbeat(rows, given);
    changes(rows);
}

fn cluster(rows: &mut Rows) {
    rows.yes("Cluster/GetIdentity", &v1::GetIdentityRequest {}, "it asks");
    rows.yes("Cluster/GetStatus", &v1::GetStatusRequest {}, "it asks");
    let asks = v1::RebalanceRequest { allowed: None };
    rows.yes("Cluster/Rebalance", &asks, "without a wish it only asks");
    let call = "Cluster/ForgetMaster";
    let master = |address: &str| v1::ForgetMasterRequest {
        address: address.to_owned(),
    };
    rows.invalid(call, &master(""), "address has 0 bytes");
    rows.invalid(call, &master(&long_name()), "address has 5000 bytes");
    for (odd, shown) in [
        ("192.0.2.9:7400", "no master \"192.0.2.9:7400\" is known"),
        ("../leader", "no master \"../leader\" is known"),
        ("a\u{1b}[2J\n", "no master \"a\\u{1b}[2J\\n\" is known"),
    ] {
        rows.absent(call, &master(odd), shown);
    }
    let call = "Cluster/Restored";
    let without = |node: Vec<u8>, volumes: Vec<u32>| v1::RestoredRequest {
        without_nodes: vec![node],
        without_volumes: volumes,
    };
    rows.yes(
        call,
        &v1::RestoredRequest::default(),
        "without consent it only asks",
    );
    rows.yes(
        call,
        &without(nobody(), vec![0, u32::MAX]),
        "nobody has to wait for what is not there, be it known or not",
    );
    rows.invalid(
        call,
        &without(Vec::new(), Vec::new()),
        "without_nodes is no UUID but 0 bytes",
    );
    rows.invalid(
        call,
        &without(short(), Vec::new()),
        "without_nodes is no UUID but 3 bytes",
    );
    rows.invalid(call, &without(uuid(1), Vec::new()), "which lives");
}

fn disk(id: Vec<u8>, capacity_bytes: u64) -> v1::Disk {
    v1::Disk {
        uuid: id,
        capacity_bytes,
        ..v1::Disk::default()
    }
}

fn register(rows: &mut Rows) {
    let call = "Nodes/Register";
    // The node as it is: repeating its registration changes nothing.
    let own = || v1::RegisterRequest {
        node: uuid(1),
        peer_address: "127.0.0.1:4421".to_owned(),
        incarnation: 1,
        disks: vec![disk(uuid(101), 1 << 30)],
        ..v1::RegisterRequest::default()
    };
    rows.invalid(
        call,
        &v1::RegisterRequest::default(),
        "node is no UUID but 0 bytes",
    );
    let of = |node| v1::RegisterRequest { node, ..own() };
    rows.invalid(
        call,
        &of(short()),
        "node is no UUID but 3 bytes; send its 16 bytes",
    );
    rows.invalid(
        call,
        &of(vec![0; 16]),
        "node is no UUID but 16 bytes; send its 16 bytes, not all of them zero",
    );
    rows.invalid(call, &of(vec![7; 17]), "node is no UUID but 17 bytes");
    let cluster = |cluster| v1::RegisterRequest { cluster, ..own() };
    rows.invalid(call, &cluster(short()), "cluster is no UUID but 3 bytes");
    rows.unmet(call, &cluster(nobody()), "this is cluster");
    let at = |address: &str| v1::RegisterRequest {
        peer_address: address.to_owned(),
        ..own()
    };
    for (address, part) in [
        ("", "peer_address is \"\""),
        ("192.0.2.7", "peer_address is \"192.0.2.7\""),
        (":4420", "peer_address is \":4420\""),
        ("192.0.2.7:0", "peer_address is \"192.0.2.7:0\""),
        ("192.0.2.7:65536", "peer_address is \"192.0.2.7:65536\""),
        ("192.0.2.7 :4420", "peer_address is \"192.0.2.7 :4420\""),
        ("a\n\u{1b}[2J:4420", "peer_address is \"a\\n\\u{1b}[2J:4420\""),
    ] {
        rows.invalid(call, &at(address), part);
    }
    let endless = format!("{}:4420", long_name());
    rows.invalid(call, &at(&endless), "peer_address has 5005 bytes (\"xxx");
    let life = |incarnation, ended_through| v1::RegisterRequest {
        incarnation,
        ended_through,
        ..own()
    };
    // After the greatest number there would be none for the next life.
    let most = u64::MAX;
    rows.invalid(call, &life(most, 0), "incarnation is 18446744073709551615");
    rows.invalid(call, &life(most - 1, 0), "incarnation is 18446744073709551614");
    rows.invalid(call, &life(0, most), "ended_through is 18446744073709551615");
    rows.invalid(call, &life(0, most - 1), "ended_through is 18446744073709551614");
    rows.unmet(call, &life(1, 5), "incarnation 1 of node");
    let with = |disks| v1::RegisterRequest { disks, ..own() };
    rows.invalid(
        call,
        &with(vec![disk(short(), 1)]),
        "disks.uuid is no UUID but 3 bytes",
    );
    rows.invalid(
        call,
        &with(vec![disk(uuid(5), 1); 2]),
        "disks lists disk 00000000-0000-0000-0000-000000000005 twice",
    );
    let many = (0..257u64).map(|number| disk(numbered(number), 1));
    rows.invalid(
        call,
        &with(many.collect()),
        "disks lists 257 disks of at most 256",
    );
    rows.unmet(
        call,
        &with(vec![disk(uuid(101), 0)]),
        "would shrink to 0 B, but 64 MiB of it are promised",
    );
    let rack = |rack: &str| v1::RegisterRequest {
        rack: rack.to_owned(),
        ..own()
    };
    // No rack is none.
    for (name, part) in ODD_NAMES.into_iter().filter(|(name, _)| !name.is_empty()) {
        rows.invalid(call, &rack(name), part);
    }
    rows.invalid(call, &rack(&long_name()), "rack has 5000 bytes");
}

fn heartbeat(rows: &mut Rows, given: &Given) {
    let own = || v1::HeartbeatRequest {
        cluster: given.cluster.clone(),
        node: uuid(1),
        incarnation: 1,
        knows_reservations: true,
        knows_sync_writes: true,
        knows_doubt: true,
        ..v1::HeartbeatRequest::default()
    };
    for call in ["Nodes/Heartbeat", "Nodes/Heartbeats"] {
        rows.invalid(
            call,
            &v1::HeartbeatRequest::default(),
            "cluster is no UUID but 0 bytes",
        );
        let cluster = |cluster| v1::HeartbeatRequest { cluster, ..own() };
        rows.invalid(call, &cluster(short()), "cluster is no UUID but 3 bytes");
        rows.unmet(call, &cluster(nobody()), "this is cluster");
        let of = |node| v1::HeartbeatRequest { node, ..own() };
        rows.invalid(call, &of(short()), "node is no UUID but 3 bytes");
        rows.absent(
            call,
            &of(nobody()),
            "there is no node 00000000-0000-0000-0000-00000000004d",
        );
        let life = |incarnation, ended_through| v1::HeartbeatRequest {
            incarnation,
            ended_through,
            ..own()
        };
        rows.unmet(call, &life(0, 0), "incarnation 0 of node");
        rows.unmet(
            call,
            &life(u64::MAX, 0),
            "incarnation 18446744073709551615 of node",
        );
        rows.invalid(call, &life(1, u64::MAX), "ended_through is 18446744073709551615");
        let disks = v1::HeartbeatRequest {
            disks: vec![disk(short(), u64::MAX)],
            ..own()
        };
        rows.invalid(call, &disks, "disks.uuid is no UUID but 3 bytes");
        let resyncs = v1::HeartbeatRequest {
            resyncs: vec![v1::Resync::default()],
            ..own()
        };
        rows.invalid(call, &resyncs, "resyncs.node is no UUID but 0 bytes");
        let moved = v1::HeartbeatRequest {
            moved_copies: vec![v1::MovedCopy::default()],
            ..own()
        };
        rows.invalid(call, &moved, "moved_copies.disk is no UUID but 0 bytes");
        let health = |uuid, state| v1::HeartbeatRequest {
            disk_health: vec![v1::DiskHealth {
                uuid,
                state,
                ..v1::DiskHealth::default()
            }],
            ..own()
        };
        rows.invalid(
            call,
            &health(short(), 1),
            "disk_health.uuid is no UUID but 3 bytes",
        );
        rows.yes(
            call,
            &health(uuid(101), 99),
            "a later release may know more states",
        );
        let sample = |node, disk| v1::HeartbeatRequest {
            samples: vec![v1::DiskSample {
                node,
                disk,
                ..v1::DiskSample::default()
            }],
            ..own()
        };
        rows.invalid(
            call,
            &sample(short(), uuid(101)),
            "samples.node is no UUID but 3 bytes",
        );
        rows.invalid(
            call,
            &sample(uuid(1), short()),
            "samples.disk is no UUID but 3 bytes",
        );
        let described = v1::HeartbeatRequest {
            described_copies: vec![v1::CopyState {
                found: true,
                disk: short(),
                ..v1::CopyState::default()
            }],
            ..own()
        };
        rows.invalid(call, &described, "disk is no UUID but 3 bytes");
        let most = v1::CopyDamage {
            volume: 1,
            index: 0,
            damaged_blocks: u64::MAX,
            repaired_blocks: u64::MAX,
            lost_blocks: u32::MAX,
            differing_blocks: u32::MAX,
        };
        let lost = v1::SnapshotLoss {
            volume: 1,
            index: 0,
            snapshot: u64::MAX,
            lost_blocks: u32::MAX,
        };
        let damaged = v1::HeartbeatRequest {
            damage: Some(v1::Damage {
                copies: (0..5000).map(|index| v1::CopyDamage { index, ..most }).collect(),
                snapshots: (0..5000)
                    .map(|index| v1::SnapshotLoss { index, ..lost })
                    .collect(),
                scrub: Some(v1::Scrub {
                    oldest_unix_ms: u64::MAX,
                    compared_blocks: u64::MAX,
                }),
            }),
            ..own()
        };
        rows.yes(
            call,
            &damaged,
            "what is told of more copies than there may be is left out, and no chunk has more lost blocks than blocks",
        );
        let unspeakable = v1::HeartbeatRequest {
            releases: Some(v1::Releases {
                engine: "\u{1b}[2J\n".to_owned(),
                target: "x".repeat(1 << 20),
            }),
            ..own()
        };
        rows.yes(
            call,
            &unspeakable,
            "what is no name of a release counts as nothing",
        );
        let strange = v1::HeartbeatRequest {
            prepared_volumes: vec![0, u32::MAX],
            removed_volumes: vec![1, u32::MAX],
            copies: vec![v1::ChunkId {
                volume: u32::MAX,
                index: u32::MAX,
            }],
            flattening: vec![v1::Flattening {
                volume: 1,
                left_copies: u32::MAX,
                copies: 0,
            }],
            ..own()
        };
        rows.yes(
            call,
            &strange,
            "what it says of other states and of volumes there are none of is old",
        );
    }
}

/// What an operator asks for.
fn changes(rows: &mut Rows) {
    let call = "Nodes/Drain";
    let drain = |node, disk| v1::DrainRequest {
        node,
        disk,
        undo: false,
    };
    rows.invalid(call, &v1::DrainRequest::default(), "node is no UUID but 0 bytes");
    rows.invalid(call, &drain(short(), Vec::new()), "node is no UUID but 3 bytes");
    rows.invalid(call, &drain(uuid(1), short()), "disk is no UUID but 3 bytes");
    rows.absent(call, &drain(nobody(), Vec::new()), "there is no node 00000000");
    rows.absent(call, &drain(uuid(1), nobody()), "has no disk 00000000");
    rows.unmet(
        call,
        &drain(uuid(1), Vec::new()),
        "need 2 different nodes, and only 1 others are alive",
    );
    let undo = v1::DrainRequest {
        undo: true,
        ..drain(nobody(), Vec::new())
    };
    rows.absent(call, &undo, "there is no node 00000000");

    let call = "Nodes/Restore";
    let restore = |node, disk| v1::RestoreDiskRequest { node, disk };
    rows.invalid(
        call,
        &v1::RestoreDiskRequest::default(),
        "node is no UUID but 0 bytes",
    );
    rows.invalid(call, &restore(uuid(1), Vec::new()), "disk is no UUID but 0 bytes");
    rows.absent(call, &restore(nobody(), uuid(101)), "there is no node 00000000");
    rows.absent(call, &restore(uuid(1), nobody()), "has no disk 00000000");

    let call = "Nodes/Remove";
    let remove = |node| v1::RemoveNodeRequest { node };
    rows.invalid(call, &remove(Vec::new()), "node is no UUID but 0 bytes");
    rows.invalid(call, &remove(short()), "node is no UUID but 3 bytes");
    rows.absent(call, &remove(nobody()), "there is no node 00000000");
    rows.unmet(
        call,
        &remove(uuid(1)),
        "4 copies (64 MiB) are promised to its disks",
    );
}
