//! QUIC counters at the end of a run: which half protected packets and read files, and that every
//! fallback was reported; and the order in which a device delivered packets.
//!
//! Called by [`super::counters`] for every machine of a scenario with QUIC; [`crate::node`] feeds
//! [`QuicOrderChecker`]. [`crate::h3`] checks the bytes.

use std::collections::BTreeMap;

use abi::quic::{QuicDirection, QuicId};
use abi::{Event, Op};

use crate::faults::{NodeRole, Scenario};
use crate::node::SimNode;
use crate::quic::QuicScenario;

/// Counters that nothing in a simulation may move.
const NEVER: [&str; 7] = [
    "quic_out_malformed",
    "quic_tx_refused_malformed",
    "quic_tx_refused_number",
    "quic_tx_refused_keys",
    "quic_refused_keys",
    "quic_refused_does_not_fit",
    "quic_device_refused_protocol",
];

/// The packet numbers that a device delivered, for each entry with a reordering window.
///
/// They ascend, except for those that the device counts as late or duplicate. So removing at most
/// that many of an entry's numbers must leave an ascending sequence.
#[derive(Debug, Default)]
pub(crate) struct QuicOrderChecker {
    entries: BTreeMap<QuicId, LongestAscent>,
}

/// The longest increasing subsequence of the numbers so far, by patience sorting.
#[derive(Debug, Default)]
struct LongestAscent {
    /// At index `n - 1`: the lowest last number of an increasing subsequence of length `n`.
    ends: Vec<u64>,
    delivered: u64,
}

impl QuicOrderChecker {
    /// Notes an operation of the host.
    pub(crate) fn note_op(&mut self, op: &Op) {
        if let Op::QuicAdd(add) = op {
            if matches!(add.direction, QuicDirection::Receive { reorder: Some(_), .. }) {
                self.entries.insert(add.quic, LongestAscent::default());
            }
        }
    }

    /// Notes an event of the device.
    pub(crate) fn note_event(&mut self, event: &Event) {
        let Event::Received(received) = event else { return };
        let Some(opened) = received.quic.as_deref() else { return };
        let Some(ascent) = self.entries.get_mut(&opened.quic) else { return };
        for &number in &opened.numbers {
            ascent.delivered += 1;
            let at = ascent.ends.partition_point(|end| *end < number);
            match ascent.ends.get_mut(at) {
                Some(end) => *end = number,
                None => ascent.ends.push(number),
            }
        }
    }

    /// Returns the minimum number of packets that were out of order.
    fn out_of_order_min(&self) -> u64 {
        let strays = |ascent: &LongestAscent| ascent.delivered - ascent.ends.len() as u64;
        self.entries.values().map(strays).sum()
    }
}

/// Checks a machine; `long` is the number of clients' connections that sent enough to be offloaded.
///
/// # Errors
/// Describes the violation.
pub(super) fn check(
    node: &SimNode,
    role: NodeRole,
    scenario: &Scenario,
    quic: &QuicScenario,
    long: u64,
) -> Result<(), String> {
    let value = |name| node.counter(name);
    for name in NEVER {
        // An odd host reuses packet numbers; the device refuses, since a nonce must not encrypt
        // twice.
        let allowed = name == "quic_tx_refused_number" && scenario.lost_contexts > 0;
        if value(name) > 0 && !allowed {
            return Err(format!("{name} is {}", value(name)));
        }
    }
    let late = value("quic_behind") + value("quic_duplicates");
    if node.watch.quic_order.out_of_order_min() > late {
        let strays = node.watch.quic_order.out_of_order_min();
        return Err(format!("{strays} packets out of order, and {late} late or double"));
    }
    let is_server = role == NodeRole::Server;
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
    // A program that has restarted counts only since its restart.
    let lived_on = !scenario.server_restarts();
    if is_server && device.used && long > 0 && offloaded == 0 && lived_on {
        return Err(format!("{long} long connections, and the device was not asked"));
    }
    let sure = device.has_room() && scenario.resets == 0;
    if sure && value("quic_not_sealed") + value("tx_dropped_quic") > 0 {
        return Err(String::from("transmits were not sealed, though there was room"));
    }
    // Transmits whose disk read fails are not sent, and neither is anything without a route to the
    // peer.
    let whole = sure && !scenario.may_fail() && scenario.calm_net() && scenario.crowd.vanish == 0;
    if whole && sealed != asked {
        return Err(format!("{sealed} packets sealed of {asked} that were to be"));
    }
    if whole && is_server && long > 0 && device.used && (sealed == 0 || opened == 0) {
        return Err(format!("{sealed} packets encrypted, {opened} decrypted, without a reason"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strays_are_those_that_could_be_left_out() {
        for (numbers, strays) in [
            (&[1, 2, 5, 9][..], 0),
            (&[1, 5, 2, 6, 7], 1),
            (&[9, 1, 2, 3], 1),
            (&[3, 3], 1),
            (&[4, 3, 2, 1], 3),
        ] {
            let mut order = QuicOrderChecker::default();
            order.entries.insert(QuicId(1), LongestAscent::default());
            for &number in numbers {
                let packet = abi::PacketPool::new(0).copy(&[0; 60]).expect("it fits");
                let mut received = abi::ReceivedFrame::new(packet, abi::Checksum::Good, 0, 0);
                let opened = abi::quic::QuicDecrypted {
                    quic: QuicId(1),
                    numbers: std::iter::once(number).collect(),
                };
                received.quic = Some(Box::new(opened));
                order.note_event(&Event::Received(received));
            }
            assert_eq!(order.out_of_order_min(), strays, "{numbers:?}");
        }
    }
}
