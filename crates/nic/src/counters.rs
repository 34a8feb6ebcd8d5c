//! Counters of the pipeline. Each engine has its own, in its folder.

use abi::steering::SteeringReason;
use abi::{Checksum, ReceivedFrame};

/// Concatenates the alarm names of the parts of one engine.
pub(crate) const fn concat_alarms<const N: usize>(parts: &[&[&'static str]]) -> [&'static str; N] {
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
    /// Counters that no input can raise.
    pub(crate) struct InternalCounters {
        /// States that cannot occur; each count is a bug. Engines count theirs under the same name,
        /// and the device shows the sum ([`sum_internal_errors`]).
        nic_internal_errors: alarm,
    }
}

/// Name of the counter of internal errors, in every part of the device.
const INTERNAL_ERRORS: &str = "nic_internal_errors";

/// Passes the counters of the device's parts to `f`, with their internal errors as one sum.
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
    /// Received frames that were dropped before any engine saw them.
    pub(crate) struct RxCounters {
        /// Dropped: addressed to another machine.
        rx_dropped_not_for_us,
        /// Dropped: shorter than its headers.
        rx_dropped_truncated: alarm,
        /// Dropped: neither IP nor ARP.
        rx_dropped_unknown_ethertype,
        /// Dropped: the IP version does not match the EtherType.
        rx_dropped_bad_version: alarm,
        /// Dropped: a length field is wrong.
        rx_dropped_bad_length: alarm,
        /// Dropped: the IPv4 header checksum is wrong.
        rx_dropped_bad_header_checksum: alarm,
        /// Dropped: too many IPv6 extension headers.
        rx_dropped_bad_extension_header: alarm,
        /// Dropped: malformed in another way.
        rx_dropped_malformed: alarm,
    }
}

base::counters! {
    /// Frames handed over between the devices of several queues.
    pub(crate) struct SteeringCounters {
        /// Received frames of other queues, for their devices.
        rx_steered_out,
        /// Frames of the device's own queue that other devices received.
        rx_steered_in,
        /// Dropped: the device of the frame's queue had no room for it.
        rx_steered_dropped,
        /// Part of `rx_steered_out`: segments of older flows, for the former queue of an entry that
        /// was moved.
        rx_steered_former,
        /// Part of `rx_steered_out`: segments that the former queue's host has no connection for,
        /// back to the current queue.
        rx_steered_returned,
        /// Entries of the steering that were moved away from this queue, and in which no connection
        /// of it is left.
        rx_steered_entries_released,
    }
}

impl SteeringCounters {
    /// Adds `change` to the counters of frames that are handed over for this reason.
    pub(crate) const fn count_out(&mut self, reason: SteeringReason, change: u64) {
        self.rx_steered_out = self.rx_steered_out.wrapping_add(change);
        let counter = match reason {
            SteeringReason::Current | SteeringReason::TornDown => return,
            SteeringReason::Former => &mut self.rx_steered_former,
            SteeringReason::Returned => &mut self.rx_steered_returned,
        };
        *counter = counter.wrapping_add(change);
    }
}

base::counters! {
    /// Received frames that are for a host.
    pub(crate) struct DeliveryCounters {
        /// Frames delivered to a host queue.
        rx_packets,
        /// Bytes of these frames.
        rx_bytes,
        /// Frames whose transport checksum is correct, verified by the device or by the link.
        rx_checksum_good,
        /// Frames whose transport checksum is wrong; they are delivered and marked.
        rx_checksum_bad: alarm,
        /// Dropped: the event queue of the host is full.
        rx_dropped_overrun: alarm,
    }
}

impl DeliveryCounters {
    /// Counts a frame that was delivered to a host's queue.
    pub(crate) const fn count(&mut self, received: &ReceivedFrame) {
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
    /// Jobs of crypto workers; zero without workers.
    pub(crate) struct CryptoJobCounters {
        /// Jobs that workers completed.
        crypto_jobs_worker,
        /// Jobs that the device's own thread ran, because the workers were busy or the job was
        /// short.
        crypto_jobs_inline,
        /// Jobs that a worker could not complete, because it panicked. Encryption was repeated by
        /// the device's own thread.
        crypto_jobs_failed: alarm,
        /// Jobs that did not come back from the workers.
        crypto_jobs_lost: alarm,
        /// Received frames dropped with a job that failed or was lost.
        crypto_frames_lost: alarm,
        /// Transmits dropped with a job that was lost, after they were reported as sent.
        crypto_runs_lost: alarm,
    }
}

base::counters! {
    /// Transmits, and the packets that they became.
    pub(crate) struct TxCounters {
        /// Packets given to the link, counted after segmentation by the device or by the link.
        tx_packets,
        /// Bytes of these packets, headers included.
        tx_bytes,
        /// Transmits sent.
        tx_transmits,
        /// Transmits of more than one packet.
        tx_tso_transmits,
        /// Runs that were too long for the link as one frame and were sent in shorter ones.
        tx_long_runs_refused,
        /// Transmits that had to wait: for a disk, for memory, or behind another of their flow.
        tx_waits,
        /// Echoes of transmits that were sent.
        tx_echoes,
        /// Dropped: malformed operation (headers, sizes, offsets).
        tx_dropped_malformed: alarm,
        /// Dropped: bytes of a file could not be read.
        tx_dropped_file,
        /// Dropped: the layer-5 engine could not complete the transmit.
        tx_dropped_l5o: alarm,
        /// Dropped: its QUIC packets could not be encrypted. The engine's counters have the
        /// reasons.
        tx_dropped_quic: alarm,
        /// Dropped: queued behind a dropped transmit of the same flow.
        tx_dropped_flow_failed,
        /// Dropped: more transmits wait than the configuration allows, because the driver ignored
        /// `can_take_op`.
        tx_dropped_table_full: alarm,
    }
}
