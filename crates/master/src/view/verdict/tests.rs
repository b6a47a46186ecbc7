//! What people read of a cluster's health.

use crate::view::LostOfSnapshot;
use proto::v1;

use super::super::{BalanceView, MasterRow, ReturningRow, StoreMemberRow, StoreRow};
use super::*;

fn volume(degraded: u32, waiting: u32) -> VolumeRow {
    VolumeRow {
        name: "data".to_owned(),
        number: 1,
        size_bytes: 1 << 30,
        state: "ready",
        checksums: true,
        origin: None,
        disk_use: None,
        portals: Vec::new(),
        chunks: 16,
        degraded_chunks: degraded,
        lacking_copies: degraded,
        lacking_bytes: u64::from(degraded) << 28,
        lacking_left_seconds: None,
        waiting_chunks: waiting,
        roomless_chunks: 0,
        placeless_chunks: 0,
        crowded_chunks: 0,
        few_racks: false,
        lost_blocks: 0,
        differing_blocks: 0,
        lost_of_snapshots: Vec::new(),
        damaged_blocks: 0,
        repaired_blocks: 0,
        returning: Vec::new(),
        unplaced: None,
    }
}

fn view(volumes: Vec<VolumeRow>) -> StatusView {
    StatusView {
        health: None,
        cluster: String::new(),
        revision: 1,
        masters: vec![MasterRow {
            address: "192.0.2.1:7400".to_owned(),
            leads: true,
            since_seconds: 3,
            release: Some("0.2.0".to_owned()),
        }],
        masters_away: Vec::new(),
        data_path: None,
        store: StoreRow::default(),
        nodes: Vec::new(),
        balance: Default::default(),
        restored: Default::default(),
        volumes,
    }
}

#[test]
fn a_whole_cluster_is_healthy() {
    let health = of(&view(vec![volume(0, 0)]));
    assert_eq!(health.verdict, Verdict::Healthy);
    assert_eq!(health.describe(), ("healthy", String::new()));
}

#[test]
fn a_copy_that_is_made_again_is_told_with_what_is_done() {
    let mut degraded = volume(3, 0);
    degraded.returning.push(ReturningRow {
        node: "0123456789".to_owned(),
        chunks: 2,
        left_bytes: 1 << 20,
        total_bytes: 1 << 21,
        left_seconds: Some(4),
    });
    let health = of(&view(vec![degraded]));
    assert_eq!(health.verdict, Verdict::Degraded);
    let (word, lines) = health.describe();
    assert_eq!(word, "DEGRADED");
    assert!(
        lines.contains("! 3 of 16 chunks of \"data\" lack a copy\n"),
        "{lines}"
    );
    assert!(
        lines.contains(
            "> \"data\": node 01234567 is sent what it missed of 2 chunks, 1 MiB of 2 MiB left, about 4 s"
        ),
        "{lines}"
    );
}

#[test]
fn how_long_copies_will_still_be_made_is_told_once_it_is_known() {
    let mut degraded = volume(3, 0);
    let described = |volume: &VolumeRow| of(&view(vec![volume.clone()])).describe().1;
    assert_eq!(
        described(&degraded),
        "  ! 3 of 16 chunks of \"data\" lack a copy\n"
    );
    degraded.lacking_copies = 4;
    degraded.lacking_bytes = 1 << 30;
    degraded.lacking_left_seconds = Some(700);
    assert_eq!(
        described(&degraded),
        "  ! 3 of 16 chunks of \"data\" lack a copy\n  > \"data\": 4 copies with 1 GiB are still to be made, about 12 min left\n"
    );
}

#[test]
fn how_long_a_drain_and_evening_out_will_still_take_is_told_once_it_is_known() {
    let mut drained = NodeRow::of(&v1::NodeStatus {
        node: vec![0xab; 16],
        alive: true,
        draining: true,
        draining_copies: 5,
        draining_bytes: 5 << 30,
        ..v1::NodeStatus::default()
    });
    let described = |node: NodeRow| {
        let mut view = view(Vec::new());
        view.nodes.push(node);
        of(&view).describe().1
    };
    let to_move = "  > node abababab is drained: 5 copies with 5 GiB are still to move";
    assert_eq!(described(drained.clone()), format!("{to_move}\n"));
    assert_eq!(drained.describe_state(), "alive, draining: 5 copies left");
    drained.draining_left_seconds = Some(95);
    assert_eq!(
        drained.describe_state(),
        "alive, draining: 5 copies left, about 95 s"
    );
    assert_eq!(described(drained), format!("{to_move}, about 95 s left\n"));

    let mut view = view(Vec::new());
    let balance = v1::Balance {
        state: v1::BalanceState::Moving.into(),
        left_bytes: 3 << 30,
        left_ms: Some(3 * 3_600_000),
        ..v1::Balance::default()
    };
    view.balance = BalanceView::of(Some(&balance), &[]);
    assert_eq!(
        of(&view).describe().1,
        "  > copies move to even nodes out: 0 under way, 3 GiB too much on some, about 3 h left\n"
    );
}

