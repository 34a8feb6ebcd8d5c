//! Counters of the host stack. Every drop and every fallback to software has its own counter.

base::counters! {
    /// Counters of a host stack.
    pub struct HostCounters {
        /// Internal errors: states that cannot occur.
        internal_errors: alarm,
        /// Frames that the device delivered.
        received_frames,
        /// Frames with malformed headers, which the device should not have delivered.
        received_malformed: alarm,
        /// Frames with a wrong transport checksum.
        received_bad_checksum: alarm,
        /// Frames whose checksum the host verified in software.
        checksum_software,
        /// Packets for an address that is not local.
        received_not_ours,
        /// Packets of an unsupported protocol.
        received_unknown_protocol,
        /// IP fragments received (Linux: `IpReasmReqds`).
        ip_reasm_reqds,
        /// IP packets reassembled (Linux: `IpReasmOKs`).
        ip_reasm_oks,
        /// IP packets that could not be reassembled, for any reason, and malformed fragments
        /// (Linux: `IpReasmFails`).
        ip_reasm_fails,
        /// IP packets dropped because fragments were missing for too long (Linux:
        /// `IpReasmTimeout`).
        ip_reasm_timeouts,
        /// IP packets dropped because their fragments overlap or contradict each other.
        ip_reasm_overlaps: alarm,
        /// IP fragments sent (Linux: `IpFragCreates`).
        ip_frag_creates,
        /// TCP segments received.
        tcp_in_segs,
        /// TCP segments with a malformed header.
        tcp_in_errs: alarm,
        /// UDP datagrams delivered to sockets.
        udp_in_datagrams,
        /// UDP datagrams with a malformed header.
        udp_in_errors: alarm,
        /// UDP datagrams for a port without a socket.
        udp_no_ports,
        /// UDP datagrams dropped because their socket's queue was full.
        udp_receive_buffer_errors: alarm,
        /// UDP datagrams handed to the device.
        udp_out_datagrams,
        /// UDP transmits handed to the device.
        udp_out_transmits,
        /// Batches of UDP datagrams that the host segmented because the device does not.
        udp_out_cut_by_host,
        /// UDP datagrams dropped for lack of a route.
        udp_out_no_routes: alarm,
        /// TCP transmits; a run of segments counts once.
        tcp_out_transmits,
        /// Payload bytes handed to the device for the first time.
        tcp_out_bytes,
        /// Active opens.
        tcp_active_opens,
        /// Passive opens.
        tcp_passive_opens,
        /// Connection attempts that failed.
        tcp_attempt_fails,
        /// Established connections that ended by a reset.
        tcp_estab_resets,
        /// Bytes discarded on connections in lingering close.
        tcp_late_data_bytes,
        /// Connections in lingering close that were reset because the peer sent more than may be
        /// discarded.
        tcp_late_data_resets: alarm,
        /// Resets sent.
        tcp_out_rsts,
        /// Resets not sent because of their rate limit.
        tcp_out_rsts_limited: alarm,
        /// Bytes retransmitted.
        tcp_retrans_bytes,
        /// Retransmits handed to the device.
        tcp_retrans,
        /// Expiries of the retransmission timer.
        tcp_timeouts,
        /// Tail loss probes: RFC 8985.
        tcp_tail_probes,
        /// Losses that a tail loss probe repaired.
        tcp_tail_probe_repairs,
        /// Loss recoveries entered.
        tcp_recoveries,
        /// Window reductions undone as spurious.
        tcp_undos,
        /// DSACKs received.
        tcp_dsacks,
        /// Acknowledgments with ECN-Echo that reduced the window.
        tcp_ecn_reductions,
        /// Packets received with the CE mark.
        tcp_ecn_ce_received,
        /// Segments dropped by PAWS: RFC 7323.
        tcp_paws_dropped,
        /// Challenge acknowledgments sent (RFC 5961). Answers to keep-alive and window probes are
        /// not counted.
        tcp_challenge_acks,
        /// Challenge acknowledgments not sent because of their rate limit.
        tcp_challenge_acks_limited,
        /// Segments outside the window.
        tcp_out_of_window,
        /// Zero-window probes sent.
        tcp_window_probes,
        /// Keep-alive probes sent.
        tcp_keepalive_probes,
        /// Connections aborted because the peer did not answer.
        tcp_timed_out,
        /// Pure acknowledgments sent.
        tcp_out_acks,
        /// Acknowledgments sent by the delayed-acknowledgment timer.
        tcp_delayed_acks,
        /// Received bytes discarded because the application had closed its receive direction.
        tcp_discarded_bytes,
        /// SYNs inserted into the SYN cache.
        tcp_syns_cached,
        /// SYN-ACKs retransmitted.
        tcp_syn_acks_resent,
        /// Half-open connections dropped because the handshake was not completed in time.
        tcp_syns_expired,
        /// SYN cookies sent because the SYN cache was full.
        tcp_syn_cookies_sent,
        /// Connections established from a SYN cookie.
        tcp_syn_cookies_accepted,
        /// Acknowledgments of no connection whose cookie was wrong or stale, received while the
        /// host itself sent SYN cookies: guesses, and late segments of closed connections. At a
        /// listener with set-up offload they count in `tcp_no_connection` instead.
        tcp_syn_cookies_failed,
        /// Segments of a connection that a SYN cookie of the host or of the device will establish,
        /// dropped because the peer's first segment has not arrived. The peer retransmits them.
        tcp_first_segment_missing,
        /// SYNs and completed handshakes dropped because the accept queue or the table was full.
        tcp_listen_drops: alarm,
        /// Segments for no connection.
        tcp_no_connection,
        /// Tuples in TIME-WAIT reused by a new connection (RFC 6191).
        tcp_time_wait_reused,
        /// Path MTU reductions reported by routers (ICMP) or the link.
        tcp_pmtu_reductions,
        /// Segments sent to probe the path for a larger MTU (RFC 4821).
        tcp_mtu_probes,
        /// Probes of the path MTU that were acknowledged (Linux: `TCPMTUPSuccess`).
        tcp_mtu_probe_success,
        /// Probes of the path MTU that were lost (Linux: `TCPMTUPFail`).
        tcp_mtu_probe_fail,
        /// Reductions of the segment size because full segments were lost repeatedly and no router
        /// reported why.
        tcp_mtu_black_holes,
        /// ICMP errors that refer to no bytes in flight (RFC 5927).
        icmp_ignored,
        /// Connections reset because their local address is no longer ours.
        tcp_address_lost,
        /// Echo replies sent.
        icmp_echo_replies,
        /// Port unreachable errors sent.
        icmp_errors_sent,
        /// ARP requests and neighbor solicitations answered.
        neighbor_replies,
        /// ARP requests and neighbor solicitations sent.
        neighbor_solicitations,
        /// Announcements of own addresses sent.
        neighbor_announcements,
        /// Packets dropped because their next hop did not answer.
        neighbor_drops,
        /// File bytes that the device was asked to send.
        file_offload_bytes,
        /// Files opened on the host's disk because the device does not read them.
        file_fallback_opens,
        /// File bytes read by the host.
        file_fallback_bytes,
        /// File bytes that the application provided.
        file_provided_bytes,
        /// Changed ranges of namespaces reported to the device.
        file_invalidations,
        /// Failed writes, flushes and zeroings of namespaces.
        file_write_errors: alarm,
        /// Connections reset because a file failed or changed.
        file_aborts,
        /// TLS handshakes completed.
        tls_handshakes,
        /// TLS handshakes that failed.
        tls_handshake_failures,
        /// Connections of TLS listeners whose clients did not speak TLS, and that were handed to
        /// the application without it.
        tls_cleartext,
        /// Sessions whose records the host encrypts (Linux: `TlsTxSw`).
        tls_tx_sw,
        /// Sessions whose records the host decrypts (Linux: `TlsRxSw`).
        tls_rx_sw,
        /// Records written to send streams, whether the host or the device encrypts them.
        tls_tx_records,
        /// Content bytes of `tls_tx_records`.
        tls_tx_bytes,
        /// Records received and decrypted, by the host or the device.
        tls_rx_records,
        /// Bytes of application data in `tls_rx_records`.
        tls_rx_bytes,
        /// Transmit contexts requested from the device (Linux: `TlsTxDevice`).
        tls_tx_device,
        /// Receive contexts requested from the device (Linux: `TlsRxDevice`).
        tls_rx_device,
        /// Transmit contexts that the device refused.
        tls_tx_device_refused: alarm,
        /// Receive contexts that the device refused.
        tls_rx_device_refused: alarm,
        /// Contexts requested again after the device's table was full.
        tls_device_asked_again,
        /// Connections that lost their transmit contexts: the device dropped a transmit for lack of
        /// one. The host encrypts from then on.
        tls_tx_device_lost: alarm,
        /// Transmits that carried the prefix of a record (`l5o_get_tx_msgstate`).
        tls_tx_recoveries,
        /// Records that the device decrypted and verified completely.
        tls_rx_records_full,
        /// Records that the device decrypted partially: the host restored the ciphertext and
        /// decrypted the whole record.
        tls_rx_records_partial,
        /// Records that the device did not decrypt at all, although the session has a receive
        /// context.
        tls_rx_records_none,
        /// Bytes of records copied from the receive queue, because the host decrypts the records.
        tls_rx_copied_bytes,
        /// Receive contexts postponed because the peer changes its keys too often.
        tls_rx_device_put_off,
        /// Record boundaries sent to the device (Linux: `TlsRxDeviceResync`).
        tls_rx_device_resync,
        /// Records that failed authentication (Linux: `TlsDecryptError`).
        tls_decrypt_error: alarm,
        /// KeyUpdates received (Linux: `TlsRxRekeyReceived`).
        tls_rx_rekey_received,
        /// KeyUpdates received and applied (Linux: `TlsRxRekeyOk`).
        tls_rx_rekey_ok,
        /// Changes of our own key (Linux: `TlsTxRekeyOk`).
        tls_tx_rekey_ok,
        /// Fatal alerts sent by the record layer, that is, not by the handshake protocol.
        tls_alerts_sent: alarm,
        /// Fatal alerts received after the handshake.
        tls_alerts_received,
        /// NVMe/TCP PDUs written.
        nvme_tx_pdus,
        /// PDUs whose data digest was left to the device.
        nvme_tx_digests_device,
        /// Data digests computed by the host: when the PDU was written, or after the device lost
        /// its context.
        nvme_tx_digests_host,
        /// Digest contexts requested from the device, also again after a refusal.
        nvme_tx_device,
        /// Digest contexts that the device refused.
        nvme_tx_device_refused: alarm,
        /// Digest contexts missing when they were used, or lost with the TLS context above them.
        /// The host computes the digests from then on.
        nvme_tx_device_lost: alarm,
        /// NVMe/TCP connections with a receive context when they opened, minus those refused later.
        nvme_rx_device,
        /// NVMe/TCP connections without a receive context.
        nvme_rx_sw,
        /// Receive contexts destroyed because the stream continued in records that they do not
        /// follow: under other keys, padded, or not application data.
        nvme_rx_lost,
        /// Receive contexts requested after the first one of a connection: after a device reset,
        /// after `nvme_rx_lost`, or again after a refusal because the device's table was full.
        nvme_rx_renewed,
        /// Receive contexts postponed because the connection requested too many per second.
        nvme_rx_put_off,
        /// PDUs received.
        nvme_rx_pdus,
        /// PDUs with data for a buffer whose data was placed, and whose digest was verified,
        /// completely by the device.
        nvme_rx_pdus_full,
        /// PDUs with data for a buffer that the device processed partially.
        nvme_rx_pdus_partial,
        /// PDUs with data for a buffer that the device did not process.
        nvme_rx_pdus_none,
        /// Data bytes placed by the device.
        nvme_rx_placed_bytes,
        /// Data bytes copied by the host.
        nvme_rx_copied_bytes,
        /// Data digests verified by the device.
        nvme_rx_digests_device,
        /// Data digests verified by the host.
        nvme_rx_digests_host,
        /// Data digests that the host found wrong.
        nvme_data_digest_errors: alarm,
        /// Wrong header digests.
        nvme_header_digest_errors: alarm,
        /// Resync requests of the device that were answered.
        nvme_rx_resync,
        /// Inspection contexts requested from the device, also again after a refusal or a reset.
        inspect_device,
        /// Inspection contexts that the device does not offer, or refused: the host inspects.
        inspect_sw,
        /// Inspection contexts that the device refused.
        inspect_device_refused,
        /// Inspection contexts requested again after a refusal because the device's table was full.
        inspect_device_asked_again,
        /// Bytes read by applications that the device had inspected for patterns.
        inspect_device_bytes,
        /// Bytes that the host inspected for patterns.
        inspect_host_bytes,
        /// Patterns found in the bytes of connections.
        inspect_matches,
        /// Claims of the device about inspected bytes that cannot be true.
        inspect_claims_invalid: alarm,
        /// Buffers registered with the device.
        nvme_ddp_setup,
        /// Buffers whose registration the device refused.
        nvme_ddp_refused: alarm,
        /// Buffers reclaimed early because too many PDUs or pieces of data waited for them.
        nvme_ddp_early,
        /// Connections terminated because the peer violated the protocol.
        nvme_terminations: alarm,
        /// Listeners that the device refused.
        setup_listeners_refused: alarm,
        /// Connections that the device set up.
        setup_accepted,
        /// Connections of them that the host established itself, because after a reset the device
        /// passed the segment before it had the listener again.
        setup_accepted_after_reset,
        /// Quasi-TCBs promoted to TCBs: a second request, a response later than the turn of the
        /// request, or any event other than one request, one response and a close.
        quasi_tcbs_promoted,
        /// Closed connections handed to the device for tear-down.
        handed_over,
        /// Hand-overs deferred because the connection did not fit yet: more than a window to send,
        /// a loss, or a pending disk read.
        hand_over_deferred,
        /// Hand-overs not made because the device has its maximum number of connections.
        hand_over_kept_full,
        /// Hand-overs not made because the device is overloaded.
        hand_over_kept_overloaded,
        /// Hand-overs not made because the engine is missing or disabled.
        hand_over_kept_disabled,
        /// Frames returned to the device because they arrived before it had taken over their
        /// connection.
        hand_over_frames_returned,
        /// Such frames that were dropped, because the device had ended their connection before it
        /// got them back.
        hand_over_frames_late,
        /// Segments of no connection, handed over to another queue that may have it.
        tcp_handed_over,
        /// Such segments that were dropped, because the device had decrypted them for a connection
        /// that has moved since.
        tcp_handed_over_dropped,
        /// Connections moved to the host of another queue.
        tcp_moved_out,
        /// Connections taken over from the host of another queue.
        tcp_moved_in,
        /// Connections of other queues that were not taken over: reset without a listener or room,
        /// or dropped because the peer has opened a newer one.
        tcp_moved_refused,
        /// Connections that the device refused to tear down.
        hand_over_refused,
        /// Refused tear-downs whose connection could only be reset.
        hand_over_refused_reset: alarm,
        /// Connections closed by the device in both directions.
        handed_over_closed,
        /// Connections reset while the device tore them down.
        handed_over_reset,
        /// Connections that the device aborted because the peer did not answer.
        handed_over_timed_out,
        /// Connections lost because the device was reset while it tore them down.
        handed_over_lost: alarm,
        /// Times that the device reported overload.
        device_overloads,
        /// Pairs of sockets for which `nsplice` began.
        splice_asked,
        /// Calls declined at once: a socket is not open in both directions.
        splice_declined_not_connected,
        /// Calls declined at once: splicing is not supported or is disabled.
        splice_declined_offload,
        /// Calls declined at once: a socket uses TLS.
        splice_declined_encrypted,
        /// Calls declined at once: only one of the sockets has timestamps.
        splice_declined_options,
        /// Calls declined at once: a socket is already being spliced, or both arguments are the
        /// same socket.
        splice_declined_busy,
        /// Calls declined at once: the device has no room for another pair.
        splice_declined_full,
        /// Pairs that became sockets again: the device refused or was reset, or one of the
        /// connections ended.
        splice_refused,
        /// Pairs that the device refused.
        splice_refused_by_device: alarm,
        /// Pairs handed to the device.
        splice_handed_over,
        /// Unread bytes relayed by the host: received before `nsplice`, or filling a gap
        /// afterwards.
        splice_unread_bytes,
        /// Packets held for the device.
        splice_kept_packets,
        /// Packets dropped because too many were held, or because they were duplicates; the peers
        /// retransmit them.
        splice_kept_dropped,
        /// Splices that have ended.
        splice_ends,
        /// Results of splices discarded because too many were not taken by the application.
        splice_ends_forgotten: alarm,
        /// Jobs of decompression that the host ran: the device is not used for them, or refused.
        decompress_sw_jobs,
        /// Bytes that these jobs wrote.
        decompress_sw_bytes,
        /// Jobs of decompression that the device refused.
        decompress_device_refused,
        /// Answers of the device whose progress exceeds the job.
        decompress_device_wrong: alarm,
        /// Device events about a connection that has since ended.
        events_late,
        /// Device events that match no state of the host.
        events_ignored: alarm,
        /// Resets of the device.
        device_resets: alarm,
    }
}
