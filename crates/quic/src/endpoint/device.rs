//! Events from the device and the disk: completed file reads, refusals and failures of offloads,
//! device resets. Called for the host's notices; events of connections that are gone are ignored,
//! those of the device are counted.

use std::sync::PoisonError;

use abi::quic::{QuicFailure, QuicStatus};
use abi::{FileFault, FlowId};
use base::Instant;
use host::{FaultScope, Host};

use super::QuicEndpoint;
use crate::connection::ReadPurpose;

impl QuicEndpoint {
    pub(super) fn handle_reads(&mut self, now: Instant, host: &mut Host) {
        while let Some(read) = host.poll_extent(self.reads.user()) {
            let Some(what) = self.reads.pending.remove(&read.number) else { continue };
            let (ReadPurpose::Stream { handle, .. } | ReadPurpose::Delayed { handle, .. }) = what;
            if self.get(handle).is_none() {
                continue;
            }
            self.run_and_settle(now, host, handle.index as usize, |connection, cx| match what {
                ReadPurpose::Stream { stream, extent, .. } => {
                    connection.handle_read(cx, stream, &extent, read.result);
                }
                ReadPurpose::Delayed { late, at, extent, .. } => {
                    connection.handle_delayed_read(cx, (late, at, extent), read.result);
                }
            });
        }
    }

    pub(super) fn handle_quic_status(&mut self, now: Instant, host: &mut Host, status: QuicStatus) {
        let handle = self.handles_by_context.get(&status.quic).copied();
        let Some(handle) = handle.filter(|handle| self.get(*handle).is_some()) else {
            self.counters.quic_events_ignored += 1;
            return;
        };
        self.handles_by_context.remove(&status.quic);
        self.run_and_settle(now, host, handle.index as usize, |connection, cx| {
            match status.failure {
                QuicFailure::Refused(why) => {
                    let bytes = connection.bytes;
                    connection.offload.handle_refusal(&mut cx.device(), status.quic, why, bytes);
                }
                QuicFailure::NotEncrypted => {
                    connection.offload.handle_not_encrypted(&mut cx.device(), status.quic)
                }
            }
        });
    }

    /// Handles a transmit that the device dropped because of its files.
    pub(super) fn handle_fault(
        &mut self,
        now: Instant,
        host: &mut Host,
        flow: FlowId,
        (scope, fault): (FaultScope, FileFault),
    ) {
        let Some(handle) = self.handles_by_flow.get(&flow).copied() else {
            self.counters.quic_events_ignored += 1;
            return;
        };
        self.run_and_settle(now, host, handle.index as usize, |connection, cx| {
            connection.handle_fault(cx, scope, fault);
        });
    }

    pub(super) fn handle_device_reset(&mut self, now: Instant, host: &mut Host) {
        self.handles_by_context.clear();
        for index in 0..self.connections.len() {
            self.run_and_settle(now, host, index, |connection, cx| {
                if connection.offload.contexts().next().is_some() {
                    cx.counters.quic_device_resets += 1;
                }
                // Operations queued just before the reset reach the device after it; remove their
                // contexts.
                connection.offload.remove(cx.host);
                connection.offload.reset();
                connection.read_files_on_host = false;
            });
        }
    }

    /// Releases the file ranges whose chunks quinn-proto has dropped.
    pub(super) fn release_file_ranges(&mut self, host: &mut Host) {
        let mut released = self.released_ranges.lock().unwrap_or_else(PoisonError::into_inner);
        for place in released.drain(..) {
            host.extent_release(place.file, place.offset, place.len, true);
            // The connection may be gone, and another one in its slot.
            let index = place.connection.index as usize;
            let connection = self.connections.get_mut(index).and_then(Option::as_mut);
            if let Some(connection) = connection.filter(|c| c.handle == place.connection) {
                connection.file_map.remove(&place);
            }
        }
    }
}
