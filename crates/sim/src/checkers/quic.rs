//! QUIC's counters at the end of a run: who protected packets and read files, and that nothing fell
//! back without a word.
//!
//! Called by [`super::counters`] for every machine of a world with QUIC. What the bytes were,
//! [`crate::h3`] checks.

use crate::faults::{Role, Scenario};
use crate::node::Node;
use crate::quic::Quic;

/// What nothing in a simulation may move.
const NEVER: [&str; 7] = [
    "quic_out_malformed",
    "quic_tx_refused_malformed",
    "quic_tx_refused_number",
    "quic_tx_refused_keys",
    "quic_refused_keys",
    "quic_refused_does_not_fit",
    "quic_device_refused_protocol",
];

/// Checks a machine; `long` is how many connections of clients were worth the operations.
///
/// # Errors
/// What is wrong.
pub(super) fn check(
    node: &Node,
    role: Role,
    scenario: &Scenario,
    quic: &Quic,
    long: u64,
) -> Result<(), String> {
    let value = |name| node.counter(name);
    for name in NEVER {
        // An odd host uses numbers again: refused, since no nonce may seal twice.
        let allowed = name == "quic_tx_refused_number" && scenario.lost_contexts > 0;
        if value(name) > 0 && !allowed {
            return Err(format!("{name} is {}", value(name)));
        }
    }
    let is_server = role == Role::Server;
    let device = if is_server { &quic.server } else { &quic.client };
    let (sealed, opened) = (value("quic_tx_sealed"), value("quic_rx_opened"));
    let (offloaded, asked) = (value("quic_offloaded"), value("quic_out_for_device"));
    if !device.used && offloaded + sealed + opened > 0 {
        return Err(format!("{sealed} packets sealed, {opened} opened, unasked"));
    }
    if sealed > asked {
        return Err(format!("{sealed} packets sealed of {asked} that were to be"));
    }
    if value("quic_in_opened") > opened {
        return Err(String::from("more packets came opened than the device opened"));
    }
    if !scenario.offload && value("quic_file_bytes_offloaded") > 0 {
        return Err(String::from("the device was asked for files though offload is off"));
    }
    if is_server && device.used && long > 0 && offloaded == 0 {
        return Err(format!("{long} long connections, and the device was not asked"));
    }
    let sure = device.has_room() && scenario.resets == 0;
    if sure && value("quic_not_sealed") + value("tx_dropped_quic") > 0 {
        return Err(String::from("transmits were not sealed, though there was room"));
    }
    // What a disk fails to give is not sent, and nothing is where there is no way to a peer.
    let whole = sure && !scenario.may_fail() && scenario.calm_net() && scenario.crowd.vanish == 0;
    if whole && sealed != asked {
        return Err(format!("{sealed} packets sealed of {asked} that were to be"));
    }
    if whole && is_server && long > 0 && device.used && (sealed == 0 || opened == 0) {
        return Err(format!("{sealed} packets sealed, {opened} opened: nobody said why"));
    }
    Ok(())
}
