//! Counters of the layer-5 offload engine. Names that begin with `rx_tls` and `tx_tls` are those of
//! Linux's `tls-offload.rst`, and of mlx5 for those that Linux lacks.

base::counters! {
    /// Counters of the TLS offload and of the context cache.
    pub(crate) struct L5oCounters {
        /// Packets sent with encrypted ranges.
        tx_tls_encrypted_packets,
        /// Encrypted bytes sent, including headers and tags.
        tx_tls_encrypted_bytes,
        /// Transmit contexts created.
        tx_tls_ctx,
        /// Ranges that were not the next ones of their context.
        tx_tls_ooo,
        /// Ranges encrypted without their record's authentication sum, because they reach no tag.
        tx_tls_skip_no_sync_data,
        /// Transmits dropped because they reach a tag whose input is not available.
        tx_tls_drop_no_sync_data: alarm,
        /// Transmits dropped because their context does not exist: they would leave unencrypted.
        tx_tls_drop_bypass_req: alarm,
        /// Prefix bytes encrypted again to rebuild an authentication sum.
        tx_tls_resync_bytes,
        /// Packets with a decrypted range.
        rx_tls_decrypted_packets,
        /// Bytes of decrypted ranges.
        rx_tls_decrypted_bytes,
        /// Bytes of whole records copied before their decryption, to restore them if the tag is
        /// wrong; AES-GCM needs no copy.
        rx_tls_copied_bytes,
        /// Receive contexts created.
        rx_tls_ctx,
        /// Receive contexts destroyed.
        rx_tls_del,
        /// Resync requests that name a header.
        rx_tls_resync_req_pkt,
        /// Asynchronous resync requests started.
        rx_tls_resync_req_start,
        /// Asynchronous resync requests ended with a header.
        rx_tls_resync_req_end,
        /// Asynchronous resync requests abandoned.
        rx_tls_resync_req_skip,
        /// Answers that resynchronized a context.
        rx_tls_resync_res_ok,
        /// Answers and hints that were of no use.
        rx_tls_resync_res_skip,
        /// Resync requests repeated because no answer came.
        rx_tls_resync_res_retry,
        /// Packets with a message whose tag is wrong under the device's keys, which may be older
        /// than the sender's. The host's `tls_decrypt_error` is the alarm.
        rx_tls_err,
        /// Contexts refused.
        l5o_refused: alarm,
        /// Uses of a context that was in the modeled cache.
        l5o_cache_hits,
        /// Uses of a context that was not in the modeled cache.
        l5o_cache_misses,
        /// Contexts evicted from the modeled cache.
        l5o_cache_evictions,
        /// Packets decrypted out of order.
        l5o_out_of_order_packets,
        /// Packets decrypted on an assumption about an unseen header or nonce.
        l5o_opened_ahead_packets,
        /// Assumptions about an unseen header or nonce that turned out to be wrong.
        l5o_assumptions_wrong,
        /// Speculative numbers proved by a tag.
        l5o_self_confirmed,
        /// Speculative numbers that were wrong.
        l5o_guesses_wrong,
        /// Messages decrypted in part and given up: the host has to process them again.
        l5o_messages_given_up,
        /// Packets ignored because they lie outside any TCP window.
        l5o_outside_packets,
        /// Contexts re-anchored after several consecutive packets outside the window.
        l5o_restarts,
        /// States that cannot occur: each count is a bug.
        nic_internal_errors,
        /// Modeled: bytes of contexts that crossed PCIe.
        dma_context_bytes,
        /// Modeled: bytes of prefixes that crossed PCIe.
        dma_recover_bytes,
    }
}
