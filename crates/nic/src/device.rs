//! The device: the parts of this crate behind one sans-IO object.

mod connections;
mod quic;
mod quiesce;
mod transmit;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::l5o::{L5oCreate, L5oId, L5oRefused};
use abi::nvme_tcp::{DdpSetup, PREFIX_BYTES_MAX};
use abi::port::{RxFrame, TxFrame, WireCaps};
use abi::{
    Capabilities, Event, FileAccess, FileExtent, FileFault, FileId, FileLimits, FileOpened, Op,
    PacketPool, Received, Refusal,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{Duration, Instant};
use wire::tls::CONTENT_BYTES_MAX;

use self::connections::Connections;
use crate::config::{DeviceConfig, L5oConfig, RUN_BYTES_MAX};
use crate::counters::TxCounters;
use crate::engine::file::FileEngine;
use crate::engine::l5o::L5oEngine;
use crate::engine::quic::{Datagram, QuicEngine, batch};
use crate::engine::splice::SpliceEngine;
use crate::flow::FlowTable;
use crate::pipeline::rx::{Arrived, Receiver, Transport, TransportAt, tcp_payload};
use crate::pipeline::{Outlet, RUNS_MAX, Run, Stamps};

/// When to look again whether the wire has let go of memory that a transmit waits for.
const STARVED_RETRY: Duration = Duration::from_millis(1);

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
    pub(crate) wire: WireCaps,
    pool: PacketPool,
    receiver: Receiver,
    tx: TxCounters,
    /// Where timestamps are corrected.
    stamps: Option<Stamps>,
    flows: FlowTable,
    pub(crate) files: Option<FileEngine>,
    l5o: Option<L5oEngine>,
    pub(crate) quic: Option<QuicEngine>,
    pub(crate) connections: Connections,
    /// Longest run that the wire takes as one frame, as far as we know.
    run_bytes_max: u32,
    /// Runs for the wire, in order.
    runs: VecDeque<Run>,
    /// Frames that the wire gave back; they go before the runs.
    returned: VecDeque<TxFrame>,
    events: Vec<VecDeque<Event>>,
    /// Echoes of transmits among them.
    echoes: usize,
    /// The queue whose events are polled next.
    next_queue: usize,
    /// Queues whose hosts wait for the device to have sent everything.
    pub(crate) quiescing: Vec<usize>,
    resets: u64,
}

impl Device {
    /// A device on a wire that can do what `wire` says.
    #[must_use]
    pub fn new(config: DeviceConfig, wire: WireCaps) -> Self {
        let transmit_bytes_max = config.transmit_bytes_max.max(RUN_BYTES_MAX);
        let config = DeviceConfig { queues: config.queues.max(1), transmit_bytes_max, ..config };
        let mut events = Vec::new();
        events.resize_with(config.queues, VecDeque::new);
        Self {
            wire,
            pool: PacketPool::new(config.pool_buffers_max),
            receiver: Receiver::new(config.mac, config.queues, config.rss_seed)
                .with_steering(config.quic_steering),
            tx: TxCounters::default(),
            stamps: config.correct_timestamps.then(Stamps::new),
            flows: FlowTable::new(config.rss_seed),
            files: config
                .file
                .clone()
                .map(|file| FileEngine::new(file, file_bytes_max(&config), config.rss_seed)),
            l5o: config.l5o.clone().map(|l5o| L5oEngine::new(l5o, config.rss_seed)),
            quic: config.quic.clone().map(|quic| QuicEngine::new(quic, config.rss_seed)),
            connections: Connections::new(&config),
            run_bytes_max: config.run_bytes_max.max(RUN_BYTES_MAX),
            runs: VecDeque::new(),
            returned: VecDeque::new(),
            events,
            echoes: 0,
            next_queue: 0,
            quiescing: Vec::new(),
            resets: 0,
            config,
        }
    }

