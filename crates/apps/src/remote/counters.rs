//! Counters of remote files.

base::counters! {
    /// Counters of [`super::RemoteFiles`].
    pub struct RemoteCounters {
        /// Files opened.
        remote_opens,
        /// Opens that failed, for any reason.
        remote_opens_failed,
        /// Reads by the host that were answered.
        remote_reads,
        /// Reads answered from a unit that was in the cache.
        remote_cache_hits,
        /// Units that had to be fetched for a read.
        remote_cache_misses,
        /// Units fetched before a read needed them.
        remote_read_ahead_units,
        /// Units removed from the cache to make room.
        remote_cache_evictions,
        /// Bytes of files read from namespaces.
        remote_fetched_bytes,
        /// Bytes that the host copied because a read spans two buffers.
        remote_copied_bytes,
        /// Pages of metadata read from namespaces.
        remote_metadata_pages,
        /// Inodes read again after a unit, to detect changes.
        remote_verifications,
        /// Superblocks found changed: the file system was mounted, checked or replaced.
        remote_superblock_changes,
        /// Open files found changed.
        remote_files_changed,
        /// Structures of a file system that are invalid or have a wrong checksum, also in fresh
        /// pages.
        remote_corrupt: alarm,
        /// Reads of namespaces that failed.
        remote_read_errors,
        /// Outages: times from the loss of an association, or the first failure to establish it, to
        /// the next association.
        remote_outages,
        /// Opens and reads that were given up because a target did not answer in time.
        remote_timeouts,
    }
}
