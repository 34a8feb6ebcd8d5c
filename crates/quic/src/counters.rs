//! What an endpoint counts. Every drop and every fallback to software has its own counter.

use abi::Refusal;

use crate::congestion::Counts;

base::counters! {
    /// Counters of a QUIC endpoint.
    pub struct Counters {
        /// States that the code excludes: a bug of this endpoint, whatever it was sent.
        quic_internal_errors: alarm,
        /// Connections whose handshake was completed.
        quic_connections,
        /// Connection attempts turned away: as many as may be are open.
        quic_connections_refused: alarm,
        /// Connection attempts that had to prove their address first (Retry).
        quic_retries,
        /// Connection attempts that failed in their first packet.
        quic_handshakes_failed: alarm,
        /// Connections that the peer closed, both codes of no error included.
        quic_closed_by_peer,
        /// Connections that we closed.
        quic_closed_by_us,
        /// Connections that fell silent.
        quic_timed_out,
        /// Connections ended by an error of the protocol, or by a stateless reset.
        quic_failed,
        /// Times that a peer came from another address or port.
        quic_migrations,
        /// Datagrams received.
        quic_in_datagrams,
        /// Of those, the ones that the device had opened.
        quic_in_opened,
        /// Datagrams that the device opened for a connection that is gone, or that the host has
        /// taken back meanwhile: dropped.
        quic_in_orphaned,
        /// Datagrams that the device opened as of another connection, or another packet: dropped.
        quic_in_disagreed: alarm,
        /// Retry packets that a server got: whoever sent them, they are dropped.
        quic_in_retries_dropped: alarm,
        /// Datagrams of other versions that were answered with those that we speak.
        quic_versions_negotiated,
        /// Datagrams of other versions that were dropped: too short for an answer.
        quic_in_versions_dropped: alarm,
        /// Datagrams sent.
        quic_out_datagrams,
        /// Of those, the ones that the device seals.
        quic_out_for_device,
        /// Batches that the host seals because a datagram has pieces of more files, or of more
        /// places in them, than a transmit may have.
        quic_out_too_many_extents,
        /// Packets with file content that the host had to read: nobody else could any more.
        quic_out_late,
        /// Of those, the ones that were not needed any more when it was read, or could not be read.
        quic_out_late_dropped,
        /// Transmits with bytes of files that the device dropped, by no fault of one file: losses.
        quic_out_dropped: alarm,
        /// Acknowledgments of packets that had been counted as lost, by ranges: they were late.
        quic_losses_spurious,
        /// Losses that did not reduce the congestion window, since all their packets were late.
        quic_losses_spared,
        /// Reductions of the congestion window.
        quic_reductions,
        /// Of those, the ones that were undone, for the same reason.
        quic_reductions_undone,
        /// Datagrams that could not be understood after they were built, and were not sent.
        quic_out_malformed: alarm,
        /// Bytes of files that are the device's to read.
        quic_file_bytes_offloaded,
        /// Bytes of files that the host read.
        quic_file_bytes_software,
        /// Bytes of files that were the device's to read, and that the host had to read after all.
        quic_file_bytes_late,
        /// Streams reset because their file failed or changed.
        quic_file_failures: alarm,
        /// Times that a connection was handed to the device: again after a reset, or where there
        /// was no room.
        quic_offloaded,
        /// Generations of keys given to it after each direction's first.
        quic_rekeys,
        /// Connection IDs added and taken away there.
        quic_route_changes,
        /// Transmits that the device would not seal: the connection goes on in software.
        quic_not_sealed: alarm,
        /// Connections taken back because the device was reset.
        quic_device_resets: alarm,
        /// Directions that the device refused: its table is full.
        quic_device_refused_full: alarm,
        /// The same: it does not know the cipher.
        quic_device_refused_protocol: alarm,
        /// The same: it is switched off, or there is no engine.
        quic_device_refused_disabled,
        /// The same, for another reason.
        quic_device_refused_other: alarm,
        /// What the device said of connections that are gone.
        quic_events_ignored,
    }
}

impl Counters {
    /// Counts what became of losses.
    pub(crate) const fn count_losses(&mut self, counts: Counts) {
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