#[test]
fn a_node_that_is_gone_is_told_with_the_time_that_it_has() {
    let gone = NodeRow::of(&v1::NodeStatus {
        node: vec![0xab; 16],
        peer_address: "192.0.2.1:4420".to_owned(),
        absence: Some(v1::Absence {
            copies: 12,
            elsewhere_in_ms: 540_000,
        }),
        ..v1::NodeStatus::default()
    });
    let mut view = view(Vec::new());
    view.nodes.push(gone);
    assert_eq!(
        of(&view).describe().1,
        "  ! node abababab (192.0.2.1:4420) is gone\n  > node abababab is waited for: 12 copies of it are made elsewhere in about 9 min, if it stays away\n"
    );
}

#[test]
fn copies_that_have_no_place_are_told_with_what_each_needs() {
    let mut degraded = volume(3, 0);
    degraded.placeless_chunks = 2;
    let lines = of(&view(vec![degraded])).describe().1;
    assert!(
        lines.contains("  ! 2 of these have no place for another copy: each needs a living node without a copy of it and with a disk that has room for 256 MiB"),
        "{lines}"
    );
}

#[test]
fn a_disk_that_is_reset_is_told_with_the_stage_and_afterwards_with_what_cured_it() {
    let described = |health: v1::DiskHealth| {
        let mut view = view(Vec::new());
        view.nodes.push(NodeRow::of(&v1::NodeStatus {
            node: vec![0xab; 16],
            alive: true,
            disks: vec![v1::DiskStatus {
                disk: Some(v1::Disk {
                    uuid: vec![0xcd; 16],
                    ..v1::Disk::default()
                }),
                health: Some(health),
                ..v1::DiskStatus::default()
            }],
            ..v1::NodeStatus::default()
        }));
        of(&view).describe()
    };
    let (word, lines) = described(v1::DiskHealth {
        state: v1::DiskState::Failing.into(),
        why: "its oldest request stands for 20000 ms".to_owned(),
        resets: vec![1, 1],
        resetting: 2,
        ..v1::DiskHealth::default()
    });
    assert_eq!(word, "DEGRADED");
    assert!(
        lines.contains(
            "  > disk cdcdcdcd of node abababab does not answer: its device is reset (stage 2 of 4)\n"
        ),
        "{lines}"
    );
    let well = v1::DiskHealth {
        state: v1::DiskState::Ok.into(),
        resets: vec![2, 1, 0, 0],
        cured: vec![1, 1, 0, 0],
        ..v1::DiskHealth::default()
    };
    let note = "  . disk cdcdcdcd of node abababab was reset: queue 2 times (1 cured it), device once (1 cured it)\n";
    assert_eq!(described(well.clone()), ("healthy", note.to_owned()));
    // A node may say what no release knows.
    let unknown = v1::DiskHealth { resetting: 9, ..well };
    assert_eq!(described(unknown), ("healthy", note.to_owned()));
}

#[test]
fn a_clone_that_comes_to_data_of_its_own_is_told() {
    let mut clone = volume(0, 0);
    clone.origin = Some(super::super::OriginView {
        volume: "base".to_owned(),
        snapshot: "monday".to_owned(),
        flattening: true,
        left_copies: Some(4),
        flattened_of: Some(12),
    });
    let health = of(&view(vec![clone]));
    assert_eq!(
        health.describe(),
        (
            "healthy",
            "  > \"data\" comes to data of its own, 4 of 12 copies are left\n".to_owned()
        )
    );
}

