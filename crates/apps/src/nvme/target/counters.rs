//! What the target counts.

use wire::nvme::status::Status;

base::counters! {
    /// Counters of one target.
    pub struct Counters {
        /// States that the code excludes: each is a bug.
        nvmet_internal_errors: alarm,
        /// Connections accepted.
        nvmet_connections,
        /// Connections reset at once: `connections_max` were there.
        nvmet_connections_refused: alarm,
        /// Connections that ended otherwise than closed by the peer after its last command.
        nvmet_connections_lost,
        /// Of these, those that ended since the disk could not read what was being sent.
        nvmet_connections_unreadable: alarm,
        /// Connections that speak TLS by a pre-shared key.
        nvmet_tls_handshakes,
        /// Of the connections that were lost, those that never were secure, and had to be.
        nvmet_tls_handshakes_failed,
        /// Of these, those whose host did not speak TLS.
        nvmet_tls_plain: alarm,
        /// Connections that ended since a PDU was wrong, as this side or the peer said.
        nvmet_connections_terminated: alarm,
        /// Times that no more was taken of a connection, since its host had not acknowledged what
        /// it was answered.
        nvmet_stalls,
        /// Connections ended since no command came that connects them.
        nvmet_timeouts_connect,
        /// Connections ended since data of a write did not come.
        nvmet_timeouts_data,
        /// Connections ended since reads were not acknowledged: others waited too long for their
        /// blocks, or the connection was over and could not be closed.
        nvmet_timeouts_acknowledge,
        /// Controllers ended since their host was silent for too long.
        nvmet_timeouts_keep_alive,
        /// Controllers made, of discovery and of subsystems.
        nvmet_controllers,
        /// I/O queues connected.
        nvmet_queues,
        /// Connects refused since the host may not.
        nvmet_refused_host: alarm,
        /// Of these, those that named another host, or another subsystem, than their key is for.
        nvmet_refused_identity: alarm,
        /// Connects refused since there are too many controllers.
        nvmet_refused_busy: alarm,
        /// Connects refused for other reasons.
        nvmet_refused_connect: alarm,
        /// Commands refused since their host had more open than the queue has entries.
        nvmet_queue_overflows: alarm,
        /// Admin and Fabrics commands.
        nvmet_admin_commands,
        /// Reads.
        nvmet_reads,
        /// Bytes of reads, as they were sent.
        nvmet_read_bytes,
        /// Writes.
        nvmet_writes,
        /// Bytes of writes, as they were written.
        nvmet_written_bytes,
        /// Writes whose data came in their capsules.
        nvmet_writes_in_capsule,
        /// Writes that waited for memory.
        nvmet_waits_memory,
        /// Commands that waited for others on the same blocks.
        nvmet_waits_range,
        /// Flushes, of commands and for others that wanted it.
        nvmet_flushes,
        /// Writes of zeroes.
        nvmet_zeroes,
        /// Reads of blocks that were looked at before: a read that was being sent has failed.
        nvmet_reads_probed,
        /// Compares.
        nvmet_compares,
        /// Ranges deallocated.
        nvmet_deallocations,
        /// Aborts asked for.
        nvmet_aborts,
        /// Commands that were not done, since they were aborted or their queue was disconnected.
        nvmet_aborted,
        /// I/O queues disconnected.
        nvmet_disconnects,
        /// Asynchronous events reported.
        nvmet_events,
        /// Commands that failed since something in them was wrong.
        nvmet_errors_command,
        /// Commands that failed since their data came with a wrong digest.
        nvmet_errors_digest: alarm,
        /// Commands that failed since too much data of others in capsules waits for memory.
        nvmet_errors_memory,
        /// Commands that failed since the disk did.
        nvmet_errors_disk: alarm,
        /// Commands that failed since the disk has no room.
        nvmet_errors_full: alarm,
        /// Ends of disk operations whose connection was gone.
        nvmet_orphans,
        /// Namespaces that could not be opened.
        nvmet_namespaces_failed: alarm,
    }
}

impl Counters {
    /// Counts how a command failed.
    pub(super) fn count_failed(&mut self, status: Status) {
        *match status.code() {
            Status::TRANSIENT_TRANSPORT => &mut self.nvmet_errors_digest,
            Status::ABORT_REQUESTED | Status::ABORTED_QUEUE_DELETED => &mut self.nvmet_aborted,
            Status::COMMAND_INTERRUPTED => &mut self.nvmet_errors_memory,
            Status::CAPACITY_EXCEEDED => &mut self.nvmet_errors_full,
            Status::WRITE_FAULT | Status::UNRECOVERED_READ | Status::ACCESS_DENIED => {
                &mut self.nvmet_errors_disk
            }
            _ => &mut self.nvmet_errors_command,
        } += 1;
    }
}
