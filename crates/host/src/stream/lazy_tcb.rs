//! Quasi-TCBs: state of connections that the device set up, until a second transaction (AccelTCP
//! section 5.2, "lazy TCB creation").
//!
//! Most connections of a short-message service carry one request, one response and a close. For
//! these a [`QuasiTcb`] of 40 bytes is all of the TCP state, and [`LazyTcb`] adds the request and
//! the response while the application works on them. The request stays in the packet that it
//! arrived in, the response is kept as the application wrote it (opportunistic zero-copy), and the
//! close hands both over to the device for tear-down. Anything else first promotes the connection
//! to a TCB ([`super::Streams::promote`]).
//!
//! Invariants: everything received is in order, and is acknowledged only by what the device will
//! send; nothing has been sent yet.

use alloc::boxed::Box;
use core::net::{IpAddr, Ipv6Addr};
use core::ops::Range;

use abi::l5o::RxMetadata;
use abi::teardown::{ClosingState, LateData, Teardown};
use abi::{FlowId, PacketBuf, Refusal, TransmitPart, TransmitParts, TsvalPosition};
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use smallvec::SmallVec;
use tcp_rules::cookie::MSS;
use tcp_rules::paws::TsRecent;
use wire::emit::to_v6_octets;
use wire::tcp::{TcpFlags, TcpHeader, TcpOptions, TcpTimestamps};
use wire::{Endpoint, Tuple};

use crate::api::{Readiness, SocketInfo};
use crate::config::TcpConfig;
use crate::l5p::L5pConnection;
use crate::net::outbox::Outbox;
use crate::tcp::ack::timestamp;
use crate::tcp::conn::{ConnParams, Negotiated, segment_size};
use crate::tcp::input::RxTcpSegment;
use crate::tcp::listen::SynCacheEntry;
use crate::tcp::mtu_probing::segment_size_after_losses;
use crate::tcp::output::past_us;
use crate::tcp::rack::Rack;
use crate::tcp::rcv::RxSegment;
use crate::tcp::rtt::RTO_INITIAL;

/// TCP state of a connection that has received at most one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuasiTcb {
    /// The peer's address; IPv4 as an IPv4-mapped IPv6 address (RFC 4291 section 2.5.5.2).
    remote: [u8; 16],
    remote_port: u16,
    local_port: u16,
    iss: SeqNum,
    rcv_nxt: SeqNum,
    ts_recent: u32,
    ts_offset: u32,
    /// Window field of the last segment, unscaled.
    window: u16,
    /// Index into [`MSS`] (low 3 bits) and into the local addresses (high 5 bits).
    mss_and_local: u8,
    flags: QuasiFlags,
}

/// The peer's window scale in the low four bits, and the negotiated options above them.
#[derive(Clone, Copy, Debug)]
struct QuasiFlags(u8);

impl QuasiFlags {
    const SCALED: u8 = 1 << 4;
    const SACK: u8 = 1 << 5;
    const ECN: u8 = 1 << 6;
    /// Tear-down offload is requested.
    const TEARDOWN: u8 = 1 << 7;

    const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    const fn peer_scale(self) -> u8 {
        self.0 & 15
    }
}

/// A connection without a TCB, with its request and response.
#[derive(Debug)]
pub(crate) struct LazyTcb {
    pub(crate) tcb: QuasiTcb,
    /// Unread bytes: the packet and the range in it.
    unread: Option<(PacketBuf, Range<usize>)>,
    /// The response as written so far.
    reply: TransmitParts,
    reply_bytes: u32,
    /// The request was received; another promotes the connection.
    has_request: bool,
    /// The tuple has a route.
    pub(crate) routed: bool,
    /// Hash of the tuple in the table.
    pub(crate) hash: u64,
    /// `TCP_NODELAY`, for a later TCB.
    pub(crate) no_delay: bool,
}

impl QuasiTcb {
    pub(crate) fn iss(&self) -> SeqNum {
        self.iss
    }

