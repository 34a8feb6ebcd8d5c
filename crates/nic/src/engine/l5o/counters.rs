//! Counters of the engine for protocols above TCP. Names that begin with `rx_tls` and `tx_tls` are
//! those of Linux's `tls-offload.rst`, and of mlx5 where that has more.

base::counters! {
    /// What the engine did.
    pub(crate) struct L5oCounters {
        /// Packets with sealed parts that left.
        tx_tls_encrypted_packets,
        /// Their sealed bytes, headers and tags among them.
        tx_tls_encrypted_bytes,
        /// Transmit contexts made.
        tx_tls_ctx,
        /// Ranges that were not what their context expected.
        tx_tls_ooo,
        /// Of these, sealed without their record's sum, which nothing needed.
        tx_tls_skip_no_sync_data,
        /// Transmits dropped, since they reach a tag and what it is computed from is not at hand.
        tx_tls_drop_no_sync_data: alarm,
        /// Transmits dropped, since there is no such context: they would bypass it unsealed.
        tx_tls_drop_bypass_req: alarm,
        /// Bytes sealed again for the sum of what follows them.
        tx_tls_resync_bytes,
        /// Packets with an opened range.
        rx_tls_decrypted_packets,
        /// Bytes of these ranges.
        rx_tls_decrypted_bytes,
        /// Receive contexts made.
        rx_tls_ctx,
        /// Receive contexts destroyed.
        rx_tls_del,
        /// Packets in which a header was found that the host was asked about.
        rx_tls_resync_req_pkt,
        /// Asynchronous requests begun.
        rx_tls_resync_req_start,
        /// Of these, ended with a header.
        rx_tls_resync_req_end,
        /// Of these, given up.
        rx_tls_resync_req_skip,
        /// Answers that brought a context back.
        rx_tls_resync_res_ok,
        /// Answers and hints of no use.
        rx_tls_resync_res_skip,
        /// Headers asked about again, since no answer came.
        rx_tls_resync_res_retry,
        /// Packets with a message whose tag is wrong, as the device has it: also those under keys
        /// that the host has not given it yet. The host's `tls_decrypt_error` is the alarm.
        rx_tls_err,
        /// Contexts not made.
        l5o_refused: alarm,
        /// Uses of a context that was in the modelled cache.
        l5o_cache_hits,
        /// Uses of one that was not.
        l5o_cache_misses,
        /// Contexts that had to leave it.
        l5o_cache_evictions,
        /// Packets opened out of their order.
        l5o_out_of_order_packets,
        /// Packets opened on an assumption about a header not seen.
        l5o_opened_ahead_packets,
        /// Assumptions that the header then disproved.
        l5o_assumptions_wrong,
        /// Guessed numbers that a tag proved.
        l5o_self_confirmed,
        /// Guessed numbers that were wrong.
        l5o_guesses_wrong,
        /// Messages opened in part and given up: the host has to do them again.
        l5o_messages_given_up,
        /// Packets left alone, since no window of TCP reaches to where they lie.
        l5o_outside_packets,
        /// Times that so many came in a row that a context began again there.
        l5o_restarts,
        /// States that the code excludes: each is a bug.
        nic_internal_errors,
        /// Modelled: bytes of contexts that crossed PCIe.
        dma_context_bytes,
        /// Modelled: bytes of prefixes that crossed PCIe.
        dma_recover_bytes,
    }
}
