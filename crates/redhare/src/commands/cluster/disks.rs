//! The disks of a cluster in `redhare status`.

use foundation::ByteCount;
use master::{uuid_text, v1};

use crate::output::table;

/// One disk of a node.
#[derive(Clone, serde::Serialize)]
pub(super) struct DiskRow {
    uuid: String,
    node: String,
    path: String,
    /// ok, slow, failing, out of service, or unknown while its node is not heard.
    state: &'static str,
    why: String,
    full: bool,
    draining: bool,
    capacity_bytes: u64,
    allocated_bytes: u64,
    used_bytes: u64,
    /// Of these, what snapshots hold; none from a node that has not said it.
    held_bytes: Option<u64>,
    /// Requests that failed through it, and stages of resets that began.
    failures: u64,
    resets: Resets,
    /// What sample reads of it have shown, its own node's first.
    samples: Vec<SampleRow>,
}

#[derive(Clone, Default, serde::Serialize)]
struct Resets {
    queue: u64,
    device: u64,
    driver: u64,
    process: u64,
}

#[derive(Clone, serde::Serialize)]
struct SampleRow {
    from: String,
    disk_us: u64,
    disk_p99_us: u64,
    answer_us: u64,
    answer_p99_us: u64,
    samples: u64,
    missed: u64,
    /// Since the last one that was answered.
    missed_now: u64,
}

impl DiskRow {
    /// What is wrong with it, if anything that its node has said.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = match (self.state, self.full) {
            ("slow" | "failing", _) => self.state,
            // Put out of service and given up by all copies: nothing is missing.
            ("out of service", _) if self.allocated_bytes > 0 => self.state,
            (_, true) => "full",
            _ => return self.shortage(),
        };
        let name = self.uuid.get(..8).unwrap_or(&self.uuid);
        Some(match self.why.is_empty() {
            true => format!("disk {name} is {state}"),
            false => format!("disk {name} is {state} ({})", self.why),
        })
    }
}

impl DiskRow {
    /// That it is about to be full, if more may still be written to it than it has room for: what is promised to copies, with what
    /// snapshots hold, is more than there is (`redhare master --overcommit`).
    fn shortage(&self) -> Option<String> {
        let promised = self.allocated_bytes.saturating_add(self.held_bytes.unwrap_or(0));
        let (used, capacity) = (u128::from(self.used_bytes), u128::from(self.capacity_bytes));
        if promised <= self.capacity_bytes || used * 10 < capacity * 9 {
            return None;
        }
        let name = self.uuid.get(..8).unwrap_or(&self.uuid);
        Some(format!(
            "disk {name} is {} % full, with {} promised and {} there (copies that find no room go out of sync: add disks, or delete \
             volumes or snapshots)",
            used * 100 / capacity.max(1),
            ByteCount(promised),
            ByteCount(self.capacity_bytes)
        ))
    }
}

fn state_of(health: Option<&v1::DiskHealth>) -> &'static str {
    match health.map(v1::DiskHealth::state) {
        Some(v1::DiskState::Ok) => "ok",
        Some(v1::DiskState::Slow) => "slow",
        Some(v1::DiskState::Failing) => "failing",
        Some(v1::DiskState::OutOfService) => "out of service",
        Some(v1::DiskState::Unspecified) | None => "unknown",
    }
}

/// The disks of a node.
pub(super) fn rows(node: &v1::NodeStatus) -> Vec<DiskRow> {
    let row = |status: &v1::DiskStatus| {
        let disk = status.disk.as_ref()?;
        let health = status.health.as_ref();
        let resets = health.map_or(&[][..], |health| &health.resets[..]);
        let begun = |stage: usize| resets.get(stage).copied().unwrap_or(0);
        let sample = |sight: &v1::DiskSight| {
            let sample = sight.sample.as_ref()?;
            Some(SampleRow {
                from: uuid_text(&sight.from),
                disk_us: sample.disk_us,
                disk_p99_us: sample.disk_p99_us,
                answer_us: sample.answer_us,
                answer_p99_us: sample.answer_p99_us,
                samples: sample.samples,
                missed: sample.missed,
                missed_now: sample.missed_now,
            })
        };
        Some(DiskRow {
            uuid: uuid_text(&disk.uuid),
            node: uuid_text(&node.node),
            path: health.map_or_else(String::new, |health| health.path.clone()),
            state: state_of(health),
            why: health.map_or_else(String::new, |health| health.why.clone()),
            full: health.is_some_and(|health| health.full),
            draining: status.draining,
            capacity_bytes: disk.capacity_bytes,
            allocated_bytes: status.allocated_bytes,
            used_bytes: disk.used_bytes,
            held_bytes: disk.held_bytes,
            failures: health.map_or(0, |health| health.failures),
            resets: Resets {
                queue: begun(0),
                device: begun(1),
                driver: begun(2),
                process: begun(3),
            },
            samples: status.sights.iter().filter_map(sample).collect(),
        })
    };
    node.disks.iter().filter_map(row).collect()
}

fn describe_state(disk: &DiskRow) -> String {
    let mut words = vec![disk.state];
    words.extend(disk.full.then_some("full"));
    words.extend((disk.draining && disk.state != "out of service").then_some("draining"));
    words.join(", ")
}

/// Microseconds for people.
fn describe_time(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} µs"),
        _ => format!("{} ms", us / 1000),
    }
}

/// What people read of them.
pub(super) fn describe<'a>(disks: impl Iterator<Item = &'a DiskRow>) -> String {
    let head = ["DISK", "NODE", "STATE", "USED", "HELD", "READ", "P99", "PATH"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut troubles = String::new();
    for disk in disks {
        let own = disk
            .samples
            .iter()
            .find(|sample| sample.from == disk.node && sample.samples > 0);
        let time = |of: fn(&SampleRow) -> u64| own.map_or("-".to_owned(), |sample| describe_time(of(sample)));
        let short = |uuid: &str| uuid.get(..8).unwrap_or(uuid).to_owned();
        let (used, capacity) = (ByteCount(disk.used_bytes), ByteCount(disk.capacity_bytes));
        rows.push(vec![
            short(&disk.uuid),
            short(&disk.node),
            describe_state(disk),
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
        let rows = rows(&node);
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
        assert_eq!(state_of(None), "unknown");
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_trouble_if_more_is_promised_than_it_has() {
        let trouble = |used_bytes, allocated_bytes, held_bytes| {
            let disk = v1::Disk {
                uuid: vec![7; 16],
                capacity_bytes: 1000 << 20,
                used_bytes,
                held_bytes,
            };
            let status = v1::DiskStatus {
                disk: Some(disk),
                allocated_bytes,
                ..v1::DiskStatus::default()
            };
            let node = v1::NodeStatus {
                disks: vec![status],
                ..v1::NodeStatus::default()
            };
            rows(&node)[0].trouble()
        };
        assert_eq!(trouble(990 << 20, 1000 << 20, Some(0)), None);
        assert_eq!(trouble(899 << 20, 1500 << 20, None), None);
        let told = trouble(930 << 20, 1500 << 20, Some(0)).unwrap();
        assert!(
            told.contains("93 % full, with 1.5 GiB promised and 1000 MiB there"),
            "{told}"
        );
        assert!(trouble(930 << 20, 900 << 20, Some(101 << 20)).is_some());
    }
}
