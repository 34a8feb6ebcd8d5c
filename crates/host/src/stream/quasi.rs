//! Quasi-TCBs: connections that the device set up, until a second transaction comes (AccelTCP
//! section 5.2, "lazy TCB creation").
//!
//! Most connections of a short-message service are one request, one response and a close. For these
//! a [`QuasiTcb`] of 40 bytes holds all that TCP knows, beside it a [`Turn`] while a request is
//! read and answered: the request stays in the packet that it came in, the response goes to the
//! device as the application wrote it (opportunistic zero-copy), and the close hands both over to
//! be torn down. Whatever else happens makes the connection whole
//! ([`super::Streams::make_whole`]) first.
//!
//! Invariants: everything received is in order and acknowledged only by what the device will send;
//! nothing was sent yet.

use alloc::boxed::Box;
use core::net::{IpAddr, Ipv6Addr};
use core::ops::Range;

use abi::l5o::RxMetadata;
use abi::teardown::{ClosingState, LateData, Teardown};
use abi::{FlowId, PacketBuf, Part, Parts, Refusal, TsOption};
use base::{Duration, Instant, SeqNum};
use bytes::Bytes;
use smallvec::SmallVec;
use tcp_rules::cookie::MSS;
use tcp_rules::paws::TsRecent;
use wire::emit::to_v6_octets;
use wire::tcp::{Flags, Options, Segment, Timestamps};
use wire::{Endpoint, Tuple};

use crate::api::{Readiness, SocketInfo};
use crate::config::TcpConfig;
use crate::l5p::Connection;
use crate::net::outbox::Outbox;
use crate::tcp::ack::timestamp;
use crate::tcp::conn::{Begin, Negotiated, segment_size};
use crate::tcp::input::Arrival;
use crate::tcp::listen::HalfOpen;
use crate::tcp::output::past_us;
use crate::tcp::rack::Rack;
use crate::tcp::rcv::Chunk;
use crate::tcp::rtt::RTO_INITIAL;

/// What TCP knows of a connection that has received at most one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuasiTcb {
    /// The peer's address; an IPv4 address as it is mapped to IPv6 (RFC 4291 section 2.5.5.2).
    remote: [u8; 16],
    remote_port: u16,
    local_port: u16,
    iss: SeqNum,
    rcv_nxt: SeqNum,
    ts_recent: u32,
    ts_offset: u32,
    /// Window field of the last segment.
    window: u16,
    /// Which of [`MSS`] (3 bits), and which of our addresses (5 bits).
    mss_and_local: u8,
    flags: QuasiFlags,
}

/// The peer's window scale in the low four bits, and what was agreed on above them.
#[derive(Clone, Copy, Debug)]
struct QuasiFlags(u8);

impl QuasiFlags {
    const SCALED: u8 = 1 << 4;
    const SACK: u8 = 1 << 5;
    const ECN: u8 = 1 << 6;
    /// The device is to tear it down.
    const TEARDOWN: u8 = 1 << 7;

    const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    const fn peer_scale(self) -> u8 {
        self.0 & 15
    }
}

/// A connection without a TCB, and a request and its response while the application is at it.
#[derive(Debug)]
pub(crate) struct Quasi {
    pub(crate) tcb: QuasiTcb,
    /// What came and was not read: the packet, and where in it.
    unread: Option<(PacketBuf, Range<usize>)>,
    /// What was written.
    reply: Parts,
    reply_bytes: u32,
    /// A request was taken: the next makes the connection whole.
    asked: bool,
    /// Its tuple leads to it.
    pub(crate) routed: bool,
    /// What its tuple is looked up by.
    pub(crate) hash: u64,
    /// `TCP_NODELAY`, for when it is whole.
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

    /// Its ends; `addrs` are our addresses.
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

    /// Bytes that the peer takes.
    fn peer_window(&self) -> u32 {
        u32::from(self.window) << self.flags.peer_scale()
    }
}

/// Flags with which a segment is more than a request.
const EVENTFUL: Flags =
    Flags::SYN.with(Flags::RST).with(Flags::FIN).with(Flags::URG).with(Flags::ECE).with(Flags::CWR);

