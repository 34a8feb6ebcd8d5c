//! Counters of the target.

use wire::nvme::status::NvmeStatus;

base::counters! {
    /// Counters of one target.
    pub struct NvmeTargetCounters {
        /// States that cannot occur: each is a bug.
        nvmet_internal_errors: alarm,
        /// Connections accepted.
        nvmet_connections,
        /// Connections reset at once because `connections_max` were open.
        nvmet_connections_refused: alarm,
        /// Connections that ended because TCP or TLS failed, or the peer never sent ICReq.
        nvmet_connections_lost,
        /// Lost connections that ended because the disk could not read data that was being sent.
        nvmet_connections_unreadable: alarm,
        /// Connections with TLS by a pre-shared key.
        nvmet_tls_handshakes,
        /// Lost connections that ended before a required TLS handshake was complete.
        nvmet_tls_handshakes_failed,
        /// Of these, connections whose initiator did not speak TLS.
        nvmet_tls_plain: alarm,
        /// Connections terminated because of a wrong PDU, by this side or the peer.
        nvmet_connections_terminated: alarm,
        /// Times that the target stopped reading from a connection because its initiator had not
        /// acknowledged responses.
        nvmet_stalls,
        /// Connections ended because no Connect command came in time.
        nvmet_timeouts_connect,
        /// Connections ended because data of a write did not come in time.
        nvmet_timeouts_data,
        /// Connections ended because sent data was not acknowledged in time: commands of others
        /// waited for the same blocks, or the connection had ended and could not be closed.
        nvmet_timeouts_acknowledge,
        /// Controllers ended because their keep alive timer expired.
        nvmet_timeouts_keep_alive,
        /// Controllers created, discovery controllers included.
        nvmet_controllers,
        /// I/O queues connected.
        nvmet_queues,
        /// Connects refused because the host NQN is not allowed.
        nvmet_refused_host: alarm,
        /// Connects refused because their host NQN or subsystem NQN is not that of the pre-shared
        /// key.
        nvmet_refused_identity: alarm,
        /// Connects refused because `controllers_max` controllers exist.
        nvmet_refused_busy: alarm,
        /// Connects refused for other reasons.
        nvmet_refused_connect: alarm,
        /// Commands refused because the initiator had more open than the queue has entries.
        nvmet_queue_overflows: alarm,
        /// Admin and Fabrics commands.
        nvmet_admin_commands,
        /// Reads.
        nvmet_reads,
        /// Bytes of reads, counted when they are sent.
        nvmet_read_bytes,
        /// Writes.
        nvmet_writes,
        /// Bytes of writes, counted when they are written.
        nvmet_written_bytes,
        /// Writes with in-capsule data.
        nvmet_writes_in_capsule,
        /// Commands that waited for memory for their data.
        nvmet_waits_memory,
        /// Commands that waited for a lock on their blocks.
        nvmet_waits_range,
        /// Ranges written on other queues that this queue's device had to read anew.
        nvmet_invalidations,
        /// Flushes of the disk, by Flush commands and for FUA of Write Zeroes.
        nvmet_flushes,
        /// Write Zeroes commands.
        nvmet_zeroes,
        /// Reads whose blocks were first read and checked, because sending them had failed before.
        nvmet_reads_probed,
        /// Compare commands.
        nvmet_compares,
        /// Ranges deallocated by Dataset Management commands.
        nvmet_deallocations,
        /// Abort commands.
        nvmet_aborts,
        /// Commands that were not executed because they were aborted or their queue was
        /// disconnected.
        nvmet_aborted,
        /// I/O queues disconnected.
        nvmet_disconnects,
        /// Asynchronous events reported.
        nvmet_events,
        /// Commands that failed because of an error in the command.
        nvmet_errors_command,
        /// Commands that failed because of a wrong data digest.
        nvmet_errors_digest: alarm,
        /// Commands that failed because too much in-capsule data waits for memory.
        nvmet_errors_memory,
        /// Commands that failed because their data contains a denied pattern.
        nvmet_errors_denied,
        /// Commands that failed because of a disk error.
        nvmet_errors_disk: alarm,
        /// Commands that failed because the disk is full.
        nvmet_errors_full: alarm,
        /// Disk operations that ended after their connection.
        nvmet_orphans,
        /// Namespaces that could not be opened.
        nvmet_namespaces_failed: alarm,
    }
}

impl NvmeTargetCounters {
    /// Counts a failed command by its status.
    pub(super) fn count_failed(&mut self, status: NvmeStatus) {
        *match status.code() {
            NvmeStatus::TRANSIENT_TRANSPORT => &mut self.nvmet_errors_digest,
            NvmeStatus::ABORT_REQUESTED | NvmeStatus::ABORTED_QUEUE_DELETED => {
                &mut self.nvmet_aborted
            }
            NvmeStatus::COMMAND_INTERRUPTED => &mut self.nvmet_errors_memory,
            NvmeStatus::CAPACITY_EXCEEDED => &mut self.nvmet_errors_full,
            NvmeStatus::WRITE_FAULT | NvmeStatus::UNRECOVERED_READ | NvmeStatus::ACCESS_DENIED => {
                &mut self.nvmet_errors_disk
            }
            _ => &mut self.nvmet_errors_command,
        } += 1;
    }
}
