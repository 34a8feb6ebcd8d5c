//! The device: pipeline, flow table and engines combined in one sans-I/O object.
//!
//! It owns the pipeline, the table of flows, the engines, and the [`Egress`] that they share. Every
//! call that reaches engines ends by fulfilling their requests (`Device::with_engines`).

mod quiesce;
mod steering;
mod transmit;
mod workers;

use abi::attach::AttachRefusal;
use abi::disk::{DiskCompletion, DiskRequest};
use abi::link::{LinkCaps, RxFrame, TxFrame};
use abi::steering::FlowSteering;
use abi::{Capabilities, DeviceLoad, Event, Op, PacketPool, ReceivedFrame, Refusal};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use base::{Duration, Instant, internal_error};
use wire::Tuple;

use crate::config::{DeviceConfig, RUN_BYTES_MAX};
use crate::counters::{CryptoJobCounters, sum_internal_errors};
use crate::crypto_jobs::CryptoQueue;
use crate::engine::Engines;
use crate::engine::setup::SetupEngine;
use crate::engine::splice::{SpliceEngine, SpliceInfo};
use crate::engine::teardown::{self, TeardownEngine};
use crate::flow::FlowTable;
use crate::pipeline::rx::{OfferedRxFrame, ParsedRxFrame, RxPipeline, RxTransport};
use crate::pipeline::{Egress, TimestampGuard, TxRun};
use steering::Steering;
use workers::HeldFrames;

/// Interval of polling for memory that a transmit waits for and that frames on the link still hold.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Load thresholds, in thousandths of the time: above the first the device reports that it is
/// overloaded, at or below the second that it is not.
const LOAD_HIGH_PERMILLE: u16 = 950;
const LOAD_LOW_PERMILLE: u16 = 700;

/// A NIC without its link, disk and rings.
///
/// The device is passive. Its driver passes input in ([`handle_frame`](Self::handle_frame),
/// [`handle_op`](Self::handle_op), [`handle_disk`](Self::handle_disk)), then takes output until
/// none is left:
///
/// 1. [`poll_frame`](Self::poll_frame): frames for the link, in order. The driver drops the frames
///    that were sent and polls until `None`: only then can the memory of file blocks that the
///    frames shared be reused.
/// 2. [`poll_disk`](Self::poll_disk): requests for the disk.
/// 3. [`poll_steered`](Self::poll_steered): frames for the devices of other queues.
/// 4. [`poll_event`](Self::poll_event), or [`poll_queue_event`](Self::poll_queue_event) for one
///    queue: events for the host.
///
/// No frame is returned while the echo of a transmit is queued, so that the host learns that a
/// transmit has left before it can receive an acknowledgment of its bytes. Drivers therefore poll
/// events before frames, and again after them. Output for which the link, a ring or the disk has no
/// room is put back by `unpoll_frame`, `unpoll_long_frame`, `unpoll_event` and `unpoll_disk`. While
/// [`can_take_op`](Self::can_take_op) is false, the driver leaves operations in their ring.
/// [`poll_timeout`](Self::poll_timeout) is the time of the next poll if no input arrives before.
///
/// A frame for this device becomes an event; a frame for another one is dropped and counted:
///
/// ```
/// use abi::link::{LinkCaps, RxFrame};
/// use abi::{Checksum, Event};
/// use base::Instant;
/// use outboard_nic::{Device, DeviceConfig};
///
/// let link =
///     LinkCaps { mtu: 1500, segmentation: false, udp_segmentation: false, checksum: false };
/// let mut device = Device::new(DeviceConfig::new([2, 0, 0, 0, 0, 1]), link);
/// // Destination, source, and EtherType of ARP, without a message.
/// let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 2], &[0x08, 0x06], &[0; 28]].concat();
/// for _ in 0..2 {
///     let packet = device.pool().copy(&frame).expect("a buffer");
///     let received = RxFrame { packet, checksum: Checksum::Unchecked, segment_size: 0 };
///     device.handle_frame(Instant::ZERO, received);
///     frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
/// }
/// assert!(matches!(device.poll_event(), Some((0, Event::Received(_)))));
/// assert!(device.poll_event().is_none());
/// let mut dropped = 0;
/// device.visit(&mut |name, value| {
///     dropped += if name == "rx_dropped_not_for_us" { value } else { 0 };
/// });
/// assert_eq!(dropped, 1);
/// ```
pub struct Device {
    config: DeviceConfig,
    receiver: RxPipeline,
    /// Corrects TCP timestamps; `None` if that is disabled.
    timestamp_guard: Option<TimestampGuard>,
    flows: FlowTable,
    pub(crate) engines: Engines,
    egress: Egress,
    /// Encryption and decryption by workers; `None` if there are none.
    crypto: Option<CryptoQueue>,
    held: HeldFrames,
    steering: Steering,
    /// Maximum number of payload bytes of a TCP run that the link takes as one frame, as known so
    /// far.
    run_bytes_max: u32,
    /// Frames that the link had no room for; they leave before `runs`.
    unsent: VecDeque<TxFrame>,
    /// Next queue of [`Self::poll_event`].
    next_queue: usize,
    /// Queues whose hosts wait for [`Event::Quiesced`].
    quiescing: Vec<usize>,
    /// True if the hosts were told last that the device is overloaded.
    load_is_high: bool,
    /// Received frames that hosts returned ([`Op::Return`]).
    returned: u64,
    resets: u64,
    /// True if the hosts do not know the state of the link from the capabilities.
    link_has_changed: bool,
}

