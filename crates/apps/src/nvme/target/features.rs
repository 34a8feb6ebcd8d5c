//! Get Features and Set Features (base sections 5.15 and 5.27).

use wire::nvme::command::{FeatureSelect, FeaturesCommand, QueueCounts, events, feature};
use wire::nvme::status::NvmeStatus;

use super::controller::Controller;

/// Mandatory features without effect here, with the bits that may be set: their values are only
/// stored.
const KEPT: [(u8, u32); 5] = [
    (feature::ARBITRATION, 0xffff_ff07),
    (feature::POWER_MANAGEMENT, 0),
    (feature::TEMPERATURE_THRESHOLD, 0x003f_ffff),
    (feature::ERROR_RECOVERY, 0xffff),
    (feature::WRITE_ATOMICITY, 1),
];

/// Feature values that the initiator has set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FeatureValues {
    kept: [u32; KEPT.len()],
    /// Volatile Write Cache: written data may stay in memory until it is flushed.
    pub(super) write_cache: bool,
}

impl Default for FeatureValues {
    fn default() -> Self {
        Self { kept: [0; KEPT.len()], write_cache: true }
    }
}

/// Bit "changeable" of a feature's capabilities; not saveable, not namespace specific.
const CHANGEABLE: u32 = 1 << 2;

const INVALID: NvmeStatus = NvmeStatus::INVALID_FIELD.do_not_retry();

/// Returns the asynchronous events that can be enabled, for a discovery controller or others.
pub(super) const fn events_known(discovery: bool) -> u32 {
    if discovery { events::DISCOVERY } else { events::NAMESPACES | events::HEALTH }
}

/// Returns whether a controller supports a feature. Discovery controllers have only Keep Alive
/// Timer and Asynchronous Event Configuration.
fn is_known(controller: &Controller, fid: u8) -> bool {
    let common = matches!(fid, feature::KEEP_ALIVE | feature::ASYNC_EVENT);
    let others = matches!(
        fid,
        feature::NUMBER_OF_QUEUES | feature::VOLATILE_WRITE_CACHE | feature::HOST_IDENTIFIER
    );
    let kept = KEPT.iter().any(|kept| kept.0 == fid);
    common || controller.association.subsystem.is_some() && (others || kept)
}

/// Executes Get Features. Returns the value of dword 0.
///
/// # Errors
/// The feature is unknown, or the selected kind of value is.
pub(super) fn get(
    controller: &Controller,
    asked: FeaturesCommand,
    queues_max: u16,
) -> Result<u32, NvmeStatus> {
    if !is_known(controller, asked.fid) {
        return Err(INVALID);
    }
    let granted = match controller.association.io_queues_granted() {
        0 => queues_max,
        granted => granted,
    };
    let counts = |count: u16| {
        QueueCounts { submission: u32::from(count), completion: u32::from(count) }.to_value()
    };
    let kept = |values: &FeatureValues| {
        let place = KEPT.iter().position(|kept| kept.0 == asked.fid);
        place.and_then(|place| values.kept.get(place)).copied().unwrap_or(0)
    };
    let current = matches!(asked.select, FeatureSelect::Current);
    match asked.select {
        FeatureSelect::Capabilities => return Ok(CHANGEABLE),
        FeatureSelect::Other(_) => return Err(INVALID),
        // No feature is saveable: the saved value is the default.
        FeatureSelect::Current | FeatureSelect::Default | FeatureSelect::Saved => {}
    }
    Ok(match asked.fid {
        feature::KEEP_ALIVE => {
            if current {
                controller.kato()
            } else {
                0
            }
        }
        feature::ASYNC_EVENT => {
            if current {
                controller.events.enabled
            } else {
                0
            }
        }
        feature::NUMBER_OF_QUEUES => counts(if current { granted } else { queues_max }),
        feature::VOLATILE_WRITE_CACHE => u32::from(!current || controller.values().write_cache),
        _ if current => kept(controller.values()),
        _ => kept(&FeatureValues::default()),
    })
}

/// Executes Set Features. Returns dword 0 of the completion.
///
/// # Errors
/// The feature is unknown, the value is out of range, or the change is too late.
pub(super) fn set(
    controller: &mut Controller,
    asked: FeaturesCommand,
    queues_max: u16,
) -> Result<u32, NvmeStatus> {
    if asked.save {
        return Err(NvmeStatus::FEATURE_NOT_SAVEABLE.do_not_retry());
    }
    if !is_known(controller, asked.fid) {
        return Err(INVALID);
    }
    match asked.fid {
        feature::KEEP_ALIVE => controller.set_kato(asked.value),
        feature::ASYNC_EVENT => {
            if asked.value & !events_known(controller.association.subsystem.is_none()) != 0 {
                return Err(INVALID);
            }
            controller.events.enabled = asked.value;
        }
        feature::NUMBER_OF_QUEUES => return set_queues(controller, asked.value, queues_max),
        feature::VOLATILE_WRITE_CACHE if asked.value > 1 => return Err(INVALID),
        feature::VOLATILE_WRITE_CACHE => {
            controller.set_values(|values| values.write_cache = asked.value == 1);
        }
        // Over Fabrics the identifier is in Connect (fabrics section 3.6).
        feature::HOST_IDENTIFIER => return Err(NvmeStatus::COMMAND_SEQUENCE.do_not_retry()),
        fid => {
            let place = KEPT.iter().position(|kept| kept.0 == fid).ok_or(INVALID)?;
            if KEPT.get(place).is_none_or(|kept| asked.value & !kept.1 != 0) {
                return Err(INVALID);
            }
            controller.set_values(|values| {
                if let Some(kept) = values.kept.get_mut(place) {
                    *kept = asked.value;
                }
            });
        }
    }
    Ok(0)
}

/// Sets Number of Queues, which is allowed only before I/O queues are connected (base section
/// 5.27.1.5).
fn set_queues(controller: &Controller, value: u32, queues_max: u16) -> Result<u32, NvmeStatus> {
    let asked = QueueCounts::from_value(value).ok_or(INVALID)?;
    let asked = asked.submission.min(asked.completion);
    let granted = u16::try_from(asked).unwrap_or(u16::MAX).min(queues_max);
    if !controller.association.grant_io_queues(granted) {
        return Err(NvmeStatus::COMMAND_SEQUENCE.do_not_retry());
    }
    let count = u32::from(granted);
    Ok(QueueCounts { submission: count, completion: count }.to_value())
}
