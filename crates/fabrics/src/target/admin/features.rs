//! Set Features and Get Features (NVM Express Base Specification 2.0c, sections 5.15 and 5.27; Error Recovery and Write
//! Atomicity: NVM Command Set Specification 1.0c, section 4.1.3).

use protocols::nvme::admin::{GetFeatures, SetFeatures};
use protocols::nvme::features::{
    AsyncEventConfiguration, Feature, HOST_BEHAVIOR_BYTES, HOST_IDENTIFIER_EXTENDED, PowerManagement,
    QueueCounts, TemperatureThreshold, Timestamp, VolatileWriteCache, capabilities,
};
use protocols::nvme::log::{FeatureEffects, feature_effects};
use protocols::nvme::{Command, Status};
use reactor::time;

use super::{AdminQueue, reservations};
use crate::target::queue::Answer;

/// Features of an I/O controller, and whether a host may change them.
const IO_FEATURES: &[(Feature, bool)] = &[
    (Feature::Arbitration, true),
    (Feature::PowerManagement, true),
    (Feature::TemperatureThreshold, true),
    (Feature::ErrorRecovery, true),
    (Feature::VolatileWriteCache, true),
    (Feature::NumberOfQueues, true),
    (Feature::WriteAtomicityNormal, true),
    (Feature::AsynchronousEventConfiguration, true),
    (Feature::Timestamp, true),
    (Feature::KeepAliveTimer, true),
    (Feature::HostBehaviorSupport, true),
    (Feature::HostIdentifier, false),
    (Feature::ReservationNotificationMask, true),
    (Feature::ReservationPersistence, true),
];
/// Features of a discovery controller.
const DISCOVERY_FEATURES: &[(Feature, bool)] = &[
    (Feature::AsynchronousEventConfiguration, true),
    (Feature::KeepAliveTimer, true),
    (Feature::HostIdentifier, false),
];
/// The highest threshold there is: nothing is ever too warm.
const THRESHOLD_DEFAULT: u32 = 0xffff;

/// Features that belong to a namespace.
fn is_of_namespace(feature: Feature) -> bool {
    matches!(
        feature,
        Feature::ReservationNotificationMask | Feature::ReservationPersistence
    )
}

/// Whether setting the feature takes longer than a moment.
pub(super) fn answers_later(command: &Command) -> bool {
    SetFeatures::from_command(command).feature == Feature::ReservationPersistence.code()
}

fn supported(admin: &AdminQueue, code: u8) -> Option<(Feature, bool)> {
    let features = if admin.is_discovery() {
        DISCOVERY_FEATURES
    } else {
        IO_FEATURES
    };
    let found = features
        .iter()
        .copied()
        .find(|(feature, _)| feature.code() == code);
    // Of a write cache that is not there, it is refused (section 5.27.1.4).
    found.filter(|(feature, _)| {
        *feature != Feature::VolatileWriteCache
            || admin
                .subsystem
                .as_ref()
                .is_none_or(|subsystem| subsystem.has_write_cache())
    })
}

/// Which of several values of a feature dword 11 names.
fn which(feature: Feature, value: u32) -> u32 {
    match feature {
        Feature::TemperatureThreshold => TemperatureThreshold {
            kelvins: 0,
            ..TemperatureThreshold::from_value(value)
        }
        .to_value(),
        _ => 0,
    }
}

fn default_value(admin: &AdminQueue, feature: Feature, which: u32) -> u32 {
    match feature {
        // Over thresholds begin above every temperature, under thresholds (THSEL 1) below.
        Feature::TemperatureThreshold if TemperatureThreshold::from_value(which).kind == 0 => {
            THRESHOLD_DEFAULT
        }
        Feature::VolatileWriteCache => VolatileWriteCache { enabled: true }.to_value(),
        Feature::NumberOfQueues => queue_counts(admin).to_value(),
        _ => 0,
    }
}

fn queue_counts(admin: &AdminQueue) -> QueueCounts {
    let io_queues = admin.controller.limits().io_queues.into();
    QueueCounts {
        submission: io_queues,
        completion: io_queues,
    }
}

