//! Counters of splicing. Every reason to drop a packet has its own.

base::counters! {
    /// What splicing did.
    pub(crate) struct SpliceCounters {
        /// Pairs taken over.
        splice_begun,
        /// Refused: the table is full.
        splice_refused_full: alarm,
        /// Refused: one of the tuples, or the name, is there already, or both are one.
        splice_refused_taken: alarm,
        /// Refused: numbers, addresses or sizes that make no sense.
        splice_refused_malformed: alarm,
        /// Refused: one side has timestamps and the other has none.
        splice_refused_options,
        /// Operations for pairs that are not there, or not at that point.
        splice_ops_ignored,
        /// Packets relayed, counted as they came over the wire: before any were merged.
        splice_relayed_packets,
        /// Payload bytes of them.
        splice_relayed_bytes,
        /// Frames whose checksum was changed by difference.
        splice_checksums_adjusted,
        /// Frames whose checksum had to be summed anew, or was left to the wire: it had never been
        /// filled in, or the frame was cut.
        splice_checksums_summed,
        /// Frames with segments longer than the other side takes: they were cut.
        splice_cut,
        /// SACK options left out: the receiver did not agree to them, or they name bytes that it
        /// did not send on this pair.
        splice_sack_left_out,
        /// Frames kept while a pair began.
        splice_kept_frames_total,
        /// Dropped: more came while a pair began than may be kept.
        splice_dropped_kept_full: alarm,
        /// Dropped: a frame that came with `SpliceStart` and is not of the pair.
        splice_dropped_not_of_pair: alarm,
        /// Dropped: a malformed TCP header.
        splice_dropped_malformed: alarm,
        /// Dropped: the hop limit is used up.
        splice_dropped_hop_limit: alarm,
        /// Dropped: a SYN within a connection (RFC 5961 section 4).
        splice_dropped_syn,
        /// Dropped: a reset whose number is not exactly what the receiver expects (RFC 5961 section
        /// 3).
        splice_dropped_blind_reset,
        /// Dropped: numbers outside the receiver's window (RFC 9293 section 3.10.7.4).
        splice_dropped_out_of_window,
        /// Dropped: it acknowledges what was never relayed, or what is long past (RFC 5961 section
        /// 5).
        splice_dropped_bad_ack,
        /// Dropped: it acknowledges nothing.
        splice_dropped_no_ack: alarm,
        /// Dropped: the wire is behind.
        splice_dropped_wire_full: alarm,
        /// Challenge acknowledgments sent.
        splice_challenges,
        /// Those that were not sent because one had just been.
        splice_challenges_limited,
        /// Resets sent: a pair ended by the host or by time.
        splice_resets_sent,
        /// Pairs that ended because both directions were closed.
        splice_closed,
        /// Pairs that a side reset.
        splice_reset_by_peer,
        /// Pairs in which nothing moved for too long.
        splice_idle_timeouts,
        /// Pairs that the host ended.
        splice_unspliced,
        /// Of the closed ones, those that were forgotten early: to make room, or because one of
        /// their tuples was used again.
        splice_lingers_cut_short,
        /// States that the code excludes: each is a bug.
        nic_internal_errors,
    }
}
