//! Counters of the QUIC engine. Every way in which a datagram is not opened, or a transmit is not
//! sealed, has its own.

base::counters! {
    /// What the QUIC engine did.
    pub(crate) struct QuicCounters {
        /// Entries made, of both directions.
        quic_added,
        /// Entries that the host took away.
        quic_removed,
        /// Generations of keys added.
        quic_rekeyed,
        /// Refused: the table is full.
        quic_refused_full: alarm,
        /// Refused: the provider does not know the suite, or a key of that length.
        quic_refused_keys: alarm,
        /// Refused: a name or route that is taken, a second length of connection IDs for a port,
        /// too many routes, keys of the phase that is current.
        quic_refused_does_not_fit: alarm,
        /// Operations for entries or routes that are not there.
        quic_ops_ignored: alarm,

        /// Datagrams opened.
        quic_rx_opened,
        /// Bytes of them, UDP's header not counted.
        quic_rx_opened_bytes,
        /// Datagrams appended to the frame before them.
        quic_rx_merged,
        /// As it came: a wrong or strange UDP length, a wrong checksum, or merged by the wire.
        quic_rx_bad_udp,
        /// As it came: no short header at its begin.
        quic_rx_not_short,
        /// As it came: no entry for its connection ID, or its addresses.
        quic_rx_unknown_id,
        /// As it came: too short for header protection's sample.
        quic_rx_too_short: alarm,
        /// As it came: of a generation of keys that is not here.
        quic_rx_unknown_keys,
        /// As it came: it does not verify. Stateless resets are among these, and packets that are
        /// older than a change of keys.
        quic_rx_bad_tag,

        /// Datagrams that came before others with lower numbers, and waited.
        quic_waited,
        /// Nanoseconds that they waited, together.
        quic_waited_ns,
        /// Of these, delivered in order when those before them had come.
        quic_reordered,
        /// Delivered at once: their number was behind what had been delivered (late, or twice).
        quic_behind,
        /// Delivered at once: one with the same number waits.
        quic_duplicates,
        /// Gaps given up: a number too far ahead came.
        quic_gap_given_up_packets,
        /// Gaps given up: too many bytes waited.
        quic_gap_given_up_bytes,
        /// Gaps given up: a packet had waited for too long.
        quic_gap_given_up_time,
        /// Gaps given up: too many datagrams waited, over all connections.
        quic_gap_given_up_full,

        /// Packets sealed.
        quic_tx_sealed,
        /// Bytes of their datagrams.
        quic_tx_sealed_bytes,
        /// Transmits dropped: no such entry.
        quic_tx_refused_unknown: alarm,
        /// Transmits dropped: a packet number that is not above those before it.
        quic_tx_refused_number: alarm,
        /// Transmits dropped: a packet that does not lie in its datagram, is too short for the
        /// sample, or has another header than the host said; not UDP; too long for the wire.
        quic_tx_refused_malformed: alarm,
        /// Transmits dropped: no keys of the packet's phase.
        quic_tx_refused_keys: alarm,
        /// States that the code excludes: each is a bug.
        nic_internal_errors,
    }
}
