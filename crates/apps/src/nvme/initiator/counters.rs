//! Counters of the initiator.

base::counters! {
    /// What an initiator did.
    pub struct InitiatorCounters {
        /// Associations that came to be: controllers connected to, with all their queues.
        nvmei_associations,
        /// Associations, whole or not, that were lost.
        nvmei_associations_lost,
        /// Attempts to connect that failed.
        nvmei_connects_failed,
        /// Connections that speak TLS by a pre-shared key.
        nvmei_tls_handshakes,
        /// Connections that ended since they were not secure, or were to be.
        nvmei_tls_handshakes_failed,
        /// Requests that were taken.
        nvmei_requests,
        /// Commands of requests that were sent, again ones included.
        nvmei_commands,
        /// Requests that ended well.
        nvmei_done,
        /// Requests that failed.
        nvmei_failed,
        /// Requests that were turned back, for too many are open.
        nvmei_busy,
        /// Changes held back, for they overlap others that are not answered yet.
        nvmei_held,
        /// Bytes read.
        nvmei_read_bytes,
        /// Bytes written.
        nvmei_written_bytes,
        /// Commands whose data went along in the capsule.
        nvmei_in_capsule,
        /// R2Ts that were answered.
        nvmei_r2ts,
        /// Commands sent again, for an association was lost.
        nvmei_replayed,
        /// Requests that failed since they may not be sent again.
        nvmei_not_replayed,
        /// Requests that failed since they may have cost too many associations.
        nvmei_retries_exhausted,
        /// Commands sent again with nothing beside them, for one of them may cost the associations.
        nvmei_alone,
        /// Buffers replaced by others, for the device still had them when a connection ended.
        nvmei_buffers_replaced,
        /// Commands sent again, for a data digest was wrong at this end.
        nvmei_digest_retries: alarm,
        /// Commands sent again, for the controller said that the fault may pass.
        nvmei_status_retries,
        /// Commands that were not answered in time.
        nvmei_timeouts,
        /// Of these, those that were asked to be aborted.
        nvmei_aborts,
        /// Connections that we terminated: the controller did what it may not.
        nvmei_protocol_errors: alarm,
        /// Keep alives that were answered.
        nvmei_keep_alives,
        /// Asynchronous events.
        nvmei_events,
        /// Namespaces that were listed, and then not described.
        nvmei_namespaces_skipped: alarm,
    }
}
