//! Counters of inspection.

base::counters! {
    /// Counters of inspection for patterns.
    pub(crate) struct InspectCounters {
        /// Contexts created.
        inspect_contexts_created,
        /// Contexts refused: the table is full, or there is no room for their patterns.
        inspect_contexts_refused,
        /// Bytes inspected.
        inspect_bytes,
        /// Patterns found.
        inspect_found,
        /// Ranges that begin anew: at the first byte of a context or of a command's data, and
        /// behind a hole.
        inspect_began_anew,
        /// Bytes that were not reported: too many matches, records or PDUs in their frame. The host
        /// inspects them.
        inspect_unreported_bytes,
        /// States that cannot occur: each count is a bug.
        nic_internal_errors,
    }
}
