//! A transmit's path through the device: planned, resolved from the disk, encrypted, and made a run
//! of packets; or dropped, which its echo reports.
//!
//! [`Device`] calls it for transmits of hosts and of engines. The transmits of a flow leave in the
//! order in which they arrived, no matter how long each waits; after one that failed, those that
//! wait behind it are dropped too, so that no data follows a hole.

use abi::link::{FramePayload, FramePayloads};
use abi::quic::{QuicFailure, QuicId, QuicStatus};
use abi::{
    Event, FileFault, FlowId, Refusal, Transmit, TransmitDone, TransmitOutcome, TransmitPart,
    TransmitParts,
};
use base::{Duration, Instant, internal_error};

use super::Device;
use crate::engine::file::{FileStart, PINNED};
use crate::engine::l5o::TxRefused;
use crate::engine::quic::{self, QuicEngine};
use crate::engine::{EngineRequest, ResolvedPayload};
use crate::flow::{FlowQueueKey, PendingState, PendingTransmit};
use crate::pipeline::TxRun;
use crate::pipeline::tx::{CheckedTransmit, advance_timestamp, check_transmit};

/// Fault of a transmit that no context could complete: the host has to encrypt it.
const NOT_ENCRYPTED: FileFault = FileFault::Refused(Refusal::Encrypted);

