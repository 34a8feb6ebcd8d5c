//! The engine's interface to the device: operations and received segments.

use abi::l5o::{L5oRefused, RxMetadata};
use abi::{Capabilities, Event, Op, Refusal};
use alloc::boxed::Box;
use base::Instant;

use super::L5oEngine;
use super::counters::L5oCounters;
use crate::config::DeviceConfig;
use crate::counters::concat_alarms;
use crate::engine::nvme_tcp::counters::NvmeTcpCounters;
use crate::engine::nvme_tcp::tx::NvmeTxCounters;
use crate::engine::{Engine, EngineRequest};
use crate::pipeline::Egress;
use crate::pipeline::rx::{OfferedRxFrame, tcp_payload};

/// Alarms of TLS, and of NVMe/TCP in both directions.
const PARTS: [&[&str]; 3] = [L5oCounters::ALARMS, NvmeTxCounters::ALARMS, NvmeTcpCounters::ALARMS];
const ALARMS: [&str; PARTS[0].len() + PARTS[1].len() + PARTS[2].len()] = concat_alarms(&PARTS);

impl Engine for L5oEngine {
    const ALARMS: &'static [&'static str] = &ALARMS;

    fn from_config(config: &DeviceConfig) -> Option<Self> {
        config.l5o.clone().map(|l5o| Self::new(l5o, config.rss_seed))
    }

    fn add_capabilities(&self, capabilities: &mut Capabilities) {
        capabilities.l5o = Ok(self.limits());
    }

    fn handle_op(
        engine: Option<&mut Self>,
        _now: Instant,
        queue: usize,
        op: Op,
        out: &mut Egress,
    ) -> Option<Op> {
        match (op, engine) {
            (Op::L5oCreate(create), engine) => {
                let (context, flow, why) = (create.context, create.flow, Refusal::Disabled);
                let refused = match engine {
                    Some(engine) => engine.create(queue, *create),
                    None => Some(L5oRefused { context, flow, reason: why }),
                };
                if let Some(refused) = refused {
                    out.emit(queue, Event::L5oRefused(refused));
                }
            }
            (Op::DdpSetup(setup), Some(engine)) => engine.ddp_setup(queue, *setup),
            (Op::DdpSetup(setup), None) => {
                let done = Box::new(setup.refuse(Refusal::Disabled));
                out.emit(queue, Event::DdpTeardownDone(done));
            }
            (Op::DdpTeardown { context, tag }, Some(engine)) => {
                engine.ddp_teardown(queue, context, tag);
            }
            (Op::L5oDestroy { context }, Some(engine)) => engine.destroy(queue, context),
            (Op::L5oResyncRxResp { context, tcpsn, number }, Some(engine)) => {
                engine.resync(queue, context, tcpsn, number);
            }
            (Op::DdpTeardown { .. } | Op::L5oDestroy { .. } | Op::L5oResyncRxResp { .. }, None) => {
            }
            (other, _) => return Some(other),
        }
        None
    }

    /// Decrypts what it can of a TCP segment, and emits resync requests.
    fn process_frame(&mut self, arrived: &mut OfferedRxFrame<'_>, out: &mut Egress) {
        if !self.has_receive_contexts() {
            return;
        }
        let Some((received, at)) = arrived.segment() else { return };
        let Some(tcp) = tcp_payload(received.packet.as_slice(), at) else { return };
        let payload = &mut received.packet.as_mut_slice()[tcp.range];
        let Some(outcome) = self.receive(&tcp.tuple, tcp.seq, payload) else { return };
        received.metadata = RxMetadata { decrypted: outcome.decrypted, stream: outcome.stream };
        for (queue, context, flow, request) in outcome.resync_requests {
            out.emit(queue, Event::L5oResyncRxReq { context, flow, request });
        }
    }

    #[inline]
    fn has_requests(&self) -> bool {
        self.has_returned_buffers()
    }

    /// Returns completed registered buffers, after the frame that completed them.
    fn poll_request(&mut self) -> Option<EngineRequest> {
        let (queue, done) = self.poll_returned()?;
        Some(EngineRequest::Emit(queue, Event::DdpTeardownDone(Box::new(done))))
    }

    fn on_requests_done(&mut self) {
        self.sweep();
    }

    fn has_room(&self) -> bool {
        self.has_output_room()
    }

    fn reclaim_memory(&mut self) {
        self.trim();
    }

    /// Registered buffers are returned to the host.
    fn reset(&mut self, out: &mut Egress) {
        self.forget();
        while let Some((queue, done)) = self.poll_returned() {
            out.emit(queue, Event::DdpTeardownDone(Box::new(done)));
        }
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.visit_counters(f);
    }
}