    fn mss(&self) -> u16 {
        MSS[usize::from(self.mss_and_local & 7)]
    }

    fn remote(&self) -> Endpoint {
        let addr = Ipv6Addr::from(self.remote);
        Endpoint { addr: IpAddr::V6(addr).to_canonical(), port: self.remote_port }
    }

    /// Returns the tuple; `addrs` are the local addresses.
    pub(crate) fn tuple(&self, addrs: &[IpAddr]) -> Tuple {
        let local = addrs.get(usize::from(self.mss_and_local >> 3));
        let addr = local.copied().unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        Tuple { local: Endpoint { addr, port: self.local_port }, remote: self.remote() }
    }

    fn options(&self, now: Instant) -> Negotiated {
        Negotiated {
            timestamps: true,
            sack: self.flags.has(QuasiFlags::SACK),
            ecn: self.flags.has(QuasiFlags::ECN),
            peer_scale: self.flags.peer_scale(),
            peer_mss: self.mss(),
            ts_offset: self.ts_offset,
            ts_recent: TsRecent::new(now, self.ts_recent),
        }
    }

    /// Returns the peer's window in bytes.
    fn peer_window(&self) -> u32 {
        u32::from(self.window) << self.flags.peer_scale()
    }
}

/// Flags of segments that are more than a request.
const BEYOND_REQUEST: TcpFlags = TcpFlags::SYN
    .with(TcpFlags::RST)
    .with(TcpFlags::FIN)
    .with(TcpFlags::URG)
    .with(TcpFlags::ECE)
    .with(TcpFlags::CWR);

impl LazyTcb {
    /// Creates the state of a connection that the device set up. `hash` is the hash of its tuple,
    /// `addrs` are the local addresses. Returns `None` if a quasi-TCB cannot represent the
    /// connection.
    pub(crate) fn new(
        entry: &SynCacheEntry,
        hash: u64,
        addrs: &[IpAddr],
        teardown: bool,
    ) -> Option<Self> {
        let local =
            addrs.iter().position(|&a| a == entry.tuple.local.addr).filter(|&at| at < 32)?;
        if !entry.options.timestamps {
            return None;
        }
        let mss = MSS.iter().rposition(|&m| m <= entry.options.peer_mss)?;
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let flags = entry.options.peer_scale.min(14)
            | flag(entry.peer_scale.is_some(), QuasiFlags::SCALED)
            | flag(entry.options.sack, QuasiFlags::SACK)
            | flag(entry.options.ecn, QuasiFlags::ECN)
            | flag(teardown, QuasiFlags::TEARDOWN);
        #[expect(clippy::cast_possible_truncation, reason = "below 8 and below 32")]
        let mss_and_local = mss as u8 | (local as u8) << 3;
        let tcb = QuasiTcb {
            remote: to_v6_octets(entry.tuple.remote.addr),
            remote_port: entry.tuple.remote.port,
            local_port: entry.tuple.local.port,
            iss: entry.iss,
            rcv_nxt: entry.irs + 1,
            ts_recent: entry.options.ts_recent.value(),
            ts_offset: entry.options.ts_offset,
            window: entry.peer_window,
            mss_and_local,
            flags: QuasiFlags(flags),
        };
        Some(Self {
            tcb,
            unread: None,
            reply: TransmitParts::new(),
            reply_bytes: 0,
            has_request: false,
            routed: false,
            hash,
            no_delay: false,
        })
    }

    /// Returns whether a segment is the request, or a bare acknowledgment of the handshake. Any
    /// other segment needs a TCB.
    pub(crate) fn accepts(&self, arrival: &RxTcpSegment) -> bool {
        let segment = &arrival.segment;
        let plain = segment.flags.has(TcpFlags::ACK) && !segment.flags.any(BEYOND_REQUEST);
        let expected = segment.seq == self.tcb.rcv_nxt && segment.ack == self.tcb.iss + 1;
        // RFC 7323 section 5.3: a segment with an older timestamp may be an old duplicate.
        let recent = SeqNum(self.tcb.ts_recent);
        let fresh = segment.options.timestamps.is_some_and(|ts| SeqNum(ts.value).ge(recent));
        plain
            && expected
            && fresh
            && !self.has_request
            && !arrival.ce
            && arrival.metadata.is_empty()
    }

