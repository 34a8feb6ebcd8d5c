//! The engine's interface to the device: one operation, and every frame in both directions.

use abi::link::TxFrame;
use abi::{Event, Op, PacketHeader, Refusal};
use base::Instant;

use super::counters::CountCounters;
use super::{CountEngine, add, tuple_of, tuple_of_relayed};
use crate::config::DeviceConfig;
use crate::engine::Engine;
use crate::pipeline::Egress;
use crate::pipeline::rx::{OfferedRxFrame, RxTransport};

impl Engine for CountEngine {
    const ALARMS: &'static [&'static str] = CountCounters::ALARMS;

    /// Always present, since it costs nothing while no flow is counted.
    fn from_config(config: &DeviceConfig) -> Option<Self> {
        Some(Self::new(config.rss_seed))
    }

    fn handle_op(
        engine: Option<&mut Self>,
        _now: Instant,
        queue: usize,
        op: Op,
        out: &mut Egress,
    ) -> Option<Op> {
        let Op::CountFlow { tuple, request } = op else { return Some(op) };
        let answer = match engine {
            Some(engine) => engine.ask(queue, &tuple, request),
            None => Some(Err(Refusal::Disabled)),
        };
        if let Some(result) = answer {
            out.emit(queue, Event::FlowCounted { tuple, result });
        }
        None
    }

    // Inlined: called for every frame, and flows are rarely counted.
    #[inline]
    fn consume_frame(
        &mut self,
        now: Instant,
        arrived: &mut OfferedRxFrame<'_>,
        _out: &mut Egress,
    ) -> bool {
        if !self.flows.is_empty() {
            self.count_received(now, arrived);
        }
        false
    }

    #[inline]
    fn on_frame_sent(&mut self, now: Instant, frame: &TxFrame, packets: u64, bytes: u64) {
        if !self.flows.is_empty() {
            self.count_sent(now, frame, packets, bytes);
        }
    }

    fn on_frame_refused(&mut self, header: &PacketHeader, packets: u64, bytes: u64) {
        let tuple = tuple_of(header);
        if let Some(counts) = tuple.and_then(|tuple| self.counts_of(&tuple)) {
            // Counting may have started after the frame was first announced.
            counts.sent.frames = counts.sent.frames.saturating_sub(packets);
            counts.sent.bytes = counts.sent.bytes.saturating_sub(bytes);
        }
    }

    fn quiesce(&mut self, _now: Instant, queue: usize, _out: &mut Egress) {
        self.flows.retain(|flow| flow.queue != queue);
    }

    fn reset(&mut self, _out: &mut Egress) {
        self.flows.clear();
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(f);
        f("count_flows", self.flows.len() as u64);
    }
}

impl CountEngine {
    fn count_received(&mut self, now: Instant, arrived: &OfferedRxFrame<'_>) {
        let (RxTransport::Tcp(at) | RxTransport::Udp(at)) = arrived.transport else { return };
        if let Some(counts) = self.counts_of(&at.tuple) {
            add(&mut counts.received, now, 1, arrived.received.packet.len() as u64);
        }
    }

    fn count_sent(&mut self, now: Instant, frame: &TxFrame, packets: u64, bytes: u64) {
        let tuple = if frame.header.is_empty() {
            tuple_of_relayed(frame.headers())
        } else {
            tuple_of(&frame.header)
        };
        if let Some(counts) = tuple.and_then(|tuple| self.counts_of(&tuple)) {
            add(&mut counts.sent, now, packets, bytes);
        }
    }
}