impl Device {
    /// Takes a transmit of the host of `queue`, and its payload. `names` is the queue by whose file
    /// numbers its files are looked up, or `PINNED` for those of an engine.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        queue: usize,
        names: usize,
        transmit: &mut Transmit,
    ) {
        let plain = transmit.quic.is_none()
            && transmit.parts.iter().all(|part| matches!(part, TransmitPart::Host(_)))
            && !self.flows.is_waiting(queue, transmit.flow);
        if plain {
            self.transmit_plain(queue, transmit);
        } else {
            self.transmit_completed(now, queue, names, transmit);
        }
    }

    /// Sends a transmit from the host's memory, which need not wait.
    fn transmit_plain(&mut self, queue: usize, transmit: &mut Transmit) {
        let kind = check_transmit(transmit, self.egress.mtu_max, self.config.transmit_bytes_max);
        let Some(kind) = kind else { return self.drop_malformed(queue, transmit) };
        if let (Some(position), Some(guard)) = (transmit.timestamp, &mut self.timestamp_guard) {
            let by = (queue, transmit.flow);
            advance_timestamp(&mut transmit.header, position, Duration::ZERO, by, guard);
        }
        let payload = host_payloads(&mut transmit.parts);
        let header = transmit.header.clone();
        self.egress.queue_run(TxRun::new(header, kind, payload, transmit.segment_size));
        let sent = TransmitOutcome::Sent;
        self.report(queue, transmit.flow, transmit.echo, Duration::ZERO, sent);
    }

    /// Takes a transmit that engines complete, or that waits.
    fn transmit_completed(
        &mut self,
        now: Instant,
        queue: usize,
        names: usize,
        transmit: &mut Transmit,
    ) {
        let (flow, echo, first) = (transmit.flow, transmit.echo, !transmit.retransmission);
        let planned = quic::plan_encryption(self.engines.quic.as_mut(), queue, transmit);
        let (quic, sealing) = match planned {
            Ok((quic, sealing)) => (quic, sealing),
            Err(quic) => return self.drop_unencrypted(queue, flow, quic, echo),
        };
        let kind = check_transmit(transmit, self.egress.mtu_max, self.config.transmit_bytes_max);
        let parts = core::mem::take(&mut transmit.parts);
        let planned = kind.map(|kind| {
            let mut outgoing = CheckedTransmit::new(queue, now, transmit, kind);
            let parts = self.plan(&mut outgoing, parts);
            (outgoing, parts)
        });
        let (outgoing, parts) = match planned {
            Some((mut outgoing, Ok(parts))) => {
                outgoing.quic_encryption = sealing;
                (outgoing, Some(parts))
            }
            Some((outgoing, Err(TxRefused::NotEncrypted))) => (outgoing, None),
            None | Some((_, Err(TxRefused::Malformed))) => {
                if let Some(quic) = quic {
                    self.engines.quic.as_mut().map(QuicEngine::refuse_malformed);
                    return self.drop_unencrypted(queue, flow, quic, echo);
                }
                return self.drop_malformed(queue, transmit);
            }
        };
        let behind = self.flows.is_waiting(queue, flow);
        let state = match parts {
            Some(parts) => self.resolve(names, parts, first),
            None => PendingState::Failed(NOT_ENCRYPTED),
        };
        match state {
            PendingState::Ready(resolved) if !behind => {
                self.send(now, outgoing, resolved);
            }
            PendingState::Failed(fault) if !behind => self.drop_transmit(now, &outgoing, fault),
            state => self.queue_transmit(now, outgoing, state),
        }
    }

    fn drop_malformed(&mut self, queue: usize, transmit: &Transmit) {
        self.egress.tx.tx_dropped_malformed += 1;
        let outcome = TransmitOutcome::Dropped(FileFault::BadExtent);
        self.report(queue, transmit.flow, transmit.echo, Duration::ZERO, outcome);
    }

    /// Replaces a transmit's encrypted parts and PDU ranges by the content from which they are
    /// made.
    fn plan(
        &mut self,
        outgoing: &mut CheckedTransmit,
        parts: TransmitParts,
    ) -> Result<TransmitParts, TxRefused> {
        if !parts.iter().any(|part| matches!(part, TransmitPart::Records(_) | TransmitPart::Pdu(_)))
        {
            return Ok(parts);
        }
        let Some(l5o) = &mut self.engines.l5o else { return Err(TxRefused::NotEncrypted) };
        let (pieces, parts) = l5o.plan(outgoing.queue, parts)?;
        outgoing.l5o_plan = pieces;
        Ok(parts)
    }

    /// Looks up the payload of a transmit: ready, waiting for the disk, or failed.
    fn resolve(&mut self, names: usize, mut parts: TransmitParts, first: bool) -> PendingState {
        if parts.iter().any(|part| matches!(part, TransmitPart::File(_))) {
            let Some(files) = &mut self.engines.files else {
                return PendingState::Failed(FileFault::BadExtent);
            };
            return match files.start(names, parts, first) {
                Ok(FileStart::Ready(resolved)) => PendingState::Ready(resolved),
                Ok(FileStart::Waiting(job)) => PendingState::Waiting(job),
                Err(fault) => PendingState::Failed(fault),
            };
        }
        let payloads = host_payloads(&mut parts);
        PendingState::Ready(ResolvedPayload { payloads, ..ResolvedPayload::default() })
    }

    /// Queues a transmit behind those of its flow.
    fn queue_transmit(&mut self, now: Instant, outgoing: CheckedTransmit, state: PendingState) {
        let job = match state {
            PendingState::Waiting(job) => Some(job),
            PendingState::Ready(_) | PendingState::Failed(_) => None,
        };
        if self.flows.len() >= self.config.pending_transmits_max {
            self.egress.tx.tx_dropped_table_full += 1;
            if let (Some(job), Some(files)) = (job, &mut self.engines.files) {
                files.cancel(job);
            }
            let outcome = TransmitOutcome::Dropped(FileFault::Refused(Refusal::TableFull));
            return self.report_end(now, &outgoing, outcome);
        }
        self.egress.tx.tx_waits += 1;
        let token = self.flows.push(PendingTransmit { outgoing, state });
        if let (Some(job), Some(files)) = (job, &mut self.engines.files) {
            files.admit(job, token);
        }
    }

    /// Fulfills the requests of engines until none is left.
    #[inline]
    pub(super) fn fulfill_requests(&mut self, now: Instant) {
        while self.engines.have_requests() {
            if let Some(request) = self.engines.poll_request() {
                self.fulfill_request(now, request);
            }
        }
        self.engines.on_requests_done();
    }

    fn fulfill_request(&mut self, now: Instant, request: EngineRequest) {
        match request {
            EngineRequest::Transmit(queue, mut transmit) => {
                self.transmit(now, queue, PINNED, &mut transmit);
            }
            EngineRequest::CancelFlow(queue, flow) => self.cancel_flow(now, queue, flow),
            EngineRequest::TransmitIfWaiting(queue, flow, mut transmit) => {
                if self.flows.queue_of_flow(queue, flow).is_some() {
                    self.transmit(now, queue, PINNED, &mut transmit);
                }
            }
            EngineRequest::FileDone(extent) => {
                if let Some(files) = &mut self.engines.files {
                    files.acknowledge(PINNED, extent);
                    files.unpin(extent.file);
                }
            }
            EngineRequest::DestroyContext(queue, context) => {
                if let Some(l5o) = &mut self.engines.l5o {
                    l5o.destroy(queue, context);
                }
            }
            EngineRequest::Resolved(transmit, result) => {
                self.flows
                    .set(transmit, result.map_or_else(PendingState::Failed, PendingState::Ready));
                if let Some(line) = self.flows.queue_of(transmit) {
                    self.send_resolved(now, line);
                }
            }
            EngineRequest::Emit(queue, event) => self.egress.emit(queue, event),
        }
    }

    /// Sends the ready transmits at the head of a line. If the head has failed, the whole line is
    /// dropped, so that no data follows a hole; the flow's entry is removed with it, and later
    /// transmits of the host leave. QUIC packets are independent, so theirs are not dropped.
    fn send_resolved(&mut self, now: Instant, line: FlowQueueKey) {
        while let Some(PendingTransmit { outgoing, state }) = self.flows.pop_resolved(line) {
            let alone = outgoing.quic_encryption.is_some();
            match state {
                PendingState::Ready(resolved) => {
                    if self.send(now, outgoing, resolved) {
                        continue;
                    }
                }
                PendingState::Failed(fault) => self.drop_transmit(now, &outgoing, fault),
                PendingState::Waiting(_) => {
                    let counter = &mut self.egress.internal.nic_internal_errors;
                    internal_error!(*counter, "a transmit that waits is at its turn");
                    continue;
                }
            }
            if alone {
                continue;
            }
            while let Some(behind) = self.flows.pop(line) {
                self.drop_after_failure(now, behind);
            }
        }
    }

    /// Sends a transmit whose payload is at hand. Returns whether it could be completed; otherwise
    /// it was dropped.
    fn send(
        &mut self,
        now: Instant,
        mut outgoing: CheckedTransmit,
        mut resolved: ResolvedPayload,
    ) -> bool {
        if let (false, Some(l5o)) = (outgoing.l5o_plan.is_empty(), &mut self.engines.l5o) {
            let pieces = core::mem::take(&mut outgoing.l5o_plan);
            let (seq, size) = (outgoing.seq(), outgoing.segment_size());
            let jobs = self.crypto.as_mut().map(|crypto| &mut crypto.staged_tls);
            match l5o.encrypt(pieces, seq, size, &resolved.payloads, jobs) {
                Ok(sealed) => resolved.payloads = sealed,
                Err(_) => {
                    if let Some(crypto) = &mut self.crypto {
                        crypto.drop_staged();
                    }
                    self.drop_transmit(now, &outgoing, NOT_ENCRYPTED);
                    return false;
                }
            }
        }
        if let Some(sealing) = outgoing.quic_encryption.take() {
            let quic = self.engines.quic.as_mut();
            let jobs = self.crypto.as_mut().map(|crypto| &mut crypto.staged_quic);
            let sealed = quic.map(|quic| quic.encrypt(&sealing, &resolved.payloads, jobs));
            let Some(Ok(sealed)) = sealed else {
                self.drop_unencrypted(outgoing.queue, outgoing.flow, sealing.quic, outgoing.echo);
                return false;
            };
            resolved.payloads = sealed;
        }
        self.report_end(now, &outgoing, TransmitOutcome::Sent);
        if let Some(files) = &mut self.engines.files {
            files.on_transmit_sent(&resolved.holds, resolved.file_bytes);
        }
        let delay = now.since(outgoing.taken_at);
        let segment_size = outgoing.segment_size();
        let mut run = outgoing.into_run(resolved.payloads, delay, self.timestamp_guard.as_mut());
        if let Some(crypto) = &mut self.crypto {
            run.await_parts(crypto.post_staged(self.egress.runs.next_number()), segment_size);
        }
        self.egress.queue_run(run);
        true
    }

    fn drop_transmit(&mut self, now: Instant, outgoing: &CheckedTransmit, fault: FileFault) {
        *match fault {
            FileFault::Refused(_) => &mut self.egress.tx.tx_dropped_l5o,
            _ => &mut self.egress.tx.tx_dropped_file,
        } += 1;
        self.report_end(now, outgoing, TransmitOutcome::Dropped(fault));
    }

    /// Drops a transmit whose QUIC packets cannot be encrypted; the connection sees a packet loss.
    fn drop_unencrypted(&mut self, queue: usize, flow: FlowId, quic: QuicId, echo: Option<u32>) {
        self.egress.tx.tx_dropped_quic += 1;
        self.egress.emit(
            queue,
            Event::QuicStatus(QuicStatus { quic, flow, failure: QuicFailure::NotEncrypted }),
        );
        let outcome = TransmitOutcome::Dropped(FileFault::Refused(Refusal::DoesNotFit));
        self.report(queue, flow, echo, Duration::ZERO, outcome);
    }

    fn drop_after_failure(&mut self, now: Instant, behind: PendingTransmit) {
        if let (PendingState::Waiting(job), Some(files)) = (behind.state, &mut self.engines.files) {
            files.cancel(job);
        }
        self.egress.tx.tx_dropped_flow_failed += 1;
        let outcome = TransmitOutcome::Dropped(FileFault::FlowFailed);
        self.report_end(now, &behind.outgoing, outcome);
    }

    /// Drops the waiting transmits of a flow.
    pub(super) fn cancel_flow(&mut self, now: Instant, queue: usize, flow: FlowId) {
        let Some(line) = self.flows.queue_of_flow(queue, flow) else { return };
        while let Some(behind) = self.flows.pop(line) {
            self.drop_after_failure(now, behind);
        }
    }

    fn report_end(&mut self, now: Instant, outgoing: &CheckedTransmit, outcome: TransmitOutcome) {
        let delay = now.since(outgoing.taken_at);
        self.report(outgoing.queue, outgoing.flow, outgoing.echo, delay, outcome);
    }

    /// Reports the outcome of a transmit to its host, if it asked for an echo.
    fn report(
        &mut self,
        queue: usize,
        flow: FlowId,
        echo: Option<u32>,
        delay: Duration,
        outcome: TransmitOutcome,
    ) {
        let Some(tag) = echo else { return };
        self.egress.tx.tx_echoes += u64::from(outcome == TransmitOutcome::Sent);
        self.egress.emit(queue, Event::TransmitDone(TransmitDone { flow, tag, delay, outcome }));
    }
}

/// Removes the parts in the host's memory, and returns them as payload of a frame. There are no
/// other parts.
#[inline]
fn host_payloads(parts: &mut TransmitParts) -> FramePayloads {
    let mut payloads = FramePayloads::new();
    for part in parts.drain(..) {
        debug_assert!(matches!(part, TransmitPart::Host(_)), "completed before: {part:?}");
        if let TransmitPart::Host(bytes) = part {
            if !bytes.is_empty() {
                payloads.push(FramePayload::Host(bytes));
            }
        }
    }
    payloads
}
