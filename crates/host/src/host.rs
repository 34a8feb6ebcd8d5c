//! One core's stack: the device's events come in, operations go out.
//!
//! Packets find their connection here; what TCP makes of them is in `tcp`, what the application
//! sees in `sockets`. Sending is lazy: events and calls leave connections *dirty*, and
//! [`Host::poll_op`] lets each of them send once, so that a response's head and body, and the
//! acknowledgment of its request, leave together.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use abi::disk::{DiskCompletion, DiskRequest};
use abi::port::RxFrame;
use abi::{
    Capabilities, Checksum, Event, FileFault, FileId, Op, PacketBuf, Received, Refusal,
    TransmitDone, TransmitOutcome,
};
use base::{Alarms, Duration, Instant, Prng, internal_error};
use tcp_rules::cookie::Cookies;
use tcp_rules::time_wait::TimeWaitTcb;
use wire::checksum::pseudo_header;
use wire::frame::{Frame, IpPacket, protocol};
use wire::tcp::Segment;
use wire::{Endpoint, Tuple};

use crate::api::{ListenerId, Notice, SocketError, SocketId};
use crate::config::Config;
use crate::counters::HostCounters;
use crate::ending::Ending;
use crate::extents::Extents;
use crate::files::{DiskOwner, FileWork, Files};
use crate::hand_over::HandOver;
use crate::hash::Keyed;
use crate::l5p::Connection;
use crate::l5p::tls::TlsServer;
use crate::limit::PerSecond;
use crate::net::icmp::{ErrorKind, TcpError};
use crate::net::{Net, arp, icmp};
use crate::outbox::Outbox;
use crate::splice::Splices;
use crate::table::{Place, Table};
use crate::tcp::conn::Cx;
use crate::tcp::input::Arrival;
use crate::tcp::listen::Listener;
use crate::tcp::state::State;
use crate::tcp::time_wait::Remains;
use crate::udp::Udp;

/// A host stack.
///
/// Order of calls: `handle_*` for everything that happened, then the application on every
/// [`Self::poll_notice`], then [`Self::poll_op`], [`Self::poll_disk`] and [`Self::poll_recycle`]
/// until they have nothing more, then sleep until [`Self::poll_timeout`] or the next event. Nothing
/// blocks; nothing reads a clock.
#[derive(Debug)]
pub struct Host {
    pub(crate) config: Config,
    pub(crate) out: Outbox,
    pub(crate) files: Files,
    pub(crate) table: Table,
    pub(crate) hand_over: HandOver,
    pub(crate) listeners: Vec<Option<Listener>>,
    /// What listeners that speak TLS need for it.
    pub(crate) tls_servers: BTreeMap<u32, TlsServer>,
    pub(crate) cookies: Cookies,
    /// When a cookie was last sent: acknowledgments are tried as cookies only for a while after.
    pub(crate) cookie_sent: Option<Instant>,
    /// Ports looked at for connections of ours, over all peers.
    pub(crate) ports_tried: u64,
    /// Key of initial sequence numbers and timestamp offsets: RFC 6528.
    pub(crate) iss_key: Keyed,
    pub(crate) notices: VecDeque<Notice>,
    /// Connections that may have something to send.
    dirty: VecDeque<u32>,
    alarms: Alarms,
    pub(crate) icmp_limit: PerSecond,
    /// The latest time that the host was told, for calls that are told none.
    pub(crate) latest: Instant,
    pub(crate) splices: Splices,
    pub(crate) udp: Udp,
    pub(crate) extents: Extents,
    pub(crate) ending: Ending,
}

/// Room for operations that an empty queue keeps: the ring was full for a while where it had more.
const OPS_KEPT: usize = 1024;