#[test]
fn an_exported_volume_whose_portals_are_lost_is_told_with_who_they_are() {
    let node = |number: u8, alive| {
        NodeRow::of(&v1::NodeStatus {
            node: vec![number; 16],
            alive,
            draining: !alive,
            ..v1::NodeStatus::default()
        })
    };
    let exported = |portals: &[u8]| VolumeRow {
        portals: portals
            .iter()
            .map(|number| crate::uuid_text(&[*number; 16]))
            .collect(),
        ..volume(0, 0)
    };
    let described = |volume| {
        let mut view = view(vec![volume]);
        // The one that is gone is drained and empty: nothing but its portals is missed.
        view.nodes = vec![node(1, true), node(2, true), node(3, false)];
        of(&view).describe()
    };
    assert_eq!(described(exported(&[])), ("healthy", String::new()));
    assert_eq!(described(exported(&[1, 2])), ("healthy", String::new()));
    let (word, lines) = described(exported(&[1, 3]));
    let told = "  ! \"data\" has 1 of 2 portals: node 03030303 has not been heard of; its hosts may lack these paths (start it, or see";
    assert!(word == "DEGRADED" && lines.starts_with(told), "{lines}");
    let (word, lines) = described(exported(&[3, 9]));
    assert_eq!(word, "DEGRADED", "its target may serve still");
    assert!(
        lines.contains("has 0 of 2 portals: node 03030303 has not been heard of, node 09090909 is none of the cluster's any more;"),
        "{lines}"
    );
    let deleted = VolumeRow {
        state: "deleting",
        ..exported(&[3])
    };
    assert!(!described(deleted).1.contains("portals"));
}

#[test]
fn masters_that_are_away_and_a_data_path_without_proof_are_told() {
    let mut view = view(Vec::new());
    let away = |address: &str, ended| v1::MasterAway {
        address: address.to_owned(),
        seen_unix_ms: super::super::unix_ms() - 240_000,
        ended,
    };
    let away = [away("192.0.2.2:7400", false), away("192.0.2.3:7400", true)];
    view.masters_away = away.iter().map(super::super::MasterAwayRow::of).collect();
    let (word, lines) = of(&view).describe();
    assert_eq!(word, "DEGRADED");
    assert!(
        lines.starts_with("  ! master 192.0.2.2:7400 has not been heard of for about 4 min (one is left: "),
        "{lines}"
    );
    assert!(
        lines.ends_with("  . master 192.0.2.3:7400 has been stopped for about 4 min\n"),
        "{lines}"
    );
    view.masters_away.clear();
    let node = |number: u8, alive| v1::NodeStatus {
        node: vec![number; 16],
        alive,
        draining: true,
        ..v1::NodeStatus::default()
    };
    view.nodes = vec![NodeRow::of(&node(1, true)), NodeRow::of(&node(2, false))];
    let mut described = |required, awaited: &[u8]| {
        view.data_path = Some(super::super::DataPathRow::of(&v1::DataPathProof {
            required,
            awaited: awaited.iter().map(|number| vec![*number; 16]).collect(),
        }));
        of(&view).describe()
    };
    assert_eq!(described(true, &[]), ("healthy", String::new()));
    let told = "  ! the data path does not require proof yet, so that whoever reaches a node's port reads and writes: each node has to ask for its keys \
                first, and these have not: 02020202 (gone): start it, or \"redhare node remove\" it if it does not come back; 01010101 (alive): its target \
                asks within half a minute; one that was started without credentials, or by an earlier release, does after its next start\n";
    assert_eq!(described(false, &[1, 2]), ("DEGRADED", told.to_owned()));
    let (word, lines) = described(false, &[]);
    assert_eq!(word, "DEGRADED");
    assert!(
        lines.ends_with("reads and writes: it will within half a minute\n"),
        "{lines}"
    );
}

#[test]
fn what_does_not_serve_is_critical_and_the_worst_counts() {
    let health = of(&view(vec![volume(0, 2), volume(1, 0)]));
    assert_eq!(health.verdict, Verdict::Critical);
    let mut leaderless = view(Vec::new());
    leaderless.masters[0].leads = false;
    assert_eq!(of(&leaderless).verdict, Verdict::Critical);
    for (failed, verdict) in [(1, Verdict::Degraded), (2, Verdict::Critical)] {
        let mut view = view(Vec::new());
        view.store.members = (0..3)
            .map(|member| StoreMemberRow {
                address: String::new(),
                healthy: member >= failed,
                said: String::new(),
            })
            .collect();
        assert_eq!(of(&view).verdict, verdict, "{failed} of 3");
    }
}

