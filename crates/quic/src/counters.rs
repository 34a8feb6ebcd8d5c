//! Counters of an endpoint. Every drop and every fallback to software has its own counter.

use abi::Refusal;

use crate::congestion::LossCounts;

base::counters! {
    /// Counters of a QUIC endpoint.
    pub struct QuicEndpointCounters {
        /// States that cannot occur, whatever the peer sends: a bug in this endpoint.
        quic_internal_errors: alarm,
        /// Connections whose handshake completed.
        quic_connections,
        /// Connection attempts refused because the maximum number of connections was open.
        quic_connections_refused: alarm,
        /// Connection attempts answered with a Retry packet, for address validation.
        quic_retries,
        /// Connection attempts that failed at their first packet.
        quic_handshakes_failed: alarm,
        /// Connections that the peer closed, with or without an error code.
        quic_closed_by_peer,
        /// Connections that we closed.
        quic_closed_by_us,
        /// Connections that reached their idle timeout.
        quic_timed_out,
        /// Connections ended by a protocol error or a stateless reset.
        quic_failed,
        /// Changes of a peer's address or port.
        quic_migrations,
        /// Datagrams received.
        quic_in_datagrams,
        /// Received datagrams that the device had decrypted.
        quic_in_opened,
        /// Datagrams dropped because the device decrypted them for a connection that is gone, or
        /// for a receive offload that the host has removed.
        quic_in_orphaned,
        /// Datagrams dropped because the device attributed them to another connection or packet
        /// number, or to none.
        quic_in_disagreed: alarm,
        /// Retry packets dropped by an endpoint that accepts connections: a server cannot
        /// authenticate them.
        quic_in_retries_dropped: alarm,
        /// Datagrams of unsupported versions answered with a Version Negotiation packet.
        quic_versions_negotiated,
        /// Datagrams of unsupported versions dropped: too short for an answer, or received by a
        /// client.
        quic_in_versions_dropped: alarm,
        /// Datagrams sent.
        quic_out_datagrams,
        /// Datagrams sent for the device to encrypt.
        quic_out_for_device,
        /// Datagrams that the host encrypts because they need more file extents than a transmit may
        /// have.
        quic_out_too_many_extents,
        /// Packets whose file content the host had to read because the device could not.
        quic_out_late,
        /// Packets dropped because the host's read of their file content failed.
        quic_out_late_dropped,
        /// Transmits with file content that the device dropped for a reason other than a failure of
        /// one known file. They count as packet losses.
        quic_out_dropped: alarm,
        /// ACK ranges with packets that had been declared lost and were only late.
        quic_losses_spurious,
        /// Losses that did not reduce the congestion window because all their packets were late.
        quic_losses_spared,
        /// Reductions of the congestion window.
        quic_reductions,
        /// Reductions of the congestion window that were undone because all packets were late.
        quic_reductions_undone,
        /// Datagrams not sent because they could not be parsed after they were built.
        quic_out_malformed: alarm,
        /// File bytes that the device is to read.
        quic_file_bytes_offloaded,
        /// File bytes that the host read.
        quic_file_bytes_software,
        /// File bytes left to the device that the host had to read after all.
        quic_file_bytes_late,
        /// Streams reset because their file failed or changed.
        quic_file_failures: alarm,
        /// Offloads of connections to the device, including those repeated after a device reset or
        /// after a refusal for lack of room.
        quic_offloaded,
        /// Key generations given to the device after each direction's first.
        quic_rekeys,
        /// Connection IDs added to or removed from an offloaded connection's routes in the device.
        quic_route_changes,
        /// Transmits that the device could not encrypt; their connections continue in software.
        quic_not_sealed: alarm,
        /// Connections that returned to software because the device was reset.
        quic_device_resets: alarm,
        /// Offloads refused per direction because the device's table is full.
        quic_device_refused_full: alarm,
        /// Offloads refused per direction because the cipher is unknown.
        quic_device_refused_protocol: alarm,
        /// Offloads refused per direction because the engine is disabled or missing.
        quic_device_refused_disabled,
        /// Offloads refused per direction for another reason.
        quic_device_refused_other: alarm,
        /// Device events about connections that are gone.
        quic_events_ignored,
    }
}

impl QuicEndpointCounters {
    /// Adds the results of loss detection.
    pub(crate) const fn count_losses(&mut self, counts: LossCounts) {
        self.quic_reductions += counts.reductions;
        self.quic_losses_spurious += counts.spurious;
        self.quic_losses_spared += counts.spared;
        self.quic_reductions_undone += counts.undone;
    }

    /// Counts a refusal by its reason.
    pub(crate) const fn count_refusal(&mut self, why: Refusal) {
        *match why {
            Refusal::TableFull => &mut self.quic_device_refused_full,
            Refusal::UnknownProtocol => &mut self.quic_device_refused_protocol,
            Refusal::Disabled | Refusal::NotSupported => &mut self.quic_device_refused_disabled,
            _ => &mut self.quic_device_refused_other,
        } += 1;
    }
}
