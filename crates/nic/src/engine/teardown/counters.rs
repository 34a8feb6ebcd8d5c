//! Counters of connection tear-down.

base::counters! {
    /// What the engine did.
    pub(crate) struct TeardownCounters {
        /// Connections taken over.
        teardown_begun,
        /// Refused: the table is full.
        teardown_refused_table_full: alarm,
        /// Refused: more than the engine takes, or numbers that contradict each other.
        teardown_refused_unfit: alarm,
        /// Ended with both directions closed and acknowledged.
        teardown_closed,
        /// Ended by the peer's reset.
        teardown_reset_by_peer,
        /// Reset, since the peer sent data and the host had not asked to discard it, or more than
        /// that.
        teardown_reset_late_data: alarm,
        /// Bytes that peers sent after the hand-over and that were discarded.
        teardown_late_data_bytes,
        /// Segments of such data that came before what precedes them: the peer sends them again.
        teardown_late_data_out_of_order,
        /// Reset, since nothing was acknowledged however often it was sent.
        teardown_timed_out,
        /// Reset, since the host ended.
        teardown_aborted,
        /// Forgotten, since the peer did not close in time.
        teardown_fin_wait_expired,
        /// Retransmissions after a time-out.
        teardown_retransmits,
        /// Retransmissions after three duplicate acknowledgments.
        teardown_dup_ack_retransmits,
        /// Challenge acknowledgments: RFC 5961. What answers a keep-alive is none.
        teardown_challenge_acks,
        /// Of these, not sent because one went out just before.
        teardown_challenge_acks_limited,
        /// Segments dropped for an old timestamp: RFC 7323 section 5.
        teardown_paws_drops,
        /// Segments outside the window.
        teardown_out_of_window,
        /// Connections that went into TIME-WAIT.
        teardown_time_wait_entered,
        /// Of these, whose tuple a new connection took over early: RFC 6191.
        teardown_time_wait_reused,
        /// Of these, forgotten early since there were too many.
        teardown_time_wait_evicted,
        /// Events that told the host of ends.
        teardown_sums,
        /// States that the code excludes: each is a bug.
        nic_internal_errors,
    }
}
