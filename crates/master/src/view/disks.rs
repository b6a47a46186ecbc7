//! The disks of a cluster.

use foundation::ByteCount;
use proto::v1;

use crate::uuid_text;

/// One disk of a node.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DiskRow {
    /// Its UUID.
    pub uuid: String,
    /// The UUID of its node.
    pub node: String,
    /// Where its node has it.
    pub path: String,
    /// ok, slow, failing, out of service, missing where its node runs without it while copies are promised to it, or unknown while its
    /// node is not heard.
    pub state: &'static str,
    /// What is wrong with it, if anything is.
    pub why: String,
    /// It has no room for more.
    pub full: bool,
    /// Copies are moved away from it.
    pub draining: bool,
    /// What it has.
    pub capacity_bytes: u64,
    /// What the masters have promised of it to copies.
    pub allocated_bytes: u64,
    /// What is used of it.
    pub used_bytes: u64,
    /// Of these, what snapshots hold; none from a node that has not said it.
    pub held_bytes: Option<u64>,
    /// Requests that failed through it.
    pub failures: u64,
    /// Stages of resets that began.
    pub resets: Resets,
    /// Of these, stages after which it answered again before the next.
    pub cured: Resets,
    /// From the beginning of those of the process that cured until the next one served it.
    pub process_cured_milliseconds: u64,
    /// The stage that is under way; null while none is.
    pub resetting: Option<&'static str>,
    /// What sample reads of it have shown, its own node's first.
    pub samples: Vec<SampleRow>,
}

/// A number for each stage of a reset.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Resets {
    /// Of its queue.
    pub queue: u64,
    /// Of the device.
    pub device: u64,
    /// Of its driver.
    pub driver: u64,
    /// Of the target's process.
    pub process: u64,
}

/// What one node's sample reads of a disk have shown.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SampleRow {
    /// The node that samples.
    pub from: String,
    /// At the disk alone: a moving average.
    pub disk_us: u64,
    /// What 99 of 100 of the last stayed below.
    pub disk_p99_us: u64,
    /// The same from question to answer.
    pub answer_us: u64,
    /// What 99 of 100 of these stayed below.
    pub answer_p99_us: u64,
    /// How many were taken.
    pub samples: u64,
    /// Those that failed, or were not answered in time.
    pub missed: u64,
    /// Since the last one that was answered.
    pub missed_now: u64,
}

/// The stages of a reset, in their order.
pub const STAGES: [&str; 4] = ["queue", "device", "driver", "process"];

impl Resets {
    fn of(told: &[u64]) -> Self {
        let of_stage = |stage: usize| told.get(stage).copied().unwrap_or(0);
        Self {
            queue: of_stage(0),
            device: of_stage(1),
            driver: of_stage(2),
            process: of_stage(3),
        }
    }

    /// Each with its stage.
    pub fn stages(&self) -> [(&'static str, u64); 4] {
        let [queue, device, driver, process] = STAGES;
        [
            (queue, self.queue),
            (device, self.device),
            (driver, self.driver),
            (process, self.process),
        ]
    }
}

impl DiskRow {
    /// What is wrong with it, if anything that its node has said.
    pub fn trouble(&self) -> Option<String> {
        let state = match (self.state, self.full) {
            ("slow" | "failing" | "missing", _) => self.state,
            // Put out of service and given up by all copies: nothing is missing.
            ("out of service", _) if self.allocated_bytes > 0 => self.state,
            (_, true) => "full",
            _ => return self.shortage(),
        };
        let name = super::short(&self.uuid);
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
        let name = super::short(&self.uuid);
        Some(format!(
            "disk {name} is {} % full, with {} promised and {} there (when it is full, writes that need room are refused or go on without this copy: add disks, or \
             delete volumes or snapshots)",
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
        Some(v1::DiskState::Missing) => "missing",
        Some(v1::DiskState::Unspecified) | None => "unknown",
    }
}

/// The disks of a node.
pub(super) fn rows(node: &v1::NodeStatus) -> Vec<DiskRow> {
    let row = |status: &v1::DiskStatus| {
        let disk = status.disk.as_ref()?;
        let health = status.health.as_ref();
        let stage = health.map_or(0, |health| health.resetting as usize);
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
            resets: Resets::of(health.map_or(&[][..], |health| &health.resets)),
            cured: Resets::of(health.map_or(&[][..], |health| &health.cured)),
            process_cured_milliseconds: health.map_or(0, |health| health.process_cured_ms),
            resetting: stage.checked_sub(1).and_then(|stage| STAGES.get(stage).copied()),
            samples: status.sights.iter().filter_map(sample).collect(),
        })
    };
    node.disks.iter().filter_map(row).collect()
}

impl DiskRow {
    /// Its state for people.
    pub fn describe_state(&self) -> String {
        let mut words = vec![self.state];
        words.extend(self.full.then_some("full"));
        words.extend((self.draining && self.state != "out of service").then_some("draining"));
        words.join(", ")
    }

    /// What its own node's sample reads have shown, if there were any.
    pub fn own_sample(&self) -> Option<&SampleRow> {
        let mut own = self.samples.iter();
        own.find(|sample| sample.from == self.node && sample.samples > 0)
    }
}

/// Microseconds for people.
pub fn describe_time(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} µs"),
        _ => format!("{} ms", us / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
