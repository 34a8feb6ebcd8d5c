//! Counters of the pipeline. Those of an engine are in its own folder.

use abi::{Checksum, Received};

/// Joins the alarms of parts of one engine.
pub(crate) const fn join<const N: usize>(parts: &[&[&'static str]]) -> [&'static str; N] {
    let mut all = [""; N];
    let (mut part, mut at, mut to) = (0, 0, 0);
    while part < parts.len() {
        if at < parts[part].len() {
            all[to] = parts[part][at];
            (at, to) = (at + 1, to + 1);
        } else {
            (part, at) = (part + 1, 0);
        }
    }
    all
}

base::counters! {
    /// What no input causes.
    pub(crate) struct InternalCounters {
        /// States that the code excludes: each is a bug. An engine counts its own under the same
        /// name, and the device shows the sum ([`sum_internal_errors`]).
        nic_internal_errors: alarm,
    }
}

/// The name of the counter of internal errors, in every part of the device.
const INTERNAL_ERRORS: &str = "nic_internal_errors";

/// Passes counters of the device's parts on to `f`, and those of internal errors as one sum.
pub(crate) fn sum_internal_errors(
    parts: impl FnOnce(&mut dyn FnMut(&'static str, u64)),
    f: &mut dyn FnMut(&'static str, u64),
) {
    let mut sum = 0;
    parts(&mut |name, value| {
        if name == INTERNAL_ERRORS {
            sum += value;
        } else {
            f(name, value);
        }
    });
    f(INTERNAL_ERRORS, sum);
}

base::counters! {
    /// What happened to received frames before any engine saw them.
    pub(crate) struct RxCounters {
        /// Dropped: sent to another machine.
        rx_dropped_not_for_us,
        /// Dropped: ends before its headers do.
        rx_dropped_truncated: alarm,
        /// Dropped: neither IP nor ARP.
        rx_dropped_unknown_ethertype,
        /// Dropped: the IP version does not fit the EtherType.
        rx_dropped_bad_version: alarm,
        /// Dropped: a length field is wrong.
        rx_dropped_bad_length: alarm,
        /// Dropped: the IPv4 header checksum is wrong.
        rx_dropped_bad_header_checksum: alarm,
        /// Dropped: a fragment.
        rx_dropped_fragment,
        /// Dropped: too many IPv6 extension headers.
        rx_dropped_bad_extension_header: alarm,
        /// Dropped: malformed in another way.
        rx_dropped_malformed: alarm,
    }
}

base::counters! {
    /// What became of received frames that are for a host.
    pub(crate) struct DeliveryCounters {
        /// Frames delivered to a host queue.
        rx_packets,
        /// Their bytes.
        rx_bytes,
        /// Frames whose transport checksum is right, by our sum or by the wire's word.
        rx_checksum_good,
        /// Frames whose transport checksum is wrong; they are delivered with that mark.
        rx_checksum_bad: alarm,
        /// Dropped: the host does not take its events.
        rx_dropped_overrun: alarm,
    }
}

impl DeliveryCounters {
    /// Notes that a host's queue has taken a frame.
    pub(crate) const fn count(&mut self, received: &Received) {
        self.rx_packets += 1;
        self.rx_bytes += received.packet.len() as u64;
        match received.checksum {
            Checksum::Good | Checksum::Partial => self.rx_checksum_good += 1,
            Checksum::Bad => self.rx_checksum_bad += 1,
            Checksum::Unchecked => {}
        }
    }
}

base::counters! {
    /// What happened to transmits.
    pub(crate) struct TxCounters {
        /// Packets given to the wire, counted as they leave it: after segmentation, whoever
        /// segments.
        tx_packets,
        /// Their bytes, with headers.
        tx_bytes,
        /// Transmits sent.
        tx_transmits,
        /// Transmits of more than one packet.
        tx_tso_transmits,
        /// Runs that the wire found too long for one frame; they went in shorter ones.
        tx_long_runs_refused,
        /// Transmits that had to wait: for a disk, for memory, or behind another of their flow.
        tx_waits,
        /// Echoes of transmits that left.
        tx_echoes,
        /// Dropped: the operation makes no sense (headers, sizes, offsets).
        tx_dropped_malformed: alarm,
        /// Dropped: bytes of a file could not be had.
        tx_dropped_file,
        /// Dropped: an engine for a protocol above TCP could not complete them.
        tx_dropped_l5o: alarm,
        /// Dropped: QUIC packets that could not be sealed. The engine's counters say why.
        tx_dropped_quic: alarm,
        /// Dropped: queued behind a dropped transmit of the same flow.
        tx_dropped_flow_failed,
        /// Dropped: more transmits wait than the configuration allows; the driver went on past
        /// `can_take_op`.
        tx_dropped_table_full: alarm,
    }
}