impl Host {
    /// A stack above a device with these capabilities. `seed` has to come from the operating system
    /// where peers are not to predict sequence numbers and cookies.
    #[must_use]
    pub fn new(config: Config, capabilities: &Capabilities, seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let offload = match (config.file_offload, capabilities.file) {
            (Err(why), _) | (Ok(()), Err(why)) => Err(why),
            (Ok(()), Ok(_)) => Ok(()),
        };
        Self {
            out: Outbox {
                ops: VecDeque::new(),
                recycle: VecDeque::new(),
                disk: VecDeque::new(),
                counters: HostCounters::default(),
                net: Net::new(&config, capabilities.mac, capabilities.mtu),
                transmit_bytes_max: capabilities.transmit_bytes_max,
                l5o: config.tls_offload.and(capabilities.l5o),
                nvme_tcp: config
                    .nvme_tcp_offload
                    .and(capabilities.l5o)
                    .map(|limits| limits.nvme_tcp),
                splice: config.splice_offload.and(capabilities.splice),
                quic: config.quic_offload.and(capabilities.quic),
                unsent: Vec::new(),
                resets: PerSecond::default(),
                resets_per_s_max: config.tcp.resets_per_s_max,
                contexts: 0,
            },
            files: Files::new(config.files_max, offload, Keyed::random(&mut prng)),
            table: Table::new(&mut prng, config.addrs.iter().map(|cidr| cidr.addr).collect()),
            hand_over: HandOver::new(&config, capabilities),
            listeners: Vec::new(),
            tls_servers: BTreeMap::new(),
            cookies: Cookies::new((prng.next_u64(), prng.next_u64())),
            cookie_sent: None,
            iss_key: Keyed::random(&mut prng),
            ports_tried: 0,
            notices: VecDeque::new(),
            dirty: VecDeque::new(),
            alarms: Alarms::default(),
            icmp_limit: PerSecond::default(),
            latest: Instant::ZERO,
            splices: Splices::default(),
            udp: Udp::default(),
            extents: Extents::default(),
            ending: Ending::default(),
            config,
        }
    }

    /// Takes an event of the device.
    pub fn handle_event(&mut self, now: Instant, event: Event) {
        self.latest = now;
        match event {
            Event::Received(received) => self.handle_received(now, received),
            Event::TransmitDone(done) => self.handle_transmit_done(now, done),
            Event::FileOpened(opened) => {
                if self.files.handle_opened(&mut self.out, &opened) {
                    self.notices.push_back(Notice::File(opened.file));
                }
            }
            Event::FileChanged(file) => {
                if self.files.handle_changed(&mut self.out, file) {
                    self.notices.push_back(Notice::File(file));
                }
            }
            Event::L5oResyncRxReq { context, flow, request } => {
                if !self.nvme_resync(flow, context, request) {
                    self.session_resync(now, flow, context, request);
                }
            }
            Event::L5oRefused(refused) => {
                if !self.nvme_refused(&refused) {
                    self.session_refused(now, &refused);
                }
            }
            Event::DdpTeardownDone(done) => self.nvme_buffer_back(*done),
            Event::ListenRefused { listener, why } => self.handle_listen_refused(listener, why),
            Event::TeardownDone(done) => self.handle_teardown_done(done),
            Event::TeardownRefused(refused) => self.handle_teardown_refused(now, refused),
            Event::Spliced { id, result } => self.handle_spliced(now, id, result),
            Event::SpliceClosed(closed) => self.handle_splice_closed(&closed),
            Event::QuicStatus(status) => self.notices.push_back(Notice::Quic(status)),
            // This host counts by itself.
            Event::FlowCounted { .. } => {}
            Event::Load(load) => self.handle_load(load),
            Event::Quiesced => self.handle_quiesced(),
            Event::Reset => self.handle_device_reset(now),
        }
    }

