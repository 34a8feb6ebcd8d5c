//! The device: the parts of this crate behind one sans-IO object.
//!
//! It owns what frames and transmits pass (the pipeline, the table of flows), the engines, and the
//! [`Egress`] that these share. Every call that reaches engines ends with what they ask for
//! (`Device::engage`).

mod quiesce;
mod transmit;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::port::{RxFrame, TxFrame, WireCaps};
use abi::{Capabilities, Event, Load, Op, PacketPool, Received, Refusal};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{Duration, Instant, internal_error};

use crate::config::{DeviceConfig, RUN_BYTES_MAX};
use crate::counters::sum_internal_errors;
use crate::engine::splice::SpliceInfo;
use crate::engine::{Engines, teardown};
use crate::flow::FlowTable;
use crate::pipeline::rx::{Arrived, Offered, Receiver};
use crate::pipeline::{Egress, Run, Stamps};

/// When to look again whether the wire has let go of memory that a transmit waits for.
const STARVED_RETRY: Duration = Duration::from_millis(1);
/// Thousandths of its time from which a device is busy, and to which it is.
const LOAD_HIGH: u16 = 950;
const LOAD_LOW: u16 = 700;

/// A NIC, without the wire, the disk and the rings it is attached to.
///
/// It does nothing by itself. Its driver hands in what comes
/// ([`handle_frame`](Self::handle_frame), [`handle_op`](Self::handle_op),
/// [`handle_disk`](Self::handle_disk)), then takes out, until none of them has anything left:
///
/// 1. [`poll_frame`](Self::poll_frame): frames for the wire, in order. It has to be polled until it
///    gives `None`, after the frames before were dropped, for only then the memory of file blocks
///    that they shared can be used again.
/// 2. [`poll_disk`](Self::poll_disk): requests for the disk.
/// 3. [`poll_event`](Self::poll_event), or [`poll_queue_event`](Self::poll_queue_event) for one
///    queue: events for the host.
///
/// No frame is given while the echo of a transmit waits to be polled, so that the host hears that a
/// transmit has left before any acknowledgment of its bytes can arrive: a driver polls events
/// before frames, and again behind them. What the wire, a ring or the disk did not take goes back
/// by `unpoll_frame`, `unpoll_long_frame`, `unpoll_event`, `unpoll_disk`. While
/// [`can_take_op`](Self::can_take_op) says no, the driver leaves operations in their ring.
/// [`poll_timeout`](Self::poll_timeout) says when to come back though nothing came.
pub struct Device {
    config: DeviceConfig,
    wire: WireCaps,
    receiver: Receiver,
    /// Where timestamps are corrected.
    stamps: Option<Stamps>,
    flows: FlowTable,
    pub(crate) engines: Engines,
    egress: Egress,
    /// Longest run that the wire takes as one frame, as far as we know.
    run_bytes_max: u32,
    /// Frames that the wire gave back; they go before the runs.
    unsent: VecDeque<TxFrame>,
    /// The queue whose events are polled next.
    next_queue: usize,
    /// Queues whose hosts wait for the device to have sent everything.
    quiescing: Vec<usize>,
    /// The hosts were told that the device is busy.
    load_is_high: bool,
    /// Frames that hosts gave back.
    returned: u64,
    resets: u64,
}

impl Device {
    /// A device on a wire that can do what `wire` says.
    #[must_use]
    pub fn new(config: DeviceConfig, wire: WireCaps) -> Self {
        let transmit_bytes_max = config.transmit_bytes_max.max(RUN_BYTES_MAX);
        let config = DeviceConfig { queues: config.queues.max(1), transmit_bytes_max, ..config };
        let pool = PacketPool::new(config.pool_buffers_max);
        Self {
            receiver: Receiver::new(config.mac, config.queues, config.rss_seed)
                .with_steering(config.quic_steering),
            stamps: config.correct_timestamps.then(Stamps::new),
            flows: FlowTable::new(config.rss_seed),
            engines: Engines::new(&config),
            egress: Egress::new(config.queues, config.queue_events_max, wire.mtu, pool),
            run_bytes_max: config.run_bytes_max.max(RUN_BYTES_MAX),
            unsent: VecDeque::new(),
            next_queue: 0,
            quiescing: Vec::new(),
            load_is_high: false,
            returned: 0,
            resets: 0,
            wire,
            config,
        }
    }

