//! The splice engine's interface to the device: operations and received segments.

use abi::{Capabilities, Event, Op, Refusal};
use base::Instant;
use wire::Tuple;

use super::SpliceEngine;
use super::counters::SpliceCounters;
use crate::config::DeviceConfig;
use crate::engine::Engine;
use crate::pipeline::Egress;
use crate::pipeline::rx::OfferedRxFrame;

impl Engine for SpliceEngine {
    const ALARMS: &'static [&'static str] = SpliceCounters::ALARMS;

    fn from_config(config: &DeviceConfig) -> Option<Self> {
        config.splice.clone().map(|splice| Self::new(splice, config.mac, config.rss_seed))
    }

    fn visit_connections(&self, f: &mut dyn FnMut(&Tuple)) {
        self.tuples().for_each(|tuple| f(&tuple));
    }

    fn add_capabilities(&self, capabilities: &mut Capabilities) {
        capabilities.splice = Ok(self.limits());
    }

    fn handle_op(
        engine: Option<&mut Self>,
        now: Instant,
        queue: usize,
        op: Op,
        out: &mut Egress,
    ) -> Option<Op> {
        match op {
            Op::Splice(splice) => {
                let result = match engine {
                    Some(engine) => engine.begin(now, queue, &splice, out),
                    None => Err(Refusal::Disabled),
                };
                out.emit(queue, Event::Spliced { id: splice.id, result });
            }
            Op::SpliceStart { id, packets } => match engine {
                Some(engine) => engine.start(now, queue, id, packets, out),
                None => packets.into_iter().for_each(|frame| out.recycle(frame.packet)),
            },
            Op::Unsplice { id } => {
                if let Some(engine) = engine {
                    engine.end(queue, id, out);
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
        if self.is_idle() {
            return false;
        }
        let Some((received, tcp)) = arrived.segment() else { return false };
        self.receive(now, received, tcp, out)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due()
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Egress) {
        self.run_timers(now, out);
    }

    fn quiesce(&mut self, _now: Instant, queue: usize, out: &mut Egress) {
        self.end_all(queue, out);
    }

    fn reset(&mut self, _out: &mut Egress) {
        self.forget();
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.visit_counters(f);
    }
}