    /// Processes a segment for which [`Self::accepts`] returned true. Returns whether there is
    /// something to read.
    pub(crate) fn receive(&mut self, arrival: RxTcpSegment, out: &mut Outbox) -> bool {
        let (segment, tcb) = (&arrival.segment, &mut self.tcb);
        tcb.ts_recent = segment.options.timestamps.map_or(tcb.ts_recent, |ts| ts.value);
        tcb.window = segment.window;
        if arrival.payload.is_empty() {
            out.recycle.push_back(arrival.packet);
            return false;
        }
        // A frame is at most 66 KiB.
        tcb.rcv_nxt += u32::try_from(arrival.payload.len()).unwrap_or(0);
        self.unread = Some((arrival.packet, arrival.payload));
        self.has_request = true;
        true
    }

    /// Returns the unread bytes.
    pub(crate) fn peek(&self) -> &[u8] {
        self.unread.as_ref().map_or(&[], |(packet, range)| &packet.as_slice()[range.clone()])
    }

    /// Removes bytes from the front of the unread ones. Returns the packet once all of it is read.
    pub(crate) fn consume(&mut self, bytes: usize) -> Option<PacketBuf> {
        let (_, range) = self.unread.as_mut()?;
        range.start = range.start.saturating_add(bytes).min(range.end);
        if range.start == range.end { self.unread.take().map(|(packet, _)| packet) } else { None }
    }

    /// Appends bytes to the response. Returns false if they do not fit a quasi-TCB: more than an
    /// initial window (RFC 6928), than the peer's window, or than its list of parts holds.
    pub(crate) fn write(&mut self, bytes: &Bytes, config: &TcpConfig) -> bool {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let total = self.reply_bytes.saturating_add(len);
        let most = (config.initial_window * u32::from(self.tcb.mss())).min(self.tcb.peer_window());
        let fits = self.reply.len() < self.reply.inline_size() && total <= most;
        if fits && len > 0 {
            self.reply.push(TransmitPart::Host(bytes.clone()));
            self.reply_bytes = total;
        }
        fits
    }

    /// Returns the number of bytes written.
    pub(crate) const fn written(&self) -> u32 {
        self.reply_bytes
    }

    /// Returns whether the request was received.
    pub(crate) const fn has_request(&self) -> bool {
        self.has_request
    }

    /// Returns whether tear-down offload is requested.
    pub(crate) const fn wants_teardown_offload(&self) -> bool {
        self.tcb.flags.has(QuasiFlags::TEARDOWN)
    }

    pub(crate) fn readiness(&self) -> Readiness {
        Readiness {
            readable: self.unread.is_some(),
            writable: true,
            drained: self.reply_bytes == 0,
            ..Readiness::default()
        }
    }

