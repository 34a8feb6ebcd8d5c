//! Receive counters of NVMe/TCP. Names that begin with `rx_nvmeotcp` are those of Linux's proposed
//! `ulp_ddp` and of mlx5.

base::counters! {
    /// Receive counters of the NVMe/TCP offload.
    pub(crate) struct NvmeTcpCounters {
        /// Receive contexts created.
        rx_nvmeotcp_sk_add,
        /// Receive contexts refused.
        rx_nvmeotcp_sk_add_fail: alarm,
        /// Receive contexts destroyed.
        rx_nvmeotcp_sk_del,
        /// Buffers registered.
        rx_nvmeotcp_ddp_setup,
        /// Buffer registrations refused.
        rx_nvmeotcp_ddp_setup_fail: alarm,
        /// Buffers that the host asked back.
        rx_nvmeotcp_ddp_teardown,
        /// Packets with bytes for which no PDU boundary was known.
        rx_nvmeotcp_drop,
        /// Resync requests about a header that was found.
        rx_nvmeotcp_resync,
        /// Packets of which bytes were placed or summed.
        rx_nvmeotcp_packets,
        /// Bytes placed.
        rx_nvmeotcp_bytes,
        /// PDUs whose digests are correct.
        nvme_tcp_pdus_verified,
        /// Wrong header and data digests.
        nvme_tcp_digest_errors: alarm,
        /// PDUs dropped before all of their bytes had arrived.
        nvme_tcp_pdus_given_up,
        /// Bytes placed or summed out of order.
        nvme_tcp_out_of_order_bytes,
        /// Found headers proved right, by the host or by the preceding PDUs.
        nvme_tcp_guesses_right,
        /// Found headers proved wrong.
        nvme_tcp_guesses_wrong,
        /// Resync requests repeated because no answer came.
        nvme_tcp_resync_res_retry,
        /// Answers that were of no use.
        nvme_tcp_resync_res_skip,
        /// Buffers returned because they were full.
        nvme_tcp_buffers_filled,
        /// Packets or texts of TLS records ignored because they lie outside any TCP window.
        nvme_tcp_outside_packets,
        /// Contexts re-anchored after several consecutive packets outside the window.
        nvme_tcp_restarts,
        /// Contexts stopped at a TLS record that does not carry stream data.
        nvme_tcp_streams_stopped,
        /// States that cannot occur: each count is a bug.
        nic_internal_errors,
    }
}
