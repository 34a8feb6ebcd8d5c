//! The set-up engine's interface to the device: operations and received segments.

use abi::link::FramePayloads;
use abi::{Capabilities, Event, Op, Refusal};
use base::Instant;

use super::counters::SetupCounters;
use super::{SetupEngine, SetupVerdict};
use crate::config::DeviceConfig;
use crate::engine::Engine;
use crate::pipeline::rx::OfferedRxFrame;
use crate::pipeline::{Egress, TxRun};

impl Engine for SetupEngine {
    const ALARMS: &'static [&'static str] = SetupCounters::ALARMS;

    fn from_config(config: &DeviceConfig) -> Option<Self> {
        config.setup.clone().map(|setup| Self::new(setup, config.mac, config.rss_seed))
    }

    fn add_capabilities(&self, capabilities: &mut Capabilities) {
        capabilities.setup = Ok(self.limits());
    }

    fn handle_op(
        engine: Option<&mut Self>,
        now: Instant,
        queue: usize,
        op: Op,
        out: &mut Egress,
    ) -> Option<Op> {
        match op {
            Op::Listen(listen) => {
                let listener = listen.listener;
                let result = match engine {
                    Some(engine) => engine.listen(queue, *listen),
                    None => Err(Refusal::Disabled),
                };
                if let Err(why) = result {
                    out.emit(queue, Event::ListenRefused { listener, reason: why });
                }
            }
            Op::Unlisten { listener } => {
                if let Some(engine) = engine {
                    engine.unlisten(now, queue, listener);
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
        let queue = arrived.queue;
        let Some((received, tcp)) = arrived.segment() else { return false };
        let room = out.has_run_room();
        match self.receive(now, queue, received.packet.as_slice(), tcp, room) {
            SetupVerdict::Pass => return false,
            SetupVerdict::Mark(handshake) => {
                received.handshake = Some(handshake);
                return false;
            }
            SetupVerdict::Answer(header) => {
                let run = TxRun::from_header(header, FramePayloads::new());
                run.into_iter().for_each(|run| out.queue_run(run));
            }
            SetupVerdict::Deferred | SetupVerdict::Drop => {}
        }
        out.recycle(received.take_packet());
        true
    }

    fn reset(&mut self, _out: &mut Egress) {
        self.forget();
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.visit_counters(f);
    }
}
