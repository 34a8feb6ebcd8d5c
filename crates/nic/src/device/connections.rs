//! Half of [`Device`]: where the engines that take over connections meet packets, operations and
//! time.
//!
//! A received TCP segment with a right checksum is offered to splicing, tear-down and set-up, in
//! this order; the first that knows its tuple deals with it, any other goes on to the host. What
//! the engines want sent goes through the same pipeline as what the host wants.

use abi::port::{Payloads, RxFrame, TxFrame};
use abi::setup::{ListenId, SetupLimits, SetupListen};
use abi::splice::{Splice, SpliceId, SpliceLimits};
use abi::teardown::{Teardown, TeardownLimits, TeardownRefused};
use abi::{Event, Load, PacketPool, Received, Refusal};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use base::Instant;

use super::Device;
use crate::config::{DeviceConfig, RUN_BYTES_MAX, TeardownConfig};
use crate::engine::file::PINNED;
use crate::engine::setup::{SetupEngine, Verdict as SetupVerdict};
use crate::engine::splice::{SpliceEngine, SpliceInfo};
use crate::engine::teardown::{Action, TeardownEngine, Verdict as TeardownVerdict};
use crate::pipeline::Run;
use crate::pipeline::rx::TransportAt;

/// Thousandths of its time from which a device is busy, and to which it is.
const LOAD_HIGH: u16 = 950;
const LOAD_LOW: u16 = 700;

/// The engines that take over connections, as far as they are switched on.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) setup: Option<SetupEngine>,
    pub(crate) teardown: Option<TeardownEngine>,
    pub(crate) splice: Option<SpliceEngine>,
    /// The hosts were told that the device is busy.
    load_is_high: bool,
    /// Connections of each queue that the device was asked to tear down.
    teardowns: Vec<u32>,
    /// Frames that hosts gave back.
    returned: u64,
}

