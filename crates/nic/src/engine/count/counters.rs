//! Counters of counting.

base::counters! {
    /// What hosts asked for.
    pub(super) struct CountCounters {
        /// Flows that began to be counted.
        count_started,
        /// Refused: the table is full, the flow is counted already, or it is not counted for this
        /// host.
        count_refused,
    }
}
