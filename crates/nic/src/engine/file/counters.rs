//! Counters of the file engine.

base::counters! {
    /// Counters of the file engine.
    pub(crate) struct FileCounters {
        /// Opens requested.
        file_opens,
        /// Opens that the engine or the disk refused.
        file_open_failures,
        /// Transmits sent with file content.
        file_transmits,
        /// File bytes sent, including retransmissions.
        file_bytes,
        /// Reads submitted to the disk.
        file_disk_reads,
        /// Bytes of these reads.
        file_disk_read_bytes,
        /// Reads of these that took only some pages of a block, or the end of a file.
        file_reads_of_pages,
        /// Reads of these that were read-aheads.
        file_read_ahead,
        /// Read-ahead blocks evicted before they were requested.
        file_read_ahead_wasted,
        /// Blocks that a transmit found in memory.
        file_block_hits,
        /// Blocks that a transmit found being read for another one.
        file_block_shared_waits,
        /// Reads that failed.
        file_read_errors: alarm,
        /// Reads that found the file changed.
        file_changed,
        /// Transmits refused because they name a file or range that does not exist.
        file_bad_extents: alarm,
        /// Transmits that waited for memory.
        file_memory_waits,
        /// Blocks evicted.
        file_evicted,
        /// Blocks evicted with bytes that had been sent and not acknowledged.
        file_held_evicted,
        /// Acknowledgments by the host.
        file_acks,
        /// Invalidations of namespace ranges by the host.
        file_invalidations,
        /// Blocks that invalidations removed from the cache.
        file_invalidated_blocks,
        /// Invalidated blocks that were being read or still in use by transmits.
        file_detached_blocks,
        /// Acknowledgments, invalidations and closes of files that are not open.
        file_unknown: alarm,
        /// Disk completions of unknown requests, or of requests from before a reset.
        file_stale_completions: alarm,
        /// States that cannot occur: each count is a bug.
        nic_internal_errors,
    }
}