impl Device {
    /// Creates a device on a link with the capabilities `link`.
    #[must_use]
    pub fn new(config: DeviceConfig, link: LinkCaps) -> Self {
        let transmit_bytes_max = config.transmit_bytes_max.max(RUN_BYTES_MAX);
        let own = config.own_queue.clone();
        let queues = own.as_ref().map_or_else(|| config.queues.max(1), |own| own.steering.queues());
        let config = DeviceConfig { queues, transmit_bytes_max, ..config };
        let flow_steering = own.as_ref().map_or_else(
            || Arc::new(FlowSteering::new(config.rss_seed, queues)),
            |own| Arc::clone(&own.steering),
        );
        let pool = PacketPool::new(config.pool_buffers_max);
        Self {
            receiver: RxPipeline::new(config.mac, flow_steering)
                .with_quic_steering(config.quic_steering),
            timestamp_guard: config.correct_timestamps.then(TimestampGuard::new),
            flows: FlowTable::new(config.rss_seed),
            engines: Engines::new(&config),
            egress: Egress::new(config.queues, config.queue_events_max, link, pool),
            crypto: None,
            held: HeldFrames::default(),
            steering: Steering::new(own.map(|own| own.index), queues, config.rss_seed),
            run_bytes_max: config.run_bytes_max.max(RUN_BYTES_MAX),
            unsent: VecDeque::new(),
            next_queue: 0,
            quiescing: Vec::new(),
            load_is_high: false,
            returned: 0,
            resets: 0,
            link_has_changed: false,
            config,
        }
    }

