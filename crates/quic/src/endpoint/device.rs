//! Events from the device and the disk: completed file reads, refusals and failures of offloads,
//! device resets. Called for the host's notices; events of connections that are gone are ignored,
//! those of the device are counted.

use std::sync::PoisonError;

use abi::quic::{QuicStatus, QuicTrouble};
use abi::{FileFault, FlowId};
use base::Instant;
use host::{FaultScope, Host};

use super::Endpoint;
use crate::connection::ReadFor;

impl Endpoint {
    pub(super) fn handle_reads(&mut self, now: Instant, host: &mut Host) {
        while let Some(read) = host.poll_extent(self.reads.user()) {
            let Some(what) = self.reads.pending.remove(&read.number) else { continue };
            let (ReadFor::Stream { handle, .. } | ReadFor::Late { handle, .. }) = what;
            if self.get(handle).is_none() {
                continue;
            }
            self.with(now, host, handle.index as usize, |connection, cx| match what {
                ReadFor::Stream { stream, extent, .. } => {
                    connection.handle_read(cx, stream, &extent, read.result);
                }
                ReadFor::Late { late, at, extent, .. } => {
                    connection.handle_late(cx, (late, at, extent), read.result);
                }
            });
        }
    }

    pub(super) fn handle_status(&mut self, now: Instant, host: &mut Host, status: QuicStatus) {
        let handle = self.names.get(&status.quic).copied();
        let Some(handle) = handle.filter(|handle| self.get(*handle).is_some()) else {
            self.counters.quic_events_ignored += 1;
            return;
        };
        self.names.remove(&status.quic);
        self.with(now, host, handle.index as usize, |connection, cx| match status.why {
            QuicTrouble::Refused(why) => {
                let bytes = connection.bytes;
                connection.offload.refuse(&mut cx.device(), status.quic, why, bytes);
            }
            QuicTrouble::NotSealed => connection.offload.not_sealed(&mut cx.device(), status.quic),
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
        let Some(handle) = self.flows.get(&flow).copied() else {
            self.counters.quic_events_ignored += 1;
            return;
        };
        self.with(now, host, handle.index as usize, |connection, cx| {
            connection.handle_fault(cx, scope, fault);
        });
    }

    pub(super) fn handle_device_reset(&mut self, now: Instant, host: &mut Host) {
        self.names.clear();
        for index in 0..self.connections.len() {
            self.with(now, host, index, |connection, cx| {
                if connection.offload.names().next().is_some() {
                    cx.counters.quic_device_resets += 1;
                }
                // Operations queued just before the reset reach the device after it; remove their
                // contexts.
                connection.offload.remove(cx.host);
                connection.offload.reset();
                connection.careful = false;
            });
        }
    }

    /// Releases the file ranges whose chunks quinn-proto has dropped.
    pub(super) fn release(&mut self, host: &mut Host) {
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        for place in released.drain(..) {
            host.extent_release(place.file, place.offset, place.len, true);
            // The connection may be gone, and another one in its slot.
            let index = place.connection.index as usize;
            let connection = self.connections.get_mut(index).and_then(Option::as_mut);
            if let Some(connection) = connection.filter(|c| c.handle == place.connection) {
                connection.placed.remove(&place);
            }
        }
    }
}