pub(super) fn set(admin: &AdminQueue, set: &SetFeatures, data: &[u8]) -> Answer {
    let invalid = || Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
    let Some((feature, changeable)) = supported(admin, set.feature) else {
        return invalid();
    };
    if set.save {
        return Answer::refuse(Status::FEATURE_NOT_SAVEABLE);
    }
    if !changeable {
        return Answer::refuse(Status::FEATURE_NOT_CHANGEABLE);
    }
    let controller = &admin.controller;
    match feature {
        Feature::NumberOfQueues => {
            if !QueueCounts::from_value(set.value).is_valid() {
                return invalid();
            }
            if !controller.io_queues().is_empty() {
                // It was to be settled before (section 5.27.1.5).
                return Answer::refuse(Status::COMMAND_SEQUENCE_ERROR);
            }
            return Answer::result(queue_counts(admin).to_value());
        }
        Feature::AsynchronousEventConfiguration => {
            controller.set_events(AsyncEventConfiguration(set.value));
        }
        Feature::KeepAliveTimer => controller.set_kato_ms(set.value),
        Feature::VolatileWriteCache => {
            controller.set_write_through(!VolatileWriteCache::from_value(set.value).enabled);
        }
        Feature::Timestamp => {
            let Ok(timestamp) = Timestamp::decode(data) else {
                return Answer::refuse(Status::DATA_SGL_LENGTH_INVALID);
            };
            controller.set_timestamp(timestamp.milliseconds(), time::now());
        }
        Feature::HostBehaviorSupport => {
            if data.len() < HOST_BEHAVIOR_BYTES {
                return Answer::refuse(Status::DATA_SGL_LENGTH_INVALID);
            }
            // Byte 0 is ACRE: retry delays, of which none are ever asked for.
            if data[0] > 1 {
                return invalid();
            }
            controller.set_value(set.feature, 0, data[0].into());
        }
        Feature::ReservationNotificationMask => return reservations::set_mask(admin, set),
        Feature::PowerManagement if PowerManagement::from_value(set.value).state != 0 => return invalid(),
        _ => {
            let which = which(feature, set.value);
            controller.set_value(set.feature, which, set.value & !which);
        }
    }
    Answer::success()
}

pub(super) fn get(admin: &AdminQueue, get: &GetFeatures) -> Answer {
    let Some((feature, changeable)) = supported(admin, get.feature) else {
        return Answer::refuse(Status::INVALID_FIELD_IN_COMMAND);
    };
    let which = which(feature, get.value);
    match get.select {
        0 if is_of_namespace(feature) => reservations::get(admin, feature, get),
        0 => current(admin, feature, which, get.value),
        // None is saveable: the saved value is the default.
        1 | 2 => Answer::result(default_value(admin, feature, which)),
        3 => {
            let mut capabilities = if changeable { capabilities::CHANGEABLE } else { 0 };
            if is_of_namespace(feature) {
                capabilities |= capabilities::NAMESPACE_SPECIFIC;
            }
            Answer::result(capabilities)
        }
        _ => Answer::refuse(Status::INVALID_FIELD_IN_COMMAND),
    }
}

fn current(admin: &AdminQueue, feature: Feature, which: u32, value: u32) -> Answer {
    let controller = &admin.controller;
    let kept = || {
        controller
            .value(feature.code(), which)
            .unwrap_or_else(|| default_value(admin, feature, which))
    };
    match feature {
        Feature::AsynchronousEventConfiguration => Answer::result(controller.events().0),
        Feature::KeepAliveTimer => Answer::result(controller.kato_ms()),
        Feature::VolatileWriteCache => {
            let enabled = !controller.write_through();
            Answer::result(VolatileWriteCache { enabled }.to_value())
        }
        // Fabrics have 128-bit identifiers only (section 5.27.1.25).
        Feature::HostIdentifier if value & HOST_IDENTIFIER_EXTENDED == 0 => {
            Answer::refuse(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT)
        }
        Feature::HostIdentifier => Answer::data(controller.host().id.to_vec()),
        Feature::Timestamp => {
            let timestamp = controller.timestamp(time::now(), admin.born);
            Answer::data(timestamp.encode().to_vec())
        }
        Feature::HostBehaviorSupport => {
            let mut data = vec![0; HOST_BEHAVIOR_BYTES];
            data[0] = kept() as u8;
            Answer::data(data)
        }
        Feature::NumberOfQueues => Answer::result(queue_counts(admin).to_value()),
        _ => Answer::result(kept()),
    }
}

/// Feature Identifiers Supported and Effects (section 5.16.1.18).
pub(super) fn effects() -> FeatureEffects {
    let mut log = FeatureEffects::default();
    for (feature, changeable) in IO_FEATURES {
        let mut bits = feature_effects::SUPPORTED;
        bits |= if is_of_namespace(*feature) {
            feature_effects::SCOPE_NAMESPACE
        } else {
            feature_effects::SCOPE_CONTROLLER
        };
        if *changeable {
            bits |= feature_effects::CHANGES_CONTROLLER;
        }
        log.features[usize::from(feature.code())] = bits;
    }
    log
}
