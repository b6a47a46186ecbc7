//! The disks of a cluster's node: sample reads, failures, and resets by stage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use bdev::reset::Stage;

use super::text::Text;
use crate::node::{DISKS, DiskMeasures};

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(super) fn show(text: &mut Text) {
    let disks: Vec<Arc<DiskMeasures>> = DISKS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    show_all(text, &disks);
}

fn show_all(text: &mut Text, disks: &[Arc<DiskMeasures>]) {
    if disks.is_empty() {
        return;
    }
    let mut each = |name, kind, help, value: fn(&DiskMeasures) -> u64| {
        let mut family = text.family(name, kind, help);
        for disk in disks {
            family.sample(&[("disk", &disk.path)], value(disk));
        }
    };
    each(
        "redhare_disk_samples_total",
        "counter",
        "Sample reads that the disk has answered.",
        |disk| load(&disk.samples),
    );
    each(
        "redhare_disk_sample_failures_total",
        "counter",
        "Sample reads that failed.",
        |disk| load(&disk.sample_failures),
    );
    each(
        "redhare_disk_failures_total",
        "counter",
        "Requests that failed through the disk.",
        |disk| load(&disk.resets.failures),
    );
    each(
        "redhare_disk_full",
        "gauge",
        "1 while the disk has no room for more.",
        |disk| load(&disk.is_full),
    );
    let mut seconds = |name, kind, help, value: fn(&DiskMeasures) -> f64| {
        let mut family = text.family(name, kind, help);
        for disk in disks {
            family.sample(&[("disk", &disk.path)], value(disk));
        }
    };
    seconds(
        "redhare_disk_sample_seconds_total",
        "counter",
        "The time that the disk took for its sample reads.",
        |disk| load(&disk.sample_ns) as f64 / 1e9,
    );
    seconds(
        "redhare_disk_standing_seconds",
        "gauge",
        "For how long the oldest request stands; 0 while none stands longer than its bound.",
        |disk| load(&disk.resets.standing_ms) as f64 / 1e3,
    );
    let mut by_stage = |name, help, value: fn(&DiskMeasures, Stage) -> u64| {
        let mut family = text.family(name, "counter", help);
        for disk in disks {
            for stage in Stage::ALL {
                family.sample(
                    &[("disk", &disk.path), ("stage", stage.name())],
                    value(disk, stage),
                );
            }
        }
    };
    by_stage(
        "redhare_disk_resets_total",
        "Stages of resets that began.",
        |disk, stage| load(&disk.resets.begun[stage as usize]),
    );
    by_stage(
        "redhare_disk_resets_skipped_total",
        "Of those, stages that had nothing to do.",
        |disk, stage| load(&disk.resets.skipped[stage as usize]),
    );
    by_stage(
        "redhare_disk_resets_cured_total",
        "Of those, stages after which the disk answered again before the next.",
        |disk, stage| load(&disk.resets.cured[stage as usize]),
    );
    let help = "From the beginning of the stages that cured until the disk answered again.";
    let mut family = text.family("redhare_disk_reset_seconds_total", "counter", help);
    for disk in disks {
        for stage in Stage::ALL {
            let took = load(&disk.resets.cured_us[stage as usize]) as f64 / 1e6;
            family.sample(&[("disk", &disk.path), ("stage", stage.name())], took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stage's numbers are its own: of each something else.
    #[test]
    fn each_stage_of_a_reset_is_shown_with_its_own_time() {
        let disk = Arc::new(DiskMeasures {
            path: "/dev/nvme0n1".to_owned(),
            resets: Arc::default(),
            samples: AtomicU64::new(0),
            sample_ns: AtomicU64::new(0),
            sample_failures: AtomicU64::new(0),
            is_full: AtomicU64::new(0),
        });
        for (place, counters) in [&disk.resets.begun, &disk.resets.skipped, &disk.resets.cured]
            .into_iter()
            .enumerate()
        {
            for stage in Stage::ALL {
                counters[stage as usize].store(10 * (place as u64 + 1) + stage as u64, Ordering::Relaxed);
            }
        }
        for stage in Stage::ALL {
            disk.resets.cured_us[stage as usize].store(250_000 * (stage as u64 + 1), Ordering::Relaxed);
        }
        let mut text = Text::default();
        show_all(&mut text, &[disk]);
        let text = text.finish();
        let rows = [
            ("redhare_disk_resets_total", ["10", "11", "12", "13"]),
            ("redhare_disk_resets_skipped_total", ["20", "21", "22", "23"]),
            ("redhare_disk_resets_cured_total", ["30", "31", "32", "33"]),
            ("redhare_disk_reset_seconds_total", ["0.25", "0.5", "0.75", "1"]),
        ];
        for (name, values) in rows {
            for (stage, value) in ["queue", "device", "driver", "process"].into_iter().zip(values) {
                let line = format!("{name}{{disk=\"/dev/nvme0n1\",stage=\"{stage}\"}} {value}\n");
                assert!(text.contains(&line), "{line} is not in {text}");
            }
        }
    }
}
