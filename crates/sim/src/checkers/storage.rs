//! Storage at the end of a run: every user is done, every failed request has a cause, and the
//! namespaces hold a permitted state.
//!
//! Users check the data that they read themselves ([`crate::storage::user`]); [`super::counters`]
//! checks gauges.

use apps::nvme::initiator::{AssociationLoss, InitiatorState, NvmeRequestError};
use base::Instant;
use wire::nvme::status::NvmeStatus;

use crate::disk::SimDisk;
use crate::faults::Scenario;
use crate::node::{App, SimNode};
use crate::report::{ResponseRow, RunReport};
use crate::storage::user::User;
use crate::storage::{StorageScenario, path};
use crate::trace::hash_bytes;

/// Counters that only wrong digests move, on any machine.
const DIGESTS: [&str; 5] = [
    "nvme_data_digest_errors",
    "nvme_header_digest_errors",
    "nvme_tcp_digest_errors",
    "nvmet_errors_digest",
    "nvmei_digest_retries",
];
/// Counters that only a misbehaving peer moves.
const RULES: [&str; 3] =
    ["nvme_terminations", "nvmei_protocol_errors", "nvmet_connections_terminated"];

/// Checks a scenario with storage.
pub(crate) fn check(
    now: Instant,
    scenario: &Scenario,
    nodes: &[SimNode],
    disk: &SimDisk,
    report: &mut RunReport,
) {
    let Some(storage) = &scenario.storage else { return };
    for (index, node) in nodes.iter().enumerate() {
        let result = match &node.app {
            App::User(user) if storage.is_user(index) => {
                check_user(index, user, scenario, storage, disk, report)
            }
            App::User(user) => check_stranger(user),
            App::Rogue(rogue) if !rogue.is_done() => Err(String::from("the rogue is not done")),
            _ => Ok(()),
        };
        // Further queues of the target follow all machines.
        let machine = if index > scenario.crowd.clients { 0 } else { index };
        if let Err(what) = result.and_then(|()| check_counters(machine, node, scenario, storage)) {
            let events = match &node.app {
                App::User(user) => &user.events[..],
                _ => &[],
            };
            report.fail(now, "storage", format!("n{index}: {what}; {events:?}"));
        }
    }
}

fn check_user(
    index: usize,
    user: &User,
    scenario: &Scenario,
    storage: &StorageScenario,
    disk: &SimDisk,
    report: &mut RunReport,
) -> Result<(), String> {
    if !user.is_done() || user.open() > 0 {
        let state = user.initiator.state();
        let (open, left) = (user.open(), user.left);
        return Err(format!("stuck: {open} open, {left} left, {state:?}"));
    }
    for failure in &user.failed {
        if failure.strict || !has_cause(failure.error, scenario, storage) {
            return Err(format!("{failure:?} without a cause"));
        }
    }
    let namespace = disk.namespace_bytes(&path(storage.owner(index))).unwrap_or_default();
    user.check(&namespace).map_err(|what| format!("at the end: {what}"))?;
    let row = |request, status, version, hash| ResponseRow {
        node: index,
        session: 0,
        request,
        status,
        version,
        bytes: 0,
        hash,
    };
    for (token, result) in &user.results {
        let status = u16::from(result.is_err());
        report.rows.push(row(*token as usize, status, user.settled.get(token).copied(), 0));
    }
    let content = hash_bytes(0, namespace.get(user.bytes()).unwrap_or_default());
    report.rows.push(row(usize::MAX, 0, None, content));
    Ok(())
}

/// Returns whether the scenario can cause a request to fail with this error.
fn has_cause(error: NvmeRequestError, scenario: &Scenario, storage: &StorageScenario) -> bool {
    let disk = &scenario.disk;
    match error {
        NvmeRequestError::Status(status) => match status.code() {
            NvmeStatus::WRITE_FAULT => disk.write_error > 0.0,
            NvmeStatus::CAPACITY_EXCEEDED => disk.no_space > 0.0,
            NvmeStatus::UNRECOVERED_READ => disk.read_error + disk.short_read > 0.0,
            NvmeStatus::TRANSIENT_TRANSPORT => storage.unseen > 0.0,
            _ => false,
        },
        NvmeRequestError::DataDigest(_) | NvmeRequestError::Protocol(_) => storage.unseen > 0.0,
        // The target resets the connection if it cannot send the data of a file that it has
        // announced.
        NvmeRequestError::Lost(_) => disk.read_error + disk.short_read > 0.0,
        _ => false,
    }
}

/// A host that is not admitted receives an error and does not retry.
fn check_stranger(user: &User) -> Result<(), String> {
    match user.initiator.state() {
        InitiatorState::Failed(AssociationLoss::Refused { status, .. })
            if status.code() == NvmeStatus::INVALID_HOST =>
        {
            Ok(())
        }
        state => Err(format!("a stranger is {state:?}")),
    }
}

fn check_counters(
    index: usize,
    node: &SimNode,
    scenario: &Scenario,
    storage: &StorageScenario,
) -> Result<(), String> {
    let value = |name: &str| node.counter(name);
    let never = |names: &[&'static str]| match names.iter().find(|name| value(name) > 0) {
        Some(name) => Err(format!("{name} is {} without a cause", value(name))),
        None => Ok(()),
    };
    let damaged = storage.unseen > 0.0;
    // The rogue sends wrong digests, which the target reports.
    let abused = storage.rogue && index == 0;
    if !(damaged || abused) {
        never(&DIGESTS)?;
    }
    if !(damaged || abused || storage.is_rogue(index)) {
        never(&RULES)?;
    }
    let side = storage.side(index);
    if !side.uses_nvme() {
        never(&["nvme_rx_placed_bytes", "nvme_rx_digests_device", "nvme_tx_digests_device"])?;
    }
    if !scenario.offload {
        never(&["file_offload_bytes"])?;
    }
    if storage.digests == (false, false) && !storage.rogue {
        never(&["nvme_rx_digests_device", "nvme_rx_digests_host", "nvme_tx_digests_device"])?;
    }
    // Without loss and refusals the device does all of the work. A disk that fails a read closes
    // the connection that the read was for.
    let calm = scenario.calm_net() && scenario.resets == 0 && !scenario.disk.any();
    let sure = calm && side.has_room();
    let all = sure && scenario.tls.is_none() && side.does_all() && storage.is_plain();
    if all && !storage.rogue && value("nvme_ddp_refused") == 0 {
        // If the last bytes of a PDU arrived twice, the host may have discarded the device's claim.
        let [by_host, by_device] = ["nvme_rx_digests_host", "nvme_rx_digests_device"].map(value);
        if by_host > 2 + by_device / 50 {
            return Err(format!("hosts checked {by_host} digests, devices {by_device}"));
        }
        // The host copies data in capsules, and data that it checks itself.
        if index > 0 {
            never(&["nvme_tx_digests_host"])?;
            let [by_host, by_device] = ["nvme_rx_copied_bytes", "nvme_rx_placed_bytes"].map(value);
            if by_host > 65_536 + by_device / 50 {
                return Err(format!("hosts copied {by_host} bytes, devices placed {by_device}"));
            }
        }
    }
    Ok(())
}
