//! The tear-down engine's interface to the device: handed-over connections and received segments.

use abi::teardown::{Teardown, TeardownRefused};
use abi::{Capabilities, Event, Refusal};
use alloc::boxed::Box;
use base::Instant;
use wire::Tuple;

use super::counters::TeardownCounters;
use super::{TeardownAction, TeardownEngine, TeardownVerdict};
use crate::config::{DeviceConfig, RUN_BYTES_MAX, TeardownConfig};
use crate::engine::file::FileEngine;
use crate::engine::{Engine, EngineRequest};
use crate::pipeline::Egress;
use crate::pipeline::rx::OfferedRxFrame;

/// Takes over a connection that a host has closed, and pins the files that it needs; or refuses it.
pub(crate) fn take_over(
    engine: Option<&mut TeardownEngine>,
    files: Option<&mut FileEngine>,
    now: Instant,
    queue: usize,
    teardown: Box<Teardown>,
    out: &mut Egress,
) {
    out.count_teardown(queue);
    let result = match engine {
        Some(engine) => engine.begin(now, queue, out.mtu_max, teardown, |parts| match files {
            Some(files) => files.pin(queue, parts),
            None => parts.iter().all(|part| part.extent().is_none()),
        }),
        None => Err((teardown, Refusal::Disabled)),
    };
    if let Err((teardown, why)) = result {
        out.emit(queue, Event::TeardownRefused(TeardownRefused { teardown, reason: why }));
    }
}

impl Engine for TeardownEngine {
    const ALARMS: &'static [&'static str] = TeardownCounters::ALARMS;

    fn from_config(config: &DeviceConfig) -> Option<Self> {
        let teardown = config.teardown.clone()?;
        // The unsent bytes go out as one transmit.
        let most = config.transmit_bytes_max.max(RUN_BYTES_MAX);
        let bytes_max = teardown.bytes_max.min(most);
        Some(Self::new(TeardownConfig { bytes_max, ..teardown }, config.rss_seed))
    }

    fn visit_connections(&self, f: &mut dyn FnMut(&Tuple)) {
        self.tuples().for_each(|tuple| f(&tuple));
    }

    fn add_capabilities(&self, capabilities: &mut Capabilities) {
        capabilities.teardown = Ok(self.limits());
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
        if self.receive(now, received.packet.as_slice(), tcp) == TeardownVerdict::Pass {
            return false;
        }
        out.recycle(received.take_packet());
        true
    }

    #[inline]
    fn has_requests(&self) -> bool {
        !self.transmits.is_empty() || !self.actions.is_empty()
    }

    fn poll_request(&mut self) -> Option<EngineRequest> {
        if let Some((queue, transmit)) = self.poll_transmit() {
            return Some(EngineRequest::Transmit(queue, transmit));
        }
        Some(match self.poll_action()? {
            TeardownAction::Cancel(queue, flow) => EngineRequest::CancelFlow(queue, flow),
            TeardownAction::TransmitIfWaiting(queue, flow, transmit) => {
                EngineRequest::TransmitIfWaiting(queue, flow, transmit)
            }
            TeardownAction::FileDone(extent) => EngineRequest::FileDone(extent),
            TeardownAction::Destroy(queue, context) => {
                EngineRequest::DestroyContext(queue, context)
            }
            TeardownAction::Done(queue, done) => {
                EngineRequest::Emit(queue, Event::TeardownDone(done))
            }
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due()
    }

    fn handle_timeout(&mut self, now: Instant, _out: &mut Egress) {
        self.run_timers(now);
    }

    fn quiesce(&mut self, now: Instant, queue: usize, _out: &mut Egress) {
        self.abort_all(now, queue);
    }

    fn reset(&mut self, _out: &mut Egress) {
        self.forget();
    }

    fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.visit_counters(f);
    }
}
