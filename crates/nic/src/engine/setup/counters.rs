//! Counters of connection set-up.

base::counters! {
    /// Outcomes of segments to ports whose SYNs the device answers. Each segment is counted once,
    /// except resets, SYN-ACKs and segments without ACK, which always go to the host.
    pub(crate) struct SetupCounters {
        /// SYNs answered with a cookie.
        setup_syns_answered,
        /// SYNs dropped because the link is congested.
        setup_syns_dropped: alarm,
        /// SYNs passed to the host: no timestamps to carry the options.
        setup_passed_no_timestamps,
        /// SYNs passed to the host: with payload.
        setup_passed_payload,
        /// SYNs passed to the host: with a TCP Fast Open option.
        setup_passed_fast_open,
        /// SYNs passed to the host: the MSS is below the smallest that a cookie can encode.
        setup_passed_small_mss,
        /// SYNs passed to the host: with FIN, RST or URG.
        setup_passed_odd_flags: alarm,
        /// SYNs passed to the host: from or to a group address, or from an invalid address.
        setup_passed_bad_source: alarm,
        /// SYNs passed to the host: with a VLAN tag.
        setup_passed_vlan,
        /// Segments passed to the host: malformed TCP header.
        setup_passed_malformed: alarm,
        /// Acknowledgments with a valid cookie, including retransmitted ones.
        setup_established,
        /// Acknowledgments with a valid cookie and no payload, withheld from a host that waits for
        /// payload.
        setup_deferred,
        /// Segments that acknowledge a valid cookie and are not the peer's first. The host drops
        /// those of connections that it does not have yet (`tcp_first_segment_missing`).
        setup_later_acks,
        /// Segments with ACK and no valid cookie, passed to the host. Nearly all belong to
        /// established connections; the host counts the others as `tcp_no_connection`.
        setup_passed_acks,
        /// Segments with a plausible acknowledgment number but no timestamps, passed to the host:
        /// they belong to connections that the host set up.
        setup_acks_no_timestamps,
        /// Listeners refused.
        setup_refused: alarm,
    }
}
