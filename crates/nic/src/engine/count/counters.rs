//! Counters of the flow counter engine.

base::counters! {
    /// Requests of hosts.
    pub(super) struct CountCounters {
        /// Flows for which counting started.
        count_started,
        /// Requests refused: the table is full, the flow is already counted, or it is not counted
        /// for this host.
        count_refused,
    }
}
