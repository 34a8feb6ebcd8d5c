//! Counters of the decompression engine.

base::counters! {
    /// Jobs of hosts.
    pub(super) struct DecompressCounters {
        /// Jobs that were run.
        decompress_jobs,
        /// Compressed bytes that jobs consumed.
        decompress_input_bytes,
        /// Bytes that jobs wrote.
        decompress_bytes,
        /// Jobs that found faulty content.
        decompress_faults,
        /// Jobs refused: too many wait, their buffers are too long or their ranges invalid, or the
        /// device was reset or the host ended before they were run.
        decompress_refused,
    }
}