    /// Takes an answer of the host's own disk.
    pub fn handle_disk(&mut self, now: Instant, completion: DiskCompletion) {
        self.latest = now;
        match self.files.handle_disk(&mut self.out, completion) {
            Some(FileWork::Opened(file)) => {
                self.notices.push_back(Notice::File(file));
                self.resume_extents(file, None);
            }
            Some(FileWork::Read { owner: DiskOwner::User(token), result }) => {
                self.finish_extent(token, result);
            }
            Some(FileWork::Read { owner: DiskOwner::Stream { flow, position }, result }) => {
                self.with(now, SocketId::of_flow(flow), |conn, cx| match result {
                    Ok(bytes) => conn.handle_file_bytes(cx, position, bytes),
                    Err(fault) => conn.fail_file(cx, fault),
                });
            }
            Some(FileWork::Changed { token, buffer, result }) => {
                self.finish_change(token, buffer, result);
            }
            Some(FileWork::Reopened { file, fault }) => self.handle_reopened(now, file, fault),
            None => {}
        }
    }

    /// Runs what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.latest = now;
        while let Some(index) = self.alarms.pop(now) {
            let Some(conn) = self.table.slots[index as usize].stream.conn() else { continue };
            if self.splices.is_frozen(index) {
                continue; // If it is refused its alarm is set anew.
            }
            let next = conn.timers.next();
            if next > now {
                // It moved to later meanwhile.
                self.alarms.set(index, next);
            } else {
                let id = self.table.id_of(index);
                self.with(now, id, Connection::handle_timeout);
            }
        }
        for dropped in self.out.net.neighbors.handle_timeout(now) {
            self.out.give_up(&dropped);
        }
        while let Some((slot, remains)) = self.table.time_wait.poll_expired(now) {
            self.table.unroute(&remains.tuple, Place::TimeWait(slot));
        }
        self.expire_half_open(now);
    }

    /// When to call [`Self::handle_timeout`], if nothing happens before: once [`Self::poll_op`] has
    /// nothing more to give.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([
            self.alarms.next(),
            self.out.net.neighbors.poll_timeout(),
            self.table.time_wait.poll_timeout(),
            self.table.syn_cache.poll_timeout(),
            self.splices.poll_timeout(),
        ])
    }

    /// The next operation for the device. Lets every connection that has something to send do so
    /// first.
    pub fn poll_op(&mut self, now: Instant) -> Option<Op> {
        self.latest = now;
        self.settle_quasis(now);
        while let Some((flow, tag)) = self.out.unsent.pop() {
            let (delay, outcome) = (Duration::ZERO, TransmitOutcome::Sent);
            self.handle_transmit_done(now, TransmitDone { flow, tag, delay, outcome });
        }
        // One connection at a time, so that the queue stays as short as what one of them sends.
        while self.out.ops.is_empty() {
            let Some(index) = self.dirty.pop_front() else {
                self.advance_splices(now);
                let more = self.out.ops.is_empty() && self.dirty.is_empty();
                if more && self.advance_end(now) {
                    continue;
                }
                if self.dirty.is_empty() {
                    break;
                }
                continue;
            };
            let id = self.table.id_of(index);
            // What a session has queued goes into the same transmits.
            self.session_turn(now, id);
            self.table.slots[index as usize].dirty = false;
            if self.splices.is_frozen(index) {
                continue;
            }
            self.with_clean(now, id, Connection::output);
        }
        arp::solicit(&mut self.out);
        if self.out.ops.is_empty() && self.out.ops.capacity() > OPS_KEPT {
            self.out.ops = VecDeque::new();
        }
        self.out.ops.pop_front()
    }

    /// A buffer to give back to the device.
    pub fn poll_recycle(&mut self) -> Option<PacketBuf> {
        self.out.recycle.pop_front()
    }

    /// A request for the host's own disk: only where the device does not send files.
    pub fn poll_disk(&mut self) -> Option<DiskRequest> {
        self.out.disk.pop_front()
    }

    /// Shows every counter and gauge by name.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, u64)) {
        self.out.counters.visit(f);
        f("connections", self.table.len() as u64);
        f("connections_quasi", self.table.quasis() as u64);
        f("connections_closing_on_device", u64::from(self.hand_over.closing()));
        f("connections_half_open", self.table.syn_cache.len() as u64);
        f("connections_time_wait", self.table.time_wait.len() as u64);
        f("udp_receive_queue", self.udp.queued() as u64);
        self.splices.visit(f);
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &HostCounters {
        &self.out.counters
    }

    fn handle_received(&mut self, now: Instant, received: Received) {
        self.out.counters.received_frames += 1;
        let frame = received.packet.as_slice();
        match wire::frame::parse(frame) {
            Ok(Frame::Arp { at }) => arp::handle_arp(&mut self.out, now, &frame[at..]),
            Ok(Frame::Ip(ip)) if ip.protocol == protocol::TCP => {
                self.handle_tcp(now, received, &ip);
                return;
            }
            Ok(Frame::Ip(ip)) if ip.protocol == protocol::UDP => {
                self.handle_udp(now, received, &ip);
                return;
            }
            Ok(Frame::Ip(ip)) => self.handle_other_ip(now, frame, &ip),
            Err(_) => self.out.counters.received_malformed += 1,
        }
        self.out.recycle.push_back(received.packet);
    }

    fn handle_other_ip(&mut self, now: Instant, frame: &[u8], ip: &IpPacket) {
        match ip.protocol {
            protocol::ICMP | protocol::ICMPV6 => {
                if let Some(error) = icmp::handle(&mut self.out, now, ip, frame) {
                    self.handle_icmp_error(now, error);
                }
            }
            _ => self.out.counters.received_unknown_protocol += 1,
        }
    }

    /// Finds out whose segment it is.
    fn handle_tcp(&mut self, now: Instant, received: Received, ip: &IpPacket) {
        let Some((segment, tuple, payload)) = self.check_tcp(&received, ip) else {
            self.out.recycle.push_back(received.packet);
            return;
        };
        let (hash, place) = self.table.look_up(&tuple);
        self.hand_over.note_taken(received.teardowns);
        if place.is_none() && self.hand_over.is_fresh(hash) {
            self.out.counters.hand_over_frames_returned += 1;
            let Received { packet, checksum, segment_size, .. } = received;
            self.out.ops.push_back(Op::Return(RxFrame { packet, checksum, segment_size }));
            return;
        }
        let mut arrival = Arrival {
            segment,
            packets: packets_in(payload.len(), received.segment_size),
            packet: received.packet,
            payload,
            metadata: received.metadata,
            ce: ip.ecn == 3,
        };
        if let Some(established) = received.established {
            match self.accept_established(now, established, (&tuple, hash), place, arrival) {
                Some(other) => arrival = other,
                None => return,
            }
        }
        match place {
            Some(Place::Connection(index)) if self.splices.has(index) => {
                let (checksum, size) = (received.checksum, received.segment_size);
                self.handle_splicing(now, index, arrival, checksum, size);
            }
            Some(Place::Connection(index)) => self.deliver(now, index, arrival),
            Some(Place::HalfOpen(slot)) => self.handle_half_open(now, slot, arrival),
            Some(Place::TimeWait(slot)) => self.handle_time_wait(now, slot, &tuple, arrival),
            None => self.handle_unknown(now, &tuple, arrival),
        }
    }

    /// Checksum, header, addresses.
    fn check_tcp(
        &mut self,
        received: &Received,
        ip: &IpPacket,
    ) -> Option<(Segment, Tuple, core::ops::Range<usize>)> {
        let frame = received.packet.as_slice();
        let counters = &mut self.out.counters;
        if !self.out.net.is_ours(ip.destination) {
            counters.received_not_ours += 1;
            return None;
        }
        let good = match received.checksum {
            Checksum::Good | Checksum::Partial => true,
            Checksum::Bad => false,
            Checksum::Unchecked => {
                counters.checksum_software += 1;
                let len = ip.end - ip.l4;
                let mut sum = pseudo_header(ip.source, ip.destination, protocol::TCP, len);
                sum.add(&frame[ip.l4..ip.end]);
                sum.finish() == 0
            }
        };
        if !good {
            counters.received_bad_checksum += 1;
            return None;
        }
        counters.tcp_in_segs += 1;
        let Ok((segment, header_len)) = Segment::parse(&frame[ip.l4..ip.end]) else {
            counters.tcp_in_errs += 1;
            return None;
        };
        // A broadcast or multicast source can be nobody's peer: RFC 1122 section 4.2.3.10.
        if ip.source.is_multicast() || ip.source.is_unspecified() {
            counters.tcp_in_errs += 1;
            return None;
        }
        let tuple = Tuple {
            local: Endpoint { addr: ip.destination, port: segment.destination },
            remote: Endpoint { addr: ip.source, port: segment.source },
        };
        Some((segment, tuple, ip.l4 + header_len..ip.end))
    }

    /// Hands a segment to its connection.
    pub(crate) fn deliver(&mut self, now: Instant, index: u32, arrival: Arrival) {
        let id = self.table.id_of(index);
        if self.table.get(id).is_none() {
            self.deliver_to_quasi(now, id, arrival);
            return;
        }
        self.with(now, id, |conn, cx| conn.handle_segment(cx, arrival));
    }

    fn handle_transmit_done(&mut self, now: Instant, done: TransmitDone) {
        if self.handle_udp_done(&done) {
            return;
        }
        let id = SocketId::of_flow(done.flow);
        if self.table.get(id).is_none() {
            // It ended meanwhile: nothing waits for the echo any more.
            self.out.counters.events_late += 1;
            return;
        }
        self.with_clean(now, id, |conn, cx| {
            conn.handle_echo(cx, done.tag, done.delay, done.outcome);
        });
    }

    /// ARCHITECTURE.md, property 7: nothing is lost, the host goes on in software.
    fn handle_device_reset(&mut self, now: Instant) {
        self.out.counters.device_resets += 1;
        self.files.handle_reset(&mut self.out);
        self.reset_hand_over();
        self.reset_splices(now);
        self.resume_end();
        for index in 0..self.table.slots.len() {
            let Ok(index) = u32::try_from(index) else { break };
            let id = self.table.id_of(index);
            self.with(now, id, |conn, cx| conn.handle_device_reset(cx));
            self.session_device_reset(now, id);
            self.renew_digests(now, id);
            self.nvme_device_reset(id);
        }
        if self.udp.is_used() {
            self.notices.push_back(Notice::DeviceReset);
        }
    }

    /// A file that the device had open is open again on the host's own disk, or not: connections
    /// that send it go on, or end.
    fn handle_reopened(&mut self, now: Instant, file: FileId, fault: Option<FileFault>) {
        self.resume_extents(file, fault);
        if fault.is_some() {
            // Whoever keeps the handle for the next request has to open the file again.
            self.notices.push_back(Notice::File(file));
        }
        for index in 0..self.table.slots.len() {
            let Ok(index) = u32::try_from(index) else { break };
            let id = self.table.id_of(index);
            if self.table.get(id).is_some_and(|conn| conn.snd.spans.files().any(|f| f == file)) {
                self.with(now, id, |conn, cx| {
                    if let Some(fault) = fault {
                        conn.fail_file(cx, fault);
                    }
                });
            }
        }
    }

    /// RFC 5927: an error counts only if it names bytes in flight.
    fn handle_icmp_error(&mut self, now: Instant, error: TcpError) {
        let counted = match self.table.find(&error.tuple) {
            Some(Place::Connection(index)) => {
                let id = self.table.id_of(index);
                self.with(now, id, |conn, cx| conn.handle_icmp(cx, &error)).unwrap_or(false)
            }
            _ => false,
        };
        if !counted {
            self.out.counters.icmp_ignored += 1;
        }
    }

    /// Works on a connection, settles what that changed, and lets it send at the next `poll_op`.
    pub(crate) fn with<R>(
        &mut self,
        now: Instant,
        id: SocketId,
        work: impl FnOnce(&mut Connection, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        self.touch(id);
        self.with_clean(now, id, work)
    }

    /// As [`Self::with`], without anything to send afterwards.
    fn with_clean<R>(
        &mut self,
        now: Instant,
        id: SocketId,
        work: impl FnOnce(&mut Connection, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        let result = self.with_unsettled(now, id, work)?;
        self.settle(now, id);
        Some(result)
    }

    /// As [`Self::with_clean`], and nothing is settled afterwards: for connections on their way
    /// out.
    pub(crate) fn with_unsettled<R>(
        &mut self,
        now: Instant,
        id: SocketId,
        work: impl FnOnce(&mut Connection, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        let conn = self.table.get_mut(id)?;
        let mut cx =
            Cx { now, config: &self.config.tcp, out: &mut self.out, files: &mut self.files };
        Some(work(conn, &mut cx))
    }

    /// The connection has something to send, perhaps.
    pub(crate) fn touch(&mut self, id: SocketId) {
        if self.table.get(id).is_some() {
            let slot = &mut self.table.slots[id.index()];
            if !slot.dirty {
                slot.dirty = true;
                self.dirty.push_back(id.index);
            }
        }
    }

    /// Discards what came for an application that reads no more.
    fn discard_unwanted(&mut self, now: Instant, id: SocketId) {
        if self.table.get(id).is_some_and(|conn| conn.modes.read_shut) {
            self.discard_unread(id);
        }
        self.discard_late_data(now, id);
    }

    /// After work on a connection: tells the application, sets the alarm, and parts with one that
    /// has ended.
    fn settle(&mut self, now: Instant, id: SocketId) {
        self.session_turn(now, id);
        let unwanted = |conn: &Connection| {
            conn.modes.read_shut || !conn.modes.held && conn.rcv.ready_bytes() > 0
        };
        if self.table.get(id).is_some_and(unwanted) {
            self.discard_unwanted(now, id);
        }
        let Some(slot) = self.table.slots.get_mut(id.index()) else { return };
        let Some(conn) = slot.stream.conn_mut() else { return };
        if conn.modes.notify {
            conn.modes.notify = false;
            if conn.modes.held && !slot.noticed {
                slot.noticed = true;
                self.notices.push_back(match slot.accepted_by {
                    Some(listener) => Notice::Accepted(ListenerId(listener), id),
                    None => Notice::Socket(id),
                });
            }
        }
        if !slot.dirty {
            // Else what it sends next sets its timers anew: most of those set now would be moved.
            self.alarms.set(id.index, conn.timers.next());
        }
        match conn.state {
            State::TimeWait => self.enter_time_wait(now, id),
            State::Closed => self.part_with(id),
            _ if conn.is_left() && !slot.dirty => {
                self.try_tear_down(now, id);
            }
            _ => {}
        }
        if self.splices.has(id.index) {
            self.note_splicing(now, id);
        }
    }

    /// The tuple goes on in TIME-WAIT without the connection, which stays only while the
    /// application reads from it.
    fn enter_time_wait(&mut self, now: Instant, id: SocketId) {
        self.session_ended(id);
        let Some(conn) = self.table.get_mut(id) else {
            internal_error!(self.out.counters.internal_errors, "no such connection ends");
            return;
        };
        let tuple = conn.tuple;
        let held = conn.modes.held;
        let remains = conn.remains(now);
        conn.timers.stop_all();
        let mut cx =
            Cx { now, config: &self.config.tcp, out: &mut self.out, files: &mut self.files };
        conn.acknowledge_last(&mut cx);
        conn.release_files(&mut cx);
        if self.table.find(&tuple) == Some(Place::Connection(id.index)) {
            let until = now + self.config.tcp.time_wait;
            let (slot, evicted) = self.table.time_wait.insert(remains, until);
            if let Some((slot, evicted)) = evicted {
                self.table.unroute(&evicted.tuple, Place::TimeWait(slot));
            }
            let before = Place::Connection(id.index);
            self.table.route(&tuple, Place::TimeWait(slot), Some(before));
        }
        if !held {
            self.free(id);
        }
    }

    /// Takes back the tuple of a connection that is closed, and the connection unless the
    /// application holds it.
    fn part_with(&mut self, id: SocketId) {
        self.session_ended(id);
        let Some(conn) = self.table.get(id) else {
            internal_error!(self.out.counters.internal_errors, "no such connection ends");
            return;
        };
        let (tuple, held) = (conn.tuple, conn.modes.held);
        self.table.unroute(&tuple, Place::Connection(id.index));
        if !held {
            self.free(id);
        }
    }

    /// Frees a connection and its slot.
    pub(crate) fn free(&mut self, id: SocketId) {
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.rcv.clear(&mut self.out.recycle);
        if conn.awaits_device() {
            return; // Its last echo brings it here again.
        }
        if let Some(listener) = self.table.slots[id.index()].accepted_by.take() {
            self.note_taken(listener);
        }
        self.table.remove(id.index);
    }

    /// Whether files go to the device, or why not.
    pub(crate) const fn file_offload(&self) -> Result<(), Refusal> {
        self.files.offload
    }
}

/// Packets that were merged into a frame with that much payload.
fn packets_in(payload: usize, segment_size: u16) -> u8 {
    if segment_size == 0 {
        return 1;
    }
    u8::try_from(payload.div_ceil(usize::from(segment_size))).unwrap_or(u8::MAX)
}

impl Connection {
    /// What TIME-WAIT keeps.
    fn remains(&self, now: Instant) -> Remains {
        Remains {
            tuple: self.tuple,
            tcb: TimeWaitTcb {
                snd_nxt: self.seq(self.snd.nxt),
                rcv_nxt: self.rcv.ack(),
                ts_recent: self.options.timestamps.then_some(self.options.ts_recent.value()),
            },
            ts_offset: self.options.ts_offset,
            since: now,
        }
    }

    /// RFC 1191, RFC 8201, RFC 5461: an ICMP error. Says whether it named bytes in flight.
    fn handle_icmp(&mut self, cx: &mut Cx<'_>, error: &TcpError) -> bool {
        let ahead = error.seq.distance(self.seq(self.snd.una));
        let in_flight = ahead >= 0 && u64::from(ahead.unsigned_abs()) < self.snd.nxt - self.snd.una;
        if !in_flight {
            return false;
        }
        match error.kind {
            ErrorKind::TooBig(mtu) => self.lower_mtu(cx, mtu),
            // RFC 5461: hard errors end an opening connection only; an established one goes on
            // trying.
            ErrorKind::Refused if self.state == State::SynSent => {
                self.abort(cx, SocketError::Refused);
            }
            ErrorKind::Unreachable if self.state == State::SynSent => {
                self.abort(cx, SocketError::Unreachable);
            }
            ErrorKind::Refused | ErrorKind::Unreachable => {}
        }
        true
    }

    fn lower_mtu(&mut self, cx: &mut Cx<'_>, mtu: u32) {
        // RFC 8201 section 4 and RFC 791: never below what every link must carry.
        let least = if self.tuple.local.addr.is_ipv4() { 576 } else { 1280 };
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(least);
        if self.set_mtu(mtu) {
            cx.out.counters.tcp_pmtu_reductions += 1;
            // What was sent with the old size did not arrive.
            self.snd.flight.mark_lost(|_| true);
        }
    }
}
