//! Counters of connection set-up.

base::counters! {
    /// What became of segments for ports whose SYNs the device answers. Each counts once, but for
    /// resets, SYN-ACKs and segments without ACK: those are the host's, always.
    pub(crate) struct SetupCounters {
        /// SYNs answered with a cookie.
        setup_syns_answered,
        /// SYNs dropped, since the wire does not take what it is given already.
        setup_syns_dropped: alarm,
        /// SYNs for the host: no timestamps, so nowhere to carry the options.
        setup_passed_no_timestamps,
        /// SYNs for the host: with payload.
        setup_passed_payload,
        /// SYNs for the host: with a TCP Fast Open option.
        setup_passed_fast_open,
        /// SYNs for the host: a segment size below the least that a cookie can say.
        setup_passed_small_mss,
        /// SYNs for the host: with FIN, RST or URG.
        setup_passed_odd_flags: alarm,
        /// SYNs for the host: from or to a group, or from an address that no peer has.
        setup_passed_bad_source: alarm,
        /// SYNs for the host: in a VLAN.
        setup_passed_vlan,
        /// Segments for the host: the TCP header is malformed.
        setup_passed_malformed: alarm,
        /// Acknowledgments that brought a cookie back; retransmitted ones count again.
        setup_established,
        /// The same without payload, kept from a host that waits for payload.
        setup_deferred,
        /// Segments with ACK for the host: they bring no cookie back. Nearly all are of established
        /// connections; the host counts the others as `tcp_no_connection`.
        setup_passed_acks,
        /// The same without timestamps: of connections that the host set up.
        setup_acks_no_timestamps,
        /// Ports that were not taken.
        setup_refused: alarm,
    }
}
