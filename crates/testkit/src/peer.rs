//! One host under test and a scripted peer.
//!
//! The test sends segments as the peer ([`ScriptedTcpPeer::send`]), expects segments from the host
//! ([`ScriptedTcpPeer::expect`]), advances time ([`ScriptedTcpPeer::at_ms`]), and acts as the
//! host's application (`app_*`) and device (`echo*`, `handle_device_event`). Neighbor resolution is
//! answered unless a test disables that.

mod app_and_disk;
mod non_tcp;
mod setup_teardown;
mod steering;

use core::net::IpAddr;
use std::collections::VecDeque;

use abi::disk::DiskRequest;
use abi::setup::SetupLimits;
use abi::splice::SpliceLimits;
use abi::steering::SteeringReason;
use abi::teardown::TeardownLimits;
use abi::{
    Capabilities, Checksum, Event, FileExtent, FileFault, FileId, FileKind, FileLimits, FileOpened,
    FileStat, FlowId, Op, PacketPool, ReceivedFrame, Transmit, TransmitPart,
};
use base::counters::moved;
use base::{Duration, Instant, SeqNum};
use host::{Cidr, Host, HostConfig, ListenConfig, Notice, SocketError, SocketId, SocketInfo};
use wire::Endpoint;
use wire::emit::{EthernetAddrs, IpHeader};
use wire::frame::{ParsedFrame, protocol};
use wire::segment::tcp_packet;
use wire::tcp::{SackBlock, TcpFlags, TcpHeader, TcpOptions, TcpTimestamps};

use crate::packetize;
use crate::seg;
use crate::seg::Seg;

/// The host's IPv4 address.
pub const HOST: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 77, 0, 2));
/// The peer's IPv4 address.
pub const PEER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 77, 0, 1));
/// The host's IPv6 address.
pub const HOST_V6: IpAddr = IpAddr::V6(core::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));
/// The peer's IPv6 address.
pub const PEER_V6: IpAddr = IpAddr::V6(core::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
/// The host's Ethernet address.
pub const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The peer's Ethernet address.
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Virtual time at which tests begin. It is not zero, so that "never" and "at the start" differ.
const START: Instant = Instant::from_millis(1_000_000);
/// The peer's initial sequence number, chosen to wrap soon.
const PEER_ISS: SeqNum = SeqNum(u32::MAX - 2000);
/// The peer's TSval at the start.
const PEER_TS: u32 = 5_000;
/// Counters that any traffic moves; [`ScriptedTcpPeer::expect_counters`] ignores them.
const TRAFFIC_COUNTERS: [&str; 10] = [
    "received_frames",
    "tcp_in_segs",
    "tcp_out_transmits",
    "tcp_out_bytes",
    "tcp_out_acks",
    "file_offload_bytes",
    // Neighbors in use are solicited again from time to time.
    "neighbor_solicitations",
    "connections",
    "connections_half_open",
    "connections_time_wait",
];

/// The simulated device's answer to an open.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOpenResult {
    /// Metadata of the file, or why the open failed.
    pub result: Result<FileStat, FileFault>,
}

/// A decoded transmit of the host.
#[derive(Debug)]
struct SentTransmit {
    at: Instant,
    seg: Seg,
    tag: Option<u32>,
    flow: FlowId,
}