    /// What the device offers to a host.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let limits = |files: &FileEngine| FileLimits { files_max: files.files_max() };
        Capabilities {
            transmit_bytes_max: self.config.transmit_bytes_max,
            mtu: self.wire.mtu,
            mac: self.config.mac,
            file: self.files.as_ref().map(limits).ok_or(Refusal::Disabled),
            l5o: self.l5o.as_ref().map(L5oEngine::limits).ok_or(Refusal::Disabled),
            setup: self.connections.setup_limits(),
            teardown: self.connections.teardown_limits(),
            splice: self.connections.splice_limits(),
            quic: self.quic.as_ref().map(QuicEngine::limits).ok_or(Refusal::Disabled),
        }
    }

    /// A frame came in.
    pub fn handle_frame(&mut self, now: Instant, frame: RxFrame) {
        match self.receiver.handle(frame) {
            Ok(arrived) => self.handle_arrived(now, arrived),
            Err(packet) => self.pool.put(packet),
        }
    }

    fn handle_arrived(&mut self, now: Instant, arrived: Arrived) {
        let Arrived { queue, mut received, transport } = arrived;
        if received.flow_hash == 0 {
            self.copy_to_others(queue, &received);
        }
        if let Transport::Udp(at) = transport {
            return self.receive_datagram(now, queue, received, &at);
        }
        if let (Transport::Tcp(tcp), true) = (transport, received.checksum.is_good()) {
            if !self.connections.are_idle() && self.offer(now, queue, &mut received, &tcp) {
                return;
            }
            if self.has_room(queue) {
                // What is asked about the frame comes before it, and does not take its room: what
                // was placed of it is not dropped.
                self.open_messages(&mut received, &tcp);
                self.hand_over(queue, received);
                // A buffer that this frame filled comes behind it.
                return self.return_buffers();
            }
        }
        self.deliver(queue, received);
    }

    /// Gives buffers for received data back to their hosts.
    fn return_buffers(&mut self) {
        while let Some((queue, done)) = self.l5o.as_mut().and_then(L5oEngine::poll_returned) {
            self.emit(queue, Event::DdpTeardownDone(Box::new(done)));
        }
    }

    /// Has the engine for protocols above TCP open what it can.
    fn open_messages(&mut self, received: &mut Received, at: &TransportAt) {
        let Some(l5o) = self.l5o.as_mut().filter(|l5o| l5o.receives()) else { return };
        let Some(tcp) = tcp_payload(received.packet.as_slice(), at) else { return };
        let payload = &mut received.packet.as_mut_slice()[tcp.range];
        let Some(outcome) = l5o.receive(&tcp.tuple, tcp.seq, payload) else { return };
        received.opened = outcome.opened;
        received.placed = outcome.placed;
        for (queue, context, flow, request) in outcome.asks {
            self.emit(queue, Event::L5oResyncRxReq { context, flow, request });
        }
    }

    /// What belongs to no flow concerns every host: the answer to a solicitation, an ICMP error.
    fn copy_to_others(&mut self, queue: usize, received: &Received) {
        for other in (0..self.events.len()).filter(|&other| other != queue) {
            let Some(packet) = self.pool.copy(received.packet.as_slice()) else { return };
            let Received { checksum, flow_hash, segment_size, .. } = *received;
            self.deliver(other, Received::new(packet, checksum, flow_hash, segment_size));
        }
    }

    pub(crate) fn deliver(&mut self, queue: usize, received: Received) {
        if self.has_room(queue) {
            self.hand_over(queue, received);
        } else {
            self.receiver.counters.rx_dropped_overrun += 1;
            self.pool.put(received.packet);
        }
    }

    #[inline]
    fn hand_over(&mut self, queue: usize, mut received: Received) {
        self.receiver.count_delivery(&received);
        received.teardowns = self.connections.teardowns(queue);
        self.emit(queue, Event::Received(received));
    }

    /// Appends a datagram to the frame that was delivered just before it, if the host has not taken
    /// that and the two belong together.
    pub(crate) fn append(&mut self, queue: usize, datagram: &Datagram) -> bool {
        let appended = match self.events.get_mut(queue).and_then(VecDeque::back_mut) {
            Some(Event::Received(tail)) => batch::append(tail, datagram, &mut self.pool),
            _ => false,
        };
        if appended {
            self.receiver.count_delivery(&datagram.received);
        }
        appended
    }

    /// Whether the device takes operations: while it says no, they stay in their ring.
    #[must_use]
    pub fn can_take_op(&self) -> bool {
        self.flows.len() < self.config.pending_transmits_max
            && self.runs.len() < RUNS_MAX
            && self.l5o.as_ref().is_none_or(L5oEngine::has_room)
            && self.quic.as_ref().is_none_or(QuicEngine::has_room)
            && (0..self.events.len()).all(|queue| self.has_room(queue))
    }

    /// An operation of the host that owns `queue`.
    pub fn handle_op(&mut self, now: Instant, queue: usize, op: Op) {
        match op {
            Op::Transmit(transmit) => self.transmit(now, queue, queue, transmit),
            Op::FileOpen { file, path, access } => self.open(queue, file, path, access),
            Op::FileInvalidate { file, offset, len } => {
                if let Some(files) = &mut self.files {
                    files.invalidate(queue, file, offset, len);
                }
            }
            Op::DdpSetup(setup) => self.ddp_setup(queue, *setup),
            Op::DdpTeardown { context, tag } => {
                if let Some(l5o) = &mut self.l5o {
                    l5o.ddp_teardown(queue, context, tag);
                }
            }
            Op::FileClose { file } => {
                if let Some(files) = &mut self.files {
                    files.close(queue, file);
                }
            }
            Op::Cancel { flow } => self.cancel_flow(now, queue, flow),
            Op::FileAck(extent) => self.acknowledge_file(queue, extent),
            Op::L5oCreate(create) => self.create(queue, *create),
            Op::L5oDestroy { context } => self.destroy_context(queue, context),
            Op::Listen(listen) => self.listen(queue, *listen),
            Op::Unlisten { listener } => self.unlisten(now, queue, listener),
            Op::Teardown(teardown) => self.tear_down(now, queue, teardown),
            Op::Return(frame) => self.take_back(now, frame),
            Op::Splice(splice) => self.splice(now, queue, &splice),
            Op::SpliceStart { id, packets } => self.splice_start(now, queue, id, packets),
            Op::Unsplice { id } => self.unsplice(queue, id),
            Op::Quiesce => self.quiesce(now, queue),
            Op::QuicAdd(add) => self.quic_add(queue, *add),
            Op::QuicRekey(rekey) => self.quic_rekey(queue, &rekey),
            Op::QuicRoute(route) => self.quic_route(queue, &route),
            Op::QuicRemove { quic } => self.quic_remove(now, queue, quic),
            Op::L5oResyncRxResp { context, tcpsn, number } => {
                if let Some(l5o) = &mut self.l5o {
                    l5o.resync(queue, context, tcpsn, number);
                }
            }
        }
        self.return_buffers();
        self.settle_done(now);
    }

    fn ddp_setup(&mut self, queue: usize, setup: DdpSetup) {
        match &mut self.l5o {
            Some(l5o) => l5o.ddp_setup(queue, setup),
            None => {
                let done = Box::new(setup.refuse(Refusal::Disabled));
                self.emit(queue, Event::DdpTeardownDone(done));
            }
        }
    }

    pub(crate) fn acknowledge_file(&mut self, queue: usize, extent: FileExtent) {
        if let Some(files) = &mut self.files {
            files.acknowledge(queue, extent);
        }
    }

    pub(crate) fn destroy_context(&mut self, queue: usize, context: L5oId) {
        if let Some(l5o) = &mut self.l5o {
            l5o.destroy(queue, context);
        }
    }

    fn create(&mut self, queue: usize, create: L5oCreate) {
        let (context, flow, why) = (create.context, create.flow, Refusal::Disabled);
        let refused = match &mut self.l5o {
            Some(l5o) => l5o.create(queue, create),
            None => Some(L5oRefused { context, flow, why }),
        };
        if let Some(refused) = refused {
            self.emit(queue, Event::L5oRefused(refused));
        }
    }

    /// An answer from the disk.
    pub fn handle_disk(&mut self, now: Instant, completion: DiskCompletion) {
        let Some(files) = &mut self.files else { return };
        if let Some((queue, opened)) = files.handle(completion) {
            self.emit(queue, Event::FileOpened(opened));
        }
        while let Some((queue, file)) = self.files.as_mut().and_then(FileEngine::poll_changed) {
            self.emit(queue, Event::FileChanged(file));
        }
        self.settle_done(now);
    }

    /// Returns the next frame for the wire; none while the echo of a transmit waits to be polled.
    pub fn poll_frame(&mut self, now: Instant) -> Option<TxFrame> {
        // What is due is done though the wire takes nothing.
        self.handle_connection_timeouts(now);
        self.handle_quic_timeout(now);
        // A frame that the link refused has freed nothing: a look for memory would cost a walk over
        // blocks that frames share, for each poll of a full link.
        if self.returned.is_empty() {
            self.find_memory(now);
        }
        if self.echoes > 0 {
            return None;
        }
        if let Some(frame) = self.returned.pop_front() {
            return Some(frame);
        }
        let cut = self.runs.front_mut()?.next(&self.wire, self.run_bytes_max);
        if cut.last {
            self.runs.pop_front();
        }
        self.tx.tx_packets += cut.packets;
        self.tx.tx_bytes += cut.bytes;
        Some(cut.frame)
    }

    /// Gives memory that frames have freed to transmits that wait for it.
    fn find_memory(&mut self, now: Instant) {
        if let Some(files) = &mut self.files {
            files.nudge();
            self.settle_done(now);
        }
        if let Some(l5o) = &mut self.l5o {
            l5o.trim();
        }
        if let Some(quic) = &mut self.quic {
            quic.trim();
        }
    }

    /// Takes back a frame that the wire had no room for: it is the next to be polled.
    pub fn unpoll_frame(&mut self, frame: TxFrame) {
        self.returned.push_front(frame);
    }

    /// Takes back a run that the wire found too long for one frame. It is the next to be polled,
    /// and like all after it in frames that every wire that segments takes.
    pub fn unpoll_long_frame(&mut self, frame: TxFrame) {
        let (payload, header) = (frame.payload_len(), frame.header.len());
        let Some(run) = Run::again(frame) else { return };
        let packets = run.packets();
        self.tx.tx_long_runs_refused += 1;
        self.tx.tx_packets -= packets;
        self.tx.tx_bytes -= packets * header as u64 + payload as u64;
        self.run_bytes_max = RUN_BYTES_MAX;
        self.runs.push_front(run);
    }

    /// Takes back a frame that the wire has taken and does not need any more: received buffers that
    /// went out with it are used again. Who does not call it lets them go to the allocator.
    pub fn recycle(&mut self, frame: TxFrame) {
        self.connections.recycle(frame, &mut self.pool);
    }

    /// Returns the number of queues, each with a host.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.events.len()
    }

    /// The next event and its queue, queues in turn.
    pub fn poll_event(&mut self) -> Option<(usize, Event)> {
        for _ in 0..self.events.len() {
            let queue = self.next_queue;
            self.next_queue = (queue + 1) % self.events.len();
            if let Some(event) = self.poll_queue_event(queue) {
                return Some((queue, event));
            }
        }
        None
    }

    /// The next event of one queue, for drivers that know which rings have room.
    #[inline]
    pub fn poll_queue_event(&mut self, queue: usize) -> Option<Event> {
        if !self.quiescing.is_empty() && self.events.get(queue)?.is_empty() {
            self.tell_quiesced();
        }
        let event = self.events.get_mut(queue)?.pop_front()?;
        self.echoes -= usize::from(event.is_echo());
        Some(event)
    }

    /// Takes back an event that the queue's ring had no room for: it is the queue's next.
    pub fn unpoll_event(&mut self, queue: usize, event: Event) {
        if let Some(events) = self.events.get_mut(queue) {
            self.echoes += usize::from(event.is_echo());
            events.push_front(event);
        }
    }

    /// Returns whether nothing waits for the link, or to be given to it.
    pub(crate) fn has_sent_everything(&self) -> bool {
        self.runs.is_empty() && self.returned.is_empty() && self.flows.len() == 0
    }

    /// The next request for the disk.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        self.files.as_mut()?.poll_disk()
    }

    /// Takes back a request that the disk had no room for.
    pub fn unpoll_disk(&mut self, request: DiskRequest) {
        if let Some(files) = &mut self.files {
            files.unpoll_disk(request);
        }
    }

    /// When to poll again though nothing came in: where a transmit waits for memory that frames on
    /// their way hold, QUIC packets wait for others, or an engine that took over connections has
    /// something to do.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let starved = self.files.as_ref().is_some_and(FileEngine::is_starved)
            || self.l5o.as_ref().is_some_and(|l5o| !l5o.has_room())
            || self.quic.as_ref().is_some_and(|quic| !quic.has_room());
        let starved = starved && self.runs.is_empty() && self.returned.is_empty();
        let retry = starved.then(|| now + STARVED_RETRY);
        let quic = self.quic.as_ref().and_then(QuicEngine::poll_timeout);
        Instant::earliest([retry, quic, self.connections.poll_timeout()])
    }

    /// The buffers that the wire receives into; recycled ones come back to it.
    pub const fn pool(&mut self) -> &mut PacketPool {
        &mut self.pool
    }

    /// Loses all state: waiting transmits, open files, file content, events not yet polled, QUIC
    /// packets that wait for others. Each
    /// queue gets [`Event::Reset`]. Counters go on.
    pub fn reset(&mut self) {
        self.resets += 1;
        // Their hosts hear of the reset, and ask again.
        self.quiescing.clear();
        self.runs.clear();
        self.returned.clear();
        self.flows.clear();
        self.echoes = 0;
        for queue in &mut self.events {
            let waiting = core::mem::take(queue);
            queue.push_back(Event::Reset);
            for event in waiting {
                match event {
                    Event::Received(received) => self.pool.put(received.packet),
                    // Memory of the host is never lost.
                    Event::DdpTeardownDone(_) => queue.push_back(event),
                    _ => {}
                }
            }
        }
        if let Some(files) = &mut self.files {
            files.reset();
        }
        if let Some(l5o) = &mut self.l5o {
            l5o.reset();
        }
        self.return_buffers();
        if let Some(quic) = &mut self.quic {
            quic.reset(&mut self.pool);
        }
        self.connections.reset();
    }

    /// Calls `f` with each counter and gauge. Names begin with their area: `rx_`, `pool_`, `tx_`,
    /// `file_`, `l5o_` with `rx_tls_` and `tx_tls_`, `nvme_tcp_` with `rx_nvmeotcp_`, `setup_`,
    /// `teardown_`, `splice_`, `quic_`, `dma_` (modelled), `device_`.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.receiver.counters.visit(f);
        self.pool.visit(f);
        self.tx.visit(f);
        f("tx_pending_transmits", self.flows.len() as u64);
        f("tx_pending_flows", self.flows.flows() as u64);
        f("tx_runs", (self.runs.len() + self.returned.len()) as u64);
        f("device_resets", self.resets);
        if let Some(files) = &self.files {
            files.visit(f);
        }
        if let Some(l5o) = &self.l5o {
            l5o.visit(f);
        }
        if let Some(quic) = &self.quic {
            quic.visit(f);
        }
        self.connections.visit(f);
    }

    /// Whether the wire keeps up: else an engine's packets that need not be are not sent.
    pub(crate) fn has_run_room(&self) -> bool {
        self.runs.len() < RUNS_MAX
    }

    /// A packet of an engine's, ready for the wire.
    pub(crate) fn push_run(&mut self, run: Run) {
        Outlet { runs: &mut self.runs, tx: &mut self.tx, pool: &mut self.pool }.send(Some(run));
    }

    fn open(&mut self, queue: usize, file: FileId, path: Box<[u8]>, access: FileAccess) {
        let refused = |why| Some(FileOpened { file, result: Err(FileFault::Refused(why)) });
        let answer = match &mut self.files {
            Some(files) => files.open(queue, file, path, access),
            None => refused(Refusal::Disabled),
        };
        if let Some(opened) = answer {
            self.emit(queue, Event::FileOpened(opened));
        }
    }

    /// Splicing, and the way out for it.
    pub(crate) fn splicing(&mut self) -> Option<(&mut SpliceEngine, Outlet<'_>)> {
        let out = Outlet { runs: &mut self.runs, tx: &mut self.tx, pool: &mut self.pool };
        self.connections.splice.as_mut().map(|splice| (splice, out))
    }

    /// Largest packet above Ethernet that the wire carries.
    pub(crate) const fn mtu(&self) -> u16 {
        self.wire.mtu
    }

    pub(crate) fn has_room(&self, queue: usize) -> bool {
        self.events.get(queue).is_some_and(|events| events.len() < self.config.queue_events_max)
    }

    #[inline]
    pub(crate) fn emit(&mut self, queue: usize, event: Event) {
        if let Some(events) = self.events.get_mut(queue) {
            self.echoes += usize::from(event.is_echo());
            events.push_back(event);
        }
    }
}

/// Bytes of files that one transmit can need: with messages to seal, what precedes each extent in
/// its message.
fn file_bytes_max(config: &DeviceConfig) -> u32 {
    let extents = u32::try_from(FileLimits::EXTENTS_PER_TRANSMIT_MAX).unwrap_or(0);
    let message = u32::try_from(CONTENT_BYTES_MAX).unwrap_or(0);
    let pdus = |l5o: &L5oConfig| if l5o.nvme_tcp_tx { PREFIX_BYTES_MAX } else { 0 };
    let prefixes = config.l5o.as_ref().map_or(0, |l5o| extents * message + pdus(l5o));
    config.transmit_bytes_max.saturating_add(prefixes)
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Device")
            .field("pending", &self.flows.len())
            .field("runs", &self.runs.len())
            .finish_non_exhaustive()
    }
}