    /// Returns the connection with the whole response, for the device to tear down: response and
    /// FIN leave together. `None` if the peer's link address is unknown.
    pub(crate) fn take_teardown(
        &mut self,
        now: Instant,
        flow: FlowId,
        tuple: &Tuple,
        shift: u8,
        config: &TcpConfig,
        out: &mut Outbox,
    ) -> Option<Box<Teardown>> {
        let tcb = &self.tcb;
        let nxt = tcb.iss + 1;
        let value = timestamp(now, tcb.ts_offset);
        let segment = TcpHeader {
            source: tuple.local.port,
            destination: tuple.remote.port,
            seq: nxt,
            ack: tcb.rcv_nxt,
            flags: TcpFlags::ACK,
            window: u16::try_from(config.receive_bytes_max >> self.own_scale(shift))
                .unwrap_or(u16::MAX),
            options: TcpOptions {
                timestamps: Some(TcpTimestamps { value, echo: tcb.ts_recent }),
                ..TcpOptions::default()
            },
        };
        let (header, timestamp) = out.tcp_header_to(now, tuple, &segment)?;
        let options = tcb.options(now);
        let mss = segment_size(out.net.mtu, tuple, &options);
        let probing = config.mtu_probing;
        Some(Box::new(Teardown {
            flow,
            header,
            timestamp: timestamp.map(|ts| TsvalPosition { sub_ms_us: past_us(now), ..ts }),
            una: nxt,
            nxt,
            edge: nxt + tcb.peer_window(),
            peer_scale: tcb.flags.peer_scale(),
            mss: u16::try_from(mss).unwrap_or(u16::MAX),
            mss_after_timeouts: segment_size_after_losses(mss, tuple, &options, probing),
            parts: core::mem::take(&mut self.reply),
            rcv_nxt: tcb.rcv_nxt,
            state: ClosingState::FinWait1,
            rto: RTO_INITIAL,
            time_wait: config.time_wait,
            contexts: SmallVec::new(),
            late_data: LateData::Reset,
        }))
    }

    /// Returns the shift of the windows that are advertised: 0 if the peer does not scale.
    fn own_scale(&self, shift: u8) -> u8 {
        if self.tcb.flags.has(QuasiFlags::SCALED) { shift } else { 0 }
    }

    /// Promotes the connection to a TCB, with the request and the response.
    pub(crate) fn into_connection(
        self,
        flow: FlowId,
        tuple: Tuple,
        shift: u8,
        (mtu, window): (u16, u16),
        (config, now): (&TcpConfig, Instant),
    ) -> L5pConnection {
        let tcb = self.tcb;
        let begin = ConnParams {
            tuple,
            flow,
            iss: tcb.iss,
            irs: tcb.rcv_nxt - 1,
            window: u32::from(window),
            scale: self.own_scale(shift),
            peer_window: tcb.peer_window(),
            options: tcb.options(now),
            mtu,
        };
        let mut conn = L5pConnection::established(begin, config, now);
        conn.modes.teardown = self.wants_teardown_offload();
        conn.modes.no_delay = self.no_delay;
        if self.has_request {
            let chunk = self
                .unread
                .map(|(packet, r)| RxSegment::new(packet, r.start, r.end, RxMetadata::default()));
            conn.rcv.take_over_request(chunk);
        }
        for part in self.reply {
            if let TransmitPart::Host(bytes) = part {
                conn.write_unbounded(bytes);
            }
        }
        conn
    }

    /// Returns the state shown by `outboard ss`.
    pub(crate) fn info(
        &self,
        tuple: &Tuple,
        file_offload: Result<(), Refusal>,
        config: &TcpConfig,
    ) -> SocketInfo {
        let mss = self.tcb.mss();
        SocketInfo {
            local: tuple.local,
            remote: tuple.remote,
            state: "ESTABLISHED",
            congestion_state: "Open",
            sacked: 0,
            lost: 0,
            reordering: Rack::new().reordering(),
            rcv_mss: 0,
            min_rtt: Duration::ZERO,
            delivery_rate: 0,
            delivery_rate_app_limited: true,
            pacing_rate: 0,
            send_queue: u64::from(self.reply_bytes),
            receive_queue: self.peek().len() as u64,
            cwnd: config.initial_window * u32::from(mss),
            ssthresh: u32::MAX,
            srtt: Duration::ZERO,
            rto: RTO_INITIAL,
            mss,
            file_bytes_offloaded: 0,
            retransmitted_bytes: 0,
            file_offload,
            tls: None,
            nvme: None,
            inspection: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AccelTCP section 5.2.
    #[test]
    fn a_quasi_tcb_is_forty_bytes() {
        assert_eq!(size_of::<QuasiTcb>(), 40);
    }
}