/// A host and its scripted peer.
pub struct ScriptedTcpPeer {
    /// The host under test.
    pub host: Host,
    /// Addresses of the host and of the peer.
    addrs: (IpAddr, IpAddr),
    ports: (u16, u16),
    now: Instant,
    sent: VecDeque<SentTransmit>,
    /// Transmitted frames other than TCP, without answered neighbor solicitations.
    pub non_tcp_frames: VecDeque<Vec<u8>>,
    /// Number of teardowns that the device has taken, reported to the host with each received
    /// frame.
    pub device_teardowns_taken: u32,
    /// Why another queue's device handed over the frames that are sent from now on.
    pub steered: SteeringReason,
    /// Operations other than transmits, in order.
    pub other_ops: VecDeque<Op>,
    /// Pending requests to the host's own disk.
    pub disk: VecDeque<DiskRequest>,
    /// Number of files that the host closed on its own disk.
    pub disk_closes: u32,
    /// Notices that the application received.
    pub notices: VecDeque<Notice>,
    socket: Option<SocketId>,
    host_iss: Option<SeqNum>,
    peer_iss: SeqNum,
    host_nxt: u32,
    peer_nxt: u32,
    /// The host's TSval minus its clock in milliseconds, once a timestamp was seen.
    ts_base: Option<u32>,
    last_tsval: u32,
    peer_ts: bool,
    win: u16,
    last_tag: Option<(FlowId, u32)>,
    /// True to answer ARP requests and neighbor solicitations for the peer.
    pub answers_neighbors: bool,
    /// ECN field of frames from the peer, unless a segment sets its own.
    pub ecn: u8,
    /// Checksum state that the device reports for the frames that it delivers.
    pub checksum: Checksum,
    device_file: DeviceOpenResult,
    file: Option<(FileId, u64)>,
    pool: PacketPool,
}

fn config() -> HostConfig {
    let cidr = |addr: IpAddr| Cidr { addr, prefix_len: if addr.is_ipv4() { 24 } else { 64 } };
    HostConfig { addrs: vec![cidr(HOST), cidr(HOST_V6)], ..HostConfig::default() }
}

/// Returns the metadata of a regular file of 1 GiB.
fn big_file() -> FileStat {
    FileStat { kind: FileKind::Regular, size: 1 << 30, modified_s: 0, modified_ns: 0, version: 1 }
}

impl ScriptedTcpPeer {
    /// Creates a host that listens on port 80, with the default configuration.
    #[must_use]
    pub fn server() -> Self {
        Self::server_with(|_| {})
    }

    /// Creates a host that listens on port 80, with a configuration edited by `change`.
    #[must_use]
    pub fn server_with(change: impl FnOnce(&mut HostConfig)) -> Self {
        Self::server_listening(change, 16)
    }

    /// Creates a host that listens on port 80 with the given backlog.
    #[must_use]
    pub fn server_listening(change: impl FnOnce(&mut HostConfig), backlog: usize) -> Self {
        let mut t = Self::new(change, (HOST, PEER));
        t.host.listen(ListenConfig { addr: None, port: 80, backlog }).expect("port 80 is free");
        t
    }

    /// Creates a host as [`Self::server`] does, but addressed over IPv6.
    #[must_use]
    pub fn server_v6() -> Self {
        let mut t = Self::new(|_| {}, (HOST_V6, PEER_V6));
        t.host.listen(ListenConfig { addr: None, port: 80, backlog: 16 }).expect("port 80 is free");
        t
    }

    /// Creates a host that has started to connect to the peer's port 80.
    #[must_use]
    pub fn client() -> Self {
        Self::client_with(|_| {})
    }

    /// Creates a host as [`Self::client`] does, with a configuration edited by `change`.
    #[must_use]
    pub fn client_with(change: impl FnOnce(&mut HostConfig)) -> Self {
        let mut t = Self::new(change, (HOST, PEER));
        let socket = t.host.connect(t.now, Endpoint { addr: PEER, port: 80 }).expect("connects");
        t.socket = Some(socket);
        t.ports = (t.host.local(socket).expect("it exists").port, 80);
        t.pump();
        t
    }

