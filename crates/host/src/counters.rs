//! What the host stack counts. Every drop and every fallback to software has its own counter.

base::counters! {
    /// Counters of a host stack.
    pub struct HostCounters {
        /// States that the code excludes: a bug of this host, whatever it was sent.
        internal_errors: alarm,
        /// Frames that the device delivered.
        received_frames,
        /// Frames whose headers are malformed: the device should not have delivered them.
        received_malformed: alarm,
        /// Frames with a wrong transport checksum.
        received_bad_checksum: alarm,
        /// Frames whose checksum the host had to verify itself.
        checksum_software,
        /// Packets for an address that is not ours.
        received_not_ours,
        /// Packets of a protocol that we do not speak.
        received_unknown_protocol,
        /// TCP segments received.
        tcp_in_segs,
        /// TCP segments with a malformed header.
        tcp_in_errs: alarm,
        /// UDP datagrams delivered to sockets.
        udp_in_datagrams,
        /// UDP datagrams with a malformed header.
        udp_in_errors: alarm,
        /// UDP datagrams for a port that nobody has bound.
        udp_no_ports,
        /// UDP datagrams dropped because too many wait on their socket.
        udp_receive_buffer_errors: alarm,
        /// UDP datagrams handed to the device.
        udp_out_datagrams,
        /// Transmits that they were in.
        udp_out_transmits,
        /// Batches of UDP datagrams that the host cut, since the device does not.
        udp_out_cut_by_host,
        /// UDP datagrams without a route.
        udp_out_no_routes: alarm,
        /// Transmits of TCP, runs of segments counted once.
        tcp_out_transmits,
        /// Payload bytes handed to the device for the first time.
        tcp_out_bytes,
        /// Connections opened by us.
        tcp_active_opens,
        /// Connections accepted.
        tcp_passive_opens,
        /// Connections that could not be opened.
        tcp_attempt_fails,
        /// Established connections that ended by a reset.
        tcp_estab_resets,
        /// Bytes that came on connections which their application had closed lingering, and that
        /// were discarded.
        tcp_late_data_bytes,
        /// Such connections reset, since more came than is discarded.
        tcp_late_data_resets: alarm,
        /// Resets sent.
        tcp_out_rsts,
        /// Resets not sent because there had been too many.
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
        /// Recoveries entered.
        tcp_recoveries,
        /// Reductions of the window that were undone as spurious.
        tcp_undos,
        /// DSACKs received.
        tcp_dsacks,
        /// Acknowledgments with ECN-Echo that reduced the window.
        tcp_ecn_reductions,
        /// Packets received with the CE mark.
        tcp_ecn_ce_received,
        /// Segments dropped by PAWS: RFC 7323.
        tcp_paws_dropped,
        /// Challenge acknowledgments sent: RFC 5961. What answers a keep-alive or a window probe is
        /// none.
        tcp_challenge_acks,
        /// Challenge acknowledgments not sent because of their rate limit.
        tcp_challenge_acks_limited,
        /// Segments outside the window.
        tcp_out_of_window,
        /// Zero-window probes sent.
        tcp_window_probes,
        /// Keep-alive probes sent.
        tcp_keepalive_probes,
        /// Connections given up because the peer did not answer.
        tcp_timed_out,
        /// Bare acknowledgments sent.
        tcp_out_acks,
        /// Acknowledgments sent after the delay.
        tcp_delayed_acks,
        /// Bytes received and discarded because the application had shut that direction.
        tcp_discarded_bytes,
        /// SYNs put into the SYN cache.
        tcp_syns_cached,
        /// SYN-ACKs sent again.
        tcp_syn_acks_resent,
        /// Half-open connections dropped because the last acknowledgment never came.
        tcp_syns_expired,
        /// SYN cookies sent because the SYN cache was full.
        tcp_syn_cookies_sent,
        /// Connections made from a cookie.
        tcp_syn_cookies_accepted,
        /// Acknowledgments of no connection whose cookie was wrong or stale, while the host itself
        /// answered SYNs with cookies: guesses, and late segments of connections that have ended.
        /// At a port of the device they are among `tcp_no_connection`.
        tcp_syn_cookies_failed,
        /// SYNs dropped because the accept queue or the table was full.
        tcp_listen_drops: alarm,
        /// Segments for no connection.
        tcp_no_connection,
        /// Connections in TIME-WAIT taken over by a new SYN: RFC 6191.
        tcp_time_wait_reused,
        /// Path MTU reductions.
        tcp_pmtu_reductions,
        /// ICMP errors that fit no bytes in flight: RFC 5927.
        icmp_ignored,
        /// Echo replies sent.
        icmp_echo_replies,
        /// Port unreachable errors sent.
        icmp_errors_sent,
        /// ARP and neighbour solicitations answered.
        neighbor_replies,
        /// Solicitations sent.
        neighbor_solicitations,
        /// Packets dropped because their next hop does not answer.
        neighbor_drops,
        /// Bytes of files that the device was asked to send.
        file_offload_bytes,
        /// Files that the device would not open, so that the host reads them.
        file_fallback_opens,
        /// Bytes of files that the host read itself.
        file_fallback_bytes,
        /// Ranges of namespaces that the device was told have changed.
        file_invalidations,
        /// Writes, flushes and zeroings of namespaces that failed.
        file_write_errors: alarm,
        /// Connections reset because a file failed or changed.
        file_aborts,
        /// TLS handshakes completed.
        tls_handshakes,
        /// TLS handshakes that failed.
        tls_handshake_failures,
        /// Connections of listeners for TLS whose clients did not speak it, and that were handed
        /// over to the application without it.
        tls_cleartext,
        /// Sessions that the host seals for (Linux: `TlsTxSw`).
        tls_tx_sw,
        /// Sessions that the host opens for (Linux: `TlsRxSw`).
        tls_rx_sw,
        /// Records of content that the host sealed.
        tls_tx_records,
        /// Bytes of content in them.
        tls_tx_bytes,
        /// Records that the host opened.
        tls_rx_records,
        /// Bytes of content in them.
        tls_rx_bytes,
        /// Contexts that the device was asked for, to seal (Linux: `TlsTxDevice`).
        tls_tx_device,
        /// The same, to open (Linux: `TlsRxDevice`).
        tls_rx_device,
        /// Of those, the ones that it refused.
        tls_tx_device_refused: alarm,
        /// Of those, the ones that it refused.
        tls_rx_device_refused: alarm,
        /// Connections whose contexts for sealing were not there when they were to be used: the
        /// host seals from then on.
        tls_tx_device_lost: alarm,
        /// Transmits that brought what precedes them in their record (`l5o_get_tx_msgstate`).
        tls_tx_recoveries,
        /// Records that the device opened and verified.
        tls_rx_records_full,
        /// Records of which the device opened some: the host sealed that again and opened them.
        tls_rx_records_partial,
        /// Records of which the device opened nothing, though there is a context.
        tls_rx_records_none,
        /// Contexts for opening that were put off, since the peer changes its keys too often.
        tls_rx_device_put_off,
        /// Times that the device was told where a record begins (Linux: `TlsRxDeviceResync`).
        tls_rx_device_resync,
        /// Records that did not verify (Linux: `TlsDecryptError`).
        tls_decrypt_error: alarm,
        /// Changes of key that peers announced (Linux: `TlsRxRekeyReceived`).
        tls_rx_rekey_received,
        /// Those that we followed (Linux: `TlsRxRekeyOk`).
        tls_rx_rekey_ok,
        /// Changes of our own key (Linux: `TlsTxRekeyOk`).
        tls_tx_rekey_ok,
        /// Fatal alerts sent after the handshake, or for its framing.
        tls_alerts_sent: alarm,
        /// Fatal alerts received after the handshake.
        tls_alerts_received,
        /// PDUs of NVMe/TCP written.
        nvme_tx_pdus,
        /// Those whose data digest was left to the device.
        nvme_tx_digests_device,
        /// Data digests that the host computed: at once, or since the device has lost what was left
        /// to it.
        nvme_tx_digests_host,
        /// Contexts that the device was asked for, to fill digests in.
        nvme_tx_device,
        /// Of those, the ones that it refused.
        nvme_tx_device_refused: alarm,
        /// Of those, the ones that were not there when they were to be used, or were given up with
        /// the context that seals: the host computes from then on.
        nvme_tx_device_lost: alarm,
        /// Connections of NVMe over TCP whose PDUs the device follows.
        nvme_rx_device,
        /// Those whose PDUs it does not.
        nvme_rx_sw,
        /// Receive contexts given up, since the stream went on in records that they do not follow:
        /// under other keys, padded, or of something else than data.
        nvme_rx_lost,
        /// Receive contexts made after the first of their connection: after a reset of the device,
        /// or since the one before was given up.
        nvme_rx_renewed,
        /// Times that this was put off, since there were too many on the connection.
        nvme_rx_put_off,
        /// PDUs received.
        nvme_rx_pdus,
        /// PDUs with data for a buffer all of which the device placed, and whose digest it checked.
        nvme_rx_pdus_full,
        /// Those of which it did a part.
        nvme_rx_pdus_partial,
        /// Those of which it did nothing.
        nvme_rx_pdus_none,
        /// Bytes of their data that the device put into buffers.
        nvme_rx_placed_bytes,
        /// Bytes of it that the host copied.
        nvme_rx_copied_bytes,
        /// Data digests that the device found right.
        nvme_rx_digests_device,
        /// Data digests that the host computed.
        nvme_rx_digests_host,
        /// Of those, the ones that were wrong.
        nvme_data_digest_errors: alarm,
        /// Wrong header digests.
        nvme_header_digest_errors: alarm,
        /// Answers to a device that had lost its place.
        nvme_rx_resync,
        /// Buffers lent to the device.
        nvme_ddp_setup,
        /// Of those, the ones that it would not have.
        nvme_ddp_refused: alarm,
        /// Buffers that the host wanted back before their end, for too much waited for them.
        nvme_ddp_early,
        /// Connections that were ended since the peer broke the rules.
        nvme_terminations: alarm,
        /// Listeners that the device would not have.
        setup_listeners_refused: alarm,
        /// Connections that the device set up.
        setup_accepted,
        /// Those that were made whole: a second transaction, or anything but one request, its
        /// response and a close.
        quasi_made_whole,
        /// Closed connections that the device was handed.
        handed_over,
        /// Times that a closed connection did not fit yet: more than a window to send, something
        /// lost, or a disk awaited.
        hand_over_deferred,
        /// Times that a closed connection stayed with the host: the device has as many as it takes.
        hand_over_kept_full,
        /// The same: the device is busy.
        hand_over_kept_overloaded,
        /// The same: there is no such engine, or it is switched off.
        hand_over_kept_disabled,
        /// Frames of connections that the device took up after they had come: it was given them.
        hand_over_frames_returned,
        /// Connections that the device gave back.
        hand_over_refused,
        /// Of those, the ones that could only be reset.
        hand_over_refused_reset: alarm,
        /// Connections that the device closed in both directions.
        handed_over_closed,
        /// Connections that the device tore down and that ended in a reset.
        handed_over_reset,
        /// Connections that the device gave up.
        handed_over_timed_out,
        /// Connections that the device was tearing down when it was reset.
        handed_over_lost: alarm,
        /// Times that the device said that it is busy.
        device_overloads,
        /// Pairs of sockets for which `nsplice` began.
        splice_asked,
        /// Declined at once: one of them is not open in both directions.
        splice_declined_not_connected,
        /// Declined at once: the device splices nothing, or is not to.
        splice_declined_offload,
        /// Declined at once: TLS.
        splice_declined_encrypted,
        /// Declined at once: one has timestamps and the other has none.
        splice_declined_options,
        /// Declined at once: one of them is being spliced already, or both are one.
        splice_declined_busy,
        /// Pairs that are sockets again: the device refused, or was reset, or one of them ended.
        splice_refused,
        /// Of those, the ones that the device refused.
        splice_refused_by_device: alarm,
        /// Pairs handed to the device.
        splice_handed_over,
        /// Bytes that were received and not read when `nsplice` began, or filled a gap then.
        splice_unread_bytes,
        /// Packets kept for the device.
        splice_kept_packets,
        /// Packets dropped because too many were kept, or they were there already; their peers send
        /// them again.
        splice_kept_dropped,
        /// Splices that have ended.
        splice_ends,
        /// Of those, the ones that nobody asked about until there were too many.
        splice_ends_forgotten: alarm,
        /// Events of the device about a connection that has ended meanwhile.
        events_late,
        /// Events of the device that fit nothing: nonsense.
        events_ignored: alarm,
        /// Resets of the device.
        device_resets: alarm,
    }
}