    /// Returns the capabilities that the device announces to hosts.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let DeviceConfig { mac, transmit_bytes_max, .. } = self.config;
        let mtu = self.egress.link.mtu;
        let mut capabilities =
            Capabilities::without_engines(mac, mtu, transmit_bytes_max, Refusal::Disabled);
        self.engines.add_capabilities(&mut capabilities);
        capabilities
    }

    /// Calls the engines and fulfills their requests.
    #[inline]
    fn with_engines<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Engines, &mut Egress) -> R,
    ) -> R {
        let result = call(&mut self.engines, &mut self.egress);
        self.fulfill_requests(now);
        result
    }

    /// Processes a frame from the link. If its flow belongs to the queue of another device, it
    /// waits for [`Self::poll_steered`].
    pub fn handle_frame(&mut self, now: Instant, frame: RxFrame) {
        match self.receiver.handle(frame) {
            Ok(arrived) => {
                if let Some(own) = self.steer(arrived) {
                    self.handle_own(now, own);
                }
            }
            Err(packet) => self.egress.recycle(packet),
        }
    }

    /// Processes a frame of a flow that this device serves.
    fn handle_own(&mut self, now: Instant, arrived: ParsedRxFrame) {
        if self.crypto.is_some() {
            self.handle_with_workers(now, arrived);
        } else {
            self.handle_parsed(now, arrived);
        }
    }

    fn handle_parsed(&mut self, now: Instant, arrived: ParsedRxFrame) {
        let ParsedRxFrame { queue, mut received, transport, .. } = arrived;
        if matches!(transport, RxTransport::Other) && self.config.own_queue.is_none() {
            self.copy_to_other_queues(queue, &received);
        }
        self.with_engines(now, |engines, egress| {
            let mut offered =
                OfferedRxFrame { queue, received: &mut received, transport: &transport };
            if engines.consume_frame(now, &mut offered, egress) {
                return;
            }
            // Events of engines about the frame (resync requests) are queued before it and do not
            // count against the queue limit, so a frame whose data was placed is never dropped.
            if egress.has_room(queue) {
                engines.process_frame(&mut offered, egress);
                egress.push_frame(queue, received);
            } else {
                egress.deliver_or_drop(queue, received);
            }
        });
    }

    /// Copies a frame that belongs to no flow (a neighbor advertisement, an ICMP error) to all
    /// other hosts.
    fn copy_to_other_queues(&mut self, queue: usize, received: &ReceivedFrame) {
        for other in (0..self.queues()).filter(|&other| other != queue) {
            let Some(packet) = self.egress.pool.copy(received.packet.as_slice()) else { return };
            let ReceivedFrame { checksum, flow_hash, segment_size, .. } = *received;
            let copy = ReceivedFrame::new(packet, checksum, flow_hash, segment_size);
            self.egress.deliver_or_drop(other, copy);
        }
    }

    /// Returns whether the device takes operations; while it does not, they stay in their ring.
    #[must_use]
    pub fn can_take_op(&self) -> bool {
        self.flows.len() < self.config.pending_transmits_max
            && self.egress.has_run_room()
            && self.engines.have_room()
            && self.crypto.as_ref().is_none_or(CryptoQueue::has_room)
            && self.egress.has_room_everywhere()
    }

    /// Processes an operation of the host that owns `queue`.
    pub fn handle_op(&mut self, now: Instant, queue: usize, mut op: Op) {
        self.settle();
        match op {
            Op::Transmit(ref mut transmit) => self.transmit(now, queue, queue, transmit),
            Op::Cancel { flow } => self.cancel_flow(now, queue, flow),
            Op::Teardown(teardown) => {
                let Engines { teardown: engine, files, .. } = &mut self.engines;
                let (engine, files) = (engine.as_mut(), files.as_mut());
                teardown::take_over(engine, files, now, queue, teardown, &mut self.egress);
            }
            Op::Return(frame) => {
                self.returned += 1;
                self.handle_returned(now, frame);
            }
            Op::HandOver(segment) => self.hand_over(segment),
            Op::ReleaseEntries(entries) => self.release_entries(&entries),
            // For a switch; the driver asks it instead of the device.
            Op::ExtendClaim(_) => self.answer_claim(queue, Err(AttachRefusal::BadRequest)),
            Op::Quiesce => self.quiesce(now, queue),
            op => {
                if self.engines.handle_op(now, queue, op, &mut self.egress).is_some() {
                    let counter = &mut self.egress.internal.nic_internal_errors;
                    internal_error!(*counter, "an operation of no engine");
                }
            }
        }
        self.fulfill_requests(now);
    }

    /// Reports the switch's answer to [`Op::ExtendClaim`] to the host that owns `queue`.
    pub fn answer_claim(&mut self, queue: usize, result: Result<(), AttachRefusal>) {
        self.egress.emit(queue, Event::ClaimExtended { result });
    }

    /// Processes a completion of the disk.
    pub fn handle_disk(&mut self, now: Instant, completion: DiskCompletion) {
        self.settle();
        self.with_engines(now, |engines, egress| {
            if let Some(files) = &mut engines.files {
                files.complete(completion, egress);
            }
        });
    }

    /// Returns the next frame for the link; `None` while the echo of a transmit is queued.
    pub fn poll_frame(&mut self, now: Instant) -> Option<TxFrame> {
        self.settle();
        // Timers run even if the link takes no frames.
        if self.engines.handle_timeouts(now, &mut self.egress) {
            self.fulfill_requests(now);
        }
        // A frame that the link refused has freed no memory. Searching for free memory would walk
        // over all shared blocks at every poll of a full link.
        if self.unsent.is_empty() {
            self.with_engines(now, |engines, _| engines.reclaim_memory());
        }
        if self.egress.has_echoes() {
            return None;
        }
        if let Some(frame) = self.unsent.pop_front() {
            return Some(frame);
        }
        if self.crypto.is_some() {
            self.complete_runs();
        }
        let frame = self.egress.runs.next_frame(&self.egress.link, self.run_bytes_max)?;
        let (packets, bytes) = (frame.packets() as u64, frame.bytes_on_link() as u64);
        self.egress.tx.tx_packets += packets;
        self.egress.tx.tx_bytes += bytes;
        self.engines.on_frame_sent(now, &frame, packets, bytes);
        Some(frame)
    }

    /// Puts back a frame that the link had no room for; it is the next to be polled.
    pub fn unpoll_frame(&mut self, frame: TxFrame) {
        self.unsent.push_front(frame);
    }

    /// Puts back a run that was too long for the link as one frame. It is polled next, and from now
    /// on all runs are cut into frames that any segmenting link takes.
    pub fn unpoll_long_frame(&mut self, frame: TxFrame) {
        let header = frame.header.clone();
        let (packets, bytes) = (frame.packets() as u64, frame.bytes_on_link() as u64);
        let Some(run) = TxRun::from_refused_frame(frame) else { return };
        let tx = &mut self.egress.tx;
        tx.tx_long_runs_refused += 1;
        tx.tx_packets -= packets;
        tx.tx_bytes -= bytes;
        self.engines.on_frame_refused(&header, packets, bytes);
        self.run_bytes_max = RUN_BYTES_MAX;
        self.egress.runs.push_refused(run);
    }

    /// Takes the payload of a frame that the link has sent, to reuse the received buffers in it.
    /// Calling this is optional: dropping the frame frees them.
    pub fn recycle(&mut self, frame: &mut TxFrame) {
        if let Some(splice) = &mut self.engines.splice {
            splice.recycle(&mut frame.payload, &mut self.egress.pool);
        }
    }

    /// Returns the number of queues, each with a host.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.egress.queues()
    }

    /// Returns the next event and its queue, in round-robin order of the queues.
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

    /// Returns the next event of one queue, for drivers that know which rings have room.
    #[inline]
    pub fn poll_queue_event(&mut self, queue: usize) -> Option<Event> {
        self.settle();
        if !self.quiescing.is_empty() && self.egress.is_empty(queue)? {
            self.report_quiesced();
        }
        self.egress.poll_event(queue)
    }

    /// Puts back an event that the queue's ring had no room for; it is the queue's next.
    pub fn unpoll_event(&mut self, queue: usize, event: Event) {
        self.egress.unpoll_event(queue, event);
    }

    /// Returns whether no frame waits for the link and no transmit waits to become one.
    fn has_sent_everything(&self) -> bool {
        self.is_link_queue_empty() && self.flows.len() == 0
    }

    /// Returns the next request for the disk.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        self.engines.files.as_mut()?.poll_disk()
    }

    /// Puts back a request that the disk had no room for.
    pub fn unpoll_disk(&mut self, request: DiskRequest) {
        if let Some(files) = &mut self.engines.files {
            files.unpoll_disk(request);
        }
    }

    /// Returns the time at which to poll again if no input arrives: a transmit waits for memory
    /// that frames on the link hold, QUIC packets wait for others, or an engine that took over
    /// connections has a timer.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let starved = self.engines.are_starved() && self.is_link_queue_empty();
        let retry = starved.then(|| now + MEMORY_POLL_INTERVAL);
        Instant::earliest([retry, self.engines.poll_timeout()])
    }

    fn is_link_queue_empty(&self) -> bool {
        self.egress.runs.is_empty() && self.unsent.is_empty()
    }

    /// Returns the pool from which the link takes receive buffers and to which used ones return.
    pub const fn pool(&mut self) -> &mut PacketPool {
        &mut self.egress.pool
    }

    /// Loses all state: waiting transmits, open files, file content, unpolled events, waiting QUIC
    /// packets. The host of its own queue gets [`Event::Reset`], or each host if the device serves
    /// all queues. Counters keep their values.
    pub fn reset(&mut self) {
        self.resets += 1;
        self.discard_state();
    }

    /// Follows the end of the host that the device served: discards its connections, except those
    /// that the device tears down. They need their files and contexts, which stay until
    /// [`Self::forget_host`]. Events continue to be queued; the driver drops them.
    pub fn retire_host(&mut self) {
        self.quiescing.clear();
        let Engines { setup, splice, quic, .. } = &mut self.engines;
        setup.iter_mut().for_each(SetupEngine::forget);
        splice.iter_mut().for_each(SpliceEngine::forget);
        quic.iter_mut().for_each(|quic| quic.forget(&mut self.egress.pool));
    }

    /// Returns whether the device tears down a connection.
    #[must_use]
    pub fn is_tearing_down(&self, tuple: &Tuple) -> bool {
        self.engines.teardown.as_ref().is_some_and(|teardown| teardown.has(tuple))
    }

    /// Returns whether the device tears down no connection, and has sent everything.
    #[must_use]
    pub fn has_ended_all(&self) -> bool {
        self.engines.teardown.as_ref().is_none_or(TeardownEngine::is_idle)
            && self.has_sent_everything()
    }

    /// Discards all state and all events, except counters: the host that the device served is gone.
    pub fn forget_host(&mut self) {
        self.discard_state();
        // The next host hears of the load at its next measurement.
        self.load_is_high = false;
        while let Some((_, event)) = self.poll_event() {
            if let Event::Received(received) = event {
                self.egress.recycle(received.packet);
            }
        }
    }

    /// Tells a host that begins to use the device of the link's MTU, if it has changed since the
    /// device was created.
    pub fn welcome_host(&mut self) {
        if self.link_has_changed {
            self.announce_link();
        }
    }

    fn discard_state(&mut self) {
        self.discard_jobs();
        // The hosts of these queues learn of the reset and ask again.
        self.quiescing.clear();
        self.unsent.clear();
        self.flows.clear();
        self.steering.clear(&mut self.egress);
        self.egress.reset(self.config.own_queue.as_ref().map(|own| own.index));
        self.engines.reset(&mut self.egress);
        // The event of a change may have been lost.
        if self.link_has_changed {
            self.announce_link();
        }
    }

    /// Sets the device's load, in thousandths of the driver's time. Hosts are notified when the
    /// device becomes overloaded and when it no longer is, with hysteresis between the two.
    pub fn set_load(&mut self, permille: u16) {
        let high = if self.load_is_high {
            permille > LOAD_LOW_PERMILLE
        } else {
            permille > LOAD_HIGH_PERMILLE
        };
        if high == self.load_is_high {
            return;
        }
        self.load_is_high = high;
        for queue in (0..self.queues()).filter(|&queue| self.steering.serves(queue)) {
            self.egress.emit(queue, Event::Load(DeviceLoad { permille, high }));
        }
    }

    /// Notifies the hosts that the link is up again or has another MTU, in bytes. Pairs that are
    /// spliced already keep their segment size if the MTU grows.
    pub fn handle_link_change(&mut self, mtu: u16) {
        self.link_has_changed = true;
        self.egress.link.mtu = mtu;
        self.egress.mtu_max = self.egress.mtu_max.max(mtu);
        if let Some(splice) = &mut self.engines.splice {
            splice.limit_mtu(mtu);
        }
        self.announce_link();
    }

    fn announce_link(&mut self) {
        for queue in (0..self.queues()).filter(|&queue| self.steering.serves(queue)) {
            self.egress.emit(queue, Event::LinkChanged { mtu: self.egress.link.mtu });
        }
    }

    /// Returns the spliced pairs, in no order, for display. Walks all of them.
    pub fn splices(&self, now: Instant) -> impl Iterator<Item = SpliceInfo> + '_ {
        self.engines.splice.iter().flat_map(move |splice| splice.infos(now))
    }

    /// Calls `f` with the name and value of each counter and gauge. Names begin with their area:
    /// `rx_`, `pool_`, `tx_`, `crypto_`, `file_`, `l5o_` with `rx_tls_` and `tx_tls_`,
    /// `nvme_tcp_` with `rx_nvmeotcp_`, `setup_`, `teardown_`, `splice_`, `quic_`, `count_`,
    /// `decompress_`, `dma_` (modeled), `device_`. The internal errors of all parts are one
    /// counter, `nic_internal_errors`.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        sum_internal_errors(|f| self.visit_parts(f), f);
    }

    /// Calls `f` with each counter and gauge of each part.
    fn visit_parts(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.egress.internal.visit(f);
        self.receiver.counters.visit(f);
        self.egress.delivered.visit(f);
        self.steering.counters.visit(f);
        f("rx_returned", self.returned);
        self.egress.pool.visit(f);
        self.egress.tx.visit(f);
        match &self.crypto {
            Some(crypto) => crypto.counters.visit(f),
            None => CryptoJobCounters::default().visit(f),
        }
        f("crypto_workers", self.crypto.as_ref().map_or(0, CryptoQueue::workers) as u64);
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