    /// Creates a host without listeners or connections; `addrs` are the host's and the peer's
    /// address.
    #[must_use]
    pub fn new(change: impl FnOnce(&mut HostConfig), addrs: (IpAddr, IpAddr)) -> Self {
        let mut config = config();
        change(&mut config);
        let capabilities = Capabilities {
            file: Ok(FileLimits { files_max: 100 }),
            setup: Ok(SetupLimits { listeners_max: 16 }),
            teardown: Ok(TeardownLimits { flows_max: 2, bytes_max: 65_536 }),
            splice: Ok(SpliceLimits { pairs_max: 16 }),
            ..Capabilities::without_engines(HOST_MAC, 1500, 65_535, abi::Refusal::NotSupported)
        };
        Self {
            host: Host::new(config, &capabilities, 7),
            addrs,
            ports: (80, 40_000),
            now: START,
            sent: VecDeque::new(),
            non_tcp_frames: VecDeque::new(),
            device_teardowns_taken: 0,
            steered: SteeringReason::Current,
            other_ops: VecDeque::new(),
            disk: VecDeque::new(),
            disk_closes: 0,
            notices: VecDeque::new(),
            socket: None,
            host_iss: None,
            peer_iss: PEER_ISS,
            host_nxt: 0,
            peer_nxt: 0,
            ts_base: None,
            last_tsval: 0,
            peer_ts: false,
            win: u16::MAX,
            last_tag: None,
            answers_neighbors: true,
            ecn: 0,
            checksum: Checksum::Good,
            device_file: DeviceOpenResult { result: Ok(big_file()) },
            file: None,
            pool: PacketPool::new(8),
        }
    }

    /// Completes a handshake with all options: MSS 1460 (1448 with timestamps), SACK, timestamps,
    /// and windows of 512 units of 128 bytes.
    #[must_use]
    pub fn established(self) -> Self {
        self.established_by(&seg!(SYN mss 1460 sack_ok tsval 5000 wscale 7))
    }

    /// Completes a handshake that starts with the peer's `syn`.
    #[must_use]
    pub fn established_by(mut self, syn: &Seg) -> Self {
        self.send(syn.clone());
        self.take("a SYN-ACK");
        self.send(seg!(ACK));
        self.socket = self.accepted();
        self.expect_nothing();
        self
    }

    /// Returns the latest accepted connection and makes it the one under test; discards the
    /// notices.
    pub fn accepted(&mut self) -> Option<SocketId> {
        self.pump();
        let found = self.notices.iter().rev().find_map(|n| match n {
            Notice::Accepted(_, id) => Some(*id),
            _ => None,
        });
        self.notices.clear();
        self.socket = found.or(self.socket);
        self.socket
    }

    /// Returns the connection under test.
    #[must_use]
    pub fn socket(&self) -> SocketId {
        self.socket.expect("a connection was established")
    }

    /// Returns the connection's details, as `outboard ss` shows them.
    #[must_use]
    pub fn info(&self) -> SocketInfo {
        self.host.info(self.socket()).expect("the connection exists")
    }

