//! Counters of downloads.

base::counters! {
    /// Counters of one client.
    pub struct GetCounters {
        /// Downloads begun.
        get_downloads,
        /// Downloads whose content was received completely.
        get_done,
        /// Downloads that failed.
        get_failed,
        /// Requests sent or about to be sent, those for parts and for other addresses included.
        get_requests,
        /// Bytes of content received.
        get_content_bytes,
        /// Requests that ended because a time limit had passed.
        get_timeouts,
    }
}