impl Device {
    /// Offers a segment to the engines. Says whether one of them has taken it, and its buffer.
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        queue: usize,
        received: &mut Received,
        tcp: &TransportAt,
    ) -> bool {
        if let Some((splice, mut out)) = self.splicing().filter(|(splice, _)| !splice.is_idle()) {
            let taken = splice.receive(now, received, tcp, &mut out);
            if splice.has_closed() {
                self.settle_splices();
            }
            if taken {
                return true;
            }
        }
        let taken = self.offer_to_teardown(now, received, tcp)
            || self.offer_to_setup(now, queue, received, tcp);
        if taken {
            self.pool().put(received.take_packet());
        }
        taken
    }

    fn offer_to_teardown(&mut self, now: Instant, received: &Received, tcp: &TransportAt) -> bool {
        let teardown = self.connections.teardown.as_mut().filter(|t| !t.is_idle());
        let Some(teardown) = teardown else { return false };
        if teardown.receive(now, received.packet.as_slice(), tcp) == TeardownVerdict::Pass {
            return false;
        }
        self.settle_teardowns(now);
        true
    }

    fn offer_to_setup(
        &mut self,
        now: Instant,
        queue: usize,
        received: &mut Received,
        tcp: &TransportAt,
    ) -> bool {
        let room = self.has_run_room();
        let setup = self.connections.setup.as_mut().filter(|setup| !setup.is_idle());
        let Some(setup) = setup else { return false };
        match setup.receive(now, queue, received.packet.as_slice(), tcp, room) {
            SetupVerdict::Pass => return false,
            SetupVerdict::Established(established) => {
                received.established = Some(established);
                return false;
            }
            SetupVerdict::Answer(header) => {
                if let Some(run) = Run::of_header(header, Payloads::new()) {
                    self.push_run(run);
                }
            }
            SetupVerdict::Deferred | SetupVerdict::Drop => {}
        }
        true
    }

    pub(crate) fn listen(&mut self, queue: usize, listen: SetupListen) {
        let listener = listen.listener;
        let result = match &mut self.connections.setup {
            Some(setup) => setup.listen(queue, listen),
            None => Err(Refusal::Disabled),
        };
        if let Err(why) = result {
            self.emit(queue, Event::ListenRefused { listener, why });
        }
    }

    pub(crate) fn unlisten(&mut self, now: Instant, queue: usize, listener: ListenId) {
        if let Some(setup) = &mut self.connections.setup {
            setup.unlisten(now, queue, listener);
        }
    }

    pub(crate) fn tear_down(&mut self, now: Instant, queue: usize, teardown: Box<Teardown>) {
        if let Some(taken) = self.connections.teardowns.get_mut(queue) {
            *taken = taken.wrapping_add(1);
        }
        let result = match &mut self.connections.teardown {
            Some(engine) => {
                let files = &mut self.files;
                engine.begin(now, queue, self.wire.mtu, teardown, |parts| match files {
                    Some(files) => files.pin(queue, parts),
                    None => parts.iter().all(|part| part.extent().is_none()),
                })
            }
            None => Err((teardown, Refusal::Disabled)),
        };
        if let Err((teardown, why)) = result {
            self.emit(queue, Event::TeardownRefused(TeardownRefused { teardown, why }));
        }
        self.settle_teardowns(now);
    }

    /// The host gives a frame back that came too early for the engine that it is for.
    pub(crate) fn take_back(&mut self, now: Instant, frame: RxFrame) {
        self.connections.returned += 1;
        self.handle_frame(now, frame);
    }

    pub(crate) fn splice(&mut self, now: Instant, queue: usize, splice: &Splice) {
        let (id, mtu) = (splice.id, self.mtu());
        let result = match self.splicing() {
            Some((engine, mut out)) => engine.begin(now, queue, splice, mtu, &mut out),
            None => Err(Refusal::Disabled),
        };
        self.settle_splices();
        self.emit(queue, Event::Spliced { id, result });
    }

    pub(crate) fn splice_start(
        &mut self,
        now: Instant,
        queue: usize,
        id: SpliceId,
        packets: Box<[RxFrame]>,
    ) {
        match self.splicing() {
            Some((splice, mut out)) => splice.start(now, queue, id, packets, &mut out),
            None => packets.into_iter().for_each(|frame| self.pool().put(frame.packet)),
        }
        self.settle_splices();
    }

    pub(crate) fn unsplice(&mut self, queue: usize, id: SpliceId) {
        if let Some((splice, mut out)) = self.splicing() {
            splice.end(queue, id, &mut out);
        }
        self.settle_splices();
    }

    /// The driver says how busy the device is, in thousandths of its time. The hosts are told when
    /// that becomes too much and when it is so no more, with a gap between the two.
    pub fn note_load(&mut self, permille: u16) {
        let high =
            if self.connections.load_is_high { permille > LOAD_LOW } else { permille > LOAD_HIGH };
        if high == self.connections.load_is_high {
            return;
        }
        self.connections.load_is_high = high;
        for queue in 0..self.queues() {
            self.emit(queue, Event::Load(Load { permille, high }));
        }
    }

    /// The spliced pairs, in no order: for whoever shows them. Walks all of them.
    pub fn splices(&self, now: Instant) -> impl Iterator<Item = SpliceInfo> + '_ {
        self.connections.splice.iter().flat_map(move |splice| splice.infos(now))
    }

    /// Runs what is due in the engines.
    pub(crate) fn handle_connection_timeouts(&mut self, now: Instant) {
        if self.connections.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        if let Some(teardown) = &mut self.connections.teardown {
            teardown.handle_timeout(now);
        }
        if let Some((splice, mut out)) = self.splicing() {
            splice.handle_timeout(now, &mut out);
        }
        self.settle_teardowns(now);
        self.settle_splices();
    }

    /// Does what the tear-down engine wants done.
    pub(crate) fn settle_teardowns(&mut self, now: Instant) {
        while let Some((queue, transmit)) =
            self.connections.teardown.as_mut().and_then(TeardownEngine::poll_transmit)
        {
            self.transmit(now, queue, PINNED, transmit);
        }
        while let Some(action) =
            self.connections.teardown.as_mut().and_then(TeardownEngine::poll_action)
        {
            match action {
                Action::Cancel(queue, flow) => self.cancel_flow(now, queue, flow),
                Action::FileDone(extent) => {
                    if let Some(files) = &mut self.files {
                        files.acknowledge(PINNED, extent);
                        files.unpin(extent.file);
                    }
                }
                Action::Destroy(queue, context) => self.destroy_context(queue, context),
                Action::Done(queue, done) => self.emit(queue, Event::TeardownDone(done)),
            }
        }
    }

    pub(crate) fn settle_splices(&mut self) {
        while let Some((queue, closed)) =
            self.connections.splice.as_mut().and_then(SpliceEngine::poll_closed)
        {
            self.emit(queue, Event::SpliceClosed(closed));
        }
    }
}

