//! Counters of the QUIC engine. Every reason for not decrypting a datagram, or dropping a transmit,
//! has its own.

base::counters! {
    /// Counters of the QUIC engine.
    pub(crate) struct QuicCounters {
        /// Entries added, in both directions.
        quic_added,
        /// Entries removed by hosts.
        quic_removed,
        /// Key generations added.
        quic_rekeyed,
        /// Refused: the table is full.
        quic_refused_full: alarm,
        /// Refused: the provider does not support the suite, or a key of that length.
        quic_refused_keys: alarm,
        /// Refused: an ID or route in use, a second connection ID length for a port, too many
        /// routes, or keys of the current phase.
        quic_refused_does_not_fit: alarm,
        /// Operations for entries or routes that do not exist.
        quic_ops_ignored: alarm,

        /// Datagrams decrypted.
        quic_rx_opened,
        /// Bytes of decrypted datagrams, without the UDP header.
        quic_rx_opened_bytes,
        /// Datagrams appended to the frame before them.
        quic_rx_merged,
        /// Passed unchanged: wrong UDP length, wrong checksum, or merged by the link.
        quic_rx_bad_udp,
        /// Passed unchanged: no short header at its start.
        quic_rx_not_short,
        /// Passed unchanged: no entry for the connection ID or the tuple.
        quic_rx_unknown_id,
        /// Passed unchanged: too short for the header protection sample.
        quic_rx_too_short: alarm,
        /// Passed unchanged: protected with a key generation that is not installed.
        quic_rx_unknown_keys,
        /// Passed unchanged: the tag is wrong. Includes stateless resets and packets from before a
        /// key update.
        quic_rx_bad_tag,
        /// Datagrams that workers decrypted with the wrong packet number or keys, because of
        /// packets that arrived just before; they were decrypted again.
        quic_rx_ahead_wrong,

        /// Datagrams that waited for lower packet numbers.
        quic_waited,
        /// Total time that they waited, in nanoseconds.
        quic_waited_ns,
        /// Waiting datagrams delivered in order after the missing ones had arrived.
        quic_reordered,
        /// Datagrams delivered at once because their number is below those delivered: late or
        /// duplicate.
        quic_behind,
        /// Datagrams delivered at once because one with the same number is waiting.
        quic_duplicates,
        /// Gaps abandoned because a number beyond the window arrived.
        quic_gap_given_up_packets,
        /// Gaps abandoned because too many bytes waited.
        quic_gap_given_up_bytes,
        /// Gaps abandoned because a datagram had waited for too long.
        quic_gap_given_up_time,
        /// Gaps abandoned because too many datagrams waited, over all connections.
        quic_gap_given_up_full,

        /// Packets encrypted.
        quic_tx_sealed,
        /// Bytes of their datagrams.
        quic_tx_sealed_bytes,
        /// Transmits dropped: no such entry.
        quic_tx_refused_unknown: alarm,
        /// Transmits dropped: a packet number not above the previous ones.
        quic_tx_refused_number: alarm,
        /// Transmits dropped: a packet outside its datagram, too short for the sample, or with
        /// another header than described; not UDP; or too long for the link.
        quic_tx_refused_malformed: alarm,
        /// Transmits dropped: no keys for the packet's key phase.
        quic_tx_refused_keys: alarm,
        /// States that cannot occur: each count is a bug.
        nic_internal_errors,
    }
}