    /// What the device offers to a host.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let none = Refusal::Disabled;
        let mut capabilities = Capabilities {
            transmit_bytes_max: self.config.transmit_bytes_max,
            mtu: self.wire.mtu,
            mac: self.config.mac,
            file: Err(none),
            l5o: Err(none),
            setup: Err(none),
            teardown: Err(none),
            splice: Err(none),
            quic: Err(none),
        };
        self.engines.offer(&mut capabilities);
        capabilities
    }

    /// Has the engines do something, and then what they ask for.
    #[inline]
    fn engage<R>(&mut self, now: Instant, call: impl FnOnce(&mut Engines, &mut Egress) -> R) -> R {
        let result = call(&mut self.engines, &mut self.egress);
        self.settle(now);
        result
    }

    /// A frame came in.
    pub fn handle_frame(&mut self, now: Instant, frame: RxFrame) {
        match self.receiver.handle(frame) {
            Ok(arrived) => self.handle_arrived(now, arrived),
            Err(packet) => self.egress.put(packet),
        }
    }

    fn handle_arrived(&mut self, now: Instant, arrived: Arrived) {
        let Arrived { queue, mut received, transport } = arrived;
        if received.flow_hash == 0 {
            self.copy_to_others(queue, &received);
        }
        self.engage(now, |engines, egress| {
            let mut offered = Offered { queue, received: &mut received, transport: &transport };
            if engines.take(now, &mut offered, egress) {
                return;
            }
            // What engines ask about the frame comes before it, and does not take its room: no byte
            // that was placed is dropped.
            if egress.has_room(queue) {
                engines.open(&mut offered, egress);
                egress.hand_over(queue, received);
            } else {
                egress.deliver(queue, received);
            }
        });
    }

    /// What belongs to no flow concerns every host: the answer to a solicitation, an ICMP error.
    fn copy_to_others(&mut self, queue: usize, received: &Received) {
        for other in (0..self.queues()).filter(|&other| other != queue) {
            let Some(packet) = self.egress.pool.copy(received.packet.as_slice()) else { return };
            let Received { checksum, flow_hash, segment_size, .. } = *received;
            let copy = Received::new(packet, checksum, flow_hash, segment_size);
            self.egress.deliver(other, copy);
        }
    }

    /// Whether the device takes operations: while it says no, they stay in their ring.
    #[must_use]
    pub fn can_take_op(&self) -> bool {
        self.flows.len() < self.config.pending_transmits_max
            && self.egress.has_run_room()
            && self.engines.have_room()
            && self.egress.has_room_everywhere()
    }

    /// An operation of the host that owns `queue`.
    pub fn handle_op(&mut self, now: Instant, queue: usize, op: Op) {
        match op {
            Op::Transmit(transmit) => self.transmit(now, queue, queue, transmit),
            Op::Cancel { flow } => self.cancel_flow(now, queue, flow),
            Op::Teardown(teardown) => {
                let Engines { teardown: engine, files, .. } = &mut self.engines;
                let (engine, files) = (engine.as_mut(), files.as_mut());
                teardown::take_over(engine, files, now, queue, teardown, &mut self.egress);
            }
            Op::Return(frame) => {
                self.returned += 1;
                self.handle_frame(now, frame);
            }
            Op::Quiesce => self.quiesce(now, queue),
            op => {
                if self.engines.handle_op(now, queue, op, &mut self.egress).is_some() {
                    let counter = &mut self.egress.internal.nic_internal_errors;
                    internal_error!(*counter, "an operation of no engine");
                }
            }
        }
        self.settle(now);
    }

    /// An answer from the disk.
    pub fn handle_disk(&mut self, now: Instant, completion: DiskCompletion) {
        self.engage(now, |engines, egress| {
            if let Some(files) = &mut engines.files {
                files.complete(completion, egress);
            }
        });
    }

    /// Returns the next frame for the wire; none while the echo of a transmit waits to be polled.
    pub fn poll_frame(&mut self, now: Instant) -> Option<TxFrame> {
        // What is due is done though the wire takes nothing.
        if self.engines.handle_timeouts(now, &mut self.egress) {
            self.settle(now);
        }
        // A frame that the link refused has freed nothing: a look for memory would cost a walk over
        // blocks that frames share, for each poll of a full link.
        if self.unsent.is_empty() {
            self.engage(now, |engines, _| engines.find_memory());
        }
        if self.egress.has_echoes() {
            return None;
        }
        if let Some(frame) = self.unsent.pop_front() {
            return Some(frame);
        }
        let cut = self.egress.runs.front_mut()?.next(&self.wire, self.run_bytes_max);
        if cut.last {
            self.egress.runs.pop_front();
        }
        self.egress.tx.tx_packets += cut.packets;
        self.egress.tx.tx_bytes += cut.bytes;
        self.engines.note_sent(now, &cut.frame.header, cut.packets, cut.bytes);
        Some(cut.frame)
    }

    /// Takes back a frame that the wire had no room for: it is the next to be polled.
    pub fn unpoll_frame(&mut self, frame: TxFrame) {
        self.unsent.push_front(frame);
    }

    /// Takes back a run that the wire found too long for one frame. It is the next to be polled,
    /// and like all after it in frames that every wire that segments takes.
    pub fn unpoll_long_frame(&mut self, frame: TxFrame) {
        let (payload, header) = (frame.payload_len(), frame.header.clone());
        let Some(run) = Run::again(frame) else { return };
        let packets = run.packets();
        let bytes = packets * header.len() as u64 + payload as u64;
        let tx = &mut self.egress.tx;
        tx.tx_long_runs_refused += 1;
        tx.tx_packets -= packets;
        tx.tx_bytes -= bytes;
        self.engines.note_refused(&header, packets, bytes);
        self.run_bytes_max = RUN_BYTES_MAX;
        self.egress.runs.push_front(run);
    }

    /// Takes back a frame that the wire has taken and does not need any more: received buffers that
    /// went out with it are used again. Who does not call it lets them go to the allocator.
    pub fn recycle(&mut self, frame: TxFrame) {
        if let Some(splice) = &mut self.engines.splice {
            splice.recycle(frame, &mut self.egress.pool);
        }
    }

    /// Returns the number of queues, each with a host.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.egress.queues()
    }

    /// The next event and its queue, queues in turn.
    pub fn poll_event(&mut self) -> Option<(usize, Event)> {
        for _ in 0..self.queues() {
            let queue = self.next_queue;
            self.next_queue = (queue + 1) % self.queues();
            if let Some(event) = self.poll_queue_event(queue) {
                return Some((queue, event));
            }
        }
        None
    }

    /// The next event of one queue, for drivers that know which rings have room.
    #[inline]
    pub fn poll_queue_event(&mut self, queue: usize) -> Option<Event> {
        if !self.quiescing.is_empty() && self.egress.is_empty(queue)? {
            self.tell_quiesced();
        }
        self.egress.poll_event(queue)
    }

    /// Takes back an event that the queue's ring had no room for: it is the queue's next.
    pub fn unpoll_event(&mut self, queue: usize, event: Event) {
        self.egress.unpoll_event(queue, event);
    }

    /// Returns whether nothing waits for the link, or to be given to it.
    fn has_sent_everything(&self) -> bool {
        self.has_nothing_for_the_wire() && self.flows.len() == 0
    }

    /// The next request for the disk.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        self.engines.files.as_mut()?.poll_disk()
    }

    /// Takes back a request that the disk had no room for.
    pub fn unpoll_disk(&mut self, request: DiskRequest) {
        if let Some(files) = &mut self.engines.files {
            files.unpoll_disk(request);
        }
    }

    /// When to poll again though nothing came in: where a transmit waits for memory that frames on
    /// their way hold, QUIC packets wait for others, or an engine that took over connections has
    /// something to do.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let starved = self.engines.are_starved() && self.has_nothing_for_the_wire();
        let retry = starved.then(|| now + STARVED_RETRY);
        Instant::earliest([retry, self.engines.poll_timeout()])
    }

    fn has_nothing_for_the_wire(&self) -> bool {
        self.egress.runs.is_empty() && self.unsent.is_empty()
    }

    /// The buffers that the wire receives into; recycled ones come back to it.
    pub const fn pool(&mut self) -> &mut PacketPool {
        &mut self.egress.pool
    }

    /// Loses all state: waiting transmits, open files, file content, events not yet polled, QUIC
    /// packets that wait for others. Each
    /// queue gets [`Event::Reset`]. Counters go on.
    pub fn reset(&mut self) {
        self.resets += 1;
        // Their hosts hear of the reset, and ask again.
        self.quiescing.clear();
        self.unsent.clear();
        self.flows.clear();
        self.egress.reset();
        self.engines.reset(&mut self.egress);
    }

    /// The driver says how busy the device is, in thousandths of its time. The hosts are told when
    /// that becomes too much and when it is so no more, with a gap between the two.
    pub fn note_load(&mut self, permille: u16) {
        let high = if self.load_is_high { permille > LOAD_LOW } else { permille > LOAD_HIGH };
        if high == self.load_is_high {
            return;
        }
        self.load_is_high = high;
        for queue in 0..self.queues() {
            self.egress.emit(queue, Event::Load(Load { permille, high }));
        }
    }

    /// The spliced pairs, in no order: for whoever shows them. Walks all of them.
    pub fn splices(&self, now: Instant) -> impl Iterator<Item = SpliceInfo> + '_ {
        self.engines.splice.iter().flat_map(move |splice| splice.infos(now))
    }

    /// Calls `f` with each counter and gauge. Names begin with their area: `rx_`, `pool_`, `tx_`,
    /// `file_`, `l5o_` with `rx_tls_` and `tx_tls_`, `nvme_tcp_` with `rx_nvmeotcp_`, `setup_`,
    /// `teardown_`, `splice_`, `quic_`, `count_`, `dma_` (modelled), `device_`. Internal errors of
    /// all parts are one counter, `nic_internal_errors`.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        sum_internal_errors(|f| self.visit_parts(f), f);
    }

    /// Calls `f` with each counter and gauge of each part.
    fn visit_parts(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.egress.internal.visit(f);
        self.receiver.counters.visit(f);
        self.egress.delivered.visit(f);
        f("rx_returned", self.returned);
        self.egress.pool.visit(f);
        self.egress.tx.visit(f);
        f("tx_pending_transmits", self.flows.len() as u64);
        f("tx_pending_flows", self.flows.flows() as u64);
        f("tx_runs", (self.egress.runs.len() + self.unsent.len()) as u64);
        f("device_resets", self.resets);
        self.engines.visit(f);
    }
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Device")
            .field("pending", &self.flows.len())
            .field("runs", &self.egress.runs.len())
            .finish_non_exhaustive()
    }
}
