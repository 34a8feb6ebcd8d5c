//! Counters of the pipeline, and the list of all of the device's counters that are alarms. Those of
//! an engine are in its own folder.

use crate::engine::file::counters::FileCounters;
use crate::engine::l5o::counters::L5oCounters;
use crate::engine::nvme_tcp::counters::NvmeTcpCounters;
use crate::engine::nvme_tcp::tx::NvmeTxCounters;
use crate::engine::quic::counters::QuicCounters;
use crate::engine::setup::counters::SetupCounters;
use crate::engine::splice::counters::SpliceCounters;
use crate::engine::teardown::counters::TeardownCounters;

/// The names of the device's counters that honest traffic never moves, by part.
pub const ALARMS: [&[&str]; 10] = [
    RxCounters::ALARMS,
    TxCounters::ALARMS,
    FileCounters::ALARMS,
    L5oCounters::ALARMS,
    NvmeTxCounters::ALARMS,
    NvmeTcpCounters::ALARMS,
    QuicCounters::ALARMS,
    SetupCounters::ALARMS,
    TeardownCounters::ALARMS,
    SpliceCounters::ALARMS,
];

base::counters! {
    /// What happened to received frames.
    pub(crate) struct RxCounters {
        /// Frames delivered to a host queue.
        rx_packets,
        /// Their bytes.
        rx_bytes,
        /// Frames whose transport checksum is right, by our sum or by the wire's word.
        rx_checksum_good,
        /// Frames whose transport checksum is wrong; they are delivered with that mark.
        rx_checksum_bad: alarm,
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
        /// Dropped: the host does not take its events.
        rx_dropped_overrun: alarm,
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