    /// Returns the name of the connection's state, or `GONE` if the connection no longer exists.
    #[must_use]
    pub fn state(&self) -> &'static str {
        self.host.info(self.socket()).map_or("GONE", |i| i.state)
    }

    /// Returns the reason for which the connection ended, if it has.
    #[must_use]
    pub fn error(&self) -> Option<SocketError> {
        self.host.readiness(self.socket()).error
    }

    /// Sets the window field of segments that do not set their own.
    pub const fn set_win(&mut self, win: u16) {
        self.win = win;
    }

    /// Makes the peer continue from another port as a new endpoint: sequence numbers start anew.
    pub fn use_peer_port(&mut self, port: u16) {
        self.ports.1 = port;
        self.reset_sequence_numbers();
    }

    /// Sends a SYN from each of `ports` and leaves the handshakes incomplete, then restores the
    /// peer's previous connection.
    pub fn send_syn_flood(&mut self, ports: core::ops::Range<u16>) {
        let numbers = (self.host_iss, self.host_nxt, self.peer_nxt, self.ts_base, self.last_tsval);
        let port = self.ports.1;
        for flooding in ports {
            self.use_peer_port(flooding);
            self.send(crate::seg!(SYN mss 1460));
            self.take("a SYN-ACK");
        }
        self.ports.1 = port;
        (self.host_iss, self.host_nxt, self.peer_nxt, self.ts_base, self.last_tsval) = numbers;
    }

    /// Starts a new connection on the same tuple; its initial sequence number is `ahead` of the old
    /// one.
    pub fn new_incarnation(&mut self, ahead: u32) {
        self.peer_iss += ahead;
        self.reset_sequence_numbers();
    }

    fn reset_sequence_numbers(&mut self) {
        self.host_iss = None;
        (self.host_nxt, self.peer_nxt) = (0, 0);
        self.ts_base = None;
        self.last_tsval = 0;
    }

    // ---- time ----

    /// Returns the milliseconds since the test began.
    #[must_use]
    pub fn ms(&self) -> u64 {
        self.now.since(START).as_millis()
    }

    /// Returns the current virtual time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Advances time to `ms` milliseconds since the test began; timers fire on the way, each at its
    /// time.
    pub fn at_ms(&mut self, ms: u64) {
        self.at_us(ms * 1000);
    }

    /// As [`Self::at_ms`], in microseconds.
    pub fn at_us(&mut self, us: u64) {
        let target = START + Duration::from_micros(us);
        assert!(target >= self.now, "time only moves forward");
        let mut rounds = 0;
        while let Some(at) = self.host.poll_timeout().filter(|&at| at <= target) {
            self.now = self.now.max(at);
            self.host.handle_timeout(self.now);
            self.pump();
            rounds += 1;
            assert!(rounds < 100_000, "timers fire without end at {}", self.now);
        }
        self.now = target;
        self.pump();
    }

    /// Advances time by `ms` milliseconds.
    pub fn after_ms(&mut self, ms: u64) {
        let us = self.now.since(START).as_micros();
        self.at_us(us + ms * 1000);
    }

    /// Advances time by `ms` milliseconds during which the host's thread does not run; then fires
    /// all overdue timers at once.
    pub fn stall_ms(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        self.host.handle_timeout(self.now);
        self.pump();
    }

    // ---- segments and frames ----

    /// Sends a segment from the peer. Fields not set are filled in as a conforming peer would.
    pub fn send(&mut self, seg: Seg) {
        let frame = self.build_frame(&seg);
        let syn = u32::from(seg.flags.has(TcpFlags::SYN));
        let fin = u32::from(seg.flags.has(TcpFlags::FIN));
        let len = seg.len.unwrap_or(0);
        let start = seg.seq.unwrap_or(if syn == 1 { 0 } else { self.peer_nxt });
        if !seg.flags.has(TcpFlags::RST) && start <= self.peer_nxt {
            self.peer_nxt = self.peer_nxt.max(start + syn + fin + len);
        }
        self.inject(&frame);
    }

    /// Sends in-order data from the peer.
    pub fn send_data(&mut self, data: &[u8]) {
        self.send(Seg {
            flags: TcpFlags::ACK,
            data: Some(data.to_vec()),
            len: u32::try_from(data.len()).ok(),
            ..Seg::default()
        });
    }

    /// Builds the frame of a segment from the peer.
    pub fn build_frame(&mut self, seg: &Seg) -> Vec<u8> {
        let syn = seg.flags.has(TcpFlags::SYN);
        let ms = u32::try_from(self.ms()).unwrap_or(0);
        if syn {
            self.peer_ts = seg.tsval.is_some();
        }
        let timestamps = (self.peer_ts && !seg.no_ts).then(|| TcpTimestamps {
            value: seg.tsval.unwrap_or(PEER_TS + ms),
            echo: match (seg.tsecr, self.ts_base) {
                (Some(echo), Some(base)) => base.wrapping_add(echo),
                _ if seg.flags.has(TcpFlags::ACK) => self.last_tsval,
                _ => 0,
            },
        });
        let host_iss = self.host_iss.unwrap_or(SeqNum(0));
        let mut options = TcpOptions {
            mss: seg.mss,
            window_scale: seg.wscale,
            sack_permitted: seg.sack_ok,
            timestamps,
            ..TcpOptions::default()
        };
        for &(start, end) in seg.sacks.iter().flatten() {
            options.push_sack(SackBlock { start: host_iss + start, end: host_iss + end });
        }
        let acks = seg.flags.has(TcpFlags::ACK);
        let win = seg.win.unwrap_or(if syn { u16::MAX } else { self.win });
        if syn && seg.wscale.is_some() {
            self.win = 512;
        }
        let segment = TcpHeader {
            source: self.ports.1,
            destination: self.ports.0,
            seq: self.peer_iss + seg.seq.unwrap_or(if syn { 0 } else { self.peer_nxt }),
            ack: if acks { host_iss + seg.ack.unwrap_or(self.host_nxt) } else { SeqNum(0) },
            flags: seg.flags,
            window: win,
            options,
        };
        let payload = seg.data.clone().unwrap_or_else(|| vec![0; seg.len.unwrap_or(0) as usize]);
        self.tcp_frame(&segment, &payload, seg.ecn.unwrap_or(self.ecn))
    }

    fn tcp_frame(&self, segment: &TcpHeader, payload: &[u8], ecn: u8) -> Vec<u8> {
        let ip = IpHeader {
            source: self.addrs.1,
            destination: self.addrs.0,
            protocol: protocol::TCP,
            ecn,
            hop_limit: 64,
        };
        tcp_packet(
            &EthernetAddrs { source: PEER_MAC, destination: HOST_MAC },
            &ip,
            segment,
            payload,
        )
    }

    /// Delivers a frame to the host, and runs the host.
    pub fn inject(&mut self, frame: &[u8]) {
        let packet = self.pool.copy(frame).expect("the frame fits a buffer");
        let received = ReceivedFrame::new(packet, self.checksum, 0, 0);
        let teardowns_taken = self.device_teardowns_taken;
        let received = ReceivedFrame { teardowns_taken, steered: self.steered, ..received };
        self.handle_device_event(Event::Received(received));
    }

    /// Delivers an event from the device, and runs the host.
    pub fn handle_device_event(&mut self, event: Event) {
        self.host.handle_event(self.now, event);
        self.pump();
    }

    /// Takes everything that the host has to output: operations, disk requests and notices.
    pub fn pump(&mut self) {
        loop {
            while let Some(op) = self.host.poll_op(self.now) {
                self.handle_op(op);
            }
            while let Some(packet) = self.host.poll_recycle() {
                self.pool.put(packet);
            }
            while let Some(request) = self.host.poll_disk() {
                self.disk.push_back(request);
            }
            let mut noticed = false;
            while let Some(notice) = self.host.poll_notice() {
                noticed = true;
                self.notices.push_back(notice);
            }
            if !noticed {
                break;
            }
        }
    }

    fn handle_op(&mut self, op: Op) {
        match op {
            Op::Transmit(transmit) => self.handle_transmit(&transmit),
            Op::FileOpen { file, .. } => {
                self.other_ops.push_back(op);
                let result = self.device_file.result;
                let opened = Event::FileOpened(FileOpened { file, result });
                self.host.handle_event(self.now, opened);
            }
            other => self.other_ops.push_back(other),
        }
    }

    fn handle_transmit(&mut self, transmit: &Transmit) {
        let header = transmit.header.as_slice();
        let (l3, l4) = (transmit.header.l3(), transmit.header.l4());
        let is_tcp = l4 < header.len()
            && match header[l3] >> 4 {
                4 => header[l3 + 9] == protocol::TCP,
                _ => header[l3 + 6] == protocol::TCP,
            };
        if !is_tcp {
            for frame in packetize::packetize_transmit(transmit, Duration::ZERO) {
                if !(self.answers_neighbors && self.answer_neighbor(&frame)) {
                    self.non_tcp_frames.push_back(frame);
                }
            }
            return;
        }
        assert_eq!(header[..6], PEER_MAC, "the frame is addressed to the peer");
        let (segment, header_len) = TcpHeader::parse(&header[l4..]).expect("the host's TCP header");
        assert_eq!(l4 + header_len, header.len(), "the header ends where the payload begins");
        let ecn = if header[l3] >> 4 == 4 { header[l3 + 1] & 3 } else { header[l3 + 1] >> 4 & 3 };
        let seg = self.decode_segment(&segment, transmit, ecn);
        if let Some(tag) = transmit.echo {
            self.last_tag = Some((transmit.flow, tag));
        }
        let (at, tag, flow) = (self.now, transmit.echo, transmit.flow);
        self.sent.push_back(SentTransmit { at, seg, tag, flow });
    }

    fn decode_segment(&mut self, segment: &TcpHeader, transmit: &Transmit, ecn: u8) -> Seg {
        let flags = segment.flags;
        if flags.has(TcpFlags::SYN) {
            self.host_iss = Some(segment.seq);
        }
        let relative = |seq: SeqNum, iss: SeqNum| seq.0.wrapping_sub(iss.0);
        let seq = relative(segment.seq, self.host_iss.unwrap_or(segment.seq));
        let len = transmit.payload_len();
        if !flags.has(TcpFlags::RST) {
            let controls =
                u32::from(flags.has(TcpFlags::SYN)) + u32::from(flags.has(TcpFlags::FIN));
            let end = SeqNum(seq + len + controls);
            self.host_nxt = SeqNum(self.host_nxt).max(end).0;
        }
        let ms = u32::try_from(self.ms()).unwrap_or(0);
        let ts = segment.options.timestamps;
        if let Some(ts) = ts {
            self.ts_base.get_or_insert_with(|| ts.value.wrapping_sub(ms));
            self.last_tsval = ts.value;
        }
        let ts_base = self.ts_base.unwrap_or(0);
        let file = transmit.parts.iter().find_map(|part| match part {
            TransmitPart::File(FileExtent { offset, len, .. }) => Some((*offset, *len)),
            TransmitPart::Host(_) | TransmitPart::Records(_) | TransmitPart::Pdu(_) => None,
        });
        let sacks = segment.options.sack().iter();
        Seg {
            flags,
            seq: Some(seq),
            ack: flags.has(TcpFlags::ACK).then(|| relative(segment.ack, self.peer_iss)),
            win: Some(segment.window),
            len: Some(len),
            data: Some(packetize::transmit_payload(transmit)),
            mss: segment.options.mss,
            wscale: segment.options.window_scale,
            sack_ok: segment.options.sack_permitted,
            tsval: ts.map(|ts| ts.value.wrapping_sub(ts_base)),
            tsecr: ts.map(|ts| ts.echo),
            no_ts: ts.is_none(),
            sacks: Some(
                sacks
                    .map(|b| (relative(b.start, self.peer_iss), relative(b.end, self.peer_iss)))
                    .collect(),
            ),
            ecn: Some(ecn),
            again: Some(transmit.retransmission),
            run: Some(transmit.segment_size),
            file,
            echo: Some(transmit.echo.is_some()),
        }
    }

    /// Answers an ARP request or a neighbor solicitation. Returns whether `build_frame` was one.
    fn answer_neighbor(&mut self, frame: &[u8]) -> bool {
        match wire::frame::parse(frame) {
            Ok(ParsedFrame::Arp { at }) if frame[at + 7] == 1 => {
                let mut reply = frame.to_vec();
                reply[..6].copy_from_slice(&HOST_MAC);
                reply[6..12].copy_from_slice(&PEER_MAC);
                reply[at + 7] = 2;
                reply[at + 8..at + 14].copy_from_slice(&PEER_MAC);
                reply[at + 14..at + 18].copy_from_slice(&frame[at + 24..at + 28]);
                reply[at + 18..at + 24].copy_from_slice(&HOST_MAC);
                reply[at + 24..at + 28].copy_from_slice(&frame[at + 14..at + 18]);
                self.inject(&reply);
                true
            }
            Ok(ParsedFrame::Ip(ip)) if ip.protocol == protocol::ICMPV6 && frame[ip.l4] == 135 => {
                let mut target = [0; 16];
                target.copy_from_slice(&frame[ip.l4 + 8..ip.l4 + 24]);
                let advert = non_tcp::neighbor_advert(target.into(), ip.source);
                self.inject(&advert);
                true
            }
            _ => false,
        }
    }

    // ---- expectations ----

    /// Removes and returns the next segment that the host sent; panics, naming `what`, if there is
    /// none.
    pub fn take(&mut self, what: &str) -> Seg {
        match self.sent.pop_front() {
            Some(output) => output.seg,
            None => panic!("at {} ms: the host sent nothing, expected {what}", self.ms()),
        }
    }

    /// Removes and returns all segments that the host sent and no expectation has taken.
    pub fn take_all(&mut self) -> Vec<Seg> {
        self.sent.drain(..).map(|o| o.seg).collect()
    }

    /// As [`Self::take_all`], with the time of each in microseconds since the test began.
    pub fn take_timed(&mut self) -> Vec<(u64, Seg)> {
        self.sent.drain(..).map(|o| (o.at.since(START).as_micros(), o.seg)).collect()
    }

    /// Expects the next segment from the host to match `want`.
    pub fn expect(&mut self, want: Seg) {
        let Some(got) = self.sent.pop_front() else {
            panic!("at {} ms: the host sent nothing\n  expected {want}", self.ms());
        };
        self.compare(&want, &got);
    }

    /// As [`Self::expect`], and expects that the segment was sent `ms` milliseconds after the test
    /// began.
    pub fn expect_at(&mut self, ms: u64, want: Seg) {
        let Some(got) = self.sent.pop_front() else {
            panic!("at {} ms: the host sent nothing\n  expected at {ms} ms {want}", self.ms());
        };
        self.compare(&want, &got);
        let at = got.at.since(START);
        assert_eq!(at.as_millis(), ms, "time of {}: it left after {at}", got.seg);
    }

    fn compare(&self, want: &Seg, got: &SentTransmit) {
        let wrong = want.differences(&got.seg);
        if wrong.is_empty() {
            return;
        }
        let rest: Vec<String> = self.sent.iter().map(|o| o.seg.to_string()).collect();
        panic!(
            "at {} ms: another segment\n  expected {want}\n  got      {} (sent after {})\n  {}\n  \
             then {rest:?}",
            self.ms(),
            got.seg,
            got.at.since(START),
            wrong.join("\n  "),
        );
    }

    /// Expects that the host has sent nothing else.
    pub fn expect_nothing(&mut self) {
        if let Some(output) = self.sent.front() {
            let at = output.at.since(START);
            panic!(
                "at {} ms: unexpected segment, sent after {at}\n  got {}",
                self.ms(),
                output.seg
            );
        }
    }

    /// Runs `f` and expects that it moves exactly these counters of the host, apart from those that
    /// any traffic moves.
    pub fn expect_counters(&mut self, f: impl FnOnce(&mut Self), expected: &[(&str, u64)]) {
        let before = self.counters();
        f(self);
        let mut got = moved(&before, &self.counters());
        got.retain(|(name, _)| !TRAFFIC_COUNTERS.contains(&name.as_str()));
        let mut want: Vec<(String, u64)> =
            expected.iter().map(|&(name, by)| (name.to_owned(), by)).collect();
        got.sort_unstable();
        want.sort_unstable();
        assert_eq!(got, want, "counters that moved (left) and that were to move (right)");
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        base::counters::collect_counters(|f| self.host.visit(f))
    }

    /// Returns the sum of the host's counters and gauges named `name`.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        crate::count(name, |f| self.host.visit(f))
    }
}
