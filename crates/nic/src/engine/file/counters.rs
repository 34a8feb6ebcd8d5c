//! Counters of the file engine.

base::counters! {
    /// What the file engine did.
    pub(crate) struct FileCounters {
        /// Files asked for.
        file_opens,
        /// Of these, not opened: refused by us or by the disk.
        file_open_failures,
        /// Transmits with file content that left.
        file_transmits,
        /// File bytes that left, retransmissions included.
        file_bytes,
        /// Reads given to the disk.
        file_disk_reads,
        /// Bytes of these reads.
        file_disk_read_bytes,
        /// Reads of these that nobody had asked for yet.
        file_read_ahead,
        /// Of these, evicted before anybody asked.
        file_read_ahead_wasted,
        /// Blocks that a transmit found in memory.
        file_block_hits,
        /// Blocks that a transmit found being read for somebody else.
        file_block_shared_waits,
        /// Reads that the disk failed.
        file_read_errors: alarm,
        /// Reads that found the file changed.
        file_changed,
        /// Transmits refused for naming a file or a range that is not there.
        file_bad_extents: alarm,
        /// Transmits that waited for memory.
        file_memory_waits,
        /// Blocks evicted.
        file_evicted,
        /// Of these, with bytes that had been sent and not acknowledged.
        file_held_evicted,
        /// Acknowledgments by the host.
        file_acks,
        /// Ranges of namespaces that the host has written to.
        file_invalidations,
        /// Blocks that left the cache for that.
        file_invalidated_blocks,
        /// Of these, those that were being read, or that transmits on their way still use.
        file_detached_blocks,
        /// Acknowledgments, invalidations and closes of files that are not open.
        file_unknown: alarm,
        /// Completions that answer no request, or one from before a reset.
        file_stale_completions: alarm,
        /// States that the code excludes: each is a bug.
        nic_internal_errors,
    }
}
