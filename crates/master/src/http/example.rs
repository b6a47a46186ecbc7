//! A cluster that lacks copies, with names that mean something where they are shown.

use proto::v1;

/// To browsers, and to who reads the text of metrics.
pub(super) const NAME: &str = "<b>\"x\\\n&'";

fn disk(number: u8, health: Option<v1::DiskHealth>) -> v1::DiskStatus {
    let sight = v1::DiskSight {
        from: vec![number; 16],
        sample: Some(v1::DiskSample {
            disk_us: 81,
            disk_p99_us: 12_345,
            samples: 4,
            ..v1::DiskSample::default()
        }),
    };
    v1::DiskStatus {
        disk: Some(v1::Disk {
            uuid: vec![0x70 + number; 16],
            capacity_bytes: 1000 << 20,
            used_bytes: 250 << 20,
            held_bytes: Some(1 << 20),
        }),
        allocated_bytes: 500 << 20,
        sights: if health.is_some() { vec![sight] } else { Vec::new() },
        health,
        ..v1::DiskStatus::default()
    }
}

fn volume(name: &str, number: u32) -> v1::VolumeStatus {
    v1::VolumeStatus {
        volume: Some(v1::Volume {
            name: name.to_owned(),
            number,
            size_bytes: 1 << 30,
            state: v1::VolumeState::Ready.into(),
            ..v1::Volume::default()
        }),
        chunks: 16,
        ..v1::VolumeStatus::default()
    }
}

/// Two nodes, of which one is gone, and two volumes, of which one lacks copies.
pub(super) fn answer() -> v1::GetStatusResponse {
    let health = v1::DiskHealth {
        state: v1::DiskState::Slow.into(),
        why: NAME.to_owned(),
        path: "/dev/nvme0n1".to_owned(),
        resets: vec![3, 2, 1, 1],
        cured: vec![1, 1, 0, 1],
        process_cured_ms: 1250,
        resetting: 2,
        ..v1::DiskHealth::default()
    };
    let node = |number: u8, alive, health| v1::NodeStatus {
        node: vec![number; 16],
        peer_address: format!("{NAME}:{number}"),
        alive,
        silent_ms: alive.then_some(250),
        absence: (!alive).then_some(v1::Absence {
            copies: 4,
            elsewhere_in_ms: 90_000,
        }),
        disks: vec![disk(number, health)],
        releases: Some(v1::Releases {
            engine: "0.1.0".to_owned(),
            target: "0.1.0".to_owned(),
        }),
        scrub: alive.then_some(v1::Scrub {
            oldest_unix_ms: 7500,
            compared_blocks: 9,
        }),
        ..v1::NodeStatus::default()
    };
    let mut lacking = volume(NAME, 2);
    if let Some(volume) = &mut lacking.volume {
        volume.portals = vec![vec![1; 16], vec![2; 16]];
    }
    let lacking = v1::VolumeStatus {
        degraded_chunks: 3,
        placeless_chunks: 2,
        lacking_copies: 4,
        lacking_bytes: 1 << 30,
        lacking_left_ms: Some(700_000),
        resyncs: vec![v1::Resync {
            node: vec![2; 16],
            total_bytes: 4 << 20,
            left_bytes: 3 << 20,
            elapsed_ms: 500,
            ..v1::Resync::default()
        }],
        r#use: Some(v1::VolumeUse {
            volume: 2,
            used_bytes: 4096,
            held_bytes: 8192,
        }),
        damaged_blocks: 5,
        repaired_blocks: 4,
        ..lacking
    };
    v1::GetStatusResponse {
        cluster: vec![9; 16],
        revision: 41,
        nodes: vec![node(1, true, Some(health)), node(2, false, None)],
        volumes: vec![volume("data", 1), lacking],
        masters_away: vec![v1::MasterAway {
            address: NAME.to_owned(),
            seen_unix_ms: 1,
            ended: false,
        }],
        data_path: Some(v1::DataPathProof {
            required: false,
            awaited: vec![vec![2; 16]],
        }),
        masters: vec![v1::MasterStatus {
            address: "192.0.2.1:7400".to_owned(),
            leads: true,
            release: "0.1.0".to_owned(),
            ..v1::MasterStatus::default()
        }],
        ..v1::GetStatusResponse::default()
    }
}