impl Quasi {
    /// A connection that the device set up, whose tuple has that hash, `addrs` being our addresses;
    /// none where a quasi-TCB cannot hold it.
    pub(crate) fn new(
        entry: &HalfOpen,
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
            reply: Parts::new(),
            reply_bytes: 0,
            asked: false,
            routed: false,
            hash,
            no_delay: false,
        })
    }

    /// Whether a segment is the request, or acknowledges no more than the handshake. Anything else
    /// is for a whole connection.
    pub(crate) fn takes(&self, arrival: &Arrival) -> bool {
        let segment = &arrival.segment;
        let plain = segment.flags.has(Flags::ACK) && !segment.flags.any(EVENTFUL);
        let expected = segment.seq == self.tcb.rcv_nxt && segment.ack == self.tcb.iss + 1;
        // RFC 7323 section 5.3: what is older than what came may be an old duplicate.
        let recent = SeqNum(self.tcb.ts_recent);
        let fresh = segment.options.timestamps.is_some_and(|ts| SeqNum(ts.value).ge(recent));
        plain && expected && fresh && !self.asked && !arrival.ce && arrival.metadata.is_empty()
    }

    /// Takes a segment that [`Self::takes`] says yes to. Says whether there is something to read.
    pub(crate) fn take(&mut self, arrival: Arrival, out: &mut Outbox) -> bool {
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
        self.asked = true;
        true
    }

    /// What can be read.
    pub(crate) fn peek(&self) -> &[u8] {
        self.unread.as_ref().map_or(&[], |(packet, range)| &packet.as_slice()[range.clone()])
    }

    /// Takes bytes off the front of what can be read; gives the packet once all of it is.
    pub(crate) fn consume(&mut self, bytes: usize) -> Option<PacketBuf> {
        let (_, range) = self.unread.as_mut()?;
        range.start = range.start.saturating_add(bytes).min(range.end);
        if range.start == range.end { self.unread.take().map(|(packet, _)| packet) } else { None }
    }

    /// Notes a response, or a piece of it; says no where it is not one for a quasi-TCB: more than
    /// an initial window (RFC 6928), or than the peer takes.
    pub(crate) fn write(&mut self, bytes: &Bytes, config: &TcpConfig) -> bool {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let total = self.reply_bytes.saturating_add(len);
        let most = (config.initial_window * u32::from(self.tcb.mss())).min(self.tcb.peer_window());
        let fits = self.reply.len() < self.reply.inline_size() && total <= most;
        if fits && len > 0 {
            self.reply.push(Part::Host(bytes.clone()));
            self.reply_bytes = total;
        }
        fits
    }

    /// Bytes written.
    pub(crate) const fn written(&self) -> u32 {
        self.reply_bytes
    }

    /// Whether a request came.
    pub(crate) const fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether the device is to tear it down.
    pub(crate) const fn tears_down(&self) -> bool {
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

    /// The connection with everything that was written, for the device to bring to an end: the
    /// response and the FIN leave together. None where the peer's link address is not known.
    pub(crate) fn tear_down(
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
        let segment = Segment {
            source: tuple.local.port,
            destination: tuple.remote.port,
            seq: nxt,
            ack: tcb.rcv_nxt,
            flags: Flags::ACK,
            window: u16::try_from(config.receive_bytes_max >> self.own_scale(shift))
                .unwrap_or(u16::MAX),
            options: Options {
                timestamps: Some(Timestamps { value, echo: tcb.ts_recent }),
                ..Options::default()
            },
        };
        let (header, timestamp) = out.tcp_header_to(now, tuple, &segment)?;
        let mss = segment_size(out.net.mtu, tuple, &tcb.options(now));
        Some(Box::new(Teardown {
            flow,
            header,
            timestamp: timestamp.map(|ts| TsOption { past_us: past_us(now), ..ts }),
            una: nxt,
            nxt,
            edge: nxt + tcb.peer_window(),
            peer_scale: tcb.flags.peer_scale(),
            mss: u16::try_from(mss).unwrap_or(u16::MAX),
            parts: core::mem::take(&mut self.reply),
            rcv_nxt: tcb.rcv_nxt,
            state: ClosingState::FinWait1,
            rto: RTO_INITIAL,
            time_wait: config.time_wait,
            contexts: SmallVec::new(),
            late_data: LateData::Reset,
        }))
    }

    /// Shift of the windows that we offer: none to a peer that scales nothing.
    fn own_scale(&self, shift: u8) -> u8 {
        if self.tcb.flags.has(QuasiFlags::SCALED) { shift } else { 0 }
    }

    /// The connection as a whole one, with what came and what was written.
    pub(crate) fn into_connection(
        self,
        flow: FlowId,
        tuple: Tuple,
        shift: u8,
        (mtu, window): (u16, u16),
        (config, now): (&TcpConfig, Instant),
    ) -> Connection {
        let tcb = self.tcb;
        let begin = Begin {
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
        let mut conn = Connection::established(begin, config, now);
        conn.modes.teardown = self.tears_down();
        conn.modes.no_delay = self.no_delay;
        if self.asked {
            let chunk = self
                .unread
                .map(|(packet, r)| Chunk::new(packet, r.start, r.end, RxMetadata::default()));
            conn.rcv.resume(chunk);
        }
        for part in self.reply {
            if let Part::Host(bytes) = part {
                conn.write_all(bytes);
            }
        }
        conn
    }

    /// What `outboard ss` shows of it.
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
