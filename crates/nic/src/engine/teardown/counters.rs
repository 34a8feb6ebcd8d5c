//! Counters of connection tear-down.

base::counters! {
    /// Counters of the tear-down engine.
    pub(crate) struct TeardownCounters {
        /// Connections taken over.
        teardown_begun,
        /// Refused: the table is full.
        teardown_refused_table_full: alarm,
        /// Refused: beyond the engine's limits, or inconsistent.
        teardown_refused_unfit: alarm,
        /// Connections closed in both directions and acknowledged.
        teardown_closed,
        /// Connections reset by the peer.
        teardown_reset_by_peer,
        /// Connections reset because the peer sent data that the host had not asked to discard, or
        /// more than its bound.
        teardown_reset_late_data: alarm,
        /// Bytes that peers sent after the hand-over and that were discarded.
        teardown_late_data_bytes,
        /// Segments of such data that arrived out of order and are left to be retransmitted.
        teardown_late_data_out_of_order,
        /// Connections reset because retransmissions were not acknowledged.
        teardown_timed_out,
        /// Connections reset because the host shut down.
        teardown_aborted,
        /// Connections dropped because the peer did not close in time.
        teardown_fin_wait_expired,
        /// Retransmissions after a time-out.
        teardown_retransmits,
        /// Reductions of the segment size because segments were lost repeatedly.
        teardown_mtu_black_holes,
        /// Retransmissions after three duplicate acknowledgments.
        teardown_dup_ack_retransmits,
        /// Challenge ACKs sent (RFC 5961), without the answers to keep-alives.
        teardown_challenge_acks,
        /// Challenge ACKs suppressed by the rate limit.
        teardown_challenge_acks_limited,
        /// Segments dropped for an old timestamp: RFC 7323 section 5.
        teardown_paws_drops,
        /// Segments outside the window.
        teardown_out_of_window,
        /// Connections that entered TIME-WAIT.
        teardown_time_wait_entered,
        /// TIME-WAIT entries whose tuple was reused by a new connection: RFC 6191.
        teardown_time_wait_reused,
        /// TIME-WAIT entries evicted because the table was full.
        teardown_time_wait_evicted,
        /// Summary events sent to hosts.
        teardown_sums,
        /// States that cannot occur: each count is a bug.
        nic_internal_errors,
    }
}
