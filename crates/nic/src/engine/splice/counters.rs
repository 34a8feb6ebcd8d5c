//! Counters of splicing. Every reason for dropping a packet has its own.

base::counters! {
    /// Counters of the splice engine.
    pub(crate) struct SpliceCounters {
        /// Pairs taken over.
        splice_begun,
        /// Refused: the table is full.
        splice_refused_full: alarm,
        /// Refused: a tuple or the ID is in use, or both tuples are equal.
        splice_refused_taken: alarm,
        /// Refused: invalid numbers, addresses or sizes.
        splice_refused_malformed: alarm,
        /// Refused: only one side has timestamps.
        splice_refused_options,
        /// Operations for pairs that do not exist or are in another state.
        splice_ops_ignored,
        /// Packets relayed, counted before the link merged any.
        splice_relayed_packets,
        /// Payload bytes relayed.
        splice_relayed_bytes,
        /// Frames rewritten in their received buffer and sent from it. Not those that the device
        /// segments, or whose IP version, options or VLAN tag change.
        splice_relayed_in_place,
        /// Frames that joined one of their flow that waited for the link: payload that continued a
        /// run, or an acknowledgment that superseded another one.
        splice_merged,
        /// Frames whose checksum was updated incrementally.
        splice_checksums_adjusted,
        /// Frames whose checksum was computed, or left to the link, because it was not filled in or
        /// the frame was segmented.
        splice_checksums_summed,
        /// Frames segmented because their segments exceed the other side's MSS.
        splice_cut,
        /// SACK options removed because the receiver did not negotiate them or did not send the
        /// named bytes on this pair.
        splice_sack_left_out,
        /// Frames kept while a pair was starting.
        splice_kept_frames_total,
        /// Dropped: more frames arrived while a pair was starting than may be kept.
        splice_dropped_kept_full: alarm,
        /// Dropped: a frame returned with `SpliceStart` that does not belong to the pair.
        splice_dropped_not_of_pair: alarm,
        /// Dropped: malformed TCP header.
        splice_dropped_malformed: alarm,
        /// Dropped: hop limit exceeded.
        splice_dropped_hop_limit: alarm,
        /// Dropped: SYN within a connection (RFC 5961 section 4).
        splice_dropped_syn,
        /// Dropped: a reset whose number is not exactly the one expected (RFC 5961 section 3).
        splice_dropped_blind_reset,
        /// Dropped: sequence number outside the receiver's window (RFC 9293 section 3.10.7.4).
        splice_dropped_out_of_window,
        /// Dropped: acknowledges bytes that were never relayed, or is too old (RFC 5961 section 5).
        splice_dropped_bad_ack,
        /// Dropped: no ACK flag.
        splice_dropped_no_ack: alarm,
        /// Dropped: the link is congested.
        splice_dropped_link_full: alarm,
        /// Challenge ACKs sent.
        splice_challenges,
        /// Challenge ACKs suppressed by the rate limit.
        splice_challenges_limited,
        /// Resets sent because the host or a time-out ended a pair.
        splice_resets_sent,
        /// Pairs ended because both directions were closed.
        splice_closed,
        /// Pairs reset by a peer.
        splice_reset_by_peer,
        /// Pairs ended by the idle time-out.
        splice_idle_timeouts,
        /// Pairs ended by the host.
        splice_unspliced,
        /// Closed pairs removed early, to make room or because one of their tuples was reused.
        splice_lingers_cut_short,
        /// States that cannot occur: each count is a bug.
        nic_internal_errors,
    }
}
