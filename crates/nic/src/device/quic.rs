//! Half of [`Device`]: where the QUIC engine meets datagrams, operations, transmits and time.
//!
//! Called by the other half. A UDP datagram is offered to the engine while any entry receives, and
//! goes to the queue that has its connection, whatever its tuple says: connections move (RFC 9000,
//! section 9). What is opened may become one frame with what was delivered before it.

use abi::quic::{Opened, QuicAdd, QuicId, QuicRekey, QuicRoute, QuicStatus, QuicTrouble};
use abi::{Event, FlowId, Received, Refusal, Transmit};
use alloc::boxed::Box;
use base::Instant;
use smallvec::smallvec;

use super::Device;
use crate::engine::quic::{Datagram, QuicEngine, Sealing};
use crate::pipeline::headers::{Kind, classify};
use crate::pipeline::rx::TransportAt;

impl Device {
    /// A UDP datagram came in, whose flow belongs to `queue`.
    pub(crate) fn receive_datagram(
        &mut self,
        now: Instant,
        queue: usize,
        received: Received,
        at: &TransportAt,
    ) {
        let quic = self.quic.as_mut().filter(|quic| quic.receives());
        let Some(hit) = quic.and_then(|quic| quic.find(&received, at)) else {
            return self.deliver(queue, received);
        };
        // What the host will not get must not count as received.
        if !self.has_room(hit.queue) {
            return self.deliver(hit.queue, received);
        }
        let datagram = self.quic.as_mut().and_then(|quic| quic.receive(now, hit, received, at));
        if let Some(datagram) = datagram {
            self.deliver_datagram(hit.queue, datagram);
        }
        self.settle_datagrams();
    }

    /// Delivers what waited, and waits no more.
    fn settle_datagrams(&mut self) {
        while let Some((queue, datagram)) = self.quic.as_mut().and_then(QuicEngine::poll_datagram) {
            self.deliver_datagram(queue, datagram);
        }
    }

    fn deliver_datagram(&mut self, queue: usize, datagram: Datagram) {
        let Some((quic, number)) = datagram.opened else {
            return self.deliver(queue, datagram.received);
        };
        if self.append(queue, &datagram) {
            if let Some(engine) = &mut self.quic {
                engine.count_merged();
            }
            return self.pool().put(datagram.received.packet);
        }
        let opened = Some(Box::new(Opened { quic, numbers: smallvec![number] }));
        self.deliver(queue, Received { quic: opened, ..datagram.received });
    }

    /// Gives up the gaps that packets have waited for too long for.
    pub(crate) fn handle_quic_timeout(&mut self, now: Instant) {
        let due = |quic: &&mut QuicEngine| quic.poll_timeout().is_some_and(|at| at <= now);
        if let Some(quic) = self.quic.as_mut().filter(due) {
            quic.handle_timeout(now);
            self.settle_datagrams();
        }
    }

    pub(crate) fn quic_add(&mut self, queue: usize, add: QuicAdd) {
        let (quic, flow) = (add.quic, add.flow);
        let result = match &mut self.quic {
            Some(engine) => engine.add(queue, add),
            None => Err(Refusal::Disabled),
        };
        self.answer(queue, quic, result.map_err(|why| (flow, why)));
    }

    pub(crate) fn quic_rekey(&mut self, queue: usize, rekey: &QuicRekey) {
        let result = self.quic.as_mut().map_or(Ok(()), |engine| engine.rekey(queue, rekey));
        self.answer(queue, rekey.quic, result);
    }

    pub(crate) fn quic_route(&mut self, queue: usize, route: &QuicRoute) {
        let result = self.quic.as_mut().map_or(Ok(()), |engine| engine.route(queue, route));
        self.answer(queue, route.quic, result);
    }

    pub(crate) fn quic_remove(&mut self, now: Instant, queue: usize, quic: QuicId) {
        if let Some(engine) = &mut self.quic {
            engine.remove(now, queue, quic);
        }
        self.settle_datagrams();
    }

    /// Says what was refused.
    fn answer(&mut self, queue: usize, quic: QuicId, result: Result<(), (FlowId, Refusal)>) {
        if let Err((flow, why)) = result {
            let status = QuicStatus { quic, flow, why: QuicTrouble::Refused(why) };
            self.emit(queue, Event::QuicStatus(status));
        }
    }

    /// Checks what a transmit wants sealed. Gives whose packets it has, and the plan if any of them
    /// is to be sealed.
    ///
    /// # Errors
    /// Whose packets cannot be.
    pub(crate) fn plan_sealing(
        &mut self,
        queue: usize,
        transmit: &mut Transmit,
    ) -> Result<(Option<QuicId>, Option<Box<Sealing>>), QuicId> {
        let Some(protect) = transmit.protect.take() else { return Ok((None, None)) };
        let quic = protect.quic;
        let Some(engine) = &mut self.quic else { return Err(quic) };
        if classify(&transmit.header) != Some(Kind::Udp) {
            engine.refuse_malformed();
            return Err(quic);
        }
        let len = transmit.payload_len() as usize;
        let sealing = engine.plan(queue, *protect, len, transmit.segment_size).map_err(|_| quic)?;
        Ok((Some(quic), sealing))
    }
}
