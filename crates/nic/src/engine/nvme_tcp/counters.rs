//! Counters of NVMe over TCP on receive. Names that begin with `rx_nvmeotcp` are those of Linux's
//! proposed `ulp_ddp` and of mlx5.

base::counters! {
    /// What was done for NVMe over TCP on receive.
    pub(crate) struct NvmeTcpCounters {
        /// Receive contexts made.
        rx_nvmeotcp_sk_add,
        /// Receive contexts not made.
        rx_nvmeotcp_sk_add_fail: alarm,
        /// Receive contexts destroyed.
        rx_nvmeotcp_sk_del,
        /// Buffers registered.
        rx_nvmeotcp_ddp_setup,
        /// Buffers not registered.
        rx_nvmeotcp_ddp_setup_fail: alarm,
        /// Buffers that the host asked to have back.
        rx_nvmeotcp_ddp_teardown,
        /// Packets with bytes that had no place: nothing is known of what they belong to.
        rx_nvmeotcp_drop,
        /// Requests about a header that was found.
        rx_nvmeotcp_resync,
        /// Packets of which bytes were placed or summed.
        rx_nvmeotcp_packets,
        /// Bytes placed.
        rx_nvmeotcp_bytes,
        /// PDUs whose digests were found right.
        nvme_tcp_pdus_verified,
        /// Digests of headers and of data that were found wrong.
        nvme_tcp_digest_errors: alarm,
        /// PDUs that were forgotten before all of their bytes had come.
        nvme_tcp_pdus_given_up,
        /// Bytes placed or summed out of their order.
        nvme_tcp_out_of_order_bytes,
        /// Headers that were found and proved right: by the host, or by what came before them.
        nvme_tcp_guesses_right,
        /// Headers that were found and proved wrong.
        nvme_tcp_guesses_wrong,
        /// Headers asked about again, since no answer came.
        nvme_tcp_resync_res_retry,
        /// Answers of no use.
        nvme_tcp_resync_res_skip,
        /// Buffers that went back since they were full.
        nvme_tcp_buffers_filled,
        /// Packets, or texts of TLS records, left alone, since no window of TCP reaches to where
        /// they lie.
        nvme_tcp_outside_packets,
        /// Times that so many came in a row that a context began again there.
        nvme_tcp_restarts,
        /// Contexts that stopped at a TLS record which does not carry a stream.
        nvme_tcp_streams_stopped,
        /// States that the code excludes: each is a bug.
        nic_internal_errors,
    }
}