impl Connections {
    pub(crate) fn new(config: &DeviceConfig) -> Self {
        let (mac, seed) = (config.mac, config.rss_seed);
        Self {
            setup: config.setup.clone().map(|setup| SetupEngine::new(setup, mac, seed)),
            teardown: config.teardown.clone().map(|teardown| {
                // What is handed over goes out as one transmit.
                let most = config.transmit_bytes_max.max(RUN_BYTES_MAX);
                let bytes_max = teardown.bytes_max.min(most);
                TeardownEngine::new(TeardownConfig { bytes_max, ..teardown }, seed)
            }),
            splice: config.splice.clone().map(|splice| SpliceEngine::new(splice, mac, seed)),
            load_is_high: false,
            teardowns: vec![0; config.queues.max(1)],
            returned: 0,
        }
    }

    pub(crate) fn setup_limits(&self) -> Result<SetupLimits, Refusal> {
        self.setup.as_ref().map(SetupEngine::limits).ok_or(Refusal::Disabled)
    }

    pub(crate) fn teardown_limits(&self) -> Result<TeardownLimits, Refusal> {
        self.teardown.as_ref().map(TeardownEngine::limits).ok_or(Refusal::Disabled)
    }

    pub(crate) fn splice_limits(&self) -> Result<SpliceLimits, Refusal> {
        self.splice.as_ref().map(SpliceEngine::limits).ok_or(Refusal::Disabled)
    }

    /// How many connections of a queue the device was asked to tear down.
    pub(crate) fn teardowns(&self, queue: usize) -> u32 {
        self.teardowns.get(queue).copied().unwrap_or(0)
    }

    /// Whether a segment need not be offered to any engine.
    pub(crate) fn are_idle(&self) -> bool {
        self.setup.as_ref().is_none_or(SetupEngine::is_idle)
            && self.teardown.as_ref().is_none_or(TeardownEngine::is_idle)
            && self.splice.as_ref().is_none_or(SpliceEngine::is_idle)
    }

    /// When something is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let teardown = self.teardown.as_ref().and_then(TeardownEngine::poll_timeout);
        let splice = self.splice.as_ref().and_then(SpliceEngine::poll_timeout);
        Instant::earliest([teardown, splice])
    }

    /// Forgets every connection.
    pub(crate) fn reset(&mut self) {
        if let Some(setup) = &mut self.setup {
            setup.reset();
        }
        if let Some(teardown) = &mut self.teardown {
            teardown.reset();
        }
        if let Some(splice) = &mut self.splice {
            splice.reset();
        }
    }

    /// Takes back a frame that the wire has sent.
    pub(crate) fn recycle(&mut self, frame: TxFrame, pool: &mut PacketPool) {
        if let Some(splice) = &mut self.splice {
            splice.recycle(frame, pool);
        }
    }

    /// Counters and gauges by name.
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        f("rx_returned", self.returned);
        if let Some(setup) = &self.setup {
            setup.visit(f);
        }
        if let Some(teardown) = &self.teardown {
            teardown.visit(f);
        }
        if let Some(splice) = &self.splice {
            splice.visit(f);
        }
    }
}