#[test]
fn chunks_without_room_and_blocks_that_are_lost_are_critical_and_those_that_were_repaired_a_note() {
    let mut rotten = volume(0, 0);
    (rotten.damaged_blocks, rotten.repaired_blocks) = (8, 8);
    let health = of(&view(vec![rotten.clone()]));
    assert_eq!(health.verdict, Verdict::Healthy);
    let (word, lines) = health.describe();
    assert_eq!(
        (word, &lines[..]),
        (
            "healthy",
            "  . \"data\": 8 blocks of copies did not fit their checksums, 8 of them repaired since\n"
        )
    );
    assert_eq!(rotten.describe_health(), "all copies in sync");
    rotten.roomless_chunks = 5;
    let health = of(&view(vec![rotten.clone()]));
    assert_eq!(health.verdict, Verdict::Critical);
    let lines = health.describe().1;
    assert!(
        lines.starts_with("  ! 5 of 16 chunks of \"data\" have no room for more"),
        "{lines}"
    );
    let row = rotten.describe_health();
    assert_eq!(row, "all copies in sync; 5 chunks have no room for more");
    rotten.roomless_chunks = 0;
    rotten.lost_blocks = 3;
    let health = of(&view(vec![rotten.clone()]));
    assert_eq!(health.verdict, Verdict::Critical);
    let lines = health.describe().1;
    assert!(
        lines.starts_with("  ! \"data\": 3 blocks lost: no copy has them right, and reading them fails"),
        "{lines}"
    );
    assert_eq!(rotten.describe_health(), "all copies in sync; 3 blocks are lost");
    rotten.lost_blocks = 0;
    rotten.differing_blocks = 4;
    let health = of(&view(vec![rotten.clone()]));
    assert_eq!(health.verdict, Verdict::Critical);
    let lines = health.describe().1;
    assert!(
        lines.starts_with("  ! \"data\": copies hold different bytes in 4 blocks"),
        "{lines}"
    );
    assert_eq!(
        rotten.describe_health(),
        "all copies in sync; copies differ in 4 blocks"
    );
    rotten.differing_blocks = 0;
    rotten.lost_of_snapshots = vec![LostOfSnapshot {
        snapshot: "monday".to_owned(),
        lost_blocks: 2,
    }];
    let health = of(&view(vec![rotten.clone()]));
    assert_eq!(health.verdict, Verdict::Critical);
    let lines = health.describe().1;
    assert!(
        lines.starts_with("  ! \"data@monday\": 2 blocks lost: no copy that answers has them right"),
        "{lines}"
    );
    let row = rotten.describe_health();
    assert_eq!(row, "all copies in sync; a snapshot has lost blocks");
}

#[test]
fn releases_are_noted_while_there_are_several() {
    let node = |number: u8, engine: &str, target: &str| {
        NodeRow::of(&v1::NodeStatus {
            node: vec![number; 16],
            alive: number < 9,
            releases: Some(v1::Releases {
                engine: engine.to_owned(),
                target: target.to_owned(),
            }),
            ..v1::NodeStatus::default()
        })
    };
    let mut view = view(Vec::new());
    view.nodes = vec![node(1, "0.2.0", "0.2.0"), node(9, "0.1.0", "0.1.0")];
    let described = |view: &StatusView| of(view).describe();
    assert_eq!(
        described(&view),
        ("DEGRADED", "  ! node 09090909 () is gone\n".to_owned())
    );
    view.nodes = vec![
        node(1, "0.2.0", "0.1.0"),
        node(2, "0.1.0", "no release\n"),
        node(3, "0.1.0", ""),
    ];
    view.nodes
        .extend((4..8).map(|number| node(number, "0.1.0", "0.1.0")));
    let note = "  . several releases run: 0.2.0 by 1 master (192.0.2.1:7400), 1 engine (01010101); 0.1.0 by 6 engines, 5 targets; one that \
                is not told by 2 targets (02020202, 03030303)\n";
    assert_eq!(described(&view), ("healthy", note.to_owned()));
}

#[test]
fn a_new_volume_lacks_nothing() {
    let mut new = volume(16, 16);
    new.state = "creating";
    let health = of(&view(vec![new]));
    assert_eq!(health.verdict, Verdict::Healthy);
    assert!(health.describe().1.contains("are being made"));
}

#[test]
fn a_volume_that_waits_for_room_is_told_with_the_reason() {
    let waits = |state| {
        let unplaced = UnplacedView {
            chunks: 3,
            why: "they need 3 GiB".to_owned(),
        };
        let volume = VolumeRow {
            state,
            unplaced: Some(unplaced),
            ..volume(0, 0)
        };
        let (word, lines) = of(&view(vec![volume.clone()])).describe();
        assert_eq!(word, "DEGRADED");
        (lines, volume.describe_health())
    };
    let (lines, health) = waits("creating");
    assert!(
        lines.contains("\"data\" is not ready, since 3 of its chunks have no place: they need 3 GiB"),
        "{lines}"
    );
    assert_eq!(health, "it waits for room");
    let (lines, health) = waits("ready");
    assert!(
        lines.contains("\"data\" does not get on with growing, since 3"),
        "{lines}"
    );
    assert_eq!(health, "all copies in sync; its growth waits for room");
}
