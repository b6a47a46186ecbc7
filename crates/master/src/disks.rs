//! How disks are, between the controller's types and those of the wire.

use std::time::Duration;

use control::{DiskHealth, DiskId, DiskReport, DiskSample, DiskState, DisksNoted, NodeId, NodeStatus};
use proto::v1;

use crate::convert::{ConvertError, uuid};

fn state_of(state: v1::DiskState) -> DiskState {
    match state {
        v1::DiskState::Unspecified | v1::DiskState::Ok => DiskState::Ok,
        v1::DiskState::Slow => DiskState::Slow,
        v1::DiskState::Failing => DiskState::Failing,
        v1::DiskState::OutOfService => DiskState::OutOfService,
        v1::DiskState::Missing => DiskState::Missing,
    }
}

fn state_to(state: DiskState) -> v1::DiskState {
    match state {
        DiskState::Ok => v1::DiskState::Ok,
        DiskState::Slow => v1::DiskState::Slow,
        DiskState::Failing => v1::DiskState::Failing,
        DiskState::OutOfService => v1::DiskState::OutOfService,
        DiskState::Missing => v1::DiskState::Missing,
    }
}

/// One number for each stage of a reset; what lacks is 0.
fn of_stages(told: &[u64]) -> [u64; 4] {
    std::array::from_fn(|stage| told.get(stage).copied().unwrap_or(0))
}

/// What an engine reports of its disks.
pub(crate) fn reports(disks: &[v1::DiskHealth]) -> Result<Vec<DiskReport>, ConvertError> {
    let report = |disk: &v1::DiskHealth| {
        Ok(DiskReport {
            id: DiskId(uuid("disk_health.uuid", &disk.uuid)?),
            state: state_of(disk.state()),
            why: disk.why.clone(),
            path: disk.path.clone(),
            is_full: disk.full,
            failures: disk.failures,
            resets: of_stages(&disk.resets),
            cured: of_stages(&disk.cured),
            process_cured: Duration::from_millis(disk.process_cured_ms),
            resetting: u8::try_from(disk.resetting).unwrap_or(u8::MAX),
            tried: disk.tried_restore,
        })
    };
    disks.iter().map(report).collect()
}

/// What its sample reads have shown.
pub(crate) fn samples(samples: &[v1::DiskSample]) -> Result<Vec<DiskSample>, ConvertError> {
    let sample = |sample: &v1::DiskSample| {
        Ok(DiskSample {
            node: NodeId(uuid("samples.node", &sample.node)?),
            disk: DiskId(uuid("samples.disk", &sample.disk)?),
            at_disk: [sample.disk_us, sample.disk_p99_us].map(Duration::from_micros),
            answer: [sample.answer_us, sample.answer_p99_us].map(Duration::from_micros),
            samples: sample.samples,
            missed: [sample.missed, sample.missed_now],
        })
    };
    samples.iter().map(sample).collect()
}

/// Says in the log what follows from a report.
pub(crate) fn tell(node: NodeId, noted: &DisksNoted) {
    for (disk, why) in &noted.drained {
        let (node, disk) = (node.0, disk.0);
        tracing::error!(%node, %disk, why, "a disk is out of service: its copies are rebuilt elsewhere");
    }
    for (disk, slow) in &noted.speed {
        let (node, disk) = (node.0, disk.0);
        tracing::warn!(%node, %disk, slow, "whether a disk is slow beside its peers has changed");
    }
}

fn sample_to(sample: &DiskSample) -> v1::DiskSample {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    v1::DiskSample {
        node: sample.node.0.to_bytes().to_vec(),
        disk: sample.disk.0.to_bytes().to_vec(),
        disk_us: us(sample.at_disk[0]),
        disk_p99_us: us(sample.at_disk[1]),
        answer_us: us(sample.answer[0]),
        answer_p99_us: us(sample.answer[1]),
        samples: sample.samples,
        missed: sample.missed[0],
        missed_now: sample.missed[1],
    }
}

fn health_to(report: &DiskReport) -> v1::DiskHealth {
    v1::DiskHealth {
        uuid: report.id.0.to_bytes().to_vec(),
        state: state_to(report.state).into(),
        why: report.why.clone(),
        path: report.path.clone(),
        full: report.is_full,
        failures: report.failures,
        resets: report.resets.to_vec(),
        cured: report.cured.to_vec(),
        process_cured_ms: crate::convert::milliseconds(report.process_cured),
        resetting: report.resetting.into(),
        tried_restore: None,
    }
}

/// A node's disks at a glance.
pub(crate) fn statuses(node: &NodeStatus) -> Vec<v1::DiskStatus> {
    let status = |((disk, allocated), health): (&(control::Disk, foundation::ByteCount), &DiskHealth)| {
        let sight = |(from, sample): &(NodeId, DiskSample)| v1::DiskSight {
            from: from.0.to_bytes().to_vec(),
            sample: Some(sample_to(sample)),
        };
        v1::DiskStatus {
            disk: Some(v1::Disk {
                uuid: disk.id.0.to_bytes().to_vec(),
                capacity_bytes: disk.capacity.0,
                used_bytes: disk.used.0,
                held_bytes: disk.held.map(|held| held.0),
            }),
            allocated_bytes: allocated.0,
            health: health.report.as_ref().map(health_to),
            sights: health.sights.iter().map(sight).collect(),
            draining: health.is_drained,
        }
    };
    node.disks.iter().zip(&node.health).map(status).collect()
}
