//! The QUIC engine's interface to the device: operations, received datagrams, and transmits to
//! encrypt.
//!
//! UDP datagrams are examined while any entry receives, and go to the queue that has their
//! connection, regardless of their tuple, since connections migrate (RFC 9000 section 9). A
//! decrypted datagram may be merged with the one delivered before it.

use abi::quic::{QuicDecrypted, QuicFailure, QuicId, QuicProtect, QuicStatus};
use abi::{Capabilities, Checksum, Event, FlowId, Op, PacketBuf, ReceivedFrame, Refusal, Transmit};
use alloc::boxed::Box;
use alloc::sync::Arc;
use base::Instant;
use smallvec::smallvec;

use super::counters::QuicCounters;
use super::{QuicDatagram, QuicEncryptPlan, QuicEngine, batch};
use crate::config::DeviceConfig;
use crate::engine::Engine;
use crate::pipeline::Egress;
use crate::pipeline::headers::{TemplateKind, classify};
use crate::pipeline::rx::{OfferedRxFrame, RxTransport};

impl Engine for QuicEngine {
    const ALARMS: &'static [&'static str] = QuicCounters::ALARMS;

    fn from_config(config: &DeviceConfig) -> Option<Self> {
        config.quic.clone().map(|quic| Self::new(quic, config.rss_seed))
    }

    fn add_capabilities(&self, capabilities: &mut Capabilities) {
        capabilities.quic = Ok(self.limits());
    }

    fn handle_op(
        engine: Option<&mut Self>,
        now: Instant,
        queue: usize,
        op: Op,
        out: &mut Egress,
    ) -> Option<Op> {
        match op {
            Op::QuicAdd(add) => {
                let (quic, flow) = (add.quic, add.flow);
                let result = match engine {
                    Some(engine) => engine.add(queue, *add),
                    None => Err(Refusal::Disabled),
                };
                answer(queue, quic, result.map_err(|why| (flow, why)), out);
            }
            Op::QuicRekey(rekey) => {
                let result = engine.map_or(Ok(()), |engine| engine.rekey(queue, &rekey));
                answer(queue, rekey.quic, result, out);
            }
            Op::QuicRoute(route) => {
                let result = engine.map_or(Ok(()), |engine| engine.route(queue, &route));
                answer(queue, route.quic, result, out);
            }
            Op::QuicRemove { quic } => {
                if let Some(engine) = engine {
                    engine.remove(now, queue, quic);
                    engine.deliver_ready(out);
                }
            }
            other => return Some(other),
        }
        None
    }

    fn consume_frame(
        &mut self,
        now: Instant,
        arrived: &mut OfferedRxFrame<'_>,
        out: &mut Egress,
    ) -> bool {
        let RxTransport::Udp(at) = *arrived.transport else { return false };
        if !self.has_routes() {
            return false;
        }
        let ahead = self.ahead.take();
        let Some(hit) = self.find(arrived.received, &at) else { return false };
        let nothing = ReceivedFrame::new(PacketBuf::empty(), Checksum::Unchecked, 0, 0);
        let received = core::mem::replace(arrived.received, nothing);
        // A datagram that the host will not get must not advance the window.
        // The queue has no room, so the datagram is dropped, decrypted ahead or not.
        if !out.has_room(hit.queue) {
            out.deliver_or_drop(hit.queue, received);
            return true;
        }
        if let Some(datagram) = self.receive(now, hit, received, &at, ahead) {
            self.deliver(hit.queue, datagram, out);
        }
        self.deliver_ready(out);
        true
    }

    fn has_room(&self) -> bool {
        self.has_output_room()
    }

    fn reclaim_memory(&mut self) {
        self.trim();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due()
    }

    /// Abandons gaps for which datagrams have waited too long.
    fn handle_timeout(&mut self, now: Instant, out: &mut Egress) {
        self.run_timers(now);
        self.deliver_ready(out);
    }

    fn reset(&mut self, out: &mut Egress) {
        self.forget(&mut out.pool);
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.visit_counters(f);
    }
}

impl QuicEngine {
    /// Delivers the datagrams that no longer wait.
    fn deliver_ready(&mut self, out: &mut Egress) {
        while let Some((queue, datagram)) = self.poll_datagram() {
            self.deliver(queue, datagram, out);
        }
    }

    fn deliver(&mut self, queue: usize, datagram: QuicDatagram, out: &mut Egress) {
        let Some((quic, number)) = datagram.decrypted else {
            return out.deliver_or_drop(queue, datagram.received);
        };
        let append = |tail: &mut ReceivedFrame, pool: &mut _| batch::append(tail, &datagram, pool);
        if out.merge(queue, &datagram.received, append) {
            self.count_merged();
            return out.recycle(datagram.received.packet);
        }
        let opened = Some(Box::new(QuicDecrypted { quic, numbers: smallvec![number] }));
        out.deliver_or_drop(queue, ReceivedFrame { quic: opened, ..datagram.received });
    }
}

/// Reports a refusal to the host.
fn answer(queue: usize, quic: QuicId, result: Result<(), (FlowId, Refusal)>, out: &mut Egress) {
    if let Err((flow, why)) = result {
        let status = QuicStatus { quic, flow, failure: QuicFailure::Refused(why) };
        out.emit(queue, Event::QuicStatus(status));
    }
}

/// Plans the encryption that a transmit requests. Returns the entry, if one is named, and the plan,
/// if there are packets to encrypt.
///
/// # Errors
/// The entry whose packets cannot be encrypted.
#[inline]
pub(crate) fn plan_encryption(
    engine: Option<&mut QuicEngine>,
    queue: usize,
    transmit: &mut Transmit,
) -> Result<(Option<QuicId>, Option<Arc<QuicEncryptPlan>>), QuicId> {
    match transmit.quic.take() {
        None => Ok((None, None)),
        Some(protect) => plan(engine, queue, transmit, *protect),
    }
}

fn plan(
    engine: Option<&mut QuicEngine>,
    queue: usize,
    transmit: &Transmit,
    protect: QuicProtect,
) -> Result<(Option<QuicId>, Option<Arc<QuicEncryptPlan>>), QuicId> {
    let quic = protect.quic;
    let Some(engine) = engine else { return Err(quic) };
    if classify(&transmit.header) != Some(TemplateKind::Udp) {
        engine.refuse_malformed();
        return Err(quic);
    }
    let len = transmit.payload_len() as usize;
    let sealing = engine.plan(queue, protect, len, transmit.segment_size).map_err(|_| quic)?;
    Ok((Some(quic), sealing))
}
