//! The disks of a cluster in `redhare status`.

use foundation::ByteCount;
use master::view::{DiskRow, SampleRow, describe_time, short};

use crate::output::table;

/// What people read of them.
pub(super) fn describe<'a>(disks: impl Iterator<Item = &'a DiskRow>) -> String {
    let head = ["DISK", "NODE", "STATE", "USED", "HELD", "READ", "P99", "PATH"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut troubles = String::new();
    for disk in disks {
        let own = disk.own_sample();
        let time = |of: fn(&SampleRow) -> u64| own.map_or("-".to_owned(), |sample| describe_time(of(sample)));
        let (used, capacity) = (ByteCount(disk.used_bytes), ByteCount(disk.capacity_bytes));
        rows.push(vec![
            short(&disk.uuid).to_owned(),
            short(&disk.node).to_owned(),
            disk.describe_state(),
            format!("{used} of {capacity}"),
            disk.held_bytes
                .map_or("-".to_owned(), |held| ByteCount(held).to_string()),
            time(|sample| sample.disk_us),
            time(|sample| sample.disk_p99_us),
            disk.path.clone(),
        ]);
        if !disk.why.is_empty() {
            troubles.push_str(&format!("disk {}: {}\n", short(&disk.uuid), disk.why));
        }
    }
    format!("{}{troubles}", table(&rows))
}

#[cfg(test)]
mod tests {
    use master::{v1, view::NodeRow};

    use super::*;

    #[test]
    fn a_disk_is_shown_with_its_state_and_why() {
        let status = v1::DiskStatus {
            disk: Some(v1::Disk {
                uuid: vec![7; 16],
                capacity_bytes: 1 << 30,
                used_bytes: 1 << 20,
                held_bytes: Some(3 << 18),
            }),
            health: Some(v1::DiskHealth {
                state: v1::DiskState::Failing.into(),
                why: "its oldest request stands for 9000 ms".to_owned(),
                path: "/dev/nvme0n1".to_owned(),
                full: true,
                resets: vec![2, 1],
                ..v1::DiskHealth::default()
            }),
            sights: vec![v1::DiskSight {
                from: vec![9; 16],
                sample: Some(v1::DiskSample {
                    disk_us: 81,
                    disk_p99_us: 12_345,
                    samples: 4,
                    ..v1::DiskSample::default()
                }),
            }],
            ..v1::DiskStatus::default()
        };
        let node = v1::NodeStatus {
            node: vec![9; 16],
            disks: vec![status, v1::DiskStatus::default()],
            ..v1::NodeStatus::default()
        };
        let rows = NodeRow::of(&node).disk_health;
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (rows[0].resets.queue, rows[0].resets.device, rows[0].resets.driver),
            (2, 1, 0)
        );
        let text = describe(rows.iter());
        for part in [
            "failing, full",
            "1 MiB of 1 GiB",
            "768 KiB",
            "81 µs",
            "12 ms",
            "/dev/nvme0n1",
            "disk 07070707: its oldest request stands for 9000 ms",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
