//! Counters of the initiator.

base::counters! {
    /// Counters of one initiator.
    pub struct InitiatorCounters {
        /// Associations established: controllers connected with all their queues.
        nvmei_associations,
        /// Established associations that were lost.
        nvmei_associations_lost,
        /// Associations that were lost before they were established.
        nvmei_connects_failed,
        /// Connections with TLS by a pre-shared key.
        nvmei_tls_handshakes,
        /// Connections that ended because TLS failed, or because only one end speaks TLS.
        nvmei_tls_handshakes_failed,
        /// Requests submitted.
        nvmei_requests,
        /// Commands of requests sent, retries included.
        nvmei_commands,
        /// Requests that succeeded.
        nvmei_done,
        /// Requests that failed.
        nvmei_failed,
        /// Requests refused because `requests_max` were open.
        nvmei_busy,
        /// Changes held back because they overlap unanswered ones.
        nvmei_held,
        /// Bytes read.
        nvmei_read_bytes,
        /// Bytes written.
        nvmei_written_bytes,
        /// Commands with in-capsule data.
        nvmei_in_capsule,
        /// R2Ts received.
        nvmei_r2ts,
        /// Commands resent because an association was lost.
        nvmei_replayed,
        /// Requests that failed because their command must not be resent.
        nvmei_not_replayed,
        /// Requests that failed because they may have ended too many associations.
        nvmei_retries_exhausted,
        /// Commands sent with no other in flight, because they may have ended associations.
        nvmei_alone,
        /// Buffers replaced because the device still had them when their connection ended.
        nvmei_buffers_replaced,
        /// Commands resent because of a wrong digest of received data.
        nvmei_digest_retries: alarm,
        /// Requests that failed because the data read contains a denied pattern.
        nvmei_denied,
        /// Commands resent because of a transient status.
        nvmei_status_retries,
        /// Expired command timeouts.
        nvmei_timeouts,
        /// Abort commands sent after these.
        nvmei_aborts,
        /// Connections terminated because of a protocol error of the controller.
        nvmei_protocol_errors: alarm,
        /// Keep Alive commands that succeeded.
        nvmei_keep_alives,
        /// Asynchronous events received.
        nvmei_events,
        /// Namespaces that were listed but could not be identified.
        nvmei_namespaces_skipped: alarm,
    }
}
